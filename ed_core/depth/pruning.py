"""From measured prunings to a choice: which stretch costs least, and the list to keep. Numpy
only."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..probes.scores import rank_correlation
from .wording import listed, printed

EACH = ", each on its own,"
LISTED = 6  # layers that a sentence names one by one


def best_stretch(kl: ArrayLike, n: int) -> list[int]:
    """The stretch of n blocks whose removal changes the predictions least, of those with a finite divergence."""
    start = int(np.argmin(np.nan_to_num(np.asarray(kl, np.float64), nan=np.inf)))
    return list(range(start, start + n))


def costs(curves: Mapping[str, np.ndarray], start: int | None) -> dict[str, float]:
    """What a pruning costs, from the aggregates of `prune`: of the stretch that begins at `start`, or of the chosen set
    (None)."""
    at = {
        name: curves[name][start] if start is not None else curves[f"drop_{name}"]
        for name in ("kl", "top1_kept", "nll")
    }
    return {
        "kl": float(at["kl"]),
        "top1_kept": float(at["top1_kept"]),
        "perplexity": float(np.exp(at["nll"])),
        "perplexity_whole": float(np.exp(curves["nll_whole"])),
    }


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
    out = f"{file.removesuffix('.gguf')}-without-{len(left_out)}.gguf"
    return shlex.join(["llama-quantize", "--prune-layers", ",".join(map(str, left_out)), file, out, "COPY"])


def order_list(n_layers: int, order: Sequence[int], model: str, evidence: Mapping[str, float | int]) -> str:
    """JSON: the blocks as they shall run, which of all are kept and which left out, and what that costs, with on how
    many prompts and tokens that rests."""
    kept = sorted(set(order))
    left_out = [layer for layer in range(n_layers) if layer not in kept]
    told = {"model": model, "n_layers": n_layers, "order": [*order], "keep": kept, "drop": left_out}
    return json.dumps(told | {"measured": dict(evidence)}, indent=2)


def passthrough(
    order: Sequence[int], model: str, evidence: Mapping[str, float | int] = {}, dtype: str = "bfloat16"
) -> str:
    """A passthrough merge of one model's blocks in any order, each ascending run a slice; slices overlap where blocks
    run twice. `layer_range` excludes its end, as mergekit reads it."""
    if not order:
        raise ValueError("no layer is left to keep")
    breaks = [i for i in range(1, len(order)) if order[i] != order[i - 1] + 1]
    runs = [(part[0], part[-1] + 1) for part in np.split(np.asarray(order), breaks)]
    lines = ["# measured: " + ", ".join(f"{name} {value:.4g}" for name, value in evidence.items())] if evidence else []
    lines += ["slices:"]
    for begin, end in runs:
        lines += ["  - sources:", f"      - model: {json.dumps(model)}", f"        layer_range: [{begin}, {end}]"]
    return "\n".join([*lines, "merge_method: passthrough", f"dtype: {dtype}", ""])
