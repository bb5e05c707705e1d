"""What the pages of single probes share: prompt, the probe's own parameters as a form, Run, the live part, and how the
prompt compares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import cleandoc
from typing import Any, Literal, TypeVar, cast

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core import figures
from ed_core.depth import among_others, say, sinks
from ed_core.depth.among_others import Likeness
from ed_core.figures import View, pictures
from ed_core.figures.pictures import Look
from ed_core.models import controls, permits
from ed_core.models.bundled import MIXED, SETS, default_set, mixed_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import Continuation, Probe, find
from ed_core.prompts import read_jsonl
from ed_core.results import aggregate, lookup
from ed_core.results.aggregate import Summary
from ed_core.results.shelf import Shelf
from ed_core.types import ModelSpec, ProbeResult, Prompt, Request
from ed_ui import case_studies, control_model, inputs, link, live, picker, prompt_box, running, session, show
from ed_ui.inputs import Input, boxed, of_probe, span

P = TypeVar("P", bound=Probe)
WINDOW = 64
TOKENS = span("tokens", "window.page")
MAP_HEIGHT = 520
NO_ANSWER = """This measures the effect on an **answer**, and there is none. Type one next to the prompt, or take the
model's own."""
ABOUT = ("Why ask", "The papers saw", "The paper measures", "Look for", "By construction", "Beware")
ENOUGH = 12  # bundled prompts that the button measures
_requests: Shelf[list[Request]] = Shelf(64)
_left_out: Shelf[list[Summary]] = Shelf(32)  # by probe and run ids
Panels = Callable[[ProbeResult, View], None]


@dataclass(frozen=True)
class Page:
    """A page for one probe: the verdict, the map, how this prompt compares, other figures, and what the page is about.
    The defaults show a probe as it declares itself."""

    probe: type[Probe]
    words: Mapping[str, str]  # what Run would do, under "", and paragraphs by their headings (`show.words`)
    # of a complete result the answer, and how sure it is
    verdict: Callable[[ProbeResult], tuple[str, str]] = lambda result: (find(result.request.probe).title, "One prompt.")
    more: Panels | None = None  # draws other figures than the probe's other pictures
    look: Callable[[ProbeResult], Look] = lambda _: Look()  # how the first picture is seen, which is the map
    beneath: Callable[[ProbeResult], None] = lambda _: None  # draws remarks on the result below the map
    noted: Callable[[str], bool] = lambda _: False  # whether a note of the result is left out below the map
    figure: Panels | None = None  # draws the map, in place of the probe's first picture
    inputs: Callable[[], None] | None = None  # draws what the map needs
    # whether the probe, with its parameters, reads the answer's tokens: the page offers the model's own continuation
    needs_answer: Callable[[Probe], bool] = lambda _: False
    over_tokens: bool = True  # the map has tokens to choose a window of
    sound: Callable[[ProbeResult], bool] = lambda _: True  # whether a result may be compared with others
    parameters: tuple[Input, ...] = ()  # what a link carries of the map's inputs
    height: Callable[[int], int] = lambda _: MAP_HEIGHT  # of the map, from the number of layers (0 where unknown)
    over_sinks: bool = False  # its means may leave the sinks out
    ask: Callable[[], Probe] | None = None  # draws the probe's inputs, in place of a form of all its parameters
    controlled: bool = True  # a control can be measured
    prompts: Callable[[], None] = prompt_box.draw  # draws the prompt's box, and others that the page has

    def show(self) -> None:
        """Draw the whole page: prompt, Run, verdict, map, how the prompt compares, further figures, explanation. What
        is below the map may come and go; the map stays in its place."""
        probe = self.probe
        link.own((*of_probe(probe), *self.parameters, *[inputs.COUNT_SINKS] * self.over_sinks, TOKENS))
        link.say_troubles()
        self.prompts()
        place = running.row_begins()
        more = options(place, of_probe(probe))
        with more:
            own_probe = self.ask() if self.ask is not None else form(probe, more)
        spec, name = picker.current().spec, probe.name
        if spec is not None and self.needs_answer(own_probe) and not prompt_box.prompt().answer:
            _ask_for_answer(spec, place, name)
        elif spec is not None:
            requests = {name: own_probe.request(spec, prompt_box.prompt())}
            batch = running.batch(name, control_model.with_control(requests) if self.controlled else requests)
            top_row(name, batch, place=place, with_control=more if self.controlled else None)
            live.follow(batch, self._answer)
            result = batch.complete(name)
            if result is not None and probe.score is not None and self.sound(result):
                compared(batch, name, own_probe)
            live.follow(batch, self._more)
        with st.expander("About this"):
            texts(self.words)
            st.markdown(cleandoc(probe.__doc__ or ""))

    def _answer(self, batch: running.Batch) -> None:
        """Draw the verdict and the map of a batch, as far as it is measured."""
        name, result = self.probe.name, batch.result(self.probe.name)
        link.write(result.request.key if result is not None and result.complete else "")
        with st.container(key="headline"):
            status(batch)
            if result is not None and result.complete:
                show.verdict(*self.verdict(result))
            elif not batch.running and not batch.errors:
                st.markdown(f"## {self.probe.title}: not measured yet")
        if self.inputs is not None:
            with st.container(key="map-inputs"):
                self.inputs()
        # what is drawn while a result arrives stays in the place of what was there before
        height = min(self.height(ModelRef.of(batch.requests[name].models[0]).n_layers or 0), show.TALLEST)
        place, below = show.place("map", height), st.container()
        with place:
            if result is None:
                show.empty(self.probe.title, "" if batch.running else self.words[""], height, first=True)
            else:
                (self.figure or self._map)(result, self._view(batch, result))
        if result is not None:
            with below:
                self.beneath(result)
                if self.over_tokens:
                    window(result, self._view(batch, result), self.over_sinks)
                show.notes(note for note in result.notes if not self.noted(note))

    def _more(self, batch: running.Batch) -> None:
        """Draw the figures below the map."""
        if (result := batch.result(self.probe.name)) is not None:
            (self.more or self._others)(result, self._view(batch, result))

    def _view(self, batch: running.Batch, result: ProbeResult) -> View:
        """Return how figures show a result: window, selected token, sinks, and the control's result."""
        return replace(
            view(result),
            sinks=sinks_of(result),
            count_sinks=inputs.COUNT_SINKS.value,
            control=control_model.result(batch, self.probe.name),
            control_name=control_model.name(),
        )

    def _map(self, result: ProbeResult, seen: View) -> None:
        """Draw the probe's main picture as the page's map."""
        look = self.look(result)
        one = next(pictures.pictures(result, look))
        caption = pictures.caption(one, result, look)
        show.picture("map", one, result, seen, look, caption[:1].upper() + caption[1:])

    def _others(self, result: ProbeResult, seen: View) -> None:
        """Draw the probe's other pictures."""
        for i, one in enumerate(list(pictures.pictures(result))[1:]):
            show.picture(f"more-{i}", one, result, seen)


def options(place: running.Place, own: Iterable[Input] = ()) -> DeltaGenerator:
    """Draw the button Options next to Run, with how the prompt is encoded, and return the box for the page's `own`
    inputs; its label says how many of these are off their defaults."""
    changed = sum(one.value != one.default for one in own)
    label = f"Options ({changed} changed)" if changed else "Options"
    box = place.row.popover(label, type="tertiary", key="options")
    inner = box.container()
    if place.encoded:
        with box:
            prompt_box.encoding()
        session.current().place = place._replace(encoded=False)
    return inner


def top_row(page: str, batch: running.Batch, with_control: DeltaGenerator | None = None, **more: Any) -> None:
    """Draw Run, time, Options and Share. `with_control`: the box for the choice of a control, None where none can be
    measured. `more`: arguments of `running.run_row` in place of those that the prompt's box gives."""
    if (place := running.row_begins()).encoded:
        options(place)
    box = {"ready": prompt_box.ready(), "n_tokens": prompt_box.n_tokens()} | more
    share = running.run_row(page, batch, **box)
    if with_control is not None:
        control_model.picker(with_control, batch)
    case_studies.save_button(share, page, batch)


def texts(paragraphs: Mapping[str, str]) -> None:
    """Show a page's paragraphs about its figures side by side: those under the headings of `ABOUT`."""
    shown = [heading for heading in ABOUT if heading in paragraphs]
    for column, heading in zip(st.columns(max(1, len(shown))), shown, strict=False):
        column.caption(f"**{heading}:** {paragraphs[heading]}")


def status(batch: running.Batch) -> None:
    """Show how far a batch is, or what went wrong."""
    if batch.running:
        return live.status(batch)
    for message in (troubles := running.troubles(batch)):
        show.error(message)
    if batch.errors and not troubles and not any(result.complete for result in batch.results.values()):
        st.markdown("Cancelled: nothing of that run is kept.")


def view(result: ProbeResult) -> View:
    """Return how a full-width panel shows a result: its window of tokens and the selected one."""
    n = result.n_tokens
    return View(
        window=inputs.window(TOKENS.key, n, WINDOW),
        selected=inputs.token(n),
        answer_start=result.answer_start,
        width_px=1100,
        height=MAP_HEIGHT,
    )


def sinks_of(result: ProbeResult) -> tuple[int, ...]:
    """Return the positions of the prompt's attention sinks, from its stored contributions; () without these."""
    probe, request = sinks.PROBE, result.request
    written: ProbeResult | None = result
    if request.probe != probe and result.complete:
        written = lookup.find_shown(find(probe)().request(request.models[0], request.prompts[0]))
    return tuple(s.pos for s in (written is not None and sinks.of_result(written)) or ())


def behind(seen: View, curve: str, first_token: bool = True) -> dict[str, Any]:
    """Return the control's aggregate of a `curve` over the same tokens, by its name; {} without a control."""
    if seen.control is None:
        return {}
    return {seen.control_name: aggregate.without(seen.control, seen.uncounted, first_token)[curve]}


def of_sinks(seen: View) -> str:
    """Return what a caption of means says of the attention sinks; "" where the prompt has none."""
    return f", sinks (◆) {'counted' if seen.count_sinks else 'left out'}" if seen.sinks else ""


def profile(result: ProbeResult, measure: str, seen: View, over: str = "layers") -> None:
    """Draw a measure's values of the selected token over layers or depths, where a token is selected."""
    if seen.selected is not None:
        fig = show.once(figures.token_profile, result, measure, seen.selected, seen)
        show.figure("profile", fig, f"Token {seen.selected} over the {over}", result, measure)


def around(token: int, n: int) -> dict[str, Any]:
    """Return the inputs that select a token of `n` and show it on a page's figures."""
    first = min(max(token - WINDOW // 2, 0), n - WINDOW)
    return {"token": token} | ({TOKENS.key: (first, first + WINDOW - 1)} if n > WINDOW else {})


def window(result: ProbeResult, seen: View, over_sinks: bool = False) -> None:
    """Draw the inputs next to a figure over tokens: which ones it shows, the selected one, and (`over_sinks`) whether
    means count the attention sinks."""
    n = result.n_tokens
    row = st.container(horizontal=True, vertical_alignment="bottom", key="window")
    if n > WINDOW:
        TOKENS.draw(row.slider, default=seen.window, width=420, min_value=0, max_value=n - 1)
    show.token_box(row, result.tokens)
    if over_sinks and seen.sinks:
        inputs.COUNT_SINKS.draw(row.toggle, "Count the sinks (◆) in the means")


def _ask_for_answer(spec: ModelSpec, place: running.Place, page: str) -> None:
    """Ask for the answer that this probe needs: typed, or what the model itself would write. Run is the `page`'s own,
    so that a click on it right after an answer was typed runs the probe."""
    st.info(NO_ANSWER, icon=":material/help:")
    label, key = "Tokens of the model's continuation", "continuation.n_tokens"
    n_tokens = st.number_input(label, min_value=1, max_value=16, value=2, key=key, width=260)
    request = Continuation(n_tokens=n_tokens).request(spec, prompt_box.prompt())
    batch = running.batch("continuation", {"continuation": request})
    running.run_row(page, batch, prompt_box.ready(), prompt_box.n_tokens(), place)
    live.follow(batch, _offer_answer)


def _offer_answer(batch: running.Batch) -> None:
    """Draw the button that takes the model's continuation as the answer, once it is written."""
    status(batch)
    if (result := batch.complete("continuation")) is not None:
        text = result.provenance["continuation"]
        given = (result.request.prompts[0].text, text)
        label = f"Use {show.code(text, 60)} as the answer"
        st.button(label, icon=":material/check:", on_click=prompt_box.fill, args=given)


def form(
    probe: type[P], row: Any, names: Collection[str] | None = None, width: int | Literal["stretch"] = "stretch"
) -> P:
    """Draw a form of a probe's parameters in `row` and return the probe with the chosen ones; a `ParameterError` says
    what is wrong with one. `names`: of the fields shown, None for all. `width`: of a box, in
    pixels."""
    hints = probe.hints()
    values = {}
    for f in (f for f in fields(probe) if names is None or f.name in names):
        meta, kind = f.metadata, hints[f.name]
        label, content = meta["label"] or f.name.replace("_", " "), boxed(f.default, meta["empty"])
        key = f"{probe.name}.{f.name}"
        if meta["file"]:
            own = inputs.value(key, content) == f.default
            off = permits.why_not(permits.file, f"A path as {label.lower()}") if own else ""
            draw, more = row.text_input, {"width": width, "disabled": bool(off), "help": off or meta["help"]}
        elif meta["choices"]:
            draw, more = row.segmented_control, {"options": list(meta["choices"]), "format_func": meta["choices"].get}
        elif kind is bool:
            draw, more = row.toggle, {}
        elif kind in (int, float):
            draw, more = row.number_input, {"min_value": meta["low"], "max_value": meta["high"], "width": width}
        else:
            draw, more = row.text_input, {"width": width}
        values[f.name] = inputs.widget(draw, label, key, content, **{"help": meta["help"]} | more)
    return cast(P, probe.make(values))


# -------------------------------------------------------------------- how a prompt compares


def _others_asked(probe: Probe, spec: ModelSpec, files: tuple[tuple[str, str], ...]) -> list[Request]:
    """Return requests of a probe on `ENOUGH` + 1 bundled prompts. `files`: hashes of the files in its parameters, part
    of the cache's key."""
    if default_set(spec.source) == MIXED:
        prompts = read_jsonl(SETS / f"{MIXED}.jsonl")[: ENOUGH + 1]  # kinds take turns in it
    else:
        prompts = [Prompt(p["text"], p["answer"]) for p in mixed_prompts(ENOUGH + 1, model=spec.source)]
    return [probe.request(spec, prompt) for prompt in prompts]


def others_of(probe: Probe, asked: Request) -> list[Request]:
    """Return requests of a probe on `ENOUGH` bundled prompts other than that of the request `asked`."""
    here = asked.prompts[0].identity()
    candidates = _requests.made(_others_asked, probe, ModelRef.of(asked.models[0]), asked.files)
    return [r for r in candidates if r.prompts[0].identity() != here][:ENOUGH]


def compared(shown: running.Batch, name: str, probe: Probe) -> None:
    """Draw how this prompt's result compares with those of other prompts and of the model's control."""
    result = shown.results[name]
    others = {f"{probe.name}.{i}": request for i, request in enumerate(others_of(probe, result.request))}
    batch = running.batch(f"others.{probe.name}", others)
    st.markdown("##### How this prompt compares")
    alike = control_model.alike(shown, name, getattr(probe, "first_token", True))
    live.follow(batch, _compared, probe, result, control_model.result(shown, name), alike)


def _compared(
    batch: running.Batch,
    probe: Probe,
    result: ProbeResult,
    control: ProbeResult | None,
    alike: Sequence[Sequence[Likeness]],
) -> None:
    """Draw how a result compares with the stored ones of other prompts: a sentence, and its curves over their spread.
    `alike`: how alike it is to each control."""
    stored, first_token = lookup.alike(result.request), getattr(probe, "first_token", True)
    with st.container(key="others"):
        comparison = among_others.compared(probe, result.summary, list(stored.values()), first_token)
        sentence, reasons = say.among_others(comparison), []
        if alike and control is not None:
            sentence, reasons = say.against_control(control.request.models[0].control, alike), [sentence]
        show.conclusion(f"others-{probe.name}", sentence, reasons)
        if batch.running:
            done = sum(r.complete for r in batch.results.values())
            text = f"{done} of {len(batch.requests)} bundled prompts measured · {running.status(batch)}"
        else:
            text = f"{say.count(len(stored), 'other prompt')} measured with this model and these parameters"
        label = f"Measure {say.count(len(batch.missing), 'bundled prompt')}"
        running.section_row(batch, f"others.{probe.name}", result.n_tokens, True, text, label)
        for message, which in running.troubles(batch).items():
            st.warning(show.plain(f"{len(which)} could not be measured: {message}"), icon=":material/error:")
    own = [result, *([control] if control is not None else [])]
    (this, *others), first_token, remark = _counted(probe, own, stored, first_token)
    behind: dict[str, Any] = {}
    if control is not None:
        name = controls.label(control.request.models[0])
        behind = {curve: {name: v} for curve, v in among_others.curves_of(probe, others[:1], first_token).items()}
    spreads = among_others.spreads(probe, this, others[len(own) - 1 :], first_token)
    for column, spread in zip(st.columns(2), spreads, strict=False):
        curve, over = spread.curve, " over the others" if len(spread.quantiles) else ""
        look = dict(x=curve.x, others=say.spread(spread.n), log=curve.log, behind=behind.get(curve.name, {}))
        fig = show.once(figures.spread_curve, spread.values, spread.quantiles, curve.unit, **look)
        title = f"{curve.title}: this prompt{over}{remark}"
        show.figure(f"spread-{curve.name}", fig, title, results=[result], place=column)


def _counted(
    probe: Probe, results: Sequence[ProbeResult], stored: Mapping[str, Summary], first_token: bool
) -> tuple[list[Summary], bool, str]:
    """Return the summaries that curves and spreads are drawn of, whether these still count the first token, and the
    words on sinks for captions. Attention sinks are left out where they do not count and are known of every prompt."""
    every = [r.summary for r in results] + list(stored.values())
    if not among_others.over_tokens(probe):
        return every, first_token, ""
    known = [r for r in (*results, *map(lookup.by_key, stored)) if r is not None]
    if inputs.COUNT_SINKS.value or len(known) < len(every):
        return every, first_token, ", sinks counted"
    left = _left_out.get(
        (probe, tuple(r.request.key for r in known)), lambda: among_others.without_sinks(probe, known, first_token)
    )
    if left is None:
        return every, first_token, ", all tokens counted"
    fewer = any(int(s["n_tokens"]) < r.n_tokens - (not first_token) for s, r in zip(left, known, strict=True))
    return left, True, ", sinks left out" if fewer else ""
