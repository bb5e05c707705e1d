"""What a GPU does that a CPU does not, on a CPU: memory that runs out anywhere, a device that is lost, what a device
reports of itself. Errors are injected, reports are faked."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch
from small_models import BACKGROUND
from test_budget import ERRORS, raise_
from workers import Direct, Messages

from ed_core import machine
from ed_core.errors import (
    DeviceFailed,
    FitRefused,
    JobError,
    ParameterError,
    PromptError,
    TooLarge,
    lost_device,
    ran_out,
)
from ed_core.fits import jacobian, streams
from ed_core.machine import probe_bytes
from ed_core.models import devices, identities, loading, opening, verify
from ed_core.models.identities import wide
from ed_core.models.language_model import LanguageModel
from ed_core.notebook import model as notebook
from ed_core.notebook.model import on
from ed_core.probes import IntegratedGradients, LayerSkip, LogitLens, Numerics, ResidualErasure, Surgery
from ed_core.sources import sizes, specs
from ed_core.sweeps import gradients, loops, staircase, surgery
from ed_core.sweeps.budget import Budget
from ed_core.types import ModelSpec, Prompt
from ed_core.work import compute, estimate, measure
from ed_core.work.executors import executor
from ed_core.work.queue import Queue
from ed_core.work.resolve import resolve

ASKED = Prompt("5 + 7 + 5 = ", "17")
ASSERT = RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported")
GIB = 1 << 30


# ---------------------------------------------------------------- memory that runs out


@pytest.mark.parametrize("name", ["torch", "cublas"])
def test_a_jacobian_lens_goes_on_with_a_smaller_graph(model_of, monkeypatch, name):
    """The larger graph was used again, so halving ended at one row."""
    model, ids = model_of("llama"), tuple(range(1, 25))
    whole, _ = jacobian.of_prompt(model, ids)
    rows, grad = [], torch.autograd.grad

    def small(outputs, inputs, *more, **options):
        if len(outputs) > 4:
            raise ERRORS[name]
        rows.append(len(outputs))
        return grad(outputs, inputs, *more, **options)

    monkeypatch.setattr(torch.autograd, "grad", small)
    found, _ = jacobian.of_prompt(model, ids)
    assert max(rows) > 2 and torch.allclose(found, whole, atol=1e-6)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_memory_that_runs_out_while_a_model_is_opened_is_no_damage(small_folder, monkeypatch, error):
    """It said: download the model again."""
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: raise_(error))
    with pytest.raises(TooLarge, match="Memory ran out on cpu while .* was opened in fp32") as caught:
        opening.open_model(resolve(str(small_folder)))
    assert caught.value.__cause__ is caught.value.__context__ is None, "nothing holds what filled the memory"


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_memory_that_runs_out_while_sums_are_checked_is_no_wrong_sum(small_folder, monkeypatch, error):
    monkeypatch.setattr(LanguageModel, "run_block", lambda *_, **__: raise_(error))
    with pytest.raises(TooLarge, match="Memory ran out on cpu"):
        opening.open_model(resolve(str(small_folder)))


def test_memory_that_runs_out_over_a_suffix_does_not_choose_the_slow_way(model_of, monkeypatch):
    model = model_of("llama")
    ids = verify.short_prompt(model)
    trace, untouched = model.trace(ids), model.logits(ids)
    monkeypatch.setattr(LanguageModel, "run_block", lambda *_, **__: raise_(ERRORS["torch"]))
    with pytest.raises(torch.OutOfMemoryError):
        verify.suffix_by_hand(model, trace, untouched)
    monkeypatch.setattr(LanguageModel, "run_block", lambda *_, **__: raise_(TypeError("another call")))
    assert verify.suffix_by_hand(model, trace, untouched) is None


def test_the_oldest_model_is_closed_where_another_does_not_fit_beside_it(small_folder, monkeypatch):
    """Only a model too large by its config made room."""
    models, opened = compute.Models(), []
    load = loading.AutoModelForCausalLM.from_pretrained

    def narrow(*arguments, **options):
        opened.append(len(models))
        return raise_(ERRORS["cublas"]) if len(models) else load(*arguments, **options)

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", narrow)
    first, second = (resolve(str(small_folder), precision=name) for name in ("fp32", "bf16"))
    models.get(first)
    assert models.get(second).spec.precision == "bf16" and opened == [0, 1, 0] and len(models) == 1


# ---------------------------------------------------------------- a device that is lost


def test_what_an_error_says_is_told_apart():
    lost = [
        ASSERT,
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    ]
    assert all(lost_device(error) and not ran_out(error) for error in lost)
    assert not any(lost_device(error) for error in (*ERRORS.values(), RuntimeError("shapes"), ValueError("CUDA error")))


def served(models, request) -> tuple[Direct, dict]:
    """A request computed by a worker of this process, and the last that it said."""
    said = []
    server = Direct(models, lambda header, body: said.append(header))
    server.step("1", True, pickle.dumps((measure.compute, (request,))))
    return server, said[-1]


def test_a_lost_device_is_named_and_ends_the_worker(small_folder, monkeypatch):
    """Every later job failed too."""
    models = compute.Models()
    request = LogitLens().request(resolve(str(small_folder)), ASKED)
    model = models.get(request.models[0])
    for error, ends in ((RuntimeError("shapes"), False), (ASSERT, True)):
        monkeypatch.setattr(model, "trace", lambda *_, error=error, **__: raise_(error))
        server, last = served(models, request)
        assert server.ended is ends
    assert last["error"] == "DeviceFailed" and "a new process is needed" in last["message"]
    with pytest.raises(DeviceFailed):
        compute.run(model, request)


def test_a_device_that_is_lost_outside_a_probe_ends_the_worker_too(small_folder, monkeypatch):
    models = compute.Models()
    monkeypatch.setattr(models, "get", lambda _: raise_(ASSERT))
    assert served(models, LogitLens().request(resolve(str(small_folder)), ASKED))[0].ended


def test_a_device_that_is_lost_while_a_model_is_opened_is_named(small_folder, monkeypatch):
    monkeypatch.setattr(LanguageModel, "run_block", lambda *_, **__: raise_(ASSERT))
    with pytest.raises(DeviceFailed, match="The device cpu failed while .* was opened"):
        opening.open_model(resolve(str(small_folder)))


def test_a_token_beyond_the_embedding_is_refused_before_a_kernel_sees_it(model_of):
    """On a GPU it is an assert in a kernel, after which the process can compute nothing."""
    model = model_of("llama")
    for wrong in (model.n_embedded, -1):
        with pytest.raises(PromptError, match=f"gives token {wrong}, and the model has embeddings for 0 to "):
            model.tensor((1, wrong))


# ---------------------------------------------------------------- what a device reports


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


def test_a_probes_memory_goes_by_the_device_and_never_by_what_is_free(gpus):
    assert [probe_bytes("cpu", 8 * GIB), probe_bytes("cuda"), probe_bytes("cuda", 6 * GIB)] == [
        GIB,
        4 * GIB,
        3 * GIB // 2,
    ]
    assert Budget(None, "cuda", "x", 6 * GIB).bytes == 3 * GIB // 2 and Budget(None, "cuda", "x").bytes == 4 * GIB


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.setattr(machine, "_totals", {})


def test_an_estimate_goes_by_what_the_device_has(gpus, nothing_known, monkeypatch):
    """A probe's share was that of a GPU of 16 GiB on every GPU."""
    size, probe = sizes.read(specs.config_of(resolve("ed-demo-16"))), LayerSkip()

    def held(device):
        (need,) = estimate.estimate(size, "fp32", 400_000, device, 80 * GIB, [probe]).needs
        return need.activations

    unknown = held("cuda:1")
    gpus(5 * GIB, 6 * GIB)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert devices.totals() == {"cuda": 6 * GIB, "cuda:0": 6 * GIB, "cuda:1": 6 * GIB, "cpu": 0}
    workers = []
    queue = Queue(lambda *told: workers.append(Messages(*told)) or workers[0], watch=False)
    workers[0].says("ready", devices=devices.overview(), totals=devices.totals())
    assert queue.devices.keys() == devices.overview().keys()
    assert unknown - held("cuda:1") == unknown - held("cuda") == 2 * GIB - 3 * GIB // 4
    machine.learn({"cuda:1": 80 * GIB})
    assert held("cuda:1") == unknown


def test_the_command_line_and_a_notebook_know_what_the_device_has(gpus, nothing_known, monkeypatch):
    gpus(5 * GIB, 6 * GIB)
    monkeypatch.setattr("ed_core.notebook.model.may_have_gpu", lambda: True)
    assert on("auto") == ("cuda", 10 * GIB) and machine.total_bytes("cuda") == 6 * GIB
    assert on("cpu") == ("cpu", None) and machine.total_bytes("cpu") == 0


@pytest.mark.parametrize("name", ["", *machine.ALLOCATORS])
def test_segments_grow_on_a_gpu_unless_somebody_has_set_the_allocator(monkeypatch, name):
    for one in machine.ALLOCATORS:
        monkeypatch.setenv(one, "")  # put back what is set here
        monkeypatch.delenv(one)
    monkeypatch.setattr(machine, "gpus", list)
    machine.prepare()
    assert not any(one in machine.os.environ for one in machine.ALLOCATORS), "nothing of a machine without a GPU"
    if name:
        monkeypatch.setenv(name, "max_split_size_mb:64")
    monkeypatch.setattr(machine, "gpus", lambda: ["0"])
    machine.prepare()
    found = {one: machine.os.environ[one] for one in machine.ALLOCATORS if one in machine.os.environ}
    assert found == ({name: "max_split_size_mb:64"} if name else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})


def test_a_probe_asks_its_device_what_it_has_and_certifies_how_it_multiplies(model_of, monkeypatch):
    model, asked = model_of("llama"), []
    monkeypatch.setattr(devices, "total_bytes", lambda device: 6 * GIB)
    monkeypatch.setattr(devices, "certificate", lambda device: {"gpu": "GPU of tests"})
    monkeypatch.setattr(compute, "Budget", lambda *given: asked.append(given[3]) or Budget(*given))
    assert compute.run(model, LogitLens().request(model.spec, ASKED)).provenance["gpu"] == "GPU of tests"
    assert asked == [6 * GIB]


def test_models_on_a_gpu_have_the_memory_of_that_gpu(gpus):
    """Half of the host's memory was the budget of all."""
    gpus(80 * GIB, 80 * GIB)
    models = compute.Models()
    assert models.budget(torch.device("cuda:0")) == 72 * GIB
    models._open = {
        str(i): SimpleNamespace(bytes=40 * GIB, device=torch.device(kind)) for i, kind in enumerate(("cuda:0", "cpu"))
    }
    assert not models._over(torch.device("cuda:0")), "what lies on the host takes nothing of the GPU"
    assert compute.Models(5).budget(torch.device("cuda:0")) == 5


def test_scores_that_a_plain_kernel_writes_out_are_counted(model_of):
    model = model_of("llama")
    grouped = SimpleNamespace(
        dtype=torch.float32, d_model=model.d_model, device=torch.device("cuda"),
        config=SimpleNamespace(num_attention_heads=8, num_key_value_heads=2, intermediate_size=64),
    )  # fmt: skip
    plain = SimpleNamespace(**vars(grouped) | {"device": torch.device("cpu")})
    assert LanguageModel.call_bytes(grouped, 100) - LanguageModel.call_bytes(plain, 100) == 8 * 100 * 12
    assert LanguageModel.call_bytes(SimpleNamespace(**vars(grouped) | {"dtype": torch.bfloat16}), 100) > 0


def test_a_scale_of_the_stream_comes_home_from_its_blocks_gpu():
    """On another device the two could not be multiplied."""
    h = torch.ones(1, 2, 3)
    model = SimpleNamespace(
        blocks=[SimpleNamespace(layer_scalar=torch.ones(1, device="meta"))],
        architecture=SimpleNamespace(stream_scale="layer_scalar"),
        _home=lambda x: torch.full_like(x, 0.5, device="cpu") if x.device.type == "meta" else x,
    )
    other = LanguageModel._other(model, 0, h, h, h, None)
    assert other.device.type == "cpu" and torch.equal(other, torch.full((1, 2, 3), -1.5))


def test_products_are_of_full_float32_whatever_was_asked_for_before(small_folder):
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    opening.open_model(resolve(str(small_folder)))
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_certificate_names_the_gpu_and_how_it_multiplies(gpus):
    gpus(GIB, GIB)
    with devices.settled_arithmetic():
        told = devices.certificate(torch.device("cuda:0"))
    assert told["gpu"] == "GPU of tests" and told["tf32"] is False and "cuDNN" not in told["attention_kernels"]
    assert devices.certificate(torch.device("cpu")) == {}


class Placed(torch.Tensor):
    """A tensor that says it is elsewhere. A device of MPS has no float64."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.place)

    def double(self) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    def cpu(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def placed(values: torch.Tensor, place: str) -> Placed:
    found = values.as_subclass(Placed)
    found.place = place
    return found


def model_on(device: str) -> LanguageModel:
    """A model without anything but its device."""
    model = object.__new__(LanguageModel)
    model.device, model.spec = torch.device(device), ModelSpec("m")
    return model


def test_float64_is_taken_on_the_cpu_where_a_device_has_none():
    assert wide(placed(torch.ones(2), "mps")).dtype == wide(torch.ones(2)).dtype == torch.float64
    with pytest.raises(FitRefused, match="Fits sum in float64, which mps has not"):
        streams.Streams(model_on("mps"), [])


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
    for module in (identities, staircase, gradients, surgery, loops):
        monkeypatch.setattr(module, "wide", lambda x: FLOAT64(x.as_subclass(torch.Tensor)))


@pytest.mark.parametrize(
    "probe",
    [ResidualErasure("future", BACKGROUND), IntegratedGradients(nodes=17), Surgery(), Numerics()],
    ids=lambda probe: probe.name,
)
def test_probes_take_float64_of_nothing_on_the_device(model_of, no_float64, probe):
    """Every model was refused on MPS."""
    model = model_of("llama")
    assert compute.run(model, probe.request(model.spec, ASKED)).complete


def test_sums_are_checked_without_float64_on_the_device(model_of, no_float64):
    verify.verify(model_of("llama")).require(model_of("llama").architecture)


def test_a_background_is_summed_without_float64_on_the_device(model_of, no_float64):
    record = SimpleNamespace(check=lambda: None, provenance={})
    assert staircase.background_mean(model_of("llama"), [ASKED], record).isfinite().all()


def test_a_gpu_is_calibrated_by_what_fills_it_and_waited_for_where_it_is(monkeypatch):
    """Of 384 tokens a launch was measured, and of another GPU than the first nothing was waited for."""
    asked, waited = [], []
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: asked.append(shape) or randn(1, 1))
    monkeypatch.setattr(devices, "_maps", lambda weights: {"fp32": lambda x: x})
    devices.measure_rates("cuda:1")
    assert asked == [(8192, 8192), (8, 8192), (8192, 8192)]
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    devices._seconds(lambda x: x, placed(torch.ones(1), "cuda:1"))
    assert set(waited) == {torch.device("cuda:1")}


# ---------------------------------------------------------------- several processes


def test_processes_have_a_gpu_each(monkeypatch):
    monkeypatch.setattr(machine, "gpus", lambda: ["0", "1"])
    assert [machine.share(i, 2)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["0", "1"]
    for n, device in ((3, "cuda"), (2, "cuda:0")):
        with pytest.raises(ParameterError, match=f"--processes is {n}, and"), executor(n, "", device):
            pass


def test_a_defect_is_no_lost_device(model_of, monkeypatch):
    model = model_of("llama")
    monkeypatch.setattr(model, "encode", lambda *_: raise_(RuntimeError("shapes")))
    with pytest.raises(JobError, match="This is a defect") as caught:
        compute.run(model, LogitLens().request(model.spec, ASKED))
    assert not isinstance(caught.value, DeviceFailed)


# ---------------------------------------------------------------- a GPU that is there is used


def test_auto_is_a_gpu_where_there_is_one_and_the_default_everywhere(gpus, monkeypatch):
    """All said cpu, beside any GPU."""
    import inspect

    import ed_core
    from ed_core.commands import parser
    from ed_core.work.runs.fit import Opened

    words = {
        "run": ["contributions", "--model", "m", "--prompts", "p", "--out", "o"],
        "verify": ["m"],
        "estimate": ["m"],
        "audit": ["m"],
        "study": ["s.toml", "--out", "o"],
        "claims": ["--model", "m", "--set", "s", "--out", "o"],
        "card": ["--model", "m", "--set", "s", "--out", "o"],
        "fit": ["affine", "--model", "m", "--set", "s", "--out", "o"],
    }
    assert {parser().parse_args([name, *given]).device for name, given in words.items()} == {"auto"}
    assert inspect.signature(ed_core.open).parameters["device"].default == "auto"
    assert Opened("m").device == "auto"
    monkeypatch.setattr(notebook, "may_have_gpu", lambda: False)
    monkeypatch.setattr(devices, "pick", lambda name: pytest.fail("torch is asked"))
    assert notebook.on("auto") == ("cpu", None)
    monkeypatch.undo()


def test_auto_takes_what_is_listed_first(gpus, monkeypatch):
    gpus(10 * GIB, 80 * GIB)
    monkeypatch.setattr(notebook, "may_have_gpu", lambda: True)
    assert devices.devices() == ["cuda", "cuda:0", "cuda:1", "cpu"] and devices.pick("auto") == "cuda"
    assert notebook.on("auto") == ("cuda", 20 * GIB) and notebook.on("cpu") == ("cpu", None)


def test_the_app_takes_the_first_device_and_its_header_shows_it(monkeypatch):
    from ed_ui import inputs, picker, running, session

    held = {}
    monkeypatch.setattr(inputs, "value", lambda key, default=None: held.get(key, default))
    for told, expected in (({}, "cpu"), ({"cuda": 1, "cuda:0": 1, "cpu": 1}, "cuda")):
        monkeypatch.setattr(running, "jobs", lambda told=told: SimpleNamespace(devices=told))
        assert picker.device() == expected
    held["device"] = "cpu"
    assert picker.device() == "cpu", "what is asked for is taken"
    del held["device"]
    choice = picker.Choice(ModelSpec("ed-demo-8", device="cuda"), None)
    monkeypatch.setattr(session, "once_a_run", lambda key, make: choice)
    monkeypatch.setattr(picker, "source", lambda: "ed-demo-8")
    assert " · cuda · " in picker._named().replace("\\", "")
