"""One suite for every variant of every family: each value that a trace offers is read and edited, the sums hold, every
probe agrees with its naive twin, and reading anywhere else is refused."""

from contextlib import nullcontext
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from small_models import BACKGROUND, MECHANISMS, VARIANTS, by_mechanism, byte_tokenizer

from ed_core import probes
from ed_core.errors import IdentityFailed, ParameterError
from ed_core.models.families import FAMILIES, find
from ed_core.models.language_model import LanguageModel
from ed_core.models.modules import first
from ed_core.models.verify import verify
from ed_core.prompts import read_jsonl
from ed_core.types import ModelSpec, Prompt
from tools.families import random_hf, random_model

PROMPT = Prompt("5+7=", "12")  # 6 tokens: more than the sliding windows hold


def test_no_family_and_no_probe_is_left_out():
    assert set(CHECKS) == {probe.name for probe in probes.PROBES} - {"continuation"}
    built = {model_type for model_type, _ in VARIANTS.values()}
    assert {t for family in FAMILIES for t in family.model_types} == built
    assert built <= set(naive.READ), "and the naive way knows where to read it"


def plain(model):
    """What the naive way runs: a looped model's blocks are written out for it."""
    return naive.plain(model.hf)


def probe_contributions(model, measure):
    found = measure(model, probes.Contributions(), PROMPT).measures
    expected = naive.contributions(plain(model), model.encode(PROMPT).ids)
    assert set(found) == set(expected)
    yield found, expected


def probe_logit_lens(model, measure):
    found = measure(model, probes.LogitLens(), PROMPT).measures
    expected = naive.logit_lens(plain(model), model.encode(PROMPT).ids, k=5)
    assert set(found) == set(expected)
    yield found, expected


def probe_lenses(model, measure):
    """The logit lens among them; fitted ones are held against a loop in test_fits."""
    found = measure(model, probes.Lenses(), PROMPT).measures
    expected = naive.logit_lens(plain(model), model.encode(PROMPT).ids, k=5)
    yield found, {name: expected[name.removeprefix("logit_")] for name in found}


def probe_layer_skip(model, measure):
    ids = model.encode(PROMPT).ids
    for part, boundaries, direct in (("layer", None, True), ("attention", [2, 4], False), ("mlp", None, False)):
        probe = probes.LayerSkip(
            mode="future" if boundaries else "current", part=part, boundaries=tuple(boundaries or ()), direct=direct
        )
        expected = naive.layer_skip(plain(model), ids, part, boundaries)
        if direct:
            expected["effect_direct"] = naive.direct_effect(plain(model), ids, part, boundaries)
        yield measure(model, probe, PROMPT).measures, expected


def probe_residual_erasure(model, measure):
    found = measure(model, probes.ResidualErasure("answer", BACKGROUND), PROMPT)
    others = [model.encode(prompt).ids for prompt in read_jsonl(BACKGROUND)]
    yield found.measures, {"effect": naive.residual_erasure(plain(model), found.token_ids, found.answer_start, others)}


def probe_patching(model, measure):
    """Prompts of other and of the same length, with given answers and with the best guesses; to a hundred-thousandth
    of the gap between the two."""
    n_measured = 0
    for prompt, other in (
        (PROMPT, Prompt("5+8=", "3")),
        (Prompt("5+7="), Prompt("why")),
        (Prompt("5+7="), Prompt("5+x=")),
        (Prompt("5+7="), Prompt("12 12 12")),
    ):
        found = measure(model, probes.Patching(other), prompt)
        both = [model.encode(one) for one in (prompt, other)]
        ids, other_ids = (one.ids[: one.answer_start] for one in both)
        if abs(float(found["gap"])) < 0.1:
            assert np.isnan(found["patch"]).all() and np.isnan(found["commitment"])
            continue
        n_measured += 1
        assert not found["self"].any(), "a prompt's own stream in its place changes nothing"
        guesses = [int(naive.run(plain(model), one.ids).logits[-1].argmax()) for one in both]
        answers = [one.ids[one.answer_start] if one.answer_start else guess for one, guess in zip(both, guesses)]
        expected = naive.patching(plain(model), ids, other_ids, answers)
        assert np.isnan(found["patch"][:, len(ids) :]).all()
        arrays = {name: found[name] for name in expected} | {"patch": found["patch"][:, : len(ids)]}
        for name, values in expected.items():
            np.testing.assert_array_equal(np.isnan(arrays[name]), np.isnan(values), err_msg=name)
            wrong, largest = (np.abs(np.nan_to_num(one)).max() for one in (arrays[name] - values, values))
            assert wrong <= 1e-5 * max(1, largest), name
        yield arrays, {}
    assert n_measured >= 2


def probe_integrated_gradients(model, measure):
    """By the same rule with as many nodes: the path and the gradient are compared, not how fine the integral is."""
    for part, layers in (("layer", range(model.n_layers)), ("attention", [1]), ("mlp", [2])):
        found = measure(model, probes.IntegratedGradients(part, nodes=17), PROMPT)
        expected = naive.integrated_gradients(
            plain(model), found.token_ids, found.answer_start, part, layers=layers, rule=naive.KRONROD
        )
        assert (found["nodes_used"] == 17).all()
        yield {"attribution": found["attribution"][list(layers)]}, {"attribution": expected[list(layers)]}


def probe_prune(model, measure):
    found = measure(model, probes.Prune(n=2, drop=(0, 3)), PROMPT)
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
    found = measure(model, probes.Turns(), PROMPT)
    expected = naive.turns(plain(model), found.token_ids)
    yield tuple(  # their cosines: an angle near 0 has lost its digits
        {name: np.cos(np.deg2rad(np.asarray(angles[name], float))) for name in expected} for angles in (found, expected)
    )


def probe_answers(model, measure):
    decode = lambda ids: model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    found = measure(model, probes.Answers(k=40), PROMPT)
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
        found = measure(model, probes.ExactAnswers(n=2), prompt)
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
    found = measure(model, probes.Surgery(kind="drop", longest=1), PROMPT)
    expected = naive.pruned(plain(model), found.token_ids, (1,))
    expected = {"loss": np.nanmean(expected["nll"]), "kl": expected["kl"].mean(), "top1": expected["top1_kept"].mean()}
    yield {name: found[f"drop_{name}" if name != "top1" else "drop_top1_kept"][1, 2] for name in expected}, expected


def probe_generation(model, measure):
    """Divergences are so small here that rounding shows: they are held absolutely."""
    found = measure(model, probes.Generation(n_tokens=3, threshold=0.012, g=0.02, rho=0.5), PROMPT)
    asked = found.token_ids[: found.answer_start]
    expected = naive.writing(plain(model), asked, found["ids"].tolist(), 0.012, 0.02, 0.5)
    assert np.abs(found["jsd"] - expected.pop("jsd")).max() <= 1e-6
    yield found.measures, expected


def probe_early_exit(model, measure):
    found = measure(model, probes.EarlyExit(0.1), PROMPT)
    lens = naive.logit_lens(plain(model), found.token_ids, 1)
    yield (
        {k: found[k] for k in ("confidence", "agreement")},
        {"confidence": lens["top_probs"][..., 0], "agreement": lens["top1_match"]},
    )


def probe_loops(model, measure):
    """Held naively in test_loops; here, that it is asked of looped models alone."""
    with nullcontext() if model.n_passes > 1 else pytest.raises(ParameterError, match="run once"):
        found = measure(model, probes.Loops(), PROMPT)
        yield {"to_last": found["to_last"][-1]}, {"to_last": np.zeros(found.n_tokens)}


def probe_numerics(model, measure):
    """The stream's norms; the sums themselves are held naively in test_numerics, and against the limit for every
    variant here."""
    found = measure(model, probes.Numerics(), PROMPT)
    assert (found["miss"] <= 1e-5).all() and all(float(found[k]) <= 1e-5 for k in ("closure", "replay", "detour"))
    yield (
        {"resid_norm": found["resid_norm"]},
        {"resid_norm": naive.contributions(plain(model), found.token_ids)["resid_norm"]},
    )


CHECKS = {name.removeprefix("probe_"): check for name, check in list(globals().items()) if name.startswith("probe_")}


def close(found, expected, limit=1e-5):
    """Within `limit` of the largest expected value."""
    found, expected = found.detach().double().squeeze(0), expected.double()
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= limit * expected.abs().max()


NO_SUFFIX = {  # variants whose layers cannot be replayed from the middle of a prompt
    "qwen3_next",  # linear attention has a state, and neither keys nor values
    *("gemma4", "gemma4_multimodal"),  # the third branch reads an embedding of every position
}
THIRD = {"gemma4", "gemma4_multimodal"}  # the others add attention's and the MLP's output alone
BETWEEN = {"looped_norm", "looped_input", "ouro"}  # the others run their layers once, or back to back
GATE = {"ouro"}  # the only family here that learned when to stop


class TestFamily:
    """What every variant passes. A family that lacks a value is listed above."""

    @pytest.fixture(params=by_mechanism())
    def variant(self, request):
        return request.param

    @pytest.fixture
    def model(self, variant, variant_model):
        return variant_model(variant)

    @pytest.fixture
    def trace(self, model):
        return model.trace(model.tensor(model.encode(PROMPT)))

    def test_reads_every_value(self, variant, model, trace):
        expected = naive.run(plain(model), trace.ids[0].tolist())
        n = model.n_layers
        assert (len(trace.resid), len(trace.attn_out), len(trace.mlp_out), len(trace.calls)) == (n + 1, n, n, n)
        for layer in range(n):
            close(trace.resid[layer], expected.resid[layer])
            close(trace.after(layer + 1), expected.left[layer + 1])
            close(trace.attn_out[layer], expected.attn[layer])
            close(trace.mlp_out[layer], expected.mlp[layer])
            close(trace.resid[layer] + trace.update(layer), expected.left[layer + 1])
        for depth, resid in enumerate(trace.resid):
            close(model.unembed(resid), naive.lens(plain(model), trace.ids[0].tolist(), expected.resid[depth]))
        close(trace.logits, expected.logits)

    def test_lacks_what_is_listed(self, variant, model, trace):
        assert any(third is not None for third in model.thirds) == (variant in THIRD)
        assert bool(trace.left) == model.between_passes == (variant in BETWEEN)
        assert (model.exit_gate is not None) == (variant in GATE)
        assert verify(model).suffix_holds == (variant not in NO_SUFFIX)
        if variant not in NO_SUFFIX:
            *_, found = model.run_block(trace, 0, trace.resid[0][:, 3:], start=3)
            close(found, trace.resid[1][0, 3:])

    @pytest.mark.parametrize("part", ["attention", "mlp"])
    def test_edits_every_branch(self, model, trace, part):
        """An addition is left out at some positions of the middle row of three: the edit is seen downstream as in a
        full pass, and the other rows are as they were."""
        positions, base = range(2, 5), trace.logits[0]

        def edit(added):
            added = added.clone()
            added[1, 2:5] = 0
            return added

        for layer in range(model.n_layers):
            edits = {"attn_edit" if part == "attention" else "mlp_edit": edit}
            *_, hidden = model.run_block(trace, layer, trace.resid[layer].repeat(3, 1, 1), **edits)
            for later in range(layer + 1, model.n_layers):
                *_, hidden = model.run_block(trace, later, hidden)
            logits = model.unembed(hidden)
            with naive.leave_out(plain(model), layer, part, positions):
                changed = naive.run(plain(model), trace.ids[0].tolist())
            close(logits[1], changed.logits)
            close(logits[0], base)
            assert (changed.logits - base).abs().max() > 1e-4 * base.abs().max()

    def test_edits_the_stream_at_every_depth(self, model, trace):
        for depth, resid in enumerate(trace.resid):
            hidden = resid.roll(1, dims=1)
            with naive.replace_resid(plain(model), depth, hidden[0]):
                changed = naive.run(plain(model), trace.ids[0].tolist()).logits
            if depth == 0:
                close(model.logits_from(trace.ids, hidden), changed)
            for layer in range(depth, model.n_layers):
                *_, hidden = model.run_block(trace, layer, hidden)
            close(model.unembed(hidden), changed)
            assert (changed - trace.logits[0]).abs().max() > 1e-3 * changed.abs().max()

    @pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
    def test_its_sums_hold_and_an_edit_that_changes_nothing_changes_nothing(self, variant, precision):
        """To the last bit, in every precision: else every intervention would carry a noise of its own."""
        model = random_model(variant, precision, byte_tokenizer())
        figures = verify(model)
        assert figures.failures() == [] and None not in (*figures.slope_attn, *figures.slope_mlp)
        trace = model.trace(model.tensor(model.encode(PROMPT)))
        for layer in range(model.n_layers):
            *_, hidden = model.run_block(trace, layer, trace.resid[layer], attn_edit=torch.clone, mlp_edit=torch.clone)
            assert torch.equal(hidden, trace.resid[layer + 1])

    def test_nothing_is_left_behind(self, model, trace):
        weights = {name: p.clone() for name, p in model.hf.named_parameters()}
        model.run_block(trace, 1, trace.resid[1].repeat(3, 1, 1), attn_edit=torch.zeros_like, mlp_edit=torch.zeros_like)
        with pytest.raises(RuntimeError, match="stop"):
            model.trace(trace.ids, on_block=lambda layer, _: stop() if layer == 1 else None)
        with pytest.raises(RuntimeError, match="stop"):
            model.run_block(trace, 1, trace.resid[1], mlp_edit=stop)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.hf.modules())
        assert torch.equal(model.logits(trace.ids), trace.logits)
        assert all(torch.equal(p, weights[name]) for name, p in model.hf.named_parameters())

    def test_continues_as_if_the_whole_were_read_again(self, model, trace):
        ids, read, rows = trace.ids, [], []
        with model.blocks[0].register_forward_hook(lambda block, args, out: read.append(first(out).shape[-2])):
            model.continuation(ids, 6, lambda step, logits: rows.append(logits))
        assert read == [n for n in (ids.shape[1], 1, 1, 1, 1, 1) for _ in range(model.n_passes)]
        for row in rows:
            expected = model.logits(ids)[0, -1]
            close(row, expected)
            ids = torch.cat([ids, expected.argmax().view(1, 1)], dim=1)


def stop(*_):
    raise RuntimeError("stop")


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
            # the noise floor is a change relative to the update, naively 0
            largest = 1.0 if name == "noise_floor" else np.nanmax(np.abs(values))
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
    with pytest.raises(IdentityFailed, match="Refused: "):
        model = LanguageModel(hf.bfloat16(), byte_tokenizer(), architecture, ModelSpec("m", precision="bf16"))
        verify(model).require(architecture)
