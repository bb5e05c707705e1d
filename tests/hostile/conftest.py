"""One set of forking processes for all hostile tests of a pytest process, and the folder that commands are given in."""

import pytest

from hostile.commands import lay
from hostile.forks import Trials


@pytest.fixture(scope="session")
def trials():
    with Trials() as made:
        yield made


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder that a command is given in."""
    folder = tmp_path / "here"
    folder.mkdir()
    lay(folder)
    monkeypatch.chdir(folder)
    return folder
