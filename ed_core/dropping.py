"""Blocks taken out for good: every stretch of n in one walk, a variant joining behind its stretch."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from . import metrics
from .staircase import LOGIT_BYTES, TOKENS_PER_CALL, even_chunks

if TYPE_CHECKING:
    from .model import LanguageModel
    from .probes.prune import Prune
    from .recorder import Recorder
    from .trace import Trace
    from .types import Encoding


@torch.no_grad()
def drop_sweep(probe: Prune, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
    """Fill `prune`'s measures."""
    n_layers, n_tokens, n = model.n_layers, len(encoding), probe.n
    n_starts = n_layers - n + 1
    for name in ("kl", "top1_kept", "nll", "block_influence", "angular_distance", "update_cosine"):
        record.allocate(name, (n_starts, n_tokens))
    record.allocate("nll_whole", (n_tokens,))
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    for start in range(n_starts):
        before, after = trace.resid[start][0].float(), trace.resid[start + n][0].float()
        cosine = metrics.cosine(before, after)
        record.write("block_influence", start, 1 - cosine)
        record.write("angular_distance", start, cosine.arccos() / math.pi)
        record.write("update_cosine", start, metrics.cosine(after - before, before))
    record.step(0.1)
    final = _walk(model, trace, n, record)
    targets = trace.ids[0, 1:]
    chunk = max(1, LOGIT_BYTES.get(model.device.type, 256 << 20) // (16 * model.d_vocab))
    for begin in range(0, n_tokens, chunk):
        at = slice(begin, min(begin + chunk, n_tokens))
        whole = model.unembed(trace.resid[-1][0, at]).log_softmax(-1)
        record.write("nll_whole", at, _loss(whole, targets[at]))
        for start in range(n_starts):
            _compare(model, final[start, at], whole, targets[at], record, ("kl", "top1_kept", "nll"), (start, at))
        record.step(0.6 + 0.35 * at.stop / n_tokens)
    if probe.drop:
        _chosen_set(probe.drop, model, trace, record)


def _walk(model: LanguageModel, trace: Trace, n: int, record: Recorder) -> Float[Tensor, "start pos d_model"]:
    """The last residual without blocks s … s+n-1, for every s: variant s joins at block s+n with what entered block s."""
    n_layers, n_starts = model.n_layers, model.n_layers - n + 1
    state = torch.cat(trace.resid[:n_starts])
    most_rows = max(1, TOKENS_PER_CALL.get(model.device.type, 16384) // state.shape[1])
    for layer in range(n, n_layers):
        for rows in even_chunks(layer - n + 1, most_rows):
            *_, state[rows] = model.run_block(trace, layer, state[rows])
            record.check()
        record.step(0.1 + 0.5 * (layer + 1) / n_layers)
    return state


def _chosen_set(drop: tuple[int, ...], model: LanguageModel, trace: Trace, record: Recorder) -> None:
    """The same figures for one set of blocks."""
    resid = trace.resid[0]
    for layer in range(model.n_layers):
        if layer not in drop:
            *_, resid = model.run_block(trace, layer, resid)
    for name in ("drop_kl", "drop_top1_kept", "drop_nll"):
        record.allocate(name, (resid.shape[1],))
    whole = model.unembed(trace.resid[-1][0]).log_softmax(-1)
    _compare(model, resid[0], whole, trace.ids[0, 1:], record, ("drop_kl", "drop_top1_kept", "drop_nll"), slice(None))


def _compare(model, resid, whole, targets, record, names: tuple[str, str, str], at) -> None:
    pruned = model.unembed(resid).log_softmax(-1)
    record.write(names[0], at, metrics.kl(whole, pruned))
    record.write(names[1], at, (whole.argmax(-1) == pruned.argmax(-1)).float())
    record.write(names[2], at, _loss(pruned, targets))
    record.check()


def _loss(logp: Float[Tensor, "pos v"], targets: Int[Tensor, "next"]) -> Float[Tensor, "pos"]:
    """`-log p(next token)`; NaN where there is no next token."""
    loss = torch.full((len(logp),), float("nan"), device=logp.device)
    loss[: len(targets)] = -logp[: len(targets)].gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return loss
