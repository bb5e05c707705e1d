"""Write requirements.lock from requirements.txt, with hashes, as uv resolves it for every system: `make lock`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT, LOCK = ROOT / "requirements.txt", ROOT / "requirements.lock"
TESTS = "# --- tests (the container image leaves these out)"
HEAD = """\
# Everything that is installed, with the hashes of its files on the package registry, for every system and Python from
# 3.11 on. Made from requirements.txt by `make lock`. torch is apart: its build and CUDA packages differ by index.
"""
OF_TORCH = re.compile(r"(torch|triton|nvidia-|cuda-)")  # installed with torch's own build


def resolved(lines: list[str]) -> dict[str, str]:
    """All packages that these lines need, torch's left out: name and version → entry of the lock."""
    options = ["--universal", "--python-version", "3.11", "--generate-hashes"]
    silent = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-config"]
    command = [Path(sys.executable).parent / "uv", "pip", "compile", *options, *silent, "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"uv found no packages that go together: {done.stderr.strip()}")
    entries = re.findall(r"^[\w.-]+==.*(?:\n[ \t].*)*", done.stdout, re.MULTILINE)
    return {entry.partition(" \\")[0]: entry for entry in entries if not OF_TORCH.match(entry)}


if __name__ == "__main__":
    short = re.sub(r"^-e .*\n", "", SHORT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    app = resolved(short.partition("# --- tests")[0].splitlines())
    every = resolved([*short.splitlines(), *(name for name in app if " ; " not in name)])
    if other := app.keys() - every.keys():
        sys.exit(f"The tests need other versions than the app: {', '.join(sorted(other))}; change requirements.txt.")
    tests = [entry for name, entry in every.items() if name not in app]
    LOCK.write_text("\n".join([HEAD, *app.values(), TESTS, *tests, ""]), encoding="utf-8")
    print(f"{LOCK.name}: {len(app)} packages of the app, {len(tests)} of the tests")
