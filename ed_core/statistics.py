"""How sure a number over prompts is: bootstrap-t over the units that are independent, permutations, Holm.

Prompts written from one template are not independent, so where they carry their template's id (`Prompt.form`) and there
are enough templates, *templates* are the units: their prompts are pooled and drawn together. Simulated coverage of a
nominal 90 % is in `tests/test_statistics.py`.

Smooth quantities (means, slopes, correlations, `mean_depth`) take the studentised bootstrap: resample `r` has its own
standard error `s_r`, and `value - s · (value_r - value) / s_r` are draws whose 5 % and 95 % quantiles are the interval.
The papers' rules return whole layers; the jackknife is inconsistent for steps, so they keep the percentile interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES, ENDS = 1000, (0.05, 0.95)  # of a bootstrap, and the quantiles that are its interval
FEWEST = 8  # prompts that an interval over them needs
FEWEST_FORMS = 5  # templates that may be units
MOST = 100  # units that a jackknife leaves out one by one; more of them are bundled at random into as many
SMALLEST = 1e-9  # of a value or its standard error: below it a resample's own standard error counts as 0


class Interval(NamedTuple):
    """An interval over resamples: the 5 % and 95 % quantiles of the defined values (NaN where none is), and the share
    of resamples without a value, in [0, 1]."""

    low: float
    high: float
    undefined: float

    @property
    def ends(self) -> tuple[float, float] | None:
        """The quantiles (5 %, 95 %); None where no resample has a value."""
        return None if math.isnan(self.low) else (self.low, self.high)


@dataclass(frozen=True)
class Units:
    """The independent units that are resampled: templates or prompts. `of`: the unit of each prompt, `[prompt]` →
    0..n-1. `forms`: how many templates the prompts are known to be of, 0 where nothing is known. `by_form`: the units
    are templates; else prompts."""

    of: np.ndarray
    n: int
    forms: int = 0
    by_form: bool = False

    @property
    def enough(self) -> bool:
        """Whether the units are as many as an interval needs."""
        return self.by_form or self.n >= FEWEST

    @property
    def words(self) -> str:
        """What an interval is over, in words: "50 prompts of 10 templates"."""
        return self.called("prompt")

    def called(self, noun: str) -> str:
        """Return what an interval is over, in words, with another noun than "prompt"."""
        n, templates = len(self.of), f" of {self.forms} template{'s' * (self.forms != 1)}" if self.forms else ""
        return f"{n} {noun}{'s' * (n != 1)}{templates}"

    @property
    def groups(self) -> str:
        """What an interval is over, in words, where each unit is a group of prompts, one of each level."""
        return f"{self.called('group')}, one prompt per level"

    def pooled(self, values: ArrayLike) -> np.ndarray:
        """Return the sums over each unit's prompts, `[prompt, …]` → `[unit, …]`."""
        values = np.asarray(values, np.float64)
        if not self.by_form:
            return values
        result = np.zeros((self.n, *values.shape[1:]))
        np.add.at(result, self.of, values)
        return result


def units(n_prompts: int, forms: Sequence[str] = ()) -> Units:
    """Return the units of `n_prompts` prompts: their templates (`forms`) where `FEWEST_FORMS` at least are known, else
    the prompts. A prompt without a form is a template of its own, unless none has one. Some, but not all, of a
    template's prompts may be missing."""
    if len(forms) not in (0, n_prompts):
        raise ValueError(f"a form for each of {n_prompts} prompts is expected, found {len(forms)}")
    if not any(forms):
        return Units(np.arange(n_prompts), n_prompts)
    names = [form or f"\0{i}" for i, form in enumerate(forms)]
    known = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if len(known) < FEWEST_FORMS:
        return Units(np.arange(n_prompts), n_prompts, len(known))
    return Units(np.array([known[name] for name in names]), len(known), len(known), True)


@dataclass(frozen=True)
class Resampled:
    """A number, or a curve of them, with that of every bootstrap resample. `value` `[…]`; `error`: its standard error;
    `again` and `errors` `[resample, …]`: value and standard error of each resample. NaN: not defined. `low`, `high`:
    the range that the quantity can take at all."""

    value: np.ndarray
    error: np.ndarray
    again: np.ndarray
    errors: np.ndarray
    low: float = -math.inf
    high: float = math.inf

    @property
    def draws(self) -> np.ndarray:
        """Bootstrap-t draws `[resample, …]`: `value - error · (again - value) / errors`, cut to the range. Their
        quantiles are interval ends; the share beyond a bound is the probability of error of saying that the quantity is
        not beyond it. NaN where the resample has no value."""
        apart, scale = self.again - self.value, np.abs(self.value) + self.error
        own = np.where(self.errors > SMALLEST * scale, self.errors, self.error)
        with np.errstate(divide="ignore", invalid="ignore"):
            result = self.value - np.where(own > 0, self.error * apart / own, 0.0)
        result = np.where(np.isfinite(self.again), result, np.nan)
        cut: np.ndarray = np.clip(result, self.low, self.high)
        return cut

    @property
    def interval(self) -> Interval:
        """The interval of a single number."""
        return interval(self.draws)

    @property
    def ends(self) -> np.ndarray:
        """The 5 % and 95 % ends of each number of a curve, `[2, …]`; NaN where no resample is defined."""
        return ends(self.draws)

    def bounded(self, low: float = -math.inf, high: float = math.inf) -> Resampled:
        """Return a copy with a range, to which its draws are cut."""
        return replace(self, low=low, high=high)


def mean(
    sums: ArrayLike, weights: ArrayLike | None, over: Units, seed: int = 0, resamples: int = RESAMPLES
) -> Resampled:
    """Return the resampled `sum over prompts of sums / sum of weights`, place by place: `sums` `[prompt, …]`, `weights`
    `[prompt]` (tokens) or `[prompt, …]`, 1 each where None. The standard error is that of a ratio: `n / (n - 1) · Σ
    (S_u - m W_u)² / W²` over units u."""
    sums = np.asarray(sums, np.float64)
    weights = np.ones(len(sums)) if weights is None else np.asarray(weights, np.float64)
    shape, n = sums.shape[1:], over.n
    s = over.pooled(sums).reshape(n, -1)
    w = over.pooled(weights).reshape(n, -1)
    samples = counts(n, resamples, seed)

    def ratio(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total, weight = times @ s, times @ w
        with np.errstate(divide="ignore", invalid="ignore"):
            result = total / weight
            square = times @ (s * s) - 2 * result * (times @ (s * w)) + result**2 * (times @ (w * w))
            error = np.sqrt(np.maximum(square, 0) * n / max(n - 1, 1)) / np.abs(weight)
        return result, error

    (value, error), (resampled, errors) = ratio(np.ones((1, n))), ratio(samples)
    return Resampled(
        value[0].reshape(shape), error[0].reshape(shape), resampled.reshape(-1, *shape), errors.reshape(-1, *shape)
    )


def read_off(
    read: Callable[[dict[str, np.ndarray]], np.ndarray],
    sums: Mapping[str, ArrayLike],
    weights: ArrayLike | Mapping[str, ArrayLike],
    over: Units,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Resampled:
    """Return a smooth number, or several, read off mean curves, with resamples: `read` takes curves `[n, place]` by
    name to `[n, …]`. `sums`: by name `[prompt, place]`; `weights`: tokens `[prompt]`, for all or by name, or `[prompt,
    place]` where a place lacks some prompts. Standard errors by the jackknife over units: `(n - 1) / n · Σ (θ_(-u) -
    mean θ_(-u))²`."""
    given = weights if isinstance(weights, Mapping) else dict.fromkeys(sums, weights)
    pooled = {name: _bundled(over.pooled(v), seed) for name, v in sums.items()}
    tokens = {name: _bundled(_places(over.pooled(given[name])), seed) for name in sums}
    n = min(over.n, MOST)
    samples = np.vstack([np.ones(n), counts(n, resamples, seed)])
    total = {name: (samples @ v, samples @ tokens[name]) for name, v in pooled.items()}

    def at(parts: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(read({name: s / w for name, (s, w) in parts.items()}), np.float64)

    values = at(total)
    first, square, number = np.zeros_like(values), np.zeros_like(values), np.zeros_like(values)
    for unit in range(n):  # each draw is left out once: of a unit drawn k times, k leave-outs that are alike
        times = samples[:, unit].reshape(-1, *[1] * (values.ndim - 1))
        result = at({name: (s - pooled[name][unit], w - tokens[name][unit]) for name, (s, w) in total.items()})
        used = (times > 0) & np.isfinite(result)
        result, times = np.where(used, result - values, 0.0), np.where(used, times, 0.0)  # about the value: exact
        first, square, number = first + times * result, square + times * result**2, number + times
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = square - first**2 / number
        errors = np.sqrt(np.maximum(spread, 0) * (number - 1) / number)
    return Resampled(np.asarray(values[0]), np.asarray(errors[0]), values[1:], errors[1:])


def contrast(weights: ArrayLike, parts: Sequence[Resampled]) -> Resampled:
    """Return `Σ a_i · part_i` of parts that were drawn independently (give each its own seed), with resamples: the
    slope over levels that share no prompts, for instance. `weights`: the a_i."""
    pairs = list(zip(np.asarray(weights, float), parts, strict=True))
    value = np.asarray(sum(a * part.value for a, part in pairs))
    error = np.asarray(np.sqrt(sum(a**2 * part.error**2 for a, part in pairs)))
    resampled = sum(a * part.again for a, part in pairs)
    errors = np.sqrt(sum(a**2 * part.errors**2 for a, part in pairs))
    return Resampled(value, error, resampled, errors)


def percentile(
    read: Callable[[dict[str, np.ndarray]], np.ndarray],
    sums: Mapping[str, ArrayLike],
    weights: ArrayLike,
    over: Units,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> np.ndarray:
    """Return the number that `read` gives in every resample, `[resample]`, NaN where it gives none; for rules that
    return whole layers, as the jackknife is no standard error of these. Arguments as of `read_off`."""
    samples = counts(over.n, resamples, seed)
    tokens = (samples @ over.pooled(weights))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(read({name: samples @ over.pooled(v) / tokens for name, v in sums.items()}), np.float64)


def interval(values: ArrayLike) -> Interval:
    """Return the 5 % and 95 % quantiles over the resamples that are defined, and the share that is not (NaN)."""
    values = np.asarray(values, np.float64)
    low, high = ends(np.where(np.isfinite(values), values, np.nan)) if len(values) else (np.nan, np.nan)
    return Interval(float(low), float(high), 1 - np.count_nonzero(np.isfinite(values)) / max(len(values), 1))


def ends(values: ArrayLike) -> np.ndarray:
    """Return the 5 % and 95 % quantiles over the first axis, `[2, …]`, NaN left out; NaN where every value is."""
    values = np.asarray(values, np.float64)
    if np.isfinite(values).all():
        return np.asarray(np.quantile(values, ENDS, axis=0))
    flat = values.reshape(len(values), -1)
    result = np.full((2, flat.shape[1]), np.nan)
    some = np.isfinite(flat).any(0)
    result[:, some] = np.nanquantile(flat[:, some], ENDS, axis=0)
    return result.reshape(2, *values.shape[1:])


def beyond(draws: ArrayLike, bound: float, above: bool) -> float:
    """Return the probability of error, in (0, 1], of saying that a quantity is below `bound` (`above`: above it): the
    share of its draws on the other side, with one added so that it is never 0. NaN draws count as on the other side."""
    draws = np.asarray(draws, np.float64)
    wrong = ~(draws > bound) if above else ~(draws < bound)
    return float((1 + np.count_nonzero(wrong)) / (1 + len(draws)))


def holm(p: Sequence[float]) -> np.ndarray:
    """Return p-values after Holm's step-down adjustment (1979), `[test]` in [0, 1]. NaN (no test) stays NaN."""
    each = np.asarray(p, np.float64)
    result, tested = np.full(len(each), np.nan), np.flatnonzero(np.isfinite(each))
    worst = 0.0
    for rank, i in enumerate(tested[np.argsort(each[tested], kind="stable")]):
        worst = max(worst, (len(tested) - rank) * each[i])
        result[i] = min(worst, 1.0)
    return result


def permutation_p(statistic: Callable[[np.ndarray], np.ndarray], orders: np.ndarray) -> float:
    """Return a permutation p-value in (0, 1]: the share of orders `[order, place]` in which `statistic(orders)`
    `[order]` reaches its value in the first order, the observed one. A value that is not finite counts as reached."""
    result = np.asarray(statistic(orders), np.float64)
    return float(np.count_nonzero(~(result < result[0] - SMALLEST * abs(result[0]))) / len(result))


def ranks(rows: ArrayLike) -> np.ndarray:
    """Return the ranks within each row, ties sharing their mean rank, less the row's mean rank: `[n, place]`."""
    from scipy import stats  # half a second, which most processes need not wait for

    result = np.asarray(stats.rankdata(rows, axis=1), np.float64)
    return np.asarray(result - (result.shape[1] + 1) / 2)


def rank_correlations(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Return Spearman's rank correlation row by row, `[n, place]` → `[n]`; NaN for a side constant or not finite."""
    x, y = ranks(a), ranks(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        result = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    present = np.isfinite(np.asarray(a, np.float64)).all(1) & np.isfinite(np.asarray(b, np.float64)).all(1)
    return np.where(present, result, np.nan)


class RankOrder(NamedTuple):
    """How well a mean curve orders its places: the reliability of the ranks, in [-1, 1], and the share of pairs of
    places that differ by more than two standard errors."""

    reliability: float
    apart: float


def rank_order(sums: ArrayLike, weights: ArrayLike, over: Units, seed: int = 0, splits: int = 50) -> RankOrder:
    """Return the `RankOrder` of the mean curve `sums.sum(0) / weights.sum(0)`, of `sums` `[prompt, place]` over
    `weights` `[prompt]` or `[prompt, 1]`.

    The reliability is Spearman's correlation between random halves of the units, averaged over splits and corrected to
    the whole (Spearman-Brown). NaN for a constant curve."""
    s, w = over.pooled(sums), _places(over.pooled(weights))
    half = np.random.default_rng(seed).permuted(np.broadcast_to(np.arange(over.n) % 2, (splits, over.n)), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = ((owner @ s) / (owner @ w) for owner in (half, 1 - half))
        between = float(rank_correlations(first, second).mean())
        mean = s.sum(0) / w.sum(0)
        product = (s - mean * w).T @ (s - mean * w) * over.n / max(over.n - 1, 1) / w.sum() ** 2
    errors = np.sqrt(np.maximum(product.diagonal()[:, None] + product.diagonal() - 2 * product, 0))
    pairs = np.triu_indices(len(mean), 1)
    apart = (np.abs(mean[:, None] - mean) > 2 * errors)[pairs].mean()
    return RankOrder(2 * between / (1 + between) if between > -1 else -1.0, float(apart))


BLOCK, DEEP = 4, 24  # layers of a block, from so many layers on; of fewer a block has two
ALIKE = 0.75  # correlation of neighbouring layers that is allowed for in a mean over layers


def over_layers(read: Callable[..., float], n_layers: int, *curves: np.ndarray, mean: bool = False) -> np.ndarray:
    """Return draws `[RESAMPLES]` of a number read off curves over layers `[place]`, uncertain over blocks of layers:
    layers next to each other are alike, so each block counts as one.

    Student's t about the value, with one degree of freedom less than the number of blocks; its standard error by the
    jackknife, `(n - 1) / n · Σ (θ_(-b) - mean θ_(-b))²`, of a `mean` or a ratio of means larger by what blocks have in
    common. `read` gets the places, and the curves at them. NaN for fewer than two blocks, or where the number is not
    finite without one of them."""
    places, size = np.arange(len(curves[0])), _block_size(n_layers)
    kept = [np.delete(places, places[index : index + size]) for index in range(0, len(places), size)]
    n = len(kept)
    result = (
        np.array([read(index, *(c[index] for c in curves)) for index in kept], float) if n > 1 else np.full(1, np.nan)
    )
    if not np.isfinite(result).all():
        return np.full(RESAMPLES, np.nan)
    error = math.sqrt((n - 1) / n * float(((result - result.mean()) ** 2).sum()))
    return about(read(places, *curves), error * (_in_common(len(places), size) if mean else 1.0), n - 1)


def stretch_mean(curve: np.ndarray, at: slice) -> np.ndarray:
    """Return draws `[RESAMPLES]` of the mean of the stretch `at` of a curve over all layers, uncertain over blocks of
    layers. The spread between blocks is that of the whole curve, as a stretch may have but two."""
    size = _block_size(len(curve))
    blocks = [curve[i : i + size].mean() for i in range(0, len(curve), size)]
    error = float(np.std(blocks, ddof=1)) / math.sqrt(max(len(curve[at]) / size, 1.0))
    return about(float(curve[at].mean()), error * _in_common(len(curve), size), len(blocks) - 1)


def correlated_layers(value: float, a: np.ndarray, b: np.ndarray, n_layers: int) -> np.ndarray:
    """Return draws `[RESAMPLES]` of the rank correlation of two measured curves over layers `[place]`, on Fisher's
    scale, on which it is `value`; uncertain over blocks of layers.

    Student's t about the value, with one degree of freedom less than the number of blocks; its standard error is the
    spread of the correlation with the blocks of one curve in random order. That rests on all pairs of blocks, a
    jackknife only on one number a block. NaN where a curve is constant or not finite."""
    size = _block_size(n_layers)
    shuffled = b[_block_orders(len(b), size)]
    chance = rank_correlations(np.broadcast_to(a, shuffled.shape), shuffled)
    return about(value, math.sqrt(float((chance**2).mean())), -(-len(b) // size) - 1)


@lru_cache(maxsize=16)
def _block_orders(places: int, size: int) -> np.ndarray:
    """Return `[RESAMPLES, place]`: random orders of blocks of `size` neighbouring places, a ring cut at random."""
    rng, orders = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        ring = np.roll(np.arange(places), rng.integers(places))
        blocks = [ring[start : start + size] for start in range(0, places, size)]
        orders.append(np.concatenate([blocks[i] for i in rng.permutation(len(blocks))]))
    return np.stack(orders)


def _block_size(n_layers: int) -> int:
    """Return how many neighbouring layers count as one block."""
    return BLOCK if n_layers >= DEEP else BLOCK // 2


@lru_cache(maxsize=64)
def _in_common(places: int, size: int) -> float:
    """Return the factor by which the standard error of a mean over blocks of places grows where neighbouring places are
    correlated by `ALIKE`, since blocks next to each other are then alike as well."""
    index = np.arange(places)
    blocks = np.eye(-(-places // size))[index // size].T
    blocks /= blocks.sum(1, keepdims=True)
    between = blocks @ ALIKE ** np.abs(index[:, None] - index) @ blocks.T
    n, total = len(blocks), float(between.sum())
    return math.sqrt(total / n * (n - 1) / (float(between.trace()) - total / n))


def about(value: float, error: float, freedom: int) -> np.ndarray:
    """Return draws `[RESAMPLES]` of a number with this standard error, by quantiles of Student's t about it."""
    return np.asarray(value + error * _student(freedom))


def student(freedom: int, level: float) -> float:
    """Return the t so that Student's distribution has the share `level` between -t and t."""
    from scipy import special

    return float(special.stdtrit(freedom, (1 + level) / 2))


def student_p(value: ArrayLike, error: ArrayLike, bound: float, freedom: int, above: bool) -> np.ndarray:
    """Return the probability of error of saying that numbers are below `bound` (`above`: above it), by Student's t with
    `freedom` degrees of freedom: for many places at once, where 1 000 resamples are too few to pay for all of them."""
    from scipy import special

    apart, error = (np.asarray(value, np.float64) - bound) * (1 if above else -1), np.asarray(error, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > SMALLEST, apart / error, np.nan_to_num(np.sign(apart) * math.inf))
    return np.where(np.isfinite(apart), special.stdtr(freedom, -t), 1.0)


def some_below(curve: Resampled, bound: float, over: Units) -> float:
    """Return the probability of error of saying that at least one place of a curve is below `bound`: that of the surest
    one times the number of places that were looked at (Bonferroni)."""
    p = student_p(curve.value, curve.error, bound, over.n - 1, False)
    return float(min(1.0, len(p) * p.min()))


def all_above(curve: Resampled, bound: float, over: Units) -> float:
    """Return the probability of error of saying that every place of a curve is above `bound`: the least sure one's."""
    return float(student_p(curve.value, curve.error, bound, over.n - 1, True).max())


@lru_cache(maxsize=32)
def _student(freedom: int) -> np.ndarray:
    """Return `RESAMPLES` quantiles of Student's t, evenly spaced."""
    from scipy import special  # a tenth of a second, which most processes need not wait for

    result: np.ndarray = special.stdtrit(freedom, (np.arange(RESAMPLES) + 0.5) / RESAMPLES)
    result.flags.writeable = False  # shared by all who ask
    return result


@lru_cache(maxsize=32)
def counts(n: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return how often each of `n` units is drawn, `[resample, unit]`; the same for every call with one seed."""
    samples = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    samples.flags.writeable = False  # shared by all who ask
    return samples


def _places(weights: np.ndarray) -> np.ndarray:
    """Return weights as `[unit, 1]` where they are the same at every place."""
    return weights[:, None] if weights.ndim == 1 else weights


def _bundled(values: np.ndarray, seed: int) -> np.ndarray:
    """Return the units `[unit, …]` as they are; of more than `MOST` the sums of that many random bundles."""
    if len(values) <= MOST:
        return values
    result = np.zeros((MOST, *values.shape[1:]))
    np.add.at(result, np.random.default_rng(seed).permutation(len(values)) % MOST, values)
    return result
