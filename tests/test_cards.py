"""Depth cards: every number is that of results computed one by one, made once and taken up again; page, Markdown and
JSON say the same; nothing of a stranger runs; the shipped ones are what the program writes."""

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
from small_models import opened_models, save_random
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
QUESTIONS = [f"{'1 + ' * level}{i} = " for level in (1, 2) for i in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_random(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "sums.jsonl"
    lines = [{"id": str(i), "text": text, "answer": "7", "level": str(i // 6)} for i, text in enumerate(QUESTIONS)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture(scope="module")
def out(model, prompts, tmp_path_factory):
    """A card of a small model, made by the command."""
    out = tmp_path_factory.mktemp("card") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ED_CACHE", str(out.parent / "cache"))
        assert made(model, prompts, out) == 0
    return out


@pytest.fixture
def example():
    """The card of the smaller bundled model."""
    return card.read(next(file for file in card.shipped() if file.stem == "ed-demo-8"))


def made(model, prompts, out, *more: str) -> int:
    words = ["--model", str(model), "--set", str(prompts), "--precisions", "bf16", "--out", str(out)]
    return main(["card", *words, *more])


@pytest.fixture(scope="module")
def alone(model):
    """Aggregates of the same prompts, each run by itself through the engine."""
    spec = ModelRef.parse(str(model))
    opened = opened_models().get(spec)

    def of(probe, n: int):
        results = [compute.run(opened, probe.request(spec, Prompt(text, "7"))) for text in QUESTIONS[:n]]
        return results, aggregate(probe, [r.summary for r in results])

    return of


@pytest.mark.process
def test_the_depths_are_those_of_the_prompts_run_one_by_one(out, alone):
    found = card.read(out / card.FILE)
    _, added = alone(Contributions(), 12)
    _, lens = alone(LogitLens(), 12)
    for name, rule in RULES.items():
        depth, _ = rule.layers(rule.curve(added) if name == "cosine" else lens[name][:-1])
        row = found.depth(name, mean=False)
        ratio = None if depth is None else pytest.approx((depth + 1) / found.model.layers)
        assert (row.depth, row.ratio) == (depth, ratio)
    for of in ("kl", "overlap"):
        mean = found.depth(of, mean=True)
        assert mean.depth == pytest.approx(mean_depth.of_curve(of, lens[of]).depth, rel=1e-5)
        assert mean.low <= mean.depth <= mean.high and mean.ratio == pytest.approx(
            mean.depth / found.model.layers, rel=1e-5
        )
    np.testing.assert_allclose(found.curves["kl"]["model"].values, lens["kl"], rtol=1e-4, atol=1e-6)
    assert [one.id for one in found.claims] == [claim.id for claim in CLAIMS] and found.over == "12 prompts"
    assert any("in bf16 against fp32" in note for note in found.notes)


@pytest.mark.process
def test_the_cuts_are_the_cheapest_stretches(out, alone):
    found = card.read(out / card.FILE)
    for one, n in zip(found.cuts, dict.fromkeys((1, max(1, round(found.model.layers / 4)))), strict=True):
        _, lost = alone(Prune(n=n), 12)
        start = int(np.argmin(lost["kl"]))
        assert (one.layers, one.start) == (n, start)
        assert one.kl.value == pytest.approx(lost["kl"][start], rel=1e-4)
        assert one.loss.value == pytest.approx(lost["nll"][start] - lost["nll_whole"], abs=1e-5)
        assert one.kept.value == pytest.approx(lost["top1_kept"][start], rel=1e-5)


@pytest.mark.process
def test_what_was_measured_is_not_measured_again(out, model, prompts, monkeypatch):
    never = Mock(side_effect=AssertionError("it is there already"))
    monkeypatch.setattr(items, "compute", never)
    monkeypatch.setattr(replacement, "by_prompt", never)
    before = {file: (out / file).read_bytes() for file in (card.FILE, card.HTML, card.MARKDOWN)}
    assert made(model, prompts, out) == 0
    assert {file: (out / file).read_bytes() for file in before} == before


@pytest.mark.process
def test_prompts_without_answers_and_levels_make_a_card_too(model, own_cache, tmp_path):
    """Most claims do not apply to them; the rules, the cuts and the curves do."""
    (tmp_path / "bare.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in QUESTIONS[:8]))
    assert made(model, tmp_path / "bare.jsonl", tmp_path / "out") == 0
    found = card.read(tmp_path / "out" / card.FILE)
    verdicts = {one.id: one.verdict for one in found.claims}
    assert verdicts["no-harder-deeper"] == "does not apply" and len(found.rules) == 3 and len(found.cuts) == 1
    assert {rule for rule, drawn in found.curves.items() if drawn} == {"cosine", "kl", "overlap", "loss"}


def test_the_page_asks_nobody_and_says_what_the_document_says(example):
    text = page.html(example).decode()
    found = Page(text)
    assert not [name for name, _ in found.tags if name in ("script", "link", "iframe", "object", "img")]
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
    evil = {
        "model": example.model.but(name=EVIL),
        "set": example.set.but(prompts=prompts),
        "said": (EVIL, *example.said[1:]),
    }
    example = example.but(**evil, commands=(EVIL, *example.commands[1:]), notes=(EVIL, *example.notes[1:]))
    text = page.html(example).decode() + page.fragment(example)
    assert EVIL not in text and text.count("&lt;script&gt;") >= 8


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda example: "{", "damaged, or not a depth card"),
        (lambda example: json.dumps({k: v for k, v in example.items() if k != "cuts"}), "damaged, or not a depth card"),
        (lambda example: json.dumps(example | {"said": ["It is deep."]}), "damaged, or not a depth card"),  # edited
        (
            lambda example: json.dumps(example | {"version": 99}, indent=1),
            "of version 99, and this program reads version",
        ),
        (lambda example: " " * (card.MOST_BYTES + 1), "at most 3 MiB are read"),
    ],
)
def test_a_file_that_is_no_card_is_refused(example, tmp_path, damage, why):
    file = tmp_path / "x.json"
    file.write_text(damage(json.loads(card.to_json(example))))
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
def test_the_command_refuses_in_one_sentence(model, prompts, tmp_path, capsys, more, why):
    assert made(model, prompts, tmp_path / "out", *more) == 2
    assert why in capsys.readouterr().err and not (tmp_path / "out" / card.FILE).exists()


def test_a_drawing_holds_every_value_within_its_frame():
    curve = card.Curve(values=(0.0, 2.0, 4.0), low=(-1.0, 1.0, 3.0), high=(1.0, 3.0, None))
    svg = page.drawing({"model": curve}, "layer", [1])
    (line,) = re.findall(r'<polyline points="([^"]*)"', svg)
    at = [tuple(map(float, point.split(","))) for point in line.split()]
    inner = page.HEIGHT - page.TOP - page.BOTTOM
    assert at[0][0] == page.LEFT and at[-1] == (page.WIDTH - page.RIGHT, page.TOP)
    assert at[1][1] == pytest.approx(page.TOP + inner * (4 - 2) / 5, abs=0.06)
    (mark,) = re.findall(r'class="mark" x1="([\d.]+)"', svg)
    assert float(mark) == pytest.approx(at[1][0], abs=0.06)
    assert re.findall(r'text-anchor="end">([^<]*)<', svg) == ["−1", "0", "1", "2", "3", "4"]


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
        shutil.copy(next(file for file in card.shipped() if file.stem == "ed-demo-8"), folder / card.FILE)

    monkeypatch.setattr(runs, "begin", begin)
    test = fresh("pages/model/model.py", model="ed-demo-8", precision="fp32").run()
    assert not test.exception
    test.button(key="run.cards").click().run()
    (of, place) = begun[0]
    wanted = runs.Card(ModelRef.parse("ed-demo-8"), "sum_mod10")
    assert place == wanted.out and isinstance(of, making.Asked) and of.prompts == "sum_mod10"
    asked = making.Asked("ed-demo-8", "sum_mod10")
    assert asked.place == wanted.out, "the command without --out makes it where the page looks"
    assert wanted.asked().command == asked.command
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
