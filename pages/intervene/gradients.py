"""Which tokens the answer's probability rests on, at every depth."""

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.figures import View
from ed_core.probes import IntegratedGradients
from ed_core.probes.integrated_gradients import TOLERANCE, UNSETTLED, completeness, incomplete
from ed_core.types import ProbeResult
from ed_ui import probe_page, show

WORDS = show.words(__file__)


def beneath(result: ProbeResult) -> None:
    """Show below the map a warning of the layers where the integral did not settle."""
    if failed := incomplete(result):
        layers = f"layer{'s' * (len(failed) > 1)} {', '.join(str(layer + 1) for layer in failed)}"
        st.warning(WORDS["Failed"].format(layers=layers, tolerance=f"{100 * TOLERANCE:g} %"), icon=":material/warning:")


def more(result: ProbeResult, view: View) -> None:
    """Draw how exact the integral is, both of its ends, and the selected token's attributions."""
    left, middle, right = st.columns(3)
    look = {"name": "completeness error", "limit_name": f"allowed: {100 * TOLERANCE:g} %"}
    fig = figures.limit_bars(completeness(result), TOLERANCE, "share of the scale", **look)
    show.figure("check", fig, "Completeness error", result, "completeness_error", WORDS["Completeness"], place=left)
    cap = dict(result.request.parameters)["nodes"]
    fig = figures.limit_bars(result["nodes_used"], cap, "nodes", name="nodes", limit_name=f"at most {cap}")
    show.figure("nodes", fig, "Nodes used", result, "nodes_used", WORDS["Nodes"], place=middle)
    fig = figures.layer_curves({"activation": result["f_x"], "baseline": result["f_baseline"]}, "", "probability")
    show.figure("f", fig, "Sum of the answer tokens' probabilities, at both ends", result, "f_baseline", place=right)
    probe_page.profile(result, "attribution", view)


probe_page.Page(
    IntegratedGradients,
    WORDS,
    lambda result: say.gradients(result, incomplete(result)),
    more,
    beneath=beneath,
    noted=lambda note: note.startswith(UNSETTLED),
    needs_answer=lambda probe: True,
    sound=lambda result: not incomplete(result),
).show()
