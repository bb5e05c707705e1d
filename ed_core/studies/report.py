"""A study in words and tables: Markdown whose every figure is a cell of its tables, and the same as a page. Numpy and
pyarrow only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from .. import disk
from ..depth import say
from ..depth.rules import RULES
from ..errors import StudyError
from ..statistics import FEWEST, FEWEST_FORMS, RESAMPLES
from . import difficulty, kinds, precisions, steps, tables
from .items import Folder, open_folder, pack

TEMPLATES = Path(__file__).parent / "templates"
COLUMNS = [("kl", tables.MEAN), ("overlap", tables.MEAN), ("cosine", tables.TURN), *((name, "paper") for name in RULES)]
HEAD = [
    "average depth, KL",
    "average depth, overlap",
    "switch after layer",
    *(f"{r.heading} rule" for r in RULES.values()),
]
Row = Sequence[str]


@dataclass(frozen=True)
class View:
    """A table, its head first, and what is said of it."""

    rows: Sequence[Row]
    said: Sequence[str]


@dataclass(frozen=True)
class Part:
    """One set: the depths of its models, what is said of each model and how robust each rule is, and further views."""

    depths: Sequence[Row]
    said: Mapping[str, str]
    rules: Mapping[str, Sequence[Row]]
    views: Mapping[str, View]


def write(out: Path) -> str:
    """End a run: pack the sums, write the verdicts and the report. Returns the digest of the measures."""
    try:
        folder = open_folder(out)
        pack(folder)
        tables.store(folder)
        measures = folder.digest()
        text = markdown(folder, measures)
        disk.write(out / "report.md", text.encode())
        disk.write(out / "report.html", page(folder.plan["name"], body(text)).encode())
    except OSError as error:
        raise StudyError(f"The study's folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error
    return measures


def markdown(folder: Folder, measures: str) -> str:
    """The report of a folder; `measures`: the digest of its measures."""
    progress = folder.progress()
    computed, planned = (sum(counts[i] for counts in progress.values()) for i in (0, 1))
    extent = [say.count(len(folder.models), "model"), say.count(len(folder.sets), "set")]
    extent.append("complete" if computed == planned else f"{computed} of {planned} parts computed")
    text: str = (
        templates()
        .get_template("report.md")
        .render(
            folder=folder,
            extent=f"{', '.join(extent)}.",
            parts={name: _part(folder, name) for name in folder.sets},
            count=say.count,
            measures=measures,
            resamples=RESAMPLES,
            fewest=FEWEST,
            fewest_forms=FEWEST_FORMS,
        )
    )
    return text.replace("<", "&lt;")  # names and notes are anybody's, and Markdown passes HTML on


def page(title: str, html: str) -> str:
    """A page that asks nobody for anything, around the `body` of a report."""
    found: str = templates(escaped=True).get_template("page.html").render(title=title, body=html)
    return found


def body(text: str) -> str:
    """A report's Markdown as HTML."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    found: str = reader.render(text.replace("&lt;", "<"))
    return found


def style() -> str:
    """The style of all reports."""
    return (TEMPLATES / "style.css").read_text(encoding="utf-8")


def table_row(*cells: str) -> str:
    """A row of a Markdown table, whatever the cells hold."""
    return "| " + " | ".join(_flat(cell).replace("|", "\\|") for cell in cells) + " |"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table, its head first."""
    head, *rest = (table_row(*row) for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def _flat(text: str) -> str:
    return " ".join(text.split())


def templates(escaped: bool = False) -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"table": table, "flat": _flat}
    return found


def _part(folder: Folder, name: str) -> Part:
    rows = [row for row in tables.stored(folder).to_pylist() if row["set"] == name]
    by_model = {
        label: {(r["criterion"], r["variant"]): r for r in own} for label, own in groupby(rows, lambda r: r["model"])
    }
    said, rules = {}, {}
    for label in by_model:
        found = tables.verdict_on(folder, label, name)
        if found is not None and not _aside(folder.models[label]):
            said[label] = say.verdict(found)
            cells = say.rule_table(found)
            rules[label] = [list(cells[0]), *(list(row.values()) for row in cells)]
    views = {
        "Difficulty": _difficulty(folder, name),
        "Precisions": _precisions(folder, name),
        "Which tokens go deep": _kinds(folder, name),
        **{f"Training {series}".strip(): view for series, view in _training(folder, name, rows)},
    }
    depths = [
        [label, str(max(row["prompts"] for row in own.values())), *(tables.cell(own.get(c)) for c in COLUMNS)]
        for label, own in by_model.items()
    ]
    return Part(
        [["model", "prompts", *HEAD], *depths], said, rules, {title: view for title, view in views.items() if view}
    )


def _aside(model: Mapping[str, Any]) -> bool:
    """Whether a model is a control or a step, which a row of a table is enough for."""
    return bool(model.get("control")) or model.get("step") is not None


def _difficulty(folder: Folder, name: str) -> View | None:
    found = []
    for label in folder.models:
        for kind in difficulty.kinds(folder):
            try:
                found.append(difficulty.look(folder, label, name, kind))
            except StudyError:
                continue  # no levels, or nothing measured
    if not found:
        return None
    rows = [[one.label, difficulty.called(one.kind), *map(_level, one.levels)] for one in found]
    return View(
        [["model", "depth", *(f"level {level.name}" for level in found[0].levels)], *rows],
        [one.sentence for one in found if np.isfinite(one.trend.low)],
    )


def _level(level: difficulty.Level) -> str:
    return tables.cell({"depth": level.mean, "low": level.low, "high": level.high, "variant": tables.MEAN})


def _precisions(folder: Folder, name: str) -> View | None:
    found = precisions.shifts(folder, name)
    if not found:
        return None
    by_pair = [list(own) for _, own in groupby(found, lambda one: (one.model, one.precision))]
    return View(precisions.rows(found), [precisions.sentence(own) for own in by_pair])


def _kinds(folder: Folder, name: str) -> View | None:
    found = kinds.table(folder, name)
    return View(found, [*kinds.differences(folder, name)]) if found else None


def _training(folder: Folder, name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, View]]:
    for series, labels in steps.series(folder).items():
        found = steps.depths(rows, labels, name)
        if len({row["step"] for row in found}) > 1:
            by_step = {
                step: {(r["criterion"], r["variant"]): r for r in own}
                for step, own in groupby(found, lambda r: r["step"])
            }
            cells = [[str(step), *(tables.cell(own.get(c)) for c in COLUMNS)] for step, own in by_step.items()]
            yield series, View([["step", *HEAD], *cells], steps.course(found))
