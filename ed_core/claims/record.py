"""The findings of a run of claims as its file has them: one schema for writing, reading and showing."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ..errors import StudyError
from ..files import Bounds, Head, Kind


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[int | float | None, BeforeValidator(_finite)]
"""None where it is undefined."""
R = TypeVar("R", bound="Record")


class Record(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    def but(self: R, **changes: Any) -> R:
        """The same with other values."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def fields(self) -> dict[str, Any]:
        """As JSON, without what every file has."""
        return self.model_dump(exclude=set(Head.model_fields))


class Value(Record):
    """A number with 5 and 95 % over prompts or their forms, and over layers where it is about them."""

    value: Number
    low: Number = None
    high: Number = None
    layers: tuple[Number, Number] | None = None
    undefined: Number = None


class Judged(Record):
    """A claim's quantity (`judging.Quantity`), with its value here and on the untrained copy; `why`: why it is not
    judged. `flips`: the verdicts with a limit that was chosen here moved by 20 % inwards and outwards."""

    name: str
    unit: str
    limits: tuple[Number, Number]
    paper: str
    digits: int
    chosen: bool
    shown: bool
    value: Value | None
    twin: Value | None
    why: str = ""
    nothing: str = ""
    flips: tuple[str, str] | None = None


class Found(Record):
    """How a claim came out. `alone`, `p`: the verdict by itself and its probability of error; `verdict`, `adjusted`:
    among `together` claims that were tested together (Holm). `reason`: why it does not apply. `over`: what is
    independent among the prompts. `twin`: the untrained copy's verdict, "" without one."""

    id: str
    title: str
    source: str
    verdict: str
    alone: str
    p: Number = None
    adjusted: Number = None
    together: int = 1
    reason: str = ""
    prompts: int = 0
    over: str = ""
    note: str = ""
    quantities: tuple[Judged, ...] = ()
    twin: str = ""

    @property
    def judging(self) -> tuple[Judged, ...]:
        """The quantities that the verdict rests on."""
        return tuple(q for q in self.quantities if not q.shown)


class Report(Record):
    """The document that a run of claims writes. `about`: a digest of model, prompts and settings."""

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
    4,
    Header,
    "delete it and run the claims again: what was measured stays",
    bounds=Bounds(head=64 << 20),
    refuses=StudyError,
)
