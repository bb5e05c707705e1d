"""The command line: what it writes, and that everything refused is one sentence and exit code 2."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import struct
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
from shell import arrays, refused, wrote

from ed_core.cards import making
from ed_core.cases.snippet import run_command
from ed_core.claims import running as claims
from ed_core.commands import FAMILIES, _settings, main, parser
from ed_core.commands.models import opened_as
from ed_core.probes import find
from ed_core.probes.contributions import Contributions
from ed_core.probes.layer_skip import LayerSkip
from ed_core.probes.lenses import LogitLens
from ed_core.runs.run import AuditRun, CardRun, ClaimsRun, FitRun, Opened
from ed_core.service.resolve import resolve
from ed_core.types import Prompt, command_line

PROMPTS = [
    {"id": "sum", "text": "5 + 7 + 5 + 3 + 1 + 7 = ", "answer": "28"},
    {"text": "The spouse of the performer of Imagine is", "answer": " Yoko Ono"},
    {"text": "a=3; b=a; c=b; c?"},
]
L = 5
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, PROMPTS)), encoding="utf-8")
    return file


PROBES = ("contributions", "logit_lens", "layer_skip")


def asked(folder, prompts, out, *more, probes=PROBES) -> list[str]:
    return ["run", *probes, "--model", str(folder), "--prompts", str(prompts), "--out", str(out), *more]


def run(*given) -> int:
    return main(asked(*given))


def test_run_writes_every_key_with_its_dims(small_folder, prompts, tmp_path):
    out = tmp_path / "r.npz"
    assert run(small_folder, prompts, out) == 0
    data = arrays(out)
    for i, prompt in enumerate(PROMPTS):
        n = len((prompt["text"] + prompt.get("answer", "")).encode())
        assert data[f"tokens.{i}"].shape == (n,)
        for name in (
            "attn_ratio",
            "mlp_ratio",
            "layer_ratio",
            "attn_cos",
            "mlp_cos",
            "layer_cos",
            "io_cos",
            "block_influence",
            "attn_norm",
            "mlp_norm",
        ):
            assert data[f"contributions.{name}.{i}"].shape == (L, n), name
        assert data[f"contributions.resid_norm.{i}"].shape == (L + 1, n)
        for name in ("kl", "jsd", "entropy", "overlap", "top1_match", "rank"):
            assert data[f"logit_lens.{name}.{i}"].shape == (L + 1, n), name
        assert data[f"logit_lens.top_ids.{i}"].shape == data[f"logit_lens.top_probs.{i}"].shape == (L + 1, n, 5)
        assert data[f"logit_lens.top_ids.{i}"].dtype == data[f"logit_lens.rank.{i}"].dtype == np.int32
        assert data[f"logit_lens.settle_depth.{i}"].shape == (n,)
        assert data[f"layer_skip.effect.{i}"].shape == (L, L)
        assert (
            data[f"layer_skip.output.{i}"].shape
            == data[f"layer_skip.top1_kept.{i}"].shape
            == data[f"layer_skip.noise_floor.{i}"].shape
            == (L,)
        )
        assert data[f"layer_skip.output_pos.{i}"].shape == (L, n)
    assert data["answer_start.0"] == len(PROMPTS[0]["text"]) and data["answer_start.2"] == -1
    for name in ("contributions.layer_cos", "layer_skip.output", "layer_skip.output_mean", "layer_skip.top1_kept"):
        assert data[name].shape == (L,), name
    assert (
        data["logit_lens.kl"].shape
        == data["logit_lens.mrr"].shape
        == data["contributions.resid_norm"].shape
        == (L + 1,)
    )
    assert (
        data["logit_lens.settle_depth"].shape
        == data["logit_lens.deep_thinking_ratio"].shape
        == data["n_tokens"].shape
        == ()
    )
    assert data["layer_skip.effect"].shape == data["layer_skip.effect_mean"].shape == (L, L)
    for criterion in ("cosine", "kl", "overlap"):
        for suffix in ("", "_ratio", "_stable", "_low", "_high"):
            assert data[f"effective_depth.{criterion}{suffix}"].shape == ()
        assert data[f"effective_depth.{criterion}_without_sinks"].shape == ()
    assert data["effective_depth.kl_from_depth_1"].shape == () and data["sinks.share_resid_norm"].shape == (L + 1,)
    certificates = json.loads(str(data["provenance"]))["runs"]
    assert len(certificates) == 9
    assert {"model", "prompt", "libraries", "identities", "time", "seconds", "probe", "run"} <= set(certificates[0])
    floats = [name for name, values in data.items() if values.dtype.kind == "f"]
    assert all(data[name].dtype == np.float32 for name in floats)


def test_the_causal_probes_write_every_key_with_its_dims(small_folder, tmp_path):
    """Future mode with direct effects, erasure and gradients: per prompt, their aggregates, and nothing padded."""
    texts = [("5 + 7 = ", "12"), ("1 + 2 + 3 = ", "6")]
    probes = ["layer_skip", "residual_erasure", "integrated_gradients"]
    settings = [
        "layer_skip.mode=future",
        "layer_skip.boundaries=3,7",
        "layer_skip.direct=true",
        "integrated_gradients.nodes=3",
    ]
    prompts = [Prompt(*one) for one in texts]
    data = wrote(tmp_path, prompts, *probes, "--memory", "64M", given=settings, model=small_folder)
    for i, (text, answer) in enumerate(texts):
        n = len(text + answer)
        expected = {
            "layer_skip.effect": (L, L),
            "layer_skip.effect_direct": (L, L),
            "layer_skip.output": (L,),
            "layer_skip.top1_kept": (L,),
            "layer_skip.noise_floor": (L,),
            "layer_skip.boundaries": (2,),
            "layer_skip.effect_by_boundary": (2, L, L),
            "layer_skip.output_by_boundary": (2, L),
            "residual_erasure.effect": (L + 1, n),
            "integrated_gradients.attribution": (L, n),
            "integrated_gradients.completeness_error": (L,),
            "integrated_gradients.f_x": (L,),
            "integrated_gradients.f_baseline": (L,),
            "integrated_gradients.nodes_used": (L,),
        }
        assert {name: data[f"{name}.{i}"].shape for name in expected} == expected
        assert data[f"layer_skip.boundaries.{i}"].dtype == np.int32 and f"layer_skip.output_pos.{i}" not in data
    aggregates = {
        "layer_skip.effect": (L, L),
        "layer_skip.effect_direct": (L, L),
        "layer_skip.output": (L,),
        "residual_erasure.effect": (L + 1,),
        "integrated_gradients.attribution": (L,),
    }
    for name, shape in aggregates.items():
        assert data[name].shape == data[f"{name}_mean"].shape == shape, name
    assert data["layer_skip.top1_kept"].shape == (L,)
    assert {c["memory"]["budget_bytes"] for c in json.loads(str(data["provenance"]))["runs"]} == {64 << 20}


def test_a_second_run_reads_the_store_and_gives_the_same_arrays(small_folder, prompts, tmp_path, capsys):
    assert run(small_folder, prompts, tmp_path / "a.npz") == 0
    assert run(small_folder, prompts, tmp_path / "b.npz") == 0
    assert "0 computed, 9 from the store" in capsys.readouterr().out
    (tmp_path / "one.jsonl").write_text(json.dumps(PROMPTS[0]))
    assert main(asked(small_folder, tmp_path / "one.jsonl", tmp_path / "c.npz", probes=PROBES[:1])) == 0
    assert ": 1 probe on 1 prompt, 0 computed, 1 from the store\n" in capsys.readouterr().out
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert a.files == b.files
        for name in a.files:
            assert a[name].tobytes() == b[name].tobytes(), name


def test_settings_reach_every_field(small_folder, prompts, tmp_path):
    given = ("mode=future", "boundaries=8,12", "part=attention", "direct=true")
    sets = [word for one in given for word in ("--set", f"layer_skip.{one}")] + ["--set", "logit_lens.k=3"]
    assert run(small_folder, prompts, tmp_path / "r.npz", *sets) == 0
    with np.load(tmp_path / "r.npz") as data:
        assert data["layer_skip.boundaries.0"].tolist() == [8, 12]
        assert data["layer_skip.effect_by_boundary.0"].shape == (2, L, L)
        assert data["layer_skip.output_by_boundary.0"].shape == (2, L)
        assert (
            data["layer_skip.effect_direct.0"].shape
            == data["layer_skip.effect_direct"].shape
            == data["layer_skip.effect_direct_mean"].shape
            == (L, L)
        )
        assert data["logit_lens.top_ids.0"].shape[-1] == 3
        assert "layer_skip.output_pos.0" not in data.files


def test_overwriting_a_folders_weights_gives_new_keys(small_folder, tmp_path):
    folder = shutil.copytree(small_folder, tmp_path / "m")
    before = resolve(str(folder))
    assert resolve(str(shutil.copytree(folder, tmp_path / "copy"))).identity() == before.identity(), (
        "the path is no part of it"
    )
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert resolve(str(folder)).identity() != before.identity()


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"text": ""}', ["line 1", "empty"]),
        ('{"text": "  \\n "}', ["line 1", "empty"]),
        ('{"text": "a\\ud800b"}', ["line 1", "surrogate", "Character 1"]),
        ('{"text": "a\\u0007b"}', ["line 1", "control character", "U+0007"]),
        ('{"text": 3}', ["line 1", "text"]),
        ('["text"]', ["line 1", "object"]),
        ('{"text": "a"', ["line 1", "not JSON"]),
        ("[" * 100_000, ["line 1", "not JSON", "nested too deeply"]),
        (f'{{"text": {"9" * 5000}}}', ["line 1", "not JSON", "4300 digits"]),
        ('{"text": "ab", "answer": 5}', ["line 1", "answer"]),
        ("", ["no prompts"]),
        ('{"text": "5"}', ["at least 2"]),
        (json.dumps({"text": "x" * 600}), ["600", "512 positions"]),
    ],
)
def test_a_bad_prompt_refuses_the_whole_run(small_folder, tmp_path, capsys, line, words):
    file = tmp_path / "bad.jsonl"
    file.write_text(line + "\n", encoding="utf-8")
    refused(capsys, asked(small_folder, file, tmp_path / "r.npz"), *words)
    assert not (tmp_path / "r.npz").exists()


def test_the_limit_is_configurable(small_folder, prompts, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ED_MAX_TOKENS", "10")
    refused(capsys, asked(small_folder, prompts, tmp_path / "r.npz"), "26 tokens", "limit is 10", "ED_MAX_TOKENS")
    monkeypatch.setenv("ED_MAX_TOKENS", "2048")
    prompts.write_text(json.dumps({"text": "x" * 600}), encoding="utf-8")
    refused(capsys, asked(small_folder, prompts, tmp_path / "r.npz"), "600 tokens", "the model has 512 positions")


@pytest.mark.parametrize(
    "more, words",
    [
        (["--set", "layer_skip.mode=sideways"], ["layer_skip.mode", "current, future"]),
        (["--set", "layer_skip.speed=9"], ["no parameter 'speed'", "mode"]),
        (["--set", "logit_lens.k=many"], ["logit_lens.k", "whole number"]),
        (["--set", "logit_lens.k=0"], ["logit_lens.k", "1 to 50"]),
        (["--set", "logit_lens.g=nan"], ["logit_lens.g"]),
        (["--set", "layer_skip.mode=future", "--set", "layer_skip.boundaries=1"], ["boundaries", "2 and"]),
        (["--set", "layer_skip.boundaries=8"], ["layer_skip.boundaries counts with layer_skip.mode=future alone"]),
        (["--set", "layer_skip.boundaries=a,b"], ["layer_skip.boundaries", "auto"]),
        (["--set", "contributions.first_token=perhaps"], ["true or false"]),
        (["--set", "logit_lens.k=3", "--set", "logit_lens.k=4"], ["logit_lens.k as '3' and as '4'", "give it once"]),
        (["--set", "nonsense"], ["PROBE.PARAMETER=VALUE"]),
        (["--set", "residual.k=3"], ["residual", "not among"]),
        (["--dtype", "float8"], ["float8", "float32"]),
        (["--adapter", ""], ["--adapter is empty; give its value, or leave it out."]),
        (["--out", "r.csv"], ["--out is r.csv; expected a file that ends in .npz."]),
    ],
)
def test_a_bad_parameter_names_what_exists(small_folder, prompts, tmp_path, capsys, more, words):
    refused(capsys, asked(small_folder, prompts, tmp_path / "r.npz", *more), *words)


def test_an_unknown_probe_and_missing_folders(small_folder, prompts, tmp_path, capsys):
    unknown = asked(small_folder, prompts, tmp_path / "r.npz", probes=("attention",))
    refused(capsys, unknown, "no probe 'attention'", "contributions")
    refused(capsys, asked(small_folder, tmp_path / "none.jsonl", tmp_path / "r.npz"), "no prompts file")
    refused(capsys, asked(small_folder, prompts, tmp_path / "no" / "r.npz"), "does not exist")
    refused(capsys, asked(tmp_path / "no model", prompts, tmp_path / "r.npz"), "no folder")


def test_a_hub_id_without_a_network_is_refused_at_once(prompts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", None)
    refused(capsys, asked("some-org/some-model", prompts, tmp_path / "r.npz"), "some-org/some-model", "bundled")


def broken(folder, tmp_path, change):
    copy = shutil.copytree(folder, tmp_path / "broken")
    change(copy)
    return copy


def _truncate(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def _cut_header(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{")


def _pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _edit_config(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def _nan_weights(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.mlp.down_proj.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda f: (f / "config.json").unlink(), ["config.json"]),
        (lambda f: (f / "config.json").write_text("{"), ["config.json"]),
        (lambda f: (f / "model.safetensors").unlink(), ["no weights", "safetensors"]),
        (_pickle_only, ["pytorch_model.bin", "run code", "safetensors"]),
        (_truncate, ["cannot be loaded", "again"]),
        (_cut_header, ["cannot be loaded"]),
        (_edit_config(num_hidden_layers=7, layer_types=["full_attention"] * 7), ["missing", "model.layers.5"]),
        (_edit_config(num_hidden_layers=7), ["config.json", "layer_types"]),
        (_edit_config(hidden_size=40), ["weights"]),
        (lambda f: (f / "config.json").write_text('{"model_type": "mamba"}'), ["mamba", "state-space"]),
        (_edit_config(model_type="who-knows"), ["family"]),
        (_nan_weights, ["NaN", "residual 3"]),
        (lambda f: (f / "tokenizer.json").write_text("{"), ["tokenizer"]),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_broken_model_is_refused_with_the_reason(small_folder, prompts, tmp_path, capsys, change, words):
    refused(capsys, asked(broken(small_folder, tmp_path, change), prompts, tmp_path / "r.npz"), *words)


def test_verify_prints_the_identities_and_its_exit_code_tells(small_folder, capsys):
    assert main(["verify", str(small_folder)]) == 0
    out = capsys.readouterr().out
    assert "accepted" in out and "closure" in out and out.count("1.000000") == 2 * L


def test_models_and_cache(small_folder, prompts, tmp_path, capsys):
    assert main(["models"]) == 0
    assert "ed-demo-16" in capsys.readouterr().out
    run(small_folder, prompts, tmp_path / "r.npz")
    assert main(["cache", "info"]) == 0
    told = capsys.readouterr().out
    assert "entries: 9" in told and "problems" not in told
    assert main(["cache", "clear"]) == 0
    assert "9 results removed" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["models"], ["settings"], ["case", "list"], ["--help"]])
def test_a_reader_who_leaves_is_no_error(command, monkeypatch, capfd):
    """As `| head` does: nothing is said, neither at once nor when Python writes out what is left."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert main(command) == 141
        out.write("something")
    assert capfd.readouterr().err == ""


def commands_of(command=""):
    """The commands that are there for `command`, with their help."""
    (action,) = parser(command)._subparsers._group_actions
    return {name: one.format_help() for name, one in action.choices.items()}


def test_the_address_of_the_app_is_one_that_a_browser_opens(monkeypatch, capsys):
    for name in ("ed_core.commands._require_free", "os.execv"):
        monkeypatch.setattr(name, lambda *_: None)
    assert main(["app", "--address", "::1"]) == 0 and "http://[::1]:8501 " in capsys.readouterr().out


def test_each_command_is_the_same_alone():
    every = commands_of()
    assert [name for told in FAMILIES.values() for name in told] == list(every)[-sum(map(len, FAMILIES.values())) :]
    for name, told in every.items():
        assert commands_of(name)[name] == told
    assert commands_of("no such command") == commands_of("-h") == every
    assert not {"study", "card", "case"} & commands_of("run").keys() and "card" in commands_of("claims")


def test_the_help_tells_what_holds_unless_an_option_is_given():
    todo, seen = [parser()], 0
    for one in todo:
        for option in one._actions:
            if isinstance(option.choices, dict):  # commands
                todo += option.choices.values()
            elif option.default not in (None, False, "", [], argparse.SUPPRESS):
                seen += 1
                assert str(option.default) in one._get_formatter()._expand_help(option), (one.prog, option.dest)
    assert seen > 20


def test_ctrl_c_while_the_commands_are_imported_is_one_sentence(monkeypatch, capsys):
    class Half(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "ed_core.commands", Half("ed_core.commands"))
    assert import_module("ed_core.__main__").main() == 130 and capsys.readouterr().err == "ed_core: stopped.\n"


@pytest.mark.parametrize(
    "line, several",
    [
        ("publish static --out o", "case study card"),
        ("deploy space a/b", "variable secret"),
        ("study s --out o", "export"),
        ("reproduce p --models m", "sets models"),
        ("fit affine --model m --set s --out o", "merge"),
    ],
)
def test_options_that_take_several_add_up(line, several):
    for name in several.split():
        args = parser().parse_args([*line.split(), f"--{name}", "x", "y", f"--{name}", "z"])
        assert getattr(args, name)[-3:] == ["x", "y", "z"]


def test_a_run_waits_for_nothing_that_it_does_not_use():
    asked = [f"ed_core.{name}" for name in ("cards", "claims", "studies", "cases", "runs")]
    code = f"import sys; from ed_core.commands import parser; parser('run'); print({{*sys.modules}} & {{*{asked}}})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"


SPECS = {
    "claims": ClaimsRun(asked=claims.Asked("ed-demo-8", "addition")),
    "some claims": ClaimsRun(
        asked=claims.Asked("a b", "x.jsonl", ("turn", "usefulness"), ("m", "n"), "bf16", "cpu", "-dir", 9, 3)
    ),
    "card": CardRun(asked=making.Asked("ed-demo-8", "addition")),
    "card of much": CardRun(asked=making.Asked("a b", "x.jsonl", 9, ("bf16",), ("m",), "fp16", "cpu", "dir", 3)),
    "card of one precision": CardRun(asked=making.Asked("ed-demo-8", "addition", others=())),
    "lens": FitRun(fit="jacobian", model=Opened(source="a b"), prompts="p.jsonl", out="l.safetensors", max_tokens=9),
    "low rank": FitRun(
        fit="affine",
        model=Opened(source="m", precision="bf16", adapter="dir", control="untrained", control_seed=3),
        prompts="p.jsonl",
        test="t.jsonl",
        out="-l.safetensors",
        memory="2G",
        rank=4,
    ),
    "maps": FitRun(
        fit="maps",
        model=Opened(source="m"),
        other=Opened(source="n", precision="int8", control="shuffled", control_seed=2),
        prompts="p.jsonl",
        out="m.npz",
    ),
    "audit": AuditRun(model="m", precisions=("fp32", "4bit"), prompts="p.jsonl", device="cpu", out="a.npz"),
    "audit of examples": AuditRun(model="m@main", precisions=("fp32", "bf16")),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_command_of_a_run_asks_for_that_run(name, tmp_path, monkeypatch):
    asked = []

    def run(spec, *_, **__):
        asked.append(spec)
        return 0

    for module in ("commands.long_work", "runs.execute"):
        monkeypatch.setattr(import_module(f"ed_core.{module}"), "in_shell", run)
    monkeypatch.setattr(making.Asked, "check", lambda self: None)
    monkeypatch.chdir(tmp_path)
    spec = SPECS[name]
    line = getattr(spec, "asked", spec).command
    python, *words = shlex.split(line)
    assert python == "python" and words[:2] == ["-m", "ed_core"]
    assert main(words[2:]) == 0 and asked == [spec], line


def test_the_command_of_probes_asks_for_them():
    model = resolve("ed-demo-8", "bf16", control="untrained", control_seed=4)
    probes = [LogitLens(k=3), LayerSkip(), Contributions()]
    args = parser("run").parse_args(
        shlex.split(run_command(probes, model, "p.jsonl", "-o.npz").replace("\\\n", ""))[3:]
    )
    assert opened_as(args) == model and (args.prompts, args.out) == ("p.jsonl", "-o.npz")
    settings = _settings(args.set, args.probes)
    assert [find(one).make(settings.get(one, {})) for one in args.probes] == probes


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"name": "a b", "none": None, "off": False, "on": True, "zero": 0}, "--name 'a b' --on --zero 0"),
        ({"also": ("m", "n"), "with_": "", "dash": "-x"}, "--also m --also n --with- '' --dash=-x"),
    ],
)
def test_a_command_line_quotes_what_it_is_given(given, line):
    assert command_line("run", "it's", **given) == f"""python -m ed_core run 'it'"'"'s' {line}"""
