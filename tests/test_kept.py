"""Kept case studies: nothing is lost, nothing half-written, nobody locked out; a damaged file harms no other."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from unittest.mock import Mock

import pytest
from archives import sealed_anew
from kept_cases import case, small

from ed_core.cases import bundle, kept
from ed_core.cases.case_study import edited, new_id
from ed_core.cases.kept import Kept
from ed_core.errors import CaseChanged, CaseError, OtherVersion, StoreError
from ed_core.files import Bounds, archive
from ed_core.results.store import Store

ROOT = Path(__file__).parent.parent


def files(folder: Kept) -> list[str]:
    return sorted(str(f.relative_to(folder.path)) for f in folder.path.rglob("*") if f.is_file() and f.name != ".lock")


def test_what_is_kept_opens_in_another_process_object(folder):
    one = case(notes="n", tags=["t"])
    state = folder.add(one)
    assert Kept(folder.root, shipped=None).open(one.id) == (one, state)
    assert files(folder) == [f"{one.id}.edcase"]
    assert folder.read(one.id) == bundle.encode(one), "an export is a copy"


def test_the_folder_is_that_of_the_cache_and_survives_its_clearing(tmp_path, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    one = small()
    Kept().add(one)
    Store().clear()
    assert (tmp_path / "kept" / f"{one.id}.edcase").is_file()


def test_lists_search_every_word_and_sort(folder):
    for i, (title, notes, tags) in enumerate(
        [("Beta sums", "carry", ["x"]), ("alpha", "Look-up", ["beta"]), ("Gamma", "", ["y"])]
    ):
        folder.add(small(title, notes=notes, tags=tags, now=1000.0 + i))
    titles = lambda *a, **k: [c.title for c in folder.cards(*a, **k)]
    assert titles() == ["Gamma", "alpha", "Beta sums"] and titles(sort="title") == ["alpha", "Beta sums", "Gamma"]
    assert titles("BETA") == ["alpha", "Beta sums"] and titles("beta carry") == ["Beta sums"]
    assert titles("nothing") == []
    assert len(titles("ed-demo-8")) == len(titles("mod 10")) == len(titles("early_exit")) == 3, (
        "model, prompt and probe"
    )


def test_a_list_opens_no_array_and_reads_an_unchanged_file_once(folder, monkeypatch):
    for i in range(3):
        folder.add(small(f"n{i}"))
    read = []
    original = bundle.card
    monkeypatch.setattr(bundle, "card", lambda file: read.append(file) or original(file))
    monkeypatch.setattr(bundle, "result_of", lambda sealed: pytest.fail("a list opened an array"))
    assert len(folder.cards()) == len(folder.cards()) == 3 == len(read)


def test_edit_is_refused_where_somebody_else_was_faster_and_nothing_is_lost(folder):
    one = small(notes="first")
    folder.add(one)
    (mine, seen), (theirs, seen_too) = folder.open(one.id), folder.open(one.id)
    state = folder.save(edited(theirs, notes="theirs"), seen_too)
    with pytest.raises(CaseChanged, match="nothing of theirs was overwritten"):
        folder.save(edited(mine, notes="mine"), seen)
    assert folder.open(one.id)[0].notes == "theirs"
    assert folder.save(edited(theirs, notes="again"), state) == folder.open(one.id)[1]
    folder.delete(one.id)
    with pytest.raises(CaseError, match="no case study"):
        folder.save(edited(mine, notes="mine"), seen)


def test_delete_is_undone_and_only_emptying_the_trash_is_final(folder):
    one = small(notes="n")
    folder.add(one)
    folder.delete(one.id)
    assert folder.cards() == [] and [c.id for c in folder.trash()] == [one.id]
    with pytest.raises(CaseError, match="no case study"):
        folder.open(one.id)
    with pytest.raises(CaseError, match="taken"):
        folder.add(one)
    folder.restore(one.id)
    assert folder.open(one.id)[0] == one and folder.trash() == []
    folder.delete(one.id)
    assert folder.empty_trash() == 1
    with pytest.raises(CaseError, match="emptied"):
        folder.restore(one.id)


@pytest.mark.parametrize("title", ["x" * 200, "x" * 189 + " y"])
def test_a_copy_has_an_id_of_its_own(folder, title):
    one = small(title)
    folder.add(one)
    copy = folder.duplicate(one)
    assert copy.id != one.id and copy.items == one.items
    assert len(folder.cards()) == 2 and copy.title.endswith("x (copy)")


def test_an_id_is_never_given_twice(folder, monkeypatch):
    one = small()
    folder.add(one)
    folder.delete(one.id)
    drawn = iter([one.id, one.id, new_id()])
    monkeypatch.setattr(kept, "new_id", lambda: next(drawn))
    assert folder.duplicate(one).id != one.id


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "text"])
def test_a_damaged_file_is_reported_and_set_aside_and_the_others_are_unharmed(folder, harm):
    one, other = small("one"), small("other")
    folder.add(one), folder.add(other)
    file, data = folder.path / f"{one.id}.edcase", folder.read(one.id)
    middle = data.index(b"manifest.json") + 60
    harmed = {
        "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "cut": data[: len(data) // 2],
        "empty": b"",
        "text": b"hello",
    }
    file.write_bytes(harmed[harm])
    assert [c.title for c in folder.cards()] == ["other"]
    assert len(folder.problems) == 1 and one.id in folder.problems[0]
    assert len(folder.damaged()) == 1 and (folder.damaged_path / folder.damaged()[0]).read_bytes() == harmed[harm]
    assert folder.open(other.id)[0] == other


def test_a_full_memory_is_no_damage(folder, monkeypatch):
    one, store, kept = small(), Store(folder.root), Kept(folder.root, shipped=None)
    result = one.items[0].result
    folder.add(one)
    store.put(result)
    with monkeypatch.context() as full:
        full.setattr(archive, "content", Mock(side_effect=MemoryError))
        for read in (lambda: kept.open(one.id), lambda: store.get(result.request.key)):
            with pytest.raises(StoreError, match="the memory is full"):
                read()
        assert kept.cards() == [] and "the memory is full" in kept.problems[0]
    assert kept.damaged() == [] and kept.open(one.id)[0] == one and store.get(result.request.key) is not None


def test_damage_within_an_array_is_found_on_opening(folder):
    one = small()
    folder.add(one)
    data = bytearray(folder.read(one.id))
    data[data.index(b"0.npz") + 200] ^= 4
    (folder.path / f"{one.id}.edcase").write_bytes(data)
    assert len(folder.cards()) == 1, "the card is whole"
    with pytest.raises(CaseError, match="set aside"):
        folder.open(one.id)
    assert folder.cards() == [] and len(folder.damaged()) == 1


def test_a_file_in_anothers_place_is_not_believed(folder):
    one = small()
    folder.add(one)
    other = new_id()
    os.rename(folder.path / f"{one.id}.edcase", folder.path / f"{other}.edcase")
    assert folder.cards() == [] and "renamed" in folder.problems[0] and files(folder) == [f"{other}.edcase"]
    with pytest.raises(CaseError, match="renamed"):
        folder.open(other)


def test_a_file_of_a_later_version_stays_where_it_is(folder):
    one = small()
    folder.add(one)
    file = folder.path / f"{one.id}.edcase"
    file.write_bytes(sealed_anew(file.read_bytes(), lambda told: told | {"version": 3}))
    assert folder.cards() == [] and "update" in folder.problems[0]
    with pytest.raises(OtherVersion):
        folder.open(one.id)
    assert files(folder) == [f"{one.id}.edcase"]


@pytest.mark.parametrize("at", ["fsync", "replace", "write"])
@pytest.mark.parametrize(
    "number, says",
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "may not write"), (errno.EIO, "Nothing was changed")],
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


def test_a_really_full_disk_keeps_the_old_version(folder):
    """The kernel itself refuses the bytes: a file size limit, in a process of its own."""
    one = small(notes="old")
    folder.add(one)
    code = f"""
import resource, signal, sys
from ed_core.cases.case_study import edited
from ed_core.errors import StoreError
from ed_core.cases.kept import Kept
folder = Kept({str(folder.root)!r}, shipped=None)
one, state = folder.open({one.id!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # of what it imports now, it would be cut as well, and stay so
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    folder.save(edited(one, notes="new" * 5000), state)
except StoreError as error:
    print(error)
print("torch" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "disk is full" in out and out.splitlines()[-1] == "False"
    assert folder.open(one.id)[0].notes == "old" and files(folder) == [f"{one.id}.edcase"]


WRITER = """
import sys
from dataclasses import replace
from ed_core.cases.case_study import edited
from ed_core.errors import CaseChanged
from ed_core.cases.kept import Kept
folder, id = Kept(sys.argv[1], shipped=None), sys.argv[2]
done = 0
while done < 15:
    one, state = folder.open(id)
    try:
        folder.save(edited(one, notes=one.notes + sys.argv[3]), state)
        done += 1
    except CaseChanged:
        pass
"""


def test_two_processes_on_one_folder_lose_nothing(folder):
    """Both append to one case study, each fifteen times: every refusal was told, every success is there."""
    one = small()
    folder.add(one)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder.root), one.id, letter], cwd=ROOT) for letter in "ab"
    ]
    assert [w.wait(60) for w in writers] == [0, 0]
    notes = folder.open(one.id)[0].notes
    assert (notes.count("a"), notes.count("b"), len(notes)) == (15, 15, 30)


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


def test_a_writer_killed_with_the_lock_in_its_hand_locks_nobody_out(folder, monkeypatch):
    folder.add(small())
    code = f"""
import time
from ed_core.cases.kept import Kept
with Kept({str(folder.root)!r}, shipped=None)._folder.locked():
    print("locked", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline().strip() == "locked"
    monkeypatch.setattr(kept, "LOCK_SECONDS", 0.2)
    with pytest.raises(StoreError, match="Another process"):
        folder.add(small())
    assert len(folder.cards()) == 1, "reading needs no lock"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    folder.add(small())


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
    for act in (folder.open, folder.read, folder.delete, folder.restore):
        with pytest.raises(CaseError):
            act(id)


def test_opening_in_a_new_process_imports_nothing_heavy(folder):
    one = case()
    folder.add(one)
    code = f"""
import sys
from ed_core.cases.kept import Kept
folder = Kept({str(folder.root)!r}, shipped=None)
folder.cards(), folder.open({one.id!r})
print(*sorted({{"torch", "transformers", "plotly", "pandas"}} & set(sys.modules)))
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_a_case_study_that_would_not_open_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(bundle, "CASE", replace(bundle.CASE, bounds=Bounds(unpacked=1000)))
    with pytest.raises(CaseError, match="at most 1000 bytes are kept; keep fewer of them"):
        folder.add(small())
    assert files(folder) == []
    monkeypatch.undo()
    folder.add(replace(small(), verdict="x"))


@pytest.mark.parametrize("step", [1, -1], ids=["later", "by a clock that went back"])
def test_restore_takes_the_version_that_was_deleted_last(folder, monkeypatch, step):
    now = count(10**18, step)
    monkeypatch.setattr(kept.time, "time_ns", lambda: next(now))
    one = small(notes="old")
    folder.add(one)
    folder.delete(one.id)
    folder.take_in(bundle.encode(edited(one, notes="new")))
    folder.delete(one.id)
    assert [card.notes for card in folder.trash()] == ["new", "old"]
    folder.restore(one.id)
    assert folder.open(one.id)[0].notes == "new" and [card.notes for card in folder.trash()] == ["old"]


def test_a_file_that_was_replaced_is_read_anew(folder):
    one = small("A sum")
    folder.add(one)
    assert [card.title for card in folder.cards()] == ["A sum"]
    file, others = folder.files()[0], (f"{a}{b} sum" for a in ascii_uppercase for b in ascii_uppercase)
    made = ((title, bundle.encode(replace(one, title=title))) for title in others)
    title, data = next((title, data) for title, data in made if len(data) == file.stat().st_size)
    file.write_bytes(data)  # only its time tells
    assert [card.title for card in folder.cards()] == [title]


def test_the_lock_keeps_everybody_else_out(folder):
    folder.add(small())
    with open(folder.path / ".lock") as other:
        with folder.locked(), pytest.raises(BlockingIOError):
            with folder.locked():
                pass  # the outer one still holds it
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_lock_that_leads_elsewhere_is_not_followed(folder, tmp_path):
    folder.add(small())
    (folder.path / ".lock").unlink()
    (folder.path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be locked"):
        folder.add(small())
    assert not (tmp_path / "elsewhere").exists() and len(folder.cards()) == 1
    (folder.path / ".lock").unlink()
    folder.add(small())


def test_a_lock_that_was_deleted_while_it_was_held_is_made_anew(folder):
    folder.add(small())
    with folder.locked():
        (folder.path / ".lock").unlink()
        folder.add(small())
    folder.add(small())
    assert len(folder.cards()) == 3 and (folder.path / ".lock").is_file()
