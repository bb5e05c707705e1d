"""What makes a case study's numbers again: a command line, and Python for a notebook. Torch-free; nothing is run here.

Everything a stranger wrote is quoted, for the shell by `shlex`, for Python by `repr`; prompts travel as JSON in ASCII.
"""
from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from .aggregate import probe_of
from .cases import Case, View
from .errors import CaseError
from .prompts import to_jsonl
from .types import ModelSpec, ProbeResult

SAYABLE = ("source", "revision", "content_hash", "precision", "device")  # of a model, what the command line and `resolve` can ask for


@dataclass(frozen=True)
class Snippet:
    """`shell`: commands that write `case-<id>.npz` (with several views `case-<id>-1.npz`, …); `python`: fills `results`, a dict by probe per
    view."""

    shell: str
    python: str


def snippet(case: Case) -> Snippet:
    """How to reproduce a case study; a `CaseError` where the command line has no words for it (an adapter, a control, two models at once)."""
    views = case.views
    for view in views:
        _check(view)
    names = [f"case-{case.id}" + (f"-{i}" if len(views) > 1 else "") for i in range(1, len(views) + 1)]
    shell = "\n".join(_shell(view, name) for view, name in zip(views, names))
    return Snippet(shell, PYTHON.format(id=case.id, views=",\n".join(map(_python, views))))


def _check(view: View) -> None:
    if len(view.models) != 1 or len(view.prompts) != 1:
        raise CaseError("This case study compares several models or prompts in one result; no command line makes that yet.")
    plain = ModelSpec(**{name: getattr(view.models[0], name) for name in SAYABLE})
    if view.models[0] != plain:
        raise CaseError("This case study's model has an adapter, a control or an attention of its own; no command line says that yet.")


def _shell(view: View, name: str) -> str:
    model, prompt = view.models[0], view.prompts[0]
    line = json.dumps(json.loads(to_jsonl([prompt])), ensure_ascii=True)
    settings = [f"--set {shlex.quote(f'{probe}.{key}={_value(value)}')}" for probe, item in view.by_probe.items() for key, value in _settings(item.result).items()]
    words = [
        f"python -m ed_core run {' '.join(view.by_probe)} --no-cache",
        f"--model={shlex.quote(model.source)} --dtype={shlex.quote(model.precision)} --device={shlex.quote(model.device)}",
        f"--prompts {name}.jsonl --out {name}.npz",
        *settings,
    ]
    return f"printf '%s\\n' {shlex.quote(line)} > {name}.jsonl\n" + " \\\n  ".join(words)


def _python(view: View) -> str:
    model, prompt = view.models[0], view.prompts[0]
    asked = ",\n".join(f"        {ascii(probe)}: {ascii(_settings(item.result))}" for probe, item in view.by_probe.items())
    return (
        f"    ({ascii(model.source)}, {ascii(model.precision)}, {ascii(model.device)}, {ascii(model.content_hash or model.revision)},\n"
        f"     Prompt({ascii(prompt.text)}, {ascii(prompt.answer)}, template={prompt.template!r}, special_tokens={prompt.special_tokens}), {{\n{asked},\n    }})"
    )


def _settings(result: ProbeResult) -> dict:
    return probe_of(result).settings()


def _value(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)


PYTHON = """\
# Case study {id}, computed anew
from ed_core import compute
from ed_core.probes import find
from ed_core.sources import resolve
from ed_core.types import Prompt

views = [
{views},
]
models, results = compute.Models(), []
for source, precision, device, identity, prompt, probes in views:
    spec = resolve(source, precision, device)
    if identity not in (spec.content_hash, spec.revision):
        print("Other weights than the case study's:", source)
    requests = {{name: find(name).make(parameters).request(spec, prompt) for name, parameters in probes.items()}}
    results.append({{name: compute.run(models.get(spec), request) for name, request in requests.items()}})
for result in results[0].values():
    print(result.request.probe, {{name: m.values.shape for name, m in result.measures.items()}})
"""
