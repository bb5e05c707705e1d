"""Long work in the shell: at once, in this process, with a progress bar."""

from __future__ import annotations

import sys
from typing import Any

from ..executors import executor
from ..turn import Turn, Work


class Foreground(Turn):
    """A turn in the shell, which draws a bar on a terminal; `lines`: prints each per cent on a new line instead."""

    def __init__(self, lines: bool = False):
        from tqdm import tqdm

        self._lines, self._done = lines, -1
        self.bar: tqdm[Any] = tqdm(total=100, disable=lines or not sys.stderr.isatty(), unit="%", delay=1)

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def progress(self, share: float, what: str = "") -> None:
        """Move the bar, or print the per cent."""
        done = int(100 * share)
        if self._lines and done > self._done:
            self._done = done
            print(f"{done} %{f' · {what}' if what else ''}", file=sys.stderr, flush=True)
        if what:
            self.bar.set_description(what, refresh=False)
        self.bar.update(done - self.bar.n)


def run(
    work: Work, *arguments: Any, lines: bool = False, processes: int = 1, ray: str = "", device: str = "cpu"
) -> int:
    """Carry out long work in this process and print its result; return the exit code, 1 where a part failed.
    `processes`, `ray`, `device`: who computes (`executors`)."""
    turn = Foreground(lines)
    with turn.bar, executor(processes, ray, device) as turn.executor:
        result = work(turn, *arguments)
    if result:
        print(result.decode())
    return int(turn.failed)
