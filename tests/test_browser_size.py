"""Size and precision in a real browser: the audit page plots what the command line writes, and a model is downloaded,
cancelled, resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake_hub import COMMIT, serving
from shell import arrays
from small_models import save_random
from test_browser import ANSWER, TEXT, fill, settled, wait
from test_browser_pages import plotted

from ed_core.commands import main
from ed_core.depth.audit import Comparison
from ed_core.prompts import to_jsonl
from ed_core.types import Prompt
from tools.bench import browser as app

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """The command line's audit of one prompt in fp32 and bf16, with a store of its own."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "p.jsonl").write_text(to_jsonl([Prompt(TEXT, ANSWER)]), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ED_CACHE", str(folder / "cache"))
        command = f"audit ed-demo-8 --precisions fp32,bf16 --prompts {folder / 'p.jsonl'} --out {folder / 'a.npz'}"
        assert main(command.split()) == 0
    return arrays(folder / "a.npz")


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


def test_the_audit_page_plots_what_the_command_line_writes(server, audited, page):
    page.goto(f"{server}/audit?model=ed-demo-8")
    run = page.get_by_role("button", name="Run")
    run.wait_for()
    page.get_by_role("button", name="fp32, bf16").click()
    for name in ("int8", "4bit"):
        page.get_by_test_id("stPopoverBody").get_by_text(name, exact=True).click()
        settled(page)
    page.keyboard.press("Escape")
    fill(page, "Prompt", TEXT)
    fill(page, "Answer", ANSWER)
    wait(page, run.is_enabled)
    run.click()
    page.get_by_text("Is the number an artefact").wait_for()
    wait(page, lambda: "bf16" in plotted(page, "layer_skip-output_mean"))
    for curve in (
        "contributions.layer_ratio",
        "contributions.layer_cos",
        "logit_lens.kl",
        "logit_lens.overlap",
        "logit_lens.entropy",
        "layer_skip.output_mean",
    ):
        shown = wait(page, lambda name=curve.replace(".", "-"): plotted(page, name))  # out of sight they come later
        for precision in ("fp32", "bf16"):
            expected = audited[f"{precision}.{curve}"]
            assert shown[precision].shape == expected.shape and np.allclose(
                shown[precision], expected, rtol=1e-5, atol=1e-7
            ), (curve, precision)
    (table,) = page.locator("table").all()
    rows = dict([cell.inner_text() for cell in row.locator("td").all()] for row in table.locator("tbody tr").all())
    summary = json.loads(str(audited["summary"]))
    means = {
        p: {name: "not defined" if depth is None else f"{depth:.1f}" for name, depth in found.items()}
        for p, found in summary["mean_depth"].items()
    }
    assert set(means["fp32"]) == {"kl", "overlap"}
    for name, here in means["fp32"].items():
        title = f"Mean depth, {'KL' if name == 'kl' else name} (fp32: {here})"
        assert rows.pop(title).partition(":")[0] == means["bf16"][name]
    depths = summary["effective_depth"]
    told = {
        p: {name: "not defined" if d["depth"] is None else str(d["depth"]) for name, d in depths[p].items()}
        for p in depths
    }
    for name in told["fp32"]:
        title = f"Effective depth, {'KL' if name == 'kl' else name} rule (fp32: {told['fp32'][name]})"
        assert rows.pop(title).partition(":")[0].partition(" (")[0] == told["bf16"][name]
    curves = {
        name.removeprefix("spearman.bf16."): v for name, v in audited.items() if name.startswith("spearman.bf16.")
    }
    assert {title: cell.partition(",")[0] for title, cell in rows.items()} == {
        Comparison("bf16", curve, None, 0.0).title: f"ρ = {value:.3f}" if value == value else "constant"
        for curve, value in curves.items()
    }
    with page.expect_download() as download:
        page.get_by_role("button", name="audit.npz").click()
    with np.load(download.value.path(), allow_pickle=False) as file:
        assert set(file.files) == set(audited)


def test_a_gated_model_says_which_token_and_the_rest_goes_on(offered, page):
    page.goto(f"{offered}/contributions?model=org/model&precision=fp32")
    page.get_by_role("button", name="Download").click()
    page.get_by_text("org/model is gated").wait_for()
    assert "HF_TOKEN" in page.locator(".st-key-model-trouble").inner_text()
    assert page.get_by_role("button", name="Run").is_disabled()
    page.locator(".st-key-model-box button").first.click()
    model = page.get_by_label("Model", exact=True)
    model.fill("ed-demo-8")
    model.press("Enter")
    wait(page, page.get_by_role("button", name="Run").is_enabled)


def test_a_model_is_downloaded_cancelled_and_resumed_on_the_page(offered, hub, home, page):
    hub.gated, hub.slow = 0, 0.05
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
