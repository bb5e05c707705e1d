"""What a probe tells the rest of the product about its numbers: curves to compare by, pictures, cost. Nothing else has
a list of probes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    the depth that a `criterion` gives, or the `mean_depth` of a lens's measure. `share`: the curve whose first half the
    sentence tells of, and what that curve is."""

    name: str
    value: str = ""
    criterion: str = ""
    mean_depth: str = ""
    share: tuple[str, str] | None = None


@dataclass(frozen=True)
class Picture:
    """A figure of one result, described once: on its probe's page, in *Compare two*, in a case study and its report.
    Its class says how it is drawn (`figures.pictures`).

    `measures`: what it shows, the first one in front; in a name `{branch}` and `{shade}` stand for what the reader
    chose. `caption` says what is seen, `reading` how to read it, `teach` what an empty panel says. `choice`: what
    *Compare two* calls it where a probe has several maps. A picture whose first measure a result does not have is left
    out."""

    title: str
    measures: tuple[str, ...]
    caption: str
    reading: str = ""
    teach: str = ""
    choice: str = ""

    low: ClassVar[bool] = False  # curves over layers, drawn lower than a map
    strip: ClassVar[bool] = False  # a strip beside the map summarises each row over tokens
    read: ClassVar[bool] = False  # a rule reads the strip's curve


class NormMap(Picture):
    """Lengths by layer and token, logarithmic."""

    strip = True


class CosineMap(Picture):
    """Cosines by layer and token."""

    strip = read = True


class LensMap(Picture):
    """The lens's best token by depth and token, shaded."""

    strip = read = True


class SkipMap(Picture):
    """What skipping a layer does to each later one."""


class TokenMap(Picture):
    """Any measure by layer and token."""

    strip = True


class WritingMap(Picture):
    """Written tokens by depth."""


class OutputBars(Picture):
    """What skipping a layer does to the output."""

    low = True


class MissMap(Picture):
    """Errors of the layers' sums by layer and token."""


class MissCurves(Picture):
    """The same against rounding, by layer."""

    low = True


class SlopeCurves(Picture):
    """Slopes of the regression by layer."""

    low = True


class FirstTokenNorm(Picture):
    """Length of the stream at the first token and the others."""

    low = True


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
