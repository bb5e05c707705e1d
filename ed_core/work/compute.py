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
    IdentityFailed,
    JobError,
    ModelError,
    NotFinite,
    OutOfMemory,
    ParameterError,
    TooLarge,
    lost_device,
    one_line,
    ran_out,
)
from ..machine import free_cache, probe_bytes, uncollected
from ..models import devices, opening
from ..models.language_model import LanguageModel
from ..models.opening import open_model, recheck
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
    """Opened models, least recently used first out, within `ED_MODEL_MEMORY` bytes. Unless that is set, half of the
    memory: the host's for models on the CPU, for those on a GPU that GPU's own, less what a probe may hold."""

    def __init__(self, budget: int | None = None, share: int = 1, trust_kept: bool = False):
        """`share`: so many processes have the memory between them. `trust_kept`: open with identities that held before;
        `recheck` measures them later."""
        self._given, self._share, self._trust_kept = budget or settings.current().model_memory, share, trust_kept
        self._open: OrderedDict[str, LanguageModel] = OrderedDict()
        self._used: dict[str, float] = {}  # when each was used last
        self.room: Callable[[ModelSpec], bool] = lambda spec: False  # whether to try again where one does not fit
        self._rests_on: dict[str, list[str]] = {}  # run ids of what was computed on such identities, by open model
        self._unmeasured: dict[str, list[str]] = {}  # the same of models that were closed and could not be measured
        self._withdrawn: list[tuple[list[str], ModelError]] = []  # what rested on ones that failed, and why

    def sizes(self) -> dict[str, int]:
        """The bytes of each open model, by its key."""
        return {name: model.bytes for name, model in self._open.items()}

    def __len__(self) -> int:
        return len(self._open)

    def touch(self) -> None:
        """The one asked for last has been used until now."""
        if self._open:
            self._used[next(reversed(self._open))] = time.monotonic()

    def close_idle(self, seconds: float) -> None:
        """Close those that nobody has used for so long."""
        for name in [n for n in self._open if time.monotonic() - self._used.get(n, 0.0) >= seconds]:
            self._close(name)

    def budget(self, device: torch.device) -> int:
        """Bytes that the models of a device may take together."""
        if self._given:
            return self._given // self._share
        if total := devices.total_bytes(device.type):
            return max(total // 2, total - 2 * probe_bytes(device.type, total)) // self._share
        whole: int = psutil.virtual_memory().total
        return whole // 2 // self._share

    def _over(self, device: torch.device) -> bool:
        held = sum(model.bytes for model in self._open.values() if self._given or model.device.type == device.type)
        return held > self.budget(device)

    def get(self, spec: ModelSpec) -> LanguageModel:
        """The opened model; opens it, and closes others as the budget asks. The one returned is never among those
        closed."""
        name = spec.key
        while name not in self._open:
            try:
                self._open[name] = self._opened(spec)
            except TooLarge:
                if not self._close_oldest() and not self.room(spec):
                    raise
        self._open.move_to_end(name)
        self.touch()
        model = self._open[name]
        while self._over(model.device) and self._close_oldest(model):
            pass
        return model

    def open_ahead(self, spec: ModelSpec) -> bool:
        """Open a model that somebody may ask for, where no other has to be closed for it; whether it is open."""
        name = spec.key
        if name not in self._open:
            model = self._open[name] = self._opened(spec)
            self._open.move_to_end(name, last=False)  # the first to be closed
            if self._over(model.device):
                del model
                self._close(name)
        return name in self._open

    def computed(self, request: Request) -> None:
        """Note what was computed, in case that the identities it rests on turn out not to hold."""
        if (name := request.models[0].key) in self._open and self._open[name].to_recheck:
            self._rests_on.setdefault(name, []).append(request.key)

    @property
    def to_recheck(self) -> bool:
        """Whether anything was computed on identities that were not measured at this opening, or has to be
        withdrawn."""
        return bool(self._rests_on or self._withdrawn)

    def recheck(self) -> tuple[list[str], ModelError | None]:
        """Measure the identities of one model of which something was computed; one that was closed meanwhile has been
        measured then. Where they do not hold: the run ids of that, and why; the model is closed."""
        if not self._withdrawn:
            name = next(reversed(self._rests_on))
            if not self._holds(name):
                self._close(name)
        return self._withdrawn.pop() if self._withdrawn else ([], None)

    def _holds(self, name: str) -> bool:
        """Measure the identities of an open model of which something was computed; whether they hold. What cannot be
        measured for want of memory is not believed at the next opening."""
        if not (keys := self._rests_on.pop(name, [])):
            return True
        try:
            recheck(self._open[name])
        except (IdentityFailed, NotFinite) as error:
            self._withdrawn.append((keys, error))
        except TooLarge:
            opening.forget_identities(self._open[name])
            self._unmeasured[name] = keys
        else:
            return True
        return False

    def _opened(self, spec: ModelSpec) -> LanguageModel:
        """Open one whose weights stay as they are, so that one trace serves all probes of a prompt; or one that is
        elsewhere."""
        ref = ModelRef.of(spec)
        if isinstance(ref, Remote):
            return RemoteModel(ref)
        keys = self._unmeasured.get(spec.key, [])
        try:
            with uncollected():
                model = open_model(ref, trust_kept=self._trust_kept)
        except (IdentityFailed, NotFinite) as error:
            if keys:
                self._withdrawn.append((self._unmeasured.pop(spec.key), error))
            raise
        self._unmeasured.pop(spec.key, None)
        if keys and model.to_recheck:
            self._rests_on[spec.key] = keys
        kind = model.device.type
        model.trace_bytes = probe_bytes(kind, devices.total_bytes(kind)) // TRACE_SHARE
        return model

    def _close_oldest(self, asked: LanguageModel | None = None) -> bool:
        """Whether there was one that may be closed."""
        name = next((name for name, model in self._open.items() if model is not asked), None)
        if name is not None:
            self._close(name)
        return name is not None

    def _close(self, name: str) -> None:
        self._holds(name)
        del self._open[name]
        free_cache()  # a spread model's hooks refer to themselves


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
    started = time.monotonic()
    prompt, encoding = request.prompts[0], None
    ended: JobError | None = None
    try:
        probe = find(request.probe).make(dict(request.parameters))
        if any(probe.content_hash(name, request.models[0]) != content for name, content in request.files):
            raise ParameterError(
                f"A file that {request.probe} was asked to use has changed since; run again to use the new version."
            )
        probe.check_precision(model.spec.precision)
        encoding = model.encode(prompt, max_tokens())
        probe.check(len(encoding), encoding.answer_start)
        what, total = f"{request.probe} on {model.spec.name}", devices.total_bytes(model.device)
        budget = Budget(memory, model.device.type, what, total)
        record = Recorder(request, probe.measures, encoding, model.n_layers, publish, cancelled, budget)
        model.measure(probe, encoding, record)
    except EffectiveDepthError:
        raise
    except Exception as error:
        if ran_out(error):
            length = f" with {len(encoding)} tokens" if encoding else ""
            ended = OutOfMemory(
                f"{request.probe} ran out of memory on {model.spec.name}{length}; use a shorter prompt, a smaller "
                "model or a narrower precision."
            )
        elif lost_device(error):
            ended = DeviceFailed(
                f"{request.probe} on {model.spec.name} ended with the device {model.device} ({one_line(error)}); a new "
                "process is needed to use it again. If this happens again, take --device cpu."
            )
        else:  # a defect of ours, or of a library: named as such, never shown as a traceback
            raise JobError(
                f"{request.probe} failed on {model.spec.name} with {type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else ''} "
                "This is a defect; please report it with the model and the prompt."
            ) from error
    if ended is not None:  # here nothing holds what filled the memory
        raise ended
    record.provenance.update(certificate(model, request, started) | {"memory": budget.certificate()})
    return summarize(record.result(complete=True))


@cache
def _version(library: str) -> str:
    """Read once: reading it takes as long as a hundredth of a small sweep."""
    return version(library)


def certificate(model: LanguageModel, request: Request, started: float) -> dict[str, Any]:
    """Where a number came from: everything needed to make it again, and who made it when. `started`: by a clock that
    nobody sets."""
    took = time.monotonic() - started
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
        **({"passes": model.n_passes} if model.n_passes > 1 else {}),
        "d_model": model.d_model,
        "d_vocab": model.d_vocab,
        "block_order": model.block_order,
        "attention": getattr(model.config, "_attn_implementation", None),
        **devices.certificate(model.device),
        "identities": (model.identities.to_json() | ({"at_an_earlier_opening": True} if model.to_recheck else {}))
        if model.identities
        else None,
        "text": model.text_identities,
        "prompt": request.prompts[0].identity(),
        "device": f"{model.device.type} ({platform.machine()}, {os.cpu_count()} cores)",
        "libraries": {name: _version(name) for name in (*LIBRARIES, *extra)} | {"python": platform.python_version()},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - took)),
        "seconds": round(took, 3),
        **model.elsewhere,
    }
