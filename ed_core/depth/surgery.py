"""What prunings and layer surgery come to: which stretch costs least and the list to keep; the cheapest variant of
every length, what the proxies would have chosen, what the controls say; in figures and in sentences. Numpy only."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..probes.base import rank_correlation
from ..probes.surgery import stretches
from ..types import ProbeResult
from .wording import listed, printed

EACH = ", each on its own,"
LISTED = 6  # layers that a sentence names one by one


def best_stretch(kl: ArrayLike, n: int) -> list[int]:
    """The stretch of n blocks whose removal changes the predictions least, of those with a finite divergence."""
    start = int(np.argmin(np.nan_to_num(np.asarray(kl, np.float64), nan=np.inf)))
    return list(range(start, start + n))


def whole_passes(n: int, pruned: ProbeResult) -> bool:
    """Whether every stretch of n blocks is a whole pass of a looped model, or several: each leaves the same layers."""
    passes = int(pruned.provenance.get("passes", 1))
    return passes > 1 and n * passes % pruned.n_layers == 0


def costs(curves: Mapping[str, np.ndarray], start: int | None) -> dict[str, float]:
    """What a pruning costs, from the aggregates of `prune`: of the stretch that begins at `start`, or of the chosen set
    (None). Without a perplexity where there is no loss, as of a single token."""
    at = {
        name: curves[name][start] if start is not None else curves[f"drop_{name}"]
        for name in ("kl", "top1_kept", "nll")
    }
    found = {"kl": float(at["kl"]), "top1_kept": float(at["top1_kept"])}
    if np.isnan(curves["nll_whole"]):
        return found
    return found | {"perplexity": float(np.exp(at["nll"])), "perplexity_whole": float(np.exp(curves["nll_whole"]))}


def worse_than_uniform(loss: float, d_vocab: int | None) -> str:
    """What has to be said where the whole model's `loss` on a text, nats per token, is above a uniform guess's,
    `ln d_vocab`; "" otherwise, and where the vocabulary is not known."""
    if not d_vocab or not loss > (even := math.log(d_vocab)):
        return ""
    return (
        f"Over all tokens, the question's too, the whole model's loss is above a uniform guess's ({loss:.2f} against "
        f"{even:.2f} nats per token), so it and the best guesses there say little about the layers."
    )


def generated(written: Mapping[str, np.ndarray], n_prompts: int, n: int = 1) -> str:
    """Which known answers are written without a layer, in one sentence: the aggregate of `exact_answers`."""
    exact, told = np.asarray(written["exact"], np.float64), _answers(n_prompts)
    said = f"The whole model {told(written['exact_whole'])}"
    if exact.min() == exact.max():
        return f"{said}; whichever {_unit(n)} is left out, it {told(exact[0])}."
    if exact.min() >= float(written["exact_whole"]):
        most = np.flatnonzero(exact == exact.max())
        better = told(exact.max()) if n_prompts == 1 else told(exact.max()).replace("writes", "writes more,", 1)
        return f"{said}; without {_which(most, exact, n)} it {better}."
    fewest = told(exact.min()) if n_prompts == 1 else told(exact.min()).replace("writes", "writes the fewest,", 1)
    return f"{said}; without {_fewest(exact, n)} it {fewest}."


def by_loss(
    curves: Mapping[str, np.ndarray], written: Mapping[str, np.ndarray], n_prompts: int, n: int = 1
) -> list[str]:
    """What the loss on the same prompts says beside it: the aggregates of `prune` and of `exact_answers`."""
    exact, added = np.asarray(written["exact"], np.float64), curves["nll"] - curves["nll_whole"]
    if not np.isfinite(added).all():
        return [f"Without {_which(np.flatnonzero(~np.isfinite(added)), exact, n)} the loss is not finite."]
    most, fewest = int(np.argmax(added)), np.flatnonzero(exact == exact.min())
    equal = np.flatnonzero(added == added[most])
    said = [
        f"Whichever {_unit(n)} is left out, the loss falls; least without {_named([most], n)} "
        f"({printed(added[most], '+.2g')} nats per token)."
        if added[most] < 0
        else f"The loss changes alike whichever {_unit(n)} is left out: by {printed(added[most], '+.2g')} nats per "
        "token."
        if added[most] == added.min()
        else f"By loss, {listed([_named([int(s)], n) for s in equal])} count most: without any one of them the loss "
        f"changes by {printed(added[most], '+.2g')} nats per token."
        if len(equal) > 1
        else f"By loss, {_named([most], n)} {'counts' if n == 1 else 'count'} most: without "
        f"{'it' if n == 1 else 'them'} the loss changes by {printed(added[most], '+.2g')} nats per token, and the "
        f"model {_answers(n_prompts)(exact[most])}."
    ]
    if exact.min() == exact.max():
        return said
    near, far = printed(added[fewest].min(), "+.2g"), printed(added[fewest].max(), "+.2g")
    said.append(
        f"Without {_fewest(exact, n)} the loss changes by {near if near == far else f'{near} to {far}'} nats per token."
    )
    if (rank := rank_correlation(added, -exact)) is not None:
        units = f"{len(added)} {'layers' if n == 1 else f'stretches of {n} layers'}"
        said.append(
            f"Over {units} the rank correlation of added loss with answers lost is ρ = {printed(rank, '+.2f')} (no "
            "interval)."
        )
    return said


def _answers(n_prompts: int) -> Callable[[float | np.floating[Any] | np.ndarray], str]:
    def told(share: int | float | np.floating[Any] | np.ndarray) -> str:
        if n_prompts == 1:
            return "writes the answer" if share else "does not write the answer"
        return f"writes {round(float(share) * n_prompts)} of {n_prompts} answers"

    return told


def _unit(n: int) -> str:
    return "layer" if n == 1 else f"stretch of {n} layers"


def _fewest(exact: np.ndarray, n: int) -> str:
    """Without which the fewest answers are written: named where they are few."""
    return _which(np.flatnonzero(exact == exact.min()), exact, n)


def _which(at: np.ndarray, exact: np.ndarray, n: int) -> str:
    """These layers or stretches, named where they are few."""
    if len(at) > LISTED:
        return f"{len(at)} of {len(exact)} {'layers' if n == 1 else 'stretches'}{EACH}"
    return f"{_named(at, n)}{EACH if len(at) > 1 else ''}"


def _named(starts: Sequence[int] | np.ndarray, n: int) -> str:
    if len(starts) == 1:
        return f"layer {starts[0]}" if n == 1 else f"layers {starts[0]}–{starts[0] + n - 1}"
    names = [f"{s}" if n == 1 else f"{s}–{s + n - 1}" for s in starts]
    return f"layer{'s' * (n > 1)} {', '.join(names[:-1])} or {names[-1]}"


def llama_quantize(order: Sequence[int], n_layers: int, file: str) -> str:
    """The command by which llama.cpp writes a GGUF file without the layers that an order leaves out, its weights as
    they are; "" where it leaves none out, or does more than that, which the tool cannot. Layers are counted from 0
    there, too; the tool renumbers those that stay."""
    if not order or len(order) == n_layers or list(order) != sorted(set(order)):
        return ""
    left_out = sorted({*range(n_layers)} - {*order})
    which = f"{len(left_out)}-layers" if len(left_out) > 1 else f"layer-{left_out[0]}"
    out = f"{file.removesuffix('.gguf')}-without-{which}.gguf"
    return shlex.join(["llama-quantize", "--prune-layers", ",".join(map(str, left_out)), file, out, "COPY"])


def order_list(n_layers: int, order: Sequence[int], model: str, evidence: Mapping[str, float | int]) -> str:
    """JSON: the blocks as they shall run, which of all are kept and which left out, and what that costs, with on how
    many prompts and tokens that rests."""
    kept = sorted(set(order))
    left_out = [layer for layer in range(n_layers) if layer not in kept]
    told = {"model": model, "n_layers": n_layers, "order": [*order], "keep": kept, "drop": left_out}
    return json.dumps(told | {"measured": dict(evidence)}, indent=2)


def passthrough(order: Sequence[int], model: str, evidence: Mapping[str, float | int] = {}) -> str:
    """A passthrough merge of one model's blocks in any order, each ascending run a slice; slices overlap where blocks
    run twice. `layer_range` excludes its end, as mergekit reads it."""
    if not order:
        raise ValueError("no layer is left to keep")
    lines = ["# measured: " + ", ".join(f"{name} {value:.4g}" for name, value in evidence.items())] if evidence else []
    lines += ["slices:"]
    for run in stretches(order):
        ends = f"[{run[0]}, {run[-1] + 1}]"
        lines += ["  - sources:", f"      - model: {json.dumps(model)}", f"        layer_range: {ends}"]
    return "\n".join([*lines, "merge_method: passthrough", "dtype: bfloat16", ""])


Curves = Mapping[str, np.ndarray]
KINDS = ("drop", "swap", "repeat")
LEAST = 1e-4  # nats per token: below it the order of a sum may decide
PROXIES = {  # proxy: what it is called, and whether it takes the largest value
    "angular_distance": ("angular distance", False),
    "block_influence": ("block influence", False),
    "update_cosine": ("update's cosine", True),
}


@dataclass(frozen=True)
class Choice:
    """One variant: the stretch `[i, j)`, or the two layers, and its figures over the prompts."""

    kind: str
    i: int
    j: int
    loss: float
    kl: float
    top1_kept: float

    @property
    def layers(self) -> str:
        """In words: a stretch by its first and last layer."""
        if self.kind == "swap":
            return f"{self.i} and {self.j}"
        return f"{self.i}" if self.j == self.i + 1 else f"{self.i}–{self.j - 1}"

    def order(self, n_layers: int) -> list[int]:
        """The model's layers as they then run."""
        every = list(range(n_layers))
        if self.kind == "drop":
            return every[: self.i] + every[self.j :]
        if self.kind == "repeat":
            return every[: self.j] + every[self.i :]
        every[self.i], every[self.j] = self.j, self.i
        return every


@dataclass(frozen=True)
class Row:
    """All variants of one length (of one distance, where two layers change places): the one that costs least, the
    median loss over all `n` of them, whether they all cost the same (`alike`); of stretches that are left out what each
    proxy chooses; of repeats the loss with as many passes through `random_layer`."""

    length: int
    n: int
    best: Choice
    median: float
    alike: bool = False
    chosen: Mapping[str, Choice] = field(default_factory=dict)
    random_loss: float = float("nan")
    random_layer: int = -1


def kinds_of(curves: Curves) -> list[str]:
    """Which maps there are, with all three of their values."""
    return [kind for kind in KINDS if all(f"{kind}_{name}" in curves for name in ("loss", "kl", "top1_kept"))]


def rows(curves: Curves, kind: str, random_layer: Sequence[int] = ()) -> list[Row]:
    """The variants by length, shortest first; lengths without a finite loss are left out."""
    loss, found = np.asarray(curves[f"{kind}_loss"], np.float64), []
    for length in range(1, len(loss) + 1):
        places = [(i, i + length) for i in range(len(loss)) if i + length < loss.shape[1]]
        values = np.array([loss[place] for place in places])
        finite = np.isfinite(values)
        if not finite.any():
            continue
        best = choice(curves, kind, *places[int(np.nanargmin(values))])
        chosen = {}
        for name, (_, largest) in PROXIES.items() if kind == "drop" else ():
            proxy = np.array([curves[name][place] for place in places]) * (-1 if largest else 1)
            chosen[name] = choice(curves, kind, *places[int(np.argmin(proxy))])
        at_random, layer = float("nan"), -1
        if kind == "repeat":
            at_random = float(curves["random_loss"][length - 1])
            layer = int(random_layer[length - 1]) if len(random_layer) >= length else -1
        n, median = int(finite.sum()), float(np.median(values[finite]))
        alike = n > 1 and np.ptp(values[finite]) == 0
        found.append(Row(length, n, best, median, bool(alike), chosen, at_random, layer))
    return found


def choice(curves: Curves, kind: str, i: int, j: int) -> Choice:
    """One variant of a kind and what it costs: loss and KL in nats per token, the share of best guesses kept."""
    return Choice(kind, i, j, *(float(curves[f"{kind}_{name}"][i, j]) for name in ("loss", "kl", "top1_kept")))


def added(curves: Curves, kind: str, found: Sequence[Row]) -> dict[str, np.ndarray]:
    """Loss above the whole model's by length, `[length]` from 0 (the whole model itself: 0): of the variant that costs
    least, of the median one, and of what the proxies choose, or of the random layer."""
    whole = float(curves["loss_whole"])
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in found:
        lines.setdefault("least", []).append((row.length, row.best.loss))
        lines.setdefault("median", []).append((row.length, row.median))
        for name in ("angular_distance", "update_cosine") if row.chosen else ():  # block influence is nearly the angle
            lines.setdefault(PROXIES[name][0], []).append((row.length, row.chosen[name].loss))
        if kind == "repeat":
            lines.setdefault("random layer", []).append((row.length, row.random_loss))
    out = {}
    for name, points in lines.items():
        values = np.full(max(row.length for row in found) + 1, np.nan)
        values[0] = 0.0
        for length, loss in points:
            values[length] = loss - whole
        out[name] = values
    return out


# ---------------------------------------------------------------- sentences


def sentence(curves: Curves, kind: str, found: Sequence[Row]) -> str:
    """What a map says, in one sentence with its figures."""
    if not found:
        return "No variant of this kind gives a finite loss."
    whole = float(curves["loss_whole"])
    if kind == "drop":
        best = found[0].best
        if found[0].alike:
            which = _unit(found[0].length)
            return f"Whichever {which} is left out, the loss changes alike: {_moves(whole, best.loss)} nats per token."
        what = "layer to leave out is layer"
        if (n := found[0].length) > 1:
            what = f"stretch of {n} layers to leave out is layers"
        return (
            f"By loss, the cheapest {what} {best.layers}, on the text it was chosen on: "
            f"{_moves(whole, best.loss)} nats per token."
        )
    row, n = min(found, key=lambda one: one.best.loss), sum(one.n for one in found)
    if kind == "swap":
        moves = _moves(whole, row.best.loss)
        if n == 1:
            return f"The only exchange, of layers {row.best.layers}, changes the loss: {moves} nats per token."
        return (
            f"By loss, the cheapest of {n} exchanges is that of layers {row.best.layers}, on the text it was chosen "
            f"on: {moves} nats per token."
        )
    if n == 1:
        once = f"layer{'s' * (row.length > 1)} {row.best.layers}"
        return f"Running {once} twice changes the loss: {_moves(whole, row.best.loss)} nats per token."
    if row.best.loss > whole - LEAST:
        lowers = "lowers the loss" if row.best.loss >= whole else f"lowers the loss by {LEAST:g} nats per token or more"
        return (
            f"None of {n} stretches run twice {lowers}; layer{'s' * (row.length > 1)} {row.best.layers} cost"
            f"{'s' * (row.length == 1)} least, {_moves(whole, row.best.loss)} nats per token."
        )
    return (
        f"Running layer{'s' * (row.length > 1)} {row.best.layers} twice lowers the loss, "
        f"{_moves(whole, row.best.loss)} nats per token: the best of {n} stretches, on the text it was chosen on."
    )


def reasons(curves: Curves, kind: str, found: Sequence[Row]) -> list[str]:
    """What stands beside the sentence: what the proxies would have chosen, what distance does, the random control."""
    if not found:
        return []
    return {"drop": _proxies, "swap": _distances, "repeat": _controls}[kind](found, float(curves["loss_whole"]))


def _proxies(found: Sequence[Row], whole: float) -> list[str]:
    said, found = [], [row for row in found if row.n > 1]  # of all layers there is one stretch, and nothing to choose
    if not found:
        return []
    for name, (called, _) in PROXIES.items():
        misses = [row.chosen[name].loss - row.best.loss for row in found if row.chosen[name].loss != row.best.loss]
        hits = len(found) - len(misses)  # several may cost least, as whole passes of a looped model do
        broken = sum(not np.isfinite(miss) for miss in misses)
        misses = [miss for miss in misses if np.isfinite(miss)]
        by = f"the {called}" if name == "update_cosine" else f"{called} over all tokens"
        told = f"Choosing by {by} finds the cheapest stretch at {hits or 'none'} of {_lengths(found)}"
        cost = f"{printed(np.median(misses), '.2g')} nats per token more (median)" if misses else ""
        where = f"at {len(misses)} " if broken else "at the others " if hits else ""
        more = f"; {where}its choice costs {cost}" if cost else ""
        more += f"; at {broken} its choice gives no finite loss" if broken else ""
        said.append(f"{told}{more}.")
    return said


def _distances(found: Sequence[Row], whole: float) -> list[str]:
    near, far = found[0], found[-1]

    def median(row: Row) -> str:
        what = f"the median of {row.n} exchanges" if row.n > 1 else "the only exchange"
        return f"at distance {row.length} {what}"

    said = f"{median(near)} changes the loss by {printed(near.median - whole, '+.2g')} nats per token"
    if far is not near:
        said += f", {median(far)} by {printed(far.median - whole, '+.2g')}"
    return [f"{said[0].upper()}{said[1:]}."]


def _controls(found: Sequence[Row], whole: float) -> list[str]:
    row = min(found, key=lambda one: one.best.loss)
    if not np.isfinite(row.random_loss):
        return []
    one = row.length == 1
    return [
        f"Control: {row.length} further pass{'' if one else 'es'} through layer {row.random_layer}, drawn at random, "
        f"{'gives' if one else 'give'} {_moves(whole, row.random_loss)} nats per token."
    ]


def _lengths(found: Sequence[Row]) -> str:
    return f"{len(found)} length{'s' * (len(found) != 1)}"


def _moves(whole: float, loss: float) -> str:
    return f"{printed(whole)} → {printed(loss)} ({printed(loss - whole, '+.2g')})"
