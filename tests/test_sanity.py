"""The device check accepts what rounding explains and refuses what it does not. The "device" here is the CPU in another
precision, or with a mistake put in."""

import pytest
import torch
from small_models import FAMILIES, byte_tokenizer, random_hf

from ed_core.errors import IdentityFailed
from ed_core.models import verify
from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.loading import load
from ed_core.models.ref import ModelRef
from ed_core.models.sizes import WIDEST_FIRST
from ed_core.models.verify import short_prompt
from ed_core.types import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pair(family, precision):
    """The same weights on the "device" in a precision, and as the reference."""
    device, reference = (
        LanguageModel(
            random_hf(family).to(dtype),
            byte_tokenizer(),
            find(family.removesuffix("_sequential")),
            ModelSpec("m", precision=precision),
        )
        for dtype in (DTYPES[precision], torch.float32)
    )
    return device, reference


def compared(device, reference):
    return verify.compare_with_cpu(device.trace(short_prompt(device)), reference, device.spec.precision)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rounding_is_accepted(family, precision):
    found = compared(*pair(family, precision))
    assert found.failures() == [] and len(found.blocks) == 5
    assert precision == "fp32" or max(found.blocks) > 1e-5, "nothing was compared"
    found.require("cuda")


MISTAKES = {
    "an attention that is not causal enough": ("layer 3", lambda m: m.blocks[2].self_attn, lambda x: x.flip(1)),
    "an MLP half as large again": ("layer 4", lambda m: m.blocks[3].mlp, lambda x: 1.5 * x),
    "a head that swaps tokens": ("the logits", lambda m: m.head, lambda x: x.roll(1, -1)),
    "an embedding of the wrong token": ("the embedding", lambda m: m.hf.get_input_embeddings(), lambda x: x.roll(1, 1)),
    "one token of one block": ("layer 2", lambda m: m.blocks[1].mlp, lambda x: x.index_fill(1, torch.tensor([3]), 0.7)),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_where_it_happens(name, precision):
    where, module, change = MISTAKES[name]
    device, reference = pair("llama", precision)
    module(device).register_forward_hook(
        lambda m, args, out: (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)
    )
    found = compared(device, reference)
    assert [line.split(" differs")[0] for line in found.failures()] == [where]
    with pytest.raises(IdentityFailed, match=f"on mps {where} differs .* --device cpu"):
        found.require("mps")


def test_the_reference_of_a_quantized_model_holds_what_its_weights_stand_for():
    """Without that unpacking, 4bit differs from the checkpoint's own weights by far more than the limit."""
    for precision in WIDEST_FIRST:
        model = LanguageModel(*load(ModelRef.parse("ed-demo-8", precision)))
        trace = model.trace(short_prompt(model))
        found = verify.compare_with_cpu(trace, verify.float32_copy(model), precision)
        assert found.failures() == [], (precision, found)
        if precision == "4bit":
            plain = LanguageModel(*load(ModelRef.parse("ed-demo-8")))
            assert verify.compare_with_cpu(trace, plain, precision).failures() != []
