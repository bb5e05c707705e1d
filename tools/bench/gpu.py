"""`python -m tools.bench gpu`: one device, in a few minutes. Identities, every probe in every precision against
float32 on the CPU, waits of the host, memory that runs out, a 7B shape, a worker process.

Needs torch, transformers, numpy and what `ed_core` imports; no network, and only random or bundled models. On a CPU a
toy model takes the place of every size: that shows that the program runs, and no speed. A part that fails becomes a
row, and the next part begins. `tests/gpu` runs the same parts as tests."""

from __future__ import annotations

import gc
import json
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import transformers

from ed_core import machine
from ed_core.errors import EffectiveDepthError
from ed_core.models import devices, opening, sizes
from ed_core.models.language_model import LanguageModel
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.probes import PROBES, Contributions, IntegratedGradients, LayerSkip, LogitLens, ResidualErasure, Surgery
from ed_core.types import Measure, Prompt
from ed_core.work import compute, estimate
from ed_core.work import measure as requests
from ed_core.work.queue import Queue

from .. import families
from . import Row
from .random_model import prompt, random_llama, word_tokenizer

ASKED, SMALL = Prompt("5 + 7 + 5 = ", "17"), "ed-demo-8"
AGREEMENT = 1e-4  # of a measure's largest value, in float32: two devices sum in different orders
PRECISIONS = ("fp32", "bf16", "fp16")
ROUNDING = {"noise_floor", "completeness_error"}  # measures that are nothing but rounding: not compared
FAMILIES = ("llama", "qwen3", "gemma2", "mixtral")
TOY, SEVEN_B = (3, 32, 64, 12), (32, 4096, 32000, 256)  # layers, width, vocabulary, tokens
WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12}
Part = Callable[[str, bool], Iterator[Row]]


def measure(device: str, out: str = "") -> Iterator[Row]:
    """Rows of every part on a device, as they come; also written as JSON where `out` names a file."""
    toy, written = (device := devices.pick(device)) == "cpu", []
    for name, part in PARTS.items():
        for row in rows_of(name, part, device, toy):
            written.append(asdict(row) | {"part": name})
            yield row
        clean(device)
    if out:
        file = {"about": {"device": device, "toy": toy, **versions(device)}, "rows": written}
        Path(out).write_text(json.dumps(file, indent=1) + "\n", encoding="utf-8")


def rows_of(name: str, part: Part, device: str, toy: bool) -> Iterator[Row]:
    try:
        yield from part(device, toy)
    except Exception as error:  # whatever the device does: the other parts are still measured
        traceback.print_exc(file=sys.stderr)
        yield Row(f"{name}: failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", "", False)


def clean(device: str) -> None:
    """Free what the last part held."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def seconds_of(device: str, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - start


def versions(device: str) -> dict[str, object]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    return found | devices.certificate(torch.device(single(device)))


def single(device: str) -> str:
    return "cuda:0" if device == "cuda" else device


def opened(device: str, precision: str = "fp32") -> LanguageModel:
    return opening.open_model(ModelRef.parse(SMALL, precision=precision, device=device))


def furthest(measures: dict[str, Measure], expected: dict[str, Measure]) -> tuple[float, str]:
    """The largest difference of any float measure over its largest value, and that measure's name."""
    worst = 0.0, ""
    for name, measure in expected.items():
        a, b = np.asarray(measures[name].values), np.asarray(measure.values)
        if name not in ROUNDING and a.dtype.kind == "f" and a.shape == b.shape and np.isfinite(b).any():
            worst = max(worst, (float(np.nanmax(np.abs(a - b)) / max(float(np.nanmax(np.abs(b))), 1e-3)), name))
    return worst


# ---------------------------------------------------------------- the parts


def about(device: str, toy: bool) -> Iterator[Row]:
    """The device and its libraries."""
    devices.settle_arithmetic()
    yield Row("device", f"{device}, {devices.free_bytes(device) / 1e9:.1f} GB free", "", True)
    for name, value in versions(device).items():
        yield Row(name, str(value), "off" if name == "tf32" else "", name != "tf32" or not value)


def identities(device: str, toy: bool) -> Iterator[Row]:
    """The sums of random models in every precision, and traces that leave nothing behind."""
    for family in FAMILIES[: 2 if toy else None]:
        for precision in PRECISIONS:
            size = {"vocab_size": TOY[2]} | ({} if toy else WIDE)
            made = families.random_model(family, precision, word_tokenizer(TOY[2]), **size)
            model = LanguageModel(made.hf.to(single(device)), made.tokenizer, made.architecture, made.spec)
            figures = verify(model)
            failures = figures.failures()
            measured = failures[0] if failures else f"miss {max(figures.miss):.1e}, other rows {figures.batch:.1e}"
            yield Row(f"sums of {family}, {precision}", measured, f"<= {figures.miss_limit:.0e}", not failures)
            ids = model.tensor(model.encode(prompt(TOY[3], TOY[2])))
            before = model.logits(ids)
            for _ in range(2 if toy else 20):
                model.trace(ids)
            same = torch.equal(model.logits(ids), before)
            yield Row(f"logits after traces, {family}, {precision}", "same" if same else "changed", "same", same)


def probes(device: str, toy: bool) -> Iterator[Row]:
    """Every probe in every precision against float32 on the CPU; in float32 also twice."""
    reference, expected = opened("cpu"), {}
    for precision in (*PRECISIONS, *("int8", "4bit") * machine.installed("bitsandbytes")):
        model = opened(device, precision)
        for kind in PROBES:
            probe = kind.make(dict.fromkeys(kind.further_prompts(), "Nine b = "))
            try:
                probe.check_precision(precision)
                if kind not in expected:
                    expected[kind] = compute.run(reference, probe.request(reference.spec, ASKED)).measures
            except EffectiveDepthError:
                continue  # a probe of looped models, or one that this precision cannot have
            measures = compute.run(model, probe.request(model.spec, ASKED)).measures
            apart, name = furthest(measures, expected[kind])
            if precision != "fp32":
                yield Row(f"{kind.name}, {precision}", f"{apart:.1e} ({name})", "", True)
            else:
                yield Row(f"{kind.name}, fp32", f"{apart:.1e} ({name})", f"<= {AGREEMENT}", apart <= AGREEMENT)
                again, _ = furthest(compute.run(model, probe.request(model.spec, ASKED)).measures, measures)
                yield Row(f"{kind.name}, twice", f"{again:.1e}", "0", again == 0)


def reads(device: str, toy: bool) -> Iterator[Row]:
    """How often the host waits for the device while a probe runs; torch counts that on CUDA only."""
    if not device.startswith("cuda"):
        yield Row("waits of the host", f"not counted on {device}", "", True)
        return
    model = opened(device)
    most = 2 * model.n_layers + 8  # a few for each layer
    for probe in (Contributions(), LogitLens(), LayerSkip(), Surgery()):
        request = probe.request(model.spec, ASKED)
        compute.run(model, request)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                compute.run(model, request)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        n = sum("synchronizing" in str(warning.message) for warning in caught)
        yield Row(f"waits of the host, {probe.name}", str(n), f"<= {most}", n <= most)


def memory(device: str, toy: bool) -> Iterator[Row]:
    """Sweeps whose memory runs out (injected), and the same sweep again afterwards."""
    model = opened(device)
    run_block = LanguageModel.run_block

    def narrow(self, trace, layer, resid, *more, **options):
        if len(resid) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory, injected")
        return run_block(self, trace, layer, resid, *more, **options)

    for probe in (LayerSkip(), ResidualErasure("future"), IntegratedGradients(nodes=17)):
        request = probe.request(model.spec, ASKED)
        whole = compute.run(model, request).measures
        LanguageModel.run_block = narrow
        try:
            halved = compute.run(model, request)
        finally:
            LanguageModel.run_block = run_block
        (apart, _), times = furthest(halved.measures, whole), halved.provenance["memory"]["halved"]
        ok = times > 0 and apart <= AGREEMENT
        yield Row(f"{probe.name} out of memory", f"halved {times} times, {apart:.1e} apart", f"<= {AGREEMENT}", ok)
        later, _ = furthest(compute.run(model, request).measures, whole)
        yield Row(f"{probe.name} afterwards", f"{later:.1e} apart", "0", later == 0)


def seven(device: str, toy: bool) -> Iterator[Row]:
    """A 7B shape in bf16: seconds of a panel and of the sweep, and memory above the weights against its estimate."""
    layers, width, vocabulary, tokens = TOY if toy else SEVEN_B
    shape = {"intermediate_size": int(2.6875 * width), "num_attention_heads": max(width // 128, 2)}
    model = random_llama(layers, width, vocabulary, torch.bfloat16, single(device), **shape)
    asked, cuda = prompt(tokens, vocabulary), device.startswith("cuda")
    for probe, limit in ((LayerSkip(), 0.15), (Contributions(), 0.2), (LogitLens(), 0.2)):
        request = probe.request(model.spec, asked)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if cuda else 0
        first, *more = (seconds_of(device, lambda: compute.run(model, request)) for _ in range(2 if toy else 6))
        later = sorted(more)[len(more) // 2]
        what = f"{probe.name}, {layers} x {width}, {tokens} tokens"
        ms = f"{1e3 * first:.0f}, {1e3 * later:.0f} ms"
        yield Row(what, ms, f"<= {1e3 * limit:.0f} ms", toy or later <= limit)
        if cuda:
            size = sizes.read(model.config.to_dict())
            (need,) = estimate.estimate(size, "bf16", tokens, device, 0, [probe]).needs
            peak, most = torch.cuda.max_memory_allocated() - before, need.activations
            yield Row("  memory above the weights", f"{peak / 1e9:.2f} GB", f"<= {most / 1e9:.2f} GB", peak <= most)


def worker(device: str, toy: bool) -> Iterator[Row]:
    """A job in a worker process."""
    jobs = Queue()
    try:
        job = requests.submit(jobs, LayerSkip().request(ModelRef.parse(SMALL, device=device), ASKED), "bench")
        end = time.monotonic() + 120
        while not jobs.poll(job).over and time.monotonic() < end:
            time.sleep(0.05)
        yield Row("a job in a worker", job.state, "done", job.state == "done")
    finally:
        jobs.close()


PARTS: dict[str, Part] = {p.__name__: p for p in (about, identities, probes, reads, memory, seven, worker)}
