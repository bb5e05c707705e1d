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
    """The probe, with the parameters a result was computed with."""
    return find(result.request.probe).of(result.request)


def _of_means(spec: MeasureSpec) -> bool:
    """Whether a measure's values are means over the prompt's tokens."""
    return spec.reduce in MEANS and "pos" not in spec.dims and not spec.aggregate_only


def following(probe: type[Probe]) -> set[str]:
    """The parts of a summary that are a stored array again, or that array times the number of tokens: they need not be
    kept with it."""
    return {f"{spec.name}.{end}" for spec in probe.measures if _of_means(spec) for end in ("sum", "first", "count")}


def summarize(result: ProbeResult) -> ProbeResult:
    """The result with its `summary`: float64 sums over tokens (`.sum`), the first token's value (`.first`), or the
    array itself. A sum is NaN where a row lacks a token that another row of the measure has, and a single row one that
    is not the last: the changed model overflowed there."""
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
    """The aggregates of one complete result's means over tokens without these positions, and without the first token
    where it does not count; all aggregates where no token is left out, or none would be left."""
    if result.n_tokens == 1:
        return aggregate(probe_of(result), [result.summary], first_token)
    return aggregate(probe_of(result), [summary_without(result, positions, first_token)])


def summary_without(result: ProbeResult, positions: Collection[int], first_token: bool = True) -> Summary:
    """The same as a summary over the tokens that are left, the first one among them where it counts: what is made of it
    counts them all."""
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
    """Whether a probe's means count the first token: its parameter, where it has one."""
    return bool(getattr(probe, "first_token", True))


def aggregate(
    probe: Probe | type[Probe], summaries: Sequence[Summary], first_token: bool = True
) -> dict[str, np.ndarray]:
    """Aggregates over prompts, float32, keyed by measure name; `<measure>_mean` next to every maximum.

    How each measure is aggregated is in its `MeasureSpec.reduce`. NaN (a prompt without boundaries) is left out.
    """
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
    """How many tokens a measure's sums are over: its own count where it has one, else all; of one prompt, or of many
    `[prompt]`, of which those without a count of their own have NaN there."""
    own = summary.get(f"{name}.count", summary["n_tokens"])
    return np.where(np.isfinite(own), own, summary["n_tokens"])


def _nanmean(stack: np.ndarray) -> np.ndarray:
    count = np.isfinite(stack).sum(0)
    return np.where(count > 0, np.nansum(stack, 0, dtype=np.float64) / np.maximum(count, 1), np.nan).astype(np.float32)
