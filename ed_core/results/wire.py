"""A `ProbeResult` as bytes and back: one `.npz` without pickle, its header a JSON document among the arrays. Numpy
only.

The same bytes travel from worker to app and lie in the store. `unpack` trusts nothing: dims, dtypes and lengths are
checked against the probe's own description, and anything else is a `ValueError`."""

from __future__ import annotations

import io
import json
import reprlib
from dataclasses import fields, replace
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, NonNegativeInt, Strict, ValidationError

from .. import npz
from ..probes import find
from ..types import ENGINE_VERSION, Measure, ProbeResult, Request, canonical_json
from .aggregate import following, summarize

SCHEMA = 1
FROM_LIST = Strict(False)  # JSON has no tuples; what is within is of its very type all the same


class Header(BaseModel, strict=True, extra="forbid", frozen=True):
    """What stands beside the arrays, apart from its schema."""

    arrays: list[str]
    request: dict[str, Any]
    tokens: Annotated[tuple[str, ...], FROM_LIST]
    token_ids: Annotated[tuple[int, ...], FROM_LIST]
    answer_start: int | None
    n_layers: NonNegativeInt
    version: NonNegativeInt
    complete: bool
    progress: int | float
    token_text: Annotated[dict[int, str], BeforeValidator(dict)]
    notes: Annotated[tuple[str, ...], FROM_LIST]
    provenance: dict[str, Any]


SAME = {f.name for f in fields(ProbeResult)} & Header.model_fields.keys() - {"request"}  # as the result holds them


def pack(result: ProbeResult) -> bytes:
    """Bytes of a result, partial or complete."""
    arrays = {f"m.{name}": m.values for name, m in result.measures.items()}
    left_out = following(find(result.request.probe))
    arrays |= {f"s.{name}": np.asarray(values) for name, values in result.summary.items() if name not in left_out}
    header = {name: getattr(result, name) for name in SAME} | {
        "schema": SCHEMA,
        "request": result.request.to_json(),
        "token_text": sorted(result.token_text.items()),
        "arrays": sorted(arrays),
    }
    buffer = io.BytesIO()
    about = np.frombuffer(canonical_json(header).encode(), np.uint8)
    np.savez(buffer, allow_pickle=False, header=about, **arrays)
    return buffer.getvalue()


def unpack(data: bytes) -> ProbeResult:
    """The result in `data`; `ValueError` for anything that is not one, whatever it is."""
    try:
        arrays = npz.read(data)
        header = json.loads(arrays.pop("header").tobytes())
        canonical_json(
            header
        )  # NaN and infinity are no JSON, though Python reads them: they could be shown, but not packed again
        return _result(header, arrays)
    except ValueError:
        raise
    except Exception as error:  # zipfile, zlib, key and type errors of a damaged archive: one kind of trouble
        raise ValueError(f"not a stored result ({type(error).__name__}: {error})") from error


def _result(data: dict[str, Any], arrays: dict[str, np.ndarray]) -> ProbeResult:
    if (schema := data.pop("schema")) != SCHEMA:
        raise ValueError(f"schema {schema} found, {SCHEMA} expected")
    header = _header(data)
    _expect(header.arrays == sorted(arrays), "the arrays are not those the header lists")
    request = Request.from_json(header.request)
    engine = header.provenance.get("engine", ENGINE_VERSION)
    _expect(
        type(engine) is int and request.key_under(engine) == header.request["key"],
        "the stored request does not have the stored key",
    )
    probe = find(request.probe)
    measures = {
        name[2:]: Measure(probe.spec(name[2:]), values) for name, values in arrays.items() if name.startswith("m.")
    }
    summary = {name[2:]: values for name, values in arrays.items() if name.startswith("s.")}
    _expect(len(measures) + len(summary) == len(arrays), "an array is neither a measure nor a summary")
    same = {name: getattr(header, name) for name in SAME}
    result = ProbeResult(request=request, measures=measures, summary=summary, **same)
    _check_arrays(result)
    return _summed_up(result)


def _header(data: dict[str, Any]) -> Header:
    """Every field of the kind and in the range the program writes."""
    try:
        header = Header(**data)
    except ValidationError as error:
        raise ValueError(f"not as written by this program: {told(error)}") from None
    _expect(0 < len(header.token_ids) == len(header.tokens), "tokens")
    _expect(header.answer_start is None or 0 < header.answer_start < len(header.tokens), "answer_start")
    return header


def told(error: ValidationError) -> str:
    """The first thing that is wrong: where, what is expected, what was found."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where!r}: {first['msg'].lower()}, found {reprlib.repr(first['input'])}"


def _check_arrays(result: ProbeResult) -> None:
    """Dtypes and shapes as the probe describes them."""
    n = {"layer": result.n_layers, "skipped": result.n_layers, "depth": result.n_layers + 1, "pos": result.n_tokens}
    for name, measure in result.measures.items():
        expected = measure.spec.dtype
        _expect(measure.values.dtype == expected, f"{name} is {measure.values.dtype}, expected {expected}")
        for dim, size in zip(measure.spec.dims, measure.values.shape):
            _expect(n.setdefault(dim, size) == size, f"{name} has {size} along {dim}, expected {n[dim]}")


def _summed_up(result: ProbeResult) -> ProbeResult:
    """The result with all of its summary; what is stored of it must be that of the measures."""
    if not result.complete:
        _expect(not result.summary, "a partial result has no summary")
        return result
    again, stored = summarize(result), result.summary
    left_out = again.summary.keys() - stored.keys()
    named = stored.keys() <= again.summary.keys() and left_out <= following(find(result.request.probe))
    same = named and all(np.array_equal(values, again.summary[name], equal_nan=True) for name, values in stored.items())
    _expect(same and bool(result.measures), "the summary is not that of the measures")
    return again


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not as written by this program: {what}")


def with_provenance(result: ProbeResult, **more: Any) -> ProbeResult:
    """The result with further entries in its birth certificate."""
    return replace(result, provenance={**result.provenance, **more})
