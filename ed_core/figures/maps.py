"""Heatmaps over tokens: contributions, cosines, the logit lens, and whose prediction a skip changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .panel import Strip, View, mean_over_tokens, token_panel
from .text import number, visible, width

RATIO_DECADES, NORM_DECADES = ((-2, 0), (-3, 1)), ((0, 2), (-2, 5))
BOUNDS = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    100.0,
    1000.0,
)  # colour ranges of measures that have none of their own
TOP_SHOWN = 5
ROW_CURVES = {  # a measure's own reduction over tokens: what the strip beside its map shows
    "pos_abs_sum": (lambda z: np.where(np.isfinite(z).any(1), np.nansum(np.abs(z), 1), np.nan), "sum of magnitudes"),
    "pos_max": (lambda z: np.fmax.reduce(z, axis=1), "maximum"),
}
CELL_FONT, SMALL_FONT, SMALLEST_FONT = (
    11,
    8,
    7,
)  # pixels: where there is room, where columns are narrow, and below it none


def values_of(result: ProbeResult, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A measure's values, all NaN where the result does not have it (yet); missing integers (-1) become NaN too."""
    if name not in result.measures:
        return np.full(shape, np.nan, np.float32)
    values = result[name]
    return np.where(values < 0, np.nan, values).astype(np.float32) if values.dtype.kind == "i" else values


def unit_of(result: ProbeResult, name: str) -> str:
    return result.measures[name].spec.unit if name in result.measures else ""


def missing(result: ProbeResult) -> str:
    """What to say of a NaN."""
    return "not defined here" if result.complete else "not computed yet"


def contribution_norms(
    result: ProbeResult, view: View, measure: str = "layer_ratio", first_token: bool = True
) -> go.Figure:
    """How much each block adds, layers × tokens, colour by logarithm.

    The colour range leaves out the first token, whose norm is huge in many models; `first_token` says whether the
    strip's mean counts it."""

    def values(r):
        return values_of(r, measure, (r.n_layers, r.n_tokens))

    z = values(result)
    limits = NORM_DECADES if measure.endswith("norm") else RATIO_DECADES
    shade = colours.logarithmic(
        *colours.decades(view.together(result, lambda r: values(r)[:, 1:] if r.n_tokens > 1 else values(r)), *limits)
    )

    def curve(r):
        return mean_over_tokens(values(r), first_token)

    mean, behind = curve(result), view.behind(curve)
    low, high = colours.decades(np.append(view.together(result, curve), behind.get("behind", [])), limits[0], (-6, 6))
    strip = Strip(
        mean,
        10.0**low,
        10.0**high,
        mean_title(first_token),
        colours.colour_of(measure) or colours.GREY,
        log=True,
        **behind,
    )
    row = "layer" if len(z) == result.n_layers else "depth"
    return token_panel(result, view, z, shade, unit_of(result, measure), strip, plain_hover(result, measure, z), row)


def cosine_map(result: ProbeResult, view: View, measure: str = "layer_cos", first_token: bool = True) -> go.Figure:
    """Direction of what is added, layers × tokens: below 0 (blue) it erases, above 0 (orange) it strengthens. Always
    from -1 to 1."""
    z = values_of(result, measure, (result.n_layers, result.n_tokens))

    def curve(r):
        return mean_over_tokens(values_of(r, measure, (r.n_layers, r.n_tokens)), first_token)

    mean, behind = curve(result), view.behind(curve)
    bound = colours.ceiling(np.append(view.together(result, curve), behind.get("behind", [])), (0.5, 1.0))
    strip = Strip(mean, -bound, bound, mean_title(first_token), colours.colour_of(measure) or colours.GREY, **behind)
    return token_panel(
        result, view, z, colours.signed(), unit_of(result, measure), strip, plain_hover(result, measure, z)
    )


def lens_map(result: ProbeResult, view: View, shade: str = "prob", text: bool = True) -> go.Figure:
    """What the stream would predict at every depth: the best token in the cell, rows 0 to L (row l has l blocks behind
    it, L is the output).

    `shade`: "prob" (probability of that token), "kl", "jsd", "entropy" or "rank"; bright is always near the output or
    sure."""

    def shape(r):
        return (r.n_layers + 1, r.n_tokens)

    probs, ids = values_of(result, "top_probs", (*shape(result), 1)), result.measures.get("top_ids")

    def shaded(r):
        return values_of(r, "top_probs", (*shape(r), 1))[..., 0] if shade == "prob" else values_of(r, shade, shape(r))

    z, behind = shaded(result), view.behind(lambda r: mean_over_tokens(shaded(r)))
    colour = _lens_shade(shade, view.together(result, shaded))
    unit = unit_of(result, "top_probs" if shade == "prob" else shade)
    strip = Strip(
        mean_over_tokens(z),
        colour.low,
        colour.high,
        mean_title(),
        colours.BOTH if behind else colours.GREY,
        colour.log,
        **behind,
    )
    names = {token: visible(words) for token, words in result.token_text.items()}

    def hover(depth: int, token: int) -> str:
        if ids is None or ids.values[depth, token, 0] < 0:
            return missing(result)
        best = list(zip(ids.values[depth, token].tolist(), probs[depth, token].tolist()))[:TOP_SHOWN]
        lines = [f"{number(p)}  {names.get(i, f'id {i}')}" for i, p in best]
        return "<br>".join(lines if shade == "prob" else [f"{number(z[depth, token])} {unit}", *lines])

    written = _cell_text(result, view, ids.values[..., 0]) if text and ids is not None else None
    return token_panel(result, view, z, colour, unit, strip, hover, row="depth", cell_text=written)


def output_by_token(result: ProbeResult, view: View) -> go.Figure:
    """Which token's prediction changes when a block is skipped, skipped × tokens (current mode); the strip holds the
    maximum over tokens."""
    z = values_of(result, "output_pos", (result.n_layers, result.n_tokens))
    shade = colours.steep(0.0, 2**0.5)
    strip = Strip(values_of(result, "output", (result.n_layers,)), 0.0, 2**0.5, "maximum")
    fig = token_panel(
        result,
        view,
        z,
        shade,
        unit_of(result, "output_pos"),
        strip,
        plain_hover(result, "output_pos", z),
        row="skipped",
    )
    if "output_pos" not in result.measures and result.complete:
        fig.add_annotation(
            text="measured in current mode only", x=0.5, y=0.5, xref="x domain", yref="y domain", showarrow=False
        )
    return fig


def token_map(result: ProbeResult, view: View, measure: str, failed: Sequence[int] = ()) -> go.Figure:
    """Any other measure over layers or depths and tokens: diverging around 0 where it has no lower bound
    (attributions), from 0 else. Rows that `failed` are crossed out: what stands there is not to be relied on. The strip
    holds the measure's own reduction over tokens."""
    z, spec = result[measure], result.measures[measure].spec
    bound = spec.high or colours.ceiling(view.together(result, lambda r: r[measure]), BOUNDS)
    low = 0.0 if spec.low is not None and spec.low >= 0 else -bound
    shade = colours.signed(bound) if low < 0 else colours.steep(0.0, bound)
    of_rows, title = ROW_CURVES.get(spec.reduce, (mean_over_tokens, mean_title()))
    curve, behind = of_rows(z), view.behind(lambda r: of_rows(r[measure]))
    if spec.reduce == "pos_abs_sum":
        low, bound = (
            0.0,
            colours.ceiling(
                np.append(view.together(result, lambda r: of_rows(r[measure])), behind.get("behind", [])), BOUNDS
            ),
        )
    strip = Strip(curve, low, bound, title, colours.BOTH if behind else colours.GREY, **behind)
    return crossed_out(
        token_panel(result, view, z, shade, spec.unit, strip, plain_hover(result, measure, z), spec.dims[0]), failed
    )


def crossed_out(fig: go.Figure, rows: Sequence[int]) -> go.Figure:
    """The map with a line through rows that are not to be relied on."""
    for row in rows:
        fig.add_shape(
            type="line",
            x0=0,
            x1=1,
            xref="x domain",
            y0=row,
            y1=row,
            line=dict(color=colours.FAILED, width=3),
            name="not reliable",
        )
    return fig


def mean_title(first_token: bool = True) -> str:
    return "mean" if first_token else "mean, no first"


def plain_hover(result: ProbeResult, name: str, z: np.ndarray) -> Callable[[int, int], str]:
    """Hover text for a cell: the value with its unit, or why there is none."""
    unit, absent = unit_of(result, name), missing(result)
    return lambda row, column: f"{number(z[row, column])} {unit}" if np.isfinite(z[row, column]) else absent


def _lens_shade(shade: str, z: np.ndarray) -> colours.Shade:
    if shade == "prob":
        return colours.linear(0.0, 1.0)
    if shade == "jsd":
        return colours.linear(0.0, 1.0, reverse=True)
    if shade == "rank":
        return colours.logarithmic(*colours.decades(z, (0, 3), (0, 6)), reverse=True)
    return colours.linear(0.0, colours.ceiling(z, (5.0, 10.0, 20.0, 50.0)), reverse=True)


def _cell_text(result: ProbeResult, view: View, best: np.ndarray) -> dict:
    """The best token for each cell that is wide enough for it; plotly picks light or dark letters by the cell's
    colour."""
    n_tokens, column = best.shape[1], view.column_px(best.shape[1])
    size = int(min(CELL_FONT, view.plot_height / (result.n_layers + 1) - 4, max(SMALL_FONT, column / 4)))
    fits = {
        i: visible(words, 12) for i, words in result.token_text.items() if 0.62 * size * width(words, 12) + 3 <= column
    }
    if size < SMALLEST_FONT or not fits:
        return {}
    first, last = view.span(n_tokens)
    text = [[fits.get(i, "") if first <= x <= last else "" for x, i in enumerate(row)] for row in best.tolist()]
    return dict(text=text, texttemplate="%{text}", textfont=dict(size=size))
