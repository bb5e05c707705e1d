"""Depth cards: every number is that of results computed one by one, made once and taken up again; page, Markdown and
JSON say the same; nothing of a stranger runs; the shipped ones are what the program writes."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from charts import fresh
from scipy import stats
from small_models import opened_models, save_random
from test_report import Page

from ed_core import settings
from ed_core.cards import card, making, measured, page, words
from ed_core.cards.measured import Measured
from ed_core.claims import CLAIMS, running
from ed_core.commands import main
from ed_core.depth import continuous, sinks
from ed_core.depth.criteria import RULES, by_cosine, by_kl, by_overlap
from ed_core.errors import CardError
from ed_core.figures import images
from ed_core.files import seal
from ed_core.fits import of_model, replacement
from ed_core.probes import Contributions, LogitLens, Prune
from ed_core.results.aggregate import aggregate
from ed_core.sharing import site
from ed_core.sources import sizes
from ed_core.studies import items
from ed_core.studies.items import open_folder
from ed_core.studies.study import ModelEntry, ProbeEntry, SetEntry, Study
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve
from ed_ui import runs, show

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
def told(out):
    return card.read(out / card.FILE)


def made(model, prompts, out, *more: str) -> int:
    words = ["--model", str(model), "--set", str(prompts), "--precisions", "bf16", "--out", str(out)]
    return main(["card", *words, *more])


@pytest.fixture(scope="module")
def alone(model):
    """Aggregates of the same prompts, each run by itself through the engine."""
    spec = resolve(str(model))
    opened = opened_models().get(spec)

    def of(probe, n: int):
        results = [compute.run(opened, probe.request(spec, Prompt(text, "7"))) for text in QUESTIONS[:n]]
        return results, aggregate(probe, [r.summary for r in results])

    return of


def test_the_depths_are_those_of_the_prompts_run_one_by_one(told, alone):
    results, added = alone(Contributions(), 12)
    _, lens = alone(LogitLens(), 12)
    expected = {
        "cosine": by_cosine(RULES["cosine"].curve(added)),
        "kl": by_kl(lens["kl"][:-1]),
        "overlap": by_overlap(lens["overlap"][:-1]),
    }
    assert [row.rule for row in told.depths] == list(expected)
    for rule, criterion in expected.items():
        row = card.depth_of(told, rule)
        assert row.depth == criterion.depth and row.variants["stable"] == criterion.stable
        assert row.ratio == pytest.approx(criterion.ratio, rel=1e-5) and row.prompts == 12
        assert row.twin is not None and row.sentence and isinstance(row.clear, bool)
    for of in ("kl", "overlap"):
        mean = card.mean_depth_of(told, of)
        assert mean.depth == pytest.approx(continuous.of_curve(of, lens[of]).depth, rel=1e-5)
        assert mean.ratio == pytest.approx(mean.depth / told.model.layers, rel=1e-5)
        assert mean.low <= mean.depth <= mean.high and mean.over == "12 prompts" and mean.twin.depth
    turned = continuous.fit(RULES["cosine"].curve(added))
    assert told.turn.p == pytest.approx(turned.p) and "turn" in words.turn(told).lower()
    curve = told.curves["kl"]["model"]
    np.testing.assert_allclose(curve.values, lens["kl"], rtol=1e-4, atol=1e-6)
    assert all(low <= value + 1e-6 for low, value in zip(curve.low, curve.values))
    assert told.sinks.named == sinks.summary([sinks.of_result(r) for r in results[:10]])
    assert told.sinks.named_of == 10


def test_the_cuts_are_the_cheapest_stretches(told, alone):
    for one, n in zip(told.cuts, dict.fromkeys((1, max(1, round(told.model.layers / 4)))), strict=True):
        _, lost = alone(Prune(n=n), 12)
        start = int(np.argmin(lost["kl"]))
        assert (one.layers, one.start) == (n, start)
        assert one.kl.value == pytest.approx(lost["kl"][start], rel=1e-4)
        assert one.loss.value == pytest.approx(lost["nll"][start] - lost["nll_whole"], abs=1e-5)
        assert one.kept.value == pytest.approx(lost["top1_kept"][start], rel=1e-5)
        assert one.kl.low <= one.kl.value <= one.kl.high
        assert one.by_angle.start == int(np.argmin(lost["angular_distance"]))


def test_of_few_layers_a_stretch_is_one_and_is_told_once(out, told, monkeypatch):
    of_claims, whole = Measured(out / making.CLAIMS, told.set.name, 0, None, None, (), ""), Measured._folder
    monkeypatch.setattr(Measured, "_folder", lambda self, name: whole(self, "one" if name == "stretch" else name))
    assert [one.layers for one in of_claims._cuts()] == [1]


def test_under_a_fitted_lens_the_rules_are_those_of_its_prompts(own_cache, tmp_path):
    """On a small model with lenses, from the sums of the lens' study by hand."""
    parts, fits = tmp_path / "lenses", [fit for fit in of_model(resolve("ed-demo-8")) if fit.kind == "affine"]
    entry = SetEntry(name="copy", bundled="copy", limit=9)
    text = Study(
        name="lenses",
        models=(ModelEntry(source="ed-demo-8", label=running.MODEL),),
        probes=(ProbeEntry(name="lenses", fit="ed-demo-8-affine"),),
        sets=(entry,),
    )
    assert not running.measure(text, parts, "cpu", lambda share: None)
    found = Measured(tmp_path, "copy", 0, (open_folder(parts), tuple(fits)), None, (), "fp32")
    rows = {(row.rule, row.lens): row for row in found._by_fitted_lens()}
    assert list(rows) == [("kl", "affine"), ("overlap", "affine")]
    columns = open_folder(parts).sums(running.MODEL, "copy").probe("lenses")
    for rule, judge in (("kl", by_kl), ("overlap", by_overlap)):
        curve = columns[f"affine_{rule}.sum"].sum(0) / columns["n_tokens"].sum()
        row, expected = rows[rule, "affine"], judge(curve[:-1])
        assert (row.depth, row.variants) == (expected.depth, {"stable": expected.stable})
        assert row.prompts == 9 and (row.undefined < 0.5) == (row.depth is not None) and row.twin is None
        mean = continuous.of_curve(rule, curve)
        told = next(measured._mean(read, rule, "affine") for _, _, read in found._fitted())
        assert told["depth"] == pytest.approx(mean.depth) and told["low"] < told["depth"] < told["high"]
    sentence = found._lenses().sentence
    assert "logit" in sentence and "affine" in sentence


def test_a_depth_that_another_precision_loses_is_not_the_same(out, told, monkeypatch):
    """The rows of another precision, with one rule's depth taken away there."""

    def rows(folder, name):
        found = original(folder, name)
        for (label, rule), of in found.items():
            if label == "bf16" and rule == "kl":
                of["paper"] = of["paper"] | {"depth": None}
        return found

    original = measured._rows
    monkeypatch.setattr(measured, "_rows", rows)
    other = open_folder(out / making.PRECISIONS)
    found = Measured(out / "claims", "sums", 0, None, other, ("bf16",), "fp32")._precisions()
    gone = next(row for row in found.rows if row.rule == "kl")
    assert gone.moved is None and gone.same is False
    for row in found.rows:  # the lens's last row is the output itself, in any precision
        probe, at = RULES[row.rule].probe, slice(None) if row.rule == "cosine" else slice(-1)
        sides = (open_folder(out / "claims" / "parts" / probe), running.MODEL), (other, "bf16")
        own, there = (measured.opened(*side, "sums", probe, 0).curve(row.rule).value[at] for side in sides)
        assert row.order == pytest.approx(stats.spearmanr(own, there).statistic) and len(own) > 4
    assert "KL rule gives none, in fp32 " in " ".join(words.precision(told.but(precision=found)))


def test_it_says_what_the_model_is_and_what_was_not_measured(told, model):
    assert [one.id for one in told.claims] == [claim.id for claim in CLAIMS]
    assert told.identities.failures == () and told.identities.miss <= told.identities.miss_limit
    assert told.model.layers == len(told.curves["cosine"]["model"].values)
    assert [p.text for p in told.set.prompts] == QUESTIONS and told.set.levels == ("0", "1")
    assert sum(why.startswith(("No affine lens is fitted", "No Jacobian lens is fitted")) for why in told.missing) == 2
    assert {row.precision for row in told.precision.rows} == {"bf16"} and len(told.precision.rows) == 3
    command = told.commands[0]
    assert command.startswith("python -m ed_core card --model") and "--set sums.jsonl --precisions bf16" in command


def test_what_was_measured_is_not_measured_again(out, model, prompts, monkeypatch):
    never = Mock(side_effect=AssertionError("it is there already"))
    monkeypatch.setattr(items, "compute", never)
    monkeypatch.setattr(replacement, "by_prompt", never)
    before = {file: (out / file).read_bytes() for file in (card.FILE, card.HTML, card.MARKDOWN)}
    assert made(model, prompts, out) == 0
    assert {file: (out / file).read_bytes() for file in before} == before


def test_a_checkpoint_that_is_stored_quantized_has_no_other_precision(out, model, prompts, tmp_path, monkeypatch):
    shutil.copytree(out, tmp_path / "out")
    monkeypatch.setattr(making, "sizes", SimpleNamespace(**vars(sizes) | {"stored_precision": lambda config: "4bit"}))
    for others, said in (("bf16",), 1), (("fp32",), 0):
        told = making.make(making.Asked(str(model), str(prompts), others=others), tmp_path / "out")
        assert sum("stored quantized" in why for why in told.missing) == said and not told.precision.rows


def test_prompts_without_answers_and_levels_make_a_card_too(model, own_cache, tmp_path):
    """Most claims do not apply to them; the rules, the cuts and the curves do."""
    (tmp_path / "bare.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in QUESTIONS[:8]))
    assert made(model, tmp_path / "bare.jsonl", tmp_path / "out") == 0
    told = card.read(tmp_path / "out" / card.FILE)
    verdicts = {one.id: one.verdict for one in told.claims}
    assert verdicts["no-harder-deeper"] == "not applicable" and len(told.depths) == 3 and len(told.cuts) == 1
    assert {rule for rule, drawn in told.curves.items() if drawn} == {"cosine", "kl", "overlap", "loss"}
    assert not told.set.answers and told.exit.prompts == 8


def test_every_largest_error_stands_beside_its_name(told):
    found = told.identities.model_copy(
        update=dict(miss=1e-6, closure=2e-5, replay=3e-4, miss_limit=4e-3, slope_error=5e-2, failures=(), tokens=7)
    )
    assert words.identities(told.but(identities=found)) == (
        f"The checks pass on 7 tokens in {found.dtype}. Largest errors, adding in the model's own order: sums of the "
        "layers' parts 10⁻⁶, logits from the last residual 2·10⁻⁵, logits layer by layer 0.0003 (limit 0.004); slopes "
        "0.05 from 1."
    )


def test_the_page_asks_nobody_and_says_what_the_document_says(out, told):
    text = (out / card.HTML).read_text(encoding="utf-8")
    found = Page(text)
    assert not [name for name, _ in found.tags if name in ("script", "link", "iframe", "object", "img")]
    assert "default-src 'none'" in text and len(text) < card.MOST_BYTES
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text)
    for said in (words.headline(told), words.identities(told), *(one.title for one in told.claims)):
        assert said.replace("'", "&#39;").replace(">", "&gt;") in text
    assert text.count('viewBox="0 0 330') == 4
    lines = (out / card.MARKDOWN).read_text(encoding="utf-8").split("---\n")
    data = yaml.safe_load(lines[1])
    ratios = {m["type"]: m["value"] for r in data["model-index"][0]["results"] for m in r["metrics"]}
    expected = {f"effective_depth_ratio_{rule}": card.depth_of(told, rule).ratio for rule in RULES}
    expected |= {f"mean_depth_ratio_{of}": card.mean_depth_of(told, of).ratio for of in ("kl", "overlap")}
    assert ratios == {metric: ratio for metric, ratio in expected.items() if ratio is not None}
    assert words.headline(told) in lines[2] and told.commands[0] in lines[2]


def test_words_of_a_stranger_are_only_words(told):
    prompts = (told.set.prompts[0].but(text=EVIL), *told.set.prompts[1:])
    evil = {"model": told.model.but(name=EVIL), "set": told.set.but(prompts=prompts)}
    told = told.but(**evil, commands=(EVIL, *told.commands[1:]), missing=(EVIL, *told.missing[1:]))
    text = page.html(told).decode() + page.fragment(told, "dark")
    assert EVIL not in text and text.count("&lt;script&gt;") >= 8
    assert page.fragment(told, EVIL).count("color-scheme:") == 2
    assert "<svg" not in page.fragment(told) and page.fragment(told).count("data:image/svg+xml") == 4


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda told: "{", "damaged, or not a depth card"),
        (lambda told: json.dumps([1]), "damaged, or not a depth card"),
        (lambda told: json.dumps({k: v for k, v in told.items() if k != "cuts"}), "damaged, or not a depth card"),
        (lambda told: json.dumps(told | {"missing": ["x"]}, indent=1), "damaged, or not a depth card"),
        (lambda told: json.dumps(told | {"format": "x"}), "damaged, or not a depth card"),
        (lambda told: json.dumps(told | {"version": 3}, indent=1), "of version 3, this .* reads up to 2"),
        (lambda told: " " * (card.MOST_BYTES + 1), "at most 3 MiB are read"),
    ],
)
def test_a_file_that_is_no_card_is_refused(told, tmp_path, damage, why):
    file = tmp_path / "x.json"
    file.write_text(damage(json.loads(card.to_json(told))))
    with pytest.raises(CardError, match=why):
        card.read(file)


def test_a_card_whose_curves_cannot_be_drawn_is_refused(told):
    without = {name: curves for name, curves in told.curves.items() if name != "loss"}
    lens, curve = next(iter(told.curves["kl"].items()))
    short = told.curves["kl"] | {lens: curve.but(values=curve.values[:-2])}
    for curves, why in (
        (without, "no curves of loss"),
        (told.curves | {"kl": short}, "has as many entries, or one more"),
    ):
        with pytest.raises(ValueError, match=why):
            told.but(curves=curves)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--precisions", "int3"), "precision is 'int3'"),
        (("--prompts", "0"), "--prompts is 1 or more"),
        (("--prompts", "7"), "gives 7 prompts, and an interval needs 8"),
        (("--set", "word_problems"), "did you mean 'word_problem'"),
    ],
)
def test_the_command_refuses_in_one_sentence(model, prompts, tmp_path, capsys, more, why):
    assert made(model, prompts, tmp_path / "out", *more) == 2
    assert why in capsys.readouterr().err and not (tmp_path / "out" / card.FILE).exists()


def row(depth, low=None, high=None, **more):
    return card.Depth(**({"rule": "kl", "lens": "logit", "depth": depth, "low": low, "high": high} | more))


def test_the_headline_is_the_mean_depth_and_of_an_older_card_the_rules(told):
    means = (
        card.Mean(of="kl", lens="logit", depth=18.34, low=18.02, high=18.63),
        card.Mean(of="overlap", lens="logit", depth=23.1, low=None, high=None),
    )
    curves = {name: {} for name in told.curves}
    told = told.but(model=told.model.but(name="m", layers=30), mean_depths=means, curves=curves)
    assert words.headline(told) == (
        "Mean depth of m over thresholds, of 30 layers: 18.3 (18.0 to 18.6) by KL and 23.1 by overlap, from "
        "the mean curves."
    )
    rules = (
        row(20, 19, 21, clear=True, rule="cosine", lens=""),
        row(9, 9, 9, clear=False),
        row(None, clear=False, rule="overlap"),
    )
    told = told.without("mean_depths", "turn").but(depths=rules)
    assert card.mean_depth_of(told, "kl") is None and words.turn(told) == ""
    assert words.headline(told) == (
        "m, 30 layers. Papers' rules: layer 20 (cosine, 19–21), layer 9 (KL), no layer (overlap)."
    )
    assert "the definitions of its time" in words.of_its_time(told) and "clear" not in words.rules(told)
    told = told.but(mean_depths=())
    assert words.of_its_time(told) == "" and words.rules(told).endswith("no layer (overlap); the cosine rule is clear.")


def test_a_depth_in_words():
    assert words.depth(row(20, 19, 21)) == "20 (19–21)" and words.depth(row(5, 5.0, 5.0)) == "5"
    assert words.depth(row(None, 0, 3)) == "– (0–3)", "layer 0 is a layer"
    assert words.depth(row(None)) == "–" and words.depth(row(3)) == "3" and words.depth(None) == "–"
    assert words.rule(row(3)) == "KL, logit lens" and words.rule(row(3, rule="cosine", lens="")) == "Cosine"
    assert words.value(card.Value(value=0.5, low=0.25, high=0.75), percent=True) == "50 % (25 to 75)"
    assert words.value(card.Value(value=1.25, low=None, high=None)) == "1.25" and words.value(None) == "–"
    assert words.value(card.Value(value=0.9966, low=None, high=None), percent=True) == "more than 99 %"
    assert words.value(card.Value(value=0.9966, low=0.994, high=1.0), percent=True) == "more than 99 % (99 to 100)"
    assert words.value(card.Value(value=0.9997, low=0.9991, high=1.0), percent=True) == "more than 99 % (99.9 to 100.0)"


def test_a_precision_that_moves_a_depth_says_so(told):
    def moved(depth, by, same, order=0.9996):
        of = card.Moved(rule="kl", precision="int8", depth=depth, moved=by, same=same, order=order)
        return next(words.precision(told.but(precision=card.Precision(own="fp32", rows=(of,)))))

    assert moved(5, 0, True) == (
        "In int8 the papers' rules move by at most one layer from fp32's; the rank correlation of their curves with "
        "fp32's is at least 0.999."
    )
    own = words.depth(card.depth_of(told, "kl"))
    assert moved(9, 4, False).startswith(
        f"In int8 the papers' KL rule gives 9, in fp32 {own}; the rank correlation of "
    )
    assert moved(None, None, False, None) == f"In int8 the papers' KL rule gives none, in fp32 {own}."
    assert moved(5, 0, True, 1.0).endswith("; their curves keep their order.")
    assert moved(5, 0, True, -0.1231).endswith(" is at least −0.124.")


def test_the_cut_says_what_the_proxy_would_have_chosen():
    def price(value):
        return card.Value(value=value, low=value - 0.1, high=value + 0.1)

    other = card.ByAngle(start=2, loss=price(4.0))
    cut = card.Cut(layers=4, start=20, prompts=9, kl=price(0.3), loss=price(0.5), kept=price(0.8), by_angle=other)
    said = words.cut(cut)
    assert "layers 20–23" in said and "the loss changes by +0.50 (+0.40 to +0.60) nats" in said
    assert "80 % (70 to 90)" in said
    assert "chooses layers 2–5: there the loss changes by +4.00 (+3.90 to +4.10) nats per token" in said
    assert "chooses the same" in words.cut(cut.but(by_angle=card.ByAngle(start=20, loss=price(0.5))))


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
    steep = card.Curve(values=(0.0, 0.05, 20.0), low=(0.0,) * 3, high=(20.0,) * 3)
    bent = page.drawing({"model": steep}, "layer", (), 0.05)
    (line,) = re.findall(r'<polyline points="([^"]*)"', bent)
    up = [page.HEIGHT - page.BOTTOM - float(point.split(",")[1]) for point in line.split()]
    assert up == pytest.approx([0.0, inner * np.arcsinh(1) / np.arcsinh(400), inner], abs=0.06)
    assert re.findall(r'text-anchor="end">([^<]*)<', bent) == ["0", "0.1", "1", "10"]
    flat = page.drawing({"model": card.Curve(values=(1.0, 1.0), low=(1.0, 1.0), high=(1.0, 1.0))}, "depth")
    assert "nan" not in flat and "inf" not in flat


def test_a_card_is_published_with_its_files(out, tmp_path):
    assert main(["publish", "static", "--card", str(out / card.FILE), "--out", str(tmp_path / "site")]) == 0
    (file,) = (tmp_path / "site" / "cards").glob("*.html")
    text = file.read_text()
    assert {f.suffix for f in file.parent.iterdir()} == {".html", ".json", ".md"}
    assert card.read(file.with_suffix(".json")) == card.read(out / card.FILE)
    assert "../assets/site.css" in text and "../index.html" in text
    assert f"cards/{file.name}" in (tmp_path / "site" / site.INDEX).read_text()
    assert site.of_card(out / card.FILE).kind == "Depth cards"


@pytest.mark.parametrize("file", card.shipped(), ids=lambda file: file.stem)
def test_a_shipped_card_is_what_the_program_writes_and_says(file):
    told = card.read(file)
    assert card.to_json(told) == file.read_bytes()
    assert not told.identities.failures and len(told.claims) == len(CLAIMS)
    written = settings.ROOT / "docs" / "cards"
    assert (written / f"{file.stem}.md").read_text(encoding="utf-8") == words.markdown(told)
    assert (written / f"{file.stem}.html").read_bytes() == page.html(told)


def test_the_small_models_and_the_real_ones_have_a_card():
    assert {file.stem for file in card.shipped()} == {
        "ed-demo-8",
        "ed-demo-16",
        "ed-loop-4x4",
        "ed-plain-16",
        "smollm2",
        "gemma3-270m",
    }


@pytest.mark.browser
@pytest.mark.parametrize("file", card.shipped(), ids=lambda file: file.stem)
def test_a_printed_card_fills_two_pages(file, tmp_path):
    source, pdf = tmp_path / "card.html", tmp_path / "card.pdf"
    source.write_bytes(page.html(card.read(file)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={pdf}"]
    subprocess.run([images.browser(), *options, str(source)], check=True, capture_output=True, timeout=120)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) == 2


def test_the_page_lists_all_cards_and_shows_one(laboratory, monkeypatch):
    begun = []

    def begin(folder, title, files, work, asked, out):
        begun.append((asked, folder))
        folder.mkdir(parents=True)
        shutil.copy(next(file for file in card.shipped() if file.stem == "ed-demo-8"), folder / card.FILE)

    monkeypatch.setattr(runs, "begin", begin)
    test = fresh("pages/model/cards.py", model="ed-demo-8", precision="fp32").run()
    assert not test.exception and test.selectbox(key="cards.card").value == "ed-demo-8"
    said = " ".join(w.value for w in test.markdown)
    shipped = [card.read(file) for file in card.shipped()]
    for told in shipped:
        assert f"**{told.model.name}**" in said and words.claims(told) in said
        for rule in RULES:
            assert show.plain(words.depth(card.depth_of(told, rule))) in said
    test.button(key="run.cards").click().run()
    (of, place) = begun[0]
    wanted = runs.Card(resolve("ed-demo-8"), "sum_mod10")
    assert place == wanted.out and isinstance(of, making.Asked) and of.prompts == "sum_mod10"
    asked = making.Asked("ed-demo-8", "sum_mod10")
    assert asked.place == wanted.out, "the command without --out makes it where the page looks"
    assert wanted.asked().command == asked.command
    assert test.selectbox(key="cards.card").value == runs.card_name(place / card.FILE), "the one just made"


@pytest.mark.parametrize(
    "part, change, why",
    [
        ("cuts", lambda cuts: [one | {"loss": NOTHING, "kept": NOTHING} for one in cuts], ""),
        ("model", lambda model: model | {"layers": 0}, "model.layers"),
        ("set", lambda asked: asked | {"prompts": []}, "set.prompts"),
        ("curves", lambda curves: {"kl": curves["kl"]}, "no curves of cosine, loss, overlap"),
        (
            "curves",
            lambda curves: {k: {m: c | {"low": []} for m, c in of.items()} for k, of in curves.items()},
            "8 layers",
        ),
    ],
)
def test_a_card_that_cannot_be_drawn_is_named_and_the_others_are_shown(laboratory, part, change, why):
    told = json.loads(next(file for file in card.shipped() if file.stem == "ed-demo-8").read_bytes())
    place = card.folder() / "strange"
    place.mkdir(parents=True)
    told = {key: value for key, value in told.items() if key not in ("format", "version", "digest")}
    (place / card.FILE).write_bytes(seal(card.CARD, told | {part: change(told[part])}))
    test = fresh("pages/model/cards.py", model="ed-demo-8", precision="fp32").run()
    assert not test.exception and [why in one.value for one in test.error] == [True] * bool(why)
    assert ("not finite" in next(one.value for one in test.markdown if one.value.startswith("| model"))) == (not why)


NOTHING = {"value": None, "low": None, "high": None}


def test_cards_of_namesakes_have_a_line_each_and_a_name_is_text(laboratory):
    told = card.read(next(file for file in card.shipped() if file.stem == "ed-demo-8"))
    for i, more in enumerate(({}, {"adapter": "mine"}, {"content": "c0ffee" * 10}, {"name": "a | *b*"})):
        place = card.folder() / f"{i}"
        place.mkdir(parents=True)
        changed = told.model_copy(update={"model": told.model.model_copy(update=more)})
        (place / card.FILE).write_bytes(card.to_json(changed))
    test = fresh("pages/model/cards.py", model="ed-demo-8", precision="fp32").run()
    assert not test.exception and not test.error
    (table,) = (one.value for one in test.markdown if one.value.startswith("| model"))
    names = [line.split(" fp32")[0].removeprefix("| ") for line in table.split("\n")[2:]]
    own = [name for name in names if name not in ("**ed-demo-16**", "**smollm2**") and "gemma" not in name]
    assert {"**ed-demo-8**", "**ed-demo-8** with mine", r"**a \| \*b\***"} <= set(own) and own.count(
        "**ed-demo-8**"
    ) == 2


def test_the_card_shown_is_the_chosen_models_until_another_is_chosen(laboratory):
    test = fresh("pages/model/cards.py", model="ed-demo-8", precision="fp32", card="nowhere").run()
    assert not test.exception and "card 'nowhere'" in " ".join(w.value for w in test.warning)
    assert test.selectbox(key="cards.card").value == "ed-demo-8" and "card" not in test.run().query_params
    test.selectbox(key="model").set_value("ed-demo-16").run()
    assert test.selectbox(key="cards.card").value == "ed-demo-16" and not test.warning
    test.selectbox(key="cards.card").select("smollm2").run()
    test.selectbox(key="model").set_value("ed-demo-8").run()
    assert test.selectbox(key="cards.card").value == test.query_params["card"] == "smollm2"
    test = fresh("pages/model/cards.py", model="ed-demo-8", precision="fp32", prompts="lines").run()
    assert test.selectbox(key="cards.card").value == "ed-demo-8", "no prompts are pasted yet"


def test_the_bundled_loop_has_a_card_with_its_passes_and_without_stretches(told, tmp_path):
    """A stretch as long as a pass leaves the same layers wherever it lies."""
    assert made("ed-loop-4x4", "chains", tmp_path, "--prompts", "8") == 0
    loop = card.read(tmp_path / card.FILE)
    assert (loop.model.layers, loop.model.passes) == (16, 4)
    assert "16 layers (4 in 4 passes) of width" in words.facts(loop) and "passes" not in words.facts(told)
    (alone,) = loop.cuts
    assert alone.layers == 1
    (late,) = [one for one in loop.claims if one.id == "deep-skips-late"]
    assert "the same 4 layers 4 times" in late.reason


def test_what_a_card_says_of_its_progress_only_grows_and_ends_at_the_whole(model, prompts, out, tmp_path, monkeypatch):
    shutil.copytree(out, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / making.PRECISIONS)
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "cache"))
    shares: list[float] = []
    asked = making.Asked(str(model), str(prompts), others=("float32", "bf16", "bfloat16"))
    told = making.make(asked, tmp_path / "out", lambda share, what: shares.append(share))
    assert [row.precision for row in told.precision.rows] == ["bf16"] * 3, "by whatever name, and never its own"
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] == pytest.approx(1)


def test_a_count_of_verdicts_says_how_many_of_them_say_little():
    over_all, seen = {"cosine-weak-proxy", "one-layer-robust", "usefulness", "deep-skips-late"}, []
    for file in card.shipped():
        told = card.read(file)
        verdicts = [one.id for one in told.claims if one.verdict in ("holds here", "does not hold here")]
        even = math.log(told.model.vocabulary)
        n = len(over_all.intersection(verdicts)) * any((one.whole or 0) > even for one in told.cuts)
        said, text = words.claims(told), words.markdown(told)
        assert said.endswith(
            f"; of the {len(verdicts)} that hold or do not, {n} {'says' if n == 1 else 'say'} little"
        ) == bool(n)
        assert ("little" in said) == bool(n) and said in text and (words.LITTLE in text or not n)
        assert said in html.unescape(page.html(told).decode())
        seen.append(n)
    assert min(seen) == 0 and max(seen) > 0


def test_what_leaving_early_changes_at_depth_0_is_told_apart():
    told = card.read(next(file for file in card.shipped() if file.stem == "ed-demo-8"))

    def said(lost: float, at_0: float | None) -> str:
        one = [None if of is None else card.Value(value=of, low=of, high=of) for of in (1 - lost, at_0)]
        return words.leaving(told.but(exit=told.exit.but(mean_agreement=one[0], mean_lost_at_0=one[1])))

    assert (
        "50 % of a prompt's tokens would change (50 in at least 90 % of resamples); 20 % (20 in at least 90 % of "
        "resamples) of its tokens at depth 0, the rest above, each token judged"
    ) in said(0.5, 0.2)
    assert said(0.5, 0.2).endswith("shares are means over prompts.")
    assert "; all of these at depth 0, each" in said(0.5, 0.5)
    assert "; none of these at depth 0, each" in said(0.04, 0.0)
    few = card.Value(value=0.998, low=0.97, high=1.0)
    rounded = words.leaving(told.but(exit=told.exit.but(mean_agreement=few, mean_lost_at_0=None)))
    assert "would change less than 1 % of a prompt's tokens (0 to 3" in rounded, "not 0 %, which says none"
    assert "at depth 0" not in said(0.0, 0.0) + said(0.5, None)
    shipped = [card.read(file) for file in card.shipped()]
    assert all("at depth 0" in words.leaving(one) for one in shipped if one.exit.mean_agreement.value < 1)
