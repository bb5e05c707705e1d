"""Where a probe writes while it runs: arrays that fill, partial results, progress, cancelling. Numpy only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Cancelled
from ..types import Encoding, Measure, MeasureSpec, ProbeResult, Request
from .budget import Budget

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel

PUBLISH_SECONDS = 0.1  # partial results come at most this often


def as_array(values: Any) -> np.ndarray:
    """Numpy from a tensor on any device, or from anything array-like."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


class Recorder:
    """Collects one result. `measures` says what may be written; `publish(result)` gets partial ones; `cancelled()` is
    asked between blocks; `budget` is what the probe may hold. `waits()` is asked there too: whether something shorter
    waits; what there is is then published, and `give_way()` runs the other. `away`: the seconds that took."""

    def __init__(
        self,
        request: Request,
        measures: Iterable[MeasureSpec],
        encoding: Encoding,
        n_layers: int,
        publish: Callable[[ProbeResult], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        budget: Budget | None = None,
        waits: Callable[[], bool] = lambda: False,
        give_way: Callable[[], None] = lambda: None,
    ):
        self.budget = budget or Budget(what=request.probe)
        self.request, self.encoding, self.n_layers = request, encoding, n_layers
        self.specs = {spec.name: spec for spec in measures}
        self.arrays: dict[str, np.ndarray] = {}
        self.token_text: dict[int, str] = {}
        self.provenance: dict[str, Any] = {}
        self.notes = list(encoding.notes)
        self.version, self.progress = 0, 0.0
        self._publish, self._cancelled, self._last = publish, cancelled, 0.0
        self._waits, self._give_way, self.away = waits, give_way, 0.0
        self._delay = float(os.environ.get("ED_TEST_STEP_DELAY", "0"))  # tests only: makes the filling visible

    def allocate(self, name: str, shape: tuple[int, ...]) -> None:
        """An empty measure: NaN, or -1 for integers."""
        dtype = self.specs[name].dtype
        self.arrays[name] = np.full(shape, np.nan if dtype == "float32" else -1, dtype)

    def write(self, name: str, at: Any, values: Any) -> None:
        """Put a tensor or array into a measure at an index or slice."""
        self.arrays[name][at] = as_array(values)

    def name_tokens(self, model: LanguageModel, ids: Any) -> None:
        """Remember the texts of token ids that appear in a measure, so that a page needs no tokenizer."""
        for token in np.unique(as_array(ids)).tolist():
            if token not in self.token_text:
                self.token_text[token] = model.token_text(token)

    def note(self, text: str) -> None:
        """A sentence the user must see beside the numbers."""
        self.notes.append(text)

    def check(self) -> None:
        """Raise `Cancelled` if somebody asked for it."""
        if self._cancelled():
            raise Cancelled("The computation was cancelled; what had been computed is discarded.")

    def step(self, progress: float) -> None:
        """One unit of work is done: check for cancelling, publish what there is now and then, and let what is shorter
        go first."""
        self.check()
        self.progress = progress
        if self._delay:
            time.sleep(self._delay)
        now, waits = time.monotonic(), self._waits()
        if self._publish is not None and (waits or now - self._last >= PUBLISH_SECONDS):
            self.version, self._last = self.version + 1, now
            self._publish(self.result())
        if waits:
            self._give_way()
            self.away += time.monotonic() - now
            self.check()

    def result(self, complete: bool = False) -> ProbeResult:
        """A snapshot, without a summary."""
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
