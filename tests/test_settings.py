"""What an installation allows: read from file and environment, wrong ones refused, and held wherever a request comes
through."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from charts import charts
from huggingface_hub import constants
from test_pages import app, session_of
from workers import Messages

from ed_core import settings
from ed_core.errors import ModelNotFound, NotAllowed, QueueFull, SettingsError
from ed_core.probes import Contributions, LayerSkip, ResidualErasure
from ed_core.sources import hub, permits, specs, tokens
from ed_core.sources.bundled import MODELS
from ed_core.types import ModelSpec, Prompt
from ed_core.work import compute, estimate, measure
from ed_core.work.queue import Queue
from ed_core.work.resolve import admit, resolve
from ed_ui import running

ROOT = Path(__file__).parent.parent


pytestmark = pytest.mark.usefixtures("clean")


def test_without_a_file_everything_is_open():
    assert settings.file() is None
    found = settings.current()
    assert found.models == ("*",) and found.local_folders and found.hub_ids and found.downloads and found.login == "off"
    assert found.gallery == "open"


def test_the_environment_wins_over_the_file(write, monkeypatch):
    write('models = ["ed-demo-8"]\nlocal_folders = false\nmax_tokens = 99\nprobe_memory = "2G"')
    monkeypatch.setenv("ED_LOCAL_FOLDERS", "true")
    monkeypatch.setenv("ED_MODELS", "ed-demo-16, Qwen/*")
    found = settings.current()
    assert found.models == ("ed-demo-16", "Qwen/*") and found.local_folders and found.max_tokens == 99
    assert found.probe_memory == 2 << 30
    with pytest.raises(Exception, match="frozen"):
        found.local_folders = False


@pytest.mark.parametrize(
    "text, words",
    [
        ("local_folder = false", "no setting local_folder (in lab.toml); did you mean local_folders?"),
        ("[hosted]\nlogin = 'off'", "no setting hosted (in lab.toml); expected one of adapters, admins"),
        ("login = 'on'", "login in lab.toml is 'on'; expected 'off', 'optional' or 'required'. Fix it"),
        ("downloads = 'perhaps'", "downloads in lab.toml is 'perhaps'; expected true or false"),
        ("max_tokens = 0", "max_tokens in lab.toml is 0; expected greater than or equal to 1"),
        ("max_jobs = 1.5", "max_jobs in lab.toml is 1.5; expected a whole number"),
        ("models = 3", "models in lab.toml is 3; expected a list of texts"),
        ("models = []", "models in lab.toml is []; expected one name at least"),
        ("cache_limit = 'much'", "cache_limit in lab.toml is 'much'; expected bytes, like 500M or 2G"),
        ("login = 'optional'\nadmins = ['somebody']", "'somebody' is neither"),
        (
            "gallery = 'owners'",
            "do not go together: gallery = 'owners' needs to know who is there; expected login = 'optional' or "
            "'required'",
        ),
        ("login_allowed = ['@x.org']", "do not go together: login_allowed"),
        ("this is no toml", "are not TOML"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(write, text, words):
    with pytest.raises(SettingsError) as refused:
        write(text)
    assert words in str(refused.value) and "\n" not in str(refused.value) and "pydantic" not in str(refused.value)


def test_the_folder_of_results_stays_where_it_was_named(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert write('cache = "data"').cache == tmp_path / "data"
    assert write('cache = "~/data"').cache == tmp_path / "home" / "data"
    with pytest.raises(SettingsError, match="cache in lab.toml is '~nobody-here/x'; expected a path; no user of that"):
        write('cache = "~nobody-here/x"')


def test_variables_of_tests_and_benchmarks_are_no_settings(monkeypatch):
    for name in ("ED_BENCH_ROUNDS", "ED_TEST_STEP_DELAY"):
        monkeypatch.setenv(name, "1")
    assert settings.current().max_jobs == 200


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("ED_MAX_TOKENS", "many", "ED_MAX_TOKENS is 'many'; expected a whole number"),
        ("ED_CONFIG", "/nowhere/lab.toml", "there is no such file"),
    ],
)
def test_a_wrong_variable_is_refused_too(monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=re.escape(words)):
        settings.current()


@pytest.mark.parametrize(
    "name, words",
    [
        ("ED_MODLES", "There is no setting ED_MODLES (in the environment); did you mean ED_MODELS? It is ignored."),
        ("ED_NAME", "There is no setting ED_NAME (in the environment); did you mean ED_"),
        ("ED_ZZZZZZZZ", "expected one of ED_ADAPTERS, ED_ADMINS"),
    ],
)
def test_an_unknown_variable_is_a_warning_given_once(monkeypatch, caplog, name, words):
    monkeypatch.setenv(name, "x")
    assert settings.current() == settings.current() == settings.Settings()
    (warning,) = caplog.records
    assert words in warning.getMessage() and warning.levelname == "WARNING"


def test_a_folder_that_may_not_be_looked_into_is_one_sentence(tmp_path, monkeypatch):
    """A clone below a closed home folder: whether there are settings cannot be seen, so they are not ignored."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setattr(settings, "HOME", closed / "clone")
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        with pytest.raises(
            SettingsError, match=r"lab\.toml cannot be read: Permission denied\. Fix that, or set ED_CONFIG"
        ):
            settings.current()
    finally:
        if root:
            os.seteuid(0)


def test_addresses_are_compared_in_small_letters(write):
    found = write("login = 'optional'\nadmins = ['Ada@Lab.ORG']\nlogin_allowed = ['@Lab.ORG', 'Bob@x.org']")
    assert found.admins == ("ada@lab.org",) and found.login_allowed == ("@lab.org", "bob@x.org")


def test_the_example_file_names_every_setting_and_loads(write):
    text = (ROOT / "docs" / "lab.example.toml").read_text()
    assert set(tomllib.loads(text)) == set(settings.Settings.model_fields), "each one is shown, none is made up"
    lines = text.splitlines()
    for name in settings.Settings.model_fields:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{name} = "))
        above = " ".join(lines[max(0, at - 3) : at])
        assert "default:" in above, f"{name} has no comment with its default"
    assert not write(text).local_folders


# -------------------------------------------------------------------- models, folders, files

CLOSED = "hub_ids = false\nlocal_folders = false\nmodels = ['ed-demo-8', 'Qwen/*']"


@pytest.mark.parametrize(
    "source",
    [
        "/etc",
        "~",
        "~root",
        "~nobody-there/x",
        ".",
        "..",
        "../..",
        "tests",
        "ed_core/demo",
        "/etc/passwd",
        "a\0b",
        "x" * 5000,
        "C:\\Users",
        "ed-demo-8/../..",
    ],
)
def test_no_path_of_the_server_is_opened(write, source):
    write("local_folders = false")
    for way in (
        specs.named,
        resolve,
        specs.size_of,
        lambda s: specs.location(ModelSpec(s)),
        lambda s: hub.is_here(ModelSpec(s)),
        hub.plan,
    ):
        with pytest.raises((NotAllowed, ModelNotFound)):
            way(source)


def test_whether_a_path_exists_is_not_told(write, tmp_path):
    write("local_folders = false")
    said = []
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAllowed) as refused:
            resolve(str(path))
        said.append(str(refused.value).replace(str(path), "PATH"))
    assert said[0] == said[1] and "local_folders = false" in said[0]


def test_only_models_of_the_list_are_used(write):
    write(CLOSED)
    assert resolve("ed-demo-8").name == "ed-demo-8" and specs.named("Qwen/Qwen2.5-1.5B").source == "Qwen/Qwen2.5-1.5B"
    for source, words in {
        "ed-demo-16": "not among those",
        "openai-community/gpt2": "not among those",
        "Qwen/no-such-model": "not in the catalogue",
    }.items():
        with pytest.raises(NotAllowed, match=words):
            resolve(source)
    for revision in ("refs/pr/1", "0" * 40):
        with pytest.raises(NotAllowed, match="main branch"):
            resolve(f"Qwen/Qwen2.5-1.5B@{revision}")


def test_folders_of_a_list_are_not_left_by_dots(write, small_folder):
    write(f"models = ['{small_folder.parent}/*']")
    assert resolve(str(small_folder)).content_hash
    with pytest.raises(NotAllowed, match="not among those"):
        resolve(f"{small_folder.parent}/../../../../../etc")


@pytest.mark.parametrize("revision", ["../../../../../../../etc/hostname", "/etc/hostname", "a/../../../x"])
def test_a_revision_is_no_way_out_of_the_hub_cache(tmp_path, monkeypatch, revision):
    """Without any settings: a branch's name is looked up as a file."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--a--b" / "refs").mkdir(parents=True)
    (tmp_path / "models--a--b" / "snapshots").mkdir()
    with pytest.raises(ModelNotFound):
        specs.named(f"a/b@{revision}")
    assert specs.location(ModelSpec("a/b", revision=revision)) == "a/b"


@pytest.mark.parametrize("source", ["~nobody-there/x", "a\0b", "x" * 5000, "y" * 5000 + "/z", "a/b@" + "r" * 5000])
def test_odd_names_are_a_sentence_without_any_settings(source):
    with pytest.raises(ModelNotFound):
        specs.named(source)


def test_adapters_downloads_and_background_files(write, tmp_path):
    background = tmp_path / "background.jsonl"
    background.write_text('{"text": "a"}\n')
    write("adapters = false\ndownloads = false\nlocal_folders = false")
    with pytest.raises(NotAllowed, match="adapters = false"):
        resolve("ed-demo-8", adapter=str(tmp_path))
    with pytest.raises(NotAllowed, match="downloads = false"):
        hub.plan("Qwen/Qwen2.5-1.5B")
    with pytest.raises(NotAllowed, match="local_folders = false"):
        ResidualErasure(background=str(background)).request(resolve("ed-demo-8"), Prompt("a b"))
    write("local_folders = false")
    with pytest.raises(NotAllowed, match="local_folders = false"):
        resolve("ed-demo-8", adapter=str(tmp_path))


def test_a_downloaded_adapter_goes_by_its_hub_id(write, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    write("local_folders = false\nmodels = ['ed-demo-8', 'me/*']")
    inside = tmp_path / "models--me--lora" / "snapshots" / "0"
    permits.adapter(str(inside))
    for path in (tmp_path / "models--you--lora" / "x", inside / ".." / ".." / ".." / ".." / "x"):
        with pytest.raises(NotAllowed):
            permits.adapter(str(path))


def test_a_request_made_elsewhere_is_refused_at_the_queue(write, small_folder, tmp_path):
    """As a stored run or an imported case study would bring it: the objects are there, no box was typed into."""
    spec, prompt = resolve(str(small_folder)), Prompt("5 + 7 = ")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n')
    asked = [
        Contributions().request(spec, prompt),
        Contributions().request(replace(resolve("ed-demo-8"), adapter="/etc", adapter_hash="x"), prompt),
        ResidualErasure(background=str(tmp_path / "b.jsonl")).request(resolve("ed-demo-8"), prompt),
        Contributions().request(ModelSpec("Qwen/Qwen2.5-1.5B"), prompt),
    ]
    write("local_folders = false\ndownloads = false")
    for request in asked:
        with pytest.raises(NotAllowed):
            measure.submit(idle_queue(), request, "me")


def test_the_command_line_is_the_owners(small_folder, tmp_path):
    env = os.environ | {"ED_LOCAL_FOLDERS": "false", "ED_MAX_TOKENS_LAYERS": "1", "ED_CACHE": str(tmp_path)}
    (tmp_path / "p.jsonl").write_text('{"text": "5 + 7 = "}\n')
    run = f"run contributions --model {small_folder} --prompts {tmp_path / 'p.jsonl'} --out {tmp_path / 'r.npz'}"
    command = [sys.executable, "-m", "ed_core", *run.split()]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    unknown = subprocess.run(command, cwd=ROOT, env=env | {"ED_LOGNI": "off"}, capture_output=True, text=True)
    assert unknown.returncode == 0 and "did you mean ED_LOGIN? It is ignored." in unknown.stderr
    wrong = subprocess.run(command, cwd=ROOT, env=env | {"ED_LOGIN": "on"}, capture_output=True, text=True)
    assert wrong.returncode == 2 and "ED_LOGIN is 'on'" in wrong.stderr and "Traceback" not in wrong.stderr


# -------------------------------------------------------------------- how much


def test_a_request_over_the_limit_never_enters_the_queue(write):
    spec, prompt = resolve("ed-demo-8"), Prompt("5 + 7 + 5 + 3 = ")
    n = len(tokens.preview(spec, prompt))
    jobs = idle_queue()
    write(f"max_tokens_layers = {8 * n - 1}")
    with pytest.raises(
        NotAllowed,
        match=(
            f"{n} tokens × 8 layers are {8 * n}, and this installation allows {8 * n - 1}.*shorten the prompt to "
            f"{n - 1} tokens"
        ),
    ):
        measure.submit(jobs, Contributions().request(spec, prompt), "me")
    write(f"max_tokens_layers = {8 * n}\nmax_work = {estimate.work(Contributions(), 8, n)}")
    admit(Contributions().request(spec, prompt))
    with pytest.raises(NotAllowed, match="max_work"):
        measure.submit(jobs, LayerSkip().request(spec, prompt), "me")


def test_where_only_the_model_can_count_the_worker_refuses(write, small_folder):
    """A chat template's tokens are not known in the app."""
    spec = resolve(str(small_folder))
    request = Contributions().request(spec, Prompt("5 + 7 = "))
    model = compute.Models().get(spec)
    write("max_tokens_layers = 3")
    with pytest.raises(NotAllowed, match="max_tokens_layers"):
        compute.run(model, request)


def idle_queue() -> Queue:
    """One whose workers do nothing."""
    return Queue(Messages, warm=False, watch=False)


def asked(i: int):
    return Contributions().request(resolve("ed-demo-8"), Prompt(f"{i} + 7 = "))


def test_without_a_login_a_visitor_is_a_session(write):
    write("max_jobs_per_visitor = 1")
    jobs = idle_queue()
    measure.submit(jobs, asked(0), "tab 1")
    measure.submit(jobs, asked(1), "tab 2")
    with pytest.raises(QueueFull):
        measure.submit(jobs, asked(2), "tab 1")


# -------------------------------------------------------------------- pages


def sidebar_says(test) -> str:
    return plainly([*test.error, *test.warning])


def plainly(elements) -> str:
    """Their words, without what keeps Markdown from rendering them."""
    return " ".join(e.value for e in elements).replace("\\", "")


def test_a_page_says_what_is_not_allowed_and_why(stored, write):
    write("local_folders = false\nhub_ids = false\nadapters = false\nmodels = ['ed-demo-8', 'small']")
    for model, words in {
        "/etc": "local_folders = false",
        "ed-demo-16": "not among those",
        "Qwen/x": "not among those",
        "/etc/passwd": "local_folders",
    }.items():
        test = app(model=model) if model.startswith("ed-") else app_typed(model)
        assert not test.exception and words in sidebar_says(test), model
        assert not charts(test)
    test = app_typed("small")
    assert not sidebar_says(test) and charts(test)
    assert [name.partition(" · ")[0] for name in test.selectbox(key="model").options] == ["ed-demo-8", "small"]
    assert test.text_input(key="adapter").disabled and "settings" in test.text_input(key="adapter").help
    assert test.text_input(key="revision").disabled
    test = app_typed("small", adapter="/etc")
    assert "adapters = false" in sidebar_says(test)
    assert not test.text_input(key="adapter").disabled, "what a link put there can be taken out"


def app_typed(model: str, page: str = "pages/prompt/home.py", **query):
    """As `app`, with a name that may not be among the options."""
    with pytest.MonkeyPatch.context() as patch:
        if model not in MODELS and not model.startswith("ed-"):
            import ed_ui.picker

            names = ed_ui.picker.names
            patch.setattr(ed_ui.picker, "names", lambda: [*names(), model])
        return app(page, model=model, **query)


def test_a_background_file_is_refused_on_its_page(stored, write, tmp_path):
    write("local_folders = false")
    test = app("pages/intervene/erase.py", model="ed-demo-8")
    box = test.text_input(key="residual_erasure.background")
    assert box.disabled and "local_folders = false" in box.help
    session_of(test).inputs["residual_erasure.background"] = "/etc/passwd"
    test.run()
    assert not test.exception and "local_folders = false" in plainly(test.error)
    assert not test.text_input(key="residual_erasure.background").disabled


def test_run_is_off_with_the_reason_where_the_prompt_is_too_long_for_the_limit(stored, write):
    write("max_tokens_layers = 10")
    test = app(prompt=Prompt("1 + 2 + 3 + 4 + 5 = "))
    assert "max_tokens_layers" in plainly(test.warning)
    assert next(b for b in test.button if b.label == "Run").disabled


def test_a_refused_job_is_a_sentence_on_the_page(stored, write, monkeypatch):
    """Whatever Run said when it was drawn, the queue refuses."""
    monkeypatch.setattr(running, "viewer", lambda: "me")
    write("max_tokens_layers = 10")
    batch = running.Batch({"a": asked(1), "b": asked(2)})
    running.submit(batch)
    assert not batch.running and all("max_tokens_layers" in str(e) for e in batch.errors.values())
    assert len(batch.errors) == 2


def test_a_batch_waits_for_room_of_its_own_and_ends_where_there_is_none(write, monkeypatch):
    queue = idle_queue()
    monkeypatch.setattr(running, "jobs", lambda: queue)
    monkeypatch.setattr(running, "viewer", lambda: "me")
    write("max_jobs_per_visitor = 2")
    first, second = running.Batch({str(i): asked(i) for i in range(4)}), running.Batch({"x": asked(9)})
    running.submit(first)
    assert len(first.jobs) == 2 and first.waiting == ["2", "3"] and not first.errors
    running.submit(second)
    assert not second.running and "max_jobs_per_visitor" in str(second.errors["x"])
    queue.cancel(first.jobs["1"], "me")
    running.poll(first)
    assert set(first.jobs) == {"0", "2"} and first.waiting == ["3"]


def test_with_wrong_settings_nothing_is_served(stored, monkeypatch):
    monkeypatch.setenv("ED_LOCAL_FOLDERS", "perhaps")
    test = app()
    assert not test.exception and "ED_LOCAL_FOLDERS is 'perhaps'" in plainly(test.error)
    assert not test.text_area and not test.selectbox


def test_title_and_banner_are_plain_text(stored, write):
    write("title = 'Our lab'\nbanner = '[Maintenance](http://127.0.0.1/x) on **Monday**'")
    said = app().info[0].value
    assert said.replace("\\", "") == "[Maintenance](http://127.0.0.1/x) on **Monday**" and "\\[" in said
    assert "\\*" in said
