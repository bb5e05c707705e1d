"""The results of linear maps as files: `fit maps` between two models, `fit replacement` within one. Torch-free.

A sealed `.npz` that `allow_pickle=False` opens: the arrays by their names, and `certificate`, a 0-d string of JSON
(models, prompts, tokens, ridge, notes)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from io import BufferedIOBase
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from ..errors import FitRefused, TooLarge
from ..files import Bounds, Head, Kind, expect, open_sealed, parse, seal
from ..machine import gigabytes
from ..models import controls

ENDING = ".npz"
MOST_BYTES = 64 << 20  # of a file; the maps of two models of 1000 layers each take 32 MB
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
    sides: ClassVar[tuple[str, ...]] = ("a", "b")  # in the certificate

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
    sides: ClassVar[tuple[str, ...]] = ("model",)

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


class Header(Head):
    """The header of a result file. `kind`: which of the two results the file has."""

    kind: Literal["maps", "replacement"]


MAPS = Kind(
    "maps",
    "a file of maps",
    2,
    Header,
    "make it again with `python -m ed_core fit maps` or `fit replacement`",
    members=r"\w+\.npy",
    bounds=Bounds(MOST_BYTES, 16, MOST_BYTES, MOST_BYTES),
    refuses=FitRefused,
)


def packed(found: Maps | Replacement) -> bytes:
    """Return the result as the bytes of its file; equal numbers give equal bytes."""
    arrays = {f.name: np.asarray(getattr(found, f.name)) for f in fields(found)}
    certificate = {name: value for name, value in found.certificate.items() if name != "kind"}  # the manifest has it
    arrays["certificate"] = np.asarray(json.dumps(certificate, sort_keys=True, allow_nan=False))
    return seal(MAPS, {"kind": found.kind}, arrays)


def read(path: str | Path) -> Maps | Replacement:
    """Return the result in a file; raise `FitRefused` if it cannot be read."""
    place = Path(path).expanduser()
    if not place.is_file():
        raise FitRefused(f"There is no file {place}; give one that `python -m ed_core fit maps` wrote.")
    return unpacked(place, place.name)


def unpacked(source: Path | bytes | BufferedIOBase, name: str) -> Maps | Replacement:
    """Return the result in a file or in bytes, checked; raise `FitRefused` if invalid. `name`: the file's name in
    errors."""
    with open_sealed(source, MAPS, name) as sealed:
        kind, arrays = KINDS[sealed.head.kind], sealed.arrays()
        certificate = parse(str(arrays.pop("certificate")).encode(), MOST_BYTES)
        texts = [*(certificate[side]["name"] for side in kind.sides), *certificate.get("notes", [])]
        expect(all(isinstance(text, str) for text in texts), "its names and notes")
        expect(set(arrays) == {f.name for f in fields(kind)} - {"certificate"}, "its arrays")
        sizes: dict[str, int] = {}
        for name, dims in kind.dims.items():
            same = [sizes.setdefault(dim, n) == n > 0 for dim, n in zip(dims, arrays[name].shape)]
            expect(len(dims) == arrays[name].ndim and all(same), f"the shape of {name}")
        parts: dict[str, Any] = {key: values.item() if values.ndim == 0 else values for key, values in arrays.items()}
        return kind(**parts, certificate=certificate)


# ---------------------------------------------------------------- memory, before anything is opened

AFFINE, JACOBIAN = "affine", "jacobian"
JACOBIAN_TOKENS = 128  # of a prompt that are read, as the lens's authors do


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


class Size(Protocol):
    """The size of a model, opened or not."""

    @property
    def n_layers(self) -> int: ...

    @property
    def d_model(self) -> int: ...


def plan_of(kind: str, models: Sequence[Size], free: int, memory: int | None = None) -> Plan:
    """Return the plan of a kind of fit, with as many sources at once, at least one, as `memory` bytes allow (None: half
    of the `free` bytes). The Jacobian lens sums all depths at once; maps between two models take at least `PARTS`
    parts, to show results early. Raises `TooLarge` if the sums exceed `free`."""
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
