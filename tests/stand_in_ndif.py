"""A stand-in for NDIF: `python tests/stand_in_ndif.py FOLDER NAME`, the port on its first line. Its own process, as
the service is; needs nnsight.

It does what the client's code asks of the service: `/status`, `/env`, `/request`, `/response/ID` and the result's
address, and runs what was sent on the model of the folder. `GET /seen` says what came."""

from __future__ import annotations

import io
import json
import sys
import threading
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import torch
import zstandard
from nnsight.modeling.transformers import TransformersModel
from nnsight.schema.request import RequestModel
from nnsight.tracing import tracer as tracers
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER, NAME = sys.argv[1:3]
KEY = "a key"
state = {"asked": 0, "polls": 0, "headers": {}}
results: dict[str, bytes] = {}
HF = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="sdpa")
MODEL = TransformersModel(HF, task="text-generation", tokenizer=AutoTokenizer.from_pretrained(FOLDER))


def computed(blob: bytes) -> dict[str, object]:
    tracer = RequestModel.deserialize(blob, MODEL._remoteable_persistent_objects(), compress=True)
    tracers.inc()
    try:
        tracer.execute(tracer.info.code)
    finally:
        tracers.dec()
    return {"found": dict(tracer.info.frame.f_locals["found"])}


class Service(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def _give(self, body: object, code: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        what, _, last = self.path.strip("/").partition("/")
        if what == "seen":
            self._give(state)
        elif what == "status":
            names = ["some/other", NAME]
            self._give({"deployments": {name: {"repo_id": name, "application_state": "RUNNING"} for name in names}})
        elif what == "env":
            packages = {"nnsight": version("nnsight"), "torch": "2.9.0", "transformers": version("transformers")}
            self._give({"python_version": "3.12.1 (main)", "packages": packages})
        elif what == "response":
            state["polls"] += 1
            if state["polls"] % 2:
                self._give({"id": last, "status": "QUEUED", "description": "Moved to position 3 in the queue."})
            else:
                here = f"http://127.0.0.1:{self.server.server_address[1]}/result/{last}"
                self._give({"id": last, "status": "COMPLETED", "data": here})
        elif what == "result":
            self._give(results[last])
        else:
            self._give({"detail": "unknown"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        state["asked"] += 1
        state["headers"] = {k.lower(): v for k, v in self.headers.items() if k.lower().startswith(("ndif", "nnsight"))}
        if self.headers.get("ndif-api-key") != KEY:
            self._give({"detail": "Unknown API key."}, 401)
            return
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        parts = {part.get_filename(): part for part in BytesParser().parsebytes(head + body).walk()}
        name, file = str(len(results)), io.BytesIO()
        torch.save(computed(parts["request"].get_payload(decode=True)), file)
        results[name] = zstandard.ZstdCompressor().compress(file.getvalue())
        self._give({"id": name, "status": "RECEIVED", "description": ""})


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    print(server.server_address[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()  # with its test
    server.serve_forever()
