"""The frame: page config, navigation, the shared sidebar. `streamlit run app.py`."""

from pathlib import Path

import streamlit as st

import ed_core  # noqa: F401  (sets OpenMP's waiting policy before anything can import torch)
from ed_ui import common_link, guard, hosting, link, picker, running, streamlit_edges, visitor

st.set_page_config(page_title=hosting.title(), page_icon="ed_ui/icon.svg", layout="wide", initial_sidebar_state="auto")
hosting.stop_if_wrong()

pages = {
    "Look": [
        st.Page("pages/look/home.py", title="Home", icon=":material/layers:", default=True),
        st.Page("pages/look/contributions.py", title="Contributions", icon=":material/stacked_bar_chart:"),
        st.Page("pages/look/logit_lens.py", title="Logit lens", icon=":material/center_focus_strong:"),
        st.Page("pages/look/numerics.py", title="Numerics", icon=":material/functions:"),
    ],
    "Intervene": [
        st.Page("pages/intervene/skip.py", title="Layer skip", icon=":material/content_cut:"),
        st.Page("pages/intervene/erase.py", title="Erase", icon=":material/ink_eraser:"),
        st.Page("pages/intervene/gradients.py", title="Gradients", icon=":material/trending_down:"),
        st.Page("pages/intervene/prune.py", title="Prune and exit", icon=":material/compress:"),
    ],
    "Compare": [
        st.Page("pages/compare/two.py", title="Compare two", icon=":material/compare_arrows:"),
        st.Page("pages/compare/audit.py", title="Precision audit", icon=":material/balance:"),
    ],
    "Keep": [
        st.Page(
            "pages/keep/gallery.py", title="Case studies", icon=":material/collections_bookmark:", url_path="cases"
        ),
        st.Page(
            "pages/keep/case.py", title="Case study", icon=":material/bookmark:", url_path="case", visibility="hidden"
        ),
    ],
}
st.html(Path(__file__).parent / "ed_ui" / "style.css")
page = streamlit_edges.navigation(pages)
visitor.gate()
running.jobs()  # the worker imports torch while the first page is being read
common_link.open_link(page.url_path)
visitor.sidebar()
if page.url_path not in {one.url_path for one in pages["Keep"]}:  # a case study opens without a model
    picker.sidebar()
hosting.banner()
whole = guard.guarded(page.run)
link.end_of_run()
if not whole:
    st.stop()  # so that Streamlit forgets no input which the page did not come to
