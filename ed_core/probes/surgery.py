"""What becomes of the model when layers are taken out for good, left out, exchanged or run twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import ParameterError
from ..types import Encoding, MeasureSpec
from .base import Curve, Probe, Score, Shape, depth_score, parameter, rank_correlation

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder


def _per_start(name: str, unit: str, meaning: str) -> MeasureSpec:
    """Return a measure by a stretch's first layer and token, averaged over tokens in aggregates."""
    return MeasureSpec(name, ("start", "pos"), unit, meaning, "token_mean")


def _per_token(name: str, unit: str, meaning: str) -> MeasureSpec:
    """Return a measure by token, averaged over tokens in aggregates."""
    return MeasureSpec(name, ("pos",), unit, meaning, "token_mean")


PROXIES = ("block_influence", "angular_distance", "update_cosine")


@dataclass(frozen=True)
class Prune(Probe):
    """Every stretch of `n` consecutive layers is taken out in turn, on all tokens, and the change of the predictions is
    **measured**: the divergence from the whole model, the share of tokens whose best prediction stays, the log-loss on
    the text itself. Next to it are the proxies by which layers are usually chosen: **block influence**, `1 - cos`
    between the stream before and after the stretch, the **angular distance** `arccos(cos) / pi`, and the **update's
    cosine** `cos(h[s+n] - h[s], h[s])`, for one layer the cosine criterion's `cos(D, h)`: above 0 the stretch
    strengthens what is there, which is taken for a sign that it can go. Whether a proxy ranks the stretches as the
    measurement does is shown as a rank correlation; it is known to be weak in places (a layer of low influence can be
    crucial).

    `drop` names any set of layers, measured next to the stretches.

    Source: block influence, Men et al. 2024 (ShortGPT); angular distance, Gromov et al. 2024 (there at the last
    token, here at every one too, and at those that are no sinks); the update's cosine, Hu et al. 2025; on the
    weakness of cosine, Hinostroza et al. 2026."""

    n: int = parameter(
        1, "how many consecutive layers are taken out together", low=1, high=256, label="Consecutive layers removed"
    )
    drop: tuple[int, ...] = parameter(
        (),
        "any set of layers to take out as well, like 5,6,9",
        empty="none",
        label="Any set of layers, counted from 0 as in code",
    )

    name: ClassVar[str] = "prune"
    title: ClassVar[str] = "Prune"
    version: ClassVar[int] = 3  # 2: update_cosine; 3: the angle at the last token, and without sinks
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        _per_start("kl", "nats", "divergence from the whole model without this stretch: KL(whole || pruned)"),
        _per_start("top1_kept", "0 or 1", "whether the best prediction stays"),
        _per_start("nll", "nats", "log-loss on the next token without this stretch; none at the last token"),
        _per_start("block_influence", "1 - cosine", "how far the stretch turns the stream: 1 - cos(h[s], h[s+n])"),
        _per_start("angular_distance", "half turns", "the same as an angle: arccos(cos(h[s], h[s+n])) / pi"),
        _per_start("update_cosine", "cosine", "direction of what the stretch adds: cos(h[s+n] - h[s], h[s])"),
        MeasureSpec(
            "angular_distance_last",
            ("start",),
            "half turns",
            "the angle at the last token, by which Gromov et al. choose",
            "mean",
        ),
        MeasureSpec(
            "angular_distance_no_sinks",
            ("start", "pos"),
            "half turns",
            "the angle where the token is no sink",
            "token_mean",
        ),
        _per_token("nll_whole", "nats", "log-loss of the whole model on the next token"),
        _per_token("drop_kl", "nats", "divergence without the chosen set"),
        _per_token("drop_top1_kept", "0 or 1", "whether the best prediction stays without the chosen set"),
        _per_token("drop_nll", "nats", "log-loss on the next token without the chosen set"),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers + n_layers * (n_layers + 1) / 2, (n_layers + 2) * n_tokens

    def holds(self, shape: Shape) -> int:
        return shape.in_pieces(shape.n_layers)

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return numbers computed from `prune`'s aggregates, float32, by name: `perplexity` per stretch,
        `perplexity_whole`, and `drop_perplexity` if a set was chosen; `spearman_<proxy>` and `spearman_top1_lost`, rank
        correlations with the measured divergence, NaN where undefined; `cheapest`, the first layer (from 0) of the
        stretch with the smallest divergence, NaN where none is finite."""
        derived: dict[str, float | np.ndarray] = {f"perplexity{s}": np.exp(curves[f"nll{s}"]) for s in ("", "_whole")}
        if "drop_nll" in curves:
            derived["drop_perplexity"] = np.exp(curves["drop_nll"])
        for name, values in {**{name: curves[name] for name in PROXIES}, "top1_lost": 1 - curves["top1_kept"]}.items():
            correlation = rank_correlation(values, curves["kl"])
            derived[f"spearman_{name}"] = np.nan if correlation is None else correlation
        kl = np.where(np.isfinite(curves["kl"]), curves["kl"], np.inf)
        derived["cheapest"] = int(kl.argmin()) if np.isfinite(kl).any() else np.nan
        return {name: np.asarray(value, np.float32) for name, value in derived.items()}

    def check_layers(self, n_layers: int) -> None:
        """Raise `ParameterError` if `n` or `drop` does not fit a model of `n_layers` layers."""
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
    """Raise `ParameterError` if removing `n` layers would leave none of `n_layers`. `probe`: the probe's name, for the
    message."""
    if n >= n_layers:
        count = f"{n_layers} layer{'s' * (n_layers > 1)}"
        raise ParameterError(f"{probe}.n is {n}; expected less than the model's {count}.")


MAPS: dict[str, tuple[tuple[str, ...], str]] = {  # kind: its axes, and what is done in the words of a meaning
    "drop": (("start", "stop"), "without layers start to stop - 1"),
    "swap": (("layer", "other"), "with the two layers exchanged"),
    "repeat": (("start", "stop"), "with layers start to stop - 1 run twice"),
    "random": (("length",), "with one layer, drawn at random, run so many times more (length counts from 0)"),
}
FIGURES: dict[str, tuple[str, str, str]] = {  # measure: unit, what it is, how it is put together
    "loss": ("nats", "mean loss -log p(next token)", "next_mean"),
    "kl": ("nats", "mean divergence from the whole model, KL(whole || changed),", "token_mean"),
    "top1_kept": ("share", "share of tokens whose best prediction stays", "token_mean"),
}


def _measures() -> Iterator[MeasureSpec]:
    """Yield loss, divergence and best tokens kept for each kind of change in `MAPS`."""
    for kind, (dims, what) in MAPS.items():
        for name, (unit, meaning, reduce) in FIGURES.items():
            yield MeasureSpec(f"{kind}_{name}", dims, unit, f"{meaning} {what}", reduce)


def _proxy(name: str, unit: str, meaning: str) -> MeasureSpec:
    """Return a measure by a stretch's start and stop, averaged over tokens."""
    return MeasureSpec(name, ("start", "stop"), unit, meaning, "token_mean")


@dataclass(frozen=True)
class Surgery(Probe):
    """The layers are left out, exchanged or run twice, on all tokens, and what the model then says is **measured**: the
    mean loss on the text itself, the divergence `KL(whole || changed)`, and the share of tokens whose best prediction
    stays.

    - **Without a stretch**: layers `i` to `j - 1` are left out; what entered layer `i` enters layer `j`.
    - **Two exchanged**: layers `i` and `j` change places, where they are of one kind (attention windows, mixture of
      experts and shapes agree). The permutation score is `|loss - loss'| / loss`.
    - **A stretch twice**: layers `i` to `j - 1` run once more on their own output, without any training. Each pass
      computes its own keys and values. Its control: as many further passes through one layer drawn at random, another
      draw for every length.

    A value that is not finite (a changed model can overflow) is left empty.

    Source: exchange, arXiv 2603.15389 and Lad et al. 2024 (2406.19384); leaving stretches out, Gromov et al. 2024
    (2403.17887); repeats are a practice of the community, 2024 to 2026. Proxies as on *Prune*."""

    kind: str = parameter(
        "all",
        "which maps are measured",
        choices={"all": "all three", "drop": "without a stretch", "swap": "two exchanged", "repeat": "a stretch twice"},
        label="Maps",
    )
    longest: int = parameter(
        0, "longest stretch, and farthest exchange, in layers; 0: any", low=0, high=256, label="Longest stretch"
    )
    seed: int = parameter(
        0, "of the layers that are run at random, the control of the repeats", low=0, label="Random seed"
    )

    name: ClassVar[str] = "surgery"
    title: ClassVar[str] = "Surgery"
    min_tokens: ClassVar[int] = 2
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("kl_without", "Divergence without one layer", "nats"),
        Curve("kl_twice", "Divergence with one layer run twice", "nats"),
    )
    score: ClassVar[Score] = Score("the centre of the divergence", "center", of_layers=True)
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        *_measures(),
        MeasureSpec("loss_whole", (), "nats", "mean loss of the whole model", "next_mean"),
        _proxy("block_influence", "1 - cosine", "how far a stretch turns the stream: 1 - cos(h[i], h[j])"),
        _proxy("angular_distance", "half turns", "the same as an angle: arccos(cos(h[i], h[j])) / pi"),
        _proxy("update_cosine", "cosine", "direction of what a stretch adds: cos(h[j] - h[i], h[i])"),
        MeasureSpec(
            "random_layer", ("length",), "layer", "which layer was run at random (length counts from 0)", dtype="int32"
        ),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        counts = [self._counts(n_layers)[kind] for kind in self.kinds]
        passes, read = n_layers + sum(p for p, _ in counts), n_tokens * sum(1 + n for _, n in counts)
        return passes, read + n_tokens

    def holds(self, shape: Shape) -> int:
        return shape.in_pieces(max(self._counts(shape.n_layers)[kind][1] for kind in self.kinds))

    def _counts(self, n_layers: int) -> dict[str, tuple[float, int]]:
        """Return for each kind of change the passes through one layer and the number of variants.

        For each length n (of an exchange: distance) stretches begin at 0 .. L - n; those dropped enter at their end,
        the others at their beginning. The random layer of a repeat's control is counted as the middle one."""
        last, lengths = n_layers, range(1, min(self.longest or n_layers, n_layers) + 1)
        every = last * (last + 1)
        return {
            "drop": (sum((last - n) * (last - n + 1) / 2 for n in lengths), sum(last - n + 1 for n in lengths)),
            "swap": (sum((every - n * (n + 1)) / 2 for n in lengths), sum(last - n for n in lengths)),
            "repeat": (
                sum((every - n * (n - 1)) / 2 + n + (last - 1) / 2 for n in lengths),
                sum(last - n + 2 for n in lengths),
            ),
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of change to measure, of "drop", "swap" and "repeat"."""
        return ("drop", "swap", "repeat") if self.kind == "all" else (self.kind,)

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.surgery import surgery_sweep

        surgery_sweep(model, encoding, record, self.kinds, self.longest or model.n_layers, self.seed)

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return numbers computed from `surgery`'s aggregates, float32, by name: the divergence without one layer,
        `kl_without` `[layer]`, and with one run twice, `kl_twice`, NaN where not measured; `center`, the layer where
        the first is centred; `swap_score` `[layer, other]`, `|loss - loss'| / loss` of every exchange."""
        n_layers = len(curves["block_influence"])
        derived: dict[str, float | np.ndarray] = {}
        for name, kind in (("kl_without", "drop"), ("kl_twice", "repeat")):
            stretches = curves.get(f"{kind}_kl", np.full((n_layers, n_layers + 1), np.nan))
            derived[name] = np.diagonal(stretches, 1)
        derived["center"] = depth_score(derived["kl_without"])
        if "swap_loss" in curves:
            derived["swap_score"] = np.abs(curves["loss_whole"] - curves["swap_loss"]) / curves["loss_whole"]
        return {name: np.asarray(values, np.float32) for name, values in derived.items()}


def stretches(order: Sequence[int]) -> list[Sequence[int]]:
    """Return an order of layers split into the fewest runs of consecutive numbers: [0, 1, 4] into [0, 1] and [4]."""
    breaks = [i for i in range(1, len(order)) if order[i] != order[i - 1] + 1]
    return [order[i:j] for i, j in pairwise([0, *breaks, len(order)])] if order else []
