"""Does fine-tuning change how much of the depth is used? `python -m tools.finetune train --out FOLDER` trains SmolLM2
with LoRA on sums of two numbers, once with the loss on all tokens and once on the answers alone, from one seed: the
same documents in the same order. What is finished is not trained again. `python -m tools.finetune compare --out FOLDER`
measures what changed, and `table` writes it.

Documents are like the usual form of the bundled set `addition`: its heading, then lines of one length with their
answers. Measured before, after, and by `DepthCallback` on the way (a folder that opens as a study): the share of
prompts solved by level, and mean depths (`ed_core.compare`), beside those of five untrained twins. Csordás et al. 2025
(arXiv 2505.13898) found that fine-tuning leaves depth use as it is."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

import ed_core
from ed_core.depth.wording import printed
from ed_core.models.opening import load_model
from ed_core.sources.bundled import SETS
from ed_core.training import DepthCallback
from ed_core.types import ProbeResult, Prompt
from ed_core.work.resolve import resolve

from .tasks import Addition

BASE = "smollm2"
LOSSES = ("all", "answer")
BATCH, LINES = 8, 6  # documents a step, lines with an answer in each
RANK, RATE, WARM = 16, 1e-3, 0.05
CLIP = 1.0
DURING = 8  # prompts measured while it trains, one of each form
EACH = 16  # prompts of each level measured before and after
TWINS = 5  # seeds of the untrained twin
ROW = ("before", "after", "difference", "low", "high")


def document(task: Addition, rng: random.Random, tokenizer: Any) -> tuple[list[int], list[bool]]:
    """Token ids, and which of them are an answer or the line's end after it."""
    rung = rng.choice(list(task.rungs(False)))
    ids = tokenizer(task.heading(False)).input_ids
    marks = [False] * len(ids)
    for _ in range(LINES):
        (ask,) = task.line(task.sample(rng, rung), False, rng)
        for text, mark in ((ask.text, False), (f"{ask.answer}\n", True)):
            more = tokenizer(text).input_ids
            ids, marks = ids + more, marks + [mark] * len(more)
    return ids, marks


def batch(step: int, seed: int, tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, which are answers, and which are padding, `(BATCH, length)`; settled by step and seed."""
    rng = random.Random(f"{seed} {step}")
    rows = [document(Addition(), rng, tokenizer) for _ in range(BATCH)]
    longest = max(len(ids) for ids, _ in rows)
    shape = (BATCH, longest)
    ids, marks, there = (torch.zeros(shape, dtype=kind) for kind in (torch.long, torch.bool, torch.bool))
    for i, (row, mark) in enumerate(rows):
        ids[i, : len(row)], marks[i, : len(row)], there[i, : len(row)] = torch.tensor(row), torch.tensor(mark), True
    return ids, marks, there


def rate(done: float) -> float:
    """The learning rate's factor at this share of the steps: up, then down in a straight line to zero."""
    return min(done / WARM, (1 - done) / (1 - WARM))


def adapted() -> tuple[Any, Any]:
    """The base with fresh LoRA weights, and its tokenizer."""
    base = load_model(resolve(BASE, "fp32"))
    torch.manual_seed(0)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(base.hf, lora), base.tokenizer


def train(loss_on: str, steps: int, seed: int, out: Path) -> None:
    """One fine-tuning, measured on the way; its results go to `out`."""
    model, tokenizer = adapted()
    model.train()
    weights = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
    few = [p for p in problems() if level(p) == "2"][:DURING]
    depth = DepthCallback(few, tokenizer=tokenizer, out=out / "depth", share=None)
    due = {0, *(4**k for k in range(10) if 4**k < steps), steps}
    (out / "log.jsonl").unlink(missing_ok=True)
    began = time.perf_counter()
    for step in range(steps + 1):
        if step in due:
            depth.measure(model, step, always=True)
        if step == steps:
            break
        ids, marks, there = batch(step, seed, tokenizer)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=there.long(), use_cache=False).logits[:, :-1]
        losses = F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")
        answers, rest = losses[marks[:, 1:]].mean(), losses[there[:, 1:] & ~marks[:, 1:]].mean()
        (answers if loss_on == "answer" else losses[there[:, 1:]].mean()).backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate(step / steps)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            told = {
                "step": step,
                "answers": answers.item(),
                "rest": rest.item(),
                "seconds": time.perf_counter() - began,
            }
            with (out / "log.jsonl").open("a") as log:
                log.write(json.dumps(told) + "\n")
    model.eval()
    model.save_pretrained(out / "adapter")
    (out / "model.json").write_text(json.dumps({"steps": steps, "seed": seed, "seconds": time.perf_counter() - began}))


def problems() -> list[Prompt]:
    """Of the bundled set's prompts the first of each level, as many of each form: what everything is measured on."""
    of_level: dict[str, list[Prompt]] = {}
    for prompt in ed_core.read_jsonl(SETS / "addition.jsonl"):
        of_level.setdefault(level(prompt), []).append(prompt)
    return [prompt for each in of_level.values() for prompt in each[:EACH]]


def level(prompt: Prompt) -> str:
    """How many digits the numbers of a sum have."""
    return prompt.id.partition("-")[0]


def lens_of(model: Any) -> list[ProbeResult]:
    """The logit lens of every prompt of the set."""
    return list(model.run(ed_core.LogitLens(), problems()))


def solved(lens: list[ProbeResult]) -> dict[str, float]:
    """The share of prompts, by level, whose answer's tokens are all the model's best guess."""
    found: dict[str, list[bool]] = {}
    for result, prompt in zip(lens, problems(), strict=True):
        best, start = result["top_ids"][-1, :, 0], result.answer_start
        assert start is not None
        right = all(int(best[i - 1]) == result.token_ids[i] for i in range(start, result.n_tokens))
        found.setdefault(level(prompt), []).append(right)
    return {level: float(np.mean(each)) for level, each in found.items()}


def depths(before: list[ProbeResult], after: list[ProbeResult]) -> dict[str, dict[str, float]]:
    """Mean depths over all prompts before and after, and the difference with its 90 % interval, by measure."""
    table = ed_core.compare(before, after, problems())
    whole = table[table.prompt == "all prompts"].set_index("by")
    return {str(by): {name: float(row[name]) for name in ROW} for by, row in whole.iterrows()}


def compare(out: Path) -> None:
    """What training changed, against the base, and how deep untrained twins are, to `out/found.json`."""
    before = lens_of(ed_core.open(BASE))
    told: dict[str, Any] = {"base": {"solved": solved(before)}, "twins": [], "after": {}}
    for loss_on in LOSSES:
        folder = out / loss_on / "adapter"
        if folder.is_dir():
            after = lens_of(ed_core.open(BASE, adapter=str(folder)))
            told["after"][loss_on] = {"solved": solved(after), "depths": depths(before, after)}
            told["after"][loss_on] |= json.loads((out / loss_on / "model.json").read_text())
            (out / "found.json").write_text(json.dumps(told, indent=1))
    for seed in range(TWINS):
        twin = lens_of(ed_core.open(BASE, control="untrained", control_seed=seed))
        told["twins"].append({by: row["after"] for by, row in depths(before, twin).items()})
        (out / "found.json").write_text(json.dumps(told, indent=1))


def table(out: Path) -> Iterator[str]:
    """The lines of a table in Markdown: solved and mean depths, base, each loss, twins."""
    told = json.loads((out / "found.json").read_text())
    yield "| SmolLM2 | solved, 1 to 3 digits | mean depth, KL | mean depth, overlap |"
    yield "|---|---|---|---|"
    any_of = next(iter(told["after"].values()))["depths"]
    base = [f"{any_of[by]['before']:.2f}" for by in ("kl", "overlap")]
    yield f"| as published | {_shares(told['base']['solved'])} | {base[0]} | {base[1]} |"
    for loss_on, after in told["after"].items():
        cells = []
        for d in (after["depths"][by] for by in ("kl", "overlap")):
            more, low, high = (printed(d[name], "+.2f") for name in ("difference", "low", "high"))
            cells.append(f"{d['after']:.2f}; {more} ({low} to {high})")
        name = {"all": "all tokens", "answer": "answers alone"}[loss_on]
        yield f"| fine-tuned, loss on {name} | {_shares(after['solved'])} | {cells[0]} | {cells[1]} |"
    twins = [[t[by] for t in told["twins"]] for by in ("kl", "overlap")]
    cells = [f"{min(t):.2f} to {max(t):.2f}" for t in twins if t]
    yield f"| {len(twins[0])} untrained twins | – | {' | '.join(cells)} |"


def _shares(by_level: dict[str, float]) -> str:
    return ", ".join(f"{share:.0%}" for share in by_level.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "compare", "table"))
    parser.add_argument("--out", type=Path, required=True, help="the folder of both fine-tunings")
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=LOSSES)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.what == "train":
        for loss_on in asked.losses:
            if not (asked.out / loss_on / "model.json").exists():
                (asked.out / loss_on).mkdir(parents=True, exist_ok=True)
                train(loss_on, asked.steps, asked.seed, asked.out / loss_on)
    elif asked.what == "compare":
        compare(asked.out)
    else:
        print(*table(asked.out), sep="\n")


if __name__ == "__main__":
    main()
