"""`study`, `reproduce`, `claims`, `card`: work on many prompts that resumes where it was stopped."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from .. import disk, untrusted
from ..api.model import fetch
from ..cards.card import OTHERS, PROMPTS
from ..errors import ParameterError
from ..work.runs import study as studies
from ..work.runs.foreground import run
from .options import DryRun, OnSet, Workers

if TYPE_CHECKING:
    from ..studies.items import Folder


def study(
    file: Annotated[str, typer.Argument(metavar="FILE.toml", help="Or FILE.edstudy, to open; or DIR, with --export.")],
    workers: Workers,
    out: Annotated[str, typer.Option(metavar="DIR", help="The study's folder; finished items stay.")] = "",
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Write a study's folder as NAME.edstudy; verdict, summary or prompts as .csv or .parquet; depths or "
            "PROBE.MEASURE as .svg, .png or .html; repeatable.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Run a study's file (models × prompt sets × probes), or continue it."""
    if export:
        return _export(Path(file), export)
    if not out:
        raise ParameterError("--out is missing; give the study's folder.")
    if untrusted.ending(Path(file)) == ".edstudy":
        from ..studies import bundle

        if dry_run:
            place = bundle.require_new(Path(out))
            print(f"{bundle.name_of(Path(file))}: would be opened into {place}; nothing is computed")
        else:
            print(f"{out}: measures {bundle.unpack(Path(file), Path(out))[:16]}, as the file says")
        return 0
    folder = disk.require_out_folder(Path(out))
    return run(studies.study, file, folder, workers.device, dry_run, **workers.arguments())


def reproduce(
    paper: Annotated[str, typer.Argument(help="hu2025 (effective depths) or csordas2025 (contributions, skips).")],
    models: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]MODEL", help="Repeatable; NAME= says which published model a folder holds."),
    ],
    workers: Workers,
    sets: Annotated[
        list[str] | None,
        typer.Option(metavar="SET[=FILE]", help="Only these of the paper's sets, from the hub or a file; repeatable."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of each set or level; the paper's else.")] = None,
    precision: Annotated[str | None, typer.Option(metavar="P", help="The paper's unless given.")] = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="A folder of the paper's name unless given.")] = None,
    dry_run: DryRun = False,
) -> int:
    """Measure a paper's figures by its protocol, and say for each entry how it compares."""
    request = paper, tuple(models), tuple(sets or ()), limit, precision, workers.device
    if dry_run:
        with TemporaryDirectory() as place:
            return run(studies.reproduce, *request, Path(place), True, **workers.arguments())
    folder = disk.require_out_folder(paper if out is None else out)
    return run(studies.reproduce, *request, folder, False, **workers.arguments())


def claims(
    about: OnSet,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Finished items there stay.")],
    workers: Workers,
    claim: Annotated[list[str] | None, typer.Option(metavar="ID", help="Repeatable; all unless given.")] = None,
    prompts: Annotated[int, typer.Option(min=0, help="At most so many prompts for any claim; 0: no limit.")] = 0,
) -> int:
    """Check published statements about depth on a model and a prompt set."""
    from ..claims.running import Asked

    setup = Asked(claims=tuple(claim or ()), most=prompts, **about.arguments(workers.device))
    return run(studies.claims, setup, disk.require_out_folder(out), **workers.arguments())


def card(
    about: OnSet,
    workers: Workers,
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="The app's own folder unless given.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per measurement, balanced across levels.")] = PROMPTS,
    precisions: Annotated[
        str, typer.Option(metavar="P,P", help="Compared with the card's own; empty for none.")
    ] = ",".join(OTHERS),
) -> int:
    """Write a depth card: rules, lenses, claims, cuts, sinks and precisions of a model in one document."""
    from ..cards.making import Asked

    others = tuple(name.strip() for name in precisions.split(",") if name.strip())
    setup = Asked(most=prompts, others=others, **about.arguments(workers.device))
    setup.check()
    if out is None:
        fetch(setup.model)  # its content names the folder
    place = disk.require_out_folder(setup.place if out is None else out)
    return run(studies.card, setup, place, **workers.arguments())


def _export(place: Path, names: list[str]) -> int:
    """Write a study's folder as each of the files `names`, all made before one is written; return the exit code 0."""
    from ..studies.items import open_folder

    folder = open_folder(place)
    for name in names:
        disk.require_out(name, place.rglob("*"), "--export")
    made = {Path(name): _exported(folder, Path(name)) for name in names}
    for file, data in made.items():
        disk.write(file, data)
        print(f"{file}: {len(data)} bytes")
    return 0


def _exported(folder: Folder, file: Path) -> bytes:
    """Return the bytes of a study's file in the format of its ending; a `ParameterError` for an unknown one."""
    from ..studies import bundle, tables

    kind = untrusted.ending(file).lstrip(".")
    if kind == "edstudy":
        return bundle.packed(folder.out)
    if kind in ("csv", "parquet"):
        if file.stem not in tables.TABLES:
            names = ", ".join(f"{name}.{kind}" for name in tables.TABLES)
            raise ParameterError(f"{file.name} is no table of a study; expected {names}.")
        return tables.as_file(tables.TABLES[file.stem](folder), kind)
    if kind == "html":
        page: str = tables.figure(folder, file.stem).to_html(include_plotlyjs=True)
        return page.encode()
    if kind in ("svg", "png"):
        from ..figures import images

        return images.render(tables.figure(folder, file.stem), kind, f"{folder.plan['name']} · {file.stem}")
    raise ParameterError(f"{file.name} ends in none of .edstudy, .csv, .parquet, .svg, .png, .html.")
