"""The metrics as maths: symmetry, bounds, and inputs where a formula has nothing to hold on to."""

import math

import numpy as np
import pytest
import torch

from ed_core.probes import LogitLens
from ed_core.sweeps import metrics


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- vectors


def test_ratio_scales_and_has_a_floor():
    x, y = vectors(100, 16, seed=1), vectors(100, 16, seed=2)
    assert torch.allclose(metrics.ratio(3 * x, y), 3 * metrics.ratio(x, y))
    assert torch.allclose(metrics.ratio(x, y) * metrics.ratio(y, x), torch.ones(100), rtol=1e-5)
    assert metrics.ratio(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])) == 2.5
    assert not metrics.ratio(torch.zeros(100, 16), y).any()
    assert torch.allclose(metrics.ratio(x, torch.zeros(100, 16)), x.norm(dim=-1) / 1e-6)


def test_cosine_is_symmetric_scale_free_and_bounded():
    x, y = vectors(100, 16, seed=1), vectors(100, 16, seed=2)
    assert torch.equal(metrics.cosine(x, y), metrics.cosine(y, x))
    assert torch.allclose(metrics.cosine(7 * x, 0.01 * y), metrics.cosine(x, y), atol=1e-6)
    assert torch.allclose(metrics.cosine(-x, y), -metrics.cosine(x, y))
    unclamped = (x * 3 * x).sum(-1) / (x.norm(dim=-1) * (3 * x).norm(dim=-1))
    assert unclamped.max() > 1  # float32 rounds beyond the bound
    assert metrics.cosine(x, 3 * x).max() == 1 and metrics.cosine(x, -3 * x).min() == -1
    assert metrics.cosine(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 3**0.5])) == pytest.approx(0.5)


def test_relative_change_is_the_largest_over_the_measured_tokens_only():
    update = torch.tensor([[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    changed = torch.tensor([[2.0, 1.0], [0.0, 0.0], [0.0, 3e-6]])
    change = lambda *seen: float(metrics.relative_change(update, changed, torch.tensor(seen)))
    assert change(True, False, False) == 0.5
    assert change(True, True, False) == 1.0
    assert change(True, True, True) == pytest.approx(3.0)  # |D| = 0 counts as 1e-6
    assert metrics.relative_change(update, update, torch.ones(3, dtype=torch.bool)) == 0


# ---------------------------------------------------------------- in one go


def noisy(out, spread):
    return out + spread * torch.randn(out.shape, generator=torch.Generator().manual_seed(9))


def rows(n, d_vocab, sharpness=3.0):
    return sharpness * torch.randn(n, d_vocab, generator=torch.Generator().manual_seed(8))


def by_the_formulas(logits, out, k):
    """float64, everything written out."""
    logp, logq = logits.double().log_softmax(-1), out.double().log_softmax(-1)
    p, q = logp.exp(), logq.exp()
    log_mean = torch.logaddexp(logp, logq) - math.log(2)
    target = out.argmax(-1, keepdim=True)
    return {
        "kl": (p * (logp - logq)).sum(-1),
        "jsd": ((p * (logp - log_mean)).sum(-1) + (q * (logq - log_mean)).sum(-1)) / 2 / math.log(2),
        "entropy": -(p * logp).sum(-1),
        "rank": 1 + (logits > logits.gather(-1, target)).sum(-1),
        "best": logp.sort(descending=True).values[:, :k],
        "ids": logits.sort(descending=True).indices[:, :k],
    }


FAR, REAL = rows(40, 3000), rows(24, 49152)
LENSES = {
    "far": (noisy(FAR, 3.0), FAR),
    "near": (noisy(FAR, 5e-5), FAR),  # a divergence of 1e-9
    "near here, far there": (noisy(FAR, torch.logspace(-4, 1, 40)[torch.randperm(40)][:, None]), FAR),
    "peaked": (noisy(40 * FAR, 20.0), 40 * FAR),
    "flat": (noisy(FAR / 1000, 1.0), FAR / 1000),
    "far from 0": (noisy(FAR, 1.0) - 200, FAR + 100),
    "three words": (rows(5, 3), noisy(rows(5, 3), 1.0)),
    "real": (noisy(REAL, torch.logspace(-4, 1, 24)[:, None]), REAL),
}


@pytest.mark.parametrize("logits, out", LENSES.values(), ids=LENSES)
def test_what_is_measured_in_one_go_is_what_the_formulas_say(logits, out):
    """To 1e-6; of small divergences to the digits that float32 logits have: their rounding is 1e-7, and moves a
    divergence by that times its root."""
    k = min(5, out.shape[1])
    found, expected = metrics.AgainstOutput(out, k).measure(logits), by_the_formulas(logits, out, k)
    for name in ("kl", "jsd"):
        tolerance = 1e-5 * expected[name] + 5e-7 * expected[name].clamp_min(0).sqrt()
        limit = tolerance.clamp_max(1e-6 * expected[name].clamp_min(1))
        assert (found[name].double() - expected[name]).abs().sub(limit).max() <= 1e-14, name
        assert (found[name] >= 0).all() and (name == "kl" or (found[name] <= 1).all())
    assert (found["entropy"] >= 0).all()
    assert (found["entropy"].double() - expected["entropy"]).abs().max() <= 2e-6
    assert (found["best"].double() - expected["best"]).abs().max() <= 1e-6 * max(1, expected["best"].abs().max())
    assert torch.equal(found["rank"], expected["rank"]) and torch.equal(found["ids"], expected["ids"])


def test_the_output_is_no_distance_from_itself():
    against = metrics.AgainstOutput(FAR, 5)
    for same in (FAR, FAR.clone()):
        found = against.measure(same)
        assert not found["kl"].any() and (found["jsd"] < 1e-12).all()
        assert (found["rank"] == 1).all() and torch.equal(found["ids"], against.best[1])


def test_a_row_that_is_not_finite_is_no_number_and_spoils_no_other():
    logits = noisy(FAR, 1.0)
    clean = metrics.AgainstOutput(FAR, 5).measure(logits)
    logits[3, 7], logits[20] = math.inf, math.nan
    found = metrics.AgainstOutput(FAR, 5).measure(logits)
    for name in ("kl", "jsd", "entropy"):
        bad = found[name].isnan()
        assert bad.nonzero()[:, 0].tolist() == [3, 20] and torch.equal(found[name][~bad], clean[name][~bad]), name
    same = metrics.rank(logits[20:21], FAR[20:21].argmax(-1))
    assert int(found["rank"][20]) == int(same) == logits.shape[1], "the last, and not the best"
    jsd = np.array([[0.9, 0.9], [np.nan, 0.9], [0.8, 0.2], [0.7, 0.2], [0.0, 0.0]])
    late = LogitLens(rho=0.85).per_token({"jsd": jsd, "rank": np.ones((5, 2))})["deep_thinking_ratio"]
    assert late.tolist() == [1, 0], "a depth without a number says nothing of those behind it"


# ---------------------------------------------------------------- rankings


@pytest.mark.parametrize("d_vocab", [3, 5120, 5121, 6000])
def test_the_best_are_found_wherever_they_stand(d_vocab):
    logits = rows(6, d_vocab)
    for row, place in zip(logits, (0, 1, d_vocab // 2, -2, -1)):
        row[place] = 50.0
    k = min(5, d_vocab)
    values, ids = metrics.best(logits, k)
    expected = logits.sort(descending=True)
    assert torch.equal(values, expected.values[:, :k]) and torch.equal(ids, expected.indices[:, :k])


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("d_vocab", [40, 30 * 256, 30 * 256 + 7])
def test_of_equal_logits_the_lowest_id_is_the_best_whatever_k(d_vocab, k):
    """In bf16 many are equal, and every figure has to mean the same token by the best one."""
    torch.manual_seed(0)
    logits = torch.randint(0, 3, (64, d_vocab)).float()
    values, ids = metrics.best(logits, k)
    assert torch.equal(ids[:, 0], logits.argmax(-1)) and torch.equal(values, logits.gather(-1, ids))
    assert torch.equal(values, logits.topk(k).values) and all(len(set(row)) == k for row in ids.tolist())


def test_overlap_counts_the_common_entries_in_any_order():
    overlap = lambda a, b: float(metrics.overlap(torch.tensor(a), torch.tensor(b)))
    assert overlap([1, 2, 3, 4], [4, 3, 2, 1]) == 1
    assert overlap([1, 2, 3, 4], [5, 6, 7, 8]) == 0
    assert overlap([1, 2, 3, 4], [9, 1, 8, 2]) == 0.5


@pytest.mark.parametrize(
    "column, expected", [([7, 7, 7], 0), ([1, 7, 7], 1), ([7, 1, 7], 2), ([1, 2, 7], 2), ([7, 7, 1, 7], 3), ([4], 0)]
)
def test_settle_depth_is_the_first_row_from_which_nothing_changes(column, expected):
    beside = [9] * len(column)  # another token, settled from the start
    assert metrics.settle_depth(torch.tensor([column, beside]).T).tolist() == [expected, 0]
