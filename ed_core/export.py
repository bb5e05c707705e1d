"""Results as one `.npz` that `numpy.load(..., allow_pickle=False)` opens: what `python -m ed_core run --out` writes. Numpy only.

`<probe>.<measure>.<i>` for prompt i, `<probe>.<measure>` the papers' aggregate, `<probe>.<measure>_mean` beside a maximum, `tokens.<i>`,
`answer_start.<i>` (-1 without an answer), `n_tokens`, `effective_depth.*`, `provenance` (JSON). Nothing is padded.
"""
from __future__ import annotations

import json
from typing import Mapping, Sequence

import numpy as np

from . import depth
from .aggregate import aggregate
from .probes import Probe
from .types import ProbeResult

COSINES = ("attn_cos", "mlp_cos", "layer_cos")


def arrays(runs: Mapping[Probe, Sequence[ProbeResult]]) -> dict[str, np.ndarray]:
    """All arrays of a run: for every probe, its results in the order of the prompts."""
    out: dict[str, np.ndarray] = {}
    for probe, results in runs.items():
        for i, result in enumerate(results):
            out |= {f"{probe.name}.{name}.{i}": m.values for name, m in result.measures.items()}
        first_token = getattr(probe, "first_token", True)
        for name, values in aggregate(probe, [r.summary for r in results], first_token).items():
            out[f"{probe.name}.{name}"] = values
    results = next(iter(runs.values()))
    for i, result in enumerate(results):
        out[f"tokens.{i}"] = np.asarray(result.token_ids, np.int32)
        out[f"answer_start.{i}"] = np.asarray(-1 if result.answer_start is None else result.answer_start, np.int32)
    out["n_tokens"] = np.asarray(sum(r.n_tokens for r in results))
    by_name = {probe.name: (probe, results) for probe, results in runs.items()}
    if "contributions" in by_name and "logit_lens" in by_name:
        out |= effective_depth(*by_name["contributions"], by_name["logit_lens"][1])
    certificates = [{"prompt": i, **r.provenance} for probe_results in runs.values() for i, r in enumerate(probe_results)]
    out["provenance"] = np.asarray(json.dumps({"runs": certificates}))
    return out


def effective_depth(probe: Probe, contributions: Sequence[ProbeResult], lens: Sequence[ProbeResult]) -> dict[str, np.ndarray]:
    """`effective_depth.<criterion>` with `_ratio`, `_stable`, and `_low`, `_high` over prompts. NaN = not defined (or too few prompts)."""
    first = probe.first_token
    sums, counts = prompt_sums(contributions, COSINES, first)
    lens_sums, lens_counts = prompt_sums(lens, ("kl", "overlap"), True)
    rules = {
        "cosine": (sums, counts, lambda c: depth.by_cosine(depth.cosine_curve(c))),
        "kl": (lens_sums, lens_counts, lambda c: depth.by_kl(c["kl"][:-1])),
        "overlap": (lens_sums, lens_counts, lambda c: depth.by_overlap(c["overlap"][:-1])),
    }
    out = {}
    for name, (per_prompt, tokens, rule) in rules.items():
        verdict = rule({k: v.sum(0) / sum(tokens) for k, v in per_prompt.items()})
        low, high, _ = depth.bootstrap(per_prompt, tokens, rule) or (None, None, None)
        figures = {"": verdict.depth, "_ratio": verdict.ratio, "_stable": verdict.stable, "_low": low, "_high": high}
        for suffix, value in figures.items():
            out[f"effective_depth.{name}{suffix}"] = np.asarray(np.nan if value is None else value, np.float32)
    return out


def prompt_sums(results: Sequence[ProbeResult], names: Sequence[str], first_token: bool) -> tuple[dict[str, np.ndarray], list[int]]:
    """Per-prompt sums over tokens `[prompt, layer]` and token counts, from the summaries."""
    take = lambda s, name: s[f"{name}.sum"] - (0 if first_token else s[f"{name}.first"])  # noqa: E731
    sums = {name: np.stack([take(r.summary, name) for r in results]) for name in names}
    return sums, [r.n_tokens - (not first_token) for r in results]
