"""A token written with its depth, against the plain token: same keys and values kept, same threads.

Both write the same tokens greedily; the first, which reads the prompt, is not counted. CPU seconds; the ratio is the
median of the rounds' own. The model has SmolLM2's size and random weights;
ED_BENCH_MODEL names a real one."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from ed_core.models.language_model import LanguageModel
from ed_core.probes import Generation
from ed_core.sweeps.recorder import Recorder
from ed_core.types import Encoding, Prompt

from . import Row
from .lens import opened

N_TOKENS, ROUNDS, TARGET = 24, 5, 1.8


def measure() -> list[Row]:
    model, asked = opened(os.environ.get("ED_BENCH_MODEL", ""))
    encoding = model.encode(asked)
    rounds = [(with_depth(model, asked, encoding), plain(model, encoding)) for _ in range(ROUNDS + 1)][1:]
    ratio = statistics.median(depth / alone for depth, alone in rounds)
    depth, alone = (1000 * statistics.median(seconds) for seconds in zip(*rounds))
    size = f"{model.n_layers} x {model.d_model}, V = {model.d_vocab}, {len(encoding)} tokens read"
    measured = f"{ratio:.2f} x ({depth:.0f} ms for {alone:.0f} ms)"
    return [Row(f"a written token with its depth ({size})", measured, f"<= {TARGET} x", ratio <= TARGET)]


def with_depth(model: LanguageModel, asked: Prompt, encoding: Encoding) -> float:
    """CPU seconds for each token after the first."""
    probe, times = Generation(n_tokens=N_TOKENS), []
    record = Recorder(probe.request(model.spec, asked), probe.measures, encoding, model.n_layers)
    step = record.step
    record.step = lambda progress: (step(progress), times.append(time.process_time()))[0]
    probe.compute(model, encoding, record)
    return _each(times)


def plain(model: LanguageModel, encoding: Encoding) -> float:
    """The same of the continuation alone."""
    times: list[float] = []
    told: Callable = lambda step, logits: times.append(time.process_time())  # noqa: E731
    model.continuation(model.tensor(encoding.ids[: encoding.answer_start or len(encoding)]), N_TOKENS, told)
    return _each(times)


def _each(times: list[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)
