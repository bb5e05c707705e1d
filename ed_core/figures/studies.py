"""What studies found, in figures: depths with their ranges on one axis of relative depth, and curves of several models
over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from ..depth import say
from ..depth.published import TRAINING
from ..depth.rules import RULES
from ..depth.side_by_side import relative_depth
from . import colours
from .canvas import FONT, GRID, PLAIN, Canvas, axis_title, cut, escaped, log_ticks, share_axis, whiskers

WIDTH = 1100  # pixels
ROW, TOP, BOTTOM, SIDE = 40, 30, 44, 10  # likewise
LEGEND_ROW = 19  # likewise
VARIANTS = {
    "mean": "average depth",
    "paper": "the papers' rule",
    "stable": "stable",
    "from_depth_1": "from depth 1",
    "without_sinks": "without sinks",
}
HOLLOW = ("stable", "from_depth_1", "without_sinks")
MEAN = "mean"  # the variant that is a depth between layers
NOT_DEFINED = "not defined"
PUBLISHED = "published"
THRESHOLD = "#7F7F7F"  # other thresholds
SOURCES = {"measured": colours.BOTH, PUBLISHED: colours.OTHERS[0]}
SHAPES = dict(zip((*TRAINING, ""), ("circle", "square", "diamond", "triangle-up", "cross")))
SHORT = dict(zip((*TRAINING, ""), ("base", "math", "instruct", "long CoT", "unknown")))  # of a legend on a phone
LINES = (colours.ATTENTION, colours.MLP, colours.BOTH, *colours.OTHERS)
DASHES = ("solid", "dash", "dot", "dashdot")


def study_depths(
    rows: Sequence[Mapping[str, Any]], label: str, thresholds: Mapping[str, tuple[float, float]] | None = None
) -> go.Figure:
    """Return a figure of one line per value of `label` (a column of the rows), a mark per rule at its ratio, with the
    range over prompts: a filled circle for an average depth (`depth / L`), a filled diamond for the papers' rule
    (`(ED + 1) / L`), a hollow one for a variant.

    `thresholds`: by line the ratios between which other thresholds move it, a faint band. A criterion that is none of
    the papers' three is another estimator, in one colour."""
    lines = list(dict.fromkeys(row[label] for row in rows))
    y = {name: -i for i, name in enumerate(lines)}
    height = TOP + BOTTOM + ROW * max(len(y), 1)
    canvas = Canvas(height, (SIDE, SIDE, TOP, BOTTOM), width_px=WIDTH)
    apart = max(len({row["criterion"] for row in rows if row[label] == name}) for name in lines) > 1
    missing: dict[str, list[str]] = {}
    for name, ends in (thresholds or {}).items():
        band: dict[str, Any] = dict(mode="lines", line=dict(width=14, color=colours.faint(THRESHOLD)), showlegend=False)
        canvas.points(f"thresholds {escaped(name)}", list(ends), [y[name]] * 2, **band)
    others = [row for row in rows if row["criterion"] not in colours.CRITERIA]
    if others:
        _marks(canvas, None, colours.BOTH, others, label, y, False)
    for criterion, colour in colours.CRITERIA.items():
        own = [row for row in rows if row["criterion"] == criterion]
        for row in own:
            if row["ratio"] is None and row["variant"] != MEAN:
                missing.setdefault(row[label], []).append(RULES[criterion].label)
        _marks(canvas, criterion, colour, [row for row in own if row["ratio"] is not None], label, y, apart)
    for name, level in y.items():
        none = ", ".join(dict.fromkeys(missing.get(name, ())))
        caption = escaped(cut(name))
        if none:
            caption += f" · {none}: {NOT_DEFINED}" if apart else f" · {NOT_DEFINED}"
        canvas.write(caption, FONT, x=0, xanchor="left", y=level, yanchor="bottom", yshift=5)
    for level in y.values():
        canvas.line(colours.FAINT, 1, x0=0, x1=1, y0=level, y1=level, layer="below")
    canvas.layout["xaxis"] = share_axis("share of the depth")
    canvas.layout["yaxis"] = dict(PLAIN, range=[-len(y) + 0.5, 0.8], visible=False)
    canvas.legend()
    return canvas.figure()


def study_curves(curves: Mapping[str, Sequence[ArrayLike]], n_layers: Mapping[str, int], unit: str) -> go.Figure:
    """Return a figure of several models' curves on relative depth, each with its range over prompts. `curves`: by label
    value, low and high `[layer]` or `[depth]`; NaN or None: no range."""
    canvas = Canvas(340, (64, 16, 40, 44), width_px=WIDTH)
    for i, (name, of_one) in enumerate(curves.items()):
        values, low, high = (np.asarray(one, float) for one in of_one)
        x, colour = relative_depth(len(values), n_layers[name]), LINES[i % len(LINES)]
        if np.isfinite(low).any():
            canvas.band(x, low, high, colour, escaped(name))
        hover = [f"{escaped(name)}<br>{pos:.2f} of the depth: {value:.4g}" for pos, value in zip(x, values)]
        look = dict(line=dict(color=colour, width=2, dash=DASHES[i % len(DASHES)]), marker=dict(size=4))
        canvas.points(escaped(cut(name)), x, values, hover, mode="lines+markers", **look)
    canvas.layout["xaxis"] = share_axis("relative depth")
    canvas.layout["yaxis"] = dict(GRID, title=axis_title(unit))
    name_lines(canvas, len(curves))
    return canvas.figure()


def study_sizes(
    points: Sequence[Mapping[str, Any]], lines: Mapping[str, Sequence[tuple[int | float, float]]]
) -> go.Figure:
    """Return a figure of effective-depth ratios against model size, of one rule: measured ones filled, with their range
    over prompts, published ones hollow, a shape for each kind of training.

    `points`: `model`, `parameters`, `ratio`, `low`, `high` (NaN without), `training`, `set`, `source`. `lines`: by
    source the two ends (parameters, ratio) of the line through its points."""
    canvas = Canvas(380, (64, 16, 64, 48), width_px=WIDTH)
    kinds = [kind for kind in (*TRAINING, "") if any(p["training"] == kind for p in points)]
    legend = set()
    for source, colour in SOURCES.items():
        for kind in kinds:
            own = [p for p in points if (p["source"], p["training"]) == (source, kind)]
            if not own:
                continue
            ratios, low, high = (np.array([p[key] for p in own], float) for key in ("ratio", "low", "high"))
            fill = colour if source != PUBLISHED else colours.CLEAR
            look = dict(
                mode="markers",
                marker=dict(symbol=SHAPES[kind], size=9, color=fill, line=dict(width=2, color=colour)),
                error_y=whiskers(ratios, low, high, colour),
                meta=source,
                legendgroup=SHORT[kind],
                showlegend=kind not in legend,
            )
            canvas.points(SHORT[kind], [p["parameters"] for p in own], ratios, [_point(p) for p in own], **look)
            legend.add(kind)
    for source, ends in lines.items():
        line = dict(color=SOURCES[source], width=2, dash="dash" if source == PUBLISHED else "solid")
        x, y = zip(*ends)
        canvas.points(f"line, {source}", x, y, mode="lines", line=line, showlegend=False)
    ticks = log_ticks([np.array([p["parameters"] for p in points] or [1e9])], _parameters)
    canvas.layout["xaxis"] = dict(PLAIN, title=axis_title("parameters"), **ticks)
    canvas.layout["yaxis"] = dict(GRID, title=axis_title("share of the depth"))
    canvas.legend(entrywidth=48)
    return canvas.figure()


def _parameters(n: int | float) -> str:
    """Return a number of parameters in short: 1.5B, 135M."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{letter}"
    return f"{n:.0f}"


def _point(p: Mapping[str, Any]) -> str:
    """Return a point's hover text."""
    text = f"{escaped(p['model'])}, {escaped(p['set'])}<br>{p['source']}, {_parameters(p['parameters'])} parameters"
    text += f"<br>ratio {p['ratio']:.2f}"
    if not np.isfinite(p["low"]):
        return text
    return f"{text}, 5 to 95 % over prompts or their forms: {p['low']:.2f} to {p['high']:.2f}"


def study_levels(
    scores: Mapping[str, Sequence[Mapping[str, Any]]],
    n_layers: Mapping[str, int],
    what: str = "depth score",
    between: bool = False,
) -> go.Figure:
    """Return a figure of depths, as shares of the depth, over levels of difficulty: a line per model with its range,
    faint dots for prompts.

    `scores`: by the model's label, of each level `name`, `mean`, `low`, `high` and `own` (the prompts'). `between`:
    they are depths, 0 to L, not layers, 0 to L - 1."""
    canvas = Canvas(360, (64, 16, 40, 44), width_px=WIDTH)
    names = list(dict.fromkeys(str(level["name"]) for levels in scores.values() for level in levels))
    for i, (label, levels) in enumerate(scores.items()):
        colour, most = LINES[i % len(LINES)], max(n_layers[label] - (not between), 1)
        x = np.array([names.index(str(level["name"])) for level in levels]) + 0.06 * (i - (len(scores) - 1) / 2)
        own = [(position, one / most) for position, level in zip(x, levels) for one in level["own"] if np.isfinite(one)]
        dots: dict[str, Any] = dict(mode="markers", marker=dict(size=5, color=colours.faint(colour)), showlegend=False)
        x_own, y_own = ([one[i] for one in own] for i in (0, 1))
        canvas.points(f"prompts {escaped(label)}", x_own, y_own, **dots)
        mean, low, high = (np.array([level[key] for level in levels], float) for key in ("mean", "low", "high"))
        look = dict(
            mode="lines+markers",
            line=dict(color=colour, width=2, dash=DASHES[i % len(DASHES)]),
            marker=dict(size=7, color=colour),
            error_y=whiskers(mean / most, low / most, high / most, colour),
            meta=[escaped(str(level["name"])) for level in levels],
        )
        hover = [
            f"{escaped(label)}, level {escaped(str(level['name']))}<br>{what} "
            f"{level['mean'] + (not between):.2f} of {n_layers[label]}{'' if between else ' layers'}<br>"
            f"{say.count(len(level['own']), 'prompt')}"
            for level in levels
        ]
        canvas.points(escaped(cut(label)), x, mean / most, hover, **look)
    ticks = dict(tickvals=list(range(len(names))), ticktext=[escaped(name) for name in names])
    canvas.layout["xaxis"] = dict(PLAIN, range=[-0.4, len(names) - 0.6], title=axis_title("level"), **ticks)
    canvas.layout["yaxis"] = dict(GRID, title=axis_title("share of the depth"))
    name_lines(canvas, len(scores))
    return canvas.figure()


def name_lines(canvas: Canvas, n: int) -> None:
    """Show a legend of `n` lines above the plot, the figure made higher for it: on a phone every name takes a row."""
    canvas.layout["height"] += LEGEND_ROW * max(0, n - 2)  # two have room in the margin
    canvas.legend(tracegroupgap=0)


def _marks(
    canvas: Canvas,
    criterion: str | None,
    colour: str,
    rows: Sequence[Mapping[str, Any]],
    label: str,
    y: Mapping[str, int],
    apart: bool,
) -> None:
    """Draw one rule's marks with their ranges; None: those of other estimators."""
    offset = {"cosine": 0.12, "overlap": -0.12}.get(criterion or "", 0.0) * apart

    def ends(end: str) -> np.ndarray:
        """Return one end of the ranges as ratios."""
        return np.array(
            [np.nan if row[end] is None else (row[end] + (row["variant"] != MEAN)) / row["n_layers"] for row in rows]
        )

    ratios = np.array([row["ratio"] for row in rows], float)
    name = RULES[criterion].label if criterion else "another estimator"
    marker = dict(
        size=[12 if row["variant"] == MEAN else 9 for row in rows],
        symbol=["circle" if row["variant"] == MEAN else "diamond" for row in rows],
        color=[colours.CLEAR if row["variant"] in HOLLOW else colour for row in rows],
        line=dict(width=2, color=colour),
    )
    levels, hover = [y[row[label]] + offset for row in rows], [_hover(row, label) for row in rows]
    bars = whiskers(ratios, ends("low"), ends("high"), colour)
    canvas.points(name, ratios, levels, hover, mode="markers", marker=marker, error_x=bars)


def _hover(row: Mapping[str, Any], label: str) -> str:
    """Return a mark's hover text."""
    text = f"{escaped(str(row[label]))}<br>"
    if row["criterion"] in colours.CRITERIA:
        text += f"{RULES[row['criterion']].label}, {VARIANTS[row['variant']]}: "
    what, count = ("depth", "") if row["variant"] == MEAN else ("layer", ", in the papers' count")
    text += f"{what} {row['depth']:.4g} of {row['n_layers']}{count}, {row['ratio']:.2f}"
    if row["low"] is not None:
        text += f"<br>5 to 95 % over {row.get('over') or 'prompts'}: {row['low']:.4g} to {row['high']:.4g}"
    if row["undefined"]:
        text += f"<br>not defined in {100 * row['undefined']:.3g} % of the resamples"
    return text
