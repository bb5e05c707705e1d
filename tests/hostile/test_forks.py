"""The harness itself: what it tells of a reader that is broken, in both of its processes."""

import pytest

from hostile.readers import BROKEN

ENDLESS = {"never ends": {"seconds": 1}}  # a busy machine may take that long to give the others their memory


@pytest.mark.parametrize("heavy", [False, True], ids=["lean", "heavy"])
def test_what_is_wrong_is_told(trials, tmp_path, heavy):
    """A fork begins with what the process has that it came from: memory is counted from there."""
    file = BROKEN["nothing"].make(tmp_path)
    file.chmod(0o400)
    outcomes = {name: trials.reader(name, file, heavy, **ENDLESS.get(name, {})) for name in BROKEN}
    least = outcomes["nothing"].bytes
    told = {name: outcome.wrong(least) for name, outcome in outcomes.items()}
    assert told["nothing"] == told["takes 200 MiB"] == ""
    assert 199 << 20 < outcomes["takes 200 MiB"].bytes - least < 205 << 20
    assert told["takes 400 MiB"].partition(" ")[0] == str(outcomes["takes 400 MiB"].bytes >> 20)
    assert told["never ends"].startswith("a hang") and outcomes["never ends"].seconds < 30
    for name in ("fails", "writes", "takes 3 GiB"):
        assert told[name].startswith("a traceback"), name
    assert "MemoryError" in told["takes 3 GiB"] and "Permission" in told["writes"] and file.read_text() == "good"
