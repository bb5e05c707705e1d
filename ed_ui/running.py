"""Running requests from a page: look each up, submit what is missing, follow the jobs, cancel."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping
from uuid import uuid4

import streamlit as st

from ed_core import lookup
from ed_core.errors import Cancelled, EffectiveDepthError
from ed_core.jobs import Job, Jobs
from ed_core.types import ProbeResult, Request

POLL_SECONDS = 0.3
AT_ONCE = 4  # jobs of one batch in the queue: a Run by somebody else never waits behind a whole study


@st.cache_resource
def jobs() -> Jobs:
    """This server's queue, with its worker; one for all sessions."""
    return Jobs()


def viewer() -> str:
    """This session, for jobs it shares with others."""
    return st.session_state.setdefault("viewer", uuid4().hex)


@dataclass
class Batch:
    """The requests a page shows: stored results, jobs on their way, and what went wrong. `waiting`: names asked for, not yet in the queue."""

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
        return [name for name in self.requests if name not in self.results and name not in self.jobs and name not in self.waiting]

    def result(self, name: str) -> ProbeResult | None:
        """The newest result, partial or complete."""
        return self.results.get(name)


def batch(page: str, requests: Mapping[str, Request], at_once: int = AT_ONCE) -> Batch:
    """This page's batch for these requests: the one in the session if it is the same, else a new one filled from the store."""
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
    """Queue what the batch still lacks; where it lacks nothing, everything anew: whoever presses Run wants to see it run."""
    batch.errors.clear()
    lacking = [n for n in batch.requests if n not in batch.results or not batch.results[n].complete]
    for name in lacking or list(batch.requests):
        batch.results.pop(name, None)
    batch.waiting = lacking or list(batch.requests)
    batch.finished = False
    _hand_over(batch)


def _hand_over(batch: Batch) -> None:
    """Put what is waiting into the queue, as far as the batch may take it up."""
    while batch.waiting and len(batch.jobs) < batch.at_once:
        name = batch.waiting.pop(0)
        batch.jobs[name] = jobs().submit(batch.requests[name], viewer())


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
    """What went wrong, each message once, with the prompts it befell (by the number behind the name of a request); a cancel is no trouble."""
    found: dict[str, list[str]] = {}
    for name, error in batch.errors.items():
        if not isinstance(error, Cancelled) and (number := name.rpartition(".")[2]) not in found.setdefault(str(error), []):
            found[str(error)].append(number)
    return found


def status(batch: Batch) -> str:
    """One line on what is going on."""
    for name, job in batch.jobs.items():
        if job.state == "running":
            left = job.seconds_left()
            share = f"{job.result.progress:.0%}" if job.result else ""
            return " · ".join(x for x in (f"{name.replace('_', ' ').replace('.control', ' of the control')}: {job.stage or 'starting'}", share, f"about {left:.0f} s left" if left else "") if x)
    ahead = min((jobs().position(job) for job in batch.jobs.values()), default=0)
    return f"waiting, {ahead} job{'s' if ahead != 1 else ''} ahead" if batch.jobs else ""


def controls(page: str, batch: Batch, ready: bool, n_tokens: int | None = None):
    """Run and Cancel, side by side and always in the same place; beside them the model, and how long it will take. Returns the row."""
    row = st.container(horizontal=True, vertical_alignment="center")
    if row.button("Run", type="primary", key=f"run.{page}", icon=":material/play_arrow:", disabled=batch.running or not ready, width=120):
        submit(batch)
        st.rerun()
    if row.button("Cancel", key=f"cancel.{page}", icon=":material/stop:", disabled=not batch.running, width=120):
        cancel(batch)
        st.rerun()
    model = next(iter(batch.requests.values())).models[0]
    todo = [batch.requests[name] for name in batch.missing]
    seconds = lookup.estimate(todo, n_tokens) if todo else 0.0
    if not todo:
        told = "" if batch.running else "stored"
    else:
        told = f"about {max(seconds, 1):.0f} s on this machine" if seconds is not None else "not timed on this machine yet"
    row.markdown(f":blue-badge[{model.name} · {model.precision}] " + (f":gray-badge[{told}]" if told else ""), width="content")
    return row
