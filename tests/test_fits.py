"""Fitted lenses: held against least squares and Jacobians made in other ways, stopped and resumed, and refused where
they are damaged or of another model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from shell import refused
from small_models import random_model

from ed_core import fits
from ed_core.commands import main
from ed_core.depth import lenses
from ed_core.depth.criteria import OF_LENS
from ed_core.errors import EffectiveDepthError, FitRefused, NotAllowed, NotFinite, ParameterError, TooLarge
from ed_core.fits import affine, jacobian, judged, shards
from ed_core.fits import file as files
from ed_core.fits.file import Checkpoint, checkpoint_file
from ed_core.fits.judged import Reader
from ed_core.fits.streams import Streams, Sums, split
from ed_core.probes import Lenses, LogitLens
from ed_core.prompts import to_jsonl
from ed_core.sources import bundled
from ed_core.sources.bundled import FITS, MODELS
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "near", "seven", "old", "wizards")


def prompts(n: int, words: int = 6) -> list[Prompt]:
    rng = np.random.default_rng(0)
    return [Prompt(" ".join(rng.choice(WORDS, words))) for _ in range(n)]


@pytest.fixture(scope="module")
def model(model_of):
    return model_of("qwen3")


@pytest.fixture(scope="module")
def fitted(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("fits") / "mine.safetensors"
    return out, affine.fit(model, prompts(60), out)


@pytest.fixture(scope="module")
def jacobians(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("fits") / "answers.safetensors"
    return out, jacobian.fit(model, prompts(10), out)


def tokens_of(model, some):
    """`[depth][token, d]`, float64, without the first token of each prompt."""
    streams = [model.trace(model.tensor(model.encode(p))).resid for p in some]
    return [torch.cat([s[depth][0, 1:] for s in streams]).double() for depth in range(model.n_layers + 1)]


# -------------------------------------------------------------------- the affine lens


def test_the_affine_lens_is_the_ridge_regression_of_all_tokens_at_once(model, fitted):
    out, told = fitted
    used = [p for i, p in enumerate(prompts(60)) if i % 5 != 4]
    h = tokens_of(model, used)
    assert told["prompts"]["tokens"] == len(h[0]) and told["prompts"]["n"] == 48
    held = load_file(out)
    for depth in range(model.n_layers):
        x, y = h[depth] - h[depth].mean(0), h[-1] - h[-1].mean(0)
        ridge = 1e-6 * float((x * x).sum()) / x.shape[1]
        # least squares with rows for the ridge: no normal equations
        wide = torch.cat([x, ridge**0.5 * torch.eye(x.shape[1]).double()])
        a = torch.linalg.lstsq(wide, torch.cat([y, torch.zeros(x.shape[1], y.shape[1]).double()])).solution.T
        b = h[-1].mean(0) - a @ h[depth].mean(0)
        predicted = h[depth] @ torch.from_numpy(held[f"A.{depth}"]).double().T + torch.from_numpy(held[f"b.{depth}"])
        expected = h[depth] @ a.T + b
        assert (predicted - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert np.allclose(held["mean"], h[-1].mean(0), atol=1e-5)


def test_what_the_certificate_says_of_held_out_prompts_is_counted_anew(model, fitted):
    out, told = fitted
    h, held = tokens_of(model, prompts(60)[4::5]), load_file(out)
    found = told["held_out"]
    assert found["tokens"] == len(h[0]) and found["n"] == 12
    y = h[-1]
    assert found["kl_tokens"] == found["tokens"] and found["kl_over"] == "12 prompts"
    log_q = model.unembed(y.float()).double().log_softmax(-1)
    for depth in range(model.n_layers):
        f = h[depth] @ torch.from_numpy(held[f"A.{depth}"]).double().T + torch.from_numpy(held[f"b.{depth}"])
        assert found["relative_error"][depth] == pytest.approx(
            float(((y - f).norm(dim=1) / y.norm(dim=1)).mean()), rel=1e-4
        )
        r2 = 1 - float(((y - f) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())
        assert found["r2"][depth] == pytest.approx(r2, abs=1e-4)
        for name, read in (("lens", f), ("logit", h[depth]), ("constant", torch.from_numpy(held["mean"]).expand_as(y))):
            log_p = model.unembed(read.float()).double().log_softmax(-1)
            kl = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
            assert found["kl"][name][depth] == pytest.approx(kl, rel=1e-3, abs=1e-6), name


def sets_of(lengths: dict[str, tuple[int, int]]) -> list[Prompt]:
    """So many prompts of so many words, set by set."""
    rng = np.random.default_rng(1)
    return [Prompt(" ".join(rng.choice(WORDS, m)), form=form) for form, (n, m) in lengths.items() for _ in range(n)]


@pytest.mark.parametrize("budget", [None, 60])
def test_divergence_is_that_of_all_sets_and_its_interval_is_over_prompts(model, fitted, budget):
    """By a second computation: a loop over tokens, plain softmax, the mean of each prompt's drawn tokens weighted by
    its length; and a plain loop over resamples of the bootstrap-t."""
    some = sets_of({"a": (4, 3), "b": (9, 14), "c": (2, 30)})
    lens, mean = Reader(fits.read(fitted[0]), model), torch.from_numpy(load_file(fitted[0])["mean"])
    streams = Streams(model, some)
    found = judged.judge(model, streams, lens, {}, mean, lambda share: None, budget)
    lengths = [len(model.encode(p)) - 1 for p in some]
    at = judged.drawn(lengths, budget or 10**6)
    assert found["kl_tokens"] == sum(map(len, at)) and all(len(one) for one in at)
    assert found["kl_tokens"] == sum(lengths) if budget is None else 60 <= found["kl_tokens"] <= 60 + len(some)
    depth, apart = 1, {"lens": [], "constant": []}
    for prompt, tokens in zip(some, at):
        resid = model.trace(model.tensor(model.encode(prompt))).resid
        each = {name: [] for name in apart}
        for t in tokens:
            q = model.unembed(resid[-1][0, 1 + t][None]).double().softmax(-1)[0]
            for name, h in (("lens", lens(depth, resid[depth][0, 1 + t][None])), ("constant", mean[None])):
                p = model.unembed(h).double().softmax(-1)[0]
                each[name].append(float((p * (p / q).log()).sum()))
        for name, values in each.items():
            apart[name].append(np.mean(values) * lengths[len(apart[name])])
    n = sum(lengths)
    for name, values in apart.items():
        assert found["kl"][name][depth] == pytest.approx(sum(values) / n, rel=1e-4)
    assert found["kl_over"] == "15 prompts of 3 forms; other text may differ"  # too few forms to be units
    low, high = naive.bootstrap_t(np.subtract(apart["lens"], apart["constant"]), np.array(lengths, float))
    assert found["kl_minus"]["constant"]["low"][depth] == pytest.approx(low, rel=1e-3)
    assert found["kl_minus"]["constant"]["high"][depth] == pytest.approx(high, rel=1e-3)
    assert found["says"] == np.mean(np.array(found["kl_minus"]["constant"]["high"]) < 0)


@pytest.mark.parametrize("budget, n", [(10**6, 5 + 100 + 1 + 40), (30, 30), (3, 4)])
def test_every_prompt_and_so_every_set_is_drawn_from(budget, n):
    lengths = [5, 100, 0, 1, 40]
    at = judged.drawn(lengths, budget)
    assert [len(one) > 0 for one in at] == [m > 0 for m in lengths] and n <= sum(map(len, at)) <= n + 4
    assert all(len(set(one)) == len(one) and (np.diff(one) > 0).all() and max(one, default=0) < max(m, 1)
               for one, m in zip(at, lengths))  # fmt: skip
    assert all((a == b).all() for a, b in zip(at, judged.drawn(lengths, budget)))
    assert budget > 99 or abs(len(at[1]) / sum(map(len, at)) - 100 / 146) < 0.2


def test_first_prompts_that_mislead_do_not_decide():
    """One task first, on which the lens is worse than the constant, as with the bundled sets; then nine on which it is
    better. And a lens that is as good as the constant: noise does not convince."""
    rng = np.random.default_rng(0)
    counts, forms = [50] * 100, [f"task {i // 10}" for i in range(100)]
    first = np.arange(100) < 10
    apart = np.where(first, 1.0, -5.0 + np.repeat(rng.normal(0, 1.5, 10), 10))  # tasks differ
    constant = np.repeat(np.where(first, 6.0, 10.0)[:, None], 2, 1)
    lens = constant + np.stack([apart, np.repeat(rng.normal(0, 1.5, 10), 10)], 1) + rng.normal(0, 0.5, (100, 2))
    found = judged.told({"lens": lens * 50, "logit": constant * 60, "constant": constant * 50}, counts, forms)
    assert (lens - constant)[:10, 0].mean() > 0.5, "the first tokens say that it is mute"
    assert found["kl"]["lens"][0] == pytest.approx(lens[:, 0].mean())
    assert found["kl"]["constant"][0] == pytest.approx(9.6)
    assert found["kl_over"] == "100 prompts of 10 forms"
    low, high = (found["kl_minus"]["constant"][end] for end in ("low", "high"))
    assert high[0] < 0 and low[1] < 0 < high[1] and found["says"] == 0.5
    few = judged.told({"lens": lens[:7] * 50, "constant": constant[:7] * 50}, counts[:7])
    assert few.keys() == {"kl", "kl_over"}


@pytest.mark.parametrize("kind", ["affine", "jacobian"])
def test_judged_anew_it_is_the_same_fit(model, fitted, jacobians, tmp_path, kind):
    """As after an older certificate: every number of the matrices and the fit's identity stay, the first findings are
    kept, and those of today are put in their place."""
    module, n, (before, told) = {"affine": (affine, 60, fitted), "jacobian": (jacobian, 10, jacobians)}[kind]
    out = tmp_path / "old.safetensors"
    first = {"n": told["held_out"]["n"], "digest": told["held_out"]["digest"], "kl": {"lens": [9.0]}, "kl_tokens": 7}
    files.write(out, load_file(before), told | {"held_out": first})
    old = fits.read(out)
    content, key = old.content, Lenses(fit=str(out)).request(model.spec, prompts(1)[0]).key
    made = module.judge_again(model, prompts(n), old)
    files.rewrite(old, made)
    new = fits.read(out)
    assert new.certificate == made and new.content == content != fits.read(before).content
    assert Lenses(fit=str(out)).request(model.spec, prompts(1)[0]).key == key
    for name, value in told["held_out"].items():
        assert made["held_out"][name] == value, name
    assert made["held_out_first"] == first
    whole, found = load_file(before), load_file(out)
    assert whole.keys() == found.keys() and all((whole[k] == found[k]).all() for k in whole)
    again = module.judge_again(model, prompts(n), new)
    files.rewrite(new, again)
    assert again == made and fits.read(out).content == content
    other = tmp_path / "other.safetensors"
    tensors = load_file(before)
    files.write(other, {**tensors, "mean": tensors["mean"] + 1}, again)
    assert fits.read(other).content != content, "another's certificate makes it no other's fit"
    with pytest.raises(FitRefused, match="was fitted with other prompts than these"):
        module.judge_again(model, prompts(n + 5), new)


def test_shuffled_targets_give_a_lens_that_knows_nothing_of_its_token(model, fitted):
    kl = fitted[1]["held_out"]["kl"]
    assert all(lens < shuffled for lens, shuffled in zip(kl["lens"], kl["shuffled"]))


@pytest.mark.parametrize("ticks", [30, 80])  # in the first group of depths, in the second
def test_in_groups_stopped_and_resumed_it_is_the_same_fit(model, fitted, tmp_path, monkeypatch, ticks):
    monkeypatch.setattr("ed_core.fits.file.EVERY", 0.0)
    one_depth = 3 * 8 * model.d_model**2
    out = tmp_path / "mine.safetensors"
    asked = []

    def stop(share):
        asked.append(share)
        if len(asked) == ticks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        affine.fit(model, prompts(60), out, tick=stop, memory=2 * one_depth)
    assert not out.exists() and checkpoint_file(out).exists()
    again = []
    affine.fit(model, prompts(60), out, tick=again.append, memory=2 * one_depth)
    assert len(again) == len(asked_whole := seen_by(model, tmp_path)) - (ticks - 1)  # it went on from the last prompt
    assert again[-1] == asked_whole[-1] and [p.name for p in tmp_path.glob("mine*")] == [out.name]
    whole, found = load_file(fitted[0]), load_file(out)
    assert whole.keys() == found.keys() and all(np.allclose(whole[k], found[k], atol=1e-6) for k in whole)


def seen_by(model, folder) -> list[float]:
    """What an undisturbed fit of two depths at a time says of its progress."""
    seen = []
    affine.fit(model, prompts(60), folder / "whole.safetensors", tick=seen.append, memory=2 * 3 * 8 * model.d_model**2)
    return seen


def test_a_text_that_comes_twice_is_not_held_out_from_itself():
    used, held_out = split([*prompts(10), *prompts(10)], None)
    assert (len(used), len(held_out)) == (8, 2) and not {p.text for p in used} & {p.text for p in held_out}


def test_a_text_is_the_same_with_and_without_a_seam():
    """Every fit reads question and answer as one text."""
    asked = [Prompt(f"{i} + 1 = ", str(i + 1)) for i in range(10)]
    said = [Prompt(p.text + p.answer) for p in asked]
    used, held_out = split([*asked, *said], None)
    assert (len(used), len(held_out)) == (8, 2)
    with pytest.raises(FitRefused, match="3 of the test prompts are among"):
        split(asked, said[:3])
    assert len(split(asked, prompts(3) * 2)[1]) == 3


def test_the_sums_of_another_fit_are_not_gone_on_with(model, tmp_path):
    other = Checkpoint(tmp_path / "x.part", "one")
    other.write({"next": np.asarray(3)}, now=True)
    assert Checkpoint(tmp_path / "x.part", "two").read() is None
    assert int(Checkpoint(tmp_path / "x.part", "one").read()["next"]) == 3
    (tmp_path / "x.part").write_bytes(b"PK damaged")
    assert Checkpoint(tmp_path / "x.part", "one").read() is None


@pytest.mark.parametrize("sizes", [(100,), (7, 60, 33), (1,) * 100])
def test_sums_in_any_pieces_and_added_give_one_answer(sizes):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 6, generator=rng) * 50 + 3, torch.randn(100, 4, generator=rng)
    whole, halves, both = Sums(6, 4), [Sums(6, 4), Sums(6, 4)], Sums(6, 4)
    whole.add(x, y)
    for i, (a, b) in enumerate(zip(x.split(list(sizes)), y.split(list(sizes)))):
        halves[i % 2].add(a, b)
    one, other = (half.arrays() for half in halves)
    both.restore({name: np.asarray(one[name] + other[name]) for name in one})
    assert both.n == 100 and float(both.yy) == pytest.approx(float((y.double() ** 2).sum()))
    for one, other in zip(whole.solve(), both.solve()):
        assert torch.allclose(one, other, atol=1e-10)


# -------------------------------------------------------------------- shards


@pytest.mark.parametrize("kind", ["affine", "jacobian"])
def test_shards_add_up_to_the_fit_of_all_prompts(model, fitted, jacobians, tmp_path, monkeypatch, kind):
    """Bar rounding, as float64 is added in another order; the prompts fitted on are not run again, and the order in
    which the files are named does not matter."""
    module, n, (before, told) = {"affine": (affine, 60, fitted), "jacobian": (jacobian, 10, jacobians)}[kind]
    files, some = [tmp_path / f"{i}.sums" for i in (1, 2, 3)], []
    for i, file in enumerate(files, 1):
        narrow = {"memory": 2 * 3 * 8 * model.d_model**2} if (kind, i) == ("affine", 2) else {}  # two depths at once
        some.append(module.sum_up(model, prompts(n), file, (i, 3), **narrow))
    assert [i for one in some for i in one] == list(range(told["prompts"]["n"])) and min(map(len, some)) >= 2
    assert sorted(tmp_path.iterdir()) == files, "nothing else is left"
    traced, own = [], model.trace
    monkeypatch.setattr(model, "trace", lambda *args, **kwargs: (traced.append(1), own(*args, **kwargs))[1])
    made = module.fit(model, prompts(n), tmp_path / "a.safetensors", merge=files[::-1])
    assert len(traced) == made["held_out"]["n"]
    assert made["prompts"] == told["prompts"] | {"shards": 3}
    assert made["held_out"]["kl"]["lens"] == pytest.approx(told["held_out"]["kl"]["lens"], rel=1e-4, abs=1e-7)
    assert made.get("drift", []) == pytest.approx(told.get("drift", []), rel=1e-6)
    whole, found = load_file(before), load_file(tmp_path / "a.safetensors")
    assert whole.keys() == found.keys() and all(np.allclose(whole[k], found[k], atol=1e-6) for k in whole)
    module.fit(model, prompts(n), tmp_path / "b.safetensors", merge=files)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["affine", "jacobian"])
def test_a_shard_that_was_stopped_goes_on_from_there(model, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("ed_core.fits.file.EVERY", 0.0)
    module, n = {"affine": (affine, 30), "jacobian": (jacobian, 10)}[kind]
    narrow = {"memory": 2 * 3 * 8 * model.d_model**2} if kind == "affine" else {}
    module.sum_up(model, prompts(n), tmp_path / "whole.sums", (2, 2), **narrow)

    def stop(share):
        if share > 0.6:
            raise KeyboardInterrupt

    out, seen = tmp_path / "x.sums", []
    with pytest.raises(KeyboardInterrupt):
        module.sum_up(model, prompts(n), out, (2, 2), tick=stop, **narrow)
    assert not out.exists()
    module.sum_up(model, prompts(n), out, (2, 2), tick=seen.append, **narrow)
    assert seen[0] > 0.4 and seen[-1] == 1 and not list(tmp_path.glob("*part"))
    with np.load(out) as found, np.load(tmp_path / "whole.sums") as whole:
        assert sorted(found.files) == sorted(whole.files)
        manifests = [json.loads(file["manifest.json"]) for file in (found, whole)]
        assert all(np.allclose(found[k], whole[k], rtol=1e-9) for k in whole.files if k != "manifest.json")
    assert manifests[0]["about"] == manifests[1]["about"] and prompts(1)[0].text not in str(manifests[0])


OPENED = {"name": "m", "precision": "fp32", "identity": {"content_hash": "1"}}
ABOUT = {"kind": "affine", "model": OPENED, "prompts": {"n": 10, "digest": "d"}}


def shard_file(path, begin, end, **told):
    one = lambda sources, part, tick: {"0.n": np.asarray(len(part.prompts))}
    shards.sum_up(path, ABOUT | told, range(begin, end), [(0,)], one, lambda share: None)
    return path


@pytest.mark.parametrize(
    "ranges, said",
    [
        ([(0, 5), (4, 10)], "0.sums and 1.sums both hold the prompts 5 to 5 of 10"),
        ([(0, 10), (3, 4)], "0.sums and 1.sums both hold the prompts 4 to 4 of 10"),
        ([(0, 5), (5, 10), (5, 10)], "1.sums and 2.sums both hold the prompts 6 to 10 of 10"),
        ([(5, 10)], "prompts 1 to 5 of 10 are in none of the files"),
        ([(6, 10), (0, 4)], "prompts 5 to 6 of 10 are in none of the files"),
        ([(0, 4), (4, 9)], "prompts 10 to 10 of 10 are in none of the files"),
        ([(0, 2), (2, 5), (5, 11)], "2.sums holds the prompts up to 11"),
    ],
)
def test_every_prompt_is_in_one_shard(tmp_path, ranges, said):
    files = [shard_file(tmp_path / f"{i}.sums", *one) for i, one in enumerate(ranges)]
    with pytest.raises(FitRefused, match=said):
        shards.Added(files, ABOUT, 10)
    added = shards.Added([shard_file(tmp_path / f"{end}.sums", end - 3, end) for end in (9, 3, 6)], ABOUT, 9)
    assert added["0.n"] == added["next"] == 9 and [file.name for file in added.files] == ["3.sums", "6.sums", "9.sums"]


@pytest.mark.parametrize(
    "told, said",
    [
        ({"kind": "maps"}, "is a shard of `fit maps`; expected one of `fit affine`"),
        ({"model": OPENED | {"identity": {"content_hash": "2"}, "name": "n"}}, r"on n \(fp32\), not on m"),
        ({"model": OPENED | {"precision": "bf16"}}, r"on m \(bf16\), not on m \(fp32\)"),
        ({"prompts": {"n": 12, "digest": "e"}}, "another prompt set, of 12 prompts to fit on, where .* give 10"),
        ({"prompts": {"n": 10, "digest": "d", "max_tokens": 64}}, "give --max-tokens 64"),
    ],
)
def test_a_shard_of_another_fit_is_refused(tmp_path, told, said):
    files = [shard_file(tmp_path / "0.sums", 0, 5), shard_file(tmp_path / "1.sums", 5, 10, **told)]
    with pytest.raises(FitRefused, match=f"1.sums .*{said}"):
        shards.Added(files, ABOUT, 10)


def test_what_is_no_shard_is_refused(fitted, tmp_path):
    one, other = (shard_file(tmp_path / f"{i}.sums", i, i + 5) for i in (0, 5))
    for file in (tmp_path / "none.sums", fitted[0]):
        with pytest.raises(FitRefused, match="no file|not a shard"):
            shards.Added([one, file], ABOUT, 10)
    added = shards.Added([one, other], ABOUT, 10)
    with pytest.raises(FitRefused, match="0.sums is damaged"):
        added["1.n"]
    data = other.read_bytes()
    other.write_bytes(data.replace(np.asarray(5).tobytes(), np.asarray(6).tobytes()))
    with pytest.raises(FitRefused, match="5.sums is damaged"):
        added["0.n"]
    with pytest.raises(FitRefused, match="Shard 4/5 has no prompts: the set has 1"):
        shards.some_of((4, 5), 1)
    assert [shards.some_of((i, 3), 8) for i in (1, 2, 3)] == [range(2), range(2, 5), range(5, 8)]


def test_small_signals_beside_a_massive_one_are_not_lost():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=rng)
    x[:, 0] = 1e5 + x[:, 0]
    y = x[:, 1:2] * 1e-2
    sums = Sums(3, 1)
    sums.add(x, y)
    a, _ = sums.solve(ridge=0.0)
    assert torch.allclose(a, torch.tensor([[0.0, 1e-2, 0.0]]).double(), atol=1e-7)


def test_a_lens_of_full_rank_is_the_lens_and_a_lower_one_the_nearest():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 8, generator=rng).double() @ torch.randn(8, 8, generator=rng).double()
    y = x @ torch.randn(8, 8, generator=rng).double() + 1
    sums = Sums(8, 8)
    sums.add(x, y)
    a, b = sums.solve()
    misses = []
    for rank in (1, 4, 8):
        scale, u, v, shift = sums.of_rank(rank)
        low = scale * torch.eye(8).double() + u @ v
        assert torch.linalg.matrix_rank(u @ v) == rank
        misses.append(float((y - x @ low.T - shift).square().sum()))
        factor = torch.linalg.cholesky(sums.gram())
        spectrum = torch.linalg.svdvals((a - scale * torch.eye(8).double()) @ factor)
        gap = torch.linalg.matrix_norm((a - low) @ factor) ** 2
        assert gap == pytest.approx(float((spectrum[rank:] ** 2).sum()), rel=1e-6, abs=1e-9)
    assert torch.allclose(low, a, atol=1e-8) and torch.allclose(shift, b, atol=1e-8) and misses == sorted(misses)[::-1]


def test_few_tokens_are_said_and_too_few_prompts_refused(model, tmp_path):
    told = affine.fit(model, prompts(5, 2), tmp_path / "few.safetensors")
    assert f"{told['prompts']['tokens']} tokens are few for {model.d_model} dimensions" in told["notes"][0]
    for n, said in ((1, "has 1 prompt and every"), (4, "has 4 prompts and every fifth is held out")):
        with pytest.raises(FitRefused, match=said):
            affine.fit(model, prompts(n), tmp_path / "fewer.safetensors")
    with pytest.raises(FitRefused, match="1 of the test prompts are among"):
        affine.fit(model, prompts(5), tmp_path / "same.safetensors", test=prompts(1))
    with pytest.raises(FitRefused, match="no prompt .*besides its first|No prompt of the set"):
        affine.fit(model, [Prompt(c) for c in "abcde"], tmp_path / "none.safetensors", test=prompts(1))


@pytest.mark.parametrize("rank", [None, 2])
def test_tokens_that_are_all_alike_are_refused(model, tmp_path, rank):
    """At depth 0 they differ by nothing; the fit ended in an error of JSON's."""
    alike = [Prompt("a" * n) for n in range(60, 70)]
    with pytest.raises(FitRefused, match="all alike at some depth"):
        affine.fit(model, alike, tmp_path / "a.safetensors", rank=rank)


@pytest.mark.parametrize("kind", [affine, jacobian])
def test_held_out_prompts_that_cannot_be_judged_on_are_refused_before_anything_is_fitted(model, tmp_path, kind):
    def fitting(share):
        raise AssertionError("it is fitted")

    for test, words in (("a b c d", "No held-out prompt has a token"), (" ab", "have 1 token .* R² needs 2")):
        held_out = [Prompt(text) for text in test.split(" ") if text]
        with pytest.raises(FitRefused, match=words):
            kind.fit(model, prompts(6), tmp_path / "j.safetensors", test=held_out, tick=fitting)


# -------------------------------------------------------------------- the Jacobian lens


def answer_to(model, ids, depth, change):
    """`h[L]` at all positions where `h[depth]` is changed."""
    trace = model.trace(model.tensor(ids))
    resid = trace.resid[depth] + change
    for layer in range(depth, model.n_layers):
        *_, resid = model.run_block(trace, layer, resid)
    return resid[0]


def test_the_jacobian_is_what_finite_differences_give():
    model = random_model("gpt2")  # its norms stay in float64, those of others go through float32
    model.hf.double()
    model.dtype = torch.float64
    ids = model.encode(Prompt("the quick brown fox jumps")).ids
    found, last = jacobian.of_prompt(model, ids)
    valid = range(16, len(ids) - 1)
    assert len(last) == len(valid)
    rng = np.random.default_rng(1)
    for depth in (0, 2, model.n_layers - 1):
        for k in rng.choice(model.d_model, 4, replace=False):
            column = torch.zeros(model.d_model).double()
            for p in valid:
                change = torch.zeros(1, len(ids), model.d_model).double()
                change[0, p, k] = 1e-5
                with torch.no_grad():
                    slope = (answer_to(model, ids, depth, change) - answer_to(model, ids, depth, -change)) / 2e-5
                column += slope[valid.start : valid.stop].sum(0) / len(valid)
            assert (found[depth][:, k] - column).abs().max() <= 1e-4 * found[depth].abs().max()


def test_a_row_of_the_jacobian_by_hand(model):
    ids = model.encode(prompts(1)[0]).ids
    found, _ = jacobian.of_prompt(model, ids)
    trace, depth, dim = model.trace(model.tensor(ids)), 1, 7
    leaf = trace.resid[depth].clone().requires_grad_()
    resid = leaf
    for layer in range(depth, model.n_layers):
        *_, resid = model.run_block(trace, layer, resid)
    resid[0, 16:-1, dim].sum().backward()
    row = leaf.grad[0, 16:-1].mean(0)
    assert torch.allclose(found[depth, dim].float(), row, atol=1e-5 * float(found[depth].abs().max()))


def test_a_narrow_memory_gives_the_same_jacobian(model):
    ids = model.encode(prompts(1)[0]).ids
    wide, narrow = (jacobian.of_prompt(model, ids, memory)[0] for memory in (None, 1))
    assert torch.allclose(wide, narrow, atol=1e-5)


def test_the_jacobian_lens_is_the_mean_over_prompts_and_its_drift_that_of_its_halves(model, jacobians):
    out, told = jacobians
    used = [p for i, p in enumerate(prompts(10)) if i % 5 != 4]
    each = [jacobian.of_prompt(model, model.encode(p).ids)[0] for p in used]
    held = load_file(out)
    a, b = torch.stack(each[::2]).mean(0), torch.stack(each[1::2]).mean(0)
    for depth in range(model.n_layers):
        mean = torch.stack(each).mean(0)[depth]
        assert np.allclose(held[f"J.{depth}"], mean, atol=1e-6)
        drift = 2 * float((a[depth] - b[depth]).norm() / (a[depth] + b[depth]).norm())
        assert told["drift"][depth] == pytest.approx(drift, rel=1e-5)
    assert told["prompts"]["fitted"] == 8 and told["prompts"]["too_short"] == 0
    assert told["batch"] == min(model.d_model, 768 // max(len(model.encode(p).ids) for p in used))


def test_prompts_without_a_valid_position_are_counted_and_too_few_refused(model, tmp_path):
    short = [Prompt("abc" + chr(97 + i)) for i in range(4)]
    told = jacobian.fit(model, [*short, *prompts(6)], tmp_path / "j.safetensors", test=prompts(8)[6:])
    assert (told["prompts"]["fitted"], told["prompts"]["too_short"]) == (6, 4)
    with pytest.raises(FitRefused, match="0 of 4 prompts have a valid position"):
        jacobian.fit(model, short, tmp_path / "k.safetensors", test=prompts(2))


def test_jacobians_that_overflow_are_refused_at_their_prompt(model, tmp_path, monkeypatch):
    own = jacobian.of_prompt
    monkeypatch.setattr(jacobian, "of_prompt", lambda *args: [one * float("inf") for one in own(*args)])
    with pytest.raises(NotFinite, match="NaN or infinite values in fp32 on .*; open it in bf16 or fp32, or leave"):
        jacobian.fit(model, prompts(10), tmp_path / "j.safetensors")


def test_the_jacobian_lens_stopped_and_resumed(model, jacobians, tmp_path, monkeypatch):
    monkeypatch.setattr("ed_core.fits.file.EVERY", 0.0)
    out = tmp_path / "j.safetensors"

    def stop(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jacobian.fit(model, prompts(10), out, tick=stop)
    seen = []
    jacobian.fit(model, prompts(10), out, tick=seen.append)
    assert seen[0] > 0.3
    whole, found = load_file(jacobians[0]), load_file(out)
    assert all(np.allclose(whole[name], found[name], atol=1e-7) for name in whole)


def test_only_so_many_tokens_of_a_prompt_are_read(model, tmp_path):
    told = jacobian.fit(model, prompts(10), tmp_path / "j.safetensors", max_tokens=20)
    assert told["prompts"]["tokens"] == 8 * 3  # positions 16, 17, 18 of 20


# -------------------------------------------------------------------- the probe


def test_every_lens_against_a_loop_over_depths_and_tokens(model, fitted, jacobians):
    prompt, k = prompts(1)[0], 3
    result = compute.run(model, Lenses(fit=f"{fitted[0]}, {jacobians[0]}", k=k, follow=101).request(model.spec, prompt))
    ids = model.encode(prompt).ids
    h = [r[0].double() for r in model.trace(model.tensor(ids)).resid]
    one, other = load_file(fitted[0]), load_file(jacobians[0])
    maps = {
        "logit": lambda l, x: x,
        "affine": lambda l, x: torch.from_numpy(one[f"A.{l}"]).double() @ x + torch.from_numpy(one[f"b.{l}"]).double(),
        "jacobian": lambda l, x: torch.from_numpy(other[f"J.{l}"]).double() @ x,
    }
    for lens, read in maps.items():
        for t in (0, 3, len(ids) - 1):
            out = model.unembed(h[-1][t].float()).double()
            log_q = out.log_softmax(-1)
            for depth in range(model.n_layers + 1):
                x = h[depth][t] if depth == model.n_layers else read(depth, h[depth][t])
                logits = model.unembed(x.float()).double()
                log_p = logits.log_softmax(-1)
                kl = float((log_p.exp() * (log_p - log_q)).sum())
                assert result[f"{lens}_kl"][depth, t] == pytest.approx(kl, rel=1e-3, abs=1e-5)
                best = set(logits.topk(k).indices.tolist())
                assert set(result[f"{lens}_top_ids"][depth, t].tolist()) == best
                share = len(best & set(out.topk(k).indices.tolist())) / k
                assert result[f"{lens}_overlap"][depth, t] == pytest.approx(share)
                assert result[f"{lens}_rank"][depth, t] == 1 + int((logits > logits[out.argmax()]).sum())
                assert result[f"{lens}_token_rank"][depth, t] == 1 + int((logits > logits[101]).sum())
            top = result[f"{lens}_top_ids"][:, t, 0]
            settle = next(d for d in range(len(top)) if (top[d:] == top[-1]).all())
            assert result[f"{lens}_settle_depth"][t] == settle
    constant = model.unembed(torch.from_numpy(one["mean"])).double().log_softmax(-1)
    log_q = model.unembed(h[-1].float()).double().log_softmax(-1)
    expected = (constant.exp() * (constant - log_q)).sum(-1)
    assert np.allclose(result["constant_kl"], expected, rtol=1e-3)


def test_without_fits_it_is_the_logit_lens(model):
    alone = compute.run(model, Lenses().request(model.spec, prompts(1)[0]))
    known = compute.run(model, LogitLens().request(model.spec, prompts(1)[0]))
    assert {name.partition("_")[0] for name in alone.measures} == {"logit"}
    for name in ("kl", "jsd", "overlap", "rank", "top_ids", "settle_depth"):
        assert np.array_equal(alone[f"logit_{name}"], known[name])


def test_a_lens_without_a_mean_is_read_without_the_constant(model, fitted, tmp_path):
    bare = rewritten(fitted[0], tmp_path / "bare.safetensors", tensors=lambda t: {k: t[k] for k in t if k != "mean"})
    some, all_ = (compute.run(model, Lenses(fit=str(f)).request(model.spec, prompts(1)[0])) for f in (bare, fitted[0]))
    assert set(all_.measures) - set(some.measures) == {"constant_kl"}
    assert np.array_equal(some["affine_kl"], all_["affine_kl"])


def test_a_fits_content_and_not_its_path_enters_the_key(model, fitted, jacobians, tmp_path):
    there = tmp_path / "elsewhere.safetensors"
    shutil.copy(fitted[0], there)

    def key(fit):
        return Lenses(fit=str(fit)).request(model.spec, prompts(1)[0]).key

    assert key(fitted[0]) == key(there) != key(jacobians[0]) != key("")
    assert key(f"{there},{jacobians[0]}") == key(f"{jacobians[0]},{there}") != key(there)
    assert key(f"{there},{there}") == key(there), "named twice, it is one"


def test_two_lenses_of_a_kind_and_an_unknown_name_are_refused(model, fitted, tmp_path):
    there = tmp_path / "again.safetensors"
    shutil.copy(fitted[0], there)
    with pytest.raises(ParameterError, match="two affine lenses"):
        Lenses(fit=f"{fitted[0]},{there}").request(model.spec, prompts(1)[0])
    with pytest.raises(FitRefused, match="no fit 'nobody'; those of this installation are: .*ed-demo-8-affine"):
        Lenses(fit="nobody").request(model.spec, prompts(1)[0])
    with pytest.raises(ParameterError, match=r"lenses.follow is 400; this model's ids are 0 to"):
        compute.run(model, Lenses(follow=400).request(model.spec, prompts(1)[0]))


def test_a_lens_of_a_rank_is_read_as_it_was_judged(model, tmp_path):
    out = tmp_path / "low.safetensors"
    told = affine.fit(model, prompts(30), out, rank=4)
    reader, y = Reader(fits.read(out), model), []
    h = tokens_of(model, prompts(30)[4::5])
    for depth in range(model.n_layers):
        y.append(float(((h[-1] - reader(depth, h[depth])).norm(dim=1) / h[-1].norm(dim=1)).mean()))
    assert np.allclose(y, told["held_out"]["relative_error"], rtol=1e-3)
    assert load_file(out)["U.0"].shape == (model.d_model, 4) and load_file(out)["U.0"].dtype == np.float16
    with pytest.raises(FitRefused, match=f"The rank is 99999, and .* has {model.d_model} dimensions"):
        affine.fit(model, prompts(30), out, rank=99999)


# -------------------------------------------------------------------- files


def rewritten(source, to, certificate=lambda c: c, tensors=lambda t: t):
    with safe_open(source, framework="np") as file:
        told = json.loads(file.metadata()["certificate"])
    save_file(tensors(load_file(source)), to, {"certificate": json.dumps(certificate(told))})
    return to


BROKEN = {
    "its tensors": (dict(tensors=lambda t: {k: v for k, v in t.items() if k != "A.1"}), "does not hold .* at A.1"),
    "one too many": (dict(tensors=lambda t: t | {"C.0": t["b.0"]}), "does not hold what its certificate says"),
    "a shape": (dict(tensors=lambda t: t | {"b.0": t["b.0"][1:]}), "does not hold .* at b.0"),
    "numbers of another kind": (
        dict(tensors=lambda t: t | {"b.0": t["b.0"].astype(np.int32)}),
        "does not hold what its certificate says",
    ),
    "its kind": (dict(certificate=lambda c: c | {"kind": "tuned"}), "no certificate of this program"),
    "its model": (dict(certificate=lambda c: c | {"model": "qwen3"}), "no certificate of this program"),
    "a layer more": (dict(certificate=lambda c: c | {"n_layers": 6}), "does not hold .* at A.5"),
    "a later version": (dict(certificate=lambda c: c | {"version": 2}), "later version"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_not_what_it_says_is_refused(fitted, tmp_path, what):
    change, said = BROKEN[what]
    with pytest.raises(FitRefused, match=said):
        fits.read(rewritten(fitted[0], tmp_path / "broken.safetensors", **change))


def test_pickles_cut_foreign_and_missing_files_are_refused(fitted, tmp_path):
    (tmp_path / "lens.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(FitRefused, match="lens.pt is a pickle, which may hold a program"):
        fits.read(tmp_path / "lens.pt")
    (tmp_path / "cut.safetensors").write_bytes(fitted[0].read_bytes()[:-9])
    with pytest.raises(FitRefused, match="damaged or no safetensors"):
        fits.read(tmp_path / "cut.safetensors")
    save_file({"x": np.ones(3, np.float32)}, tmp_path / "foreign.safetensors")
    with pytest.raises(FitRefused, match="no certificate of this program"):
        fits.read(tmp_path / "foreign.safetensors")
    with pytest.raises(FitRefused, match="There is no fit"):
        fits.read(tmp_path / "none.safetensors")


def test_a_fit_of_other_weights_is_refused_before_anything_runs(model, model_of, fitted):
    other = replace(model.spec, content_hash="other")
    for spec in (other, replace(model.spec, control="shuffled")):
        with pytest.raises(FitRefused, match="was fitted to random-qwen3"):
            Lenses(fit=str(fitted[0])).request(spec, prompts(1)[0])
    with pytest.raises(FitRefused, match="was fitted to"):
        compute.run(model_of("llama"), Lenses(fit=str(fitted[0])).request(model.spec, prompts(1)[0]))
    narrower = replace(model.spec, precision="bf16", device="cuda")
    assert Lenses(fit=str(fitted[0])).request(narrower, prompts(1)[0])  # how it is run does not matter


def test_the_same_numbers_are_the_same_file(model, fitted, tmp_path):
    affine.fit(model, prompts(60), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == fitted[0].read_bytes()


def test_fits_are_found_by_name_here_and_in_the_cache(model, fitted, tmp_path, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    assert fits.of_model(model.spec) == []
    files.folder().mkdir()
    shutil.copy(fitted[0], files.folder() / "mine.safetensors")
    (files.folder() / "damaged.safetensors").write_bytes(b"?")
    assert [fit.path.stem for fit in fits.of_model(model.spec)] == ["mine"]
    assert fits.find("mine").content == fits.read(fitted[0]).content
    assert fits.is_name("ed-demo-8-affine") and not fits.is_name("../mine") and not fits.is_name("mine.safetensors")


def test_a_path_needs_leave_and_a_name_does_not(model, fitted, tmp_path, monkeypatch):
    monkeypatch.setenv("ED_LOCAL_FOLDERS", "false")
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    files.folder().mkdir()
    shutil.copy(fitted[0], files.folder() / "mine.safetensors")
    assert Lenses(fit="mine").request(model.spec, prompts(1)[0])
    with pytest.raises(NotAllowed):
        Lenses(fit=f"mine,{fitted[0]}").request(model.spec, prompts(1)[0])


# -------------------------------------------------------------------- what is said


def curves(**by_lens):
    n = len(next(iter(by_lens.values()))[0])
    criteria = {
        rule: {
            lens: judge(np.asarray(pair[i], float)[:-1])
            for lens, pair in by_lens.items()
            if not (rule == "kl" and lens == "jacobian")
        }
        for i, (rule, judge) in enumerate((name, rule.judge) for name, rule in OF_LENS.items())
    }
    read = {
        rule: {lens: np.asarray(pair[i], float) for lens, pair in by_lens.items()} for i, rule in enumerate(OF_LENS)
    }
    return lenses.ByLens(criteria, read, {}, dict.fromkeys(by_lens, 1.0), n - 1)


FALLING = [4.0, 3.9, 3.8, 3.7, 1.0, 0.9, 0.5, 0.0], [0.0, 0.1, 0.1, 0.1, 0.5, 0.6, 0.8, 1.0]
EARLY = [4.0, 1.0, 0.9, 0.8, 0.7, 0.5, 0.2, 0.0], [0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.9, 1.0]
NEVER = [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 1.0]


def test_the_sentence_says_what_each_lens_gives():
    both = curves(logit=FALLING, affine=EARLY)
    assert both.sentence == (
        "Mean depth over thresholds, of 7 layers, by KL, each lens against its own largest: 4.5 (logit), 5.1 (affine); "
        "by overlap: 4.8 (logit), 2.8 (affine). "
        "Papers' rules: by KL layer 4 (logit), layer 1 (affine); by overlap layer 4 (logit), layer 0 (affine)."
    )
    one = curves(logit=FALLING, affine=NEVER)
    assert "by KL layer 4 (logit), no layer (affine)" in one.sentence
    assert "Papers' rules: by KL no layer under any lens" in curves(logit=NEVER, affine=NEVER).sentence
    assert curves(logit=FALLING).sentence.startswith("One lens alone")


def test_the_jacobian_lens_has_no_part_in_the_kl_rule():
    said = curves(logit=FALLING, jacobian=EARLY)
    assert "jacobian" not in said.criteria["kl"] and "jacobian" in said.criteria["overlap"]
    assert "by KL under one lens only: layer 4 (logit)" in said.sentence
    assert "of 7 layers, by overlap: 4.8 (logit)," in said.sentence, "no mean depth by a KL that one lens alone has"
    assert "layer 0 (Jacobian)" in said.sentence


def test_by_lens_reads_the_means_and_how_settle_depths_agree(model, fitted, jacobians):
    some = [compute.run(model, Lenses(fit=f"{fitted[0]},{jacobians[0]}").request(model.spec, p)) for p in prompts(2, 5)]
    read = lenses.by_lens(some)
    kl = np.concatenate([r["affine_kl"] for r in some], 1).mean(1)
    assert np.allclose(read.curves["kl"]["affine"], kl, rtol=1e-5)
    assert set(read.criteria["kl"]) == {"logit", "affine"} and set(read.criteria["overlap"]) == set(read.settle)
    assert read.criteria["kl"]["affine"] == OF_LENS["kl"].judge(read.curves["kl"]["affine"][:-1])
    assert set(read.agree) == {("logit", "affine"), ("logit", "jacobian"), ("affine", "jacobian")}
    assert read.settle["logit"] == pytest.approx(np.concatenate([r["logit_settle_depth"] for r in some]).mean())


def certificate(low, high, **more):
    """Of three depths; the lens less the constant, and less the logit lens."""
    minus = {name: {"low": low[name], "high": high[name]} for name in low}
    held = {"tokens": 4000, "n": 9, "kl_tokens": 1000, "kl_drawn": {}, "kl_over": "9 prompts", "kl_minus": minus}
    return {"prompts": {"n": 12, "tokens": 5000}, "held_out": held | more, "notes": []}


def test_the_certificate_in_words_says_where_the_lens_is_mute():
    low, high = {"constant": [-1.0, -0.2, 0.1]}, {"constant": [-0.1, 0.2, 0.3]}
    logit = {"logit": [-3.0, -3.0, -3.0]}, {"logit": [-2.0, -2.0, -2.0]}
    told = certificate(low | logit[0], high | logit[1])
    assert lenses.certified("affine", told) == (
        "Affine lens, fitted on 5,000 tokens of 12 prompts. On 1,000 held-out tokens (9 prompts) it says more than a "
        "constant prediction at depth 0, not at depth 2 (undecided at depth 1). It is closer to the output than "
        "the logit lens at every depth before the output."
    )
    said = lenses.certified("jacobian", told | {"drift": [0.3, 0.1, 0.2]})
    assert "differ by up to 30 %" in said and "no depth is read off that KL" in said and "says more" not in said
    assert "its KL is below that of a constant prediction at depth 0, not at depth 2 (undecided at" in said
    told = certificate({"constant": [-1.0] * 3} | logit[0], {"constant": [1.0] * 3} | logit[1])
    said = lenses.certified("affine", told)
    assert "says more than a constant prediction at no depth for sure (undecided at depths 0–2)" in said
    few = certificate(*logit)
    del few["held_out"]["kl_minus"]
    assert "There are too few held-out prompts for an interval" in lenses.certified("affine", few)


@pytest.mark.parametrize(
    "held, said",
    [
        ({"tokens": 4000, "kl_tokens": 1000}, "An older certificate, judged on the first 1,000 tokens of the"),
        ({"tokens": 628, "kl_tokens": 628}, "An older certificate, judged on held-out prompts without an interval;"),
    ],
)
def test_an_older_certificate_is_marked_and_nothing_is_concluded_from_it(held, said):
    kl = {"lens": [9.0, 2.0], "logit": [8.0, 3.0], "constant": [5.0] * 2}
    told = {"kind": "affine", "prompts": {"n": 12, "tokens": 5000}, "held_out": held | {"n": 3, "kl": kl}, "notes": []}
    words = lenses.certified("affine", told)
    assert said in words and "fit it anew to learn at which depths" in words and "at depth " not in words
    shown = lenses.held_out(told)
    assert list(shown.lenses["Affine lens"]) == [9.0, 2.0] and shown.ends == {}
    assert lenses.of_its_time({"held_out": held | {"kl_drawn": {}}}) == ""


# -------------------------------------------------------------------- the command line, and what ships


def lines(path, some):
    path.write_text(to_jsonl(some), encoding="utf-8")
    return str(path)


def test_the_commands_fit_and_the_probe_reads_what_they_wrote(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "cache"))
    texts = [prompt["text"] for prompt in bundled.load_prompts() if prompt["known"]][:10]
    some = lines(tmp_path / "set.jsonl", [Prompt(text) for text in texts])
    made = {}
    for kind, more in (("affine", []), ("jacobian", ["--max-tokens", "24"])):
        out = made[kind] = tmp_path / f"{kind}.safetensors"
        assert main(["fit", kind, "--model", "ed-demo-8", "--set", some, "--out", str(out), *more]) == 0
        assert lenses.LENSES[kind] in capsys.readouterr().out
        assert fits.read(out).certificate["model"]["name"] == "ed-demo-8"
    asked = ["run", "lenses", "--model", "ed-demo-8", "--prompts", lines(tmp_path / "one.jsonl", [Prompt(texts[0])])]
    named = f"lenses.fit={made['affine']},{made['jacobian']}"
    assert main([*asked, "--set", named, "--out", str(tmp_path / "r.npz")]) == 0
    with np.load(tmp_path / "r.npz") as found:
        assert found["lenses.affine_kl.0"].shape == found["lenses.jacobian_rank.0"].shape
        assert found["lenses.affine_kl"].shape == (9,) and found["lenses.logit_overlap"].shape == (9,)
        assert np.allclose(found["lenses.affine_kl"], found["lenses.affine_kl.0"].mean(1), rtol=1e-5)


def test_the_command_adds_shards(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "set.jsonl", prompts(30))
    lines(tmp_path / "other.jsonl", prompts(31))
    fit = ["fit", "affine", "--model", "ed-demo-8", "--set", "set.jsonl"]
    assert main([*fit, "--out", "whole.safetensors"]) == 0
    for i in (1, 2):
        assert main([*fit, "--shard", f"{i}/2", "--out", f"{i}.sums"]) == 0
    assert "2.sums: the prompts 13 to 24 are summed up" in capsys.readouterr().out
    assert main([*fit, "--merge", "1.sums", "2.sums", "--out", "added.safetensors", "--rank", "8"]) == 0
    assert fits.read("added.safetensors").certificate["rank"] == 8
    assert main([*fit, "--merge", "2.sums", "1.sums", "--out", "added.safetensors"]) == 0
    whole, added = load_file("whole.safetensors"), load_file("added.safetensors")
    assert all(np.allclose(whole[name], added[name], atol=1e-4) for name in whole)
    capsys.readouterr()
    for more, said in (
        (["--merge", "1.sums"], "prompts 13 to 24 of 24 are in none of the files"),
        (["--merge", "1.sums", "2.sums", "--set", "other.jsonl"], "is of another prompt set"),
        (
            ["--merge", "1.sums", "2.sums", "--model", "ed-demo-16"],
            "was summed up on ed-demo-8 (fp32), not on ed-demo-16",
        ),
        (["--merge", "1.sums", "2.sums", "--precision", "bf16"], "was summed up on ed-demo-8 (fp32), not on"),
        (["--shard", "1/2"], "expected a file that ends in .sums"),
        (["--shard", "3/2", "--out", "3.sums"], "expected I/N with I from 1 to N"),
        (["--shard", ""], "--shard is ''"),
        (["--shard", "1/25", "--out", "3.sums"], "the set has 24 to fit on"),
        (["--shard", "1/2", "--out", "3.sums", "--rank", "8"], "--rank is of the lens that --merge writes"),
    ):
        refused(capsys, [*fit, "--out", "x.safetensors", *more], said)
    other = ["fit", "jacobian", *fit[2:], "--out", "x.safetensors", "--merge", "1.sums", "2.sums"]
    refused(capsys, other, "is a shard of `fit affine`; expected one of `fit jacobian`")
    assert not list(tmp_path.glob("x.*")) and not list(tmp_path.glob("3.*"))


@pytest.mark.parametrize(
    "more, said",
    [
        (["--out", "x.npz"], "expected a file that ends in .safetensors"),
        (["--out", "nowhere/x.safetensors"], "does not exist; make it first"),
        (["--out", "x.safetensors", "--rank", "0"], "--rank is 0"),
        (["--out", "x.safetensors", "--rank", "999"], "The rank is 999, and ed-demo-8 has"),
        (["--out", "x.safetensors", "--control", "new"], "The control is 'new'"),
        (["--out", "x.safetensors", "--adapter", "/nope"], "There is no folder '/nope'"),
        (["--out", "x.safetensors", "--adapter", "."], "holds no usable adapter_config.json"),
        (["--out", "x.safetensors", "--device", "tpu"], "tpu"),
        (["--out", "x.safetensors", "--set", "none.jsonl"], "no prompts file none.jsonl"),
        (["--out", "x.safetensors", "--test", "set.jsonl"], "5 of the test prompts are among those to fit on"),
        (["--out", "x.sums", "--shard", "1/9"], "the set has 4 to fit on"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_the_command_refuses(tmp_path, capsys, monkeypatch, more, said, dry):
    monkeypatch.chdir(tmp_path)
    some = lines(tmp_path / "set.jsonl", prompts(5))
    refused(capsys, ["fit", "affine", "--model", "ed-demo-8", "--set", some, *more, *dry], said)
    assert [p.name for p in tmp_path.iterdir()] == ["set.jsonl"]


def test_a_dry_run_says_what_the_sums_take(tmp_path, capsys):
    some, out = lines(tmp_path / "set.jsonl", prompts(5)), str(tmp_path / "x.safetensors")
    asked = ["fit", "affine", "--model", "Qwen/Qwen2.5-14B", "--set", some, "--out", out, "--dry-run"]
    assert main(asked) == 0
    assert "48 source taps, 629 MB each, 30.2 GB in all: 1 at once" in capsys.readouterr().out


SHIPPED = sorted(FITS.glob("*.safetensors"))


def test_shipped_fits_are_there_for_the_bundled_models():
    assert {f"{name}-{kind}" for name in bundled.WORDS for kind in ("affine", "jacobian")} <= {
        file.stem for file in SHIPPED
    }


AS_FITTED = {  # what shipped results know these fits by
    "ed-demo-16-affine": "ec46971069a1e375a9fe6807cc177019ca868249110281e4eab2a85724da63bd",
    "ed-demo-16-jacobian": "a5417aff60888946e65b04aec46f3aebc185c2a6e47e8ec76573705735993e19",
    "ed-demo-8-affine": "2189366d21c3e318c6367952925c220b198ab5d74df419b3ad2f06398d043487",
    "ed-demo-8-jacobian": "979943093fff6849577756b8c3232cbaf2a5976435753249c3b90986f654a283",
    "smollm2-affine": "cf0e2b5d14c5ec378a2f6fd1770215c7f61d61a2d8582a8c56a00a7202b68d92",
}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f.stem)
def test_a_shipped_fit_is_of_its_model_and_its_lens_beats_its_controls(file):
    fit = fits.read(file)
    name, _, kind = file.stem.rpartition("-")
    assert fit.kind == kind and fit.certificate["model"]["name"] == name and fit.has_mean
    told = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    assert told == {k: v for k, v in fit.certificate.items() if k not in ("format", "version")}
    assert fit.content == AS_FITTED[file.stem] and not lenses.of_its_time(fit.certificate)
    if kind == "affine":
        said = fit.certificate["held_out"]
        assert all(high < 0 for control in said["kl_minus"].values() for high in control["high"])
        assert said["says"] == 1
    if name in MODELS:
        fit.require(resolve(name))


def test_every_error_of_a_fit_is_one_of_ours():
    assert issubclass(FitRefused, EffectiveDepthError)


def test_a_jacobian_lens_whose_sums_do_not_fit_is_refused_before_any_pass(monkeypatch, tmp_path):
    model = random_model("llama")
    needed = 3 * 8 * model.n_layers * model.d_model**2
    monkeypatch.setattr(jacobian, "free_memory", lambda: 0.99 * needed / jacobian.ROOM)
    prompts = [Prompt("one two three four five six " * n) for n in range(5, 11)]
    with pytest.raises(TooLarge, match=f"sums {model.n_layers} matrices of"):
        jacobian.fit(model, prompts, tmp_path / "lens.safetensors")
