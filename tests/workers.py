"""Workers of the queue that are no processes: one that does as a test says, and one that computes in a thread."""

from __future__ import annotations

import io
import json
import pickle
import queue
import threading
import time

from ed_core.work import compute
from ed_core.work.worker import Server


def until(holds, seconds: float = 180.0) -> None:  # a bound for a busy machine, no promise
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


class Messages:
    """Does nothing: what it was sent, and `says` what the test has it say."""

    def __init__(self, lane, on_message, on_exit):
        self._on_message, self._on_exit = on_message, on_exit
        self.sent, self.killed = [], False

    def send(self, header, *payload):
        self.sent.append(header)

    def kill(self):
        self.killed = True

    def says(self, kind, job=None, body=b"", **more):
        defaults = {"progress": {"what": ""}, "item": {"full": False}}
        self._on_message(self, {"type": kind, "job": job and job.id, **defaults.get(kind, {}), **more}, body)

    def dies(self, code):
        self._on_exit(self, code)

    def steps(self):
        return [one["job"] for one in self.sent if one["type"] == "step"]


class Direct(Server):
    """Says everything to `hears`, and ends no process."""

    def __init__(self, models, hears):
        super().__init__(models, io.BytesIO())
        self._hears, self.ended = hears, False

    def tell(self, header, body=b""):
        self._hears(json.loads(json.dumps(header)), body)

    def end(self):
        self.ended = True


class Threads:
    """A `Server` in a thread of this process."""

    def __init__(self, lane, on_message, on_exit):
        self._todo = queue.SimpleQueue()
        self.server = Direct(compute.Models(), lambda header, body: on_message(self, header, body))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while (one := self._todo.get()) is not None:
            self.server.step(*one)

    def send(self, header, *payload):
        if header["type"] == "cancel":
            self.server.cancelled.add(header["job"])
        elif header["type"] == "step":
            self._todo.put((header["job"], header["room"], pickle.dumps(payload) if payload else b""))

    def kill(self):
        self._todo.put(None)
