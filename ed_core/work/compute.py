"""From a request to a stored result: open the model, run the probe, write the birth certificate. What worker and
command line share."""

from __future__ import annotations

import os
import platform
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import psutil
import torch

from .. import settings
from ..errors import (
    DeviceFailed,
    EffectiveDepthError,
    JobError,
    OutOfMemory,
    ParameterError,
    TooLarge,
    lost_device,
    one_line,
    ran_out,
)
from ..machine import free_cache, probe_bytes, uncollected
from ..models import devices
from ..models.language_model import LanguageModel
from ..models.opening import open_model
from ..models.ref import ModelRef, Remote
from ..models.sizes import QUANTIZED
from ..probes import find
from ..prompts import max_tokens
from ..remote.model import RemoteModel
from ..results.aggregate import summarize
from ..sweeps.budget import Budget
from ..sweeps.recorder import Recorder
from ..types import ENGINE_VERSION, ModelSpec, ProbeResult, Request

TRACE_SHARE = 8  # of what a probe may hold: kept traces take no more together
LIBRARIES = ("torch", "transformers", "numpy", "tokenizers")


class Models:
    """The models that this process has open, within `ED_MODEL_MEMORY` bytes, the least recently used closed first. The
    default is half of the host's memory for models on the CPU, and a GPU's memory less what two probes may take for
    models there."""

    def __init__(self, budget: int | None = None, share: int = 1, trust_kept: bool = False):
        """`budget`: bytes in place of the setting's. `share`: so many processes share the memory. `trust_kept`: do not
        measure again the residual identities that an earlier opening of the same weights has checked."""
        self._given, self._share, self._trust_kept = budget or settings.current().model_memory, share, trust_kept
        self._open: OrderedDict[str, LanguageModel] = OrderedDict()
        self._used: dict[str, float] = {}  # when each was used last
        self.room: Callable[[ModelSpec], bool] = lambda spec: False  # whether to try again where one does not fit

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each open model, by its key."""
        return {name: model.bytes for name, model in self._open.items()}

    def touch(self) -> None:
        """Note that the latest model was in use until now."""
        if self._open:
            self._used[next(reversed(self._open))] = time.monotonic()

    def close_idle(self, seconds: float) -> None:
        """Close the models that have not been used for so many seconds."""
        for name in [name for name in self._open if time.monotonic() - self._used.get(name, 0.0) >= seconds]:
            self._close(name)

    def budget(self, device: torch.device) -> int:
        """Return the bytes that the models of a device may take together."""
        if self._given:
            return self._given // self._share
        if total := devices.total_bytes(device.type):
            return max(total // 2, total - 2 * probe_bytes(device.type, total)) // self._share
        memory: int = psutil.virtual_memory().total
        return memory // 2 // self._share

    def get(self, spec: ModelSpec) -> LanguageModel:
        """Return the opened model; others are closed to make room. `TooLarge` where it does not fit by itself."""
        name = spec.key
        while name not in self._open:
            try:
                self._open[name] = self._opened(spec)
            except TooLarge:
                if self._open:
                    self._close(next(iter(self._open)))
                elif not self.room(spec):
                    raise
        self._open.move_to_end(name)
        self.touch()
        model = self._open[name]
        while self._over(model.device) and len(self._open) > 1:
            self._close(next(iter(self._open)))
        return model

    def open_ahead(self, spec: ModelSpec) -> None:
        """Open a model that somebody may ask for, where no other has to be closed for it."""
        if (name := spec.key) not in self._open:
            device = self._open.setdefault(name, self._opened(spec)).device
            self._open.move_to_end(name, last=False)  # the first to be closed
            if self._over(device):
                self._close(name)

    def _over(self, device: torch.device) -> bool:
        """Return whether a device's models take more than its budget."""
        used = sum(model.bytes for model in self._open.values() if self._given or model.device.type == device.type)
        return used > self.budget(device)

    def _opened(self, spec: ModelSpec) -> LanguageModel:
        """Return a newly opened model, or a remote one. Its weights stay as they are, so one trace serves all probes of
        a prompt."""
        ref = ModelRef.of(spec)
        if isinstance(ref, Remote):
            return RemoteModel(ref)
        with uncollected():
            model = open_model(ref, trust_kept=self._trust_kept)
        kind = model.device.type
        model.trace_bytes = probe_bytes(kind, devices.total_bytes(kind)) // TRACE_SHARE
        return model

    def _close(self, name: str) -> None:
        """Close the open model with this key and free its memory."""
        del self._open[name]
        free_cache()  # a spread model's hooks refer to themselves


def run(
    model: LanguageModel,
    request: Request,
    publish: Callable[[ProbeResult], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    memory: int | None = None,
) -> ProbeResult:
    """Return the complete result of a request on an opened model. Raises errors of `ed_core.errors` only.

    `publish` gets partial results on the way, `cancelled` is called between blocks. `memory`: bytes that the probe may
    take above model and trace (else ED_PROBE_MEMORY, else what suits the device)."""
    started = time.monotonic()
    what = f"{request.probe} on {model.spec.name}"
    failure: JobError | None = None
    try:
        probe = find(request.probe).of(request)
        if any(probe.content_hash(name, request.models[0]) != content for name, content in request.files):
            raise ParameterError(f"A file used by {request.probe} changed after you pressed Run. Run again to use it.")
        probe.check_precision(model.spec.precision)
        encoding = model.encode(request.prompts[0], max_tokens())
        probe.check(len(encoding), encoding.answer_start)
        budget = Budget(memory, model.device.type, what, devices.total_bytes(model.device))
        record = Recorder(request, probe.measures, encoding, model.n_layers, publish, cancelled, budget)
        model.measure(probe, encoding, record)
    except EffectiveDepthError:
        raise
    except Exception as error:
        failure = _failure(error, what, model.device)
        if type(failure) is JobError:
            raise failure from error
    if failure is not None:  # raised here, where no traceback keeps what filled the memory
        raise failure
    record.provenance.update(certificate(model, request, started) | {"memory": budget.certificate()})
    return summarize(record.result(complete=True))


def _failure(error: Exception, what: str, device: torch.device) -> JobError:
    """Return the `JobError` for an error of torch's or Python's; a plain one for a defect of this program."""
    if ran_out(error):
        return OutOfMemory(f"{what} ran out of memory; use a shorter prompt, a smaller model or a narrower precision.")
    if lost_device(error):
        return DeviceFailed(
            f"{what} ended with the device {device} ({one_line(error)}); a new process is needed to use it again. If "
            "this happens again, take --device cpu."
        )
    return JobError(
        f"{what} failed with {type(error).__name__}: {one_line(error)}. This is a defect; please report it with the "
        "model and the prompt."
    )


_version = cache(version)  # reading it takes as long as a hundredth of a small sweep


def certificate(model: LanguageModel, request: Request, started: float) -> dict[str, Any]:
    """Return a result's birth certificate: everything needed to compute it again. `started`: by the monotonic clock."""
    took, spec = time.monotonic() - started, request.models[0]
    extra = ["bitsandbytes"] * (model.spec.precision in QUANTIZED) + ["peft"] * bool(model.spec.adapter)
    identities = model.identities and model.identities.to_json()
    if identities and model.identities_kept:
        identities["at_an_earlier_opening"] = True
    return {
        "run": request.key,
        "engine": ENGINE_VERSION,
        "probe": {"name": request.probe, "version": request.probe_version, "parameters": dict(request.parameters)},
        "model": spec.identity() | {"source": model.spec.name},
        "precision": {"name": model.spec.precision, "computes_in": str(model.dtype)[6:], "why": spec.why},
        "weights_bytes": model.bytes,
        "family": model.architecture.family,
        "read": model.architecture.modules_read(),
        "parallel": model.parallel,
        "n_layers": model.n_layers,
        **({"passes": model.n_passes} if model.n_passes > 1 else {}),
        "d_model": model.d_model,
        "d_vocab": model.d_vocab,
        "block_order": model.block_order,
        "attention": getattr(model.config, "_attn_implementation", None),
        **devices.certificate(model.device),
        "identities": identities,
        "text": model.text_identities,
        "prompt": request.prompts[0].identity(),
        "device": f"{model.device.type} ({platform.machine()}, {os.cpu_count()} cores)",
        "libraries": {name: _version(name) for name in (*LIBRARIES, *extra)} | {"python": platform.python_version()},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - took)),
        "seconds": round(took, 3),
        **model.elsewhere,
    }
