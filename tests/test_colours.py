"""Colours work for everybody: they differ under three kinds of colour blindness, scales grow in one direction, and
letters and lines are legible."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from plotly.colors import sample_colorscale

from ed_core.figures import colours

# Machado, Oliveira and Fernandes 2009 (IEEE TVCG 15), severity 1.0, on linear RGB.
BLIND = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
LIGHT, DARK = "#ffffff", "#171614"  # the two page backgrounds


def linear(colour: str) -> np.ndarray:
    """Linear RGB of "#rrggbb", "rgb(…)" or "rgba(…)", without its opacity."""
    value = colours.rgb(colour) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(colour: str, blind: str = "none") -> np.ndarray:
    """CIE L*a*b* of a colour as seen with this kind of sight."""
    ratio = XYZ @ np.clip(BLIND[blind] @ linear(colour), 0, 1) / XYZ.sum(1)
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    """WCAG 2.1's ratio, 1 to 21."""
    high, low = sorted((XYZ[1] @ linear(c) + 0.05 for c in (a, b)), reverse=True)
    return float(high / low)


@pytest.mark.parametrize("blind", BLIND)
def test_colours_used_together_differ(blind):
    """About 2 is just noticeable, 10 is seen at a glance."""
    branches, ends = (colours.ATTENTION, colours.MLP, colours.BOTH), (0, 2, -1)
    for used in (branches, colours.CRITERIA.values(), [colours.DIVERGING[i] for i in ends]):
        assert min(np.linalg.norm(lab(a, blind) - lab(b, blind)) for a, b in combinations(used, 2)) >= 12, used
    damage, certainty = (sample_colorscale(s, np.linspace(0.3, 0.8, 6)) for s in (colours.DAMAGE, colours.SEQUENTIAL))
    assert min(np.linalg.norm(lab(a, blind) - lab(b, blind)) for a, b in zip(damage, certainty)) >= 12


@pytest.mark.parametrize("blind", BLIND)
def test_scales_grow_in_one_direction(blind):
    for scale in (colours.SEQUENTIAL, colours.DAMAGE):
        steps = np.array([lab(c, blind)[0] for c in sample_colorscale(scale, np.linspace(0, 1, 60))])
        assert (np.diff(steps) > 0).all() and steps[-1] - steps[0] > 60
    steps = np.array([lab(c, blind)[0] for c in sample_colorscale(colours.DIVERGING, np.linspace(0, 1, 61))])
    assert (np.diff(steps[:31]) > 0).all() and (np.diff(steps[30:]) < 0).all()


SHADES = {  # of maps with letters
    "probability": colours.linear(0.0, 1.0),
    "divergence": colours.linear(0.0, 20.0, reverse=True),
    "norms": colours.logarithmic(-2, 1),
    "damage": colours.steep(0.0, 1.0, colours.DAMAGE),
    "cosine": colours.signed(),
}


@pytest.mark.parametrize("name", SHADES)
def test_letters_on_cells_have_a_contrast_of_4_5_on_every_colour(name):
    shade = SHADES[name]
    stops = np.array([p for p, _ in shade.colours])
    at = np.sort(np.concatenate([stops, *(stops[:-1] + share * np.diff(stops) for share in (0.25, 0.5, 0.75))]))
    values = shade.low + at * (shade.high - shade.low)
    chosen, cells = colours.letters(shade, values), colours.seen(shade, values).tolist()
    for i, (r, g, b) in zip(chosen, cells, strict=True):
        assert contrast(colours.LETTERS[i], f"rgb({r},{g},{b})") >= 4.5


def test_lines_are_visible_on_both_pages():
    lines = (colours.ATTENTION, colours.MLP, colours.BOTH, *colours.CRITERIA.values(), *colours.OTHERS, colours.FAILED)
    for colour in lines:
        assert min(contrast(colour, page) for page in (LIGHT, DARK)) >= 2, colour
