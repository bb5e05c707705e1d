"""A case study's numbers again: the command line that computes them, and Python for a notebook. Torch-free; nothing is
run here.

A stranger's words are quoted, for the shell by `shlex`, for Python and in comments by `ascii`; prompts are JSON in
ASCII."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from ..models.ref import Folder, ModelRef
from ..models.remote import KEY, SERVED
from ..models.sizes import PRECISIONS
from ..probes import Probe
from ..prompts import to_jsonl
from ..results.aggregate import probe_of
from ..types import ModelSpec, Prompt, command_line
from .case_study import Case, View

NAMES = {"source": "model", "control_seed": "seed"}  # an argument of `ed_core.open`: the option of that meaning


@dataclass(frozen=True)
class Snippet:
    """`shell`: commands that write `case-<id>.npz` (of several views `case-<id>-1.npz`, …); `python`: code that fills
    `results`, a dict by probe for each view. What another machine may lack (a folder, a device) is a comment above."""

    shell: str
    python: str


def snippet(case: Case) -> Snippet:
    """Return the commands and the Python that compute a case study again."""
    views = case.views
    names = [f"case-{case.id}" + (f"-{i}" if len(views) > 1 else "") for i in range(1, len(views) + 1)]
    notes = "".join(f"# {note}\n" for note in dict.fromkeys(note for view in views for note in _notes(view)))
    classes = {type(probe).__name__ for view in views for probe in _probes(view)}
    python = PYTHON.format(
        id=case.id, notes=notes, names=", ".join(sorted(classes | {"Prompt"})), views=",\n".join(map(_python, views))
    )
    return Snippet(notes + "\n".join(map(_shell, views, names)), python)


def opening(model: ModelSpec) -> dict[str, str | int]:
    """Return the arguments of `ed_core.open` that open a model, without those at their defaults. A checkpoint that is
    stored quantized opens as "auto"."""
    if model.precision == SERVED:
        return {"source": model.source}
    arguments: dict[str, str | int] = {
        "source": f"{model.source}@{model.revision}" if model.revision else model.source,
        "precision": model.precision if model.precision in PRECISIONS else "auto",
        "device": model.device,
    }
    if model.adapter:
        arguments["adapter"] = model.adapter
    if model.control:
        arguments |= {"control": model.control, "control_seed": model.control_seed}
    return arguments


def run_command(probes: Iterable[Probe], model: ModelSpec, prompts: str, out: str, **options: object) -> str:
    """Return the `run` command of these probes for the shell, with every parameter that is not at its default, an
    option a line. `prompts`, `out`: its files."""
    probes = list(probes)
    named = {NAMES.get(name, name): value for name, value in opening(model).items()}
    settings = tuple(f"{p.name}.{name}={_text(value)}" for p in probes for name, value in p.settings().items())
    files = {"prompts": prompts, "out": out}
    return command_line("run", *(p.name for p in probes), between=" \\\n  ", **options, **named, **files, set=settings)


def _probes(view: View) -> list[Probe]:
    """Return the probes of a view's results, with their parameters."""
    return [probe_of(item.result) for item in view.by_probe.values()]


def _notes(view: View) -> Iterator[str]:
    """Yield what another machine needs in its place, one line each, in ASCII."""
    model = view.models[0]
    if model.precision == SERVED:
        yield f"Measured remotely, {model.device}: it takes a key in {KEY}, and in Python ED_NDIF=true."
        return
    if isinstance(ModelRef.of(model), Folder):
        sha = f"SHA-256 {model.content_hash[:12]}"
        yield f"The model was the folder {model.source!a} when this was kept ({sha}): give the path of yours."
    if model.adapter:
        yield f"Its adapter was the folder {model.adapter!a} (SHA-256 {model.adapter_hash[:12]})."
    if model.device != "cpu":
        yield f"Measured on the device {model.device!a}; on another the last digits differ."
    for probe in _probes(view):
        for f in fields(probe):
            if f.metadata["file"] and (path := getattr(probe, f.name)) != f.default:
                yield f"{probe.name}.{f.name} was the file {path!a}."


def _shell(view: View, name: str) -> str:
    """Return the shell lines that compute a view again; `name`: of its files, without ending."""
    line = shlex.quote(json.dumps(json.loads(to_jsonl([view.prompts[0]])), ensure_ascii=True))
    command = run_command(_probes(view), view.models[0], f"{name}.jsonl", f"{name}.npz", no_cache=True)
    return f"printf '%s\\n' {line} > {name}.jsonl\n{command}"


def _python(view: View) -> str:
    """Return the Python expression of a view, for the list in `PYTHON`."""
    model, prompt = view.models[0], view.prompts[0]
    calls = (
        f"{type(probe).__name__}({', '.join(f'{name}={value!a}' for name, value in probe.settings().items())})"
        for probe in _probes(view)
    )
    return VIEW.format(
        opening=ascii(opening(model)),
        identity=ascii((model.content_hash or model.revision, model.adapter_hash)),
        prompt=f"{prompt.text!a}, {prompt.answer!a}, template={prompt.template!r}, "
        f"special_tokens={prompt.special_tokens}",
        probes="".join(f"        {call},\n" for call in calls),
    )


def _text(value: object) -> str:
    """Return a parameter's value for the command line."""
    if isinstance(value, Prompt):
        return to_jsonl([value]).strip()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


VIEW = """\
    ({opening}, {identity},
     Prompt({prompt}), [
{probes}    ])"""
PYTHON = """\
# Case study {id}, computed again
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
