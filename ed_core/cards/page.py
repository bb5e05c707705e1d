"""A card as one HTML file that fills two printed pages. It holds no script and asks nobody for anything; its curves are
SVG in the page's own colours, so they read in light, dark and on paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cases import report
from ..claims.running import CONTROL, MODEL
from ..figures import colours
from . import words

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 330, 150  # of a curve's drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 34, 6, 6, 24
PANELS = {
    "cosine": ("Cosine of what a layer adds with the stream", "layer"),
    "kl": ("Divergence of the lens from the output, nats", "depth"),
    "overlap": ("Best tokens that lens and output share", "depth"),
    "loss": ("Loss added by leaving out a layer, nats", "layer"),
}
NAMES = {MODEL: "this model", CONTROL: "untrained twin", "affine": "affine lens", "jacobian": "Jacobian lens"}
COLOURS = {MODEL: colours.BOTH, CONTROL: colours.CONTROL, **colours.LENSES}
DASHES = {MODEL: "", CONTROL: "5 3", "affine": "2 2", "jacobian": "7 2 2 2"}


def html(told: Mapping[str, Any], template: str = "card.html", folder: Path = FOLDER, **more: object) -> bytes:
    """The page. `template`, `folder`, `more`: another page around the same card, as the site has."""
    return report.templates(folder, FOLDER).get_template(template).render(**contents(told), **more).encode()


def fragment(told: Mapping[str, Any], scheme: str = "") -> str:
    """The card's style and body, to stand within another page; `scheme`: "light" or "dark" where that is known."""
    templates = report.templates(FOLDER)
    style, body = (FOLDER / "card.css").read_text(encoding="utf-8"), templates.get_template("body.html")
    own = f' style="color-scheme: {scheme}"' if scheme in ("light", "dark") else ""
    return f'<style>{style}</style><div class="card"{own}>{body.render(**contents(told))}</div>'


def contents(told: Mapping[str, Any]) -> dict[str, object]:
    """What `card.html` is told."""
    panels = [
        {
            "title": title,
            "svg": drawing(told["curves"][name], axis, _marks(told, name)),
            "lines": [{"name": NAMES[of], "colour": COLOURS[of], "dash": DASHES[of]} for of in told["curves"][name]],
        }
        for name, (title, axis) in PANELS.items()
        if told["curves"][name]
    ]
    return dict(card=told, words=words, panels=panels)


def _marks(told: Mapping[str, Any], name: str) -> list[float]:
    """Where the rule puts the depth, under the logit lens."""
    row = next((row for row in told["depths"] if row["rule"] == name and row["lens"] in ("", "logit")), None)
    return [row["depth"]] if row and row["depth"] is not None else []


def drawing(
    curves: Mapping[str, Mapping[str, Sequence[float | None]]], axis: str, marks: Sequence[float | int] = ()
) -> str:
    """Curves over layers or depths as SVG, each with its range over prompts; a vertical line at each of `marks`."""
    n = max(len(curve["values"]) for curve in curves.values())
    low, high, ticks = _scale([v for c in curves.values() for of in ("values", "low", "high") for v in c[of]])

    def x(at: float | int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / max(n - 1, 1)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    def points(values: Sequence[float | None], backwards: bool = False) -> str:
        at = [f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values) if v is not None]
        return " ".join(reversed(at) if backwards else at)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="curves over {axis}s">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y(tick) + 3:.1f}" text-anchor="end">{tick:g}</text>')
    every = max(1, math.ceil((n - 1) / 6))
    places = range(0, n, every)
    parts += [f'<text x="{x(i):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{i}</text>' for i in places]
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 2}" text-anchor="middle">{axis}</text>')
    for mark in marks:
        parts.append(f'<line class="mark" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    for of, curve in reversed(curves.items()):
        band = f"{points(curve['low'])} {points(curve['high'], backwards=True)}"
        parts.append(f'<polygon points="{band}" fill="{COLOURS[of]}" fill-opacity=".18"/>')
        dash = f' stroke-dasharray="{DASHES[of]}"' if DASHES[of] else ""
        line = f'stroke="{COLOURS[of]}" stroke-width="1.6"{dash}'
        parts.append(f'<polyline points="{points(curve["values"])}" fill="none" {line}/>')
    return "".join([*parts, "</svg>"])


def _scale(values: Sequence[float | None]) -> tuple[float, float, list[float]]:
    """Both ends of an axis that holds all values, and round ticks between them."""
    there = [v for v in values if v is not None]
    low, high = min(there, default=0.0), max(there, default=1.0)
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 5)
    ticks = [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return low, high, [round(tick, 10) for tick in ticks]
