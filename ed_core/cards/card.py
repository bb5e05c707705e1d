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
from ..fits.file import digest_of
from ..models.bundled import CARDS
from ..types import ModelSpec

FILE, HTML, MARKDOWN = "card.json", "card.html", "card.md"
MOST_BYTES = 3 << 20  # of a card, in each of its forms
DIGITS = 6  # significant ones of a number
PROMPTS, OTHERS = 50, ("bf16", "int8")  # what a card is of unless something else is asked for


class Model(Record):
    """What the model is. `layers` counts through all passes."""

    name: str
    family: str
    layers: int = Field(ge=1)
    width: int
    mlp: int
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


class Identities(Record):
    """Largest errors of the sums (`models.identities`), with their limits."""

    dtype: str
    miss: int | float
    slope_error: Number
    slopes_checked: int = 0
    closure: int | float
    replay: int | float
    suffix: Number = None
    tokens: int
    miss_limit: int | float
    slope_limit: int | float
    failures: tuple[str, ...]


class Asked(Record):
    """A prompt."""

    text: str
    answer: str = ""
    level: str = ""


class PromptSet(Record):
    """The prompts; `n`: how many."""

    name: str
    digest: str
    n: int
    answers: bool
    levels: tuple[str, ...]
    prompts: tuple[Asked, ...] = Field(min_length=1)


class Mean(Record):
    """The depth without a threshold, of KL or overlap, under a lens; with 5 and 95 % `over` the prompts or their forms;
    the untrained twin's."""

    of: str = ""
    lens: str = ""
    depth: Number
    ratio: Number = None
    low: Number
    high: Number
    over: str = ""
    prompts: int = 0
    twin: Mean | None = None


class Turn(Record):
    """The cosine's turn (`depth.continuous`)."""

    layer: Number = None
    ratio: Number = None
    p: Number = None
    failed: str = ""
    before: Number = None
    after: Number = None
    sentence: str


class Depth(Record):
    """What a rule of the papers gives under a lens, "" for the cosine, which reads none; by its variants; whether it is
    clear, None where it is not judged; whether only five twins are missing for that."""

    rule: str = ""
    lens: str = ""
    depth: Number
    ratio: Number = None
    low: Number = None
    high: Number = None
    undefined: Number = None
    prompts: int = 0
    variants: dict[str, Number] = Field(default_factory=dict)
    twin: Depth | None = None
    clear: bool | None = None
    so_far: bool = False
    sentence: str = ""


class Lenses(Record):
    """Whether the verdict changes with the lens; settle depths; what the certificates say."""

    sentence: str
    settle: dict[str, int | float] = Field(default_factory=dict)
    certificates: dict[str, str]


class Curve(Record):
    """A curve over layers or depths, with 5 and 95 %."""

    values: tuple[Number, ...]
    low: tuple[Number, ...]
    high: tuple[Number, ...]


class Value(Record):
    """A number with 5 and 95 %."""

    value: Number
    low: Number
    high: Number


class ByAngle(Record):
    """The stretch that the angular distance chooses."""

    start: int
    loss: Value


class Cut(Record):
    """What leaving out so many layers in a row costs, of the stretch that changes the predictions least. `whole`: the
    whole model's loss on these prompts, nats per token."""

    layers: int
    start: int
    prompts: int
    kl: Value
    loss: Value
    kept: Value
    by_angle: ByAngle
    whole: Number = None


class Exit(Record):
    """Where written tokens settle, and whether leaving at a confidence changes them; `mean_lost_at_0`: the share that
    changes by leaving at depth 0."""

    tokens: int
    threshold: int | float
    prompts: int
    mean_depth: Value | None
    mean_ratio: Value | None
    mean_agreement: Value | None
    mean_lost_at_0: Value | None = None


class Sinks(Record):
    """Shares of tokens and of first tokens that are sinks; those of the first `named_of` prompts, in words."""

    tokens: Number
    first: Number
    named: str
    named_of: int


class Moved(Record):
    """A rule's depth in another precision, by how much it moved, whether it counts as the same, and the rank
    correlation of the curves."""

    rule: str
    precision: str
    depth: Number
    moved: Number
    same: bool
    order: Number


class MovedMean(Record):
    """A mean depth in another precision, beside the card's own."""

    of: str
    precision: str
    depth: Number
    own: Mean


class Precision(Record):
    """The card's own precision, and what others change."""

    own: str
    rows: tuple[Moved, ...]
    means: tuple[MovedMean, ...] = ()


class Card(Record):
    """The document. `missing`: what could not be measured, and why; `about`: a digest of model, prompts and
    settings."""

    about: str
    made: str = ""
    engine: int = 0
    model: Model
    identities: Identities
    set: PromptSet
    claims: tuple[Found, ...]
    sinks: Sinks
    commands: tuple[str, ...]
    missing: tuple[str, ...]
    mean_depths: tuple[Mean, ...]
    turn: Turn | None = None
    depths: tuple[Depth, ...]
    lenses: Lenses
    curves: dict[str, dict[str, Curve]]
    cuts: tuple[Cut, ...]
    exit: Exit | None
    precision: Precision

    @model_validator(mode="after")
    def _drawable(self) -> Card:
        """Refuse curves that cannot be drawn."""
        if missing := {*RULES, "loss"} - self.curves.keys():
            raise ValueError(f"no curves of {', '.join(sorted(missing))}")
        lengths = {len(v) for of in self.curves.values() for c in of.values() for v in (c.values, c.low, c.high)}
        if lengths - {self.model.layers, self.model.layers + 1}:
            raise ValueError(f"a curve over {self.model.layers} layers has as many entries, or one more")
        return self


class Header(Card, Head, extra="allow"):
    """The file."""


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
    return folder() / digest_of("card", model.identity(), prompts, also, others, most, seed)


def shipped() -> list[Path]:
    """The cards that come with the product."""
    return sorted(CARDS.glob("*.json"))


def made_here() -> list[Path]:
    """The cards that were made here, latest first."""
    return sorted(folder().glob(f"*/{FILE}"), key=lambda file: -file.stat().st_mtime)


def to_json(told: Card) -> bytes:
    """The document: numbers with six significant digits, null for what is not a finite number."""
    return seal(CARD, rounded(told.fields()))


def read(file: str | Path) -> Card:
    """The card in a file. `CardError` for one that is missing, damaged, or of a later version."""
    place = Path(file)
    try:
        with open_sealed(place, CARD) as sealed:
            return sealed.head
    except FileNotFoundError:
        raise CardError(f"There is no card {place}; check the path.") from None
    except OSError as error:
        raise CardError(f"The card {place} cannot be read: {disk.why(error)}") from error


def depth_of(told: Card, rule: str) -> Depth | None:
    """What a rule gives under the logit lens, or without one where it reads none; None where the card has none."""
    lens = "" if rule == "cosine" else "logit"
    return next((row for row in told.depths if (row.rule, row.lens) == (rule, lens)), None)


def mean_depth_of(told: Card, of: str) -> Mean | None:
    """The mean depth under the logit lens; None where the card has none."""
    return next((row for row in told.mean_depths if (row.of, row.lens) == (of, "logit")), None)


def rounded(value: Any) -> Any:
    """`value` as a card has it."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value
