"""Residual erasure as a staircase over depths: the variant erased at depth l joins at block l, and one walk carries all of them.

A group of positions is walked at a time: its columns are complete when the walk is, and the memory is that of one group.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from .prompts import max_tokens
from .staircase import TOKENS_PER_CALL, even_chunks

if TYPE_CHECKING:
    from .model import LanguageModel
    from .probes.residual_erasure import ResidualErasure
    from .recorder import Recorder
    from .types import Encoding, Prompt

POSITIONS_PER_WALK = 4


@torch.no_grad()
def erasure_sweep(probe: ResidualErasure, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
    """Fill `residual_erasure.effect` [depth, pos]: columns of a few positions at a time."""
    n_layers, n_tokens = model.n_layers, len(encoding)
    record.allocate("effect", (n_layers + 1, n_tokens))
    mean = background_mean(model, probe.background_prompts(), record)
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    future = probe.target == "future"
    look_from = 1 if future else encoding.answer_start - 1
    look_to = n_tokens if future else n_tokens - 1
    base = model.unembed(trace.resid[-1][0, look_from:look_to]).softmax(-1)
    groups = [list(range(i, min(i + POSITIONS_PER_WALK, n_tokens))) for i in range(0, n_tokens, POSITIONS_PER_WALK)]
    for done, group in enumerate(groups):
        final = _walk(model, trace, mean, group, record, lambda share: record.step((done + share) / len(groups)))
        for rows in even_chunks(len(final), max(1, TOKENS_PER_CALL.get(model.device.type, 16384) // max(1, look_to - look_from))):
            change = (model.unembed(final[rows, look_from:look_to]).softmax(-1) - base).norm(dim=-1)
            for row, values in zip(range(rows.start, rows.stop), change):
                depth, t = row // len(group), group[row % len(group)]
                seen = values[t + 1 - look_from if future else 0 :]
                record.write("effect", (depth, t), seen.amax() if len(seen) else (float("nan") if future else 0.0))
        if not future and n_tokens - 1 in group:
            record.write("effect", (slice(None), n_tokens - 1), 0.0)
        record.step((done + 1) / len(groups))


def _walk(model: LanguageModel, trace, mean: Tensor, group: list[int], record: Recorder, step) -> Float[Tensor, "row pos d_model"]:
    """The last residual of every variant, ordered by depth, positions within: `[(L + 1) * group, pos, d_model]`."""
    n_layers, size = model.n_layers, len(group)
    state = trace.resid[0].repeat((n_layers + 1) * size, 1, 1)
    at = torch.arange(size, device=state.device), torch.tensor(group, device=state.device)
    most_rows = max(1, TOKENS_PER_CALL.get(model.device.type, 16384) // state.shape[1])
    for depth in range(n_layers + 1):
        joining = trace.resid[depth].repeat(size, 1, 1)
        joining[at] = mean[depth].to(joining.dtype)
        state[depth * size : (depth + 1) * size] = joining
        if depth == n_layers:
            return state
        for rows in even_chunks((depth + 1) * size, most_rows):
            *_, state[rows] = model.run_block(trace, depth, state[rows])
            record.check()
        step((depth + 1) * (depth + 2) / ((n_layers + 1) * (n_layers + 2)))


def background_mean(model: LanguageModel, prompts: list[Prompt], record: Recorder) -> Float[Tensor, "depth d_model"]:
    """Mean residual of every depth over all tokens of all background prompts, token-weighted, the first included; float32."""
    total, count = 0.0, 0
    for prompt in prompts:
        trace = model.trace(model.tensor(model.encode(prompt, max_tokens())), on_block=lambda *_: record.check(), keep=1)
        total = total + torch.stack([h[0].double().sum(0) for h in trace.resid])
        count += trace.ids.shape[1]
    record.provenance["background"] = {"prompts": len(prompts), "tokens": count}
    return (total / count).float()
