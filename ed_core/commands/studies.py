"""`python -m ed_core study FILE --out DIR`: many prompts on several models, resumable."""

from __future__ import annotations

import contextlib
import re
import sys
from functools import partial
from pathlib import Path

from ..errors import EffectiveDepthError, ParameterError, StudyError
from ..notebook.model import fetch


def add(commands) -> None:
    """Register the command with the parser's `commands`."""
    p = commands.add_parser("study", help="run a study's file (models × prompt sets × probes), or go on with it")
    p.add_argument("file", metavar="FILE.toml", help="or FILE.edstudy, to open it into --out; or DIR, with --export")
    p.add_argument("--out", default="", metavar="DIR", help="the study's folder; what lies there is not computed anew")
    p.add_argument(
        "--export",
        nargs="+",
        metavar="FILE",
        help="write a study's folder as NAME.edstudy, NAME.npz; verdict, summary or prompts as .csv or .parquet; "
        "depths or PROBE.MEASURE as .svg, .png or .html",
    )
    p.add_argument(
        "--shard", default="", metavar="I/N", help="compute the I-th of N parts, into a folder that all share"
    )
    p.add_argument("--merge", action="store_true", help="compute nothing: write the tables of what is there")
    p.add_argument("--dry-run", action="store_true", help="say what would be computed and what it takes, and stop")
    p.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 or mps")
    add_engine(p)
    p.set_defaults(run=study)


def add_engine(p) -> None:
    """The arguments that say who computes."""
    p.add_argument("--engine", choices=("here", "ray"), default="here", help="who computes: this process, or Ray")
    p.add_argument("--address", default="", metavar="A", help="of a Ray cluster that runs; one of its own unless given")
    add_processes(p)


def add_processes(p) -> None:
    """The argument that says how many processes of this machine compute."""
    p.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="so many processes of this machine compute, each with the models in its own memory: on a CPU one for "
        "each core is fastest (one unless given)",
    )


def beside(args) -> contextlib.AbstractContextManager:
    """Who computes, by `--processes`; None within where this process does."""
    from ..studies import processes

    if args.processes == 1:
        return contextlib.nullcontext()
    if (device := device_of(args.device)) != "cpu":
        raise ParameterError(f"--processes is of the CPU, and this runs on {device}; leave it or --device out.")
    return processes.Pool(args.processes)


def study(args) -> int:
    from ..disk import require_room
    from ..service.estimate import duration
    from ..studies import plan as planning
    from ..studies import report, running
    from ..studies.study import read

    if args.export:
        return export(Path(args.file), args.export)
    if not args.out:
        raise ParameterError("--out is missing; give the study's folder.")
    file, out, shard = Path(args.file), Path(args.out), shard_of(args.shard)
    if file.suffix == ".edstudy":
        return open_bundle(file, out)
    written = read(file)
    device, computing = device_of(args.device), _computing(args)
    if not (args.merge or args.dry_run):
        for entry in written.models:
            _fetch(entry.source, entry.control)
    plan = planning.make(written, file.parent, device)
    usable, trouble = plan.usable, {m.label: m.trouble for m in plan.models if m.trouble}
    if not usable:
        raise ParameterError(f"No model of {file} can be used. {'; '.join(f'{k}: {v}' for k, v in trouble.items())}")
    for label, why in trouble.items():
        print(f"ed_core: {label} failed: {why}", file=sys.stderr)
    expected = planning.seconds_of(plan, device)
    told = "" if expected is None else f", about {duration(expected[0])} by the estimate if all is computed"
    size = [(len(usable), "model"), (plan.n_prompts, "prompt"), (plan.n_items, "item")]
    models, prompts, parts = (f"{n} {what}{'s' * (n != 1)}" for n, what in size)
    print(f"{written.name}: {models} × {prompts}, {parts}{told}", flush=True)
    if args.dry_run:
        return 1 if trouble else 0
    require_room("The study", planning.bytes_of(plan), out, "--out")
    planning.write_plan(plan, out)
    if args.merge:
        outcome = running.Outcome(failed=trouble)
    else:
        with computing as engine:
            outcome = _computed(plan, out, shard, engine)
    print(", ".join(f"{n} {what}" for what, n in outcome.counts.items()))
    for label, why in outcome.failed.items():
        if label not in trouble:
            print(f"ed_core: {label} failed: {why}", file=sys.stderr)
    if shard == (1, 1):
        measures = report.write(out)
        print(f"{out}: summary and verdict (.parquet, .csv), report.md; measures {measures[:16]}")
    return 1 if outcome.failed else 0


def open_bundle(file: Path, out: Path) -> int:
    """Check a `.edstudy` and put the study into a folder."""
    from ..studies import bundle

    print(f"{out}: measures {bundle.unpack(file, out)[:16]}, as the file tells")
    return 0


def export(folder: Path, files: list[str]) -> int:
    """Write a study's folder as each of these files; what is written stands in its name."""
    from ..disk import why, write
    from ..studies.folder import open_folder

    opened, made = open_folder(folder), {}
    for name in files:  # all are made before one is written
        made[Path(name)] = _made(opened, Path(name))
    for file, data in made.items():
        try:
            write(file, data)
        except OSError as error:
            raise StudyError(f"{file} cannot be written: {why(error)}") from error
        print(f"{file}: {len(data)} bytes")
    return 0


def _made(folder, file: Path) -> bytes:
    from ..studies import bundle, tables
    from ..studies import export as exporting

    kind = file.suffix.lstrip(".")
    if kind == "edstudy":
        return bundle.packed(folder.out)
    if kind == "npz":
        import io

        import numpy as np

        buffer = io.BytesIO()
        np.savez(buffer, **exporting.arrays(folder))
        return buffer.getvalue()
    if kind in ("csv", "parquet"):
        if file.stem not in (*tables.TABLES, "prompts"):
            raise ParameterError(
                f"{file.name} would be no table of a study; expected verdict, summary or prompts.{kind}."
            )
        table = exporting.prompts(folder) if file.stem == "prompts" else tables.stored(folder, file.stem)
        return tables.as_file(table, kind)
    if kind in ("svg", "png", "html"):
        figure = exporting.figure(folder, file.stem)
        if kind == "html":
            return figure.to_html(include_plotlyjs=True).encode()
        from ..figures import images

        return images.render(figure, kind, f"{folder.plan['name']} · {file.stem}")
    raise ParameterError(f"{file.name} ends in none of .edstudy, .npz, .csv, .parquet, .svg, .png, .html.")


def _computing(args) -> contextlib.AbstractContextManager:
    """Who computes a study."""
    from ..studies import on_ray

    if args.engine == "here":
        if args.address:
            raise ParameterError("--address is of a Ray cluster; give --engine ray as well.")
        return beside(args)
    if args.processes != 1:
        raise ParameterError("--processes is of a study that runs here; leave it or --engine ray out.")
    return contextlib.nullcontext(partial(on_ray.OnRay, address=args.address))


def _computed(plan, out: Path, shard: tuple[int, int], engine):
    from tqdm import tqdm

    from ..studies import running

    with tqdm(disable=not sys.stderr.isatty(), unit="prompt") as bar:

        def report(model, done: int, total: int) -> None:
            bar.total = total
            bar.set_description(model.label, refresh=False)
            bar.update(done - bar.n)

        return running.run(plan, out, shard, report, engine=engine or running.Here)


def shard_of(text: str) -> tuple[int, int]:
    """ "2/8" as (2, 8)."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text or "1/1")
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ParameterError(f"--shard is {text!r}; expected I/N with I from 1 to N, like 2/8.")
    return int(found[1]), int(found[2])


def device_of(name: str) -> str:
    """The device that a name stands for."""
    if name == "cpu":
        return name
    from ..models import placement

    return placement.pick(name)


def _fetch(source: str, control: str) -> None:
    """Bring a model here; one that cannot be had is told with the plan."""
    with contextlib.suppress(EffectiveDepthError):
        fetch(source, control)
