"""The command line: what it writes, and that everything refused is one sentence and exit code 2."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from shell import arrays, refused, wrote

from ed_core.cards import making
from ed_core.cases.snippet import run_command
from ed_core.claims import running as claims
from ed_core.cli import fits, main, studies
from ed_core.models.ref import ModelRef
from ed_core.probes.contributions import Contributions
from ed_core.probes.lenses import LogitLens
from ed_core.types import Prompt
from ed_core.work.runs.fit import Fit

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


def test_run_writes_every_name_with_its_shape(small_folder, prompts, tmp_path):
    """METHODS §10, which programs of others read."""
    out = tmp_path / "r.npz"
    assert main(asked(small_folder, prompts, out)) == 0
    data = arrays(out)
    norms = {f"contributions.{name}": (L,) for name in ("attn_norm", "mlp_norm", "block_influence", "io_cos")}
    norms |= {f"contributions.{of}_{what}": (L,) for of in ("attn", "mlp", "layer") for what in ("ratio", "cos")}
    lens = {f"logit_lens.{name}": (L + 1,) for name in ("kl", "jsd", "entropy", "overlap", "top1_match")}
    for i, prompt in enumerate(PROMPTS):
        n = len((prompt["text"] + prompt.get("answer", "")).encode())
        expected = {name: (*shape, n) for name, shape in (norms | lens).items()} | {
            "tokens": (n,),
            "contributions.resid_norm": (L + 1, n),
            "logit_lens.rank": (L + 1, n),
            "logit_lens.top_ids": (L + 1, n, 5),
            "logit_lens.top_probs": (L + 1, n, 5),
            "logit_lens.settle_depth": (n,),
            "layer_skip.effect": (L, L),
            "layer_skip.output_pos": (L, n),
            **{f"layer_skip.{name}": (L,) for name in ("output", "top1_kept", "noise_floor")},
        }
        assert {name: data[f"{name}.{i}"].shape for name in expected} == expected
        assert data[f"logit_lens.top_ids.{i}"].dtype == data[f"logit_lens.rank.{i}"].dtype == np.int32
        assert data[f"answer_start.{i}"] == (len(prompt["text"]) if "answer" in prompt else -1)
    ends = ("", "_ratio", "_stable", "_low", "_high")
    depths = [f"{rule}{end}" for rule in ("cosine", "kl", "overlap") for end in ends]
    depths += [f"{of}_mean{end}" for of in ("kl", "overlap") for end in ("", "_low", "_high")] + ["turn", "turn_p"]
    single = ["logit_lens.settle_depth", "logit_lens.deep_thinking_ratio", "n_tokens", "provenance"]
    expected = norms | lens | dict.fromkeys([*single, *(f"effective_depth.{name}" for name in depths)], ())
    expected |= dict.fromkeys(("contributions.resid_norm", "logit_lens.mrr"), (L + 1,))
    expected |= dict.fromkeys(("layer_skip.effect", "layer_skip.effect_mean"), (L, L))
    expected |= dict.fromkeys(("layer_skip.output", "layer_skip.output_mean", "layer_skip.top1_kept"), (L,))
    assert {name: data[name].shape for name in expected} == expected
    certificates = json.loads(str(data["provenance"]))["runs"]
    assert len(certificates) == 9
    assert {"model", "prompt", "libraries", "identities", "time", "seconds", "probe", "run"} <= set(certificates[0])
    assert {values.dtype for values in data.values() if values.dtype.kind == "f"} == {np.dtype(np.float32)}


def test_the_causal_probes_write_every_name_with_its_shape(small_folder, tmp_path):
    """Future mode with direct effects, erasure and gradients: per prompt, their aggregates, and nothing padded."""
    texts = [("5 + 7 = ", "12"), ("1 + 2 + 3 = ", "6")]
    probes = ["layer_skip", "residual_erasure", "integrated_gradients"]
    skip = [f"layer_skip.{one}" for one in ("mode=future", "boundaries=3,7", "direct=true")]
    given = [*skip, "integrated_gradients.nodes=17"]
    prompts = [Prompt(*one) for one in texts]
    data = wrote(tmp_path, prompts, *probes, "--memory", "64M", given=given, model=small_folder)
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
        }
        per_layer = ("completeness_error", "f_x", "f_baseline", "nodes_used")
        expected |= {f"integrated_gradients.{name}": (L,) for name in per_layer}
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
    for name in ("a.npz", "b.npz"):
        assert main(asked(small_folder, prompts, tmp_path / name)) == 0
    assert "0 computed, 9 from the store" in capsys.readouterr().out
    a, b = (arrays(tmp_path / name) for name in ("a.npz", "b.npz"))
    assert {name: one.tobytes() for name, one in a.items()} == {name: one.tobytes() for name, one in b.items()}
    assert main(["cache", "info"]) == 0
    told = capsys.readouterr().out
    assert "entries: 9" in told and "problems" not in told
    assert main(["cache", "clear"]) == 0
    assert "9 results removed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line, words",
    [
        ('{"text": ""}', ["line 1", "empty"]),
        ('{"text": "a\\u0007b"}', ["line 1", "control character", "U+0007"]),
        ('{"text": "a"', ["line 1", "not JSON"]),
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


@pytest.mark.parametrize(
    "more, words",
    [
        (["--set", "layer_skip.mode=sideways"], ["layer_skip.mode", "current, future"]),
        (["--set", "layer_skip.speed=9"], ["no parameter 'speed'", "mode"]),
        (["--set", "logit_lens.k=many"], ["logit_lens.k", "whole number"]),
        (["--set", "layer_skip.mode=future", "--set", "layer_skip.boundaries=1"], ["boundaries", "2 and"]),
        (["--set", "layer_skip.boundaries=8"], ["layer_skip.boundaries counts with layer_skip.mode=future alone"]),
        (["--set", "nonsense"], ["PROBE.PARAMETER=VALUE"]),
        (["--set", "residual.k=3"], ["residual", "not among"]),
        (["--dtype", "float8"], ["float8", "float32"]),
        (["--out", "r.csv"], ["r.csv", "ends in .npz"]),
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


def test_verify_prints_the_identities_and_its_exit_code_tells(small_folder, prompts, tmp_path, capsys):
    assert main(["verify", str(small_folder)]) == 0
    out = capsys.readouterr().out
    assert "accepted" in out and "closure" in out and out.count("1.000000") == 2 * L
    broken = shutil.copytree(small_folder, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.layers.2.mlp.down_proj.weight"].fill_(float("nan"))
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert main(["verify", str(broken)]) == 2
    assert "NaN" in capsys.readouterr().err
    (broken / "config.json").unlink()
    refused(capsys, asked(broken, prompts, tmp_path / "r.npz"), "config.json")


def test_models_are_listed(capsys):
    assert main(["models"]) == 0
    assert "ed-demo-16" in capsys.readouterr().out


DEMO, OTHER = map(ModelRef.named, ("ed-demo-8", "ed-demo-16"))
ASKED = {
    "claims": claims.Asked("ed-demo-8", "addition"),
    "some claims": claims.Asked("a b", "x.jsonl", ("turn", "usefulness"), ("m", "n"), "bf16", "cpu", "-dir", 9, 3),
    "card": making.Asked("ed-demo-8", "addition"),
    "card of much": making.Asked("it's", "x.jsonl", (), ("m",), "fp16", "cpu", "dir", 9, 3, ("bf16",)),
    "card of one precision": making.Asked("ed-demo-8", "addition", others=()),
    "lens": Fit("jacobian", DEMO, "p j.jsonl", "l.safetensors", max_tokens=20),
    "low rank": Fit(
        "affine",
        replace(DEMO, precision="bf16", adapter="dir", control="untrained", control_seed=3),
        "p.jsonl",
        "-l.safetensors",
        test="t.jsonl",
        memory="2G",
        rank=4,
    ),
    "maps": Fit(
        "maps", DEMO, "p.jsonl", "m.npz", other=replace(OTHER, precision="int8", control="shuffled", control_seed=2)
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_command_of_a_run_asks_for_that_run(name, tmp_path, monkeypatch):
    asked = []
    for module in (fits, studies):
        monkeypatch.setattr(module, "run", lambda work, one, *_, **__: asked.append(one) or 0)
    monkeypatch.setattr(making.Asked, "check", lambda self: None)
    monkeypatch.chdir(tmp_path)
    line = ASKED[name].command
    python, *words = shlex.split(line)
    assert python == "python" and words[:2] == ["-m", "ed_core"]
    assert main(words[2:]) == 0 and asked == [ASKED[name]], line


def test_the_command_of_probes_asks_for_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"text": "1 + 2 = "}')
    model = ModelRef.parse("ed-demo-8", "bf16", control="untrained", control_seed=4)
    probes = [LogitLens(k=3), Contributions()]
    assert main(shlex.split(run_command(probes, model, "p.jsonl", "-o.npz").replace("\\\n", ""))[3:]) == 0
    runs = json.loads(str(arrays(tmp_path / "-o.npz")["provenance"]))["runs"]
    assert [run["probe"]["name"] for run in runs] == ["logit_lens", "contributions"]
    assert runs[0]["probe"]["parameters"]["k"] == 3
    for run in runs:
        assert [run["model"][name] for name in ("precision", "control", "control_seed")] == ["bf16", "untrained", 4]


def test_ctrl_c_says_what_stays(monkeypatch, capsys):
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ed_core.models.catalogue.entries", stopped)
    assert main(["models"]) == 130 and capsys.readouterr().err == "ed_core: stopped.\n"
