"""Linear replacement: what a model loses where one block is replaced by the least-squares map `h[s] -> h[s+1]`.

arXiv 2603.15389; METHODS §12: intercept not penalised, float64, ridge 1e-6 tr(G) / d. The fit leaves out the first
token of each prompt, which is read like no other; so the map acts on all tokens but the first, which keeps what the
block itself makes of it. The paper fits and measures on the same text; here held out, with both shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..machine import ROOM
from ..models.devices import total_bytes
from ..models.language_model import LanguageModel
from ..models.trace import Trace
from ..sweeps import metrics
from ..sweeps.budget import Budget
from ..types import Prompt
from . import measured
from .file import Checkpoint, Rows, checkpoint_file, told_of
from .maps import free_bytes, require_tokens, told
from .measured import Plan, Replacement
from .streams import FOLDS, RIDGE, Streams, Sums, Tick, distinct, few, folds, silent, split

Map = tuple[Tensor, Tensor]  # (A [d, d], b [d]), float64
SUMMED, LOST = 0.2, 0.4  # about the share of the time: the sums, and the loss on either prompt set


def fit(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    out: Path | None = None,
    test: Sequence[Prompt] | None = None,
    tick: Tick = silent,
    memory: int | None = None,
) -> Replacement:
    """Every block's map, fitted on `prompts`, and the loss with the block replaced on `test` (a fifth of the
    forms where there is none) and on `prompts`; written to `out` where it is given.

    Memory: the sums of as many blocks at once as `memory` bytes hold (nine tenths of what is free unless given), the
    rest in further passes. `FitRefused` where there are no more tokens than dimensions."""
    used, held_out = split(prompts, test)
    fitted_on, judged_on = Streams(model, used), Streams(model, held_out)
    tokens, test_tokens = require_tokens(fitted_on, True), require_tokens(judged_on, False)
    planned = plan(model, memory)
    what = _about(model, used)
    what |= {"held_out": told_of(held_out), "ridge": RIDGE}
    kept = Checkpoint(checkpoint_file(out) if out else None, what)
    names = ("loss", "whole", "error", "loss_fitted", "whole_fitted", "error_fitted")
    rows = Rows(kept, planned, dict.fromkeys(names, (model.n_layers,)))
    for blocks in rows.groups():

        def within(begin: float, share: float, blocks: tuple[int, ...] = blocks) -> Tick:
            return lambda done: tick(rows.share(blocks, begin + share * done))

        sums = _summed(fitted_on, blocks, rows, within(0.0, SUMMED))
        maps = {block: one.solve() for block, one in zip(blocks, sums)}
        for streams, end, begin in ((judged_on, "", SUMMED), (fitted_on, "_fitted", SUMMED + LOST)):
            lost = losses(streams, maps, within(begin, LOST))
            for name, values in zip(("loss", "whole", "error"), lost):
                rows.arrays[f"{name}{end}"][list(blocks)] = values
    found = Replacement(
        loss=rows.arrays["loss"],
        loss_fitted=rows.arrays["loss_fitted"],
        whole=float(rows.arrays["whole"][0]),
        whole_fitted=float(rows.arrays["whole_fitted"][0]),
        error=rows.arrays["error"],
        tokens=tokens,
        test_tokens=test_tokens,
        certificate=what | {"notes": few(tokens, model)},
    )
    if out:
        measured.write(out, found)
    kept.done()
    tick(1.0)
    return found


def _about(model: LanguageModel, used: Sequence[Prompt]) -> dict[str, Any]:
    return {"kind": Replacement.kind, "model": told(model), "prompts": told_of(used)}


def by_prompt(
    model: LanguageModel, prompts: Sequence[Prompt], tick: Tick = silent, memory: int | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """The loss of every prompt with each block replaced by a map that was fitted on the other four of five folds of
    forms (`streams.folds`): `loss` `[prompt, block]` and `whole` `[prompt]`, sums of -log p over the `tokens`
    `[prompt]` that have a next one, nats; `index` `[prompt]`: their places in `prompts`. `FitRefused` as `fit`."""
    streams = Streams(model, distinct(prompts))
    fold = folds(streams.prompts, seed)
    for held_out in range(FOLDS):
        require_tokens(Streams(model, [p for p, f in zip(streams.prompts, fold) if f != held_out]), True)
    lengths = np.array([len(streams.ids(p)) - 1 for p in streams.prompts], np.float64)
    judged = np.flatnonzero(lengths > 0)
    loss, whole = np.zeros((len(lengths), model.n_layers)), np.zeros(len(lengths))
    rows = Rows(Checkpoint(None, {}), plan(model, (memory or int(ROOM * free_bytes(model))) // FOLDS), {})
    for blocks in rows.groups():
        of_folds = [[Sums(model.d_model, model.d_model, model.device) for _ in blocks] for _ in range(FOLDS)]
        for i, trace in streams.traces():
            _add(trace, blocks, of_folds[fold[i]])
            tick(rows.share(blocks, (i + 1) / (2 * len(fold))))
        for held_out in range(FOLDS):
            others = [sums for f, sums in enumerate(of_folds) if f != held_out]
            maps = {block: first.plus(more).solve() for block, first, *more in zip(blocks, *others)}
            for i in map(int, judged[fold[judged] == held_out]):
                found, whole_mean, _ = losses(Streams(model, [streams.prompts[i]]), maps)
                loss[i, list(blocks)], whole[i] = found * lengths[i], whole_mean * lengths[i]
            tick(rows.share(blocks, (1 + (held_out + 1) / FOLDS) / 2))
    place = {p.text + p.answer: i for i, p in enumerate(prompts)}
    used = [streams.prompts[int(i)] for i in judged]
    index = np.array([place[p.text + p.answer] for p in used], np.int64)
    return {"loss": loss[judged], "whole": whole[judged], "tokens": lengths[judged], "index": index}


def plan(model: LanguageModel, memory: int | None = None) -> Plan:
    """How many blocks are summed at once. `TooLarge` where not even one has room."""
    free = free_bytes(model)
    planned = measured.plan_of_replacement(model.n_layers, model.d_model, memory or int(ROOM * free))
    measured.require_room(planned, free, f"Replacing the layers of {model.spec.name}")
    return planned


def _summed(streams: Streams, blocks: Sequence[int], rows: Rows, tick: Tick) -> list[Sums]:
    """One pass over the prompts: for each block the sums of what enters it and what leaves it."""
    model = streams.model
    sums = [Sums(model.d_model, model.d_model, model.device) for _ in blocks]
    for i, trace in streams.traces(rows.restore(blocks, sums)):
        _add(trace, blocks, sums)
        rows.keep(blocks, sums, i + 1)
        tick((i + 1) / len(streams.prompts))
    return sums


def _add(trace: Trace, blocks: Sequence[int], sums: Sequence[Sums]) -> None:
    """Add a prompt's tokens: of each block what enters it and what leaves it."""
    for block, one in zip(blocks, sums):
        one.add(trace.resid[block][0, 1:], trace.after(block + 1)[0, 1:])


def losses(streams: Streams, maps: Mapping[int, Map], tick: Tick = silent) -> tuple[np.ndarray, float, np.ndarray]:
    """`(loss [blocks], whole, error [blocks])`: the mean over next tokens of `-log p`, nats, with each block replaced
    by its map and of the whole model; and the maps' own error `mean_t |h[s+1] - f(h[s])| / |h[s+1]|`."""
    model, blocks = streams.model, list(maps)
    budget = Budget(None, model.device.type, f"Replacing the layers of {model.spec.name}", total_bytes(model.device))
    lost, error, whole, n = torch.zeros(len(blocks)).double(), torch.zeros(len(blocks)).double(), 0.0, 0
    for i, prompt in enumerate(streams.prompts):
        ids = streams.ids(prompt)
        if len(ids) < 2:
            continue
        following = torch.tensor(ids[1:], device=model.device)
        with torch.no_grad():
            trace = model.trace(model.tensor(ids), keep=1)
            whole += float(_lost(model, trace.resid[-1], following)[0])
            n += len(following)
            most = budget.rows(len(ids), model.call_bytes(len(ids)))
            for begin in range(0, len(blocks), most):
                at = slice(begin, begin + most)
                ends, apart = _replaced(model, trace, {block: maps[block] for block in blocks[at]})
                error[at] += apart.cpu()
                lost[at] += _lost(model, ends, following)
        tick((i + 1) / len(streams.prompts))
    return (lost / n).numpy(), whole / n, (error / n).numpy()


def _replaced(
    model: LanguageModel, trace: Trace, maps: Mapping[int, Map]
) -> tuple[Float[Tensor, "block pos d_model"], Float[Tensor, " block"]]:
    """`h[L]` with each of these blocks replaced, a row each, and the sum over tokens of each map's relative error. A
    row joins where its block stands, the rows of earlier blocks run along."""
    rows, apart = [], []
    running: Tensor | None = None
    for layer in range(min(maps), model.n_layers):
        if running is not None:
            if model.crosses(layer - 1, layer):
                running = model.between(trace, running)
            *_, running = model.run_block(trace, layer, running, crosses=False)
        if layer in maps:
            h, true = trace.resid[layer][0, 1:].double(), trace.after(layer + 1).clone()
            matrix, constant = maps[layer]
            guess, of_block = h @ matrix.T + constant, true[0, 1:].double()
            off = (guess - of_block).norm(dim=-1) / of_block.norm(dim=-1).clamp_min(metrics.NORM_FLOOR)
            apart.append(off.sum())
            true[0, 1:] = guess.to(true)
            running = true if running is None else torch.cat([running, true])
            rows.append(layer)
    assert running is not None  # the layer of the first map was passed
    return running, torch.stack(apart)


def _lost(model: LanguageModel, ends: Float[Tensor, "row pos d_model"], following: Tensor) -> Float[Tensor, " row"]:
    """The sum over next tokens of `-log p`, nats, of each row; one row at a time, because of the whole vocabulary."""
    found = []
    for row in ends:
        logp = metrics.log_probabilities(model.unembed(row[:-1]))
        found.append(-logp.gather(1, following[:, None]).double().sum())
    return torch.stack(found).cpu()
