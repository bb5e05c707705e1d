"""How the queue is doing, in numbers, for Prometheus; off unless the setting `metrics` is on. Kinds of jobs, states and
kinds of errors are told, all of them ours: never a prompt, a model, a visitor or an address."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ed_core import settings
from ed_core.errors import BY_NAME
from ed_core.probes import PROBES

SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
KINDS = frozenset(probe.name for probe in PROBES)


class Instruments:
    """What is counted since the server started."""

    def __init__(self):
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # only where somebody wants it

        self.registry = CollectorRegistry()
        to, kind = {"registry": self.registry}, ["kind"]
        wide = {"buckets": SECONDS, **to}
        self.waits = Histogram("ed_job_wait_seconds", "Seconds from Run to the beginning", kind, **wide)
        self.times = Histogram("ed_job_seconds", "Seconds computing, of jobs done", kind, **wide)
        self.ended = Counter("ed_jobs", "Jobs that ended", ["kind", "state"], **to)
        self.refused = Counter("ed_requests_refused", "Requests not let into the queue", ["why"], **to)
        self.errors = Counter("ed_errors", "What failed: a job, a part of a page", ["where", "error"], **to)
        self.lookups = Counter("ed_results_looked_up", "Results that pages asked the store for", ["found"], **to)
        self.jobs = Gauge("ed_jobs_now", "Jobs under way", ["state"], **to)
        self.models = Gauge("ed_models_open", "Models open in the worker", **to)
        self.bytes = Gauge("ed_model_bytes", "Bytes of the models open in the worker", **to)
        self.sessions = Gauge("ed_sessions", "Browsers that have a page open", **to)


@cache
def instruments() -> Instruments:
    """This server's."""
    return Instruments()


def looked_up(found: int, asked: int) -> None:
    """A page has asked the store for results."""
    if settings.current().metrics:
        instruments().lookups.labels("yes").inc(found)
        instruments().lookups.labels("no").inc(asked - found)


def failed(where: str, error: str) -> None:
    """A job, or a part of a page."""
    if settings.current().metrics:
        instruments().errors.labels(where, _named(error)).inc()


def text(jobs: Mapping[str, int], models: tuple[int, int], sessions: int) -> tuple[str, str]:
    """All of it in Prometheus' format, and that format's name: what was counted, and what is so now."""
    from prometheus_client import exposition

    known = instruments()
    for state, number in jobs.items():
        known.jobs.labels(state).set(number)
    known.models.set(models[0])
    known.bytes.set(models[1])
    known.sessions.set(sessions)
    return exposition.generate_latest(known.registry).decode(), exposition.CONTENT_TYPE_LATEST


def _named(error: str) -> str:
    """The name of an error of ours; of others, whose names may be anybody's, none."""
    return error if error in BY_NAME else "other"
