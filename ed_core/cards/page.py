"""A card as one HTML file that fills two printed pages. It holds no script and asks nobody for anything; its curves are
SVG in the page's own colours, so they read in light, dark and on paper."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cases import report
from ..claims.running import CONTROL, MODEL
from ..depth.rules import RULES
from ..depth.wording import printed
from ..figures import colours
from . import words
from .card import Card, Curve, depth_of, mean_depth_of

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 330, 150  # of a curve's drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 34, 6, 6, 24
STYLE = (
    "text { fill: currentColor; font: 9px system-ui, sans-serif; opacity: .85 } .grid { stroke: currentColor; "
    "stroke-opacity: .14 } .mark { stroke: currentColor; stroke-opacity: .55; stroke-dasharray: 2 2 }"
)
PANELS = {
    **{name: (rule.title + ", nats" * (rule.unit == "nats"), rule.axis) for name, rule in RULES.items()},
    "loss": ("Loss added by leaving out a layer, nats (logarithmic above 0.05)", "layer"),
}
BENT = {"loss": 0.05}  # panels whose axis is linear up to so much, and logarithmic beyond
NAMES = {MODEL: "this model", CONTROL: "untrained twin", "affine": "affine lens", "jacobian": "Jacobian lens"}
COLOURS = {MODEL: colours.BOTH, CONTROL: colours.CONTROL, **colours.LENSES}
INK, GREY = {"light": "#1f2430", "dark": "#e6e8ee"}, "#808080"  # letters, as `card.css` has them
LINES = {MODEL: "solid", CONTROL: "dashed", "affine": "dotted", "jacobian": "dashed"}  # in the legend
DASHES = {MODEL: "", CONTROL: "5 3", "affine": "2 2", "jacobian": "7 2 2 2"}


def html(told: Card, template: str = "card.html", folder: Path = FOLDER, **more: object) -> bytes:
    """The page. `template`, `folder`, `more`: another page around the same card, as the site has."""
    return report.templates(folder, FOLDER).get_template(template).render(**contents(told), **more).encode()


def fragment(told: Card, scheme: str = "") -> str:
    """The card's style and body, to stand within another page; `scheme`: "light" or "dark" where that is known,
    for its pictures."""
    templates = report.templates(FOLDER)
    style, body = (FOLDER / "card.css").read_text(encoding="utf-8"), templates.get_template("body.html")
    found = contents(told)
    for panel in found["panels"]:  # as pictures, which a page that takes no SVG shows too; they know no page's colours
        drawn = panel["svg"].replace("<svg ", f'<svg style="color: {INK.get(scheme, GREY)}" ', 1)
        panel["svg"] = (
            f'<img alt="{panel["title"]}" src="data:image/svg+xml;base64,{b64encode(drawn.encode()).decode()}">'
        )
    return f'<style>{style}</style><div class="card">{body.render(**found)}</div>'


def contents(told: Card) -> dict[str, Any]:
    """What `card.html` is told."""
    panels = [
        {
            "title": title,
            "svg": drawing(told.curves[name], axis, _marks(told, name), BENT.get(name, 0.0)),
            "lines": [{"name": NAMES[of], "colour": COLOURS[of], "line": LINES[of]} for of in told.curves[name]],
        }
        for name, (title, axis) in PANELS.items()
        if told.curves[name]
    ]
    return dict(card=told, words=words, panels=panels)


def _marks(told: Card, name: str) -> list[int | float]:
    """Where the mean depth stands under the logit lens; of what has none, where the papers' rule puts the depth."""
    row = mean_depth_of(told, name) or depth_of(told, name)
    return [row.depth] if row and row.depth is not None else []


def drawing(
    curves: Mapping[str, Curve],
    axis: str,
    marks: Sequence[float | int] = (),
    bent: float = 0.0,
) -> str:
    """Curves over layers or depths as SVG, each with its range over prompts; a vertical line at each of `marks`.

    `bent`: the axis of values is `asinh(value / bent)`, linear up to about that and logarithmic beyond; 0: linear."""
    n = max(len(curve.values) for curve in curves.values())
    there = [v for c in curves.values() for of in (c.values, c.low, c.high) for v in of if v is not None]
    least, most = min(there, default=0.0), max(there, default=1.0)
    if most - least < 1e-12:
        least, most = least - 0.5, most + 0.5
    ticks = _powers(least, most) if bent else _round(least, most)

    def bend(value: float) -> float:
        return math.asinh(value / bent) if bent else value

    def x(at: float | int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / max(n - 1, 1)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (bend(most) - bend(value)) / (bend(most) - bend(least))

    def points(values: Sequence[float | None], backwards: bool = False) -> str:
        at = [f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values) if v is not None]
        return " ".join(reversed(at) if backwards else at)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="curves">']
    parts.append(f"<style>{STYLE}</style>")
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        number = printed(tick, "g")
        parts.append(f'<text x="{LEFT - 4}" y="{y(tick) + 3:.1f}" text-anchor="end">{number}</text>')
    every = max(1, math.ceil((n - 1) / 6))
    places = range(0, n, every)
    parts += [f'<text x="{x(i):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{i}</text>' for i in places]
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 2}" text-anchor="middle">{axis}</text>')
    for mark in marks:
        parts.append(f'<line class="mark" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    for of, curve in reversed(list(curves.items())):
        band = f"{points(curve.low)} {points(curve.high, backwards=True)}"
        parts.append(f'<polygon points="{band}" fill="{COLOURS[of]}" fill-opacity=".18"/>')
        dash = f' stroke-dasharray="{DASHES[of]}"' if DASHES[of] else ""
        line = f'stroke="{COLOURS[of]}" stroke-width="1.6"{dash}'
        parts.append(f'<polyline points="{points(curve.values)}" fill="none" {line}/>')
    return "".join([*parts, "</svg>"])


def _round(low: float, high: float) -> list[float]:
    """Round numbers within a range, five at most or one more."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 5)
    ticks = [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return [round(tick, 10) for tick in ticks]


def _powers(low: float, high: float) -> list[float]:
    """0 and powers of ten within a range."""
    powers = [10.0**i for i in range(-1, 4)]
    return [tick for tick in (*(-one for one in reversed(powers)), 0.0, *powers) if low <= tick <= high]
