"""Skip sweeps in one walk over the blocks instead of one forward pass per skipped block.

At block l the batch holds a no-op row and every variant whose skipped block lies before l; variant s joins behind its block. That is L
batched calls instead of L forward passes, half the arithmetic, and every weight is read once. The baseline is the model's own traced pass,
so the no-op row shows what batching alone does to the numbers: the noise floor.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import metrics

if TYPE_CHECKING:
    from .model import LanguageModel
    from .probes.layer_skip import LayerSkip
    from .recorder import Recorder
    from .trace import Trace
    from .types import Encoding

TOKENS_PER_CALL = {"cpu": 768}  # rows x positions of one block call; larger batches gain nothing on a CPU and leave its cache
LOGIT_BYTES = {"cpu": 16 << 20}  # what the logits compared at once may take; larger arrays cost a page fault per 4 KB, each time anew
LOGIT_TOKENS = 64  # positions unembedded at once at least: fewer would read the head's weights too often


@torch.no_grad()
def skip_sweep(probe: LayerSkip, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
    """Fill `layer_skip`'s measures. Rows: 0 is the no-op, then the variants ordered by skipped block, boundaries within."""
    n_layers, n_tokens = model.n_layers, len(encoding)
    future = probe.mode == "future"
    bounds = probe.chosen_boundaries(n_tokens) if future else [n_tokens]
    _allocate(record, n_layers, n_tokens, bounds if future else None)
    if probe.direct:
        record.allocate("effect_direct", (n_layers, n_layers))
    if not bounds:
        record.note(f"With {n_tokens} tokens no boundary can be drawn (the papers' rule needs 13): every value is NaN, and aggregates leave it out.")
        return
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    pos = torch.arange(n_tokens, device=model.device)
    skip = torch.stack([(pos >= 1) & (pos < b) for b in bounds])  # [boundary, pos]: where the block is left out
    look = torch.stack([pos >= (b if future else 0) for b in bounds])  # where effects are measured
    n_bounds, late = len(bounds), probe.part != "layer"
    state = trace.resid[0].repeat(1 + n_layers * n_bounds, 1, 1)
    skips, looks = (torch.cat([x[:1], x.repeat(n_layers, 1)]) for x in (skip, look))
    looks[0] = True
    most_rows = max(1, TOKENS_PER_CALL.get(model.device.type, 16384) // n_tokens)
    total = sum(1 + n_bounds * (layer + late) for layer in range(n_layers))
    done = 0
    for layer in range(n_layers):
        joining = slice(1 + layer * n_bounds, 1 + (layer + 1) * n_bounds)
        update, active = trace.update(layer), 1 + n_bounds * (layer + late)
        if late:
            state[joining] = trace.resid[layer]
        effects = []
        for rows in even_chunks(active, most_rows):
            edit = _leave_out(skips[rows], rows.start, joining) if late else None
            added_attn, added_mlp, post = model.run_block(
                trace, layer, state[rows], edit if probe.part == "attention" else None, edit if probe.part == "mlp" else None
            )
            changed = added_attn.float() + added_mlp.float()
            effects.append(metrics.relative_change(update.expand_as(changed), changed, looks[rows]))
            state[rows] = post
            record.check()
        if not late:
            kept = update.masked_fill(skip.unsqueeze(-1), 0.0)
            effects.append(metrics.relative_change(update.expand_as(kept), kept, look))
            state[joining] = torch.where(skip.unsqueeze(-1), trace.resid[layer], trace.resid[layer + 1])
        _write_column(record, layer, n_bounds, torch.cat(effects))
        if probe.direct:
            _write_direct(probe, model, trace, layer, skip, look, most_rows, record)
        done += active
        record.step(0.95 * done / total)
    _write_output(probe, model, record, trace.resid[-1], state[1:], look)


def _write_direct(
    probe: LayerSkip, model: LanguageModel, trace: Trace, layer: int, skip: Tensor, look: Tensor, most_rows: int, record: Recorder
) -> None:
    """Direct effects on block `layer`: its update on the *original* residual less what one skipped block added, nothing in between."""
    added = {"layer": trace.update, "attention": lambda s: trace.attn_out[s].float(), "mlp": lambda s: trace.mlp_out[s].float()}[probe.part]
    n_bounds, update, found = len(skip), trace.update(layer), []
    for rows in even_chunks(layer * n_bounds, most_rows) if layer else []:
        variants = [divmod(row, n_bounds) for row in range(rows.start, rows.stop)]
        removed = torch.cat([added(s).masked_fill(~skip[b].unsqueeze(-1), 0.0) for s, b in variants])
        attn, mlp, _ = model.run_block(trace, layer, (trace.resid[layer].float() - removed).to(model.dtype))
        changed = attn.float() + mlp.float()
        found.append(metrics.relative_change(update.expand_as(changed), changed, look[[b for _, b in variants]]))
        record.check()
    record.write("effect_direct", (slice(None), layer), 0.0)
    if found:
        record.write("effect_direct", (slice(0, layer), layer), torch.cat(found).view(layer, n_bounds).amax(1))


def even_chunks(n_rows: int, most: int) -> list[slice]:
    """As few chunks as `most` rows each allow, of nearly equal size: a last chunk of one row would run a quarter slower."""
    n_chunks = -(-n_rows // most)
    ends = [n_rows * i // n_chunks for i in range(n_chunks + 1)]
    return [slice(begin, end) for begin, end in zip(ends, ends[1:])]


def _leave_out(skips: Tensor, first_row: int, joining: slice):
    """The edit that zeroes an addition on the skipped positions of the rows that join at this block."""
    row = torch.arange(first_row, first_row + len(skips), device=skips.device)
    zero = (skips & ((row >= joining.start) & (row < joining.stop)).unsqueeze(-1)).unsqueeze(-1)
    return lambda added: added.masked_fill(zero, 0.0)


def _allocate(record: Recorder, n_layers: int, n_tokens: int, bounds: list[int] | None) -> None:
    record.allocate("effect", (n_layers, n_layers))
    record.allocate("output", (n_layers,))
    record.allocate("top1_kept", (n_layers,))
    record.allocate("noise_floor", (n_layers,))
    if bounds is None:
        record.allocate("output_pos", (n_layers, n_tokens))
        return
    record.allocate("boundaries", (len(bounds),), "int32")
    record.write("boundaries", slice(None), bounds)
    record.allocate("effect_by_boundary", (len(bounds), n_layers, n_layers))
    record.allocate("output_by_boundary", (len(bounds), n_layers))


def _write_column(record: Recorder, layer: int, n_bounds: int, effects: Tensor) -> None:
    """Effects of the no-op and of every block up to this one on block `layer`; later ones cannot reach it: zero by construction."""
    per_bound = effects[1:].view(layer + 1, n_bounds)
    record.write("noise_floor", layer, effects[0])
    record.write("effect", (slice(0, layer + 1), layer), per_bound.amax(1))
    record.write("effect", (slice(layer + 1, None), layer), 0.0)
    if "effect_by_boundary" in record.arrays:
        record.write("effect_by_boundary", (slice(None), slice(0, layer + 1), layer), per_bound.T)
        record.write("effect_by_boundary", (slice(None), slice(layer + 1, None), layer), 0.0)


def _write_output(probe: LayerSkip, model: LanguageModel, record: Recorder, final: Tensor, state: Tensor, look: Tensor) -> None:
    """Change of the predicted distribution per skipped block: `|softmax(y) - softmax(y')|_2`, maximum over the tokens looked at."""
    n_bounds, n_tokens = look.shape
    n_layers = len(state) // n_bounds
    change = torch.empty(len(state), n_tokens)
    same = torch.empty(len(state), n_tokens, dtype=torch.bool)
    chunk = max(LOGIT_TOKENS, LOGIT_BYTES.get(model.device.type, 256 << 20) // (12 * model.d_vocab))
    for begin in range(0, n_tokens, chunk):
        at = slice(begin, min(begin + chunk, n_tokens))
        base = model.unembed(final[0, at])
        best, base = base.argmax(-1), base.softmax(-1)
        rows_per_call = max(1, chunk // (at.stop - at.start))
        for rows in even_chunks(len(state), rows_per_call):
            logits = model.unembed(state[rows, at])
            same[rows, at] = (logits.argmax(-1) == best).cpu()
            change[rows, at] = logits.softmax(-1).sub_(base).norm(dim=-1).cpu()
            record.check()
    change, same, look = change.view(n_layers, n_bounds, n_tokens), same.view(n_layers, n_bounds, n_tokens), look.cpu()
    by_bound = change.masked_fill(~look, 0.0).amax(-1)
    record.write("output", slice(None), by_bound.amax(-1))
    record.write("top1_kept", slice(None), ((same & look).sum(-1) / look.sum(-1)).amin(-1))
    if probe.mode == "current":
        record.write("output_pos", slice(None), change[:, 0])
    else:
        record.write("output_by_boundary", slice(None), by_bound.T)
