"""`python -m ed_core`, and the command `effective-depth`: see `ed_core.cli`."""

import sys


def main() -> int:
    """Return the exit code of the command line; Ctrl-C while the commands are still imported is answered here."""
    try:
        from .cli import shell

        return shell()
    except KeyboardInterrupt:
        print("ed_core: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
