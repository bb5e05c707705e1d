"""The Maps page: it draws what the command writes, runs it, stops it, and opens its files."""

from __future__ import annotations

import numpy as np
import pytest
from charts import charts, fresh, numbers, traces
from hosted_app import until
from streamlit.testing.v1 import AppTest

from ed_core.depth import matching
from ed_core.errors import NotAllowed, StudyError
from ed_core.fits import measured
from ed_core.service.resolve import resolve
from ed_core.sources.bundled import load_prompts
from ed_core.types import Prompt
from ed_ui import runs, show

pytestmark = pytest.mark.usefixtures("forks")

MIXED = runs.distinct([Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts()])


def page(**query) -> AppTest:
    own = {"model": "ed-demo-8", "precision": "fp32", "second_precision": "fp32"}
    return fresh("pages/compare/maps.py", **(own | query)).run()


def wanted(*names: str) -> runs.Fitted:
    return runs.Fitted(tuple(resolve(name) for name in names), MIXED)


def stored(of: runs.Fitted) -> measured.Maps | measured.Replacement:
    """Some numbers where the page looks for those of this fit."""
    draw = np.random.default_rng(0)
    told = {side: {"name": model.name} for side, model in zip("ab", of.models)} | {"notes": ["so few."]}
    if of.kind == "maps":
        error, r2 = (draw.uniform(0.2, 0.9, (9, 17)) for _ in range(2))
        controls = dict(error_mean=np.full(17, 0.95), r2_mean=np.zeros(17))
        found = measured.Maps(error, r2, error + 0.05, r2 - 1, **controls, tokens=400, test_tokens=90, certificate=told)
    else:
        told = {"model": {"name": of.models[0].name}, "notes": []}
        curves = (draw.uniform(2, 3, 8) for _ in range(3))
        loss, fitted, error = curves
        found = measured.Replacement(loss, fitted, 2.0, 2.1, error, 400, 90, told)
    of.out.mkdir(parents=True)
    measured.write(of.out / runs.FOUND, found)
    return found


def said(test: AppTest) -> str:
    return " ".join(one.value for kind in (test.markdown, test.caption, test.info, test.error) for one in kind)


def test_the_page_draws_what_is_stored_and_says_what_it_means(laboratory):
    found = stored(wanted("ed-demo-8", "ed-demo-16"))
    test = page(second="ed-demo-16", shown="r2")
    assert not test.exception and not test.error
    assert show.plain(matching.sentence(found)) in said(test) and "so few" in said(test)
    assert "Fitted on 400 tokens, judged on 90" in said(test)
    drawn = traces(*charts(test))
    assert np.allclose(numbers(drawn["z"]["z"]), found.r2)
    assert np.allclose(numbers(drawn["best"]["x"]), matching.match(found, "r2").best)
    assert np.allclose(numbers(drawn["best match"]["y"]), matching.match(found).error)
    test.segmented_control(key="maps.measure").set_value("error").run()
    assert np.allclose(numbers(traces(*charts(test))["z"]["z"]), found.error)
    test.segmented_control(key="maps.measure").set_value("shuffled").run()
    drawn = traces(*charts(test))
    assert np.allclose(numbers(drawn["z"]["z"]), found.error_shuffled) and "best" not in drawn
    assert test.query_params["shown"] == ["shuffled"] or test.query_params["shown"] == "shuffled"
    assert test.button(key="run.maps").disabled and test.button(key="cancel.maps").disabled


def test_replacement_is_drawn_in_per_cent_of_the_loss(laboratory):
    found = stored(wanted("ed-demo-8"))
    test = page(maps="within")
    assert not test.exception and not test.error
    drawn = traces(*charts(test))
    assert np.allclose(numbers(drawn["held-out prompts"]["y"]), 100 * (found.loss / 2.0 - 1))
    assert np.allclose(numbers(drawn["prompts fitted on"]["y"]), 100 * (found.loss_fitted / 2.1 - 1))
    assert show.plain(matching.said_of_replacement(found)) in said(test)


def test_the_command_it_shows_is_what_it_runs(laboratory):
    test = page(second="ed-demo-16")
    (code,) = [c.value for c in test.code if "ed_core fit" in c.value]
    assert code == wanted("ed-demo-8", "ed-demo-16").spec("prompts.jsonl", "maps.npz").command
    assert code == (
        "python -m ed_core fit maps --model ed-demo-8 --precision fp32 --device cpu --other ed-demo-16 "
        "--other-precision fp32 --set prompts.jsonl --out maps.npz"
    )
    twin = page(second="ed-demo-8", second_control="shuffled", second_seed="3")
    (code,) = [c.value for c in twin.code if "ed_core fit" in c.value]
    assert "--other ed-demo-8 --other-precision fp32 --other-control shuffled --other-seed 3" in code
    assert "9 source taps" in said(test) and "1 pass over the prompts" in said(test)


def test_run_fits_in_a_process_of_its_own_and_cancel_ends_it(laboratory):
    of = wanted("ed-demo-8")
    test = page(maps="within")
    assert not test.button(key="run.maps").disabled and "Not computed yet" in said(test)
    test.button(key="run.maps").click().run()
    assert of.run.running and not test.button(key="cancel.maps").disabled
    with pytest.raises(StudyError, match="under way already"):
        of.begin()
    test.button(key="cancel.maps").click().run()
    assert not of.run.running
    assert of.found() is None and of.run.trouble == ""
    of.begin()
    until(lambda: not of.run.running, 120)
    assert of.found() is not None, of.run.trouble
    assert of.run.status.state == "done" and of.found().loss.shape == (8,)
    assert "usefulness" in said(page(maps="within"))


def test_why_a_fit_failed_is_said(laboratory):
    of = runs.Fitted((resolve("ed-demo-8"),), tuple(Prompt(f"{i} + 1 = ") for i in range(5)))
    of.begin()
    until(lambda: not of.run.running, 60)
    assert "needs more tokens than dimensions" in of.run.trouble and of.found() is None


def test_an_installation_without_studies_fits_nothing(laboratory, monkeypatch):
    monkeypatch.setenv("ED_STUDIES", "false")
    with pytest.raises(NotAllowed, match="starts no runs"):
        wanted("ed-demo-8").begin()
