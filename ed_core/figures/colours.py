"""Colours, and how numbers become colours. One meaning, one colour, on every page; readable by the colour-blind
(Okabe–Ito, viridis).

Figures are drawn on the page's own background, light or dark: nothing here is the page's black or white. What must be
seen on both is grey; what must be seen on a heatmap too is drawn twice, a dark line on a light one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly.colors import sample_colorscale, sequential

from ..depth.rules import RULES

ATTENTION, MLP, BOTH = "#0072B2", "#E69F00", "#009E73"
CRITERIA = {name: rule.colour for name, rule in RULES.items()}
LENSES = {"logit": "#8C6BB1", "affine": "#A6761D", "jacobian": "#66A61E"}
BRANCHES = {"attn": ATTENTION, "attention": ATTENTION, "mlp": MLP, "layer": BOTH, "block": BOTH, "both": BOTH}
NAMED = BRANCHES | CRITERIA | LENSES
OTHERS = ("#8C6BB1", "#A6761D", "#7F7F7F", "#66A61E")  # curves that are none of the above
SIDES = ("#8C6BB1", "#A6761D")  # A and B, always told apart by mark and dash as well
GREY, FAINT = "rgba(128,128,128,0.8)", "rgba(128,128,128,0.35)"
LIGHT_EDGE, DARK_EDGE, SHADOW = "rgba(255,255,255,0.75)", "rgba(20,20,20,0.9)", "rgba(20,20,20,0.4)"
CLEAR, VEIL = "rgba(0,0,0,0)", "rgba(128,128,128,0.12)"

# Roles of lines and letters, with their counterparts on a dark page, which `figure.js` puts in their place.
ACCENT, MUTED, WRONG = "#00659e", "#5f5d5b", "#a94700"
DARK = {ACCENT: "#56b4e9", MUTED: "#b5b2ae", WRONG: "#f0a06a"}
DARK |= dict(zip(CRITERIA.values(), ("#e79cc4", "#b9a5e6", "#b5c35a"), strict=True))
OF_PAGES = {  # further roles of pages, light and dark
    "right": ("#1a7f4b", "#4cc38a"),
    "on-accent": ("#ffffff", "#0b1018"),
    "edge": ("#8a8d94", "#80848c"),
    "ink": ("#141414", "#ffffff"),
    "control": ("#70757c", "#9aa0a6"),
    "tint": ("#00659e1f", "#56b4e92e"),
}
TINT = "rgba(0,114,178,0.16)"

CONTROL = "rgba(128,128,128,0.95)"  # always dashed: a twin in which nothing was learned, or nothing is in its place
FAILED = "#B2182B"  # what is not to be relied on
ECHO = "#BDBDBD"  # a guess that only repeats what went in

SEQUENTIAL = list(sequential.Viridis)  # sizes, and how sure the lens is
DAMAGE = sample_colorscale(sequential.Inferno, np.linspace(0.12, 0.85, 11))  # what breaks; no page has its ends
LETTERS = ("#000000", "#ffffff")  # on a cell: one of the two has a contrast of 4.58 or more on any colour
MIDDLE = 0.0525**0.5 - 0.05  # the luminance on which WCAG 2.1's contrast of both is equal
DIVERGING = ["#0072B2", "#7FB2D6", "#DCDCDC", "#EBA16F", "#D55E00"]  # erases, neutral, strengthens


def css() -> str:
    """Return the colours by role as CSS custom properties, for the pages' style sheet."""
    roles = {"accent": (ACCENT, DARK[ACCENT]), "muted": (MUTED, DARK[MUTED]), "wrong": (WRONG, DARK[WRONG]), **OF_PAGES}
    properties = (f"--ed-{name}: light-dark({light}, {dark});" for name, (light, dark) in roles.items())
    return f":root {{ {' '.join(properties)} }}"


def faint(colour: str) -> str:
    """Return a colour "#rrggbb" made transparent, for the area behind a line."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def colour_of(name: str) -> str | None:
    """Return the colour of a measure or curve by the first word of its name; None where it has none."""
    return NAMED.get(name.lower().replace("_", " ").split(" ")[0])


@dataclass(frozen=True)
class Shade:
    """A colour range from `low` to `high`, in the measure's own unit, and the colour scale between them."""

    low: float
    high: float
    colours: list[Any]  # pairs of a place, 0 to 1, and a colour
    log: bool = False


def linear(low: float, high: float, reverse: bool = False, scale: list[str] = SEQUENTIAL) -> Shade:
    """Return a shade with equal colour steps for equal steps of the value. `reverse`: the low end is bright."""
    return Shade(low, high, _stops(np.linspace(0, 1, 21), reverse, scale=scale))


def steep(low: float, high: float, scale: list[str] = SEQUENTIAL) -> Shade:
    """Return a shade with colour after the square root, for values that crowd at the low end."""
    u = np.linspace(0, 1, 33)
    return Shade(low, high, _stops(u, at=u**2, scale=scale))


def signed(bound: float = 1.0) -> Shade:
    """Return a shade diverging around 0, from `-bound` to `bound`, colour after the signed square root: most cosines
    are small, and their sign matters."""
    u = np.linspace(-1, 1, 41)
    stops = (np.sign(u) * u**2 + 1) / 2
    return Shade(-bound, bound, [[float(p), c] for p, c in zip(stops, sample_colorscale(DIVERGING, (u + 1) / 2))])


def logarithmic(low: float | int, high: float | int, reverse: bool = False, scale: list[str] = SEQUENTIAL) -> Shade:
    """Return a shade from `10**low` to `10**high`, its stops spaced by logarithm, so that values need no conversion."""
    u = np.linspace(0, 1, 41)
    bottom, top = 10.0**low, 10.0**high
    stops = np.clip((10 ** (low + u * (high - low)) - bottom) / (top - bottom), 0, 1)
    stops[0], stops[-1] = 0, 1  # which rounding may miss
    return Shade(bottom, top, _stops(u, reverse, at=stops, scale=scale), log=True)


def without_zero(shade: Shade) -> list[list[Any]]:
    """Return the shade's colour scale from 0 on, an exact 0 left clear: for arrays with zeros by construction that are
    marked otherwise."""
    (_, first), *rest = shade.colours
    places = [((shade.low + stop * (shade.high - shade.low)) / shade.high, colour) for stop, colour in rest]
    return [[0.0, CLEAR], [1e-9, first], [shade.low / shade.high, first], *map(list, places)]


def decades(values: np.ndarray, at_least: tuple[int, int], at_most: tuple[int, int]) -> tuple[int, int]:
    """Return the exponents (low, high) of the powers of ten that enclose positive `values`, no narrower than
    `at_least`, no wider than `at_most`: the range only widens while an array fills."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size:
        return at_least
    low, high = np.floor(np.log10(positive.min())), np.ceil(np.log10(positive.max()))
    low, high = max(min(low, at_least[0]), at_most[0]), min(max(high, at_least[1]), at_most[1])
    return int(low), int(high)


def spread(
    values: np.ndarray, otherwise: tuple[int, int], quantiles: tuple[float, float] = (0.05, 0.9)
) -> tuple[float, float]:
    """Return the exponents (low, high) of ten around the 5 % to 90 % quantiles of positive `values`, at steps of 1, 2
    and 5, a factor of four apart at least: a few cells must not take the colours from all others. `otherwise`: where no
    value is above 0."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size:
        return float(otherwise[0]), float(otherwise[1])
    low, high = np.log10(np.quantile(positive, quantiles))
    middle, apart = (low + high) / 2, np.log10(4) / 2
    low, high = min(low, middle - apart) + 1e-9, max(high, middle + apart) - 1e-9
    steps = np.log10([1, 2, 5, 10])
    first, last = np.floor(low), np.floor(high)
    return (
        float(first + max(step for step in steps[:3] if step <= low - first)),
        float(last + min(step for step in steps if step >= high - last)),
    )


def ceiling(values: np.ndarray, steps: tuple[float, ...]) -> float:
    """Return the first of `steps` that is no smaller than any of `|values|`; the last if none is."""
    largest = np.nanmax(np.abs(values)) if np.isfinite(values).any() else 0
    return next((step for step in steps if largest <= step), steps[-1])


def luminance(rgb: np.ndarray) -> np.ndarray | np.floating:
    """Return WCAG's relative luminance, 0 to 1, of colours `[…, 3]`, 0 to 255."""
    u = np.asarray(rgb, np.float64) / 255
    light = np.where(u <= 0.04045, u / 12.92, ((u + 0.055) / 1.055) ** 2.4)
    brightness: np.ndarray | np.floating = light @ (0.2126, 0.7152, 0.0722)
    return brightness


def rgb(colour: str) -> np.ndarray:
    """Return red, green and blue, 0 to 255, of "#rrggbb" or "rgb(…)"; opacity is left out."""
    if colour.startswith("#"):
        return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.float64)
    return np.array([float(n) for n in re.findall(r"[\d.]+", colour)[:3]])


def seen(shade: Shade, values: np.ndarray) -> np.ndarray:
    """Return the colours `[…, 3]` of values on a map, interpolated in red, green and blue between stops, as browsers
    do."""
    places = (np.asarray(values, np.float64) - shade.low) / (shade.high - shade.low)
    stops = np.array([rgb(colour) for _, colour in shade.colours])
    return np.stack([np.interp(places, [p for p, _ in shade.colours], channel) for channel in stops.T], -1)


def letters(shade: Shade, values: np.ndarray) -> np.ndarray:
    """Return the index in `LETTERS` (0 black, 1 white) of the letters that read best on cells of these values."""
    return np.asarray(luminance(seen(shade, values)) < MIDDLE, int)


def _stops(
    u: np.ndarray, reverse: bool = False, at: np.ndarray | None = None, scale: list[str] = SEQUENTIAL
) -> list[Any]:
    """Return the colour scale of plotly: pairs of a place (`at`, by default `u`) and the colour at `u` of `scale`."""
    colours = sample_colorscale(scale, 1 - u if reverse else u)
    return [[float(p), c] for p, c in zip(u if at is None else at, colours)]
