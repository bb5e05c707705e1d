"""The frame: page config, navigation, the shared sidebar. `streamlit run app.py`."""

from pathlib import Path

import streamlit as st

import ed_core  # noqa: F401  (sets OpenMP's waiting policy before anything can import torch)
from ed_ui import browser, common_link, guard, hosting, link, navigation, picker, running, streamlit_edges, visitor

FILES = Path(hosting.__file__).parent
st.set_page_config(
    page_title=hosting.title(), page_icon=FILES / "icon.svg", layout="wide", initial_sidebar_state="auto"
)
hosting.stop_if_wrong()

pages = {
    heading: [
        streamlit_edges.page(
            entry.file,
            title=entry.title,
            icon=f":material/{entry.icon}:",
            url_path=entry.url,
            default=entry.kept_as == "home",
            visibility="hidden" if entry.hidden else "visible",
        )
        for entry in entries
    ]
    for heading, entries in navigation.PAGES.items()
}
st.html(FILES / "style.css")
page = streamlit_edges.navigation(pages)
navigated = [pair for heading in pages for pair in zip(navigation.PAGES[heading], pages[heading])]
visitor.gate()
running.page_begins()
running.jobs()  # the worker imports torch while the first page is being read
common_link.open_link(page.url_path)
visitor.sidebar()
if next(entry.model for entry, one in navigated if one.url_path == page.url_path):
    picker.sidebar()
hosting.banner()
whole = guard.guarded(page.run)
running.page_ended()
link.end_of_run()
browser.listen()
if not whole:
    st.stop()  # so that Streamlit forgets no input which the page did not come to
