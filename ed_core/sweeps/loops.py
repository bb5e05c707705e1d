"""Passes of a looped model: how they move the stream, what goes without one, and what more of them do.

Every variant is an order of the unrolled layers (`dropping.in_order`), or the traced stream stopped after a pass."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ParameterError
from ..models.identities import to_float64
from ..models.language_model import LanguageModel
from ..models.layouts import Resid
from ..models.trace import Trace
from ..types import Encoding
from . import metrics
from .budget import even_chunks
from .dropping import in_order
from .recorder import Recorder
from .staircase import Staircase


@torch.no_grad()
def loop_sweep(model: LanguageModel, encoding: Encoding, record: Recorder, k: int, tested: int) -> None:
    """Fill the measures of the probe `loops`. `k`: best tokens compared; `tested`: the model is run with up to `tested`
    times its own number of passes. Raises `ParameterError` for a model that runs its layers once."""
    if model.n_passes < 2:
        raise ParameterError(
            f"The layers of {model.spec.name} run once, and loops compares passes; take a model whose layers run "
            "several times."
        )
    stairs = Staircase(model, encoding, record)
    trace = stairs.trace
    _streams(model, trace, record)
    if model.exit_gate is not None:
        _exits(model, trace, record)
    record.step(0.1)
    _block_skips(stairs)
    _times(model, trace, encoding, record, k, tested)


def _begins(model: LanguageModel) -> range:
    """Return the unrolled layers (pass times layers per pass, from 0) at which a pass begins."""
    return range(0, model.n_layers, len(model.stack))


def _streams(model: LanguageModel, trace: Trace, record: Recorder) -> None:
    """Write how far the stream is from earlier passes and from the last, and the update of each pass."""
    n, n_layers, n_passes = len(model.stack), model.n_layers, model.n_passes
    sizes = {"pass": n_passes, "later_pass": n_passes - 1, "later": n_layers - n}
    record.allocate("fixed_point", "to_last", "update_norm", "update_angle", "between", **sizes)
    resid = [h[0].float() for h in trace.resid]
    for layer in range(n_layers):
        last = resid[n_layers - n + layer % n]
        record.write("to_last", layer, metrics.ratio(resid[layer] - last, last))
        if layer >= n:
            moved = resid[layer] - resid[layer - n]
            record.write("fixed_point", layer - n, metrics.ratio(moved, resid[layer]))
    before: Tensor | None = None
    for number, begin in enumerate(_begins(model)):
        update = trace.after(begin + n)[0].float() - resid[begin]
        record.write("update_norm", number, metrics.norm(update))
        if before is not None:
            left = trace.after(begin)[0].float()
            record.write("update_angle", number - 1, metrics.cosine(before, update).arccos().rad2deg())
            record.write("between", number - 1, metrics.ratio(resid[begin] - left, left))
        before = update


def _exits(model: LanguageModel, trace: Trace, record: Recorder) -> None:
    """Write the exit gate's cumulative probability after each pass r, `1 - prod_{i <= r} (1 - sigmoid(gate))`; 1 after
    the last."""
    assert model.exit_gate is not None
    record.allocate("exit", **{"pass": model.n_passes})
    stays = torch.ones(trace.ids.shape[1], device=model.device)
    for number, begin in enumerate(_begins(model)):
        logit = model.exit_gate(model.final_norm(trace.after(begin + len(model.stack))))[0, :, 0]
        last = number == model.n_passes - 1
        stays = stays * (0 if last else 1 - logit.float().sigmoid().to(stays.device))
        record.write("exit", number, 1 - stays)


def _block_skips(stairs: Staircase) -> None:
    """Write the mean divergence and share of best tokens kept without each layer in every pass."""
    model, record, n = stairs.model, stairs.record, len(stairs.model.stack)
    record.allocate("block_skip_kl", "block_skip_top1_kept", block=n)
    for block in range(n):
        order = [layer for layer in range(model.n_layers) if layer % n != block]
        end = in_order(model, stairs.trace, order, record.check)
        kl, kept = to_float64(torch.zeros(2, device=end.device))
        for place, whole in stairs.references():
            for _, changed in stairs.compared(whole, place, end):
                kl, kept = kl + to_float64(changed.kl).sum(), kept + to_float64(changed.kept).sum()
        record.write("block_skip_kl", block, kl / stairs.n_tokens)
        record.write("block_skip_top1_kept", block, kept / stairs.n_tokens)
        record.step(0.1 + 0.3 * (block + 1) / n)


def stopped(model: LanguageModel, trace: Trace, most: int, record: Recorder) -> list[Resid]:
    """Return the stream after 0, 1, …, `most` passes: from the trace, then from repeating the last pass. Called to run
    a looped model with fewer or more passes."""
    n, n_layers = len(model.stack), model.n_layers
    ends = [trace.after(depth) for depth in (*_begins(model), n_layers)][: most + 1]
    while len(ends) <= most:
        resid, last = ends[-1], range(n_layers - n, n_layers)
        if model.crosses(n_layers - 1, last[0]):
            resid = model.between(trace, resid)
        for layer in last:
            *_, resid = model.run_block(trace, layer, resid, crosses=False)
            record.check()
        ends.append(resid)
    return ends


def _times(model: LanguageModel, trace: Trace, encoding: Encoding, record: Recorder, k: int, tested: int) -> None:
    """Write the model's figures with 0, 1, … passes, and how far the earlier readouts are from each output."""
    most, n_tokens, k = tested * model.n_passes, len(encoding), min(k, model.d_vocab)
    streams = stopped(model, trace, most, record)
    start, targets = encoding.answer_start, trace.ids[0, 1:]
    of_answer = () if start is None else ("times_rank", "times_right")
    measures = ("times_kl", "times_top1_kept", "times_loss", "readout_kl", "readout_overlap", *of_answer)
    record.allocate(*measures, times=most + 1, readout=most + 1)
    sums = to_float64(torch.zeros(2, most + 1, most + 1, device=model.device))
    whole_sums = to_float64(torch.zeros(2, most + 1, device=model.device))
    losses: list[list[Tensor]] = [[] for _ in streams]
    ranks: list[list[Tensor]] = [[] for _ in streams]
    chunks = even_chunks(n_tokens, max(1, record.budget.logit_bytes // (4 * model.d_vocab * (most + 8))))
    for done, place in enumerate(chunks):
        logits = [model.unembed(stream[0, place]) for stream in streams]
        reference = metrics.AgainstModel(logits[model.n_passes], targets[place])
        for times, (out, (loss, apart, same)) in enumerate(zip(logits, reference.measures(logits))):
            losses[times].append(loss)
            ranks[times].append(metrics.rank(out[: len(targets[place])], targets[place]))
            whole_sums[:, times] += torch.stack([to_float64(apart).sum(), to_float64(same).sum()])
            against = metrics.AgainstOutput(out, k)
            for readout in range(times + 1):
                row = against.measure(logits[readout])
                shared = metrics.overlap(row["ids"], against.best[1])
                sums[:, times, readout] += torch.stack([to_float64(row["kl"]).sum(), to_float64(shared).sum()])
            record.step(0.4 + 0.6 * (done + (times + 1) / len(logits)) / len(chunks))
    unread = torch.ones(most + 1, most + 1, dtype=torch.bool, device=sums.device).triu(1)  # after more passes than run
    for name, values in zip(("readout_kl", "readout_overlap"), sums / n_tokens):
        record.write(name, slice(None), values.masked_fill(unread, torch.nan))
    for name, values in zip(("times_kl", "times_top1_kept"), whole_sums / n_tokens):
        record.write(name, slice(None), values)
    answer = slice(None if start is None else start - 1, None)
    for times in range(most + 1):
        record.write("times_loss", times, to_float64(torch.cat(losses[times])[answer]).mean())
        if start is not None:
            worst = torch.cat(ranks[times])[answer].max()
            record.write("times_rank", times, worst)
            record.write("times_right", times, (worst == 1).float())
