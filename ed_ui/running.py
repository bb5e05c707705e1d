"""Running requests from a page: whether they can run here and what they take, said before Run from configs alone; look
each up, submit what is missing, follow the jobs, cancel."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core.depth import say
from ed_core.errors import Cancelled, EffectiveDepthError, ParameterError
from ed_core.machine import free_memory, gigabytes
from ed_core.models import permits, sizes
from ed_core.models.ref import ModelRef
from ed_core.probes import Probe, find
from ed_core.results import lookup
from ed_core.types import ModelSpec, Request
from ed_core.work import estimate, measure
from ed_core.work.queue import Job, Queue
from ed_core.work.resolve import admit
from ed_ui import browser, session, show, visitor
from ed_ui.session import Batch as Batch

CONTROL = ".control"  # ends the name of a control's request
BY_ITSELF = 2.0  # seconds, by the estimate: an example that takes no longer runs as soon as it is chosen
FIRST_SECONDS = 0.25  # how long Run waits for something to show: a panel that begins at once needs no second run
WIDTH = 96  # pixels of Run
DOUBLE_CLICK = 0.5  # seconds
NOTHING_FITS = "no precision fits: take a smaller model or a shorter prompt"
SPEED = "By the estimate, from the sizes of the model and the prompt."


@st.cache_resource(show_spinner=False)
def jobs() -> Queue:
    """Return this server's queue with its two lanes, one for all sessions."""
    return Queue()


def viewer() -> str:
    """Return this session's id, by which the queue knows who waits for a job."""
    return session.current().viewer


def free(device: str) -> int:
    """Return the bytes that were free on a device when the worker started, the same for a whole session: a model opened
    since must not narrow the next choice."""
    known = session.current().free
    if device not in known:
        bytes_there = jobs().devices.get(device)
        known[device] = free_memory() if bytes_there is None else bytes_there
    return known[device]


def batch(page: str, requests: Mapping[str, Request], at_once: int = Batch.at_once) -> Batch:
    """Return this page's batch for these requests: the session's own if it has the same ones, else a new one filled
    from the store, for which the old one is cancelled. `at_once`: its most jobs in the queue."""
    batches = session.current().batches
    current = batches.get(page)
    if current is None or not _same(current.requests, requests):
        if current is not None:
            cancel(current)
        stored = {name: lookup.find_shown(request) for name, request in requests.items()}
        current = batches[page] = Batch(requests, at_once, page=page)
        current.results.update({name: result for name, result in stored.items() if result is not None})
    return current


def _same(some: Mapping[str, Request], others: Mapping[str, Request]) -> bool:
    """Return whether both have the same requests under the same names."""
    return some.keys() == others.keys() and all(some[n] == r or some[n].key == r.key for n, r in others.items())


def submit(batch: Batch) -> None:
    """Queue the requests of a batch that lack a complete result; all of them where none lacks one."""
    batch.errors.clear()
    lacking = [n for n in batch.requests if n not in batch.results or not batch.results[n].complete]
    for name in lacking or list(batch.requests):
        batch.results.pop(name, None)
    batch.waiting = lacking or list(batch.requests)
    batch.twins = None
    batch.finished, batch.begun, batch.asked = False, time.monotonic(), len(batch.waiting)
    _hand_over(batch)
    _await_first(batch)


def _hand_over(batch: Batch) -> None:
    """Queue waiting requests until the batch has `at_once` jobs."""
    while batch.waiting and len(batch.jobs) < batch.at_once:
        name = batch.waiting.pop(0)
        try:
            batch.jobs[name] = measure.submit(jobs(), batch.requests[name], viewer(), visitor.name())
        except EffectiveDepthError as error:
            batch.errors[name] = error


def _await_first(batch: Batch) -> None:
    """Wait at most `FIRST_SECONDS` until the job that runs has something to show."""
    end = time.monotonic() + FIRST_SECONDS
    while any(job.state == "running" and job.result is None for job in batch.jobs.values()) and time.monotonic() < end:
        time.sleep(0.01)


def cancel(batch: Batch) -> None:
    """Leave every job of the batch at once; each stops between two blocks, unless somebody else waits for it."""
    batch.waiting.clear()
    for name, job in list(batch.jobs.items()):
        if not job.over:
            jobs().cancel(job, viewer())
            del batch.jobs[name]
            batch.errors[name] = Cancelled("The computation was cancelled.")
            batch.results.pop(name, None)


def poll(batch: Batch) -> bool:
    """Fetch new results and errors of a batch. Return True exactly once, when its last job has ended: the page should
    then run as a whole."""
    for name, job in list(batch.jobs.items()):
        over = jobs().poll(job).over
        if job.result is not None and job.state != "cancelled":
            batch.results[name] = job.result
        if over:
            del batch.jobs[name]
            if job.error is not None:
                batch.errors[name] = job.error
                batch.results.pop(name, None)
    _hand_over(batch)
    if not batch.jobs and not batch.finished:
        batch.finished = True
        return True
    return False


def troubles(batch: Batch) -> dict[str, list[str]]:
    """Return what went wrong, but for cancelled jobs: each message once, with the numbers of its prompts."""
    prompts_of: dict[str, list[str]] = {}
    for name, error in batch.errors.items():
        if not isinstance(error, Cancelled):
            numbers, number = prompts_of.setdefault(str(error), []), _number(name)
            numbers += [number] * (number not in numbers)
    return prompts_of


def status(batch: Batch) -> str:
    """Return a line on how far a batch is: which of its jobs runs, its progress, and the time left of all; or how many
    jobs come before it; "" where none is queued."""
    for name, job in batch.jobs.items():
        if job.state == "running":
            left = _left(batch, name, job)
            share, time_left = f"{100 * job.share:.0f} %" if job.share else "", f"{about(left)} left" if left else ""
            number = batch.asked - len(batch.jobs) - len(batch.waiting) + 1
            count = f"{number} of {batch.asked}" if batch.asked > 1 else ""
            return " · ".join(filter(None, (f"{_named(name)}: {job.stage or 'starting'}", share, count, time_left)))
    ahead = min((jobs().ahead(job) for job in batch.jobs.values() if not job.over), default=None)
    return "" if ahead is None else f"waiting, {say.count(ahead, 'job')} ahead" if ahead else "waiting, next"


def _named(name: str) -> str:
    """Return a request's name for readers: probe or side, a prompt's number, whether it is a control's."""
    own = name.removesuffix(CONTROL)
    return own.replace(".", " · ").replace("_", " ") + " of the control" * (own != name)


def _number(name: str) -> str:
    """Return the prompt's number at the end of a request's name; the name itself where it has none."""
    return name.removesuffix(CONTROL).rpartition(".")[2]


def _left(batch: Batch, name: str, running_one: Job) -> float | None:
    """Return the seconds until a batch is complete: the running job by its own pace, waiting ones by earlier
    measurements; None where one of them is not known."""
    left = running_one.seconds_left()
    waiting = [batch.requests[n] for n in (*batch.jobs, *batch.waiting) if n != name]
    more = lookup.estimate(waiting, running_one.result.n_tokens) if waiting and running_one.result else 0.0
    return None if left is None or more is None else left + more


def about(seconds: float) -> str:
    """Return a duration in words: "about 40 s", "about 14 min"."""
    return f"about {max(seconds, 1):.0f} s" if seconds < 120 else estimate.about(seconds)


# -------------------------------------------------------------------- before Run


@dataclass(frozen=True)
class Outlook:
    """What a page's requests need, by estimate. `needs`: memory and time in a few words, "" where the size is not
    known; `obstacle`: why nothing can run, or ""; `seconds`: of the requests that are still to be run, None where not
    known."""

    needs: str
    obstacle: str
    seconds: float | None


def outlook(requests: Collection[Request], todo: Collection[Request], n_tokens: int | None, free: int) -> Outlook:
    """Return the time and memory that a page's requests take, or why they cannot run here.

    Memory is that of the largest model. `todo`: the requests without a stored result; only their seconds count.
    `n_tokens`: of the prompt, None for a typical length. `free`: bytes on their device."""
    n_tokens = n_tokens or estimate.TOKENS
    probes: dict[ModelSpec, dict[Asked, Probe]] = {}
    for request in requests:
        probes.setdefault(request.models[0], {})[request.probe, request.parameters] = find(request.probe).of(request)
    forecasts = {
        spec: _forecast(ModelRef.of(spec), n_tokens, free, tuple(own.values())) for spec, own in probes.items()
    }
    obstacles = [
        *(permits.why_not(admit, request) for request in requests),  # the queue checks it again
        *(_refused(probe, spec) for spec, own in probes.items() for probe in own.values()),
        *(
            _too_large(ModelRef.of(spec), found, tuple(probes[spec].values()), n_tokens) or missing(ModelRef.of(spec))
            for spec, found in forecasts.items()
        ),
    ]
    obstacle = next(filter(None, obstacles), "")
    known = {spec: forecast for spec, forecast in forecasts.items() if forecast is not None}
    if len(known) < len(forecasts):
        return Outlook("", obstacle, None)
    needed = {spec: dict(zip(probes[spec], forecast.needs)) for spec, forecast in known.items()}

    def seconds(some: Collection[Request]) -> float:
        return sum(needed[r.models[0]][r.probe, r.parameters].seconds for r in some)

    peak, whole = max(forecast.peak for forecast in known.values()), seconds(requests)
    time = "\\<1 s" if whole < 1 else estimate.duration(whole)
    needs = f"needs {gigabytes(peak)} of {gigabytes(free)} free, takes {time} at {say.count(n_tokens, 'token')}"
    return Outlook(needs, obstacle, seconds(todo))


Asked = tuple[str, tuple[Any, ...]]  # a request's probe and parameters


def _forecast(spec: ModelRef, n_tokens: int, free: int, probes: Sequence[Probe]) -> estimate.Estimate | None:
    """Return what these probes need on a model; None where only opening it tells."""
    if spec.precision not in sizes.PRECISIONS:
        return None  # a checkpoint stored in some other way
    try:
        return estimate.estimate(spec.size(), spec.precision, n_tokens, spec.device, free, probes)
    except EffectiveDepthError:
        return None


def _refused(probe: Probe, spec: ModelSpec) -> str:
    """Return why a probe refuses a model's precision; "" where it does not."""
    try:
        probe.check_precision(spec.precision)
    except ParameterError as error:
        return str(error)
    return ""


def missing(spec: ModelRef) -> str:
    """Return a sentence where the model's files are not here; else ""."""
    where = "choose it on top of the page and download it there"
    return "" if spec.is_here else f"{spec.name} is not here yet: {where}."


def _too_large(spec: ModelRef, found: estimate.Estimate | None, probes: Sequence[Probe], n_tokens: int) -> str:
    """Return why a model does not fit the free memory, with what would; "" where it fits or its size is not known.
    `found`: its estimate."""
    if found is None or found.fits:
        return ""
    others = estimate.fitting(spec.size(), found.free, n_tokens, spec.device, probes)
    instead = f"{' and '.join(others)} would fit" if others else NOTHING_FITS
    return (
        f"{spec.name} is too large in {spec.precision}: it needs {gigabytes(found.peak)} here and "
        f"{gigabytes(found.free)} are free on {spec.device}, a tenth of which stays free; {instead}."
    )


def outlook_of(batch: Batch, n_tokens: int | None) -> Outlook:
    """Return what a batch needs, and what keeps it from running. `n_tokens`: of its prompts, None if unknown."""
    requests, todo = list(batch.requests.values()), [batch.requests[name] for name in batch.missing]
    return outlook(requests, todo, n_tokens, free(requests[0].models[0].device))


# -------------------------------------------------------------------- Run and Cancel


class Place(NamedTuple):
    """Where a page draws Run (or Cancel) and the time that it takes; `row`: which ends in Options and Share;
    `obstacle`: below them. `encoded`: whether Options says how the prompt in the box is encoded."""

    run: DeltaGenerator
    time: DeltaGenerator
    row: DeltaGenerator
    obstacle: DeltaGenerator
    encoded: bool = False


def row_begins() -> Place:
    """Return the place for Run that the prompt's box has left in this run; else that of a new row."""
    known = session.current()
    place: Place | None = known.place
    if place is None:
        row = st.container(horizontal=True, vertical_alignment="center", key="run-row")
        place = Place(row.container(width="content", key="run-buttons"), row.empty(), row, st.empty())
        known.place = place
    return place


def run_row(
    page: str, batch: Batch, ready: bool, n_tokens: int | None = None, place: Place | None = None
) -> DeltaGenerator:
    """Draw Run (Cancel while it runs), the time it takes, and Share; submit the batch where Run was pressed; return the
    box of Share. What it needs is shown in the box of the model; an obstacle below the row turns Run off."""
    run, time_, row, obstacle, _ = place or row_begins()
    todo = [batch.requests[name] for name in batch.missing]
    expected = outlook_of(batch, n_tokens)
    if expected.needs:
        (session.current().needs or st).caption(expected.needs, help=SPEED)
    absent = session.current().absent  # of which the page says already that it is not here
    if expected.obstacle and not (absent is not None and expected.obstacle == missing(absent)):
        obstacle.warning(show.plain(expected.obstacle), icon=":material/block:")
    off = batch.running or not ready or bool(expected.obstacle)
    pressed = st.session_state.get(f"run.{page}")  # looked at before it is drawn, so that one run is enough
    known = session.current()
    quick = known.picked and todo and expected.seconds is not None and expected.seconds <= BY_ITSELF
    known.picked = False
    if (pressed or quick) and not off:
        submit(batch)
        todo = [batch.requests[name] for name in batch.missing]
    if batch.running:
        how: dict[str, Any] = {"icon": ":material/stop:", "on_click": _cancel_pressed, "args": (batch,)}
        run.button("Cancel", key=f"cancel.{page}", width=WIDTH, **how)
    else:
        off = not ready or bool(expected.obstacle)
        run.button("Run", key=f"run.{page}", type="primary", disabled=off, width=WIDTH)
    seconds = lookup.estimate(todo, n_tokens) if todo and ready else None
    seconds = expected.seconds if seconds is None and todo and ready else seconds
    time_.caption("" if seconds is None else about(seconds), width="content")
    return browser.share(row)


def section_row(batch: Batch, name: str, n_tokens: int | None, ready: bool, what: str, label: str = "Run") -> None:
    """Draw Run (called by its `label`) or Cancel of a section below the page's own, with how long it takes and `what`
    it is about. `name`: in the keys of its widgets."""
    row = st.container(horizontal=True, vertical_alignment="center", key=f"run-row-{name}")
    expected = outlook_of(batch, n_tokens)
    if batch.running:
        row.button("Cancel", key=f"cancel.{name}", icon=":material/stop:", on_click=cancel, args=(batch,))
    elif batch.missing or label == "Run":
        off = bool(expected.obstacle) or not ready
        if row.button(label, key=f"run.{name}", icon=":material/play_arrow:", disabled=off):
            submit(batch)
            st.rerun()  # the whole page: a fragment that did not follow the batch has no timer
    time = about(expected.seconds) if batch.missing and expected.seconds is not None else ""
    row.caption(" · ".join(filter(None, (time, what, show.plain(expected.obstacle)))))


def _cancel_pressed(batch: Batch) -> None:
    """Cancel the batch, unless the click is the second half of a double click on Run."""
    if time.monotonic() - batch.begun > DOUBLE_CLICK:
        cancel(batch)
