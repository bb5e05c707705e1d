"""The process that speaks to the service: `main` answers one question with a sealed file of arrays, or a sentence.

What the service sends is unpickled here (nnsight reads it by `torch.load(weights_only=False)`), so a server at
its address can run code in this process. It is started with an empty environment but the service's key and address,
and an empty folder as its home."""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import ServiceFailed
from ..files import seal
from ..models.remote import KEY
from .process import ANSWER, ANSWERED, FAILED, QUESTION, STATUS

POLL_SECONDS = 1.0
COMPARED = ("nnsight", "torch", "transformers")
SHIPPED = ("ed_core.remote.there", "ed_core.sweeps.metrics", "ed_core.models.identities")


def main() -> None:
    """Answer the question file in the current folder, by a file with the answer or one with a sentence on what
    failed."""
    question = json.loads(Path(QUESTION).read_text(encoding="utf-8"))
    try:
        data = _answer(**question)
    except Exception as error:
        Path(FAILED).write_text(_sentence(error, question["name"], question["host"]), encoding="utf-8")
    else:
        Path(ANSWERED).write_bytes(data)


def _sentence(error: Exception, name: str, host: str) -> str:
    """Return a sentence on what went wrong: the service is absent, refused the key, or failed in what it computed."""
    import httpx

    if isinstance(error, ServiceFailed):
        return str(error)
    why = (str(error).strip().splitlines() or [type(error).__name__])[-1][:200].rstrip(".")
    for one in filter(None, (error, error.__cause__, error.__context__)):
        if isinstance(one, httpx.HTTPStatusError) and one.response.status_code in (401, 403):
            return f"The service at {host} refused the key ({why}); check {KEY}, or get a new one at https://ndif.us."
        if isinstance(one, httpx.HTTPError) and not isinstance(one, httpx.HTTPStatusError):
            return f"The service at {host} does not answer ({why}); try again later, or open a model here."
    return f"{name} was not measured at {host}: {why}; nothing was kept."


def _answer(name: str, folder: str, host: str, plan: dict[str, Any]) -> bytes:
    """Return the sealed answer to a plan, measured on the model `name`. `folder`: of the model's config and tokenizer,
    and with host `local` of its weights."""
    from nnsight import ndif

    from .. import settings
    from ..models import loading, permits
    from ..models.ref import Folder

    permits.as_owner()
    path, sys.path[:] = list(sys.path), []
    ndif.pull_env()  # with an empty path it finds nothing: of the modules here only those below are shipped
    sys.path[:] = path
    for module in map(importlib.import_module, SHIPPED):
        ndif.register(module)
        for known, value in list(vars(module).items()):
            if getattr(value, "__module__", "").startswith("jaxtyping"):
                delattr(module, known)  # used in annotations only, and not installed there
    loading.quiet()
    here = host == settings.LOCAL
    hf, tokenizer, *_ = (loading.load if here else loading.skeleton)(Folder(folder))  # a skeleton has no weights
    model = _class_named(name)(hf if here else folder, task="text-generation", tokenizer=tokenizer)
    model.repo_id, model.args = name, (name,)  # the folder's name is not sent
    if here:
        return _sealed(_run(model, plan, host), _versions({}))
    if "deployments" not in (known := ndif._get("/status")):
        raise RuntimeError("its status names no deployments")
    served = {str(row.get("repo_id")) for row in known["deployments"].values() if isinstance(row, dict)}
    if name not in served:
        some = ", ".join(sorted(served)[:8]) or "there are none"
        raise ServiceFailed(
            f"{name} is not among the models at {host} now ({some}); take one of these, or try again later."
        )
    versions = _versions(ndif.get_remote_env(force_refresh=True))
    session = _run(model, plan, host)
    session.backend.display = _Status()
    while (result := session.backend(session)) is None:
        time.sleep(POLL_SECONDS)
    return _sealed(result["found"], versions)


def _class_named(name: str) -> type[Any]:
    """Return nnsight's class of models, made to ask the service for the model with this name."""
    from nnsight.modeling.transformers import TransformersModel

    class Named(TransformersModel):  # type: ignore[misc]  # nnsight has no types
        def _remoteable_class(self) -> Any:
            return TransformersModel

        def _remoteable_model_key(self) -> str:
            """Return the model's key at the service; `name` is the hub's own spelling, so the hub is not asked for
            it."""
            return json.dumps({"repo_id": name, "revision": self.revision, "task": self.task})

    return Named


def _versions(there: dict[str, Any]) -> dict[str, list[str]]:
    """Return, by package, [version here, version at the service]; `ServiceFailed` where the two nnsights do not
    understand each other."""
    packages, python = there.get("packages", {}), str(there.get("python_version", "")).split()
    known = {name: [version(name), str(packages.get(name, ""))[:40]] for name in COMPARED}
    own, theirs = known["nnsight"]
    if theirs and own.split(".")[:2] != theirs.split(".")[:2]:
        raise ServiceFailed(
            f"The service runs nnsight {theirs}, and {own} is installed here, which does not read the other's "
            f"programs; install nnsight=={'.'.join(theirs.split('.')[:2])}.*."
        )
    return known | {"python": [sys.version.split()[0], python[0][:40] if python else ""]}


def _sealed(result: dict[str, Any], versions: dict[str, list[str]]) -> bytes:
    """Return measured tensors, dtype and versions as the bytes of an answer file."""
    import torch

    arrays = {name: value.cpu().numpy() for name, value in result.items() if isinstance(value, torch.Tensor)}
    return seal(ANSWER, {"dtype": result["dtype"], "torch": result["torch"][:40], "versions": versions}, arrays)


class _Status:
    """A substitute for nnsight's display: keeps the last status, with the place in the queue where the service gives
    it."""

    enabled = False

    def update(self, response: Any) -> None:
        """Write the status of a response into the status file."""
        Path(STATUS).write_text(f"{response.status.value} {response.description or ''}"[:200], encoding="utf-8")


def _run(model: Any, plan: dict[str, Any], host: str) -> Any:
    """Return what was measured here, or the session that goes on at the service."""
    from nnsight import save

    from .there import measured

    here = host == "local"
    with model.session(remote=host, blocking=here) as session:
        found = save(measured(model, plan))
    return found if here else session


if __name__ == "__main__":
    main()
