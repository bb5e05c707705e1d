"""Studies of this installation as pages read them: where they are, and what they found."""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from ed_core import figures, settings
from ed_core.depth import say
from ed_core.depth.rules import RULES
from ed_core.errors import ImportRefused, NotAllowed, StudyError
from ed_core.studies import bundle, points, steps, tables, trends
from ed_core.studies.items import Folder, home, open_folder, shipped
from ed_core.studies.plan import PLAN
from ed_ui import runs
from ed_ui.runs import STUDY

T = TypeVar("T")
LOOKING = RLock()  # sessions that ask at once wait for one computation, in place of each making its own
Rows = Sequence[Mapping[str, Any]]
CRITERION = "mean_kl"


def known() -> dict[str, Path]:
    """Return the folders of all studies by name: those made here, latest first, then those shipped."""
    begun = {file.parent: file.stat().st_mtime for name in (PLAN, STUDY) for file in home().glob(f"*/{name}")}
    made = sorted(begun, key=lambda place: -begun[place])
    own = {place.name: place for place in made}
    return own | {place.name: place for place in shipped() if place.name not in own}


def take_in(data: bytes) -> str:
    """Unpack somebody else's `.edstudy` and return its name. Raises `ImportRefused` for an invalid file, or a name that
    is in use here, `NotAllowed` on a hosted installation."""
    if settings.current().hosted:
        raise NotAllowed("This installation takes no studies from the browser. Open it on a machine of your own.")
    name = runs.on_disk(bundle.name_of(io.BytesIO(data)))
    if name in known():
        raise ImportRefused(f"There is a study {name} here already; delete or rename its folder first.")
    bundle.unpack(io.BytesIO(data), home() / name)
    return name


def read(out: Path) -> tuple[Folder, list[dict[str, Any]]]:
    """Return a study's folder and the rows of its verdicts; read again where something was added."""
    return _tables(out, _state(out))


def _state(out: Path) -> tuple[Hashable, ...]:
    """Return a value that changes whenever something is added to a study, the key of what is cached of it."""
    return (out / PLAN).stat().st_mtime_ns, tuple(open_folder(out).progress().values())


@lru_cache(maxsize=16)
def _tables(out: Path, state: tuple[Hashable, ...]) -> tuple[Folder, list[dict[str, Any]]]:
    """Return a study's folder and the rows of its verdicts, cached by `state`."""
    folder = open_folder(out)
    return folder, tables.stored(folder).to_pylist()


def looked(out: Path, look: Callable[..., T], *asked: Hashable) -> T:
    """Return `look(folder, *asked)` of a study, cached for all sessions until something is added; callers must not
    change it. For what takes time, like resampling over prompts."""
    with LOOKING:
        found: T = _result(out, look, asked, _state(out))
    return found


@lru_cache(maxsize=128)
def _result(out: Path, look: Callable[..., T], asked: tuple[Hashable, ...], state: tuple[Hashable, ...]) -> T:
    """Return `look(folder, *asked)` of a study, cached by `state`."""
    return look(read(out)[0], *asked)


# -------------------------------------------------------------------- what a study found


def line(out: Path) -> tuple[str, str]:
    """Return a study's finding on its first set, and its extent, in words."""
    if not (out / PLAN).is_file():
        return "Not begun.", ""
    folder, verdict = read(out)
    first = next(iter(folder.sets), "")
    return finding(folder, [row for row in verdict if row["set"] == first]), extent(folder)


def complete(folder: Folder) -> bool:
    """Return whether all planned parts of a study are computed."""
    return all(computed == planned for computed, planned in folder.progress().values())


def extent(folder: Folder, over: str = "") -> str:
    """Return a study's models, copies, sets, prompts and progress in words. `over`: what its intervals are over, named
    in place of its prompts."""
    prompts = sum(len(one["ids"]) for one in folder.sets.values())
    copies = sum(bool(one.get("control")) for one in folder.models.values())
    models = say.count(len(folder.models) - copies, "step" if steps.series(folder) else "model")
    with_copies = f"{copies} untrained cop{'ies' if copies > 1 else 'y'}" if copies else ""
    sets = ", ".join(folder.sets) if len(folder.sets) < 3 else say.count(len(folder.sets), "set") * (not over)
    n = over.replace("forms", "templates").replace("one form", "one template") or say.count(prompts, "prompt")
    counts = folder.progress().values()
    computed, planned = (sum(one[i] for one in counts) for i in (0, 1))
    state = "" if computed == planned else f"{computed} of {planned} parts computed"
    return " · ".join(filter(None, [models, with_copies, sets, n, state]))


def day(out: Path) -> str:
    """Return the day on which a study was planned here, like "3 May 2026"; "" for one that comes with the product."""
    return "" if out in shipped() else time.strftime("%-d %B %Y", time.gmtime((out / PLAN).stat().st_mtime))


def _means(rows: Rows) -> dict[str, Mapping[str, Any]]:
    """Return the row of each model's average depth (KL), by the model's label."""
    averages = (row for row in rows if (row["criterion"], row["variant"]) == ("kl", tables.MEAN))
    return {row["model"]: row for row in averages if row["ratio"] is not None}


def finding(folder: Folder, rows: Rows) -> str:
    """Return where the models settle, and how much later than their copies. `rows`: verdicts on one set."""
    means = _means(rows)
    own = {label: row for label, row in means.items() if not folder.models[label].get("control")}
    if (every := steps.series(folder)) and own:
        some = [own[label] for label in next(iter(every.values())).values() if label in own]
        first, last = (say.number(row["depth"], ".1f") for row in (some[0], some[-1]))
        return f"Over training the average depth goes from {first} to {last} of {some[0]['n_layers']} layers."
    if not own:
        return "Average depths come with the logit lens, which is not measured here."
    apart = looked(folder.out, differences, rows[0]["set"])
    clear = apart and all(one.apart for one in apart.values())
    later = [one.difference * own[label]["n_layers"] for label, one in apart.items() if label in own] if clear else []
    if len(own) == 1:
        ((label, row),) = own.items()
        sentence = f"{label} settles its words by {say.layers(row['depth'], row['n_layers'])} on average"
        return f"{sentence}, {_later(later)} an untrained copy." if later else f"{sentence}."
    ratios = [100 * row["ratio"] for row in own.values()]
    place = f"at {_ends(ratios, 0)} % of their depth"
    if later:
        return f"Trained models settle their words {_later(later)} untrained copies, {place}."
    return f"{say.count(len(own), 'model')} settle their words {place}."


def _later(apart: Sequence[float]) -> str:
    """Return how much later models settle than their copies: "1 to 6 layers later than". `apart`: of each model its
    average depth less its copies'; below 0 is earlier."""
    low, high = min(apart), max(apart)
    if low >= 0 or high <= 0:
        near, far = sorted((abs(low), abs(high)))
        return f"{_ends((near, far), int(far < 10))} layers {'later' if high > 0 else 'earlier'} than"
    return f"{say.number(-low, '.1f')} layers earlier to {say.number(high, '.1f')} later than"


def _ends(values: Sequence[float], digits: int) -> str:
    """Return the smallest and the largest value, rounded: "2 to 5", or "2" where they print alike."""
    return " to ".join(dict.fromkeys(say.number(end, f".{digits}f") for end in (min(values), max(values))))


def also(folder: Folder, rows: Rows) -> list[str]:
    """Return a sentence on how far the published rules are apart, as a list; [] where no model has all of them."""
    by_model: dict[str, list[int]] = {}
    for row in rows:
        if row["variant"] == "paper" and row["depth"] is not None and not folder.models[row["model"]].get("control"):
            by_model.setdefault(row["model"], []).append(row["depth"])
    apart = [max(depths) - min(depths) for depths in by_model.values() if len(depths) == len(RULES)]
    if not apart:
        return []
    return [f"The three published rules disagree by {_ends(apart, 0)} layers."]


def forest(folder: Folder, name: str) -> list[figures.Row]:
    """Return a row per trained model on the set `name`: average depth with its interval, its copies, published rules,
    and the difference."""
    rows = [row for row in tables.stored(folder).to_pylist() if row["set"] == name]
    means = _means(rows)
    apart, result = differences(folder, name), []
    for label, row in means.items():
        twins = [twin for twin in tables.twins_of(folder, label) if twin in means]
        if folder.models[label].get("control") and any(label in tables.twins_of(folder, one) for one in means):
            continue
        n = row["n_layers"]
        low, high = (row["low"] / n, row["high"] / n) if row["low"] is not None else (math.nan, math.nan)
        rules = tuple(
            (RULES[r["criterion"]].label, r["ratio"])
            for r in rows
            if r["model"] == label and r["variant"] == "paper" and r["ratio"] is not None
        )
        copies = tuple(means[twin]["ratio"] for twin in twins)
        difference = _apart(apart[label], n) if label in apart else ""
        result.append(figures.Row(label, n, row["ratio"], low, high, copies, rules, difference))
    return result


def differences(folder: Folder, name: str) -> dict[str, trends.Difference]:
    """Return by label how much deeper each model is than its first untrained copy on the set `name`."""
    twins, apart = {label: tables.twins_of(folder, label) for label in folder.models}, {}
    at_points = points.measured_points(folder, name) if any(twins.values()) else []
    at_points = [one for one in at_points if one.criterion == CRITERION]
    for label, copies in twins.items():
        if twin := next((one.model for one in at_points if one.model in copies), ""):
            with contextlib.suppress(StudyError):
                apart[label] = trends.difference(at_points, twin, label)
    return apart


def _apart(one: trends.Difference, n: int) -> str:
    """Return how much deeper a model of `n` layers is than its copy, in words: "+6.1 layers (5.8 to 6.4)"."""
    known = math.isfinite(one.low)
    ends = f" ({say.interval(n * one.low, n * one.high)})" if known else ""
    if known and not one.apart:
        return f"no clear difference{ends}"
    return f"{say.number(n * one.difference, '+.1f')} layers{ends}"
