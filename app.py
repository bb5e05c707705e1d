"""The frame: page config, navigation, the shared sidebar. `streamlit run app.py`."""
import streamlit as st

import ed_core  # noqa: F401  (sets OpenMP's waiting policy before anything can import torch)
from ed_ui import scope

st.set_page_config(page_title="Effective depth", page_icon=":material/layers:", layout="wide", initial_sidebar_state="auto")

pages = {
    "Look": [
        st.Page("pages/look/home.py", title="Home", icon=":material/layers:", default=True),
        st.Page("pages/look/contributions.py", title="Contributions", icon=":material/stacked_bar_chart:"),
        st.Page("pages/look/logit_lens.py", title="Logit lens", icon=":material/center_focus_strong:"),
    ],
    "Intervene": [
        st.Page("pages/intervene/skip.py", title="Layer skip", icon=":material/content_cut:"),
    ],
}
page = st.navigation(pages)
scope.sidebar()
page.run()
