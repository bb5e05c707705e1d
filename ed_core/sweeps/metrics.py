"""Pure tensor maths behind the probes. Everything is upcast to float32 before it is measured, whatever dtype the model
runs in.

Sources: [C25] Csordás et al. 2025, arXiv 2505.13898; [H25] Hu et al. 2025, arXiv 2512.14064; ShortGPT, arXiv
2403.03853."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NORM_FLOOR = 1e-6  # below this a ratio's denominator counts as zero
COSINE_FLOOR = 1e-8


def norm(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Euclidean norm over the last axis, float32."""
    return x.float().norm(dim=-1)


def ratio(x: Float[Tensor, "*batch d"], reference: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """`|x| / max(|reference|, 1e-6)` per token: how large an addition is against what it is added to. Range 0…∞ [C25
    §3.1]."""
    return norm(x) / norm(reference).clamp_min(NORM_FLOOR)


def cosine(x: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Cosine similarity per token, each norm floored at 1e-8, clamped to [-1, 1]. 0 where either vector is zero."""
    x, y = x.float(), y.float()
    return ((x * y).sum(-1) / (norm(x).clamp_min(COSINE_FLOOR) * norm(y).clamp_min(COSINE_FLOOR))).clamp(-1, 1)


def kl(logp: Float[Tensor, "*batch v"], logq: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch"]:
    """Kullback–Leibler divergence `sum_v p (log p - log q)` in nats from log-probabilities. Range 0…∞.

    Summed as `p (x - 1 + exp(-x))` with `x = log p - log q`, whose terms are never negative (the added ones cancel, as
    both sum to one): near 0, where the plain sum is a difference of large terms, this keeps its digits."""
    x = logp - logq
    rest = torch.where(x < 0, -logq.exp() * torch.expm1(x.clamp_max(0)), logp.exp() * torch.expm1(-x.clamp_min(0)))
    return (logp.exp() * x + rest).sum(-1).clamp_min(0)


def jsd(logp: Float[Tensor, "*batch v"], logq: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch"]:
    """Jensen–Shannon divergence, base 2. Symmetric, range [0, 1]."""
    log_mean = torch.logaddexp(logp, logq) - math.log(2)
    return ((kl(logp, log_mean) + kl(logq, log_mean)) / (2 * math.log(2))).clamp(0, 1)


def entropy(logp: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch"]:
    """Shannon entropy in nats. Range [0, log V]."""
    return -(logp.exp() * logp).sum(-1)


def overlap(ids: Int[Tensor, "*batch k"], other: Int[Tensor, "*batch k"]) -> Float[Tensor, "*batch"]:
    """Share of the top-k entries two rankings have in common, whatever their order. Range [0, 1] [C25 §3.3]."""
    return (ids.unsqueeze(-1) == other.unsqueeze(-2)).any(-1).float().mean(-1)


def rank(logits: Float[Tensor, "*batch v"], target: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """Rank of `target`: 1 + the number of strictly greater logits, so ties share the better rank. Range 1…V."""
    return 1 + (logits > logits.gather(-1, target.unsqueeze(-1))).sum(-1)


def settle_depth(top1: Int[Tensor, "depth pos"]) -> Int[Tensor, " pos"]:
    """First depth from which the lens' top-1 equals the final one through to the last row. Range 0…L."""
    wrong = (top1 != top1[-1:]).int()
    still_wrong_later = wrong.flip(0).cummax(0).values.flip(0)
    return still_wrong_later.sum(0)


def relative_change(
    update: Float[Tensor, "#*batch pos d"],
    changed: Float[Tensor, "*batch pos d"],
    measured: Bool[Tensor, "*batch pos"],
) -> Float[Tensor, "*batch"]:
    """`max_t |D - D'| / max(|D|, 1e-6)` over the measured tokens: the effect of an intervention on a block's update
    [C25 §3.2]."""
    per_token = norm(update.float() - changed.float()) / norm(update).clamp_min(NORM_FLOOR)
    return per_token.masked_fill(~measured, -torch.inf).amax(-1)
