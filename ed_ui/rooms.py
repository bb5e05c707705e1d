"""What stands around every page: the six rooms in the sidebar; on top the room's question, its tabs and the model."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from ed_ui import picker, streamlit_edges
from ed_ui.navigation import ROOMS, Entry, Room


def sidebar(here: Room) -> None:
    """A link to each room; the one that is open is marked."""
    for room in ROOMS:
        place = st.sidebar.container(key="here") if room is here else st.sidebar
        place.page_link(room.tabs[0].file, label=room.title, icon=f":material/{room.icon}:", width="stretch")


def framed(here: Room, tab: Entry, page: Callable[[], bool]) -> bool:
    """Draw the page below the room's question, its tabs and the model; returns what the page says. The frame is drawn
    first, and stands behind the page for the keyboard: Run is a few steps away."""
    body, frame = st.container(key="page"), st.container(key="frame")
    with frame:
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key="room"):
            st.subheader(here.question, anchor=False, width="content")
            shown = [one for one in here.tabs if not one.hidden]
            with st.container(horizontal=True, gap="xsmall", key="tabs"):
                for one in shown if len(shown) > 1 else ():
                    wide = streamlit_edges.width(st.page_link, [one.title])
                    st.page_link(one.file, label=one.title, width=wide)
            if tab.model:
                picker.box()
        if tab.model:
            picker.trouble()
    with body:
        return page()
