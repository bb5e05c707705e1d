"""What the logit lens takes above the model itself, where [depth, pos, vocab] would be 4.5 GB.

The baseline is the resident memory after one short forward pass. The peak is the kernel's own high-water mark of this
process, which misses nothing between two samples; what it may hold from before the baseline only makes the figure
larger."""

from __future__ import annotations

import resource

import psutil

from ed_core.probes import LogitLens
from ed_core.work import compute

from . import Row
from .random_model import prompt, random_llama

N_LAYERS, D_MODEL, D_VOCAB, N_TOKENS = 28, 64, 150_000, 256
TARGET_GB = 1.5


def measure() -> list[Row]:
    model = random_llama(N_LAYERS, D_MODEL, D_VOCAB)
    model.logits(model.tensor(model.encode(prompt(8, D_VOCAB))))
    before = psutil.Process().memory_info().rss
    compute.run(model, LogitLens().request(model.spec, prompt(N_TOKENS, D_VOCAB)))
    above = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 1e9
    size = f"{N_LAYERS} blocks, V = {D_VOCAB}, {N_TOKENS} tokens"
    return [
        Row(f"logit lens, memory above the model ({size})", f"{above:.2f} GB", f"< {TARGET_GB} GB", above < TARGET_GB)
    ]
