"""Measuring the identities of an opened model, and comparing a device with the CPU.

Shapes: ids [1, pos]; logits [1, kept, d_vocab], `kept` of the last positions; resid [rows, pos, d_model]."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.hooks import remove_hook_from_submodules
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import IdentityFailed, lost_device, one_line, ran_out, refused
from ..machine import ROOM, free_memory, gigabytes
from . import quantized
from .identities import MISS_LIMIT, SLOPE_LIMIT, Identities, miss, slopes, suffix_limit
from .language_model import LanguageModel
from .trace import Trace

PROBE_TEXT = "The quick brown fox jumps over the lazy dog; 3 + 4 = 7, and 12 times 11 is 132."
N_READ = 4  # tokens read before another one, with the library's cache

Ids = Int[Tensor, "1 pos"]
Logits = Float[Tensor, "1 kept d_vocab"]


@torch.no_grad()
def verify(model: LanguageModel) -> Identities:
    """Measure every residual identity on a short prompt and return the figures, which the model keeps as `identities`.

    Raises `NotFinite` where the forward pass is not finite, and `IdentityFailed` where what is to be read does not
    exist, or where the model or its blocks cannot be called at all."""
    what = f"this {model.architecture.family} model, or one of its layers by hand, cannot be run on a short prompt"
    with refused(lambda error: IdentityFailed(f"Refused: {what} ({type(error).__name__}: {one_line(error)}).")):
        model.identities = _measure(model)
    return model.identities


def _measure(model: LanguageModel) -> Identities:
    """Return the figures of every identity on `short_prompt(model)`, whether they hold or not."""
    ids = short_prompt(model)
    untouched = model.logits(ids)
    trace = model.trace(ids)
    limits = MISS_LIMIT[model.dtype], SLOPE_LIMIT[model.dtype]
    blocks = [(trace.resid[l], trace.attn_out[l], trace.mlp_out[l], trace.after(l + 1)) for l in range(model.n_layers)]
    misses = [miss(*block, other).max() for block, other in zip(blocks, trace.other_out)]
    both = [slopes(*block, limit=limits[1], other=other) for block, other in zip(blocks, trace.other_out)]
    replay, detour = replay_by_hand(model, trace, untouched)
    causality, cache = causality_and_cache(model, ids, untouched)
    return Identities(
        dtype=str(model.dtype).removeprefix("torch."),
        n_tokens=ids.shape[1],
        miss=tuple(torch.stack(misses).tolist()),
        slope_attn=tuple(slope for slope, _ in both),
        slope_mlp=tuple(slope for _, slope in both),
        closure=relative(model.unembed(trace.resid[-1]), untouched),
        replay=replay,
        detour=detour,
        left_behind=relative(model.logits(ids), untouched),
        parallel=model.parallel,
        mlp_moves=_mlp_moves(model, trace),
        miss_limit=limits[0],
        slope_limit=limits[1],
        batch=_in_a_batch(model, trace),
        suffix_limit=suffix_limit(model.dtype, model.n_layers),
        suffix=suffix_by_hand(model, trace, untouched),
        causality=causality,
        cache=cache,
        between=tuple(
            float(_misses(model.between(trace, left), trace.resid[depth]).max()) for depth, left in trace.left.items()
        ),
    )


def short_prompt(model: LanguageModel) -> Ids:
    """Return a short text's tokens, at most all positions; evenly spread ids where a tokenizer gives hardly any."""
    most = min(48, model.n_positions or 48)
    ids = model.encoder.ids(PROBE_TEXT)[:most]
    if len(set(ids)) < min(8, most):
        ids = [(7 * i + 3) % model.d_vocab for i in range(min(24, most))]
    return model.tensor(tuple(ids))


def relative(logits: Tensor, expected: Tensor) -> float:
    """Return the relative error `max |logits - expected| / max |expected|`."""
    return float((logits - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def _misses(resid: Float[Tensor, "rows pos d"], expected: Float[Tensor, "rows pos d"]) -> Float[Tensor, "rows pos"]:
    """Return, per token, the norm of `resid - expected` over the norm of `expected`."""
    off: Tensor = (resid.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1).clamp_min(1e-30)
    return off


# ---------------------------------------------------------------- the text in one direction


def causality_and_cache(model: LanguageModel, ids: Ids, untouched: Logits) -> tuple[float | None, float | None]:
    """Return `(causality, cache)`, two changes of logits over the largest: of all tokens but the last when that is
    replaced, and of a token that is read with the library's cache of those before it. One pass over a few tokens, twice
    side by side, serves both.

    Causality is None in int8, where the rounding of a token depends on the others; the cache where none is used or
    handed back. Both are None for a prompt of one token."""
    n = min(ids.shape[1] - 1, N_READ)
    if n < 1:
        return None, None
    rows = torch.cat([ids[:, :n], other_last(model, ids[:, :n])])
    cached = {"use_cache": True} if model.uses_cache else {"use_cache": False}
    output = model.hf(input_ids=rows, **cached)
    logits = output.logits[:, :-1].float()
    comparable = n > 1 and model.spec.precision != "int8"
    causality = relative(logits[1], logits[0]) if comparable else None
    cache = getattr(output, "past_key_values", None) if model.uses_cache else None
    if cache is None:
        return causality, None
    read = model.hf(input_ids=ids[:, n : n + 1].repeat(2, 1), past_key_values=cache, use_cache=True).logits
    return causality, relative(read[0, -1].float().to(untouched.device), untouched[0, n])


def other_last(model: LanguageModel, ids: Ids) -> Ids:
    """Return a copy of `ids` with another last token."""
    other = ids.clone()
    other[0, -1] = ids[0, 0] if ids[0, 0] != ids[0, -1] else (ids[0, -1] + 1) % model.d_vocab
    return other


# ---------------------------------------------------------------- blocks called by hand


def replay_by_hand(model: LanguageModel, trace: Trace, untouched: Logits) -> tuple[dict[int, float], float]:
    """Return `({1: miss, 3: miss}, detour)`, misses of the last logits (as many as `untouched` has): of 1 and 3 rows
    run block by block, against the model's own of as many rows; and of a stream with its tokens moved by one at block
    0.

    The detour is walked next to the untouched stream, which overwrites what blocks share outside the stream."""
    kept, embedded = untouched.shape[1], trace.resid[0]
    moved = embedded.roll(1, dims=1)
    detour, one = _walked(model, trace, kept, moved, embedded)
    (three,) = _walked(model, trace, kept, embedded.repeat(3, 1, 1))
    own = model.logits(trace.ids.repeat(3, 1), keep=kept)[:, -kept:]
    replay = {1: relative(one, untouched), 3: relative(three, own)}
    return replay, relative(detour, model.logits_from(trace.ids, moved)[:, -kept:])


def _walked(model: LanguageModel, trace: Trace, kept: int, *streams: Tensor, start: int = 0) -> list[Tensor]:
    """Return the last `kept` logits of streams that enter block 0 from `start` on, walked together block by block."""
    for layer in range(model.n_layers):
        streams = tuple(model.run_block(trace, layer, resid, start=start)[2] for resid in streams)
    return [model.unembed(resid[:, -kept:]) for resid in streams]


def suffix_by_hand(model: LanguageModel, trace: Trace, untouched: Logits) -> float | None:
    """Return the miss of the logits (of those kept) where only the prompt's second half is replayed, in 2 rows; None
    where this model's blocks cannot be called so."""
    start = trace.ids.shape[1] // 2
    kept = min(trace.ids.shape[1] - start, untouched.shape[1])
    try:
        (logits,) = _walked(model, trace, kept, trace.resid[0][:, start:].repeat(2, 1, 1), start=start)
    except Exception as error:  # whatever a block says to arguments that it was not made for
        if ran_out(error) or lost_device(error):
            raise
        return None
    off = float((logits - untouched[:, -kept:]).abs().max() / untouched.abs().max().clamp_min(1e-30))
    return off if off == off else None


def _in_a_batch(model: LanguageModel, trace: Trace) -> float:
    """Return how much a block's result for the traced stream changes, relatively, where two other rows (its tokens
    moved by one and by two) are computed with it: the median over tokens, of the worst block."""
    medians = []
    for layer, resid in enumerate(trace.resid[:-1]):
        rows = torch.cat([resid, resid.roll(1, dims=1), resid.roll(2, dims=1)])
        *_, post = model.run_block(trace, layer, rows, crosses=False)
        medians.append(_misses(post[:1], trace.after(layer + 1)).median())
    return float(torch.stack(medians).max())


def _mlp_moves(model: LanguageModel, trace: Trace) -> tuple[float | None, ...]:
    """Return, by layer, the relative change of the MLP's addition without attention's. None where that says nothing: no
    addition of attention is above rounding, or the MLP adds the same on every token, whatever it reads."""
    above = max(1e-3, 8 * torch.finfo(model.dtype).eps)
    comparable, moves = [], []
    for layer in range(model.n_layers):
        h, a, m = (x.float() for x in (trace.resid[layer], trace.attn_out[layer], trace.mlp_out[layer]))
        varies = (m - m.mean(-2, keepdim=True)).norm() > 1e-3 * m.norm()
        comparable.append(varies & (a.norm(dim=-1) > above * h.norm(dim=-1)).any())
    layers = [layer for layer, one in enumerate(torch.stack(comparable).tolist()) if one]
    for layer in layers:
        added: list[Tensor] = []

        def keep(mlp: Tensor, added: list[Tensor] = added) -> Tensor:
            added.append(mlp)
            return mlp

        model.run_block(trace, layer, trace.resid[layer], attn_edit=torch.zeros_like, mlp_edit=keep)
        m = trace.mlp_out[layer].float()
        moves.append((added[0].float() - m).norm() / m.norm())
    by_layer = dict(zip(layers, torch.stack(moves).tolist() if moves else ()))
    return tuple(by_layer.get(layer) for layer in range(model.n_layers))


# ---------------------------------------------------------------- a device against the CPU

# A short pass on the device against float32 on the CPU, block by block: MPS has been silently wrong before. Every block
# of the CPU's copy gets what entered the same block on the device, so rounding does not add up over the depth, and a
# mistake is found where it happens. Masks, positions and embeddings are the CPU's own.

# A block rounds a dozen times: correct bf16 blocks were seen up to 1.8e-2, fp16 1.4e-3. int8 rounds activations too.
DEVICE_LIMITS = {"fp32": 1e-4, "fp16": 8e-3, "bf16": 4e-2, "4bit": 4e-2, "int8": 8e-2}
_devices_passed: set[tuple[str, str, str]] = set()


@dataclass(frozen=True)
class Sanity:
    """Relative differences of a device from the CPU: of the embedding, of every block's output, and of the logits.
    `limit`: the largest that rounding explains; `unchecked`: why nothing was compared, or ""."""

    embedding: float = 0.0
    blocks: tuple[float, ...] = ()
    logits: float = 0.0
    limit: float = 0.0
    unchecked: str = ""

    def failures(self) -> list[str]:
        """Return a sentence for each difference beyond rounding; empty for a device that computes correctly."""
        figures = {"the embedding": self.embedding} | {f"layer {l}": off for l, off in enumerate(self.blocks, 1)}
        return [
            f"{what} differs by {off:.2g} (limit {self.limit:g})"
            for what, off in (figures | {"the logits": self.logits}).items()
            if not off <= self.limit
        ]

    def require(self, device: str) -> None:
        """Raise `IdentityFailed` where the device computes something else than the CPU."""
        if failures := self.failures():
            more = f" ({len(failures) - 1} more)" if len(failures) > 1 else ""
            raise IdentityFailed(
                f"Refused: on {device} {failures[0]} from the CPU's float32{more}, which no rounding explains. Use "
                "--device cpu, or another version of torch, and run 'python -m ed_core verify MODEL --device …' again."
            )


def check_device(model: LanguageModel, always: bool = False) -> Sanity | None:
    """Return the comparison of the model's device with the CPU; None on the CPU, and (unless `always`) where this
    process has seen the same family pass on this device in this precision."""
    key = (str(model.device), model.architecture.family, model.spec.precision)
    if model.device.type == "cpu" or (key in _devices_passed and not always):
        return None
    parameters = list(model.hf.parameters())
    needed = 4 * sum(p.numel() for p in parameters) * (2 if model.spec.precision == "4bit" else 1)
    if any(p.is_meta for p in parameters):
        return Sanity(unchecked="some of the weights are offloaded")
    if needed > ROOM * free_memory():
        free = f"{gigabytes(free_memory())} are free"
        return Sanity(unchecked=f"the float32 copy on the CPU would take about {gigabytes(needed)}, and {free}")
    sanity = compare_with_cpu(model.trace(short_prompt(model)), float32_copy(model), model.spec.precision)
    if not sanity.failures():
        _devices_passed.add(key)
    return sanity


@torch.no_grad()
def compare_with_cpu(trace: Trace, reference: LanguageModel, precision: str) -> Sanity:
    """Return how a device's traced pass differs, block by block, from `reference`, its float32 copy on the CPU."""

    def on_cpu(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", torch.float32)

    assert trace.logits is not None
    own = reference.trace(trace.ids.cpu())
    blocks = []
    for layer in range(reference.n_layers):
        before, after = on_cpu(trace.resid[layer]), on_cpu(trace.resid[layer + 1])
        attn, mlp, expected = reference.run_block(own, layer, before)
        sizes = torch.stack([t.norm(dim=-1) for t in (before, attn, mlp, expected)]).amax(0)
        blocks.append(_worst((after - expected).norm(dim=-1) / sizes.clamp_min(1e-30)))
    expected = reference.unembed(on_cpu(trace.resid[-1]))[:, -trace.logits.shape[1] :]
    logits = _worst((on_cpu(trace.logits) - expected).abs().amax() / expected.abs().amax().clamp_min(1e-30))
    embedding = _worst(_misses(on_cpu(trace.resid[0]), own.resid[0]))
    return Sanity(embedding, tuple(blocks), logits, DEVICE_LIMITS[precision])


def _worst(differences: Tensor) -> float:
    """Return the largest difference; NaN counts as infinite."""
    return float(differences.nan_to_num(nan=float("inf")).max())


def float32_copy(model: LanguageModel) -> LanguageModel:
    """Return a copy of the model in float32 on the CPU, quantized weights unpacked."""
    parts: dict[int, Any] = {}  # by id, what takes the place of a part in the copy
    for module in model.hf.modules():
        packed = type(module).__name__ in ("Linear4bit", "Linear8bitLt")
        if packed and isinstance(module, nn.Linear):  # peft's LoRA around one has its name, and is no Linear
            plain = nn.Linear(module.in_features, module.out_features, module.bias is not None, device="meta")
            plain.weight = nn.Parameter(quantized.weight(module).cpu())
            if module.bias is not None:
                plain.bias = nn.Parameter(module.bias.detach().cpu().float())
            parts[id(module)] = plain
    for parameter in filter(Tensor.is_floating_point, model.hf.parameters()):
        parts[id(parameter)] = nn.Parameter(parameter.detach().to("cpu", torch.float32))
    for buffer in model.hf.buffers():
        parts[id(buffer)] = buffer.to("cpu", torch.float32 if buffer.is_floating_point() else buffer.dtype)
    copied = copy.deepcopy(model.hf, parts)
    remove_hook_from_submodules(copied)  # accelerate's, by which a spread model moves its streams
    copied.hf_device_map = {}
    return LanguageModel(copied, model.tokenizer, model.architecture, model.spec, model.encoder)
