"""The results of linear maps as files: `fit maps` between two models, `fit replacement` within one. Torch-free.

A `.npz` that `allow_pickle=False` opens: the arrays by their names, and `certificate`, a 0-d string of JSON (models,
prompts, tokens, ridge, notes)."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from zipfile import ZipFile

import numpy as np

from ..errors import FitRefused, TooLarge
from ..files import expect, parse, read_array
from ..machine import gigabytes
from ..models import controls

ENDING = ".npz"
MOST_BYTES = 64 << 20  # of a file, unpacked; the maps of two models of 1000 layers each take 32 MB
FLOAT = 8  # bytes
PARTS = 8  # of the taps of maps between models: each part is shown once it is finished


@dataclass(frozen=True)
class Maps:
    """The best affine maps `f_ij: h_A[i] -> h_B[j]` of two models that read the same tokens, judged on held-out
    prompts. Rows are A's taps 0..L_A, columns B's taps 0..L_B; the first token of every prompt is left out.

    `error` `[L_A+1, L_B+1]`: `mean_t |h_B[j] - f_ij(h_A[i])| / |h_B[j]|`.
    `r2` `[L_A+1, L_B+1]`: `1 - sum_t |h_B[j] - f_ij(h_A[i])|^2 / sum_t |h_B[j] - mean h_B[j]|^2`, over all dimensions.
    `error_shuffled`, `r2_shuffled`: of maps fitted to targets of other tokens, on the true targets.
    `error_mean`, `r2_mean` `[L_B+1]`: of the constant that predicts the mean over the tokens fitted on.
    `tokens`, `test_tokens`: how many were fitted on and judged on. NaN: not computed."""

    error: np.ndarray
    r2: np.ndarray
    error_shuffled: np.ndarray
    r2_shuffled: np.ndarray
    error_mean: np.ndarray
    r2_mean: np.ndarray
    tokens: int
    test_tokens: int
    certificate: Mapping[str, Any] = field(repr=False)
    kind: ClassVar[str] = "maps"
    dims: ClassVar[dict[str, str]] = dict.fromkeys(("error", "r2", "error_shuffled", "r2_shuffled"), "ab")
    dims |= dict.fromkeys(("error_mean", "r2_mean"), "b")
    source: ClassVar[str] = "a"  # the dim of what is mapped

    @property
    def n_layers(self) -> tuple[int, int]:
        """The layers of A and of B, one fewer than their taps."""
        return self.error.shape[0] - 1, self.error.shape[1] - 1

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two models."""
        return _name(self.certificate["a"]), _name(self.certificate["b"])


@dataclass(frozen=True)
class Replacement:
    """What a model loses where block `s` is replaced by the least-squares map `h[s] -> h[s+1]`, on all tokens but the
    first of each prompt.

    `loss` `[L]`, nats: mean over next tokens of `-log p` with block s replaced, on held-out prompts; `loss_fitted`
    `[L]`: on the prompts the maps were fitted on, as the paper measures. `whole`, `whole_fitted`: of the whole model.
    `error` `[L]`: `mean_t |h[s+1] - f(h[s])| / |h[s+1]|` on held-out prompts. `tokens`, `test_tokens`: how many were
    fitted on and judged on, the first of each prompt not counted."""

    loss: np.ndarray
    loss_fitted: np.ndarray
    whole: float
    whole_fitted: float
    error: np.ndarray
    tokens: int
    test_tokens: int
    certificate: Mapping[str, Any] = field(repr=False)
    kind: ClassVar[str] = "replacement"
    dims: ClassVar[dict[str, str]] = dict.fromkeys(("loss", "loss_fitted", "error"), "s")
    dims |= {"whole": "", "whole_fitted": ""}
    source: ClassVar[str] = "s"

    @property
    def n_layers(self) -> int:
        """The number of the model's layers."""
        return len(self.loss)

    @property
    def name(self) -> str:
        """The name of the model."""
        return _name(self.certificate["model"])


def _name(model: Mapping[str, Any]) -> str:
    """Return a certificate's model by name, with its kind of control in parentheses if it is one."""
    twin = controls.KINDS.get(str(model.get("control")))
    return f"{model['name']} ({twin})" if twin else str(model["name"])


def csv(found: Maps | Replacement) -> str:
    """Return the numbers as CSV: a line for each pair of taps, or layer (from 0), in full precision."""
    values = {name: np.asarray(getattr(found, name)) for name in found.dims}
    places = [*np.ndindex(found.error.shape)]
    rows = [[*place, *(x[place[len(place) - x.ndim :]] for x in values.values())] for place in places]
    head = [*(("tap_a", "tap_b") if isinstance(found, Maps) else ("layer",)), *values]
    return "".join(",".join(map(str, row)) + "\n" for row in (head, *rows))


KINDS = {one.kind: one for one in (Maps, Replacement)}


def packed(found: Maps | Replacement) -> bytes:
    """Return the result as the bytes of its file; equal numbers give equal bytes."""
    arrays = {f.name: np.asarray(getattr(found, f.name)) for f in fields(found)}
    arrays["certificate"] = np.asarray(json.dumps(dict(found.certificate), sort_keys=True, allow_nan=False))
    np.savez(buffer := io.BytesIO(), allow_pickle=False, **arrays)
    return buffer.getvalue()


def read(path: str | Path) -> Maps | Replacement:
    """Return the result in a file; raise `FitRefused` if it cannot be read."""
    place = Path(path).expanduser()
    if not place.is_file():
        raise FitRefused(f"There is no file {place}; give one that `python -m ed_core fit maps` wrote.")
    return unpacked(place.read_bytes(), place.name)


def unpacked(data: bytes, name: str) -> Maps | Replacement:
    """Return the result in the bytes of a file; raise `FitRefused` if it cannot be read. `name`: the file's name in
    errors."""
    try:
        with ZipFile(io.BytesIO(data)) as file:
            expect(sum(one.file_size for one in file.infolist()) <= MOST_BYTES, "its size")
            kind = Maps if "r2.npy" in file.namelist() else Replacement
            arrays = {f.name: read_array(file.read(f"{f.name}.npy")) for f in fields(kind)}
        certificate, sizes = parse(str(arrays.pop("certificate")).encode(), MOST_BYTES), dict[str, int]()
        for array, values in arrays.items():
            dims = kind.dims.get(array, "")
            same = [sizes.setdefault(dim, n) == n > 0 for dim, n in zip(dims, values.shape)]
            expect(len(dims) == values.ndim and all(same), f"the shape of {array}")
        parts: dict[str, Any] = {key: values if values.ndim else values.item() for key, values in arrays.items()}
        found = kind(**parts, certificate=certificate)
        _ = found.names if isinstance(found, Maps) else found.name
        expect(all(isinstance(note, str) for note in certificate.get("notes", [])), "its notes")
        return found
    except Exception as error:  # whatever somebody's file leads to
        raise FitRefused(
            f"{name} is damaged, or not a file of maps of this program; make it again with `python -m ed_core fit "
            "maps` or `fit replacement`."
        ) from error


# ---------------------------------------------------------------- memory and time, before anything is opened

AFFINE, JACOBIAN = "affine", "jacobian"
JACOBIAN_TOKENS = 128  # of a prompt that are read, as the lens's authors do
SYMMETRIC = 0.625  # of a Gram matrix: the blocks that are computed
FASTER = 2.0  # float32 against float64
TOKENS = 32  # of a prompt


@dataclass(frozen=True)
class Plan:
    """How a fit's sums are made: `n_taps` sources (depths or layers) of width `d_x`, with targets of width `d_y`,
    `at_once` of them in each pass over the prompts."""

    n_taps: int
    d_x: int
    d_y: int
    at_once: int

    @property
    def each(self) -> int:
        """The bytes of one source's sums: a Gram matrix `[d_x, d_x]` and products `[d_x, d_y]`, float64."""
        return FLOAT * self.d_x * (self.d_x + self.d_y)

    @property
    def passes(self) -> int:
        """The number of passes over the prompts."""
        return -(-self.n_taps // self.at_once)

    @property
    def bytes(self) -> int:
        """The bytes of the sums that are in memory at once."""
        return self.each * self.at_once

    def groups(self, taps: Sequence[int]) -> list[tuple[int, ...]]:
        """Return these sources in groups, one for each pass over the prompts."""
        return [tuple(taps[i : i + self.at_once]) for i in range(0, len(taps), self.at_once)]

    def sentence(self) -> str:
        """Return the plan in words: "29 source taps, 6.2 GB each, 179.0 GB in all: 3 at once (18.5 GB), 10 passes over
        the prompts"."""
        passes = f"{self.passes} pass{'es' * (self.passes != 1)} over the prompts"
        return (
            f"{self.n_taps} source taps, {gigabytes(self.each)} each, {gigabytes(self.each * self.n_taps)} in all: "
            f"{self.at_once} at once ({gigabytes(self.bytes)}), {passes}"
        )

    def seconds(self, tokens: int, judged: int, parameters: int) -> float:
        """Return the estimated seconds of the fit on this CPU. `tokens`: fitted on; `judged`: held-out tokens;
        `parameters`: of the models together."""
        sums = self.d_x * (self.d_x * SYMMETRIC + self.d_y)
        solving = self.d_x**2 * (self.d_x / 3 + 2 * self.d_y)
        fitting = self.n_taps * (tokens * sums + solving + judged * self.d_x * self.d_y)
        forward = self.passes * (tokens + judged) * parameters / FASTER
        return (fitting + forward) / products_per_second(self.d_x)


@cache
def products_per_second(d: int) -> float:
    """Return this CPU's float64 multiply-adds per second for sums of width `d`, measured once."""
    x, y, sums = np.ones((d, TOKENS)), np.ones((TOKENS, 4096)), np.zeros((d, 4096))
    sums += x @ y
    begin = time.perf_counter()
    sums += x @ y
    return sums.size * TOKENS / (time.perf_counter() - begin)


def plan_of(kind: str, models: Sequence[Any], free: int, memory: int | None = None) -> Plan:
    """Return the plan of a kind of fit to models or their sizes (`n_layers`, `d_model`), with as many sources at once,
    at least one, as `memory` bytes allow (None: half of the `free` bytes). The Jacobian lens sums all depths at once;
    maps between two models take at least `PARTS` parts, to show results early. Raises `TooLarge` if the sums exceed
    `free`."""
    n, d, b = models[0].n_layers, models[0].d_model, models[-1]
    n, most = (n + 1, -(-(n + 1) // PARTS)) if kind == Maps.kind else (n, n)
    d_y = {Maps.kind: 2 * (b.n_layers + 1) * b.d_model, Replacement.kind: d}.get(kind, 2 * d)
    at_once = most if kind == JACOBIAN else min(most, (memory or free // 2) // (FLOAT * d * (d + d_y)))
    planned = Plan(n, d, d_y, max(1, at_once))
    if planned.bytes > free:
        raise TooLarge(
            f"The fit holds sums of {gigabytes(planned.bytes)} at once, and {gigabytes(free)} are free; use a smaller "
            "model, or a machine with more memory."
        )
    return planned
