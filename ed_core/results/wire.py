"""A `ProbeResult` as bytes and back, in the sealed container: its measures (`m.NAME`) and what is kept of its summary
(`s.NAME`) are the arrays, `numpy.load` opens them. Numpy only.

The same bytes travel from worker to app and lie in the store. `unpack` trusts nothing: dims, dtypes and lengths are
checked against the probe's own description, and anything else is a `ValueError`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from pydantic import NonNegativeInt

from ..files import Bounds, Head, Kind, Sealed, expect, open_sealed, seal
from ..probes import find
from ..types import Measure, ProbeResult, Request
from .aggregate import following, summarize


class Header(Head):
    """The fields of a result file other than arrays. `updates`: how many partial results came before."""

    request: dict[str, Any]
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    answer_start: int | None
    n_layers: NonNegativeInt
    updates: NonNegativeInt
    complete: bool
    progress: int | float
    token_text: tuple[tuple[int, str], ...]
    notes: tuple[str, ...]
    provenance: dict[str, Any]


SAME = {f.name for f in fields(ProbeResult)} & Header.model_fields.keys() - {"request", "version", "token_text"}
RESULT = Kind(
    "result",
    "a result",
    2,
    Header,
    "compute it again",
    members=r"[ms](\.\w+)+\.npy",
    bounds=Bounds(file=4 << 30, unpacked=4 << 30, member=4 << 30, head=64 << 20, ratio=16),
    refuses=ValueError,
)


def pack(result: ProbeResult) -> bytes:
    """Return a result, partial or complete, as bytes that `unpack` reads."""
    arrays = {f"m.{name}": m.values for name, m in result.measures.items()}
    left_out = following(find(result.request.probe))
    arrays |= {f"s.{name}": np.asarray(values) for name, values in result.summary.items() if name not in left_out}
    head = {name: getattr(result, name) for name in SAME} | {
        "updates": result.version,
        "request": result.request.to_json(),
        "token_text": sorted(result.token_text.items()),
    }
    return seal(RESULT, head, arrays)


def unpack(data: bytes) -> ProbeResult:
    """Return the result in `data`; raise `ValueError` for any bytes that are not a valid one."""
    with open_sealed(data, RESULT) as sealed:
        return result_of(sealed)


def result_of(sealed: Sealed[Header]) -> ProbeResult:
    """Return the result in an opened result file; call within `open_sealed`. Checked: tokens, the request's key, the
    probe's version, and the arrays' names, types and lengths. `ValueError` if one is wrong."""
    header, arrays = sealed.head, sealed.arrays()
    expect(0 < len(header.token_ids) == len(header.tokens), "tokens")
    expect(header.answer_start is None or 0 < header.answer_start < len(header.tokens), "answer_start")
    request = Request.from_json(header.request)
    expect(request.key == header.request["key"], "the stored request does not have the stored key")
    probe = find(request.probe)
    expect(
        request.probe_version == probe.version,
        f"it was measured by version {request.probe_version} of {request.probe}, this program has {probe.version}",
    )
    measures = {
        name[2:]: Measure(probe.spec(name[2:]), values) for name, values in arrays.items() if name.startswith("m.")
    }
    summary = {name[2:]: values for name, values in arrays.items() if name.startswith("s.")}
    same = {name: getattr(header, name) for name in SAME}
    result = ProbeResult(
        request=request,
        measures=measures,
        summary=summary,
        version=header.updates,
        token_text=dict(header.token_text),
        **same,
    )
    _check_arrays(result)
    return _summed_up(result)


def _check_arrays(result: ProbeResult) -> None:
    """Raise `ValueError` unless the arrays have the dtypes and shapes that the probe describes."""
    n = {"layer": result.n_layers, "skipped": result.n_layers, "depth": result.n_layers + 1, "pos": result.n_tokens}
    for name, measure in result.measures.items():
        expected = measure.spec.dtype
        expect(measure.values.dtype == expected, f"{name} is {measure.values.dtype}, expected {expected}")
        for dim, size in zip(measure.spec.dims, measure.values.shape):
            expect(n.setdefault(dim, size) == size, f"{name} has {size} along {dim}, expected {n[dim]}")


def _summed_up(result: ProbeResult) -> ProbeResult:
    """Return the result with its summary, computed from the measures; `ValueError` if the stored part differs."""
    if not result.complete:
        expect(not result.summary, "a partial result has no summary")
        return result
    summed, stored = summarize(result), result.summary
    left_out = summed.summary.keys() - stored.keys()
    named = stored.keys() <= summed.summary.keys() and left_out <= following(find(result.request.probe))
    own = summed.summary
    same = named and all(np.array_equal(values, own[name], equal_nan=True) for name, values in stored.items())
    expect(same and bool(result.measures), "the summary is not that of the measures")
    return summed


def with_provenance(result: ProbeResult, **more: Any) -> ProbeResult:
    """Return a copy of the result with further entries in its provenance."""
    return replace(result, provenance={**result.provenance, **more})
