"""Where an answer is decided: one prompt's stream, carried into another prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import PromptError
from ..types import Encoding, MeasureSpec, ProbeResult, Prompt
from .base import Picture, Probe, Shape, parameter

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder


def _curve(name: str, meaning: str, title: str = "") -> MeasureSpec:
    """Return a measure by depth: a share of the gap between the two answers."""
    return MeasureSpec(name, ("depth",), "share of the gap", meaning, "mean", title=title)


@dataclass(frozen=True)
class Patching(Probe):
    """Two prompts with different answers run on one model. At one depth and one position the first prompt's residual is
    replaced by the other's, and the rest of the model runs as it is. With F the logit of the other answer less that of
    the prompt's own, where the answer is predicted, `patch = (F(patched) - F(prompt)) / (F(other) - F(prompt))`: 0
    where nothing is carried over, 1 where the whole answer is. It is undefined where the two differ by less than 0.1
    logits.

    The **commitment depth** is the first depth from which on patching the position that predicts the answer always
    makes the other answer the model's first choice. Below it the answer has yet to arrive at this position; from it on
    the answer is decided. `settle_depth` is its counterpart by reading: the first depth from which the logit lens on
    the other prompt, at the same position, stays on the other answer.

    Positions are aligned from the one that predicts the answer; those without a counterpart are empty. The answer is
    the first token of the given one, or the model's own first choice. F(prompt) is that of a row in which nothing is
    replaced, computed with the patches of its depth. Three controls there: the prompt's own residual (`self`,
    which has to be 0), a random vector of the other residual's length (`random`), and the other prompt's residual from
    the middle position (`elsewhere`).

    Source: residual swaps by depth as in arXiv 2510.18871; activation patching: Meng et al. 2022, arXiv 2202.05262."""

    other: Prompt | None = parameter(None, "the prompt that is carried in: text, or a JSON object", prompt=True)  # noqa: RUF009

    name: ClassVar[str] = "patching"
    title: ClassVar[str] = "Patch"
    thumbnail: ClassVar[tuple[int, str]] = (4, "patch")
    version: ClassVar[int] = 2  # 1 compared a patch with the traced pass
    min_tokens: ClassVar[int] = 2
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Patch",
            ("patch",),
            "share of the other answer that this token carries over at this depth",
            "Row l carries over the stream before layer l: 0 changes nothing, 1 is the other prompt's answer. Follow "
            "the orange cells from the token that differs\nup to the position that predicts the answer. Lines: from "
            "where on the other answer is decided there, and read there by the lens.",
            kind="patch",
        ),
    )
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "patch",
            ("depth", "pos"),
            "share of the gap",
            "share of the other answer that this token carries over at this depth",
        ),
        _curve("last", "the same at the position that predicts the answer", "Carried over"),
        _curve("self", "control: the prompt's own residual in its place", "Its own stream"),
        _curve("random", "control: a random vector of the other residual's length", "A random vector"),
        _curve("elsewhere", "control: the other prompt's residual from its middle position", "Another position's"),
        MeasureSpec(
            "decided",
            ("depth",),
            "0 or 1",
            "whether the other answer is the first choice when the position that predicts the answer is patched",
            "mean",
        ),
        MeasureSpec("gap", (), "logits", "F(other) - F(prompt), of which the shares are", "mean"),
        MeasureSpec("commitment", (), "depth", "first depth from which on the other answer is decided", "mean"),
        MeasureSpec(
            "settle_depth",
            (),
            "depth",
            "first depth from which the lens on the other prompt stays on its answer",
            "mean",
        ),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers + n_tokens * n_layers * (n_layers + 1) / 4, (n_tokens + 4) * (n_layers + 1)

    def holds(self, shape: Shape) -> int:
        return shape.in_pieces(4 * (shape.n_layers + 1)) + shape.stream * (shape.n_layers + 1)

    @classmethod
    def depths(cls, result: ProbeResult) -> dict[str, int | None]:
        """Return where the other answer is decided (`decided`) and where the other prompt's lens settles (`lens`);
        None: nowhere."""
        depths = {"decided": result["commitment"], "lens": result["settle_depth"]}
        return {name: int(depth) if np.isfinite(depth) else None for name, depth in depths.items()}

    def check(self, n_tokens: int, answer_start: int | None) -> None:
        """Raise `PromptError` for a prompt that is too short, or without another prompt."""
        super().check(n_tokens, answer_start)
        if self.other is None:
            raise PromptError("patching carries one prompt into another, and there is no other; give one (other=…).")

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..prompts import max_tokens
        from ..sweeps.replacing import patch_sweep

        assert self.other is not None  # refused by `check`
        patch_sweep(model, encoding, model.encode(self.other, max_tokens()), record)
