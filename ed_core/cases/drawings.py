"""A case study's figures, from its numbers alone: which ones a probe's result has, and how it was looked at. No torch,
no streamlit.

The report and the import's last check draw these. Which pictures a probe has it says itself
(`probes.description.Picture`); where it has none, its aggregates are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import plotly.graph_objects as go

from .. import figures
from ..depth.verdict import Verdict, right
from ..figures import View
from ..figures.canvas import shown
from ..figures.pictures import CURVES_HEIGHT, HEIGHT, WIDTH, Look, beside, draw, measures, pictures
from ..figures.pictures import caption as picture_caption
from ..probes import Probe, find
from ..probes.base import told
from ..results.aggregate import aggregate, probe_of
from ..sources import controls
from ..types import ProbeResult, Prompt
from . import case_study, combined
from .case_study import Case, Item
from .combined import Together

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
        return f"{', '.join(models)}, {self.views[0].first.result.n_layers} layers"

    @property
    def prompts(self) -> list[Prompt]:
        return list(dict.fromkeys(prompt for view in self.views for prompt in view.prompts))

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
    """What a page showed together; else for every view the depth ruler where there is a verdict, then the figures of
    its results in their order."""
    if (page := _of_page(case)) is not None:
        return [page]
    verdicts = {id(view.first): v for view, v in case.verdicts()}
    return [Section((view,), tuple(_of_view(case, view, verdicts.get(id(view.first))))) for view in case.views]


def _of_page(case: Case) -> Section | None:
    """All results under one heading, where they were kept from a page over several prompts or precisions and still are
    what it shows."""
    views, results = case.views, [item.result for item in case.items]
    by_probe, by_precision = (
        {key: [r for r in results if of(r) == key] for key in map(of, results)} for of in (_probe, _precision)
    )
    series = {r.request.series for r in results}
    kind = {item.shown.page for item in case.items}
    says: list[str] = []
    drawn: list[Together] = []
    if (
        len(kind & set(by_probe)) == len(kind) == 1
        and find(*kind) in combined.OVER_SEVERAL
        and len(series) == len(by_probe)
    ):
        drawn = [
            one
            for probe, together in combined.OVER_SEVERAL.items()
            if probe.name in by_probe
            for one in together(by_probe[probe.name])
        ]
    elif (
        kind == {"audit"}
        and len(by_precision) > 1
        and len({tuple((r.request.probe, r.request.prompts) for r in of) for of in by_precision.values()}) == 1
    ):
        says, drawn = combined.audited(by_precision)
    return Section(tuple(views), tuple(map(_over, drawn)), tuple(says)) if drawn else None


def _probe(result: ProbeResult) -> str:
    return result.request.probe


def _precision(result: ProbeResult) -> str:
    return result.request.models[0].precision


def _over(one: Together) -> Drawing:
    return Drawing(one.title, one.caption, f"{one.title}: {one.caption}", one.figure, over=one)


def _of_view(case: Case, view: case_study.View, found: Verdict | None) -> Iterator[Drawing]:
    if found is not None:
        fig = figures.depth_ruler(
            found.criteria,
            view.first.result.n_layers,
            bands=found.bands,
            statements=found.statements,
            cosine=found.curves.get("cosine"),
            means=found.means,
            turn=found.turn,
            seen=found.seen,
        )
        yield Drawing(
            "Depth ruler",
            "circles: depths without a threshold, and the answer's; diamonds: the papers' rules, hollow: not clear; "
            "colour: the mean cosine",
            found.sentence,
            fig,
            reading=tuple(found.reasons),
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
        depth_lines=found.lines if found is not None else {},
        sinks=tuple(s.pos for s in (found and found.sinks) or ()),
        count_sinks=dict(item.shown.settings).get("count_sinks", False) is True,
        control=behind.result if behind is not None else None,
        control_name=controls.KINDS[twin.models[0].control] if twin is not None and behind is not None else "",
    )
    probe = find(result.request.probe)
    asked = "".join(f" · {words}" for words in _asked(probe_of(result)))
    if probe in combined.OVER_SEVERAL:
        yield from map(_over, combined.OVER_SEVERAL[probe]([result]))
        return
    for title, caption, fig, *shows in _drawn(case, item, view):
        caption += asked
        alt = " ".join(figures.describe(result, name) for name in shows[:1]) or f"{title}: {caption}"
        yield Drawing(title, caption, alt, fig, result, tuple(shows))


def _drawn(case: Case, item: Item, view: View) -> Iterator[tuple[Any, ...]]:
    """Title, caption, figure and measures of a result's pictures, as it was looked at."""
    result = item.result
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
        said = picture_caption(picture, result, look) + beside(picture, view, look)
        yield picture.title, said, fig, *measures(picture, look)


def _asked(probe: Probe) -> Iterator[str]:
    """The parameters that are not at their defaults, in words; a file by its name, as its folder tells a stranger
    nothing."""
    for f in fields(probe):
        if f.name in probe.settings():
            label, words = told(f, getattr(probe, f.name))
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
    return shown(str(continuation.provenance.get("continuation", "")), 80), right(continuation)
