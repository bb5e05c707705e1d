"""Runs that a page begins: what is computed, in which folder, and what came of it; and a run's panel:
begin, cancel, resume, how far it is and how long it takes, what went wrong."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import streamlit as st

from ed_core import disk, settings
from ed_core.cards import card, making
from ed_core.depth import say
from ed_core.errors import EffectiveDepthError, FitRefused, NotAllowed, StudyError
from ed_core.lenses import ENDING, Fit, measured
from ed_core.lenses import file as fit_files
from ed_core.lenses.checkpoint import digest_of, digest_of_prompts
from ed_core.machine import free_memory, gigabytes
from ed_core.models.ref import ModelRef
from ed_core.prompts import to_jsonl
from ed_core.studies import study
from ed_core.studies.items import home, shipped
from ed_core.types import ModelSpec, Prompt
from ed_core.work.estimate import about
from ed_core.work.queue import Job
from ed_core.work.runs import fit as fits
from ed_core.work.runs import study as long_work
from ed_core.work.turn import Work
from ed_ui import browser, inputs, live, prompt_set, running, session, show, visitor

T = TypeVar("T")
STUDY = "asked.toml"  # a study's text, in its folder
PROMPTS = "prompts.jsonl"  # typed prompts, in the folder of a card
FITTED = "asked.jsonl"  # the prompts of a fit
FOUND = f"found{measured.ENDING}"  # the maps of a fit
HELD_OUT = 5  # of so many prompts one judges a fit
LONGEST = 600  # seconds of a fit that a page begins
SAMPLE = 40  # prompts whose tokens are counted for an estimate
POLL = 1.0  # seconds between two looks at a run


def begin(
    folder: Path,
    title: str,
    files: Mapping[str, bytes],
    work: Work,
    *arguments: Any,
    partial: Callable[[bytes], Any] = bytes.decode,
) -> None:
    """Start a run in a folder as a job of the batch lane, or continue it. `files`: its input, by name, written into the
    folder; `partial`: reads what it publishes. Raises `NotAllowed` on a hosted installation, a `StudyError` where it
    runs already or cannot be written."""
    if settings.current().hosted:
        raise NotAllowed("Starting studies from the browser is disabled here. Use the command line on the server.")
    if (job := of(folder)) is not None and not job.over:
        raise StudyError(f"This run is under way already, in {folder.name}; wait for it, or cancel it first.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            disk.write(folder / name, data)
    except OSError as error:
        raise StudyError(f"The run cannot be started: {disk.why(error)}") from error
    me = session.current().viewer
    who: dict[str, Any] = {"viewer": me, "owner": visitor.name() or me, "kept": True, "read": partial}
    running.jobs().submit(work, *arguments, key=str(folder), title=title, **who)


def of(folder: Path) -> Job | None:
    """Return the job of a folder's run; None where this server knows of none."""
    return running.jobs().find(str(folder))


def on_disk(name: str) -> str:
    """Return a name as a folder or a file may have it, with "-" in place of other characters."""
    return re.sub(r"[^\w.+-]", "-", name)


def read(how: Callable[[Path], T], file: Path) -> T:
    """Return what `how` reads from a file, cached until the file changes."""
    found: T = _read(how, file, file.stat().st_mtime_ns)
    return found


@lru_cache(maxsize=48)
def _read(how: Callable[[Path], T], file: Path, changed: int) -> T:
    """Return what `how` reads from a file. `changed`: the file's time of change, part of the cache's key."""
    return how(file)


# ---------------------------------------------------------------- the panel


def follow(folder: Path, draw: Callable[[], object]) -> None:
    """Draw a part of a page with a run's panel, again and again while the run is under way."""
    live.fragment(draw, POLL if under_way(folder) else None)()


def under_way(folder: Path) -> bool:
    """Return whether a run in this folder is queued or running."""
    job = of(folder)
    return job is not None and not job.over


def panel(
    folder: Path,
    page: str,
    begin: Callable[[], None],
    found: bool,
    note: str = "",
    again: bool = False,
    linked: bool = True,
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Draw Run (Resume where it was begun, Cancel while it is under way), with `note` next to it and progress or error
    below. `found`: nothing is left to run, and Run is drawn only where it may run `again`. `ended`: called once when
    the run has ended; the page runs as a whole when it begins and ends. `linked`: with Share."""
    watch(folder, page, ended)
    job, running_now, complete = of(folder), under_way(folder), found and not again
    row = st.container(horizontal=True, vertical_alignment="center", key=f"run-row-{page}")
    label = "Run again" if found else "Resume" if folder.is_dir() else "Run"
    look: dict[str, Any] = {"type": "primary", "icon": ":material/play_arrow:"}
    if not (running_now or complete) and row.button(label, key=f"run.{page}", **look):
        begin()
        inputs.put({f"{page}.watched": str(folder)})  # it may end before the page is drawn again
        st.rerun()
    if job is not None and running_now and row.button("Cancel", key=f"cancel.{page}", icon=":material/stop:"):
        running.jobs().cancel(job)
        st.rerun()
    if note and not complete:
        row.caption(show.plain(note), width="content")
    if linked:
        browser.share(row, prompt=False)
    if job is not None and running_now:
        st.progress(job.share, show.plain(progress(job)))
    elif job is not None and job.state == "failed" and job.error is not None:
        show.error(job.error)


def watch(folder: Path, page: str, ended: Callable[[], None] = lambda: None) -> None:
    """Run the page as a whole, after calling `ended`, when a run that was seen here has ended."""
    watched = f"{page}.watched"
    if under_way(folder):
        inputs.put({watched: str(folder)})
    elif inputs.value(watched) == str(folder):
        inputs.forget(watched)
        ended()
        st.rerun()


def progress(job: Job) -> str:
    """Return a line on how far a job is: how many are before it, or its share and the time left."""
    if job.state == "queued":
        ahead = running.jobs().ahead(job)
        return f"waiting, {say.count(ahead, 'job')} ahead" if ahead else "starting"
    parts = [f"{100 * job.share:.0f} %", job.stage or "models and prompts are looked up"]
    if job.cancelling:
        parts[1] = "stopping"
    elif (left := job.seconds_left()) is not None:
        parts.append(f"{about(left)} left")
    return " · ".join(parts)


# ---------------------------------------------------------------- studies


def begin_study(text: str) -> str:
    """Start a study, or continue the one of that name; return its folder's name. Raises a `StudyError` for a text that
    is no study, or where its folder is another study's or a shipped one's, which it would hide."""
    title = study.parse(text).name
    name = on_disk(title)
    if name in {place.name for place in shipped()} and not (home() / name).is_dir():
        raise StudyError(f"The study {name} comes with the program; give yours another name.")
    file = home() / name / STUDY
    if file.is_file() and (other := study.read(file).name) != title:
        raise StudyError(f"The study {other!r} is in the folder {name}, where this one would be; give another name.")
    resume_study(home() / name, {STUDY: text.encode()})
    return name


def resume_study(out: Path, files: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Start or continue the run of a study in its folder, with these files written into it."""
    begin(out, f"the study {out.name}", files, long_work.study, str(out / STUDY), out)


# ---------------------------------------------------------------- cards


@dataclass(frozen=True)
class Card:
    """A depth card that a page asks for: of a model, on a bundled set or on typed prompts. `also`: further models of
    its family."""

    model: ModelRef
    bundled: str = ""
    prompts: tuple[Prompt, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        """The card's folder."""
        return card.place(self.model, self.bundled or digest_of_prompts(self.prompts), self.also)

    def asked(self) -> making.Asked:
        """Return the arguments of the run that makes the card; their `command` does the same in the shell."""
        model, prompts = self.model, self.bundled or str(self.out / PROMPTS)
        how: dict[str, Any] = {"precision": model.precision, "device": model.device, "adapter": model.adapter}
        return making.Asked(model=prompt_set.source(model), prompts=prompts, also=self.also, **how)

    def begin(self) -> None:
        """Start the run that makes the card, or continue it."""
        files = {} if self.bundled else {PROMPTS: to_jsonl(self.prompts).encode()}
        begin(self.out, f"the card of {self.model.name}", files, long_work.card, self.asked(), self.out)

    def found(self) -> card.Card | None:
        """Return the finished card; None while it does not exist. Raises an `EffectiveDepthError` for a damaged
        file."""
        file = self.out / card.FILE
        return read(card.read, file) if file.is_file() else None


def cards() -> tuple[dict[str, tuple[Path, card.Card]], list[str]]:
    """Return all cards by name with their files, those made here first; and a sentence for each damaged one."""
    known: dict[str, tuple[Path, card.Card]] = {}
    damaged = []
    for file in (*card.made_here(), *card.shipped()):
        try:
            known.setdefault(card_name(file), (file, read(card.read, file)))
        except (EffectiveDepthError, OSError) as error:
            damaged.append(f"{card_name(file)}: {error}")
    return known, damaged


def card_name(file: Path) -> str:
    """Return a card's name in links: its folder's, for a shipped one its file's."""
    return file.parent.name if file.name == card.FILE else file.stem


def card_of(model: ModelSpec) -> card.Card | None:
    """Return the card of these weights in this precision, on any prompts; None where none is stored."""
    for _, known in cards()[0].values():
        of_card, wanted = known.model, (model.content_hash, model.precision, model.adapter)
        if (of_card.content, of_card.precision, of_card.adapter) == wanted:
            return known
    return None


# ---------------------------------------------------------------- fits


@dataclass(frozen=True)
class Fitted:
    """A fit that a page asks for: a lens of one model (`lens` is "affine" or "jacobian"), or, where `lens` is "",
    linear maps between two models or in place of one model's layers."""

    models: tuple[ModelRef, ...]
    prompts: tuple[Prompt, ...]
    lens: str = ""

    @property
    def kind(self) -> str:
        """The kind of fit, by its name in `lenses`."""
        return self.lens or (measured.Maps.kind if len(self.models) == 2 else measured.Replacement.kind)

    @property
    def out(self) -> Path:
        """The fit's folder, named by a hash of all that can change a number."""
        identity = [model.identity() for model in self.models]
        return fit_files.folder() / digest_of(self.kind, identity, digest_of_prompts(self.prompts))

    @property
    def file(self) -> Path:
        """The file that this fit writes: maps go into the fit's own folder, a lens into the folder of all lenses."""
        if not self.lens:
            return self.out / FOUND
        model = on_disk(self.models[0].name)[-40:].lstrip(".+-")
        return fit_files.folder() / f"{model}-{self.lens}-{self.out.name[:6]}{ENDING}"

    def asked(self, prompts: str, out: str) -> fits.Fit:
        """Return the arguments of the run that makes the fit. `prompts`: the file of its prompts; `out`: the file it
        writes."""
        model, *others = self.models
        return fits.Fit(self.kind, model, prompts, out, other=next(iter(others), None))

    def begin(self) -> None:
        """Start the fit, or continue it."""
        wanted = self.asked(str(self.out / FITTED), str(self.file))
        files = {FITTED: to_jsonl(self.prompts).encode()}
        begin(self.out, f"a fit to {self.models[0].name}", files, fits.fit, wanted, partial=_maps_so_far)

    def takes(self) -> tuple[str, float]:
        """Return the fit's time and memory in words, "" where a size is not known or the memory is short; and its
        seconds on a CPU, 0 where not known."""
        some, mean = self.prompts[:: max(1, len(self.prompts) // SAMPLE)], None
        try:
            sizes = [model.size() for model in self.models]
            plan = measured.plan_of(self.kind, sizes, free_memory())
            if self.kind == measured.Maps.kind:
                mean = prompt_set.n_tokens(self.models[0], some)
        except EffectiveDepthError:
            return "", 0.0
        needs = f"{gigabytes(plan.bytes)} of memory"
        if mean is None:
            return needs, 0.0
        n_tokens, parameters = mean * len(self.prompts), sum(size.parameters for size in sizes)
        judged = n_tokens // HELD_OUT
        seconds = plan.seconds(n_tokens - judged, judged, parameters)
        return f"{about(seconds)} · {needs}", seconds if self.models[0].device == "cpu" else 0.0

    def so_far(self) -> measured.Maps | measured.Replacement | None:
        """Return the maps that are solved while others are not; None before the first."""
        job = of(self.out)
        return None if job is None or job.over else job.result

    def found(self) -> measured.Maps | measured.Replacement | Fit | None:
        """Return the finished fit; None where it does not exist or its file is damaged."""
        with contextlib.suppress(OSError, FitRefused):
            return fit_files.read(self.file) if self.lens else read(measured.read, self.file)
        return None


def _maps_so_far(data: bytes) -> measured.Maps | measured.Replacement | None:
    """Return the maps that a fit publishes; None for its last message, a sentence."""
    with contextlib.suppress(FitRefused):
        return measured.unpacked(data, "the maps so far")
    return None


def distinct(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return each prompt once, so that none is both fitted on and judged on."""
    return tuple({(p.text, p.answer): p for p in prompts}.values())


def fit_panel(wanted: Fitted, page: str, linked: bool = True) -> measured.Maps | measured.Replacement | Fit | None:
    """Draw the panel of a fit, with what it takes, and return the finished fit, None before."""
    result = wanted.found()
    takes, seconds = ("", 0.0) if result is not None else wanted.takes()
    if seconds > LONGEST and not wanted.out.is_dir():
        st.info(f"This fit takes {show.plain(takes)}: run it with the command below, and open its file here.")
        return None
    panel(wanted.out, page, wanted.begin, result is not None, takes, linked=linked)
    return result


def fit_command(wanted: Fitted, out: str) -> None:
    """Show the command that makes the same fit into the file `out`, and the file of prompts that it needs."""
    st.code(wanted.asked("prompts.jsonl", out).command, language=None)
    show.prompts_file(wanted.prompts)
