"""What is said of several prompts together, on a bundled model: where it is said, and that it is made of what is
there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import counted
import numpy as np
import pytest
from counted import curves_at, seen_over

from ed_core import statistics
from ed_core.cases import bundle, case_study
from ed_core.commands import main
from ed_core.depth import among_others, audit, criteria, sinks, verdict
from ed_core.probes import Contributions, LogitLens
from ed_core.results.aggregate import summarize
from ed_core.service import compute
from ed_core.service.resolve import resolve
from ed_core.sources.bundled import mixed_prompts
from ed_core.types import Prompt

PROMPTS = [Prompt(p["text"], p["answer"]) for p in mixed_prompts(8)]
PROBES = (Contributions(), LogitLens())


@pytest.fixture(scope="module")
def eight():
    """Contributions and lens of six bundled prompts on the smaller model."""
    spec = resolve("ed-demo-8")
    model = compute.Models().get(spec)
    return tuple([compute.run(model, probe.request(spec, prompt)) for prompt in PROMPTS] for probe in PROBES)


@pytest.fixture
def results(eight):
    """Of six of them."""
    return tuple(of_one[:6] for of_one in eight)


@pytest.mark.parametrize(("n", "first_token"), [(6, True), (6, False), (3, True)])
def test_every_claim_over_real_prompts_is_counted_anew(results, n, first_token):
    made, lens = (of_one[:n] for of_one in results)
    found, start = verdict.of_prompts(made, lens, first_token), int(not first_token)
    tokens = [r.n_tokens for r in lens]
    assert (found.n_prompts, found.n_tokens) == (n, sum(tokens))
    whole = counted.together([curves_at(*pair, range(k)) for *pair, k in zip(made, lens, tokens)], tokens)
    kept = [curves_at(*pair, range(start, k)) for *pair, k in zip(made, lens, tokens)]
    curves = whole | {"cosine": counted.together(kept, [k - start for k in tokens])["cosine"]}
    again = {}
    for name, said in found.statements.items():
        own = curves[name] if name == "cosine" else curves[name][:-1]
        np.testing.assert_allclose(found.curves[name], own, rtol=1e-5, atol=1e-6)
        again[name] = counted.Rule(name, own, counted.USUAL[name], drawn=[])
        assert counted.statement(said.sentence, again[name]) and said.sentence in found.reasons
    assert counted.rules(found.rules, again)
    assert counted.settles(found.settles, curves, ends={}, over=f"{n} prompts")
    depths = [[one.best for one in look] for look in found.seen]
    assert found.lines == [found.lead, found.settles, found.rules] and seen_over(found.lead, depths, [], 8)


def test_prompts_of_one_form_are_said_to_be(results):
    """Templates are the units where there are enough; else it is said that other text may differ."""
    forms = [f"form {i % 5}" for i in range(10)]
    many = [[*of_one[:6], *of_one[:4]] for of_one in results]
    over = verdict.of_prompts(*many, forms=forms)
    assert re.search(r"5–95 %: \S+ to \S+ over 10 prompts of 5 forms[;)]", over.settles)
    one = verdict.of_prompts(*many, forms=["one"] * 10)
    assert re.search(r"\S+ to \S+ over 10 prompts of one form; other text may differ[;)]", one.settles)
    assert over.means["kl"].interval != one.means["kl"].interval


def test_a_variant_without_sinks_is_that_of_all_prompts(results, monkeypatch):
    """With a lower threshold there are sinks; the curve without them is the mean over all other tokens."""
    monkeypatch.setattr(sinks, "find", partial(sinks.find, factor=1.3))
    made, lens = results
    out = [{s.pos for s in sinks.of_result(r)} for r in made]
    assert any(out)
    kept = [[t for t in range(r.n_tokens) if t not in at] for r, at in zip(lens, out)]
    found = verdict.of_prompts(made, lens)
    without = np.mean(np.concatenate([r["kl"][:-1, at] for r, at in zip(lens, kept)], axis=1), axis=1)
    assert found.criteria["kl"].without_sinks.depth == counted.rule("kl", without.tolist(), 0.5)
    again = counted.Rule("kl", found.curves["kl"].tolist(), 0.5, without.tolist(), drawn=[])
    assert counted.statement(found.statements["kl"].sentence, again)


def test_the_shell_says_it_after_a_run(own_cache, tmp_path, capsys):
    file = tmp_path / "p.jsonl"
    lines = [json.dumps({"text": p.text, "answer": p.answer}) + "\n" for p in PROMPTS[:2]]
    command = ["run", "contributions", "logit_lens", "--model", "ed-demo-8", "--prompts", str(file)]
    file.write_text("".join(lines))
    assert main([*command, "--out", str(tmp_path / "r.npz")]) == 0
    first, *said = capsys.readouterr().out.splitlines()[2:]
    assert first.startswith("Over 2 prompts (") and len(said) == 3
    assert said[0].startswith("For both prompts the answer") and "2 prompts: too few for an interval" in said[1]
    file.write_text(lines[0])
    assert main([*command, "--out", str(tmp_path / "r.npz")]) == 0
    (only,) = capsys.readouterr().out.splitlines()[2:]
    assert "interval" not in only and only.startswith("“")
    assert main([*command[:2], *command[3:], "--out", str(tmp_path / "r.npz")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2, "nothing without the lens"


def test_the_first_token_is_left_out_where_it_does_not_count(results):
    """The first tokens alone erase, in the lower half."""
    made, lens = results
    erasing = [
        summarize(
            replace(r, measures={n: replace(m, values=_first(m.values, n)) for n, m in r.measures.items()}, summary={})
        )
        for r in made
    ]
    with_it, without = (verdict.told(erasing, lens, first) for first in (True, False))
    assert "layer 3 (cosine)" in with_it[3] and "layer 3 (cosine)" not in without[3]
    assert without == ["Over" + with_it[0][4:], *verdict.of_prompts(made, lens, False).lines] != with_it


def _first(values, name):
    """The cosines with others at the first token."""
    if name not in verdict.COSINES:
        return values
    return np.concatenate([np.where(np.arange(8) < 4, -99.0, 99.0)[:, None].astype(np.float32), values[:, 1:]], axis=1)


def test_a_case_study_of_several_prompts_says_it_first(results):
    made, lens = results
    kept = case_study.make("Six", [*made, *lens])
    first, *each = kept.verdict.splitlines()
    assert first == f"ed-demo-8 (fp32), 6 prompts: {verdict.of_prompts(made, lens).sentence}" and len(each) == 6
    assert case_study.lead(kept.verdict) == verdict.of_prompts(made, lens).lead
    assert bundle.decode(bundle.encode(kept)).verdict == kept.verdict
    one = case_study.make("One", [made[0], lens[0]]).verdict
    assert "prompts" not in one and one == verdict.of_prompt(made[0], lens[0]).sentence


def test_what_was_measured_differently_is_not_put_together(results):
    made, lens = results
    other = replace(lens[1], request=replace(lens[1].request, parameters=(("k", 3), *lens[1].request.parameters[1:])))
    assert other.request.series != lens[0].request.series
    kept = case_study.make("Two", [made[0], lens[0], made[1]])
    views = [v for v, _ in case_study.make("Both", [*made[:2], *lens[:2]]).verdicts()]
    assert len(list(case_study.over_prompts(kept, views))) == 1
    views[1].by_probe["logit_lens"] = replace(views[1].by_probe["logit_lens"], result=other)
    assert not list(case_study.over_prompts(kept, views))


def test_a_case_study_holds_as_many_verdicts_as_results(results):
    """Sixteen prompts with both probes."""
    made, lens = results
    views = [(a, b) for a, b in zip(made, lens)]
    many = [
        replace(r, request=replace(r.request, prompts=(Prompt(f"{i} {'x' * 40}", "1"),)))
        for i in range(16)
        for r in views[i % 6]
    ]
    kept = case_study.make("Many", many)
    assert len(kept.verdict.splitlines()) == 17 and len(kept.verdict) > 5000


def test_among_others_stands_what_all_of_them_give_together(results):
    """As of the same prompts together, with and without the first token; the interval drawn one resample at a time."""
    for first_token in (True, False):
        many = [*results[0], *results[0][:3]]
        mine, *others = [r.summary for r in many]
        found = verdict.of_prompts(many, [*results[1], *results[1][:3]], first_token).criteria["cosine"]
        *_, said, _ = among_others.reasons(PROBES[0], mine, others, first_token)
        gives = "no layer" if found.depth is None else f"layer {found.depth}"
        assert said.startswith(f"The mean curve over all prompts gives {gives} (")
        drawn = statistics.counts(9)
        depths = []
        for times in drawn:
            total = sum(n * (r.n_tokens - (not first_token)) for n, r in zip(times, many))
            rows = [
                sum(n * r[name][:, int(not first_token) :].sum(1, dtype=float) for n, r in zip(times, many)) / total
                for name in verdict.COSINES
            ]
            depth = criteria.by_cosine(np.mean(rows, axis=0)).depth
            depths.append(np.nan if depth is None else depth)
        defined = [d for d in depths if d == d]
        share = 1 - len(defined) / len(depths)
        if defined:
            low, high = np.quantile(defined, (0.05, 0.95))
            ends = f"5–95 %: {low:.3g} to {high:.3g}" if low < high else f"{low:.3g} in at least 90 % of resamples"
            over = "of" if (low == high and not share) or share > 0.5 else "over"
            assert (ends in said) == (share <= 0.5) and said.endswith(f"{over} 9 prompts; other text may differ).")
        assert (f", no layer in {100 * share:.1f} % of resamples, over" in said) == (0 < share <= 0.5)
        assert (f"(none in {100 * share:.1f} % of resamples" in said) == (0.5 < share < 1)
        *_, fewer, _ = among_others.reasons(PROBES[0], mine, others[:5], first_token)
        assert fewer.endswith("(6 prompts: too few for an interval; other text may differ).")


def test_among_others_the_lens_has_its_mean_depth_over_all_prompts(results):
    many = [*results[1], *results[1][:3]]
    mine, *others = [r.summary for r in many]
    said, _ = among_others.reasons(PROBES[1], mine, others)
    found = verdict.mean_depths(many)["kl"]
    low, high = found.interval.ends
    assert said == (
        f"The mean curve over all prompts has mean depth {found.depth:.1f} (5–95 %: {low:.1f} to {high:.1f} "
        "over 9 prompts; other text may differ)."
    )


def test_the_audit_says_how_sure_its_depths_are(eight):
    both = [*eight[0], *eight[1]]
    outcome = audit.compare({"fp32": both, "bf16": both}, "fp32")
    found = verdict.of_prompts(*eight)
    head, *said = outcome.together()
    assert head == f"In fp32, over 8 prompts ({found.n_tokens} tokens):" and said == found.lines
    assert all(line in audit.table(outcome) for line in (head, *said))
    cells = {row.title: row.cells["bf16"] for row in outcome.rows() if row.cells.keys() == {"fp32", "bf16"}}
    kl, interval = found.criteria["kl"], found.intervals["kl"]
    assert cells["Effective depth, KL rule"] == f"{kl.depth}, {interval.low:.3g} to {interval.high:.3g}"
    overlap, interval = found.criteria["overlap"], found.intervals["overlap"]
    assert interval.undefined > 0 and cells["Effective depth, overlap rule"] == (
        f"{overlap.depth}, {interval.low:.3g} to {interval.high:.3g}, none in {100 * interval.undefined:.1f} %"
    )
    assert audit.compare({"fp32": both[::8], "bf16": both[::8]}, "fp32").together() == []


@pytest.mark.parametrize("measure, rule", [("layer_cos", "cosine"), ("kl", "kl"), ("overlap", "overlap")])
def test_a_value_that_is_not_finite_leaves_its_rule_without_a_layer(results, measure, rule):
    def overflown(result):
        if measure not in result.measures:
            return result
        values = result[measure].copy()
        values[3, 2] = np.nan
        m = replace(result.measures[measure], values=values)
        return summarize(replace(result, measures={**result.measures, measure: m}))

    pair = [overflown(of_one[0]) for of_one in results]
    for of in ("all", 2):
        found = verdict.of_prompt(*pair, of=of)
        assert found.criteria[rule].reason == "its curve is not finite" and found.bands[rule] is None
    assert (
        verdict.of_prompt(*pair, of=1).criteria[rule]
        == verdict.of_prompt(*(r[0] for r in results), of=1).criteria[rule]
    )
