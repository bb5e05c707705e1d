"""What the model would predict if it ended at each depth."""
import streamlit as st

from ed_core import aggregate, figures
from ed_core.probes import LogitLens
from ed_ui import probe_page, show

SHADES = {"probability": "prob", "KL to output": "kl", "Jensen–Shannon": "jsd", "entropy": "entropy", "rank of the output": "rank"}


def panels(result, view):
    shade = st.segmented_control("Shade", list(SHADES), default="probability", required=True, key="logit_lens.shade")
    measure = {"prob": "top_probs"}.get(SHADES[shade], SHADES[shade])
    show.figure("map", figures.lens_map(result, view, SHADES[shade]), f"Best token at each depth, shaded by {shade}", result, measure, select=True)
    if not result.complete:
        return
    curves = aggregate.aggregate(LogitLens, [result.summary])
    a, b = st.columns(2)
    a.metric("Mean settle depth", f"{float(curves['settle_depth']):.1f} of {result.n_layers}", help=LogitLens.spec("settle_depth").meaning)
    b.metric("Deep-thinking ratio", f"{float(curves['deep_thinking_ratio']):.0%}", help=LogitLens.spec("deep_thinking_ratio").meaning)
    left, right = st.columns(2)
    with left:
        show.figure("mean-kl", figures.layer_curves({"KL": curves["kl"], "entropy": curves["entropy"]}, "", "nats", x="depth"), "Divergence from the output, and uncertainty")
    with right:
        shares = {"overlap": curves["overlap"], "top-1 match": curves["top1_match"], "MRR": curves["mrr"]}
        show.figure("mean-overlap", figures.layer_curves(shares, "", "share", x="depth"), "Agreement with the output")


show.guarded(
    lambda: probe_page.page(
        LogitLens,
        panels,
        "Not computed yet. **Run** applies the model's own final norm and head at every depth and shows when its prediction settles.",
    )
)
