"""What a sentence of the verdict claims, counted anew from curves and best tokens in the plainest way, without the code
that made the sentence. Each function asserts every claim it knows and gives how many there were."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ed_core.depth import answer, verdict
from ed_core.depth.criteria import by_cosine, by_kl, by_overlap
from ed_core.types import ProbeResult

RULES = {"cosine": (by_cosine, 0.0), "kl": (by_kl, 0.5), "overlap": (by_overlap, 0.3)}


class Claims:
    """A sentence, and how many of its claims were looked at."""

    def __init__(self, sentence: str):
        self.sentence, self.n = sentence, 0

    def every(self, pattern: str) -> Iterator[tuple[str, ...]]:
        for match in re.finditer(pattern, self.sentence):
            self.n += 1
            yield match.groups()


def word(n: int) -> str:
    return answer.WORDS[n] if n <= 10 else str(n)


def holds(name: str, curve: list[float], at: int, threshold: float) -> bool:
    """Whether the rule's condition holds at a depth, in the plainest way."""
    if name == "kl":
        return curve[at] < threshold * max(curve)
    return curve[at] > threshold if name == "overlap" else curve[at] < threshold <= curve[at + 1]


def places(name: str, curve: list[float], threshold: float) -> list[int]:
    return [i for i in range(len(curve) - 1) if holds(name, curve, i, threshold)]


def first(name: str, curve: Sequence[float], threshold: float) -> int | None:
    """What the papers' rule gives."""
    found = places(name, list(curve), threshold)
    return (found[-1] if name == "cosine" else found[0]) if found else None


def later(curve: Sequence[float], threshold: float) -> int | None:
    """What the KL rule gives from depth 1 on."""
    return next((i for i in range(1, len(curve) - 1) if curve[i] < threshold * max(curve[1:])), None)


def stable(name: str, curve: Sequence[float], threshold: float) -> int | None:
    """The depth from which the rule holds for good; of the cosine the last negative one."""
    n = len(curve)
    if name == "cosine":
        negative = [i for i in range(n) if curve[i] < 0]
        return negative[-1] if negative and negative[-1] < n - 1 else None
    return next((i for i in range(n - 1) if all(holds(name, curve, j, threshold) for j in range(i, n))), None)


def claims(name: str, sentence: str, curve, threshold: float | None, k: int, without=None, echo=None) -> int:
    """Count every claim of a sentence on one criterion anew; how many there were. `without`: the curve without the
    sinks, `echo`: the share of tokens that depth 0 repeats; where they are None these claims are held elsewhere."""
    curve, n = [float(v) for v in curve], len(curve)
    at = RULES[name][1] if threshold is None else threshold
    found = places(name, curve, at)
    depth = (found[-1] if name == "cosine" else found[0]) if found else None
    told = Claims(sentence)
    every = told.every

    for layer, of in every(r"(?:by|says|after) layer (\d+) of (\d+)"):
        assert (int(layer), int(of)) == (depth, n)
    for low, high in every(r"\((\d+) to (\d+) with other thresholds\)"):
        moved = [places(name, curve, t) for t in verdict.BANDS[name]]
        moved = [(p[-1] if name == "cosine" else p[0]) for p in moved if p]
        assert (int(low), int(high)) == (min(moved), max(moved))
    for (layer,) in every(r"for good (?:only from layer|by) (\d+)"):
        layer = int(layer)
        assert all(holds(name, curve, i, at) for i in range(layer, n)) and not holds(name, curve, layer - 1, at)
    for _ in every(r"by layer \d+ of \d+(?! *\(?\d* *.*for good)[^,]*\.$"):
        assert name == "cosine" or "for good" in sentence or all(holds(name, curve, i, at) for i in range(depth, n))
    for _ in every("after it none does"):
        assert min(curve[depth + 1 :]) >= 0 and min(curve[: depth + 1]) < 0
    for (times,) in every(r"changes sign (\w+) times"):
        changes = sum((a < 0) != (b < 0) for a, b in pairwise(curve))
        assert times == word(changes) and changes > 3
    for _ in every("negative in the last layer"):
        assert curve[-1] < 0
    for _ in every("No layer erases"):
        assert min(curve) >= 0
    for _ in every("Every layer erases"):
        assert max(curve) < 0
    for _ in every("falls below 0 and stays there"):
        falls = next(i for i, v in enumerate(curve) if v < 0)
        assert falls > 0 and max(curve[falls:]) < 0
    for _ in every("Before the output itself the lens|the lens is never"):
        assert not any(holds(name, curve, i, at) for i in range(n))
    for _ in every("Only in front of the last layer"):
        assert [holds(name, curve, i, at) for i in range(n)] == [False] * (n - 1) + [True]
    for _ in every("for good only in front of the last layer"):
        assert stable(name, curve, at) is None and holds(name, curve, n - 1, at) and found
    for _ in every("in front of the last layer it"):
        assert not holds(name, curve, n - 1, at) and found
    for _ in every("the output from the start"):
        assert max(curve) < 1e-6
    for (share,) in every(r"shares more than (\d+)%"):
        assert int(share) == round(100 * at)
    for (best,) in every(r"best (\w+) tokens"):
        assert best == word(k)
    for (said,) in every(r"without depth 0 (?:the rule|it) (says \d+|gives no depth)"):
        assert said == says(later(curve, at))
    for (said,) in every(r"without the sinks (?:the rule|it) (says \d+|gives no depth)"):
        assert without is None or said == says(first(name, [float(v) for v in without], at))
    for _ in every("the lens mostly repeats the token just read"):
        assert echo is None or echo >= 0.5
    if "No clear" in sentence:
        assert ":" in sentence and "The papers' rule" in sentence
    return told.n


def says(depth: int | None) -> str:
    return "gives no depth" if depth is None else f"says {depth}"


def mean_of(curves: Sequence[Sequence[float]], tokens: Sequence[int]) -> list[float]:
    """The curve over all tokens of all prompts, from each prompt's own mean."""
    return [sum(n * c[i] for c, n in zip(curves, tokens)) / sum(tokens) for i in range(len(curves[0]))]


def resampled(
    name: str, curves: Sequence[Sequence[float]], tokens: Sequence[int], threshold: float
) -> list[int | None]:
    """What the rule gives for a thousand draws of as many prompts, the seeded ones of the product."""
    n, found = len(tokens), []
    for times in np.random.default_rng(0).multinomial(n, [1 / n] * n, size=1000):
        drawn = [i for i in range(n) for _ in range(times[i])]
        found.append(first(name, mean_of([curves[i] for i in drawn], [tokens[i] for i in drawn]), threshold))
    return found


def claims_over(name: str, sentence: str, curves, tokens, threshold: float | None, k: int, without=None, echo=None):
    """The same of a sentence over prompts. `curves`: each prompt's own mean; `without`: the mean over all without the
    sinks."""
    curve, at = mean_of(curves, tokens), RULES[name][1] if threshold is None else threshold
    depth, tenth, told = first(name, curve, at), len(curve) / 10, Claims(sentence)
    drawn = resampled(name, curves, tokens, at) if len(tokens) >= 5 else []
    defined = [d for d in drawn if d is not None]
    missing = 1 - len(defined) / len(drawn) if drawn else 0.0
    ends = np.quantile(defined, [0.05, 0.95]) if defined else []
    for low, high in told.every(r"5–95 % over prompts: ([\d.]+) to ([\d.]+),"):
        assert np.allclose([float(low), float(high)], ends, atol=0.051)
    for (share,) in told.every(r"no depth in ([\d.]+)% of the resamples\)"):
        assert missing > 0 and abs(float(share) - 100 * missing) <= 0.051
    for _ in told.every("a depth in each resample"):
        assert drawn and missing == 0
    for _ in told.every("with prompts drawn anew neither"):
        assert drawn and not defined and depth is None
    for _ in told.every("no interval below five prompts"):
        assert len(tokens) < 5
    assert told.n, "nothing is said of how sure it is"
    for _ in told.every("moves by more than a tenth"):
        assert max(abs(end - depth) for end in ends) > tenth
    for _ in told.every("gives no depth in more than 5% of the resamples"):
        assert missing > 0.05
    steady = all(abs(end - depth) <= tenth for end in ends) and missing <= 0.05 if depth is not None else True
    assert steady or "No clear" in sentence
    if "by layer" in sentence and "for good" not in sentence:
        assert all(holds(name, curve, i, at) for i in range(depth, len(curve)))
    given = {"stable": stable(name, curve, at), "from depth 1": later(curve, at)}
    for variant, said in told.every(r"(stable|from depth 1|without sinks) (\d+|no depth)"):
        if variant in given:
            assert said == ("no depth" if given[variant] is None else str(given[variant]))
        elif without is not None:
            found = first(name, [float(v) for v in without], at)
            assert said == ("no depth" if found is None else str(found))
    return told.n + claims(name, sentence, curve, threshold, k, without, echo)


def seen_over(sentence: str, answers: Sequence[Sequence[int | None]], own: Sequence[int], n_layers: int) -> int:
    """Claims on what is seen at the answers. `answers`: of each prompt with one the depths of its tokens (None: not the
    best guess in the output); `own`: the depths of the model's own next token, of each prompt without an answer."""
    told = Claims(sentence)
    right = [max(depths) for depths in answers if None not in depths]
    for count, n in told.every(r"best guess for (all|none of|\d+ of) (\d+) prompt"):
        assert int(n) == len(answers)
        assert len(right) == {"all": len(answers), "none of": 0}.get(count) or count == f"{len(right)} of"
    for _ in told.every("every token of it"):
        assert max(map(len, answers)) > 1
    for _ in told.every("that ha(?:ve|s) one"):
        assert own and answers
    for (n,) in told.every(r"For (\d+) prompts? without an answer"):
        assert int(n) == len(own) and answers
    depth = r"([\d.]+) of (\d+) on( each time| in the median \((\d+) to (\d+)\))?"
    for pattern, depths in ((f"it is so from depth {depth}", right), (f"lens' best guess from depth {depth}", own)):
        for middle, of, spread, low, high in told.every(pattern):
            ordered, half = sorted(depths), len(depths) // 2
            assert float(middle) == (ordered[half] + ordered[-half - 1 if len(depths) % 2 else half - 1]) / 2
            assert int(of) == n_layers and bool(spread) == (len(depths) > 1)
            if low:
                assert (int(low), int(high)) == (ordered[0], ordered[-1]) and low != high
            else:
                assert ordered[0] == ordered[-1]
    return told.n


def lasting(rows: Sequence[bool]) -> int | None:
    """The first entry from which it holds through the last."""
    return next((i for i in range(len(rows)) if all(rows[i:])), None)


def seen_at(sentence: str, lens: ProbeResult) -> int:
    """Claims on what is seen at one prompt's answer, from the lens' best tokens."""
    told, start, top = Claims(sentence), lens.answer_start, lens["top_ids"].tolist()
    n_layers, given = len(top) - 1, lens.answer_start is not None
    due = [(p - 1, lens.token_ids[p]) for p in range(start, lens.n_tokens)] if given else []
    due = due or [(lens.n_tokens - 1, top[-1][-1][0])]
    best = [lasting([row[pos][0] == token for row in top]) for pos, token in due]
    among = lasting([due[0][1] in row[due[0][0]] for row in top])
    right = [depth for depth in best if depth is not None]
    assert ("model's own next token" in sentence) == (not given and best[0] > 0)
    for only, depth, of, output in told.every(r"becomes the best guess( only)? at depth (\d+) of (\d+)(, the output)?"):
        assert (best, int(of)) == ([int(depth)], n_layers) and bool(only) == bool(output) == (best[0] == n_layers)
    for k, depth in told.every(r"it is among (?:the|its) best (\w+) from (?:depth )?(\d+)"):
        assert among == int(depth) and k == word(len(top[0][0]))
    for _ in told.every("is not among its best"):
        assert among is None
    for _ in told.every("at every depth"):
        assert best == [0]
    for _ in told.every("The answer “.*” is not the model's best guess"):
        assert best == [None]
    for (n,) in told.every(r"[Tt]he answer's (\d+) tokens"):
        assert int(n) == len(best) > 1
    for (n,) in told.every(r"tokens (\d+) become"):
        assert int(n) == len(right) < len(best)
    for _ in told.every("tokens become the best guess, each"):
        assert len(right) == len(best)
    for _ in told.every("None of the answer's"):
        assert not right
    named = re.findall(r"” at depth (\d+)", sentence) if "tokens" in sentence else []
    assert not named or [int(depth) for depth in named] == right
    for depth, of in told.every(r"all at depth (\d+) of (\d+)"):
        assert {int(depth)} == set(right) and int(of) == n_layers
    for low, high, of in told.every(r"between depth (\d+) and (\d+) of (\d+)"):
        assert (int(low), int(high), int(of)) == (min(right), max(right), n_layers)
    return told.n


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


def shared_by(sentence: str, model: dict, twin: dict) -> int:
    """Claims on what a twin shares. `model`, `twin`: by criterion the curve that it is read off."""
    told, names = Claims(sentence), {"cosine": "cosine", "KL": "kl", "overlap": "overlap"}
    marks = [
        {n: first(n, [float(v) for v in curves[n]], RULES[n][1]) for n in names.values()} for curves in (model, twin)
    ]
    for name, depth in told.every(r"(cosine|KL|overlap) (\d+|no depth)(?=[,:])"):
        assert depth == ("no depth" if marks[1][names[name]] is None else str(marks[1][names[name]]))
    assert told.n == 3
    tenth = len(model["kl"]) / 10
    near = [
        n for n in names.values() if None not in (marks[0][n], marks[1][n]) and abs(marks[0][n] - marks[1][n]) <= tenth
    ]
    for listed, s in told.every(r": the ([\w, ]+) mark(s?) would stand there"):
        assert [names[n] for n in re.split(", | and ", listed)] == near and bool(s) == (len(near) > 1)
    for _ in told.every("none of the model's marks"):
        assert not near
    for _ in told.every("no mark to compare"):
        assert not any(None not in (marks[0][n], marks[1][n]) for n in names.values())
    return told.n
