"""The quantization audit: what it must find, what it must not, and that the bundled models pass it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ed_core.commands import main
from ed_core.depth import audit
from ed_core.depth.continuous import MeanDepth
from ed_core.errors import ParameterError
from ed_core.probes import find
from ed_core.probes.base import rank_correlation
from ed_core.results.aggregate import summarize
from ed_core.sources.bundled import load_prompts
from ed_core.sources.sizes import WIDEST_FIRST
from ed_core.statistics import Interval
from ed_core.types import Measure, Prompt
from ed_core.work.compute import Models, run
from ed_core.work.resolve import in_precisions, resolve

PROMPTS = [
    Prompt("Sums mod 10:\n3 + 6 = 9\n4 + 1 = 5\n5 + 7 = ", "2"),
    Prompt("The quick brown fox jumps over the lazy dog."),
]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def whole():
    """Two prompts in float32 and bfloat16; what the narrower precisions found is as good."""
    models, plan = Models(), audit.plan(in_precisions(resolve("ed-demo-8"), ["fp32", "bf16"]), PROMPTS)
    found = {p: [run(models.get(r.models[0]), r) for r in requests] for p, requests in plan.items()}
    return found | dict.fromkeys(("int8", "4bit"), found["bf16"])


@pytest.mark.process
@pytest.mark.parametrize("name", ["ed-demo-8"])
def test_the_bundled_models_keep_their_curves_and_depths_in_every_precision(name):
    """Contributions and lens over every twelfth bundled prompt; skip effects need more prompts for their order to
    settle (see the log)."""
    prompts = [Prompt(p["text"], p["answer"]) for p in load_prompts()[::12]]
    models, plan = Models(), audit.plan(in_precisions(resolve(name), WIDEST_FIRST), prompts)
    results = {
        p: [run(models.get(r.models[0]), r) for r in requests if r.probe != "layer_skip"]
        for p, requests in plan.items()
    }
    outcome = audit.compare(results, "fp32")
    assert outcome.findings() == []
    for precision, limit in {"bf16": 0.98, **audit.AT_LEAST}.items():
        rhos = {c.curve: c.spearman for c in outcome.comparisons if c.precision == precision}
        assert len(rhos) == 16 and all(rho >= limit for rho in rhos.values() if rho is not None), (precision, rhos)
        assert all(abs(s) <= 1 for n in outcome.depths["fp32"] if (s := outcome.shift(precision, n)) is not None)
    assert any(not np.array_equal(outcome.curves["4bit"][n], values) for n, values in outcome.curves["fp32"].items()), (
        "4bit was not run"
    )


def shaken(result, measure, change):
    """A result with one measure changed and its summary made anew."""
    m = result.measures[measure]
    return summarize(
        replace(result, measures=dict(result.measures) | {measure: Measure(m.spec, change(m.values))}, summary={})
    )


def test_a_curve_that_is_ordered_otherwise_and_a_depth_that_moved_are_findings(whole):
    reverse = lambda values: np.ascontiguousarray(values[::-1])
    forged = [shaken(r, "kl", reverse) if r.request.probe == "logit_lens" else r for r in whole["int8"]]
    outcome = audit.compare({**whole, "int8": forged}, "fp32")
    found = outcome.findings()
    assert any(f"int8: {find('logit_lens').spec('kl').title} is ordered differently" in line for line in found)
    assert any("int8: the papers' KL rule gives" in line for line in found)
    assert not any(line.startswith(("bf16", "4bit")) for line in found)
    assert any(line in found for line in audit.table(outcome))
    beyond = {(row.title, *row.beyond) for row in outcome.rows() if row.beyond}
    assert {("KL to the output", "int8"), ("Effective depth, KL rule", "int8")} <= beyond
    assert sum(len(row.beyond) for row in outcome.rows()) == len(found), "the table marks what is a finding"


def test_the_same_order_is_kept_and_one_below_the_limit_is_told_from_it():
    values = np.random.default_rng(0).normal(size=64)
    assert {rank_correlation(values[:n], values[:n]) for n in range(3, 65)} == {1.0}
    below = audit.Comparison("bf16", "logit_lens.kl", 0.98 - 2e-5, 0.01)
    (line,) = audit.Audit("fp32", {"fp32": {}, "bf16": {}}, (below,), {}).findings()
    assert "(ρ = 0.97998, expected at least 0.98)" in line


def test_a_curve_that_overflows_is_a_finding_though_its_order_is_kept(whole):
    def overflown(values):
        return np.concatenate([values[:-1], np.full_like(values[-1:], np.nan)])

    forged = [shaken(r, "resid_norm", overflown) if r.request.probe == "contributions" else r for r in whole["bf16"]]
    outcome = audit.compare({"fp32": whole["fp32"], "bf16": forged}, "fp32")
    assert outcome.findings() == ["bf16: Stream: length has values that are not finite in bf16 or in fp32, not in both"]
    assert outcome.sentence().startswith("1 of ") and "nan" not in "\n".join(audit.table(outcome))


@pytest.mark.parametrize(
    ("there", "here", "beyond"),
    [
        ((5.0, (4.5, 5.5)), 5.4, False),
        ((5.0, (4.5, 5.5)), 5.54, False),  # prints as the end does
        ((5.0, (4.5, 5.5)), 5.6, True),
        ((5.0, (4.5, 5.5)), 4.4, True),
        ((5.0, None), 7.0, False),  # without an interval nobody can tell
        ((5.0, None), None, True),
        ((None, None), None, False),
    ],
)
def test_a_mean_depth_that_leaves_its_interval_is_a_finding(whole, there, here, beyond):
    outcome = audit.compare({p: whole[p] for p in ("fp32", "bf16")}, "fp32")

    def with_mean(found, depth, ends=None):
        interval = None if ends is None else Interval(*ends, 0.0)
        return replace(found, means={"kl": MeanDepth("kl", depth, 8, interval)})

    made = {"fp32": with_mean(outcome.verdicts["fp32"], *there), "bf16": with_mean(outcome.verdicts["bf16"], here)}
    moved = replace(outcome, verdicts=made)
    assert outcome.findings() == [] and moved.mean_moved("bf16", "kl") == beyond
    row = moved.rows()[0]
    assert row.title == "Mean depth, KL" and row.beyond == (frozenset({"bf16"}) if beyond else frozenset())
    assert [line for line in moved.findings() if "mean depth by KL" in line] == (moved.findings() if beyond else [])
    if beyond:
        assert moved.sentence().startswith("1 of ") and "In part" not in moved.sentence()
    elif None not in (there[0], here):
        assert f"mean depths move by at most {abs(here - there[0]):.2g} layers" in moved.sentence()


def test_the_widest_is_the_reference_and_one_is_not_enough():
    assert audit.reference_of(["4bit", "bf16", "int8"]) == "bf16" and audit.reference_of(["int8", "fp32"]) == "fp32"
    assert audit.reference_of(["int8", "fp16"]) == "fp16"
    model = resolve("ed-demo-8")
    assert [*in_precisions(model, ["bfloat16", "auto"])] == ["bf16", "fp32"]
    for one in (["int8"], ["fp32", "float32"], ["auto", "fp32"]):
        with pytest.raises(ParameterError, match="two"):
            audit.plan(in_precisions(model, one), PROMPTS)


def test_the_command_line_prints_and_writes_it_and_uses_what_is_stored(tmp_path, capsys):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "a.npz"
    prompts.write_text(json.dumps({"text": PROMPTS[0].text, "answer": PROMPTS[0].answer}))
    command = ["audit", "ed-demo-8", "--precisions", "bf16,4bit", "--prompts", str(prompts), "--out", str(out)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "rank correlation with bf16" in text and "logit_lens.kl" in text and "effective depth" in text
    with np.load(out, allow_pickle=False) as file:
        assert file["bf16.logit_lens.kl"].shape == (9,) and file["spearman.4bit.logit_lens.kl"] >= 0.9
        assert set(json.loads(str(file["summary"]))["effective_depth"]["4bit"]) == {"cosine", "kl", "overlap"}
    assert main(command) == 0 and capsys.readouterr().out == text
    assert main([*command[:3], "bf16", *command[4:]]) == 2
