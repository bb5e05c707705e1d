"""`python -m ed_core study FILE --out DIR`: many prompts on several models, resumable;
`reproduce PAPER --models …`: a paper's protocol run as studies, measured beside published figures; and
`leaderboard [--also FILE.csv]`: do deeper models score better, with size and width held fixed?"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import bounds, disk
from ..errors import ParameterError, StudyError
from ..runs.spec import ReproduceRun, StudyRun
from ..sources import leaderboard as board
from .models import DEVICE
from .runs import RESUMED, Commands, run, whole

if TYPE_CHECKING:
    from ..studies.items import Folder


def add(commands: Commands) -> None:
    """Register the commands with the parser's `commands`."""
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
    p.add_argument("--device", default="auto", help=DEVICE)
    add_engine(p)
    p.set_defaults(run=study, stopped=RESUMED)
    p = commands.add_parser(
        "reproduce", help="measure a paper's figures anew by its protocol, and say for each entry how it compares"
    )
    p.add_argument(
        "paper", help="hu2025 (effective depths) or csordas2025 (contributions, future effects, depth score)"
    )
    p.add_argument(
        "--models",
        nargs="+",
        required=True,
        metavar="[NAME=]MODEL",
        help="bundled names, folders, GGUF files or hub ids; NAME= says which published model a folder holds",
    )
    p.add_argument(
        "--sets",
        nargs="+",
        default=[],
        metavar="SET[=FILE]",
        help="these of the paper's sets alone, from the hub or from a local file with its columns; all unless given",
    )
    p.add_argument(
        "--limit",
        type=whole("--limit", -bounds.WHOLE),
        metavar="N",
        help="prompts of each set or level, in place of the paper's number",
    )
    p.add_argument("--precision", metavar="P", help="the paper's where it can be had, unless given: int8, float32, …")
    p.add_argument("--device", default="auto", help=DEVICE)
    add_engine(p)
    p.add_argument("--out", metavar="DIR", help="where it is kept and goes on from; a folder of the paper's name here")
    p.add_argument("--dry-run", action="store_true", help="say what would be computed and what it takes, and stop")
    p.set_defaults(run=reproduce, stopped=RESUMED)
    p = commands.add_parser(
        "leaderboard", help="the scores of many models against their layers, with size and width held fixed or not"
    )
    p.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="FILE.csv",
        help="models of your own: columns model, layers, params_b (billions), the score; where known d_model, family, "
        "lineage",
    )
    p.add_argument(
        "--score", default="average", metavar="NAME", help=f"{', '.join(board.SCORES)} (default: %(default)s)"
    )
    p.set_defaults(run=leaderboard)


def add_engine(p: argparse.ArgumentParser) -> None:
    """The arguments that say who computes."""
    p.add_argument("--engine", choices=("here", "ray"), default="here", help="who computes: this process, or Ray")
    p.add_argument("--address", default="", metavar="A", help="of a Ray cluster that runs; one of its own unless given")
    add_processes(p)


def add_processes(p: argparse.ArgumentParser) -> None:
    """The argument that says how many processes of this machine compute."""
    p.add_argument(
        "--processes",
        type=whole("--processes", 1, 1024),
        default=1,
        metavar="N",
        help="so many processes of this machine compute, each with the models in its own memory: on a CPU one for "
        "each core is fastest (one unless given)",
    )


def study(args: argparse.Namespace) -> int:
    if args.export:
        return export(Path(args.file), args.export)
    if not args.out:
        raise ParameterError("--out is missing; give the study's folder.")
    file, out, shard = Path(args.file), Path(args.out), shard_of(args.shard)
    if file.suffix == ".edstudy":
        return open_bundle(file, out)
    spec = StudyRun(file=args.file, device=args.device, shard=shard, merge=args.merge, **_computed(args))
    return run(spec, out, kept=shard == (1, 1) and not args.dry_run)


def reproduce(args: argparse.Namespace) -> int:
    spec = ReproduceRun(
        paper=args.paper,
        models=tuple(args.models),
        sets=tuple(args.sets),
        limit=args.limit,
        precision=args.precision,
        device=args.device,
        **_computed(args),
    )
    return run(spec, disk.require_out_folder(args.paper if args.out is None else args.out), kept=not args.dry_run)


def _computed(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("engine", "address", "processes", "dry_run")}


def open_bundle(file: Path, out: Path) -> int:
    """Check a `.edstudy` and put the study into a folder."""
    from ..studies import bundle

    print(f"{out}: measures {bundle.unpack(file, out)[:16]}, as the file tells")
    return 0


def export(folder: Path, files: list[str]) -> int:
    """Write a study's folder as each of these files; what is written stands in its name."""
    from ..studies.items import open_folder

    opened = open_folder(folder)
    made: dict[Path, bytes] = {}
    for name in files:
        disk.require_out(name, folder.rglob("*"), "--export")
    for name in files:  # all are made before one is written
        made[Path(name)] = _made(opened, Path(name))
    for file, data in made.items():
        try:
            disk.write(file, data)
        except OSError as error:
            raise StudyError(f"{file} cannot be written: {disk.why(error, '--export')}") from error
        print(f"{file}: {len(data)} bytes")
    return 0


def _made(folder: Folder, file: Path) -> bytes:
    from ..studies import bundle, tables

    kind = file.suffix.lstrip(".")
    if kind == "edstudy":
        return bundle.packed(folder.out)
    if kind == "npz":
        import io

        import numpy as np

        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **tables.arrays(folder))
        return buffer.getvalue()
    if kind in ("csv", "parquet"):
        if file.stem not in (*tables.TABLES, "prompts"):
            raise ParameterError(
                f"{file.name} would be no table of a study; expected verdict, summary or prompts.{kind}."
            )
        table = tables.by_prompt(folder) if file.stem == "prompts" else tables.stored(folder, file.stem)
        return tables.as_file(table, kind)
    if kind in ("svg", "png", "html"):
        figure = tables.figure(folder, file.stem)
        if kind == "html":
            page: str = figure.to_html(include_plotlyjs=True)
            return page.encode()
        from ..figures import images

        return images.render(figure, kind, f"{folder.plan['name']} · {file.stem}")
    raise ParameterError(f"{file.name} ends in none of .edstudy, .npz, .csv, .parquet, .svg, .png, .html.")


def shard_of(text: str) -> tuple[int, int]:
    """ "2/8" as (2, 8)."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text or "1/1")
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ParameterError(f"--shard is {text!r}; expected I/N with I from 1 to N, like 2/8.")
    return int(found[1]), int(found[2])


def leaderboard(args: argparse.Namespace) -> None:
    from ..studies import leaderboard as fits

    if args.score not in board.SCORES:
        raise StudyError(f"--score is {args.score[:40]!r}; expected one of {', '.join(board.SCORES)}.")
    own = tuple(entry for file in args.also for entry in board.also(file, args.score))
    every = (*board.entries(), *own)
    for found in fits.table(every, args.score):
        print(f"{found.sentence} R² {found.r2:.2f}.")
    for entry in own:
        expected = fits.fit(every, args.score, (fits.SIZE,))
        print(f"{entry.model}: {entry.scores[args.score]:.2f}, {fits.beside_line(expected, entry)}.")
    gone = "; ".join(f"{n} as {why}" for why, n in fits.left_out(every).items())
    print(f"{len(every)} models{f', {len(own)} of them your own' if own else ''}; left out: {gone}.")
    print(" ".join(board.CAVEATS))
