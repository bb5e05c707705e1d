"""Types of the options that several commands have. A command's signature is its help: `Annotated` types with typer's
options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..api import model as notebook
from ..models.ref import ModelRef

MODEL = "A bundled name, a folder, a GGUF file or a hub id"
SET_HELP = (
    "A bundled prompt set, or a .jsonl, .json, .csv or .parquet (text, and where known answer, level, pair, form); "
    "the model's own set unless given."
)


def named_precision(text: str) -> str:
    """Return the name of a precision, "auto" included; the library's long names are known too."""
    from ..models.sizes import PRECISIONS

    if text != "auto" and text not in PRECISIONS:
        raise typer.BadParameter(f"{text!r}; expected auto or one of {', '.join(PRECISIONS)}.")
    return PRECISIONS.get(text, text)


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
Offload = Annotated[str, typer.Option(metavar="FOLDER", help="Where weights go that fit into no memory.")]
Control = Annotated[
    str,
    typer.Option(metavar="KIND", help="A copy instead of the model: untrained (random weights) or shuffled (layers)."),
]
ControlSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Which copy (0 unless given).")]
Prompts = Annotated[
    str, typer.Option(metavar="FILE.jsonl", help="One JSON object a line: text, and where needed answer, id.")
]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Most memory beyond the model, like 500M or 2G.")]
Processes = Annotated[
    int,
    typer.Option(min=1, max=1024, help="Processes of this machine that compute, each with its own copy of the models."),
]
Ray = Annotated[
    str, typer.Option(metavar="ADDRESS", help="A Ray cluster that computes, with a shared folder; local starts one.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be computed and what it takes, and stop.")]
Progress = Annotated[bool, typer.Option("--progress", help="Print every per cent on a line of its own.")]
PromptSet = Annotated[str, typer.Option("--set", help=SET_HELP)]
Also = Annotated[list[str] | None, typer.Option(metavar="MODEL", help="Another model of the family; repeatable.")]
BootstrapSeed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the bootstrap over prompts.")]


def control_seed(control: str, seed: int | None, prefix: str = "") -> int:
    """Return the seed of a control, 0 unless given; refuse a seed without a control."""
    if seed is not None and not control:
        raise typer.BadParameter(f"--{prefix}seed needs --{prefix}control untrained or --{prefix}control shuffled.")
    return seed or 0


def model_of(
    source: str, precision: str, device: str, adapter: str, offload: str, control: str, seed: int | None
) -> ModelRef:
    """Return the model that the options name; which precision `auto` chose is printed on stderr."""
    ref = notebook.ref_of(
        source,
        precision,
        device,
        adapter,
        control=control,
        control_seed=control_seed(control, seed),
        offload=offload,
    )
    if ref.why:
        print(f"ed_core: precision {ref.why}", file=sys.stderr)
    return ref
