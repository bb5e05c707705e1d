"""Whose turn it is, on a scripted queue: a clock that is set and a worker that is told how long its jobs take. Who
passes, what a long job still gets, that nobody starves, and that place and wait come true."""

from __future__ import annotations

import random

import pytest

from ed_core.errors import QueueFull
from ed_core.probes import Contributions, Prune
from ed_core.service import jobs as jobs_module
from ed_core.service.estimate import Expected, Pace
from ed_core.service.jobs import Job, Jobs
from ed_core.service.resolve import resolve
from ed_core.service.turns import CREDIT_SECONDS, SHORT_SECONDS, Ask, Turns
from ed_core.types import Prompt, Request

BEGIN = 1000.0
BORDER = 0.25  # seconds between two blocks, and of one look at the queue


class Known(Pace):
    """What requests are expected to take, by their prompts."""

    def __init__(self):
        super().__init__()
        self.expected: dict[str, Expected] = {}
        self.learnt: list[tuple[str, float]] = []

    def expect(self, request: Request) -> Expected:
        return self.expected[request.prompts[0].text]

    def learn(self, request: Request, n_tokens: int, seconds: float, opening: float) -> None:
        self.learnt.append((request.prompts[0].text, seconds))


class Scripted(Jobs):
    """The queue, with a worker that takes as long as it is told: `takes` by prompt, else as expected."""

    def __init__(self, **more):
        self.now, self.sent, self.stack, self.todo = BEGIN, [], [], []
        self.takes: dict[str, float] = {}
        self.log: list[tuple[float, str, str]] = []  # when, what, prompt
        self.spec = resolve("ed-demo-8")
        self.known = Known()
        super().__init__(
            warm=False,
            pace=self.known,
            clock=lambda: self.now,
            told=lambda what, job: self.log.append((self.now - BEGIN, what, job.request.prompts[0].text)),
            **more,
        )

    def _watch(self) -> None:
        """Looked after by `pass_by`."""

    def _start_worker(self) -> None:
        self._worker = self

    def kill(self) -> None:
        self.sent.append({"type": "killed"})

    def _tell(self, header: dict) -> None:
        self.sent.append(header)
        if header["type"] == "run":
            job = next(one for one in (self._running, self._inside) if one and one.id == header["job"])
            self.todo.append(job)

    def ask(self, visitor: str, name: str, seconds: float, takes: float | None = None, **more) -> Job:
        """One job of a visitor, by the name of its prompt."""
        self.known.expected[name] = Expected(seconds, **more)
        self.takes[name] = seconds if takes is None else takes
        return self.submit(Contributions().request(self.spec, Prompt(name)), visitor)

    def pass_by(self, seconds: float) -> None:
        """Let time pass, block by block."""
        end = self.now + seconds
        while self.now < end:
            if self.todo and len(self.stack) < 2:
                job = self.todo.pop(0)
                self.stack.append([job, 0.0])
                self._heard({"type": "begun", "job": job.id}, b"")
                self._heard({"type": "stage", "job": job.id, "text": jobs_module.COMPUTING}, b"")
            self.now += BORDER
            if self.stack:
                top = self.stack[-1]
                job, whole = top[0], self.takes[top[0].request.prompts[0].text]
                top[1] += BORDER
                self._heard({"type": "partial", "job": job.id, "progress": min(1.0, top[1] / whole)}, b"")
                if top[1] >= whole:
                    self.stack.pop()
                    told = {"models": [1, 1000], "tokens": 8, "seconds": top[1], "opening": 0.0}
                    self._heard({"type": "done", "job": job.id, **told}, b"")
                elif job.cancelling:
                    self.stack.pop()
                    self._heard({"type": "failed", "job": job.id, "error": "Cancelled", "message": "."}, b"")
            self._look_after(BORDER)

    def until_idle(self, most: float = 1e5) -> None:
        end = self.now + most
        while self._under_way() and self.now < end:
            self.pass_by(BORDER)
        assert not self._under_way()

    def order(self, what: str) -> list[str]:
        return [name for _, kind, name in self.log if kind == what]

    def when(self, what: str, name: str) -> float:
        return next(at for at, kind, text in self.log if (kind, text) == (what, name))


@pytest.fixture
def queue(monkeypatch):
    monkeypatch.setattr(jobs_module, "ABANDONED_SECONDS", 1e9)
    monkeypatch.setattr(jobs_module, "free_memory", lambda: 10**10)
    return Scripted()


# -------------------------------------------------------------------- who passes


def test_a_short_job_passes_a_long_one_which_goes_on(queue):
    long, short = queue.ask("ada", "long", 100.0), queue.ask("bob", "short", 4.0)
    assert queue.place(short).seconds == 0 and queue.place(short).ahead == 0
    queue.pass_by(2.0)
    assert (long.state, short.state) == ("running", "running") and long.gave_way is not None
    assert queue.counts() == {"waiting": 0, "running": 1, "gave way": 1}
    queue.until_idle()
    assert queue.order("ended") == ["short", "long"] and (long.state, short.state) == ("done", "done")
    assert queue.when("ended", "short") <= 5 and queue.when("ended", "long") == pytest.approx(104, abs=1)
    assert long.away == pytest.approx(4, abs=0.5) and long.worked(long.ended) == pytest.approx(100, abs=1)


def test_what_is_not_short_passes_once_the_other_has_computed_for_as_long(queue):
    queue.ask("ada", "long", 600.0)
    queue.ask("bob", "middling", 60.0)
    queue.until_idle()
    assert queue.when("begun", "middling") == pytest.approx(60, abs=2)
    assert queue.order("ended") == ["middling", "long"]


def test_ones_own_short_job_waits_for_ones_own_long_one(queue):
    """A page's jobs come in the order in which it asks for them."""
    queue.ask("ada", "long", 50.0)
    queue.ask("ada", "short", 1.0)
    queue.until_idle()
    assert queue.order("ended") == ["long", "short"]


def test_nearly_done_is_not_interrupted(queue):
    queue.ask("ada", "long", 20.0)
    queue.pass_by(18.5)
    queue.ask("bob", "short", 4.0)
    queue.until_idle()
    assert queue.order("ended") == ["long", "short"]


def test_one_that_takes_longer_than_expected_is_passed_too(queue):
    """It said it would be short, and shows no progress."""
    queue.ask("ada", "stuck", 1.0, takes=1e4)
    queue.pass_by(60.0)
    queue._running.progress = 0.0
    short = queue.ask("bob", "short", 4.0)
    queue._heard({"type": "stage", "job": queue._running.id, "text": "x"}, b"")
    queue.pass_by(5.0)
    assert short.over


def test_what_must_be_fetched_first_passes_nobody(queue):
    queue.ask("ada", "long", 50.0)
    queue.ask("bob", "absent", 1.0, alone=True)
    queue.ask("eve", "short", 1.0)
    queue.until_idle()
    assert queue.order("ended") == ["short", "long", "absent"]


def test_what_has_no_room_beside_the_long_one_passes_not(queue, monkeypatch):
    monkeypatch.setattr(jobs_module, "free_memory", lambda: 1000)
    queue.ask("ada", "long", 50.0, sweep=400)
    queue.ask("bob", "large", 1.0, sweep=600)
    small = queue.ask("eve", "small", 1.0, sweep=400, weights=10**6)
    queue.pass_by(5.0)
    assert small.over, "the weights are those of the model that is open"
    queue.until_idle()
    assert queue.order("ended") == ["small", "long", "large"]


def test_what_did_not_fit_inside_is_tried_by_itself(queue):
    """The worker says `later`."""
    long, short = queue.ask("ada", "long", 50.0), queue.ask("bob", "short", 1.0)
    queue._heard({"type": "begun", "job": short.id}, b"")
    assert long.gave_way is not None
    queue.todo.remove(short)
    queue.now += 3.0
    queue._heard({"type": "later", "job": short.id}, b"")
    assert (short.state, short.started, long.gave_way, long.away) == ("queued", None, None, 3.0)
    queue.until_idle()
    assert queue.order("ended") == ["long", "short"] and short.state == "done"


# -------------------------------------------------------------------- turns, and that nobody starves


def test_visitors_take_turns_each_with_the_oldest_of_his_jobs(queue):
    for number in range(3):
        queue.ask("ada", f"ada {number}", 1.0)
    for who in ("bob", "eve"):
        for number in range(2):
            queue.ask(who, f"{who} {number}", 1.0)
    queue.until_idle()
    assert queue.order("begun") == ["ada 0", "bob 0", "eve 0", "ada 1", "bob 1", "eve 1", "ada 2"]


def test_a_long_job_gets_half_of_the_time_however_many_short_ones_come(queue):
    """A new visitor every second, each with a job of a second: more than the machine can do."""
    long = queue.ask("ada", "long", 60.0)
    for number in range(400):
        queue.ask(f"visitor {number}", f"short {number}", 1.0)
        queue.pass_by(1.0)
        if long.over:
            break
    assert long.over and queue.now - BEGIN <= 2 * 60 + SHORT_SECONDS
    assert queue.order("ended").count("long") == 1 and len(queue.order("ended")) > 50, "and the others theirs"


def test_between_two_passes_it_computes_for_as_long_as_the_first_took(queue):
    queue.ask("ada", "long", 200.0)
    queue.ask("bob", "first", 8.0)
    queue.ask("eve", "second", 1.0)
    queue.pass_by(100.0)
    gap = queue.when("begun", "second") - queue.when("ended", "first")
    assert gap == pytest.approx(8, abs=2 * BORDER)


def test_what_it_computed_beyond_what_it_owed_counts_for_several_short_ones(queue):
    """A page asks for four things at once: none of them waits for a block of its own."""
    queue.ask("ada", "long", 200.0)
    queue.pass_by(30.0)
    for number in range(4):
        queue.ask("bob", f"{number}", 1.0)
    queue.pass_by(4.0 + 3 * BORDER)
    assert queue.order("ended") == ["0", "1", "2", "3"]
    assert len(queue.sent) - queue.sent.index({"type": "on"}) == 1, "told once, when nobody was next"


def test_what_counts_has_a_bound(queue):
    long = queue.ask("ada", "long", 200.0)
    queue.pass_by(100.0)
    for number in range(40):
        queue.ask("bob", f"{number}", 1.0)
    queue.pass_by(CREDIT_SECONDS + 1 + BORDER)
    assert long.away >= CREDIT_SECONDS
    queue.pass_by(20.0)
    assert long.away == pytest.approx(CREDIT_SECONDS + 1 + 10, abs=2), "then half of the time"


def test_what_counts_is_the_same_before_the_short_one_begins(queue):
    """It was sent, and the block before it is not over: a forecast made then is no other."""
    long = queue.ask("ada", "long", 200.0)
    queue.pass_by(100.0)
    short = queue.ask("bob", "short", 4.0)
    assert queue._inside is short and long.gave_way is None
    before = queue._turns(queue.now).had
    queue.pass_by(BORDER)
    assert long.gave_way is not None and before == queue._turns(queue.now).had == CREDIT_SECONDS


def test_nobody_starves_behind_visitors_who_come_later(queue):
    """Long jobs of ever new visitors: whoever came first waits for those before him alone."""
    queue.ask("a", "a", 100.0)
    mine = queue.ask("me", "mine", 100.0)
    for number in range(8):
        queue.ask(f"late {number}", f"late {number}", 100.0)
        queue.pass_by(20.0)
    queue.pass_by(2 * 100.0)
    assert mine.started is not None and mine.started - mine.submitted <= 2 * 100 + SHORT_SECONDS


def test_who_had_a_turn_comes_after_who_waited_longer(queue):
    """Ada's second job came before Bob's first; but she has had a turn since he came."""
    queue.ask("eve", "eve", 5.0)
    queue.ask("ada", "ada 0", 5.0)
    queue.ask("ada", "ada 1", 5.0)
    queue.pass_by(1.0)
    queue.ask("bob", "bob", 5.0)
    queue.until_idle()
    assert queue.order("begun") == ["eve", "ada 0", "bob", "ada 1"]


# -------------------------------------------------------------------- place and wait


def fill(queue: Scripted, chance: random.Random, off: float) -> None:
    """Fourteen jobs of six visitors, from a second to five minutes, each off by up to a factor."""
    for number in range(14):
        expected = chance.choice([1.0, 3.0, 8.0, 21.0, 55.0, 130.0, 290.0])
        takes = expected * off ** chance.uniform(-1, 1)
        queue.ask(f"visitor {chance.randrange(6)}", f"{number}", expected, takes)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("off", [1.0, 1.5])
def test_place_and_wait_come_true_within_a_factor_of_two(queue, seed, off):
    """Asked every 10 s of every job that waits; a few seconds do not count."""
    fill(queue, random.Random(seed), off)
    told: list[tuple[str, float, int, float]] = []
    while queue._under_way():
        for job in queue._queue:
            place = queue.place(job)
            told.append((job.request.prompts[0].text, queue.now - BEGIN, place.ahead, place.seconds))
        queue.pass_by(10.0)
    ended = sorted(at for at, what, _ in queue.log if what == "ended")
    assert len(told) > 50
    for name, at, ahead, seconds in told:
        begun = queue.when("begun", name)
        came, before = begun - at, sum(at < one <= begun for one in ended)
        assert seconds <= 2 * came + 5 and came <= 2 * seconds + 5, (name, at, seconds, came)
        assert ahead <= 2 * before + 2 and before <= 2 * ahead + 2, (name, at, ahead, before)


def test_a_forecast_is_of_the_queue_as_it_is(queue):
    queue.ask("ada", "first", 30.0)
    second, third = queue.ask("bob", "second", 30.0), queue.ask("eve", "third", 30.0)
    assert (queue.place(second).ahead, queue.place(third).ahead) == (1, 2)
    assert queue.place(third).seconds == pytest.approx(60, abs=1)
    queue.pass_by(10.0)
    assert queue.place(third).seconds == pytest.approx(50, abs=2)
    queue.cancel(second, "bob")
    assert queue.place(third).ahead == 1 and queue.place(third).seconds == pytest.approx(20, abs=2)
    queue.pass_by(21.0)
    assert third.state == "running" and queue.place(third) == jobs_module.Place(0, 0.0)


def test_a_forecast_of_a_full_queue_is_quick():
    """No more events than a few for each job: the page asks every second."""
    asks = [Ask(f"{n}", f"{n % 40}", float(n), *[float(1 + n % 97)] * 2) for n in range(200)]
    calls, turns = [0], Turns(200.0, asks, {}, Ask("r", "r", 0.0, 500.0, 500.0))
    real = Turns._in_turn

    def counted(self):
        calls[0] += 1
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Turns, "_in_turn", counted)
        found = turns.forecast()
    assert set(found) == {ask.id for ask in asks} and calls[0] < 20 * len(asks)
    assert len(turns.waiting) == 200 and turns.last == {}, "the queue itself stays"


# -------------------------------------------------------------------- cancel, death, those who left


def test_either_can_be_cancelled_while_one_is_inside_the_other(queue):
    long, short = queue.ask("ada", "long", 100.0), queue.ask("bob", "short", 5.0)
    queue.pass_by(1.0)
    queue.cancel(short, "bob")
    queue.pass_by(1.0)
    assert short.state == "cancelled" and long.state == "running" and long.gave_way is None
    other = queue.ask("eve", "other", 5.0)
    queue.pass_by(2.0)
    assert other.state == "running" and long.gave_way is not None
    queue.cancel(long, "ada")
    queue.pass_by(20.0)
    assert (long.state, other.state) == ("cancelled", "done")
    assert {"type": "killed"} not in queue.sent


def test_a_cancelled_job_that_gave_way_is_not_taken_for_stuck(queue, monkeypatch):
    """It cannot stop before the other is done; from then on it has its time."""
    long, short = queue.ask("ada", "long", 100.0), queue.ask("bob", "short", 9.0, takes=60.0)
    queue.pass_by(1.0)
    queue.cancel(long, "ada")
    queue.pass_by(50.0)
    assert {"type": "killed"} not in queue.sent and short.state == "running"
    queue.stack[-1][1] = 60.0
    queue.pass_by(BORDER)
    queue.stack.clear()  # it does not answer
    queue.pass_by(jobs_module.STUCK_SECONDS - 1)
    assert short.state == "done" and {"type": "killed"} not in queue.sent
    queue.pass_by(2.0)
    assert {"type": "killed"} in queue.sent


def test_what_was_sent_and_not_taken_up_is_cancelled_at_once(queue):
    long, short = queue.ask("ada", "long", 100.0), queue.ask("bob", "short", 5.0)
    assert queue._inside is short and short.state == "queued"
    queue.cancel(short, "bob")
    assert short.state == "cancelled" and {"type": "cancel", "job": short.id} in queue.sent
    queue.todo.remove(short)
    queue.until_idle()
    assert long.state == "done" and long.away == 0


def test_what_was_sent_to_run_inside_runs_by_itself_where_the_other_ends_first(queue):
    long, short = queue.ask("ada", "long", 30.0, takes=0.1), queue.ask("bob", "short", 5.0)
    sent = queue.todo.pop()
    assert sent is short
    queue.pass_by(BORDER)
    assert long.state == "done" and queue._running is short and short.state == "running"
    queue.todo.append(sent)
    queue.until_idle()
    assert short.state == "done"


def test_a_worker_that_dies_takes_both_with_it_and_no_more(queue):
    long, short = queue.ask("ada", "long", 100.0), queue.ask("bob", "short", 5.0)
    third = queue.ask("eve", "third", 1.0)
    queue.pass_by(1.0)
    queue._died(-9)
    assert (long.state, short.state) == ("failed", "failed")
    assert all("memory" in str(job.error) for job in (long, short))
    queue.stack.clear()
    queue.until_idle()
    assert third.state == "done"


def test_what_had_not_begun_outlives_the_worker(queue):
    long, short = queue.ask("ada", "long", 100.0), queue.ask("bob", "short", 5.0)
    queue.todo.clear()
    queue._died(1)
    assert long.state == "failed" and not short.over
    queue.until_idle()
    assert short.state == "done" and not short.alone


def test_time_in_which_the_server_hears_nobody_does_not_count(monkeypatch):
    """A look that comes late, and looks while the server's loop stands still, count for next to nothing."""
    hears = [True]
    queue = Scripted(hears=lambda: hears[0])
    job = queue.ask("ada", "long", 1000.0)
    queue._look_after(60.0)
    assert job.unseen <= 1 and job.cancelling is None
    hears[0] = False
    for _ in range(100):
        queue._look_after(0.5)
    assert job.unseen <= 1
    hears[0] = True
    for _ in range(38):
        queue._look_after(0.5)
    assert job.cancelling is None
    for _ in range(2):
        queue._look_after(0.5)
    assert job.cancelling is not None


def test_who_was_on_a_screen_has_all_the_time_from_then_on():
    seen = [True]
    queue = Scripted(on_screen=lambda job: seen[0])
    job = queue.ask("ada", "long", 1000.0)
    for _ in range(100):
        queue._look_after(0.5)
    seen[0] = False
    for _ in range(39):
        queue._look_after(0.5)
    assert job.cancelling is None
    queue.poll(job)
    for _ in range(40):
        queue._look_after(0.5)
    assert job.cancelling is None
    queue._look_after(0.5)
    assert job.cancelling is not None


def test_the_room_counts_what_runs_inside(queue, monkeypatch):
    monkeypatch.setenv("ED_MAX_JOBS", "2")
    queue.ask("ada", "long", 100.0)
    queue.ask("bob", "short", 5.0)
    assert queue._inside is not None
    with pytest.raises(QueueFull):
        queue.ask("eve", "third", 1.0)
    assert queue.log[-1][1:] == ("refused", "third")


# -------------------------------------------------------------------- what a request will take


def test_what_a_request_will_take_is_what_it_took(monkeypatch):
    spec, pace = resolve("ed-demo-8"), Pace()
    one, other = (Prune().request(spec, Prompt(text)) for text in ("5 + 7 + 1 = ", "5 + 7 + 1 + 2 + 3 = "))
    first = pace.expect(one)
    assert first.seconds > 0 and first.weights > 0 and first.sweep > 0 and not first.alone
    pace.learn(one, 7, 70.0, 5.0)
    tokens = 11
    assert pace.expect(other).seconds == pytest.approx(10.0 * tokens, rel=0.3), "as long for a token; the model is open"
    pace.nothing_open()
    assert pace.expect(other).seconds == pytest.approx(10.0 * tokens + 5, rel=0.3)


def test_another_probe_is_off_by_as_much_and_stored_results_come_first():
    spec = resolve("ed-demo-8")
    pace, asked = Pace(), Contributions().request(spec, Prompt("5 + 7 = "))
    pace.learn(Prune().request(spec, Prompt("5 + 7 = ")), 8, 0.0, 0.0)
    before = Pace()
    before.learn(Prune().request(spec, Prompt("5 + 7 = ")), 8, 1e3, 0.0)
    assert before.expect(asked).seconds > 100 * pace.expect(asked).seconds
    assert Pace(lambda requests, n: 42.0).expect(asked).seconds == pytest.approx(42, abs=2)
