"""Memory: whatever the budget, the numbers are the same; when memory runs out the work goes on smaller."""

from functools import cache

import naive
import numpy as np
import pytest
import torch
from small_models import BACKGROUND
from test_naive import PROMPTS, agree, prompt_ids

from ed_core import probes
from ed_core.errors import JobError, ParameterError
from ed_core.sweeps.budget import parse
from ed_core.types import Prompt
from ed_core.work import compute

ASKED = Prompt("5 + 7 + 5 = ", "17")
SWEEPS = {
    "skip": probes.LayerSkip(direct=True),
    "future": probes.LayerSkip(mode="future", part="mlp", boundaries=(3, 7), direct=True),
    "erase": probes.ResidualErasure("future", BACKGROUND),
    "gradients": probes.IntegratedGradients(nodes=17),
    "prune": probes.Prune(n=2, drop=(0, 3)),
    "exit": probes.EarlyExit(),
    "lens": probes.LogitLens(),
    "surgery": probes.Surgery(seed=2),
    "patch": probes.Patching(Prompt("5 + 9 = ", "3")),
}
TINY = 1  # byte: everything one row, one variant and one position at a time


def run(model, probe, prompt=ASKED, memory=None):
    return compute.run(model, probe.request(model.spec, prompt), memory=memory)


@pytest.fixture(scope="module")
def whole_of(model_of):
    """`whole_of(name)`: what a sweep finds where memory is no matter; computed once."""
    return cache(lambda name: run(model_of("qwen3"), SWEEPS[name]))


@pytest.mark.parametrize("name", SWEEPS)
def test_a_small_budget_changes_nothing_but_the_way(model_of, whole_of, name):
    """Every variant in a walk of its own against all of them in one."""
    whole, pieces = whole_of(name), run(model_of("qwen3"), SWEEPS[name], memory=TINY)
    assert pieces.provenance["memory"] == {"budget_bytes": TINY, "halved": 0}
    for name, measure in whole.measures.items():
        assert np.array_equal(np.isnan(measure.values), np.isnan(pieces[name])), name
        expected, found = np.nan_to_num(measure.values), np.nan_to_num(pieces[name])
        assert np.abs(found - expected).max() <= 1e-5 * max(np.abs(expected).max(), 1e-3), name


def test_pieces_agree_with_the_naive_way(model_of):
    """As with long prompts and large vocabularies: several walks, and the logits in several chunks."""
    model = model_of("llama")
    agree(
        run(model, probes.LogitLens(), PROMPTS["text"], TINY),
        naive.logit_lens(model.hf, prompt_ids(PROMPTS["text"]), k=5),
    )
    large, long = model_of("llama", vocab_size=1 << 14, num_hidden_layers=3), Prompt(4 * PROMPTS["text"].text)
    found = run(large, probes.LayerSkip(mode="future", part="mlp", boundaries=(8, 70)), long, TINY)
    agree(found, naive.layer_skip(large.hf, prompt_ids(long), "mlp", [8, 70]))


@pytest.fixture
def small_memory(model_of, monkeypatch):
    """A model whose blocks run out of memory above this many rows; the largest batch that passed is remembered."""

    def of(most: int, error: BaseException):
        model, passed = model_of("qwen3"), []
        original = type(model).run_block

        def run_block(self, trace, layer, resid, *args, **kwargs):
            if len(resid) > most:
                raise error
            passed.append(len(resid))
            return original(self, trace, layer, resid, *args, **kwargs)

        monkeypatch.setattr(type(model), "run_block", run_block)
        return model, passed

    return of


ERRORS = {
    "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"),
    "mps": RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "python": MemoryError(),
}


@pytest.mark.parametrize(
    "name, error",
    [*(("skip", error) for error in ERRORS), *((name, "torch") for name in ("future", "erase", "gradients", "prune"))],
)
def test_out_of_memory_halves_and_goes_on(whole_of, small_memory, name, error):
    whole = whole_of(name)
    model, passed = small_memory(2, ERRORS[error])
    found = run(model, SWEEPS[name])
    assert max(passed) <= 2 and found.provenance["memory"]["halved"] >= 1
    for measure, values in whole.measures.items():
        assert np.allclose(values.values, found[measure], atol=1e-5, equal_nan=True), measure


@pytest.mark.parametrize("name", ["skip", "erase", "gradients", "prune"])
def test_below_one_row_it_ends_with_a_sentence_and_the_model_goes_on(model_of, small_memory, monkeypatch, name):
    model, _ = small_memory(0, ERRORS["torch"])
    with pytest.raises(JobError, match="out of memory with a single row.*use a shorter prompt") as caught:
        run(model, SWEEPS[name])
    assert caught.value.__cause__ is None
    monkeypatch.undo()
    assert run(model, SWEEPS[name]).complete


def test_another_error_is_not_taken_for_memory(small_memory):
    model, _ = small_memory(2, RuntimeError("shapes do not fit"))
    with pytest.raises(JobError, match="This is a defect"):
        run(model, probes.LayerSkip())


def test_budgets_in_words():
    understood = {"": None, "2G": 2 << 30, "500 MB": 500 << 20, "1.5GiB": 3 << 29, "4096": 4096}
    assert {text: parse(text) for text in understood} == understood
    for text in ("much", "0", "-1G", "2X"):
        with pytest.raises(ParameterError, match="memory budget"):
            parse(text)


def raise_(error):
    raise error
