"""One harness of hostile files for every kind that is kept, as it is written now and as it was written before: each is
refused in one sentence with bounded memory, or read as exactly the original."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from test_before import ABOUT, FILES, of_arrays, of_case, of_maps, of_result

from ed_core.cards import card
from ed_core.cases import backup, bundle
from ed_core.cases.kept import Kept
from ed_core.claims import running as claims
from ed_core.errors import CardError, FitRefused, ImportRefused, StudyError
from ed_core.files import Bounds, Head, Kind, before, open_sealed, seal, write_sealed
from ed_core.fits import measured, shards
from ed_core.fits.file import Checkpoint
from ed_core.results.wire import pack, unpack
from ed_core.studies import bundle as study
from hostile.archives import MANIFEST, _files, _zip, mutated, sealed_anew

BOMB = 264 << 20  # bytes of zeros, a thousandth of that when compressed
MEMORY = 40 << 20  # bytes that refusing a file may take at most


@dataclass(frozen=True)
class One:
    """A kind of file: what reads it, what it refuses with, and what writes again what is read. `value`: what must be
    the same."""

    name: str
    read: Callable[[Path], object]
    value: Callable[[object], object]
    again: Callable[[object, Path], object]
    refuses: type[Exception]
    tries: int = 140


def restored(file: Path) -> list:
    found, problems = backup.restore(Kept(file.parent / "restored", shipped=None), file)
    shutil.rmtree(file.parent / "restored", ignore_errors=True)
    if problems:
        raise ImportRefused(problems[0])
    return [case for case, _ in found]


def backed_up(cases: list, file: Path) -> None:
    kept = Kept(file.parent / "kept", shipped=None)
    for case in cases:
        kept.add(case)
    backup.write(kept, file)
    shutil.rmtree(file.parent / "kept")


def opened_study(file: Path) -> str:
    try:
        return study.unpack(file, file.parent / "study")
    finally:
        shutil.rmtree(file.parent / "study", ignore_errors=True)


def study_again(_, file: Path) -> None:
    study.unpack(FILES / "before.edstudy", file.parent / "study")
    file.write_bytes(study.packed(file.parent / "study"))
    shutil.rmtree(file.parent / "study")


def added(file: Path) -> np.ndarray:
    half = json.loads(json.dumps(ABOUT))
    half["prompts"]["n"] = 5
    return np.asarray(shards.Added([file], half, 5)["0.xx"])


def checkpointed(file: Path) -> dict:
    """What was kept; nothing stands for a file that is damaged."""
    if (found := Checkpoint(file, "a fit", 3).read()) is None:
        raise ImportRefused("nothing")
    return dict(found)


def shard_again(values: np.ndarray, file: Path) -> None:
    shards.sum_up(file, ABOUT, range(5), [(0,)], lambda *_: {"0.xx": values}, lambda share: None)


ONES = {
    one.name: one
    for one in (
        One("result.npz", lambda f: unpack(f.read_bytes()), of_result, lambda r, f: f.write_bytes(pack(r)), ValueError),
        One(
            "beforebefo.edcase",
            lambda f: bundle.drawable(f.read_bytes()),
            of_case,
            lambda case, f: f.write_bytes(bundle.encode(case)),
            ImportRefused,
            70,
        ),
        One("cases.zip", restored, lambda found: [*map(of_case, found)], backed_up, ImportRefused, 70),
        One("before.edstudy", opened_study, str, study_again, ImportRefused, 28),
        One("card.json", card.read, dict, lambda told, f: f.write_bytes(card.to_json(told)), CardError),
        One("claims.json", lambda f: claims.read(f.parent), dict, lambda c, f: claims.write(c, f.parent), StudyError),
        One("maps.npz", measured.read, of_maps, lambda found, f: measured.write(f, found), FitRefused),
        One("replacement.npz", measured.read, of_maps, lambda found, f: measured.write(f, found), FitRefused),
        One("0.sums", added, lambda a: of_arrays({"x": a}), shard_again, FitRefused),
        One(
            "checkpoint.npz",
            checkpointed,
            of_arrays,
            lambda found, f: Checkpoint(f, "a fit", 3).write(found, now=True),
            ImportRefused,
        ),
    )
}
UNHASHED = {("card.json", "before"), ("claims.json", "before")}  # other words were other words
DOCUMENTS = ("card.json", "claims.json")
ARCHIVES = [name for name in ONES if name not in DOCUMENTS]
MADE = ["now", "before"]


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[tuple[str, str], bytes]:
    """Every kind as it was written before, and as it is written now of what was read."""
    found = {}
    for one in ONES.values():
        folder = tmp_path_factory.mktemp("good")
        file = Path(shutil.copy(FILES / one.name, folder / one.name))
        found[one.name, "before"] = file.read_bytes()
        one.again(one.read(file), file)
        found[one.name, "now"] = file.read_bytes()
    return found


def became(one: One, data: bytes, folder: Path, watched: bool = True) -> str:
    """What comes of a file: "read", "refused", or what is wrong with how it was refused."""
    file = folder / one.name
    file.write_bytes(data)
    if watched:
        tracemalloc.start()
    try:
        found = one.read(file)
    except one.refuses as error:
        says = str(error)
        peak = tracemalloc.get_traced_memory()[1]  # nothing where it is not watched
        return f"{peak >> 20} MiB" if peak > MEMORY + len(data) else "refused" if "\n" not in says else says
    finally:
        tracemalloc.stop()
        left = {file.name for file in folder.iterdir()} - {one.name, "claims.md"}
        assert not left, "nothing is left behind"
    return "read" if found is not None else "nothing"


def same(one: One, data: bytes, folder: Path, expected: object) -> bool:
    (folder / one.name).write_bytes(data)
    return one.value(one.read(folder / one.name)) == expected


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ONES)
def test_what_is_written_is_read_and_written_again_to_the_byte(good, tmp_path, name, made):
    one, data = ONES[name], good[name, made]
    file = tmp_path / name
    file.write_bytes(data)
    one.again(one.read(file), file)
    assert file.read_bytes() == good[name, "now"]
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None and archive.namelist()[-1] == MANIFEST, "any program can look into it"


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ONES)
def test_a_file_that_is_cut_off_is_refused(good, tmp_path, name, made):
    one, data = ONES[name], good[name, made]
    lengths = {len(data) * i // 16 for i in range(16)} | {len(data) - 2, len(data) - 22}
    assert {became(one, data[:length], tmp_path, watched=False) for length in lengths} == {"refused"}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ONES)
def test_a_damaged_file_is_refused_or_read_as_exactly_the_original(good, tmp_path, name, made):
    one, data = ONES[name], good[name, made]
    (tmp_path / name).write_bytes(data)
    expected, read = one.value(one.read(tmp_path / name)), 0
    for what, damaged in mutated(data, one.tries, seed=1):
        if (found := became(one, damaged, tmp_path, watched=False)) == "read":
            read += 1
            assert (name, made) in UNHASHED or same(one, damaged, tmp_path, expected), what
        else:
            assert found == "refused", (what, found)
    assert read < one.tries / 3 or (name, made) in UNHASHED


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ONES)
def test_another_kind_is_refused(good, tmp_path, name, made):
    of_maps = {"maps.npz", "replacement.npz"}
    others = [data for (other, _), data in good.items() if other != name and not {other, name} <= of_maps]
    assert {became(ONES[name], data, tmp_path, watched=False) for data in others} == {"refused"}


def manifest_of(data: bytes) -> dict:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return json.loads(archive.read(MANIFEST))


def text_of(told: dict) -> bytes:
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


def with_manifest(data: bytes, text: bytes | int) -> bytes:
    """With this text, or so many zeros, as its manifest."""
    return _zip({**_files(data), MANIFEST: text})


def with_member(data: bytes, name: str, content: bytes | int) -> bytes:
    """With this, or so many zeros, as a member, which the manifest does not know."""
    files = _files(data)
    text = files.pop(MANIFEST)
    return _zip({**files, name: content, MANIFEST: text})


def directory_of(data: bytes) -> int:
    """Where the directory begins."""
    return struct.unpack_from("<L", data, len(data) - 6)[0]


def changed_directory(data: bytes, offset: int, value: int) -> bytes:
    """With another number in the first entry of the directory."""
    out = bytearray(data)
    struct.pack_into("<L", out, directory_of(data) + offset, value)
    return bytes(out)


def member(data: bytes) -> str:
    return next(iter(manifest_of(data)["members"]))


NAMES = ("../../evil", "/etc/evil", "C:\\evil", "a/../evil.npy", "..npy", "evil\n.npy", "\u202e.npy")
LIES: dict[str, Callable[[bytes], bytes]] = {
    "a bomb": lambda data: with_member(data, member(data), BOMB),
    "a bomb as manifest": lambda data: with_manifest(data, BOMB // 4),
    "a size that is larger": lambda data: changed_directory(data, 24, 1 << 30),
    "a size that is smaller": lambda data: changed_directory(data, 24, 1),
    "both sizes larger": lambda data: changed_directory(changed_directory(data, 24, 1 << 30), 20, 1 << 30),
    "an offset": lambda data: changed_directory(data, 42, 7),
    "more entries than there are": lambda data: data[:-14] + struct.pack("<2H", 60_000, 60_000) + data[-10:],
    "a comment": lambda data: data[:-2] + b"\1\0x",
    "something in front": lambda data: b"PK" + data,
    "deep JSON": lambda data: with_manifest(data, b"[" * 100_000 + b"]" * 100_000),
    "a manifest that does not close": lambda data: with_manifest(data, b'"\\"' * 200_000),
    "a long number": lambda data: with_manifest(data, b'{"version":' + b"9" * 5000 + b"}"),
    "a manifest that is a list": lambda data: with_manifest(data, b"[]"),
    "a member too many": lambda data: with_member(data, "x.npy", b"x"),
    "a member twice": lambda data: twice(data),
    "a hash": lambda data: sealed_anew(data, lambda told: told | {"members": dict.fromkeys(told["members"], "0" * 64)}),
    "no hash": lambda data: sealed_anew(data, lambda told: told | {"members": dict.fromkeys(told["members"], "")}),
    "no version": lambda data: sealed_anew(data, lambda told: {k: v for k, v in told.items() if k != "version"}),
    "a later version": lambda data: sealed_anew(data, lambda told: told | {"version": 99}),
    "a field too many": lambda data: sealed_anew(data, lambda told: told | {"author": "x"}),
    "another digest": lambda data: with_manifest(data, text_of(manifest_of(data) | {"digest": "0" * 64})),
    "another spelling": lambda data: with_manifest(data, json.dumps(manifest_of(data)).encode()),
} | {
    f"a member named {name!r}": lambda data, name=name: sealed_anew(data, members=lambda files: {name: b"x", **files})
    for name in NAMES
}


def twice(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as made:
        first = archive.namelist()[0]
        with pytest.warns(UserWarning, match="Duplicate name"):
            for name in (first, *archive.namelist()):
                made.writestr(name, archive.read(name))
    return out.getvalue()


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_lies_is_refused(good, tmp_path, name, lie):
    assert became(ONES[name], LIES[lie](good[name, "now"]), tmp_path) == "refused"


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_put_together_by_another_program_is_read(good, tmp_path, name):
    """It is the lies that are refused, not the putting together."""
    data = sealed_anew(good[name, "now"], packing=zipfile.ZIP_STORED)
    assert became(ONES[name], data, tmp_path) == "read"


WORDS: dict[str, Callable[[dict], bytes | dict]] = {
    "deep JSON": lambda told: b"[" * 100_000 + b"]" * 100_000,
    "deep JSON within": lambda told: told | {"about": json.loads("[" * 60 + "]" * 60)},
    "a long number": lambda told: (
        json.dumps(told | {"version": 1}).encode().replace(b": 1,", b": " + b"9" * 5000 + b",")
    ),
    "a later version": lambda told: told | {"version": 99},
    "no format": lambda told: {name: value for name, value in told.items() if name != "format"},
    "a word changed": lambda told: told | {"about": "x"},
    "a field too few": lambda told: {name: value for name, value in told.items() if name != "about"},
    "a key twice": lambda told: json.dumps(told, indent=1).encode()[:-2] + b',\n "about": "x"\n}\n',
    "another spelling": lambda told: json.dumps(told).encode(),
    "no end": lambda told: b'{"' + b'\\"' * 500_000,
    "not a number": lambda told: told | {"about": float("nan")},
    "a list": lambda told: b"[]",
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("lie", WORDS)
def test_a_document_that_lies_is_refused(good, tmp_path, name, lie):
    told = json.loads(good[name, "now"])
    lied = WORDS[lie](told)
    text = lied if isinstance(lied, bytes) else (json.dumps(lied, indent=1, ensure_ascii=False) + "\n").encode()
    assert became(ONES[name], text, tmp_path) == "refused"


# ---------------------------------------------------------------- the container by itself


class Note(Head):
    """A kind for these tests."""

    text: str


NOTE = Kind("note", "a note", 3, Note, "write it anew", members=r"\w+\.(npy|txt)", compressed=r".*\.txt")


def test_arrays_come_back_as_they_were_and_numpy_opens_them():
    arrays = {
        "map": np.arange(6, dtype=np.float32).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "number": np.float64(3),
        "nothing": np.zeros((0, 3), np.int32),
        "flags": np.array([True, False]),
        "words": np.array("ä\nb"),
        "every_second": np.arange(10)[::2],
    }
    data = seal(NOTE, {"text": "ä"}, {**arrays, "long.txt": b"x" * 5000})
    assert data == seal(NOTE, {"text": "ä"}, {**arrays, "long.txt": b"x" * 5000}) and len(data) < 6000
    with open_sealed(data, NOTE) as sealed, np.load(io.BytesIO(data), allow_pickle=False) as numpys:
        assert sealed.head.text == "ä" and not sealed.old and sealed.read("long.txt") == b"x" * 5000
        assert sealed.size("long.txt") == 5000 and sealed.arrays().keys() == arrays.keys()
        for name, values in arrays.items():
            for found in (sealed.array(name), numpys[name]):
                assert found.dtype == values.dtype and np.array_equal(found, values), name
            assert sealed.array(name).flags.writeable
    with pytest.raises(TypeError, match="object"):
        seal(NOTE, {"text": ""}, {"objects": np.array([{}])})


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "note"
    write_sealed(file, NOTE, {"text": "first"})

    def broken():
        yield "x", np.zeros(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sealed(file, NOTE, {"text": "second"}, broken())
    with open_sealed(file, NOTE) as sealed:
        assert sealed.head.text == "first"
    assert [one.name for one in tmp_path.iterdir()] == ["note"]


def test_an_older_version_goes_through_every_migration(monkeypatch):
    data = seal(NOTE, {"text": "x"}, {"a": np.zeros(2)})
    first = sealed_anew(data, lambda told: told | {"version": 1})
    with pytest.raises(ImportRefused, match=r"\('note', 1\)"), open_sealed(first, NOTE):
        pass
    for version in (1, 2):
        migrate = lambda told, version=version: told | {"text": f"{told['text']}{version}"}
        monkeypatch.setitem(before.MIGRATIONS, ("note", version), migrate)
    with open_sealed(first, NOTE) as sealed:
        assert sealed.head.text == "x12" and sealed.array("a").shape == (2,)


def test_what_is_found_what_is_expected_and_what_to_do_are_said(tmp_path):
    data = seal(NOTE, {"text": "x"}, {"a": np.zeros(2)})
    with pytest.raises(FitRefused) as caught, open_sealed(data, measured.MAPS, "my.npz"):
        pass
    assert str(caught.value).startswith("my.npz is damaged, or not a file of maps as")
    assert "(found 'effective-depth note', expected 'effective-depth maps'); make it anew with" in str(caught.value)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (Bounds(file=100), "at most 9.54e-05 MiB are read"),
        (Bounds(members=1), "3 entries, at most 2 are read"),
        (Bounds(unpacked=2000), "unpacked; at most"),
        (Bounds(member=1000), "'b.npy' would have 1128 bytes unpacked, at most 1000"),
        (Bounds(head=100), "'manifest.json' would have"),
        (Bounds(nesting=1), "nested more than 1 deep"),
    ],
)
def test_every_bound_is_kept(bounds, says):
    data = seal(NOTE, {"text": "x"}, {"a": np.zeros(125), "b": np.zeros(125)})
    with open_sealed(data, NOTE) as sealed:
        assert sealed.arrays().keys() == {"a", "b"}
    with (
        pytest.raises(ImportRefused, match=says),
        open_sealed(data, dataclasses.replace(NOTE, bounds=bounds)) as sealed,
    ):
        sealed.array("b")


def test_the_disks_troubles_are_not_blamed_on_the_file():
    data = seal(NOTE, {"text": "x"})
    with pytest.raises(OSError, match="No space"), open_sealed(data, NOTE):
        raise OSError(28, "No space left on device")
