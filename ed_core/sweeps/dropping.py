"""Blocks left out for good: every stretch of n in one walk, a variant joining behind its stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PromptError
from ..models.language_model import LanguageModel
from ..models.layouts import PerToken, Resid
from ..models.trace import Trace
from ..prompts import answer_with_seam, exact, settled
from ..types import Encoding
from . import metrics
from .recorder import Recorder
from .staircase import Staircase

SINK, FEWEST_TOKENS = 5.0, 3  # times the median token's norm; tokens below which a single one would be the median


@torch.no_grad()
def drop_sweep(
    model: LanguageModel, encoding: Encoding, record: Recorder, n: int = 1, drop: tuple[int, ...] = ()
) -> None:
    """Fill the measures of the probe `prune`: each stretch of `n` layers is left out in turn. `drop`: layers, from 0,
    left out together as one further variant."""
    n_tokens, n_starts = len(encoding), model.n_layers - n + 1
    of_drop = ("drop_nll", "drop_kl", "drop_top1_kept")
    record.allocate(*(name for name in record.specs if drop or name not in of_drop), start=n_starts)
    stairs = Staircase(model, encoding, record)
    calm = ~_sinks(stairs.trace)
    for start in range(n_starts):
        figures = proxies(stairs.trace, start, start + n)
        for name, values in figures.items():
            record.write(name, start, values)
        record.write("angular_distance_last", start, figures["angular_distance"][-1])
        record.write("angular_distance_no_sinks", start, figures["angular_distance"].masked_fill(~calm, math.nan))
    record.step(0.1)
    parts = stairs.parts(n_starts)
    for done, part in enumerate(parts):
        starts = range(part.start, part.stop)
        final = _without(stairs, n, starts, lambda share: record.step(0.1 + 0.85 * (done + 0.6 * share) / len(parts)))
        for place, whole in stairs.references():
            own = -whole.logp[: len(whole.targets)].gather(-1, whole.targets)[:, 0]
            record.write("nll_whole", place, _to_the_end(own, len(whole.logp)))
            for row, changed in stairs.compared(whole, place, final):
                _write(record, "", (starts[row], place), changed)
            record.step(0.1 + 0.85 * (done + 0.6 + 0.4 * place.stop / n_tokens) / len(parts))
    if drop:
        resid = in_order(model, stairs.trace, [layer for layer in range(model.n_layers) if layer not in drop])
        for place, whole in stairs.references():
            for _, changed in stairs.compared(whole, place, resid):
                _write(record, "drop_", place, changed)


def proxies(trace: Trace, start: int, stop: int) -> dict[str, PerToken]:
    """Return three usual proxies, per token, for how dispensable layers `start` to `stop - 1` are: `block_influence` (1
    - cosine of the stream before and after), `angular_distance` (half turns) and `update_cosine`."""
    before, after = trace.resid[start][0].float(), trace.after(stop)[0].float()
    cosine = metrics.cosine(before, after)
    return {
        "block_influence": 1 - cosine,
        "angular_distance": cosine.arccos() / math.pi,
        "update_cosine": metrics.cosine(after - before, before),
    }


def _write(record: Recorder, prefix: str, place: Any, changed: metrics.Changed) -> None:
    """Write a changed model's loss, divergence and best tokens kept at the index `place`; `prefix`: of the measures'
    names."""
    record.write(f"{prefix}nll", place, _to_the_end(changed.loss, len(changed.kl)))
    record.write(f"{prefix}kl", place, changed.kl)
    record.write(f"{prefix}top1_kept", place, changed.kept)


def _to_the_end(loss: Tensor, n_tokens: int) -> PerToken:
    """Return the losses padded with NaN to `n_tokens`: the last token has no next one."""
    return torch.nn.functional.pad(loss, (0, n_tokens - len(loss)), value=math.nan)


def _sinks(trace: Trace) -> Tensor:
    """Return a mask `[pos]` of the attention sinks, as `depth.sinks` defines them: tokens with a norm of at least
    `SINK` times the median at some depth before the output."""
    long = torch.stack([h[0].float().norm(dim=-1) for h in trace.resid[:-1]])
    if long.shape[1] < FEWEST_TOKENS:
        return torch.zeros(long.shape[1], dtype=torch.bool, device=long.device)
    median = long[:, 1:].quantile(0.5, dim=1, keepdim=True)
    return ((median > 0) & (long >= SINK * median)).any(0)


def _without(stairs: Staircase, n: int, starts: Sequence[int], step: Callable[[float], None]) -> Resid:
    """Return the last residual without layers s … s+n-1, a row for each s in the rising `starts`. `step` gets the share
    done. A complete set is kept with the trace for other probes where the model keeps that trace."""
    model, trace = stairs.model, stairs.trace
    if (kept := trace.ends.get(n)) is not None:
        step(1.0)
        return kept if len(starts) == len(kept) else kept[list(starts)]
    state = torch.cat([model.entering(trace, start, start + n) for start in starts])
    ends = stairs.climb(state, [start + n for start in starts], step)
    if len(starts) == model.n_layers - n + 1 and model.keeps(trace, ends.numel() * ends.element_size()):
        trace.ends[n] = ends
    return ends


def in_order(
    model: LanguageModel, trace: Trace, order: Sequence[int], check: Callable[[], None] = lambda: None
) -> Resid:
    """Return the last residual `[1, pos, d_model]` with the layers run in `order` (indices from 0). The part shared
    with the traced pass is reused; `check` is called after each layer and may raise to cancel. In a looped model the
    modules between passes run wherever a pass begins."""
    shared = next((place for place, block in enumerate(order) if block != place), len(order))
    around = [-1, *order, model.n_layers]
    resid = trace.after(shared)
    if model.crosses(around[shared], around[shared + 1]):
        resid = model.between(trace, resid)
    for place, block in enumerate(order[shared:], shared):
        crosses = model.crosses(around[place + 1], around[place + 2])
        *_, resid = model.run_block(trace, block, resid, crosses=crosses)
        check()
    return resid


# ---------------------------------------------------------------- known answers


@torch.no_grad()
def answer_sweep(model: LanguageModel, encoding: Encoding, record: Recorder, k: int) -> None:
    """Fill the measures of the probe `answers`. `k`: how many best tokens count for the first and the stable depth."""
    n_layers, n_tokens, first = model.n_layers, len(encoding), encoding.answer_start
    assert first is not None  # `answers` refuses a prompt without an answer
    record.allocate("rank", "first_depth", "stays_depth", step=n_tokens - first)
    stairs = Staircase(model, encoding, record)
    streams = torch.stack([stairs.trace.after(depth)[0, first - 1 : n_tokens - 1] for depth in range(n_layers + 1)])
    targets = stairs.trace.ids[0, first:].repeat(n_layers + 1)
    ranks = [metrics.rank(logits, targets[place]) for place, logits in stairs.logits(streams.flatten(0, 1))]
    record.write("rank", slice(None), torch.cat(ranks).view(n_layers + 1, -1))
    record.step(0.3)
    among = np.asarray((record.arrays["rank"] <= k).all(1))
    if among.any():
        record.write("first_depth", (), among.argmax())
    if among[-1]:
        record.write("stays_depth", (), n_layers + 1 - (~among[::-1]).argmax() if not among.all() else 0)
    write_without(model, encoding, record, 1, losses=True)


@torch.no_grad()
def write_without(model: LanguageModel, encoding: Encoding, record: Recorder, n: int, losses: bool = False) -> None:
    """Fill `exact` and `exact_whole`: whether the model writes the answer without each stretch of `n` layers, and
    whole. With `losses` also fill `loss` and `loss_whole`. Raises `PromptError` for a blank answer.

    A variant is a stretch's first layer; the last variant, `none`, drops nothing. Variants with the same text so far
    share a pass that has the rest of the answer appended: as long as they write its tokens, that pass gives their next
    ones."""
    question, draft = encoding.ids[: encoding.answer_start], encoding.ids[encoding.answer_start :]
    most, none = len(draft) + 1, model.n_layers - n + 1
    decode = partial(model.tokenizer.decode, clean_up_tokenization_spaces=False)
    if not (answer := record.request.prompts[0].answer).strip():
        raise PromptError(f"{record.request.probe} needs an answer that is more than spaces; give one.")
    answer = answer_with_seam(answer, decode(list(draft)))
    for name in ("exact", "loss") if losses else ("exact",):
        record.allocate(name, f"{name}_whole", start=none)

    def write(name: str, variant: int, value: float) -> None:
        if variant == none:
            record.write(f"{name}_whole", (), value)
        else:
            record.write(name, variant, value)

    n_written = 0
    groups: dict[tuple[int, ...], list[int]] = {(): list(range(none + 1))}
    while groups:
        written, variants = groups.popitem()
        laid = draft[len(written) :]
        with_loss = losses and not written
        stairs = Staircase(model, (*question, *written, *laid), record)
        for variant, best, lost in _next_tokens(stairs, len(laid), n, variants, with_loss):
            if with_loss:
                write("loss", variant, lost)
            text, verdict = list(written), None
            for token, expected in zip(best, (*laid, None)):
                text.append(token)
                text_so_far = decode(text)
                verdict = exact(text_so_far, answer) if len(text) == most else settled(text_so_far, answer)
                if verdict is not None or token != expected:
                    break
            if verdict is None:
                groups.setdefault(tuple(text), []).append(variant)
                continue
            write("exact", variant, float(verdict))
            n_written += 1
        record.step(max(record.progress, 0.9 * n_written / (none + 1)))


def _next_tokens(
    stairs: Staircase, laid: int, n: int, variants: Sequence[int], losses: bool
) -> Iterator[tuple[int, list[int], float]]:
    """Yield each variant, its best token after each of the last `laid` + 1 positions, and its mean loss on the last
    `laid` tokens (NaN without `losses`). `n`: layers left out; all variants share the unembedding."""
    record, none, ids = stairs.record, stairs.model.n_layers - n + 1, stairs.trace.ids[0]
    starts = [variant for variant in variants if variant != none]
    parts = [starts[part] for part in stairs.parts(len(starts))]
    step = lambda share: record.step(max(record.progress, 0.9 * share / len(parts)))  # noqa: E731
    walks = ((part, _without(stairs, n, part, step)) for part in parts)
    for part, final in chain(walks, [([none], stairs.trace.resid[-1])] * (none in variants)):
        targets = ids[len(ids) - laid :].repeat(len(part), 1)
        targets = torch.nn.functional.pad(targets, (0, 1)).flatten()  # nothing is laid behind the last
        best, lost = [], []
        for place, logits in stairs.logits(final[:, -laid - 1 :].flatten(0, 1)):
            best.append(logits.argmax(-1))
            if losses:
                lost.append(-metrics.log_probabilities(logits).gather(-1, targets[place, None])[:, 0])
        means = torch.cat(lost).view(len(part), -1)[:, :-1].mean(-1).tolist() if losses else [math.nan] * len(part)
        yield from zip(part, torch.cat(best).view(len(part), -1).tolist(), means)
