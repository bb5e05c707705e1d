"""The looped model and its controls: `python -m tools.looped train [--kinds loop plain16 plain4]` trains them, and
`python -m tools.looped prompts` writes their prompts and prompt sets.

All are 128 wide: `loop` runs 4 blocks 4 times, `plain16` is as deep, `plain4` has as many parameters. Two tasks,
written in characters: sums of 2 to 6 digits, and chains of 1 to 4 fixed permutations of the ten digits, each a letter,
applied to a digit from left to right. Longer ones (sums of 7 to 9, chains of 5 and 6) are for the test alone. The loss
is on answers and the character that ends them. docs/findings.md has the results."""

from __future__ import annotations

import argparse
import copy
import hashlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ed_core.models.bundled import FOLDER, OF_CHARACTERS, SETS
from ed_core.models.loops import LoopedConfig, LoopedForCausalLM

from .prompts import to_jsonl
from .training import Trainer

KINDS = {"loop": (4, 4), "plain16": (16, 1), "plain4": (4, 1)}  # blocks, passes
NAMES = {"loop": "ed-loop-4x4", "plain16": "ed-plain-16", "plain4": "ed-plain-4"}
WIDTH, HEADS, MLP = 128, 4, 144  # so that 16 blocks fit 4 MB in bf16
LENGTH, BATCH, STEPS, RATE, SEED = 64, 16, 3000, 2e-3, 1
ITEMS = 2000  # tested of each length
EACH, BEFORE = 4, 4  # of the prompt sets: problems of each form, and the most solved ones before
SHOWN = {"alone": 0, "after 3": 3}  # bundled prompts of a length: solved problems of the same length before each
TITLES = {"sums": "Sum of {} digits", "chains": "Chain of {} permutation{s}"}
LETTERS = "abcdefghijkl"
CHARACTERS = "\n0123456789+=" + LETTERS + "?"
END, UNKNOWN = "\n", "?"
_draw = random.Random(14)
PERMUTATIONS = {letter: _draw.sample(range(10), 10) for letter in LETTERS}  # the same for all models


@dataclass(frozen=True)
class Task:
    """Problems by length: `trained` lengths and longer ones, which only the test has."""

    name: str
    trained: tuple[int, ...]
    longer: tuple[int, ...]

    def draw(self, rng: random.Random, length: int) -> str:
        """A random question."""
        if self.name == "sums":
            return "+".join(rng.choice("0123456789") for _ in range(length)) + "="
        return rng.choice("0123456789") + "".join(rng.choice(LETTERS) for _ in range(length)) + "="

    def answer(self, question: str) -> str:
        """Its answer."""
        if self.name == "sums":
            return str(sum(map(int, question[:-1].split("+"))))
        state = int(question[0])
        for letter in question[1:-1]:
            state = PERMUTATIONS[letter][state]
        return str(state)

    def questions(self, length: int) -> int:
        """How many there are."""
        return 10**length if self.name == "sums" else 10 * len(LETTERS) ** length

    def every(self, length: int) -> Iterator[str]:
        """All questions."""
        if self.name == "sums":
            return ("+".join(digits) + "=" for digits in product("0123456789", repeat=length))
        return ("".join(one) + "=" for one in product("0123456789", *[LETTERS] * length))

    def is_held_out(self, question: str, length: int) -> bool:
        """Whether training never sees it: a tenth, where there are enough for that."""
        enough = self.questions(length) >= 1000
        return enough and hashlib.blake2b(question.encode(), digest_size=8).digest()[0] % 10 == 0

    def seen(self, rng: random.Random, length: int) -> str:
        """A random question for training."""
        while self.is_held_out(question := self.draw(rng, length), length):
            pass
        return question

    @cache  # noqa: B019  # there are two tasks
    def tested(self, length: int) -> list[str]:
        """Up to `ITEMS` different questions: of trained lengths held out ones, if any are."""
        rng, found = random.Random(f"test {self.name} {length}"), {}
        every, most = length in self.longer or self.questions(length) < 1000, ITEMS
        if self.questions(length) < 10_000:
            most = min(ITEMS, sum(every or self.is_held_out(question, length) for question in self.every(length)))
        for _ in range(60 * ITEMS):
            question = self.draw(rng, length)
            if every or self.is_held_out(question, length):
                found[question] = None
            if len(found) == most:
                break
        return list(found)


TASKS = (Task("sums", (2, 3, 4, 5, 6), (7, 8, 9)), Task("chains", (1, 2, 3, 4), (5, 6)))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character."""
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END, pad_token=END)


def build_model(kind: str, seed: int) -> LlamaForCausalLM:
    """A fresh model; the seed determines every weight."""
    torch.manual_seed(seed)
    blocks, passes = KINDS[kind]
    sizes = dict(
        vocab_size=len(CHARACTERS),
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=blocks,
        num_attention_heads=HEADS,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    if passes == 1:
        return LlamaForCausalLM(LlamaConfig(**sizes)).train()
    return LoopedForCausalLM(LoopedConfig(n_loops=passes, **sizes)).train()


def documents(seed: int, step: int, done: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and whether each belongs to an answer or ends it, `[BATCH, LENGTH]`: problems line by line, cut at the
    end. `done`: the share of the training that is over; a longer problem comes every twelfth of it, and half of all
    problems are of the longest kind that has come."""
    rng, place = random.Random(f"{seed} {step}"), {c: i for i, c in enumerate(CHARACTERS)}
    ids, marks = [], []
    for _ in range(BATCH):
        text, answers = END, [False]
        while len(text) < LENGTH:
            task = rng.choice(TASKS)
            there = task.trained[: 1 + int(12 * done)]
            length = there[-1] if rng.random() < 0.5 else rng.choice(there)
            question = task.seen(rng, length)
            answer = task.answer(question) + END
            text += question + answer
            answers += [False] * len(question) + [True] * len(answer)
        ids.append([place[c] for c in text[:LENGTH]])
        marks.append(answers[:LENGTH])
    return torch.tensor(ids), torch.tensor(marks)


def train(kind: str, out: Path, steps: int = STEPS) -> None:
    """Train one model and keep it in bf16; a run that was stopped continues from its state."""
    model = build_model(kind, SEED)
    trainer = Trainer(model, RATE)
    work = out.with_suffix(".work")
    counts = trainer.resume(work) or {"step": 0}
    saved = time.monotonic()
    for step in range(counts["step"], steps):
        ids, marks = documents(SEED, step, step / steps)
        losses = F.cross_entropy(trainer.logits(ids).transpose(1, 2), ids[:, 1:], reduction="none")
        loss = losses[marks[:, 1:]].mean()
        trainer.step(loss, step / steps)
        if step % 100 == 99:
            print(f"{kind} step {step + 1} loss {loss.item():.4f}", flush=True)
        if time.monotonic() - saved > 180:
            trainer.save(work, {"step": step + 1})
            saved = time.monotonic()
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    build_tokenizer().save_pretrained(out)


def prompts(task: Task) -> Iterator[dict]:
    """The task's prompt set: of every trained length `EACH` problems after 0, 1, …, `BEFORE` solved ones, which are the
    forms of a prompt; the i-th of every length belong together."""
    for length in task.trained:
        tested = task.tested(length)
        for i in range(EACH * (BEFORE + 1)):
            rng, before = random.Random(f"set {task.name} {length} {i}"), i % (BEFORE + 1)
            shown = [task.draw(rng, rng.choice(task.trained)) for _ in range(before)]
            text = END + "".join(question + task.answer(question) + END for question in shown)
            question = tested[i % len(tested)]
            named = {"id": f"{length}-{i}", "level": str(length), "pair": str(i), "form": f"{before} before"}
            yield named | {"text": text + question, "answer": task.answer(question)}


def examples() -> Iterator[dict]:
    """The bundled prompts in characters, easiest first within each task."""
    for task in TASKS:
        for length in task.trained:
            asked = task.tested(length)
            for i, (form, n) in enumerate(SHOWN.items()):
                rng = random.Random(f"example {task.name} {length} {form}")
                shown = [task.draw(rng, length) for _ in range(n)]
                title = TITLES[task.name].format(length, s="s" * (length > 1))
                yield {
                    "id": f"{task.name}-{length}-{form.replace(' ', '-')}",
                    "task": task.name,
                    "difficulty": length,
                    "title": title + f" ({form})" * (n > 0),
                    "text": END + "".join(question + task.answer(question) + END for question in shown) + asked[i],
                    "answer": task.answer(asked[i]),
                    "known": True,
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "prompts"))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--out", type=Path, default=FOLDER / "models", help="the folder of the models (%(default)s)")
    options = parser.parse_args()
    if options.what == "train":
        torch.set_num_threads(1)
        for kind in options.kinds:
            train(kind, options.out / NAMES[kind])
        return
    for task in TASKS:
        (SETS / f"{task.name}.jsonl").write_text(to_jsonl(prompts(task)), encoding="utf-8")
    OF_CHARACTERS.write_text(to_jsonl(examples()), encoding="utf-8")


if __name__ == "__main__":
    main()
