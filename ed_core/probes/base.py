"""What a probe is: a frozen dataclass whose fields are its parameters; what it tells the rest of the product about its
numbers: curves to compare by, pictures, cost; and the numbers that curves come down to. Nothing else has a list of
probes. Torch-free; only `compute` imports torch, when it runs.

Cache key, command-line flags and the form on the page follow from the fields; the docstring is the help text. To add a
probe: one file here, one line in `ed_core.probes.PROBES`."""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ParameterError, PromptError
from ..models import permits, remote
from ..models.sizes import require_gradients
from ..prompts import parse_jsonl
from ..types import Encoding, MeasureSpec, ModelSpec, ProbeResult, Prompt, Request

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder


def layer_effect(effect: ArrayLike) -> np.ndarray:
    """Return how much skipping each layer changes a later layer on average, `[…, layer]` [C25 §5].

    `e[s] = sum_{l>s} effect[s, l] / max(L-1-s, 1)`, with `effect` `[…, skipped, layer]` the relative change of a
    layer's update. 0 for the last layer; NaN where a skip was not computed."""
    values = np.asarray(effect, np.float64)
    mean: np.ndarray = np.triu(values, 1).sum(-1) / np.maximum(np.arange(values.shape[-1])[::-1], 1)
    return mean


def depth_score(e: ArrayLike) -> float | np.ndarray:
    """Return the layer, from 0 to L-1, where a non-negative curve over layers is centred: `sum_s s e[s] / sum_s e[s]`.

    `e`: one curve `[layer]`, for a float, or many `[…, layer]`, for an array. NaN where a value is missing or all are
    0. Source: Csordás et al. 2025 §5, where layers count from 1."""
    values = np.asarray(e, np.float64)
    total = values.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.where(total > 0, values @ np.arange(values.shape[-1]) / total, np.nan)
    return score if values.ndim > 1 else float(score)


def rank_correlation(proxy: ArrayLike, truth: ArrayLike) -> float | None:
    """Return Spearman's rank correlation of two sequences, in [-1, 1]; ties share their mean rank.

    None for fewer than three values, and where one side is constant or has a value that is not finite."""
    sides = [np.asarray(v, np.float64) for v in (proxy, truth)]
    x, y = map(_ranks, sides)
    if len(x) < 3 or x.std() == 0 or y.std() == 0 or not np.isfinite(sides).all():
        return None
    return round(float(np.corrcoef(x, y)[0, 1]), 12)  # 1 for the same order


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return each value's rank, counted from 1; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


ANSWER_TOKENS = 4  # what an estimate counts with


@dataclass(frozen=True)
class Curve:
    """A curve by which prompts and models are compared. `name`: the aggregate or derived number that has its values;
    `x`: the name of the x axis; `log`: whether the y axis is logarithmic."""

    name: str
    title: str
    unit: str
    x: str = "layer"
    log: bool = False


@dataclass(frozen=True)
class Score:
    """The one number that summarises a prompt's curves. One of three says where the number comes from: `value`, an
    aggregate or derived number; `criterion`, a depth criterion; `mean_depth`, a lens measure, for the average depth.
    `name`: the number's name in a sentence. `of_layers`: the number is a layer, shown counted from 1."""

    name: str
    value: str = ""
    criterion: str = ""
    mean_depth: str = ""
    of_layers: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure of one result, described once for its probe's page, *A | B*, case studies and reports.

    `measures`: what the figure shows, the first in front; `{branch}` and `{shade}` stand for the reader's choice.
    `caption` says what is seen, `reading` how to read it. `choice`: the figure's name in *A | B*. `kind`: how it
    is drawn (a key of `figures.pictures.DRAW`). Without its first measure in a result, the figure is left out."""

    title: str
    measures: tuple[str, ...]
    caption: str
    reading: str = ""
    choice: str = ""
    kind: str = "tokens"


@dataclass(frozen=True)
class Shape:
    """The sizes from which a probe's memory is estimated. Bytes: `stream`, one residual `[pos, d_model]`; `doubles`,
    one in float64; `graph`, what one row's backward pass through all layers keeps; `half`, half of the memory budget.
    `rows`: rows of one batched call."""

    n_layers: int
    n_tokens: int
    stream: int
    doubles: int
    graph: int
    half: int
    rows: int | float

    def in_pieces(self, n_rows: int) -> int:
        """Return the bytes that `n_rows` residuals take at once: rows that exceed half of the budget are processed in
        pieces of at least one row."""
        return min(n_rows * self.stream, max(self.stream, self.half))

    def cache(self, further: int) -> int:
        """Return the bytes of a key-value cache over the prompt and `further` generated tokens, keys and values counted
        as wide as the stream."""
        return 2 * self.n_layers * self.stream * (self.n_tokens + further) // self.n_tokens


PARTS = {"layer": "whole layer", "attention": "attention", "mlp": "MLP"}  # of a layer, with their names on screen


def parameter(
    default: Any,
    help: str,
    *,
    low: int | float | None = None,
    high: int | float | None = None,
    choices: Mapping[str, str] | None = None,
    view_only: bool = False,
    file: bool = False,
    prompt: bool = False,
    later: bool = False,
    empty: str = "auto",
    label: str = "",
) -> Any:
    """Return a dataclass field that declares one probe parameter. `low`, `high`: inclusive limits; `choices`: each
    value with its name on screen; `empty`: what an empty list means; `label`: the name on screen, by default the
    field's.

    What enters the cache key: nothing with `view_only` (the parameter only combines stored numbers) or `prompt` (the
    value is a further prompt of the request); with `file` the content of the named file; with `later`, for parameters
    added when results were already stored, only values other than the default."""
    shown = dict(help=help, low=low, high=high, choices=choices, empty=empty, label=label)
    return field(default=default, metadata=dict(shown, view_only=view_only, file=file, prompt=prompt, later=later))


def described(f: Field[Any], value: Any) -> tuple[str, str]:
    """Return a parameter's label and its value as the forms show them, such as `("Random seed", "123")`."""
    meta = f.metadata
    if isinstance(value, bool):
        words = "yes" if value else "no"
    elif isinstance(value, tuple):
        words = ", ".join(map(str, value)) or meta["empty"]
    else:
        words = (meta["choices"] or {}).get(value, str(value))
    return meta["label"] or f.name.replace("_", " "), words


@dataclass(frozen=True)
class Probe:
    """A question about a model on a prompt: its fields are the parameters, class variables describe the numbers, and
    `compute` measures them."""

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[int] = 1
    measures: ClassVar[tuple[MeasureSpec, ...]]
    min_tokens: ClassVar[int] = 1
    needs_answer: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False
    first_page: ClassVar[bool] = False  # Home shows it, and *A | B* begins with it
    traces: ClassVar[bool] = True  # whether one traced pass is held while it runs
    needs_passes: ClassVar[bool] = False  # only for models whose layers run several times
    seconds_per_logit: ClassVar[float] = 2e-8  # of measuring, on a CPU, besides unembedding
    curves: ClassVar[tuple[Curve, ...]] = ()  # by which prompts, models and controls are compared; none: they are not
    score: ClassVar[Score | None] = None  # with `curves`
    derives_stacked: ClassVar[bool] = False  # `derive` takes many curves at once, along a first axis
    pictures: ClassVar[tuple[Picture, ...] | None] = None  # None: its aggregates, over whatever the layers are called
    thumbnail: ClassVar[tuple[int, str]] = (0, "")  # rank and measure of its thumbnail; a case study shows the highest

    def __post_init__(self) -> None:
        """Convert lists and arrays to tuples of whole numbers, and the texts of prompt parameters to `Prompt`."""
        for f in fields(self):
            if isinstance(f.default, tuple) or f.metadata["prompt"]:
                object.__setattr__(self, f.name, _parse(self.name, f, tuple, getattr(self, f.name)))

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        """Measure one prompt on a model and write the values into `record`. Call `record.step` often: it reports
        progress, publishes partial results and raises `Cancelled`."""
        raise NotImplementedError

    def check(self, n_tokens: int, answer_start: int | None) -> None:
        """Raise `PromptError`, before anything runs, for a prompt that this probe cannot measure. `answer_start`: the
        index of the answer's first token, None without an answer."""
        if n_tokens < self.min_tokens:
            raise PromptError(
                f"The prompt has {n_tokens} token; {self.name} needs at least {self.min_tokens}: give it a longer "
                "prompt."
            )
        if self.needs_answer and not answer_start:
            raise PromptError(f"{self.name} needs a known answer, and there is none; give one.")

    def check_precision(self, precision: str) -> None:
        """Raise `ParameterError` for a precision (int8) in which this probe's gradients would be wrong."""
        if self.needs_gradients:
            require_gradients(precision, self.name)

    def check_idle(self) -> None:
        """Raise `ParameterError` if a set parameter has no effect given the others. Not called for forms on a page."""

    def per_token(self, values: Mapping[str, np.ndarray], left_out: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Return per-token arrays `(…, pos)` of the measures stored as aggregates only, by name. `values`: the measured
        arrays; `left_out`: positions that do not count."""
        return {}

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        """Return the estimated cost of a run: passes through one layer with the whole prompt, and positions
        unembedded."""
        return n_layers, 1

    @property
    def further_tokens(self) -> int:
        """The number of generated tokens that the model reads after the prompt."""
        return 0

    def holds(self, shape: Shape) -> int:
        """Return the estimated peak bytes of a run besides the trace, one block call and the logits."""
        return 0

    @classmethod
    def left_out(cls, result: ProbeResult) -> tuple[int, ...]:
        """Return the positions, from 0, that are ignored where the largest value over tokens is taken."""
        return ()

    @classmethod
    def sound(cls, summary: Mapping[str, np.ndarray]) -> bool:
        """Return whether a prompt's summary is reliable enough to count among other prompts; unreliable ones are left
        out of spreads and counted."""
        return True

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return numbers computed from aggregates, such as rank correlations and depth scores, by name. `curves`:
        aggregates of many prompts or of one. Empty for most probes."""
        return {}

    @classmethod
    def spec(cls, measure: str) -> MeasureSpec:
        """Return the description of a measure by its name; raise `ValueError` for an unknown name."""
        for spec in cls.measures:
            if spec.name == measure:
                return spec
        raise ValueError(f"{cls.name} has no measure {measure!r}")

    @classmethod
    @cache
    def hints(cls) -> dict[str, Any]:
        """Return the class's type annotations by field name."""
        return typing.get_type_hints(cls)

    @classmethod
    def make(cls, values: Mapping[str, Any]) -> Probe:
        """Return the probe with these parameters. Values may be texts from a command line, a URL or a form. Raises
        `ParameterError` for an unknown name or a value out of range."""
        known = {f.name: f for f in fields(cls)}
        for name in values:
            if name not in known:
                raise ParameterError(f"{cls.name} has no parameter '{name}'; it has {', '.join(known) or 'none'}.")
        hints = cls.hints()
        return cls(**{name: _parse(cls.name, known[name], hints[name], value) for name, value in values.items()})

    @classmethod
    def further_prompts(cls) -> list[str]:
        """Return the names of the parameters that are prompts, such as `other` of `patching`."""
        return [f.name for f in fields(cls) if f.metadata["prompt"]]

    @classmethod
    def of(cls, request: Request) -> Probe:
        """Return the probe that a request asks for, with the request's parameters and further prompts."""
        return cls.make(dict(request.parameters) | dict(zip(cls.further_prompts(), request.prompts[1:])))

    @classmethod
    def at_first(cls, model: ModelSpec) -> Probe:
        """Return the probe with the parameters that its page starts with for this model."""
        return cls()

    def settings(self) -> dict[str, Any]:
        """Return the parameters that differ from their defaults, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def request(self, model: ModelSpec, prompt: Prompt) -> Request:
        """Return the request that measures one prompt on one model. Raises `NotAllowed` if a parameter names a file
        that may not be read, and `ParameterError` if the probe cannot run on a remote model."""
        made = self.make({f.name: getattr(self, f.name) for f in fields(self)})  # numpy's numbers, lists, 5.0 for 5
        made.check_files()
        remote.check(model, self.name)
        chosen = tuple((f.name, getattr(made, f.name)) for f in fields(made) if made._in_key(f))
        files = tuple((f.name, made.content_hash(f.name, model)) for f in fields(made) if f.metadata["file"])
        others = (getattr(made, name) for name in made.further_prompts())
        prompts = (prompt, *(other for other in others if other is not None))
        return Request((model,), prompts, self.name, chosen, self.version, files)

    def check_files(self) -> None:
        """Raise `NotAllowed` if a parameter names a file that may not be read. Bundled and kept files may."""
        for f in fields(self):
            if f.metadata["file"]:
                for path in self.paths(f.name):
                    permits.file(path)

    def _in_key(self, f: Field[Any]) -> bool:
        """Return whether a parameter is part of the cache key."""
        if f.metadata["view_only"] or f.metadata["prompt"]:
            return False
        return not (f.metadata["later"] and getattr(self, f.name) == f.default)

    def paths(self, parameter: str) -> list[str]:
        """Return the local file paths that a `file` parameter names; empty for the bundled default."""
        value = getattr(self, parameter)
        return [] if value == type(self).__dataclass_fields__[parameter].default else [str(value)]

    def content_hash(self, parameter: str, model: ModelSpec) -> str:
        """Return the SHA-256 of what a `file` parameter names; bundled content can differ between models."""
        raise NotImplementedError


def _parse(probe: str, f: Field[Any], kind: Any, value: Any) -> Any:
    """Return a parameter's value as type `kind`, parsed where it is text; raise `ParameterError` if it is invalid.
    `probe`: the name for messages."""
    label, meta = f"{probe}.{f.name}", f.metadata
    if meta["prompt"]:
        return _prompt(label, value)
    if meta["choices"]:
        if value not in tuple(meta["choices"]):  # a list has no hash
            raise ParameterError(f"{label} is {value!r}; expected one of {', '.join(meta['choices'])}.")
        return value
    empty = isinstance(f.default, tuple) and isinstance(value, str) and value in (meta["empty"], "")
    expected = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    try:
        if kind is str:
            return _as_text(value)
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
        if kind not in (int, float):
            items = () if empty else value.split(",") if isinstance(value, str) else value
            return tuple(_as_number(int, item) for item in items)
        number = _as_number(kind, value)
    except (KeyError, ValueError, TypeError, OverflowError):
        wanted = expected.get(kind, f"whole numbers like 8,16 or {meta['empty']}")
        raise ParameterError(f"{label} is {value!r}; expected {wanted}.") from None
    if not (meta["low"] is None or number >= meta["low"]) or not (meta["high"] is None or number <= meta["high"]):
        raise ParameterError(
            f"{label} is {value}; expected {meta['low']} to {meta['high'] if meta['high'] is not None else 'any'}."
        )
    return number


def _as_text(value: Any) -> str:
    """Return a text, whole number or path as text; raise `ValueError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int, os.PathLike)):
        raise ValueError
    return str(value)


def _as_number(kind: type[int] | type[float], value: Any) -> int | float:
    """Return a number, or its text, as type `kind`. Anything else raises `ValueError`, `TypeError` or, for infinity as
    a whole number, `OverflowError`."""
    number = kind(value)
    given = float(value) if isinstance(value, str) else value
    if isinstance(value, (bool, np.bool_)) or (number != given and number == number):
        raise ValueError
    return number


def _prompt(label: str, value: Any) -> Prompt | None:
    """Return a `Prompt` from its text or one JSON line of a prompt file; None for nothing. Raises `ParameterError` for
    another type. `label`: the parameter's name, for messages."""
    if isinstance(value, str):
        return (parse_jsonl(value, label)[0] if value.startswith("{") else Prompt(value)) if value else None
    if value is None or isinstance(value, Prompt):
        return value
    raise ParameterError(f"{label} is {value!r}; expected a Prompt, or text.")
