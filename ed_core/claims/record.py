"""What a run of claims found, as its file holds it: one schema for writing, reading and showing.

A field with a default came in later, or belongs to some documents only; a document without it is written without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_serializer

from ..errors import StudyError
from ..files import Bounds, Head, Kind
from ..statistics import Resampled, ends


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[int | float | None, BeforeValidator(_finite)]
"""None where it is not defined."""
R = TypeVar("R", bound="Record")


class Record(BaseModel):
    """A part of a document. What a later version brings in is kept as it is."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @model_serializer(mode="wrap")
    def _as_it_came(self, write: Callable[[Record], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if name in self.model_fields_set}

    def but(self: R, **changes: Any) -> R:
        """The same with other values."""
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | changes)

    def without(self: R, *names: str) -> R:
        """The same without these fields."""
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set if name not in names})

    def fields(self) -> dict[str, Any]:
        """As JSON, without what every file has."""
        return self.model_dump(exclude=set(Head.model_fields))


class Valued(Record):
    """A quantity's value: 5 and 95 % over prompts, share of resamples without one, 5 and 95 % over layers; why it
    cannot be judged; its verdict by itself; in words with what the interval is over, and without."""

    value: Number
    low: Number
    high: Number
    undefined: Number = None
    layers: tuple[Number, Number] | None = None
    why: str = ""
    verdict: str = ""
    told: str
    short: str


class Moved(Record):
    """The verdict with other limits."""

    holds: tuple[Number, Number]
    verdict: str


class Limits(Record):
    """How far the value lies from the limits that were chosen here, and the verdict with others."""

    distance: Number
    moved: tuple[Moved, ...]
    turns: bool
    told: str


class Judged(Record):
    """A claim's quantity (`claim.Quantity`), with its value here and for the control."""

    name: str
    unit: str
    holds: tuple[Number, Number]
    limit: str
    found: str
    digits: int
    chosen: bool = False
    beside: bool = False
    value: Valued | None
    control: Valued | None
    limits: Limits | None = None


class Curve(Record):
    """What is drawn of a claim: values with 5 and 95 % at places along x; `ticks` where places have names."""

    x_title: str
    unit: str
    x: tuple[Number, ...]
    values: tuple[Number, ...]
    low: tuple[Number, ...]
    high: tuple[Number, ...]
    ticks: tuple[str, ...]

    @classmethod
    def of(cls, x_title: str, unit: str, curve: Resampled, x: Sequence[float] = (), ticks: Sequence[str] = ()) -> Curve:
        """From a curve over places, which are counted from 0 unless given."""
        low, high = ends(curve.draws)
        drawn = {"x": x or range(len(curve.value)), "values": curve.value, "low": low, "high": high}
        numbers = {name: tuple(float(v) for v in one) for name, one in drawn.items()}
        return cls(x_title=x_title, unit=unit, ticks=tuple(ticks), **numbers)


class Found(Record):
    """What became of a claim. `alone`, `p`: the verdict by itself and its probability of error; `verdict`, `adjusted`:
    among `together` claims that were tested at once (Holm). `over`: what the intervals are over. `control`: the
    untrained twin's verdict, "" without one, for `control_reason`."""

    id: str
    title: str = ""
    statement: str = ""
    source: str = ""
    formula: str = ""
    protocol: str = ""
    contradicted: str = ""
    of: str = ""
    verdict: str
    alone: str
    p: Number = None
    adjusted: Number = None
    together: int = 1
    reason: str = ""
    prompts: int = 0
    over: str = ""
    beside: str = ""
    quantities: tuple[Judged, ...] = ()
    control: str = ""
    control_reason: str = ""
    curves: dict[str, Curve] = {}
    sentence: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def judging(self) -> tuple[Judged, ...]:
        """The quantities that the verdict hangs on."""
        return tuple(q for q in self.quantities if not q.beside)


class Report(Record):
    """What a run of claims writes. `about`: a digest of model, prompts and settings."""

    about: str
    model: str
    precision: str = ""
    set: str
    prompts: int = 0
    command: str
    findings: tuple[Found, ...]


class Header(Report, Head, extra="allow"):
    """The file."""


KIND = Kind(
    "claims",
    "a file of claims",
    2,
    Header,
    "delete it and run the claims again: what was measured stays",
    bounds=Bounds(head=64 << 20),
    refuses=StudyError,
)
