"""Mean depths and the turn on their way out: what `run` writes, a study's table and a notebook's result against plain
loops over the tokens; intervals over forms and over prompts; tables of an earlier version."""

from __future__ import annotations

import math
import random

import naive
import numpy as np
import pytest
from shell import wrote

import ed_core
from ed_core.cli import main
from ed_core.prompts import to_jsonl
from ed_core.studies import tables
from ed_core.studies.items import open_folder
from ed_core.types import Prompt

L, MODEL = 8, "ed-demo-8"
TEXTS = [f"Sums mod 10:\n{a} + {b} = " for a, b in ((5, 7), (1, 2), (3, 3), (9, 8), (4, 0), (2, 6), (7, 7), (8, 1))]
FIVE = ["a", "a", "b", "b", "c", "d", "e", "e"]  # forms


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def asked(forms=()) -> list[Prompt]:
    return [Prompt(text, form=forms[i] if forms else "") for i, text in enumerate(TEXTS)]


def ran(tmp_path, forms=()) -> dict[str, np.ndarray]:
    """What `run` writes of the prompts, each with its form where there are any."""
    return wrote(tmp_path, asked(forms), "contributions", "logit_lens", model=MODEL)


def over_tokens(curves: list[list[float]], name: str) -> float:
    """The mean depth of the mean over all tokens, each with its curve over depths."""
    return naive.mean_depth([sum(curve[l] for curve in curves) / len(curves) for l in range(L + 1)], name)


def tokens(data, name: str) -> list[list[list[float]]]:
    """Of each prompt, of each token, the curve over depths."""
    return [data[f"logit_lens.{name}.{i}"].T.astype(float).tolist() for i in range(len(TEXTS))]


def test_what_run_writes_is_that_of_plain_loops(tmp_path):
    data = ran(tmp_path)
    for name in ("kl", "overlap"):
        of_prompt = tokens(data, name)
        depth = data[f"effective_depth.{name}_mean"]
        assert depth == pytest.approx(over_tokens([c for prompt in of_prompt for c in prompt], name), rel=1e-5)
        low, high = (data[f"effective_depth.{name}_mean_{end}"] for end in ("low", "high"))
        assert 0 < low < depth < high < L
        without = [over_tokens([c for j, p in enumerate(of_prompt) if j != i for c in p], name) for i in range(8)]
        error = math.sqrt(7 / 8 * sum((one - sum(without) / 8) ** 2 for one in without))
        assert 1.5 * error < high - low < 12 * error  # t of seven degrees of freedom: about 3.8
    cosine = np.mean([data[f"contributions.{name}"] for name in ("attn_cos", "mlp_cos", "layer_cos")], 0).tolist()
    best = min(range(L - 1), key=lambda k: unexplained(cosine, k))
    before, after = sum(cosine[: best + 1]) / (best + 1), sum(cosine[best + 1 :]) / (L - 1 - best)
    drawn, limit = random.Random(0), unexplained(cosine, best) + 1e-12
    orders = [drawn.sample(cosine, L) for _ in range(2000)]
    as_well = sum(min(unexplained(order, k) for k in range(L - 1)) <= limit for order in orders)
    assert data["effective_depth.turn_p"] == pytest.approx(as_well / 2000, abs=0.03)
    if not (before < 0 < after):
        assert np.isnan(data["effective_depth.turn"])


def unexplained(curve: list[float], k: int) -> float:
    """The squared error around two means."""
    return sum(sum((value - sum(part) / len(part)) ** 2 for value in part) for part in (curve[: k + 1], curve[k + 1 :]))


def test_forms_of_the_prompts_that_were_asked_for_are_what_is_drawn(tmp_path):
    """The results come out of the store, which knows no forms: the file's own count."""
    bare, alike = ran(tmp_path), ran(tmp_path, ["one"] * 8)
    by_form = ran(tmp_path, [f"form {i // 2}" for i in range(8)])
    five = ran(tmp_path, FIVE)
    assert bare.keys() == five.keys()
    for name in ("kl", "overlap"):
        key = f"effective_depth.{name}_mean"
        assert bare[key] == alike[key] == by_form[key] == five[key]
        assert bare[f"{key}_low"] == alike[f"{key}_low"] == by_form[f"{key}_low"], "four forms are too few"
        assert five[f"{key}_low"] != bare[f"{key}_low"] and five[f"{key}_low"] < five[key] < five[f"{key}_high"]


def test_a_study_has_the_same_and_draws_its_forms(tmp_path):
    data, again = ran(tmp_path), ran(tmp_path, FIVE)
    for name, forms in (("bare", ()), ("five", FIVE)):
        (tmp_path / f"{name}.jsonl").write_text(to_jsonl(asked(forms)))
    sets = "".join(f'\n[[sets]]\nname = "{name}"\nfile = "{name}.jsonl"\n' for name in ("bare", "five"))
    text = f'name = "s"\nmodels = ["{MODEL}"]\nprobes = ["contributions", "logit_lens"]\n{sets}'
    (tmp_path / "s.toml").write_text(text)
    assert main(["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "s")]) == 0
    rows = tables.verdict(open_folder(tmp_path / "s")).to_pylist()
    found = {(row["set"], row["criterion"], row["variant"]): row for row in rows}
    for name in ("kl", "overlap"):
        bare, five = found["bare", name, "mean"], found["five", name, "mean"]
        for row, expected in ((bare, data), (five, again)):
            for column, end in {"depth": "", "low": "_low", "high": "_high"}.items():
                assert np.float32(row[column]) == pytest.approx(expected[f"effective_depth.{name}_mean{end}"], rel=1e-5)
        assert (bare["over"], five["over"]) == ("8 prompts", "8 prompts of 5 templates")
        assert bare["ratio"] == pytest.approx(bare["depth"] / L) and bare["undefined"] == 0
    turned = found["bare", "cosine", "turn"]
    assert np.float32(turned["p"]) == data["effective_depth.turn_p"]
    assert (turned["depth"] is None) == bool(turned["failed"])


def test_a_notebooks_result_has_them(tmp_path):
    data = ran(tmp_path)
    model = ed_core.open(MODEL)
    lens, written = model.run(ed_core.LogitLens(), TEXTS[0]), model.run(ed_core.Contributions(), TEXTS[0])
    for name, found in lens.mean_depth.items():
        assert found.depth == pytest.approx(over_tokens(tokens(data, name)[0], name), rel=1e-5)
        assert found.ratio == found.depth / L and found.interval is None
    assert 0 < written.turn.p <= 1 and written.turn.n_layers == L
    assert not hasattr(lens, "turn") and not hasattr(written, "mean_depth")
    generated = model.run(ed_core.Generation(n_tokens=2), TEXTS[0])
    assert np.array_equal(generated.mean_depth, generated["mean_depth"]), "a measure of that name stays one"
