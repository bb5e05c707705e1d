"""Golden sentences of the verdict: made-up curves and what is said of each (`wording.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ed_core.depth.wording import Reading, Twins

from ed_core import statistics
from ed_core.depth import answer, continuous, wording
from ed_core.depth import old_verdict as verdict
from ed_core.depth.rules import Criterion, by_cosine, by_kl, by_overlap, depths
from ed_core.statistics import units
from ed_core.types import Measure, MeasureSpec, ProbeResult, Request

WRITTEN = tomllib.loads((Path(__file__).parent / "wording.toml").read_text(encoding="utf-8"))
THRESHOLDS = {"cosine": 0.0, "kl": 0.5, "overlap": 0.3}
RULES = {"cosine": by_cosine, "kl": by_kl, "overlap": by_overlap}


def rows(kind: str):
    return pytest.mark.parametrize("row", WRITTEN[kind], ids=[row["name"] for row in WRITTEN[kind]])


def judged(name, curve, threshold=None, without=None) -> Criterion:
    """A criterion read off a curve; `without`: the same without the sinks."""
    at = THRESHOLDS[name] if threshold is None else threshold
    criterion = RULES[name](curve, at)
    return criterion if without is None else replace(criterion, without_sinks=RULES[name](without, at))


def a_step(name: str, layer: int, n: int = 10) -> list[float]:
    """A curve whose rule gives this layer."""
    high, low = {"cosine": (-0.3, 0.3), "kl": (10, 1), "overlap": (0, 0.8)}[name]
    return [high] * (layer + (name == "cosine")) + [low] * (n - layer - (name == "cosine"))


def twins_of(name: str, curves) -> Twins:
    readings = [Reading({name: judged(name, curve)}, {}, continuous.fit(curve)) for curve in curves]
    return Twins("untrained", tuple(readings))


# ---------------------------------------------------------------- one rule


@rows("rule")
def test_each_rule_has_its_sentence_and_not_the_wrong_claim(row):
    name, curve = row["rule"], row["curve"]
    at = row.get("threshold", THRESHOLDS[name])
    beside = [a_step(name, layer) for layer in row.get("twins", [])]
    criterion = judged(name, curve, at, row.get("without"))
    found = wording.statement(criterion, np.asarray(curve, float), twins_of(name, beside))
    assert found.sentence == row["said"]


def over(name, prompts, tokens):
    """Criterion, curve, interval and units of prompts whose own mean curves these are."""
    curve, of = np.average(prompts, axis=0, weights=tokens), units(len(prompts))
    sums = {"curve": np.asarray(prompts, float) * np.asarray(tokens)[:, None]}
    drawn = statistics.percentile(lambda c: depths(name, c["curve"]), sums, tokens, of) if of.enough else None
    return judged(name, curve), np.asarray(curve), None if drawn is None else statistics.interval(drawn), of


@rows("over")
def test_what_a_rule_gives_of_several_prompts_is_so_and_not_the_wrong_claim(row):
    kinds = [kind for kind, n in enumerate(row["of"]) for _ in range(n)]
    name, prompts, tokens = row["rule"], [row["prompts"][i] for i in kinds], [row["tokens"][i] for i in kinds]
    found = wording.over_prompts(*over(name, prompts, tokens))
    assert found.sentence == row["said"]


# ---------------------------------------------------------------- the two lines


@rows("rules")
def test_the_line_on_the_rules_says_what_is_clear_and_no_more(row):
    found = {name: judged(name, row[name]) for name in RULES}
    far = {name: [a_step(name, 0)] * row.get("twins", 0) for name in RULES}
    said = {n: wording.statement(c, np.asarray(row[n], float), twins_of(n, far[n])) for n, c in found.items()}
    line = wording.rules(found, said)
    assert line == row["said"]


def read_of(curves) -> Reading:
    means = {name: continuous.of_curve(name, curves[name]) for name in continuous.MEAN_DEPTH}
    return Reading({}, means, continuous.fit(curves["cosine"]))


@rows("settles")
def test_the_line_on_the_lens_is_so_and_not_the_wrong_claim(row):
    own = {name: row[name] for name in ("kl", "overlap", "cosine")}
    beside = [own | {"kl": kl} for kl in row.get("twins", [])]
    kind, where = row.get("kind", "untrained"), row.get("where", "")
    found = read_of(own)
    said = wording.settles(found.means, found.turn, Twins(kind, tuple(map(read_of, beside))), where)
    assert said == row["said"]


@rows("turn")
def test_a_turn_is_said_where_there_is_one(row):
    curves = [[-0.3] * (layer + 1) + [0.3] * (11 - layer) for layer in row.get("twins", [])]
    twins = Twins("untrained", tuple(Reading({}, {}, continuous.fit(curve)) for curve in curves))
    said = wording.turned(verdict.held(continuous.fit(row["cosine"]), twins), twins)
    assert said == row["said"]


# ---------------------------------------------------------------- the answer


def seen(best, among, given=True, n_layers=30, token=" Paris", instead="", k=5, first=None) -> answer.Seen:
    return answer.Seen(3, token, given, best, among, k, n_layers, instead, best if first is None else first, among)


SEEN = {
    "“ Paris” is the best guess only at the output (depth 30).": (seen(30, 27, first=30),),
    "“ Paris” is the best guess for good from depth 30 of 30 (first at 16).": (seen(30, 12, first=16),),
    "Next token “ Paris”: best guess for good from depth 12 of 30.": (seen(12, 0, given=False),),
    "“ Paris” is the best guess at every depth.": (seen(0, 0),),
    "The answer “ Paris” is not the model's best guess, which is “ the”.": (seen(None, 27, instead=" the"),),
    "Each answer token is the best guess at its position, for good from depth 9 of 30, the earliest from 7.": (
        seen(7, 3, token="1"),
        seen(9, 9, token="2"),
    ),
    "Each answer token is the best guess at its position, for good from depth 11 of 30, the earliest from 7.": tuple(
        seen(best, 3) for best in range(7, 12)
    ),
    "Each answer token is the best guess at its position, for good from depth 7 of 30.": (seen(7, 3),) * 3,
    "Each answer token is the best guess at its position, at every depth.": (seen(0, 0),) * 3,
    "Given the right tokens before each, 1 of the answer's 2 tokens is the model's best guess; the first that is not "
    "is “2”, where the model says “3”.": (
        seen(7, 3, token="1"),
        seen(None, None, token="2", instead="3"),
    ),
    "Given the right tokens before each, none of the answer's 2 tokens is the model's best guess.": (
        seen(None, 4, token="1", instead="3"),
        seen(None, None, token="2", instead="3"),
    ),
    "“\\n\\x1b[2J\\u202e” is the best guess for good from depth 2 of 30.": (seen(2, 2, token="\n\x1b[2J\u202e"),),
    "": (),
}


@pytest.mark.parametrize("sentence", SEEN)
def test_what_is_seen_is_said(sentence):
    assert answer.sentence(SEEN[sentence]) == sentence
    assert "becomes" not in sentence and sentence.count(".") <= 1


@pytest.mark.parametrize(
    "value, form, said",
    [
        (-0.003, ".2f", "0.00"),
        (-0.003, "+.3f", "−0.003"),
        (-0.0, "+.1f", "0.0"),
        (-3, "+d", "−3"),
        (1e-7, ".2g", "10⁻⁷"),
        (-5.14e-5, "+.3g", "−5.14·10⁻⁵"),
        (1.1e-5, ".2g", "1.1·10⁻⁵"),
        (123, "+.2g", "+120"),
        (5.67e6, ".3g", "5670000"),
        (2e12, ".3g", "2·10¹²"),
        (np.inf, ".3g", "inf"),
    ],
)
def test_a_number_has_a_minus_and_no_exponent(value, form, said):
    assert wording.printed(value, form) == said


def lens_of(top_ids, token_ids, start=None) -> ProbeResult:
    """A lens result that holds best tokens alone."""
    spec = MeasureSpec("top_ids", ("depth", "pos", "rank"), "token id", "", dtype="int32")
    texts = tuple(f"t{i}" for i in token_ids)
    measures = {"top_ids": Measure(spec, np.asarray(top_ids, np.int32))}
    request = Request((), (), "logit_lens", (), 1)
    return ProbeResult(request, measures, texts, tuple(token_ids), start, len(top_ids) - 1, token_text={7: "seven"})


@pytest.mark.parametrize(
    "share, said",
    [(0.0, "0 %"), (0.004, "less than 1 %"), (0.44, "44 %"), (0.996, "more than 99 %"), (0.99, "99 %"), (1.0, "100 %")],
)
def test_a_share_is_not_said_to_be_none_or_all_where_it_is_not(share, said):
    assert wording.percent(share) == said
    assert wording.percent(share, signs=True) == said.replace("less than ", "<").replace("more than ", ">")


def test_a_token_counts_from_where_it_stays():
    """Best at depths 0, 2 and 3 of 3, among the two best at 0, 2 and 3 as well: it is there for good from depth 2."""
    lens = lens_of([[[5, 1]], [[1, 2]], [[5, 2]], [[5, 1]]], [9])
    (found,) = answer.look(lens)
    assert (found.best, found.among, found.given, found.token) == (2, 2, False, "id 5")
    assert (found.first_best, found.first_among) == (0, 0)
    assert answer.sentence([found]) == "Next token “id 5”: best guess for good from depth 2 of 3 (first at 0)."
    answered = lens_of([[[5, 1], [0, 0]], [[1, 5], [0, 0]], [[7, 5], [0, 0]]], [9, 5], start=1)
    (found,) = answer.look(answered)
    assert (found.best, found.among, found.given, found.token, found.instead) == (None, 0, True, "t5", "seven")
    assert answer.echo(lens_of([[[4, 1], [5, 0]], [[0, 0], [0, 0]]], [4, 6])) == 0.5


@rows("answers")
def test_what_is_seen_at_several_answers_is_so_and_not_the_wrong_claim(row):
    """Depths of an answer's tokens, prompt by prompt, -1 where one is not the best guess; `own`: of the model's own
    next token."""
    answers = [[None if best < 0 else best for best in depths] for depths in row.get("prompts", [])]
    looks = [tuple(seen(best, 0, instead="x") for best in depths) for depths in answers]
    looks += [(seen(best, 0, given=False),) for best in row.get("own", [])]
    found = answer.over_prompts(looks)
    assert found == row["said"]
