"""The file of a fitted lens: safetensors with its certificate as JSON in the header. Torch-free.

Affine lens: `A.<l>` `[d, d]` and `b.<l>` `[d]` for every depth l < L, read as `A h + b`; where the certificate has a
`rank` r, `U.<l>` `[d, r]`, `V.<l>` `[r, d]` and `scale` `[L]` give `A = scale I + U V`. Jacobian lens: `J.<l>`
`[d, d]`, read as `J h`. `mean` `[d]` is the mean of `h[L]` over the tokens fitted on, which predicts the same at every
depth. Numbers may be float32, float16 or bfloat16."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .. import settings, untrusted
from ..errors import BrokenWeights, FitRefused, ParameterError
from ..files import expect, parse
from ..models import weights
from ..models.bundled import FITS
from ..types import ModelSpec
from .measured import AFFINE, JACOBIAN

ENDING = ".safetensors"
FORMAT, VERSION = "effective-depth fit", 1
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
REFIT = "fit it again with `python -m ed_core fit`"
JUDGED = "held_out"  # in a certificate: the figures on held-out prompts
WEIGHTS = ("source", "revision", "content_hash", "adapter", "control", "control_seed")


@dataclass(frozen=True)
class Fit:
    """A fitted lens, from its file's header. `kind`: "affine" or "jacobian"; `certificate`: model, prompts, tokens,
    how it was fitted, and its figures on held-out prompts."""

    path: Path
    kind: str
    n_layers: int
    d_model: int
    certificate: Mapping[str, Any] = field(repr=False)

    @cached_property
    def content(self) -> str:
        """The SHA-256 of the file, which identifies the fit in cache keys."""
        with self.path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()

    @property
    def summary(self) -> dict[str, Any]:
        """The fit's entry in a result's provenance: name, kind, content and prompts."""
        prompts = self.certificate.get("prompts", {})
        return {"name": self.path.stem, "kind": self.kind, "content": self.content, "prompts": prompts}

    def require(self, model: ModelSpec) -> None:
        """Raise `FitRefused` for a model with other weights than the fit's own."""
        fitted = self.certificate["model"]
        if fitted["identity"] != weights_of(model):
            raise FitRefused(
                f"{self.path.name} was fitted to {fitted['name']} with other weights than {model.name} has as opened "
                f"here (another model, adapter or control), and a lens is valid for its own weights only: {REFIT}."
            )


def folder() -> Path:
    """Return the folder with the fits that this installation has made."""
    return settings.current().cache / "fits"


def is_name(text: str) -> bool:
    """Return whether a text is the name of a fit, bundled or kept, rather than a path."""
    return re.fullmatch(r"[\w][\w.+-]{0,99}", text) is not None and untrusted.ending(text) not in (ENDING, *PICKLES)


def named(text: str) -> str:
    """Return a text unchanged if it is a comma-separated list of fit names; else raise `ParameterError`. For links,
    which must not give paths."""
    if wrong := [name for name in text.split(",") if name and not is_name(name)]:
        raise ParameterError(f"{wrong[0][:40]!r} is not the name of a fitted lens; a link cannot give a path.")
    return text


def find(text: str) -> Fit:
    """Return the fit with this name, or in the file at this path; raise `FitRefused` if it does not exist."""
    if not is_name(text) or Path(text).is_file():
        return read(text)
    known = {file.stem: file for file in reversed(_files())}
    if text not in known:
        names = ", ".join(sorted(known)) or "none"
        raise FitRefused(f"There is no fit {text!r}; those of this installation are: {names}.")
    return read(known[text])


def of_model(model: ModelSpec) -> list[Fit]:
    """Return the fits made for this model's weights, bundled ones before kept ones; damaged files are skipped."""
    fits = []
    for file in _files():
        with contextlib.suppress(FitRefused):
            fit = read(file)
            fit.require(model)
            fits.append(fit)
    return fits


def _files() -> list[Path]:
    """Return the paths of all fit files, bundled ones first."""
    return [file for place in (FITS, folder()) for file in sorted(place.glob(f"*{ENDING}"))]


def weights_of(model: ModelSpec) -> dict[str, Any]:
    """Return the identity of a model's weights, without precision or device: a lens fitted in float32 may be read in
    bf16."""
    return {name: value for name, value in model.identity().items() if name in WEIGHTS}


def read(path: str | Path) -> Fit:
    """Return the fit in a file, of which only the header is read and checked; raise `FitRefused` if it is not a valid
    fit."""
    place = Path(path).expanduser()
    if untrusted.ending(place) in PICKLES:
        raise FitRefused(
            f"{place.name} is a pickle, which may hold a program and is not opened; expected a fit of this program "
            f"({ENDING}): {REFIT}."
        )
    if not place.is_file():
        raise FitRefused(f"There is no fit {place}; give the path of a file that `python -m ed_core fit` wrote.")
    return _read(place, place.stat().st_mtime_ns, place.stat().st_size)


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> Fit:
    """Return the fit in a file; `changed` and `size` only key the cache."""
    try:
        shapes = {name: shape for name, (_, shape) in weights.header(path).items()}
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get("certificate", "")
    except (BrokenWeights, SafetensorError, OSError) as error:
        raise FitRefused(f"{path.name} is damaged or no safetensors file; {REFIT}.") from error
    try:
        certificate = parse(text.encode(), untrusted.CONFIG)
        kind, rank = certificate["kind"], certificate.get("rank")
        n, d = int(certificate["n_layers"]), int(certificate["d_model"])
        expect((certificate["format"], certificate["version"]) == (FORMAT, VERSION), "another format")
        expect(kind in (AFFINE, JACOBIAN), "another kind")
        expect({"identity", "name"} <= certificate["model"].keys(), "no model")
        whole: dict[str, tuple[int, ...]] = {"J": (d, d)} if kind == JACOBIAN else {"A": (d, d), "b": (d,)}
        of_layer = {"U": (d, rank), "V": (rank, d), "b": (d,)} if rank else whole
        expected = {f"{name}.{l}": of_layer[name] for l in range(min(n, len(shapes))) for name in of_layer}
        expect(shapes == expected | {"mean": (d,)} | ({"scale": (n,)} if rank else {}), "other tensors")
        return Fit(path, kind, n, d, certificate)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FitRefused(
            f"{path.name} has no certificate of this version of the program in its header, or not the tensors that it "
            f"names, so its model and prompts are unknown; {REFIT}."
        ) from error


def packed(tensors: Mapping[str, np.ndarray], certificate: Mapping[str, Any]) -> bytes:
    """Return the bytes of a fit's file; equal numbers give equal bytes."""
    text = json.dumps({"format": FORMAT, "version": VERSION} | dict(certificate), sort_keys=True, allow_nan=False)
    return save({name: np.ascontiguousarray(values) for name, values in sorted(tensors.items())}, {"certificate": text})
