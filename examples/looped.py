"""Does a model with shared layers go deeper on longer problems?

    python examples/looped.py [--prompts 8]

A chain applies one to four fixed permutations of the ten digits from left to right. `ed-loop-4x4` runs its four layers
four times, `ed-plain-16` has sixteen layers of its own, `ed-plain-4` only four. Printed: the average depth (KL, where
the answer is predicted), in layers of the whole run, and the share of chains answered correctly. Where a model no
longer solves a chain, its depth is small again: depth goes with solving it.

What was found with more prompts and seeds is in docs/findings.md."""

from __future__ import annotations

import argparse

import pandas as pd

import ed_core
from ed_core.depth.sample import Sample
from ed_core.depth.verdict import verdict
from ed_core.models.bundled import SETS

MODELS = ("ed-loop-4x4", "ed-plain-16", "ed-plain-4")


def row(name: str, prompts: list[ed_core.Prompt]) -> dict[str, float]:
    """Average depth and share of correct answers of one model on some prompts."""
    results = ed_core.open(name).run(ed_core.LogitLens(), prompts)
    found = verdict(Sample.of(lens=results, of="answer", forms=[prompt.form for prompt in prompts]))
    correct = [r.top_ids[-1, r.answer_start - 1, 0] == r.token_ids[r.answer_start] for r in results]
    return {f"{name}: depth": found.means["kl"].depth, "correct": sum(correct) / len(correct)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=8, help="of each length")
    n = parser.parse_args().prompts
    chains = ed_core.read_jsonl(SETS / "chains.jsonl")
    rows = []
    for length in "1234":
        prompts = [prompt for prompt in chains if prompt.id.startswith(f"{length}-")][:n]
        columns: dict[str, float] = {}
        for name in MODELS:
            found = row(name, prompts)
            columns |= {f"{name}": found[f"{name}: depth"], f"{name} correct": found["correct"]}
        rows.append({"chains of": length} | columns)
    print(pd.DataFrame(rows).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
