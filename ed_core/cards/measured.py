"""What a card says of depth, read off the sums over prompts that its parts hold. Numpy only.

Every value stands with its 5 and 95 % quantiles over resamples of the prompts, None where there are too few of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..claims.evidence import Part, part_of
from ..claims.means import Sampled, over_prompts, per_token
from ..claims.running import CONTROL, MODEL, PARTS
from ..depth.criteria import ENDS, FEWEST, by_kl, by_overlap, depths, interval
from ..depth.lenses import RULES, UNCALIBRATED, ByLens, certified
from ..depth.verdict import COSINES
from ..errors import StudyError
from ..fits import Fit
from ..probes.lenses import LENSES
from ..probes.scores import rank_correlation
from ..studies import tables
from ..studies.folder import Folder, open_folder

OF_CRITERIA = {"cosine": "contributions", "kl": "logit_lens", "overlap": "logit_lens"}
JUDGES = {"kl": by_kl, "overlap": by_overlap}
READ = ("contributions", "logit_lens", "one", "stretch", "writing")  # parts, whatever claims apply to the set
SAME_DEPTH = 1  # layers that a depth may move by in another precision and still count as the same


@dataclass(frozen=True)
class Measured:
    """The parts of a card. `claims`: the folder of its claims; `set`: the prompt set's name; `lenses`: the study under
    fitted lenses, with these; `others`, `precisions`: the study in other precisions, and which; `own`: the card's."""

    claims: Path
    set: str
    seed: int
    lenses: tuple[Folder, tuple[Fit, ...]] | None
    others: Folder | None
    precisions: tuple[str, ...]
    own: str

    def told(self) -> dict[str, Any]:
        """Everything, as the card holds it."""
        return {
            "depths": [*self._by_rule(), *self._by_fitted_lens()],
            "lenses": self._lenses(),
            "curves": self._curves(),
            "cuts": self._cuts(),
            "exit": self._exit(),
            "precision": self._precisions(),
        }

    def sinks(self) -> dict[str, Any]:
        """Share of the tokens that are sinks, and of the prompts whose first token is one; None where a prompt's sinks
        cannot be told."""
        part = self._part("contributions", MODEL)
        if "n_no_sinks" not in part.columns or not np.isfinite(part["n_no_sinks"]).all():
            return {"tokens": None, "first": None}
        return {
            "tokens": float(1 - part["n_no_sinks"].sum() / part["n_tokens"].sum()),
            "first": float(part["first_is_sink"].mean()),
        }

    @cached_property
    def _read(self) -> dict[tuple[str, str], Part | None]:
        return {}

    def _part(self, name: str, label: str) -> Part:
        """A part of the claims; `StudyError` where there is none of this model."""
        if (name, label) not in self._read:
            folder = open_folder(self.claims / "parts" / name)
            self._read[name, label] = part_of(folder, label, self.set, PARTS[name].probe)
        return self._read[name, label]

    def _twin(self, name: str) -> Part | None:
        try:
            return self._part(name, CONTROL)
        except StudyError:
            return None  # this model has no untrained twin

    def _by_rule(self) -> Iterator[dict[str, Any]]:
        """The three rules as the papers have them."""
        for rule, probe in OF_CRITERIA.items():
            folder = open_folder(self.claims / "parts" / probe)
            rows = _rows(folder, self.set)
            own = rows[MODEL, rule]
            twin = rows.get((CONTROL, rule))
            said = tables.statements(folder, MODEL, self.set)[rule]
            yield {
                "rule": rule,
                "lens": "" if rule == "cosine" else "logit",
                **_depth(own["paper"]),
                "variants": {name: row["depth"] for name, row in own.items() if name != "paper"},
                "twin": _depth(twin["paper"]) if twin else None,
                "clear": said.clear,
                "sentence": said.sentence,
            }

    def _by_fitted_lens(self) -> Iterator[dict[str, Any]]:
        """The rules that read a lens, under each fitted one; the Jacobian lens' divergence enters none."""
        for rule, lens, part in self._fitted():
            sampled = per_token(part, f"{lens}_{rule}", self.seed)
            yield {
                "rule": rule,
                "lens": lens,
                **_judged(rule, sampled, len(part)),
                "variants": {"stable": JUDGES[rule](sampled[0][:-1]).stable},
                "twin": None,
                "clear": None,
                "sentence": "",
            }

    def _fitted(self) -> Iterator[tuple[str, str, Part]]:
        if self.lenses is None:
            return
        folder, fits = self.lenses
        part = part_of(folder, MODEL, self.set, "lenses")
        for lens in LENSES:
            if lens in {fit.kind for fit in fits}:
                yield from ((rule, lens, part) for rule in RULES if not (rule == "kl" and lens == UNCALIBRATED))

    def _lenses(self) -> dict[str, Any]:
        """Whether the verdict changes with the lens, and what each fitted lens' certificate says."""
        if self.lenses is None:
            return {"sentence": "", "certificates": {}}
        folder, fits = self.lenses
        part = part_of(folder, MODEL, self.set, "lenses")
        kinds = [lens for lens in LENSES if lens == "logit" or lens in {fit.kind for fit in fits}]
        curves = {rule: {lens: per_token(part, f"{lens}_{rule}", self.seed)[0] for lens in kinds} for rule in RULES}
        criteria = {
            rule: {
                lens: judge(curves[rule][lens][:-1]) for lens in kinds if not (rule == "kl" and lens == UNCALIBRATED)
            }
            for rule, judge in RULES.items()
        }
        settle = {lens: float(per_token(part, f"{lens}_settle_depth", self.seed)[0].item()) for lens in kinds}
        n_layers = len(curves["kl"]["logit"]) - 1
        return {
            "sentence": ByLens(criteria, curves, {}, settle, n_layers).sentence,
            "settle": settle,
            "certificates": {fit.kind: certified(fit.kind, fit.certificate) for fit in fits},
        }

    def _curves(self) -> dict[str, dict[str, Any]]:
        """What the rules read, by rule and then by what it is of; and the loss that leaving out one layer adds."""
        drawn: dict[str, dict[str, Any]] = {"cosine": {}, "kl": {}, "overlap": {}, "loss": {}}
        for label in (MODEL, CONTROL):
            if (
                part := self._twin("contributions") if label == CONTROL else self._part("contributions", MODEL)
            ) is None:
                continue
            each = [per_token(part, name, self.seed) for name in COSINES]
            drawn["cosine"][label] = _curve((np.mean([e[0] for e in each], 0), np.mean([e[1] for e in each], 0)))
        for label in (MODEL, CONTROL):
            if (part := self._twin("logit_lens") if label == CONTROL else self._part("logit_lens", MODEL)) is not None:
                for rule in RULES:
                    drawn[rule][label] = _curve(per_token(part, rule, self.seed))
        for rule, lens, part in self._fitted():
            drawn[rule][lens] = _curve(per_token(part, f"{lens}_{rule}", self.seed))
        for label in (MODEL, CONTROL):
            if (part := self._twin("one") if label == CONTROL else self._part("one", MODEL)) is not None:
                drawn["loss"][label] = _curve(_added(part, self.seed))
        return drawn

    def _cuts(self) -> list[dict[str, Any]]:
        """The cheapest stretch of each length that was measured, by divergence from the whole model, and what it costs;
        chosen and judged on the same prompts. Beside it what the angular distance would have chosen."""
        found = []
        for name in ("one", "stretch"):
            part = self._part(name, MODEL)
            divergence, kept = (per_token(part, of, self.seed) for of in ("kl", "top1_kept"))
            added, angle = _added(part, self.seed), per_token(part, "angular_distance", self.seed)[0]
            n = self._n_layers - len(divergence[0]) + 1
            start, chosen = int(divergence[0].argmin()), int(angle.argmin())
            found.append(
                {
                    "layers": n,
                    "start": start,
                    "prompts": len(part),
                    "kl": _value(divergence, start, len(part)),
                    "loss": _value(added, start, len(part)),
                    "kept": _value(kept, start, len(part)),
                    "by_angle": {"start": chosen, "loss": _value(added, chosen, len(part))},
                }
            )
        return found

    def _exit(self) -> dict[str, Any]:
        """Of the tokens that the model writes: where they settle, and how many an early exit would have said alike."""
        part = self._part("writing", MODEL)
        probe = open_folder(self.claims / "parts" / "writing").probe("generation")
        found: dict[str, Any] = {"tokens": probe.n_tokens, "threshold": probe.threshold, "prompts": len(part)}
        for name in ("mean_depth", "mean_ratio", "mean_agreement"):
            values = part[name].astype(np.float64)
            values = values[np.isfinite(values)]
            found[name] = (
                _value(over_prompts(values[:, None], None, self.seed), 0, len(values)) if len(values) else None
            )
        return found

    def _precisions(self) -> dict[str, Any]:
        """The rules' depths in every precision, how far each moved, and Spearman's correlation of the curve with that
        in the card's own precision."""
        rows: list[dict[str, Any]] = []
        if self.others is None:
            return {"own": self.own, "rows": rows}
        there = _rows(self.others, self.set)
        for rule, probe in OF_CRITERIA.items():
            here = _rows(open_folder(self.claims / "parts" / probe), self.set)[MODEL, rule]["paper"]["depth"]
            curve = _curve_of(self._part(probe, MODEL), rule)
            for precision in self.precisions:
                depth = there[precision, rule]["paper"]["depth"]
                other = _curve_of(part_of(self.others, precision, self.set, probe), rule)
                moved = None if depth is None or here is None else depth - here
                rows.append(
                    {
                        "rule": rule,
                        "precision": precision,
                        "depth": depth,
                        "moved": moved,
                        "same": depth == here if moved is None else abs(moved) <= SAME_DEPTH,
                        "order": rank_correlation(curve, other),
                    }
                )
        return {"own": self.own, "rows": rows}

    @cached_property
    def _n_layers(self) -> int:
        return len(self._part("contributions", MODEL)["layer_cos.sum"][0])


def _rows(folder: Folder, name: str) -> dict[tuple[str, str], dict[str, Mapping[str, Any]]]:
    """The study's verdicts on a whole set: by model and rule, then by variant."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in tables.verdict(folder).to_pylist():
        if row["set"] == name:
            found.setdefault((row["model"], row["criterion"]), {})[row["variant"]] = row
    return found


def _depth(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("depth", "ratio", "low", "high", "undefined", "prompts")}


def _judged(rule: str, sampled: Sampled, prompts: int) -> dict[str, Any]:
    curve, again = (values[..., :-1] for values in sampled)
    depth = JUDGES[rule](curve)
    within = interval(depths(rule, again)) if prompts >= FEWEST else None
    low, high = (within and within.ends) or (None, None)
    return {
        "depth": depth.depth,
        "ratio": depth.ratio,
        "low": low,
        "high": high,
        "undefined": within.undefined if within else None,
        "prompts": prompts,
    }


def _curve_of(part: Part, rule: str) -> np.ndarray:
    if rule == "cosine":
        return np.mean([per_token(part, name, 0)[0] for name in COSINES], 0)
    return per_token(part, rule, 0)[0][:-1]


def _curve(sampled: Sampled) -> dict[str, Sequence[float]]:
    low, high = np.quantile(sampled[1], ENDS, axis=0)
    return {"values": sampled[0].tolist(), "low": low.tolist(), "high": high.tolist()}


def _added(part: Part, seed: int) -> Sampled:
    """The loss that leaving something out adds, nats per token."""
    loss, whole = (per_token(part, name, seed) for name in ("nll", "nll_whole"))
    return loss[0] - whole[0], loss[1] - whole[1]


def _value(sampled: Sampled, at: int, prompts: int) -> dict[str, float | None]:
    low, high = np.quantile(sampled[1][:, at], ENDS) if prompts >= FEWEST else (None, None)
    return {"value": float(sampled[0][at]), "low": low, "high": high}
