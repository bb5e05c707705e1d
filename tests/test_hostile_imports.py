"""A stranger's `.edcase` is read as exactly what was exported, or refused in one sentence with nothing left behind, in
bounded memory."""

from __future__ import annotations

import io
import os
import tracemalloc

import archives
import numpy as np
import pytest
from kept_cases import case, small

from ed_core.cases import bundle
from ed_core.cases.kept import Kept
from ed_core.errors import ImportRefused

MEMORY = 40 * 2**20  # bytes that refusing a file may take at most, beside the file itself


@pytest.fixture(scope="module")
def good() -> bytes:
    return bundle.encode(case(probes=("layer_skip", "contributions", "continuation")))


def refused(folder: Kept, what: str, data: bytes) -> None:
    with pytest.raises(ImportRefused) as caught:
        folder.take_in(data)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500, what
    assert [f.name for f in folder.path.rglob("*") if f.is_file() and f.name != ".lock"] == [], what


@pytest.mark.parametrize("lies", [archives.zips, archives.manifests, archives.arrays, archives.results])
def test_a_hostile_file_is_refused_in_one_sentence(folder, good, lies):
    for what, data in lies(good):
        refused(folder, what, data)


def test_a_bomb_is_refused_in_bounded_memory(folder, good):
    for what, data in archives.bombs(good):
        tracemalloc.start()
        try:
            refused(folder, what, data)
            assert tracemalloc.get_traced_memory()[1] < MEMORY, what
        finally:
            tracemalloc.stop()


def test_what_was_only_put_together_again_opens(good):
    """It is the lies that are refused, not the putting together."""
    assert bundle.drawable(archives.zipped(archives.unzipped(good))) == bundle.decode(good)
    assert bundle.drawable(archives.with_result(good, archives.unzipped(good)["0.npz"])) == bundle.decode(good)


def test_a_damaged_file_is_refused_or_read_as_exactly_the_original():
    kept = small(notes="n" * 300, tags=["a"])
    read = 0
    for what, damaged in archives.mutated(bundle.encode(kept), 280):
        try:
            assert bundle.decode(damaged) == kept, what
            read += 1
        except ImportRefused:
            pass
    assert read < 80, "most damage is seen; what is not touches dates in the archive's directory"


def test_nothing_is_unpickled(folder, tmp_path, good):
    """An array of objects that would make a folder when it is unpickled."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], object), allow_pickle=True)
    with pytest.raises(ImportRefused):
        folder.take_in(archives.with_array(good, buffer.getvalue()))
    assert not (tmp_path / "evil").exists()
    np.load(io.BytesIO(buffer.getvalue()), allow_pickle=True)
    assert (tmp_path / "evil").exists(), "it would have worked"
