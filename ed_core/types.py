"""The nouns of the product: frozen, numpy only, importable in milliseconds.

A `Request` names a computation completely (model, prompt, probe, parameters); its `key` is the same in every process
and needs neither tokenizer nor model. A `ProbeResult` is what comes back: labelled arrays (`Measure`) plus the birth
certificate (`provenance`)."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

ENGINE_VERSION = 1  # raise when a number of an unchanged request would change; old results are then never shown for it


def canonical_json(value: Any) -> str:
    """Return JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return the value of untrusted JSON. `ValueError` for invalid text and for nesting that is too deep, where
    Python's own parser raises `RecursionError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def changed(spec: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not at their default, by name."""
    return {f.name: value for f in fields(spec) if (value := getattr(spec, f.name)) != f.default}


def command_line(*words: object, between: str = " ", **options: object) -> str:
    """Return a shell command: `python -m ed_core`, `words`, and each option as `--name value`. A tuple repeats its
    option, True is a flag, None and False leave it out. `between`: the text before each option."""
    parts = [shlex.join(["python", "-m", "ed_core", *map(str, words)])]
    for name, given in options.items():
        option = "--" + name.replace("_", "-")
        for value in given if isinstance(given, tuple) else (given,):
            if value is True:
                parts.append(option)
            elif value is not None and value is not False:
                text = shlex.quote(str(value))
                parts.append(f"{option}={text}" if str(value).startswith("-") else f"{option} {text}")
    return between.join(parts)


@dataclass(frozen=True)
class Prompt:
    """A prompt as a person gives it. Every probe runs on `text + answer`, encoded once, jointly, without a separator.

    `template`: "raw" (the text as it is) or "chat" (one user message through the model's chat template).
    `special_tokens`: whether the tokenizer adds its special tokens (its own default unless switched off).
    `id` and `form` are labels only, no part of the identity. `form`: which template the text was filled into; prompts
    of one form are not independent. "" where the text was not filled into one, or none is known.
    """

    text: str
    answer: str = ""
    id: str = ""
    template: str = "raw"
    special_tokens: bool = True
    form: str = field(default="", compare=False)

    def identity(self) -> dict[str, object]:
        """Return the fields that can change a number: text, answer, template, special tokens."""
        return {
            "text": self.text,
            "answer": self.answer,
            "template": self.template,
            "special_tokens": self.special_tokens,
        }


@dataclass(frozen=True)
class Encoding:
    """A prompt's tokens. `answer_start`: the first token (from 0) past the question's end; None without an answer."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    answer_start: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ModelSpec:
    """The exact weights of a model, and how they are run.

    `source` is a folder or a hub id, `revision` the hub commit, `content_hash` the SHA-256 over a local folder's
    weights, config and tokenizer. The identity of a local model is its content, not its path; likewise `adapter_hash`
    replaces the adapter's folder, and of `device` only the kind counts. `why` says how the precision came about,
    `offload` where weights may lie that fit nowhere else: neither changes a number."""

    source: str
    revision: str = ""
    content_hash: str = ""
    precision: str = "fp32"
    adapter: str = ""
    control: str = ""
    control_seed: int = 0
    attention: str = "default"
    device: str = "cpu"
    adapter_hash: str = ""
    why: str = field(default="", compare=False)
    offload: str = field(default="", compare=False)

    def __eq__(self, other: object) -> bool:
        """Return whether both specs are the same; a reference (`models.ref`) is equal to the plain spec that it is."""
        return isinstance(other, ModelSpec) and all(
            getattr(self, f.name) == getattr(other, f.name) for f in fields(self) if f.compare
        )

    @property
    def name(self) -> str:
        """The model's short label: the last component of the folder or hub id."""
        return self.source.rstrip("/").rsplit("/", 1)[-1]

    @property
    def key(self) -> str:
        """The model's identity as one text, by which a process distinguishes its models."""
        return repr(sorted(self.identity().items()))

    def identity(self) -> dict[str, object]:
        """Return the fields that can change a number, content in place of paths."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("why", "offload")}
        if self.content_hash:
            del parts["source"]
        parts["adapter"] = parts.pop("adapter_hash") or self.adapter
        parts["device"] = self.device.partition(":")[0]
        return parts


@dataclass(frozen=True)
class Request:
    """One computation, named completely: `models` and `prompts` have one entry for most probes (two models for a linear
    map).

    `files`: SHA-256 of the files that parameters name; in the identity they replace the paths."""

    models: tuple[ModelSpec, ...]
    prompts: tuple[Prompt, ...]
    probe: str
    parameters: tuple[tuple[str, Any], ...] = ()
    probe_version: int = 1
    files: tuple[tuple[str, str], ...] = ()

    @cached_property  # a page asks for the same one dozens of times
    def key(self) -> str:
        """Run id: 128 bits of SHA-256 over everything that can change a number, as 32 hex digits."""
        return self._digest([p.identity() for p in self.prompts])

    @property
    def series(self) -> str:
        """The run id with the prompts left out: results of one series differ only in the prompt."""
        return self._digest([])

    def _digest(self, prompts: list[dict[str, object]]) -> str:
        """Return the hash of the request's identity with these prompts in place of its own, 32 hex digits."""
        identity = {
            "engine": ENGINE_VERSION,
            "models": [m.identity() for m in self.models],
            "prompts": prompts,
            "probe": [self.probe, self.probe_version],
            "parameters": sorted(
                [k, list(v) if isinstance(v, tuple) else v]
                for k, v in (dict(self.parameters) | dict(self.files)).items()
            ),
        }
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        """Return the request as a JSON object, its key included."""
        data = {**asdict(self), "key": self.key}
        for prompt in data["prompts"]:
            if not prompt["form"]:
                del prompt["form"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Return the request of a JSON object that `to_json` made."""
        return cls(
            models=tuple(ModelSpec(**m) for m in data["models"]),
            prompts=tuple(Prompt(**p) for p in data["prompts"]),
            probe=data["probe"],
            parameters=tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in data["parameters"]),
            probe_version=data["probe_version"],
            files=tuple((k, v) for k, v in data.get("files", ())),
        )


RANGES: dict[str, tuple[float | None, float | None]] = {  # the least and the greatest value that a unit has
    **dict.fromkeys(("0 or 1", "share", "probability", "bits", "half turns", "1 / rank"), (0.0, 1.0)),
    **dict.fromkeys(("nats", "depth", "norm", "ratio", "relative change", "share of the scale", "nodes"), (0.0, None)),
    **dict.fromkeys(("relative", "relative to the largest logit"), (0.0, None)),
    "rank": (1.0, None),
    "cosine": (-1.0, 1.0),
    "1 - cosine": (0.0, 2.0),
    "degrees": (0.0, 180.0),
    "L2 of probabilities": (0.0, 2**0.5),
}


@dataclass(frozen=True)
class MeasureSpec:
    """The meaning of one array of a probe.

    `dims`: names of its axes. "layer" counts blocks (L entries), "depth" counts points of the residual stream (L + 1
    entries, entry l has l blocks behind it), "pos" tokens, "skipped" the skipped block, "start" the first block of a
    stretch and "stop" the first one behind it, "other" the second of two blocks, "length" that of a stretch less one,
    "boundary", "rank" (of a top-k list), "step"; of looped models "pass" (R entries) and "later_pass" (R - 1, from the
    second on), "other_pass" the second of two, "later" the unrolled blocks from the second pass on, "block" those of
    one pass, "times" and "readout" numbers of passes from 0 to 2R.
    `reduce`: how positions and prompts are put together for the aggregate: "token_mean" (mean over all tokens of all
    prompts; of a measure without "pos", its values are means over the prompt's tokens), "next_mean" (means over the
    tokens that have a next one, put together over all of these), "max" (over prompts; the mean is kept as well),
    "mean" (over prompts), "pos_max" (maximum and mean over positions first, then maximum of the maxima and mean of the
    means over prompts), "pos_abs_sum" (sum of magnitudes over positions first, then maximum and mean over prompts), ""
    (none). NaN is left out.
    `dtype` is "float32" or "int32".
    `title`: what a menu or a table calls it. `limits`: the least and the greatest value, None for no limit, where they
    are not the unit's (`RANGES`)."""

    name: str
    dims: tuple[str, ...]
    unit: str
    meaning: str
    reduce: str = ""
    title: str = ""
    aggregate_only: bool = False
    dtype: str = "float32"
    limits: tuple[float | None, float | None] | None = None

    @property
    def low(self) -> float | None:
        """The least value that the measure can have; None without a limit."""
        return (self.limits or RANGES.get(self.unit, (None, None)))[0]

    @property
    def high(self) -> float | None:
        """The greatest value that the measure can have; None without a limit."""
        return (self.limits or RANGES.get(self.unit, (None, None)))[1]


@dataclass(frozen=True)
class Measure:
    """An array with the meaning of its axes. NaN (floats) or -1 (integers) where nothing is computed yet."""

    spec: MeasureSpec
    values: np.ndarray

    def __post_init__(self) -> None:
        if self.values.ndim != len(self.spec.dims):
            raise ValueError(
                f"{self.spec.name}: {self.values.ndim} axes found, {len(self.spec.dims)} expected "
                f"({', '.join(self.spec.dims)})"
            )

    @property
    def name(self) -> str:
        """The measure's name within its probe."""
        return self.spec.name

    def places(self) -> dict[str, np.ndarray]:
        """Return the index of every value along each dim, by dim, in the order of `values.ravel()`."""
        return {dim: places.ravel() for dim, places in zip(self.spec.dims, np.indices(self.values.shape))}


@dataclass(frozen=True)
class ProbeResult:
    """Measures of one request, possibly still filling.

    `version` rises with every partial result; `complete` is set on the last one. `summary` holds the small sums from
    which aggregates over many prompts are made (see `ed_core.results.aggregate`). `provenance` is the birth
    certificate; time and host are in it but in no hash."""

    request: Request
    measures: Mapping[str, Measure]
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    answer_start: int | None
    n_layers: int
    version: int = 0
    complete: bool = False
    progress: float = 0.0
    summary: Mapping[str, np.ndarray] = field(default_factory=dict)
    token_text: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    # a key for what was made from this object: no other result has it, not even an equal one
    itself: object = field(default_factory=object, init=False, repr=False, compare=False)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the array of a measure by its name."""
        return self.measures[name].values

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the prompt, its answer included."""
        return len(self.token_ids)
