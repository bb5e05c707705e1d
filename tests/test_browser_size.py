"""Size and precision in a real browser: the audit page plots what the command line writes, and a model is downloaded,
cancelled, resumed."""

from __future__ import annotations

import pytest
from fake_hub import COMMIT, serving
from small_models import save_random
from test_browser import wait

from tools.bench import browser as app

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A model hub whose behaviour a test may change, and its model's folder."""
    with serving(
        save_random(tmp_path_factory.mktemp("model"), hidden_size=64, intermediate_size=256, num_hidden_layers=5),
        gated=401,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def offered(tmp_path_factory, hub, home):
    """The app of somebody who downloads from that hub."""
    more = {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "",
    }
    with app.serving(tmp_path_factory.mktemp("cache"), **more) as running:
        yield running.address


def test_a_model_is_downloaded_cancelled_and_resumed_on_the_page(offered, hub, home, page):
    hub.gated, hub.slow = 0, 0.3
    page.goto(f"{offered}/contributions?model=org/model&precision=fp32")
    start = page.get_by_role("button", name="Download")
    start.wait_for()
    assert page.get_by_role("button", name="Run").is_disabled() and page.get_by_text("is not here yet").count() == 1
    start.click()
    page.locator(".st-key-model-trouble").get_by_role("button", name="Cancel").click()
    resume = page.get_by_role("button", name="Resume")
    resume.wait_for()
    assert page.get_by_text("of them here already").count() == 1
    hub.slow = 0.0
    resume.click()
    run = page.get_by_role("button", name="Run")
    wait(page, lambda: run.count() == 1 and run.is_enabled())
    run.click()
    page.get_by_text("Measured on").wait_for()
    assert (home / "hub/models--org--model/snapshots" / COMMIT / "model.safetensors").read_bytes() == (
        hub.folder / "model.safetensors"
    ).read_bytes()
