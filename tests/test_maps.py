"""Maps between two models and linear replacement within one, against naive twins: stacked tokens, `lstsq` pair by pair,
hooks; what is read off them, their files, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from shell import refused
from small_models import byte_tokenizer, random_model, save_random
from tokenizers import Tokenizer, models, pre_tokenizers

from ed_core.cli import main
from ed_core.depth import matching, say
from ed_core.errors import FitRefused, TooLarge
from ed_core.lenses import measured
from ed_core.lenses.checkpoint import checkpoint_file
from ed_core.lenses.driver import silent
from ed_core.lenses.maps import Between
from ed_core.lenses.replacement import Within
from ed_core.models.encoder import Encoder
from ed_core.types import Prompt

TEXT = "the cat sat on a mat while seven dogs ran over the hill and back again before it rained 1 + 2 = 3"
WORDS = TEXT.split()


def prompts(n: int, seed: int = 0) -> list[Prompt]:
    """Of 10 to 60 tokens each, one a byte."""
    draw = np.random.default_rng(seed)
    return [Prompt(" ".join(draw.choice(WORDS, draw.integers(3, 14)))) for _ in range(n)]


USED, HELD_OUT = prompts(8), prompts(4, seed=1)


def fit(*models, of, out=None, test=HELD_OUT, tick=silent, **more):
    kind = Between if len(models) == 2 else Within
    return kind(*models, prompts=of, test=test, **more).fit(out, tick)


@pytest.fixture(scope="module")
def pair():
    """Two models of one tokenizer, of different depth and width."""
    return random_model("llama", num_hidden_layers=4), random_model("qwen3", num_hidden_layers=3)


def stacked(model, of: list[Prompt]) -> list[list[torch.Tensor]]:
    """Per tap, each prompt's stream without its first token, float64."""
    traces = [model.trace(model.tensor(model.encode(p))) for p in of]
    return [[t.resid[tap][0, 1:].double() for t in traces] for tap in range(model.n_layers + 1)]


def naive_map(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares on stacked tokens, the ridge as further rows."""
    mean_x, mean_y = x.mean(0), y.mean(0)
    x = x - mean_x
    ridge = (1e-6 * (x * x).sum() / x.shape[1]).sqrt() * torch.eye(x.shape[1]).double()
    more = torch.zeros(x.shape[1], y.shape[1]).double()
    a = torch.linalg.lstsq(torch.cat([x, ridge]), torch.cat([y - mean_y, more]), driver="gelsd").solution
    return a, mean_y - mean_x @ a


def naive_figures(guess: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    apart = (guess - y).norm(dim=1)
    spread = ((y - y.mean(0)) ** 2).sum()
    return float((apart / y.norm(dim=1)).mean()), float(1 - (apart**2).sum() / spread)


def other_tokens(of_prompts: list[torch.Tensor]) -> torch.Tensor:
    """For each token one of the prompt before, drawn by the prompt's number; for the first prompt's, of itself."""
    found = []
    for i, y in enumerate(of_prompts):
        pool = of_prompts[max(i - 1, 0)]
        found.append(pool[torch.randint(len(pool), (len(y),), generator=torch.Generator().manual_seed(i))])
    return torch.cat(found)


def test_every_pair_of_taps_agrees_with_least_squares_on_stacked_tokens(pair):
    a, b = pair
    found = fit(a, b, of=USED)
    x, y, x_test, y_test = (stacked(m, of) for of in (USED, HELD_OUT) for m in pair)
    assert found.error.shape == found.r2.shape == (a.n_layers + 1, b.n_layers + 1)
    assert found.tokens == sum(map(len, x[0])) and found.test_tokens == sum(map(len, x_test[0]))
    for j in range(b.n_layers + 1):
        true = torch.cat(y_test[j])
        mean = torch.cat(y[j]).mean(0).expand_as(true)
        assert np.allclose((found.error_mean[j], found.r2_mean[j]), naive_figures(mean, true), rtol=0, atol=1e-6)
        for i in range(a.n_layers + 1):
            source, test = torch.cat(x[i]), torch.cat(x_test[i])
            weights, constant = naive_map(source, torch.cat(y[j]))
            expected = naive_figures(test @ weights + constant, true)
            assert np.allclose((found.error[i, j], found.r2[i, j]), expected, rtol=0, atol=1e-6), (i, j)
            weights, constant = naive_map(source, other_tokens(y[j]))
            expected = naive_figures(test @ weights + constant, true)
            shuffled = (found.error_shuffled[i, j], found.r2_shuffled[i, j])
            assert np.allclose(shuffled, expected, rtol=0, atol=1e-6), (i, j)


@pytest.mark.parametrize("kind", ["maps", "replacement"])
def test_a_fit_that_was_stopped_goes_on_from_there(pair, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("ed_core.lenses.checkpoint.EVERY", 0.0)
    monkeypatch.setattr("ed_core.lenses.checkpoint.WRITING", np.inf)
    models_of = pair if kind == "maps" else pair[:1]
    share, out, memory = 0.9, tmp_path / "found.npz", 2 * measured.plan_of(kind, models_of, 1 << 40).each

    def stop(done: float) -> None:
        if done > share:
            raise KeyboardInterrupt

    shares: list[float] = []
    whole = fit(*models_of, of=USED, tick=shares.append, memory=memory)
    assert shares == sorted(shares) and shares[-1] == 1 and shares[0] < 0.1
    with pytest.raises(KeyboardInterrupt):
        fit(*models_of, of=USED, out=out, tick=stop, memory=memory)
    assert checkpoint_file(out).is_file() and not out.is_file()
    shares.clear()
    again = fit(*models_of, of=USED, out=out, tick=shares.append, memory=memory)
    assert not checkpoint_file(out).is_file() and shares[0] > share - 0.4
    for values, expected in zip(vars(again).values(), vars(whole).values()):
        assert isinstance(values, dict) or np.array_equal(values, expected)
    assert measured.packed(measured.read(out)) == measured.packed(whole)


def test_two_tokenizers_are_refused(pair):
    b = random_model("qwen3", num_hidden_layers=3)
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    b.encoder = Encoder(tokenizer)
    with pytest.raises(FitRefused, match="different tokens"):
        fit(pair[0], b, of=USED)
    b.encoder = Encoder(byte_tokenizer().backend_tokenizer)
    assert fit(pair[0], b, of=USED).tokens


def test_no_more_tokens_than_dimensions_are_refused_with_both_numbers(pair):
    a, b = pair
    d = a.d_model
    exactly = [Prompt("x" * (d + 1))]
    for models_of in ((a, b), (a,)):
        with pytest.raises(FitRefused, match=rf"have {d} tokens .* has {d} dimensions.*at least {d + 1} tokens"):
            fit(*models_of, of=exactly)
        one_more = [Prompt(" ".join(WORDS * 2)[: d + 2])]
        assert fit(*models_of, of=one_more).certificate["notes"], "enough, and said to be few"
    with pytest.raises(FitRefused, match="No held-out prompt"):
        fit(a, b, of=USED, test=[Prompt("x")])


def test_a_replaced_block_costs_what_a_hook_in_its_place_costs(pair):
    model = pair[0]
    held_out = [*HELD_OUT, next(p for p in map(Prompt, ("a", "it", "the")) if len(model.encode(p)) == 2)]
    found = fit(model, of=USED, test=held_out)
    x, x_test = stacked(model, USED), stacked(model, held_out)

    def loss(of: list[Prompt]) -> float:
        lost = []
        for prompt in of:
            ids = model.tensor(model.encode(prompt))
            logits = model.hf(input_ids=ids, use_cache=False).logits[0, :-1]
            lost.append(torch.nn.functional.cross_entropy(logits.double(), ids[0, 1:], reduction="none"))
        return float(torch.cat(lost).mean())

    assert abs(found.whole - loss(held_out)) < 1e-5 and abs(found.whole_fitted - loss(USED)) < 1e-5
    for block in range(model.n_layers):
        weights, constant = naive_map(torch.cat(x[block]), torch.cat(x[block + 1]))

        def put(module, args, kwargs, output, weights=weights, constant=constant):
            h, out = args[0] if args else kwargs["hidden_states"], output[0] if isinstance(output, tuple) else output
            out = out.clone()
            out[:, 1:] = (h[:, 1:].double() @ weights + constant).to(out)
            return (out, *output[1:]) if isinstance(output, tuple) else out

        hook = model.blocks[block].register_forward_hook(put, with_kwargs=True)
        try:
            assert abs(found.loss[block] - loss(held_out)) < 1e-5, block
            assert abs(found.loss_fitted[block] - loss(USED)) < 1e-5, block
        finally:
            hook.remove()
        guess, true = torch.cat(x_test[block]) @ weights + constant, torch.cat(x_test[block + 1])
        assert abs(found.error[block] - naive_figures(guess, true)[0]) < 1e-6


def test_the_plan_needs_no_model_and_says_what_a_large_pair_takes():
    sizes = [SimpleNamespace(n_layers=28, d_model=1536), SimpleNamespace(n_layers=48, d_model=5120)]
    found = measured.plan_of("maps", sizes, 40 << 30)
    assert found.each == 8 * 1536 * (1536 + 2 * 49 * 5120)
    assert (found.at_once, found.passes, found.n_taps) == (3, 10, 29) and found.bytes <= 20 << 30
    with pytest.raises(TooLarge, match=r"6\.2 GB .* 1\.0 GB are free"):
        measured.plan_of("maps", sizes, 10**9)


def synthetic(best: np.ndarray, n_b: int, error: float = 0.3, control: float = 0.9) -> measured.Maps:
    """Maps whose best match of source tap i is `best[i - 1]`, by error and by R² alike."""
    n_a = len(best)
    off = np.full((n_a + 1, n_b + 1), 0.8)
    off[0, :] = off[:, 0] = 0.01  # taps 0, which are left out
    off[np.arange(1, n_a + 1), best] = error
    shape = off.shape
    told = {side: {"name": name} for side, name in zip("ab", ("small", "large"))}
    controls = dict(error_mean=np.full(shape[1], control), r2_mean=np.zeros(shape[1]))
    return measured.Maps(
        off, 1 - off, np.full(shape, control), np.zeros(shape), **controls, tokens=9, test_tokens=9, certificate=told
    )


@pytest.mark.parametrize(
    ("best", "which"),
    [
        (2 * np.arange(1, 9), "same"),
        (np.arange(1, 9), "late"),
        (np.array([9, 2, 14, 4, 11, 1, 6, 3]), "unordered"),
        (np.full(8, 7), "unordered"),
    ],
)
def test_the_reading_names_where_the_matches_are(best, which):
    found = synthetic(best, 16)
    assert matching.reading(matching.match(found)) == which
    assert matching.match(found).matches.all()
    assert say.matching(found).startswith("8 of 8 layers of small have a counterpart in large")


def test_nothing_is_read_off_maps_that_a_control_equals():
    found = synthetic(2 * np.arange(1, 9), 16)
    found = matching.match(replace(found, error_mean=np.full(found.error_mean.shape, 0.32)))
    assert matching.reading(found) == "unclear" and not found.matches.any()


def test_a_damaged_file_is_refused(tmp_path):
    good = measured.packed(synthetic(np.arange(1, 9), 16))
    assert measured.unpacked(good, "x").n_layers == (8, 16)
    with pytest.raises(FitRefused, match="There is no file"):
        measured.read(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", error=np.zeros((2, 2)))
    np.savez(tmp_path / "object.npz", certificate=np.array([{}], object))
    found = synthetic(np.arange(1, 9), 16)
    lies = [replace(found, error=np.zeros(3)), replace(found, tokens=np.zeros(2)), replace(found, certificate={"a": 1})]
    files = [(tmp_path / f"{n}.npz").read_bytes() for n in ("other", "object")]
    for data in (b"", good[: len(good) // 2], *files, *map(measured.packed, lies)):
        with pytest.raises(FitRefused, match="x is damaged"):
            measured.unpacked(data, "x")
    found = measured.unpacked(good, "x")
    assert measured.csv(found).splitlines()[1].startswith("0,0,0.01,0.99,0.9,0.0,0.9,0.0")


@pytest.fixture(scope="module")
def files(tmp_path_factory, small_folder):
    """A second model of the same tokenizer, and two prompt files."""
    place = tmp_path_factory.mktemp("maps")
    other = save_random(place / "other", num_hidden_layers=3)
    for name, of in (("set", USED), ("test", HELD_OUT)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps({"text": p.text}) + "\n" for p in of))
    return ["--model", str(small_folder), "--set", str(place / "set.jsonl")], str(other), place


def test_the_commands_write_what_they_measured_and_say_it(files, tmp_path, capsys):
    options, other, place = files
    out = tmp_path / "maps.npz"
    test = ["--test", str(place / "test.jsonl")]
    assert main(["fit", "maps", *options, "--other", other, *test, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "fitted on" in said and "have a counterpart in" in said
    with np.load(out, allow_pickle=False) as file:
        assert file["error"].shape == file["r2"].shape == (6, 4) and file["tokens"] > 100
        assert json.loads(str(file["certificate"]))["b"]["n_layers"] == 3
    found = measured.read(out)
    assert found.test_tokens == sum(len(p.text) - 1 for p in HELD_OUT)
    assert main(["fit", "maps", *options, "--other", other, "--out", str(out)]) == 0, "without a test set"
    assert measured.read(out).certificate["held_out"]["n"] == -(-len(USED) // 5)  # the first of five folds
    assert main(["fit", "replacement", *options, *test, "--out", str(out)]) == 0
    assert "raises the loss" in capsys.readouterr().out
    found = measured.read(out)
    assert isinstance(found, measured.Replacement) and found.loss.shape == (5,)


def test_what_the_command_cannot_do_is_said_in_one_sentence(files, tmp_path, capsys):
    options, other, _ = files
    fit = ["fit", "maps", *options, "--other", other]
    for more, said in (
        (["--out", str(tmp_path / "maps.txt")], "ends in .npz"),
        (["--out", str(tmp_path / "no" / "maps.npz")], "does not exist"),
        (["--out", str(tmp_path / "m.npz"), "--other-seed", "1"], "--other-seed needs --other-control"),
    ):
        refused(capsys, [*fit, *more], said)
