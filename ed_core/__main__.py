"""`python -m ed_core`: see `ed_core.commands`."""

import sys

from .commands import shell

if __name__ == "__main__":
    sys.exit(shell())
