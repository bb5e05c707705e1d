"""Where a probe writes while it runs: arrays that fill, partial results, progress, cancelling.

Values on a GPU stay there until they are read, and are then copied together: each single copy would make the host wait
for the device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Cancelled
from ..types import Encoding, Measure, MeasureSpec, ProbeResult, Request
from .budget import Budget

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.language_model import LanguageModel
    from ..models.trace import Trace

PUBLISH_SECONDS = 0.1  # partial results come at most this often


def as_array(values: Any) -> np.ndarray:
    """Return numpy from a tensor on any device, or from anything array-like."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def elsewhere(values: Any) -> bool:
    """Return whether a value is a tensor on a device other than the CPU."""
    return str(getattr(values, "device", "cpu")) != "cpu"


def on_host(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return tensors as numpy arrays in the given order, with one copy to the host per device and dtype."""
    import torch

    alike: dict[tuple[Any, Any], list[int]] = {}
    for i, one in enumerate(tensors):
        alike.setdefault((one.device, one.dtype), []).append(i)
    copied: list[np.ndarray] = [np.empty(0)] * len(tensors)
    for places in alike.values():
        flat = as_array(torch.cat([tensors[i].detach().reshape(-1) for i in places]))
        ends = np.cumsum([tensors[i].numel() for i in places])[:-1]
        for i, part in zip(places, np.split(flat, ends), strict=True):
            copied[i] = part.reshape(tensors[i].shape)
    return copied


class Recorder:
    """Collects one result while a probe runs. `measures`: what may be written; `publish` gets partial results;
    `cancelled` is asked between blocks; `budget`: the memory that the probe may use."""

    def __init__(
        self,
        request: Request,
        measures: Iterable[MeasureSpec],
        encoding: Encoding,
        n_layers: int,
        publish: Callable[[ProbeResult], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        budget: Budget | None = None,
    ):
        self.budget = budget or Budget(what=request.probe)
        self.request, self.encoding, self.n_layers = request, encoding, n_layers
        self.specs = {spec.name: spec for spec in measures}
        self._arrays: dict[str, np.ndarray] = {}
        self._written: list[tuple[str, Any, Tensor]] = []  # on another device, in the order of writing
        self._unnamed: list[tuple[LanguageModel, Tensor]] = []
        self.token_text: dict[int, str] = {}
        self.provenance: dict[str, Any] = {}
        self.notes = list(encoding.notes)
        self.version, self.progress = 0, 0.0
        self._publish, self._cancelled, self._last = publish, cancelled, 0.0
        self._delay = float(os.environ.get("ED_TEST_STEP_DELAY", "0"))  # tests only: makes the filling visible

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The measures by name with everything written so far; reading waits for a GPU."""
        if self._written or self._unnamed:
            written, unnamed, self._written, self._unnamed = self._written, self._unnamed, [], []
            copied = on_host([values for *_, values in written] + [ids for _, ids in unnamed])
            for (name, place, _), values in zip(written, copied):
                self._arrays[name][place] = values
            for (model, _), ids in zip(unnamed, copied[len(written) :]):
                self.name_tokens(model, ids)
        return self._arrays

    def holds(self, name: str) -> bool:
        """Return whether a measure has been allocated."""
        return name in self._arrays

    def allocate(self, *names: str, **sizes: int) -> None:
        """Create these measures, filled with NaN, or -1 for integers. `sizes`: lengths of the axes in
        `MeasureSpec.dims` that do not follow from the layers and tokens."""
        n, n_tokens = self.n_layers, len(self.encoding)
        sizes = dict(layer=n, depth=n + 1, pos=n_tokens, skipped=n, other=n, start=n, stop=n + 1) | sizes
        for name in names:
            spec = self.specs[name]
            shape = tuple(sizes[dim] for dim in spec.dims)
            self._arrays[name] = np.full(shape, np.nan if spec.dtype == "float32" else -1, spec.dtype)

    def write(self, name: str, place: Any, values: Any) -> None:
        """Put a tensor or array into a measure at an index or slice. A tensor on a GPU must not be changed later."""
        if elsewhere(values):
            self._written.append((name, place, values))
        else:
            into = self.arrays if any(name == one for one, *_ in self._written) else self._arrays
            into[name][place] = as_array(values)

    def name_tokens(self, model: LanguageModel, ids: Any) -> None:
        """Remember the texts of token ids that appear in a measure, so that a page needs no tokenizer."""
        if elsewhere(ids):
            self._unnamed.append((model, ids))
            return
        for token in np.unique(as_array(ids)).tolist():
            if token not in self.token_text:
                self.token_text[token] = model.encoder.label(token)

    def note(self, text: str) -> None:
        """Add a sentence that the user must see next to the numbers."""
        self.notes.append(text)

    def ended(self, written: int, n_tokens: int) -> None:
        """Note that a text ended before all its tokens were written."""
        if written < n_tokens:
            self.note(
                f"The model ended its text after {written} token{'s' * (written != 1)}, the last of which says so."
            )

    def traced(self, model: LanguageModel, encoding: Encoding | tuple[int, ...]) -> Trace:
        """Return the traced pass of a prompt or of token ids; raise `Cancelled` if the job is cancelled."""
        return model.trace(model.tensor(encoding), on_block=lambda *_: self.check(), keep=1)

    def check(self) -> None:
        """Raise `Cancelled` if the job was cancelled."""
        if self._cancelled():
            raise Cancelled("The computation was cancelled; what had been computed is discarded.")

    def step(self, progress: float) -> None:
        """Record the share done; raise `Cancelled` if the job was cancelled, and publish a partial result now and
        then."""
        self.check()
        self.progress = progress
        if self._delay:
            time.sleep(self._delay)
        now = time.monotonic()
        if self._publish is not None and now - self._last >= PUBLISH_SECONDS:
            self.version, self._last = self.version + 1, now
            self._publish(self.result())

    def result(self, complete: bool = False) -> ProbeResult:
        """Return a snapshot of the result so far, without a summary. `complete`: mark the result as finished."""
        measures = {name: Measure(self.specs[name], values.copy()) for name, values in self.arrays.items()}
        return ProbeResult(
            request=self.request,
            measures=measures,
            tokens=self.encoding.tokens,
            token_ids=self.encoding.ids,
            answer_start=self.encoding.answer_start,
            n_layers=self.n_layers,
            version=self.version + complete,
            complete=complete,
            progress=1.0 if complete else self.progress,
            token_text=dict(self.token_text),
            notes=tuple(self.notes),
            provenance=dict(self.provenance),
        )
