"""Writing, surgery and loops in a real browser: what is plotted is what the command line writes, a text is stopped at a
token."""

from __future__ import annotations

import numpy as np
import pytest
from shell import wrote
from test_browser import fill, settled, slow, wait  # noqa: F401 (slow: a fixture)
from test_browser_pages import plotted

from ed_core.types import Prompt

pytestmark = pytest.mark.browser

MODEL, TEXT, ANSWER = "ed-demo-8", "Sums mod 10:\n4 + 5 + 3 = ", "2"


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, np.ndarray]:
    given = ("generation.n_tokens=12", "generation.threshold=0.5")
    prompts, probes = [Prompt(TEXT, ANSWER)], ("generation", "surgery")
    return wrote(tmp_path_factory.mktemp("cli"), prompts, *probes, "--no-cache", given=given)


def asked(page, address: str) -> None:
    page.goto(address)
    page.get_by_label("Prompt", exact=True).wait_for()
    settled(page)
    fill(page, "Prompt", TEXT)
    fill(page, "Answer", ANSWER)
    settled(page)


def ran(page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()
    wait(page, lambda: "run=" in page.url)
    settled(page)


def same(found, expected) -> None:
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(found, float), expected, rtol=1e-4, atol=1e-5)


def test_writing_plots_what_the_command_line_writes(server, page, told):
    asked(page, f"{server}/writing?model={MODEL}&n_tokens=12&threshold=0.5")
    ran(page)
    wait(page, lambda: np.isfinite(plotted(page, "map").get("z", np.nan)).all() and plotted(page, "ratio"))
    same(plotted(page, "map")["z"], told["generation.jsd.0"])
    same(plotted(page, "depths")["for good"], told["generation.settle_depth.0"])
    same(plotted(page, "depths")["would leave"], told["generation.exit_depth.0"])
    same(plotted(page, "ratio")["deep-thinking ratio"], told["generation.deep_thinking_ratio.0"])


def test_a_text_is_stopped_at_a_token_and_kept(slow, page, told):  # noqa: F811
    """Every token takes 0.3 s longer here; what is kept is what the whole text begins with."""
    asked(page, f"{slow.address}/writing?model={MODEL}&n_tokens=60&threshold=0.5")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Stop here").click()
    wait(page, lambda: "run=" in page.url and page.get_by_role("button", name="Stop here").count() == 0)
    settled(page)
    page.get_by_role("button", name="Options").click()
    kept = int(page.url.split("n_tokens=")[1].split("&")[0])
    assert 0 < kept < 60
    wait(page, lambda: page.get_by_label("Tokens", exact=True).input_value() == str(kept))
    wait(page, lambda: np.shape(plotted(page, "map").get("z")) == (9, kept))
    n = min(kept, 12)
    same(plotted(page, "map")["z"][:, :n], told["generation.jsd.0"][:, :n])


def test_surgery_plots_what_the_command_line_writes(server, page, told):
    asked(page, f"{server}/surgery?model={MODEL}")
    ran(page)
    wait(page, lambda: plotted(page, "map"))
    same(plotted(page, "map")["z"], told["surgery.drop_loss.0"][:, 1:])
    page.locator(".st-key-map-inputs").get_by_text("A stretch twice", exact=True).click()
    wait(page, lambda: np.isclose(np.nanmin(plotted(page, "map")["z"]), np.nanmin(told["surgery.repeat_loss.0"])))
    same(plotted(page, "map")["z"], told["surgery.repeat_loss.0"][:, 1:])


def test_homes_continuation_unfolds_into_the_depth_of_each_token(server, page, told):
    """In place, and only what is missing is computed; a click on a token marks its column."""
    asked(page, f"{server}/?model={MODEL}&n_tokens=12&threshold=0.5")
    ran(page)
    page.locator(".st-key-says").get_by_text("The model continues").wait_for()
    toggle = page.locator(".st-key-says").get_by_text("Depth of each token")
    toggle.click()
    wait(page, lambda: plotted(page, "written") and "depths=true" in page.url)
    wait(page, lambda: page.get_by_role("button", name="Cancel").is_disabled())
    settled(page)
    same(plotted(page, "written")["z"], told["generation.jsd.0"])
    last, words, panel = (page.locator(f".st-key-{key}").bounding_box() for key in ("box-lens", "says", "box-written"))
    assert last["y"] + last["height"] <= words["y"] < panel["y"], "below the maps"
    toggle.click()
    wait(page, lambda: page.locator(".st-key-box-written").count() == 0)


def test_a_text_on_home_is_stopped_at_a_token(slow, page, told):  # noqa: F811
    asked(page, f"{slow.address}/?model={MODEL}&n_tokens=60&threshold=0.5&depths=true")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Stop here").click()
    wait(page, lambda: page.get_by_role("button", name="Stop here").count() == 0)
    wait(page, lambda: page.get_by_role("button", name="Cancel").is_disabled())
    settled(page)
    z = plotted(page, "written")["z"]
    assert z.shape[0] == 9 and 0 < z.shape[1] < 60 and f"n_tokens={z.shape[1]}" in page.url
    n = min(z.shape[1], 12)
    same(z[:, :n], told["generation.jsd.0"][:, :n])


def test_loops_plot_what_the_command_line_writes(server, page, tmp_path):
    text, answer, model = "\n3cf=", "1", "ed-loop-4x4"
    made = wrote(tmp_path, [Prompt(text, answer)], "loops", "--no-cache", model=model)
    page.goto(f"{server}/loops?model={model}")
    page.get_by_label("Prompt", exact=True).wait_for()
    settled(page)
    fill(page, "Prompt", text)
    fill(page, "Answer", answer)
    settled(page)
    ran(page)
    wait(page, lambda: plotted(page, "loops-update"))
    same(plotted(page, "loops-readout")["KL"], made["loops.readout_kl.0"][4, :5])
    same(plotted(page, "loops-times")["KL"][1:], made["loops.times_kl.0"][1:])
    same(plotted(page, "loops-block-skip")["KL"], made["loops.block_skip_kl.0"])
