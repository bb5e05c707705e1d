"""A stand-in for the process that speaks to NDIF, which needs no nnsight: `python tests/stand_in_client.py HOW`. It
answers each plan as HOW says; `well` with random numbers of the shapes that the plan asks for."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

HOW = sys.argv[1]
VERSIONS = {"nnsight": ["0.8.1", "0.8.2"], "torch": ["2.13.0", "2.9.0"]}


def tell(**told: object) -> None:
    sys.stdout.buffer.write(json.dumps(told).encode() + b"\n")
    sys.stdout.buffer.flush()


def numbers(shapes: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for name, (dtype, shape) in shapes.items():
        found[name] = rng.random(shape).astype(dtype) if dtype == "float32" else np.ones(shape, dtype)
    for name in ("miss", "closure", "replay", "detour", "batch", "left_behind", "causality"):
        found[name] = np.zeros_like(found[name])
    for name in ("slope_attn", "slope_mlp", "moves"):
        found[name] = np.ones_like(found[name])
    return found


def answer(plan: dict) -> None:
    from ed_core.files import seal  # takes longer than some of these cases wait
    from ed_core.remote.process import ANSWER

    found = numbers(plan["stand_in"])
    if HOW == "nan":
        found["0.resid_norm"][0, 0] = np.nan
    if HOW == "infinite":
        found = {}
    if HOW == "shape":
        found["0.resid_norm"] = found["0.resid_norm"][:-1]
    if HOW == "sums":
        found["miss"] = found["miss"] + 1
    data = seal(ANSWER, {"dtype": "bfloat16", "torch": "2.9.0"}, found)
    if HOW == "damaged":
        data = data[:40] + b"x" + data[41:]
    tell(event="done", bytes=1 << 40 if HOW == "huge" else len(data))
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


for line in sys.stdin:
    if HOW == "key":
        tell(event="failed", kind="key", text="Failed to send request: Unknown API key.")
    elif HOW == "garbage":
        print("\x1b[2Jno JSON", flush=True)
    elif HOW == "ends":
        sys.exit(1)
    else:
        tell(event="versions", versions=VERSIONS)
        tell(event="status", text="QUEUED Moved to position 3\nin the queue.")
        if HOW == "queue":
            time.sleep(600)
        answer(json.loads(line))
