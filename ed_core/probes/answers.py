"""At which depth the known answer appears, and without which layers it is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import Encoding, MeasureSpec
from .base import ANSWER_TOKENS, Probe, Shape, parameter
from .surgery import check_stretch

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder


@dataclass(frozen=True)
class Answers(Probe):
    """Reads a prompt with a known answer in two ways. The logit lens tells at which depth every token of the answer is
    among its best k, each at the position that predicts it (`first_depth`; empty where that is so at no depth, the
    output included), and from which it stays among them (`stays_depth`; empty where the output has it not).

    Then each layer is left out in turn, on all tokens. The **loss** is the mean of `-log p` over the answer's tokens.
    The answer is **exact** where the model, writing freely and taking the best token each time, writes a text that
    begins with it, as `exact_answers` judges: by the text and not by the tokens it is written in.

    Source: first depth with the answer among the best five, arXiv 2604.12426; likelihood against generation,
    arXiv 2510.02091."""

    k: int = parameter(5, "best tokens among which the answer has to be", low=1, high=50, label="Best tokens")

    name: ClassVar[str] = "answers"
    title: ClassVar[str] = "Answers"
    version: ClassVar[int] = 3  # 2: exact by the text that is written, before by its own tokens; 3: `stays_depth`
    min_tokens: ClassVar[int] = 2
    needs_answer: ClassVar[bool] = True
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec("rank", ("depth", "step"), "rank", "rank of the answer's token in the lens", dtype="int32"),
        MeasureSpec("first_depth", (), "depth", "first depth with the whole answer among the best tokens", "mean"),
        MeasureSpec(
            "stays_depth", (), "depth", "first depth from which the whole answer stays among the best tokens", "mean"
        ),
        MeasureSpec("exact", ("layer",), "0 or 1", "whether the answer is written without this layer", "mean"),
        MeasureSpec("exact_whole", (), "0 or 1", "whether the whole model writes the answer", "mean"),
        MeasureSpec("loss", ("layer",), "nats", "mean loss on the answer without this layer", "mean"),
        MeasureSpec("loss_whole", (), "nats", "mean loss of the whole model on the answer", "mean"),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return 2 * n_layers + n_layers * (n_layers + 1) / 2, (2 * n_layers + 2) * ANSWER_TOKENS

    def holds(self, shape: Shape) -> int:
        return shape.in_pieces(shape.n_layers)

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.dropping import answer_sweep

        answer_sweep(model, encoding, record, self.k)


@dataclass(frozen=True)
class ExactAnswers(Probe):
    """The model writes freely and greedily behind the question, and the known answer is there or not: once whole, and
    once without each stretch of `n` consecutive layers, on all tokens. The answer is **exact** where the text begins
    with it and does not run on in the same word, spaces in front left aside, as on *All maps*.
    Over prompts it is a share.

    One token more than the answer has is written at most, and a text ends as soon as it can no longer become the
    answer. As long as what is written is the answer's own tokens, one pass over question and answer tells every next
    token: the same tokens as if they were written one by one. A text that comes to the answer by other tokens is read
    in passes of its own.

    Log-loss says how likely the given text is; what is written hangs on every best token in a row, and the two can
    tell different stories of the same layer.

    Source: likelihood against generation, arXiv 2510.02091; the stretches as on *Prune*."""

    n: int = parameter(
        1, "how many consecutive layers are taken out together", low=1, high=256, label="Consecutive layers removed"
    )

    name: ClassVar[str] = "exact_answers"
    title: ClassVar[str] = "Exact answers"
    version: ClassVar[int] = 2  # 2: where a token straddles question and answer, the question's end is not missed
    min_tokens: ClassVar[int] = 2
    needs_answer: ClassVar[bool] = True
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec("exact", ("start",), "0 or 1", "whether the answer is written without this stretch", "mean"),
        MeasureSpec("exact_whole", (), "0 or 1", "whether the whole model writes the answer", "mean"),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers + n_layers * (n_layers + 1) / 2, (n_layers + 1) * (ANSWER_TOKENS + 1)

    def holds(self, shape: Shape) -> int:
        return shape.in_pieces(shape.n_layers)

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.dropping import write_without

        check_stretch(self.name, self.n, model.n_layers)
        write_without(model, encoding, record, self.n)
