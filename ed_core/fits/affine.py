"""The affine lens: `A_l, b_l` by least squares from `h[l]` to `h[L]`, in one pass over the prompts.

It minimises squared error and not the divergence, so it is not the tuned lens (arXiv 2303.08112). Source: Din et al.
2023, arXiv 2303.09435; METHODS: float64 Gram matrices, intercept not penalised, ridge 1e-6 tr(G) / d."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import FitRefused
from ..models.language_model import LanguageModel
from ..types import Prompt
from .file import Checkpoint, checkpoint_file, told_of, write
from .judged import FOR_R2, Lens, judge
from .maps import require_tokens
from .measured import BYTES, plan_of_affine
from .streams import RIDGE, Streams, Sums, Tick, about, few, silent, split

AT_ONCE = 512  # tokens that are summed together
PASSES, JUDGED = 0.7, 0.3  # about the share of the time

Kept = Callable[[int, Sequence[int]], Checkpoint]
"""What keeps the sums of a pass, by its number and depths."""


def fit(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    out: Path,
    test: Sequence[Prompt] | None = None,
    tick: Tick = silent,
    memory: int = BYTES,
    rank: int | None = None,
) -> dict[str, Any]:
    """Fit, judge on held-out prompts, and write `out`; the certificate comes back.

    `rank`: write `A_l` as `scale I + U V` of this rank, in half precision, which is judged as it is written.

    Tokens: those of the prompts but the first of each. Memory: the sums of as many depths at once as `memory` holds,
    the rest in further passes. `FitRefused` where a depth would have no tokens."""
    require_rank(rank, model.d_model, model.spec.name)
    used, held_out = split(prompts, test)
    streams, judged_on = Streams(model, used), Streams(model, held_out)
    require_tokens(judged_on, False, FOR_R2)
    what = about("affine", streams) | {"ridge": RIDGE}
    checkpoints: list[Checkpoint] = []

    def kept(number: int, depths: Sequence[int]) -> Checkpoint:
        checkpoints.append(Checkpoint(checkpoint_file(out, number), what, depths, rank))
        return checkpoints[-1]

    fitted: dict[int, tuple[Tensor, ...]] = {}
    shuffled: dict[int, tuple[Tensor, ...]] = {}
    tokens, mean = 0, torch.zeros(model.d_model)
    scale, d = torch.zeros(model.n_layers), model.d_model
    for depth, found in _by_depth(streams, memory, kept, lambda share: tick(PASSES * share)):
        tokens = found.n
        if not tokens:
            raise FitRefused("No prompt of the set has a token besides its first; give longer ones.")
        if rank is None:
            fitted[depth] = tuple(x.float() for x in found.solve(slice(d)))
        else:
            scale[depth], *factors = found.of_rank(rank, slice(d))
            fitted[depth] = tuple(x.half() for x in factors)
        shuffled[depth] = tuple(x.float() for x in found.solve(slice(d, 2 * d)))
        mean = (found.y[:d] / tokens).float()
    judged = judge(
        model,
        judged_on,
        _lens(fitted) if rank is None else _lens_of_rank(scale.to(model.device), fitted),
        {"shuffled": _lens(shuffled)},
        mean,
        lambda share: tick(PASSES + JUDGED * share),
    )
    what["prompts"] |= {"tokens": tokens, "too_short": streams.too_short()}
    what |= {"held_out": told_of(held_out) | judged, "notes": few(tokens, model)}
    names = "Ab" if rank is None else "UVb"
    tensors = {f"{name}.{depth}": x.cpu().numpy() for depth, parts in fitted.items() for name, x in zip(names, parts)}
    if rank is not None:
        what["rank"], tensors["scale"] = rank, scale.numpy()
    write(out, tensors | {"mean": mean.cpu().numpy()}, what)
    for one in checkpoints:
        one.done()
    return what


def require_rank(rank: int | None, d_model: int, name: str) -> None:
    """Refuse a rank that no matrix of the model has."""
    if rank is not None and rank > d_model:
        raise FitRefused(f"The rank is {rank}, and {name} has {d_model} dimensions; give fewer.")


def _by_depth(
    streams: Streams,
    memory: int,
    kept: Kept,
    tick: Tick,
) -> Iterator[tuple[int, Sums]]:
    """The sums of every source depth, in as many passes over the prompts as the memory needs."""
    model = streams.model
    groups = plan_of_affine(model.n_layers, model.d_model, memory).groups()
    for number, depths in enumerate(groups):

        def within(share: float, number: int = number) -> None:
            tick((number + share) / len(groups))

        checkpoint = kept(number, depths)
        sums = _summed(streams, depths, checkpoint, within)
        checkpoint.keep(depths, sums, len(streams.prompts), now=len(groups) > 1)
        yield from zip(depths, sums)


def _summed(streams: Streams, depths: Sequence[int], kept: Checkpoint, tick: Tick) -> list[Sums]:
    """One pass over the prompts: for each source depth, with targets `[h[L], h[L] of other tokens]`.

    The other tokens are drawn from the prompt before, by a generator of this prompt's number: the same in whatever
    pieces."""
    model = streams.model
    sums = [Sums(model.d_model, 2 * model.d_model, model.device) for _ in depths]
    begin = kept.restore(depths, sums)
    last = streams.before(begin) if begin < len(streams.prompts) else None
    before = None if last is None else last[-1]
    waiting: list[list[Tensor]] = []
    for i, resid in streams.each(begin):
        y = resid[-1]
        pool = y if before is None else before
        drawn = torch.randint(len(pool), (len(y),), generator=torch.Generator().manual_seed(i)).to(y.device)
        waiting.append([*(resid[depth] for depth in depths), y, pool[drawn]])
        before = y
        if sum(len(one[-1]) for one in waiting) >= AT_ONCE or kept.due():
            _add(waiting, sums)
        tick((i + 1) / len(streams.prompts))
        if not waiting:
            kept.keep(depths, sums, i + 1)
    _add(waiting, sums)
    return sums


def _add(waiting: list[list[Tensor]], sums: Sequence[Sums]) -> None:
    """Sum up the prompts that wait, together: one at a time most of the time would go into reading and writing sums."""
    if waiting:
        *sources, targets, others = (torch.cat(parts) for parts in zip(*waiting))
        for source, one in zip(sources, sums):
            one.add(source, targets, others)
        waiting.clear()


def _lens_of_rank(scale: Tensor, factors: Mapping[int, tuple[Tensor, ...]]) -> Lens:
    def read(depth: int, h: Tensor) -> Tensor:
        u, v, b = (x.float() for x in factors[depth])
        return scale[depth] * h.float() + (h.float() @ v.T) @ u.T + b

    return read


def _lens(maps: Mapping[int, tuple[Tensor, ...]]) -> Lens:
    return lambda depth, h: h.float() @ maps[depth][0].T + maps[depth][1]
