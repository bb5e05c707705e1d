"""A study in words and tables: Markdown that is all of its tables, and the same as a page. Numpy and pyarrow only."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt

from .. import disk
from ..depth import kinds, say
from ..depth.rules import RULES
from ..depth.sample import LENS
from ..errors import StudyError
from ..statistics import FEWEST, FEWEST_FORMS, RESAMPLES
from . import difficulty, precisions, steps, tables
from .items import Folder, open_folder, pack
from .plan import writing
from .words import PAGE, TEMPLATES, Row, document, measured, render

COLUMNS = {
    ("kl", tables.MEAN): "average depth, KL",
    ("overlap", tables.MEAN): "average depth, overlap",
    ("cosine", tables.TURN): "switch after layer",
    **{(name, "paper"): f"{rule.heading} rule" for name, rule in RULES.items()},
}


View = tuple[Sequence[Row], Sequence[str]]
"""A table, its head first, and sentences about it."""


def write(out: Path) -> str:
    """Pack the sums of the study in `out`, write verdicts and report, and return the digest of the measures."""
    with writing(out):
        folder = open_folder(out)
        pack(folder)
        tables.store(folder)
        measures = folder.digest()
        text = markdown(folder, measures)
        disk.write(out / "report.md", text.encode())
        disk.write(out / "report.html", page(folder.plan["name"], body(text)).encode())
    return measures


def markdown(folder: Folder, measures: str) -> str:
    """Return a study's report as Markdown; `measures`: the digest of its measures."""
    computed, planned = np.sum([(0, 0), *folder.progress().values()], 0)
    parts = {name: _part(folder, name) for name in folder.sets}
    numbers = {"resamples": RESAMPLES, "fewest": FEWEST, "fewest_forms": FEWEST_FORMS}
    given = {"folder": folder, "computed": computed, "planned": planned, "parts": parts, "measures": measures}
    return document("report.md", **given, **numbers)


def page(title: str, html: str) -> str:
    """Return an HTML page around the `body` of a report; it loads nothing from elsewhere."""
    return render(PAGE, title=title, body=html)


def body(text: str) -> str:
    """Return a report's Markdown as HTML."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    return str(reader.render(text.replace("&lt;", "<")))


def style() -> str:
    """Return the CSS of all reports."""
    return (TEMPLATES / "style.css").read_text(encoding="utf-8")


def _part(folder: Folder, name: str) -> dict[str, Any]:
    """Return the report's section on the set `name`: a table of the depths of its models, each trained model's verdict
    and rules by label, and further views by title."""
    rows = [row for row in tables.stored(folder).to_pylist() if row["set"] == name]
    labels = list(dict.fromkeys(row["model"] for row in rows))
    verdicts = {}
    for label in labels:
        model, verdict = folder.models[label], tables.verdict_on(folder, label, name)
        if verdict is not None and not model.get("control") and model.get("step") is None:
            cells = say.rule_table(verdict)
            verdicts[label] = say.verdict(verdict), [list(cells[0]), *(list(row.values()) for row in cells)]
    views = {"Difficulty": _difficulty(folder, name), "Precisions": _precisions(folder, name)}
    views["Which tokens go deep"] = _kinds(folder, name)
    views |= {f"Training {series}".strip(): view for series, view in _training(folder, name, rows)}
    prompts = {label: str(max(row["prompts"] for row in rows if row["model"] == label)) for label in labels}
    depths = _depths(rows, "model", [[label, prompts[label]] for label in labels], ["model", "prompts"])
    return {"depths": depths, "verdicts": verdicts, "views": {title: view for title, view in views.items() if view}}


def _depths(rows: Iterable[Mapping[str, Any]], by: str, heads: Sequence[Row], head: Row) -> list[Row]:
    """Return a table of depths. `by`: "model" or "step"; `heads`: the first cells of each row; `head`: their titles."""
    cells = {(str(row[by]), row["criterion"], row["variant"]): tables.cell(row) for row in rows}
    return [[*head, *COLUMNS.values()], *([*one, *(cells.get((one[0], *c), "–") for c in COLUMNS)] for one in heads)]


def _difficulty(folder: Folder, name: str) -> View | None:
    """Return the depths by level of the set `name`; None where it has no levels or nothing is measured."""
    graded = []
    for label, kind in itertools.product(folder.models, difficulty.kinds(folder)):
        with contextlib.suppress(StudyError):  # no levels, or nothing measured
            graded.append(difficulty.look(folder, label, name, kind))
    if not graded:
        return None
    rows = [["model", "depth", *(f"level {level.name}" for level in graded[0].levels)]]
    for one in graded:
        first = one.kind not in difficulty.DEPTHS  # a score over layers, which count from 1
        levels = (measured(l.mean + first, l.low + first, l.high + first, 1) for l in one.levels)
        rows.append([one.label, difficulty.CALLED[one.kind], *levels])
    return rows, [one.sentence for one in graded if np.isfinite(one.trend.low)]


def _precisions(folder: Folder, name: str) -> View | None:
    """Return the shifts between precisions on the set `name`; None where no models differ only in precision."""
    if not (shifts := precisions.shifts(folder, name)):
        return None
    pairs = itertools.groupby(shifts, lambda one: (one.model, one.precision))
    return precisions.rows(shifts), [precisions.sentence(list(own)) for _, own in pairs]


def _kinds(folder: Folder, name: str) -> View | None:
    """Return the depths by model and kind of token on the set `name`, and for each two trained models with equally many
    layers how much deeper the second one's tokens settle at an equal mix of kinds; None where not measured."""
    every = {label: folder.sums(label, name).probe(LENS) for label in folder.models}
    parts = {label: part for label, part in every.items() if part and "kinds" in part.columns}
    if not parts:
        return None
    rows = [["model", "token", "tokens", "settle depth", "average depth, KL", "flip rate"]]
    for label, part in parts.items():
        for kind, n, *depths, flips in kinds.table(np.nansum(part["kinds"], 0)):
            cells = (say.number(depth, ".1f") for depth in depths)
            rows.append([label, kind, str(n), *cells, say.number(flips, ".2f")])
    models, sentences = folder.models, []
    trained = [label for label in parts if not models[label].get("control") and models[label].get("step") is None]
    for a, b in itertools.combinations(trained, 2):
        one, two = parts[a].of(parts[b].index), parts[b].of(parts[a].index)
        if one.units.enough and models[a].get("n_layers") == models[b].get("n_layers"):
            apart = kinds.equal_mix(one["kinds"], two["kinds"], one.units, one.seed)
            ends = say.interval(*apart.interval[:2], 1, one.units.words)
            by = f"{say.number(float(apart.value), '+.1f')} layers, {ends}"
            sentences.append(f"With the mix of kinds held equal, tokens of {b} settle later than those of {a} by {by}.")
    return rows, sentences


def _training(folder: Folder, name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, View]]:
    """Yield the name of each training and its depths by step; `rows`: verdicts on the set `name`."""
    for series, labels in steps.series(folder).items():
        depths = steps.depths(rows, labels, name)
        numbers = list(dict.fromkeys(str(row["step"]) for row in depths))
        if len(numbers) > 1:
            yield series, (_depths(depths, "step", [[one] for one in numbers], ["step"]), steps.course(depths))
