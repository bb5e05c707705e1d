"""What a card says of depth, read off the sums over prompts that its parts hold. Numpy only.

Every value stands with its 5 and 95 % over the forms of the prompts where enough are known, else over the prompts
(`statistics`); None where there are too few of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .. import statistics
from ..claims.claim import Part, added, cosine, part_of, per_token, sums_of
from ..claims.running import CONTROL, MODEL, PARTS
from ..depth import continuous, wording
from ..depth.lenses import UNCALIBRATED, ByLens, certified
from ..depth.rules import OF_LENS, RULES, depths
from ..depth.surgery import best_stretch
from ..errors import StudyError
from ..fits import Fit
from ..probes.base import rank_correlation
from ..probes.generation import Generation
from ..probes.lenses import LENSES
from ..statistics import Resampled
from ..studies import report, tables
from ..studies.items import Folder, open_folder
from .card import ByAngle, Curve, Cut, Depth, Exit, Lenses, Mean, Moved, MovedMean, Precision, Sinks, Turn, Value

READ = ("contributions", "logit_lens", "one", "stretch", "writing")  # parts, whatever claims apply to the set
SAME_DEPTH = 1  # layers that a depth may move by in another precision and still count as the same


@dataclass(frozen=True)
class Read:
    """A part, and the seed by which its prompts are drawn anew."""

    part: Part
    seed: int

    def mean(self, name: str) -> Resampled:
        """A measure's mean over all tokens of all prompts, `[place]`."""
        return per_token(self.part, name, self.seed)

    def curve(self, rule: str) -> Resampled:
        """What a rule reads, `[layer]` or `[depth]`."""
        if rule != "cosine":
            return self.mean(rule)
        return statistics.mean(*cosine(self.part), self.part.units, self.seed)

    @property
    def added(self) -> Resampled:
        return added(self.part, self.seed)

    def value(self, found: Resampled, at: int | tuple[()] = ()) -> Value:
        """A number, or place `at` of a curve, with its 5–95 % interval; without one where prompts are too few."""
        low = high = None
        if self.part.units.enough:
            low, high = found.ends[(slice(None), at) if at != () else slice(None)]
        return Value(value=float(found.value[at]), low=low, high=high)

    def drawn(self, found: Resampled) -> Curve:
        """A curve with its intervals; NaN for their ends where prompts are too few."""
        low, high = found.ends if self.part.units.enough else np.full((2, len(found.value)), np.nan)
        values, low, high = (tuple(of.tolist()) for of in (found.value, low, high))
        return Curve(values=values, low=low, high=high)


def opened(folder: Folder, label: str, name: str, probe: str, seed: int) -> Read:
    """`StudyError` where the folder holds nothing of that model."""
    return Read(part_of(folder, label, name, probe), seed)


@dataclass(frozen=True)
class Measured:
    """The parts of a card. `claims`: the folder of its claims; `set`: the prompt set's name; `lenses`: the study under
    fitted lenses, with these; `others`, `precisions`: the study in other precisions, and which; `own`: the card's.
    `passes`: how often the model's layers run."""

    claims: Path
    set: str
    seed: int
    lenses: tuple[Folder, tuple[Fit, ...]] | None
    others: Folder | None
    precisions: tuple[str, ...]
    own: str
    passes: int = 1

    def told(self) -> dict[str, Any]:
        """The fields of the card that are read off the parts, but for its sinks."""
        return {
            "mean_depths": tuple(self._mean_depths()),
            "turn": self._turn(),
            "depths": (*self._by_rule(), *self._by_fitted_lens()),
            "lenses": self._lenses(),
            "curves": self._curves(),
            "cuts": self._cuts(),
            "exit": self._exit(),
            "precision": self._precisions(),
        }

    def sinks(self, named: str, named_of: int) -> Sinks:
        """Share of the tokens that are sinks, and of the prompts whose first token is one; None where a prompt's sinks
        cannot be told."""
        part = self._part("contributions", MODEL).part
        tokens = first = None
        if "n_no_sinks" in part.columns and np.isfinite(part["n_no_sinks"]).all():
            tokens = float(1 - part["n_no_sinks"].sum() / part["n_tokens"].sum())
            first = float(part["first_is_sink"].mean())
        return Sinks(tokens=tokens, first=first, named=named, named_of=named_of)

    def _folder(self, name: str) -> Folder:
        return open_folder(self.claims / "parts" / name)

    @cached_property
    def _read(self) -> dict[tuple[str, str], Read]:
        return {}

    def _part(self, name: str, label: str) -> Read:
        """A part of the claims; `StudyError` where there is none of this model."""
        if (name, label) not in self._read:
            self._read[name, label] = opened(self._folder(name), label, self.set, PARTS[name].probe, self.seed)
        return self._read[name, label]

    def _twin(self, name: str) -> Read | None:
        try:
            return self._part(name, CONTROL)
        except StudyError:
            return None  # this model has no untrained twin

    def _mean_depths(self) -> Iterator[Mean]:
        """The depth without a threshold under the logit lens, with the untrained twin's; then under each fitted one."""
        own, twin = self._part("logit_lens", MODEL), self._twin("logit_lens")
        for of in continuous.MEAN_DEPTH:
            yield Mean(of=of, lens="logit", **_mean(own, of), twin=Mean(**_mean(twin, of)) if twin else None)
        for of, lens, read in self._fitted():
            yield Mean(of=of, lens=lens, **_mean(read, of, lens), twin=None)

    def _turn(self) -> Turn | None:
        """The cosine's turn, and what is said of it beside the untrained twin's; None where there is nothing to fit."""
        folder = self._folder("contributions")
        some = folder.sums(MODEL, self.set)
        found = tables.turn(folder, MODEL, self.set, some)
        if found is None:
            return None
        told = {name: getattr(found, name) for name in ("layer", "ratio", "p", "failed", "before", "after")}
        return Turn(**told, sentence=wording.turned(found, tables.twins(folder, MODEL, self.set, some)))

    def _by_rule(self) -> Iterator[Depth]:
        """The three rules as the papers have them."""
        for rule, of in RULES.items():
            folder = self._folder(of.probe)
            rows = _rows(folder, self.set)
            own = rows[MODEL, rule]
            twin = rows.get((CONTROL, rule))
            said = tables.statements(folder, MODEL, self.set)[rule]
            yield Depth(
                rule=rule,
                lens="logit" if of.of_lens else "",
                **_depth(own["paper"]),
                variants={name: row["depth"] for name, row in own.items() if name in report.SHOWN},
                twin=Depth(**_depth(twin["paper"])) if twin else None,
                clear=said.clear,
                so_far=said.so_far,
                sentence=said.sentence,
            )

    def _by_fitted_lens(self) -> Iterator[Depth]:
        """The rules that read a lens, under each fitted one; the Jacobian lens's divergence enters none."""
        for rule, lens, read in self._fitted():
            curve = read.mean(f"{lens}_{rule}").value[:-1]
            yield Depth(
                rule=rule,
                lens=lens,
                **_judged(rule, curve, read, f"{lens}_{rule}"),
                variants={"stable": RULES[rule].of_curve(curve).stable},
                twin=None,
                clear=None,
                sentence="",
            )

    def _fitted(self) -> Iterator[tuple[str, str, Read]]:
        if self.lenses is None:
            return
        folder, fits = self.lenses
        read = opened(folder, MODEL, self.set, "lenses", self.seed)
        for lens in LENSES:
            if lens in {fit.kind for fit in fits}:
                yield from ((rule, lens, read) for rule in OF_LENS if not (rule == "kl" and lens == UNCALIBRATED))

    def _lenses(self) -> Lenses:
        """Whether the verdict changes with the lens, and what each fitted lens's certificate says."""
        if self.lenses is None:
            return Lenses(sentence="", certificates={})
        folder, fits = self.lenses
        read = opened(folder, MODEL, self.set, "lenses", self.seed)
        kinds = [lens for lens in LENSES if lens == "logit" or lens in {fit.kind for fit in fits}]
        curves = {rule: {lens: read.mean(f"{lens}_{rule}").value for lens in kinds} for rule in OF_LENS}
        criteria = {
            name: {
                lens: rule.of({name: curves[name][lens]})
                for lens in kinds
                if not (name == "kl" and lens == UNCALIBRATED)
            }
            for name, rule in OF_LENS.items()
        }
        settle = {lens: float(read.mean(f"{lens}_settle_depth").value.item()) for lens in kinds}
        n_layers = len(curves["kl"]["logit"]) - 1
        return Lenses(
            sentence=ByLens(criteria, curves, {}, settle, n_layers).sentence,
            settle=settle,
            certificates={fit.kind: certified(fit.kind, fit.certificate) for fit in fits},
        )

    def _curves(self) -> dict[str, dict[str, Curve]]:
        """What the rules read, by rule and then by what it is of; and the loss that leaving out one layer adds."""
        drawn: dict[str, dict[str, Curve]] = {name: {} for name in (*RULES, "loss")}
        for label in (MODEL, CONTROL):
            for name, probe in (*((name, rule.probe) for name, rule in RULES.items()), ("loss", "one")):
                if (read := self._twin(probe) if label == CONTROL else self._part(probe, MODEL)) is not None:
                    drawn[name][label] = read.drawn(read.added if name == "loss" else read.curve(name))
        for rule, lens, read in self._fitted():
            drawn[rule][lens] = read.drawn(read.mean(f"{lens}_{rule}"))
        return drawn

    def _cuts(self) -> tuple[Cut, ...]:
        """Of each length that was measured the stretch of smallest divergence from the whole model, and what it costs;
        chosen and judged on the same prompts. Beside it what the angular distance would have chosen. Of a looped model
        single layers alone: a stretch as long as a pass leaves the same layers wherever it lies."""
        found: list[Cut] = []
        for name in ("one", "stretch")[: 1 if self.passes > 1 else 2]:
            read = self._part(name, MODEL)
            divergence, kept, angle = (read.mean(of) for of in ("kl", "top1_kept", "angular_distance"))
            added, n, kept = read.added, self._n_layers - len(divergence.value) + 1, kept.bounded(0.0, 1.0)
            if found and n == 1:
                continue  # of few layers a stretch is one, too
            start, chosen = best_stretch(divergence.value, n)[0], best_stretch(angle.value, n)[0]
            found.append(
                Cut(
                    layers=n,
                    start=start,
                    prompts=len(read.part),
                    kl=read.value(divergence, start),
                    loss=read.value(added, start),
                    kept=read.value(kept, start),
                    whole=read.mean("nll_whole").value.item(),
                    by_angle=ByAngle(start=chosen, loss=read.value(added, chosen)),
                )
            )
        return tuple(found)

    def _exit(self) -> Exit:
        """Of the tokens that the model writes: where they settle, and how many an early exit would have said alike."""
        read = self._part("writing", MODEL)
        probe = self._folder("writing").probe("generation")
        assert isinstance(probe, Generation)
        found: dict[str, Value | None] = {}
        for name in ("mean_depth", "mean_ratio", "mean_agreement", "mean_lost_at_0"):
            values = read.part[name].astype(np.float64)
            there = np.isfinite(values)
            mean = statistics.mean(np.where(there, values, 0.0), there.astype(float), read.part.units, self.seed)
            found[name] = read.value(mean if name == "mean_depth" else mean.bounded(0.0, 1.0)) if there.any() else None
        return Exit(tokens=probe.n_tokens, threshold=probe.threshold, prompts=len(read.part), **found)

    def _precisions(self) -> Precision:
        """The rules' depths in every precision, how far each moved, and Spearman's correlation of the curve with that
        in the card's own precision; the mean depths beside the card's own."""
        if self.others is None:
            return Precision(own=self.own, rows=(), means=())
        rows, there = [], _rows(self.others, self.set)
        for rule, of in RULES.items():
            here = _rows(self._folder(of.probe), self.set)[MODEL, rule]["paper"]["depth"]
            curve = self._part(of.probe, MODEL).curve(rule).value
            for precision in self.precisions:
                depth = there[precision, rule]["paper"]["depth"]
                other = opened(self.others, precision, self.set, of.probe, self.seed).curve(rule).value
                moved = None if depth is None or here is None else depth - here
                rows.append(
                    Moved(
                        rule=rule,
                        precision=precision,
                        depth=depth,
                        moved=moved,
                        same=depth == here if moved is None else abs(moved) <= SAME_DEPTH,
                        order=rank_correlation(*(c[:-1] if of.of_lens else c for c in (curve, other))),
                    )
                )
        own = self._part("logit_lens", MODEL)
        means = tuple(
            MovedMean(of=of, precision=precision, depth=_mean(there_read, of)["depth"], own=Mean(**_mean(own, of)))
            for precision in self.precisions
            for there_read in [opened(self.others, precision, self.set, "logit_lens", self.seed)]
            for of in continuous.MEAN_DEPTH
        )
        return Precision(own=self.own, rows=tuple(rows), means=means)

    @cached_property
    def _n_layers(self) -> int:
        return len(self._part("contributions", MODEL).part["layer_cos.sum"][0])


def _rows(folder: Folder, name: str) -> dict[tuple[str, str], dict[str, Mapping[str, Any]]]:
    """The study's verdicts on a whole set: by model and rule, then by variant."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in tables.verdict(folder).to_pylist():
        if row["set"] == name:
            found.setdefault((row["model"], row["criterion"]), {})[row["variant"]] = row
    return found


def _depth(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("depth", "ratio", "low", "high", "undefined", "prompts")}


def _mean(read: Read, of: str, lens: str = "") -> dict[str, Any]:
    over = read.part.units
    found = continuous.over_prompts(of, *sums_of(read.part, f"{lens}_{of}" if lens else of), over, read.seed)
    low, high, _ = found.interval or (None, None, None)
    told = {"depth": found.depth, "ratio": found.ratio, "low": low, "high": high}
    return told | {"over": over.words, "prompts": len(read.part)}


def _judged(rule: str, curve: np.ndarray, read: Read, name: str) -> dict[str, Any]:
    depth, (sums, tokens), over = RULES[rule].of_curve(curve), sums_of(read.part, name), read.part.units
    within = None
    if over.enough:
        drawn = statistics.percentile(lambda c: depths(rule, c[""][:, :-1]), {"": sums}, tokens, over, read.seed)
        within = statistics.interval(drawn)
    low, high = (within and within.ends) or (None, None)
    return {
        "depth": depth.depth,
        "ratio": depth.ratio,
        "low": low,
        "high": high,
        "undefined": within.undefined if within else None,
        "prompts": len(read.part),
    }
