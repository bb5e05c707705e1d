"""What was measured while a model trained, as a study: each step stands as a model of its own, called "step N", on one
set of prompts. `rows.csv` beside it holds the same as rows (step, measure, layer, value)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .. import bounds, disk, outside
from ..errors import StudyError
from ..studies import items
from ..studies.items import Folder, open_folder
from ..studies.plan import PLAN, Item, StudyModel, in_memory, of_models, write_plan
from ..studies.steps import series
from ..studies.study import ModelEntry, ProbeEntry, SetEntry, Study
from ..types import ModelSpec, ProbeResult, Prompt

ROWS, SET = "rows.csv", "prompts"
NOTE = "Measured while the model trained: each of its models is a step, and none can be run again."
HEAD = ("step", "measure", "layer", "value")
Line = tuple[int, str, int | None, float]


class Kept:
    """The folder `out` of a training. Where one is there already, a training that was stopped, its steps before the
    first new one stay."""

    def __init__(self, out: Path, prompts: Sequence[Prompt], probes: Sequence[str]):
        self.out, self._prompts, self._probes = out, prompts, probes
        self._models: dict[int, StudyModel] = {}
        self._rows: list[Line] = []
        self._goes_on = (out / PLAN).exists()

    def add(self, step: int, spec: ModelSpec, found: Sequence[Mapping[str, ProbeResult]], rows: Iterable[Line]) -> None:
        """Keep a step: results by probe of each prompt, and its rows. What stood for it or later ones is left out."""
        if self._goes_on:
            self._read()
            self._goes_on = False
        self._models = {n: model for n, model in self._models.items() if n < step}
        self._rows = [row for row in self._rows if row[0] < step]
        n_layers = next(iter(found[0].values())).n_layers
        self._models[step] = in_memory(step, spec, n_layers)
        self._rows += rows
        plan = of_models(self._study(), list(self._models.values()), self._prompts)
        at = 0
        for chunk in plan.chunks[0]:
            some = found[at : at + len(chunk.examples)]
            items.write(self.out, Item(self._models[step], chunk), items.table(some))
            at += len(some)
        write_plan(plan, self.out)
        told = io.StringIO()
        lines = csv.writer(told, lineterminator="\n")
        lines.writerow(HEAD)
        lines.writerows(
            [step, measure, "" if layer is None else layer, value] for step, measure, layer, value in self._rows
        )
        try:
            disk.write(self.out / ROWS, told.getvalue().encode())
        except OSError as error:
            raise StudyError(f"The study's folder {self.out} cannot be written: {disk.why(error)}") from error

    def _study(self) -> Study:
        return Study(
            name="training",
            note=NOTE,
            models=tuple(ModelEntry(source=m.known.name, label=m.label) for m in self._models.values()),
            probes=tuple(ProbeEntry(name=name) for name in self._probes),
            sets=(SetEntry(name=SET, file="prompts.jsonl"),),
        )

    def _read(self) -> None:
        """The steps of a training that goes on."""
        before = open_folder(self.out)
        for step, label in steps(before).items():
            told = before.models[label]
            spec = ModelSpec(told["name"], precision=told["precision"])
            self._models[step] = StudyModel(label, spec, told["digest"], n_layers=told["n_layers"], step=step)
        self._rows = rows(self.out)
        chunks = of_models(self._study(), [], self._prompts).chunks[0] if self._models else ()
        if not self._models or [c.digest for c in chunks] != next(iter(before.sets.values()))["chunks"]:
            raise StudyError(
                f"The folder {self.out} holds another study, or a training measured on other prompts; give another "
                "folder, or delete it."
            )


def steps(folder: Folder) -> dict[int, str]:
    """The labels of a training's models by step, in order; empty for a study that is of no training."""
    return series(folder).get("", {})


def rows(out: str | Path) -> list[Line]:
    """The rows of a training's folder: (step, measure, layer or None, value)."""
    try:
        text = outside.text(Path(out) / ROWS, bounds.PROMPTS, outside.Unreadable)
        (*_,), *lines = csv.reader(io.StringIO(text, newline=""))
        return [(int(s), m, int(l) if l else None, float(v)) for s, m, l, v in lines]
    except (OSError, ValueError, csv.Error) as error:
        raise StudyError(
            f"The file {Path(out) / ROWS} cannot be read ({type(error).__name__}); expected the folder of a training."
        ) from None
