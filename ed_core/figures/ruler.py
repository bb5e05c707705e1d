"""Two verdicts on one ruler: where the lens settles and the answer leads, and the published rules, over a bar of
layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth import say, side_by_side
from ..depth.answer import first_choice
from ..depth.rules import RULES
from ..depth.verdict import RuleVerdict, Verdict
from . import colours
from .canvas import AT_LEFT, FONT, PLAIN, Canvas, escaped, number, share_axis, visible

ANSWER = "answer"
ROWS = {ANSWER: 4.0, "kl": 3.0, "overlap": 2.0, "cosine": 1.0}  # from a side's bar, which is at 0
NAMES = {ANSWER: ANSWER} | {name: rule.label for name, rule in RULES.items()}
BAR, HALF = 0.52, 0.4  # in rows: of a side's bar from the middle, and half of its height
HEIGHT, LEFT = 224, 78


def pair_ruler(
    verdicts: tuple[Verdict | None, Verdict | None], n_layers: tuple[int, int], names: tuple[str, str]
) -> go.Figure:
    """Return a figure of two models' verdicts on one axis of relative depth, A's marks above its bar of layers, B's
    below its own.

    Depth d is at `d / L`, a papers' rule at its ratio, `(ED + 1) / L`. A bar has the colours of the mean cosine, in one
    scale, and is plain without it; a side that is not measured yet (None) has its bar only. `names`: of the sides,
    escaped here."""
    canvas = Canvas(HEIGHT, (LEFT, 8, 4, 24), width_px=1100)
    curves = [curve for one in verdicts if (curve := _cosine(one)) is not None]
    bound = colours.ceiling(np.concatenate(curves) if curves else np.full(1, np.nan), (0.25, 0.5, 1.0))
    for i, sign in enumerate((1, -1)):
        side = _Side(canvas, side_by_side.SIDES[i], names[i], n_layers[i], sign)
        side.bar(_cosine(verdicts[i]), bound)
        if (verdict := verdicts[i]) is not None:
            side.marks(verdict)
    words = ["0", "¼", "½ of the depth", "¾", "1"]
    canvas.layout["xaxis"] = share_axis("", range=[0, 1.005], ticktext=words)
    canvas.layout["yaxis"] = dict(PLAIN, range=[-5.1, 5.1], visible=False)
    return canvas.figure()


def _cosine(verdict: Verdict | None) -> np.ndarray | None:
    """Return the mean cosine that rule and turn read, `[layer]`; None without it."""
    return verdict.rules["cosine"].curve if verdict is not None and "cosine" in verdict.rules else None


class _Side:
    """One model's bar of layers and the rows of its marks, above the bar or below where `sign` is -1. A rule's mark is
    at its ratio, the right edge of its layer."""

    def __init__(self, canvas: Canvas, side: str, name: str, n_layers: int, sign: int):
        self.canvas, self.side, self.n_layers = canvas, side, n_layers
        self.called, self.centre = f"<b>{side}</b> {escaped(name)}<br>", sign * BAR
        self.edge = self.centre + sign * HALF  # of the bar, towards the rows
        self.rows = {row: self.centre + sign * place for row, place in ROWS.items()}

    def bar(self, cosine: np.ndarray | None, bound: float) -> None:
        """Draw the layers as a bar, in the colours of the cosine map where a curve is known, and name the rows."""
        n = self.n_layers
        values = np.full(n, np.nan) if cosine is None else np.asarray(cosine, np.float64)
        shade = colours.signed(bound)
        hover = [
            f"{self.called}layer {i}" + (f"<br>mean cosine {number(v)}" if np.isfinite(v) else "")
            for i, v in enumerate(values, 1)
        ]
        look = dict(zmin=shade.low, zmax=shade.high, colorscale=shade.colours, showscale=False, xgap=1)
        look |= dict(customdata=[hover], hovertemplate="%{customdata}<extra></extra>")
        place = dict(x0=0.5 / n, dx=1 / n, y=[self.centre], dy=2 * HALF)
        cells = [[v if np.isfinite(v) else None for v in values]]
        self.canvas.add("heatmap", z=cells, name=f"blocks {self.side}", **place, **look)
        low, high = self.centre - HALF, self.centre + HALF
        for i in range(n + 1):
            self.canvas.line(colours.FAINT, 1, x0=i / n, x1=i / n, y0=low, y1=high)
        for y in (low, high):
            self.canvas.line(colours.FAINT, 1, x0=0.0, x1=1.0, y0=y, y1=y)
        for y, text in (
            (self.centre, f"<b>{self.side}</b> {n} layers"),
            *((y, NAMES[r]) for r, y in self.rows.items()),
        ):
            self.canvas.write(text, FONT, **AT_LEFT, xshift=-6, y=y, yanchor="middle")

    def marks(self, verdict: Verdict) -> None:
        """Draw what the rules give, the answer's depth, the average depths and the switch, as far as they are known."""
        n = self.n_layers
        for name, rule in verdict.rules.items():
            self._rule(name, rule)
        answers = verdict.sample.answers
        look = answers[0] if len(answers) == 1 else ()
        if (best := first_choice(look)) is not None:
            what = f"{'answer' if look[-1].given else 'next token'} {visible(look[-1].token, 30)}"
            self._mark(ANSWER, best / n, "", f"{what}: first choice from {say.layers(best, n)} on")
        for name, mean in verdict.means.items():
            if mean.depth is not None:
                text = f"average depth {mean.depth:.1f} of {n} by {NAMES[name]}, over all thresholds"
                self._mark(name, mean.depth / n, f"{mean.depth:.1f}", text)
        if verdict.turn is not None and verdict.turn.layer is not None:
            after = verdict.turn.layer + 1
            self._mark("cosine", after / n, f"after {after}", say.turn(verdict.turn))

    def _mark(self, name: str, x: float, text: str, said: str) -> None:
        """Draw a leading mark at `x`, with `text` next to it, `said` on hover and a stem to the bar."""
        y, colour = self.rows[name], colours.CRITERIA.get(name, colours.GREY)
        ruled = [at for trace in self.canvas.data if trace["name"] == f"{self.side} {name} rule" for at in trace["x"]]
        covered = any(x + 0.01 < at < x + 0.08 for at in ruled)  # where the text would be
        side, shift = ("right", -9) if covered or x > 0.9 else ("left", 9)
        self.canvas.line(colour, 1, x0=x, x1=x, y0=self.edge, y1=y, opacity=0.6)
        marker = dict(symbol="circle", size=10, color=colour, line=dict(color=colour, width=2))
        look = dict(mode="markers", marker=marker, cliponaxis=False)
        self.canvas.points(f"{self.side} {name}", [x], [y], [f"{self.called}{said}"], **look)
        self.canvas.write(text, FONT, x=x, y=y, xanchor=side, xshift=shift)

    def _rule(self, name: str, rule: RuleVerdict) -> None:
        """Draw the layer that a published rule gives, smaller and fainter than the rest; nothing where it gives
        none."""
        if rule.depth is None or rule.ratio is None:
            return
        colour, row, n = colours.CRITERIA[name], self.rows[name], self.n_layers
        hover = f"{self.called}{say.rule_name(rule)}: layer {rule.depth} of 0–{rule.n_layers - 1}, in the papers' count"
        hover += f", ratio {number(rule.ratio)}"
        hover += "" if rule.clear else f"<br>{'robust so far' if rule.so_far else 'not robust here'}"
        if rule.range:
            low, high = (rule.range[0] + 0.1) / n, (rule.range[1] + 0.9) / n
            place: dict[str, Any] = dict(x0=low, x1=high, y0=row - 0.38, y1=row - 0.38)  # below the mark
            self.canvas.line(colour, 2, name=f"{self.side} {name} band", opacity=0.35, **place)
            hover += f"<br>variants and nearby thresholds: {say.interval(*rule.range, 0)}"
        marker = dict(symbol="diamond" if rule.clear else "diamond-open", size=7, color=colour, line=dict(width=1.5))
        look = dict(mode="markers", marker=marker, opacity=0.7, cliponaxis=False)
        self.canvas.points(f"{self.side} {name} rule", [rule.ratio], [row], [hover], **look)
