"""A case study's figures, from its numbers alone: those of each result, with the settings of its page, and those of
several results at once, as the pages over prompts show them. No torch, no streamlit.

Page, report and static site show them. Of a probe that declares no pictures (`probes.base.Picture`) the aggregates are
drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import plotly.graph_objects as go

from .. import figures
from ..depth import among_others, say, side_by_side, surgery, writing
from ..depth.answer import is_right
from ..depth.course import Course
from ..depth.sample import positions
from ..depth.verdict import Verdict
from ..figures import View
from ..figures.canvas import shown, size
from ..figures.pictures import CURVES_HEIGHT, HEIGHT, LOW, WIDTH, Look, curve_of, draw, measures, pictures
from ..figures.pictures import caption as picture_caption
from ..models import controls
from ..probes import Probe, find
from ..probes.answers import ExactAnswers
from ..probes.base import described
from ..probes.generation import Generation
from ..probes.lenses import EarlyExit
from ..probes.loops import Loops
from ..probes.surgery import PROXIES, Prune, Surgery
from ..results.aggregate import aggregate, probe_of
from ..types import ProbeResult, Prompt
from . import case_study
from .case_study import Case, Item

SIZE: dict[str, Any] = dict(height=CURVES_HEIGHT, width_px=WIDTH)
SMALL = View(**SIZE)


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
        if not self.alt:
            object.__setattr__(self, "alt", f"{self.title}: {self.caption}")

    @property
    def notes(self) -> list[str]:
        """What must be read with its numbers, each once."""
        return list(dict.fromkeys(note for result in self.results for note in result.notes))


# ---------------------------------------------------------------- over several results


def prune(results: Sequence[ProbeResult]) -> Iterator[Drawing]:
    """The cost of every stretch over these prompts, above the spread of the single ones, and how the proxies rank the
    stretches."""
    probe = probe_of(results[0])
    assert isinstance(probe, Prune)
    curves = among_others.over_prompts(probe, [r.summary for r in results])
    singles = [among_others.curves_of(probe, r.summary) for r in results]
    x = _stretches(probe.n)
    titles = {
        "kl": ("Divergence from the whole model", _cheapest(probe, curves, results[0]), "nats"),
        "top1_kept": ("Best guesses that stay", "share of the tokens; high is cheap", "share"),
    }
    if not np.isnan(curves["nll_whole"]):
        all_layers = size(float(curves["perplexity_whole"]))
        titles["perplexity"] = ("Perplexity without the stretch", f"{all_layers} with all layers", "perplexity")
    for name, (title, caption, unit) in titles.items():
        spread, n = among_others.quantiles([c[name] for c in singles])
        words: dict[str, Any] = dict(label="over all tokens", others=say.spread(n, "prompts"), x=x)
        figure = figures.spread_curve(curves[name], spread, unit, log=name == "perplexity", **words, **SIZE)
        yield _of_several(title, caption, figure, results, f"prune.{name}", x, curves[name], title)
    ranks = {name.replace("_", " "): curves[f"spearman_{name}"] for name in PROXIES}
    ranked = ", ".join(f"{name} {rank:+.2f}" for name, rank in ranks.items() if np.isfinite(rank))
    too_few = "too few stretches, too even ones, or ones without a finite value, to rank"
    proxies = {name.replace("_", " "): curves[name] for name in PROXIES}
    yield _of_several(
        "Proxies of the same stretches",
        f"rank correlation with the measured divergence: {ranked}" if ranked else too_few,
        figures.layer_curves(proxies, "", "proxy", x=x, **SIZE),
        results,
        "prune.block_influence",
        x,
        curves["block_influence"],
        "1 - cos(h[s], h[s+n])",
    )


def _cheapest(probe: Prune, curves: dict[str, Any], result: ProbeResult) -> str:
    """The caption of the divergence: the cheapest stretch, and what the chosen layers cost."""
    best = surgery.best_stretch(curves["kl"], probe.n)
    which = f"cheapest without {_layers(best)}"
    if surgery.whole_passes(probe.n, result):
        which = "whichever stretch is left out, it is whole passes"
    cost = surgery.costs(curves, best[0])
    words = f"{which}: KL {say.number(cost['kl'])} nats, {say.share(cost['top1_kept'])} of the best guesses stay"
    if not np.isfinite(cost["kl"]):
        words = "whichever is left out, the predictions are not finite"
    if probe.drop:
        cost = surgery.costs(curves, None)
        changed = f"KL {say.number(cost['kl'])} nats, {say.share(cost['top1_kept'])} stay"
        words += f"; without {_layers(probe.drop)}: {changed if np.isfinite(cost['kl']) else 'not finite'}"
    return words


def early_exit(results: Sequence[ProbeResult]) -> Iterator[Drawing]:
    """Agreement with the output and confidence, depth by depth."""
    probe = probe_of(results[0])
    assert isinstance(probe, EarlyExit)
    curves = aggregate(probe, [r.summary for r in results])
    lines = {name: curves[name] for name in ("agreement", "confidence")}
    yield _of_several(
        "Early exit through the lens",
        say.exits(writing.exits_of_prompts(results, probe.threshold)),
        figures.layer_curves(lines, "", "share", x="depth", **SIZE),
        results,
        "early_exit.agreement",
        "depth",
        curves["agreement"],
        "best token is the output's",
    )


def answers(results: Sequence[ProbeResult]) -> Iterator[Drawing]:
    """The share of known answers that are written without each stretch."""
    probe = probe_of(results[0])
    assert isinstance(probe, ExactAnswers)
    curves = aggregate(probe, [r.summary for r in results])
    x, share = _stretches(probe.n), float(curves["exact_whole"])
    of_all = {"all layers": np.full(len(curves["exact"]), curves["exact_whole"])}
    yield _of_several(
        "Known answers that are written exactly",
        f"share of {len(results)} prompt{'s' * (len(results) > 1)}; whole, the model writes {say.share(share)}",
        figures.layer_curves({"exact answers": curves["exact"]}, "", "share", x=x, behind=of_all, **SIZE),
        results,
        "exact_answers.exact",
        x,
        curves["exact"],
        "share of known answers that are written exactly without the stretch",
    )


def layers_moved(results: Sequence[ProbeResult]) -> Iterator[Drawing]:
    """The maps of layers left out, exchanged and run twice, and what the cheapest of every length adds to the loss."""
    probe = probe_of(results[0])
    assert isinstance(probe, Surgery)
    curves = among_others.over_prompts(probe, [r.summary for r in results])
    loss = float(curves["loss_whole"])
    for kind in surgery.kinds_of(curves):
        random = results[0]["random_layer"].tolist() if kind == "repeat" else ()
        rows, title, name = surgery.rows(curves, kind, random), SURGERY[kind], f"{kind}_loss"
        spec = probe.spec(name)
        figure = figures.surgery_map(curves, kind, View(height=CURVES_HEIGHT + 140, width_px=WIDTH), chosen=rows)
        of_map = (f"surgery.{name}", ",".join(spec.dims), curves[name], spec.meaning)
        yield _of_several(title, say.cheapest(loss, kind, rows), figure, results, *of_map)
        if lines := surgery.added(curves, kind, rows):
            x = "distance" if kind == "swap" else "length of the stretch"
            yield _of_several(
                f"{title}, by {x}",
                f"loss above the whole model's {say.number(loss)} nats per token",
                figures.added_curves(lines, x, **SIZE),
                results,
                f"surgery.{name}",
                x,
                lines["least"],
                "loss above the whole model's, of the variant that costs least",
            )


SURGERY = {"drop": "Loss without a stretch", "swap": "Loss with two exchanged", "repeat": "Loss with a stretch twice"}
OVER_SEVERAL: dict[type[Probe], Callable[[Sequence[ProbeResult]], Iterator[Drawing]]] = {
    Prune: prune,
    Surgery: layers_moved,
    EarlyExit: early_exit,
    ExactAnswers: answers,
}
"""Probes that have figures over prompts in place of their pictures."""


def _of_several(title: str, caption: str, figure: go.Figure, results: Sequence[ProbeResult], *curve: Any) -> Drawing:
    return Drawing(title, caption, figure, results=tuple(results), curve=curve)


def _layers(drop: Sequence[int]) -> str:
    return f"layer{'s' * (len(drop) > 1)} {', '.join(str(layer + 1) for layer in sorted(drop))}"


def _stretches(n: int) -> str:
    return "first layer taken out" if n > 1 else "layer taken out"


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
        """Model, precision, control, and number of layers: plain text."""
        models = dict.fromkeys(controls.full_name(m) for view in self.views for m in view.models)
        return f"{', '.join(models)}, {say.count(self.views[0].first.result.n_layers, 'layer')}"

    @property
    def prompts(self) -> list[Prompt]:
        return list(dict.fromkeys(prompt for view in self.views for prompt in view.prompts))

    @property
    def written(self) -> list[str]:
        """The texts that *Writing* wrote."""
        return [writing.text(item.result) for view in self.views if (item := view.by_probe.get(Generation.name))]

    @property
    def notes(self) -> list[str]:
        """What must be read with the numbers, each once."""
        results = [item.result for view in self.views for item in view.by_probe.values()]
        return list(dict.fromkeys(note for result in results for note in result.notes))


def drawings(case: Case) -> list[Drawing]:
    """All figures, in the order of their sections."""
    return [drawing for section in sections(case) for drawing in section.drawings]


def by_name(case: Case) -> dict[str, Drawing]:
    """The figures by their titles in small letters; the second of a title is "… 2"."""
    named: dict[str, Drawing] = {}
    for drawing in drawings(case):
        n = 1 + sum(other.title == drawing.title for other in named.values())
        named[drawing.title.lower() + (f" {n}" if n > 1 else "")] = drawing
    return named


def sections(case: Case) -> list[Section]:
    """What a page showed together; else for every view the course of its answer where there is a verdict, then the
    figures of its results in their order."""
    if (page := _of_page(case)) is not None:
        return [page]
    verdicts = {id(view.first): v for view, v in case.verdicts()}
    first = [pair] if (pair := _of_pair(case, verdicts)) is not None else []
    return first + [
        Section((view,), tuple(_of_view(case, view, verdicts.get(id(view.first)))), tuple(_sentences(view)))
        for view in case.views
    ]


def _sentences(view: case_study.View) -> Iterator[str]:
    """The sentences of the pages that have no verdict."""
    if item := view.by_probe.get(Generation.name):
        yield say.exits(writing.exits(item.result))
    if item := view.by_probe.get(Loops.name):
        yield say.loops(aggregate(Loops(), [item.result.summary]))


def _of_page(case: Case) -> Section | None:
    """All results under one heading, where they were kept from a page over several prompts and are all that it
    shows."""
    results = [item.result for item in case.items]
    by_probe: dict[str, list[ProbeResult]] = {}
    for result in results:
        by_probe.setdefault(result.request.probe, []).append(result)
    pages = {item.shown.page for item in case.items}
    if len(pages & set(by_probe)) != 1 or len(pages) != 1 or find(*pages) not in OVER_SEVERAL:
        return None
    if len({r.request.series for r in results}) != len(by_probe):
        return None
    of_probe = ((drawer, by_probe[probe.name]) for probe, drawer in OVER_SEVERAL.items() if probe.name in by_probe)
    return Section(tuple(case.views), tuple(drawing for drawer, some in of_probe for drawing in drawer(some)))


def _of_pair(case: Case, verdicts: dict[int, Verdict]) -> Section | None:
    """The differences between the two sides of a comparison, as its page shows them: the sentence, the ruler, the
    curves and the maps; None where nothing was compared."""
    if {item.shown.page for item in case.items} != {"two"} or len(case.views) != 2:
        return None
    swapped = dict(case.items[0].shown.settings).get("swapped") is True
    a, b = reversed(case.views) if swapped else case.views

    def name(view: case_study.View) -> str:
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
    """A probe's curves of both sides, and its map of B - A where cells mean the same."""
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
    """The same prompt on a control of the same model, drawn dashed behind the model's curves."""
    for other in case.views:
        same = other.prompts == view.prompts and other.models[0].source == view.models[0].source
        if same and other.models[0].control and not view.models[0].control:
            return other
    return None


def _of_item(case: Case, item: Item, verdict: Verdict | None, twin: case_study.View | None) -> Iterator[Drawing]:
    result, settings = item.result, dict(item.shown.settings)
    probe = find(result.request.probe)
    if probe in OVER_SEVERAL:
        yield from OVER_SEVERAL[probe]([result])
        return
    control = twin.by_probe.get(result.request.probe) if twin is not None else None
    view = View(
        height=HEIGHT,
        width_px=WIDTH,
        window=item.shown.window,
        selected=item.shown.selected,
        answer_start=result.answer_start,
        depth_lines=verdict.layers if verdict is not None else {},
        sinks=tuple(s.pos for group in (verdict.sinks if verdict else ()) for s in group or ()),
        count_sinks=settings.get("count_sinks", False) is True,
        read_at=positions(result, verdict.read_for) if verdict is not None else None,
        read_for=say.read_for(verdict.read_for, result.answer_start is not None) if verdict is not None else "",
        control=control.result if control is not None else None,
        control_name=controls.KINDS[twin.models[0].control] if twin is not None and control is not None else "",
    )
    parameters = "".join(f" · {words}" for words in _parameters(probe_of(result)))
    for title, caption, figure, *names in _pictures(case, item, view):
        caption += parameters
        alt = figures.describe_curves(figure, f"{title}: {caption}")
        if names and figures.is_map(figure):
            place = settings.get("boundary")
            one = place if isinstance(place, int) and names[0] == "effect_by_boundary" else None
            alt = figures.describe(result, names[0], one)
        yield Drawing(title, caption, figure, alt, (result,), tuple(names))


def _pictures(case: Case, item: Item, view: View) -> Iterator[tuple[Any, ...]]:
    """Title, caption, figure and measures of a result's pictures, with the settings of its page."""
    result, probe = item.result, find(item.result.request.probe)
    if probe is Loops:
        for _, title, measure, x, name, line in figures.loop_curves(aggregate(Loops(), [result.summary])):
            unit = result.measures[measure].spec.unit
            yield title, f"{name} by {x}", figures.layer_curves({name: line}, "", unit, x=x, **SIZE), measure
        return
    if probe.pictures is None:
        yield from _aggregates(case, item)
        return
    place = dict(item.shown.settings).get("boundary", -1)
    n = len(result["boundaries"]) if "boundaries" in result.measures else 0
    look = Look(
        item.shown.setting("branch", "layer"),
        item.shown.setting("shade", "prob"),
        place if type(place) is int and 0 <= place < n else None,
        case.first_token,
    )
    for picture in pictures(result, look):
        figure = draw(picture, result, SMALL if picture.kind in LOW else view, look)
        caption = picture_caption(picture, result, look) + curve_of(picture, view, look)
        yield picture.title, caption, figure, *measures(picture, look)


def _parameters(probe: Probe) -> Iterator[str]:
    """The parameters that are not at their defaults, in words; a file by its name, without its folder."""
    for f in fields(probe):
        if f.name in probe.settings():
            label, words = described(f, getattr(probe, f.name))
            yield f"{label}: {shown(words.rpartition('/')[2], 40)}"


def _aggregates(case: Case, item: Item) -> Iterator[tuple[Any, ...]]:
    """Curves over the first dim, a figure for each unit and length."""
    probe = probe_of(item.result)
    grouped: dict[tuple[str, str, int], dict[str, np.ndarray]] = {}
    for name, values in aggregate(probe, [item.result.summary], case.first_token).items():
        if values.ndim == 1 and len(values) > 1 and not name.endswith("_mean"):
            spec = probe.spec(name)
            grouped.setdefault((spec.dims[0], spec.unit, len(values)), {})[name] = values
    for (dim, unit, _), curves in grouped.items():
        yield probe.title, ", ".join(curves), figures.layer_curves(curves, "", unit, x=dim, **SIZE), *curves


def says(continuation: ProbeResult) -> tuple[str, bool | None]:
    """The model's continuation on one line of plain text, and whether it is the known answer (None where none is
    known)."""
    return shown(str(continuation.provenance.get("continuation", "")), 80), is_right(continuation)
