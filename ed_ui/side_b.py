"""The second side of a comparison: its own model, prompt or parameters beside the sidebar's and the prompt box's, kept
over page changes and in the URL (names, ids and settings; never a prompt's text)."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from ed_core import controls, lookup, sources, tokens
from ed_core.compare import CURVES
from ed_core.demo import EXAMPLE, MODELS
from ed_core.errors import EffectiveDepthError, ParameterError, PromptError
from ed_core.pairs import Side
from ed_core.probes import Probe, find
from ed_core.prompts import check_text
from ed_core.types import ModelSpec, Prompt
from ed_ui import downloads, link, picker, probe_page, scope

MODES = {"models": "Two models", "prompts": "Two prompts", "parameters": "Two parameters"}
NONE = "none"
DEFAULT = ("contributions", "logit_lens", "layer_skip")
FOR_VERDICT = ("contributions", "logit_lens")
MANY = 1 << 20  # tokens: more than any probe asks for

# -------------------------------------------------------------------- what the URL carries


COMMON = (
    link.choice("compare", "kept.two.mode", "models", tuple(MODES)),
    link.several("measures", "kept.two.probes", list(DEFAULT), CURVES),
    link.choice("probe", "kept.two.probe", "layer_skip", tuple(CURVES)),
    link.flag("swapped", "kept.two.swapped", False),
)
OF_MODEL = (
    link.text("second", "kept.two.model"),
    link.choice("second_precision", "kept.two.precision", picker.AUTO, picker.PRECISIONS),
    link.choice("second_control", "kept.two.control", NONE, (NONE, *controls.KINDS)),
    link.number("second_seed", "kept.two.control.seed", 0, 0, controls.MOST, int),
)
RUN = link.Parameter("second_run", "two.run", "", lambda short: lookup.by_short(short).request.key[: lookup.SHORT])


def open_link() -> None:
    """What the URL says of the second side, where it decides; else what makes a first comparison."""
    state = st.session_state
    link.own(COMMON)
    _fill(COMMON)
    if state["kept.two.mode"] == "models":
        more = OF_MODEL
    elif state["kept.two.mode"] == "prompts":
        more = (link.choice("second_example", "kept.two.example", "", tuple(scope.examples())), RUN)
    else:
        mine = link.of_probe(find(state["kept.two.probe"]))
        more = (*mine, *(replace(p, name=f"second_{p.name}", key=p.key.replace("kept.", "kept.two.", 1)) for p in mine))
    before = scope.kept("two.example")
    link.own((*COMMON, *more))
    _fill((*COMMON, *OF_MODEL))
    if not state["kept.two.model"]:
        here = state.get("model")
        state["kept.two.model"] = next((name for name in reversed(MODELS) if name != here), here or "")
    if link.follows(RUN):
        asked = lookup.by_short(state["two.run"]).request.prompts[0]
        state.update({"kept.two.text": asked.text, "kept.two.answer": asked.answer, "kept.two.example": ""})
    elif scope.kept("two.text") is None and not scope.kept("two.example"):
        example = state.get("example", "")
        state["kept.two.example"] = scope.harder(example) or next(
            i for i in (EXAMPLE, *scope.examples()) if i != example
        )
    if (example := scope.kept("two.example")) and example != before:
        _pick()


def _fill(parameters: tuple[link.Parameter, ...]) -> None:
    for parameter in parameters:
        st.session_state.setdefault(parameter.key, parameter.default)


def remember(runs: tuple[str, str]) -> None:
    """Both sides in the URL: bundled prompts by their id, others by a run on them once there is one."""
    st.session_state["two.run"] = "" if scope.kept("two.example") else runs[1][: lookup.SHORT]
    scope.remember("" if st.session_state.get("example") else runs[0])


# -------------------------------------------------------------------- inputs


def mode() -> str:
    """What differs between the sides, and the button that lets them change places."""
    row = st.container(horizontal=True, vertical_alignment="center", key="form-two-mode")
    _kept(
        row.segmented_control,
        "Compare",
        "two.mode",
        options=list(MODES),
        format_func=MODES.get,
        required=True,
        label_visibility="collapsed",
    )
    row.button(
        "Swap sides",
        key="two.swap",
        icon=":material/swap_horiz:",
        on_click=_swap,
        help="B becomes A: figures change places, differences their sign.",
    )
    return st.session_state["two.mode"]


def sides(spec: ModelSpec) -> tuple[Side, Side]:
    """Both sides, from this page's inputs: the sidebar's model on the prompt in the box, and the second. An
    `EffectiveDepthError` says what is wrong with the second."""
    prompt, mode_ = scope.prompt(), scope.kept("two.mode")
    if mode_ == "parameters":
        mine, theirs = _parameters()
        rest = {name: find(name)() for name in FOR_VERDICT} if mine.name in FOR_VERDICT else {}
        return Side(spec, prompt, rest | {mine.name: mine}), Side(spec, prompt, rest | {theirs.name: theirs})
    there = (_model(spec), prompt) if mode_ == "models" else (spec, _prompt())
    probes = _probes((prompt, there[1]))
    return Side(spec, prompt, probes), Side(*there, probes)


def previews(first: Side, other: Side) -> list[list[str] | None]:
    """The tokens of each side, by the models' tokenizer files; None where only the model could tell."""
    return [tokens.preview(side.model, side.prompt) for side in (first, other)]


def room(first: Side, other: Side) -> dict[str, bool]:
    """Per probe, whether a map of differences is to be expected: known before anything runs, so that nothing moves when
    it comes."""
    deep, (mine, theirs) = [sources.n_layers(side.model) for side in (first, other)], previews(first, other)
    over_tokens = mine == theirs or None in (mine, theirs)
    return {name: deep[0] == deep[1] and (over_tokens or name == "layer_skip") for name in first.probes}


def _model(spec: ModelSpec) -> ModelSpec:
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-two-model")
    _kept(
        row.selectbox,
        "Second model",
        "two.model",
        options=picker.names(),
        accept_new_options=True,
        width=260,
        help=picker.about_model(),
    )
    _kept(
        row.segmented_control,
        "Its precision",
        "two.precision",
        options=picker.PRECISIONS,
        required=True,
        help=picker.ABOUT_PRECISION,
    )
    told = lambda kind: controls.KINDS.get(kind, NONE)  # noqa: E731
    _kept(
        row.selectbox,
        "Its control",
        "two.control",
        options=(NONE, *controls.KINDS),
        format_func=told,
        width=190,
        help=CONTROL,
    )
    kind = st.session_state["two.control"]
    _kept(
        row.number_input,
        "Seed",
        "two.control.seed",
        min_value=0,
        max_value=controls.MOST,
        width=130,
        disabled=kind == NONE,
    )
    name = (st.session_state["two.model"] or "").strip()
    found = picker.chosen(name, st.session_state["two.precision"], spec.device)
    if (missing := downloads.absent(name)) is not None and downloads.absent(
        picker.source()
    ) is None:  # one download is offered at a time
        downloads.section(missing)
    if found.spec is None:
        raise EffectiveDepthError(found.trouble)
    return found.spec if kind == NONE else sources.twin(found.spec, kind, int(st.session_state["two.control.seed"]))


def _prompt() -> Prompt:
    left, right = st.container(key="two-prompt-box").columns([4, 1])
    known = scope.examples()
    st.session_state.update({"two.text": scope.kept("two.text", ""), "two.answer": scope.kept("two.answer", "")})
    left.text_area(
        "Second prompt",
        key="two.text",
        height=104,
        on_change=_edited,
        args=("two.text",),
        help="Encoded as the first one is: same template, same special tokens.",
    )
    right.text_input(
        "Its answer",
        key="two.answer",
        on_change=_edited,
        args=("two.answer",),
        help="Optional; appended without a separator.",
    )
    st.session_state["two.example"] = scope.kept("two.example") or None
    titled = lambda i: f"{scope.task_name(known[i]['task'])}: {known[i]['title']}"  # noqa: E731
    right.selectbox(
        "Example",
        list(known),
        format_func=titled,
        key="two.example",
        on_change=_picked,
        placeholder="an example",
        label_visibility="collapsed",
    )
    first = scope.prompt()
    chosen = Prompt(
        st.session_state["two.text"],
        st.session_state["two.answer"],
        template=first.template,
        special_tokens=first.special_tokens,
    )
    try:
        check_text(chosen)
    except PromptError as error:
        raise PromptError(f"Second prompt: {error}") from None
    return chosen


def _parameters() -> tuple[Probe, Probe]:
    """One probe with two sets of parameters: the first is what its own page holds."""
    row = st.container(horizontal=True, key="form-two-probe")
    _kept(
        row.segmented_control,
        "Probe",
        "two.probe",
        options=list(CURVES),
        format_func=lambda n: find(n).title,
        required=True,
        label_visibility="collapsed",
    )
    probe = find(st.session_state["two.probe"])
    st.caption("First set: as on this probe's own page")
    mine = probe_page.form(probe)
    st.caption("Second set")
    return mine, probe_page.form(probe, prefix="two.")


def _probes(prompts: tuple[Prompt, Prompt]) -> dict[str, Probe]:
    """The chosen probes, with their defaults; those that read an answer only where both sides have one."""
    row = st.container(horizontal=True, vertical_alignment="center", key="form-two-probes")
    _kept(
        row.pills,
        "Measures",
        "two.probes",
        options=list(CURVES),
        format_func=lambda n: find(n).title,
        selection_mode="multi",
        label_visibility="collapsed",
    )
    chosen = {name: find(name)() for name in CURVES if name in st.session_state["two.probes"]}
    mute = [probe for probe in chosen.values() if any(lacks_answer(probe, prompt) for prompt in prompts)]
    if mute:
        row.caption(f"{' and '.join(p.title for p in mute)} left out: an answer is needed on both sides.")
    found = {name: probe for name, probe in chosen.items() if probe not in mute}
    if not found:
        raise ParameterError("No measure is chosen; choose at least one.")
    return found


def lacks_answer(probe: Probe, prompt: Prompt) -> bool:
    """Whether this probe explains an answer, and the prompt has none."""
    if prompt.answer:
        return False
    try:
        probe.check(MANY, None)
    except PromptError:
        return True
    return False


def _kept(widget, label: str, key: str, **more) -> None:
    """A widget that holds its value over page changes."""
    st.session_state[key] = scope.kept(key)
    widget(label, key=key, on_change=scope.keep, args=(key,), **more)


def _swap() -> None:
    st.session_state["kept.two.swapped"] = not scope.kept("two.swapped", False)


def _edited(key: str) -> None:
    scope.keep(key)
    st.session_state["kept.two.example"] = ""


def _picked() -> None:
    scope.keep("two.example")
    _pick()


def _pick() -> None:
    """Put the chosen example into the second prompt's box."""
    if chosen := scope.examples().get(scope.kept("two.example") or ""):
        st.session_state.update({"kept.two.text": chosen["text"], "kept.two.answer": chosen["answer"]})


CONTROL = "A twin of the second model in its place: untrained (random weights), or its own blocks in random order."
