"""The bundled demo: tokenizer, prompts and sets are those of their recipes, the models solve what their card says, and
the shipped case studies hold the numbers of a run and notes that are true."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from ed_core.cases import bundle
from ed_core.cases.kept import SHIPPED
from ed_core.errors import CaseError
from ed_core.models.bundled import CHARACTERS, MIXED, MODELS, SETS, WORDS, default_set, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.prompts import read_jsonl
from ed_core.types import Prompt
from ed_core.work import compute
from tools import looped, prompts
from tools.cases import build, id_of, models_of, shipped_results
from tools.evaluate import CARD, Cell, accuracy, open_model
from tools.lessons import LESSONS, REAL
from tools.tasks import TASKS
from tools.train import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODELS["ed-demo-8"])


def test_the_tokenizer_is_the_recipes_and_gives_every_text_back(tokenizer):
    files = [(MODELS[name] / "tokenizer.json").read_bytes() for name in WORDS]
    assert files[0] == files[1] and json.loads(files[0]) == json.loads(build_tokenizer().backend_tokenizer.to_str())
    texts = [
        "".join(map(chr, range(256))),
        "👩‍👩‍👧‍👦 🇺🇦 𝔘𝔫𝔦 \U0010ffff 漢字 עברית",
        "  two  spaces \t\r\n\n x ;; ?  =  + - ",
        "",
    ]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert len(tokenizer.encode("9081726354")) == 10, "digits are tokens of their own"


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_training_never_draws_what_is_held_out(task):
    for worked in (False, True):
        for rung in task.rungs(worked):
            trained = {task.key(task.sample(random.Random(i), rung)) for i in range(150)}
            tested = {task.key(task.sample(random.Random(i), rung, held_out=True)) for i in range(50)}
            assert task.all_seen(rung) or not trained & tested


def test_answers_are_right():
    rng = random.Random(0)
    assert TASKS["sum_mod10"].line((3, 5, 9), False, rng)[0].answer == "7"
    assert TASKS["addition"].line((47, 85), True, rng)[0].answer == "12; 13; 132"
    assert TASKS["word_problem"].line((3, 7, 2), True, rng)[0].answer == "7; 2"
    (ask,) = TASKS["lookup"].line((("a", "3"), ("b", "a"), ("c", "b")), True, rng)
    assert (ask.text, ask.answer) == ("a=3; b=a; c=b; c=", "b=a=3")
    (ask,) = TASKS["lookup_names"].line((("Bob", "Cid"), ("Ann", "Bob")), False, rng)
    assert ask.text.endswith(": Ann follows one who follows") and ask.answer == " Cid"


def test_bundled_prompts_are_the_recipes_and_split_at_the_answer(tokenizer):
    assert load_prompts() == prompts.build_prompts()
    for prompt in load_prompts():
        question, whole = map(tokenizer.encode, (prompt["text"], prompt["text"] + prompt["answer"]))
        assert 40 <= len(whole) <= 80 and whole[: len(question)] == question, prompt["id"]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_set_has_every_level_in_every_form_and_pairs_of_one_form(tokenizer, task):
    for worked in (False, True):
        if not task.rungs(worked):
            continue
        rows = read_rows(task.name + "_worked" * worked)
        assert rows == prompts.set_lines(task, worked, tokenizer)
        levels, forms = [str(difficulty) for difficulty in task.measured(worked)], [f.name for f in prompts.FORMS]
        for level in levels:
            assert [row["form"] for row in rows if row["level"] == level] == forms * prompts.EACH
        for pair in {row["pair"] for row in rows}:
            together = [row for row in rows if row["pair"] == pair]
            assert [row["level"] for row in together] == levels and len({row["form"] for row in together}) == 1


def read_rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (SETS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_mixed_set_has_twelve_different_texts_of_each_of_ten_kinds():
    found = read_jsonl(SETS / f"{MIXED}.jsonl")
    assert len(found) == len({p.text for p in found}) == len({p.id for p in found}) == 120
    kinds = [p.form for p in found]
    assert len(set(kinds)) == 10 and {kinds.count(kind) for kind in kinds} == {12}
    assert all(not p.answer or p.answer.startswith(" ") != p.text[-1].isspace() for p in found)


def test_the_default_set_is_what_a_bundled_model_was_taught_and_mixed_for_any_other():
    taught = {name: default_set(str(folder)) for name, folder in MODELS.items()}
    assert taught == {name: "chains" if name in CHARACTERS else "sum_mod10" for name in MODELS}
    assert default_set("smollm2") == default_set("org/ed-demo-8") == MIXED


@pytest.mark.parametrize("column, name", enumerate(WORDS))
def test_the_card_says_what_is_measured(column, name):
    rows = re.findall(r"^\| (.+? \| .+? \| .+?) \| \d+ \| (.+) \|$", CARD.read_text(encoding="utf-8"), re.MULTILINE)
    claimed = {label: shares.split(" | ") for label, shares in rows if "%" in shares}
    model, count = open_model(MODELS[name]), 25
    for task, difficulty in (("sum_mod10", 3), ("lookup", 2)):
        cell = Cell(TASKS[task], difficulty, worked=False)
        share = float(claimed[cell.label][column].rstrip("%")) / 100
        measured = accuracy(*model, cell, count, seed=1)
        assert abs(measured - share) <= 4 * max(share * (1 - share), 0.01) ** 0.5 / count**0.5


IDS = {c: i for i, c in enumerate(looped.CHARACTERS)}


@pytest.fixture(scope="module")
def loop():
    return looped.LoopedForCausalLM.from_pretrained(MODELS["ed-loop-4x4"], dtype=torch.float32).eval()


def solves(model, text: str, answer: str) -> bool:
    ids = torch.tensor([[IDS[c] for c in text + answer + looped.END]])
    n = len(answer) + 1
    return torch.equal(model(input_ids=ids, use_cache=False).logits[0, -n - 1 : -1].argmax(-1), ids[0, -n:])


def test_the_loop_solves_the_bundled_prompts_which_are_those_of_the_recipe(loop):
    assert load_prompts("ed-loop-4x4") == load_prompts("ed-plain-4") == list(looped.examples())
    assert all(solves(loop, prompt["text"], prompt["answer"]) for prompt in looped.examples())
    assert all(read_rows(task.name) == list(looped.prompts(task)) for task in looped.TASKS)


def test_the_loop_needs_a_pass_for_each_step_of_a_chain(loop):
    """With a pass too few it fails; one more than in training solves chains longer than in training."""
    chains = looped.TASKS[1]

    def share(length: int, passes: int) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop.config, "n_loops", passes)
            asked = chains.tested(length)[:15]
            return sum(solves(loop, looped.END + one, chains.answer(one)) for one in asked) / len(asked)

    assert share(3, 3) >= 0.9 and share(3, 2) <= 0.5 and share(5, 5) >= share(5, 4) + 0.3


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_what_the_notes_say_is_so(lesson):
    kept = bundle.drawable((SHIPPED / f"{id_of(lesson.name)}.edcase").read_bytes())
    assert build(lesson, shipped_results(lesson)) == kept, "run python -m tools.cases --words"


def test_a_note_that_is_not_so_is_not_written():
    with pytest.raises(CaseError):
        build(LESSONS[0], shipped_results(LESSONS[1]))


@pytest.mark.parametrize("name", ["easy-sum", "untrained-twin", pytest.param("real-sink", marks=pytest.mark.real)])
def test_the_numbers_are_what_a_run_gives(name):
    lesson, models = next(one for one in LESSONS if one.name == name), compute.Models()
    prompt = next(Prompt(p["text"], p["answer"]) for p in load_prompts() if p["id"] == lesson.prompt)
    if lesson.model == REAL and not ModelRef.named(REAL).is_here:
        pytest.skip("SmolLM2 is not here")
    for spec in models_of(lesson, ModelRef.parse(lesson.model)):
        for probe in lesson.probes:
            request = probe.request(spec, prompt)
            (found,) = (result for result in shipped_results(lesson).values() if result.request.key == request.key)
            for measure, values in compute.run(models.get(spec), request).measures.items():
                limit = 1e-3 * max(np.nanmax(np.abs(values.values)), 1e-3)
                assert np.nanmax(np.abs(found[measure] - values.values)) <= limit, f"{name}.{measure}"
