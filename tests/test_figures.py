"""Figures show the numbers as they are, at every stage of filling, and nothing a token holds gets out of its text."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from kept_cases import results

from ed_core import figures
from ed_core.depth.criteria import Criterion
from ed_core.depth.wording import Statement
from ed_core.figures import View
from ed_core.figures.panel import OVERLAY_LIMIT
from ed_core.figures.text import shown
from ed_core.probes import find
from ed_core.results.aggregate import summarize
from ed_core.sources.published import published, published_marks
from ed_core.sweeps.recorder import Recorder
from ed_core.types import Encoding, Measure, MeasureSpec, ModelSpec, ProbeResult, Prompt

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "%{customdata}",
    "<b>bold</b>",
    "<br>",
    "line\nbreak",
    "\x07\x1b",
    "שלום",
    "\u202eevil",
    "&lt;",
    "$x$",
    "'\"",
    "",
)
MAPS = {
    "contributions": (figures.contribution_norms, "layer_ratio"),
    "cosines": (figures.cosine_map, "layer_cos"),
    "lens": (figures.lens_map, "top_probs"),
    "skip": (figures.skip_map, "effect"),
    "output": (figures.output_by_token, "output_pos"),
}
PROBE = {
    "contributions": "contributions",
    "cosines": "contributions",
    "lens": "logit_lens",
    "skip": "layer_skip",
    "output": "layer_skip",
}
LINES = {"cosine": 1, "kl": 2, "overlap": 2}


def fake(
    probe: str, n_layers: int = 4, tokens: tuple[str, ...] = ("a", " b", "a", "c"), filled: float = 1.0, **parameters
) -> ProbeResult:
    """A result of random numbers within each measure's range, filled from layer 0 up to a share of the layers."""
    rng, kind, n = np.random.default_rng(0), find(probe), len(tokens)
    encoding = Encoding(tuple(range(n)), tokens, 1 if n > 1 else None)
    record = Recorder(kind.make(parameters).request(ModelSpec("fake"), Prompt("x")), kind.measures, encoding, n_layers)
    sizes = {
        "layer": n_layers,
        "depth": n_layers + 1,
        "pos": n,
        "skipped": n_layers,
        "rank": 5,
        "boundary": 2,
        "step": 3,
    }
    for spec in kind.measures:
        shape = tuple(sizes[d] for d in spec.dims)
        if spec.aggregate_only or spec.name.endswith("_by_boundary") or spec.name == "boundaries":
            continue
        whole = spec.name in ("rank", "top_ids")
        record.allocate(spec.name, shape)
        rows = round(filled * shape[0])
        values = rng.integers(1, 9, shape) if whole else rng.uniform(spec.low or 0.0, spec.high or 1.0, shape) / 2
        record.write(spec.name, slice(0, rows), values[:rows])
    record.token_text = dict(enumerate(HOSTILE))
    result = record.result(complete=filled == 1.0)
    return summarize(result) if result.complete else result


def draw(name: str, result: ProbeResult, **view):
    return MAPS[name][0](
        result, View(**{"depth_lines": LINES, "selected": 0, "answer_start": result.answer_start, **view})
    )


def test_importing_the_figures_loads_neither_torch_nor_streamlit():
    code = "import sys, ed_core.figures; assert not {'torch', 'streamlit', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("window", [None, (1, 2)])
def test_z_is_the_measure_itself(name, window):
    result = fake(PROBE[name])
    values = result[MAPS[name][1]]
    heatmap = draw(name, result, window=window).data[0]
    assert heatmap.name == "z" and heatmap.hoverinfo == "skip"
    np.testing.assert_array_equal(heatmap.z, values[..., 0] if name == "lens" else values)


@pytest.mark.parametrize("shade", ["kl", "jsd", "entropy", "rank"])
def test_the_lens_is_shaded_by_what_is_asked(shade):
    result = fake("logit_lens")
    np.testing.assert_array_equal(figures.lens_map(result, View(), shade).data[0].z, result[shade])
    assert np.isnan(figures.lens_map(fake("logit_lens", filled=0.0), View(), shade).data[0].z).all()


@pytest.mark.parametrize("name", MAPS)
def test_nothing_jumps_while_a_result_fills(name):
    stages = [draw(name, fake(PROBE[name], filled=share)).update_layout(template="none") for share in (0.0, 0.5, 1.0)]
    for fig in stages:
        json.loads(fig.to_json())
    for what in (
        lambda f: f.layout.to_plotly_json(),
        lambda f: (f.data[0].zmin, f.data[0].zmax),
        lambda f: [t.name for t in f.data],
    ):
        assert what(stages[0]) == what(stages[1])
    assert (stages[0].data[0].zmin, stages[0].layout.yaxis) == (stages[2].data[0].zmin, stages[2].layout.yaxis)


@pytest.mark.parametrize("low,expected", [(0.0, (0.0, 0.5)), (None, (-0.5, 0.5))])
def test_any_measure_over_tokens_can_be_drawn(low, expected):
    spec, values = MeasureSpec("effect", ("depth", "pos"), "change", "what", low), np.full((5, 4), 0.3)
    result = replace(fake("contributions"), measures={"effect": Measure(spec, values)})
    heatmap = figures.token_map(result, View(), "effect").data[0]
    assert (heatmap.zmin, heatmap.zmax) == expected
    np.testing.assert_array_equal(heatmap.z, values)


def test_log_range_widens_in_decades_and_leaves_out_the_first_token():
    result = fake("contributions")
    result["layer_ratio"][:] = 0.5
    result["layer_ratio"][:, 0] = 1e5
    heatmap = figures.contribution_norms(result, View()).data[0]
    assert (heatmap.zmin, heatmap.zmax) == (0.01, 1.0)
    result["layer_ratio"][2, 2] = 3.0
    assert figures.contribution_norms(result, View()).data[0].zmax == 10.0
    positions = [p for p, _ in heatmap.colorscale]
    assert positions == sorted(positions) and positions[0] == 0 and positions[-1] == pytest.approx(1)
    assert positions[20] == pytest.approx((0.1 - 0.01) / 0.99)  # halfway in colour is halfway in decades


@pytest.mark.parametrize("name", ["contributions", "cosines", "lens"])
@pytest.mark.parametrize("n_layers,n_tokens", [(1, 1), (1, 2), (2, 1)])
def test_the_smallest_results(name, n_layers, n_tokens):
    fig = draw(name, fake(PROBE[name], n_layers, ("x",) * n_tokens), depth_lines={"cosine": 0, "kl": None})
    assert json.loads(fig.to_json())["layout"]["xaxis"]["tickvals"] == list(range(n_tokens))


@pytest.mark.parametrize("name", MAPS)
def test_tokens_stay_text(name):
    fig = draw(name, fake(PROBE[name], tokens=HOSTILE), window=(0, len(HOSTILE) - 1), width_px=1600)
    spec = fig.to_json()
    for bad in ("<img", "<b>bold", "\\u202e", "\\u0007", "line\\nbreak", "$x$"):
        assert bad not in spec, bad
    templates = {trace.hovertemplate for trace in fig.data if getattr(trace, "hovertemplate", None)}
    assert all("<img" not in template and "%{" in template for template in templates)


@pytest.mark.parametrize(
    "token,expected",
    [
        (" the", "·the"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        ("<br>", "&lt;br&gt;"),
        ("a&b", "a&amp;b"),
        ("\x07", "‹7›"),
        ("\u202e", "‹202E›"),
        ("", "∅"),
    ]
    + [("\ud800", "‹D800›"), ('"', "&#34;"), ("x" * 99, "x" * 23 + "…"), ("שלום", "\u2068שלום\u2069")],
)
def test_visible(token, expected):
    assert figures.visible(token) == expected


def test_every_cell_can_be_clicked_and_tells_its_place():
    cells = next(t for t in draw("contributions", fake("contributions"), window=(1, 2)).data if t.name == "cells")
    assert cells.opacity == 0 and sorted(map(tuple, cells.customdata)) == [
        (layer, token) for layer in range(4) for token in (1, 2)
    ]
    assert [(y, x) for x, y in zip(cells.x, cells.y)] == [tuple(c) for c in cells.customdata]


def test_the_lens_lists_five_tokens_on_hover_and_writes_only_what_fits():
    result = fake("logit_lens")
    wide, narrow = (figures.lens_map(result, View(width_px=px)) for px in (1200, 150))
    hover = next(t for t in wide.data if t.name == "cells").text
    assert all(text.count("<br>") == 5 for text in hover)
    written = [sum(bool(cell) for row in fig.data[0].text for cell in row) for fig in (wide, narrow)]
    assert written[0] == 20 > written[1]


@pytest.mark.parametrize("window", [None, (100, 147)])
@pytest.mark.parametrize("name", ["contributions", "lens", "skip"])
def test_large_panels_stay_small_in_json(name, window):
    fig = draw(name, fake(PROBE[name], 64, tuple(f" token{i}" for i in range(400))), window=window)
    assert len(fig.to_json()) < 1_000_000
    cells = next(t for t in fig.data if t.name == "cells")
    assert len(cells.x) <= OVERLAY_LIMIT
    assert len(fig.layout.xaxis.ticktext or fig.layout.xaxis.tickvals) <= 64


def test_every_token_is_labelled_up_to_48():
    fig = draw("contributions", fake("contributions", tokens=("the",) * 48))
    assert list(fig.layout.xaxis.ticktext) == ["<b>the</b>"] + ["the"] * 47 and list(fig.layout.xaxis.tickvals) == list(
        range(48)
    )


def test_depth_lines_lie_at_one_height_in_all_panels():
    places = set()
    for name in MAPS:
        fig = draw(name, fake(PROBE[name]))
        lines = tuple((s.name, s.y0, s.y1, s.line.color) for s in fig.layout.shapes if s.name in figures.CRITERIA)
        places.add((lines, fig.layout.yaxis.range, fig.layout.margin.t, fig.layout.margin.b, fig.layout.height))
    assert len(places) == 1
    assert [line[:3] for line in places.pop()[0]] == [("cosine", 1.5, 1.5), ("kl", 2.5, 2.5), ("overlap", 2.5, 2.5)]


def test_skip_map_marks_what_is_beyond_one_and_what_is_zero_by_construction():
    result = fake("layer_skip")
    result["effect"][:] = np.triu(np.full((4, 4), 0.5))
    result["effect"][0, 3] = 7.0
    traces = {t.name: t for t in figures.skip_map(result, View()).data}
    assert (traces["z"].zmin, traces["z"].zmax) == (0.0, 1.0)
    assert (list(traces["above 1"].x), list(traces["above 1"].y)) == ([3], [0])
    text = dict(zip(map(tuple, traces["cells"].customdata), traces["cells"].text))
    assert "7 relative change" in text[0, 3] and "0 by construction" in text[3, 0] and "noise floor" in text[0, 3]
    future = {t.name: t for t in figures.skip_map(fake("layer_skip", mode="future"), View()).data}
    assert (
        "by construction" not in text[1, 1]
        and "by construction" in dict(zip(map(tuple, future["cells"].customdata), future["cells"].text))[1, 1]
    )


def test_ruler_shows_verdicts_apart_and_says_why_one_is_missing():
    criteria = {
        "cosine": Criterion("cosine", None, None, 16, reason="it is <never> negative"),
        "kl": Criterion("kl", 13, 13, 16),
        "overlap": Criterion("overlap", 13, None, 16),
    }
    fig = figures.depth_ruler(
        criteria,
        16,
        bands={"kl": (11, 14)},
        published=published_marks("Math"),
        ghost={"kl": Criterion("kl", 3, 3, 8)},
    )
    traces = {t.name: t for t in fig.data}
    assert (
        traces["kl"].text == ("KL 13",)
        and traces["overlap"].x == traces["kl"].x == (13,)
        and traces["overlap"].y != traces["kl"].y
    )
    assert traces["cosine"].marker.symbol == "circle-open" and "&lt;never&gt;" in traces["cosine"].customdata[0]
    assert traces["kl before"].x == (7.0,)  # ratio (3 + 1) / 8 of 16 blocks
    assert "band" in {(s.name or "").split(" ")[-1] for s in fig.layout.shapes} and len(traces["published"].x) == 18
    json.loads(figures.depth_ruler({}, 1).to_json())


def test_the_ruler_shows_what_is_not_clear_and_a_control():
    """A hollow mark at its place with the range of its variants, the control's marks, and the measured curve."""
    criteria = {"cosine": Criterion("cosine", 9, None, 16), "kl": Criterion("kl", 4, 4, 16)}
    said = {"cosine": Statement("", False, 3, 12), "kl": Statement("", True, 4, 4)}
    cosine = np.linspace(-0.2, 0.2, 16)
    fig = figures.depth_ruler(
        criteria,
        16,
        bands={"cosine": (8, 10), "kl": (3, 5)},
        statements=said,
        cosine=cosine,
        twin={"kl": Criterion("kl", 6, 6, 16), "overlap": Criterion("overlap", None, None, 16)},
    )
    traces = {t.name: t for t in fig.data}
    assert (traces["cosine"].marker.symbol, traces["kl"].marker.symbol) == ("circle-open", "circle")
    assert traces["cosine"].x == (9,) and "variants" in traces["cosine"].customdata[0]
    bands = {s.name: (s.x0 + 0.4, s.x1 - 0.4) for s in fig.layout.shapes if (s.name or "").endswith("band")}
    assert bands == {"cosine band": pytest.approx((3, 12)), "kl band": pytest.approx((3, 5))}
    assert traces["kl control"].x == (6,) and "overlap control" not in traces
    np.testing.assert_allclose(traces["blocks"].z[0], cosine)


def test_published_ratios_are_their_depths():
    rows = published()
    assert len(rows) == 108
    assert all(p.ratio == pytest.approx((p.effective_depth + 1) / p.n_layers, abs=0.006) for p in rows)
    assert {m[1] for m in published_marks(n_layers=28, dataset="gsm8k", criterion="kl")} == {"kl"}


def test_curves_take_the_colour_of_what_they_are_about():
    fig = figures.layer_curves(
        {"attn_cos": np.zeros(3), "mlp_cos": np.ones(3), "layer_cos": np.full(3, np.nan)},
        "t",
        "cosine",
        depth_lines=LINES,
    )
    assert [t.line.color for t in fig.data] == [figures.ATTENTION, figures.MLP, figures.BOTH]
    profile = figures.token_profile(fake("contributions", tokens=HOSTILE), "layer_cos", 0)
    assert len(profile.data) == 2 and "<img" not in profile.to_json()
    assert [t.type for t in figures.output_bars(fake("layer_skip"), View()).data] == ["bar", "scatter"]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("filled", [0.0, 0.5, 1.0])
def test_describe_is_one_sentence_without_nan(name, filled):
    result = fake(PROBE[name], filled=filled)
    sentence = figures.describe(result, MAPS[name][1])
    assert "nan" not in sentence.lower() and sentence.endswith(".") and "\n" not in sentence
    assert filled == 0 or "largest" in sentence


def test_shown_never_reorders_or_breaks_a_line():
    assert all(char.isprintable() or char in "\u2068\u2069" for token in HOSTILE for char in shown(token))


def test_published_marks_stand_on_their_layer():
    """On a ruler of as many layers, up to the rounding of the published ratio."""
    for n_layers in {p.n_layers for p in published()}:
        rows = [p.effective_depth for p in published() if p.n_layers == n_layers]
        marks = figures.depth_ruler({}, n_layers, published=published_marks(n_layers=n_layers)).data
        np.testing.assert_allclose(next(t.x for t in marks if t.name == "published"), rows, atol=0.006 * n_layers)


def test_the_lens_hover_lists_the_tokens_of_its_own_cell():
    result = replace(fake("logit_lens"), token_text={i: f"w{i}" for i in range(20)})
    cells = next(t for t in figures.lens_map(result, View()).data if t.name == "cells")
    for (depth, token), text in zip(cells.customdata, cells.text, strict=True):
        found = [line.split("  ")[-1] for line in text.split("<br>")[1:]]
        assert found == [f"w{i}" for i in result["top_ids"][depth, token]], (depth, token)


def test_the_answer_begins_at_its_line():
    fig = draw("contributions", replace(fake("contributions"), answer_start=2))
    assert {s.x0 for s in fig.layout.shapes if s.type == "line" and s.xref == "x"} == {1.5}


@pytest.mark.parametrize("first", [True, False])
def test_the_strip_is_the_mean_with_or_without_the_first_token(first):
    result = fake("contributions")
    for fig, name in (
        (figures.contribution_norms(result, View(), first_token=first), "layer_ratio"),
        (figures.cosine_map(result, View(), first_token=first), "layer_cos"),
    ):
        strip = next(t for t in fig.data if t.name == "mean")
        np.testing.assert_allclose(strip.x, result[name][:, (not first) :].mean(1), rtol=1e-6)


def test_bars_beyond_the_limit_have_the_colour_of_a_failure():
    fig = figures.limit_bars(np.array([0.5, 1.0, 1.5]), 1.0, "unit", name="n", limit_name="l")
    assert list(fig.data[0].marker.color) == [figures.BOTH, figures.BOTH, "#B2182B"]


def test_a_spread_is_drawn_from_its_own_quantiles():
    low, median, high = np.zeros(3), np.ones(3), np.full(3, 5.0)
    fig = figures.spread_curve(np.full(3, 2.0), np.stack([low, median, high]), "unit", others="9 others")
    found = {t.name: t.y[0] for t in fig.data}
    assert found == {"10 % of the others": 0, "10–90 % of 9 others": 5, "median": 1, "this prompt": 2}


def test_a_boundary_is_the_first_token_looked_at():
    result = fake("layer_skip", mode="future")
    spec = find("layer_skip").spec("boundaries")
    result = replace(result, measures={**result.measures, "boundaries": Measure(spec, np.array([3, 2], np.int32))})
    rows = {t.name: t.z[i] for i, t in enumerate(figures.boundary_map(result, View()).data)}
    for name, expected in {"boundary 2": [np.nan, 0, 1, 1], "boundary 3": [np.nan, 0, 0, 1]}.items():
        np.testing.assert_array_equal(rows[name], expected)


def test_curves_are_described_by_their_ends():
    fig = figures.layer_curves({"miss": np.array([2.0, 3.0, 1.0])}, "", "unit")
    assert figures.describe_curves(fig, "It") == "It: miss, smallest 1 at layer 2, largest 3 at layer 1."


def test_slopes_are_drawn_within_their_limit():
    found = results()["numerics"]
    limit = found.provenance["limits"]["slope"]
    lines = [s.y0 for s in figures.slope_curves(found).layout.shapes if s.name == "limit"]
    assert lines == [-limit, limit]
