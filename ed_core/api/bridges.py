"""What other tools read: orders of layers for mergekit and llama.cpp."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from ..probes.surgery import stretches


def llama_quantize(order: Sequence[int], n_layers: int, file: str) -> str:
    """Return the command by which llama.cpp writes a GGUF file without the layers that an `order` leaves out, its
    weights as they are; "" where it leaves none out, or repeats or reorders some, which the tool cannot. Layers are
    counted from 0 in both; the tool renumbers those that stay."""
    if not order or len(order) == n_layers or list(order) != sorted(set(order)):
        return ""
    left_out = sorted({*range(n_layers)} - {*order})
    which = f"{len(left_out)}-layers" if len(left_out) > 1 else f"layer-{left_out[0]}"
    out = f"{file.removesuffix('.gguf')}-without-{which}.gguf"
    return shlex.join(["llama-quantize", "--prune-layers", ",".join(map(str, left_out)), file, out, "COPY"])


def order_list(n_layers: int, order: Sequence[int], model: str, evidence: Mapping[str, float | int]) -> str:
    """Return as JSON the order of blocks to run (from 0), which of all `n_layers` are kept and which left out, and what
    that costs (`evidence`), with on how many prompts and tokens that rests."""
    kept = sorted(set(order))
    left_out = [layer for layer in range(n_layers) if layer not in kept]
    document = {"model": model, "n_layers": n_layers, "order": [*order], "keep": kept, "drop": left_out}
    return json.dumps(document | {"measured": dict(evidence)}, indent=2)


def passthrough(order: Sequence[int], model: str, evidence: Mapping[str, float | int] = {}) -> str:
    """Return a mergekit file that runs one model's blocks in any `order` (from 0), each ascending run a slice; slices
    overlap where blocks run twice. `layer_range` excludes its end, as mergekit reads it. `evidence`: measured costs,
    for a comment."""
    if not order:
        raise ValueError("no layer is left to keep")
    lines = ["# measured: " + ", ".join(f"{name} {value:.4g}" for name, value in evidence.items())] if evidence else []
    lines += ["slices:"]
    for run in stretches(order):
        ends = f"[{run[0]}, {run[-1] + 1}]"
        lines += ["  - sources:", f"      - model: {json.dumps(model)}", f"        layer_range: {ends}"]
    return "\n".join([*lines, "merge_method: passthrough", "dtype: bfloat16", ""])
