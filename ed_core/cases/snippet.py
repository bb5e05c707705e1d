"""What makes a case study's numbers again: a command line, and Python for a notebook. Torch-free; nothing is run here.

Everything a stranger wrote is quoted, for the shell by `shlex`, for Python and in comments by `ascii`; prompts travel
as JSON in ASCII."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from ..errors import CaseError
from ..models.ref import Folder, ModelRef
from ..models.remote import KEY, SERVED
from ..models.sizes import PRECISIONS
from ..probes import Probe
from ..prompts import to_jsonl
from ..results.aggregate import probe_of
from ..types import ModelSpec, Prompt, command_line
from .case_study import Case, View


@dataclass(frozen=True)
class Snippet:
    """`shell`: commands that write `case-<id>.npz` (with several views `case-<id>-1.npz`, …); `python`: fills
    `results`, a dict by probe per view. What another machine may lack (a folder, a device) stands above each in a
    comment."""

    shell: str
    python: str


def snippet(case: Case) -> Snippet:
    """How to reproduce a case study; a `CaseError` where the command line has no words for it (two models in
    one result, an attention implementation of its own)."""
    views = case.views
    for view in views:
        _check(view)
    names = [f"case-{case.id}" + (f"-{i}" if len(views) > 1 else "") for i in range(1, len(views) + 1)]
    notes = "".join(f"# {note}\n" for note in dict.fromkeys(note for view in views for note in _notes(view)))
    shell = "\n".join(_shell(view, name) for view, name in zip(views, names))
    classes = {type(probe_of(item.result)).__name__ for view in views for item in view.by_probe.values()}
    code = ",\n".join(map(_python, views))
    return Snippet(
        notes + shell, PYTHON.format(id=case.id, notes=notes, names=", ".join(sorted(classes | {"Prompt"})), views=code)
    )


def opening(model: ModelSpec) -> dict[str, str | int]:
    """How a model is opened, by the names of `ed_core.open`; what stands at its default is left out. A checkpoint
    that is stored quantized in a way of its own opens as "auto"."""
    if model.precision == SERVED:
        return {"source": model.source}
    asked: dict[str, str | int] = {
        "source": f"{model.source}@{model.revision}" if model.revision else model.source,
        "precision": model.precision if model.precision in PRECISIONS else "auto",
        "device": model.device,
    }
    if model.adapter:
        asked["adapter"] = model.adapter
    if model.control:
        asked |= {"control": model.control, "control_seed": model.control_seed}
    return asked


def run_command(probes: Iterable[Probe], model: ModelSpec, prompts: str, out: str, **options: object) -> str:
    """`run` of these probes from the shell, with every parameter that does not stand at its default, an option a
    line."""
    probes = list(probes)
    asked = {NAMES.get(name, name): value for name, value in opening(model).items()}
    settings = tuple(f"{p.name}.{name}={text_of(value)}" for p in probes for name, value in p.settings().items())
    files = {"prompts": prompts, "out": out}
    return command_line("run", *(p.name for p in probes), between=" \\\n  ", **options, **asked, **files, set=settings)


def _check(view: View) -> None:
    if len(view.models) != 1:
        raise CaseError("This case study compares several models in one result; no command line makes that yet.")
    if view.models[0].attention != "default":
        raise CaseError(
            "This case study's model has an attention implementation of its own; no command line says that yet."
        )


def _notes(view: View) -> Iterator[str]:
    """What is to be put in its place on another machine, one line each, in ASCII."""
    model = view.models[0]
    if model.precision == SERVED:
        yield f"Measured elsewhere, {model.device}: it takes a key in {KEY}, and in Python ED_NDIF=true."
        return
    if isinstance(ModelRef.of(model), Folder):
        yield (
            f"The model lay on the machine where this was kept, as {model.source!a} "
            f"(SHA-256 {model.content_hash[:12]}): give the path of yours."
        )
    if model.adapter:
        yield f"Its adapter was the folder {model.adapter!a} on that machine (SHA-256 {model.adapter_hash[:12]})."
    if model.device != "cpu":
        yield f"Measured on the device {model.device!a}; on another the last digits differ."
    for item in view.by_probe.values():
        probe = probe_of(item.result)
        for f in fields(probe):
            if f.metadata["file"] and (path := getattr(probe, f.name)) != f.default:
                yield f"{probe.name}.{f.name} was the file {path!a} on that machine."


def _shell(view: View, name: str) -> str:
    line = json.dumps(json.loads(to_jsonl([view.prompts[0]])), ensure_ascii=True)
    probes = [probe_of(item.result) for item in view.by_probe.values()]
    command = run_command(probes, view.models[0], f"{name}.jsonl", f"{name}.npz", no_cache=True)
    return f"printf '%s\\n' {shlex.quote(line)} > {name}.jsonl\n{command}"


def _python(view: View) -> str:
    model, prompt = view.models[0], view.prompts[0]
    identity = (model.content_hash or model.revision, model.adapter_hash)
    probes = [
        f"        {type(probe_of(item.result)).__name__}"
        f"({', '.join(f'{name}={value!a}' for name, value in probe_of(item.result).settings().items())}),\n"
        for item in view.by_probe.values()
    ]
    return (
        f"    ({opening(model)!a}, {identity!a},\n"
        f"     Prompt({prompt.text!a}, {prompt.answer!a}, template={prompt.template!r}, "
        f"special_tokens={prompt.special_tokens}), [\n{''.join(probes)}    ])"
    )


def text_of(value: object) -> str:
    """A parameter's value as the command line and a link take it."""
    return (
        to_jsonl([value]).strip()
        if isinstance(value, Prompt)
        else ",".join(map(str, value))
        if isinstance(value, tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


NAMES = {"source": "model", "control_seed": "seed"}  # what the command line calls what `ed_core.open` calls otherwise
PYTHON = """\
# Case study {id}, computed anew
{notes}import ed_core
from ed_core import {names}

views = [
{views},
]
results = []
for source, identity, prompt, probes in views:
    model = ed_core.open(**source)
    if identity != (model.spec.content_hash or model.spec.revision, model.spec.adapter_hash):
        print("Other weights than the case study's:", source["source"])
    results.append({{probe.name: model.run(probe, prompt, fresh=True) for probe in probes}})
for by_probe in results:
    for result in by_probe.values():
        print(result)
"""
