"""What breaks when a layer, its attention or its MLP is left out."""

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.figures import View
from ed_core.figures.pictures import Look, pictures
from ed_core.probes import LayerSkip
from ed_core.types import ProbeResult
from ed_ui import inputs, link, probe_page, show
from ed_ui.inputs import BOUNDARY, MAXIMUM

WORDS = show.words(__file__)


def chosen_boundary(result: ProbeResult) -> int | None:
    """Return the index of the chosen split point in the result; None for the maximum over all of them."""
    place = BOUNDARY.value
    return place if place in places(result)[1:] else None


def places(result: ProbeResult) -> list[int]:
    """Return the choices of a split point: `MAXIMUM` over all, then the index of each, earliest token first."""
    points = result["boundaries"].tolist() if "boundaries" in result.measures else []
    return [MAXIMUM, *sorted(range(len(points)), key=points.__getitem__)]


def more(result: ProbeResult, view: View) -> None:
    """Draw split points, direct effects, and the change of the prediction by layer and by token."""
    if len(places(result)) > 1:
        boundaries(result, view)
    for one in pictures(result):
        if one.measures[0] == "effect_direct":
            show.picture("direct", one, result, view, caption=f"Direct effect: {one.caption}")
    left, right = st.columns(2)
    small = View(height=300, control=view.control, control_name=view.control_name)
    caption = "Change of the prediction, and share of tokens whose first choice stays"
    show.figure("output", show.once(figures.output_bars, result, small), caption, result, "output", place=left)
    fig = show.once(figures.effect_on_layers, result, small)
    caption = "Largest effect on each layer, above the noise floor"
    show.figure("floor", fig, caption, result, "noise_floor", WORDS["Noise floor"], place=right)
    if "output_pos" in result.measures:
        fig = show.once(figures.token_map, result, view, "output_pos")
        show.figure("where", fig, "Which token's prediction breaks", result, "output_pos", select=True)
        probe_page.window(result, view)


def boundaries(result: ProbeResult, view: View) -> None:
    """Draw the map of split points, and the choice of one."""
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
    show.figure("boundaries", fig, caption, result, "boundaries", WORDS["Split points"])
    probe_page.window(result, view)


probe_page.Page(
    LayerSkip,
    WORDS,
    say.skip,
    more,
    lambda result: Look(boundary=chosen_boundary(result)),
    over_tokens=False,
    parameters=(BOUNDARY,),
).show()
