"""What becomes of the loss where layers are left out, exchanged or run twice: one map per kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..depth import surgery
from . import colours
from .canvas import PLAIN, STEADY, Canvas, axis_title, whole_ticks
from .colours import Shade
from .curves import layer_curves
from .maps import BOUNDS
from .panel import View, add_heatmap, add_hover, beyond, frame
from .text import number

DONE = {"drop": "left out", "swap": "exchanged", "repeat": "run twice"}
VALUES = {"loss": ("loss", "nats"), "kl": ("KL to the whole", "nats"), "top1_kept": ("best guesses kept", "share")}
ADDED = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # nats to either side of the whole model's loss, that colours reach

RUNS = (colours.FAINT, colours.DIVERGING[0], colours.MLP)  # a layer that runs never, once, more often


def surgery_map(
    curves: Mapping[str, np.ndarray], kind: str, view: View, value: str = "loss", chosen: Sequence[surgery.Row] = ()
) -> go.Figure:
    """First layer upwards, last layer to the right (of two that change places: one and the other); of the `loss`, the
    colours are centred on the whole model's, blue below it. A ring marks what costs least at its length, a cross what
    angular distance chooses there, of the `chosen`."""
    z = np.asarray(curves[f"{kind}_{value}"], np.float32)
    shown = z if kind == "swap" else z[:, 1:]
    n_layers, behind = len(z), int(kind != "swap")
    canvas = frame(view, n_layers, "one layer" if kind == "swap" else "first layer")
    shade, px = _shade(curves, shown, value), view.plot_height / (n_layers + 1)
    domain = (0.0, min(1.0, max(0.4, px * n_layers / view.plot_width)))
    add_heatmap(canvas, shown, shade, VALUES[value][1], domain, gap=px >= 8)
    if value == "loss":
        whole, bar = float(curves["loss_whole"]), canvas.data[0]["colorbar"]
        bar["ticktext"] = [f"{at - whole:+.2g}" if at != whole else "whole" for at in bar["tickvals"]]
    _mark(canvas, chosen, behind)
    canvas.data[0]["hoverongaps"] = False

    def text(i: int, j: int) -> str:
        value = float(shown[i, j])
        return _told(curves, kind, i, j + behind, shade, value) if np.isfinite(value) else ""

    add_hover(canvas, "", text, f"layers %{{y}} and %{{x}} {DONE[kind]}<br>%{{z:.3g}} {VALUES[value][1]}")
    title = "the other layer" if kind == "swap" else "last layer"
    canvas.layout["xaxis"] = dict(
        PLAIN, range=[-0.5, n_layers - 0.5], title=axis_title(title, 9), domain=domain, **whole_ticks(n_layers)
    )
    return canvas.figure()


def added_curves(
    lines: Mapping[str, np.ndarray], x: str, height: int, width_px: int = 600, behind: Mapping[str, np.ndarray] = {}
) -> go.Figure:
    """Loss above the whole model's by length (`depth.surgery.added`); the axis ends where the colours of the maps do:
    beyond, a model says nothing any more."""
    fig = layer_curves(lines, "", "nats", x=x, height=height, width_px=width_px, uirevision="added", behind=behind)
    drawn = np.concatenate([np.ravel(values) for values in (*lines.values(), *behind.values())])
    if np.nanmax(drawn, initial=0.0) > ADDED[-1]:
        fig.layout.yaxis.range = [min(float(np.nanmin(drawn, initial=0.0)) * 1.1, -0.1), ADDED[-1]]
    return fig


def order_ruler(order: Sequence[int], n_layers: int) -> go.Figure:
    """A row of the model's layers: how often each runs in an order, `2×` where that is more than once. A click tells
    the layer."""
    times = [list(order).count(layer) for layer in range(n_layers)]
    canvas = Canvas(58, (8, 8, 2, 22), uirevision="order", width_px=1100)
    words = ["is left out: a click puts it back", "runs once: a click leaves it out"]
    told = [words[n] if n < 2 else f"runs {n} times: a click leaves it out" for n in times]
    look = dict(zmin=0, zmax=2, colorscale=[[i / 2, colour] for i, colour in enumerate(RUNS)], showscale=False, xgap=2)
    canvas.add("heatmap", z=[[min(n, 2) for n in times]], text=[told], name="layers", **look)
    canvas.data[0]["hovertemplate"] = "layer %{x} %{text}<extra></extra>"
    for layer, n in enumerate(times):
        if n > 1:
            canvas.write(f"{n}×", 11, colours.LETTERS[0], x=layer, y=0)
    canvas.layout["xaxis"] = dict(PLAIN, range=[-0.5, n_layers - 0.5], **whole_ticks(n_layers))
    canvas.layout["yaxis"] = dict(PLAIN, range=[-0.5, 0.5], visible=False)
    return canvas.figure()


def _shade(curves: Mapping[str, np.ndarray], shown: np.ndarray, value: str) -> Shade:
    if value == "loss":
        whole = float(curves["loss_whole"])
        bound = colours.ceiling(shown - whole, ADDED)
        return Shade(whole - bound, whole + bound, colours.signed(bound).colours)
    if value == "kl":
        return colours.steep(0.0, colours.ceiling(shown, BOUNDS[:10]), colours.DAMAGE)
    return colours.linear(0.0, 1.0, reverse=True, scale=colours.DAMAGE)


def _mark(canvas: Canvas, chosen: Sequence[surgery.Row], behind: int) -> None:
    """Rings and crosses, dark on light."""
    marks = (
        ("least", "circle-open", 9, [row.best for row in chosen]),
        ("angular distance", "x-thin", 7, [row.chosen["angular_distance"] for row in chosen if row.chosen]),
    )
    for name, symbol, size, places in marks:
        for colour, width in ((colours.LIGHT_EDGE, 3.5), (colours.DARK_EDGE, 1.5)):
            marker = dict(symbol=symbol, size=size, color=colour, line=dict(width=width, color=colour))
            x, y = [one.j - behind for one in places], [one.i for one in places]
            canvas.add("scatter", x=x, y=y, mode="markers", name=name, hoverinfo="skip", marker=marker, **STEADY)


def _told(curves: Mapping[str, np.ndarray], kind: str, i: int, j: int, shade: Shade, value: float) -> str:
    """What a cell says on hover."""
    one = surgery.choice(curves, kind, i, j)
    several = kind == "swap" or j > i + 1
    return (
        f"layer{'s' * several} {one.layers} {DONE[kind]}<br>loss {number(one.loss)} nats "
        f"({one.loss - float(curves['loss_whole']):+.2g})<br>KL {number(one.kl)} nats<br>"
        f"{one.top1_kept:.0%} of the best guesses stay{beyond(shade, value)}"
    )
