"""Where an answer is decided: one prompt's stream, carried into another."""

import json
from pathlib import Path

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.figures import View
from ed_core.models.bundled import MODELS
from ed_core.probes import Patching
from ed_core.types import ProbeResult, Prompt
from ed_ui import inputs, picker, probe_page, prompt_box, show

WORDS = show.words(__file__)

TEXT, ANSWER = "patching.other.text", "patching.other.answer"
PAIRS = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))  # for models that know English, and others


def pairs() -> dict[str, list[list[str]]]:
    """Return the example pairs for the chosen model by name: two prompts, each with its answer."""
    known: dict[str, list[list[str]]] = PAIRS["characters" if picker.model() in MODELS else "english"]
    return known


def use(name: str) -> None:
    """Put both prompts of the example pair `name` into the boxes."""
    first, (text, answer) = pairs()[name]
    prompt_box.fill(*first)
    inputs.put({TEXT: text, ANSWER: answer})


def copy() -> None:
    """Copy the prompt into the box of the one that is carried in, to be edited there."""
    inputs.put({TEXT: prompt_box.prompt().text, ANSWER: ""})


def prompts() -> None:
    """Draw the prompt, the other prompt that is carried in, and example pairs."""
    if inputs.value(TEXT) is None:
        first = [prompt_box.prompt().text, prompt_box.prompt().answer]
        text, answer = next((other for one, other in pairs().values() if one == first), [first[0], ""])
        inputs.put({TEXT: text, ANSWER: answer})
    prompt_box.draw()
    boxes = st.columns([5, 1, 1], vertical_alignment="bottom")
    inputs.widget(boxes[0].text_area, "Carried in from", TEXT, default="", words=True, height=68)
    inputs.widget(boxes[1].text_input, "Its answer", ANSWER, default="", words=True)
    with boxes[2].popover("Pairs", icon=":material/swap_vert:", type="tertiary"):
        for name in pairs():
            st.button(name, key=f"pair.{name}", type="tertiary", on_click=use, args=(name,))
        st.button("Copy the prompt", key="patch.copy", icon=":material/content_copy:", type="tertiary", on_click=copy)
    if wrong := prompt_box.wrong_with(other()):
        st.caption(f":red[{show.plain(wrong)}]")


def other() -> Prompt:
    """Return the other prompt, which is carried in, encoded as the first one is."""
    text, answer, first = inputs.value(TEXT, ""), inputs.value(ANSWER, ""), prompt_box.prompt()
    return Prompt(text, answer, template=first.template, special_tokens=first.special_tokens)


def verdict(result: ProbeResult) -> tuple[str, str]:
    """Return where the other prompt's answer is decided, and how sure that is."""
    own, carried = answers = result.provenance["answers"]
    if own == carried:
        return f"Both prompts lead to {say.quoted(own.strip())}: carry in one with another answer.", ""
    sentence = say.patched(answers, Patching.depths(result), result.n_layers)
    return sentence, "One pair of prompts: the depth belongs to these two."


def controls(result: ProbeResult, view: View) -> None:
    """Draw what the position that predicts the answer carries at every depth, and what three controls do."""
    curves = {Patching.spec(name).title: result[name] for name in ("last", "elsewhere", "random", "self")}
    fig = figures.layer_curves(curves, "", "share of the gap", x="depth", height=280)
    title = "The position that predicts the answer: what is carried over there, and three controls"
    show.figure("controls", fig, title, result, "last", WORDS["Controls"])
    probe_page.profile(result, "patch", view, "depths")


probe_page.Page(
    Patching, WORDS, verdict, controls, ask=lambda: Patching(other()), prompts=prompts, sound=lambda _: False
).show()
