"""Every reader of something from outside: what it reads when all is well, and the function that reads it."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
from safetensors.numpy import save_file

from ed_core.cards import card
from ed_core.cases import backup, bundle
from ed_core.cases.kept import UNREADABLE, Kept, checked
from ed_core.claims import running as claims
from ed_core.errors import BrokenWeights, CaseError, ImportRefused, ParameterError
from ed_core.fits import file as lens
from ed_core.fits import measured, shards
from ed_core.models import conversion
from ed_core.notebook.bridges import read_lm_eval
from ed_core.probes import PROBES
from ed_core.prompts import parse_jsonl, read_jsonl, to_jsonl
from ed_core.results import wire
from ed_core.runs import launch
from ed_core.service import estimate
from ed_core.sharing import card_shelf, site
from ed_core.sources import gguf_files, sizes, specs, tokens, weights
from ed_core.sources.bundled import FITS, MODELS
from ed_core.studies import bundle as study_bundle
from ed_core.studies import items as study_folder
from ed_core.studies import leaderboard, sets, study
from ed_core.training.callback import rows
from ed_core.types import ModelSpec, Prompt
from ed_ui import inputs, link, prompt_set, study_panels, two_sides
from ed_ui import studies as ui_studies
from ed_ui.inputs import Input

BEFORE = Path(__file__).parent.parent / "data" / "before" / "files"
DEMO = MODELS["ed-demo-8"]
STUDY = FITS.parent / "studies" / "toys"
CARDS = FITS.parent / "cards"


@dataclass(frozen=True)
class Reader:
    """`make(folder)`: the path of a good file in a folder of its own; `read(file)`: what reads it. `kind`: how hostile
    ones are made of it: "json", "zip", "header" (safetensors), "text", "bytes"."""

    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    kind: str


def _written(name: str, text: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder / name

    return make


def _copied(source: Path) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copy(source, folder / source.name))


def _of_model(name: str, more: str = "") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for file in DEMO.iterdir():
            shutil.copy(file, folder / file.name)
        if more:
            (folder / name).write_text(more)
        return folder / name

    return make


def _of_chat(name: str) -> Callable[[Path], Path]:
    """A model's file beside a chat template."""

    def make(folder: Path) -> Path:
        _of_model("chat_template.jinja", CHAT)(folder)
        return folder / name

    return make


def adapter(folder: Path) -> Path:
    config = json.loads((DEMO / "config.json").read_text())
    wide, rank = config["hidden_size"], 2
    path = "base_model.model.model.layers.0.mlp.gate_proj"
    save_file(
        {
            f"{path}.lora_A.weight": np.zeros((rank, wide), np.float32),
            f"{path}.lora_B.weight": np.zeros((config["intermediate_size"], rank), np.float32),
        },
        folder / weights.ADAPTER_WEIGHTS,
    )
    told = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 4,
        "target_modules": ["gate_proj"],
        "task_type": "CAUSAL_LM",
        "rank_pattern": {},
        "alpha_pattern": {},
        "base_model_name_or_path": None,
    }
    (folder / weights.ADAPTER_CONFIG).write_text(json.dumps(told))
    return folder / weights.ADAPTER_CONFIG


def gguf(folder: Path) -> Path:
    """A small file of llama's fields, written here; `one_tensor` gives its bytes."""
    fields = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.vocab_size": 64,
    }
    (folder / "m.gguf").write_bytes(one_tensor(fields))
    return folder / "m.gguf"


def one_tensor(fields: dict[str, str | int]) -> bytes:
    """A GGUF file with these fields and one tensor of 32 zeros."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields))
    for key, value in fields.items():
        out += text(key) + (
            struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<II", 4, value)
        )
    out += text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    return out + bytes(-len(out) % 32) + bytes(128)


def _gguf(file: Path) -> None:
    header = gguf_files.read(file)
    if held := gguf_files.held(file):
        conversion._require_room(held, header)


def _lens(file: Path) -> None:
    """By its path, by its name, and beside others in the cache, where no page may fail for it."""
    place = lens.folder()
    place.mkdir(parents=True, exist_ok=True)
    if file.is_file():
        shutil.copy(file, place / "own.safetensors")
    spec = ModelSpec("ed-demo-8", content_hash=specs.content_of(specs.named("ed-demo-8")))
    assert lens.of_model(spec), "the bundled ones are there still"
    read = lens.read(file)
    str(read.told), read.content


def _claims(file: Path) -> None:
    claims.read(file.parent)


def _added(file: Path) -> None:
    about = {
        "kind": "affine",
        "model": {"name": "m", "precision": "fp32", "identity": {"content_hash": "1"}},
        "prompts": {"n": 5, "digest": "d"},
    }
    np.asarray(shards.Added([file], about, 5)["0.xx"])


def _result(file: Path) -> None:
    try:
        wire.unpack(file.read_bytes() if file.is_file() else b"")
    except ValueError as error:  # which the store makes a sentence of
        raise ImportRefused(" ".join(str(error).split()) or "nothing") from None


def _config(file: Path) -> None:
    spec = ModelSpec(str(file.parent))
    specs.describe(spec), specs.n_layers(spec), tokens.too_long(spec, 5), specs.content_of(spec)
    sizes.read(specs.config_of(spec)).weight_bytes("4bit")


def _tokenizer(file: Path) -> None:
    spec = ModelSpec(str(file.parent))
    for prompt in (Prompt("12 + 30 = ", "42"), Prompt("a" * 5000)):
        tokens.preview(spec, prompt)
    tokens.special(spec), tokens.added(spec), tokens.ids(spec, "a"), tokens.special_roles(spec), tokens.chats(spec)


def _verified(file: Path) -> None:
    """The model opened, and a prompt through its chat template."""
    from ed_core.models.opening import open_model
    from ed_core.service.resolve import resolve

    model = open_model(resolve(str(file.parent)))
    model.encode(Prompt("12 + 30", template="chat"))


def _chatted(file: Path) -> None:
    """A prompt through the model's chat template, which its sums have nothing to do with."""
    from ed_core.models.opening import load_model
    from ed_core.service.resolve import resolve

    load_model(resolve(str(file.parent))).encode(Prompt("12 + 30", template="chat"))


def _merged(file: Path) -> None:
    from ed_core.models.opening import open_model
    from ed_core.service.resolve import resolve

    weights.adapter_hash(file.parent)
    open_model(resolve("ed-demo-8", adapter=str(file.parent)))


def _settings(file: Path) -> None:
    from ed_core import settings

    os.environ["ED_CONFIG"] = str(file)
    settings.current()


def _study(file: Path) -> None:
    found = study.read(file)
    study.parse(study.write(found))


def _set(file: Path) -> None:
    sets.load(study.SetEntry(name="s", file=file.name), file.parent, "ed-demo-8")


def _table(**columns: str) -> Callable[[Path], None]:
    """A prompt set of a table, as a study asks for it."""

    def read(file: Path) -> None:
        entry = study.SetEntry(name="s", file=file.name, columns=study.Columns(**columns) if columns else None)
        sets.load(entry, file.parent, "ed-demo-8")

    return read


def _parquet(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    rows = {"text": ["12 + 30 = ", "2 + 3 = "], "answer": ["42", "5"], "level": [1, 2], "more": [["a", "b"], None]}
    parquet.write_table(pyarrow.table(rows), folder / "t.parquet")
    return folder / "t.parquet"


def _nested(folder: Path) -> Path:
    """Columns in columns, as a published set has them."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        {"questions": ["a?", "b?"], "answer": "c", "orig": {"triples": [["x", "y"], ["u", "v"]]}},
        {"questions": ["d?"], "answer": "e", "orig": {"triples": [["x", "y"]]}},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows * 20), folder / "n.parquet")
    return folder / "n.parquet"


def _formatted(file: Path) -> None:
    sets.load(study.SetEntry(name="s", file=file.name, format="mquake"), file.parent, "ed-demo-8")


def _pasted(file: Path) -> None:
    """As the box of a page takes lines, and the command line after it."""
    found = parse_jsonl(prompt_set.uploaded(_bytes(file)), "The list")
    assert parse_jsonl(to_jsonl(found), "again") == found


def _uploaded_study(file: Path) -> None:
    os.environ["ED_CACHE"] = str(file.parent / "cache")
    name = ui_studies.take_in(_bytes(file))
    out = ui_studies.known()[name]
    assert out.parent == file.parent / "cache" / "studies"
    ui_studies.read(out)


def links() -> dict[str, list[Input]]:
    """What a link may carry, by name: of every page, of every probe."""
    shared = [one for one in vars(inputs).values() if isinstance(one, Input)]
    of_pages = [*prompt_set.parameters(), *study_panels.LINKED, *two_sides.COMMON]
    of_probes = [one for probe in PROBES for one in inputs.of_probe(probe)]
    found: dict[str, list[Input]] = {}
    for one in (
        *link.OF_A_RUN,
        *link.BESIDE_IT,
        *shared,
        *of_pages,
        *of_probes,
        inputs.span("tokens", "w"),
    ):
        found.setdefault(one.name, []).append(one)
    return found


def _link(file: Path) -> None:
    """A query string, as the pages read it: a value that is taken is one that a link can carry again."""
    known = links()
    for name, value in parse_qsl(_bytes(file).decode(errors="replace"), keep_blank_values=True):
        for one in known.get(name, ()):
            try:
                found = one.read(value)
            except ParameterError as error:
                assert str(error).strip() and len(str(error)) < 1000 and str(error).isprintable(), error
                continue
            assert one.read(one.write(found)) == found, (name, value)


def _folder(file: Path) -> None:
    from ed_core.studies import report

    opened = study_folder.open_folder(file.parent)
    opened.progress()
    report.write(file.parent)


def _studied(folder: Path) -> Path:
    """The plan of a small study."""
    study_bundle.unpack(BEFORE / "before.edstudy", folder / "study")
    return folder / "study" / "plan.json"


def _item(folder: Path) -> Path:
    """Its first item."""
    return sorted(_studied(folder).parent.glob("items/*/*.parquet"))[0]


def _sums(file: Path) -> None:
    """As a page reads a study, and as another installation takes it in."""
    out = file.parents[2]
    opened = study_folder.open_folder(out)
    for label in opened.models:
        for name in opened.sets:
            opened.sums(label, name)
    _folder(out / "plan.json")


def _owner(file: Path) -> None:
    kept = Kept(file.parents[1], shipped=None)
    found = kept.owner(file.stem)
    assert found in ("", UNREADABLE) or checked(found)
    backup.write(kept, file.parents[1] / "b.zip"), backup.check(kept)


def _kept(file: Path) -> None:
    kept = Kept(file.parents[1], shipped=None)
    kept.cards(), kept.problems, backup.check(kept), kept.damaged()
    try:
        kept.open(file.stem)
    except CaseError as error:
        raise ImportRefused(str(error)) from None


def _of_case(name: str, text: str = "") -> Callable[[Path], Path]:
    """A case study that is kept, or something beside it."""

    def make(folder: Path) -> Path:
        (folder / "kept").mkdir()
        case = Path(shutil.copy(BEFORE / "beforebefo.edcase", folder / "kept"))
        file = case.with_name(name)
        if text:
            file.write_text(text)
        return file

    return make


def _rates(file: Path) -> None:
    """Read, estimated with, and added to."""
    os.environ["ED_CACHE"] = str(file.parent)
    assert estimate.rates_file() == file
    for kind in ("cpu", "cuda"):
        rates, _ = estimate.load_rates(kind)
        assert all(0 <= value < 1 for of_one in rates.values() for value in of_one)
    estimate.report("ed-demo-8", specs.size_of("ed-demo-8"), "auto")
    estimate.save_rates("mps", estimate.DEFAULT_RATES["cpu"])
    assert estimate.load_rates("mps")[1]


def _run(file: Path) -> None:
    found = launch.Run(file.parent)
    str(found.status), found.running, found.waiting


def _site(file: Path) -> None:
    site._published(file.parent)


def _index(folder: Path) -> Path:
    _of_model("config.json")(folder)
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "model.safetensors"}}))
    return file


def _weights(file: Path) -> None:
    specs.content_hash(file.parent)
    weights.check_complete(file.parent, "m")
    for one in file.parent.glob("*.safetensors"):
        weights.header(one)


def _shelf(folder: Path) -> Path:
    card_shelf.push(str(folder / "shelf"), [CARDS / "ed-demo-8.json"])
    return folder / "shelf" / card_shelf.INDEX


def _pulled(file: Path) -> None:
    found = card_shelf.pull(str(file.parent))
    assert all(file.is_file() for file in found.files) and all(map(str.isprintable, found.refused))


ASKED = {"gen_args_0": {"arg_0": "2 + 2 =", "arg_1": {}}}
SAMPLE = json.dumps({"doc_id": 0, "target": " 4", "metrics": ["acc"], "acc": 1.0, "arguments": ASKED})
OWN = "model,layers,params_b,average,family\na/b,12,1.5,20,a\nc/d,24,3,30,\n"
ROWS = "step,measure,layer,value\n1,loss,,2.5\n1,kl,0,0.5\n"
LINES = '{"text": "12 + 30 = ", "answer": "42", "id": "a"}\n{"text": "2 + 3 = ", "answer": "5", "template": "raw"}\n'
TOML = """name = "s"
models = ["ed-demo-8", {source = "ed-demo-16", label = "big"}]
probes = ["contributions", {name = "logit_lens", k = 3}]
chunk = 4
[[sets]]
name = "a"
bundled = "mixed"
limit = 4
"""
QUERY = (
    "model=ed-demo-8&precision=fp32&adapter=&revision=main&device=cpu&template=chat&special_tokens=false&token=5&"
    "control=shuffled&control_seed=3&branch=attn&shade=kl&kl=0.25&overlap=0.6&first_token=false&tokens=3-20&g=0.4&"
    "prompts=bundled&tasks=copy,lookup&difficulties=1,2&n_prompts=3&mode=future&part=mlp&boundaries=4,8&nodes=33&n=2&"
    "kind=drop&order=0-2,4&longest=2&value=kl&length=2&n_tokens=5&temperature=0.5&measure=attn_cos&lens=logit&x=y"
)
LAB = 'max_tokens = 128\nmodels = ["ed-demo-*"]\ncache_limit = "2G"\ntitle = "Lab"\n'
CSV = 'text,answer,level\n"12 + 30 = ",42,1\n"2 + 3 = ",5,2\n'
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
OWNER = "ann@example.org"
RATES = json.dumps({"cpu": {name: [1e-9, 1e-10] for name in estimate.DEFAULT_RATES["cpu"]}})
READERS = {
    "prompts": Reader(_written("p.jsonl", LINES), read_jsonl, "json"),
    "set": Reader(_written("s.jsonl", LINES), _set, "json"),
    "pasted prompts": Reader(_written("p.jsonl", LINES), _pasted, "json"),
    "CSV set": Reader(_written("t.csv", CSV), _table(text="text", answer="answer", level="level"), "text"),
    "JSON set": Reader(_written("t.json", LINES), _table(text="text", answer="answer"), "json"),
    "parquet set": Reader(_parquet, _table(text="text", answer="answer", level="level"), "bytes"),
    "nested parquet set": Reader(_nested, _formatted, "bytes"),
    "link": Reader(_written("query.txt", QUERY), _link, "text"),
    "uploaded maps": Reader(_copied(BEFORE / "maps.npz"), lambda f: measured.unpacked(_bytes(f), f.name), "zip"),
    "uploaded study": Reader(_copied(BEFORE / "before.edstudy"), _uploaded_study, "zip"),
    "study": Reader(_written("s.toml", TOML), _study, "text"),
    "settings": Reader(_written("lab.toml", LAB), _settings, "text"),
    "card": Reader(_copied(BEFORE / "card.json"), card.read, "json"),
    "claims": Reader(_copied(BEFORE / "claims.json"), _claims, "json"),
    "case": Reader(_copied(BEFORE / "beforebefo.edcase"), lambda f: Kept(f.parent / "k").take_in(_bytes(f)), "zip"),
    "backup": Reader(_copied(BEFORE / "cases.zip"), lambda f: backup.restore(Kept(f.parent / "k"), f), "zip"),
    "edstudy": Reader(_copied(BEFORE / "before.edstudy"), lambda f: study_bundle.unpack(f, f.parent / "out"), "zip"),
    "lens": Reader(_copied(FITS / "ed-demo-8-jacobian.safetensors"), _lens, "header"),
    "maps": Reader(_copied(BEFORE / "maps.npz"), measured.read, "zip"),
    "replacement": Reader(_copied(BEFORE / "replacement.npz"), measured.read, "zip"),
    "shard": Reader(_copied(BEFORE / "0.sums"), _added, "zip"),
    "result": Reader(_copied(BEFORE / "result.npz"), _result, "zip"),
    "adapter": Reader(adapter, lambda f: weights.adapter_hash(f.parent), "json"),
    "config": Reader(_of_model("config.json"), _config, "json"),
    "tokenizer": Reader(_of_model("tokenizer.json"), _tokenizer, "json"),
    "tokenizer settings": Reader(_of_model("tokenizer_config.json"), _tokenizer, "json"),
    "index": Reader(_index, _weights, "json"),
    "weights": Reader(_of_model("model.safetensors"), _weights, "header"),
    "gguf": Reader(gguf, _gguf, "bytes"),
    "study's folder": Reader(_studied, _folder, "json"),
    "study's item": Reader(_item, _sums, "bytes"),
    "owner": Reader(_of_case("beforebefo.owner", OWNER + "\n"), _owner, "text"),
    "kept case": Reader(_of_case("beforebefo.edcase"), _kept, "zip"),
    "rates": Reader(_written("rates.json", RATES), _rates, "json"),
    "run": Reader(_written("run.json", '{"spec": {}, "pid": 1, "created": 1.0}'), _run, "json"),
    "status": Reader(
        _written("status.jsonl", '{"state": "running", "share": 0.5, "what": "x", "time": 1.0}\n'), _run, "json"
    ),
    "shelf": Reader(_shelf, _pulled, "json"),
    "models of one's own": Reader(_written("own.csv", OWN), leaderboard.also, "text"),
    "samples": Reader(_written("samples.jsonl", SAMPLE + "\n"), read_lm_eval, "json"),
    "training's rows": Reader(_written("rows.csv", ROWS), lambda f: rows(f.parent), "text"),
    "site": Reader(_written(site.MARKER, json.dumps({"format": site.FORMAT, "files": ["index.html"]})), _site, "json"),
}
SLOW = {  # a model is opened each time
    "opened config": Reader(_of_chat("config.json"), _verified, "json"),
    "opened tokenizer": Reader(_of_chat("tokenizer_config.json"), _verified, "json"),
    "chat template": Reader(_of_model("chat_template.jinja", CHAT), _chatted, "text"),
    "merged adapter": Reader(adapter, _merged, "json"),
}
READERS |= SLOW
HEAVY = {*SLOW}  # which need torch


def _bytes(file: Path) -> bytes:
    from ed_core import outside

    return outside.content(file, bundle.MAX_BYTES, ImportRefused)


def _endless(file: Path) -> None:
    while True:
        pass


def _written_over(file: Path) -> None:
    file.write_text("x")


BROKEN = {  # what the harness must tell from one another
    name: Reader(_written("x", "good"), read, "bytes")
    for name, read in {
        "nothing": lambda file: None,
        "fails": lambda file: {}["x"],
        "never ends": _endless,
        "writes": _written_over,
        "takes 200 MiB": lambda file: b"x" * (200 << 20),
        "takes 400 MiB": lambda file: b"x" * (400 << 20),
        "takes 3 GiB": lambda file: b"x" * (3 << 30),
    }.items()
}


__all__ = ["BROKEN", "HEAVY", "READERS", "SLOW", "BrokenWeights", "Reader", "adapter", "one_tensor"]
