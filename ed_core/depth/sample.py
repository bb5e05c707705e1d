"""What was measured on which prompts: the sums that every verdict on depth is read from. Numpy only.

A `Sample` is made from results in memory (`Sample.of`) or from stored sums (`Sample.of_sums`). It is the same object
for one prompt, many, a twin, or some tokens of a prompt.

Shapes: sums of `contributions` `[prompt, layer]`, L columns; of a lens `[prompt, depth]`, L + 1 columns, of which the
last is the output; `tokens` `[prompt]`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..statistics import Units, units
from ..types import ProbeResult
from . import answer, sinks
from .answer import Seen
from .rules import BEST, COSINES, OF_LENS
from .sinks import Sink

CONTRIBUTIONS, LENS = "contributions", "logit_lens"
READS = (CONTRIBUTIONS, LENS)  # the probes that a verdict is read from
CURVES = {CONTRIBUTIONS: COSINES, LENS: tuple(OF_LENS)}  # the measures of each
ALL, ANSWER = "all", "answer"
Tokens = str | int | tuple[int, ...]  # of a prompt: `ALL`, those that predict the `ANSWER`, a position, or several
Results = ProbeResult | Sequence[ProbeResult]
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Curves:
    """One probe's curves over several prompts, as sums over tokens.

    `sums`: by measure `[prompt, layer or depth]`; `tokens` `[prompt]`: the number summed. `forms`: each prompt's
    template, where known. `without_sinks`: the curves without attention sinks' tokens, None where sinks are unknown or
    no other token is left."""

    sums: Mapping[str, np.ndarray]
    tokens: np.ndarray
    forms: tuple[str, ...] = ()
    without_sinks: Curves | None = None

    @cached_property
    def units(self) -> Units:
        """The units that a bootstrap draws: templates where enough are known, else prompts."""
        return units(len(self.tokens), self.forms)

    @cached_property
    def means(self) -> dict[str, np.ndarray]:
        """By measure the mean curve over all tokens of all prompts; empty where no token counts."""
        total = self.tokens.sum()
        return {name: values.sum(0) / total for name, values in self.sums.items()} if total else {}


@dataclass(frozen=True)
class Sample:
    """The sums of one model on prompts that a verdict is read from.

    `curves`: by probe. `twins`: the samples of copies of the model, of this kind of `control`. `sinks`: of each prompt,
    None where unknown. `answers`: of each prompt what the lens says at its answer; both are empty where only sums are
    known. `read_for`: the tokens that count. `best`: tokens whose overlap is compared. `seed`: of the bootstrap."""

    n_layers: int
    curves: Mapping[str, Curves]
    twins: tuple[Sample, ...] = ()
    control: str = UNTRAINED
    sinks: tuple[tuple[Sink, ...] | None, ...] = ()
    answers: tuple[tuple[Seen, ...], ...] = ()
    read_for: Tokens = ALL
    best: int = BEST
    seed: int = 0

    @classmethod
    def of(
        cls,
        contributions: Results = (),
        lens: Results = (),
        *,
        first_token: bool = True,
        of: Tokens = ALL,
        forms: Sequence[str] = (),
        twins: Sequence[tuple[Results, Results]] = (),
        control: str = UNTRAINED,
        seed: int = 0,
    ) -> Sample:
        """Return a sample from complete results of `contributions` and `logit_lens`, of one prompt or of several in one
        order; either may be missing.

        `of`: the tokens that count. `first_token`: whether the cosine over all tokens counts the first one. `forms`:
        each prompt's template. `twins`: for each copy of the model its pair of results."""
        written, read = _listed(contributions), _listed(lens)
        some = written or read
        known = tuple(sinks.of_result(result) for result in written)
        counted = [positions(result, of) for result in some]
        others = [set(range(r.n_tokens)) - places for r, places in zip(some, counted) if places is not None]
        curves = {}
        for name, results in zip(READS, (written, read), strict=True):
            first = first_token or bool(others) or name == LENS
            if results and (of_one := _curves(results, CURVES[name], first, others, known, tuple(forms))).sums:
                curves[name] = of_one
        copies = (cls.of(a, b, first_token=first_token, of=of, forms=forms, seed=seed) for a, b in twins)
        return cls(
            some[0].n_layers,
            curves,
            tuple(copies),
            control,
            known,
            tuple(map(answer.look, read)),
            of,
            int(dict(read[0].request.parameters).get("k", BEST)) if read else BEST,
            seed,
        )

    @classmethod
    def of_sums(
        cls,
        columns: Mapping[str, Mapping[str, ArrayLike]],
        *,
        forms: Mapping[str, Sequence[str]] = {},
        first_token: bool = True,
        best: int = BEST,
        twins: Sequence[Sample] = (),
        control: str = UNTRAINED,
        seed: int = 0,
    ) -> Sample:
        """Return a sample from stored sums. `columns`: by probe, named as in a result's summary, a row for each prompt:
        `n_tokens`, `<measure>.sum`, `<measure>.first` (where `first_token` is False), and where sinks are known
        `n_no_sinks`, `<measure>.no_sinks`, `first_is_sink`. `forms`: by probe each prompt's template. A `ValueError`
        where no columns of either probe are given."""
        curves = {}
        for probe in READS:
            own = {name: np.asarray(values, np.float64) for name, values in columns.get(probe, {}).items()}
            names = [name for name in CURVES[probe] if f"{name}.sum" in own]
            if names and len(own["n_tokens"]):
                first = first_token or probe == LENS
                curves[probe] = _of_columns(own, names, first, tuple(map(str, forms.get(probe, ()))))
        if not curves:
            raise ValueError(
                f"sums of {' or '.join(READS)} are expected, found columns of {list(columns) or 'nothing'}"
            )
        probe, of_one = next(iter(curves.items()))
        n_layers = next(iter(of_one.sums.values())).shape[1] - (probe == LENS)
        return cls(n_layers, curves, tuple(twins), control, best=best, seed=seed)

    @property
    def n_prompts(self) -> int:
        """The number of prompts."""
        return max(len(of_one.tokens) for of_one in self.curves.values())

    @property
    def units(self) -> Units:
        """The units that intervals are drawn over: templates or prompts."""
        return (self.curves.get(LENS) or self.curves[CONTRIBUTIONS]).units


def positions(result: ProbeResult, of: Tokens) -> frozenset[int] | None:
    """Return the positions that `of` names; for `ANSWER` those that predict the answer (the last one where none is
    known); None for `ALL`. A `ValueError` for a position that the prompt does not have."""
    n = result.n_tokens
    if of == ALL:
        return None
    if of == ANSWER:
        return frozenset(answer.predicting(result))
    chosen = of if isinstance(of, tuple) else (of,)
    if not chosen or not all(isinstance(one, int) and 0 <= one < n for one in chosen):
        raise ValueError(f"Tokens are {ALL!r}, {ANSWER!r} or positions from 0 to {n - 1}; found {of!r}.")
    return frozenset(chosen)  # type: ignore[arg-type]  # all of them are int


def prompt_sums(
    results: Sequence[ProbeResult],
    names: Sequence[str],
    first_token: bool,
    left_out: Sequence[Collection[int]] | None = None,
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Return each prompt's sums over tokens `[prompt, layer or depth]` by measure, and its number of tokens.

    `left_out`: positions of each prompt that do not count; the sums are then made from the whole measures, as summaries
    cannot leave a token out."""
    if left_out is not None:
        start = int(not first_token)
        kept = [[t for t in range(start, r.n_tokens) if t not in out] for r, out in zip(results, left_out, strict=True)]
        return {
            n: np.stack([np.sum(r[n][:, pos], -1, dtype=np.float64) for r, pos in zip(results, kept)]) for n in names
        }, [len(pos) for pos in kept]
    sums = {
        n: np.stack([r.summary[f"{n}.sum"] - (0 if first_token else r.summary[f"{n}.first"]) for r in results])
        for n in names
    }
    return sums, [r.n_tokens - (not first_token) for r in results]


def _listed(results: Results) -> list[ProbeResult]:
    """Return one result or several as a list."""
    return [results] if isinstance(results, ProbeResult) else list(results)


def _curves(
    results: Sequence[ProbeResult],
    measures: Sequence[str],
    first_token: bool,
    others: Sequence[set[int]],
    found: Sequence[Sequence[Sink] | None],
    forms: tuple[str, ...],
) -> Curves:
    """Return a probe's curves from results. `others`: each prompt's positions that do not count, empty where all count;
    `found`: each prompt's sinks, empty where none are known."""
    names = [n for n in measures if all(f"{n}.sum" in r.summary and (not others or n in r.measures) for r in results)]

    def read(left_out: Sequence[Collection[int]] | None) -> Curves:
        sums, counts = prompt_sums(results, names, first_token, left_out)
        return Curves(sums, np.asarray(counts), forms)

    curves = read(others or None)
    known = [{s.pos for s in of_one} for of_one in found if of_one is not None]
    if len(known) < len(results) or any(n not in r.measures for r in results for n in names):
        return curves
    out = [pos | more for pos, more in zip(known, others or [set()] * len(known), strict=True)]
    without = read(out) if any(out != more for out, more in zip(out, others or [set()] * len(known))) else curves
    return replace(curves, without_sinks=without if without.tokens.sum() else None)


def _of_columns(own: Mapping[str, np.ndarray], names: Sequence[str], first: bool, forms: tuple[str, ...]) -> Curves:
    """Return a probe's curves from its columns of stored sums (`own`); `first`: whether the first token counts."""

    def read(sums: str, tokens: str, dropped: np.ndarray) -> Curves:
        return Curves(
            {n: own[f"{n}.{sums}"] - (dropped[:, None] * own[f"{n}.first"] if dropped.any() else 0) for n in names},
            own[tokens] - dropped,
            forms,
        )

    curves = read("sum", "n_tokens", np.full(len(own["n_tokens"]), float(not first)))
    without = None
    if "n_no_sinks" in own and np.isfinite(own["n_no_sinks"]).all():
        dropped = np.zeros(len(own["n_tokens"])) if first else 1 - own["first_is_sink"]
        without = read("no_sinks", "n_no_sinks", dropped)
    return replace(curves, without_sinks=without if without and without.tokens.sum() else None)
