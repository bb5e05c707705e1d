"""What a GPU does that a CPU does not, on a CPU: memory that runs out anywhere, a device that is lost, what a device
reports of itself. Errors are injected, reports are faked."""

from __future__ import annotations

import pickle

import pytest
import torch
from small_models import BACKGROUND
from test_budget import ERRORS, raise_
from workers import Direct

from ed_core.api import model as notebook
from ed_core.errors import DeviceFailed, PromptError, TooLarge, lost_device, ran_out
from ed_core.models import devices, identities, loading, opening
from ed_core.models.language_model import LanguageModel
from ed_core.models.ref import ModelRef
from ed_core.probes import IntegratedGradients, LogitLens, Numerics, ResidualErasure, Surgery
from ed_core.sweeps import gradients, loops, replacing, surgery
from ed_core.types import ModelSpec, Prompt
from ed_core.work import compute, measure

ASKED = Prompt("5 + 7 + 5 = ", "17")
ASSERT = RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported")
GIB = 1 << 30
LOADED = loading.AutoModelForCausalLM, "from_pretrained"


@pytest.mark.parametrize(
    "place, error, kind, said",
    [
        (LOADED, ERRORS["torch"], TooLarge, "Memory ran out on cpu while .* was opened in fp32"),
        (LOADED, ERRORS["python"], TooLarge, "Memory ran out on cpu while .* was opened in fp32"),
        ((LanguageModel, "run_block"), ASSERT, DeviceFailed, "The device cpu failed while .* was opened"),
    ],
)
def test_what_fails_while_a_model_is_opened_is_named(small_folder, monkeypatch, place, error, kind, said):
    """It is no damage of the model's, and nothing holds what filled the memory."""
    monkeypatch.setattr(*place, lambda *_, **__: raise_(error))
    with pytest.raises(kind, match=said) as caught:
        opening.open_model(ModelRef.parse(str(small_folder)))
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_what_an_error_says_is_told_apart():
    lost = [
        ASSERT,
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    ]
    assert all(lost_device(error) and not ran_out(error) for error in lost)
    assert not any(lost_device(error) for error in (*ERRORS.values(), RuntimeError("shapes"), ValueError("CUDA error")))


def test_a_lost_device_is_named_and_ends_the_worker(small_folder, monkeypatch):
    """Every later job failed too."""
    models, said = compute.Models(), []
    request = LogitLens().request(ModelRef.parse(str(small_folder)), ASKED)
    model, server = models.get(request.models[0]), Direct(models, lambda header, body: said.append(header))
    for error, ends in ((RuntimeError("shapes"), False), (ASSERT, True)):
        monkeypatch.setattr(model, "trace", lambda *_, error=error, **__: raise_(error))
        server.step("1", True, pickle.dumps((measure.compute, (request,))))
        assert server.ended == ends
    assert said[-1]["error"] == "DeviceFailed" and "a new process is needed" in said[-1]["message"]
    with pytest.raises(DeviceFailed):
        compute.run(model, request)


def test_a_token_beyond_the_embedding_is_refused_before_a_kernel_sees_it(model_of):
    """On a GPU it is an assert in a kernel, after which the process can compute nothing."""
    model = model_of("llama")
    for wrong in (model.hf.get_input_embeddings().weight.shape[0], -1):
        with pytest.raises(PromptError, match=f"gives token {wrong}, and the model has embeddings for 0 to "):
            model.tensor((1, wrong))


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(free, total, reserved, allocated)`: two GPUs that report this of each."""

    def of(free: int, total: int, reserved: int = 0, allocated: int = 0) -> None:
        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "mem_get_info": lambda i: (free, total),
            "memory_reserved": lambda i: reserved,
            "memory_allocated": lambda i: allocated,
            "empty_cache": lambda: None,
            "get_device_name": lambda i: "GPU of tests",
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    return of


def test_what_torch_keeps_unused_is_free(gpus):
    gpus(10 * GIB, 80 * GIB, reserved=30 * GIB, allocated=25 * GIB)
    assert devices.free_bytes("cuda:1") == 15 * GIB and devices.free_bytes("cuda") == 30 * GIB


def test_a_probe_finds_its_memory_beside_the_model(gpus):
    gpus(24 * GIB, 24 * GIB)
    assert devices.total_bytes("cuda") == 24 * GIB and devices.total_bytes("cpu") == 0
    spec, room = ModelSpec("m", device="cuda"), int(0.9 * 24 * GIB) - 4 * GIB
    assert devices.plan(spec, room) == {"device_map": {"": "cuda:0"}}
    assert devices.plan(spec, room + 1) == {"device_map": "auto", "max_memory": {0: room, 1: room}}
    with pytest.raises(TooLarge):
        devices.plan(ModelSpec("m", device="cuda:1"), room + 1)


def test_products_are_of_full_float32_whatever_was_asked_for_before(small_folder):
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    opening.open_model(ModelRef.parse(str(small_folder)))
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cuda.cudnn_sdp_enabled()


FLOAT64 = torch.Tensor.double


class OnTheHost(torch.Tensor):
    """What was brought to the host: float64 can be had of it."""

    def double(self) -> torch.Tensor:
        return FLOAT64(self.as_subclass(torch.Tensor))


@pytest.fixture
def no_float64(monkeypatch):
    """As on MPS: float64 of nothing but what was brought to the host first."""
    cpu = torch.Tensor.cpu

    def refused(x: torch.Tensor) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    monkeypatch.setattr(torch.Tensor, "double", refused)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: cpu(x).as_subclass(OnTheHost))
    for module in (identities, replacing, gradients, surgery, loops):
        monkeypatch.setattr(module, "to_float64", lambda x: FLOAT64(x.as_subclass(torch.Tensor)))


@pytest.mark.parametrize(
    "probe",
    [ResidualErasure("future", BACKGROUND), IntegratedGradients(nodes=17), Surgery(), Numerics()],
    ids=lambda probe: probe.name,
)
def test_probes_take_float64_of_nothing_on_the_device(model_of, no_float64, probe):
    """Every model was refused on MPS."""
    model = model_of("llama")
    assert compute.run(model, probe.request(model.spec, ASKED)).complete


def test_auto_takes_what_is_listed_first(gpus, monkeypatch):
    gpus(10 * GIB, 80 * GIB)
    monkeypatch.setattr(notebook, "may_have_gpu", lambda: True)
    assert devices.devices() == ["cuda", "cuda:0", "cuda:1", "cpu"] and devices.pick("auto") == "cuda"
    assert notebook.device_of("auto") == ("cuda", 20 * GIB) and notebook.device_of("cpu") == ("cpu", None)
