"""`python -m ed_core`, and the command `effective-depth`: see `ed_core.cli`."""

import sys


def main() -> int:
    """The exit code. Ctrl-C while the commands are still imported is answered here, later on by them."""
    try:
        from .cli import shell

        return shell()
    except KeyboardInterrupt:
        print("ed_core: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
