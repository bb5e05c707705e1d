"""One set of forking processes for all hostile tests of a pytest process."""

import pytest

from hostile.forks import Trials


@pytest.fixture(scope="session")
def trials():
    with Trials() as made:
        yield made
