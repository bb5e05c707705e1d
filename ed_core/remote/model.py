"""A model that is elsewhere, as the rest of the engine sees it: encoded here, measured there.

The probes that can be measured so write the same record as ever, from the arrays that come back; whatever else asks
for a trace, a block or logits is refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from ..sweeps import metrics
from ..sweeps.recorder import Recorder
from ..types import Encoding, Request
from .process import Answer, Client, Shapes

TOKENS = 4096  # of all rows of one pass there
LOGITS = 1 << 24  # unembedded there at once
CLIENT_BYTES = 600 << 20  # about what the client's process takes
COSINES = ("attn_cos", "mlp_cos", "layer_cos", "io_cos")
STEPS = (1 << 24) - 1  # as in `there`


class RemoteModel(LanguageModel):
    """Config and tokenizer of a model whose weights are elsewhere; `elsewhere` tells where the last answer came from,
    and `identities` are those of its session."""

    def __init__(self, spec: Remote, client: Client | None = None):
        loading.quiet()
        hf, tokenizer, architecture, here, encoder = loading.skeleton(spec.here)
        if architecture is None or architecture.third or architecture.stream_scale or architecture.passes:
            raise RefusedFamily(
                f"Refused: {spec.name} is of the family '{hf.config.model_type}', which is not measured elsewhere: its "
                "stream is the sum of attention and MLP alone only in the plain families; open it here."
            )
        super().__init__(hf, tokenizer, architecture, spec, encoder)
        self.device, self.bytes = torch.device("cpu"), CLIENT_BYTES
        name = spec.source.removeprefix(remote.PREFIX)
        self._client = client or Client(name, str(here.place))
        self._expected: list[tuple[Probe, Request]] = []
        self._answers: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], Identities]] = {}

    # ---------------------------------------------------------------- asking

    def expect(self, todo: Sequence[tuple[Any, Request]]) -> Sequence[tuple[Any, Request]]:
        """Say what will be asked for, which comes back ordered by prompt: one session serves all of a prompt."""
        first = {request.prompts: number for number, (_, request) in reversed([*enumerate(todo)])}
        self._expected = sorted(todo, key=lambda one: first[one[1].prompts])
        return self._expected

    def measure(self, probe: Any, encoding: Encoding, record: Recorder) -> None:
        """Write a probe's record from what the service measured. All that is expected of the same prompt is asked for
        in the same session."""
        remote.check(self.spec, probe.name)
        request, n_tokens = record.request, len(encoding)
        if _nothing(probe, n_tokens):
            probe.compute(self, encoding, record)  # says why
            return
        if request.key not in self._answers:
            alike = [(p, r) for p, r in self._expected if r.prompts == request.prompts and r.key != request.key]
            beside = [(p, r) for p, r in alike if not _nothing(p, n_tokens)]
            self._ask([(probe, request), *beside], encoding, record)
        found, self.elsewhere, self.identities = self._answers.pop(request.key)
        _WRITES[probe.name](self, probe, encoding, record, found)
        record.note(self.elsewhere["note"])
        record.step(1.0)

    def _ask(self, group: list[tuple[Probe, Request]], encoding: Encoding, record: Recorder) -> None:
        plan = self._plan(encoding)
        for number, (probe, _) in enumerate(group):
            plan["parts"].append(self._part(probe, encoding) | {"probe": probe.name, "name": str(number)})
        self._expected = [one for one in self._expected if one not in group]
        answer = self._client.ask(plan, _shapes(plan), self.say, record.check)
        if not answer.arrays["finite"]:
            raise NotFinite(
                f"{self.spec.name} gives NaN or infinite values where it runs; nothing was kept: try again, or another "
                "prompt."
            )
        told = self._told(answer)
        identities = self._identities(answer, told["dtype"], plan)
        identities.require(self.architecture)
        self._answers.clear()
        for number, (_, request) in enumerate(group):
            begins = f"{number}."
            mine = {k.removeprefix(begins): v for k, v in answer.arrays.items() if k.startswith(begins)}
            _require_numbers(mine, self, request.probe)
            self._answers[request.key] = mine, told, identities

    def _plan(self, encoding: Encoding) -> dict[str, Any]:
        """What is sent: names of modules, numbers of the config, token ids."""
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
            current = probe.mode == "current"
            return {"bounds": bounds, "current": current, "part": probe.part, "direct": probe.direct}
        if isinstance(probe, ResidualErasure):
            background = [list(self.encode(p, max_tokens()).ids) for p in probe.background_prompts(self.spec)]
            return {"background": background, "start": None if probe.target == "future" else encoding.answer_start}
        return {}

    def _told(self, answer: Answer) -> dict[str, Any]:
        """Where the numbers came from, for the birth certificate and for whoever reads them."""
        there = {name: theirs for name, (_, theirs) in answer.versions.items() if theirs}
        there |= {"torch": answer.texts.get("torch", "")} if answer.texts.get("torch") else {}
        dtype = answer.texts.get("dtype", "")
        if dtype not in {str(one).removeprefix("torch.") for one in MISS_LIMIT}:
            raise ServiceFailed(
                f"{self.spec.name} runs in {dtype or 'no type that is told'} where it is; expected float32, bfloat16 "
                "or float16: nothing was kept."
            )
        versions = ", ".join(f"{name} {version}" for name, version in sorted(there.items()))
        where = self.spec.device
        return {
            "device": where,
            "weights_bytes": 0,
            "dtype": dtype,
            "precision": {"name": remote.SERVED, "computes_in": dtype, "why": "the service chose it."},
            "elsewhere": {
                "at": settings.current().ndif_address,
                "versions": {name: {"here": ours, "there": theirs} for name, (ours, theirs) in answer.versions.items()},
                "bytes_returned": answer.bytes,
            },
            "note": f"Computed {where.replace('ndif at', 'at')} in {dtype}"
            + (f", by {versions}." if versions else "."),
        }

    def _identities(self, answer: Answer, dtype: str, plan: dict[str, Any]) -> Identities:
        """The figures of the session. Blocks are not called by hand there: `replay` hands every block the stream it
        had."""
        found, kind = answer.arrays, getattr(torch, dtype)

        def each(name: str) -> tuple[float | None, ...]:
            return tuple(None if math.isnan(x) else x for x in found[name].tolist())

        def one(name: str) -> float:
            return float(found[name])

        return Identities(
            dtype=dtype,
            n_tokens=len(plan["short"][0]),
            miss=tuple(found["miss"].tolist()),
            slope_attn=each("slope_attn"),
            slope_mlp=each("slope_mlp"),
            closure=one("closure"),
            replay={1: one("replay")},
            detour=one("detour"),
            left_behind=one("left_behind"),
            parallel=self.parallel,
            mlp_moves=each("moves"),
            miss_limit=MISS_LIMIT[kind],
            slope_limit=SLOPE_LIMIT[kind],
            batch=one("batch"),
            suffix_limit=suffix_limit(kind, self.n_layers),
            causality=one("causality"),
        )

    # ---------------------------------------------------------------- what needs the weights

    def _not_here(self, *_: Any, **__: Any) -> Any:
        raise ParameterError(
            f"The weights of {self.spec.source} are elsewhere, and this needs them here; open a model that is here, or "
            f"run {', '.join(remote.MEASURED[:-1])} or {remote.MEASURED[-1]} on this one."
        )

    logits = trace = run_block = logits_from = unembed = write = continuation = _not_here


# ---------------------------------------------------------------- what is expected, and what is made of it


def _nothing(probe: Any, n_tokens: int) -> bool:
    """Whether there is nothing to measure: a prompt too short for any boundary."""
    return isinstance(probe, LayerSkip) and probe.mode == "future" and not probe.chosen_boundaries(n_tokens)


def _shapes(plan: dict[str, Any]) -> Shapes:
    """Name, type and shape of every array that answers a plan."""
    n, t = plan["n_layers"], plan["n_tokens"]
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        **dict.fromkeys(("miss", "slope_attn", "slope_mlp", "moves"), ("float32", (n,))),
        **dict.fromkeys(("closure", "replay", "detour", "batch", "left_behind", "causality"), ("float32", ())),
        "finite": ("int64", ()),
    }
    for part in plan["parts"]:
        one: dict[str, tuple[str, tuple[int, ...]]] = {}
        if part["probe"] == Contributions.name:
            one |= dict.fromkeys(COSINES, ("uint8", (n, t, 3)))
            one |= dict.fromkeys(("attn_norm", "mlp_norm", "mlp_ratio", "layer_ratio"), ("float32", (n, t)))
            one["resid_norm"] = ("float32", (n + 1, t))
        elif part["probe"] == LogitLens.name:
            one |= dict.fromkeys(("kl", "jsd", "entropy"), ("float32", (n + 1, t)))
            one["rank"] = ("uint8", (n + 1, t, 3))
            one |= dict.fromkeys(("top_ids", "top_probs"), ("uint8", (n + 1, t, part["k"], 3)))
        elif part["probe"] == LayerSkip.name:
            b = len(part["bounds"])
            one |= dict.fromkeys(("effect", *(["direct"] * part["direct"])), ("float32", (b, n, n)))
            one |= dict.fromkeys(("output", "kept"), ("float32", (b, n)))
            one["noise_floor"] = ("float32", (n,))
            one |= {"output_pos": ("float32", (n, t))} if part["current"] else {}
        else:
            one["effect"] = ("float32", (n + 1, t))
        found |= {f"{part['name']}.{name}": shape for name, shape in one.items()}
    return found


def _require_numbers(found: dict[str, np.ndarray], model: RemoteModel, probe: str) -> None:
    """Numbers, none of them missing: but for the last column of erasure's, which is not defined for later tokens."""
    for name, values in found.items():
        kept = values[:, :-1] if probe == ResidualErasure.name else values
        if not np.isfinite(kept).all():
            raise ServiceFailed(
                f"The service answered for {model.spec.name} with NaN or infinite values in {probe}.{name}; nothing "
                "was kept: try again, or another prompt."
            )
    if "top_ids" in found and (_whole(found["top_ids"]) >= model.d_vocab).any():
        raise ServiceFailed(
            f"The service answered for {model.spec.name} with tokens that its vocabulary of {model.d_vocab} has not; "
            "nothing was kept: compare the versions."
        )


def _whole(three: np.ndarray) -> np.ndarray:
    """Whole numbers from three bytes each."""
    return np.asarray(three.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32), np.int32)


def _share(three: np.ndarray) -> np.ndarray:
    return np.asarray(_whole(three) / np.float64(STEPS), np.float32)


def _contributions(
    model: RemoteModel, probe: Any, encoding: Encoding, record: Recorder, found: dict[str, np.ndarray]
) -> None:
    values = {name: np.float32(2) * _share(found[name]) - np.float32(1) for name in COSINES}
    values |= {name: found[name] for name in ("attn_norm", "mlp_norm", "mlp_ratio", "layer_ratio", "resid_norm")}
    values["block_influence"] = 1 - values["io_cos"]
    values["attn_ratio"] = values["attn_norm"] / np.maximum(values["resid_norm"][:-1], metrics.NORM_FLOOR)
    if model.parallel:
        record.note(Contributions.BESIDE)
    _write(record, values)


def _lens(model: RemoteModel, probe: Any, encoding: Encoding, record: Recorder, found: dict[str, np.ndarray]) -> None:
    ids = _whole(found["top_ids"])
    best = torch.from_numpy(ids)
    values = {name: found[name] for name in ("kl", "jsd", "entropy")}
    values |= {"rank": _whole(found["rank"]), "top_ids": ids, "top_probs": _share(found["top_probs"])}
    values["overlap"] = metrics.overlap(best, best[-1:].expand_as(best)).numpy()
    values["top1_match"] = (ids[..., 0] == ids[-1:, :, 0]).astype(np.float32)
    values["settle_depth"] = metrics.settle_depth(best[..., 0]).numpy()
    _write(record, values)
    record.name_tokens(model, ids)


def _skips(model: RemoteModel, probe: Any, encoding: Encoding, record: Recorder, found: dict[str, np.ndarray]) -> None:
    values = {name: found[name].max(0) for name in ("effect", "output")}
    values |= {"top1_kept": found["kept"].min(0), "noise_floor": found["noise_floor"]}
    values |= {"effect_direct": found["direct"].max(0)} if "direct" in found else {}
    if "output_pos" in found:
        values["output_pos"] = found["output_pos"]
    else:
        values["boundaries"] = np.array(probe.chosen_boundaries(len(encoding)), np.int32)
        values |= {"effect_by_boundary": found["effect"], "output_by_boundary": found["output"]}
    _write(record, values)


def _erasure(
    model: RemoteModel, probe: Any, encoding: Encoding, record: Recorder, found: dict[str, np.ndarray]
) -> None:
    _write(record, found)


def _write(record: Recorder, values: dict[str, np.ndarray]) -> None:
    for name in (name for name in record.specs if name in values):  # in the probe's own order
        record.allocate(name, values[name].shape)
        record.write(name, ..., values[name])


_WRITES: dict[str, Callable[..., None]] = {
    Contributions.name: _contributions,
    LogitLens.name: _lens,
    LayerSkip.name: _skips,
    ResidualErasure.name: _erasure,
}
