"""A model that is elsewhere, as the rest of the engine sees it: encoded here, measured there.

The probes that can be measured so get their record from the arrays that come back; whatever else asks for a trace, a
block or logits is refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .. import settings
from ..errors import NotFinite, ParameterError, RefusedFamily, ServiceFailed
from ..models import loading, remote
from ..models.identities import MISS_LIMIT, SLOPE_LIMIT, Identities, suffix_limit
from ..models.language_model import LanguageModel
from ..models.ref import Remote
from ..models.verify import other_last, short_prompt
from ..probes import Probe
from ..probes.contributions import Contributions
from ..probes.layer_skip import LayerSkip
from ..probes.lenses import LogitLens
from ..probes.residual_erasure import ResidualErasure
from ..prompts import max_tokens
from ..sweeps.recorder import Recorder
from ..types import Encoding, Request
from . import process
from .process import Answer

TOKENS = 4096  # of all rows of one pass there
LOGITS = 1 << 24  # unembedded there at once
BY_LAYER = ("miss", "slope_attn", "slope_mlp", "mlp_moves")  # of the identities
SINGLE = ("closure", "replay", "detour", "batch", "left_behind", "causality")
Arrays = dict[str, np.ndarray]


class RemoteModel(LanguageModel):
    """A model measured by a service that has the weights; config and tokenizer are here. `elsewhere` says where the
    last answer came from, and `identities` are those of its session."""

    def __init__(self, spec: Remote):
        loading.quiet()
        hf, tokenizer, architecture, here, encoder = loading.skeleton(spec.here)
        if architecture is None or architecture.third or architecture.stream_scale or architecture.passes:
            raise RefusedFamily(
                f"Refused: {spec.name} is of the family '{hf.config.model_type}', which is not measured elsewhere: its "
                "stream is the sum of attention and MLP alone only in the plain families; open it here."
            )
        super().__init__(hf, tokenizer, architecture, spec, encoder)
        self.device, self.bytes = torch.device("cpu"), 0
        self._name, self._folder = spec.source.removeprefix(remote.PREFIX), str(here.place)
        self._expected: list[tuple[Probe, Request]] = []
        self._answers: dict[str, tuple[Arrays, dict[str, Any], Identities]] = {}

    # ---------------------------------------------------------------- asking

    def expect(self, todo: Sequence[tuple[Any, Request]]) -> Sequence[tuple[Any, Request]]:
        """Return the requests ordered by prompt, and remember them: one session measures all that is expected of a
        prompt."""
        first = {request.prompts: number for number, (_, request) in reversed([*enumerate(todo)])}
        self._expected = sorted(todo, key=lambda one: first[one[1].prompts])
        return self._expected

    def measure(self, probe: Any, encoding: Encoding, record: Recorder) -> None:
        """Write a probe's measures, as the service computed them, into `record`; one session measures all that is
        expected of a prompt."""
        remote.check(self.spec, probe.name)
        request, n_tokens = record.request, len(encoding)
        if _has_nothing(probe, n_tokens):
            probe.compute(self, encoding, record)  # says why
            return
        if request.key not in self._answers:
            others = [(p, r) for p, r in self._expected if r.prompts == request.prompts and r.key != request.key]
            self._ask(
                [(probe, request), *((p, r) for p, r in others if not _has_nothing(p, n_tokens))], encoding, record
            )
        arrays, self.elsewhere, self.identities = self._answers.pop(request.key)
        for name in (name for name in record.specs if name in arrays):  # in the probe's own order
            record.allocate(name, **dict(zip(record.specs[name].dims, arrays[name].shape)))
            record.write(name, ..., arrays[name])
        if "top_ids" in arrays:
            record.name_tokens(self, arrays["top_ids"])
        if self.parallel and isinstance(probe, Contributions):
            record.note(Contributions.IN_PARALLEL)
        record.note(self.elsewhere["note"])
        record.step(1.0)

    def _ask(self, group: list[tuple[Probe, Request]], encoding: Encoding, record: Recorder) -> None:
        """Ask the service for the probes of a group, all of one prompt, and keep the answers by request."""
        plan = self._plan(encoding)
        for number, (probe, _) in enumerate(group):
            plan["parts"].append(self._part(probe, encoding) | {"probe": probe.name, "name": str(number)})
        self._expected = [one for one in self._expected if one not in group]
        answer = process.ask(self._name, self._folder, plan, self.say, record.check)
        if not answer.arrays:
            raise NotFinite(
                f"{self.spec.name} gives NaN or infinite values where it runs; nothing was kept: try again, or another "
                "prompt."
            )
        where = self._where(answer)
        identities = self._identities(answer, plan)
        identities.require(self.architecture)
        self._answers.clear()
        for (probe, request), part in zip(group, plan["parts"], strict=True):
            self._answers[request.key] = self._measures(probe, part, answer, len(encoding)), where, identities

    def _plan(self, encoding: Encoding) -> dict[str, Any]:
        """Return what is sent: names of modules, numbers of the config, token ids; no probe's part yet."""
        names, short = {id(module): name for name, module in self.hf.named_modules()}, short_prompt(self)

        def within(block: int, module: object) -> str:
            return str(names[id(module)]).removeprefix(f"{names[id(self.stack)]}.{block}.")

        return {
            "blocks": names[id(self.stack)],
            "norm": names[id(self.final_norm)],
            "head": names[id(self.head)],
            "branches": [[within(i, attn), within(i, mlp)] for i, (attn, mlp) in enumerate(self.branches)],
            "n_layers": self.n_layers,
            "multiplier": self.multiplier,
            "in_place": self.architecture.in_place,
            "parallel": self.parallel,
            "divisor": self.architecture.number(self.config, "logit_divisor"),
            "factor": self.architecture.number(self.config, "logit_multiplier"),
            "cap": self.architecture.number(self.config, "logit_softcap"),
            "keeps": bool(self._keep(1)),
            "short": short.tolist(),
            "other": other_last(self, short).tolist(),
            "slope_limits": {str(dtype): limit for dtype, limit in SLOPE_LIMIT.items()},
            "ids": self.tensor(encoding).tolist(),
            "n_tokens": len(encoding),
            "tokens": TOKENS,
            "positions": max(1, LOGITS // self.d_vocab),
            "d_vocab": self.d_vocab,
            "parts": [],
        }

    def _part(self, probe: Probe, encoding: Encoding) -> dict[str, Any]:
        """Return the parameters of a probe that are sent; `ParameterError` for those the service cannot follow."""
        n_tokens = len(encoding)
        if isinstance(probe, LogitLens):
            if probe.points != "layers":
                raise ParameterError(
                    f"The lens reads {self.spec.name} between its layers only: half layers would double what comes "
                    "back from where it is; take points=layers."
                )
            return {"k": min(probe.k, self.d_vocab)}
        if isinstance(probe, LayerSkip):
            bounds = probe.chosen_boundaries(n_tokens) if probe.mode == "future" else [n_tokens]
            return {"bounds": bounds, "current": probe.mode == "current", "part": probe.part, "direct": probe.direct}
        if isinstance(probe, ResidualErasure):
            background = [list(self.encode(p, max_tokens()).ids) for p in probe.background_prompts(self.spec)]
            return {"background": background, "start": None if probe.target == "future" else encoding.answer_start}
        return {}

    def _where(self, answer: Answer) -> dict[str, Any]:
        """Return where the numbers came from, for the birth certificate and for readers."""
        head, where = answer.head, self.spec.device
        present = {name: theirs for name, (_, theirs) in head.versions.items() if theirs} | {"torch": head.torch}
        versions = ", ".join(f"{name} {version}" for name, version in sorted(present.items()))
        return {
            "device": where,
            "weights_bytes": 0,
            "dtype": head.dtype,
            "precision": {"name": remote.SERVED, "computes_in": head.dtype, "why": "the service chose it."},
            "elsewhere": {
                "at": settings.current().ndif_address,
                "versions": {name: {"here": own, "there": theirs} for name, (own, theirs) in head.versions.items()},
                "bytes_returned": answer.bytes,
            },
            "note": f"Computed {where.replace('ndif at', 'at')} in {head.dtype}, by {versions}.",
        }

    def _identities(self, answer: Answer, plan: dict[str, Any]) -> Identities:
        """Return the identities' figures in an answer. Blocks are not called by hand there: `replay` hands every block
        the stream it had."""
        kind = getattr(torch, answer.head.dtype)
        figures: dict[str, Any] = {name: float(self._array(answer, name, np.float32, ())) for name in SINGLE}
        for name in BY_LAYER:
            values = self._array(answer, name, np.float32, (self.n_layers,)).tolist()
            figures[name] = tuple(None if math.isnan(x) else x for x in values)
        return Identities(
            dtype=answer.head.dtype,
            n_tokens=len(plan["short"][0]),
            parallel=self.parallel,
            miss_limit=MISS_LIMIT[kind],
            slope_limit=SLOPE_LIMIT[kind],
            suffix_limit=suffix_limit(kind, self.n_layers),
            **figures | {"replay": {1: figures["replay"]}},
        )

    def _measures(self, probe: Probe, part: dict[str, Any], answer: Answer, n_tokens: int) -> Arrays:
        """Return the measures of a probe that came back, by name, each in the declared type and shape."""
        sizes = {"layer": self.n_layers, "skipped": self.n_layers, "depth": self.n_layers + 1, "pos": n_tokens}
        sizes |= {"rank": part.get("k", 0), "boundary": len(part.get("bounds", ()))}
        names = {spec.name: f"{part['name']}.{spec.name}" for spec in probe.measures}
        arrays = {
            spec.name: self._array(answer, names[spec.name], spec.dtype, tuple(sizes[dim] for dim in spec.dims))
            for spec in probe.measures
            if names[spec.name] in answer.arrays
        }
        empty_last = isinstance(probe, ResidualErasure)  # its last column has nothing to predict
        finite = all(np.isfinite(values[:, :-1] if empty_last else values).all() for values in arrays.values())
        ids = arrays.get("top_ids", np.zeros(1, int))
        if not (finite and ids.min() >= 0 and ids.max() < self.d_vocab):
            raise ServiceFailed(
                f"The service's answer for {self.spec.name} has values in {probe.name} that are not finite, or tokens "
                "outside its vocabulary; nothing was kept: try again, or compare the versions."
            )
        return arrays

    def _array(self, answer: Answer, name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of the answer; `ServiceFailed` unless it has this type and shape."""
        values = answer.arrays.get(name)
        if values is None or values.dtype != dtype or values.shape != shape:
            raise ServiceFailed(
                f"The service's answer for {self.spec.name} is not what was asked for ({name}); nothing was kept: "
                "compare the versions."
            )
        return values

    # ---------------------------------------------------------------- what needs the weights

    def _not_here(self, *_: Any, **__: Any) -> Any:
        """Raise `ParameterError`, in place of every method that needs the weights."""
        raise ParameterError(
            f"The weights of {self.spec.source} are remote, and this needs them; take a model that is here, or "
            f"run {', '.join(remote.MEASURED[:-1])} or {remote.MEASURED[-1]} on this one."
        )

    logits = trace = run_block = logits_from = unembed = write = continuation = _not_here


def _has_nothing(probe: Any, n_tokens: int) -> bool:
    """Return whether a probe has nothing to measure: a prompt too short for any boundary."""
    return isinstance(probe, LayerSkip) and probe.mode == "future" and not probe.chosen_boundaries(n_tokens)
