"""One driver for every fit: accumulate sums over prompts, solve for the maps, evaluate them on held-out prompts.

A *source* is what a map reads: a depth, a tap or a layer. Sources are fitted in groups that fit into memory; each group
that is finished is a partial result, and a fit that was stopped resumes from its checkpoint: after its finished
sources, and within a group after the prompts already summed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from ..machine import free_memory
from ..models import devices
from ..models.language_model import LanguageModel
from ..types import Prompt
from .checkpoint import Checkpoint, checkpoint_file
from .least_squares import Kept, Sums
from .measured import JACOBIAN, plan_of
from .streams import Streams, prompts_entry, require_same_tokens, require_tokens, split

S = TypeVar("S", bound=Kept)  # the sums of one source
M = TypeVar("M")  # the maps of some sources
R = TypeVar("R")  # the result
Tick = Callable[[float], None]
"""Takes the share that is done; an exception of it ends the fit."""


def silent(share: float) -> None:
    """Ignore the progress: the default where a `Tick` is expected."""


class Fitting(Generic[S, M, R]):
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
        test: Sequence[Prompt] | None,
        memory: int | None,
        first: int | None = None,
    ):
        """Split the prompts and plan the sums. `test`: None takes a fifth of the forms; `memory`: bytes for the sums,
        None for the default; `first`: tokens read of each prompt, None for all."""
        used, held_out = split(prompts, test)
        if len(models) == 2:
            require_same_tokens(*models, [*used, *held_out])
        self.on, self.test = ([Streams(model, some, first) for model in models] for some in (used, held_out))
        self.model, self.n_prompts = models[0], len(used)
        self.tokens, self.test_tokens = sum(self.on[0].lengths()), require_tokens(self.test[0])
        self.plan = plan_of(self.kind, models, free_bytes(self.kind, str(self.model.device)), memory)
        self.about = {"kind": self.kind, "prompts": prompts_entry(used), "held_out": prompts_entry(held_out)}

    def sums(self, sources: Sequence[int]) -> list[S]:
        """Return empty sums, one for each of these sources."""
        return [cast(S, Sums(self.plan.d_x, self.plan.d_y, self.model.device)) for _ in sources]

    def accumulate(self, sources: Sequence[int], sums: Sequence[S], begin: int) -> Iterator[int]:
        """Add prompts from number `begin` on to the sums; yield how many the sums contain."""
        raise NotImplementedError

    def solve(self, sources: Sequence[int], sums: Sequence[S]) -> M:
        """Return the maps of these sources, solved from their sums."""
        raise NotImplementedError

    def evaluate(self, sources: Sequence[int], maps: M, tick: Tick) -> Mapping[str, np.ndarray]:
        """Return the `rows` of these sources by name: figures on held-out prompts, or the maps themselves."""
        raise NotImplementedError

    def result(self, rows: Mapping[str, np.ndarray]) -> R:
        """Return the result of all rows; a partial one where some are NaN."""
        raise NotImplementedError

    def write(self, out: Path, rows: Mapping[str, np.ndarray], result: R) -> None:
        """Write the finished fit to the file `out`."""
        raise NotImplementedError

    def fit(self, out: Path | None = None, tick: Tick = silent, partial: Callable[[R], None] | None = None) -> R:
        """Return the finished fit's result; write it to `out` if given, resuming from the checkpoint there. `tick` gets
        the share done; `partial` gets the result after every group of sources but the last."""
        checkpoint, n = Checkpoint(checkpoint_file(out) if out else None, self.about), self.plan.n_taps
        stored = checkpoint.read()
        finished = stored.get("finished", np.zeros(n, bool))
        empty = {name: np.full((n, *shape), np.nan, dtype) for name, (shape, dtype) in self.rows.items()}
        rows = {name: stored.get(name, values) for name, values in empty.items()}

        def report(sources: Sequence[int], judging: bool, share: float) -> None:
            within = self.summing + (1 - self.summing) * share if judging else self.summing * share
            tick(float(finished.sum() + within * len(sources)) / n)

        for sources in self.plan.groups(np.flatnonzero(~finished).tolist()):
            sums = self.sums(sources)
            begin = _restore(stored, sources, sums)
            stored.clear()
            for summed in self.accumulate(sources, sums, begin):
                report(sources, False, summed / self.n_prompts)
                if checkpoint.due:
                    checkpoint.write(rows | {"finished": finished} | _arrays(sources, sums, summed))
            maps = self.solve(sources, sums)
            for name, values in self.evaluate(sources, maps, functools.partial(report, sources, True)).items():
                rows[name][list(sources)] = values
            finished[list(sources)] = True
            if not finished.all():
                checkpoint.write(rows | {"finished": finished})
                if partial:
                    partial(self.result(rows))
        result = self.result(rows)
        if out:
            self.write(out, rows, result)
        checkpoint.remove()
        tick(1.0)
        return result


def free_bytes(kind: str, device: str) -> int:
    """Return the bytes free where this kind of fit has its sums: on the host for the Jacobian lens, else on
    `device`."""
    return free_memory() if kind == JACOBIAN else devices.free_bytes(device)


def _arrays(sources: Sequence[int], sums: Sequence[Kept], prompts: int) -> dict[str, np.ndarray]:
    """Return the sums over the first `prompts` prompts as named arrays for a checkpoint."""
    named = {f"{source}.{name}": a for source, one in zip(sources, sums) for name, a in one.arrays().items()}
    return named | {"sources": np.asarray(sources), "prompts": np.asarray(prompts)}


def _restore(stored: Mapping[str, np.ndarray], sources: Sequence[int], sums: Sequence[Kept]) -> int:
    """Fill the sums from a checkpoint of the same sources; return how many prompts they contain, 0 without one."""
    if "sources" not in stored or stored["sources"].tolist() != list(sources):
        return 0
    for source, one in zip(sources, sums):
        one.restore({name: stored[f"{source}.{name}"] for name in one.names})
    return int(stored["prompts"])
