"""Studies: the file, the sets, the items, and that their tables are what `run` writes for the same prompts."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet
from shell import arrays, refused, wrote

from ed_core import disk
from ed_core.cli import main
from ed_core.depth import rules
from ed_core.errors import JobError, StudyError
from ed_core.models.bundled import MODELS, load_prompts
from ed_core.models.tokens import preview
from ed_core.prompts import read_jsonl
from ed_core.statistics import units
from ed_core.studies import items, plan, report, running, sets, study, tables
from ed_core.studies.items import open_folder, shipped
from ed_core.types import Prompt
from ed_core.work import compute

HEAD = 'name = "mine"\nmodels = ["ed-demo-8"]\nprobes = ["contributions", "logit_lens"]\n'
SET = '[[sets]]\nname = "local"\nfile = "prompts.jsonl"\n'
OWN = SET.replace("prompts", "own")
ONE = HEAD.replace(', "logit_lens"', "") + "chunk = 2\n" + SET
BOTH = ONE.replace("]", ', "ed-demo-16"]', 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with ten prompts of three levels, some of which have sinks on ed-demo-16."""
    here = tmp_path_factory.mktemp("study")
    same = ("answer", "id")
    rows = [{"text": p["text"][-30:], "level": p["difficulty"]} | {k: p[k] for k in same} for p in load_prompts()[:10]]
    written(here, rows, "prompts")
    return here


def written(here, rows: list[dict], name: str = "own") -> None:
    (here / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def ran(here, text: str) -> int:
    """The exit code of `study`, which writes into `out` beside the file."""
    (here / "mine.toml").write_text(text, encoding="utf-8")
    return main(["study", str(here / "mine.toml"), "--out", str(here / "out")])


@pytest.fixture(scope="module")
def done(folder, made_once):
    """A model through three probes, and the same by `run`."""

    def make(here):
        shutil.copy(folder / "prompts.jsonl", here)
        third = ', {name = "layer_skip", mode = "future"}]\nchunk = 4\n'
        assert ran(here, HEAD.replace('"logit_lens"]\n', '"logit_lens"' + third) + SET) == 0
        probes = ("contributions", "logit_lens", "layer_skip")
        prompts = read_jsonl(folder / "prompts.jsonl")
        wrote(here, prompts, *probes, "--no-cache", given=["layer_skip.mode=future"])

    here = made_once("studies", make)
    return here / "out", arrays(here / "r.npz")


def rows(file) -> pd.DataFrame:
    return parquet.read_table(file).to_pandas()


def aggregates(out) -> pd.DataFrame:
    return tables.summary(open_folder(out)).to_pandas()


@pytest.mark.parametrize(
    "text, told",
    [
        ("name =", "is not TOML"),
        (HEAD, "sets is missing"),
        (HEAD + SET + "limt = 3\n", "sets[0] has no key 'limt'; did you mean 'limit'?"),
        (HEAD + SET + 'limit = "3"\n', "sets[0].limit is '3': expected a valid integer"),
        (HEAD + SET + 'bundled = "copy"\n', "exactly one of file, bundled and hub (found file and bundled)"),
        (HEAD + '[[sets]]\nname = "a/b"\nfile = "x.csv"\n', "sets[0].name is 'a/b'"),
        (HEAD.replace('"mine"', '".."') + SET, "name is '..': expected letters"),
        (HEAD + SET + SET, "'local' is there twice"),
        (HEAD.replace("logit_lens", "logit_lenz") + SET, "probes[1]: there is no probe 'logit_lenz'; did you mean"),
        (HEAD.replace('"logit_lens"', '{name = "logit_lens", k = 0}') + SET, "probes[1]: logit_lens.k is 0"),
        (
            HEAD.replace('"logit_lens"', '{name = "layer_skip", mode = "future", boundaries = "answers"}') + SET,
            "or auto",
        ),
        (HEAD + SET + 'format = "gsm8k"\ncolumns = {text = "q"}\n', "format or columns, not both"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_what_is_expected(text, told):
    with pytest.raises(StudyError) as error:
        study.parse(text, "mine.toml")
    assert "mine.toml" in str(error.value) and told in str(error.value)


def test_what_is_written_is_read_as_the_same_study():
    text = (
        'name = "mine"\nnote = "a \\"quoted\\" line\\nand another: é"\nseed = 3\n'
        'models = ["ed-demo-8", {source = "a/b", precision = "4bit", control = "shuffled", seed = 2, label = "\xa0"}]\n'
        'probes = ["contributions", {name = "layer_skip", limit = 2, boundaries = [8, 16], direct = true}]\n'
        '[[sets]]\nname = "s"\nfile = "a.csv"\nlevels = [1, "two"]\ncolumns = {text = "q", level = "hard"}\nseed = 0\n'
        '[[sets]]\nname = "t"\nhub = "gsm8k"\nlimit = 5\n'
    )
    found = study.parse(text)
    assert study.parse(study.write(found)) == found
    assert found.models[1].seed == 2 and found.probes[1].make().boundaries == (8, 16)
    assert found.sets[0].levels == ("1", "two") and found.sets[0].seed == 0 and found.chunk == 8


def test_the_papers_formats_are_written_as_the_papers_write_them():
    gsm = {"question": "How many?", "answer": "2 + 3 = <<2+3=5>>5\nSo 5.\n#### 5"}
    assert sets.gsm8k(gsm) == (
        "Given the following problem, reason and give a final answer to the problem.\nProblem: How many?\n"
        'Your response should end with "The final answer is [answer]" where [answer] is the response to the problem.\n',
        "\n2 + 3 = <<2+3=5>>5\nSo 5.\nThe final answer is 5",
        "",
    )
    endings = ["x", ", then", "goes on."]
    assert sets.hellaswag({"ctx": "A man", "endings": endings, "label": "2"})[:2] == ("A man", " goes on.")
    assert sets.hellaswag({"ctx": "A man", "endings": endings, "label": "1"})[:2] == ("A man", ", then")
    text, answer, _ = sets.aime24({"Problem": "Find n.", "Solution": "It is 7."})
    assert 'end with "\\boxed{[answer]}" where' in text and answer == "\nIt is 7."
    row = {"problem": "x?", "solution": "y.", "level": "Level 4"}
    assert sets.math(row) == ("Problem: x?\nAnswer:", " y.", "4")
    hops = {"questions": ["Who?", "Other?"], "answer": "Ann", "orig_triples": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}
    assert sets.mquake(hops) == ("Question: Who?\nAnswer:", " Ann", "3")
    made = list(sets.arithmetic("direct_multiplication"))
    assert len(made) == 500 and made == list(sets.arithmetic("direct_multiplication"))
    for text, answer, digits in made:
        a, b = text.removeprefix("Give the answer directly: ").removesuffix(" =").split(" * ")
        assert len(a) == len(b) == int(digits) and answer == f" {int(a) * int(b)}"
    ones = {text.split()[place] for text, _, digits in made if digits == "1" for place in (-4, -2)}
    assert ones == set("123456789"), "from the least number of so many digits to the largest"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    here = tmp_path_factory.mktemp("sets")
    table = pd.DataFrame({"q": ["one?", "two?", "three?"], "a": ["1", "2", "3"], "hard": [1, 2, 2]})
    table.to_csv(here / "t.csv", index=False)
    table.to_csv(here / "T.CSV", index=False)
    table.to_parquet(here / "t.parquet")
    table.to_json(here / "t.jsonl", orient="records", lines=True)
    written(here, [{"question": "q", "answer": "r\n#### 5"}], "gsm")
    (here / "bad.parquet").write_bytes(b"PAR1 and nothing")
    written(here, [{"text": ""}], "bad")
    (here / "t.txt").write_text("text")
    (here / "empty.csv").touch()
    return here


def load(here, body: str) -> sets.PromptSet:
    entry = study.parse(HEAD + '[[sets]]\nname = "s"\n' + body).sets[0]
    return sets.load(entry, here, "ed-demo-8")


@pytest.mark.parametrize("name", ["t.csv", "T.CSV", "t.parquet", "t.jsonl"])
def test_any_table_with_its_columns_named_is_a_set(files, name):
    found = load(files, f'file = "{name}"\ncolumns = {{text = "q", answer = "a", level = "hard"}}\ntemplate = "chat"')
    expected = [("one?", "1", "1"), ("two?", "2", "2"), ("three?", "3", "2")]
    assert [(e.prompt.text, e.prompt.answer, e.level) for e in found.examples] == expected
    assert {e.prompt.template for e in found.examples} == {"chat"} and found.levels == ("1", "2")


def test_a_cell_of_a_csv_file_is_its_text(tmp_path):
    cells = ["12", "007", "3.10", " 12", "None", "NA", "true", "1e3", '"a, ""b"""', '"c\nd"']
    rows = "".join(f"{cell},{i}\n" for i, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text(f"text,n,\n\n{rows}x\ny,\n")
    found = load(tmp_path, 'file = "t.csv"\ncolumns = {text = "text", answer = "text", level = "n"}').examples
    texts = [*cells[:-2], 'a, "b"', "c\nd", "x", "y"]
    assert [e.prompt.text for e in found] == [e.prompt.answer for e in found] == texts
    assert [e.level for e in found] == [*map(str, range(len(cells))), "", ""]


@pytest.mark.parametrize(
    "body, told",
    [
        ('file = "t.csv"', "has no column 'text'; it has q, a, hard. Say which is which"),
        ('file = "t.csv"\nformat = "gsm8k"', "has no column 'question'; it has q, a, hard."),
        ('file = "no.csv"', "there is no file no.csv"),
        ('file = "empty.csv"', "empty.csv cannot be read as csv (0 rows"),
        ('file = "t.txt"', "t.txt is a .txt; expected .jsonl, .json, .csv, .parquet"),
        ('file = "bad.parquet"\ncolumns = {text = "q"}', "bad.parquet cannot be read as parquet"),
        ('file = "bad.jsonl"', "line 1: The prompt is empty"),
        ('bundled = "copy"\nlevels = [3, 4]', "has no level '4'; expected one of 3, 6, 9, 12"),
        ('bundled = "copy"\nmax_tokens = 4', "no prompt of at most 4 tokens"),
        ('hub = "gsm9k"', "did you mean 'gsm8k'?"),
    ],
)
def test_a_set_that_cannot_be_had_is_refused_in_one_sentence(files, body, told):
    with pytest.raises(StudyError) as error:
        load(files, body)
    assert told in str(error.value) and "The set s" in str(error.value)


def test_levels_limits_and_lengths_choose_the_prompts(files):
    whole = load(files, 'bundled = "sum_mod10"')
    assert len(whole.examples) == 200 and whole.levels == ("2", "3", "4", "5", "6") and whole.examples[0].pair == "0"
    some = load(files, 'bundled = "sum_mod10"\nlevels = [6, 2]\nper_level = 3')
    assert [e.prompt.id for e in some.examples] == ["6-0", "6-1", "6-2", "2-0", "2-1", "2-2"]
    assert [e.form for e in some.examples] == ["usual", "bare", "easy examples"] * 2
    drawn = load(files, 'bundled = "sum_mod10"\nlimit = 20\nseed = 1')
    assert len(drawn.examples) == 20 and len(drawn.levels) > 2, "not the first level alone"
    shuffled = load(files, 'bundled = "sum_mod10"\nlevels = [6, 2]\nper_level = 3\nseed = 1')
    assert [e.level for e in shuffled.examples] == ["6"] * 3 + ["2"] * 3 and shuffled != some
    short = load(files, 'bundled = "sum_mod10"\nmax_tokens = 64')
    assert short.left_out > 0 and short.left_out + len(short.examples) == 200


def test_prompts_say_which_form_they_were_written_in(files, tmp_path):
    written(tmp_path, [{"text": "a", "form": "x", "template": "chat"}, {"text": "b"}])
    own = load(tmp_path, 'file = "own.jsonl"').examples
    assert [(e.form, e.prompt.template) for e in own] == [("x", "chat"), ("", "raw")]
    of_column = load(files, 'file = "t.csv"\ncolumns = {text = "q", form = "hard"}')
    assert [e.form for e in of_column.examples] == ["1", "2", "2"]
    assert {e.form for e in load(files, 'bundled = "direct_addition"').examples} == {"direct_addition"}
    gsm = load(files, 'file = "gsm.jsonl"\nformat = "gsm8k"')
    assert gsm.examples[0].form == "", "only the frame is shared, the problems are not"
    assert gsm.examples[0].prompt.answer == "\nr\nThe final answer is 5"
    written(tmp_path, [{"text": text} for text in "abcdefabc"] + [{"text": "a", "answer": "1"}])
    forms, three = [e.form for e in load(tmp_path, 'file = "own.jsonl"').examples], ["text 1", "text 2", "text 3"]
    assert forms == [*three, "", "", "", *three, ""] and units(10, forms).words == "10 prompts of 7 templates"


def test_what_is_null_is_absent(tmp_path):
    nothing = dict.fromkeys(("answer", "id", "template", "form", "level", "pair"))
    written(tmp_path, [{"text": "a"}, {"text": "a"} | nothing])
    number = {"text": ["a", "b"], "answer": [np.nan, 1.0], "level": [np.nan, 2.0]}  # as a table of numbers has it
    parquet.write_table(pyarrow.table(number), tmp_path / "own.parquet")
    named = 'file = "own.parquet"\ncolumns = {text = "text", answer = "answer", level = "level"}\n'
    assert [(e.prompt.answer, e.level) for e in load(tmp_path, named).examples] == [("", ""), ("1.0", "2.0")]
    for body in ("", 'columns = {text = "text", answer = "answer", level = "level", pair = "pair", form = "form"}\n'):
        first, second = load(tmp_path, 'file = "own.jsonl"\ntemplate = "chat"\n' + body).examples
        assert (second.level, second.pair, replace(second.prompt, id="0")) == ("", "", first.prompt)


def test_forms_take_turns_within_each_level_however_the_set_is_cut(tmp_path):
    each = itertools.product("12", "abc", "012")
    rows = [{"text": level + form + i, "level": level, "pair": form + i, "form": form} for level, form, i in each]
    written(tmp_path, rows)

    def texts(body: str) -> list[str]:
        return [e.prompt.text for e in load(tmp_path, 'file = "own.jsonl"\n' + body).examples]

    first = ["1a0", "1b0", "1c0", "1a1", "1b1", "1c1", "1a2", "1b2", "1c2"]
    assert texts("")[:9] == first and texts("limit = 4") == first[:4]
    assert texts("per_level = 4") == first[:4] + [f"2{text[1:]}" for text in first[:4]]
    for seed in range(5):
        drawn = load(tmp_path, f'file = "own.jsonl"\nper_level = 6\nseed = {seed}').examples
        for level in "12":
            assert sorted(e.form for e in drawn if e.level == level) == list("aabbcc")
        assert [e.pair for e in drawn if e.level == "1"] == [e.pair for e in drawn if e.level == "2"]
    assert texts("per_level = 6\nseed = 1") != texts("per_level = 6\nseed = 2")
    written(tmp_path, sorted(rows, key=lambda row: row["pair"]))  # levels mixed: each stays at its places
    assert [text[0] for text in texts("")] == ["1", "2"] * 9
    assert [text for text in texts("") if text[0] == "1"] == first


def test_the_aggregates_are_those_that_run_writes(done):
    out, alone = done
    summary = aggregates(out)
    whole = summary[summary.set == "local"]
    names = {tuple(key.split(".")) for key in alone if key.count(".") == 1}
    names = {(p, m) for p, m in names if p in ("contributions", "logit_lens", "layer_skip")}
    assert names == set(zip(whole.probe, whole.measure)) and len(names) >= 20
    for (probe, measure), found in whole.groupby(["probe", "measure"]):
        values = found.sort_values(["skipped", "layer"]).value.to_numpy()
        np.testing.assert_array_equal(values, alone[f"{probe}.{measure}"].ravel().astype(float))
    assert set(whole.prompts) == {10} and set(whole.tokens) == {int(alone["n_tokens"])}


def test_no_prompts_text_is_anywhere_in_a_studys_folder(done, folder):
    texts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    words = {word for row in texts for word in (row["text"], row["answer"]) if len(word) > 8}
    files = [file for file in done[0].rglob("*") if file.is_file()]
    assert words and len(files) == 6 and not (done[0] / "items").exists()
    for file in files:
        held = file.read_bytes().decode("utf-8", "ignore")
        if file.suffix == ".parquet":
            held += str(parquet.read_schema(file).metadata)
        assert not [word for word in words if word in held or json.dumps(word)[1:-1] in held], file.name
    opened = open_folder(done[0])
    assert {"model", "libraries", "identities", "precision"} <= opened.certificate(next(opened.item_keys())).keys()


def test_the_verdicts_are_those_that_run_writes(done):
    out, alone = done
    verdict = rows(out / "verdict.parquet").set_index(["set", "criterion", "variant"]).sort_index()
    for name, variants in ((rule.name, rule.variants) for rule in rules.RULES.values()):
        extra = ("turn",) if name == "cosine" else ("mean",)
        assert set(verdict.loc["local", name].index) == {*variants, *extra}
        paper = verdict.loc["local", name, "paper"]
        for column, key in {"depth": "", "ratio": "_ratio", "low": "_low", "high": "_high"}.items():
            assert np.float32(paper[column]) == pytest.approx(alone[f"effective_depth.{name}{key}"], nan_ok=True)
        for variant in variants[1:]:
            expected = alone[f"effective_depth.{name}_{variant}"]
            assert verdict.loc["local", name, variant].depth == pytest.approx(expected, nan_ok=True)
    for name in ("kl", "overlap"):
        mean = verdict.loc["local", name, "mean"]
        for column, key in {"depth": "", "low": "_low", "high": "_high"}.items():
            assert np.float32(mean[column]) == pytest.approx(alone[f"effective_depth.{name}_mean{key}"])
        assert mean.ratio == mean.depth / mean.n_layers and mean.over == "10 prompts"
    turned = verdict.loc["local", "cosine", "turn"]
    assert turned.depth == pytest.approx(float(alone["effective_depth.turn"]), nan_ok=True)
    assert np.float32(turned.p) == alone["effective_depth.turn_p"]
    few = verdict.loc["local/2", "kl", "paper"]
    assert few.prompts == 3 and np.isnan(few.low) and np.isnan(few.undefined)


def test_a_level_is_the_study_of_its_prompts_alone(done, folder, tmp_path):
    lines = map(json.loads, (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines())
    written(tmp_path, [line for line in lines if line["level"] == 3])
    assert ran(tmp_path, HEAD + OWN) == 0
    alone, whole = aggregates(tmp_path / "out"), aggregates(done[0])
    alone = alone[alone.set == "local"]
    level = whole[(whole.set == "local/3") & (whole.probe != "layer_skip")]
    assert list(level.value) == list(alone.value) and set(level.prompts) == {3}


def planned(text: str, here, out):
    made = plan.make(study.parse(text), here)
    plan.write_plan(made, out)
    return made, out


@pytest.fixture
def small(folder, tmp_path):
    """A study of its own, planned: 10 prompts in chunks of 2 through one probe."""
    shutil.copy(folder / "prompts.jsonl", tmp_path)
    return planned(ONE, tmp_path, tmp_path / "out")


def test_what_is_there_is_not_computed_again(small, folder):
    made, out = small
    whole = running.run(made, out)
    assert whole.counts == {"computed": 5, "there": 0, "failed": 0}
    written = {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")}
    assert running.run(made, out).counts == {"computed": 0, "there": 5, "failed": 0}
    assert written == {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")}
    key = list(open_folder(out).item_keys())[2]
    before = open_folder(out).digest()
    items.path(out, key).unlink()
    assert running.run(made, out).counts == {"computed": 1, "there": 4, "failed": 0}
    assert open_folder(out).digest() == before
    longer = plan.make(study.parse(BOTH), folder)
    assert running.run(longer, out).counts == {"computed": 5, "there": 5, "failed": 0}


def test_a_run_that_dies_while_it_packs_loses_nothing(small, monkeypatch):
    made, out = small
    running.run(made, out)
    before = open_folder(out).digest()
    # in the middle of the file, and between its rename and the items' end
    for of, name in ((items.parquet, "ParquetWriter"), (type(out), "unlink")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(of, name, Mock(side_effect=KeyboardInterrupt))
            items.pack(open_folder(out))
        assert open_folder(out).digest() == before and len(list(open_folder(out).item_keys())) == 5
    assert (out / "sums.parquet").is_file() and (out / "items").exists(), "both are there, and each sum counts once"
    assert open_folder(out).sums("ed-demo-8", "local").index.tolist() == list(range(10))
    items.pack(open_folder(out))
    assert open_folder(out).digest() == before and not (out / "items").exists()
    assert running.run(made, out).counts == {"computed": 0, "there": 5, "failed": 0}


def test_a_study_that_is_refused_changes_nothing_of_what_lies_there(small, tmp_path, capsys):
    made, out = small
    (tmp_path / "mine.toml").write_text(study.write(made.study), encoding="utf-8")
    words = ["study", tmp_path / "mine.toml", "--out"]
    assert main([*map(str, words), str(out)]) == 0
    mine, own = tmp_path / "own", study.write(made.study.model_copy(update={"seed": 7})).encode()
    mine.mkdir()
    (mine / "study.toml").write_bytes(own)
    before = [{file: file.read_bytes() for file in place.rglob("*") if file.is_file()} for place in (out, mine)]
    capsys.readouterr()
    refused(capsys, ["study", tmp_path / "typo.toml", "--out", out], "typo.toml")
    refused(capsys, [*words, mine], f"{mine / 'study.toml'} is another study's file and would be replaced; give --out")
    assert before == [{f: f.read_bytes() for f in place.rglob("*") if f.is_file()} for place in (out, mine)]
    (mine / "study.toml").write_text("# the same, in other words\n" + study.write(made.study), encoding="utf-8")
    assert main([*map(str, words), str(mine)]) == 0
    assert (mine / "study.toml").read_text(encoding="utf-8").startswith("# the same"), "one that says the same stays"


def test_a_model_that_fails_in_the_middle_is_noted_and_the_rest_goes_on(small, tmp_path, monkeypatch, capsys):
    _, out = small
    run, calls = compute.run, []

    def failing(model, request, **more):
        calls.append(model.spec.name)
        if model.spec.name == "ed-demo-8" and calls.count("ed-demo-8") == 5:
            raise JobError("contributions ran out of memory.")
        return run(model, request, **more)

    monkeypatch.setattr(compute, "run", failing)
    assert ran(tmp_path, BOTH) == 1
    told = capsys.readouterr()
    assert "ed-demo-8 failed: contributions ran out of memory." in told.err and "7 computed" in told.out
    assert "- ed-demo-8 failed: contributions ran out of memory." in (out / "report.md").read_text(encoding="utf-8")
    verdict = rows(out / "verdict.parquet")
    assert verdict[verdict.model == "ed-demo-16"].prompts.max() == 10
    monkeypatch.setattr(compute, "run", run)
    assert ran(tmp_path, BOTH) == 0
    assert "3 computed, 7 there" in capsys.readouterr().out and not open_folder(out).failures()


def test_a_model_that_is_not_there_or_cannot_take_a_prompt_is_noted_and_none_at_all_is_refused(
    folder, tmp_path, capsys
):
    shutil.copy(folder / "prompts.jsonl", tmp_path)
    missing = str(tmp_path / "no-model")
    assert ran(tmp_path, HEAD.replace("ed-demo-8", missing) + SET) == 2
    assert "No model of" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert ran(tmp_path, HEAD.replace('"ed-demo-8"', f'"{missing}", "ed-demo-8"') + SET) == 1
    verdict = rows(tmp_path / "out" / "verdict.parquet")
    assert set(verdict.model) == {"ed-demo-8"} and "no-model failed" in capsys.readouterr().err
    written(tmp_path, [{"text": "1 + 1 ="}, {"text": "1 + " * 600 + "1 ="}])
    assert ran(tmp_path, HEAD + OWN) == 1
    assert "Prompt '1': The prompt has" in capsys.readouterr().err, "too long for the model"


def test_damage_and_a_full_disk_are_one_sentence_each_and_lose_nothing(small, monkeypatch):
    made, out = small
    running.run(made, out)
    files = sorted(out.rglob("items/*/*.parquet"))
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StudyError, match="is damaged; delete it and run the study again"):
        tables.verdict(open_folder(out))
    files[0].unlink()
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    for write in (lambda: running.run(made, out), lambda: plan.write_plan(made, out), lambda: report.write(out)):
        with monkeypatch.context() as patch, pytest.raises(StudyError, match="the disk is full"):
            patch.setattr(disk, "write", full)
            patch.setattr(items.parquet, "write_table", full)
            write()
    assert not list(out.rglob("*.unfinished")) and not (out / "items").exists(), "what is computed is packed"
    assert running.run(made, out).counts == {"computed": 1, "there": 4, "failed": 0}


def test_a_folder_without_a_study_and_one_of_a_later_version_are_refused(tmp_path):
    with pytest.raises(StudyError, match="There is no study in"):
        open_folder(tmp_path)
    for text, told in (('{"format": 99}', "is of format 99; expected 1"), ('{"form', "plan.json is damaged")):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(StudyError, match=told):
            open_folder(tmp_path)


def test_a_probe_with_a_limit_takes_the_first_prompts_of_each_level(folder):
    text = HEAD.replace('"logit_lens"', '{name = "layer_skip", limit = 2}') + "chunk = 3\n" + SET
    made = plan.make(study.parse(text), folder)
    taken = [(e.level, i in chunk.takes[1]) for chunk in made.chunks[0] for i, e in enumerate(chunk.examples)]
    assert taken == [(level, of) for level in "234" for of in (True, True, False)] + [("5", True)]
    other = plan.make(study.parse(text.replace("limit = 2", "limit = 3")), folder)
    same = [a.digest == b.digest for a, b in zip(made.chunks[0], other.chunks[0])]
    assert same == [False, False, False, True]


@pytest.mark.parametrize("levels, chunk, ids", [("", 4, "0 1"), ("112", 4, "0 1 2 5"), ("1 ", 5, "0 1 2 3")])
def test_what_no_probe_takes_is_not_in_the_plan(tmp_path, levels, chunk, ids):
    rows = [{"text": f"{i} + 1 ="} | ({"level": levels[i % len(levels)].strip()} if levels else {}) for i in range(12)]
    written(tmp_path, rows)
    limited = HEAD.replace('"contributions", "logit_lens"', '{name = "logit_lens", limit = 2}')
    made = plan.make(study.parse(limited + f"chunk = {chunk}\n" + OWN), tmp_path)
    assert [e.prompt.id for e in made.sets[0].examples] == ids.split()
    assert made.n_items == -(-len(ids.split()) // chunk)


def test_a_twin_is_the_models_that_it_was_drawn_for_and_no_namesakes(folder, tmp_path):
    for name, model in {"x": "ed-demo-8", "y": "ed-demo-16"}.items():
        shutil.copytree(MODELS[model], tmp_path / name / "final")
    entry = f'{{label = "%s", source = "{tmp_path}/%s/final"%s}}'
    entries = [("x", "x", ""), ("y", "y", ""), ("x twin", "x", ', control = "untrained"')]
    listed = ", ".join(entry % each for each in entries)
    _, out = planned(HEAD.replace('"ed-demo-8"', listed) + SET, folder, tmp_path / "out")
    found = open_folder(out)
    assert {model["name"] for model in found.plan["models"]} == {"final"}
    assert {label: tables.twins_of(found, label) for label in found.models} == {"x": ["x twin"], "y": [], "x twin": []}


def test_split_points_of_each_prompt_reach_the_probe_which_is_told_apart_by_its_label(folder, tmp_path):
    skip = '"layer_skip", {name = "layer_skip", label = "future", mode = "future", boundaries = "answer"}'
    made, _ = planned(HEAD.replace('"contributions", "logit_lens"', skip) + SET, folder, tmp_path)
    assert running.run(made, tmp_path).counts["computed"] == 2
    prompt = read_jsonl(folder / "prompts.jsonl")[9]
    start = len(preview(made.models[0].spec, Prompt(prompt.text)))
    given = ["layer_skip.mode=future", f"layer_skip.boundaries={start}"]
    data = wrote(tmp_path, [prompt], "layer_skip", "--no-cache", given=given)
    found = open_folder(tmp_path)
    effect = found.sums("ed-demo-8", "local").probe("future")["effect"][9]
    np.testing.assert_array_equal(effect.astype(np.float32), data["layer_skip.effect.0"])
    assert aggregates(tmp_path).groupby("probe").size().nunique() == 1
    assert {curve.partition(".")[0] for curve in tables.measures(found, "local")} == {"layer_skip", "future"}
    assert tables.figure(found, "future.layer_effect").data


def test_a_prompt_whose_answer_is_too_short_for_split_points_is_left_out_of_that_probe(tmp_path):
    written(tmp_path, [{"text": "1 + 1 =", "answer": " 2"}, {"text": "1 + 1 =", "answer": " 2 + 2 = 4 + 4 = 8"}])
    skip = '"contributions", {name = "layer_skip", mode = "future", boundaries = "within_answer"}'
    made, out = planned(HEAD.replace('"contributions", "logit_lens"', skip) + OWN, tmp_path, tmp_path / "out")
    assert running.run(made, out).counts["computed"] == 1
    found = open_folder(out).sums("ed-demo-8", "local")
    assert [found.probe(name).index.tolist() for name in ("contributions", "layer_skip")] == [[0, 1], [1]]


@pytest.mark.parametrize("out", shipped(), ids=lambda out: out.name)
def test_a_shipped_report_says_what_the_program_says(out):
    there = open_folder(out)
    assert (out / "report.md").read_text(encoding="utf-8") == report.markdown(there, there.digest())
