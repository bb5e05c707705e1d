"""The tokens that a fit is made of, the residual streams of a prompt set, prompt by prompt, so that memory does not
grow with the set; and least squares from sums over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from .file import told_of, weights_of

ENOUGH = 10  # tokens per dimension below which a fit is said to be of few
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

    def before(self, begin: int) -> list[Float[Tensor, "pos d_model"]] | None:
        """The stream at depths 0..L of the last prompt before `begin` that has tokens."""
        for i in reversed(range(begin)):
            for _, resid in self.each(i, i + 1):
                return resid
        return None

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
        "prompts": told_of(streams.prompts),
    }


def few(tokens: int, model: LanguageModel) -> list[str]:
    """A note where the tokens that a fit is made of are not many more than the dimensions."""
    d = model.d_model
    return [f"{tokens} tokens are few for {d} dimensions; {ENOUGH} to one are advised."] * (tokens < ENOUGH * d)


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


FOLDS = 5  # parts of a prompt set, each held out once


def folds(prompts: Sequence[Prompt], seed: int = 0) -> np.ndarray:
    """The fold 0..4 of each prompt: whole forms where at least five are known, else a seeded share of each form.

    Prompts of one form are nearly alike, so a fit that saw some of them is not judged by the others."""
    forms = units(len(prompts), [p.form for p in prompts])
    drawn = np.random.default_rng(seed)
    if not forms.by_form:
        shuffled = drawn.permutation(len(prompts))
        names = np.array([p.form for p in prompts], object)[shuffled]
        found = np.empty(len(prompts), int)
        found[shuffled[np.argsort(names, kind="stable")]] = np.arange(len(prompts)) % FOLDS
        return found
    sizes, fold, full = np.bincount(forms.of), np.empty(forms.n, int), np.zeros(FOLDS)
    order = drawn.permutation(forms.n)
    for form in order[np.argsort(-sizes[order], kind="stable")]:  # the largest first, into the smallest fold
        fold[form] = full.argmin()
        full[fold[form]] += sizes[form]
    return np.asarray(fold[forms.of])


def distinct(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Each text once, however it is split into question and answer. `FitRefused` for fewer than five."""
    used = list({p.text + p.answer: p for p in prompts}.values())
    if len(used) < FOLDS:
        raise FitRefused(
            f"The set has {len(used)} prompt{'s' * (len(used) != 1)}, and a fifth is held out to judge the fit; give "
            "5 at least, or a test set."
        )
    return used


def split(prompts: Sequence[Prompt], test: Sequence[Prompt] | None) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """What is fitted on and what is held out: the given test prompts, else the first of `folds`; each text once.
    `FitRefused` where nothing would be left."""
    if test is None:
        used = distinct(prompts)
        held_out = folds(used) == 0
        return [p for p, out in zip(used, held_out) if not out], [p for p, out in zip(used, held_out) if out]
    used_by_text, of_test = ({p.text + p.answer: p for p in some} for some in (prompts, test))
    if both := len(used_by_text.keys() & of_test.keys()):
        raise FitRefused(f"{both} of the test prompts are among those to fit on; give others.")
    return list(used_by_text.values()), list(of_test.values())


# ---------------------------------------------------------------- least squares from sums

# `X'X`, `X'Y` and means of tokens that come in any pieces, float64. Sums of pieces add up, so that a fit resumes where
# it stopped.

RIDGE = 1e-6  # lambda = RIDGE * tr(G) / d, with G the centred Gram matrix of the sources
ALIKE = 1e-13  # of the sum of squares: below it what tokens differ by is rounding
BLOCKS = 4  # a Gram matrix is symmetric: in BLOCKS x BLOCKS blocks, those above the diagonal are computed


class Sums:
    """Sums over tokens of sources `x [n, d_x]` and targets `y [n, d_y]`: `xx = sum x x'` (its upper blocks until
    `finished`), `xy = sum x y'`, `x`, `y`, and `yy = sum |y|^2`.

    Products and sums are float64 whatever comes in: with massive activations beside small ones float32 would lose what
    the small ones say."""

    def __init__(self, d_x: int, d_y: int, device: torch.device | str = "cpu"):
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self.n = 0
        self.xx, self.xy = zeros(d_x, d_x), zeros(d_x, d_y)
        self.x, self.y, self.yy = zeros(d_x), zeros(d_y), zeros(())

    def add(self, x: Float[Tensor, "n d_x"], *targets: Float[Tensor, "n d_y"]) -> None:
        """One piece of tokens; targets side by side are one target."""
        x, y = x.to(self.xx), torch.cat([target.to(self.xx) for target in targets], 1)
        ends = [len(self.x) * i // BLOCKS for i in range(BLOCKS + 1)]
        for begin, end in itertools.pairwise(ends):
            self.xx[begin:end, begin:].addmm_(x[:, begin:end].T, x[:, begin:])
        self.xy.addmm_(x.T, y)
        self.n += len(x)
        self.x += x.sum(0)
        self.y += y.sum(0)
        self.yy += (y * y).sum()

    def solve(self, targets: slice = slice(None), ridge: float = RIDGE) -> tuple[Tensor, Tensor]:
        """`(A [d_y, d_x], b [d_y])`, float64, such that `A x + b` is nearest to y in the sum of squares, with `ridge *
        tr(G) / d` on A and none on b."""
        return self.solver(ridge)(targets)

    def solver(self, ridge: float = RIDGE) -> Callable[[slice], tuple[Tensor, Tensor]]:
        """`solve` for any targets, slice by slice, with the Gram matrix decomposed once."""
        mean_x = self.x / self.n
        inverse_times = _inverse(self.gram(ridge))

        def solve(targets: slice) -> tuple[Tensor, Tensor]:
            mean_y = self.y[targets] / self.n
            a = inverse_times(self.xy[:, targets] - self.n * torch.outer(mean_x, mean_y)).T
            return a, mean_y - a @ mean_x

        return solve

    def gram(self, ridge: float = RIDGE) -> Tensor:
        """The sources' centred Gram matrix `[d_x, d_x]`, with the ridge on its diagonal. `FitRefused` where they differ
        by no more than rounding: a map would be made of that."""
        mean, upper = self.x / self.n, torch.triu(self.xx)
        gram = upper + torch.triu(upper, 1).T - self.n * torch.outer(mean, mean)
        if gram.trace() <= ALIKE * upper.trace():
            raise FitRefused("The tokens to fit on are all alike at some depth; give prompts of other text.")
        gram.diagonal().add_(max(ridge * float(gram.trace()) / len(gram), torch.finfo(torch.float64).tiny))
        return gram

    def of_rank(self, rank: int, targets: slice = slice(None)) -> tuple[float, Tensor, Tensor, Tensor]:
        """`(scale, U [d, rank], V [rank, d], b [d])`, float64: of all `A = scale I + U V` that keep the least-squares
        map's scale, the one that is nearest to it on these tokens. Sources and targets have the same width."""
        a, _ = self.solve(targets)
        gram = self.gram()
        scale = float((a * gram).sum() / gram.trace())
        factor = torch.linalg.cholesky(gram)
        u, s, v = torch.linalg.svd((a - scale * torch.eye(len(a)).to(a)) @ factor, full_matrices=False)
        right = torch.linalg.solve_triangular(factor, v[:rank], upper=False, left=False)
        length = right.norm(dim=1, keepdim=True)
        u, v = u[:, :rank] * (s[:rank] * length[:, 0]), right / length
        mean_x, mean_y = self.x / self.n, self.y[targets] / self.n
        return scale, u, v, mean_y - scale * mean_x - u @ (v @ mean_x)

    def plus(self, others: Iterable[Sums]) -> Sums:
        """A new sum of these tokens and of others."""
        found = Sums(len(self.x), len(self.y), self.x.device)
        for one in (self, *others):
            found.n += one.n
            for name in ("xx", "xy", "x", "y", "yy"):
                getattr(found, name).add_(getattr(one, name))
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint."""
        named = {name: getattr(self, name).cpu().numpy() for name in ("xx", "xy", "x", "y", "yy")}
        return named | {"n": np.asarray(self.n)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the sums of `arrays` in the place of its own."""
        self.n = int(arrays["n"])
        for name in ("xx", "xy", "x", "y", "yy"):
            getattr(self, name).copy_(torch.from_numpy(arrays[name]))


def _inverse(gram: Tensor) -> Callable[[Tensor], Tensor]:
    """`gram^-1 cross`: by Cholesky, and by least squares where rounding has left it not quite positive."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not failed:
        return lambda cross: torch.cholesky_solve(cross, factor)
    return lambda cross: torch.linalg.lstsq(gram.cpu(), cross.cpu(), driver="gelsd").solution.to(cross)
