"""What an installation allows: read from file and environment, wrong ones refused, and held wherever a request comes
through."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from charts import charts, words
from huggingface_hub import constants
from test_pages import app, session_of
from workers import Messages

from ed_core import settings
from ed_core.errors import ModelNotFound, NotAllowed, SettingsError
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, ResidualErasure
from ed_core.types import ModelSpec, Prompt
from ed_core.work import measure
from ed_core.work.queue import Queue
from ed_ui import picker

ROOT = Path(__file__).parent.parent


pytestmark = pytest.mark.usefixtures("clean")


def test_the_environment_wins_over_the_file_and_without_one_everything_is_open(write, monkeypatch):
    found = settings.current()
    assert found.models == ("*",) and not found.hosted and found.login == "off"
    write('models = ["ed-demo-8"]\nhosted = false\nmax_tokens = 99\nprobe_memory = "2G"')
    monkeypatch.setenv("ED_HOSTED", "true")
    monkeypatch.setenv("ED_MODELS", "ed-demo-16, Qwen/*")
    found = settings.current()
    assert found.models == ("ed-demo-16", "Qwen/*") and found.hosted and found.max_tokens == 99
    assert found.probe_memory == 2 << 30
    for name, value, told in (
        ("ED_MAX_TOKENS", "many", "ED_MAX_TOKENS is 'many'; expected a valid integer"),
        ("ED_CONFIG", "/nowhere/lab.toml", "cannot be read: No such file"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(SettingsError, match=told):
            settings.current()


@pytest.mark.parametrize(
    "text, words",
    [
        ("hostd = true", "no setting hostd (in lab.toml); did you mean hosted?"),
        ("login = 'on'", "login in lab.toml is 'on'; expected 'off', 'optional' or 'required'. Fix it"),
        ("hosted = 'perhaps'", "hosted in lab.toml is 'perhaps'; expected a valid boolean"),
        ("max_tokens = 0", "max_tokens in lab.toml is 0; expected greater than or equal to 1"),
        ("cache_limit = 'much'", "cache_limit in lab.toml is 'much'; expected bytes, like 500M or 2G"),
        ("login = 'optional'\nlogin_allowed = ['somebody']", "'somebody' is neither"),
        ("login_allowed = ['@x.org']", "do not go together: login_allowed"),
        ("this is no toml", "cannot be read"),
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


def test_an_unknown_variable_is_a_warning_given_once(monkeypatch, caplog):
    monkeypatch.setenv("ED_MODLES", "x")
    assert settings.current() == settings.current() == settings.Settings()
    (warning,) = caplog.records
    assert "There is no setting ED_MODLES (in the environment); did you mean ED_MODELS?" in warning.getMessage()


def test_the_example_file_names_every_setting_and_loads(write):
    text = (ROOT / "docs" / "lab.example.toml").read_text()
    assert set(tomllib.loads(text)) == set(settings.Settings.model_fields), "each one is shown, none is made up"
    assert write(text).hosted
    found = write("login = 'optional'\nlogin_allowed = ['@Lab.ORG', 'Bob@x.org']")
    assert found.login_allowed == ("@lab.org", "bob@x.org"), "compared in small letters"


HOSTED = "hosted = true"


@pytest.mark.parametrize("source", ["/etc", "~root", "..", "ed_core/demo", "a\0b", "x" * 5000, "ed-demo-8/../.."])
def test_no_path_of_the_server_is_opened(write, source):
    write(HOSTED)
    for way in (
        ModelRef.parse,
        lambda s: ModelRef.of(ModelSpec(s)).place,
        lambda s: ModelRef.of(ModelSpec(s)).is_here,
        lambda s: ModelRef.of(ModelSpec(s)).plan(),
    ):
        with pytest.raises((NotAllowed, ModelNotFound)):
            way(source)


def test_whether_a_path_exists_is_not_told(write, tmp_path):
    write(HOSTED)
    said = set()
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAllowed, match="hosted = true") as refused:
            ModelRef.parse(str(path))
        said.add(str(refused.value).replace(str(path), "PATH"))
    assert len(said) == 1


def test_only_models_of_the_list_are_used(write):
    write(HOSTED + "\nmodels = ['ed-demo-8', 'Qwen/*']")
    assert ModelRef.parse("ed-demo-8").name == "ed-demo-8"
    assert ModelRef.named("Qwen/Qwen2.5-1.5B").source == "Qwen/Qwen2.5-1.5B"
    for source, told in {
        "ed-demo-16": "not among those",
        "openai-community/gpt2": "not among those",
        "Qwen/Qwen2.5-1.5B@refs/pr/1": "main branch",
        f"Qwen/Qwen2.5-1.5B@{'0' * 40}": "main branch",
    }.items():
        with pytest.raises(NotAllowed, match=told):
            ModelRef.parse(source)


@pytest.mark.parametrize("revision", ["../../../../../../../etc/hostname", "/etc/hostname"])
def test_a_revision_is_no_way_out_of_the_hub_cache(tmp_path, monkeypatch, revision):
    """Without any settings: a branch's name is looked up as a file."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--a--b" / "refs").mkdir(parents=True)
    (tmp_path / "models--a--b" / "snapshots").mkdir()
    with pytest.raises(ModelNotFound):
        ModelRef.named(f"a/b@{revision}")
    assert ModelRef.of(ModelSpec("a/b", revision=revision)).place.is_relative_to(tmp_path / "models--a--b")


def test_a_hosted_installation_takes_no_adapters_downloads_or_files(write, tmp_path):
    background = tmp_path / "background.jsonl"
    background.write_text('{"text": "a"}\n')
    write(HOSTED)
    with pytest.raises(NotAllowed, match="no LoRA adapters"):
        ModelRef.parse("ed-demo-8", adapter=str(tmp_path))
    with pytest.raises(NotAllowed, match="downloads nothing"):
        ModelRef.named("Qwen/Qwen2.5-1.5B").plan()
    with pytest.raises(NotAllowed, match="hosted = true"):
        ResidualErasure(background=str(background)).request(ModelRef.parse("ed-demo-8"), Prompt("a b"))


def test_a_request_made_elsewhere_is_refused_at_the_queue(write, small_folder, tmp_path):
    """As a stored run or an imported case study would bring it: the objects are there, no box was typed into."""
    spec, prompt = ModelRef.parse(str(small_folder)), Prompt("5 + 7 = ")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n')
    asked = [
        Contributions().request(spec, prompt),
        Contributions().request(replace(ModelRef.parse("ed-demo-8"), adapter="/etc", adapter_hash="x"), prompt),
        ResidualErasure(background=str(tmp_path / "b.jsonl")).request(ModelRef.parse("ed-demo-8"), prompt),
        Contributions().request(ModelSpec("Qwen/Qwen2.5-1.5B"), prompt),
    ]
    write(HOSTED)
    for request in asked:
        with pytest.raises(NotAllowed):
            measure.submit(Queue(Messages, warm=False, watch=False), request, "me")


@pytest.mark.process
def test_the_command_line_may_what_its_user_may(small_folder, tmp_path):
    env = os.environ | {"ED_HOSTED": "true", "ED_CACHE": str(tmp_path)}
    (tmp_path / "p.jsonl").write_text('{"text": "5 + 7 = "}\n')
    run = f"run contributions --model {small_folder} --prompts {tmp_path / 'p.jsonl'} --out {tmp_path / 'r.npz'}"
    command = [sys.executable, "-m", "ed_core", *run.split()]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wrong = subprocess.run(command, cwd=ROOT, env=env | {"ED_LOGIN": "on"}, capture_output=True, text=True)
    assert wrong.returncode == 2 and "ED_LOGIN is 'on'" in wrong.stderr and "Traceback" not in wrong.stderr


def test_a_page_says_what_is_not_allowed_and_why(stored, write):
    write(HOSTED + "\nmodels = ['ed-demo-8', 'small']")
    for model, told in {"/etc/passwd": "hosted = true", "Qwen/x": "not among those"}.items():
        test = app_typed(model)
        assert not test.exception and told in words(test), model
        assert not charts(test)
    test = app(model="small")
    assert not test.error and not test.warning and charts(test)
    assert [name.partition(" · ")[0] for name in test.selectbox(key="model").options] == ["ed-demo-8", "small"]
    assert not {"adapter", "revision"} & {box.key for box in test.text_input}


def app_typed(model: str):
    """As `app`, with a name that is not among the options."""
    known = picker.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picker, "names", lambda: [*known, model])
        return app(model=model)


def test_title_and_banner_are_plain_text(stored, write):
    write("title = 'Our lab'\nbanner = '[Maintenance](http://127.0.0.1/x) on **Monday**'")
    said = app().info[0].value
    assert said.replace("\\", "") == "[Maintenance](http://127.0.0.1/x) on **Monday**"
    assert "\\[" in said and "\\*" in said


def test_a_background_file_is_refused_on_its_page(stored, write, tmp_path):
    write(HOSTED)
    test = app("pages/intervene/erase.py", model="ed-demo-8")
    box = test.text_input(key="residual_erasure.background")
    assert box.disabled and "hosted = true" in box.help
    session_of(test).inputs["residual_erasure.background"] = "/etc/passwd"
    test.run()
    assert not test.exception and "hosted = true" in test.error[0].value


def test_with_wrong_settings_nothing_is_served(stored, monkeypatch):
    monkeypatch.setenv("ED_HOSTED", "perhaps")
    test = app()
    assert not test.exception and "ED\\_HOSTED is 'perhaps'" in test.error[0].value
    assert not test.text_area and not test.selectbox
