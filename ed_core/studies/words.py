"""What the depth without a threshold and the turn of the cosine say, in a sentence each."""

from __future__ import annotations

from ..depth.wording import apart

BY = {"kl": "KL", "overlap": "overlap"}
NO_TURN = {
    "sign": "its two levels do not lie below and above 0",
    "order": "no two levels apart",
    "twins": "untrained twins turn there too",
}


def settles(
    by: str, depth: float | None, n_layers: int, low: float | None = None, high: float | None = None, over: str = ""
) -> str:
    """A mean depth, with its interval and what that is over: "By KL it settles around depth 18.3 of 30 (mean over all
    thresholds; 18.0 to 18.6 over 100 prompts)." """
    if depth is None:
        return f"By {BY[by]} there is no depth: the lens is the output everywhere."
    within = "" if low is None or high is None else f"; {apart(low, high, 1)} over {over}"
    return f"By {BY[by]} it settles around depth {depth:.1f} of {n_layers} (mean over all thresholds{within})."


def turns(layer: float | None, p: float | None, failed: str | None) -> str:
    """The turn of the cosine, or why there is none."""
    if layer is not None:
        return f"Layers turn from erasing to strengthening after layer {layer:.0f} (two-level fit, p = {p:.2g})."
    return f"No turn of the cosine: {NO_TURN[failed or 'order']} (two-level fit, p = {p:.2g})."


def plain(depth: float | None, low: float | None = None, high: float | None = None) -> str:
    """A mean depth in a cell: "18.3 (18.0 to 18.6)"; "–" where there is none."""
    if depth is None:
        return "–"
    return f"{depth:.1f}" + ("" if low is None or high is None else f" ({apart(low, high, 1)})")
