"""The example that regresses scores on layers: slopes and clustered errors, recomputed with plain numpy."""

import runpy
from pathlib import Path

import numpy as np
import pytest


def test_slopes_and_clustered_errors_are_those_of_a_direct_computation():
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "leaderboard.py"))
    models = example["read"]()
    used = models[(models.check != "unverified") & (models.precision == "bfloat16")]
    assert len(used) == 102 and used.family.nunique() == 39
    y = used.average.to_numpy()
    slopes = []
    for name, others in (("layers", []), ("layers, parameters", ["params_b"])):
        x = np.column_stack([np.ones(len(used)), used.layers, *(np.log(used[other]) for other in others)])
        inverse = np.linalg.inv(x.T @ x)
        b = inverse @ x.T @ y
        sums = np.stack([x[used.family == f].T @ (y - x @ b)[used.family == f] for f in used.family.unique()])
        factor = 39 / 38 * (len(used) - 1) / (len(used) - x.shape[1])
        error = np.sqrt(factor * (inverse @ sums.T @ sums @ inverse)[1, 1])
        found = example["fit"](models, "average", example["FITS"][name])
        row = found.set_index("coefficient").loc["layers"]
        assert (row.value, row.error) == pytest.approx((b[1], error))
        assert row["high 95 %"] - b[1] == pytest.approx(2.0244 * error, rel=1e-4)  # t, 38 degrees
        groups = used.family.astype("category").cat.codes.to_numpy()
        again = example["clustered"](x, y, groups)
        assert (again[0][1], again[1][1]) == pytest.approx((b[1], error)), "without statsmodels"
        slopes.append(round(b[1], 2))
    assert slopes == [0.39, 0.20]
