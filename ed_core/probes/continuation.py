"""What the model itself would write next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import MeasureSpec
from .base import Probe, parameter
from .description import Picture, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder
    from ..types import Encoding

TYPICAL_TOKENS = 16  # what an estimate counts with


@dataclass(frozen=True)
class Continuation(Probe):
    """The model's own greedy continuation of the question (the answer, where one is given, is left out), with the best
    k tokens at each step and their probabilities. It tells whether the model knows what the curves are read for; a
    longer answer is continued to its end."""

    n_tokens: int = parameter(8, "tokens to continue for, at least", low=1, high=64, label="Tokens continued")
    k: int = parameter(5, "best tokens listed at each step", low=1, high=20, label="Best tokens listed")

    name: ClassVar[str] = "continuation"
    title: ClassVar[str] = "Continuation"
    first_page: ClassVar[bool] = True
    traces: ClassVar[bool] = False
    further_tokens: ClassVar[int] = TYPICAL_TOKENS - 1
    pictures: ClassVar[tuple[Picture, ...]] = ()  # words
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec("ids", ("step",), "token id", "the greedy continuation", dtype="int32"),
        MeasureSpec("top_ids", ("step", "rank"), "token id", "the best tokens at each step", dtype="int32"),
        MeasureSpec("top_probs", ("step", "rank"), "probability", "their probabilities", 0.0, 1.0),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, TYPICAL_TOKENS

    def holds(self, shape: Shape) -> int:
        """The cache: a key and a value per layer and token, each at most as wide as the stream."""
        return 2 * shape.n_layers * shape.stream * (shape.n_tokens + TYPICAL_TOKENS) // shape.n_tokens

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        start = encoding.answer_start or len(encoding)
        k, n_steps = min(self.k, model.d_vocab), max(self.n_tokens, len(encoding) - start + 1)
        record.allocate("ids", (n_steps,))
        record.allocate("top_ids", (n_steps, k))
        record.allocate("top_probs", (n_steps, k))

        def on_token(step: int, logits: Tensor) -> None:
            best = logits.softmax(-1).topk(k)
            record.write("ids", step, best.indices[0])
            record.write("top_ids", step, best.indices)
            record.write("top_probs", step, best.values)
            record.name_tokens(model, best.indices)
            record.step((step + 1) / n_steps)

        model.continuation(model.tensor(encoding.ids[:start]), n_steps, on_token)
        record.provenance["continuation"] = model.tokenizer.decode(
            record.arrays["ids"].tolist(), clean_up_tokenization_spaces=False
        )
