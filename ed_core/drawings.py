"""A case study's figures, from its numbers alone: which ones a probe's result has, and how it was looked at. No torch, no streamlit.

The report and the import's last check draw these; a page may too. A new probe gets its line in `OF_PROBE`; without one its aggregates are drawn.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import plotly.graph_objects as go

from . import figures
from .aggregate import aggregate, probe_of
from .cases import Case, Item
from .figures import View
from .figures.text import shown
from .probes.integrated_gradients import incomplete
from .types import ProbeResult
from .verdict import right

HEIGHT, CURVES_HEIGHT = 420, 280
MIDDLE = {"layer": "both", "attn": "attention", "mlp": "MLP"}


@dataclass(frozen=True)
class Drawing:
    """One figure with its words: `caption` says what is seen, `alt` the same for those who cannot see it. `measures` are those it shows."""

    title: str
    caption: str
    alt: str
    figure: go.Figure = field(repr=False)
    result: ProbeResult | None = field(default=None, repr=False)
    measures: tuple[str, ...] = ()


def drawings(case: Case) -> list[Drawing]:
    """All figures: for every view the depth ruler where there is a verdict, then those of its results in their order."""
    verdicts = {id(item.result): v for view, v in case.verdicts() for item in view.by_probe.values()}
    drawn: list[Drawing] = []
    for number, view in enumerate(case.views, 1):
        items, of_view = list(view.by_probe.values()), []
        found = verdicts.get(id(items[0].result))
        if found is not None:
            fig = figures.depth_ruler(found.criteria, items[0].result.n_layers, bands=found.bands, published=figures.published_marks())
            of_view.append(Drawing("Depth ruler", "the three criteria, never averaged; ticks below: published models", found.sentence, fig))
        for item in items:
            of_view += _of_item(case, item, found.lines if found is not None else {})
        drawn += of_view if len(case.views) == 1 else [replace(d, title=f"{number}. {view.named}: {d.title}") for d in of_view]
    return drawn


def _of_item(case: Case, item: Item, lines: dict[str, int | None]) -> Iterator[Drawing]:
    result, window = item.result, item.shown.window
    view = View(height=HEIGHT, width_px=760, window=window, selected=item.shown.selected, answer_start=result.answer_start, depth_lines=lines)
    for title, caption, fig, *measures in OF_PROBE.get(result.request.probe, _aggregates)(case, item, view):
        alt = " ".join(figures.describe(result, name) for name in measures[:1]) or f"{title}: {caption}"
        yield Drawing(title, caption, alt, fig, result, tuple(measures))


Drawn = Iterator[tuple[Any, ...]]  # title, caption, figure, measures


def _contributions(case: Case, item: Item, view: View) -> Drawn:
    branch = item.shown.setting("branch", "layer")
    who, result = MIDDLE[branch], item.result
    norms, cosine = f"{branch}_ratio", f"{branch}_cos"
    yield "Contribution norms", f"{who}: size of what is added, against the stream", figures.contribution_norms(result, view, norms, case.first_token), norms
    yield "Cosine with the stream", f"{who}: below 0 erases, above 0 strengthens", figures.cosine_map(result, view, cosine, case.first_token), cosine


def _logit_lens(case: Case, item: Item, view: View) -> Drawn:
    shade = item.shown.setting("shade", "prob")
    measure = "top_probs" if shade == "prob" else shade
    yield "Logit lens", f"best token at each depth, shaded by {shade}", figures.lens_map(item.result, view, shade), measure, "top_ids"


def _layer_skip(case: Case, item: Item, view: View) -> Drawn:
    caption = "row left out, column affected: 0 does not care, 1 changes as much as its own size"
    yield "Layer skip", caption, figures.skip_map(item.result, view), "effect"
    bars = figures.output_bars(item.result, View(height=CURVES_HEIGHT, width_px=760))
    yield "Layer skip, output", "change of the prediction, and share of tokens whose best guess stays", bars, "output", "top1_kept"


def _erasure(case: Case, item: Item, view: View) -> Drawn:
    yield "Residual erasure", "change of the prediction when this token is erased at this depth", figures.token_map(item.result, view, "effect"), "effect"


def _gradients(case: Case, item: Item, view: View) -> Drawn:
    failed = incomplete(item.result)
    caption = "share of the answer's probability that rests on this token" + ("; crossed out: completeness fails" if failed else "")
    yield "Integrated gradients", caption, figures.token_map(item.result, view, "attribution", failed), "attribution"


def _continuation(case: Case, item: Item, view: View) -> Drawn:
    """Words, not a figure: see `says`."""
    return iter(())


def _aggregates(case: Case, item: Item, view: View) -> Drawn:
    """Curves over whatever the layers are called, one figure per unit and length."""
    probe, together = probe_of(item.result), {}
    for name, values in aggregate(probe, [item.result.summary], case.first_token).items():
        if values.ndim == 1 and len(values) > 1 and not name.endswith("_mean"):
            spec = probe.spec(name)
            together.setdefault((spec.dims[0], spec.unit, len(values)), {})[name] = values
    for (dim, unit, _), curves in together.items():
        yield probe.title, ", ".join(curves), figures.layer_curves(curves, "", unit, x=dim, height=CURVES_HEIGHT, width_px=760), *curves


OF_PROBE: dict[str, Callable[[Case, Item, View], Drawn]] = {
    "contributions": _contributions,
    "logit_lens": _logit_lens,
    "layer_skip": _layer_skip,
    "residual_erasure": _erasure,
    "integrated_gradients": _gradients,
    "continuation": _continuation,
}


def says(continuation: ProbeResult) -> tuple[str, bool | None]:
    """What the model continues with, on one line of plain text, and whether that is the known answer (None where none is known)."""
    return shown(str(continuation.provenance.get("continuation", "")), 80), right(continuation)
