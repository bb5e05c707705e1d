"""What a visitor sets. What an input holds is remembered while it is not on the screen, as Streamlit forgets a widget's
value when another page is opened. One that a link carries is declared once (`Input`): its name in the URL, under which
key the session holds it, its default, the label and options of its box. Box, link and case study read the same
declaration; a value that cannot be is refused before anything is set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

import streamlit as st

from ed_core.depth.rules import KL_THRESHOLD, OVERLAP_THRESHOLD
from ed_core.depth.sample import ALL, ANSWER
from ed_core.depth.say import read_for
from ed_core.depth.side_by_side import COMPARED
from ed_core.errors import ParameterError
from ed_core.models import controls
from ed_core.probes import Contributions, Probe, find
from ed_ui import session

LONGEST = 300  # characters of a value
LARGEST = 2**53  # what a browser's number box can hold
ECHO = 4.0  # seconds in which a browser may still say what it said before a value was replaced; chosen


def value(key: str, default: Any = None) -> Any:
    """Return the value of the input `key`, on whatever page it is; `default` where none is set."""
    return session.current().inputs.get(key, default)


def put(values: Mapping[str, Any]) -> None:
    """Set inputs to these values, by key; only from a callback, or before they are drawn."""
    session.current().inputs.update(values)


def put_over(values: Mapping[str, Any]) -> None:
    """Set inputs to these values, and ignore for `ECHO` seconds a browser that still sends the replaced ones: it looks
    for news of a run by itself, and sends the values that it knew."""
    known = session.current()
    known.replaced |= {key: (known.inputs.get(key, st.session_state.get(key)), time.monotonic()) for key in values}
    put(values)


def forget(*keys: str) -> None:
    """Set inputs back to their defaults, by key."""
    for key in keys:
        session.current().inputs.pop(key, None)


def note(key: str) -> None:
    """Remember a widget's value, as its `on_change`, unless it is the echo of one that was just replaced."""
    before, at = session.current().replaced.get(key, (None, 0.0))
    if st.session_state[key] != before or time.monotonic() - at > ECHO:
        session.current().inputs[key] = st.session_state[key]


def widget(
    draw: Callable[..., Any],
    label: str,
    key: str,
    default: Any = None,
    words: bool = False,
    changed: Callable[[str], None] = note,
    **more: Any,
) -> Any:
    """Draw a widget that keeps its value over page changes, and return the value. `words`: it is typed into, so its
    value is set only where another is wanted. `changed`: called with the key on a change, in place of `note`."""
    if draw.__name__ == "segmented_control":  # buttons of which one is always pressed
        more["required"] = True
    content = value(key, default)
    # again in every run: the browser may not have got it; a box for words would lose what is being typed
    if not words or key not in st.session_state or st.session_state[key] != content:
        st.session_state[key] = content
    return draw(label, key=key, on_change=changed, args=(key,), **more)


def window(key: str, n: int, most: int) -> tuple[int, int] | None:
    """Return the first and last token (from 0) that a figure shows, with room for `most` of `n`: the window chosen
    under `key` where it fits the prompt, else the last tokens; None where all fit."""
    if n <= most:
        return None
    chosen: tuple[int, int] | None = value(key)
    if chosen is not None and chosen[1] < n:
        return chosen
    forget(key)
    return n - most, n - 1


def token(n_tokens: int) -> int | None:
    """Return the position (from 0) of the token that all panels mark; None for none, or in a shorter prompt."""
    chosen = value("token")
    return chosen if chosen is not None and chosen < n_tokens else None


# -------------------------------------------------------------------- declared once


def written(value: Any) -> str:
    """Return a value as a link writes it: True as "true", 5.0 as "5"."""
    text = str(value)
    return text.lower() if isinstance(value, bool) else text.removesuffix(".0") if isinstance(value, float) else text


@dataclass(frozen=True)
class Input:
    """An input that a link may carry: `name` in the URL, `key` in the session. `parse` makes the value of its text or
    raises a `ParameterError`, `write` the reverse. `label`, `box`: label and arguments of its widget. `bounded`: it is
    a choice or a number, never a visitor's own words."""

    name: str
    key: str
    default: Any
    parse: Callable[[str], Any]
    write: Callable[[Any], str] = written
    label: str = ""
    box: Mapping[str, Any] = field(default_factory=dict)
    bounded: bool = False

    @property
    def value(self) -> Any:
        """The input's value, on whatever page it is; its default where none is set."""
        return value(self.key, self.default)

    def draw(self, box: Callable[..., Any], label: str = "", default: Any = None, **more: Any) -> Any:
        """Draw the input with the widget `box` and return its value, which page changes keep. `default`: shown in place
        of its own while nothing is chosen."""
        default = self.default if default is None else default
        return widget(box, label or self.label, self.key, default, **(dict(self.box) | more))

    def draw_of(self, box: Callable[..., Any], options: Sequence[Any], **more: Any) -> Any:
        """Draw the input with these options and return its value; a value that is not among them becomes the first."""
        if value(self.key) not in options:
            put({self.key: options[0]})
        return self.draw(box, options=options, **more)

    def read(self, given: str) -> Any:
        """Return the value of a text from a URL; raise a `ParameterError` that says what is wrong with it."""
        if len(given) > LONGEST or not given.isprintable():
            raise ParameterError(f"{self.name} is {given[:20]!r}…; expected at most {LONGEST} printable characters.")
        return self.parse(given)


def text(name: str, key: str, default: str = "", label: str = "") -> Input:
    """Return an input that takes any text, without spaces around it."""
    return Input(name, key, default, str.strip, label=label)


def choice(
    name: str, key: str, default: Any, options: Iterable[Any], label: str = "", called: Mapping[Any, str] | None = None
) -> Input:
    """Return an input that takes one of `options`. `called`: the name of each option in its box."""
    known = {written(option): option for option in options}

    def parse(value: str) -> Any:
        if value not in known:
            raise ParameterError(f"{name} is {value!r}; expected one of {', '.join(known)}.")
        return known[value]

    box: dict[str, Any] = {"options": tuple(known.values())} | ({"format_func": called.get} if called else {})
    return Input(name, key, default, parse, label=label, box=box, bounded=True)


def several(name: str, key: str, default: list[str], options: Iterable[str], label: str = "") -> Input:
    """Return an input that takes any number of `options`; a link has commas between them."""
    known = {str(option): option for option in options}

    def parse(value: str) -> list[str]:
        if not value:
            return []
        if strange := [part for part in value.split(",") if part not in known]:
            raise ParameterError(f"{name} names {strange[0]!r}; expected some of {', '.join(known)}.")
        return [known[part] for part in dict.fromkeys(value.split(","))]

    box = {"options": tuple(known.values())}
    return Input(name, key, default, parse, lambda value: ",".join(map(str, value)), label, box)


def number(name: str, key: str, default: Any, low: float, high: float, kind: type = float, label: str = "") -> Input:
    """Return an input that takes a number from `low` to `high`. `kind`: int or float."""

    def parse(value: str) -> Any:
        try:
            result = kind(value)
        except ValueError:
            result = math.nan
        if not low <= result <= high:
            what = f"a whole number from {low} to {high}" if kind is int else f"a number from {low:g} to {high:g}"
            raise ParameterError(f"{name} is {value!r}; expected {what}.")
        return result

    box = {"min_value": low, "max_value": high}
    return Input(name, key, default, parse, label=label, box=box, bounded=True)


def flag(name: str, key: str, default: bool, label: str = "") -> Input:
    """Return an input that is on or off."""
    return replace(choice(name, key, default, (True, False), label), box={})


def span(name: str, key: str) -> Input:
    """Return an input that takes a window of tokens, first and last; a link writes it as 12-59. Its default is None."""

    def parse(value: str) -> tuple[int, int]:
        first, _, last = value.partition("-")
        if not (first.isdecimal() and last.isdecimal() and len(value) < 20 and int(first) <= int(last)):
            raise ParameterError(f"{name} is {value!r}; expected the first and the last token, like 12-59.")
        return int(first), int(last)

    return Input(name, key, None, parse, lambda value: f"{value[0]}-{value[1]}", "Tokens shown")


def of_probe(probe: type[Probe], names: Iterable[str] | None = None) -> tuple[Input, ...]:
    """Return the inputs of a probe's own parameters, of `names` only those, checked as on the command line. Parameters
    that are files or prompts are left out: no link may carry them."""
    return tuple(
        _of_field(probe, f)
        for f in fields(probe)
        if (names is None or f.name in names) and not (f.metadata["file"] or f.metadata["prompt"])
    )


def _of_field(probe: type[Probe], f: Field[Any]) -> Input:
    """Return the input of one parameter of a probe, the dataclass field `f`."""

    def parse(value: str) -> Any:
        parameter = getattr(probe.make({f.name: value}), f.name)
        if isinstance(parameter, (int, float)) and not abs(parameter) < LARGEST:
            raise ParameterError(f"{probe.name}.{f.name} is {value!r}; expected a number that a box can hold.")
        return boxed(parameter, f.metadata["empty"])

    return Input(f.name, f"{probe.name}.{f.name}", boxed(f.default, f.metadata["empty"]), parse)


def boxed(value: Any, empty: str = "") -> Any:
    """Return a probe's parameter as its box shows it: a tuple as text with commas, an empty one as `empty`."""
    return (",".join(map(str, value)) or empty) if isinstance(value, tuple) else value


# -------------------------------------------------------------------- inputs of several pages, and those that are kept

BRANCHES = {"layer": "both", "attn": "attention", "mlp": "MLP"}
SHADES = {
    "prob": "probability",
    "kl": "KL to output",
    "jsd": "Jensen–Shannon",
    "entropy": "entropy",
    "rank": "rank of the output",
}
FOLLOWED = "token_rank"
OF_LENSES = {short: name for short, name in SHADES.items() if short != "entropy"} | {
    FOLLOWED: "rank of the followed token"
}
NONE = "none"
CONTROL = choice("control", "control", NONE, (NONE, *controls.KINDS), "Control")
CONTROL_SEED = number("control_seed", "control.seed", 0, 0, controls.MOST, int, "Seed of the control")
COUNT_SINKS = flag("count_sinks", "count_sinks", False, "Count the sinks (◆)")
KL = number("kl", "kl_threshold", KL_THRESHOLD, 0.05, 0.95, label="KL: below this share of its maximum")
OVERLAP = number("overlap", "overlap_threshold", OVERLAP_THRESHOLD, 0.05, 0.95, label="Overlap: above")
FIRST_TOKEN = flag("first_token", "first_token", True, "Count the first token in the mean cosine (often a sink)")
TOKEN = "token"
READ_FOR = {ALL: read_for(ALL), ANSWER: read_for(ANSWER), TOKEN: "the selected token"}
OF = choice("of", "of", ALL, READ_FOR.keys(), "Read the rules for", READ_FOR)
MEASURES = {spec.name: spec.title for spec in Contributions.measures}
MEASURE = choice("measure", "contributions.measure", "layer_ratio", MEASURES.keys(), "Measure", MEASURES)
COUNTED = flag("first_token", "contributions.first_token", True)
LENS_SHADE = choice("shade", "logit_lens.shade", "prob", SHADES, "Shade", SHADES)
LENSES_SHADE = choice("shade", "lenses.shade", "prob", OF_LENSES, "Shade", OF_LENSES)
MAXIMUM = -1
BOUNDARY = replace(number("boundary", "skip.boundary", MAXIMUM, 0, 10**6, int, "Effects seen behind"), box={})
STRETCHES = {"drop": "Without a stretch", "swap": "Two exchanged", "repeat": "A stretch twice"}
COSTS = {"loss": "Loss", "kl": "KL", "top1_kept": "First choices kept"}
SURGERY_MAP = choice("map", "surgery.map", None, STRETCHES.keys(), "Map", STRETCHES)
SURGERY_VALUE = choice("value", "surgery.value", "loss", COSTS.keys(), "Value", COSTS)
OVERLAID = flag("overlaid", "two.overlaid", False, "One map over the other")
SIDES_BRANCH = choice("branch", "two.branch", "layer", BRANCHES, "Contribution of", BRANCHES)
SIDES_SHADE = choice("shade", "two.shade", "prob", ("prob", "kl", "jsd", "entropy"), "Lens shade", SHADES)


def _maps() -> dict[str, Input]:
    """Return by probe the input that chooses its map on *A | B*, of probes with several maps."""
    names = {name: [p.choice for p in find(name).pictures or () if p.choice] for name in COMPARED}
    return {
        name: choice(f"{name}_map", f"two.map.{name}", options[0], options, "shown as")
        for name, options in names.items()
        if len(options) > 1
    }


SIDES_MAPS = _maps()
