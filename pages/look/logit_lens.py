"""What the model would predict if it ended at each depth."""

import streamlit as st

from ed_core import figures
from ed_core.probes import LogitLens
from ed_core.results import aggregate
from ed_ui import probe_page, remembered, show
from ed_ui.case_view import SHADES
from ed_ui.link_parameters import choice


def inputs():
    remembered.widget(
        st.segmented_control, "Shade", "logit_lens.shade", "probability", options=list(SHADES), required=True
    )


def figure(result, view):
    name = remembered.value("logit_lens.shade", "probability")
    shade = SHADES[name]
    measure = "top_probs" if shade == "prob" else shade
    show.figure(
        "map",
        figures.lens_map(result, view, shade),
        f"Best token at each depth, shaded by {name}",
        result,
        measure,
        select=True,
    )


def more(result, view):
    if not result.complete:
        return
    curves = aggregate.aggregate(LogitLens, [result.summary])
    a, b = st.columns(2)
    a.metric(
        "Mean settle depth",
        f"{float(curves['settle_depth']):.1f} of {result.n_layers}",
        help=LogitLens.spec("settle_depth").meaning,
    )
    b.metric(
        "Deep-thinking ratio",
        f"{float(curves['deep_thinking_ratio']):.0%}",
        help=LogitLens.spec("deep_thinking_ratio").meaning,
    )
    left, right = st.columns(2)
    with left:
        nats = {"KL": curves["kl"], "entropy": curves["entropy"]}
        fig = figures.layer_curves(nats, "", "nats", x="depth", behind=probe_page.behind(LogitLens, view, "kl"))
        show.figure("mean-kl", fig, "Divergence from the output, and uncertainty", results=[result])
    with right:
        shares = {"overlap": curves["overlap"], "top-1 match": curves["top1_match"], "MRR": curves["mrr"]}
        fig = figures.layer_curves(shares, "", "share", x="depth", behind=probe_page.behind(LogitLens, view, "overlap"))
        show.figure("mean-overlap", fig, "Agreement with the output", results=[result])


TEXTS = {
    "The papers saw": "KL to the output falls steeply and the overlap of the best five tokens rises from the middle on, at the same place (Csordás "
    "et al. 2025, §3.3); relative to the depth that place hardly moves with size, training or difficulty (Hu et al. "
    "2025).",
    "Look for": "the depth at which the best token of a column stays what it is.",
    "By construction": "The top row is the model's own output: KL 0, overlap 1. Row 0 is the embedding.",
    "Beware": "The head was trained for the last layer only: an early row that reads as nonsense may still hold what matters. Depth may be used "
    "adaptively in places (Curth et al. 2026, arXiv 2604.12426).",
}

probe_page.show_page(
    probe_page.Page(
        LogitLens,
        figure,
        more,
        "Not computed yet. **Run** applies the model's own final norm and head at every depth and shows when its "
        "prediction settles.",
        TEXTS,
        inputs,
        parameters=(choice("shade", "logit_lens.shade", "probability", SHADES),),
    )
)
