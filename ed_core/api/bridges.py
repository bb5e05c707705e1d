"""What other tools read: the names that TransformerLens, nnterp and nnsight give to what is measured, and orders of
layers for mergekit and llama.cpp."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ParameterError
from ..models.families import FAMILIES
from ..probes.surgery import stretches
from ..types import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

NAMES = {
    "transformer_lens": {
        "resid": "blocks.{l}.hook_resid_pre",
        "last": "blocks.{l}.hook_resid_post",  # the stream behind the last block
        "attn": "blocks.{l}.hook_attn_out",
        "mid": "blocks.{l}.hook_resid_mid",
        "mlp": "blocks.{l}.hook_mlp_out",
    },
    "nnterp": {
        "resid": "layers_input[{l}]",
        "last": "layers_output[{l}]",
        "attn": "attentions_output[{l}]",
        "mlp": "mlps_output[{l}]",
    },
}


def hook_names(result: ProbeResult, tool: str = "transformer_lens") -> pd.DataFrame:
    """Return the names that `tool` ("transformer_lens", "nnterp", "nnsight") gives to the points of a measurement: rows
    (`point`, `index`, `name`). `point`: "resid" by depth 0..L, "attn" and "mlp" by layer (from 0), what the branch adds
    to the stream; "mid" by layer, the stream between both, where they are sequential and the tool names it.

        table = lens.to_dataframe("kl")
        names = ed_core.hook_names(lens).query("point == 'resid'")
        table.merge(names, left_on="depth", right_on="index")

    nnterp and nnsight read modules; of an output that is a tuple the first is meant. A `ParameterError` refuses what
    they cannot read so: nnterp a family that norms or scales what a branch adds; nnsight, which is given the norm's
    module, one that scales it, adds in place, or keeps its modules in one of several places; and looped models, as no
    tool names their passes."""
    import pandas as pd

    if tool not in (tools := (*NAMES, "nnsight")):
        raise ParameterError(f"tool is {tool!r}; expected one of {', '.join(map(repr, tools))}.")
    if not isinstance(result, ProbeResult):
        raise ParameterError(
            f"The result is of the class {type(result).__name__}; expected one result, like run(…)[0]."
        )
    origin, n = result.provenance, result.n_layers
    if origin.get("passes", 1) > 1:
        raise ParameterError("No tool has names for the passes of a looped model.")
    read = str(origin.get("read", ""))
    if tool == "nnterp" and ("norm" in read or "config." in read):
        raise ParameterError(
            f"nnterp's attentions_output and mlps_output are not what this family adds to the stream ({read}); read "
            "these modules with nnsight, or take TransformerLens' names."
        )
    names = NAMES[tool] if tool in NAMES else _modules(str(origin.get("family")), read)
    rows = [("resid", l, names["resid"].format(l=l)) for l in range(n)]
    rows.append(("resid", n, names["last"].format(l=n - 1)))
    for point in ("attn", "mid", "mlp"):
        if point in names and not (point == "mid" and origin.get("parallel")):
            rows += [(point, l, names[point].format(l=l)) for l in range(n)]
    return pd.DataFrame(rows, columns=["point", "index", "name"])


def _modules(family: str, read: str) -> dict[str, str]:
    """Return the modules of a family as nnsight names them, by point; a `ParameterError` where it has no plain
    names."""
    known = next((one for one in FAMILIES if one.family == family), None)
    if known is None or known.in_place or "config." in read or " or " in read:
        raise ParameterError(
            f"No module of this family gives what a branch adds, or it is in one of several places ({read}); take "
            "TransformerLens' names."
        )
    (blocks,), (attn,), (mlp,) = (known.paths(role) for role in ("blocks", "attn", "mlp"))
    block = f"{blocks}[{{l}}]"
    return {
        "resid": f"{block}.input",
        "last": f"{block}.output",
        "attn": f"{block}.{attn}.output",
        "mlp": f"{block}.{mlp}.output",
    }


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
