"""What the lens would say at every depth: of a prompt's tokens, and of those that the model writes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from ..depth import halves, say
from ..depth.spelling import BYTES, following
from ..types import ProbeResult
from . import colours
from .canvas import AT_LEFT, FONT, OVER, UNDER, Canvas, letters, number, visible, width
from .maps import missing, read_title, unit_of, values_of
from .panel import BOTTOM, LETTER, TOP, Panel, Strip, View, mean_over_tokens, token_panel

TOP_SHOWN = 5
ROW, CELL_FONT, LARGEST_FONT = 15, 12, 13  # pixels: least height of a row; letters on cells, at least and at most
LETTER_SHARE = 0.58  # of a font's size that a letter is wide, about
LINE, ROTATED, CUT = 16, 66, 10  # pixels over the map for the predicted tokens: of a line, or rotated; letters of one
CORNER = 7  # pixels from a cell's edges to the cross in its corner
NARROW = 450  # pixels of a panel below which its strip has room for two words
KL_ENDS = (5.0, 10.0, 20.0, 50.0)


def lens_height(n_layers: int, view: View) -> int:
    """Return the height of the lens's map in pixels: it grows with its rows, as every one must be readable."""
    return max(view.height, TOP + ROTATED + BOTTOM + ROW * (n_layers + 1))


def lens_map(result: ProbeResult, view: View, shade: str = "prob", lens: str = "") -> go.Figure:
    """Return a heatmap of what the lens predicts at every depth (rows 0 to L, the output) and token; cells name the
    best next token where it is another than in the row below, and the output's is over the map.

    `shade`: "prob" (probability of that token), "kl", "jsd", "entropy", "rank", or "token_rank" (of a followed token);
    bright is near the output or sure, grey an early row that only repeats its input (`echo`). The strip has the mean KL
    that the KL rule reads. `lens`: the prefix of its measures' names, where a result has several lenses."""
    view = replace(view, height=lens_height(result.n_layers, view))
    top_probs, kl = f"{lens}top_probs", f"{lens}kl"
    probs, ids = values_of(result, top_probs, (*_shape(result), 1)), result.measures.get(f"{lens}top_ids")

    def shaded(r: ProbeResult) -> np.ndarray:
        """Return the array that colours the cells."""
        if shade == "prob":
            return values_of(r, top_probs, (*_shape(r), 1))[..., 0]
        return values_of(r, f"{lens}{shade}", _shape(r))

    z = shaded(result)
    curves, numbers = view.read(result, lambda r: [values_of(r, kl, _shape(r))])
    colour = lens_shade(shade, view.coloured(result, shaded))
    unit = unit_of(result, top_probs if shade == "prob" else f"{lens}{shade}")
    divergences = [m.values for name, m in result.measures.items() if name.endswith("_kl") and m.values.ndim == 2]
    # lenses on one page have one scale
    others = [view.read(result, lambda _: [divergence])[1] for divergence in divergences]
    end = colours.ceiling(np.concatenate([numbers, *others]), KL_ENDS)
    title = read_title("mean KL, nats" if view.width_px >= NARROW else "mean KL", view)
    strip = Strip(low=0.0, high=end, title=title, colour=colours.CRITERIA["kl"], **curves)
    echoes = np.zeros(_shape(result), bool)
    if ids is not None and shade in ("prob", "entropy"):
        echoes = echo(result, ids.values[..., 0])
    lines = lines_of(view.column_px(result.n_tokens))
    above = 4 + LINE * lines if lines else ROTATED

    def hover(depth: int, token: int) -> str:
        """Return a cell's best tokens with their probabilities."""
        if ids is None or ids.values[depth, token, 0] < 0:
            return missing(result)
        best = list(zip(ids.values[depth, token].tolist(), probs[depth, token].tolist()))[:TOP_SHOWN]
        before, names = result.tokens[: token + 1], result.token_text
        lines = [f"{number(p)}  {visible(following(before, names.get(i, f'id {i}')))}" for i, p in best]
        lines += ["echo: repeats the token that went in"] * bool(echoes[depth, token])
        return "<br>".join(lines if shade == "prob" else [f"{number(z[depth, token])} {unit}", *lines])

    def on_cells(panel: Panel) -> None:
        """Draw the tokens on the cells and over the map."""
        position = view.answer_start - 1 if view.answer_start else result.n_tokens - 1
        panel.layout["meta"]["along"]["says"] = dict(at=position, first=shade == "prob")
        best = ids.values[..., 0] if ids is not None else np.full(_shape(result), -1)
        _veil(panel, echoes)
        cell_letters(panel, result, best, colour, z, echoes)
        _predicted(panel, result, best[-1])

    return token_panel(result, view, z, colour, unit, strip, hover, row="depth", above=above, more=on_cells)


def _shape(result: ProbeResult) -> tuple[int, int]:
    """Return depths and tokens."""
    return (result.n_layers + 1, result.n_tokens)


def half_lens_map(result: ProbeResult, view: View, shade: str = "prob") -> go.Figure:
    """Return the lens's map with a row after attention within every layer, depth l + ½ between rows l and l + 1, all of
    half the height. The result must have such rows (`depth.halves`)."""
    n = result.n_layers
    measures = {
        name: replace(measure, values=halves.interleaved(measure.values, result[f"half_{name}"]))
        for name, measure in result.measures.items()
        if f"half_{name}" in result.measures and name != "settle_depth"
    }
    plain = replace(view, depth_lines={}, control=None, control_name="", beside=None)
    fig = lens_map(replace(result, n_layers=2 * n, measures=measures), plain, shade)
    for trace in fig.data:
        if trace.type == "heatmap":
            trace.update(y0=0, dy=0.5)
        elif trace.y is not None:
            trace.y = [None if y is None else y / 2 for y in trace.y]
            if trace.xaxis == "x2":  # the strip's curves
                trace.text = [text.replace(f"depth {i}", f"depth {i / 2:g}", 1) for i, text in enumerate(trace.text)]
    for shape in fig.layout.shapes:
        if shape.yref == "y":
            shape.update(y0=shape.y0 / 2, y1=shape.y1 / 2)
    rows = [row for row in fig.layout.yaxis.tickvals if row % 2 == 0]
    fig.layout.yaxis.update(range=[-0.25, n + 0.25], tickvals=[row // 2 for row in rows])
    along = {name: value for name, value in fig.layout.meta["along"].items() if name != "says"}  # it reads whole rows
    return fig.update_layout(meta={**fig.layout.meta, "along": {**along, "n": n}})


def echo(result: ProbeResult, best: np.ndarray) -> np.ndarray:
    """Return `[depth, pos]`: whether the first choice, from depth 0 up to here, is the token that went in at that
    position, and the output's is another; the lens then still reads its input, and predicts nothing."""
    same = np.array([[result.token_text.get(int(i)) == result.tokens[t] for t, i in enumerate(row)] for row in best])
    echoes: np.ndarray = np.logical_and.accumulate(same, axis=0) & ~same[-1]
    return echoes


def _veil(canvas: Canvas, echoes: np.ndarray) -> None:
    """Draw grey over cells that are an echo, with the gaps of the map below."""
    if not echoes.any():
        return
    below = canvas.data[0]
    look = {name: below[name] for name in ("x", "y", "x0", "dx", "y0", "dy", "xgap", "ygap") if name in below}
    z = np.where(echoes, 1.0, np.nan)
    scale = [[0, colours.ECHO], [1, colours.ECHO]]
    canvas.add("heatmap", z=z, name="echo", colorscale=scale, showscale=False, hoverinfo="skip", **look)


def lines_of(column: float | int) -> int:
    """Return on how many lines (1 or 2) predicted tokens are upright over columns of these pixels; 0 where they may be
    rotated."""
    return next((n for n in (1, 2) if n * column >= (CUT + 0.5) * LETTER), 0)


def lens_shade(shade: str, z: np.ndarray) -> colours.Shade:
    """Return the colour scale of a lens's map `z`; `shade` as in `lens_map`."""
    if shade == "prob":
        return colours.linear(0.0, 1.0)
    if shade == "jsd":
        return colours.linear(0.0, 1.0, reverse=True)
    if shade in ("rank", "token_rank"):
        return colours.logarithmic(*colours.decades(z, (0, 3), (0, 6)), reverse=True)
    return colours.linear(0.0, colours.ceiling(z, KL_ENDS), reverse=True)


def cell_letters(
    panel: Panel,
    result: ProbeResult,
    best: np.ndarray,
    shade: colours.Shade,
    z: np.ndarray,
    grey: np.ndarray | None = None,
) -> None:
    """Draw the best tokens on cells, each where the row below has another, black or white by the cell's colour, black
    on `grey`. Two traces, as a heatmap's own letters have one colour, and a click fades letters that have several."""
    size = int(min(LARGEST_FONT, max(CELL_FONT, panel.row_px - 4)))
    fit = int((panel.view.column_px(result.n_tokens) - 3) / (LETTER_SHARE * size))
    words = {i: cut(token, fit) for i, token in result.token_text.items()}
    split = {i: token for i, token in result.token_text.items() if BYTES.fullmatch(token)}
    before = result.tokens if len(result.tokens) == best.shape[1] else ()  # of a text that is written none is known

    def word(y: int, x: int) -> str:
        """Return the text of a cell."""
        token = split.get(best[y, x])
        return words[best[y, x]] if token is None else cut(following(before[: x + 1], token), fit)

    first, last = panel.view.span(result.n_tokens)
    new = np.vstack([best[:1] >= 0, (best[1:] >= 0) & (best[1:] != best[:-1])])
    cells = [(y, x) for y, x in np.argwhere(new).tolist() if first <= x <= last and words.get(best[y, x])]
    ink = [int(i) for i in colours.letters(shade, np.array([z[cell] for cell in cells]))] if cells else []
    if grey is not None:
        ink = [0 if grey[cell] else i for cell, i in zip(cells, ink)]
    for place, colour in enumerate(colours.LETTERS):
        mine = [cell for cell, i in zip(cells, ink) if i == place]
        look = dict(textfont=dict(size=size, color=colour), unselected=dict(textfont=dict(color=colour)))
        at = dict(x=[x for _, x in mine], y=[y for y, _ in mine], text=[word(*cell) for cell in mine])
        panel.add("scatter", name=f"letters {colour}", mode="text", hoverinfo="skip", **at, **look)


def cut(token: str, fit: int) -> str:
    """Return a token for a cell of `fit` letters: whole, else without its leading space's mark, else cut; "" where not
    even two letters fit."""
    for words in (token, token.removeprefix(" ") or token):
        if letters(words, 12) <= fit:
            return visible(words, 12)
    return visible(words, fit) if fit > 1 and width(words, fit) <= fit else ""


def _predicted(panel: Panel, result: ProbeResult, best: np.ndarray) -> None:
    """Draw over the map the token that the output predicts after each of the prompt's, and name both rows of tokens."""
    texts = [
        following(result.tokens[: position + 1], result.token_text.get(i, f"id {i}")) if i >= 0 else ""
        for position, i in enumerate(best.tolist())
    ]
    words = [visible(text, CUT) if i >= 0 else "" for text, i in zip(texts, best.tolist())]
    widths = [letters(text, CUT) if word else 0 for text, word in zip(texts, words)]
    panel.label_columns(words, widths, ("xaxis4", "xaxis5"), "top")
    for text, place, shift in (("next", OVER, 4), ("input", UNDER, -4)):
        panel.write(text, FONT, **AT_LEFT, **place, xshift=-6, yshift=shift)


# ---------------------------------------------------------------- while the model writes


def first_position(result: ProbeResult) -> int:
    """Return the position of the first written token, right after the question."""
    return result.answer_start or result.n_tokens


def writing_map(result: ProbeResult, view: View) -> go.Figure:
    """Return the lens's map of tokens being written, to the right: bright is near the output, cells name the lens's
    token where it changes.

    A bar is at the depth from which the best token stays, a cross where the token would leave, red where it would then
    be another. `view.window` and `selected` count written tokens; a click gives a token's position in the whole
    text."""
    view = replace(view, height=lens_height(result.n_layers, view), answer_start=None, sinks=())
    z, best = result["jsd"], result["best_ids"]
    ids, names = result["ids"].tolist(), result.token_text
    texts = tuple(names.get(i, f"id {i}") if i >= 0 else "…" for i in ids)
    answer = replace(result, tokens=texts, token_ids=tuple(ids), answer_start=None)
    shade = colours.linear(0.0, 1.0, reverse=True)

    def hover(depth: int, step: int) -> str:
        """Return the text of a cell."""
        if ids[step] < 0:
            return "not written yet"
        lens = visible(names.get(int(best[depth, step]), f"id {best[depth, step]}"))
        here = f"{number(result['confidence'][depth, step])}  {lens}<br>{number(z[depth, step])} bits from the output"
        settles, leaves = int(result["settle_depth"][step]), int(result["exit_depth"][step])
        left = visible(names.get(int(result["exit_ids"][step]), ""))
        late = say.share(float(result["deep_thinking_ratio"][step]))
        leaving = f"leave after layer {leaves} with {left}" if leaves < result.n_layers else "not leave early"
        lines = (here, f"first choice from layer {settles} on", f"would {leaving}")
        return "<br>".join((*lines, f"{late} of the divergences of the tokens so far fall late"))

    begin, (n_rows, n_tokens) = first_position(result), z.shape

    def marks(panel: Panel) -> None:
        """Draw the tokens, bars and crosses."""
        panel.layout["meta"]["along"]["begin"] = begin
        cell_letters(panel, answer, best, shade, z)
        _settled(panel, result["settle_depth"])
        leave = result["exit_depth"]
        row = np.where(leave < result.n_layers, leave, np.nan)
        _left(panel, row, result["exit_agrees"], CORNER / view.column_px(len(ids)), CORNER * len(z) / view.plot_height)

    strip = Strip(mean_over_tokens(z), 0.0, 1.0, "mean<br>divergence")
    fig = token_panel(answer, view, z, shade, "bits", strip, hover, row="depth", more=marks)
    place = fig.data[0].hovertemplate.replace("· token", "· token written")  # which is another number than a position
    fig.data[0].hovertemplate = place
    fig.data[0].customdata = [[[depth, begin + step] for step in range(n_tokens)] for depth in range(n_rows)]
    return fig


def _settled(canvas: Canvas, settle: np.ndarray) -> None:
    """Draw a bar per column on the lower edge of the row from which the best token stays."""
    columns = np.flatnonzero(np.isfinite(settle))
    x = np.stack([columns - 0.45, columns + 0.45, np.full(len(columns), np.nan)], 1).ravel()
    y = np.repeat(settle[columns] - 0.5, 3)
    for name, colour, thick in (("settled edge", colours.LIGHT_EDGE, 5), ("settled", colours.DARK_EDGE, 2.5)):
        line = dict(color=colour, width=thick)
        canvas.points(name, x, y, mode="lines", line=line)


def _left(canvas: Canvas, leave: np.ndarray, agrees: np.ndarray, right: float, low: float) -> None:
    """Draw a cross per column in the row at which the token would leave early, red where it then differs, in a corner
    clear of the letters. `right`, `low`: its distance from the cell's edges, in cells."""
    columns = np.flatnonzero(np.isfinite(leave))
    x, y = columns + max(0.5 - right, 0.0), leave[columns] - max(0.5 - low, 0.0)
    ink = [colours.DARK_EDGE if agrees[step] else colours.FAILED for step in columns]
    for name, colour, thick in (("exit edge", colours.LIGHT_EDGE, 4.0), ("exit", ink, 2.0)):
        marker = dict(symbol="x-thin", size=8, color=colour, line=dict(width=thick, color=colour))
        canvas.points(name, x, y, mode="markers", marker=marker)
