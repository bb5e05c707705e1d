"""The tokens of a fit: the residual streams of a prompt set, one prompt at a time, and which prompts are held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import FitRefused
from ..models.language_model import LanguageModel
from ..models.trace import Trace
from ..prompts import max_tokens
from ..statistics import units
from ..types import Prompt
from .checkpoint import digest_of_prompts
from .file import weights_of

ENOUGH = 10  # tokens per dimension; a fit of fewer has a note
FOLDS = 5  # parts of a prompt set, each held out once


@dataclass
class Streams:
    """Computes the residual streams of prompts on a model, without each prompt's first token, often an attention sink.

    `first`: read only so many tokens of each prompt, None for all. Raises `FitRefused` on MPS, which lacks float64."""

    model: LanguageModel
    prompts: Sequence[Prompt]
    first: int | None = None

    def __post_init__(self) -> None:
        """Raise `FitRefused` on a device without float64."""
        if self.model.device.type == "mps":
            raise FitRefused(
                f"Fits need float64, which {self.model.device} does not have; open {self.model.spec.name} with "
                "--device cpu to fit it."
            )

    def each(self, begin: int = 0) -> Iterator[tuple[int, list[Float[Tensor, "pos d_model"]]]]:
        """Yield the number of each prompt from `begin` on, and its stream `[pos, d_model]` at depths 0..L."""
        for i, trace in self.traces(begin):
            yield i, [trace.after(depth)[0, 1:] for depth in range(len(trace.resid))]

    def traces(self, begin: int = 0) -> Iterator[tuple[int, Trace]]:
        """Yield the number and whole trace of each prompt, from `begin` on, with at least two tokens."""
        for i, prompt in enumerate(self.prompts[begin:], begin):
            ids = self.ids(prompt)
            if len(ids) < 2:
                continue
            with torch.no_grad():
                trace = self.model.trace(self.model.tensor(ids), keep=1)
            yield i, trace

    def before(self, begin: int) -> list[Float[Tensor, "pos d_model"]] | None:
        """Return the stream, by depth, of the last prompt before number `begin` that has tokens; None if none has."""
        for prompt in reversed(self.prompts[:begin]):
            for _, resid in replace(self, prompts=[prompt]).each():
                return resid
        return None

    def lengths(self) -> list[int]:
        """Return the number of tokens of each prompt, without the first."""
        return [max(0, len(self.ids(prompt)) - 1) for prompt in self.prompts]

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids that are read of a prompt."""
        return self.model.encode(prompt, max_tokens()).ids[: self.first]


def other_tokens(y: Tensor, before: Tensor | None, prompt: int) -> Tensor:
    """Return for each token of this prompt a random one of the prompt before (of itself for the first prompt), `[pos,
    d]`: the shuffled control's targets. `prompt`, the prompt's number, seeds the draw, so it does not depend on how the
    fit is divided."""
    pool = y if before is None else before
    chosen = torch.randint(len(pool), (len(y),), generator=torch.Generator().manual_seed(prompt))
    return pool[chosen.to(y.device)]


# ---------------------------------------------------------------- certificates and refusals


def prompts_entry(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Return a prompt set's entry in a certificate: count and digest."""
    return {"n": len(prompts), "digest": digest_of_prompts(prompts)}


def model_entry(model: LanguageModel) -> dict[str, Any]:
    """Return a model's entry in a certificate of maps."""
    spec = model.spec
    entry = {"name": spec.name, "precision": spec.precision, "control": spec.control, "identity": weights_of(spec)}
    return entry | {"n_layers": model.n_layers, "d_model": model.d_model}


def few(tokens: int, model: LanguageModel) -> list[str]:
    """Return a list with one note if the tokens are fewer than `ENOUGH` per dimension, else an empty list."""
    d = model.d_model
    return [f"{tokens} tokens are few for {d} dimensions; {ENOUGH} to one are advised."] * (tokens < ENOUGH * d)


def require_same_tokens(a: LanguageModel, b: LanguageModel, prompts: Sequence[Prompt]) -> None:
    """Raise `FitRefused` if two models' tokenizers read any of these prompts differently."""
    for prompt in prompts:
        one, other = a.encode(prompt, max_tokens()), b.encode(prompt, max_tokens())
        if one.ids != other.ids:
            raise FitRefused(
                f"{a.spec.name} and {b.spec.name} read the same text as different tokens ({len(one)} and {len(other)} "
                f"of {prompt.text[:40]!r}), so there is no map from token to token; choose two models with one "
                "tokenizer."
            )


def require_tokens(streams: Streams, fitted: bool = False) -> int:
    """Return the number of tokens of these prompts without their first ones. Raises `FitRefused` for none, and with
    `fitted` for so few that a linear map would match any targets exactly."""
    n, d = sum(streams.lengths()), streams.model.d_model
    if fitted and n <= d:
        raise FitRefused(
            f"The prompts to fit on have {n} tokens besides their first ones and {streams.model.spec.name} has {d} "
            f"dimensions; a linear map needs more tokens than dimensions: provide at least {d + 1} tokens, ideally "
            f"{ENOUGH * d}."
        )
    if not n:
        raise FitRefused("No held-out prompt has a token besides its first; give longer ones.")
    return n


# ---------------------------------------------------------------- prompts that are held out


def folds(prompts: Sequence[Prompt], seed: int = 0) -> np.ndarray:
    """Return the fold 0..4 of each prompt: whole forms (templates) if at least five are known, else a seeded share of
    each form. Prompts of one form are nearly alike, so a fit on some of them should not be judged on the others."""
    forms = units(len(prompts), [p.form for p in prompts])
    draw = np.random.default_rng(seed)
    if not forms.by_form:
        shuffled = draw.permutation(len(prompts))
        names = np.array([p.form for p in prompts], object)[shuffled]
        fold = np.empty(len(prompts), int)
        fold[shuffled[np.argsort(names, kind="stable")]] = np.arange(len(prompts)) % FOLDS
        return fold
    sizes, of_form, filled = np.bincount(forms.of), np.empty(forms.n, int), np.zeros(FOLDS)
    order = draw.permutation(forms.n)
    for form in order[np.argsort(-sizes[order], kind="stable")]:  # the largest first, into the smallest fold
        of_form[form] = filled.argmin()
        filled[of_form[form]] += sizes[form]
    return np.asarray(of_form[forms.of])


def distinct(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts with each text (question and answer joined) once; raise `FitRefused` for fewer than five."""
    used = list({p.text + p.answer: p for p in prompts}.values())
    if len(used) < FOLDS:
        raise FitRefused(
            f"The set has {len(used)} prompt{'s' * (len(used) != 1)}, and a fifth is held out to judge the fit; give "
            "5 at least, or a test set."
        )
    return used


def split(prompts: Sequence[Prompt], test: Sequence[Prompt] | None) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """Return the prompts to fit on and the held-out ones: the given `test`, else the first of `folds`; each text once.
    Raises `FitRefused` for a text in both."""
    if test is None:
        used = distinct(prompts)
        held_out = folds(used) == 0
        return [p for p, out in zip(used, held_out) if not out], [p for p, out in zip(used, held_out) if out]
    used_by_text, of_test = ({p.text + p.answer: p for p in some} for some in (prompts, test))
    if both := len(used_by_text.keys() & of_test.keys()):
        raise FitRefused(f"{both} of the test prompts are among those to fit on; give others.")
    return list(used_by_text.values()), list(of_test.values())
