"""Whether harder prompts use more of the depth."""

from __future__ import annotations

import numpy as np

from ..depth.continuous import MEAN_DEPTH
from ..errors import ClaimRefused
from ..studies import difficulty
from .claim import Claim, Estimate, Evidence, Line, Measured, Quantity, by_level, line, slope_estimate
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
