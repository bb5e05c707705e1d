"""Whether harder prompts use more of the depth."""

from __future__ import annotations

import numpy as np

from ..depth.criteria import depths, resampled
from ..errors import ClaimRefused
from ..studies import difficulty
from .claim import Claim, Curve, Estimate, Measured, Quantity
from .evidence import Evidence
from .means import by_level, over_levels

SCORE = "depth score, change from the first level to the last"
SETTLED = "effective depth by KL, change from the first level to the last"
APPEARS = "first depth with the answer, change from the first level to the last"


def harder(evidence: Evidence) -> Measured:
    names = evidence.level_names
    skipped = evidence.parts["future"]
    finite = np.isfinite(skipped["effect"]).all((1, 2))
    of_levels = by_level(skipped.keep(finite), names)
    levels = [
        difficulty.of_skips(name, part["effect"], "effect", part.pairs, seed=evidence.seed + i)
        for i, (name, part) in enumerate(zip(names, of_levels))
    ]
    line = difficulty.trend(levels, seed=evidence.seed)
    if not np.isfinite(line.slope):
        raise ClaimRefused("On one of the levels no skipped layer has an effect, so there is no depth score.")
    steps = len(names) - 1
    estimates = {SCORE: Estimate(*(steps * one for one in (line.slope, line.low, line.high)))}
    lens = by_level(evidence.parts["logit_lens"], names)
    values, drawn = [], []
    for i, part in enumerate(lens):
        sums, counts = part["kl.sum"][:, :-1], part["n_tokens"]
        values.append(depths("kl", (sums.sum(0) / counts.sum())[None])[0])
        drawn.append(depths("kl", resampled({"": sums}, counts, seed=evidence.seed + i)[""]))
    change, again = (steps * difficulty.slope_of(np.stack(one, -1)) for one in (values, drawn))
    if np.isfinite(change):
        estimates[SETTLED] = Estimate.of(change, again)
    told = [[getattr(level, of) for level in levels] for of in ("mean", "low", "high")]
    curve = Curve(
        "level",
        "depth score, layers",
        tuple(map(float, range(len(names)))),
        *(tuple(one) for one in told),
        tuple(names),
    )
    over = f"Over {line.paired} pairs." if line.paired else "Prompts are not paired over all levels."
    return Measured(estimates, len(skipped), curve, over)


def appears(evidence: Evidence) -> Measured:
    part = evidence.parts["answers"]
    known = np.isfinite(part["first_depth"])
    if not known.any():
        raise ClaimRefused("No prompt's answer is among the best five at any depth: the model does not know them.")
    of_levels = by_level(part.keep(known), evidence.level_names)
    found, pairs = over_levels([p["first_depth"] for p in of_levels], [p.pairs for p in of_levels], evidence.seed)
    steps = len(of_levels) - 1
    value, again = (steps * difficulty.slope_of(one) for one in found)
    names = evidence.level_names
    drawn = Curve.of("level", "first depth with the answer", *found, ticks=names)
    beside = f"Over {pairs} pairs." if pairs else "Prompts are not paired over all levels."
    if not known.all():
        beside += f" {int((~known).sum())} prompts whose answer never comes are left out."
    return Measured({APPEARS: Estimate.of(value, again)}, int(known.sum()), drawn, beside)


NO_HARDER_DEEPER = Claim(
    "no-harder-deeper",
    "Harder prompts do not go deeper",
    "harder prompts do not use more of the depth",
    "Csordás et al. 2025 §5 (2505.13898); Hu et al. 2025 (2512.14064)",
    "slope of a straight line through the levels times the steps between first and last: of the depth score "
    "Σ s e[s] / Σ e[s] (future effects, split at the answer), and of the depth by the KL rule",
    "Up to 40 prompts over the levels for skips, 50 for the lens; drawn as pairs where prompts belong together. The "
    "papers take 20 prompts a level of MQuAKE and MATH, and HellaSwag, GSM8K, AIME24.",
    "a rise of a layer or more from the first level to the last",
    (
        Quantity(
            SCORE, "layers", (-np.inf, 1.0), "below one layer, the finest that depth is counted in", "none, in words"
        ),
        Quantity(
            SETTLED, "layers", (-np.inf, 1.0), "below one layer, the finest that depth is counted in", "none, in words"
        ),
    ),
    ("future", "logit_lens"),
    harder,
    answers=True,
    levels=True,
)
ADAPTIVE = Claim(
    "adaptive",
    "Harder answers appear later",
    "the answer to a harder prompt appears at a greater depth",
    "Curth et al. 2026 (2604.12426)",
    "slope over levels of the first depth at which every token of the answer is among the lens' best five, times the "
    "steps between the first level and the last",
    "Up to 50 prompts over the levels; prompts whose answer never comes are left out. The paper takes family relations "
    "by hops.",
    "no rise from the first level to the last",
    (Quantity(APPEARS, "layers", (0.0, np.inf), "above 0", "some increase, clearer after fine-tuning, in words"),),
    ("answers",),
    appears,
    answers=True,
    levels=True,
)
