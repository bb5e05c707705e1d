"""Known answers written without each layer, against writing token by token with the whole read anew."""

from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from small_models import opened_models, random_model

from ed_core import prompts
from ed_core.depth import verdict
from ed_core.errors import ParameterError, PromptError
from ed_core.probes import Answers, Continuation, ExactAnswers
from ed_core.results.aggregate import aggregate
from ed_core.service import compute
from ed_core.service.resolve import resolve
from ed_core.sources.bundled import load_prompts
from ed_core.types import ProbeResult, Prompt, Request

FAMILIES = ("qwen3", "gpt2", "gpt_neox", "gemma2", "granite")


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


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stretch_writes_what_it_writes_token_by_token(model_of, measure, family):
    """Answers of the whole model's, and of the model's without a layer: so both kinds occur among the stretches."""
    model, seen = model_of(family), set()
    for drop, n in (((), 1), ((2,), 1), ((0,), 2), ((3, 4), 2)):
        for prompt in asked_for(model, 2, drop):
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


def test_what_runs_on_in_the_same_word_is_another_answer(model_of, measure):
    """With head and embedding tied, this model repeats a letter for ever: two of them are not what it writes."""
    model = model_of("gpt2")
    for text in ("abo", "nn", "3 s"):
        ids = model.encode(Prompt(text)).ids
        said = decoder(model)(naive.greedy(model.hf, ids, 3))
        assert said == 3 * said[0] and said.isalnum()
        exact, whole = expected(model, asked := Prompt(text, said[:2]))
        for probe in (ExactAnswers(), Answers()):
            found = measure(model, probe, asked)
            assert found["exact"].tolist() == exact and found["exact_whole"] == whole == 0, probe.name


def test_a_bundled_model_on_bundled_prompts():
    """Of a model that knows the answers some layers are needed for them; as Home judges its continuation."""
    spec, shares = resolve("ed-demo-8"), []
    model = opened_models().get(spec)
    for known in [p for p in load_prompts() if p["task"] in ("sum_mod10", "copy")][:4]:
        prompt = Prompt(known["text"], known["answer"])
        found = compute.run(model, ExactAnswers().request(spec, prompt))
        exact, whole = expected(model, prompt)
        assert found["exact"].tolist() == exact and found["exact_whole"] == whole
        written = compute.run(model, Continuation().request(spec, prompt)).provenance["continuation"]
        assert prompts.exact(written, prompt.answer) == bool(whole)
        shares.append(found)
    mean = aggregate(ExactAnswers(), [r.summary for r in shares])
    assert mean["exact"] == pytest.approx(np.mean([r["exact"] for r in shares], axis=0))
    assert mean["exact_whole"] == 1 and 0 < mean["exact"].mean() < 1


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
        assert verdict.right(replace(said, provenance={"continuation": text})) is right
    assert prompts.answer_with_seam("is", " Paris") == " Paris" and prompts.answer_with_seam(" 28", "28") == " 28"


def test_memory_for_one_row_changes_nothing(model_of, measure):
    model, prompt = model_of("qwen3"), asked_for(model_of("qwen3"), 1, (2,))[0]
    for probe in (ExactAnswers(), Answers()):
        request = probe.request(model.spec, prompt)
        narrow, wide = compute.run(model, request, memory=1), compute.run(model, request)
        assert np.array_equal(narrow["exact"], wide["exact"])
        assert probe.name == "exact_answers" or np.allclose(narrow["loss"], wide["loss"], atol=1e-5)


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
