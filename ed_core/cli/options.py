"""Options that several commands have, in groups. A command's signature is its help: `Annotated` types with typer's
options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from ..api import model as notebook
from ..models.bundled import default_set
from ..models.ref import ModelRef

MODEL = "A bundled name, a folder, a GGUF file or a hub id"


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the fields of each dataclass among its parameters as options of their own."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters.values() if is_dataclass(p.annotation)}

    @wraps(command)
    def flat(**given: Any) -> Any:
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        return command(**made, **given)

    options = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in parameters.values()
        for one in (inspect.signature(groups[p.name], eval_str=True).parameters.values() if p.name in groups else [p])
    ]
    flat.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return flat


def named_precision(text: str) -> str:
    """Return the short name of a precision, "auto" included; the library's long names are known too. Raises
    `typer.BadParameter` for others."""
    from ..models.sizes import PRECISIONS

    if text != "auto" and text not in PRECISIONS:
        raise typer.BadParameter(f"{text!r}; expected auto or one of {', '.join(PRECISIONS)}.")
    return PRECISIONS.get(text, text)


def control_seed(control: str, seed: int | None, prefix: str = "") -> int:
    """Return the seed of a control, 0 unless given; refuse a seed without a control."""
    if seed is not None and not control:
        raise typer.BadParameter(f"--{prefix}seed needs --{prefix}control untrained or --{prefix}control shuffled.")
    return seed or 0


Model = Annotated[str, typer.Argument(help=f"{MODEL}.")]
ModelOption = Annotated[str, typer.Option("--model", help=f"{MODEL}.")]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", "--dtype", parser=named_precision, metavar="P", help="auto, fp32, bf16, fp16, int8 or 4bit."
    ),
]
Device = Annotated[
    str,
    typer.Option(help="auto (a GPU where there is one), cpu, cuda (as many GPUs as it takes), cuda:1 or mps."),
]
Adapter = Annotated[str, typer.Option(metavar="FOLDER", help="A LoRA adapter to merge into the weights.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Most memory beyond the model, like 500M or 2G.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be computed and what it takes, and stop.")]


@dataclass(frozen=True)
class Opening:
    """How a model is opened."""

    precision: Precision = "fp32"
    device: Device = "auto"
    adapter: Adapter = ""
    offload: Annotated[str, typer.Option(metavar="FOLDER", help="Where weights go that fit into no memory.")] = ""
    control: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="A copy instead of the model: untrained (random weights) or shuffled (layers)."
        ),
    ] = ""
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Which copy (0 unless given).")] = None

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `ed_core.open`."""
        given = asdict(self)
        return given | {"control_seed": control_seed(self.control, given.pop("seed"))}

    def ref(self, model: str) -> ModelRef:
        """Return the model of this name, opened as the options say; which precision `auto` chose is printed on
        stderr."""
        ref = notebook.ref_of(model, **self.arguments())
        if ref.why:
            print(f"ed_core: precision {ref.why}", file=sys.stderr)
        return ref


@dataclass(frozen=True)
class OnSet:
    """The model and prompts that claims and cards are about."""

    model: ModelOption
    set: Annotated[
        str,
        typer.Option(
            "--set",
            help="A bundled prompt set, or a .jsonl, .json, .csv or .parquet (text, and where known answer, level, "
            "pair, form); the model's own set unless given.",
        ),
    ] = ""
    also: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="Another model of the family; repeatable.")
    ] = None
    precision: Precision = "fp32"
    adapter: Adapter = ""
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the bootstrap over prompts.")] = 0

    def arguments(self, device: str) -> dict[str, Any]:
        """Return the options as keyword arguments of `claims.running.Asked`."""
        given = asdict(self)
        prompts, device = given.pop("set") or default_set(self.model), notebook.device_of(device)[0]
        return given | {"prompts": prompts, "also": tuple(self.also or ()), "device": device}


@dataclass(frozen=True)
class Workers:
    """Who computes, and where."""

    device: Device = "auto"
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=1024, help="Processes of this machine that compute, each with its own copy of the models."
        ),
    ] = 1
    ray: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="A Ray cluster that computes, with a shared folder; local starts one."),
    ] = ""

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `foreground.run`; the device matters only to several processes."""
        here = self.processes == 1 and not self.ray
        return asdict(self) | {"device": "cpu" if here else notebook.device_of(self.device)[0]}
