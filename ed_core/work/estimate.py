"""What a model will need before anything is loaded: memory for its weights, for each probe, and time; against what is
free. Torch-free.

A linear map of W weights takes `W (a + b n)` seconds for n tokens: `a` is for reading (or unpacking) the weights once
per call, `b` for multiplying; `RATES` has both, as they were measured on machines of 2020. How often a probe calls the
blocks and the head, and what it holds at its peak, the probe itself declares (`Probe.work`, `Probe.holds`). All of it
is an estimate: on a random model of 12 blocks x 768, times came within a factor of two of the measured and no memory
was underestimated. A result of the same model and parameters that is stored here says more (`expected`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

from ..errors import EffectiveDepthError
from ..machine import ROOM, free_memory, gigabytes, probe_bytes, total_bytes
from ..models import tokens
from ..models.ref import ModelRef
from ..models.sizes import BYTES, PRECISIONS, QUANTIZED, WIDEST_FIRST, Size, compute_name
from ..probes import PROBES, Probe, find
from ..probes.base import Shape
from ..results import lookup
from ..sweeps import budget
from ..types import ModelSpec, Request

TOKENS = 64
FIRST_PAGE: tuple[Probe, ...] = tuple(probe() for probe in PROBES if probe.first_page)
RATES = {  # seconds per weight: (a, b). Two cores of 2020, one GPU of 2020
    "cpu": {
        "fp32": (5e-10, 2.5e-11),
        "bf16": (5e-10, 3e-11),
        "fp16": (1e-9, 1e-10),
        "int8": (4e-9, 4e-11),
        "4bit": (4e-9, 3e-11),
    },
    "cuda": {
        "fp32": (3e-12, 1.5e-13),
        "bf16": (1.5e-12, 2e-14),
        "fp16": (1.5e-12, 2e-14),
        "int8": (1e-11, 4e-14),
        "4bit": (5e-12, 2e-14),
    },
}


@dataclass(frozen=True)
class Need:
    """What one probe needs above the weights: `activations`, bytes at its peak, and seconds."""

    probe: str
    activations: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """What one model in one precision needs with some probes, against the bytes `free` on its device."""

    precision: str
    weights: int
    needs: tuple[Need, ...]
    free: int

    @property
    def peak(self) -> int:
        """The bytes of the weights and of the hungriest probe."""
        return self.weights + max(need.activations for need in self.needs)

    @property
    def fits(self) -> bool:
        """Whether `peak` is at most the share `ROOM` of what is free."""
        return self.peak <= ROOM * self.free


def estimate(
    size: Size,
    precision: str,
    n_tokens: int = TOKENS,
    device: str = "cpu",
    free: int | None = None,
    probes: Sequence[Probe] = FIRST_PAGE,
) -> Estimate:
    """Return what a model needs with these probes on a prompt of `n_tokens`. `free`: bytes free on the device, None for
    this machine's memory; on a GPU only the worker knows them."""
    kind = device.partition(":")[0]
    most = probe_bytes(kind, total_bytes(device))
    needs = tuple(_need(probe, size, precision, n_tokens, kind, most) for probe in probes)
    return Estimate(precision, size.weight_bytes(precision), needs, free_memory() if free is None else free)


def _need(probe: Probe, size: Size, precision: str, n_tokens: int, kind: str, most: int) -> Need:
    """Return what one probe needs on a prompt of `n_tokens`. `most`: bytes that a probe may take on the device."""
    L, T, d = size.n_layers, n_tokens, size.d_model
    passes, unembedded = probe.work(L, T)
    unit = BYTES[compute_name(precision)]
    stream, width = T * d * unit, size.n_heads * size.head_dim
    most_tokens, half = budget.TOKENS_PER_CALL.get(kind, 16384), most // 2  # see `Budget`
    per_call = max(T, min(most_tokens, int(passes) * T))
    inside = per_call * (2 * d + 2 * width + 3 * size.d_mlp) * unit
    unpacked = 0 if precision in BYTES else unit * max(outputs * inputs for outputs, inputs, _ in size.maps)
    graph = T * L * (6 * d + 4 * width + 4 * size.d_mlp) * unit
    states = probe.holds(Shape(L, T, stream, 8 * T * d, graph, half, max(T, most_tokens) / T))
    logits = min(budget.lens_bytes(kind), unembedded * size.d_vocab * 24)
    trace = (3 * L + 1) * stream if probe.traces else 0
    # A further token is read alone, as keys and values are kept; a quantized model reads the whole again.
    block_tokens = passes * T + L * probe.further_tokens * (T if precision in QUANTIZED else 1)
    measuring = unembedded * size.d_vocab * probe.seconds_per_logit / (1 if kind == "cpu" else 200)
    rates = RATES.get(kind, RATES["cuda"])
    (read, multiply), (head_read, head_multiply) = rates[precision], rates[compute_name(precision)]
    calls = max(ceil(passes * T / per_call), L) + L * probe.further_tokens
    blocks = size.block_maps * (calls * read + block_tokens * multiply)
    heads = ceil(unembedded / 256) + probe.further_tokens
    head = d * size.d_vocab * (heads * head_read + unembedded * head_multiply)
    return Need(probe.name, int(trace + states + inside + logits + unpacked), blocks + head + measuring)


# ---------------------------------------------------------------- which precision fits


def fitting(
    size: Size, free: int, n_tokens: int = TOKENS, device: str = "cpu", probes: Sequence[Probe] = FIRST_PAGE
) -> list[str]:
    """Return the precisions in which these probes fit into `free` bytes, widest first."""
    return [p for p in WIDEST_FIRST if estimate(size, p, n_tokens, device, free, probes).fits]


def choose(size: Size, n_tokens: int = TOKENS, device: str = "cpu", free: int | None = None) -> tuple[str, str]:
    """Return the precision that "auto" takes, the widest that fits with room for the probes, and why in a sentence."""
    free = free_memory() if free is None else free
    chosen, wider = (fitting(size, free, n_tokens, device) or WIDEST_FIRST[-1:])[0], ", the widest there is"
    need = estimate(size, chosen, n_tokens, device, free)
    if place := WIDEST_FIRST.index(chosen):
        next_wider = WIDEST_FIRST[place - 1]
        wider = f"; {next_wider} would take {gigabytes(estimate(size, next_wider, n_tokens, device, free).peak)}"
    which = "" if need.fits else ", the narrowest"
    return chosen, (
        f"{chosen}{which}: {gigabytes(need.peak)} with room for the probes, of {gigabytes(free)} free on "
        f"{device}{wider if need.fits else ''}."
    )


# ---------------------------------------------------------------- words


def count(n: int) -> str:
    """Return a number of parameters in words: "7.6 B", "124.0 M"."""
    return f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"


def duration(seconds: int | float) -> str:
    """Return a duration in words: "0.4 s", "12 min", "3 h"; "<0.1 s"."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else "<0.1 s" if seconds < 0.05 else f"{seconds:.1f} s"


def about(seconds: int | float) -> str:
    """Return a duration in words: "about 12 min"; "<0.1 s"."""
    text = duration(seconds)
    return text if text.startswith("<") else f"about {text}"


# ---------------------------------------------------------------- how long a request takes


UNKNOWN_SECONDS = 30.0  # of a model whose size is not known, or that has to be fetched first
BYTES_A_SECOND = 300e6  # at which weights are opened and checked; chosen


def expected(request: Request, open_models: Collection[str] = ()) -> float:
    """Return the seconds that a request takes: as stored results of the same model and parameters took, else by the
    estimate. `open_models`: keys of open models; opening another one counts too."""
    spec = ModelRef.of(request.models[0])
    opened = 0.0 if spec.key in open_models else opening(spec)
    if opened is None:
        return UNKNOWN_SECONDS
    try:
        n_tokens = len(tokens.preview(spec, request.prompts[0]) or range(TOKENS))
        if (seconds := lookup.estimate([request], n_tokens)) is None:
            probe = find(request.probe).of(request)
            seconds = estimate(spec.size(), spec.precision, n_tokens, spec.device, 0, [probe]).needs[0].seconds
    except (EffectiveDepthError, OSError, KeyError):
        return UNKNOWN_SECONDS
    return opened + seconds


def opening(spec: ModelRef) -> float | None:
    """Return the seconds to open a model; None where it must be fetched or converted, or its size is not known."""
    if not spec.is_ready:
        return None
    return weights(spec) / BYTES_A_SECOND or None


def weights(spec: ModelSpec) -> int:
    """Return the bytes of a model's weights; 0 where its size is not known."""
    size = ModelRef.of(spec).size_or_none()
    return size.weight_bytes(spec.precision) if size and spec.precision in PRECISIONS else 0
