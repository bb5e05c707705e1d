"""Claims about tokens: where an answer is decided, which tokens go deep, and what leaving early could spare."""

from __future__ import annotations

import math

import numpy as np

from ..depth import kinds
from .claim import claim
from .evidence import Evidence, Measured
from .judging import Estimate, Quantity

INF = math.inf


@claim(
    "decided-before-read",
    "An answer is decided no later than the logit lens reads it",
    source="arXiv 2510.18871",
    formula="mean over prompts of the commitment depth less the depth from which the lens stays on the answer, over L; "
    "commitment depth: the first one from which patching the position that predicts the answer makes the other "
    "prompt's answer the best guess",
    protocol="Up to about 40 prompts, each patched from the next one of its form and level with another answer; those "
    "whose other answer the model does not give are left out. A twentieth of the depth later still counts.",
    quantities=(
        Quantity(
            "commitment depth less the lens's, as a share of the depth",
            (-INF, 0.05),
            "answers are decided before they can be read",
            digits=3,
            chosen=True,
        ),
    ),
    parts=("patching",),
    answers=True,
)
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


@claim(
    "kinds-explain-depth",
    "How deep a prompt goes is mostly its mix of kinds of tokens",
    source="arXiv 2510.18871",
    formula="1 less the variance between prompts of (mean settle depth less what the mix of kinds alone would give), "
    "over the variance of the mean settle depth; each kind at its mean over the other prompts",
    protocol="Up to about 50 prompts; kinds: white space, punctuation, digits, function words, first and later pieces "
    "of words.",
    quantities=(
        Quantity("share of the variance explained", (0.5, INF), "depth follows the kind of token", chosen=True),
    ),
    parts=("logit_lens",),
)
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


@claim(
    "headroom",
    "Tokens could leave before their best token has settled",
    source="arXiv 2510.18871; early exits are judged against an oracle",
    formula="mean over tokens of the settle depth less the first depth whose best token is the output's, over L",
    protocol="Up to about 50 prompts. Headroom is never below 0, so a hundredth of the depth is asked for.",
    quantities=(Quantity("headroom as a share of the depth", (0.01, INF), "above 0", digits=3, chosen=True),),
    parts=("logit_lens",),
)
def headroom(evidence: Evidence) -> Measured:
    """Return the mean over tokens of the settle depth minus the first depth with the output's best token, over L."""
    part = evidence.parts["logit_lens"]
    part.require()
    sums = kinds.over_kinds(part["kinds"])
    spared = (sums[:, kinds.SETTLE] - sums[:, kinds.ORACLE]) / evidence.n_layers
    return Measured.of(part, Estimate.of(part.mean(spared, sums[:, kinds.TOKENS])))
