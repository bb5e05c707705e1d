"""The card as data: a JSON document that page, Markdown and comparison are made of. Numpy only.

What it holds, by key: `model`, `identities`, `set`, `mean_depths` (a row for KL and overlap under each lens: the depth
without a threshold, with interval and the untrained twin's) and `turn` (of the cosine), both missing from older cards,
`depths` (a row for each rule of the papers under each lens, with interval, variants and the twin's), `lenses`,
`curves`, `claims`, `cuts`, `exit`, `sinks`, `precision`, `commands`, `missing` (what could not be measured, and why),
and `about`, a digest of model, prompts and settings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import disk, settings
from ..errors import CardError
from ..fits import checkpoint
from ..sources.bundled import CARDS
from ..types import ModelSpec, from_json

FORMAT, VERSION = "effective-depth card", 1
FILE, HTML, MARKDOWN = "card.json", "card.html", "card.md"
MOST_BYTES = 3 << 20  # of a card, in each of its forms
DIGITS = 6  # significant ones of a number
KEYS = {
    "about",
    "model",
    "identities",
    "set",
    "depths",
    "lenses",
    "curves",
    "claims",
    "cuts",
    "exit",
    "sinks",
    "precision",
    "commands",
    "missing",
}
PROMPTS, OTHERS = 50, ("bf16", "int8")  # what a card is of unless something else is asked for


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
    made = {"format": FORMAT, "version": VERSION} | dict(told)
    return (json.dumps(_plain(made), ensure_ascii=False, indent=1) + "\n").encode()


def read(file: str | Path) -> dict[str, Any]:
    """The card in a file. `CardError` for one that is missing, damaged, or of a later version."""
    place = Path(file)
    try:
        if place.stat().st_size > MOST_BYTES:
            raise CardError(f"{place.name} has more than {MOST_BYTES >> 20} MB, which no card has; give a card's file.")
        found = from_json(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise CardError(f"The card {place} cannot be read: {disk.why(error)}") from error
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not found.keys() >= KEYS:
        raise CardError(f"{place.name} is damaged or no depth card; make it anew with `python -m ed_core card`.")
    if found.get("version") != VERSION:
        raise CardError(
            f"{place.name} is a card of version {found.get('version')}, and this program reads {VERSION}; make it anew "
            "with `python -m ed_core card`."
        )
    return found


def depth_of(told: Mapping[str, Any], rule: str, lens: str = "") -> Mapping[str, Any] | None:
    """A row of `depths`; None where the card has none. `lens`: "" for the cosine rule, which reads none."""
    found = (row for row in told["depths"] if row["rule"] == rule and row["lens"] == (lens if rule != "cosine" else ""))
    return next(found, None)


def mean_depth_of(told: Mapping[str, Any], of: str, lens: str = "logit") -> Mapping[str, Any] | None:
    """A row of `mean_depths`; None where the card has none, or is older than they are."""
    return next((row for row in told.get("mean_depths", ()) if (row["of"], row["lens"]) == (of, lens)), None)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
