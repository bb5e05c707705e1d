"""The verdict on depth: criteria read off results, with their uncertainty, and said in one sentence. Numpy only.

Over prompts the uncertainty is a bootstrap interval; a single prompt has none, so what is shown is the threshold band:
how far the figure moves when the threshold does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from .sinks import Sink, of_result

READS = ("contributions", "logit_lens")  # the probes it is made of
COSINES = ("attn_cos", "mlp_cos", "layer_cos")
NAMES = {"cosine": "cosine", "kl": "KL", "overlap": "overlap"}
BANDS = {"cosine": np.linspace(-0.05, 0.05, 11), "kl": np.linspace(0.25, 0.75, 11), "overlap": np.linspace(0.1, 0.5, 9)}


@dataclass(frozen=True)
class Verdict:
    """Three criteria of one prompt (never averaged), their threshold bands, and the sentence that says them. `sinks`:
    the prompt's, None where they cannot be told. `remarks`: sentences on what the criteria's variants change."""

    criteria: Mapping[str, Criterion]
    bands: Mapping[str, tuple[int, int] | None]
    sentence: str
    sinks: tuple[Sink, ...] | None = None
    remarks: tuple[str, ...] = ()

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
    criteria, bands, found = {}, {}, of_result(contributions)
    for name, (curve_of, rule, threshold) in _rules(kl, overlap).items():

        def judge(curves):
            return rule(curve_of(curves), threshold)

        results, counted = [contributions if name == "cosine" else lens], first_token or name != "cosine"
        criteria[name], sums, counts = _judged(name, judge, results, counted, [found])
        if sum(counts) and lens.n_layers > 1:
            curve = curve_of({k: v[0] / counts[0] for k, v in sums.items()})
            bands[name] = threshold_band(rule, curve, BANDS[name])
    return Verdict(criteria, bands, sentence(criteria), found, tuple(remarks(criteria)))


def verdicts(
    contributions: Sequence[ProbeResult], lens: Sequence[ProbeResult], first_token: bool = True
) -> Iterator[tuple[str, Criterion, tuple[float, float, float] | None]]:
    """Over prompts, with the papers' thresholds: `(name, criterion, (low, high, share undefined))`; None for the
    interval below 5 prompts."""
    found = [of_result(result) for result in contributions]
    for name, (curve_of, rule, threshold) in _rules(KL_THRESHOLD, OVERLAP_THRESHOLD).items():

        def judge(curves):
            return rule(curve_of(curves), threshold)

        results, counted = contributions if name == "cosine" else lens, first_token or name != "cosine"
        criterion, sums, counts = _judged(name, judge, results, counted, found)
        has_curve = sum(counts) and lens[0].n_layers > 1
        yield name, criterion, bootstrap(sums, counts, judge) if has_curve else None


def prompt_sums(
    results: Sequence[ProbeResult],
    names: Sequence[str],
    first_token: bool,
    left_out: Sequence[Collection[int]] | None = None,
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Per-prompt sums over tokens `[prompt, layer]` and token counts, from the summaries. `left_out`: positions that do
    not count, of each prompt; the sums are then made of the measures, whose summaries cannot leave a token out."""
    if left_out is not None:
        start = int(not first_token)
        kept = [[t for t in range(start, r.n_tokens) if t not in out] for r, out in zip(results, left_out, strict=True)]
        return {
            n: np.stack([np.nansum(r[n][:, at], -1, dtype=np.float64) for r, at in zip(results, kept)]) for n in names
        }, [len(at) for at in kept]
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


def remarks(criteria: Mapping[str, Criterion]) -> Iterator[str]:
    """What the variants change, a sentence each: KL from depth 1 on where it differs from the paper's figure by more
    than a tenth of the layers, a criterion without the sinks where it differs at all; or where one of two is not
    defined."""
    kl = criteria["kl"]
    if kl.from_depth_1 is not None and _apart(kl, kl.from_depth_1) > kl.n_layers / 10:
        yield f"From depth 1 on the KL criterion gives {_layer(kl.from_depth_1)} instead of {_layer(kl)}."
    for name, criterion in criteria.items():
        other = criterion.without_sinks
        if other is not None and _apart(criterion, other) > 0:
            yield f"Without the sinks the {NAMES[name]} criterion gives {_layer(other)} instead of {_layer(criterion)}."


def right(continuation: ProbeResult) -> bool | None:
    """Whether the greedy continuation begins with the known answer and does not run on in the same word; None without
    an answer."""
    answer = continuation.request.prompts[0].answer.strip()
    text = continuation.provenance.get("continuation", "").lstrip()
    if not answer:
        return None
    return text.startswith(answer) and not (text[len(answer) :][:1].isalnum() and answer[-1].isalnum())


def _judged(
    name: str,
    judge: Callable[[dict[str, np.ndarray]], Criterion],
    results: Sequence[ProbeResult],
    first_token: bool,
    sinks: Sequence[Sequence[Sink] | None],
) -> tuple[Criterion, dict[str, np.ndarray], list[int]]:
    """A criterion with its variants, the sums over tokens it is read off, and the token counts. `sinks`: of each
    prompt, None where they cannot be told: then there is no `without_sinks`."""

    def read(left_out=None):
        sums, counts = prompt_sums(results, _names(name), first_token, left_out)
        left = "when the first is not counted" if left_out is None else "without the sinks"
        undefined = _undefined(name, counts, results[0].n_layers, left)
        return undefined or judge({k: v.sum(0) / sum(counts) for k, v in sums.items()}), sums, counts

    whole, sums, counts = read()
    if any(found is None for found in sinks) or any(n not in r.measures for r in results for n in _names(name)):
        return whole, sums, counts
    without = read([{s.pos for s in found} for found in sinks])[0] if any(sinks) else whole
    return replace(whole, without_sinks=without), sums, counts


def _apart(a: Criterion, b: Criterion) -> float:
    """Layers between two verdicts; infinitely many where one of them is not defined."""
    if a.depth is None or b.depth is None:
        return 0.0 if a.depth is b.depth else np.inf
    return float(abs(a.depth - b.depth))


def _layer(criterion: Criterion) -> str:
    return f"nothing ({criterion.reason})" if criterion.depth is None else f"layer {criterion.depth}"


def _undefined(name: str, counts: Sequence[int], n_layers: int, left: str) -> Criterion | None:
    """The reason why there is no curve to read, where there is none."""
    if n_layers < 2:
        return Criterion(name, None, None, n_layers, reason="the model has one block only")
    if not sum(counts):
        return Criterion(name, None, None, n_layers, reason=f"no token is left {left}")
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
