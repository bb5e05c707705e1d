"""What each probe must at least take on this machine, and what it takes.

For a part of the model (its layers, or its head) with W weights that a probe calls on so many tokens, the floor is the
longer of two times: reading the weights once for every pass that cannot share them (one, and one for every token that
is written), and multiplying, 2 W for each token. The rates are this machine's, measured on one thread: reading, by the
product of one row with weights that fit no cache; multiplying, by products of the very shapes and rows. Attention's
scores, norms and what is measured of each distribution take time too and are not in the floor. CPU seconds, the fastest
of a few."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ed_core.errors import EffectiveDepthError
from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.probes import PROBES, Probe
from ed_core.sources import sizes
from ed_core.sources.specs import config_of
from ed_core.sweeps.budget import TOKENS_PER_CALL
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve

from . import Row
from .home import STORY

LENGTHS = (7, 20, 64, 256)
SLOW = {"residual_erasure", "integrated_gradients", "surgery"}  # timed once, at the first length
ROUNDS = 3
TARGET = 2.0  # x, the four panels of Home together
READ_BYTES, FLOAT = 256 << 20, 4
HEAD_ROWS = 256  # at once, as the lens takes them
SEVEN = {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
SHEET = (3.35e12, 989e12)  # bytes and bf16 operations a second, of an H100's data sheet


@dataclass(frozen=True)
class Part:
    """Of a model: its weights, in maps of (outputs, inputs, how often)."""

    maps: tuple[tuple[int, int, int], ...]

    @property
    def weights(self) -> int:
        return sum(outputs * inputs * n for outputs, inputs, n in self.maps)


@dataclass(frozen=True)
class Rates:
    """Bytes read a second, and operations a second of products of these maps with so many rows."""

    read: float
    multiply: Callable[[Part, int], float]
    unit: int = FLOAT

    def seconds(self, part: Part, passes: float, tokens: float, rows: int) -> float:
        """The floor of a part that is read `passes` times, and multiplied with `tokens` rows, `rows` at once."""
        read = passes * part.weights * self.unit / self.read
        return max(read, 2 * part.weights * tokens / self.multiply(part, max(1, rows)))


def parts(size: sizes.Size) -> tuple[Part, Part]:
    """The layers, and the head."""
    layers = tuple((outputs, inputs, size.n_layers) for outputs, inputs, _ in size.maps)
    return Part(layers), Part(((size.d_vocab, size.d_model, 1),))


def floor(probe: Probe, size: sizes.Size, n_tokens: int, rates: Rates) -> float:
    """Seconds that a probe cannot do without. `probe.work` counts calls of a layer on a row of the prompt, and rows of
    the head."""
    (layers, head), (calls, unembedded) = parts(size), probe.work(size.n_layers, n_tokens)
    passes, written = calls / size.n_layers, probe.further_tokens
    rows = min(TOKENS_PER_CALL["cpu"], int(passes * n_tokens))
    return rates.seconds(layers, 1 + written, passes * n_tokens + written, rows) + rates.seconds(
        head, 1 + written, unembedded, min(HEAD_ROWS, int(unembedded) // (1 + written))
    )


def together(panels: Sequence[Probe], size: sizes.Size, n_tokens: int, rates: Rates) -> float:
    """The same of several: the pass through the model that each begins with is needed once."""
    trace = rates.seconds(parts(size)[0], 1, n_tokens, n_tokens)
    return sum(floor(probe, size, n_tokens, rates) for probe in panels) - (len(panels) - 1) * trace


def best(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    found = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def measured_rates() -> Rates:
    """Of this machine, on one thread."""
    width = 4096
    weights = torch.randn(READ_BYTES // FLOAT // width, width)
    row, known = torch.randn(1, width), {}
    read = READ_BYTES / best(lambda: row @ weights.T, 2 * ROUNDS)

    def multiply(part: Part, rows: int) -> float:
        flops = seconds = 0.0
        for outputs, inputs, n in part.maps:
            if (outputs, inputs, rows) not in known:
                w, x = torch.randn(outputs, inputs), torch.randn(rows, inputs)
                times = max(1, int(2e8 // (2 * outputs * inputs * rows)))
                known[outputs, inputs, rows] = (
                    best(lambda w=w, x=x, times=times: [x @ w.T for _ in range(times)]) / times
                )
            seconds += n * known[outputs, inputs, rows]
            flops += 2 * n * outputs * inputs * rows
        return flops / seconds

    return Rates(read, multiply)


def prompt(model: LanguageModel, n_tokens: int) -> Prompt:
    """A text of so many tokens, the last of which is its answer."""
    ids = model.encode(Prompt(STORY * 5)).ids[:n_tokens]
    text, whole = (model.tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False) for end in (-1, None))
    return Prompt(text, whole[len(text) :])


def measure() -> list[Row]:
    model = open_model(resolve(os.environ.get("ED_BENCH_MODEL", "smollm2"), "fp32"))
    size, rates = sizes.read(config_of(model.spec)), measured_rates()
    rows = [Row("reading, one thread", f"{rates.read / 1e9:.1f} GB/s", "", True)]
    for n_tokens in LENGTHS:
        rows += of_length(model, size, rates, n_tokens)
    return [*rows, *on_paper()]


def of_length(model: LanguageModel, size: sizes.Size, rates: Rates, n_tokens: int) -> list[Row]:
    asked, rows, took = prompt(model, n_tokens), [], {}
    n = len(model.encode(asked))
    for kind in PROBES:
        if kind.needs_passes or (kind.name in SLOW and n_tokens > LENGTHS[0]):
            continue
        probe = kind.at_first(model.spec)
        try:
            request = probe.request(model.spec, asked)
            took[probe] = best(lambda request=request: compute.run(model, request), 1 if kind.name in SLOW else ROUNDS)
        except EffectiveDepthError as error:
            rows.append(Row(f"{kind.name}, {n} tokens", " ".join(str(error).split())[:60], "", True))
            continue
        least = floor(probe, size, n, rates)
        rows.append(Row(f"{kind.name}, {n} tokens", told(took[probe], least), "", True))
    panels = [probe for probe in took if probe.first_page]
    seconds, least = sum(took[probe] for probe in panels), together(panels, size, n, rates)
    ok = seconds <= TARGET * least
    return [*rows, Row(f"the {len(panels)} panels of Home, {n} tokens", told(seconds, least), f"<= {TARGET:g} x", ok)]


def told(seconds: float, least: float) -> str:
    return f"{seconds / least:.2f} x ({seconds:.3g} s for {least:.3g} s)"


def on_paper(n_tokens: int = 256) -> list[Row]:
    """A 7B shape in bf16 on a GPU whose rates are those of a data sheet, which no product of real shapes reaches."""
    size = sizes.read({"model_type": "llama", "vocab_size": 32000, **SEVEN})
    rates = Rates(SHEET[0], lambda part, rows: SHEET[1], unit=2)
    return [
        Row(f"{kind.name}, 7B, {n_tokens} tokens, on paper", f"{1e3 * least:.1f} ms", "", True)
        for kind in PROBES
        if kind.first_page and (least := floor(kind(), size, n_tokens, rates))
    ]
