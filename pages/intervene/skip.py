"""What breaks when a layer, its attention or its MLP is left out."""
import streamlit as st

from ed_core import figures
from ed_core.probes import LayerSkip
from ed_ui import probe_page, show


def panels(result, view):
    show.figure("map", figures.skip_map(result, view), "Row left out, column affected: 0 does not care, 1 changes as much as its own size", result, "effect", READING)
    if "effect_direct" in result.measures:
        show.figure("direct", figures.skip_map(result, view, "effect_direct"), "Direct effect: nothing in between passes the change on", result, "effect_direct", DIRECT)
    left, right = st.columns(2)
    with left:
        show.figure("output", figures.output_bars(result, view), "Change of the prediction, and share of tokens whose best guess stays", result, "output")
    with right:
        if "output_pos" in result.measures:
            show.figure("where", figures.output_by_token(result, view), "Which token's prediction breaks", result, "output_pos", select=True)


READING = """Look for how far to the right a row stays bright. Cells above the diagonal's left side are zero by construction: nothing before
the skipped layer can change. On the diagonal stands 1 (current mode, whole layer) or 0 (future mode), also by construction. Values at the
noise floor (on hover) mean nothing."""

DIRECT = """What is bright here reads the skipped layer itself; what is bright above and dark here reaches it through the layers between."""

show.guarded(
    lambda: probe_page.page(
        LayerSkip,
        panels,
        "Not computed yet. **Run** leaves out every layer in turn and measures how much each later one changes: one walk over the blocks.",
    )
)
