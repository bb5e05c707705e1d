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

from ed_core.cli import main
from ed_core.depth import lenses, say
from ed_core.depth.rules import OF_LENS
from ed_core.depth.verdict import verdict
from ed_core.errors import FitRefused, NotAllowed, ParameterError, TooLarge
from ed_core.lenses import file as files
from ed_core.lenses import find, jacobian, judged, of_model, read
from ed_core.lenses.affine import Affine
from ed_core.lenses.checkpoint import Checkpoint, checkpoint_file
from ed_core.lenses.driver import silent
from ed_core.lenses.jacobian import Jacobian
from ed_core.lenses.judged import Reader
from ed_core.lenses.least_squares import Sums
from ed_core.lenses.streams import Streams, split
from ed_core.models.bundled import FITS, MODELS
from ed_core.models.ref import ModelRef
from ed_core.probes import Lenses
from ed_core.prompts import to_jsonl
from ed_core.types import Prompt
from ed_core.work import compute

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "near", "seven", "old", "wizards")


def prompts(n: int, words: int = 6) -> list[Prompt]:
    rng = np.random.default_rng(0)
    return [Prompt(" ".join(rng.choice(WORDS, words))) for _ in range(n)]


def fit(kind, model, some, out, test=None, tick=silent, **more):
    return kind(model, prompts=some, test=test, **more).fit(out, tick)


@pytest.fixture(scope="module")
def model(model_of):
    return model_of("qwen3")


@pytest.fixture(scope="module")
def fitted(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("fits") / "mine.safetensors"
    return out, fit(Affine, model, prompts(60), out)


@pytest.fixture(scope="module")
def jacobians(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("fits") / "answers.safetensors"
    return out, fit(Jacobian, model, prompts(10), out)


def tokens_of(model, some):
    """`[depth][token, d]`, float64, without the first token of each prompt."""
    streams = [model.trace(model.tensor(model.encode(p))).resid for p in some]
    return [torch.cat([s[depth][0, 1:] for s in streams]).double() for depth in range(model.n_layers + 1)]


def test_the_affine_lens_is_the_ridge_regression_of_all_tokens_at_once(model, fitted):
    out, told = fitted
    used, _ = split(prompts(60), None)
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
    h, held = tokens_of(model, split(prompts(60), None)[1]), load_file(out)
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
        for name, h_l in (("lens", f), ("logit", h[depth]), ("constant", torch.from_numpy(held["mean"]).expand_as(y))):
            log_p = model.unembed(h_l.float()).double().log_softmax(-1)
            kl = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
            assert found["kl"][name][depth] == pytest.approx(kl, rel=1e-3, abs=1e-6), name


def test_divergence_is_that_of_all_sets_and_its_interval_is_over_prompts(model, fitted, monkeypatch):
    """By a second computation: a loop over tokens, plain softmax, the mean of each prompt's drawn tokens weighted by
    its length; and a plain loop over resamples of the bootstrap-t."""
    some = [
        replace(one, form=form) for form, n, m in (("a", 4, 3), ("b", 9, 14), ("c", 2, 30)) for one in prompts(n, m)
    ]
    monkeypatch.setattr(judged, "KL_TOKENS", 60)
    monkeypatch.setattr(judged, "KL_LOGITS", 0)
    lens, mean = Reader(read(fitted[0]), model).lens, torch.from_numpy(load_file(fitted[0])["mean"])
    streams = Streams(model, some)
    rows = judged.evaluate(streams, range(model.n_layers), lens, {}, mean, lambda share: None)
    found = judged.certificate(streams, rows)
    lengths = [len(model.encode(p)) - 1 for p in some]
    at = judged.compared(streams)
    assert found["kl_tokens"] == sum(map(len, at)) and all(len(one) for one in at)
    assert 60 <= found["kl_tokens"] <= 60 + len(some)
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
    assert found["kl_over"] == "15 prompts of 3 templates"  # too few forms to be units
    low, high = naive.bootstrap_t(np.subtract(apart["lens"], apart["constant"]), np.array(lengths, float))
    assert found["kl_minus"]["constant"]["low"][depth] == pytest.approx(low, rel=1e-3)
    assert found["kl_minus"]["constant"]["high"][depth] == pytest.approx(high, rel=1e-3)
    assert found["says"] == np.mean(np.array(found["kl_minus"]["constant"]["high"]) < 0)


@pytest.mark.parametrize("kind, stopped_at, memory", [(Affine, 0.4, 2 * 3 * 8 * 32**2), (Jacobian, 0.5, None)])
def test_stopped_and_resumed_it_is_the_same_fit(model, tmp_path, monkeypatch, kind, stopped_at, memory):
    """The affine lens in the second group of two depths, the Jacobian lens between two prompts."""
    monkeypatch.setattr("ed_core.lenses.checkpoint.EVERY", 0.0)
    monkeypatch.setattr("ed_core.lenses.checkpoint.WRITING", np.inf)
    out, whole = tmp_path / "mine.safetensors", tmp_path / "whole.safetensors"

    def stop(share):
        if share > stopped_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(kind, model, prompts(12), out, tick=stop, memory=memory)
    assert not out.exists() and checkpoint_file(out).exists()
    again = []
    fit(kind, model, prompts(12), out, tick=again.append, memory=memory)
    fit(kind, model, prompts(12), whole)
    assert again[0] > 0.3 and sorted(p.name for p in tmp_path.iterdir()) == [out.name, whole.name]
    assert out.read_bytes() == whole.read_bytes()


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
    other.write({"next": np.asarray(3)})
    assert Checkpoint(tmp_path / "x.part", "two").read() == {}
    assert int(Checkpoint(tmp_path / "x.part", "one").read()["next"]) == 3
    (tmp_path / "x.part").write_bytes(b"PK damaged")
    assert Checkpoint(tmp_path / "x.part", "one").read() == {}


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
    assert torch.allclose(low, a, atol=1e-8) and torch.allclose(shift, b, atol=1e-8) and misses == sorted(misses)[::-1]


def test_few_tokens_are_said(model, tmp_path):
    told = fit(Affine, model, prompts(5, 2), tmp_path / "few.safetensors")
    assert f"{told['prompts']['tokens']} tokens are few for {model.d_model} dimensions" in told["notes"][0]


@pytest.mark.parametrize(
    "some, test, said",
    [
        (prompts(1), None, "has 1 prompt, and a fifth"),
        (prompts(4), None, "has 4 prompts, and a fifth is held out"),
        (prompts(5), prompts(1), "1 of the test prompts are among"),
        ([Prompt(c) for c in "abcde"], prompts(1), "no prompt .*besides its first|No prompt of the set"),
        (prompts(6), [Prompt("a"), Prompt("b")], "No held-out prompt has a token"),
        ([Prompt("a" * n) for n in range(60, 70)], None, "all alike at some depth"),
    ],
)
def test_what_cannot_be_fitted_to_or_judged_on_is_refused(model, tmp_path, some, test, said):
    with pytest.raises(FitRefused, match=said):
        fit(Affine, model, some, tmp_path / "none.safetensors", test=test)


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


def test_the_jacobian_lens_is_the_mean_over_prompts_and_its_drift_that_of_its_halves(model, jacobians):
    out, told = jacobians
    used, _ = split(prompts(10), None)
    each = [jacobian.of_prompt(model, model.encode(p).ids)[0] for p in used]
    held = load_file(out)
    a, b = torch.stack(each[::2]).mean(0), torch.stack(each[1::2]).mean(0)
    for depth in range(model.n_layers):
        mean = torch.stack(each).mean(0)[depth]
        assert np.allclose(held[f"J.{depth}"], mean, atol=1e-6)
        drift = 2 * float((a[depth] - b[depth]).norm() / (a[depth] + b[depth]).norm())
        assert told["drift"][depth] == pytest.approx(drift, rel=1e-5)
    assert told["prompts"]["fitted"] == 8 and told["prompts"]["too_short"] == 0


def test_prompts_without_a_valid_position_are_counted_and_too_few_refused(model, tmp_path):
    short = [Prompt("abc" + chr(97 + i)) for i in range(4)]
    told = fit(Jacobian, model, [*short, *prompts(6)], tmp_path / "j.safetensors", test=prompts(8)[6:])
    assert (told["prompts"]["fitted"], told["prompts"]["too_short"]) == (6, 4)
    with pytest.raises(FitRefused, match="0 of 4 prompts have a valid position"):
        fit(Jacobian, model, short, tmp_path / "k.safetensors", test=prompts(2))


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
    for lens, apply in maps.items():
        for t in (0, 3, len(ids) - 1):
            out = model.unembed(h[-1][t].float()).double()
            log_q = out.log_softmax(-1)
            for depth in range(model.n_layers + 1):
                x = h[depth][t] if depth == model.n_layers else apply(depth, h[depth][t])
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
    told = fit(Affine, model, prompts(30), out, rank=4)
    reader, y = Reader(read(out), model).lens, []
    h = tokens_of(model, split(prompts(30), None)[1])
    for depth in range(model.n_layers):
        y.append(float(((h[-1] - reader(depth, h[depth])).norm(dim=1) / h[-1].norm(dim=1)).mean()))
    assert np.allclose(y, told["held_out"]["relative_error"], rtol=1e-3)
    assert load_file(out)["U.0"].shape == (model.d_model, 4) and load_file(out)["U.0"].dtype == np.float16
    with pytest.raises(FitRefused, match=f"The rank is 99999, and .* has {model.d_model} dimensions"):
        fit(Affine, model, prompts(30), out, rank=99999)


FOREIGN = "no certificate of this version of the program"


@pytest.mark.parametrize(
    "certificate", [{"kind": "tuned"}, {"version": 2}, {"model": {}}, {"n_layers": 3}, {"d_model": "x"}]
)
def test_another_lens_another_version_and_other_tensors_are_refused(fitted, tmp_path, certificate):
    with safe_open(fitted[0], framework="np") as file:
        told = json.loads(file.metadata()["certificate"]) | certificate
    save_file(load_file(fitted[0]), tmp_path / "broken.safetensors", {"certificate": json.dumps(told)})
    with pytest.raises(FitRefused, match=FOREIGN):
        read(tmp_path / "broken.safetensors")


def test_pickles_cut_foreign_and_missing_files_are_refused(fitted, tmp_path):
    (tmp_path / "lens.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(FitRefused, match="lens.pt is a pickle, which may hold a program"):
        read(tmp_path / "lens.pt")
    (tmp_path / "cut.safetensors").write_bytes(fitted[0].read_bytes()[:-9])
    with pytest.raises(FitRefused, match="damaged or no safetensors"):
        read(tmp_path / "cut.safetensors")
    save_file({"x": np.ones(3, np.float32)}, tmp_path / "foreign.safetensors")
    with pytest.raises(FitRefused, match=FOREIGN):
        read(tmp_path / "foreign.safetensors")
    with pytest.raises(FitRefused, match="There is no fit"):
        read(tmp_path / "none.safetensors")


def test_a_fit_of_other_weights_is_refused_before_anything_runs(model, model_of, fitted):
    other = replace(model.spec, content_hash="other")
    for spec in (other, replace(model.spec, control="shuffled")):
        with pytest.raises(FitRefused, match="was fitted to random-qwen3"):
            Lenses(fit=str(fitted[0])).request(spec, prompts(1)[0])
    with pytest.raises(FitRefused, match="was fitted to"):
        compute.run(model_of("llama"), Lenses(fit=str(fitted[0])).request(model.spec, prompts(1)[0]))
    narrower = replace(model.spec, precision="bf16", device="cuda")
    assert Lenses(fit=str(fitted[0])).request(narrower, prompts(1)[0])  # how it is run does not matter


def test_fits_are_found_by_name_here_and_in_the_cache(model, fitted, tmp_path, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    assert of_model(model.spec) == []
    files.folder().mkdir()
    shutil.copy(fitted[0], files.folder() / "mine.safetensors")
    (files.folder() / "damaged.safetensors").write_bytes(b"?")
    assert [fit.path.stem for fit in of_model(model.spec)] == ["mine"]
    assert find("mine").content == read(fitted[0]).content
    monkeypatch.setenv("ED_HOSTED", "true")
    assert Lenses(fit="mine").request(model.spec, prompts(1)[0])
    with pytest.raises(NotAllowed):
        Lenses(fit=f"mine,{fitted[0]}").request(model.spec, prompts(1)[0])


def test_the_jacobian_lens_has_no_part_in_the_kl_rule():
    """Two lenses of one prompt of 7 layers: each is read as the logit lens is; no depth rests on a KL by the other."""
    falling = [4.0, 3.9, 3.8, 3.7, 1.0, 0.9, 0.5, 0.0], [0.0, 0.1, 0.1, 0.1, 0.5, 0.6, 0.8, 1.0]
    early = [4.0, 1.0, 0.9, 0.8, 0.7, 0.5, 0.2, 0.0], [0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.9, 1.0]
    columns = {"n_tokens": np.ones(1)}
    for lens, of in {"logit": falling, "jacobian": early}.items():
        columns |= {f"{lens}_{name}.sum": np.array([curve]) for name, curve in zip(OF_LENS, of)}
    logit, jacobian = (verdict(lenses.sample(lens, columns)) for lens in ("logit", "jacobian"))
    assert logit.layers == {"kl": 4, "overlap": 4} and jacobian.layers == {"overlap": 0}
    assert jacobian.means.keys() == {"overlap"}
    told = say.by_lens({"logit": logit, "jacobian": jacobian})
    assert "by overlap" in told and "by KL" not in told


def lines(path, some):
    path.write_text(to_jsonl(some), encoding="utf-8")
    return str(path)


def test_the_commands_fit_and_the_probe_reads_what_they_wrote(small_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "cache"))
    some, model = lines(tmp_path / "set.jsonl", prompts(10)), str(small_folder)
    made = {}
    for kind, more in (("affine", []), ("jacobian", ["--max-tokens", "24"])):
        out = made[kind] = tmp_path / f"{kind}.safetensors"
        assert main(["fit", kind, "--model", model, "--set", some, "--out", str(out), *more]) == 0
        assert lenses.LENSES[kind] in capsys.readouterr().out
        assert read(out).certificate["model"]["name"] == small_folder.name
    refused(capsys, ["fit", "affine", "--model", model, "--set", some, "--out", "x.npz"], "ends in .safetensors")
    asked = ["run", "lenses", "--model", model, "--prompts", lines(tmp_path / "one.jsonl", prompts(1))]
    named = f"lenses.fit={made['affine']},{made['jacobian']}"
    assert main([*asked, "--set", named, "--out", str(tmp_path / "r.npz")]) == 0
    with np.load(tmp_path / "r.npz") as found:
        assert found["lenses.affine_kl.0"].shape == found["lenses.jacobian_rank.0"].shape
        assert found["lenses.affine_kl"].shape == (6,) and found["lenses.logit_overlap"].shape == (6,)
        assert np.allclose(found["lenses.affine_kl"], found["lenses.affine_kl.0"].mean(1), rtol=1e-5)


SHIPPED = sorted(FITS.glob("*.safetensors"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f.stem)
def test_a_shipped_fit_is_of_its_model_and_its_lens_beats_its_controls(file):
    shipped = read(file)
    name, _, kind = file.stem.rpartition("-")
    assert shipped.kind == kind and shipped.certificate["model"]["name"] == name
    told = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    assert told == {k: v for k, v in shipped.certificate.items() if k not in ("format", "version")}
    if kind == "affine":
        said = shipped.certificate["held_out"]
        below = {name: np.less(control["high"], 0).mean() for name, control in said["kl_minus"].items()}
        assert below["constant"] == below["shuffled"] == 1 and below["logit"] >= 0.9 and said["says"] == 1
        assert not any(low > 0 for control in said["kl_minus"].values() for low in control["low"])
    if name in MODELS:
        shipped.require(ModelRef.parse(name))


def test_a_jacobian_lens_whose_sums_do_not_fit_is_refused_before_any_pass(model, monkeypatch):
    needed = 3 * 8 * model.n_layers * model.d_model**2
    monkeypatch.setattr("ed_core.lenses.driver.free_memory", lambda: needed - 1)
    with pytest.raises(TooLarge, match="The fit holds sums of"):
        Jacobian(model, prompts=prompts(6))
    monkeypatch.setattr("ed_core.lenses.driver.free_memory", lambda: needed)
    assert Jacobian(model, prompts=prompts(6)).plan.bytes == needed
