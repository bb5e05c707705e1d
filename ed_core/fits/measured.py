"""What linear maps say of models, as files: `fit maps` between two models, `fit replacement` within one. Torch-free.

A sealed `.npz` that `allow_pickle=False` opens: the arrays by their names, and `certificate`, a 0-d string of JSON
(models, prompts, tokens, ridge, notes)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from io import BufferedIOBase
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from .. import disk
from ..errors import FitRefused, TooLarge
from ..files import Bounds, Head, Kind, expect, open_sealed, parse, seal
from ..machine import gigabytes
from ..models import controls

ENDING = ".npz"
MOST_BYTES = 64 << 20  # of a file; the maps of two models of 1000 layers each take 32 MB
FLOAT = 8  # bytes
BYTES = 1 << 30  # that the sums of a lens may take unless told


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

    @property
    def n_layers(self) -> tuple[int, int]:
        """Layers of A and of B, one fewer than their taps."""
        return self.error.shape[0] - 1, self.error.shape[1] - 1

    @property
    def names(self) -> tuple[str, str]:
        """What the two models are called."""
        return _called(self.certificate["a"]), _called(self.certificate["b"])

    def sound(self) -> bool:
        """Whether its shapes and names agree, as they may not in a file from elsewhere."""
        both = (self.error, self.r2, self.error_shuffled, self.r2_shuffled)
        return (
            self.error.ndim == 2
            and min(self.error.shape) >= 2
            and all(one.shape == self.error.shape for one in both)
            and all(one.shape == self.error.shape[1:] for one in (self.error_mean, self.r2_mean))
            and all(isinstance(self.certificate.get(side), dict) for side in "ab")
            and all(isinstance(self.certificate[side].get("name"), str) for side in "ab")
        )


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

    @property
    def n_layers(self) -> int:
        return len(self.loss)

    @property
    def name(self) -> str:
        """What the model is called."""
        return _called(self.certificate["model"])

    def sound(self) -> bool:
        """As of `Maps`."""
        curves = (self.loss, self.loss_fitted, self.error)
        model = self.certificate.get("model")
        return (
            self.loss.ndim == 1
            and len(self.loss) > 0
            and all(one.shape == self.loss.shape for one in curves)
            and isinstance(model, dict)
            and isinstance(model.get("name"), str)
        )


def _called(told: Mapping[str, Any]) -> str:
    """A model of a certificate: its name, and what twin it is."""
    twin = controls.KINDS.get(str(told.get("control")))
    return f"{told['name']} ({twin})" if twin else str(told["name"])


def csv(found: Maps | Replacement) -> str:
    """A line per pair of taps, or per block; every number in full."""
    if isinstance(found, Maps):
        names = ("error", "r2", "error_shuffled", "r2_shuffled")
        places = np.ndindex(found.error.shape)
        rows = [
            [i, j, *(getattr(found, name)[i, j] for name in names), found.error_mean[j], found.r2_mean[j]]
            for i, j in places
        ]
        head = ["tap_a", "tap_b", *names, "error_mean", "r2_mean"]
    else:
        head = ["layer", "loss", "loss_whole", "loss_fitted", "loss_fitted_whole", "error"]
        curves = zip(found.loss, found.loss_fitted, found.error)
        rows = [[s, loss, found.whole, fitted, found.whole_fitted, off] for s, (loss, fitted, off) in enumerate(curves)]
    return "".join(",".join(map(str, row)) + "\n" for row in (head, *rows))


KINDS = {one.kind: one for one in (Maps, Replacement)}


class Header(Head):
    """Which of the two it is."""

    kind: Literal["maps", "replacement"]


MAPS = Kind(
    "maps",
    "a file of maps",
    2,
    Header,
    "make it anew with `python -m ed_core fit maps` or `fit replacement`",
    members=r"\w+\.npy",
    bounds=Bounds(MOST_BYTES, 16, MOST_BYTES, MOST_BYTES),
    refuses=FitRefused,
)


def packed(found: Maps | Replacement) -> bytes:
    """The file's bytes, the same from the same numbers."""
    arrays = {f.name: np.asarray(getattr(found, f.name)) for f in fields(found)}
    told = {name: value for name, value in found.certificate.items() if name != "kind"}  # the manifest has it
    arrays["certificate"] = np.asarray(json.dumps(told, sort_keys=True, allow_nan=False))
    return seal(MAPS, {"kind": found.kind}, arrays)


def write(path: Path, found: Maps | Replacement) -> None:
    """The file, all or nothing."""
    data = packed(found)
    disk.require_room(path.name, len(data), path.parent, "--out")
    disk.write(path, data)


def read(path: str | Path) -> Maps | Replacement:
    """What a file holds. `FitRefused` says what is wrong with it."""
    place = Path(path).expanduser()
    if not place.is_file():
        raise FitRefused(f"There is no file {place}; give one that `python -m ed_core fit maps` wrote.")
    return unpacked(place, place.name)


def unpacked(source: Path | bytes | BufferedIOBase, name: str) -> Maps | Replacement:
    """The same of bytes that are there already; `name` stands for them in what is refused."""
    with open_sealed(source, MAPS, name) as sealed:
        kind, arrays = KINDS[sealed.head.kind], sealed.arrays()
        certificate = parse(str(arrays.pop("certificate")).encode(), MOST_BYTES)
        notes = certificate.get("notes", [])
        expect(isinstance(notes, list) and all(isinstance(note, str) for note in notes), "its notes")
        expect(set(arrays) == {f.name for f in fields(kind)} - {"certificate"}, "its arrays")
        parts: dict[str, Any] = {key: values.item() for key, values in arrays.items() if values.ndim == 0}
        parts |= {key: np.asarray(values, np.float64) for key, values in arrays.items() if values.ndim}
        found = kind(**parts, certificate=certificate)
        expect(found.sound(), "its arrays are not as large as the models")
        return found


# ---------------------------------------------------------------- memory, before anything is opened


@dataclass(frozen=True)
class Plan:
    """How the sums of `n_taps` sources are held: `each` bytes a source, `at_once` sources a pass over the prompts."""

    n_taps: int
    each: int
    at_once: int

    @property
    def passes(self) -> int:
        """How often the prompts are read: sources / sources at once, rounded up."""
        return -(-self.n_taps // self.at_once)

    @property
    def bytes(self) -> int:
        """Held at once."""
        return self.each * self.at_once

    @property
    def bytes_of_all(self) -> int:
        """What one pass over the prompts would hold."""
        return self.each * self.n_taps

    def groups(self, taps: Sequence[int] | None = None) -> list[tuple[int, ...]]:
        """These sources, all unless told, as many at once as are held."""
        taps = range(self.n_taps) if taps is None else taps
        return [tuple(taps[i : i + self.at_once]) for i in range(0, len(taps), self.at_once)]

    def sentence(self) -> str:
        """ "29 source taps, 6.2 GB each, 179.0 GB in all: 3 at once (18.5 GB), 10 passes over the prompts"."""
        passes = f"{self.passes} pass{'es' * (self.passes != 1)} over the prompts"
        return (
            f"{self.n_taps} source taps, {gigabytes(self.each)} each, {gigabytes(self.bytes_of_all)} in all: "
            f"{self.at_once} at once ({gigabytes(self.bytes)}), {passes}"
        )


def plan(n_taps: int, d_x: int, d_y: int, memory: int) -> Plan:
    """For `n_taps` sources of width `d_x` and targets of width `d_y` side by side: a Gram matrix `[d_x, d_x]` and
    products `[d_x, d_y]` a source, float64; one source at once at the least."""
    each = FLOAT * d_x * (d_x + d_y)
    return Plan(n_taps, each, max(1, min(n_taps, memory // each)))


def plan_of_maps(n_layers: tuple[int, int], d_model: tuple[int, int], memory: int) -> Plan:
    """Of maps from every tap of A to every tap of B, the shuffled targets included."""
    return plan(n_layers[0] + 1, d_model[0], 2 * (n_layers[1] + 1) * d_model[1], memory)


def plan_of_affine(n_layers: int, d_model: int, memory: int) -> Plan:
    """Of the affine lens at every depth, the shuffled targets included."""
    return plan(n_layers, d_model, 2 * d_model, memory)


def plan_of_jacobian(n_layers: int, d_model: int, memory: int) -> Plan:
    """Of the sums of Jacobians over either half of the prompts; all depths are held at once, whatever the `memory`."""
    return Plan(n_layers, 2 * FLOAT * d_model**2, n_layers)


def plan_of_replacement(n_layers: int, d_model: int, memory: int) -> Plan:
    """Of a map `h[s] -> h[s+1]` for every block."""
    return plan(n_layers, d_model, d_model, memory)


OF_ONE = {"affine": plan_of_affine, "jacobian": plan_of_jacobian, "replacement": plan_of_replacement}  # of one model


def require_room(planned: Plan, free: int, what: str) -> None:
    """Refuse where not even one source at once has room."""
    if planned.each > free:
        raise TooLarge(
            f"{what} needs {gigabytes(planned.each)} for the sums of one source tap, and {gigabytes(free)} are free; "
            "take smaller models, or a machine with more memory."
        )
