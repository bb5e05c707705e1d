"""A case study's figures, from its numbers alone: those of each result, with the settings of its page, and those of
several results at once, as the pages over prompts show them. No torch, no streamlit.

Page, report and static site show them. Of a probe that declares no pictures (`probes.base.Picture`) the aggregates are
drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import plotly.graph_objects as go

from .. import figures
from ..depth import among_others, exits, say, side_by_side, surgery
from ..depth.answer import Course, is_right
from ..depth.sample import positions
from ..depth.verdict import Verdict
from ..figures import View
from ..figures.canvas import shown
from ..figures.pictures import CURVES_HEIGHT, HEIGHT, LOW, WIDTH, Look, curve_of, draw, measures, pictures
from ..figures.pictures import caption as picture_caption
from ..figures.skips import ADDED
from ..models import controls
from ..probes import Probe, find
from ..probes.answers import ExactAnswers
from ..probes.base import described
from ..probes.generation import Generation
from ..probes.lenses import EarlyExit
from ..probes.loops import Loops
from ..probes.surgery import PROXIES, Prune, Surgery
from ..results.aggregate import probe_of
from ..types import ProbeResult, Prompt
from . import case_study
from .case_study import Case, Item

SIZE: dict[str, Any] = dict(height=CURVES_HEIGHT, width_px=WIDTH)
SMALL = View(**SIZE)
MOVED = View(height=HEIGHT, width_px=WIDTH)


@dataclass(frozen=True)
class Drawing:
    """A figure with its words. `alt`: what it shows, for a screen reader. `results`: what it is made of; `measures`:
    those of its one result; `curve`: name, dim, values and meaning of the numbers of several; `reading`: its numbers in
    words, where no measure has them."""

    title: str
    caption: str
    figure: go.Figure = field(repr=False)
    alt: str = ""
    results: tuple[ProbeResult, ...] = field(default=(), repr=False)
    measures: tuple[str, ...] = ()
    curve: tuple[str, str, np.ndarray, str] | None = field(default=None, repr=False)
    reading: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Make `alt` of title and caption where it is empty."""
        if not self.alt:
            object.__setattr__(self, "alt", f"{self.title}: {self.caption}")


# ---------------------------------------------------------------- over several results

Curves = Mapping[str, np.ndarray]


def prune(lengths: Mapping[int, Curves], results: Sequence[ProbeResult]) -> Iterator[Drawing]:
    """Yield the figures of what removing each stretch of layers costs, a line for each length, and of the usual proxies
    for the first length. `lengths`: the aggregates over `results` by how many layers are removed."""
    first = next(iter(lengths.values()))
    lines = {say.count(n, "layer"): curves["kl"] for n, curves in lengths.items()}
    yield _of_several(
        "How much do the predictions change?",
        "divergence from the whole model",
        figures.layer_curves(lines, "", "nats", x="first layer removed", log=True, **SIZE),
        results,
        "prune.kl",
        "first layer removed",
        first["kl"],
        "divergence from the whole model",
    )
    ranks = {name.replace("_", " "): float(first[f"spearman_{name}"]) for name in PROXIES}
    ranked = ", ".join(f"{name} {say.number(rank, '+.2f')}" for name, rank in ranks.items() if np.isfinite(rank))
    proxies = {name.replace("_", " "): first[name] for name in PROXIES}
    yield _of_several(
        "Would the usual proxies choose the same?",
        f"rank correlation with the measured change: {ranked or 'not defined'}",
        figures.layer_curves(proxies, "", "proxy", x="layer removed", **SIZE),
        results,
        "prune.block_influence",
        "layer removed",
        first["block_influence"],
        "how far the stretch turns the stream, 1 - cos(h[s], h[s+n]); the other two proxies are in the same result",
    )


def moved(
    curves: Curves, kind: str, results: Sequence[ProbeResult], value: str = "loss", view: View = MOVED
) -> Iterator[Drawing]:
    """Yield the map of one `kind` of layer surgery (a key of `SURGERY`), and what the cheapest variant of every length
    adds to the loss."""
    rows, name = surgery.rows(curves, kind, random_layers(kind, results)), f"{kind}_{value}"
    spec = Surgery.spec(name)
    figure = figures.surgery_map(curves, kind, view, value, rows)
    title, caption = SURGERY[kind]
    yield _of_several(
        title, caption, figure, results, f"surgery.{name}", ",".join(spec.dims), curves[name], spec.meaning
    )
    if lines := surgery.added(curves, kind, rows):
        x = "distance" if kind == "swap" else "length of the stretch"
        figure = figures.added_curves(lines, x, view.height, view.width_px)
        title = f"Loss above the whole model's, by {x}"
        yield _of_several(title, kind, figure, results, f"surgery.{kind}_loss", x, lines["least"], LEAST)


def random_layers(kind: str, results: Sequence[ProbeResult]) -> Sequence[int]:
    """Return the layers that a repeat's control runs again; () for other kinds."""
    return results[0]["random_layer"].tolist() if kind == "repeat" else ()


MARKED = f"marked up to +{ADDED[-1]:g} nats"
SURGERY = {
    "drop": (
        "Dropped",
        "layers from a row to a column · ring: least loss at its length, cross: angular distance's choice, " + MARKED,
    ),
    "swap": ("Swapped", f"the layers of a row and a column · ring: least loss at its distance, {MARKED}"),
    "repeat": ("Run twice", f"layers from a row to a column · ring: least loss at its length, {MARKED}"),
}
LEAST = "loss above the whole model's, of the variant that costs least; length 0 is the whole model"


def of_several(results: Sequence[ProbeResult]) -> Iterator[Drawing]:
    """Yield the figures of a probe that declares no pictures, over the prompts of its results."""
    probe = probe_of(results[0])
    curves = among_others.curves_of(probe, [r.summary for r in results])
    if isinstance(probe, Prune):
        yield from prune({probe.n: curves}, results)
    elif isinstance(probe, Surgery):
        for kind in surgery.kinds_of(curves):
            yield from moved(curves, kind, results)
    elif isinstance(probe, Loops):
        for _, title, measure, x, name, line in figures.loop_curves(curves):
            spec = probe.spec(measure)
            figure = figures.layer_curves({name: line}, "", spec.unit, x=x, **SIZE)
            yield _of_several(title, f"{name} by {x}", figure, results, f"loops.{measure}", x, line, spec.meaning)
    else:
        yield from _curves(probe, curves, results)


def _curves(probe: Probe, curves: Curves, results: Sequence[ProbeResult]) -> Iterator[Drawing]:
    """Yield a figure of a probe's aggregates over their first dim, for each unit and length."""
    grouped: dict[tuple[str, str, int], dict[str, np.ndarray]] = {}
    for spec in probe.measures:
        if (values := curves.get(spec.name)) is not None and values.ndim == 1 and len(values) > 1:
            grouped.setdefault((spec.dims[0], spec.unit, len(values)), {})[spec.name] = values
    for (dim, unit, _), lines in grouped.items():
        of_start = "first layer taken out" if isinstance(probe, ExactAnswers) else "layer"
        name, x = next(iter(lines)), of_start if dim == "start" else dim
        figure = figures.layer_curves(lines, "", unit, x=x, **SIZE)
        of_first = (f"{probe.name}.{name}", dim, lines[name], probe.spec(name).meaning)
        yield _of_several(probe.title, ", ".join(lines), figure, results, *of_first)


def _of_several(title: str, caption: str, figure: go.Figure, results: Sequence[ProbeResult], *curve: Any) -> Drawing:
    """Return a figure of several results; `curve`: name, dim, values and meaning of its numbers."""
    return Drawing(title, caption, figure, results=tuple(results), curve=curve)


# ---------------------------------------------------------------- sections


@dataclass(frozen=True)
class Section:
    """The figures under one heading: of a model and a prompt, or of several that one page showed together. `says`:
    sentences above the figures."""

    views: tuple[case_study.View, ...]
    drawings: tuple[Drawing, ...]
    says: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """Models, precisions, controls and the number of layers, as plain text."""
        models = dict.fromkeys(controls.full_name(m) for view in self.views for m in view.models)
        return f"{', '.join(models)}, {say.count(self.views[0].first.result.n_layers, 'layer')}"

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts of all views, each once."""
        return list(dict.fromkeys(prompt for view in self.views for prompt in view.prompts))

    @property
    def written(self) -> list[str]:
        """The texts that the probe *Writing* generated."""
        return [exits.text(item.result) for view in self.views if (item := view.by_probe.get(Generation.name))]

    @property
    def notes(self) -> list[str]:
        """The notes that must be read with the results' numbers, each once."""
        results = [item.result for view in self.views for item in view.by_probe.values()]
        return list(dict.fromkeys(note for result in results for note in result.notes))


def drawings(case: Case) -> list[Drawing]:
    """Return all figures of a case study, in the order of their sections."""
    return [drawing for section in sections(case) for drawing in section.drawings]


def by_name(case: Case) -> dict[str, Drawing]:
    """Return the figures by their titles in small letters; the second of a title is "… 2"."""
    named: dict[str, Drawing] = {}
    for drawing in drawings(case):
        n = 1 + sum(other.title == drawing.title for other in named.values())
        named[drawing.title.lower() + (f" {n}" if n > 1 else "")] = drawing
    return named


def sections(case: Case) -> list[Section]:
    """Return the case study's figures under their headings: what a page showed together; else for every view the course
    of its answer where a verdict exists, then the figures of its results in their order."""
    if (page := _of_page(case)) is not None:
        return [page]
    verdicts = {id(view.first): v for view, v in case.verdicts()}
    first = [pair] if (pair := _of_pair(case, verdicts)) is not None else []
    return first + [
        Section(
            (view,),
            tuple(_of_view(case, view, verdicts.get(id(view.first)))),
            tuple(sentence for item in view.by_probe.values() for sentence in _sentences([item.result])),
        )
        for view in case.views
    ]


def _sentences(results: Sequence[ProbeResult]) -> Iterator[str]:
    """Yield the sentences that pages without a verdict show above results of one probe."""
    probe = probe_of(results[0])
    curves = among_others.curves_of(probe, [r.summary for r in results])
    if isinstance(probe, Generation):
        yield say.exits(exits.exits(results[0]))
    elif isinstance(probe, EarlyExit):
        yield say.exits(exits.exits_of_prompts(results, probe.threshold))
    elif isinstance(probe, Loops):
        yield say.loops(curves)
    elif isinstance(probe, ExactAnswers):
        yield f"The whole model writes {say.share(float(curves['exact_whole']))} of the known answers."
    elif isinstance(probe, Prune):
        yield say.cheapest_cut(curves, probe.n, results[0])
        if probe.drop:
            own = ", ".join(str(layer + 1) for layer in sorted(probe.drop))
            yield f"Without layers {own}: {say.cost(surgery.costs(curves, None))}."
    elif isinstance(probe, Surgery):
        for kind in surgery.kinds_of(curves):
            rows = surgery.rows(curves, kind, random_layers(kind, results))
            yield say.cheapest(float(curves["loss_whole"]), kind, rows)


def _of_page(case: Case) -> Section | None:
    """Return all results under one heading, where they were kept from a page over several prompts and are all that it
    shows; else None."""
    by_probe: dict[str, list[ProbeResult]] = {}
    for item in case.items:
        by_probe.setdefault(item.result.request.probe, []).append(item.result)
    page, *others = {item.shown.page for item in case.items}
    of_prompts = not others and page in by_probe and find(page).pictures is None
    if not of_prompts or len({item.result.request.series for item in case.items}) != len(by_probe):
        return None
    drawn = (drawing for results in by_probe.values() for drawing in of_several(results))
    said = (sentence for results in by_probe.values() for sentence in _sentences(results))
    return Section(tuple(case.views), tuple(drawn), tuple(said))


def _of_pair(case: Case, verdicts: dict[int, Verdict]) -> Section | None:
    """Return the differences between the two sides of a comparison, as its page shows them: the sentence, the ruler,
    the curves and the maps; None where nothing was compared. `verdicts`: by the `id` of a view's first item."""
    if {item.shown.page for item in case.items} != {"two"} or len(case.views) != 2:
        return None
    a, b = case.views

    def name(view: case_study.View) -> str:
        """Return the name of a side: its model where these differ, else the end of its prompt."""
        by_model = a.models != b.models
        return controls.full_name(view.models[0]) if by_model else f"“{case_study.cut(view.prompts[0].text, 24)}”"

    names = (name(a), name(b))
    first, second = (verdicts.get(id(view.first)) for view in (a, b))
    sentence, pairs = "", []
    if first is not None and second is not None:
        sentence = say.both(first, second)
        figure = figures.pair_ruler((first, second), (first.n_layers, second.n_layers), names)
        pairs.append(Drawing("Both on one ruler", f"A: {names[0]}; B: {names[1]}", figure, sentence))
    for probe in (probe for probe in a.by_probe if probe in b.by_probe and find(probe).curves):
        pairs += _differences(a.by_probe[probe].result, b.by_probe[probe].result, names)
    return Section((a, b), tuple(pairs), (sentence,) if sentence else ()) if pairs else None


def _differences(a: ProbeResult, b: ProbeResult, names: tuple[str, str]) -> Iterator[Drawing]:
    """Yield a probe's curves of both sides, and its map of B - A where cells mean the same."""
    for pair in side_by_side.pairs((probe_of(a), probe_of(b)), a, b):
        figure, sentence = figures.pair_curves(pair, names, CURVES_HEIGHT), say.pair(pair)
        yield Drawing(f"A and B: {pair.curve.title.lower()}", sentence, figure, sentence)
    probe = find(a.request.probe)
    measure = measures(probe.pictures[0], Look())[0] if probe.pictures else ""
    if not measure or any(measure not in result.measures for result in (a, b)):
        return
    if side_by_side.no_difference(a, b, a.measures[measure].spec.dims):
        return
    figure = figures.difference_map(a, b, measure, View(height=HEIGHT, width_px=WIDTH), True)
    caption = "orange: larger in B, blue: larger in A"
    yield Drawing(f"B − A: {probe.title.lower()}", caption, figure, f"B minus A: {caption}")


# ---------------------------------------------------------------- of one result


def _of_view(case: Case, view: case_study.View, verdict: Verdict | None) -> Iterator[Drawing]:
    """Yield the figures of one model and prompt: the course of the answer, then those of each result."""
    lens = view.by_probe.get("logit_lens")
    if verdict is not None and lens is not None and "top_ids" in lens.result.measures:
        course = Course.of(lens.result)
        yield Drawing(
            "Course of the answer",
            f"rank of “{shown(course.word)}” in the lens after each layer",
            figures.course(course, verdict, width_px=WIDTH),
            say.verdict(verdict),
            reading=(*say.why(verdict), *(say.rule(rule) for rule in verdict.rules.values())),
        )
    twin = _control_of(case, view)
    for item in view.by_probe.values():
        yield from _of_item(case, item, verdict, twin)


def _control_of(case: Case, view: case_study.View) -> case_study.View | None:
    """Return the view of the same prompt on a control of the same model, which figures draw dashed; None without."""
    for other in case.views:
        same = other.prompts == view.prompts and other.models[0].source == view.models[0].source
        if same and other.models[0].control and not view.models[0].control:
            return other
    return None


def _of_item(case: Case, item: Item, verdict: Verdict | None, twin: case_study.View | None) -> Iterator[Drawing]:
    """Yield the pictures that a result's probe declares, with the settings of its page. `twin`: a control's view."""
    result, settings = item.result, dict(item.shown.settings)
    if find(result.request.probe).pictures is None:
        yield from of_several([result])
        return
    control = twin.by_probe.get(result.request.probe) if twin is not None else None
    view = View(
        height=HEIGHT,
        width_px=WIDTH,
        window=item.shown.window,
        selected=item.shown.selected,
        answer_start=result.answer_start,
        depth_lines=verdict.layers if verdict is not None else {},
        sinks=tuple(s.pos for group in (verdict.sample.sinks if verdict else ()) for s in group or ()),
        count_sinks=settings.get("count_sinks", False) is True,
        read_at=positions(result, verdict.sample.read_for) if verdict is not None else None,
        read_for=say.read_for(verdict.sample.read_for, result.answer_start is not None) if verdict is not None else "",
        control=control.result if control is not None else None,
        control_name=controls.KINDS[twin.models[0].control] if twin is not None and control is not None else "",
    )
    boundary = settings.get("boundary", -1)
    n = len(result["boundaries"]) if "boundaries" in result.measures else 0
    look = Look(
        item.shown.setting("branch", "layer"),
        item.shown.setting("shade", "prob"),
        boundary if type(boundary) is int and 0 <= boundary < n else None,
        case.first_token,
    )
    parameters = "".join(f" · {words}" for words in _parameters(probe_of(result)))
    for picture in pictures(result, look):
        names = measures(picture, look)
        figure = draw(picture, result, SMALL if picture.kind in LOW else view, look)
        caption = picture_caption(picture, result, look) + curve_of(picture, view, look) + parameters
        alt = figures.describe_curves(figure, f"{picture.title}: {caption}")
        if figures.is_map(figure):
            one = look.boundary if names[0] == "effect_by_boundary" else None
            alt = figures.describe(result, names[0], one)
        yield Drawing(picture.title, caption, figure, alt, (result,), names)


def _parameters(probe: Probe) -> Iterator[str]:
    """Yield the parameters that are not at their defaults, in words; a file by its name, without its folder."""
    for f in fields(probe):
        if f.name in probe.settings() and not f.metadata["prompt"]:
            label, words = described(f, getattr(probe, f.name))
            yield f"{label}: {shown(words.rpartition('/')[2], 40)}"


def says(continuation: ProbeResult) -> tuple[str, bool | None]:
    """Return the model's continuation on one line of plain text, and whether it is the known answer (None where none is
    known)."""
    return shown(str(continuation.provenance.get("continuation", "")), 80), is_right(continuation)
