"""A stand-in for the process that speaks to NDIF, which needs no nnsight: `python tests/stand_in_client.py HOW`. It
answers as HOW says; `well` with random numbers of the shapes that the probes declare."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

HOW = sys.argv[1]


def numbers(plan: dict) -> dict[str, np.ndarray]:
    from ed_core.probes import find

    rng, n, result = np.random.default_rng(0), plan["n_layers"], {}
    result |= dict.fromkeys(("miss", "closure", "replay", "detour", "batch", "left_behind", "causality"), np.zeros(()))
    result |= dict.fromkeys(("slope_attn", "slope_mlp", "mlp_moves"), np.ones(n)) | {"miss": np.zeros(n)}
    result = {name: values.astype(np.float32) for name, values in result.items()}
    for part in plan["parts"]:
        sizes = {"layer": n, "skipped": n, "depth": n + 1, "pos": plan["n_tokens"], "rank": part.get("k")}
        sizes["boundary"] = len(part.get("bounds", ()))
        for spec in find(part["probe"]).measures:
            values = rng.random([sizes[dim] for dim in spec.dims])
            result[f"{part['name']}.{spec.name}"] = values.astype(spec.dtype)
    return result


def answer(plan: dict) -> bytes:
    from ed_core.files import seal  # takes longer than some of these cases wait
    from ed_core.remote.process import ANSWER

    result = {} if HOW == "infinite" else numbers(plan)
    if HOW == "shape":
        result["0.resid_norm"] = result["0.resid_norm"][:-1]
    if HOW == "sums":
        result["miss"] = result["miss"] + np.float32(1)
    versions = {"nnsight": ["0.8.1", "0.8.2"], "torch": ["2.13.0", "2.9.0"]}
    data = seal(ANSWER, {"dtype": "bfloat16", "torch": "2.9.0", "versions": versions}, result)
    return data[:40] + b"x" + data[41:] if HOW == "damaged" else data


question = json.loads(Path("question.json").read_text())
if HOW == "says":
    Path("failed.txt").write_text(f"\x1b[2Jno:\n{os.getcwd()} {sorted(os.environ)}")
elif HOW != "ends":
    Path("status.txt").write_text("QUEUED Moved to position 3\nin the queue.")
    time.sleep(600 if HOW == "queue" else 0)
    Path("answer.npz").write_bytes(answer(question["plan"]))
