"""What is told of the tokens a model writes, against full passes over everything before each of them; and known answers
written without each layer, against writing token by token with the whole read anew."""

from __future__ import annotations

import random
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from small_models import random_model

from ed_core import prompts
from ed_core.depth.answer import is_right
from ed_core.errors import Cancelled, ParameterError, PromptError
from ed_core.models import identities
from ed_core.probes import Answers, Continuation, ExactAnswers, Generation
from ed_core.sweeps import metrics
from ed_core.sweeps.lenses import sample
from ed_core.sweeps.recorder import Recorder
from ed_core.types import ProbeResult, Prompt, Request

PROMPT = Prompt("5 + 7 + 5 = ", "17")


@pytest.fixture
def model(model_of):
    """One family: the others are held by test_families."""
    return model_of("gemma2")


def test_every_token_is_told_of_as_full_passes_tell_it(model, measure):
    """Settings off their defaults; thresholds that a random model's flat distributions reach at some depths."""
    probe = Generation(n_tokens=6, threshold=0.012, g=0.02, rho=0.5)
    found = measure(model, probe, PROMPT)
    asked = model.encode(PROMPT).ids[: found.answer_start]
    assert found["ids"].tolist() == naive.greedy(model.hf, asked, 6)
    expected = naive.writing(model.hf, asked, found["ids"].tolist(), 0.012, 0.02, 0.5)
    for name, values in expected.items():
        assert found[name].shape == values.shape
        assert np.abs(found[name] - values).max() <= (1e-5 if name in ("jsd", "confidence") else 1e-6), name
    assert found["mean_ratio"] == pytest.approx(expected["deep_thinking_ratio"][-1])
    assert found["mean_depth"] == pytest.approx(expected["settle_depth"].mean())
    assert found["mean_agreement"] == pytest.approx(expected["exit_agrees"].mean())
    lost = [d == 0 and not same for d, same in zip(expected["exit_depth"], expected["exit_agrees"])]
    assert found["mean_lost_at_0"] == pytest.approx(np.mean(lost))


def test_kept_keys_and_values_change_nothing(model):
    """Cached, what every depth of every token says is a full pass's, within the identities' limits."""
    limit, seen = identities.MISS_LIMIT[torch.float32], []
    ids = model.tensor(model.encode(PROMPT).ids)

    def choose(step, logits):
        seen.append(logits)
        return int(logits[-1].argmin())

    model.write(ids, 5, choose, at_depths=True)
    for logits in seen:
        trace = model.trace(ids)
        full = torch.stack([model.unembed(h[0, -1]) for h in trace.resid])
        assert logits.shape == full.shape
        assert float(((logits - full).abs().amax(-1) / full.abs().amax(-1)).max()) <= limit
        assert float((logits[-1] - trace.logits[0, -1]).abs().max() / trace.logits[0, -1].abs().max()) <= limit
        ids = torch.cat([ids, logits[-1].argmin().view(1, 1)], dim=1)


def test_it_writes_what_the_continuation_says(model, measure):
    found = measure(model, Generation(n_tokens=9), PROMPT)
    assert found["ids"].tolist() == measure(model, Continuation(n_tokens=9), PROMPT)["ids"].tolist()


def test_draws_follow_the_seed_and_the_temperature(model_of, measure):
    model = model_of("qwen3")
    one, again = (measure(model, Generation(n_tokens=12, temperature=1.5, seed=4), PROMPT)["ids"] for _ in range(2))
    other = measure(model, Generation(n_tokens=12, temperature=1.5, seed=5), PROMPT)["ids"]
    assert one.tolist() == again.tolist() != other.tolist()
    greedy = measure(model, Generation(n_tokens=12), PROMPT)["ids"]
    assert measure(model, Generation(n_tokens=12, temperature=1e-4, seed=9), PROMPT)["ids"].tolist() == greedy.tolist()
    fewer = measure(model, Generation(n_tokens=5, temperature=1.5, seed=4), PROMPT)["ids"]
    assert fewer.tolist() == one.tolist()[:5], "stopping early keeps what was written"


def test_draws_are_spread_as_the_probabilities_say():
    logits, draw = torch.tensor([0.0, 2.0, -50.0, 1.0]), random.Random(1)
    counts = np.bincount([sample(logits, 2.0, draw.random()) for _ in range(4000)], minlength=4) / 4000
    p = np.exp([0.0, 1.0, -25.0, 0.5])
    assert np.abs(counts - p / p.sum()).max() < 0.02
    assert sample(logits, 1.0, 0.0) == 0 and sample(logits, 1.0, 1.0 - 1e-12) == 3


def test_a_text_that_ends_early_is_short(model_of, measure, monkeypatch):
    model = model_of("qwen3")
    whole = measure(model, Generation(n_tokens=8), PROMPT)
    ids = whole["ids"].tolist()
    last = ids.index(ids[3])
    monkeypatch.setattr(model.hf.generation_config, "eos_token_id", [ids[3]])
    found = measure(model, Generation(n_tokens=8), PROMPT)
    assert found["ids"].tolist() == ids[: last + 1] and found["jsd"].shape == (6, last + 1)
    assert np.array_equal(found["deep_thinking_ratio"], whole["deep_thinking_ratio"][: last + 1])
    assert any("ended its text after" in note for note in found.notes)
    found = measure(model, Continuation(k=2), PROMPT)
    assert found["ids"].tolist() == ids[: last + 1]
    assert sum("ended its text after" in note for note in found.notes) == 1


@pytest.mark.parametrize("family", ["gpt2", "llama"])  # where there is no position, and where it would be computed
def test_it_writes_to_the_last_position_and_says_so(measure, family):
    model = random_model(family, max_position_embeddings=100)
    for probe in (Continuation(), Generation()):
        found = measure(model, probe, Prompt("a" * 98))
        assert found["ids"].tolist() == naive.greedy(model.hf, model.encode(Prompt("a" * 98)).ids, 3), probe.name
        assert [n for n in found.notes if "100 positions; 3 of" in n], probe.name
    assert measure(model, Continuation(), Prompt("a" * 93))["ids"].shape == (8,)
    assert "1 of 8 tokens is written" in measure(model, Continuation(), Prompt("a" * 100)).notes[-1]


def test_it_fills_and_can_be_cancelled(model_of):
    model, probe, seen = model_of("qwen3"), Generation(n_tokens=7), []
    encoding = model.encode(PROMPT)
    record = Recorder(
        probe.request(model.spec, PROMPT), probe.measures, encoding, model.n_layers, cancelled=lambda: len(seen) > 3
    )
    step = record.step
    record.step = lambda progress: (seen.append((record.arrays["ids"] >= 0).sum()), step(progress))
    with pytest.raises(Cancelled):
        probe.compute(model, encoding, record)
    assert seen == [1, 2, 3, 4] and np.isnan(record.arrays["jsd"][:, 4:]).all()


def test_rows_beside_the_output_are_measured_as_the_formulas_say():
    torch.manual_seed(3)
    logits = torch.randn(9, 5003) * torch.linspace(0.1, 9, 9)[:, None]
    logits[3] = logits[8] + 1e-3 * torch.randn(5003)
    jsd, sure, ids = metrics.jsd_to_output(logits)
    p, q = logits.double().softmax(-1), logits[8].double().softmax(-1)
    m = (p + q) / 2
    expected = ((p * (p / m).log2()).sum(-1) + (q * (q / m).log2()).sum(-1)) / 2
    assert (jsd - expected).abs().max() <= 2e-6 and jsd[8] == 0
    assert torch.allclose(sure.double(), p.amax(-1), rtol=1e-5) and ids.tolist() == logits.argmax(-1).tolist()


# ---------------------------------------------------------------- known answers


WRITTEN_BY = ("qwen3", "gpt2", "gemma2")


def decoder(model):
    return lambda ids: model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def expected(model, prompt: Prompt, n: int = 1) -> tuple[list[float], float]:
    """Without every stretch of `n` blocks, and whole, written in full."""
    encoding = model.encode(prompt)
    ids, most = encoding.ids[: encoding.answer_start], len(encoding) - encoding.answer_start + 1
    judge = lambda drop: float(naive.exact_answer(model.hf, decoder(model), ids, prompt.answer, most, drop))
    return [judge(range(s, s + n)) for s in range(model.n_layers - n + 1)], judge(())


def asked_for(model, n_prompts: int, drop=()) -> list[Prompt]:
    """Prompts whose answer is the first two letters of what the model without these blocks writes, where these are no
    part of a longer word."""
    found, generator = [], torch.Generator().manual_seed(5)
    while len(found) < n_prompts:
        text = "".join(chr(int(i)) for i in torch.randint(33, 127, (6,), generator=generator))
        ids, said = list(model.encode(Prompt(text)).ids), ""
        with naive.without(model.hf, drop), torch.no_grad():
            for _ in range(3):
                ids.append(int(model.hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
                said += decoder(model)(ids[-1:])
                if not said.isascii() or not said[:2].isprintable() or said[1:2] == " " or said == " ":
                    break
            else:
                if not (said[1].isalnum() and said[2].isalnum()):
                    found.append(Prompt(text, said[:2]))
    return found


@pytest.mark.parametrize("family", WRITTEN_BY)
def test_every_stretch_writes_what_it_writes_token_by_token(model_of, measure, family):
    """Answers of the whole model's, and of the model's without a layer: so both kinds occur among the stretches."""
    model, seen = model_of(family), set()
    for drop, n in (((), 1), ((2,), 1), ((3, 4), 2)):
        for prompt in asked_for(model, 1, drop):
            found = measure(model, ExactAnswers(n=n), prompt)
            exact, whole = expected(model, prompt, n)
            assert found["exact"].tolist() == exact and found["exact_whole"] == whole, (prompt, drop)
            seen |= {*exact, whole}
    assert seen == {0.0, 1.0}


def test_spaces_in_front_do_not_count_and_are_read_on(model_of, measure):
    """The model writes a space before the answer: not the answer's own tokens, so it is read in a pass of its own."""
    other = random_model("gpt_neox")
    head, space, seen = other.hf.get_output_embeddings().weight, other.encode(Prompt("a b")).ids[1], 0
    was = head.clone()
    for text in ("kx!", "7 +", "the", "a=3", "b;a", "12,", "zz", "q?"):
        ids = other.encode(Prompt(text)).ids
        with torch.no_grad():
            head.copy_(was)
            first = int(other.logits(other.tensor(ids))[0, -1].argmax())
            head[[first, space]] = head[[space, first]]  # in the place of its first token it now writes a space
        said = decoder(other)([int(other.logits(other.tensor((*ids, space)))[0, -1].argmax())])
        if said.isascii() and said.isprintable() and said != " ":
            exact, whole = expected(other, asked := Prompt(text, said))
            for probe in (ExactAnswers(), Answers()):
                found = measure(other, probe, asked)
                assert found["exact"].tolist() == exact and found["exact_whole"] == whole == 1, probe.name
            seen += 1
    assert seen >= 2


def test_a_token_that_straddles_question_and_answer_is_read_as_both(model_of, monkeypatch, measure):
    """The answer's first token also holds the question's last letter: what is written begins with that letter."""
    model = model_of("qwen3")
    for (prompt,) in (asked_for(model, 1), asked_for(model, 1, (2,))):
        exact, whole = expected(model, prompt)
        within = Prompt(prompt.text + prompt.answer[0], prompt.answer[1])
        encoding = replace(model.encode(within), answer_start=len(prompt.text))
        monkeypatch.setattr(model, "encode", lambda _, encoding=encoding: encoding)
        for probe in (ExactAnswers(), Answers()):
            found = measure(model, probe, within)
            assert found["exact"].tolist() == exact and found["exact_whole"] == whole, probe.name
        monkeypatch.undo()
        assert 1.0 in (*exact, whole)
    request = Request((), (within,), "continuation")
    said = ProbeResult(request, {}, encoding.tokens, encoding.ids, encoding.answer_start, 5)
    for text, right in ((prompt.answer, True), (prompt.answer[1], False)):
        assert is_right(replace(said, provenance={"continuation": text})) is right
    assert prompts.answer_with_seam("is", " Paris") == " Paris" and prompts.answer_with_seam(" 28", "28") == " 28"


def test_when_a_text_is_or_can_still_become_the_answer():
    assert prompts.settled("", " 17") is None and prompts.settled(" 1", "17") is None
    assert prompts.settled("17", "17") is None
    assert prompts.settled("17.", "17") is True and prompts.settled("170", "17") is False
    assert prompts.settled("2", "17") is False and prompts.settled("\n 17\n", "17") is True
    assert prompts.settled("Z\ufffd", "Zürich") is None and prompts.settled("Za\ufffd", "Zürich") is False
    assert prompts.exact("17", "17 ") and not prompts.exact("171", "17") and prompts.exact("a), then", "a)")
    assert prompts.exact("a)b", "a)"), "behind a bracket another word may begin"


def test_what_has_no_answer_is_refused(model_of, measure):
    model = model_of("qwen3")
    with pytest.raises(PromptError, match="there is none; give one"):
        measure(model, ExactAnswers(), Prompt("5 + 7 = "))
    for probe in (ExactAnswers(), Answers()):
        with pytest.raises(PromptError, match=f"{probe.name} needs an answer that is more than spaces"):
            measure(model, probe, Prompt("5 + 7 =", "  "))
    with pytest.raises(ParameterError, match=r"exact_answers\.n is 5; expected less than the model's 5 layers"):
        measure(model, ExactAnswers(n=5), Prompt("5 + 7 = ", "2"))
