"""The tokens that a fit is made of: the residual streams of a prompt set, prompt by prompt, so that memory does not
grow with the set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import FitRefused
from ..models.language_model import LanguageModel
from ..models.trace import Trace
from ..prompts import max_tokens
from ..types import Prompt
from .file import digest_of_prompts, weights_of

Tick = Callable[[float], None]
"""Told the share that is done; what it raises ends the fit."""


def silent(share: float) -> None:
    """Where nobody waits for progress."""


@dataclass
class Streams:
    """The streams of prompts on a model, the first token of each left out: it is read like no other, and often a sink.

    `first`: only so many tokens of each prompt."""

    model: LanguageModel
    prompts: Sequence[Prompt]
    first: int | None = None

    def __post_init__(self) -> None:
        if self.model.device.type == "mps":
            raise FitRefused(
                f"Fits sum in float64, which {self.model.device} has not; open {self.model.spec.name} with --device "
                "cpu to fit it."
            )

    def each(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, list[Float[Tensor, "pos d_model"]]]]:
        """From prompt `begin` on, to before `end`, a prompt's number and its stream at depths 0..L, as that many blocks
        left it."""
        for i, trace in self.traces(begin, end):
            yield i, [trace.after(depth)[0, 1:] for depth in range(len(trace.resid))]

    def traces(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, Trace]]:
        """The same with the whole trace, the first token's too."""
        for i, prompt in enumerate(self.prompts[begin:end], begin):
            ids = self.ids(prompt)
            if len(ids) < 2:
                continue
            with torch.no_grad():
                trace = self.model.trace(self.model.tensor(ids), keep=1)
            yield i, trace

    def too_short(self) -> int:
        """How many prompts have no token besides the first."""
        return sum(len(self.ids(prompt)) < 2 for prompt in self.prompts)

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens of a prompt that are read."""
        return self.model.encode(prompt, max_tokens()).ids[: self.first]


def about(kind: str, streams: Streams) -> dict[str, Any]:
    """What a lens's certificate begins with: its kind, model and prompts."""
    model, spec = streams.model, streams.model.spec
    return {
        "kind": kind,
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "model": {"name": spec.name, "precision": spec.precision, "identity": weights_of(spec)},
        "prompts": {"n": len(streams.prompts), "digest": digest_of_prompts(streams.prompts)},
    }


def same_tokens(a: LanguageModel, b: LanguageModel, prompts: Sequence[Prompt]) -> None:
    """Refuse two models whose tokenizers read these prompts differently."""
    for prompt in prompts:
        one, other = a.encode(prompt, max_tokens()), b.encode(prompt, max_tokens())
        if one.ids != other.ids:
            raise FitRefused(
                f"{a.spec.name} and {b.spec.name} read the same text as different tokens ({len(one)} and {len(other)} "
                f"of {prompt.text[:40]!r}), so token by token there is nothing to map; choose two models with one "
                "tokenizer."
            )


def split(prompts: Sequence[Prompt], test: Sequence[Prompt] | None) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """What is fitted on and what is held out: the given test prompts, else every fifth prompt, each text once.
    `FitRefused` where nothing would be left."""
    prompts = list({(p.text, p.answer): p for p in prompts}.values())
    if test is not None:
        texts = {(p.text, p.answer) for p in test}
        both = sum((p.text, p.answer) in texts for p in prompts)
        if both:
            raise FitRefused(f"{both} of the test prompts are among those to fit on; give others.")
        return prompts, test
    if len(prompts) < 5:
        raise FitRefused(
            f"The set has {len(prompts)} prompts and every fifth is held out to judge the fit; give 5 at least, or a "
            "test set."
        )
    return [p for i, p in enumerate(prompts) if i % 5 != 4], list(prompts[4::5])
