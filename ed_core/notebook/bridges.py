"""The names that TransformerLens, nnterp and nnsight give to what is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ParameterError
from ..models.families import FAMILIES
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
    """What `tool` ("transformer_lens", "nnterp", "nnsight") calls the points at which a result was measured: rows
    (`point`, `index`, `name`). `point`: "resid" by depth 0..L, "attn" and "mlp" by layer, what the branch adds to the
    stream; "mid" by layer, the stream between both, where they stand in a row and the tool names it.

        table = lens.to_dataframe("kl")
        names = ed_core.hook_names(lens).query("point == 'resid'")
        table.merge(names, left_on="depth", right_on="index")

    nnterp and nnsight read modules; of an output that is a tuple the first is meant. A `ParameterError` refuses what
    they cannot read so: nnterp a family that norms or scales what a branch adds; nnsight, which is given the norm's
    module, one that scales it, adds in place, or keeps its modules in one of several places. So are looped models
    refused, whose passes no tool names, and results of two models."""
    import pandas as pd

    if tool not in (tools := (*NAMES, "nnsight")):
        raise ParameterError(f"tool is {tool!r}; expected one of {', '.join(map(repr, tools))}.")
    if not isinstance(result, ProbeResult):
        raise ParameterError(
            f"The result is of the class {type(result).__name__}; expected one result, like run(…)[0]."
        )
    told, n = result.provenance, result.n_layers
    if len(result.request.models) != 1 or told.get("passes", 1) > 1:
        raise ParameterError("No tool has names for the passes of a looped model, or for two models at once.")
    read = str(told.get("read", ""))
    if tool == "nnterp" and ("norm" in read or "config." in read):
        raise ParameterError(
            f"nnterp's attentions_output and mlps_output are not what this family adds to the stream ({read}); read "
            "these modules with nnsight, or take TransformerLens' names."
        )
    names = NAMES[tool] if tool in NAMES else _modules(str(told.get("family")), read)
    rows = [("resid", l, names["resid"].format(l=l)) for l in range(n)]
    rows.append(("resid", n, names["last"].format(l=n - 1)))
    for point in ("attn", "mid", "mlp"):
        if point in names and not (point == "mid" and told.get("parallel")):
            rows += [(point, l, names[point].format(l=l)) for l in range(n)]
    return pd.DataFrame(rows, columns=["point", "index", "name"])


def _modules(family: str, read: str) -> dict[str, str]:
    """The modules of a family as nnsight names them."""
    found = next((one for one in FAMILIES if one.family == family), None)
    if found is None or found.in_place or "config." in read or " or " in read:
        raise ParameterError(
            f"No module of this family gives what a branch adds, or it is in one of several places ({read}); take "
            "TransformerLens' names."
        )
    (blocks,), (attn,), (mlp,) = (found.paths(role) for role in ("blocks", "attn", "mlp"))
    block = f"{blocks}[{{l}}]"
    return {
        "resid": f"{block}.input",
        "last": f"{block}.output",
        "attn": f"{block}.{attn}.output",
        "mlp": f"{block}.{mlp}.output",
    }
