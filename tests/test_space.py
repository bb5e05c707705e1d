"""A Space: its folder starts as its Dockerfile says, the hub is asked what its client takes, secrets stay where they
are, and whatever the hub answers is one sentence."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml
from hosted_app import answering, free_port, until
from huggingface_hub import HfApi

from ed_core.commands import main
from ed_core.errors import ParameterError, PublishError
from ed_core.service import pool
from ed_core.sharing import space

VALUE = "hf_neverwritten"


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("READING", VALUE)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What a dry run writes and says: (folder, said)."""
    folder = tmp_path_factory.mktemp("space") / "dry"
    options = ["--hardware", "t4-small", "--variable", "ED_MAX_JOBS=7", "COLOUR=blue=green", "--private"]
    command = [sys.executable, "-m", "ed_core", "deploy", "space", "ada/My_lab", "--dry-run", str(folder), *options]
    environment = os.environ | {"READING": VALUE, "ED_TITLE": 'The "lab": one', "HF_ENDPOINT": "http://127.0.0.1:1"}
    more = ["--secret", "HF_TOKEN=READING", "--bucket", "ada/kept"]
    done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def test_the_files_are_those_the_image_needs(written):
    folder, said = written
    names = {file.relative_to(folder).as_posix() for file in files(folder)}
    assert {"Dockerfile", "README.md", "app.py", "ed_ui/server.py", ".streamlit/config.toml", space.OURS} <= names
    assert not [n for n in names if re.search(r"^tests/|^docs/|__pycache__|lab\.toml|secrets|^cache/(?!README)", n)]
    for source in re.findall(r"^COPY (?:--\S+ )?(\S+) ", (folder / "Dockerfile").read_text(), re.MULTILINE):
        assert (folder / source).exists(), source
    assert f"{folder}: {len(names)} files" in said
    copy = {name: (folder / name).read_bytes() for name in names - {"README.md"}}
    assert copy == {name: (space.settings.ROOT / name).read_bytes() for name in copy}


def test_the_front_matter_is_what_the_hub_reads(written):
    _, front, text = (written[0] / "README.md").read_text(encoding="utf-8").split("---\n")
    found = yaml.safe_load(front)
    assert (found["title"], found["sdk"], found["app_port"]) == ('The "lab": one', "docker", 8501)
    assert len(found["short_description"]) <= 60 and "https://ada-my-lab.hf.space" in text
    docker = (written[0] / "Dockerfile").read_text()
    assert f"STREAMLIT_SERVER_PORT={found['app_port']}" in docker and f"EXPOSE {found['app_port']}" in docker
    assert "useradd --create-home --uid 1000" in docker and "\nUSER lab\n" in docker


def test_it_says_what_the_hub_would_be_asked_and_no_secret(written):
    folder, said = written
    bucket, create, upload = said.splitlines()[1:]
    assert bucket == "create_bucket(bucket_id='ada/kept', private=True, exist_ok=True)"
    for words in (
        "create_repo(repo_id='ada/My_lab', repo_type='space', private=True, space_sdk='docker'",
        "space_hardware='t4-small'",
        "{'key': 'ED_MAX_JOBS', 'value': '7'}",
        "{'key': 'COLOUR', 'value': 'blue=green'}",
        "{'key': 'ED_CACHE', 'value': '/data/cache'}",
        "space_secrets=['HF_TOKEN (from the environment)']",
        "space_volumes=[{'type': 'bucket', 'source': 'ada/kept', 'mountPath': '/data'}]",
    ):
        assert words in create, words
    assert f"folder_path='{folder}'" in upload and "delete_patterns='*'" in upload
    assert VALUE not in said
    assert not [file for file in files(folder) if VALUE.encode() in file.read_bytes()]


def test_the_calls_are_what_the_installed_client_takes():
    wanted = space.planned("ada/lab", secrets=["HF_TOKEN=READING"], bucket="ada/kept")
    asked = space.calls(wanted)
    assert VALUE not in "".join(space.told(wanted, Path("x"))) and VALUE not in repr(wanted)
    assert list(asked) == ["create_bucket", "create_repo", "upload_folder"]
    asked["upload_folder"]["folder_path"] = "x"
    for method, arguments in asked.items():
        inspect.signature(getattr(HfApi, method)).bind(None, **arguments)
    create = asked["create_repo"]
    assert create["space_secrets"] == [{"key": "HF_TOKEN", "value": VALUE}]
    assert {"key": "ED_CACHE", "value": f"{create['space_volumes'][0].mount_path}/cache"} in create["space_variables"]
    plain = space.calls(space.planned("ada/lab"))
    assert list(plain) == ["create_repo", "upload_folder"] and plain["create_repo"]["space_volumes"] is None
    assert "ED_CACHE" not in [one["key"] for one in plain["create_repo"]["space_variables"]]


def test_the_folder_starts_as_its_dockerfile_says(written, tmp_path):
    """A cold copy, this environment's Python first on the path; the image's variables, the Space's, another port."""
    folder, docker = tmp_path / "app", (written[0] / "Dockerfile").read_text()
    shutil.copytree(written[0], folder)
    command = json.loads(re.search(r"^CMD (\[.*\])$", docker, re.MULTILINE)[1])
    check = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", docker, re.MULTILINE)[1])
    image = dict(re.findall(r"\b([A-Z][A-Z_]+)=(\S+)", re.search(r"^ENV (.*?[^\\])$", docker, re.M | re.S)[1]))
    assert image["STREAMLIT_SERVER_ADDRESS"] == "0.0.0.0" and image["STREAMLIT_SERVER_PORT"] == "8501"
    port = free_port()
    given = space.planned("ada/lab", variables=["ED_MAX_JOBS=7"], bucket="ada/kept").variables
    given = {name: value.replace("/data", str(tmp_path / "data")) for name, value in given.items()}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ED_", "STREAMLIT_", "PYTHON"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    more = {"PATH": path, "STREAMLIT_SERVER_PORT": str(port), "STREAMLIT_SERVER_ADDRESS": "127.0.0.1"}
    environment = clean | image | given | more
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        until(lambda: _runs(process, tmp_path / "log") and pool.ask_problems(address) == [])
        asked = subprocess.run([*check, "--url", address], cwd=folder, env=environment, capture_output=True, text=True)
        assert (asked.returncode, asked.stdout) == (0, "ready\n"), asked.stderr
        assert (tmp_path / "data" / "cache").is_dir(), "what is kept lies on the volume"
    finally:
        process.terminate()
        process.wait(20)


def _runs(process: subprocess.Popen, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    return True


class Api:
    """What is asked of a hub on which these Spaces are, by id with their files."""

    def __init__(self, **there):
        self.there, self.asked = {name.replace("__", "/"): files for name, files in there.items()}, []

    def repo_exists(self, id, *, repo_type):
        return id in self.there

    def space_info(self, id):
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.there[id]])

    def __getattr__(self, name):
        inspect.signature(getattr(HfApi, name))  # only what the client has

        def call(*arguments, **options):
            inspect.signature(getattr(HfApi, name)).bind(None, *arguments, **options)
            self.asked.append((name, arguments, options))

        return call


def test_a_new_space_is_made_whole_and_then_filled(tmp_path):
    api, asked = Api(), space.planned("ada/lab", secrets=["HF_TOKEN=READING"], bucket="ada/kept")
    assert space.deploy(asked, tmp_path, api) == "https://huggingface.co/spaces/ada/lab"
    assert [name for name, *_ in api.asked] == ["create_bucket", "create_repo", "upload_folder"]
    assert api.asked[1][2]["space_secrets"] == [{"key": "HF_TOKEN", "value": VALUE}]
    assert api.asked[2][2]["folder_path"] == tmp_path


def test_one_that_was_deployed_from_here_is_renewed(tmp_path):
    api = Api(ada__lab=["README.md", space.OURS])
    asked = space.planned("ada/lab", "l4x1", ["ED_MAX_JOBS=7"], ["HF_TOKEN=READING"], "ada/kept")
    space.deploy(asked, tmp_path, api)
    assert "create_repo" not in [name for name, *_ in api.asked]
    assert ("add_space_variable", ("ada/lab", "ED_MAX_JOBS", "7"), {}) in api.asked
    assert ("add_space_secret", ("ada/lab", "HF_TOKEN", VALUE), {}) in api.asked
    assert ("request_space_hardware", ("ada/lab", "l4x1"), {}) in api.asked
    (volumes,) = [arguments[1] for name, arguments, _ in api.asked if name == "set_space_volumes"]
    assert (volumes[0].source, volumes[0].mount_path) == ("ada/kept", "/data") and api.asked[-1][0] == "upload_folder"


def test_somebodys_other_space_is_left_alone(tmp_path):
    api = Api(ada__lab=["README.md", "app.py"])
    with pytest.raises(PublishError, match="was not deployed from here, and its files would be replaced"):
        space.deploy(space.planned("ada/lab"), tmp_path, api)
    assert api.asked == []


@pytest.fixture
def hub():
    """A hub that knows no Space and answers the making of one with `hub.status`; `hub.made`: what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(404, "RepoNotFound")

        def do_POST(self):
            server.made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(server.status, "")

        def answer(self, status, code):
            body = json.dumps({"error": f"no, {VALUE}"}).encode()
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Handler) as server:
        server.status, server.made = 402, None
        yield server


@pytest.mark.parametrize(
    "status, words",
    [
        (402, "The plan of ada does not allow this Space"),
        (403, "does not let this token write for ada"),
        (400, "refuses the Space ada/lab with status 400"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_without_its_text(tmp_path, hub, monkeypatch, status, words):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.status = status
    api = HfApi(endpoint=f"http://127.0.0.1:{hub.server_address[1]}", token="writing")
    with pytest.raises(PublishError, match=words) as refused:
        space.deploy(space.planned("ada/lab", "t4-small", secrets=["HF_TOKEN=READING"]), tmp_path, api)
    assert VALUE not in str(refused.value) and "\n" not in str(refused.value)
    assert (hub.made["sdk"], hub.made["hardware"], hub.made["type"]) == ("docker", "t4-small", "space")
    assert hub.made["secrets"] == [{"key": "HF_TOKEN", "value": VALUE}]


def test_no_network_and_no_token_are_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(PublishError, match="there is no token here; log in with"):
        space.deploy(space.planned("ada/lab"), tmp_path)
    with pytest.raises(PublishError, match="The hub does not answer"):
        space.deploy(space.planned("ada/lab"), tmp_path, HfApi(endpoint="http://127.0.0.1:1", token="x"))
    monkeypatch.setenv("HF_TOKEN", VALUE)
    with pytest.raises(PublishError, match="The secret HF_TOKEN is the very token that deploys") as refused:
        space.deploy(space.planned("ada/lab", secrets=["HF_TOKEN"]), tmp_path)
    assert VALUE not in str(refused.value)


@pytest.mark.parametrize(
    "asked, words",
    [
        (dict(id="lab"), "'lab'; expected OWNER/NAME"),
        (dict(id="ada/../lab"), "expected OWNER/NAME"),
        (dict(id="ada/lab", bucket="kept"), "The bucket is called 'kept'"),
        (dict(id="ada/lab", hardware="t4-smal"), "did you mean t4-small?"),
        (dict(id="ada/lab", hardware="zero-a10g"), "--hardware is 'zero-a10g'"),
        (dict(id="ada/lab", variables=["ED_MAX_JOBS"]), "not of the form NAME=VALUE"),
        (dict(id="ada/lab", variables=["A=1", "A=2"]), "--variable gives A as '1' and as '2'; give it once."),
        (dict(id="ada/lab", variables=["HF_TOKEN=x"]), "would be seen by everybody; give it as --secret HF_TOKEN"),
        (dict(id="ada/lab", secrets=["NOT_THERE"]), "The secret NOT_THERE is read from a variable of that name"),
        (dict(id="ada/lab", secrets=["ED_TITLE=READING"], variables=["ED_TITLE=x"]), "as a variable and as a secret"),
    ],
)
def test_what_does_not_fit_is_refused(asked, words):
    with pytest.raises(ParameterError, match=re.escape(words)):
        space.planned(**asked)


def test_an_empty_folder_for_a_dry_run_deploys_nothing(capsys, monkeypatch):
    monkeypatch.setattr(space, "deploy", lambda *_: pytest.fail("deployed"))
    assert main(["deploy", "space", "ada/lab", "--dry-run", ""]) == 2
    assert "--dry-run is empty" in capsys.readouterr().err


def test_a_secrets_value_on_the_command_line_is_not_repeated():
    for value in (VALUE, f"{VALUE}-x"):
        with pytest.raises(ParameterError) as refused:
            space.planned("ada/lab", secrets=[f"HF_TOKEN={value}"])
        assert VALUE not in str(refused.value)


def test_variables_that_would_not_start_leave_nothing(tmp_path, capsys):
    folder = tmp_path / "dry"
    assert main(["deploy", "space", "ada/lab", "--dry-run", str(folder), "--variable", "ED_MAX_JOBS=none"]) == 2
    err = capsys.readouterr().err
    assert "The Space would not start with these variables: ED_MAX_JOBS is 'none'" in err and not folder.exists()


def test_a_full_disk_leaves_nothing_and_the_same_command_goes_on_later(tmp_path, monkeypatch, capsys):
    asked, full = ["deploy", "space", "ada/lab", "--dry-run", str(tmp_path / "dry")], OSError(errno.ENOSPC, "full")
    with monkeypatch.context() as patch:
        patch.setattr(space.disk, "write", Mock(side_effect=full))
        assert main(asked) == 2 and "set FOLDER to a folder on another disk" in capsys.readouterr().err
    assert not (tmp_path / "dry").exists() and main(asked) == 0


def test_a_variable_that_is_no_setting_is_refused(tmp_path, capsys):
    asked = ["deploy", "space", "ada/lab", "--dry-run", str(tmp_path / "dry"), "--variable", "ED_LOCAL_FOLDER=false"]
    assert main(asked) == 2 and "did you mean ED_LOCAL_FOLDERS?" in capsys.readouterr().err


def test_a_folder_with_something_in_it_is_left_as_it_was(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    assert main(["deploy", "space", "ada/lab", "--dry-run", str(tmp_path / "mine")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert [f.name for f in files(tmp_path / "mine")] == ["thesis.tex"]
