"""Published figures measured again: a paper's protocol as studies, and an answer for each of its entries. Numpy only.

Protocols: [H25] Hu et al. 2025 (arXiv 2512.14064), effective depth by three rules on the first 10 prompts of HellaSwag
and GSM8K and the first 5 of AIME24 that have 400 tokens or fewer, in int8; [C25] Csordás et al. 2025 (arXiv
2505.13898), contributions and future effects on GSM8K (20 and 10 prompts), depth scores by level on MQuAKE and MATH (20
prompts a level, shuffled with seed 42)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import machine, statistics
from ..depth import say
from ..depth.published import CAVEATS, CITATION
from ..depth.rules import RULES
from ..errors import ParameterError, StudyError
from ..models import tokens
from ..models.bundled import MODELS
from ..models.sizes import PRECISIONS, QUANTIZED
from ..probes.base import layer_effect
from ..statistics import FEWEST, Resampled
from ..types import Prompt
from . import difficulty, points, report, tables
from .items import Folder, Sums
from .sets import FORMATS, tokenizer_of
from .study import ModelEntry, ProbeEntry, SetEntry, Study, nearest

TOKENIZER, LONGEST = "Qwen/Qwen2.5-1.5B-Instruct", 400  # what AIME24's prompts are counted with, and at most have [H25]
SAME, NOT_DEFINED, NO_ENTRY = "the same layer", "not defined", "no published entry"
CANNOT_TELL, AS_PUBLISHED = "undecided", "as published"


@dataclass(frozen=True)
class Entry:
    """One figure, measured next to published, as printed: `measured` with its 5 to 95 % over prompts."""

    model: str
    set: str
    quantity: str
    measured: str
    published: str
    verdict: str

    @property
    def cells(self) -> tuple[str, ...]:
        return self.model, self.set, self.quantity, self.measured, self.published, self.verdict


@dataclass(frozen=True)
class Paper:
    """A paper that can be measured again. `sets`: those it reads; `precision`: what it ran in; `parts`: its protocol as
    studies, by name, of models, set entries, and how many prompts of each set (of each level where it has levels) in
    place of the paper's number; `entries`: what a folder of one of them says; `notes`: what to know of its figures."""

    name: str
    citation: str
    sets: tuple[str, ...]
    precision: str
    parts: Callable[[Sequence[ModelEntry], Mapping[str, SetEntry], int | None], dict[str, Study]]
    entries: Callable[[Folder], Iterator[Entry]]
    notes: tuple[str, ...]


def find(name: str) -> Paper:
    if name not in PAPERS:
        raise StudyError(f"There is no protocol of {name!r}; {nearest(name, list(PAPERS))}")
    return PAPERS[name]


def chosen(paper: Paper, given: Sequence[str], first_model: str) -> dict[str, SetEntry]:
    """The paper's sets, from the hub or from local files with its columns: `given` are names or NAME=FILE, all of the
    paper's where there are none. `first_model`: whose tokens are counted where the paper's tokenizer is not here."""
    found = {}
    for text in given or paper.sets:
        name, equals, file = text.partition("=")
        if name not in paper.sets:
            raise StudyError(f"{paper.name} has no set {name!r}; {nearest(name, paper.sets)}")
        if name in found:
            raise ParameterError(f"--sets gives {name} twice; give it once.")
        if equals and not Path(file).expanduser().is_file():
            raise StudyError(f"--sets {name}: there is no file {file!r}; give a .jsonl, .csv or .parquet of the set.")
        here: dict[str, Any] = (
            {"file": str(Path(file).expanduser().resolve()), "format": name} if equals else {"hub": name}
        )
        found[name] = SetEntry(name=name, **here, **_short(name, first_model))
    return found


def _short(name: str, first_model: str) -> dict[str, Any]:
    """Which prompts of a set are short enough [H25]: of AIME24 alone."""
    if name != "aime24":
        return {}
    counts = tokens.preview(tokenizer_of(TOKENIZER), Prompt(".")) is not None
    return {"max_tokens": LONGEST, "tokenizer": TOKENIZER if counts else first_model}


# ---------------------------------------------------------------- Hu et al. 2025


def _hu_parts(models: Sequence[ModelEntry], sets: Mapping[str, SetEntry], limit: int | None) -> dict[str, Study]:
    few = tuple(
        entry.model_copy(update={"limit": limit or FORMATS[name].prompts}) for name, entry in sorted(sets.items())
    )
    probes = (ProbeEntry(name="contributions"), ProbeEntry(name="logit_lens"))
    return {
        "hu2025": Study(
            name="hu2025", note=f"The protocol of {CITATION}.", models=tuple(models), probes=probes, sets=few
        )
    }


def _hu_entries(folder: Folder) -> Iterator[Entry]:
    for row in tables.stored(folder).to_pylist():
        if row["variant"] != "paper" or row["set"] not in folder.sets:
            continue
        model = folder.models[row["model"]]
        names = dict.fromkeys(() if model.get("control") else (row["model"], model.get("name", "")))
        of = points.published_name(folder, row["set"])
        found = (points.entry_of(name, row["n_layers"], of, row["criterion"]) for name in names)
        published = next((one.effective_depth for one in found if one), None)
        yield Entry(
            row["model"],
            row["set"],
            RULES[row["criterion"]].heading,
            tables.cell(row),
            "" if published is None else str(published),
            judged(row["depth"], row["low"], row["high"], published),
        )


def judged(depth: float | None, low: float | None, high: float | None, published: int | None) -> str:
    """What a measured depth says of a published one, in layers. "within": the published one is in the range over
    prompts; "differs by": it does not, or there is no range."""
    if depth is None:
        return NOT_DEFINED
    if published is None:
        return NO_ENTRY
    apart = round(depth - published)
    if not apart:
        return SAME
    layers = f"{abs(apart)} layer{'s' * (abs(apart) != 1)}"
    if low is None or high is None:
        return f"differs by {layers}, no range to judge it by"
    if low <= published <= high:
        return f"within {layers}, inside the range"
    return f"differs by {layers}, outside the range"


# ---------------------------------------------------------------- Csordás et al. 2025


def _csordas_parts(models: Sequence[ModelEntry], sets: Mapping[str, SetEntry], limit: int | None) -> dict[str, Study]:
    found = {}
    for name, entry in sets.items():
        if name == "gsm8k":
            skips = ProbeEntry(name="layer_skip", limit=min(10, limit or 10), mode="future")
            probes: tuple[ProbeEntry, ...] = (ProbeEntry(name="contributions"), skips)
            chosen = entry.model_copy(update={"limit": limit or 20})
        else:
            at, levels = LEVELS[name]
            probes = (ProbeEntry(name="layer_skip", mode="future", boundaries=at),)
            chosen = entry.model_copy(update={"levels": levels, "per_level": limit or 20, "seed": 42})
        note = f"The protocol of {C25} on {name}."
        part = f"csordas2025-{name}"
        found[part] = Study(name=part, note=note, models=tuple(models), probes=probes, sets=(chosen,))
    return found


def _csordas_entries(folder: Folder) -> Iterator[Entry]:
    for label, model in folder.models.items():
        names = () if model.get("control") else (label, model.get("name", ""))
        anchored = any(name.lower().removeprefix("meta-") == "llama-3.1-70b" for name in names)
        for name in folder.sets:
            if not len(some := folder.sums(label, name)):
                continue
            head = label, name
            if written := some.probe("contributions"):
                yield from _ratios(head, folder, some, written, anchored)
            if (skipped := some.probe(difficulty.PROBE)) and name == "gsm8k":
                yield from _futures(head, folder, some, skipped)
            if name in LEVELS:
                yield from _scores(folder, *head)


def _ratios(
    head: tuple[str, str], folder: Folder, some: Sums, columns: Mapping[str, np.ndarray], anchored: bool
) -> Iterator[Entry]:
    """The median over the layers of each half of `|D| / |h|`, which represents a half better than a mean: the first
    layer adds to a small stream."""
    sums, counts = columns["layer_ratio.sum"], columns["n_tokens"]
    half, over = second_half(sums.shape[1]), tables.units_of(folder, head[1], some, "contributions")
    for which, of_half, (sign, bound) in zip(("first", "second"), (slice(half), slice(half, None)), ANCHORS):

        def median(curves: dict[str, np.ndarray], of_half: slice = of_half) -> np.ndarray:
            middle: np.ndarray = np.median(curves[""][:, of_half], 1)
            return middle

        found = statistics.read_off(median, {"": sums}, counts, over, folder.plan["seed"]).bounded(low=0.0)
        paper, holds = f"{'more' if sign > 0 else 'less'} than {bound}", (found.value - bound) * sign > 0
        verdict = (AS_PUBLISHED if holds else "differs") if anchored else NO_ENTRY
        measured = _measured(found, over.enough)
        yield Entry(*head, f"layer ratio, {which} half", measured, paper if anchored else "", verdict)


def _futures(head: tuple[str, str], folder: Folder, some: Sums, columns: Mapping[str, np.ndarray]) -> Iterator[Entry]:
    """What leaving out a layer of the second half does to later tokens, over what one of the first half does: means
    over prompts and layers; of the effect on later layers the last layer, which has none after it, is left out."""
    over = tables.units_of(folder, head[1], some, difficulty.PROBE)
    for kind, called in difficulty.KINDS.items():
        effects = layer_effect(columns[kind])[:, :-1] if kind == "effect" else columns[kind]
        there, layers = np.isfinite(effects).all(1), columns["output"].shape[1]
        if not there.any():
            continue

        def ratio(curves: dict[str, np.ndarray], half: int = second_half(layers)) -> np.ndarray:
            return second_over_first(curves[""], half)

        sums = np.where(there[:, None], effects, 0.0)
        found = statistics.read_off(ratio, {"": sums}, there.astype(float), over, folder.plan["seed"]).bounded(low=0.0)
        measured = _measured(found, over.enough and there.sum() >= FEWEST)
        words = "almost none in the second half (no figure given)"
        yield Entry(*head, f"future {called}, second half over first", measured, words, NO_ENTRY)


def _measured(found: Resampled, enough: bool) -> str:
    ends = found.interval.ends if enough else None
    text = say.number(float(found.value), ".3f")
    return f"{text} ({say.interval(*ends, 3)})" if ends else text


def second_half(n_layers: int) -> int:
    """Its first layer, the smallest `s ≥ L/2`."""
    return (n_layers + 1) // 2


def second_over_first(effects: np.ndarray, half: int) -> np.ndarray:
    """The mean over the layers from `half` on over that of those before: `[resample, layer]` → `[resample]`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: np.ndarray = effects[:, half:].mean(1) / effects[:, :half].mean(1)
    return ratio


def _scores(folder: Folder, label: str, name: str) -> Iterator[Entry]:
    words = "does not move (no figure given)"
    for kind, called in difficulty.KINDS.items():
        head = label, name, f"depth score by level ({called}), layers a level"
        try:
            found = difficulty.look(folder, label, name, kind)
        except StudyError as error:
            yield Entry(*head, "–", words, f"{NOT_DEFINED}: {error}")
            continue
        trend = found.trend
        measured = say.number(trend.slope, "+.2f")
        if np.isfinite(trend.low):
            measured += f" ({say.interval(trend.low, trend.high, 2)})"
        yield Entry(*head, measured, words, moved(trend, len(found.levels)))


def moved(trend: difficulty.Trend, n_levels: int) -> str:
    """What a trend over levels says of "does not move": as published where all of its range is less than one layer from
    the first level to the last, which is the finest that a depth is counted in."""
    if not np.isfinite(trend.slope):
        return NOT_DEFINED
    if not np.isfinite(trend.low):
        return f"{CANNOT_TELL}: no range over prompts"
    if max(abs(trend.low), abs(trend.high)) * (n_levels - 1) < 1:
        return f"{AS_PUBLISHED}: less than one layer from the first level to the last"
    if trend.low > 0 or trend.high < 0:
        return f"differs: the line {'rises' if trend.low > 0 else 'falls'} with the level"
    return f"{CANNOT_TELL}: the range holds a rise, a fall and neither"


def table(entries: Sequence[Entry]) -> list[str]:
    """Lines of aligned columns."""
    rows = [HEAD, *(e.cells for e in entries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]


def markdown(paper: Paper, entries: Sequence[Entry], notes: Sequence[str]) -> str:
    """The report: what was run, measured next to published, and what to know of both."""
    lines = [f"# {paper.name}, reproduced", "", f"{paper.citation}.", "", *(f"- {note}" for note in notes), ""]
    lines += [report.table([HEAD, *(e.cells for e in entries)])]
    lines += ["", f"Ranges are 5 to 95 % over prompts or their forms, from {FEWEST} prompts up.", ""]
    return "\n".join([*lines, *(f"- {note}" for note in paper.notes), ""])


def counted(entries: Sequence[Entry]) -> str:
    """How many entries came out how, in one line."""
    known = (SAME, "within", "differs", CANNOT_TELL, AS_PUBLISHED, NOT_DEFINED)
    kinds = Counter(next((kind for kind in known if e.verdict.startswith(kind)), e.verdict) for e in entries)
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "no entry"


HEAD = ("model", "set", "quantity", "measured", "published", "verdict")
C25 = "Csordás et al. 2025, arXiv 2505.13898"
ANCHORS = ((1, 0.15), (-1, 0.05))  # of |D| / |h| in each half of Llama-3.1-70B on GSM8K [C25 §3.1]
LEVELS = {"mquake": ("answer", ("2", "3", "4")), "math": ("within_answer", ("1", "2", "3", "4", "5"))}
PAPERS = {
    "hu2025": Paper(
        "hu2025",
        "Hu et al. 2025, What Affects the Effective Depth of Large Language Models?, arXiv 2512.14064",
        ("hellaswag", "gsm8k", "aime24"),
        "int8",
        _hu_parts,
        _hu_entries,
        (
            "Depths are layers counted from 0; their papers' three rules read different things and are never averaged.",
            "*within*: the published depth is in the measured range over prompts; *differs*: it does not, or there "
            "is no range.",
            *(f"Published: {caveat}" for caveat in CAVEATS),
        ),
    ),
    "csordas2025": Paper(
        "csordas2025",
        "Csordás et al. 2025, Do Language Models Use Their Depth Efficiently?, NeurIPS 2025, arXiv 2505.13898",
        ("gsm8k", "mquake", "math"),
        "bf16",
        _csordas_parts,
        _csordas_entries,
        (
            "The paper gives most of this in figures and words. Its one number used here: of Llama-3.1-70B on GSM8K a "
            "layer ratio of more than 0.15 in the first half and less than 0.05 in the second. Here a half is the "
            "median over its layers of the mean over tokens.",
            "Depth scores: the slope of a straight line through the levels. *as published*: all of its range is less "
            "than one layer from the first level to the last, the finest that a depth is counted in; *undecided*: "
            "the range is wider than that, and holds 0. The paper's norms are taken in bf16; here everything is "
            "upcast to float32 first.",
        ),
    ),
}


# ---------------------------------------------------------------- what is asked for


def precision_of(given: str | None, papers: str, device: str) -> tuple[str, str]:
    """What is run in, and how that compares with the paper, in a sentence."""
    if given is not None:
        if (found := PRECISIONS.get(given, "")) == "":
            raise ParameterError(f"The precision is {given!r}; a comparison needs one of {', '.join(PRECISIONS)}.")
        if found == papers:
            return found, f"Precision {found}, as in the paper."
        return found, f"Precision {found}, while the paper ran in {papers}: that alone may change figures."
    if papers in QUANTIZED and (device == "mps" or not machine.installed("bitsandbytes")):
        why = "unavailable on mps" if device == "mps" else "the package bitsandbytes is not installed"
        return "fp32", f"Precision fp32, while the paper ran in {papers} ({why}): that alone may change figures."
    return papers, f"Precision {papers}, as in the paper."


def model_of(text: str, precision: str) -> ModelEntry:
    """A model as it is named: what exists on this machine under that path, else NAME=MODEL."""
    name, equals, source = text.partition("=")
    label, source = (name, source) if equals and not Path(text).expanduser().exists() else ("", text)
    if not source:
        raise ParameterError(f"--models {text!r} names no model; expected MODEL or NAME=MODEL.")
    place = Path(source).expanduser()
    source = str(place.resolve()) if place.exists() and source not in MODELS else source
    return ModelEntry(source=source, precision=precision, label=label.rsplit("/", 1)[-1])


def differences(paper: Paper, sets: Mapping[str, SetEntry], limit: int | None) -> list[str]:
    """How a run differs from the paper's protocol, a sentence each."""
    notes = []
    if left := [name for name in paper.sets if name not in sets]:
        notes.append(f"Sets of the paper that are not run: {', '.join(left)}.")
    if limit:
        notes.append(f"At most {limit} prompts of each set or level.")
    for name, entry in sets.items():
        if entry.file:
            notes.append(f"{name} from the file {Path(entry.file).name}.")
        if entry.max_tokens:
            by = "" if entry.tokenizer == TOKENIZER else f", where the paper counts with {TOKENIZER}, which is not here"
            counted = entry.tokenizer.rstrip("/").rsplit("/", 1)[-1]
            notes.append(f"{name}: prompts of at most {entry.max_tokens} tokens, counted with {counted}{by}.")
    return notes
