"""What a run computes: one frozen spec per kind, kept as JSON in the run's folder. Torch-free."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ..cards import making
from ..cases.snippet import NAMES, opening
from ..claims import running as claims
from ..types import ModelSpec, command_line

JACOBIAN_TOKENS = 128  # that the Jacobian lens reads of a prompt unless told


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Computed(_Spec):
    """Which processes compute: this one, `processes` of this machine, or Ray's at an `address`."""

    engine: Literal["here", "ray"] = "here"
    address: str = ""
    processes: int = 1
    dry_run: bool = False


class StudyRun(_Computed):
    """A study's file (TOML), computed into the run's folder."""

    kind: Literal["study"] = "study"
    file: str
    device: str = "auto"
    shard: tuple[int, int] = (1, 1)
    merge: bool = False


class ClaimsRun(_Spec):
    """Claims about one model, in the run's folder."""

    kind: Literal["claims"] = "claims"
    asked: claims.Asked
    processes: int = 1


class CardRun(_Spec):
    """A depth card, in the run's folder."""

    kind: Literal["card"] = "card"
    asked: making.Asked
    processes: int = 1


class Opened(_Spec):
    """A model by name, and how it is opened."""

    source: str
    precision: str = "fp32"
    device: str = "auto"
    adapter: str = ""
    offload: str = ""
    control: str = ""
    control_seed: int = 0

    @classmethod
    def of(cls, model: ModelSpec) -> Opened:
        """How a model that was resolved already is opened again."""
        return cls(**opening(model))


class FitRun(_Spec):
    """A lens ("affine", "jacobian"), maps to an `other` model ("maps") or in the layers' place ("replacement"), fitted
    on a file of prompts and written to the file `out`."""

    kind: Literal["fit"] = "fit"
    fit: Literal["affine", "jacobian", "maps", "replacement"]
    model: Opened
    other: Opened | None = None
    prompts: str
    test: str = ""
    out: str
    shard: tuple[int, int] | None = None
    merge: tuple[str, ...] = ()
    memory: str = ""
    rank: int | None = None
    max_tokens: int = JACOBIAN_TOKENS

    @property
    def command(self) -> str:
        """What does the same from the shell."""
        options = {NAMES.get(name, name): value for name, value in self.model if value not in ("", 0)}
        if self.other:
            options |= {"other": self.other.source, "other_precision": self.other.precision}
            if self.other.control:
                options |= {"other_control": self.other.control, "other_seed": self.other.control_seed}
        own = {name: getattr(self, name) for name in ("test", "memory", "rank", "max_tokens")}
        own = {name: value for name, value in own.items() if value != type(self).model_fields[name].default}
        return command_line("fit", self.fit, **options, set=self.prompts, **own, out=self.out)


class ReproduceRun(_Computed):
    """A paper's protocol as studies in the run's folder, measured beside published figures."""

    kind: Literal["reproduce"] = "reproduce"
    paper: str
    models: tuple[str, ...]
    sets: tuple[str, ...] = ()
    limit: int | None = None
    precision: str | None = None
    device: str = "auto"


class AuditRun(_Spec):
    """The same prompts (a file, or every fourth of the bundled ones) through several precisions."""

    kind: Literal["audit"] = "audit"
    model: str
    precisions: tuple[str, ...]
    prompts: str = ""
    device: str = "auto"
    out: str = ""

    @property
    def command(self) -> str:
        """What does the same from the shell."""
        return command_line(
            "audit",
            self.model,
            precisions=",".join(self.precisions),
            prompts=self.prompts or None,
            device=None if self.device == "auto" else self.device,
            out=self.out or None,
        )


Spec = StudyRun | ClaimsRun | CardRun | FitRun | ReproduceRun | AuditRun
SPEC: TypeAdapter[Spec] = TypeAdapter(Annotated[Spec, Field(discriminator="kind")])
