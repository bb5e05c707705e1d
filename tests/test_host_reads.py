"""How often the host waits for a GPU while a probe runs, to read of it or to hand something over: meanwhile the device
has nothing to do. Counted on an emulated one (`emulated_gpu.py`), where every figure is besides the same as on the
CPU."""

from __future__ import annotations

import copy

import emulated_gpu
import numpy as np
import pytest
import torch
from small_models import BACKGROUND

from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.models.verify import verify
from ed_core.probes import PROBES, LayerSkip, LogitLens, Prune, ResidualErasure, Surgery
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve

# Longer than what may be read for each block and pass: a read for each token would be too many.
PROMPT = Prompt("Sums mod 10:\n" + "5 + 7 + 5 = 7\n" * 5 + "5 + 7 + 5 = ", "7")
PER_BLOCK, PER_PASS = 2, 2  # reads; a pass through the whole model: transformers asks once whether texts are packed
PASSES = {"residual_erasure": 2, "numerics": 3, "answers": 1, "loops": 30}  # besides one
PER_TOKEN = {"generation": (32, 2), "continuation": (8, 1)}  # tokens written, reads for each
GIVEN = {"residual_erasure": {"background": BACKGROUND}}
VARIANTS = [
    LogitLens(points="halves"),
    LayerSkip(mode="future"),
    LayerSkip(part="attention", direct=True),
    ResidualErasure("future", BACKGROUND),
    Prune(drop=(2, 5)),
    Surgery(kind="swap"),
    Surgery(kind="repeat"),
]


def elsewhere(name: str) -> tuple[LanguageModel, LanguageModel]:
    """A bundled model here, and the same on the emulated GPU."""
    here = open_model(resolve(name))
    with emulated_gpu.counted():
        there = LanguageModel(emulated_gpu.move(copy.deepcopy(here.hf)), here.tokenizer, here.architecture, here.spec)
    there.identities = here.identities
    return here, there


@pytest.fixture(scope="module")
def models():
    return elsewhere("ed-demo-8")


@pytest.fixture(scope="module")
def loops():
    return elsewhere("ed-loop-4x4")


def read_and_same(models, probe, prompt) -> dict[str, int]:
    here, there = models
    expected = compute.run(here, probe.request(here.spec, prompt))
    with emulated_gpu.counted() as reads:
        found = compute.run(there, probe.request(there.spec, prompt))
        counted = dict(reads)
    assert set(found.measures) == set(expected.measures) and found.token_text == expected.token_text
    for name, measure in expected.measures.items():
        np.testing.assert_array_equal(found[name], measure.values, err_msg=name)
    return counted


@pytest.mark.parametrize(
    "probe",
    [
        *(p.make(GIVEN.get(p.name, {})) for p in PROBES if p.name != "loops"),
        *VARIANTS,
    ],
    ids=lambda p: p.name,
)
def test_a_probe_reads_little_of_a_gpu_and_gives_what_it_gives_on_the_cpu(models, probe):
    counted = read_and_same(models, probe, PROMPT)
    tokens, each = PER_TOKEN.get(probe.name, (0, 0))
    blocks = models[0].n_layers * (not tokens)
    passes = 1 + PASSES.get(probe.name, 0)
    most = PER_BLOCK * blocks + PER_PASS * passes + tokens * each + 4
    assert 0 < sum(counted.values()) <= most, counted


def test_a_loop_read_pass_by_pass(loops):
    (probe,) = (p.make({}) for p in PROBES if p.name == "loops")
    counted = read_and_same(loops, probe, Prompt("0132 2301 1032 = ", "0"))
    assert 0 < sum(counted.values()) <= PER_BLOCK * loops[0].n_layers + PER_PASS * PASSES["loops"], counted


def test_opening_reads_little(models):
    here, there = models
    with emulated_gpu.counted() as reads:
        found = verify(there)
        assert 0 < sum(reads.values()) <= 3 * there.n_layers + 8 * PER_PASS + 8, dict(reads)
    assert found == here.identities


def test_the_emulated_gpu_sees_what_a_gpu_would(models):
    with emulated_gpu.counted() as reads:
        x = torch.ones(3, 4).to(models[1].device, non_blocking=True)
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(4)
        assert not reads
        for read in (
            lambda: float(x.sum()),
            lambda: bool((x > 0).all()),
            lambda: x.tolist(),
            lambda: x.cpu(),
            lambda: x.to("cpu"),
            lambda: x[x > 0],
            lambda: x.nonzero(),
            lambda: torch.zeros(3, 4).copy_(x),
            lambda: torch.tensor([1, 2], device=x.device),
            lambda: torch.ones(2).to(x.device),
            lambda: x[[0, 2]],
        ):
            before = sum(reads.values())
            read()
            assert sum(reads.values()) == before + 1
        before = sum(reads.values())
        x[0] = 2.0
        x[:, torch.arange(2, device=x.device)] *= 3
        assert (x @ x.T).device == x.device and sum(reads.values()) == before
        with pytest.raises((RuntimeError, TypeError)):
            x.numpy()
