"""The Maps page in a real browser: Run fits beside the app, and what is plotted is what the command line writes."""

from __future__ import annotations

import numpy as np
import pytest
from test_browser import settled, wait
from test_browser_pages import plotted

from ed_core.commands import main
from ed_core.depth import matching
from ed_core.fits import measured
from ed_core.prompts import to_jsonl
from ed_core.sources.bundled import load_prompts
from ed_core.types import Prompt
from ed_ui import runs

pytestmark = pytest.mark.browser


def test_the_maps_page_plots_what_the_command_line_writes(server, page, tmp_path):
    prompts = runs.distinct([Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts()])
    (tmp_path / "p.jsonl").write_text(to_jsonl(prompts), encoding="utf-8")
    fit = ["--model", "ed-demo-8", "--set", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "maps.npz")]
    assert main(["fit", "maps", "--other", "ed-demo-16", *fit]) == 0
    found = measured.read(tmp_path / "maps.npz")

    page.goto(f"{server}/maps?model=ed-demo-8&second=ed-demo-16")
    button = page.get_by_role("button", name="Run")
    button.wait_for()
    settled(page)
    button.click()
    page.get_by_role("progressbar").first.wait_for()
    wait(page, lambda: "z" in plotted(page, "maps-map"))
    settled(page)
    assert np.allclose(plotted(page, "maps-map")["z"], found.error, rtol=1e-6)
    assert np.allclose(plotted(page, "maps-errors")["mean only"], found.error_mean[matching.match(found).best])
    page.get_by_text("R²", exact=True).click()
    wait(page, lambda: np.allclose(plotted(page, "maps-map")["z"], found.r2, rtol=1e-6))
    page.get_by_text("Open a file that the command line made").click()
    page.locator("input[type=file]").set_input_files(tmp_path / "maps.npz")
    wait(page, lambda: "z" in plotted(page, "opened-map"))
    settled(page)
    assert np.allclose(plotted(page, "opened-map")["z"], found.error, rtol=1e-6)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"
