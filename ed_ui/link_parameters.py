"""What a URL can carry: each value's name there, under which name the session's inputs hold it, and how it is read and
written. A value that cannot be is refused here, before anything is set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from ed_core.errors import ParameterError
from ed_core.probes import Probe

LONGEST = 300  # characters of a value
LARGEST = 2**53  # what a browser's number box can hold


@dataclass(frozen=True)
class Parameter:
    """One value: `name` in the URL, `key` among the inputs. `parse` makes it of its text or raises a `ParameterError`,
    `write` the reverse."""

    name: str
    key: str
    default: Any
    parse: Callable[[str], Any]
    write: Callable[[Any], str] = str

    def read(self, given: str) -> Any:
        """The value of this text; a `ParameterError` says what is wrong with it."""
        if len(given) > LONGEST or not given.isprintable():
            raise ParameterError(f"{self.name} is {given[:20]!r}…; expected at most {LONGEST} printable characters.")
        return self.parse(given)


def text(name: str, key: str, default: str = "") -> Parameter:
    return Parameter(name, key, default, str.strip)


def choice(name: str, key: str, default: Any, options: Mapping[Any, str] | Iterable[str]) -> Parameter:
    """One of `options`, perhaps under a shorter name."""
    short = dict(options) if isinstance(options, Mapping) else {option: option for option in options}
    long = {value: option for option, value in short.items()}

    def parse(value: str) -> Any:
        if value not in long:
            raise ParameterError(f"{name} is {value!r}; expected one of {', '.join(long)}.")
        return long[value]

    return Parameter(name, key, default, parse, lambda value: short.get(value, ""))


def several(name: str, key: str, default: list, options: Iterable) -> Parameter:
    """Any of `options`, with commas between them."""
    known = {str(option): option for option in options}

    def parse(value: str) -> list:
        if strange := [part for part in value.split(",") if part not in known]:
            raise ParameterError(f"{name} names {strange[0]!r}; expected some of {', '.join(known)}.")
        return [known[part] for part in dict.fromkeys(value.split(","))]

    return Parameter(name, key, default, parse, lambda value: ",".join(map(str, value)))


def number(name: str, key: str, default: Any, low: float, high: float, kind: type = float) -> Parameter:
    def parse(value: str) -> Any:
        try:
            found = kind(value)
        except ValueError:
            found = math.nan
        if not low <= found <= high:
            what = "a whole number" if kind is int else "a number"
            raise ParameterError(f"{name} is {value!r}; expected {what} from {low:g} to {high:g}.")
        return found

    return Parameter(name, key, default, parse, lambda value: f"{value:g}" if kind is float else str(value))


def flag(name: str, key: str, default: bool) -> Parameter:
    return choice(name, key, default, {True: "true", False: "false"})


def span(name: str, key: str) -> Parameter:
    """First and last of a window of tokens."""

    def parse(value: str) -> tuple[int, int]:
        first, _, last = value.partition("-")
        if not (first.isdecimal() and last.isdecimal() and len(value) < 20 and int(first) < int(last)):
            raise ParameterError(f"{name} is {value!r}; expected the first and the last token, like 12-59.")
        return int(first), int(last)

    return Parameter(name, key, None, parse, lambda value: f"{value[0]}-{value[1]}")


def of_probe(probe: type[Probe], names: Iterable[str] | None = None) -> tuple[Parameter, ...]:
    """A probe's own parameters, checked as the command line checks them; a file's path is never taken from a link."""
    return tuple(
        _of_field(probe, f) for f in fields(probe) if (names is None or f.name in names) and not f.metadata["file"]
    )


def _of_field(probe: type[Probe], f: Field) -> Parameter:
    def parse(value: str) -> Any:
        found = getattr(probe.make({f.name: value}), f.name)
        if isinstance(found, (int, float)) and not abs(found) < LARGEST:
            raise ParameterError(f"{probe.name}.{f.name} is {value!r}; expected a number that a box can hold.")
        return boxed(found, f.metadata["empty"])

    return Parameter(f.name, f"{probe.name}.{f.name}", boxed(f.default, f.metadata["empty"]), parse, _written)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def boxed(value: Any, empty: str = "") -> Any:
    """A probe's parameter as its box holds it: a list as text with commas, an empty one as `empty`."""
    return (",".join(map(str, value)) or empty) if isinstance(value, tuple) else value
