"""A comparison: side B with its own model, prompt or parameters next to those of side A, remembered over page changes
and in the URL (names, ids and settings; never a prompt's text); and what the page shows of each probe: curves over each
other, maps side by side, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core import figures
from ed_core.cases import case_study, export
from ed_core.depth import say, side_by_side
from ed_core.depth.sample import READS
from ed_core.depth.side_by_side import COMPARED, SIDES, Pair
from ed_core.errors import EffectiveDepthError, ParameterError, PromptError
from ed_core.figures import View
from ed_core.figures.pictures import Look, draw
from ed_core.figures.pictures import measures as named
from ed_core.models import controls, tokens
from ed_core.models.bundled import CHARACTERS, WORDS, example_of, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import LayerSkip, Probe, find
from ed_core.probes.base import Picture, described
from ed_core.results import lookup
from ed_core.types import ProbeResult, Prompt, Request
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
    number,
    of_probe,
    several,
    text,
    value,
)

if TYPE_CHECKING:
    from plotly.basedatatypes import BaseFigure

MODES = {"models": "Two models", "prompts": "Two prompts", "parameters": "Two parameters"}
TITLES = {name: find(name).title for name in COMPARED}
DEFAULT = tuple(name for name in COMPARED if find(name).first_page)
MANY = 1 << 20  # tokens: more than any probe asks for
WINDOW = 48  # tokens; more get a slider
CURVE_HEIGHT, MAP_HEIGHT = 300, 400


# -------------------------------------------------------------------- what the URL carries


def maps(name: str) -> list[Picture]:
    """Return a probe's pictures that can be side by side: those with a name to choose by, else the first."""
    declared = find(name).pictures or ()
    return [picture for picture in declared if picture.choice] or list(declared[:1])


MODE = choice("compare", "two.mode", "models", MODES.keys(), "Compare", MODES)
MEASURES = several("measures", "two.probes", list(DEFAULT), COMPARED, "Measures")
PROBE = choice("probe", "two.probe", LayerSkip.name, COMPARED, "Probe", TITLES)
LOOK = (
    OVERLAID,
    COUNT_SINKS,
    SIDES_BRANCH,
    SIDES_SHADE,
    *SIDES_MAPS.values(),
)  # of both
COMMON = (MODE, MEASURES, PROBE, *LOOK)
RUN = Input("second_run", "two.run", "", lambda short: lookup.by_short(short).request.key[: lookup.SHORT])


def of_model(page: str = "two") -> tuple[Input, Input, Input, Input]:
    """Return the inputs of `second_model` that a link carries: model, precision, control, seed. `page`: prefix of their
    keys."""
    kinds = {NONE: NONE} | controls.KINDS
    return (
        text("second", f"{page}.model", label="Model B"),
        choice("second_precision", f"{page}.precision", picker.AUTO, picker.PRECISIONS, "Model B: precision"),
        choice("second_control", f"{page}.control", NONE, kinds.keys(), "Model B: control", kinds),
        number("second_seed", f"{page}.control.seed", 0, 0, controls.MOST, int, "Seed"),
    )


def open_link() -> None:
    """Fill the inputs of side B from the URL where it decides; else with what makes a first comparison."""
    link.own(COMMON)
    inputs.put_defaults(COMMON)
    more: tuple[Input, ...]
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
        inputs.put(first_twin() | ({OVERLAID.key: True} if MODE.value == "models" else {}))
    if link.follows(RUN):
        prompt = lookup.by_short(RUN.value).request.prompts[0]
        prompt_box.fill(prompt.text, prompt.answer, side="two.")
    elif value("two.text") is None and not value("two.example"):
        example = value("example", "")
        here = picker.model()
        others = (id for id in (example_of(here), *(p["id"] for p in load_prompts(here))) if id != example)
        inputs.put({"two.example": prompt_box.harder(example) or next(others)})
    if (example := value("two.example")) and example != before:
        prompt_box.pick(example, "two.")


def first_model(of: str) -> dict[str, str]:
    """Return the inputs of the model on side B of linear maps at first: the other bundled model of the same tokens; for
    any other model as `first_twin`. `of`: prefix of the inputs' keys."""
    here = picker.model()
    alike = next((names for names in (WORDS, CHARACTERS) if here in names), ())
    other = next((name for name in alike if name != here), "")
    return {f"{of}.model": other} if other else first_twin(of)


def first_twin(of: str = "two") -> dict[str, str]:
    """Return the inputs of the model on side B at first: the model's own untrained copy, for which results are shipped;
    for a remote model, which can have none, the first other one in the list. `of`: prefix of the inputs' keys."""
    here = picker.model()
    spec = picker.current().spec
    if spec is None or spec.weights_here:
        return {f"{of}.model": here, f"{of}.control": "untrained"}
    return {f"{of}.model": next((name for name in picker.names() if name != here), here)}


def write_link(runs: tuple[str, str]) -> None:
    """Write both sides into the URL: bundled prompts by their id, others by the id of a run on them. `runs`: of each
    side, "" without one."""
    inputs.put({RUN.key: "" if value("two.example") else runs[1][: lookup.SHORT]})
    link.write("" if value("example") else runs[0])


# -------------------------------------------------------------------- inputs


def mode() -> str:
    """Draw the choice of what differs between the sides; returns "models", "prompts" or "parameters"."""
    row = st.container(horizontal=True, vertical_alignment="center", key="two-inputs")
    chosen: str = MODE.draw(row.selectbox, label_visibility="collapsed", width=190)
    return chosen


TAIL = 24  # characters of a prompt that its label shows: prompts of one task begin alike


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a model, a prompt, and probes with their parameters."""

    model: ModelRef
    prompt: Prompt
    probes: Mapping[str, Probe]

    @property
    def requests(self) -> dict[str, Request]:
        """The requests of this side, by probe."""
        return {name: probe.request(self.model, self.prompt) for name, probe in self.probes.items()}


def labels(a: Side, b: Side) -> tuple[str, str]:
    """Return a label for each side, in a few words what differs: model, revision, device, end of the prompt,
    parameters; the model's name where nothing does."""
    both = []
    for mine, theirs in ((a, b), (b, a)):
        prompt = (
            f"“{case_study.cut(mine.prompt.text, TAIL)}”" if mine.prompt.identity() != theirs.prompt.identity() else ""
        )
        one, other = mine.model, theirs.model
        model = controls.full_name(one, one.precision != other.precision) if one != other else ""
        apart = [one.revision[:10] * (one.revision != other.revision), one.device * (one.device != other.device)]
        words = [model, *apart, prompt, *_differing(mine, theirs)]
        both.append(", ".join(filter(None, words)) or mine.model.name)
    return both[0], both[1]


def _differing(mine: Side, theirs: Side) -> Iterator[str]:
    """Yield in words each parameter in which one side's probes differ from the other's."""
    for name, probe in mine.probes.items():
        other = theirs.probes.get(name, probe)
        for f in fields(probe):
            if (value := getattr(probe, f.name)) != getattr(other, f.name):
                label, words = described(f, value)
                yield f"{label.lower()}: {words}"


def sides(spec: ModelRef, row: DeltaGenerator, a: DeltaGenerator, b: DeltaGenerator) -> tuple[Side, Side]:
    """Draw the inputs of both sides and return the sides: the chosen model on the prompt in the box, described in `a`,
    and side B, chosen in `b`; the measures are in the `row` of Run. An `EffectiveDepthError` says what is wrong with
    side B."""
    prompt = prompt_box.prompt()
    if MODE.value != "prompts":
        a.markdown(f"**A** {show.plain(spec.name)} · {show.plain(spec.precision)}", width="content")
        b.markdown("**B**", width="content")
    if MODE.value == "parameters":
        mine, theirs = _parameters(row, a, b)
        rest = {name: find(name)() for name in READS} if mine.name in READS else {}
        return Side(spec, prompt, rest | {mine.name: mine}), Side(spec, prompt, rest | {theirs.name: theirs})
    if MODE.value == "models":
        other = second_model(spec, b), prompt
    else:
        with b:
            other = spec, _prompt()
    probes = _probes((prompt, other[1]), row)
    return Side(spec, prompt, probes), Side(*other, probes)


def previews(first: Side, other: Side) -> list[list[str] | None]:
    """Return the tokens of each side, by the models' tokenizer files; None where only the opened model could tell."""
    encodings = [tokens.preview(side.model, side.prompt) for side in (first, other)]
    return [None if one is None else list(one.tokens) for one in encodings]


def second_model(spec: ModelRef, row: DeltaGenerator, of: str = "two") -> ModelRef:
    """Draw the boxes of the second model behind a button in the `row` and return the model, or the control chosen for
    it. `of`: prefix of the inputs' keys. An `EffectiveDepthError` says why none can be used."""
    model_, precision_, control_, seed_ = of_model(of)
    name, kind = model_.value or "", control_.value
    title = name + (f", {controls.KINDS[kind]}" if kind in controls.KINDS else "")
    box = row.popover(show.plain(title or "choose a model"), key=f"box-{of}-model")
    about: dict[str, Any] = dict(options=picker.names(), accept_new_options=True, help=picker.about_model())
    name = (model_.draw(box.selectbox, **about) or "").strip()
    precision = precision_.draw(box.segmented_control, help=picker.ABOUT_PRECISION)
    row_of_control = box.container(horizontal=True, vertical_alignment="bottom")
    kind = control_.draw(row_of_control.selectbox, width=190, help=CONTROL)
    seed = seed_.draw(row_of_control.number_input, width=130, disabled=kind == NONE)
    second = picker.chosen(name, precision, picker.device())
    if not (spec.weights_here and (second.spec is None or second.spec.weights_here)):
        box.caption(NO_TWIN)
    # one download is offered at a time
    if second.missing is not None and picker.current().missing is None:
        downloads.section(second.missing)
    if second.spec is None:
        raise EffectiveDepthError(second.trouble)
    if spec.weights_here:
        picker.say_what_leaves(second.spec)
    return second.spec if kind == NONE else second.spec.twin(kind, int(seed))


def _prompt() -> Prompt:
    """Draw the boxes of side B's prompt and return it; a `PromptError` says what is wrong."""
    with prompt_box.boxes("two.", "B", "Its answer", ABOUT_PROMPT):
        prompt_box.choose_example("two.")
    second = replace(prompt_box.prompt(), text=value("two.text", ""), answer=value("two.answer", ""))
    if wrong := prompt_box.wrong_with(second):
        raise PromptError(f"Second prompt: {wrong}")
    return second


def _parameters(row: DeltaGenerator, a: DeltaGenerator, b: DeltaGenerator) -> tuple[Probe, Probe]:
    """Draw forms of one probe with two sets of parameters and return both probes: the first, in `a`, has those of its
    own page."""
    box = row.popover(f"Measure: {find(PROBE.value).title}", key="box-two-probe")
    chosen = PROBE.draw(box.segmented_control, label_visibility="collapsed")
    first = a.popover("first set", key="box-two-first")
    first.caption("As on this probe's own page")
    mine = probe_page.form(find(chosen), first)
    return mine, probe_page.form(find(chosen), b.popover("second set", key="box-two-second"), prefix="two.")


def _probes(prompts: tuple[Prompt, Prompt], row: DeltaGenerator) -> dict[str, Probe]:
    """Draw the choice of probes and return them by name, with their defaults; those that read an answer only where both
    sides have one. Raises a `ParameterError` where none is left."""
    box = row.popover(f"Measures ({len(MEASURES.value)})", key="box-two-probes")
    look: dict[str, Any] = dict(format_func=TITLES.get, selection_mode="multi", label_visibility="collapsed")
    names = MEASURES.draw(box.pills, **look)
    chosen = {name: find(name)() for name in COMPARED if name in names}
    mute = [probe for probe in chosen.values() if any(lacks_answer(probe, prompt) for prompt in prompts)]
    if mute:
        box.caption(f"{' and '.join(p.title for p in mute)} left out: an answer is needed on both sides.")
    probes = {name: probe for name, probe in chosen.items() if probe not in mute}
    if not probes:
        raise ParameterError("No measure is chosen; choose at least one.")
    return probes


def lacks_answer(probe: Probe, prompt: Prompt) -> bool:
    """Return whether this probe explains an answer that the prompt does not have."""
    if prompt.answer:
        return False
    try:
        probe.check(MANY, None)
    except PromptError:
        return True
    return False


# -------------------------------------------------------------------- what is shown of a probe


@dataclass(frozen=True)
class Map:
    """The map of a probe that the page's inputs ask for, and which measure it shows."""

    picture: Picture
    look: Look
    measure: str


@dataclass(frozen=True)
class Shown:
    """One side of one probe: its result (None until it has one), and the name of the side."""

    side: Side
    result: ProbeResult | None
    name: str

    @property
    def known(self) -> ProbeResult:
        """The result of a side that has one."""
        assert self.result is not None
        return self.result


def along(name: str) -> bool:
    """Return whether the columns of a probe's maps are tokens."""
    return any("pos" in find(name).spec(measure).dims for p in maps(name) for measure in named(p, Look())[:1])


def map_inputs(names: Sequence[str], results: Sequence[Sequence[ProbeResult | None]]) -> None:
    """Draw the inputs that say which measures the maps of these probes show, and which tokens. `results`: of each
    side."""
    some = [next((r for r in of_side if r is not None), None) for of_side in results]
    laid = alike(*some)
    if not laid and not any(along(name) for name in names):
        return
    row = st.container(key="map-inputs").popover(
        "What the maps show", type="tertiary", icon=":material/tune:", key="box-two-maps"
    )
    shown = [maps(name) for name in names]
    first = [picture.measures[0] for of_probe in shown for picture in of_probe]
    if any("{branch}" in measure for measure in first):
        SIDES_BRANCH.draw(row.segmented_control)
    for name in names:
        if name in SIDES_MAPS:
            SIDES_MAPS[name].draw(row.segmented_control)
    if any("{shade}" in measure for measure in first):
        SIDES_SHADE.draw(row.selectbox, width=190)
    for n in sorted({r.n_tokens for r in some if r is not None}):
        if n > WINDOW:
            row.slider(f"Tokens shown of {n}", 0, n - 1, (n - WINDOW, n - 1), key=f"two.window.{n}", width=220)
    if laid:
        OVERLAID.draw(row.toggle)
    if any(probe_page.sinks_of(r) for of_side in results for r in of_side if r is not None):
        COUNT_SINKS.draw(row.toggle)


def alike(a: ProbeResult | None, b: ProbeResult | None) -> bool:
    """Return whether there are two results whose maps have the same cells, so that one can be drawn over the other."""
    return a is not None and b is not None and a.n_layers == b.n_layers and a.tokens == b.tokens


def map_of(name: str, first_token: bool) -> Map | None:
    """Return the map of a probe that the page's inputs ask for; None for a probe without maps."""
    if not maps(name):
        return None
    look = Look(SIDES_BRANCH.value, SIDES_SHADE.value, first_token=first_token)
    chosen = SIDES_MAPS[name].value if name in SIDES_MAPS else ""
    picture = next((p for p in maps(name) if p.choice == chosen), maps(name)[0])
    return Map(picture, look, named(picture, look)[0])


def section(
    name: str,
    both: Sequence[Shown],
    found: Sequence[Pair],
    lines: Sequence[Mapping[str, int | None]],
    busy: bool,
) -> None:
    """Draw a probe's section: its curves, the two maps, and the map of differences next to what it comes to in words.
    `found`: its curves once both sides are complete. `lines`: depths by criterion, of each side. `busy`: it is being
    computed, so the maps' places are kept; otherwise nothing is drawn where nothing was measured."""
    if not busy and all(s.result is None for s in both):
        return
    first_token = all(getattr(s.side.probes[name], "first_token", True) for s in both)
    shown = map_of(name, first_token)
    st.markdown(f"##### {find(name).title}")
    for column, pair in zip(st.columns(2), found, strict=False):
        key, names = f"{name}-{pair.curve.name}", (both[0].name, both[1].name)
        fig = figures.pair_curves(pair, names, CURVE_HEIGHT)
        about = partial(about_curve, key, name, pair, both)
        show.figure(key, fig, f"**{pair.curve.title}**", about=about, place=column)
    if shown is not None:
        st.caption(f"The maps: {shown.picture.caption}; one colour scale for both.")
        if OVERLAID.value and all(measured(s, shown) for s in both) and alike(*(s.result for s in both)):
            overlaid(name, shown, both, lines)
        else:
            for i, column in enumerate(st.columns(2)):
                with column:
                    side_map(name, shown, both, i, lines[i], busy)
    left, right = st.columns(2) if shown is not None else (st.container(), st.container())
    if shown is not None and found:
        with left:
            difference(name, shown, both, first_token)
    for pair in found:
        right.caption(show.plain(say.pair(pair)))


def side_map(name: str, shown: Map, both: Sequence[Shown], i: int, lines: Mapping[str, int | None], busy: bool) -> None:
    """Draw the map of side `i`, its colours those of the other side too. `lines`: its depths by criterion."""
    result = both[i].result
    title = f"{SIDES[i]} · {show.plain(both[i].name)}"
    if not measured(both[i], shown):
        notice = "Appears as it is measured." if busy else "Not measured yet: **Run** measures what is missing."
        return show.empty(title, notice, MAP_HEIGHT)
    about = partial(about_map, f"{name}-{SIDES[i]}", shown.measure, [both[i]])
    fig = drawn(name, shown, both, i, lines)
    show.figure(f"{name}-map-{SIDES[i]}", fig, f"**{title}**", result, shown.measure, about=about)


def overlaid(name: str, shown: Map, both: Sequence[Shown], lines: Sequence[Mapping[str, int | None]]) -> None:
    """Draw both maps in one place, B's over A's right of a line that is dragged, or moved by the arrow keys."""
    lower, upper = (drawn(name, shown, both, i, lines[i], 1100) for i in (0, 1))
    names = [f"**{side}** {show.plain(s.name)}" for side, s in zip(SIDES, both, strict=True)]
    about = partial(about_map, f"{name}-overlaid", shown.measure, both)
    caption = f"{names[0]} left of the line, {names[1]} right of it · drag the line"
    alts = [f"{side}: {figures.describe(s.known, shown.measure)}" for side, s in zip(SIDES, both, strict=True)]
    over = upper, alts[1]
    show.figure(f"{name}-overlaid", lower, caption, both[0].result, shown.measure, about=about, alt=alts[0], over=over)


def measured(side: Shown, shown: Map) -> bool:
    """Return whether a side has a result with this map's measure."""
    return side.result is not None and shown.measure in side.result.measures


def drawn(
    name: str, shown: Map, both: Sequence[Shown], i: int, lines: Mapping[str, int | None], wide: int = 560
) -> BaseFigure:
    """Return the figure of side `i`'s map, `wide` pixels wide, in colours common to both sides."""
    result, other = both[i].known, both[1 - i]
    look: dict[str, Any] = {"sinks": probe_page.sinks_of(result), "count_sinks": COUNT_SINKS.value}
    theirs = other.result if measured(other, shown) else None
    pane = replace(view(result), beside=theirs, width_px=wide, side=SIDES[i], depth_lines=lines, **look)
    return draw(shown.picture, result, pane, shown.look)


def difference(name: str, shown: Map, both: Sequence[Shown], first_token: bool) -> None:
    """Draw the map of B - A where cells mean the same on both sides; else a line that says why none can be drawn."""
    a, b = (s.known for s in both)
    if reason := side_by_side.no_difference(a, b, a.measures[shown.measure].spec.dims):
        st.caption(f"**No map of B − A:** {show.plain(reason)}")
        return
    key = f"{name}-difference"
    sinks = sorted({pos for r in (a, b) for pos in probe_page.sinks_of(r)})
    pane = replace(view(a), sinks=tuple(sinks), count_sinks=COUNT_SINKS.value)
    fig = figures.difference_map(a, b, shown.measure, pane, first_token)
    about = partial(about_map, key, shown.measure, both)
    caption = "**B − A** · orange: larger in B, blue: larger in A"
    if a.n_layers != b.n_layers:
        deep, shallow = ("A", "B") if a.n_layers > b.n_layers else ("B", "A")
        caption += (
            f" · on relative depth: {shallow}'s {min(a.n_layers, b.n_layers)} layers, each against {deep}'s nearest"
        )
    show.figure(key, fig, caption, about=about)


def view(result: ProbeResult) -> View:
    """Return how a side's map shows a result: size, window of tokens, and the answer."""
    n = result.n_tokens
    window = st.session_state.get(f"two.window.{n}", (n - WINDOW, n - 1)) if n > WINDOW else None
    return View(height=MAP_HEIGHT, width_px=560, window=window, answer_start=result.answer_start)


def about_curve(key: str, probe: str, pair: Pair, both: Sequence[Shown]) -> None:
    """Fill a curve's Details: what it is, both sides' numbers, and where they came from."""
    name = f"{probe}.{pair.curve.name}"
    st.markdown(f"**`{name}`** ({pair.curve.unit}), dims ({pair.curve.x}): {pair.curve.title}.")
    st.markdown(RELATIVE if pair.relative else EQUAL)
    show.csv(key, lambda: export.pair_csv(pair), name, "CSV of both")
    _origins(both)


def about_map(key: str, measure: str, of: Sequence[Shown]) -> None:
    """Fill a map's Details, of one side or of both: its measure, the numbers, and where they came from."""
    results, some = {side: s.known for side, s in zip(SIDES, of, strict=False)}, of[0].known
    show.meaning(some, measure)
    show.notes(note for s in of for note in s.known.notes)
    name = f"{some.request.probe}.{measure}"
    if not all(r.complete for r in results.values()):
        pass
    elif len(of) > 1:
        show.csv(key, lambda: export.csv_of_sides(results, measure), name, "CSV of both")
    else:
        show.csv(key, lambda: export.csv(some, measure), name)
    _origins(of)


def _origins(of: Sequence[Shown]) -> None:
    """Show the birth certificate of each side's result."""
    for shown in of:
        show.origin(f"Where {show.plain(shown.name)} came from", shown.known)


ABOUT_PROMPT = (
    "Encoded as the first one is: same template, same special tokens.",
    "Optional; appended without a separator.",
)
NO_TWIN = "A model that is elsewhere has no copy here: a copy is made of a model's own files, which stay there."
CONTROL = "A copy of the second model in its place: untrained (random weights), or its own layers in random order."
RELATIVE = """The models have different numbers of layers, so both stand on **relative depth**: layer l of L at (l + 1)
/ L, as the effective depth's ratio counts, a point of the stream with l layers behind it at l / L. Differences in the
text are read at the shallower model's layers, where the deeper one's value is taken from the straight line between its
layers; in a map of differences each layer of the shallower model is compared with the deeper one's nearest."""
EQUAL = "Both have the same number of layers: the bars below are B − A, layer by layer, on a scale of their own."
