"""Made-up evidence for every claim: noise, a small effect, and clear ones of which it must say that it holds and that
it does not.

Prompts are written from 1, 2, 5 or 10 forms. Everything that varies from prompt to prompt varies as much from form to
form, where there are five forms or more; with fewer the statement is about prompts of these forms, so the forms do
not differ there. *Noise* is data in which nothing can be told: no effect where the statement is about a direction, a
quantity exactly on its limit where it is about a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from ed_core import statistics
from ed_core.claims import find
from ed_core.claims.claim import Evidence, Sized
from ed_core.claims.judging import FAILS, HOLDS, UNDECIDED
from ed_core.claims.judging import verdict as judged
from ed_core.depth import kinds
from ed_core.errors import ClaimRefused
from ed_core.studies.part import Part

L, TOKENS = 30, 8
LEVELS = ("1", "2", "3")
KINDS = ("noise", "small", "holds", "fails")
RESAMPLES = 200  # in the place of 1 000, of which errors of 3 % need no more


def autoregressive(x: np.ndarray, alike: float) -> np.ndarray:
    """Each value remembers the one before: correlations fall as `alike ** distance`."""
    for i in range(1, len(x)):
        x[i] = alike * x[i - 1] + np.sqrt(1 - alike**2) * x[i]
    return x


def moving_average(x: np.ndarray, alike: float) -> np.ndarray:
    """Means of as many neighbours as make neighbouring means correlated by about `alike`; no correlation beyond."""
    n = int(1 / (1 - alike) + 0.6)
    return np.convolve(x, np.ones(n), "valid") / np.sqrt(n)


def long_range(x: np.ndarray, alike: float) -> np.ndarray:
    """Fractional Gaussian noise, whose correlations fall as a power of the distance."""
    h2, k = 1 + np.log2(1 + alike), np.abs(np.subtract.outer(np.arange(len(x)), np.arange(len(x))))
    return np.linalg.cholesky(((k + 1) ** h2 - 2 * k**h2 + np.abs(k - 1) ** h2) / 2) @ x


FAMILIES = {"autoregressive": autoregressive, "moving average": moving_average, "long range": long_range}
LONGEST = 10  # more values than are needed, of which moving averages are made


@dataclass
class Draw:
    """One made-up set: what is random in it. `kind`: of `KINDS`. `alike`: the correlation of neighbouring layers, in
    noise of this `family` (`FAMILIES`)."""

    kind: str
    forms: int
    rng: np.random.Generator
    layers: int = L
    alike: float = 0.0
    family: str = "autoregressive"

    def pick(self, noise, small, holds, fails):
        return dict(zip(KINDS, (noise, small, holds, fails)))[self.kind]

    def form_of(self, n: int) -> np.ndarray:
        return np.arange(n) % self.forms

    def own(self, n: int, sd: float, *shape: int) -> np.ndarray:
        """Deviations of every prompt `[n, …]`, those of its form with them."""
        found = self.rng.normal(0, sd, (n, *shape))
        if self.forms >= 5:
            found += self.rng.normal(0, sd, (self.forms, *shape))[self.form_of(n)]
        return found

    def of_layers(self, sd: float, n: int | None = None) -> np.ndarray:
        n = n or self.layers
        return sd * FAMILIES[self.family](self.rng.normal(0, 1, n + LONGEST), self.alike)[:n]

    def part(self, columns: dict[str, np.ndarray], levels: bool = False) -> Part:
        """Prompts of these columns; with `levels` in triples, each of one form."""
        n = len(next(iter(columns.values())))
        if not levels:
            return Part(columns, (), (), tuple(f"f{i}" for i in self.form_of(n)), np.arange(n))
        triple = np.arange(n) // 3
        return Part(
            columns,
            tuple(LEVELS[i % 3] for i in range(n)),
            tuple(map(str, triple)),
            tuple(f"f{i % self.forms}" for i in triple),
            np.arange(n),
        )

    def triples(self, n: int, sd: float) -> np.ndarray:
        """Deviations of every triple `[n]`, the same for its three prompts."""
        return np.repeat(self.own(n // 3, sd), 3)

    def evidence(self, **parts: Part) -> Evidence:
        return Evidence(self.layers, parts, level_names=LEVELS, worked=True)


def per_token(**curves: np.ndarray) -> dict[str, np.ndarray]:
    """Means over tokens as a study keeps them: sums, and how many tokens they are over."""
    n = len(next(iter(curves.values())))
    columns = {"n_tokens": np.full(n, float(TOKENS))}
    for name, values in curves.items():
        columns |= {f"{name}.sum": values * TOKENS, f"{name}.count": np.full(n, float(TOKENS))}
    return columns


def turn(d: Draw) -> Evidence:
    n, step = 50, d.pick(0.0, 0.03, 0.2, 0.0)
    k = d.rng.integers(12, 20)
    one = d.pick(0.0, 0.0, 0.0, d.rng.choice([-0.3, 0.3]))
    curve = np.where(np.arange(L) <= k, -step, step) + one + d.of_layers(0.1)
    each = curve + d.own(n, 0.03)[:, None] + d.own(n, 0.05, L)
    return d.evidence(contributions=d.part(per_token(**{f"{c}_cos": each for c in ("attn", "mlp", "layer")})))


def second_half(d: Draw) -> Evidence:
    n, ratio = 40, d.pick(0.5, 0.4, 0.1, 1.2)
    log = d.of_layers(0.3) + np.where(np.arange(L) < L // 2, 0.0, np.log(ratio))
    each = np.exp(log + d.own(n, 0.2, L) + np.where(np.arange(L) < L // 2, 0, 1) * d.own(n, 0.2)[:, None])
    effect = np.triu(np.repeat(each[:, :, None], L, 2), 1)
    return d.evidence(future=d.part({"effect": effect, "n_tokens": np.full(n, float(TOKENS))}))


def steps(depth: np.ndarray, layers: int) -> np.ndarray:
    """Curves `[n, layers + 1]` that stay at 1 up to a depth, and at 0 from there on; what is left over between."""
    return np.clip(depth[:, None] - np.arange(layers + 1), 0, 1)


def static_ratio(d: Draw) -> Evidence:
    n, slope = 50, d.pick(0.1, 0.05, 0.0, 0.25)
    common, family = d.own(n, 0.02), []
    for i, layers in enumerate((12, 18, 24)):
        curve = steps((0.4 + slope * i + common + d.own(n, 0.02)) * layers, layers) * TOKENS
        lens = d.part({"kl.sum": curve, "overlap.sum": TOKENS - curve, "n_tokens": np.full(n, float(TOKENS))})
        family.append(Sized(f"m{i}", 10 ** (7 + i), layers, lens))
    return Evidence(L, {"logit_lens": family[0].lens}, level_names=LEVELS, family=tuple(family), models=3)


def no_harder(d: Draw) -> Evidence:
    slope, level = d.pick(0.02, 0.01, 0.0, 0.05), np.arange(48) % 3
    parts = {}
    for name, n in (("future", 39), ("logit_lens", 48)):
        share = 0.4 + level[:n] * (slope + d.triples(n, 0.004)) + d.triples(n, 0.02) + d.rng.normal(0, 0.004, n)
        if name == "future":
            at = share * L
            rows = np.maximum(1 - np.abs(at[:, None] - np.arange(L)), 0)
            columns = {"effect": np.triu(np.repeat(rows[:, :, None], L, 2), 1)}
        else:
            curve = steps(share * L, L)
            columns = {"kl.sum": curve * TOKENS, "overlap.sum": (1 - curve) * TOKENS}
        parts[name] = d.part(columns | {"n_tokens": np.full(n, float(TOKENS))}, levels=True)
    return d.evidence(**parts)


def adaptive(d: Draw) -> Evidence:
    n, slope = 48, d.pick(0.0, 0.5, 3.0, -3.0)
    depth = 14 + (np.arange(n) % 3 - 1) * (slope + d.triples(n, 0.7)) + d.triples(n, 1.0) + d.rng.normal(0, 0.7, n)
    return d.evidence(answers=d.part({"stays_depth": np.round(depth).clip(0, L)}, levels=True))


def thinking(d: Draw) -> Evidence:
    n, apart = 50, d.pick(0.0, 0.05, 0.4, -0.4)
    right = (d.rng.random(n) < 0.5 + d.own(n, 0.1)).astype(float)
    ratio = 0.5 + apart * (right - 0.5) + d.own(n, 0.1)
    return d.evidence(writing=d.part({"mean_ratio": ratio}), answers=d.part({"exact_whole": right}))


def correlated(x: np.ndarray, rng: np.random.Generator, wanted: float) -> np.ndarray:
    """The same values in an order whose rank correlation with `x` is about so much."""
    rank = x.argsort().argsort()
    for _ in range(10_000):
        mixed = wanted * rank / len(x) + np.sqrt(1 - wanted**2) * rng.permutation(len(x)) / len(x)
        order = mixed.argsort().argsort()
        if abs(np.corrcoef(order, rank)[0, 1] - wanted) < 0.02:
            return np.sort(x)[order]
    raise AssertionError("no such order")


def proxy(d: Draw) -> Evidence:
    """Noise: curves over layers whose rank correlation would be 0.5 over more and more layers."""
    n, score, r = 30, d.of_layers(1.0), 2 * np.sin(np.pi / 12)
    if d.kind == "noise":
        loss = r * score + np.sqrt(1 - r * r) * d.of_layers(1.0)
    else:
        loss = score if d.kind == "fails" else correlated(score, d.rng, 0.25 if d.kind == "small" else 0.0)
    columns = per_token(
        block_influence=score + d.own(n, 0.1, L),
        update_cosine=-score + d.own(n, 0.1, L),
        nll=2 + loss + d.own(n, 0.5, L),
        nll_whole=np.full((n, 1), 2.0) + d.own(n, 0.1)[:, None],
    )
    return d.evidence(one=d.part(columns))


def robust(d: Draw) -> Evidence:
    n, worst = 30, d.pick(0.72, 0.76, 0.9, 0.4)
    curve = 0.9 + d.of_layers(0.01)
    curve[d.rng.integers(1, L - 1)] = worst
    curve[[0, -1]] = 0.1
    return d.evidence(one=d.part(per_token(top1_kept=(curve + d.own(n, 0.04, L)).clip(0, 1))))


def turns(d: Draw) -> Evidence:
    n, middle, update = 30, d.pick(30.0, 25.0, 12.0, 12.0), d.pick(90.0, 87.0, 90.0, 45.0)
    stream = middle * (1 + d.of_layers(0.1)) + d.own(n, 1.0)[:, None] + d.own(n, 1.0, L)
    between = update + d.of_layers(5.0, L - 1) + d.own(n, 2.0)[:, None] + d.own(n, 2.0, L - 1)
    return d.evidence(turns=d.part(per_token(stream_angle=stream, update_angle=between)))


def usefulness(d: Draw) -> Evidence:
    n, slope = 20, d.pick(0.0, -0.2, -0.8, 0.8)
    cost = 0.2 + slope * (np.arange(L) / (L - 1) - 0.5) + d.of_layers(0.15)
    raised = cost + d.own(n, 0.05)[:, None] + d.own(n, 0.1, L)
    whole = 2.0 * TOKENS * np.exp(d.own(n, 0.1))
    columns = {"loss": whole[:, None] * (1 + raised), "whole": whole, "tokens": np.full(n, float(TOKENS))}
    return d.evidence(replacement=d.part(columns))


def stretches(d: Draw) -> Evidence:
    n, length = 30, 8
    places = L - length + 1
    start = d.pick(18, 18, 18, 3)
    dip, gain = d.pick((0.0, 0.0), (0.02, 0.05), (0.2, 0.6), (0.2, -1.0))
    angle, loss = np.full(places, 0.4), 3 + d.of_layers(d.pick(0.0, 0.2, 0.2, 0.2), places)
    angle[start], loss[start] = 0.4 - dip, np.median(loss) - gain
    columns = per_token(
        angular_distance_no_sinks=angle + d.own(n, 0.03, places),
        nll=loss + d.own(n, 0.2, places),
        nll_whole=np.full((n, 1), 2.0),
    ) | {"angular_distance_last": angle + d.own(n, 0.03, places)}
    return d.evidence(stretch=d.part(columns))


def two_stories(d: Draw) -> Evidence:
    n, apart = 50, d.pick(0.0, 0.5, 10.0, -10.0)

    def bump(centre: float) -> np.ndarray:
        return np.exp(-(((np.arange(L) - centre) / 4) ** 2) / 2)

    lost = (0.05 + 0.7 * bump(14.5 + apart / 2) + d.of_layers(0.03)).clip(0.01, 0.95)
    exact = (d.rng.random((n, L)) >= (lost + d.own(n, 0.05, L)).clip(0, 1)).astype(float)
    loss = 0.1 + 2.0 * bump(14.5 - apart / 2) + d.of_layers(0.1) + d.own(n, 0.3, L)
    whole = {"exact_whole": np.ones(n), "loss_whole": np.full(n, 0.3)}
    return d.evidence(answers=d.part({"exact": exact, "loss": 0.3 + loss} | whole))


def reasoning(d: Draw) -> Evidence:
    n, (short, long) = 40, d.pick((0.4, 0.4), (0.4, 0.43), (0.2, 0.6), (0.6, 0.2))
    layers = {1: d.of_layers(0.05), 2: d.of_layers(0.05, L - 1)}
    parts = {}
    for name, lost, drop, length in (
        ("answers", short, 1, 1), ("worked", long, 1, 5), ("two", short, 2, 1), ("worked_two", long, 2, 5),
    ):  # fmt: skip
        at = layers[drop] + d.rng.normal(0, 0.03, len(layers[drop]))
        share = (lost + at + np.repeat(d.own(n // 2, 0.05), 2)[:, None]).clip(0, 1)
        exact = (d.rng.random((n, L + 1 - drop)) >= share).astype(float)
        columns = {"exact": exact, "exact_whole": np.ones(n), "answer_length": np.full(n, length)}
        marks = tuple(str(i // 2) for i in range(n))
        forms = tuple(f"f{i // 2 % d.forms}" for i in range(n))
        parts[name] = Part(columns, tuple(LEVELS[i % 2] for i in range(n)), marks, forms, np.arange(n))
    return d.evidence(**parts)


def decided(d: Draw) -> Evidence:
    n, apart = 40, d.pick(0.05, 0.0, -0.15, 0.2)
    lens = 20 + d.own(n, 2.0)
    return d.evidence(patching=d.part({"settle_depth": lens, "commitment": lens + (apart + d.own(n, 0.03)) * L}))


def of_kinds(d: Draw, depth: np.ndarray, mix: np.ndarray, headroom: np.ndarray) -> Evidence:
    """Prompts of two kinds of tokens, `mix` the share of the second, `depth` `[kind, prompt]`."""
    sums = np.zeros((len(mix), len(kinds.MEASURES), len(kinds.ALL)))
    sums[:, kinds.TOKENS, :2] = np.stack([1 - mix, mix], 1) * TOKENS
    sums[:, kinds.SETTLE, :2] = sums[:, kinds.TOKENS, :2] * depth.T
    sums[:, kinds.ORACLE] = sums[:, kinds.SETTLE] - sums[:, kinds.TOKENS] * headroom[:, None] * L
    return d.evidence(logit_lens=d.part({"kinds": sums}))


def explained(d: Draw) -> Evidence:
    """The mix moves the mean depth by a spread of 1 or not at all, everything else by `own`: shares of 0.5, 0.7, 0.95
    and 0."""
    n, own, apart = 50, d.pick(1.0, 0.65, 0.23, 1.0), d.pick(10.0, 10.0, 10.0, 0.0)
    mix = 0.5 + 0.1 * standard(d.own(n, 1.0))
    return of_kinds(d, np.array([[10.0], [10.0 + apart]]) + own * standard(d.own(n, 1.0)), mix, np.zeros(n))


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def exits(d: Draw) -> Evidence:
    n, headroom = 50, d.pick(0.01, 0.02, 0.1, 0.002)
    return of_kinds(d, np.full((2, n), 20.0), np.full(n, 0.5), headroom * (1 + d.own(n, 0.2)))


MADE_UP: dict[str, Callable[[Draw], Evidence]] = {
    "turn": turn,
    "second-half-weak": second_half,
    "static-ratio": static_ratio,
    "no-harder-deeper": no_harder,
    "adaptive": adaptive,
    "deep-thinking": thinking,
    "cosine-weak-proxy": proxy,
    "one-layer-robust": robust,
    "even-turns": turns,
    "usefulness": usefulness,
    "deep-skips-late": stretches,
    "likelihood-or-generation": two_stories,
    "reasoning-breaks": reasoning,
    "decided-before-read": decided,
    "kinds-explain-depth": explained,
    "headroom": exits,
}
RIGHT = {"noise": UNDECIDED, "small": HOLDS, "holds": HOLDS, "fails": FAILS}


@contextmanager
def fewer_resamples() -> Iterator[None]:
    drawn = statistics.counts
    with patch.object(statistics, "counts", lambda n, resamples, seed: drawn(n, RESAMPLES, seed)):
        yield


def verdict(name: str, kind: str, forms: int, seed: int, alike: float = 0.0, family: str = "autoregressive") -> str:
    """Of one made-up set; a refusal counts as undecided."""
    claim = find(name)
    rng = np.random.default_rng([seed, forms, KINDS.index(kind), list(MADE_UP).index(name)])
    drawn = Draw(kind, forms, rng, alike=alike, family=family)
    try:
        with fewer_resamples():
            return judged(claim.quantities, claim.of(MADE_UP[name](drawn)).estimates)[0]
    except ClaimRefused:
        return UNDECIDED


def counts(
    name: str, kind: str, forms: int, seeds: range, alike: float = 0.0, family: str = "autoregressive"
) -> Counter:
    return Counter(verdict(name, kind, forms, seed, alike, family) for seed in seeds)


def wrong(kind: str, found: Counter) -> float:
    """The share of verdicts that contradict what was made up. Of noise, where nothing is true, the larger one."""
    against = {HOLDS: FAILS, FAILS: HOLDS}
    n = sum(found.values())
    return max(found[HOLDS], found[FAILS]) / n if kind == "noise" else found[against[RIGHT[kind]]] / n
