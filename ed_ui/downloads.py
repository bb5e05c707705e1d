"""A hub model that is not here: what a download would bring, a button, progress, cancel. The hub is asked in
the background."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import streamlit as st

from ed_core import disk
from ed_core.errors import Cancelled, EffectiveDepthError
from ed_core.machine import gigabytes
from ed_core.models import catalogue, hub, permits
from ed_core.models.bundled import EXAMPLE, MODELS, load_prompts
from ed_core.models.ref import ModelRef, Wheel
from ed_ui import inputs, live, session, show

POLL_SECONDS = 0.5


@st.cache_resource
def _asking() -> ThreadPoolExecutor:
    """Return the threads that ask the hub for the files of models."""
    return ThreadPoolExecutor(4, thread_name_prefix="hub")


@st.cache_resource
def _running() -> dict[str, hub.Download]:
    """Return this server's downloads by `SOURCE@REVISION`; a second visitor sees the one that is under way."""
    return {}


def section(spec: ModelRef) -> None:
    """Draw the offer to download a model that is not on this machine, or how far its download is."""
    if off := permits.why_not(permits.download, spec.source):
        st.warning(show.plain(off), icon=":material/cloud_off:")
        _offer_small(spec)
        return
    name = f"{spec.source}@{spec.revision}"
    plans = session.current().plans
    if name not in plans:
        plans[name] = _asking().submit(spec.plan)
    future = plans[name]
    download = _running().get(name)
    busy = not future.done() or (download is not None and not download.over)
    live.fragment(_live, POLL_SECONDS if busy else None)(spec, name, future, busy)


def _live(spec: ModelRef, name: str, future: Future[hub.Plan], was_busy: bool) -> None:
    """Draw the hub's answer, a download's progress, or what went wrong. `was_busy`: whether this part had to wait when
    it was first drawn; the page runs again once it need not."""
    download, is_answered = _running().get(name), future.done()  # once: the answer may come while this is drawn
    busy = not is_answered or (download is not None and not download.over)
    if (was_busy and not busy) or (download is not None and download.done):
        if download is not None and download.done:
            _running().pop(name, None)
        st.rerun()
    st.markdown(f"**{show.plain(spec.name)}** is not here yet: nothing can run.")
    entry = catalogue.find(spec.reads)
    if entry is not None and entry.gated and not os.environ.get("HF_TOKEN"):
        st.caption(show.plain(f"It is gated: {hub.TOKEN}, then start the app again."))
    if download is not None and not download.over:
        done, total = download.progress
        text = f"{gigabytes(done)} of {gigabytes(total)}" if total else "starting"
        st.progress(min(1.0, done / total) if total else 0.0, text)
        st.button("Cancel", key="download.cancel", icon=":material/stop:", on_click=download.cancel)
    elif is_answered and (error := future.exception()) is not None:
        unknown = f"The hub could not be asked ({type(error).__name__})."
        text = str(error) if isinstance(error, EffectiveDepthError) else unknown
        st.warning(show.plain(text), icon=":material/cloud_off:")
        if st.button("Ask again", key="download.ask", icon=":material/refresh:"):
            session.current().plans.pop(name)
            st.rerun()
    else:
        # the room of the offer is kept while the hub is asked: what is below it need not move
        with st.container(key="download-first" if small(spec) else "download-other"):
            if is_answered:
                _offer(spec, name, future.result(), download)
            else:
                st.caption("Asking the hub what it consists of …")


def _offer(spec: ModelRef, name: str, plan: hub.Plan, before: hub.Download | None) -> None:
    """Draw a download's size, the free disk, the terms and the button, below the error of the download `before` it."""
    folder, setting = spec.cache
    have = plan.bytes_in(folder)
    if before is not None and before.error is not None and not isinstance(before.error, Cancelled):
        show.error(before.error)
    part = f", {gigabytes(have)} of them here already" if have else ""
    st.caption(f"{gigabytes(plan.bytes)} to download{part}; {gigabytes(disk.free(folder))} free on the disk.")
    if not (room := disk.has_room(max(0, plan.bytes - have), folder)):
        text = f"The disk has no room for it: make room, or set {setting} to a folder on another disk."
        st.error(text, icon=":material/hard_drive:")
    if terms := spec.terms:
        st.caption(f"{show.plain(terms.sentence)} [{show.plain(terms.name)}]({terms.address})")
    look: dict[str, Any] = dict(icon=":material/download:", type="primary", disabled=not room)
    if st.button("Resume" if have else "Download", key="download.start", **look):
        _running()[name] = hub.Download(spec.download)
        st.rerun()
    _offer_small(spec)


def small(spec: ModelRef) -> str:
    """Return the bundled model that is offered instead of one from a wheel, which a first visit meets; "" for other
    models, and where no bundled one may be used."""
    allowed = (name for name in MODELS if not permits.why_not(permits.model, name))
    return next(allowed, "") if isinstance(spec, Wheel) else ""


def _offer_small(spec: ModelRef) -> None:
    """Draw the button that chooses a small bundled model, and a prompt that it knows, where `small` names one."""
    if name := small(spec):
        st.caption("Or take one of the small bundled models, which need no download and run at once.")
        known = next(p for p in load_prompts() if p["id"] == EXAMPLE)
        values = {"model": name, "text": known["text"], "answer": known["answer"], "example": EXAMPLE}
        st.button(f"Take {name}", key="download.small", on_click=inputs.put, args=(values,))
