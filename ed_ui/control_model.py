"""A control next to the model: the picker next to Run, its jobs after the model's own, its curves in the figures, what
they mean; and the untrained copies that a verdict is compared with, stored ones without being asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import streamlit as st

from ed_core.depth import among_others, say
from ed_core.depth.among_others import Likeness
from ed_core.depth.sample import READS
from ed_core.errors import EffectiveDepthError
from ed_core.models import controls
from ed_core.models.ref import ModelRef
from ed_core.probes import find
from ed_core.results import lookup
from ed_core.types import ModelSpec, ProbeResult, Request
from ed_ui import running, session, show
from ed_ui.inputs import CONTROL, CONTROL_SEED, NONE

UNTRAINED = "untrained"
Pair = tuple[ProbeResult, ProbeResult]  # complete `contributions` and `logit_lens` of one prompt
QUICK = 10.0  # seconds, by the estimate: copies that take no longer are measured by themselves
SMALL = 300_000_000  # weights of a model whose five twins are computed, where a larger one has one


def chosen() -> tuple[str, int]:
    """Return the kind of the chosen control ("untrained", "shuffled", "" for none) and its seed, as last picked on any
    page."""
    kind = CONTROL.value
    return ("", 0) if kind == NONE else (kind, int(CONTROL_SEED.value))


def name() -> str:
    """Return the name of the chosen control in figures and sentences; "" for none."""
    kind = chosen()[0]
    return say.COPIES[kind][0] if kind else ""


def with_twins(requests: Mapping[str, Request]) -> dict[str, Request]:
    """Return the further requests of the chosen control, and of the untrained copies that a verdict is compared with,
    where these are asked for and not stored. By name: `PROBE.control`, `PROBE.twin.I`."""
    extra = {name: r for name, r in with_control(requests).items() if name not in requests}
    kind, seed = chosen()
    if kind == UNTRAINED and extra and _small(next(iter(requests.values())).models[0]):
        return extra | _copies(requests, range(1, len(controls.SEEDS)), seed)
    if not kind and session.current().copies == requests[READS[0]].key:
        return extra | _copies(requests, range(len(controls.SEEDS)), controls.SEEDS[0])
    return extra


def _copies(requests: Mapping[str, Request], which: Iterable[int], seed: int) -> dict[str, Request]:
    """Return the requests that a verdict reads of untrained copies, by name (`PROBE.twin.I`), without those that have
    shipped results. `which`: numbers of copies; `seed`: that of copy 0."""
    copies = {}
    for i in which:
        for name in READS:
            request = _of_twin(requests[name], _seeds(seed)[i])
            if request is not None and not lookup.is_shipped(request.key):
                copies[f"{name}{running.TWIN}{i}"] = request
    return copies


def due(batch: running.Batch) -> bool:
    """Return whether the untrained copies of what has just run are to be measured now, and if so ask for them: they
    take at most `QUICK` seconds, and the run was not cancelled."""
    ran = batch.begun and not (batch.running or batch.missing or batch.errors)
    if not ran or (seconds := offered(batch)) is None or seconds > QUICK:
        return False
    ask_for_copies(batch)
    return True


def asked_for(batch: running.Batch) -> bool:
    """Return whether only untrained copies are missing from the batch, which were asked for and have not begun."""
    wanted = session.current().copies == batch.requests[READS[0]].key and not batch.begun
    return bool(wanted and batch.missing and all(running.TWIN in name for name in batch.missing))


def offered(batch: running.Batch) -> float | None:
    """Return the estimated seconds that missing untrained copies take; None where they are chosen as the control,
    stored, asked for already, or impossible."""
    request = batch.requests[READS[0]]
    if chosen()[0] or session.current().copies == request.key or stored_twins(batch.requests):
        return None
    todo = list(_copies(batch.requests, range(len(controls.SEEDS)), controls.SEEDS[0]).values())
    result = batch.complete(READS[0])
    if not todo or result is None or request.models[0].control:
        return None
    known = running.outlook(todo, todo, result.n_tokens, running.free(request.models[0].device))
    return None if known.obstacle else known.seconds


def ask_for_copies(batch: running.Batch) -> None:
    """Let the page's next run measure the untrained copies of this batch's model."""
    session.current().copies = batch.requests[READS[0]].key


def twins(batch: running.Batch) -> tuple[list[Pair], str]:
    """Return the results that a verdict is compared with, as pairs (contributions, logit lens), and the kind of
    control: the chosen one's as far as complete, else those of five untrained copies where all are stored."""
    kind, seed = chosen()
    if kind not in ("", UNTRAINED):
        own = _pair(*(result(batch, name) for name in READS))
        return ([] if own is None else [own]), kind
    if batch.twins is not None:
        return batch.twins, UNTRAINED
    wants_twins = kind or any(running.TWIN in name for name in batch.requests)
    pairs = _of_batch(batch, seed) if wants_twins else stored_twins(batch.requests)
    if not batch.running and (wants_twins or pairs):
        batch.twins = pairs
    return pairs, UNTRAINED


def _pair(contributions: ProbeResult | None, lens: ProbeResult | None) -> Pair | None:
    """Return two results as a pair; None where one is missing."""
    return None if contributions is None or lens is None else (contributions, lens)


def stored_twins(requests: Mapping[str, Request]) -> list[Pair]:
    """Return the stored results of a model's five untrained copies, a pair (contributions, logit lens) each; [] where
    one is missing, or where the model is a control itself."""
    pairs = []
    for seed in () if requests[READS[0]].models[0].control else controls.SEEDS:
        twin_requests = [_of_twin(requests[name], seed) for name in READS]
        pair = _pair(*(None if request is None else lookup.find_read(request) for request in twin_requests))
        if pair is None:
            return []
        pairs.append(pair)
    return pairs


def _of_batch(batch: running.Batch, seed: int) -> list[Pair]:
    """Return the results of the chosen untrained copy and of four more, a pair each, as far as complete."""
    pairs = []
    for i, other in enumerate(_seeds(seed)):
        pair = _pair(*(_twin_result(batch, name, i, other) for name in READS))
        if pair is not None:
            pairs.append(pair)
    return pairs


def _twin_result(batch: running.Batch, name: str, i: int, seed: int) -> ProbeResult | None:
    """Return the complete result of untrained copy `i`: the batch's own, else a stored one; None without either.
    `name`: of the request; `seed`: the copy's."""
    own = batch.complete(f"{name}{running.TWIN}{i}") or (result(batch, name) if i == 0 else None)
    if own is not None:
        return own
    request = _of_twin(batch.requests[name], seed)
    return None if request is None else lookup.find_read(request)


def _of_twin(request: Request, seed: int) -> Request | None:
    """Return the same request on an untrained copy; None where the model can have none."""
    try:
        return _of_seed(request, UNTRAINED, seed)
    except EffectiveDepthError:
        return None


def _seeds(first: int) -> list[int]:
    """Return the seeds of five untrained copies: the `first` one, then others in a fixed order."""
    return [first, *(seed for seed in controls.SEEDS if seed != first)][: len(controls.SEEDS)]


def _small(spec: ModelSpec) -> bool:
    """Return whether a model is small enough (`SMALL` weights) to compute five copies at once; False for an unknown
    size."""
    size = ModelRef.of(spec).size_or_none()
    return size is not None and size.parameters <= SMALL


def with_control(requests: Mapping[str, Request]) -> dict[str, Request]:
    """Return the requests, and behind them the same ones on the chosen control, as `NAME.control`, where one is chosen
    and can be made (`picker` says why not)."""
    kind, seed = chosen()
    if not kind:
        return dict(requests)
    try:
        return dict(requests) | {f"{n}{running.CONTROL}": _of_seed(r, kind, seed) for n, r in requests.items()}
    except EffectiveDepthError:
        return dict(requests)


def picker(row: Any, batch: running.Batch) -> None:
    """Draw the choice of a control and of its seed in a `row`, with a warning where this model cannot have it."""
    common: dict[str, Any] = dict(label_visibility="collapsed")
    look = dict(format_func=lambda kind: f"Compare with: {say.COPIES[kind][0] if kind in say.COPIES else NONE}")
    CONTROL.draw(row.selectbox, **common | look | {"help": HELP})
    kind, seed = chosen()
    if not kind:
        return
    CONTROL_SEED.draw(row.number_input, **common)
    try:
        ModelRef.of(next(iter(batch.requests.values())).models[0]).twin(kind, seed)
    except EffectiveDepthError as error:
        st.warning(show.plain(str(error)), icon=":material/error:")


def result(batch: running.Batch, probe: str) -> ProbeResult | None:
    """Return the control's complete result of a request; None while it has none."""
    return batch.complete(f"{probe}{running.CONTROL}")


def results(batch: running.Batch, names: Iterable[str]) -> list[ProbeResult]:
    """Return the control's results of these requests in their order; [] until all of them are complete."""
    control_results = [result(batch, name) for name in names]
    complete = [one for one in control_results if one is not None]
    return complete if len(complete) == len(control_results) else []


def alike(batch: running.Batch, probe: str, first_token: bool = True) -> list[list[Likeness]]:
    """Return how alike the curves of a model and of its controls are, a list for each control: the chosen one, then
    stored ones of other seeds; [] until the first two results are complete."""
    own, control = batch.complete(probe), result(batch, probe)
    if own is None or control is None or not find(probe_name := own.request.probe).curves:
        return []
    kind, seed = chosen()
    others = (lookup.find_shown(_of_seed(own.request, kind, other)) for other in _seeds(seed)[1:])
    return [
        among_others.likeness(find(probe_name), own.summary, one.summary, first_token)
        for one in (control, *others)
        if one is not None and one.complete
    ]


def _of_seed(request: Request, kind: str, seed: int) -> Request:
    """Return the same request on the model's control of this kind and seed; raises an `EffectiveDepthError` without
    one."""
    spec = ModelRef.of(request.models[0]).twin(kind, seed)
    return find(request.probe).of(request).request(spec, request.prompts[0])


HELP = """A copy of the model, measured as well and drawn dashed and grey. **Untrained copy**: same shape, random
weights; what it shows too needs no training. **Shuffled layers**: the model's own layers in a random order."""
