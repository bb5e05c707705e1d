"""The pictures that probes declare, drawn: one place for a page, for *A | B*, a case study and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import plotly.graph_objects as go

from ..depth import halves
from ..errors import ParameterError
from ..probes import find
from ..probes.base import Picture
from ..types import ProbeResult
from .curves import first_token_norm, layer_curves, miss_curves, miss_map, output_bars, slope_curves
from .lens import half_lens_map, lens_map, writing_map
from .maps import contribution_norms, cosine_map, patch_map, token_map
from .panel import View
from .skips import skip_map

LOW = ("output", "error curves", "slopes", "first token")  # curves over layers, drawn lower than a map
# Maps with a strip that summarises each row over tokens, and whether a rule reads the strip's curve
STRIPS = {"norms": False, "tokens": False, "cosines": True, "lens": True}
HEIGHT, CURVES_HEIGHT, WIDTH = 420, 280, 760  # pixels, where no page tells them
BRANCHES = {"layer": "both", "attn": "attention", "mlp": "MLP"}
SHADES = {
    "prob": "its probability",
    "kl": "KL to the output",
    "jsd": "Jensen–Shannon divergence",
    "entropy": "entropy",
    "rank": "rank of the output",
    "token_rank": "rank of the token followed",
}


@dataclass(frozen=True)
class Look:
    """The reader's choices: whose contribution, what shades the lens, which boundary of a skip sweep (index; None: the
    maximum over all), whether the first token counts."""

    branch: str = "layer"
    shade: str = "prob"
    boundary: int | None = None
    first_token: bool = True


LOOKS = [Look(branch, shade) for branch in BRANCHES for shade in SHADES]  # all that choose a measure, the default first


def measures(picture: Picture, look: Look) -> tuple[str, ...]:
    """Return the names of the measures that a picture shows with these choices, the first one in front."""
    shade = "top_probs" if look.shade == "prob" else look.shade  # what is drawn is also what Details and its CSV hold
    named = tuple(name.format(branch=look.branch, shade=shade) for name in picture.measures)
    if picture.kind == "skips" and look.boundary is not None and named[0] == "effect":
        return ("effect_by_boundary",)
    return named


def pictures(result: ProbeResult, look: Look = Look()) -> Iterator[Picture]:
    """Yield the pictures that the probe declares and the result has the numbers for."""
    for picture in find(result.request.probe).pictures or ():
        if measures(picture, look)[0] in result.measures:
            yield picture


def caption(picture: Picture, result: ProbeResult, look: Look) -> str:
    """Return a picture's caption, with the reader's choices, and where a looped model's passes end."""
    over_layers = picture.kind in (*STRIPS, "skips", "patch")
    passes = int(result.provenance.get("passes", 1)) if over_layers else 1
    return _caption(picture, result, look) + f" · lines across: where a pass ends, of {passes}" * (passes > 1)


def _caption(picture: Picture, result: ProbeResult, look: Look) -> str:
    """Return the caption without passes."""
    if picture.measures[0].startswith("{branch}"):
        return f"{BRANCHES[look.branch]}: {picture.caption}"
    if picture.measures[0].endswith("{shade}"):
        rows = "; half rows: after attention" if halves.has_halves(result) else ""
        return f"{picture.caption}{rows}, shaded by {SHADES[look.shade]}"
    if picture.kind == "skips" and picture.measures[0] == "effect":
        boundary = "" if look.boundary is None else f", behind token {int(result['boundaries'][look.boundary])} only"
        return f"{picture.caption}{boundary}: at 1 a layer changes by as much as its own update; ringed: off the scale"
    if (tokens := find(result.request.probe).left_out(result)) and picture.kind == "tokens":
        return f"{picture.caption}; strip: the largest of a row, without token {tokens[0]}, which predicts the answer"
    return picture.caption


def curve_of(picture: Picture, view: View, look: Look = Look()) -> str:
    """Return the part of a map's caption on whether its strip counts the sinks; "" without sinks or strip."""
    if not view.sinks or picture.kind not in STRIPS or picture.measures[0] == "attribution":  # which counts every token
        return ""
    if view.count_sinks:
        return " · curve: attention sinks (◆) counted"
    return f" · curve: without attention sinks (◆){', dotted: with them' * STRIPS[picture.kind]}"


def draw(picture: Picture, result: ProbeResult, view: View, look: Look = Look()) -> go.Figure:
    """Return the picture of a result, partial or complete, as a figure."""
    return DRAW[picture.kind](result, view, measures(picture, look)[0], look)


def figure(result: ProbeResult, measure: str = "") -> go.Figure:
    """Return the picture declared for a measure ("": the probe's first), else a map over tokens or a curve of it. A
    `ParameterError` where none of these is possible."""
    view, low = (View(height=px, width_px=WIDTH, answer_start=result.answer_start) for px in (HEIGHT, CURVES_HEIGHT))
    for picture, look in product(pictures(result), LOOKS):
        if not measure or measure in measures(picture, look):
            return draw(picture, result, low if picture.kind in LOW else view, look)
    if measure:
        spec, values = result.measures[measure].spec, result[measure]
        if values.ndim == 2 and spec.dims[1] == "pos":
            return token_map(result, view, measure)
        if values.ndim == 1:
            return layer_curves({measure: values}, "", spec.unit, x=spec.dims[0], height=CURVES_HEIGHT, width_px=WIDTH)
    raise ParameterError(f"{result.request.probe} has no picture{f' of {measure}' if measure else ''}.")


def _token_map(result: ProbeResult, view: View, measure: str, look: Look) -> go.Figure:
    """Return `token_map` without the positions that the probe leaves out."""
    probe = find(result.request.probe)
    return token_map(result, view, measure, probe.left_out)


def _skip_map(result: ProbeResult, view: View, measure: str, look: Look) -> go.Figure:
    """Return `skip_map` of the chosen boundary or of a measure."""
    if measure == "effect_by_boundary":
        return skip_map(result, view, boundary=look.boundary)
    return skip_map(result, view, measure)


def _lens_map(result: ProbeResult, view: View, measure: str, look: Look) -> go.Figure:
    """Return the lens's map, with half rows where the result has them."""
    shown = "top_probs" if look.shade == "prob" else look.shade
    if halves.has_halves(result):
        return half_lens_map(result, view, look.shade)
    return lens_map(result, view, look.shade, lens=measure.removesuffix(shown))


DRAW: dict[str, Callable[[ProbeResult, View, str, Look], go.Figure]] = {
    "norms": lambda result, view, measure, look: contribution_norms(result, view, measure, look.first_token),
    "cosines": lambda result, view, measure, look: cosine_map(result, view, measure, look.first_token),
    "lens": _lens_map,
    "skips": _skip_map,
    "output": lambda result, view, measure, look: output_bars(result, view),
    "tokens": _token_map,
    "patch": lambda result, view, measure, look: patch_map(result, view),
    "writing": lambda result, view, measure, look: writing_map(result, replace(view, window=None, selected=None)),
    "errors": lambda result, view, measure, look: miss_map(result, replace(view, depth_lines={}, control=None)),
    "error curves": lambda result, view, measure, look: miss_curves(result, view.height),
    "slopes": lambda result, view, measure, look: slope_curves(result, view.height),
    "first token": lambda result, view, measure, look: first_token_norm(result, view.height),
}
