"""Programs for a checkout, outside the wheel: benchmarks (`tools.bench`), and the makers of what is in `ed_core/demo`:
models, prompts, results and case studies."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported
