"""The server around the pages: it starts with right settings only, says whether it is ready, and what browsers may do
with its pages. What Prometheus is told: numbers of the queue, off unless switched on, never a prompt or a name."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace

import psutil
import pytest
from hosted_app import ROOT, hosted, until

from ed_core.errors import NotAllowed, QueueFull
from ed_core.probes import Contributions
from ed_core.service import pool
from ed_core.service.jobs import Job, Jobs
from ed_core.types import ModelSpec, Prompt
from ed_ui import metrics
from ed_ui.streamlit_edges import STATIC, light


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with hosted(tmp_path_factory.mktemp("hosted")) as served:
        yield served


def readiness(app) -> tuple[int, list[str]]:
    status, _, body = app.get("/ready")
    return status, json.loads(body)["problems"]


def worker_of(app) -> psutil.Process | None:
    return next(
        (
            p
            for p in psutil.Process(app.process.pid).children(recursive=True)
            if "ed_core.service.worker" in p.cmdline()
        ),
        None,
    )


def test_it_becomes_ready_without_a_visitor_and_again_after_its_worker_was_killed(app):
    until(lambda: readiness(app) == (200, []))
    first = worker_of(app)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: readiness(app)[0] == 503)
    assert readiness(app)[1] in (["the worker is starting"], [])
    until(lambda: readiness(app) == (200, []))
    assert worker_of(app).pid != first.pid and app.get("/_stcore/health")[0] == 200


def test_a_worker_that_does_not_answer_is_not_ready(app):
    until(lambda: readiness(app) == (200, []))
    worker = worker_of(app)
    worker.suspend()
    try:
        until(lambda: {psutil.Process(thread.id).status() for thread in worker.threads()} == {psutil.STATUS_STOPPED})
        assert readiness(app) == (503, ["the worker does not answer within 3 s"])
    finally:
        worker.resume()
    until(lambda: readiness(app) == (200, []))


def test_a_cache_folder_that_cannot_be_written_is_not_ready(app):
    """A file stands in the folder's place: not even root can write there."""
    until(lambda: readiness(app) == (200, []))
    aside = app.cache.with_name("aside")
    app.cache.rename(aside)
    app.cache.write_text("")
    try:
        status, problems = readiness(app)
        assert status == 503 and len(problems) == 1 and problems[0].startswith("the cache folder cannot be written")
        told = asked(app.address + "/")
        assert told.returncode == 1 and "the cache folder cannot be written" in told.stdout
    finally:
        app.cache.unlink()
        aside.rename(app.cache)
    assert readiness(app) == (200, [])


def test_a_full_disk_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    monkeypatch.setattr(pool.shutil, "disk_usage", lambda _: type("usage", (), {"free": pool.ROOM - 1}))
    jobs = Jobs(warm=False)
    assert pool.problems(jobs) == [
        "the worker is starting",
        "200 MB are free where results are kept, expected 200 MB at least",
    ]
    jobs.close()


def asked(url: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "ed_core", "ready", "--url", url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_command_line_asks_the_same(app):
    until(lambda: readiness(app) == (200, []))
    assert (found := asked(app.address)).returncode == 0 and found.stdout == "ready\n"
    assert (found := asked("http://127.0.0.1:1")).returncode == 1 and "does not answer" in found.stdout


def test_every_answer_says_what_a_browser_may_do(app):
    for path in ("/", "/skip", "/ready", "/_stcore/health", "/no/such/page", "/media/none"):
        headers = app.get(path)[1]
        policy = headers["Content-Security-Policy"]
        assert "frame-ancestors 'self'" in policy and "img-src 'self' data: blob:;" in policy
        assert "object-src 'none'" in policy, path
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "same-origin", path


def test_the_page_carries_the_apps_style(app):
    """Behind what Streamlit puts into the head; the answer is as long as it says and no file's by its tag."""
    style = (ROOT / "ed_ui" / "style.css").read_text(encoding="utf-8")
    for path in ("/", "/skip"):
        asked = {"accept": "text/html,*/*;q=0.8", "accept_encoding": "gzip, deflate, br, zstd"}  # as browsers ask
        status, headers, body = app.get(path, **asked)
        assert status == 200 and f"<style>{style}</style></body>" in body and body.count("</body>") == 1
        assert int(headers["content-length"]) == len(body.encode()) and "etag" not in headers
    assert "<style>" not in app.get("/_stcore/health")[2]
    status, headers, body = app.get("/", "HEAD")
    assert status in (200, 405) and not body and headers.get("content-length") != "0"


@pytest.mark.parametrize("name", [STATIC.parent.glob("js/PlotlyChart.*.js"), STATIC.parent.glob("css/*.css")])
def test_scripts_and_styles_come_packed_to_whoever_takes_them_so(app, name):
    file = next(name)
    path = f"/static/{file.parent.name}/{file.name}"
    plain = app.get(path)[1]
    request = urllib.request.Request(app.address + path, headers={"Accept-Encoding": "gzip, br"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        told, body = answer.headers, answer.read()
    assert told["Content-Encoding"] == "gzip" and gzip.decompress(body) == light(file)
    assert 3 * len(body) < file.stat().st_size and told["Vary"] == "Accept-Encoding"
    for same in ("Cache-Control", "Content-Type", "Content-Security-Policy"):
        assert told[same] == plain[same], same
    assert "Content-Encoding" not in plain
    _, part, body = app.get(path, accept_encoding="gzip", range="bytes=0-9")
    assert part["Content-Length"] == "10" and body.encode() == file.read_bytes()[:10]


def test_what_draws_a_figure_is_a_file_that_the_page_names(app):
    """Packed to whoever takes it so, to be kept for good."""
    page = app.get("/", accept="text/html")[2]
    names = re.findall(r'modulepreload" crossorigin href="\./(static/js/(?:figure|link|story)\.\w{12}\.js)"', page)
    assert {name.split("/")[-1].partition(".")[0] for name in names} >= {"figure", "link"}
    for part in ("PlotlyChart", "BidiComponent", "StreamlitMarkdown"):  # of Streamlit's, with what they import
        assert f'modulepreload" crossorigin href="./static/js/{part}.' in page
    path = "/" + next(name for name in names if "figure" in name)
    status, plain, body = app.get(path)
    written = (ROOT / "ed_ui" / "chart.js").read_text(encoding="utf-8").partition("PLOTLY")
    assert status == 200 and body.startswith(written[0]) and plain["Content-Type"].startswith("application/javascript")
    with urllib.request.urlopen(
        urllib.request.Request(app.address + path, headers={"Accept-Encoding": "gzip"}), timeout=20
    ) as answer:
        assert gzip.decompress(answer.read()).decode() == body and answer.headers["Content-Encoding"] == "gzip"
    assert "immutable" in plain["Cache-Control"] and "Content-Encoding" not in plain
    assert app.get("/static/js/figure.000000000000.js")[1]["Content-Type"].startswith("text/html"), "no script"


def test_an_upload_without_the_token_is_refused(app):
    """Somebody else's page cannot put files here with a visitor's cookies."""
    cookie = app.get("/_stcore/health")[1]["Set-Cookie"].partition(";")[0]
    assert cookie.startswith("_streamlit_xsrf=")
    token = cookie.partition("=")[2].strip('"')
    path = "/_stcore/upload_file/session/file"
    for headers in ({}, {"Cookie": cookie}, {"Cookie": cookie, "X_Xsrftoken": "wrong"}, {"X_Xsrftoken": token}):
        assert app.get(path, "PUT", b"x", **headers)[0] == 403, headers
    assert app.get(path, "PUT", b"x", Cookie=cookie, X_Xsrftoken=token)[0] != 403, (
        "with the token it is looked at (and there is no such session)"
    )


def test_other_origins_get_no_answers(app):
    headers = app.get("/_stcore/health", Origin="https://elsewhere.example")[1]
    assert headers.get("Access-Control-Allow-Origin") in (None, "")


def test_the_servers_own_settings(app):
    """Held as Streamlit understands them, not as the file is spelled."""
    code = """
from streamlit import config
print([config.get_option(n) for n in ("server.enableXsrfProtection", "server.enableCORS", "client.showErrorDetails", "server.maxUploadSize", "browser.gatherUsageStats", "server.address", "server.enableStaticServing", "global.developmentMode")])
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[True, True, 'none', 20, False, '127.0.0.1', False, False]"
    assert app.get("/_stcore/agent/interact", "POST", b"{}")[0] == 403, "the pages are for people"


@pytest.mark.parametrize(
    "text, words",
    [("local_folder = false", "did you mean local_folders?"), ("max_jobs = 'many'", "expected a whole number")],
)
def test_it_does_not_start_with_wrong_settings(tmp_path, text, words):
    (tmp_path / "lab.toml").write_text(text)
    env = os.environ | {"ED_CONFIG": str(tmp_path / "lab.toml"), "ED_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "ed_ui.server", "--server.port", "1"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_serves_below_a_base_path_and_takes_its_worker_along(tmp_path):
    """And what the settings name is who may frame it."""
    with hosted(tmp_path, 'frames = ["https://huggingface.co"]', base="lab/depth") as served:
        assert "frame-ancestors https://huggingface.co" in served.get()[1]["Content-Security-Policy"]
        until(lambda: readiness(served) == (200, []))
        worker = worker_of(served)
        assert "ScriptRunContext" not in served.log.read_text(), "who starts it reads no warning"
    assert served.address.endswith("/lab/depth")
    until(lambda: not worker.is_running())


# ---------------------------------------------------------------- Prometheus


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
