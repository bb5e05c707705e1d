"""Pure tensor maths behind the probes. Everything is upcast to float32 before it is measured, whatever dtype the model
runs in.

Sources: [C25] Csordás et al. 2025, arXiv 2505.13898; [H25] Hu et al. 2025, arXiv 2512.14064; ShortGPT, arXiv
2403.03853."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

if TYPE_CHECKING:  # not when it runs: these functions are shipped to a remote service without the rest
    from ..models.layouts import PerRow, PerToken, Rows, Stream

NORM_FLOOR = 1e-6  # below this a ratio's denominator counts as zero
COSINE_FLOOR = 1e-8
GROUP = 256  # ids whose largest logit is looked for first
PIECE_BYTES = {"cpu": 2 << 20}  # of logits measured at once: a few such tensors stay in its cache; elsewhere 256 MiB
SMALL_KL, SMALL_JSD = 0.05, 0.01  # below these a difference of entropies has lost the digits that `kl` and `jsd` keep
TINY = 1e-37  # a probability that has a logarithm, and weighs nothing


def norm(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Return the Euclidean norm over the last axis, float32."""
    length: Tensor = x.float().norm(dim=-1)
    return length


def ratio(x: Float[Tensor, "*batch d"], reference: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Return `|x| / max(|reference|, 1e-6)` per token: the size of an addition relative to what it is added to. Range
    0…∞ [C25 §3.1]."""
    return norm(x) / norm(reference).clamp_min(NORM_FLOOR)


def cosine(x: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Return the cosine similarity per token, each norm floored at 1e-8, in [-1, 1]. 0 where either vector is zero."""
    x, y = x.float(), y.float()
    return ((x * y).sum(-1) / (norm(x).clamp_min(COSINE_FLOOR) * norm(y).clamp_min(COSINE_FLOOR))).clamp(-1, 1)


def contributions(h: Stream, a: Stream, m: Stream, update: Stream, parallel: bool) -> dict[str, PerToken]:
    """Return one layer's values for the probe `contributions`, by measure. `h`: the layer's input; `a`, `m`: what
    attention and MLP add; `update`: what the layer adds. `parallel`: the MLP reads `h`, not `h + a` [C25 §3.1, H25]."""
    reads = h if parallel else h + a
    return {
        "attn_ratio": ratio(a, h),
        "mlp_ratio": ratio(m, reads),
        "layer_ratio": ratio(update, h),
        "attn_cos": cosine(a, h),
        "mlp_cos": cosine(m, reads),
        "layer_cos": cosine(update, h),
        "resid_norm": norm(h),
        "attn_norm": norm(a),
        "mlp_norm": norm(m),
    }


def log_probabilities(logits: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch v"]:
    """Return `logits - log sum_v exp(logits)`, float32. Unlike `torch.log_softmax`, which is 1e-5 off at 50 000 ids,
    this keeps float32's digits for any vocabulary size."""
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted.sub_(shifted.exp().sum(-1, keepdim=True).log())


def kl(logp: Float[Tensor, "*batch v"], logq: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch"]:
    """Return the Kullback–Leibler divergence `sum_v p (log p - log q)` in nats from log-probabilities. Range 0…∞.

    Summed as `p (x - 1 + exp(-x))` with `x = log p - log q`, whose terms are never negative (the added ones cancel, as
    both sum to one): near 0, where the plain sum is a difference of large terms, this keeps its digits."""
    p, q, x = logp.exp(), logq.exp(), logp - logq
    rest = torch.where(x < 0, -q, p) * torch.expm1(-x.abs())
    return (p * x + rest).sum(-1).clamp_min(0)


def jsd(logp: Float[Tensor, "*batch v"], logq: Float[Tensor, "*batch v"]) -> Float[Tensor, "*batch"]:
    """Return the Jensen–Shannon divergence in bits from log-probabilities. Symmetric, range [0, 1]."""
    log_mean = torch.logaddexp(logp, logq) - math.log(2)
    return ((kl(logp, log_mean) + kl(logq, log_mean)) / (2 * math.log(2))).clamp(0, 1)


def overlap(ids: Int[Tensor, "*batch k"], other: Int[Tensor, "*#batch k"]) -> Float[Tensor, "*batch"]:
    """Return the share of top-k ids that two rankings have in common, in any order. Range [0, 1] [C25 §3.3]."""
    return (ids.unsqueeze(-1) == other.unsqueeze(-2)).any(-1).float().mean(-1)


def best(logits: Rows, k: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """Return the k largest logits of each row, largest first, and their ids. Of equal logits the lowest id comes first,
    as for `argmax`; other ties come in any order.

    A large vocabulary is searched in groups of 256 ids: the k largest are in the k groups with the largest maxima, or
    among the last ids, which fill no group. One pass instead of a sort."""
    n_rows, d_vocab = logits.shape
    if d_vocab < 4 * k * GROUP:
        ids = _largest(logits, k)
        return logits.gather(-1, ids), ids
    n_ids = d_vocab - d_vocab % GROUP
    groups = _largest(logits[:, :n_ids].unflatten(-1, (-1, GROUP)).amax(-1), k).sort(-1).values
    within, last = (torch.arange(*ends, device=logits.device) for ends in ((GROUP,), (n_ids, d_vocab)))
    ids = torch.cat([(groups.unsqueeze(-1) * GROUP + within).flatten(1), last.expand(n_rows, -1)], -1)
    ids = ids.gather(-1, _largest(logits.gather(-1, ids), k))
    return logits.gather(-1, ids), ids


def _largest(values: Rows, k: int) -> Int[Tensor, "n k"]:
    """Return the indices of the k largest values of each row; of equal maxima the first index comes first."""
    return values.scatter(-1, values.argmax(-1, keepdim=True), torch.inf).topk(k).indices


def rank(logits: Float[Tensor, "*batch v"], target: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """Return the rank of `target`: 1 + the number of strictly greater logits, so ties share the better rank. A target
    with a NaN logit gets the last rank. Range 1…V."""
    not_above = (logits <= logits.gather(-1, target.unsqueeze(-1))).sum(-1)
    return (1 + logits.shape[-1] - not_above).clamp_max(logits.shape[-1])


def settle_depth(top1: Int[Tensor, "depth pos"]) -> Int[Tensor, " pos"]:
    """Return the first depth from which the lens's top-1 token stays the final one. Range 0…L."""
    wrong = (top1 != top1[-1:]).int()
    still_wrong_later = wrong.flip(0).cummax(0).values.flip(0)
    return still_wrong_later.sum(0)


def relative_change(
    update: Float[Tensor, "#*batch pos d"], changed: Float[Tensor, "*batch pos d"], measured: Bool[Tensor, "*batch pos"]
) -> Float[Tensor, "*batch"]:
    """Return the effect of an intervention on a layer's update, `max_t |D - D'| / max(|D|, 1e-6)` over the tokens that
    `measured` marks [C25 §3.2]."""
    per_token = norm(update.float() - changed.float()) / norm(update).clamp_min(NORM_FLOOR)
    return per_token.masked_fill(~measured, -torch.inf).amax(-1)


class AgainstOutput:
    """Compares rows of logits with the same rows of another distribution, the output q, in as few passes over the
    vocabulary as the formulas need.

    `out`: the logits of q, `[n, v]`, float32. `best`: the `k` largest of them and their ids, each `[n, k]`. `at_once`:
    how many times n rows are best measured in one call."""

    def __init__(self, out: Rows, k: int):
        self.out, self.k = out, k
        self.best = best(out, k)
        self.pieces, self.at_once = pieces(out), at_once(out)
        self.buffers = out.new_empty(4, self.pieces[0].stop, out.shape[1])
        self.shifted = out - self.best[0][:, :1]
        self.q = self.shifted.exp()
        z = _sum(self.q)
        self.log_z, times = z.log(), (1 / z).float()
        e_s = torch.cat([self._dot(self.q[part], self.shifted[part]) for part in self.pieces])
        self.mass, self.p_log_p = _scaled(z, e_s, times)
        self.q.mul_(times.unsqueeze(-1)).clamp_min_(TINY)

    def measure(self, logits: Rows) -> dict[str, Tensor]:
        """Return the figures of rows of logits, the n rows or several times n one after the other, by name. With p =
        softmax(logits), s = logits - max, e = exp(s), Z = sum_v e, so that log p = s - log Z, m = (p + q) / 2 and H(p)
        = -sum_v p log p:

        - `entropy` `[n]`, nats: `log Z - sum_v e s / Z`, which is H(p). Range [0, log V].
        - `kl` `[n]`, nats: `log Z' - sum_v e s' / Z - H(p)`, s' and Z' being those of q, which is sum_v p (log p - log
          q). Range 0…∞.
        - `jsd` `[n]`, bits: `(H(m) - (H(p) + H(q)) / 2) / log 2`. Range [0, 1].
        - `rank` `[n]`: 1 + the number of logits strictly greater than that of q's best id. Range 1…V.
        - `best`, `ids`, `[n, k]`: the k largest logits as log-probabilities, largest first, and their ids.

        Small `kl` and `jsd` come from the functions of those names, which keep digits near 0. Rows that are not finite
        are NaN but for rank, which is the last, and ids."""
        n = len(self.out)
        times = logits.unflatten(0, (-1, n)).split(self.at_once)
        if len(times[0]) * n > self.buffers.shape[1]:
            self.buffers = logits.new_empty(4, len(times[0]) * n, logits.shape[1])
        figures = [[self._piece(some[:, part], part) for part in self.pieces] for some in times]
        row = {
            name: torch.cat([torch.cat([piece[name] for piece in pieces], 1) for pieces in figures]).flatten(0, 1)
            for name in figures[0][0]
        }
        if logits is self.out:
            return row | {"kl": torch.zeros_like(row["kl"]), "jsd": torch.zeros_like(row["jsd"])}
        small = not_above(("kl", row["kl"], SMALL_KL), ("jsd", row["jsd"], SMALL_JSD))
        for name, careful in (("kl", kl), ("jsd", jsd)):
            for rows in small[name].split(self.buffers.shape[1]):
                row[name][rows] = careful(log_probabilities(logits[rows]), log_probabilities(self.out[rows % n]))
        return row

    def _piece(self, logits: Float[Tensor, "times n v"], part: slice) -> dict[str, Tensor]:
        """Return the figures of `measure` for some of the n rows, `[times, row]`, with small `kl` and `jsd` still
        inexact. `part`: the rows of q that these logits are compared with."""
        shifted, e, both, _ = self._room(logits)
        values, ids = (x.unflatten(0, logits.shape[:2]) for x in best(logits.flatten(0, 1), self.k))
        torch.sub(logits, values[..., :1], out=shifted)
        z = _sum(torch.exp(shifted, out=e))
        e_s, times = self._dot(e, shifted), (1 / z).float()
        entropy = z.log() - e_s / z
        kl = self.log_z[part] - self._dot(e, self.shifted[part]) / z - entropy
        mass, p_log_p = (a + b[part] for a, b in zip(_scaled(z, e_s, times), (self.mass, self.p_log_p)))
        torch.addcmul(self.q[part], e, times.unsqueeze(-1), out=both)  # p + q
        jsd = (p_log_p - self._dot(both, torch.log(both, out=shifted))) / (2 * math.log(2)) + mass / 2
        target = logits.gather(-1, self.best[1][part, :1].expand(len(logits), -1, -1))
        return {
            "kl": kl.float(),
            "jsd": jsd.clamp_max(1).float(),
            "entropy": entropy.clamp_min(0).float(),
            "rank": (1 + logits.shape[-1] - torch.le(logits, target, out=e).sum(-1).long()).clamp_max(logits.shape[-1]),
            "best": values - values[..., :1] - z.log().float().unsqueeze(-1),
            "ids": ids,
        }

    def _dot(self, x: Float[Tensor, "*rows v"], y: Float[Tensor, "*#rows v"]) -> Float[Tensor, "*rows"]:
        """Return `sum_v x y`, float64."""
        return _sum(torch.mul(x, y, out=self._room(x)[3]))

    def _room(self, x: Float[Tensor, "*rows v"]) -> Float[Tensor, "4 *rows v"]:
        """Return the four scratch buffers, cut to the shape of `x`."""
        return self.buffers[:, : x.shape[:-1].numel()].view(4, *x.shape)


class Changed(NamedTuple):
    """What a changed model's predictions lose against the whole model's, per token: loss and divergence (`kl`) in nats,
    and whether the best token is kept (see `AgainstModel.measures`)."""

    loss: Float[Tensor, " next"]
    kl: PerToken
    kept: PerToken


class AgainstModel:
    """Compares the predictions of changed models at some tokens with the whole model's, in as few passes over the
    vocabulary as the formulas need.

    `out`: the whole model's logits, `[n, v]`, float32. `targets`: the next tokens; the last of the n tokens may have
    none."""

    def __init__(self, out: Rows, targets: Int[Tensor, " next"]):
        self.targets, self.best = targets.unsqueeze(-1), out.argmax(-1, keepdim=True)
        self.logp = log_probabilities(out)
        self.p = self.logp.exp()
        self.pieces = pieces(out)
        self.buffers = out.new_empty(2, self.pieces[0].stop, out.shape[1])
        self.mass, self.p_log_p = (
            torch.cat(figures)
            for figures in zip(*[(_sum(self.p[part]), _sum(self.p[part] * self.logp[part])) for part in self.pieces])
        )

    def measures(self, changed: Sequence[Rows]) -> list[Changed]:
        """Return the losses of each changed model against the whole one. With q the changed model's distribution, s =
        logits - max and Z = sum_v exp(s):

        - loss `[next]`, nats: `log Z - s[next]`, which is -log q(next token), at the tokens that have a next one.
        - KL `[n]`, nats: `sum_v p log p - sum_v p s + log Z`, which is sum_v p (log p - log q), p being the whole
          model's. Range 0…∞. Where it is small it is taken by `kl`, which keeps its digits near 0.
        - kept `[n]`: 1 where the whole model's best token is among the best ones here, else 0."""
        parts = [zip(*[self._piece(logits[part], part) for part in self.pieces]) for logits in changed]
        figures = [Changed(torch.cat(loss), torch.cat(apart), torch.cat(kept)) for loss, apart, kept in parts]
        small = not_above(*((i, divergence, SMALL_KL) for i, (_, divergence, _) in enumerate(figures)))
        for i, (logits, (_, divergence, _)) in enumerate(zip(changed, figures)):
            for rows in small[i].split(self.pieces[0].stop):
                divergence[rows] = kl(self.logp[rows], log_probabilities(logits[rows]))
        return figures

    def _piece(self, logits: Rows, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss, KL and kept of some rows, `part`, of one changed model, with small KL still inexact."""
        shifted, other = self.buffers[:, : len(logits)]
        top, targets = logits.amax(-1, keepdim=True), self.targets[part]
        torch.sub(logits, top, out=shifted)
        shifted_next = shifted[: len(targets)].gather(-1, targets)[:, 0]
        log_z = _sum(torch.exp(shifted, out=other)).log()
        divergence = self.p_log_p[part] - _sum(torch.mul(self.p[part], shifted, out=other)) + self.mass[part] * log_z
        loss = (log_z[: len(targets)] - shifted_next).float()
        return loss, divergence.float(), (logits.gather(-1, self.best[part]) >= top)[:, 0].float()


def jsd_to_output(logits: Rows) -> tuple[PerRow, PerRow, Int[Tensor, " n"]]:
    """Return three figures of each row p = softmax(logits) at one position, the last row q being the output: the
    Jensen–Shannon divergence from q in bits, `(H((p + q) / 2) - (H(p) + H(q)) / 2) / log 2`, in [0, 1], about 1e-6 off
    and 0 for the last row; the largest probability; and its id."""
    q = log_probabilities(logits[-1:]).exp_().clamp_min_(TINY)
    q_log_q = _sum(q * q.log())
    figures, buffers = [], logits.new_empty(2, *logits[pieces(logits)[0]].shape)
    for part in pieces(logits):
        shifted, p = buffers[:, : len(logits[part])]
        top = logits[part].max(-1)
        torch.sub(logits[part], top.values.unsqueeze(-1), out=shifted)
        z = _sum(torch.exp(shifted, out=p))
        p_log_p = _sum(shifted.mul_(p)) / z - z.log()
        twice_m = torch.addcmul(q, p, (1 / z).float().unsqueeze(-1), out=p)
        m_log_m = _sum(torch.log(twice_m, out=shifted).mul_(twice_m)) / 2 - math.log(2)
        figures.append((((p_log_p + q_log_q) / 2 - m_log_m) / math.log(2), 1 / z, top.indices))
    jsd, largest, ids = (torch.cat(parts) for parts in zip(*figures))
    jsd[-1] = 0
    return jsd.clamp(0, 1).float(), largest.float(), ids


def not_above(*each: tuple[Hashable, PerRow, float]) -> dict[Hashable, Int[Tensor, " rows"]]:
    """Return for each (name, values, limit) the rows with values not above the limit, NaN included, by name; one
    transfer to the host for all."""
    above_limit = torch.stack([values > limit for _, values, limit in each]).cpu()
    return {
        name: to_device(values.device, (~above).nonzero()[:, 0]) for (name, values, _), above in zip(each, above_limit)
    }


def to_device(device: torch.device, values: Any) -> Tensor:
    """Return a tensor or numbers of the host copied to a device, without waiting for the copy."""
    return torch.as_tensor(values).to(device, non_blocking=True)


def pieces(logits: Rows) -> list[slice]:
    """Return slices that cover the rows of `logits`, of at most `piece_rows` rows each."""
    n_rows, most = len(logits), piece_rows(logits)
    return [slice(i, min(i + most, n_rows)) for i in range(0, n_rows, most)]


def at_once(logits: Rows) -> int:
    """Return how many batches of `len(logits)` rows to measure in one call: one on a CPU, more elsewhere, where each
    call has a fixed cost."""
    return 1 if logits.device.type == "cpu" else max(1, piece_rows(logits) // len(logits))


def piece_rows(logits: Rows) -> int:
    """Return how many rows of logits to measure at once: few enough for a CPU's cache, else for 256 MiB."""
    return max(1, PIECE_BYTES.get(logits.device.type, 256 << 20) // (4 * logits.shape[1]))


def _scaled(z: Tensor, e_s: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return `sum_v p` and `sum_v p log p` of p = times e, given z = sum_v e and e_s = sum_v e log e. Exact although
    `times` is rounded to float32, where p does not quite sum to one."""
    times = times.to(z.dtype)
    return times * z, times * e_s + times * z * times.log()


def _sum(x: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows"]:
    """Return the sum over the vocabulary: float32 over sixteen ids, float64 over the rest (where the device has it).
    Summing one number after the other in float32 would be 1e-5 off at 50 000 ids."""
    dtype = torch.float32 if x.device.type == "mps" else torch.float64
    size = x.shape[-1] - x.shape[-1] % 16
    few = x[..., :size].unflatten(-1, (16, size // 16)).sum(-2)
    return torch.cat([few, x[..., size:]], -1).sum(-1, dtype=dtype)
