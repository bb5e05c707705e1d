"""What the model loses when blocks are taken out for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import ParameterError
from ..types import MeasureSpec
from .base import Probe, Shape, parameter, rank_correlation

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder
    from ..types import Encoding


def _per_start(name: str, unit: str, meaning: str, low: float | None = 0.0, high: float | None = None) -> MeasureSpec:
    return MeasureSpec(name, ("start", "pos"), unit, meaning, low, high, reduce="token_mean")


def _per_token(name: str, unit: str, meaning: str, high: float | None = None) -> MeasureSpec:
    return MeasureSpec(name, ("pos",), unit, meaning, 0.0, high, reduce="token_mean")


PROXIES = ("block_influence", "angular_distance", "update_cosine")


@dataclass(frozen=True)
class Prune(Probe):
    """Every stretch of `n` consecutive layers is taken out in turn, on all tokens, and the change of the predictions is
    **measured**: the divergence from the whole model, the share of tokens whose best prediction stays, the log-loss on
    the text itself. Beside it stand the proxies by which layers are usually chosen: **block influence**, `1 - cos`
    between the stream before and after the stretch, the **angular distance** `arccos(cos) / pi`, and the **update's
    cosine** `cos(h[s+n] - h[s], h[s])`, for one layer the cosine criterion's `cos(D, h)`: above 0 the stretch
    strengthens what is there, which is taken for a sign that it can go. Whether a proxy ranks the stretches as the
    measurement does is shown as a rank correlation; it is known to be weak in places (a layer of low influence can be
    crucial).

    `drop` names any set of layers, measured beside the stretches.

    Source: block influence, Men et al. 2024 (ShortGPT); angular distance, Gromov et al. 2024 (there at the last
    token, here at every one too, and at those that are no sinks); the update's cosine, Hu et al. 2025; on the
    weakness of cosine, Hinostroza et al. 2026."""

    n: int = parameter(
        1, "how many consecutive layers are taken out together", low=1, high=256, label="Consecutive layers removed"
    )
    drop: tuple[int, ...] = parameter(
        (), "any set of layers to take out as well, like 5,6,9", empty="none", label="Any set of layers"
    )

    name: ClassVar[str] = "prune"
    title: ClassVar[str] = "Prune and exit"
    version: ClassVar[int] = 3  # 2: update_cosine; 3: the angle at the last token, and without sinks
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        _per_start("kl", "nats", "divergence from the whole model without this stretch: KL(whole || pruned)"),
        _per_start("top1_kept", "0 or 1", "whether the best prediction stays", 0.0, 1.0),
        _per_start("nll", "nats", "log-loss on the next token without this stretch; none at the last token"),
        _per_start(
            "block_influence", "1 - cosine", "how far the stretch turns the stream: 1 - cos(h[s], h[s+n])", 0.0, 2.0
        ),
        _per_start("angular_distance", "half turns", "the same as an angle: arccos(cos(h[s], h[s+n])) / pi", 0.0, 1.0),
        _per_start(
            "update_cosine", "cosine", "direction of what the stretch adds: cos(h[s+n] - h[s], h[s])", -1.0, 1.0
        ),
        MeasureSpec(
            "angular_distance_last",
            ("start",),
            "half turns",
            "the angle at the last token, by which Gromov et al. choose",
            0.0,
            1.0,
            "mean",
            since=3,
        ),
        MeasureSpec(
            "angular_distance_no_sinks",
            ("start", "pos"),
            "half turns",
            "the angle where the token is no sink",
            0.0,
            1.0,
            "token_mean",
            since=3,
        ),
        _per_token("nll_whole", "nats", "log-loss of the whole model on the next token"),
        _per_token("drop_kl", "nats", "divergence without the chosen set"),
        _per_token("drop_top1_kept", "0 or 1", "whether the best prediction stays without the chosen set", 1.0),
        _per_token("drop_nll", "nats", "log-loss on the next token without the chosen set"),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers + n_layers * (n_layers + 1) / 2, (n_layers + 2) * n_tokens

    def holds(self, shape: Shape) -> int:
        return min(
            shape.n_layers * shape.stream, max(shape.stream, shape.half)
        )  # else walked in pieces, of one row at least

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is made of `prune`'s aggregates, float32: `perplexity` per stretch, `perplexity_whole`,
        `drop_perplexity` where a set was chosen; `spearman_<proxy>` (and `spearman_top1_lost`) with the measured
        divergence, NaN where it is not defined; `cheapest`, the first block of the stretch whose removal changes the
        predictions least."""
        found: dict[str, float | np.ndarray] = {f"perplexity{s}": np.exp(curves[f"nll{s}"]) for s in ("", "_whole")}
        if "drop_nll" in curves:
            found["drop_perplexity"] = np.exp(curves["drop_nll"])
        for name, values in {**{name: curves[name] for name in PROXIES}, "top1_lost": 1 - curves["top1_kept"]}.items():
            correlation = rank_correlation(values, curves["kl"])
            found[f"spearman_{name}"] = np.nan if correlation is None else correlation
        found["cheapest"] = int(np.argmin(curves["kl"]))
        return {name: np.asarray(value, np.float32) for name, value in found.items()}

    def check_layers(self, n_layers: int) -> None:
        """Refuse stretches and sets that this model has no blocks for."""
        check_stretch(self.name, self.n, n_layers)
        wrong = [b for b in self.drop if not 0 <= b < n_layers]
        if wrong:
            raise ParameterError(f"prune.drop holds layer {wrong[0]}; this model's layers are 0 to {n_layers - 1}.")
        if len(set(self.drop)) == n_layers:
            raise ParameterError("prune.drop names every layer; leave at least one.")

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.dropping import drop_sweep

        self.check_layers(model.n_layers)
        drop_sweep(model, encoding, record, self.n, self.drop)


def check_stretch(probe: str, n: int, n_layers: int) -> None:
    """Refuse stretches that would leave no layer."""
    if n >= n_layers:
        raise ParameterError(f"{probe}.n is {n}; expected less than the model's {n_layers} layers.")
