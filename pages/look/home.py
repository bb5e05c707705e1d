"""The main job: one model, one prompt, four live heatmaps, the verdict on depth."""

import streamlit as st

from ed_core import figures, lookup, sources, verdict
from ed_core.figures import View
from ed_core.probes import Continuation, Contributions, LayerSkip, LogitLens
from ed_ui import common_link, control_model, link, picker, probe_page, prompt_box, remembered, running, session, show
from ed_ui.case_view import BRANCHES, SHADES
from ed_ui.link_parameters import choice, flag, number, span
from ed_ui.remembered import value

WINDOW = 48
PROBES = {
    "contributions": Contributions(),
    "logit_lens": LogitLens(),
    "layer_skip": LayerSkip(),
    "continuation": Continuation(),
}


PARAMETERS = (
    choice("branch", "branch", "both", BRANCHES),
    choice("shade", "shade", "probability", SHADES),
    number("kl", "kl_threshold", 0.5, 0.05, 0.95),
    number("overlap", "overlap_threshold", 0.3, 0.05, 0.95),
    flag("first_token", "first_token", True),
    span("tokens", "window"),
)


def page() -> None:
    link.own(PARAMETERS)
    common_link.say_troubles()
    prompt_box.draw()
    spec = picker.required()
    requests = {name: probe.request(spec, prompt_box.prompt()) for name, probe in PROBES.items()}
    measured = {name: request for name, request in requests.items() if name != "continuation"}
    batch = running.batch("home", requests | control_model.with_control(measured))
    row = probe_page.top_row("home", batch)
    if (above := prompt_box.harder(value("example", ""))) is not None:
        look = {"icon": ":material/trending_up:", "type": "tertiary"}
        row.button("Same task, harder", key="harder", on_click=_harder, args=(above, batch), **look)
    running.live(batch, panels)


def _harder(example: str, batch: running.Batch) -> None:
    """Step up, keeping the present verdict as a ghost on the ruler."""
    if (reached := judged(batch)) is not None:
        session.current().ghost = (reached, batch.results["contributions"].n_layers)
    prompt_box.pick(example)


def judged(batch: running.Batch) -> verdict.Verdict | None:
    """The verdict, once both of its probes are complete."""
    needed = [batch.complete("contributions"), batch.complete("logit_lens")]
    if None in needed:
        return None
    return verdict.of_prompt(*needed, counts_first_token(), value("kl_threshold", 0.5), value("overlap_threshold", 0.3))


def counts_first_token() -> bool:
    return value("first_token", True)


def panels(batch: running.Batch) -> None:
    """Everything that fills while jobs run."""
    stored = "contributions" in batch.results and not batch.running
    common_link.write(batch.requests["contributions"].key if stored else "")
    reached = judged(batch)
    headline(batch, reached)
    results = batch.results
    some = next(iter(results.values()), None)
    view = inputs(batch, some, reached)
    norms, cosine = st.columns(2)
    contributions(norms, results.get("contributions"), view("norms", "contributions"), *NORMS)
    contributions(cosine, results.get("contributions"), view("cosine", "contributions"), *COSINES)
    left, right = st.columns(2)
    with left:
        lens(results.get("logit_lens"), view("lens", "logit_lens"))
    with right:
        skips(results.get("layer_skip"), view("skip", "layer_skip"))
    for probe in PROBES:
        if said := control_model.sentence(batch, probe, counts_first_token() or probe != "contributions"):
            st.markdown(f"**{PROBES[probe].title}:** {said}")


def headline(batch: running.Batch, reached: verdict.Verdict | None) -> None:
    """Status, verdict, what the model says, and the depth ruler: the same height whatever stands in it."""
    with st.container(key="headline"):
        for message in running.troubles(batch):
            show.error(message)
        if batch.running:
            st.markdown(f"**{running.status(batch)}**")
        elif reached is not None:
            st.markdown(f"**{reached.sentence}**")
        elif batch.missing and not batch.errors:
            st.markdown(TEACH)
        st.markdown(says(batch))
    ruler(batch, reached)


def ruler(batch: running.Batch, reached: verdict.Verdict | None) -> None:
    """The depth ruler; without marks until there is a verdict, so that nothing moves when it comes."""
    some = next(iter(batch.results.values()), None)
    n_layers = some.n_layers if some is not None else sources.n_layers(next(iter(batch.requests.values())).models[0])
    if n_layers is None:
        st.container(height=110 + show.CAPTION, border=False, key="ruler-place")
        return
    ghost, n_ghost = session.current().ghost or (None, None)
    fig = figures.depth_ruler(
        reached.criteria if reached else {},
        n_layers,
        bands=reached.bands if reached else {},
        published=figures.published_marks() if reached else (),
        ghost=ghost.criteria if ghost else {},
        n_layers_ghost=n_ghost,
    )
    caption = "**Depth ruler** · the three criteria, never averaged; ticks below: published models"
    said = reached.sentence if reached else "Depth ruler: no verdict yet."
    made = [batch.results[name] for name in ("contributions", "logit_lens") if name in batch.results]
    show.figure("ruler", fig, caption, results=made, alt=said)


def says(batch: running.Batch) -> str:
    """The model's own continuation, whether it is right, and its best next tokens."""
    if (result := batch.complete("continuation")) is None:
        return ""
    mark = {
        True: " :green[✓ the known answer]",
        False: f" :orange[✗ expected {show.code(result.request.prompts[0].answer, 60)}]",
        None: "",
    }[verdict.right(result)]
    best = ", ".join(
        f"{show.code(result.token_text[int(i)], 60)} {p:.0%}"
        for i, p in zip(result["top_ids"][0], result["top_probs"][0], strict=True)
    )
    source = ":gray-badge[stored example] " if lookup.is_shipped(result.request.key) else ""
    return f"{source}The model continues {show.code(result.provenance['continuation'], 60)}{mark} · next token: {best}"


def inputs(batch: running.Batch, some, reached):
    """Branch, shade, window, thresholds; returns a maker of views."""
    n = some.n_tokens if some is not None else 0
    row = st.container(horizontal=True, vertical_alignment="bottom", key="panel-inputs")
    remembered.widget(row.segmented_control, "Contribution of", "branch", "both", options=list(BRANCHES), required=True)
    remembered.widget(row.selectbox, "Lens shade", "shade", "probability", options=list(SHADES), width=190)
    with row.popover("Thresholds", icon=":material/tune:", key="thresholds"):
        steps = dict(min_value=0.05, max_value=0.95, step=0.05)
        remembered.widget(st.slider, "KL: below this share of its maximum", "kl_threshold", 0.5, **steps)
        remembered.widget(st.slider, "Overlap: above", "overlap_threshold", 0.3, **steps)
        remembered.widget(st.toggle, "Count the first token (often an attention sink)", "first_token", True)
        st.caption(
            "The defaults are those of Hu et al. 2025. The three criteria measure different things and are never "
            "averaged."
        )
    window = remembered.window("window", n, WINDOW)
    if window is not None:
        remembered.widget(row.slider, "Tokens shown", "window", window, min_value=0, max_value=n - 1, width=260)
    token = show.token_box(row, some.tokens) if some is not None else None

    def view(panel: str, probe: str) -> View:
        return View(
            window=window,
            selected=token,
            answer_start=some.answer_start if some is not None else None,
            depth_lines=reached.lines if reached else {},
            uirevision=panel,
            control=control_model.result(batch, probe),
            control_name=control_model.name(),
        )

    return view


def contributions(place, result, view: View, key, suffix, draw, title, caption, teach, reading) -> None:
    """One panel on the chosen branch: its size or its direction."""
    if result is None:
        with place:
            return show.empty(title, teach)
    measure = f"{BRANCHES[value('branch', 'both')]}_{suffix}"
    fig = draw(result, view, measure, counts_first_token())
    show.figure(key, fig, f"**{title}** · {caption}", result, measure, reading, select=True, place=place)


def lens(result, view: View) -> None:
    if result is None:
        return show.empty("Logit lens", "What the model would predict if it ended at each depth.")
    shade = SHADES[value("shade", "probability")]
    measure = "top_probs" if shade == "prob" else shade  # what is drawn is also what Details and its CSV hold
    caption = "**Logit lens** · best token at each depth"
    show.figure("lens", figures.lens_map(result, view, shade), caption, result, measure, READ_LENS, select=True)


def skips(result, view: View) -> None:
    if result is None:
        return show.empty("Layer skip", "How much each later layer changes when one is left out.")
    caption = "**Layer skip** · row left out, column affected"
    show.figure("skip", figures.skip_map(result, view), caption, result, "effect", READ_SKIP)


TEACH = """Not computed yet. **Run** traces this prompt through the model: what each layer adds and in which direction,
what it would predict at each depth, and what breaks without it."""
READ_NORMS = """Large early and small late is the usual picture: in Llama 3.1 70B the ratio stays above 0.15 in the
first half and falls below 0.05 in the second (Csordás et al. 2025). The first token is often an attention sink of huge
norm, so it stands outside the colour range."""
READ_COSINE = """In large models the first half is zero or negative (features are written and erased), then the sign
turns: later layers strengthen what is there. A small cosine does not prove a layer useless (Hinostroza et al. 2026)."""
READ_LENS = """Row 0 is the embedding, the top row the model's own output. The best token of each row settles at some
depth; KL falls and top-5 overlap rises from there."""
READ_SKIP = """Bright columns right of a row: those layers build on the skipped one. The triangle below the diagonal is
zero by construction. In the papers, layers of the second half hardly influence each other: they refine
independently."""
# key, measure, drawing, title, caption, what an empty panel teaches, how to read it
NORMS = (
    "norms",
    "ratio",
    figures.contribution_norms,
    "Contribution norms",
    "size of what is added, against the stream",
    "How much each layer adds to the residual stream, token by token.",
    READ_NORMS,
)
COSINES = (
    "cosine",
    "cos",
    figures.cosine_map,
    "Cosine with the stream",
    "below 0 erases, above 0 strengthens",
    "Below 0 a layer erases, near 0 it writes something new, above 0 it strengthens what is there.",
    READ_COSINE,
)

page()
