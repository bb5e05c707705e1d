"""The card as data: a JSON document that page, Markdown and comparison are made of. Numpy only.

What it holds, by key: `model`, `identities`, `set`, `mean_depths` (a row for KL and overlap under each lens: the depth
without a threshold, with interval and the untrained twin's) and `turn` (of the cosine), both missing from older cards,
`depths` (a row for each rule of the papers under each lens, with interval, variants and the twin's), `lenses`,
`curves`, `claims`, `cuts`, `exit`, `sinks`, `precision`, `commands`, `missing` (what could not be measured, and why),
and `about`, a digest of model, prompts and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import disk, settings
from ..errors import CardError
from ..files import Bounds, Head, Kind, open_sealed, seal
from ..fits import checkpoint
from ..sources.bundled import CARDS
from ..types import ModelSpec

FILE, HTML, MARKDOWN = "card.json", "card.html", "card.md"
MOST_BYTES = 3 << 20  # of a card, in each of its forms
DIGITS = 6  # significant ones of a number
PROMPTS, OTHERS = 50, ("bf16", "int8")  # what a card is of unless something else is asked for

Table = list[dict[str, Any]]


class Header(Head, extra="allow"):
    """The document. What later cards brought in may be missing."""

    about: str
    model: dict[str, Any]
    identities: dict[str, Any]
    set: dict[str, Any]
    depths: Table
    lenses: dict[str, Any] | None
    curves: dict[str, Any]
    claims: Table
    cuts: Table
    exit: dict[str, Any] | None
    sinks: dict[str, Any]
    precision: dict[str, Any] | None
    commands: list[str]
    missing: list[str]


CARD = Kind(
    "card",
    "a depth card",
    2,
    Header,
    "make it anew with `python -m ed_core card`",
    bounds=Bounds(MOST_BYTES, head=MOST_BYTES),
    refuses=CardError,
)


def folder() -> Path:
    """Where the cards of this installation are made, each in a folder of its own."""
    return settings.current().cache / "cards"


def place(
    model: ModelSpec,
    prompts: str,
    also: tuple[str, ...] = (),
    others: tuple[str, ...] = OTHERS,
    most: int = PROMPTS,
    seed: int = 0,
) -> Path:
    """The folder of a card that is made here; `prompts`: a bundled set's name, or the digest of other prompts."""
    return folder() / checkpoint.digest("card", model.identity(), prompts, also, others, most, seed)


def shipped() -> list[Path]:
    """The cards that come with the product."""
    return sorted(CARDS.glob("*.json"))


def made_here() -> list[Path]:
    """The cards that were made here, latest first."""
    return sorted(folder().glob(f"*/{FILE}"), key=lambda file: -file.stat().st_mtime)


def to_json(told: Mapping[str, Any]) -> bytes:
    """The document: numbers with six significant digits, null for what is not a finite number."""
    return seal(CARD, rounded(told))


def read(file: str | Path) -> dict[str, Any]:
    """The card in a file. `CardError` for one that is missing, damaged, or of a later version."""
    place = Path(file)
    try:
        with open_sealed(place, CARD) as sealed:
            return sealed.head.fields()
    except OSError as error:
        raise CardError(f"The card {place} cannot be read: {disk.why(error)}") from error


def depth_of(told: Mapping[str, Any], rule: str, lens: str = "") -> Mapping[str, Any] | None:
    """A row of `depths`; None where the card has none. `lens`: "" for the cosine rule, which reads none."""
    found = (row for row in told["depths"] if row["rule"] == rule and row["lens"] == (lens if rule != "cosine" else ""))
    return next(found, None)


def mean_depth_of(told: Mapping[str, Any], of: str, lens: str = "logit") -> Mapping[str, Any] | None:
    """A row of `mean_depths`; None where the card has none, or is older than they are."""
    return next((row for row in told.get("mean_depths", ()) if (row["of"], row["lens"]) == (of, lens)), None)


def rounded(value: Any) -> Any:
    """`value` as a card has it."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
