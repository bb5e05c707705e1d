"""The findings of a run of claims as its file has them: one schema for writing, reading and showing."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ..errors import StudyError
from ..files import Bounds, Head, Kind


def _finite(value: Any) -> Any:
    """Return None for a float that is not finite, any other value as it is."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[int | float | None, BeforeValidator(_finite)]
"""None where it is undefined."""
R = TypeVar("R", bound="Record")


class Record(BaseModel):
    """Base of all parts of a stored document: immutable, and without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    def but(self: R, **changes: Any) -> R:
        """Return a copy with these fields changed."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def fields(self) -> dict[str, Any]:
        """Return the record as a dict for JSON, without the fields that every file has."""
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
    """How a claim came out. `unadjusted`, `p`: the verdict before Holm's adjustment and its probability of error;
    `verdict`, `adjusted`: after it, among `together` claims that were tested. `reason`: why it does not apply. `over`:
    what is independent among the prompts. `twin`: the untrained copy's verdict, "" without one."""

    id: str
    title: str
    source: str
    verdict: str
    unadjusted: str
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
    """The document as its file has it, with the fields of every file."""


KIND = Kind(
    "claims",
    "a file of claims",
    4,
    Header,
    "delete it and run the claims again: what was measured stays",
    bounds=Bounds(head=64 << 20),
    refuses=StudyError,
)
