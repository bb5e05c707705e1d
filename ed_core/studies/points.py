"""Effective depths as points, measured and published ones of one kind: which model, how large, how trained, on which
set, by which criterion. Numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from .. import statistics
from ..depth.mean_depth import MEAN_DEPTH
from ..depth.published import Published, published, training
from ..depth.rules import OF_LENS, PAPER, RULES
from ..depth.sample import LENS, Curves, Sample
from ..depth.verdict import resampled, verdict
from ..models import catalogue, sizes
from ..models.bundled import MODELS as BUNDLED
from ..models.ref import Bundled
from ..statistics import Resampled, Units
from . import tables
from .items import Folder
from .study import LEVEL_MARK

MEASURED, PUBLISHED = "measured", "published"
MEANS = {f"mean_{name}": name for name in OF_LENS}  # depths without a threshold, and of which curve


@dataclass(frozen=True)
class Point:
    """One depth of a model on a set, measured or published. `criterion`: one of `MEANS` (average depth; `ratio` is
    depth / L) or a published rule (`ratio` is (ED + 1) / L, ED its layer from 0); NaN where not defined. `low`, `high`:
    the ratio's 5 and 95 % over `units`, NaN without. `drawn`: of a rule the ratio in every resample of the prompts,
    empty without; `lens`: of an average depth the curves behind it. `parameters`: None, `training`: "" where not known.
    `of`: the published set that the prompts come from, "" for none."""

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
    units: Units | None = field(default=None, compare=False, repr=False)
    drawn: np.ndarray = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    lens: Curves | None = field(default=None, compare=False, repr=False)

    @property
    def over(self) -> str:
        """What the interval is over, in words; "" of a published point."""
        return self.units.words if self.units else ""

    @property
    def depth(self) -> float:
        """The average depth in 0..L, or a rule's layer counted from 0; NaN where not defined."""
        return self.at(self.ratio)

    def at(self, ratio: float) -> float:
        """Return the average depth, or the rule's layer from 0, that corresponds to a ratio in this model."""
        return ratio * self.n_layers - (self.criterion not in MEANS)


@cache
def published_points() -> tuple[Point, ...]:
    """Return the published table (Hu et al. 2025) as points; the table's own ratios are rounded."""
    return tuple(_published(p) for p in published())


def _published(p: Published) -> Point:
    """Return a published depth as a point."""
    about = (p.name, _parameters(p.name), training(p.model), p.dataset, p.dataset, p.criterion)
    return Point(*about, (p.effective_depth + 1) / p.n_layers, p.n_layers, PUBLISHED)


def measured_points(folder: Folder, group: str, labels: Iterable[str] = ()) -> list[Point]:
    """Return the depths that a study measured on a set or level (`group`), for the models with these labels (all unless
    given), untrained copies included. They use the prompts that all of these models have been through, drawn together,
    so points may be compared resample by resample."""
    name = folder.set_of(group)
    chosen = folder.groups(name)[group]
    labels = [label for label in labels or folder.models if len(folder.sums(label, name))]
    for label in labels:
        chosen = np.intersect1d(chosen, folder.sums(label, name).index)
    points: list[Point] = []
    for label in labels:
        model, sample = folder.models[label], tables.sample(folder, label, group, chosen)
        kind = "" if model.get("control") else training(model.get("name", label))
        if sample is not None:
            size = model.get("parameters") or _parameters(model.get("name", ""))
            head = (label, size, kind, group, published_name(folder, name))
            points += _points(head, replace(sample, twins=()))
    return points


def _points(head: tuple[str, int | None, str, str, str], sample: Sample) -> Iterator[Point]:
    """Yield a point for each average depth and rule of a sample. `head`: the first five fields of the points."""
    depths, n = verdict(sample), sample.n_layers

    def point(name: str, ratio: float | None, ends: Any, curves: Curves, layer: int, **more: Any) -> Point:
        """Return a point; `layer` is 1 where depths are layers counted from 0, else 0."""
        low, high = ((end + layer) / n for end in ends or (np.nan, np.nan))
        place = (*head, name, np.nan if ratio is None else ratio, n, MEASURED)
        return Point(*place, low, high, units=curves.units, **more)

    for criterion, measure in MEANS.items():
        if (mean := depths.means.get(measure)) is not None:
            lens = sample.curves[LENS]
            yield point(criterion, mean.ratio, mean.ends, lens, 0, lens=lens)
    for criterion, rule in depths.rules.items():
        if rule.curve is not None and n > 1:
            drawn = resampled(RULES[criterion], sample, PAPER, rule.threshold)
            ratios = np.empty(0) if drawn is None else (drawn + 1) / n
            curves = sample.curves[RULES[criterion].probe]
            yield point(criterion, rule.ratio, rule.ends, curves, 1, drawn=ratios)


def combined(points: Sequence[Point], weights: Sequence[float] | np.ndarray, seed: int = 0) -> Resampled | None:
    """Return `Σ weight · ratio` of average depths on one set, with its resamples, as all models have the same prompts;
    None where these are too few or unknown."""
    lenses = {p.model: p.lens for p in points if p.lens is not None}
    if len(lenses) < len(points) or not all(lens.units.enough for lens in lenses.values()):
        return None
    first, measure = next(iter(lenses.values())), MEANS[points[0].criterion]

    def line(curves: dict[str, np.ndarray]) -> np.ndarray:
        each = [a * MEAN_DEPTH[measure](curves[p.model]) / p.n_layers for a, p in zip(weights, points, strict=True)]
        return np.asarray(np.sum(each, axis=0))

    sums = {model: lens.sums[measure] for model, lens in lenses.items()}
    tokens = {model: lens.tokens for model, lens in lenses.items()}
    return statistics.read_off(line, sums, tokens, first.units, seed)


def side_by_side(measured: Sequence[Point], others: Iterable[Point]) -> dict[tuple[str, str], dict[str, Point]]:
    """Return the points by model and set, then by criterion and source, like "kl measured". A published point of a
    measured model on the same prompt set is in the measured one's row."""
    rows: dict[tuple[str, str], dict[str, Point]] = {}
    names = {(p.model.lower(), p.n_layers, p.of): p for p in reversed(measured)}
    for p in [*measured, *others]:
        own = names.get((p.model.lower(), p.n_layers, p.of), p) if p.source == PUBLISHED else p
        rows.setdefault((own.model, own.set), {})[f"{p.criterion} {p.source}"] = p
    return rows


def published_name(folder: Folder, name: str) -> str:
    """Return the published set that a study's set comes from, by its format or else its name; "" for none."""
    known = {p.dataset for p in published()}
    own = folder.sets[name].get("of") or name.partition(LEVEL_MARK)[0].lower()
    return own if own in known else ""


def entry_of(model: str, n_layers: int, dataset: str, criterion: str) -> Published | None:
    """Return the published depth of a model, by its name without the organisation; None for none."""
    wanted = (model.rsplit("/", 1)[-1].lower(), n_layers, dataset, criterion)
    return next((p for p in published() if (p.name.lower(), p.n_layers, p.dataset, p.criterion) == wanted), None)


@lru_cache(maxsize=256)
def _parameters(name: str) -> int | None:
    """Return the number of parameters of a bundled or catalogued model by its name; None where unknown."""
    if name in BUNDLED:
        size = Bundled(name).size_or_none()
        return size.parameters if size else None
    entry = next((e for e in catalogue.entries() if e.config and e.id.rsplit("/", 1)[-1] == name), None)
    return sizes.read(entry.config).parameters if entry else None
