"""What breaks when a layer is left out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import ParameterError
from ..types import Encoding, MeasureSpec
from .base import PARTS, Curve, Picture, Probe, Score, Shape, depth_score, layer_effect, parameter

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder


@dataclass(frozen=True)
class LayerSkip(Probe):
    """Layer s is skipped: what it would add to the stream is left out, and everything after it is computed again. The
    effect on a later layer l is how much that layer's own update changes, relative to its size, at the token where it
    changes most: 0 is unaffected, 1 is a change by as much as the update itself. The first token is never intervened
    on.

    **Effect on all tokens** (`mode=current`): skip on all tokens after the first, look at all tokens. **Effect on later
    tokens** (`mode=future`): skip only before a split point and look only from it on, so what is seen is whether later
    tokens *use* what the layer made: composition over tokens. Within a prompt the maximum over split points counts.
    `output` is the change of the predicted distribution. Nothing before the skipped layer can change: that triangle is
    zero by construction, and so is the diagonal of the effect on later tokens.

    The **direct** effect takes the skipped addition out of each later layer's original input on its own, so nothing in
    between passes the change on: what is left of the effect is what that layer reads of the skipped one itself.

    Source: Csordás et al. 2025 §3.2 (direct effects of attention or MLP alone are ours); top-1 agreement: Lad et al.
    2024."""

    mode: str = parameter(
        "current",
        "skip on all tokens and look at all of them, or skip before a split point and look only behind it",
        choices={"current": "all tokens", "future": "later tokens"},
        label="Effect on",
    )
    part: str = parameter("layer", "what is left out of the layer", choices=PARTS, label="Left out")
    boundaries: tuple[int, ...] = parameter(
        (),
        "for the effect on later tokens: first tokens looked at, like 8,16; auto samples them as the papers do",
        label="Split points",
    )
    n_boundaries: int = parameter(
        4,
        "for the effect on later tokens: how many split points auto samples",
        low=1,
        high=64,
        label="Split points sampled",
    )
    seed: int = parameter(123, "for the effect on later tokens: seed of that sample", low=0, label="Random seed")
    direct: bool = parameter(
        False,
        "measure the direct effect as well: each later layer on the original residual less what the skipped one added",
        label="Direct effect too",
    )

    name: ClassVar[str] = "layer_skip"
    title: ClassVar[str] = "Layer skip"
    first_page: ClassVar[bool] = True
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("layer_effect", "Effect on a later layer, on average", "relative change", "skipped layer"),
        Curve("output", "Change of the prediction", "L2 of probabilities", "skipped layer"),
    )
    score: ClassVar[Score] = Score("the depth score", "depth_score", of_layers=True)
    derives_stacked: ClassVar[bool] = True
    thumbnail: ClassVar[tuple[int, str]] = (2, "effect")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Layer skip",
            ("effect",),
            "row left out, column affected",
            "Bright cells along a row: these layers build on the skipped one. The triangle above the diagonal is zero "
            "by construction.\nIn Csordás et al. 2025 layers of the second half influence each other far less; they "
            "take it that these refine side by side.\nColours are logarithmic; ringed cells lie beyond them: hover "
            "tells their value. The output's change is the L2 distance of two probability vectors: √2 = 1.41 at "
            "most,\nwhere each is sure of another token.",
            kind="skips",
        ),
        Picture(
            "Layer skip, direct effect",
            ("effect_direct",),
            "nothing in between passes the change on",
            "Bright here: the layer reads what the skipped one adds. Bright above and dark here: the effect comes "
            "through the layers between.",
            kind="skips",
        ),
        Picture(
            "Layer skip, output",
            ("output", "top1_kept"),
            "change of the prediction, and share of tokens whose first choice stays",
            kind="output",
        ),
    )
    version: ClassVar[int] = 2  # 1 counted a best token that ties with another as lost
    min_tokens: ClassVar[int] = 2
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "effect",
            ("skipped", "layer"),
            "relative change",
            "change of a layer's update when an earlier one is skipped",
            "max",
        ),
        MeasureSpec(
            "effect_direct",
            ("skipped", "layer"),
            "relative change",
            "change of a layer's update when one addition is taken out of its input only",
            "max",
        ),
        MeasureSpec(
            "output",
            ("skipped",),
            "L2 of probabilities",
            "change of the predicted distribution",
            "max",
            title="Layer skip: change of the prediction",
        ),
        MeasureSpec("top1_kept", ("skipped",), "share", "share of tokens whose best prediction stays", "mean"),
        MeasureSpec(
            "output_pos",
            ("skipped", "pos"),
            "L2 of probabilities",
            "which token's prediction changes (effect on all tokens)",
        ),
        MeasureSpec(
            "noise_floor", ("layer",), "relative change", "what an intervention that does nothing would read", "max"
        ),
        MeasureSpec(
            "boundaries", ("boundary",), "token", "first token looked at (effect on later tokens)", dtype="int32"
        ),
        MeasureSpec(
            "effect_by_boundary", ("boundary", "skipped", "layer"), "relative change", "effect for each split point"
        ),
        MeasureSpec(
            "output_by_boundary", ("boundary", "skipped"), "L2 of probabilities", "output change for each split point"
        ),
    )

    def chosen_boundaries(self, n_tokens: int) -> list[int]:
        """Return the split points (token positions from 0): the given `boundaries`, else `n_boundaries` drawn with the
        seed from `range(8, n_tokens - 4, 8)`. Raises `ParameterError` for one outside the prompt."""
        if self.boundaries:
            wrong = [b for b in self.boundaries if not 1 < b < n_tokens]
            if wrong:
                among = f"tokens between 2 and {n_tokens - 1}" if n_tokens > 3 else "token 2"
                what = (
                    f"expected {among} for this prompt" if n_tokens > 2 else "a prompt of 2 tokens has no split point"
                )
                raise ParameterError(f"layer_skip.boundaries holds {wrong[0]}; {what}.")
            return list(self.boundaries)
        random_boundaries = list(range(8, n_tokens - 4, 8))
        random.Random(self.seed).shuffle(random_boundaries)
        return random_boundaries[: self.n_boundaries]

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        variants = self._n_points(n_tokens) * n_layers
        later = variants * (n_layers - 1) / 2
        own = variants * (self.part != "layer")
        looked_at = variants / (1 if self.mode == "current" else 2)
        return 2 * n_layers + later * (1 + self.direct) + own, (looked_at + 2) * n_tokens

    def holds(self, shape: Shape) -> int:
        return shape.in_pieces(self._n_points(shape.n_tokens) * shape.n_layers + 1)

    def _n_points(self, n_tokens: int) -> int:
        """Return the number of variants of each skipped layer: one, or one per split point."""
        if self.mode == "current":
            return 1
        return len(self.boundaries) or min(self.n_boundaries, len(range(8, n_tokens - 4, 8)))

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return `layer_effect`, each layer's mean effect on later layers; `depth_score`, where that is centred; and
        `depth_score_output`, where the output change is centred (Csordás et al. 2025 §5). Suffix `_mean`: from means
        over prompts instead of maxima."""
        derived: dict[str, float | np.ndarray] = {}
        for suffix in ("", "_mean"):
            if f"effect{suffix}" in curves:
                e = layer_effect(curves[f"effect{suffix}"])
                derived |= {f"layer_effect{suffix}": e, f"depth_score{suffix}": depth_score(e)}
                derived[f"depth_score_output{suffix}"] = depth_score(curves[f"output{suffix}"])
        return {name: np.asarray(value, np.float32) for name, value in derived.items()}

    def check(self, n_tokens: int, answer_start: int | None) -> None:
        """Raise an error for a prompt that is too short or lacks a given split point."""
        super().check(n_tokens, answer_start)
        if self.mode == "future":
            self.chosen_boundaries(n_tokens)

    def check_idle(self) -> None:
        """Raise `ParameterError` if split points are configured while the effect is on all tokens."""
        idle = [name for name in ("boundaries", "n_boundaries", "seed") if name in self.settings()]
        if self.mode == "current" and idle:
            raise ParameterError(f"layer_skip.{idle[0]} counts with layer_skip.mode=future alone; give both, or none.")

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.skipping import skip_sweep

        boundaries = self.chosen_boundaries(len(encoding)) if self.mode == "future" else None
        skip_sweep(model, encoding, record, boundaries, self.part, self.direct)
