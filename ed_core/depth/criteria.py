"""From aggregated curves to effective depth: three criteria, each with its reason where it is not defined. Numpy only.

Source: Hu et al. 2025 (arXiv 2512.14064), whose thresholds are the defaults. `ED` is a block index, its ratio `(ED + 1)
/ L`. The three criteria answer different questions (the cosine reads block l's own write, the lens what stands *before*
block l) and are never averaged. Variants stand beside the paper's rule and never in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

KL_THRESHOLD = 0.5
OVERLAP_THRESHOLD = 0.3
TIE = 1e-6  # of an overlap: a share of k tokens stored in float32 lies up to so much above itself
BEST = 5  # tokens whose overlap the papers' rule compares
COSINES = ("attn_cos", "mlp_cos", "layer_cos")  # contributions whose mean the cosine rule reads


@dataclass(frozen=True)
class Criterion:
    """One criterion's verdict. `depth` and `stable` are block indices or None; `reason` says why `depth` is None.

    Variants, each a verdict of its own with its own reason: `from_depth_1` (of `kl` alone), `without_sinks` (the same
    rule on the means without the sinks; None where the sinks cannot be told, or nothing else is read). `best`: how many
    best tokens the overlap compares."""

    name: str
    depth: int | None
    stable: int | None
    n_layers: int
    threshold: float | None = None
    reason: str = ""
    from_depth_1: Criterion | None = None
    without_sinks: Criterion | None = None
    best: int = BEST

    @property
    def variants(self) -> dict[str, Criterion | None]:
        """The variants this criterion has, by name; `stable` is a figure beside each of them."""
        names = ("from_depth_1", "without_sinks") if self.name == "kl" else ("without_sinks",)
        return {name: getattr(self, name) for name in names}

    @property
    def ratio(self) -> float | None:
        """`(ED + 1) / L`, in (0, 1], or None."""
        return None if self.depth is None else (self.depth + 1) / self.n_layers


def by_cosine(curve: ArrayLike, threshold: float = 0.0) -> Criterion:
    """The last block `l` with `c[l] < 0 <= c[l+1]`: from there on, additions strengthen what the stream holds already.

    Stable variant: the largest `l` with `c[l] < 0`, not defined if that is the last block. `threshold` moves the 0 (for
    threshold bands)."""
    c = _curve(curve) - threshold
    n = len(c)
    crossings = np.flatnonzero((c[:-1] < 0) & (c[1:] >= 0))
    negative = np.flatnonzero(c < 0)
    stable = int(negative[-1]) if len(negative) and negative[-1] < n - 1 else None
    if len(crossings):
        return Criterion("cosine", int(crossings[-1]), stable, n)
    if not len(negative):
        reason = "the mean cosine is never below 0"
    elif len(negative) == n:
        reason = "the mean cosine is negative in every layer"
    elif len(negative) == 1:
        reason = "the mean cosine is below 0 in the last layer alone"
    else:
        reason = "the mean cosine falls below 0 and never comes back up"
    return Criterion("cosine", None, None, n, reason=reason)


def by_kl(kl: ArrayLike, threshold: float = KL_THRESHOLD) -> Criterion:
    """The first block `l < L-1` whose lens divergence is below `threshold * max(kl)`; rows `0..L-1`, what stands before
    each block.

    Stable variant: the smallest `l` from which that holds through `L-1`. Variant `from_depth_1`: the same rule with the
    maximum over `l >= 1`, from `l = 1` on; with tied embeddings the lens at depth 0 predicts the token just read with
    near certainty, its divergence is the maximum, and the rule may hold at once at `l = 1`.
    """
    curve = _curve(kl)
    never = f"the divergence is at least {threshold:g} of its largest"
    later = np.append(False, curve[1:] < threshold * curve[1:].max())
    return replace(
        _first("kl", curve < threshold * curve.max(), threshold, never),
        from_depth_1=_first("kl", later, threshold, f"{never}, both from depth 1 on"),
    )


def more_than(overlap: np.ndarray, threshold: float) -> np.ndarray:
    """Where an overlap is above a threshold; an exact tie is not."""
    return np.asarray(overlap > threshold + TIE)


def by_overlap(overlap: ArrayLike, threshold: float = OVERLAP_THRESHOLD) -> Criterion:
    """The first block `l < L-1` whose lens shares more than `threshold` of its best tokens with the output; rows
    `0..L-1`."""
    return _first("overlap", more_than(_curve(overlap), threshold), threshold, f"the overlap is at most {threshold:g}")


@dataclass(frozen=True)
class Rule:
    """A rule of the papers: what it reads, how, and what everything that shows it calls it.

    `label`: within a sentence. `title`: what its curve is, over its `axis`, in its `unit`. `reads`: what its layer is.
    `measures`: aggregated curves of `probe`, whose mean is read; of a lens without the last row, which is the output.
    `threshold`: the papers', `band` others around it. `variants`: what stands beside it in tables, itself first."""

    name: str
    label: str
    title: str
    axis: str
    unit: str
    reads: str
    colour: str
    probe: str
    measures: tuple[str, ...]
    judge: Callable[..., Criterion]
    threshold: float
    band: tuple[float, ...]
    variants: tuple[str, ...]

    def others(self, threshold: float | None = None) -> tuple[float, ...]:
        """The thresholds of the band but for the one that is used, the papers' by default."""
        own = self.threshold if threshold is None else threshold
        return tuple(at for at in self.band if not math.isclose(at, own, abs_tol=1e-9))

    @property
    def heading(self) -> str:
        """Its label at the beginning of a line."""
        return self.label[0].upper() + self.label[1:]

    @property
    def of_lens(self) -> bool:
        return self.axis == "depth"

    def means(self, means: Mapping[str, ArrayLike]) -> np.ndarray:
        """The mean of the aggregated curves that it reads; of a lens with the output's row."""
        mean: np.ndarray = np.mean([np.asarray(means[name], np.float64) for name in self.measures], axis=0)
        return mean

    def curve(self, means: Mapping[str, ArrayLike]) -> np.ndarray:
        """What it reads, a value a layer."""
        return self.means(means)[:-1] if self.of_lens else self.means(means)

    def of(self, means: Mapping[str, ArrayLike], threshold: float | None = None) -> Criterion:
        """The rule on aggregated curves."""
        return self.of_curve(self.curve(means), threshold)

    def of_curve(self, curve: np.ndarray, threshold: float | None = None) -> Criterion:
        """The rule on what it reads; not defined for one layer, or where a value is not finite."""
        if len(curve) < 2:
            return Criterion(self.name, None, None, len(curve), reason="the model has one layer only")
        if not np.isfinite(curve).all():
            return Criterion(self.name, None, None, len(curve), reason="its curve is not finite")
        return self.judge(curve, self.threshold if threshold is None else threshold)


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "cosine",
            "cosine",
            "Cosine of what a layer adds with the stream",
            "layer",
            "cosine",
            "the last layer whose mean cosine is below 0 before one where it is not",
            "#CC79A7",
            "contributions",
            COSINES,
            by_cosine,
            0.0,
            tuple(np.linspace(-0.05, 0.05, 11)),
            ("paper", "stable", "without_sinks"),
        ),
        Rule(
            "kl",
            "KL",
            "Divergence of the lens from the output",
            "depth",
            "nats",
            "the first layer before which the lens is within half of its largest divergence from the output",
            "#D55E00",
            "logit_lens",
            ("kl",),
            by_kl,
            KL_THRESHOLD,
            tuple(np.linspace(0.25, 0.75, 11)),
            ("paper", "stable", "from_depth_1", "without_sinks"),
        ),
        Rule(
            "overlap",
            "overlap",
            "Best tokens that lens and output share",
            "depth",
            "share",
            "the first layer before which the lens shares more than 30 % of its best tokens with the output",
            "#56B4E9",
            "logit_lens",
            ("overlap",),
            by_overlap,
            OVERLAP_THRESHOLD,
            tuple(np.linspace(0.1, 0.5, 9)),
            ("paper", "stable", "without_sinks"),
        ),
    )
}
OF_LENS = {name: rule for name, rule in RULES.items() if rule.of_lens}


def depths(name: str, curves: ArrayLike, variant: str = "paper", threshold: float | None = None) -> np.ndarray:
    """The rule of a criterion on many curves at once, `[n, layer]` → `[n]`, NaN where it is not defined; the same
    depths as `by_cosine`, `by_kl` and `by_overlap` give one by one.

    `variant`: "paper", "stable" or, of KL, "from_depth_1"."""
    c = np.asarray(curves, np.float64)
    if c.shape[1] < 2:
        return np.full(len(c), np.nan)
    at = RULES[name].threshold if threshold is None else threshold
    if name == "cosine":
        below = c < at
        if variant == "stable":
            return np.where(below[:, -1], np.nan, _last(below))
        return _last(below[:, :-1] & ~below[:, 1:])
    if name == "overlap":
        holds = more_than(c, at)
    else:
        start = int(variant == "from_depth_1")
        holds = np.zeros(c.shape, bool)
        holds[:, start:] = c[:, start:] < at * c[:, start:].max(1, keepdims=True)
    if variant == "stable":
        holds = np.logical_and.accumulate(holds[:, ::-1], 1)[:, ::-1]
    holds = holds[:, :-1]
    return np.where(holds.any(1), holds.argmax(1), np.nan)


def _last(holds: np.ndarray) -> np.ndarray:
    """The last column that holds, of each row; NaN where none does."""
    n = holds.shape[1]
    return np.where(holds.any(1), n - 1 - holds[:, ::-1].argmax(1), np.nan)


def threshold_band(
    rule: Callable[..., Criterion], curve: ArrayLike, thresholds: Iterable[float]
) -> tuple[int, int] | None:
    """Smallest and largest depth as the threshold moves over `thresholds`: how much of a single prompt's figure is the
    threshold's choice. No confidence interval. None where no threshold gives one, or a value is not finite."""
    if not np.isfinite(np.asarray(curve, np.float64)).all():
        return None
    found = [c.depth for c in (rule(curve, t) for t in thresholds) if c.depth is not None]
    return (min(found), max(found)) if found else None


def _curve(values: ArrayLike) -> np.ndarray:
    curve = np.asarray(values, np.float64)
    if curve.ndim != 1 or len(curve) < 2 or not np.isfinite(curve).all():
        raise ValueError(f"a curve of at least two finite values is expected, found shape {curve.shape}")
    return curve


def _first(name: str, holds: np.ndarray, threshold: float, never: str) -> Criterion:
    """`never`: what is so before every layer where the rule gives none; before the last it may hold, which is no
    layer of the rule."""
    n = len(holds)
    found = np.flatnonzero(holds[:-1])
    if not len(found):
        where = "before every layer but the last" if holds[-1] else "before every layer"
        return Criterion(name, None, None, n, threshold, f"{where} {never}")
    lasting = np.flatnonzero(np.logical_and.accumulate(holds[::-1])[::-1][:-1])
    return Criterion(name, int(found[0]), int(lasting[0]) if len(lasting) else None, n, threshold)
