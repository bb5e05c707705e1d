"""Programs for a checkout, outside the wheel: benchmarks (`tools.bench`), and the makers of what is in `ed_core/demo`:
models, prompts, results and case studies."""

import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported


def arguments(description: str | None, *known: str) -> list[str]:
    """The words of the command line, each one of `known`; `--help` prints the description and exits."""
    words = sys.argv[1:]
    if {"-h", "--help"} & {*words}:
        print(f"{description}\n\nArguments: {', '.join(known) or 'none'}")
        sys.exit()
    for word in words:
        if word not in known:
            sys.exit(f"Unknown argument {word!r}; expected {', '.join(known) or 'none'}.")
    return words
