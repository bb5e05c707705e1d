"""From a request to a stored result: open the model, run the probe, write the birth certificate. What worker and
command line share."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from importlib.metadata import version

import psutil
import torch

from .. import settings
from ..errors import EffectiveDepthError, JobError, ParameterError, TooLarge
from ..models.language_model import LanguageModel
from ..models.opening import open_model
from ..probes import find
from ..prompts import max_tokens
from ..results.aggregate import summarize
from ..sources.precision import QUANTIZED
from ..sweeps.budget import Budget, ran_out
from ..sweeps.recorder import Recorder
from ..types import ENGINE_VERSION, ModelSpec, ProbeResult, Request
from . import admission

LIBRARIES = ("torch", "transformers", "numpy", "tokenizers")


class Models:
    """Opened models, least recently used first out, within `ED_MODEL_MEMORY` bytes (half of the memory unless set)."""

    def __init__(self, budget: int | None = None):
        self.budget = budget or settings.current().model_memory or psutil.virtual_memory().total // 2
        self._open: OrderedDict[str, LanguageModel] = OrderedDict()

    def get(self, spec: ModelSpec) -> LanguageModel:
        """The opened model; opens it, and closes others as the budget asks. The one returned is never among those
        closed."""
        name = repr(sorted(spec.identity().items()))
        while name not in self._open:
            try:
                self._open[name] = open_model(spec)
            except TooLarge:
                if not self._open:
                    raise
                self._close_oldest()
        self._open.move_to_end(name)
        while len(self._open) > 1 and sum(m.bytes for m in self._open.values()) > self.budget:
            self._close_oldest()
        return self._open[name]

    def _close_oldest(self) -> None:
        self._open.popitem(last=False)
        gc.collect()  # a spread model's hooks refer to themselves
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def run(
    model: LanguageModel,
    request: Request,
    publish: Callable[[ProbeResult], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    memory: int | None = None,
) -> ProbeResult:
    """The complete result of a request on an opened model. Raises the tree of `ed_core.errors`, nothing else.

    `publish` gets partial results while it runs, `cancelled` is asked between blocks. `memory`: bytes the probe may
    hold above model and trace (else ED_PROBE_MEMORY, else what suits the device)."""
    started = time.time()
    prompt, encoding = request.prompts[0], None
    try:
        probe = find(request.probe).make(dict(request.parameters))
        if any(probe.content_hash(name) != content for name, content in request.files):
            raise ParameterError(
                f"A file that {request.probe} was asked to use has changed since; ask again to use it as it is now."
            )
        probe.check_precision(model.spec.precision)
        encoding = model.encode(prompt, max_tokens())
        probe.check(len(encoding), encoding.answer_start)
        admission.size(request.probe, len(encoding), model.n_layers, model.spec.precision)
        budget = Budget(memory, model.device.type, f"{request.probe} on {model.spec.name}")
        record = Recorder(request, probe.measures, encoding, model.n_layers, publish, cancelled, budget)
        probe.compute(model, encoding, record)
    except EffectiveDepthError:
        raise
    except Exception as error:
        if ran_out(error):
            length = f" with {len(encoding)} tokens" if encoding else ""
            raise JobError(
                f"{request.probe} ran out of memory on {model.spec.name}{length}; use a shorter prompt, a smaller "
                "model or a narrower precision."
            ) from None  # from here on nothing holds what filled the memory
        # a defect of ours, or of a library: named as such, never shown as a traceback
        raise JobError(
            f"{request.probe} failed on {model.spec.name} with {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''} "
            "This is a defect; please report it with the model and the prompt."
        ) from error
    record.provenance.update(certificate(model, request, started) | {"memory": budget.certificate()})
    return summarize(record.result(complete=True))


@cache
def _version(library: str) -> str:
    """Read once: reading it takes as long as a hundredth of a small sweep."""
    return version(library)


def certificate(model: LanguageModel, request: Request, started: float) -> dict:
    """Where a number came from: everything needed to make it again, and who made it when."""
    extra = [
        name
        for name, used in {"bitsandbytes": model.spec.precision in QUANTIZED, "peft": model.spec.adapter}.items()
        if used
    ]
    return {
        "run": request.key,
        "engine": ENGINE_VERSION,
        "probe": {"name": request.probe, "version": request.probe_version, "parameters": dict(request.parameters)},
        "model": request.models[0].identity() | {"source": model.spec.name},
        "precision": {
            "name": model.spec.precision,
            "computes_in": str(model.dtype).removeprefix("torch."),
            "why": request.models[0].why,
        },
        "weights_bytes": model.bytes,
        "family": model.architecture.family,
        "read": model.architecture.modules_read(),
        "parallel": model.parallel,
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "d_vocab": model.d_vocab,
        "block_order": model.block_order,
        "attention": getattr(model.config, "_attn_implementation", None),
        "identities": model.identities.to_json() if model.identities else None,
        "prompt": request.prompts[0].identity(),
        "device": f"{model.device.type} ({platform.machine()}, {os.cpu_count()} cores)",
        "libraries": {name: _version(name) for name in (*LIBRARIES, *extra)} | {"python": platform.python_version()},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
    }
