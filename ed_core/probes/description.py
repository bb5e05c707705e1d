"""What a probe tells the rest of the product about its numbers: curves to compare by, pictures, cost. Nothing else has
a list of probes."""

from __future__ import annotations

from dataclasses import dataclass

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
    the depth that a `criterion` gives, or the `mean_depth` of a lens' measure. `share`: the curve whose first half the
    sentence tells of, and what that curve is."""

    name: str
    value: str = ""
    criterion: str = ""
    mean_depth: str = ""
    share: tuple[str, str] | None = None


@dataclass(frozen=True)
class Picture:
    """A figure of one result, described once: on its probe's page, in *Compare two*, in a case study and its report.

    `draw` names how it is drawn (`figures.pictures`), `measures` what it shows, the first one in front; in a name
    `{branch}` and `{shade}` stand for what the reader chose. `caption` says what is seen, `reading` how to read it,
    `teach` what an empty panel says. `choice`: what *Compare two* calls it where a probe has several maps. A picture
    whose first measure a result does not have is left out."""

    title: str
    draw: str
    measures: tuple[str, ...]
    caption: str
    reading: str = ""
    teach: str = ""
    choice: str = ""


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
