"""A control beside the model: the picker next to Run, its jobs behind the model's own, its curves for the figures, what
they mean; and the untrained twins that a verdict is read beside, stored ones without being asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import streamlit as st

from ed_core.depth import among_others
from ed_core.depth.among_others import Likeness
from ed_core.depth.sample import READS
from ed_core.errors import EffectiveDepthError
from ed_core.models import controls
from ed_core.models.ref import ModelRef
from ed_core.probes import find
from ed_core.results import lookup
from ed_core.types import ModelSpec, ProbeResult, Request
from ed_ui import running, show
from ed_ui.inputs import CONTROL, CONTROL_SEED, NONE

UNTRAINED = "untrained"
Pair = tuple[ProbeResult, ProbeResult]  # complete `contributions` and `logit_lens` of one prompt
SMALL = 300_000_000  # weights of a model whose five twins are computed, where a larger one has one


def chosen() -> tuple[str, int]:
    """Kind ("" for none) and seed, as last picked on any page."""
    kind = CONTROL.value
    return ("", 0) if kind == NONE else (kind, int(CONTROL_SEED.value))


def name() -> str:
    """What the chosen control is called in figures and sentences."""
    return controls.KINDS.get(chosen()[0], "")


def with_twins(requests: Mapping[str, Request]) -> dict[str, Request]:
    """The same as `with_control`, and behind it what a verdict reads of the untrained twins of four more seeds: of
    small models, and what is not shipped."""
    found = with_control(requests)
    kind, seed = chosen()
    spec = next(iter(requests.values())).models[0]
    if kind != UNTRAINED or len(found) == len(requests) or not _small(spec):
        return found
    for i, other in enumerate(_seeds(seed)[1:], 1):
        for name in READS:
            request = _of_twin(requests[name], other)
            if request is not None and not lookup.is_read(request):
                found[f"{name}{running.TWIN}{i}"] = request
    return found


def twins(batch: running.Batch) -> tuple[list[Pair], str]:
    """What a verdict is read beside, and the kind of control: that which is chosen, as far as it is complete; else five
    untrained twins where all of them are stored."""
    kind, seed = chosen()
    if kind not in ("", UNTRAINED):
        pair = [result(batch, name) for name in READS]
        return ([tuple(pair)] if None not in pair else []), kind
    if batch.twins is not None:
        return batch.twins, UNTRAINED
    found = _of_batch(batch, seed) if kind else stored_twins(batch.requests)
    if not batch.running and (kind or found):
        batch.twins = found
    return found, UNTRAINED


def stored_twins(requests: Mapping[str, Request]) -> list[Pair]:
    """Five untrained twins of the model of these requests, where all of them are stored: a link or a shelf of results
    with some of them is no statement about five. None of a twin."""
    found = []
    for seed in () if requests[READS[0]].models[0].control else controls.SEEDS:
        asked = [_of_twin(requests[name], seed) for name in READS]
        pair = [None if request is None else lookup.find_read(request) for request in asked]
        if None in pair:
            return []
        found.append(tuple(pair))
    return found


def _of_batch(batch: running.Batch, seed: int) -> list[Pair]:
    """The chosen untrained twin and four more, as far as they are complete."""
    found = []
    for i, other in enumerate(_seeds(seed)):
        pair = [_twin_result(batch, name, i, other) for name in READS]
        if None not in pair:
            found.append(tuple(pair))
    return found


def _twin_result(batch: running.Batch, name: str, i: int, seed: int) -> ProbeResult | None:
    """The complete result of a twin: the batch's own, else a stored one."""
    own = batch.complete(f"{name}{running.CONTROL}" if i == 0 else f"{name}{running.TWIN}{i}")
    if own is not None:
        return own
    request = _of_twin(batch.requests[name], seed)
    return None if request is None else lookup.find_read(request)


def _of_twin(request: Request, seed: int) -> Request | None:
    """The request of an untrained twin; None where it can have none."""
    try:
        return _of_seed(request, UNTRAINED, seed)
    except EffectiveDepthError:
        return None


def _seeds(first: int) -> list[int]:
    """The chosen seed, and those that make five with it."""
    return [first, *(seed for seed in controls.SEEDS if seed != first)][: len(controls.SEEDS)]


def _small(spec: ModelSpec) -> bool:
    size = ModelRef.of(spec).size_or_none()
    return size is not None and size.parameters <= SMALL


def with_control(requests: Mapping[str, Request]) -> dict[str, Request]:
    """The requests, and behind them the same for the control, where one is chosen and can be had (`picker` says why
    not)."""
    kind, seed = chosen()
    if not kind:
        return dict(requests)
    try:
        return dict(requests) | {f"{n}{running.CONTROL}": _of_seed(r, kind, seed) for n, r in requests.items()}
    except EffectiveDepthError:
        return dict(requests)


def picker(row, batch: running.Batch) -> None:
    """Which control, and its seed, at the end of a row or among other inputs."""
    common = dict(label_visibility="collapsed")
    called = dict(format_func=lambda kind: f"Control: {controls.KINDS.get(kind, NONE)}")
    CONTROL.draw(row.selectbox, width=220, help=HELP, **called, **common)
    kind, seed = chosen()
    if not kind:
        return
    CONTROL_SEED.draw(row.number_input, width=120, **common)
    try:
        ModelRef.of(next(iter(batch.requests.values())).models[0]).twin(kind, seed)
    except EffectiveDepthError as error:
        st.warning(show.plain(str(error)), icon=":material/error:")


def result(batch: running.Batch, probe: str) -> ProbeResult | None:
    """The control's complete result; None while there is none."""
    return batch.complete(f"{probe}{running.CONTROL}")


def results(batch: running.Batch, names: Iterable[str]) -> list[ProbeResult]:
    """The control's results behind these of the model; none until all of them are complete."""
    found = [result(batch, name) for name in names]
    return [] if None in found else found


def alike(batch: running.Batch, probe: str, first_token: bool = True) -> list[list[Likeness]]:
    """How alike the model's curves and its control's are, once both are complete, and behind it the same of the
    controls of other seeds that are stored; nothing before, and for what no curve stands for."""
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
    spec = ModelRef.of(request.models[0]).twin(kind, seed)
    return find(request.probe).of(request).request(spec, request.prompts[0])


HELP = """A twin of the model, measured behind it and drawn dashed and grey. **Untrained twin**: same config, random
weights; what it shows too needs no training to appear. A twin is a draw: of small models *All maps* measures five.
**Shuffled layers**: the model's own layers in a random order."""
