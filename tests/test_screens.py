"""What stands on the screen in every room is what stood there when somebody last read what changed."""

from __future__ import annotations

import pytest
import screens
from charts import forget
from screens import ROOMS, SUMS, as_before, opened, section

from ed_core.cards import card


@pytest.fixture(scope="module", autouse=True)
def nothing_computed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        screens.begin(patch, tmp_path_factory.mktemp("cache"))
        yield
    forget()


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: section(*room)[2:])
def test_a_room_is_as_it_was(room):
    assert as_before(screens.kept()[section(*room)], screens.lines(*room)), (
        "where it is meant so: PYTHONPATH=. python tests/screens.py"
    )


def test_a_damaged_card_is_named_above_the_others():
    torn = card.folder() / "torn" / card.FILE
    torn.parent.mkdir(parents=True)
    torn.write_text("{}")
    try:
        test = opened("model/cards", SUMS)
    finally:
        torn.unlink()
    (said,) = (one.value.replace("\\", "") for one in test.error)
    assert said.startswith("torn: card.json is damaged, or not a depth card")
    assert not test.exception and any("Card" in box.label for box in test.selectbox)
