"""Hu et al.'s three rules of effective depth (arXiv 2512.14064), with their thresholds as defaults. Numpy only.

The effective depth `ED` is a layer's index, its ratio `(ED + 1) / L`. The rules answer different questions and are
never averaged: the cosine reads what layer l adds, the lens reads the stream *before* layer l. Variants are shown next
to the paper's rule and never replace it.

Shapes: a rule reads curves `[layer]`. Those of a lens have one row more, the output, which the rules leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

KL_THRESHOLD = 0.5
OVERLAP_THRESHOLD = 0.3
TIE = 1e-6  # of an overlap: float32 may store a share of k tokens this much too large
BEST = 5  # tokens whose overlap the paper's rule compares
COSINES = ("attn_cos", "mlp_cos", "layer_cos")  # the cosine rule reads their mean
TENTH = 0.1  # of the layers: depths this close count as equal
PAPER, STABLE, FROM_DEPTH_1, WITHOUT_SINKS = "paper", "stable", "from_depth_1", "without_sinks"


@dataclass(frozen=True)
class Rule:
    """A rule of Hu et al. that reads the effective depth off a curve.

    `label`: its name in a sentence. `title`, `axis`, `unit`: of that curve, the mean of these `measures` of `probe`.
    `threshold`: the paper's; `band`: others around it. `variants`: the paper's rule first."""

    name: str
    label: str
    title: str
    axis: str
    unit: str
    colour: str
    probe: str
    measures: tuple[str, ...]
    threshold: float
    band: tuple[float, ...]
    variants: tuple[str, ...]

    @property
    def heading(self) -> str:
        """The label with a capital."""
        return self.label[0].upper() + self.label[1:]

    @property
    def of_lens(self) -> bool:
        """Whether the rule reads a logit lens's curve, over depths 0 to L."""
        return self.axis == "depth"

    def others(self, threshold: float) -> tuple[float, ...]:
        """Return the thresholds of the rule's band other than this one."""
        return tuple(other for other in self.band if not math.isclose(other, threshold, abs_tol=1e-9))

    def means(self, means: Mapping[str, ArrayLike]) -> np.ndarray:
        """Return the mean of the curves of the rule's measures; a lens's with the output's row."""
        return np.asarray(np.mean([np.asarray(means[name], np.float64) for name in self.measures], axis=0))

    def curve(self, means: Mapping[str, ArrayLike]) -> np.ndarray:
        """Return the curve `[layer]` that the rule reads, from mean curves by measure."""
        return self.means(means)[:-1] if self.of_lens else self.means(means)

    def layer(self, means: Mapping[str, ArrayLike]) -> int | None:
        """Return the layer, from 0, that the paper's rule gives on mean curves by measure; None where not defined."""
        return self.layers(self.curve(means))[0]

    def layers(
        self, curve: ArrayLike, variant: str = PAPER, threshold: float | None = None
    ) -> tuple[int | None, int | None]:
        """Return the layer of a variant on one curve `[layer]`, and the one from which the rule stays true, or None."""
        c = np.asarray(curve, np.float64)[None]
        both = (depths(self.name, c, variant, threshold, lasting)[0] for lasting in (False, True))
        depth, stable = (int(one) if np.isfinite(c).all() and not np.isnan(one) else None for one in both)
        return depth, None if depth is None else stable


RULES = {
    rule.name: rule
    for rule in (
        Rule("cosine", "cosine", "Cosine of what a layer adds with the stream", "layer", "cosine", "#A8457E",
             "contributions", COSINES, 0.0, tuple(np.linspace(-0.05, 0.05, 11)), (PAPER, STABLE, WITHOUT_SINKS)),
        Rule("kl", "KL", "Divergence of the lens from the output", "depth", "nats", "#6A51A3",
             "logit_lens", ("kl",), KL_THRESHOLD, tuple(np.linspace(0.25, 0.75, 11)),
             (PAPER, STABLE, FROM_DEPTH_1, WITHOUT_SINKS)),
        Rule("overlap", "overlap", "Best tokens that lens and output share", "depth", "share", "#5A6B00",
             "logit_lens", ("overlap",), OVERLAP_THRESHOLD, tuple(np.linspace(0.1, 0.5, 9)),
             (PAPER, STABLE, WITHOUT_SINKS)),
    )
}  # fmt: skip
OF_LENS = {name: rule for name, rule in RULES.items() if rule.of_lens}


def depths(
    name: str, curves: ArrayLike, variant: str = PAPER, threshold: float | None = None, lasting: bool = False
) -> np.ndarray:
    """Return the layer, from 0, that a rule gives on each curve, `[n, layer]` → `[n]`, NaN where not defined.

    - cosine: the last `l` with `c[l] < 0 <= c[l+1]`; stable: the last `l` with `c[l] < 0`, if `l < L-1`
    - KL: the first `l < L-1` with `kl[l] < θ max(kl)`; overlap: the first with `overlap[l] > θ`; stable: the first from
      which that holds through `L-1`
    - KL from depth 1: maximum and rule over `l >= 1`, as tied embeddings predict the token just read at depth 0

    `lasting`: the stable form of the variant."""
    c, cut = np.asarray(curves, np.float64), RULES[name].threshold if threshold is None else threshold
    lasting |= variant == STABLE
    if c.shape[1] < 2:
        return np.full(len(c), np.nan)
    if name == "cosine":
        below = c < cut
        if lasting:
            return np.where(below[:, -1], np.nan, _last(below))
        return _last(below[:, :-1] & ~below[:, 1:])
    holds = _holds(name, c, cut, int(variant == FROM_DEPTH_1))
    if lasting:
        holds = np.logical_and.accumulate(holds[:, ::-1], 1)[:, ::-1]
    holds = holds[:, :-1]
    return np.where(holds.any(1), holds.argmax(1), np.nan)


def reason(name: str, curve: np.ndarray | None, threshold: float) -> str:
    """Return in words why a rule gives no layer on a curve `[layer]`; the curve is None where no token counts."""
    if curve is None or len(curve) < 2:
        return "no token is left to count" if curve is None else "the model has one layer only"
    if not np.isfinite(curve).all():
        return "its curve is not finite"
    if name != "cosine":
        late = _holds(name, curve[None], threshold)[0, -1]
        return f"its threshold is {'reached before the last layer only' if late else 'never reached'}"
    below = curve < threshold
    if below.sum() == 1 or not below.any():
        return f"the mean cosine is {'below 0 in the last layer only' if below.any() else 'never below 0'}"
    return f"the mean cosine {'is below 0 in every layer' if below.all() else 'falls below 0 and stays there'}"


def first_pass(readout: np.ndarray) -> int | None:
    """Return the first pass of a looped model, from 1 and before the last, after which its readout meets the KL rule;
    None if none does. `readout` `[passes + 1]`: divergence from the output after each number of passes."""
    passing = np.flatnonzero(readout[1:-1] < KL_THRESHOLD * readout.max())
    return int(passing[0]) + 1 if len(passing) else None


def near(depth: float, other: float, n_layers: int) -> bool:
    """Return whether two depths differ by a tenth of the layers at most."""
    return bool(abs(depth - other) <= TENTH * n_layers)


def tenth(n_layers: int) -> int:
    """Return the number of whole layers in a tenth of the depth."""
    return int(TENTH * n_layers + 1e-9)


def _holds(name: str, c: np.ndarray, threshold: float, start: int = 0) -> np.ndarray:
    """Return where a lens rule's condition is true on curves, `[n, layer]`, from depth `start` on."""
    if name == "overlap":
        return np.asarray(c > threshold + TIE)  # ties excluded
    holds = np.zeros(c.shape, bool)
    holds[:, start:] = c[:, start:] < threshold * c[:, start:].max(1, keepdims=True)
    return holds


def _last(holds: np.ndarray) -> np.ndarray:
    """Return each row's last true column; NaN where a row has none."""
    n = holds.shape[1]
    return np.where(holds.any(1), n - 1 - holds[:, ::-1].argmax(1), np.nan)
