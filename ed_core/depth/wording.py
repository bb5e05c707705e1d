"""The criteria in words: each as what it is, with its range, and no more than its curve carries. Numpy only.

A criterion is *clear* where the papers' rule and its variants agree within a tenth of the layers, the stable variant is
defined, and the mean cosine changes its sign at most three times. Where it is not, the sentence says so first and gives
the papers' figure after the reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..sources.controls import CALLED
from .answer import number
from .criteria import FEWEST, Criterion, Interval

TENTH = 0.1  # of the layers: what counts as another place
SAME = 1e-6  # nats: a lens whose divergence is nowhere larger is the output
MOST_CHANGES = 3  # of the mean cosine's sign, in a curve that turns once or nearly so
OFTEN = 0.05  # of the resamples: a rule that gives no depth in more of them has no clear one
NAMES = {"cosine": "cosine", "kl": "KL", "overlap": "overlap"}


@dataclass(frozen=True)
class Statement:
    """What a criterion says. `clear`: its variants agree. `low`, `high`: the layers that rule, variants and other
    thresholds give between them; None where none gives any."""

    sentence: str
    clear: bool
    low: int | None
    high: int | None


def statement(
    criterion: Criterion, curve: np.ndarray | None, band: tuple[int, int] | None, *, k: int = 5, echo: float = 0.0
) -> Statement:
    """A criterion's statement from the curve it was read off (None where there is none), its threshold band, the number
    of best tokens the overlap counts, and the share of tokens that the lens at depth 0 repeats (`answer.echo`)."""
    found = [c for c in (criterion, *criterion.variants.values()) if c is not None]
    layers = [d for c in found for d in (c.depth, c.stable) if d is not None] + list(band or ())
    low, high = (min(layers), max(layers)) if layers else (None, None)
    if curve is None:
        return Statement(f"The {NAMES[criterion.name]} rule gives no depth: {criterion.reason}.", False, low, high)
    if criterion.depth is None:
        return Statement(_undefined(criterion, curve, k) + _elsewhere(criterion), False, low, high)
    doubts = list(_doubts(criterion, curve, echo))
    other = _range(criterion, band)
    said = _doubtful(criterion, other, k, doubts) if doubts else _clear(criterion, other, k)
    return Statement(said, not doubts, low, high)


def over_prompts(
    criterion: Criterion, curve: np.ndarray | None, interval: Interval | None, *, k: int = 5, echo: float = 0.0
) -> Statement:
    """The same over several prompts: with the interval over prompts (None below `FEWEST` of them) in the place of other
    thresholds, and every variant. A rule that prompts drawn anew move by more than a tenth of the layers, or leave
    without a depth in more than 5 % of the resamples, is not clear."""
    found = [c for c in (criterion, *criterion.variants.values()) if c is not None]
    layers = [float(d) for c in found for d in (c.depth, c.stable) if d is not None]
    layers += list(interval.ends or ()) if interval else []
    low, high = (math.floor(min(layers)), math.ceil(max(layers))) if layers else (None, None)
    if curve is None:
        return Statement(f"The {NAMES[criterion.name]} rule gives no depth: {criterion.reason}.", False, low, high)
    told = drawn(interval)
    if criterion.depth is None:
        said = f"{_undefined(criterion, curve, k)} ({told})."
        return Statement(f"{said} {_variants(criterion)}", False, low, high)
    doubts = [*_doubts(criterion, curve, echo), *_moved(criterion, interval)]
    said = _doubtful(criterion, f" ({told})", k, doubts) if doubts else _clear(criterion, f" ({told})", k)
    return Statement(f"{said} {_variants(criterion)}", not doubts, low, high)


def shared(criteria: Mapping[str, Criterion], twin: Mapping[str, Criterion], kind: str) -> str:
    """What a control of this `kind` says about the model's marks: which it has too, within a tenth of the layers."""
    both = [n for n, c in criteria.items() if c.depth is not None and n in twin and twin[n].depth is not None]
    same = [n for n in both if abs(criteria[n].depth - twin[n].depth) <= TENTH * criteria[n].n_layers]
    neither = [n for n, c in criteria.items() if c.depth is None and n in twin and twin[n].depth is None]
    told = ", ".join(f"{NAMES[n]} {'no depth' if c.depth is None else c.depth}" for n, c in twin.items())
    said = f"The {CALLED[kind]} gives {told}"
    if same:
        marks = f"{_and([NAMES[n] for n in same])} mark{'s' if len(same) > 1 else ''}"
        return f"{said}: the {marks} would stand there without {_without(kind)}."
    if neither and not both:
        return f"{said}: no depth where the model has none either, and no mark to compare."
    return f"{said}: none of the model's marks."


def sign_changes(curve: np.ndarray) -> int:
    """How often a curve goes from below 0 to 0 or above, or back."""
    return int(np.count_nonzero(np.diff(np.asarray(curve) < 0)))


def _doubts(criterion: Criterion, curve: np.ndarray, echo: float) -> Iterator[str]:
    """Why a criterion has no clear place, a clause each."""
    if criterion.name == "cosine":
        changes, ends = sign_changes(curve), curve[-1] < 0
        if changes > MOST_CHANGES or ends:
            often = f"changes sign {number(changes)} times" if changes > MOST_CHANGES else ""
            last = "is negative in the last layer" if ends else ""
            yield f"the mean cosine {_and([often, last])}"
    elif criterion.stable is None and _at_last(criterion, curve):
        yield "for good only in front of the last layer"
    elif criterion.stable is None:
        yield f"in front of the last layer it {'is farther away' if criterion.name == 'kl' else 'shares fewer'} again"
    elif _far(criterion, criterion.stable):
        yield f"for good only from layer {criterion.stable}"
    if (later := criterion.from_depth_1) is not None and _far(criterion, later.depth):
        why = " (at depth 0 the lens mostly repeats the token just read)" if echo >= 0.5 else ""
        yield f"without depth 0 the rule {_says(later)}{why}"
    if (without := criterion.without_sinks) is not None and _far(criterion, without.depth):
        yield f"without the sinks the rule {_says(without)}"


def _at_last(criterion: Criterion, curve: np.ndarray) -> bool:
    """Whether what the KL or overlap rule asks for holds in front of the last layer, which the rule does not read."""
    bound = criterion.threshold * (curve.max() if criterion.name == "kl" else 1)
    return bool(curve[-1] < bound if criterion.name == "kl" else curve[-1] > bound)


def _far(criterion: Criterion, depth: float | int | None) -> bool:
    return depth is None or abs(depth - criterion.depth) > TENTH * criterion.n_layers


def _says(criterion: Criterion) -> str:
    return "gives no depth" if criterion.depth is None else f"says {criterion.depth}"


def _moved(criterion: Criterion, interval: Interval | None) -> Iterator[str]:
    """What prompts drawn anew have against a clear place, a clause."""
    if interval is None:
        return
    far = any(_far(criterion, end) for end in interval.ends or ())
    often = f"gives no depth in more than {OFTEN:.0%} of the resamples" if interval.undefined > OFTEN else ""
    if far or often:
        moves = "moves by more than a tenth of the layers" if far else ""
        yield f"with prompts drawn anew it {_and([moves, often])}"


def drawn(interval: Interval | None) -> str:
    """The interval over prompts in words: 5 to 95 % of the resamples that give a depth, and the share that gives
    none."""
    if interval is None:
        return f"no interval below {number(FEWEST)} prompts"
    if interval.ends is None:
        return "with prompts drawn anew neither"
    ends = f"5–95 % over prompts: {interval.ends[0]:.3g} to {interval.ends[1]:.3g}"
    without = (
        f"no depth in {interval.undefined:.1%} of the resamples" if interval.undefined else "a depth in each resample"
    )
    return f"{ends}, {without}"


def _variants(criterion: Criterion) -> str:
    """What the variants of a rule give."""
    called = {"from_depth_1": "from depth 1", "without_sinks": "without sinks"}
    given = {"stable": criterion.stable}
    given |= {called[name]: c.depth for name, c in criterion.variants.items() if c is not None}
    return f"Variants: {', '.join(f'{name} {_depth(depth)}' for name, depth in given.items())}."


def _depth(depth: int | None) -> str:
    return "no depth" if depth is None else str(depth)


def _doubtful(criterion: Criterion, other: str, k: int, doubts: list[str]) -> str:
    unclear = {
        "cosine": "No clear turn",
        "kl": f"No clear depth at which the lens is {_near(criterion)}" if criterion.name == "kl" else "",
        "overlap": f"No clear depth at which the lens has the output's best {number(k)} tokens",
    }
    rule = "takes the last rise above 0, after layer" if criterion.name == "cosine" else "says layer"
    figure = f"{criterion.depth} of {criterion.n_layers}{other}"
    return f"{unclear[criterion.name]}: {'; '.join(doubts)}. The papers' rule {rule} {figure}."


def _clear(criterion: Criterion, other: str, k: int) -> str:
    depth, n_layers = criterion.depth, criterion.n_layers
    if criterion.name == "cosine":
        return (
            f"The mean cosine turns after layer {depth} of {n_layers}{other}: up to there some layers erase on "
            "average, after it none does."
        )
    reached = _near(criterion) if criterion.name == "kl" else f"shares {_enough(criterion, k)} with the output"
    lasting = "" if criterion.stable == depth else f", for good by {criterion.stable}"
    return (
        f"The lens {'is ' if criterion.name == 'kl' else ''}{reached} by layer {depth} of {n_layers}{lasting}{other}."
    )


def _undefined(criterion: Criterion, curve: np.ndarray, k: int) -> str:
    if criterion.name == "cosine":
        if (curve >= 0).all():
            return "No layer erases on average, so the cosine rule gives no depth"
        if (curve < 0).all():
            return "Every layer erases on average, so the cosine rule gives no depth"
        return "The mean cosine falls below 0 and stays there, so the cosine rule gives no depth"
    if criterion.name == "kl":
        if curve.max() < SAME:
            return "The lens is the output from the start, so the KL rule has nothing to halve and gives no depth"
        there = f"is {{}}{_near(criterion)}"
    else:
        there = f"{{}}shares {_enough(criterion, k)} with the output"
    holds = _at_last(criterion, curve)
    when = "Only in front of the last layer" if holds else "Before the output itself"
    lens = there.format("" if holds else "never ")
    return f"{when} the lens {lens}, so the {NAMES[criterion.name]} rule gives no depth"


def _elsewhere(criterion: Criterion) -> str:
    """The end of a sentence on a rule that gives no depth: which variants give one."""
    left_out = {"from_depth_1": "depth 0", "without_sinks": "the sinks"}
    given = {left_out[name]: c.depth for name, c in criterion.variants.items() if c is not None and c.depth is not None}
    return "".join(f"; without {what} it says {depth}" for what, depth in given.items()) + "."


def _near(criterion: Criterion) -> str:
    """How near the output is where the KL rule holds."""
    half = abs(criterion.threshold - 0.5) < 1e-9
    return f"{'half-way' if half else f'{1 - criterion.threshold:.0%} of the way'} to the output"


def _enough(criterion: Criterion, k: int) -> str:
    return f"more than {criterion.threshold:.0%} of its best {number(k)} tokens"


def _range(criterion: Criterion, band: tuple[int, int] | None) -> str:
    """How far other thresholds move it, where they do."""
    if band is None or band == (criterion.depth, criterion.depth):
        return ""
    return f" ({band[0]} to {band[1]} with other thresholds)"


def _without(kind: str) -> str:
    return "training" if kind == "untrained" else "the layers' order"


def _and(words: list[str]) -> str:
    words = [word for word in words if word]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
