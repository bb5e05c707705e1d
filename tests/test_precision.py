"""Every precision opens, holds its identities and runs what it can do rightly; what it cannot is refused; the same for
adapters and offload."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import FAMILIES, asked, byte_tokenizer, random_hf, save_random

from ed_core.cli import main
from ed_core.errors import BrokenWeights, ModelNotFound, ParameterError, TooLarge, UnknownFamily
from ed_core.machine import ROOM
from ed_core.models import devices, quantized, sizes, weights
from ed_core.models.language_model import LanguageModel
from ed_core.models.loading import load
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.probes import PROBES, IntegratedGradients, LayerSkip, LogitLens, Loops, Patching
from ed_core.types import Prompt
from ed_core.work import estimate
from ed_core.work.compute import Models, run
from ed_core.work.resolve import settle

PROMPT = Prompt("5 + 7 + 5 + 3 = ", "20")
pytestmark = pytest.mark.usefixtures("own_cache", "bitsandbytes")


@pytest.fixture(scope="session")
def bitsandbytes():
    """Its import takes seconds, which are no test's."""
    quantized.prepare()


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """A small model folder per family."""
    made = {}

    def folder(family):
        if family not in made:
            made[family] = save_random(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder


def opened(folder, wanted="fp32", **more) -> LanguageModel:
    return LanguageModel(*load(ModelRef.parse(str(folder), wanted, **more)))


# Built otherwise where weights are packed: rotary with norms of keys, maps stored transposed, beside each other with
# biases, tied under norms all around.
BUILT_OTHERWISE = ("qwen3", "gpt2", "gpt_neox", "gemma2")


@pytest.mark.parametrize(
    "family, wanted",
    [
        pytest.param(f, p, marks=() if f in BUILT_OTHERWISE else pytest.mark.process)
        for f in FAMILIES
        for p in ("bf16", "int8", "4bit")
    ],
)
def test_every_family_opens_in_every_precision_and_holds_the_bytes_that_were_estimated(folder_of, family, wanted):
    model = opened(folder_of(family), wanted)
    assert verify(model).failures() == []
    assert model.dtype == {"fp32": torch.float32}.get(wanted, torch.bfloat16)
    assert model.bytes == model.spec.size().weight_bytes(wanted)
    tied = model.spec.size().tied
    assert (model.head.weight is model.hf.get_input_embeddings().weight) == tied
    assert model.head.weight.is_floating_point(), "the head is never quantized"
    run_one = model.logits(model.tensor(model.encode(PROMPT)))
    assert torch.isfinite(run_one).all()
    assert model.bytes == quantized.held_bytes(model.hf), "the first pass must not move the figure"


@pytest.mark.process
@pytest.mark.parametrize("wanted", sizes.QUANTIZED)
def test_every_probe_runs_quantized_or_refuses_with_the_reason(folder_of, wanted):
    model = opened(folder_of("qwen3"), wanted)
    for kind in [probe for probe in PROBES if not probe.needs_passes]:
        request = asked(kind).request(model.spec, PROMPT)
        if kind.needs_gradients and wanted == "int8":
            with pytest.raises(ParameterError, match="choose 4bit"):
                run(model, request)
            continue
        result = run(model, request)
        assert result.complete and result.provenance["precision"]["name"] == wanted
        assert "bitsandbytes" in result.provenance["libraries"]


def unpacked(model: LanguageModel) -> torch.nn.Module:
    """The same model with its quantized maps replaced by ordinary ones that hold what they stand for."""
    for module in list(model.hf.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ in ("Linear4bit", "Linear8bitLt"):
                plain = torch.nn.Linear(child.in_features, child.out_features, bias=child.bias is not None)
                plain.weight.data = quantized.weight(child).to(model.dtype)
                if child.bias is not None:
                    plain.bias.data = child.bias.data
                setattr(module, name, plain)
    return model.hf


def input_gradient(hf, ids):
    x = hf.get_input_embeddings().weight.detach()[ids].clone().requires_grad_()
    loss = hf(inputs_embeds=x, use_cache=False).logits.float()[0, -1].log_softmax(-1)[3]
    return torch.autograd.grad(loss, x)[0].float()


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_gradients_through_4bit_are_those_of_the_unpacked_weights_after_a_pass_without_gradients(folder_of, family):
    """The library's own repacking in that first pass made them wrong (cosine 0.02 on a bundled model) or raised."""
    model = opened(folder_of(family), "4bit")
    ids = model.tensor(model.encode(PROMPT))
    model.logits(ids)
    found = input_gradient(model.hf, ids)
    expected = input_gradient(unpacked(model), ids)
    assert torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.9999
    assert (found - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("wanted", sizes.QUANTIZED)
def test_a_quantized_checkpoint_is_opened_as_it_comes(tmp_path, wanted):
    folder = tmp_path / "stored"
    first = opened("ed-demo-8", wanted)
    first.hf.save_pretrained(folder)
    first.tokenizer.save_pretrained(folder)
    spec = settle(ModelRef.parse(str(folder), "auto"))
    assert spec.precision == wanted and "stored" in spec.why
    again = LanguageModel(*load(spec))
    ids = first.tensor(first.encode(PROMPT))
    assert torch.equal(again.logits(ids), first.logits(ids))
    with pytest.raises(ParameterError, match="stored in"):
        ModelRef.parse(str(folder), "fp32")


def test_the_resolved_precision_is_the_identity_and_the_reason_is_not(monkeypatch):
    monkeypatch.setattr(estimate, "free_memory", lambda: 1 << 40)
    chosen, plain = settle(ModelRef.parse("ed-demo-8", "auto")), ModelRef.parse("ed-demo-8", "float32")
    assert chosen.why and not plain.why and chosen.identity() == plain.identity() and chosen == plain
    assert chosen.identity()["precision"] == "fp32" and "auto" not in json.dumps(chosen.identity())
    assert ModelRef.parse("ed-demo-8", device="cpu").identity() != ModelRef.parse("ed-demo-8", "4bit").identity()


def test_the_command_line_says_what_auto_came_to(small_folder, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"text": PROMPT.text, "answer": PROMPT.answer}))
    options = ["--model", str(small_folder), "--prompts", str(prompts), "--out", str(tmp_path / "r.npz")]
    assert main(["run", "contributions", *options, "--precision", "auto"]) == 0
    assert "precision fp32" in capsys.readouterr().err
    with np.load(tmp_path / "r.npz") as file:
        certificate = json.loads(str(file["provenance"]))["runs"][0]
    assert certificate["precision"]["why"].startswith("fp32") and certificate["model"]["precision"] == "fp32"


def changed(folder, tmp_path, **fields):
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | fields))
    return copy


def refusal(kind, folder, **more) -> str:
    with pytest.raises(kind) as caught:
        load(ModelRef.parse(str(folder), **more))
    return str(caught.value)


@pytest.mark.parametrize("control", ["", "untrained"])
def test_files_that_changed_since_a_model_was_named_are_refused(tmp_path, control):
    """Also of a model that was open before and was closed for want of room."""
    spec, models = ModelRef.parse(str(save_random(tmp_path / "m", "llama")), control=control), Models(budget=1)
    models.get(spec)
    models.get(ModelRef.parse("ed-demo-8"))
    for file in (tmp_path / "m").glob("*.safetensors" if not control else "config.json"):
        file.write_bytes(file.read_bytes() + b" " if control else file.read_bytes()[:-1] + b"\1")
    with pytest.raises(BrokenWeights, match=f"The files of {spec.name} have changed since"):
        models.get(spec)


def test_a_model_with_code_of_its_own_is_refused_by_name_and_one_whose_code_the_library_has_is_not(
    small_folder, tmp_path
):
    own = changed(small_folder, tmp_path, auto_map={"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"})
    message = refusal(UnknownFamily, own)
    assert "modeling_mine.MineForCausalLM" in message and "never run" in message
    shutil.rmtree(own)
    load(
        ModelRef.parse(
            str(changed(small_folder, tmp_path, auto_map={"AutoModelForCausalLM": "modeling_qwen3.Qwen3ForCausalLM"}))
        )
    )


def test_pickled_weights_are_refused_with_how_to_convert_them(small_folder, tmp_path):
    copy = shutil.copytree(small_folder, tmp_path / "a friend's copy")
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    message = refusal(ModelNotFound, copy)
    assert "pytorch_model.bin" in message and "run code" in message and "use_safetensors=False" in message


def test_missing_truncated_and_overlong_shards_are_refused_before_anything_is_loaded(small_folder, tmp_path):
    copy = tmp_path / "shards"
    model = opened(small_folder)
    model.hf.save_pretrained(copy, max_shard_size="100KB")
    byte_tokenizer().save_pretrained(copy)
    shards = sorted(copy.glob("*.safetensors"))
    assert len(shards) > 2
    ids = model.tensor(model.encode(PROMPT))
    assert torch.equal(opened(copy).logits(ids), model.logits(ids))
    whole = shards[1].read_bytes()
    for damaged in (whole[:-1], whole + b"\0", b"\xff" * 8 + whole[8:]):
        shards[1].write_bytes(damaged)
        assert f"{shards[1].name} is damaged" in refusal(BrokenWeights, copy)
    shards[1].unlink()
    message = refusal(BrokenWeights, copy)
    assert "missing" in message and shards[1].name in message


def save_adapter(folder, base, base_name, **more):
    """A LoRA adapter with random weights, as peft writes it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    targets = ["c_attn"] if base.config.model_type == "gpt2" else ["q_proj", "down_proj"]
    settings = {"r": 4, "lora_alpha": 6, "target_modules": targets, "task_type": "CAUSAL_LM", **more}
    model = get_peft_model(base, LoraConfig(**settings))
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    model.peft_config["default"].base_model_name_or_path = str(base_name)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "family, targets, more",
    [
        ("gpt2", ["c_attn"], {}),
        ("llama", ["q_proj", "down_proj"], {}),
        ("llama", ["lm_head"], {}),
        ("llama", ["embed_tokens", "lm_head"], {}),
        ("llama", ["embed_tokens"], {"ensure_weight_tying": True}),
        ("llama", ["q_proj"], {"trainable_token_indices": [4, 8]}),
    ],
)
def test_an_adapter_is_merged_as_peft_applies_it_and_of_two_tied_ends_leaves_the_other(tmp_path, family, targets, more):
    from peft import PeftModel

    base = lambda: random_hf(family, tie_word_embeddings=True)
    base().save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base(), tmp_path / "base", target_modules=targets, **more)
    ids = torch.tensor([[3, 4, 5, 8]])
    with torch.no_grad():
        plain, adapted = base()(ids).logits, PeftModel.from_pretrained(base(), str(adapter)).eval()(ids).logits
    merged = opened(tmp_path / "base", adapter=str(adapter))
    torch.testing.assert_close(merged.logits(ids), adapted, rtol=1e-4, atol=1e-4)
    assert (adapted - plain).abs().max() > 1e-2 and verify(merged).failures() == []
    tied = merged.hf.lm_head.weight is merged.hf.get_input_embeddings().weight
    assert tied == merged.hf.config.tie_word_embeddings == (targets[0] in ("c_attn", "q_proj"))


def test_an_adapter_is_part_of_the_identity_by_content(folder_of, tmp_path):
    folder = folder_of("qwen3")
    adapter = save_adapter(tmp_path / "a", random_hf("qwen3"), folder)
    copy = shutil.copytree(adapter, tmp_path / "b")
    one, other = ModelRef.parse(str(folder), adapter=str(adapter)), ModelRef.parse(str(folder), adapter=str(copy))
    assert one.identity() == other.identity() != ModelRef.parse(str(folder)).identity()
    trained = load_file(copy / weights.ADAPTER_WEIGHTS)
    save_file({k: v + 0.01 for k, v in trained.items()}, copy / weights.ADAPTER_WEIGHTS)
    assert ModelRef.parse(str(folder), adapter=str(copy)).identity() != one.identity()


def test_an_adapter_for_another_base_is_refused(folder_of, tmp_path):
    deeper = save_adapter(tmp_path / "deeper", random_hf("qwen3", num_hidden_layers=6), "somewhere")
    assert "layers.5" in refusal(BrokenWeights, folder_of("qwen3"), adapter=str(deeper))
    wider = save_adapter(tmp_path / "wider", random_hf("qwen3", hidden_size=48), "somewhere")
    assert "another base" in refusal(BrokenWeights, folder_of("qwen3"), adapter=str(wider))


def test_adapters_that_cannot_be_merged_rightly_are_refused(folder_of, tmp_path):
    adapter = save_adapter(tmp_path / "a", random_hf("qwen3"), "somewhere")
    for wanted in sizes.QUANTIZED:
        assert "second time" in refusal(ParameterError, folder_of("qwen3"), precision=wanted, adapter=str(adapter))
    assert "offloaded" in refusal(ParameterError, folder_of("qwen3"), offload=str(tmp_path), adapter=str(adapter))
    with pytest.raises(ModelNotFound, match="--adapter"):
        ModelRef.parse(str(adapter))
    (adapter / weights.ADAPTER_WEIGHTS).rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelNotFound, match="pickled"):
        ModelRef.parse(str(folder_of("qwen3")), adapter=str(adapter))
    for more, told in (
        ({"target_parameters": ["mlp.down_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
    ):
        (adapter / weights.ADAPTER_CONFIG).write_text(json.dumps({"peft_type": "LORA", **more}))
        with pytest.raises(ParameterError, match=told):
            weights.adapter_config(adapter)
    (adapter / weights.ADAPTER_CONFIG).write_text(json.dumps({"peft_type": "PREFIX_TUNING"}))
    with pytest.raises(ParameterError, match="PREFIX_TUNING"):
        ModelRef.parse(str(folder_of("qwen3")), adapter=str(adapter))


SWEEPS = (LogitLens, LayerSkip, IntegratedGradients)  # reading, editing, going back: what probes do with a block


@pytest.mark.parametrize(
    "family, probes",
    [
        pytest.param("qwen3", [probe for probe in PROBES if not probe.needs_passes], marks=pytest.mark.process),
        ("gpt2", SWEEPS),
        ("ouro", (*SWEEPS, Loops)),
    ],
    ids=["qwen3", "gpt2", "ouro"],
)
def test_probes_on_a_model_offloaded_to_disk_equal_those_of_the_plain_model(
    folder_of, tmp_path, monkeypatch, family, probes
):
    folder = folder_of(family)
    plain = opened(folder)
    free = int(0.6 * plain.bytes / ROOM)  # more than half stays in memory, the rest goes to disk
    for module in (estimate, devices):
        monkeypatch.setattr(module, "free_memory", lambda: free)
    spread = opened(folder, offload=str(tmp_path / "offload"))
    places = set(spread.hf.hf_device_map.values())
    assert places == {"cpu", "disk"} and 0 < spread.bytes < plain.bytes
    assert verify(spread).failures() == []
    for kind in probes:
        ours, theirs = (run(model, asked(kind).request(model.spec, PROMPT)) for model in (spread, plain))
        for name in ours.measures:
            # weights mapped from a file lie at other addresses, and products of a few rows round by alignment: a step
            # or two of float32, and of patching a difference of two logits over their gap
            atol = 1e-6 if kind is Patching else 1e-8
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=atol, err_msg=f"{kind.name}.{name}")
    assert spread.spec.identity() == plain.spec.identity(), "where the weights lie changes no number"


def test_what_fits_nowhere_is_refused_with_what_would(folder_of, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda: 50_000)
    message = refusal(TooLarge, folder_of("qwen3"))
    assert "free on cpu" in message and "estimate" in message and "--offload" in message
    assert "cannot be offloaded" in refusal(TooLarge, folder_of("qwen3"), precision="4bit", offload=str(tmp_path))
