"""Long work in the shell: at once, in this process, with a progress bar."""

from __future__ import annotations

import sys
from typing import Any

from ..executors import executor
from ..turn import Turn, Work


class Foreground(Turn):
    """A turn in the shell, which draws a bar: on a terminal at once, into a file every half minute."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self.bar: tqdm[Any] = tqdm(total=100, mininterval=0.1 if sys.stderr.isatty() else 30, unit="%", delay=1)

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def progress(self, share: float, what: str = "") -> None:
        """Move the bar."""
        if what:
            self.bar.set_description(what, refresh=False)
        self.bar.update(int(100 * share) - self.bar.n)


def run(work: Work, *arguments: Any, processes: int = 1, ray: str = "", device: str = "cpu") -> int:
    """Carry out long work in this process and print its result; return the exit code, 1 where a part failed.
    `processes`, `ray`, `device`: who computes (`executors`)."""
    turn = Foreground()
    with turn.bar, executor(processes, ray, device) as turn.executor:
        result = work(turn, *arguments)
    if result:
        print(result.decode())
    return int(turn.failed)
