"""Reading the four stored results of Home in a new process, its start and imports included."""

from __future__ import annotations

import subprocess
import sys
import time

from . import Row
from .live import HOME, PROMPTS, home, seconds_row, wait, warm_worker

READ = "import sys; from ed_core.results import lookup; sys.exit(not all(lookup.by_key(key) for key in sys.argv[1:]))"
TIMES = 5
TARGET_SECONDS = 1.0


def measure() -> list[Row]:
    requests = home(PROMPTS[0])
    seconds = []
    with warm_worker() as jobs:
        submitted = [jobs.submit(request, "bench") for request in requests]
        wait(lambda: all(job.over for job in submitted), submitted)
        for _ in range(TIMES):
            begin = time.monotonic()
            subprocess.run([sys.executable, "-c", READ, *(request.key for request in requests)], check=True)
            seconds.append(time.monotonic() - begin)
    return [seconds_row(f"{len(HOME)} stored results in a new process, imports included", seconds, TARGET_SECONDS)]
