"""Case studies as values: what they hold, what their words may be, and that they come back from their file as they
were. From the shell: list, show, export, import, delete."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from io import BytesIO

import numpy as np
import pytest
from kept_cases import HOME, case, results, small
from shell import refused

from ed_core.cases import bundle, case_study, export
from ed_core.cases.case_study import Item, Shown
from ed_core.cases.drawings import drawings
from ed_core.cases.kept import Kept
from ed_core.cli import cases, main
from ed_core.depth import say
from ed_core.depth.rules import COSINES, RULES
from ed_core.depth.sample import Sample
from ed_core.depth.verdict import verdict
from ed_core.errors import CaseError, ImportRefused
from ed_core.models import controls


def test_a_case_study_comes_back_from_its_file_as_it_was():
    shown = {"logit_lens": Shown("home", (3, 40), 7, (("shade", "kl"), ("first", True), ("threshold", 0.5), ("n", 3)))}
    words = {"notes": "# Notes\n<script>alert(1)</script>\n\tok", "tags": ["sum", "mod 10"]}
    kept = case("Ein Satz – 日本語 שלום", **words, shown=shown, kl_threshold=0.4)
    again = bundle.decode(bundle.encode(kept))
    assert again == kept and bundle.encode(again) == bundle.encode(kept)
    assert again.kl_threshold == 0.4 and [i.shown for i in again.items][1] == shown["logit_lens"]
    for item in again.items:
        original = results()[item.result.request.probe]
        assert item.result.provenance == original.provenance
        for name, measure in original.measures.items():
            assert np.array_equal(item.result[name], measure.values, equal_nan=True)


def test_the_verdict_is_the_one_home_shows_with_the_thresholds_chosen():
    expected = verdict(Sample.of(results()["contributions"], results()["logit_lens"]), kl=0.1)
    assert case(kl_threshold=0.1).verdict == say.verdict(expected) != case().verdict
    assert small().verdict == ""


def test_the_card_tells_everything_a_list_shows_without_the_arrays():
    kept = case("Sums", notes="hm", tags=["a", "b"])
    data = bundle.encode(kept)
    at = data.find(b"0.npz")  # every array is destroyed; the card does not care
    manifest = data.find(b"manifest.json") - 30
    torn = data[:at] + b"0.npz" + bytes(manifest - at - 5) + data[manifest:]
    card = bundle.card(BytesIO(torn))
    words = (card.id, card.title, card.notes, card.tags, card.verdict)
    assert words == (kept.id, "Sums", "hm", ("a", "b"), kept.verdict)
    assert (card.model, card.precision, card.probes) == ("ed-demo-8", "fp32", HOME)
    assert card.prompt == results()["contributions"].request.prompts[0].text[:300]
    assert card.depths == verdict(Sample.of(results()["contributions"], results()["logit_lens"])).layers
    assert card.runs == tuple(i.result.request.key for i in kept.items)
    values, thumbnail = results()["logit_lens"]["kl"].astype(float), np.array(card.thumbnail, float)
    assert len(thumbnail) == len(values) and thumbnail[0].mean() < thumbnail[-1].mean(), "dark is far from the output"
    with pytest.raises(ImportRefused):
        bundle.decode(torn)


@pytest.mark.parametrize(
    "words, says",
    [
        ({"title": " "}, "empty"),
        ({"title": "x" * 201}, "201 characters"),
        ({"title": "a\x1b[2J"}, "U+001B"),
        ({"title": "a\u202egnp"}, "U+202E"),
        ({"notes": "x" * 20_001}, "20001"),
        ({"tags": ["x" * 41]}, "41"),
        ({"tags": [str(i) for i in range(13)]}, "13"),
    ],
)
def test_words_that_are_no_text_are_refused_with_one_sentence(words, says):
    with pytest.raises(CaseError, match=says.replace("+", r"\+")) as caught:
        small(**({"title": "A sum"} | words))
    assert "\n" not in str(caught.value)


def test_words_are_tidied_where_nothing_is_lost():
    kept = small("  A \n sum ", notes="a\r\nb\rc", tags=["x ", "x", "", "two  words"])
    assert (kept.title, kept.notes, kept.tags) == ("A sum", "a\nb\nc", ("x", "two words"))
    assert case_study.edited(kept, title=" B ").title == "B" and case_study.edited(kept, notes="x").items is kept.items


def test_only_complete_results_and_views_of_this_program_are_kept():
    for shown in (Shown("../app"), Shown(window=(0, 78)), Shown(selected=78), Shown(settings=(("x y", 1),))):
        with pytest.raises(CaseError, match="view"):
            small(shown=shown)
    with pytest.raises(CaseError, match="not complete"):
        Item.of(replace(results()["early_exit"], complete=False, summary={}))
    with pytest.raises(CaseError, match="found 0"):
        case_study.make("x", [])


def strips(kept: case_study.Case, name: str) -> list[np.ndarray]:
    """The curves of that name next to the maps of a case study's figures."""
    return [np.asarray(t.x) for drawn in drawings(kept) for t in drawn.figure.data if t.name == name]


@pytest.mark.parametrize("first", [True, False])
def test_figures_count_the_first_token_as_the_case_study_does(first):
    found = results()["contributions"]
    means = {name: found[name][:, (not first) :].mean(1) for name in ("layer_ratio", *COSINES)}
    expected = [means["layer_ratio"], RULES["cosine"].curve(means)]
    for strip, mean in zip(strips(case(probes=("contributions",), first_token=first), "mean"), expected, strict=True):
        np.testing.assert_allclose(strip, mean, atol=1e-6)


def test_a_control_is_drawn_behind_its_own_model_alone():
    one = results()["contributions"]
    spec = one.request.models[0]
    for source, expected in ((spec.source, 2), ("another", 0)):
        twin = replace(spec, source=source, content_hash="x", control="untrained")
        kept = case_study.make("x", [one, replace(one, request=replace(one.request, models=(twin,)))])
        assert len(strips(kept, "control")) == expected
        layouts = [str(drawn.figure.layout.to_plotly_json()) for drawn in drawings(kept)]
        assert sum(f"┄ {controls.KINDS['untrained']}" in layout for layout in layouts) == expected


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Kept:
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "here"))
    monkeypatch.setattr(cases, "Kept", partial(Kept, shipped=None))
    return Kept(shipped=None)


def test_list_show_and_delete(folder, monkeypatch, capsys):
    one = case("Sums", notes="note well", tags=["x"])
    folder.add(one), folder.add(small("Other"))
    assert main(["case", "list", "well"]) == 0
    out = capsys.readouterr().out
    assert one.id in out and "[x]" in out and "Other" not in out
    assert main(["case", "show", one.id]) == 0
    out = capsys.readouterr().out
    assert one.verdict in out and "note well" in out and one.items[0].result.request.key in out
    assert main(["case", "delete", one.id]) == 0 and capsys.readouterr().out == f"{one.id} was deleted.\n"
    refused(capsys, ["case", "show", one.id], "no case study")
    monkeypatch.setattr(cases, "Kept", Kept)
    assert main(["case", "list"]) == 0
    *shipped, own = sorted(capsys.readouterr().out.splitlines(), key=lambda line: "Other" in line)
    assert shipped and all(line.endswith("  (shipped)") for line in shipped) and "shipped" not in own


def test_export_by_ending_and_import_elsewhere(folder, tmp_path, monkeypatch, capsys):
    one = case("Sums")
    folder.add(one)
    out = {end: tmp_path / f"x.{end}" for end in ("edcase", "html", "npz")} | {"csv": tmp_path / "X.CSV"}
    for end, file in out.items():
        measure = ["--measure", "logit_lens.kl"] if end == "csv" else []
        assert main(["case", "export", one.id, str(file), *measure]) == 0
    assert out["edcase"].read_bytes() == folder.read(one.id)
    assert "<title>Sums</title>" in out["html"].read_text()
    with np.load(out["npz"], allow_pickle=False) as arrays:
        assert np.array_equal(arrays["layer_skip.effect.0"], results()["layer_skip"]["effect"], equal_nan=True)
    assert out["csv"].read_text().startswith("depth,pos,token,kl")
    capsys.readouterr()
    for name, says in (("x.pdf", ".html"), ("y.csv", "logit_lens.kl"), ("no/x.html", "does not exist")):
        refused(capsys, ["case", "export", one.id, tmp_path / name], says)
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "there"))
    assert main(["case", "import", str(out["edcase"])]) == 0 and Kept(shipped=None).open(one.id)[0] == one
    assert main(["case", "import", str(out["edcase"])]) == 0 and "already" in capsys.readouterr().out
    refused(capsys, ["case", "import", out["html"]], "not a case study")
    refused(capsys, ["case", "import", tmp_path / "none"], "There is no file")


def test_a_table_of_several_views_says_of_which(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    both = Kept().open("6sg64f3464")[0]
    asked = ["case", "export", both.id, str(tmp_path / "x.csv"), "--measure"]
    for i, view in enumerate(both.views, 1):
        assert main([*asked, f"{i}/logit_lens.kl"]) == 0
        assert (tmp_path / "x.csv").read_bytes().decode() == export.csv(view.by_probe["logit_lens"].result, "kl")
    refused(capsys, [*asked, "logit_lens.kl"], "1/logit_lens.kl")
