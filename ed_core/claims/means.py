"""What claims are computed from: means over tokens, lines through levels, how sure an order of layers is. Numpy
only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .. import statistics
from ..statistics import Resampled
from ..studies.difficulty import slope_of
from .claim import Estimate, enough
from .evidence import Part

RELIABLE = 0.8  # share of the differences between layers that is no noise, below which their order is not read


def sums_of(part: Part, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A measure's sums over tokens `[prompt, place]` and how many tokens each is over `[prompt]`."""
    return part[f"{name}.sum"].reshape(len(part), -1), part.columns.get(f"{name}.count", part["n_tokens"])


def per_token(part: Part, name: str, seed: int) -> Resampled:
    """A measure's mean over all tokens of all prompts. The resamples of one part and seed are the same prompts."""
    return statistics.mean(*sums_of(part, name), part.units, seed)


def read_off(
    part: Part, read: Callable[[dict[str, np.ndarray]], np.ndarray], names: Sequence[str], seed: int
) -> Resampled:
    """A smooth number read off mean curves over tokens, by their names."""
    found = {name: sums_of(part, name) for name in names}
    sums, tokens = ({name: one[i] for name, one in found.items()} for i in (0, 1))
    return statistics.read_off(read, sums, tokens, part.units, seed)


def reliability(part: Part, name: str) -> float:
    """How much of the variance of a mean curve between its places is no noise, in [0, 1]: 1 less the mean squared
    standard error over the variance, both of the curve less its mean in each prompt. NaN for a flat curve."""
    sums, tokens = sums_of(part, name)
    curve = statistics.mean(sums - sums.mean(1, keepdims=True), tokens, part.units)
    between, n = curve.value.var(ddof=1), len(curve.value)
    if not between > statistics.SMALLEST * np.abs(sums / tokens[:, None]).mean() ** 2:
        return np.nan
    return float(np.clip(1 - (curve.error**2).mean() * n / (n - 1) / between, 0, 1))


def left_out(read: Callable[[np.ndarray], float], *curves: np.ndarray) -> np.ndarray:
    """A number without each of the places, `[place]`: `read` is told the places that are there, and the curves."""
    n = len(curves[0])
    keep = [np.delete(np.arange(n), i) for i in range(n)]
    return np.array([read(at, *(c[at] for c in curves)) for at in keep], float)


def over_layers(read: Callable[..., float], *curves: np.ndarray) -> np.ndarray:
    """Draws of such a number over the layers, by the jackknife."""
    every = np.arange(len(curves[0]))
    return statistics.jackknifed(left_out(read, *curves), read(every, *curves))


@dataclass(frozen=True)
class Line:
    """A straight line through levels. `slope`: per step from one level to the next; `levels`: the mean of each;
    `pairs`: over how many pairs that have a value on every level, 0 where each level stands by itself; `over`: what the
    interval is over, in words."""

    slope: Resampled
    levels: Resampled
    pairs: int
    over: str


def line(values: Sequence[np.ndarray], parts: Sequence[Part], seed: int) -> Line | str:
    """The line through the prompts' own values `[prompt]` of each level: over pairs where there are enough of them,
    else over each level's prompts. A prompt without a value (NaN) is left out. In words why not, where a level is left
    with too few."""
    there = [np.isfinite(v) for v in values]
    values, parts = [v[t] for v, t in zip(values, there)], [p.keep(t) for p, t in zip(parts, there)]
    by_mark = [{m: i for i, m in enumerate(p.pairs) if m} for p in parts]
    shared = sorted(set.intersection(*(set(one) for one in by_mark)))
    first = parts[0].keep(np.array([by_mark[0][m] for m in shared], int)) if shared else None
    if first is not None and first.units.enough:
        own = np.stack([v[[one[m] for m in shared]] for v, one in zip(values, by_mark)], 1)
        slope, levels = (statistics.mean(v, None, first.units, seed) for v in (slope_of(own), own))
        return Line(slope, levels, len(shared), first.units.groups)
    few = next((len(p) for p in parts if not p.units.enough), None)
    if few is not None:
        return f"prompts with a value on one level: only {few}"
    means = [statistics.mean(v, None, p.units, seed + i) for i, (v, p) in enumerate(zip(values, parts))]
    return Line(statistics.contrast(level_weights(len(means)), means), as_curve(means), 0, _all_of(parts))


def as_curve(numbers: Sequence[Resampled]) -> Resampled:
    """Single numbers with their resamples, as one curve."""
    value, error, again, errors = (
        np.stack([getattr(one, of) for one in numbers], -1) for of in ("value", "error", "again", "errors")
    )
    return Resampled(value, error, again, errors)


def level_weights(n: int) -> np.ndarray:
    """Of `n` levels in the slope of the line through them."""
    return slope_of(np.eye(n))


def _all_of(parts: Sequence[Part]) -> str:
    forms = [form for p in parts for form in p.forms] if all(p.forms for p in parts) else ()
    return statistics.units(sum(map(len, parts)), forms).words


def fisher(correlation: np.ndarray) -> np.ndarray:
    """Correlations on Fisher's scale, on which their spread does not depend on them; ±1 is cut to a finite number."""
    found: np.ndarray = np.arctanh(np.clip(correlation, -1 + statistics.SMALLEST, 1 - statistics.SMALLEST))
    return found


def by_level(part: Part, levels: Sequence[str]) -> list[Part]:
    """The part of each level; refused where one is too small for an interval."""
    found = [part.keep(np.asarray(part.levels) == level) for level in levels]
    for level, of_level in zip(levels, found):
        enough(of_level, f"prompts of level {level}")
    return found


def slope_estimate(found: Line | str, scale: float = 1.0) -> Estimate:
    """The slope as a quantity, in units of `scale`."""
    if isinstance(found, str):
        return Estimate.undefined_because(found)
    return Estimate.of(found.slope.value / scale, found.slope.draws / scale)
