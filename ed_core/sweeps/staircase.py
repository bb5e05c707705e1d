"""Skip sweeps, residual erasure and patching as staircases: one walk over the blocks instead of one forward pass per
variant.

At block l the batch holds every variant that was changed before l. Skips: a no-op row and every variant whose skipped
block is before l; variant s joins behind its block. That is L batched calls instead of L forward passes, half the
arithmetic, and every weight is read once. The baseline is the model's own traced pass, so the no-op row shows what
batching alone does to the numbers: the noise floor. Where the residuals of all variants do not fit the memory budget,
there are several walks, each over a stretch of the variants.

Erasure and patching: the variant changed at depth l joins at block l. A group of positions is walked at a time: its
columns are complete when the walk is, and the memory is that of one group. Tokens before the group are as they were, so
only their keys and values are needed; where a model's blocks cannot be called that way, whole sequences are walked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..models.identities import to_float64
from ..prompts import max_tokens
from . import metrics
from .budget import even_chunks

if TYPE_CHECKING:
    from ..models.language_model import Edit, LanguageModel
    from ..models.trace import Trace
    from ..types import Encoding, Prompt
    from .recorder import Recorder


LOGIT_TOKENS = 64  # positions unembedded at once at least: fewer would read the head's weights too often


@torch.no_grad()
def skip_sweep(
    model: LanguageModel,
    encoding: Encoding,
    record: Recorder,
    boundaries: list[int] | None = None,
    part: str = "layer",
    direct: bool = False,
) -> None:
    """Fill `layer_skip`'s measures. Variant v skips block `v // n_boundaries` before boundary `v % n_boundaries`.
    `boundaries`: future mode's first tokens looked at; None skips on all tokens but the first and looks at all (current
    mode). `part`: what is left out of the block, its attention, its MLP or the whole layer."""
    n_layers, n_tokens = model.n_layers, len(encoding)
    bounds = [n_tokens] if boundaries is None else boundaries
    _allocate(record, n_layers, n_tokens, boundaries, direct)
    if not bounds:
        record.note(
            f"With {n_tokens} tokens no boundary can be drawn (the papers' rule needs 13): every value is NaN, and "
            "aggregates leave it out."
        )
        return
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    pos = torch.arange(n_tokens, device=model.device)
    skip = torch.stack([(pos >= 1) & (pos < b) for b in bounds])  # [boundary, pos]: where the block is left out
    look = torch.stack([pos >= (0 if boundaries is None else b) for b in bounds])  # where effects are measured
    sweep = _Sweep(model, trace, skip, look, record, boundaries is None, part, direct)
    at_once = record.budget.fit(n_tokens * model.d_model * model.dtype.itemsize)
    stretches = even_chunks(n_layers * len(bounds), at_once)
    for done, variants in enumerate(stretches):
        sweep.walk(range(variants.start, variants.stop), lambda share: record.step((done + share) / len(stretches)))


class _Sweep:
    """One prompt's variants: what they share, and the arrays their figures go to."""

    def __init__(
        self,
        model: LanguageModel,
        trace: Trace,
        skip: Bool[Tensor, "b pos"],
        look: Bool[Tensor, "b pos"],
        record: Recorder,
        current: bool,
        part: str,
        direct: bool,
    ):
        self.model, self.trace, self.skip, self.look, self.record = model, trace, skip, look, record
        self.current, self.part, self.with_direct = current, part, direct
        self.n_bounds, self.n_tokens = skip.shape
        self.first_look: list[int] = look.int().argmax(-1).tolist()
        # a part is left out inside its block, so its variant joins there; a whole block's joins behind it
        self.late = part != "layer"
        self.most_rows = lambda: record.budget.rows(self.n_tokens, model.call_bytes(self.n_tokens))
        shape = (self.n_bounds, model.n_layers)
        self.effects, self.direct = (
            torch.full((*shape, model.n_layers), torch.nan, device=model.device) for _ in range(2)
        )
        self.seen_noise: set[int] = set()  # layers
        self.output, self.kept = (torch.full(shape, torch.nan, device=model.device) for _ in range(2))

    def walk(self, variants: range, step: Callable[[float], None]) -> None:
        """Fill the figures of a stretch of variants, from the first block they touch to the output. Row 0 is the
        no-op."""
        model, trace, n_bounds = self.model, self.trace, self.n_bounds
        skipped, bound = np.divmod(np.array(variants), n_bounds)
        self.at = metrics.to_device(model.device, bound), metrics.to_device(model.device, skipped)
        skips, looks = self.skip[self.at[0]], self.look[self.at[0]]
        first = int(skipped[0])
        self._nothing_before(first)
        state = trace.resid[first].repeat(1 + len(variants), 1, 1)
        total = sum(1 + int((skipped < layer + self.late).sum()) for layer in range(first, model.n_layers))
        done = 0
        for layer in range(first, model.n_layers):
            # rows whose block this is
            here = slice(1 + int((skipped < layer).sum()), 1 + int((skipped <= layer).sum()))
            active = here.stop if self.late else here.start
            if self.late:
                state[here] = trace.resid[layer]
            effects = self._through(layer, state, active, here, skips, looks)
            joining = slice(here.start - 1, here.stop - 1)
            if not self.late:
                update, where = trace.update(layer), skips[joining].unsqueeze(-1)
                kept = update.masked_fill(where, 0.0)
                effects.append(metrics.relative_change(update, kept, looks[joining]))
                without = model.entering(trace, layer, layer + 1)
                state[here] = torch.where(where, without, trace.resid[layer + 1])
            self._publish(layer, torch.cat(effects))
            if self.with_direct:
                self._direct(layer, skipped, bound)
            done += active
            step(0.95 * done / total)
        self._outputs(state[1:], looks, skipped, bound)

    def _through(
        self, layer: int, state: Tensor, active: int, here: slice, skips: Tensor, looks: Tensor
    ) -> list[Tensor]:
        """Take the first `active` rows of `state` through a block; their effects on it."""
        model, trace, update = self.model, self.trace, self.trace.update(layer)

        def work(rows: slice) -> Tensor:
            attn_edit: Edit | None = None
            mlp_edit: Edit | None = None
            if self.late:
                row = torch.arange(rows.start, rows.stop, device=state.device)
                own = ((row >= here.start) & (row < here.stop)).view(-1, 1)
                zero = own & skips[(row - 1).clamp_min(0)]

                def leave_out(added: Tensor) -> Tensor:
                    return added.masked_fill(zero.unsqueeze(-1), 0.0)

                attn_edit, mlp_edit = (leave_out, None) if self.part == "attention" else (None, leave_out)
            attn, mlp, post = model.run_block(trace, layer, state[rows], attn_edit, mlp_edit)
            shown = looks[max(rows.start - 1, 0) : rows.stop - 1]
            if rows.start == 0:
                shown = torch.cat([torch.ones_like(looks[:1]), shown])
            effect = metrics.relative_change(update, attn + mlp.float(), shown)
            state[rows] = post
            self.record.check()
            return effect

        return list(self.record.budget.each(active, self.most_rows, work))

    def _direct(self, layer: int, skipped: np.ndarray, bound: np.ndarray) -> None:
        """Direct effects on block `layer`: its update on the *original* residual less what one skipped block added,
        nothing in between."""
        model, trace, update = self.model, self.trace, self.trace.update(layer)
        added: Callable[[int], Tensor] = {
            "layer": trace.update,
            "attention": lambda s: trace.attn_out[s].float(),
            "mlp": lambda s: trace.mlp_out[s].float(),
        }[self.part]
        before = skipped < layer
        variants = list(zip(skipped[before].tolist(), bound[before].tolist()))  # the first of the stretch
        bounds, blocks = (index[: len(variants)] for index in self.at)

        def work(rows: slice) -> Tensor:
            removed = torch.cat([added(s).masked_fill(~self.skip[b].unsqueeze(-1), 0.0) for s, b in variants[rows]])
            attn, mlp, _ = model.run_block(trace, layer, (trace.resid[layer].float() - removed).to(model.dtype))
            self.record.check()
            return metrics.relative_change(update, attn + mlp.float(), self.look[bounds[rows]])

        copies = list(self.record.budget.each(len(variants), self.most_rows, work))
        self.direct[(*self.at, layer)] = 0.0
        if copies:
            self.direct[bounds, blocks, layer] = torch.cat(copies)
        self.record.write("effect_direct", (slice(None), layer), _over_bounds(self.direct[:, :, layer]))

    def _nothing_before(self, first: int) -> None:
        """Blocks before the first one skipped in this walk cannot change: zero by construction."""
        for values, name in (
            (self.effects, "effect"),
            *([(self.direct, "effect_direct")] if self.with_direct else []),
        ):
            values[(*self.at, slice(0, first))] = 0.0
            self.record.write(name, (slice(None), slice(0, first)), _over_bounds(values[:, :, :first]))
        if self.record.holds("effect_by_boundary"):
            self.record.write(
                "effect_by_boundary", (slice(None), slice(None), slice(0, first)), self.effects[:, :, :first].clone()
            )

    def _publish(self, layer: int, effects: Float[Tensor, " row"]) -> None:
        """Effects of the no-op and of every variant on block `layer`; later ones cannot reach it: zero by
        construction."""
        if layer not in self.seen_noise:
            self.seen_noise.add(layer)
            self.record.write("noise_floor", layer, effects[0])
        self.effects[(*self.at, layer)] = torch.nn.functional.pad(effects[1:], (0, len(self.at[0]) + 1 - len(effects)))
        self.record.write("effect", (slice(None), layer), _over_bounds(self.effects[:, :, layer]))
        if self.record.holds("effect_by_boundary"):
            here = self.effects[:, :, layer].clone()
            self.record.write("effect_by_boundary", (slice(None), slice(None), layer), here)

    def _outputs(
        self, state: Float[Tensor, "row pos d"], looks: Bool[Tensor, "row pos"], skipped: np.ndarray, bound: np.ndarray
    ) -> None:
        """Change of the predicted distribution, `|softmax(y) - softmax(y')|_2` where it is looked at, and whether the
        best token stays."""
        model, final = self.model, self.trace.resid[-1]
        change = torch.zeros(looks.shape, device=looks.device)
        same = torch.zeros(looks.shape, dtype=torch.bool, device=looks.device)
        chunk = max(LOGIT_TOKENS, self.record.budget.logit_bytes // (12 * model.d_vocab))
        for place in even_chunks(self.n_tokens, chunk):
            base = model.unembed(final[0, place])
            best, base = base.argmax(-1), base.softmax(-1)
            for b in np.unique(bound):  # rows of one boundary are looked at in the same places
                begin = max(self.first_look[b], place.start)
                if begin < place.stop:
                    rows = metrics.to_device(model.device, np.flatnonzero(bound == b))
                    shown = slice(begin - place.start, place.stop - place.start)
                    self._compare(state, rows, slice(begin, place.stop), best[shown], base[shown], change, same)
        self.output[self.at], self.kept[self.at] = change.amax(-1), (same & looks).sum(-1) / looks.sum(-1)
        self.record.write("output", slice(None), _over_bounds(self.output))
        self.record.write("top1_kept", slice(None), -_over_bounds(-self.kept))
        if self.current:
            self.record.write("output_pos", skipped, change)
        else:
            self.record.write("output_by_boundary", slice(None), self.output.clone())

    def _compare(
        self, state: Tensor, rows: Tensor, place: slice, best: Tensor, base: Tensor, change: Tensor, same: Tensor
    ) -> None:
        """Write the change of the distribution at these positions of these rows, and whether the best token is still
        unsurpassed."""
        every = len(rows) == len(state)

        def work(part: slice) -> None:
            here = part if every else rows[part]
            logits = self.model.unembed(state[here, place])
            target = best.expand(len(logits), -1).unsqueeze(-1)
            same[here, place] = logits.gather(-1, target).squeeze(-1) >= logits.amax(-1)
            change[here, place] = logits.softmax(-1).sub_(base).norm(dim=-1)
            self.record.check()

        budget = self.record.budget
        chunk = max(LOGIT_TOKENS, budget.logit_bytes // (12 * self.model.d_vocab))
        budget.run(len(rows), lambda: max(1, (chunk >> budget.halvings) // len(base)), work)


def _over_bounds(values: Float[Tensor, " b *rest"]) -> Float[Tensor, "*rest"]:
    """The maximum over the boundaries computed so far, apart from `values`; NaN where there is none yet."""
    return reduce(torch.fmax, values[1:], values[0].clone())


def _allocate(record: Recorder, n_layers: int, n_tokens: int, bounds: list[int] | None, direct: bool) -> None:
    for name in ("effect", *(["effect_direct"] if direct else [])):
        record.allocate(name, (n_layers, n_layers))
    for name in ("output", "top1_kept", "noise_floor"):
        record.allocate(name, (n_layers,))
    if bounds is None:
        record.allocate("output_pos", (n_layers, n_tokens))
        return
    record.allocate("boundaries", (len(bounds),))
    record.write("boundaries", slice(None), bounds)
    record.allocate("effect_by_boundary", (len(bounds), n_layers, n_layers))
    record.allocate("output_by_boundary", (len(bounds), n_layers))


POSITIONS_PER_WALK = 4


@torch.no_grad()
def erasure_sweep(
    model: LanguageModel, encoding: Encoding, record: Recorder, background: list[Prompt], future: bool = False
) -> None:
    """Fill `residual_erasure.effect` [depth, pos]: columns of a few positions at a time. `background`: whose mean
    residual replaces what is erased. `future`: look at all later tokens instead of the answer's."""
    n_layers, n_tokens = model.n_layers, len(encoding)
    record.allocate("effect", (n_layers + 1, n_tokens))
    mean = background_mean(model, background, record)
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    look = slice(1, n_tokens)
    if not future:
        assert encoding.answer_start is not None  # `residual_erasure` refuses a prompt without an answer
        look = slice(encoding.answer_start - 1, n_tokens - 1)
    base = model.unembed(trace.resid[-1][0, look]).softmax(-1)
    size = _positions_per_walk(model, n_tokens, record)
    groups = [range(i, min(i + size, n_tokens - 1)) for i in range(0, n_tokens - 1, size)]
    for group, part, start, final in _walks(model, trace, groups, lambda depth, group: mean[depth], record):
        _compare(model, final, base, look, group, part, start, future, record)
    if not future:
        record.write("effect", (slice(None), n_tokens - 1), 0.0)  # nothing that is looked at can feel the last position


LEAST_GAP = 0.1  # logits between two prompts, below which a share of it says nothing


@torch.no_grad()
def patch_sweep(model: LanguageModel, encoding: Encoding, other: Encoding, record: Recorder) -> None:
    """Fill `patching`'s measures: at each depth and position the stream of `other` replaces the prompt's own. Both are
    read up to the position that predicts the answer; positions are aligned from there."""
    (ids, trace), (other_ids, trace_other) = (_question(model, one, record) for one in (encoding, other))
    n_layers, last, shift = model.n_layers, len(ids) - 1, len(other_ids) - len(ids)
    record.allocate("patch", (n_layers + 1, len(encoding)))
    for name in ("last", "self", "random", "elsewhere", "decided"):
        record.allocate(name, (n_layers + 1,))
    for name in ("gap", "commitment", "settle_depth"):
        record.allocate(name, ())
    output, output_other = (model.unembed(one.resid[-1][0, -1:]) for one in (trace, trace_other))
    answers = [
        one.ids[one.answer_start] if one.answer_start else int(metrics.best(logits, 1)[1])
        for one, logits in ((encoding, output), (other, output_other))
    ]
    record.provenance["answers"] = [model.token_text(token) for token in answers]
    record.provenance["other"] = {"tokens": list(other.tokens), "answer_start": other.answer_start}

    def favour(logits: Tensor) -> Float[Tensor, " row"]:
        """By how many logits the other answer is ahead."""
        return logits[:, answers[1]] - logits[:, answers[0]]

    base, gap = favour(output), favour(output_other) - favour(output)
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
    controls = (last,) * 3

    def source(depth: int, group: Sequence[int]) -> Float[Tensor, "position d_model"]:
        stream = trace_other.resid[depth][0]
        if group is not controls:
            return stream[metrics.to_device(stream.device, group) + shift]
        random = metrics.to_device(stream.device, noise[depth].astype(np.float32))
        random *= metrics.norm(stream[-1].float()) / metrics.norm(random)
        return torch.stack([trace.resid[depth][0, last], random.to(stream.dtype), stream[(len(stream) - 1) // 2]])

    size = _positions_per_walk(model, len(ids), record)
    first = max(0, -shift)
    if not shift:  # what was read alike so far is alike, bit by bit
        first = next((i for i, pair in enumerate(zip(ids, other_ids)) if pair[0] != pair[1]), len(ids))
        record.write("patch", (slice(None), slice(0, first)), 0.0)
    groups: list[Sequence[int]] = [controls]
    groups += [range(i, min(i + size, len(ids))) for i in range(first, len(ids), size)]
    decided = torch.zeros(n_layers + 1, dtype=torch.bool, device=model.device)
    at_once = max(1, record.budget.logit_bytes // (12 * model.d_vocab))
    for group, part, start, final in _walks(model, trace, groups, source, record):
        reached = final[:, last - start]
        rows = torch.zeros(len(reached), device=reached.device)
        best = torch.zeros(len(reached), dtype=torch.bool, device=reached.device)

        def work(some: slice) -> None:
            logits = model.unembed(reached[some])
            rows[some] = (favour(logits) - base) / gap
            best[some] = metrics.best(logits, 1)[1][:, 0] == answers[1]
            record.check()

        record.budget.run(len(reached), lambda: max(1, at_once >> record.budget.halvings), work)
        depths, shares = slice(part.start, part.stop), rows.unflatten(0, (len(part), len(group)))
        if group is controls:
            for name, values in zip(("self", "random", "elsewhere"), shares.unbind(1)):
                record.write(name, depths, values)
            continue
        record.write("patch", (depths, slice(group[0], group[-1] + 1)), shares)
        if group[-1] == last:
            record.write("last", depths, shares[:, -1])
            decided[depths] = best.unflatten(0, shares.shape)[:, -1]
    record.write("decided", slice(None), decided.float())
    record.write("commitment", (), _from_there(decided))


def _question(model: LanguageModel, encoding: Encoding, record: Recorder) -> tuple[tuple[int, ...], Trace]:
    """The tokens up to the position that predicts the answer, and their trace."""
    ids = encoding.ids[: encoding.answer_start]
    return ids, model.trace(model.tensor(ids), on_block=lambda *_: record.check(), keep=1)


def _from_there(reached: Bool[Tensor, " depth"]) -> float:
    """The first depth from which on all are; NaN where the last one is not."""
    depth = int(reached.flip(0).long().cumprod(0).sum())
    return len(reached) - depth if depth else float("nan")


def _positions_per_walk(model: LanguageModel, n_tokens: int, record: Recorder) -> int:
    return max(1, min(POSITIONS_PER_WALK, _residuals(model, n_tokens, record) // (model.n_layers + 1)))


def _residuals(model: LanguageModel, n_tokens: int, record: Recorder) -> int:
    """How many residuals one walk may hold."""
    return record.budget.fit(n_tokens * model.d_model * model.dtype.itemsize)


def _walks(
    model: LanguageModel,
    trace: Trace,
    groups: Sequence[Sequence[int]],
    source: Callable[[int, Sequence[int]], Tensor],
    record: Recorder,
) -> Iterator[tuple[Sequence[int], range, int, Float[Tensor, "row suffix d_model"]]]:
    """Walk each group of positions: the group, the depths of this walk, the first position that was walked, and the
    last residual from there on of every variant, ordered by depth, positions within. `source(depth, group)`: what
    replaces the stream there."""
    suffix = model.identities is not None and model.identities.suffix_holds
    record.provenance["prefix"] = "keys and values reused" if suffix else "computed again"
    if not suffix:
        record.note(
            "This model's layers cannot be replayed from the middle of a prompt on: whole sequences were computed, "
            "which takes longer."
        )
    depths = even_chunks(model.n_layers + 1, _residuals(model, trace.ids.shape[1], record))
    walks = [(group, range(part.start, part.stop)) for group in groups for part in depths]
    for done, (group, part) in enumerate(walks):
        start = group[0] if suffix else 0
        final = _walk(
            model, trace, source, group, part, start, record, lambda share: record.step((done + share) / len(walks))
        )
        yield group, part, start, final
        record.step((done + 1) / len(walks))


def _walk(
    model: LanguageModel,
    trace: Trace,
    source: Callable[[int, Sequence[int]], Tensor],
    group: Sequence[int],
    depths: range,
    start: int,
    record: Recorder,
    step: Callable[[float], None],
) -> Float[Tensor, "row suffix d_model"]:
    """The last residual, from `start` on, of every variant changed at these depths and positions."""
    n_layers, size = model.n_layers, len(group)
    n_suffix = trace.ids.shape[1] - start
    state = trace.resid[0][:, start:].repeat(len(depths) * size, 1, 1)
    place = torch.arange(size, device=state.device), metrics.to_device(state.device, group) - start

    def most() -> int:
        return record.budget.rows(n_suffix, model.call_bytes(trace.ids.shape[1]))

    for depth in range(depths[0], n_layers + 1):
        joined = min(depth, depths[-1]) - depths[0] + 1
        if depth in depths:
            joining = trace.resid[depth][:, start:].repeat(size, 1, 1)
            joining[place] = source(depth, group).to(joining.dtype)
            state[(joined - 1) * size : joined * size] = joining
        if depth == n_layers:
            break

        def work(rows: slice) -> None:
            *_, state[rows] = model.run_block(trace, depth, state[rows], start=start)
            record.check()

        record.budget.run(joined * size, most, work)
        step((depth + 1 - depths[0]) / (n_layers + 1 - depths[0]))
    return state


def _compare(
    model: LanguageModel,
    final: Tensor,
    base: Tensor,
    look: slice,
    group: Sequence[int],
    depths: range,
    start: int,
    future: bool,
    record: Recorder,
) -> None:
    """Change of the predicted distribution where it is compared: positions before `start` have not changed."""
    begin = max(look.start, start)
    base = base[begin - look.start :]

    def work(rows: slice) -> None:
        change = (model.unembed(final[rows, begin - start : look.stop - start]).softmax(-1) - base).norm(dim=-1)
        for row, values in zip(range(rows.start, rows.stop), change):
            depth, pos = depths[row // len(group)], group[row % len(group)]
            shown = values[max(pos + 1 - begin, 0) :] if future else values
            record.write("effect", (depth, pos), shown.amax())
        record.check()

    at_once = max(1, record.budget.logit_bytes // (12 * model.d_vocab * len(base)))
    record.budget.run(len(final), lambda: max(1, at_once >> record.budget.halvings), work)


def background_mean(model: LanguageModel, prompts: list[Prompt], record: Recorder) -> Float[Tensor, "depth d_model"]:
    """Mean residual of every depth over all tokens of all background prompts, token-weighted, the first included;
    float32."""
    total: Tensor | None = None
    count = 0
    for prompt in prompts:
        ids = model.tensor(model.encode(prompt, max_tokens()))
        trace = model.trace(ids, on_block=lambda *_: record.check(), keep=1)
        summed = torch.stack([to_float64(h[0]).sum(0) for h in trace.resid])
        total = summed if total is None else total + summed
        count += trace.ids.shape[1]
    record.provenance["background"] = {"prompts": len(prompts), "tokens": count}
    assert total is not None  # a background has prompts
    return (total / count).float().to(model.device)
