"""Side B of a comparison: its own model, prompt or parameters beside those of side A, remembered over
page changes and in the URL (names, ids and settings; never a prompt's text)."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from ed_core.depth.side_by_side import COMPARED, Side
from ed_core.depth.verdict import READS
from ed_core.errors import EffectiveDepthError, ParameterError, PromptError
from ed_core.probes import LayerSkip, Probe, find
from ed_core.results import lookup
from ed_core.service.resolve import twin
from ed_core.sources import controls, remote, tokens
from ed_core.sources.bundled import CHARACTERS, WORDS, example_of
from ed_core.types import ModelSpec, Prompt
from ed_ui import downloads, inputs, link, pair_panel, picker, probe_page, prompt_box, show
from ed_ui.inputs import NONE, Input, choice, number, of_probe, several, text, value

MODES = {"models": "Two models", "prompts": "Two prompts", "parameters": "Two parameters"}
TITLES = {name: find(name).title for name in COMPARED}
DEFAULT = tuple(name for name in COMPARED if find(name).first_page)
MANY = 1 << 20  # tokens: more than any probe asks for

# -------------------------------------------------------------------- what the URL carries


MODE = choice("compare", "two.mode", "models", MODES.keys(), "Compare", MODES)
MEASURES = several("measures", "two.probes", list(DEFAULT), COMPARED, "Measures")
PROBE = choice("probe", "two.probe", LayerSkip.name, COMPARED, "Probe", TITLES)
COMMON = (
    MODE,
    MEASURES,
    PROBE,
    inputs.SWAPPED,
    inputs.OVERLAID,
    inputs.BY_NUMBER,
    inputs.COUNT_SINKS,
    *pair_panel.LINKED,
)
RUN = Input("second_run", "two.run", "", lambda short: lookup.by_short(short).request.key[: lookup.SHORT])


def of_model(page: str = "two") -> tuple[Input, Input, Input, Input]:
    """What a link carries of `second_model`."""
    kinds = {NONE: NONE} | controls.KINDS
    return (
        text("second", f"{page}.model", label="Model B"),
        choice("second_precision", f"{page}.precision", picker.AUTO, picker.PRECISIONS, "Model B: precision"),
        choice("second_control", f"{page}.control", NONE, kinds.keys(), "Model B: control", kinds),
        number("second_seed", f"{page}.control.seed", 0, 0, controls.MOST, int, "Seed"),
    )


def open_link() -> None:
    """What the URL says of side B, where it decides; else what makes a first comparison."""
    link.own(COMMON)
    inputs.put_defaults(COMMON)
    if MODE.value == "models":
        more = of_model()
    elif MODE.value == "prompts":
        more = (choice("second_example", "two.example", "", tuple(prompt_box.examples())), RUN)
    else:
        mine = of_probe(find(PROBE.value))
        more = (*mine, *(replace(p, name=f"second_{p.name}", key=f"two.{p.key}") for p in mine))
    before = value("two.example")
    link.own((*COMMON, *more))
    inputs.put_defaults((*COMMON, *of_model()))
    if not value("two.model"):
        inputs.put(first_twin() | ({inputs.OVERLAID.key: True} if MODE.value == "models" else {}))
    if link.follows(RUN):
        asked = lookup.by_short(RUN.value).request.prompts[0]
        prompt_box.fill(asked.text, asked.answer, side="two.")
    elif value("two.text") is None and not value("two.example"):
        example = value("example", "")
        here = picker.model()
        others = (id for id in (example_of(here), *prompt_box.examples_of(here)) if id != example)
        inputs.put({"two.example": prompt_box.harder(example) or next(others)})
    if (example := value("two.example")) and example != before:
        prompt_box.pick(example, "two.")


def first_model(of: str = "two") -> dict[str, str]:
    """What stands on side B of linear maps at first: the other bundled model of the same tokens; for any other model
    what an *A | B* opens on."""
    here = picker.model()
    alike = next((names for names in (WORDS, CHARACTERS) if here in names), ())
    other = next((name for name in alike if name != here), "")
    return {f"{of}.model": other} if other else first_twin(of)


def first_twin(of: str = "two") -> dict[str, str]:
    """What stands on side B at first: the model's own untrained twin, of which what is compared is shipped for the
    models that this project comes with; for a model that is elsewhere, which can have none, the first other one in the
    list."""
    here = picker.model()
    if not remote.is_remote(here):
        return {f"{of}.model": here, f"{of}.control": "untrained"}
    return {f"{of}.model": next((name for name in picker.names() if name != here), here)}


def write_link(runs: tuple[str, str]) -> None:
    """Both sides in the URL: bundled prompts by their id, others by a run on them once there is one."""
    inputs.put({RUN.key: "" if value("two.example") else runs[1][: lookup.SHORT]})
    link.write("" if value("example") else runs[0])


# -------------------------------------------------------------------- inputs


def mode() -> str:
    """What differs between the sides, and the button that lets them change places."""
    row = st.container(horizontal=True, vertical_alignment="center", key="two-inputs")
    chosen = MODE.draw(row.segmented_control, label_visibility="collapsed")
    row.button(
        "Swap sides",
        key="two.swap",
        icon=":material/swap_horiz:",
        on_click=lambda: inputs.put({inputs.SWAPPED.key: not inputs.SWAPPED.value}),
        help="B becomes A: figures change places, differences their sign.",
    )
    return chosen


def sides(spec: ModelSpec, row) -> tuple[Side, Side]:
    """Both sides, from this page's inputs: the chosen model on the prompt in the box, and side B, whose inputs are
    behind clicks in the `row` beside Run, a second prompt below it. An `EffectiveDepthError` says what is wrong with
    side B."""
    prompt = prompt_box.prompt()
    if MODE.value == "parameters":
        mine, theirs = _parameters(row)
        rest = {name: find(name)() for name in READS} if mine.name in READS else {}
        return Side(spec, prompt, rest | {mine.name: mine}), Side(spec, prompt, rest | {theirs.name: theirs})
    there = (second_model(spec, row), prompt) if MODE.value == "models" else (spec, _prompt())
    probes = _probes((prompt, there[1]), row)
    return Side(spec, prompt, probes), Side(*there, probes)


def previews(first: Side, other: Side) -> list[list[str] | None]:
    """The tokens of each side, by the models' tokenizer files; None where only the model could tell."""
    return [tokens.preview(side.model, side.prompt) for side in (first, other)]


def differences(first: Side, other: Side) -> dict[str, bool]:
    """Per probe, whether a map of differences is to be expected: known before anything runs, so that nothing moves when
    it comes."""
    mine, theirs = previews(first, other)
    same_tokens = mine == theirs or None in (mine, theirs)

    def expected(name: str) -> bool:
        return (same_tokens or not pair_panel.along(name, "pos")) and not pair_panel.along(name, "step")

    return {name: expected(name) for name in first.probes}


def second_model(spec: ModelSpec, row, of: str = "two") -> ModelSpec:
    """The second model, from its own boxes behind a click in the `row`: `of` a page, by the beginning of its inputs'
    names. An `EffectiveDepthError` says why there is none."""
    model_, precision_, control_, seed_ = of_model(of)
    name, kind = model_.value or "", control_.value
    called = name + (f", {controls.KINDS[kind]}" if kind in controls.KINDS else "")
    box = row.popover(f"B: {show.plain(called or 'choose a model')}", key=f"box-{of}-model")
    about = dict(options=picker.names(), accept_new_options=True, help=picker.about_model())
    name = (model_.draw(box.selectbox, width=300, **about) or "").strip()
    precision = precision_.draw(box.segmented_control, help=picker.ABOUT_PRECISION)
    row_of_control = box.container(horizontal=True, vertical_alignment="bottom")
    if any(map(remote.is_remote, (spec.source, name))):
        box.caption(NO_TWIN)
    kind = control_.draw(row_of_control.selectbox, width=190, help=CONTROL)
    seed = seed_.draw(row_of_control.number_input, width=130, disabled=kind == NONE)
    found = picker.chosen(name, precision, picker.device())
    # one download is offered at a time
    if found.missing is not None and picker.current().missing is None:
        downloads.section(found.missing)
    if found.spec is None:
        raise EffectiveDepthError(found.trouble)
    if not remote.is_remote(spec.source):
        picker.say_what_leaves(found.spec)
    return found.spec if kind == NONE else twin(found.spec, kind, int(seed))


def _prompt() -> Prompt:
    known, chosen = prompt_box.examples(), value("two.example")
    options = list(prompt_box.examples_of(picker.model()))
    right = prompt_box.boxes("two.", "Second prompt", "Its answer", ABOUT_PROMPT)
    st.session_state["two.example"] = chosen or None
    right.selectbox(
        "Example",
        options + [chosen] * (chosen in known and chosen not in options),
        format_func=lambda id: f"{prompt_box.task_name(known[id]['task'])}: {known[id]['title']}",
        key="two.example",
        on_change=_picked,
        placeholder="an example",
        label_visibility="collapsed",
    )
    second = replace(prompt_box.prompt(), text=value("two.text", ""), answer=value("two.answer", ""))
    if wrong := prompt_box.wrong_with(second):
        raise PromptError(f"Second prompt: {wrong}")
    return second


def _picked() -> None:
    inputs.note("two.example")
    if example := value("two.example"):
        prompt_box.pick(example, "two.")


def _parameters(row) -> tuple[Probe, Probe]:
    """One probe with two sets of parameters: the first is what its own page holds."""
    box = row.popover(f"Measure: {find(PROBE.value).title}", key="box-two-probe")
    chosen = PROBE.draw(box.segmented_control, label_visibility="collapsed")
    first = row.popover("A: first set", key="box-two-first")
    first.caption("As on this probe's own page")
    mine = probe_page.form(find(chosen), row=first)
    return mine, probe_page.form(find(chosen), row=row.popover("B: second set", key="box-two-second"), prefix="two.")


def _probes(prompts: tuple[Prompt, Prompt], row) -> dict[str, Probe]:
    """The chosen probes, with their defaults; those that read an answer only where both sides have one."""
    box = row.popover(f"Measures ({len(MEASURES.value)})", key="box-two-probes")
    look = dict(format_func=TITLES.get, selection_mode="multi", label_visibility="collapsed")
    names = MEASURES.draw(box.pills, **look)
    chosen = {name: find(name)() for name in COMPARED if name in names}
    mute = [probe for probe in chosen.values() if any(lacks_answer(probe, prompt) for prompt in prompts)]
    if mute:
        box.caption(f"{' and '.join(p.title for p in mute)} left out: an answer is needed on both sides.")
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


ABOUT_PROMPT = (
    "Encoded as the first one is: same template, same special tokens.",
    "Optional; appended without a separator.",
)
NO_TWIN = "A model that is elsewhere has no twin here: a twin is made of a model's own files, which stay there."
CONTROL = "A twin of the second model in its place: untrained (random weights), or its own layers in random order."
