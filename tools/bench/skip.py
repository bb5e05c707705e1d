"""The skip sweep against the naive way, and against plain matrix products of the same shapes.

One thread, three ways in turn, several rounds; a ratio is the median of the rounds' own ratios. Times are CPU seconds
of this process, which on an idle machine equal wall time for one thread and on a shared one leave out the others.

FLOPs are those of the linears, 2 x tokens x weights, and of the attention products over the causal half, 2 x T (T + 1)
x heads x head size per row; norms, activations, softmax and the measuring itself count as time and not as work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from ed_core.models.language_model import LanguageModel
from ed_core.models.modules import hooked
from ed_core.probes import LayerSkip
from ed_core.sweeps.metrics import NORM_FLOOR
from ed_core.work import compute

from . import Row
from .random_model import prompt, random_llama

N_LAYERS, D_MODEL, D_VOCAB, N_TOKENS = 24, 512, 8192, 64
ROUNDS = 5
SPEEDUP, AGREEMENT, RATE = 2.3, 1e-5, 0.85


def measure() -> list[Row]:
    model = random_llama(N_LAYERS, D_MODEL, D_VOCAB)
    request = LayerSkip().request(model.spec, prompt(N_TOKENS, D_VOCAB))
    ids = model.tensor(model.encode(request.prompts[0]))
    calls, attention_flops = work(model, lambda: compute.run(model, request))
    flops = linear_flops(calls)
    products = matrix_products(calls)
    engine, naive, plain = [], [], []
    for _ in range(ROUNDS):
        seconds, result = timed(lambda: compute.run(model, request))
        engine.append(seconds)
        seconds, (effect, output) = timed(lambda: naive_sweep(model.hf, ids))
        naive.append(seconds)
        plain.append(timed(products)[0])
    off = max(difference(torch.tensor(result["effect"]), effect), difference(torch.tensor(result["output"]), output))
    speedup = statistics.median(n / e for n, e in zip(naive, engine))
    rate = statistics.median(p / e for p, e in zip(plain, engine)) * (1 + attention_flops / flops)
    gigaflops = flops / statistics.median(plain) / 1e9
    size = f"{N_LAYERS} x {D_MODEL}, {N_TOKENS} tokens, 1 thread"
    seconds = f"{statistics.median(engine):.2f} s for {statistics.median(naive):.2f} s"
    return [
        Row(
            f"skip sweep against naive ({size})", f"{speedup:.2f} x ({seconds})", f">= {SPEEDUP} x", speedup >= SPEEDUP
        ),
        Row("  largest difference over largest value", f"{off:.1e}", f"<= {AGREEMENT:.0e}", off <= AGREEMENT),
        Row(
            "  FLOP rate against plain products",
            f"{rate:.0%} (of {gigaflops:.0f} GFLOP/s)",
            f">= {RATE:.0%}",
            rate >= RATE,
        ),
    ]


def timed(run: Callable):
    """CPU seconds, and what came back."""
    begin = time.process_time()
    result = run()
    return time.process_time() - begin, result


def difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected value."""
    return float((found - expected).abs().max() / expected.abs().max())


# ---------------------------------------------------------------- the naive way


@torch.no_grad()
def naive_sweep(hf: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """`effect` and `output` with one full forward pass per skipped block: the block's output is its input from the
    second token on, and hooks collect what every later block adds."""
    n_layers = len(hf.model.layers)
    updates, probabilities = _forward(hf, ids)
    size = updates.norm(dim=-1).clamp_min(NORM_FLOOR)
    effect, output = torch.zeros(n_layers, n_layers), torch.empty(n_layers)
    for skipped in range(n_layers):
        with hooked(hf.model.layers[skipped].register_forward_hook(_keep_first_token_only)):
            changed, after = _forward(hf, ids, skipped + 1)
        effect[skipped, skipped] = 1.0  # its whole update is missing
        effect[skipped, skipped + 1 :] = ((updates[skipped + 1 :] - changed).norm(dim=-1) / size[skipped + 1 :]).amax(
            -1
        )
        output[skipped] = (probabilities - after).norm(dim=-1).max()
    return effect, output


def _keep_first_token_only(block: nn.Module, args: tuple, output: Tensor) -> Tensor:
    return torch.cat([output[:, :1], args[0][:, 1:]], dim=1)


def _forward(hf: nn.Module, ids: Tensor, begin: int = 0) -> tuple[Tensor, Tensor]:
    """What attention and MLP together add in every block from `begin` on, `[layer, pos, d]`, and the predicted
    probabilities."""
    attn, mlp = [], []
    with ExitStack() as hooks:
        for block in hf.model.layers[begin:]:
            hooks.enter_context(
                hooked(block.self_attn.register_forward_hook(lambda module, args, output: attn.append(output[0])))
            )
            hooks.enter_context(
                hooked(block.mlp.register_forward_hook(lambda module, args, output: mlp.append(output)))
            )
        probabilities = hf(input_ids=ids, use_cache=False).logits[0].softmax(-1)
    return torch.cat(attn) + torch.cat(mlp) if attn else torch.empty(
        0, *ids.shape[1:], hf.config.hidden_size
    ), probabilities


# ---------------------------------------------------------------- the work there is


def work(model: LanguageModel, run: Callable) -> tuple[list[tuple[int, nn.Linear]], int]:
    """Every call of a linear that `run` makes, as (tokens, module), and the FLOPs of its attention products over the
    causal half."""
    calls, attention = [], []
    width = model.config.num_attention_heads * model.config.head_dim

    def linear(module, args, output):
        calls.append((args[0].numel() // module.in_features, module))

    def products(module, args, output):
        batch, n_tokens, _ = output[0].shape
        attention.append(2 * batch * n_tokens * (n_tokens + 1) * width)

    with ExitStack() as hooks:
        for module in model.hf.modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(hooked(module.register_forward_hook(linear)))
        for attn, _ in model.branches:
            hooks.enter_context(hooked(attn.register_forward_hook(products)))
        run()
    return calls, sum(attention)


def linear_flops(calls: list[tuple[int, nn.Linear]]) -> int:
    return sum(2 * tokens * module.weight.numel() for tokens, module in calls)


def matrix_products(calls: list[tuple[int, nn.Linear]]) -> Callable[[], None]:
    """The same linears at the same batch sizes in the same order, as nothing but matrix products."""
    most: dict[int, int] = {}
    for tokens, module in calls:
        most[module.in_features] = max(tokens, most.get(module.in_features, 0))
    inputs = {width: torch.randn(tokens, width) for width, tokens in most.items()}

    @torch.no_grad()
    def run() -> None:
        for tokens, module in calls:
            torch.mm(inputs[module.in_features][:tokens], module.weight.T)

    return run
