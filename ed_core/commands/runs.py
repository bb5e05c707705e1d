"""What the commands share: where they are registered; a run carried out by the shell, its progress on a terminal."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .. import bounds, disk
from ..errors import ParameterError

if TYPE_CHECKING:
    from ..runs.run import Spec, Status

STORED = "stopped; finished prompts are in the store, the same command goes on from there."
RESUMED = "stopped; the same command goes on from what was finished."


def whole(option: str, least: int, most: int = bounds.WHOLE) -> Callable[[str], int]:
    """The type of an option that is a whole number within bounds."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise ParameterError(f"{option} is {text[:40]}; expected {least} to {most}, a whole number.")
        return int(text)

    return read


@runtime_checkable
class Commands(Protocol):
    """What `ArgumentParser.add_subparsers` returns."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """The parser of a new command."""


def run(spec: Spec, folder: Path | None = None, lines: bool = False, kept: bool = True) -> int:
    """Carry out a run at once, in this process; returns the exit code. `lines`: every per cent on a line of its own;
    `kept`: write its spec and its statuses into the folder."""
    import psutil

    from ..runs import launch, queue
    from ..runs.execute import execute
    from ..runs.run import Statuses

    if folder is not None:
        disk.require_out_folder(folder)

    def first() -> None:
        if folder is not None and not launch.Run(folder).running:
            launch.note(folder, spec, psutil.Process())

    with shown(lines) as show, queue.of_shell(folder):
        return execute(spec, folder, Statuses(folder if kept else None, show, first))


@contextmanager
def shown(lines: bool) -> Iterator[Callable[[Status], None]]:
    """What shows statuses: a bar on a terminal, `lines` where they are asked for."""
    from tqdm import tqdm

    from ..runs.run import RUNNING

    bar: tqdm | None = None
    said = -1

    def show(status: Status) -> None:
        nonlocal bar, said
        done = int(100 * status.share)
        if status.state != RUNNING or not (done or status.what):
            return
        if lines and done > said:
            said = done
            print(f"{done} %{f' · {status.what}' if status.what else ''}", file=sys.stderr, flush=True)
        if bar is None:
            bar = tqdm(total=100, disable=lines or not sys.stderr.isatty(), unit="%")
        if status.what:
            bar.set_description(status.what, refresh=False)
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
