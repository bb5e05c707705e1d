"""Claims on made-up data: what each must say and must not, what they refuse, what is written of them; and all of it
from the command line on a small model. How often they err is counted in `test_claims_power.py`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from unittest.mock import Mock

import naive
import numpy as np
import pytest
from made_up_claims import MADE_UP, Draw
from small_models import opened_models, save_random

from ed_core.claims import CLAIMS, find, finding, running
from ed_core.claims.claim import (
    CANNOT_BE_TOLD,
    DOES_NOT,
    HOLDS,
    NOT_APPLICABLE,
    Claim,
    Estimate,
    Evidence,
    Measured,
    Part,
    Quantity,
    by_draws,
    judged,
    reliability,
    together,
)
from ed_core.claims.record import Curve
from ed_core.commands import main
from ed_core.depth import sinks
from ed_core.depth.continuous import mean_depth_kl
from ed_core.errors import ClaimRefused, PromptError
from ed_core.fits import replacement
from ed_core.models.bundled import SETS
from ed_core.models.ref import ModelRef
from ed_core.probes import Answers, Prune
from ed_core.studies import items
from ed_core.studies.items import open_folder
from ed_core.sweeps import dropping
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


def evidence(layers: int = L, **parts: Part) -> Evidence:
    return Evidence(layers, parts, True, LEVELS, ("made-up",), seed=3, worked=True)


def cosine(curve) -> Evidence:
    parts = {f"{part}_cos": drawn(curve) for part in ("attn", "mlp", "layer")}
    return evidence(len(curve), contributions=per_token(**parts))


def turning_at(layer: int) -> Evidence:
    return cosine(np.where(np.arange(L) <= layer, -0.3, 0.3))


def keeping(share) -> Evidence:
    """Best guesses kept, of all inner layers or of each."""
    curve = np.broadcast_to(share, L).copy()
    curve[[0, -1]] = 0.0  # the first and the last layer do not count
    return evidence(one=per_token(top1_kept=drawn(curve, 0.002)))


def replaced(costs) -> Evidence:
    costs = np.asarray(costs, float)
    loss = (2 * (1 + drawn(costs, 0.001))) * (TOKENS - 1)
    columns = {"loss": loss, "whole": WHOLE, "tokens": np.full(N, TOKENS - 1.0)}
    return evidence(len(costs), replacement=Part(columns))


def told(name: str, of: Evidence) -> str:
    claim = find(name)
    return judged(claim, claim.of(of)).verdict


def value(name: str, of: Evidence, quantity: int = 0) -> Estimate:
    claim = find(name)
    return claim.of(of).estimates[claim.quantities[quantity].name]


# ---------------------------------------------------------------- what was judged wrongly before


def test_no_turn_is_seen_in_a_zigzag_in_a_dip_and_in_noise():
    zigzag, dip = np.tile([-0.3, 0.3], 15), np.full(30, 0.3)
    dip[14] = -0.2
    late = np.where(np.arange(30) < 20, 0.0, 0.0)
    for curve in (zigzag, dip, late + np.random.default_rng(1).normal(0, 0.1, 30)):
        assert told("turn", cosine(curve)) != HOLDS
    assert told("turn", cosine(dip)) == DOES_NOT, "its first layers strengthen"
    assert "mean cosine of the first 11 layers lies above 0" in find("turn").of(cosine(dip)).beside
    falling = find("turn").of(cosine(np.where(np.arange(30) < 15, -0.1, -0.3))).beside
    assert "mean cosine of the last 8 layers lies below 0" in falling
    assert told("turn", cosine(np.where(np.arange(30) < 16, -0.2, 0.2))) == HOLDS
    assert told("turn", cosine(np.where(np.arange(16) < 3, -0.2, 0.2))) == DOES_NOT, "a turn, but an early one"


def test_a_turn_that_untrained_twins_have_as_well_is_none():
    step = np.where(np.arange(16) < 8, -0.2, 0.2)
    of, flat = cosine(step), cosine(np.full(16, 0.2)).parts["contributions"]
    same = of.parts["contributions"]
    for twins, verdict in (((flat,) * 3 + (same,) * 2, HOLDS), ((flat,) * 2 + (same,) * 3, CANNOT_BE_TOLD)):
        assert told("turn", replace(of, twins=twins)) == verdict
    assert "3 of 5 untrained twins turn" in find("turn").of(replace(of, twins=(flat, flat, same, same, same))).beside
    one = find("turn").of(replace(of, twins=(flat,) * 4 + (same,)))
    assert one.beside.endswith(" 1 of 5 untrained twins turns after layer 7 ± 1.")


def test_a_proxy_is_not_called_weak_because_the_loss_is_noise():
    rng, score = np.random.default_rng(0), np.arange(30.0)
    for true, spread in ((np.zeros(30), 1.0), (score / 30, 5.0)):  # noise alone; a perfect proxy under noise
        loss = 2 + true + rng.normal(0, spread, (N, 30))
        one = per_token(
            block_influence=drawn(score), update_cosine=drawn(score), nll=loss, nll_whole=np.full((N, 1), 2.0)
        )
        found = find("cosine-weak-proxy").of(evidence(30, one=one))
        assert judged(find("cosine-weak-proxy"), found).verdict == CANNOT_BE_TOLD
        why = next(iter(found.estimates.values())).why
        told = re.fullmatch(
            r"(none|-?\d+ %) of the differences in loss between layers are more than noise; .* 80 %", why
        )
        assert told and (told[1] == "none" or float(told[1][:-2]) < 80), why


def test_a_layer_whose_replacement_breaks_the_model_is_needed():
    from ed_core.depth.matching import usefulness

    part = replaced([0.5, np.nan, 0.0, 0.0]).parts["replacement"]
    found = find("usefulness").of(evidence(4, replacement=part))
    estimate = found.estimates[next(q.name for q in find("usefulness").quantities if "share" in q.name)]
    mean = part["loss"].sum(0) / part["whole"].sum()
    assert estimate.value == estimate.low == usefulness(mean, 1.0) == 0.5 and "2 of 4 layers are needed" in found.beside
    holds, fails = estimate.errors((-np.inf, 1.0))
    assert holds < 0.05 < fails


def test_any_one_layer_means_the_worst_one():
    shares = np.full(L, 0.95)
    shares[[2, 5]] = 0.0
    of = keeping(shares)
    assert told("one-layer-robust", of) == DOES_NOT and value("one-layer-robust", of, 1).value > 0.6
    said = find("one-layer-robust").of(of).beside
    assert "The worst is layer" in said and "2 of 6 inner layers keep less than 72 %" in said
    assert told("one-layer-robust", keeping(0.9)) == HOLDS
    one = np.full(L, 0.95)
    one[3] = 0.72
    assert told("one-layer-robust", keeping(one)) == CANNOT_BE_TOLD


def test_what_is_not_defined_cannot_be_told():
    claim = find("even-turns")
    found = claim.of(MADE_UP["even-turns"](Draw("holds", 10, np.random.default_rng(0))))
    assert judged(claim, found).verdict == HOLDS
    names = list(found.estimates)
    for name in names:
        nothing = Estimate.undefined_because("it was lost")
        assert judged(claim, replace(found, estimates=found.estimates | {name: nothing})).verdict == CANNOT_BE_TOLD
        less = {other: found.estimates[other] for other in names if other != name}
        assert judged(claim, replace(found, estimates=less)).verdict == CANNOT_BE_TOLD


# ---------------------------------------------------------------- from values to a verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.4, 0.6, HOLDS),
        (0.2, 0.4, CANNOT_BE_TOLD),
        (0.7, 0.9, CANNOT_BE_TOLD),
        (0.1, 0.9, CANNOT_BE_TOLD),
        (0.1, 0.2, DOES_NOT),
        (0.85, 0.9, DOES_NOT),
    ],
)
def test_the_verdict_follows_from_all_draws(low, high, verdict):
    claim = one_quantity((0.3, 0.8))
    assert judged(claim, of_draws(np.linspace(low, high, 1000))).verdict == verdict


def one_quantity(holds, *more: Quantity, chosen: bool = True) -> Claim:
    quantities = (Quantity("it", "", holds, "limited", "found", chosen=chosen), *more)
    return Claim("x", "X", "it is so", "a paper", "f", "p", "c", quantities, (), lambda of: None)  # type: ignore


def of_draws(draws, layers=None, **more) -> Measured:
    nothing = Curve(x_title="", unit="", x=(), values=(), low=(), high=(), ticks=())
    return Measured({"it": Estimate.of(np.mean(draws), draws, layers), **more}, 9, nothing, "", "9 prompts")


def test_prompts_and_layers_have_to_agree_and_lost_resamples_count_as_contradiction():
    claim, within, wide = one_quantity((0.3, 0.8)), np.linspace(0.4, 0.6, 1000), np.linspace(0.2, 0.9, 1000)
    assert judged(claim, of_draws(within, within)).verdict == HOLDS
    assert judged(claim, of_draws(within, wide)).verdict == judged(claim, of_draws(wide, within)).verdict
    assert judged(claim, of_draws(within, wide)).verdict == CANNOT_BE_TOLD
    lost = within.copy()
    lost[:60] = np.nan
    assert judged(claim, of_draws(lost)).verdict == CANNOT_BE_TOLD
    assert by_draws(within)((0.3, 0.8)) == pytest.approx((1 / 1001, 1.0))


def test_of_several_quantities_each_must_hold_and_each_may_contradict():
    above, below, far = (np.linspace(*ends, 1000) for ends in ((0.4, 0.6), (0.1, 0.2), (-0.03, 0.97)))
    both = one_quantity((0.3, np.inf), Quantity("other", "", (0.0, np.inf), "", ""))
    claims = {n: of_draws(above, other=Estimate.of(0.0, draws)) for n, draws in (("a", below), ("b", -below))}
    assert judged(both, claims["a"]).verdict == HOLDS and judged(both, claims["b"]).verdict == DOES_NOT
    assert judged(both, claims["b"]).p == pytest.approx(2 / 1001)  # twice: each had its chance
    assert judged(both, of_draws(above, other=Estimate.of(0.0, far))).p == pytest.approx(31 / 1001, abs=2e-3)


def test_verdicts_reached_together_are_fewer():
    verdicts = [HOLDS, DOES_NOT, CANNOT_BE_TOLD, NOT_APPLICABLE, HOLDS]
    after = together(verdicts, [0.001, 0.02, 0.3, np.nan, 0.01])
    assert [v for v, _ in after] == [HOLDS, DOES_NOT, CANNOT_BE_TOLD, NOT_APPLICABLE, HOLDS]
    assert [round(p, 6) for _, p in after if np.isfinite(p)] == [0.004, 0.04, 0.3, 0.03]
    assert together([HOLDS] * 3, [0.03, 0.04, 0.001])[0] == (CANNOT_BE_TOLD, pytest.approx(0.06))


# ---------------------------------------------------------------- values


def test_values_are_those_of_the_plainest_computation():
    """From the prompts' own numbers, one line each."""
    made = {name: MADE_UP[name](Draw("small", 10, np.random.default_rng(7))) for name in MADE_UP}

    def part(name: str, of: str) -> Part:
        return made[name].parts[of]

    def mean(p: Part, measure: str) -> np.ndarray:
        return p[f"{measure}.sum"].sum(0) / p[f"{measure}.count"].sum()

    effect = part("second-half-weak", "future")["effect"].mean(0)
    e = np.array([effect[s, s + 1 :].mean() for s in range(29)])
    kept = mean(part("one-layer-robust", "one"), "top1_kept")[1:-1]
    one = part("cosine-weak-proxy", "one")
    score, loss = (mean(one, name).argsort().argsort() for name in ("block_influence", "nll"))
    angles = mean(part("even-turns", "turns"), "stream_angle")[7:23]
    rep = part("usefulness", "replacement")
    stretch = part("deep-skips-late", "stretch")
    start, nll = stretch["angular_distance_last"].mean(0).argmin(), mean(stretch, "nll")
    answers = part("likelihood-or-generation", "answers")
    g, n = 1 - answers["exact"].mean(0), answers["loss"].mean(0) - 0.3
    w, a = part("reasoning-breaks", "worked"), part("reasoning-breaks", "answers")
    lens = part("no-harder-deeper", "logit_lens")
    depth = mean_depth_kl(lens["kl.sum"]).reshape(16, 3) / 30
    stays = part("adaptive", "answers")["stays_depth"].reshape(16, 3)
    think = made["deep-thinking"].parts
    right = think["answers"]["exact_whole"]
    rank = think["writing"]["mean_ratio"].argsort().argsort()
    points = [p for p in made["static-ratio"].points if p.criterion == "mean_kl"]
    ratios = [mean_depth_kl((p.read.sums.sum(0) / p.read.tokens.sum())[None])[0] / p.n_layers for p in points]
    share = (rep["loss"].sum(0) / rep["whole"].sum() > 1.1).mean()
    expected = {
        "second-half-weak": [e[15:].mean() / e[:15].mean()],
        "one-layer-robust": [kept.min(), kept.mean(), (kept < 0.72).mean()],
        "cosine-weak-proxy": [np.corrcoef(score, loss)[0, 1]],
        "even-turns": [angles.std() / angles.mean(), angles.mean()],
        "usefulness": [share],
        "deep-skips-late": [(start + 4) / 30, nll[start] - np.median(nll)],
        "likelihood-or-generation": [(np.arange(30) @ g) / g.sum() - (np.arange(30) @ n) / n.sum()],
        "reasoning-breaks": [a["exact"].mean() - w["exact"].mean()],
        "no-harder-deeper": [None, (depth[:, 2] - depth[:, 0]).mean() / 2],
        "adaptive": [(stays[:, 2] - stays[:, 0]).mean() / 2],
        "deep-thinking": [np.corrcoef(rank, right)[0, 1]],
        "static-ratio": [np.polyfit([7, 8, 9], ratios, 1)[0]],
    }
    assert set(expected) == set(MADE_UP) - {"turn"}
    for name, values in expected.items():
        claim = find(name)
        found = claim.of(made[name])
        for quantity, wanted in zip(claim.quantities, values):
            if wanted is not None:
                estimate = found.estimates[quantity.name]
                assert estimate.value == pytest.approx(wanted, abs=2e-6), (name, quantity.name)
                assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9, (name, quantity.name)
    assert find("even-turns").of(made["even-turns"]).beside == "Middle layers: 7 to 22.", "both are counted"
    assert value("turn", turning_at(4)).value == 5 / 8 and not value("turn", turning_at(L)).value > 0


def test_reliability_is_the_share_of_the_differences_that_is_no_noise():
    rng = np.random.default_rng(0)
    for sd in (0.5, 2.0, 5.0):
        curve = rng.normal(0, 1, 400)
        each = curve + rng.normal(0, sd, (20, 400)) + rng.normal(0, 3, (20, 1))
        columns = {"x.sum": each, "n_tokens": np.ones(20)}
        own = each - each.mean(1, keepdims=True)
        noise = (own.var(0, ddof=1) / 20).mean() * 400 / 399
        assert reliability(Part(columns), "x") == pytest.approx(1 - noise / own.mean(0).var(ddof=1))
        assert reliability(Part(columns), "x") == pytest.approx(1 / (1 + sd**2 / 20), abs=0.1)
    assert np.isnan(reliability(Part({"x.sum": np.ones((20, 9)), "n_tokens": np.ones(20)}), "x"))


def test_pairs_of_reasoning_are_of_one_level_and_number_and_known_to_the_model():
    of = MADE_UP["reasoning-breaks"](Draw("holds", 10, np.random.default_rng(0)))
    whole = of.parts["worked"]["exact_whole"].copy()
    whole[:8], length = 0.0, of.parts["worked"]["answer_length"].copy()
    length[8:12] = 1
    worked = of.parts["worked"]
    columns = worked.columns | {"exact_whole": whole, "answer_length": length}
    order = np.random.default_rng(1).permutation(len(worked))
    shuffled = replace(worked, columns=columns).keep(order)
    found = find("reasoning-breaks").of(replace(of, parts=of.parts | {"worked": shuffled}))
    assert found.prompts == 28 and "36 pairs have an answer of several steps" in found.beside
    left = [100 * (1 - of.parts[name]["exact"][12:].mean()) for name in ("worked", "answers")]
    assert f"{left[0]:.0f} % of the worked-out answers are lost and {left[1]:.0f} % of those in one" in found.beside
    assert 0 < left[1] < left[0] < 100
    lost = (of.parts["answers"]["exact"] - worked["exact"])[12:]
    assert found.estimates[find("reasoning-breaks").quantities[0].name].value == pytest.approx(lost.mean())
    columns = worked.columns | {"exact_whole": np.zeros(40)}
    with pytest.raises(ClaimRefused, match="pairs that the whole model answers correctly"):
        find("reasoning-breaks").of(replace(of, parts=of.parts | {"worked": replace(worked, columns=columns)}))
    with pytest.raises(ClaimRefused, match="no worked-out counterpart"):
        find("reasoning-breaks").of(replace(of, worked=False))


# ---------------------------------------------------------------- words


def test_findings_are_judged_together_and_the_report_says_how_many_stand():
    claim = one_quantity((0.0, np.inf))
    sure, less = np.linspace(0.1, 1, 1000), np.linspace(-0.025, 1, 1000)
    found = [finding.Finding(claim, "m", "s", of_draws(draws)).told() for draws in (sure, less, less)]
    after = finding.adjusted(found)
    assert [one.verdict for one in found] == [HOLDS] * 3
    assert [one.verdict for one in after] == [HOLDS, CANNOT_BE_TOLD, CANNOT_BE_TOLD]
    assert after[1].alone == HOLDS and after[1].sentence.startswith("It cannot be told here whether it is so")
    assert any("By itself it holds here" in one and "adjustment for 3 claims" in one for one in after[1].reasons)
    assert (
        finding.standing(after)
        == "3 verdicts when each claim is judged alone; 1 stands after Holm's adjustment for 3 claims tested together"
    )
    assert finding.adjusted(after) == after


@pytest.mark.process
def test_what_is_read_of_answers_is_what_full_passes_say(measure):
    """On a model that knows them: written out token by token without each layer."""
    model = opened_models().get(ModelRef.parse("ed-demo-8"))
    lines = [json.loads(line) for line in (SETS / "copy.jsonl").read_text().splitlines()[:2]]
    decode = lambda ids: model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    exact, appears = [], []
    for answer, line_ in zip((lines[0]["answer"], f"{lines[1]['answer'][:-1]}!"), lines, strict=True):
        found = measure(model, Answers(k=2), Prompt(line_["text"], answer))  # right; right but for its end
        expected = naive.answers(model.hf, decode, found.token_ids, found.answer_start, answer, 2)
        assert len(found.token_ids) - found.answer_start > 1
        for name, values in expected.items():
            assert np.allclose(found[name], values, atol=1e-4, equal_nan=True), name
        exact.append(found["exact"].tolist())
        appears.append(np.isfinite(found["first_depth"]))
    assert {0.0, 1.0} == set(exact[0]) and set(exact[1]) == {0.0} and appears == [True, False]
    with pytest.raises(PromptError, match="needs a known answer"):
        measure(model, Answers(), Prompt("Copy:"))


def test_the_angle_is_read_at_the_last_token_and_where_no_sink_is(measure):
    model = opened_models().get(ModelRef.parse("ed-demo-16"))
    lines = [json.loads(line) for line in (SETS / "sum_mod10.jsonl").read_text().splitlines()[:3]]
    assert dropping.SINK == sinks.FACTOR and dropping.FEWEST_TOKENS == sinks.FEWEST
    for line_ in lines:
        found = measure(model, Prune(n=4), Prompt(line_["text"], line_["answer"]))
        resid = naive.run(model.hf, found.token_ids).resid
        norms = np.array([[float(np.linalg.norm(np.asarray(v, float))) for v in h] for h in resid[:-1]])
        sink = (norms >= 5 * np.median(norms[:, 1:], 1, keepdims=True)).any(0)
        every, calm = found["angular_distance"], found["angular_distance_no_sinks"]
        assert np.array_equal(found["angular_distance_last"], every[:, -1])
        assert np.array_equal(np.isnan(calm), np.broadcast_to(sink, calm.shape))
        assert np.array_equal(calm[:, ~sink], every[:, ~sink])


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
        for i in range(9)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def asked(model, prompts, out, *more: str) -> int:
    return main(["claims", "--model", str(model), "--set", str(prompts), "--out", str(out), *more])


@pytest.mark.process
def test_the_command_measures_once_and_goes_on_from_there(model, prompts, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert asked(model, prompts, out, "--claim", "turn", "--claim", "adaptive") == 0
    first = json.loads((out / running.FOUND).read_text())
    assert [one["id"] for one in first["findings"]] == ["turn", "adaptive"]
    assert sorted(p.name for p in (out / "parts").iterdir()) == ["answers", "contributions"]
    plan = json.loads((out / "parts" / "contributions" / "plan.json").read_text())
    assert [m["label"] for m in plan["models"]] == [running.MODEL, *running.TWINS] and len(running.TWINS) == 5
    assert asked(model, prompts, out) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].startswith("Checked: ") and "one-layer-robust" in printed
    found = json.loads((out / running.FOUND).read_text())
    assert [one["id"] for one in found["findings"]] == [claim.id for claim in CLAIMS]
    by_id = {one["id"]: one for one in found["findings"]}
    assert "at least 3 models of one family, and there is 1" in by_id["static-ratio"]["reason"]
    same = ("alone", "p", "prompts", "curves", "quantities")
    assert all(by_id["turn"][name] == first["findings"][0][name] for name in same)
    assert by_id["turn"]["together"] == sum(one["p"] is not None for one in found["findings"])
    assert by_id["one-layer-robust"]["prompts"] == 18 and by_id["one-layer-robust"]["control"]
    assert by_id["deep-skips-late"]["prompts"] == 18, "the layers run once, so a stretch of them is one"
    assert str(tmp_path) not in (out / running.FOUND).read_text() + (out / running.REPORT).read_text()

    never = Mock(side_effect=AssertionError("it is there already"))
    monkeypatch.setattr(items, "compute", never)
    monkeypatch.setattr(replacement, "by_prompt", never)
    before = (out / running.FOUND).read_bytes()
    assert asked(model, prompts, out) == 0 and (out / running.FOUND).read_bytes() == before
    assert asked(model, prompts, out, "--claim", "turn") == 0
    assert (out / running.FOUND).read_bytes() == before, "one claim leaves the others as they are"
    report = (out / running.REPORT).read_text()
    rows = {one["id"]: 1 if one["verdict"] == "not applicable" else len(one["quantities"]) for one in found["findings"]}
    assert report.count("\n| ") == 1 + sum(rows.values()) > 1 + len(rows), "a row for each value that was measured"
    assert all(f"| `{name}` | **{by_id[name]['verdict']}** | " in report for name in rows)
    assert all(one["sentence"] in report for one in found["findings"]) and found["command"] in report
    monkeypatch.setattr(Answers, "version", Answers.version + 1)
    assert asked(model, prompts, out, "--claim", "turn") == 0
    now = json.loads((out / running.FOUND).read_text())
    assert [one["id"] for one in now["findings"]] == ["turn"], "what another version measured is not told beside it"


@pytest.mark.process
def test_values_are_those_of_the_parts(model, prompts, tmp_path):
    """From the sums on disk, by hand."""
    out = tmp_path / "out"
    assert asked(model, prompts, out, "--claim", "one-layer-robust", "--claim", "likelihood-or-generation") == 0
    one = json.loads((out / running.FOUND).read_text())["findings"][0]["quantities"][0]
    folder = open_folder(out / "parts" / "one")
    for label, key in (("model", "value"), ("untrained twin", "control")):
        columns = folder.sums(label, "sums").probe("prune")
        kept = columns["top1_kept.sum"].sum(0) / columns["n_tokens"].sum()
        assert one[key]["value"] == pytest.approx(kept[1:-1].min())
    assert folder.sums("model", "sums").probe("prune")["top1_kept.sum"].shape[0] == 18


@pytest.mark.process
def test_models_of_one_family_are_compared_and_others_refused(model, prompts, tmp_path, capsys):
    others = [
        save_random(tmp_path / str(width), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=4 + i)
        for i, width in enumerate((32, 96))
    ]
    also = [word for other in others for word in ("--also", str(other))]
    assert asked(model, prompts, tmp_path / "out", "--claim", "static-ratio", *also) == 0
    one = json.loads((tmp_path / "out" / running.FOUND).read_text())["findings"][0]
    assert one["verdict"] != NOT_APPLICABLE and one["prompts"] == 18 and len(one["curves"]["model"]["x"]) == 3
    assert one["control_reason"] and any(q["value"] for q in one["quantities"])
    capsys.readouterr()
    stranger = save_random(tmp_path / "stranger", family="llama")
    assert asked(model, prompts, tmp_path / "other", "--claim", "static-ratio", "--also", str(stranger)) == 2
    assert "is of the family llama" in capsys.readouterr().err
