"""Heatmaps over tokens: contributions, cosines, whose prediction a skip changes, and any other measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from ..depth.rules import COSINES
from ..probes.patching import Patching
from ..types import ProbeResult
from . import colours
from .canvas import number
from .panel import Strip, View, mean_over_tokens, token_panel, without

RATIO_DECADES, NORM_DECADES = ((-2, 0), (-3, 1)), ((0, 2), (-2, 5))
# colour ranges of measures that have none of their own
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1000.0)
ROW_CURVES = {  # a measure's own reduction over tokens: what the strip next to its map shows
    "pos_abs_sum": (lambda z: np.where(np.isfinite(z).any(1), np.nansum(np.abs(z), 1), np.nan), "sum of magnitudes"),
    "pos_max": (lambda z: np.fmax.reduce(z, axis=1), "maximum"),
}
DAMAGED = ("L2 of probabilities", "relative change")  # units of what an intervention breaks

L2 = "L2, at most √2"  # the largest distance of two probability vectors


def values_of(result: ProbeResult, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a measure's values, all NaN where the result does not have it (yet); missing integers (-1) become NaN
    too."""
    if name not in result.measures:
        return np.full(shape, np.nan, np.float32)
    values = result[name]
    return np.where(values < 0, np.nan, values).astype(np.float32) if values.dtype.kind == "i" else values


def unit_of(result: ProbeResult, name: str) -> str:
    """Return a measure's unit; "" where the result does not have it."""
    return result.measures[name].spec.unit if name in result.measures else ""


def missing(result: ProbeResult) -> str:
    """Return the words for a NaN: not defined, or not computed yet."""
    return "not defined here" if result.complete else "not computed yet"


def contribution_norms(
    result: ProbeResult, view: View, measure: str = "layer_ratio", first_token: bool = True
) -> go.Figure:
    """Return a heatmap, layers × tokens, of how much each block adds to the stream, colour by logarithm.

    The colours reach from the 5 % to the 90 % quantile of the cells (whole decades while they fill), without the sinks
    and the first token, whose norm is often huge; `first_token`: whether the strip's mean counts it."""

    def values(r: ProbeResult) -> np.ndarray:
        """Return the cells."""
        return values_of(r, measure, (r.n_layers, r.n_tokens))

    z = values(result)
    limits = NORM_DECADES if measure.endswith("norm") else RATIO_DECADES
    coloured = view.coloured(result, values, first_token=False)
    ends = colours.spread(coloured, limits[0]) if result.complete else colours.decades(coloured, *limits)
    shade = colours.logarithmic(*ends)

    def curve(r: ProbeResult) -> np.ndarray:
        """Return the mean per layer."""
        return view.mean(values(r), first_token)

    mean, control = curve(result), view.behind(curve)
    low, high = colours.decades(np.append(view.together(result, curve), control.get("behind", [])), limits[0], (-6, 6))
    title, colour = mean_title(first_token, view.uncounted), colours.colour_of(measure) or colours.GREY
    strip = Strip(mean, 10.0**low, 10.0**high, title, colour, log=True, **control)
    row = "layer" if len(z) == result.n_layers else "depth"
    return token_panel(result, view, z, shade, unit_of(result, measure), strip, plain_hover(result, measure, z), row)


def cosine_map(result: ProbeResult, view: View, measure: str = "layer_cos", first_token: bool = True) -> go.Figure:
    """Return a heatmap, layers × tokens, of the cosine between an addition to the stream and the stream before it,
    from -1 to 1: below 0 (blue) it writes against the stream, above 0 (orange) along it. `measure`: attention's, the
    MLP's or both.

    The strip shows the mean that the cosine rule reads, of all three cosines: a line without the attention sinks,
    dotted with them. Of another cosine it shows the mean over tokens."""
    z, judged = values_of(result, measure, (result.n_layers, result.n_tokens)), measure in COSINES

    def cosines(r: ProbeResult) -> list[np.ndarray]:
        """Return the cosines whose mean is shown."""
        return [values_of(r, name, (r.n_layers, r.n_tokens)) for name in (COSINES if judged else (measure,))]

    curves, numbers = (view if judged else replace(view, read_at=None)).read(result, cosines, first_token)
    bound, colour = colours.ceiling(numbers, (0.5, 1.0)), colours.CRITERIA["cosine"]
    title = read_title("mean of the<br>three cosines", view, first_token)
    if not judged:
        title, colour = mean_title(first_token, view.uncounted), colours.GREY
        curves.pop("counted", None)
    strip = Strip(low=-bound, high=bound, title=title, colour=colour, **curves)
    return token_panel(
        result, view, z, colours.signed(), unit_of(result, measure), strip, plain_hover(result, measure, z)
    )


def token_map(
    result: ProbeResult, view: View, measure: str, left_out: Callable[[ProbeResult], Sequence[int]] = lambda _: ()
) -> go.Figure:
    """Return a heatmap of a measure without a map of its own, over layers or depths and tokens: diverging around 0
    where it has no lower bound, else from 0. The strip has its reduction over tokens, without the positions
    `left_out`."""
    z, spec = values_of(result, measure, ()), result.measures[measure].spec
    row = "skipped layer" if spec.dims[0] == "skipped" else spec.dims[0]
    bound = spec.high or colours.ceiling(view.coloured(result, lambda r: r[measure]), BOUNDS)
    low = 0.0 if spec.low is not None and spec.low >= 0 else -bound
    scale = colours.DAMAGE if spec.unit in DAMAGED else colours.SEQUENTIAL
    shade = colours.signed(bound) if low < 0 else colours.steep(0.0, bound, scale)
    reduce = "pos_max" if row == "skipped layer" else spec.reduce  # as the change of the output is
    reduced, title = ROW_CURVES.get(reduce, (mean_over_tokens, mean_title()))
    first, out = left_out(result)[:1], () if spec.reduce == "pos_abs_sum" else view.uncounted  # a sum must stay whole
    title += "".join(f" without<br>token {t}" for t in first) + (" and sinks" if first else ",<br>no sinks") * bool(out)
    title += (", L2 ≤ √2" if first else f",<br>{L2}") * (bound == 2**0.5 and not out)

    def rows(r: ProbeResult) -> np.ndarray:
        """Return the strip."""
        row: np.ndarray = reduced(without(r[measure], {*left_out(r), *out}))
        return row

    curve, control = rows(result), view.behind(rows)
    if spec.reduce == "pos_abs_sum":
        low, bound = (0.0, colours.ceiling(np.append(view.together(result, rows), control.get("behind", [])), BOUNDS))
    strip = Strip(curve, low, bound, title, colours.BOTH if control else colours.GREY, **control)
    return token_panel(result, view, z, shade, spec.unit, strip, plain_hover(result, measure, z), row)


def patch_map(result: ProbeResult, view: View) -> go.Figure:
    """Return a heatmap of what each token carries over when patched at each depth, from -1 (blue) to 1 (orange).

    The strip has the position that predicts the answer, dashed a random vector in its place; lines: where the other
    answer is decided, and where the lens settles on it."""
    z, last, random = (result[name] for name in ("patch", "last", "random"))
    lines = {name: None if depth is None else depth - 1 for name, depth in Patching.depths(result).items()}
    both = np.append(last, random)
    low, high = float(np.nanmin(both, initial=-0.1)), float(np.nanmax(both, initial=1.0))
    strip = Strip(last, low, high, "at the answer", behind=random, behind_name="random vector")
    shown = replace(view, depth_lines=lines)
    hover = plain_hover(result, "patch", z)
    return token_panel(result, shown, z, colours.signed(1.0), unit_of(result, "patch"), strip, hover, "depth")


def mean_title(first_token: bool = True, uncounted: Sequence[int] = ()) -> str:
    """Return a strip's title, "mean", and which tokens it leaves out."""
    if uncounted:
        return "mean, no sinks" if first_token else "mean, no first<br>and no sinks"
    return "mean" if first_token else "mean, no first"


ROOM = 12  # letters that stand behind a strip's title on one line


def read_title(what: str, view: View, first_token: bool = True) -> str:
    """Return a strip's title for the curve that a rule is read off, and at which tokens."""
    tail = view.read_for if view.read_at is not None else "" if first_token else "no first"
    return f"{what},{'<br>' if len(tail) > ROOM else ' '}{tail}" if tail else what


def plain_hover(result: ProbeResult, name: str, z: np.ndarray) -> Callable[[int, int], str]:
    """Return a function of (row, column): a cell's hover text, the value with its unit, or why it has none."""
    unit, absent = unit_of(result, name), missing(result)
    return lambda row, column: f"{number(z[row, column])} {unit}" if np.isfinite(z[row, column]) else absent
