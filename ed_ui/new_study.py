"""A new study, in three steps: models, prompt sets, measures; with what it costs, and its file, which may be edited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from ed_core.studies.sets import FORMATS
from ed_core.work.estimate import about
from ed_ui import inputs, picker, runs, show

STEP = "study.page"
TEXT, BY_HAND = "studies.text", "studies.by_hand"
LONG = 300  # characters of a prompt that is shown
TWINS, PROMPTS = 5, 1000  # at most in the form; the file takes more
PRESETS = {
    "Depth": ("contributions", "logit_lens"),
    "Depth, and what breaks without a layer": ("contributions", "logit_lens", "layer_skip"),
    "My own choice": (),
}


@dataclass(frozen=True)
class SetLook:
    """A prompt set of a planned study: its name, number of prompts and of levels, and the end of its first prompt with
    the answer."""

    name: str
    prompts: int
    levels: int
    example: str


@dataclass(frozen=True)
class Outlook:
    """The extent and cost of a study, as far as known before it runs. `later`: sets that are read from the hub when it
    runs. `parts`: items to compute. `seconds`: None where not known. `troubles`: unusable models, and why."""

    sets: tuple[SetLook, ...]
    later: tuple[str, ...]
    models: int
    parts: int
    seconds: float | None
    troubles: Mapping[str, str]


def begin() -> None:
    """Open the dialog at its first step; it stays open until it is closed or the study runs."""
    inputs.put({STEP: 1})


def end() -> None:
    """Close the dialog of a new study."""
    inputs.forget(STEP)


def is_open() -> bool:
    """Return whether the dialog of a new study is open."""
    return inputs.value(STEP) is not None


@st.dialog("New study", width="large", on_dismiss=end)
def dialog() -> None:
    """Draw the dialog's open step, the buttons Back, Next and Run, and the cost of the study so far."""
    step = min(max(inputs.value(STEP, 1), 1), 3)
    st.caption(f"Step {step} of 3 · {STEPS[step - 1]}")
    (_models, _sets, _measures)[step - 1]()
    text, wrong = "", ""
    try:
        text = inputs.value(TEXT, "") if inputs.value(BY_HAND, False) else _written()
        estimate = outlook(text, picker.device())
        st.markdown(f"**{show.plain(cost(estimate))}**")
        for label, why in estimate.troubles.items():
            st.warning(show.plain(f"{label} is left out: {why}"), icon=":material/error:")
    except EffectiveDepthError as error:
        wrong = str(error)
        show.error(wrong)
    row = st.container(horizontal=True)
    if step > 1:
        row.button("Back", on_click=_go, args=(step - 1,), key="study.back")
    if step < 3:
        row.button("Next", type="primary", on_click=_go, args=(step + 1,), key="study.next", disabled=bool(wrong))
    elif row.button("Run", type="primary", key="studies.start", disabled=bool(wrong)):
        try:
            inputs.put({"studies.study": runs.begin_study(text)})
        except EffectiveDepthError as error:
            show.error(error)
        else:
            end()
            st.rerun()


def _go(step: int) -> None:
    """Open a step of the dialog, 1 to 3."""
    inputs.put({STEP: step})


def _several(label: str, name: str, options: list[str], default: list[str], **more: Any) -> tuple[str, ...]:
    """Draw a box for any of `options`, with the key `study.NAME`, and return those chosen."""
    return tuple(inputs.widget(st.multiselect, label, f"study.{name}", default, options=options, **more))


def _number(label: str, name: str, default: int, low: int, most: int, told: str) -> int:
    """Draw a box for a whole number from `low` to `most` and return it; `told` is its help."""
    limits: dict[str, Any] = dict(value=None, min_value=low, max_value=most, help=told, width=220)
    return inputs.widget(st.number_input, label, f"study.{name}", default, **limits) or low


def _models() -> None:
    """Draw the first step: models with their sizes, untrained copies, steps of training."""
    chosen = inputs.value("study.models", [picker.model()])
    models = list(dict.fromkeys([*picker.names(), *chosen]))
    new = dict(accept_new_options=True)
    lines = picker.lines()
    about = dict(help=picker.about_model(), format_func=lambda name: lines.get(name, name))
    _several("Models", "models", models, [picker.model()], **about, **new)
    _number("Untrained copies of each", "twins", 1, 0, TWINS, ABOUT_TWINS)
    steps = inputs.value("study.steps", [])
    _several("Steps of training", "steps", steps, [], placeholder="none", help=ABOUT_STEPS, **new)


def _sets() -> None:
    """Draw the second step: prompt sets, each with a sentence and an example."""
    names = _several("Prompt sets", "sets", set_names(), [default_set(picker.model())], format_func=_set_name)
    if names:
        _number("Prompts of each set", "prompts", 20, ALL, PROMPTS, ABOUT_PROMPTS)
    try:
        looks = outlook(_written(), picker.device()).sets
    except EffectiveDepthError:
        return
    for one in looks:
        st.markdown(f"**{show.plain(one.name)}**: {show.plain(size(one))}")
        st.code(one.example, language=None, wrap_lines=True)


def _measures() -> None:
    """Draw the third step: what is measured, the study's name, and its file."""
    closed = inputs.value(BY_HAND, False)
    preset = inputs.widget(st.radio, "Measures", "study.preset", next(iter(PRESETS)), options=list(PRESETS))
    if not PRESETS[preset]:
        probes = list(PRESETS["Depth"])
        _several("Probes", "probes", probe_names(), probes, format_func=lambda name: find(name).title)
    named = dict(words=True, help=ABOUT_NAME, width=300, disabled=closed)
    name = inputs.widget(st.text_input, "Name", "study.name", "mine", **named)
    if (home() / runs.on_disk(name) / planning.PLAN).is_file():
        st.caption(show.plain(f"A study {name} is here already: Run goes on with it."))
    with st.expander("Advanced: the study's file", icon=":material/code:"):
        try:
            text = _written()
        except StudyError as error:
            text = f"# {error}"
        if inputs.widget(st.toggle, "Edit", BY_HAND, False, help=ABOUT_FILE):
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
    for name, what in NEEDED.items():
        if not chosen[name]:
            raise StudyError(f"Choose at least one {what}.")
    twins, prompts = (inputs.value(f"study.{name}", default) or 0 for name, default in (("twins", 1), ("prompts", 20)))
    return study.write(study_of(name=inputs.value("study.name", "mine"), twins=twins, prompts=prompts, **chosen))


def size(one: SetLook) -> str:
    """Return a prompt set's content, prompts and levels in words."""
    text = f"{ABOUT_SETS[one.name]}; {count(one.prompts, 'prompt')}" if one.name in ABOUT_SETS else ""
    text = text or count(one.prompts, "prompt")
    return f"{text} of {one.levels} levels" if one.levels > 1 else text


def cost(found: Outlook) -> str:
    """Return a study's models, prompts, parts and time in words."""
    counts = {"model": found.models, "prompt": sum(one.prompts for one in found.sets), "part": found.parts}
    text = " · ".join(count(n, what) for what, n in counts.items())
    if found.sets:
        time = "time not known" if found.seconds is None else about(found.seconds)
        text += f" · {time}, the models' opening not counted"
    if found.later:
        text += f" · {', '.join(found.later)}: read from the hub when it runs, not counted here"
    return text


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def outlook(text: str, device: str) -> Outlook:
    """Return the extent and cost of a study's file on a device; raise an `EffectiveDepthError` for an unknown set or
    model."""
    written = study.parse(text, "the file")
    here = tuple(entry for entry in written.sets if not entry.hub)
    later = tuple(entry.name for entry in written.sets if entry.hub)
    if not here:
        return Outlook((), later, len(written.entries), 0, None, {})
    plan = planning.make(written.model_copy(update={"sets": here}), home() / runs.on_disk(written.name), device)
    time = planning.seconds_of(plan, device)
    troubles = {m.label: m.trouble for m in plan.models if m.trouble}
    looks = tuple(_look(plan, i) for i in range(len(plan.sets)))
    return Outlook(looks, later, len(plan.usable), plan.n_items, time, troubles)


def _look(plan: Plan, i: int) -> SetLook:
    """Return set `i` of a plan as the dialog shows it."""
    entry = plan.sets[i]
    first = entry.examples[0].prompt
    example = f"{first.text[-LONG:]}▸{first.answer[:LONG]}" if first.answer else first.text[-LONG:]
    return SetLook(entry.name, len(entry.examples), len(entry.levels), example)


def _set_name(name: str) -> str:
    """Return a set's name as its box shows it, with "(hub)" where it is fetched from the hub."""
    return f"{name} (hub)" if name in FORMATS else name


STEPS = ("Which models?", "On which prompts?", "What is measured?")
NEEDED = {"models": "model", "sets": "prompt set", "probes": "probe"}
ABOUT_SETS = {
    "mixed": "Plain English of ten kinds, for models that know it",
    "sum_mod10": "Sums of single digits modulo 10, by length",
    "addition": "Sums of several numbers, by length",
    "copy": "A row of letters to repeat, by length",
    "lookup": "A chain of assignments to follow, by hops",
    "lookup_names": "Who follows whom, by hops",
    "word_problem": "Word problems in simple English, by steps",
    "chains": "Chains of permutations for models of characters, by length",
    "sums": "Sums for models of characters, by length",
}
ABOUT_NAME = "Of its folder; a study of this name that is here already goes on from where it is."
ABOUT_TWINS = "Copies of each model with random weights, each of another seed: what architecture alone gives."
ABOUT_STEPS = (
    "Revisions of models of the hub (step1000), checkpoints of folders (checkpoint-500). Each is a model of the study, "
    "on one axis; none takes the model as it is."
)
ABOUT_PROMPTS = f"Divided evenly over the levels of a set, rounded up; {ALL} takes all."
ABOUT_FILE = (
    "Write the file by hand, from what the form gives: it is what runs, and what `python -m ed_core study` reads. "
    "docs/studies.md has every key."
)
