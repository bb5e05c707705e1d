"""A study in words and tables: Markdown that is all of its tables, and the same as a page. Numpy and pyarrow only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt

from .. import disk
from ..depth import say
from ..depth.rules import RULES
from ..errors import StudyError
from ..statistics import FEWEST, FEWEST_FORMS, RESAMPLES
from . import difficulty, kinds, precisions, steps, tables
from .items import Folder, open_folder, pack
from .plan import writing
from .words import TEMPLATES, Row, measured, templates

COLUMNS = {
    ("kl", tables.MEAN): "average depth, KL",
    ("overlap", tables.MEAN): "average depth, overlap",
    ("cosine", tables.TURN): "switch after layer",
    **{(name, "paper"): f"{rule.heading} rule" for name, rule in RULES.items()},
}


@dataclass(frozen=True)
class View:
    """A table, its head first, and sentences about it."""

    rows: Sequence[Row]
    sentences: Sequence[str]


@dataclass(frozen=True)
class Part:
    """The report's section on one set: a table of the depths of its models, each model's verdict and table of rules by
    label, and further tables by title."""

    depths: Sequence[Row]
    sentences: Mapping[str, str]
    rules: Mapping[str, Sequence[Row]]
    views: Mapping[str, View]


def write(out: Path) -> str:
    """Finish the run of the study in the folder `out`: pack its sums, write verdicts and report (Markdown and HTML),
    and return the digest of the measures."""
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
    text = (
        templates()
        .get_template("report.md")
        .render(
            folder=folder,
            computed=computed,
            planned=planned,
            parts={name: _part(folder, name) for name in folder.sets},
            measures=measures,
            resamples=RESAMPLES,
            fewest=FEWEST,
            fewest_forms=FEWEST_FORMS,
        )
    )
    return text.replace("<", "&lt;")  # names and notes are anybody's, and Markdown passes HTML on


def page(title: str, html: str) -> str:
    """Return an HTML page around the `body` of a report; it loads nothing from elsewhere."""
    return templates(escaped=True).get_template("page.html").render(title=title, body=html)


def body(text: str) -> str:
    """Return a report's Markdown as HTML."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    return str(reader.render(text.replace("&lt;", "<")))


def style() -> str:
    """Return the CSS of all reports."""
    return (TEMPLATES / "style.css").read_text(encoding="utf-8")


def _part(folder: Folder, name: str) -> Part:
    """Return the report's section on the set `name`."""
    rows = [row for row in tables.stored(folder).to_pylist() if row["set"] == name]
    labels = list(dict.fromkeys(row["model"] for row in rows))
    sentences, rules = {}, {}
    for label in labels:
        model, verdict = folder.models[label], tables.verdict_on(folder, label, name)
        if verdict is not None and not model.get("control") and model.get("step") is None:
            sentences[label], cells = say.verdict(verdict), say.rule_table(verdict)
            rules[label] = [list(cells[0]), *(list(row.values()) for row in cells)]
    views = {"Difficulty": _difficulty(folder, name), "Precisions": _precisions(folder, name)}
    views["Which tokens go deep"] = _kinds(folder, name)
    views |= {f"Training {series}".strip(): view for series, view in _training(folder, name, rows)}
    prompts = {label: str(max(row["prompts"] for row in rows if row["model"] == label)) for label in labels}
    depths = _depths(rows, "model", [[label, prompts[label]] for label in labels], ["model", "prompts"])
    return Part(depths, sentences, rules, {title: view for title, view in views.items() if view})


def _depths(rows: Iterable[Mapping[str, Any]], by: str, heads: Sequence[Row], head: Row) -> list[Row]:
    """Return a table of depths. `by`: "model" or "step"; `heads`: the first cells of each row; `head`: their titles."""
    cells = {(str(row[by]), row["criterion"], row["variant"]): tables.cell(row) for row in rows}
    return [[*head, *COLUMNS.values()], *([*one, *(cells.get((one[0], *c), "–") for c in COLUMNS)] for one in heads)]


def _difficulty(folder: Folder, name: str) -> View | None:
    """Return the depths by level of the set `name`; None where it has no levels or nothing is measured."""
    graded = []
    for label in folder.models:
        for kind in difficulty.kinds(folder):
            try:
                graded.append(difficulty.look(folder, label, name, kind))
            except StudyError:
                continue  # no levels, or nothing measured
    if not graded:
        return None
    rows = [
        [
            one.label,
            difficulty.CALLED[one.kind],
            *(measured(level.mean + first, level.low + first, level.high + first, 1) for level in one.levels),
        ]
        for one in graded
        for first in [one.kind not in difficulty.DEPTHS]  # a score over layers, which count from 1
    ]
    head = ["model", "depth", *(f"level {level.name}" for level in graded[0].levels)]
    return View([head, *rows], [one.sentence for one in graded if np.isfinite(one.trend.low)])


def _precisions(folder: Folder, name: str) -> View | None:
    """Return the shifts between precisions on the set `name`; None where no models differ only in precision."""
    if not (shifts := precisions.shifts(folder, name)):
        return None
    pairs = groupby(shifts, lambda one: (one.model, one.precision))
    return View(precisions.rows(shifts), [precisions.sentence(list(own)) for _, own in pairs])


def _kinds(folder: Folder, name: str) -> View | None:
    """Return the depths by kind of token on the set `name`; None where they are not measured."""
    table = kinds.table(folder, name)
    return View(table, [*kinds.differences(folder, name)]) if table else None


def _training(folder: Folder, name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, View]]:
    """Yield the name of each training and its depths by step; `rows`: verdicts on the set `name`."""
    for series, labels in steps.series(folder).items():
        depths = steps.depths(rows, labels, name)
        numbers = list(dict.fromkeys(str(row["step"]) for row in depths))
        if len(numbers) > 1:
            yield series, View(_depths(depths, "step", [[one] for one in numbers], ["step"]), steps.course(depths))
