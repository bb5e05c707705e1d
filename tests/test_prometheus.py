"""What Prometheus is told: numbers of the queue, off unless switched on, and never a prompt or a name."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hosted_app import ROOT, hosted, until

from ed_core.errors import NotAllowed, QueueFull
from ed_core.probes import Contributions
from ed_core.service.jobs import Job
from ed_core.types import ModelSpec, Prompt
from ed_ui import metrics


@pytest.fixture
def on(monkeypatch):
    monkeypatch.setenv("ED_METRICS", "true")
    metrics.instruments.cache_clear()
    yield
    metrics.instruments.cache_clear()


def told() -> dict[str, float]:
    """Every line of numbers."""
    text, kind = metrics.text({"waiting": 2, "running": 1}, (3, 4000), 5)
    assert kind.startswith("text/plain")
    return {name: float(value) for name, value in re.findall(r"^(\w.*) (\S+)$", text, re.MULTILINE)}


def a_job(**more) -> Job:
    secret = Contributions().request(ModelSpec("secret/model"), Prompt("a secret prompt"))
    return Job(secret, {"viewer"}, "ada@example.org", **more)


def test_jobs_are_counted_by_kind_state_and_error(on):
    done = a_job(submitted=10.0, started=14.0, ended=29.0, away=5.0, state="done")
    for what in ("begun", "ended"):
        metrics.job(what, done)
    metrics.job("ended", a_job(state="failed", error=QueueFull("a secret")))
    metrics.job("ended", a_job(state="cancelled"))
    metrics.job("refused", a_job(error=NotAllowed("a secret")))
    metrics.failed("page", "KeyError")
    metrics.looked_up(2, 5)
    found = told()
    assert found['ed_job_wait_seconds_sum{kind="contributions"}'] == 4
    assert found['ed_job_seconds_sum{kind="contributions"}'] == 10, "less what it gave away"
    assert found['ed_job_seconds_bucket{kind="contributions",le="10.0"}'] == 1
    for state in ("done", "failed", "cancelled"):
        assert found[f'ed_jobs_total{{kind="contributions",state="{state}"}}'] == 1
    assert found['ed_errors_total{error="QueueFull",where="job"}'] == 1
    assert found['ed_errors_total{error="other",where="page"}'] == 1
    assert found['ed_requests_refused_total{why="NotAllowed"}'] == 1
    assert [found[f'ed_results_looked_up_total{{found="{f}"}}'] for f in ("yes", "no")] == [2, 3]
    assert (found['ed_jobs_now{state="waiting"}'], found["ed_models_open"], found["ed_model_bytes"]) == (2, 3, 4000)
    assert found["ed_sessions"] == 5


def test_no_prompt_and_no_name_is_told(on):
    for job in (a_job(state="done", started=1.0, ended=2.0), a_job(state="failed", error=QueueFull("ada secret"))):
        metrics.job("begun", replace(job, started=1.0))
        metrics.job("ended", job)
    unknown = replace(a_job().request, probe="a secret probe")
    metrics.job("begun", Job(unknown, set(), started=1.0))
    metrics.failed("page", "SecretError")
    text = metrics.text({}, (0, 0), 0)[0]
    assert "secret" not in text.lower() and "ada" not in text and "viewer" not in text and 'kind="other"' in text


def test_off_nothing_is_counted():
    metrics.instruments.cache_clear()
    metrics.job("begun", a_job(started=1.0))
    metrics.looked_up(1, 1)
    metrics.failed("page", "KeyError")
    assert metrics.instruments.cache_info().currsize == 0, "not even the library is imported"


def test_the_server_answers_where_it_was_switched_on(tmp_path):
    with hosted(tmp_path, "metrics = true", base="depth") as app:
        until(lambda: app.get("/metrics")[0] == 200)
        _, headers, body = app.get("/metrics")
        assert headers["Content-Type"].startswith("text/plain") and headers["Cache-Control"] == "no-store"
        assert 'ed_jobs_now{state="waiting"} 0.0' in body and "ed_sessions 0.0" in body


def test_elsewhere_there_is_no_such_page(tmp_path):
    with hosted(tmp_path) as app:
        assert "ed_jobs_now" not in app.get("/metrics")[2]


def test_the_dashboard_asks_for_what_there_is(on):
    text = metrics.text({}, (0, 0), 0)[0]
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    board = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name.removesuffix("_bucket") for expr in targets for name in re.findall(r"\bed_\w+", expr)}
    assert asked and asked <= known, asked - known
