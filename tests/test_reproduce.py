"""`reproduce`: the protocols are the papers', verdicts say what the figures say, local models and files are enough."""

from __future__ import annotations

import json
from unittest.mock import Mock

import numpy as np
import pytest

from ed_core.cli import main
from ed_core.depth.published import Published, published
from ed_core.studies import difficulty, points, reproduce, study, tables
from ed_core.studies.items import open_folder

MODELS = [study.ModelEntry(source="ed-demo-8")]
BEGINS = ("--models", "ed-demo-8", "--precision", "float32")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small local files with the hub's columns."""
    here = tmp_path_factory.mktemp("sets")
    gsm = [{"question": f"What is {i} + {i}?", "answer": f"{i} + {i} = {2 * i}\n#### {2 * i}"} for i in range(12)]
    aime = [{"Problem": f"Find {i}." * (1 + 200 * (i == 1)), "Solution": f"It is {i}."} for i in range(7)]
    endings = [{"ctx": f"He has {i} cats", "endings": ["run", ", all grey"], "label": str(i % 2)} for i in range(6)]
    hops = [{"questions": [f"{i}?"], "answer": "Ann", "orig_triples": [[1, 2, 3]] * (2 + i % 3)} for i in range(18)]
    rows = {"gsm8k": gsm, "aime24": aime, "hellaswag": endings, "mquake": hops}
    for name, of_set in rows.items():
        (here / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_set), encoding="utf-8")
    return here


def ran(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["reproduce", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_hu2025_is_ten_prompts_of_two_sets_and_five_short_ones_of_the_third(files):
    paper = reproduce.find("hu2025")
    sets = reproduce.chosen(paper, [], "ed-demo-8")
    assert {name: entry.hub for name, entry in sets.items()} == {n: n for n in ("hellaswag", "gsm8k", "aime24")}
    (made,) = paper.parts(MODELS, sets, None).values()
    assert {s.name: s.limit for s in made.sets} == {"hellaswag": 10, "gsm8k": 10, "aime24": 5}
    assert {s.name: s.max_tokens for s in made.sets} == {"hellaswag": None, "gsm8k": None, "aime24": 400}
    assert all(s.seed is None and not s.levels for s in made.sets), "the first prompts, in order"
    assert [(p.name, p.parameters) for p in made.probes] == [("contributions", {}), ("logit_lens", {})]
    assert study.parse(study.write(made)) == made
    (fewer,) = paper.parts(MODELS, sets, 3).values()
    assert {s.limit for s in fewer.sets} == {3}
    (local,) = reproduce.chosen(paper, [f"gsm8k={files / 'gsm8k.jsonl'}"], "m").values()
    assert (local.file, local.format, local.hub) == (str(files / "gsm8k.jsonl"), "gsm8k", "")


def test_csordas2025_is_future_effects_with_split_points_at_the_answers():
    paper = reproduce.find("csordas2025")
    made = paper.parts(MODELS, reproduce.chosen(paper, [], "ed-demo-8"), None)
    assert list(made) == ["csordas2025-gsm8k", "csordas2025-mquake", "csordas2025-math"]
    gsm, hops, math = made.values()
    assert gsm.sets[0].limit == 20 and gsm.probes[1].limit == 10 and gsm.probes[1].parameters["mode"] == "future"
    for one, at, levels in ((hops, "answer", ("2", "3", "4")), (math, "within_answer", ("1", "2", "3", "4", "5"))):
        assert (one.sets[0].per_level, one.sets[0].seed, one.sets[0].levels) == (20, 42, levels)
        assert (one.probes[0].split_points, one.probes[0].parameters["mode"]) == (at, "future")
    assert all(study.parse(study.write(one)) == one for one in made.values())


def test_a_set_that_cannot_be_had_says_what_to_give_before_anything_is_computed(capsys, tmp_path, files, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset_builder", Mock(side_effect=ConnectionError("no network")))
    given = ["--sets", f"gsm8k={files / 'gsm8k.jsonl'}", "--sets", "hellaswag"]
    code, _, err = ran(capsys, "hu2025", "--models", "ed-demo-8", *given, "--out", tmp_path / "out")
    assert code == 2 and "hellaswag" in err and "or give a local copy" in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "measured, low, high, there, told",
    [
        (20.0, None, None, 20, "the same layer"),
        (20.0, 18.0, 21.0, 18, "within 2 layers, inside the range"),
        (20.0, 18.0, 21.0, 21, "within 1 layer, inside the range"),
        (20.0, 19.5, 21.0, 19, "differs by 1 layer, outside the range"),
        (20.0, None, None, 22, "differs by 2 layers, no range to judge it by"),
        (20.0, 18.0, 21.0, None, "no published entry"),
        (None, None, None, 20, "not defined"),
    ],
)
def test_a_verdict_is_what_the_figures_say(measured, low, high, there, told):
    assert reproduce.judged(measured, low, high, there) == told


@pytest.mark.parametrize(
    "slope, low, high, told",
    [
        (0.1, -0.2, 0.24, "as published"),
        (0.1, 0.05, 0.24, "as published"),
        (0.1, -0.2, 0.26, "undecided"),
        (0.9, 0.5, 1.5, "differs: the line rises with the level"),
        (-0.9, -1.5, -0.5, "differs: the line falls with the level"),
        (0.1, np.nan, np.nan, "undecided: no range"),
        (np.nan, np.nan, np.nan, "not defined"),
    ],
)
def test_no_movement_is_said_only_where_the_range_holds_nothing_else(slope, low, high, told):
    trend = difficulty.Trend(3.0, 3.0, slope, low, high, 0)
    assert reproduce.moved(trend, 5).startswith(told), "four steps of a quarter layer are one layer"


@pytest.mark.process
def test_measured_stands_beside_published_and_a_second_run_computes_nothing(capsys, tmp_path, files, monkeypatch):
    """A published entry is made up for the bundled model, so that every verdict is met on a model that is here."""
    given = [f"--sets={name}={files / name}.jsonl" for name in ("gsm8k", "aime24", "hellaswag")]
    out = tmp_path / "out"
    command = ["hu2025", *BEGINS, *given, "--out", out]
    code, said, _ = ran(capsys, *command)
    folder = open_folder(out / "hu2025")
    assert code == 0 and "Precision fp32, while the paper ran in int8" in said
    assert {name: len(one["ids"]) for name, one in folder.sets.items()} == {"aime24": 5, "gsm8k": 10, "hellaswag": 6}
    assert folder.sets["aime24"]["ids"] == ["0", "2", "3", "4", "5"] and folder.sets["aime24"]["left_out"] == 1
    rows = [r for r in tables.stored(folder).to_pylist() if r["variant"] == "paper"]
    entries = list(reproduce.find("hu2025").entries(folder))
    assert len(entries) == len(rows) == 9 and {e.published for e in entries} == {""}
    for e, row in zip(entries, rows):
        assert (e.model, e.set, e.measured) == (row["model"], row["set"], tables.cell(row))
        assert e.verdict == ("not defined" if row["depth"] is None else "no published entry")
        assert f"| {e.set} | {e.quantity} | {e.measured} |" in (out / "report.md").read_text("utf-8")
    defined = next(r for r in rows if r["depth"] is not None and r["low"] is not None)
    apart = Published("x/ed-demo-8", 8, defined["set"], defined["criterion"], int(defined["depth"]) + 7)
    monkeypatch.setattr(points, "published", lambda: (*published(), apart))
    code, said, _ = ran(capsys, *command)
    assert code == 0 and "0 computed, 4 there" in said
    assert "differs by 7 layers, outside the range" in said and "1 differs" in said


@pytest.mark.process
def test_csordas_runs_part_by_part_on_local_files(capsys, tmp_path, files):
    given = [f"--sets={name}={files / name}.jsonl" for name in ("gsm8k", "mquake")]
    code, said, _ = ran(capsys, "csordas2025", *BEGINS, "--limit", "5", *given, "--out", tmp_path)
    assert code == 0 and "Sets of the paper that are not run: math." in said
    told = (tmp_path / "report.md").read_text("utf-8")
    for quantity in ("layer ratio, first half", "future effect on later layers", "depth score by level"):
        assert quantity in said and quantity in told
    found = difficulty.look(open_folder(tmp_path / "csordas2025-mquake"), "ed-demo-8", "mquake", "output")
    assert f"{found.trend.slope:+.2f}".replace("-", "−").lstrip("+") in said.replace("+", "")
