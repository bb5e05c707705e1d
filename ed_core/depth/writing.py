"""What the depth of written tokens comes down to, and what leaving early would change, in one sentence. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..probes.generation import Generation
from ..results.aggregate import Summary, probe_of
from ..types import ProbeResult

UNUSABLE = 0.1  # share of the tokens that change from which on leaving early is called not usable
ROUNDING = 1e-9  # of a share that was subtracted
LIMIT = "limit: a tenth"  # the same in words
AFTER = "each token judged with the whole model's keys and values before it"
FROM_0 = "depth 0 included, where the lens sees only the token just read"

AT_0 = "at depth 0"


def sentence(values: Mapping[str, np.ndarray], n_layers: int, threshold: float, sampled: bool = False) -> str:
    """Of `generation`'s arrays, over the tokens written so far. `sampled`: the tokens were drawn, so what would change
    is the best guess, not what was written."""
    n = written(values)
    if not n:
        return "No token has been written yet."
    by = f"depth {int(np.sort(values['settle_depth'][:n])[(n - 1) // 2])} of {n_layers}"  # the lower median
    changed, at_0 = int(n - values["exit_agrees"][:n].sum()), lost_at_0(values, n)
    early = leaving(n, changed, at_0, n_layers - float(values["exit_depth"][:n].mean()), threshold, sampled)
    subject = f"Of {n} tokens written, at least half have their final best guess by"
    if n == 1:
        subject = "The one token written has its final best guess by"
    return f"{subject} {by}; {early}."


def of_result(result: ProbeResult) -> str:
    """The same of a result of `generation`."""
    probe, values = probe_of(result), {name: measure.values for name, measure in result.measures.items()}
    assert isinstance(probe, Generation)
    return sentence(values, result.n_layers, probe.threshold, probe.temperature > 0)


def text(result: ProbeResult) -> str:
    """What is written so far."""
    ids = result["ids"]
    pieces = "".join(result.token_text.get(i, "") for i in ids[ids >= 0].tolist())
    return str(result.provenance.get("written", pieces))


def of_prompts(results: Sequence[ProbeResult], threshold: float) -> str:
    """Of `early_exit`'s results, over all tokens of all prompts: the same on text that is given."""
    n, changed, depth = exits([result.summary for result in results])
    at_0 = sum(lost_at_0(result, result.n_tokens) for result in results)
    said = leaving(n, changed, at_0, results[0].n_layers - depth, threshold, guesses=True)
    return f"{said[0].upper()}{said[1:]}."


def lost_at_0(values: Mapping[str, np.ndarray] | ProbeResult, n: int) -> int:
    """How many of the first `n` tokens leave at depth 0 with another best token than the output's."""
    return int(((values["exit_depth"][:n] == 0) & (values["exit_agrees"][:n] == 0)).sum())


def exits(summaries: Sequence[Summary]) -> tuple[int, int, float]:
    """Of `early_exit`'s summaries: how many tokens there are, how many best guesses leaving early changes, and the mean
    depth at which tokens leave."""
    n = sum(int(s["n_tokens"]) for s in summaries)
    agree, depth = (sum(float(s[f"exit_{name}.sum"]) for s in summaries) for name in ("agrees", "depth"))
    return n, round(n - agree), depth / n


def usable(n: int, changed: float | int) -> bool:
    """Whether leaving early changes few enough of `n` tokens to be of use: fewer than `UNUSABLE`."""
    return changed < UNUSABLE * n - ROUNDING


def leaving(n: int, changed: int, at_0: int, spared: float, threshold: float, guesses: bool = False) -> str:
    """What leaving at the first depth that is sure enough does to `n` tokens, a clause: how many it would change
    (`guesses`: of their best guesses), how many of these leave at depth 0 (`at_0`), and only where they are few, how
    far before the output tokens leave. Each token is judged by itself, after the text and the keys and values of the
    whole model."""
    what = "best guess" if guesses else "token"
    many = f"{what}{'es' if guesses else 's'}"
    which = f"{'all' if at_0 == changed else at_0 or 'none'} of these " * (changed > 1)
    of_0 = f" ({which}{AT_0 if which or at_0 else 'above depth 0'})" if changed else ""
    if spared <= 0:
        return f"before the output the lens never reaches {threshold:g} confidence"
    if not usable(n, changed):
        told = f"{changed} of {n} {many if n > 1 else what} would change{of_0}"
        return f"leaving at {threshold:g} confidence, {FROM_0}, is not usable here ({LIMIT}): {told}"
    would = f"would change {f'{changed} of {n} {many}' if changed else f'no {what}'}{of_0}, {AFTER}"
    where = f"the exit lies {spared:.1f} layers before the output{' on average' * (n > 1)}"
    return f"leaving at {threshold:g} confidence, {FROM_0}, {would}; {where}"


def written(values: Mapping[str, np.ndarray]) -> int:
    """How many tokens there are so far."""
    return int((values["ids"] >= 0).sum())
