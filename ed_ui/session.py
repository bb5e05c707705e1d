"""What one visitor's session remembers: one typed object under one key of Streamlit's session state."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core.cases.case_study import Case
from ed_core.errors import EffectiveDepthError
from ed_core.models.hub import Plan
from ed_core.models.ref import ModelRef
from ed_core.types import ProbeResult, Request
from ed_core.work.queue import Job

KEY = "session"
T = TypeVar("T")


@dataclass
class Link:
    """A session's record of the URL: what it named, and what it is to name."""

    page: str | None = None  # the page of the last run; None before the first
    base: str = ""  # the address in front of a page's name
    first: bool = False  # this is the session's first run
    arrived: bool = False  # in this run the URL decides
    due: bool = False  # it decides on the page's own parameters, which are not taken yet
    by_run: bool = False  # a stored run that the URL names has filled the boxes
    under_way: bool = False  # a run of the whole page has begun and not ended
    written: bool = False  # in this run the page has set what the URL will hold
    own: tuple[Any, ...] = ()  # the page's own inputs (`inputs.Input`)
    owns: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # those of pages that were open, by page
    given: dict[str, dict[str, str]] = field(default_factory=dict)  # what the frame's links carry, by page
    values: dict[str, str] = field(default_factory=dict)  # what the URL holds, or is to hold
    troubles: list[str] = field(default_factory=list)  # what the link asked for and did not get


@dataclass
class Batch:
    """The requests a page shows: stored results, jobs on their way, and what went wrong. `waiting`: names asked for,
    not yet in the queue."""

    requests: Mapping[str, Request]
    at_once: int = 4  # jobs of one batch in the queue: a Run by somebody else never waits behind a whole study
    waiting: list[str] = field(default_factory=list)
    results: dict[str, ProbeResult] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    errors: dict[str, EffectiveDepthError] = field(default_factory=dict)
    finished: bool = False
    page: str = ""
    begun: float = 0.0  # when it was submitted last
    asked: int = 0  # how many requests then lacked a result
    twins: list[tuple[ProbeResult, ProbeResult]] | None = None  # the twins next to its verdict, once looked up

    @property
    def running(self) -> bool:
        """Whether a request is on its way, or its result has arrived and was not fetched yet: a page that took it for
        done would stay with the part it has."""
        return bool(self.waiting or self.jobs)

    @property
    def missing(self) -> list[str]:
        """The names of the requests that are neither stored nor on their way."""
        return [n for n in self.requests if n not in self.results and n not in self.jobs and n not in self.waiting]

    def result(self, name: str) -> ProbeResult | None:
        """Return the newest result of a request, partial or complete; None without one."""
        return self.results.get(name)

    def complete(self, name: str) -> ProbeResult | None:
        """Return the result of a request once it is complete; None before."""
        result = self.results.get(name)
        return result if result is not None and result.complete else None


@dataclass
class Editing:
    """An edit of a case study's words. `opened`: the state of the case study when the edit began. `trouble`: why its
    last save failed."""

    case: Case
    opened: str
    trouble: str = ""


@dataclass(frozen=True)
class Undo:
    """The content of the prompt's boxes before it was replaced, and why; `at`: when, in monotonic seconds."""

    held: Mapping[str, str]
    why: str
    at: float = field(default_factory=time.monotonic)


@dataclass
class Session:
    """All that one visitor's session remembers. `inputs`: the value of every input by its key, on whatever page it
    is."""

    inputs: dict[str, Any] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    viewer: str = field(default_factory=lambda: uuid4().hex)  # this session, for jobs it shares with others
    free: dict[str, int] = field(default_factory=dict)  # bytes on a device when the worker started
    batches: dict[str, Batch] = field(default_factory=dict)  # by page
    needs: DeltaGenerator | None = None  # where the box of the model says what a page needs
    absent: ModelRef | None = None  # the chosen model, where the page says that it is not here
    plans: dict[str, Future[Plan]] = field(default_factory=dict)  # what the hub was asked, by model
    read: Batch | None = None  # what Home shows
    picked: bool = False  # an example was just chosen: what takes little time runs by itself
    place: Any = None  # where the prompt's box leaves room for Run, Options and Share (`running.Place`)
    begins: bool = True  # the browser has not been sent a whole page yet
    share: tuple[DeltaGenerator, bool] | None = None  # where this run shows the page's link (`browser.share`)
    undo: Undo | None = None  # the way back to what was typed
    replaced: dict[str, tuple[Any, float]] = field(default_factory=dict)  # by input: what it held, until when
    saved: dict[str, tuple[Any, str, str]] = field(default_factory=dict)  # by page: the view, its case's id and title
    editing: dict[str, Editing] = field(default_factory=dict)  # by the case study's id
    case_id: str = ""  # the case study opened last
    failures: set[str] = field(default_factory=set)  # ids of what was logged
    found: dict[Hashable, Any] = field(default_factory=dict)  # in this run (`once_a_run`)


def begin_run() -> None:
    """Forget what was kept for one run, as a page, or a part of it, begins to run."""
    current().found.clear()
    current().share = current().place = None


def once_a_run(key: Hashable, find: Callable[[], T]) -> T:
    """Return `find()`, computed once until the page, or a part of it, runs next. `key`: must name all that the value
    depends on besides files and settings."""
    cache = current().found
    if key not in cache:
        cache[key] = find()
    value: T = cache[key]
    return value


def current() -> Session:
    """Return this session's object, made at the first call."""
    if KEY not in st.session_state:
        st.session_state[KEY] = Session()
    known: Session = st.session_state[KEY]
    return known
