"""The verdict on depth: criteria read off results, with their uncertainty, and said in one sentence. Numpy only.

Over prompts the uncertainty is a bootstrap interval; a single prompt has none, so what is shown is the threshold band:
how far the figure moves when the threshold does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..types import ProbeResult
from .criteria import (
    KL_THRESHOLD,
    OVERLAP_THRESHOLD,
    Criterion,
    bootstrap,
    by_cosine,
    by_kl,
    by_overlap,
    cosine_curve,
    threshold_band,
)

READS = ("contributions", "logit_lens")  # the probes it is made of
COSINES = ("attn_cos", "mlp_cos", "layer_cos")
BANDS = {"cosine": np.linspace(-0.05, 0.05, 11), "kl": np.linspace(0.25, 0.75, 11), "overlap": np.linspace(0.1, 0.5, 9)}


@dataclass(frozen=True)
class Verdict:
    """Three criteria of one prompt (never averaged), their threshold bands, and the sentence that says them."""

    criteria: Mapping[str, Criterion]
    bands: Mapping[str, tuple[int, int] | None]
    sentence: str

    @property
    def lines(self) -> dict[str, int | None]:
        """The depth each criterion gives, for the dashed lines across the panels."""
        return {name: criterion.depth for name, criterion in self.criteria.items()}


def of_prompt(
    contributions: ProbeResult,
    lens: ProbeResult,
    first_token: bool = True,
    kl: float = KL_THRESHOLD,
    overlap: float = OVERLAP_THRESHOLD,
) -> Verdict:
    """The verdict on one prompt from its complete `contributions` and `logit_lens`."""
    criteria, bands = {}, {}
    for name, (curve_of, rule, threshold) in _rules(kl, overlap).items():
        sums, counts = prompt_sums(
            [contributions if name == "cosine" else lens], _names(name), first_token or name != "cosine"
        )
        criteria[name] = _undefined(name, counts, lens.n_layers)
        if criteria[name] is None:
            curve = curve_of({k: v[0] / counts[0] for k, v in sums.items()})
            criteria[name] = rule(curve, threshold)
            bands[name] = threshold_band(rule, curve, BANDS[name])
    return Verdict(criteria, bands, sentence(criteria))


def verdicts(
    contributions: Sequence[ProbeResult], lens: Sequence[ProbeResult], first_token: bool = True
) -> Iterator[tuple[str, Criterion, tuple[float, float, float] | None]]:
    """Over prompts, with the papers' thresholds: `(name, criterion, (low, high, share undefined))`; None for the
    interval below 5 prompts."""
    for name, (curve_of, rule, threshold) in _rules(KL_THRESHOLD, OVERLAP_THRESHOLD).items():
        sums, counts = prompt_sums(
            contributions if name == "cosine" else lens, _names(name), first_token or name != "cosine"
        )
        if (undefined := _undefined(name, counts, lens[0].n_layers)) is not None:
            yield name, undefined, None
            continue

        def judge(curves):
            return rule(curve_of(curves), threshold)

        yield name, judge({k: v.sum(0) / sum(counts) for k, v in sums.items()}), bootstrap(sums, counts, judge)


def prompt_sums(
    results: Sequence[ProbeResult], names: Sequence[str], first_token: bool
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Per-prompt sums over tokens `[prompt, layer]` and token counts, from the summaries."""
    sums = {
        n: np.stack([r.summary[f"{n}.sum"] - (0 if first_token else r.summary[f"{n}.first"]) for r in results])
        for n in names
    }
    return sums, [r.n_tokens - (not first_token) for r in results]


def sentence(criteria: Mapping[str, Criterion]) -> str:
    """The verdict in words, layers 0-based; what is not defined is said with its reason."""
    cosine, kl, overlap = criteria["cosine"], criteria["kl"], criteria["overlap"]
    if cosine.depth is None:
        turn = f"No turn from writing to refining ({cosine.reason})"
    else:
        turn = f"Features turn from writing to refining after layer {cosine.depth} of {cosine.n_layers}"
    if kl.depth is None:
        settle = "the output does not settle before the last layer"
    else:
        settle = f"the output settles at layer {kl.depth}"
    if overlap.depth is not None and overlap.depth != kl.depth:
        settle += f" ({overlap.depth} by top-k overlap)"
    return f"{turn}; {settle}."


def right(continuation: ProbeResult) -> bool | None:
    """Whether the greedy continuation begins with the known answer and does not run on in the same word; None without
    an answer."""
    answer = continuation.request.prompts[0].answer.strip()
    text = continuation.provenance.get("continuation", "").lstrip()
    if not answer:
        return None
    return text.startswith(answer) and not (text[len(answer) :][:1].isalnum() and answer[-1].isalnum())


def _undefined(name: str, counts: Sequence[int], n_layers: int) -> Criterion | None:
    """The reason why there is no curve to read, where there is none."""
    if n_layers < 2:
        return Criterion(name, None, None, n_layers, reason="the model has one block only")
    if not sum(counts):
        return Criterion(name, None, None, n_layers, reason="no token is left when the first is not counted")
    return None


def _names(criterion: str) -> tuple[str, ...]:
    return COSINES if criterion == "cosine" else (criterion,)


def _rules(kl: float, overlap: float) -> dict:
    """Per criterion: how its curve is made from the aggregates (the lens without its last row, which is the output),
    rule, threshold."""
    return {
        "cosine": (cosine_curve, by_cosine, 0.0),
        "kl": (lambda c: c["kl"][:-1], by_kl, kl),
        "overlap": (lambda c: c["overlap"][:-1], by_overlap, overlap),
    }
