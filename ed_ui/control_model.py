"""A control next to the model: the picker next to Run, its jobs after the model's own, its curves in the figures, what
they mean; and the untrained copies that a verdict is compared with, stored ones without being asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
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
from ed_core.types import ProbeResult, Request
from ed_ui import running, session, show
from ed_ui.inputs import CONTROL, CONTROL_SEED, NONE

UNTRAINED = "untrained"
Pair = tuple[ProbeResult, ProbeResult]  # complete `contributions` and `logit_lens` of one prompt
QUICK = 10.0  # seconds, by the estimate: copies that take no longer are measured by themselves


def chosen() -> tuple[str, int]:
    """Return the kind of the chosen control ("untrained", "shuffled", "" for none) and its seed."""
    kind = CONTROL.value
    return ("", 0) if kind == NONE else (kind, int(CONTROL_SEED.value))


def name() -> str:
    """Return the name of the chosen control in figures and sentences; "" for none."""
    kind = chosen()[0]
    return say.COPIES[kind][0] if kind else ""


def with_control(requests: Mapping[str, Request]) -> dict[str, Request]:
    """Return the requests, and behind them the same ones on the chosen control, as `NAME.control`, where one is chosen
    and can be made (`picker` says why not)."""
    kind, seed = chosen()
    extra = {f"{n}{running.CONTROL}": _on_control(r, kind, seed) for n, r in requests.items() if kind}
    made = {name: request for name, request in extra.items() if request is not None}
    return dict(requests) | (made if len(made) == len(extra) else {})


def copies(batch: running.Batch) -> running.Batch | None:
    """Return the batch of the untrained copies that a verdict on a page's batch is compared with: five, or four next to
    the chosen one; None where the model can have none, or all have shipped results."""
    (kind, seed), requests = chosen(), batch.requests
    if kind not in ("", UNTRAINED):
        return None

    def find() -> running.Batch | None:
        seeds = list(enumerate(_seeds(seed)))[bool(kind) :]
        wanted = {_copy(name, i): _untrained(requests[name], seed=one) for i, one in seeds for name in READS}
        made = {name: r for name, r in wanted.items() if r is not None and not lookup.is_shipped(r.key)}
        return running.batch("home.copies", made) if made else None

    return session.once_a_run(("copies", requests[READS[0]].key, kind, seed), find)


def _copy(probe: str, i: int) -> str:
    """Return the name of a probe's request on untrained copy `i`."""
    return f"{probe} of untrained copy.{i + 1}"


def start(batch: running.Batch) -> None:
    """Measure the untrained copies of what has just run, where they take at most `QUICK` seconds and were not begun."""
    ran, more = batch.begun and not (batch.running or batch.missing or batch.errors), copies(batch)
    if ran and more is not None and not more.begun and (seconds := offered(batch)) is not None and seconds <= QUICK:
        running.submit(more)


def offered(batch: running.Batch) -> float | None:
    """Return the estimated seconds that missing untrained copies take; None where none is missing or can run."""
    more, result = copies(batch), batch.complete(READS[0])
    if more is None or result is None or more.running or not more.missing:
        return None
    if len(twins(batch)[0]) == len(controls.SEEDS):  # shipped
        return None
    known = running.outlook_of(more, result.n_tokens)
    return None if known.obstacle else known.seconds


def twins(batch: running.Batch) -> tuple[list[Pair], str]:
    """Return the results that a verdict is compared with, as pairs (contributions, logit lens), and the kind of
    control: the chosen one's as far as complete, else those of five untrained copies where all are stored."""
    (kind, seed), more = chosen(), copies(batch)
    if kind not in ("", UNTRAINED):
        own = results(batch, READS)
        return ([(own[0], own[1])] if own else []), kind
    busy = batch.running or (more is not None and more.running)
    if batch.twins and not busy:
        return batch.twins, UNTRAINED
    asked = kind or (more is not None and more.begun)
    pairs = _pairs(batch.requests, _seeds(seed), batch, more) if asked else stored_twins(batch.requests)
    batch.twins = None if busy else pairs
    return pairs, UNTRAINED


def stored_twins(requests: Mapping[str, Request]) -> list[Pair]:
    """Return the stored results of a model's five untrained copies, a pair (contributions, logit lens) each; [] where
    one is missing, or where the model is a control itself."""
    pairs = [] if requests[READS[0]].models[0].control else _pairs(requests, controls.SEEDS)
    return pairs if len(pairs) == len(controls.SEEDS) else []


def _pairs(
    requests: Mapping[str, Request],
    seeds: Iterable[int],
    batch: running.Batch | None = None,
    more: running.Batch | None = None,
) -> list[Pair]:
    """Return the results of untrained copies with these seeds, a pair each, as far as complete: those of the `batch`,
    whose control is copy 0, and of its copies (`more`), else stored ones."""
    pairs = []
    for i, seed in enumerate(seeds):
        pair = []
        for name in READS:
            own = None if more is None else more.complete(_copy(name, i))
            if own is None and batch is not None and i == 0:
                own = result(batch, name)
            twin = _untrained(requests[name], seed=seed) if own is None else None
            pair.append(lookup.find_read(twin) if twin is not None else own)
        contributions, lens = pair
        if contributions is not None and lens is not None:
            pairs.append((contributions, lens))
    return pairs


def _on_control(request: Request, kind: str, seed: int) -> Request | None:
    """Return the same request on the model's control of this kind and seed; None where the model can have none."""
    try:
        spec = ModelRef.of(request.models[0]).twin(kind, seed)
        return find(request.probe).of(request).request(spec, request.prompts[0])
    except EffectiveDepthError:
        return None


_untrained = partial(_on_control, kind=UNTRAINED)


def _seeds(first: int) -> list[int]:
    """Return the seeds of five untrained copies: the `first` one, then others in a fixed order."""
    return [first, *(seed for seed in controls.SEEDS if seed != first)][: len(controls.SEEDS)]


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
    twins_ = (_on_control(own.request, kind, other) for other in _seeds(seed)[1:])
    others = (lookup.find_shown(request) for request in twins_ if request is not None)
    return [
        among_others.likeness(find(probe_name), own.summary, one.summary, first_token)
        for one in (control, *others)
        if one is not None and one.complete
    ]


HELP = """A copy of the model, measured as well and drawn dashed and grey. **Untrained copy**: same shape, random
weights; what it shows too needs no training. **Shuffled layers**: the model's own layers in a random order."""
