"""What comes in is a stranger's. A bundle is read as exactly what was exported, or refused in one sentence with nothing
left behind; other files are refused in a sentence too."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from unittest.mock import Mock

import archives
import numpy as np
import pytest
from archives import ARRAYS, handmade, mutated
from kept_cases import case, results, small
from safetensors.numpy import save_file

from ed_core.cards import card
from ed_core.cases import bundle, drawings
from ed_core.cases.case_study import edited, make
from ed_core.cases.kept import Kept
from ed_core.claims import running as claims
from ed_core.errors import EffectiveDepthError, ImportRefused
from ed_core.figures.images import thumbnail
from ed_core.files import Bounds
from ed_core.fits import file as lens
from ed_core.fits import measured
from ed_core.probes import EarlyExit
from ed_core.sources import controls, specs, weights
from ed_core.studies.items import open_folder

MEMORY = 40 * 2**20  # bytes that refusing a bundle may take at most, beside the bundle itself


def left_behind(folder: Kept) -> list[str]:
    return [f.name for f in folder.root.rglob("*") if f.is_file() and f.name != ".lock"]


def test_an_export_comes_in_elsewhere_as_it_was(folder, tmp_path):
    one = case(notes="*n*", tags=["t"])
    folder.add(one)
    elsewhere = Kept(tmp_path / "elsewhere", shipped=None)
    assert elsewhere.take_in(folder.read(one.id)) == (one, True)
    assert elsewhere.open(one.id)[0] == one
    assert elsewhere.take_in(folder.read(one.id)) == (one, False) and len(elsewhere.cards()) == 1


def test_another_version_of_what_is_here_gets_an_id_of_its_own(folder):
    one = small(notes="mine")
    folder.add(one)
    taken, new = folder.take_in(bundle.encode(edited(one, notes="theirs")))
    assert new and taken.id != one.id and taken.notes == "theirs" and folder.open(one.id)[0].notes == "mine"


def test_what_was_deleted_comes_back_under_its_id(folder):
    one = small()
    folder.add(one)
    folder.delete(one.id)
    assert folder.take_in(bundle.encode(one)) == (one, True)
    folder.delete(one.id)
    stranger = bundle.encode(small(id=one.id, now=5.0))
    assert folder.take_in(stranger)[0].id != one.id, "only the case study itself takes its id back"


def test_hostile_bundles_are_refused_in_one_sentence_with_bounded_memory(folder):
    seen = set()
    for what, data in handmade(bundle.encode(case(probes=("layer_skip", "contributions", "continuation")))):
        tracemalloc.start()
        try:
            with pytest.raises(ImportRefused) as caught:
                folder.take_in(data)
            assert tracemalloc.get_traced_memory()[1] < MEMORY, what
        finally:
            tracemalloc.stop()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500, what
        assert left_behind(folder) == [], what
        seen.add(what)
    assert len(seen) > 85 and set(ARRAYS) <= seen


def test_the_handmade_ones_are_refused_for_what_they_are():
    """A bundle taken apart and put together again opens: it is the lies that are refused, not the putting together."""
    kept = case(probes=("layer_skip", "contributions", "continuation"))
    files = archives._files(bundle.encode(kept))
    assert bundle.drawable(archives._zip(files)) == kept
    same = archives._with_result(files, archives._wire_header(files["0.npz"], lambda h: h))
    assert bundle.drawable(same).items[0].result["effect"].shape == (8, 8)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bundles_are_refused_or_read_as_exactly_the_original(seed):
    kept = small(notes="n" * 300, tags=["a"])
    data, read = bundle.encode(kept), 0
    for what, damaged in mutated(data, 210, seed):
        try:
            assert bundle.decode(damaged) == kept, what
            read += 1
        except ImportRefused:
            pass
    assert read < 60, "most damage is seen; what is not touches dates in the archive's directory"


def test_every_single_byte_of_a_bundle_counts():
    """Each byte of the directory and of the first kilobyte, set to another value."""
    kept = small()
    data = bundle.encode(kept)
    for at in [*range(0, 1000, 3), *range(len(data) - 250, len(data))]:
        for value in (data[at] ^ 0xFF, data[at] ^ 1):
            try:
                assert bundle.decode(data[:at] + bytes([value]) + data[at + 1 :]) == kept, at
            except ImportRefused:
                pass


def test_too_large_is_said_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr(bundle, "CASE", replace(bundle.CASE, bounds=Bounds(file=1000)))
    with pytest.raises(ImportRefused, match="MiB"):
        folder.take_in(bundle.encode(small()))


def test_what_cannot_be_drawn_is_refused(folder, monkeypatch):
    broken = Mock(side_effect=IndexError("index 5 is out of bounds"))
    monkeypatch.setitem(drawings.OVER_SEVERAL, EarlyExit, broken)
    with pytest.raises(ImportRefused, match="out of bounds"):
        folder.take_in(bundle.encode(small()))
    assert left_behind(folder) == []


def test_the_card_is_made_anew_and_not_believed(folder):
    """A bundle whose list entry promises another prompt and picture than its results hold."""
    one = small()
    lie = {"prompt": "another prompt", "model": "gpt-5", "thumbnail": [[255]]}
    lied = archives.sealed_anew(bundle.encode(one), lambda told: told | {"card": told["card"] | lie})
    folder.take_in(lied)
    (card,) = folder.cards()
    assert card.model == "ed-demo-8" and card.prompt == one.items[0].result.request.prompts[0].text[:300]
    assert [list(row) for row in card.thumbnail] == thumbnail([i.result for i in one.items])


def with_header(change) -> bytes:
    """A bundle whose header was changed in place."""

    def changed(told):
        change(told)
        return told

    return archives.sealed_anew(bundle.encode(small(now=1e9)), changed)


@pytest.mark.parametrize(
    "place, name, lie",
    [
        ("", "author", "x"),
        ("case", "author", "x"),
        ("case", "created", 1),
        ("case", "first_token", 1),
        ("case", "tags", "ab"),
        ("members", "0.npz", 0),
        ("shown", "author", "x"),
        ("shown", "window", [0, 1, 2]),
        ("shown", "settings", {}),
        ("shown", "settings", None),
        ("card", "author", "x"),
        ("card", "depths", {"kl": 1.0}),
        ("card", "runs", [1]),
        ("card", "thumbnail", [[1, 2], [3]]),
        ("card", "thumbnail", [[]]),
        ("card", "thumbnail", [[256]]),
        ("card", "thumbnail", [[1]] * 65),
    ],
)
def test_a_header_holds_exactly_what_this_program_writes(place, name, lie):
    """Values of another kind, names too many: refused by what reads them, with the name in the sentence. A whole number
    is one kind of number, and is not how a time is written."""
    says = "spelled otherwise" if name == "created" else name

    def lied(header):
        {"": header, "shown": header["items"][0]}.get(place, header.get(place))[name] = lie

    told = with_header(lied)
    with pytest.raises(ImportRefused, match=says):
        bundle.card(BytesIO(told))
    if place != "card":  # it is made anew
        with pytest.raises(ImportRefused, match=says):
            bundle.decode(told)


@pytest.mark.parametrize("name", ["window", "selected", "settings", "page"])
def test_a_view_has_all_its_fields(name):
    with pytest.raises(ImportRefused, match="left out"):
        bundle.decode(with_header(lambda header: header["items"][0].pop(name)))


def test_nothing_is_unpickled(folder, tmp_path):
    """An array of objects that would write a file when it is unpickled."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], object), allow_pickle=True)
    files = archives._files(bundle.encode(small()))
    npz = archives._replaced(buffer.getvalue())(files["0.npz"])
    with pytest.raises(ImportRefused):
        folder.take_in(archives._with_result(files, npz))
    assert not (tmp_path / "evil").exists()
    np.load(io.BytesIO(buffer.getvalue()), allow_pickle=True)
    assert (tmp_path / "evil").exists(), "it would have worked"


def test_a_control_that_does_not_exist_is_refused(folder, monkeypatch):
    """Headings, verdicts and figures name a control: one that nobody knows would break the page that shows it."""
    one = results()["contributions"]
    evil = replace(one, request=replace(one.request, models=(replace(one.request.models[0], control="<evil>"),)))
    with monkeypatch.context() as patch:
        patch.setitem(controls.KINDS, "<evil>", "evil")
        data = bundle.encode(make("x", [evil]))
    with pytest.raises(ImportRefused, match="evil"):
        folder.take_in(data)
    assert not left_behind(folder)


def test_a_prompt_that_no_tokenizer_encodes_faithfully_is_refused(folder):
    one = results()["contributions"]
    prompt = replace(one.request.prompts[0], text="a\x07b")
    data = bundle.encode(make("x", [replace(one, request=replace(one.request, prompts=(prompt,)))]))
    with pytest.raises(ImportRefused, match="control character"):
        folder.take_in(data)
    assert not left_behind(folder)


# ---------------------------------------------------------------- other files


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a card": ("card.json", card.read),
    "the plan of a study": ("plan.json", lambda place: open_folder(place.parent)),
    "claims": ("claims.json", lambda place: claims.read(place.parent)),
    "an adapter": ("adapter_config.json", lambda place: weights.adapter_config(place.parent)),
    "an index of weights": ("model.safetensors.index.json", lambda place: weights.check_complete(place.parent, "it")),
    "a lens": ("lens.safetensors", lens.read),
    "maps": ("maps.npz", measured.read),
}


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"format": {"9" * 5000}}}'], ids=["deep", "long"])
@pytest.mark.parametrize("what", READERS)
def test_json_that_python_cannot_read_is_refused_in_a_sentence(tmp_path, what, text):
    name, read = READERS[what]
    place = tmp_path / name
    if place.suffix == ".safetensors":
        save_file({"x": np.zeros(2, np.float32)}, place, {"certificate": text})
    elif place.suffix == ".npz":
        with place.open("wb") as file:
            np.savez(file, certificate=np.asarray(text))
    else:
        place.write_text(text, encoding="utf-8")
    with pytest.raises(EffectiveDepthError, match="damaged|usable|certificate"):
        read(place)


def test_a_config_that_python_cannot_read_says_nothing(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000, encoding="utf-8")
    assert specs.config_of(specs.named(str(tmp_path))) == {}
