"""Is a number an artefact of the precision? The same prompts through several precisions, curve by curve against a
reference. Numpy only.

Per aggregated curve Spearman's rank correlation with the reference's and the largest difference over the reference's
range; the mean depths in each precision, and whether one lies outside the reference's interval over prompts; per rule
of the papers the layer in each precision and how far it moved."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from ..errors import ParameterError
from ..probes import PROBES as ALL
from ..probes import Probe, find
from ..probes.base import rank_correlation
from ..results.aggregate import aggregate, probe_of
from ..sources.sizes import PRECISIONS
from ..statistics import Interval
from ..types import ModelSpec, ProbeResult, Prompt, Request
from .continuous import MeanDepth
from .criteria import RULES, Criterion
from .verdict import READS, Together, of_prompts
from .wording import apart, listed, mean_depth, named_layer, past, printed

PROBES = tuple(probe() for probe in ALL if probe.audited)
DRAWN = {f"{probe.name}.{curve.name}": curve for probe in PROBES for curve in probe.audit_curves}
AT_LEAST_ELSE = 0.98
SEEN = 0.05  # of a mean depth: moves that its printed figure does not show count as none
AT_LEAST = {
    "int8": 0.98,
    "4bit": 0.9,
}  # what is expected of a sound model; below it the curve is an artefact, or nearly flat


@dataclass(frozen=True)
class Comparison:
    """One curve in one precision. `spearman` is None where a curve is constant or has fewer than three values;
    `difference` is relative to the reference's range; `collapsed`: it is constant in one of the two alone; `lost`: it
    has values that are finite in one of the two alone, and is compared without them."""

    precision: str
    curve: str
    spearman: float | None
    difference: float
    collapsed: bool = False
    lost: bool = False

    @property
    def beyond(self) -> bool:
        """Whether the order differs by more than is expected of this precision."""
        limit = AT_LEAST.get(self.precision, AT_LEAST_ELSE)
        return self.lost or (self.collapsed if self.spearman is None else self.spearman < limit)

    @property
    def title(self) -> str:
        """What the curve is called."""
        probe, _, measure = self.curve.partition(".")
        return find(probe).spec(measure.removesuffix("_mean")).title


@dataclass(frozen=True)
class Row:
    """One figure in every precision: `cells` in words, and in which it differs by more than is expected."""

    title: str
    cells: Mapping[str, str]
    beyond: frozenset[str]


@dataclass(frozen=True)
class Audit:
    """All curves `[precision][probe.measure]`, how they compare, and the verdicts over prompts `[precision]`."""

    reference: str
    curves: Mapping[str, Mapping[str, np.ndarray]]
    comparisons: tuple[Comparison, ...]
    verdicts: Mapping[str, Together] = field(default_factory=dict)

    @property
    def depths(self) -> dict[str, Mapping[str, Criterion]]:
        """The criteria `[precision][criterion]`."""
        return {precision: found.criteria for precision, found in self.verdicts.items()}

    def shift(self, precision: str, criterion: str) -> int | None:
        """Layers the effective depth moved by; None where either is not defined."""
        here, there = self.depths[precision][criterion].depth, self.depths[self.reference][criterion].depth
        return None if here is None or there is None else here - there

    def moved(self, precision: str, criterion: str) -> bool:
        """Whether the effective depth moved by more than a layer, or is defined in one of the two only."""
        here, there = self.depths[precision][criterion].depth, self.depths[self.reference][criterion].depth
        if here is None or there is None:
            return here != there
        return abs(here - there) > 1

    def mean_moved(self, precision: str, name: str) -> bool:
        """Whether a mean depth lies outside the reference's interval over prompts, or is defined in one of the two
        only. Of too few prompts for an interval nobody can tell: False."""
        here, there = (self.verdicts[p].means[name] for p in (precision, self.reference))
        if here.depth is None or there.depth is None:
            return (here.depth is None) != (there.depth is None)
        if there.interval is None or there.interval.ends is None:
            return False
        low, high = there.interval.ends
        return not low - SEEN <= here.depth <= high + SEEN

    def rows(self) -> list[Row]:
        """Everything that is compared, the depths first, without a threshold before those with one."""
        out = []
        for name in self._means():
            cells = {p: _around(v.means[name]) for p, v in self.verdicts.items()}
            beyond = frozenset(p for p in self.verdicts if self.mean_moved(p, name))
            out.append(Row(f"Mean depth, {RULES[name].label}", cells, beyond))
        for name in self.depths.get(self.reference, {}):
            cells = {
                p: _in_layers(v.criteria[name], self.shift(p, name), v.intervals[name])
                for p, v in self.verdicts.items()
            }
            beyond = frozenset(p for p in self.depths if self.moved(p, name))
            out.append(Row(f"Effective depth, {RULES[name].label} rule", cells, beyond))
        by_curve: dict[str, list[Comparison]] = {}
        for c in self.comparisons:
            by_curve.setdefault(c.curve, []).append(c)
        for found in by_curve.values():
            beyond = frozenset(c.precision for c in found if c.beyond)
            out.append(Row(found[0].title, {c.precision: _in_figures(c) for c in found}, beyond))
        return out

    def _means(self) -> list[str]:
        """The mean depths that every precision has."""
        every = [found.means for found in self.verdicts.values()]
        return [name for name in (every[0] if every else ()) if all(name in means for means in every)]

    def findings(self) -> list[str]:
        """What differs more than is expected: sentences, empty where the precision makes no difference that matters."""
        found = []
        for c in self.comparisons:
            if c.collapsed or c.lost:
                what = "has values that are not finite" if c.lost else "is constant"
                found.append(f"{c.precision}: {c.title} {what} in {c.precision} or in {self.reference}, not in both")
            elif c.spearman is not None and c.beyond:
                limit = AT_LEAST.get(c.precision, AT_LEAST_ELSE)
                rho = past(c.spearman, limit, 3).replace("-", "−")
                found.append(
                    f"{c.precision}: {c.title} is ordered differently from {self.reference} (ρ = {rho}, expected at "
                    f"least {limit:g})"
                )
        for precision in self.verdicts:
            for name in self._means():
                if self.mean_moved(precision, name):
                    here, there = (_around(self.verdicts[p].means[name]) for p in (precision, self.reference))
                    found.append(
                        f"{precision}: mean depth by {RULES[name].label} is {here}, in {self.reference} {there}"
                    )
        for precision in self.curves:
            for name in self.depths.get(precision, {}) if precision != self.reference else ():
                this, that = self.depths[precision][name], self.depths[self.reference][name]
                rule = f"the papers' {RULES[name].label} rule"
                if self.moved(precision, name):
                    here, there = named_layer(this.depth), named_layer(that.depth)
                    found.append(f"{precision}: {rule} gives {here}, in {self.reference} {there}")
        return found

    def sentence(self) -> str:
        """The answer to "is my number an artefact of its precision?", with the figures it rests on."""
        found, names = self.findings(), [p for p in self.curves if p != self.reference]
        others = listed(names)
        if found:
            of = sum(precision != self.reference for row in self.rows() for precision in self.curves)
            if not self._judges_means():
                means = [(p, name) for p in self.verdicts for name in self._means() if p != self.reference]
                of -= sum(not self.mean_moved(*one) for one in means)
            figures, differ = f"figure{'s' * (of > 1)}", "differ" if len(found) > 1 else "differs"
            return f"{len(found)} of {of} {figures} {differ} from {self.reference} by more than expected."
        ordered = [(c.spearman, c) for c in self.comparisons if c.spearman is not None]
        if not ordered:
            return (
                f"No order to compare: every curve has fewer than three values, or is constant in {self.reference} or "
                f"in {others}."
            )
        lowest, worst = min(ordered, key=itemgetter(0))
        least = f"least: “{worst.title}” in {worst.precision}"
        order = f"every curve's rank correlation is at least {_rho(math.floor(lowest * 1000) / 1000)} ({least})"
        if lowest == 1:
            order = "every curve keeps its order"
        shifts = [
            s
            for p in self.depths
            if p != self.reference
            for name in self.depths[p]
            if (s := self.shift(p, name)) is not None
        ]
        furthest = max(map(abs, shifts), default=0)
        moved = (
            f"no layer of the papers' rules moves by more than {furthest}"
            if furthest
            else "the papers' rules give the same layers"
        )
        told = [order, *self._mean_shift(), *([moved] if shifts else [])]
        judged = ["curve's order", *["mean depth"] * self._judges_means(), *["rule's layer"] * bool(shifts)]
        what = listed(judged, "or")
        held = f"against {self.reference}, in {others} {'; '.join(told)}"
        return f"No {what} differs by more than expected: {held}."

    def _judges_means(self) -> bool:
        """Whether mean depths have intervals, without which nothing says how far they may move."""
        of = [v.means[name].interval for v in self.verdicts.values() for name in self._means()]
        return bool(of) and all(one is not None and one.ends is not None for one in of)

    def _mean_shift(self) -> list[str]:
        """How far the mean depths move at most, a clause."""
        means = {p: v.means for p, v in self.verdicts.items()}
        both = [
            abs(here - there)
            for p in means
            for name in self._means()
            if p != self.reference
            and (here := means[p][name].depth) is not None
            and (there := means[self.reference][name].depth) is not None
        ]
        unjudged = "" if self._judges_means() else " (not judged: too few prompts)"
        return [f"mean depths move by at most {printed(max(both), '.2g')} layers{unjudged}"] if both else []

    def together(self) -> list[str]:
        """What the reference says of several prompts together, in sentences; nothing for one prompt."""
        found = self.verdicts.get(self.reference)
        if found is None or found.n_prompts < 2:
            return []
        return [f"In {self.reference}, over {found.n_prompts} prompts ({found.n_tokens} tokens):", *found.lines]

    def arrays(self) -> dict[str, np.ndarray]:
        """For an `.npz`: `<precision>.<probe>.<measure>`, `spearman.<precision>.<probe>.<measure>`, and all verdicts as
        JSON."""
        out = {
            f"{precision}.{name}": values
            for precision, curves in self.curves.items()
            for name, values in curves.items()
        }
        for c in self.comparisons:
            out[f"spearman.{c.precision}.{c.curve}"] = np.asarray(np.nan if c.spearman is None else c.spearman)
        depths = {
            p: {
                name: {
                    "depth": c.depth,
                    "reason": c.reason,
                    **{variant: found.depth if found else None for variant, found in c.variants.items()},
                }
                for name, c in of_one.items()
            }
            for p, of_one in self.depths.items()
        }
        means = {p: {name: mean.depth for name, mean in v.means.items()} for p, v in self.verdicts.items()}
        told = {"reference": self.reference, "mean_depth": means, "effective_depth": depths}
        return out | {"summary": np.asarray(json.dumps(told | {"findings": self.findings()}))}

    def npz(self) -> bytes:
        """`arrays` as the content of an `.npz`."""
        buffer = io.BytesIO()
        np.savez(buffer, **self.arrays())  # type: ignore[arg-type]  # no array is named allow_pickle
        return buffer.getvalue()


def plan(specs: Mapping[str, ModelSpec], prompts: Sequence[Prompt]) -> dict[str, list[Request]]:
    """The requests an audit consists of, by precision; ordinary ones, so that what is stored already is not computed
    again. `specs`: the model in each precision (`work.resolve.in_precisions`)."""
    if len(specs) < 2:
        raise ParameterError(f"An audit compares at least two precisions; {', '.join(specs) or 'none'} given.")
    return {name: [probe.request(one, prompt) for probe in PROBES for prompt in prompts] for name, one in specs.items()}


def reference_of(precisions: Sequence[str]) -> str:
    """The widest of them: what the others are held against."""
    return min(precisions, key=[*PRECISIONS, *precisions].index)


def compare(results: Mapping[str, Sequence[ProbeResult]], reference: str) -> Audit:
    """The audit of complete results (of any of `PROBES`, the same prompts in every precision)."""
    curves = {precision: curves_of(of_one) for precision, of_one in results.items()}
    comparisons = []
    for precision in results:
        for name, values in curves[precision].items() if precision != reference else ():
            finite = [np.isfinite(one) for one in (values, curves[reference][name])]
            here, expected = (one[np.logical_and(*finite)] for one in (values, curves[reference][name]))
            spread = float(np.ptp(expected)) if len(expected) else 0.0
            difference = float(np.abs(here - expected).max(initial=0.0)) / (spread or 1.0)
            collapsed = bool(len(here) and np.ptp(here) == 0) != bool(len(here) and spread == 0)
            lost, rho = bool((finite[0] != finite[1]).any()), rank_correlation(here, expected)
            comparisons.append(Comparison(precision, name, rho, difference, collapsed, lost))
    verdicts = {}
    for precision, of_one in results.items():
        by_probe = _by_probe(of_one)
        if set(READS) <= set(by_probe):
            contributions, lens = (by_probe[name] for name in READS)
            forms = [r.request.prompts[0].form for r in lens]
            verdicts[precision] = of_prompts(contributions, lens, forms=forms)
    return Audit(reference, curves, tuple(comparisons), verdicts)


def curves_of(results: Sequence[ProbeResult]) -> dict[str, np.ndarray]:
    """The aggregated curves of one precision's results: `{"logit_lens.kl": array, …}`."""
    found: dict[str, np.ndarray] = {}
    for probe, of_probe in _by_probe(results).items():
        aggregates = aggregate(probe_of(of_probe[0]), [r.summary for r in of_probe])
        found |= {f"{probe}.{name}": np.asarray(aggregates[name]) for name in find(probe).audited if name in aggregates}
    return found


def table(audit: Audit) -> list[str]:
    """The audit in lines of text: a row per curve, a column per precision, then the depths."""
    others = [p for p in audit.curves if p != audit.reference]

    def show(value: float | None) -> str:
        return "no order" if value is None else f"{value:.3f}"

    cells = {(c.curve, c.precision): f"{show(c.spearman):>9} ({c.difference:.1%})" for c in audit.comparisons}
    lines = [
        f"ρ: rank correlation with {audit.reference} (largest difference over the curve's range)",
        f"{'curve':<28}" + "".join(f"{p:>20}" for p in others),
    ]
    lines += [
        f"{name:<28}" + "".join(f"{cells[name, p]:>20}" for p in others) for name in audit.curves[audit.reference]
    ]
    if audit.depths:
        precisions = (audit.reference, *others)
        lines.append(f"{'mean depth':<28}" + "".join(f"{p:>20}" for p in precisions))
        for name in audit._means():
            cells_of = (_around(audit.verdicts[p].means[name]) for p in precisions)
            lines.append(f"{name:<28}" + "".join(f"{cell:>20}" for cell in cells_of))
        lines.append(f"{'effective depth':<28}" + "".join(f"{p:>20}" for p in precisions))
        for name in audit.depths[audit.reference]:
            lines.append(f"{name:<28}" + "".join(f"{_depth(audit.depths[p][name]):>20}" for p in precisions))
        lines += audit.together()
    findings = audit.findings()
    return lines + (findings or [f"no curve and no depth differs from {audit.reference} beyond what is expected"])


def todo(requests: Sequence[Request], stored: Mapping[str, ProbeResult | None]) -> list[tuple[Probe, Request]]:
    """The requests that are not stored, each with its probe."""
    return [(find(r.probe).make(dict(r.parameters)), r) for r in requests if stored[r.key] is None]


def _in_layers(criterion: Criterion, shift: int | None, interval: Interval | None) -> str:
    """A depth, by how far it moved, and its interval over prompts: 5–95 % and the share without a depth."""
    moved = "" if criterion.depth is None or not shift else f" ({printed(shift, '+d')})"
    if interval is None or interval.ends is None:
        return f"{_depth(criterion)}{moved}"
    none = f", none in {100 * interval.undefined:.1f} %" if interval.undefined else ""
    return f"{_depth(criterion)}{moved}, {apart(*interval.ends)}{none}"


def _around(mean: MeanDepth) -> str:
    """A mean depth with its interval over prompts."""
    if mean.depth is None:
        return "not defined"
    return mean_depth(mean.depth, *((mean.interval and mean.interval.ends) or ()))


def _in_figures(c: Comparison) -> str:
    order = "no order" if c.spearman is None else f"ρ = {_rho(c.spearman)}"
    return f"{order}, {100 * c.difference:.1f} %"


def _rho(value: float) -> str:
    return printed(value, ".3f")


def _depth(criterion: Criterion) -> str:
    return "not defined" if criterion.depth is None else str(criterion.depth)


def _by_probe(results: Sequence[ProbeResult]) -> dict[str, list[ProbeResult]]:
    found: dict[str, list[ProbeResult]] = {}
    for result in results:
        found.setdefault(result.request.probe, []).append(result)
    return found
