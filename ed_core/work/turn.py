"""What a job says while it works, and how it learns that it is to stop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property
from typing import Any

from ..errors import Cancelled


class Turn:
    """Handed to a job's function. This one says nothing and never stops; a worker's reports to the queue
    (`worker.Run`), the shell's draws a bar (`runs.foreground`)."""

    executor: Executor | None = None  # who computes the items of a study, where that is not this process (`executors`)
    failed = False  # a part of the work, so that the shell says so

    @cached_property
    def models(self) -> Any:
        """The opened models of this process (`compute.Models`)."""
        from .compute import Models

        return Models()

    def say(self, text: str) -> None:
        """What is being done."""

    def progress(self, share: float, what: str = "") -> None:
        """The share that is done, 0 to 1, and of what."""

    def publish(self, data: bytes, share: float) -> None:
        """A partial result."""

    def item(self) -> None:
        """One item of several is done: another job of the lane may have its turn. Hold nothing large meanwhile."""

    def cancelled(self) -> bool:
        return False

    def tell(self, share: float, what: str = "") -> None:
        """Report progress; raise `Cancelled` where the job is to stop."""
        if self.cancelled():
            raise Cancelled("The computation was cancelled.")
        self.progress(share, what)


Work = Callable[..., bytes]
"""A job's function: a `Turn` and its arguments to the bytes of its result."""
