"""The engine of the effective-depth laboratory. A notebook, the shell and the pages use it alike; it never imports
streamlit. `ed_core.open`, `Prompt`, `read_jsonl` and the probes are what a notebook needs (`ed_core.api`).

Importing this package imports neither torch nor transformers. It does set what their threads read when they are
imported (`machine.prepare`)."""

import os

from . import machine
from .api import __getattr__ as __getattr__
from .api import offered as _offered
from .api import open as open

machine.prepare()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # its downloads cannot be cancelled: exceptions in callbacks are lost

__version__ = "0.2.0"


def __dir__() -> list[str]:
    """Return the names of this package, the offered ones (`api.offered`) included."""
    return sorted({*globals(), *_offered()})
