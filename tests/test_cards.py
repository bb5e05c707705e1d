"""Depth cards: every number is that of results computed one by one; nothing of a stranger runs."""

from __future__ import annotations

import html
import json
import re
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from charts import fresh
from small_models import opened_models
from test_report import Page

from ed_core.cards import card, making, page
from ed_core.claims import CLAIMS
from ed_core.cli import main
from ed_core.depth import mean_depth
from ed_core.depth.rules import RULES
from ed_core.errors import CardError
from ed_core.files import seal
from ed_core.lenses import replacement
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, LogitLens, Prune
from ed_core.results.aggregate import aggregate
from ed_core.studies import items
from ed_core.types import Prompt
from ed_core.work import compute
from ed_ui import runs

EVIL = "<script>alert(1)</script>"
EXAMPLE = next(file for file in card.shipped() if file.stem == "ed-demo-8")
QUESTIONS = [f"{'1 + ' * level}{i} = " for level in (1, 2) for i in range(6)]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "sums.jsonl"
    lines = [{"id": str(i), "text": text, "answer": "7", "level": str(i // 6)} for i, text in enumerate(QUESTIONS)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture(scope="module")
def out(small_folder, prompts, tmp_path_factory):
    """A card of a small model, made by the command."""
    out = tmp_path_factory.mktemp("card") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ED_CACHE", str(out.parent / "cache"))
        assert made(small_folder, prompts, out) == 0
    return out


@pytest.fixture
def example():
    """The card of the smaller bundled model."""
    return card.read(EXAMPLE)


def made(model, prompts, out, *more: str) -> int:
    words = ["--model", str(model), "--set", str(prompts), "--precisions", "bf16", "--out", str(out)]
    return main(["card", *words, *more])


@pytest.mark.process
def test_depths_and_cheapest_cuts_are_those_of_the_prompts_run_one_by_one(out, spec):
    opened = opened_models().get(spec)

    def alone(probe):
        results = [compute.run(opened, probe.request(spec, Prompt(text, "7"))) for text in QUESTIONS]
        return aggregate(probe, [r.summary for r in results])

    found = card.read(out / card.FILE)
    added, lens = alone(Contributions()), alone(LogitLens())
    for name, rule in RULES.items():
        depth, _ = rule.layers(rule.curve(added) if name == "cosine" else lens[name][:-1])
        row = found.depth(name, mean=False)
        ratio = None if depth is None else pytest.approx((depth + 1) / found.model.layers)
        assert (row.depth, row.ratio) == (depth, ratio)
    for of in ("kl", "overlap"):
        mean = found.depth(of, mean=True)
        assert mean.depth == pytest.approx(mean_depth.of_curve(of, lens[of]).depth, rel=1e-5)
        assert mean.low <= mean.depth <= mean.high
        assert mean.ratio == pytest.approx(mean.depth / found.model.layers, rel=1e-5)
    np.testing.assert_allclose(found.curves["kl"]["model"].values, lens["kl"], rtol=1e-4, atol=1e-6)
    assert [one.id for one in found.claims] == [claim.id for claim in CLAIMS] and found.over == "12 prompts"
    assert any("in bf16 against fp32" in note for note in found.notes)

    for one, n in zip(found.cuts, dict.fromkeys((1, max(1, round(found.model.layers / 4)))), strict=True):
        lost = alone(Prune(n=n))
        start = int(np.argmin(lost["kl"]))
        assert (one.layers, one.start) == (n, start)
        assert one.kl.value == pytest.approx(lost["kl"][start], rel=1e-4)
        assert one.loss.value == pytest.approx(lost["nll"][start] - lost["nll_whole"], abs=1e-5)
        assert one.kept.value == pytest.approx(lost["top1_kept"][start], rel=1e-5)


@pytest.mark.process
def test_what_was_measured_is_not_measured_again(out, small_folder, prompts, monkeypatch):
    never = Mock(side_effect=AssertionError("it is there already"))
    monkeypatch.setattr(items, "compute", never)
    monkeypatch.setattr(replacement, "by_prompt", never)
    before = {file: (out / file).read_bytes() for file in (card.FILE, card.HTML, card.MARKDOWN)}
    assert made(small_folder, prompts, out) == 0
    assert {file: (out / file).read_bytes() for file in before} == before


@pytest.mark.process
def test_prompts_without_answers_and_levels_make_a_card_too(small_folder, own_cache, tmp_path):
    """Most claims do not apply to them; the rules, the cuts and the curves do."""
    (tmp_path / "bare.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in QUESTIONS[:8]))
    assert made(small_folder, tmp_path / "bare.jsonl", tmp_path / "out") == 0
    found = card.read(tmp_path / "out" / card.FILE)
    verdicts = {one.id: one.verdict for one in found.claims}
    assert verdicts["no-harder-deeper"] == "does not apply" and len(found.rules) == 3 and len(found.cuts) == 1
    assert {rule for rule, drawn in found.curves.items() if drawn} == {"cosine", "kl", "overlap", "loss"}


def test_the_page_asks_nobody_and_says_what_the_document_says(example):
    text = page.html(example).decode()
    found = Page(text)
    assert not {name for name, _ in found.tags} & {"script", "link", "iframe", "object", "img"}
    assert "default-src 'none'" in text and not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text)
    for said in (page.headline(example), *(one.title for one in example.claims)):
        assert said in html.unescape(text)
    lines = page.markdown(example).split("---\n")
    data = yaml.safe_load(lines[1])
    ratios = {m["type"]: m["value"] for r in data["model-index"][0]["results"] for m in r["metrics"]}
    names = {True: "mean_depth_ratio_", False: "effective_depth_ratio_"}
    assert ratios == {f"{names[one.mean]}{one.of}": one.ratio for one in example.depths if one.ratio is not None}
    assert page.headline(example) in lines[2] and example.commands[0] in lines[2]


def test_words_of_a_stranger_are_only_words(example):
    prompts = (example.set.prompts[0].but(text=EVIL), *example.set.prompts[1:])
    evil = {name: (EVIL, *getattr(example, name)[1:]) for name in ("said", "commands", "notes")}
    evil |= {"model": example.model.but(name=EVIL), "set": example.set.but(prompts=prompts)}
    example = example.but(**evil)
    text = page.html(example).decode() + page.fragment(example)
    assert EVIL not in text and text.count("&lt;script&gt;") >= 8


def test_a_file_that_is_no_card_is_refused(tmp_path):
    file, fields = tmp_path / "x.json", json.loads(EXAMPLE.read_text())
    without, edited = {k: v for k, v in fields.items() if k != "cuts"}, fields | {"said": ["It is deep."]}
    damaged = dict.fromkeys(("{", json.dumps(without), json.dumps(edited)), "damaged, or not a depth card")
    later = {json.dumps(fields | {"version": 99}): "of version 99, and this program reads version"}
    for text, why in (damaged | later | {" " * (card.MOST_BYTES + 1): "at most 3 MiB are read"}).items():
        file.write_text(text)
        with pytest.raises(CardError, match=why):
            card.read(file)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--precisions", "int3"), "precision is 'int3'"),
        (("--prompts", "0"), "--prompts"),
        (("--prompts", "7"), "gives 7 prompts, and an interval needs 8"),
        (("--set", "word_problems"), "did you mean 'word_problem'"),
    ],
)
def test_the_command_refuses_in_one_sentence(small_folder, prompts, tmp_path, capsys, more, why):
    assert made(small_folder, prompts, tmp_path / "out", *more) == 2
    assert why in capsys.readouterr().err and not (tmp_path / "out" / card.FILE).exists()


def test_a_drawing_holds_every_value_within_its_frame():
    curve = card.Curve(values=(0.0, 2.0, 4.0), low=(-1.0, 1.0, 3.0), high=(1.0, 3.0, None))
    svg = page.drawing({"model": curve}, "layer", [1])
    (line,) = re.findall(r'<polyline points="([^"]*)"', svg)
    at = [tuple(map(float, point.split(","))) for point in line.split()]
    assert at[0][0] == page.LEFT and at[-1] == (page.WIDTH - page.RIGHT, page.TOP)
    assert at[1][1] == pytest.approx(page.TOP + (page.HEIGHT - page.TOP - page.BOTTOM) * (4 - 2) / 5, abs=0.06)
    (mark,) = re.findall(r'class="mark" x1="([\d.]+)"', svg)
    assert float(mark) == pytest.approx(at[1][0], abs=0.06)


@pytest.mark.parametrize("file", card.shipped(), ids=lambda file: file.stem)
def test_a_shipped_card_is_what_the_program_writes(file):
    example = card.read(file)
    assert card.to_json(example) == file.read_bytes()
    assert [found.id for found in example.claims] in ([], [claim.id for claim in CLAIMS])


def test_run_makes_the_card_that_the_page_then_shows(laboratory, monkeypatch):
    begun = []

    def begin(folder, title, files, work, asked, out):
        begun.append((asked, folder))
        folder.mkdir(parents=True)
        shutil.copy(EXAMPLE, folder / card.FILE)

    monkeypatch.setattr(runs, "begin", begin)
    test = fresh("pages/model/model.py", model="ed-demo-8", precision="fp32").run()
    assert not test.exception
    test.button(key="run.cards").click().run()
    (of, place) = begun[0]
    wanted, asked = runs.Card(ModelRef.parse("ed-demo-8"), "sum_mod10"), making.Asked("ed-demo-8", "sum_mod10")
    assert place == wanted.out and of.prompts == "sum_mod10" and wanted.asked().command == asked.command
    assert asked.place == wanted.out, "the command without --out makes it where the page looks"
    assert test.selectbox(key="cards.card").value == runs.card_name(place / card.FILE), "the one just made"


@pytest.mark.parametrize(
    "part, change, why",
    [
        ("model", lambda model: model | {"layers": 0}, "model.layers"),
        ("curves", lambda curves: {"kl": curves["kl"]}, "no curves of cosine, loss, overlap"),
    ],
)
def test_a_card_that_cannot_be_drawn_is_named_and_the_others_are_shown(laboratory, example, part, change, why):
    place = card.folder() / "strange"
    place.mkdir(parents=True)
    fields = example.fields()
    (place / card.FILE).write_bytes(seal(card.CARD, fields | {part: change(fields[part])}))
    test = fresh("pages/model/models.py").run()
    assert not test.exception and [why in one.value for one in test.error] == [True]
    assert "ed-demo-8" in set(test.dataframe[0].value["model"])
