"""What changes when a block, or one of its branches, is left out on some tokens: all L skips in one walk.

Variant v skips block `v // n_bounds` before boundary `v % n_bounds`. Row 0 of the walk is a no-op: the baseline is the
model's own traced pass, so this row shows what batching alone does to the numbers, the noise floor."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..models.language_model import LanguageModel
from ..models.layouts import Edit, PerRow, Resid, TokenMask
from ..types import Encoding
from . import metrics
from .budget import even_chunks
from .recorder import Recorder
from .staircase import LOGIT_TOKENS, Staircase


@torch.no_grad()
def skip_sweep(
    model: LanguageModel,
    encoding: Encoding,
    record: Recorder,
    boundaries: list[int] | None = None,
    part: str = "layer",
    direct: bool = False,
) -> None:
    """Fill the measures of the probe `layer_skip`. `boundaries`: the first tokens looked at, with the skip before them;
    None skips on all tokens but the first and looks at all. `part`: what is left out, "layer", "attention" or "mlp".
    `direct`: measure direct effects too."""
    record.allocate("effect", "output", "top1_kept", "noise_floor", *["effect_direct"] * direct)
    if boundaries is None:
        record.allocate("output_pos")
    else:
        record.allocate("boundaries", "effect_by_boundary", "output_by_boundary", boundary=len(boundaries))
        record.write("boundaries", slice(None), boundaries)
    if boundaries == []:
        record.note(
            f"With {len(encoding)} tokens no boundary can be drawn (the papers' rule needs 13): every value is NaN, "
            "and aggregates leave it out."
        )
        return
    sweep = _Sweep(model, encoding, record, boundaries, part, direct)
    parts = sweep.parts(model.n_layers * sweep.n_bounds)
    for done, variants in enumerate(parts):
        sweep.walk(range(variants.start, variants.stop), lambda share: record.step((done + share) / len(parts)))


class _Sweep(Staircase):
    """One prompt's skip variants and the arrays of their figures. `skip`, `look` `[boundary, pos]`: masks of the tokens
    where the layer is left out, and where effects are measured."""

    def __init__(
        self,
        model: LanguageModel,
        encoding: Encoding,
        record: Recorder,
        boundaries: list[int] | None,
        part: str,
        direct: bool,
    ):
        super().__init__(model, encoding, record)
        self.current, self.part, self.with_direct = boundaries is None, part, direct
        bounds = boundaries or [self.n_tokens]
        pos = torch.arange(self.n_tokens, device=model.device)
        self.skip = torch.stack([(pos >= 1) & (pos < b) for b in bounds])
        self.look = torch.stack([pos >= (0 if self.current else b) for b in bounds])
        self.first_look, self.n_bounds = [0] if self.current else bounds, len(bounds)
        # a part is left out inside its block, so its variant joins there; a whole block's joins behind it
        self.late = part != "layer"
        self.most_rows = lambda: self.budget.rows(self.n_tokens, model.call_bytes(self.n_tokens))
        shape = (self.n_bounds, model.n_layers)
        self.effects, self.direct = (
            torch.full((*shape, model.n_layers), torch.nan, device=model.device) for _ in range(2)
        )
        self.output, self.kept = (torch.full(shape, torch.nan, device=model.device) for _ in range(2))
        self.seen_noise: set[int] = set()  # layers

    def walk(self, variants: range, step: Callable[[float], None]) -> None:
        """Fill the figures of these variants, from the first layer they skip to the output; `step` gets the share
        done."""
        model, trace = self.model, self.trace
        skipped, bound = np.divmod(np.array(variants), self.n_bounds)
        self.at = metrics.to_device(model.device, bound), metrics.to_device(model.device, skipped)
        skips, looks = self.skip[self.at[0]], self.look[self.at[0]]
        first = int(skipped[0])
        self._nothing_before(first)
        state = trace.resid[first].repeat(1 + len(variants), 1, 1)
        for layer in range(first, model.n_layers):
            # rows whose block this is
            here = slice(1 + int((skipped < layer).sum()), 1 + int((skipped <= layer).sum()))
            if self.late:
                state[here] = trace.resid[layer]
            effects = self._effects(layer, state, here.stop if self.late else here.start, here, skips, looks)
            joining = slice(here.start - 1, here.stop - 1)
            if not self.late:
                update, where = trace.update(layer), skips[joining].unsqueeze(-1)
                effects.append(metrics.relative_change(update, update.masked_fill(where, 0.0), looks[joining]))
                state[here] = torch.where(where, model.entering(trace, layer, layer + 1), trace.resid[layer + 1])
            self._publish(layer, torch.cat(effects))
            if self.with_direct:
                self._direct(layer, skipped, bound)
            step(0.95 * (layer + 1 - first) / (model.n_layers - first))
        self._outputs(state[1:], looks, skipped, bound)

    def _effects(
        self, layer: int, state: Resid, active: int, here: slice, skips: TokenMask, looks: TokenMask
    ) -> list[PerRow]:
        """Run the first `active` rows of `state` through a layer, in place; return their effects on its update. `here`:
        the rows that skip a part of this very layer."""
        model, trace, update = self.model, self.trace, self.trace.update(layer)

        def work(rows: slice) -> PerRow:
            edits: tuple[Edit | None, Edit | None] = None, None
            if self.late:
                row = torch.arange(rows.start, rows.stop, device=state.device)
                own = ((row >= here.start) & (row < here.stop)).view(-1, 1)
                zero = (own & skips[(row - 1).clamp_min(0)]).unsqueeze(-1)

                def leave_out(added: Tensor) -> Tensor:
                    return added.masked_fill(zero, 0.0)

                edits = (leave_out, None) if self.part == "attention" else (None, leave_out)
            attn, mlp, post = model.run_block(trace, layer, state[rows], *edits)
            shown = looks[max(rows.start - 1, 0) : rows.stop - 1]
            if rows.start == 0:
                shown = torch.cat([torch.ones_like(looks[:1]), shown])
            effect = metrics.relative_change(update, attn + mlp.float(), shown)
            state[rows] = post
            self.record.check()
            return effect

        return list(self.budget.each(active, self.most_rows, work))

    def _direct(self, layer: int, skipped: np.ndarray, bound: np.ndarray) -> None:
        """Write the direct effects on `layer`: the change of its update if its original input lacks what one skipped
        layer added."""
        model, trace, update = self.model, self.trace, self.trace.update(layer)
        added: Callable[[int], Tensor] = {
            "layer": trace.update,
            "attention": lambda s: trace.attn_out[s].float(),
            "mlp": lambda s: trace.mlp_out[s].float(),
        }[self.part]
        before = skipped < layer
        variants = list(zip(skipped[before].tolist(), bound[before].tolist()))  # the first of the stretch
        bounds, blocks = (index[: len(variants)] for index in self.at)

        def work(rows: slice) -> PerRow:
            removed = torch.cat([added(s).masked_fill(~self.skip[b].unsqueeze(-1), 0.0) for s, b in variants[rows]])
            attn, mlp, _ = model.run_block(trace, layer, (trace.resid[layer].float() - removed).to(model.dtype))
            self.record.check()
            return metrics.relative_change(update, attn + mlp.float(), self.look[bounds[rows]])

        effects = list(self.budget.each(len(variants), self.most_rows, work))
        self.direct[(*self.at, layer)] = 0.0
        if effects:
            self.direct[bounds, blocks, layer] = torch.cat(effects)
        self.record.write("effect_direct", (slice(None), layer), _over_bounds(self.direct[:, :, layer]))

    def _nothing_before(self, first: int) -> None:
        """Write 0 for the effects on layers before `first`, which precede every layer skipped in this walk."""
        for values, name in ((self.effects, "effect"), (self.direct, "effect_direct")):
            values[(*self.at, slice(0, first))] = 0.0
            if self.record.holds(name):
                self.record.write(name, (slice(None), slice(0, first)), _over_bounds(values[:, :, :first]))
        if not self.current:
            before = self.effects[:, :, :first].clone()
            self.record.write("effect_by_boundary", (slice(None), slice(None), slice(0, first)), before)

    def _publish(self, layer: int, effects: PerRow) -> None:
        """Write the effects on `layer`: of the row that changes nothing (the noise floor) and of every variant. Later
        variants cannot reach it and get 0."""
        if layer not in self.seen_noise:
            self.seen_noise.add(layer)
            self.record.write("noise_floor", layer, effects[0])
        self.effects[(*self.at, layer)] = torch.nn.functional.pad(effects[1:], (0, len(self.at[0]) + 1 - len(effects)))
        self.record.write("effect", (slice(None), layer), _over_bounds(self.effects[:, :, layer]))
        if not self.current:
            here = self.effects[:, :, layer].clone()
            self.record.write("effect_by_boundary", (slice(None), slice(None), layer), here)

    def _outputs(self, state: Resid, looks: TokenMask, skipped: np.ndarray, bound: np.ndarray) -> None:
        """Write the change of the predicted distribution, `|softmax(y) - softmax(y')|_2`, and the share of best tokens
        that stay unsurpassed, where each variant is looked at."""
        model, budget = self.model, self.budget
        change = torch.zeros(looks.shape, device=looks.device)
        same = torch.zeros(looks.shape, dtype=torch.bool, device=looks.device)
        chunk = max(LOGIT_TOKENS, budget.logit_bytes // (12 * model.d_vocab))
        for place in even_chunks(self.n_tokens, chunk):
            whole = model.unembed(self.trace.resid[-1][0, place])
            best, base = whole.argmax(-1), whole.softmax(-1)
            for b in np.unique(bound):  # rows of one boundary are looked at in the same places
                begin = max(self.first_look[b], place.start)
                rows = metrics.to_device(model.device, np.flatnonzero(bound == b))
                size, shown, seen = place.stop - begin, slice(begin, place.stop), slice(begin - place.start, None)

                def work(part: slice) -> None:
                    here = part if len(rows) == len(state) else rows[part]
                    logits = model.unembed(state[here, shown])
                    target = best[seen].expand(len(logits), -1).unsqueeze(-1)
                    same[here, shown] = logits.gather(-1, target).squeeze(-1) >= logits.amax(-1)
                    change[here, shown] = logits.softmax(-1).sub_(base[seen]).norm(dim=-1)
                    self.record.check()

                if size > 0:
                    budget.run(len(rows), lambda: max(1, (chunk >> budget.halvings) // size), work)
        self.output[self.at], self.kept[self.at] = change.amax(-1), (same & looks).sum(-1) / looks.sum(-1)
        self.record.write("output", slice(None), _over_bounds(self.output))
        self.record.write("top1_kept", slice(None), -_over_bounds(-self.kept))
        if self.current:
            self.record.write("output_pos", skipped, change)
        else:
            self.record.write("output_by_boundary", slice(None), self.output.clone())


def _over_bounds(values: Float[Tensor, " b *rest"]) -> Float[Tensor, "*rest"]:
    """Return a new tensor: the maximum over the boundaries (first axis) computed so far, NaN without any."""
    return reduce(torch.fmax, values[1:], values[0].clone())
