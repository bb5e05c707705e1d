"""Colours hold for everybody: told apart under the three colour-blindnesses, ordered by lightness, legible in light and
in dark."""

from __future__ import annotations

import re
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
WHITE = XYZ.sum(1)
LIGHT, DARK = "#ffffff", "#171614"  # the two pages


def linear(colour: str) -> np.ndarray:
    """Linear RGB of "#rrggbb", "rgb(…)" or "rgba(…)" (its opacity left out)."""
    if colour.startswith("#"):
        value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    else:
        value = np.array([float(n) for n in re.findall(r"[\d.]+", colour)[:3]]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(colour: str, blind: str = "none") -> np.ndarray:
    """CIE L*a*b*, as somebody sees it."""
    seen = np.clip(BLIND[blind] @ linear(colour), 0, 1)
    f = np.cbrt(XYZ @ seen / WHITE)
    ratio = XYZ @ seen / WHITE
    f = np.where(ratio > (6 / 29) ** 3, f, ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    """WCAG 2.1's ratio, 1 to 21."""
    high, low = sorted((XYZ[1] @ linear(c) + 0.05 for c in (a, b)), reverse=True)
    return float(high / low)


SETS = {
    "branches": (colours.ATTENTION, colours.MLP, colours.BOTH),
    "criteria": tuple(colours.CRITERIA.values()),
    "ends of the diverging map": (colours.DIVERGING[0], colours.DIVERGING[-1], colours.DIVERGING[2]),
    "precisions": tuple(colours.PRECISIONS.values()),
}


@pytest.mark.parametrize("blind", BLIND)
@pytest.mark.parametrize("name", SETS)
def test_what_stands_side_by_side_is_told_apart(name, blind):
    nearest = min(np.linalg.norm(lab(a, blind) - lab(b, blind)) for a, b in combinations(SETS[name], 2))
    assert nearest >= 12, f"{nearest:.1f}: about 2 is just noticed, 10 is seen at a glance"


def test_the_check_can_fail():
    assert (
        np.linalg.norm(lab("#c00000", "protanopia") - lab("#5a4a00", "protanopia"))
        < 12
        < np.linalg.norm(lab("#c00000") - lab("#5a4a00"))
    )
    assert lab("#ffffff")[0] == pytest.approx(100, abs=0.1) and contrast("#ffffff", "#000000") == pytest.approx(21)


@pytest.mark.parametrize("blind", BLIND)
@pytest.mark.parametrize("scale", [colours.SEQUENTIAL, colours.DAMAGE], ids=["sequential", "damage"])
def test_the_sequential_maps_only_grow_lighter(scale, blind):
    steps = np.array([lab(c, blind)[0] for c in sample_colorscale(scale, np.linspace(0, 1, 60))])
    assert (np.diff(steps) > 0).all() and steps[-1] - steps[0] > 60


@pytest.mark.parametrize("blind", BLIND)
def test_damage_is_told_apart_from_certainty_in_the_middle(blind):
    """Their dark ends are alike; between 0.3 and 0.8 of the range nobody takes one for the other."""
    for one, other in zip(
        *(sample_colorscale(s, np.linspace(0.3, 0.8, 6)) for s in (colours.SEQUENTIAL, colours.DAMAGE))
    ):
        assert np.linalg.norm(lab(one, blind) - lab(other, blind)) >= 12


SHADES = {  # of maps that letters stand on, or may
    "probability": colours.linear(0.0, 1.0),
    "divergence": colours.linear(0.0, 20.0, reverse=True),
    "rank": colours.logarithmic(0, 4, reverse=True),
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
    chosen, seen = colours.letters(shade, values), colours.seen(shade, values)
    least = min(
        contrast(colours.LETTERS[i], f"rgb({r},{g},{b})") for i, (r, g, b) in zip(chosen, seen.tolist(), strict=True)
    )
    assert least >= 4.5, f"{least:.2f}"
    assert set(chosen.tolist()) == {0, 1} or name == "cosine", "both are needed"


def test_contrast_is_wcags():
    for a, b, expected in (("#ffffff", "#000000", 21.0), ("#777777", "#ffffff", 4.48), ("#0000ff", "#ffffff", 8.59)):
        assert colours.contrast(colours.rgb(a), colours.rgb(b)) == pytest.approx(expected, abs=0.01)
        assert contrast(a, b) == pytest.approx(expected, abs=0.01)
    assert colours.rgb("rgb(1, 22, 255)").tolist() == colours.rgb("#0116ff").tolist() == [1, 22, 255]
    assert colours.rgb("rgba(1, 22, 255, 0.5)").tolist() == [1, 22, 255], "opacity is left out"


def test_the_colour_of_a_cell_is_what_stands_on_the_scale():
    shade = colours.linear(0.0, 2.0)
    np.testing.assert_allclose(colours.seen(shade, np.array([-1.0, 0.0])), [colours.rgb(shade.colours[0][1])] * 2)
    np.testing.assert_allclose(colours.seen(shade, np.array([1.0])), [colours.rgb(shade.colours[10][1])])
    np.testing.assert_allclose(colours.seen(shade, np.array([2.0, 9.0])), [colours.rgb(shade.colours[-1][1])] * 2)


@pytest.mark.parametrize("blind", BLIND)
def test_both_arms_of_the_diverging_map_only_grow_darker(blind):
    steps = np.array([lab(c, blind)[0] for c in sample_colorscale(colours.DIVERGING, np.linspace(0, 1, 61))])
    assert (np.diff(steps[:31]) > 0).all() and (np.diff(steps[30:]) < 0).all()
    assert min(steps[30] - steps[0], steps[30] - steps[-1]) > 20


def test_lines_stand_out_from_both_pages():
    for colour in (
        colours.ATTENTION,
        colours.MLP,
        colours.BOTH,
        *colours.CRITERIA.values(),
        *colours.OTHERS,
        colours.FAILED,
    ):
        assert min(contrast(colour, page) for page in (LIGHT, DARK)) >= 2, colour
