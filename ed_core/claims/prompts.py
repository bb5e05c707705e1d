"""What depth has to do with prompts: whether harder ones use more of it, and what it has to do with right answers."""

from __future__ import annotations

import numpy as np

from .. import statistics
from ..depth.continuous import MEAN_DEPTH
from ..depth.wording import percent
from ..errors import ClaimRefused
from ..probes.base import depth_score
from ..studies import difficulty
from .claim import (
    Claim,
    Estimate,
    Evidence,
    Line,
    Measured,
    Part,
    Quantity,
    as_curve,
    by_draws,
    by_level,
    enough,
    fisher,
    line,
    over_layers,
    slope_estimate,
)
from .record import Curve

SCORE = "slope of the depth score"
SETTLED = {name: f"slope of the {depth}" for name, depth in difficulty.DEPTHS.items()}
APPEARS = "slope of the depth from which the answer stays among the best five"
MARGIN = 0.02  # of the depth, a level


def harder(evidence: Evidence) -> Measured:
    names, layers, seed = evidence.level_names, evidence.n_layers, evidence.seed
    skipped, lens = (by_level(evidence.parts[part], names) for part in ("future", "logit_lens"))
    scores = [np.asarray(difficulty.score(part["effect"], "effect"), float) for part in skipped]
    none = sum(int((~np.isfinite(own)).sum()) for own in scores)
    lines = {SCORE: line(scores, skipped, seed)}
    for criterion, name in SETTLED.items():
        depths = [MEAN_DEPTH[criterion](part[f"{criterion}.sum"] / part["n_tokens"][:, None]) for part in lens]
        lost = sum(int((~np.isfinite(own)).sum()) for own in depths)
        lines[name] = f"prompts without a {difficulty.DEPTHS[criterion]}: {lost}" if lost else line(depths, lens, seed)
    estimates = {name: slope_estimate(found, float(layers)) for name, found in lines.items()}
    drawn = next((found for found in (lines[SETTLED["kl"]], lines[SCORE]) if isinstance(found, Line)), None)
    if drawn is None:
        raise ClaimRefused("No level has enough prompts with a depth.")
    unit = "mean depth by KL" if drawn is lines[SETTLED["kl"]] else "depth score, layers"
    beside = f"Prompts without an effect on later tokens, and so without a depth score: {none}." if none else ""
    over, of_score = drawn.over, lines[SCORE]
    if isinstance(of_score, Line) and of_score.over != over:  # skips are measured on fewer prompts
        over = f"{over} (that of the depth score over {of_score.over})"
    return Measured(estimates, len(evidence.parts["logit_lens"]), _curve(drawn, unit, names), beside, over)


def appears(evidence: Evidence) -> Measured:
    part, names = evidence.parts["answers"], evidence.level_names
    found = by_level(part, names)
    values = [p["stays_depth"] for p in found]
    never = int(sum((~np.isfinite(v)).sum() for v in values))
    if never == len(part):
        raise ClaimRefused("No prompt's answer stays among the best five from any depth: the model does not know them.")
    drawn = line(values, found, evidence.seed)
    beside = f"Prompts whose answer is not among the best five at the output are left out: {never}." if never else ""
    if isinstance(drawn, str):
        means = tuple(float(np.nanmean(v)) if np.isfinite(v).any() else np.nan for v in values)
        nothing = (np.nan,) * len(means)
        x = tuple(map(float, range(len(means))))
        curve = Curve(x_title="level", unit="depth", x=x, values=means, low=nothing, high=nothing, ticks=tuple(names))
        estimates = {APPEARS: Estimate.undefined_because(drawn)}
        return Measured(estimates, len(part) - never, curve, beside, part.units.words)
    estimates = {APPEARS: slope_estimate(drawn)}
    curve = _curve(drawn, "first depth with the answer for good", names)
    return Measured(estimates, len(part) - never, curve, beside, drawn.over)


def _curve(drawn: Line, unit: str, names: tuple[str, ...]) -> Curve:
    return Curve.of("level", unit, drawn.levels, ticks=names)


NO_HARDER_DEEPER = Claim(
    "no-harder-deeper",
    "Harder prompts go deeper by less than 2 % of the layers a level",
    "the line through the levels' depths rises by less than 2 % of the layers a level, or not at all",
    "Csordás et al. 2025 §5 (2505.13898); Hu et al. 2025 (2512.14064)",
    "slope of a straight line through the levels, over L: of each prompt's depth score Σ s e[s] / Σ e[s] (effects of "
    "skips on later tokens, split at the answer) and of its mean depth by KL and by overlap",
    "Up to about 40 prompts over the levels for skips, 50 for the lens; over groups of a prompt from each level, where "
    "the set has them (in bundled sets the i-th prompt of every level: the form is the same, nothing else). "
    "The papers take 20 prompts a level of MQuAKE and MATH, and HellaSwag, GSM8K, AIME24.",
    "a rise of more than 2 % of the depth a level, by any of the three",
    tuple(
        Quantity(
            name,
            "of the depth, a level",
            (-np.inf, MARGIN),
            "below 0.02",
            "no increase of effective depth (no figure given)",
            4,
            True,
        )
        for name in (SCORE, *SETTLED.values())
    ),
    ("future", "logit_lens"),
    harder,
    answers=True,
    levels=True,
)
ADAPTIVE = Claim(
    "adaptive",
    "Answers to harder prompts stay among the best five only from a greater depth on",
    "the answer to a harder prompt stays among the best five only from a greater depth on",
    "Curth et al. 2026 (2604.12426)",
    "slope over levels of the first depth from which every token of the answer stays among the lens's best five",
    "Up to about 50 prompts over the levels; over groups of a prompt from each level, where the set has them "
    "(in bundled sets the i-th prompt of every level: the form is the same, nothing else). "
    "Prompts whose answer is not among the best five at the output are left out. The paper takes family relations by "
    "hops.",
    "a fall from level to level",
    (Quantity(APPEARS, "layers a level", (0.0, np.inf), "above 0", "some increase, clearer after fine-tuning"),),
    ("answers",),
    appears,
    answers=True,
    levels=True,
)


CORRELATION = "rank correlation of the deep-thinking ratio with a correct answer"
DEEPER = "centre of loss by layer, generation minus likelihood"
FURTHER = {1: "answers lost without one layer, worked out minus one step", 2: "the same without two layers in a row"}


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

    def correlation(curves: dict[str, np.ndarray]) -> np.ndarray:
        """Of ranks with 0 or 1, from their means, squares and product."""
        r, y, rr, ry = curves[""].T
        with np.errstate(divide="ignore", invalid="ignore"):
            return fisher((ry - r * y) / np.sqrt((rr - r * r) * (y - y * y)))

    made_of = {"": np.stack([rank, right, rank**2, rank * right], 1)}
    found = statistics.read_off(correlation, made_of, np.ones(len(part)), part.units, evidence.seed)
    groups = [part.keep(right == which) for which in (0, 1)]
    each = [statistics.mean(g["mean_ratio"], None, g.units, evidence.seed) for g in groups]
    curve = Curve.of("answer", "deep-thinking ratio", as_curve(each), ticks=("wrong", "right"))
    beside = f"{len(groups[1])} of {len(part)} prompts are answered correctly."
    of_units = statistics.about(float(found.value), float(found.error), part.units.n - 1)  # few forms: both must agree
    draws = np.tanh(found.draws)
    estimate = Estimate.of(np.tanh(found.value), draws, judge=by_draws(draws, np.tanh(of_units)))
    return Measured({CORRELATION: estimate}, len(part), curve, beside, part.units.words)


def two_stories(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["answers"], evidence.seed
    right = int(part["exact_whole"].sum())
    enough(right, "prompts that the model answers correctly")
    lost = {
        "generated": part["exact_whole"][:, None] - part["exact"],
        "likely": part["loss"] - part["loss_whole"][:, None],
    }
    ones = np.ones(len(part))

    def apart(curves: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(depth_score(curves["generated"]) - depth_score(curves["likely"]))

    def of_layers(at: np.ndarray, generated: np.ndarray, likely: np.ndarray) -> float:
        centres = [at @ c / c.sum() if c.sum() > 0 else np.nan for c in (generated, likely)]
        return centres[0] - centres[1]

    means = {name: statistics.mean(values, None, part.units, seed) for name, values in lost.items()}
    found = statistics.read_off(apart, lost, ones, part.units, seed)
    if not np.isfinite(found.value):
        which = "answer" if not means["generated"].value.sum() > 0 else "likelihood"
        raise ClaimRefused(
            f"On the whole no {which} is lost by leaving layers out, so what is lost has no centre; take other prompts."
        )
    layers = over_layers(of_layers, *(m.value for m in means.values()))
    curve = Curve.of("layer left out", "share of exact answers lost", means["generated"])
    beside = f"{right} of {len(part)} prompts are answered correctly."
    return Measured({DEEPER: Estimate.of(found.value, found.draws, layers)}, len(part), curve, beside, part.units.words)


def reasoning(evidence: Evidence) -> Measured:
    """Over pairs of prompts, one answered in one step and one worked out, that the whole model answers both."""
    parts = evidence.parts
    estimates, drawn, pairs, over = {}, None, 0, ""
    for n, (short, long) in {1: ("answers", "worked"), 2: ("two", "worked_two")}.items():
        one, steps, several = _answered(parts[short], parts[long])
        if n == 1:
            enough(len(one), "pairs that the whole model answers correctly both in one step and worked out")
            pairs, over = len(one), one.units.words.replace("prompts", "pairs", 1)
        lost = (1 - steps["exact"]) - (1 - one["exact"])
        if not len(one) or not one.units.enough:
            estimates[FURTHER[n]] = Estimate.undefined_because(f"correctly answered pairs: only {len(one)}")
            continue
        curve = statistics.mean(lost, None, one.units, evidence.seed)
        mean = statistics.mean(lost.mean(1), None, one.units, evidence.seed)
        layers = over_layers(lambda at, c: c.mean(), curve.value)
        estimates[FURTHER[n]] = Estimate.of(mean.value, mean.draws, layers)
        if n == 1:
            kept = [percent(1 - p["exact"].mean()) for p in (steps, one)]
            drawn = Curve.of("layer left out", "exact answers lost, worked out less in one step", curve)
            beside = (
                f"Without one layer, on average over layers, {kept[0]} of the worked-out answers are lost "
                f"and {kept[1]} of those in one step; {several} pairs have an answer of several steps."
            )
    assert drawn is not None  # enough pairs in one step were required
    return Measured(estimates, pairs, drawn, beside, over)


def _answered(one: Part, worked: Part) -> tuple[Part, Part, int]:
    """The pairs of both that have more to write where they are worked out, and that the whole model answers both: the
    prompts in one step, those worked out in the same order, and how many pairs there were to answer."""
    marks = [{(p.levels[i], p.pairs[i]): i for i in range(len(p))} for p in (one, worked)]
    shared = [mark for mark in marks[0] if mark in marks[1] and mark[1]]
    at = [np.array([m[mark] for mark in shared], int) for m in marks]
    one, worked = one.keep(at[0]), worked.keep(at[1])
    longer = worked["answer_length"] > one["answer_length"]
    right = longer & (one["exact_whole"] == 1) & (worked["exact_whole"] == 1)
    return one.keep(right), worked.keep(right), int(longer.sum())


DEEP_THINKING = Claim(
    "deep-thinking",
    "Answers with a larger share of tokens whose divergence falls late are right more often",
    "prompts with a larger share of written tokens whose divergence falls late are answered correctly more often",
    "Chen et al. 2026 (2602.13517)",
    "Spearman's rank correlation over the prompts of one model of the share of written tokens whose divergence first "
    "falls to 0.5 only in the last 15 % of the depth, with whether the answer is exact",
    "Up to about 50 prompts, up to 16 tokens written, always the best one. The paper takes long chains of thought of "
    "reasoning models on AIME, HMMT and GPQA.",
    "a negative correlation",
    (Quantity(CORRELATION, "rank correlation", (0.0, np.inf), "above 0", "a positive correlation (no figure given)"),),
    ("writing", "answers"),
    thinking,
    answers=True,
)
LIKELIHOOD_OR_GENERATION = Claim(
    "likelihood-or-generation",
    "Written answers rest on deeper layers than likelihood does",
    "exact answers rest on deeper layers than likelihood does",
    "arXiv 2510.02091",
    "Σ s g[s] / Σ g[s] - Σ s n[s] / Σ n[s]; g[s] is the share of exact answers lost without layer s, n[s] the loss "
    "added on the answers' tokens, below 0 where leaving the layer out helps",
    "Up to about 50 prompts, always the best token; an answer is exact where the text that is written begins with it. "
    "Intervals over prompts and, by the jackknife, over layers have to agree. The paper measures accuracy on "
    "benchmarks.",
    "the likelihood's centre lying deeper",
    (Quantity(DEEPER, "layers", (0.0, np.inf), "above 0", "deep layers matter more for generation (no figure given)"),),
    ("answers",),
    two_stories,
    answers=True,
)
REASONING_BREAKS = Claim(
    "reasoning-breaks",
    "Without a layer, long reasoning breaks first",
    "leaving out one or two layers loses more of the worked-out answers than of those in one step",
    "arXiv 2510.22228",
    "mean over layers of the share of exact answers lost without the layer (and without two in a row), of worked-out "
    "prompts less that of prompts in one step",
    "Up to about 40 prompts of the set and as many of its counterpart <set>_worked, of the same levels; pairs of one "
    "level and number whose worked-out answer is the longer one, both of which the whole model answers. Intervals "
    "over pairs and, by the jackknife, over layers have to agree. The paper prunes pretrained models and tests long "
    "chains of thought.",
    "answers in one step breaking more often",
    tuple(
        Quantity(name, "share", (0.0, np.inf), "above 0", "long reasoning breaks first") for name in FURTHER.values()
    ),
    ("answers", "two", "worked", "worked_two"),
    reasoning,
    answers=True,
    levels=True,
    worked=True,
)
