"""Effective depths as points, measured and published ones of one kind: which model, how large, how trained, on which
set, by which criterion. Numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np

from ..depth.criteria import FEWEST, depths, interval
from ..errors import EffectiveDepthError
from ..sources import catalogue, sizes
from ..sources.bundled import MODELS as BUNDLED
from ..sources.published import Published, published, training
from ..sources.specs import size_of
from . import tables
from .folder import Folder
from .study import LEVEL_MARK

MEASURED, PUBLISHED = "measured", "published"


@dataclass(frozen=True)
class Point:
    """One effective depth by the papers' rule. `ratio`: `(ED + 1) / L`, NaN where the rule gives none; `low`, `high`:
    the 5 and 95 % quantiles of the ratio over prompts, NaN without; `drawn`: the ratio in every resample of the
    prompts, empty without. `parameters`: None where they are not known; `training`: "" likewise. `of`: the published
    set whose prompts these are, "" where of none."""

    model: str
    parameters: int | None
    training: str
    set: str
    of: str
    criterion: str
    ratio: float
    n_layers: int
    source: str
    low: float = np.nan
    high: float = np.nan
    prompts: int = 0
    drawn: np.ndarray = field(default_factory=lambda: np.empty(0), compare=False, repr=False)

    @property
    def depth(self) -> float:
        """The layer, counted from 0; NaN where the rule gives none."""
        return self.ratio * self.n_layers - 1


@cache
def published_points() -> tuple[Point, ...]:
    """The published table (Hu et al. 2025). Ratios are made of depth and layers, which the table rounds."""
    return tuple(
        Point(
            p.name,
            _parameters(p.name),
            training(p.model),
            p.dataset,
            p.dataset,
            p.criterion,
            (p.effective_depth + 1) / p.n_layers,
            p.n_layers,
            PUBLISHED,
        )
        for p in published()
    )


def measured_points(folder: Folder, group: str, labels: Iterable[str] = ()) -> list[Point]:
    """What a study measured on a set or one of its levels, of these models (all unless given) on the prompts that all
    of them have been through: the prompts are drawn together, so the points may be compared resample by resample. Twins
    in which nothing was learned stand among them."""
    name = set_of(folder, group)
    chosen = folder.groups(name)[group]
    labels = [label for label in labels or folder.models if len(folder.sums(label, name))]
    for label in labels:
        chosen = np.intersect1d(chosen, folder.sums(label, name).index)
    found = []
    for label in labels:
        model, some = folder.models[label], folder.sums(label, name).of(chosen)
        for criterion in tables.RULES:
            of_one = tables.curves(folder, some, criterion, "paper")
            if of_one is None or not of_one[1].sum() or (layers := next(iter(of_one[0].values())).shape[1]) < 2:
                continue
            sums, counts = of_one
            whole = tables.curve_of(sums, counts)
            drawn, low, high = np.empty(0), np.nan, np.nan
            if len(counts) >= FEWEST:
                again = tables.resampled_depths(folder, criterion, "paper", sums, counts)
                drawn, ends = (again + 1) / layers, interval(again)
                low, high = (ends.low + 1) / layers, (ends.high + 1) / layers
            ratio = (float(depths(criterion, whole[None])[0]) + 1) / layers
            kind = "" if model.get("control") else training(model.get("name", label))
            of = published_name(folder, name)
            place = (label, parameters_of(model), kind, group, of, criterion, ratio, layers, MEASURED)
            found.append(Point(*place, low, high, len(counts), drawn))
    return found


def side_by_side(measured: Iterable[Point], others: Iterable[Point]) -> list[dict]:
    """A row for each model and set: `model`, `parameters` (billions), `training`, `layers`, `set`, and for each
    criterion and source a column like "kl measured" with the depth in words. A published entry of a measured model on
    the same prompt set stands in the measured one's row."""
    rows: dict[tuple[str, str], dict] = {}
    measured = list(measured)
    for p in [*measured, *others]:
        own = p if p.source == MEASURED else (_measured_of(p, measured) or p)
        size = None if own.parameters is None else own.parameters / 1e9
        head = {"model": own.model, "parameters": size, "training": own.training, "layers": own.n_layers}
        rows.setdefault((own.model, own.set), head | {"set": own.set})[f"{p.criterion} {p.source}"] = in_words(p)
    return list(rows.values())


def in_words(p: Point) -> str:
    """A depth with its range over prompts: "20 (18 to 21)"; "–" where the rule gives none."""
    if not np.isfinite(p.ratio):
        return "–"
    if not np.isfinite(p.low):
        return f"{p.depth:.0f}"
    low, high = (round(end * p.n_layers - 1, 2) for end in (p.low, p.high))
    return f"{p.depth:.0f} ({low:g})" if low == high else f"{p.depth:.0f} ({low:g} to {high:g})"


def _measured_of(p: Point, measured: Iterable[Point]) -> Point | None:
    """What was measured of a published entry's model on its set."""
    wanted = (p.model.lower(), p.n_layers, p.of)
    return next((m for m in measured if (m.model.lower(), m.n_layers, m.of) == wanted), None)


def set_of(folder: Folder, group: str) -> str:
    """The set that a group is, or is a level of."""
    return next(name for name in folder.sets if group in folder.groups(name))


def published_name(folder: Folder, name: str) -> str:
    """The published set whose prompts a study's set holds, by its format or else by its name; "" where it is none."""
    known = {p.dataset for p in published()}
    own = folder.sets[name].get("of") or name.partition(LEVEL_MARK)[0].lower()
    return own if own in known else ""


def entry_of(model: str, n_layers: int, dataset: str, criterion: str) -> Published | None:
    """The published entry of a model, by its name without the organisation and by its number of layers."""
    own = model.rsplit("/", 1)[-1].lower()
    return next(
        (
            p
            for p in published()
            if (p.name.lower(), p.n_layers, p.dataset, p.criterion) == (own, n_layers, dataset, criterion)
        ),
        None,
    )


def parameters_of(model: Mapping) -> int | None:
    """How many parameters a study's model has: as its plan tells, else by its name."""
    return model.get("parameters") or _parameters(model.get("name", ""))


@lru_cache(maxsize=256)
def _parameters(name: str) -> int | None:
    if name in BUNDLED:
        try:
            return size_of(name).parameters
        except EffectiveDepthError:
            return None
    entry = next((e for e in catalogue.entries() if e.config and e.id.rsplit("/", 1)[-1] == name), None)
    return sizes.read(entry.config).parameters if entry else None
