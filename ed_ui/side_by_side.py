"""What the page that compares two shows of each probe: curves over each other, maps side by side, what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import streamlit as st

from ed_core import export, figures, pairs
from ed_core.compare import CURVES
from ed_core.figures import View
from ed_core.pairs import SIDES, Pair, Side
from ed_core.probes import find
from ed_core.probes.integrated_gradients import incomplete
from ed_core.types import ProbeResult
from ed_ui import show
from ed_ui.case_view import BRANCHES

WINDOW = 48  # tokens; more get a slider
CURVE_HEIGHT, MAP_HEIGHT, REASON_HEIGHT = 300, 400, 90
SHADES = {"probability": "prob", "KL to output": "kl", "JSD to output": "jsd", "entropy": "entropy"}
SIZES = {"size": "ratio", "direction": "cos"}


@dataclass(frozen=True)
class Map:
    """A probe's map: which measure it shows, how it is drawn, and what stands above it."""

    measure: str
    draw: Callable[[ProbeResult, View], object]
    caption: str


@dataclass(frozen=True)
class Shown:
    """One side of one probe: its result (None until there is one), and what the side is called."""

    side: Side
    result: ProbeResult | None
    name: str


def inputs(names: Sequence[str], results: Sequence[Sequence[ProbeResult | None]]) -> None:
    """The inputs that say which of a probe's measures the maps show, and which tokens."""
    if list(names) == ["layer_skip"]:
        return
    row = st.container(horizontal=True, vertical_alignment="bottom", key="map-controls")
    if "contributions" in names:
        row.segmented_control("Contribution of", list(BRANCHES), default="both", required=True, key="two.branch")
        row.segmented_control("shown as", list(SIZES), default="size", required=True, key="two.size")
    if "logit_lens" in names:
        row.selectbox("Lens shade", list(SHADES), key="two.shade", width=190)
    tokens = [next((r.tokens for r in of_side if r is not None), ()) for of_side in results]
    same = tokens[0] == tokens[1]
    for side, n in zip(SIDES[: 2 - same], map(len, tokens)):
        if n > WINDOW:
            label = "Tokens shown" if same else f"Tokens shown of {side}"
            row.slider(label, 0, n - 1, (n - WINDOW, n - 1), key=f"two.window.{side}.{n}", width=220)


def map_of(name: str, first_token: bool) -> Map:
    """What the page's inputs say of a probe's map."""
    state = st.session_state
    if name == "contributions":
        size = SIZES[state.get("two.size") or "size"]
        measure = f"{BRANCHES[state.get('two.branch') or 'both']}_{size}"
        draw = {"ratio": figures.contribution_norms, "cos": figures.cosine_map}[size]
        told = {"ratio": "size of what is added, against the stream", "cos": "below 0 erases, above 0 strengthens"}[
            size
        ]
        return Map(measure, lambda r, v: draw(r, v, measure, first_token), told)
    if name == "logit_lens":
        shade = SHADES[state.get("two.shade") or "probability"]
        return Map(
            "top_probs" if shade == "prob" else shade,
            lambda r, v: figures.lens_map(r, v, shade),
            "best token at each depth",
        )
    if name == "layer_skip":
        return Map("effect", figures.skip_map, "row left out, column affected")
    if name == "residual_erasure":
        return Map(
            "effect",
            lambda r, v: figures.token_map(r, v, "effect"),
            "change of the prediction without this token, from this depth on",
        )
    return Map(
        "attribution",
        lambda r, v: figures.token_map(r, v, "attribution", incomplete(r)),
        "share of the answer's probability; crossed out: completeness fails",
    )


def section(
    name: str, both: Sequence[Shown], found: Sequence[Pair], lines: Sequence[Mapping[str, int | None]], expected: bool
) -> None:
    """A probe: its curves, the two maps, and the map of differences beside what it comes to in words. `found`: its
    curves once both sides are complete. `lines`: the depths each side's criteria give. `expected`: whether a map of
    differences is to be expected."""
    first_token = all(getattr(s.side.probes[name], "first_token", True) for s in both)
    shown = map_of(name, first_token)
    st.markdown(f"##### {find(name).title}")
    for i, (column, curve) in enumerate(zip(st.columns(2), CURVES[name])):
        with column:
            if not found:
                show.empty(curve.title, "", CURVE_HEIGHT)
                continue
            key = f"{name}-{curve.name}"
            fig = figures.pair_curves(found[i], (both[0].name, both[1].name), CURVE_HEIGHT)
            show.figure(
                key, fig, f"**{curve.title}**", about=lambda key=key, pair=found[i]: about_curve(key, name, pair, both)
            )
    st.caption(f"The maps: {shown.caption}; one colour scale for both.")
    for column, i in zip(st.columns(2), (0, 1)):
        with column:
            side_map(name, shown, both, i, lines[i])
    left, right = st.columns(2)
    height = MAP_HEIGHT if expected else REASON_HEIGHT
    with left:
        difference(name, shown, both, first_token, height)
    with right.container(height=height + show.CAPTION, border=False):
        for pair in found:
            st.markdown(show.plain(pair.text))


def side_map(name: str, shown: Map, both: Sequence[Shown], i: int, lines: Mapping[str, int | None]) -> None:
    """One side's own map, its colours those of the other side too."""
    result, other = both[i].result, both[1 - i].result
    title = f"{SIDES[i]} · {show.plain(both[i].name)}"
    if result is None or shown.measure not in result.measures:
        return show.empty(title, "Not computed yet.", MAP_HEIGHT)
    seen = view(result, f"{name}-{SIDES[i]}", i)
    beside = other if other is not None and shown.measure in other.measures else None
    fig = shown.draw(result, replace(seen, beside=beside, depth_lines=lines))
    show.figure(
        f"{name}-map-{SIDES[i]}",
        fig,
        f"**{title}**",
        result,
        shown.measure,
        about=lambda: about_map(f"{name}-{SIDES[i]}", shown.measure, [both[i]]),
    )


def difference(name: str, shown: Map, both: Sequence[Shown], first_token: bool, height: int) -> None:
    """B - A where cells mean the same on both sides; else why there is none."""
    a, b = (s.result for s in both)
    if a is None or b is None or any(shown.measure not in r.measures for r in (a, b)):
        return show.empty(
            "B − A",
            "Drawn where cells of the two maps mean the same: equal layers and, over tokens, equal tokens.",
            height,
        )
    if reason := pairs.no_difference(a, b, a.measures[shown.measure].spec.dims):
        return show.empty("B − A: no map", show.plain(reason), height)
    failed = sorted({*incomplete(a), *incomplete(b)}) if name == "integrated_gradients" else ()
    fig = figures.difference_map(a, b, shown.measure, view(a, f"{name}-difference", 0), first_token, failed)
    show.figure(
        f"{name}-difference",
        fig,
        "**B − A** · orange: larger in B, blue: larger in A",
        about=lambda: about_map(f"{name}-difference", shown.measure, both),
    )


def view(result: ProbeResult, revision: str, i: int) -> View:
    n = result.n_tokens
    chosen = (st.session_state.get(f"two.window.{side}.{n}") for side in (SIDES[i], SIDES[0]))
    window = next(filter(None, chosen), (n - WINDOW, n - 1)) if n > WINDOW else None
    return View(height=MAP_HEIGHT, width_px=560, window=window, answer_start=result.answer_start, uirevision=revision)


def about_curve(key: str, probe: str, pair: Pair, both: Sequence[Shown]) -> None:
    """What a curve is, both sides' numbers, and where they came from."""
    st.markdown(f"**`{probe}.{pair.curve.name}`** ({pair.curve.unit}), dims ({pair.curve.x}): {pair.curve.title}.")
    st.markdown(RELATIVE if pair.relative else EQUAL)
    st.download_button(
        "CSV of both",
        lambda: export.pair_csv(pair),
        f"{probe}.{pair.curve.name}.csv",
        "text/csv",
        key=f"csv-{key}",
        icon=":material/download:",
    )
    _origins(both)


def about_map(key: str, measure: str, of: Sequence[Shown]) -> None:
    """The same of a map: of one side, or of both."""
    results = {side: s.result for side, s in zip(SIDES, of)}
    some = of[0].result
    spec = some.measures[measure].spec
    st.markdown(f"**`{some.request.probe}.{measure}`** ({spec.unit}), dims ({', '.join(spec.dims)}): {spec.meaning}.")
    show.notes(note for s in of for note in s.result.notes)
    if all(r.complete for r in results.values()):
        label, data = (
            ("CSV of both", lambda: export.csv_of_sides(results, measure))
            if len(of) > 1
            else ("CSV", lambda: export.csv(some, measure))
        )
        st.download_button(
            label, data, f"{some.request.probe}.{measure}.csv", "text/csv", key=f"csv-{key}", icon=":material/download:"
        )
    _origins(of)


def _origins(of: Sequence[Shown]) -> None:
    for shown in of:
        st.markdown(f"**Where {show.plain(shown.name)} came from**")
        if shown.result.complete:
            st.json(dict(shown.result.provenance), expanded=False)
        else:
            st.caption("Written when the computation is complete.")


RELATIVE = """The models have different numbers of layers, so both stand on **relative depth**: block l of L at (l + 1) / L, as the effective depth's
ratio counts, a point of the stream with l blocks behind it at l / L. Differences in the text are read at the shallower model's layers, where the
deeper one's value is taken from the straight line between its layers; nothing of that is drawn."""
EQUAL = "Both have as many layers: the bars below are B − A, layer by layer, on a scale of their own."
