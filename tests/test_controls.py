"""Controls: the untrained copy and the shuffled blocks, as command line and engine make them; against checkpoints put
together by hand."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from shell import refused, wrote
from small_models import byte_tokenizer, random_hf
from transformers import AutoConfig, AutoModelForCausalLM

from ed_core.errors import ParameterError
from ed_core.models import modules
from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.probes import Contributions
from ed_core.types import ModelSpec, Prompt, Request

# blocks that differ by kind (windows, mixers, experts, position schemes), and some that do not
VARIANTS = ("llama4", "qwen3_next", "gemma2", "gpt_neo", "deepseek_v2", "gpt2")
pytestmark = pytest.mark.usefixtures("own_cache")


def weights_of(model: LanguageModel) -> dict[str, torch.Tensor]:
    return dict(model.hf.state_dict())


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_an_untrained_twin_is_the_librarys_own_initialisation_and_follows_its_seed(small_folder):
    source = str(small_folder)
    twins_of = [open_model(ModelRef.parse(source, control="untrained", control_seed=seed)) for seed in (0, 0, 1)]
    first, again, other = map(weights_of, twins_of)
    assert same(first, again) and not same(first, other)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(ModelRef.parse(source).place)
    assert same(first, AutoModelForCausalLM.from_config(config, dtype=torch.float32).state_dict())
    trained = open_model(ModelRef.parse(source))
    assert twins_of[0].tokenizer.get_vocab() == trained.tokenizer.get_vocab()
    text = Prompt("5 + 7 = 12")
    assert twins_of[0].encode(text).ids == trained.encode(text).ids
    assert any("control" in note for note in twins_of[0].encode(text).notes) and not trained.encode(text).notes
    assert not twins_of[0].identities.failures()


def test_an_untrained_twin_needs_config_and_tokenizer_only(small_folder, tmp_path):
    bare = shutil.copytree(small_folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    specs = [ModelRef.parse(str(folder), control="untrained") for folder in (bare, small_folder)]
    assert specs[0].identity() == specs[1].identity(), "what was learned is no part of it"
    assert ModelRef.parse(str(small_folder)).twin("untrained").identity() == specs[0].identity()
    assert same(*(weights_of(open_model(spec)) for spec in specs))


def restacked(hf, order):
    """The same checkpoint with its blocks' weights under other numbers, loaded by the library into a fresh model."""
    fresh = type(hf)(hf.config).eval()
    state = hf.state_dict()
    (stem,) = find(hf.config.model_type).paths("blocks")
    moved = {name: tensor for name, tensor in state.items() if not name.startswith(f"{stem}.")}
    for place, source in enumerate(order):
        begins = f"{stem}.{source}."
        of_block = {name.removeprefix(begins): t for name, t in state.items() if name.startswith(begins)}
        moved |= {f"{stem}.{place}.{name}": t for name, t in of_block.items()}
    fresh.load_state_dict(moved)
    return fresh


@pytest.mark.parametrize("variant", VARIANTS)
def test_shuffled_blocks_are_what_a_checkpoint_in_that_order_would_be(variant):
    """Bitwise: so windows, mixers and scales stay with the place, and weights move."""
    hf = random_hf(variant)
    ids = torch.arange(24)[None] * 5 % 200
    with torch.no_grad():
        own = hf(input_ids=ids, use_cache=False).logits
        by_hand = lambda order: restacked(hf, order)(input_ids=ids, use_cache=False).logits
        assert torch.equal(by_hand(range(len(hf.get_submodule(find(hf.config.model_type).paths("blocks")[0])))), own)
        twin_of = type(hf)(hf.config).eval()
        twin_of.load_state_dict(hf.state_dict())
        order = modules.shuffle(twin_of, find(hf.config.model_type), seed=0)
        assert sorted(order) == list(range(len(order))) != list(order)
        shuffled = twin_of(input_ids=ids, use_cache=False).logits
        assert torch.equal(shuffled, by_hand(order)) and not torch.allclose(shuffled, own, atol=1e-3)
    checked = LanguageModel(twin_of, byte_tokenizer(), find(hf.config.model_type), ModelSpec("m", control="shuffled"))
    assert not verify(checked).failures() and checked.block_order == order


def test_only_blocks_of_one_kind_change_places():
    orders = {modules.permuted(list("abababcc"), seed) for seed in range(20)}
    assert len(orders) > 10
    assert all("".join("abababcc"[source] for source in order) == "abababcc" for order in orders)
    assert all(list(order) != list(range(8)) for order in orders)
    assert modules.permuted(["a", "a"], 3) == (1, 0)
    with pytest.raises(ParameterError, match="no two are of one kind"):
        modules.permuted(["a", "b"], 0)


def test_shuffled_blocks_of_a_folder_follow_their_seed_and_keep_every_weight(small_folder):
    opened = [
        open_model(ModelRef.parse(str(small_folder), control="shuffled", control_seed=seed)) for seed in (0, 0, 1)
    ]
    assert opened[0].block_order == opened[1].block_order != opened[2].block_order
    assert same(weights_of(opened[0]), weights_of(opened[1])) and not same(weights_of(opened[0]), weights_of(opened[2]))
    own = open_model(ModelRef.parse(str(small_folder)))
    for place, source in enumerate(opened[0].block_order):
        assert same(opened[0].blocks[place].state_dict(), own.blocks[source].state_dict())


def test_a_control_is_part_of_the_identity(small_folder):
    spec, prompt = ModelRef.parse(str(small_folder)), Prompt("5 + 7 = ")
    keys = {
        Contributions().request(spec.twin(kind, seed), prompt).key
        for kind in ("untrained", "shuffled")
        for seed in (0, 1)
    }
    assert len(keys | {Contributions().request(spec, prompt).key}) == 5
    request = Contributions().request(spec.twin("shuffled", 3), prompt)
    assert Request.from_json(json.loads(json.dumps(request.to_json()))).key == request.key
    assert spec.twin("") == spec


def test_a_control_run_writes_the_same_keys_and_says_whose_they_are(small_folder, tmp_path):
    files, prompts = {}, [Prompt("5 + 7 + 5 = ", "17"), Prompt("a=3; b=a; b?")]
    for kind in ("", "untrained", "shuffled"):
        more = ["--control", kind, "--seed", "5"] if kind else []
        files[kind] = wrote(tmp_path, prompts, "contributions", "logit_lens", *more, model=small_folder)
    assert files[""].keys() == files["untrained"].keys() == files["shuffled"].keys()
    assert np.array_equal(files[""]["tokens.0"], files["untrained"]["tokens.0"])
    curves = [f["contributions.layer_cos"] for f in files.values()]
    assert not any(
        np.allclose(a, b, atol=1e-3)
        for a, b in ((curves[0], curves[1]), (curves[0], curves[2]), (curves[1], curves[2]))
    )
    for kind in ("untrained", "shuffled"):
        run = json.loads(str(files[kind]["provenance"]))["runs"][0]
        assert (run["model"]["control"], run["model"]["control_seed"]) == (kind, 5)
        assert (run["block_order"] is not None) == (kind == "shuffled")


@pytest.mark.parametrize(
    "more, words",
    [
        (("--control", "foo"), "expected untrained or shuffled"),
        (("--control", "untrained", "--seed", "-1"), "--seed"),
        (("--control", "untrained", "--precision", "int8"), "open it in bf16 or fp32"),
        (("--control", "untrained", "--offload", "x"), "cannot be offloaded"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(more, words, small_folder, capsys):
    refused(capsys, ["verify", small_folder, *more], words)
