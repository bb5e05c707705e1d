"""A `ProbeResult` as bytes and back: one `.npz` without pickle, its header a JSON document among the arrays. Numpy
only.

The same bytes travel from worker to app and lie in the store. `unpack` trusts nothing: dims, dtypes and lengths are
checked against the probe's own description, and anything else is a `ValueError`."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np

from ..probes import find
from ..types import ENGINE_VERSION, Measure, ProbeResult, Request, canonical_json
from .aggregate import summarize

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
    header["arrays"] = sorted(arrays)
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(canonical_json(header).encode(), np.uint8), **arrays)
    return buffer.getvalue()


def unpack(data: bytes) -> ProbeResult:
    """The result in `data`; `ValueError` for anything that is not one, whatever it is."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop("header").tobytes())
        canonical_json(
            header
        )  # NaN and infinity are no JSON, though Python reads them: they could be shown, but not packed again
        return _result(header, arrays)
    except ValueError:
        raise
    except Exception as error:  # zipfile, zlib, key and type errors of a damaged archive: one kind of trouble
        raise ValueError(f"not a stored result ({type(error).__name__}: {error})") from error


def _result(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> ProbeResult:
    if header["schema"] != SCHEMA:
        raise ValueError(f"schema {header['schema']} found, {SCHEMA} expected")
    _expect(header["arrays"] == sorted(arrays), "the arrays are not those the header lists")
    request = Request.from_json(header["request"])
    _check_header(header)
    engine = header["provenance"].get("engine", ENGINE_VERSION)
    _expect(
        type(engine) is int and request.key_under(engine) == header["request"]["key"],
        "the stored request does not have the stored key",
    )
    probe = find(request.probe)
    measures = {
        name[2:]: Measure(probe.spec(name[2:]), values) for name, values in arrays.items() if name.startswith("m.")
    }
    summary = {name[2:]: values for name, values in arrays.items() if name.startswith("s.")}
    _expect(len(measures) + len(summary) == len(arrays), "an array is neither a measure nor a summary")
    result = ProbeResult(
        request=request,
        measures=measures,
        tokens=tuple(header["tokens"]),
        token_ids=tuple(header["token_ids"]),
        answer_start=header["answer_start"],
        n_layers=header["n_layers"],
        version=header["version"],
        complete=header["complete"],
        progress=header["progress"],
        summary=summary,
        token_text={int(k): v for k, v in header["token_text"]},
        notes=tuple(header["notes"]),
        provenance=header["provenance"],
    )
    _check_arrays(result)
    return result


def _check_header(header: dict[str, Any]) -> None:
    """Every field of the kind and in the range the program writes."""
    n_tokens, start = len(header["token_ids"]), header["answer_start"]
    _expect(len(header["tokens"]) == n_tokens and all(isinstance(t, str) for t in header["tokens"]), "tokens")
    _expect(n_tokens > 0 and all(type(i) is int for i in header["token_ids"]), "token_ids")
    _expect(start is None or (type(start) is int and 0 < start < n_tokens), "answer_start")
    _expect(
        all(type(header[name]) is int and header[name] >= 0 for name in ("n_layers", "version")), "n_layers or version"
    )
    _expect(type(header["complete"]) is bool and type(header["progress"]) in (int, float), "complete or progress")
    _expect(isinstance(header["notes"], list) and all(isinstance(n, str) for n in header["notes"]), "notes")
    _expect(isinstance(header["provenance"], dict), "provenance")


def _check_arrays(result: ProbeResult) -> None:
    """Dtypes and shapes as the probe describes them; where complete, every summary that belongs to what was
    measured."""
    n = {"layer": result.n_layers, "skipped": result.n_layers, "depth": result.n_layers + 1, "pos": result.n_tokens}
    for name, measure in result.measures.items():
        expected = measure.spec.dtype
        _expect(measure.values.dtype == expected, f"{name} is {measure.values.dtype}, expected {expected}")
        for dim, size in zip(measure.spec.dims, measure.values.shape):
            _expect(n.setdefault(dim, size) == size, f"{name} has {size} along {dim}, expected {n[dim]}")
    if result.complete:
        again = summarize(result).summary
        _expect(set(again) == set(result.summary), "the summary is not that of the measures")
        same = all(np.array_equal(values, result.summary[name], equal_nan=True) for name, values in again.items())
        _expect(same and bool(result.measures), "the summary is not that of the measures")
    else:
        _expect(not result.summary, "a partial result has no summary")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not as written by this program: {what}")


def with_provenance(result: ProbeResult, **more: Any) -> ProbeResult:
    """The result with further entries in its birth certificate."""
    return replace(result, provenance={**result.provenance, **more})
