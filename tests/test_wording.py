"""What the verdict says, held against the curves it was read off: every sentence of a table of made-up curves word by
word, and every claim of every sentence, on made-up and on shipped curves, counted anew from the numbers alone."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ed_core.depth import answer, verdict, wording
from ed_core.depth.criteria import Criterion, by_cosine, by_kl, by_overlap, threshold_band
from ed_core.results.lookup import EXAMPLES, by_key
from ed_core.types import Measure, MeasureSpec, ProbeResult, Request

RULES = {"cosine": (by_cosine, 0.0), "kl": (by_kl, 0.5), "overlap": (by_overlap, 0.3)}
NUMBERS = {word: i for i, word in enumerate(answer.WORDS)}


def said(name, curve, threshold=None, without=None, echo=0.0, k=5) -> wording.Statement:
    """The statement on a curve; `without`: the same without the sinks."""
    rule, usual = RULES[name]
    at = usual if threshold is None else threshold
    criterion, curve = rule(curve, at), np.asarray(curve, float)
    if without is not None:
        criterion = replace(criterion, without_sinks=rule(without, at))
    return wording.statement(criterion, curve, threshold_band(rule, curve, verdict.BANDS[name]), k=k, echo=echo)


TABLE = tomllib.loads((Path(__file__).parent / "wording.toml").read_text(encoding="utf-8"))["row"]


def word(n: int) -> str:
    return answer.WORDS[n] if n <= 10 else str(n)


def holds(name: str, curve: list[float], at: int, threshold: float) -> bool:
    """Whether the rule's condition holds at a depth, in the plainest way."""
    if name == "kl":
        return curve[at] < threshold * max(curve)
    return curve[at] > threshold if name == "overlap" else curve[at] < threshold <= curve[at + 1]


def places(name: str, curve: list[float], threshold: float) -> list[int]:
    return [i for i in range(len(curve) - 1) if holds(name, curve, i, threshold)]


def claims(name: str, sentence: str, curve, threshold: float | None, k: int) -> int:
    """Count every claim of a sentence on one criterion anew; how many there were. What the sinks change, and what depth
    0 of the lens repeats, is held elsewhere."""
    curve, n = [float(v) for v in curve], len(curve)
    at = RULES[name][1] if threshold is None else threshold
    found = places(name, curve, at)
    depth = (found[-1] if name == "cosine" else found[0]) if found else None
    counted = 0

    def every(pattern):
        nonlocal counted
        for match in re.finditer(pattern, sentence):
            counted += 1
            yield match.groups()

    for layer, of in every(r"(?:by|says|after) layer (\d+) of (\d+)"):
        assert (int(layer), int(of)) == (depth, n)
    for low, high in every(r"\((\d+) to (\d+) with other thresholds\)"):
        moved = [places(name, curve, t) for t in verdict.BANDS[name]]
        moved = [(p[-1] if name == "cosine" else p[0]) for p in moved if p]
        assert (int(low), int(high)) == (min(moved), max(moved))
    for (layer,) in every(r"for good (?:only from layer|by) (\d+)"):
        layer = int(layer)
        assert all(holds(name, curve, i, at) for i in range(layer, n)) and not holds(name, curve, layer - 1, at)
    for _ in every(r"by layer \d+ of \d+(?! *\(?\d* *.*for good)[^,]*\.$"):
        assert name == "cosine" or "for good" in sentence or all(holds(name, curve, i, at) for i in range(depth, n))
    for _ in every("after it none does"):
        assert min(curve[depth + 1 :]) >= 0 and min(curve[: depth + 1]) < 0
    for (times,) in every(r"changes sign (\w+) times"):
        changes = sum((a < 0) != (b < 0) for a, b in pairwise(curve))
        assert times == word(changes) and changes > 3
    for _ in every("negative in the last layer"):
        assert curve[-1] < 0
    for _ in every("No layer erases"):
        assert min(curve) >= 0
    for _ in every("Every layer erases"):
        assert max(curve) < 0
    for _ in every("falls below 0 and stays there"):
        first = next(i for i, v in enumerate(curve) if v < 0)
        assert first > 0 and max(curve[first:]) < 0
    for _ in every("Before the output itself the lens|the lens is never"):
        assert not any(holds(name, curve, i, at) for i in range(n))
    for _ in every("Only in front of the last layer"):
        assert [holds(name, curve, i, at) for i in range(n)] == [False] * (n - 1) + [True]
    for _ in every("in front of the last layer it"):
        assert not holds(name, curve, n - 1, at) and found
    for _ in every("the output from the start"):
        assert max(curve) < 1e-6
    for (share,) in every(r"shares more than (\d+)%"):
        assert int(share) == round(100 * at)
    for (best,) in every(r"best (\w+) tokens"):
        assert best == word(k)
    for (said,) in every(r"without depth 0 (?:the rule|it) (says \d+|gives no depth)"):
        later = [i for i in range(1, n - 1) if curve[i] < at * max(curve[1:])]
        assert said == (f"says {later[0]}" if later else "gives no depth")
    if "No clear" in sentence:
        assert ":" in sentence and "The papers' rule" in sentence
    return counted


@pytest.mark.parametrize("row", TABLE, ids=[row["name"] for row in TABLE])
def test_each_curve_has_its_sentence_and_not_the_wrong_claim(row):
    given = {name: row[name] for name in ("curve", "threshold", "without", "echo", "k") if name in row}
    found, ends = said(row["rule"], **given), row.get("ends")
    assert (found.sentence, found.clear) == (row["said"], row["clear"])
    assert (found.low, found.high) == (tuple(ends) if ends else (None, None))
    assert not re.search(row["never"], found.sentence)
    assert claims(row["rule"], found.sentence, row["curve"], row.get("threshold"), row.get("k", 5))


# ---------------------------------------------------------------- real curves


def shipped() -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """What is shipped of the models and their twins: `contributions` and `logit_lens` of a prompt."""
    found: dict[str, dict[str, ProbeResult]] = {}
    for file in sorted(EXAMPLES.glob("*.npz")):
        result = by_key(file.stem)
        model = result.request.models[0]
        found.setdefault(f"{model.name}{model.control}", {})[result.request.probe] = result
    return {
        name: (of["contributions"], of["logit_lens"])
        for name, of in found.items()
        if of.keys() >= {"contributions", "logit_lens"}
    }


@pytest.mark.parametrize("of", ["all", "answer", 1, 4, 9])
@pytest.mark.parametrize("name", shipped())
def test_every_claim_on_a_real_curve_is_counted_anew(name, of):
    """Read for all tokens, the answer's and single ones: 15 verdicts, 45 curves."""
    cosines, lens = shipped()[name]
    found, n = verdict.of_prompt(cosines, lens, of=of), lens.n_tokens
    start = lens.answer_start
    at = {"all": slice(None), "answer": slice(start - 1, n - 1)}.get(
        of, slice(of, of + 1) if of not in ("all", "answer") else 0
    )
    curves = {m: lens[m][:-1, at].mean(1, dtype=float) for m in ("kl", "overlap")}
    curves["cosine"] = np.mean([cosines[m][:, at].mean(1, dtype=float) for m in verdict.COSINES], axis=0)
    for name, statement in found.statements.items():
        np.testing.assert_allclose(found.curves[name], curves[name], rtol=1e-5, atol=1e-6)
        assert claims(name, statement.sentence, curves[name], None, 5)
        assert "settle" not in statement.sentence


@pytest.mark.parametrize("name", shipped())
def test_what_is_seen_at_the_answer_is_in_the_best_tokens(name):
    lens = shipped()[name][1]
    (seen,) = answer.look(lens)
    top, token = lens["top_ids"][:, lens.answer_start - 1].tolist(), lens.token_ids[lens.answer_start]
    assert seen.given and seen.token == lens.tokens[lens.answer_start] and seen.n_layers == len(top) - 1
    assert all(row[0] == token for row in top[seen.best :]) and top[seen.best - 1][0] != token
    assert all(token in row for row in top[seen.among :]) and token not in top[seen.among - 1]
    assert f"at depth {seen.best} of {seen.n_layers}" in answer.sentence((seen,))


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
