"""What a sentence of the verdict claims, counted anew from raw curves and best tokens in the plainest way, without the
code that made the sentence. Each function takes a sentence apart as a whole (one that no pattern takes is an error),
asserts every claim, and gives how many there were."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ed_core.types import ProbeResult

COSINES = ("attn_cos", "mlp_cos", "layer_cos")
NAMES = {"cosine": "cosine", "KL": "kl", "overlap": "overlap"}
USUAL = {"cosine": 0.0, "kl": 0.5, "overlap": 0.3}
OTHERS = {
    "cosine": [i / 100 for i in range(-5, 6)],
    "kl": [0.25 + i / 20 for i in range(11)],
    "overlap": [0.1 + i / 20 for i in range(9)],
}
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NEAR = 1e-9  # of a value that lies on a threshold: the program adds its numbers in another order
MEAN = r"([\d.]+)"

Curves = Mapping[str, Sequence[float]]  # "kl" and "overlap" with the output's row, "cosine" of the layers


def word(n: int) -> str:
    return WORDS[n] if n <= 10 else str(n)


# ---------------------------------------------------------------- curves


def curves_at(made: ProbeResult, lens: ProbeResult, at: Sequence[int]) -> dict[str, list[float]]:
    """The mean curves over these positions of one prompt."""
    rows = {m: [float(np.mean([float(row[t]) for t in at])) for row in lens[m]] for m in ("kl", "overlap")}
    cosine = [[np.mean([float(row[t]) for t in at]) for row in made[m]] for m in COSINES]
    return rows | {"cosine": [float(np.mean(three)) for three in zip(*cosine)]}


def together(of: Sequence[Curves], tokens: Sequence[float]) -> dict[str, list[float]]:
    """The curves over all tokens of all prompts, from each prompt's own mean."""
    return {
        name: [sum(n * c[name][i] for c, n in zip(of, tokens)) / sum(tokens) for i in range(len(of[0][name]))]
        for name in of[0]
    }


# ---------------------------------------------------------------- the papers' rules


def holds(name: str, curve: Sequence[float], at: int, threshold: float) -> bool:
    """Whether the rule's condition holds at a layer."""
    if name == "kl":
        return curve[at] < threshold * max(curve)
    return curve[at] > threshold + 1e-6 if name == "overlap" else curve[at] < threshold <= curve[at + 1]


def rule(name: str, curve: Sequence[float], threshold: float) -> int | None:
    """What the papers' rule gives."""
    found = [i for i in range(len(curve) - 1) if holds(name, curve, i, threshold)]
    return (found[-1] if name == "cosine" else found[0]) if found else None


def give_or_take(layer: int, n_layers: int) -> str:
    """A layer with the whole layers in a tenth of the depth."""
    return f"{layer} ± {n_layers // 10}" if n_layers >= 10 else f"{layer}"


def stable(name: str, curve: Sequence[float], threshold: float) -> int | None:
    """The layer from which the rule holds for good; of the cosine the last one below."""
    n = len(curve)
    if name == "cosine":
        below = [i for i in range(n) if curve[i] < threshold]
        return below[-1] if below and below[-1] < n - 1 and rule(name, curve, threshold) is not None else None
    return next((i for i in range(n - 1) if all(holds(name, curve, j, threshold) for j in range(i, n))), None)


def later(curve: Sequence[float], threshold: float) -> tuple[int | None, int | None]:
    """The KL rule from depth 1 on, and from where it holds for good."""
    there = [i > 0 and value < threshold * max(curve[1:]) for i, value in enumerate(curve)]
    n = len(curve)
    first = next((i for i in range(n - 1) if there[i]), None)
    return first, next((i for i in range(n - 1) if all(there[i:])), None)


@dataclass
class Rule:
    """A criterion read off a curve, with all that speaks against it. `curve`: without the output's row. `at`: its
    threshold."""

    name: str
    curve: Sequence[float]
    at: float
    without: Sequence[float] | None = None
    twins: Sequence[Sequence[float]] = ()
    drawn: Sequence[int | None] | None = None  # of several prompts; [] where there are too few
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.n, self.depth = len(self.curve), rule(self.name, self.curve, self.at)
        self.last = stable(self.name, self.curve, self.at)
        self.later = later(self.curve, self.at) if self.name == "kl" else (None, None)
        self.unsunk = None if self.without is None else rule(self.name, self.without, self.at)
        marks = [rule(self.name, curve, self.at) for curve in self.twins]
        self.near = 0 if self.depth is None else sum(m is not None and not self.far(m) for m in marks)
        if self.depth is not None:
            self.reasons = list(self._reasons())

    def far(self, depth: float | None) -> bool:
        return depth is None or abs(depth - self.depth) > self.n / 10 + NEAR

    @property
    def enough(self) -> bool:
        return len(self.twins) >= 5

    @property
    def shared(self) -> bool:
        """Whether at least half of the twins there are have the mark."""
        return self.near > 0 and 2 * self.near >= len(self.twins)

    @property
    def beside(self) -> str:
        """How many twins have it."""
        n, gives = len(self.twins), f"layer {give_or_take(self.depth, self.n)}"
        if n == 1:
            return f"the untrained twin compared {'gives' if self.near else 'does not give'} {gives}"
        many = f"{self.near or 'none'} of {n} untrained twins {'give' if self.near > 1 else 'gives'} {gives}"
        return many if n else ""

    @property
    def clear(self) -> bool:
        return self.depth is not None and not self.reasons and self.enough

    @property
    def undecided(self) -> bool:
        return self.depth is not None and not self.reasons and not self.enough and self.shared

    @property
    def so_far(self) -> bool:
        return self.depth is not None and not self.reasons and not self.enough and not self.shared

    @property
    def ends(self) -> tuple[float, float] | None:
        found = [d for d in self.drawn or [] if d is not None]
        return tuple(np.quantile(found, [0.05, 0.95])) if found else None

    @property
    def undefined(self) -> float:
        return sum(d is None for d in self.drawn) / len(self.drawn) if self.drawn else 0.0

    def _reasons(self):
        found = [rule(self.name, self.curve, t) for t in OTHERS[self.name] if abs(t - self.at) > 1e-9]
        some = [d for d in found if d is not None]
        wide = any(self.far(d) for d in some)
        if wide or len(some) < len(found):
            ends = f"{min(some)} to {max(some)}" if wide and min(some) < max(some) else f"{min(some, default='')}"
            said = [ends] * wide + ["no layer"] * (len(some) < len(found))
            yield f"{'some ' * bool(some and not wide)}other thresholds tried give {' or '.join(said)}"
        if self.last is None:
            below = next(i for i, value in enumerate(reversed(self.curve)) if self.name != "cosine" or value >= self.at)
            many = "layer" if below == 1 else f"{below} layers"
            none = "not for good"
            yield f"below 0 again in the last {many}" if self.name == "cosine" else none
        elif self.far(self.last):
            yield f"for good only from layer {self.last}"
        if self.name == "kl":
            first, good = self.later
            if self.far(first):
                yield f"without depth 0 it gives {'no layer' if first is None else f'layer {first}'}"
            elif good == self.last:  # said already, or near
                pass
            elif good is None:
                yield "without depth 0, not for good"
            elif self.far(good):
                yield f"without depth 0, for good only from layer {good}"
        if self.without is not None and self.far(self.unsunk):
            yield f"without the sinks it gives {'no layer' if self.unsunk is None else f'layer {self.unsunk}'}"
        if self.drawn is not None:
            if not self.drawn:
                yield "too few prompts for an interval"
            else:
                if self.ends is None or any(self.far(end) for end in self.ends):
                    yield f"its interval reaches outside layer {give_or_take(self.depth, self.n)}"
                if self.undefined > 0.05:
                    yield "no layer in more than 5 % of resamples"
        if self.enough and self.shared:
            yield self.beside


def statement(sentence: str, found: Rule) -> int:
    """The claims of one rule's own sentence."""
    name, interval = (
        next(n for n, own in NAMES.items() if own == found.name),
        r"(?: \(((?:5–95|none in|[^()]* in at least).*?)\))?",
    )
    if found.depth is None:
        match = re.fullmatch(rf"The papers' {name} rule gives no layer{interval}: (.*?)\.", sentence)
        assert match, sentence
        reason, *given = match[2].split("; without ")
        n = 1 + _undefined(found, reason)
        expected = [f"depth 0 it gives layer {found.later[0]}"] * (found.later[0] is not None)
        expected += [f"the sinks it gives layer {found.unsunk}"] * (found.unsunk is not None)
        assert given == expected, (given, expected)
        return n + len(given) + _drawn(match[1], found)
    match = re.fullmatch(rf"The papers' {name} rule gives layer (\d+) of 0–(\d+){interval}; (.*)\.", sentence)
    assert match, sentence
    depth, last, drawn, how = match.groups()
    assert (int(depth), int(last)) == (found.depth, found.n - 1)
    beside = found.beside
    if found.reasons:
        expected = f"not clear: {'; '.join(found.reasons)}"
        expected += f". {beside[0].upper()}{beside[1:]}" if beside and not (found.enough and found.shared) else ""
    elif found.shared:
        expected = f"undecided: {beside}; compare with five"
    else:
        expected = "clear" if found.enough else "clear so far, not yet compared with five twins"
        expected += f"; {beside}" if beside else ""
    assert how == expected, (how, expected)
    return 2 + _drawn(drawn, found) + max(len(found.reasons), 1) + bool(beside)


def _undefined(found: Rule, reason: str) -> int:
    """Why a rule gives no layer."""
    curve = list(found.curve)
    if reason == "the mean cosine is never below 0":
        assert found.name == "cosine" and min(curve) >= found.at
    elif reason == "the mean cosine is negative in every layer":
        assert found.name == "cosine" and max(curve) < found.at
    elif reason.startswith("the mean cosine falls below 0"):
        falls = next(i for i, value in enumerate(curve) if value < found.at)
        assert found.name == "cosine" and 0 < falls < len(curve) - 1 and max(curve[falls:]) < found.at
    elif reason == "the mean cosine is below 0 in the last layer alone":
        assert found.name == "cosine" and min(curve[:-1]) >= found.at > curve[-1]
    else:
        never = r"(?:divergence is at least ([\d.]+) of its largest|overlap is at most ([\d.]+))"
        match = re.fullmatch(rf"before every layer( but the last)? the {never}", reason)
        assert match and found.name == ("kl" if match[2] else "overlap"), reason
        assert bool(match[1]) == holds(found.name, curve, len(curve) - 1, found.at), reason
        assert float(match[2] or match[3]) == found.at
        assert not any(holds(found.name, curve, i, found.at) for i in range(len(curve) - 1))
    return 1


def _drawn(said: str | None, found: Rule) -> int:
    """The interval of a rule over prompts."""
    assert (said is None) == (not found.drawn), said
    if said is None:
        return 0
    if found.ends is None:
        assert said.startswith("none in any resample of ")
        return 1
    if found.undefined > 0.5:
        match = re.fullmatch(rf"none in {MEAN} % of resamples of .+", said)
        assert match and abs(float(match[1]) - 100 * found.undefined) <= 0.051, said
        return 1
    ends = rf"(?:5–95 %: {MEAN} to {MEAN}|{MEAN} in at least 90 % of resamples(?: that give a layer)?)"
    match = re.fullmatch(rf"{ends}(?:, no layer in {MEAN} % of resamples,)? (over|of) (.+)", said)
    assert match, said
    low, high = (match[1], match[2]) if match[3] is None else (match[3], match[3])
    assert (low == high) == (match[3] is not None)
    assert np.allclose([float(low), float(high)], found.ends, rtol=0.006)
    assert bool(match[4]) == (found.undefined > 0)
    assert match[4] is None or abs(float(match[4]) - 100 * found.undefined) <= 0.051
    return 2 + bool(match[4])


def rules(sentence: str, found: Mapping[str, Rule]) -> int:
    """The claims of the line on the papers' rules."""
    if all(one.depth is None for one in found.values()):
        assert re.fullmatch("Papers' rules(?:, read there too)?: no layer\\.", sentence), sentence
        return 1
    match = re.fullmatch("Papers' rules(?:, read there too)?: (.*?); (.*)\\.", sentence)
    assert match, sentence
    figure = rf"(?:layer )?(\d+|no layer) \((cosine|KL|overlap)(?:, 5–95 %: {MEAN} to {MEAN})?\)"
    given = re.findall(figure, match[1])
    assert [NAMES[name] for _, name, _, _ in given] == list(found) and match[1].count("layer ") >= 1
    assert re.sub(figure, "", match[1]).strip(", ") == ""
    for depth, name, low, high in given:
        one = found[NAMES[name]]
        assert depth == ("no layer" if one.depth is None else str(one.depth))
        width = one.ends and f"{one.ends[0]:.3g}" != f"{one.ends[1]:.3g}"
        assert bool(low) == bool(width)
        assert not low or np.allclose([float(low), float(high)], one.ends, rtol=0.006)
    clear = [name for _, name, _, _ in given if found[NAMES[name]].clear]
    so_far = [name for _, name, _, _ in given if found[NAMES[name]].so_far]
    listed = lambda names: " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    are = lambda names: f"the {listed(names)} {'rule is' if len(names) == 1 else 'rules are'}"
    open_ = [name for _, name, _, _ in given if found[NAMES[name]].undecided]
    if clear:
        expected = f"{are(clear)} clear"
    elif so_far or open_:
        said = [f"{are(so_far)} clear so far (not yet compared with five twins)"] if so_far else []
        said += [f"{are(open_)} undecided (five twins needed)"] if open_ else []
        expected = ", ".join(said)
    else:
        (one, *others) = [name for _, name, _, _ in given if found[NAMES[name]].depth is not None]
        expected = "none clear" if others else f"the {one} rule is not clear"
    assert match[2] == expected, (match[2], expected)
    return len(given) + 1


# ---------------------------------------------------------------- without a threshold


def mean_depth(name: str, curve: Sequence[float], steps: int = 4000) -> float | None:
    """The mean, over thresholds between 0 and 1, of the depth from which the curve stays below, one threshold at a
    time."""
    values = [float(v) for v in curve] if name == "kl" else [1 - float(v) for v in curve]
    start = 1 if name == "kl" else 0
    top = max(values[start:]) if name == "kl" else 1.0
    if top <= 0 or max(values[start:]) <= 0:
        return None
    highest = np.array([max(values[i:]) / top for i in range(start, len(values))])
    thresholds = (np.arange(steps) + 0.5) / steps
    return float(np.mean(start + (highest[:, None] > thresholds).sum(0)))


def left_by(curves) -> np.ndarray:
    """What two levels leave of the variance, for every split, `[n, layer - 1]`."""
    c = np.atleast_2d(np.asarray(curves, float))
    k = range(1, c.shape[1])
    return np.stack([c[:, :i].var(1) * i + c[:, i:].var(1) * (c.shape[1] - i) for i in k], 1)


def splits(curve: Sequence[float]) -> list[int]:
    """The last layers of the first of two levels that leave the least: several where they leave as much."""
    (left,) = left_by(curve)
    return [int(k) for k in np.flatnonzero(left <= left.min() + 1e-9 * np.var(curve) * len(curve) + 1e-15)]


def chance(curve: Sequence[float], times: int = 800) -> float:
    """The share of random orders that leave as little; from 24 layers on of blocks of four, cut from the ring of layers
    anywhere."""
    c, rng = np.asarray(curve, float), random.Random(99)

    def order() -> list[float]:
        begin = rng.randrange(len(c))
        ring = [*c[begin:], *c[:begin]]
        blocks = [ring[i : i + 4] for i in range(0, len(c), 4)]
        rng.shuffle(blocks)
        return [value for block in blocks for value in block]

    if len(c) >= 24:
        orders = np.array([order() for _ in range(times)])
    else:
        orders = np.random.default_rng(99).permuted(np.tile(c, (times, 1)), axis=1)
    own = left_by(c).min() + 1e-9 * c.var() * len(c)
    return float(np.mean(left_by(orders).min(1) <= own))


def turns(curve: Sequence[float]) -> int | None:
    """The last layer before the turn of one curve by its signs and orders; None where there is none."""
    if len(curve) < 3:
        return None
    k = splits(curve)[0]
    before, after = np.mean(curve[: k + 1]), np.mean(curve[k + 1 :])
    return k if before < 0 < after and chance(curve) <= 0.05 else None


def near(twins: Sequence[Curves], k: int, n: int) -> int:
    """How many twins turn within a tenth of the depth."""
    found = [turns(twin["cosine"]) for twin in twins]
    return sum(t is not None and abs(t - k) <= n / 10 + NEAR for t in found)


def studentised(read, of: Sequence[Curves], tokens: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """5 and 95 % of a number over prompts by bootstrap-t, a resample and a prompt at a time. `read`: from mean
    curves."""
    n, rows = len(tokens), {name: np.array([c[name] for c in of], float) for name in of[0]}
    tokens = np.asarray(tokens, float)

    def at(times):
        weights = times * tokens
        return read({name: weights @ v / weights.sum() for name, v in rows.items()})

    def error(times):
        found, drawn = [], []
        for u in np.flatnonzero(times):
            one = times.copy()
            one[u] -= 1
            if one.sum():
                found.append(at(one))
                drawn.append(times[u])
        found, drawn = np.array(found), np.array(drawn)
        keep = np.isfinite(found)
        found, drawn = found[keep], drawn[keep]
        total = drawn.sum()
        mean = (drawn * found).sum() / total
        return np.sqrt((drawn * (found - mean) ** 2).sum() * (total - 1) / total)

    ones = np.ones(n)
    value, own, draws = at(ones), error(ones), []
    for times in np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=1000).astype(float):
        again, its = at(times), error(times)
        its = its if its > 1e-9 * (abs(value) + own) else own
        draws.append(np.clip(value - (own * (again - value) / its if its > 0 else 0.0), low, high))
    return tuple(np.quantile(draws, [0.05, 0.95]))


def settles(
    sentence: str,
    own: Curves,
    twins: Sequence[Curves] = (),
    *,
    where: str = "",
    kind: str = "untrained",
    ends: Mapping[str, tuple[float, float]] | None = None,
    level_ends: Sequence[tuple[float, float]] = (),
    over: str = "",
) -> int:
    """The claims of the line on where the lens settles. `own`: curves of the model, `twins` of its copies; `ends`: of
    several prompts the interval of each mean depth ({} where there are too few), `over` what they are over."""
    n_layers, counted = len(own["kl"]) - 1, 1
    begin = f"{where}: mean depth" if where else "Mean depth"
    depth = mean_depth("kl", own["kl"])
    if depth is None:
        begin = f"{where}: no mean depth" if where else "No mean depth"
        none = f"{begin} by KL: the lens is the output from depth 1 on, or not finite"
        assert sentence.startswith(none), sentence
        assert not np.isfinite(own["kl"]).all() or max(own["kl"][1:]) <= 0
        other, ends_of = mean_depth("overlap", own["overlap"]), r"[^()]*(?:\([^()]*\)[^()]*)*"
        by_overlap = re.match(rf"; over thresholds {MEAN} of {n_layers} \(overlap{ends_of}\)", sentence[len(none) :])
        assert (by_overlap is None) == (other is None), sentence
        if by_overlap is not None:
            assert abs(float(by_overlap[1]) - other) <= 0.052
            none += by_overlap[0] + (", from the mean curve" if not where else "")
        rest = sentence.removeprefix(none).lstrip(";. ")
        return 1 + turn(f"{rest[:1].upper()}{rest[1:]}", own["cosine"], twins, level_ends)
    prompts = rf"(?:; 5–95 %: {MEAN} to {MEAN} over (.+?)|; ([^:]+?): too few for an interval)?"
    context = rf"(?:; (\w+) (untrained twins?|cop(?:y|ies) with shuffled layers): {MEAN}(?:–{MEAN})?)?"
    then = "; " if where else r"\. "
    theirs = rf"(?:; the (?:twins?|copy|copies): {MEAN}(?:–{MEAN})?)?"
    beside, read = (
        rf"(?:, {MEAN} \(overlap(?:; {MEAN} to {MEAN})?{theirs}\))?",
        "" if where else ", from the mean curves?",
    )
    match = re.match(
        rf"{begin} over thresholds {MEAN} of (\d+) \(KL{prompts}{context}\){beside}{read}(?:{then}|\.$)",
        sentence,
    )
    assert match, sentence
    kl, n, low, high, units, few, many, called, t_low, t_high, overlap, o_low, o_high, to_low, to_high = match.groups()
    assert abs(float(kl) - depth) <= 0.052 and int(n) == n_layers
    assert (ends is not None) == (units is not None or few is not None), sentence
    if units is not None or few is not None:
        assert (units or few) == over and bool(ends) == (units is not None)
        counted += 1
    if units is not None:
        assert np.allclose([float(low), float(high)], ends["kl"], atol=0.06)
        counted += 2
    other = mean_depth("overlap", own["overlap"])
    assert (overlap is None) == (other is None)
    if overlap is not None:
        assert abs(float(overlap) - other) <= 0.052
        assert (o_low is not None) == bool(ends)
        assert o_low is None or np.allclose([float(o_low), float(o_high)], ends["overlap"], atol=0.06)
        counted += 1 + (o_low is not None)
    depths = [d for d in (mean_depth("kl", twin["kl"]) for twin in twins) if d is not None]
    assert (called is None) == (not depths)
    if called is not None:
        assert many == word(len(twins)) and ("twin" in called) == (kind == "untrained")
        assert abs(float(t_low) - min(depths)) <= 0.052 and abs(float(t_high or t_low) - max(depths)) <= 0.052
        counted += 3
    depths = [d for d in (mean_depth("overlap", twin["overlap"]) for twin in twins) if d is not None]
    assert (to_low is None) == (not depths or overlap is None)
    if to_low is not None:
        assert abs(float(to_low) - min(depths)) <= 0.052 and abs(float(to_high or to_low) - max(depths)) <= 0.052
        counted += 2
    rest = sentence[match.end() :]
    return counted + turn(f"{rest[:1].upper()}{rest[1:]}", own["cosine"], twins, level_ends)


def turn(sentence: str, curve: Sequence[float], twins: Sequence[Curves] = (), level_ends=()) -> int:
    """The claims on the cosine's turn. `level_ends`: of several prompts the intervals of both levels. Of splits that
    leave as much any may be meant; what lies within 1 % of the share of orders that decides is not held against the
    sentence."""
    if len(curve) < 3:
        assert sentence == ""
        return 0
    wrong = []
    for k in splits(curve):
        try:
            return _turn(sentence, curve, k, twins, level_ends)
        except AssertionError as error:
            wrong.append(error)
    raise wrong[0]


def _turn(sentence: str, curve: Sequence[float], k: int, twins: Sequence[Curves], level_ends) -> int:
    before, after = float(np.mean(curve[: k + 1])), float(np.mean(curve[k + 1 :]))
    n = len(twins)
    untested = " or ".join(["over prompts"] * (not level_ends) + ["against five twins"] * (n < 5))
    whole = (
        rf"Layers turn from erasing to strengthening after layer (\d+){f' .not tested {untested}.' if untested else ''}"
        r"(; (?:\d of \d untrained twins turns?|one untrained twin turns) after layer ([^;.]+))?\."
    )
    if match := re.fullmatch(whole, sentence):
        assert int(match[1]) == k and before < 0 < after and chance(curve) <= 0.06
        assert not level_ends or level_ends[0][1] < 0 < level_ends[1][0]
        alike = near(twins, k, len(curve))
        assert n < 5 or 2 * alike < n
        assert bool(match[2]) == (n < 5 and alike > 0)
        some = f"{alike} of {n} untrained twins turn{'s' * (alike == 1)}" if n > 1 else "one untrained twin turns"
        assert not match[2] or match[2] == f"; {some} after layer {give_or_take(k, len(curve))}"
        return 2 + bool(match[2]) + bool(untested)
    told = r"No turn of its own: (\d+) of (\d+) untrained twins turn after layer ([^.]+) too\."
    if match := re.fullmatch(told, sentence):
        alike = near(twins, k, len(curve))
        assert (int(match[1]), int(match[2])) == (alike, n) and n >= 5 and 2 * alike >= n
        assert match[3] == give_or_take(k, len(curve))
        assert before < 0 < after and chance(curve) <= 0.06
        return 2
    match = re.fullmatch(r"No cosine turn: (.*)\.", sentence)
    assert match, sentence
    unsure = any(low <= 0 <= high for low, high in level_ends)
    if match[1] in ("not beyond chance", "fewer than 8 layers cannot tell one from chance"):
        assert chance(curve) >= 0.03 and ("8" in match[1]) == (len(curve) < 8)
        return 1
    assert chance(curve) <= 0.08  # two draws of orders, each some 0.7 % off
    if match[1] == "both levels above 0":
        assert before > 0 and after > 0 and not unsure
    elif match[1] == "both levels below 0":
        assert before < 0 and after < 0 and not unsure
    elif match[1] == "first level above 0":
        assert unsure and level_ends[0][0] > 0
    elif match[1] == "second level below 0":
        assert unsure and level_ends[1][1] < 0
    elif match[1] == "first level above 0, second below":
        assert before > 0 > after and not unsure
    elif match[1] == "a level's interval over prompts reaches 0":
        assert unsure and not level_ends[0][0] > 0 and not level_ends[1][1] < 0
    else:
        assert match[1] == "a level is 0" and min(abs(before), abs(after)) < 1e-12, match[1]
    return 1


# ---------------------------------------------------------------- at the answer


def lasting(rows: Sequence[bool]) -> int | None:
    """The first entry from which it holds through the last."""
    return next((i for i in range(len(rows)) if all(rows[i:])), None)


def first(rows: Sequence[bool]) -> int | None:
    """The first entry at which it holds."""
    return next((i for i, holds in enumerate(rows) if holds), None)


def due(lens: ProbeResult) -> list[tuple[int, int]]:
    """The positions that predict the answer and its tokens; without one the last position and the output's best."""
    start, top = lens.answer_start, lens["top_ids"].tolist()
    found = [(p - 1, lens.token_ids[p]) for p in range(start, lens.n_tokens)] if start else []
    return found or [(lens.n_tokens - 1, top[-1][-1][0])]


def quoted(lens: ProbeResult, pos: int, token: int) -> str:
    """A token as a sentence writes it."""
    text = lens.tokens[pos + 1] if lens.answer_start and pos + 1 < lens.n_tokens else lens.token_text[token]
    return f"“{''.join(c if c.isprintable() else repr(c)[1:-1] for c in text[:40])}”"


def since(said: str, rows: Sequence[bool], n_layers: int) -> int:
    """Claims on from which depth on it is so for good, and where first."""
    depth, earliest = lasting(rows), first(rows)
    if depth == 0:
        assert said == "at every depth", said
    elif earliest < depth:
        assert said == f"for good from depth {depth} of {n_layers} (first at {earliest})", said
    else:
        assert said == f"for good from depth {depth} of {n_layers}", said
    return 2


def seen_at(sentence: str, lens: ProbeResult) -> int:
    """Claims on what is seen at one prompt's answer, from the lens's best tokens."""
    top, tokens = lens["top_ids"].tolist(), due(lens)
    n_layers, n = len(top) - 1, len(tokens)
    led = [[row[pos][0] == token for row in top] for pos, token in tokens]
    best = [lasting(rows) for rows in led]
    right = [depth for depth in best if depth is not None]
    named = [quoted(lens, *one) for one in tokens]
    instead = [
        f"“{''.join(c if c.isprintable() else repr(c)[1:-1] for c in lens.token_text[top[-1][pos][0]][:40])}”"
        for pos, _ in tokens
    ]
    if n == 1:
        if best[0] is None:
            assert sentence == f"The answer {named[0]} is not the model's best guess, which is {instead[0]}.", sentence
            return 2
        what = f"{named[0]} is the" if lens.answer_start else f"Next token {named[0]}:"
        assert sentence.startswith(f"{what} best guess ") and sentence.endswith("."), sentence
        if lasting(led[0]) == first(led[0]) == n_layers:
            assert sentence == f"{what} best guess only at the output (depth {n_layers}).", sentence
            return 3
        return 1 + since(sentence.removeprefix(f"{what} best guess ")[:-1], led[0], n_layers)
    if not right:
        assert (
            sentence
            == f"Given the right tokens before each, none of the answer's {n} tokens is the model's best guess."
        ), sentence
        return 1
    if len(right) < n:
        wrong = best.index(None)
        be = "is" if len(right) == 1 else "are"
        assert sentence == (
            f"Given the right tokens before each, {len(right)} of the answer's {n} tokens {be} the model's best guess; "
            f"the first that is not is {named[wrong]}, where the model says {instead[wrong]}."
        ), sentence
        return 3
    match = re.fullmatch(r"Each answer token is the best guess at its position, (.*)\.", sentence)
    assert match, sentence
    if min(right) < max(right):
        assert match[1] == f"for good from depth {max(right)} of {n_layers}, the earliest from {min(right)}"
    elif max(right) == 0:
        assert match[1] == "at every depth"
    else:
        assert match[1] == f"for good from depth {max(right)} of {n_layers}"
    return 2


def among_at(sentence: str, lens: ProbeResult) -> int:
    """Claims on from where a single token is among the best."""
    top, ((pos, token),) = lens["top_ids"].tolist(), due(lens)
    there, k = [token in row[pos] for row in top], word(len(top[0][0]))
    named = quoted(lens, pos, token)
    if lasting(there) is None:
        assert sentence == f"{named} is not among the model's best {k}.", sentence
        return 1
    begin = f"{named} is among the lens's best {k} "
    assert sentence.startswith(begin), sentence
    return since(sentence.removeprefix(begin)[:-1], there, len(top) - 1)


def seen_over(sentence: str, answers: Sequence[Sequence[int | None]], own: Sequence[int], n_layers: int) -> int:
    """Claims on what is seen at the answers. `answers`: of each prompt with one the depths of its tokens (None: not the
    best guess in the output); `own`: the depths of the model's own next token, of each prompt without an answer."""
    right, counted = [max(depths) for depths in answers if None not in depths], 0
    depth = r"([\d.]+) of (\d+)( each time| \(median; least (\d+), most (\d+)\))?"
    known = (
        r"(?:For|In) (all|none of|\d+ of) (\d+) prompts?( with an answer)? (?:is )?(every token of )?the answer "
        r"(?:is )?the model's best guess"
        rf"(?:, and the lens's for good from depth {depth})?\."
    )
    alone = (
        r"(?:The|For (\d+) prompts? without an answer the) model's own next token is the lens's best guess "
        rf"for good from depth {depth}\."
    )
    whole = sentence.replace("For the one prompt", "For 1 of 1 prompt").replace("For the prompt", "For 1 of 1 prompt")
    whole = whole.replace("For both prompts", "For all 2 prompts")
    none = r"In the (?:one )?prompt( with an answer)? (?:(the answer) is not|not (every token of the answer) is)"
    whole = re.sub(none, lambda m: f"In none of 1 prompt{m[1] or ''} is {m[2] or m[3]}", whole)
    match = re.fullmatch(f"(?:{known})? ?(?:{alone})?", whole)
    assert match, sentence
    count, n, one, every, *first_part, other = match.groups()[:10]
    rest = match.groups()[10:]
    assert bool(n) == bool(answers) and bool(rest[0]) == bool(own)
    if answers:
        assert int(n) == len(answers) and bool(every) == (max(map(len, answers)) > 1) and bool(one) == bool(own)
        assert len(right) == {"all": len(answers), "none of": 0}.get(count) or count == f"{len(right)} of"
        assert bool(first_part[0]) == bool(right)
        counted += 3
    assert bool(other) == (bool(own) and bool(answers)) and (not other or int(other) == len(own))
    for (middle, of, spread, low, high), depths in ((first_part, right), (rest, own)):
        if not middle:
            continue
        ordered, half = sorted(depths), len(depths) // 2
        assert float(middle) == (ordered[half] + ordered[-half - 1 if len(depths) % 2 else half - 1]) / 2
        assert int(of) == n_layers and bool(spread) == (len(depths) > 1)
        if low:
            assert (int(low), int(high)) == (ordered[0], ordered[-1]) and low != high
        else:
            assert ordered[0] == ordered[-1]
        counted += 2
    return counted


# ---------------------------------------------------------------- sinks


def sinks_of(made: ProbeResult) -> dict[int, list[int]]:
    """The sinks of one prompt and the depths at which each is long: before the output somewhere, that is."""
    stream = made["resid_norm"].astype(float)
    if stream.shape[1] < 3:
        return {}
    times = [[v / m if m > 0 else 0.0 for v in row] for row, m in zip(stream, np.median(stream[:, 1:], axis=1))]
    long = {t: [d for d, row in enumerate(times) if row[t] >= 5] for t in range(stream.shape[1])}
    return {t: depths for t, depths in long.items() if depths and depths != [len(stream) - 1]}


def sinks_named(sentence: str, found: dict[int, list[int]], n_layers: int) -> int:
    """Claims on which tokens are sinks and at which depths: a lone last depth may be left out."""
    told = Claims(sentence)
    for pos, places in told.every(r"token (\d+) \((?:'.*?'|\".*?\"), ((?:from )?depths? [^)]+)\)"):
        said = set()
        for start, end in re.findall(r"(\d+)(?:–(\d+))?", places.split("from ")[0]):
            said |= set(range(int(start), int(end or start) + 1))
        for start in re.findall(r"from (?:depth )?(\d+)", places):
            said |= set(range(int(start), n_layers + 1))
        alone = {n_layers} - {d + 1 for d in found[int(pos)]}
        assert said == set(found[int(pos)]) - alone
    (more,) = re.findall(r"and (\d+) more", sentence) or [0]
    assert told.n + int(more) == len(found) and bool(sentence) == bool(found)
    return told.n


class Claims:
    """A sentence, and how many of its claims were looked at."""

    def __init__(self, sentence: str):
        self.sentence, self.n = sentence, 0

    def every(self, pattern: str):
        for match in re.finditer(pattern, self.sentence):
            self.n += 1
            yield match.groups()
