"""Kept case studies: nothing is lost or half-written, and a damaged file harms no other."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from kept_cases import case, small

from ed_core.cases import bundle
from ed_core.cases.case_study import edited
from ed_core.cases.kept import Kept
from ed_core.errors import CaseChanged, CaseError, StoreError
from ed_core.files import Bounds


def files(folder: Kept) -> list[str]:
    return sorted(str(f.relative_to(folder.path)) for f in folder.path.rglob("*") if f.is_file() and f.name != ".lock")


def test_what_is_kept_opens_in_another_process_object(folder):
    one = case(notes="n", tags=["t"])
    state = folder.add(one)
    assert Kept(folder.path.parent, shipped=None).open(one.id) == (one, state)
    assert files(folder) == [f"{one.id}.edcase"]
    assert folder.read(one.id) == bundle.encode(one), "an export is a copy"


def test_lists_search_every_word_and_sort(folder):
    folder.add(small("Beta sums", notes="carry", tags=["x"], now=1000.0))
    folder.add(small("alpha", notes="Look-up", tags=["beta"], now=1001.0))
    folder.add(small("Gamma", tags=["y"], now=1002.0))
    titles = lambda *a, **k: [c.title for c in folder.cards(*a, **k)]
    assert titles() == ["Gamma", "alpha", "Beta sums"] and titles(sort="title") == ["alpha", "Beta sums", "Gamma"]
    assert titles("BETA") == ["alpha", "Beta sums"] and titles("beta carry") == ["Beta sums"]
    for words, n in (("nothing", 0), ("ed-demo-8", 3), ("mod 10", 3), ("early_exit", 3)):  # model, prompt and probe
        assert len(titles(words)) == n


def test_edit_is_refused_where_somebody_else_was_faster_and_nothing_is_lost(folder):
    one = small(notes="first")
    folder.add(one)
    (mine, seen), (theirs, seen_too) = folder.open(one.id), folder.open(one.id)
    state = folder.save(edited(theirs, notes="theirs"), seen_too)
    with pytest.raises(CaseChanged, match="nothing of theirs was overwritten"):
        folder.save(edited(mine, notes="mine"), seen)
    assert folder.open(one.id)[0].notes == "theirs"
    assert folder.save(edited(theirs, notes="again"), state) == folder.open(one.id)[1]


def test_what_was_deleted_is_gone_and_may_be_imported_again(folder):
    one = small(notes="n")
    state = folder.add(one)
    folder.delete(one.id)
    assert folder.cards() == [] and files(folder) == []
    for act in (lambda: folder.open(one.id), lambda: folder.delete(one.id), lambda: folder.save(one, state)):
        with pytest.raises(CaseError, match="no case study"):
            act()
    assert folder.take_in(bundle.encode(one)) == (one, True)


def test_a_copy_has_an_id_of_its_own(folder):
    one = small("x" * 200)
    folder.add(one)
    copy = folder.duplicate(one)
    assert copy.id != one.id and copy.items == one.items and copy.title.endswith("x (copy)")


@pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
def test_a_damaged_file_is_named_and_can_be_deleted_and_the_others_are_unharmed(folder, harm):
    one, other = small("one"), small("other")
    folder.add(one), folder.add(other)
    file, data = folder.path / f"{one.id}.edcase", folder.read(one.id)
    middle = data.index(b"manifest.json") + 60
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    harmed = {"flip": flipped, "cut": data[: len(data) // 2], "empty": b""}[harm]
    file.write_bytes(harmed)
    assert [c.title for c in folder.cards()] == ["other"]
    assert len(folder.problems) == 1 and one.id in folder.problems[0]
    assert file.read_bytes() == harmed and folder.open(other.id)[0] == other
    folder.delete(one.id)
    assert len(folder.cards()) == 1 and folder.problems == []


@pytest.mark.parametrize("at", ["fsync", "replace", "write"])
@pytest.mark.parametrize(
    "number, says", [(errno.ENOSPC, "disk is full"), (errno.EACCES, "may not write"), (errno.EIO, "cannot be written")]
)
def test_a_disk_that_refuses_is_one_sentence_and_the_old_version_stays(folder, monkeypatch, at, number, says):
    one = small(notes="old")
    state = folder.add(one)
    where, name = (Path, "open") if at == "write" else (os, at)
    monkeypatch.setattr(where, name, Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(StoreError, match=says) as caught:
        folder.save(edited(one, notes="new"), state)
    monkeypatch.undo()
    assert "\n" not in str(caught.value)
    assert folder.open(one.id)[0].notes == "old" and files(folder) == [f"{one.id}.edcase"]


def test_threads_of_one_process_take_turns(folder):
    one = small()
    folder.add(one)

    def write(letter: str) -> None:
        done = 0
        while done < 5:
            mine, state = folder.open(one.id)
            try:
                folder.save(edited(mine, notes=mine.notes + letter), state)
                done += 1
            except CaseChanged:
                pass

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    [t.start() for t in threads], [t.join() for t in threads]
    assert sorted(folder.open(one.id)[0].notes) == sorted("abc" * 5)


def test_what_a_killed_process_left_unfinished_is_swept_and_never_listed(folder):
    one = small()
    folder.add(one)
    (folder.path / f"{one.id}.abcd.unfinished").write_bytes(b"half")
    assert len(folder.cards()) == 1
    folder.add(small())
    assert not list(folder.path.glob("*.unfinished"))


def test_shipped_ones_are_listed_after_own_ones_and_not_changed(tmp_path):
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    one = small("shipped")
    (shipped / f"{one.id}.edcase").write_bytes(bundle.encode(one))
    folder = Kept(tmp_path / "own", shipped=shipped)
    folder.add(small("own", now=1.0))
    assert [c.title for c in folder.cards()] == ["own", "shipped"]
    opened, state = folder.open(one.id)
    assert opened == one and folder.is_shipped(one.id)
    for change in (lambda: folder.save(edited(one, notes="x"), state), lambda: folder.delete(one.id)):
        with pytest.raises(CaseError, match="comes with the product"):
            change()
    assert folder.is_shipped(folder.duplicate(opened).id) is False


@pytest.mark.parametrize("id", ["", "../../etc/x", "ABCDEFGHIJ", "a" * 11, "*" * 10])
def test_an_id_is_no_path(folder, id):
    folder.add(small())
    for act in (folder.open, folder.read, folder.delete):
        with pytest.raises(CaseError):
            act(id)


def test_a_case_study_that_would_not_open_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(bundle, "CASE", replace(bundle.CASE, bounds=Bounds(unpacked=1000)))
    with pytest.raises(CaseError, match="at most 1000 bytes are kept"):
        folder.add(small())
    assert files(folder) == []
