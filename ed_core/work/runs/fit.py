"""A fit, carried out."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ... import disk
from ...api import model as notebook
from ...cases.snippet import NAMES, opening
from ...errors import ParameterError
from ...models import controls
from ...models.ref import ModelRef
from ...models.sizes import require_gradients
from ...types import ModelSpec, Prompt, command_line
from ..turn import Turn

JACOBIAN_TOKENS = 128  # that the Jacobian lens reads of a prompt by default
LENSES = ("affine", "jacobian")


@dataclass(frozen=True)
class Opened:
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
        given: dict[str, Any] = opening(model)
        return cls(**given)

    @cached_property
    def ref(self) -> ModelRef:
        """The model that is meant; its content is not read."""
        how = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(ModelRef.named(how.pop("source")), **how)

    def resolved(self) -> ModelRef:
        """The same once its files are here; what `auto` came to is said on stderr."""
        ref = notebook.ref_of(**asdict(self))
        if ref.why:
            print(f"ed_core: precision {ref.why}", file=sys.stderr)
        return ref


@dataclass(frozen=True)
class Fit:
    """A lens ("affine", "jacobian"), maps to an `other` model ("maps") or in the layers' place ("replacement"), fitted
    on a file of prompts and written to the file `out`."""

    kind: str
    model: Opened
    prompts: str
    out: str
    other: Opened | None = None
    test: str = ""
    memory: str = ""
    rank: int | None = None
    max_tokens: int = JACOBIAN_TOKENS

    @property
    def models(self) -> list[Opened]:
        return [one for one in (self.model, self.other) if one is not None]

    @property
    def command(self) -> str:
        """What does the same from the shell."""
        given = asdict(self.model).items()
        options = {NAMES.get(name, name): value for name, value in given if value not in ("", 0)}
        if self.other:
            options |= {"other": self.other.source, "other_precision": self.other.precision}
            if self.other.control:
                options |= {"other_control": self.other.control, "other_seed": self.other.control_seed}
        default = {f.name: f.default for f in fields(self)}
        own = {name: getattr(self, name) for name in ("test", "memory", "rank", "max_tokens")}
        own = {name: value for name, value in own.items() if value != default[name]}
        return command_line("fit", self.kind, **options, set=self.prompts, **own, out=self.out)

    def check(self) -> tuple[list[Prompt], list[Prompt] | None, int | None]:
        """Its prompts, held-out ones, bytes of memory. Refuses what is wrong before a model is opened."""
        from ...prompts import read_jsonl
        from ...sweeps.budget import parse

        inputs: list[str | Path] = [self.prompts, self.test]
        inputs += [file for one in self.models for file in one.ref.read_files()]
        disk.require_out(self.out, inputs, expected=".safetensors" if self.kind in LENSES else ".npz")
        if self.rank is not None and self.rank < 1:
            raise ParameterError(f"--rank is {self.rank}; expected 1 at least.")
        for one in self.models:
            one.ref.require_weights()
            controls.check(one.ref)
            notebook.device_of(one.device)
        if self.kind == "jacobian":
            require_gradients(self.model.precision, "the Jacobian lens")
        from ...lenses import jacobian, streams  # torch, which the refusals above need not wait for

        if self.kind == "jacobian" and self.max_tokens <= jacobian.FIRST + 1:
            raise ParameterError(f"--max-tokens is {self.max_tokens}; expected {jacobian.FIRST + 2} at least.")
        prompts, test = read_jsonl(self.prompts), read_jsonl(self.test) if self.test else None
        streams.split(prompts, test)
        return prompts, test, parse(self.memory)


def fit(turn: Turn, asked: Fit) -> bytes:
    """Fit, judge on held-out prompts, and write the file; maps so far are published as such files."""
    from ...depth import say

    prompts, test, memory = asked.check()
    from ...lenses import measured
    from ...lenses.affine import Affine
    from ...lenses.jacobian import Jacobian
    from ...lenses.maps import Between
    from ...lenses.replacement import Within
    from ...models.opening import open_model

    kinds = {"affine": Affine, "jacobian": Jacobian, "maps": Between, "replacement": Within}
    kind: Any = kinds[asked.kind]
    own: dict[str, Any] = {"jacobian": {"max_tokens": asked.max_tokens}, "affine": {"rank": asked.rank}}
    models = [open_model(one.resolved()) for one in asked.models]
    fitting = kind(*models, prompts, test, memory=memory, **own.get(asked.kind, {}))
    done = 0.0
    if asked.kind not in LENSES:
        print(fitting.plan.sentence(), file=sys.stderr)
    if asked.kind == "maps":
        parameters = sum(x.numel() for model in models for x in model.hf.parameters())
        seconds = fitting.plan.seconds(fitting.tokens, fitting.test_tokens, parameters)
        print(f"about {say.number(seconds, '.1g')} s on this processor", file=sys.stderr)

    def tell(share: float) -> None:
        nonlocal done
        done = share
        turn.tell(share)
        turn.item()

    def partial(found: measured.Maps | measured.Replacement) -> None:
        turn.publish(measured.packed(found), done)

    made = fitting.fit(Path(asked.out), tell, partial if asked.kind not in LENSES else None)
    if asked.kind in LENSES:
        return f"{asked.out}: {say.certificate(made['kind'], made)}".encode()
    notes = "".join(f" {note}" for note in made.certificate["notes"])
    fitted = f"{asked.out}: fitted on {made.tokens} tokens, judged on {made.test_tokens} held-out ones.{notes}"
    return f"{fitted}\n{say.matching(made) if asked.kind == 'maps' else say.replacement(made)}".encode()
