"""How exactly the sums hold on this very prompt, and what of their error is rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import Encoding, MeasureSpec
from .base import Picture, Probe, Shape

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..models.trace import Trace
    from ..sweeps.recorder import Recorder

KEPT = 32  # last positions whose logits are compared: the logits of all of them need not exist together


def _logits(name: str, meaning: str) -> MeasureSpec:
    """Return a measure of logit errors over the last `KEPT` tokens, relative to the largest logit."""
    return MeasureSpec(name, (), "relative to the largest logit", f"{meaning}; over the last {KEPT} tokens", "max")


@dataclass(frozen=True)
class Numerics(Probe):
    """Every curve here rests on one sum: what enters a layer, plus what attention adds, plus what the MLP adds, is what
    leaves it. This measures how exactly that holds on **your** prompt, layer by layer and token by token, in the
    precision the model runs in.

    The **error** (`miss`) is `|h + a + m - h_next|` over the largest of the four norms, taken in float64; **rounding**
    is the most that two additions rounded to the stream's dtype can be off, whatever their order: half a rounding step
    of the partial sum and half a step of the result. An error within it is arithmetic; an error beyond it is a term
    that is not read.
    **slope** regresses what the stream moved by on what was read: 1, or something is scaled on the way; it is not given
    where a branch is below rounding. **closure**, **replay**, **detour** and
    **suffix** compare logits: of the last residual unembedded, of layers called by hand, of another stream sent through
    both, and of the second half of the prompt alone. **resid_norm** shows whether the first token is an attention sink.
    """

    name: ClassVar[str] = "numerics"
    title: ClassVar[str] = "Sanity checks"
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Error of every layer's sum",
            ("miss",),
            "relative to the longest of its parts, token by token",
            kind="errors",
        ),
        Picture(
            "Error against rounding",
            ("rounding",),
            "largest of each layer, with the limit from which a model is refused",
            kind="error curves",
        ),
        Picture("Slopes", ("slope_attn", "slope_mlp"), "what the stream moves per unit that is read", kind="slopes"),
        Picture("Length of the stream", ("resid_norm",), "first token against the others", kind="first token"),
    )
    min_tokens: ClassVar[int] = 2
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "miss",
            ("layer", "pos"),
            "relative",
            "|h + a + m - h_next| over the largest of the four norms, in float64",
            "pos_max",
        ),
        MeasureSpec(
            "rounding",
            ("layer", "pos"),
            "relative",
            "the most that rounding to the stream's dtype can be off by, as the error",
            "pos_max",
        ),
        MeasureSpec(
            "slope_attn",
            ("layer",),
            "slope",
            "by how much the stream moves per unit that attention is read to add",
            "mean",
        ),
        MeasureSpec(
            "slope_mlp",
            ("layer",),
            "slope",
            "by how much the stream moves per unit that the MLP is read to add",
            "mean",
        ),
        _logits("closure", "the last residual unembedded, against the model's own logits"),
        _logits("replay", "layers called by hand, 1 and 3 rows, against the model's own logits of as many"),
        _logits("detour", "another stream at layer 0, by hand against the model itself"),
        _logits(
            "suffix",
            "the second half of the prompt replayed alone; empty where the family's layers cannot be called so",
        ),
        MeasureSpec("resid_norm", ("depth", "pos"), "norm", "length of the residual stream |h|", "token_mean"),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        """Return estimated block passes and unembedded positions of trace and replays."""
        return 11 * n_layers, n_tokens + 12 * min(KEPT, n_tokens)

    def holds(self, shape: Shape) -> int:
        return 10 * shape.doubles  # a block's tensors

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..models import identities, verify

        n_layers = model.n_layers
        record.allocate(*record.specs)
        limits = identities.MISS_LIMIT[model.dtype], identities.SLOPE_LIMIT[model.dtype]
        halves = identities.suffix_limit(model.dtype, n_layers)
        record.provenance["limits"] = {"miss": limits[0], "slope": limits[1], "suffix": halves}

        def measure(layer: int, trace: Trace) -> None:
            record.write("resid_norm", layer, identities.to_float64(trace.resid[layer][0]).norm(dim=-1))
            if layer:
                _block(model, trace, layer - 1, limits[1], record)
            record.step(0.5 * (layer + 1) / n_layers)

        ids = model.tensor(encoding)
        trace = model.trace(ids, on_block=measure, keep=KEPT)
        _block(model, trace, n_layers - 1, limits[1], record)
        record.write("resid_norm", n_layers, identities.to_float64(trace.resid[-1][0]).norm(dim=-1))
        assert trace.logits is not None
        untouched = trace.logits[:, -KEPT:]
        replay, detour = verify.replay_by_hand(model, trace, untouched)
        record.step(0.8)
        suffix = verify.suffix_by_hand(model, trace, untouched)
        closure = verify.relative(model.unembed(trace.resid[-1][:, -KEPT:]), untouched)
        figures = {
            "closure": closure,
            "replay": max(replay.values()),
            "detour": detour,
            "suffix": math.nan if suffix is None else suffix,
        }
        for name, value in figures.items():
            record.write(name, (), value)


def _block(model: LanguageModel, trace: Trace, layer: int, slope_limit: float, record: Recorder) -> None:
    """Write one layer's sum error (`miss`), rounding bound and slopes to `record`; the trace must have the layer's
    output. `slope_limit`: a slope with a rounding error above a quarter of this becomes NaN."""
    from ..models import identities

    parts = (trace.resid[layer], trace.attn_out[layer], trace.mlp_out[layer], trace.after(layer + 1))
    other = trace.other_out[layer]
    h, a, m, after = (identities.to_float64(x[0]) for x in parts)
    more = None if other is None else identities.to_float64(other[0])
    record.write("miss", layer, identities.miss(h, a, m, after, more))
    record.write("rounding", layer, identities.rounding(h, a, m, after, more, dtype=model.dtype))
    slopes = identities.slopes(*parts, limit=slope_limit, other=other)
    for name, slope in zip(("slope_attn", "slope_mlp"), slopes):
        record.write(name, layer, math.nan if slope is None else slope)
