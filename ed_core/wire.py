"""A `ProbeResult` as bytes and back: one `.npz` without pickle, its header a JSON document among the arrays. Numpy only.

The same bytes travel from worker to app and lie in the store. `unpack` trusts nothing: dims, dtypes and lengths are checked against the
probe's own description, and anything else is a `ValueError`.
"""
from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np

from .probes import find
from .types import Measure, ProbeResult, Request, canonical_json

SCHEMA = 1


def pack(result: ProbeResult) -> bytes:
    """Bytes of a result, partial or complete."""
    header = {
        "schema": SCHEMA,
        "request": result.request.to_json(),
        "tokens": result.tokens,
        "token_ids": result.token_ids,
        "answer_start": result.answer_start,
        "n_layers": result.n_layers,
        "version": result.version,
        "complete": result.complete,
        "progress": result.progress,
        "token_text": sorted(result.token_text.items()),
        "notes": result.notes,
        "provenance": result.provenance,
    }
    arrays = {f"m.{name}": m.values for name, m in result.measures.items()}
    arrays |= {f"s.{name}": np.asarray(values) for name, values in result.summary.items()}
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(canonical_json(header).encode(), np.uint8), **arrays)
    return buffer.getvalue()


def unpack(data: bytes) -> ProbeResult:
    """The result in `data`; `ValueError` for anything that is not one, whatever it is."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop("header").tobytes())
        return _result(header, arrays)
    except ValueError:
        raise
    except Exception as error:  # zipfile, zlib, key and type errors of a damaged archive: one kind of trouble
        raise ValueError(f"not a stored result ({type(error).__name__}: {error})") from error


def _result(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> ProbeResult:
    if header["schema"] != SCHEMA:
        raise ValueError(f"schema {header['schema']} found, {SCHEMA} expected")
    request = Request.from_json(header["request"])
    if request.key != header["request"]["key"]:
        raise ValueError("the stored request does not have the stored key")
    probe = find(request.probe)
    n = {"layer": header["n_layers"], "skipped": header["n_layers"], "depth": header["n_layers"] + 1, "pos": len(header["token_ids"])}
    measures = {}
    for name in [a for a in arrays if a.startswith("m.")]:
        spec = probe.spec(name[2:])
        expected = [n.get(dim) for dim in spec.dims]
        shape = arrays[name].shape
        if len(shape) != len(expected) or any(e not in (None, s) for e, s in zip(expected, shape)):
            raise ValueError(f"{spec.name} has shape {shape}, expected {expected}")
        if arrays[name].dtype not in (np.float32, np.int32):
            raise ValueError(f"{spec.name} is {arrays[name].dtype}, expected float32 or int32")
        measures[spec.name] = Measure(spec, arrays[name])
    return ProbeResult(
        request=request,
        measures=measures,
        tokens=tuple(header["tokens"]),
        token_ids=tuple(header["token_ids"]),
        answer_start=header["answer_start"],
        n_layers=header["n_layers"],
        version=header["version"],
        complete=header["complete"],
        progress=header["progress"],
        summary={name[2:]: values for name, values in arrays.items() if name.startswith("s.")},
        token_text={int(k): v for k, v in header["token_text"]},
        notes=tuple(header["notes"]),
        provenance=header["provenance"],
    )


def with_provenance(result: ProbeResult, **more: Any) -> ProbeResult:
    """The result with further entries in its birth certificate."""
    return replace(result, provenance={**result.provenance, **more})
