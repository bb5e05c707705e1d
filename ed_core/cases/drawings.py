"""A case study's figures, from its numbers alone: which ones a probe's result has, how it was looked at, and those of
several results at once, as the pages over prompts show them. No torch, no streamlit.

The report and the import's last check draw these. Which pictures a probe has it says itself
(`probes.base.Picture`); where it has none, its aggregates are drawn."""

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
from ..figures.pictures import CURVES_HEIGHT, HEIGHT, WIDTH, Look, curve_of, draw, measures, pictures
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


@dataclass(frozen=True)
class Together:
    """A figure over several results. `name`, `dim`, `values`, `meaning`: the curve whose numbers stand beside it."""

    title: str
    caption: str
    figure: go.Figure = field(repr=False)
    name: str
    dim: str
    values: np.ndarray = field(repr=False)
    meaning: str
    results: tuple[ProbeResult, ...] = field(repr=False)


def prune(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """What every stretch costs over these prompts, above the spread of the single ones, and how the proxies rank the
    stretches."""
    probe = probe_of(results[0])
    assert isinstance(probe, Prune)
    curves = among_others.over_prompts(probe, [r.summary for r in results])
    singles = [among_others.curves_of(probe, r.summary) for r in results]
    x = "first layer taken out" if probe.n > 1 else "layer taken out"
    best = surgery.best_stretch(curves["kl"], probe.n)
    cost = surgery.costs(curves, best[0])
    kept = f"{say.share(cost['top1_kept'])} of the best guesses stay"
    alike = surgery.whole_passes(probe.n, results[0])
    which = "whichever stretch is left out, it is whole passes" if alike else f"cheapest without {_layers(best)}"
    cheapest = f"{which}: KL {say.number(cost['kl'])} nats, {kept}"
    if not np.isfinite(cost["kl"]):
        cheapest = "whichever is left out, the predictions are not finite"
    if probe.drop:
        cost = surgery.costs(curves, None)
        changed = f"KL {say.number(cost['kl'])} nats, {say.share(cost['top1_kept'])} stay"
        cheapest += f"; without {_layers(probe.drop)}: {changed if np.isfinite(cost['kl']) else 'not finite'}"
    told = {
        "kl": ("Divergence from the whole model", cheapest, "nats"),
        "top1_kept": ("Best guesses that stay", "share of the tokens; high is cheap", "share"),
    }
    if "perplexity" in cost:
        whole = f"{size(cost['perplexity_whole'])} with all layers"
        told["perplexity"] = ("Perplexity without the stretch", whole, "perplexity")
    for name, (title, caption, unit) in told.items():
        spread, n = among_others.quantiles([c[name] for c in singles])
        fig = figures.spread_curve(
            curves[name],
            spread,
            unit,
            label="over all tokens",
            others=say.spread(n, "prompts"),
            x=x,
            log=name == "perplexity",
            **SIZE,
        )
        yield Together(title, caption, fig, f"prune.{name}", x, curves[name], title, tuple(results))
    ranks = {name.replace("_", " "): curves[f"spearman_{name}"] for name in PROXIES}
    ranked = ", ".join(f"{name} {rank:+.2f}" for name, rank in ranks.items() if np.isfinite(rank))
    yield Together(
        "Proxies of the same stretches",
        f"rank correlation with the measured divergence: {ranked}"
        if ranked
        else "too few stretches, too even ones, or ones without a finite value, to rank",
        figures.layer_curves({name.replace("_", " "): curves[name] for name in PROXIES}, "", "proxy", x=x, **SIZE),
        "prune.block_influence",
        x,
        curves["block_influence"],
        "1 - cos(h[s], h[s+n])",
        tuple(results),
    )


def early_exit(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """Agreement with the output and confidence, depth by depth."""
    probe = probe_of(results[0])
    assert isinstance(probe, EarlyExit)
    curves = aggregate(probe, [r.summary for r in results])
    lines = {"agreement": curves["agreement"], "confidence": curves["confidence"]}
    fig = figures.layer_curves(lines, "", "share", x="depth", **SIZE)
    caption = say.exits(writing.exits_of_prompts(results, probe.threshold))
    yield Together(
        "Early exit through the lens",
        caption,
        fig,
        "early_exit.agreement",
        "depth",
        curves["agreement"],
        "best token is the output's",
        tuple(results),
    )


def answers(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """The share of known answers that are written without each stretch."""
    probe = probe_of(results[0])
    assert isinstance(probe, ExactAnswers)
    curves = aggregate(probe, [r.summary for r in results])
    x = "first layer taken out" if probe.n > 1 else "layer taken out"
    behind = {"all layers": np.full(len(curves["exact"]), curves["exact_whole"])}
    yield Together(
        "Known answers that are written exactly",
        f"share of {len(results)} prompt{'s' * (len(results) > 1)}; whole, the model writes "
        f"{say.share(float(curves['exact_whole']))}",
        figures.layer_curves({"exact answers": curves["exact"]}, "", "share", x=x, behind=behind, **SIZE),
        "exact_answers.exact",
        x,
        curves["exact"],
        "share of known answers that are written exactly without the stretch",
        tuple(results),
    )


def layers_moved(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """The maps of layers left out, exchanged and run twice, and what the cheapest of every length adds to the loss."""
    probe = probe_of(results[0])
    assert isinstance(probe, Surgery)
    curves = among_others.over_prompts(probe, [r.summary for r in results])
    for kind in surgery.kinds_of(curves):
        drawn = results[0]["random_layer"].tolist() if kind == "repeat" else ()
        found, title = surgery.rows(curves, kind, drawn), SURGERY[kind]
        view = View(height=CURVES_HEIGHT + 140, width_px=WIDTH)
        said, dims = say.cheapest(float(curves["loss_whole"]), kind, found), ",".join(probe.spec(f"{kind}_loss").dims)
        fig = figures.surgery_map(curves, kind, view, chosen=found)
        name = f"{kind}_loss"
        yield Together(
            title, said, fig, f"surgery.{name}", dims, curves[name], probe.spec(name).meaning, tuple(results)
        )
        lines = surgery.added(curves, kind, found)
        if not lines:
            continue
        x = "distance" if kind == "swap" else "length of the stretch"
        yield Together(
            f"{title}, by {x}",
            f"loss above the whole model's {say.number(float(curves['loss_whole']))} nats per token",
            figures.added_curves(lines, x, **SIZE),
            f"surgery.{name}",
            x,
            lines["least"],
            "loss above the whole model's, of the variant that costs least",
            tuple(results),
        )


SURGERY = {"drop": "Loss without a stretch", "swap": "Loss with two exchanged", "repeat": "Loss with a stretch twice"}
OVER_SEVERAL: dict[type[Probe], Callable[[Sequence[ProbeResult]], Iterator[Together]]] = {
    Prune: prune,
    Surgery: layers_moved,
    EarlyExit: early_exit,
    ExactAnswers: answers,
}
"""Probes whose results are drawn together, over prompts, in place of their pictures."""


def _layers(drop: Sequence[int]) -> str:
    return f"layer{'s' * (len(drop) > 1)} {', '.join(map(str, sorted(drop)))}"


SMALL = View(height=CURVES_HEIGHT, width_px=WIDTH)


@dataclass(frozen=True)
class Drawing:
    """One figure with its words: `caption` says what is seen, `alt` the same for those who cannot see it. `measures`
    are those it shows."""

    title: str
    caption: str
    alt: str
    figure: go.Figure = field(repr=False)
    result: ProbeResult | None = field(default=None, repr=False)
    measures: tuple[str, ...] = ()
    over: Together | None = field(default=None, repr=False)
    reading: tuple[str, ...] = ()  # its numbers in words, where no measure holds them


@dataclass(frozen=True)
class Section:
    """What stands under one heading: the figures of a model and a prompt, or of several that one page showed
    together."""

    views: tuple[case_study.View, ...]
    drawings: tuple[Drawing, ...]
    says: tuple[str, ...] = ()  # sentences that stand above the figures

    @property
    def heading(self) -> str:
        """Model, precision, what else it is, and its layers: plain text."""
        models = dict.fromkeys(controls.full_name(m) for view in self.views for m in view.models)
        return f"{', '.join(models)}, {say.count(self.views[0].first.result.n_layers, 'layer')}"

    @property
    def prompts(self) -> list[Prompt]:
        return list(dict.fromkeys(prompt for view in self.views for prompt in view.prompts))

    @property
    def written(self) -> list[str]:
        """What *Writing* wrote, whole."""
        return [writing.text(found.result) for view in self.views if (found := view.by_probe.get(Generation.name))]

    @property
    def notes(self) -> list[str]:
        """What must stand beside the numbers, each once."""
        return list(
            dict.fromkeys(note for view in self.views for item in view.by_probe.values() for note in item.result.notes)
        )


def drawings(case: Case) -> list[Drawing]:
    """All figures, in the order of their sections."""
    return [drawing for section in sections(case) for drawing in section.drawings]


def by_name(case: Case) -> dict[str, Drawing]:
    """The figures by their titles in small letters; the second of a title is "… 2"."""
    found: dict[str, Drawing] = {}
    for drawing in drawings(case):
        name = drawing.title.lower()
        n = 1 + sum(d.title == drawing.title for d in found.values())
        found[name if n == 1 else f"{name} {n}"] = drawing
    return found


def sections(case: Case) -> list[Section]:
    """What a page showed together; else for every view the course of its answer where there is a verdict, then the
    figures of its results in their order."""
    if (page := _of_page(case)) is not None:
        return [page]
    verdicts = {id(view.first): v for view, v in case.verdicts()}
    compared = _of_pair(case, verdicts)
    first = [compared] if compared is not None else []
    return first + [
        Section((view,), tuple(_of_view(case, view, verdicts.get(id(view.first)))), tuple(_said(view)))
        for view in case.views
    ]


def _said(view: case_study.View) -> Iterator[str]:
    """The sentences of the pages that have no verdict."""
    if found := view.by_probe.get(Generation.name):
        yield say.exits(writing.exits(found.result))
    if found := view.by_probe.get(Loops.name):
        yield say.loops(aggregate(Loops(), [found.result.summary]))


def _of_page(case: Case) -> Section | None:
    """All results under one heading, where they were kept from a page over several prompts and still are
    what it shows."""
    views, results = case.views, [item.result for item in case.items]
    by_probe = {probe: [r for r in results if _probe(r) == probe] for probe in map(_probe, results)}
    series = {r.request.series for r in results}
    kind = {item.shown.page for item in case.items}
    drawn: list[Together] = []
    if len(kind & set(by_probe)) == len(kind) == 1 and find(*kind) in OVER_SEVERAL and len(series) == len(by_probe):
        drawn = [
            one
            for probe, together in OVER_SEVERAL.items()
            if probe.name in by_probe
            for one in together(by_probe[probe.name])
        ]
    return Section(tuple(views), tuple(map(_over, drawn))) if drawn else None


def _of_pair(case: Case, verdicts: dict[int, Verdict]) -> Section | None:
    """What differs between the two sides of a comparison, as its page shows it: the sentence, the ruler, the curves and
    the maps of differences; None where nothing was compared."""
    if {item.shown.page for item in case.items} != {"two"} or len(case.views) != 2:
        return None
    swapped = dict(case.items[0].shown.settings).get("swapped") is True
    a, b = reversed(case.views) if swapped else case.views
    by_model = a.models != b.models
    names = [
        controls.full_name(v.models[0]) if by_model else f"“{case_study.cut(v.prompts[0].text, 24)}”" for v in (a, b)
    ]
    found = [verdicts.get(id(view.first)) for view in (a, b)]
    first, second = found
    said = say.both(first, second) if first is not None and second is not None else ""
    drawn = []
    if first is not None and second is not None:
        fig = figures.pair_ruler((first, second), (first.n_layers, second.n_layers), (names[0], names[1]))
        drawn.append(Drawing("Both on one ruler", f"A: {names[0]}; B: {names[1]}", said, fig))
    for name in (name for name in a.by_probe if name in b.by_probe and find(name).curves):
        drawn += _differences(a.by_probe[name].result, b.by_probe[name].result, (names[0], names[1]))
    return Section((a, b), tuple(drawn), (said,) if said else ()) if drawn else None


def _differences(a: ProbeResult, b: ProbeResult, names: tuple[str, str]) -> Iterator[Drawing]:
    """A probe's curves of both sides, and its map of B - A where cells mean the same."""
    for pair in side_by_side.pairs((probe_of(a), probe_of(b)), a, b):
        said = say.pair(pair)
        fig = figures.pair_curves(pair, names, CURVES_HEIGHT)
        yield Drawing(f"A and B: {pair.curve.title.lower()}", said, said, fig)
    shown = next(iter(find(a.request.probe).pictures or ()), None)
    measure = measures(shown, Look())[0] if shown is not None else ""
    if not measure or any(measure not in result.measures for result in (a, b)):
        return
    if side_by_side.no_difference(a, b, a.measures[measure].spec.dims):
        return
    fig = figures.difference_map(a, b, measure, View(height=HEIGHT, width_px=WIDTH), True)
    caption = "orange: larger in B, blue: larger in A"
    yield Drawing(f"B − A: {find(a.request.probe).title.lower()}", caption, f"B minus A: {caption}", fig)


def _probe(result: ProbeResult) -> str:
    return result.request.probe


def _over(one: Together) -> Drawing:
    return Drawing(one.title, one.caption, f"{one.title}: {one.caption}", one.figure, over=one)


def _of_view(case: Case, view: case_study.View, found: Verdict | None) -> Iterator[Drawing]:
    lens = view.by_probe.get("logit_lens")
    if found is not None and lens is not None and "top_ids" in lens.result.measures:
        course = Course.of(lens.result)
        yield Drawing(
            "Course of the answer",
            f"rank of “{shown(course.word)}” in the lens after each layer",
            say.verdict(found),
            figures.course(course, found, width_px=WIDTH),
            reading=(*say.why(found), *(say.rule(rule) for rule in found.rules.values())),
        )
    twin = _control_of(case, view)
    for item in view.by_probe.values():
        yield from _of_item(case, item, found, twin)


def _control_of(case: Case, view: case_study.View) -> case_study.View | None:
    """The same prompt on a control of the same model, where the case study holds one: its curves stand behind the
    model's."""

    def same(other: case_study.View) -> bool:
        return bool(
            other.prompts == view.prompts
            and other.models[0].control
            and other.models[0].source == view.models[0].source
        )

    return None if view.models[0].control else next(filter(same, case.views), None)


def _of_item(case: Case, item: Item, found: Verdict | None, twin: case_study.View | None) -> Iterator[Drawing]:
    result, window = item.result, item.shown.window
    behind = twin.by_probe.get(result.request.probe) if twin is not None else None
    view = View(
        height=HEIGHT,
        width_px=WIDTH,
        window=window,
        selected=item.shown.selected,
        answer_start=result.answer_start,
        depth_lines=found.layers if found is not None else {},
        sinks=tuple(s.pos for of in (found.sinks if found else ()) for s in of or ()),
        count_sinks=dict(item.shown.settings).get("count_sinks", False) is True,
        read_at=positions(result, found.read_for) if found is not None else None,
        read_for=say.read_for(found.read_for, result.answer_start is not None) if found is not None else "",
        control=behind.result if behind is not None else None,
        control_name=controls.KINDS[twin.models[0].control] if twin is not None and behind is not None else "",
    )
    probe = find(result.request.probe)
    asked = "".join(f" · {words}" for words in _asked(probe_of(result)))
    if probe in OVER_SEVERAL:
        yield from map(_over, OVER_SEVERAL[probe]([result]))
        return
    for title, caption, fig, *shows in _drawn(case, item, view):
        caption += asked
        alt = figures.describe_curves(fig, f"{title}: {caption}")
        if shows and figures.is_map(fig):
            place = dict(item.shown.settings).get("boundary")
            one = place if isinstance(place, int) and shows[0] == "effect_by_boundary" else None
            alt = figures.describe(result, shows[0], one)
        yield Drawing(title, caption, alt, fig, result, tuple(shows))


def _drawn(case: Case, item: Item, view: View) -> Iterator[tuple[Any, ...]]:
    """Title, caption, figure and measures of a result's pictures, as it was looked at."""
    result = item.result
    if find(result.request.probe) is Loops:
        for _, title, measure, x, name, line in figures.loop_curves(aggregate(Loops(), [result.summary])):
            unit = result.measures[measure].spec.unit
            yield title, f"{name} by {x}", figures.layer_curves({name: line}, "", unit, x=x, **SIZE), measure
        return
    if find(result.request.probe).pictures is None:
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
        fig = draw(picture, result, SMALL if picture.low else view, look)
        said = picture_caption(picture, result, look) + curve_of(picture, view, look)
        yield picture.title, said, fig, *measures(picture, look)


def _asked(probe: Probe) -> Iterator[str]:
    """The parameters that are not at their defaults, in words; a file by its name, as its folder tells a stranger
    nothing."""
    for f in fields(probe):
        if f.name in probe.settings():
            label, words = described(f, getattr(probe, f.name))
            yield f"{label}: {shown(words.rpartition('/')[2], 40)}"


def _aggregates(case: Case, item: Item) -> Iterator[tuple[Any, ...]]:
    """Curves over whatever the layers are called, one figure per unit and length."""
    probe = probe_of(item.result)
    grouped: dict[tuple[str, str, int], dict[str, np.ndarray]] = {}
    for name, values in aggregate(probe, [item.result.summary], case.first_token).items():
        if values.ndim == 1 and len(values) > 1 and not name.endswith("_mean"):
            spec = probe.spec(name)
            grouped.setdefault((spec.dims[0], spec.unit, len(values)), {})[name] = values
    for (dim, unit, _), curves in grouped.items():
        yield (
            probe.title,
            ", ".join(curves),
            figures.layer_curves(curves, "", unit, x=dim, height=CURVES_HEIGHT, width_px=WIDTH),
            *curves,
        )


def says(continuation: ProbeResult) -> tuple[str, bool | None]:
    """What the model continues with, on one line of plain text, and whether that is the known answer (None where none
    is known)."""
    return shown(str(continuation.provenance.get("continuation", "")), 80), is_right(continuation)
