"""Does depth depend on the lens? Hu et al.'s KL and overlap rules under each lens, and what a fitted lens's certificate
says of it. Numpy only.

The Jacobian lens is made to be read by ranks: its divergence is shown as such and enters no verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ..probes.base import rank_correlation
from ..probes.lenses import LENSES, Lenses
from ..probes.surgery import stretches
from ..results import aggregate
from ..types import ProbeResult
from .continuous import of_curve
from .criteria import OF_LENS, Criterion
from .wording import named_layer

UNCALIBRATED = "jacobian"
CONTROLS = {"shuffled": "targets shuffled", "constant": "constant prediction"}


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

    @property
    def sentence(self) -> str:
        """What each rule gives under each lens."""
        if len(self.settle) < 2:
            return "One lens alone does not show whether depth depends on the lens."
        means = "; ".join(filter(None, map(self._mean, OF_LENS)))
        told = [f"Mean depth over thresholds, of {self.n_layers} layers, {means}." if means else ""]
        return " ".join(filter(None, [*told, f"Papers' rules: {'; '.join(map(self._rule, OF_LENS))}."]))

    def _mean(self, rule: str) -> str:
        """The depth without a threshold under each lens."""
        found = {lens: of_curve(rule, self.curves[rule][lens]).depth for lens in self.criteria[rule]}
        told = ", ".join(
            f"{'none' if depth is None else f'{depth:.1f}'} ({short(lens)})" for lens, depth in found.items()
        )
        scale = ", each lens against its own largest" * (rule == "kl")
        return f"by {OF_LENS[rule].label}{scale}: {told}" if len(found) > 1 else ""

    def _rule(self, rule: str) -> str:
        found, name = self.criteria[rule], OF_LENS[rule].label
        told = ", ".join(f"{named_layer(c.depth)} ({short(lens)})" for lens, c in found.items())
        if len(found) < 2:
            return f"by {name} under one lens only: {told}"
        if all(c.depth is None for c in found.values()):
            return f"by {name} no layer under any lens"
        return f"by {name} {told}"


def short(lens: str) -> str:
    """A lens's kind alone: "affine"."""
    return called(lens).removesuffix(" lens")


def called(lens: str) -> str:
    """A lens within a sentence."""
    return LENSES[lens][:1].lower() + LENSES[lens][1:] if lens != UNCALIBRATED else LENSES[lens]


def by_lens(results: Sequence[ProbeResult], first_token: bool = True) -> ByLens:
    """The rules under each lens that all of these complete results have."""
    lenses = [lens for lens in LENSES if all(f"{lens}_kl" in r.measures for r in results)]
    means = aggregate.aggregate(Lenses, [r.summary for r in results], first_token)
    curves = {rule: {lens: means[f"{lens}_{rule}"] for lens in lenses} for rule in OF_LENS}
    criteria = {
        name: {
            lens: rule.of({name: curves[name][lens]}) for lens in lenses if not (name == "kl" and lens == UNCALIBRATED)
        }
        for name, rule in OF_LENS.items()
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


@dataclass(frozen=True)
class HeldOut:
    """Mean divergence from the output on held-out prompts, nats, `[depth]`, by name: of `lenses` and `controls`.

    `ends`: 5 and 95 % over prompts by the same names; empty where prompts are few."""

    lenses: Mapping[str, np.ndarray]
    controls: Mapping[str, np.ndarray]
    ends: Mapping[str, tuple[np.ndarray, np.ndarray]]


def held_out(certificate: Mapping[str, Any]) -> HeldOut:
    """The curves of a certificate."""
    judged, names = certificate["held_out"], {"lens": LENSES[certificate["kind"]], "logit": LENSES["logit"]}

    def curves(of: str, named: Mapping[str, str]) -> dict[str, np.ndarray]:
        return {
            name: np.asarray(judged[of][key], np.float32) for key, name in named.items() if key in judged.get(of, {})
        }

    low, high = curves("kl_low", names | CONTROLS), curves("kl_high", names | CONTROLS)
    return HeldOut(curves("kl", names), curves("kl", CONTROLS), {name: (low[name], high[name]) for name in low})


def certified(kind: str, certificate: Mapping[str, Any]) -> str:
    """What a fit's certificate says of it: at which depths, on held-out prompts, its divergence from the output lies
    below that of a constant prediction and of the logit lens. Below: with the whole 5–95 % interval of the
    difference."""
    judged, prompts = certificate["held_out"], certificate["prompts"]
    said = [f"{LENSES[kind]}, fitted on {prompts['tokens']:,} tokens of {prompts.get('fitted', prompts['n'])} prompts."]
    if "drift" in certificate:
        said.append(
            "Fitted on each half of the prompts, the two sets of matrices differ by up to "
            f"{math.ceil(100 * max(certificate['drift']) - 1e-6)} % of their size."
        )
    if kind == UNCALIBRATED:
        said.append("Read it by ranks: its KL is not calibrated, so no depth is read off that KL.")
    said.append(_judged(kind, judged))
    return " ".join([*said, *certificate.get("notes", [])] if kind != UNCALIBRATED else said)


def _judged(kind: str, judged: Mapping[str, Any]) -> str:
    over = f"{judged['kl_tokens']:,} held-out tokens ({judged['kl_over']})"
    if "kl_minus" not in judged:
        return (
            f"There are too few held-out prompts for an interval ({judged['kl_over']}): whether it says more than a "
            "constant is open."
        )
    below = {name: _below(ends) for name, ends in judged["kl_minus"].items()}
    if kind == UNCALIBRATED:
        return f"On {over} its KL is below that of a constant prediction {below['constant']}."
    return (
        f"On {over} it says more than a constant prediction {below['constant']}. It is closer to the output than the "
        f"logit lens {below['logit']}."
    )


def _below(ends: Mapping[str, Sequence[float]]) -> str:
    """At which depths the whole interval lies below 0, at which above, at which neither."""
    low, high = (np.asarray(ends[name], float) for name in ("low", "high"))
    yes, no = high < 0, low > 0
    if yes.all():
        return "at every depth before the output"
    if no.all():
        return "at no depth"
    below = [f"at {_named(np.flatnonzero(yes))}"] * bool(yes.any())
    above = [f"not at {_named(np.flatnonzero(no))}"] * bool(no.any())
    undecided = [f"undecided at {_named(np.flatnonzero(~yes & ~no))}"] * (not (yes | no).all())
    if not below:
        return f"at no depth for sure ({'; '.join(above + undecided)})"
    return ", ".join(below + above) + "".join(f" ({one})" for one in undecided)


def _named(depths: np.ndarray) -> str:
    """Depths as runs: `0–3, 7`."""
    runs = stretches(depths.tolist())
    return f"depth{'s' * (len(depths) != 1)} " + ", ".join(
        str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs
    )
