"""The bundled demo: folders, tokenizer, tasks, prompts, the accuracy the card claims; and the shipped case studies:
they are what the present weights, prompts and engine give, and what their notes say is so."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ed_core.cases import bundle, case_study
from ed_core.cases.kept import SHIPPED, Kept
from ed_core.errors import CaseError
from ed_core.prompts import check_text, read_jsonl
from ed_core.sources import hub, tokens
from ed_core.sources.bundled import CHARACTERS, MIXED, MODELS, SETS, WORDS, default_set, load_prompts, set_names
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve
from tools import sets
from tools.cases import build, id_of, models_of
from tools.curriculum import Curriculum
from tools.documents import COUNTED, GIVEN, Writer, score
from tools.evaluate import CARD, Cell, accuracy, cells, of_forms, open_model
from tools.forms import FORMS, LONG, write_prompt
from tools.lessons import LESSONS, REAL, named
from tools.prompts import build_prompts
from tools.tasks import TASKS
from tools.tokenizer import build_tokenizer

HOSTILE = [
    "".join(map(chr, range(256))),
    "".join(chr(c) for c in range(0x20, 0x3000, 7)),
    "naïve e\u0301 \ufb01 Å\u212b ½ ² 1234567 ٣٤ \u200b\u200d\ufeff",
    "👩‍👩‍👧‍👦 🇺🇦 𝔘𝔫𝔦 \U0010ffff 漢字 עברית",
    "  two  spaces \t\r\n\n x ;; ?  =  + - \x00\x7f",
    "a = 3; b=a ; c? d ?e  + - ' \"quoted\" don't",
    "",
    " ",
    "\n",
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODELS["ed-demo-8"])


def ids(tokenizer, text):
    return tokenizer(text)["input_ids"]


@pytest.mark.parametrize("name", WORDS)
def test_folder_opens_small_and_in_bf16(name):
    folder = MODELS[name]
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 12e6
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("qwen3", "bfloat16")
    assert config["num_hidden_layers"] == int(name.rsplit("-", 1)[1])
    model, _ = open_model(folder)
    assert torch.isfinite(model(input_ids=torch.arange(40)[None]).logits).all()


def test_both_models_share_the_tokenizer_the_recipe_makes(tokenizer):
    files = [(MODELS[name] / "tokenizer.json").read_bytes() for name in WORDS]
    assert files[0] == files[1]
    assert json.loads(files[0]) == json.loads(build_tokenizer().backend_tokenizer.to_str())


@pytest.mark.parametrize("text", HOSTILE)
def test_tokenizer_loses_nothing_and_is_the_one_in_the_file(tokenizer, text):
    file = PreTrainedTokenizerFast(tokenizer_file=str(MODELS["ed-demo-16"] / "tokenizer.json"))
    assert ids(tokenizer, text) == ids(file, text)
    assert tokenizer.decode(ids(tokenizer, text)) == text


def test_every_byte_has_a_token(tokenizer):
    assert len({i for i, token in enumerate(tokenizer.convert_ids_to_tokens(range(257))) if len(token) == 1}) == 256


def test_digits_stand_alone_and_nothing_is_added(tokenizer):
    assert len(ids(tokenizer, "9081726354")) == 10
    assert ids(tokenizer, "7 + 7")[0] == ids(tokenizer, "7 + 7")[-1] == ids(tokenizer, "7")[0]
    assert ids(tokenizer, "") == []


@pytest.mark.parametrize("worked", [False, True])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_training_never_draws_what_is_held_out(task, worked):
    for rung in task.rungs(worked):
        trained = {task.key(task.sample(random.Random(i), rung)) for i in range(150)}
        tested = {task.key(task.sample(random.Random(i), rung, held_out=True)) for i in range(50)}
        assert task.all_seen(rung) or not trained & tested


def test_held_out_sums_are_held_out_in_every_order():
    task, rung = TASKS["sum_mod10"], TASKS["sum_mod10"].measured()[4]
    instance = task.sample(random.Random(0), rung, held_out=True)
    assert all(task.is_held_out(tuple(random.Random(i).sample(instance, 4)), rung) for i in range(9))


@pytest.mark.parametrize("worked, answer", [(False, "7"), (True, "8; 7")])
def test_sums_are_right(worked, answer):
    (ask,) = TASKS["sum_mod10"].line((3, 5, 9), worked, random.Random(0))
    assert (ask.text, ask.answer) == ("3 + 5 + 9 = ", answer)


def test_additions_and_stories_are_right():
    rng = random.Random(0)
    assert TASKS["addition"].line((47, 85), True, rng)[0].answer == "12; 13; 132"
    assert TASKS["word_problem"].line((3, 7, 2), True, rng)[0].answer == "7; 2"


def test_lookups_are_right():
    rng = random.Random(0)
    (ask,) = TASKS["lookup"].line((("a", "3"), ("b", "a"), ("c", "b")), True, rng)
    assert (ask.text, ask.answer) == ("a=3; b=a; c=b; c=", "b=a=3")
    (ask,) = TASKS["lookup_names"].line((("Bob", "Cid"), ("Ann", "Bob")), False, rng)
    assert ask.text == "Given Bob follows Cid, Ann follows Bob: Ann follows one who follows"
    assert ask.answer == " Cid"


def test_documents_are_their_text_encoded(tokenizer):
    writer, rng = Writer(tokenizer, 128), random.Random(0)
    for ladder in Curriculum().ladders:
        for lesson in ladder:
            document, marks = writer.document(lesson, rng)
            assert len(document) == len(marks) <= 128 and max(marks) > GIVEN
            assert ids(tokenizer, tokenizer.decode(document)) == document


def test_an_answer_is_right_only_in_every_token():
    marks = torch.tensor([GIVEN, COUNTED, COUNTED, GIVEN, COUNTED, COUNTED, GIVEN, COUNTED])
    right = torch.tensor([False, True, True, False, True, False, True, True])
    assert score(right, marks) == (2, 3)


def test_the_next_rung_opens_when_one_is_mastered():
    curriculum = Curriculum()
    closed = curriculum.open_lessons()
    curriculum.progress[closed[0].name].update(1000, 1000)
    assert len(curriculum.open_lessons()) == len(closed) + 1


def test_prompts_are_what_the_recipe_makes():
    assert load_prompts() == build_prompts()


@pytest.mark.parametrize("prompt", load_prompts(), ids=lambda p: p["id"])
def test_prompt_has_its_size_and_its_answer_a_token_boundary(tokenizer, prompt):
    question, whole = ids(tokenizer, prompt["text"]), ids(tokenizer, prompt["text"] + prompt["answer"])
    assert 40 <= len(whole) <= 80
    assert whole[: len(question)] == question


def claimed() -> dict[str, list[float]]:
    """The card's accuracies: row label to a share for each model."""
    rows = re.findall(r"^\| (.+? \| .+? \| .+?) \| \d+ \| (.+) \|$", CARD.read_text(), re.MULTILINE)
    return {
        label: [float(share.rstrip("%")) / 100 for share in shares.split(" | ")]
        for label, shares in rows
        if "%" in shares
    }


def test_the_card_has_every_cell():
    assert set(claimed()) == {cell.label for cell in cells()}


@pytest.mark.parametrize("task, difficulty", [("sum_mod10", 3), ("lookup", 2)])
@pytest.mark.parametrize("column, name", enumerate(WORDS))
def test_the_card_says_what_is_measured(task, difficulty, column, name):
    cell, count = Cell(TASKS[task], difficulty, worked=False), 50
    share = claimed()[cell.label][column]
    measured = accuracy(*open_model(MODELS[name]), cell, count, seed=1)
    assert abs(measured - share) <= 4 * max(share * (1 - share), 0.01) ** 0.5 / count**0.5


# ---------------------------------------------------------------- the bundled sets


TASK_SETS = [(task, worked) for task in TASKS.values() for worked in (False, True) if task.rungs(worked)]


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (SETS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("task, worked", TASK_SETS, ids=lambda v: v.name if hasattr(v, "name") else str(v))
def test_a_set_has_every_level_in_every_form_and_pairs_of_one_form(tokenizer, task, worked):
    found = rows(name := task.name + "_worked" * worked)
    assert found == sets.lines(task, worked, tokenizer) and name in set_names()
    levels = [str(difficulty) for difficulty in task.measured(worked)]
    names = [form.name for form in FORMS]
    assert len(set(names)) == len(names) >= 8 and len({row["id"] for row in found}) == len(found)
    assert list(dict.fromkeys(row["level"] for row in found)) == levels
    for level in levels:
        of_level = [row for row in found if row["level"] == level]
        assert [row["form"] for row in of_level] == names * sets.EACH and sets.EACH >= 5, "forms take turns"
    for pair in {row["pair"] for row in found}:
        together = [row for row in found if row["pair"] == pair]
        assert [row["level"] for row in together] == levels and len({row["form"] for row in together}) == 1
    for row in found:
        question, whole = ids(tokenizer, row["text"]), ids(tokenizer, row["text"] + row["answer"])
        assert whole[: len(question)] == question and len(whole) <= LONG


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_is_what_it_says_and_asks_what_training_never_saw(tokenizer, form):
    task = TASKS["sum_mod10"]
    heading, rungs = task.heading(False), task.measured()
    for level in (2, 4, 6):
        text, answer = write_prompt(task, rungs[level], False, random.Random(level), tokenizer, form)
        head = {"blank line": heading + "\n", "heading twice": heading * 2}.get(form.name, heading)
        assert text.startswith(head)
        *examples, question = text.removeprefix(head).split("\n")
        digits = [int(d) for d in question.removesuffix(" = ").split(" + ")]
        assert len(digits) == level and answer == str(sum(digits) % 10)
        assert level == 2 or task.is_held_out(tuple(digits), rungs[level])
        solved = [[int(d) for d in re.findall(r"\d", example)] for example in examples]
        assert all(sum(given) % 10 == last and sorted(given) != sorted(digits) for *given, last in solved)
        assert all(
            task.all_seen(rungs[len(s) - 1]) or not task.is_held_out(tuple(s[:-1]), rungs[len(s) - 1]) for s in solved
        )
        sizes = [len(one) - 1 for one in solved]
        expected = {
            "bare": [],
            "easy examples": [2] * 4,
            "climbing": {2: [2] * 6, 4: [2, 2, 2, 2, 3, 4], 6: [2, 2, 3, 4, 5, 6]}[level],
        }
        assert sizes == expected.get(form.name, sizes)
        if form.name in ("usual", "blank line", "heading twice", "same example"):
            assert set(sizes) == {level} and len({tuple(s) for s in solved}) == (1 if form.of == "one" else len(solved))
    if form.name == "any level":
        text, _ = write_prompt(task, rungs[4], False, random.Random(1), tokenizer, form)
        assert len({line.count("+") for line in text.splitlines()[1:-1]}) > 1


def test_the_card_says_how_forms_are_answered():
    """A row of the card's table, measured on other questions."""
    (line,) = re.findall(r"^\| `sum_mod10` \| direct \| (.+) \|$", CARD.read_text(), re.MULTILINE)
    told = [[int(share) for share in cell.split(" · ")] for cell in line.split(" | ")]
    assert len(told) == len(FORMS)
    opened = [open_model(MODELS[name]) for name in WORDS]
    for form, shares in list(zip(FORMS, told, strict=True))[1::3]:
        for pair, share in zip(opened, shares, strict=True):
            assert share >= 80
            assert abs(100 * of_forms(pair, TASKS["sum_mod10"], False, form, 20, seed=1) - share) <= 10


KINDS = {"facts", "two hops", "arithmetic", "code", "narrative", "dialogue"} | {
    "list", "definition", "translation", "copying",
}  # fmt: skip


def test_the_mixed_set_has_twelve_different_texts_of_each_of_ten_kinds():
    found = read_jsonl(SETS / f"{MIXED}.jsonl")
    assert len(found) == len({p.text for p in found}) == len({p.id for p in found}) == 120
    assert len({p.text[:12] for p in found}) > 110, "no frame that is only filled in"
    for first in range(0, 120, 10):
        assert {p.form for p in found[first : first + 10]} == KINDS, "kinds take turns"
    answered = {kind: sum(bool(p.answer) for p in found if p.form == kind) for kind in KINDS}
    assert answered.pop("narrative") == answered.pop("dialogue") == 0 and min(answered.values()) >= 9
    for p in found:
        check_text(p)
        assert p.text == p.text.rstrip(" ")
        assert not p.answer or p.answer.startswith(" ") != p.text[-1].isspace()
    assert all("level" not in row for row in rows(MIXED))


def test_mixed_prompts_are_short_and_split_at_the_answer_for_a_real_model():
    spec = resolve("smollm2")
    if not hub.is_here(spec):
        pytest.skip("SmolLM2 is not here")
    lengths = []
    for p in read_jsonl(SETS / f"{MIXED}.jsonl"):
        text, whole = (tokens.preview(spec, one) for one in (Prompt(p.text), p))
        assert len(text) >= 8 and len(whole) <= 60 and whole[: len(text)] == text, p.id
        lengths.append(len(whole))
    assert len(set(lengths)) > 20, "of many lengths"


def test_a_bundled_model_is_measured_on_what_it_was_taught_and_any_other_on_mixed_prompts():
    for name, folder in MODELS.items():
        assert default_set(name) == default_set(str(folder)) == ("chains" if name in CHARACTERS else "sum_mod10")
    assert default_set("smollm2") == default_set("org/ed-demo-8") == default_set("/models/x") == MIXED
    assert {MIXED, "sum_mod10", "chains"} <= set(set_names())


# ---------------------------------------------------------------- the case studies


HINT = "run python -m tools.cases"


def shipped(lesson) -> case_study.Case:
    return bundle.drawable((SHIPPED / f"{id_of(lesson.name)}.edcase").read_bytes())


def test_the_folder_holds_the_lessons_and_nothing_else(tmp_path):
    assert {file.stem for file in SHIPPED.iterdir()} == {id_of(lesson.name) for lesson in LESSONS}, HINT
    cards = Kept(tmp_path).cards("start here")
    assert [card.title for card in cards] == [LESSONS[0].title]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_what_the_notes_say_is_so(lesson):
    kept = shipped(lesson)
    results = named(item.result for item in kept.items)
    assert build(lesson, results) == kept, HINT  # checks every claim, and that the verdict is today's
    assert "/" not in results["logit_lens"].request.models[0].source


def test_a_note_that_is_not_so_is_not_written():
    easy, hard = LESSONS[0], shipped(LESSONS[1])
    with pytest.raises(CaseError, match="Claim"):
        build(easy, named(item.result for item in hard.items))


@pytest.fixture(scope="module")
def models():
    return compute.Models()


@pytest.mark.parametrize(
    "lesson",
    [pytest.param(l, marks=[pytest.mark.real] * (l.model == REAL), id=l.name) for l in LESSONS],
)
def test_the_numbers_are_what_a_run_gives(lesson, models):
    prompt = next(Prompt(p["text"], p["answer"]) for p in load_prompts() if p["id"] == lesson.prompt)
    by_name = named(item.result for item in shipped(lesson).items)
    if lesson.model == REAL and not hub.is_here(resolve(REAL)):
        pytest.skip("smollm2 is not here: no registry had it, or REAL_MODEL=0")
    for spec in models_of(lesson, resolve(lesson.model)):
        for probe in lesson.probes:
            request = probe.request(spec, prompt)
            (name,) = named([replace(by_name[probe.name], request=request)])
            assert by_name[name].request.key == request.key, HINT
            for measure, values in compute.run(models.get(spec), request).measures.items():
                largest = np.nanmax(np.abs(values.values))
                assert np.nanmax(np.abs(by_name[name][measure] - values.values)) <= 1e-3 * max(largest, 1e-3), (
                    f"{name}.{measure}"
                )


def test_the_set_teaches_what_it_is_there_for():
    """An easy and a hard sum, a look-up in three hops, criteria that disagree, a prompt outside what the model knows,
    an untrained twin; on a real model criteria that disagree, a sink, and a KL rule that holds near the input."""
    assert [lesson.name for lesson in LESSONS] == [
        "easy-sum",
        "hard-sum",
        "three-hops",
        "criteria-disagree",
        "outside",
        "untrained-twin",
        "real-disagree",
        "real-sink",
        "real-kl",
    ]
    verdicts = shipped(LESSONS[5]).verdict.splitlines()
    assert len(verdicts) == 2 and "untrained twin, seed 0" in verdicts[1] and "twin" not in verdicts[0]


def test_what_was_kept_under_other_rules_says_so():
    lesson = LESSONS[0]
    kept = shipped(lesson)
    now = replace(kept, verdict=case_study.verdict_text(kept))
    assert case_study.of_its_time(now) == "" == case_study.of_its_time(replace(kept, verdict=""))
    former = replace(now, verdict="The mean cosine turns after layer 3 of 8.")
    for one in (former, case_study.edited(former, title="Today")):
        assert case_study.of_its_time(one) == "Verdict and notes as they were kept, by the rules of that time."
