"""Integrated gradients, block by block from the top: only the blocks above an activation are run, and nodes are doubled
until they suffice.

The rule is the trapezoid's: doubling its intervals keeps every node already computed, and trained models have an
integrand sharp enough that evenly spread nodes beat Gauss' (which crowd at the ends). Both tests are needed: errors of
opposite sign cancel in the sum over tokens, so completeness alone stops too early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.identities import wide
from . import metrics

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..models.trace import Trace
    from ..types import Encoding
    from .recorder import Recorder

FIRST_INTERVALS = 8


def integrate(
    model: LanguageModel, encoding: Encoding, record: Recorder, part: str, nodes: int, tolerance: float
) -> None:
    """Fill `integrated_gradients`' measures, top block first: it is the cheapest. `nodes` at most; fewer where the
    completeness error and the change by doubling are below `tolerance`, as a share of the scale."""
    n_layers, n_tokens = model.n_layers, len(encoding)
    record.allocate("attribution", (n_layers, n_tokens))
    for name in ("completeness_error", "f_x", "f_baseline"):
        record.allocate(name, (n_layers,))
    record.allocate("nodes_used", (n_layers,))
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    assert encoding.answer_start is not None  # `integrated_gradients` refuses a prompt without an answer
    answer = metrics.on(model.device, encoding.ids[encoding.answer_start :])
    failed: list[int] = []
    moving: list[int] = []
    for layer in reversed(range(n_layers)):
        path = _Path(part, model, trace, layer, encoding.answer_start, answer, record)
        attribution, error, complete, still = path.integrate(nodes, tolerance)
        record.write("attribution", layer, attribution)
        record.write("completeness_error", layer, error)
        record.write("f_x", layer, path.values[1.0])
        record.write("f_baseline", layer, path.values[0.0])
        record.write("nodes_used", layer, len(path.values))
        if not complete:
            failed.append(layer)
        elif not still:
            moving.append(layer)
        above = n_layers - layer
        record.step(above * (above + 1) / (n_layers * (n_layers + 1)))
    if failed:
        record.note(
            f"The integral did not settle within {nodes} nodes at {_named(failed)}: attributions there are not to be "
            "relied on (see completeness_error)."
        )
    if moving:
        record.note(
            f"Within {nodes} nodes attributions at {_named(moving)} stay uncertain by more than {tolerance:.1%} of the "
            "largest, though their sum is right."
        )


def _named(layers: list[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, sorted(layers)))}"


class _Path:
    """The straight path from baseline (alpha = 0) to activation (alpha = 1) at one block; remembers every node."""

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
        x = {"layer": trace.resid[layer + 1], "attention": trace.attn_out[layer], "mlp": trace.mlp_out[layer]}[part][
            0
        ].float()
        self.baseline = x.mean(0, keepdim=True).expand_as(x)
        self.difference = x - self.baseline
        self.values: dict[float, Tensor] = {}  # alpha: F
        self.slopes: dict[float, Tensor] = {}  # alpha: sum_d (x - x0) dF/dx, per position

    def integrate(self, most_nodes: int, tolerance: float) -> tuple[Float[Tensor, " pos"], float, bool, bool]:
        """`(attribution, completeness error, whether that is small enough, whether the last doubling moved no
        attribution by more than is tolerated)`, doubling intervals until both are so or the nodes run out."""
        intervals = FIRST_INTERVALS
        before: Tensor | None = None
        while intervals > 2 and intervals + 1 > most_nodes:
            intervals //= 2
        while True:
            alphas = [i / intervals for i in range(intervals + 1)]
            self._evaluate([a for a in alphas if a not in self.values])
            weights = [(0.5 if a in (0.0, 1.0) else 1.0) / intervals for a in alphas]
            now = sum(w * self.slopes[a] for w, a in zip(weights, alphas))
            assert isinstance(now, Tensor)  # and no empty sum
            last = 2 * intervals + 1 > most_nodes
            if before is not None or last:  # the first is never enough, whatever it is
                moved = (now - (now if before is None else before)).abs().amax()
                figures = now.sum(), now.abs().amax(), moved, self.values[1.0], self.values[0.0]
                total, largest, moved_by, whole, baseline = torch.stack(figures).tolist()  # all the host asks for
                error = abs(total - (whole - baseline))
                complete = error <= tolerance * max(abs(whole - baseline), largest)
                still = before is not None and moved_by <= tolerance * largest
                if (complete and still) or last:
                    return now.float(), error, complete, still
            intervals, before = 2 * intervals, now

    def _evaluate(self, alphas: list[float]) -> None:
        """F and its slope along the path at new nodes, in chunks of bounded memory."""

        def work(nodes: slice) -> None:
            chunk = alphas[nodes]
            alpha = metrics.on(self.difference.device, chunk).view(-1, 1, 1)
            x = (self.baseline + alpha * self.difference).to(self.model.dtype).requires_grad_()
            value = self._f(x)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            slopes = (wide(gradient) * wide(self.difference)).sum(-1)
            self.values.update(zip(chunk, wide(value.detach())))
            self.slopes.update(zip(chunk, slopes))
            self.record.check()

        self.record.budget.run(len(alphas), self._at_once, work)

    def _at_once(self) -> int:
        """Nodes of one forward and backward pass: all blocks above keep what the way back needs."""
        n_tokens = len(self.difference)
        blocks = self.model.n_layers - self.layer
        logits = 16 * self.model.d_vocab * (self.read.stop - self.read.start) / n_tokens
        return self.record.budget.rows(n_tokens, blocks * self.model.call_bytes(n_tokens, gradients=True) + logits)

    def _f(self, x: Float[Tensor, "node pos d_model"]) -> Float[Tensor, " node"]:
        """Summed probability of the answer's tokens where the activation is `x`."""
        model, trace, resid = self.model, self.trace, x
        if self.part != "layer":
            entering = trace.resid[self.layer].expand_as(x)
            put = (lambda added: x, None) if self.part == "attention" else (None, lambda added: x)
            *_, resid = model.run_block(trace, self.layer, entering, *put)
        for layer in range(self.layer + 1, model.n_layers):
            *_, resid = model.run_block(trace, layer, resid)
        probabilities = model.unembed(resid[:, self.read]).softmax(-1)
        return probabilities.gather(-1, self.answer.expand(len(x), -1).unsqueeze(-1)).sum((-1, -2))
