"""Where an answer is decided: one prompt's stream, carried into another."""

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
SUMS = "3 + 2 = 5\n1 + 6 = 7\n4 + "
FRENCH = "The language of the country in which Paris lies is French. The language of the "
WET = "The opposite of hot is cold. The opposite of up is down. The opposite of the word "
CAPITALS = "The capital of France is Paris. The capital of Italy is Rome. The capital of "
ANN = "Ann has two apples and gets one more, so she has three. Bob has "
ENGLISH = {
    "Capital": ((f"{CAPITALS}Japan is", " Tokyo"), (f"{CAPITALS}Spain is", " Madrid")),
    "Opposite": ((f"{WET}big is", " small"), (f"{WET}wet is", " dry")),
    "Sum": ((f"{SUMS}4 = ", "8"), (f"{SUMS}5 = ", "9")),
    "Sum in words": (
        (f"{ANN}four apples and gets one more, so he has", " five"),
        (f"{ANN}two apples and gets two more, so he has", " four"),
    ),
    "Two hops": (
        (f"{FRENCH}country in which Rome lies is", " Italian"),
        (f"{FRENCH}country in which Berlin lies is", " German"),
    ),
}
MOD = "Sums mod 10:\n3 + 6 = 9\n4 + 1 = 5\n5 + 8 = 3\n6 + 1 = 7\n3 + 1 = 4\n3 + 5 = 8\n5 + "
LOOKED_UP = "Look up:\no=2; z=o; i=8; r=3; a=r; s=i; a=3\ns=9; m=0; i=m; r=1; j=r; t=s; t=9\ne="
CHARACTERS = {
    "Sum mod 10": ((f"{MOD}7 = ", "2"), (f"{MOD}8 = ", "3")),
    "Look-up of two hops": (
        (f"{LOOKED_UP}0; r=e; y=9; b=5; k=y; q=b; r=", "0"),
        (f"{LOOKED_UP}4; r=e; y=9; b=5; k=y; q=b; r=", "4"),
    ),
}


def pairs() -> dict[str, tuple[tuple[str, str], tuple[str, str]]]:
    """Return the example pairs for the chosen model by name: two prompts, each with its answer."""
    return CHARACTERS if picker.model() in MODELS else ENGLISH


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
        first = (prompt_box.prompt().text, prompt_box.prompt().answer)
        text, answer = next((other for one, other in pairs().values() if one == first), (first[0], ""))
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
    sentence = say.patched(result.provenance["answers"], Patching.depths(result), result.n_layers)
    return sentence, "One pair of prompts: the depth belongs to these two."


def controls(result: ProbeResult, view: View) -> None:
    """Draw what the position that predicts the answer carries at every depth, and what three controls do."""
    curves = {Patching.spec(name).title: result[name] for name in ("last", "elsewhere", "random", "self")}
    fig = figures.layer_curves(curves, "", "share of the gap", x="depth", height=280)
    title = "The position that predicts the answer: what is carried over there, and three controls"
    show.figure("controls", fig, title, result, "last", WORDS["Controls"])
    probe_page.profile(result, "patch", view, "depths")


probe_page.Page(
    Patching,
    WORDS,
    verdict,
    controls,
    ask=lambda: Patching(other()),
    prompts=prompts,
    sound=lambda _: False,
).show()
