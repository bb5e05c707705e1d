"""What the model writes: its continuation, and at which depth the tokens that it writes settle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import Encoding, MeasureSpec
from .base import Curve, Picture, Probe, Score, Shape, parameter
from .lenses import divergence_limit, exit_confidence, late_begins, late_from

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder


WRITTEN_TOKENS = 32


@dataclass(frozen=True)
class Generation(Probe):
    """The model continues the question (the answer, where one is given, is left out), and for every token it writes the
    logit lens is applied at each depth of the position that predicts it: where the best token settles
    (`settle_depth`), how far each depth is from the output (`jsd`), and where an early exit at the chosen confidence
    would have left, with which token. The **deep-thinking ratio** is the share of the tokens written so far whose
    Jensen–Shannon divergence first falls to g only in the late part, from ceil(rho L) on.

    Greedy, or sampled with a seed at a temperature: a number per token from `random.Random(seed)` is looked up in the
    cumulated probabilities. Settle depth and agreement on leaving are about the output's best token, which a sampled
    token need not be. The text ends early where the model ends it.

    Keys and values of what was read are kept, so a token costs one token's forward pass and a product of the head
    with all depths together.

    Source: deep-thinking ratio over generated tokens, Chen et al. 2026, arXiv 2602.13517; the lens as on *Logit lens*,
    the exit as on *Writing*."""

    n_tokens: int = parameter(WRITTEN_TOKENS, "tokens to write, at most", low=1, high=512, label="Tokens")
    temperature: float = parameter(
        0.0,
        "0: always the best token; else the logits are divided by it, and one is drawn",
        low=0.0,
        high=5.0,
        label="Temperature",
    )
    seed: int = parameter(0, "of the draws, at a temperature above 0", low=0, label="Random seed")
    threshold: float = exit_confidence("would leave")
    g: float = divergence_limit()
    rho: float = late_begins()

    name: ClassVar[str] = "generation"
    title: ClassVar[str] = "Writing"
    version: ClassVar[int] = 3  # 2: mean_jsd, share_settled; 3: mean_lost_at_0
    traces: ClassVar[bool] = False
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("share_settled", "Tokens that have settled", "share", "depth"),
        Curve("mean_jsd", "Divergence between lens and output", "bits", "depth"),
    )
    score: ClassVar[Score] = Score("the mean settle depth", value="mean_depth")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "While the model writes",
            ("jsd", "best_ids", "settle_depth", "exit_depth"),
            "columns are written tokens, cells what the lens would say, shaded by its divergence from the output; "
            "line: first choice from here on, cross: early exit",
            "The line steps to the depth from which the best token stays; bright is near the output. A cross marks "
            "the first depth below\nthe output that is sure enough to leave: red where it would say another token.",
            kind="writing",
        ),
    )
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec("ids", ("step",), "token id", "what is written", dtype="int32"),
        MeasureSpec(
            "settle_depth", ("step",), "depth", "first depth from which the lens's best token stays the output's"
        ),
        MeasureSpec("jsd", ("depth", "step"), "bits", "Jensen–Shannon divergence between lens and output, base 2"),
        MeasureSpec("confidence", ("depth", "step"), "probability", "probability of the lens's best token"),
        MeasureSpec("best_ids", ("depth", "step"), "token id", "the lens's best token", dtype="int32"),
        MeasureSpec(
            "deep_thinking_ratio", ("step",), "share", "share of the tokens so far that settle only in the late part"
        ),
        MeasureSpec("exit_depth", ("step",), "depth", "first depth whose confidence reaches the threshold"),
        MeasureSpec("exit_ids", ("step",), "token id", "what an early exit there would say", dtype="int32"),
        MeasureSpec("exit_agrees", ("step",), "0 or 1", "whether that is the output's best token"),
        MeasureSpec("share_settled", ("depth",), "share", "share of the tokens that have settled by a depth", "mean"),
        MeasureSpec("mean_jsd", ("depth",), "bits", "mean divergence over all tokens written", "mean"),
        MeasureSpec("mean_depth", (), "depth", "mean settle depth over all tokens written", "mean"),
        MeasureSpec("mean_ratio", (), "share", "deep-thinking ratio over all tokens written", "mean"),
        MeasureSpec("mean_agreement", (), "share", "share of tokens an early exit says alike", "mean"),
        MeasureSpec(
            "mean_lost_at_0",
            (),
            "share",
            "share of tokens that leave at depth 0 with another best token than the output's",
            "mean",
        ),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, (n_layers + 1) * self.n_tokens

    @property
    def further_tokens(self) -> int:
        """The number of written tokens that the model reads again: all but the last."""
        return self.n_tokens - 1

    def holds(self, shape: Shape) -> int:
        return shape.cache(self.n_tokens)

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.lenses import write

        late = late_from(self.rho, model.n_layers)
        write(model, encoding, record, self.n_tokens, self.temperature, self.seed, self.threshold, self.g, late)


TYPICAL_TOKENS = 16  # what an estimate counts with, at least


@dataclass(frozen=True)
class Continuation(Probe):
    """The model's own greedy continuation of the question (the answer, where one is given, is left out), with the best
    k tokens at each step and their probabilities. It tells whether the model knows what the curves are read for; a
    longer answer is continued to its end, and the text ends early where the model ends it."""

    n_tokens: int = parameter(8, "tokens to continue for, at least", low=1, high=64, label="Tokens continued")
    k: int = parameter(5, "best tokens listed at each step", low=1, high=20, label="Best tokens listed")

    name: ClassVar[str] = "continuation"
    version: ClassVar[int] = 2  # 1 wrote on past the model's own end
    title: ClassVar[str] = "Continuation"
    first_page: ClassVar[bool] = True
    traces: ClassVar[bool] = False
    pictures: ClassVar[tuple[Picture, ...]] = ()  # words
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec("ids", ("step",), "token id", "the greedy continuation", dtype="int32"),
        MeasureSpec("top_ids", ("step", "rank"), "token id", "the best tokens at each step", dtype="int32"),
        MeasureSpec("top_probs", ("step", "rank"), "probability", "probabilities of the best tokens"),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, self.further_tokens + 1

    @property
    def further_tokens(self) -> int:
        """The number of written tokens that the model reads again, for the estimate."""
        return max(TYPICAL_TOKENS, self.n_tokens) - 1

    def holds(self, shape: Shape) -> int:
        return shape.cache(self.further_tokens + 1)

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps import metrics

        start = encoding.answer_start or len(encoding)
        k, n_steps = min(self.k, model.d_vocab), max(self.n_tokens, len(encoding) - start + 1)
        n_steps = model.room(start, n_steps, record.note)
        record.allocate("ids", "top_ids", "top_probs", step=n_steps, rank=k)

        def on_token(step: int, logits: Tensor) -> None:
            _, (ids,) = metrics.best(logits[None], k)
            record.write("ids", step, ids[0])
            record.write("top_ids", step, ids)
            record.write("top_probs", step, logits.softmax(-1)[ids])
            record.name_tokens(model, ids)
            record.step((step + 1) / n_steps)

        model.continuation(model.tensor(encoding.ids[:start]), n_steps, on_token)
        written = int((record.arrays["ids"] >= 0).sum())
        record.ended(written, n_steps)
        for name, values in record.arrays.items():
            record.arrays[name] = values[:written]
        record.provenance["continuation"] = model.tokenizer.decode(
            record.arrays["ids"].tolist(), clean_up_tokenization_spaces=False
        )
