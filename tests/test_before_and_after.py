"""Two models on the same prompts, `ed_core.compare`: against depths read prompt by prompt, and a paired bootstrap-t
that is written out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small_models import byte_tokenizer, random_hf

import ed_core
from ed_core import statistics
from ed_core.errors import ParameterError
from ed_core.types import Prompt

TOKENIZER = byte_tokenizer()
PROMPTS = [Prompt(f"{i} + {3 * i % 7} = ", str(i), id=f"p{i}") for i in range(10)]


@pytest.fixture(scope="module")
def sides():
    """A model, and the same after some steps."""
    model = random_hf("llama")
    before = ed_core.open(copy.deepcopy(model), TOKENIZER)
    with torch.no_grad():
        for layer in model.model.layers[3:]:
            layer.mlp.down_proj.weight.mul_(0.2)
    return before, ed_core.open(model, TOKENIZER)


def depth(by: str, curve: np.ndarray) -> float:
    """`mean_depth` of a curve, by a loop."""
    missing = [max(curve[l:]) if by == "kl" else max(1 - c for c in curve[l:]) for l in range(len(curve))]
    return 1 + sum(missing[1:]) / missing[1] if by == "kl" else sum(missing)


def test_depths_are_each_prompts_own_and_the_last_rows_those_of_all_tokens(sides):
    table = ed_core.compare(*sides, PROMPTS)
    assert list(table.prompt.unique()) == [*(p.id for p in PROMPTS), "all prompts"] and (table.layers == 5).all()
    for by in ("kl", "overlap"):
        rows = table[table.by == by]
        curves = [[side.run(ed_core.LogitLens(), p)[by] for p in PROMPTS] for side in sides]
        for name, side in zip(("before", "after"), curves):
            expected = [depth(by, c.mean(1, dtype=np.float64)) for c in (*side, np.concatenate(side, 1))]
            np.testing.assert_allclose(rows[name], expected, rtol=1e-5)
        np.testing.assert_allclose(rows.difference, rows.after - rows.before)
        assert rows.low[:-1].isna().all() and rows.over.iloc[-1] == "10 prompts"
        low, value, high = rows[["low", "difference", "high"]].iloc[-1]
        assert low < value < high


def test_the_interval_is_of_pairs_and_not_of_two_models(sides):
    """Prompts are drawn for both together: a model against itself differs by 0 for sure."""
    table = ed_core.compare(sides[0], sides[0], PROMPTS)
    assert (table[["difference", "low", "high"]].iloc[-2:] == 0).all(axis=None)
    sums, tokens = {}, {}
    for name, side in zip("ab", sides):
        lens = [side.run(ed_core.LogitLens(), p).kl for p in PROMPTS]
        sums[name] = np.stack([one.sum(1, dtype=np.float64) for one in lens])
        tokens[name] = np.array([one.shape[1] for one in lens], float)

    def difference(times: np.ndarray) -> float:
        a, b = (depth("kl", times @ sums[n] / (times @ tokens[n])) for n in "ab")
        return b - a

    def error(times: np.ndarray) -> float:
        """By the jackknife, in which each draw is left out once."""
        drawn = np.flatnonzero(times).tolist()
        left = np.concatenate([[difference(times - np.eye(10)[u])] * int(times[u]) for u in drawn])
        return np.sqrt((len(left) - 1) / len(left) * ((left - left.mean()) ** 2).sum())

    draws, value, own = statistics.counts(10), difference(np.ones(10)), error(np.ones(10))
    again = [value - own * (difference(times) - value) / error(times) for times in draws]
    found = ed_core.compare(*sides, PROMPTS).iloc[-2]
    np.testing.assert_allclose((found.low, found.high), np.quantile(again, (0.05, 0.95)), rtol=1e-4, atol=1e-4)


def test_few_prompts_have_no_interval_and_forms_are_the_units(sides):
    few = ed_core.compare(*sides, ["5 + 7 = ", "aaa bbb"])
    alone = ed_core.compare(*sides, ["5 + 7 = "])
    assert list(alone.before) == list(few.before[:2]) * 2, "one prompt is all of its mean"
    assert few[["low", "high"]].isna().all(axis=None) and len(few) == 6 and few.prompt[0] == "5 + 7 = "
    formed = [Prompt(p.text, p.answer, form=f"f{i % 5}") for i, p in enumerate(PROMPTS)]
    assert ed_core.compare(*sides, formed).over.iloc[-1] == "10 prompts of 5 templates"


def test_what_cannot_be_compared_is_refused_in_a_sentence(sides):
    deeper = ed_core.open(random_hf("llama", num_hidden_layers=6), TOKENIZER)
    lens = sides[0].run(ed_core.LogitLens(), PROMPTS)
    for wrong, words in (
        ((sides[0], deeper, PROMPTS), "5 and 6 layers"),
        ((sides[0], sides[1], []), "no list of prompts"),
        ((lens, sides[1], PROMPTS[::-1]), "a is neither"),
        ((lens, sides[1].run(ed_core.LogitLens(k=1), PROMPTS), PROMPTS), "other parameters"),
        ((sides[0], [sides[1].run(ed_core.Contributions(), p) for p in PROMPTS], PROMPTS), "b is neither"),
    ):
        with pytest.raises(ParameterError, match=words) as refused:
            ed_core.compare(*wrong)
        assert str(refused.value).endswith(".")
