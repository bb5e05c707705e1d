"""Which tokens the answer's probability rests on, at every depth."""
import streamlit as st

from ed_core import figures
from ed_core.probes import IntegratedGradients
from ed_ui import probe_page, show


def panels(result, view):
    show.figure("map", figures.token_map(result, view, "attribution"), "Share of the answer's probability that rests on this token", result, "attribution", READING, select=True)
    left, right = st.columns(2)
    with left:
        curves = {name: result[name] for name in ("f_x", "f_baseline", "completeness_error")}
        show.figure("check", figures.layer_curves(curves, "", "probability"), "F at the activation and at the baseline; what the sum misses", result, "completeness_error", CHECK)
    with right:
        show.figure("nodes", figures.layer_curves({"nodes": result["nodes_used"]}, "", "nodes"), "Nodes the integral took", result, "nodes_used")


READING = """Blue takes probability from the answer, orange gives it. Every row adds up to F(activation) - F(baseline), up to the completeness
error below. In the papers the attributions do not move to later layers as problems get harder (Csordás et al. 2025)."""
CHECK = """If the lowest curve leaves zero, the picture above is not to be relied on there; the note says which blocks."""

show.guarded(
    lambda: probe_page.page(
        IntegratedGradients,
        panels,
        "Not computed yet. **Run** integrates the gradient of the answer's probability along the path from a baseline to the activation, block by block.",
        needs_answer=lambda probe: True,
    )
)
