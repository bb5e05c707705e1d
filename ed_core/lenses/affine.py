"""The affine lens: `A_l, b_l` by least squares from `h[l]` to `h[L]`.

It minimises squared error and not the divergence, so it is not the tuned lens (arXiv 2303.08112). Source: Din et al.
2023, arXiv 2303.09435; METHODS: float64 Gram matrices, intercept not penalised, ridge 1e-6 tr(G) / d."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FitRefused
from ..models.language_model import LanguageModel
from . import judged
from .driver import Tick
from .judged import LensFitting
from .least_squares import RIDGE, Sums
from .measured import AFFINE
from .streams import few, other_tokens

AT_ONCE = 512  # tokens that are summed together: prompt by prompt, most time would go into reading and writing sums

Maps = dict[str, list[Tensor]]
"""By the names in the file, a tensor per source."""


class Affine(LensFitting):
    """Fits the affine lens: from every depth a map to `h[L]`, and a shuffled control to `h[L]` of other tokens."""

    kind, summing = AFFINE, 0.7

    def __init__(self, model: LanguageModel, *, rank: int | None = None, **how: Any):
        """`rank`: write `A_l` as `scale I + U V` of this rank in half precision, and judge that; None writes the full
        matrix. `how`: the arguments of every `Fitting`."""
        d, self.rank = model.d_model, rank
        if rank is not None and rank > d:
            raise FitRefused(f"The rank is {rank}, and {model.spec.name} has {d} dimensions; give fewer.")
        super().__init__(model, **how)
        if not self.tokens:
            raise FitRefused("No prompt of the set has a token besides its first; give longer ones.")
        self.about |= {"ridge": RIDGE} | ({"rank": rank} if rank else {})
        one, half = np.float32, np.float16
        maps: Any = {"A": ((d, d), one), "b": ((d,), one)}
        if rank:
            maps = {"scale": ((), one), "U": ((d, rank), half), "V": ((rank, d), half), "b": ((d,), half)}
        self.by_depth = tuple(name for name in maps if name != "scale")
        self.rows = maps | {"mean": ((d,), one)} | judged.shapes(len(self.test[0].prompts), "shuffled")

    def accumulate(self, sources: Sequence[int], sums: Sequence[Sums], begin: int) -> Iterator[int]:
        """Add prompts from number `begin` on to the sums; yield how many the sums contain."""
        last = self.on[0].before(begin)
        before = None if last is None else last[-1]
        waiting: list[list[Tensor]] = []
        summed = begin
        for i, resid in self.on[0].each(begin):
            y = resid[-1]
            waiting.append([*(resid[depth] for depth in sources), y, other_tokens(y, before, i)])
            before = y
            if sum(len(one[-1]) for one in waiting) >= AT_ONCE:
                _add(waiting, sums)
                summed = i + 1
            yield summed
        _add(waiting, sums)

    def solve(self, sources: Sequence[int], sums: Sequence[Sums]) -> Maps:
        """Return by tensor name a list with a tensor per depth: the fitted map to `h[L]` (factors where `rank` is
        set), the shuffled control's map, and the mean of `h[L]`. `sums`: those of the depths `sources`, in order."""
        d = self.model.d_model
        maps: Maps = defaultdict(list)
        for one in sums:
            of_source = dict(zip(("shuffled.A", "shuffled.b"), one.solve(slice(d, 2 * d))))
            if self.rank is None:
                of_source |= dict(zip("Ab", one.solve(slice(d))))
            else:
                scale, *factors = one.of_rank(self.rank, slice(d))
                of_source |= {name: x.half() for name, x in zip("UVb", factors)}
                of_source["scale"] = torch.tensor(scale, device=self.model.device)
            of_source["mean"] = one.y[:d] / one.n
            for name, x in of_source.items():
                maps[name].append(x.float())
        return maps

    def evaluate(self, sources: Sequence[int], maps: Maps, tick: Tick) -> dict[str, np.ndarray]:
        """Return the maps and their figures on held-out prompts, by name."""
        row = {depth: k for k, depth in enumerate(sources)}
        lens = judged.lens_of(lambda name, depth: maps[name][row[depth]], self.kind, self.rank)
        shuffled = judged.lens_of(lambda name, depth: maps[f"shuffled.{name}"][row[depth]], self.kind)
        rows = judged.evaluate(self.test[0], sources, lens, {"shuffled": shuffled}, maps["mean"][0], tick)
        return rows | {name: torch.stack(maps[name]).cpu().numpy() for name in self.rows if name in maps}

    def described(self, rows: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return counts of tokens and too short prompts, and the certificate's notes."""
        counts = {"tokens": self.tokens, "too_short": self.on[0].lengths().count(0)}
        return counts, {"notes": few(self.tokens, self.model)}


def _add(waiting: list[list[Tensor]], sums: Sequence[Sums]) -> None:
    """Add the waiting prompts' tokens (sources, `h[L]`, other tokens' `h[L]`) to the sums, and empty `waiting`."""
    if waiting:
        *sources, targets, others = (torch.cat(parts) for parts in zip(*waiting))
        for source, one in zip(sources, sums):
            one.add(source, targets, others)
        waiting.clear()
