"""What a claim is: a published statement about depth that a measurement can contradict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ClaimRefused
from .evidence import Evidence, Measured
from .judging import Quantity

SHALLOWEST = 4  # layers, below which there is no middle


@dataclass(frozen=True)
class Claim:
    """A published statement. `title`: what it says, a sentence without its full stop; `protocol`: how it is checked
    here; `parts`: what has to be measured (`running.PARTS`). `answers`, `levels`: prompts need known answers, levels of
    difficulty; `worked`: the set needs a counterpart with worked-out answers; `models`: how many models it takes.
    `twin`: whether the untrained twin is measured too. `stretches`: it compares stretches of layers."""

    id: str
    title: str
    source: str
    formula: str
    protocol: str
    quantities: tuple[Quantity, ...]
    parts: tuple[str, ...]
    measure: Callable[[Evidence], Measured]
    answers: bool = False
    levels: bool = False
    worked: bool = False
    models: int = 1
    twin: bool = True
    stretches: bool = False

    @property
    def judging(self) -> tuple[Quantity, ...]:
        """The quantities that its verdict rests on."""
        return tuple(q for q in self.quantities if not q.shown)

    def check(self, evidence: Evidence) -> None:
        """Refuse evidence that cannot answer: a `ClaimRefused` with the reason."""
        needs = (
            (evidence.n_layers >= SHALLOWEST, f"It needs {SHALLOWEST} layers at least; the model has fewer."),
            (
                not self.stretches or evidence.passes == 1,
                "The model runs its layers several times, so every stretch as long as a pass leaves out the same ones.",
            ),
            (
                self.models <= evidence.models,
                f"It needs {self.models} models of one family, and there {_are(evidence.models)}; name more with "
                "--also.",
            ),
            (not self.answers or evidence.answers, "It needs prompts with known answers, and these have none."),
            (not self.worked or evidence.worked, "It needs a set with a worked-out counterpart, like sum_mod10."),
            (
                not self.levels or len(evidence.level_names) > 1,
                f"It needs 2 levels of difficulty, and there {_are(len(evidence.level_names))}; choose a set with "
                "levels.",
            ),
        )
        if why := next((why for met, why in needs if not met), evidence.trouble):
            raise ClaimRefused(why)

    def of(self, evidence: Evidence) -> Measured:
        """What the evidence says; `ClaimRefused` where it cannot."""
        self.check(evidence)
        if lacking := next((name for name in self.parts if name not in evidence.parts), ""):
            raise ClaimRefused(f"Nothing was measured of {lacking}.")
        return self.measure(evidence)


def _are(n: int) -> str:
    return f"{'is' if n == 1 else 'are'} {n}"
