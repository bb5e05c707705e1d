"""The skip sweep over 4 blocks run 4 times against 16 blocks of their own with the same weights, in turns, one thread,
CPU seconds, the fastest of each; and the keys and values of all passes against what is estimated."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ed_core.architectures import find
from ed_core.models import looped
from ed_core.models.language_model import LanguageModel
from ed_core.models.verify import verify
from ed_core.probes import Generation, LayerSkip
from ed_core.probes.base import Shape
from ed_core.probes.generation import WRITTEN_TOKENS
from ed_core.types import ModelSpec
from ed_core.work import compute

from . import Row
from .random_model import prompt, word_tokenizer
from .skip import timed

BLOCKS, PASSES, WIDTH, D_VOCAB, N_TOKENS, TIMES = 4, 4, 128, 512, 64, 5
SPEED, MEMORY, AGREEMENT = 0.9, 1.1, 1e-5


def measure() -> list[Row]:
    loop, plain = pair()
    asked = prompt(N_TOKENS, D_VOCAB)
    seconds: dict[str, list[float]] = {"loop": [], "plain": []}
    found = {}
    for _ in range(TIMES):
        for name, model in (("loop", loop), ("plain", plain)):
            took, found[name] = timed(lambda model=model: compute.run(model, LayerSkip().request(model.spec, asked)))
            seconds[name].append(took)
    fast = {name: min(all_of_it) for name, all_of_it in seconds.items()}
    ratio = fast["plain"] / fast["loop"]
    off = max(float(abs(found["loop"][name] - found["plain"][name]).max()) for name in ("effect", "output"))
    held, estimated = keys_and_values(loop)
    size = f"{BLOCKS} x {PASSES}, width {WIDTH}, {N_TOKENS} tokens"
    told = f"{ratio:.2f} x ({fast['loop']:.2f} s for {fast['plain']:.2f} s)"
    share = f"{held / estimated:.3f} x ({held >> 10} KiB of {estimated / 1024:.0f})"
    return [
        Row(f"skip sweep over unrolled blocks ({size})", told, f">= {SPEED} x", ratio >= SPEED),
        Row("  largest difference", f"{off:.1e}", f"<= {AGREEMENT:.0e}", off <= AGREEMENT),
        Row("keys and values of all passes", share, f"<= {MEMORY} x", held <= MEMORY * estimated),
    ]


def pair() -> tuple[LanguageModel, LanguageModel]:
    """A random loop, and the plain model with its blocks' weights written out."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=D_VOCAB, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_attention_heads=4)
    loop = looped.LoopedForCausalLM(looped.LoopedConfig(num_hidden_layers=BLOCKS, n_loops=PASSES, **sizes))
    config = AutoConfig.for_model("llama", num_hidden_layers=BLOCKS * PASSES, **sizes)
    plain = AutoModelForCausalLM.from_config(config)
    for number, block in enumerate(plain.model.layers):
        block.load_state_dict(loop.model.layers[number % BLOCKS].state_dict())
    for part in ("model.embed_tokens", "model.norm", "lm_head"):
        plain.get_submodule(part).load_state_dict(loop.get_submodule(part).state_dict())
    opened = []
    for hf in (loop, plain):
        family, tokenizer = hf.config.model_type, word_tokenizer(D_VOCAB)
        model = LanguageModel(hf, tokenizer, find(family), ModelSpec(family, content_hash=family))
        verify(model).require(model.architecture)
        opened.append(model)
    return opened[0], opened[1]


def keys_and_values(model: LanguageModel) -> tuple[int, float]:
    """Bytes held after `WRITTEN_TOKENS` more tokens, and those estimated."""
    ids = model.tensor(model.encode(prompt(N_TOKENS, D_VOCAB)))
    with torch.no_grad():
        cache = model.hf(input_ids=ids.repeat(1, 1 + WRITTEN_TOKENS // N_TOKENS), use_cache=True).past_key_values
    n = cache.get_seq_length()
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    shape = Shape(model.n_layers, ids.shape[1], ids.shape[1] * model.d_model * 4, 0, 0, 0, 1)
    return held, Generation().holds(shape) * n / (N_TOKENS + WRITTEN_TOKENS)
