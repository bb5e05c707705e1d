"""What the verdict says, held against the curves it was read off: every sentence of a table of made-up curves word by
word, and every claim of every sentence, on made-up and on shipped curves, counted anew from the numbers alone."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from counted import RULES, claims, claims_over, lasting, mean_of, seen_at, seen_over

from ed_core.depth import answer, verdict, wording
from ed_core.depth.criteria import Criterion, bootstrap, threshold_band
from ed_core.results.lookup import EXAMPLES, by_key
from ed_core.types import Measure, MeasureSpec, ProbeResult, Request


def said(name, curve, threshold=None, without=None, echo=0.0, k=5) -> wording.Statement:
    """The statement on a curve; `without`: the same without the sinks."""
    rule, usual = RULES[name]
    at = usual if threshold is None else threshold
    criterion, curve = rule(curve, at), np.asarray(curve, float)
    if without is not None:
        criterion = replace(criterion, without_sinks=rule(without, at))
    return wording.statement(criterion, curve, threshold_band(rule, curve, verdict.BANDS[name]), k=k, echo=echo)


WRITTEN = tomllib.loads((Path(__file__).parent / "wording.toml").read_text(encoding="utf-8"))
TABLE = WRITTEN["row"]


@pytest.mark.parametrize("row", TABLE, ids=[row["name"] for row in TABLE])
def test_each_curve_has_its_sentence_and_not_the_wrong_claim(row):
    given = {name: row[name] for name in ("curve", "threshold", "without", "echo", "k") if name in row}
    found, ends = said(row["rule"], **given), row.get("ends")
    assert (found.sentence, found.clear) == (row["said"], row["clear"])
    assert (found.low, found.high) == (tuple(ends) if ends else (None, None))
    assert not re.search(row["never"], found.sentence)
    assert claims(row["rule"], found.sentence, row["curve"], row.get("threshold"), row.get("k", 5))


# ---------------------------------------------------------------- several prompts


def over(rule, prompts, tokens, threshold=None, without=None, echo=0.0, k=5) -> wording.Statement:
    """The statement on prompts whose own mean curves these are; `without`: the mean over all without the sinks."""
    rule_of, usual = RULES[rule]
    at = usual if threshold is None else threshold
    sums = {"curve": np.asarray(prompts, float) * np.asarray(tokens)[:, None]}
    curve = np.asarray(mean_of(prompts, tokens))
    criterion = rule_of(curve, at)
    if without is not None:
        criterion = replace(criterion, without_sinks=rule_of(without, at))
    drawn = bootstrap(sums, tokens, lambda curves: rule_of(curves["curve"], at))
    return wording.over_prompts(criterion, curve, drawn, k=k, echo=echo)


def rows_over(row: dict) -> dict:
    """A row's curves: `prompts` of kinds, `of` how many of each kind and `tokens` how long each of them is."""
    at = [kind for kind, n in enumerate(row["of"]) for _ in range(n)]
    given = {name: row[name] for name in ("threshold", "without", "echo", "k") if name in row}
    return dict(prompts=[row["prompts"][i] for i in at], tokens=[row["tokens"][i] for i in at], **given)


@pytest.mark.parametrize("row", WRITTEN["over"], ids=[row["name"] for row in WRITTEN["over"]])
def test_what_is_said_of_several_prompts_is_so_and_not_the_wrong_claim(row):
    given = rows_over(row)
    found, ends = over(row["rule"], **given), row.get("ends")
    assert (found.sentence, found.clear) == (row["said"], row["clear"])
    assert (found.low, found.high) == (tuple(ends) if ends else (None, None))
    assert not re.search(row["never"], found.sentence)
    curves, tokens = given.pop("prompts"), given.pop("tokens")
    counted = claims_over(
        row["rule"], found.sentence, curves, tokens, given.pop("threshold", None), given.pop("k", 5), **given
    )
    assert counted > 1


@pytest.mark.parametrize("row", WRITTEN["answers"], ids=[row["name"] for row in WRITTEN["answers"]])
def test_what_is_seen_at_several_answers_is_so_and_not_the_wrong_claim(row):
    """Depths of an answer's tokens, prompt by prompt, -1 where one is not the best guess; `own`: of the model's own
    next token."""
    answers = [[None if best < 0 else best for best in depths] for depths in row.get("prompts", [])]
    looks = [tuple(seen(best, 0, instead="x") for best in depths) for depths in answers]
    looks += [(seen(best, 0, given=False),) for best in row.get("own", [])]
    found = answer.over_prompts(looks)
    assert found == row["said"] and not re.search(row["never"], found)
    assert seen_over(found, answers, row.get("own", []), 30)


def test_of_prompts_without_best_tokens_nothing_is_seen():
    assert answer.over_prompts([(), ()]) == ""


# ---------------------------------------------------------------- real curves


def shipped() -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """What is shipped of the models: `contributions` and `logit_lens` of each prompt."""
    found: dict[str, dict[str, ProbeResult]] = {}
    for file in sorted(EXAMPLES.glob("*.npz")):
        result = by_key(file.stem)
        name = f"{result.request.models[0].name} {result.request.prompts[0].text[-12:]!r}"
        found.setdefault(name, {})[result.request.probe] = result
    return {
        name: (of["contributions"], of["logit_lens"])
        for name, of in found.items()
        if of.keys() >= {"contributions", "logit_lens"}
    }


@pytest.mark.parametrize("of", ["all", "answer", 1, 4, 9])
@pytest.mark.parametrize("name", shipped())
def test_every_claim_on_a_real_curve_is_counted_anew(name, of):
    """Read for all tokens, the answer's and single ones: 35 verdicts, 105 curves."""
    cosines, lens = shipped()[name]
    found, n = verdict.of_prompt(cosines, lens, of=of), lens.n_tokens
    start = lens.answer_start
    due = slice(n - 1, n) if start is None else slice(start - 1, n - 1)
    at = {"all": slice(None), "answer": due}.get(of, slice(of, of + 1) if of not in ("all", "answer") else 0)
    curves = {m: lens[m][:-1, at].mean(1, dtype=float) for m in ("kl", "overlap")}
    curves["cosine"] = np.mean([cosines[m][:, at].mean(1, dtype=float) for m in verdict.COSINES], axis=0)
    for name, statement in found.statements.items():
        np.testing.assert_allclose(found.curves[name], curves[name], rtol=1e-5, atol=1e-6)
        assert claims(name, statement.sentence, curves[name], None, 5)
        assert "settle" not in statement.sentence


@pytest.mark.parametrize("name", shipped())
def test_what_is_seen_at_the_answer_is_in_the_best_tokens(name):
    lens = shipped()[name][1]
    start, found = lens.answer_start, answer.look(lens)
    assert [one.pos for one in found] == (
        [lens.n_tokens - 1] if start is None else list(range(start - 1, lens.n_tokens - 1))
    )
    for one in found:
        top = lens["top_ids"][:, one.pos].tolist()
        token = lens.token_ids[one.pos + 1] if one.given else top[-1][0]
        assert one.given == (start is not None) and one.n_layers == len(top) - 1
        assert one.token == (lens.tokens[one.pos + 1] if one.given else lens.token_text[token])
        assert one.best == lasting([row[0] == token for row in top])
        assert one.among == lasting([token in row for row in top])
    assert seen_at(answer.sentence(found), lens)


# ---------------------------------------------------------------- the answer


def seen(best, among, given=True, n_layers=30, token=" Paris", instead="", k=5) -> answer.Seen:
    return answer.Seen(3, token, given, best, among, k, n_layers, instead)


SEEN = {
    "“ Paris” becomes the best guess only at depth 30 of 30, the output; it is among the best five from 27.": (
        seen(30, 27),
    ),
    "“ Paris” becomes the best guess at depth 12 of 30.": (seen(12, 12),),
    "“ Paris”, the model's own next token, becomes the best guess at depth 12 of 30; it is among the best five from "
    "0.": (seen(12, 0, given=False),),
    "“ Paris” is the best guess at every depth, before the first layer too.": (seen(0, 0),),
    "The answer “ Paris” is not the model's best guess, which is “ the”; it is among its best ten from depth 27 of "
    "30.": (seen(None, 27, instead=" the", k=10),),
    "The answer “ Paris” is not the model's best guess, which is “ the”; it is not among its best five.": (
        seen(None, None, instead=" the"),
    ),
    "The answer's 2 tokens become the best guess, each given those before it: “1” at depth 7, “2” at depth 9 of 30.": (
        seen(7, 3, token="1"),
        seen(9, 9, token="2"),
    ),
    "The answer's 5 tokens become the best guess, each given those before it: between depth 7 and 11 of 30.": tuple(
        seen(best, 3) for best in range(7, 12)
    ),
    "Of the answer's 2 tokens 1 becomes the best guess (“1” at depth 7 of 30); “2” does not, the model's best guess "
    "there is “3”.": (seen(7, 3, token="1"), seen(None, None, token="2", instead="3")),
    "None of the answer's 2 tokens is the model's best guess where it is due.": (
        seen(None, 4, token="1", instead="3"),
        seen(None, None, token="2", instead="3"),
    ),
    "“\\n\\x1b[2J\\u202e” becomes the best guess at depth 2 of 30.": (seen(2, 2, token="\n\x1b[2J\u202e"),),
    "": (),
}


@pytest.mark.parametrize("sentence", SEEN)
def test_what_is_seen_is_said(sentence):
    assert answer.sentence(SEEN[sentence]) == sentence


def lens_of(top_ids, token_ids, start=None) -> ProbeResult:
    """A lens result that holds best tokens alone."""
    spec = MeasureSpec("top_ids", ("depth", "pos", "rank"), "token id", "", dtype="int32")
    texts = tuple(f"t{i}" for i in token_ids)
    measures = {"top_ids": Measure(spec, np.asarray(top_ids, np.int32))}
    request = Request((), (), "logit_lens", (), 1)
    return ProbeResult(request, measures, texts, tuple(token_ids), start, len(top_ids) - 1, token_text={7: "seven"})


def test_a_token_counts_from_where_it_stays():
    """Best at depths 0, 2 and 3 of 3, among the two best at 0, 2 and 3 as well: it is there from depth 2."""
    lens = lens_of([[[5, 1]], [[1, 2]], [[5, 2]], [[5, 1]]], [9])
    (found,) = answer.look(lens)
    assert (found.best, found.among, found.given, found.token) == (2, 2, False, "id 5")
    answered = lens_of([[[5, 1], [0, 0]], [[1, 5], [0, 0]], [[7, 5], [0, 0]]], [9, 5], start=1)
    (found,) = answer.look(answered)
    assert (found.best, found.among, found.given, found.token, found.instead) == (None, 0, True, "t5", "seven")
    assert answer.echo(lens_of([[[4, 1], [5, 0]], [[0, 0], [0, 0]]], [4, 6])) == 0.5


# ---------------------------------------------------------------- a twin beside it


def marks(**depths) -> dict[str, Criterion]:
    return {name: Criterion(name, depth, depth, 30) for name, depth in depths.items()}


@pytest.mark.parametrize(
    "twin, kind, sentence",
    [
        (
            marks(cosine=20, kl=22, overlap=4),
            "untrained",
            "The untrained twin gives cosine 20, KL 22, overlap 4: the cosine mark would stand there without training.",
        ),
        (
            marks(cosine=16, kl=29, overlap=None),
            "untrained",
            "The untrained twin gives cosine 16, KL 29, overlap no depth: the cosine and KL marks would stand there "
            "without training.",
        ),
        (
            marks(cosine=15, kl=None, overlap=None),
            "shuffled",
            "The model with shuffled layers gives cosine 15, KL no depth, overlap no depth: none of the model's marks.",
        ),
    ],
)
def test_what_a_control_shares_is_said(twin, kind, sentence):
    """A mark is shared where it lies within a tenth of the 30 layers."""
    assert wording.shared(marks(cosine=19, kl=26, overlap=None), twin, kind) == sentence


def test_a_control_of_a_model_without_marks_has_none_to_share():
    none = marks(cosine=None, kl=None, overlap=None)
    said = wording.shared(none, none, "untrained")
    assert said.endswith("no depth where the model has none either, and no mark to compare.")
