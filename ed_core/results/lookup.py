"""Request → stored result. What the app uses; torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ParameterError, StoreError
from ..probes.patching import Patching
from ..types import ModelSpec, ProbeResult, Prompt, Request
from .shelf import Shelf
from .store import Store
from .wire import unpack

EXAMPLES = Path(__file__).parent.parent / "demo" / "examples"  # shipped results, one file per run id
TWINS = EXAMPLES / "twins"  # of the same prompts on untrained copies: what a verdict reads, and no more
# hex digits of a run id in a link: 48 bits, so that a store of a million results has two alike once in five hundred
# times
SHORT = 12
HELD = 16 << 20  # bytes of results that stay in memory once they were read


@lru_cache(maxsize=1)
def store() -> Store:
    """Return this process's result store, opened on the first call; raise `StoreError` if that fails."""
    return Store()


def trouble() -> str:
    """Return why the store cannot be used at the moment, or ""."""
    try:
        store()
    except StoreError as error:
        return str(error)
    return ""


def _bytes(result: ProbeResult) -> int:
    """Return about how many bytes a result takes in memory."""
    arrays = [*(measure.values for measure in result.measures.values()), *result.summary.values()]
    return sum(values.nbytes for values in arrays) + 200 * result.n_tokens


def _shared(result: ProbeResult | None) -> ProbeResult | None:
    """Return the same result with its arrays made read-only, as many sessions share it; None stays None."""
    for values in [*(m.values for m in result.measures.values()), *result.summary.values()] if result else ():
        values.setflags(write=False)
    return result


_read: Shelf[ProbeResult] = Shelf(HELD, _bytes)  # by key and what changes when it is stored again


def by_key(key: str) -> ProbeResult | None:
    """Return the stored or shipped result with this run id (32 hex digits), its arrays read-only; None without one."""
    if not re.fullmatch(r"[0-9a-f]{32}", key):
        return None
    try:
        stamp = store().stamp(key)
        stored = None if stamp is None else _read.get((key, stamp), lambda: _shared(store().get(key)))
    except StoreError:
        stored = None  # `trouble` says so on every page; computed results are shown anyway
    return _of_shipped(EXAMPLES, key) if stored is None else stored


def _of_shipped(folder: Path, key: str) -> ProbeResult | None:
    """Return the shipped result with this run id in a folder; None if missing or unreadable."""
    if not (file := folder / f"{key}.npz").is_file():
        return None
    try:
        return _read.get((key, file.stat().st_mtime_ns), lambda: _shared(unpack(file.read_bytes())))
    except ValueError:
        return None  # computed when somebody asks


def by_short(short: str) -> ProbeResult:
    """Return the one result with a run id that begins with these 8 to 32 hex digits; raise `ParameterError` if the text
    is invalid, or fits none or several."""
    if not re.fullmatch(r"[0-9a-f]{8,32}", short):
        raise ParameterError(f"{short[:40]!r} is no run id; expected its first 8 hex digits or more.")
    stored = {name for name in _names() if name.startswith(short)}
    try:
        stored.update(store().keys(short))
    except StoreError:
        pass  # `trouble` says so on every page
    if len(stored) > 1:
        raise ParameterError(f"{len(stored)} stored results have ids that begin with {short}; give more of its digits.")
    result = by_key(stored.pop()) if stored else None
    if result is None:
        raise ParameterError(
            f"No stored result has the id {short}: it was removed, or computed elsewhere. Run computes what is asked "
            "here."
        )
    return result


def find(request: Request) -> ProbeResult | None:
    """Return the stored or shipped result of a request, or None."""
    return by_key(request.key)


def find_shown(request: Request) -> ProbeResult | None:
    """Return the result of a request to show on a page, or None. If the request is for a GPU, a shipped result from the
    CPU will do: the page says where it was measured."""
    stored, key = find(request), _on_cpu(request)
    return _of_shipped(EXAMPLES, key) if stored is None and key else stored


def find_read(request: Request) -> ProbeResult | None:
    """Return the result of a request for a verdict to read, or None. Besides `find_shown`, that may be a shipped result
    of an untrained copy, which lacks some measures."""
    stored = find_shown(request)
    return _of_shipped(TWINS, _on_cpu(request) or request.key) if stored is None else stored


def _on_cpu(request: Request) -> str:
    """Return the key that a request for another device has on the CPU; "" if the request is for the CPU."""
    if all(model.device == "cpu" for model in request.models):
        return ""
    return replace(request, models=tuple(replace(model, device="cpu") for model in request.models)).key


def alike(request: Request) -> dict[str, Mapping[str, np.ndarray]]:
    """Return the summaries, by run id, of other prompts on the same model with the same probe and parameters."""
    try:
        stored = store().series(request.series)
    except StoreError:
        stored = {}
    both = {**_shipped().get(request.series, {}), **stored}
    return {key: summary for key, summary in both.items() if key != request.key}


def patched(model: ModelSpec, prompt: Prompt) -> ProbeResult | None:
    """Return the latest stored patch of another prompt into this one (probe `patching`), or None."""
    request = Patching().request(model, prompt)
    results = (by_key(key) for key in alike(request))
    return next((r for r in results if r is not None and r.request.prompts[0].identity() == prompt.identity()), None)


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    """Return the run ids of the shipped examples."""
    return tuple(sorted(file.stem for file in EXAMPLES.glob("*.npz")))


@lru_cache(maxsize=1)
def _shipped() -> dict[str, dict[str, Mapping[str, np.ndarray]]]:
    """Return the summaries of the shipped examples, by series (all but the prompt) and run id."""
    stored: dict[str, dict[str, Any]] = {}
    for name in _names():
        if (result := by_key(name)) is not None:
            stored.setdefault(result.request.series, {})[result.request.key] = result.summary
    return stored


def certificate(spec: ModelSpec) -> Mapping[str, Any] | None:
    """Return the provenance of the latest result of this model in this precision; None without one."""
    try:
        recent = store().recent(60)
    except StoreError:
        recent = []
    keys = [card["key"] for card in recent if (card["model"], card["precision"]) == (spec.name, spec.precision)]
    shipped = [key for stored in _shipped().values() for key in stored]
    results = (by_key(key) for key in [*keys, *shipped])
    return next(
        (r.provenance for r in results if r is not None and r.request.models[0].identity() == spec.identity()), None
    )


def estimate(requests: Iterable[Request], n_tokens: int | None) -> float | None:
    """Return the seconds that these requests will take here, each from the latest stored run that differs in the prompt
    only, scaled by tokens; None if unknown."""
    try:
        recent = store().recent(60)
    except StoreError:
        return None
    total = 0.0
    for request in requests:
        last = next((card for card in recent if card.get("series") == request.series), None)
        if last is None or not n_tokens or last["seconds"] is None:
            return None
        total += last["seconds"] * n_tokens / last["n_tokens"]
    return total


def is_shipped(key: str) -> bool:
    """Return whether a run id is that of a shipped example, not measured here as well."""
    try:
        here = store().stamp(key) is not None
    except StoreError:
        here = False
    return key in _names() and not here
