"""One prompt among others: its curve over the layers beside those of other prompts on the same model, and one sentence
in figures. Numpy only.

The others are results of one `Request.series`: same model, precision, probe and parameters. Their summaries suffice;
only to leave sinks out of a spread (`without_sinks`) arrays are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import statistics
from ..probes import Probe, find
from ..probes.base import Curve, Score, rank_correlation
from ..results import lookup
from ..results.aggregate import Summary, aggregate, summary_without
from ..types import ProbeResult
from . import continuous, criteria, sinks, verdict, wording

FEWEST = 3  # other prompts that make a spread
QUANTILES = (0.1, 0.5, 0.9)
FOR_QUANTILES = 10  # other prompts; of fewer all are told
SAME, PARTLY = 0.9, 0.5  # Spearman from which a control's curve counts as the model's shape, or as part of it
APART = 0.2  # of their ranges: any two falling curves agree by rank, so the same shape must also take the same course
SAYS = {  # what it means that a control shows the same shape, of one curve and of several
    "untrained": ("it needs no training to appear", "they need no training to appear"),
    "shuffled": ("it appears without the trained order of layers", "they appear without the trained order of layers"),
}
OTHER_TEXT = "other text may differ"  # which prompts are of one form is not known here
SHAPES = ("the same shape", "partly the same shape", "another shape")


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
    """Aggregates over prompts and what is derived from them: what the command line writes without an index."""
    curves = aggregate(probe, summaries, first_token)
    return curves | probe.derive(curves)


def spreads(
    probe: Probe | type[Probe], this: Summary, others: Sequence[Summary], first_token: bool = True
) -> list[Spread]:
    """This prompt's curves over the spread of the others; prompts on which a curve is not defined, or that are not
    sound, are left out of it."""
    mine = curves_of(probe, this, first_token)
    theirs = [curves_of(probe, s, first_token) for s in others if probe.sound(s)]
    return [Spread(curve, mine[curve.name], *quantiles([c[curve.name] for c in theirs])) for curve in probe.curves]


def quantiles(curves: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
    """`ends` over curves of one length, `[3, layer]`, and over how many; those with a NaN are left out. No row below
    `FEWEST`."""
    finite = [c for c in curves if np.isfinite(c).all()]
    if len(finite) < FEWEST:
        return np.empty((0, 0)), len(finite)
    return np.quantile(np.stack(finite), ends(len(finite)), axis=0), len(finite)


def ends(n: int) -> tuple[float, float, float]:
    """Which quantiles a spread over `n` others has: `QUANTILES`, or all there are where they are few."""
    return QUANTILES if n >= FOR_QUANTILES else (0.0, 0.5, 1.0)


def called(n: int) -> str:
    """What a spread over `n` others is: "10–90 %", or "all"."""
    return "10–90 %" if ends(n) == QUANTILES else "all"


def _range(n: int) -> str:
    return "range" if (of := called(n)) == "all" else of


def spread_of(n: int, what: str) -> str:
    """The same with what it is over: "10–90 % of 12 others", "all 4 others"."""
    return f"{called(n)}{' of' * (ends(n) == QUANTILES)} {n} {what}"


def over_tokens(probe: Probe | type[Probe]) -> bool:
    """Whether all of a probe's curves are means over tokens: those that a sink can carry, and that can leave it out."""
    means = {s.name for s in probe.measures if s.reduce == "token_mean" and s.dims[1:] == ("pos",)}
    return {curve.name for curve in probe.curves} <= means


def without_sinks(
    probe: Probe | type[Probe], results: Sequence[ProbeResult], first_token: bool = True
) -> list[Summary] | None:
    """The summaries of results over the tokens that are no sinks (and without the first one where it does not count:
    what is made of them counts all that is left). None where the sinks of a prompt cannot be told, because its
    contributions are not stored, or where a curve is no mean over tokens (`over_tokens`)."""
    if not over_tokens(probe):
        return None
    found = []
    for result in results:
        asked = result.request
        written: ProbeResult | None = result
        if asked.probe != sinks.PROBE:
            written = lookup.find(find(sinks.PROBE)().request(asked.models[0], asked.prompts[0]))
        if written is None or (known := sinks.of_result(written)) is None:
            return None
        found.append(summary_without(result, {s.pos for s in known}, first_token))
    return found


def sentence(probe: Probe | type[Probe], this: Summary, others: Sequence[Summary], first_token: bool = True) -> str:
    """Where this prompt's curve lies and where the others', in one sentence."""
    score, sound = _score(probe), [s for s in others if probe.sound(s)]
    mine = _value(score, curves_of(probe, this, first_token))
    theirs = np.asarray([_value(score, curves_of(probe, s, first_token)) for s in sound])
    told, defined = _mine(probe, this, mine, first_token), theirs[np.isfinite(theirs)]
    if len(defined) < FEWEST:
        return f"{told}."
    low, middle, high = (_say(v, score) for v in np.quantile(defined, ends(len(defined))))
    return f"{told}; the median of {len(defined)} other prompts is {middle} ({_range(len(defined))}: {low} to {high})."


def reasons(
    probe: Probe | type[Probe], this: Summary, others: Sequence[Summary], first_token: bool = True
) -> list[str]:
    """What stands behind the sentence: the prompts left out of it, and what all of them give together."""
    score, sound = _score(probe), [s for s in others if probe.sound(s)]
    found = [_value(score, curves_of(probe, s, first_token)) for s in sound]
    undefined, said = sum(not np.isfinite(v) for v in found), []
    if undefined:
        why = "gives no layer" if score.criterion else "is not defined"
        said.append(f"{_prompts(undefined)} left out: {_name(score)} {why} there.")
    if failed := len(others) - len(sound):
        said.append(f"{_prompts(failed)} left out: {'they fail their' if failed > 1 else 'it fails its'} check.")
    if len(sound) >= FEWEST and (together := _together(score, [this, *sound], first_token)):
        said.append(together)
    if score.criterion or score.mean_depth:
        which = "all tokens, sinks too" if first_token else "all tokens but the first, further sinks too"
        said.append(f"These depths count {which}{', as the papers do' * first_token}.")
    return said


def _score(probe: Probe | type[Probe]) -> Score:
    assert probe.score is not None  # every probe with curves has one
    return probe.score


def _prompts(n: int) -> str:
    return f"{n} other prompts are" if n > 1 else "1 other prompt is"


def _name(score: Score) -> str:
    name = "the mean depth" if score.mean_depth else score.name
    return f"{name[0].lower()}{name[1:]}"


def _mine(probe: Probe | type[Probe], this: Summary, mine: float, first_token: bool) -> str:
    """What this prompt's curve comes down to, a sentence without its full stop."""
    score = _score(probe)
    if score.mean_depth:
        if not np.isfinite(mine):
            return "This prompt's lens has no mean depth: it is the output from depth 1 on, or not finite"
        n_layers = len(curves_of(probe, this, first_token)[score.mean_depth]) - 1
        by = criteria.RULES[score.mean_depth].label
        return f"On this prompt mean depth over thresholds is {mine:.1f} of {n_layers} ({by}, from the mean curve)"
    if not score.share:
        if score.criterion:
            return f"{score.name} gives {_say(mine, score) if np.isfinite(mine) else 'no layer'} for this prompt"
        depth = len(curves_of(probe, this, first_token)[probe.curves[0].name]) - 1
        return f"{score.name} is {_say(mine, score)} of {depth} for this prompt"
    curve, what = score.share
    values = curves_of(probe, this, first_token)[curve]
    half = (len(values) + 1) // 2
    if not np.isfinite(mine):
        return f"On this prompt the {what} is not defined or zero everywhere: no centre"
    rows = next(c.x for c in probe.curves if c.name == curve)
    share = wording.percent(float(values[:half].sum() / values.sum()))
    return (
        f"On this prompt {share} of the {what} lies at {rows}s 0–{half - 1}; "
        f"{score.name}: {_say(mine, score)} ({'depths' if rows == 'depth' else 'layers'} 0 to {len(values) - 1})"
    )


def _together(score: Score, summaries: Sequence[Summary], first_token: bool) -> str:
    """What a depth read off the mean curve over all these prompts is, with its interval; "" for other scores."""
    counts = [int(s["n_tokens"]) - (not first_token) for s in summaries]
    if not (score.criterion or score.mean_depth) or not sum(counts):
        return ""
    name, over = score.criterion or score.mean_depth, statistics.units(len(counts))
    names = criteria.RULES[name].measures
    sums = {n: np.stack([s[f"{n}.sum"] - (0 if first_token else s[f"{n}.first"]) for s in summaries]) for n in names}
    if score.mean_depth:
        found = continuous.over_prompts(name, sums[name], counts, over)
        depth = "no mean depth" if found.depth is None else f"mean depth {found.depth:.1f}"
        return f"The mean curve over all prompts has {depth} ({wording.sure(found.interval, over)}; {OTHER_TEXT})."
    rule = criteria.RULES[name]
    gives = wording.named_layer(rule.of({n: values.sum(0) / sum(counts) for n, values in sums.items()}).depth)
    drawn = verdict.interval_of(rule, sums, counts, over)
    sure = wording.sure(None, over) if drawn is None else wording.drawn(drawn, over)
    return f"The mean curve over all prompts gives {gives} ({sure}; {OTHER_TEXT})."


def _value(score: Score, curves: Mapping[str, np.ndarray]) -> float:
    """A score, NaN where it is not defined."""
    if score.mean_depth:
        return float(continuous.MEAN_DEPTH[score.mean_depth](curves[score.mean_depth][None])[0])
    found = criteria.RULES[score.criterion].of(curves).depth if score.criterion else curves[score.value]
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
        if self.spearman is None or self.apart is None:
            return None
        return 0 if self.spearman >= SAME and self.apart <= APART else 1 if self.spearman >= PARTLY else 2

    @property
    def rho(self) -> str:
        return "not defined" if self.spearman is None else wording.printed(self.spearman, ".2f")

    @property
    def text(self) -> str:
        of_size = 1.0 if self.size is None else self.size
        times = wording.printed(of_size, ".2g")
        size = "" if 0.9 < of_size < 1.1 else f"; mean size {times} times the model's"
        return f"{_lower(self.curve.title)} (ρ = {self.rho}; {self.distance}{size})"

    @property
    def distance(self) -> str:
        """How far the shapes are apart, where they can be compared."""
        assert self.apart is not None
        return f"each scaled to its own range, at most {math.ceil(100 * self.apart - 1e-3)} % apart"


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


def against_control(kind: str, found: Sequence[Sequence[Likeness]]) -> str:
    """What controls of one kind show of the model's curves, in one sentence. `found`: the likenesses of each control
    that is stored, of the same shapes. One control is told as one; of several it is counted how many show the same
    curve. A conclusion is drawn only where more than half of five or more do: such a curve appears without what the
    control lacks. That a control shows another shape says nothing about where the model's comes from."""
    n, one = len(found), wording.KINDS[kind][0]
    by_curve = [[alike.shape for alike in of_curve] for of_curve in zip(*found, strict=True)]
    named = [_lower(alike.curve.title) for alike in found[0]]
    told = [(name, shapes) for name, shapes in zip(named, by_curve, strict=True) if set(shapes) != {None}]
    if not told:
        which = f"the {one}" if n == 1 else f"{n} {wording.KINDS[kind][1]}"
        return f"The curves of the model or of {which} are constant or too short: their shapes cannot be compared."
    if n == 1:
        groups = {place: [name for name, shapes in told if shapes == [place]] for place in range(len(SHAPES))}
        parts = [f"{SHAPES[place]} for {wording.listed(names)}" for place, names in groups.items() if names]
        return f"One {one} shows {wording.listed(parts)}."
    counted: dict[int, list[str]] = {}
    for name, shapes in told:
        counted.setdefault(shapes.count(0), []).append(name)
    parts = []
    for count, names in sorted(counted.items(), reverse=True):
        means = f": {SAYS[kind][len(names) > 1]}" if n >= wording.FIVE and 2 * count > n else ""
        who = f"{count or 'none'} of {n}{'' if parts else f' {wording.KINDS[kind][1]}'}"
        parts.append(f"{who} {'shows' if count == 1 else 'show'} the same shape for {wording.listed(names)}{means}")
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def _lower(title: str) -> str:
    """A title within a sentence."""
    return title if title[1:2].isupper() else f"{title[0].lower()}{title[1:]}"
