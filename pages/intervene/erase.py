"""How long information at one token is still needed."""
import streamlit as st

from ed_core import figures
from ed_core.probes import ResidualErasure
from ed_ui import probe_page, show


def panels(result, view):
    show.figure("map", figures.token_map(result, view, "effect"), "Change of the prediction when this token is erased at this depth", result, "effect", READING, select=True)
    if view.selected is not None:
        show.figure("profile", figures.token_profile(result, "effect", view.selected), f"Token {view.selected} over the depths", result, "effect")


READING = """Row l erases the stream before block l. Where a column fades, that token's information has been moved elsewhere or is no longer
needed. In the papers all input tokens matter about equally up to the middle of the depth, and later steps of a computation are not shifted to
later layers (Csordás et al. 2025). With the answer as target the last column is zero by construction; with later tokens as target it is empty,
and the top row is zero: behind the last block a position speaks only for itself."""

show.guarded(
    lambda: probe_page.page(
        ResidualErasure,
        panels,
        "Not computed yet. **Run** replaces one token's residual at one depth by the mean residual of background prompts, for every token and "
        "every depth, and measures how the prediction changes.",
        needs_answer=lambda probe: probe.target == "answer",
    )
)
