"""Figures show the numbers as they are, at every stage of filling, and nothing a token holds gets out of its text."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ed_core import figures
from ed_core.depth.sample import READS, Sample, positions
from ed_core.depth.spelling import following, spelled
from ed_core.depth.verdict import verdict
from ed_core.figures import View
from ed_core.figures.panel import MOST_TEXTS
from ed_core.lenses import measured
from ed_core.probes import find
from ed_core.results.aggregate import summarize
from ed_core.sweeps.recorder import Recorder
from ed_core.types import Encoding, ModelSpec, ProbeResult, Prompt

MARKUP = ("<img src=x onerror=alert(1)>", "%{customdata}", "<b>bold</b>", "line\nbreak", "\x07\x1b", "&lt;", "$x$")
HOSTILE = (*MARKUP, "שלום", "\u202eevil", "'\"", "")
MAPS = {  # probe, map, measure
    "contributions": ("contributions", figures.contribution_norms, "layer_ratio"),
    "cosines": ("contributions", figures.cosine_map, "layer_cos"),
    "lens": ("logit_lens", figures.lens_map, "top_probs"),
    "skip": ("layer_skip", figures.skip_map, "effect"),
    "output": ("layer_skip", lambda result, view: figures.token_map(result, view, "output_pos"), "output_pos"),
}
LINES = {"cosine": 1, "kl": 2, "overlap": 2}


def fake(
    probe: str, n_layers: int = 4, tokens: tuple[str, ...] = ("a", " b", "a", "c"), filled: float = 1.0, **parameters
) -> ProbeResult:
    """A result of random numbers within each measure's range, filled from layer 0 up to a share of the layers."""
    rng, kind, n = np.random.default_rng(0), find(probe), len(tokens)
    encoding = Encoding(tuple(range(n)), tokens, 1 if n > 1 else None)
    record = Recorder(kind.make(parameters).request(ModelSpec("fake"), Prompt("x")), kind.measures, encoding, n_layers)
    sizes = dict.fromkeys(("layer", "skipped", "start", "other", "length"), n_layers)
    sizes |= {"depth": n_layers + 1, "stop": n_layers + 1, "pos": n, "rank": 5, "boundary": 2, "step": 3}
    for spec in kind.measures:
        shape = tuple(sizes[d] for d in spec.dims)
        if spec.aggregate_only or spec.name.endswith("_by_boundary") or spec.name == "boundaries":
            continue
        whole = spec.name in ("rank", "top_ids")
        record.allocate(spec.name, **sizes)
        rows = round(filled * shape[0]) if shape else None
        values = rng.integers(1, 9, shape) if whole else rng.uniform(spec.low or 0.0, spec.high or 1.0, shape) / 2
        record.write(spec.name, slice(0, rows) if shape else (), values[:rows] if shape else values)
    record.token_text = dict(enumerate(HOSTILE))
    result = record.result(complete=filled == 1.0)
    return summarize(result) if result.complete else result


def draw(name: str, result: ProbeResult, **view):
    return MAPS[name][1](
        result, View(**{"depth_lines": LINES, "selected": 0, "answer_start": result.answer_start, **view})
    )


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("window", [None, (1, 2)])
def test_z_is_the_measure_itself(name, window):
    result = fake(MAPS[name][0])
    if name == "skip":
        result["noise_floor"][:] = 0.0
    values = result[MAPS[name][2]]
    heatmap = draw(name, result, window=window).data[0]
    assert heatmap.name == "z"
    np.testing.assert_array_equal(heatmap.z, values[..., 0] if name == "lens" else values)


@pytest.mark.parametrize("name", ["contributions", "cosines", "lens"])
@pytest.mark.parametrize("n_layers,n_tokens", [(1, 1), (1, 2), (2, 1)])
def test_the_smallest_results(name, n_layers, n_tokens):
    fig = draw(name, fake(MAPS[name][0], n_layers, ("x",) * n_tokens), depth_lines={"cosine": 0, "kl": None})
    assert json.loads(fig.to_json())["layout"]["xaxis"]["tickvals"] == list(range(n_tokens))


@pytest.mark.parametrize("name", MAPS)
def test_tokens_stay_text(name):
    fig = draw(name, fake(MAPS[name][0], tokens=HOSTILE), window=(0, len(HOSTILE) - 1), width_px=1600)
    spec = fig.to_json()
    for bad in ("<img", "<b>bold", "\\u202e", "\\u0007", "line\\nbreak", "$x$"):
        assert bad not in spec, bad
    templates = {trace.hovertemplate for trace in fig.data if getattr(trace, "hovertemplate", None)}
    assert all("<img" not in template and "%{" in template for template in templates)


@pytest.mark.parametrize(
    "token, expected",
    [
        (" the", "·the"),
        ("\n", "⏎"),
        ("<br>", "&lt;br&gt;"),
        ("\u202e", "‹202E›"),
        ("", "∅"),
        ("\ud800", "‹D800›"),
        ('"', "&#34;"),
        ("x" * 99, "x" * 23 + "…"),
        ("שלום", "\u2068שלום\u2069"),
    ],
)
def test_visible(token, expected):
    assert figures.visible(token) == expected


def told(fig) -> dict[tuple[int, int], str]:
    """What the cells of a map say when they are pointed at, by row and column."""
    heatmap = fig.data[0]
    assert "%{text}" in heatmap.hovertemplate and heatmap.hoverinfo is None
    return {(y, x): text for y, row in enumerate(heatmap.text) for x, text in enumerate(row) if text}


@pytest.mark.parametrize("window", [None, (100, 147)])
@pytest.mark.parametrize("name", ["contributions", "lens", "skip"])
def test_large_panels_stay_small_in_json(name, window):
    fig = draw(name, fake(MAPS[name][0], 64, tuple(f" token{i}" for i in range(400))), window=window)
    assert len(fig.to_json()) < 1_000_000
    assert fig.data[0].text is None or len(told(fig)) <= MOST_TEXTS
    assert len(fig.layout.xaxis.ticktext or fig.layout.xaxis.tickvals) <= 64


def test_sinks_carry_a_badge_and_are_outside_the_colour_range():
    result = fake("contributions")
    result["layer_ratio"][:] = 0.5
    result["layer_ratio"][:, 2] = 7.0
    plain, marked = (figures.contribution_norms(result, View(sinks=at, count_sinks=True)) for at in ((), (2,)))
    assert (plain.data[0].zmax, marked.data[0].zmax) == (10.0, 1.0)
    assert [text.startswith("◆") for text in marked.layout.xaxis.ticktext] == [False, False, True, False]
    assert {x for (_, x), text in told(marked).items() if "◆ sink" in text} == {2}
    strips = [next(t for t in fig.data if t.name == "mean").x for fig in (plain, marked)]
    np.testing.assert_array_equal(*strips)
    kl = fake("logit_lens")
    kl["kl"][:, 0] = 19.0
    assert [figures.lens_map(kl, View(sinks=at), "kl").data[0].zmax for at in ((), (0,))] == [20.0, 5.0]


def test_what_is_beyond_the_colours_says_so():
    result = fake("contributions")
    result["layer_ratio"][:] = 0.5
    assert not any("beyond" in text for text in told(figures.contribution_norms(result, View())).values())
    result["layer_ratio"][0, 0], result["layer_ratio"][1, 0] = 50.0, 1e-5
    fig = figures.contribution_norms(result, View())
    assert next(t for t in fig.data if t.name == "scale").marker.colorbar.ticktext == ("≤ 0.2", "0.5", "≥ 1")
    text = told(fig)
    assert "≥ 1: beyond" in text[0, 0] and "≤ 0.2: beyond" in text[1, 0] and "beyond" not in text[2, 2]


def test_skip_map_marks_what_is_beyond_its_colours_or_zero_by_construction_and_leaves_noise_empty():
    result = fake("layer_skip")
    result["noise_floor"][:] = 0.0
    result["effect"][:] = np.triu(np.full((4, 4), 0.5))
    result["effect"][0, 3], result["effect"][1, 2] = 70.0, 0.004
    fig = figures.skip_map(result, View())
    traces, text = {t.name: t for t in fig.data}, told(fig)
    np.testing.assert_array_equal(traces["z"].z, result["effect"])
    low, high = (10.0**end for end in (traces["scale"].marker.cmin, traces["scale"].marker.cmax))
    assert high == pytest.approx(100) and low == pytest.approx(1), "the 95 % quantile, and two decades at most"
    assert "≤ 1: beyond the colours" in text[1, 2] and "beyond" not in text[0, 3]
    assert "70 relative change" in text[0, 3] and "0 by construction" in text[3, 0] and "noise floor" in text[0, 3]
    future = told(figures.skip_map(fake("layer_skip", mode="future"), View()))
    assert "by construction" not in text[1, 1] and "by construction" in future[1, 1]
    result["effect"][0, 3], result["noise_floor"][2] = 0.5, 0.5
    fig = figures.skip_map(result, View())
    assert np.argwhere(np.isnan(fig.data[0].z)).tolist() == [[0, 2], [1, 2], [2, 2]]
    text = told(fig)
    assert "noise floor 0.5, so left empty" in text[0, 2] and "left empty" not in text[0, 3] + text[3, 2]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("filled", [0.0, 0.5, 1.0])
def test_describe_is_one_sentence_without_nan(name, filled):
    result = fake(MAPS[name][0], filled=filled)
    sentence = figures.describe(result, MAPS[name][2])
    assert "nan" not in sentence.lower() and sentence.endswith(".") and "\n" not in sentence
    assert filled == 0 or "largest" in sentence


def test_the_lens_hover_lists_the_tokens_of_its_own_cell():
    result = replace(fake("logit_lens"), token_text={i: f"w{i}" for i in range(20)})
    for (depth, token), text in told(figures.lens_map(result, View())).items():
        found = [line.split("  ")[-1] for line in text.split("<br>")[1:]]
        assert found == [f"w{i}" for i in result["top_ids"][depth, token]], (depth, token)


@pytest.mark.parametrize("of,first", [("all", True), ("all", False), ("answer", True), (1, True)])
def test_the_strips_hold_the_curves_that_the_criteria_read(of, first):
    contributions, lens = (replace(fake(name), answer_start=3) for name in READS)
    norms = figures.contribution_norms(contributions, View(), first_token=first)
    np.testing.assert_allclose(strip_of(norms), contributions["layer_ratio"][:, (not first) :].mean(1), rtol=1e-6)
    found = verdict(Sample.of(contributions, lens, first_token=first, of=of))
    view = View(read_at=positions(lens, of), read_for="here")
    for branch in ("attn_cos", "mlp_cos", "layer_cos"):
        fig = figures.cosine_map(contributions, view, branch, first)
        np.testing.assert_allclose(strip_of(fig), found.rules["cosine"].curve, rtol=1e-6)
    for shade in ("prob", "kl", "entropy"):
        fig = figures.lens_map(lens, view, shade)
        np.testing.assert_allclose(strip_of(fig)[:-1], found.rules["kl"].curve, rtol=1e-6)


def strip_of(fig) -> np.ndarray:
    return next(t for t in fig.data if t.name == "mean").x


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
    assert fig.layout.xaxis.title.text.endswith("large") and "<b>" not in fig.layout.yaxis.title.text
    assert "≥ 1" in traces["z"].colorbar.ticktext, "an error of 4 lies beyond the colours"
    cell = told(fig)[1, 2]
    assert "error 0.2, R² 0.8" in cell and "shuffled: error 0.7" in cell and "mean only: error 0.58" in cell
    by_r2 = {trace.name: trace for trace in figures.map_between(found, "r2").data}
    assert np.array_equal(by_r2["z"].z, found.r2) and list(by_r2["best"].x) == [2, 5, 7]
    control = {trace.name: trace for trace in figures.map_between(found, control=True).data}
    assert np.array_equal(control["z"].z, found.error_shuffled) and "best" not in control
    assert (control["z"].zmin, control["z"].zmax) == (0.2, 1.0), "as the maps themselves"


def test_best_matches_stand_on_relative_depth_beside_their_controls():
    found = maps_of_two()
    by_error, by_r2 = figures.best_matches(found).data
    assert np.allclose(by_error.x, [1 / 3, 2 / 3, 1]) and np.allclose(by_error.y, [2 / 7, 5 / 7, 1])
    assert np.allclose(by_r2.y, by_error.y)
    best, shuffled, mean = figures.best_errors(found).data
    assert np.allclose(best.y, [0.2, 0.3, 0.55]) and np.allclose(shuffled.y, 0.7) and np.allclose(mean.y, 0.58)


def test_replacement_is_drawn_as_what_it_adds_to_the_loss():
    told = {"model": {"name": "small"}}
    found = measured.Replacement(np.array([2.2, 3.0]), np.array([2.0, 2.5]), 2.0, 2.0, np.zeros(2), 90, 9, told)
    fig = figures.replacement_bars(found)
    held, fitted = fig.data
    assert np.allclose(held.y, [10, 50]) and np.allclose(fitted.y, [0, 25]) and "3 instead of 2 nats" in held.text[1]


def test_tokens_that_are_bytes_of_a_character_show_it_with_their_part():
    assert spelled(("a", " <0xC3>", "<0xA4>", "r")) == ["a", " ä₁", "ä₂", "r"]
    assert spelled((" <0xE6>", "<0x9D>", "<0xB1>", "<0xE4><0xBA>", "<0xAC>")) == [" 東₁", "東₂", "東₃", "京₁", "京₂"]
    assert spelled(("<0xC3>", "x", "")) == ["<0xC3>", "x", ""], "half a character is shown as it is"
    assert following(("r", "<0xC3>"), "<0xB6>") == "ö₂" and following(("r",), " <0xC3>") == " À…ÿ"
    assert following(("r",), "<0xB6>") == "…" and following(("r",), "st") == "st"
