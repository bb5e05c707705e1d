"""Scores against layers: the fits, recomputed another way; what somebody's file may hold; what is drawn and said."""

import csv
import math
import re
import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from shell import refused

from ed_core import figures
from ed_core.commands import main
from ed_core.errors import StudyError
from ed_core.studies import leaderboard
from ed_core.studies.leaderboard import LAYERS, SIZE, WIDTH

DOC = Path(__file__).parents[1] / "docs" / "studies" / "leaderboard.md"
HEAD = "model,layers,params_b,average\n"


def rows() -> list[dict]:
    """The table, read by hand: bf16, with a sourced layer count."""
    with leaderboard.FILE.open(encoding="utf-8", newline="") as handle:
        return [r for r in csv.DictReader(handle) if r["precision"] == "bfloat16" and r["check"] != "unverified"]


def residuals(y: list[float], columns: list[list[float]]) -> list[float]:
    """What is left of y beside a constant and these columns, one after the other made orthogonal (Gram and Schmidt)."""
    basis: list[list[float]] = []
    for column in ([1.0] * len(y), *columns):
        for one in basis:
            share = sum(a * b for a, b in zip(column, one)) / sum(b * b for b in one)
            column = [a - share * b for a, b in zip(column, one)]
        basis.append(column)
    for one in basis:
        share = sum(a * b for a, b in zip(y, one)) / sum(b * b for b in one)
        y = [a - share * b for a, b in zip(y, one)]
    return y


def slope_of_layers(used: list[dict], others: list[list[float]], by: str, score: str = "average"):
    """Slope, clustered standard error and R², by Frisch and Waugh: layers without what goes with the others, against
    the score without it."""
    y = [float(r[score]) for r in used]
    layers = residuals([float(r["layers"]) for r in used], others)
    left = residuals(y, others)
    square = sum(x * x for x in layers)
    slope = sum(x * v for x, v in zip(layers, left)) / square
    off = [v - slope * x for x, v in zip(layers, left)]
    sums: dict[str, float] = defaultdict(float)
    for r, x, e in zip(used, layers, off):
        sums[r[by]] += x * e
    n, k, clusters = len(used), 2 + len(others), len(sums)
    factor = clusters / (clusters - 1) * (n - 1) / (n - k)
    error = math.sqrt(factor * sum(s * s for s in sums.values())) / square
    mean = sum(y) / n
    return slope, error, 1 - sum(e * e for e in off) / sum((v - mean) ** 2 for v in y), clusters


LOG = {SIZE: "params_b", WIDTH: "d_model"}


@pytest.mark.parametrize("score", ["average", "math_lvl5"])
@pytest.mark.parametrize("beside", [(), (SIZE,), (WIDTH,), (SIZE, WIDTH)], ids=str)
def test_the_fits_are_those_of_an_independent_computation(beside, score):
    found, used = leaderboard.fit(leaderboard.entries(), score, beside), rows()
    others = [[math.log(float(r[LOG[name]])) for r in used] for name in beside]
    for by, mine in (("family", found.by_family), ("lineage", found.by_lineage)):
        slope, error, r2, clusters = slope_of_layers(used, others, by, score)
        assert found.slope == pytest.approx(slope, rel=1e-6) and mine.error == pytest.approx(error, rel=1e-6)
        assert found.r2 == pytest.approx(r2, rel=1e-6) and mine.clusters == clusters
        assert mine.high - found.slope == pytest.approx(found.slope - mine.low)
    assert found.n == len(used) == 102


def test_the_published_figures_of_this_table():
    alone, sized, _, both = leaderboard.table(leaderboard.entries())
    told = [(round(f.slope, 2), round(f.by_family.error, 2), f.by_family.clusters) for f in (alone, sized)]
    assert told == [(0.39, 0.04, 39), (0.20, 0.05, 39)]
    assert both.slope == pytest.approx(0.097, abs=5e-4) and both.by_family.error == pytest.approx(0.066, abs=5e-4)
    assert sized.by_family.p < 0.01 and 0.02 < sized.by_lineage.p < 0.05 and sized.by_lineage.clusters == 26
    assert not both.apart and sized.apart
    assert "Interval and bootstrap do not both exclude 0" in both.sentence
    assert "although layers correlate 0.79 with log parameters" in sized.sentence
    assert "this alone says nothing about depth" in alone.sentence
    # the intervals are Student's t with 38 degrees of freedom
    assert (sized.by_family.high - sized.slope) / sized.by_family.error == pytest.approx(2.0244, abs=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "p", "excluded"),
    [
        (0.1, 0.9, 0.01, True),
        (-0.9, -0.1, 0.01, True),
        (-0.1, 0.9, 0.01, False),
        (-0.9, 0.0, 0.01, False),  # it ends there
        (0.0, 0.9, 0.01, False),
        (-0.9, -0.1, 0.06, False),
        (0.1, 0.9, 0.2, False),
    ],
)
def test_a_slope_of_0_is_excluded_by_interval_and_bootstrap_together(low, high, p, excluded):
    assert leaderboard.Clustered("family", 12, 0.2, low, high, p).excludes_zero is excluded


@pytest.mark.parametrize("beside", [(SIZE,), (WIDTH,), (SIZE, WIDTH)], ids=str)
def test_the_sentence_says_of_both_clusterings_whether_they_exclude_0(beside):
    seen = set()
    for score in leaderboard.SCORES:
        found = leaderboard.fit(leaderboard.entries(), score, beside)
        family, lineage = found.by_family.excludes_zero, found.by_lineage.excludes_zero
        seen.add((family, lineage))
        how = {
            (True, True): "The slope differs from 0 with errors clustered by family",
            (False, False): "Interval and bootstrap do not both exclude 0, clustered by family",
            (True, False): "A slope of 0 is excluded with errors clustered by family",
            (False, True): "A slope of 0 is excluded with errors clustered by lineage",
        }[family, lineage]
        assert how in found.sentence and (", not by " in found.sentence) == (family != lineage)
    assert (True, False) in seen or beside == (SIZE, WIDTH)


@pytest.mark.parametrize(
    "p, said", [(0.0501, "= 0.0501"), (0.0496, "= 0.0496"), (0.051, "= 0.051"), (0.0002, "< 0.001")]
)
def test_a_p_is_told_from_its_limit(p, said):
    assert leaderboard._p(p) == said


def made(draw, slope: float, families: int = 24) -> tuple[leaderboard.Entry, ...]:
    """Models whose score has a known slope of layers, the rest a family's own and noise."""
    found = []
    for family in range(families):
        shift, size = draw.normal(), draw.uniform(-1, 3)
        for member in range(4):
            log = size + draw.normal(0, 1)
            layers = int(np.clip(round(20 + 8 * log + draw.normal(0, 6)), 2, 100))
            score = slope * layers + 2 * log + 3 * shift + draw.normal()
            scores = dict.fromkeys(leaderboard.SCORES, score)
            more = (math.exp(log), 512.0, leaderboard.FITTED, f"f{family}", f"l{family // 2}", "direct", "here", scores)
            found.append(leaderboard.Entry(f"m{family}-{member}", layers, *more))
    return tuple(found)


def test_without_an_effect_a_slope_is_seldom_found_and_with_one_it_is(monkeypatch):
    """In simulated families: false alarms about as often as announced, a clear slope nearly always."""
    monkeypatch.setattr(leaderboard, "DRAWS", 199)
    draw = np.random.default_rng(5)
    false = sum(leaderboard.fit(made(draw, 0.0), beside=(SIZE,)).by_family.excludes_zero for _ in range(150))
    assert false <= 15, "at most one in ten"
    assert sum(leaderboard.fit(made(draw, 0.6), beside=(SIZE,)).apart for _ in range(20)) >= 18
    covers = 0
    for _ in range(150):
        one = leaderboard.fit(made(draw, 0.3), beside=(SIZE,)).by_family
        covers += one.low <= 0.3 <= one.high
    assert covers >= 132


def test_what_has_no_source_enters_no_fit():
    left = [entry for entry in leaderboard.entries() if entry.why_left_out]
    assert len(leaderboard.entries()) == 136 and len(left) == 34
    assert {entry.model for entry in left if entry.check == leaderboard.UNVERIFIED} == {"ibm/PowerLM-3b"}
    assert all(entry.layers_source for entry in leaderboard.entries())
    assert leaderboard.left_out(leaderboard.entries()) == {
        "its scores are listed in float16; fits take those in bfloat16": 33,
        "its layer count stands nowhere": 1,
    }


@pytest.mark.parametrize(
    "text, said",
    [
        ("model,layers,params_b\na,1,1\n", "has no column average"),
        ("", "has no column model"),
        (HEAD, "holds no model"),
        (HEAD + "a,12.5,1,3\n", "row 2: layers is '12.5'; expected a whole number"),
        (HEAD + "a,0,1,3\n", "row 2: layers is '0'; expected a number from 1 to"),
        (HEAD + "a,nan,1,3\n", "row 2: layers is 'nan'"),
        (HEAD + "a,12,-1,3\n", "row 2: params_b is '-1'"),
        (HEAD + "a,12,1,high\n", "row 2: average is 'high'"),
        (HEAD + ",12,1,3\n", "row 2: no model is named"),
        (HEAD + "\x1b[2Ja,12,1,3\n", "row 2: no model is named"),
        (HEAD + "a,12,1,3\nA,12,1,3\n", "row 3: 'A' stands there twice"),
        (HEAD + "\na,12,1,3\n\nb,x,1,3\n", "row 5: layers is 'x'"),
        (HEAD + "google/gemma-2-2b,26,2.6,10\n", "in the leaderboard already"),
        (HEAD + 'a,12,1,"3\n', "cannot be read as CSV"),
        (HEAD + "a,12\n", "row 2: params_b is ''"),
    ],
)
def test_a_file_of_ones_own_that_is_wrong_is_one_sentence(tmp_path, capsys, text, said):
    file = tmp_path / "own.csv"
    file.write_text(text)
    with pytest.raises(StudyError, match=re.escape(said)):
        leaderboard.also(file)
    refused(capsys, ["leaderboard", "--also", file], said)


def test_a_model_of_ones_own_counts_once(tmp_path, capsys):
    files = [tmp_path / f"{i}.csv" for i in range(3)]
    for file, model in zip(files, ("me/deep", "Me/Deep", "me/flat")):
        file.write_text(HEAD + f"{model},60,1.5,12\n")
    for again in (files[0], files[1]):
        refused(
            capsys, ["leaderboard", "--also", files[0], "--also", again], "was given with --also already; give each"
        )
    assert [entry.model for entry in leaderboard.own([files[0], files[2]])] == ["me/deep", "me/flat"]


def test_own_models_join_the_fits_and_are_told_of(tmp_path, capsys):
    file = tmp_path / "own.csv"
    file.write_text("\ufeff" + HEAD + "me/deep,60,1.5,12\nme/flat,12,1.5,12\n", encoding="utf-8")
    assert main(["leaderboard", "--also", str(file)]) == 0
    said = capsys.readouterr().out
    assert "104 models in 41 families" in said and "138 models, 2 of them your own" in said
    every = (*leaderboard.entries(), *leaderboard.also(file))
    one = leaderboard.fit(every, "average", (SIZE,))
    deep, flat = leaderboard.also(file)
    expected = one.constant + one.slope * 60 + one.coefficients[SIZE] * math.log(1.5)
    assert f"me/deep: 12.00, {abs(12 - expected):.1f} points below" in said and "me/flat: 12.00" in said
    assert deep.family == "me/deep" and flat.check == leaderboard.OWN
    refused(capsys, ["leaderboard", "--score", "elo"], "expected one of average, ifeval")


def test_too_few_or_equal_models_are_refused():
    entries = leaderboard.entries()
    with pytest.raises(StudyError, match="too few for 2 coefficients"):
        leaderboard.fit(entries[:5])
    same = tuple(e for e in made(np.random.default_rng(0), 0.0))
    with pytest.raises(StudyError, match="do not differ in layers and width enough"):
        leaderboard.fit(same, beside=(WIDTH,))
    with pytest.raises(StudyError, match="no score 'elo'"):
        leaderboard.fit(entries, "elo")


def test_the_figure_holds_every_model_and_both_lines():
    alone, sized = leaderboard.fit(leaderboard.entries()), leaderboard.fit(leaderboard.entries(), "average", (SIZE,))
    points = [
        dict(model=e.model, layers=e.layers, params=e.params, score=e.scores["average"], family=e.family)
        | dict(source=e.layers_source, left_out=e.why_left_out, own=e.model == "mine", depth="")
        for e in leaderboard.entries()
    ]
    points[0] |= dict(own=True, model="<b>mine</b>", depth="mean depth 70 %")
    fig = figures.score_against_layers(points, "average, %", alone.line, sized.line, "size")
    traces = {t.name: t for t in fig.data}
    assert len(traces["in the fits"].x) == 101 and len(traces["left out"].x) == 34 and len(traces["your own"].x) == 1
    assert len(traces["measured here"].x) == 1 and "&lt;b&gt;mine" in traces["your own"].text[0]
    assert "layers read in " in traces["in the fits"].text[0]
    for name, one in (("layers alone", alone), ("size held fixed", sized)):
        line = traces[name]
        assert np.diff(line.y)[0] / np.diff(line.x)[0] == pytest.approx(one.slope)
    used = leaderboard.usable(leaderboard.entries(), "average")
    mean = np.mean([e.layers for e in used]), np.mean([e.scores["average"] for e in used])
    for one in (alone, sized):
        assert one.line[0] + one.line[1] * mean[0] == pytest.approx(mean[1]), "through the mean of all"
    assert LAYERS not in sized.coefficients


def test_the_example_of_the_documentation_says_what_it_says_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = DOC.read_text(encoding="utf-8")
    own, command = re.search(r"```csv\n(.*?)```.*?```bash\n(.*?)\n```", text, re.DOTALL).groups()
    Path("own.csv").write_text(own)
    assert main(shlex.split(command)[3:]) == 0
    said = capsys.readouterr().out.strip().splitlines()
    assert [line.strip() for line in text.splitlines() if line.startswith("    ")] == said
