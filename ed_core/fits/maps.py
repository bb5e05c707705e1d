"""Maps between two models that read the same tokens: for every pair of taps the best affine map `h_A[i] -> h_B[j]`, in
closed form, and how far it is off on held-out prompts.

arXiv 2505.13898 §6 trains one linear layer per source tap with AdamW; the objective has a closed form in the sums over
tokens (METHODS §8): float64, intercept not penalised, ridge 1e-6 tr(G) / d with G the centred Gram matrix of the
source. The first token of each prompt is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import FitRefused
from ..machine import ROOM, free_memory
from ..models.language_model import LanguageModel
from ..sweeps.metrics import NORM_FLOOR
from ..types import Prompt
from . import measured
from .file import Checkpoint, Rows, checkpoint_file, told_of, weights_of
from .judged import FOR_R2
from .measured import Maps, Plan
from .streams import ENOUGH, RIDGE, Streams, Sums, Tick, few, same_tokens, silent, split

PIECE = 256 << 20  # bytes that the targets of tokens looked at together take
SUMMED, JUDGED = 0.6, 0.4  # about the share of the time
PER_PAIR = ("error", "r2", "error_shuffled", "r2_shuffled")
OF_MEAN = ("error_mean", "r2_mean")  # rows too, all alike, so that they come through a checkpoint


def fit(
    a: LanguageModel,
    b: LanguageModel,
    prompts: Sequence[Prompt],
    out: Path | None = None,
    test: Sequence[Prompt] | None = None,
    tick: Tick = silent,
    memory: int | None = None,
) -> Maps:
    """All maps from A's taps to B's, fitted on `prompts` and judged on `test` (a fifth of the forms unless given);
    written to `out` where it is given.

    Memory: the sums of as many source taps at once as `memory` bytes hold (nine tenths of what is free unless given),
    the rest in further passes; no number depends on it. `FitRefused` where the two do not read the same tokens, or
    where there are no more tokens than A has dimensions."""
    used, held_out = split(prompts, test)
    same_tokens(a, b, [*used, *held_out])
    fitted_on, judged_on = Pair(a, b, used), Pair(a, b, held_out)
    tokens, test_tokens = require_tokens(fitted_on.of_a, True), require_tokens(judged_on.of_a, False, FOR_R2)
    planned = plan(a, b, memory)
    what = _about(a, b, used)
    what |= {"held_out": told_of(held_out), "ridge": RIDGE}
    kept = Checkpoint(checkpoint_file(out) if out else None, what)
    shape = (a.n_layers + 1, b.n_layers + 1)
    rows = Rows(kept, planned, dict.fromkeys((*PER_PAIR, *OF_MEAN), shape))
    for taps in rows.groups():

        def within(begin: float, part: float, taps: tuple[int, ...] = taps) -> Tick:
            return lambda done: tick(rows.share(taps, begin + part * done))

        sums = _summed(fitted_on, taps, rows, within(0.0, SUMMED))
        solved = _Solved(sums, b)
        found = _judged(judged_on, taps, solved, within(SUMMED, JUDGED))
        for name, values in found.items():
            rows.arrays[name][list(taps)] = values.cpu().numpy()
    maps = Maps(
        **{name: rows.arrays[name] for name in PER_PAIR},
        **{name: rows.arrays[name][0].copy() for name in OF_MEAN},
        tokens=tokens,
        test_tokens=test_tokens,
        certificate=what | {"notes": few(tokens, a)},
    )
    if out:
        measured.write(out, maps)
    kept.done()
    tick(1.0)
    return maps


def _about(a: LanguageModel, b: LanguageModel, used: Sequence[Prompt]) -> dict[str, Any]:
    return {"kind": Maps.kind, "a": told(a), "b": told(b), "prompts": told_of(used)}


def plan(a: LanguageModel, b: LanguageModel, memory: int | None = None) -> Plan:
    """How many source taps are summed at once. `TooLarge` where not even one has room."""
    free = free_bytes(a)
    planned = measured.plan_of_maps((a.n_layers, b.n_layers), (a.d_model, b.d_model), memory or int(ROOM * free))
    measured.require_room(planned, free, f"Mapping {a.spec.name} to {b.spec.name}")
    return planned


def free_bytes(model: LanguageModel) -> int:
    """What is free where the model computes."""
    return torch.cuda.mem_get_info(model.device)[0] if model.device.type == "cuda" else free_memory()


def told(model: LanguageModel) -> dict[str, Any]:
    """A model, in a certificate."""
    return {
        "name": model.spec.name,
        "precision": model.spec.precision,
        "control": model.spec.control,
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "identity": weights_of(model.spec),
    }


def require_tokens(streams: Streams, fitted: bool, least: int = 1) -> int:
    """How many tokens the prompts have without their first; `FitRefused` where a map `fitted` on them would be found
    exactly whatever the targets are, or where there are fewer than `least` to judge on."""
    n, d = sum(max(0, len(streams.ids(prompt)) - 1) for prompt in streams.prompts), streams.model.d_model
    if fitted and n <= d:
        raise FitRefused(
            f"The prompts to fit on have {n} tokens besides their first ones and {streams.model.spec.name} has {d} "
            f"dimensions; a linear map needs more tokens than dimensions: provide at least {d + 1} tokens, ideally "
            f"{ENOUGH * d}."
        )
    if not n:
        raise FitRefused("No held-out prompt has a token besides its first; give longer ones.")
    if n < least:
        raise FitRefused(
            f"The held-out prompts have {n} token besides their first ones, and R² needs {least}; give more of them, "
            "or longer ones."
        )
    return n


class Pair:
    """The streams of both models on the same prompts."""

    def __init__(self, a: LanguageModel, b: LanguageModel, prompts: Sequence[Prompt]):
        self.of_a, self.of_b, self.prompts = Streams(a, prompts), Streams(b, prompts), prompts

    def each(
        self, begin: int = 0
    ) -> Iterator[tuple[int, list[Float[Tensor, "pos d_a"]], Float[Tensor, "pos targets"]]]:
        """From prompt `begin` on: its number, A's stream at every tap, and B's taps side by side, on A's device."""
        for (i, x), (_, y) in zip(self.of_a.each(begin), self.of_b.each(begin), strict=True):
            yield i, x, torch.cat(y, 1).to(x[0].device)

    def targets_before(self, begin: int) -> Tensor | None:
        """B's taps of the last prompt before `begin` that has tokens."""
        y = self.of_b.before(begin)
        return None if y is None else torch.cat(y, 1).to(self.of_a.model.device)


def _pieces(n: int, d_y: int) -> list[slice]:
    """Rows of a prompt whose targets, true and shuffled, fit into `PIECE` bytes."""
    rows = max(1, PIECE // (2 * measured.FLOAT * d_y))
    return [slice(i, min(i + rows, n)) for i in range(0, n, rows)]


def _summed(pair: Pair, taps: Sequence[int], rows: Rows, tick: Tick) -> list[Sums]:
    """One pass over the prompts: for each source tap, with targets `[B's taps, B's taps of other tokens]`.

    The other tokens are drawn from the prompt before, by a generator of this prompt's number: the same in whatever
    pieces, and the same tokens at every tap."""
    a, b = pair.of_a.model, pair.of_b.model
    d_y = (b.n_layers + 1) * b.d_model
    sums = [Sums(a.d_model, 2 * d_y, a.device) for _ in taps]
    begin = rows.restore(taps, sums)
    before = pair.targets_before(begin)
    for i, resid, y in pair.each(begin):
        pool = y if before is None else before
        drawn = torch.randint(len(pool), (len(y),), generator=torch.Generator().manual_seed(i)).to(y.device)
        for at in _pieces(len(y), d_y):
            both = torch.cat([y[at], pool[drawn[at]]], 1).double()
            for tap, one in zip(taps, sums):
                one.add(resid[tap][at], both)
        before = y
        rows.keep(taps, sums, i + 1)
        tick((i + 1) / len(pair.prompts))
    return sums


class _Solved:
    """Every source tap's maps, in the place of its sums: `weights[k]` `[d_A, 2 * targets]` and `constant[k]` `[2 *
    targets]`, float64; the second half is the shuffled control's. `mean` `[targets]` predicts the same everywhere."""

    def __init__(self, sums: Sequence[Sums], b: LanguageModel):
        self.weights, self.constant = [], []
        self.mean = sums[0].y[: (b.n_layers + 1) * b.d_model] / sums[0].n
        for one in sums:
            solve, constant = one.solver(), torch.empty_like(one.y)
            for begin in range(0, len(one.y), b.d_model):
                at = slice(begin, begin + b.d_model)
                matrix, constant[at] = solve(at)
                one.xy[:, at] = matrix.T
            self.weights.append(one.xy)
            self.constant.append(constant)


def _judged(pair: Pair, taps: Sequence[int], solved: _Solved, tick: Tick) -> dict[str, Tensor]:
    """`error` and `r2` of every pair, of the shuffled control and of the mean, `[taps, taps of B]`; float64."""
    b = pair.of_b.model
    n_b, d_b = b.n_layers + 1, b.d_model
    device = pair.of_a.model.device
    zeros = partial(torch.zeros, dtype=torch.float64, device=device)
    relative, miss = (zeros(len(taps), 2, n_b) for _ in range(2))  # true maps, shuffled ones
    of_mean, miss_mean = zeros(n_b), zeros(n_b)
    y_sum, y_square = zeros(n_b, d_b), zeros(n_b)
    mean, n = solved.mean.view(n_b, d_b), 0
    for i, resid, targets in pair.each():
        for at in _pieces(len(targets), n_b * d_b):
            y = targets[at].to(device, torch.float64).view(-1, n_b, d_b)
            size = y.norm(dim=-1).clamp_min(NORM_FLOOR)
            n += len(y)
            y_sum += y.sum(0)
            y_square += (y * y).sum((0, 2))
            apart = (y - mean).norm(dim=-1)
            of_mean += (apart / size).sum(0)
            miss_mean += (apart * apart).sum(0)
            for k, tap in enumerate(taps):
                guess = torch.addmm(solved.constant[k], resid[tap][at].to(device, torch.float64), solved.weights[k])
                apart = (guess.view(-1, 2, n_b, d_b) - y[:, None]).norm(dim=-1)
                relative[k] += (apart / size[:, None]).sum(0)
                miss[k] += (apart * apart).sum(0)
        tick((i + 1) / len(pair.prompts))
    spread = y_square - (y_sum * y_sum).sum(-1) / n
    error, r2 = relative / n, 1 - miss / spread
    return {
        "error": error[:, 0],
        "r2": r2[:, 0],
        "error_shuffled": error[:, 1],
        "r2_shuffled": r2[:, 1],
        "error_mean": (of_mean / n).expand(len(taps), -1),
        "r2_mean": (1 - miss_mean / spread).expand(len(taps), -1),
    }
