"""A journey through each room in a real browser: what is plotted is what the command line writes for the same
request."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from shell import wrote
from test_browser import ANSWER, TEXT, fill, settled, slow, wait  # noqa: F401 (slow: a fixture)

from ed_core.types import Prompt

pytestmark = pytest.mark.browser

MODEL = "ed-demo-8"
PLOTTED = """key => {
  const plot = document.querySelector(`.st-key-box-${key} .js-plotly-plot`);
  if (!plot || !plot._fullData) return null;
  const list = values => Array.from(values, v => Number.isFinite(v) ? v : null);
  return plot._fullData.filter(t => t.name).map(t => [t.name, t.z ? Array.from(t.z, list) : t.y ? list(t.y) : []]);
}"""
PROMPT = Prompt(TEXT, ANSWER)


def plotted(page, key: str) -> dict[str, np.ndarray]:
    """A figure's traces by name."""
    return {name: np.array(values, float) for name, values in page.evaluate(PLOTTED, key) or []}


def typed(page, address: str) -> None:
    """Open a page and type the prompt."""
    page.goto(address)
    page.get_by_label("Prompt", exact=True).wait_for()
    settled(page)
    fill(page, "Prompt", TEXT)
    wait(page, lambda: not page.get_by_label("expected", exact=True).input_value())  # the example's, which was no more
    fill(page, "expected", ANSWER)


def run(page, address: str) -> None:
    typed(page, address)
    button = page.get_by_role("button", name="Run", exact=True)
    wait(page, button.is_enabled)
    button.click()


SKIP = {
    ("map", "z"): "effect",
    ("output", "output change"): "output",
    ("output", "best token kept"): "top1_kept",
    ("where", "z"): "output_pos",
    ("spread-layer_effect", "this prompt"): "layer_effect",
}


def near(shown: np.ndarray, expected: np.ndarray) -> None:
    expected = expected.astype(float)
    assert shown.shape == expected.shape
    assert np.nanmax(np.abs(shown - expected)) <= 1e-6 * max(1.0, np.nanmax(np.abs(expected)))


def test_skip_plots_what_the_command_line_writes(server, page, tmp_path):
    expected = wrote(tmp_path, [PROMPT], "layer_skip", "--no-cache")
    run(page, f"{server}/skip?model={MODEL}")
    wait(page, lambda: "this prompt" in plotted(page, "spread-layer_effect"))
    settled(page)
    for (key, trace), array in SKIP.items():
        near(plotted(page, key)[trace], expected[f"layer_skip.{array}.0"])


COMPARED = {  # the map and the curves of each probe
    "contributions": ("layer_ratio", "layer_ratio", "layer_cos"),
    "logit_lens": ("top_probs", "kl", "overlap"),
    "layer_skip": ("effect", "layer_effect", "output"),
}


def test_a_model_beside_its_twin_plots_what_the_command_line_writes(server, page, tmp_path):
    own, twin = (
        wrote(tmp_path, [PROMPT], *COMPARED, "--no-cache", *more)
        for more in ((), ("--control", "untrained", "--seed", "7"))
    )
    run(page, f"{server}/two?model=ed-demo-8&second=ed-demo-8&second_control=untrained&second_seed=7")
    maps = [f"{probe}-map-{side}" for probe in COMPARED for side in "AB"] + ["layer_skip-difference"]
    wait(page, lambda: all(np.isfinite(plotted(page, key).get("z", np.nan)).any() for key in maps))
    wait(page, lambda: page.get_by_role("button", name="Cancel").count() == 0)
    settled(page)
    for probe, (of_map, *curves) in COMPARED.items():
        a, b = (arrays[f"{probe}.{of_map}.0"].astype(float) for arrays in (own, twin))
        a, b = (values[..., 0] if probe == "logit_lens" else values for values in (a, b))
        near(plotted(page, f"{probe}-map-A")["z"], a)
        near(plotted(page, f"{probe}-map-B")["z"], b)
        near(plotted(page, f"{probe}-difference")["z"], b - a)
        for curve in curves:
            lines = plotted(page, f"{probe}-{curve}")
            near(lines["A: ed-demo-8"], own[f"{probe}.{curve}"])
            near(lines["B: ed-demo-8 (untrained copy, seed 7)"], twin[f"{probe}.{curve}"])
            near(lines["B − A"], twin[f"{probe}.{curve}"].astype(float) - own[f"{probe}.{curve}"])
    assert "second_control=untrained" in page.url and "Sums" not in page.url
    page.get_by_text("What the maps show").click()
    page.get_by_text("One map over the other").click()
    page.keyboard.press("Escape")
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
    line.focus()
    page.keyboard.press("Home")
    assert line.get_attribute("aria-valuenow") == "0"


def test_a_text_is_stopped_at_a_token_and_kept(slow, page, tmp_path):  # noqa: F811
    """Every token takes 0.2 s longer here; what is kept is what the whole text begins with."""
    given = ("generation.n_tokens=12", "generation.threshold=0.5")
    expected = wrote(tmp_path, [PROMPT], "generation", "--no-cache", given=given)["generation.jsd.0"]
    run(page, f"{slow}/writing?model={MODEL}&n_tokens=60&threshold=0.5")
    page.get_by_role("button", name="Stop here").click()
    wait(page, lambda: "run=" in page.url and page.get_by_role("button", name="Stop here").count() == 0)
    settled(page)
    page.get_by_role("button", name="Options").click()
    kept = int(page.url.split("n_tokens=")[1].split("&")[0])
    assert 0 < kept < 60
    wait(page, lambda: page.get_by_label("Tokens", exact=True).input_value() == str(kept))
    wait(page, lambda: np.shape(plotted(page, "map").get("z")) == (9, kept))
    n = min(kept, 12)
    np.testing.assert_allclose(plotted(page, "map")["z"][:, :n], expected[:, :n], rtol=1e-4, atol=1e-5)


def test_maps_of_moved_layers_plot_what_the_command_line_writes(server, page, tmp_path):
    expected = wrote(tmp_path, [PROMPT], "surgery", "--no-cache")["surgery.drop_loss.0"]
    typed(page, f"{server}/prune?model={MODEL}&prompts=one")
    page.get_by_text("What if layers are dropped").click()
    page.locator(".st-key-run-surgery button").click()
    wait(page, lambda: plotted(page, "map"))
    settled(page)
    np.testing.assert_allclose(plotted(page, "map")["z"], expected[:, 1:], rtol=1e-4, atol=1e-5)


def test_a_figure_is_saved_by_the_browser_as_it_is_printed(server, page, tmp_path):
    page.goto(server)
    figure = page.locator(".st-key-box-course .ed-chart")
    figure.wait_for()
    wait(page, lambda: figure.get_attribute("aria-busy") is None)
    figure.hover()
    for kind in ("PNG", "SVG"):
        with page.expect_download() as saved:
            page.locator(".st-key-box-course").get_by_role("button", name=kind, exact=True).click()
        saved.value.save_as(tmp_path / kind)
    picture = np.asarray(Image.open(tmp_path / "PNG").convert("RGB"))
    assert picture.shape[1] >= 1200 and (picture == 255).all(-1).mean() > 0.2, "twice as fine, on white"
    assert "run " in "".join(ElementTree.parse(tmp_path / "SVG").getroot().itertext()), "its origin is below it"
