"""At which depth the tokens settle that the model itself writes, and where it could have stopped."""

from dataclasses import fields, replace
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import exits, say
from ed_core.figures import View
from ed_core.figures.pictures import pictures
from ed_core.probes import EarlyExit, Generation
from ed_core.results import aggregate
from ed_core.statistics import units
from ed_core.types import ProbeResult
from ed_ui import control_model, inputs, live, probe_page, prompt_box, running, show

WORDS = show.words(__file__)

WINDOW = 40  # tokens on the map
TEXT_HEIGHT = 145  # pixels of the text, five lines: what is below it stays where it is while it is written


def drawn(result: ProbeResult, view: View) -> None:
    """Draw the text so far and the map."""
    text(result)
    n, begin = len(result["ids"]), figures.first_position(result)
    chosen = inputs.value("token")
    step = chosen - begin if chosen is not None and 0 <= chosen - begin < n else None
    window = inputs.window("writing.window", n, WINDOW)
    if not result.complete and window is not None:  # the token that is being written stays in sight
        last = max(exits.written(result["ids"]), WINDOW)
        window = (last - WINDOW, last - 1)
    (one,) = pictures(result)
    look = replace(view, window=window, selected=step, sinks=())
    caption = one.caption[:1].upper() + one.caption[1:]
    fig = show.once(figures.writing_map, result, look)
    show.figure("map", fig, caption, result, "jsd", one.reading, select=True)
    if window is not None and result.complete:
        inputs.widget(st.slider, "Tokens shown", "writing.window", window, min_value=0, max_value=n - 1, width=420)


def text(result: ProbeResult) -> None:
    """Draw what the model has written; while it writes, a button that stops there."""
    n = exits.written(result["ids"])
    left, right = st.columns([6, 1], vertical_alignment="center")
    left.code(exits.text(result) or " ", language=None, wrap_lines=True, height=TEXT_HEIGHT)
    if result.complete or not n:
        return
    if right.button("Stop here", icon=":material/stop_circle:", on_click=stop, args=(n, result), help=STOP):
        st.rerun()


def stop(n: int, result: ProbeResult) -> None:
    """Ask for the first `n` tokens written: a result like any other, and complete in a moment."""
    inputs.put_over({"generation.n_tokens": n})
    chosen = {f.name: inputs.value(f"generation.{f.name}", f.default) for f in fields(Generation)}
    request = Generation.make(chosen).request(result.request.models[0], result.request.prompts[0])
    batch = running.batch(Generation.name, control_model.with_control({Generation.name: request}))
    if batch.missing:
        running.submit(batch)


def more(result: ProbeResult, view: View) -> None:
    """Draw the figures below the map: depths by token, what an early exit spares, and the deep-thinking ratio."""
    left, right = st.columns(2)
    look: dict[str, Any] = dict(x="token written", height=280)
    depths = {"first choice from": result["settle_depth"], "would leave": result["exit_depth"]}
    fig = figures.layer_curves(depths, "", "depth", **look)
    title = "From which depth on each token is the first choice, and where it would leave"
    show.figure("depths", fig, title, result, "settle_depth", place=left)
    if exits.written(result["ids"]):
        room = exits.headroom([exits.Tokens.of(result)], units(1))
        show.figure("spared", figures.spared_layers(room), say.headroom(room), result, "confidence")
    fig = figures.layer_curves({"deep-thinking ratio": result["deep_thinking_ratio"]}, "", "share", **look)
    fig.update_yaxes(range=[-0.02, 1.02])
    caption = "Deep-thinking ratio of the tokens so far"
    show.figure("ratio", fig, caption, result, "deep_thinking_ratio", WORDS["Deep-thinking ratio"], place=right)
    early_exit(result)


def early_exit(of: ProbeResult) -> None:
    """Draw the section on early exit: agreement and confidence by depth, and what a threshold gives."""
    st.markdown("##### Could it have stopped earlier?")
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-exit")
    request = probe_page.form(EarlyExit, row, width=190).request(of.request.models[0], of.request.prompts[0])
    batch = running.batch("early_exit", {"early_exit": request})
    running.section_row(batch, "early_exit", prompt_box.n_tokens(), True, "on this prompt")
    live.follow(batch, exit_panel)


def exit_panel(batch: running.Batch) -> None:
    """Draw the result of early exit, once it is complete."""
    probe_page.status(batch)
    if (result := batch.complete("early_exit")) is None:
        return
    curves = aggregate.aggregate(EarlyExit, [result.summary])
    leaves = exits.exits_of_prompts([result], dict(result.request.parameters)["threshold"])
    show.conclusion("exit", say.exits(leaves))
    fig = figures.layer_curves({name: curves[name] for name in ("agreement", "confidence")}, "", "share", x="depth")
    show.figure(
        "exit", fig, "How often does a layer already say the final word?", result, "agreement", WORDS["Early exit"]
    )
    agrees = say.share(float(curves["exit_agrees"]))
    depth = f"after layer {float(curves['exit_depth']):.1f} of {result.n_layers}"
    st.caption(f"At this threshold words leave {depth} on average; {agrees} are those of the whole model.")


def verdict(result: ProbeResult) -> tuple[str, str]:
    """Return the page's answer on where the model could have stopped, and how sure it is."""
    first, _, rest = say.exits(exits.exits(result)).partition(". ")
    return f"{first.rstrip('.')}.", rest


STOP = "Ends the text here and keeps it: the same tokens, as a result of its own."

probe_page.Page(
    Generation,
    WORDS,
    verdict,
    more,
    figure=drawn,
    over_tokens=False,
    height=lambda n_layers: figures.lens_height(n_layers, View(height=probe_page.MAP_HEIGHT)),
).show()
