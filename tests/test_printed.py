"""What the shell, a published site and the claims say is what they said when somebody last read what changed."""

from __future__ import annotations

import printed
import pytest
from screens import as_before


@pytest.fixture(autouse=True)
def laboratory(tmp_path):
    with printed.laboratory(tmp_path):
        yield


@pytest.mark.parametrize("section", printed.SECTIONS, ids=lambda section: section[2:])
def test_it_says_what_it_said(section):
    assert as_before(printed.kept()[section], printed.lines(section)), (
        "where it is meant so: PYTHONPATH=. python tests/printed.py"
    )
