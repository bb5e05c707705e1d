"""A study in words: Markdown whose every figure is a cell of its tables. Numpy and pyarrow only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow

from .. import disk
from ..depth import wording
from ..depth.rules import RULES
from ..depth.wording import count, mean_depth
from ..errors import StudyError
from ..statistics import FEWEST, FEWEST_FORMS, RESAMPLES
from . import agreement, steps, tables
from .items import Folder

SHOWN = {"stable": "stable", "from_depth_1": "from depth 1", "without_sinks": "without sinks"}


def write(out: Path) -> str:
    """Write what a study's numbers come to: `summary.parquet`, `verdict.parquet`, `report.md`. Returns the digest of
    its measures."""
    try:
        folder = tables.store(out)
        measures = folder.digest()
        disk.write(out / "report.md", markdown(folder, tables.stored(folder, "verdict"), measures).encode())
    except OSError as error:
        raise StudyError(f"The study's folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error
    return measures


def markdown(folder: Folder, verdict: pyarrow.Table, measures: str) -> str:
    """The report of a folder; `measures`: the digest of its measures."""
    rows = verdict.to_pylist()
    lines = [f"# {folder.plan['name']}", "", *([folder.plan["note"], ""] if folder.plan["note"] else [])]
    lines += [*_extent(folder), *_over_training(folder, rows)]
    for label in folder.models:
        own = [row for row in rows if row["model"] == label]
        for name in dict.fromkeys(row["set"] for row in own):
            lines += ["", *_of_set(folder, label, name, [row for row in own if row["set"] == name])]
    near = " ± is a tenth of the depth, in whole layers." if any(" ± " in line for line in lines) else ""
    lines += [
        "",
        "Mean depth: the mean over all thresholds of the depth from which the lens stays within the threshold of the "
        "output, in 0..L; share `depth / L`. The papers' rules (Hu et al. 2025, arXiv 2512.14064) give layers counted "
        "from 0, share `(layer + 1) / L`; they read different things and are never averaged. Ranges are 5 to 95 % of "
        f"{RESAMPLES} resamples (seed {folder.plan['seed']}), bootstrap-t of mean depths, percentiles of whole layers, "
        f"from {FEWEST} prompts or {FEWEST_FORMS} forms up.{near}",
        "",
        f"Measures: SHA-256 {measures}.",
        "",
    ]
    return "\n".join(lines).replace("<", "&lt;")  # names and notes are anybody's, and Markdown passes HTML on


def _extent(folder: Folder) -> Iterator[str]:
    progress = folder.progress()
    there, planned = (sum(counts[i] for counts in progress.values()) for i in (0, 1))
    done = "complete" if there == planned else f"{there} of {planned} parts computed"
    yield f"{count(len(folder.models), 'model')}, {count(len(folder.sets), 'set')}, {done}."
    for name, one in folder.sets.items():
        left = f"; {one['left_out']} longer ones were left out" if one["left_out"] else ""
        yield f"- {name}: {count(len(one['ids']), 'prompt')}{left}"
    for label, why in folder.failures().items():
        yield f"- {label} failed: {why}"


def _over_training(folder: Folder, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Depth at every step of a training, where the study has steps."""
    for series, labels in steps.series(folder).items():
        for name in folder.sets:
            found = steps.depths(rows, labels, name)
            there = {step: [row for row in found if row["step"] == step] for step in labels}
            if sum(map(bool, there.values())) < 2:
                continue
            yield from ("", f"## {f'{series} o' if series else 'O'}ver training on {name}", "")
            yield table_row("step", "mean depth, KL (5–95 %)", "mean depth, overlap (5–95 %)", "turn")
            yield "|" + "---|" * 4
            for step, own in there.items():
                cells = {(row["criterion"], row["variant"]): row for row in own}
                means = [cells.get((of, tables.MEAN)) for of in ("kl", "overlap")]
                turn = cells.get(("cosine", tables.TURN))
                told = [
                    "–" if row is None else mean_depth(*(row[k] for k in ("depth", "low", "high"))) for row in means
                ]
                yield table_row(str(step), *told, "–" if turn is None else number(turn["depth"]))
            yield ""
            yield from (f"- {said}" for said in steps.course(found))


def _of_set(folder: Folder, label: str, name: str, rows: list[Mapping[str, Any]]) -> Iterator[str]:
    over: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: bool(row["over"])):
        over[row["prompts"]] = row["over"] or count(row["prompts"], "prompt")
    for n in over if len(over) > 1 else ():  # a probe that takes fewer
        of = wording.listed(dict.fromkeys(RULES[row["criterion"]].label for row in rows if row["prompts"] == n))
        over[n] = f"{of} over {over[n]}"
    yield " ".join(f"## {label} on {name}".splitlines())  # a level is anybody's
    yield ""
    yield f"{count(rows[0]['n_layers'], 'layer')}, {', '.join(over.values())}."
    yield ""
    yield "| depth | | share | 5–95 % | undefined | stable | from depth 1 | without sinks |"
    yield "|---|---|---|---|---|---|---|---|"
    by_criterion: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_criterion.setdefault(row["criterion"], {})[row["variant"]] = row
    for criterion, variants in by_criterion.items():
        if mean := variants.get(tables.MEAN):
            within = "" if mean["low"] is None else f"{mean['low']:.1f} to {mean['high']:.1f}"
            cells = [
                f"**Mean depth, {RULES[criterion].label}**",
                mean_depth(mean["depth"]),
                _ratio(mean["ratio"]),
                within,
            ]
            yield f"| {' | '.join([*cells, *[''] * 4])} |"
    for criterion, variants in by_criterion.items():
        if paper := variants.get("paper"):
            own = wording.of_best(criterion, tables.best_of(folder, RULES[criterion])) or ", the papers' rule"
            cells = [f"{RULES[criterion].heading}{own}", number(paper["depth"]), _ratio(paper["ratio"])]
            cells += [spread(paper), _share(paper)]
            cells += [number(variants[v]["depth"]) if v in variants else "" for v in SHOWN]
            yield f"| {' | '.join(cells)} |"
    if said := tables.settles(folder, label, name):
        yield from ("", said)
    if name in folder.sets:  # of levels the table says it
        yield ""
        yield from (f"- {said}" for said in agreement.sentences(agreement.estimates(folder, label, name, rows)))
        yield ""
        yield "The papers' rules, one by one:"
        yield ""
        yield from (f"- {said.sentence}" for said in tables.statements(folder, label, name).values())


def spread(row: Mapping[str, Any]) -> str:
    """The interval of a row: "5 to 6", "5" where both ends are one, "" where there is none."""
    if row["low"] is None:
        return ""
    low, high = number(row["low"]), number(row["high"])
    return low if low == high else f"{low} to {high}"


def table_row(*cells: str) -> str:
    """A row of a Markdown table, whatever the cells hold."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def number(value: float | int | None) -> str:
    """A depth as it is written: whole where it is whole."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _share(row: Mapping[str, Any]) -> str:
    return "" if row["undefined"] is None else f"{100 * row['undefined']:.3g} %"
