"""A fit, carried out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import disk
from ...api import model as notebook
from ...cases.snippet import opening
from ...depth import say
from ...lenses.measured import AFFINE, JACOBIAN, JACOBIAN_TOKENS
from ...models import controls
from ...models.ref import ModelRef
from ...models.sizes import require_gradients
from ...prompts import read_jsonl
from ...sweeps.budget import parse
from ...types import Prompt, changed, command_line
from ..turn import Turn

LENSES = (AFFINE, JACOBIAN)
OWN = ("test", "memory", "rank", "max_tokens")  # options that no model has


@dataclass(frozen=True)
class Fit:
    """What a fit is asked for: a lens ("affine", "jacobian"), maps to an `other` model ("maps") or in the layers' place
    ("replacement"), fitted on a file of prompts and written to the file `out`. The content of a model need not be
    known."""

    kind: str
    model: ModelRef
    prompts: str
    out: str
    other: ModelRef | None = None
    test: str = ""
    memory: str = ""
    rank: int | None = None
    max_tokens: int = JACOBIAN_TOKENS

    @property
    def models(self) -> list[ModelRef]:
        """The model, and the other one where the fit has two."""
        return [one for one in (self.model, self.other) if one is not None]

    @property
    def command(self) -> str:
        """The shell command that makes the same fit."""
        options: dict[str, Any] = opening(self.model)
        options |= {"offload": self.model.offload} if self.model.offload else {}
        if self.other:
            others = opening(self.other)
            options |= {"other": others.pop("model")}
            options |= {f"other_{name}": others[name] for name in ("precision", "control", "seed") if name in others}
        own = {name: value for name, value in changed(self).items() if name in OWN}
        return command_line("fit", self.kind, **options, set=self.prompts, **own, out=self.out)

    def check(self) -> tuple[list[Prompt], list[Prompt] | None, int | None]:
        """Return its prompts, the prompts that judge it (None for a part of the others), and bytes of memory. Raises
        what is wrong before a model is opened."""
        disk.require_out(self.out, expected=".safetensors" if self.kind in LENSES else ".npz")
        for one in self.models:
            one.require_weights()
            controls.check(one)
            notebook.device_of(one.device)
        if self.kind == "jacobian":
            require_gradients(self.model.precision, "the Jacobian lens")
        from ...lenses import streams  # torch, which the refusals above need not wait for

        prompts, test = read_jsonl(self.prompts), read_jsonl(self.test) if self.test else None
        streams.split(prompts, test)
        return prompts, test, parse(self.memory)


def _resolved(ref: ModelRef) -> ModelRef:
    """Return the model once its files are here, with "auto" settled; the reason is printed on stderr."""
    given: dict[str, Any] = {"adapter": "", "control": "", "seed": 0, **opening(ref)}
    source, seed = given.pop("model"), given.pop("seed")
    ref = notebook.ref_of(source, **given, control_seed=seed, offload=ref.offload)
    if ref.why:
        print(f"ed_core: precision {ref.why}", file=sys.stderr)
    return ref


def fit(turn: Turn, asked: Fit) -> bytes:
    """Make a fit, judge it, write its file, and return the sentence on it; maps so far are published as such files."""
    prompts, test, memory = asked.check()
    from ...lenses import measured
    from ...lenses.affine import Affine
    from ...lenses.jacobian import Jacobian
    from ...lenses.maps import Between
    from ...lenses.replacement import Within
    from ...models.opening import open_model

    kind: Any = {one.kind: one for one in (Affine, Jacobian, Between, Within)}[asked.kind]
    own: dict[str, Any] = {"jacobian": {"max_tokens": asked.max_tokens}, "affine": {"rank": asked.rank}}
    models = [open_model(_resolved(one)) for one in asked.models]
    fitting = kind(*models, prompts=prompts, test=test, memory=memory, **own.get(asked.kind, {}))
    if asked.kind not in LENSES:
        print(fitting.plan.sentence(), file=sys.stderr)
    done = 0.0

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
