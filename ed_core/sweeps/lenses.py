"""What the lens says at every depth: of one prompt, through one or several lenses in one walk; and of a text that the
model writes token by token.

A text's keys and values are kept, so a token costs one token's forward pass; the stream at all depths is unembedded in
one product, which reads the head's weights as often as the plain token does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ParameterError
from ..models.language_model import LanguageModel
from ..models.layouts import Rows, Stream
from ..models.trace import Trace
from ..types import Encoding
from . import metrics
from .recorder import Recorder, on_host

Lens = Callable[[int, Stream], Stream]
ROW_BYTES = 6 * 4  # float32 tensors of [pos, vocab] alive at once while one depth is measured

MEASURES = (
    *("kl", "jsd", "entropy", "overlap", "top1_match", "agreement", "rank", "confidence"),
    *("top_ids", "top_probs", "settle_depth"),
)


def read(
    model: LanguageModel,
    encoding: Encoding,
    record: Recorder,
    lenses: Mapping[str, Lens | None],
    k: int,
    follow: int = -1,
    constant: Tensor | None = None,
    inside: str = "",
) -> None:
    """Fill the measures that the probe declares for each lens, at every depth.

    `lenses`: from the prefix of a lens's measures to its map from the stream at a depth to `h[L]`; None is the logit
    lens. `inside`: prefix of the measures read within every layer, between attention and MLP, "" for none
    (`ParameterError` where a model computes both in parallel). `follow`: token id to write the rank of, -1 for none.
    `constant`: a mean of `h[L]`; `constant_kl` becomes the divergence of its prediction."""
    if inside and model.parallel:
        raise ParameterError(
            f"The layers of {model.spec.name} compute attention and MLP in parallel, from the same stream, so "
            "there is no point between them to read; take points=layers."
        )
    n_depths, n_tokens, k = model.n_layers + 1, len(encoding), min(k, model.d_vocab)
    written = [*MEASURES, *["token_rank"] * (follow >= 0), *[inside + name for name in MEASURES if inside]]
    names = [prefix + name for prefix in lenses for name in written if prefix + name in record.specs]
    record.allocate(*names, *["constant_kl"] * (constant is not None), rank=k)
    trace = record.traced(model, encoding)
    chunk = max(1, record.budget.lens_bytes // (ROW_BYTES * model.d_vocab))
    chunks = [slice(i, min(i + chunk, n_tokens)) for i in range(0, n_tokens, chunk)]
    for done, place in enumerate(chunks):
        out = model.unembed(trace.resid[-1][0, place])
        against = metrics.AgainstOutput(out, k)
        if constant is not None:
            same = model.unembed(constant.to(model.dtype).expand(len(out), -1))
            record.write("constant_kl", place, against.measure(same)["kl"])
        for number, (prefix, lens) in enumerate(lenses.items()):
            points = {"": _depths(model, trace, place, lens, out, chunk, against.at_once)}
            points |= {inside: _middles(model, trace, place, chunk, against.at_once)} if inside else {}
            best: dict[str, list[Tensor]] = {point: [] for point in points}
            for half, (point, rows) in enumerate(points.items()):
                for depths, logits in rows:
                    figures = _figures(against, logits, follow)
                    best[point].extend(figures["top_ids"][..., 0])
                    for name, values in figures.items():
                        if record.holds(prefix + point + name):
                            record.write(prefix + point + name, (depths, place), values)
                    if record.holds(prefix + "top_ids"):
                        record.name_tokens(model, figures["top_ids"])
                    share = (half + depths.stop / n_depths) / len(points)
                    record.step((done + (number + share) / len(lenses)) / len(chunks))
            if record.holds(prefix + "settle_depth"):
                record.write(prefix + "settle_depth", place, metrics.settle_depth(torch.stack(best[""])))
            if inside and record.holds(prefix + inside + "settle_depth"):
                every = [row for pair in zip(best[""], best[inside]) for row in pair] + best[""][-1:]
                record.write(prefix + inside + "settle_depth", place, metrics.settle_depth(torch.stack(every)) / 2)


def _figures(against: metrics.AgainstOutput, logits: Rows, follow: int) -> dict[str, Tensor]:
    """Return a lens's figures by name, each `[depth, pos, …]`. `logits`: the lens's, depth after depth; `follow`: a
    token id to rank, -1 for none."""
    row = against.measure(logits)
    if follow >= 0:
        row["token_rank"] = metrics.rank(logits, torch.full_like(row["ids"][:, 0], follow))
    row = {name: values.unflatten(0, (-1, len(against.out))) for name, values in row.items()}
    ids, final, probabilities = row.pop("ids"), against.best[1], row.pop("best").exp()
    same = (ids[..., 0] == final[:, 0]).float()
    return row | {
        "top_ids": ids,
        "top_probs": probabilities,
        "confidence": probabilities[..., 0],
        "overlap": metrics.overlap(ids, final),
        "top1_match": same,
        "agreement": same,
    }


def _depths(
    model: LanguageModel, trace: Trace, place: slice, lens: Lens | None, out: Rows, rows: int, at_once: int
) -> Iterator[tuple[slice, Rows]]:
    """Yield a slice of depths and the lens's logits there, for the tokens at `place`; the last depth's are the model's
    own, `out`. `rows`: most rows of one product with the head; `at_once`: depths per yield."""

    def stream(depth: int) -> Tensor:
        """Return the stream at a depth, mapped by the lens."""
        h = trace.after(depth)[0, place]
        return h if lens is None else lens(depth, h).to(model.dtype)

    yield from _products(model, stream, len(out), rows, at_once)
    yield slice(model.n_layers, model.n_layers + 1), out


def _middles(model: LanguageModel, trace: Trace, place: slice, rows: int, at_once: int) -> Iterator[tuple[slice, Rows]]:
    """Yield what `_depths` yields, read within every layer: after attention and before the MLP."""

    def stream(layer: int) -> Tensor:
        """Return the stream within a layer, after attention and before the MLP."""
        return (trace.resid[layer][0, place].float() + trace.attn_out[layer][0, place].float()).to(model.dtype)

    yield from _products(model, stream, place.stop - place.start, rows, at_once)


def _products(
    model: LanguageModel, stream: Callable[[int], Tensor], size: int, rows: int, at_once: int
) -> Iterator[tuple[slice, Rows]]:
    """Yield a slice of layers and the logits of `stream(layer)` there, `at_once` layers at a time. `size`: tokens of
    each stream; `rows`: most rows of one product, so that a short prompt reads the head's weights once for many
    layers."""
    together = max(1, rows // size)
    for first in range(0, model.n_layers, together):
        layers = range(first, min(first + together, model.n_layers))
        logits = model.unembed(torch.cat([stream(layer) for layer in layers]))
        for begin, part in zip(layers[::at_once], logits.split(size * at_once)):
            yield slice(begin, begin + len(part) // size), part


# ---------------------------------------------------------------- while the model writes


OVER_DEPTHS = ("jsd", "confidence", "best_ids")
PER_TOKEN = ("ids", "settle_depth", "deep_thinking_ratio", "exit_depth", "exit_ids", "exit_agrees")


def write(
    model: LanguageModel,
    encoding: Encoding,
    record: Recorder,
    n_tokens: int,
    temperature: float,
    seed: int,
    threshold: float,
    g: float,
    late: int,
) -> None:
    """Fill the measures of the probe `generation`: the question continued by `n_tokens` tokens, or fewer if the model
    ends its text or runs out of positions. `temperature` 0 is greedy; `threshold`: probability for an early exit.
    `late`: a token counts for the deep-thinking ratio if its divergence first falls to `g` at this depth or later."""
    draw = random.Random(seed)
    question = encoding.ids[: encoding.answer_start or len(encoding)]
    n_tokens = model.room(len(question), n_tokens, record.note)
    deep, end = 0, model.ends
    record.allocate(*OVER_DEPTHS, *PER_TOKEN, step=n_tokens)

    def choose(step: int, logits: Tensor) -> int | None:
        """Write one step's figures; return the token to continue with, or None to end the text."""
        nonlocal deep
        jsd, confidence, best = metrics.jsd_to_output(logits)
        settled = metrics.settle_depth(best[:, None])[0]
        *over_depths, last = on_host([jsd, confidence, best, settled])
        (jsds, confidences, ids), settles = over_depths, int(last)
        token = int(ids[-1]) if temperature == 0 else sample(logits[-1], temperature, draw.random())
        leaves = confidences >= threshold
        leaves[-1] = True
        place = int(leaves.argmax())
        deep += int((jsds <= g).argmax()) >= late
        for name, values in zip(OVER_DEPTHS, over_depths):
            record.write(name, (slice(None), step), values)
        for name, value in zip(
            PER_TOKEN, (token, settles, deep / (step + 1), place, ids[place], ids[place] == ids[-1])
        ):
            record.write(name, step, value)
        record.name_tokens(model, [*ids, token])
        record.step((step + 1) / n_tokens)
        return None if token in end else token

    model.write(model.tensor(question), n_tokens, choose, at_depths=True)
    written = int((record.arrays["ids"] >= 0).sum())
    record.ended(written, n_tokens)
    for name in (*OVER_DEPTHS, *PER_TOKEN):
        record.arrays[name] = record.arrays[name][..., :written]
    for name, values in _over_tokens(record.arrays).items():
        record.allocate(name)
        record.write(name, ..., values)
    record.provenance["written"] = model.tokenizer.decode(
        record.arrays["ids"].tolist(), clean_up_tokenization_spaces=False
    )


def _over_tokens(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the measures that summarise all written tokens, by name, from the per-token arrays."""
    settled, depths = arrays["settle_depth"], np.arange(len(arrays["jsd"]))
    return {
        "share_settled": (settled <= depths[:, None]).mean(1),
        "mean_jsd": arrays["jsd"].mean(1, dtype=np.float64),
        "mean_depth": settled.mean(),
        "mean_ratio": arrays["deep_thinking_ratio"][-1],
        "mean_agreement": arrays["exit_agrees"].mean(),
        "mean_lost_at_0": ((arrays["exit_depth"] == 0) & (arrays["exit_agrees"] == 0)).mean(),
    }


def sample(logits: Tensor, temperature: float, u: float) -> int:
    """Return the token id that `u`, a uniform random number in [0, 1), draws from `softmax(logits / temperature)`: the
    first id where the cumulated float64 probabilities exceed `u`."""
    cumulated = (logits.cpu().double() / temperature).softmax(-1).cumsum(-1)
    return int(torch.searchsorted(cumulated, u * float(cumulated[-1]), right=True).clamp_max(len(logits) - 1))
