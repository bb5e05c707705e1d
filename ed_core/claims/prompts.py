"""Claims about prompts and models: size, difficulty, and right answers."""

from __future__ import annotations

import math

import numpy as np

from .. import statistics
from ..depth.mean_depth import MEAN_DEPTH
from ..errors import ClaimRefused
from ..probes.base import depth_score, layer_effect
from ..statistics import over_layers
from ..studies.part import Part, require
from .claim import claim
from .evidence import Evidence, Measured, fisher, line
from .judging import Estimate, Quantity

INF = math.inf
MEAN = {"kl": "mean depth by KL", "overlap": "mean depth by overlap"}


@claim(
    "static-ratio",
    "Mean depth / L changes by less than 0.1 per tenfold increase in size",
    source="Hu et al. 2025 (2512.14064)",
    formula="slope of mean depth / L on log10(parameters) by least squares, by KL and by overlap",
    protocol="At least three models of one family (--also), up to about 50 prompts that all share. The paper takes "
    "Qwen 2.5 of 1.5B to 32B.",
    quantities=tuple(
        Quantity(
            f"slope of {name} / L, per tenfold size", (-0.1, 0.1), "about the same ratio ED / L", digits=3, chosen=True
        )
        for name in MEAN.values()
    ),
    parts=("logit_lens",),
    models=3,
    twin=False,
)
def static_ratio(evidence: Evidence) -> Measured:
    """Return the slope of mean depth / L per tenfold parameters over a family's models, by KL and by overlap."""
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
            """Return the slope of mean depth / L on log10(parameters), `[resample]`."""
            ratios = [MEAN_DEPTH[rule](curves[m.name]) / m.n_layers for m in models]
            return np.asarray(np.stack(ratios, -1) @ weights)

        sums = {m.name: p[f"{rule}.sum"] for m, p in zip(models, parts)}
        reading = statistics.read_off(slope, sums, tokens, first.units, first.seed)
        of_units = statistics.about(float(reading.value), float(reading.error), first.units.n - 1)
        estimates.append(Estimate.of(reading, of_units))  # few forms: both must agree
    return Measured.of(first, *estimates, note=f"These are {len(models)} models.")


@claim(
    "no-harder-deeper",
    "Harder prompts go deeper by less than 2 % of the layers a level",
    source="Csordás et al. 2025 §5 (2505.13898); Hu et al. 2025 (2512.14064)",
    formula="slope of a straight line through the levels, over L: of each prompt's depth score Σ s e[s] / Σ e[s] "
    "(effects of skips on later tokens, split at the answer) and of its mean depth by KL and by overlap",
    protocol="Up to about 40 prompts over the levels for skips, 50 for the lens; over groups of a prompt from each "
    "level, where the set has them.",
    quantities=tuple(
        Quantity(f"slope of the {name}, of the layers a level", (-INF, 0.02), "no increase", digits=4, chosen=True)
        for name in ("depth score", *MEAN.values())
    ),
    parts=("future", "logit_lens"),
    answers=True,
    levels=True,
)
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


@claim(
    "adaptive",
    "Answers to harder prompts stay among the best five only from a greater depth on",
    source="Curth et al. 2026 (2604.12426)",
    formula="slope over levels of the first depth from which every token of the answer stays among the lens's best "
    "five",
    protocol="Up to about 50 prompts over the levels; over groups of a prompt from each level, where the set has them. "
    "The paper takes family relations by hops.",
    quantities=(
        Quantity("slope of the depth from which the answer stays, layers a level", (0.0, INF), "some increase"),
    ),
    parts=("answers",),
    answers=True,
    levels=True,
)
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


@claim(
    "deep-thinking",
    "Answers with a larger share of tokens whose divergence falls late are right more often",
    source="Chen et al. 2026 (2602.13517)",
    formula="Spearman's rank correlation over prompts of the share of written tokens whose divergence first falls to "
    "0.5 only in the last 15 % of the depth, with whether the answer is exact",
    protocol="Up to about 50 prompts, up to 16 tokens written, always the best one. The paper takes long chains of "
    "thought.",
    quantities=(
        Quantity(
            "rank correlation of the deep-thinking ratio with a correct answer", (0.0, INF), "a positive correlation"
        ),
    ),
    parts=("writing", "answers"),
    answers=True,
)
def deep_thinking(evidence: Evidence) -> Measured:
    """Return the rank correlation over prompts of the share of written tokens with a divergence that falls late, with
    whether the answer is correct."""
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


@claim(
    "likelihood-or-generation",
    "Written answers rest on deeper layers than likelihood does",
    source="arXiv 2510.02091",
    formula="Σ s g[s] / Σ g[s] - Σ s n[s] / Σ n[s]; g[s]: share of exact answers lost without layer s, n[s]: loss "
    "added on the answers' tokens",
    protocol="Up to about 50 prompts, always the best token. The paper measures accuracy on benchmarks.",
    quantities=(
        Quantity(
            "centre of loss, generation minus likelihood, layers", (0.0, INF), "deep layers matter more for generation"
        ),
    ),
    parts=("answers",),
    answers=True,
)
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


@claim(
    "reasoning-breaks",
    "Without a layer, long reasoning breaks first",
    source="arXiv 2510.22228",
    formula="mean over layers of the share of exact answers lost without the layer (and without two in a row), of "
    "worked-out prompts less that of prompts in one step",
    protocol="Up to about 40 pairs of a prompt and its worked-out counterpart (the set <set>_worked) that the whole "
    "model answers both. The paper tests long chains of thought.",
    quantities=tuple(
        Quantity(name, (0.0, INF), "long reasoning breaks first")
        for name in (
            "answers lost without one layer, worked out minus one step",
            "the same without two layers in a row",
        )
    ),
    parts=("answers", "two", "worked", "worked_two"),
    answers=True,
    levels=True,
    worked=True,
)
def reasoning_breaks(evidence: Evidence) -> Measured:
    """Return the share of exact answers that a left-out layer costs, worked-out prompts minus one-step prompts, and the
    same for two layers in a row."""
    parts = evidence.parts
    pairs, worked = _answered(parts["answers"], parts["worked"])
    pairs.require("pairs that the whole model answers correctly both in one step and worked out")
    one = _lost(evidence.n_layers, pairs, worked)
    two, worked_two = _answered(parts["two"], parts["worked_two"])
    few = Estimate.undefined(f"only {len(two)} pairs are answered correctly")
    estimate = _lost(evidence.n_layers, two, worked_two) if len(two) and two.units.enough else few
    return Measured((one, estimate), len(pairs), pairs.units.called("pair"))


def _lost(n_layers: int, pairs: Part, worked: Part) -> Estimate:
    """Return the mean over layers of the share of exact answers lost, worked out minus one step, for pairs in one
    order."""
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
