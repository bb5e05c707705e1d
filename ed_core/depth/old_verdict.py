"""The verdict on depth: what is seen at the answer, the depth without a threshold and the turn, and the papers' rules,
read off results with their uncertainty: of one prompt, and of several together on one model. Numpy only.

Over prompts the uncertainty is an interval over the units that are independent, templates where enough are known
(`statistics.units`), and curves are token-weighted means over all tokens of all prompts (Hu et al. 2025); a single
prompt has no interval, so what is shown is the threshold band: how far a rule's figure moves when the threshold does. A
verdict may be read for all tokens, for those that predict the answer, or for one; beside it, in the same way, what
untrained twins give."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import statistics
from ..prompts import answer_with_seam, exact
from ..statistics import Interval, Units, units
from ..types import ProbeResult
from . import answer, continuous, wording
from .criteria import BEST, COSINES, KL_THRESHOLD, OVERLAP_THRESHOLD, RULES, Criterion, Rule, depths, threshold_band
from .sinks import Sink, of_result
from .wording import Reading, Twins

READS = ("contributions", "logit_lens")  # the probes it is made of
ALL, ANSWER = "all", "answer"  # tokens that a verdict is read for; or one, by its position
Pair = tuple[ProbeResult, ProbeResult]  # complete `contributions` and `logit_lens` of one prompt


@dataclass(frozen=True)
class Verdict:
    """One prompt's verdict: what is seen at its answer, the mean depths, the turn, and three criteria (never averaged)
    with what each says.

    `curves`: what each criterion was read off, `[layer]`; without an entry where there is none. `bands`: the depths
    that other thresholds give. `means`: by "kl" and "overlap". `turn`: None where there is nothing to fit. `twins`:
    what copies of the model give. `sinks`: the prompt's, None where they cannot be told. `of`: the tokens it was read
    for, `where` in words."""

    criteria: Mapping[str, Criterion]
    curves: Mapping[str, np.ndarray]
    bands: Mapping[str, tuple[int, int] | None]
    statements: Mapping[str, wording.Statement]
    means: Mapping[str, continuous.MeanDepth]
    turn: continuous.Turn | None
    seen: tuple[answer.Seen, ...]
    twins: Twins
    sinks: tuple[Sink, ...] | None = None
    of: str | int = ALL
    where: str = ""

    @property
    def lead(self) -> str:
        """What can be seen at the answer."""
        return answer.sentence(self.seen)

    @property
    def settles(self) -> str:
        """Where the lens settles, and whether the cosine turns."""
        return wording.settles(self.means, self.turn, self.twins, self.where)

    @property
    def rules(self) -> str:
        """What the papers' rules give."""
        return wording.rules(self.criteria, self.statements, there=bool(self.where))

    @property
    def reasons(self) -> list[str]:
        """What stands behind it: a sentence for each rule, and more on the answer."""
        return [*filter(None, [answer.beside(self.seen)]), *(said.sentence for said in self.statements.values())]

    @property
    def sentence(self) -> str:
        """The whole verdict: what is seen, then both lines."""
        return " ".join(filter(None, [self.lead, self.settles, self.rules]))

    @property
    def lines(self) -> dict[str, int | None]:
        """The depth each criterion gives, for the dashed lines across the panels."""
        return {name: criterion.depth for name, criterion in self.criteria.items()}


def of_prompt(
    contributions: ProbeResult,
    lens: ProbeResult,
    first_token: bool = True,
    kl: float = KL_THRESHOLD,
    overlap: float = OVERLAP_THRESHOLD,
    of: str | int = ALL,
    twins: Sequence[Pair] = (),
    kind: str = "untrained",
) -> Verdict:
    """The verdict on one prompt from its complete `contributions` and `logit_lens`. `first_token`: whether the mean
    cosine over all tokens counts the first one. `of`: `ALL`, `ANSWER`, or a token's position. `twins`: the same results
    of controls of this `kind`, one for each seed."""
    criteria, bands, read_off, found = {}, {}, {}, of_result(contributions)
    others = _others([lens], of)
    for rule, threshold in _rules(kl, overlap):
        results, counted = [lens if rule.of_lens else contributions], first_token or rule.of_lens
        criteria[rule.name], sums, counts = _judged(rule, threshold, results, counted, [found], others)
        if sum(counts) and lens.n_layers > 1:
            read_off[rule.name] = rule.curve(_means(sums, counts))
            bands[rule.name] = threshold_band(rule.judge, read_off[rule.name], rule.band)
    readings = tuple(reading([a], [b], first_token, kl, overlap, of) for a, b in twins)
    beside = Twins(kind, readings)
    turned = held(turn([contributions], first_token, of=of), beside)
    said = {n: wording.statement(c, read_off.get(n), beside) for n, c in criteria.items()}
    means, seen = mean_depths([lens], of=of), answer.look(lens)
    return Verdict(criteria, read_off, bands, said, means, turned, seen, beside, found, of, where(lens, of))


def held(turn: continuous.Turn | None, twins: Twins) -> continuous.Turn | None:
    """The turn, held against five untrained twins."""
    return continuous.against_twins(turn, [r.turn for r in twins.readings]) if turn and twins.enough else turn


def tokens_of(of: str | int, answered: bool = True) -> str:
    """The tokens that a verdict is read for, in words; `answered`: whether there is an answer."""
    predicts = "where the answer is predicted" if answered else "the last token"
    return {ALL: "all tokens", ANSWER: predicts}.get(str(of), f"token {of}")


def where(lens: ProbeResult, of: str | int) -> str:
    """For which tokens a verdict was read, to begin a sentence with; "" for all."""
    if of == ALL:
        return ""
    if of == ANSWER:
        return "Where the answer is predicted" if lens.answer_start is not None else "At the last token"
    return f"At token {of}"


def reading(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool,
    kl: float,
    overlap: float,
    of: str | int = ALL,
) -> Reading:
    """What a twin gives: rules without variants, mean depths, turn."""
    others, criteria = _others(lens, of), {}
    for rule, threshold in _rules(kl, overlap):
        results, counted = lens if rule.of_lens else contributions, first_token or rule.of_lens
        sums, counts = prompt_sums(results, rule.measures, counted or others is not None, others)
        undefined = _undefined(rule.name, counts, results[0].n_layers, "to read")
        criteria[rule.name] = undefined or rule.of(_means(sums, counts), threshold)
    return Reading(criteria, mean_depths(lens, of=of), turn(contributions, first_token, of=of))


def positions(result: ProbeResult, of: str | int) -> frozenset[int] | None:
    """The positions that a verdict on these tokens is read at: of the answer those that predict it (the last one where
    none is known); None for all. A `ValueError` for a position that the prompt does not have."""
    n, start = result.n_tokens, result.answer_start
    if of == ALL:
        return None
    if of == ANSWER:
        return frozenset(range(start - 1, n - 1)) if start is not None and 0 < start < n else frozenset({n - 1})
    if not isinstance(of, int) or not 0 <= of < n:
        raise ValueError(f"A verdict is read for {ALL!r}, {ANSWER!r} or a position from 0 to {n - 1}; found {of!r}.")
    return frozenset({of})


def _others(results: Sequence[ProbeResult], of: str | int) -> list[set[int]] | None:
    """The positions of a single prompt that a verdict on these tokens leaves out; None where all tokens count."""
    only = positions(results[0], of) if len(results) == 1 else None
    return None if only is None else [set(range(results[0].n_tokens)) - only]


def verdicts(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool = True,
    forms: Sequence[str] = (),
) -> Iterator[tuple[str, Criterion, Interval | None]]:
    """Over prompts, with the papers' thresholds: `(name, criterion, (low, high, share undefined))`; None for the
    interval where there are too few prompts. `forms`: the template of each (`statistics.units`)."""
    for name, criterion, _, interval in over_prompts(contributions, lens, first_token, forms=forms):
        yield name, criterion, interval


def over_prompts(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool = True,
    kl: float = KL_THRESHOLD,
    overlap: float = OVERLAP_THRESHOLD,
    forms: Sequence[str] = (),
) -> Iterator[tuple[str, Criterion, np.ndarray | None, Interval | None]]:
    """The same with the curve each criterion was read off, `[layer]`, token-weighted over the prompts (None where there
    is none), with any thresholds."""
    found, over = [of_result(result) for result in contributions], units(len(lens), forms)
    for rule, threshold in _rules(kl, overlap):
        results, counted = lens if rule.of_lens else contributions, first_token or rule.of_lens
        criterion, sums, counts = _judged(rule, threshold, results, counted, found)
        has_curve = sum(counts) and lens[0].n_layers > 1
        curve = rule.curve(_means(sums, counts)) if has_curve else None
        yield rule.name, criterion, curve, interval_of(rule, sums, counts, over, threshold) if has_curve else None


def _rules(kl: float, overlap: float) -> list[tuple[Rule, float]]:
    """The rules with their thresholds."""
    given = {"kl": kl, "overlap": overlap}
    return [(rule, given.get(name, rule.threshold)) for name, rule in RULES.items()]


def _means(sums: Mapping[str, np.ndarray], counts: Sequence[int]) -> dict[str, np.ndarray]:
    """Of all tokens of all prompts, from the prompts' sums `[prompt, layer]`."""
    return {name: values.sum(0) / sum(counts) for name, values in sums.items()}


def interval_of(
    rule: Rule,
    sums: Mapping[str, np.ndarray],
    counts: Sequence[int],
    over: Units,
    threshold: float | None = None,
) -> Interval | None:
    """Of a rule over prompts, from resamples of their units; None where there are too few. `threshold`: the papers'
    unless given."""
    if not over.enough:
        return None

    def read(curves: Mapping[str, np.ndarray]) -> np.ndarray:
        found = np.mean(list(curves.values()), 0)
        return depths(rule.name, found[:, :-1] if rule.of_lens else found, "paper", threshold)

    return statistics.interval(statistics.percentile(read, sums, counts, over))


def mean_depths(
    lens: Sequence[ProbeResult], forms: Sequence[str] = (), of: str | int = ALL
) -> dict[str, continuous.MeanDepth]:
    """The depth without a threshold, by "kl" and "overlap", of complete `logit_lens` results: of one prompt its own
    curve (read for the tokens `of`), of several the mean over all tokens with its interval over prompts. `forms`: the
    template of each prompt (`statistics.units`)."""
    found, over = {}, units(len(lens), forms)
    for name in continuous.MEAN_DEPTH:
        if all(name in result.measures for result in lens):
            sums, counts = prompt_sums(lens, (name,), True, _others(lens, of))
            found[name] = continuous.over_prompts(name, sums[name], counts, over)
    return found


def turn(
    contributions: Sequence[ProbeResult],
    first_token: bool = True,
    forms: Sequence[str] = (),
    of: str | int = ALL,
) -> continuous.Turn | None:
    """The cosine's turn as a two-level fit, of complete `contributions` results; None where there is nothing to fit."""
    others = _others(contributions, of)
    sums, counts = prompt_sums(contributions, COSINES, first_token or others is not None, others)
    return continuous.fit_over_prompts(sums, counts, units(len(contributions), forms))


def prompt_sums(
    results: Sequence[ProbeResult],
    names: Sequence[str],
    first_token: bool,
    left_out: Sequence[Collection[int]] | None = None,
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Per-prompt sums over tokens `[prompt, layer]` and token counts, from the summaries. `left_out`: positions that do
    not count, of each prompt; the sums are then made of the measures, whose summaries cannot leave a token out."""
    if left_out is not None:
        start = int(not first_token)
        kept = [[t for t in range(start, r.n_tokens) if t not in out] for r, out in zip(results, left_out, strict=True)]
        return {
            n: np.stack([np.sum(r[n][:, at], -1, dtype=np.float64) for r, at in zip(results, kept)]) for n in names
        }, [len(at) for at in kept]
    sums = {
        n: np.stack([r.summary[f"{n}.sum"] - (0 if first_token else r.summary[f"{n}.first"]) for r in results])
        for n in names
    }
    return sums, [r.n_tokens - (not first_token) for r in results]


def right(continuation: ProbeResult) -> bool | None:
    """Whether the greedy continuation is the known answer (`prompts.exact`); None without an answer."""
    answer, start = continuation.request.prompts[0].answer, continuation.answer_start
    if not answer.strip():
        return None
    laid = "".join(continuation.tokens[start:]) if start else ""
    return exact(continuation.provenance.get("continuation", ""), answer_with_seam(answer, laid))


def _judged(
    rule: Rule,
    threshold: float,
    results: Sequence[ProbeResult],
    first_token: bool,
    sinks: Sequence[Sequence[Sink] | None],
    others: list[set[int]] | None = None,
) -> tuple[Criterion, dict[str, np.ndarray], list[int]]:
    """A criterion with its variants, the sums over tokens it is read off, and the token counts. `sinks`: of each
    prompt, None where they cannot be told: then there is no `without_sinks`. `others`: the positions of a single prompt
    that do not count, whatever `first_token` says."""
    first_token = first_token or others is not None

    def read(
        left_out: Sequence[Collection[int]] | None = None, left: str = "when the first is not counted"
    ) -> tuple[Criterion, dict[str, np.ndarray], list[int]]:
        sums, counts = prompt_sums(results, rule.measures, first_token, left_out)
        undefined = _undefined(rule.name, counts, results[0].n_layers, left)
        return undefined or rule.of(_means(sums, counts), threshold), sums, counts

    whole, sums, counts = read(others)
    if rule.of_lens:
        whole = replace(whole, best=int(dict(results[0].request.parameters).get("k", BEST)))
    known = [found for found in sinks if found is not None]
    if len(known) < len(sinks) or any(n not in r.measures for r in results for n in rule.measures):
        return whole, sums, counts
    at = [{s.pos for s in found} for found in known]
    if others is not None:
        at = [at[0] | others[0]] if at[0] - others[0] else [set()]
    without: Criterion | None = read(at, "without the sinks")[0] if any(at) else whole
    if sum(counts) and sum(r.n_tokens - len(out) for r, out in zip(results, at)) <= 0:
        without = None  # every token that is read is a sink
    return replace(whole, without_sinks=without), sums, counts


def _undefined(name: str, counts: Sequence[int], n_layers: int, left: str) -> Criterion | None:
    """The reason why there is no curve to read, where there is none."""
    if not sum(counts):
        return Criterion(name, None, None, n_layers, reason=f"no token is left {left}")
    return None


@dataclass(frozen=True)
class Together:
    """Several prompts' verdict. `curves`: what each criterion was read off, `[layer]`, without an entry where there is
    none. `means`: mean depths with their intervals. `seen`: of each prompt what is seen at its answer."""

    n_prompts: int
    n_tokens: int
    criteria: Mapping[str, Criterion]
    curves: Mapping[str, np.ndarray]
    intervals: Mapping[str, Interval | None]
    statements: Mapping[str, wording.Statement]
    means: Mapping[str, continuous.MeanDepth]
    turn: continuous.Turn | None
    seen: tuple[tuple[answer.Seen, ...], ...]
    over: Units
    twins: Twins

    @property
    def lead(self) -> str:
        """What can be seen at the answers."""
        return answer.over_prompts(self.seen)

    @property
    def settles(self) -> str:
        """Where the lens settles, and whether the cosine turns."""
        return wording.settles(self.means, self.turn, self.twins, over=self.over)

    @property
    def rules(self) -> str:
        """What the papers' rules give."""
        return wording.rules(self.criteria, self.statements, self.intervals)

    @property
    def reasons(self) -> list[str]:
        """A sentence for each rule, with why it is not clear."""
        return [said.sentence for said in self.statements.values()]

    @property
    def sentence(self) -> str:
        """All of it but the reasons."""
        return " ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """What is seen, where the lens settles, what the rules give, and how prompts without forms count."""
        return [line for line in (self.lead, self.settles, self.rules, self.over.alone) if line]


def of_prompts(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool = True,
    kl: float = KL_THRESHOLD,
    overlap: float = OVERLAP_THRESHOLD,
    forms: Sequence[str] = (),
    twins: Sequence[tuple[Sequence[ProbeResult], Sequence[ProbeResult]]] = (),
) -> Together:
    """The verdict over prompts, from the complete `contributions` and `logit_lens` of each, in one order. `forms`: the
    template of each prompt, where known. `twins`: the same results of untrained twins, one pair of lists a seed."""
    criteria, curves, intervals, said = {}, {}, {}, {}
    over = units(len(lens), forms)
    beside = Twins("untrained", tuple(reading(a, b, first_token, kl, overlap) for a, b in twins))
    for name, criterion, curve, interval in over_prompts(contributions, lens, first_token, kl, overlap, forms):
        criteria[name], intervals[name] = criterion, interval
        said[name] = wording.over_prompts(criterion, curve, interval, over, beside)
        if curve is not None:
            curves[name] = curve
    return Together(
        len(lens),
        sum(result.n_tokens for result in lens),
        criteria,
        curves,
        intervals,
        said,
        mean_depths(lens, forms),
        held(turn(contributions, first_token, forms), beside),
        tuple(map(answer.look, lens)),
        over,
        beside,
    )


def told(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool = True,
    forms: Sequence[str] = (),
) -> list[str]:
    """The verdict on these prompts in lines: over several what is said of them together, of one its own."""
    if len(lens) == 1:
        return [of_prompt(contributions[0], lens[0], first_token).sentence]
    found = of_prompts(contributions, lens, first_token, forms=forms)
    return [f"Over {found.n_prompts} prompts ({found.n_tokens} tokens):", *found.lines]
