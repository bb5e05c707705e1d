"""Integrated gradients, block by block: only the blocks above an activation are run, and the path is divided where its
integrand is sharp.

Each piece of the path is integrated by Gauss-Kronrod quadrature with 7 and 15 nodes, whose difference says where to
divide next. Both tests of a block are needed: errors of opposite sign cancel in the sum over tokens, so completeness
alone stops too early, and one small difference proves nothing where all nodes of a piece miss the same peak."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.identities import to_float64
from ..models.language_model import LanguageModel
from ..models.layouts import PerRow, PerToken, Resid
from ..models.trace import Trace
from ..types import Encoding
from . import metrics
from .recorder import Recorder

# Nodes from the middle of [-1, 1] outwards, and their weights by Kronrod and by Gauss (QUADPACK, qk15)
QK15 = (
    (0.0, 0.2094821410847278, 0.4179591836734694),
    (0.2077849550078985, 0.2044329400752989, 0.0),
    (0.4058451513773972, 0.1903505780647854, 0.3818300505051189),
    (0.5860872354676911, 0.1690047266392679, 0.0),
    (0.7415311855993945, 0.1406532597159259, 0.2797053914892767),
    (0.8648644233597691, 0.1047900103222502, 0.0),
    (0.9491079123427585, 0.0630920926299786, 0.1294849661688697),
    (0.9914553711208126, 0.0229353220105292, 0.0),
)
HALF, KRONROD, GAUSS = zip(*QK15)
NODES = len(HALF) * 2 - 1  # of a piece
COARSE = 4  # every fourth block is computed first


def integrate(
    model: LanguageModel, encoding: Encoding, record: Recorder, part: str, nodes: int, tolerance: float
) -> None:
    """Fill the measures of the probe `integrated_gradients`, every fourth layer first and from the top down.

    `part`: "layer", "attention" or "mlp". `nodes`: at most per layer; fewer where the completeness error and the last
    change are below `tolerance`, a share of the scale."""
    n_layers = model.n_layers
    record.allocate("attribution", "completeness_error", "f_x", "f_baseline", "nodes_used")
    trace = record.traced(model, encoding)
    assert encoding.answer_start is not None  # `integrated_gradients` refuses a prompt without an answer
    answer = metrics.to_device(model.device, encoding.ids[encoding.answer_start :])
    failed: list[int] = []
    moving: list[int] = []
    above = 0  # blocks that were run above those that are done
    downwards = range(n_layers - 1, -1, -1)
    for layer in [*downwards[::COARSE], *(layer for i, layer in enumerate(downwards) if i % COARSE)]:
        path = _Path(part, model, trace, layer, encoding.answer_start, answer, record)
        attribution, error, complete, still = path.integrate(nodes, tolerance)
        record.write("attribution", layer, attribution)
        record.write("completeness_error", layer, error)
        record.write("f_x", layer, path.ends[0])
        record.write("f_baseline", layer, path.ends[1])
        record.write("nodes_used", layer, path.used)
        if not complete:
            failed.append(layer)
        elif not still:
            moving.append(layer)
        above += n_layers - layer
        record.step(2 * above / (n_layers * (n_layers + 1)))
    if failed:
        record.note(
            f"The integral did not settle within {nodes} nodes at {_named(failed)}: do not rely on attributions there "
            "(see completeness_error)."
        )
    if moving:
        record.note(
            f"Within {nodes} nodes attributions at {_named(moving)} stay uncertain by more than {tolerance:.1%} of the "
            "largest, though their sum is right."
        )


def _named(layers: list[int]) -> str:
    """Return the words for these layers (given from 0, shown from 1), such as "layers 3, 5"."""
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(str(layer + 1) for layer in sorted(layers))}"


class _Path:
    """The straight path from baseline (alpha = 0) to activation (alpha = 1) at one block.

    `ends`: F at the activation and at the baseline. `used`: nodes so far."""

    def __init__(
        self,
        part: str,
        model: LanguageModel,
        trace: Trace,
        layer: int,
        answer_start: int,
        answer: Tensor,
        record: Recorder,
    ):
        self.part, self.model, self.trace, self.layer, self.record = part, model, trace, layer, record
        self.read = slice(answer_start - 1, trace.ids.shape[1] - 1)  # logits here predict the answer's tokens
        self.answer = answer
        of = {"layer": trace.resid[layer + 1], "attention": trace.attn_out[layer], "mlp": trace.mlp_out[layer]}
        x = of[part][0].float()
        self.baseline = x.mean(0, keepdim=True).expand_as(x)
        self.difference = x - self.baseline
        self.ends, self.used = self._evaluate([1.0, 0.0])[0], 2
        self.pieces: dict[tuple[float, float], tuple[Tensor, Tensor]] = {}  # integral [pos], largest |K - G|

    def integrate(self, most_nodes: int, tolerance: float) -> tuple[PerToken, float, bool, bool]:
        """Return `(attribution, completeness error, complete, still)`. `complete`: the error is within the tolerance;
        `still`: the last division moved no attribution by more than that. Divides the path until both are true or the
        nodes run out."""
        self._add([(0.0, 1.0)])
        before: Tensor | None = None
        while True:
            now = sum(integral for integral, _ in self.pieces.values())
            assert isinstance(now, Tensor)  # and no empty sum
            moved = (now - (now if before is None else before)).abs().amax()
            figures = now.sum(), now.abs().amax(), moved, *self.ends
            total, largest, moved_by, f_end, baseline = torch.stack(figures).tolist()
            error = abs(total - (f_end - baseline))
            complete = error <= tolerance * max(abs(f_end - baseline), largest)
            still = before is not None and moved_by <= tolerance * largest
            if (complete and still) or self.used + 2 * NODES > most_nodes:
                return now.float(), error, complete, still
            before = now
            begin, end = max(self.pieces, key=lambda piece: float(self.pieces[piece][1]))
            del self.pieces[begin, end]
            self._add([(begin, (begin + end) / 2), ((begin + end) / 2, end)])

    def _add(self, pieces: list[tuple[float, float]]) -> None:
        """Integrate these pieces `(begin, end)` of the path, within [0, 1], and store each in `pieces`."""
        nodes_at = [*(-x for x in HALF[:0:-1]), *HALF]
        alphas = [(begin + end + x * (end - begin)) / 2 for begin, end in pieces for x in nodes_at]
        slopes = self._evaluate(alphas)[1].view(len(pieces), NODES, -1)
        kronrod, gauss = (
            torch.tensor([*w[:0:-1], *w], dtype=torch.float64, device=slopes.device) for w in (KRONROD, GAUSS)
        )
        for (begin, end), values in zip(pieces, slopes):
            half = (end - begin) / 2
            off = (half * (kronrod - gauss) @ values).abs().amax()
            self.pieces[begin, end] = half * kronrod @ values, off
        self.used += len(alphas)

    def _evaluate(self, alphas: list[float]) -> tuple[PerRow, Float[Tensor, "node pos"]]:
        """Return F at each alpha and its slope along the path at each position, `sum_d (x - x0) dF/dx`, in chunks of
        bounded memory."""
        evaluated: list[tuple[Tensor, Tensor]] = []

        def work(nodes: slice) -> None:
            alpha = metrics.to_device(self.difference.device, alphas[nodes]).view(-1, 1, 1)
            x = (self.baseline + alpha * self.difference).to(self.model.dtype).requires_grad_()
            value = self._f(x)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            evaluated.append((to_float64(value.detach()), (to_float64(gradient) * to_float64(self.difference)).sum(-1)))
            self.record.check()

        self.record.budget.run(len(alphas), self._at_once, work)
        values, slopes = zip(*evaluated)
        return torch.cat(values), torch.cat(slopes)

    def _at_once(self) -> int:
        """Return how many nodes one forward and backward pass may take within the memory budget."""
        n_tokens = len(self.difference)
        blocks = self.model.n_layers - self.layer
        logits = 16 * self.model.d_vocab * (self.read.stop - self.read.start) / n_tokens
        return self.record.budget.rows(n_tokens, blocks * self.model.call_bytes(n_tokens, gradients=True) + logits)

    def _f(self, x: Resid) -> PerRow:
        """Return F of each row: the summed probability of the answer's tokens if the activation is `x`."""
        model, trace, resid = self.model, self.trace, x
        if self.part != "layer":
            entering = trace.resid[self.layer].expand_as(x)
            put = (lambda added: x, None) if self.part == "attention" else (None, lambda added: x)
            *_, resid = model.run_block(trace, self.layer, entering, *put)
        for layer in range(self.layer + 1, model.n_layers):
            *_, resid = model.run_block(trace, layer, resid)
        probabilities = model.unembed(resid[:, self.read]).softmax(-1)
        return probabilities.gather(-1, self.answer.expand(len(x), -1).unsqueeze(-1)).sum((-1, -2))
