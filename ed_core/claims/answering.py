"""What depth has to do with right answers."""

from __future__ import annotations

import numpy as np

from ..depth.criteria import ENDS, RESAMPLES
from ..errors import ClaimRefused
from ..probes.scores import depth_score, rank_correlation
from .claim import Claim, Curve, Estimate, Measured, Quantity, enough
from .evidence import Evidence
from .means import over_prompts

CORRELATION = "rank correlation of the deep-thinking ratio with a right answer"
DEEPER = "centre of what generation loses less that of what likelihood loses"


def thinking(evidence: Evidence) -> Measured:
    writing, answers = evidence.parts["writing"], evidence.parts["answers"]
    _, mine, theirs = np.intersect1d(writing.index, answers.index, return_indices=True)
    ratio, right = writing.keep(mine)["mean_ratio"], answers.keep(theirs)["exact_whole"]
    enough(int(right.sum()), "prompts that are answered rightly")
    enough(int((1 - right).sum()), "prompts that are answered wrongly")
    value = rank_correlation(ratio, right)
    if value is None:
        raise ClaimRefused("The deep-thinking ratio is the same for all prompts, so it has no rank correlation.")
    rng = np.random.default_rng(evidence.seed)
    drawn = rng.integers(len(ratio), size=(RESAMPLES, len(ratio)))
    again = [rank_correlation(ratio[at], right[at]) for at in drawn]
    estimate = Estimate.of(value, np.array([np.nan if one is None else one for one in again]))
    groups = [ratio[right == which] for which in (0, 1)]
    ends = [over_prompts(group[:, None], None, evidence.seed) for group in groups]
    means, low, high = (tuple(float(v) for v in one) for one in zip(*((m[0], *np.quantile(a, ENDS)) for m, a in ends)))
    curve = Curve("answer", "deep-thinking ratio", (0.0, 1.0), means, low, high, ("wrong", "right"))
    beside = f"{len(groups[1])} of {len(ratio)} prompts are answered rightly."
    return Measured({CORRELATION: estimate}, len(ratio), curve, beside)


def two_stories(evidence: Evidence) -> Measured:
    part = evidence.parts["answers"]
    right = int(part["exact_whole"].sum())
    enough(right, "prompts that the model answers rightly")
    exact = over_prompts(part["exact_whole"][:, None] - part["exact"], None, evidence.seed)
    loss = over_prompts(part["loss"] - part["loss_whole"][:, None], None, evidence.seed)

    def apart(generated: np.ndarray, likely: np.ndarray) -> np.ndarray:
        return depth_score(np.maximum(generated, 0)) - depth_score(np.maximum(likely, 0))

    value = apart(exact[0][None], loss[0][None])[0]
    if not np.isfinite(value):
        raise ClaimRefused("No layer that is left out loses an answer, so what generation loses has no centre.")
    estimate = Estimate.of(value, apart(exact[1], loss[1]))
    curve = Curve.of("layer left out", "share of exact answers lost", *exact)
    return Measured({DEEPER: estimate}, len(part), curve, f"{right} of {len(part)} prompts are answered rightly.")


DEEP_THINKING = Claim(
    "deep-thinking",
    "Tokens that settle late go with right answers",
    "a model that settles more of its tokens late answers more often rightly",
    "Chen et al. 2026 (2602.13517)",
    "Spearman's rank correlation over prompts of the share of written tokens whose divergence first falls to 0.5 only "
    "in the last 15 % of the depth, with whether the answer is exact",
    "Up to 50 prompts, up to 16 tokens written, always the best one. The paper takes long chains of thought of "
    "reasoning models on AIME, HMMT and GPQA.",
    "no correlation, or a negative one",
    (Quantity(CORRELATION, "rank correlation", (0.0, np.inf), "above 0", "positive, in words"),),
    ("writing", "answers"),
    thinking,
    answers=True,
)
LIKELIHOOD_OR_GENERATION = Claim(
    "likelihood-or-generation",
    "Deep layers matter more where the model writes",
    "exact answers rest on deeper layers than likelihood does",
    "arXiv 2510.02091",
    "Σ s g[s] / Σ g[s] - Σ s n[s] / Σ n[s]; g[s] is the share of exact answers lost without layer s, n[s] the loss "
    "added on the answers' tokens, both 0 where leaving the layer out helps",
    "Up to 50 prompts, always the best token; an answer is exact where the text that is written begins with it. The "
    "paper measures accuracy on benchmarks.",
    "centres at one place, or the likelihood's deeper",
    (Quantity(DEEPER, "layers", (0.0, np.inf), "above 0", "deep layers matter more for generation, in words"),),
    ("answers",),
    two_stories,
    answers=True,
)
