"""The process that speaks to the service: `main` reads plans as JSON lines and answers with JSON lines, the last of
which announces the bytes of the arrays that follow it.

What the service sends is unpickled here (nnsight reads it by `torch.load(weights_only=False)`), so whoever answers at
its address can run code in this process. It is started with an empty environment but the service's key and address,
and an empty folder as its home."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

POLL_SECONDS = 1.0
COMPARED = ("nnsight", "torch", "transformers")
SHIPPED = ("ed_core.remote.there", "ed_core.sweeps.metrics", "ed_core.models.identities")


def main() -> None:
    """Serve plans until the input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the answers
    head = json.loads(sys.stdin.readline())

    def tell(**told: Any) -> None:
        out.write(json.dumps(told).encode() + b"\n")
        out.flush()

    try:
        asks = _Asks(head)
    except Exception as error:
        tell(event="failed", kind="client", text=_said(error))
        return
    for line in sys.stdin:
        try:
            for told in asks.all(json.loads(line)):
                body = told.pop("body", b"")
                tell(**told)
                out.write(body)
                out.flush()
        except Exception as error:
            tell(event="failed", kind=_kind(error), text=_said(error))


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[-1]}"[:400] if len(lines) > 1 else lines[0][:400]


def _kind(error: BaseException) -> str:
    """What went wrong: the service is `absent`, `refused` the key, or `failed` in what it computed."""
    import httpx

    chain: list[BaseException] = [error, *filter(None, (error.__cause__, error.__context__))]
    for one in chain:
        if isinstance(one, httpx.HTTPStatusError):
            return "key" if one.response.status_code in (401, 403) else "failed"
        if isinstance(one, httpx.HTTPError):
            return "absent"
    return "failed"


def _named(name: str) -> type[Any]:
    """nnsight's class of models, for one that goes by this name at the service."""
    from nnsight.modeling.transformers import TransformersModel

    class Named(TransformersModel):  # type: ignore[misc]  # nnsight has no types
        def _remoteable_class(self) -> Any:
            return TransformersModel

        def _remoteable_model_key(self) -> str:
            """It is the hub's own spelling, so the hub is not asked for it."""
            return json.dumps({"repo_id": name, "revision": self.revision, "task": self.task})

    return Named


class _Asks:
    """One model at one service. `head`: the model's `folder`, its name at the service, and the service's `host`."""

    def __init__(self, head: dict[str, Any]):
        from nnsight import ndif

        from ..models import loading, permits
        from ..models.ref import Folder

        permits.as_owner()
        self.host, self.ndif, self.name = head["host"], ndif, head["name"]
        self.local = self.host == "local"
        here, sys.path[:] = list(sys.path), []
        ndif.pull_env()  # finds nothing: of the modules here only those below are shipped
        sys.path[:] = here
        for name in SHIPPED:
            module = importlib.import_module(name)
            ndif.register(module)
            for known, value in list(vars(module).items()):
                if getattr(value, "__module__", "").startswith("jaxtyping"):
                    delattr(module, known)  # of annotations alone, and unknown there
        loading.quiet()
        if self.local:
            hf, tokenizer, *_ = loading.load(Folder(head["folder"]))
            self.model = _named(self.name)(hf, task="text-generation", tokenizer=tokenizer)
        else:
            _, tokenizer, *_ = loading.skeleton(Folder(head["folder"]))
            self.model = _named(self.name)(head["folder"], task="text-generation", tokenizer=tokenizer)  # no weights
        self.model.repo_id, self.model.args = self.name, (self.name,)  # the folder's name is not sent

    def all(self, plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What there is to say of one plan, the arrays last."""
        if self.local:
            yield {"event": "versions", "versions": self._versions({})}
            yield from self._sent(_locally(self.model, plan))
            return
        if "deployments" not in (known := self.ndif._get("/status")):
            raise RuntimeError("its status names no deployments")
        rows = known["deployments"].values()
        there = {str(row.get("repo_id")) for row in rows if isinstance(row, dict)}
        if self.name not in there:
            yield {"event": "failed", "kind": "model", "text": ", ".join(sorted(there)[:8])[:400]}
            return
        versions = self._versions(self.ndif.get_remote_env(force_refresh=True))
        yield {"event": "versions", "versions": versions}
        yield from self._asked(plan)

    def _versions(self, there: dict[str, Any]) -> dict[str, list[str]]:
        """By name, what is installed here, and there; "" where it is not said."""
        from importlib.metadata import version

        packages = there.get("packages", {})
        found = {name: [version(name), str(packages.get(name, ""))[:40]] for name in COMPARED}
        python = str(there.get("python_version", "")).split()
        return found | {"python": [sys.version.split()[0], python[0][:40] if python else ""]}

    def _asked(self, plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """One session, sent once and asked after until it is done."""
        session = _sent_off(self.model, plan, self.host)
        backend, before = session.backend, ""
        backend.display = said = _Said()
        while (found := backend(session)) is None:
            if said.text != before:
                before = said.text
                yield {"event": "status", "text": before}
            time.sleep(POLL_SECONDS)
        yield from self._sent(found["found"])

    def _sent(self, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The arrays as bytes behind their names, types and shapes; texts as they are."""
        import torch

        arrays = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
        texts = {str(name): str(value)[:40] for name, value in found.items() if isinstance(value, str)}
        plain = {name: value.detach().cpu().contiguous().numpy() for name, value in arrays.items()}
        shapes = [[str(name), str(x.dtype), list(x.shape)] for name, x in plain.items()]
        yield {"event": "done", "arrays": shapes, "texts": texts, "body": b"".join(x.tobytes() for x in plain.values())}


class _Said:
    """In the place of nnsight's display: the last status, with the place in the queue where the service tells it."""

    enabled, text = False, "RECEIVED"

    def update(self, response: Any) -> None:
        self.text = f"{response.status.value} {response.description or ''}".strip()[:200]


def _locally(model: Any, plan: dict[str, Any]) -> Any:
    from nnsight import save

    from .there import measured

    with model.session(remote="local"):
        found = save(measured(model, plan))
    return found


def _sent_off(model: Any, plan: dict[str, Any], host: str) -> Any:
    from nnsight import save

    from .there import measured

    with model.session(remote=host, blocking=False) as session:
        found = save(measured(model, plan))  # noqa: F841 - the name under which it comes back
    return session


if __name__ == "__main__":
    main()
