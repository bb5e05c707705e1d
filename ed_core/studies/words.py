"""How a mean depth is written."""

from __future__ import annotations

from ..depth.wording import apart


def plain(depth: float | None, low: float | None = None, high: float | None = None) -> str:
    """A mean depth in a cell: "18.3 (18.0 to 18.6)"; "–" where there is none."""
    if depth is None:
        return "–"
    return f"{depth:.1f}" + ("" if low is None or high is None else f" ({apart(low, high, 1)})")
