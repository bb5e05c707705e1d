"""What a job says while it works, and how it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Cancelled


class Turn:
    """Handed to a job's function. This one says nothing and never stops: a worker's sends to the queue (`worker.Run`),
    the shell's draws a bar (`runs.foreground`)."""

    models: Any = None  # the opened models of the process (`compute.Models`), where it keeps some
    executor: Any = None  # who computes the items of a study, where that is not this process (`executors`)
    failed = False  # a part of the work, so that the shell says so

    def say(self, text: str) -> None:
        """What is being done."""

    def progress(self, share: float, what: str = "") -> None:
        """The share that is done, 0 to 1, and of what."""

    def publish(self, data: bytes, share: float) -> None:
        """A partial result."""

    def item(self) -> None:
        """One item of several is done: another job of the lane may have its turn. Nothing large should be held."""

    def cancelled(self) -> bool:
        return False

    def check(self) -> None:
        """Raise `Cancelled` where the job is to stop."""
        if self.cancelled():
            raise Cancelled("The computation was cancelled.")

    def tell(self, share: float, what: str = "") -> None:
        """`progress`, and `check`: what studies, claims, cards and fits call."""
        self.check()
        self.progress(share, what)


Work = Callable[..., bytes]
"""A job's function: a `Turn` and its arguments to the bytes of its result."""
