"""The experiment on looped models: its problems, what is kept of a training, and how problems are counted."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from ed_core import read_jsonl
from ed_core.models.opening import open_model
from ed_core.probes import ResidualErasure
from ed_core.sources import bundled
from ed_core.types import ModelSpec, Prompt
from ed_core.work.resolve import resolve
from tools import looped

SUMS, CHAINS = looped.TASKS
IDS = {c: i for i, c in enumerate(looped.CHARACTERS)}


def test_answers_are_those_worked_out_otherwise():
    assert SUMS.answer("3+8+9=") == "20" and SUMS.answer("0+0=") == "0"
    assert all(sorted(p) == list(range(10)) for p in looped.PERMUTATIONS.values())
    a, c = looped.PERMUTATIONS["a"], looped.PERMUTATIONS["c"]
    assert CHAINS.answer("7=") == "7" and CHAINS.answer("7ac=") == str(c[a[7]]) != CHAINS.answer("7ca=")


def test_documents_are_problems_with_their_answers_marked():
    ids, marks = looped.documents(seed=1, step=5, done=0.9)
    assert ids.shape == marks.shape == (looped.BATCH, looped.LENGTH)
    assert torch.equal(ids, looped.documents(1, 5, 0.9)[0]) and not torch.equal(ids, looped.documents(2, 5, 0.9)[0])
    for row, marked in zip(ids.tolist(), marks.tolist()):
        text = "".join(looped.CHARACTERS[i] for i in row)
        lines, at = text.split("\n"), 1
        assert lines[0] == ""
        for line in lines[1:-1]:  # the last is cut
            question, _, answer = line.partition("=")
            task = SUMS if "+" in question else CHAINS
            assert task.answer(question + "=") == answer
            length = question.count("+") + 1 if task is SUMS else len(question) - 1
            assert length in task.trained and not task.is_held_out(question + "=", length)
            assert marked[at : at + len(line) + 1] == [False] * (len(question) + 1) + [True] * (len(answer) + 1)
            at += len(line) + 1


def test_longer_problems_come_one_after_the_other():
    def lengths(done):
        ids, _ = looped.documents(1, 0, done)
        lines = [line for row in ids.tolist() for line in "".join(looped.CHARACTERS[i] for i in row).split("\n")[1:-1]]
        return max(q.count("+") + 1 for q in lines if "+" in q), max(
            len(q.split("=")[0]) - 1 for q in lines if "+" not in q
        )

    assert [lengths(done) for done in (0.0, 0.09, 0.17, 0.26, 0.34, 1.0)] == [
        (2, 1),
        (3, 2),
        (4, 3),
        (5, 4),
        (6, 4),
        (6, 4),
    ]


@pytest.mark.parametrize("task", looped.TASKS, ids=lambda task: task.name)
def test_what_is_tested_was_not_trained_on_where_there_is_enough(task, monkeypatch):
    monkeypatch.setattr(looped, "ITEMS", 50)
    for length in task.trained + task.longer:
        found = task.tested(length)
        assert len(set(found)) == len(found) == min(50, task.questions(length)) and found == task.tested(length)
        if length in task.trained and task.questions(length) >= 1000:
            assert all(task.is_held_out(question, length) for question in found)


def always(texts):
    """A model that has learned these texts, and of every other character nothing."""

    def logits(input_ids, use_cache):
        found = torch.zeros(*input_ids.shape, len(looped.CHARACTERS))
        for row, ids in enumerate(input_ids.tolist()):
            text = "".join(looped.CHARACTERS[i] for i in ids)
            said = next((known for known in texts if text.startswith(known.partition("=")[0] + "=")), text)
            for at in range(len(ids) - 1):
                found[row, at, IDS[said[at + 1]] if at + 1 < len(said) else IDS["?"]] = 1
        return SimpleNamespace(logits=found)

    return logits


def test_a_problem_is_solved_where_the_whole_answer_and_its_end_come():
    questions = ["3+8+9=", "1+1+1=", "9+9+9="]
    assert looped.solved(always(["\n3+8+9=20\n", "\n1+1+1=3\n", "\n9+9+9=27\n"]), SUMS, questions) == 3
    assert looped.solved(always(["\n3+8+9=2", "\n1+1+1=3", "\n9+9+9=17\n"]), SUMS, questions) == 0
    assert looped.solved(always(["\n3+8+9=20\n", "\n1+1+1=31", "\n9+9+9=17\n"]), SUMS, questions) == 1


def run(out, kind="loop", steps=3):
    return looped.Run(kind, "answer", 1, steps, 2e-3, out)


@pytest.fixture
def small(monkeypatch):
    for name, value in {"WIDTH": 16, "MLP": 16, "BATCH": 2, "LENGTH": 24, "ITEMS": 4}.items():
        monkeypatch.setattr(looped, name, value)


def test_a_training_that_was_stopped_ends_where_it_would_have(small, tmp_path):
    whole, stopped = run(tmp_path / "whole"), run(tmp_path / "stopped")
    whole.train()
    stopped.advance()
    stopped.save()
    again = run(tmp_path / "stopped")
    again.train()
    weights = [load_file(one.out / "model.safetensors") for one in (whole, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0]) and again.finished
    assert not (again.out / "state.safetensors").exists() and (again.out / "log.jsonl").read_text().count("step") == 1
    assert {w.dtype for w in weights[0].values()} == {torch.bfloat16}


@pytest.mark.parametrize("kind, layers", [("loop", 16), ("plain16", 16), ("plain4", 4)])
def test_what_is_kept_opens_and_reads_characters(small, tmp_path, capsys, kind, layers):
    trained = run(tmp_path, kind, steps=1)
    trained.train()
    model = open_model(ModelSpec(str(trained.out)))
    assert model.n_layers == layers and model.n_passes == looped.KINDS[kind][1]
    assert model.encode(Prompt("\n3+8=", "11")).tokens == ("\n", "3", "+", "8", "=", "1", "1")
    looped.table(tmp_path)
    told = capsys.readouterr().out.splitlines()
    assert sum("longer" in line for line in told) == 5 * (8 if kind == "loop" else 1)
    assert sum("passes" in line for line in told) == (14 * 7 if kind == "loop" else 0)
    assert any("sums    9 longer" in line and "of 4" in line for line in told)


def test_a_loop_is_tested_with_other_numbers_of_passes(small):
    """As a model of its own that has so many."""
    model = looped.build_model("loop", 1).eval()
    rows = looped.accuracies(model)
    assert [row["passes"] for row in rows[::14]] == list(range(1, 9)) and sum(row["own"] for row in rows) == 14
    assert model.config.n_loops == 4
    ids = torch.tensor([[1, 2, 3]])
    other = looped.LoopedForCausalLM(looped.LoopedConfig(**(model.config.to_dict() | {"n_loops": 8}))).eval()
    other.load_state_dict(model.state_dict())
    own, model.config.n_loops = model(input_ids=ids).logits, 8
    assert torch.equal(model(input_ids=ids).logits, other(input_ids=ids).logits)
    assert not torch.equal(own, other(input_ids=ids).logits)


def test_a_loop_whose_config_names_nothing_between_passes_has_nothing_there(small):
    said = looped.build_model("loop", 1).config.to_dict() | {"loop_norm": False, "loop_input": False}
    unsaid = {name: value for name, value in said.items() if name not in ("loop_norm", "loop_input")}
    plain, short = (looped.LoopedForCausalLM(looped.LoopedConfig(**each)).eval() for each in (said, unsaid))
    short.load_state_dict(plain.state_dict())
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(short(input_ids=ids).logits, plain(input_ids=ids).logits)


@pytest.mark.parametrize("task", looped.TASKS, ids=lambda task: task.name)
def test_prompt_sets_are_read_by_the_studies(task, tmp_path):
    file = tmp_path / f"{task.name}.jsonl"
    file.write_text("".join(json.dumps(prompt) + "\n" for prompt in looped.prompts(task)))
    made = read_jsonl(file)
    assert len(made) == 20 * len(task.trained + task.longer)
    for prompt in made:
        *shown, question = prompt.text.strip("\n").split("\n")
        assert task.answer(question) == prompt.answer
        assert all(task.answer(q + "=") == a for q, a in (s.split("=") for s in shown))


def test_the_loop_has_as_many_parameters_as_the_shallow_one():
    loop, plain4, plain16 = (
        sum(p.numel() for p in looped.build_model(k, 1).parameters()) for k in ("loop", "plain4", "plain16")
    )
    assert loop == plain4 and 2 * plain16 <= 4_000_000


def test_the_shipped_loop_solves_its_problems_a_pass_for_each_step_of_a_chain():
    """`docs/studies/looped.md` has all figures; here 100 problems of each length."""
    folder = Path(__file__).parents[1] / "ed_core/demo/models/ed-loop-4x4"
    model = looped.LoopedForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def share(task, length, passes=4):
        model.config.n_loops = passes
        return looped.solved(model, task, (asked := task.tested(length)[:100])) / len(asked)

    assert min(share(task, length) for task in looped.TASKS for length in task.trained) >= 0.95
    assert all(share(CHAINS, length, length) >= 0.95 for length in (2, 3))
    assert all(share(CHAINS, length, length - 1) <= 0.5 for length in (3, 4)), "one pass too few"
    assert share(CHAINS, 5, 5) >= share(CHAINS, 5) + 0.3, "a pass more than it was trained with"
    model = looped.LlamaForCausalLM.from_pretrained(folder.with_name("ed-plain-4"), dtype=torch.float32).eval()
    assert min(share(looped.TASKS[0], length) for length in looped.TASKS[0].trained) >= 0.95
    assert share(CHAINS, 3) <= 0.5 and share(CHAINS, 4) <= 0.3, "with as many parameters and a quarter of the depth"


def test_what_ships_of_the_prompts_is_what_the_tool_writes_and_the_loop_solves_all():
    assert bundled.load_prompts("ed-loop-4x4") == bundled.load_prompts("ed-plain-4") == list(looped.examples())
    model = looped.LoopedForCausalLM.from_pretrained(bundled.MODELS["ed-loop-4x4"], dtype=torch.float32).eval()
    every = list(bundled.load_prompts("ed-loop-4x4"))
    for task in looped.TASKS:
        rows = [json.loads(line) for line in (bundled.SETS / f"{task.name}.jsonl").read_text().splitlines()]
        assert rows == list(looped.prompts(task, task.trained))
        assert {row["level"] for row in rows} == set(map(str, task.trained))
        every += rows
    for prompt in every:
        answer = prompt["answer"] + looped.END
        ids = torch.tensor([[IDS[c] for c in prompt["text"] + answer]])
        best = model(input_ids=ids, use_cache=False).logits[0, -len(answer) - 1 : -1].argmax(-1)
        assert torch.equal(best, ids[0, -len(answer) :]), prompt["id"]


def test_models_that_read_characters_are_given_prompts_in_characters():
    loop, words = resolve("ed-loop-4x4"), resolve("ed-demo-8")
    assert bundled.example_of("ed-plain-4") == "chains-4-alone" and bundled.example_of("ed-demo-8") == bundled.EXAMPLE
    assert {p["task"] for p in bundled.mixed_prompts(13, model="ed-loop-4x4")} == {"sums", "chains"}
    assert "sums" not in {p["task"] for p in bundled.mixed_prompts(40)}
    erased = {spec.name: ResidualErasure().background_prompts(spec) for spec in (loop, words)}
    assert all(set(p.text + p.answer) <= set(IDS) for p in erased["ed-loop-4x4"])
    assert len(erased["ed-loop-4x4"]) == 9 and not any(set(p.text) <= set(IDS) for p in erased["ed-demo-8"])
    requests = [ResidualErasure().request(spec, Prompt("5=", "6")) for spec in (loop, words)]
    assert requests[0].files != requests[1].files
