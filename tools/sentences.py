"""What the pages say, with an example of each sentence, in `docs/sentences.md`: `python -m tools.sentences` writes
it anew, `--check` says whether it is up to date.

A sentence is what a public function or property of the rooms in `ROOMS` gives as text. Each of them stands either in
`SAID`, under its page with a function that makes examples (on results that ship with the app, or on made-up ones, so
that every branch is seen), or in `PARTS`, where it gives no sentence of its own but a label, a file, or a part of one.
`unlisted` names those that stand in neither; a test holds it empty. The fixed words of the pages (*Papers saw*, *Look
for*, *By construction*, *Beware*) are read off the pages themselves."""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from ed_core.cards import words
from ed_core.cards.card import Card
from ed_core.claims import CLAIMS, finding
from ed_core.claims.claim import Claim, Estimate, Measured
from ed_core.claims.finding import Finding, adjusted
from ed_core.claims.record import Curve as ClaimCurve
from ed_core.claims.record import Found
from ed_core.depth import (
    among_others,
    answer,
    audit,
    criteria,
    exactness,
    halves,
    lenses,
    loops,
    matching,
    side_by_side,
    sinks,
    surgery,
    verdict,
    wording,
    writing,
)
from ed_core.depth.continuous import MeanDepth, Turn
from ed_core.depth.criteria import Criterion
from ed_core.depth.wording import Reading, Twins
from ed_core.probes import PROBES, Contributions, EarlyExit, LayerSkip, LogitLens, Numerics
from ed_core.probes.base import Curve
from ed_core.results import lookup
from ed_core.results.aggregate import summarize
from ed_core.sources.bundled import FITS, STUDIES
from ed_core.statistics import Interval, units
from ed_core.studies import reproduce
from ed_core.studies.study import SetEntry
from ed_core.types import Measure, ProbeResult, Request

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "sentences.md"
ROOMS = (
    "ed_core/depth/*.py",
    "ed_core/statistics.py",
    "ed_core/claims/finding.py",
    "ed_core/cards/words.py",
    "ed_core/studies/agreement.py",
    "ed_core/studies/difficulty.py",
    "ed_core/studies/trends.py",
    "ed_core/studies/leaderboard.py",
    "ed_core/studies/reproduce.py",
    "ed_core/studies/steps.py",
)
TEXTS = {"str", "list[str]", "Iterator[str]", "Said", "Statement", "wording.Statement", "tuple[str, str]", "str | None"}
PAGES = (
    "prompt/home",
    "prompt/contributions",
    "prompt/logit_lens",
    "prompt/lenses",
    "prompt/writing",
    "model/numerics",
    "model/loops",
    "intervene/skip",
    "intervene/erase",
    "intervene/gradients",
    "intervene/prune",
    "intervene/surgery",
    "compare/two",
    "compare/audit",
    "studies/difficulty",
    "compare/maps",
    "studies/studies",
    "model/claims",
    "model/cards",
    "case_studies/gallery",
    "case_studies/case",
)
WORDS = 6  # in a page's constant that holds a sentence
CODE = ("[[", "window.", "document.", "</", "=>")  # in one that is a script, a style or a file
Examples = Callable[[], Iterable[str]]


# ---------------------------------------------------------------- what the examples are made of


def shipped(probe: str, control: bool = False) -> list[ProbeResult]:
    """The shipped results of a probe, by model and prompt."""
    found = [r for r in map(lookup.by_key, lookup._names()) if r is not None and r.request.probe == probe]
    found = [r for r in found if bool(r.request.models[0].control) == control and r.complete]
    return sorted(found, key=lambda r: (r.request.models[0].name, r.request.prompts[0].text))


@cache
def both() -> dict[str, list[verdict.Pair]]:
    """Every shipped prompt that has both probes, by model."""
    lenses = {(r.request.models[0], r.request.prompts[0]): r for r in shipped("logit_lens")}
    found: dict[str, list[verdict.Pair]] = {}
    for made in shipped("contributions"):
        if lens := lenses.get((made.request.models[0], made.request.prompts[0])):
            found.setdefault(made.request.models[0].name, []).append((made, lens))
    return found


@cache
def verdicts() -> list[verdict.Verdict]:
    """On every shipped prompt; then with other prompts in the place of one twin and of five, at the answer, and at a
    token."""
    every = [pair for pairs in both().values() for pair in pairs]
    most = max(both().values(), key=len)
    return (
        [verdict.of_prompt(*pair) for pair in every]
        + [verdict.of_prompt(*pair, twins=most[:n]) for pair in most[:2] for n in (1, 5)]
        + [verdict.of_prompt(*most[0], of=of) for of in (verdict.ANSWER, 3)]
    )


@cache
def several() -> list[verdict.Together]:
    """The shipped prompts of the model that has most of them, together; then as if there were more of them, of one form
    and of many, and with five twins."""
    most = max(both().values(), key=len)
    sides = [list(side) for side in zip(*most, strict=True)]
    twice = [side * 2 for side in sides]
    twin = tuple([one] * len(twice[0]) for one in most[0])
    return [
        verdict.of_prompts(*sides),
        verdict.of_prompts(*twice, forms=["a"] * 10),
        verdict.of_prompts(*twice, forms=list("abcdefghij"), twins=[twin] * 5),
    ]


def of_verdicts(name: str) -> Iterator[str]:
    for found in verdicts():
        said = getattr(found, name)
        yield from [said] if isinstance(said, str) else said


def of_several(name: str) -> Iterator[str]:
    for found in several():
        said = getattr(found, name)
        yield from [said] if isinstance(said, str) else said


def made_up_twins(n: int, kind: str = "untrained", split: int = 3) -> Twins:
    """Copies whose rules give layers 3, 5, …, which settle at 4, 6, … of 10 and turn after `split` of ten layers."""
    return Twins(
        kind,
        tuple(
            Reading(
                {"cosine": Criterion("cosine", 3 + 2 * i, None, 10)},
                {"kl": MeanDepth("kl", 4.0 + 2 * i, 10)},
                Turn(10, split, -0.2, 0.2, 0.01, ""),
            )
            for i in range(n)
        ),
    )


def turns() -> Iterator[str]:
    """Of made-up fits: a turn with and without twins, and each way to have none."""
    turn = Turn(10, 3, -0.2, 0.2, 0.01, "")
    yield from (wording.turned(turn, made_up_twins(n)) for n in (0, 1, 5))
    yield wording.turned(replace(turn, before_ends=(-0.25, -0.15), after_ends=(0.15, 0.25)), made_up_twins(5))
    yield wording.turned(replace(turn, failed="order", p=0.3))
    yield wording.turned(replace(turn, failed="twins"), made_up_twins(5))
    for before, after in ((0.1, 0.3), (-0.3, -0.1), (-0.2, 0.2), (0.2, -0.2), (0.0, 0.3)):
        yield wording.turned(replace(turn, before=before, after=after, failed="sign"))


def settling() -> Iterator[str]:
    """Of made-up depths: with and without twins and intervals, and none."""
    kl, overlap = MeanDepth("kl", 5.2, 10), MeanDepth("overlap", 7.25, 10)
    for n in (0, 1, 5):
        yield wording.settles({"kl": kl, "overlap": overlap}, None, made_up_twins(n))
    yield wording.settles({"kl": kl}, None, made_up_twins(1, "shuffled"))
    sure = replace(kl, interval=Interval(4.9, 5.6, 0.0))
    for over in (units(10, ["a"] * 10), units(10, list("abcdefghij"))):
        yield wording.settles({"kl": sure, "overlap": overlap}, None, over=over)
    yield wording.settles({"kl": kl}, None, over=units(3))
    yield wording.settles({"kl": replace(kl, depth=None)}, None)


def by_rule() -> Iterator[tuple[wording.Statement, Criterion, np.ndarray]]:
    """Statements of made-up curves: clear, clear so far, not clear for each reason, and no layer."""
    step = np.repeat([-0.3, 0.3], [4, 6])
    for curve, twins in (
        (step, made_up_twins(0)),
        (step, made_up_twins(1)),
        (step, made_up_twins(5)),
        (step, replace(made_up_twins(5), readings=made_up_twins(1).readings * 5)),
        (np.array([-0.3, -0.02, 0.02, -0.01, 0.03, 0.3, 0.3, 0.3, 0.3, 0.3]), made_up_twins(0)),
        (np.repeat([-0.3, 0.3, -0.3], [2, 7, 1]), made_up_twins(0)),
        (np.repeat([-0.3, 0.3, -0.3], [2, 5, 3]), made_up_twins(0)),
        (np.full(10, 0.3), made_up_twins(0)),
        (np.full(10, -0.3), made_up_twins(0)),
    ):
        criterion = criteria.by_cosine(curve, 0.0)
        yield wording.statement(criterion, curve, twins), criterion, curve


def answers() -> Iterator[tuple[answer.Seen, ...]]:
    """What is seen at the answers of the shipped prompts, and of made-up ones, so that every branch is seen."""
    yield from (found.seen for found in verdicts())
    one = answer.Seen(0, "good", True, 30, 20, 5, 30, first_best=16, first_among=12)
    yield (one,)
    yield (replace(one, given=False, among=30),)
    yield (replace(one, best=None, among=28, instead="bad"),)
    yield (replace(one, best=None, among=None, instead="bad"),)
    yield (replace(one, best=0, first_best=0, among=0, first_among=0),)
    yield (one, replace(one, best=25))
    yield (one, one, one)
    yield (one, replace(one, token="better", best=None, instead="worse"))
    yield (replace(one, best=None),) * 2


TOKENS = [f"t{i}" for i in range(9)]


def long(spans: Mapping[int, tuple[tuple[int, float], ...]], n_layers: int = 12) -> tuple[sinks.Sink, ...]:
    """Sinks of made-up norms: by position, the depths from which the norm changes, and to what."""
    stream, attn, mlp = np.ones((n_layers + 1, 9)), np.full((n_layers, 9), 0.1), np.full((n_layers, 9), 0.1)
    for pos, changes in spans.items():
        for depth, size in changes:
            stream[depth:, pos] = size
            mlp[depth - 1, pos] = size
    return sinks.find(stream, attn, mlp)


def of_sinks() -> list[tuple[sinks.Sink, ...]]:
    return [
        (),
        long({0: ((3, 40.0),)}),
        long({0: ((3, 9.0), (6, 1.0), (8, 60.0)), 4: ((3, 8.0), (5, 1.0))}),
        long({pos: ((2, 10.0 + pos),) for pos in range(4)}),
    ]


def likenesses(*kinds: str) -> list[among_others.Likeness]:
    """Of a falling curve with the same, a similar, another and a constant one."""
    mine = np.array([8.0, 7, 5, 4, 2, 1, 0])
    theirs = {"same": mine, "similar": np.array([7.0, 8, 4, 5, 1, 2, 3]), "another": mine[::-1], "constant": np.ones(7)}
    titles = ("Relative contribution", "Mean cosine", "KL to the output", "Best tokens shared")
    return [
        among_others.likeness_of(Curve("c", title, "nats"), mine, theirs[kind])
        for kind, title in zip(kinds, titles, strict=False)
    ]


def among() -> Iterator[str]:
    for probe in (Contributions(), LogitLens(), LayerSkip()):
        summaries = [r.summary for r in shipped(probe.name)]
        own = [r.summary for r in shipped(probe.name) if r.request.models[0].name == "smollm2"] or summaries[:1]
        this, *others = (own * 3)[:6]
        yield among_others.sentence(probe, this, others)
        yield among_others.sentence(probe, this, [])


def behind() -> Iterator[str]:
    for probe in (Contributions(), LogitLens()):
        summaries = [r.summary for r in shipped(probe.name) if r.request.models[0].name == "smollm2"]
        yield from among_others.reasons(probe, summaries[0], summaries[1:])
        yield from among_others.reasons(probe, summaries[0], [*summaries[1:]] * 3)


def controls_() -> Iterator[str]:
    for kind in among_others.SAYS:
        yield among_others.against_control(kind, [likenesses("same")])
        yield among_others.against_control(kind, [likenesses("same", "same", "similar", "another")])
        yield among_others.against_control(kind, [likenesses("another", "another")])
        yield among_others.against_control(kind, [likenesses("constant")])
        yield among_others.against_control(
            kind, [likenesses("same", "another")] * 3 + [likenesses("another", "another")] * 2
        )
        yield among_others.against_control(kind, [likenesses("another")] * 5)


def written(changed: int, depth: float = 20.0, n: int = 20, at_0: int = 0) -> str:
    agrees = np.array([0.0] * changed + [1.0] * (n - changed))
    values = {
        "ids": np.arange(n),
        "settle_depth": np.full(n, 27.0),
        "exit_depth": np.where(np.arange(n) < at_0, 0, depth),
        "exit_agrees": agrees,
    }
    return writing.sentence(values, 30, 0.9)


def exits(changed: int, depth: float = 20.0, n: int = 40, at_0: int = 0) -> str:
    values = {"exit_depth": np.full(n, depth), "exit_agrees": np.array([0.0] * changed + [1.0] * (n - changed))}
    values["exit_depth"][:at_0] = 0
    measures = {name: Measure(EarlyExit.spec(name), one) for name, one in values.items()}
    made = ProbeResult(Request((), (), "early_exit", (), 1), measures, ("t",) * n, (0,) * n, None, 30)
    return writing.of_prompts([summarize(made)], 0.9)


def pairs() -> Iterator[side_by_side.Pair]:
    """Curves of made-up sides: other, the same, of models of other depth, constant, with a sink that is the
    difference."""
    curve = Curve("layer_ratio", "Relative contribution", "ratio")

    def pair(a, b, n_layers=None, **more):
        a, b = np.asarray(a, float), np.asarray(b, float)
        n_layers = n_layers or (len(a), len(b))
        m, t = side_by_side.matched(a, b, n_layers)
        return side_by_side.Pair(curve, a, b, n_layers, t - m, among_others.likeness_of(curve, m, t), **more)

    a, b = [1, 2, 3, 4], [1, 2, 3.5, 2]
    yield pair(a, b)
    yield pair(a, a)
    yield pair(a, [9, 4.5])
    yield pair([1, 1, 1], [1, 2, 3])
    yield pair([np.nan] * 3, [1, 2, 3])
    yield pair(a, b, counted=np.array([0, 0, 90.0, 0]), sinks="the sink (token 0)")
    yield pair(a, b, counted=np.array([0, 0, 0.4, -2.0]), sinks="the sink (token 0)")


def cells() -> Iterator[str]:
    z = np.zeros((4, 5))
    z[2, 0] = 9.0
    yield side_by_side.largest_cell(z, "layer", (0,))
    z[1, 3] = 0.5
    yield side_by_side.largest_cell(z, "layer", (0,))
    yield side_by_side.largest_cell(z, "layer", ())


def no_map() -> Iterator[str]:
    found = shipped("logit_lens")
    a = found[0]
    for b in found[1:]:
        if b.tokens != a.tokens:
            yield side_by_side.no_difference(a, b, ("depth", "pos"))
            break
    yield side_by_side.no_difference(a, a, ("step",))


def surgeries(say: Callable[..., Any]) -> Iterator[str]:
    nan = float("nan")
    cost = np.full((3, 4), nan)
    for (i, j), loss in {(0, 1): 9, (1, 2): 2.5, (2, 3): 3, (0, 2): 9, (1, 3): 4, (0, 3): 11}.items():
        cost[i, j] = loss
    for kind, whole in (("drop", 2.0), ("swap", 2.0), ("repeat", 2.6), ("repeat", 1.0)):
        curves = {f"{kind}_{name}": cost for name in ("loss", "kl", "top1_kept")}
        curves |= {"loss_whole": np.asarray(whole), "random_loss": np.array([2.55, 7, 8])}
        curves |= {"angular_distance": np.ones((3, 4)), "block_influence": cost, "update_cosine": -cost}
        said = say(curves, kind, surgery.rows(curves, kind, [2, 1, 0]))
        yield from [said] if isinstance(said, str) else said
    said = say({"loss_whole": np.asarray(1.0)}, "drop", [])
    yield from [said] if isinstance(said, str) else said


def orders() -> Iterator[str]:
    costs = {"order_loss": 2.5, "loss_whole": 2.0, "order_kl": 0.41, "order_top1_kept": 0.8}
    curves = {name: np.asarray(value) for name, value in costs.items()}
    for order in ([0, 1, 3], [0, 1, 1, 2, 3], [2]):
        yield surgery.ordered(curves, order, 4)
    yield surgery.ordered(curves | {"order_loss": np.asarray(np.inf)}, [0, 1, 3], 4)


ANSWERS = (([0.25, 1, 0.5, 0.25], 0.75, 4), ([1, 1, 0, 1], 1, 1), ([0, 0, 0, 0], 0.5, 2))


def generated(say: Callable[..., Any]) -> Iterator[str]:
    curves = {"nll": np.array([2.5, 2.0, 3.0, 2.25]), "nll_whole": np.asarray(2.0)}
    for exact, whole, n in ANSWERS:
        share = {"exact": np.array(exact, float), "exact_whole": np.asarray(whole)}
        if say is surgery.generated:
            yield say(share, n)
        else:
            yield from say(curves, share, n)


def numerics(say: Callable[[ProbeResult], Any]) -> Iterator[str]:
    """Of a made-up result that passes, one whose error is beyond rounding, and one that fails."""
    n_layers, n_tokens, spec = 4, 5, Numerics.spec

    def result(miss=1e-8, slope=1.0, closure=1e-7, suffix=1e-7, norm=1.0, end=1.0):
        stream = np.ones((n_layers + 1, n_tokens))
        stream[2:, 0], stream[-1, 3] = norm, end
        values = {
            "miss": np.full((n_layers, n_tokens), miss),
            "rounding": np.full((n_layers, n_tokens), 3e-8),
            "slope_attn": np.full(n_layers, slope),
            "slope_mlp": np.ones(n_layers),
            "closure": closure,
            "replay": 1e-7,
            "detour": 0.0,
            "suffix": suffix,
            "resid_norm": stream,
        }
        base = shipped("contributions")[0]
        measures = {name: Measure(spec(name), np.asarray(v, np.float32)) for name, v in values.items()}
        limits = {"miss": 1e-5, "slope": 1e-4}
        return replace(
            base,
            measures=measures,
            tokens=tuple(TOKENS[:n_tokens]),
            token_ids=tuple(range(n_tokens)),
            provenance={"limits": limits},
            summary={},
        )

    for one in (
        result(),
        result(miss=1e-6),
        result(miss=1e-3, slope=1.5, closure=0.2, suffix=1.0),
        result(norm=40.0),
        result(end=40.0),
    ):
        yield say(one).text


def first_tokens() -> Iterator[str]:
    curve = np.ones(4)
    same = [exactness.Row("cosine", curve, curve, 3, 3), exactness.Row("kl", curve, curve, None, None)]
    yield exactness.change(same)
    yield exactness.change([replace(same[0], depth_without=1), same[1]])


def audits(say: Callable[[audit.Audit], Any]) -> Iterator[str]:
    """Of made-up curves: kept, ordered otherwise, constant."""
    line = np.arange(8.0)
    for other in (line + 0.01, line[::-1], np.ones(8)):
        curves = {"fp32": {"logit_lens.kl": line}, "bf16": {"logit_lens.kl": other}}
        spearman = among_others.rank_correlation(other, line)
        comparison = audit.Comparison("bf16", "logit_lens.kl", spearman, float(np.abs(other - line).max() / 7))
        said = say(audit.Audit("fp32", curves, (comparison,)))
        yield from [said] if isinstance(said, str) else said


def cards() -> Iterator[Card]:
    """The shipped depth cards, and made-up ones as cards are made now: where leaving early is of use, where sinks are
    not known, where identities fail, and where another precision moves a layer; last, an older one."""
    from ed_core.cards import card

    shipped = [card.read(file) for file in sorted(card.shipped())]
    yield from shipped
    told, twin = shipped[0], card.Mean(depth=6.1, low=5.9, high=6.4)
    means = tuple(
        card.Mean(of=of, lens="logit", depth=at, ratio=at / 16, low=at - 0.4, high=at + 0.3, twin=twin, over=over)
        for of, at, over in (("kl", 9.6, "40 prompts of 8 forms"), ("overlap", 10.8, "40 prompts of 8 forms"))
    )
    moved = tuple(card.MovedMean(of=one.of, precision="int8", depth=one.depth + 0.1, own=one) for one in means)
    row = card.Moved(rule="kl", precision="int8", depth=9.0, moved=4, same=False, order=0.99)
    new = told.but(
        mean_depths=means,
        turn=card.Turn(sentence="No cosine turn found: a level is 0."),
        exit=told.exit.but(
            mean_agreement=card.Value(value=0.97, low=0.96, high=0.98),
            mean_lost_at_0=card.Value(value=0.01, low=0.0, high=0.02),
        ),
        sinks=told.sinks.but(tokens=None),
        identities=told.identities.but(failures=("layer 3: the sums miss by 0.1",)),
        precision=card.Precision(own="fp32", rows=(row,), means=moved),
        claims=findings(),
    )
    yield new
    turn = card.Turn(sentence="Layers turn from erasing to strengthening after layer 7.")
    yield new.but(turn=turn, sinks=told.sinks.but(tokens=0.0))
    yield new.but(mean_depths=None, sinks=told.sinks.but(tokens=0.01, first=0.9))


def of_cards(say: Callable[[Card], Any]) -> Iterator[str]:
    for told in cards():
        said = say(told)
        yield from [said] if isinstance(said, str) else said


@cache
def findings() -> tuple[Found, ...]:
    """Of every claim one, judged together: of made-up values that lie within its limits, outside, on them and nowhere,
    by turns; with a twin of the same values. Last, one that cannot be applied."""
    nothing, made = ClaimCurve(x_title="", unit="", x=(), values=(), low=(), high=(), ticks=()), []

    def measured(claim: Claim, which: int) -> Measured:
        def draws(holds: tuple[float, float]) -> np.ndarray:
            low, high = (end if np.isfinite(end) else None for end in holds)
            limit = low if low is not None else high
            width = abs(limit) or 0.1
            inside = 1.0 if low is not None else -1.0
            middle = (low + high) / 2 if low is not None and high is not None else limit + inside * width / 2
            at = {0: middle, 1: 2 * limit - middle, 2: limit}[which % 3]
            return at + width * np.linspace(-0.04, 0.04, 1000)

        layers = claim.id in ("cosine-weak-proxy", "usefulness")
        found = {
            q.name: Estimate.undefined_because("no layer is needed by this measure")
            if which % 5 == 4
            else Estimate.of(np.mean(d := draws(q.holds)), d, d * 1.1 if layers else None)
            for q in claim.quantities
        }
        return Measured(found, 40, nothing, "", "40 prompts of 8 forms")

    for i, claim in enumerate(CLAIMS):
        told = measured(claim, i)
        made.append(Finding(claim, "this-model", "this-set", told, control=measured(claim, i + i % 2)).told())
    one = CLAIMS[0]
    near = {q.name: Estimate.of(0.5, np.where(np.arange(1000) < 25, 0.8, 0.5)) for q in one.quantities}
    refused = "the untrained twin was refused (no prompt's answer stays among the best five from any depth)."
    made.append(
        Finding(
            one,
            "this-model",
            "this-set",
            Measured(near, 40, nothing, "", "40 prompts of 8 forms"),
            control_reason=refused,
        ).told()
    )
    made.append(Finding(CLAIMS[0], "this-model", "this-set", None, "It has no known answers.").told())
    return adjusted(made)


def of_findings(say: Callable[[Found], Any]) -> Iterator[str]:
    for told in findings():
        said = say(told)
        yield from [said] if isinstance(said, str) else said


def from_studies(say: str) -> Iterator[str]:
    """Of the study that ships with the app, and of what is published."""
    from pyarrow import parquet

    from ed_core.studies import agreement, difficulty, leaderboard, points, trends
    from ed_core.studies.items import open_folder

    folder = open_folder(STUDIES / "toys")
    if say == "trends.Slope.sentence":
        published = [p for p in points.published_points() if p.training == "base"] or points.published_points()
        for criterion, some in product(("cosine", "kl", "overlap"), (published, points.published_points())):
            yield trends.slope([p for p in some if p.criterion == criterion]).sentence
        yield from (trends.slope(found).sentence for found in measured(folder))
        return
    if say == "leaderboard.Fit.sentence":
        scores = ("average", "gpqa")
        yield from (one.sentence for score in scores for one in leaderboard.table(leaderboard.entries(), score))
        return
    if say == "leaderboard.beside_line":
        one = leaderboard.fit(leaderboard.entries(), beside=(leaderboard.SIZE,))
        yield from (leaderboard.beside_line(one, entry) for entry in leaderboard.entries()[:2])
        return
    if say == "trends.Difference.sentence":
        published = [p for p in points.published_points() if p.criterion == "kl"]
        names = sorted({p.model for p in published})
        for base, other in pairwise(names[:3]):
            yield trends.difference(published, base, other).sentence
        for found in measured(folder):
            yield trends.difference(found, *dict.fromkeys(p.model for p in found)).sentence
        return
    labels = [model["label"] for model in folder.plan["models"] if not model.get("control")]
    for label, name in product(labels, folder.sets):
        if say == "difficulty.Difficulty.sentence" and len(folder.groups(name)) > 2:
            for kind in difficulty.kinds(folder):
                yield difficulty.look(folder, label, name, kind).sentence
        if say == "agreement.sentences":
            rows = parquet.read_table(folder.out / "verdict.parquet").to_pylist()
            yield from agreement.sentences(agreement.estimates(folder, label, name, rows))


def measured(folder: Any) -> Iterator[list[Any]]:
    """What the two models of a study give on each of its sets, by criterion."""
    from ed_core.studies import points

    for name in folder.sets:
        found = points.measured_points(folder, name)
        for criterion in dict.fromkeys(p.criterion for p in found):
            if len(two := [p for p in found if p.criterion == criterion and np.isfinite(p.ratio)]) == 2:
                yield two


def courses() -> Iterator[str]:
    """Of made-up trainings: one that goes down and up again and turns, one without a range or a turn."""
    from ed_core.studies import steps

    for depths, apart, turns in (((7.4, 3.5, 9.0), 0.4, (None, None, 6)), ((7.4, 8.0, 9.0), None, (None,) * 3)):
        told = {"n_layers": 16, "prompts": 24, "over": "24 prompts of 6 forms" if apart else None}
        rows = [
            {"criterion": of, "variant": "mean", "depth": depth, "step": step, "low": low, "high": high} | told
            for of in ("kl", "overlap")
            for step, depth in zip((0, 64, 1536), depths)
            for low, high in ([(depth - apart, depth + apart)] if apart else [(None, None)])
        ]
        rows += [
            {"criterion": "cosine", "variant": "turn", "depth": depth, "step": step} | told
            for step, depth in zip((0, 64, 1536), turns)
        ]
        yield from steps.course(rows)


def levels() -> Iterator[str]:
    """The verdict of lines through levels: deeper, less deep, by little, no change, cannot be told."""
    from ed_core.studies.difficulty import Trend

    for low, high in ((0.5, 1.5), (-1.5, -0.5), (0.05, 0.3), (-0.1, 0.2), (-0.5, 1.5)):
        yield Trend(9.0, 10.0, (low + high) / 2, low, high, 0, np.nan).verdict(16)


def maps(say: Callable[..., str]) -> Iterator[str]:
    """Of made-up maps between two models: each depth is found again at the same share, in the first half only, further
    on, in the other order, and none is."""
    from ed_core.fits.measured import Maps

    names = {"a": {"name": "ed-demo-8"}, "b": {"name": "ed-demo-16"}}
    at, there, other = np.linspace(0, 1, 9)[:, None], np.linspace(0, 1, 13), np.ones((9, 13))
    for place in (at, at / 2, 0.5 + at / 2, 1 - at, None):
        error = np.full((9, 13), 0.95) if place is None else np.abs(place - there) * 0.8 + 0.05
        yield say(Maps(error, 1 - error, other, 0 * other, np.ones(13), np.zeros(13), 4000, 1000, names))
    error = np.abs(at - there) * 0.8 + 0.05
    r2 = 1 - np.abs(1 - at - there)
    yield say(Maps(error, r2, other, 0 * other, np.ones(13), np.zeros(13), 4000, 1000, names))
    error[6:] = 0.95
    yield say(Maps(error, 1 - error, other, 0 * other, np.ones(13), np.zeros(13), 4000, 1000, names))


def replaced() -> Iterator[str]:
    from ed_core.fits.measured import Replacement

    for added in (np.array([0.9, 0.4, 0.02, 0.01]), np.zeros(4)):
        found = Replacement(
            2.0 + added, 2.0 + added / 2, 2.0, 2.0, added / 2, 4000, 1000, {"model": {"name": "ed-demo-8"}}
        )
        yield matching.said_of_replacement(found)


def certificates() -> Iterator[str]:
    """Of the shipped fits, and of one as it was judged before."""
    for file in sorted(FITS.glob("*.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        yield lenses.certified(told["kind"], told)
    for tokens in (1000, told["held_out"]["tokens"]):
        old = {"tokens": told["held_out"]["tokens"], "kl": told["held_out"]["kl"], "kl_tokens": tokens}
        yield lenses.certified(told["kind"], told | {"held_out": old})


def under_lenses() -> Iterator[str]:
    """Of the shipped prompts."""
    yield from (lenses.by_lens([result]).sentence for result in shipped("lenses"))
    result = shipped("lenses")[0]
    alone = {name: one for name, one in result.measures.items() if name.startswith("logit")}
    yield lenses.by_lens([replace(result, measures=alone)]).sentence


def differing() -> list[str]:
    """Differences of a run from a paper's protocol."""
    paper = reproduce.PAPERS["hu2025"]
    aime = SetEntry(name="aime24", file="aime24.jsonl", max_tokens=400, tokenizer="ed-demo-8")
    return reproduce.differences(paper, {"aime24": aime}, 5)


# ---------------------------------------------------------------- the list

CARD = ("headline", "facts", "on", "of_its_time", "ranges", "rules", "turn", "identities", "sinks")
CARD += ("precision", "claims", "stand")


def in_passes() -> Iterator[str]:
    """Of models of four passes: one that settles, and one whose divergence is 0 from the start."""
    for step in (1.0, 0.0):
        apart = np.array([[max(0.0, step * (n - r)) for r in range(9)] for n in range(9)])
        times = np.array([5.0, 3.0, 1.0, 0.12, 0.0, 0.04, 0.1, 0.2, 0.2])
        yield loops.sentence({"times_kl": times, "readout_kl": apart, "readout_overlap": 1 - apart / 8})


def within_layers() -> Iterator[str]:
    """Half rows as the depth below has them: then every best guess comes with an MLP, or with the embedding."""
    for result in shipped("logit_lens")[:2]:
        rows = {f"half_{name}": result[name][:-1] for name in ("kl", "overlap")}
        for settled in (np.full(result.n_tokens, 2.5), np.arange(result.n_tokens) % 3 * 1.0, np.zeros(result.n_tokens)):
            half = rows | {"half_settle_depth": settled}
            of = {name: result.measures["settle_depth" if "settle" in name else "kl"] for name in half}
            made = {name: replace(of[name], values=values) for name, values in half.items()}
            yield from halves.sentences(replace(result, measures={**result.measures, **made}))


SAID: dict[str, dict[str, Examples]] = {  # by page: by function, what makes its examples
    "Home": {
        "answer.sentence": lambda: map(answer.sentence, answers()),
        "answer.beside": lambda: map(answer.beside, answers()),
        "wording.settles": settling,
        "wording.turned": turns,
        "wording.Twins.have": lambda: (
            made_up_twins(n).have(near, 3, 10) for n, near in ((1, 1), (1, 0), (5, 0), (5, 1), (5, 3))
        ),
        "verdict.Verdict.settles": lambda: of_verdicts("settles"),
        "verdict.Verdict.rules": lambda: of_verdicts("rules"),
        "verdict.Verdict.reasons": lambda: of_verdicts("reasons"),
        "wording.rules": lambda: (
            wording.rules({c.name: c}, {c.name: said}, there=there)
            for said, c, _ in by_rule()
            for there in (False, True)
        ),
        "wording.statement": lambda: (said.sentence for said, _, _ in by_rule()),
        "sinks.brief": lambda: (sinks.brief(s, TOKENS, counted) for s in of_sinks() for counted in (False, True)),
    },
    "Several prompts together": {
        "answer.over_prompts": lambda: [
            *(found.lead for found in several()),
            answer.over_prompts(list(answers())[-9:-6]),
            answer.over_prompts([one for one in answers() if not one[0].given]),
        ],
        "verdict.Together.settles": lambda: of_several("settles"),
        "verdict.Together.rules": lambda: of_several("rules"),
        "verdict.Together.reasons": lambda: of_several("reasons"),
        "statistics.Units.alone": lambda: [units(10).alone],
        "sinks.summary": lambda: [sinks.summary(of_sinks()), sinks.summary([()]), sinks.summary([None])],
    },
    "How this prompt compares (every page of one probe)": {
        "among_others.sentence": among,
        "among_others.reasons": behind,
        "among_others.spread_of": lambda: (among_others.spread_of(n, "others") for n in (4, 12)),
        "among_others.against_control": controls_,
        "among_others.Likeness.text": lambda: (one.text for one in likenesses("same", "similar", "another")),
    },
    "Logit lens": {"halves.sentences": within_layers},
    "Lenses": {"lenses.ByLens.sentence": under_lenses, "lenses.certified": certificates},
    "Writing": {
        "writing.sentence": lambda: [
            written(0),
            written(1),
            written(1, at_0=1),
            written(19),
            written(19, at_0=4),
            written(0, 30.0),
            written(0, n=1),
            writing.sentence({"ids": np.array([-1])}, 30, 0.9),
        ],
    },
    "Numerics": {
        "exactness.verdict": lambda: numerics(exactness.verdict),
        "exactness.sums": lambda: numerics(exactness.sums),
        "exactness.logits": lambda: numerics(exactness.logits),
        "exactness.sink": lambda: numerics(exactness.sink),
        "exactness.change": first_tokens,
    },
    "Loops": {
        "loops.sentence": in_passes,
        "sinks.sentence": lambda: [*(sinks.sentence(s, TOKENS) for s in of_sinks()), sinks.sentence((), TOKENS, (3,))],
        "sinks.told_at_end": lambda: [sinks.told_at_end(at, TOKENS) for at in ((3,), (1, 2, 3, 4))],
    },
    "Prune and exit": {
        "surgery.generated": lambda: generated(surgery.generated),
        "surgery.by_loss": lambda: generated(surgery.by_loss),
        "surgery.worse_than_uniform": lambda: [surgery.worse_than_uniform(8.5, 26)],
        "writing.of_prompts": lambda: [
            exits(0),
            exits(1),
            exits(3, at_0=1),
            exits(30),
            exits(30, at_0=30),
            exits(0, 30.0),
        ],
    },
    "Surgery": {
        "surgery.sentence": lambda: surgeries(surgery.sentence),
        "surgery.reasons": lambda: surgeries(surgery.reasons),
        "surgery.ordered": orders,
        "surgery.parted": lambda: (
            [surgery.parted([1, 2, 3], other) for other in ([1, 2, 3], [1, 2, 4], [1, 4], [2])]
            + [surgery.parted([1], [1])]
        ),
    },
    "Compare two": {
        "side_by_side.summary": lambda: (
            [side_by_side.summary({"contributions": [one]}) for one in list(pairs())[:2]]
            + [side_by_side.summary({"contributions": list(pairs())})]
        ),
        "side_by_side.Pair.text": lambda: (one.text for one in pairs()),
        "side_by_side.largest_cell": cells,
        "side_by_side.no_difference": no_map,
    },
    "Precision audit": {
        "audit.Audit.sentence": lambda: audits(audit.Audit.sentence),
        "audit.Audit.findings": lambda: audits(audit.Audit.findings),
    },
    "Maps between models": {
        "matching.sentence": lambda: maps(matching.sentence),
        "matching.reasons": lambda: maps(matching.reasons),
        "matching.said_of_replacement": replaced,
    },
    "Studies": {
        name: lambda name=name: from_studies(name)
        for name in (
            "difficulty.Difficulty.sentence",
            "trends.Slope.sentence",
            "trends.Difference.sentence",
            "agreement.sentences",
            "leaderboard.Fit.sentence",
            "leaderboard.beside_line",
        )
    }
    | {"difficulty.Trend.verdict": levels, "steps.course": courses},
    "Papers reproduced": {
        "reproduce.precision_of": lambda: (
            reproduce.precision_of(given, paper, device)[1]
            for given, paper, device in (("fp32", "fp32", "cpu"), ("fp32", "int8", "cpu"), (None, "int8", "mps"))
        ),
        "reproduce.differences": differing,
    },
    "Claims": {
        "finding.sentence": lambda: of_findings(lambda told: told.sentence),
        "finding.reasons": lambda: of_findings(lambda told: told.reasons),
        "finding.standing": lambda: [finding.standing(findings())],
    },
    "Depth cards": {"words.cuts": lambda: of_cards(words.cuts)}
    | {
        f"words.{name}": lambda name=name: of_cards(getattr(import_module("ed_core.cards.words"), name))
        for name in CARD
    },
}
PARTS = {  # by module: what gives no sentence of its own
    "among_others": "Likeness.distance Likeness.rho called",
    "answer": "number",
    "audit": "Audit.together Comparison.title reference_of table",
    "exactness": "Row.label",
    "difficulty": "Trend.verdict called kinds",
    "leaderboard": "Entry.key Entry.why_left_out",
    "lenses": "called of_its_time short",
    "matching": "reading",
    "side_by_side": "labels",
    "sinks": "Sink.writer Span.writer Span.place",
    "statistics": "Units.called Units.groups Units.words",
    "surgery": "kinds_of Choice.layers llama_quantize order_list passthrough",
    "verdict": "Verdict.lead Verdict.sentence where Together.lead Together.lines Together.sentence tokens_of told",
    "wording": "Twins.beside Twins.called Twins.named apart count doubts drawn level listed mean_depth near_to "
    "again named_layer of_best of_layers over_prompts past percent over_what printed random_orders sure which_clear",
    "writing": "leaving of_result text",
    "finding": "as_exact between both_ways here judgement of_twin valued number counted markdown",
    "criteria": "Rule.heading",
    "words": "cut judging leaving parameters depth mean mean_row ratio rule variants value claim markdown metadata",
    "agreement": "Estimate.label",
    "trends": "signed size",
    "reproduce": "judged moved table markdown counted",
}


def functions() -> list[str]:
    """Every public function and property of the rooms that gives text, as `module.name` or `module.Class.name`."""
    found = []
    for file in sorted(chain.from_iterable(ROOT.glob(pattern) for pattern in ROOMS)):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        owners = [
            ("", tree),
            *((f"{c.name}.", c) for c in tree.body if isinstance(c, ast.ClassDef) and c.name[0] != "_"),
        ]
        for owner, body in owners:
            found += [
                f"{file.stem}.{owner}{one.name}"
                for one in body.body
                if isinstance(one, ast.FunctionDef)
                and one.name[0] != "_"
                and one.returns is not None
                and ast.unparse(one.returns).strip("'\"") in TEXTS
            ]
    return found


def unlisted() -> list[str]:
    """Functions that give text and stand in neither list, and listed ones that are gone."""
    there = set(functions())
    listed = {name for of_page in SAID.values() for name in of_page}
    parts = {f"{module}.{name}" for module, names in PARTS.items() for name in names.split()}
    return [f"not listed: {name}" for name in sorted(there - listed - parts)] + [
        f"listed, but gone: {name}" for name in sorted((listed | parts) - there)
    ]


def fixed() -> Iterator[tuple[str, list[str]]]:
    """The fixed words of each page, and of what several pages draw, read off their constants."""
    shared = sorted(file.stem for file in (ROOT / "ed_ui").glob("*.py"))
    for page in (*(f"pages/{name}" for name in PAGES), *(f"ed_ui/{name}" for name in shared)):
        said = []
        for one in ast.parse((ROOT / f"{page}.py").read_text(encoding="utf-8")).body:
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id.isupper():
                said += [_line(f"{heading}{text}") for heading, text in _texts(one.value)]
        if said:
            yield page, said


def _texts(value: ast.expr) -> Iterator[tuple[str, str]]:
    """The sentences in a constant, however nested, each with its heading where that is one."""
    if isinstance(value, ast.Dict):
        for key, one in zip(value.keys, value.values, strict=True):
            heading = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
            yield from ((f"{heading}: " if heading[:1].isupper() else "", text) for _, text in _texts(one))
    elif isinstance(value, ast.Tuple | ast.List):
        yield from chain.from_iterable(map(_texts, value.elts))
    elif isinstance(value, ast.JoinedStr):
        text = "".join(one.value if isinstance(one, ast.Constant) else "{…}" for one in value.values)
        yield from [("", text)] * _said(text)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str) and _said(value.value):
        yield "", value.value


def _said(text: str) -> bool:
    return len(text.split()) >= WORDS and "{" not in text.split()[0] and not any(code in text for code in CODE)


def _line(text: str) -> str:
    return " ".join(str(text).split())


def _unlike(said: Sequence[str]) -> list[str]:
    """Those in other words than the ones before: figures and what is quoted aside."""
    found: dict[str, str] = {}
    for text in said:
        figures = r"[−+-]?\d[\d.,–]*(e[−+-]\d+)?|“[^”]*”|'[^']*' ?\("
        found.setdefault(re.sub(figures, "0", text), text)
    return list(found.values())[:MOST]


def document() -> str:
    """The whole list, as Markdown."""
    lines = ["# What the pages say", "", *HEAD.splitlines()]
    for page, of_page in SAID.items():
        lines += ["", f"## {page}"]
        for name, examples in of_page.items():
            try:
                said = list(dict.fromkeys(_line(text) for text in examples() if text))
            except Exception as error:
                raise RuntimeError(f"no example of {name}: {error!r}; fix its entry in {__name__}.SAID") from error
            lines += ["", f"`{name}`", "", *(f"- {text}" for text in _unlike(said))]
    lines += ["", "## Fixed words, of pages and of maps"]
    for page, said in fixed():
        lines += ["", f"`{page}.py`", "", *(f"- {text}" for text in said)]
    for probe in PROBES:
        for one in probe.pictures or ():
            said = [_line(text) for text in (one.caption, one.reading, one.teach) if text]
            lines += ["", f"`{probe.name}`, {one.title}", "", *(f"- {text}" for text in said)]
    return "\n".join([*lines, ""])


MOST = 60  # examples of one function
HEAD = """Written by `python -m tools.sentences`; a test fails when it is out of date, or when a function that
gives a sentence does not stand in it. Examples are of shipped results or made-up ones, so their figures mean nothing;
of the same words with other figures the first stands here. A page draws one of its sentences as its conclusion, the
others behind *Reasons* or *Details*. Refusals, labels and what a page puts together itself are not in it; `{…}` stands
for what is put in."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the document is out of date")
    given = parser.parse_args(arguments)
    for problem in unlisted():
        print(problem, file=sys.stderr)
    text = document()
    if given.check:
        return int(bool(unlisted()) or not DOCUMENT.is_file() or DOCUMENT.read_text(encoding="utf-8") != text)
    DOCUMENT.write_text(text, encoding="utf-8")
    return int(bool(unlisted()))


if __name__ == "__main__":
    sys.exit(main())
