"""Precisions of one model in a study: which are compared, and that a shift is what the sums say."""

from __future__ import annotations

import numpy as np
import pytest

from ed_core.studies import precisions
from ed_core.studies.items import Folder
from ed_core.studies.part import Part

L, N = 8, 24


class Made(Folder):
    """A model in fp32 and in other precisions, whose prompts settle at depths of their own."""

    def __init__(self, depths: dict[str, np.ndarray]):
        one = {"name": "made", "ids": [str(i) for i in range(N)], "levels": [], "pairs": []}
        same = {"name": "m", "n_layers": L, "parameters": 10**6, "control": "", "seed": 0}
        models = [same | {"label": precision, "precision": precision} for precision in depths]
        plan = {"models": models, "sets": [one], "seed": 0, "probes": [{"name": "logit_lens", "parameters": {}}]}
        made, n = {}, np.full(N, 10.0)
        for precision, of_prompt in depths.items():
            far = np.clip(np.round(of_prompt)[:, None] - np.arange(L + 1), 0, 1) * 10
            columns = {"kl.sum": 3 * far, "overlap.sum": 10 - far, "n_tokens": n, "settle_depth.sum": of_prompt * n}
            named = {f"logit_lens.{name}": values for name, values in columns.items()}
            made[precision] = Part(named, index=np.arange(N))
        super().__init__("made", plan)
        object.__setattr__(self, "made", made)

    def sums(self, label, name):
        return self.made[label]


def shifts(depths: dict[str, np.ndarray]) -> dict[tuple[str, str], precisions.Shift]:
    return {(one.precision, one.quantity): one for one in precisions.shifts(Made(depths), "made")}


def test_every_precision_is_compared_with_the_widest_prompts_in_pairs():
    """Prompts differ by far more than precisions do, and the shift is seen all the same."""
    wide = np.random.default_rng(0).integers(2, 7, N).astype(float)
    found = shifts({"int8": wide + 1, "fp32": wide, "bf16": wide})
    pairs = {(precision, one.against) for (precision, _), one in found.items()}
    assert pairs == {("int8", "fp32"), ("bf16", "fp32")}
    moved, same = found["int8", "mean_kl"], found["bf16", "mean_kl"]
    assert [moved.shift, moved.low, moved.high] == pytest.approx([1, 1, 1])
    assert (same.shift, same.low, same.high) == (0, 0, 0)
    curves = [np.mean([3.0 * np.clip(one - np.arange(L + 1), 0, 1) for one in d], 0) for d in (wide, wide + 1)]
    expected = np.abs(np.diff(curves, axis=0)).mean()
    assert [found[precision, "logit_lens.kl"].shift for precision in ("int8", "bf16")] == pytest.approx([expected, 0])
    assert "bf16 against fp32: average depth +0.00 layers" in precisions.sentence([same])


def test_noise_moves_nothing_and_a_clear_shift_is_seen():
    rng, decided = np.random.default_rng(1), {0.0: 0, 1.0: 0}
    for shift in decided:
        for _ in range(20):
            wide = rng.integers(3, 7, N).astype(float)
            narrow = wide + rng.choice([-1.0, 0.0, 1.0], N) + shift
            one = shifts({"fp32": wide, "bf16": narrow})["bf16", "mean_kl"]
            decided[shift] += one.low > 0 or one.high < 0
    assert decided[0.0] <= 5 and decided[1.0] >= 18, "an interval from 5 to 95 % leaves 0 out in one of ten"


def test_models_that_differ_in_more_than_their_precision_are_not_compared():
    folder = Made({"fp32": np.full(N, 3.0), "bf16": np.full(N, 3.0)})
    folder.plan["models"][1]["seed"] = 1
    assert precisions.pairs(folder) == [] and precisions.shifts(folder, "made") == []
