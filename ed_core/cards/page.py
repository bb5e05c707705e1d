"""A card as Markdown, and as a page that loads nothing: a template, and its curves as SVG in the page's own colours, so
that they read in light, dark and on paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..claims import words as claim_words
from ..claims.running import MODEL, TWIN
from ..depth import say
from ..depth.rules import OF_LENS, RULES
from ..figures import colours
from ..studies import report
from ..studies.words import document, render
from .card import Card, Curve, Cut, Value

CURVES = "Curves."  # their place in the text
WIDTH, HEIGHT = 330, 150  # of a curve's drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 34, 6, 6, 24
PANELS = {
    **{name: (rule.title + ", nats" * (rule.unit == "nats"), rule.axis) for name, rule in RULES.items()},
    "loss": ("Loss added by leaving out a layer, nats (logarithmic above 0.05)", "layer"),
}
BENT = {"loss": 0.05}  # panels with an axis that is linear up to so much, and logarithmic beyond
POWERS = (-10.0, -1.0, -0.1, 0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)  # its ticks
LINES = {  # name, colour and dashes
    MODEL: ("this model", colours.BOTH, ""),
    TWIN: ("untrained copy", colours.CONTROL, "5 3"),
    "affine": ("affine lens", colours.LENSES["affine"], "2 2"),
    "jacobian": ("Jacobian lens", colours.LENSES["jacobian"], "7 2 2 2"),
}


def markdown(card: Card) -> str:
    """Return the card as a section for a hub's model card, with its YAML in front."""
    return f"---\n{metadata(card)}\n---\n\n{_text(card, '##', 'Effective depth')}"


def html(card: Card) -> bytes:
    """Return the card as the bytes of a whole HTML page."""
    return report.page(f"Depth card: {card.model.name}", _body(card)).encode()


def fragment(card: Card) -> str:
    """Return style and body of the card's HTML, for another page."""
    return f'<style>{report.style()}</style><div class="report">{_body(card)}</div>'


def _body(card: Card) -> str:
    """Return the card's text as HTML, with the curves in their place."""
    before, _, after = _text(card, "#", f"Depth card: {card.model.name}").partition(f"\n{CURVES}\n")
    panels = []
    for name, (heading, axis) in PANELS.items():
        if curves := card.curves[name]:
            one = card.depth(name, mean=True) or card.depth(name, mean=False)
            marks = [one.depth] if one and one.depth is not None else []
            svg = drawing(curves, axis, marks, BENT.get(name, 0.0))
            legend = [(LINES[key][1], LINES[key][0]) for key in curves if key in LINES]
            panels.append((heading, svg, legend))
    return report.body(before) + render("curves.html", panels=panels) + report.body(after)


def _text(card: Card, mark: str, title: str) -> str:
    """Return the card's text as Markdown; `mark`: "#" for a page, which gets curves, "##" for a section."""
    rules = [list(card.rules[0]), *(list(row.values()) for row in card.rules)] if card.rules else [["Rule"]]
    claims = [claim_words.HEAD, *claim_words.rows(card.claims)]
    cuts, curves = [cut(one) for one in card.cuts], CURVES if mark == "#" else ""
    given = dict(card=card, mark=mark, title=title, facts=facts(card), counted=counted(card))
    return document("card.md", **given, rules=rules, claims=claims, cuts=cuts, curves=curves)


def headline(card: Card) -> str:
    """Return the first sentence of the verdict, which is the answer."""
    return card.said[0]


def counted(card: Card) -> str:
    """Return how many claims hold, fail and are undecided, as a sentence."""
    return f"{claim_words.counted(card.claims)}."


def facts(card: Card) -> str:
    """Return what the model is, and on which prompts it was measured, in a line."""
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


def value(of: Value, form: str = "+.2f", scale: float = 1.0, unit: str = "") -> str:
    """Return a value and its interval, times `scale`, as text; "not finite" for None."""
    if of.value is None:
        return "not finite"
    digits = int(form.strip("+.f"))
    known = of.low is not None and of.high is not None
    ends = f" ({say.interval(scale * of.low, scale * of.high, digits)})" if known else ""  # type: ignore[operator]
    return f"{say.number(scale * of.value, form)}{unit}{ends}"


def cut(one: Cut) -> str:
    """Return a sentence on what leaving out the cheapest stretch of a length costs."""
    which = say.stretch(one.start, one.start + one.layers)
    among = "single layers" if one.layers == 1 else f"stretches of {one.layers} layers"
    return (
        f"Among {among}, leaving out {which} changes the predictions least: loss {value(one.loss)} nats a token; "
        f"{value(one.kept, '.0f', 100, ' %')} of the first choices stay."
    )


def metadata(card: Card) -> str:
    """Return the YAML of a model card, with the depth ratios as evaluation results."""
    from huggingface_hub import EvalResult, ModelCardData

    names = {(name, True): ("mean_depth_ratio", f"Average depth / layers, {r.label}") for name, r in OF_LENS.items()}
    names |= {
        (name, False): ("effective_depth_ratio", f"(layer + 1) / layers, {r.heading} rule") for name, r in RULES.items()
    }
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=card.set.name,
            dataset_name=f"{card.set.name} ({len(card.set.prompts)} prompts)",
            metric_type=f"{names[one.of, one.mean][0]}_{one.of}",
            metric_name=names[one.of, one.mean][1],
            metric_value=one.ratio,
        )
        for one in card.depths
        if one.ratio is not None
    ]
    return ModelCardData(model_name=card.model.name, eval_results=results or None, tags=["effective-depth"]).to_yaml()


def drawing(curves: Mapping[str, Curve], axis: str, marks: Sequence[float | int] = (), bent: float = 0.0) -> str:
    """Return curves over layers or depths as SVG, each with its range over prompts; a vertical line at each of `marks`.

    `bent`: the axis of values is `asinh(value / bent)`, linear up to about that and logarithmic beyond; 0: linear."""
    n = max(len(curve.values) for curve in curves.values())
    values = [v for c in curves.values() for row in (c.values, c.low, c.high) for v in row if v is not None]
    least, most = min(values, default=0.0), max(values, default=1.0)
    if most - least < 1e-12:
        least, most = least - 0.5, most + 0.5

    def bend(value: float) -> float:
        return math.asinh(value / bent) if bent else value

    def x(at: float | int) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * at / max(n - 1, 1):.1f}"

    def y(value: float, lower: float = 0.0) -> str:
        """Return the y coordinate of a value, `lower` units further down."""
        share = (bend(most) - bend(value)) / (bend(most) - bend(least))
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * share + lower:.1f}"

    def points(values: Sequence[float | None], backwards: bool = False) -> str:
        """Return the points of a curve as SVG's coordinates, None left out; `backwards`: the last one first."""
        pairs = [f"{x(i)},{y(v)}" for i, v in enumerate(values) if v is not None]
        return " ".join(reversed(pairs) if backwards else pairs)

    ticks = [tick for tick in POWERS if least <= tick <= most] if bent else _round(least, most)
    places = range(0, n, max(1, math.ceil((n - 1) / 6)))
    lines = [(*LINES[key][1:], curve) for key, curve in reversed(list(curves.items()))]
    size = dict(width=WIDTH, height=HEIGHT, left=LEFT, right=WIDTH - RIGHT, top=TOP, bottom=HEIGHT - BOTTOM)
    drawn = dict(x=x, y=y, points=points, axis=axis, first=int(axis == "layer"))
    return render("curve.svg", **size, **drawn, marks=marks, ticks=ticks, places=places, lines=lines)


def _round(low: float, high: float) -> list[float]:
    """Return round numbers within a range for the ticks of an axis, about five at most."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 5)
    ticks = [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return [round(tick, 10) for tick in ticks]
