"""What the depth of written tokens comes down to, in one sentence. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np


def sentence(values: Mapping[str, np.ndarray], n_layers: int, rho: float, threshold: float) -> str:
    """Of `generation`'s arrays, over the tokens written so far."""
    n = written(values)
    if not n:
        return "No token is written yet."
    settle, leave, late = values["settle_depth"][:n], values["exit_depth"][:n], math.ceil(rho * n_layers)
    other = int(n - values["exit_agrees"][:n].sum())
    saved = n_layers - float(leave.mean())
    said = (
        f"{n} token{'s' * (n != 1)} written; the median one settles at depth {float(np.median(settle)):g} of "
        f"{n_layers}, and {float(values['deep_thinking_ratio'][n - 1]):.0%} settle only from depth {late} on by their "
        f"divergence. Leaving at {threshold:g} confidence would spare {saved:.1f} layers a token on average"
    )
    if not saved:
        return f"{said}: no depth before the output is that sure."
    if not other:
        return f"{said} and always say the output's best token."
    return f"{said}, and say another than the output's best token {other} time{'s' * (other != 1)}."


def written(values: Mapping[str, np.ndarray]) -> int:
    """How many tokens there are so far."""
    return int((values["ids"] >= 0).sum())
