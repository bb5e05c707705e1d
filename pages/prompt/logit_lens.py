"""What the model would predict if it ended at each depth."""

import streamlit as st

from ed_core import figures
from ed_core.depth import halves, kinds, say
from ed_core.figures import View
from ed_core.figures.pictures import Look
from ed_core.probes import LogitLens
from ed_core.results import aggregate, lookup
from ed_core.types import ProbeResult
from ed_ui import probe_page, show
from ed_ui.inputs import LENS_SHADE

WORDS = show.words(__file__)


def more(result: ProbeResult, view: View) -> None:
    """Draw the selected token's best next tokens, means over tokens by depth, and which tokens go deep."""
    if not result.complete:
        return
    if view.selected is not None:
        st.markdown(f"**Token {view.selected}** {show.code(result.tokens[view.selected], 40)}: the best next tokens")
        show.table("best", best_tokens(result, view.selected), 260)
    curves = aggregate.without(result, view.uncounted)
    left, right = st.container(key="metrics-lens").columns(2)
    settled, ratio = float(curves["settle_depth"]), float(curves["deep_thinking_ratio"])
    label = "First choice of a token, on average, from layer" + probe_page.of_sinks(view)
    left.metric(label, f"{settled:.1f} of {result.n_layers}", help=LogitLens.spec("settle_depth").meaning)
    right.metric(
        "Deep-thinking ratio" + probe_page.of_sinks(view),
        say.share(ratio),
        help=LogitLens.spec("deep_thinking_ratio").meaning,
    )
    if halves.has_halves(result):
        inside(result, view)
    for place, (key, lines, unit, measure, caption) in zip(st.columns(2), MEANS, strict=True):
        controls = probe_page.behind(view, measure)
        fig = show.once(
            figures.layer_curves, {n: curves[c] for n, c in lines.items()}, "", unit, x="depth", behind=controls
        )
        show.figure(key, fig, caption + probe_page.of_sinks(view), results=[result], place=place)
    deep_tokens(result)


def best_tokens(lens: ProbeResult, token: int) -> list[dict[str, int | str]]:
    """Return a row for each depth, the output first: the five best tokens at `token`, with probabilities."""
    ids, probs, text = lens["top_ids"][:, token, :5], lens["top_probs"][:, token, :5], lens.token_text
    return [
        {"after layer": depth}
        | {
            f"{n}": f"{figures.shown(text.get(int(i), f'id {i}'), 16)} {say.share(float(p))}"
            for n, (i, p) in enumerate(zip(ids[depth], probs[depth], strict=True), 1)
        }
        for depth in reversed(range(lens.n_layers + 1))
    ]


def deep_tokens(result: ProbeResult) -> None:
    """Draw depths by the kind of the token that the model says, and what the mix of kinds by itself would give."""
    st.markdown("#### Which tokens go deep")
    own = kinds.sums(result)
    others = [kinds.sums(other) for other in map(lookup.by_key, list(lookup.alike(result.request))[:MOST]) if other]
    if others:
        show.conclusion("mix", say.mix(kinds.mix(own, sum(others[1:], others[0]), len(others)), result.n_layers))
    rows = [dict(zip(COLUMNS, row)) for row in kinds.table(own)]
    show.table("kinds", rows, 460, dict.fromkeys(COLUMNS[2:4], ".1f") | {COLUMNS[4]: ".2f"})
    st.caption(WORDS["Kinds of tokens"])


def inside(result: ProbeResult, view: View) -> None:
    """Draw which branch (attention or MLP) brings the prediction; for a lens that was read within the layers too."""
    sentence, *more = say.halves(result, view.uncounted)
    show.conclusion("halves", sentence, more)
    brought = halves.brought(result, view.uncounted)
    curves = {"attention": brought.attention, "MLP": brought.mlp}
    fig = show.once(figures.layer_curves, curves, "", "nats", x="layer")
    caption = "What each layer's attention and MLP remove of the divergence" + probe_page.of_sinks(view)
    show.figure("halves", fig, caption, results=[result])


MOST = 24  # other prompts that the mix of kinds is read from
COLUMNS = ("Token", "Tokens", "Settle depth", "Average depth (KL)", "Flip rate")
MEANS = (
    ("mean-kl", {"KL": "kl", "uncertainty": "entropy"}, "nats", "kl", "Divergence from the output, and uncertainty"),
    (
        "mean-overlap",
        {"overlap": "overlap", "best token the same": "top1_match", "1 / rank": "mrr"},
        "share",
        "overlap",
        "Agreement with the output",
    ),
)

probe_page.Page(
    LogitLens,
    WORDS,
    say.logit_lens,
    more,
    lambda _: Look(shade=LENS_SHADE.value),
    inputs=lambda: LENS_SHADE.draw(st.selectbox, width=260, label_visibility="collapsed"),
    over_sinks=True,
    height=lambda n_layers: figures.lens_height(n_layers, figures.View(height=probe_page.MAP_HEIGHT)),
    parameters=(LENS_SHADE,),
).show()
