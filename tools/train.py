"""Train a demo model from scratch: `python -m tools.train --layers 8 --seconds 5000`.

The budget is wall-clock time, or a number of steps: the learning rate warms up, stays, and falls to zero over the last
part of it. A run that was stopped goes on from its --work folder. With --depth FOLDER the model's depth is measured at
`LOGGED` steps of the training and kept there as a study.
"""

import argparse
import copy
import json
import os
import random
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from ed_core.sources.bundled import FOLDER, mixed_prompts
from ed_core.training import DepthCallback
from ed_core.types import Prompt

from .curriculum import Curriculum
from .documents import ANSWER, GIVEN, Writer, score
from .tokenizer import build_tokenizer

WIDTH, HEAD, MLP = 128, 32, 384
LENGTH, BATCH = 128, 16
GIVEN_WEIGHT = 0.03
WARMUP, DECAY = 0.01, 0.25
CLIP = 1.0
LOGGED = (0, *(2**k for k in range(8)), 192, 256, 384, 512, 768, 896, 1024)
"""Steps at which depth is measured: denser where the model changes most."""
MEASURED = 24
"""Prompts it is measured on: one of each task and difficulty."""


def build_model(layers: int, tokenizer, seed: int) -> Qwen3ForCausalLM:
    """A fresh model; the seed settles every weight."""
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


def build_optimizers(model: Qwen3ForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for the embedding and the norms."""
    weights = dict(model.named_parameters())
    matrices = [w for w in weights.values() if w.ndim == 2 and w is not model.lm_head.weight]
    rest = [w for w in weights.values() if w.ndim == 1] + [model.lm_head.weight]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def schedule(done: float) -> float:
    """Factor on the learning rate after this share of the budget."""
    return min(1.0, done / WARMUP + 0.01, max(0.0, 1 - done) / DECAY)


class Run:
    """One training run: model, optimizer, curriculum and how far they have come."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.tokenizer = build_tokenizer()
        self.writer = Writer(self.tokenizer, LENGTH)
        self.model = build_model(options.layers, self.tokenizer, options.seed)
        for block in self.model.model.layers if options.compile else ():
            block.compile(dynamic=False)
        self.optimizers = build_optimizers(self.model, options.rate)
        self.curriculum = Curriculum()
        self.step = self.tokens = 0
        self.seconds = 0.0
        prompts = [Prompt(p["text"], p["answer"], p["id"], form=p["task"]) for p in mixed_prompts(MEASURED)]
        self.depth = DepthCallback(prompts, every=1, tokenizer=self.tokenizer, out=options.depth, share=None)

    @property
    def done(self) -> float:
        """The share of the budget that is spent."""
        budget = self.options.steps
        return self.step / budget if budget else self.seconds / self.options.seconds

    def batch(self) -> tuple:
        """The lessons and documents of this step, settled by seed, step and progress."""
        rng = random.Random(f"{self.options.seed} {self.step}")
        lessons = self.curriculum.choose(rng, BATCH)
        documents = [self.writer.document(lesson, rng) for lesson in lessons]
        return lessons, *self.writer.batch(documents)

    def advance(self) -> float:
        """One optimizer step; the loss on the answers."""
        lessons, ids, marks = self.batch()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        marks, targets = marks[:, 1:], ids[:, 1:]
        losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        answers = losses[marks >= ANSWER].mean()
        (answers + GIVEN_WEIGHT * losses[marks == GIVEN].mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        factor = schedule(self.done)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.options.rate * factor
            optimizer.step()
        self.model.zero_grad()
        right = logits.argmax(-1) == targets
        for lesson, row, row_marks in zip(lessons, right, marks, strict=True):
            self.curriculum.progress[lesson.name].update(*score(row, row_marks))
        self.step += 1
        self.tokens += int((marks >= GIVEN).sum())
        return answers.item()

    def save(self) -> None:
        """Write the model in bf16 to --out, and all that a continued run needs to --work."""
        copy.deepcopy(self.model).to(torch.bfloat16).save_pretrained(self.options.out)
        self.tokenizer.save_pretrained(self.options.out)
        names = {weight: name for name, weight in self.model.named_parameters()}
        state = {f"weight|{name}": weight.detach() for weight, name in names.items()}
        for optimizer in self.optimizers:
            for weight, values in optimizer.state.items():
                state |= {f"{key}|{names[weight]}": value for key, value in values.items()}
        self.options.work.mkdir(parents=True, exist_ok=True)
        save_file(state, self.options.work / "state.safetensors")
        counts = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        counts["curriculum"] = self.curriculum.state()
        (self.options.work / "state.json").write_text(json.dumps(counts, indent=1))

    def resume(self) -> None:
        """Go on where the --work folder's run was saved."""
        counts = json.loads((self.options.work / "state.json").read_text())
        self.curriculum.restore(counts["curriculum"])
        self.step, self.tokens, self.seconds = counts["step"], counts["tokens"], counts["seconds"]
        weights = dict(self.model.named_parameters())
        owner = {w: o for o in self.optimizers for group in o.param_groups for w in group["params"]}
        for label, value in load_file(self.options.work / "state.safetensors").items():
            key, name = label.split("|")
            if key == "weight":
                weights[name].data.copy_(value)
            else:
                owner[weights[name]].state[weights[name]][key] = value

    def report(self, loss: float) -> str:
        """A line of figures and the accuracy of every open lesson."""
        names = [lesson.name for lesson in self.curriculum.open_lessons()]
        accuracy = "  ".join(f"{n} {self.curriculum.progress[n].accuracy:.2f}" for n in names)
        rate = self.optimizers[0].param_groups[0]["lr"]
        return f"step {self.step} {self.seconds:.0f}s tokens {self.tokens} lr {rate:.1e} loss {loss:.3f}\n  {accuracy}"

    def train(self) -> None:
        """Run until the budget is spent, reporting each minute and saving every few."""
        last_report, last_save, average = self.seconds, self.seconds, 0.0
        while True:
            if self.options.depth and self.step in LOGGED:
                self.depth.measure(self.model, self.step)
                print(f"depth measured at step {self.step}", self.report(average), flush=True)
            if self.done >= 1:
                break
            started = time.monotonic()
            average = 0.98 * average + 0.02 * self.advance()
            self.seconds += time.monotonic() - started
            if self.seconds - last_report > 60:
                print(self.report(average), flush=True)
                last_report = self.seconds
            if self.seconds - last_save > self.options.save_every:
                self.save()
                last_save = self.seconds
        self.save()
        print(self.report(average), flush=True)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5000)
    parser.add_argument("--steps", type=int, help="the budget in steps, in place of seconds")
    parser.add_argument("--depth", type=Path, metavar="FOLDER", help="measure depth while training, and keep it there")
    parser.add_argument("--save-every", type=float, default=240)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="a quarter faster; needs a C++ compiler")
    parser.add_argument("--out", type=Path, help="default: the bundled folder of that depth")
    parser.add_argument("--work", type=Path, help="default: OUT with .work appended")
    options = parser.parse_args()
    options.out = options.out or FOLDER / "models" / f"ed-demo-{options.layers}"
    options.work = options.work or options.out.with_suffix(".work")
    torch.set_num_threads(1)
    run = Run(options)
    if (options.work / "state.json").exists():
        run.resume()
    run.train()


if __name__ == "__main__":
    main()
