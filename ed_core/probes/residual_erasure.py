"""How long information at one token is still needed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .. import untrusted
from ..errors import PromptError
from ..prompts import read_jsonl
from ..types import Encoding, MeasureSpec, ModelSpec, ProbeResult, Prompt, canonical_json
from .base import ANSWER_TOKENS, Curve, Picture, Probe, Score, Shape, depth_score, parameter

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder


@dataclass(frozen=True)
class ResidualErasure(Probe):
    """At one position and one depth the residual is replaced by the mean residual of that depth: everything this token
    carries is erased, everything later layers make of the other tokens stays. The effect is the change of the predicted
    distribution, where the answer is predicted or at all later tokens. Where it fades along a column, the token's
    information has been moved elsewhere or is no longer needed.

    The mean is taken over all tokens of all background prompts. At the last position there is nothing left to
    influence: with the answer as target its column is zero by construction, with later tokens as target it is not
    defined.

    Source: Csordás et al. 2025 §4 (background there: the first ten problems of GSM8K's test split).
    """

    target: str = parameter(
        "answer",
        "where the change is read: where the answer is predicted, or at all later tokens",
        choices={"answer": "the answer", "future": "later tokens"},
        label="Effect on",
    )
    background: str = parameter(
        "bundled",
        "prompts whose mean residual erases: 'bundled', or a .jsonl file",
        file=True,
        label="Background prompts",
    )

    name: ClassVar[str] = "residual_erasure"
    title: ClassVar[str] = "Erase"
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve(
            "effect_elsewhere",
            "Change of the prediction, at the token that matters most",
            "L2 of probabilities",
            "depth",
        ),
    )
    score: ClassVar[Score] = Score("the centre of the effect", "center_elsewhere")
    version: ClassVar[int] = 2  # 2: effect_elsewhere in the summary
    thumbnail: ClassVar[tuple[int, str]] = (5, "effect")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Erase",
            ("effect",),
            "change of the prediction when this token is erased at this depth",
            "Row l erases the stream before layer l. Where a column fades, that token's information has been moved "
            "elsewhere or is no longer\nneeded. The change is the L2 distance of two probability vectors: √2 = 1.41 at "
            "most, where each is sure of another token. A column\nthat glows on a sink (◆) may be damage to the sink.",
        ),
    )
    min_tokens: ClassVar[int] = 2
    derives_stacked: ClassVar[bool] = True
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "effect",
            ("depth", "pos"),
            "L2 of probabilities",
            "change of the prediction when this token is erased at this depth",
            "pos_max",
        ),
        MeasureSpec(
            "effect_elsewhere",
            ("depth", "pos"),
            "L2 of probabilities",
            "the same at every position but the one that predicts the answer's first token",
            "pos_max",
            aggregate_only=True,
        ),
    )

    def per_token(self, values: Mapping[str, np.ndarray], left_out: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Return `effect_elsewhere`: the effect, NaN at the `left_out` positions."""
        elsewhere = values["effect"].copy()
        elsewhere[:, list(left_out)] = np.nan
        return {"effect_elsewhere": elsewhere}

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return (
            n_layers + n_tokens * n_layers * (n_layers + 1) / 4,
            n_tokens * (n_layers + 1) * (ANSWER_TOKENS if self.target == "answer" else n_tokens / 2),
        )

    def holds(self, shape: Shape) -> int:
        return shape.in_pieces(4 * (shape.n_layers + 1))

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the depths where the effect, its largest over positions, is centred: `center`, `center_mean` for means
        over prompts, and `center_elsewhere` and `center_elsewhere_mean` for `effect_elsewhere`."""
        ends = [end for end in ("", "_mean", "_elsewhere", "_elsewhere_mean") if f"effect{end}" in curves]
        return {f"center{end}": np.asarray(depth_score(curves[f"effect{end}"]), np.float32) for end in ends}

    @classmethod
    def left_out(cls, result: ProbeResult) -> tuple[int, ...]:
        """Return the position that predicts the answer's first token; empty if the target is later tokens. Erasing
        there erases the prediction itself and would dominate every late row."""
        if dict(result.request.parameters).get("target", "answer") != "answer" or not result.answer_start:
            return ()
        return (result.answer_start - 1,)

    def background_prompts(self, model: ModelSpec) -> list[Prompt]:
        """Return the prompts that give the mean residual: those of the `background` file, or the first bundled prompt
        of every task and difficulty, in words or characters as the model reads them."""
        if self.background != "bundled":
            return read_jsonl(self.background)
        from ..models.bundled import load_prompts
        from ..models.ref import ModelRef

        first = {
            (p["task"], p["difficulty"]): p for p in reversed(load_prompts(ModelRef.of(model).reads)) if p["known"]
        }
        return [Prompt(p["text"], p["answer"]) for p in first.values()]

    def content_hash(self, parameter: str, model: ModelSpec) -> str:
        """Return the SHA-256 of the background prompts for this model."""
        if self.background != "bundled" and Path(self.background).is_file():
            return hashlib.sha256(untrusted.content(self.background, untrusted.PROMPTS)).hexdigest()
        identities = [p.identity() for p in self.background_prompts(model)]
        return hashlib.sha256(canonical_json(identities).encode()).hexdigest()

    def check(self, n_tokens: int, answer_start: int | None) -> None:
        """Raise `PromptError` for a prompt that is too short or lacks a needed answer."""
        super().check(n_tokens, answer_start)
        if self.target == "answer" and answer_start is None:
            raise PromptError(
                "residual_erasure reads the change where the answer is predicted, and there is no answer; give one, or "
                "choose the effect on later tokens (target=future)."
            )

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.replacing import erasure_sweep

        if model.between_passes:
            record.note(
                "Between two passes this model changes the stream: erasing replaces it after that change, as the next "
                "pass reads it, and the lens reads it before."
            )
        erasure_sweep(model, encoding, record, self.background_prompts(model.spec), self.target == "future")
