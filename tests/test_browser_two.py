"""Compare two in a real browser: both sides and their difference are what the command line writes, and a link opens the
same comparison."""

from __future__ import annotations

import numpy as np
import pytest
from shell import wrote
from test_browser import ANSWER, TEXT, settled, wait
from test_browser_pages import plotted, run

from ed_core.types import Prompt

pytestmark = pytest.mark.browser

PROBES = ("contributions", "logit_lens", "layer_skip")
MAPS = {"contributions": "layer_ratio", "logit_lens": "top_probs", "layer_skip": "effect"}
CURVES = {
    "contributions": ("layer_ratio", "layer_cos"),
    "logit_lens": ("kl", "overlap"),
    "layer_skip": ("layer_effect", "output"),
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """The command line's arrays: the model, its untrained twin, and a deeper model."""
    folder, found = tmp_path_factory.mktemp("cli"), {}
    for name, more in {"own": [], "twin": ["--control", "untrained", "--seed", "7"], "deep": []}.items():
        model = "ed-demo-16" if name == "deep" else "ed-demo-8"
        found[name] = wrote(folder, [Prompt(TEXT, ANSWER)], *PROBES, "--no-cache", *more, model=model)
    return found


def near(shown: np.ndarray, expected: np.ndarray) -> None:
    expected = expected.astype(float)
    assert shown.shape == expected.shape
    assert np.nanmax(np.abs(shown - expected)) <= 1e-6 * max(1.0, np.nanmax(np.abs(expected)))


def filled(page, n: int) -> bool:
    maps = [plotted(page, f"{probe}-map-{side}").get("z") for probe in PROBES for side in "AB"]
    return (
        sum(z is not None and np.isfinite(z).any() for z in maps) == n
        and page.get_by_role("button", name="Cancel").is_disabled()
    )


def of_map(arrays: dict, probe: str) -> np.ndarray:
    values = arrays[f"{probe}.{MAPS[probe]}.0"]
    return values[..., 0] if probe == "logit_lens" else values


def nearest(probe: str, shallow: dict, deep: dict) -> np.ndarray:
    """The difference of models of 8 and of 16 layers: every other layer of the deeper one lies where the shallower
    one's do."""
    own, other = (of_map(arrays, probe).astype(float) for arrays in (shallow, deep))
    first = 0 if probe == "logit_lens" else 1
    other = other[first::2, first::2] if probe == "layer_skip" else other[first::2]
    return own - other


def test_a_model_beside_its_twin_plots_what_the_command_line_writes(server, page, computed):
    run(page, f"{server}/two?model=ed-demo-8&second=ed-demo-8&second_control=untrained&second_seed=7")
    wait(page, lambda: filled(page, 6) and "z" in plotted(page, "layer_skip-difference"))
    headings = page.locator("h5")
    tops = [h.bounding_box()["y"] for h in headings.all()]
    settled(page)
    assert [h.bounding_box()["y"] for h in headings.all()] == tops, "what is drawn stays where it is"
    own, twin = computed["own"], computed["twin"]
    for probe in PROBES:
        near(plotted(page, f"{probe}-map-A")["z"], of_map(own, probe))
        near(plotted(page, f"{probe}-map-B")["z"], of_map(twin, probe))
        near(plotted(page, f"{probe}-difference")["z"], of_map(twin, probe).astype(float) - of_map(own, probe))
        for curve in CURVES[probe]:
            lines = plotted(page, f"{probe}-{curve}")
            near(lines["A: ed-demo-8"], own[f"{probe}.{curve}"])
            near(lines["B: ed-demo-8, untrained twin, seed 7"], twin[f"{probe}.{curve}"])
            near(lines["B − A"], twin[f"{probe}.{curve}"].astype(float) - own[f"{probe}.{curve}"])
    assert "second_control=untrained" in page.url and "Sums" not in page.url
    page.get_by_role("button", name="Swap sides").click()
    wait(page, lambda: "A: ed-demo-8, untrained twin, seed 7" in plotted(page, "logit_lens-kl"))
    turned = of_map(own, "logit_lens").astype(float) - of_map(twin, "logit_lens")

    def sign() -> float | None:
        shown = plotted(page, "logit_lens-difference").get("z")  # not while it is drawn anew
        return None if shown is None else np.sign(shown[0, 0])

    wait(page, lambda: sign() == np.sign(turned[0, 0]))
    near(plotted(page, "logit_lens-difference")["z"], turned)
    settled(page)
    assert "swapped=true" in page.url
    page.get_by_text("One map over the other").click()
    wait(page, lambda: "overlaid=true" in page.url and page.get_by_role("slider", name="Divider").count() == 3)
    settled(page)
    line = page.get_by_role("slider", name="Divider").first
    line.scroll_into_view_if_needed()
    at = line.bounding_box()
    x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
    under = "([x, y]) => Boolean(document.elementFromPoint(x, y).closest('.ed-upper'))"
    assert not page.evaluate(under, [x - 40, y]) and page.evaluate(under, [x + 40, y]), "A is left of the line, B right"
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=3)
    page.mouse.up()
    wait(page, lambda: abs(line.bounding_box()["x"] - at["x"] - 100) <= 1)
    assert not page.evaluate(under, [x + 60, y]) and page.evaluate(under, [x + 140, y])
    before = int(line.get_attribute("aria-valuenow"))
    line.focus()
    page.keyboard.press("ArrowLeft")
    assert int(line.get_attribute("aria-valuenow")) in (before - 1, before)
    page.keyboard.press("Home")
    assert line.get_attribute("aria-valuenow") == "0"


def test_models_of_different_depth_stand_on_relative_depth_and_their_link_opens_them(server, page, visitor, computed):
    run(page, f"{server}/two?model=ed-demo-16&second=ed-demo-8")
    wait(page, lambda: filled(page, 6) and "A: ed-demo-16" in plotted(page, "layer_skip-output"))
    settled(page)
    for probe in PROBES:
        near(plotted(page, f"{probe}-map-A")["z"], of_map(computed["deep"], probe))
        near(plotted(page, f"{probe}-map-B")["z"], of_map(computed["own"], probe))
        near(plotted(page, f"{probe}-difference")["z"], nearest(probe, computed["own"], computed["deep"]))
        for curve in CURVES[probe]:
            lines = plotted(page, f"{probe}-{curve}")
            assert list(lines) == ["A: ed-demo-16", "B: ed-demo-8"]
            near(lines["A: ed-demo-16"], computed["deep"][f"{probe}.{curve}"])
            near(lines["B: ed-demo-8"], computed["own"][f"{probe}.{curve}"])
    assert page.get_by_text("B's 8 layers, each against A's nearest").count() == 3
    fresh = visitor()
    fresh.goto(
        f"{server}/two?compare=prompts&model=ed-demo-8&example=copy-3-a&second_example=lookup-2-a&measures=logit_lens"
    )
    box = fresh.get_by_label("Second prompt", exact=True)
    box.wait_for()
    assert box.input_value().strip() and box.input_value() != fresh.get_by_label("Prompt", exact=True).input_value()
    assert fresh.get_by_role("button", name="Measures (1)").count() == 1 and "second_example=lookup-2-a" in fresh.url
