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
from ..types import MeasureSpec, ModelSpec, Prompt, Request

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder
    from ..types import Encoding, ProbeResult


def layer_effect(effect: ArrayLike) -> np.ndarray:
    """`e[s] = sum_{l>s} effect[s, l] / max(L-1-s, 1)`, `[…, layer]`: what skipping block s does to a later block, on
    average [C25 §5].

    The last block has none after it: 0. NaN where a skip is not computed (or has no boundary).
    """
    values = np.asarray(effect, np.float64)
    mean: np.ndarray = np.triu(values, 1).sum(-1) / np.maximum(np.arange(values.shape[-1])[::-1], 1)
    return mean


def depth_score(e: ArrayLike) -> float | np.ndarray:
    """`d = sum_s s e[s] / sum_s e[s]`: the block (counted from 0) where a non-negative curve over blocks is centred, in
    [0, L-1]; of many curves `[…, layer]` one each.

    Source: Csordás et al. 2025 §5, whose formula counts from 1. NaN where a value is missing or nothing has an effect.
    """
    values = np.asarray(e, np.float64)
    total = values.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.where(total > 0, values @ np.arange(values.shape[-1]) / total, np.nan)
    return score if values.ndim > 1 else float(score)


def rank_correlation(proxy: ArrayLike, truth: ArrayLike) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank, in [-1, 1]; None below three values or where one side
    is constant or holds a value that is not finite."""
    sides = [np.asarray(v, np.float64) for v in (proxy, truth)]
    x, y = map(_ranks, sides)
    if len(x) < 3 or x.std() == 0 or y.std() == 0 or not np.isfinite(sides).all():
        return None
    return round(float(np.corrcoef(x, y)[0, 1]), 12)  # 1 for the same order


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


ANSWER_TOKENS = 4  # what an estimate counts with


@dataclass(frozen=True)
class Curve:
    """A curve over layers or depths, by its name among a probe's aggregates or derived numbers."""

    name: str
    title: str
    unit: str
    x: str = "layer"
    log: bool = False


@dataclass(frozen=True)
class Score:
    """One number that a prompt's curves come down to: `value`, by its name among the aggregates and derived numbers,
    the depth that a `criterion` gives, or the `mean_depth` of a lens's measure. `name`: in a sentence.
    `of_layers`: a centre over layers, which count from 1."""

    name: str
    value: str = ""
    criterion: str = ""
    mean_depth: str = ""
    of_layers: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure of one result, described once: on its probe's page, in *Compare two*, in a case study and its report.

    `measures`: what it shows, the first one in front; `{branch}` and `{shade}` in a name become what the reader
    chose. `caption` says what is seen, `reading` how to read it. `choice`: what
    *Compare two* calls it where a probe has several maps. `kind`: how it is drawn (`figures.pictures.DRAW`), by default
    as a map of any measure by layer and token. A picture whose first measure a result does not have is left out."""

    title: str
    measures: tuple[str, ...]
    caption: str
    reading: str = ""
    choice: str = ""
    kind: str = "tokens"


@dataclass(frozen=True)
class Shape:
    """A model and a prompt as a cost is counted in them. `stream`: bytes of one residual `[pos, d_model]`; `doubles`:
    bytes of one in float64; `graph`: bytes of what a gradient through all blocks keeps, for one row; `half`: half of
    what a probe may hold; `rows`: rows of one call."""

    n_layers: int
    n_tokens: int
    stream: int
    doubles: int
    graph: int
    half: int
    rows: int | float

    def in_pieces(self, n_rows: int) -> int:
        """Bytes of so many rows; where they have no room they are walked in pieces, of one row at least."""
        return min(n_rows * self.stream, max(self.stream, self.half))

    def cache(self, further: int) -> int:
        """Bytes of a key and a value per layer and token, each at most as wide as the stream, with `further` tokens
        behind the prompt."""
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
    """A probe's parameter. `view_only`: it changes only how stored numbers are combined, so it is no part of the cache
    key. `file`: it names a file (or a bundled default), whose content enters the key instead of its path. `later`: it
    was added when results were stored already, and at its default, which changes nothing, it is no part of the key.
    `prompt`: it is a further prompt of the request, so it is no part of the parameters. `choices`: each with its name
    on screen. `empty`: what an empty list means. `label`: its own name on screen, where that differs."""
    meta = {
        "help": help,
        "low": low,
        "high": high,
        "choices": choices,
        "view_only": view_only,
        "file": file,
        "prompt": prompt,
        "later": later,
        "empty": empty,
        "label": label,
    }
    return field(default=default, metadata=meta)


def described(f: Field[Any], value: Any) -> tuple[str, str]:
    """A parameter and a value of it in the words of the forms."""
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
    first_page: ClassVar[bool] = False  # Home shows it, and *Compare two* begins with it
    traces: ClassVar[bool] = True  # whether one traced pass is held while it runs
    needs_passes: ClassVar[bool] = False  # only for models whose layers run several times
    seconds_per_logit: ClassVar[float] = 2e-8  # of measuring, on a CPU, besides unembedding
    curves: ClassVar[tuple[Curve, ...]] = ()  # by which prompts, models and controls are compared; none: they are not
    score: ClassVar[Score | None] = None  # with `curves`
    derives_stacked: ClassVar[bool] = False  # `derive` takes many curves at once, along a first axis
    pictures: ClassVar[tuple[Picture, ...] | None] = None  # None: its aggregates, over whatever the layers are called
    thumbnail: ClassVar[tuple[int, str]] = (0, "")  # rank and measure of its thumbnail; a case study shows the highest

    def __post_init__(self) -> None:
        """Make a list or an array the tuple of its numbers, and a text the prompt that it is."""
        for f in fields(self):
            if isinstance(f.default, tuple) or f.metadata["prompt"]:
                object.__setattr__(self, f.name, _parse(self.name, f, tuple, getattr(self, f.name)))

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        """Fill the record's arrays, calling `record.step` often: that is where progress, partial results and cancelling
        live."""
        raise NotImplementedError

    def check(self, n_tokens: int, answer_start: int | None) -> None:
        """Refuse a prompt this probe has no answer for, before anything runs."""
        if n_tokens < self.min_tokens:
            raise PromptError(
                f"The prompt has {n_tokens} token; {self.name} needs at least {self.min_tokens}: give it a longer "
                "prompt."
            )
        if self.needs_answer and not answer_start:
            raise PromptError(f"{self.name} needs a known answer, and there is none; give one.")

    def check_precision(self, precision: str) -> None:
        """Refuse a precision in which this probe's numbers would be wrong."""
        if self.needs_gradients:
            require_gradients(precision, self.name)

    def check_idle(self) -> None:
        """Refuse parameters that others make idle, from the shell and in Python; on a page they may stay in their
        boxes."""

    def per_token(self, values: Mapping[str, np.ndarray], left_out: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Arrays of the measures that exist as aggregates only: per token, (…, pos), where they are put together over
        tokens. `left_out`: the positions that `left_out` gives for this result."""
        return {}

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        """What a run costs with these parameters: passes through one block with the whole prompt, and positions
        unembedded."""
        return n_layers, 1

    @property
    def further_tokens(self) -> int:
        """How many tokens are written after the prompt."""
        return 0

    def holds(self, shape: Shape) -> int:
        """Peak bytes on top of the trace, one call and the logits."""
        return 0

    @classmethod
    def left_out(cls, result: ProbeResult) -> tuple[int, ...]:
        """Positions that do not count where the largest of a row is taken: next to its map, and in a summary."""
        return ()

    @classmethod
    def sound(cls, summary: Mapping[str, np.ndarray]) -> bool:
        """Whether a prompt's summary may represent it among others; what says no is left out of spreads, and
        counted."""
        return True

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Numbers made of aggregates (over prompts, or one prompt's own): rank correlations, depth scores. Empty for
        most probes."""
        return {}

    @classmethod
    def spec(cls, measure: str) -> MeasureSpec:
        """The description of a measure, by its name."""
        for spec in cls.measures:
            if spec.name == measure:
                return spec
        raise ValueError(f"{cls.name} has no measure {measure!r}")

    @classmethod
    @cache
    def hints(cls) -> dict[str, Any]:
        """The parameters' types by name."""
        return typing.get_type_hints(cls)

    @classmethod
    def make(cls, values: Mapping[str, Any]) -> Probe:
        """The probe with these parameters, from values or their texts (of a command line, a URL or a form); a
        `ParameterError` where a name is unknown or a value out of range."""
        known = {f.name: f for f in fields(cls)}
        for name in values:
            if name not in known:
                raise ParameterError(f"{cls.name} has no parameter '{name}'; it has {', '.join(known) or 'none'}.")
        hints = cls.hints()
        return cls(**{name: _parse(cls.name, known[name], hints[name], value) for name, value in values.items()})

    @classmethod
    def further_prompts(cls) -> list[str]:
        """The names of the parameters that are prompts."""
        return [f.name for f in fields(cls) if f.metadata["prompt"]]

    @classmethod
    def of(cls, request: Request) -> Probe:
        """The probe that a request asks for, with its parameters and further prompts."""
        return cls.make(dict(request.parameters) | dict(zip(cls.further_prompts(), request.prompts[1:])))

    @classmethod
    def at_first(cls, model: ModelSpec) -> Probe:
        """The probe as its page asks for it until somebody chooses."""
        return cls()

    def settings(self) -> dict[str, Any]:
        """The parameters that are not at their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def request(self, model: ModelSpec, prompt: Prompt) -> Request:
        """The request for one prompt on one model. `NotAllowed` where a parameter names a file that may not be read,
        `ParameterError` where the model is elsewhere and the probe cannot be measured there."""
        made = self.make({f.name: getattr(self, f.name) for f in fields(self)})  # numpy's numbers, lists, 5.0 for 5
        made.check_files()
        remote.check(model, self.name)
        chosen = tuple((f.name, getattr(made, f.name)) for f in fields(made) if made._in_key(f))
        files = tuple((f.name, made.content_hash(f.name, model)) for f in fields(made) if f.metadata["file"])
        others = (getattr(made, name) for name in made.further_prompts())
        prompts = (prompt, *(other for other in others if other is not None))
        return Request((model,), prompts, self.name, chosen, self.version, files)

    def check_files(self) -> None:
        """`NotAllowed` where a parameter names a file that may not be read; bundled and kept ones may."""
        for f in fields(self):
            if f.metadata["file"]:
                for path in self.paths(f.name):
                    permits.file(path)

    def _in_key(self, f: Field[Any]) -> bool:
        """Whether a parameter is part of the key."""
        if f.metadata["view_only"] or f.metadata["prompt"]:
            return False
        return not (f.metadata["later"] and getattr(self, f.name) == f.default)

    def paths(self, parameter: str) -> list[str]:
        """The files of this machine that a `file` parameter names; what is bundled has a name and is none."""
        value = getattr(self, parameter)
        return [] if value == type(self).__dataclass_fields__[parameter].default else [str(value)]

    def content_hash(self, parameter: str, model: ModelSpec) -> str:
        """SHA-256 of what a `file` parameter names; of what is bundled, which may be another for this model."""
        raise NotImplementedError


def _parse(probe: str, f: Field[Any], kind: Any, value: Any) -> Any:
    """One parameter's value, from its text where it is text."""
    label, meta = f"{probe}.{f.name}", f.metadata
    if meta["prompt"]:
        return _prompt(label, value)
    if meta["choices"]:
        if value not in meta["choices"]:
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
    if isinstance(value, bool) or not isinstance(value, (str, int, os.PathLike)):
        raise ValueError
    return str(value)


def _as_number(kind: type[int] | type[float], value: Any) -> int | float:
    """Return a value, or its text, as a number of this kind; a `ValueError`, `TypeError` or (infinity as a whole
    number) an `OverflowError` where it is none."""
    number = kind(value)
    given = float(value) if isinstance(value, str) else value
    if isinstance(value, (bool, np.bool_)) or (number != given and number == number):
        raise ValueError
    return number


def _prompt(label: str, value: Any) -> Prompt | None:
    """Return a prompt from its text, or from the JSON of a line of a prompt file; None where there is none."""
    if isinstance(value, str):
        return (parse_jsonl(value, label)[0] if value.startswith("{") else Prompt(value)) if value else None
    if value is None or isinstance(value, Prompt):
        return value
    raise ParameterError(f"{label} is {value!r}; expected a Prompt, or text.")
