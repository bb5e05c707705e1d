"""How long information at one token is still needed."""

import streamlit as st

from ed_core.depth import say
from ed_core.probes import ResidualErasure
from ed_core.types import ProbeResult
from ed_ui import probe_page, show


def beneath(result: ProbeResult) -> None:
    """Show below the map what a bright column on an attention sink may mean."""
    if not probe_page.sinks_of(result):
        return
    st.caption("A column that glows on a sink (◆) may be damage to the sink, not to what its token says.")


probe_page.Page(
    ResidualErasure,
    show.words(__file__),
    lambda result: say.erasure(result, ResidualErasure.left_out(result)),
    lambda result, view: probe_page.profile(result, "effect", view, "depths"),
    beneath=beneath,
    over_sinks=True,
    needs_answer=lambda probe: isinstance(probe, ResidualErasure) and probe.target == "answer",
).show()
