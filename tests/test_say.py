"""Sentences: one for each thing that can be said, from made-up numbers."""

from dataclasses import replace

import numpy as np
import pytest

from ed_core.depth import answer, say, turn
from ed_core.depth.rules import RULES
from ed_core.depth.sample import Sample
from ed_core.depth.sinks import Sink, Span
from ed_core.depth.verdict import verdict
from ed_core.types import Measure, MeasureSpec, ProbeResult, Request

L = 10


def seen(best, among=None, token="Tokyo", given=True, instead="Kyoto"):
    return answer.Seen(token, given, best, among, 5, L, instead)


def sample(kl=5, prompts=1, twins=(), of="all", answers=(), cosine=4, n_layers=L):
    """Every curve steps at one layer: average depth `kl`, cosine rule `cosine`."""
    at = np.arange(n_layers + 1)
    cosines = dict.fromkeys((f"{name}.sum" for name in RULES["cosine"].measures), np.where(at[:-1] > cosine, 0.3, -0.3))
    sums = {"kl.sum": np.where(at < kl, 2.0, 0.0), "overlap.sum": np.where(at < kl, 0.0, 1.0), **cosines}
    columns = {name: np.tile(values, (prompts, 1)) for name, values in sums.items()} | {"n_tokens": np.ones(prompts)}
    found = Sample.of_sums(dict.fromkeys(("contributions", "logit_lens"), columns), twins=twins)
    return replace(found, read_for=of, answers=(answers,) if answers else ())


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((seen(7, 4),), "“Tokyo” is the first choice from layer 7 of 10 on; it is in the top 5 from layer 4 on."),
        ((seen(10, 10),), "only after the last layer (10 of 10)"),
        ((seen(0, 0),), "before any layer"),
        ((seen(None, 8),), "not the first choice, but in the top 5 from layer 8 on; the model says “Kyoto”"),
        ((seen(6), seen(8)), "Each of the answer's 2 tokens is the first choice from layer 8 of 10 on."),
        ((seen(6), seen(None)), "1 of the answer's 2 tokens is the first choice"),
        ((seen(2, 2, token="\n\x1b[2J\u202e"),), "“\\n\\x1b[2J\\u202e”"),
    ],
)
def test_where_the_answer_is(answers, says):
    assert says in say.lead(verdict(sample(answers=answers)))


def test_where_the_answers_of_several_prompts_are():
    said = say.lead(verdict(replace(sample(prompts=3), answers=((seen(3),), (seen(7),), (seen(None),)))))
    assert "In 2 of 3 prompts" in said and "from layer 5 of 10 on (median; 3 to 7)" in said


COPIES = tuple(sample(kl) for kl in (2, 3, 3, 3, 3))


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (sample(5, twins=COPIES), "the words of this prompt settle by layer 5 of 10, in untrained copies by 2 to 3."),
        (sample(5, of=2), "the predictions at token 2 settle by layer 5 of 10."),
        (sample(5, of="answer", answers=(seen(7),)), "the predictions of the answer settle by layer 5 of 10."),
        (sample(5, 9, twins=COPIES[:1]), "by layer 5.0 of 10 (5.0 over 9 prompts), in one untrained copy by 2.0."),
    ],
)
def test_where_words_settle_on_average(of, says):
    assert say.average(verdict(of)).endswith(says)


def test_whether_layers_switch():
    found = turn.fit([-1] * 5 + [1] * 5)
    assert say.turn(found).endswith("after layer 5 of 10.") and "untrained" in say.turn(replace(found, failed="twins"))
    assert "no clear switch" in say.turn(turn.fit([1] * 5 + [-1] * 5))


def test_what_published_rules_say_and_why_they_are_not_robust():
    alone, tested = verdict(sample(5)), verdict(sample(5, twins=COPIES))
    assert say.rules(alone).startswith("Three published rules say layer 4, 5 and 5 in the papers' count;")
    assert say.rules(tested).endswith("in the papers' count; the KL rule is robust and the overlap rule is robust.")
    assert say.rule(tested.rules["cosine"]).endswith("; not robust here because of untrained copies.")
    assert say.rules(verdict(sample(10, cosine=-1))).startswith("Three published rules say no layer, no layer and")
    never = verdict(sample(5, cosine=-1)).rules["cosine"]
    assert say.rule(never) == "Hu et al.'s cosine rule gives no layer; the mean cosine is never below 0."
    (cosine, kl, _), few = say.rule_table(tested), say.rule_table(verdict(sample(5, 9)))
    told = ("Layer", "Nearby thresholds", "Lasts from", "Without sinks", "Untrained copies", "Robust")
    assert [kl[name] for name in told] == ["5", "5", "5", "–", "2 to 3 (0 of 5 near)", "yes"]
    assert (cosine["Robust"], few[1]["Over prompts"], few[1]["Robust"]) == ("no: untrained copies", "5", "so far")


def test_attention_sinks():
    spans = (Span(3, 8, 2, "mlp", 1.0), Span(12, 30, None, "embedding", 1.0))
    found = (Sink(0, 120.4, spans),)
    said = say.sinks(found, ("The",))
    assert said.startswith("1 attention sink: token 0 “The”, up to 120 times as long as the median token")
    assert "depth 3 to 8 (written by layer 3's MLP) and at depth 12 to 30 (written by the embedding)" in said
    assert say.sinks((), ("The",) * 4).startswith("No attention sink")


def test_numbers_shares_and_intervals_are_never_written_as_what_they_are_not():
    for value, form, text in ((-0.003, ".2f", "0.00"), (-5.14e-5, "+.3g", "−5.14·10⁻⁵"), (np.nan, ".3g", "–")):
        assert say.number(value, form) == text
    assert [say.share(value) for value in (0.0, 0.004, 0.996, 1.0)] == ["0 %", "<1 %", ">99 %", "100 %"]
    assert (say.interval(0.123, 0.124), say.interval(-1, 1, 0)) == ("0.123 to 0.124", "−1 to 1")


def lens_of(top_ids, token_ids, start=None) -> ProbeResult:
    """A lens result that holds best tokens alone."""
    spec = MeasureSpec("top_ids", ("depth", "pos", "rank"), "token id", "", dtype="int32")
    texts = tuple(f"t{i}" for i in token_ids)
    measures = {"top_ids": Measure(spec, np.asarray(top_ids, np.int32))}
    request = Request((), (), "logit_lens", (), 1)
    return ProbeResult(request, measures, texts, tuple(token_ids), start, len(top_ids) - 1, token_text={7: "seven"})


def test_a_token_counts_from_where_it_stays():
    """Best at depths 0, 2 and 3 of 3, among the two best at 0, 2 and 3 as well: it stays from depth 2."""
    (found,) = answer.look(lens_of([[[5, 1]], [[1, 2]], [[5, 2]], [[5, 1]]], [9]))
    assert (found.best, found.among, found.given, found.token) == (2, 2, False, "id 5")
    answered = lens_of([[[5, 1], [0, 0]], [[1, 5], [0, 0]], [[7, 5], [0, 0]]], [9, 5], start=1)
    (found,) = answer.look(answered)
    assert (found.best, found.among, found.given, found.token, found.instead) == (None, 0, True, "t5", "seven")
    assert answer.echo(lens_of([[[4, 1], [5, 0]], [[0, 0], [0, 0]]], [4, 6])) == 0.5
