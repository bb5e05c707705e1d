"""Case studies from the shell: export here, import there, back up, restore, check."""

from __future__ import annotations

import io
import os
import zipfile
from functools import partial

import numpy as np
import pytest
from kept_cases import case, results, small
from shell import refused

from ed_core.cases import backup, bundle
from ed_core.cases.case_study import edited
from ed_core.cases.kept import Kept
from ed_core.commands import cases, main
from ed_core.errors import ImportRefused
from ed_core.results.store import Store


@pytest.fixture(autouse=True)
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
    assert main(["case", "delete", one.id]) == 0 and main(["case", "list", "--trash"]) == 0
    assert "Sums" in capsys.readouterr().out
    refused(capsys, ["case", "show", one.id], "no case study")
    assert main(["case", "restore", one.id]) == 0 and folder.open(one.id)[0] == one
    main(["case", "delete", one.id])
    assert main(["case", "empty-trash"]) == 0 and not folder.trash()
    assert "1 case study removed" in capsys.readouterr().out
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
    out = {end: tmp_path / f"x.{end}" for end in ("edcase", "html", "npz", "csv", "parquet", "sh", "py")}
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
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "there"))
    assert main(["case", "import", str(out["edcase"])]) == 0 and Kept(shipped=None).open(one.id)[0] == one
    assert main(["case", "import", str(out["edcase"])]) == 0 and "already" in capsys.readouterr().out
    refused(capsys, ["case", "import", out["html"]], "not a case study")
    refused(capsys, ["case", "import", tmp_path / "none"], "There is no file")


def test_a_backup_brings_everything_back_and_overwrites_nothing(folder, tmp_path, monkeypatch, capsys):
    kept = [case("one"), small("two"), small("three")]
    states = [folder.add(c) for c in kept]
    out = tmp_path / "b.zip"
    assert main(["backup", str(out)]) == 0 and "3 case studies" in capsys.readouterr().out
    folder.save(edited(kept[1], notes="newer"), states[1])
    folder.delete(kept[2].id)
    assert main(["restore", str(out)]) == 0
    assert folder.open(kept[1].id)[0].notes == "newer" and folder.open(kept[2].id)[0] == kept[2]
    assert sorted(c.title for c in folder.cards()) == ["one", "three", "two", "two"], (
        "the older version came as a case study of its own"
    )
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
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert main(["backup", str(out)]) == 2
    assert out.read_bytes() == b"old" and sorted(p.name for p in tmp_path.iterdir()) == ["b.zip", "here"]


def test_a_backup_leaves_out_what_is_damaged_and_says_so(folder, tmp_path, capsys):
    kept = [small("one"), small("two")]
    [folder.add(c) for c in kept]
    harm(folder.path / f"{kept[0].id}.edcase")
    assert main(["backup", str(tmp_path / "b.zip")]) == 1
    assert kept[0].id in capsys.readouterr().err
    assert bundle.decode(zipfile.ZipFile(tmp_path / "b.zip").read(f"{kept[1].id}.edcase")) == kept[1]
