"""`fit affine | jacobian | maps | replacement`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from ..lenses.measured import JACOBIAN_TOKENS
from ..models.ref import ModelRef
from ..work.runs import fit as fits
from ..work.runs.fit import Fit
from ..work.runs.foreground import run
from .options import Memory, ModelOption, Opening, control_seed, named_precision


def fit(
    kind: Annotated[Literal["affine", "jacobian", "maps", "replacement"], typer.Argument()],
    model: ModelOption,
    prompts: Annotated[str, typer.Option("--set", metavar="FILE.jsonl", help="The prompts to fit on.")],
    out: Annotated[str, typer.Option(metavar="FILE", help=".safetensors for a lens, .npz for maps.")],
    opening: Opening,
    test: Annotated[str, typer.Option(metavar="FILE.jsonl", help="Held-out prompts; a fifth of the forms else.")] = "",
    other: Annotated[str, typer.Option(metavar="B", help="maps: the second model, with the same tokenizer.")] = "",
    other_precision: Annotated[str, typer.Option(metavar="P", help="maps: B's; A's unless given.")] = "",
    other_control: Annotated[str, typer.Option(metavar="KIND", help="maps: a copy instead of B.")] = "",
    other_seed: Annotated[int | None, typer.Option(min=0, help="maps: which copy of B.")] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="affine: the rank to keep, in half precision.")] = None,
    max_tokens: Annotated[int, typer.Option(min=18, help="jacobian: tokens read of a prompt.")] = JACOBIAN_TOKENS,
    memory: Memory = "",
) -> int:
    """Fit a lens (affine, jacobian), linear maps between two models (maps) or maps that replace layers (replacement).

    affine: least squares from the stream at every depth to the last. jacobian: how the last residual answers to
    changes, on average. maps: how well each tap of B is predicted from each of A's. replacement: the loss with each
    layer replaced by a linear map."""
    of_b = {"other": other, "other-precision": other_precision, "other-control": other_control}
    owners: dict[str, tuple[bool, str]] = {name: (bool(given), "maps") for name, given in of_b.items()}
    owners |= {"other-seed": (other_seed is not None, "maps"), "rank": (rank is not None, "affine")}
    owners |= {"max-tokens": (max_tokens != JACOBIAN_TOKENS, "jacobian")}
    for name, (given, owner) in owners.items():
        if given and kind != owner:
            raise typer.BadParameter(f"--{name} is an option of fit {owner}, not of fit {kind}.")
    if kind == "maps" and not other:
        raise typer.BadParameter("--other is missing: maps need a second model.")
    first, second = replace(ModelRef.named(model), **opening.arguments()), None
    if other:
        how: dict[str, Any] = {"device": first.device, "offload": first.offload, "control": other_control}
        precision = named_precision(other_precision) if other_precision else first.precision
        seed = control_seed(other_control, other_seed, "other-")
        second = replace(ModelRef.named(other), precision=precision, control_seed=seed, **how)
    request = Fit(kind, first, prompts, out, second, test, memory, rank, max_tokens)
    return run(fits.fit, request)
