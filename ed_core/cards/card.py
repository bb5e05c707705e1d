"""The card as data: a JSON document that page, Markdown and comparison are made of. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from .. import disk, settings
from ..claims.record import Found, Number, Record
from ..depth.rules import RULES
from ..errors import CardError
from ..files import Bounds, Head, Kind, open_sealed, seal
from ..lenses.checkpoint import digest_of
from ..models.bundled import CARDS
from ..types import ModelSpec

FILE, HTML, MARKDOWN = "card.json", "card.html", "card.md"
MOST_BYTES = 3 << 20  # of a card, in each of its forms
DIGITS = 6  # significant ones of a number
PROMPTS, OTHERS = 50, ("bf16", "int8")  # of a card unless something else is asked for


class Model(Record):
    """The model of a card. `layers` counts through all passes; `content`: digest of the weights; `tied`: whether input
    and output embedding are one."""

    name: str
    family: str
    layers: int = Field(ge=1)
    width: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool
    parameters: int
    precision: str
    content: str
    revision: str
    adapter: str
    passes: int = 1


class Prompt(Record):
    """A prompt that a card was measured on."""

    text: str
    answer: str = ""
    level: str = ""


class PromptSet(Record):
    """The prompts that a card was measured on."""

    name: str
    digest: str
    levels: tuple[str, ...]
    prompts: tuple[Prompt, ...] = Field(min_length=1)


class Value(Record):
    """A number with its 5 and 95 % over prompts, None where unknown."""

    value: Number
    low: Number = None
    high: Number = None


class Depth(Record):
    """A depth of the mean curve with its 5 and 95 % over prompts, and its ratio to the layers: the average depth where
    `mean`, else a published rule's, by "kl", "overlap" or "cosine" (`of`)."""

    of: str
    mean: bool
    depth: Number
    ratio: Number = None
    low: Number = None
    high: Number = None


class Curve(Record):
    """A curve over layers or depths, with 5 and 95 % of each of its values."""

    values: tuple[Number, ...]
    low: tuple[Number, ...]
    high: tuple[Number, ...]


class Cut(Record):
    """What leaving out `layers` layers in a row costs at least: the stretch from layer `start` (from 0) that changes
    the predictions least. `kl`, `loss`: in nats a token; `kept`: the share of first choices that stay."""

    layers: int
    start: int
    kl: Value
    loss: Value
    kept: Value


class Card(Record):
    """A depth card. `about`: a digest of model, prompts and settings. `said`: the verdict in sentences, the answer
    first; `rules`: the table of the published rules; `notes`: checks, controls and limits of the numbers."""

    about: str
    made: str = ""
    engine: int = 0
    model: Model
    set: PromptSet
    over: str
    depths: tuple[Depth, ...]
    said: tuple[str, ...] = Field(min_length=1)
    rules: tuple[dict[str, str], ...]
    curves: dict[str, dict[str, Curve]]
    cuts: tuple[Cut, ...]
    claims: tuple[Found, ...]
    notes: tuple[str, ...]
    commands: tuple[str, ...]

    @model_validator(mode="after")
    def _drawable(self) -> Card:
        """Refuse curves that cannot be drawn."""
        if missing := {*RULES, "loss"} - self.curves.keys():
            raise ValueError(f"no curves of {', '.join(sorted(missing))}")
        lengths = {len(v) for panel in self.curves.values() for c in panel.values() for v in (c.values, c.low, c.high)}
        if lengths - {self.model.layers, self.model.layers + 1}:
            raise ValueError(f"a curve over {self.model.layers} layers has as many entries, or one more")
        return self

    def depth(self, of: str, mean: bool) -> Depth | None:
        """Return the average depth (`mean`) or the published rule's by the measure `of`; None where there is none."""
        return next((one for one in self.depths if (one.of, one.mean) == (of, mean)), None)


class Header(Card, Head, extra="allow"):
    """The card as its file has it, with the fields of every file."""


CARD = Kind(
    "card",
    "a depth card",
    4,
    Header,
    "make it again with `python -m ed_core card`",
    bounds=Bounds(MOST_BYTES, head=MOST_BYTES),
    refuses=CardError,
)


def folder() -> Path:
    """Return the folder of the cards that are made here, which has a folder for each."""
    return settings.current().cache / "cards"


def place(
    model: ModelSpec,
    prompts: str,
    also: tuple[str, ...] = (),
    others: tuple[str, ...] = OTHERS,
    most: int = PROMPTS,
    seed: int = 0,
) -> Path:
    """Return the folder of a card; `prompts`: a bundled set's name, or the digest of other prompts."""
    return folder() / digest_of("card", model.identity(), prompts, also, others, most, seed)


def shipped() -> list[Path]:
    """Return the files of the cards that come with the product."""
    return sorted(CARDS.glob("*.json"))


def made_here() -> list[Path]:
    """Return the files of the cards that were made here, latest first."""
    return sorted(folder().glob(f"*/{FILE}"), key=lambda file: -file.stat().st_mtime)


def to_json(card: Card) -> bytes:
    """Return the card as a JSON document: numbers with six significant digits, null for what is not a finite number."""
    return seal(CARD, rounded(card.fields()))


def read(file: str | Path) -> Card:
    """Return the card in a file; `CardError` where it is missing, damaged, edited, or of another version."""
    try:
        with open_sealed(Path(file), CARD) as sealed:
            return sealed.head
    except FileNotFoundError:
        raise CardError(f"There is no card {file}; check the path.") from None
    except OSError as error:
        raise CardError(f"The card {file} cannot be read: {disk.why(error)}") from error


def rounded(value: Any) -> Any:
    """Return a copy of `value`, in which every float has six significant digits."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
