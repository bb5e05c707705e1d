"""Linear replacement: the loss of a model with one block replaced by the least-squares map `h[s] -> h[s+1]`.

arXiv 2603.15389; METHODS §12: intercept not penalised, float64, ridge 1e-6 tr(G) / d. The fit leaves out the first
token of each prompt, often an attention sink; so the map acts on all tokens but the first, which keeps the block's own
output. The paper fits and measures on the same text; here both that and held-out text are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..models import devices
from ..models.language_model import LanguageModel
from ..models.trace import Trace
from ..sweeps import metrics
from ..sweeps.budget import Budget
from ..types import Prompt
from .driver import Fitting, Tick, silent
from .least_squares import RIDGE, Sums
from .measured import Replacement, plan_of
from .streams import FOLDS, Streams, distinct, folds, model_entry, require_tokens

Map = tuple[Tensor, Tensor]  # (A [d, d], b [d]), float64
SUFFIXES = ("", "_fitted")  # on held-out prompts, on those fitted on
LOSSES = ("loss", "whole", "error")


class Within(Fitting):
    """Fits a linear map in place of each layer."""

    kind, summing = Replacement.kind, 0.2

    def __init__(self, model: LanguageModel, **how: Any):
        super().__init__(model, **how)
        require_tokens(self.on[0], fitted=True)
        self.about |= {"model": model_entry(model), "ridge": RIDGE}
        self.rows = {f"{name}{suffix}": ((), float) for suffix in SUFFIXES for name in LOSSES}

    def accumulate(self, sources: Sequence[int], sums: Sequence[Sums], begin: int) -> Iterator[int]:
        """Add prompts from number `begin` on to the sums; yield how many the sums contain."""
        for i, trace in self.on[0].traces(begin):
            add(trace, sources, sums)
            yield i + 1

    def solve(self, sources: Sequence[int], sums: Sequence[Sums]) -> dict[int, Map]:
        """Return the map of each layer, by its index from 0."""
        return {block: one.solve() for block, one in zip(sources, sums)}

    def evaluate(self, sources: Sequence[int], maps: dict[int, Map], tick: Tick) -> dict[str, np.ndarray]:
        """Return losses and errors by name, on held-out prompts and on those fitted on (`_fitted`)."""
        rows: dict[str, np.ndarray] = {}
        for part, (streams, suffix) in enumerate(zip((self.test[0], self.on[0]), SUFFIXES)):

            def within(share: float, part: int = part) -> None:
                tick((part + share) / 2)

            lost = losses(streams, maps, within)
            rows |= {f"{name}{suffix}": np.asarray(values) for name, values in zip(LOSSES, lost)}
        return rows


def by_prompt(
    model: LanguageModel, prompts: Sequence[Prompt], tick: Tick = silent, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return every prompt's loss with each layer replaced by a map fitted on the other four of five folds
    (`streams.folds`): `loss` `[prompt, layer]` and `whole` `[prompt]`, sums of -log p in nats over the `tokens`
    `[prompt]` that have a next one; `index` `[prompt]`, places in `prompts`. Raises `FitRefused` for too few prompts or
    tokens."""
    streams = Streams(model, distinct(prompts))
    fold = folds(streams.prompts, seed)
    for held_out in range(FOLDS):
        require_tokens(Streams(model, [p for p, f in zip(streams.prompts, fold) if f != held_out]), fitted=True)
    lengths = np.array(streams.lengths(), np.float64)
    judged = np.flatnonzero(lengths > 0)
    loss, whole_loss = np.zeros((len(lengths), model.n_layers)), np.zeros(len(lengths))
    planned = plan_of(Replacement.kind, [model], devices.free_bytes(str(model.device)) // FOLDS)
    for group, blocks in enumerate(groups := planned.groups(range(model.n_layers))):

        def within(share: float, group: int = group) -> None:
            tick((group + share) / len(groups))

        of_folds = [[Sums(model.d_model, model.d_model, model.device) for _ in blocks] for _ in range(FOLDS)]
        for i, trace in streams.traces():
            add(trace, blocks, of_folds[fold[i]])
            within((i + 1) / (2 * len(fold)))
        for held_out in range(FOLDS):
            others = [sums for f, sums in enumerate(of_folds) if f != held_out]
            maps = {block: first.plus(more).solve() for block, first, *more in zip(blocks, *others)}
            for i in map(int, judged[fold[judged] == held_out]):
                lost, whole_mean, _ = losses(Streams(model, [streams.prompts[i]]), maps)
                loss[i, list(blocks)], whole_loss[i] = lost * lengths[i], whole_mean * lengths[i]
            within((1 + (held_out + 1) / FOLDS) / 2)
    place = {p.text + p.answer: i for i, p in enumerate(prompts)}
    used = [streams.prompts[int(i)] for i in judged]
    index = np.array([place[p.text + p.answer] for p in used], np.int64)
    return {"loss": loss[judged], "whole": whole_loss[judged], "tokens": lengths[judged], "index": index}


def add(trace: Trace, blocks: Sequence[int], sums: Sequence[Sums]) -> None:
    """Add a prompt's tokens to the sums of each layer (`blocks`, from 0): the layer's input and output."""
    for block, one in zip(blocks, sums):
        one.add(trace.resid[block][0, 1:], trace.after(block + 1)[0, 1:])


def losses(streams: Streams, maps: Mapping[int, Map], tick: Tick = silent) -> tuple[np.ndarray, float, np.ndarray]:
    """Return `(loss [blocks], whole, error [blocks])`: mean `-log p` of the next token in nats, with each layer
    replaced by its map and for the whole model; and each map's error `mean_t |h[s+1] - f(h[s])| / |h[s+1]|`."""
    model, blocks = streams.model, list(maps)
    budget = Budget(
        None, model.device.type, f"Replacing the layers of {model.spec.name}", devices.total_bytes(model.device)
    )
    lost, error, whole_loss, n = torch.zeros(len(blocks)).double(), torch.zeros(len(blocks)).double(), 0.0, 0
    for i, prompt in enumerate(streams.prompts):
        ids = streams.ids(prompt)
        if len(ids) < 2:
            continue
        following = torch.tensor(ids[1:], device=model.device)
        with torch.no_grad():
            trace = model.trace(model.tensor(ids), keep=1)
            whole_loss += float(_lost(model, trace.resid[-1], following)[0])
            n += len(following)
            most = budget.rows(len(ids), model.call_bytes(len(ids)))
            for begin in range(0, len(blocks), most):
                part = slice(begin, begin + most)
                ends, errors = _replaced(model, trace, {block: maps[block] for block in blocks[part]})
                error[part] += errors.cpu()
                lost[part] += _lost(model, ends, following)
        tick((i + 1) / len(streams.prompts))
    return (lost / n).numpy(), whole_loss / n, (error / n).numpy()


def _replaced(
    model: LanguageModel, trace: Trace, maps: Mapping[int, Map]
) -> tuple[Float[Tensor, "block pos d_model"], Float[Tensor, " block"]]:
    """Return `h[L]` with each of these layers replaced, a row each, and each map's relative error summed over tokens.
    All rows run together, each from its layer on."""
    errors = []
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
            errors.append(off.sum())
            true[0, 1:] = guess.to(true)
            running = true if running is None else torch.cat([running, true])
    assert running is not None  # the layer of the first map was passed
    return running, torch.stack(errors)


def _lost(model: LanguageModel, ends: Float[Tensor, "row pos d_model"], following: Tensor) -> Float[Tensor, " row"]:
    """Return the sum of `-log p` of the next tokens `following`, nats, for each row; one row at a time to save
    memory."""
    lost = []
    for row in ends:
        logp = metrics.log_probabilities(model.unembed(row[:-1]))
        lost.append(-logp.gather(1, following[:, None]).double().sum())
    return torch.stack(lost).cpu()
