"""Train a demo model from scratch: `python -m tools.train --layers 8 --seconds 5000`.

The budget is wall-clock time, or a number of steps. A run that was stopped continues from OUT.work. With
--depth FOLDER the model's depth is measured at the steps `LOGGED` and kept there as a study.

Problems come from `tools.tasks`; every ladder opens rung by rung, and a rung that is not mastered is drawn more often.
"""

import argparse
import copy
import random
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from string import ascii_lowercase

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from ed_core import DepthCallback
from ed_core.models.bundled import FOLDER, mixed_prompts
from ed_core.types import Prompt

from .tasks import GAINS, LOSSES, NAMES, TASKS, THINGS, Rung, Task
from .training import Trainer

WIDTH, HEAD, MLP = 128, 32, 384
LENGTH, BATCH = 128, 16
GIVEN_WEIGHT = 0.03  # of the loss on everything but answers
LOGGED = (0, *(2**k for k in range(8)), 192, 256, 384, 512, 768, 896, 1024)
SAVE_SECONDS = 240  # from one saved state to the next
MEASURED = 24  # prompts that depth is measured on: one of each task and difficulty

# ---------------------------------------------------------------- tokenizer
# Byte-level BPE over a small vocabulary, digits split one by one, nothing normalised or added. The marks between the
# parts of a problem (` + `, `; `) take their space with them, so that a digit or a letter is the same token wherever it
# is. What asks for a value (`a=`, ` Ann follows`) is one token, right before the value: without that, look-ups were not
# learned in the time there was.

END, VOCABULARY = "<|endoftext|>", 1024
PATTERN = r"[a-z]=| ?\p{L}+ follows| [-+=] |; | ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENGLISH = """
the of and to in is that it was for on are as with his they at be this have from or one had by
word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look
two more write go see number no way could people my than first water been call who oil its now
find long down day did get come made may part over new sound take only little work know place
year live me back give most very after thing our just name good sentence man think say great
where help through much before line right too mean old any same tell boy follow came want show
The A In It He She We You They What When Who This That There Question Answer Problem spouse
performer capital city country born author language world house school family music song
"""


def corpus() -> str:
    """Every word of the problems and common English words: each becomes one token."""
    starts = ["Given", "Say", *NAMES]
    words = ["has", "That", "leaves", "one"] + NAMES + THINGS + GAINS + LOSSES
    asks = "\n" + "".join(f"{letter}=0; " for letter in ascii_lowercase)
    asks += "".join(f" {name} follows" for name in ["who", *NAMES])
    headings = [task.heading(worked) for task in TASKS.values() for worked in (False, True)]
    spaced = "".join(f" {word}" for word in [*words, *ascii_lowercase, *ENGLISH.split()])
    return "".join(headings) + "\n".join(starts) + asks + spaced + " + 0 - 0 = 0"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its merges learned; the same on every call."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus()], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


# ---------------------------------------------------------------- curriculum

MASTERED, FLOOR, MEMORY = 0.8, 0.08, 0.99
FIRST = 5.0  # weight of first rungs not yet mastered: matching is learned all at once, after many questions


@dataclass
class Progress:
    """Running accuracy on one rung, from zero. Once it is mastered, the next rung is open."""

    accuracy: float = 0.0
    mastered: bool = False

    def update(self, right: int, asked: int) -> None:
        """Count some answers; the newest weigh most."""
        if not asked:
            return
        memory = MEMORY**asked
        self.accuracy = memory * self.accuracy + (1 - memory) * right / asked
        self.mastered |= self.accuracy >= MASTERED


@dataclass(frozen=True)
class Lesson:
    """One rung of one task in one format: the kind of line a document is made of."""

    task: Task
    rung: Rung
    worked: bool

    @property
    def name(self) -> str:
        """A key for logs and saved states."""
        form = "worked" if self.worked else "direct"
        return f"{self.task.name} {form} {self.rung.difficulty}/{self.rung.size}"


class Curriculum:
    """The ladders of all tasks in both formats, and the progress on each."""

    def __init__(self):
        self.ladders = [
            [Lesson(task, rung, worked) for rung in task.rungs(worked)]
            for task in TASKS.values()
            for worked in (False, True)
            if task.rungs(worked)
        ]
        self.progress = {lesson.name: Progress() for ladder in self.ladders for lesson in ladder}

    def open_lessons(self) -> list[Lesson]:
        """Of each ladder the rungs up to the first that was never mastered."""
        lessons = []
        for ladder in self.ladders:
            for lesson in ladder:
                lessons.append(lesson)
                if not self.progress[lesson.name].mastered:
                    break
        return lessons

    def choose(self, rng: random.Random, count: int) -> list[Lesson]:
        """Lessons for a batch, drawn by how much each has left to learn."""
        lessons = self.open_lessons()
        return rng.choices(lessons, [self._weight(lesson) for lesson in lessons], k=count)

    def _weight(self, lesson: Lesson) -> float:
        progress = self.progress[lesson.name]
        first = lesson.rung == lesson.task.ladder[0] and not progress.mastered
        return (FLOOR + 1 - progress.accuracy) * (FIRST if first else 1.0)

    def state(self) -> dict:
        """All progress as plain data."""
        return {name: asdict(progress) for name, progress in self.progress.items()}

    def restore(self, state: dict) -> None:
        """Take over progress saved by `state`."""
        self.progress |= {name: Progress(**state[name]) for name in self.progress.keys() & state}


# ---------------------------------------------------------------- documents

GIVEN, ANSWER, COUNTED = 0, 1, 2
ASKS = 6  # questions that a line of facts gets at most in training; prompts and evaluation ask one
EASIER = 0.4  # share of lines from any rung up to the lesson's: so no answer is at a fixed distance


class Writer:
    """Writes documents with one tokenizer: a heading, then lines of one lesson, at most `LENGTH` tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.end = tokenizer.eos_token_id
        self._ids = lru_cache(maxsize=20_000)(
            lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        )

    def document(self, lesson: Lesson, rng: random.Random) -> tuple[list[int], list[int]]:
        """Token ids and their marks; at least one line, then as many as fit."""
        ids, marks = self._pieces([(lesson.task.heading(lesson.worked), GIVEN)])
        while True:
            more, more_marks = self._line(lesson, rng)
            if len(ids) + len(more) > LENGTH:
                return ids, marks
            ids += more
            marks += more_marks

    def _line(self, lesson: Lesson, rng: random.Random) -> tuple[list[int], list[int]]:
        """One line of the lesson's rung, or of an easier one, which does not count."""
        rung = lesson.rung
        if rng.random() < EASIER:
            rungs = lesson.task.rungs(lesson.worked)
            rung = rng.choice(rungs[: rungs.index(rung) + 1])
        instance = lesson.task.sample(rng, rung)
        parts = []
        for ask in lesson.task.line(instance, lesson.worked, rng, asks=rng.randint(1, ASKS)):
            counts = ask.counts and rung == lesson.rung
            parts += [(ask.text, GIVEN), (ask.answer, COUNTED if counts else ANSWER)]
        return self._pieces([*parts, ("\n", GIVEN)])

    def _pieces(self, parts: Iterable[tuple[str, int]]) -> tuple[list[int], list[int]]:
        """Token ids of marked pieces of text; pieces meet at token boundaries."""
        ids, marks = [], []
        for text, mark in parts:
            new = self._ids(text)
            ids += new
            marks += [mark] * len(new)
        return ids, marks

    def batch(self, documents: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and marks, `(batch, LENGTH)`, padded at the right; padding is marked -1."""
        rows = [ids + [self.end] * (LENGTH - len(ids)) for ids, _ in documents]
        marks = [m + [-1] * (LENGTH - len(m)) for _, m in documents]
        return torch.tensor(rows), torch.tensor(marks)


def score(right: torch.Tensor, marks: torch.Tensor) -> tuple[int, int]:
    """How many counted answers of a document are right in every token, and how many there are.

    `right` holds for each token whether it was predicted; an answer is a run of marked tokens.
    """
    hits = asked = 0
    inside = good = False
    for ok, mark in zip(right.tolist() + [False], marks.tolist() + [GIVEN], strict=True):
        if mark == COUNTED:
            good = ok and (good or not inside)
            inside = True
        elif inside:
            hits, asked, inside = hits + good, asked + 1, False
    return hits, asked


# ---------------------------------------------------------------- training


def build_model(layers: int, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen3ForCausalLM:
    """A fresh model; the seed determines every weight."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=layers,
        num_attention_heads=WIDTH // HEAD,
        num_key_value_heads=WIDTH // HEAD,
        head_dim=HEAD,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )
    return Qwen3ForCausalLM(config).train()


class Run:
    """One training: model, optimizers, curriculum and progress."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.tokenizer = build_tokenizer()
        self.writer = Writer(self.tokenizer)
        self.model = build_model(options.layers, self.tokenizer, options.seed)
        self.trainer, self.curriculum = Trainer(self.model, options.rate), Curriculum()
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        if counts := self.trainer.resume(options.work):
            self.curriculum.restore(counts["curriculum"])
            self.step, self.tokens, self.seconds = counts["step"], counts["tokens"], counts["seconds"]
        prompts = [Prompt(p["text"], p["answer"], p["id"], form=p["task"]) for p in mixed_prompts(MEASURED)]
        self.depth = DepthCallback(prompts, every=1, tokenizer=self.tokenizer, out=options.depth)

    @property
    def done(self) -> float:
        """The share of the budget that is spent."""
        budget = self.options.steps
        return self.step / budget if budget else self.seconds / self.options.seconds

    def advance(self) -> float:
        """One step, its documents determined by seed, step and progress; the loss on the answers."""
        rng = random.Random(f"{self.options.seed} {self.step}")
        lessons = self.curriculum.choose(rng, BATCH)
        ids, marks = self.writer.batch([self.writer.document(lesson, rng) for lesson in lessons])
        logits, marks, targets = self.trainer.logits(ids), marks[:, 1:], ids[:, 1:]
        losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        answers = losses[marks >= ANSWER].mean()
        self.trainer.step(answers + GIVEN_WEIGHT * losses[marks == GIVEN].mean(), self.done)
        right = logits.argmax(-1) == targets
        for lesson, row, row_marks in zip(lessons, right, marks, strict=True):
            self.curriculum.progress[lesson.name].update(*score(row, row_marks))
        self.step += 1
        self.tokens += int((marks >= GIVEN).sum())
        return answers.item()

    def save(self) -> None:
        """Write the model in bf16 to --out, and what a continued run needs to OUT.work."""
        copy.deepcopy(self.model).to(torch.bfloat16).save_pretrained(self.options.out)
        self.tokenizer.save_pretrained(self.options.out)
        counts = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        self.trainer.save(self.options.work, counts | {"curriculum": self.curriculum.state()})

    def report(self, loss: float) -> None:
        """Print a line of figures and the accuracy of every open lesson."""
        names = [lesson.name for lesson in self.curriculum.open_lessons()]
        accuracy = "  ".join(f"{n} {self.curriculum.progress[n].accuracy:.2f}" for n in names)
        print(f"step {self.step} {self.seconds:.0f}s tokens {self.tokens} loss {loss:.3f}\n  {accuracy}", flush=True)

    def train(self) -> None:
        """Run until the budget is spent, reporting each minute and saving every few."""
        last_report, last_save, average = self.seconds, self.seconds, 0.0
        while True:
            if self.options.depth and self.step in LOGGED:
                self.depth.measure(self.model, self.step)
            if self.done >= 1:
                break
            start = time.monotonic()
            average = 0.98 * average + 0.02 * self.advance()
            self.seconds += time.monotonic() - start
            if self.seconds - last_report > 60:
                self.report(average)
                last_report = self.seconds
            if self.seconds - last_save > SAVE_SECONDS:
                self.save()
                last_save = self.seconds
        self.save()
        self.report(average)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5000)
    parser.add_argument("--steps", type=int, help="the budget in steps instead of seconds")
    parser.add_argument("--depth", type=Path, metavar="FOLDER", help="measure depth while training, and keep it there")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="default: the bundled folder of that depth")
    options = parser.parse_args()
    options.out = options.out or FOLDER / "models" / f"ed-demo-{options.layers}"
    options.work = options.out.with_suffix(".work")
    torch.set_num_threads(1)
    Run(options).train()


if __name__ == "__main__":
    main()
