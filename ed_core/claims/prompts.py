"""Claims about prompts and models: size, difficulty, and right answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .. import statistics
from ..depth.mean_depth import MEAN_DEPTH
from ..errors import ClaimRefused
from ..probes.base import depth_score, layer_effect
from ..statistics import over_layers
from .claim import Claim
from .evidence import Evidence, Line, Measured, Part, as_curve, by_level, enough, fisher, line, slope_of
from .judging import Estimate, Quantity
from .record import Curve

NO_LIMIT = math.inf
MEAN = {"kl": "mean depth by KL", "overlap": "mean depth by overlap"}

# ---------------------------------------------------------------- static-ratio


def against_size(evidence: Evidence) -> Measured:
    models = sorted((m for m in evidence.family if m.parameters), key=lambda m: m.parameters or 0)
    if len({m.parameters for m in models}) < 3:
        raise ClaimRefused(f"It needs three models of different known sizes, and there are {len(models)}.")
    shared = set.intersection(*(set(m.lens.index.tolist()) for m in models))
    parts = [m.lens.keep(np.isin(m.lens.index, list(shared))) for m in models]
    enough(parts[0], "prompts that all models share")
    x = np.log10([float(m.parameters or 1) for m in models])
    weights = (x - x.mean()) / ((x - x.mean()) @ (x - x.mean()))
    estimates, ratios = {}, {}
    for rule, name in SLOPES.items():

        def of_models(curves: dict[str, np.ndarray], rule: str = rule) -> np.ndarray:
            return np.stack([MEAN_DEPTH[rule](curves[m.name]) / m.n_layers for m in models], -1)

        sums = {m.name: p[f"{rule}.sum"] for m, p in zip(models, parts)}
        tokens = {m.name: p["n_tokens"] for m, p in zip(models, parts)}
        ratios[rule] = statistics.read_off(of_models, sums, tokens, parts[0].units, evidence.seed)

        def slope_of_models(curves: dict[str, np.ndarray], of: Callable[..., np.ndarray] = of_models) -> np.ndarray:
            return np.asarray(of(curves) @ weights)

        slope = statistics.read_off(slope_of_models, sums, tokens, parts[0].units, evidence.seed)
        of_units = statistics.about(float(slope.value), float(slope.error), parts[0].units.n - 1)
        estimates[name] = Estimate(float(slope.value), (slope.draws, of_units))  # few forms: both must agree
    drawn = Curve.of("parameters", f"{MEAN['kl']} / L", ratios["kl"], x.tolist(), [m.name for m in models])
    return Measured(estimates, len(parts[0]), drawn, parts[0].units.words, f"These are {len(models)} models.")


SLOPES = {rule: f"slope of {name} / L" for rule, name in MEAN.items()}
STATIC_RATIO = Claim(
    "static-ratio",
    "Mean depth / L changes by less than 0.1 per tenfold increase in size",
    "Hu et al. 2025 (2512.14064)",
    "slope of mean depth / L on log10(parameters) by least squares, by KL and by overlap",
    "At least three models of one family (--also), up to about 50 prompts that all share. The paper takes Qwen 2.5 of "
    "1.5B to 32B.",
    tuple(
        Quantity(name, "per tenfold parameters", (-0.1, 0.1), "about the same ratio ED / L", 3, True)
        for name in SLOPES.values()
    ),
    ("logit_lens",),
    against_size,
    models=3,
    twin=False,
)

# ---------------------------------------------------------------- no-harder-deeper, adaptive


def harder(evidence: Evidence) -> Measured:
    names, n, seed = evidence.level_names, float(evidence.n_layers), evidence.seed
    skipped, lens = (by_level(evidence.parts[part], names) for part in ("future", "logit_lens"))
    lines = {SCORE: line([np.asarray(depth_score(layer_effect(p["effect"]))) for p in skipped], skipped, seed)}
    for rule, name in HARDER.items():
        depths = [MEAN_DEPTH[rule](part[f"{rule}.sum"] / part["n_tokens"][:, None]) for part in lens]
        lost = sum(int((~np.isfinite(own)).sum()) for own in depths)
        lines[name] = f"{lost} prompts have no {MEAN[rule]}" if lost else line(depths, lens, seed)
    estimates = {name: slope_of(found, n) for name, found in lines.items()}
    drawn = next((found for found in (lines[HARDER["kl"]], lines[SCORE]) if isinstance(found, Line)), None)
    if drawn is None:
        raise ClaimRefused("No level has enough prompts with a depth.")
    unit = MEAN["kl"] if drawn is lines[HARDER["kl"]] else "depth score, layers"
    curve = Curve.of("level", unit, drawn.levels, ticks=names)
    return Measured(estimates, len(evidence.parts["logit_lens"]), curve, drawn.over)


def appears(evidence: Evidence) -> Measured:
    part, names = evidence.parts["answers"], evidence.level_names
    found = by_level(part, names)
    values = [p["stays_depth"] for p in found]
    never = sum(int((~np.isfinite(v)).sum()) for v in values)
    drawn = line(values, found, evidence.seed)
    if isinstance(drawn, str):
        raise ClaimRefused(f"Of {len(part)} prompts {never} have no answer among the best five: {drawn}.")
    curve = Curve.of("level", "first depth with the answer from there on", drawn.levels, ticks=names)
    note = f"{never} prompts without an answer among the best five are left out." if never else ""
    return Measured({APPEARS: slope_of(drawn)}, len(part) - never, curve, drawn.over, note)


SCORE = "slope of the depth score"
HARDER = {rule: f"slope of the {name}" for rule, name in MEAN.items()}
APPEARS = "slope of the depth from which the answer stays among the best five"
NO_HARDER_DEEPER = Claim(
    "no-harder-deeper",
    "Harder prompts go deeper by less than 2 % of the layers a level",
    "Csordás et al. 2025 §5 (2505.13898); Hu et al. 2025 (2512.14064)",
    "slope of a straight line through the levels, over L: of each prompt's depth score Σ s e[s] / Σ e[s] (effects of "
    "skips on later tokens, split at the answer) and of its mean depth by KL and by overlap",
    "Up to about 40 prompts over the levels for skips, 50 for the lens; over groups of a prompt from each level, where "
    "the set has them.",
    tuple(
        Quantity(name, "of the layers a level", (-NO_LIMIT, 0.02), "no increase (no figure given)", 4, True)
        for name in (SCORE, *HARDER.values())
    ),
    ("future", "logit_lens"),
    harder,
    answers=True,
    levels=True,
)
ADAPTIVE = Claim(
    "adaptive",
    "Answers to harder prompts stay among the best five only from a greater depth on",
    "Curth et al. 2026 (2604.12426)",
    "slope over levels of the first depth from which every token of the answer stays among the lens's best five",
    "Up to about 50 prompts over the levels; over groups of a prompt from each level, where the set has them. The "
    "paper takes family relations by hops.",
    (Quantity(APPEARS, "layers a level", (0.0, NO_LIMIT), "some increase, clearer after fine-tuning"),),
    ("answers",),
    appears,
    answers=True,
    levels=True,
)

# ---------------------------------------------------------------- deep-thinking


def thinking(evidence: Evidence) -> Measured:
    writing, answers = evidence.parts["writing"], evidence.parts["answers"]
    _, mine, theirs = np.intersect1d(writing.index, answers.index, return_indices=True)
    part = writing.keep(mine)
    ratio, right = part["mean_ratio"], answers.keep(theirs)["exact_whole"]
    there = np.isfinite(ratio)
    part, ratio, right = part.keep(there), ratio[there], right[there]
    enough(int(right.sum()), "prompts that are answered correctly")
    enough(int((1 - right).sum()), "prompts that are answered wrongly", take="a harder or a larger set")
    if np.ptp(ratio) == 0:
        raise ClaimRefused("The deep-thinking ratio is the same for all prompts, so it has no rank correlation.")
    rank = statistics.ranks(ratio[None])[0] / len(ratio)

    def of_ranks(curves: dict[str, np.ndarray]) -> np.ndarray:
        """Their correlation with 0 or 1, from means, squares and product."""
        r, y, rr, ry = curves[""].T
        with np.errstate(divide="ignore", invalid="ignore"):
            return fisher((ry - r * y) / np.sqrt((rr - r * r) * (y - y * y)))

    made_of = {"": np.stack([rank, right, rank**2, rank * right], 1)}
    found = statistics.read_off(of_ranks, made_of, np.ones(len(part)), part.units, evidence.seed)
    of_units = statistics.about(float(found.value), float(found.error), part.units.n - 1)  # few forms: both must agree
    groups = [part.keep(right == which) for which in (0, 1)]
    each = [statistics.mean(g["mean_ratio"], None, g.units, evidence.seed) for g in groups]
    curve = Curve.of("answer", "deep-thinking ratio", as_curve(each), ticks=("wrong", "right"))
    estimate = Estimate(float(np.tanh(found.value)), (np.tanh(found.draws), np.tanh(of_units)))
    note = f"{len(groups[1])} of {len(part)} prompts are answered correctly."
    return Measured({DEEP_THINKING.quantities[0].name: estimate}, len(part), curve, part.units.words, note)


DEEP_THINKING = Claim(
    "deep-thinking",
    "Answers with a larger share of tokens whose divergence falls late are right more often",
    "Chen et al. 2026 (2602.13517)",
    "Spearman's rank correlation over prompts of the share of written tokens whose divergence first falls to 0.5 only "
    "in the last 15 % of the depth, with whether the answer is exact",
    "Up to about 50 prompts, up to 16 tokens written, always the best one. The paper takes long chains of thought.",
    (
        Quantity(
            "rank correlation of the deep-thinking ratio with a correct answer",
            "",
            (0.0, NO_LIMIT),
            "a positive correlation (no figure given)",
        ),
    ),
    ("writing", "answers"),
    thinking,
    answers=True,
)

# ---------------------------------------------------------------- likelihood-or-generation


def two_measures(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["answers"], evidence.seed
    right = int(part["exact_whole"].sum())
    enough(right, "prompts that the model answers correctly")
    lost = {
        "generated": part["exact_whole"][:, None] - part["exact"],
        "likely": part["loss"] - part["loss_whole"][:, None],
    }

    def apart(at: np.ndarray, generated: np.ndarray, likely: np.ndarray) -> float:
        centres = [at @ c / c.sum() if c.sum() > 0 else np.nan for c in (generated, likely)]
        return float(centres[0] - centres[1])

    found = statistics.read_off(
        lambda c: np.asarray(depth_score(c["generated"]) - depth_score(c["likely"])),
        lost,
        np.ones(len(part)),
        part.units,
        seed,
    )
    if not np.isfinite(found.value):
        raise ClaimRefused("Leaving out layers costs no answers or no likelihood on the whole, so there is no centre.")
    means = [statistics.mean(values, None, part.units, seed) for values in lost.values()]
    layers = over_layers(apart, evidence.n_layers, *(m.value for m in means))
    curve = Curve.of("layer left out", "share of exact answers lost", means[0])
    estimates = {LIKELIHOOD_OR_GENERATION.quantities[0].name: Estimate(float(found.value), (found.draws,), layers)}
    note = f"{right} of {len(part)} prompts are answered correctly."
    return Measured(estimates, len(part), curve, part.units.words, note)


LIKELIHOOD_OR_GENERATION = Claim(
    "likelihood-or-generation",
    "Written answers rest on deeper layers than likelihood does",
    "arXiv 2510.02091",
    "Σ s g[s] / Σ g[s] - Σ s n[s] / Σ n[s]; g[s]: share of exact answers lost without layer s, n[s]: loss added on the "
    "answers' tokens",
    "Up to about 50 prompts, always the best token. The paper measures accuracy on benchmarks.",
    (
        Quantity(
            "centre of loss by layer, generation minus likelihood",
            "layers",
            (0.0, NO_LIMIT),
            "deep layers matter more for generation (no figure given)",
        ),
    ),
    ("answers",),
    two_measures,
    answers=True,
)

# ---------------------------------------------------------------- reasoning-breaks


def reasoning(evidence: Evidence) -> Measured:
    estimates: dict[str, Estimate] = {}
    drawn, pairs = None, None
    for quantity, (short, long) in zip(REASONING.quantities, (("answers", "worked"), ("two", "worked_two"))):
        one, steps = _answered(evidence.parts[short], evidence.parts[long])
        if drawn is None:
            enough(len(one), "pairs that the whole model answers correctly both in one step and worked out")
        if not len(one) or not one.units.enough:
            estimates[quantity.name] = Estimate.undefined(f"only {len(one)} pairs are answered correctly")
            continue
        lost = (1 - steps["exact"]) - (1 - one["exact"])
        curve = statistics.mean(lost, None, one.units, evidence.seed)
        mean = statistics.mean(lost.mean(1), None, one.units, evidence.seed)
        layers = over_layers(lambda _, c: float(c.mean()), evidence.n_layers, curve.value, mean=True)
        estimates[quantity.name] = Estimate(float(mean.value), (mean.draws,), layers)
        if drawn is None:
            drawn, pairs = Curve.of("layer left out", "exact answers lost, worked out less in one step", curve), one
    assert drawn is not None and pairs is not None  # enough pairs in one step were required
    return Measured(estimates, len(pairs), drawn, pairs.units.called("pair"))


def _answered(one: Part, worked: Part) -> tuple[Part, Part]:
    """The pairs that have more to write where they are worked out, and that the whole model answers both: the prompts
    in one step, and those worked out in the same order."""
    marks = [{(p.levels[i], p.pairs[i]): i for i in range(len(p))} for p in (one, worked)]
    shared = [mark for mark in marks[0] if mark in marks[1] and mark[1]]
    one, worked = (p.keep(np.array([m[mark] for mark in shared], int)) for p, m in zip((one, worked), marks))
    longer = worked["answer_length"] > one["answer_length"]
    right = longer & (one["exact_whole"] == 1) & (worked["exact_whole"] == 1)
    return one.keep(right), worked.keep(right)


REASONING = Claim(
    "reasoning-breaks",
    "Without a layer, long reasoning breaks first",
    "arXiv 2510.22228",
    "mean over layers of the share of exact answers lost without the layer (and without two in a row), of worked-out "
    "prompts less that of prompts in one step",
    "Up to about 40 pairs of a prompt and its worked-out counterpart (the set <set>_worked) that the whole model "
    "answers both. The paper tests long chains of thought.",
    (
        Quantity(
            "answers lost without one layer, worked out minus one step",
            "",
            (0.0, NO_LIMIT),
            "long reasoning breaks first",
        ),
        Quantity("the same without two layers in a row", "", (0.0, NO_LIMIT), "long reasoning breaks first"),
    ),
    ("answers", "two", "worked", "worked_two"),
    reasoning,
    answers=True,
    levels=True,
    worked=True,
)
