"""What a model must show before it is believed: that its sums hold (`identities`), and that its device computes
what the CPU does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import EffectiveDepthError, IdentityFailed, lost_device, ran_out
from ..machine import ROOM, free_memory, gigabytes
from . import quantized
from .identities import MISS_LIMIT, SLOPE_LIMIT, Identities, miss, slopes, suffix_limit
from .language_model import LanguageModel
from .ref import ModelRef
from .sizes import stored_precision
from .trace import Trace

PROBE_TEXT = "The quick brown fox jumps over the lazy dog; 3 + 4 = 7, and 12 times 11 is 132."


@torch.no_grad()
def verify(model: LanguageModel) -> Identities:
    """Measure every identity of an opened model on a short prompt, and remember the figures with it. Raises `NotFinite`
    where the forward pass is not finite, and `IdentityFailed` at once where what is to be read does not exist, or where
    the model or its blocks cannot be called at all."""
    try:
        model.identities = _measure(model)
        return model.identities
    except EffectiveDepthError:
        raise
    except Exception as error:
        if ran_out(error) or lost_device(error):
            raise
        # Whatever a strange config, or a block called otherwise than its model calls it, provokes inside the library.
        raise IdentityFailed(
            f"Refused: this {model.architecture.family} model, or one of its layers by hand, cannot be run on a short "
            f"prompt ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]})."
        ) from error


def _measure(model: LanguageModel) -> Identities:
    ids = short_prompt(model)
    untouched = model.logits(ids)
    trace = model.trace(ids)
    limit = SLOPE_LIMIT[model.dtype]
    blocks = [(trace.resid[l], trace.attn_out[l], trace.mlp_out[l], trace.after(l + 1)) for l in range(model.n_layers)]
    both = [slopes(*block, limit=limit, other=other) for block, other in zip(blocks, trace.other_out)]
    replay, detour = replay_by_hand(model, trace, untouched)
    mlp_moves = _mlp_moves(model, trace)
    return Identities(
        dtype=str(model.dtype).removeprefix("torch."),
        n_tokens=ids.shape[1],
        miss=tuple(torch.stack([miss(*block, other).max() for block, other in zip(blocks, trace.other_out)]).tolist()),
        slope_attn=tuple(s[0] for s in both),
        slope_mlp=tuple(s[1] for s in both),
        closure=relative(model.unembed(trace.resid[-1]), untouched),
        replay=replay,
        detour=detour,
        left_behind=relative(model.logits(ids), untouched),
        parallel=model.parallel,
        mlp_moves=mlp_moves,
        miss_limit=MISS_LIMIT[model.dtype],
        slope_limit=limit,
        batch=beside_others(model, trace),
        suffix_limit=suffix_limit(model.dtype, model.n_layers),
        suffix=suffix_by_hand(model, trace, untouched),
        causality=causality(model, ids, untouched),
        cache=cache(model, ids, untouched),
        between=tuple(
            float(_misses(model.between(trace, left), trace.resid[depth]).max()) for depth, left in trace.left.items()
        ),
    )


def causality(model: LanguageModel, ids: Int[Tensor, "1 pos"], untouched: Float[Tensor, "1 kept v"]) -> float | None:
    """The change of the logits of all tokens but the last with another last token, over the largest; None for a prompt
    of one token, and in int8, where the rounding of each token depends on which columns are large in any of them."""
    if ids.shape[1] < 2 or model.spec.precision == "int8":
        return None
    return relative(model.logits(other_last(model, ids))[:, :-1], untouched[:, :-1])


def other_last(model: LanguageModel, ids: Int[Tensor, "1 pos"]) -> Int[Tensor, "1 pos"]:
    """The same tokens with another last one."""
    other = ids.clone()
    other[0, -1] = ids[0, 0] if ids[0, 0] != ids[0, -1] else (ids[0, -1] + 1) % model.d_vocab
    return other


def cache(model: LanguageModel, ids: Int[Tensor, "1 pos"], untouched: Float[Tensor, "1 kept v"]) -> float | None:
    """The change of the logits of the twelfth token (the last of a shorter prompt) where it is written behind those
    before it, as `write` does it, over the largest; None for a prompt of one token."""
    last, written = min(ids.shape[1], 12) - 1, []

    def choose(step: int, logits: Tensor) -> int:
        written.append(logits)
        return int(ids[0, last])

    if not last:
        return None
    model.write(ids[:, :last], 2, choose)
    return relative(written[-1], untouched[0, last])


def suffix_by_hand(model: LanguageModel, trace: Trace, untouched: Float[Tensor, "1 kept v"]) -> float | None:
    """The miss of the logits (of those kept) when only the second half is replayed, batch 2; None where this model's
    blocks cannot be called so."""
    start, largest = trace.ids.shape[1] // 2, untouched.abs().max()
    try:
        resid = trace.resid[0][:, start:].repeat(2, 1, 1)
        for layer in range(model.n_layers):
            *_, resid = model.run_block(trace, layer, resid, start=start)
        kept = min(resid.shape[1], untouched.shape[1])
        logits, untouched = model.unembed(resid[:, -kept:]), untouched[:, -kept:]
    except Exception as error:  # whatever a block says to arguments it was not made for: it cannot be done
        if ran_out(error) or lost_device(error):
            raise
        return None
    off = float((logits - untouched).abs().max() / largest.clamp_min(1e-30))
    return off if off == off else None


def beside_others(model: LanguageModel, trace: Trace) -> float:
    """What a block gives the traced stream beside two others, its tokens moved along by one and by two, against what it
    gives it alone, over the length of that: the median over tokens, of the worst block."""
    found = []
    for layer, resid in enumerate(trace.resid[:-1]):
        rows = torch.cat([resid, resid.roll(1, dims=1), resid.roll(2, dims=1)])
        *_, post = model.run_block(trace, layer, rows, crosses=False)
        found.append(_misses(post[:1], trace.after(layer + 1)).median())
    return float(torch.stack(found).max())


def replay_by_hand(model: LanguageModel, trace: Trace, untouched: Tensor) -> tuple[dict[int, float], float]:
    """Misses of the logits (the last ones, as many as in `untouched`) by hand for batch 1 and 3, against the model's
    own of as many rows; and of the detour, the stream's tokens moved along by one at block 0."""
    kept = untouched.shape[1]
    moved = trace.resid[0].roll(1, dims=1)
    own = {1: untouched, 3: model.logits(trace.ids.repeat(3, 1), keep=kept)[:, -kept:]}
    replay, detour = {}, 0.0
    for batch in (1, 3):
        resid, elsewhere = trace.resid[0].repeat(batch, 1, 1), moved
        for layer in range(model.n_layers):
            if batch == 1:
                *_, elsewhere = model.run_block(trace, layer, elsewhere)
            *_, resid = model.run_block(trace, layer, resid)
        replay[batch] = relative(model.unembed(resid[:, -kept:]), own[batch])
        if batch == 1:
            detour = relative(model.unembed(elsewhere[:, -kept:]), model.logits_from(trace.ids, moved)[:, -kept:])
    return replay, detour


def _misses(found: Float[Tensor, "batch pos d"], expected: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos"]:
    """Every token's miss, over the length of what was expected."""
    off = (found.float() - expected.float()).norm(dim=-1)
    missed: Tensor = off / expected.float().norm(dim=-1).clamp_min(1e-30)
    return missed


def relative(logits: Tensor, expected: Tensor) -> float:
    """`max |logits - expected| / max |expected|`, 0 or more."""
    return float((logits - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def _mlp_moves(model: LanguageModel, trace: Trace) -> tuple[float | None, ...]:
    """By layer, the relative change of the MLP's addition where attention's is left out. None where that tells nothing:
    on no token is attention's addition plainly above rounding, or the MLP adds the same on every token, whatever it
    reads."""
    plain = max(1e-3, 8 * torch.finfo(model.dtype).eps)
    tells, found = [], []
    for layer in range(model.n_layers):
        h, a, m = (x.float() for x in (trace.resid[layer], trace.attn_out[layer], trace.mlp_out[layer]))
        varies = (m - m.mean(-2, keepdim=True)).norm() > 1e-3 * m.norm()
        tells.append(varies & (a.norm(dim=-1) > plain * h.norm(dim=-1)).any())
    told = torch.stack(tells).tolist()
    for layer in (layer for layer, one in enumerate(told) if one):
        seen: list[Tensor] = []

        def see(added: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(added)
            return added

        model.run_block(trace, layer, trace.resid[layer], attn_edit=torch.zeros_like, mlp_edit=see)
        m = trace.mlp_out[layer].float()
        found.append((seen[0].float() - m).norm() / m.norm())
    moves = iter(torch.stack(found).tolist() if found else ())
    return tuple(next(moves) if one else None for one in told)


def short_prompt(model: LanguageModel) -> Int[Tensor, "1 pos"]:
    """A short text's tokens, no more than the model has positions for; evenly spread token ids where a tokenizer
    gives hardly any."""
    most = min(48, model.n_positions or 48)
    ids = model.encoder.ids(PROBE_TEXT)[:most]
    if len(set(ids)) < min(8, most):
        ids = [(7 * i + 3) % model.d_vocab for i in range(min(24, most))]
    return model.tensor(tuple(ids))


# ---------------------------------------------------------------- a device against the CPU

# Is a device to be believed? A short forward pass there against float32 on the CPU, block by block. MPS has been
# silently wrong before.
#
# Every block of the CPU's copy gets what entered the same block on the device, so rounding does not add up over the
# depth, and what is wrong is found where it happens. Masks, positions and embeddings are the CPU's own.

# A block rounds a dozen times: correct bf16 blocks were seen up to 1.8e-2, fp16 1.4e-3. int8 rounds its activations
# too.
DEVICE_LIMITS = {"fp32": 1e-4, "fp16": 8e-3, "bf16": 4e-2, "4bit": 4e-2, "int8": 8e-2}
_devices_passed: set[tuple[str, str, str]] = set()


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


def check_device(
    model: LanguageModel, always: bool = False, reference: Callable[[], LanguageModel] | None = None
) -> Sanity | None:
    """The check of a model that is not on the CPU; None where there is nothing to check, or (unless `always`) this
    process has seen the same family pass there in the same precision. `reference`: makes the float32 copy on the CPU of
    a model that no folder holds."""
    key = (str(model.device), model.architecture.family, model.spec.precision)
    if model.device.type == "cpu" or (key in _devices_passed and not always):
        return None
    if reason := _no_reference(model, reference is not None):
        return Sanity(unchecked=reason)
    plain = reference() if reference else _reference(model)
    found = compare_with_cpu(model.trace(short_prompt(model)), plain, model.spec.precision)
    if not found.failures():
        _devices_passed.add(key)
    return found


@torch.no_grad()
def compare_with_cpu(trace: Trace, reference: LanguageModel, precision: str) -> Sanity:
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
    embedding = _worst(_misses(home(trace.resid[0]), own.resid[0]))
    return Sanity(embedding, tuple(blocks), logits, DEVICE_LIMITS[precision])


def _worst(differences: Tensor) -> float:
    """The largest; what is not a number counts as infinite."""
    return float(differences.nan_to_num(nan=float("inf")).max())


def _no_reference(model: LanguageModel, given: bool) -> str:
    """Why there can be no float32 copy on the CPU, or ""."""
    ref = model.spec
    if not given and (not isinstance(ref, ModelRef) or ref.adapter or stored_precision(ref.config())):
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

    wanted = replace(ModelRef.of(model.spec), device="cpu", precision="fp32", offload="")
    found = load(wanted, model.architecture)
    plain = type(model)(found.hf, found.tokenizer, model.architecture, found.spec, found.encoder)
    for name, module in model.hf.named_modules():
        if type(module).__name__ in ("Linear4bit", "Linear8bitLt"):
            target = plain.hf.get_submodule(name).weight
            unpacked = quantized.weight(module).cpu()
            target.data = (
                unpacked if unpacked.shape == target.shape else unpacked.T.contiguous()
            )  # GPT-2 keeps its maps transposed
    return plain
