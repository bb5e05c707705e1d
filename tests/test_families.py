"""Every variant of every family: the sums hold, every probe agrees with its naive twin, and reading anywhere else is
refused."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import naive
import numpy as np
import pytest
import torch
from small_models import BACKGROUND, MECHANISMS, VARIANTS, by_mechanism, byte_tokenizer

from ed_core.commands import main
from ed_core.errors import IdentityFailed, ParameterError
from ed_core.models import family_checks
from ed_core.models import verify as verifying
from ed_core.models.families import FAMILIES, find
from ed_core.models.family_checks import random_hf
from ed_core.models.language_model import LanguageModel
from ed_core.models.modules import first, hooked
from ed_core.models.verify import verify
from ed_core.probes import (
    PROBES,
    Answers,
    Contributions,
    EarlyExit,
    ExactAnswers,
    Generation,
    IntegratedGradients,
    LayerSkip,
    Lenses,
    LogitLens,
    Loops,
    Numerics,
    Prune,
    ResidualErasure,
    Surgery,
    Turns,
)
from ed_core.prompts import read_jsonl
from ed_core.types import ModelSpec, Prompt

DOCS = Path(__file__).parent.parent / "docs"
PROMPT = Prompt("5+7=", "12")  # 6 tokens: more than the sliding windows hold
NODES = 5


def test_every_family_has_a_small_model():
    built = {model_type for model_type, _ in VARIANTS.values()}
    assert {t for family in FAMILIES for t in family.model_types} == built
    assert built <= set(naive.READ), "and the naive way knows where to read it"


@pytest.mark.process
def test_the_sums_hold_and_the_table_of_families_is_what_the_command_prints(monkeypatch, capsys):
    """docs/models.md is made of the identities of every variant in float32 and bfloat16."""
    verify, seen = verifying.verify, {}

    def remembered(model):
        return seen.setdefault((model.spec.content_hash, model.spec.precision), verify(model))

    monkeypatch.setattr(verifying, "verify", remembered)
    monkeypatch.setattr(family_checks, "verify", remembered)
    assert main(["models", "--families", "--markdown"]) == 0
    assert (DOCS / "models.md").read_text(encoding="utf-8") == capsys.readouterr().out
    assert set(seen) == {(variant, precision) for variant in VARIANTS for precision in ("fp32", "bf16")}
    for model, figures in seen.items():
        assert figures.failures() == [], model
        assert None not in (*figures.slope_attn, *figures.slope_mlp, *figures.mlp_moves), (model, "too small to check")


def plain(model):
    """What the naive way runs: a looped model's blocks are written out for it."""
    return naive.plain(model.hf)


def probe_contributions(model, measure):
    yield measure(model, Contributions(), PROMPT).measures, naive.contributions(plain(model), model.encode(PROMPT).ids)


def probe_logit_lens(model, measure):
    yield measure(model, LogitLens(), PROMPT).measures, naive.logit_lens(plain(model), model.encode(PROMPT).ids, k=5)


def probe_lenses(model, measure):
    """The logit lens among them; fitted ones are held against a loop in test_fits."""
    found = measure(model, Lenses(), PROMPT).measures
    expected = naive.logit_lens(plain(model), model.encode(PROMPT).ids, k=5)
    yield found, {name: expected[name.removeprefix("logit_")] for name in found}


def probe_layer_skip(model, measure):
    ids = model.encode(PROMPT).ids
    for part, boundaries, direct in (("layer", None, True), ("attention", [2, 4], False), ("mlp", None, False)):
        probe = LayerSkip(
            mode="future" if boundaries else "current", part=part, boundaries=tuple(boundaries or ()), direct=direct
        )
        expected = naive.layer_skip(plain(model), ids, part, boundaries)
        if direct:
            expected["effect_direct"] = naive.direct_effect(plain(model), ids, part, boundaries)
        yield measure(model, probe, PROMPT).measures, expected


def probe_residual_erasure(model, measure):
    found = measure(model, ResidualErasure("answer", BACKGROUND), PROMPT)
    others = [model.encode(prompt).ids for prompt in read_jsonl(BACKGROUND)]
    yield found.measures, {"effect": naive.residual_erasure(plain(model), found.token_ids, found.answer_start, others)}


def probe_integrated_gradients(model, measure):
    """By the same rule with as many nodes: the path and the gradient are compared, not how fine the integral is."""
    for part, layers in (("layer", range(model.n_layers)), ("attention", [1]), ("mlp", [2])):
        found = measure(model, IntegratedGradients(part, nodes=17), PROMPT)
        expected = naive.integrated_gradients(
            plain(model), found.token_ids, found.answer_start, part, layers=layers, rule=naive.KRONROD
        )
        assert (found["nodes_used"] == 17).all()
        yield {"attribution": found["attribution"][list(layers)]}, {"attribution": expected[list(layers)]}


def probe_prune(model, measure):
    found = measure(model, Prune(n=2, drop=(0, 3)), PROMPT)
    for start in range(model.n_layers - 1):
        yield (
            {k: found[k][start] for k in ("kl", "top1_kept", "nll")},
            naive.pruned(plain(model), found.token_ids, (start, start + 1)),
        )
    yield (
        {k: found[f"drop_{k}"] for k in ("kl", "top1_kept", "nll")},
        naive.pruned(plain(model), found.token_ids, (0, 3)),
    )


def probe_turns(model, measure):
    found = measure(model, Turns(), PROMPT)
    expected = naive.turns(plain(model), found.token_ids)
    yield tuple(  # their cosines: an angle near 0 has lost its digits
        {name: np.cos(np.deg2rad(np.asarray(angles[name], float))) for name in expected} for angles in (found, expected)
    )


def probe_answers(model, measure):
    decode = lambda ids: model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    found = measure(model, Answers(k=40), PROMPT)
    expected = naive.answers(plain(model), decode, found.token_ids, found.answer_start, PROMPT.answer, 40)
    for name in ("first_depth", "stays_depth"):
        if np.isnan(expected[name]):
            assert np.isnan(found[name])
            del expected[name]
    yield {name: found[name] for name in expected}, expected


def probe_exact_answers(model, measure):
    ids, decode = model.encode(PROMPT).ids, lambda ids: model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    begin = model.encode(PROMPT).answer_start
    own = Prompt(PROMPT.text, decode(naive.greedy(plain(model), ids[:begin], 1)))
    for prompt in [PROMPT] + [own] * (own.answer.isascii() and own.answer.isprintable() and own.answer != " "):
        found = measure(model, ExactAnswers(n=2), prompt)
        most, drops = found.n_tokens - begin + 1, [(s, s + 1) for s in range(model.n_layers - 1)]
        judge = [
            naive.exact_answer(plain(model), decode, ids[:begin], prompt.answer, most, drop) for drop in [*drops, ()]
        ]
        yield (
            {"exact": found["exact"], "exact_whole": found["exact_whole"]},
            {"exact": np.array(judge[:-1], float), "exact_whole": np.array(judge[-1], float)},
        )


def probe_surgery(model, measure):
    """Without one layer; exchanges and repeats are held against passes of their own in test_surgery."""
    found = measure(model, Surgery(kind="drop", longest=1), PROMPT)
    expected = naive.pruned(plain(model), found.token_ids, (1,))
    expected = {"loss": np.nanmean(expected["nll"]), "kl": expected["kl"].mean(), "top1": expected["top1_kept"].mean()}
    yield {name: found[f"drop_{name}" if name != "top1" else "drop_top1_kept"][1, 2] for name in expected}, expected


def probe_generation(model, measure):
    """Divergences are so small here that rounding shows: they are held absolutely."""
    found = measure(model, Generation(n_tokens=3, threshold=0.012, g=0.02, rho=0.5), PROMPT)
    asked = found.token_ids[: found.answer_start]
    expected = naive.writing(plain(model), asked, found["ids"].tolist(), 0.012, 0.02, 0.5)
    assert np.abs(found["jsd"] - expected.pop("jsd")).max() <= 1e-6
    yield found.measures, expected


def probe_early_exit(model, measure):
    found = measure(model, EarlyExit(0.1), PROMPT)
    lens = naive.logit_lens(plain(model), found.token_ids, 1)
    yield (
        {k: found[k] for k in ("confidence", "agreement")},
        {"confidence": lens["top_probs"][..., 0], "agreement": lens["top1_match"]},
    )


def probe_loops(model, measure):
    """Held naively in test_loops; here, that it is asked of looped models alone."""
    with nullcontext() if model.n_passes > 1 else pytest.raises(ParameterError, match="run once"):
        found = measure(model, Loops(), PROMPT)
        yield {"to_last": found["to_last"][-1]}, {"to_last": np.zeros(found.n_tokens)}


def probe_numerics(model, measure):
    """The stream's norms; the sums themselves are held naively in test_numerics, and against the limit for every
    variant here."""
    found = measure(model, Numerics(), PROMPT)
    assert (found["miss"] <= 1e-5).all() and all(float(found[k]) <= 1e-5 for k in ("closure", "replay", "detour"))
    yield (
        {"resid_norm": found["resid_norm"]},
        {"resid_norm": naive.contributions(plain(model), found.token_ids)["resid_norm"]},
    )


CHECKS = {name.removeprefix("probe_"): check for name, check in list(globals().items()) if name.startswith("probe_")}


def greedy(model, ids, n_tokens):
    """The continuation's logits, the whole read anew for every token."""
    rows = []
    for _ in range(n_tokens):
        rows.append(model.hf(input_ids=ids, use_cache=False).logits[0, -1].float())
        ids = torch.cat([ids, rows[-1].argmax().view(1, 1)], dim=1)
    return torch.stack(rows)


def continued(model, ids, n_tokens):
    """What `continuation` hands out, and how many tokens it read at each step."""
    rows, read = [], []
    with hooked(model.blocks[0].register_forward_hook(lambda block, args, out: read.append(first(out).shape[-2]))):
        model.continuation(ids, n_tokens, lambda step, logits: rows.append(logits))
    return torch.stack(rows), read


@pytest.mark.parametrize("variant", by_mechanism())
def test_a_continuation_is_that_of_the_whole_read_anew(variant_model, variant):
    model = variant_model(variant)
    ids = model.tensor(model.encode(PROMPT))
    found, read = continued(model, ids, 6)
    expected = greedy(model, ids, 6)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert read == [n for n in (ids.shape[1], 1, 1, 1, 1, 1) for _ in range(model.n_passes)]


def test_no_probe_is_left_out():
    assert set(CHECKS) == {probe.name for probe in PROBES} - {"continuation"}


READING = ("contributions", "logit_lens", "layer_skip", "prune")  # what a family's description alone can spoil


@pytest.mark.parametrize(
    "variant, probe",
    [
        pytest.param(v, p, marks=() if v in MECHANISMS else pytest.mark.process)
        for v in VARIANTS
        for p in (CHECKS if v in MECHANISMS else READING)
    ],
)
def test_probes_agree_with_the_naive_way(variant_model, measure, variant, probe):
    check, model = CHECKS[probe], variant_model(variant)
    for found, expected in check(model, measure):
        for name, values in expected.items():
            seen = getattr(found[name], "values", found[name])
            assert seen.shape == np.shape(values) and np.array_equal(np.isnan(seen), np.isnan(values)), name
            largest = (
                1.0 if name == "noise_floor" else np.nanmax(np.abs(values))
            )  # a change relative to the update, naively 0
            assert np.nanmax(np.abs(seen - values)) <= 1e-4 * max(largest, 1e-3), (name, largest)


PRE_NORM = [{"attn": "self_attn"}, {"mlp": "mlp"}]
FORGED = {  # what a reader who believes names would read, and what he would forget
    **dict.fromkeys(("olmo2", "olmo3", "exaone4", "glm4"), PRE_NORM),
    **dict.fromkeys(("gemma2", "gemma3"), [*PRE_NORM, {"logit_softcap": ""}]),
    "gemma4": [*PRE_NORM, {"third": ()}, {"stream_scale": ""}, {"logit_softcap": ""}],
    "gemma4_moe": [*PRE_NORM, {"stream_scale": ""}],
    "granite": [{"residual_multiplier": ""}, {"logit_divisor": ""}],
    "granitemoe": [{"residual_multiplier": ""}, {"logit_divisor": ""}, {"mlp": "mlp"}],
    **dict.fromkeys(("cohere", "cohere2"), [{"logit_multiplier": ""}, {"parallel": False}]),
    "qwen3_next": [{"attn": "self_attn"}],
    "llama4": [{"mlp": "mlp"}],
    "opt": [{"mlp": "mlp"}],
    "bloom": [{"attn": "self_attention"}, {"mlp": "mlp"}, {"per_row": ()}],
    "mpt": [{"mlp": "ffn"}],
    **dict.fromkeys(("falcon_7b", "falcon_40b", "falcon_11b"), [{"in_place": False}, {"parallel": False}]),
    "falcon_rw": [{"parallel": True}],
    **dict.fromkeys(("phi", "gptj", "gpt_neox", "stablelm_parallel"), [{"parallel": False}]),
    **dict.fromkeys(("llama", "gpt_neox_sequential", "stablelm"), [{"parallel": True}]),
    "looped": [{"passes": ""}],
    "looped_norm": [{"between": ()}, {"between": "model.norm"}],
    "looped_input": [{"reentry": ""}],
    "ouro": [*PRE_NORM, {"between": ()}, {"passes": ""}],
}


@pytest.mark.parametrize(
    "variant, forged",
    [
        pytest.param(v, f, id=f"{v}-{'-'.join(f)}", marks=() if v in MECHANISMS else pytest.mark.process)
        for v, forgeries in FORGED.items()
        for f in forgeries
    ],
)
def test_reading_anywhere_else_is_refused(variant, forged):
    """In bfloat16, whose limits are far wider than those of float32."""
    hf = random_hf(variant)
    architecture = replace(find(hf.config.model_type), **forged)
    with pytest.raises(IdentityFailed, match="Refused: .*(families.py|docs/adding-a-model-family.md)"):
        model = LanguageModel(hf.bfloat16(), byte_tokenizer(), architecture, ModelSpec("m", precision="bf16"))
        verify(model).require(architecture)
