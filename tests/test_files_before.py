"""Files of before there was one container, each by the program of then: they open with the same numbers, and are
written again as sealed containers that hold the same. `numbers.json` was made by the readers of then."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from ed_core.cards import card
from ed_core.cases import backup, bundle
from ed_core.cases.kept import Kept
from ed_core.claims import running as claims
from ed_core.fits import file as lens
from ed_core.fits import measured, shards
from ed_core.fits.file import Checkpoint
from ed_core.results.wire import pack, unpack
from ed_core.studies import bundle as study
from ed_core.types import canonical_json

BEFORE = Path(__file__).parent / "data" / "before" / "files"
NUMBERS = json.loads((BEFORE / "numbers.json").read_text())
ABOUT = {  # of the fit that the shards are of
    "kind": "affine",
    "model": {"name": "m", "precision": "fp32", "identity": {"content_hash": "1"}},
    "prompts": {"n": 10, "digest": "d"},
}


def of_arrays(arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def of_json(value) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def of_result(result) -> list[str]:
    arrays = {f"m.{name}": one.values for name, one in result.measures.items()}
    arrays |= {f"s.{name}": values for name, values in result.summary.items()}
    words = [result.request.to_json(), result.tokens, result.token_ids, result.provenance]
    return [of_arrays(arrays), of_json(words)]


def of_case(case) -> list:
    return [*(of_result(item.result) for item in case.items), case.title, case.notes, case.verdict]


def of_maps(found) -> list[str]:
    arrays = {f.name: getattr(found, f.name) for f in fields(found) if f.name != "certificate"}
    return [of_arrays(arrays), of_json(found.certificate)]


def test_a_result():
    found = unpack((BEFORE / "result.npz").read_bytes())
    assert of_result(found) == NUMBERS["result.npz"] == of_result(unpack(pack(found)))


def test_a_case_study():
    file = BEFORE / "beforebefo.edcase"
    found = bundle.decode(file.read_bytes())
    assert of_case(found) == NUMBERS[file.name] == of_case(bundle.decode(bundle.encode(found)))
    assert bundle.card(file).title == found.title and bundle.decode(bundle.encode(found)) == found


def test_a_backup(tmp_path):
    kept = Kept(tmp_path / "a", shipped=None)
    ((case, new),), problems = backup.restore(kept, BEFORE / "cases.zip")
    assert new and not problems and of_case(case) == NUMBERS["beforebefo.edcase"]
    assert kept.owner(case.id) == "ada@example.org"
    assert backup.write(kept, tmp_path / "b.zip") == (1, [])
    again = Kept(tmp_path / "c", shipped=None)
    assert backup.restore(again, tmp_path / "b.zip") == ([(case, True)], [])
    assert again.owner(case.id) == "ada@example.org"


def test_a_study(tmp_path):
    file = BEFORE / "before.edstudy"
    assert study.name_of(file) == "before"
    assert study.unpack(file, tmp_path / "a") == NUMBERS[file.name]
    (tmp_path / "b.edstudy").write_bytes(study.packed(tmp_path / "a"))
    assert study.unpack(tmp_path / "b.edstudy", tmp_path / "c") == NUMBERS[file.name]


def test_a_card(tmp_path):
    found = card.read(BEFORE / "card.json")
    assert of_json(found.fields()) == NUMBERS["card.json"]
    (tmp_path / "card.json").write_bytes(card.to_json(found))
    assert card.read(tmp_path / "card.json").fields() == found.fields()


def test_claims(tmp_path):
    found = claims.read(BEFORE)
    assert of_json(found.fields()) == NUMBERS["claims.json"]
    claims.write(found, tmp_path)
    assert claims.read(tmp_path).fields() == found.fields()


@pytest.mark.parametrize("name", ["maps.npz", "replacement.npz"])
def test_maps(tmp_path, name):
    found = measured.read(BEFORE / name)
    assert of_maps(found) == NUMBERS[name]
    measured.write(tmp_path / name, found)
    assert of_maps(measured.read(tmp_path / name)) == NUMBERS[name]
    with np.load(BEFORE / name, allow_pickle=False) as then, np.load(tmp_path / name, allow_pickle=False) as now:
        arrays = [one for one in then.files if one != "certificate"]
        assert all(np.array_equal(then[one], now[one], equal_nan=True) for one in arrays) and "error" in arrays


def test_a_lens():
    found = lens.read(BEFORE / "affine.safetensors")
    assert [found.content, of_json(dict(found.certificate))] == NUMBERS["affine.safetensors"]


def test_sums(tmp_path):
    added = shards.Added([BEFORE / "0.sums", BEFORE / "1.sums"], ABOUT, 10)
    assert of_arrays({name: added[name] for name in ("0.xx", "1.xx", "0.n", "1.n")}) == NUMBERS["0.sums"]
    file = shutil.copy(BEFORE / "checkpoint.npz", tmp_path / "x")
    kept = Checkpoint(Path(file), "a fit", 3)
    assert of_arrays(kept.read()) == NUMBERS["checkpoint.npz"]
    kept.write(kept.read(), now=True)
    assert of_arrays(kept.read()) == NUMBERS["checkpoint.npz"]
    assert Checkpoint(Path(file), "another fit", 3).read() is None
