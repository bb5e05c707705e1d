"""Claims on made-up data: one set on which each must hold, with the value it must give, and one on which it must not;
what they refuse; what is written of them; and all of it from the command line on a small model."""

from __future__ import annotations

import json
from dataclasses import replace

import naive
import numpy as np
import pytest
from small_models import opened_models, save_random

from ed_core.claims import CLAIMS, find, finding, running
from ed_core.claims.claim import CANNOT_BE_TOLD, DOES_NOT, HOLDS, NOT_APPLICABLE, Estimate, judged
from ed_core.claims.evidence import Evidence, Part
from ed_core.commands import main
from ed_core.errors import ClaimRefused, ParameterError, PromptError, StudyError
from ed_core.probes import Answers
from ed_core.service.resolve import resolve
from ed_core.sources.bundled import SETS
from ed_core.studies.points import MEASURED, Point
from ed_core.types import Prompt

L, N, TOKENS = 8, 24, 5
LEVELS = ("1", "2", "3")
WHOLE = np.full(N, 2.0 * (TOKENS - 1))


def drawn(mean, spread: float = 0.01, seed: int = 0) -> np.ndarray:
    """A curve for every prompt, around `mean`."""
    mean = np.asarray(mean, float)
    return mean + np.random.default_rng(seed).normal(0, spread, (N, *mean.shape))


def per_token(**curves) -> Part:
    """Means over tokens as a study keeps them: sums, and how many tokens they are over."""
    columns = {"n_tokens": np.full(N, float(TOKENS))}
    for name, values in curves.items():
        n = TOKENS - name.startswith("nll")
        columns |= {f"{name}.sum": values * n, f"{name}.count": np.full(N, float(n))}
    return in_levels(columns)


def in_levels(columns: dict[str, np.ndarray]) -> Part:
    """Prompts that go through the levels in pairs."""
    levels = tuple(LEVELS[i % 3] for i in range(N))
    return Part(columns, levels, tuple(str(i // 3) for i in range(N)), np.arange(N))


def evidence(**parts: Part) -> Evidence:
    return Evidence(L, parts, True, LEVELS, ("made-up",), seed=3)


def turning_at(layer: int) -> Evidence:
    curve = np.where(np.arange(L) <= layer, -0.3, 0.3)
    return evidence(contributions=per_token(**{f"{part}_cos": drawn(curve) for part in ("attn", "mlp", "layer")}))


def skips(second_half: float) -> Evidence:
    rows = np.where(np.arange(L) < L // 2, 1.0, second_half)
    effect = np.triu(np.repeat(rows[:, None], L, 1), 1)
    return evidence(future=in_levels({"effect": drawn(effect, 0.001), "n_tokens": np.full(N, 5.0)}))


def family(*ratios: float) -> Evidence:
    points = tuple(
        Point(f"m{i}", 10 ** (7 + i), "", "s", "", "kl", ratio, L, MEASURED, ratio - 0.01, ratio + 0.01, N, again)
        for i, ratio in enumerate(ratios)
        for again in [ratio + np.random.default_rng(i).normal(0, 0.005, 1000)]
    )
    return replace(evidence(), points=points, models=tuple(p.model for p in points))


def graded(step: int) -> Evidence:
    """The centre of what skips break moves by `step` layers a level, and so does the lens."""
    level = np.arange(N) % 3
    effect, kl = np.zeros((N, L, L)), np.zeros((N, L + 1))
    for i in range(N):
        at = 1 + step * level[i]
        effect[i, at, at + 1 :] = 1.0
        kl[i] = np.where(np.arange(L + 1) <= at, 9.0, 1.0)
    skipped = in_levels({"effect": effect, "n_tokens": np.full(N, 5.0)})
    lens = in_levels({"kl.sum": kl * TOKENS, "n_tokens": np.full(N, float(TOKENS))})
    return evidence(future=skipped, logit_lens=lens)


def appearing(step: float) -> Evidence:
    depth = 3 + step * (np.arange(N) % 3) + np.arange(N) // 3 % 2
    return evidence(answers=in_levels({"first_depth": depth, "exact_whole": np.ones(N)}))


def thinking(way: float) -> Evidence:
    right = (np.arange(N) % 2).astype(float)
    ratio = 0.5 + way * 0.2 * (right - 0.5) + np.random.default_rng(0).normal(0, 0.02, N)
    return evidence(writing=in_levels({"mean_ratio": ratio}), answers=in_levels({"exact_whole": right}))


def losing(cosine) -> Evidence:
    """Leaving out layer s costs s; the cosine is as given."""
    loss = drawn(2 + np.arange(L), 0.001)
    return evidence(one=per_token(update_cosine=drawn(cosine, 0.001), nll=loss, nll_whole=drawn(2.0, 0.0)))


def keeping(share: float) -> Evidence:
    curve = np.full(L, share)
    curve[[0, -1]] = 0.0  # the first and the last layer do not count
    return evidence(one=per_token(top1_kept=drawn(curve, 0.002)))


def turned(stream, update: float) -> Evidence:
    return evidence(
        turns=per_token(
            stream_angle=drawn(np.broadcast_to(stream, L), 0.1), update_angle=drawn(np.full(L - 1, update), 0.1)
        )
    )


def replaced(costs) -> Evidence:
    loss = (2 * (1 + drawn(costs, 0.001))) * (TOKENS - 1)
    return evidence(replacement=Part({"loss": loss, "whole": WHOLE, "tokens": np.full(N, TOKENS - 1.0)}))


def stretched(start: int, price: float) -> Evidence:
    """Of stretches of two layers the one at `start` turns least; it costs `price` nats, the others 1."""
    angle, loss = np.full(L - 1, 0.4), np.full(L - 1, 3.0)
    angle[start], loss[start] = 0.1, 2.0 + price
    one = per_token(angular_distance=drawn(angle, 0.001), nll=drawn(loss, 0.001), nll_whole=drawn(2.0, 0.0))
    return evidence(stretch=one)


def answering(generated: int, likely: int) -> Evidence:
    """Every answer is lost without the layer `generated`, and likelihood without the layer `likely`."""
    exact, loss = np.ones((N, L)), np.full((N, L), 0.5)
    exact[:, generated], loss[:, likely] = 0.0, 4.0
    return evidence(
        answers=in_levels({"exact": exact, "exact_whole": np.ones(N), "loss": loss, "loss_whole": loss[:, 0] * 0 + 0.5})
    )


CASES = {  # claim: what it must hold on, its first value there, and what it must not hold on
    "turn": (turning_at(4), 5 / 8, turning_at(0)),
    "second-half-weak": (skips(0.1), 0.1, skips(1.0)),
    "static-ratio": (family(0.6, 0.61, 0.6), 0.0, family(0.3, 0.6, 0.9)),
    "no-harder-deeper": (graded(0), 0.0, graded(2)),
    "adaptive": (appearing(2), 4.0, appearing(-2)),
    "deep-thinking": (thinking(1), 0.87, thinking(-1)),
    "cosine-weak-proxy": (losing([4, 1, 6, 3, 0, 7, 2, 5]), 1 / 7, losing(-np.arange(L))),
    "one-layer-robust": (keeping(0.9), 0.9, keeping(0.5)),
    "even-turns": (turned(10.0, 90.0), 0.0, turned([40, 5, 5, 5, 60, 60, 5, 5], 30.0)),
    "usefulness": (replaced(0.75 - 0.1 * np.arange(L)), 7 / 8, replaced(0.2 + 0.1 * np.arange(L))),
    "deep-skips-late": (stretched(5, 0.2), 6 / 8, stretched(0, 3.0)),
    "likelihood-or-generation": (answering(6, 1), 5.0, answering(1, 6)),
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_holds_where_it_must_and_not_where_it_must_not(claim):
    true, value, false = CASES[claim.id]
    found = claim.of(true)
    first = found.estimates[next(q.name for q in claim.quantities if q.name in found.estimates)]
    assert judged(claim, found) == HOLDS and judged(claim, claim.of(false)) == DOES_NOT
    assert first.value == pytest.approx(value, abs=0.02) and first.low <= first.value <= first.high
    assert set(found.estimates) <= {q.name for q in claim.quantities}
    assert len(found.curve.x) == len(found.curve.values) == len(found.curve.low) == len(found.curve.high)
    if claim.id != "static-ratio":
        assert found.prompts == N


def test_of_several_quantities_each_must_hold():
    claim = find("even-turns")
    found = {name: claim.of(turned(10.0, angle)).estimates for name, angle in (("right", 90.0), ("same", 30.0))}
    told = [one.verdict(q.holds) for q in claim.quantities for one in [found["same"][q.name]]]
    assert told == [HOLDS, HOLDS, DOES_NOT] and judged(claim, claim.of(turned(10.0, 30.0))) == DOES_NOT
    moved = find("no-harder-deeper").of(graded(2)).estimates
    assert [round(one.value, 6) for one in moved.values()] == [4.0, 4.0]  # layers, from the first level to the last


@pytest.mark.parametrize(
    ("low", "high", "undefined", "verdict"),
    [
        (0.4, 0.6, 0.0, HOLDS),
        (0.4, 0.6, 0.05, HOLDS),
        (0.4, 0.6, 0.06, CANNOT_BE_TOLD),
        (0.4, 0.6, 0.95, DOES_NOT),
        (0.2, 0.4, 0.0, CANNOT_BE_TOLD),
        (0.7, 0.9, 0.0, CANNOT_BE_TOLD),
        (0.1, 0.9, 0.0, CANNOT_BE_TOLD),
        (0.1, 0.2, 0.0, DOES_NOT),
        (0.85, 0.9, 0.0, DOES_NOT),
        (0.1, 0.3, 0.0, DOES_NOT),  # its end is no part of what the statement allows
        (0.8, 0.9, 0.0, DOES_NOT),
        (np.nan, np.nan, 1.0, DOES_NOT),
    ],
)
def test_the_verdict_follows_from_the_whole_interval(low, high, undefined, verdict):
    assert Estimate((low + high) / 2, low, high, undefined).verdict((0.3, 0.8)) == verdict


def test_the_interval_is_that_of_prompts_drawn_anew():
    """The share of a half whose prompts differ: resampled by hand."""
    values = np.where(np.arange(N) < 12, 0.8, 1.0)
    part = per_token(top1_kept=np.repeat(values[:, None], L, 1))
    found = find("one-layer-robust").of(evidence(one=part)).estimates
    one = next(iter(found.values()))
    counts = np.random.default_rng(3).multinomial(N, np.full(N, 1 / N), size=1000)
    low, high = np.quantile(counts @ values / N, (0.05, 0.95))
    assert one.value == pytest.approx(0.9) and (one.low, one.high) == pytest.approx((low, high))


def test_what_cannot_be_said_is_refused_with_both_numbers():
    few = evidence(one=keeping(0.9).parts["one"].keep(np.arange(4)))
    with pytest.raises(ClaimRefused, match="needs 5 prompts at least, and there are 4"):
        find("one-layer-robust").of(few)
    with pytest.raises(ClaimRefused, match="needs 5 prompts that are answered wrongly at least, and there are 0"):
        all_right = thinking(1)
        columns = {"exact_whole": np.ones(N)}
        find("deep-thinking").of(replace(all_right, parts={**all_right.parts, "answers": in_levels(columns)}))
    with pytest.raises(ClaimRefused, match="3 at least, and has 2"):
        find("static-ratio").of(family(0.5, 0.6))
    with pytest.raises(ClaimRefused, match="known answers"):
        find("adaptive").of(replace(appearing(1), answers=False))
    with pytest.raises(ClaimRefused, match="2 at least, and the set has 0"):
        find("adaptive").of(replace(appearing(1), level_names=()))
    with pytest.raises(ClaimRefused, match="has 3 layers; this claim needs 4"):
        find("turn").of(replace(turning_at(4), n_layers=3))
    with pytest.raises(ClaimRefused, match="too short"):
        find("turn").of(replace(turning_at(4), troubles={"contributions": "The prompts are too short."}))
    nowhere = appearing(1).parts["answers"].columns | {"first_depth": np.full(N, np.nan)}
    with pytest.raises(ClaimRefused, match="does not know them"):
        find("adaptive").of(evidence(answers=in_levels(nowhere)))
    with pytest.raises(ParameterError, match="did you mean 'turn'"):
        find("turns")


def test_a_turn_that_is_not_there_is_told_and_does_not_hold():
    found = find("turn").of(turning_at(L))
    told = finding.Finding(find("turn"), "m", "s", found).told()
    assert told["verdict"] == DOES_NOT and told["quantities"][0]["value"]["value"] is None
    assert "not defined" in told["sentence"] and "gives no depth" in told["beside"]


def test_the_sentence_says_model_set_value_paper_and_control():
    claim = find("one-layer-robust")
    mine, twins = claim.of(keeping(0.9)), claim.of(keeping(0.95))
    said = finding.Finding(claim, "this-model", "these", mine, control=twins).sentence
    assert said.startswith("For this-model on these (24 prompts) it holds that most of")
    for words in ("0.90 (5–95 % over prompts: 0.90 to 0.90)", "the paper found 0.72 to 0.95", "Lad et al. 2024"):
        assert words in said
    assert said.endswith("there the statement holds too, so it tells nothing of what was learned.")
    other = finding.Finding(claim, "m", "s", claim.of(keeping(0.5)), control=claim.of(keeping(0.5))).sentence
    assert "it does not hold that" in other and other.endswith("there it does not hold.")
    apart = finding.Finding(claim, "m", "s", claim.of(keeping(0.5)), control=claim.of(keeping(0.9))).sentence
    assert apart.endswith("there the statement holds.")
    none = finding.Finding(claim, "m", "s", None, "It has no prompts.")
    assert none.verdict == NOT_APPLICABLE and none.sentence.endswith("is not applicable. It has no prompts.")


def test_verdicts_are_counted_in_grammar():
    verdicts = [HOLDS] * 2 + [DOES_NOT] + [NOT_APPLICABLE] * 3
    assert finding.counted([{"verdict": v} for v in verdicts]) == (
        "2 hold here, 1 does not hold here, 3 are not applicable"
    )


def test_what_is_read_of_answers_is_what_full_passes_say(measure):
    """On a model that knows them: written out token by token without each layer."""
    model = opened_models().get(resolve("ed-demo-8"))
    lines = [json.loads(line) for line in (SETS / "copy.jsonl").read_text().splitlines()[:2]]
    decode = lambda ids: model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    exact, appears = [], []
    for answer, line in zip((lines[0]["answer"], f"{lines[1]['answer'][:-1]}!"), lines, strict=True):
        found = measure(model, Answers(k=2), Prompt(line["text"], answer))  # right; right but for its end
        expected = naive.answers(model.hf, decode, found.token_ids, found.answer_start, answer, 2)
        assert len(found.token_ids) - found.answer_start > 1
        for name, values in expected.items():
            assert np.allclose(found[name], values, atol=1e-4, equal_nan=True), name
        exact.append(found["exact"].tolist())
        appears.append(np.isfinite(found["first_depth"]))
    assert {0.0, 1.0} == set(exact[0]) and set(exact[1]) == {0.0} and appears == [True, False]
    with pytest.raises(PromptError, match="needs a known answer"):
        measure(model, Answers(), Prompt("Copy:"))


# ---------------------------------------------------------------- from the command line


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("model"))


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "sums.jsonl"
    lines = [
        {"id": f"{level}-{i}", "level": str(level), "pair": str(i), "text": f"{'1 + ' * level}{i} = ", "answer": "7"}
        for level in (1, 2)
        for i in range(6)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def asked(model, prompts, out, *more: str) -> int:
    return main(["claims", "--model", str(model), "--set", str(prompts), "--out", str(out), *more])


def test_the_command_measures_once_and_goes_on_from_there(model, prompts, tmp_path, monkeypatch, capsys):
    from ed_core.fits import replacement
    from ed_core.studies import items

    out = tmp_path / "out"
    assert asked(model, prompts, out, "--claim", "turn", "--claim", "adaptive") == 0
    first = json.loads((out / running.FOUND).read_text())
    assert [one["id"] for one in first["findings"]] == ["turn", "adaptive"]
    assert sorted(p.name for p in (out / "parts").iterdir()) == ["answers", "contributions"]
    assert asked(model, prompts, out) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].startswith(running.DONE) and "one-layer-robust" in printed
    found = json.loads((out / running.FOUND).read_text())
    assert [one["id"] for one in found["findings"]] == [claim.id for claim in CLAIMS]
    by_id = {one["id"]: one for one in found["findings"]}
    assert "3 at least, and has 1" in by_id["static-ratio"]["reason"]
    assert by_id["turn"] == first["findings"][0]
    assert by_id["one-layer-robust"]["prompts"] == 12 and by_id["one-layer-robust"]["control"]
    assert str(tmp_path) not in (out / running.FOUND).read_text() + (out / running.REPORT).read_text()

    def never(*_, **__):
        raise AssertionError("it is there already")

    monkeypatch.setattr(items, "compute", never)
    monkeypatch.setattr(replacement, "by_prompt", never)
    before = (out / running.FOUND).read_bytes()
    assert asked(model, prompts, out) == 0 and (out / running.FOUND).read_bytes() == before
    assert asked(model, prompts, out, "--claim", "turn") == 0
    assert (out / running.FOUND).read_bytes() == before, "one claim leaves the others as they are"
    report = (out / running.REPORT).read_text()
    assert all(one["sentence"] in report for one in found["findings"]) and found["command"] in report
    monkeypatch.setattr(Answers, "version", Answers.version + 1)
    assert asked(model, prompts, out, "--claim", "turn") == 0
    now = json.loads((out / running.FOUND).read_text())
    assert [one["id"] for one in now["findings"]] == ["turn"], "what another version measured is not told beside it"


def test_values_are_those_of_the_parts(model, prompts, tmp_path):
    """From the sums on disk, by hand."""
    from ed_core.studies.folder import open_folder

    out = tmp_path / "out"
    assert asked(model, prompts, out, "--claim", "one-layer-robust", "--claim", "likelihood-or-generation") == 0
    one = json.loads((out / running.FOUND).read_text())["findings"][0]["quantities"][0]
    folder = open_folder(out / "parts" / "one")
    for label, key in (("model", "value"), ("untrained twin", "control")):
        columns = folder.sums(label, "sums").probe("prune")
        kept = columns["top1_kept.sum"].sum(0) / columns["n_tokens"].sum()
        assert one[key]["value"] == pytest.approx(kept[1:-1].mean())
    assert folder.sums("model", "sums").probe("prune")["top1_kept.sum"].shape[0] == 12


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--prompts", "4"), "gives 4 prompts, and an interval needs 5"),
        (("--claim", "tern"), "did you mean 'turn'"),
        (("--prompts", "-1"), "expected 0 or more"),
    ],
)
def test_the_command_refuses_in_one_sentence(model, prompts, tmp_path, capsys, words, told):
    assert asked(model, prompts, tmp_path / "out", *words) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "out" / "parts").exists()


def test_models_of_one_family_are_compared_and_others_refused(model, prompts, tmp_path, capsys):
    others = [
        save_random(tmp_path / str(width), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=4 + i)
        for i, width in enumerate((32, 96))
    ]
    also = [word for other in others for word in ("--also", str(other))]
    assert asked(model, prompts, tmp_path / "out", "--claim", "static-ratio", *also) == 0
    one = json.loads((tmp_path / "out" / running.FOUND).read_text())["findings"][0]
    assert one["verdict"] != NOT_APPLICABLE and one["prompts"] == 12 and len(one["curves"]["model"]["x"]) == 3
    assert one["control_reason"] and any(q["value"] for q in one["quantities"])
    capsys.readouterr()
    stranger = save_random(tmp_path / "stranger", family="llama")
    assert asked(model, prompts, tmp_path / "other", "--claim", "static-ratio", "--also", str(stranger)) == 2
    assert "is of the family llama" in capsys.readouterr().err


def test_a_set_that_is_not_there_and_a_damaged_file_are_refused(model, tmp_path, capsys):
    assert asked(model, "sum_mod11", tmp_path / "out") == 2
    assert "did you mean 'sum_mod10'" in capsys.readouterr().err
    (tmp_path / running.FOUND).write_text("{")
    with pytest.raises(StudyError, match="damaged"):
        running.read(tmp_path)
    assert running.read(tmp_path / "nowhere") == {}
