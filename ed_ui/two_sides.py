"""A comparison: side B with its own model or prompt next to side A, remembered over page changes and in the URL (names,
ids and settings; never a prompt's text); and what the page shows of each probe: curves over each other, maps side by
side, what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core import figures
from ed_core.cases import case_study, export
from ed_core.depth import say, side_by_side
from ed_core.depth.side_by_side import COMPARED, SIDES
from ed_core.errors import EffectiveDepthError, ParameterError, PromptError
from ed_core.figures import View
from ed_core.figures.pictures import Look, draw, measures
from ed_core.models import bundled, controls
from ed_core.models.bundled import example_of, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import Probe, find
from ed_core.probes.base import Picture
from ed_core.results import lookup
from ed_core.types import ProbeResult, Prompt
from ed_ui import downloads, inputs, link, picker, probe_page, prompt_box, show
from ed_ui.inputs import (
    COUNT_SINKS,
    NONE,
    OVERLAID,
    SIDES_BRANCH,
    SIDES_MAPS,
    SIDES_SHADE,
    Input,
    choice,
    several,
    value,
)
from ed_ui.probe_page import TOKENS

if TYPE_CHECKING:
    from plotly.basedatatypes import BaseFigure

WORDS = show.words(__file__)
MODES = {"models": "Two models", "prompts": "Two prompts"}
TITLES = {name: find(name).title for name in COMPARED}
DEFAULT = [name for name in COMPARED if find(name).first_page]
MANY = 1 << 20  # tokens: more than any probe asks for
WINDOW = 48  # tokens of a map; more get a slider
CURVE_HEIGHT, MAP_HEIGHT = 300, 400
TAIL = 24  # characters of a prompt that its label shows: prompts of one task begin alike

# -------------------------------------------------------------------- what the URL carries

MODE = choice("compare", "two.mode", "models", MODES, "Compare", MODES)
MEASURES = several("measures", "two.probes", DEFAULT, COMPARED, "Measures")
LOOK = (OVERLAID, COUNT_SINKS, SIDES_BRANCH, SIDES_SHADE, *SIDES_MAPS.values(), TOKENS)  # of the maps
COMMON = (MODE, MEASURES, *LOOK)
RUN = Input("second_run", "two.run", "", lambda short: lookup.by_short(short).request.key[: lookup.SHORT])


def of_model(page: str = "two") -> tuple[Input, Input, Input, Input]:
    """Return the inputs of `second_model`: model, precision, control, seed. `page`: prefix of their keys."""
    kinds = {NONE: NONE} | controls.KINDS
    return (
        inputs.text("second", f"{page}.model", label="Model B"),
        choice("second_precision", f"{page}.precision", picker.AUTO, picker.PRECISIONS, "Model B: precision"),
        choice("second_control", f"{page}.control", NONE, kinds, "Model B: control", kinds),
        inputs.number("second_seed", f"{page}.control.seed", 0, 0, controls.MOST, int, "Seed"),
    )


def open_link() -> None:
    """Fill the inputs of side B from the URL where it decides; else with what makes a first comparison."""
    link.own(COMMON)
    before = value("two.example")
    example = choice("second_example", "two.example", "", prompt_box.examples())
    link.own((*COMMON, *(of_model() if MODE.value == "models" else (example, RUN))))
    if not value("two.model"):
        inputs.put(first_twin() | ({OVERLAID.key: True} if MODE.value == "models" else {}))
    if link.follows(RUN):
        prompt = lookup.by_short(RUN.value).request.prompts[0]
        prompt_box.fill(prompt.text, prompt.answer, side="two.")
    elif value("two.text") is None and not value("two.example"):
        first, here = value("example", ""), picker.model()
        others = (id for id in (example_of(here), *(p["id"] for p in load_prompts(here))) if id != first)
        inputs.put({"two.example": prompt_box.harder(first) or next(others)})
    if (chosen := value("two.example")) and chosen != before:
        prompt_box.pick(chosen, "two.")


def first_model(of: str) -> dict[str, str]:
    """Return the inputs of the second model of linear maps at first: the other bundled model of the same tokens; for
    any other model as `first_twin`. `of`: prefix of the inputs' keys."""
    here = picker.model()
    other = next(
        (name for names in (bundled.WORDS, bundled.CHARACTERS) if here in names for name in names if name != here), ""
    )
    return {f"{of}.model": other} if other else first_twin(of)


def first_twin(of: str = "two") -> dict[str, str]:
    """Return the inputs of the second model at first: the model's own untrained copy, for which results are shipped;
    for a remote model, which can have none, the first other one in the list. `of`: prefix of the inputs' keys."""
    here, spec = picker.model(), picker.current().spec
    if spec is None or spec.weights_here:
        return {f"{of}.model": here, f"{of}.control": "untrained"}
    return {f"{of}.model": next((name for name in picker.names() if name != here), here)}


# -------------------------------------------------------------------- both sides


@dataclass(frozen=True)
class Side:
    """One side of a comparison, A or B: its model and prompt, its `name` next to the other side, and its results by
    probe, as far as measured."""

    letter: str
    model: ModelRef
    prompt: Prompt
    name: str = ""
    results: Mapping[str, ProbeResult] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Letter and name, as Markdown."""
        return f"**{self.letter} · {show.plain(self.name)}**"

    @property
    def n_layers(self) -> int | None:
        """The number of layers, from a result where there is one; None where it is not known."""
        return next((r.n_layers for r in self.results.values()), self.model.n_layers)

    def sinks(self, probe: str) -> tuple[int, ...]:
        """Return the positions of the attention sinks of a probe's prompt."""
        return probe_page.sinks_of(self.results[probe])


Both = tuple[Side, Side]


def named(a: Side, b: Side) -> Both:
    """Return the sides with a name each, in a few words what differs: model, revision, device, end of the prompt."""

    def name(mine: Side, theirs: Side) -> str:
        one, other = mine.model, theirs.model
        words = [controls.full_name(one, one.precision != other.precision) if one != other else ""]
        words += [one.revision[:10] * (one.revision != other.revision), one.device * (one.device != other.device)]
        if mine.prompt.identity() != theirs.prompt.identity():
            words.append(f"“{case_study.cut(mine.prompt.text, TAIL)}”")
        return ", ".join(filter(None, words)) or one.name

    return replace(a, name=name(a, b)), replace(b, name=name(b, a))


def ask(spec: ModelRef, row: DeltaGenerator, a: DeltaGenerator, b: DeltaGenerator) -> tuple[Both, dict[str, Probe]]:
    """Draw the inputs of both sides and return the sides, with their probes by name: the chosen model on the prompt in
    the box, described in `a`, and side B, chosen in `b`; the measures are in the `row` of Run. An `EffectiveDepthError`
    says what is wrong with side B."""
    prompt = prompt_box.prompt()
    if MODE.value == "models":
        a.markdown(f"**A** {show.plain(spec.name)} · {show.plain(spec.precision)}", width="content")
        b.markdown("**B**", width="content")
        model, other = second_model(spec, b), prompt
    else:
        with b:
            model, other = spec, _prompt()
    return named(Side("A", spec, prompt), Side("B", model, other)), _probes((prompt, other), row)


def second_model(spec: ModelRef, row: DeltaGenerator, of: str = "two") -> ModelRef:
    """Draw the boxes of the second model behind a button in the `row` and return the model, or the control chosen for
    it. `of`: prefix of the inputs' keys. An `EffectiveDepthError` says why none can be used."""
    model_, precision_, control_, seed_ = of_model(of)
    name, kind = model_.value or "", control_.value
    title = name + (f", {controls.KINDS[kind]}" if kind in controls.KINDS else "")
    box = row.popover(show.plain(title or "choose a model"), key=f"box-{of}-model")
    about: dict[str, Any] = dict(options=picker.names(), accept_new_options=True, help=picker.about_model())
    name = (model_.draw(box.selectbox, **about) or "").strip()
    precision = precision_.draw(box.segmented_control, help=picker.WORDS["Precision"])
    row_of_control = box.container(horizontal=True, vertical_alignment="bottom")
    kind = control_.draw(row_of_control.selectbox, width=190, help=WORDS["Control"])
    seed = seed_.draw(row_of_control.number_input, width=130, disabled=kind == NONE)
    second = picker.chosen(name, precision, picker.device())
    if not (spec.weights_here and (second.spec is None or second.spec.weights_here)):
        box.caption(WORDS["No control"])
    if second.missing is not None and picker.current().missing is None:  # one download is offered at a time
        downloads.section(second.missing)
    if second.spec is None:
        raise EffectiveDepthError(second.trouble)
    if spec.weights_here:
        picker.say_what_leaves(second.spec)
    return second.spec if kind == NONE else second.spec.twin(kind, int(seed))


def _prompt() -> Prompt:
    """Draw the boxes of side B's prompt and return it; a `PromptError` says what is wrong."""
    with prompt_box.boxes("two.", "B", "Its answer", (WORDS["Prompt"], WORDS["Answer"])):
        prompt_box.choose_example("two.")
    second = replace(prompt_box.prompt(), text=value("two.text", ""), answer=value("two.answer", ""))
    if wrong := prompt_box.wrong_with(second):
        raise PromptError(f"Second prompt: {wrong}")
    return second


def _probes(prompts: tuple[Prompt, Prompt], row: DeltaGenerator) -> dict[str, Probe]:
    """Draw the choice of probes and return them by name, with their defaults; those that read an answer only where both
    sides have one. Raises a `ParameterError` where none is left."""
    box = row.popover(f"Measures ({len(MEASURES.value)})", key="box-two-probes")
    look: dict[str, Any] = dict(format_func=TITLES.get, selection_mode="multi", label_visibility="collapsed")
    names = MEASURES.draw(box.pills, **look)
    chosen = {name: find(name)() for name in COMPARED if name in names}
    mute = [probe for probe in chosen.values() if not all(p.answer for p in prompts) and _reads_answer(probe)]
    if mute:
        box.caption(f"{' and '.join(p.title for p in mute)} left out: an answer is needed on both sides.")
    probes = {name: probe for name, probe in chosen.items() if probe not in mute}
    if not probes:
        raise ParameterError("No measure is chosen; choose at least one.")
    return probes


def _reads_answer(probe: Probe) -> bool:
    """Return whether a probe refuses a prompt without an answer."""
    try:
        probe.check(MANY, None)
    except PromptError:
        return True
    return False


# -------------------------------------------------------------------- what is shown of a probe


def pictures(name: str) -> list[Picture]:
    """Return a probe's pictures that can be side by side: those with a name to choose by, else the first."""
    declared = find(name).pictures or ()
    return [picture for picture in declared if picture.choice] or list(declared[:1])


def same_cells(a: ProbeResult, b: ProbeResult) -> bool:
    """Return whether the maps of two results have the same cells, so that one can be drawn over the other."""
    return a.n_layers == b.n_layers and a.tokens == b.tokens


def map_inputs(names: Sequence[str], both: Both) -> None:
    """Draw the inputs that say which measures the maps of these probes show, and which tokens."""
    shown = {name: pictures(name) for name in names}
    first = [picture.measures[0] for of_probe in shown.values() for picture in of_probe]
    some = [result for result in (next(iter(side.results.values()), None) for side in both) if result is not None]
    laid = len(some) == 2 and same_cells(*some)
    if not first:
        return
    row = st.container(key="map-inputs").popover(
        "What the maps show", type="tertiary", icon=":material/tune:", key="box-two-maps"
    )
    if any("{branch}" in measure for measure in first):
        SIDES_BRANCH.draw(row.segmented_control)
    for name in names:
        if name in SIDES_MAPS:
            SIDES_MAPS[name].draw(row.segmented_control)
    if any("{shade}" in measure for measure in first):
        SIDES_SHADE.draw(row.selectbox, width=190)
    if (n := min((result.n_tokens for result in some), default=0)) > WINDOW:
        window = inputs.window(TOKENS.key, n, WINDOW)
        TOKENS.draw(row.slider, default=window, min_value=0, max_value=n - 1, width=220)
    if laid:
        OVERLAID.draw(row.toggle)
    if any(side.sinks(probe) for side in both for probe in side.results):
        COUNT_SINKS.draw(row.toggle)


def section(name: str, both: Both, lines: Sequence[Mapping[str, int | None]], busy: bool) -> None:
    """Draw a probe's section: its curves, the two maps, and the map of differences next to what it comes to in words.
    `lines`: depths by criterion, of each side. `busy`: it is being computed, so the maps' places are kept; otherwise
    nothing is drawn where nothing was measured."""
    results = [side.results[name] for side in both if name in side.results]
    if not busy and not results:
        return
    st.markdown(f"##### {find(name).title}")
    pairs = _pairs(name, both) if len(results) == 2 and all(r.complete for r in results) else []
    for column, pair in zip(st.columns(2), pairs, strict=False):
        key, curve = f"{name}-{pair.curve.name}", pair.curve
        fig = figures.pair_curves(pair, (both[0].name, both[1].name), CURVE_HEIGHT)
        what = f"**`{name}.{curve.name}`** ({curve.unit}), dims ({curve.x}): {curve.title}.\n\n"
        what += WORDS["Relative depth" if pair.relative else "Equal depth"]
        about = partial(details, key, what, partial(export.pair_csv, pair), name, both)
        show.figure(key, fig, f"**{curve.title}**", about=about, place=column)
    left = right = st.container()
    if options := pictures(name):
        choice = SIDES_MAPS[name].value if name in SIDES_MAPS else ""
        picture = next((p for p in options if p.choice == choice), options[0])
        st.caption(f"The maps: {picture.caption}; one colour scale for both.")
        _maps(name, picture, both, lines, busy)
        left, right = st.columns(2)
        if pairs:
            with left:
                _difference(name, picture, both)
    for pair in pairs:
        right.caption(show.plain(say.pair(pair)))


def _pairs(name: str, both: Both) -> list[side_by_side.Pair]:
    """Return the pairs of curves of a probe that is complete on both sides."""
    a, b = both
    sinks = ((), ()) if COUNT_SINKS.value else (a.sinks(name), b.sinks(name))
    return side_by_side.pairs((find(name)(), find(name)()), a.results[name], b.results[name], sinks)


def _maps(name: str, picture: Picture, both: Both, lines: Sequence[Mapping[str, int | None]], busy: bool) -> None:
    """Draw a picture of both sides, side by side in colours common to both; or B's over A's, right of a line that is
    dragged, or moved by the arrow keys."""
    look = Look(SIDES_BRANCH.value, SIDES_SHADE.value)
    measure = measures(picture, look)[0]
    found = [r if (r := side.results.get(name)) is not None and measure in r.measures else None for side in both]

    def drawn(i: int, width: int) -> BaseFigure:
        result = found[i]
        assert result is not None
        view = replace(_view(name, both[i]), beside=found[1 - i], side=SIDES[i], depth_lines=lines[i], width_px=width)
        return draw(picture, result, view, look)

    a, b = found
    if OVERLAID.value and a is not None and b is not None and same_cells(a, b):
        caption = f"{both[0].title} left of the line, {both[1].title} right of it · drag the line"
        alts = [f"{side}: {figures.describe(r, measure)}" for side, r in zip(SIDES, (a, b), strict=True)]
        about, over = partial(_of_map, f"{name}-overlaid", measure, name, both), (drawn(1, 1100), alts[1])
        show.figure(f"{name}-overlaid", drawn(0, 1100), caption, a, measure, about=about, alt=alts[0], over=over)
        return
    for i, column in enumerate(st.columns(2)):
        with column:
            if found[i] is None:
                notice = "Appears as it is measured." if busy else "Not measured yet: **Run** measures what is missing."
                show.empty(both[i].title.strip("*"), notice, MAP_HEIGHT)
            else:
                show.figure(f"{name}-map-{SIDES[i]}", drawn(i, 560), both[i].title, found[i], measure)


def _view(name: str, side: Side) -> View:
    """Return how a side's map shows a probe's result: size, window of tokens, answer and sinks."""
    result, count = side.results[name], COUNT_SINKS.value
    look = View(height=MAP_HEIGHT, width_px=560, window=inputs.window(TOKENS.key, result.n_tokens, WINDOW))
    return replace(look, answer_start=result.answer_start, sinks=side.sinks(name), count_sinks=count)


def _difference(name: str, picture: Picture, both: Both) -> None:
    """Draw the map of B - A where cells mean the same on both sides; else a line that says why none can be drawn."""
    a, b = (side.results[name] for side in both)
    measure = measures(picture, Look(SIDES_BRANCH.value, SIDES_SHADE.value))[0]
    if reason := side_by_side.no_difference(a, b, a.measures[measure].spec.dims):
        st.caption(f"**No map of B − A:** {show.plain(reason)}")
        return
    key, sinks = f"{name}-difference", {pos for side in both for pos in side.sinks(name)}
    fig = figures.difference_map(a, b, measure, replace(_view(name, both[0]), sinks=tuple(sorted(sinks))), True)
    caption = "**B − A** · orange: larger in B, blue: larger in A"
    if a.n_layers != b.n_layers:
        deep, shallow = ("A", "B") if a.n_layers > b.n_layers else ("B", "A")
        caption += (
            f" · on relative depth: {shallow}'s {min(a.n_layers, b.n_layers)} layers, each against {deep}'s nearest"
        )
    show.figure(key, fig, caption, about=partial(_of_map, key, measure, name, both))


def _of_map(key: str, measure: str, name: str, both: Both) -> None:
    """Fill the Details of a map of both sides."""
    results = {side.letter: side.results[name] for side in both}
    table = partial(export.csv_of_sides, results, measure) if all(r.complete for r in results.values()) else None
    details(key, show.meaning(results["A"], measure), table, name, both)


def details(key: str, what: str, table: Callable[[], str] | None, name: str, both: Both) -> None:
    """Fill Details of both sides: what is shown, notes, the numbers (`table`, None while they are not complete), and
    where they came from."""
    st.markdown(what)
    show.notes(note for side in both for note in side.results[name].notes)
    if table is not None:
        show.csv(key, table, key, "CSV of both")
    for side in both:
        show.origin(f"Where {show.plain(side.name)} came from", side.results[name])
