"""Residual erasure as a staircase over depths: the variant erased at depth l joins at block l, and one walk carries all
of them.

A group of positions is walked at a time: its columns are complete when the walk is, and the memory is that of one
group. Tokens before the group are as they were, so only their keys and values are needed; where a model's blocks cannot
be called that way, whole sequences are walked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.identities import wide
from ..prompts import max_tokens
from . import metrics
from .budget import even_chunks

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..models.trace import Trace
    from ..types import Encoding, Prompt
    from .recorder import Recorder

POSITIONS_PER_WALK = 4


@torch.no_grad()
def erasure_sweep(
    model: LanguageModel, encoding: Encoding, record: Recorder, background: list[Prompt], future: bool = False
) -> None:
    """Fill `residual_erasure.effect` [depth, pos]: columns of a few positions at a time. `background`: whose mean
    residual stands in for what is erased. `future`: look at all later tokens instead of the answer's."""
    n_layers, n_tokens = model.n_layers, len(encoding)
    record.allocate("effect", (n_layers + 1, n_tokens))
    mean = background_mean(model, background, record)
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    look = slice(1, n_tokens)
    if not future:
        assert encoding.answer_start is not None  # `residual_erasure` refuses a prompt without an answer
        look = slice(encoding.answer_start - 1, n_tokens - 1)
    base = model.unembed(trace.resid[-1][0, look]).softmax(-1)
    suffix = model.identities is not None and model.identities.suffix_holds
    record.provenance["prefix"] = "keys and values reused" if suffix else "computed anew"
    if not suffix:
        record.note(
            "This model's layers cannot be replayed from the middle of a prompt on: whole sequences were computed, "
            "which takes longer."
        )
    at_once = record.budget.fit(n_tokens * model.d_model * model.dtype.itemsize)  # residuals of one walk
    depths = even_chunks(n_layers + 1, at_once)
    size = max(1, min(POSITIONS_PER_WALK, at_once // (n_layers + 1)))
    groups = [range(i, min(i + size, n_tokens - 1)) for i in range(0, n_tokens - 1, size)]
    walks = [(group, range(part.start, part.stop)) for group in groups for part in depths]
    for done, (group, part) in enumerate(walks):
        start = group[0] if suffix else 0
        final = _walk(
            model, trace, mean, group, part, start, record, lambda share: record.step((done + share) / len(walks))
        )
        _compare(model, final, base, look, group, part, start, future, record)
        record.step((done + 1) / len(walks))
    if not future:
        record.write("effect", (slice(None), n_tokens - 1), 0.0)  # nothing that is looked at can feel the last position


def _walk(
    model: LanguageModel,
    trace: Trace,
    mean: Tensor,
    group: range,
    depths: range,
    start: int,
    record: Recorder,
    step: Callable[[float], None],
) -> Float[Tensor, "row suffix d_model"]:
    """The last residual, from `start` on, of every variant erased at these depths and positions; ordered by depth,
    positions within."""
    n_layers, size = model.n_layers, len(group)
    n_suffix = trace.ids.shape[1] - start
    state = trace.resid[0][:, start:].repeat(len(depths) * size, 1, 1)
    at = torch.arange(size, device=state.device), metrics.on(state.device, group) - start

    def most() -> int:
        return record.budget.rows(n_suffix, model.call_bytes(trace.ids.shape[1]))

    for depth in range(depths[0], n_layers + 1):
        joined = min(depth, depths[-1]) - depths[0] + 1
        if depth in depths:
            joining = trace.resid[depth][:, start:].repeat(size, 1, 1)
            joining[at] = mean[depth].to(joining.dtype)
            state[(joined - 1) * size : joined * size] = joining
        if depth == n_layers:
            break

        def work(rows: slice) -> None:
            *_, state[rows] = model.run_block(trace, depth, state[rows], start=start)
            record.check()

        for _ in record.budget.each(joined * size, most, work):
            pass
        step((depth + 1 - depths[0]) / (n_layers + 1 - depths[0]))
    return state


def _compare(
    model: LanguageModel,
    final: Tensor,
    base: Tensor,
    look: slice,
    group: range,
    depths: range,
    start: int,
    future: bool,
    record: Recorder,
) -> None:
    """Change of the predicted distribution where it is looked at: what stands before `start` has not changed."""
    begin = max(look.start, start)
    base = base[begin - look.start :]

    def work(rows: slice) -> None:
        change = (model.unembed(final[rows, begin - start : look.stop - start]).softmax(-1) - base).norm(dim=-1)
        for row, values in zip(range(rows.start, rows.stop), change):
            depth, pos = depths[row // len(group)], group[row % len(group)]
            seen = values[max(pos + 1 - begin, 0) :] if future else values
            record.write("effect", (depth, pos), seen.amax())
        record.check()

    at_once = max(1, record.budget.logit_bytes // (12 * model.d_vocab * len(base)))
    for _ in record.budget.each(len(final), lambda: max(1, at_once >> record.budget.halvings), work):
        pass


def background_mean(model: LanguageModel, prompts: list[Prompt], record: Recorder) -> Float[Tensor, "depth d_model"]:
    """Mean residual of every depth over all tokens of all background prompts, token-weighted, the first included;
    float32."""
    total: Tensor | None = None
    count = 0
    for prompt in prompts:
        trace = model.trace(
            model.tensor(model.encode(prompt, max_tokens())), on_block=lambda *_: record.check(), keep=1
        )
        summed = torch.stack([wide(h[0]).sum(0) for h in trace.resid])
        total = summed if total is None else total + summed
        count += trace.ids.shape[1]
    record.provenance["background"] = {"prompts": len(prompts), "tokens": count}
    assert total is not None  # a background has prompts
    return (total / count).float().to(model.device)
