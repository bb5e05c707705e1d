"""Whether the sums behind every curve hold on this prompt, what of their error is rounding, and what the first token
does to the means."""

from dataclasses import replace

import streamlit as st

from ed_core import figures
from ed_core.depth import certificate, exactness, say, sinks
from ed_core.depth.rules import RULES
from ed_core.probes import Contributions, LogitLens, Numerics
from ed_ui import link, live, picker, probe_page, prompt_box, running, show

PROBES = {"numerics": Numerics(), "contributions": Contributions(), "logit_lens": LogitLens()}


def page() -> None:
    link.own([probe_page.TOKENS])
    link.say_troubles()
    prompt_box.draw()
    spec = picker.required()
    batch = running.batch("numerics", {n: probe.request(spec, prompt_box.prompt()) for n, probe in PROBES.items()})
    probe_page.top_row("numerics", batch)
    live.follow(batch, panels)
    probe_page.exactly(Numerics)


def panels(batch: running.Batch) -> None:
    result = batch.result("numerics")
    link.write(result.request.key if result is not None and result.complete else "")
    probe_page.status(batch, "numerics")
    # what stands above the map is drawn before it: an empty container takes no room
    with st.container(horizontal=True, key="verdict"):
        if result is None or not result.complete:
            st.markdown("&nbsp;")
        else:
            verdict(result, batch.complete("contributions"))
    place = show.place("map", probe_page.MAP_HEIGHT)
    if result is None:
        with place:
            show.empty(Numerics.title, "" if batch.running else TEACH, probe_page.MAP_HEIGHT, first=True)
        probe_page.texts(TEXTS)
        return
    view = replace(probe_page.view(result), sinks=probe_page.sinks_of(result))
    caption = "Error of every layer's sum against what leaves it, token by token"
    show.figure("map", figures.miss_map(result, view), caption, result, "miss", READ_ERROR, select=True, place=place)
    probe_page.window(result, view)
    if result.complete:
        text(result)
        figures_of(result)
        first_token(result, batch.complete("contributions"), batch.complete("logit_lens"))
    probe_page.texts(TEXTS)


def verdict(result, contributions) -> None:
    """Passed or not, in one sentence; behind a click the attention sinks by name."""
    holds = all(check.holds for check in exactness.checks(result))
    (st.success if holds else st.error)(
        show.plain(say.checks(result)), icon=":material/check_circle:" if holds else ":material/error:"
    )
    with st.popover("Attention sinks", type="tertiary", key="reasons-numerics"):
        found = (sinks.of_result(contributions) if contributions is not None else None) or ()
        st.markdown(show.plain(say.sinks(found, result.tokens, sinks.ends_of(result))))


def text(result) -> None:
    """What was checked of the text when the model opened."""
    if not (rows := certificate.text_rows(result.provenance)):
        return
    st.markdown("#### What goes in")
    show.markdown_table("text-identities", ("checked", "found"), [(name, show.plain(said)) for name, said in rows])


def figures_of(result) -> None:
    """Error against rounding, and slopes."""
    left, right = st.columns(2)
    caption = "Largest error per layer, against rounding and the limit"
    show.figure("miss", figures.miss_curves(result), caption, result, "rounding", place=left)
    fig, caption = figures.slope_curves(result), "Slopes: what the stream moves per unit that is read"
    show.figure("slopes", fig, caption, result, "slope_attn", READ_SLOPE, place=right)


def first_token(result, contributions, lens) -> None:
    """What counting it changes."""
    st.markdown("#### The first token")
    rows = exactness.without_first(contributions, lens) if contributions is not None and lens is not None else []
    first, *others = *st.columns(2), *st.columns(2)
    fig, caption = figures.first_token_norm(result), "Length of the stream, first token against the others"
    show.figure("norms", fig, caption, result, "resid_norm", READ_SINK, place=first)
    for place, row in zip(others, rows, strict=False):
        rule = RULES[row.name]
        lines = {f"{rule.label} with the first token": row.with_first}
        fig = figures.layer_curves(lines, "", rule.unit, x=rule.axis, behind={"without": row.without})
        caption = f"{rule.title}, with the first token and without"
        read = [contributions if row.name == "cosine" else lens]
        show.figure(f"first-{row.name}", fig, caption, results=read, place=place)
    if rows:
        st.caption(show.plain(say.without_first(rows)))


TEACH = """Not computed yet. **Run** checks on this very prompt that what enters a layer, plus what attention adds, plus
what the MLP adds, is what leaves it, and shows how much of what is missing is rounding."""
READ_ERROR = """Colour is the power of ten. In float32 most errors lie near 3e-8, in bfloat16 near 1e-3: that is the
dtype. A single bright row or column far above the rest points to a term that is not read, or a token
whose stream cancels."""
READ_SLOPE = """In bfloat16 a small branch drowns in the stream's rounding and the error cannot see a forgotten factor;
rounding does not correlate with the branch, a forgotten factor does. A branch below rounding has no mark."""
READ_SINK = """In many models the first token's norm is a hundred times the others', and attention rests on it (Xiao et
al. 2024, Sun et al. 2024): means of lengths that count it may reflect little else."""
TEXTS = {
    "Why it matters": "Reading a module's output where the model adds something else gives a smooth, plausible and "
    "wrong curve. So a model is opened only where its sums hold; this page shows the same figures on your prompt.",
    "Look for": (
        "an error above “rounding can cause”: then a term may not be read. Slopes off 1: then something is scaled on "
        "the way."
    ),
    "Beware": "Sums cannot see everything: they hold for quantized weights too, which compute something other than the "
    "original model does. Compare two precisions for that (*Compare*, A | B).",
}

page()
