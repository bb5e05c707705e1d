"""The process that speaks to the service: `main` reads plans as JSON lines and answers with JSON lines, the last of
which announces the bytes of a sealed file of arrays.

What the service sends is unpickled here (nnsight reads it by `torch.load(weights_only=False)`), so a server at
its address can run code in this process. It is started with an empty environment but the service's key and address,
and an empty folder as its home."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from ..files import seal
from .process import ANSWER

POLL_SECONDS = 1.0
COMPARED = ("nnsight", "torch", "transformers")
SHIPPED = ("ed_core.remote.there", "ed_core.sweeps.metrics", "ed_core.models.identities")
Message = tuple[dict[str, Any], bytes]


def main() -> None:
    """Answer plans until the input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get among the answers
    session: _Session | None = None
    for line in sys.stdin:
        try:
            session = session or _Session(**json.loads(sys.argv[-1]))
            for message, body in session.answer(json.loads(line)):
                out.write(json.dumps(message).encode() + b"\n" + body)
                out.flush()
        except Exception as error:
            failed = {"event": "failed", "kind": _kind(error), "text": _last_line(error)}
            out.write(json.dumps(failed).encode() + b"\n")
            out.flush()


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[-1]}"[:400] if len(lines) > 1 else lines[0][:400]


def _kind(error: BaseException) -> str:
    """What went wrong: the service is `absent`, refused the `key`, or `failed` in what it computed."""
    import httpx

    for one in filter(None, (error, error.__cause__, error.__context__)):
        if isinstance(one, httpx.HTTPStatusError):
            return "key" if one.response.status_code in (401, 403) else "failed"
        if isinstance(one, httpx.HTTPError):
            return "absent"
    return "failed"


def _class_named(name: str) -> type[Any]:
    """nnsight's class of models, for one with this name at the service."""
    from nnsight.modeling.transformers import TransformersModel

    class Named(TransformersModel):  # type: ignore[misc]  # nnsight has no types
        def _remoteable_class(self) -> Any:
            return TransformersModel

        def _remoteable_model_key(self) -> str:
            """It is the hub's own spelling, so the hub is not asked for it."""
            return json.dumps({"repo_id": name, "revision": self.revision, "task": self.task})

    return Named


class _Session:
    """One model at one service. `folder`: of its config and tokenizer, and with host `local` of its weights."""

    def __init__(self, folder: str, name: str, host: str):
        from nnsight import ndif

        from ..models import loading, permits
        from ..models.ref import Folder

        permits.as_owner()
        self.ndif, self.name, self.host = ndif, name, host
        path, sys.path[:] = list(sys.path), []
        ndif.pull_env()  # with an empty path it finds nothing: of the modules here only those below are shipped
        sys.path[:] = path
        for module in map(importlib.import_module, SHIPPED):
            ndif.register(module)
            for known, value in list(vars(module).items()):
                if getattr(value, "__module__", "").startswith("jaxtyping"):
                    delattr(module, known)  # used in annotations only, and not installed there
        loading.quiet()
        load = loading.load if host == "local" else loading.skeleton  # which has no weights
        hf, tokenizer, *_ = load(Folder(folder))
        self.model = _class_named(name)(hf if host == "local" else folder, task="text-generation", tokenizer=tokenizer)
        self.model.repo_id, self.model.args = name, (name,)  # the folder's name is not sent

    def answer(self, plan: dict[str, Any]) -> Iterator[Message]:
        """The messages that answer a plan, the arrays last."""
        if self.host == "local":
            yield {"event": "versions", "versions": self._versions({})}, b""
            yield _sealed(_run_here(self.model, plan))
            return
        if "deployments" not in (known := self.ndif._get("/status")):
            raise RuntimeError("its status names no deployments")
        served = {str(row.get("repo_id")) for row in known["deployments"].values() if isinstance(row, dict)}
        if self.name not in served:
            yield {"event": "failed", "kind": "model", "text": ", ".join(sorted(served)[:8])[:400]}, b""
            return
        versions = self._versions(self.ndif.get_remote_env(force_refresh=True))
        yield {"event": "versions", "versions": versions}, b""
        session = _send(self.model, plan, self.host)
        session.backend.display = status = _Status()
        before = ""
        while (result := session.backend(session)) is None:
            if status.text != before:
                before = status.text
                yield {"event": "status", "text": before}, b""
            time.sleep(POLL_SECONDS)
        yield _sealed(result["found"])

    def _versions(self, there: dict[str, Any]) -> dict[str, list[str]]:
        """By name, the version here and the one there; "" where it is unknown."""
        packages, python = there.get("packages", {}), str(there.get("python_version", "")).split()
        known = {name: [version(name), str(packages.get(name, ""))[:40]] for name in COMPARED}
        return known | {"python": [sys.version.split()[0], python[0][:40] if python else ""]}


def _sealed(result: dict[str, Any]) -> Message:
    import torch

    arrays = {name: value.cpu().numpy() for name, value in result.items() if isinstance(value, torch.Tensor)}
    data = seal(ANSWER, {name: str(result[name])[:40] for name in ("dtype", "torch")}, arrays)
    return {"event": "done", "bytes": len(data)}, data


class _Status:
    """In place of nnsight's display: the last status, with the place in the queue where the service gives it."""

    enabled, text = False, "RECEIVED"

    def update(self, response: Any) -> None:
        self.text = f"{response.status.value} {response.description or ''}".strip()[:200]


def _run_here(model: Any, plan: dict[str, Any]) -> Any:
    from nnsight import save

    from .there import measured

    with model.session(remote="local"):
        found = save(measured(model, plan))
    return found


def _send(model: Any, plan: dict[str, Any], host: str) -> Any:
    from nnsight import save

    from .there import measured

    with model.session(remote=host, blocking=False) as session:
        found = save(measured(model, plan))  # noqa: F841 - the name under which it comes back
    return session


if __name__ == "__main__":
    main()
