"""Depths by the kind of token, and early exits: recomputed from the lens's arrays by loops over tokens."""

import string

import numpy as np
import pytest
from small_models import computed

from ed_core.depth import exits, kinds
from ed_core.models.bundled import load_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import EarlyExit, LogitLens
from ed_core.statistics import units
from ed_core.types import Prompt


def kind(text, before):
    stripped = text.strip(string.whitespace)
    if stripped == "":
        return "whitespace"
    letters = [c for c in stripped if c.isalpha()]
    if not letters:
        return "digits" if any(c.isdigit() for c in stripped) else "punctuation"
    if text == text.lstrip() and before and before[-1].isalpha():
        return "later piece"
    return "function word" if stripped.lower() in kinds.FUNCTION_WORDS["en"] else "first piece of a word"


@pytest.fixture(scope="module")
def prompts():
    """Three prompts on a bundled model: the logit lens and the exits."""
    model = ModelRef.parse("ed-demo-8")
    given = [Prompt(p["text"], p["answer"]) for p in load_prompts("ed-demo-8")[:40:14]]
    return [tuple(computed(probe.request(model, p)) for probe in (LogitLens(), EarlyExit())) for p in given]


def test_kinds_are_those_of_a_loop_over_tokens(prompts):
    for lens, _ in prompts:
        expected = {name: [0.0] * 6 for name in kinds.ALL}
        for t in range(lens.n_tokens):
            best = [int(ids[0]) for ids in lens["top_ids"][:, t]]
            text = lens.token_text[best[-1]]
            settle = next(d for d in range(len(best)) if set(best[d:]) == {best[-1]})
            kl = [float(v) for v in lens["kl"][1:, t]]
            depth = 1 + sum(max(kl[d:]) for d in range(len(kl))) / max(kl) if max(kl) > 0 else 1.0
            sure = [d for d in range(1, len(best)) if lens["top_probs"][d, t, 0] >= 2 * lens["top_probs"][d, t, 1]]
            flip = bool(sure) and best[sure[0]] != best[-1]
            names = [kind(text, lens.tokens[t]), kinds.RANKS[(best[-1] >= 1000) + (best[-1] >= 10000)]]
            if t == lens.answer_start - 1:
                names.append(kinds.PLACES[0])
            elif lens.answer_start <= t < lens.n_tokens - 1:
                names.append(kinds.PLACES[1])
            for name in names:
                row = (1, settle, depth, bool(sure), flip, best.index(best[-1]))
                expected[name] = [a + b for a, b in zip(expected[name], row)]
        np.testing.assert_allclose(kinds.sums(lens), np.array(list(expected.values())).T, rtol=1e-6)
        assert kinds.over_kinds(kinds.sums(lens))[kinds.TOKENS] == lens.n_tokens


def test_exits_are_those_of_a_loop_over_tokens(prompts):
    leaving = [of_exits for _, of_exits in prompts]
    n_layers, n = leaving[0].n_layers, sum(r.n_tokens for r in leaving)
    found = exits.headroom([exits.Tokens.of(r) for r in leaving], units(3))
    tokens = [(r["agreement"][:, t], r["confidence"][:, t]) for r in leaving for t in range(r.n_tokens)]
    oracle = [next(d for d in range(n_layers + 1) if agrees[d]) for agrees, _ in tokens]
    settle = [next(d for d in range(n_layers + 1) if all(agrees[d:])) for agrees, _ in tokens]
    assert float(found.oracle.value) == pytest.approx(n_layers - sum(oracle) / n)
    assert float(found.headroom.value) == pytest.approx((sum(settle) - sum(oracle)) / n)
    for i, threshold in enumerate(exits.THRESHOLDS):
        left = [next((d for d in range(n_layers) if sure[d] >= threshold), n_layers) for _, sure in tokens]
        agree = sum(agrees[d] for (agrees, _), d in zip(tokens, left)) / n
        assert found.confident.value[i] == pytest.approx([agree, n_layers - sum(left) / n])
    for depth in range(n_layers + 1):
        runs = [run for r in leaving for run in "".join("01"[int(a)] for a in r["agreement"][depth]).split("0") if run]
        assert found.fixed.value[depth] == pytest.approx(sum(map(len, runs)) / n)
        assert found.accepted[depth] == pytest.approx(sum(map(len, runs)) / max(len(runs), 1))


def test_a_mix_is_each_kind_at_its_mean_over_the_others():
    own, others = np.zeros((2, len(kinds.MEASURES), len(kinds.ALL)))
    own[:2, :2], others[:2, :2] = [[1, 3], [4, 60]], [[2, 2], [10, 30]]
    found = kinds.mix(own, others, 5)
    assert (found.depth, found.expected, found.others) == (16.0, 0.25 * 5 + 0.75 * 15, 10.0)


def test_with_the_mix_held_equal_models_that_differ_in_the_mix_alone_are_alike():
    rng = np.random.default_rng(0)
    depth = np.array([5.0, 15.0])
    a, b = np.zeros((2, 20, len(kinds.MEASURES), len(kinds.ALL)))
    for one, share in ((a, 0.2), (b, 0.7)):
        mixed = np.clip(share + rng.normal(0, 0.05, 20), 0.05, 0.95)
        one[:, kinds.TOKENS, :2] = np.stack([1 - mixed, mixed], 1) * 10
        one[:, kinds.SETTLE, :2] = one[:, kinds.TOKENS, :2] * depth
    assert float(kinds.equal_mix(a, b, units(20)).value) == pytest.approx(0, abs=1e-9)
    b[:, kinds.SETTLE] += 2 * b[:, kinds.TOKENS]
    found = kinds.equal_mix(a, b, units(20))
    assert float(found.value) == pytest.approx(2) and found.interval.ends == pytest.approx((2, 2))


@pytest.mark.parametrize(
    "text, before, expected",
    [
        (" the", "a", "function word"),
        ("s", " house", "later piece"),
        ("House", "\n", "first piece of a word"),
        (" 12", "x", "digits"),
        ("\n\n", "x", "whitespace"),
        ("<|im_end|>", "x", "punctuation"),
        (" é", "x", "first piece of a word"),
    ],
)
def test_a_tokens_kind(text, before, expected):
    assert kinds.kind_of(text, before) == expected
