"""Does depth depend on the lens? Hu et al.'s KL and overlap rules under each lens, and the curves of a fitted lens's
certificate. Numpy only.

The Jacobian lens is made to be read by ranks: its divergence is shown as such and enters no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..probes.base import rank_correlation
from ..probes.lenses import LENSES, Lenses
from ..results import aggregate
from ..types import ProbeResult
from .rules import OF_LENS
from .sample import LENS, Sample
from .verdict import Verdict, verdict

UNCALIBRATED = "jacobian"
CONTROLS = {"shuffled": "targets shuffled", "constant": "constant prediction"}


@dataclass(frozen=True)
class ByLens:
    """The verdict on depth under each lens.

    `verdicts[lens]`: KL and overlap rules and average depths. `curves[measure][lens]`, `[depth]`: means over tokens.
    `agree[(lens, lens)]`: Spearman's correlation of two lenses' settle depths over tokens, None where not defined.
    `settle[lens]`: their mean."""

    verdicts: Mapping[str, Verdict]
    curves: Mapping[str, Mapping[str, np.ndarray]]
    agree: Mapping[tuple[str, str], float | None]
    settle: Mapping[str, float]
    n_layers: int


def by_lens(results: Sequence[ProbeResult]) -> ByLens:
    """Return the verdict under each lens that all of these complete results have."""
    lenses = [lens for lens in LENSES if all(f"{lens}_kl" in r.measures for r in results)]
    means = aggregate.aggregate(Lenses, [r.summary for r in results])
    curves = {rule: {lens: means[f"{lens}_{rule}"] for lens in lenses} for rule in OF_LENS}
    columns = {name: np.stack([r.summary[name] for r in results]) for name in results[0].summary}
    verdicts = {lens: verdict(sample(lens, columns)) for lens in lenses}
    depths = {lens: np.concatenate([r[f"{lens}_settle_depth"] for r in results]) for lens in lenses}
    agree = {(a, b): rank_correlation(depths[a], depths[b]) for a, b in combinations(lenses, 2)}
    settle = {lens: float(np.nanmean(values)) for lens, values in depths.items()}
    return ByLens(verdicts, curves, agree, settle, results[0].n_layers)


def sample(lens: str, columns: Mapping[str, np.ndarray], forms: Sequence[str] = (), seed: int = 0) -> Sample:
    """Return the `Sample` of one lens, for a verdict, from columns of summaries; without the Jacobian lens's
    divergence, which enters none. `forms`: each prompt's template."""
    measures = [name for name in OF_LENS if not (name == "kl" and lens == UNCALIBRATED)]
    own = {f"{name}.sum": columns[f"{lens}_{name}.sum"] for name in measures}
    return Sample.of_sums({LENS: own | {"n_tokens": columns["n_tokens"]}}, forms={LENS: forms}, seed=seed)


def constant(result: ProbeResult) -> np.ndarray | None:
    """Return the constant prediction's mean divergence from the output, at all depths; None where none was measured."""
    if "constant_kl" not in result.measures:
        return None
    return np.full(result.n_layers + 1, np.nanmean(result["constant_kl"]), np.float32)


@dataclass(frozen=True)
class HeldOut:
    """Mean divergence from the output on held-out prompts, nats, `[depth]`, by name: of `lenses` and `controls`.

    `ends`: 5 and 95 % over prompts by the same names; empty where prompts are few."""

    lenses: Mapping[str, np.ndarray]
    controls: Mapping[str, np.ndarray]
    ends: Mapping[str, tuple[np.ndarray, np.ndarray]]


def held_out(certificate: Mapping[str, Any]) -> HeldOut:
    """Return the curves of a fitted lens and its controls in its certificate."""
    judged, names = certificate["held_out"], {"lens": LENSES[certificate["kind"]], "logit": LENSES["logit"]}

    def curves(of: str, named: Mapping[str, str]) -> dict[str, np.ndarray]:
        return {
            name: np.asarray(judged[of][key], np.float32) for key, name in named.items() if key in judged.get(of, {})
        }

    low, high = curves("kl_low", names | CONTROLS), curves("kl_high", names | CONTROLS)
    return HeldOut(curves("kl", names), curves("kl", CONTROLS), {name: (low[name], high[name]) for name in low})


def below(ends: Mapping[str, Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return at which depths a difference's whole interval is below 0, and at which above, `[depth]` each."""
    low, high = (np.asarray(ends[name], float) for name in ("low", "high"))
    return high < 0, low > 0
