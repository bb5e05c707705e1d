"""Blocks taken out for good: every stretch of n in one walk, a variant joining behind its stretch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import PromptError
from ..prompts import answer_with_seam, exact, settled
from . import metrics
from .budget import even_chunks
from .staircase import LOGIT_TOKENS

SINK, FEWEST_TOKENS = 5.0, 3  # times the median token's norm; tokens below which a single one would be the median

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..models.trace import Trace
    from ..types import Encoding
    from .recorder import Recorder


@torch.no_grad()
def drop_sweep(
    model: LanguageModel, encoding: Encoding, record: Recorder, n: int = 1, drop: tuple[int, ...] = ()
) -> None:
    """Fill `prune`'s measures."""
    n_layers, n_tokens = model.n_layers, len(encoding)
    n_starts = n_layers - n + 1
    for name in ("kl", "top1_kept", "nll", "block_influence", "angular_distance", "update_cosine"):
        record.allocate(name, (n_starts, n_tokens))
    record.allocate("nll_whole", (n_tokens,))
    record.allocate("angular_distance_last", (n_starts,))
    record.allocate("angular_distance_no_sinks", (n_starts, n_tokens))
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    calm = ~_sinks(trace)
    for start in range(n_starts):
        before, after = trace.resid[start][0].float(), trace.after(start + n)[0].float()
        cosine = metrics.cosine(before, after)
        record.write("block_influence", start, 1 - cosine)
        angle = cosine.arccos() / math.pi
        record.write("angular_distance", start, angle)
        record.write("angular_distance_last", start, angle[-1])
        record.write("angular_distance_no_sinks", start, angle.masked_fill(~calm, math.nan))
        record.write("update_cosine", start, metrics.cosine(after - before, before))
    record.step(0.1)
    stretches = even_chunks(n_starts, record.budget.fit(n_tokens * model.d_model * model.dtype.itemsize))
    for done, part in enumerate(stretches):
        starts = range(part.start, part.stop)
        final = _ends(
            model,
            trace,
            n,
            starts,
            record,
            lambda share: record.step(0.1 + 0.85 * (done + 0.6 * share) / len(stretches)),
        )
        for place in _positions(model, n_tokens, record):
            base = _reference(model, trace, place)
            record.write("nll_whole", place, _loss(base.logp, trace.ids[0, 1:][place]))

            def compare(
                rows: slice, place: slice = place, base: metrics.AgainstModel = base, starts: range = starts
            ) -> None:
                changed = model.unembed(final[rows, place].flatten(0, 1)).split(place.stop - place.start)
                _compare(base, changed, record, ("nll", "kl", "top1_kept"), [(start, place) for start in starts[rows]])

            size = place.stop - place.start
            record.budget.run(len(starts), lambda: max(1, _rows(model, record) // size), compare)
            record.step(0.1 + 0.85 * (done + 0.6 + 0.4 * place.stop / n_tokens) / len(stretches))
    if drop:
        _chosen_set(drop, model, trace, record)


def _sinks(trace: Trace) -> Tensor:
    """Which tokens are sinks, `[pos]`: as `depth.sinks` finds them, before the output."""
    long = torch.stack([h[0].float().norm(dim=-1) for h in trace.resid[:-1]])
    if long.shape[1] < FEWEST_TOKENS:
        return torch.zeros(long.shape[1], dtype=torch.bool, device=long.device)
    median = long[:, 1:].quantile(0.5, dim=1, keepdim=True)
    return ((median > 0) & (long >= SINK * median)).any(0)


@torch.no_grad()
def answer_sweep(model: LanguageModel, encoding: Encoding, record: Recorder, k: int) -> None:
    """Fill `answers`' measures."""
    n_layers, n_tokens, first = model.n_layers, len(encoding), encoding.answer_start
    assert first is not None  # `answers` refuses a prompt without an answer
    record.allocate("rank", (n_layers + 1, n_tokens - first))
    record.allocate("first_depth", ())
    record.allocate("stays_depth", ())
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    streams = torch.stack([trace.after(depth)[0, first - 1 : n_tokens - 1] for depth in range(n_layers + 1)])
    targets = trace.ids[0, first:].repeat(n_layers + 1)
    ranks = [metrics.rank(logits, targets[place]) for place, logits in _logits(model, streams.flatten(0, 1), record)]
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
    """Fill `exact` and `exact_whole`, and with `losses` the mean loss on the answer, `loss` and `loss_whole`. A variant
    is the first block of the stretch that it lacks; the last one, `none`, lacks none. What is still open is read on in
    groups that have written the same, the rest of the answer's own tokens laid behind: as long as a variant writes
    these, the pass holds its next token."""
    question, draft = encoding.ids[: encoding.answer_start], encoding.ids[encoding.answer_start :]
    most, none = len(draft) + 1, model.n_layers - n + 1
    decode = partial(model.tokenizer.decode, clean_up_tokenization_spaces=False)
    if not (answer := record.request.prompts[0].answer).strip():
        raise PromptError(f"{record.request.probe} needs an answer that is more than spaces; give one.")
    answer = answer_with_seam(answer, decode(list(draft)))
    measured = ("exact", "loss") if losses else ("exact",)
    for name in measured:
        record.allocate(name, (none,))
        record.allocate(f"{name}_whole", ())

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
        ids = (*question, *written, *laid)
        for variant, best, lost in _without(model, ids, len(laid), n, variants, record, with_loss):
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


def _without(
    model: LanguageModel,
    ids: Sequence[int],
    laid: int,
    n: int,
    variants: Sequence[int],
    record: Recorder,
    losses: bool,
) -> Iterator[tuple[int, list[int], float]]:
    """Every variant with its best token behind each of the last `laid` + 1 positions, and its mean loss on the `laid`
    tokens there, NaN without `losses`. The rows of all variants share the products with the head."""
    none = model.n_layers - n + 1
    trace = model.trace(model.tensor(tuple(ids)), on_block=lambda *_: record.check(), keep=1)
    starts = [variant for variant in variants if variant != none]
    fits = record.budget.fit(len(ids) * model.d_model * model.dtype.itemsize)
    parts = [starts[part] for part in even_chunks(len(starts), fits)] if starts else []
    step = lambda share: record.step(max(record.progress, 0.9 * share / len(parts)))  # noqa: E731
    walks = ((part, _ends(model, trace, n, part, record, step)) for part in parts)
    for part, final in chain(walks, [([none], trace.resid[-1])] * (none in variants)):
        ends = final[:, -laid - 1 :].flatten(0, 1)
        targets = trace.ids[0, len(ids) - laid :].repeat(len(part), 1)
        targets = torch.nn.functional.pad(targets, (0, 1)).flatten()  # nothing is laid behind the last
        best, lost = [], []
        for place, logits in _logits(model, ends, record):
            best.append(logits.argmax(-1))
            if losses:
                lost.append(-metrics.log_probabilities(logits).gather(-1, targets[place, None])[:, 0])
        means = torch.cat(lost).view(len(part), -1)[:, :-1].mean(-1).tolist() if losses else [math.nan] * len(part)
        yield from zip(part, torch.cat(best).view(len(part), -1).tolist(), means)


def _logits(
    model: LanguageModel, rows: Float[Tensor, "row d_model"], record: Recorder
) -> Iterator[tuple[slice, Float[Tensor, "some v"]]]:
    """The logits of these rows, as many in one product as are held at once."""
    for place in even_chunks(len(rows), _rows(model, record)):
        yield place, model.unembed(rows[place])
        record.check()


def _rows(model: LanguageModel, record: Recorder) -> int:
    """Rows whose logits are held at once."""
    return max(1, max(LOGIT_TOKENS, record.budget.logit_bytes // (8 * model.d_vocab)) >> record.budget.halvings)


def _positions(model: LanguageModel, n_tokens: int, record: Recorder) -> list[slice]:
    """Positions whose logits are compared at once."""
    return even_chunks(n_tokens, _rows(model, record))


def _ends(
    model: LanguageModel,
    trace: Trace,
    n: int,
    starts: Sequence[int],
    record: Recorder,
    step: Callable[[float], None],
) -> Float[Tensor, "start pos d_model"]:
    """`_walk`, once for all probes of a prompt: where its trace is kept, so is what a walk over all starts found."""
    if (kept := trace.ends.get(n)) is not None:
        step(1.0)
        return kept if len(starts) == len(kept) else kept[list(starts)]
    ends = _walk(model, trace, n, starts, record, step)
    if len(starts) == model.n_layers - n + 1 and model.keeps(trace, ends.numel() * ends.element_size()):
        trace.ends[n] = ends
    return ends


def _walk(
    model: LanguageModel,
    trace: Trace,
    n: int,
    starts: Sequence[int],
    record: Recorder,
    step: Callable[[float], None],
) -> Float[Tensor, "start pos d_model"]:
    """The last residual without blocks s … s+n-1, for these ascending s: variant s joins at block s+n with what
    entered block s."""
    n_tokens = trace.ids.shape[1]
    state = torch.cat([model.entering(trace, start, start + n) for start in starts])
    for layer in range(starts[0] + n, model.n_layers):

        def work(rows: slice) -> None:
            *_, state[rows] = model.run_block(trace, layer, state[rows])
            record.check()

        joined = bisect_right(starts, layer - n)
        record.budget.run(joined, lambda: record.budget.rows(n_tokens, model.call_bytes(n_tokens)), work)
        step((layer + 1 - starts[0] - n) / (model.n_layers - starts[0] - n))
    return state


def _chosen_set(drop: tuple[int, ...], model: LanguageModel, trace: Trace, record: Recorder) -> None:
    """The same figures for one set of blocks."""
    resid, kept = trace.resid[0], [layer for layer in range(model.n_layers) if layer not in drop]
    for layer, following in zip(kept, [*kept[1:], model.n_layers]):
        *_, resid = model.run_block(trace, layer, resid, crosses=model.crosses(layer, following))
    names = ("drop_nll", "drop_kl", "drop_top1_kept")
    for name in names:
        record.allocate(name, (resid.shape[1],))
    for place in _positions(model, resid.shape[1], record):
        _compare(_reference(model, trace, place), [model.unembed(resid[0, place])], record, names, [place])


def _reference(model: LanguageModel, trace: Trace, place: slice) -> metrics.AgainstModel:
    return metrics.AgainstModel(model.unembed(trace.resid[-1][0, place]), trace.ids[0, 1:][place])


def _compare(
    whole: metrics.AgainstModel,
    changed: Sequence[Float[Tensor, "pos v"]],
    record: Recorder,
    names: Sequence[str],
    places: Sequence[Any],
) -> None:
    """Write loss, divergence and kept best tokens under these names, of each changed model in its place."""
    for place, (loss, *others) in zip(places, whole.measures(changed), strict=True):
        for name, values in zip(names, (_to_the_end(loss, len(others[0])), *others)):
            record.write(name, place, values)
    record.check()


def _loss(logp: Float[Tensor, "pos v"], targets: Int[Tensor, " next"]) -> Float[Tensor, " pos"]:
    """`-log p(next token)`; NaN where there is no next token."""
    return _to_the_end(-logp[: len(targets)].gather(-1, targets.unsqueeze(-1)).squeeze(-1), len(logp))


def _to_the_end(loss: Float[Tensor, " next"], n_tokens: int) -> Float[Tensor, " pos"]:
    """With NaN at the last token, where there is no next one."""
    return torch.nn.functional.pad(loss, (0, n_tokens - len(loss)), value=float("nan"))
