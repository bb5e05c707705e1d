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
from ed_core.claims.record import Curve
from ed_core.depth import verdict
from ed_core.depth.answer import Seen
from ed_core.depth.continuous import MeanDepth, Turn
from ed_core.depth.criteria import Criterion
from ed_core.depth.wording import Reading, Statement, Twins
from ed_core.figures import View, colours, pictures
from ed_core.figures.canvas import shown, size
from ed_core.figures.lens import cut
from ed_core.figures.panel import MOST_TEXTS
from ed_core.figures.pictures import Look
from ed_core.fits import measured
from ed_core.probes import LayerSkip, LogitLens, ResidualErasure, find
from ed_core.results import aggregate
from ed_core.results.aggregate import summarize
from ed_core.sources.catalogue import published, published_marks
from ed_core.sweeps.recorder import Recorder
from ed_core.types import Encoding, Measure, MeasureSpec, ModelSpec, ProbeResult, Prompt

SURGERY = ("loss", "kl", "top1_kept")
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
        "start": n_layers,
        "stop": n_layers + 1,
        "other": n_layers,
        "length": n_layers,
    }
    for spec in kind.measures:
        shape = tuple(sizes[d] for d in spec.dims)
        if spec.aggregate_only or spec.name.endswith("_by_boundary") or spec.name == "boundaries":
            continue
        whole = spec.name in ("rank", "top_ids")
        record.allocate(spec.name, shape)
        rows = round(filled * shape[0]) if shape else None
        values = rng.integers(1, 9, shape) if whole else rng.uniform(spec.low or 0.0, spec.high or 1.0, shape) / 2
        record.write(spec.name, slice(0, rows) if shape else (), values[:rows] if shape else values)
    record.token_text = dict(enumerate(HOSTILE))
    result = record.result(complete=filled == 1.0)
    return summarize(result) if result.complete else result


def surgery_curves(n: int) -> dict[str, np.ndarray]:
    """What the surgery map of a model of `n` layers reads: a loss for every stretch and every pair."""
    values = np.arange(n * (n + 1.0)).reshape(n, n + 1)
    return {
        "loss_whole": np.array(2.0),
        **{f"{kind}_{name}": values[:, : n + (kind != "swap")] for kind in figures.DONE for name in SURGERY},
    }


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
    if name == "skip":
        result["noise_floor"][:] = 0.0
    values = result[MAPS[name][1]]
    heatmap = draw(name, result, window=window).data[0]
    assert heatmap.name == "z"
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
    assert stages[0].layout.yaxis == stages[2].layout.yaxis
    if name != "contributions":  # whose colours fit themselves to the values once all are there
        assert stages[0].data[0].zmin == stages[2].data[0].zmin


@pytest.mark.parametrize("low,expected", [(0.0, (0.0, 0.5)), (None, (-0.5, 0.5))])
def test_any_measure_over_tokens_can_be_drawn(low, expected):
    spec, values = MeasureSpec("effect", ("depth", "pos"), "change", "what", low), np.full((5, 4), 0.3)
    result = replace(fake("contributions"), measures={"effect": Measure(spec, values)})
    heatmap = figures.token_map(result, View(), "effect").data[0]
    assert (heatmap.zmin, heatmap.zmax) == expected
    np.testing.assert_array_equal(heatmap.z, values)


def test_a_logarithmic_range_shows_differences_and_leaves_out_the_first_token():
    result = fake("contributions")
    result["layer_ratio"][:] = 0.3
    result["layer_ratio"][:, 0] = 1e5
    heatmap = figures.contribution_norms(result, View()).data[0]
    low, high = heatmap.zmin, heatmap.zmax
    assert (low, high) == pytest.approx((0.1, 1.0)), "a factor of four around 0.3, at steps of 1, 2 and 5"
    result["layer_ratio"][2:, 1:] = 30.0
    assert figures.contribution_norms(result, View()).data[0].zmax == pytest.approx(50.0)
    positions = [p for p, _ in heatmap.colorscale]
    assert positions == sorted(positions) and positions[0] == 0 and positions[-1] == pytest.approx(1)
    assert positions[20] == pytest.approx((10**-0.5 - 0.1) / 0.9)  # halfway in colour is halfway in decades


def test_a_few_large_cells_do_not_take_the_colours_from_all_others():
    values = np.concatenate([np.geomspace(0.05, 0.4, 1000), [1e4] * 10, [1e-6] * 10])
    low, high = colours.spread(values, (-2, 0))
    assert (10**low, 10**high) == pytest.approx((0.05, 0.5))
    assert colours.spread(np.array([np.nan, 0.0, -1.0]), (-2, 0)) == (-2, 0)


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


def told(fig) -> dict[tuple[int, int], str]:
    """What the cells of a map say when they are pointed at, by row and column."""
    heatmap = fig.data[0]
    assert "%{text}" in heatmap.hovertemplate and heatmap.hoverinfo is None
    return {(y, x): text for y, row in enumerate(heatmap.text) for x, text in enumerate(row) if text}


def test_every_cell_that_is_shown_tells_its_place():
    fig = draw("contributions", fake("contributions"), window=(1, 2))
    assert sorted(told(fig)) == [(layer, token) for layer in range(4) for token in (1, 2)]
    assert fig.data[0].hovertemplate.startswith("layer %{y} · token %{x:d}")


def test_a_panel_that_fills_says_place_and_value_alone():
    heatmap = draw("contributions", replace(fake("contributions", filled=0.5), complete=False)).data[0]
    assert heatmap.text is None and "token %{x:d}<br>%{z:.3g}" in heatmap.hovertemplate


def test_a_written_token_is_told_by_its_number_among_the_written_ones_and_clicked_by_its_position():
    result = fake("generation")
    cells = figures.writing_map(result, View()).data[0]
    assert cells.hovertemplate.startswith("depth %{y} · token written %{x:d}")
    assert cells.customdata[2][1] == [2, figures.first_position(result) + 1]


def test_the_lens_lists_five_tokens_on_hover():
    hover = told(figures.lens_map(fake("logit_lens"), View()))
    assert len(hover) == 5 * 4 and all(text.count("<br>") == 5 for text in hover.values())


def lens(best, tokens: tuple[str, ...], words: dict[int, str], probs=0.5) -> ProbeResult:
    """A lens whose best tokens are these `[depth, pos]`."""
    result = fake("logit_lens", len(best) - 1, tokens)
    result["top_ids"][..., 0], result["top_probs"][..., 0] = best, probs
    return replace(result, token_text=words)


def written(fig) -> dict[tuple[int, int], tuple[str, str]]:
    """What stands on the cells (row, token), and its colour."""
    return {
        (y, x): (text, trace.textfont.color)
        for trace in fig.data
        if trace.name.startswith("letters")
        for y, x, text in zip(trace.y, trace.x, trace.text)
    }


def test_the_lens_writes_a_token_where_the_row_below_has_another():
    best = [[1, 2], [1, 3], [4, 3], [4, 4]]
    result = lens(best, ("a", "b"), {1: "one", 2: "two", 3: "three", 4: "four"})
    found = {cell: text for cell, (text, _) in written(figures.lens_map(result, View())).items()}
    assert found == {(0, 0): "one", (0, 1): "two", (1, 1): "three", (2, 0): "four", (3, 1): "four"}
    assert set(written(figures.lens_map(result, View(window=(1, 1))))) == {(0, 1), (1, 1), (3, 1)}


@pytest.mark.parametrize("n_layers", [30, 48, 80])
@pytest.mark.parametrize("n_tokens", [2, 20, 48])
def test_a_deep_lens_has_rows_and_letters_that_can_be_read(n_layers, n_tokens):
    best = np.arange(n_layers + 1)[:, None].repeat(n_tokens, 1)
    result = lens(best, ("a",) * n_tokens, dict.fromkeys(range(n_layers + 1), "word"))
    fig = figures.lens_map(result, View(width_px=1100))
    rows = fig.layout.height - fig.layout.margin.t - fig.layout.margin.b
    assert rows / (n_layers + 1) >= 14
    assert fig.layout.height == figures.lens_height(n_layers, View()), "known before there is a result"
    sizes = {t.textfont.size for t in fig.data if t.name.startswith("letters")}
    assert min(sizes) >= 10 and max(sizes) < rows / (n_layers + 1)
    texts = {text for text, _ in written(fig).values()}
    assert len(written(fig)) == (n_layers + 1) * n_tokens and texts == {"w…" if n_tokens == 48 else "word"}


@pytest.mark.parametrize(
    "token,fit,expected",
    [
        (" capital", 8, "·capital"),
        (" capital", 7, "capital"),
        (" capital", 5, "capi…"),
        ("x", 1, "x"),
        ("xy", 1, ""),
        ("<b>", 2, "&lt;…"),
        ("漢字", 4, "漢字"),
        ("漢字", 2, ""),
    ],
)
def test_a_token_is_cut_to_its_cell(token, fit, expected):
    assert cut(token, fit) == expected


def test_letters_on_the_lens_take_the_better_contrast():
    low, high = lens([[1], [2]], ("a",), {1: "x", 2: "y"}), lens([[1], [2]], ("a",), {1: "x", 2: "y"}, 0.9)
    assert {colour for _, colour in written(figures.lens_map(low, View(), "prob")).values()} == {"#000000"}
    low["top_probs"][..., 0] = 0.1
    assert {colour for _, colour in written(figures.lens_map(low, View())).values()} == {"#ffffff"}
    assert {colour for _, colour in written(figures.lens_map(high, View())).values()} == {"#000000"}


def test_over_the_lens_stands_what_the_output_predicts():
    result = lens([[1, 2], [3, 4]], ("in", "put"), {1: "a", 2: "b", 3: " Tokyo", 4: "c"})
    fig = figures.lens_map(result, View(width_px=1100))
    assert fig.layout.xaxis4.side == "top" and fig.layout.xaxis4.overlaying == "x"
    assert fig.layout.xaxis4.ticktext == ("·Tokyo", "c") and fig.layout.xaxis.ticktext == ("in", "put")
    assert {"next", "input"} <= {a.text for a in fig.layout.annotations}
    assert set(figures.lens_map(fake("logit_lens", filled=0.5), View()).layout.xaxis4.ticktext) == {""}
    caption = (
        "columns are input tokens, cells predict the next token (blank: as below, or no room; grey: repeats its input)"
    )
    assert LogitLens.pictures[0].caption == caption


def test_early_rows_that_repeat_their_input_are_grey_and_no_certainty():
    """From depth 0 without a break, and only where the output says another token."""
    words = {1: "a", 2: "b", 3: "c"}
    result = lens([[1, 2, 3], [1, 1, 3], [2, 2, 3], [2, 3, 3]], ("a", "b", "c"), words, 0.9)
    fig = figures.lens_map(result, View())
    (veil,) = [t for t in fig.data if t.name == "echo"]
    expected = [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(np.nan_to_num(np.array(veil.z, float)), expected)
    assert "echo" in fig.data[0].text[1][0] and "echo" not in fig.data[0].text[1][1]
    assert {colour for _, colour in written(fig).values()} == {"#000000"}
    assert "echo" not in {t.name for t in figures.lens_map(result, View(), "kl").data}, (
        "distances are shown as they are"
    )


@pytest.mark.parametrize("window", [None, (100, 147)])
@pytest.mark.parametrize("name", ["contributions", "lens", "skip"])
def test_large_panels_stay_small_in_json(name, window):
    fig = draw(name, fake(PROBE[name], 64, tuple(f" token{i}" for i in range(400))), window=window)
    assert len(fig.to_json()) < 1_000_000
    assert fig.data[0].text is None or len(told(fig)) <= MOST_TEXTS
    assert len(fig.layout.xaxis.ticktext or fig.layout.xaxis.tickvals) <= 64


@pytest.mark.parametrize("token,width_px,step", [("the", 800, 1), ("the", 600, 2), ("ab", 600, 1), (" + ", 600, 1)])
def test_up_to_48_tokens_are_labelled_as_far_as_letters_of_11_px_fit(token, width_px, step):
    axis = draw("contributions", fake("contributions", tokens=(token,) * 48), width_px=width_px).layout.xaxis
    assert list(axis.tickvals) == list(range(0, 48, step)) and axis.tickfont.size == 11
    assert axis.ticktext[0] == f"<b>{figures.visible(token)}</b>" and len(axis.ticktext) == 48 // step


def test_short_labels_stand_upright_whatever_stands_beside_them():
    tokens = ("a", " bc", " international", "d", "e") * 6
    layout = draw("contributions", fake("contributions", tokens=tokens), sinks=(0,), selected=None).layout
    assert (layout.xaxis.tickangle, layout.xaxis3.tickangle, layout.xaxis3.overlaying) == (-90, 0, "x")
    assert [i % 5 for i in layout.xaxis.tickvals] == [1, 2] * 6 and layout.xaxis.ticktext[1] == "·intern…"
    assert [i % 5 for i in layout.xaxis3.tickvals] == [0, 3, 4] * 6 and layout.xaxis3.ticktext[0] == "◆a"
    fits = draw("contributions", fake("contributions", tokens=tokens[:20]), selected=None).layout
    assert [i % 5 for i in fits.xaxis.tickvals] == [2] * 4, "of these the long ones alone find no room"
    wide = draw("contributions", fake("contributions", tokens=("a", " bc")), selected=None).layout
    assert wide.xaxis.tickangle == 0 and wide.xaxis.ticktext == ("a", "·bc") and "xaxis3" not in wide.to_plotly_json()
    two_lines = draw("contributions", fake("contributions", tokens=(" bcd",) * 20), selected=None).layout.xaxis
    assert two_lines.tickangle == 0 and two_lines.ticktext[:2] == ("·bcd", "<br>·bcd")


@pytest.mark.parametrize("name", MAPS)
def test_no_letter_of_a_map_is_smaller_than_11_px(name):
    fig = draw(name, fake(PROBE[name], 30, ("a", " token") * 10), selected=None, sinks=(0,))
    axes = [v for k, v in fig.layout.to_plotly_json().items() if k.startswith(("xaxis", "yaxis"))]
    bars = [t.colorbar.tickfont.size for t in fig.data if t.type == "heatmap"]
    assert min([a["tickfont"]["size"] for a in axes] + bars + [a.font.size for a in fig.layout.annotations]) == 11


def test_sinks_carry_a_badge_and_are_outside_the_colour_range():
    result = fake("contributions")
    result["layer_ratio"][:] = 0.5
    result["layer_ratio"][:, 2] = 7.0
    plain, marked = (figures.contribution_norms(result, View(sinks=at, count_sinks=True)) for at in ((), (2,)))
    assert (plain.data[0].zmax, marked.data[0].zmax) == (10.0, 1.0)
    assert marked.layout.xaxis.ticktext == ("a", "·b", "◆a", "c")
    assert {x for (_, x), text in told(marked).items() if "◆ sink" in text} == {2}
    strips = [next(t for t in fig.data if t.name == "mean").x for fig in (plain, marked)]
    np.testing.assert_array_equal(*strips)
    kl = fake("logit_lens")
    kl["kl"][:, 0] = 19.0
    assert [figures.lens_map(kl, View(sinks=at), "kl").data[0].zmax for at in ((), (0,))] == [20.0, 5.0]
    spec = MeasureSpec("effect", ("depth", "pos"), "change", "what", 0.0)
    values = np.tile([0.3, 4.0], (5, 1))
    any_map = replace(fake("contributions", tokens=("a", "b")), measures={"effect": Measure(spec, values)})
    assert [figures.token_map(any_map, View(sinks=at), "effect").data[0].zmax for at in ((), (1,))] == [5.0, 0.5]


def test_what_is_beyond_the_colours_says_so():
    result = fake("contributions")
    result["layer_ratio"][:] = 0.5
    fig = figures.contribution_norms(result, View())
    bar = next(t for t in fig.data if t.name == "scale").marker.colorbar
    assert bar.ticktext == ("0.2", "0.5", "1") and not any("beyond" in text for text in told(fig).values())
    result["layer_ratio"][0, 0], result["layer_ratio"][1, 0] = 50.0, 1e-5
    fig = figures.contribution_norms(result, View())
    assert next(t for t in fig.data if t.name == "scale").marker.colorbar.ticktext == ("≤ 0.2", "0.5", "≥ 1")
    text = told(fig)
    assert "≥ 1: beyond" in text[0, 0] and "≤ 0.2: beyond" in text[1, 0] and "beyond" not in text[2, 2]
    result["layer_ratio"][:] = 2e7 * np.arange(1, 17).reshape(4, 4)
    fig = figures.contribution_norms(result, View())
    bar = next(t for t in fig.data if t.name == "scale").marker.colorbar
    assert bar.ticktext[-1].endswith("500M") and fig.layout.xaxis2.ticktext == ("0.01", "1M")
    spec = MeasureSpec("effect", ("layer", "pos"), "change", "what", 0.0)
    large = replace(result, measures={"effect": Measure(spec, np.full((4, 4), 1500.0, np.float32))})
    assert figures.token_map(large, View(), "effect").data[0].colorbar.ticktext == ("0", "250", "500", "750", "≥ 1000")


def test_the_erasures_strip_leaves_out_the_position_that_predicts_the_answer():
    result = replace(fake("residual_erasure"), answer_start=3)
    result["effect"][:] = np.array([0.1, 0.2, 0.9, 0.3])
    for target, expected, said in (("answer", 0.3, True), ("future", 0.9, False)):
        asked = ResidualErasure(target=target).request(ModelSpec("fake"), Prompt("x"))
        found = replace(result, request=asked)
        fig = pictures.draw(ResidualErasure.pictures[0], found, View())
        np.testing.assert_allclose(strip_of(fig), expected, rtol=1e-6)
        assert (fig.layout.xaxis2.title.text == "maximum without<br>token 2, L2 ≤ √2") == said
        caption = pictures.caption(ResidualErasure.pictures[0], found, Look())
        assert ("without token 2, which predicts the answer" in caption) == said
        np.testing.assert_array_equal(fig.data[0].z, result["effect"])


def test_depth_lines_lie_at_one_height_in_all_panels():
    """The lens, which stands below the others, has them at the same rows."""
    places, rows = set(), set()
    for name in MAPS:
        fig = draw(name, fake(PROBE[name]))
        lines = tuple((s.name, s.y0, s.y1, s.line.color) for s in fig.layout.shapes if s.name in figures.CRITERIA)
        rows.add((lines, fig.layout.yaxis.range))
        if name != "lens":
            places.add((lines, fig.layout.yaxis.range, fig.layout.margin.t, fig.layout.margin.b, fig.layout.height))
    assert len(places) == len(rows) == 1
    assert [line[:3] for line in places.pop()[0]] == [("cosine", 1.5, 1.5), ("kl", 2.5, 2.5), ("overlap", 2.5, 2.5)]


def test_skip_map_marks_what_is_beyond_its_colours_and_what_is_zero_by_construction():
    result = fake("layer_skip")
    result["noise_floor"][:] = 0.0
    result["effect"][:] = np.triu(np.full((4, 4), 0.5))
    result["effect"][0, 3], result["effect"][1, 2] = 70.0, 0.004
    part = figures.skip_map(replace(result, complete=False), View())
    assert next(t for t in part.data if t.name == "scale").marker.colorbar.ticktext == (
        "0.001",
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
    )
    fig = figures.skip_map(result, View())
    traces, text = {t.name: t for t in fig.data}, told(fig)
    np.testing.assert_array_equal(traces["z"].z, result["effect"])
    low, high = (10.0**end for end in (traces["scale"].marker.cmin, traces["scale"].marker.cmax))
    held = result["effect"][np.triu_indices(4, 1)]
    assert high == pytest.approx(100) and low == pytest.approx(1), "the 95 % quantile, and two decades at most"
    assert traces["z"].zmin == 0 and traces["z"].zmax == pytest.approx(high) and held.max() < high
    assert traces["scale"].marker.colorbar.ticktext[0] == "≤ 1", "zeros by construction are not below the colours"
    assert "≤ 1: beyond the colours" in text[1, 2] and "beyond" not in text[0, 3]
    assert "70 relative change" in text[0, 3] and "0 by construction" in text[3, 0] and "noise floor" in text[0, 3]
    future = told(figures.skip_map(fake("layer_skip", mode="future"), View()))
    assert "by construction" not in text[1, 1] and "by construction" in future[1, 1]


def test_what_only_current_mode_measures_is_said_in_the_middle():
    measured = fake("layer_skip")
    without = replace(measured, measures={n: m for n, m in measured.measures.items() if n != "output_pos"})

    def said(result: ProbeResult) -> list:
        layout = figures.output_by_token(result, View()).layout
        return [(one.x, one.y, one.xref, one.yref) for one in layout.annotations if "current mode" in one.text]

    assert said(without) == [(0.5, 0.5, "x domain", "y domain")] and not said(measured)


def test_skip_map_leaves_empty_what_is_not_above_the_noise_floor():
    result = fake("layer_skip")
    result["effect"][:] = np.triu(np.full((4, 4), 0.5))
    result["noise_floor"][:] = 0.0
    result["effect"][0, 1] = 0.0
    drawn = lambda: {t.name: t for t in figures.skip_map(result, View()).data}["z"].z
    assert np.isfinite(drawn()).all(), "without noise nothing is hidden, 0 included"
    result["noise_floor"][2] = 0.5
    assert np.argwhere(np.isnan(drawn())).tolist() == [[0, 2], [1, 2], [2, 2]]
    text = told(figures.skip_map(result, View()))
    assert "noise floor 0.5, so left empty" in text[0, 2] and "left empty" not in text[0, 3] + text[3, 2]


def test_early_skips_stay_below_saturation():
    """Where layer 0 changes all others many times over, its row is still told from the next, and so are weak ones."""
    n = 30
    result = fake("layer_skip", n_layers=n)
    result["effect"][:] = np.triu(np.outer(np.geomspace(4.0, 0.2, n), np.ones(n)))
    result["effect"][0, n - 1] = 130.0
    fig = figures.skip_map(result, View())
    traces = {t.name: t for t in fig.data}
    assert (list(traces["beyond the colours"].x), list(traces["beyond the colours"].y)) == ([n - 1], [0])
    places, scale = zip(*traces["z"].colorscale)
    assert all(np.diff(places) >= 0) and places[-1] == 1.0
    shown = [int(np.searchsorted(places, result["effect"][row, row + 1] / traces["z"].zmax)) for row in range(0, 25, 4)]
    assert len({scale[at] for at in shown}) == len(shown), "every fourth row has a colour of its own"


def test_the_ruler_leads_with_what_has_no_threshold_and_shows_the_papers_rules_lighter():
    """Mean depths, turn and answer as filled circles between layers; the rules' layers as small diamonds in the same
    rows, nothing where a rule gives none."""
    criteria = {
        "cosine": Criterion("cosine", None, None, 16, reason="it is <never> negative"),
        "kl": Criterion("kl", 13, 13, 16),
        "overlap": Criterion("overlap", 13, None, 16),
    }
    means = {"kl": MeanDepth("kl", 9.25, 16), "overlap": MeanDepth("overlap", None, 16)}
    seen = [Seen(3, "<b>", True, 12, 12, 5, 16), Seen(4, "x", True, 7, 7, 5, 16)]
    fig = figures.depth_ruler(
        criteria,
        16,
        bands={"kl": (11, 14)},
        means=means,
        turn=Turn(16, 4, -0.2, 0.3, 0.01, ""),
        seen=seen,
        published=published_marks("Qwen2.5-Math-7B"),
        ghost={"kl": MeanDepth("kl", 4.0, 8)},
    )
    traces = {t.name: t for t in fig.data}
    assert traces["kl"].x == (8.75,) and traces["kl"].text == ("9.2",) and traces["kl"].marker.symbol == "circle"
    assert traces["kl"].textposition == "middle right", "the rule's mark stands too far off to cover the number"
    close = figures.depth_ruler(criteria | {"kl": Criterion("kl", 9, 9, 16)}, 16, means=means)
    assert next(t for t in close.data if t.name == "kl").textposition == "middle left"
    assert traces["cosine"].x == (4.5,) and traces["cosine"].text == ("turn 4",)
    assert traces["answer"].x == (11.5,) and "&lt;b&gt;" in traces["answer"].customdata[0], "of several the last"
    assert traces["kl rule"].x == traces["overlap rule"].x == (13,) and traces["kl rule"].y == traces["kl"].y
    assert traces["kl rule"].marker.size < traces["kl"].marker.size
    assert "overlap" not in traces and "cosine rule" not in traces
    assert traces["kl before"].x == (7.5,)  # ratio 4 / 8 of 16 layers
    assert [s.name for s in fig.layout.shapes if (s.name or "").endswith("band")] == ["kl band"]
    assert len(traces["published"].x) == 9
    sides = [(s.y0, s.y1) for s in fig.layout.shapes if s.type == "line" and s.x0 == s.x1 and s.y1 < 1]
    assert sides == [(-0.4, 0.4)] * 17, "each block from the bar's lower to its upper edge"
    waiting = figures.depth_ruler({}, 1)
    json.loads(waiting.to_json())
    assert {t.name for t in waiting.data} == {"blocks", "published"}, "no marks before there is a verdict"
    none = figures.depth_ruler({}, 16, seen=[*seen, Seen(5, "y", True, None, None, 5, 16, "z")])
    assert "answer" not in {t.name for t in none.data}, "an answer that the model does not give"


def test_the_ruler_shows_what_is_not_clear_and_the_range_of_the_twins():
    """A hollow mark at its place with the range of its variants, the twins' mean depths, and the measured curve."""
    criteria = {"cosine": Criterion("cosine", 9, None, 16), "kl": Criterion("kl", 4, 4, 16)}
    said = {"cosine": Statement("", False, 3, 12), "kl": Statement("", True, 4, 4)}
    cosine = np.linspace(-0.2, 0.2, 16)
    readings = tuple(Reading({}, {"kl": MeanDepth("kl", depth, 16)}, None) for depth in (6.5, 8.0, 7.0))
    look = dict(bands={"cosine": (8, 10), "kl": (3, 5)}, statements=said, cosine=cosine)
    fig = figures.depth_ruler(criteria, 16, **look, twins=Twins("untrained", readings))
    traces = {t.name: t for t in fig.data}
    assert [traces[f"{n} rule"].marker.symbol for n in ("cosine", "kl")] == ["diamond-open", "diamond"]
    assert traces["cosine rule"].x == (9,) and "not clear" in traces["cosine rule"].customdata[0]
    bands = {s.name: (s.x0 + 0.4, s.x1 - 0.4) for s in fig.layout.shapes if (s.name or "").endswith("band")}
    assert bands == {"cosine band": pytest.approx((3, 12)), "kl band": pytest.approx((4, 4))}
    (range_,) = [s for s in fig.layout.shapes if s.name == "kl twins"]
    assert (range_.x0, range_.x1) == (6.0, 7.5)
    assert "three untrained twins: 6.5 to 8" in traces["kl twins"].customdata[0]
    np.testing.assert_allclose(traces["blocks"].z[0], cosine)


def test_published_ratios_are_their_depths():
    rows = published()
    assert len(rows) == 108
    assert all(p.ratio == pytest.approx((p.effective_depth + 1) / p.n_layers, abs=0.006) for p in rows)
    assert {m[1] for m in published_marks(n_layers=28, dataset="gsm8k", criterion="kl")} == {"kl"}
    assert {m[0] for m in published_marks("Qwen2.5-14B")} == {"Qwen2.5-14B"}, "not those of Qwen2.5-14B-Instruct"


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("filled", [0.0, 0.5, 1.0])
def test_describe_is_one_sentence_without_nan(name, filled):
    result = fake(PROBE[name], filled=filled)
    sentence = figures.describe(result, MAPS[name][1])
    assert "nan" not in sentence.lower() and sentence.endswith(".") and "\n" not in sentence
    assert filled == 0 or "largest" in sentence


@pytest.mark.parametrize(
    "value, told", [(1234.0, "1234"), (5.67e6, "5.67M"), (2e-9, "2·10⁻⁹"), (1e12, "10¹²"), (np.inf, "∞")]
)
def test_a_size_is_plain_text(value, told):
    assert size(value) == told


@pytest.mark.parametrize("tokens, size", [(("a",), "5 depths × 1 token:"), (("a", "b"), "5 depths × 2 tokens:")])
def test_describe_counts_tokens_in_words(tokens, size):
    assert size in figures.describe(fake("logit_lens", tokens=tokens), "kl")


def test_describe_tells_what_a_map_shows():
    """Of a list of best tokens the first, of a measure over boundaries the one that is looked at."""
    best = fake("logit_lens")
    told = figures.describe(best, "top_probs")
    assert told.startswith("probabilities of the best tokens") and "5 depths × 4 tokens:" in told and "rank" not in told
    assert f"largest {best['top_probs'][..., 0].max():.3g}" in told
    spec = LayerSkip.spec("effect_by_boundary")
    values = np.arange(2.0 * 4 * 4).reshape(2, 4, 4)
    result = replace(fake("layer_skip"), measures={spec.name: Measure(spec, values)})
    told = figures.describe(result, spec.name, 0)
    assert "4 skipped layers × 4 layers" in told and "largest 15 (skipped 3, layer 3)" in told


def test_shown_never_reorders_or_breaks_a_line():
    assert shown("abcdef", 6) == "abcdef" and shown("abcdefg", 6) == "abcde…" and shown("") == "∅"
    spelled = shown("\u200b" * 5)
    assert len(spelled) == 24 and spelled.endswith("…"), "what is spelled out grows"
    assert all(char.isprintable() or char in "\u2068\u2069" for token in HOSTILE for char in shown(token))


def test_published_marks_stand_on_their_layer():
    """On a ruler of as many layers, up to the rounding of the published ratio."""
    for n_layers in {p.n_layers for p in published()}:
        rows = [p.effective_depth for p in published() if p.n_layers == n_layers]
        marks = figures.depth_ruler({}, n_layers, published=published_marks(n_layers=n_layers)).data
        np.testing.assert_allclose(next(t.x for t in marks if t.name == "published"), rows, atol=0.006 * n_layers)


def test_the_lens_hover_lists_the_tokens_of_its_own_cell():
    result = replace(fake("logit_lens"), token_text={i: f"w{i}" for i in range(20)})
    for (depth, token), text in told(figures.lens_map(result, View())).items():
        found = [line.split("  ")[-1] for line in text.split("<br>")[1:]]
        assert found == [f"w{i}" for i in result["top_ids"][depth, token]], (depth, token)


def test_the_answer_begins_at_its_line():
    fig = draw("contributions", replace(fake("contributions"), answer_start=2))
    assert {s.x0 for s in fig.layout.shapes if s.type == "line" and s.xref == "x"} == {1.5}
    begins = draw("contributions", replace(fake("contributions"), answer_start=2), window=(2, 3))
    assert not [s for s in begins.layout.shapes if s.type == "line" and s.xref == "x"], "nothing stands before it"


@pytest.mark.parametrize("first", [True, False])
def test_the_strip_is_the_mean_with_or_without_the_first_token(first):
    result = fake("contributions")
    for fig, name in (
        (figures.contribution_norms(result, View(), first_token=first), "layer_ratio"),
        (figures.cosine_map(result, View(), "io_cos", first_token=first), "io_cos"),
    ):
        strip = next(t for t in fig.data if t.name == "mean")
        np.testing.assert_allclose(strip.x, result[name][:, (not first) :].mean(1), rtol=1e-6)


@pytest.mark.parametrize("of,first", [("all", True), ("all", False), ("answer", True), (1, True)])
def test_the_strips_hold_the_curves_that_the_criteria_read(of, first):
    contributions, lens = (replace(fake(name), answer_start=3) for name in verdict.READS)
    found = verdict.of_prompt(contributions, lens, first, of=of)
    view = View(read_at=verdict.positions(lens, of), read_for="here")
    for branch in ("attn_cos", "mlp_cos", "layer_cos"):
        fig = figures.cosine_map(contributions, view, branch, first)
        np.testing.assert_allclose(strip_of(fig), found.curves["cosine"], rtol=1e-6)
        tail = ", here" if of != "all" else "" if first else ", no first"
        assert fig.layout.xaxis2.title.text == f"mean of the<br>three cosines{tail}"
    for shade in ("prob", "kl", "entropy"):
        fig = figures.lens_map(lens, view, shade)
        np.testing.assert_allclose(strip_of(fig)[:-1], found.curves["kl"], rtol=1e-6)
        assert fig.layout.xaxis2.title.text == "mean KL, nats" + ", here" * (of != "all")


def strip_of(fig) -> np.ndarray:
    return next(t for t in fig.data if t.name == "mean").x


def test_a_boundary_is_the_first_token_looked_at():
    result = fake("layer_skip", mode="future")
    spec = find("layer_skip").spec("boundaries")
    result = replace(result, measures={**result.measures, "boundaries": Measure(spec, np.array([3, 2], np.int32))})
    rows = {t.name: t.z[i] for i, t in enumerate(figures.boundary_map(result, View()).data)}
    for name, expected in {"boundary 2": [np.nan, 0, 1, 1], "boundary 3": [np.nan, 0, 0, 1]}.items():
        np.testing.assert_array_equal(rows[name], expected)


def test_curves_are_described_by_their_ends():
    fig = figures.layer_curves({"miss": np.array([2.0, 3.0, 1.0])}, "", "unit")
    assert figures.describe_curves(fig, "It") == "It (unit): miss, smallest 1 at layer 2, largest 3 at layer 1."
    alone = figures.layer_curves({"miss": np.array([np.nan, 3.0])}, "", "unit")
    assert figures.describe_curves(alone, "It") == "It (unit): miss, 3 at layer 1."


def test_marks_on_lines_are_described_by_what_lies_along_them():
    row = dict(model="a", criterion="kl", n_layers=8, low=None, high=None, prompts=1, undefined=None)
    rows = [row | dict(variant="mean", ratio=0.25, depth=2.0), row | dict(variant="paper", ratio=0.75, depth=5)]
    fig = figures.study_depths(rows, "model")
    assert figures.describe_curves(fig, "It") == "It: KL, smallest 0.25, largest 0.75 share of the depth."


def test_places_are_described_by_their_names_on_the_axis():
    row = dict(criterion="kl", variant="mean", low=None, high=None)
    rows = [row | dict(step=step, ratio=ratio) for step, ratio in ((0, 0.75), (512, 0.5), (143_000, 0.25))]
    for log in (True, False):
        told = figures.describe_curves(figures.depth_over_steps(rows, 8, {0: 1.0, 512: 2.0}, log), "It")
        assert told == (
            "It (depth, of 8 layers): mean depth, KL, smallest 2 at step 143k, largest 6 at step 0; sinks, smallest 1 "
            "at step 0, largest 2 at step 512."
        )
    levels = [dict(name=name, mean=mean, low=2.0, high=4.0, own=[mean]) for name, mean in (("2", 2.0), ("<4>", 4.0))]
    fig = figures.study_levels({"a": levels, "b": levels}, {"a": 8, "b": 8}, "mean depth", True)
    assert all(told.endswith("<br>1 prompt") for told in fig.data[1].text)
    ends = "smallest 0.25 at level 2, largest 0.5 at level <4>"
    assert figures.describe_curves(fig, "It") == f"It (share of the depth): a, {ends}; b, {ends}."
    nothing = (None, None)
    curve = dict(x_title="answer", unit="ratio", x=(0.0, 1.0), values=(0.5, 1.0), low=nothing, high=nothing)
    for ticks, at in ((("wrong", "right"), ("wrong", "right")), ((), ("0", "1"))):
        fig = figures.claim_curves({"model": Curve(**curve, ticks=ticks)})
        assert figures.describe_curves(fig, "It") == (
            f"It (ratio): model, smallest 0.5 at answer {at[0]}, largest 1 at answer {at[1]}."
        )


# ---------------------------------------------------------------- sinks beside the maps

SUNK = {"sinks": (0, 2), "count_sinks": False}


def strip_with(fig):
    return [trace.x for trace in fig.data if trace.name == "with sinks"]


@pytest.mark.parametrize("read_at, kept", [(None, [1, 3]), ((1, 2), [1]), ((1,), []), ((2,), [])])
def test_what_a_criterion_reads_is_drawn_without_the_sinks_and_dotted_with_them(read_at, kept):
    """Nothing is dotted where no sink was read, or nothing else."""
    made, lens = fake("contributions"), fake("logit_lens")
    view = View(**SUNK, read_at=read_at)
    at = list(range(4) if read_at is None else read_at)
    cosine = np.mean([made[name] for name in verdict.COSINES], axis=0)
    for fig, z in ((figures.cosine_map(made, view), cosine), (figures.lens_map(lens, view), lens["kl"])):
        np.testing.assert_allclose(strip_of(fig), z[:, kept or at].mean(1), rtol=1e-5)
        dotted = strip_with(fig)
        assert len(dotted) == bool(kept)
        for curve in dotted:
            np.testing.assert_allclose(curve, z[:, at].mean(1), rtol=1e-5)
    counted = figures.cosine_map(made, replace(view, count_sinks=True))
    assert strip_with(counted) == []
    np.testing.assert_allclose(strip_of(counted), cosine[:, at].mean(1), rtol=1e-5)


def test_the_erasures_strip_leaves_the_sinks_out_and_a_sum_stays_whole():
    erased = replace(fake("residual_erasure"), answer_start=2)
    fig = figures.token_map(erased, View(**SUNK), "effect", left_out=ResidualErasure.left_out)
    np.testing.assert_allclose(strip_of(fig), erased["effect"][:, 3], rtol=1e-6)
    assert fig.layout.xaxis2.title.text == "maximum without<br>token 1 and sinks"
    given = fake("integrated_gradients")
    fig = figures.token_map(given, View(**SUNK), "attribution")
    np.testing.assert_allclose(strip_of(fig), np.abs(given["attribution"]).sum(1), rtol=1e-5)


def test_means_without_some_tokens_are_those_of_the_others():
    for probe in ("contributions", "logit_lens"):
        result = fake(probe)
        found = aggregate.without(result, {0, 2})
        for name in ("layer_cos", "resid_norm") if probe == "contributions" else ("kl", "settle_depth"):
            np.testing.assert_allclose(found[name], result[name][..., [1, 3]].mean(-1), rtol=1e-5)
        name = "layer_cos" if probe == "contributions" else "kl"
        np.testing.assert_allclose(
            aggregate.without(result, {2}, False)[name], result[name][:, [1, 3]].mean(1), rtol=1e-5
        )
        np.testing.assert_allclose(aggregate.without(result, {0, 1, 2, 3})[name], result[name].mean(1), rtol=1e-5)
        np.testing.assert_allclose(aggregate.without(result, (), False)[name], result[name][:, 1:].mean(1), rtol=1e-5)


def maps_of_two() -> measured.Maps:
    """Of a model of 3 layers named like markup and one of 7; the last of A's taps beats no control."""
    error = np.full((4, 8), 0.6)
    error[:, 0], error[0] = 0.01, 0.02
    error[[1, 2, 3], [2, 5, 7]] = 0.2, 0.3, 0.55
    error[1, 7] = 4.0
    told = {"a": {"name": "<b>small</b>"}, "b": {"name": "large"}}
    control, mean = np.full((4, 8), 0.7), np.full(8, 0.58)
    return measured.Maps(error, 1 - error, control, 1 - control, mean, 1 - mean, 90, 9, told)


def test_maps_between_two_models_mark_each_rows_best_match():
    found = maps_of_two()
    fig = figures.map_between(found)
    traces = {trace.name: trace for trace in fig.data}
    assert np.array_equal(traces["z"].z, found.error) and (traces["z"].zmin, traces["z"].zmax) == (0.2, 1.0)
    assert list(zip(traces["best"].y, traces["best"].x)) == [(1, 2), (2, 5), (3, 7)]
    assert list(traces["best"].marker.symbol) == ["circle", "circle", "circle-open"]
    assert [(s.x0, s.y0) for s in fig.layout.shapes if s.name == "tap 0"] == [(0.5, 0), (0, 0.5)] * 2
    assert fig.layout.xaxis.tickangle == fig.layout.yaxis.tickangle == 0
    assert fig.layout.xaxis.title.text.endswith("large") and "<b>" not in fig.layout.yaxis.title.text
    assert "≥ 1" in traces["z"].colorbar.ticktext, "an error of 4 lies beyond the colours"
    cell = told(fig)[1, 2]
    assert "error 0.2, R² 0.8" in cell and "shuffled: error 0.7" in cell and "mean only: error 0.58" in cell
    by_r2 = {trace.name: trace for trace in figures.map_between(found, "r2").data}
    assert np.array_equal(by_r2["z"].z, found.r2) and list(by_r2["best"].x) == [2, 5, 7]
    control = {trace.name: trace for trace in figures.map_between(found, control=True).data}
    assert np.array_equal(control["z"].z, found.error_shuffled) and "best" not in control
    assert (control["z"].zmin, control["z"].zmax) == (0.2, 1.0), "as the maps themselves"


def test_a_map_of_deep_models_keeps_its_height_and_few_labels():
    shape = (81, 97)
    error, tall = np.full(shape, 0.5), np.full(97, 0.9)
    told = {"a": {"name": "a"}, "b": {"name": "b"}}
    found = measured.Maps(error, error, error, error, tall, tall, 90, 9, told)
    fig = figures.map_between(found)
    assert fig.layout.height == figures.map_height(found) < 740
    assert len(fig.layout.yaxis.tickvals) <= 41 and len(fig.layout.xaxis.tickvals) <= 25
    assert fig.data[0].text is None and "%{z:.3g}" in fig.data[0].hovertemplate


def test_best_matches_stand_on_relative_depth_beside_their_controls():
    found = maps_of_two()
    by_error, by_r2 = figures.best_matches(found).data
    assert np.allclose(by_error.x, [1 / 3, 2 / 3, 1]) and np.allclose(by_error.y, [2 / 7, 5 / 7, 1])
    assert np.allclose(by_r2.y, by_error.y)
    best, shuffled, mean = figures.best_errors(found).data
    assert np.allclose(best.y, [0.2, 0.3, 0.55]) and np.allclose(shuffled.y, 0.7) and np.allclose(mean.y, 0.58)


@pytest.mark.parametrize("most", [4.9, 12.0])
def test_a_curve_of_added_losses_says_where_it_is_cut_off(most):
    fig = figures.added_curves({"least": np.array([0.0, 0.5, most])}, "length", 300)
    cut_off = most > 5
    assert (fig.layout.yaxis.range is not None) == cut_off == ("cut off at 5" in fig.layout.yaxis.title.text)


def test_the_largest_distance_of_two_predictions_is_called_what_it_is():
    skip = figures.skip_map(fake("layer_skip"), View()).layout.xaxis2
    assert skip.ticktext == ("0", "√2") and skip.title.text == "output change,<br>L2, at most √2"
    erased = figures.token_map(fake("residual_erasure"), View(), "effect")
    assert erased.data[0].colorbar.ticktext == ("0", "0.5", "1", "√2")
    assert erased.layout.xaxis2.title.text == "maximum,<br>L2, at most √2"
    assert all("√2 = 1.41" in p.reading for p in (LayerSkip.pictures[0], ResidualErasure.pictures[0]))


def test_damage_has_colours_of_its_own():
    def scale(fig):
        return [colour for _, colour in fig.data[0].colorscale]

    damage = scale(figures.output_by_token(fake("layer_skip"), View()))
    assert damage[0] == colours.DAMAGE[0] and damage[-1] == colours.DAMAGE[-1]
    assert scale(figures.token_map(fake("residual_erasure"), View(), "effect")) == damage
    assert scale(figures.skip_map(fake("layer_skip"), View()))[-1] == damage[-1]
    for other in ("contributions", "lens"):
        assert not set(scale(draw(other, fake(PROBE[other])))) & set(damage)


def test_curves_take_the_colour_of_what_they_are_about():
    fig = figures.layer_curves(
        {"attn_cos": np.zeros(3), "mlp_cos": np.ones(3), "layer_cos": np.full(3, np.nan)},
        "t",
        "cosine",
        depth_lines=LINES,
    )
    assert [t.line.color for t in fig.data] == [figures.ATTENTION, figures.MLP, figures.BOTH]
    slopes = figures.slope_curves(results()["numerics"])
    assert [t.line.color for t in slopes.data] == [figures.ATTENTION, figures.MLP]
    profile = figures.token_profile(fake("contributions", tokens=HOSTILE), "layer_cos", 0)
    assert len(profile.data) == 2 and "<img" not in profile.to_json()
    assert [t.type for t in figures.output_bars(fake("layer_skip"), View()).data] == ["bar", "scatter"]


def test_bars_beyond_the_limit_have_the_colour_of_a_failure():
    fig = figures.limit_bars(np.array([0.5, 1.0, 1.5]), 1.0, "unit", name="n", limit_name="l")
    assert list(fig.data[0].marker.color) == [figures.BOTH, figures.BOTH, "#B2182B"]


def test_a_spread_is_drawn_from_its_own_quantiles():
    low, median, high = np.zeros(3), np.ones(3), np.full(3, 5.0)
    fig = figures.spread_curve(np.full(3, 2.0), np.stack([low, median, high]), "unit", others="all 9 others")
    found = {t.name: t.y[0] for t in fig.data}
    assert found == {"lower end": 0, "all 9 others": 5, "median": 1, "this prompt": 2}
    assert [t.meta for t in fig.data][1] == "upper end", "what is pointed at is one number, and no range"
    assert "; upper end, smallest 5 at layer 0" in figures.describe_curves(fig, "It")


@pytest.mark.parametrize(
    "kind, place", [("drop", "first layer %{y}, last layer %{x}: left out"), ("swap", "layers %{y} and %{x} exchanged")]
)
def test_a_stretch_of_a_deep_model_is_named_by_its_ends(kind, place):
    cells = figures.surgery_map(surgery_curves(80), kind, View()).data[0]
    assert cells.text is None and cells.hovertemplate.startswith(f"{place}<br>loss ")


def test_slopes_are_drawn_within_their_limit():
    found = results()["numerics"]
    limit = found.provenance["limits"]["slope"]
    lines = [s.y0 for s in figures.slope_curves(found).layout.shapes if s.name == "limit"]
    assert lines == [-limit, limit]


def test_a_strip_leaves_the_sinks_out_and_says_so():
    result, kept = fake("contributions"), [1, 3]
    for first_token, title in ((True, "mean, no sinks"), (False, "mean, no first<br>and no sinks")):
        fig = figures.contribution_norms(result, View(**SUNK), first_token=first_token)
        np.testing.assert_allclose(strip_of(fig), result["layer_ratio"][:, kept].mean(1), rtol=1e-6)
        assert fig.layout.xaxis2.title.text == title
    counted = figures.contribution_norms(result, View(sinks=(0, 2), count_sinks=True))
    np.testing.assert_allclose(strip_of(counted), result["layer_ratio"].mean(1), rtol=1e-6)
    every = figures.contribution_norms(result, View(sinks=(0, 1, 2, 3), count_sinks=False))
    np.testing.assert_allclose(strip_of(every), result["layer_ratio"].mean(1), rtol=1e-6)


def test_a_caption_says_what_its_strip_does_with_the_sinks():
    maps = {"norms": find("contributions").pictures[0], "lens": LogitLens.pictures[0]}
    assert pictures.beside(maps["norms"], View(**SUNK)) == " · beside: without sinks (◆)"
    assert pictures.beside(maps["lens"], View(**SUNK)) == " · beside: without sinks (◆), dotted: with them"
    assert pictures.beside(maps["lens"], View(sinks=(1,), count_sinks=True)) == " · beside: sinks (◆) counted"
    assert pictures.beside(maps["norms"], View(count_sinks=False)) == ""
    assert pictures.beside(find("integrated_gradients").pictures[0], View(**SUNK)) == ""
    assert pictures.beside(LayerSkip.pictures[0], View(**SUNK)) == ""


def test_replacement_is_drawn_as_what_it_adds_to_the_loss():
    told = {"model": {"name": "small"}}
    found = measured.Replacement(np.array([2.2, 3.0]), np.array([2.0, 2.5]), 2.0, 2.0, np.zeros(2), 90, 9, told)
    fig = figures.replacement_bars(found)
    held, fitted = fig.data
    assert np.allclose(held.y, [10, 50]) and np.allclose(fitted.y, [0, 25])
    assert [s.y0 for s in fig.layout.shapes if s.name == "useful from here"] == [10]
    assert "3 instead of 2 nats" in held.text[1]
