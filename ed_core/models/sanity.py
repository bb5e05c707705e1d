"""Is a device to be believed? A short forward pass there against float32 on the CPU, block by block. MPS has been
silently wrong before.

Every block of the CPU's copy gets what entered the same block on the device, so rounding does not add up over the
depth, and what is wrong is found where it happens. Masks, positions and embeddings are the CPU's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import IdentityFailed
from ..machine import ROOM, free_memory, gigabytes
from ..sources.sizes import stored_precision
from ..sources.specs import config_of
from . import quantized
from .verify import short_prompt

if TYPE_CHECKING:
    from .language_model import LanguageModel
    from .trace import Trace

# A block rounds a dozen times: correct bf16 blocks were seen up to 1.8e-2, fp16 1.4e-3. int8 rounds its activations
# too.
LIMIT = {"fp32": 1e-4, "fp16": 8e-3, "bf16": 4e-2, "4bit": 4e-2, "int8": 8e-2}
_passed: set[tuple[str, str, str]] = set()


@dataclass(frozen=True)
class Sanity:
    """Relative differences of the embedding, of every block's output, and of the logits; or why there are none."""

    embedding: float = 0.0
    blocks: tuple[float, ...] = ()
    logits: float = 0.0
    limit: float = 0.0
    unchecked: str = ""

    def failures(self) -> list[str]:
        """What is beyond rounding; empty for a device that computes rightly."""
        figures = [
            ("the embedding", self.embedding),
            *((f"layer {l}", d) for l, d in enumerate(self.blocks)),
            ("the logits", self.logits),
        ]
        return [f"{what} differs by {d:.2g} (limit {self.limit:g})" for what, d in figures if not d <= self.limit]

    def require(self, device: str) -> None:
        """Raise `IdentityFailed` where the device computes something else than the CPU."""
        if failures := self.failures():
            more = f" ({len(failures) - 1} more)" if len(failures) > 1 else ""
            raise IdentityFailed(
                f"Refused: on {device} {failures[0]} from the CPU's float32{more}, which no rounding explains. Use "
                "--device cpu, or another version "
                "of torch, and run 'python -m ed_core verify MODEL --device …' again."
            )


def check(
    model: LanguageModel, always: bool = False, reference: Callable[[], LanguageModel] | None = None
) -> Sanity | None:
    """The check of a model that is not on the CPU; None where there is nothing to check, or (unless `always`) this
    process has seen the same family pass there in the same precision. `reference`: makes the float32 copy on the CPU of
    a model that no folder holds."""
    key = (str(model.device), model.architecture.family, model.spec.precision)
    if model.device.type == "cpu" or (key in _passed and not always):
        return None
    if reason := _no_reference(model):
        return Sanity(unchecked=reason)
    plain = reference() if reference else _reference(model)
    found = compare(model.trace(short_prompt(model)), plain, model.spec.precision)
    if not found.failures():
        _passed.add(key)
    return found


@torch.no_grad()
def compare(trace: Trace, reference: LanguageModel, precision: str) -> Sanity:
    """What a device's traced pass gives against the same model in float32 on the CPU."""

    def home(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", torch.float32)

    assert trace.logits is not None
    own = reference.trace(trace.ids.cpu())
    blocks = []
    for layer in range(reference.n_layers):
        before, after = home(trace.resid[layer]), home(trace.resid[layer + 1])
        attn, mlp, expected = reference.run_block(own, layer, before)
        sizes = torch.stack([t.norm(dim=-1) for t in (before, attn, mlp, expected)]).amax(0)
        blocks.append(_worst((after - expected).norm(dim=-1) / sizes.clamp_min(1e-30)))
    expected = reference.unembed(home(trace.resid[-1]))[:, -trace.logits.shape[1] :]
    logits = _worst((home(trace.logits) - expected).abs().amax() / expected.abs().amax().clamp_min(1e-30))
    start = home(trace.resid[0])
    embedding = _worst((start - own.resid[0]).norm(dim=-1) / own.resid[0].norm(dim=-1).clamp_min(1e-30))
    return Sanity(embedding, tuple(blocks), logits, LIMIT[precision])


def _worst(differences: Tensor) -> float:
    """The largest; what is not a number counts as infinite."""
    return float(differences.nan_to_num(nan=float("inf")).max())


def _no_reference(model: LanguageModel) -> str:
    """Why there can be no float32 copy on the CPU, or ""."""
    if (
        model.spec.adapter
        or stored_precision(config_of(model.spec))
        or not (model.spec.content_hash or model.spec.revision)
    ):
        return "there is no float32 copy of this model to compare with"
    needed = 4 * sum(p.numel() for p in model.hf.parameters()) * (2 if model.spec.precision == "4bit" else 1)
    if needed > ROOM * free_memory():
        return (
            f"the float32 copy on the CPU would take about {gigabytes(needed)}, and {gigabytes(free_memory())} are free"
        )
    return ""


def _reference(model: LanguageModel) -> LanguageModel:
    """The same model on the CPU in float32; where it is quantized, with what its weights stand for."""
    from .loading import load

    wanted = replace(model.spec, device="cpu", precision="fp32", offload="")
    hf_model, tokenizer, _, spec = load(wanted, model.architecture)
    plain = type(model)(hf_model, tokenizer, model.architecture, spec)
    for name, module in model.hf.named_modules():
        if type(module).__name__ in ("Linear4bit", "Linear8bitLt"):
            target = plain.hf.get_submodule(name).weight
            unpacked = quantized.weight(module).cpu()
            target.data = (
                unpacked if unpacked.shape == target.shape else unpacked.T.contiguous()
            )  # GPT-2 keeps its maps transposed
    return plain
