"""What a person waits for: the four panels of Home on the bundled 16-block model, through the app's own queue and a
warm worker.

Warm means that the worker runs and has opened the model. Times are wall time; what the page costs on top is measured
by `home`."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ed_core import settings
from ed_core.errors import JobError
from ed_core.probes import Continuation, Contributions, LayerSkip, LogitLens
from ed_core.types import Prompt, Request
from ed_core.work import measure as requests
from ed_core.work.queue import Job, Queue
from ed_core.work.resolve import resolve

from . import Row

MODEL = "ed-demo-16"
HOME = (Contributions(), LogitLens(), LayerSkip(), Continuation())
PROMPTS = tuple(
    " + ".join(digits * 8) + " = " for digits in ("1234", "5678", "2468")
)  # 64 tokens each: a digit is one, a sign is one
WARM_UP = " + ".join("11") + " = "
FIRST_SECONDS, ALL_SECONDS = 2.0, 10.0
POLL_SECONDS = 0.01
GIVE_UP_SECONDS = 120.0


def measure() -> list[Row]:
    first, every, n_tokens = [], [], set()
    with warm_worker() as jobs:
        for text in PROMPTS:
            begin = time.monotonic()
            submitted = [requests.submit(jobs, request, "bench") for request in home(text)]
            wait(lambda: submitted[0].result is not None, submitted)
            first.append(time.monotonic() - begin)
            wait(lambda: all(job.over for job in submitted), submitted)
            every.append(time.monotonic() - begin)
            n_tokens |= {submitted[0].result.n_tokens}
    size = f"{MODEL}, {'/'.join(map(str, sorted(n_tokens)))} tokens, warm worker"
    return [
        seconds_row(f"Run to first panel filling ({size})", first, FIRST_SECONDS),
        seconds_row("  to all four complete", every, ALL_SECONDS),
    ]


def home(text: str) -> list[Request]:
    """What Home asks for."""
    spec = resolve(MODEL)
    return [probe.request(spec, Prompt(text)) for probe in HOME]


@contextmanager
def warm_worker(model: str = MODEL) -> Iterator[Queue]:
    """A queue with a store of its own whose worker has opened the model."""
    before = os.environ.get("ED_CACHE")
    with TemporaryDirectory() as folder:
        os.environ["ED_CACHE"] = str(with_models(Path(folder)))
        jobs = Queue()
        try:
            opened = requests.submit(jobs, Contributions().request(resolve(model), Prompt(WARM_UP)), "bench")
            wait(lambda: opened.over, [opened])
            yield jobs
        finally:
            jobs.close()
            os.environ.pop("ED_CACHE")
            if before is not None:
                os.environ["ED_CACHE"] = before


def with_models(cache: Path) -> Path:
    """An empty cache in which the models fetched here lie too."""
    for name in ("converted", "gguf"):
        if (there := settings.current().cache / name).is_dir():
            (cache / name).symlink_to(there.resolve(), target_is_directory=True)
    return cache


def wait(condition, submitted: list[Job]) -> None:
    """Until the condition holds; an error of a job, or two minutes, ends it."""
    end = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        for job in submitted:
            job.unseen = 0.0
            if job.state == "failed":
                raise job.error
        if time.monotonic() > end:
            raise JobError(
                f"{submitted[0].request.probe} was not done after {GIVE_UP_SECONDS:.0f} s; the machine may be "
                "overloaded: try again."
            )
        time.sleep(POLL_SECONDS)


def seconds_row(what: str, seconds: list[float], target: float) -> Row:
    """The median of the repetitions against a limit."""
    median = statistics.median(seconds)
    return Row(
        what, f"{median:.2f} s (worst of {len(seconds)}: {max(seconds):.2f})", f"<= {target:g} s", median <= target
    )
