"""The rows of a verdict's marks over a bar of layers: where the lens settles and the answer leads, and the published
rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..depth import say
from ..depth.answer import first_choice
from ..depth.rules import RULES
from ..depth.verdict import RuleVerdict, Verdict
from . import colours
from .canvas import FONT, Canvas, number, visible

ANSWER = "answer"
ROWS = {ANSWER: 4.0, "kl": 3.0, "overlap": 2.0, "cosine": 1.0}  # above the bar, which is at 0
NAMES = {ANSWER: ANSWER} | {name: rule.label for name, rule in RULES.items()}
HALF = 0.4  # of the bar's height, in rows


def bound(*verdicts: Verdict | None) -> float:
    """Return the end of the colour scale of the bars of layers that covers these verdicts' cosine curves."""
    curves = [curve for one in verdicts if (curve := _cosine(one)) is not None]
    return colours.ceiling(np.concatenate(curves) if curves else np.full(1, np.nan), (0.25, 0.5, 1.0))


def _cosine(verdict: Verdict | None) -> np.ndarray | None:
    """Return the mean cosine that rule and turn read, `[layer]`; None without it."""
    return verdict.rules["cosine"].curve if verdict is not None and "cosine" in verdict.rules else None


@dataclass(frozen=True)
class Rows:
    """The rows of one model's marks over shares of the depth, and its bar of layers around `centre`.

    The rows are above the bar, or below where `sign` is -1. A rule's mark is at its ratio, the right edge of its layer.
    `side` begins the traces' names, `called` the hover texts."""

    canvas: Canvas
    n_layers: int
    centre: float
    sign: int
    side: str
    called: str

    def depth(self, depth: float | int) -> float:
        """Return the x coordinate of a depth, 0 to L."""
        return depth / self.n_layers

    def row(self, name: str) -> float:
        """Return the y coordinate of a row."""
        return self.centre + self.sign * ROWS[name]

    def bar(self, verdict: Verdict | None, bound: float) -> None:
        """Draw the layers as a bar, in the colours of the cosine map where a curve is known."""
        cosine = _cosine(verdict)
        values = np.full(self.n_layers, np.nan) if cosine is None else np.asarray(cosine, np.float64)
        shade, width = colours.signed(bound), self.depth(1) - self.depth(0)
        hover = [
            f"{self.called}layer {i}" + (f"<br>mean cosine {number(v)}" if np.isfinite(v) else "")
            for i, v in enumerate(values, 1)
        ]
        look = dict(zmin=shade.low, zmax=shade.high, colorscale=shade.colours, showscale=False, xgap=1)
        self.canvas.add(
            "heatmap",
            z=[[v if np.isfinite(v) else None for v in values]],
            x0=self.depth(0.5),
            dx=width,
            y=[self.centre],
            dy=2 * HALF,
            name=f"blocks {self.side}".strip(),
            customdata=[hover],
            hovertemplate="%{customdata}<extra></extra>",
            **look,
        )
        low, high = self.centre - HALF, self.centre + HALF
        for i in range(self.n_layers + 1):
            self.canvas.line(colours.FAINT, 1, x0=self.depth(i), x1=self.depth(i), y0=low, y1=high)
        for y in (low, high):
            self.canvas.line(colours.FAINT, 1, x0=self.depth(0), x1=self.depth(self.n_layers), y0=y, y1=y)

    def write(self, text: str, y: float, colour: str | None = None) -> None:
        """Write text left of the rows."""
        place = dict(xref="paper", x=0, xanchor="right", xshift=-6, y=y, yanchor="middle")
        self.canvas.write(text, FONT, colour, **place)

    def name(self, name: str) -> None:
        """Write the name of a row left of it."""
        self.write(NAMES[name], self.row(name))

    def marks(self, verdict: Verdict) -> None:
        """Draw what the rules give, the answer's depth, the average depths and the switch, as far as they are known."""
        for name, rule in verdict.rules.items():
            self._rule(name, rule)
        answers = verdict.sample.answers
        look = answers[0] if len(answers) == 1 else ()
        if (best := first_choice(look)) is not None:
            what = f"{'answer' if look[-1].given else 'next token'} {visible(look[-1].token, 30)}"
            self._mark(ANSWER, self.depth(best), "", f"{what}: first choice from {say.layers(best, self.n_layers)} on")
        for name, mean in verdict.means.items():
            if mean.depth is not None:
                text = f"average depth {mean.depth:.1f} of {self.n_layers} by {NAMES[name]}, over all thresholds"
                self._mark(name, self.depth(mean.depth), f"{mean.depth:.1f}", text)
        if verdict.turn is not None and verdict.turn.layer is not None:
            after = verdict.turn.layer + 1
            self._mark("cosine", self.depth(after), f"after {after}", say.turn(verdict.turn))

    def _mark(self, name: str, x: float, text: str, said: str) -> None:
        """Draw a leading mark at `x`, with `text` next to it, `said` on hover and a stem to the bar."""
        row, colour = self.row(name), colours.CRITERIA.get(name, colours.GREY)
        near, far = (x + share * (self.depth(self.n_layers) - self.depth(0)) for share in (0.01, 0.08))  # of the number
        ruled = [pos for trace in self.canvas.data if trace["name"] == f"{self.side}{name} rule" for pos in trace["x"]]
        covered = any(near < pos < far for pos in ruled)
        side = "left" if covered or x > self.depth(0.9 * self.n_layers) else "right"
        self.canvas.line(colour, 1, x0=x, x1=x, y0=self.centre + self.sign * HALF, y1=row, opacity=0.6)
        marker = dict(symbol="circle", size=10, color=colour, line=dict(color=colour, width=2))
        look = dict(mode="markers", marker=marker, cliponaxis=False)
        self.canvas.points(f"{self.side}{name}", [x], [row], [f"{self.called}{said}"], **look)
        shift = 9 if side == "right" else -9
        self.canvas.write(text, FONT, x=x, y=row, xanchor="left" if side == "right" else "right", xshift=shift)

    def _rule(self, name: str, rule: RuleVerdict) -> None:
        """Draw the layer that a published rule gives, smaller and fainter than the rest; nothing where it gives
        none."""
        if rule.depth is None or rule.ratio is None:
            return
        colour, row = colours.CRITERIA[name], self.row(name)
        hover = f"{self.called}{say.rule_name(rule)}: layer {rule.depth} of 0–{rule.n_layers - 1}, in the papers' count"
        hover += f", ratio {number(rule.ratio)}"
        hover += "" if rule.clear else f"<br>{'robust so far' if rule.so_far else 'not robust here'}"
        if rule.range:
            y = row - 0.38  # below the mark
            low, high = (self.depth(rule.range[0] + 0.1), self.depth(rule.range[1] + 0.9))
            self.canvas.line(colour, 2, name=f"{self.side}{name} band", opacity=0.35, x0=low, x1=high, y0=y, y1=y)
            hover += f"<br>variants and nearby thresholds: {say.interval(*rule.range, 0)}"
        marker = dict(symbol="diamond" if rule.clear else "diamond-open", size=7, color=colour, line=dict(width=1.5))
        look = dict(mode="markers", marker=marker, opacity=0.7, cliponaxis=False)
        self.canvas.points(f"{self.side}{name} rule", [rule.ratio], [row], [hover], **look)
