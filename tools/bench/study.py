"""Studies: a finished one opened in a new process, the plan of a million items, and the runner's cost on top of the
bare probes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow

from ed_core.errors import JobError
from ed_core.studies import items, plan, report, running
from ed_core.studies.study import parse
from ed_core.work import compute

from . import Row
from .random_model import timed

PROMPTS, PER_ITEM, LAYERS, TOKENS = 10_000, 8, 24, 64
ROUNDS, GIBIBYTE = 5, 1 << 30
MEASURED = """
import re, sys, time
from pathlib import Path
start = time.monotonic()
{code}
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())  # ru_maxrss counts the parent's memory too
print(time.monotonic() - start, int(peak[1]) * 1024)
"""
OPEN = """
from ed_core.studies import tables
from ed_core.studies.items import open_folder
folder = open_folder(sys.argv[1])
assert tables.stored(folder).num_rows and tables.summary(folder).num_rows and "torch" not in sys.modules
"""
PLAN = """
from ed_core.studies import plan, running
study = plan.of_file(sys.argv[1])
plan.write_plan(study, Path(sys.argv[2]))
assert sum(map(len, running.missing(study, Path(sys.argv[2])).values())) == 1_000_000
"""
STUDY = """name = "sums"
models = ["ed-demo-16"]
probes = ["contributions", "logit_lens", {name = "layer_skip", mode = "future"}]
[[sets]]
name = "sums"
bundled = "sum_mod10"
per_level = 4
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="ed-bench-") as folder:
        here = Path(folder)
        finished_study(here / "made", PROMPTS // 2)
        report.write(here / "made")
        return [
            process_row(f"a study of {PROMPTS} prompt results opened", 3, OPEN, here / "made"),
            process_row("the plan of 1 000 000 items", 60, PLAN, large_study(here), here / "many"),
            overhead(here),
        ]


def process_row(what: str, limit: float, code: str, *arguments: Path) -> Row:
    """Seconds and memory of some code in a new process."""
    command = [sys.executable, "-c", MEASURED.format(code=code), *map(str, arguments)]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, peak = map(float, process.stdout.split())
    measured = f"{seconds:.1f} s, {peak / GIBIBYTE:.2f} GiB"
    return Row(what, measured, f"< {limit} s, < 1 GiB", seconds < limit and peak < GIBIBYTE)


def large_study(here: Path) -> Path:
    """The file of a study of ten models on 100 000 prompts, one prompt per item."""
    prompts = (json.dumps({"text": f"{i} + {i % 7} =", "id": str(i)}) for i in range(100_000))
    (here / "many.jsonl").write_text("\n".join(prompts), encoding="utf-8")
    twins = ", ".join(f'{{source = "ed-demo-8", control = "shuffled", seed = {i}}}' for i in range(10))
    head = f'name = "many"\nmodels = [{twins}]\nprobes = ["contributions"]\nchunk = 1\n'
    file = here / "many.toml"
    file.write_text(head + '[[sets]]\nname = "s"\nfile = "many.jsonl"\n', encoding="utf-8")
    return file


def overhead(here: Path) -> Row:
    """The runner and `compute.run` on the same prompts with the same probes, in turn, CPU seconds of one process."""
    made = plan.make(parse(STUDY), here)
    models = compute.Models()
    model = models.get(made.models[0].spec)
    prompts = [example.prompt for example in made.sets[0].examples]
    requests = [entry.make().request(model.spec, prompt) for prompt in prompts for entry in made.study.probes]

    def bare() -> None:
        for request in requests:
            compute.run(model, request)

    def study(out: Path) -> None:
        plan.write_plan(made, out)
        done = running.run(made, out, engine=lambda *where: running.Here(*where, opened=models))
        if done.counts[running.COMPUTED] != made.n_items:
            raise JobError(f"The study did not finish: {done}.")

    bare()
    pairs = [(timed(bare)[0], timed(lambda: study(here / f"round-{i}"))[0]) for i in range(ROUNDS)]
    more = median(whole / alone - 1 for alone, whole in pairs)
    return Row("the runner over the bare probes, ed-demo-16, 20 prompts", f"{more:.1%}", "<= 5 %", more <= 0.05)


def finished_study(out: Path, prompts: int) -> None:
    """The folder of a finished study of two models that were never run: random sums in the form of items."""
    text = 'name = "made-up"\nmodels = ["ed-demo-8", "ed-demo-16"]\nprobes = ["contributions", "logit_lens"]\n'
    lines = "".join(json.dumps({"text": f"{i} =", "id": str(i)}) + "\n" for i in range(prompts))
    (out.parent / "made.jsonl").write_text(lines, encoding="utf-8")
    study = parse(text + f'chunk = {PER_ITEM}\n[[sets]]\nname = "s"\nfile = "made.jsonl"\n')
    made = plan.make(study, out.parent)
    plan.write_plan(made, out)
    file = out / plan.PLAN
    written = json.loads(file.read_text(encoding="utf-8"))
    for model in written["models"]:
        model["n_layers"] = LAYERS
    file.write_text(json.dumps(written), encoding="utf-8")
    rng = np.random.default_rng(0)
    for model in made.models:
        for chunk in made.chunks[0]:
            items.write(out, plan.Item(model, chunk), random_item(rng, len(chunk.examples), study))


def random_item(rng: np.random.Generator, n: int, study) -> pyarrow.Table:
    """One item's table with the columns that those probes write."""
    columns = {"logit_lens.echo": rng.random(n)}
    columns |= {f"contributions.{name}": np.ones(n, np.int64) for name in ("n_sinks", "first_is_sink")}
    for entry in study.probes:
        columns[f"{entry.name}.n_tokens"] = np.full(n, TOKENS)
        columns[f"{entry.name}.n_no_sinks"] = np.full(n, TOKENS - 1)
        columns[f"seconds.{entry.name}"] = rng.random(n)
        for spec in entry.make().measures:
            if spec.reduce != "token_mean":
                continue
            depths = LAYERS + (entry.name == "logit_lens" or spec.name == "resid_norm")
            shape = (n, *[depths] * (len(spec.dims) - 1))
            columns[f"{entry.name}.{spec.name}.sum"] = TOKENS * rng.random(shape)
            columns[f"{entry.name}.{spec.name}.first"] = rng.random(shape)
            if spec.name in items.CURVES[entry.name]:
                columns[f"{entry.name}.{spec.name}.no_sinks"] = TOKENS * rng.random(shape)
    shapes = {name: values.shape[1:] for name, values in columns.items()}
    table = pyarrow.table({name: column(values) for name, values in sorted(columns.items())})
    return table.replace_schema_metadata({"shapes": json.dumps(shapes), "certificate": "{}"})


def column(values: np.ndarray) -> pyarrow.Array:
    if values.ndim == 1:
        return pyarrow.array(values)
    return pyarrow.array(list(values.reshape(len(values), -1)), pyarrow.list_(pyarrow.float64()))
