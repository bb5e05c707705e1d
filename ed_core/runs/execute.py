"""A run carried out: what the commands of the shell and the processes of the browser do alike. What came of it is
printed; how far it is goes to the writer of statuses."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil

from .. import disk
from ..errors import ParameterError, StudyError
from ..machine import gpus
from ..notebook import model as opened
from ..sources import controls, remote, weights
from ..sources.sizes import PRECISIONS, require_gradients
from ..sources.specs import location, named, read_for
from ..types import ModelSpec, Prompt
from . import launch
from .run import (
    RUNNING,
    AuditRun,
    CardRun,
    ClaimsRun,
    FitRun,
    Opened,
    ReproduceRun,
    Spec,
    Status,
    Statuses,
    StudyRun,
)

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..studies.running import MakesEngine


def execute(spec: Spec, folder: Path | None, statuses: Statuses) -> int:
    """Carry out a run; returns the exit code, 1 where a part of it failed. `folder`: where a run of many files writes
    them; None for a fit and an audit, which write the file that their spec names."""
    with statuses.of_run():
        if isinstance(spec, (FitRun, AuditRun)):
            return _fit(spec, statuses) if isinstance(spec, FitRun) else _audit(spec, statuses)
        if folder is None:
            raise ParameterError(f"A run of kind {spec.kind} has no folder; give --out.")
        if isinstance(spec, StudyRun):
            return _study(spec, folder, statuses, statuses.tell)
        if isinstance(spec, ReproduceRun):
            with TemporaryDirectory() if spec.dry_run else contextlib.nullcontext(folder) as place:
                return _reproduce(spec, Path(place), statuses)
        return _claims(spec, folder, statuses) if isinstance(spec, ClaimsRun) else _card(spec, folder, statuses)


def _said(statuses: Statuses, line: str) -> None:
    """Print what came of the run, and keep it as the message of its last status."""
    print(line)
    statuses.message = line


# ---------------------------------------------------------------- in the shell


def in_shell(spec: Spec, out: str | Path | None = None, lines: bool = False, kept: bool = True) -> int:
    """Carry out a run at once, in this process; returns the exit code. `lines`: every per cent on a line of its own;
    `kept`: write its spec and its statuses into the folder `out`."""
    folder = None if out is None else disk.require_out_folder(out)

    def first() -> bool:
        if folder is None or launch.Run(folder).running:  # what it is told of stays the run that was there
            return False
        (folder / launch.LOG).unlink(missing_ok=True)  # an earlier run's
        launch.note(folder, spec, psutil.Process())
        return True

    with shown(lines) as show, launch.of_shell(folder):
        return execute(spec, folder, Statuses(folder if kept else None, show, first, held=True))


@contextlib.contextmanager
def shown(lines: bool) -> Iterator[Callable[[Status], None]]:
    """What shows statuses: a bar on a terminal, `lines` where they are asked for."""
    from tqdm import tqdm

    bar: tqdm | None = None
    said = -1

    def show(status: Status) -> None:
        nonlocal bar, said
        done = int(100 * status.share)
        if status.state != RUNNING or not (done or status.what):
            return
        if lines and done > said:
            said = done
            print(f"{done} %{f' · {status.what}' if status.what else ''}", file=sys.stderr, flush=True)
        if bar is None:
            bar = tqdm(total=100, disable=lines or not sys.stderr.isatty(), unit="%")
        if status.what:
            bar.set_description(status.what, refresh=False)
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


# ---------------------------------------------------------------- who computes


def device_of(name: str) -> str:
    """The device that a name stands for."""
    return opened.on(name)[0]


def in_processes(n: int, device: str) -> contextlib.AbstractContextManager[MakesEngine | None]:
    """`n` processes of this machine; None within where this process computes."""
    from . import processes

    if n == 1:
        return contextlib.nullcontext()
    found = device_of(device)
    n_gpus = len(gpus()) if found == "cuda" else 0
    if found != "cpu" and n > n_gpus:
        there = f"{n_gpus} GPU{'s are' if n_gpus != 1 else ' is'} here" if found == "cuda" else f"this runs on {found}"
        raise ParameterError(
            f"--processes is {n}, and {there}; processes have a GPU each: give --device cuda and at most as many as "
            "there are GPUs, or --device cpu."
        )
    return processes.Pool(n)


def _computing(spec: StudyRun) -> contextlib.AbstractContextManager[MakesEngine | None]:
    from . import processes

    if spec.engine == "here":
        if spec.address:
            raise ParameterError("--address is of a Ray cluster; give --engine ray as well.")
        return in_processes(spec.processes, spec.device)
    if spec.processes != 1:
        raise ParameterError("--processes is of a study that runs here; leave it or --engine ray out.")
    return contextlib.nullcontext(partial(processes.OnRay, address=spec.address))


# ---------------------------------------------------------------- studies


def _study(spec: StudyRun, out: Path, statuses: Statuses, tell: Callable[[float, str], None]) -> int:
    from ..studies import bundle, report, running
    from ..studies import plan as planning
    from ..studies.items import open_folder
    from ..work.estimate import about

    file, device, computing = Path(spec.file), device_of(spec.device), _computing(spec)
    plan = planning.of_file(spec.file, device, None if spec.merge or spec.dry_run else opened.fetch)
    usable, trouble = plan.usable, {m.label: m.trouble for m in plan.models if m.trouble}
    if not usable:
        raise ParameterError(
            f"No model of {file.name} can be used. {'; '.join(f'{k}: {v}' for k, v in trouble.items())}"
        )
    for label, why in trouble.items():
        print(f"ed_core: {label} failed: {why}", file=sys.stderr)
    expected = planning.seconds_of(plan, device)
    told = "" if expected is None else f", {about(expected[0])} by the estimate if all is computed"
    size = [(len(usable), "model"), (plan.n_prompts, "prompt"), (plan.n_items, "item")]
    models, prompts, parts = (f"{n} {what}{'s' * (n != 1)}" for n, what in size)
    print(f"{plan.study.name}: {models} × {prompts}, {parts}{told}", flush=True)
    if spec.dry_run:
        return 1 if trouble else 0
    names = (planning.PLAN, *bundle.TABLES)
    disk.require_apart([out / name for name in names], [file.parent / one.file for one in plan.study.sets if one.file])
    disk.require_room("The study", planning.bytes_of(plan), out, "--out")
    planning.write_plan(plan, out)
    statuses.admit()
    lacking = 0
    if spec.merge:
        made = open_folder(out)
        outcome = running.Outcome(failed=made.failures() | trouble)
        there, planned = (sum(counts) for counts in zip(*made.progress().values()))
        if lacking := planned - there:
            print(
                f"ed_core: {lacking} of {planned} parts are not computed; run their shards, then --merge again.",
                file=sys.stderr,
            )
    else:
        with computing as engine:
            outcome = running.run(
                plan,
                out,
                spec.shard,
                lambda model, done, total: tell(done / max(total, 1), model.label),
                engine=engine or running.Here,
            )
    _said(statuses, ", ".join(f"{n} {what}" for what, n in outcome.counts.items()))
    for label, why in outcome.failed.items():
        if label not in trouble:
            print(f"ed_core: {label} failed: {why}", file=sys.stderr)
    if spec.shard == (1, 1):
        measures = report.write(out)
        _said(statuses, f"{out}: summary and verdict (.parquet, .csv), report.md; measures {measures[:16]}")
    return 1 if outcome.failed or lacking else 0


def _reproduce(spec: ReproduceRun, out: Path, statuses: Statuses) -> int:
    from ..studies import reproduce as protocols
    from ..studies.items import open_folder
    from ..studies.study import write

    paper = protocols.find(spec.paper)
    if spec.limit is not None and spec.limit < 1:
        raise ParameterError(f"--limit is {spec.limit}; expected 1 or more.")
    device = device_of(spec.device)
    precision, why = protocols.precision_of(spec.precision, paper.precision, device)
    models = [protocols.model_of(text, precision) for text in spec.models]
    sets = protocols.chosen(paper, spec.sets, models[0].source)
    protocols.check_sets(sets, models[0].source)
    parts = paper.parts(models, sets, spec.limit)
    code = 0
    entries: list[protocols.Entry] = []
    notes = [why, *protocols.differences(paper, sets, spec.limit)]
    print("\n".join(notes), flush=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, one in parts.items():
            disk.write(out / f"{name}.toml", write(one).encode())
    except OSError as error:
        raise StudyError(f"The folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error
    computed = spec.model_dump(include={"engine", "address", "processes", "dry_run"})
    for i, name in enumerate(parts):

        def tell(share: float, what: str, i: int = i, name: str = name) -> None:
            statuses.tell((i + share) / len(parts), f"{name}, {what}")

        part = StudyRun(file=str(out / f"{name}.toml"), device=device, **computed)
        code = max(code, _study(part, out / name, statuses, tell))
        if not spec.dry_run:
            made = open_folder(out / name)
            entries += paper.entries(made)
            notes += [f"{label} failed ({name}): {failed}" for label, failed in made.failures().items()]
    if spec.dry_run:
        return code
    disk.write(out / "report.md", protocols.markdown(paper, entries, notes).encode())
    print("\n".join(["", *protocols.table(entries), ""]))
    _said(statuses, f"{protocols.counted(entries)}; {out / 'report.md'}")
    return code


# ---------------------------------------------------------------- claims and cards


@contextlib.contextmanager
def _fetched(spec: ClaimsRun | CardRun, out: Path, files: Iterable[str]) -> Iterator[MakesEngine | None]:
    """Who computes, once the models are here; refused before that are processes that there cannot be, and prompts in
    the place of one of the `files` that are written."""
    asked = spec.asked
    disk.require_apart([out / name for name in files], [asked.prompts])
    computing = in_processes(spec.processes, asked.device)
    for source in (asked.model, *asked.also):
        opened.fetch(source)
    with computing as engine:
        yield engine


def _claims(spec: ClaimsRun, out: Path, statuses: Statuses) -> int:
    from ..claims import running
    from ..claims.finding import counted, standing

    spec.asked.chosen(), spec.asked.entry()  # refused before anything is fetched
    with _fetched(spec, out, (running.FOUND, running.REPORT)) as engine:
        told = running.run(spec.asked, out, statuses.tell, engine=engine)
    width = max(len(f.id) for f in told.findings)
    for one in told.findings:
        values = "; ".join(f"{q.name} {q.value.told}" for q in one.judging if q.value)
        print(f"{one.id:<{width}}  {one.verdict:<19}  {values or one.reason}")
    if stand := standing(told.findings):
        print(f"{stand}.")
    _said(statuses, f"Checked: {counted(told.findings)}; {out / running.REPORT}, {out / running.FOUND}")
    return 0


def _card(spec: CardRun, out: Path, statuses: Statuses) -> int:
    from ..cards import card, making, words

    spec.asked.check()  # before anything is fetched
    with _fetched(spec, out, (card.FILE, card.HTML, card.MARKDOWN)) as engine:
        told = making.make(spec.asked, out, statuses.tell, engine=engine)
    print(words.headline(told))
    print(f"{len(told.claims)} claims: {words.claims(told)}")
    _said(statuses, f"Card: {out / card.HTML}, {out / card.MARKDOWN}, {out / card.FILE}")
    return 0


# ---------------------------------------------------------------- fits


def of_fit(spec: FitRun) -> tuple[list[Prompt], list[Prompt] | None, int | None]:
    """What a fit reads: prompts, held-out ones, bytes of memory. Refused is what can be told before a model is here."""
    from ..fits import shards
    from ..prompts import read_jsonl
    from ..sweeps.budget import parse

    expected = shards.ENDING if spec.shard else ".safetensors" if spec.fit in ("affine", "jacobian") else ".npz"
    models = [one for one in (spec.model, spec.other) if one is not None]
    inputs = [spec.prompts, spec.test, *spec.merge, *(f for one in models for f in read_for(one.source, one.adapter))]
    disk.require_out(spec.out, inputs, expected=expected)
    if spec.rank is not None and spec.rank < 1:
        raise ParameterError(f"--rank is {spec.rank}; expected 1 at least.")
    if spec.rank and spec.shard:
        raise ParameterError("--rank is of the lens that --merge writes, a shard has none; leave it out here.")
    for one in models:
        remote.require_here(one.source)
        if one.adapter and (folder := Path(location(named(one.adapter)))).is_dir():  # others are downloaded first
            weights.check_base(folder, one.source)
        twin = replace(named(one.source), adapter=one.adapter, control=one.control, control_seed=one.control_seed)
        controls.check(twin if one.precision == "auto" else replace(twin, precision=one.precision))
        device_of(one.device)
    if spec.fit == "jacobian":
        require_gradients(spec.model.precision, "the Jacobian lens")
    from ..fits import jacobian, streams  # torch, which what is refused above need not wait for

    if spec.fit == "jacobian" and spec.max_tokens <= jacobian.FIRST + 1:
        raise ParameterError(f"--max-tokens is {spec.max_tokens}; expected {jacobian.FIRST + 2} at least.")
    prompts, test, memory = read_jsonl(spec.prompts), read_jsonl(spec.test) if spec.test else None, parse(spec.memory)
    used, _ = streams.split(prompts, test)
    shards.some_of(spec.shard or (1, 1), len(used))
    return prompts, test, memory


def _fit(spec: FitRun, statuses: Statuses) -> int:
    from ..depth import lenses, matching

    prompts, test, memory = of_fit(spec)
    from ..fits import affine, jacobian, maps, measured, replacement

    out, is_lens = Path(spec.out), spec.fit in ("affine", "jacobian")
    fits = {"affine": affine, "jacobian": jacobian, "maps": maps, "replacement": replacement}
    fitting: Any = fits[spec.fit]
    models = list(_models(spec))
    own: dict[str, Any] = {"max_tokens": spec.max_tokens} if spec.fit == "jacobian" else {}
    own["memory"] = memory or (measured.BYTES if spec.fit == "affine" else None)
    if not is_lens:
        print(f"{fitting.plan(*models, memory).sentence()}", file=sys.stderr)
    if spec.shard:
        some = fitting.sum_up(*models, prompts, out, spec.shard, test, statuses.tell, **own)
        summed = f"the prompts {some.start + 1} to {some.stop} are summed up"
        _said(statuses, f"{out}: {summed}; with the other shards' files, --merge it.")
        return 0
    own |= {"rank": spec.rank} if spec.fit == "affine" else {}
    made = fitting.fit(*models, prompts, out, test, statuses.tell, merge=[Path(file) for file in spec.merge], **own)
    if is_lens:
        _said(statuses, f"{out}: {lenses.certified(made['kind'], made)}")
        return 0
    notes = "".join(f" {note}" for note in made.certificate["notes"])
    _said(statuses, f"{out}: fitted on {made.tokens} tokens, judged on {made.test_tokens} held-out ones.{notes}")
    if spec.fit == "maps":
        print(f"{matching.sentence(made)} {matching.reasons(made)}")
    else:
        print(matching.said_of_replacement(made))
    return 0


def _models(spec: FitRun) -> Iterator[LanguageModel]:
    from ..models.opening import open_model

    for model in [resolved(one) for one in (spec.model, spec.other) if one is not None]:
        yield open_model(model)


def resolved(model: Opened) -> ModelSpec:
    """The model that is meant; what `auto` came to is said on stderr."""
    given = model.model_dump(exclude={"source", "precision", "device", "adapter"})
    found = opened.spec_of(model.source, model.precision, model.device, model.adapter, **given)
    if found.why:
        print(f"ed_core: precision {found.why}", file=sys.stderr)
    return found


# ---------------------------------------------------------------- audits


def _audit(spec: AuditRun, statuses: Statuses) -> int:
    import numpy as np

    from ..depth import audit as auditing
    from ..prompts import read_jsonl
    from ..results.store import Store
    from ..sources.bundled import load_prompts
    from ..work.resolve import in_precisions, resolve

    if wrong := [name for name in spec.precisions if name not in ("auto", *PRECISIONS)]:
        raise ParameterError(f"--precisions has {wrong[0]!r}; expected two or more of {', '.join(PRECISIONS)}.")
    bundled = [Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts(spec.model)[::4]]
    prompts = read_jsonl(spec.prompts) if spec.prompts else bundled
    device = device_of(spec.device)
    opened.fetch(spec.model)
    requests = auditing.plan(in_precisions(resolve(spec.model, device=device), list(spec.precisions)), prompts)
    store, results = Store(), {}
    for precision, of_one in requests.items():  # each with a bar of its own
        stored = {r.key: store.get(r.key) for r in of_one}
        found = {key: result for key, result in stored.items() if result is not None}
        if todo := auditing.todo(of_one, stored):
            opened.Model(of_one[0].models[0]).compute_missing(todo, store, found)
        results[precision] = [found[r.key] for r in of_one]
    outcome = auditing.compare(results, auditing.reference_of(list(requests)))
    if spec.out:
        with disk.written(Path(spec.out)) as handle:
            np.savez(handle, allow_pickle=False, **outcome.arrays())
    _said(statuses, f"{spec.model}: {len(prompts)} prompts through {', '.join(requests)}")
    print("\n".join(auditing.table(outcome)))
    return 0
