"""How long information at one token is still needed."""

import streamlit as st

from ed_core.depth import say
from ed_core.probes import ResidualErasure
from ed_ui import probe_page


def beneath(result):
    if not probe_page.sinks_of(result):
        return
    st.caption("A column that glows on a sink (◆) may be damage to the sink, not to what its token says.")


TEXTS = {
    "The papers saw": "All input tokens matter about equally up to the middle of the depth; the later steps of a "
    "computation are not shifted to later layers (Csordás et al. 2025, §4).",
    "Look for": (
        "where a column fades: from there on its information has been moved to other tokens, or is no longer needed."
    ),
    "By construction": "With the answer as target the last column is 0: nothing comes after it. With later tokens as "
    "target the last column is empty and the top row is 0: after the last layer a position affects only "
    "its own prediction.",
    "Beware": "Erased means replaced by the mean residual of the background prompts: what a prompt shares with them "
    "all stays. Depth may adapt to the prompt a little after all (Curth et al. 2026, arXiv 2604.12426): see how this "
    "one compares, below. With the answer as target the curves there leave out the position that predicts the answer's "
    "first token, as the strip does.",
}

probe_page.Page(
    ResidualErasure,
    "Not computed yet. **Run** replaces one token's residual at one depth by the mean residual of background "
    "prompts, for every token and every depth, and measures how the prediction changes.",
    lambda result: say.erasure(result, ResidualErasure.left_out(result)),
    TEXTS,
    lambda result, view: probe_page.profile(result, "effect", view, "depths"),
    beneath=beneath,
    over_sinks=True,
    needs_answer=lambda probe: probe.target == "answer",
).show()
