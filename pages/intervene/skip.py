"""What breaks when a layer, its attention or its MLP is left out."""

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.figures import View
from ed_core.figures.pictures import Look, pictures
from ed_core.probes import LayerSkip
from ed_ui import inputs, link, probe_page, show
from ed_ui.inputs import BOUNDARY, MAXIMUM


def chosen_boundary(result) -> int | None:
    """The place of the boundary looked at among the result's; None for the maximum over them."""
    place = BOUNDARY.value
    return place if place in places(result)[1:] else None


def places(result) -> list[int]:
    """What can be looked at: the maximum over the split points, or one of them, earliest first."""
    points = result["boundaries"].tolist() if "boundaries" in result.measures else []
    return [MAXIMUM, *sorted(range(len(points)), key=points.__getitem__)]


def more(result, view):
    if len(places(result)) > 1:
        boundaries(result, view)
    for one in pictures(result):
        if one.measures[0] == "effect_direct":
            show.picture("direct", one, result, view, caption=f"Direct effect: {one.caption}")
    left, right = st.columns(2)
    small = View(height=300, control=view.control, control_name=view.control_name)
    caption = "Change of the prediction, and share of tokens whose best guess stays"
    show.figure("output", show.once(figures.output_bars, result, small), caption, result, "output", place=left)
    fig = show.once(figures.effect_on_layers, result, small)
    caption = "Largest effect on each layer, above the noise floor"
    show.figure("floor", fig, caption, result, "noise_floor", FLOOR, place=right)
    if "output_pos" in result.measures:
        fig = show.once(figures.token_map, result, view, "output_pos")
        show.figure("where", fig, "Which token's prediction breaks", result, "output_pos", select=True)
        probe_page.window(result, view)


def boundaries(result, view):
    """Where the skips end and the looking begins; one of them can be looked at alone."""
    link.among(BOUNDARY, [*map(str, places(result))], "split point")
    link.say_troubles()
    if BOUNDARY.value not in places(result):
        inputs.forget(BOUNDARY.key)
    tokens = result["boundaries"]
    BOUNDARY.draw(
        st.segmented_control,
        options=places(result),
        format_func=lambda place: "maximum over all" if place == MAXIMUM else f"token {int(tokens[place])}",
    )
    caption = "Split points: each layer is left out on the dark tokens, and effects are looked for on the bright ones"
    fig = show.once(figures.boundary_map, result, view, chosen_boundary(result))
    show.figure("boundaries", fig, caption, result, "boundaries", BOUNDARIES)
    probe_page.window(result, view)


TEXTS = {
    "The papers saw": "Layers of the second half influence each other far less than those of the first, yet each still "
    "matters for the output: the authors take it that they refine side by side (Csordás et al. 2025, §3.2). Later "
    "tokens hardly depend on them at all. Without one layer 72–95 % of the best guesses stay (Lad et al. 2024).",
    "Look for": "how far to the right a row stays bright, and for rows that are dark while their bar in “change of the "
    "prediction” is high: leaving such a layer out changes the prediction much and later layers little.",
    "By construction": "The hatched triangle above the diagonal is 0: a layer before the skipped one cannot change. "
    "The diagonal is 1 for a whole layer, and 0 in the effect on later tokens and in direct effects. "
    "The first token is never touched. No layer comes after the last: its effect on later layers is 0.",
    "Beware": "A dark row is not a useless layer: weak proxies of importance mislead (Hinostroza et al. 2026, arXiv "
    "2605.14075). One prompt is one prompt; some models adapt their depth a little (Curth et al. 2026, arXiv "
    "2604.12426). Effects that are not above the noise floor are left empty.",
}
FLOOR = """Every batch holds an intervention that changes nothing; whatever it measures is numerical noise: 0 where
batching changes no rounding, more in bf16."""
BOUNDARIES = """The papers take up to four split points, drawn from every eighth token (Csordás et al. 2025, §3.2); the
map holds the maximum over those that are chosen. The effect on later tokens shows how much they depend on what a layer
wrote at earlier ones."""

probe_page.Page(
    LayerSkip,
    "Not computed yet. **Run** leaves out every layer in turn and measures how much each later one changes: one "
    "walk over the layers.",
    say.skip,
    TEXTS,
    more,
    lambda result: Look(boundary=chosen_boundary(result)),
    over_tokens=False,
    parameters=(BOUNDARY,),
).show()
