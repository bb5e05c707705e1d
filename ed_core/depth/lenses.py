"""Does the verdict on depth depend on the lens? Hu et al.'s KL and overlap rules read under each lens, side by side,
and what a fitted lens' certificate says of it. Numpy only.

The Jacobian lens is made to be read by ranks: its divergence is shown as such and enters no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..probes import Lenses
from ..probes.lenses import LENSES
from ..probes.scores import rank_correlation
from ..results import aggregate
from ..types import ProbeResult
from .criteria import Criterion, by_kl, by_overlap
from .wording import NAMES, TENTH

UNCALIBRATED = "jacobian"
CONTROLS = {"shuffled": "targets shuffled", "constant": "constant prediction"}
RULES = {"kl": by_kl, "overlap": by_overlap}


@dataclass(frozen=True)
class ByLens:
    """`criteria[rule][lens]` of the KL and overlap rules; `curves[measure][lens]`, `[depth]`, the means over tokens
    they were read off; `agree[(lens, lens)]`: Spearman's correlation of the two lenses' settle depths over the tokens,
    None where it is not defined; `settle[lens]`: their mean."""

    criteria: Mapping[str, Mapping[str, Criterion]]
    curves: Mapping[str, Mapping[str, np.ndarray]]
    agree: Mapping[tuple[str, str], float | None]
    settle: Mapping[str, float]
    n_layers: int

    def spread(self, rule: str) -> int | None:
        """`max - min` of a rule's depth over the lenses; None where fewer than two give one."""
        found = [c.depth for c in self.criteria[rule].values() if c.depth is not None]
        return max(found) - min(found) if len(found) > 1 else None

    @property
    def sentence(self) -> str:
        """Whether the verdict changes with the lens, rule by rule."""
        if len(self.settle) < 2:
            return "One lens alone: whether the verdict depends on the lens cannot be told."
        return " ".join(self._rule(rule) for rule in RULES)

    def _rule(self, rule: str) -> str:
        found, name = self.criteria[rule], f"The {NAMES[rule]} rule"
        told = ", ".join(
            f"{'no depth' if c.depth is None else f'layer {c.depth}'} under the {called(lens)}"
            for lens, c in found.items()
        )
        spread = self.spread(rule)
        if len(found) < 2:
            return f"{name} has one calibrated lens to be read with: {told}."
        if spread is None:
            some = any(c.depth is not None for c in found.values())
            how = "a depth under one lens only, so it depends on the lens" if some else "no depth under any lens"
            return f"{name} gives {how}: {told}."
        far, missing = spread > TENTH * self.n_layers, any(c.depth is None for c in found.values())
        layers = f"{spread} layer{'s' * (spread != 1)} of {self.n_layers} apart" if spread else "the same"
        if far or missing:
            return f"{name} depends on the lens: {told} ({layers})."
        return f"{name} hardly depends on the lens: {told} ({layers})."


def called(lens: str) -> str:
    """A lens within a sentence."""
    return LENSES[lens][:1].lower() + LENSES[lens][1:] if lens != UNCALIBRATED else LENSES[lens]


def by_lens(results: Sequence[ProbeResult], first_token: bool = True) -> ByLens:
    """The rules under each lens that all of these complete results have."""
    lenses = [lens for lens in LENSES if all(f"{lens}_kl" in r.measures for r in results)]
    means = aggregate.aggregate(Lenses, [r.summary for r in results], first_token)
    curves = {rule: {lens: means[f"{lens}_{rule}"] for lens in lenses} for rule in RULES}
    criteria = {
        rule: {lens: judge(curves[rule][lens][:-1]) for lens in lenses if not (rule == "kl" and lens == UNCALIBRATED)}
        for rule, judge in RULES.items()
    }
    depths = {lens: np.concatenate([r[f"{lens}_settle_depth"] for r in results]) for lens in lenses}
    agree = {(a, b): rank_correlation(depths[a], depths[b]) for a, b in combinations(lenses, 2)}
    settle = {lens: float(np.nanmean(values)) for lens, values in depths.items()}
    return ByLens(criteria, curves, agree, settle, results[0].n_layers)


def constant(result: ProbeResult) -> np.ndarray | None:
    """The constant prediction's mean divergence from the output, as a curve over all depths; None where no fit knows
    what is constant."""
    if "constant_kl" not in result.measures:
        return None
    return np.full(result.n_layers + 1, np.nanmean(result["constant_kl"]), np.float32)


def held_out(certificate: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Divergence from the output on held-out prompts, `[depth]`, by name: of the lens and the logit lens, and of the
    controls."""
    kl = {name: np.asarray(values, np.float32) for name, values in certificate["held_out"]["kl"].items()}
    lenses = {LENSES[certificate["kind"]]: kl["lens"], LENSES["logit"]: kl["logit"]}
    return lenses, {name: kl[key] for key, name in CONTROLS.items() if key in kl}


def certified(kind: str, certificate: Mapping[str, Any]) -> str:
    """What a fit's certificate says of it: where on held-out prompts it comes nearer to the output than the logit lens,
    and where it says no more than a constant prediction."""
    held_out, prompts = certificate["held_out"], certificate["prompts"]
    kl = {name: np.asarray(values, float) for name, values in held_out["kl"].items()}
    lens, n = kl["lens"], len(kl["lens"])
    mute = np.flatnonzero(~(lens < kl["constant"]))
    worse = np.flatnonzero(~(lens < kl["logit"]))
    said = [
        f"{LENSES[kind]}, fitted on {prompts['tokens']:,} tokens of {prompts.get('fitted', prompts['n'])} prompts and "
        f"judged on {held_out['tokens']:,} tokens of {held_out['n']} others."
    ]
    if "drift" in certificate:
        drift = max(certificate["drift"])
        said.append(f"Its two halves differ by up to {drift:.0%} of their size.")
    if kind == UNCALIBRATED:
        said.append("It is made to be read by ranks: its divergence is not calibrated and enters no verdict.")
    else:
        said.append(f"It comes nearer to the output than the logit lens at {_depths(worse, n)}.")
    said.append(
        "At every depth it says more than a constant prediction."
        if not len(mute)
        else f"At {_named(mute)} its divergence is no smaller than a constant prediction's: there it says nothing."
    )
    return " ".join([*said, *certificate.get("notes", [])] if kind != UNCALIBRATED else said)


def _depths(wrong: np.ndarray, n: int) -> str:
    """All depths but the wrong ones."""
    return "every depth" if not len(wrong) else f"{n - len(wrong)} of {n} depths, not at {_named(wrong)}"


def _named(depths: np.ndarray) -> str:
    """Depths as runs: `0–3, 7`."""
    runs: list[list[int]] = []
    for depth in depths.tolist():
        if runs and depth == runs[-1][-1] + 1:
            runs[-1].append(depth)
        else:
            runs.append([depth])
    return f"depth{'s' * (len(depths) != 1)} " + ", ".join(
        str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs
    )
