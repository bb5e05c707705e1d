"""Published figures measured again: a paper's protocol as studies, and an answer for each of its entries. Numpy only.

Protocols: [H25] Hu et al. 2025 (arXiv 2512.14064), effective depth by three rules on the first 10 prompts of HellaSwag
and GSM8K and the first 5 of AIME24 that have 400 tokens or fewer, in int8; [C25] Csordás et al. 2025 (arXiv
2505.13898), contributions and future effects on GSM8K (20 and 10 prompts), depth scores by level on MQuAKE and MATH (20
prompts a level, shuffled with seed 42)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import machine
from ..depth import say
from ..depth.published import CAVEATS, CITATION
from ..depth.rules import RULES
from ..errors import ParameterError, StudyError
from ..models import tokens
from ..models.bundled import MODELS
from ..models.ref import ModelRef
from ..models.sizes import PRECISIONS, QUANTIZED
from ..probes.base import layer_effect
from ..statistics import FEWEST
from ..types import Prompt
from . import difficulty, points, tables
from .items import Folder
from .part import Part
from .sets import FORMATS
from .study import ModelEntry, ProbeEntry, SetEntry, Study, nearest
from .words import Row, measured, render

TOKENIZER, LONGEST = "Qwen/Qwen2.5-1.5B-Instruct", 400  # what AIME24's prompts are counted with, and at most have [H25]
SAME, NOT_DEFINED, NO_ENTRY = "the same layer", "not defined", "no published entry"
UNDECIDED, AS_PUBLISHED = "undecided", "as published"
HEAD = ("model", "set", "quantity", "measured", "published", "verdict")
C25 = "Csordás et al. 2025, arXiv 2505.13898"
ANCHORS = {"first": (1, 0.15), "second": (-1, 0.05)}  # of |D| / |h| in each half of Llama-3.1-70B on GSM8K [C25 §3.1]
LEVELS = {"mquake": ("answer", ("2", "3", "4")), "math": ("within_answer", ("1", "2", "3", "4", "5"))}


@dataclass(frozen=True)
class Entry:
    """One figure of a paper, measured next to published, as text: `measured` with its 5 to 95 % over prompts."""

    model: str
    set: str
    quantity: str
    measured: str
    published: str
    verdict: str


@dataclass(frozen=True)
class Paper:
    """A paper that can be measured again. `sets`: the prompt sets of its protocol; `precision`: the one it ran in;
    `parts`: makes its studies by name, from models, set entries, and how many prompts of each set (of each level where
    it has levels) in place of the paper's number; `entries`: yields the paper's figures as a study's folder has
    them."""

    name: str
    sets: tuple[str, ...]
    precision: str
    parts: Callable[[Sequence[ModelEntry], Mapping[str, SetEntry], int | None], dict[str, Study]]
    entries: Callable[[Folder], Iterator[Entry]]


def find(name: str) -> Paper:
    """Return the paper called `name`; `StudyError` where it is unknown."""
    if name not in PAPERS:
        raise StudyError(f"There is no protocol of {name!r}; {nearest(name, list(PAPERS))}")
    return PAPERS[name]


def chosen(paper: Paper, given: Sequence[str], first_model: str) -> dict[str, SetEntry]:
    """Return the entries of the paper's sets by name, from the hub or from local files with its columns. `given`: names
    or NAME=FILE, all of the paper's where empty. `first_model`: counts tokens where the paper's tokenizer is
    missing."""
    entries = {}
    for text in given or paper.sets:
        name, equals, file = text.partition("=")
        if name not in paper.sets:
            raise StudyError(f"{paper.name} has no set {name!r}; {nearest(name, paper.sets)}")
        place = Path(file).expanduser()
        if equals and not place.is_file():
            raise StudyError(f"--sets {name}: there is no file {file!r}; give a .jsonl, .csv or .parquet of the set.")
        source: dict[str, Any] = {"file": str(place.resolve()), "format": name} if equals else {"hub": name}
        if name == "aime24":  # the only set whose long prompts are left out [H25]
            counts = tokens.preview(ModelRef.named(TOKENIZER), Prompt(".")) is not None
            source |= {"max_tokens": LONGEST, "tokenizer": TOKENIZER if counts else first_model}
        entries[name] = SetEntry(name=name, **source)
    return entries


# ---------------------------------------------------------------- Hu et al. 2025


def _hu_parts(models: Sequence[ModelEntry], sets: Mapping[str, SetEntry], limit: int | None) -> dict[str, Study]:
    """Return the study of Hu et al.'s protocol by its name. Arguments as of `Paper.parts`."""
    few = [one.model_copy(update={"limit": limit or FORMATS[name].prompts}) for name, one in sorted(sets.items())]
    probes = [ProbeEntry(name="contributions"), ProbeEntry(name="logit_lens")]
    note = f"The protocol of {CITATION}."
    return {"hu2025": Study(name="hu2025", note=note, models=tuple(models), sets=tuple(few), probes=tuple(probes))}


def _hu_entries(folder: Folder) -> Iterator[Entry]:
    """Yield an entry for each model, set and rule of a study of Hu et al.'s protocol."""
    for row in tables.stored(folder).to_pylist():
        if row["variant"] != "paper" or row["set"] not in folder.sets:
            continue
        dataset = points.published_name(folder, row["set"])
        matches = (
            points.entry_of(one, row["n_layers"], dataset, row["criterion"]) for one in _names(folder, row["model"])
        )
        published = next((one.effective_depth for one in matches if one), None)
        text, heading = tables.cell(row), RULES[row["criterion"]].heading
        verdict = judged(row["depth"], row["low"], row["high"], published)
        yield Entry(row["model"], row["set"], heading, text, "" if published is None else str(published), verdict)


def _names(folder: Folder, label: str) -> tuple[str, ...]:
    """Return the names that a published table may have for the model; () for a control."""
    model = folder.models[label]
    return () if model.get("control") else (label, model.get("name", ""))


def judged(depth: float | None, low: float | None, high: float | None, published: int | None) -> str:
    """Return in words how a measured depth with its 5 and 95 % agrees with a published one, all in layers. "within":
    the published one is inside the range over prompts; "differs by": outside, or no range is known."""
    if depth is None or published is None:
        return NOT_DEFINED if depth is None else NO_ENTRY
    if not (apart := abs(round(depth - published))):
        return SAME
    layers = say.count(apart, "layer")
    if low is None or high is None:
        return f"differs by {layers}, no range to judge it by"
    inside = low <= published <= high
    return f"within {layers}, inside the range" if inside else f"differs by {layers}, outside the range"


# ---------------------------------------------------------------- Csordás et al. 2025


def _csordas_parts(models: Sequence[ModelEntry], sets: Mapping[str, SetEntry], limit: int | None) -> dict[str, Study]:
    """Return the studies of Csordás et al.'s protocol, one per set. Arguments as of `Paper.parts`."""
    parts = {}
    for name, entry in sets.items():
        if name == "gsm8k":
            skips = ProbeEntry(name="layer_skip", limit=min(10, limit or 10), mode="future")
            probes = [ProbeEntry(name="contributions"), skips]
            few: dict[str, Any] = {"limit": limit or 20}
        else:
            boundaries, levels = LEVELS[name]
            probes = [ProbeEntry(name="layer_skip", mode="future", boundaries=boundaries)]
            few = {"levels": levels, "per_level": limit or 20, "seed": 42}
        part, note = f"csordas2025-{name}", f"The protocol of {C25} on {name}."
        own = (entry.model_copy(update=few),)
        parts[part] = Study(name=part, note=note, models=tuple(models), sets=own, probes=tuple(probes))
    return parts


def _csordas_entries(folder: Folder) -> Iterator[Entry]:
    """Yield the entries of a study of Csordás et al.'s protocol: layer ratios, future effects, depth scores."""
    for label in folder.models:
        anchored = any(name.lower().removeprefix("meta-") == "llama-3.1-70b" for name in _names(folder, label))
        for name in folder.sets:
            entry = partial(Entry, label, name)
            written, skips = (folder.read(label, name, probe) for probe in ("contributions", difficulty.PROBE))
            if len(written):
                yield from _ratios(entry, written, anchored)
            if name == "gsm8k" and len(skips):
                yield from _futures(entry, skips)
            if name in LEVELS and len(folder.sums(label, name)):
                yield from _scores(entry, folder, label, name)


Entries = Callable[..., Entry]  # from quantity on


def _ratios(entry: Entries, part: Part, anchored: bool) -> Iterator[Entry]:
    """Yield an entry for each half of the layers: the median of `|D| / |h|` over its layers, which represents a half
    better than a mean, as the first layer adds to a small stream. `anchored`: whether the paper gives bounds for the
    model."""
    sums, tokens = part.sums("layer_ratio")
    half = (sums.shape[1] + 1) // 2
    for (which, (sign, bound)), layers in zip(ANCHORS.items(), (slice(half), slice(half, None))):
        own = sums[:, layers]
        middle = part.read_curve(lambda curves: np.asarray(np.median(curves, 1)), own, tokens).bounded(low=0.0)
        paper, holds = f"{'more' if sign > 0 else 'less'} than {bound}", (middle.value - bound) * sign > 0
        verdict = (AS_PUBLISHED if holds else "differs") if anchored else NO_ENTRY
        low, high, _ = middle.interval if part.units.enough else (None,) * 3
        text = measured(float(middle.value), low, high, 3)
        yield entry(f"layer ratio, {which} half", text, paper if anchored else "", verdict)


def _futures(entry: Entries, part: Part) -> Iterator[Entry]:
    """Yield an entry for each kind of effect: what leaving out a second-half layer does to later tokens, over what a
    first-half layer does, as means over prompts and layers. For later layers the last one is left out, as none
    follows."""
    half = (part["output"].shape[1] + 1) // 2
    for kind, effect in difficulty.KINDS.items():
        effects = layer_effect(part[kind])[:, :-1] if kind == "effect" else part[kind]
        finite = np.isfinite(effects).all(1)
        if not finite.any():
            continue

        def ratio(curves: np.ndarray) -> np.ndarray:
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray(curves[:, half:].mean(1) / curves[:, :half].mean(1))

        sums = np.where(finite[:, None], effects, 0.0)
        quotient = part.read_curve(ratio, sums, finite.astype(float)).bounded(low=0.0)
        low, high, _ = quotient.interval if part.units.enough and finite.sum() >= FEWEST else (None,) * 3
        text = measured(float(quotient.value), low, high, 3)
        words = "almost none in the second half (no figure given)"
        yield entry(f"future {effect}, second half over first", text, words, NO_ENTRY)


def _scores(entry: Entries, folder: Folder, label: str, name: str) -> Iterator[Entry]:
    """Yield an entry for each kind of depth score: its slope over the levels of the set `name`."""
    words = "does not move (no figure given)"
    for kind, effect in difficulty.KINDS.items():
        quantity = f"depth score by level ({effect}), layers a level"
        try:
            graded = difficulty.look(folder, label, name, kind)
        except StudyError as error:
            yield entry(quantity, "–", words, f"{NOT_DEFINED}: {error}")
            continue
        trend = graded.trend
        text = measured(trend.slope, trend.low, trend.high, 2, "+")
        yield entry(quantity, text, words, moved(trend, len(graded.levels)))


def moved(trend: difficulty.Trend, n_levels: int) -> str:
    """Return the verdict on the paper's "does not move" from a trend over levels: as published where the whole interval
    is less than one layer from the first level to the last, the finest that a depth is counted in."""
    if not np.isfinite(trend.slope):
        return NOT_DEFINED
    if not np.isfinite(trend.low):
        return f"{UNDECIDED}: no range over prompts"
    if max(abs(trend.low), abs(trend.high)) * (n_levels - 1) < 1:
        return f"{AS_PUBLISHED}: less than one layer from the first level to the last"
    if trend.low > 0 or trend.high < 0:
        return f"differs: the line {'rises' if trend.low > 0 else 'falls'} with the level"
    return f"{UNDECIDED}: the range holds a rise, a fall and neither"


# ---------------------------------------------------------------- the command


def rows(entries: Sequence[Entry]) -> list[Row]:
    """Return the entries as rows of a table, the head first."""
    return [HEAD, *map(astuple, entries)]


def markdown(paper: Paper, entries: Sequence[Entry], notes: Sequence[str]) -> str:
    """Return the Markdown report: what was run, measured next to published, and notes on both."""
    given = {"paper": paper, "rows": rows(entries), "notes": notes, "fewest": FEWEST, "caveats": CAVEATS}
    return render("reproduce.md", **given)


def counted(entries: Sequence[Entry]) -> str:
    """Return how many entries have which verdict, in one line."""
    known = (SAME, "within", "differs", UNDECIDED, AS_PUBLISHED, NOT_DEFINED)
    kinds = Counter(next((kind for kind in known if e.verdict.startswith(kind)), e.verdict) for e in entries)
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "no entry"


def precision_of(given: str | None, papers: str, device: str) -> tuple[str, str]:
    """Return the precision to run in, and why it cannot be the paper's ("" where it can or was given). `given`: the
    user's choice, None for the paper's (`papers`)."""
    if given is not None:
        if given not in PRECISIONS:
            raise ParameterError(f"The precision is {given!r}; a comparison needs one of {', '.join(PRECISIONS)}.")
        return PRECISIONS[given], ""
    if papers in QUANTIZED and device == "mps":
        return "fp32", "unavailable on mps"
    if papers in QUANTIZED and not machine.installed("bitsandbytes"):
        return "fp32", "the package bitsandbytes is not installed"
    return papers, ""


def model_of(text: str, precision: str) -> ModelEntry:
    """Return the entry of a model given as MODEL, a path or a name, or as NAME=MODEL with a label."""
    name, equals, source = text.partition("=")
    label, source = (name, source) if equals and not Path(text).expanduser().exists() else ("", text)
    if not source:
        raise ParameterError(f"--models {text!r} names no model; expected MODEL or NAME=MODEL.")
    place = Path(source).expanduser()
    source = str(place.resolve()) if place.exists() and source not in MODELS else source
    return ModelEntry(source=source, precision=precision, label=label.rsplit("/", 1)[-1])


def protocol(paper: Paper, sets: Mapping[str, SetEntry], limit: int | None, precision: str, why: str) -> list[str]:
    """Return sentences on how a run differs from the paper's; `why`: of the precision, as `precision_of` gives it."""
    given = {"paper": paper, "sets": sets, "limit": limit, "precision": precision, "why": why}
    text = render("protocol.md", **given, tokenizer=TOKENIZER)
    return [line for line in text.splitlines() if line]


PAPERS = {
    "hu2025": Paper("hu2025", ("hellaswag", "gsm8k", "aime24"), "int8", _hu_parts, _hu_entries),
    "csordas2025": Paper("csordas2025", ("gsm8k", "mquake", "math"), "bf16", _csordas_parts, _csordas_entries),
}
