"""The identities accept every correct model and refuse every forgery: where only one token tells, and where only the
slope does."""

from dataclasses import replace
from itertools import cycle

import naive
import pytest
import torch
from small_models import FAMILIES, byte_tokenizer, random_hf

from ed_core.errors import IdentityFailed, NotFinite
from ed_core.models import language_model
from ed_core.models import trace as tracing
from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.verify import PROBE_TEXT, verify
from ed_core.types import ModelSpec, Prompt

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHALLOW = dict(num_hidden_layers=2, n_layer=2)
WRITERS = {"gpt2": ("attn.c_proj", "mlp.c_proj"), "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h")}


def opened(hf, precision="fp32", **forged) -> LanguageModel:
    """The model behind its family's description, or a forged one."""
    architecture = replace(find(hf.config.model_type), **forged)
    return LanguageModel(
        hf.to(DTYPES[precision]), byte_tokenizer(), architecture, ModelSpec("model", precision=precision)
    )


def refusal(model) -> str:
    with pytest.raises(IdentityFailed) as caught:
        verify(model).require(model.architecture)
    return str(caught.value)


def writers(hf):
    """Per block, the two linear maps that write attention's and the MLP's addition."""
    attn, mlp = WRITERS.get(hf.config.model_type, ("self_attn.o_proj", "mlp.down_proj"))
    return [(block.get_submodule(attn), block.get_submodule(mlp)) for block in naive.blocks_of(hf)]


@torch.no_grad()
def scale_writers(hf, factor, part=None):
    """Updates `factor` times as large; in the post-norm families it is the norm behind the writer that sets the
    size."""
    for attn, mlp in writers(hf):
        for module in [attn, mlp] if part is None else [{"attention": attn, "mlp": mlp}[part]]:
            for parameter in module.parameters():
                parameter.mul_(factor)
    for name, weight in hf.named_parameters():
        if "post_" in name and find(hf.config.model_type).attn.startswith("post_"):
            one = 0 if hf.config.model_type == "olmo2" else 1  # Gemma: 1 + weight
            weight.add_(one).mul_(factor).sub_(one)


@torch.no_grad()
def make_massive(hf, factor, characters="T"):
    """The embeddings of some characters become huge: massive activations."""
    for token in set(byte_tokenizer()(characters)["input_ids"]):
        hf.get_input_embeddings().weight[token].mul_(factor)


HARD = {
    "one massive token": lambda hf, seed: make_massive(hf, 1000),
    "three huge tokens": lambda hf, seed: make_massive(hf, 10_000, "T o"),
    "every token massive": lambda hf, seed: make_massive(hf, 1000, PROBE_TEXT),
    "updates near rounding": lambda hf, seed: scale_writers(hf, 2.0 ** -(4 + seed % 4)),
    "updates below rounding": lambda hf, seed: scale_writers(hf, 2.0**-12),
    "attention near rounding": lambda hf, seed: scale_writers(hf, 2.0 ** -(4 + seed % 4), "attention"),
    "massive tokens, tiny updates": lambda hf, seed: (make_massive(hf, 1000), scale_writers(hf, 2.0**-6)),
    "silent attention, small MLP": lambda hf, seed: (
        scale_writers(hf, 0.0, "attention"),
        scale_writers(hf, 2.0 ** -(3 + seed % 4), "mlp"),
    ),
    "nothing but silence": lambda hf, seed: scale_writers(hf, 0.0),
}


@pytest.mark.parametrize("name", HARD)
def test_no_correct_model_is_refused(name):
    """10 seeds in bf16 and 2 in the others, the families in turn."""
    for seed, family in zip(range(10), cycle(FAMILIES)):
        for precision in DTYPES if seed % 8 == 0 and "huge" not in name else ["bf16"]:  # 10 000 times overflows fp16
            hf = random_hf(family, seed=seed, **SHALLOW)
            HARD[name](hf, seed)
            assert verify(opened(hf, precision)).failures() == [], (family, precision, seed)


@pytest.mark.parametrize("precision", DTYPES)
def test_a_processor_that_sums_more_rows_in_another_order_refuses_no_model(monkeypatch, precision):
    """Every product of several rows is added up in halves, as a processor with kernels by batch size may do: what a
    layer gives moves in every precision, and the model is right all the same."""
    plain = torch.nn.functional.linear

    def halved(x, weight, bias=None):
        if x.dim() < 3 or x.shape[0] == 1:
            return plain(x, weight, bias)
        half = x.shape[-1] // 2
        added = plain(x[..., :half], weight[:, :half]) + plain(x[..., half:], weight[:, half:])
        return added if bias is None else added + bias

    monkeypatch.setattr(torch.nn.functional, "linear", halved)
    figures = verify(opened(random_hf("llama", num_hidden_layers=48), precision))
    assert figures.failures() == [] and 0 < figures.batch < figures.miss_limit / 2
    assert figures.suffix_holds and figures.suffix > 0


@pytest.mark.parametrize(
    "mixes",
    [lambda module, args, out: out + 3 * (out.shape[0] - 1) * out, lambda module, args, out: (out + out.mean(0)) / 2],
    ids=["", "equal rows would not notice"],
)
@pytest.mark.parametrize("precision", DTYPES)
def test_rows_that_see_each_other_are_refused(precision, mixes):
    hf = random_hf("qwen3")
    naive.blocks_of(hf)[1].mlp.register_forward_hook(mixes)
    assert "rows see each other" in refusal(opened(hf, precision))


def test_a_token_that_goes_to_another_expert_beside_others_is_no_reason_to_refuse():
    """As rounding by another summation order may send it."""
    hf = random_hf("qwen3")

    def astray(module, args, out):
        return out if len(out) == 1 else torch.cat([out[:, :2], -out[:, 2:3], out[:, 3:]], 1)

    naive.blocks_of(hf)[1].mlp.register_forward_hook(astray)
    figures = verify(opened(hf))
    assert figures.failures() == [] and figures.batch < 1e-6


@pytest.mark.parametrize("factor", [1, 1000])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_forgotten_multiplier_is_refused_even_beside_a_massive_token(precision, factor):
    hf = random_hf("granite")
    make_massive(hf, factor)
    model = opened(hf, precision, residual_multiplier="")
    figures, message = verify(model), refusal(model)
    assert "Granite" in message and "layer 1: h + a + m misses" in message
    slopes = [s for s in (*figures.slope_attn, *figures.slope_mlp) if s is not None]
    assert slopes and all(abs(slope - 0.22) < 0.03 for slope in slopes)
    if factor > 1:  # a global figure would have seen nothing
        trace = model.trace(model.tensor(model.encode(Prompt(PROBE_TEXT))))
        whole = max(
            float((trace.resid[l] + trace.update(l) - trace.resid[l + 1]).norm() / trace.resid[l].norm())
            for l in range(5)
        )
        assert whole < 2e-2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("factor", [1, 1000])
def test_a_multiplier_a_tenth_off_is_seen_by_the_slope_alone(precision, factor):
    hf = random_hf("granite")
    make_massive(hf, factor)
    scale_writers(hf, 0.05 if precision == "fp16" else 0.5)
    hf.config.forged = 0.9 * hf.config.residual_multiplier
    model = opened(hf, precision, residual_multiplier="forged")
    figures = verify(model)
    assert max(figures.miss) <= {"bf16": 2e-2, "fp16": 4e-3}[precision] and figures.closure == 0
    assert any("the stream moves by 1.1" in failure for failure in figures.failures())
    assert "(expected 1 ± 0.03)" in refusal(model)


def test_a_model_that_gives_nan_is_refused_where_it_begins():
    hf = random_hf("llama")
    with torch.no_grad():
        writers(hf)[2][1].weight[0, 0] = torch.nan
    with pytest.raises(NotFinite, match="from residual 3 of 5 on"):
        verify(opened(hf))
    hf = random_hf("llama")
    with torch.no_grad():
        hf.lm_head.weight[0, 0] = torch.inf
    with pytest.raises(NotFinite, match="in its logits alone"):
        verify(opened(hf))


def test_a_replayed_suffix_with_another_mask_is_found_out(model_of, monkeypatch):
    """One key too few: the logits move, the model is accepted all the same, and nothing reuses the prefix."""
    cut = tracing.from_position
    monkeypatch.setattr(
        language_model,
        "from_position",
        lambda named, start, n, device: (
            cut(named, start, n, device)
            | {"attention_mask": torch.ones(n - start, n, dtype=torch.bool).tril(start - 1)[None, None]}
        ),
    )
    figures = verify(model_of("qwen3"))
    monkeypatch.undo()
    assert figures.suffix > 1e-3 and not figures.suffix_holds and not figures.failures()
    assert verify(model_of("qwen3")).suffix_holds


@pytest.mark.parametrize(
    "figure", ["miss", "slope_attn", "slope_mlp", "closure", "replay", "batch", "detour", "left_behind"]
)
def test_a_figure_that_is_no_number_is_refused(model_of, figure):
    nan, found = float("nan"), verify(model_of("llama"))
    assert not found.failures()
    there = getattr(found, figure)
    wrong = (nan, *there[1:]) if isinstance(there, tuple) else {1: nan, 3: 0.0} if figure == "replay" else nan
    assert len(replace(found, **{figure: wrong}).failures()) == 1
