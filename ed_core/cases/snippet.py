"""The command line that computes a case study's numbers again. Torch-free; nothing is run here.

A stranger's words are quoted, for the shell by `shlex`, in comments by `ascii`; prompts are JSON in ASCII."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import fields

from ..models.ref import Folder, ModelRef
from ..models.remote import KEY, SERVED
from ..models.sizes import PRECISIONS
from ..probes import Probe
from ..prompts import to_jsonl
from ..results.aggregate import probe_of
from ..types import ModelSpec, Prompt, command_line
from .case_study import Case, View


def snippet(case: Case) -> str:
    """Return the commands that compute a case study again and write `case-<id>.npz` (of several views
    `case-<id>-1.npz`, …). What another machine may lack (a folder, a device) is a comment above them."""
    views = case.views
    names = [f"case-{case.id}" + (f"-{i}" if len(views) > 1 else "") for i in range(1, len(views) + 1)]
    notes = dict.fromkeys(note for view in views for note in _notes(view))
    lines = [f"# {note}" for note in notes]
    for view, name in zip(views, names):
        prompt = json.dumps(json.loads(to_jsonl([view.prompts[0]])), ensure_ascii=True)
        lines.append(f"printf '%s\\n' {shlex.quote(prompt)} > {name}.jsonl")
        lines.append(run_command(_probes(view), view.models[0], f"{name}.jsonl", f"{name}.npz", no_cache=True))
    return "\n".join(lines)


def opening(model: ModelSpec) -> dict[str, str | int]:
    """Return the options of a command that open a model, without those at their defaults. A checkpoint that is stored
    quantized opens as "auto"."""
    if model.precision == SERVED:
        return {"model": model.source}
    options: dict[str, str | int] = {
        "model": f"{model.source}@{model.revision}" if model.revision else model.source,
        "precision": model.precision if model.precision in PRECISIONS else "auto",
        "device": model.device,
    }
    if model.adapter:
        options["adapter"] = model.adapter
    if model.control:
        options |= {"control": model.control, "seed": model.control_seed}
    return options


def run_command(probes: Iterable[Probe], model: ModelSpec, prompts: str, out: str, **options: object) -> str:
    """Return the `run` command of these probes for the shell, with every parameter that is not at its default, an
    option a line. `prompts`, `out`: its files."""
    probes = list(probes)
    settings = tuple(f"{p.name}.{name}={_text(value)}" for p in probes for name, value in p.settings().items())
    how = {**options, **opening(model), "prompts": prompts, "out": out, "set": settings}
    return command_line("run", *(p.name for p in probes), between=" \\\n  ", **how)


def _probes(view: View) -> list[Probe]:
    """Return the probes of a view's results, with their parameters."""
    return [probe_of(item.result) for item in view.by_probe.values()]


def _notes(view: View) -> Iterator[str]:
    """Yield what another machine needs in its place, one line each, in ASCII."""
    model = view.models[0]
    if model.precision == SERVED:
        yield f"Measured remotely, {model.device}: it takes a key in {KEY}."
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


def _text(value: object) -> str:
    """Return a parameter's value for the command line."""
    if isinstance(value, Prompt):
        return to_jsonl([value]).strip()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
