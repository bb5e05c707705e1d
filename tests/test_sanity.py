"""The device check accepts what rounding explains and refuses what it does not. The "device" here is the CPU in another
precision, or with a mistake put in."""

from contextlib import contextmanager

import pytest
import torch
from small_models import FAMILIES, byte_tokenizer, random_hf

from ed_core.errors import IdentityFailed
from ed_core.models import quantized, verify
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


@contextmanager
def mistaken(module, change):
    """The module's output, changed on the "device"."""
    handle = module.register_forward_hook(
        lambda m, args, output: (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)
    )
    try:
        yield
    finally:
        handle.remove()


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
    with mistaken(module(device), change):
        found = compared(device, reference)
    assert [line.split(" differs")[0] for line in found.failures()] == [where]
    with pytest.raises(IdentityFailed, match=f"on mps {where} differs .* --device cpu"):
        found.require("mps")


@pytest.mark.parametrize("name", ["ed-demo-8"])
def test_the_reference_of_a_quantized_model_holds_what_its_weights_stand_for(name):
    for precision in WIDEST_FIRST:
        model = LanguageModel(*load(ModelRef.parse(name, precision)))
        found = verify.compare_with_cpu(model.trace(short_prompt(model)), verify._reference(model), precision)
        assert found.failures() == [], (precision, found)
    plain = LanguageModel(*load(ModelRef.parse(name)))
    assert compared_with_4bit_fails(plain, name)


def compared_with_4bit_fails(plain, name):
    """Without that unpacking, 4bit differs from the checkpoint's own weights by far more than the limit."""
    model = LanguageModel(*load(ModelRef.parse(name, "4bit")))
    return verify.compare_with_cpu(model.trace(short_prompt(model)), plain, "4bit").failures() != []


def test_on_the_cpu_there_is_nothing_to_check_and_elsewhere_a_family_is_checked_once(model_of, monkeypatch):
    model = model_of("qwen3")
    assert verify.check_device(model) is None
    calls = []
    monkeypatch.setattr(verify, "_no_reference", lambda m, given: "")
    monkeypatch.setattr(verify, "_reference", lambda m: calls.append(1) or model)
    monkeypatch.setattr(verify, "_devices_passed", set())
    monkeypatch.setattr(model, "device", torch.device("meta"))
    monkeypatch.setattr(verify, "short_prompt", lambda m: torch.arange(3, 20)[None])
    monkeypatch.setattr(model, "_home", lambda tensor: tensor)
    assert verify.check_device(model).failures() == [] and verify.check_device(model) is None
    assert verify.check_device(model, always=True) is not None
    assert len(calls) == 2


def test_an_int8_weight_is_its_share_of_127_times_the_scale_of_its_row():
    packed = torch.tensor([[127, -127], [127, 0]], dtype=torch.int8)
    layer = torch.nn.Linear(2, 2)
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    layer.weight.SCB = torch.tensor([2.0, 3.0])
    assert quantized.weight(layer).tolist() == [[2.0, -2.0], [3.0, 0.0]]
