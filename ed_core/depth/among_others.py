"""One prompt among others: its curve over the layers beside those of other prompts on the same model, and one sentence
in figures. Numpy only.

The others are results of one `Request.series`: same model, precision, probe and parameters. Their summaries suffice, no
array is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..probes import Probe
from ..probes.description import Curve, Score
from ..probes.scores import rank_correlation
from ..results.aggregate import Summary, aggregate
from . import criteria, wording
from .verdict import COSINES

FEWEST = 3  # other prompts that make a spread
QUANTILES = (0.1, 0.5, 0.9)
SAME, PARTLY = 0.9, 0.5  # Spearman from which a control's curve counts as the model's shape, or as part of it
APART = 0.2  # of their ranges: any two falling curves agree by rank, so the same shape must also take the same course
SAYS = {  # what it means that a control shows the same curve, the same in part, and another one
    "untrained": (
        "this shape says nothing about what the model learned",
        "only what differs can have been learned",
        "this shape does not come with the architecture",
    ),
    "shuffled": (
        "this shape does not rest on the order of the layers",
        "only what differs can rest on their order",
        "this shape rests on the order of the layers",
    ),
}
SHAPES = ("the same curve", "a similar curve", "another curve")


@dataclass(frozen=True)
class Spread:
    """This prompt's curve, and at every layer the 10 %, 50 % and 90 % quantiles over `n` other prompts (empty below
    `FEWEST`)."""

    curve: Curve
    values: np.ndarray
    quantiles: np.ndarray
    n: int


def curves_of(probe: Probe | type[Probe], summary: Summary, first_token: bool = True) -> dict[str, np.ndarray]:
    """One prompt's aggregates and what is derived from them."""
    return over_prompts(probe, [summary], first_token)


def over_prompts(
    probe: Probe | type[Probe], summaries: Sequence[Summary], first_token: bool = True
) -> dict[str, np.ndarray]:
    """Aggregates over prompts and what is derived from them: what the command line writes without an index. Of results
    of an older version, what they have in the place of a later curve too."""
    curves = aggregate(probe, summaries, first_token)
    curves |= probe.derive(curves)
    return probe.older(curves) | curves if any(curve.name not in curves for curve in probe.curves) else curves


def spreads(
    probe: Probe | type[Probe], this: Summary, others: Sequence[Summary], first_token: bool = True
) -> list[Spread]:
    """This prompt's curves over the spread of the others; prompts on which a curve is not defined, or that are not
    sound, are left out of it."""
    mine, theirs = (
        curves_of(probe, this, first_token),
        [curves_of(probe, s, first_token) for s in others if probe.sound(s)],
    )
    return [Spread(curve, mine[curve.name], *quantiles([c[curve.name] for c in theirs])) for curve in probe.curves]


def quantiles(curves: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
    """`QUANTILES` over curves of one length, `[3, layer]`, and over how many; those with a NaN are left out. No row
    below `FEWEST`."""
    finite = [c for c in curves if np.isfinite(c).all()]
    if len(finite) < FEWEST:
        return np.empty((0, 0)), len(finite)
    return np.quantile(np.stack(finite), QUANTILES, axis=0), len(finite)


def sentence(probe: Probe | type[Probe], this: Summary, others: Sequence[Summary], first_token: bool = True) -> str:
    """Where this prompt's curve lies and where the others', in figures."""
    score = probe.score

    def value_of(summary):
        return _value(score, curves_of(probe, summary, first_token))

    mine = value_of(this)
    if not score.share:
        verb = "gives" if score.criterion and np.isfinite(mine) else "is"
        told = f"{score.name} {verb} {_say(mine, score)} for this prompt"
    else:
        curve, what = score.share
        values = curves_of(probe, this, first_token)[curve]
        half = (len(values) + 1) // 2
        if np.isfinite(mine):
            rows = next(c.x for c in probe.curves if c.name == curve).removeprefix("skipped ")
            told = (
                f"{values[:half].sum() / values.sum():.0%} of this prompt's {what} lies at {rows}s 0–{half - 1}, "
                f"{score.name} {_say(mine, score)}"
            )
        else:
            told = f"This prompt's {what} is not defined or zero everywhere: no centre"
    theirs = np.asarray([value_of(s) for s in others if probe.sound(s)])
    defined, failed = theirs[np.isfinite(theirs)], len(others) - len(theirs)
    left_out = f" {failed} more {'are' if failed > 1 else 'is'} left out: not to be relied on." if failed else ""
    sound = [this, *(s for s in others if probe.sound(s))]
    together = _together(score, sound, first_token) if len(theirs) >= FEWEST else ""
    if len(defined) < FEWEST:
        return f"{told}.{together}{left_out}"
    low, middle, high = (_say(v, score) for v in np.quantile(defined, QUANTILES))
    undefined = f"; not defined for {len(theirs) - len(defined)} more" if len(defined) < len(theirs) else ""
    return (
        f"{told}; the median of {len(defined)} other prompts is {middle} (10–90 %: {low} to "
        f"{high}{undefined}).{together}{left_out}"
    )


def _together(score: Score, summaries: Sequence[Summary], first_token: bool) -> str:
    """What a criterion reads off the curve over all these prompts, with its interval; "" for other scores."""
    counts = [int(s["n_tokens"]) - (not first_token) for s in summaries]
    if not score.criterion or not sum(counts):
        return ""
    rule, names = criteria.READ_OFF[score.criterion], COSINES if score.criterion == "cosine" else (score.criterion,)
    sums = {n: np.stack([s[f"{n}.sum"] - (0 if first_token else s[f"{n}.first"]) for s in summaries]) for n in names}
    found = rule({name: values.sum(0) / sum(counts) for name, values in sums.items()}).depth
    drawn = wording.drawn(criteria.bootstrap(sums, counts, rule))
    depth = "no depth" if found is None else f"layer {found}"
    return f" The curve over all {len(counts)} prompts gives {depth} ({drawn})."


def _value(score: Score, curves: Mapping[str, np.ndarray]) -> float:
    """A score, NaN where it is not defined."""
    found = criteria.READ_OFF[score.criterion](curves).depth if score.criterion else curves[score.value]
    return float("nan") if found is None else float(found)


def _say(value: float | np.floating, score: Score) -> str:
    return "not defined" if not np.isfinite(value) else f"layer {value:.3g}" if score.criterion else f"{value:.1f}"


@dataclass(frozen=True)
class Likeness:
    """A curve of the model beside its control's: rank correlation over layers, the largest distance once each is scaled
    to its own range (both None where one is constant or too short), and the control's mean magnitude over the model's
    (None where that is 0)."""

    curve: Curve
    spearman: float | None
    apart: float | None
    size: float | None

    @property
    def shape(self) -> int | None:
        """The place in `SHAPES`; None where shapes cannot be compared."""
        if self.spearman is None:
            return None
        return 0 if self.spearman >= SAME and self.apart <= APART else 1 if self.spearman >= PARTLY else 2

    @property
    def text(self) -> str:
        size = "" if self.size is None or 0.9 < self.size < 1.1 else f", {self.size:.2g} times the size"
        return f"{self.curve.title[0].lower()}{self.curve.title[1:]} (ρ = {self.spearman:.2f}, {self.distance}{size})"

    @property
    def distance(self) -> str:
        """How far the shapes are apart, where they can be compared."""
        return f"up to {100 * self.apart:.0f} % of the range apart"


def likeness(probe: Probe | type[Probe], this: Summary, control: Summary, first_token: bool = True) -> list[Likeness]:
    """How alike a model's curves and its control's are, for each of the probe's `curves`; entries where either is NaN
    are left out."""
    mine, theirs = curves_of(probe, this, first_token), curves_of(probe, control, first_token)
    return [likeness_of(curve, mine[curve.name], theirs[curve.name]) for curve in probe.curves]


def likeness_of(curve: Curve, mine: np.ndarray, theirs: np.ndarray) -> Likeness:
    """How alike two curves of one length are."""
    return Likeness(curve, *_alike(mine, theirs))


def _alike(mine: np.ndarray, theirs: np.ndarray) -> tuple[float | None, float | None, float | None]:
    a, b = (np.asarray(c, np.float64)[np.isfinite(mine) & np.isfinite(theirs)] for c in (mine, theirs))
    size = float(np.abs(b).mean() / np.abs(a).mean()) if a.any() else None
    if (spearman := rank_correlation(a, b)) is None:
        return None, None, size
    scaled = [(c - c.min()) / (c.max() - c.min()) for c in (a, b)]
    return spearman, float(np.abs(scaled[0] - scaled[1]).max()), size


def against_control(kind: str, name: str, found: Sequence[Likeness]) -> str:
    """What the likenesses mean, in one sentence for each kind of shape found. `name`: what the control is called."""
    said = []
    for place, (shape, means) in enumerate(zip(SHAPES, SAYS[kind])):
        if alike := [l.text for l in found if l.shape == place]:
            said.append(f"The {name} shows {shape} for {' and '.join(alike)}: {means}.")
    return " ".join(said) or f"A curve of the model or of the {name} is constant: their shapes cannot be compared."
