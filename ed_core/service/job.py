"""One request on its way through the queue. Torch-free."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from uuid import uuid4

from ..errors import EffectiveDepthError
from ..results.wire import unpack
from ..types import ProbeResult, Request
from . import turns
from .estimate import Expected

PROGRESS = 0.1  # a job's own pace tells what is left of it from here on, what was expected before


@dataclass
class Job:
    """One request on its way. `state`: queued, running, done, failed, cancelled."""

    request: Request
    viewers: set[str]
    asked_by: str = ""  # the visitor it counts for: whoever joins later adds nothing to compute
    expected: Expected = field(default_factory=Expected)
    # of this submission: a late cancel must not hit the next one of the same request
    id: str = field(default_factory=lambda: uuid4().hex)
    state: str = "queued"
    stage: str = ""
    error: EffectiveDepthError | None = None
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    ended: float | None = None
    opened: float | None = None  # when its model was
    unseen: float = 0.0  # seconds without a poll, off every screen
    cancelling: float | None = None
    progress: float = 0.0
    away: float = 0.0  # seconds for which it gave way
    gave_way: float | None = None  # since when it does
    resumed: float | None = None  # when it went on
    owed: float = 0.0  # seconds it computes before it gives way again
    credit: float = 0.0  # seconds it had computed beyond that when it gave way last
    alone: bool = False  # it was tried inside another job, and did not fit
    _bytes: bytes = b""
    _result: ProbeResult | None = None
    _unpacking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def result(self) -> ProbeResult | None:
        """The newest result, partial or complete; unpacked when somebody looks. Whoever looks meanwhile waits for it:
        the one before it would stay on their page."""
        with self._unpacking:
            if self._bytes:
                data, self._bytes = self._bytes, b""
                self._result = unpack(data)
            return self._result

    def arrived(self, packed: bytes) -> None:
        """Take the place of what came before."""
        with self._unpacking:
            self._bytes = packed

    def worked(self, now: float, since: float | None = None) -> float:
        """Seconds computed, less those for which it gave way; `since` its beginning, unless another moment is told."""
        since = self.started if since is None else since
        return 0.0 if since is None else (now if self.gave_way is None else self.gave_way) - since - self.away

    def had(self, now: float) -> float:
        """Seconds computed since it gave way last, or began, and its credit then."""
        since = self.resumed or self.started
        return self.credit + (0.0 if since is None or self.gave_way is not None else now - since)

    def gives_way(self, now: float) -> None:
        """From now on another one computes."""
        self.credit, self.gave_way = turns.credit(self.had(now), self.owed), now

    def seconds_left(self, now: float | None = None) -> float | None:
        """From the share done so far; None before there is one."""
        if self.started is None or self.progress <= 0:
            return None
        worked = self.worked(time.monotonic() if now is None else now, self.opened)
        return worked * (1 - self.progress) / self.progress

    def to_come(self, now: float) -> float:
        """Seconds it will still take: by its own pace, else as expected; one that takes longer than expected is taken
        to be two thirds done."""
        if self.progress >= PROGRESS and (left := self.seconds_left(now)) is not None:
            return left
        worked = self.worked(now)
        return max(self.expected.seconds - worked, worked / 2)
