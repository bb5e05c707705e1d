"""Skips, direct effects and erasures against the naive way: one full forward pass per intervention, in the same
process.

One thread, a small random model, CPU seconds of this process (see `skip`). Both ways give every number the probe gives,
and they must agree."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from ed_core.models.language_model import LanguageModel
from ed_core.models.modules import hooked
from ed_core.probes import LayerSkip, Probe, ResidualErasure
from ed_core.sweeps.metrics import NORM_FLOOR
from ed_core.types import Prompt
from ed_core.work import compute

from . import Row
from .random_model import prompt, random_llama
from .skip import difference, timed

N_LAYERS, D_MODEL, D_VOCAB, N_TOKENS = 16, 256, 8192, 64
ROUNDS = 3
AGREEMENT = 1e-4


def measure() -> list[Row]:
    model = random_llama(N_LAYERS, D_MODEL, D_VOCAB)
    asked = prompt(N_TOKENS, D_VOCAB, n_answer=2)
    current, future = LayerSkip(), LayerSkip(mode="future", n_boundaries=4)
    bounds = future.chosen_boundaries(N_TOKENS)
    everything = [N_TOKENS]
    return [
        *against(
            model, asked, "layer skip, current", current, lambda ids: naive_skips(model.hf, ids, everything, False), 2.3
        ),
        *against(
            model,
            asked,
            "layer skip, future, 4 boundaries",
            future,
            lambda ids: naive_skips(model.hf, ids, bounds, True),
            2.3,
        ),
        *against(
            model,
            asked,
            "layer skip with direct effect",
            LayerSkip(direct=True),
            lambda ids: naive_skips(model.hf, ids, everything, False, True),
            2.3,
        ),
        *against(
            model, asked, "residual erasure", ResidualErasure(), lambda ids: naive_erasures(model, ids), 4.0, rounds=1
        ),
    ]


def against(
    model: LanguageModel, asked: Prompt, what: str, probe: Probe, naive: Callable, target: float, rounds: int = ROUNDS
) -> list[Row]:
    """Engine and naive way in turn, several rounds: the median of the rounds' ratios, and the largest difference of any
    measure."""
    request, ids = probe.request(model.spec, asked), model.tensor(model.encode(asked))
    compute.run(model, request)
    engine, slow = [], []
    for _ in range(rounds):
        seconds, result = timed(lambda: compute.run(model, request))
        engine.append(seconds)
        seconds, expected = timed(lambda: naive(ids))
        slow.append(seconds)
    off = max(difference(torch.tensor(result[name]), value) for name, value in expected.items())
    ratio = statistics.median(n / e for n, e in zip(slow, engine))
    seconds = f"{statistics.median(engine):.2f} s for {statistics.median(slow):.2f} s"
    return [
        Row(
            f"{what} against naive ({N_LAYERS} x {D_MODEL}, {N_TOKENS} tokens)",
            f"{ratio:.2f} x ({seconds})",
            f">= {target} x",
            ratio >= target,
        ),
        Row("  largest difference over largest value", f"{off:.1e}", f"<= {AGREEMENT:.0e}", off <= AGREEMENT),
    ]


# ---------------------------------------------------------------- the naive ways


class _Watched:
    """Forward passes of a plain transformers Llama, with what every block was called with and what it added."""

    def __init__(self, hf: nn.Module, ids: Tensor):
        self.hf, self.ids, self.blocks = hf, ids, hf.model.layers

    def run(self) -> tuple[list[Tensor], list[dict], Tensor, Tensor]:
        """`(what entered each block, its arguments, updates [layer, pos, d], probabilities [pos, v])`."""
        entered, arguments, attn, mlp = [], [], [], []

        def before(module, args, kwargs):
            entered.append(args[0])
            arguments.append(kwargs)

        with ExitStack() as hooks:
            for block in self.blocks:
                hooks.enter_context(hooked(block.register_forward_pre_hook(before, with_kwargs=True)))
                hooks.enter_context(
                    hooked(block.self_attn.register_forward_hook(lambda module, args, output: attn.append(output[0])))
                )
                hooks.enter_context(
                    hooked(block.mlp.register_forward_hook(lambda module, args, output: mlp.append(output)))
                )
            probabilities = self.hf(input_ids=self.ids, use_cache=False).logits[0].softmax(-1)
        return entered, arguments, torch.cat(attn) + torch.cat(mlp), probabilities

    def update(self, layer: int, resid: Tensor, arguments: dict) -> Tensor:
        """What block `layer` adds when it is called on another residual."""
        return (self.blocks[layer](resid, **arguments) - resid)[0]


@torch.no_grad()
def naive_skips(hf: nn.Module, ids: Tensor, bounds: list[int], future: bool, direct: bool = False) -> dict[str, Tensor]:
    """One forward pass per skipped block and boundary; for direct effects every later block is called a second time on
    the edited input."""
    watched, n_layers = _Watched(hf, ids), len(hf.model.layers)
    entered, arguments, updates, probabilities = watched.run()
    size = updates.norm(dim=-1).clamp_min(NORM_FLOOR)
    effect, straight, output = torch.zeros(n_layers, n_layers), torch.zeros(n_layers, n_layers), torch.zeros(n_layers)
    for skipped in range(n_layers):
        for bound in bounds:
            look = slice(bound if future else 0, None)

            def leave_out(module, args, result, bound=bound):
                return torch.cat([result[:, :1], args[0][:, 1:bound], result[:, bound:]], dim=1)

            with hooked(hf.model.layers[skipped].register_forward_hook(leave_out)):
                *_, changed, after = watched.run()
            changed[skipped, 1:bound] = 0.0
            found = ((updates - changed).norm(dim=-1) / size)[:, look].amax(-1)
            effect[skipped] = effect[skipped].maximum(found)
            output[skipped] = output[skipped].maximum((probabilities - after).norm(dim=-1)[look].max())
            for layer in range(skipped + 1, n_layers) if direct else ():
                edited = entered[layer].clone()
                edited[0, 1:bound] -= updates[skipped, 1:bound]
                change = (updates[layer] - watched.update(layer, edited, arguments[layer])).norm(dim=-1) / size[layer]
                straight[skipped, layer] = straight[skipped, layer].maximum(change[look].amax())
    return {"effect": effect, "output": output} | ({"effect_direct": straight} if direct else {})


@torch.no_grad()
def naive_erasures(model: LanguageModel, ids: Tensor) -> dict[str, Tensor]:
    """One forward pass per depth and position, with the residual there replaced on its way into the block (or into the
    final norm)."""
    hf, n_tokens = model.hf, ids.shape[1]
    places = [*hf.model.layers, hf.model.norm]
    total, count = torch.zeros(len(places), hf.config.hidden_size, dtype=torch.float64), 0
    for other in ResidualErasure().background_prompts(model.spec):
        tokens = model.tensor(model.encode(other))
        with ExitStack() as hooks:
            for depth, place in enumerate(places):

                def add(module, args, depth=depth):
                    total[depth] += args[0][0].double().sum(0)

                hooks.enter_context(hooked(place.register_forward_pre_hook(add)))
            hf(input_ids=tokens, use_cache=False)
        count += tokens.shape[1]
    mean = (total / count).float()
    look = slice(n_tokens - 3, n_tokens - 1)
    base = hf(input_ids=ids, use_cache=False).logits[0].softmax(-1)
    effect = torch.zeros(len(places), n_tokens)
    for depth, place in enumerate(places):
        for pos in range(n_tokens):

            def erase(module, args, depth=depth, pos=pos):
                return (
                    torch.cat([args[0][:, :pos], mean[depth].view(1, 1, -1), args[0][:, pos + 1 :]], dim=1),
                    *args[1:],
                )

            with hooked(place.register_forward_pre_hook(erase)):
                after = hf(input_ids=ids, use_cache=False).logits[0].softmax(-1)
            effect[depth, pos] = (base - after).norm(dim=-1)[look].amax()
    return {"effect": effect}
