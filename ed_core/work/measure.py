"""The job behind every panel: one request, computed and stored; and the opening of a model before anybody asks for a
result. What the app submits, and what the worker does. Torch is imported in the worker alone."""

from __future__ import annotations

from dataclasses import replace

from .. import machine
from ..errors import StoreError
from ..models.ref import ModelRef
from ..results.store import Store
from ..results.wire import pack, unpack, with_provenance
from ..types import ProbeResult, Request
from . import estimate
from .queue import BATCH, INTERACTIVE, Job, Queue
from .resolve import admit
from .turn import Turn

SHORT_SECONDS = (
    3.0  # what is estimated to take no longer is interactive; ten made panels wait 8 s and more behind sweeps
)
AHEAD_SECONDS = 15.0  # the longest opening that is begun before anybody asks for it


def submit(queue: Queue, request: Request, viewer: str, owner: str = "") -> Job:
    """Queue a request, in the lane where it belongs by its estimate, or join the job that computes it; return the job.
    Raises `NotAllowed` where the settings do not let it in."""
    admit(request)
    seconds = estimate.expected(request, queue.open_models(INTERACTIVE))
    lane = INTERACTIVE if seconds <= SHORT_SECONDS else BATCH
    return queue.submit(
        compute, request, key=request.key, title=request.probe, lane=lane, viewer=viewer, owner=owner, read=unpack
    )


def open_ahead(queue: Queue, spec: ModelRef) -> None:
    """Let an idle worker open a model that somebody chose, so that the first run need not wait for it. Only where that
    takes seconds, and nothing has to be fetched or converted; one that could not be opened is not tried again."""
    key = f"open {spec.key}"
    if not queue.idle(INTERACTIVE) or spec.key in queue.open_models(INTERACTIVE) or queue.find(key):
        return
    seconds = estimate.opening(spec)
    if seconds is not None and seconds <= AHEAD_SECONDS:
        queue.submit(open_model, spec, key=key, title=f"the opening of {spec.name}", lane=INTERACTIVE, kept=True)


# ---------------------------------------------------------------- in the worker


def compute(turn: Turn, request: Request) -> bytes:
    """Compute a request in the worker, publishing partial results, store its result and return it packed."""
    from . import compute as engine

    # a downloaded model is named by its commit
    request = replace(request, models=(_fetched(turn, ModelRef.of(request.models[0])),))
    turn.say(f"opening {request.models[0].name}")
    model = turn.models.get(request.models[0])
    model.say = turn.say
    turn.progress(0.0, "computing")

    def publish(result: ProbeResult) -> None:
        turn.publish(pack(result), result.progress)

    result = engine.run(model, request, publish, turn.cancelled)
    try:
        Store().put(result)
    except StoreError as error:
        result = with_provenance(result, not_stored=str(error))
    return pack(result)


def open_model(turn: Turn, spec: ModelRef) -> bytes:
    """Open a model in the worker, where no other has to be closed for it; return no bytes."""
    turn.say(f"opening {spec.name}")
    turn.models.open_ahead(spec)
    return b""


def _fetched(turn: Turn, spec: ModelRef) -> ModelRef:
    """Return the model by its commit, once its files are here and converted."""

    def progress(done: int, total: int) -> None:
        turn.say(f"downloading {spec.name}: {machine.gigabytes(done)} of {machine.gigabytes(total)}")

    return spec.ensure(progress, turn.cancelled, turn.say)
