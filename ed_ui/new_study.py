"""A new study, in three steps: models, prompt sets, measures; with what it costs, and its file, which may be edited."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ed_core.depth.say import count
from ed_core.errors import EffectiveDepthError, StudyError
from ed_core.models.bundled import default_set
from ed_core.probes import find
from ed_core.studies import plan as planning
from ed_core.studies import study
from ed_core.studies.form import ALL, probe_names, set_names, study_of
from ed_core.studies.items import home
from ed_core.studies.plan import Plan
from ed_core.studies.sets import FORMATS, PromptSet
from ed_core.work.estimate import about
from ed_ui import inputs, picker, runs, show

WORDS = show.words(__file__)  # helps of boxes, and what the bundled sets hold
STEP, TEXT, BY_HAND = "study.page", "studies.text", "studies.by_hand"
LONG = 300  # characters of a prompt that is shown
TWINS, PROMPTS = 5, 1000  # at most in the form; the file takes more
PRESETS = {
    "Depth": ("contributions", "logit_lens"),
    "Depth, and what breaks without a layer": ("contributions", "logit_lens", "layer_skip"),
    "My own choice": (),
}


def go(step: int) -> None:
    """Open a step of the dialog, 1 to 3; it stays open until it is closed or the study runs."""
    inputs.put({STEP: step})


def end() -> None:
    """Close the dialog of a new study."""
    inputs.forget(STEP)


def is_open() -> bool:
    """Return whether the dialog of a new study is open."""
    return inputs.value(STEP) is not None


@st.dialog("New study", width="large", on_dismiss=end)
def dialog() -> None:
    """Draw the dialog's open step, the buttons Back, Next and Run, and the cost of the study so far."""
    step = inputs.value(STEP, 1)
    title, draw = STEPS[step - 1]
    st.caption(f"Step {step} of {len(STEPS)} · {title}")
    draw()
    text, wrong = "", ""
    try:
        text = inputs.value(TEXT, "") if inputs.value(BY_HAND, False) else _written()
        plan, later, seconds = planned(text, picker.device())
        st.markdown(f"**{show.plain(cost(plan, later, seconds))}**")
        for model in plan.models:
            if model.trouble:
                st.warning(show.plain(f"{model.label} is left out: {model.trouble}"), icon=":material/error:")
    except EffectiveDepthError as error:
        wrong = str(error)
        show.error(wrong)
    row = st.container(horizontal=True)
    if step > 1:
        row.button("Back", on_click=go, args=(step - 1,), key="study.back")
    if step < len(STEPS):
        row.button("Next", type="primary", on_click=go, args=(step + 1,), key="study.next", disabled=bool(wrong))
    elif row.button("Run", type="primary", key="studies.start", disabled=bool(wrong)):
        try:
            inputs.put({"studies.study": runs.begin_study(text)})
        except EffectiveDepthError as error:
            show.error(error)
        else:
            end()
            st.rerun()


def _several(label: str, name: str, options: list[str], default: list[str], **more: Any) -> list[str]:
    """Draw a box for any of `options`, with the key `study.NAME`, and return those chosen."""
    chosen: list[str] = inputs.widget(st.multiselect, label, f"study.{name}", default, options=options, **more)
    return chosen


def _number(label: str, name: str, default: int, low: int, most: int, told: str) -> None:
    """Draw a box for a whole number from `low` to `most`; `told` is its help."""
    limits: dict[str, Any] = dict(value=None, min_value=low, max_value=most, help=told, width=220)
    inputs.widget(st.number_input, label, f"study.{name}", default, **limits)


def _models() -> None:
    """Draw the first step: models with their sizes, untrained copies, steps of training."""
    models = list(dict.fromkeys([*picker.names(), *inputs.value("study.models", [picker.model()])]))
    lines, new = picker.lines(), dict(accept_new_options=True)
    about = dict(help=picker.about_model(), format_func=lambda name: lines.get(name, name))
    _several("Models", "models", models, [picker.model()], **about, **new)
    _number("Untrained copies of each", "twins", 1, 0, TWINS, WORDS["Untrained copies"])
    steps = inputs.value("study.steps", [])
    _several("Steps of training", "steps", steps, [], placeholder="none", help=WORDS["Steps"], **new)


def _sets() -> None:
    """Draw the second step: prompt sets, each with a sentence and an example."""
    named = dict(format_func=lambda name: f"{name} (hub)" if name in FORMATS else name)
    if _several("Prompt sets", "sets", set_names(), [default_set(picker.model())], **named):
        _number("Prompts of each set", "prompts", 20, ALL, PROMPTS, WORDS["Prompts"])
    try:
        sets = planned(_written(), picker.device())[0].sets
    except EffectiveDepthError:
        return
    for one in sets:
        first = one.examples[0].prompt
        st.markdown(f"**{show.plain(one.name)}**: {show.plain(extent(one))}")
        answer = f"▸{first.answer[:LONG]}" if first.answer else ""
        st.code(first.text[-LONG:] + answer, language=None, wrap_lines=True)


def _measures() -> None:
    """Draw the third step: what is measured, the study's name, and its file."""
    preset = inputs.widget(st.radio, "Measures", "study.preset", next(iter(PRESETS)), options=list(PRESETS))
    if not PRESETS[preset]:
        titled = dict(format_func=lambda name: find(name).title)
        _several("Probes", "probes", probe_names(), list(PRESETS["Depth"]), **titled)
    named: dict[str, Any] = dict(help=WORDS["Name"], width=300, disabled=inputs.value(BY_HAND, False))
    name = inputs.widget(st.text_input, "Name", "study.name", "mine", words=True, **named)
    if (home() / runs.on_disk(name) / planning.PLAN).is_file():
        st.caption(show.plain(f"A study {name} is here already: Run goes on with it."))
    with st.expander("Advanced: the study's file", icon=":material/code:"):
        try:
            text = _written()
        except StudyError as error:
            text = f"# {error}"
        if inputs.widget(st.toggle, "Edit", BY_HAND, False, help=WORDS["File"]):
            inputs.widget(st.text_area, "TOML", TEXT, text, words=True, height=300)
        else:
            inputs.put({TEXT: text})
            st.code(text, language="toml")


def _written() -> str:
    """Return the study's file (TOML) of what is chosen so far; raise a `StudyError` that says what is missing."""
    model = picker.model()
    defaults = {"models": [model], "sets": [default_set(model)], "probes": PRESETS["Depth"], "steps": []}
    chosen: dict[str, Any] = {name: tuple(inputs.value(f"study.{name}", one) or ()) for name, one in defaults.items()}
    chosen["probes"] = PRESETS[inputs.value("study.preset", "Depth")] or chosen["probes"]
    for name, what in (("models", "model"), ("sets", "prompt set"), ("probes", "probe")):
        if not chosen[name]:
            raise StudyError(f"Choose at least one {what}.")
    twins, prompts = (inputs.value(f"study.{name}", default) or 0 for name, default in (("twins", 1), ("prompts", 20)))
    return study.write(study_of(name=inputs.value("study.name", "mine"), twins=twins, prompts=prompts, **chosen))


def extent(one: PromptSet) -> str:
    """Return a prompt set's content, prompts and levels in words."""
    text = "; ".join(filter(None, [WORDS.get(one.name), count(len(one.examples), "prompt")]))
    return f"{text} of {len(one.levels)} levels" if len(one.levels) > 1 else text


def cost(plan: Plan, later: tuple[str, ...], seconds: float | None) -> str:
    """Return a study's models, prompts, parts and time in words. `later`: its sets that the plan has not read."""
    counts = {"model": len(plan.usable), "prompt": plan.n_prompts, "part": plan.n_items}
    text = " · ".join(count(n, what) for what, n in counts.items())
    if plan.sets:
        time = "time not known" if seconds is None else about(seconds)
        text += f" · {time}, the models' opening not counted"
    if later:
        text += f" · {', '.join(later)}: read from the hub when it runs, not counted here"
    return text


@st.cache_resource(ttl=60, max_entries=32, show_spinner=False)
def planned(text: str, device: str) -> tuple[Plan, tuple[str, ...], float | None]:
    """Return the plan of a study's file on a device; the names of its sets that are read from the hub when it runs,
    which the plan leaves out; and its seconds, None where not known. Raise an `EffectiveDepthError` for an unknown set
    or model."""
    written = study.parse(text, "the file")
    here = tuple(entry for entry in written.sets if not entry.hub)
    later = tuple(entry.name for entry in written.sets if entry.hub)
    folder = home() / runs.on_disk(written.name)
    plan = planning.make(written.model_copy(update={"sets": here}), folder, device)
    return plan, later, planning.seconds_of(plan, device) if here else None


STEPS = (("Which models?", _models), ("On which prompts?", _sets), ("What is measured?", _measures))
