"""How often each claim errs on made-up data, and how often it sees what is there (METHODS §16, rule 2): noise cannot
be told in 90 %, wrong verdicts in 5 % at most, clear effects are seen in 90 %."""

from __future__ import annotations

import pytest
from made_up_claims import KINDS, MADE_UP, RIGHT, counts, wrong

from ed_core.claims import CLAIMS

FORMS, SETS = 10, 50


def test_every_claim_has_made_up_data():
    assert list(MADE_UP) == [claim.id for claim in CLAIMS]


@pytest.mark.parametrize("name", MADE_UP)
def test_each_claim_sees_what_is_clear_and_not_what_is_not_there(name):
    """A few sets of each kind, from ten forms."""
    for kind in KINDS:
        found = counts(name, kind, 10, 8)
        assert wrong(kind, found) <= 2 / 8, (kind, found)
        assert kind == "small" or found[RIGHT[kind]] >= 6, (kind, found)


@pytest.mark.process
@pytest.mark.parametrize("name", MADE_UP)
def test_errors_are_rare_and_clear_effects_are_seen(name):
    for kind in KINDS:
        found = counts(name, kind, FORMS, SETS)
        share = found[RIGHT[kind]] / SETS
        if kind == "noise":
            assert share >= 0.9, found
        else:
            assert wrong(kind, found) <= 0.05, (kind, found)
            assert kind == "small" or share >= 0.9, (kind, found)
