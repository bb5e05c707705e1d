"""The bundled looped model and its controls: they solve their bundled prompts, and are given prompts in characters."""

import json

import pytest
import torch

from ed_core.probes import ResidualErasure
from ed_core.service.resolve import resolve
from ed_core.sources import bundled
from ed_core.types import Prompt
from tools import looped

IDS = {c: i for i, c in enumerate(looped.CHARACTERS)}


@pytest.fixture(scope="module")
def loop():
    return looped.LoopedForCausalLM.from_pretrained(bundled.MODELS["ed-loop-4x4"], dtype=torch.float32).eval()


def solves(model, text: str, answer: str) -> bool:
    ids = torch.tensor([[IDS[c] for c in text + answer + looped.END]])
    n = len(answer) + 1
    return torch.equal(model(input_ids=ids, use_cache=False).logits[0, -n - 1 : -1].argmax(-1), ids[0, -n:])


def test_the_loop_solves_the_bundled_prompts_which_are_those_of_the_tool(loop):
    assert bundled.load_prompts("ed-loop-4x4") == bundled.load_prompts("ed-plain-4") == list(looped.examples())
    assert all(solves(loop, prompt["text"], prompt["answer"]) for prompt in looped.examples())
    for task in looped.TASKS:
        rows = [json.loads(line) for line in (bundled.SETS / f"{task.name}.jsonl").read_text().splitlines()]
        assert rows == list(looped.prompts(task))


def test_a_pass_for_each_step_of_a_chain(loop):
    """With a pass too few the loop fails; one more than in training solves chains longer than in training."""
    chains = looped.TASKS[1]

    def share(length: int, passes: int) -> float:
        loop.config.n_loops = passes
        asked = chains.tested(length)[:15]
        return sum(solves(loop, looped.END + question, chains.answer(question)) for question in asked) / len(asked)

    try:
        assert share(3, 3) >= 0.9 and share(3, 2) <= 0.5 and share(5, 5) >= share(5, 4) + 0.3
    finally:
        loop.config.n_loops = 4


def test_models_that_read_characters_are_given_prompts_in_characters():
    loop, words = resolve("ed-loop-4x4"), resolve("ed-demo-8")
    assert bundled.example_of("ed-plain-4") == "chains-4-alone" and bundled.example_of("ed-demo-8") == bundled.EXAMPLE
    assert {p["task"] for p in bundled.mixed_prompts(13, model="ed-loop-4x4")} == {"sums", "chains"}
    erased = {spec.name: ResidualErasure().background_prompts(spec) for spec in (loop, words)}
    assert all(set(p.text + p.answer) <= set(IDS) for p in erased["ed-loop-4x4"])
    requests = [ResidualErasure().request(spec, Prompt("5=", "6")) for spec in (loop, words)]
    assert requests[0].files != requests[1].files
