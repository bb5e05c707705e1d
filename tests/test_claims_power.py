"""How often each claim errs on made-up data, and how often it sees a clear effect (METHODS §16, rules 2 and 9): wrong
verdicts in 5 % at most, in noise with alike neighbouring layers in 6 %; clear effects in 90 %. The figures are in
`docs/studies/claims.md`."""

from __future__ import annotations

import pytest
from made_up_claims import KINDS, MADE_UP, RIGHT, counts, wrong

from ed_core.claims import CLAIMS

FORMS, SETS, ALIKE = 10, 200, (0.6, 0.8)
FAMILIES = ("autoregressive", "moving average")
OTHER_SEEDS = 10_000  # from here on no seed was seen by whoever chose a constant


def test_every_claim_has_made_up_data():
    assert list(MADE_UP) == [claim.id for claim in CLAIMS]


@pytest.mark.parametrize("name", MADE_UP)
def test_each_claim_sees_a_clear_effect_and_none_in_noise(name):
    for kind in KINDS:
        verdicts = counts(name, kind, FORMS, range(6), 0.6 if kind == "noise" else 0.0)
        assert wrong(kind, verdicts) <= 2 / 6, (kind, verdicts)
        assert kind == "small" or verdicts[RIGHT[kind]] >= 6 * 0.8 - 1, (kind, verdicts)


@pytest.mark.process
@pytest.mark.parametrize("name", MADE_UP)
def test_errors_are_rare_and_clear_effects_are_seen(name):
    for family in FAMILIES:
        for alike in ALIKE:
            verdicts = counts(name, "noise", FORMS, range(OTHER_SEEDS, OTHER_SEEDS + SETS), alike, family)
            assert wrong("noise", verdicts) <= 0.06, (family, alike, verdicts)
    for kind in KINDS:
        verdicts = counts(name, kind, FORMS, range(SETS))
        assert wrong(kind, verdicts) <= 0.05, (kind, verdicts)
        assert kind == "small" or verdicts[RIGHT[kind]] >= 0.9 * SETS, (kind, verdicts)
