"""The engine in a notebook: a model that answers for itself, what it answers, and two models on the same prompts.
Torch, pandas and plotly are imported when they are used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import statistics
from ..depth import sinks
from ..depth.mean_depth import LOWEST, MEAN_DEPTH, MeanDepth
from ..depth.sample import CONTRIBUTIONS, LENS, Sample, prompt_sums
from ..depth.turn import Turn
from ..depth.verdict import verdict
from ..errors import InputError, ParameterError, StoreError
from ..machine import learn, may_have_gpu, uncollected
from ..models.controls import full_name
from ..models.ref import ModelRef
from ..models.remote import SERVED
from ..probes import Probe
from ..probes.lenses import LogitLens
from ..prompts import check_types
from ..results import lookup
from ..results.store import Store
from ..types import Measure, ModelSpec, ProbeResult, Prompt, Request

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

# ---------------------------------------------------------------- results


class Result(ProbeResult):
    """A `ProbeResult` with its measures as attributes: `result.kl` is the array `result["kl"]`.

    An attribute wins over a measure of its name (`tokens`, `version`, `plot`, …); `result["version"]` is always the
    measure."""

    @classmethod
    def of(cls, result: ProbeResult) -> Result:
        """Return a `ProbeResult` as a `Result`."""
        return cls(**{f.name: getattr(result, f.name) for f in fields(result) if f.init})

    def __getattr__(self, name: str) -> np.ndarray:
        """Return the array of the measure of this name."""
        measures: Mapping[str, Measure] = vars(self).get("measures", {})  # a copy in the making has none yet
        if name in measures:
            return measures[name].values
        raise AttributeError(f"{type(self).__name__} has no {name!r}; its measures are {', '.join(measures) or 'none'}")

    def __dir__(self) -> list[str]:
        """Return the names of attributes and measures, for completion."""
        return sorted({*super().__dir__(), *self.measures})

    @property
    def sinks(self) -> tuple[sinks.Sink, ...]:
        """The prompt's attention sinks, tokens with a residual stream far longer than the others', and what writes them
        (`depth.sinks`); only for results of `contributions`."""
        if (some := sinks.of_result(self)) is None:
            raise AttributeError("sinks")  # __getattr__ explains
        return some

    @property
    def mean_depth(self) -> dict[str, MeanDepth]:
        """The average depth, which needs no threshold (`depth.mean_depth`), by "kl" and "overlap"; only for results of
        `logit_lens`."""
        if self.request.probe != LENS:
            raise AttributeError("mean_depth")  # a measure of that name, or __getattr__ explains
        return dict(verdict(Sample.of(lens=self)).means)

    @property
    def turn(self) -> Turn | None:
        """The layer where contributions switch direction, as a two-level fit to their cosines (`depth.turn`), None
        where nothing can be fitted; only for results of `contributions`."""
        if self.request.probe != CONTRIBUTIONS:
            raise AttributeError("turn")  # __getattr__ explains
        first_token = bool(dict(self.request.parameters).get("first_token", True))
        return verdict(Sample.of(self, first_token=first_token)).turn

    def to_dataframe(self, measure: str) -> pd.DataFrame:
        """Return one measure with a row per value: `measure`, its index along each dim, the `token` there where it is
        one of the prompt's, and the `value`."""
        from ..cases.export import frame

        table = frame(self, self._measure(measure).name).rename(columns={measure: "value"})
        table.insert(0, "measure", measure)
        return table

    def plot(self, measure: str = "") -> go.Figure:
        """Return the figure that the probe declares for a measure; for "" its first one."""
        from ..cases.drawings import of_several
        from ..figures.pictures import figure
        from ..probes import find

        if measure or find(self.request.probe).pictures is not None:
            picture = figure(self, self._measure(measure).name if measure else "")
        else:
            picture = next(of_several([self])).figure
        return picture.update_layout(paper_bgcolor="white")  # the colours of the text are for light paper

    def _measure(self, name: str) -> Measure:
        """Return the measure of this name; a `ParameterError` names those that exist."""
        if name not in self.measures:
            raise ParameterError(f"There is no measure {name!r} here; there is {', '.join(self.measures)}.")
        return self.measures[name]

    def __repr__(self) -> str:
        prompt = self.request.prompts[0]
        text = repr(prompt.text + prompt.answer)
        text = text if len(text) <= 60 else text[:59] + "…"
        size = f"{self.n_layers} layers, {self.n_tokens} tokens"
        name = full_name(self.request.models[0])
        return f"<{self.request.probe} on {name}, {text}, {size}: {', '.join(self.measures)}>"

    def _repr_html_(self) -> str:
        """Return the result as a table of its measures; everything is escaped, and no dollars are read as a formula."""
        import pandas as pd

        rows = [
            (name, ", ".join(m.spec.dims), " × ".join(map(str, m.values.shape)), m.spec.unit, m.spec.meaning)
            for name, m in self.measures.items()
        ]
        table = pd.DataFrame(rows, columns=["measure", "dims", "shape", "unit", "meaning"])
        with pd.option_context("display.html.use_mathjax", False, "display.max_colwidth", None):
            cells = table.to_html(index=False)
        return f"<pre>{escape(chr(10).join([repr(self), *self.notes]))}</pre>{cells}"


# ---------------------------------------------------------------- models


class Model:
    """A handle, without weights, of the model that `spec` names. Models stay open within `ED_MODEL_MEMORY`; one that
    was closed to make room for another is opened again when it is used. `trust_kept`: do not measure again the residual
    identities that an earlier opening of the same weights has checked."""

    def __init__(self, spec: ModelSpec, trust_kept: bool = False):
        self._spec, self._trust_kept = spec, trust_kept

    @property
    def spec(self) -> ModelSpec:
        """The exact weights, and how they are run (precision, device, adapter, control)."""
        return self._spec

    @property
    def language_model(self) -> Any:
        """The engine's own object (`models.language_model.LanguageModel`): weights, trace, single blocks."""
        return _models(self._trust_kept).get(self.spec)

    @property
    def keeps(self) -> bool:
        """Whether this model's results are stored, and read where they are."""
        return True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the model open in the block: `spec` and `language_model` stay what they are."""
        yield

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let torch compute in the block as if nothing surrounded it, and restore its settings; see
        `models.in_memory`."""
        with uncollected():
            import torch

            from ..models.in_memory import undisturbed

        with undisturbed(torch.device("cpu" if self.spec.precision == SERVED else self.spec.device)):
            yield

    def __repr__(self) -> str:
        return f"<{full_name(self.spec)} on {self.spec.device}>"

    def run(
        self, probe: Probe, prompt: str | Prompt | Sequence[str | Prompt], answer: str = "", *, fresh: bool = False
    ) -> Result | list[Result]:
        """Return what the probe measures on a prompt, or a list of results for a list of prompts. A stored result is
        read, a new one is stored; `fresh` computes again and stores nothing, and nothing is stored of a model in memory
        unless it was opened with `keep`.

        `answer` belongs to a prompt that is given as text; a `Prompt` has its own. One bad prompt refuses the whole
        list before anything is computed."""
        if not isinstance(probe, Probe):
            raise ParameterError(f"The probe is {str(probe)[:40]!r}; expected a probe, like ed_core.LogitLens().")
        probe.check_idle()
        if answer and not isinstance(prompt, str):
            raise ParameterError("An answer goes with one prompt given as text; give each Prompt its own answer.")
        single = isinstance(prompt, str | Prompt | Mapping) or not isinstance(prompt, Iterable)
        given: Any = [prompt] if single else prompt
        prompts = [Prompt(p, answer) if isinstance(p, str) else p for p in given]
        for p in prompts:
            if not isinstance(p, Prompt):
                raise ParameterError(f"A prompt is {str(p)[:60]!r}; expected text, or an ed_core.Prompt of text.")
            check_types(p)
        kept = self.keeps and not fresh
        with self.at_work():
            requests = [probe.request(self.spec, p) for p in prompts]
            stored = {request.key: lookup.find(request) for request in requests} if kept else {}
            by_key = {key: result for key, result in stored.items() if result is not None}
            todo = [(probe, request) for request in requests if request.key not in by_key]
            self.compute_missing(todo, lookup.store() if kept and todo else None, by_key)
        results = [Result.of(replace(by_key[request.key], request=request)) for request in requests]
        return results[0] if single else results

    def compute_missing(
        self,
        todo: Sequence[tuple[Probe, Request]],
        store: Store | None,
        by_key: dict[str, ProbeResult],
        memory: int | None = None,
    ) -> None:
        """Put the results of `todo` into `by_key`, and into the `store` unless it is None. Every prompt is checked
        before the first is computed. `memory`: bytes a probe may take above model and trace."""
        if not todo:
            return
        from tqdm import tqdm

        with self.undisturbed():
            model = self.language_model
            from ..prompts import max_tokens
            from ..work import compute

            todo = model.expect(todo)
            for probe, request in todo:
                prompt = request.prompts[0]
                try:
                    encoding = model.encode(prompt, max_tokens())
                    probe.check(len(encoding), encoding.answer_start)
                except InputError as error:
                    raise type(error)(f"Prompt {prompt.id or prompt.text[:40]!r}: {error}") from None
            with tqdm(todo, disable=not sys.stderr.isatty(), unit="prompt") as bar:
                model.say = lambda text: bar.write(f"ed_core: {text}", file=sys.stderr)
                for probe, request in bar:
                    bar.set_description(probe.name)
                    if request.key not in by_key:
                        by_key[request.key] = compute.run(model, request, memory=memory)
                        try:
                            if store:
                                store.put(by_key[request.key])
                        except StoreError as error:
                            print(f"ed_core: {error}", file=sys.stderr)


class InMemory(Model):
    """A `transformers` causal language model of the caller, measured as it is at each `run`, without changing it
    (`models.in_memory`). Its `spec` follows its weights."""

    def __init__(self, inner: Any, tokenizer: Any, name: str = "", keep: bool = False):
        """`inner`: the `transformers` model. `name`, `keep`: as `ed_core.open` takes them."""
        from ..models.in_memory import MemoryModel

        self._model = MemoryModel(inner, tokenizer, name, keep)
        self._opened: Any = None

    @property
    def spec(self) -> ModelSpec:
        """The model as it is now, with its weights' hash; see `models.in_memory.MemoryModel.spec`."""
        spec: ModelSpec = self._opened.spec if self._opened else self._model.spec
        return spec

    @property
    def language_model(self) -> Any:
        """The engine's own object, as the weights are now. What it computes outside of `at_work` leaves the model as it
        is, and may draw random numbers."""
        if self._opened:
            return self._opened
        with self._model.opened() as model:
            return model

    @property
    def keeps(self) -> bool:
        """Whether this model's results are stored: whether it was opened with `keep`."""
        return self._model.keep

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the model wrapped in the block, so that its weights are looked at once."""
        if self._opened:
            yield
            return
        with self._model.opened() as self._opened:
            try:
                yield
            finally:
                self._opened = None


@cache
def _models(trust_kept: bool) -> Any:
    """Return this process's opened models, one object for each value of `trust_kept`."""
    with uncollected():
        from ..work.compute import Models

    return Models(trust_kept=trust_kept)


def device_of(device: str) -> tuple[str, int | None]:
    """Return the device of a name ("auto", "cpu", "cuda", "cuda:1", "mps"), and its free bytes; None for the CPU, which
    needs no torch to be measured. "auto" is a GPU if this machine has one; without a driver of one it is the CPU, and
    torch is not imported."""
    if device == "cpu" or (device == "auto" and not may_have_gpu()):
        return "cpu", None
    from ..models import devices

    picked = devices.pick(device)
    learn({picked: devices.total_bytes(picked)})
    return picked, None if picked == "cpu" else devices.free_bytes(picked)


def ref_of(source: str, precision: str, device: str, adapter: str, control: str, **more: Any) -> ModelRef:
    """Return the model that is asked for, downloaded where necessary and with "auto" settled; `source` as
    `ModelRef.named` takes it."""
    from ..work.resolve import settle

    ref = fetch(source, control)
    if adapter:
        fetch(adapter)
    device, free = device_of(device) if ref.weights_here else (device, None)
    return settle(ref.opened_as(precision, device, adapter, control=control, **more), free)


def fetch(source: str, control: str = "") -> ModelRef:
    """Return the model once its files are here, or what its control needs of them: downloaded with a progress bar, a
    GGUF file converted. Terms of use are printed on stderr."""
    from tqdm import tqdm

    ref = replace(ModelRef.named(source), control=control)
    if ref.is_ready:
        return ref
    with tqdm(desc=ref.name, disable=ref.is_here or not sys.stderr.isatty(), unit="B", unit_scale=True) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        def say(doing: str) -> None:
            bar.write(f"ed_core: {doing}", file=sys.stderr)

        if ref.terms and not ref.is_here:
            say(str(ref.terms))
        return ref.ensure(progress, say=say)


# ---------------------------------------------------------------- two models on the same prompts

ALL_PROMPTS = "all prompts"  # what the rows over all of them are called
COLUMNS = ("prompt", "by", "before", "after", "difference", "low", "high", "layers", "over")
Side = Model | Sequence[ProbeResult]


def compare(a: Side, b: Side, prompts: Sequence[str | Prompt]) -> pd.DataFrame:
    """Return a table of the average depths of two models, before and after, on the same prompts: a row for each prompt
    and measure (`by`: "kl" or "overlap"), and one over all prompts.

    `before`, `after`: `mean_depth` of a and b in layers, from 0 to `layers` (`depth.mean_depth`); NaN where not
    defined. `difference`: after - before. `low`, `high`: its 90 % interval over prompts, drawn in pairs by
    bootstrap-t, of the rows over all prompts; NaN below 8 prompts or 5 templates. `over`: what the interval is over.

    A side is an opened model, or what `run(ed_core.LogitLens(), prompts)` gave: a model that has been trained since.
    Refuses with a `ParameterError` models of other numbers of layers, and results of other prompts."""
    import pandas as pd

    listed = isinstance(prompts, Iterable) and not isinstance(prompts, str | Mapping)
    given = [] if not listed else [Prompt(p) if isinstance(p, str) else p for p in prompts]
    if not given:
        raise ParameterError("There is no list of prompts; expected one at least, eight for an interval.")
    before, after = (_measured(side, given, name) for side, name in ((a, "a"), (b, "b")))
    if (layers := before[0].n_layers) != after[0].n_layers:
        raise ParameterError(
            f"The models have {layers} and {after[0].n_layers} layers, so no difference in layers is one of depth; "
            "compare their ratios in a study."
        )
    if before[0].request.parameters != after[0].request.parameters:
        raise ParameterError("The results of a and b are of other parameters; measure both with the same.")
    over = statistics.units(len(given), [p.form for p in given])
    rows: list[tuple[object, ...]] = []
    forms = [p.form for p in given]
    groups = [([one], p.id or p.text) for one, p in zip(zip(before, after), given)]
    for results, name in [*groups, (list(zip(before, after)), ALL_PROMPTS)]:
        together = name is ALL_PROMPTS
        both = [verdict(Sample.of(lens=side, forms=forms if together else ())).means for side in zip(*results)]
        for by in MEAN_DEPTH:
            x, y = (np.nan if (depth := side[by].depth) is None else depth for side in both)
            interval = together and over.enough
            low, high = _interval(by, before, after, over) if interval else (np.nan, np.nan)
            rows.append((name, by, x, y, y - x, low, high, layers, over.words if interval else ""))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _measured(side: Side, prompts: Sequence[Prompt], name: str) -> list[ProbeResult]:
    """Return the logit lens of a side, prompt by prompt; a `ParameterError` where it is of other prompts or no logit
    lens. `name`: of the side."""
    results: Any = side.run(LogitLens(), prompts) if isinstance(side, Model) else side
    known = isinstance(results, list | tuple) and all(isinstance(r, ProbeResult) for r in results)
    known = known and {r.request.probe for r in results} == {LENS} and len({r.request.series for r in results}) == 1
    if not known or [r.request.prompts[0].identity() for r in results] != [p.identity() for p in prompts]:
        raise ParameterError(
            f"{name} is neither an opened model nor what run(ed_core.LogitLens(), prompts) gave for these prompts, in "
            "their order; give one of both."
        )
    return list(results)


def _interval(
    by: str, before: Sequence[ProbeResult], after: Sequence[ProbeResult], over: statistics.Units
) -> tuple[float, float]:
    """Return the 90 % interval of the difference in depth of both mean curves, read off the same draw of prompts."""
    sums, tokens = {}, {}
    for side, results in (("before", before), ("after", after)):
        of_side, tokens[side] = prompt_sums(results, (by,), True)
        sums[side] = of_side[by]
    read = MEAN_DEPTH[by]
    draws = statistics.read_off(lambda c: read(c["after"]) - read(c["before"]), sums, tokens, over)
    most = before[0].n_layers - LOWEST[by]
    low, high, _ = draws.bounded(-most, most).interval
    return low, high
