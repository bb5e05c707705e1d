"""How a job reports what it does, and learns that it was cancelled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property
from typing import Any

from ..errors import Cancelled


class Turn:
    """The first argument of a job's function. This one reports nothing and is never cancelled; a worker's reports to
    the queue (`worker.Run`), the shell's draws a bar (`runs.foreground`)."""

    executor: Executor | None = None  # computes the items of a study, where this process does not (`executors`)
    failed = False  # a part of the work, so that the shell says so

    @cached_property
    def models(self) -> Any:
        """The opened models of this process (`compute.Models`)."""
        from .compute import Models

        return Models()

    def say(self, text: str) -> None:
        """Report what is being done, in a sentence."""

    def progress(self, share: float, what: str = "") -> None:
        """Report the share that is done, 0 to 1, and of what."""

    def publish(self, data: bytes, share: float) -> None:
        """Report the bytes of a partial result."""

    def item(self) -> None:
        """Report an item as done: another job of the lane may have its turn. Keep nothing large across the call."""

    def cancelled(self) -> bool:
        """Return whether the job is to stop."""
        return False

    def tell(self, share: float, what: str = "") -> None:
        """Report the share that is done (0 to 1) and of what; raise `Cancelled` where the job is to stop."""
        if self.cancelled():
            raise Cancelled("The computation was cancelled.")
        self.progress(share, what)


Work = Callable[..., bytes]
"""A job's function: a `Turn` and its arguments to the bytes of its result."""
