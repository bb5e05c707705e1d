"""How much each sub-layer writes, and in which direction."""
import streamlit as st

from ed_core import aggregate, figures
from ed_core.probes import Contributions
from ed_ui import probe_page, show

MEASURES = [s.name for s in Contributions.measures]


def panels(result, view):
    first_token = st.session_state.get("contributions.first_token", True)
    if result.complete:
        curves = aggregate.aggregate(Contributions, [result.summary], first_token)
        pick = lambda suffix: {name: curves[f"{short}_{suffix}"] for name, short in (("attention", "attn"), ("MLP", "mlp"), ("both", "layer"))}  # noqa: E731
        left, right = st.columns(2)
        with left:
            show.figure("mean-ratio", figures.layer_curves(pick("ratio"), "", "ratio", log=True), "Mean contribution per layer, against the stream")
        with right:
            show.figure("mean-cosine", figures.layer_curves(pick("cos"), "", "cosine"), "Mean cosine per layer: below 0 erases, above 0 strengthens")
    measure = st.selectbox("Measure", MEASURES, index=MEASURES.index("layer_ratio"), key="contributions.measure", width=260)
    spec = Contributions.spec(measure)
    draw = figures.cosine_map if spec.unit == "cosine" else figures.contribution_norms
    show.figure("map", draw(result, view, measure, first_token), spec.meaning, result, measure, select=True)
    if view.selected is not None:
        show.figure("profile", figures.token_profile(result, measure, view.selected), f"Token {view.selected} over the layers", result, measure)


show.guarded(
    lambda: probe_page.page(
        Contributions,
        panels,
        "Not computed yet. **Run** shows, for every layer and token, how large attention's and the MLP's additions are and whether they erase, "
        "write or strengthen. One forward pass.",
    )
)
