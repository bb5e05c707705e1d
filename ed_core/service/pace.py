"""What a request will take on this machine: the estimate from configs, corrected by what was measured since the server
started. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..errors import EffectiveDepthError
from ..probes import find
from ..sources import hub, precision, sizes, tokens
from ..sources.specs import config_of, of_gguf
from ..types import ModelSpec, Request
from . import estimate

UNKNOWN_SECONDS = 30.0  # of a model whose sizes cannot be told
BYTES_A_SECOND = 300e6  # at which weights are opened and checked, until that was measured; chosen
KEPT = 512  # measurements


@dataclass(frozen=True)
class Expected:
    """Seconds that a request takes, its model's opening included; bytes of its model, and of its sweep, 0 where not
    known; `alone`: it has something to fetch or to convert first."""

    seconds: float = UNKNOWN_SECONDS
    weights: int = 0
    sweep: int = 0
    alone: bool = False


class Pace:
    """`stored`: seconds that requests will take by earlier results, None where there are none."""

    def __init__(self, stored: Callable[[Collection[Request], int], float | None] = lambda requests, n_tokens: None):
        self._stored = stored
        self._per_token: dict[str, float] = {}  # seconds of the last run, by series
        self._off: dict[str, float] = {}  # measured by estimated, by probe; "": of all
        self._opening: dict[str, float] = {}  # seconds, by model
        self._open: set[str] = set()

    def expect(self, request: Request) -> Expected:
        """By the last run that differs in the prompt alone, else by stored results of such runs, else by the estimate,
        off as far as it was."""
        spec = request.models[0]
        n_tokens, size, need = self._need(request)
        opening = 0.0 if _name(spec) in self._open else self._opening.get(_name(spec))
        if opening is None:
            opening = size.weight_bytes(spec.precision) / BYTES_A_SECOND if size else 0.0
        seconds = self._per_token.get(request.series)
        seconds = self._stored([request], n_tokens) if seconds is None else seconds * n_tokens
        if seconds is None and need is not None:
            seconds = need.seconds * self._off.get(request.probe, self._off.get("", 1.0))
        packed = of_gguf(spec)
        return Expected(
            UNKNOWN_SECONDS if seconds is None else seconds + opening,
            size.weight_bytes(spec.precision) if size else 0,
            need.activations if need else 0,
            not hub.is_here(spec) or (packed is not None and not packed.converted),
        )

    def learn(self, request: Request, n_tokens: int, seconds: float, opening: float) -> None:
        """A run has ended: its seconds, and those in which its model was opened."""
        _, _, need = self._need(request)
        model = _name(request.models[0])
        self._per_token[request.series] = seconds / max(n_tokens, 1)
        if model not in self._open:
            self._open.add(model)
            self._opening[model] = opening
        if need is not None and need.seconds > 0:
            for name in (request.probe, ""):
                before = self._off.get(name)
                off = seconds / need.seconds
                self._off[name] = off if before is None else (off * before) ** 0.5
        for known in (self._per_token, self._opening):
            while len(known) > KEPT:
                del known[next(iter(known))]

    def nothing_open(self) -> None:
        """The worker ended: models are opened anew."""
        self._open.clear()

    @staticmethod
    def _need(request: Request) -> tuple[int, sizes.Size | None, estimate.Need | None]:
        """Tokens, the model's sizes, and what the estimate says of the request."""
        spec, n_tokens = request.models[0], estimate.TOKENS
        try:
            n_tokens = len(tokens.preview(spec, request.prompts[0]) or range(n_tokens))
            if spec.precision not in precision.PRECISIONS:
                return n_tokens, None, None
            size = sizes.read(config_of(spec))
            asked = find(request.probe).make(dict(request.parameters))
            (need,) = estimate.estimate(size, spec.precision, n_tokens, spec.device, 0, [asked]).needs
        except (EffectiveDepthError, OSError):
            return n_tokens, None, None
        return n_tokens, size, need


def _name(spec: ModelSpec) -> str:
    return repr(sorted(spec.identity().items()))
