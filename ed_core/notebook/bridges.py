"""From here to other tools and back: the names that TransformerLens, nnterp and nnsight give to what is measured, and
the samples that lm-eval logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import bounds, outside, statistics
from ..architectures.families import FAMILIES
from ..depth import verdict
from ..depth.continuous import LOWEST, MEAN_DEPTH
from ..errors import ParameterError, PromptFileError
from ..prompts import check_length, check_text, lines
from ..types import ProbeResult, Prompt, from_json
from .model import of_lens

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
BY_CORRECTNESS = ("by", "right", "wrong", "difference", "low", "high", "layers", "n_right", "n_wrong", "over")
MOST = 1e300  # of a score, which may be a whole number of many digits
RIGHT = 0.5  # of a sample's score, from which on it counts as right


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


def read_lm_eval(path: str | Path, metric: str = "") -> tuple[list[Prompt], list[float]]:
    """The prompts of a file of samples that lm-eval logged (`--log_samples`, `samples_TASK_….jsonl`), with the score
    that each got (`metric`, needed where a sample has several). The text is what the model was given, few-shot examples
    included; the answer that of the task: of several choices the right one. `id` is the `doc_id`. Where a sample was
    scored by several filters, its first line counts.

    Refuses with a `PromptFileError` that names the line."""
    prompts: dict[str, Prompt] = {}
    scores: list[float] = []
    for number, line in lines(outside.text(path, bounds.PROMPTS, PromptFileError, "samples file")):
        where = f"{path}, line {number}"
        try:
            told = from_json(line)
            prompt, found = _prompt_of(told), told.get("metrics") or []
            if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
                raise TypeError("no names of metrics")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise PromptFileError(
                f"{where} is no sample of lm-eval; expected an object with doc_id, target, arguments and metrics, as "
                "--log_samples writes it."
            ) from None
        if prompt.id in prompts:
            continue
        if not metric and len(found) != 1:
            raise PromptFileError(f"{where} has the scores {', '.join(map(str, found)) or 'none'}; name one as metric.")
        score = told.get(metric or found[0])
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not abs(score) <= MOST:
            raise PromptFileError(
                f"{where} has no number for {metric or found[0]!r}; it has {', '.join(map(str, found)) or 'none'}."
            )
        check_length(prompt)
        check_text(prompt)
        prompts[prompt.id] = prompt
        scores.append(float(score))
    if not prompts:
        raise PromptFileError(f"{path} holds no samples; expected one JSON object a line, as --log_samples writes it.")
    return list(prompts.values()), scores


def _prompt_of(told: Any) -> Prompt:
    """The prompt of one logged sample: of a free answer the target, of choices the right one's own text."""
    asked = [told["arguments"][f"gen_args_{i}"] for i in range(len(told["arguments"]))]
    text, target = asked[0]["arg_0"], told["target"]
    choices = [one["arg_1"] for one in asked]
    if all(isinstance(one, str) for one in choices):  # the log likelihood of each was asked for
        stripped = [one.strip() for one in choices]
        target = choices[int(target) if target.isdecimal() else stripped.index(target.strip())]  # as lm-eval reads it
        if len({one["arg_0"] for one in asked}) > 1:
            raise ValueError("the choices stand in the text")
    elif text[-1:] not in (" ", "\n", "\t") and target[:1] not in (" ", "\n"):
        target = f" {target}"
    if not isinstance(text, str) or not isinstance(target, str):
        raise TypeError("no text")
    return Prompt(text, target, str(told["doc_id"]))


def by_correctness(lens: Sequence[Any], scores: Sequence[float | int]) -> pd.DataFrame:
    """Depth against correctness: the mean depths of the prompts that were solved (score 0.5 or more) and of those that
    were not, from `run(ed_core.LogitLens(), prompts)`.

    A row for each measure (`by`: "kl", "overlap"): `right`, `wrong`: `mean_depth` over each group's tokens, in layers,
    from 0 to `layers`; `difference`: right - wrong, with its 90 % interval, bootstrap-t with both groups drawn apart;
    NaN where a group has fewer than 8 prompts. Which prompts are solved is not drawn by lot: solved ones may be
    shorter, or of another kind, and a difference is not caused by being right."""
    import pandas as pd

    if (results := of_lens(lens)) is None:
        raise ParameterError("There is no list of results of ed_core.LogitLens(); give what it gave on these prompts.")
    if len(results) != len(scores):
        raise ParameterError(f"There are {len(results)} results and {len(scores)} scores; expected one for each.")
    if odd := [s for s in scores if not isinstance(s, (int, float, np.number, np.bool_)) or s != s]:
        raise ParameterError(f"A score is {str(odd[0])[:40]}; expected a number for each result.")
    groups = [[r for r, s in zip(results, scores) if (s >= RIGHT) == right] for right in (True, False)]
    if not all(groups):
        raise ParameterError(f"Of {len(results)} prompts {len(groups[0])} are solved; expected some of both kinds.")
    layers = results[0].n_layers
    rows: list[tuple[object, ...]] = []
    for by, read in MEAN_DEPTH.items():
        parts = []
        for seed, group in enumerate(groups):
            sums, tokens = verdict.prompt_sums(group, (by,), True)
            over = statistics.units(len(group))
            parts.append(statistics.read_off(lambda c, read=read, by=by: read(c[by]), sums, tokens, over, seed))  # type: ignore[misc]
        drawn = statistics.contrast([1.0, -1.0], parts)
        most = layers - LOWEST[by]
        enough = min(map(len, groups)) >= statistics.FEWEST
        low, high, _ = drawn.bounded(-most, most).interval if enough else (np.nan, np.nan, 0)
        right, wrong = (float(part.value) for part in parts)
        of_each = [len(group) for group in groups]
        said = f"{of_each[0]} solved and {of_each[1]} other prompts" if enough else ""
        rows.append((by, right, wrong, right - wrong, low, high, layers, *of_each, said))
    return pd.DataFrame(rows, columns=list(BY_CORRECTNESS))
