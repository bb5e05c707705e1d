"""What a `numerics` result comes to, in words: whether all checks pass, what of an error is rounding, which tokens
are sinks. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..probes.numerics import KEPT
from ..results.aggregate import aggregate, probe_of
from ..types import ProbeResult
from . import criteria, sinks
from .answer import number
from .wording import past, printed

LIMITED = {  # figures on logits, and what a large one would mean
    "closure": "the last residual, norm and head as read do not give the model's logits",
    "replay": "layers called by hand do something else than in the model",
    "detour": "layers hand each other something past the stream",
    "suffix": "",  # never a reason to refuse: erasure then computes whole sequences
}
NAMES = {  # of these logits
    "closure": "from the last residual",
    "replay": "layer by layer",
    "detour": "with another stream put in at layer 0",
}


@dataclass(frozen=True)
class Said:
    """A sentence, and whether what it is about is so."""

    holds: bool
    text: str


@dataclass(frozen=True)
class Row:
    """A criterion's curve and depth with the first token counted and without it."""

    name: str
    with_first: np.ndarray
    without: np.ndarray
    depth_with: int | None
    depth_without: int | None

    @property
    def label(self) -> str:
        return criteria.RULES[self.name].label


def checks(result: ProbeResult) -> list[Said]:
    """Everything that must hold before a curve is to be trusted, the most telling first."""
    limits, (worst, layer, token), off = result.provenance["limits"], _largest(result), _off(result)
    most = limits["miss"]
    return [
        Said(
            worst <= most, f"the sums are off by {_small(worst)} (layer {layer}, token {token}; limit {_small(most)})"
        ),
        Said(off <= limits["slope"], f"the slopes are off by {_small(off)} (limit {limits['slope']:g})"),
        *(
            Said(
                float(result[name]) <= most,
                f"the logits {NAMES[name]} are off by {_small(float(result[name]))} (limit {_small(most)}): {why}",
            )
            for name, why in LIMITED.items()
            if why
        ),
    ]


def verdict(result: ProbeResult) -> Said:
    """Passed or not, in one sentence with the figures behind it."""
    found = checks(result)
    if failed := [check.text for check in found if not check.holds]:
        told = f"{len(failed)} of {len(found)} checks failed on this prompt: {'; '.join(failed)}"
        return Said(False, f"{told}. Do not trust what rests on them.")
    by_hand = max(float(result[name]) for name, why in LIMITED.items() if why)
    return Said(
        True,
        f"All checks passed: the sums are off by at most {_small(_largest(result)[0])}, {_slopes(result)}, "
        f"recomputed logits of {_last(result)} by {_small(by_hand)} "
        f"(limits {_small(result.provenance['limits']['miss'])}, {result.provenance['limits']['slope']:g} for slopes).",
    )


def _last(result: ProbeResult) -> str:
    """The tokens whose logits are compared, in words."""
    return f"the last {KEPT} tokens" if result.n_tokens > KEPT else "all tokens"


def _slopes(result: ProbeResult) -> str:
    """How far they are off; every branch may be below rounding."""
    if np.isnan([result["slope_attn"], result["slope_mlp"]]).all():
        return "no slope is above rounding"
    return f"the slopes by {_small(_off(result))}"


def sums(result: ProbeResult) -> Said:
    """Whether every layer's sum holds on every token, and whether its error is more than rounding."""
    limits, (worst, layer, token) = result.provenance["limits"], _largest(result)
    share, off = float(np.max(result["miss"] / np.maximum(result["rounding"], 1e-30))), _off(result)
    place = f"the largest error is {_small(worst)} (layer {layer}, token {token})"
    if not worst <= limits["miss"] or off > limits["slope"]:
        wrong = [f"{place}, beyond the limit of {_small(limits['miss'])}"] if not worst <= limits["miss"] else []
        if off > limits["slope"]:
            wrong.append(f"the slopes are off by {_small(off)} (limit {limits['slope']:g})")
        what = "The sums do not hold on this prompt" if not worst <= limits["miss"] else "What is added is scaled"
        return Said(False, f"{what}: {', and '.join(wrong)}; no curve here can be trusted.")
    held = f"The sums hold on every token: {place}"
    if share > 1:
        more = (
            f"within the limit of {_small(limits['miss'])}; somewhere the error is {past(share, 1.0, 1)} times what "
            "rounding can cause"
        )
        return Said(True, f"{held}, {more}.")
    return Said(
        True,
        f"{held}, nowhere more than {math.ceil(100 * share)} % of what rounding can cause.",
    )


def _largest(result: ProbeResult) -> tuple[float, int, int]:
    """The largest error of a sum, its layer and its token; a missing one counts as the largest."""
    layer, token = np.unravel_index(np.argmax(np.nan_to_num(result["miss"], nan=np.inf)), result["miss"].shape)
    return float(result["miss"][layer, token]), int(layer), int(token)


def _off(result: ProbeResult) -> float:
    """How far the slopes are from 1, at most."""
    slopes = np.concatenate([result["slope_attn"], result["slope_mlp"]])
    return float(np.nanmax(np.abs(slopes - 1), initial=0.0))


def logits(result: ProbeResult) -> Said:
    """Whether recomputed logits are the model's own."""
    limit, values = result.provenance["limits"]["miss"], {name: float(result[name]) for name in LIMITED}
    bad = [
        f"{NAMES[name]} they are off by {_small(values[name])}: {why}"
        for name, why in LIMITED.items()
        if why and not values[name] <= limit
    ]
    if bad:
        return Said(False, f"The recomputed logits are not the model's ({'; '.join(bad)}; limit {_small(limit)}).")
    told = "cannot be replayed without what stands before, so erasure computes whole sequences"
    if values["suffix"] <= result.provenance["limits"].get("suffix", limit):
        told = f"can be replayed alone (error {_small(values['suffix'])})"
    errors = ", ".join(f"{_small(values[name])} {NAMES[name]}" for name, why in LIMITED.items() if why)
    return Said(
        True,
        f"The recomputed logits of {_last(result)} are the model's (largest errors: {errors}; limit {_small(limit)}). "
        f"The second half of the prompt {told}.",
    )


def sink(result: ProbeResult, contributions: ProbeResult | None = None) -> Said:
    """Which tokens are sinks, at which depths, and, where the prompt's `contributions` are at hand, who writes them;
    which tokens are long at the end. `numerics` alone holds the stream's norms, and no writer."""
    norm = np.asarray(result["resid_norm"], np.float64)
    found = sinks.of_result(contributions) if contributions is not None else None
    if found is None:
        found = sinks.by_norm(norm)
    return Said(bool(found), sinks.sentence(found, result.tokens, sinks.long_at_end(norm), not np.isfinite(norm).all()))


def _small(value: float) -> str:
    return printed(value, ".2g")


def text_rows(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The identities of the text in a birth certificate, each with its figure; [] where it has none."""
    found, sums = certificate.get("text"), certificate.get("identities") or {}
    if not found or "samples" not in found:
        return []
    n, differ, (before, after) = found["samples"], found["tokens_differ"], found["added"]
    added = [f"{' '.join(tokens)} {where}" for tokens, where in ((before, "before"), (after, "after")) if tokens]
    positions = [str(found["positions"] or "no limit given")]
    if found["rescaled_at"]:
        positions.append(f"rotary scaling changes at {found['rescaled_at']}")
    if (cached := sums.get("cache")) is not None:
        positions.append(f"with a cache off by {_small(cached)}")
    causal = sums.get("causality")
    head = f"{certificate['d_vocab']} × {certificate['d_model']}, {'tied to the embedding' if found['tied'] else 'own'}"
    return [
        (
            "Token ids",
            "no tokenizer.json" if differ is None else f"{n - differ} of {n} hard texts as in tokenizer.json",
        ),
        ("Special tokens", ", ".join(added) or "none added"),
        ("Round trip", f"{n - found['changed']} of {n} hard texts come back"),
        ("Chat template", "checked with each prompt" if found["template"] else "none"),
        ("Causality", "not measured" if causal is None else f"a later token moves logits by {_small(causal)}"),
        ("Head", head),
        ("Positions", ", ".join(positions)),
    ]


def without_first(contributions: ProbeResult, lens: ProbeResult) -> list[Row]:
    """The three criteria's curves and depths with and without the first token, from the stored sums."""

    def of_result(result: ProbeResult, first: bool) -> dict[str, np.ndarray]:
        return aggregate(probe_of(result), [result.summary], first)

    whole, rest = (of_result(contributions, first) | of_result(lens, first) for first in (True, False))
    return [
        Row(name, rule.means(whole), rule.means(rest), rule.of(whole).depth, rule.of(rest).depth)
        for name, rule in criteria.RULES.items()
    ]


def change(rows: Sequence[Row]) -> str:
    """What leaving out the first token changes of the papers' rules."""

    def say(depth: int | None) -> str:
        return "no layer" if depth is None else str(depth)

    moved = [
        f"{row.label}: {say(row.depth_with)} with it, {say(row.depth_without)} without"
        for row in rows
        if row.depth_with != row.depth_without
    ]
    if moved:
        give = f"{number(len(moved))} of the papers' rules give{'s' * (len(moved) == 1)}"
        return f"Leaving out the first token changes what {give} ({'; '.join(moved)})."
    return (
        "The papers' rules give the same layers with and without the first token "
        f"({', '.join(f'{row.label} {say(row.depth_with)}' for row in rows)})."
    )
