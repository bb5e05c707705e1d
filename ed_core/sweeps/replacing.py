"""Erasure and patching: at one position and one depth the stream is replaced, and the rest of the model runs as it is.

The variant changed at depth l joins the walk at block l. A group of positions is walked at a time: its columns are
complete when the walk is, and the memory is that of one group. Tokens before the group are as they were, so only their
keys and values are needed; where a model's blocks cannot be called that way, whole sequences are walked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..models.identities import to_float64
from ..models.language_model import LanguageModel
from ..models.layouts import PerRow, Resid, Rows
from ..prompts import max_tokens
from ..types import Encoding, Prompt
from . import metrics
from .recorder import Recorder
from .staircase import Staircase

POSITIONS_PER_WALK = 4
LEAST_GAP = 0.1  # logits between two prompts, below which a share of it says nothing
UNCHANGED = -1  # in a group: a row in which nothing is replaced

Source = Callable[[int, Sequence[int]], Float[Tensor, "position d_model"]]


@torch.no_grad()
def erasure_sweep(
    model: LanguageModel, encoding: Encoding, record: Recorder, background: list[Prompt], future: bool = False
) -> None:
    """Fill `effect` `[depth, pos]` of the probe `residual_erasure`, a few positions at a time. `background`: the
    prompts with the mean residual that replaces what is erased. `future`: read the change at all later tokens, not the
    answer's."""
    n_tokens = len(encoding)
    record.allocate("effect")
    mean = background_mean(model, background, record)
    stairs = Staircase(model, encoding, record)
    look = slice(1, n_tokens)
    if not future:
        assert encoding.answer_start is not None  # `residual_erasure` refuses a prompt without an answer
        look = slice(encoding.answer_start - 1, n_tokens - 1)
    base = model.unembed(stairs.trace.resid[-1][0, look]).softmax(-1)
    for group, depths, start, final in _walks(stairs, _groups(stairs, 0, n_tokens - 1), lambda depth, _: mean[depth]):
        begin = max(look.start, start)  # positions before `start` have not changed
        whole, ends = base[begin - look.start :], final[:, begin - start : look.stop - start]

        def work(rows: slice) -> None:
            change = (model.unembed(ends[rows]).softmax(-1) - whole).norm(dim=-1)
            for row, values in zip(range(rows.start, rows.stop), change):
                depth, pos = depths[row // len(group)], group[row % len(group)]
                shown = values[max(pos + 1 - begin, 0) :] if future else values
                record.write("effect", (depth, pos), shown.amax())
            record.check()

        _read(stairs, len(ends), work, len(whole))
    if not future:
        record.write("effect", (slice(None), n_tokens - 1), 0.0)  # nothing that is looked at can feel the last position


def background_mean(model: LanguageModel, prompts: list[Prompt], record: Recorder) -> Float[Tensor, "depth d_model"]:
    """Return the mean residual at each depth over all tokens of all background prompts, first tokens included,
    float32."""
    encodings = [model.encode(prompt, max_tokens()) for prompt in prompts]
    traces = (record.traced(model, encoding) for encoding in encodings)
    total = sum(torch.stack([to_float64(h[0]).sum(0) for h in trace.resid]) for trace in traces)
    count = sum(map(len, encodings))
    record.provenance["background"] = {"prompts": len(prompts), "tokens": count}
    assert isinstance(total, Tensor)  # a background has prompts
    return (total / count).float().to(model.device)


@torch.no_grad()
def patch_sweep(model: LanguageModel, encoding: Encoding, other: Encoding, record: Recorder) -> None:
    """Fill the measures of the probe `patching`: at each depth and position the stream of `other` replaces the prompt's
    own. Both are read up to the position that predicts the answer, from which positions are aligned."""
    ids, other_ids = (one.ids[: one.answer_start] for one in (encoding, other))
    stairs, trace_other = Staircase(model, ids, record), record.traced(model, other_ids)
    trace, n_layers, last, shift = stairs.trace, model.n_layers, len(ids) - 1, len(other_ids) - len(ids)
    record.allocate(*record.specs)
    outputs = [model.unembed(one.resid[-1][0, -1:]) for one in (trace, trace_other)]
    answers = [
        one.ids[one.answer_start] if one.answer_start else int(metrics.best(logits, 1)[1])
        for one, logits in zip((encoding, other), outputs)
    ]
    record.provenance["answers"] = [model.encoder.label(token) for token in answers]
    record.provenance["other"] = {"tokens": list(other.tokens), "answer_start": other.answer_start}

    def lead(logits: Rows) -> PerRow:
        """Return by how many logits the other answer is ahead of the prompt's own."""
        return logits[:, answers[1]] - logits[:, answers[0]]

    gap = lead(outputs[1]) - lead(outputs[0])
    record.write("gap", (), gap[0])
    lens = model.unembed(torch.stack([trace_other.after(depth)[0, -1] for depth in range(n_layers + 1)]))
    record.write("settle_depth", (), _from_there(metrics.best(lens, 1)[1][:, 0] == answers[1]))
    if not gap.abs() >= LEAST_GAP:
        record.note(
            f"The two prompts favour the same answer (their difference is {float(gap):.2g} logits, and {LEAST_GAP} is "
            "needed), so there is nothing to carry over; choose a prompt with another answer."
        )
        return
    noise = np.random.default_rng(0).standard_normal((n_layers + 1, model.d_model))
    controls = (last, UNCHANGED, last, last)

    def source(depth: int, group: Sequence[int]) -> Float[Tensor, "position d_model"]:
        """Return the streams that replace the prompt's own at a depth, one for each position of the group."""
        stream = trace_other.resid[depth][0]
        if group is not controls:
            return stream[metrics.to_device(stream.device, group) + shift]
        random = metrics.to_device(stream.device, noise[depth].astype(np.float32))
        random *= metrics.norm(stream[-1].float()) / metrics.norm(random)
        return torch.stack([trace.resid[depth][0, last], random.to(stream.dtype), stream[(len(stream) - 1) // 2]])

    first = max(0, -shift)
    if not shift:  # what was read alike so far is alike, bit by bit
        first = next((i for i, pair in enumerate(zip(ids, other_ids)) if pair[0] != pair[1]), len(ids))
        record.write("patch", (slice(None), slice(0, first)), 0.0)
    unchanged = torch.zeros(n_layers + 1, 1, device=model.device)  # the lead where nothing is replaced, by depth
    decided = torch.zeros(n_layers + 1, dtype=torch.bool, device=model.device)
    for group, part, start, final in _walks(stairs, [controls, *_groups(stairs, first, len(ids))], source):
        reached = final[:, last - start]
        leads = torch.zeros(len(reached), device=reached.device)
        best = torch.zeros(len(reached), dtype=torch.bool, device=reached.device)

        def work(rows: slice) -> None:
            logits = model.unembed(reached[rows])
            leads[rows] = lead(logits)
            best[rows] = metrics.best(logits, 1)[1][:, 0] == answers[1]
            record.check()

        _read(stairs, len(reached), work, alike=_alike(group))
        depths, table = slice(part.start, part.stop), leads.unflatten(0, (len(part), len(group)))
        if group is controls:
            unchanged[depths] = table[:, 1:2]
        shares = (table - unchanged[depths]) / gap
        if group is controls:
            for name, values in zip(("self", "random", "elsewhere"), shares[:, [0, 2, 3]].unbind(1)):
                record.write(name, depths, values)
            continue
        record.write("patch", (depths, slice(group[0], group[-1] + 1)), shares)
        if group[-1] == last:
            record.write("last", depths, shares[:, -1])
            decided[depths] = best.unflatten(0, shares.shape)[:, -1]
    record.write("decided", slice(None), decided.float())
    record.write("commitment", (), _from_there(decided))


def _from_there(reached: Bool[Tensor, " depth"]) -> float:
    """Return the first depth from which on all values are true; NaN if the last one is not."""
    depth = int(reached.flip(0).long().cumprod(0).sum())
    return len(reached) - depth if depth else float("nan")


def _groups(stairs: Staircase, first: int, end: int) -> list[Sequence[int]]:
    """Return the positions `first..end-1` in groups, one for each walk over the layers."""
    size = max(1, min(POSITIONS_PER_WALK, stairs.at_once // (stairs.model.n_layers + 1)))
    return [range(i, min(i + size, end)) for i in range(first, end, size)]


def _alike(group: Sequence[int]) -> int:
    """Return how many consecutive rows must share one call: an unchanged row has to run with the one compared with
    it."""
    return 2 if UNCHANGED in group else 1


def _walks(
    stairs: Staircase, groups: Sequence[Sequence[int]], source: Source
) -> Iterator[tuple[Sequence[int], range, int, Resid]]:
    """Yield for each walk the group of positions, the depths, the first position computed, and every variant's last
    residual from there on, by depth and then position. `source(depth, group)`: what replaces the stream there."""
    model, record, trace = stairs.model, stairs.record, stairs.trace
    suffix = model.identities is not None and model.identities.suffix_holds
    record.provenance["prefix"] = "keys and values reused" if suffix else "computed again"
    if not suffix:
        record.note(
            "This model's layers cannot be replayed from the middle of a prompt on: whole sequences were computed, "
            "which takes longer."
        )
    walks = [(group, range(p.start, p.stop)) for group in groups for p in stairs.parts(model.n_layers + 1)]
    for done, (group, depths) in enumerate(walks):
        start = group[0] if suffix else 0
        rows = [row for row, position in enumerate(group) if position != UNCHANGED]
        place = rows, [group[row] - start for row in rows]
        state = torch.cat([trace.resid[depth][:, start:].repeat(len(group), 1, 1) for depth in depths])
        for number, depth in enumerate(depths):
            state[number * len(group) : (number + 1) * len(group)][place] = source(depth, group).to(state.dtype)
        enters = [depth for depth in depths for _ in group]
        step = lambda share: record.step((done + share) / len(walks))  # noqa: E731
        yield group, depths, start, stairs.climb(state, enters, step, start, _alike(group))
        record.step((done + 1) / len(walks))


def _read(stairs: Staircase, n_rows: int, work: Callable[[slice], None], size: int = 1, alike: int = 1) -> None:
    """Call `work` on slices of the rows, as many at a time as logits of `size` positions per row fit the budget. Each
    `alike` consecutive rows stay in one slice."""
    budget = stairs.budget
    most = max(1, budget.logit_bytes // (12 * stairs.model.d_vocab * size))
    budget.run(
        n_rows // alike,
        lambda: max(1, (most >> budget.halvings) // alike),
        lambda some: work(slice(some.start * alike, some.stop * alike)),
    )
