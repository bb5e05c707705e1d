"""Two models on the same prompts: what training changed. The statistics are a study's (`statistics.read_off` over units
that are drawn together for both)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import statistics
from ..depth import verdict
from ..depth.continuous import LOWEST, MEAN_DEPTH
from ..errors import ParameterError
from ..probes.lenses import LogitLens
from ..types import ProbeResult, Prompt
from .model import Model

if TYPE_CHECKING:
    import pandas as pd

ALL = "all prompts"  # what the rows over all of them are called
COLUMNS = ("prompt", "by", "before", "after", "difference", "low", "high", "layers", "over")
Side = Model | Sequence[ProbeResult]


def compare(a: Side, b: Side, prompts: Sequence[str | Prompt]) -> pd.DataFrame:
    """The mean depths of two models, before and after, on the same prompts: a row for each prompt and measure (`by`:
    "kl" or "overlap"), and one over all prompts.

    `before`, `after`: `mean_depth` of a and b in layers, from 0 to `layers` (`depth.continuous`); NaN where not
    defined. `difference`: after - before. `low`, `high`: its 90 % interval over prompts, drawn in pairs by
    bootstrap-t, of the rows over all prompts; NaN below 8 prompts. `over`: what the interval is over.

    A side is an opened model, or what `run(ed_core.LogitLens(), prompts)` gave: a model that has been trained since.
    Refuses with a `ParameterError` models of other numbers of layers, and results of other prompts."""
    import pandas as pd

    given = [Prompt(p) if isinstance(p, str) else p for p in prompts]
    if isinstance(prompts, str) or not given:
        raise ParameterError("There is no list of prompts; expected one at least, eight for an interval.")
    before, after = (_measured(side, given, name) for side, name in ((a, "a"), (b, "b")))
    if (layers := before[0].n_layers) != after[0].n_layers:
        raise ParameterError(
            f"The models have {layers} and {after[0].n_layers} layers, so no difference in layers is one of depth; "
            "compare their ratios in a study."
        )
    over = statistics.units(len(given), [p.form for p in given])
    rows: list[tuple[object, ...]] = []
    for i, prompt in enumerate(given):
        both = [verdict.mean_depths([side[i]]) for side in (before, after)]
        for by in MEAN_DEPTH:
            x, y = (np.nan if (depth := side[by].depth) is None else depth for side in both)
            rows.append((prompt.id or prompt.text, by, x, y, y - x, np.nan, np.nan, layers, ""))
    whole = [verdict.mean_depths(side, [p.form for p in given]) for side in (before, after)]
    for by in MEAN_DEPTH:
        x, y = (np.nan if (depth := side[by].depth) is None else depth for side in whole)
        low, high = _interval(by, before, after, over) if over.enough else (np.nan, np.nan)
        rows.append((ALL, by, x, y, y - x, low, high, layers, over.words if over.enough else ""))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _measured(side: Side, prompts: Sequence[Prompt], name: str) -> list[ProbeResult]:
    """The logit lens of a side, prompt by prompt."""
    if isinstance(side, Model):
        found = side.run(LogitLens(), prompts)
        return list(found) if isinstance(found, list) else [found]
    results = list(side)
    if any(not isinstance(r, ProbeResult) or r.request.probe != LogitLens.name for r in results):
        raise ParameterError(
            f"{name} is neither an opened model nor results of ed_core.LogitLens(); give what ed_core.open or run gave."
        )
    if [r.request.prompts[0].identity() for r in results] != [p.identity() for p in prompts]:
        raise ParameterError(
            f"The results of {name} are of other prompts than those given, or in another order; measure these prompts."
        )
    return results


def _interval(
    by: str, before: Sequence[ProbeResult], after: Sequence[ProbeResult], over: statistics.Units
) -> tuple[float, float]:
    """Of the difference of both mean curves' depths: both are read off the same draw of prompts."""
    sums, tokens = {}, {}
    for side, results in (("before", before), ("after", after)):
        of_side, tokens[side] = verdict.prompt_sums(results, (by,), True)
        sums[side] = of_side[by]
    read = MEAN_DEPTH[by]
    drawn = statistics.read_off(lambda c: read(c["after"]) - read(c["before"]), sums, tokens, over)
    most = before[0].n_layers - LOWEST[by]
    low, high, _ = drawn.bounded(-most, most).interval
    return low, high
