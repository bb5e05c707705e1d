"""What the shell prints of what ships, what a published site, exports and reports say, and every claim's conclusion on
made-up data; `tests/data/printed.txt` holds it, a line each. `PYTHONPATH=. python tests/printed.py` writes it anew:
what a change of the code changes in words is then read in the file's difference."""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from charts import forget
from drawn import digest
from made_up_claims import MADE_UP, Draw, fewer_resamples
from screens import EXACT, begin, in_sections, short, written

from ed_core import machine
from ed_core.claims import find, finding
from ed_core.commands import main

FILE = Path(__file__).parent / "data" / "printed.txt"
SHIPPED = Path(__file__).parent.parent / "ed_core" / "demo"
OWN = "bcdfghjkmn"  # the case study of the tests' own laboratory
WITHOUT_WORDS = re.compile(r"<(script|style|svg)\b.*?</\1>|data:[\w/;,+=-]+", re.DOTALL)
PARTS = re.compile(r"(?=<(?:h\d|p|li|tr|section|article|figure|div|details|a|button|label|option|meta|title)\b)")
OF_DIGITS = re.compile(r"\.csv: \d+ bytes")  # as many as the last digits of its numbers take
READABLE = (".html", ".csv", ".py", ".sh", ".md")
FIRST, STEP = 40, 400  # lines of a file that are kept one by one, and how many of the others together
ALSO = "model,layers,params_b,musr,d_model\nours-<b>,12,0.5,30.5,512\ndeeper,48,0.5,31,512\n"
COMMANDS = (
    *(f"{name} --help" for name in (
        "", "app", "run", "verify", "estimate", "fetch", "local", "audit", "models", "cache", "settings", "ready",
        "bench", "fit", "fit affine", "fit jacobian", "fit maps", "fit replacement", "study", "reproduce",
        "leaderboard", "claims", "card", "case", "case export", "backup", "publish static", "deploy space")),
    *(f"estimate {model} --device cpu" for model in ("ed-demo-8", "ed-loop-4x4", "smollm2", "openai-community/gpt2")),
    "estimate Qwen/Qwen2.5-1.5B --device cpu --precision int8 --tokens 512",
    "models",
    "cache info",
    "case list",
    "case list sum --sort title",
    *(f"case show {name}" for name in (OWN, "25tnnt74db", "denon6ly2j")),
    f"case export {OWN} it.py",
    f"case export {OWN} it.sh",
    f"case export {OWN} it.html",
    "case export 25tnnt74db it.html",
    "case export denon6ly2j it.svg",
    "case export denon6ly2j it.svg --figure ruler",
    f"case delete {OWN}; case list --trash; case restore {OWN}",
    f"backup all.zip; case delete {OWN}; case empty-trash; restore all.zip; restore all.zip",
    "check",
    "leaderboard",
    "leaderboard --score musr --also also.csv",
    f"study {SHIPPED}/studies/toys/study.toml --out toys --dry-run",
    f"study {SHIPPED}/studies/gsm8k --export verdict.csv",
    f"study {SHIPPED}/studies/toys --export summary.csv",
    "publish static --shipped --out site",
)  # fmt: skip


def said(line: str) -> str:
    """A line without what differs from one machine, or one folder, to another."""
    for place, name in ((os.getcwd(), "HERE"), (os.environ["ED_CACHE"], "CACHE"), (str(SHIPPED), "SHIPPED")):
        line = line.replace(place, name)
    line = OF_DIGITS.sub(".csv: N bytes", line)
    return EXACT.sub(lambda m: f"{float(m[0]):.4g}", line)


def texts(page: str) -> Iterator[str]:
    """What an HTML page says and how its parts are called, one part a line."""
    for part in PARTS.split(WITHOUT_WORDS.sub("", page)):
        yield " ".join(html.unescape(part).split())


def cut(long: list[str]) -> Iterator[str]:
    """The first lines of a file; the others by their digests, many together."""
    yield from long[:FIRST]
    for at in range(FIRST, len(long), STEP):
        yield f"{at}: {digest([said(line) for line in long[at : at + STEP]])}"


def shell(command: str) -> Iterator[str]:
    """What a command prints, its exit code where that is not 0, and what it wrote into the current folder."""
    here, out = Path.cwd(), io.StringIO()
    before = {file: file.stat().st_mtime_ns for file in here.rglob("*") if file.is_file()}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(command.split())
        except SystemExit as left:
            code = left.code
    found = out.getvalue().splitlines()
    yield from found if code in (0, None) else [*found, f"exit code {code}"]
    for file in sorted(here.rglob("*")):
        if file.is_file() and before.get(file) != file.stat().st_mtime_ns:
            yield f"{file.relative_to(here)}:"
            if file.suffix in READABLE:
                text = file.read_text(encoding="utf-8")
                yield from cut(list(texts(text)) if file.suffix == ".html" else text.splitlines())


def claim(name: str, kind: str) -> Iterator[str]:
    """All that is said of a claim on one made-up set, beside noise as its control."""
    sets = (Draw(kind, 4, np.random.default_rng(1)), Draw("noise", 4, np.random.default_rng(2)))
    with fewer_resamples():
        mine, control = (find(name).of(MADE_UP[name](one)) for one in sets)
        found = finding.Finding(find(name), "made-up", kind, mine, "", control).told()
    (found,) = finding.adjusted([found])
    yield from (finding.sentence(found), finding.judgement(found), found.over, found.beside, *finding.reasons(found))
    yield from (f"{q.name}: {q.value} {q.limits}" for q in found.quantities)


SECTIONS = {f"# {command.replace(str(SHIPPED), 'SHIPPED')}": tuple(command.split("; ")) for command in COMMANDS} | {
    f"# {name}: {kind}": (name, kind) for name in MADE_UP for kind in ("holds", "fails")
}


def lines(section: str) -> Iterator[str]:
    """Of one section, without empty lines; a space before each tells it from a section's name."""
    asked = SECTIONS[section]
    found = claim(*asked) if asked[0] in MADE_UP else (line for command in asked for line in shell(command))
    return (f" {short(said(line))}" for line in found if line.strip())


def kept() -> dict[str, list[str]]:
    return in_sections(FILE.read_text(encoding="utf-8"))


@contextlib.contextmanager
def laboratory(place: Path) -> Iterator[None]:
    """An empty folder to work in, beside the laboratory of the rooms' test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 30))
        patch.setattr(machine, "GROUPS", place)
        begin(patch, place / "cache")
        (place / "here").mkdir()
        (place / "here" / "also.csv").write_text(ALSO, encoding="utf-8")
        patch.chdir(place / "here")
        yield
    forget()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, laboratory(Path(place)):
        FILE.write_text(written((name, lines(name)) for name in SECTIONS), encoding="utf-8")
