"""A card as Markdown, and as a page that asks nobody for anything: a template, and its curves as SVG in the page's own
colours, so that they read in light, dark and on paper."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence

from ..claims import words as claim_words
from ..claims.running import MODEL, TWIN
from ..depth import say
from ..depth.rules import OF_LENS, RULES
from ..figures import colours
from ..studies import report
from ..studies.words import templates
from .card import Card, Curve, Cut, Depth, Value

CURVES = "Curves."  # where they are in the text
WIDTH, HEIGHT = 330, 150  # of a curve's drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 34, 6, 6, 24
STYLE = (
    "text { fill: currentColor; font: 9px system-ui, sans-serif; opacity: .85 } .grid { stroke: currentColor; "
    "stroke-opacity: .14 } .mark { stroke: currentColor; stroke-opacity: .55; stroke-dasharray: 2 2 }"
)
GRID = "display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: .8rem 1.4rem"
PANELS = {
    **{name: (rule.title + ", nats" * (rule.unit == "nats"), rule.axis) for name, rule in RULES.items()},
    "loss": ("Loss added by leaving out a layer, nats (logarithmic above 0.05)", "layer"),
}
BENT = {"loss": 0.05}  # panels whose axis is linear up to so much, and logarithmic beyond
NAMES = {MODEL: "this model", TWIN: "untrained copy", "affine": "affine lens", "jacobian": "Jacobian lens"}
COLOURS = {MODEL: colours.BOTH, TWIN: colours.CONTROL, **colours.LENSES}
INK, GREY = {"light": "#1f2430", "dark": "#e6e8ee"}, "#808080"  # letters, as the style has them
DASHES = {MODEL: "", TWIN: "5 3", "affine": "2 2", "jacobian": "7 2 2 2"}


def markdown(card: Card) -> str:
    """A section for a hub's model card, with its YAML in front."""
    return f"---\n{metadata(card)}\n---\n\n{_text(card, '##', 'Effective depth')}"


def html(card: Card) -> bytes:
    """The page."""
    title = f"Depth card: {card.model.name}"
    return report.page(title, _body(card, title, "")).encode()


def fragment(card: Card, scheme: str = "") -> str:
    """Style and body, for another page; `scheme`: "light" or "dark" where that is known, for its pictures."""
    body = _body(card, f"Depth card: {card.model.name}", INK.get(scheme, GREY))
    return f'<style>{report.style()}</style><div class="report">{body}</div>'


def _body(card: Card, title: str, ink: str) -> str:
    """The text as HTML, with the curves in their place: as SVG, or with `ink` as pictures, which a page that takes no
    SVG shows too; they know no page's colours."""
    before, _, after = _text(card, "#", title).partition(f"\n{CURVES}\n")
    return report.body(before) + _panels(card, ink) + report.body(after)


def _text(card: Card, mark: str, title: str) -> str:
    text: str = (
        templates()
        .get_template("card.md")
        .render(
            card=card,
            mark=mark,
            title=title,
            curves=CURVES if mark == "#" else "",
            facts=facts(card),
            rules=[list(card.rules[0]), *(list(row.values()) for row in card.rules)] if card.rules else [["Rule"]],
            cuts=[cut(one) for one in card.cuts],
            counted=counted(card),
            claims=[["claim", "verdict", "here", "the paper", "one untrained copy"], *claim_words.rows(card.claims)],
        )
    )
    return text.replace("<", "&lt;")  # names and prompts are anybody's, and Markdown passes HTML on


def headline(card: Card) -> str:
    """The answer."""
    return card.said[0]


def counted(card: Card) -> str:
    """How the claims came out."""
    standing = claim_words.standing(card.claims)
    return f"{claim_words.counted(card.claims)}{f'; {standing}' if standing else ''}."


def facts(card: Card) -> str:
    """What the model is, and on which prompts, in a line."""
    m, s = card.model, card.set
    size = f"{m.parameters / 1e9:.3g} B" if m.parameters >= 999.5e6 else f"{m.parameters / 1e6:.3g} M"
    heads = f"{m.heads} heads" if m.heads == m.key_value_heads else f"{m.heads} query and {m.key_value_heads} key heads"
    looped = f" in {m.passes} passes" if m.passes > 1 else ""
    levels = f" of {say.count(len(s.levels), 'level')}" if s.levels else ""
    return (
        f"{m.family}, {m.layers} layers{looped} of width {m.width:,}, {heads}, {size} parameters, computed in "
        f"{m.precision}. Measured on {say.count(len(s.prompts), 'prompt')}{levels} of the set {s.name}; intervals are "
        f"5 to 95 % over {card.over}."
    )


def depth(one: Depth | None) -> str:
    """A depth in a cell: "18.3 (18.0 to 18.6)"; "–" where there is none."""
    if one is None or one.depth is None:
        return "–"
    digits = int(one.mean)
    within = "" if one.low is None or one.high is None else f" ({say.interval(one.low, one.high, digits)})"
    return f"{say.number(one.depth, f'.{digits}f')}{within}"


def value(found: Value, form: str = "+.2f", scale: float = 1.0, unit: str = "") -> str:
    """A value with its interval."""
    if found.value is None:
        return "not finite"
    digits = int(form.rstrip("f").rpartition(".")[2])
    ends = (
        ""
        if found.low is None or found.high is None
        else (f" ({say.interval(scale * found.low, scale * found.high, digits)})")
    )
    return f"{say.number(scale * found.value, form)}{unit}{ends}"


def cut(one: Cut) -> str:
    """What leaving out the cheapest stretch costs, as a sentence."""
    which = say.stretch(one.start, one.start + one.layers)
    among = "single layers" if one.layers == 1 else f"stretches of {one.layers} layers"
    return (
        f"Among {among}, leaving out {which} changes the predictions least: loss {value(one.loss)} nats a token; "
        f"{value(one.kept, '.0f', 100, ' %')} of the first choices stay."
    )


def metadata(card: Card) -> str:
    """The YAML of a model card: the ratios as evaluation results."""
    from huggingface_hub import EvalResult, ModelCardData

    names = {
        **{
            (of, True): (f"mean_depth_ratio_{of}", f"Average depth / layers, {rule.label}")
            for of, rule in OF_LENS.items()
        },
        **{
            (of, False): (f"effective_depth_ratio_{of}", f"(layer + 1) / layers, {rule.heading} rule")
            for of, rule in RULES.items()
        },
    }
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=card.set.name,
            dataset_name=f"{card.set.name} ({len(card.set.prompts)} prompts)",
            metric_type=names[one.of, one.mean][0],
            metric_name=names[one.of, one.mean][1],
            metric_value=one.ratio,
        )
        for one in card.depths
        if one.ratio is not None
    ]
    tags = ["effective-depth"]
    return ModelCardData(model_name=card.model.name, eval_results=results or None, tags=tags).to_yaml()


def _panels(card: Card, ink: str) -> str:
    """The curves, each with its legend."""
    found = []
    for name, (title, axis) in PANELS.items():
        if not (curves := card.curves[name]):
            continue
        one = card.depth(name, mean=True) or card.depth(name, mean=False)
        marks = [one.depth] if one and one.depth is not None else []
        svg = drawing(curves, axis, marks, BENT.get(name, 0.0))
        if ink:
            data = b64encode(svg.replace("<svg ", f'<svg style="color: {ink}" ', 1).encode()).decode()
            svg = f'<img alt="{title}" src="data:image/svg+xml;base64,{data}" style="width: 100%">'
        legend = " · ".join(f'<span style="color: {COLOURS[of]}">━</span> {NAMES[of]}' for of in curves if of in NAMES)
        found.append(f'<figure style="margin: 0"><figcaption>{title}</figcaption>{svg}<small>{legend}</small></figure>')
    return f'<div style="{GRID}">{"".join(found)}</div>'


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
        number = say.number(tick, "g")
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
