"""From prompts to aggregates: small sums stored with every result, and what the papers make of them. Numpy only.

A study of thousands of prompts reads summaries, never arrays. Means are token-weighted over all tokens of all prompts
[H25]; sums are kept with and without the first token, so that leaving out an attention sink needs no recomputation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..probes import Probe, find
from ..types import MeasureSpec, ProbeResult

MEANS = ("token_mean", "next_mean")  # over tokens
Summary = Mapping[str, np.ndarray]


def probe_of(result: ProbeResult) -> Probe:
    """Return the probe that measured a result, with the result's parameters."""
    return find(result.request.probe).of(result.request)


def _of_means(spec: MeasureSpec) -> bool:
    """Return whether a measure's values are means over the prompt's tokens already."""
    return spec.reduce in MEANS and "pos" not in spec.dims and not spec.aggregate_only


def following(probe: type[Probe]) -> set[str]:
    """Return the names of a probe's summary arrays that follow from its measures (a copy, or a copy times the number of
    tokens), so that they need not be stored."""
    return {f"{spec.name}.{end}" for spec in probe.measures if _of_means(spec) for end in ("sum", "first", "count")}


def summarize(result: ProbeResult) -> ProbeResult:
    """Return the result with its `summary` filled: per measure float64 sums over tokens (`.sum`) with the first token's
    value (`.first`), or the array itself. A sum is NaN where a changed model overflowed: a row lacks a token that
    another row has, or a single row lacks one that is not the last."""
    probe = probe_of(result)
    values = {name: m.values for name, m in result.measures.items()}
    values.update(probe.per_token(values, probe.left_out(result)))
    summary: dict[str, np.ndarray] = {"n_tokens": np.asarray(result.n_tokens)}
    for spec in probe.measures:
        if spec.name not in values:
            continue
        if _of_means(spec):
            counted = result.n_tokens - (spec.reduce == "next_mean")
            summary[f"{spec.name}.sum"] = values[spec.name].astype(np.float64) * counted
            summary[f"{spec.name}.first"] = values[spec.name].astype(np.float64)
            summary[f"{spec.name}.count"] = np.asarray(counted)
        elif spec.reduce == "token_mean":
            per_token = values[spec.name].astype(np.float64)
            missing = np.isnan(per_token)
            nowhere = missing.reshape(-1, result.n_tokens).all(0)  # the last token has no next one to lose on
            if per_token.ndim == 1:  # no other row tells which tokens have a value
                nowhere = missing & (np.arange(result.n_tokens) == result.n_tokens - 1)
            overflown = (missing & ~nowhere).any(-1)  # of one row alone, which then has no mean
            summary[f"{spec.name}.sum"] = np.where(overflown, np.nan, np.nansum(per_token, -1))
            summary[f"{spec.name}.first"] = per_token[..., 0]
            if nowhere.any():
                summary[f"{spec.name}.count"] = np.asarray(result.n_tokens - nowhere.sum())
        elif spec.reduce == "pos_max":
            summary[spec.name] = np.fmax.reduce(values[spec.name], axis=-1)
            summary[f"{spec.name}.mean"] = _nanmean(np.moveaxis(values[spec.name], -1, 0))
        elif spec.reduce == "pos_abs_sum":
            summary[spec.name] = np.nansum(np.abs(values[spec.name]), -1)
        elif spec.reduce:
            summary[spec.name] = values[spec.name]
    return replace(result, summary=summary)


def without(result: ProbeResult, positions: Collection[int], first_token: bool = True) -> dict[str, np.ndarray]:
    """Return a complete result's aggregates without the tokens at `positions` (from 0), and without the first if
    `first_token` is False. If no token is left out, or none would remain, all tokens count."""
    if result.n_tokens == 1:
        return aggregate(probe_of(result), [result.summary], first_token)
    return aggregate(probe_of(result), [summary_without(result, positions, first_token)])


def summary_without(result: ProbeResult, positions: Collection[int], first_token: bool = True) -> Summary:
    """Return a result's summary over the tokens that remain without `positions`, and without the first if `first_token`
    is False. Aggregate it with `first_token=True`, as the dropped tokens are gone already."""
    n = result.n_tokens
    kept = [t for t in range(int(not first_token), n) if t not in positions]
    kept = kept or list(range(int(not first_token), n))
    if len(kept) == n:
        return result.summary
    measures = {
        name: replace(m, values=m.values.take(kept, m.spec.dims.index("pos"))) if "pos" in m.spec.dims else m
        for name, m in result.measures.items()
    }
    ids, tokens = tuple(result.token_ids[t] for t in kept), tuple(result.tokens[t] for t in kept)
    left = replace(result, measures=measures, token_ids=ids, tokens=tokens, answer_start=None)
    return summarize(left).summary


def counts_first(probe: Probe) -> bool:
    """Return whether a probe's means count the first token: its parameter `first_token`, True without one."""
    return bool(getattr(probe, "first_token", True))


def aggregate(
    probe: Probe | type[Probe], summaries: Sequence[Summary], first_token: bool = True
) -> dict[str, np.ndarray]:
    """Return the aggregates over prompts, float32, by measure name; next to every maximum also `<measure>_mean`.

    `MeasureSpec.reduce` says how each measure is aggregated. `first_token`: whether means count the first token. NaN
    (such as a prompt without boundaries) is left out."""
    out: dict[str, np.ndarray] = {}
    for spec in probe.measures:
        if spec.name not in summaries[0] and f"{spec.name}.sum" not in summaries[0]:
            continue  # not measured with these parameters
        if spec.reduce in MEANS:
            total = sum(s[f"{spec.name}.sum"] - (0 if first_token else s[f"{spec.name}.first"]) for s in summaries)
            count = sum(int(counted(s, spec.name)) - (not first_token) for s in summaries)
            out[spec.name] = np.asarray(total / count if count else np.full_like(total, np.nan), np.float32)
        elif spec.reduce:
            stack = np.stack([s[spec.name] for s in summaries])
            mean = _nanmean(np.stack([s.get(f"{spec.name}.mean", s[spec.name]) for s in summaries]))
            out[spec.name] = mean if spec.reduce == "mean" else np.fmax.reduce(stack)
            if spec.reduce != "mean":
                out[f"{spec.name}_mean"] = mean
    return out


def counted(summary: Summary, name: str) -> np.ndarray:
    """Return how many tokens a measure's sums are over: its own count, else all tokens. `summary`: of one prompt, or of
    many `[prompt]`, with NaN for those without a count of their own."""
    own = summary.get(f"{name}.count", summary["n_tokens"])
    return np.where(np.isfinite(own), own, summary["n_tokens"])


def _nanmean(stack: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis without values that are not finite, float32; NaN where none is left."""
    count = np.isfinite(stack).sum(0)
    return np.where(count > 0, np.nansum(stack, 0, dtype=np.float64) / np.maximum(count, 1), np.nan).astype(np.float32)
