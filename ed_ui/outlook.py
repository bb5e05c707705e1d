"""Whether a page's requests can run here, and what they take: said before Run, from configs alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ed_core.errors import EffectiveDepthError, ParameterError
from ed_core.machine import ROOM, gigabytes
from ed_core.probes import Probe, find
from ed_core.service import admission, estimate
from ed_core.sources import hub, permits, sizes
from ed_core.sources.specs import config_of
from ed_core.types import ModelSpec, Request

DEFAULT = "default speeds ('python -m ed_core estimate --calibrate' measures this device)"


@dataclass(frozen=True)
class Outlook:
    """`needs`: memory and time in a few words ("" where the size is not known), `details`: the same with what it is
    made of, `obstacle`: why nothing can run, or "", `seconds`: for the requests that are still to be run, by the
    estimate; `said`: the obstacle stands on the page already."""

    needs: str
    details: str
    obstacle: str
    seconds: float | None
    said: bool = False


def of(
    requests: Collection[Request],
    todo: Collection[Request],
    n_tokens: int | None,
    free: int,
    absent: ModelSpec | None = None,
) -> Outlook:
    """Of a page's requests, of which `todo` are not stored yet; the largest model of several counts. `free`: bytes on
    their device; `absent`: the model of which the page says already that it is not here."""
    asked_tokens, n_tokens = n_tokens, n_tokens or estimate.TOKENS
    specs = list(dict.fromkeys(request.models[0] for request in requests))
    asked = {
        spec: {_asked(r): find(r.probe).make(dict(r.parameters)) for r in requests if r.models[0] == spec}
        for spec in specs
    }
    probes = {spec: tuple(of_one.values()) for spec, of_one in asked.items()}
    found = {spec: _estimate(spec, n_tokens, free, probes[spec]) for spec in specs}
    obstacles = [
        _not_allowed(requests, asked_tokens),
        _refused(requests),
        *(_too_large(spec, e, probes[spec], n_tokens) or _missing(spec) for spec, e in found.items()),
    ]
    obstacle = next(filter(None, obstacles), "")
    said = bool(obstacle) and absent is not None and obstacle == _missing(absent)
    known = [(_peak(e), e) for e in found.values() if e is not None]
    if len(known) < len(specs):
        return Outlook("", "", obstacle, None, said)
    peak, largest = max(known, key=lambda pair: pair[0])
    needed = {spec: dict(zip(asked[spec], found[spec].needs)) for spec in specs}
    seconds = sum(needed[r.models[0]][_asked(r)].seconds for r in todo)
    all_of_it = sum(needed[r.models[0]][_asked(r)].seconds for r in requests)
    speed = "a measurement of this device" if largest.calibrated else DEFAULT
    time = "\\<1 s" if all_of_it < 1 else estimate.duration(all_of_it)
    at = f"{n_tokens} token{'s' * (n_tokens != 1)}"
    needs = f"needs {gigabytes(peak)} of {gigabytes(free)} free, takes {time} at {at}"
    details = (
        f"By the estimate: {gigabytes(largest.weights)} of weights in {largest.precision} and "
        f"{gigabytes(peak - largest.weights)} for this page's probes "
        f"at {at}, of {gigabytes(free)} free on {specs[0].device}; {estimate.duration(all_of_it)} to "
        f"measure all of this page, by {speed}."
    )
    return Outlook(needs, details, obstacle, seconds, said)


def _asked(request: Request) -> tuple[str, tuple]:
    """The probe of a request, with its parameters."""
    return request.probe, request.parameters


def _peak(found: estimate.Estimate) -> int:
    return found.peak_of({need.probe for need in found.needs})


def _estimate(spec: ModelSpec, n_tokens: int, free: int, probes: Sequence[Probe]) -> estimate.Estimate | None:
    if spec.precision not in sizes.PRECISIONS:
        return None  # a checkpoint stored in some other way: only opening it tells
    try:
        return estimate.estimate(sizes.read(config_of(spec)), spec.precision, n_tokens, spec.device, free, probes)
    except EffectiveDepthError:
        return None


def _not_allowed(requests: Collection[Request], n_tokens: int | None) -> str:
    """Why the settings forbid a request; the queue checks it again."""
    return next(filter(None, (permits.why_not(admission.request, request, n_tokens) for request in requests)), "")


def _refused(requests: Collection[Request]) -> str:
    """Why a probe refuses a model's precision."""
    for probe, asked, name in dict.fromkeys((r.probe, r.parameters, r.models[0].precision) for r in requests):
        try:
            find(probe).make(dict(asked)).check_precision(name)
        except ParameterError as error:
            return str(error)
    return ""


def _missing(spec: ModelSpec) -> str:
    if hub.is_here(spec):
        return ""
    return f"{spec.name} is not here yet: choose it on top of the page and download it there."


def _too_large(spec: ModelSpec, found: estimate.Estimate | None, probes: Sequence[Probe], n_tokens: int) -> str:
    if found is None or _peak(found) <= ROOM * found.free:
        return ""
    others = estimate.fitting(sizes.read(config_of(spec)), found.free, n_tokens, spec.device, probes)
    instead = (
        f"{' and '.join(others)} would fit" if others else "no precision fits: take a smaller model or a shorter prompt"
    )
    return (
        f"{spec.name} is too large in {spec.precision}: it needs {gigabytes(_peak(found))} here and "
        f"{gigabytes(found.free)} are free on "
        f"{spec.device}, a tenth of which stays free; {instead}."
    )
