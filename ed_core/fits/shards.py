"""A fit in shards: each sums up some of the prompts, on one machine or on several at once, and what they summed up is
added. Torch-free.

A shard's file is a sealed `.npz` that `allow_pickle=False` opens: the sums by source (`Sums.arrays`, or those of the
Jacobian lens), and in its manifest `about`: kind, models, prompt set, settings, and which of the prompts (`from` 0,
`to` behind the last). No prompt's text is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import disk
from ..errors import FitRefused
from ..files import Head, Kind, expect, open_sealed, write_sealed
from .file import SUMS, Checkpoint, checkpoint_file
from .measured import Plan

if TYPE_CHECKING:
    from .streams import Sums

Tick = Callable[[float], None]

ENDING = ".sums"
SIDES = ("model", "a", "b")  # what models are called in a certificate


class Header(Head):
    """What stands beside the sums."""

    about: dict[str, Any]


SHARD = Kind(
    "sums",
    "a shard",
    2,
    Header,
    "sum it up anew with --shard",
    members=r"\w+(\.\w+)*\.npy",
    bounds=SUMS,
    refuses=FitRefused,
)


def some_of(shard: tuple[int, int], n: int) -> range:
    """The prompts of shard i of N, of `n` in all: next to each other, as many as the others have but for one."""
    i, n_shards = shard
    found = range(n * (i - 1) // n_shards, n * i // n_shards)
    if not found:
        raise FitRefused(f"Shard {i}/{n_shards} has no prompts: the set has {n} to fit on; take {n} shards at most.")
    return found


def arrays(sources: Sequence[int], sums: Sequence[Sums]) -> dict[str, np.ndarray]:
    """Sums by the names they have in a file."""
    return {f"{source}.{name}": a for source, one in zip(sources, sums) for name, a in one.arrays().items()}


def fill(sources: Sequence[int], sums: Sequence[Sums], found: Mapping[str, np.ndarray] | Added) -> None:
    """Put back what `arrays` named."""
    for source, one in zip(sources, sums):
        one.restore({name: found[f"{source}.{name}"] for name in one.arrays()})


class Part:
    """The sums over some of the prompts while they are made: what was kept of them is gone on with."""

    def __init__(self, kept: Checkpoint | Added, prompts: range):
        self.kept, self.prompts = kept, prompts

    def restore(self, sources: Sequence[int], sums: Sequence[Sums]) -> int:
        """Fill the sums with what was kept; returns the prompt to go on from."""
        if (found := self.kept.read()) is None:
            return self.prompts.start
        fill(sources, sums, found)
        return int(found["next"])

    def keep(self, sources: Sequence[int], sums: Sequence[Sums], following: int, now: bool = False) -> None:
        """The sums up to the prompt before `following`, once a minute unless `now`."""
        if now or self.kept.due():
            self.kept.write(arrays(sources, sums) | {"next": np.asarray(following)}, now)


def sum_up(
    out: Path,
    about: Mapping[str, Any],
    prompts: range,
    groups: Sequence[tuple[int, ...]],
    summed: Callable[[tuple[int, ...], Part, Tick], Mapping[str, np.ndarray]],
    tick: Tick,
) -> range:
    """Write the shard of these prompts, which come back: the arrays that `summed` makes of each group of sources."""
    told = dict(about) | {"from": prompts.start, "to": prompts.stop}
    kept = [Checkpoint(checkpoint_file(out, number), told, sources) for number, sources in enumerate(groups)]
    for number, (one, sources) in enumerate(zip(kept, groups)):
        if (found := one.read()) is None or int(found["next"]) < prompts.stop:

            def within(share: float, number: int = number) -> None:
                tick((number + share) / len(groups))

            arrays = summed(sources, Part(one, prompts), within)
            one.write({**arrays, "next": np.asarray(prompts.stop)}, now=True)
    size = sum(one.file.stat().st_size for one in kept if one.file)
    disk.require_room(out.name, size, out.parent, "--out")
    write_sealed(out, SHARD, {"about": told}, _sums(kept))
    for one in kept:
        one.done()
    return prompts


def _sums(kept: Sequence[Checkpoint]) -> Iterator[tuple[str, np.ndarray]]:
    """The sums of all groups, one group at once in memory."""
    for one in kept:
        yield from ((name, values) for name, values in (one.read() or {}).items() if name != "next")


class Added:
    """The sums over all prompts: those of the shards in these files, added in the prompts' order. It is read like a
    fit's checkpoint at its end. `FitRefused` where the files are not the shards of this very fit, each prompt once."""

    def __init__(self, files: Sequence[Path], about: Mapping[str, Any], n_prompts: int):
        found = [(_checked(file, about), file) for file in files]
        found.sort(key=lambda pair: (pair[0]["from"], pair[0]["to"]))
        self.files, self.n_prompts = [file for _, file in found], n_prompts
        for (one, file), (other, following) in pairwise(found):
            if other["from"] < one["to"]:
                both = f"{other['from'] + 1} to {min(one['to'], other['to'])}"
                raise FitRefused(
                    f"{file.name} and {following.name} both hold the prompts {both} of {n_prompts}; give each once."
                )
        if found and found[-1][0]["to"] > n_prompts:
            raise FitRefused(
                f"{self.files[-1].name} holds the prompts up to {found[-1][0]['to']}, and the set has {n_prompts}; sum "
                "that shard up anew."
            )
        ends = [0, *(end for told, _ in found for end in (told["from"], told["to"])), n_prompts]
        for begin, end in zip(ends[::2], ends[1::2]):
            if begin < end:
                raise FitRefused(
                    f"The prompts {begin + 1} to {end} of {n_prompts} are in none of the files; sum them up with "
                    "--shard, and give their file too."
                )

    def __getitem__(self, name: str) -> np.ndarray:
        if name == "next":
            return np.asarray(self.n_prompts)
        total: np.ndarray | int = 0
        for file in self.files:
            with open_sealed(file, SHARD) as sealed:
                total = total + sealed.array(name)
        return np.asarray(total)

    def read(self) -> Added:
        return self

    def due(self) -> bool:
        return False

    def write(self, arrays: Mapping[str, np.ndarray], now: bool = False) -> None:
        """Nothing has to be kept: the files stay."""

    def done(self) -> None:
        """The files stay."""


def _checked(file: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a shard's file says of itself, where it is of the fit that `about` tells."""
    if not file.is_file():
        raise FitRefused(f"There is no file {file}; give those that `fit {about['kind']}` wrote with --shard.")
    with open_sealed(file, SHARD) as sealed:
        told = sealed.head.about
        expect(0 <= told["from"] < told["to"], "its prompts")
        prompts = told["prompts"]["n"], told["prompts"]["digest"], told["prompts"].get("max_tokens")
        kind, models = told["kind"], {side: (told[side]["name"], _opened(told[side])) for side in SIDES if side in told}
    if kind != about["kind"]:
        raise FitRefused(f"{file.name} is a shard of `fit {kind}`; expected one of `fit {about['kind']}`.")
    for side in (side for side in SIDES if side in about):
        name, opened = models[side]
        if opened != _opened(about[side]):
            raise FitRefused(
                f"{file.name} was summed up on {name} ({told[side]['precision']}), not on {about[side]['name']} "
                f"({about[side]['precision']}) as it is opened here; name the model of the shards, or sum up anew."
            )
    if prompts[1] != about["prompts"]["digest"]:
        raise FitRefused(
            f"{file.name} is of another prompt set, of {prompts[0]} prompts to fit on, where --set and --test give "
            f"{about['prompts']['n']}; give the shards' own --set and --test."
        )
    if prompts[2] != about["prompts"].get("max_tokens"):
        raise FitRefused(
            f"{file.name} was summed up over the first {prompts[2]} tokens of a prompt; give --max-tokens "
            f"{prompts[2]}, or sum up anew."
        )
    return told


def _opened(told: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which weights, and how they are run."""
    return told["identity"], told["precision"]


# ---------------------------------------------------------------- a fit over many sources, some at once


KEPT_BYTES = 2 << 30  # of sums under way; larger ones are not kept: writing them would take longer than summing


class Rows:
    """Arrays with a row per source, filled group by group; stopped anywhere, the fit goes on from what was kept, in
    whatever groups. NaN where a row is not done. `prompts`: what is summed up; `added`: the sums that shards have made
    of them."""

    def __init__(
        self,
        kept: Checkpoint,
        planned: Plan,
        shapes: Mapping[str, tuple[int, ...]],
        prompts: range,
        added: Added | None = None,
    ):
        self.kept, self.planned, self.prompts, self.added = kept, planned, prompts, added
        self.arrays = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        self.done = np.zeros(planned.n_taps, bool)
        self._found: Mapping[str, np.ndarray] = kept.read() or {}
        if self._found:
            self.done = self._found["done"].astype(bool)
            self.arrays = {name: self._found[f"row.{name}"].copy() for name in shapes}

    def groups(self) -> Iterator[tuple[int, ...]]:
        """The sources that are not done, as many at once as planned; a group is done when the next is asked for."""
        for taps in self.planned.groups(np.flatnonzero(~self.done).tolist()):
            yield taps
            self.done[list(taps)] = True
            self._write({}, now=True)

    def share(self, taps: Sequence[int], within: float) -> float:
        """How much of all sources is done, `within` of these."""
        return float(self.done.sum() + within * len(taps)) / len(self.done)

    def restore(self, taps: Sequence[int], sums: Sequence[Sums]) -> int:
        """Fill the sums of a group with what was kept; returns the prompt to go on from."""
        found: Mapping[str, np.ndarray] | Added
        if self.added is not None:
            found = self.added
        else:
            found, self._found = self._found, {}
            if "taps" not in found or found["taps"].tolist() != list(taps):
                return 0
        fill(taps, sums, found)
        return int(found["next"])

    def keep(self, taps: Sequence[int], sums: Sequence[Sums], following: int) -> None:
        """The sums of a group up to the prompt before `following`."""
        if self.planned.bytes > KEPT_BYTES:
            return
        if self.kept.due():
            more = {"taps": np.asarray(taps), "next": np.asarray(following)}
            self._write(arrays(taps, sums) | more)

    def _write(self, more: Mapping[str, np.ndarray], now: bool = False) -> None:
        rows = {f"row.{name}": values for name, values in self.arrays.items()}
        self.kept.write(rows | {"done": self.done} | dict(more), now)
