"""One token, followed through the layers: what the lens would say at each depth, and which skips change its prediction;
its curves stand beside the maps. Opened by a click on a cell."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from ed_core import figures
from ed_core.types import ProbeResult
from ed_ui import inputs, show

HEIGHT = 260
COSINES = {"attention": "attn_cos", "MLP": "mlp_cos", "both": "layer_cos"}


def draw(batch, token: int, lines: Mapping[str, int | None]) -> None:
    """The drawer of a selected token, with what is complete of lens and layer skip."""
    found = {name: batch.complete(name) for name in ("logit_lens", "layer_skip")}
    some = next((result for result in found.values() if result is not None), None)
    if some is None:
        return
    with st.container(border=True, key="drawer"):
        row = st.container(horizontal=True, vertical_alignment="center")
        row.markdown(f"**Token {token}** {show.code(some.tokens[token], 40)}: what happens where it stands")
        row.button(
            "Close",
            key="drawer-close",
            icon=":material/close:",
            type="tertiary",
            on_click=inputs.forget,
            args=("token",),
        )
        best, skips = st.columns([3, 2])
        if (result := found["logit_lens"]) is not None:
            best.caption("The five best next tokens at each depth, the output on top", help=NEXT)
            show.table("drawer-best", best_tokens(result, token), HEIGHT, place=best)
        if (result := found["layer_skip"]) is not None and "output_pos" in result.measures:
            values = {"change of its prediction": result["output_pos"][:, token]}
            fig = figures.layer_curves(values, "", "L2", x="skipped layer", depth_lines=lines, height=HEIGHT)
            caption = "What each skip changes in its prediction"
            show.figure("drawer-skip", fig, caption, result, "output_pos", place=skips)


def best_tokens(lens: ProbeResult, token: int) -> list[dict[str, str | int]]:
    """A row per depth, the output first: the best tokens with their probabilities."""
    ids, probs, text = lens["top_ids"][:, token, :5], lens["top_probs"][:, token, :5], lens.token_text
    return [
        {"depth": depth}
        | {
            f"{n}": f"{figures.shown(text.get(int(i), f'id {i}'), 16)} {100 * p:.0f} %"
            for n, (i, p) in enumerate(zip(ids[depth], probs[depth], strict=True), 1)
        }
        for depth in reversed(range(lens.n_layers + 1))
    ]


NEXT = "What the logit lens would say comes after this token, if the model ended at that depth."
