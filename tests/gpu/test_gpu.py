"""The pack of `python -m tools.bench gpu`, a part a test: what is promised of a GPU holds on the one that is here."""

from __future__ import annotations

import pytest

from ed_core.models import devices
from tools.bench import gpu

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device(request):
    asked = request.config.getoption("--device", default="auto")
    found = devices.pick(asked)
    if found == "cpu" and asked != "cpu":
        pytest.skip("there is no GPU here")
    return found


@pytest.mark.parametrize("part", gpu.PARTS)
def test_what_is_promised_of_a_gpu(device, part):
    rows = list(gpu.PARTS[part](device, device == "cpu"))
    gpu.clean(device)
    assert rows
    speeds = {row for row in rows if row.target.endswith(" ms")}  # told by the pack, and never a reason to fail
    assert not [
        f"{row.what}: {row.measured}, expected {row.target}" for row in rows if not row.ok and row not in speeds
    ]
