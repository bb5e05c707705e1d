"""Depth while a model trains, every so many steps.

    trainer = Trainer(model, …, callbacks=[ed_core.DepthCallback(prompts, every=500)])

A `transformers.Trainer` calls it at every step; any other loop calls `measure`. The model is measured in memory, where
nothing of it changes (`models.in_memory`)."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsInt

import numpy as np

from .. import disk
from ..depth.sample import Sample
from ..depth.verdict import verdict
from ..errors import EffectiveDepthError, ParameterError, StudyError
from ..probes.contributions import Contributions
from ..probes.lenses import LogitLens
from ..results.aggregate import aggregate
from ..studies import items
from ..studies.items import open_folder
from ..studies.plan import PLAN, Item, StudyModel, in_memory, of_models, write_plan
from ..studies.steps import series
from ..studies.study import ModelEntry, ProbeEntry, SetEntry, Study
from ..types import ModelSpec, ProbeResult, Prompt
from .model import InMemory

log = logging.getLogger(__name__)
PROBES = (Contributions(), LogitLens())
OF_LAYERS = ("attn_ratio", "mlp_ratio", "layer_ratio", "attn_cos", "mlp_cos", "layer_cos")


class Row(NamedTuple):
    """A value of a measure at a training step. `layer`: from 0; None for a value of the whole model."""

    step: int
    measure: str
    layer: int | None
    value: float


class DepthCallback:
    """Measures the depth of a model in training on a few prompts.

    `prompts`: texts, or `Prompt`s; eight give intervals. `every`: steps from one measurement to the next, at least.
    `tokenizer`: the model's, unless the trainer has it as its `processing_class`. `out`: a folder that opens as a study
    (`studies`), in which each step is a model; of a trainer by default `depth` in its output folder (`depth-2` where
    another training's is there), of other loops none. `layers`: log the values of each layer too.

    Each measurement gives rows (step, measure, layer, value): `mean_depth.kl`, `mean_depth.overlap` (in layers, with
    `.low` and `.high` over prompts) and `turn` (a layer, with `turn.p`) without a threshold; `cosine`, `kl` and
    `overlap`, the papers' rules (a block); `sinks` (tokens a prompt); for each layer the ratios and cosines of
    attention, MLP and layer, means over tokens; `seconds`. What is not defined at a step has no row."""

    def __init__(
        self,
        prompts: Iterable[str | Prompt],
        every: int = 500,
        *,
        tokenizer: Any = None,
        out: str | Path | None = None,
        layers: bool = False,
    ):
        listed = isinstance(prompts, Iterable) and not isinstance(prompts, str | Mapping)
        given = list(prompts) if listed else []
        if not given:
            raise ParameterError("There is no list of prompts to measure depth on; expected one at least.")
        if not isinstance(every, int) or every < 1:
            raise ParameterError(f"every is {every}; expected 1 step at least.")
        self.prompts = [Prompt(p) if isinstance(p, str) else p for p in given]
        self.every, self.tokenizer, self.layers = every, tokenizer, layers
        self.out = self._place = None if out is None else Path(out).expanduser()
        self.rows: list[Row] = []
        self._own_tokenizer = tokenizer is not None
        self._opened: tuple[Any, InMemory] | None = None
        self._trainer: Any = lambda: None
        self._begin()

    def _begin(self) -> None:
        """Forget the measurements of an earlier training, and begin one."""
        self.spent = 0.0  # seconds, on all measurements of this training
        self._last: int | None = None  # step of the latest measurement
        self._began = time.perf_counter()
        self._kept: Kept | None = None

    # ---------------------------------------------------------------- any loop

    def measure(self, model: Any, step: SupportsInt) -> list[Row]:
        """Measure at this step where a measurement is due and return its rows, else []; to be called at every step. A
        model that cannot be measured is refused with a `ModelError` at the first measurement; later failures are
        logged, and their steps have no rows."""
        step = int(step)  # which may be numpy's or torch's
        if self._last is not None and step < self._last + self.every:
            return []
        start = time.perf_counter()
        try:
            rows = self._measured(model, step)
        except EffectiveDepthError as error:
            if self._last is None:
                raise
            log.warning("Depth was not measured at step %d: %s", step, error)
            rows = []
        took = time.perf_counter() - start
        self.spent += took
        self._last = step
        if rows:
            rows.append(Row(step, "seconds", None, took))
        self.rows += rows
        return rows

    def _measured(self, model: Any, step: int) -> list[Row]:
        """Measure the model at a step, write the step into the folder `out`, and return its rows."""
        if self._opened is None or self._opened[0] is not model:
            self._opened = model, InMemory(model, self.tokenizer)
        opened = self._opened[1]
        with opened.at_work():
            spec = opened.spec
            by_probe: dict[str, list[ProbeResult]] = {}
            for probe in PROBES:
                results = opened.run(probe, self.prompts)
                assert isinstance(results, list)
                by_probe[probe.name] = list(results)
        rows = depth_rows(step, by_probe, [p.form for p in self.prompts])
        if self.out is not None:
            self._kept = self._kept or Kept(self.out, self.prompts)
            self._kept.add(step, spec, by_probe, rows)
        return rows

    # ---------------------------------------------------------------- transformers.Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Prepare the folder and measure before the first step; the trainer calls it."""
        self._trainer = _trainer_of(self)
        if not self._own_tokenizer and more.get("processing_class") is not self.tokenizer:
            self.tokenizer, self._opened = more["processing_class"], None
        self._begin()
        self.out = folder_of(self._place or Path(args.output_dir) / "depth", state.global_step == 0)
        log.info("The depth of this training is kept in %s.", self.out)
        self._step(state, control, more["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Measure where it is due; the trainer calls it after every step."""
        self._step(state, control, more["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Log how much of the training's time the measurements took."""
        if state.is_world_process_zero:
            seconds = time.perf_counter() - self._began
            log.info("Depth took %.3g s, %.1f %% of the training.", self.spent, 100 * self.spent / max(seconds, 1e-9))

    def __getattr__(self, name: str) -> Any:
        """Return a function that does nothing for every other event of the trainer."""
        if name.startswith("on_"):
            return lambda *args, **more: None
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def _step(self, state: Any, control: Any, model: Any) -> None:
        """Measure where it is due, in the main process only, and log the rows with the trainer."""
        if not state.is_world_process_zero:
            return
        rows = self.measure(model, state.global_step)
        trainer = self._trainer()
        if not rows or trainer is None:
            return
        wanted = control.should_log  # of the trainer's own figures, which logging ours takes for done
        trainer.log({logged_name(row): row.value for row in rows if self.layers or row.layer is None})
        control.should_log = wanted


def folder_of(first: Path, new: bool) -> Path:
    """Return the folder of a training: of a `new` one `first`, or the first of `first-2`, `first-3`, … that is free; of
    one that resumes the last that is not."""
    last = free = first
    number = 1
    while (free / PLAN).exists():
        last, number = free, number + 1
        free = first.with_name(f"{first.name}-{number}")
    return free if new else last


def logged_name(row: Row) -> str:
    """Return a row's name in a log: "depth/mean_depth.kl", "depth/layer_cos/07"."""
    return f"depth/{row.measure}" + ("" if row.layer is None else f"/{row.layer:02d}")


def depth_rows(step: int, by_probe: dict[str, list[ProbeResult]], forms: Sequence[str] = ()) -> list[Row]:
    """Return the rows of a step, from complete results of `contributions` and `logit_lens` on the same prompts.
    `forms`: the template of each prompt, for the intervals."""
    written, lens = (by_probe[probe.name] for probe in PROBES)
    reached = verdict(Sample.of(written, lens, forms=forms))
    figures: dict[str, float | None] = {}
    for name, mean in reached.means.items():
        low, high = mean.ends or (None, None)
        figures |= {f"mean_depth.{name}": mean.depth, f"mean_depth.{name}.low": low, f"mean_depth.{name}.high": high}
    if reached.turn is not None:
        figures |= {"turn": reached.turn.layer, "turn.p": reached.turn.p}
    figures |= reached.layers
    if None not in reached.sample.sinks:
        figures["sinks"] = float(np.mean([len(sinks) for sinks in reached.sample.sinks if sinks is not None]))
    rows = [Row(step, name, None, float(value)) for name, value in figures.items() if value is not None]
    curves = aggregate(PROBES[0], [result.summary for result in written])
    return rows + [Row(step, name, l, float(v)) for name in OF_LAYERS for l, v in enumerate(curves[name])]


def _trainer_of(callback: DepthCallback) -> Any:
    """Return a weak reference to the trainer that calls, which reaches all loggers and which no callback is given: the
    caller on the stack that has this callback; a reference to nothing where another program calls."""
    frame = sys._getframe(1)
    while frame is not None:
        handler = getattr(caller := frame.f_locals.get("self"), "callback_handler", None)
        if any(one is callback for one in getattr(handler, "callbacks", ())):
            return weakref.ref(caller)
        frame = frame.f_back  # type: ignore[assignment]  # of the first there is none
    return lambda: None


# ---------------------------------------------------------------- what was measured, kept as a study

# Each step is a model, "step N", on one set of prompts. `rows.csv` next to it has the same as rows (step, measure,
# layer, value).

ROWS, SET = "rows.csv", "prompts"
NOTE = "Measured while the model trained: each of its models is a step, and none can be run again."


class Kept:
    """The folder `out` of a training, kept as a study in which each step is a model. Of a stopped training that
    resumes, the steps before the first new one stay."""

    def __init__(self, out: Path, prompts: Sequence[Prompt]):
        self.out, self._prompts = out, prompts
        self._models: dict[int, StudyModel] = {}
        self._rows: list[Row] = []
        if (out / PLAN).exists():
            self._read()

    def add(self, step: int, spec: ModelSpec, by_probe: Mapping[str, Sequence[ProbeResult]], rows: list[Row]) -> None:
        """Store a step: results by probe, and its rows. Earlier records of it and of later steps go. Raises a
        `StudyError` where the folder cannot be written, or belongs to another study."""
        import pandas as pd

        self._models = {n: model for n, model in self._models.items() if n < step}
        self._rows = [row for row in self._rows if row[0] < step]
        of_each = [dict(zip(by_probe, results)) for results in zip(*by_probe.values())]
        self._models[step] = in_memory(step, spec, of_each[0][PROBES[0].name].n_layers)
        self._rows += rows
        plan = of_models(self._study(), list(self._models.values()), self._prompts)
        start = 0
        for chunk in plan.chunks[0]:
            some = of_each[start : start + len(chunk.examples)]
            items.write(self.out, Item(self._models[step], chunk), items.table(some))
            start += len(some)
        write_plan(plan, self.out)
        table = pd.DataFrame(self._rows, columns=Row._fields).astype({"layer": "Int64"})
        try:
            disk.write(self.out / ROWS, table.to_csv(index=False).encode())
        except OSError as error:
            why = disk.why(error, "out")
            raise StudyError(f"The study's folder {self.out} cannot be written: {why}") from error

    def _study(self) -> Study:
        """Return the study that describes the folder."""
        return Study(
            name="training",
            note=NOTE,
            models=tuple(ModelEntry(source=m.known.name, label=m.label) for m in self._models.values()),
            probes=tuple(ProbeEntry(name=probe.name) for probe in PROBES),
            sets=(SetEntry(name=SET, file="prompts.jsonl"),),
        )

    def _read(self) -> None:
        """Read the steps of a training that resumes; a `StudyError` where the folder is of another one."""
        before = open_folder(self.out)
        for step, label in series(before).get("", {}).items():
            entry = before.models[label]
            spec = ModelSpec(entry["name"], precision=entry["precision"])
            self._models[step] = StudyModel(**entry, spec=spec)
        self._rows = rows(self.out)
        chunks = of_models(self._study(), [], self._prompts).chunks[0] if self._models else ()
        if not self._models or [c.digest for c in chunks] != next(iter(before.sets.values()))["chunks"]:
            raise StudyError(
                f"The folder {self.out} holds another study, or a training measured on other prompts; give another "
                "folder, or delete it."
            )


def rows(out: str | Path) -> list[Row]:
    """Return the rows of a training's folder. Raises a `StudyError` where they cannot be read."""
    import pandas as pd

    try:
        table = pd.read_csv(Path(out) / ROWS, dtype={"layer": "Int64"}, float_precision="round_trip")
        return [
            Row(int(step), measure, None if pd.isna(layer) else int(layer), float(value))
            for step, measure, layer, value in table.itertuples(index=False)
        ]
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(
            f"The file {Path(out) / ROWS} cannot be read ({type(error).__name__}); expected the folder of a training."
        ) from None
