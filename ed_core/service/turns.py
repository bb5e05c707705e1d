"""Who computes next, and how long everybody waits: the rules of the queue, without threads, clock or worker.

Visitors take turns: first comes whoever has waited longest since his last turn, with the oldest of his jobs. A job that
computes gives way between two blocks to a shorter one of another visitor, which runs inside it, one at a time; before
it does so again it must have computed for as long as that one took. What it computed beyond that counts for the next
ones, so that a visitor's several short jobs need not wait for one block each. So

- a job takes at most twice its own time, and that of one short job;
- before a visitor's next job begins, every other visitor has at most one turn, and what passes takes no more than half
  of the time and `CREDIT_SECONDS`.

`Turns.forecast` plays these rules forward; what it tells is as good as the seconds it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

SHORT_SECONDS = 10.0  # what takes no longer passes at once; what does, once the other has computed for as long
SHARE, SHARE_OF_LONG = 1 / 2, 1 / 5  # of the other's whole time, which it may take at most: a short one, a longer one
SOON_SECONDS = 1.0  # nobody passes so shortly before one whose turn is earlier
WORTH_SECONDS = 2.0  # what has less than this left is not interrupted
CREDIT_SECONDS = 5.0  # what a job has computed beyond what it owed counts up to here when it gives way


@dataclass(frozen=True)
class Ask:
    """One job as it is weighed. `owner`: the visitor it counts for; `came`: when; `seconds`: what it will still take,
    `whole`: in all; `alone`: it cannot run inside another one."""

    id: str
    owner: str
    came: float
    seconds: float
    whole: float
    alone: bool = False


@dataclass(frozen=True)
class Place:
    """Where a job stands: how many end before it begins, and in how many seconds that is."""

    ahead: int
    seconds: float


def credit(had: float, owed: float) -> float:
    """What counts for the next when a job gives way."""
    return min(max(had - owed, 0.0), CREDIT_SECONDS)


@dataclass
class Turns:
    """The queue at one moment. `waiting`: in the order in which they came; `last`: when each visitor had a turn last;
    `running`: what computes, or gave way to `inside`; `had`: seconds it computed since it gave way last, or began, and
    its `credit` then, which alone counts while there is one inside; `owed`: what it must have before it gives way
    again, which is what it gave: while there is one inside, so far."""

    now: float
    waiting: list[Ask] = field(default_factory=list)
    last: dict[str, float] = field(default_factory=dict)
    running: Ask | None = None
    inside: Ask | None = None
    had: float = 0.0
    owed: float = 0.0

    def next(self) -> Ask | None:
        """What begins where nothing runs."""
        return next(self._in_turn(), None)

    def passing(self) -> Ask | None:
        """What begins inside the running job, between two of its blocks."""
        if self.running is None or self.inside is not None:
            return None
        soon = (ask for ask in self._in_turn() if self._may_pass(ask) and self._wait(ask) <= SOON_SECONDS)
        first = next(soon, None)
        return first if first is not None and self._wait(first) <= 0 else None

    def forecast(self) -> dict[str, Place]:
        """When each that waits will begin, if nobody comes or goes."""
        ahead, found, then = 0, {}, replace(self, waiting=list(self.waiting), last=dict(self.last))
        while then.waiting:
            if then.running is None:
                first = then.next()
                assert first is not None  # somebody waits
                then.running, then.had, then.owed = then._begin(first), 0.0, 0.0
                found[first.id] = Place(ahead, then.now - self.now)
            elif then.inside is not None:
                then.now += then.inside.seconds
                then.owed, then.inside = then.owed + then.inside.seconds, None
                ahead += 1
            elif (passing := then.passing()) is not None:
                then.inside, then.had, then.owed = then._begin(passing), credit(then.had, then.owed), 0.0
                found[passing.id] = Place(ahead, then.now - self.now)
            else:
                ahead += then._compute()
        return found

    # ---------------------------------------------------------------- the rules

    def _in_turn(self) -> Iterator[Ask]:
        """The oldest job of every visitor; first whose visitor has waited longest, for a turn or since he came."""
        oldest: dict[str, Ask] = {}
        for ask in self.waiting:
            oldest.setdefault(ask.owner, ask)

        def since(ask: Ask) -> tuple[float, bool]:
            return max(ask.came, self.last.get(ask.owner, ask.came)), ask.owner in self.last

        return iter(sorted(oldest.values(), key=since))

    def _may_pass(self, ask: Ask) -> bool:
        """Whether this one is short beside the running job. What that is said to take in all decides, not what is left
        of it: the answer stays what it was when somebody was told how long he waits."""
        one, share = self.running, SHARE if ask.seconds <= SHORT_SECONDS else SHARE_OF_LONG
        assert one is not None  # asked only while something runs
        return (
            ask.owner != one.owner
            and not ask.alone
            and one.seconds > WORTH_SECONDS
            and ask.seconds <= share * one.whole
        )

    def _wait(self, ask: Ask) -> float:
        """Seconds for which the running job computes before this one may pass."""
        return max(self.owed, ask.seconds if ask.seconds > SHORT_SECONDS else 0.0) - self.had

    def _begin(self, ask: Ask) -> Ask:
        self.waiting.remove(ask)
        self.last[ask.owner] = self.now
        return ask

    def _compute(self) -> bool:
        """Let the running job compute until something may pass, or it ends; whether it ended."""
        one = self.running
        assert one is not None
        left = one.seconds
        step = min([left, *(self._wait(ask) for ask in self._in_turn() if self._may_pass(ask))])
        step = max(step, 1e-6)
        self.now, self.had = self.now + step, self.had + step
        self.running = replace(one, seconds=left - step) if left > step else None
        return self.running is None
