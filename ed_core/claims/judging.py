"""How measured quantities become verdicts: the rules of judgement (METHODS §16). Numpy only.

Each quantity has two probabilities of error: of saying that it is within its limits, and of saying that it is outside.
A verdict needs one of them to be at most 3 % (nominal: intervals over few units cover 87 to 90 % where 90 are meant, so
that 5 % are kept); else the claim is undecided. A verdict is of one model on its prompts, never more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..statistics import FEWEST_FORMS, RankOrder, Resampled, beyond, holm

HOLDS, FAILS, UNDECIDED, DOES_NOT_APPLY = "holds", "fails", "undecided", "does not apply"
VERDICTS = (HOLDS, FAILS, UNDECIDED, DOES_NOT_APPLY)
LEVEL = 0.05  # probability of error of all verdicts of a run together
ALONE = 0.03  # of one claim
RELIABLE = 0.8  # of ranks, below which their order is not read
MOVES = (-0.2, 0.2)  # shares by which a limit chosen here is moved, to see whether the verdict changes

Range = tuple[float, float]
Errors = tuple[float, float]
"""The probabilities of error of *holds* and of *fails*; NaN where neither can be said."""
UNKNOWN: Errors = (math.nan, math.nan)


@dataclass(frozen=True)
class Quantity:
    """A number that a claim is about. `name`: with its unit; `limits`: between which values, neither included, the
    statement is true; `paper`: the paper's finding. `chosen`: the limit is ours and not the paper's. `shown`: it is
    shown and judges nothing."""

    name: str
    limits: Range
    paper: str
    digits: int = 2
    chosen: bool = False
    shown: bool = False

    def moved(self, share: float) -> Quantity:
        """Return the quantity with its limits moved by a share: a range about its middle, a single limit itself."""
        low, high = self.limits
        if math.isfinite(low) and math.isfinite(high):
            middle, half = (low + high) / 2, (high - low) / 2 * (1 + share)
            return replace(self, limits=(middle - half, middle + half))
        return replace(self, limits=(low * (1 + share), high * (1 + share)))


@dataclass(frozen=True)
class Estimate:
    """A measured quantity. `draws`: over prompts or their forms, `[resample]`; more than one kind must agree. `layers`:
    draws over layers, which must agree too; None where the statement is not about layers. `errors`: those of a
    statement about every place of a curve, which has no draws. `unclear`: the error of saying that the criterion is
    clear at all. `contrary`: the errors of other ways to contradict the statement, by the limits. `ranks`: of each
    order that is read. `forms`: how many were held out, of a fit. `why`: why it is not judged. `value` NaN: undefined,
    and then `nothing` is shown."""

    value: float
    draws: tuple[np.ndarray, ...] = field(default=(), repr=False, compare=False)
    layers: np.ndarray | None = field(default=None, repr=False, compare=False)
    errors: Errors | None = None
    unclear: float = 0.0
    contrary: Callable[[Range], Sequence[float]] | None = field(default=None, repr=False, compare=False)
    ranks: Mapping[str, RankOrder] = field(default_factory=dict)
    forms: int | None = None
    why: str = ""
    nothing: str = "undefined"

    @classmethod
    def of(cls, number: Resampled, *draws: np.ndarray, layers: np.ndarray | None = None) -> Estimate:
        """Return the estimate of one number with its own draws and with more kinds of `draws`."""
        return cls(float(number.value), (number.draws, *draws), layers)

    @classmethod
    def undefined(cls, why: str) -> Estimate:
        """Return an estimate without a value (NaN); `why`: the reason in words."""
        return cls(math.nan, why=why)

    @property
    def refusal(self) -> str:
        """Why the estimate cannot be judged, "" where it can."""
        if self.why:
            return self.why
        if not math.isfinite(self.value) and self.contrary is None:  # rule 1: what is undefined decides nothing
            return "it is undefined"
        if self.forms is not None and self.forms < FEWEST_FORMS:  # rule 7: whole forms are held out
            return f"holding out whole forms needs {FEWEST_FORMS} of them, and the prompts have {self.forms}"
        for name, order in self.ranks.items():  # rule 8: an order needs distinguishable ranks
            if not order.reliability >= RELIABLE:
                known = f"{order.reliability:.2f}" if math.isfinite(order.reliability) else "undefined"
                return (
                    f"the reliability of the ranks of the {name} is {known}, and {RELIABLE} is needed; "
                    f"{100 * order.apart:.0f} % of the pairs differ by more than two standard errors"
                )
        return ""


def judge(quantity: Quantity, estimate: Estimate) -> Errors:
    """Return the errors of saying that a quantity is within its limits and outside; `UNKNOWN` where it is not judged.

    All rules about a single quantity are here and in `Estimate.refusal`; `verdict` combines a claim's quantities,
    `together` several claims."""
    if estimate.refusal:
        return UNKNOWN
    if estimate.errors is not None:  # rule 3: "any one layer" is the worst one, which pays for all that were looked at
        return estimate.errors
    low, high = quantity.limits
    draws = [*estimate.draws, *([] if estimate.layers is None else [estimate.layers])]  # rules 3, 9: both agree
    sides = [(end, above) for end, above in ((low, True), (high, False)) if math.isfinite(end)]

    def error(end: float, above: bool) -> float:
        """Return the error of saying that the quantity is above (or below) `end`, the largest of all draws."""
        return max(beyond(one, end, above) for one in draws)

    holds = max(error(end, above) for end, above in sides)  # rule 2: within a margin fixed before, not just near it
    fails = min(error(end, not above) for end, above in sides)
    holds, fails = max(estimate.unclear, holds), max(estimate.unclear, fails)  # rule 4: no clearer than the criterion
    if estimate.contrary is not None:
        ways = fails, *estimate.contrary((low, high))
        fails = min(1.0, len(ways) * min(ways))
    return holds, fails


def verdict(quantities: Sequence[Quantity], estimates: Sequence[Estimate]) -> tuple[str, float]:
    """Return a claim's verdict before any adjustment, and its probability of error: of *undecided* the smaller one of
    both, NaN where a quantity is not judged.

    A claim holds where each of its quantities does; it fails where one does, the error then being the smallest times
    their number (Bonferroni: each had its chance to contradict). One that is not judged makes it undecided."""
    pairs = zip(quantities, estimates, strict=True)
    errors = [judge(quantity, estimate) for quantity, estimate in pairs if not quantity.shown]
    if not np.isfinite(errors).all():
        return UNDECIDED, math.nan
    holds, fails = max(one[0] for one in errors), min(1.0, len(errors) * min(one[1] for one in errors))
    return (HOLDS if holds <= ALONE else FAILS if fails <= ALONE else UNDECIDED), min(holds, fails)


def flips(quantities: Sequence[Quantity], estimates: Sequence[Estimate], moving: Quantity) -> tuple[str, str]:
    """Return the verdicts with the limits of `moving` moved by 20 % inwards and outwards (rule 6)."""
    inwards, outwards = ([q.moved(share) if q is moving else q for q in quantities] for share in MOVES)
    return verdict(inwards, estimates)[0], verdict(outwards, estimates)[0]


def together(verdicts: Sequence[str], p: Sequence[float]) -> list[tuple[str, float]]:
    """Return the verdicts of several claims after Holm's adjustment, each with its adjusted p (rule 5). What does not
    keep 5 % becomes undecided; every claim that was tested counts, whatever its verdict."""
    return [
        (UNDECIDED if one in (HOLDS, FAILS) and not adjusted <= LEVEL else one, float(adjusted))
        for one, adjusted in zip(verdicts, holm(p), strict=True)
    ]
