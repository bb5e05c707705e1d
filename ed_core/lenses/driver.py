"""One driver for every fit: accumulate sums over prompts, solve for the maps, evaluate them on held-out prompts.

A *source* is what a map reads: a depth, a tap or a layer. Sources are fitted in groups that fit into memory; each group
that is finished is a partial result, and a fit that was stopped resumes from its checkpoint: after its finished
sources, and within a group after the prompts already summed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from .. import disk
from ..machine import free_memory
from ..models import devices
from ..models.language_model import LanguageModel
from ..types import Prompt
from . import measured
from .checkpoint import Checkpoint, checkpoint_file
from .least_squares import Kept, Sums
from .measured import JACOBIAN, KINDS, plan_of
from .streams import Streams, few, prompts_entry, require_same_tokens, require_tokens, split

Tick = Callable[[float], None]
"""Takes the share that is done; an exception of it ends the fit."""


def silent(share: float) -> None:
    """Ignore the progress: the default where a `Tick` is expected."""


class Fitting:
    """A kind of fit: how sums are accumulated, solved and evaluated.

    `on`, `test`: the streams fitted and judged on, one per model. `plan`: the sources (depths, taps or layers), and how
    many are summed at once. `about`: everything that can change a number. `rows`: shape and type of each result array,
    without the axis of sources. `summing`: about the share of the time that summing takes."""

    kind: ClassVar[str]
    summing: ClassVar[float]
    about: dict[str, Any]
    rows: Mapping[str, tuple[tuple[int, ...], DTypeLike]]

    def __init__(
        self,
        *models: LanguageModel,
        prompts: Sequence[Prompt],
        test: Sequence[Prompt] | None = None,
        memory: int | None = None,
        max_tokens: int | None = None,
    ):
        """Split the prompts and plan the sums. `test`: None takes a fifth of the forms; `memory`: bytes for the sums,
        None for half of what is free, where more sources take further passes without changing a number; `max_tokens`:
        tokens read of each prompt, None for all."""
        used, held_out = split(prompts, test)
        if len(models) == 2:
            require_same_tokens(*models, [*used, *held_out])
        self.on, self.test = ([Streams(model, some, max_tokens) for model in models] for some in (used, held_out))
        self.model, self.n_prompts = models[0], len(used)
        self.tokens, self.test_tokens = sum(self.on[0].lengths()), require_tokens(self.test[0])
        free = free_memory() if self.kind == JACOBIAN else devices.free_bytes(str(self.model.device))
        self.plan = plan_of(self.kind, models, free, memory)
        self.about = {"kind": self.kind, "prompts": prompts_entry(used), "held_out": prompts_entry(held_out)}

    def sums(self, sources: Sequence[int]) -> Sequence[Kept]:
        """Return empty sums, one for each of these sources."""
        return [Sums(self.plan.d_x, self.plan.d_y, self.model.device) for _ in sources]

    def accumulate(self, sources: Sequence[int], sums: Sequence[Any], begin: int) -> Iterator[int]:
        """Add prompts from number `begin` on to the sums; yield how many the sums contain."""
        raise NotImplementedError

    def solve(self, sources: Sequence[int], sums: Sequence[Any]) -> Any:
        """Return the maps of these sources, solved from their sums."""
        raise NotImplementedError

    def evaluate(self, sources: Sequence[int], maps: Any, tick: Tick) -> Mapping[str, np.ndarray]:
        """Return the `rows` of these sources by name: figures on held-out prompts, or the maps themselves."""
        raise NotImplementedError

    def result(self, rows: Mapping[str, np.ndarray]) -> Any:
        """Return the result of all rows, `Maps` or `Replacement` (a lens's is its certificate); a partial one where
        some are NaN."""
        kind = KINDS[self.kind]
        arrays: dict[str, Any] = {}
        for name, dims in kind.dims.items():
            values = rows[name] if dims[:1] == kind.source else rows[name][0]  # else all are alike
            arrays[name] = values.copy() if dims else float(values)
        certificate = self.about | {"notes": few(self.tokens, self.model)}
        return kind(**arrays, tokens=self.tokens, test_tokens=self.test_tokens, certificate=certificate)

    def packed(self, rows: Mapping[str, np.ndarray], result: Any) -> bytes:
        """Return the bytes of the finished fit's file."""
        return measured.packed(result)

    def fit(self, out: Path | None = None, tick: Tick = silent, partial: Callable[[Any], None] | None = None) -> Any:
        """Return the finished fit's result; write it to `out` if given, resuming from the checkpoint there. `tick` gets
        the share done; `partial` gets the result after every group of sources but the last."""
        checkpoint, n = Checkpoint(checkpoint_file(out) if out else None, self.about), self.plan.n_taps
        stored = checkpoint.read()
        finished = stored.get("finished", np.zeros(n, bool))
        empty = {name: np.full((n, *shape), np.nan, dtype) for name, (shape, dtype) in self.rows.items()}
        rows = {name: stored.get(name, values) for name, values in empty.items()}

        for sources in self.plan.groups(np.flatnonzero(~finished).tolist()):

            def report(within: float) -> None:
                tick(float(finished.sum() + within * len(sources)) / n)

            sums = self.sums(sources)
            begin = _restore(stored, sources, sums)
            stored.clear()
            for summed in self.accumulate(sources, sums, begin):
                report(self.summing * (summed / self.n_prompts))
                if checkpoint.due:
                    checkpoint.write(rows | {"finished": finished} | _arrays(sources, sums, summed))
            maps = self.solve(sources, sums)
            judged = self.evaluate(sources, maps, lambda s: report(self.summing + (1 - self.summing) * s))
            for name, values in judged.items():
                rows[name][list(sources)] = values
            finished[list(sources)] = True
            if not finished.all():
                checkpoint.write(rows | {"finished": finished})
                if partial:
                    partial(self.result(rows))
        result = self.result(rows)
        if out:
            data = self.packed(rows, result)
            disk.require_room(out.name, len(data), out.parent, "--out")
            disk.write(out, data)
        checkpoint.remove()
        tick(1.0)
        return result


def _arrays(sources: Sequence[int], sums: Sequence[Kept], prompts: int) -> dict[str, np.ndarray]:
    """Return the sums over the first `prompts` prompts as named arrays for a checkpoint."""
    named = {f"{source}.{name}": a for source, one in zip(sources, sums) for name, a in one.arrays().items()}
    return named | {"sources": np.asarray(sources), "prompts": np.asarray(prompts)}


def _restore(stored: Mapping[str, np.ndarray], sources: Sequence[int], sums: Sequence[Kept]) -> int:
    """Fill the sums from a checkpoint of the same sources; return how many prompts they contain, 0 without one."""
    if "sources" not in stored or stored["sources"].tolist() != list(sources):
        return 0
    for source, one in zip(sources, sums):
        one.restore({name: stored[f"{source}.{name}"] for name in vars(one)})
    return int(stored["prompts"])
