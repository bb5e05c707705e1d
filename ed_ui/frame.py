"""The frame around every page: its title, the six rooms and the model in the sidebar, the owner's line; on top the
page's question and the room's tabs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

import ed_core  # noqa: F401  (sets OpenMP's waiting policy before anything can import torch)
from ed_core import settings
from ed_core.errors import SettingsError
from ed_core.figures import colours
from ed_ui import browser, link, live, picker, running, session, show, visitor
from ed_ui.navigation import ROOMS, Entry, Room

FOLDER = Path(__file__).parent
STYLE_SECONDS = 0.3  # in which a browser applies the style sheet: without the wait the page is drawn, then moves
WHAT = """**How much of its depth does a language model use?** Every layer adds to a stream that carries each token
upwards. This page reads that stream after every layer, as if the model ended there: from which layer on it would say
what it says in the end, what each layer adds, and what breaks without it. **Play** goes through the layers one by one.
*Effective depth* is the papers' name for the layer up to which a model does new work before it only refines."""


def draw() -> None:
    """Draw the page that the browser asks for, within the frame."""
    try:
        title = settings.current().title
    except SettingsError as error:  # what was meant to be closed might be open
        st.error(show.plain(str(error)), icon=":material/settings:")
        st.stop()
    look: dict[str, Any] = {"page_icon": FOLDER / "icon.svg", "layout": "wide", "initial_sidebar_state": 200}
    st.set_page_config(page_title=title, **look)
    pages = {
        entry: st.Page(
            entry.path, title=f"{entry.title} · {room.title}", url_path=entry.url, default=entry.kept_as == "home"
        )
        for room in ROOMS
        for entry in room.tabs
    }
    st.html(f"<style>{colours.css()}\n{(FOLDER / 'style.css').read_text()}</style>")
    page = st.navigation(list(pages.values()), position="hidden")  # `sidebar` and `framed` draw the links
    room, tab = next((room, tab) for room in ROOMS for tab in room.tabs if pages[tab].url_path == page.url_path)
    session.begin_run()
    visitor.gate()
    running.jobs()  # the worker imports torch while the first page is being read
    if session.current().begins and st.context.headers:
        time.sleep(STYLE_SECONDS)
    link.open_link(page.url_path)
    sidebar(room, tab)
    visitor.sidebar()
    banner()
    is_complete = framed(room, tab, lambda: live.guarded(page.run))
    if tab.model:
        picker.open_ahead()
    link.end_of_run()
    browser.listen()
    if not is_complete:
        st.stop()  # so that Streamlit forgets no input which the page did not come to


def banner() -> None:
    """Draw the owner's line above the page, where the settings have one."""
    if text := settings.current().banner:
        st.container(key="banner").info(show.plain(text), icon=":material/campaign:")


def sidebar(here: Room, tab: Entry) -> None:
    """Draw the product's name, a link to each room, and at the foot the model; on a phone the rooms are a bar at the
    bottom. `here`, `tab`: the open room and page."""
    st.sidebar.container(key="name").markdown(f"**{show.plain(settings.current().title)}**")
    bars = {"side": st.sidebar.container(key="rooms-side", gap=None), "foot": st.container(key="rooms-foot")}
    for bar_key, bar in bars.items():
        for room in ROOMS:
            link_to(
                bar.container(key=f"here-{bar_key}") if room is here else bar,
                room.tabs[0],
                label=room.title,
                icon=f":material/{room.icon}:",
                width="stretch",
            )
    if tab.model:
        with st.sidebar.container(key="model-foot"):
            picker.box()


def link_to(place: Any, tab: Entry, **look: Any) -> None:
    """Draw a link to a page in `place`, with the URL parameters that the page will write itself."""
    page = "" if tab.kept_as == "home" else tab.address
    place.page_link(tab.path, query_params=link.to(page) if tab.model else None, **look)


def framed(here: Room, tab: Entry, page: Callable[[], bool]) -> bool:
    """Draw the page below the room's question, its tabs and the model; return what `page` returns: whether it came to
    its end. The frame is drawn first, and is behind the page for the keyboard: Run is a few steps away."""
    body, frame = st.container(key="page"), st.container(key="frame")
    with frame:
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key="room"):
            st.subheader(tab.question or here.question, anchor=False, width="content")
            shown = [one for one in here.tabs if not one.hidden]
            with st.container(horizontal=True, gap="xsmall", key="tabs"):
                for one in shown if len(shown) > 1 else ():
                    link_to(st, one, label=one.title)
            if tab.kept_as == "home":
                st.popover("What is this?", type="tertiary", key="what").markdown(WHAT)
        if tab.model:
            picker.trouble()
    with body:
        return page()


if __name__ == "__main__":
    draw()
