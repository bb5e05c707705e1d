"""Dense pretrained decoders of the Open LLM Leaderboard (v2): layers, width, parameters, scores. Torch-free.

`leaderboard.csv` has a row a model. `layers_source` says where its layer count was read, `check` how strong that is:
`direct` (the publisher's or a library's own config of it), `copy` (a copy of its config), `kept` (read earlier, and
checked), `sibling` (a model of its family of the same size), `derived` (worked out from a recipe), `unverified`
(nowhere). `family` is a publisher's series, whose models are not independent; `lineage` joins families with a common
ancestor. Scores are percentages above chance, as the leaderboard gives them, read off two copies of it
(every_eval_ever, modelrank_ai)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .. import bounds, outside
from ..errors import StudyError

FILE = Path(__file__).with_name("leaderboard.csv")
SCORES = {
    "average": "average",
    "ifeval": "IFEval",
    "bbh": "BBH",
    "math_lvl5": "MATH, level 5",
    "gpqa": "GPQA",
    "musr": "MuSR",
    "mmlu_pro": "MMLU-Pro",
}
NEEDED = ("model", "layers", "params_b")  # and the score that is asked for
FITTED, UNVERIFIED = "bfloat16", "unverified"
OWN = "given with --also"
MOST = 10_000  # rows of somebody's file
CITATION = "Csordás et al. 2025, arXiv 2505.13898"
CAVEATS = (
    f"Not the sample of {CITATION}: they fit 132 models and publish neither which nor their coefficients.",
    "Observed, not tried: whoever makes a model larger makes it deeper, wider, newer and better fed at once.",
)


@dataclass(frozen=True)
class Entry:
    """One model. `params`: parameters, billions; `d_model`: NaN where it is not known; `scores` by name, per cent."""

    model: str
    layers: int
    params: float
    d_model: float
    precision: str
    family: str
    lineage: str
    check: str
    layers_source: str
    scores: Mapping[str, float] = field(hash=False)

    @property
    def why_left_out(self) -> str:
        """Why it enters no fit, or ""."""
        if self.check == UNVERIFIED:
            return "its layer count stands nowhere"
        if self.precision != FITTED:
            return f"its scores are listed in {self.precision}; fits take those in {FITTED}"
        return ""


@cache
def entries() -> tuple[Entry, ...]:
    """The models that ship with the product."""
    return tuple(read(FILE.read_text(encoding="utf-8"), FILE.name))


def also(file: str | Path, score: str = "average") -> tuple[Entry, ...]:
    """Somebody's own models: a CSV file with `model`, `layers`, `params_b` (billions) and the score, and where known
    `d_model`, `family`, `lineage` and other scores; without a family a model is one of its own. `StudyError` says what
    is wrong."""
    found = tuple(read(outside.text(file, bounds.TOML, StudyError), str(file), score, OWN))
    known = {entry.model.lower() for entry in entries()}
    if twice := next((entry.model for entry in found if entry.model.lower() in known), None):
        raise StudyError(f"{file} has {twice[:80]!r}, which is in the leaderboard already; leave it out.")
    return found


def read(text: str, name: str, score: str = "average", source: str = "") -> Iterable[Entry]:
    """The rows of such a table."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    seen: set[tuple[str, str]] = set()
    try:
        columns = list(reader.fieldnames or ())
        if missing := [column for column in (*NEEDED, score) if column not in columns]:
            raise StudyError(
                f"{name} has no column {missing[0]}; expected {', '.join(NEEDED)} and {score}, and where known "
                "d_model, family and lineage."
            )
        for number, row in enumerate(reader, 2):
            if number > MOST + 1:
                raise StudyError(f"{name} has more than {MOST:,} rows; give fewer.")
            entry = _entry(row, f"{name}, row {number}", score, source)
            if (key := (entry.model.lower(), entry.precision)) in seen:
                raise StudyError(
                    f"{name}, row {number}: {entry.model[:80]!r} stands there twice in {entry.precision[:20]}; leave "
                    "one out."
                )
            seen.add(key)
            yield entry
    except csv.Error as error:
        raise StudyError(f"{name} cannot be read as CSV ({error}); save it as comma-separated values.") from None
    if not seen:
        raise StudyError(f"{name} holds no model; expected a row a model below its first line.")


def _entry(row: Mapping[str | None, str | None], place: str, score: str, source: str) -> Entry:
    told = {column: (value or "").strip() for column, value in row.items() if column and isinstance(value, str)}

    def number(column: str, low: int | float, high: int | float, needed: bool = True) -> float:
        text = told.get(column, "")
        if not text and not needed:
            return math.nan
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise StudyError(f"{place}: {column} is {text[:40]!r}; expected a number from {low:g} to {high:g}.")
        return value

    if not told.get("model") or not told["model"].isprintable():
        raise StudyError(f"{place}: no model is named; give it a name of one line in the column model.")
    layers = number("layers", 1, bounds.LAYERS)
    if layers != int(layers):
        raise StudyError(f"{place}: layers is {told['layers'][:40]!r}; expected a whole number.")
    family = told.get("family") or told["model"]
    return Entry(
        model=told["model"][:200],
        layers=int(layers),
        params=number("params_b", 1e-6, 1e6),
        d_model=number("d_model", 1, bounds.WHOLE, needed=False),
        precision=told.get("precision") or FITTED,
        family=family[:200],
        lineage=(told.get("lineage") or family)[:200],
        check=told.get("check") or source,
        layers_source=told.get("layers_source") or source,
        scores={name: number(name, -100, 100, name == score) for name in SCORES},
    )
