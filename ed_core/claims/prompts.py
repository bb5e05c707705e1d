"""Claims about prompts, tokens and models: size, difficulty, right answers, where an answer is decided."""

from __future__ import annotations

import numpy as np

from .. import statistics
from ..depth import kinds
from ..depth.mean_depth import MEAN_DEPTH
from ..errors import ClaimRefused
from ..probes.base import depth_score, layer_effect
from ..statistics import over_layers
from ..studies.part import Part, require
from .claim import Evidence, Measured, fisher, line
from .judging import Estimate

MEAN = {"kl": "average depth by KL", "overlap": "average depth by overlap"}


def static_ratio(evidence: Evidence) -> Measured:
    """Return the slope of average depth / L per tenfold parameters over a family's models, by KL and by overlap."""
    models = sorted((m for m in evidence.family if m.parameters), key=lambda m: m.parameters or 0)
    if len({m.parameters for m in models}) < 3:
        raise ClaimRefused(f"It needs three models of different known sizes, and there are {len(models)}.")
    shared = set.intersection(*(set(m.lens.index.tolist()) for m in models))
    parts = [m.lens.keep(np.isin(m.lens.index, list(shared))) for m in models]
    first, tokens = parts[0], {m.name: p["n_tokens"] for m, p in zip(models, parts)}
    first.require("prompts that all models share")
    x = np.log10([float(m.parameters or 1) for m in models])
    weights = (x - x.mean()) / ((x - x.mean()) @ (x - x.mean()))
    estimates = []
    for rule in MEAN:

        def slope(curves: dict[str, np.ndarray], rule: str = rule) -> np.ndarray:
            ratios = [MEAN_DEPTH[rule](curves[m.name]) / m.n_layers for m in models]
            return np.asarray(np.stack(ratios, -1) @ weights)

        sums = {m.name: p[f"{rule}.sum"] for m, p in zip(models, parts)}
        reading = statistics.read_off(slope, sums, tokens, first.units, first.seed)
        of_units = statistics.about(float(reading.value), float(reading.error), first.units.n - 1)
        estimates.append(Estimate.of(reading, of_units))  # few forms: both must agree
    return Measured.of(first, *estimates, note=f"These are {len(models)} models.")


def no_harder_deeper(evidence: Evidence) -> Measured:
    """Return the slope over levels, in shares of the layers, of the depth score and of mean depth by KL and overlap."""
    names, n = evidence.level_names, float(evidence.n_layers)
    skipped, lens = (evidence.parts[part].by_level(names) for part in ("future", "logit_lens"))
    lines = [line([np.asarray(depth_score(layer_effect(p["effect"]))) for p in skipped], skipped, n)]
    for rule, name in MEAN.items():
        depths = [MEAN_DEPTH[rule](part[f"{rule}.sum"] / part["n_tokens"][:, None]) for part in lens]
        lost = sum(int((~np.isfinite(own)).sum()) for own in depths)
        lines.append((Estimate.undefined(f"{lost} prompts have no {name}"), "") if lost else line(depths, lens, n))
    over = [words for _, words in lines if words]
    if not over:
        raise ClaimRefused("No level has enough prompts with a depth.")
    return Measured(tuple(slope for slope, _ in lines), len(evidence.parts["logit_lens"]), over[-1])


def adaptive(evidence: Evidence) -> Measured:
    """Return the slope over levels, in layers, of the depth from which the answer stays among the lens's best five."""
    part, names = evidence.parts["answers"], evidence.level_names
    parts = part.by_level(names)
    values = [p["stays_depth"] for p in parts]
    never = sum(int((~np.isfinite(v)).sum()) for v in values)
    slope, over = line(values, parts)
    if not over:
        raise ClaimRefused(f"Of {len(part)} prompts {never} have no answer among the best five: {slope.why}.")
    note = f"{never} prompts without an answer among the best five are left out." if never else ""
    return Measured((slope,), len(part) - never, over, note)


def deep_thinking(evidence: Evidence) -> Measured:
    """Return the rank correlation over prompts of the deep-thinking ratio with whether the answer is right."""
    writing, answers = evidence.parts["writing"], evidence.parts["answers"]
    _, mine, theirs = np.intersect1d(writing.index, answers.index, return_indices=True)
    part = writing.keep(mine)
    ratio, right = part["mean_ratio"], answers.keep(theirs)["exact_whole"]
    finite = np.isfinite(ratio)
    part, ratio, right = part.keep(finite), ratio[finite], right[finite]
    require(int(right.sum()), "prompts that are answered correctly")
    require(int((1 - right).sum()), "prompts that are answered wrongly", "a harder or a larger set")
    if np.ptp(ratio) == 0:
        raise ClaimRefused("The deep-thinking ratio is the same for all prompts, so it has no rank correlation.")
    rank = statistics.ranks(ratio[None])[0] / len(ratio)

    def of_ranks(curves: np.ndarray) -> np.ndarray:
        """Return the correlation of ranks with 0 or 1, on Fisher's scale, from means, squares and product."""
        r, y, rr, ry = curves.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return fisher((ry - r * y) / np.sqrt((rr - r * r) * (y - y * y)))

    score = part.read_curve(of_ranks, np.stack([rank, right, rank**2, rank * right], 1))
    of_units = statistics.about(float(score.value), float(score.error), part.units.n - 1)  # few forms: both must agree
    estimate = Estimate(float(np.tanh(score.value)), (np.tanh(score.draws), np.tanh(of_units)))
    return Measured.of(part, estimate, note=f"{right.sum():.0f} of {len(part)} prompts are answered correctly.")


def likelihood_or_generation(evidence: Evidence) -> Measured:
    """Return by how many layers the centre of generation is deeper than that of likelihood. A centre is the mean
    layer, weighted by what leaving out each layer costs: correct answers for generation, loss on the answers for
    likelihood."""
    part = evidence.parts["answers"]
    right = int(part["exact_whole"].sum())
    require(right, "prompts that the model answers correctly")
    generated = part["exact_whole"][:, None] - part["exact"]
    likely = part["loss"] - part["loss_whole"][:, None]

    def apart(at: np.ndarray, *curves: np.ndarray) -> float:
        """Return by how many layers the first curve's centre is deeper than the second's."""
        centres = [at @ c / c.sum() if c.sum() > 0 else np.nan for c in curves]
        return float(centres[0] - centres[1])

    centre = statistics.read_off(
        lambda c: np.asarray(depth_score(c["generated"]) - depth_score(c["likely"])),
        {"generated": generated, "likely": likely},
        np.ones(len(part)),
        part.units,
        part.seed,
    )
    if not np.isfinite(centre.value):
        raise ClaimRefused("Leaving out layers costs no answers or no likelihood on the whole, so there is no centre.")
    layers = over_layers(apart, evidence.n_layers, part.mean(generated).value, part.mean(likely).value)
    note = f"{right} of {len(part)} prompts are answered correctly."
    return Measured.of(part, Estimate.of(centre, layers=layers), note=note)


def reasoning_breaks(evidence: Evidence) -> Measured:
    """Return the exact answers that one and two left-out layers cost, worked out minus one step."""
    parts = evidence.parts
    pairs, worked = _answered(parts["answers"], parts["worked"])
    pairs.require("pairs that the whole model answers correctly both in one step and worked out")
    one = _lost(evidence.n_layers, pairs, worked)
    two, worked_two = _answered(parts["two"], parts["worked_two"])
    few = Estimate.undefined(f"only {len(two)} pairs are answered correctly")
    estimate = _lost(evidence.n_layers, two, worked_two) if len(two) and two.units.enough else few
    return Measured((one, estimate), len(pairs), pairs.units.called("pair"))


def decided_before_read(evidence: Evidence) -> Measured:
    """Return the mean over prompts of the commitment depth minus the lens's settle depth, as a share of the depth."""
    part = evidence.parts["patching"]
    apart = (part["commitment"] - part["settle_depth"]) / evidence.n_layers
    finite = np.isfinite(apart)
    kept = part.keep(finite)
    kept.require("prompts into which another answer can be carried")
    lost = int((~finite).sum())
    note = f"{lost} prompts into which no answer could be carried are left out." if lost else ""
    return Measured.of(kept, Estimate.of(kept.mean(apart[finite])), note=note)


def kinds_explain_depth(evidence: Evidence) -> Measured:
    """Return the share of the variance of prompts' mean settle depth that their mix of kinds of tokens explains."""
    part = evidence.parts["logit_lens"]
    part.require()
    depth, expected = kinds.by_prompt(part["kinds"])

    def share(means: np.ndarray) -> np.ndarray:
        """Return the share of variance explained, from means and mean squares; NaN without variance."""
        depths, squares, left, left_squares = np.moveaxis(means, -1, 0)
        variance = squares - depths**2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(variance > 0, 1 - (left_squares - left**2) / variance, np.nan))

    depth, left = depth - depth.mean(), depth - expected
    return Measured.of(
        part, Estimate.of(part.read_curve(share, np.stack([depth, depth**2, left, left**2], 1)).bounded(high=1.0))
    )


def headroom(evidence: Evidence) -> Measured:
    """Return the mean over tokens of the settle depth minus the first depth with the output's best token, over L."""
    part = evidence.parts["logit_lens"]
    part.require()
    sums = kinds.over_kinds(part["kinds"])
    spared = (sums[:, kinds.SETTLE] - sums[:, kinds.ORACLE]) / evidence.n_layers
    return Measured.of(part, Estimate.of(part.mean(spared, sums[:, kinds.TOKENS])))


def _lost(n_layers: int, pairs: Part, worked: Part) -> Estimate:
    """Return the mean over layers of the share of exact answers lost, worked out minus one step."""
    lost = (1 - worked["exact"]) - (1 - pairs["exact"])
    layers = over_layers(lambda _, c: float(c.mean()), n_layers, pairs.mean(lost).value, mean=True)
    return Estimate.of(pairs.mean(lost.mean(1)), layers=layers)


def _answered(one: Part, worked: Part) -> tuple[Part, Part]:
    """Return the pairs that the whole model answers both in one step and worked out, with a longer worked-out answer:
    the one-step prompts, and the worked-out ones in the same order."""
    marks = [{(p.levels[i], p.pairs[i]): i for i in range(len(p))} for p in (one, worked)]
    shared = [mark for mark in marks[0] if mark in marks[1] and mark[1]]
    one, worked = (p.keep(np.array([m[mark] for mark in shared], int)) for p, m in zip((one, worked), marks))
    longer = worked["answer_length"] > one["answer_length"]
    right = longer & (one["exact_whole"] == 1) & (worked["exact_whole"] == 1)
    return one.keep(right), worked.keep(right)
