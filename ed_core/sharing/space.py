"""The app as a Docker Space of the hub: its files, its front matter, and what the hub is asked for. Torch-free.

The files are named, never swept up: what git knows below `FILES`. Values of secrets are read from the environment at
the moment of the call, handed to the hub's client, and neither written nor printed."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from .. import disk, settings
from ..errors import ParameterError, PublishError

PORT, MOUNT = 8501, "/data"
FILES = (  # what the image needs, as its Dockerfile copies it
    "Dockerfile",
    ".dockerignore",
    "LICENSE",
    "requirements.txt",
    "requirements.lock",
    "app.py",
    ".streamlit/config.toml",
    "cache/README.md",
    "ed_core",
    "ed_ui",
    "pages",
)
OURS = "ed_core/sharing/space.py"  # a Space that holds it was deployed from here
VARIABLES = {  # strangers come, one queue serves all, and a Space is shown inside a frame
    "ED_LOCAL_FOLDERS": "false",
    "ED_HUB_IDS": "false",
    "ED_ADAPTERS": "false",
    "ED_STUDIES": "false",
    "ED_MODELS": "ed-demo-*,smollm2",
    "ED_MAX_TOKENS_LAYERS": "4096",
    "ED_MAX_JOBS_PER_VISITOR": "8",
    "ED_MAX_JOBS": "40",
    "ED_MAX_SESSIONS_PER_ADDRESS": "0",  # all visitors come from the addresses of the hub's proxies
    "ED_GALLERY": "read-only",
    "ED_FRAMES": "https://huggingface.co,https://*.hf.space",
}
KEPT = {"ED_CACHE": f"{MOUNT}/cache", "HF_HOME": f"{MOUNT}/huggingface"}  # with a volume
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
SECRET = re.compile(r"(^|_)(TOKEN|SECRETS?|PASSWORD|KEY)(_|$)", re.IGNORECASE)
README = """\
---
title: {title}
emoji: 📏
colorFrom: blue
colorTo: yellow
sdk: docker
app_port: {port}
license: apache-2.0
short_description: How much of its depth does a language model use?
---

The effective-depth laboratory: what each layer of a language model adds, and from which layer on it only refines.
Logging in and uploading work outside the hub's frame only: open {address} itself.
"""


@dataclass(frozen=True)
class Space:
    """What is to be deployed. `secrets`: their values by name. `bucket`: the storage bucket that is mounted, or ""."""

    id: str
    hardware: str = "cpu-basic"
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    bucket: str = ""
    private: bool = False


def planned(
    id: str,
    hardware: str = "cpu-basic",
    variables: Sequence[str] = (),
    secrets: Sequence[str] = (),
    bucket: str = "",
    private: bool = False,
) -> Space:
    """A Space as it was asked for: `variables` as NAME=VALUE, over those that suit a Space; `secrets` as NAME, or as
    NAME=OTHER where the environment calls it otherwise. `ParameterError` says what does not fit."""
    from huggingface_hub import SpaceHardware

    _check_id("The Space", id)
    if bucket:
        _check_id("The bucket", bucket)
    known = [one.value for one in SpaceHardware if not one.value.startswith("zero-")]  # these are for Gradio alone
    if hardware not in known:
        near = difflib.get_close_matches(hardware, known, 1)
        raise ParameterError(
            f"--hardware is {hardware!r}; " + (f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}.")
        )
    given, named = VARIABLES | (KEPT if bucket else {}), dict[str, str]()
    for pair in variables:
        name, equals, value = pair.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise ParameterError(f"--variable {pair!r} is not of the form NAME=VALUE.")
        if named.setdefault(name, value) != value:
            raise ParameterError(f"--variable gives {name} as {named[name]!r} and as {value!r}; give it once.")
        if SECRET.search(name):
            raise ParameterError(f"--variable {name} would be seen by everybody; give it as --secret {name}.")
    given |= named
    if unknown := settings.unknown_variables(given):
        raise ParameterError(unknown[0])
    found = dict(map(_secret, secrets))
    if both := sorted(given.keys() & found.keys()):
        raise ParameterError(f"{both[0]} is given as a variable and as a secret; leave one of them out.")
    return Space(id, hardware, given, found, bucket, private)


def write(space: Space, folder: Path) -> list[str]:
    """Write the Space's files into a folder that is empty or not there yet; returns their names. The program in it is
    asked whether it starts with these variables. `PublishError` where it does not."""
    names = _tracked()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PublishError(f"{folder} is there already; give a folder that is not there yet, or an empty one.")
        try:
            for name in names:
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(settings.ROOT / name, place)
            disk.write(folder / "README.md", _readme(space).encode())
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise PublishError(f"The Space cannot be written to {folder}: {disk.why(error, 'FOLDER')}") from error
    try:
        _try(space, folder)
    except PublishError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return [*names, "README.md"]


def calls(space: Space) -> dict[str, dict[str, Any]]:
    """What the hub's client is called with, by its method, in their order; secrets by value."""
    from huggingface_hub import Volume

    volumes = [Volume(type="bucket", source=space.bucket, mount_path=MOUNT)] if space.bucket else None
    create = dict(
        repo_id=space.id,
        repo_type="space",
        private=space.private,
        space_sdk="docker",
        space_hardware=space.hardware,
        space_variables=_pairs(space.variables),
        space_secrets=_pairs(space.secrets) or None,
        space_volumes=volumes,
    )
    upload = dict(
        repo_id=space.id, repo_type="space", delete_patterns="*", commit_message="The effective-depth laboratory"
    )
    bucket = {"create_bucket": dict(bucket_id=space.bucket, private=True, exist_ok=True)} if space.bucket else {}
    return bucket | {"create_repo": create, "upload_folder": upload}


def told(space: Space, folder: Path) -> list[str]:
    """The calls in words, a line each; of secrets their names."""
    lines = []
    for method, arguments in calls(space).items():
        shown = {name: value for name, value in arguments.items() if value is not None}
        if "space_secrets" in shown:
            shown["space_secrets"] = [f"{name} (from the environment)" for name in space.secrets]
        if "space_volumes" in shown:
            shown["space_volumes"] = [volume.to_dict() for volume in shown["space_volumes"]]
        if method == "upload_folder":
            shown["folder_path"] = str(folder)
        lines.append(f"{method}({', '.join(f'{name}={value!r}' for name, value in shown.items())})")
    return lines


def deploy(space: Space, folder: Path, api: Any = None) -> str:
    """Make the Space, or renew one that was deployed from here, with the files of `folder`; returns its address.
    `PublishError` says in one sentence why the hub does not take it."""
    from huggingface_hub import HfApi, get_token

    if api is None:
        token = get_token()
        if not token:
            raise PublishError(NO_TOKEN)
        _check_token(space, token)
        api = HfApi(token=token)
    asked = calls(space)
    try:
        if "create_bucket" in asked:
            api.create_bucket(**asked["create_bucket"])
        if api.repo_exists(space.id, repo_type="space"):
            _renew(space, api, asked["create_repo"])
        else:
            api.create_repo(**asked["create_repo"])
        api.upload_folder(folder_path=folder, **asked["upload_folder"])
    except PublishError:
        raise
    except Exception as error:
        raise PublishError(_plainly(space, error)) from None
    return f"https://huggingface.co/spaces/{space.id}"


NO_TOKEN = (
    "The hub needs to know who writes, and there is no token here; log in with `hf auth login`, or set HF_TOKEN to a "
    "token that may write."
)


def _renew(space: Space, api: Any, asked: Mapping[str, Any]) -> None:
    """Bring what a Space is made with to one that is there: its files are replaced afterwards."""
    there = {file.rfilename for file in api.space_info(space.id).siblings or ()}
    if there and OURS not in there:
        raise PublishError(
            f"There is a Space {space.id} already that was not deployed from here, and its files would be replaced; "
            "give another name, or delete it on the hub."
        )
    for name, value in space.variables.items():
        api.add_space_variable(space.id, name, value)
    for name, value in space.secrets.items():
        api.add_space_secret(space.id, name, value)
    if asked["space_volumes"]:
        api.set_space_volumes(space.id, asked["space_volumes"])
    api.request_space_hardware(space.id, space.hardware)


def _plainly(space: Space, error: Exception) -> str:
    """What the hub's client raised, as one sentence. Nothing of its text is told: it may quote the request."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    owner = space.id.partition("/")[0]
    if status == 402:
        return (
            f"The plan of {owner} does not allow this Space (a Docker Space needs a paid plan, and so does "
            f"{space.hardware}): change the plan on the hub, or serve the image elsewhere, as docs/deploy.md says."
        )
    if status in (401, 403):
        return (
            f"The hub does not let this token write for {owner} (status {status}): give one that may write there "
            "(HF_TOKEN, or `hf auth login`), or see whether the plan allows Docker Spaces."
        )
    if status is not None and status < 500:
        return f"The hub refuses the Space {space.id} with status {status}; look at its name, hardware and bucket."
    if status is not None:
        return f"The hub failed with status {status}; the same command goes on from here later."
    return (
        f"The hub does not answer, or its client failed ({type(error).__name__}); try the same command again where "
        "there is a network."
    )


def _check_id(what: str, id: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, not in its __all__

    try:
        validate_repo_id(id)
        if id.count("/") == 1:
            return
    except HFValidationError:
        pass
    raise ParameterError(f"{what} is called {id!r}; expected OWNER/NAME of letters, digits, '-', '_' and '.'.")


def _check_token(space: Space, token: str) -> None:
    """The token that deploys may write; a program that strangers use must not hold it."""
    if same := [name for name, value in space.secrets.items() if value == token]:
        raise PublishError(
            f"The secret {same[0]} is the very token that deploys, which may write; make a token that reads, set it as "
            f"SPACE_TOKEN, and give --secret {same[0]}=SPACE_TOKEN."
        )


def _secret(asked: str) -> tuple[str, str]:
    """A secret's name and its value in the environment. What stands behind "=" is not repeated: it may be a value."""
    name, equals, variable = asked.partition("=")
    if not VARIABLE.fullmatch(name) or (equals and not VARIABLE.fullmatch(variable)):
        raise ParameterError("--secret expects NAME, or NAME=VARIABLE with the name of an environment variable.")
    value = os.environ.get(variable or name, "")
    if not value:
        whose = "the variable given for it" if equals else "a variable of that name"
        raise ParameterError(f"The secret {name} is read from {whose}, and the environment has none; set it first.")
    return name, value


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value} for name, value in values.items()]


def _tracked() -> list[str]:
    """The files the image needs, as git knows them, that are here."""
    command = ["git", "-C", str(settings.ROOT), "ls-files", "-z", "--", *FILES]
    try:
        said = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        raise PublishError(
            f"{settings.ROOT} is no git checkout, which says what belongs to the program; deploy from a clone."
        ) from None
    names = [name for name in said.split("\0") if name and (settings.ROOT / name).is_file()]
    missing = [one for one in FILES if not any(PurePosixPath(name).is_relative_to(one) for name in names)]
    if missing:
        raise PublishError(f"{settings.ROOT} holds no {missing[0]} that git knows; deploy from a whole clone.")
    return names


def _readme(space: Space) -> str:
    owner, _, name = re.sub(r"[._]", "-", space.id.lower()).partition("/")
    title = json.dumps(settings.current().title, ensure_ascii=False)
    return README.format(title=title, port=PORT, address=f"https://{owner}-{name}.hf.space")


def _try(space: Space, folder: Path) -> None:
    """Ask the program in the folder what it makes of these variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(settings.PREFIX)}
    clean |= {name: value for name, value in space.variables.items() if name.startswith(settings.PREFIX)}
    asked = [sys.executable, "-B", "-m", "ed_core", "settings"]
    found = subprocess.run(asked, cwd=folder, env=clean, capture_output=True, text=True, errors="replace")
    if found.returncode:
        said = (found.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("ed_core: ")
        raise PublishError(f"The Space would not start with these variables: {said}")
