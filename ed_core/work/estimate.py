"""What a model will need before anything is loaded: memory for its weights, for each probe, and time; against what is
free. Torch-free.

A linear map of W weights takes `W (a + b n)` seconds for n tokens: `a` is for reading (or unpacking) the weights once
per call, `b` for multiplying. Both are measured per precision by `models.devices.measure_rates` and kept in the cache
folder; `DEFAULT_RATES` stand in until then. Activations follow what each probe's sweep holds at its peak. All of it is
an estimate: on a random model of 12 blocks x 768, times came within a factor of two of the measured (gradients: for the
nodes they took) and no memory was underestimated."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from .. import bounds, disk, outside, settings
from ..errors import EffectiveDepthError, StoreError
from ..files import parse
from ..machine import ROOM, free_memory, gigabytes, probe_bytes, total_bytes
from ..models import tokens
from ..models.ref import ModelRef
from ..models.sizes import BYTES, PRECISIONS, QUANTIZED, WIDEST_FIRST, Size, compute_name
from ..probes import PROBES, Probe, find
from ..probes.base import Shape
from ..results import lookup
from ..sweeps import budget
from ..types import ModelSpec, Request, canonical_json

TOKENS = 64
FIRST_PAGE = tuple(probe.name for probe in PROBES if probe.first_page)
DEFAULT_RATES = {  # seconds per weight: (a, b). Two cores of 2020, one GPU of 2020
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
Rates = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Need:
    """What one probe needs beside the weights: bytes at its peak, and seconds."""

    probe: str
    activations: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """One model in one precision against what is free on its device. `calibrated`: whether the times rest on a
    measurement here."""

    precision: str
    weights: int
    needs: tuple[Need, ...]
    free: int
    calibrated: bool

    @property
    def peak(self) -> int:
        """Bytes of the weights and of the hungriest probe of the first page; the others are judged one by one
        (`has_room`)."""
        return self.peak_of(FIRST_PAGE)

    @property
    def fits(self) -> bool:
        """Whether weights and the first page's probes take at most the share `ROOM` of what is free."""
        return self.peak <= ROOM * self.free

    def peak_of(self, probes: Collection[str]) -> int:
        """Bytes of the weights and of the hungriest of these probes."""
        return self.weights + max((need.activations for need in self.needs if need.probe in probes), default=0)

    def has_room(self, need: Need) -> bool:
        """The same of one probe."""
        return self.weights + need.activations <= ROOM * self.free


def estimate(
    size: Size,
    precision: str,
    n_tokens: int = TOKENS,
    device: str = "cpu",
    free: int | None = None,
    probes: Sequence[Probe] = (),
) -> Estimate:
    """The estimate for a prompt of `n_tokens`. `free`: bytes free on the device; on a GPU only the worker knows them.
    `probes`: which have a need there, in this order, with their parameters; all, with their defaults, unless given."""
    kind = device.partition(":")[0]
    rates, calibrated = load_rates(kind)
    asked_for = probes or [probe() for probe in PROBES]
    most = probe_bytes(kind, total_bytes(device))
    needs = tuple(Need(p.name, *_need(p, size, precision, n_tokens, kind, most, rates)) for p in asked_for)
    return Estimate(precision, size.weight_bytes(precision), needs, free_memory() if free is None else free, calibrated)


def choose(size: Size, n_tokens: int = TOKENS, device: str = "cpu", free: int | None = None) -> tuple[str, str]:
    """`auto`: the widest precision that fits with room for the probes, and the sentence that says why."""
    free = free_memory() if free is None else free
    tried: list[Estimate] = []
    for precision in WIDEST_FIRST:
        found = estimate(size, precision, n_tokens, device, free)
        if found.fits:
            wider = (
                f"; {tried[-1].precision} would take {gigabytes(tried[-1].peak)}" if tried else ", the widest there is"
            )
            return (
                precision,
                f"{precision}: {gigabytes(found.peak)} with room for the probes, of {gigabytes(free)} free on "
                f"{device}{wider}.",
            )
        tried.append(found)
    return WIDEST_FIRST[-1], (
        f"{WIDEST_FIRST[-1]}, the narrowest, and even that takes {gigabytes(tried[-1].peak)} with room for the probes, "
        f"of {gigabytes(free)} free on "
        f"{device}."
    )


def fitting(
    size: Size, free: int, n_tokens: int = TOKENS, device: str = "cpu", probes: Sequence[Probe] = ()
) -> list[str]:
    """The precisions in which these probes fit, widest first; those of the first page unless given."""
    names = {probe.name for probe in probes} or FIRST_PAGE
    return [p for p in WIDEST_FIRST if estimate(size, p, n_tokens, device, free, probes).peak_of(names) <= ROOM * free]


# ---------------------------------------------------------------- what a probe does and holds


def work(probe: Probe, n_layers: int, n_tokens: int, precision: str = "fp32") -> int:
    """Tokens × layers × rows: how often one token goes through one block."""
    return int(_block_tokens(probe, n_layers, n_tokens, precision))


def _block_tokens(probe: Probe, n_layers: int, n_tokens: int, precision: str) -> int | float:
    """A further token is read alone, the keys and values before it being kept; a quantized model reads the whole
    anew."""
    read = n_tokens if precision in QUANTIZED else 1
    return probe.work(n_layers, n_tokens)[0] * n_tokens + n_layers * probe.further_tokens * read


def _need(
    probe: Probe, size: Size, precision: str, n_tokens: int, kind: str, most: int, rates: Rates
) -> tuple[int, float]:
    """Bytes and seconds. `most`: bytes that a probe may hold on the device."""
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
    held = trace + states + inside + logits + unpacked
    measuring = unembedded * size.d_vocab * probe.seconds_per_logit / (1 if kind == "cpu" else 200)
    (read, multiply), (head_read, head_multiply) = rates[precision], rates[compute_name(precision)]
    calls = max(ceil(passes * T / per_call), L) + L * probe.further_tokens
    blocks = size.block_maps * (calls * read + _block_tokens(probe, L, T, precision) * multiply)
    heads = ceil(unembedded / 256) + probe.further_tokens
    head = d * size.d_vocab * (heads * head_read + unembedded * head_multiply)
    return int(held), blocks + head + measuring


# ---------------------------------------------------------------- what this machine has


def rates_file() -> Path:
    return settings.current().cache / "rates.json"


def load_rates(kind: str) -> tuple[Rates, bool]:
    """`(rates, whether they were measured here)` for "cpu", "cuda" or "mps" (which goes by the GPU's defaults)."""
    default = DEFAULT_RATES.get(kind, DEFAULT_RATES["cuda"])
    try:
        measured = _measured()[kind]
        here = [name for name in default if name in measured or name not in QUANTIZED]  # these may not be installed
        return default | {name: (_rate(measured[name][0]), _rate(measured[name][1])) for name in here}, True
    except (ValueError, KeyError, TypeError, IndexError):
        return default, False


def _measured() -> Any:
    """What the rates' file holds; `ValueError` where it cannot be read."""
    found = parse(outside.content(rates_file(), bounds.RATES, outside.Unreadable), bounds.RATES)
    canonical_json(found)  # 1e999 is none
    return found


def _rate(given: float) -> float:
    if isinstance(given, (int, float)) and 0 <= given < 1:  # seconds per weight
        return float(given)
    raise ValueError("no rate")


def save_rates(kind: str, rates: Rates) -> None:
    """Keep a calibration; the measurements of other devices stay."""
    file = rates_file()
    try:
        known = _measured()
    except ValueError:
        known = {}
    kept = (known if isinstance(known, dict) else {}) | {kind: {name: list(rate) for name, rate in rates.items()}}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        disk.write(file, json.dumps(kept).encode())
    except OSError as error:
        raise StoreError(f"The rates cannot be written to {file}: {disk.why(error)}") from error


# ---------------------------------------------------------------- words


def report(
    name: str, size: Size, precision: str, n_tokens: int = TOKENS, device: str = "cpu", free: int | None = None
) -> list[str]:
    """What the command line prints; the same figures are in `estimate`."""
    free = free_memory() if free is None else free
    lines = [
        f"{name}: {size.family}, {size.n_layers} layers x {size.d_model}, {count(size.parameters)} parameters "
        f"({count(size.block)} in each layer){'' if size.exact else '; family unknown here, counted as a Llama'}"
    ]
    if precision == "auto":
        precision, why = choose(size, n_tokens, device, free)
        lines.append(f"auto takes {why}")
    found = estimate(size, precision, n_tokens, device, free)
    weights = ", ".join(f"{p} {gigabytes(size.weight_bytes(p))}" for p in WIDEST_FIRST)

    def row(*cells: str) -> str:
        return "  {:<22} {:>12} {:>10} {:>8}{}".format(*cells)

    lines += [
        f"weights: {weights}",
        f"{found.precision} on {device}, {n_tokens} tokens:",
        row("probe", "activations", "in all", "time", ""),
    ]
    for need in found.needs:
        in_all, remark = gigabytes(found.weights + need.activations), "" if found.has_room(need) else "  too large"
        lines.append(row(need.probe, gigabytes(need.activations), in_all, duration(need.seconds), remark))
    if device == "cpu" and precision in QUANTIZED:
        also = ", and fits" if "bf16" in fitting(size, free, n_tokens) else ""
        lines.append(f"on a CPU quantized weights save memory, not time: bf16 is as fast{also}")
    lines.append(
        "times rest on "
        f"{'a measurement of this device' if found.calibrated else 'default speeds; --calibrate measures this device'}"
    )
    if not found.fits:
        others = fitting(size, free, n_tokens, device)
        instead = (
            f"what fits: {', '.join(others)}"
            if others
            else "no precision fits: take a smaller model, more devices, or --offload"
        )
        lines.append(
            f"too large: {gigabytes(found.peak)} needed, {gigabytes(free)} free on {device}, a tenth of which stays "
            f"free; {instead}"
        )
    else:
        lines.append(f"fits: {gigabytes(found.peak)} needed, {gigabytes(free)} free on {device}")
    return lines


def count(n: int) -> str:
    """ "7.6 B", "124 M" parameters."""
    return f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"


def duration(seconds: int | float) -> str:
    """ "0.4 s", "12 min", "3 h"; "<0.1 s"."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else "<0.1 s" if seconds < 0.05 else f"{seconds:.1f} s"


def about(seconds: int | float) -> str:
    """ "about 12 min"; "<0.1 s"."""
    told = duration(seconds)
    return told if told.startswith("<") else f"about {told}"


# ---------------------------------------------------------------- how long a request takes


UNKNOWN_SECONDS = 30.0  # of a model whose sizes cannot be told, or that has to be fetched first
BYTES_A_SECOND = 300e6  # at which weights are opened and checked; chosen


def expected(request: Request, open_models: Collection[str] = ()) -> float:
    """Seconds that a request takes: as stored results of the same model and parameters, else by the estimate. A model
    that is not among the open ones is opened first."""
    spec = ModelRef.of(request.models[0])
    opened = 0.0 if spec.key in open_models else opening(spec)
    if opened is None:
        return UNKNOWN_SECONDS
    try:
        n_tokens = len(tokens.preview(spec, request.prompts[0]) or range(TOKENS))
        if (seconds := lookup.estimate([request], n_tokens)) is None:
            asked = find(request.probe).make(dict(request.parameters))
            seconds = estimate(spec.size(), spec.precision, n_tokens, spec.device, 0, [asked]).needs[0].seconds
    except (EffectiveDepthError, OSError, KeyError):
        return UNKNOWN_SECONDS
    return opened + seconds


def opening(spec: ModelRef) -> float | None:
    """Seconds in which a model is opened; None where something has to be fetched or converted first, or its size is not
    known."""
    if not spec.is_ready:
        return None
    return weights(spec) / BYTES_A_SECOND or None


def weights(spec: ModelSpec) -> int:
    """Bytes of a model's weights; 0 where its size is not known."""
    size = ModelRef.of(spec).size_or_none()
    return size.weight_bytes(spec.precision) if size and spec.precision in PRECISIONS else 0
