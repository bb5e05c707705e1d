"""The frame: page config, navigation, the shared sidebar. `streamlit run app.py`."""

from pathlib import Path

import streamlit as st
from streamlit.starlette import App

import ed_core  # noqa: F401  (sets OpenMP's waiting policy before anything can import torch)
from ed_ui import (
    browser,
    common_link,
    guard,
    hosting,
    link,
    navigation,
    picker,
    rooms,
    running,
    server,
    streamlit_edges,
    visitor,
)

FILES = Path(hosting.__file__).parent


def draw() -> None:
    """The page that the browser asks for."""
    st.set_page_config(
        page_title=hosting.title(), page_icon=FILES / "icon.svg", layout="wide", initial_sidebar_state=200
    )
    hosting.stop_if_wrong()

    pages = {
        entry: streamlit_edges.page(
            entry.file, title=f"{entry.title} · {room.title}", url_path=entry.url, default=entry.kept_as == "home"
        )
        for room in navigation.ROOMS
        for entry in room.tabs
    }
    st.html(FILES / "style.css")
    page = st.navigation(list(pages.values()), position="hidden")  # `rooms` draws the links
    room, tab = next(
        (room, tab) for room in navigation.ROOMS for tab in room.tabs if pages[tab].url_path == page.url_path
    )
    visitor.gate()
    running.page_begins()
    running.jobs()  # the worker imports torch while the first page is being read
    common_link.open_link(page.url_path)
    rooms.sidebar(room)
    visitor.sidebar()
    hosting.banner()
    whole = rooms.framed(room, tab, lambda: guard.guarded(page.run))
    running.page_ended()
    if tab.model:
        picker.open_ahead()
    link.end_of_run()
    browser.listen()
    if not whole:
        st.stop()  # so that Streamlit forgets no input which the page did not come to


if __name__ == "__main__":  # Streamlit runs this file for every page
    draw()
else:  # and `streamlit run` takes from it, before that, what it serves
    app = App(__file__, **server.around_if_right())
