"""Running requests from a page: look each up, submit what is missing, follow the jobs, cancel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping
from uuid import uuid4

import streamlit as st

from ed_core import lookup
from ed_core.estimate import duration, free_memory
from ed_core.errors import Cancelled, EffectiveDepthError, QueueFull
from ed_core.jobs import Job, Jobs
from ed_core.types import ProbeResult, Request
from ed_ui import link, outlook, show, visitor

POLL_SECONDS = 0.3
AT_ONCE = 4  # jobs of one batch in the queue: a Run by somebody else never waits behind a whole study


@st.cache_resource
def jobs() -> Jobs:
    """This server's queue, with its worker; one for all sessions."""
    return Jobs()


def viewer() -> str:
    """This session, for jobs it shares with others."""
    return st.session_state.setdefault("viewer", uuid4().hex)


def free(device: str) -> int:
    """Bytes free on a device when the worker started, the same for a whole session: a model opened since must not
    narrow the next choice."""
    known: dict[str, int] = st.session_state.setdefault("free", {})
    if device not in known:
        told = jobs().devices.get(device)
        known[device] = free_memory() if told is None else told
    return known[device]


@dataclass
class Batch:
    """The requests a page shows: stored results, jobs on their way, and what went wrong. `waiting`: names asked for,
    not yet in the queue."""

    requests: Mapping[str, Request]
    at_once: int = AT_ONCE
    waiting: list[str] = field(default_factory=list)
    results: dict[str, ProbeResult] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    errors: dict[str, EffectiveDepthError] = field(default_factory=dict)
    finished: bool = False

    @property
    def running(self) -> bool:
        return bool(self.waiting) or any(not job.over for job in self.jobs.values())

    @property
    def missing(self) -> list[str]:
        """Names neither stored nor on their way."""
        return [
            name
            for name in self.requests
            if name not in self.results and name not in self.jobs and name not in self.waiting
        ]

    def result(self, name: str) -> ProbeResult | None:
        """The newest result, partial or complete."""
        return self.results.get(name)


def batch(page: str, requests: Mapping[str, Request], at_once: int = AT_ONCE) -> Batch:
    """This page's batch for these requests: the one in the session if it is the same, else a new one filled from the
    store."""
    kept: Batch | None = st.session_state.get(f"batch.{page}")
    if kept is None or {n: r.key for n, r in kept.requests.items()} != {n: r.key for n, r in requests.items()}:
        if kept is not None:
            cancel(kept)
        kept = st.session_state[f"batch.{page}"] = Batch(requests, at_once)
        for name, request in requests.items():
            if (found := lookup.find(request)) is not None:
                kept.results[name] = found
    return kept


def submit(batch: Batch) -> None:
    """Queue what the batch still lacks; where it lacks nothing, everything anew: whoever presses Run wants to see it
    run."""
    batch.errors.clear()
    lacking = [n for n in batch.requests if n not in batch.results or not batch.results[n].complete]
    for name in lacking or list(batch.requests):
        batch.results.pop(name, None)
    batch.waiting = lacking or list(batch.requests)
    batch.finished = False
    _hand_over(batch)


def _hand_over(batch: Batch) -> None:
    """Put what is waiting into the queue, as far as the batch may take it up. Where the queue has no room for more of
    this visitor, what is running makes some; where nothing of the batch is, it ends here with the reason."""
    while batch.waiting and len(batch.jobs) < batch.at_once:
        name = batch.waiting[0]
        try:
            batch.jobs[name] = jobs().submit(batch.requests[name], viewer(), visitor.name())
        except QueueFull as error:
            if not batch.jobs:
                batch.errors |= dict.fromkeys(batch.waiting, error)
                batch.waiting.clear()
            return
        except EffectiveDepthError as error:
            batch.errors[name] = error
        batch.waiting.pop(0)


def cancel(batch: Batch) -> None:
    """Leave every job of the batch; each stops unless somebody else waits for it."""
    batch.waiting.clear()
    for job in batch.jobs.values():
        if not job.over:
            jobs().cancel(job, viewer())


def poll(batch: Batch) -> bool:
    """Fetch what is new. True exactly once, when the last job has ended: the page should then run as a whole."""
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
    """What went wrong, each message once, with the prompts it befell (by the number behind the name of a request); a
    cancel is no trouble."""
    found: dict[str, list[str]] = {}
    for name, error in batch.errors.items():
        if not isinstance(error, Cancelled) and (
            number := name.removesuffix(".control").rpartition(".")[2]
        ) not in found.setdefault(str(error), []):
            found[str(error)].append(number)
    return found


def status(batch: Batch) -> str:
    """One line on what is going on."""
    for name, job in batch.jobs.items():
        if job.state == "running":
            left = job.seconds_left()
            share = f"{job.result.progress:.0%}" if job.result else ""
            doing = (
                f"{name.replace('_', ' ').replace('.control', ' of the control').replace('.', ' · ')}: "
                f"{job.stage or 'starting'}"
            )
            return " · ".join(x for x in (doing, share, f"about {left:.0f} s left" if left else "") if x)
    ahead = min((jobs().position(job) for job in batch.jobs.values()), default=0)
    return f"waiting, {ahead} job{'s' if ahead != 1 else ''} ahead" if batch.jobs else ""


def outlook_of(batch: Batch, n_tokens: int | None) -> outlook.Outlook:
    """What a batch needs, and what stands in its way."""
    requests = list(batch.requests.values())
    return outlook.outlook(
        requests, [batch.requests[name] for name in batch.missing], n_tokens, free(requests[0].models[0].device)
    )


def _about(seconds: float) -> str:
    return f"about {max(seconds, 1):.0f} s" if seconds < 120 else f"about {duration(seconds)}"


def controls(page: str, batch: Batch, ready: bool, n_tokens: int | None = None):
    """Run and Cancel, side by side and always in the same place; beside them the model, and how long it will take. What
    it takes stands in the sidebar; what cannot run here is said above Run, which is then off. Returns the row."""
    models = list(dict.fromkeys(request.models[0] for request in batch.requests.values()))
    todo = [batch.requests[name] for name in batch.missing]
    outlook = outlook_of(batch, n_tokens)
    if outlook.needs:
        st.session_state.get("needs", st.sidebar).caption(outlook.needs, help=show.plain(outlook.details))
    obstacle = (
        st.empty()
    )  # always there, so that Run keeps its place among the page's elements and is never drawn twice
    if outlook.obstacle:
        obstacle.warning(show.plain(outlook.obstacle), icon=":material/block:")
    row = st.container(horizontal=True, vertical_alignment="center")
    if row.button(
        "Run",
        type="primary",
        key=f"run.{page}",
        icon=":material/play_arrow:",
        disabled=batch.running or not ready or bool(outlook.obstacle),
        width=120,
    ):
        submit(batch)
        st.rerun()
    if row.button("Cancel", key=f"cancel.{page}", icon=":material/stop:", disabled=not batch.running, width=120):
        cancel(batch)
        st.rerun()
    seconds = lookup.estimate(todo, n_tokens) if todo else 0.0
    if not todo:
        told = "" if batch.running else "stored"
    elif seconds is not None:
        told = f"{_about(seconds)} on this machine"
    else:
        told = (
            "not timed on this machine yet" if outlook.seconds is None else f"{_about(outlook.seconds)} by the estimate"
        )
    named = " · ".join(
        ", ".join(dict.fromkeys(words)) for words in ([m.name for m in models], [m.precision for m in models])
    )
    row.markdown(f":blue-badge[{show.plain(named)}] " + (f":gray-badge[{told}]" if told else ""), width="content")
    link.share(row)
    return row
