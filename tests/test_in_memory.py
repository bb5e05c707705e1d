"""A model in memory: equal to its folder to the last bit, and nothing of it changes, whatever happens."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from small_models import BACKGROUND, MECHANISMS, byte_tokenizer, random_hf
from torch import nn

import ed_core
from ed_core.errors import IdentityFailed, JobError, ParameterError, RefusedFamily
from ed_core.models.in_memory import MemoryModel
from ed_core.probes import Contributions, IntegratedGradients, LayerSkip, LogitLens, ResidualErasure
from ed_core.results import lookup
from ed_core.types import Prompt
from tools import families

PROMPT = Prompt("5 + 7 + 1 = ", "13")
TOKENIZER = byte_tokenizer()
PROBES = (
    Contributions(),
    LogitLens(),
    LayerSkip(part="attention"),
    ResidualErasure(background=BACKGROUND),
    IntegratedGradients(nodes=17),
)


pytestmark = pytest.mark.usefixtures("own_cache")


def all_state(model: nn.Module) -> dict[str, object]:
    """Everything that a training would notice, by name; tensors are copied bit by bit."""
    found: dict[str, object] = {"python": random.getstate(), "torch": torch.get_rng_state().tolist()}
    kind, words, *rest = np.random.get_state()
    found["numpy"] = kind, words.tolist(), rest
    found["grad"] = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    of = torch.backends
    found["products"] = torch.get_default_dtype(), torch.get_float32_matmul_precision(), of.cuda.cudnn_sdp_enabled()
    found["rounded"] = [part.fp32_precision for part in (of.cuda.matmul, of.mkldnn.matmul, of.cudnn.conv)]
    for name, module in model.named_modules():
        attributes = {k: v for k, v in vars(module).items() if isinstance(v, (bool, int, float, str, type(None)))}
        dicts = {k: v for k, v in vars(module).items() if isinstance(v, dict) and "hooks" in k}
        hooks = {k: [(i, id(h)) for i, h in v.items()] for k, v in dicts.items()}
        found[f"module {name}"] = attributes, hooks, sorted(vars(module)), id(vars(module).get("forward"))
        if hasattr(getattr(module, "config", None), "to_dict"):
            found[f"config {name}"] = repr(module.config.to_dict()), module.config._attn_implementation
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        grad = tensor.grad
        as_bytes = lambda t: t.detach().clone().reshape(-1).view(torch.uint8).numpy().tobytes()
        told = tensor._version, tensor.dtype, tensor.device, tensor.requires_grad, as_bytes(tensor)
        of_grad = None if grad is None else (id(grad), grad._version, as_bytes(grad))
        found[f"tensor {name}"] = id(tensor), tensor.data_ptr(), *told, of_grad
    return found


def assert_same_state(before: dict[str, object], after: dict[str, object]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert after[name] == value, name


def trained(family: str = "llama", **overrides) -> nn.Module:
    """A model in the middle of a step: training mode but for one part, one weight frozen, gradients, hooks, a buffer
    that was written, dropout."""
    model = random_hf(family, attention_dropout=0.5, **overrides)
    model.train()
    model.model.layers[1].mlp.eval()
    model.model.layers[0].input_layernorm.weight.requires_grad_(False)
    model.config.use_cache = True
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    return model


@pytest.mark.parametrize("variant", MECHANISMS)
def test_every_family_gives_what_its_folder_gives_to_the_last_bit(variant, tmp_path):
    hf = families.random_hf(variant)
    hf.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    hf.train()
    before = all_state(hf)
    held = ed_core.open(hf, TOKENIZER)
    found = {probe: held.run(probe, PROMPT) for probe in PROBES}
    assert_same_state(before, all_state(hf))
    folder = ed_core.open(str(tmp_path))
    for probe, mine in found.items():
        theirs = folder.run(probe, PROMPT)
        assert mine.token_ids == theirs.token_ids and set(mine.measures) == set(theirs.measures)
        for name in mine.measures:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=f"{probe.name}.{name}")
        assert mine.provenance["identities"] == theirs.provenance["identities"]


def test_a_model_in_training_feels_nothing():
    model, seen = trained(), []
    model.model.layers[2].register_forward_hook(lambda *_: seen.append("hook"))
    model.model.layers[2].register_forward_pre_hook(lambda *_: seen.append("before"))
    model.lm_head.register_full_backward_hook(lambda *_: seen.append("back"))
    model.gradient_checkpointing_enable()
    torch.set_float32_matmul_precision("medium")
    try:
        before = all_state(model)
        held = ed_core.open(model, TOKENIZER)
        notes = [note for probe in PROBES for note in held.run(probe, PROMPT).notes]
        _ = held.language_model, held.spec, repr(held)
        assert_same_state(before, all_state(model))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == [], "hooks of others do not run"
    assert sum("forward hooks do not run here" in note for note in notes) == len(PROBES)


@pytest.mark.parametrize("raised", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_probe_that_raises_leaves_nothing_behind(monkeypatch, raised):
    model = trained()
    held = ed_core.open(model, TOKENIZER)
    before = all_state(model)

    def fails(self, lm, encoding, record):
        torch.rand(3), np.random.rand(), random.random()
        torch.set_default_dtype(torch.float64)

        def stop(layer, trace):
            if layer == 2:
                raise raised

        lm.trace(lm.tensor(encoding), on_block=stop)

    monkeypatch.setattr(LogitLens, "compute", fails)
    with pytest.raises((JobError, KeyboardInterrupt)):
        held.run(LogitLens(), PROMPT)
    assert_same_state(before, all_state(model))
    monkeypatch.undo()
    assert held.run(LogitLens(), PROMPT, fresh=True).complete, "and it can be measured again"


@contextmanager
def in_float64() -> Iterator[None]:
    """By default, with products that are rounded."""
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        yield
        assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float64, "medium")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "around",
    [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16), in_float64, lambda: torch.device("meta")],
    ids=["inference", "autocast", "float64", "device"],
)
def test_within_inference_mode_and_autocast_the_numbers_are_the_same(around):
    hf = random_hf("qwen3", num_hidden_layers=2)
    probes, held = (LogitLens(), LayerSkip(direct=True), IntegratedGradients(nodes=17)), ed_core.open(hf, TOKENIZER)
    expected = [held.run(probe, PROMPT, fresh=True) for probe in probes]
    with around():
        for model in (held, ed_core.open(hf, TOKENIZER)):
            for probe, known in zip(probes, expected):
                found = model.run(probe, PROMPT, fresh=True)
                for name in known.measures:
                    np.testing.assert_array_equal(found[name], known[name])


def lora(model: nn.Module, **more) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=16, lora_dropout=0.4, target_modules=["q_proj", "down_proj"], **more)
    wrapped = get_peft_model(model, config)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.1 * torch.randn_like(weight))
    return wrapped


@pytest.mark.parametrize("dora", [False, True])
def test_a_model_wrapped_by_peft_is_the_merged_one(dora):
    torch.manual_seed(0)
    wrapped = lora(random_hf("llama", num_hidden_layers=2), use_dora=dora).train()
    before = all_state(wrapped)
    held = ed_core.open(wrapped, TOKENIZER)
    found = {probe: held.run(probe, PROMPT) for probe in PROBES[:4]}
    assert_same_state(before, all_state(wrapped))
    base = ed_core.open(random_hf("llama", num_hidden_layers=2), TOKENIZER)
    merged = ed_core.open(copy.deepcopy(wrapped).merge_and_unload(), TOKENIZER)
    for probe, mine in found.items():
        for name, values in merged.run(probe, PROMPT).measures.items():
            if values.spec.dtype == "float32" and name != "noise_floor":
                np.testing.assert_allclose(mine[name], values.values, rtol=1e-5, atol=1e-5, err_msg=name)
    assert np.abs(base.run(LogitLens(), PROMPT).kl - found[LogitLens()].kl).max() > 1e-3, "the adapter counts"
    with wrapped.disable_adapter():
        np.testing.assert_array_equal(held.run(LogitLens(), PROMPT).kl, base.run(LogitLens(), PROMPT).kl)


def test_wrappers_of_accelerate_and_of_the_compiler_are_taken_off():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)  # of a trainer in this process
    plain = ed_core.open(random_hf("llama"), TOKENIZER).run(LogitLens(), PROMPT)
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare_model(random_hf("llama").train())
    assert "forward" in vars(prepared), "it casts"
    for model in (prepared, torch.compile(random_hf("llama")), nn.DataParallel(random_hf("llama"))):
        before = all_state(model)
        found = ed_core.open(model, TOKENIZER).run(LogitLens(), PROMPT)
        np.testing.assert_array_equal(found.kl, plain.kl)
        assert_same_state(before, all_state(model))
    AcceleratorState._reset_state(True)


@pytest.mark.process  # gloo opens a socket
def test_weights_that_are_divided_over_processes_are_refused():
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(random_hf("llama"), mesh=distributed.init_device_mesh("cpu", (1,)))
        with pytest.raises(RefusedFamily, match=r"divided over several processes \(DTensor\).*measure a checkpoint"):
            ed_core.open(model, TOKENIZER)
    finally:
        distributed.destroy_process_group()


def test_weights_that_change_are_seen_and_change_the_identity():
    model = random_hf("llama")
    for keep in (False, True):
        held = ed_core.open(model, TOKENIZER, keep=keep)
        first, spec = held.run(LogitLens(), PROMPT), held.spec
        assert held.spec == spec == first.request.models[0], "nothing changed"
        with torch.no_grad():
            model.model.layers[3].mlp.down_proj.weight[0, 0] += 1e-3
        assert held.spec.key != spec.key and held.run(LogitLens(), PROMPT).request.key != first.request.key
        model.model.norm.weight = nn.Parameter(model.model.norm.weight * 2)  # another tensor in its place
        assert not np.array_equal(held.run(LogitLens(), PROMPT).kl, first.kl)


def test_the_hash_is_of_the_content_alone():
    def digest(model):
        return ed_core.open(model, TOKENIZER, keep=True).spec.content_hash

    expected = digest(random_hf("llama"))
    assert digest(random_hf("llama").train()) == expected == digest(copy.deepcopy(random_hf("llama")))
    hidden = random_hf("llama")
    hidden.model.layers[0].self_attn.q_proj.weight.data[0, 0] += 1e-6  # torch does not count this change
    flipped = random_hf("llama")
    flipped.model.layers[0].mlp.down_proj.weight.data[:, 1] *= -1  # an even number of signs
    scaled = random_hf("llama")
    scaled.config.rms_norm_eps *= 2
    wrapped, other = lora(random_hf("llama")), lora(random_hf("llama"))
    torch.manual_seed(0)
    other.load_state_dict(wrapped.state_dict())
    other.model.model.layers[0].self_attn.q_proj.scaling["default"] = 1.0
    assert len({expected, *map(digest, (hidden, flipped, scaled, wrapped, other))}) == 6


def test_results_are_kept_as_asked(monkeypatch):
    from ed_core.work import compute

    ran, run = [], compute.run
    monkeypatch.setattr(compute, "run", lambda *a, **more: ran.append(1) or run(*a, **more))
    model = random_hf("llama")
    passing, kept = ed_core.open(model, TOKENIZER), ed_core.open(model, TOKENIZER, keep=True, name="mine")
    for _ in range(2):
        found = passing.run(LogitLens(), PROMPT)
        assert lookup.find(found.request) is None
    assert len(ran) == 2
    for _ in range(2):
        found = kept.run(LogitLens(), PROMPT)
    assert len(ran) == 3 and lookup.find(found.request) is not None
    again = ed_core.open(copy.deepcopy(model).train(), TOKENIZER, keep=True, name="other")
    np.testing.assert_array_equal(again.run(LogitLens(), PROMPT).kl, found.kl)
    assert len(ran) == 3


def odd_forward(model: nn.Module) -> nn.Module:
    forward = model.model.layers[1].mlp.forward
    model.model.layers[1].mlp.forward = lambda x: 2 * forward(x)
    return model


def offloaded() -> nn.Module:
    from accelerate import cpu_offload

    return cpu_offload(random_hf("llama"), torch.device("cpu"))


def headless() -> nn.Module:
    from transformers import AutoModel

    return AutoModel.from_config(random_hf("llama").config)


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: nn.Linear(2, 2), ParameterError, r"of the class Linear; expected the name of a model"),
        (headless, RefusedFamily, r"LlamaModel has no head"),
        (offloaded, RefusedFamily, r"\d+ weights of LlamaForCausalLM are offloaded, the first is model\.embed_tokens"),
        (lambda: random_hf("llama").double(), RefusedFamily, r"weights of .* are float64; expected float32"),
        (lambda: odd_forward(random_hf("llama")), IdentityFailed, r"forward pass of a LlamaMLP was replaced"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(make, kind, words):
    with pytest.raises(kind, match=words) as refused:
        ed_core.open(make(), TOKENIZER)
    assert "\n" not in str(refused.value)


def test_nothing_is_copied_but_small_buffers():
    model = random_hf("gpt2")
    with MemoryModel(model, TOKENIZER).opened() as opened:
        mine = {name: p.data_ptr() for name, p in opened.hf.named_parameters(remove_duplicate=False)}
        assert mine == {name: p.data_ptr() for name, p in model.named_parameters(remove_duplicate=False)}
        assert opened.hf is not model and opened.hf.lm_head.weight is opened.hf.transformer.wte.weight, "still tied"


@pytest.mark.parametrize("precision", ["int8", "4bit"])
def test_quantised_weights_are_those_of_the_folder_or_refused(precision, tmp_path):
    """As the library loads them, before and after a pass of their own."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    random_hf("llama", num_hidden_layers=2).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    how = {"int8": {"load_in_8bit": True}, "4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}[precision]
    more = {} if precision == "int8" else {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=BitsAndBytesConfig(**how, **more), dtype=torch.bfloat16, device_map="cpu"
    )
    folder = ed_core.open(str(tmp_path), precision=precision).run(Contributions(), PROMPT)
    for _ in range(2):
        found = ed_core.open(model, TOKENIZER).run(Contributions(), PROMPT)
        np.testing.assert_array_equal(found.layer_ratio, folder.layer_ratio)
        with torch.no_grad():
            model.train()(input_ids=torch.arange(8)[None])
    if precision == "4bit":
        model.model.layers[0].mlp.up_proj.weight.quant_state.packing_format_for_cpu = True
        with pytest.raises(IdentityFailed, match="repacked the 4-bit weights"):
            ed_core.open(model, TOKENIZER)
