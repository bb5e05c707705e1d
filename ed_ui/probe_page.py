"""What the pages of single probes share: prompt, the probe's own parameters as a form, Run, the live part, and how the
prompt compares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import pruning, sinks
from ed_core.figures import View, pictures
from ed_core.figures.pictures import Look
from ed_core.probes import Continuation, Probe, find
from ed_core.results import aggregate, lookup
from ed_core.service import estimate
from ed_core.sources import permits, specs
from ed_core.types import ModelSpec, ProbeResult
from ed_ui import (
    case_studies,
    chart,
    control_model,
    inputs,
    link,
    live,
    picker,
    prompt_box,
    running,
    show,
    spread_panel,
)
from ed_ui.inputs import Input, boxed, of_probe, span

WINDOW = 64
MAP_HEIGHT = 520
LOOPED = "Not for a looped model: its file holds each layer once, and layers are counted here pass by pass."
NO_ANSWER = """This measures the effect on an **answer**, and there is none. Type one beside the prompt, or take the
model's own."""
Panels = Callable[[ProbeResult, View], None]


@dataclass(frozen=True)
class Page:
    """A page for one probe.

    Its main map is the first of the probe's pictures, seen as `look` says (which also gets a result), or what `figure`
    draws; `beneath` it stands what a result has to say of it (and which notes that has `said`), for the map would move
    if that came above it; `more` draws what stands below, the probe's other pictures where nothing is given. `teach`
    says what Run would do. `texts`: short paragraphs under headings of their own, what the papers saw, what to look
    for, what is fixed by construction, what to beware of. `inputs` draws those that the map needs, `parameters` are
    what a link carries of them; `over_tokens`: whether the map has tokens to choose a window of; `sound`: whether a
    result may be compared with others. `needs_answer` tells whether the probe, with its parameters, reads the answer's
    tokens: the page then offers the model's own continuation as one. `height`: of the map, from the number of layers (0
    where unknown). `over_sinks`: whether its means may leave the sinks out. `ask` draws the probe's inputs in place of
    a form of all its parameters. `controlled`: whether a twin can be measured beside it."""

    probe: type[Probe]
    teach: str
    texts: Mapping[str, str] = field(default_factory=dict)
    more: Panels | None = None
    look: Callable[[ProbeResult], Look] = lambda _: Look()
    beneath: Callable[[ProbeResult], None] = lambda _: None
    said: Callable[[str], bool] = lambda _: False
    figure: Panels | None = None
    inputs: Callable[[], None] | None = None
    needs_answer: Callable[[Probe], bool] = lambda _: False
    over_tokens: bool = True
    sound: Callable[[ProbeResult], bool] = lambda _: True
    parameters: tuple[Input, ...] = ()
    height: Callable[[int], int] = lambda _: MAP_HEIGHT
    over_sinks: bool = False
    ask: Callable[[], Probe] | None = None
    controlled: bool = True

    def show(self) -> None:
        """Everything on such a page; what is below the map may come and go, the map itself stays where it is."""
        probe = self.probe
        link.own(
            (
                *of_probe(probe),
                *self.parameters,
                *[inputs.COUNT_SINKS] * self.over_sinks,
                span("tokens", "window.page"),
            )
        )
        link.say_troubles()
        prompt_box.draw()
        place = running.row_begins()
        more = options(place, of_probe(probe))
        with more:
            asked = self.ask() if self.ask is not None else form(probe, row=more)
        chosen = picker.current()
        if chosen.spec is None:
            texts(self.texts)
        elif self.needs_answer(asked) and not prompt_box.prompt().answer:
            _ask_for_answer(chosen.spec, place)
            texts(self.texts)
        else:
            request = asked.request(chosen.spec, prompt_box.prompt())
            requests = {probe.name: request}
            batch = running.batch(probe.name, control_model.with_control(requests) if self.controlled else requests)
            top_row(probe.name, batch, place=place, with_control=more if self.controlled else None)
            live.follow(batch, self._panels)
            result = batch.complete(probe.name)
            if result is not None and self.sound(result):
                alike = control_model.alike(batch, probe.name, getattr(asked, "first_token", True))
                spread_panel.section(asked, result, control_model.result(batch, probe.name), alike)
        with st.expander("What this measures, exactly", expanded=False):
            st.markdown(probe.__doc__)

    def _panels(self, batch: running.Batch) -> None:
        name, result = self.probe.name, batch.result(self.probe.name)
        link.write(result.request.key if result is not None and result.complete else "")
        status(batch, name)
        if self.inputs is not None:
            with st.container(key="map-inputs"):
                self.inputs()
        # what is drawn while a result arrives stays in the place of what stood there before; the words come behind the
        # map, which would move them
        height = min(self.height(specs.n_layers(batch.requests[name].models[0]) or 0), show.TALLEST)
        place, below, words = show.place("map", height), st.container(), st.container()
        if result is None:
            with place:
                show.empty(self.probe.title, "" if batch.running else self.teach, height, first=True)
            with words:
                texts(self.texts)
            return
        seen = replace(
            view(result),
            sinks=sinks_of(result),
            count_sinks=inputs.COUNT_SINKS.value,
            control=control_model.result(batch, name),
            control_name=control_model.name(),
        )
        with place:
            (self.figure or self._map)(result, seen)
        with below:
            self.beneath(result)
            if self.over_tokens:
                window(result, seen, self.over_sinks)
            show.notes(note for note in result.notes if not self.said(note))
        with words:
            texts(self.texts)
        (self.more or self._others)(result, seen)

    def _map(self, result: ProbeResult, seen: View) -> None:
        look = self.look(result)
        one = next(pictures.pictures(result, look))
        said = pictures.caption(one, result, look)
        show.picture("map", one, result, seen, look, said[:1].upper() + said[1:])

    def _others(self, result: ProbeResult, seen: View) -> None:
        for i, one in enumerate(list(pictures.pictures(result))[1:]):
            show.picture(f"more-{i}", one, result, seen)


def options(place: running.Place, own: Iterable[Input] = ()):
    """A popover beside Run for what most people leave as it is; its label says how many of the page's `own` inputs are
    off their defaults."""
    changed = sum(one.value != one.default for one in own)
    label = f"Options ({changed} changed)" if changed else "Options"
    return place.row.popover(label, icon=":material/tune:", type="tertiary", key="options")


def top_row(page: str, batch: running.Batch, with_control=None, **more):
    """Run and Cancel, Save; gives the row. `with_control`: where the control is chosen, where there can be one. `more`:
    what `running.run_row` is told in place of what the prompt box says."""
    told = {"ready": prompt_box.ready(), "n_tokens": prompt_box.n_tokens()} | more
    row = running.run_row(page, batch, **told)
    if with_control is not None:
        control_model.picker(with_control, batch)
    case_studies.save_button(row, page, batch)
    return row


def texts(paragraphs: Mapping[str, str]) -> None:
    """Short paragraphs side by side."""
    if not paragraphs:
        return
    for column, (heading, text) in zip(st.columns(len(paragraphs)), paragraphs.items(), strict=True):
        column.caption(f"**{heading}:** {text}")


def status(batch: running.Batch, name: str = "") -> None:
    """What is going on, and what went wrong: always at least one line, so that nothing moves when there is something to
    say. `name`: whose result it is about, where a page shows several."""
    with st.container(key="status"):
        if batch.running:
            live.status(batch)
        elif result := batch.results.get(name or next(iter(batch.results), "")):
            shipped = " · :gray-badge[stored example]" if lookup.is_shipped(result.request.key) else ""
            made = result.provenance
            st.markdown(
                f"Measured on {result.n_tokens} tokens, {made.get('time', '')[:16].replace('T', ' ')} UTC, in "
                f"{took(made.get('seconds', 0))}{shipped}"
            )
        elif troubles := running.troubles(batch):
            for message in troubles:
                show.error(message)
        elif batch.errors:
            st.markdown("Cancelled: nothing of that run is kept.")
        else:
            st.markdown("Nothing measured yet for this prompt, model and parameters.")


def offer(
    row: Any,
    results: Sequence[ProbeResult],
    order: Sequence[int],
    cost: Mapping[str, float],
    key: str,
    ready: bool,
    label: str,
    told: str,
) -> None:
    """An order of layers for other tools: a list (called `label`) and a merge, with what it costs in them; for a model
    that came as a GGUF file also the command that writes one without the layers left out. `told`: help of both."""
    model, n_layers = results[0].request.models[0], results[0].n_layers
    evidence = {**cost, "n_prompts": len(results), "n_tokens": sum(r.n_tokens for r in results)}
    looped = specs.n_passes(model) not in (1, None)
    off = looped or not (ready and order)
    look = {"icon": ":material/download:", "disabled": off, "help": LOOPED if looped else told}
    layers = partial(pruning.order_list, n_layers, order, model.source, evidence)
    row.download_button(label, layers, f"layers-{key}.json", "application/json", key=f"json-{key}", **look)
    merge = partial(pruning.passthrough, order, model.source, evidence)
    row.download_button("mergekit", merge, f"merge-{key}.yaml", "text/yaml", key=f"yaml-{key}", **look)
    packed = None if off else specs.of_gguf(model)
    if packed and (command := pruning.llama_quantize(order, n_layers, packed.file.name)):
        st.code(command, language=None, wrap_lines=True)


def took(seconds: float | int) -> str:
    """How long a measurement took."""
    return f"{seconds:.2g} s" if seconds < 10 else estimate.duration(seconds)


def view(result: ProbeResult) -> View:
    """Window and selected token of a full-width panel."""
    n = result.n_tokens
    return View(
        window=inputs.window("window.page", n, WINDOW),
        selected=inputs.token(n),
        answer_start=result.answer_start,
        width_px=1100,
        height=MAP_HEIGHT,
        uirevision="page",
    )


def sinks_of(result: ProbeResult) -> tuple[int, ...]:
    """Positions of the prompt's sinks, where its contributions on the same model are at hand."""
    probe, asked = sinks.PROBE, result.request
    if asked.probe != probe and result.complete:
        result = lookup.find_shown(find(probe)().request(asked.models[0], asked.prompts[0]))
    return tuple(s.pos for s in (result is not None and sinks.of_result(result)) or ())


def behind(seen: View, curve: str, first_token: bool = True) -> dict:
    """The control's aggregate over the same tokens, under its name, where the view has one."""
    if seen.control is None:
        return {}
    return {seen.control_name: aggregate.without(seen.control, seen.uncounted, first_token)[curve]}


def told_of_sinks(seen: View) -> str:
    """What a caption of means says of the sinks, where there are any."""
    return f", sinks (◆) {'counted' if seen.count_sinks else 'left out'}" if seen.sinks else ""


def profile(result: ProbeResult, measure: str, seen: View, over: str = "layers") -> None:
    """The selected token's course over the depth, where one is selected."""
    if seen.selected is not None:
        fig, caption = (
            chart.once(figures.token_profile, result, measure, seen.selected),
            f"Token {seen.selected} over the {over}",
        )
        show.figure("profile", fig, caption, result, measure)


def window(result: ProbeResult, seen: View, over_sinks: bool = False) -> None:
    """Beside a figure over tokens: which ones it shows, the way back from a selected one, and whether means count the
    sinks, where there are any."""
    n = result.n_tokens
    row = st.container(horizontal=True, vertical_alignment="bottom", key="window")
    if n > WINDOW:
        limits = dict(min_value=0, max_value=n - 1)
        inputs.widget(row.slider, "Tokens shown", "window.page", seen.window, width=420, **limits)
    show.token_box(row, result.tokens)
    if over_sinks and seen.sinks:
        inputs.COUNT_SINKS.draw(row.toggle, "Count the sinks (◆) in the means")


def _ask_for_answer(spec: ModelSpec, place: running.Place) -> None:
    """This probe reads the answer's tokens: type one, or take what the model itself would write."""
    st.info(NO_ANSWER, icon=":material/help:")
    label, key = "Tokens of the model's continuation", "continuation.n_tokens"
    n_tokens = st.number_input(label, min_value=1, max_value=16, value=2, key=key, width=260)
    request = Continuation(n_tokens=n_tokens).request(spec, prompt_box.prompt())
    batch = running.batch("continuation", {"continuation": request})
    running.run_row("continuation", batch, prompt_box.ready(), prompt_box.n_tokens(), place)
    live.follow(batch, _offer_answer)


def _offer_answer(batch: running.Batch) -> None:
    status(batch)
    if (result := batch.complete("continuation")) is not None:
        text = result.provenance["continuation"]
        given = (result.request.prompts[0].text, text)
        label = f"Use {show.code(text, 60)} as the answer"
        st.button(label, icon=":material/check:", on_click=prompt_box.fill, args=given)


def _width(label: str) -> int:
    """Of an input, in pixels: so that its label stands on one line, with the question mark behind it."""
    return max(150, 45 + 7 * len(label))


def form(probe: type[Probe], names: Collection[str] | None = None, row=None, prefix: str = "") -> Probe:
    """The probe with the parameters chosen in a row of inputs, or in a `row` that is there already; of `names` only
    those. A `ParameterError` says what is wrong with one. `prefix`: of the inputs' keys, where a page has the same form
    twice."""
    hints = probe.hints()
    row = row or st.container(horizontal=True, vertical_alignment="bottom", key=f"form-{prefix}{probe.name}")
    values = {}
    for f in (f for f in fields(probe) if names is None or f.name in names):
        meta, kind = f.metadata, hints[f.name]
        label, held = meta["label"] or f.name.replace("_", " "), boxed(f.default, meta["empty"])
        key = f"{prefix}{probe.name}.{f.name}"
        if meta["file"]:
            own = inputs.value(key, held) == f.default
            off = permits.why_not(permits.file, f"A path as {label.lower()}") if own else ""
            draw, more = row.text_input, {"width": 260, "disabled": bool(off), "help": off or meta["help"]}
        elif meta["choices"]:
            draw, more = row.segmented_control, {"options": meta["choices"], "required": True}
            more["format_func"] = lambda choice, labels=meta["labels"]: labels.get(choice, choice)
        elif kind is bool:
            draw, more = row.toggle, {}
        elif kind in (int, float):
            draw, more = row.number_input, {"min_value": meta["low"], "max_value": meta["high"], "width": _width(label)}
        else:
            draw, more = row.text_input, {"width": _width(label)}
        values[f.name] = inputs.widget(draw, label, key, held, **{"help": meta["help"]} | more)
    return probe.make(values)
