"""`python -m ed_core bench gpu`: what is promised of one device, in one process, in nine minutes at most: every probe
in every precision against float32 on the CPU, batch sizes, memory that runs out, a device that fails, and a 7B shape.

Written for a bare machine: torch, transformers, numpy and what `ed_core` itself imports; no network, no model but those
that are random or bundled. On a CPU it runs whole on a toy, which shows that it runs, and no speed. A part that fails
is a row that says so, and the next one begins."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from ed_core import machine
from ed_core.errors import EffectiveDepthError, lost_device
from ed_core.models import devices, families, opening
from ed_core.models.identities import Identities
from ed_core.models.language_model import LanguageModel
from ed_core.models.verify import verify
from ed_core.probes import PROBES, Contributions, IntegratedGradients, LayerSkip, LogitLens, ResidualErasure, Surgery
from ed_core.service import compute, estimate
from ed_core.service.resolve import resolve
from ed_core.sources import sizes
from ed_core.types import ModelSpec, Prompt

from . import Row
from .random_model import prompt, random_llama, word_tokenizer

SECONDS = 540.0  # of the whole pack; parts that have not begun by then are left out, and say so
ASKED = Prompt("5 + 7 + 5 = ", "17")
SMALL = "ed-demo-8"
AGREEMENT = {"fp32": 1e-4}  # of a measure's largest value, against float32 on the CPU: two devices sum in other orders
PRECISIONS = ("fp32", "bf16", "fp16")
QUANTIZED = ("int8", "4bit")  # where bitsandbytes is installed
ROUNDED = {"noise_floor", "completeness_error"}  # what another summation order leaves: compared with nothing
FAMILIES = ("llama", "qwen3", "gemma2", "mixtral")
BATCHES = (1, 3, 33)
REPEATS = 20
PER_BLOCK, PER_PASS = 2, 8  # times that the host may wait
SWEEP, PANEL = 0.150, 0.2  # seconds asked of the 7B shape: the sweep, and the first panel


@dataclass(frozen=True)
class Shape:
    """A model's: layers, width, vocabulary, and the tokens of the prompt."""

    layers: int
    width: int
    vocabulary: int
    tokens: int


TOY, SEVEN = Shape(3, 32, 64, 12), Shape(32, 4096, 32000, 256)
WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12}
Part = Callable[[str, bool], Iterator[Row]]


def pack(device: str, out: str = "", seconds: float = SECONDS) -> list[Row]:
    """Every part on a device; where `out` is given, the figures as JSON. On a CPU a toy stands for every size."""
    device = devices.pick(device)
    toy, begun, rows, told = device == "cpu", time.monotonic(), [], []
    for name, part in PARTS.items():
        started = time.monotonic()
        for row in _of_part(name, part, device, toy, seconds - (started - begun)):
            print(f"{row.what:<58} {row.measured:<40} {row.target:<24} {'ok' if row.ok else 'missed'}", flush=True)
            rows.append(row)
            told.append(asdict(row) | {"part": name})
        print(f"# {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        clean(device)
    if out:
        about = {"device": device, "toy": toy, "seconds": round(time.monotonic() - begun, 1), **versions(device)}
        Path(out).write_text(json.dumps({"about": about, "rows": told}, indent=1) + "\n")
    return rows


def _of_part(name: str, part: Part, device: str, toy: bool, left: float) -> Iterator[Row]:
    if left <= 0:
        yield Row(f"{name}: left out", "no time was left", "", False)
        return
    try:
        yield from part(device, toy)
    except Exception as error:  # whatever a device does: the other parts are measured all the same
        traceback.print_exc()
        yield Row(f"{name}: failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", "a figure", False)


def markdown(rows: list[Row]) -> str:
    """The table for docs/benchmarks.md."""
    head = ["| what | measured | target | |", "|---|---|---|---|"]
    return "\n".join(
        [*head, *(f"| {r.what} | {r.measured} | {r.target} | {'ok' if r.ok else 'missed'} |" for r in rows)]
    )


def clean(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def took(device: str, work: Callable[[], object]) -> float:
    wait(device)
    begun = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begun


def versions(device: str) -> dict[str, object]:
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **devices.certificate(torch.device(device if device != "cuda" else "cuda:0")),
    }


# ---------------------------------------------------------------- the parts


def about(device: str, toy: bool) -> Iterator[Row]:
    """What computes here."""
    devices.settle_arithmetic()
    yield Row("device", f"{device}, {devices.free_bytes(device) / 1e9:.1f} GB free", "", True)
    for name, value in versions(device).items():
        yield Row(name, str(value), "off" if name == "tf32" else "", name != "tf32" or not value)


def model_of(family: str, precision: str, device: str, toy: bool) -> LanguageModel:
    """A random model of a family, at a real width but for a toy."""
    vocabulary = {"vocab_size": TOY.vocabulary}
    made = families.random_model(
        family, precision, word_tokenizer(TOY.vocabulary), **({} if toy else WIDE) | vocabulary
    )
    return LanguageModel(made.hf.to(one(device)), made.tokenizer, made.architecture, made.spec)


def one(device: str) -> str:
    """A single device."""
    return "cuda:0" if device == "cuda" else device


def identities(device: str, toy: bool) -> Iterator[Row]:
    """The sums of every family in every precision, other rows beside, and nothing left behind."""
    for family in FAMILIES[: 2 if toy else None]:
        for precision in PRECISIONS:
            model = model_of(family, precision, device, toy)
            found: Identities = verify(model)
            failures = found.failures()
            figures = (
                f"miss {max(found.miss):.1e}, replay {max(found.replay.values()):.1e}, beside rows {found.batch:.1e}"
            )
            limits = f"<= {found.miss_limit:.0e}"
            yield Row(f"sums of {family}, {precision}", failures[0] if failures else figures, limits, not failures)
            ids = model.tensor(model.encode(prompt(TOY.tokens, TOY.vocabulary)))
            alone = model.logits(ids, keep=1)
            apart = [
                float((model.logits(ids.repeat(n, 1), keep=1) - alone).abs().max() / alone.abs().max()) for n in BATCHES
            ]
            told = ", ".join(f"{n}: {value:.1e}" for n, value in zip(BATCHES, apart))
            yield Row(f"logits of so many rows, {family}, {precision}", told, "", True)
            before = model.logits(ids)
            same = all(torch.equal(_traced(model, ids), before) for _ in range(2 if toy else REPEATS))
            yield Row(
                f"logits after repeated traces, {family}, {precision}",
                "the same" if same else "changed",
                "the same",
                same,
            )


def _traced(model: LanguageModel, ids: torch.Tensor) -> torch.Tensor:
    model.trace(ids)
    return model.logits(ids)


def opened(device: str, precision: str) -> LanguageModel:
    named = os.environ.get("ED_BENCH_MODEL", SMALL)
    return opening.open_model(resolve(named, precision=precision, device=device))


def probes(device: str, toy: bool) -> Iterator[Row]:
    """Every probe in every precision against float32 on the CPU, and float32 twice."""
    reference, known = opened("cpu", "fp32"), {}
    for precision in (*PRECISIONS, *QUANTIZED * machine.installed("bitsandbytes")):
        model = opened(device, precision)
        for probe in PROBES:
            try:
                asked = probe.make({})
                asked.check_precision(precision)
                if probe not in known:
                    known[probe] = compute.run(reference, asked.request(reference.spec, ASKED))
            except EffectiveDepthError as error:
                if precision == PRECISIONS[0]:
                    yield Row(f"{probe.name}: not for this model", " ".join(str(error).split())[:80], "", True)
                continue
            found, expected = compute.run(model, asked.request(model.spec, ASKED)), known[probe]
            (apart, name), limit = furthest(found.measures, expected.measures), AGREEMENT.get(precision)
            ok = limit is None or apart <= limit
            told = f"{apart:.1e} from fp32 on the CPU" + f" ({name})" * bool(apart)
            yield Row(f"{probe.name}, {precision}", told, f"<= {limit}" if limit else "", ok)
            if precision == PRECISIONS[0]:
                again = difference(compute.run(model, asked.request(model.spec, ASKED)).measures, found.measures)
                yield Row(f"{probe.name}, twice", f"{again:.1e}", "0", again == 0)


def furthest(found, expected) -> tuple[float, str]:
    """The largest difference of any float measure, of its largest value, and which it is; measures of another shape are
    left out, and those that are nothing but rounding."""
    worst = 0.0, ""
    for name, measure in expected.items():
        a, b = np.asarray(found[name].values), np.asarray(measure.values)
        if name in ROUNDED or a.dtype.kind != "f" or a.shape != b.shape or not np.isfinite(b).any():
            continue
        apart = float(np.nanmax(np.abs(a - b)) / max(float(np.nanmax(np.abs(b))), 1e-3))
        worst = max(worst, (apart, name))
    return worst


def difference(found, expected) -> float:
    return furthest(found, expected)[0]


def reads(device: str, toy: bool) -> Iterator[Row]:
    """How often the host waits for the device while a probe runs, where torch counts that: on CUDA."""
    if not device.startswith("cuda"):
        yield Row("waits of the host", f"not counted on {device}", "", True)
        return
    model = opened(device, "fp32")
    most = PER_BLOCK * model.n_layers + PER_PASS
    for probe in (Contributions(), LogitLens(), LayerSkip(), Surgery()):
        request = probe.request(model.spec, ASKED)
        compute.run(model, request)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                compute.run(model, request)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        n = sum("synchronizing" in str(one.message) for one in told)
        yield Row(f"waits of the host, {probe.name}", str(n), f"<= {most}", n <= most)


def memory(device: str, toy: bool) -> Iterator[Row]:
    """Every sweep where memory runs out, and the one after it. On a GPU by a limit on the process, else injected."""
    model = opened(device, "fp32")
    run_block = LanguageModel.run_block

    def narrow(self, trace, layer, resid, *more, **options):
        if len(resid) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory, as injected")
        return run_block(self, trace, layer, resid, *more, **options)

    for probe in (LayerSkip(), ResidualErasure("future"), IntegratedGradients(nodes=17)):
        request = probe.request(model.spec, ASKED)
        whole = compute.run(model, request)
        LanguageModel.run_block = narrow
        try:
            halved = compute.run(model, request)
        finally:
            LanguageModel.run_block = run_block
        after = compute.run(model, request)
        apart, times = difference(halved.measures, whole.measures), halved.provenance["memory"]["halved"]
        yield Row(
            f"{probe.name} where memory runs out", f"halved {times} times, {apart:.1e} apart", "<= 0.0001",
            times > 0 and apart <= 1e-4,
        )  # fmt: skip
        later = difference(after.measures, whole.measures)
        yield Row(f"{probe.name} afterwards", f"{later:.1e} apart", "0", later == 0)
    if device.startswith("cuda"):
        yield from _limited(device)


def _limited(device: str) -> Iterator[Row]:
    """A limit on what torch may have of the device: a model that does not fit is refused, and the next one opens."""
    torch.cuda.set_per_process_memory_fraction(0.01, 0)
    try:
        random = random_llama(4, 4096, 32000)
        random.hf.to(device)
        yield Row("a model beyond a limit of memory", "was opened", "runs out", False)
    except Exception as error:
        yield Row(
            "a model beyond a limit of memory", type(error).__name__, "runs out", "OutOfMemory" in type(error).__name__
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    clean(device)
    opened(device, "fp32")
    yield Row("the model after it", "opens", "opens", True)


def seven(device: str, toy: bool) -> Iterator[Row]:
    """A 7B shape in bf16: the sweep, the first panel, and the memory above the weights against what is estimated."""
    shape = TOY if toy else SEVEN
    model = _shaped(shape, device)
    ids, cuda = prompt(shape.tokens, shape.vocabulary), device.startswith("cuda")
    for probe, target in ((LayerSkip(), SWEEP), (Contributions(), PANEL), (LogitLens(), PANEL)):
        request = probe.request(model.spec, ids)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if cuda else 0
        first, *more = (took(device, lambda: compute.run(model, request)) for _ in range(2 if toy else 6))
        second = sorted(more)[len(more) // 2]
        ok = toy or second <= target
        told = f"{1e3 * first:.0f} ms, then {1e3 * second:.0f} ms"
        yield Row(
            f"{probe.name}, {shape.layers} x {shape.width}, {shape.tokens} tokens",
            told,
            f"<= {1e3 * target:.0f} ms",
            ok,
        )
        if cuda:
            size = sizes.read(model.config.to_dict())
            (need,) = estimate.estimate(size, "bf16", shape.tokens, device, 0, [probe]).needs
            peak = torch.cuda.max_memory_allocated() - held
            yield Row(
                f"{probe.name}, memory above the weights",
                f"{peak / 1e9:.2f} GB",
                f"<= {need.activations / 1e9:.2f} GB",
                peak <= need.activations,
            )
    request = LayerSkip().request(model.spec, ids)
    model.trace_bytes = 1 << 40
    compute.run(model, Contributions().request(model.spec, ids))
    behind = [took(device, lambda: compute.run(model, request)) for _ in range(5)]
    yield Row(
        "layer_skip behind another panel",
        f"{1e3 * sorted(behind)[2]:.0f} ms",
        f"<= {1e3 * SWEEP:.0f} ms",
        toy or sorted(behind)[2] <= SWEEP,
    )
    model.trace_bytes = 0
    if cuda:
        torch.backends.cuda.enable_cudnn_sdp(True)
        slow = [took(device, lambda: compute.run(model, request)) for _ in range(2)]
        torch.backends.cuda.enable_cudnn_sdp(False)
        yield Row("the sweep with cuDNN's attention", f"{1e3 * slow[0]:.0f} ms, then {1e3 * slow[1]:.0f} ms", "", True)


def _shaped(shape: Shape, device: str) -> LanguageModel:
    """A random Llama in bf16, made on its device: 7B in float32 on the host would take longer than all the rest."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from ed_core.architectures import find

    config = AutoConfig.for_model(
        "llama", vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=int(2.6875 * shape.width),
        num_hidden_layers=shape.layers, num_attention_heads=max(shape.width // 128, 2), max_position_embeddings=4096,
    )  # fmt: skip
    with torch.device(one(device)):
        hf = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    spec = ModelSpec("random", content_hash=str(shape), precision="bf16", device=one(device))
    model = LanguageModel(hf, word_tokenizer(shape.vocabulary), find("llama"), spec)
    verify(model).require(model.architecture)
    return model


def products(device: str, toy: bool) -> Iterator[Row]:
    """What TF32 would do to a product, that opening switches it off, and how fast this device is."""
    n = 256 if toy else 4096
    a, b = (torch.randn(n, n, device=one(device)) for _ in range(2))
    exact = (a.cpu().double() @ b.cpu().double()) if toy else None
    torch.set_float32_matmul_precision("high")
    fast = a @ b
    opened(device, "fp32")
    full = a @ b
    apart = float((fast - full).abs().max() / full.abs().max())
    on = torch.get_float32_matmul_precision()
    yield Row("float32 products after opening", on, "highest", on == "highest")
    yield Row("a product with TF32 asked for", f"{apart:.1e} from full float32", "", True)
    if exact is not None:
        off = float((full.cpu().double() - exact).abs().max() / exact.abs().max())
        yield Row("a product against float64", f"{off:.1e}", "<= 1e-05", off <= 1e-5)
    if device != "mps":
        seconds = took(device, lambda: a.double() @ b.double())
        yield Row("float64 products", f"{2 * n**3 / seconds / 1e12:.2f} TFLOP/s", "", True)
    for precision, (read, multiply) in ({} if toy else devices.measure_rates(device)).items():
        yield Row(f"rates, {precision}", f"{read:.1e} s a weight, {multiply:.1e} s a weight and token", "", True)


def worker(device: str, toy: bool) -> Iterator[Row]:
    """A worker process computes and is cancelled; a device that fails is told from a defect, and a new process uses
    it."""
    from ed_core.errors import Cancelled
    from ed_core.service.jobs import Jobs

    queue = Jobs()
    try:
        request = LayerSkip().request(resolve(SMALL, device=device), ASKED)
        job = queue.submit(request, "bench")
        _until(lambda: queue.poll(job).over, 120)
        yield Row("a job of a worker", job.state, "done", job.state == "done")
        other = ResidualErasure("future").request(resolve(SMALL, device=device), Prompt("3 + 4 = " * 12, "7"))
        job = queue.submit(other, "bench")
        queue.cancel(job, "bench")
        _until(lambda: job.over, 60)
        ok = job.state == "cancelled" and (job.error is None or isinstance(job.error, Cancelled))
        yield Row("a job that is cancelled", job.state, "cancelled", ok)
    finally:
        queue.close()
    if device.startswith("cuda"):
        code = "import torch; torch.zeros(2, 2, device='cuda')[torch.tensor([7], device='cuda')].sum().item()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        said = next((line for line in done.stderr.splitlines()[::-1] if "Error" in line), "")
        ok = lost_device(RuntimeError(said))
        yield Row("an assert in a kernel", said[:60] or "nothing was said", "a lost device", ok)


def _until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)


PARTS: dict[str, Part] = {
    "about": about,
    "identities": identities,
    "probes": probes,
    "reads": reads,
    "memory": memory,
    "7B": seven,
    "products": products,
    "worker": worker,
}
