"""How a measured quantity becomes a verdict: the rules of judgement (METHODS §16). Numpy only.

Each quantity has two probabilities of error: of saying that it lies within its limits, and of saying that it lies
outside. A verdict needs one of them to be at most 3 % (nominal: intervals over few units cover 87 to 90 % where 90 are
meant, so that 5 % are kept); else the claim is undecided. A verdict never says more than: of this model, on these
prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..statistics import FEWEST_FORMS, RankOrder, Resampled, Units, all_above, beyond, holm, some_below

HOLDS, FAILS, UNDECIDED, DOES_NOT_APPLY = "holds", "fails", "undecided", "does not apply"
VERDICTS = (HOLDS, FAILS, UNDECIDED, DOES_NOT_APPLY)
LEVEL = 0.05  # probability of error of all verdicts of a run together
ALONE = 0.03  # of one claim by itself
RELIABLE = 0.8  # of ranks, below which their order is not read
MOVES = (-0.2, 0.2)  # shares by which a limit chosen here is moved, to see whether the verdict changes

Range = tuple[float, float]
Errors = tuple[float, float]
"""The probabilities of error of *holds* and of *fails*; NaN where neither can be said."""
UNKNOWN: Errors = (math.nan, math.nan)


@dataclass(frozen=True)
class Quantity:
    """A number that a claim is about. `limits`: between which values, neither included, the statement is true; `found`:
    what the paper found. `chosen`: the limit is ours and not the paper's. `shown`: it is shown and judges nothing."""

    name: str
    unit: str
    limits: Range
    found: str
    digits: int = 2
    chosen: bool = False
    shown: bool = False

    def moved(self, share: float) -> Range:
        """The limits moved by a share: a range grows about its middle, a single limit itself does."""
        low, high = self.limits
        if math.isfinite(low) and math.isfinite(high):
            middle, half = (low + high) / 2, (high - low) / 2 * (1 + share)
            return middle - half, middle + half
        return low * (1 + share), high * (1 + share)


@dataclass(frozen=True)
class Every:
    """A statement about every place of a curve: all lie above `bound`, or (`holds` False) at least one lies below."""

    curve: Resampled
    bound: float
    over: Units
    holds: bool = True


@dataclass(frozen=True)
class Estimate:
    """A measured quantity. `draws`: over prompts or their forms, `[resample]`; more than one kind must agree. `layers`:
    draws over layers, which must agree too; None where the statement is not about layers. `every`: the statement is
    about every place of a curve. `unclear`: the error of saying that the criterion is clear at all. `contrary`: the
    errors of other ways to contradict the statement, by the limits. `ranks`: of each order that is read. `forms`: how
    many forms were held out, of a quantity that rests on a fit. `why`: why it is not judged. `value` NaN: undefined,
    and then `nothing` is shown instead."""

    value: float
    draws: tuple[np.ndarray, ...] = field(default=(), repr=False, compare=False)
    layers: np.ndarray | None = field(default=None, repr=False, compare=False)
    every: Every | None = field(default=None, repr=False, compare=False)
    unclear: float = 0.0
    contrary: Callable[[Range], Sequence[float]] | None = field(default=None, repr=False, compare=False)
    ranks: Mapping[str, RankOrder] = field(default_factory=dict)
    forms: int | None = None
    why: str = ""
    nothing: str = "undefined"

    @classmethod
    def undefined(cls, why: str) -> Estimate:
        """A quantity that could not be measured."""
        return cls(math.nan, why=why)


def judge(quantity: Quantity, found: Estimate | None, limits: Range | None = None) -> tuple[Errors, str]:
    """The errors of saying that a quantity lies within its limits and outside, and why it is not judged, '' if it is.

    `limits`: others than the quantity's own. All rules about a single quantity are here; `verdict` puts a claim's
    quantities together, `together` several claims."""
    low, high = limits or quantity.limits
    if found is None:
        return UNKNOWN, "it was not measured"
    if found.why:
        return UNKNOWN, found.why
    if not math.isfinite(found.value) and found.contrary is None:  # rule 1: what is undefined decides nothing
        return UNKNOWN, "it is undefined"
    if found.forms is not None and found.forms < FEWEST_FORMS:  # rule 7: whole forms are held out
        return UNKNOWN, f"holding out whole forms needs {FEWEST_FORMS} of them, and the prompts have {found.forms}"
    for name, order in found.ranks.items():  # rule 8: an order needs ranks that can be told apart
        if not order.reliability >= RELIABLE:
            known = f"{order.reliability:.2f}" if math.isfinite(order.reliability) else "undefined"
            return UNKNOWN, (
                f"the reliability of the ranks of the {name} is {known}, and {RELIABLE} is needed; "
                f"{100 * order.apart:.0f} % of the pairs differ by more than two standard errors"
            )
    if found.every is not None:  # rule 3: "any one layer" is the worst one, which pays for all that were looked at
        of = found.every
        above, below = all_above(of.curve, of.bound, of.over), some_below(of.curve, of.bound, of.over)
        return ((above, below) if of.holds else (below, above)), ""
    draws = [*found.draws, *([] if found.layers is None else [found.layers])]  # rules 3, 9: prompts and layers agree
    sides = [(end, above) for end, above in ((low, True), (high, False)) if math.isfinite(end)]

    def error(end: float, above: bool) -> float:
        return max(beyond(one, end, above) for one in draws)

    holds = max(error(end, above) for end, above in sides)  # rule 2: within a margin fixed before, not just near it
    fails = min(error(end, not above) for end, above in sides)
    holds, fails = max(found.unclear, holds), max(found.unclear, fails)  # rule 4: no clearer than the criterion
    if found.contrary is not None:
        against = fails, *found.contrary((low, high))
        fails = min(1.0, len(against) * min(against))
    return (holds, fails), ""


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict by itself, and the probability of error that it was reached at: of *undecided* the smaller one
    of both, NaN where a quantity is not judged. `why`: by the quantity's name, why it is not."""

    verdict: str
    p: float
    why: Mapping[str, str] = field(default_factory=dict)


def verdict(
    quantities: Sequence[Quantity],
    estimates: Mapping[str, Estimate],
    limits: Mapping[str, Range] | None = None,
) -> Judgement:
    """A claim holds where each of its quantities does; it fails where one does, the error then being the smallest times
    their number (Bonferroni: each had its chance to contradict). One that is not judged makes it undecided."""
    judging = [q for q in quantities if not q.shown]
    judged = {q.name: judge(q, estimates.get(q.name), (limits or {}).get(q.name)) for q in judging}
    errors, why = [errors for errors, _ in judged.values()], {name: w for name, (_, w) in judged.items() if w}
    if not np.isfinite(errors).all():
        return Judgement(UNDECIDED, math.nan, why)
    holds, fails = max(one[0] for one in errors), min(1.0, len(errors) * min(one[1] for one in errors))
    return Judgement(HOLDS if holds <= ALONE else FAILS if fails <= ALONE else UNDECIDED, min(holds, fails))


def flips(quantities: Sequence[Quantity], estimates: Mapping[str, Estimate], one: Quantity) -> tuple[str, str]:
    """Rule 6: the verdicts with the limits of one quantity moved by 20 % inwards and outwards."""
    found = [verdict(quantities, estimates, {one.name: one.moved(share)}).verdict for share in MOVES]
    return found[0], found[1]


def together(verdicts: Sequence[str], p: Sequence[float]) -> list[tuple[str, float]]:
    """Rule 5: verdicts that were reached together, after Holm's adjustment, and the adjusted p of each. What does not
    keep 5 % becomes undecided; every claim that was tested counts, whatever came of it."""
    return [
        (UNDECIDED if one in (HOLDS, FAILS) and not adjusted <= LEVEL else one, float(adjusted))
        for one, adjusted in zip(verdicts, holm(p), strict=True)
    ]
