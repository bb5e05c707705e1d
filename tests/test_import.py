"""What an import makes of a stranger's case study, and other files whose JSON Python cannot read."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from archives import sealed_anew
from kept_cases import case, results, small

from ed_core.cases import bundle, drawings
from ed_core.cases.case_study import edited, make
from ed_core.cases.kept import Kept
from ed_core.errors import ImportRefused
from ed_core.figures.images import thumbnail
from ed_core.files import Bounds
from ed_core.models import controls


def test_an_export_comes_in_elsewhere_as_it_was(folder, tmp_path):
    one = case(notes="*n*", tags=["t"])
    folder.add(one)
    elsewhere = Kept(tmp_path / "elsewhere", shipped=None)
    assert elsewhere.take_in(folder.read(one.id)) == (one, True)
    assert elsewhere.open(one.id)[0] == one
    assert elsewhere.take_in(folder.read(one.id)) == (one, False) and len(elsewhere.cards()) == 1


def test_another_version_of_what_is_here_gets_a_new_id(folder):
    one = small(notes="mine")
    folder.add(one)
    theirs = bundle.encode(edited(one, notes="theirs"))
    taken, new = folder.take_in(theirs)
    assert new and taken.id != one.id and taken.notes == "theirs" and folder.open(one.id)[0].notes == "mine"


def test_too_large_is_said_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr(bundle, "CASE", replace(bundle.CASE, bounds=Bounds(file=1000)))
    with pytest.raises(ImportRefused, match="MiB"):
        folder.take_in(bundle.encode(small()))


def test_what_cannot_be_drawn_is_refused(folder, monkeypatch):
    def broken(results):
        raise IndexError("index 5 is out of bounds")

    monkeypatch.setattr(drawings, "of_several", broken)
    with pytest.raises(ImportRefused, match="out of bounds"):
        folder.take_in(bundle.encode(small()))
    assert folder.cards() == []


def test_the_card_is_made_anew_and_not_believed(folder):
    """A file whose list entry promises another prompt and picture than its results hold."""
    one = small()
    lie = {"prompt": "another prompt", "model": "gpt-5", "thumbnail": [[255]]}
    folder.take_in(sealed_anew(bundle.encode(one), lambda told: told | {"card": told["card"] | lie}))
    (card,) = folder.cards()
    assert card.model == "ed-demo-8" and card.prompt == one.items[0].result.request.prompts[0].text[:300]
    assert [list(row) for row in card.thumbnail] == thumbnail([i.result for i in one.items])


@pytest.mark.parametrize(
    "place, name, lie",
    [
        ("case", "first_token", 1),
        ("case", "tags", "ab"),
        ("shown", "window", [0, 1, 2]),
        ("shown", "settings", None),
        ("card", "author", "x"),
        ("card", "depths", {"kl": 1.0}),
        ("card", "thumbnail", [[1, 2], [3]]),
        ("card", "thumbnail", [[256]]),
        ("card", "thumbnail", [[1]] * 65),
    ],
)
def test_a_manifest_holds_exactly_what_this_program_writes(place, name, lie):
    def lied(told: dict) -> dict:
        (told["items"][0] if place == "shown" else told[place])[name] = lie
        return told

    data = sealed_anew(bundle.encode(small()), lied)
    with pytest.raises(ImportRefused, match=name):
        bundle.card(BytesIO(data))
    if place != "card":  # it is made anew
        with pytest.raises(ImportRefused, match=name):
            bundle.decode(data)


def test_a_control_that_does_not_exist_is_refused(folder, monkeypatch):
    """Headings, verdicts and figures name a control: an unknown one would break the page that shows it."""
    one = results()["contributions"]
    evil = replace(one, request=replace(one.request, models=(replace(one.request.models[0], control="<evil>"),)))
    with monkeypatch.context() as patch:
        patch.setitem(controls.KINDS, "<evil>", "evil")
        data = bundle.encode(make("x", [evil]))
    with pytest.raises(ImportRefused, match="evil"):
        folder.take_in(data)
