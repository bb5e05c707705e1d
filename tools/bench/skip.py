"""The skip sweep against the naive way: one full forward pass per skipped block. Both must give the same numbers."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from ed_core.probes import LayerSkip
from ed_core.sweeps.metrics import NORM_FLOOR
from ed_core.work import compute

from . import Row
from .random_model import compared, prompt, random_llama

N_LAYERS, D_MODEL, D_VOCAB, N_TOKENS = 24, 512, 8192, 64
SPEEDUP, AGREEMENT = 2.3, 1e-5


def measure() -> list[Row]:
    """The rows of the table."""
    model = random_llama(N_LAYERS, D_MODEL, D_VOCAB)
    request = LayerSkip().request(model.spec, prompt(N_TOKENS, D_VOCAB))
    ids = model.tensor(model.encode(request.prompts[0]))
    result, expected = compute.run(model, request), dict(zip(("effect", "output"), naive_sweep(model.hf, ids)))
    off = max(float((torch.tensor(result[n]) - v).abs().max() / v.abs().max()) for n, v in expected.items())
    speedup, naive, engine = compared(lambda: naive_sweep(model.hf, ids), lambda: compute.run(model, request))
    size = f"{N_LAYERS} x {D_MODEL}, {N_TOKENS} tokens, 1 thread"
    measured = f"{speedup:.2f} x ({engine:.2f} s for {naive:.2f} s)"
    return [
        Row(f"skip sweep over naive ({size})", measured, f">= {SPEEDUP} x", speedup >= SPEEDUP),
        Row("  largest difference over largest value", f"{off:.1e}", f"<= {AGREEMENT:.0e}", off <= AGREEMENT),
    ]


@torch.no_grad()
def naive_sweep(hf: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """`effect` `[layer, layer]` and `output` `[layer]`: each skipped block's output is its input from the second token
    on, and hooks collect what every later block adds."""
    n_layers = len(hf.model.layers)
    updates, probabilities = forward(hf, ids)
    size = updates.norm(dim=-1).clamp_min(NORM_FLOOR)
    effect, output = torch.zeros(n_layers, n_layers), torch.empty(n_layers)
    for skipped in range(n_layers):
        with hf.model.layers[skipped].register_forward_hook(keep_first_token_only):
            changed, after = forward(hf, ids)
        later = slice(skipped + 1, None)
        effect[skipped, skipped] = 1.0  # its whole update is missing
        effect[skipped, later] = ((updates - changed)[later].norm(dim=-1) / size[later]).amax(-1)
        output[skipped] = (probabilities - after).norm(dim=-1).max()
    return effect, output


def keep_first_token_only(block: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return torch.cat([output[:, :1], args[0][:, 1:]], dim=1)


def forward(hf: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The sum that attention and MLP add in every block, `[layer, pos, d]`, and the probabilities, `[pos, v]`."""
    attn, mlp = [], []
    with ExitStack() as hooks:
        for block in hf.model.layers:
            hooks.enter_context(block.self_attn.register_forward_hook(lambda *call: attn.append(call[2][0])))
            hooks.enter_context(block.mlp.register_forward_hook(lambda *call: mlp.append(call[2])))
        probabilities = hf(input_ids=ids, use_cache=False).logits[0].softmax(-1)
    return torch.cat(attn) + torch.cat(mlp), probabilities
