"""The experiment on looped models: do shared blocks use their depth more than blocks of their own?

`python -m tools.looped train --out FOLDER` trains the three kinds on both losses, one after the other, two seeds each;
what is finished is not trained again, and what was stopped goes on. `python -m tools.looped table --out FOLDER` says
how many problems each model solves, by length, and a loop with other numbers of passes. `python -m tools.looped depths
--out FOLDER` says how deep the answers lie, by length: mean depth where they are predicted, by KL, and the centre over
depths of what erasure changes. `python -m tools.looped sets --out FOLDER` writes the prompt sets `sums.jsonl` and
`chains.jsonl`, a level a length, on which `ed_core study`, `claims` and `cards` measure how models use their depth.
`python -m tools.looped bundled` writes what ships of them: a set a task, of trained lengths alone, and the prompts that
the pages open on (`prompts_of_characters.jsonl`).

Three kinds, all of width 128: `loop`, 4 blocks run 4 times; `plain16`, as deep; `plain4`, with as many parameters. Two
tasks, written in characters: sums of 2 to 6 digits, and chains of 1 to 4 fixed permutations of the ten digits, each a
letter, applied to a digit from left to right. Longer ones, sums of 7 to 9 and chains of 5 and 6, are for the test
alone. The loss is on all tokens, or on answers and what ends them only.

Csordás et al. 2025 (arXiv 2505.13898) compare a weight-shared MoEUT with a plain model of its depth; the kind with as
many parameters is the control that they lack."""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ed_core
from ed_core import statistics
from ed_core.depth import verdict
from ed_core.models.looped import LoopedConfig, LoopedForCausalLM
from ed_core.notebook.model import Model
from ed_core.sources.bundled import OF_CHARACTERS, SETS
from ed_core.types import Prompt

from .prompts import to_jsonl
from .train import build_optimizers, schedule

KINDS = {"loop": (4, 4), "plain16": (16, 1), "plain4": (4, 1)}  # blocks, passes
LOSSES = ("answer", "all")
WIDTH, HEADS, MLP = 128, 4, 144  # so that 16 blocks fit 4 MB in bf16
LENGTH, BATCH = 64, 16
CLIP = 1.0
ITEMS = 2000  # tested of each length
EACH, BEFORE = 4, 4  # of the prompt sets: problems of each form, and the most solved ones before
READINGS = ("lens", "erasure")
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
        """What stands behind it."""
        if self.name == "sums":
            return str(sum(map(int, question[:-1].split("+"))))
        state = int(question[0])
        for letter in question[1:-1]:
            state = PERMUTATIONS[letter][state]
        return str(state)

    def questions(self, length: int) -> int:
        """How many there are."""
        return 10**length if self.name == "sums" else 10 * len(LETTERS) ** length

    def is_held_out(self, question: str, length: int) -> bool:
        """Whether training never sees it: a tenth, where there are enough for that."""
        enough = self.questions(length) >= 1000
        return enough and hashlib.blake2b(question.encode(), digest_size=8).digest()[0] % 10 == 0

    def seen(self, rng: random.Random, length: int) -> str:
        """A random question for training."""
        while self.is_held_out(question := self.draw(rng, length), length):
            pass
        return question

    def tested(self, length: int) -> list[str]:
        """Up to `ITEMS` different questions: of trained lengths held out ones, where any are."""
        rng, found = random.Random(f"test {self.name} {length}"), {}
        some = length in self.longer or self.questions(length) < 1000
        for _ in range(60 * ITEMS):
            question = self.draw(rng, length)
            if some or self.is_held_out(question, length):
                found[question] = None
            if len(found) == ITEMS:
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
    """A fresh model; the seed settles every weight."""
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


class Run:
    """One training: a model, its optimizers and how far it has come."""

    def __init__(self, kind: str, loss: str, seed: int, steps: int, rate: float, out: Path):
        self.kind, self.loss, self.seed, self.steps, self.rate = kind, loss, seed, steps, rate
        self.out = out / f"{kind}-{loss}-{seed}"
        self.model = build_model(kind, seed)
        self.optimizers = build_optimizers(self.model, rate)
        self.step, self.seconds, self.lost = 0, 0.0, 0.0

    @property
    def finished(self) -> bool:
        return (self.out / "config.json").exists()

    def advance(self) -> None:
        """One step of the optimizers."""
        ids, marks = documents(self.seed, self.step, self.step / self.steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        of_answers = losses[marks[:, 1:]].mean()
        (of_answers if self.loss == "answer" else losses.mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        factor = schedule(self.step / self.steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate * factor
            optimizer.step()
        self.model.zero_grad()
        self.step += 1
        self.lost = 0.95 * self.lost + 0.05 * of_answers.item() if self.step > 1 else of_answers.item()

    def train(self, save_every: float = 180) -> None:
        """To the end, or on from where it was stopped; then the weights in bf16 and the log stay."""
        self.resume()
        last = self.seconds
        while self.step < self.steps:
            began = time.monotonic()
            self.advance()
            self.seconds += time.monotonic() - began
            if self.step % 100 == 0 or self.step == self.steps:
                few = {f"{t} {n}": round(a, 3) for t, n, a in quick(self.model)}
                line = {"step": self.step, "seconds": round(self.seconds), "loss": round(self.lost, 4), **few}
                self.say(line)
            if self.seconds - last > save_every:
                self.save()
                last = self.seconds
        self.keep()

    def say(self, line: dict) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        print(self.out.name, line, flush=True)

    def save(self) -> None:
        """All that a continued run needs."""
        names = {weight: name for name, weight in self.model.named_parameters()}
        state = {f"weight|{name}": weight.detach() for weight, name in names.items()}
        for optimizer in self.optimizers:
            for weight, values in optimizer.state.items():
                state |= {f"{key}|{names[weight]}": value for key, value in values.items()}
        self.out.mkdir(parents=True, exist_ok=True)
        counts = {"step": str(self.step), "seconds": str(self.seconds), "lost": str(self.lost)}
        save_file(state, self.out / "state.new", counts)
        (self.out / "state.new").replace(self.out / "state.safetensors")

    def resume(self) -> None:
        """Go on where the run was saved, if it was."""
        file = self.out / "state.safetensors"
        if not file.exists():
            return
        with file.open("rb") as handle:
            head = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))["__metadata__"]
        self.step, self.seconds, self.lost = int(head["step"]), float(head["seconds"]), float(head["lost"])
        weights = dict(self.model.named_parameters())
        owner = {w: o for o in self.optimizers for group in o.param_groups for w in group["params"]}
        for label, value in load_file(file).items():
            key, name = label.split("|")
            if key == "weight":
                weights[name].data.copy_(value)
            else:
                owner[weights[name]].state[weights[name]][key] = value

    def keep(self) -> None:
        """The finished model; its config comes last and says that it is."""
        whole = self.out.with_name(self.out.name + ".new")
        copy.deepcopy(self.model).to(torch.bfloat16).save_pretrained(whole)
        build_tokenizer().save_pretrained(whole)
        for file in sorted(whole.iterdir(), key=lambda f: f.name == "config.json"):
            file.replace(self.out / file.name)
        whole.rmdir()
        (self.out / "state.safetensors").unlink(missing_ok=True)


@torch.no_grad()
def solved(model: LlamaForCausalLM, task: Task, questions: list[str]) -> int:
    """How many of these questions, each at the beginning of a text, get exactly their answer and its end, greedily.
    Read in one pass: the answer laid behind the question must be the best guess all along."""
    place, right = {c: i for i, c in enumerate(CHARACTERS)}, 0
    by_size: dict[tuple[int, int], list[str]] = {}
    for question in questions:
        answer = task.answer(question) + END
        by_size.setdefault((len(question), len(answer)), []).append(END + question + answer)
    for (_, n), texts in by_size.items():
        for begin in range(0, len(texts), 250):
            ids = torch.tensor([[place[c] for c in text] for text in texts[begin : begin + 250]])
            best = model(input_ids=ids, use_cache=False).logits[:, -n - 1 : -1].argmax(-1)
            right += int((best == ids[:, -n:]).all(1).sum())
    return right


def quick(model: LlamaForCausalLM) -> Iterator[tuple[str, int, float]]:
    """Shares solved of 100 questions of every trained length."""
    for task in TASKS:
        for length in task.trained:
            questions = task.tested(length)[:100]
            yield task.name, length, solved(model, task, questions) / len(questions)


def accuracies(model: LlamaForCausalLM) -> list[dict]:
    """A row a length: solved, of how many, the share and its 95 % interval over items (Wilson); of a loop for every
    number of passes up to twice its own."""
    own = getattr(model.config, "n_loops", 1)
    rows = []
    for passes in range(1, 2 * own + 1) if own > 1 else [1]:
        if own > 1:
            model.config.n_loops = passes
        rows += [row | {"passes": passes, "own": passes == own} for row in with_passes(model)]
    if own > 1:
        model.config.n_loops = own
    return rows


def with_passes(model: LlamaForCausalLM) -> list[dict]:
    """The same of the model as it is."""
    rows = []
    for task in TASKS:
        for length in task.trained + task.longer:
            questions = task.tested(length)
            right = solved(model, task, questions)
            low, high = binomtest(right, len(questions)).proportion_ci(method="wilson")
            row = {"task": task.name, "length": length, "longer": length in task.longer, "solved": right}
            rows.append(row | {"of": len(questions), "share": right / len(questions), "low": low, "high": high})
    return rows


def finished(out: Path) -> Iterator[tuple[str, str, int, Path]]:
    """Kind, loss, seed and folder of every finished run."""
    for folder in sorted(out.iterdir()):
        if (folder / "config.json").exists():
            kind, loss, seed = folder.name.split("-")
            yield kind, loss, int(seed), folder


def table(out: Path) -> None:
    """Evaluate what is finished and not yet evaluated; print all."""
    for kind, loss, seed, folder in finished(out):
        file = folder / "accuracy.json"
        if not file.exists():
            cls = LoopedForCausalLM if KINDS[kind][1] > 1 else LlamaForCausalLM
            model = cls.from_pretrained(folder, dtype=torch.float32).eval()
            file.write_text(json.dumps(accuracies(model), indent=1))
        for row in json.loads(file.read_text()):
            told = "" if row["own"] else f", {row['passes']} passes"
            print(
                f"{kind:8} {loss:7} {seed} {row['task']:7} {row['length']} {'longer' if row['longer'] else '':6} "
                f"{row['share']:6.1%} ({row['low']:.1%} to {row['high']:.1%}) of {row['of']}{told}"
            )


def depths(out: Path) -> None:
    """Measure what is finished and not yet measured; print all: a row a model, task and reading, a column a length, and
    how much more the longest trained length has than the shortest, with its 5 to 95 % over forms."""
    for kind, loss, seed, folder in finished(out):
        file = folder / "depths.json"
        if not file.exists():
            model = ed_core.open(str(folder))
            file.write_text(json.dumps({task.name: answer_depths(model, task, out) for task in TASKS}))
        found = json.loads(file.read_text())
        for task, reading in product(TASKS, READINGS):
            rows = {length: found[task.name][str(length)][reading] for length in task.trained + task.longer}
            each = " ".join(f"{length}: {np.mean(values):5.2f}" for length, values in rows.items())
            first, last = (np.array(rows[length]) for length in (task.trained[0], task.trained[-1]))
            forms = [prompt["form"] for prompt in prompts(task, task.trained[:1])]
            more = statistics.mean(last - first, None, statistics.units(len(forms), forms))
            low, high = more.interval.ends or (np.nan, np.nan)
            told = f"{task.trained[-1]} − {task.trained[0]} {float(more.value):+.2f} ({low:+.2f} to {high:+.2f})"
            print(f"{kind:8} {loss:7} {seed} {task.name:7} {reading:8} {each}; {told}")


def answer_depths(model: Model, task: Task, out: Path) -> dict[str, dict[str, list[float]]]:
    """By length and reading, a figure a prompt. Erasure puts the mean stream of the task's first
    two prompts of each length in."""
    background = out / f"{task.name}.background.jsonl"
    background.write_text(to_jsonl(p for p in prompts(task) if p["pair"] in "01"), encoding="utf-8")
    found = {}
    for length in task.trained + task.longer:
        asked = [Prompt(p["text"], p["answer"], p["id"]) for p in prompts(task, (length,))]
        lens = model.run(ed_core.LogitLens(), asked)
        erased = model.run(ed_core.ResidualErasure(background=str(background)), asked)
        found[str(length)] = {
            "lens": [verdict.mean_depths([one], of=verdict.ANSWER)["kl"].depth for one in lens],
            "erasure": [centre(one.summary["effect_elsewhere"]) for one in erased],
        }
    return found


def centre(values: np.ndarray) -> float:
    """The mean place, each weighed by its value."""
    weights = np.nan_to_num(np.asarray(values, np.float64))
    return float((np.arange(len(weights)) * weights).sum() / weights.sum())


def prompts(task: Task, lengths: tuple[int, ...] = ()) -> Iterator[dict]:
    """The task's prompt set: of every length (or of these) `EACH` problems behind 0, 1, …, `BEFORE` solved ones, which
    are the forms of a prompt; the i-th of every length belong together."""
    for length in lengths or task.trained + task.longer:
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


def bundled() -> None:
    """Write what ships of the prompts."""
    for task in TASKS:
        (SETS / f"{task.name}.jsonl").write_text(to_jsonl(prompts(task, task.trained)), encoding="utf-8")
    OF_CHARACTERS.write_text(to_jsonl(examples()), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "table", "depths", "sets", "bundled"))
    parser.add_argument("--out", type=Path, help="the folder of the runs, or of the sets")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=LOSSES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=2e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "bundled":
        return bundled()
    if options.out is None:
        parser.error(f"{options.what} needs --out FOLDER")
    if options.what in ("table", "depths"):
        return {"table": table, "depths": depths}[options.what](options.out)
    if options.what == "sets":
        options.out.mkdir(parents=True, exist_ok=True)
        for task in TASKS:
            (options.out / f"{task.name}.jsonl").write_text(to_jsonl(prompts(task)), encoding="utf-8")
        return None
    for seed, loss, kind in product(options.seeds, options.losses, options.kinds):
        run = Run(kind, loss, seed, options.steps, options.rate, options.out)
        if not run.finished:
            run.train()


if __name__ == "__main__":
    main()
