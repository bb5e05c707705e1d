"""What becomes of a model whose layers are skipped, left out, exchanged or run twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from ..depth import say, surgery
from ..types import ProbeResult
from . import colours
from .canvas import PLAIN, Canvas, axis_title, number
from .colours import Shade
from .curves import layer_curves
from .maps import BOUNDS, L2, missing, unit_of, values_of
from .panel import CLIPPED, LEFT, RIGHT, Panel, Strip, View, beyond

DECADES = ((-1, 0), (-3, 3))  # of effects while they fill: at least, at most
QUANTILES, REACH = (0.05, 0.95), 2.0  # of the effects that colours hold, in at most so many decades


def skip_map(result: ProbeResult, view: View, measure: str = "effect", boundary: int | None = None) -> go.Figure:
    """Return a heatmap, skipped block (upwards) × affected block (to the right), of how much skipping the one changes
    the update of the other, colour by logarithm.

    The colours reach from the 5 % to the 95 % quantile of the effects on other blocks (whole decades while they fill),
    over two decades at most; cells beyond carry a ring. Hatched is what is zero by construction, empty what is not
    computed yet or not above its column's noise floor. The strip has the change of the output. `boundary`: the index of
    one boundary behind which effects are seen, instead of their maximum over all."""
    n_layers, domain = result.n_layers, view.square()
    if boundary is None:
        z, output = _effects(result, measure), values_of(result, "output", (n_layers,))
        effects = view.together(result, lambda r: _on_others(_effects(r, measure)))
    else:
        z, output = result["effect_by_boundary"][boundary], result["output_by_boundary"][boundary]
        effects = _on_others(z)
    canvas, shade = Panel(view, n_layers, "skipped layer"), _effect_shade(effects, result)
    cells = np.where(_within_noise(result, z), np.nan, z)
    coloured = np.where(cells == 0, np.nan, cells)
    canvas.heatmap(coloured, shade, unit_of(result, measure), domain, canvas.row_px >= 8, x0=1, y0=1)
    canvas.data[0] |= dict(z=cells, zmin=0.0, colorscale=colours.without_zero(shade))
    hatch(canvas, n_layers, diagonal=_diagonal_is_zero(result, measure))
    _ring(canvas, z, shade)
    _cells(canvas, result, measure, z, shade)
    control = view.behind(lambda r: values_of(r, "output", (n_layers,))) if boundary is None else {}
    canvas.strip(Strip(output, 0.0, 2**0.5, f"output change,<br>{L2}", bars=True, **control), domain)
    canvas.layers_across(n_layers, "affected layer", domain)
    canvas.layout["yaxis"]["tickvals"] = canvas.layout["xaxis"]["tickvals"]  # both axes are the model's layers
    canvas.mark_passes(result, upright=True)
    canvas.draw_depths(view.depth_lines, canvas.row_px)
    return canvas.figure()


def _effects(result: ProbeResult, measure: str) -> np.ndarray:
    """Return the effects `[skipped, affected]`."""
    return values_of(result, measure, (result.n_layers, result.n_layers))


def _on_others(effects: np.ndarray) -> np.ndarray:
    """Return the effects on other blocks, flat: without the diagonal, which is 1 or 0 by construction."""
    return effects[np.triu_indices(len(effects), 1)]


def _effect_shade(effects: np.ndarray, result: ProbeResult) -> Shade:
    """Return the colours of effects."""
    if not result.complete:
        return colours.logarithmic(*colours.decades(effects, *DECADES), scale=colours.DAMAGE)
    low, high = colours.spread(effects, DECADES[0], QUANTILES)
    return colours.logarithmic(max(low, high - REACH), high, scale=colours.DAMAGE)


def boundary_map(result: ProbeResult, view: View, chosen: int | None = None) -> go.Figure:
    """Return a figure of the boundaries of a skip sweep in future mode, one row each over the tokens, earliest first:
    dark where a block is left out, bright from the first token looked at; the first token, never touched, is clear.
    `chosen`: the index of the one in bold."""
    boundaries, t = result["boundaries"], np.arange(result.n_tokens)
    order = np.argsort(boundaries)
    canvas = Panel(replace(view, height=64 + 22 * len(order)), margin=(LEFT + 14, RIGHT, 8, 44))
    z = np.where(t == 0, np.nan, t >= boundaries[order][:, None])
    scale = dict(zmin=0, zmax=1, colorscale=[[0, colours.SEQUENTIAL[1]], [1, colours.SEQUENTIAL[-1]]], showscale=False)
    text = np.where(z > 0, "effects looked for", "layer left out").tolist()
    hover = dict(text=text, hovertemplate="%{y}<br>token %{x}: %{text}<extra></extra>", hoverongaps=False)
    canvas.add("heatmap", z=z, name="boundaries", ygap=4, **scale, **hover)
    names = [f"<b>token {boundaries[i]}</b>" if i == chosen else f"token {boundaries[i]}" for i in order]
    ends = [len(order) - 0.5, -0.5]
    canvas.layout["yaxis"] = dict(PLAIN, tickvals=list(range(len(order))), ticktext=names, range=ends)
    canvas.label_tokens(result.tokens)
    canvas.layout["xaxis"]["domain"] = (0.0, 1.0)
    return canvas.figure()


def effect_on_layers(result: ProbeResult, view: View) -> go.Figure:
    """Return a figure, per affected block, of the largest effect of any skip before it (none before the first), and the
    noise floor: what an intervention that does nothing reads there."""
    n = result.n_layers
    before = np.where(np.triu(np.ones((n, n), bool), 1), values_of(result, "effect", (n, n)), np.nan)
    curves = {"largest effect": np.fmax.reduce(before, axis=0), "noise floor": values_of(result, "noise_floor", (n,))}
    return layer_curves(curves, "", unit_of(result, "effect"), x="affected layer", height=view.height)


def _within_noise(result: ProbeResult, z: np.ndarray) -> np.ndarray:
    """Return which effects are not above what an intervention that does nothing reads on the same layer, if that is not
    0."""
    floor = values_of(result, "noise_floor", (len(z),))
    return np.triu((z <= floor) & (floor > 0))


def _diagonal_is_zero(result: ProbeResult, measure: str) -> bool:
    """Return whether a block cannot feel its own skip: when looking only behind the skipped tokens, or at direct
    effects."""
    return dict(result.request.parameters).get("mode") == "future" or measure == "effect_direct"


def hatch(canvas: Canvas, n_layers: int, diagonal: bool) -> None:
    """Draw a staircase over the cells with affected < skipped (if `diagonal`, or =), which are zero by construction."""
    x, y = [0.5], [n_layers + 0.5]
    for row in range(n_layers, 0, -1):
        edge = row - 0.5 + diagonal
        x, y = x + [edge, edge], y + [row + 0.5, row - 0.5]
    pattern = dict(shape="/", fgcolor=colours.GREY, bgcolor=colours.VEIL, size=7, solidity=0.12)
    look = dict(mode="none", fill="toself", fillpattern=pattern, hoverinfo="skip")
    canvas.add("scatter", x=[*x, 0.5], y=[*y, 0.5], name="zero by construction", **look)


def _ring(canvas: Canvas, z: np.ndarray, shade: Shade) -> None:
    """Draw a small ring on every cell beyond the colour range."""
    y, x = 1 + np.array(np.nonzero(np.nan_to_num(z) > shade.high * (1 + CLIPPED)))
    ring = dict(symbol="circle-open", size=5, color=colours.DARK_EDGE, line=dict(width=1.2))
    canvas.points("beyond the colours", x, y, mode="markers", marker=ring)


def _cells(canvas: Panel, result: ProbeResult, measure: str, z: np.ndarray, shade: Shade) -> None:
    """Set the cells' hover texts."""
    n, unit, absent, zero = len(z), unit_of(result, measure), missing(result), _diagonal_is_zero(result, measure)
    floor, within = values_of(result, "noise_floor", (n,)), _within_noise(result, z)

    def text(s: int, layer: int) -> str:
        """Return a cell's effect and noise floor."""
        if layer < s or (zero and layer == s):
            return "0 by construction"
        value = f"{number(z[s, layer])} {unit}" if np.isfinite(z[s, layer]) else absent
        return (
            value
            + beyond(shade, z[s, layer])
            + (f"<br>noise floor {number(floor[layer])}" if np.isfinite(floor[layer]) else "")
            + ", so left empty" * bool(within[s, layer])
        )

    canvas.hover("layer %{y} skipped, layer %{x} affected<br>", text, f"%{{z:.3g}} {unit}")


# ---------------------------------------------------------------- layers left out, exchanged or run twice


DONE = {"drop": "left out", "swap": "exchanged", "repeat": "run twice"}
VALUES = {"loss": ("loss", "nats"), "kl": ("KL to the whole", "nats"), "top1_kept": ("first choices kept", "share")}
ADDED = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # nats to either side of the whole model's loss, that colours reach


def surgery_map(
    curves: Mapping[str, np.ndarray], kind: str, view: View, value: str = "loss", chosen: Sequence[surgery.Row] = ()
) -> go.Figure:
    """Return a heatmap of layers dropped, swapped or repeated (`kind`): first layer upwards, last to the right (when
    swapped: one and the other).

    `value`: "loss" (colours centred on the whole model's, blue below), "kl" or "top1_kept". Of the `chosen` rows a ring
    marks what costs least at its length, a cross what angular distance chooses."""
    z = np.asarray(curves[f"{kind}_{value}"], np.float32)
    shown = z if kind == "swap" else z[:, 1:]
    n_layers, offset = len(z), int(kind != "swap")
    canvas = Panel(view, n_layers, "one layer" if kind == "swap" else "first layer")
    shade, domain = _shade(curves, shown, value), view.square(1.0)
    canvas.heatmap(shown, shade, VALUES[value][1], domain, canvas.row_px >= 8, x0=1, y0=1)
    if value == "loss":
        baseline, bar = float(curves["loss_whole"]), canvas.data[0]["colorbar"]
        signs = ["≤ " * words.startswith("≤") + "≥ " * words.startswith("≥") for words in bar["ticktext"]]
        differences = [say.number(tick - baseline, "+.2g") if tick != baseline else "whole" for tick in bar["tickvals"]]
        bar["ticktext"] = [sign + words for sign, words in zip(signs, differences)]
    _mark(canvas, chosen, offset, float(curves["loss_whole"]) + ADDED[-1])
    canvas.data[0]["hoverongaps"] = False

    def text(i: int, j: int) -> str:
        """Return a cell's hover text."""
        value = float(shown[i, j])
        return _hover(curves, kind, i, j + offset, shade, value) if np.isfinite(value) else ""

    which = "layers %{y} and %{x}" if kind == "swap" else "first layer %{y}, last layer %{x}:"
    canvas.hover("", text, f"{which} {DONE[kind]}<br>{VALUES[value][0]} %{{z:.3g}} {VALUES[value][1]}")
    canvas.layers_across(n_layers, "the other layer" if kind == "swap" else "last layer", domain)
    return canvas.figure()


def added_curves(lines: Mapping[str, np.ndarray], x: str, height: int, width_px: int = 600) -> go.Figure:
    """Return a figure of the loss above the whole model's by length (`depth.surgery.added`); the axis ends where the
    maps' colours do: beyond, a model says nothing any more."""
    fig = layer_curves(lines, "", "nats", x=x, height=height, width_px=width_px)
    losses = np.concatenate([np.ravel(values) for values in lines.values()])
    if np.nanmax(losses, initial=0.0) > ADDED[-1]:
        fig.layout.yaxis.range = [min(float(np.nanmin(losses, initial=0.0)) * 1.1, -0.1), ADDED[-1]]
        fig.layout.yaxis.title = axis_title(f"nats, cut off at {ADDED[-1]:g}")
    return fig


def _shade(curves: Mapping[str, np.ndarray], shown: np.ndarray, value: str) -> Shade:
    """Return the colours of a surgery map."""
    if value == "loss":
        baseline = float(curves["loss_whole"])
        bound = colours.ceiling(shown - baseline, ADDED)
        return Shade(baseline - bound, baseline + bound, colours.signed(bound).colours)
    if value == "kl":
        return colours.steep(0.0, colours.ceiling(shown, BOUNDS[:10]), colours.DAMAGE)
    return colours.linear(0.0, 1.0, reverse=True, scale=colours.DAMAGE)


def _mark(canvas: Canvas, chosen: Sequence[surgery.Row], offset: int, most: float) -> None:
    """Draw rings and crosses, dark on light, on choices that lose no more than `most`: beyond, all cells look alike."""
    marks = (
        ("least", "circle-open", 9, [row.best for row in chosen]),
        ("angular distance", "x-thin", 7, [row.chosen["angular_distance"] for row in chosen if row.chosen]),
    )
    for name, symbol, size, variants in marks:
        places = [one for one in variants if one.loss <= most]
        for colour, width in ((colours.LIGHT_EDGE, 3.5), (colours.DARK_EDGE, 1.5)):
            marker = dict(symbol=symbol, size=size, color=colour, line=dict(width=width, color=colour))
            x, y = [one.j - offset + 1 for one in places], [one.i + 1 for one in places]
            canvas.points(name, x, y, mode="markers", marker=marker)


def _hover(curves: Mapping[str, np.ndarray], kind: str, i: int, j: int, shade: Shade, value: float) -> str:
    """Return a surgery map's hover text of a cell."""
    one = surgery.choice(curves, kind, i, j)
    more = say.number(one.loss - float(curves["loss_whole"]), "+.2g")
    return (
        f"{say.variant(one)} {DONE[kind]}<br>loss {number(one.loss)} nats "
        f"({more})<br>KL {number(one.kl)} nats<br>"
        f"{say.share(one.top1_kept)} of the first choices stay{beyond(shade, value)}"
    )
