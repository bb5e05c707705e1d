"""Studies: a finished one opened in a new process, the plan of a million items, and what the runner costs over
the bare probes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from ed_core.errors import JobError

from . import Row

PROMPTS, PER_ITEM, LAYERS, TOKENS = 10_000, 8, 24, 64
OPEN_SECONDS, PLAN_SECONDS, GIGABYTE = 3.0, 60.0, 1 << 30
OVERHEAD, ROUNDS = 0.05, 5
OPEN = """
import resource, sys, time
begin = time.monotonic()
from ed_core.studies import tables
from ed_core.studies.items import open_folder
folder = open_folder(sys.argv[1])
rows = sum({how}.num_rows for name in ("verdict", "summary"))
seconds = time.monotonic() - begin
assert rows and "torch" not in sys.modules
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
MAKE = """
import sys
from pathlib import Path
from ed_core.studies import report
report.write(Path(sys.argv[1]))
"""
PLAN = """
import resource, sys, time
from pathlib import Path
begin = time.monotonic()
from ed_core.studies import plan, running
made = plan.of_file(sys.argv[1])
plan.write_plan(made, Path(sys.argv[2]))
todo = running.missing(made, Path(sys.argv[2]))
found = sum(map(len, todo.values()))
print(time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, found)
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="ed-bench-") as folder:
        here = Path(folder)
        return [*_opening(here), *_planning(here), _overhead(here)]


def _opening(here: Path) -> list[Row]:
    """A folder of a study of 10 000 prompt results: the tables that lie in it, and both made anew from the items."""
    made_up(here / "made", PROMPTS // 2)
    subprocess.run([sys.executable, "-c", MAKE, str(here / "made")], check=True)
    what = f"a study of {PROMPTS} prompt results opened, with aggregates and intervals"
    stored, anew = (
        _said([sys.executable, "-c", OPEN.replace("{how}", how), str(here / "made")])
        for how in ("tables.stored(folder, name)", "tables.TABLES[name](folder)")
    )
    ok = stored[0] < OPEN_SECONDS and stored[1] < GIGABYTE
    return [
        Row(what, _figure(*stored), f"< {OPEN_SECONDS:g} s, < 1 GiB", ok),
        Row("the same tables made anew from its items", _figure(*anew), "< 1 GiB", anew[1] < GIGABYTE),
    ]


def _planning(here: Path) -> list[Row]:
    """Ten models on 100 000 prompts, each an item of its own: made, written, and what is missing listed."""
    lines = (json.dumps({"text": f"{i} + {i % 7} =", "id": str(i)}) for i in range(100_000))
    (here / "many.jsonl").write_text("\n".join(lines), encoding="utf-8")
    twins = ", ".join(f'{{source = "ed-demo-8", control = "shuffled", seed = {i}}}' for i in range(10))
    text = f'name = "many"\nmodels = [{twins}]\nprobes = ["contributions"]\nchunk = 1\n'
    (here / "many.toml").write_text(text + '[[sets]]\nname = "s"\nfile = "many.jsonl"\n', encoding="utf-8")
    seconds, peak, n = _said([sys.executable, "-c", PLAN, str(here / "many.toml"), str(here / "many")])
    ok = n == 1_000_000 and seconds < PLAN_SECONDS and peak < GIGABYTE
    return [Row(f"the plan of {n:.0f} items", _figure(seconds, peak), "< 60 s, < 1 GiB", ok)]


def _overhead(here: Path) -> Row:
    """The runner against `compute.run` on the same prompts by the same probes, in turn, CPU seconds of one process."""
    from ed_core.studies import plan, running, study
    from ed_core.types import Prompt
    from ed_core.work import compute

    made = plan.make(study.parse(STUDY), here)
    opened = running.opened_models()
    model = opened.get(made.models[0].spec)
    probes = [entry.make() for entry in made.study.probes]
    prompts = [example.prompt for example in made.sets[0].examples]

    def bare() -> None:
        for prompt in prompts:
            for probe in probes:
                compute.run(model, probe.request(model.spec, Prompt(prompt.text, prompt.answer)))

    def study_of(out: Path) -> None:
        plan.write_plan(made, out)
        engine = running.Here(made, out)
        engine._opened = opened
        done = running.run(made, out, engine=lambda *_: engine)
        if done.counts[running.COMPUTED] != made.n_items:
            raise JobError(f"The study did not end well: {done}.")

    bare()
    ratios = []
    for i in range(ROUNDS):
        begin = time.process_time()
        bare()
        between = time.process_time()
        study_of(here / f"round-{i}")
        ratios.append((time.process_time() - between) / (between - begin) - 1)
    found = median(ratios)
    return Row("the runner over the bare probes, ed-demo-16, 20 prompts", f"{found:.1%}", "<= 5 %", found <= OVERHEAD)


STUDY = """name = "sums"
models = ["ed-demo-16"]
probes = ["contributions", "logit_lens", {name = "layer_skip", mode = "future"}]
[[sets]]
name = "sums"
bundled = "sum_mod10"
per_level = 4
"""


def made_up(out: Path, prompts: int) -> None:
    """A finished study's folder of two models that were never run: sums of chance numbers, in the form of items."""
    import numpy as np

    from ed_core.studies import items, plan
    from ed_core.studies.sets import Example, PromptSet
    from ed_core.studies.study import parse
    from ed_core.types import Prompt

    text = f'name = "made-up"\nmodels = ["a", "b"]\nprobes = ["contributions", "logit_lens"]\nchunk = {PER_ITEM}\n'
    written = parse(text + '[[sets]]\nname = "s"\nbundled = "copy"\n')
    examples = tuple(Example(Prompt(f"{i} =", id=str(i))) for i in range(prompts))
    chunks = tuple(plan._chunks(written, [plan._identity(entry) for entry in written.probes], examples))
    models = tuple(plan.StudyModel(label, None, plan._digest([label])) for label in ("a", "b"))
    made = plan.Plan(written, models, (PromptSet("s", examples),), (chunks,))
    plan.write_plan(made, out)
    told = json.loads((out / plan.PLAN).read_text(encoding="utf-8"))
    for model in told["models"]:
        model["n_layers"] = LAYERS
    (out / plan.PLAN).write_text(json.dumps(told), encoding="utf-8")
    chance = np.random.default_rng(0)
    for model in models:
        for chunk in chunks:
            table = _made_up_item(chance, len(chunk.examples), written)
            items.write(out, plan.Item(model, chunk), table)


def _made_up_item(chance, n: int, written):
    """One item's table with the columns that those probes write."""
    import numpy as np
    import pyarrow

    from ed_core.studies.items import CURVES

    columns = {"logit_lens.echo": chance.random(n)}
    columns |= {f"contributions.{name}": np.ones(n, np.int64) for name in ("n_sinks", "first_is_sink")}
    for entry in written.probes:
        probe = entry.make()
        columns[f"{entry.name}.n_tokens"] = np.full(n, TOKENS)
        columns[f"{entry.name}.n_no_sinks"] = np.full(n, TOKENS - 1)
        columns[f"seconds.{entry.name}"] = chance.random(n)
        for spec in probe.measures:
            if spec.reduce == "token_mean":
                deep = entry.name == "logit_lens" or spec.name == "resid_norm"
                shape = [LAYERS + deep] * (len(spec.dims) - 1)
                columns[f"{entry.name}.{spec.name}.sum"] = TOKENS * chance.random((n, *shape))
                columns[f"{entry.name}.{spec.name}.first"] = chance.random((n, *shape))
                if spec.name in CURVES[entry.name]:
                    columns[f"{entry.name}.{spec.name}.no_sinks"] = TOKENS * chance.random((n, *shape))
    shapes = {name: values.shape[1:] for name, values in columns.items()}
    table = pyarrow.table({name: _column(values) for name, values in sorted(columns.items())})
    return table.replace_schema_metadata({"shapes": json.dumps(shapes), "certificate": "{}"})


def _column(values):
    import pyarrow

    if values.ndim == 1:
        return pyarrow.array(values)
    return pyarrow.array(list(values.reshape(len(values), -1)), pyarrow.list_(pyarrow.float64()))


def _said(command: list[str]) -> list[float]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in done.stdout.split()]


def _figure(seconds: float, peak: float) -> str:
    return f"{seconds:.1f} s, {peak / GIGABYTE:.2f} GiB"
