"""Programs for a checkout, outside the wheel: benchmarks (`tools.bench`), and what makes the bundled models, prompts,
results and case studies, which lie where `ed_core.sources.bundled` says."""

import sys


def given(told: str | None, *known: str) -> list[str]:
    """The words that a program is given, each one of those `known`; of `--help` what it is `told` to do, and an end."""
    found = sys.argv[1:]
    if {"-h", "--help"} & {*found}:
        print(f"{told}\n\nWords that may be given: {', '.join(known) or 'none'}")
        sys.exit()
    if wrong := next((one for one in found if one not in known), ""):
        sys.exit(f"{wrong!r} is not known here; expected {', '.join(known) or 'nothing'}.")
    return found
