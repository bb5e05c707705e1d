"""The files of a fit: a fitted lens, safetensors with its certificate as JSON in the header; and the sums of one that
is not finished. Torch-free.

Affine lens: `A.<l>` `[d, d]` and `b.<l>` `[d]` for every depth l < L, read as `A h + b`; where the certificate has a
`rank` r, `U.<l>` `[d, r]`, `V.<l>` `[r, d]` and `scale` `[L]` stand for `A = scale I + U V`. Jacobian lens: `J.<l>`
`[d, d]`, read as `J h`. `mean` `[d]` is the mean of `h[L]` over the tokens fitted on, which predicts the same at every
depth. Numbers may be float32, float16 or bfloat16."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from pydantic import BaseModel, PositiveInt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .. import disk, settings, untrusted
from ..errors import BrokenWeights, FitRefused, ParameterError
from ..files import Bounds, Head, Kind, expect, open_sealed, parse, write_sealed
from ..models import weights
from ..models.bundled import FITS
from ..types import ModelSpec, Prompt, canonical_json

if TYPE_CHECKING:
    from .measured import Plan

ENDING = ".safetensors"
FORMAT, VERSION = "effective-depth fit", 1
TENSORS = {"affine": ("A", "b"), "jacobian": ("J",)}
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
DTYPES = ("F32", "F16", "BF16")
MOST_CERTIFICATE = 4 << 20  # bytes of JSON
AGAIN = "fit it anew with `python -m ed_core fit`"
JUDGED = "held_out"  # in a certificate: what held-out prompts say


@dataclass(frozen=True)
class Fit:
    """A fitted lens as its file's header tells of it. `kind`: "affine" or "jacobian"; `certificate`: model, prompts,
    tokens, how it was fitted and how well it holds on held-out prompts."""

    path: Path
    kind: str
    n_layers: int
    d_model: int
    certificate: Mapping[str, Any] = field(repr=False)

    @cached_property
    def content(self) -> str:
        """SHA-256 of the file, the fit's identity in keys."""
        return _content(self.path, self.path.stat().st_mtime_ns, self.path.stat().st_size)

    @property
    def told(self) -> dict[str, Any]:
        """What a result's birth certificate says of it."""
        prompts = self.certificate.get("prompts", {})
        return {"name": self.path.stem, "kind": self.kind, "content": self.content, "prompts": prompts}

    def require(self, model: ModelSpec) -> None:
        """Refuse a model whose weights it was not fitted to."""
        fitted, asked = self.certificate["model"], weights_of(model)
        if fitted["identity"] != asked:
            kind = " twin" if fitted["identity"].get("control") != asked["control"] else ""
            raise FitRefused(
                f"{self.path.name} was fitted to {fitted['name']}{kind and ' or a' + kind}, not to {model.name} as it "
                f"is opened here; a lens holds for the weights it was fitted to: {AGAIN} --model {model.name}."
            )


def folder() -> Path:
    """Where the fits of this installation are kept."""
    return settings.current().cache / "fits"


def is_name(text: str) -> bool:
    """Whether a fit is meant by its name, bundled or kept, and not by a path."""
    return re.fullmatch(r"[\w][\w.+-]{0,99}", text) is not None and untrusted.ending(text) not in (ENDING, *PICKLES)


def named(text: str) -> str:
    """Names of fits with commas between them, as a link may have them; a `ParameterError` for anything else."""
    if wrong := [name for name in text.split(",") if name and not is_name(name)]:
        raise ParameterError(f"{wrong[0][:40]!r} is no name of a fitted lens; a path is never taken from a link.")
    return text


def find(text: str) -> Fit:
    """The fit of that name, bundled or kept, or in that file."""
    if not is_name(text):
        return read(text)
    for place in (FITS, folder()):
        if (file := place / f"{text}{ENDING}").is_file():
            return read(file)
    known = ", ".join(sorted(file.stem for place in (FITS, folder()) for file in place.glob(f"*{ENDING}"))) or "none"
    raise FitRefused(f"There is no fit {text!r}; those of this installation are: {known}.")


def of_model(model: ModelSpec) -> list[Fit]:
    """The bundled and kept fits of a model's weights, bundled ones first; damaged files are left out."""
    found = []
    for file in (*sorted(FITS.glob(f"*{ENDING}")), *sorted(folder().glob(f"*{ENDING}"))):
        try:
            fit = read(file)
            fit.require(model)
        except FitRefused:
            continue
        found.append(fit)
    return found


def weights_of(model: ModelSpec) -> dict[str, Any]:
    """Which weights: a model's identity without how it is run. A lens fitted in float32 may be read in another
    precision."""
    kept = ("source", "revision", "content_hash", "adapter", "control", "control_seed")
    return {name: value for name, value in model.identity().items() if name in kept}


def read(path: str | Path) -> Fit:
    """The fit in a file, checked by its header alone. `FitRefused` says what is wrong with it."""
    place = Path(path).expanduser()
    if untrusted.ending(place) in PICKLES:
        raise FitRefused(
            f"{place.name} is a pickle, which may hold a program and is not opened; expected a fit of this program "
            f"({ENDING}): {AGAIN}."
        )
    if not place.is_file():
        raise FitRefused(f"There is no fit {place}; give the path of a file that `python -m ed_core fit` wrote.")
    return _read(place, place.stat().st_mtime_ns, place.stat().st_size)


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> Fit:
    try:
        shapes = weights.header(path)
        with safe_open(path, framework="np") as file:
            told = (file.metadata() or {}).get("certificate", "")
    except (BrokenWeights, SafetensorError, OSError) as error:
        raise FitRefused(f"{path.name} is damaged or no safetensors file; {AGAIN}.") from error
    certificate = _certificate(path, told)
    kind, n_layers, d = certificate["kind"], certificate["n_layers"], certificate["d_model"]
    if n_layers > len(shapes):
        raise FitRefused(
            f"{path.name} does not hold what its certificate says: {n_layers} layers, and {len(shapes)} tensors; "
            f"{AGAIN}."
        )
    shape = {"A": (d, d), "J": (d, d), "b": (d,)}
    names: tuple[str, ...] = TENSORS[kind]
    if rank := certificate.get("rank"):
        names, shape = ("U", "V", "b"), {"U": (d, rank), "V": (rank, d), "b": (d,)}
    expected: dict[str, tuple[int, ...]] = {f"{name}.{l}": shape[name] for l in range(n_layers) for name in names}
    if rank:
        expected["scale"] = (n_layers,)
    expected["mean"] = (d,)
    found = {name: shape for name, (_, shape) in shapes.items()}
    if found != expected or any(dtype not in DTYPES for dtype, _ in shapes.values()):
        wrong = next((name for name in expected if found.get(name) != expected[name]), next(iter(found), "nothing"))
        raise FitRefused(
            f"{path.name} does not hold what its certificate says ({kind} lens, {n_layers} layers x {d}): at {wrong}; "
            f"{AGAIN}."
        )
    return Fit(path, kind, n_layers, d, certificate)


class Model(BaseModel, strict=True, extra="allow"):
    """The model in a certificate."""

    name: str
    identity: dict[str, Any]


class Certificate(BaseModel, strict=True, extra="allow"):
    """What every certificate has."""

    format: Literal["effective-depth fit"]
    version: PositiveInt
    kind: Literal["affine", "jacobian"]
    n_layers: PositiveInt
    d_model: PositiveInt
    model: Model


def _certificate(path: Path, told: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse(told.encode(), MOST_CERTIFICATE)
        Certificate.model_validate(found)
        rank = found.get("rank")
        right = type(rank) is int and 0 < rank <= found["d_model"] and found["kind"] == "affine"
        expect(rank is None or right, "the rank")
    except (ValueError, TypeError) as error:
        raise FitRefused(
            f"{path.name} has no certificate of this program in its header, so nobody can tell which model and prompts "
            f"it was fitted to; {AGAIN}."
        ) from error
    if found["version"] != VERSION:
        raise FitRefused(f"{path.name} was written by another version of this program; {AGAIN}.")
    return found


@lru_cache(maxsize=64)
def _content(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write(path: Path, tensors: Mapping[str, np.ndarray], certificate: Mapping[str, Any]) -> None:
    """The file, all or nothing; byte for byte the same from the same numbers."""
    told = json.dumps({"format": FORMAT, "version": VERSION} | dict(certificate), sort_keys=True, allow_nan=False)
    data = save({name: np.ascontiguousarray(values) for name, values in sorted(tensors.items())}, {"certificate": told})
    disk.require_room(path.name, len(data), path.parent, "--out")
    disk.write(path, data)


# ---------------------------------------------------------------- what a fit has summed up so far

# In a file beside the one it will write: stopped anywhere, it goes on from there.

EVERY = 60.0  # seconds
LARGE = 1 << 44  # bytes: as large as a disk
SUMS = Bounds(LARGE, 1 << 20, LARGE, LARGE, 64 << 20, ratio=1)  # of a file of sums


class CheckpointHeader(Head):
    """Of which fit the sums are, as a digest."""

    what: str


CHECKPOINT = Kind(
    "checkpoint",
    "a fit's checkpoint",
    2,
    CheckpointHeader,
    "begin the fit anew",
    members=r"\w+(\.\w+)*\.npy",
    bounds=SUMS,
    refuses=ValueError,
)


def digest_of(*what: Any) -> str:
    """What a fit is made of, as 32 hex digits."""
    return hashlib.sha256(canonical_json(what).encode()).hexdigest()[:32]


def digest_of_prompts(prompts: Sequence[Prompt]) -> str:
    """A prompt set by its content."""
    return digest_of([p.identity() for p in prompts])


def told_of(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """A prompt set in a certificate."""
    return {"n": len(prompts), "digest": digest_of_prompts(prompts)}


class Summed(Protocol):
    """Sums that are kept and put back as arrays."""

    def arrays(self) -> Mapping[str, np.ndarray]: ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...


class Checkpoint:
    """The sums of one fit, `what` says which; another fit's are not read. Without a `file` nothing is kept."""

    def __init__(self, file: Path | None, *what: Any):
        self.file, self.what = file, digest_of(*what)
        self._written = time.monotonic()

    def read(self) -> Mapping[str, np.ndarray] | None:
        """The sums kept last, or None where there are none of this fit; a damaged file counts as none."""
        if self.file is None or not self.file.is_file():
            return None
        try:
            with open_sealed(self.file, CHECKPOINT) as sealed:
                return sealed.arrays() if sealed.head.what == self.what else None
        except (OSError, ValueError):
            return None

    def due(self) -> bool:
        """Whether it is time to keep the sums again."""
        return self.file is not None and time.monotonic() - self._written >= EVERY

    def write(self, arrays: Mapping[str, np.ndarray], now: bool = False) -> None:
        """Keep the sums, once a minute unless `now`."""
        if self.file is None or not (now or self.due()):
            return
        write_sealed(self.file, CHECKPOINT, {"what": self.what}, arrays)
        self._written = time.monotonic()

    def restore(self, sources: Sequence[int], sums: Sequence[Summed]) -> int:
        """Fill the sums of these sources with those kept last; returns the prompt to go on from."""
        if (found := self.read()) is None:
            return 0
        fill(sources, sums, found)
        return int(found["next"])

    def keep(self, sources: Sequence[int], sums: Sequence[Summed], following: int, now: bool = False) -> None:
        """Keep the sums up to the prompt before `following`, once a minute unless `now`."""
        if now or self.due():
            self.write(arrays(sources, sums) | {"next": np.asarray(following)}, now)

    def done(self) -> None:
        """The fit is written: its sums are not needed any more."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def checkpoint_file(out: Path, number: int = 0) -> Path:
    """Where the sums of the fit that `out` will hold are kept; `number`: of the group, where there are several."""
    return out.with_name(f"{out.name}.{number or ''}part")


def arrays(sources: Sequence[int], sums: Sequence[Summed]) -> dict[str, np.ndarray]:
    """Sums by the names they have in a file."""
    return {f"{source}.{name}": a for source, one in zip(sources, sums) for name, a in one.arrays().items()}


def fill(sources: Sequence[int], sums: Sequence[Summed], found: Mapping[str, np.ndarray]) -> None:
    """Put back what `arrays` named."""
    for source, one in zip(sources, sums):
        one.restore({name: found[f"{source}.{name}"] for name in one.arrays()})


KEPT_BYTES = 2 << 30  # of sums under way; larger ones are not kept: writing them would take longer than summing


class Rows:
    """Arrays with a row per source, filled group by group; stopped anywhere, the fit goes on from what was kept, in
    whatever groups. NaN where a row is not done."""

    def __init__(self, kept: Checkpoint, planned: Plan, shapes: Mapping[str, tuple[int, ...]]):
        self.kept, self.planned = kept, planned
        self.arrays = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        self.done = np.zeros(planned.n_taps, bool)
        self._found: Mapping[str, np.ndarray] = kept.read() or {}
        if self._found:
            self.done = self._found["done"].astype(bool)
            self.arrays = {name: self._found[f"row.{name}"].copy() for name in shapes}

    def groups(self) -> Iterator[tuple[int, ...]]:
        """The sources that are not done, as many at once as planned; a group is done when the next is asked for."""
        for taps in self.planned.groups(np.flatnonzero(~self.done).tolist()):
            yield taps
            self.done[list(taps)] = True
            self._write({}, now=True)

    def share(self, taps: Sequence[int], within: float) -> float:
        """How much of all sources is done, `within` of these."""
        return float(self.done.sum() + within * len(taps)) / len(self.done)

    def restore(self, taps: Sequence[int], sums: Sequence[Summed]) -> int:
        """Fill the sums of a group with what was kept; returns the prompt to go on from."""
        found, self._found = self._found, {}
        if "taps" not in found or found["taps"].tolist() != list(taps):
            return 0
        fill(taps, sums, found)
        return int(found["next"])

    def keep(self, taps: Sequence[int], sums: Sequence[Summed], following: int) -> None:
        """The sums of a group up to the prompt before `following`."""
        if self.planned.bytes <= KEPT_BYTES and self.kept.due():
            self._write(arrays(taps, sums) | {"taps": np.asarray(taps), "next": np.asarray(following)})

    def _write(self, more: Mapping[str, np.ndarray], now: bool = False) -> None:
        rows = {f"row.{name}": values for name, values in self.arrays.items()}
        self.kept.write(rows | {"done": self.done} | dict(more), now)
