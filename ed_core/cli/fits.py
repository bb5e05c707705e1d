"""`fit affine | jacobian | maps | replacement`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from ..lenses.measured import JACOBIAN_TOKENS
from ..models.ref import ModelRef
from ..work.runs import fit as fits
from ..work.runs.fit import Fit
from ..work.runs.foreground import run
from .options import Memory, ModelOption, Opening, Progress, control_seed, named_precision

OF_B = "A's unless given."


def fit(
    kind: Annotated[Literal["affine", "jacobian", "maps", "replacement"], typer.Argument()],
    model: ModelOption,
    prompts: Annotated[str, typer.Option("--set", metavar="FILE.jsonl", help="The prompts to fit on.")],
    out: Annotated[str, typer.Option(metavar="FILE", help=".safetensors for a lens, .npz for maps.")],
    opening: Opening,
    test: Annotated[str, typer.Option(metavar="FILE.jsonl", help="Held-out prompts; a fifth of the forms else.")] = "",
    other: Annotated[str, typer.Option(metavar="B", help="maps: the second model, with the same tokenizer.")] = "",
    other_precision: Annotated[str, typer.Option(metavar="P", help=f"maps: B's; {OF_B}")] = "",
    other_control: Annotated[str, typer.Option(metavar="KIND", help="maps: a copy instead of B.")] = "",
    other_seed: Annotated[int | None, typer.Option(min=0, help="maps: which copy of B.")] = None,
    rank: Annotated[int | None, typer.Option(help="affine: keep matrices to this rank, in half precision.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help=f"jacobian: read so many tokens of a prompt ({JACOBIAN_TOKENS} unless given).")
    ] = None,
    memory: Memory = "",
    progress: Progress = False,
) -> int:
    """Fit a lens (affine, jacobian), linear maps between two models (maps) or maps that replace layers (replacement).

    affine: least squares from the stream at every depth to the last. jacobian: how the last residual answers to
    changes, on average. maps: how well each tap of B is predicted from each of A's. replacement: the loss with each
    layer replaced by a linear map."""
    for name, value, owner in (
        ("other", other, "maps"),
        ("rank", rank, "affine"),
        ("max-tokens", max_tokens, "jacobian"),
    ):
        if value and kind != owner:
            raise typer.BadParameter(f"--{name} is an option of fit {owner}, not of fit {kind}.")
    if kind == "maps" and not other:
        raise typer.BadParameter("--other is missing: maps need a second model.")
    first, second = (ModelRef.named(name) for name in (model, other or model))
    first = replace(first, **opening.arguments())
    precision = named_precision(other_precision) if other_precision else first.precision
    second = replace(
        second,
        precision=precision,
        device=first.device,
        offload=first.offload,
        control=other_control,
        control_seed=control_seed(other_control, other_seed, "other-"),
    )
    request = Fit(
        kind=kind,
        model=first,
        other=second if other else None,
        prompts=prompts,
        test=test,
        out=out,
        memory=memory,
        rank=rank,
        max_tokens=JACOBIAN_TOKENS if max_tokens is None else max_tokens,
    )
    return run(fits.fit, request, lines=progress)
