"""How often the host waits for a GPU while a probe runs, to read of it or to hand something over: meanwhile the device
has nothing to do. Counted on an emulated one (`emulated_gpu.py`), where every figure is besides the same as on the
CPU."""

from __future__ import annotations

import copy

import emulated_gpu
import numpy as np
import pytest
from small_models import BACKGROUND

from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.probes import PROBES
from ed_core.service import compute
from ed_core.service.resolve import resolve
from ed_core.types import Prompt

# Longer than what may be read for each block and pass: a read for each token would be too many.
PROMPT = Prompt("5 + 7 + 5 = 7\n" * 2 + "5 + 7 + 5 = ", "7")
PER_BLOCK, PER_PASS = 2, 2  # reads; a pass through the whole model: transformers asks once whether texts are packed
PASSES = {"residual_erasure": 2, "numerics": 3, "answers": 1, "loops": 30}  # besides one
PER_TOKEN = {"generation": (32, 2), "continuation": (8, 1)}  # tokens written, reads for each
GIVEN = {"residual_erasure": {"background": BACKGROUND}}


pytestmark = pytest.mark.process


def elsewhere(name: str) -> tuple[LanguageModel, LanguageModel]:
    """A model here, and the same on the emulated GPU."""
    here = open_model(resolve(name))
    with emulated_gpu.counted():
        there = LanguageModel(emulated_gpu.move(copy.deepcopy(here.hf)), here.tokenizer, here.architecture, here.spec)
    there.identities = here.identities
    return here, there


@pytest.fixture(scope="module")
def models(small_folder):
    return elsewhere(str(small_folder))


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
    "probe", [p.make(GIVEN.get(p.name, {})) for p in PROBES if p.name != "loops"], ids=lambda p: p.name
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
