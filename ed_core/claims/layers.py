"""Claims about layers: where they turn, how alike they are, and what breaks where one or several are left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .. import statistics
from ..depth import say
from ..depth import turn as turns
from ..depth.matching import RAISED
from ..errors import ClaimRefused
from ..probes.base import layer_effect
from ..statistics import Resampled, all_above, beyond, over_layers, rank_correlations, some_below, stretch_mean
from ..studies.part import Part
from .claim import Evidence, Measured, fisher
from .judging import ALONE, Estimate, Range


def turn(evidence: Evidence) -> Measured:
    """Return the share of the layers up to the switch (NaN without one), and the mean cosine before and after."""
    part, n = evidence.parts["contributions"], evidence.n_layers
    part.require()
    fit = _two_levels(part)
    if fit is None:
        raise ClaimRefused("The mean cosine is undefined at some layer.")
    failed = turns.against_twins(fit, [_two_levels(twin) for twin in evidence.twins]).failed
    (sums, tokens), k = part.cosine(), fit.split
    curve = part.mean(sums, tokens).value
    before, after = (part.mean(sums[:, side].mean(1), tokens) for side in (slice(k + 1), slice(k + 1, None)))
    places = part.steps(lambda c: (turns.best_split(c) + 1) / n, sums, tokens)
    signs = max(beyond(before.draws, 0.0, False), beyond(after.draws, 0.0, True))
    order = fit.p * ALONE / turns.LEVEL  # the permutation is exact: its 5 % need no reserve

    def one_sign(at: slice, above: bool) -> float:
        """Return the error of saying that the mean cosine of these layers is above (or below) 0."""
        over_prompts = part.mean(sums[:, at].mean(1), tokens).draws
        return max(beyond(over_prompts, 0.0, above), beyond(stretch_mean(curve, at), 0.0, above))

    def contrary(limits: Range) -> tuple[float, float]:
        """Return the errors of saying that the layers before the lower limit strengthen, and the last ones erase."""
        first, last = slice(math.ceil(limits[0] * n)), slice(math.ceil(limits[1] * n) - 1, None)
        return one_sign(first, True), one_sign(last, False)

    share = math.nan if failed else (k + 1) / n
    unclear = 1.0 if failed == "twins" else max(signs, order)
    note = f"{say.number(100 * fit.p, '.1f')} % of random orders of the layers split at least as well."
    note += " At least half of five untrained copies switch there too." * (failed == "twins")
    return Measured.of(
        part,
        Estimate(share, (places,), unclear=unclear, contrary=contrary, nothing="no clear switch"),
        Estimate.of(before),
        Estimate.of(after),
        note=note,
    )


def _two_levels(part: Part) -> turns.Turn | None:
    """Return the split of the layers' mean cosine into two levels; None where a sum is not finite."""
    sums, tokens = part.cosine()
    return turns.fit_over_prompts({"": sums}, tokens, part.units, part.seed) if np.isfinite(sums).all() else None


def second_half_weak(evidence: Evidence) -> Measured:
    """Return the effect of skipping a second-half layer on later tokens, over that of a first-half layer."""
    part, half, least = evidence.parts["future"], (evidence.n_layers + 1) // 2, 1e-12
    effects = layer_effect(part["effect"])[:, :-1]
    finite = np.isfinite(effects).all(1)
    part, effects = part.keep(finite), effects[finite]
    part.require("prompts with tokens after a split point")

    def log_ratio(at: np.ndarray, curves: np.ndarray) -> np.ndarray:
        """Return the log of the second half's mean effect over the first half's, for the layers `at`."""
        if not (at >= half).any() or not (at < half).any():
            return np.full(curves.shape[:-1], np.nan)
        return np.asarray(np.log(np.maximum(curves[..., at >= half].mean(-1) / curves[..., at < half].mean(-1), least)))

    ratio = part.read_curve(lambda c: log_ratio(np.arange(evidence.n_layers - 1), c), effects)
    curve = part.mean(effects).value
    layers = over_layers(lambda at, c: float(log_ratio(at, c)), evidence.n_layers, curve, mean=True)
    draws, layers = (np.exp(one.clip(-30.0, 30.0)) for one in (ratio.draws, layers))
    return Measured.of(part, Estimate(float(np.exp(ratio.value)), (draws,), layers))


def one_layer_robust(evidence: Evidence) -> Measured:
    """Return the first choices kept without the worst inner layer, their mean, and the share below 0.72."""
    part, bound = evidence.parts["one"], 0.72
    part.require()
    kept = part.per_token("top1_kept")
    value, error, repeats, errors = (x[..., 1:-1] for x in (kept.value, kept.error, kept.again, kept.errors))
    inner = Resampled(value, error, repeats, errors, 0.0, 1.0)
    worst = int(inner.value.argmin())
    both = all_above(inner, bound, part.units), some_below(inner, bound, part.units)
    return Measured.of(
        part,
        Estimate(float(inner.value[worst]), (inner.draws[:, worst],), errors=both),
        Estimate.of(part.read(lambda c: c["top1_kept"][:, 1:-1].mean(1), "top1_kept")),
        Estimate(float((inner.value < bound).mean()), ((inner.again < bound).mean(1),)),
        note=f"The worst inner layer is layer {worst + 2}.",
    )


def cosine_weak_proxy(evidence: Evidence) -> Measured:
    """Return the rank correlation of two cosine scores of a layer, over layers, with the loss without that layer."""
    part = evidence.parts["one"]
    part.require()
    loss, order = part.per_token("nll").value, part.order("nll")

    def against_loss(name: str) -> Estimate:
        score = part.read(lambda c: fisher(rank_correlations(c[name], c["nll"])), name, "nll")
        value, own = float(score.value), part.per_token(name).value
        layers = np.tanh(statistics.correlated_layers(value, own, loss, evidence.n_layers))
        ranks = {"loss": order, "cosine": part.order(name)}
        return Estimate(float(np.tanh(value)), (np.tanh(score.draws),), layers, ranks=ranks)

    return Measured.of(part, against_loss("block_influence"), against_loss("update_cosine"))


def even_turns(evidence: Evidence) -> Measured:
    """Return the relative spread and the mean of the angles by which middle layers turn the stream, and the mean angle
    between neighbouring updates, in degrees."""
    part, n = evidence.parts["turns"], evidence.n_layers
    part.require()
    middle, between = slice(n // 4, n - n // 4), slice(n // 4, n - n // 4 - 1)

    def variation(angles: np.ndarray) -> np.ndarray:
        several = angles.shape[-1] > 1  # one layer has none
        return np.asarray(angles.std(-1) / angles.mean(-1)) if several else np.full(angles.shape[:-1], np.nan)

    def mean(angles: np.ndarray) -> np.ndarray:
        return np.asarray(angles.mean(-1))

    def over(measure: str, at: slice, read: Callable[[np.ndarray], np.ndarray]) -> Estimate:
        """Return the number that `read` makes of a measure's curve on the layers `at`."""
        curve = part.per_token(measure).value[at]
        layers = over_layers(lambda _, own: float(read(own)), n, curve, mean=True)
        number = part.read(lambda curves: read(curves[measure][:, at]), measure)
        return Estimate.of(number, layers=np.maximum(layers, 0.0))  # no such number is negative

    return Measured.of(
        part,
        over("stream_angle", middle, variation),
        over("stream_angle", middle, mean),
        over("update_angle", between, mean),
        note=f"The middle: {say.stretch(middle.start, middle.stop)}.",
    )


def usefulness(evidence: Evidence) -> Measured:
    """Return the share of layers that no linear map can replace, and its cost's rank correlation with depth."""
    part, limit = evidence.parts["replacement"], 1 + RAISED
    part.require()
    loss, whole_loss = part["loss"], part["whole"]  # costs are shares of the whole model's loss
    cost, forms = part.mean(loss, whole_loss[:, None]), part.units.forms or part.units.n  # an unknown form is one more
    depths = np.arange(len(cost.value), dtype=float)
    broken = ~np.isfinite(cost.value)  # the model is broken without the layer, which is then needed
    needed = broken | (cost.value > limit)
    value, error = np.where(broken, np.finfo(float).max, cost.value), np.where(broken, 0.0, cost.error)
    finite = replace(cost, value=value, error=error)

    def falls(costs: np.ndarray) -> np.ndarray:
        return fisher(rank_correlations(costs, np.broadcast_to(depths, costs.shape)))

    falling = part.read_curve(falls, loss, whole_loss)
    layers = over_layers(
        lambda _, *own: float(fisher(rank_correlations(*(c[None] for c in own)))[0]),
        evidence.n_layers,
        cost.value,
        depths,
    )
    return Measured.of(
        part,
        Estimate(
            float(needed.mean()),
            (part.steps(lambda c: np.asarray((~(c <= limit)).mean(1)), loss, whole_loss),),
            errors=(some_below(finite, limit, part.units), all_above(finite, limit, part.units)),
            forms=forms,
        ),
        Estimate(
            float(np.tanh(falling.value)),
            (np.tanh(falling.draws),),
            np.tanh(layers),
            ranks={"cost": statistics.rank_order(loss, whole_loss, part.units, part.seed)},
            forms=forms,
            why="" if needed.any() else "no layer is needed by this measure",
        ),
        note=f"{needed.sum()} of {len(needed)} layers raise the loss by more than 10 % where a map replaces them.",
    )


def deep_skips_late(evidence: Evidence) -> Measured:
    """Return the middle of the stretch with the smallest angle, as a share of the depth, and its loss minus the median
    stretch's: by the last token, then by all tokens without sinks."""
    part, n = evidence.parts["stretch"], evidence.n_layers
    part.require()
    loss, added = part.per_token("nll"), part.mean(*part.added_loss())
    length = n - len(loss.value) + 1

    def place(curves: np.ndarray) -> np.ndarray:
        """Return the middle of the stretch with the smallest angle, as a share of the depth."""
        return np.where(np.isfinite(curves).all(1), (curves.argmin(1) + length / 2) / n, np.nan)

    def chosen(sums: np.ndarray, tokens: np.ndarray) -> tuple[int | None, Estimate, Estimate]:
        """Return the start of the stretch with the smallest angle (None: undefined), its middle, and what it costs."""
        curve = sums.sum(0) / tokens.sum()
        if not np.isfinite(curve).all():
            return None, *(Estimate.undefined("an angle is undefined"),) * 2
        start = int(curve.argmin())
        cost = part.read(lambda c: c["nll"][:, start] - np.median(c["nll"], 1), "nll")
        others = part.mean(sums, tokens).again.argmin(1)  # a resample may choose another one
        of_others = loss.again[np.arange(len(others)), others] - np.median(loss.again, 1)
        where = Estimate(float(place(curve[None])[0]), (part.steps(place, sums, tokens),))
        return start, where, Estimate.of(cost, of_others)

    first, *last_token = chosen(part["angular_distance_last"], np.ones(len(part)))
    _, *without_sinks = chosen(*part.sums("angular_distance_no_sinks"))
    cheapest = int(np.nanargmin(added.value))
    least = f"the loss is least without {say.stretch(cheapest, cheapest + length)}"
    return Measured.of(
        part,
        *last_token,
        *without_sinks,
        note="" if first is None else f"The angle chooses {say.stretch(first, first + length)}; {least}.",
    )
