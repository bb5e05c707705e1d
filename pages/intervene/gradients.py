"""Which tokens the answer's probability rests on, at every depth."""

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.probes import IntegratedGradients
from ed_core.probes.integrated_gradients import TOLERANCE, UNSETTLED, completeness, incomplete
from ed_ui import probe_page, show


def beneath(result):
    if failed := incomplete(result):
        layers = f"layer{'s' * (len(failed) > 1)} {', '.join(str(layer + 1) for layer in failed)}"
        st.warning(FAILED.format(layers=layers, tolerance=f"{100 * TOLERANCE:g} %"), icon=":material/warning:")


def more(result, view):
    left, middle, right = st.columns(3)
    look = {"name": "completeness error", "limit_name": f"allowed: {100 * TOLERANCE:g} %"}
    fig = figures.limit_bars(completeness(result), TOLERANCE, "share of the scale", **look)
    show.figure("check", fig, "Completeness error", result, "completeness_error", CHECK, place=left)
    cap = dict(result.request.parameters)["nodes"]
    fig = figures.limit_bars(result["nodes_used"], cap, "nodes", name="nodes", limit_name=f"at most {cap}")
    show.figure("nodes", fig, "Nodes used", result, "nodes_used", NODES, place=middle)
    fig = figures.layer_curves({"activation": result["f_x"], "baseline": result["f_baseline"]}, "", "probability")
    show.figure("f", fig, "Sum of the answer tokens' probabilities, at both ends", result, "f_baseline", place=right)
    probe_page.profile(result, "attribution", view)


FAILED = """**The integral did not settle at {layers}**: attributions miss F(activation) − F(baseline) by more than
{tolerance} of the scale, so do not rely on these rows. Raise **nodes** under *Options*; if that does not help, no
attribution can be given there (4-bit layers on a CPU are a known case)."""
TEXTS = {
    "The papers saw": "All input tokens matter about equally up to the middle; attributions do not move to later "
    "layers as problems take more steps (Csordás et al. 2025, §4).",
    "Look for": "the row at which colour leaves the question's tokens and gathers where the answer is about to be "
    "said. Blue takes probability from the answer, orange gives it.",
    "By construction": "Every row adds up to F(activation) − F(baseline), within 0.5 % of its scale. The "
    "last column is 0: nothing is predicted after it. In the top row of part “layer” only positions that predict a "
    "token of the answer can be other than 0.",
    "Beware": "Check the bars below first: a row whose sum is off shows nothing. The baseline is the "
    "prompt's own mean, so attributions compare tokens with that mean, not with an empty prompt. Some depth may be "
    "used adaptively (Curth et al. 2026, arXiv 2604.12426).",
}
CHECK = """|sum of attributions - (F(x) - F(baseline))| over the larger of |F(x) - F(baseline)| and the largest
attribution. Above the line the picture is not to be relied on; the number itself is in the CSV."""
NODES = """The path is divided, layer by layer, until the completeness error is at most 0.5 % of its scale and
dividing again moves no attribution by more than 0.5 % of the largest, or until the nodes run out. A row at the line may
not have settled."""

probe_page.Page(
    IntegratedGradients,
    "Not computed yet. **Run** integrates the gradient of the answer's probability along the path from a baseline "
    "to the activation, layer by layer.",
    lambda result: say.gradients(result, incomplete(result)),
    TEXTS,
    more,
    beneath=beneath,
    noted=lambda note: note.startswith(UNSETTLED),
    needs_answer=lambda probe: True,
    sound=lambda result: not incomplete(result),
).show()
