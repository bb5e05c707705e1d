"""The engine of the effective-depth laboratory. A notebook, the shell and the pages use it alike; it never imports
streamlit.

Importing this package imports neither torch nor transformers. It does set OpenMP's waiting policy: spinning threads
beside another busy process cost a factor of 20, and the variable must stand before torch is imported."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

__version__ = "0.1.0"
