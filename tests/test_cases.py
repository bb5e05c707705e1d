"""Case studies as values: what they hold, what their words may be, and that they come back from their file as they
were. From the shell: export here, import there, back up, restore, check."""

from __future__ import annotations

import io
import os
import zipfile
from base64 import b64decode
from dataclasses import replace
from functools import partial
from html import escape
from io import BytesIO
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from archives import sealed_anew
from kept_cases import HOME, case, results, small
from PIL import Image
from shell import refused
from test_figures import fake

from ed_core.cases import backup, bundle, case_study, export
from ed_core.cases.case_study import Item, Shown, edited
from ed_core.cases.drawings import by_name, drawings, sections
from ed_core.cases.kept import Kept
from ed_core.cases.report import report
from ed_core.commands import cases, main
from ed_core.depth import criteria, verdict
from ed_core.errors import CaseError, ImportRefused, OtherVersion
from ed_core.figures.images import data_uri, png, thumbnail
from ed_core.results import lookup
from ed_core.results.aggregate import aggregate, probe_of, summarize
from ed_core.results.store import Store
from ed_core.results.wire import unpack
from ed_core.sources import controls


def test_a_case_study_comes_back_from_its_file_as_it_was():
    shown = {"logit_lens": Shown("home", (3, 40), 7, (("shade", "kl"), ("first", True), ("threshold", 0.5), ("n", 3)))}
    kept = case(
        "Ein Satz – 日本語 שלום",
        notes="# Notes\n<script>alert(1)</script>\n\tok",
        tags=["sum", "mod 10"],
        shown=shown,
        kl_threshold=0.4,
    )
    again = bundle.decode(bundle.encode(kept))
    assert again == kept and again.kl_threshold == 0.4
    assert [i.shown for i in again.items][1] == shown["logit_lens"]
    for item in again.items:
        assert item.result.provenance == results()[item.result.request.probe].provenance
        for name, measure in results()[item.result.request.probe].measures.items():
            assert np.array_equal(item.result[name], measure.values, equal_nan=True)


def test_the_bytes_of_a_case_study_are_always_the_same():
    kept = small()
    assert bundle.encode(kept) == bundle.encode(bundle.decode(bundle.encode(kept)))


def test_the_verdict_is_the_one_home_shows_with_the_thresholds_chosen():
    expected = verdict.of_prompt(results()["contributions"], results()["logit_lens"], kl=0.1)
    assert case(kl_threshold=0.1).verdict == expected.sentence != case().verdict
    assert small().verdict == ""


def test_the_card_tells_everything_a_list_shows_without_the_arrays():
    kept = case("Sums", notes="hm", tags=["a", "b"])
    data = bundle.encode(kept)
    at = data.find(b"0.npz")  # every array is destroyed; the card does not care
    manifest = data.find(b"manifest.json") - 30
    torn = data[:at] + b"0.npz" + bytes(manifest - at - 5) + data[manifest:]
    card = bundle.card(BytesIO(torn))
    assert (card.id, card.title, card.notes, card.tags, card.verdict) == (
        kept.id,
        "Sums",
        "hm",
        ("a", "b"),
        kept.verdict,
    )
    assert (card.model, card.precision, card.probes) == ("ed-demo-8", "fp32", HOME)
    assert card.prompt == results()["contributions"].request.prompts[0].text[:300]
    assert card.depths == verdict.of_prompt(results()["contributions"], results()["logit_lens"]).lines
    assert card.runs == tuple(i.result.request.key for i in kept.items)
    with pytest.raises(ImportRefused):
        bundle.decode(torn)


def test_the_thumbnail_is_made_of_the_numbers():
    thumbnail = bundle.card(BytesIO(bundle.encode(case()))).thumbnail
    values = results()["logit_lens"]["kl"].astype(float)
    assert len(thumbnail) == len(values) and len(thumbnail[0]) == 36
    assert thumbnail[-1][0] == 255 > thumbnail[0][0], "the top row is the output itself, and bright is near it"
    columns = np.linspace(0, values.shape[1] - 1, 36).round().astype(int)
    low, high = np.quantile(values[:, columns], (0.02, 0.98))
    expected = 255 * np.clip((high - values[:, columns]) / (high - low), 0, 1)
    np.testing.assert_allclose(thumbnail, expected, atol=0.51)
    assert np.min(thumbnail) >= 0 and np.max(thumbnail) == 255
    assert bundle.card(BytesIO(bundle.encode(case(probes=("continuation",))))).thumbnail == ()


@pytest.mark.parametrize(
    "words, says",
    [
        ({"title": " "}, "empty"),
        ({"title": "x" * 201}, "201 characters"),
        ({"title": "a\x1b[2J"}, "U+001B"),
        ({"title": "a\ud800"}, "U+D800"),
        ({"title": "a\u202egnp"}, "U+202E"),
        ({"notes": "x" * 20_001}, "20001"),
        ({"notes": "a\0"}, "U+0000"),
        ({"tags": ["x" * 41]}, "41"),
        ({"tags": ["a\x07"]}, "U+0007"),
        ({"tags": [str(i) for i in range(13)]}, "13"),
    ],
)
def test_words_that_are_no_text_are_refused_with_one_sentence(words, says):
    with pytest.raises(CaseError, match=says.replace("+", r"\+")) as caught:
        small(**({"title": "A sum"} | words))
    assert "\n" not in str(caught.value)


def test_words_may_be_as_long_as_the_refusals_say():
    tags = [f"{i:040}" for i in range(1, 13)]
    kept = small("x" * 200, notes="x" * 20_000, tags=tags)
    assert (len(kept.title), len(kept.notes), len(kept.tags)) == (200, 20_000, 12)


def test_words_are_tidied_where_nothing_is_lost():
    kept = small("  A \n sum ", notes="a\r\nb\rc", tags=["x ", "x", "", "two  words"])
    assert (kept.title, kept.notes, kept.tags) == ("A sum", "a\nb\nc", ("x", "two words"))
    assert case_study.edited(kept, title=" B ").title == "B" and case_study.edited(kept, notes="x").items is kept.items


@pytest.mark.parametrize(
    "shown",
    [
        Shown("../app"),
        Shown(window=(5, 2)),
        Shown(window=(0, 500)),
        Shown(selected=-1),
        Shown(selected=78),
        Shown(window=(0, 78)),
        Shown(settings=(("x y", 1),)),
    ],
)
def test_a_view_that_is_none_of_this_program_is_refused(shown):
    with pytest.raises(CaseError, match="view"):
        small(shown=shown)


def test_a_setting_that_no_figure_knows_is_the_pages_own():
    shown = Shown("home", settings=(("branch", "mlp"), ("shade", "of another program")))
    assert shown.setting("branch", "layer") == "mlp"
    assert shown.setting("shade", "prob") == "prob"
    assert replace(shown, settings=(("branch", 3),)).setting("branch", "layer") == "layer"


def test_only_complete_results_are_kept():
    with pytest.raises(CaseError, match="not complete"):
        Item.of(replace(results()["early_exit"], complete=False, summary={}))
    with pytest.raises(CaseError, match="found 0"):
        case_study.make("x", [])


def test_ids_are_ten_characters_and_those_of_shipped_ones_stay():
    ids = {case_study.new_id() for _ in range(1000)}
    assert len(ids) == 1000 and all(case_study.ID.fullmatch(id) for id in ids)
    from tools.cases import id_of

    assert id_of("easy-sum") == id_of("easy-sum") != id_of("hard-sum")
    assert case_study.ID.fullmatch(id_of("easy-sum"))


def test_the_same_probe_twice_opens_a_second_view():
    one = results()["early_exit"]
    other = replace(one, request=replace(one.request, parameters=(("threshold", 0.5),)))
    kept = case_study.make("x", [one, results()["prune"], other])
    assert [list(v.by_probe) for v in kept.views] == [["early_exit", "prune"], ["early_exit"]]


def test_a_later_version_is_refused_as_such():
    data = sealed_anew(bundle.encode(small()), lambda told: told | {"version": 3})
    with pytest.raises(OtherVersion, match="version 3.*version 2 alone.*update"):
        bundle.decode(data)


def strips(kept: case_study.Case, name: str) -> list[np.ndarray]:
    """The curves of that name beside the maps of a case study's figures."""
    return [np.asarray(t.x) for drawn in drawings(kept) for t in drawn.figure.data if t.name == name]


@pytest.mark.parametrize("first", [True, False])
def test_figures_count_the_first_token_as_the_case_study_does(first):
    found = results()["contributions"]
    means = {name: found[name][:, (not first) :].mean(1) for name in ("layer_ratio", *verdict.COSINES)}
    expected = [means["layer_ratio"], criteria.RULES["cosine"].curve(means)]
    for strip, mean in zip(strips(case(probes=("contributions",), first_token=first), "mean"), expected, strict=True):
        np.testing.assert_allclose(strip, mean, atol=1e-6)


def test_the_sinks_of_a_case_study_carry_their_badge():
    found = {name: results()[name] for name in ("contributions", "logit_lens")}
    norms = dict(found["contributions"].measures)
    norms["resid_norm"] = replace(norms["resid_norm"], values=norms["resid_norm"].values.copy())
    norms["resid_norm"].values[:, 2] *= 1000
    loud = summarize(replace(found["contributions"], measures=norms))
    kept = case_study.make("x", [loud, found["logit_lens"]])
    for title in ("Contribution norms", "Cosine with the stream", "Logit lens"):
        layout = next(d.figure.layout for d in drawings(kept) if d.title == title).to_plotly_json()
        axes = [layout[name] for name in ("xaxis", "xaxis3") if name in layout]
        labels = [pair for axis in axes for pair in zip(axis["tickvals"], axis["ticktext"])]
        assert [at for at, word in labels if "◆" in word] == [2], title


def test_a_control_stands_behind_its_own_model_alone():
    one = results()["contributions"]
    spec = one.request.models[0]
    for source, expected in ((spec.source, 2), ("another", 0)):
        twin = replace(spec, source=source, content_hash="x", control="untrained")
        kept = case_study.make("x", [one, replace(one, request=replace(one.request, models=(twin,)))])
        assert len(strips(kept, "control")) == expected
        layouts = [str(drawn.figure.layout.to_plotly_json()) for drawn in drawings(kept)]
        assert sum(f"┄ {controls.KINDS['untrained']}" in layout for layout in layouts) == expected


def test_what_a_pruning_costs_is_that_of_the_cheapest_stretch():
    from ed_core.cases import drawings

    found = results()["prune"]
    cost = found["kl"].mean(1)
    of_two = replace(found, request=replace(found.request, parameters=(("n", 2),)))
    first, several = (next(drawings.prune([one])) for one in (found, of_two))
    assert cost.argmin() != 0 and f"KL {cost.min():.3g} nats" in first.caption
    assert (first.dim, several.dim) == ("layer taken out", "first layer taken out")
    unlikely = replace(found.measures["nll"], values=np.full_like(found["nll"], np.log(5.67e6)))
    whole = replace(found.measures["nll_whole"], values=np.full_like(found["nll_whole"], np.log(5.67e6)))
    dear = summarize(replace(found, measures=found.measures | {"nll": unlikely, "nll_whole": whole}))
    assert [d.caption for d in drawings.prune([dear])][2] == "5.67M with all layers"
    looped = replace(found, provenance={**found.provenance, "passes": found.n_layers})  # a layer is a whole pass
    assert next(drawings.prune([looped])).caption.startswith("whichever stretch is left out, it is whole passes: KL")
    nowhere = replace(found.measures["kl"], values=np.full_like(found["kl"], np.nan))
    overflown = summarize(replace(found, measures=found.measures | {"kl": nowhere}))
    assert "predictions are not finite" in next(drawings.prune([overflown])).caption


def test_the_thumbnails_lowest_row_is_layer_0_and_a_cell_without_value_is_nothing():
    colours = np.arange(257 * 4, dtype=np.uint8).reshape(257, 4)
    colours[-1] = 0
    pixels = np.asarray(Image.open(BytesIO(png([[0, 1], [2, -1]], colours))))
    assert pixels.tolist() == [[[8, 9, 10, 11], [0, 0, 0, 0]], [[0, 1, 2, 3], [4, 5, 6, 7]]]


def test_a_thumbnail_has_the_colours_it_always_had():
    """A picture written before Pillow wrote them, of every value and of none."""
    before = Image.open(Path(__file__).parent / "data" / "thumbnail-v1.png")
    rows = [list(range(at, at + 32)) for at in range(0, 256, 32)] + [[-1] * 32]
    now = Image.open(BytesIO(b64decode(data_uri(rows).removeprefix("data:image/png;base64,"))))
    height, width = 224 // len(rows), 640 // len(rows[0])
    cells = np.asarray(now)[height // 2 :: height, width // 2 :: width]
    assert now.mode == before.mode == "RGBA" and np.array_equal(cells, np.asarray(before))
    assert not np.asarray(now)[height - 1 :: height].any(), "cells are told apart"


def test_what_few_case_studies_have_is_what_one_is_about():
    home = [fake(name) for name in ("contributions", "logit_lens", "layer_skip")]
    assert thumbnail(home) == thumbnail(home[1:2]) != thumbnail(home[:1])
    erased = fake("residual_erasure")
    assert thumbnail([*home, erased]) == thumbnail([erased])


def test_the_lead_of_a_verdict_is_its_first_sentence():
    assert case_study.lead("“2” is best at depth 4 of 8; it is so from 3. No layer erases. More.") == (
        "“2” is best at depth 4 of 8; it is so from 3."
    )
    assert case_study.lead("small (fp32), 'It's: 3 + 4': At 0.5 it is half-way. More.\nother: x.") == (
        "At 0.5 it is half-way."
    )
    assert case_study.lead("") == ""


def test_what_stands_for_a_kept_figure_tells_its_curves():
    told = {d.title: d.alt for d in drawings(case("x", ("layer_skip",)))}
    assert (
        "output change, smallest" in told["Layer skip, output"] and "; best token kept, " in told["Layer skip, output"]
    )
    assert told["Layer skip"].startswith("change of a layer's update")


def test_the_ruler_of_a_looped_model_parts_its_passes():
    both = [results()[name] for name in ("contributions", "logit_lens")]
    looped = [replace(r, provenance={**r.provenance, "passes": 4}) for r in both]
    rulers = [next(d for d in drawings(case_study.make("x", of)) if d.title == "Depth ruler") for of in (both, looped)]
    assert [sum(one.layer == "below" for one in ruler.figure.layout.shapes) for ruler in rulers] == [0, 3]


def test_figures_of_one_title_are_told_apart_by_number(monkeypatch):
    made = drawings(case())
    twice = [made[0], made[1], made[0], made[0]]
    monkeypatch.setattr("ed_core.cases.drawings.drawings", lambda case: twice)
    title = made[0].title.lower()
    assert list(by_name(case())) == [title, made[1].title.lower(), f"{title} 2", f"{title} 3"]


def test_what_a_model_writes_and_its_loops_read_as_on_their_pages():
    found = (unpack(file.read_bytes()) for file in lookup.EXAMPLES.glob("*.npz"))
    passes = next(r for r in found if r.request.probe == "loops")
    wrote, looped = (case_study.make("t", [result]) for result in (results()["generation"], passes))
    (written,), (section,) = sections(wrote), sections(looped)
    assert written.says[0].startswith("Of ") and escape(written.written[0]) in report(wrote)
    assert not section.written and "of 4 passes" in section.says[0] and len(section.drawings) == 6
    assert not any("_" in d.title + d.caption + d.alt for d in section.drawings)


@pytest.mark.parametrize("name", ["turns", "answers"])
def test_what_has_no_picture_of_its_own_is_drawn_as_curves_by_unit_and_length(name):
    result = fake(name)
    made = drawings(case_study.make("t", [result], shown=Shown(name)))
    values = aggregate(probe_of(result), [result.summary], True)
    drawn = {n: v for n, v in values.items() if np.ndim(v) == 1 and np.size(v) > 1 and not n.endswith("_mean")}
    assert sorted(n for d in made for n in d.caption.split(", ")) == sorted(drawn) and drawn
    for one in made:
        names = one.caption.split(", ")
        specs = [probe_of(result).spec(n) for n in names]
        assert len({(s.dims[0], s.unit, len(drawn[n])) for s, n in zip(specs, names, strict=True)}) == 1
        assert one.title == probe_of(result).title and one.figure.layout.yaxis.title.text == specs[0].unit
        shown = {t.name: np.asarray(t.y, float) for t in one.figure.data if t.name in names}
        assert sorted(shown) == sorted(names)
        for n in names:
            np.testing.assert_allclose(shown[n], drawn[n], rtol=1e-6)


# ---------------------------------------------------------------- from the shell


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Kept:
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "here"))
    monkeypatch.setattr(cases, "Kept", partial(Kept, shipped=None))
    return Kept(shipped=None)


def harm(file) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(b"0.npz") + 300] ^= 1
    file.write_bytes(data)


def test_list_show_delete_and_restore(folder, capsys):
    one = case("Sums", notes="note well", tags=["x"])
    folder.add(one), folder.add(small("Other"))
    assert main(["case", "list", "well"]) == 0
    out = capsys.readouterr().out
    assert one.id in out and "[x]" in out and "Other" not in out
    assert main(["case", "show", one.id]) == 0
    out = capsys.readouterr().out
    assert one.verdict in out and "note well" in out and one.items[0].result.request.key in out
    result = results()["early_exit"]
    twin = replace(result.request, models=(replace(result.request.models[0], control="shuffled"),))
    folder.add(of_twin := case_study.make("T", [replace(result, request=twin)]))
    assert main(["case", "show", of_twin.id]) == 0 and "(fp32, shuffled layers, seed 0)" in capsys.readouterr().out
    assert main(["case", "list", "T"]) == 0 and "ed-demo-8 (shuffled layers, seed 0)" in capsys.readouterr().out
    assert main(["case", "delete", one.id]) == 0 and main(["case", "list", "--trash"]) == 0
    assert "Sums" in capsys.readouterr().out
    assert main(["case", "list", "--trash", "elsewhere"]) == 0 and not capsys.readouterr().out
    refused(capsys, ["case", "list", "--trash", "--sort", "title"], "leave --sort out")
    refused(capsys, ["case", "show", one.id], "no case study")
    assert main(["case", "restore", one.id]) == 0 and folder.open(one.id)[0] == one
    main(["case", "delete", one.id])
    assert main(["case", "empty-trash"]) == 0 and "1 case study removed" in capsys.readouterr().out
    assert not folder.trash()
    assert main(["case", "restore", one.id]) == 2, "gone for good"


def test_the_list_says_which_are_shipped(folder, monkeypatch, capsys):
    folder.add(case("Sums"))
    monkeypatch.setattr(cases, "Kept", Kept)
    assert main(["case", "list"]) == 0
    *lines, mine = sorted(capsys.readouterr().out.splitlines(), key=lambda line: "Sums" in line)
    assert lines and all(line.endswith("  (shipped)") for line in lines) and "shipped" not in mine


def test_export_by_ending_and_import_elsewhere(folder, tmp_path, monkeypatch, capsys):
    one = case("Sums")
    folder.add(one)
    out = {end: tmp_path / f"x.{end}" for end in ("edcase", "html", "npz", "csv", "parquet", "sh")}
    out["py"] = tmp_path / "X.PY"
    for end, file in out.items():
        measure = ["--measure", "logit_lens.kl"] if end in ("csv", "parquet") else []
        assert main(["case", "export", one.id, str(file), *measure]) == 0
    assert out["edcase"].read_bytes() == folder.read(one.id)
    assert "<title>Sums</title>" in out["html"].read_text() and "python -m ed_core run" in out["sh"].read_text()
    with np.load(out["npz"], allow_pickle=False) as arrays:
        assert np.array_equal(arrays["layer_skip.effect.0"], results()["layer_skip"]["effect"], equal_nan=True)
    assert out["csv"].read_text().startswith("depth,pos,token,kl") and out["parquet"].read_bytes()[:4] == b"PAR1"
    capsys.readouterr()
    for name, says in (("x.pdf", ".html"), ("y.csv", "logit_lens.kl"), ("no/x.html", "does not exist; make it first")):
        refused(capsys, ["case", "export", one.id, tmp_path / name], says)
    for option, name, says in (("--measure", "x.html", ".csv and .parquet"), ("--figure", "x.npz", ".png and .svg")):
        refused(capsys, ["case", "export", one.id, tmp_path / name, option, "logit_lens.kl"], f"{option} is of {says}")
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
    assert "1/contributions.sinks" in export.tables(both)
    refused(capsys, [*asked, "logit_lens.kl"], "1/logit_lens.kl")


def test_a_backup_brings_everything_back_and_overwrites_nothing(folder, tmp_path, monkeypatch, capsys):
    kept = [case("one"), small("two"), small("three")]
    states = [folder.add(c) for c in kept]
    out = tmp_path / "b.zip"
    assert main(["backup", str(out)]) == 0 and "3 case studies" in capsys.readouterr().out
    refused(capsys, ["backup", tmp_path / "b.npz"], "expected a file that ends in .zip")
    refused(capsys, ["restore", __file__], "give a file that `backup` wrote")
    folder.save(edited(kept[1], notes="newer"), states[1])
    folder.delete(kept[2].id)
    assert main(["restore", str(out)]) == 0
    assert folder.open(kept[1].id)[0].notes == "newer" and folder.open(kept[2].id)[0] == kept[2]
    assert sorted(c.title for c in folder.cards()) == ["one", "three", "two", "two"], (
        "the older version came as a case study of its own"
    )
    capsys.readouterr()
    assert main(["restore", str(out)]) == 0 and "0 case studies restored, 3 here already" in capsys.readouterr().out
    assert len(folder.cards()) == 4, "and once"
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "there"))
    assert main(["restore", str(out)]) == 0
    there = Kept(shipped=None)
    assert [there.open(c.id)[0] for c in kept] == kept


def test_a_damaged_backup_gives_what_is_whole_and_names_the_rest(folder, tmp_path, capsys):
    kept = [small("one"), small("two")]
    [folder.add(c) for c in kept]
    out = tmp_path / "b.zip"
    assert main(["backup", str(out)]) == 0
    data = bytearray(out.read_bytes())
    data[data.index(kept[0].id.encode()) + 900] ^= 1
    out.write_bytes(data)
    folder.delete(kept[0].id), folder.delete(kept[1].id)
    capsys.readouterr()
    assert main(["restore", str(out)]) == 1
    assert kept[0].id in capsys.readouterr().err and [c.id for c in folder.cards()] == [kept[1].id]


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def test_a_file_of_a_backup_has_the_hash_that_is_listed(folder, tmp_path):
    """Another whole case study in its place is not what was backed up."""
    one, file = small("one"), tmp_path / "b.zip"
    folder.add(one)
    backup.write(folder, file)
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    file.write_bytes(zipped(**{**entries, f"{one.id}.edcase": bundle.encode(edited(one, notes="another"))}))
    folder.delete(one.id)
    taken, problems = backup.restore(folder, file)
    assert not taken and len(problems) == 1 and "does not have its hash" in problems[0]


LISTED = '{"format":"effective-depth backup","files":{"%s":{"sha256":"0"}}}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        zipped(),
        zipped(a=b""),
        zipped(**{"backup.json": b"[" * 100_000}),
        zipped(**{"backup.json": b"7"}),
        zipped(**{"../x.edcase": b"", "backup.json": (LISTED % "../x.edcase").encode()}),
    ],
    ids=["empty", "text", "no-list", "another-file", "deep", "a-number", "a-path"],
)
def test_what_is_no_backup_is_refused(folder, tmp_path, data):
    file = tmp_path / "b.zip"
    file.write_bytes(data)
    with pytest.raises(ImportRefused) as caught:
        backup.restore(folder, file)
    assert "\n" not in str(caught.value) and folder.cards() == []


def test_check_names_what_is_damaged_and_changes_nothing(folder, capsys):
    kept = [small("one"), small("two"), small("three")]
    [folder.add(c) for c in kept]
    folder.delete(kept[2].id)
    Store().put(results()["early_exit"])
    assert main(["check"]) == 0 and "3 case studies and 1 result checked, nothing damaged" in capsys.readouterr().out
    harm(folder.path / f"{kept[0].id}.edcase")
    harm(next(folder.trash_path.iterdir()))
    assert main(["check"]) == 1
    err = capsys.readouterr().err
    assert kept[0].id in err and f"trash/{kept[2].id}" in err and kept[1].id not in err
    assert (folder.path / f"{kept[0].id}.edcase").is_file()


def test_check_looks_into_the_store_too(folder, capsys):
    store = Store()
    store.put(results()["early_exit"])
    key = results()["early_exit"].request.key
    store._run(
        lambda cache: cache._sql(
            "UPDATE Cache SET value = X'00', filename = NULL, mode = 1 WHERE key = ?", (f"card/{key}",)
        )
    )
    assert main(["check"]) == 1 and key in capsys.readouterr().err


def test_a_full_disk_leaves_the_old_backup(folder, tmp_path, monkeypatch):
    folder.add(small())
    out = tmp_path / "b.zip"
    out.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert main(["backup", str(out)]) == 2
    assert out.read_bytes() == b"old" and sorted(p.name for p in tmp_path.iterdir()) == ["b.zip", "here"]


def test_a_backup_leaves_out_what_is_damaged_and_says_so(folder, tmp_path, capsys):
    kept = [small("one"), small("two")]
    [folder.add(c) for c in kept]
    harm(folder.path / f"{kept[0].id}.edcase")
    assert main(["backup", str(tmp_path / "b.zip")]) == 1
    assert kept[0].id in capsys.readouterr().err
    assert bundle.decode(zipfile.ZipFile(tmp_path / "b.zip").read(f"{kept[1].id}.edcase")) == kept[1]
