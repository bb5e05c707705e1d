"""The benchmark command: what it accepts, how it reports, and that it compares and counts rightly. No times are
asserted here."""

from __future__ import annotations

import sys

import pytest
import torch
from shell import refused
from torch.utils.flop_counter import FlopCounterMode

from ed_core.commands import main
from ed_core.probes import LayerSkip, ResidualErasure
from ed_core.service import compute
from ed_core.sources import sizes
from tools import bench
from tools.bench import causal, lens, opening, skip
from tools.bench.random_model import prompt, random_llama

L, D, V, T = 3, 16, 40, 12


@pytest.fixture(scope="module")
def model():
    return random_llama(L, D, V)


@pytest.fixture
def request_(model):
    return LayerSkip().request(model.spec, prompt(T, V))


def test_an_unknown_measurement_is_refused_with_the_known_ones(capsys):
    refused(capsys, ["bench", "speed"], "'speed'", *bench.MEASUREMENTS)


@pytest.mark.parametrize("check, ok, code", [(True, False, 1), (False, False, 0), (True, True, 0)])
def test_check_decides_the_exit_code_and_every_row_is_printed(capsys, monkeypatch, check, ok, code):
    asked = []
    monkeypatch.setattr(
        bench, "measured", lambda name: asked.append(name) or [bench.Row(f"{name} row", "1 s", "<= 2 s", ok)]
    )
    assert main(["bench", "live", "skip", "live", *(["--check"] if check else [])]) == code
    assert asked == ["live", "skip"]
    printed = capsys.readouterr().out
    assert "live row" in printed and "skip row" in printed and ("ok" if ok else "missed") in printed


def test_a_measurement_that_breaks_is_said_so(monkeypatch):
    monkeypatch.setitem(bench.MEASUREMENTS, "skip", ("no_such_module", 1))
    with pytest.raises(bench.JobError, match="skip"):
        bench.measured("skip")


def test_prompts_have_the_length_asked_for(model):
    assert len(model.encode(prompt(T, V))) == T


def test_the_naive_sweep_and_the_engine_agree(model, request_):
    result = compute.run(model, request_)
    effect, output = skip.naive_sweep(model.hf, model.tensor(model.encode(request_.prompts[0])))
    assert skip.difference(torch.tensor(result["effect"]), effect) < skip.AGREEMENT
    assert skip.difference(torch.tensor(result["output"]), output) < skip.AGREEMENT
    assert effect.triu(1).max() > 1e-3, "the comparison is of something"


def test_a_difference_is_relative_to_the_largest_value():
    assert skip.difference(torch.tensor([1.0, -4.5]), torch.tensor([1.0, -4.0])) == 0.125


def test_flops_are_those_of_the_formula_and_of_torchs_own_counter(model, request_):
    calls, attention = skip.work(model, lambda: compute.run(model, request_))
    rows = sum(1 + 1 + layer for layer in range(L))  # the traced pass, the no-op, and a variant for every block before
    weights = sum(p.numel() for name, p in model.blocks[0].named_parameters() if "norm" not in name)
    head = V * D * (1 + T + L * T)  # one position of the traced pass, the baseline, every variant
    assert skip.linear_flops(calls) == 2 * (rows * T * weights + head)
    assert attention == rows * 2 * T * (T + 1) * D
    with FlopCounterMode(display=False) as counter:
        compute.run(model, request_)
    assert counter.get_total_flops() == skip.linear_flops(calls), (
        "torch counts the linears only: it does not know the CPU's attention kernel"
    )


def test_plain_products_do_the_same_work(model, request_):
    calls, _ = skip.work(model, lambda: compute.run(model, request_))
    with FlopCounterMode(display=False) as counter:
        skip.matrix_products(calls)()
    assert counter.get_total_flops() == skip.linear_flops(calls)


def test_the_lens_is_held_against_the_products_of_all_its_depths(model):
    with FlopCounterMode(display=False) as counter:
        lens.products(model, T)()
    assert counter.get_total_flops() == 2 * (L + 1) * T * D * V


def test_the_naive_ways_of_the_causal_probes_and_the_engine_agree(model):
    """Every measure the benchmark compares, at a size that takes a second."""
    asked = prompt(T, V, n_answer=2)
    ids = model.tensor(model.encode(asked))
    future = LayerSkip(mode="future", boundaries=(3, 7))
    ways = {
        LayerSkip(direct=True): causal.naive_skips(model.hf, ids, [T], False, direct=True),
        future: causal.naive_skips(model.hf, ids, [3, 7], True),
        ResidualErasure(): causal.naive_erasures(model, ids),
    }
    for probe, expected in ways.items():
        found = compute.run(model, probe.request(model.spec, asked))
        for name, values in expected.items():
            assert skip.difference(torch.tensor(found[name]), values) <= causal.AGREEMENT, (probe, name)


def test_a_page_that_opens_late_misses_its_target():
    bare = {"word": (0.9, 0.8), "figure": (2.0, 1.9)}
    assert opening.rows(bare, (1.2, 0.95), (2.5, 2.4))[0].ok and not opening.rows(bare, (1.2, 1.05), (2.5, 2.4))[0].ok


def test_an_installation_without_the_tools_says_where_benchmarks_run(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tools.bench", None)
    refused(capsys, ["bench"], "run them from a checkout")
    monkeypatch.undo()
    refused(capsys, ["bench", "skip", "--device", "cuda"], "are of the measurement gpu; leave --device out")


def test_the_floor_of_a_probe_is_its_reading_or_its_multiplying(monkeypatch):
    from ed_core.probes import PROBES, Contributions, LogitLens
    from tools.bench import floor

    size = sizes.read(
        {"model_type": "llama", "vocab_size": 50, "num_hidden_layers": 4, "hidden_size": 8, "intermediate_size": 16,
         "num_attention_heads": 2}
    )  # fmt: skip
    layers, head = 4 * (4 * 8 * 8 + 3 * 8 * 16), 50 * 8
    slow_reading = floor.Rates(1.0, lambda part, rows: 1e30)
    slow_products = floor.Rates(1e30, lambda part, rows: 1.0)
    assert floor.floor(Contributions(), size, 7, slow_reading) == 4 * (layers + head)
    assert floor.floor(LogitLens(), size, 7, slow_reading) == 4 * (layers + head), "the head once, for all depths"
    assert floor.floor(Contributions(), size, 7, slow_products) == 2 * (7 * layers + head)
    assert floor.floor(LogitLens(), size, 7, slow_products) == 2 * (7 * layers + 7 * (4 + 2) * head)
    both = [Contributions(), LogitLens()]
    alone = sum(floor.floor(probe, size, 7, slow_products) for probe in both)
    assert floor.together(both, size, 7, slow_products) == alone - 2 * 7 * layers, "one pass for both"
    for probe in PROBES:
        if not probe.needs_passes:
            assert floor.floor(probe(), size, 7, slow_reading) >= floor.floor(Contributions(), size, 7, slow_reading)


def test_the_floor_is_printed_beside_what_was_taken(monkeypatch):
    from ed_core.models.opening import open_model
    from ed_core.service.resolve import resolve
    from ed_core.sources.specs import config_of
    from ed_core.types import Prompt
    from tools.bench import floor

    small = open_model(resolve("ed-demo-8"))
    monkeypatch.setattr(floor, "prompt", lambda model, n: Prompt("5 + 7 + 5 = ", "7"))
    rates = floor.Rates(1e9, lambda part, rows: 1e9)
    rows = floor.of_length(small, sizes.read(config_of(small.spec)), rates, 20)
    named = [row.what.partition(",")[0] for row in rows]
    assert "logit_lens" in named and "surgery" not in named and named[-1] == "the 4 panels of Home"
    assert all(" x (" in row.measured for row in rows) and rows[-1].target == "<= 2 x"
    assert len(floor.on_paper()) == 4


def test_the_pack_of_a_gpu_runs_whole_on_a_toy(own_cache, capsys, tmp_path, monkeypatch):
    """In the place of a GPU, which whoever has one fills the table with."""
    import json

    from tools.bench import gpu

    monkeypatch.setattr(gpu, "PRECISIONS", ("fp32",))
    monkeypatch.setattr(gpu, "QUANTIZED", ("4bit",))
    out = tmp_path / "gpu.json"
    assert main(["bench", "gpu", "--device", "cpu", "--out", str(out), "--check"]) == 0
    told = json.loads(out.read_text())
    assert {row["part"] for row in told["rows"]} == set(gpu.PARTS) and all(row["ok"] for row in told["rows"])
    assert told["about"]["toy"] and "| a job of a worker | done | done | ok |" in capsys.readouterr().out


def test_a_part_that_fails_is_a_row_and_the_next_one_begins(monkeypatch):
    from tools.bench import gpu

    def broken(device, toy):
        raise RuntimeError("CUDA error: device-side assert triggered")
        yield

    monkeypatch.setattr(gpu, "PARTS", {"broken": broken, "about": gpu.about})
    rows = gpu.pack("cpu")
    assert not rows[0].ok and "device-side assert" in rows[0].measured and rows[1].what == "device"
    assert [row.measured for row in gpu.pack("cpu", seconds=0)] == ["no time was left"] * 2
