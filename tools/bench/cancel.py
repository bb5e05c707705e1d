"""How long a running job goes on after it was cancelled."""

from __future__ import annotations

import time

from ed_core.errors import JobError
from ed_core.probes import LayerSkip
from ed_core.types import Prompt
from ed_core.work.resolve import resolve

from . import Row
from .live import MODEL, seconds_row, wait, warm_worker

N_NUMBERS = 250  # about 500 tokens with the signs between them, and 60 boundaries: most of a minute, were it left alone
TIMES = 3
TARGET_SECONDS = 2.0


def measure() -> list[Row]:
    seconds = []
    with warm_worker() as jobs:
        for start in range(TIMES):
            text = " + ".join(str((start + i) % 10) for i in range(N_NUMBERS))
            job = jobs.submit(LayerSkip(mode="future", n_boundaries=60).request(resolve(MODEL), Prompt(text)), "bench")
            wait(lambda: job.over or job.result is not None, [job])
            time.sleep(0.3 + 0.07 * start)  # away from the moment of a partial result, where stopping is easiest
            begin = time.monotonic()
            jobs.cancel(job, "bench")
            wait(lambda: job.over, [job])
            if job.state != "cancelled":
                raise JobError(f"The job to be cancelled was {job.state} before that; give it more to do.")
            seconds.append(time.monotonic() - begin)
    return [
        seconds_row(
            f"cancelling a running skip sweep ({2 * N_NUMBERS - 1} tokens, 60 boundaries)", seconds, TARGET_SECONDS
        )
    ]
