"""`python -m ed_core reproduce PAPER --models …`: a paper's protocol run as studies, measured beside published."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import extras
from ..errors import ParameterError, StudyError
from ..sources.precision import QUANTIZED, asked
from . import studies

INT8 = "int8"


def add(commands) -> None:
    """Register the command with the parser's `commands`."""
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
        "--limit", type=int, metavar="N", help="prompts of each set or level, in place of the paper's number"
    )
    p.add_argument("--precision", metavar="P", help="the paper's where it can be had, unless given: int8, float32, …")
    p.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 or mps")
    studies.add_engine(p)
    p.add_argument("--out", metavar="DIR", help="where it is kept and goes on from; a folder of the paper's name here")
    p.add_argument("--dry-run", action="store_true", help="say what would be computed and what it takes, and stop")
    p.set_defaults(run=reproduce)


def reproduce(args) -> int:
    from .. import disk
    from ..studies import reproduce as protocols
    from ..studies.folder import open_folder
    from ..studies.running import failures
    from ..studies.study import write

    paper = protocols.find(args.paper)
    if args.limit is not None and args.limit < 1:
        raise ParameterError(f"--limit is {args.limit}; expected 1 or more.")
    device = studies.device_of(args.device)
    precision, why = _precision(args.precision, paper.precision, device)
    models = [_model(text, precision) for text in args.models]
    sets = protocols.chosen(paper, args.sets, models[0].source)
    _check(sets, models[0].source)
    parts = protocols.parts(paper, models, sets, args.limit)
    out, code, entries = Path(args.out or paper.name), 0, []
    notes = [why, *_told(paper, sets, args.limit)]
    print("\n".join(notes), flush=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, one in parts.items():
            disk.write(out / f"{name}.toml", write(one).encode())
    except OSError as error:
        raise StudyError(f"The folder {out} cannot be written: {disk.why(error)}") from error
    for name in parts:
        code = max(code, _study(out, name, device, args))
        if not args.dry_run:
            entries += paper.entries(open_folder(out / name))
            notes += [f"{label} failed ({name}): {failed}" for label, failed in failures(out / name).items()]
    if args.dry_run:
        return code
    disk.write(out / "report.md", protocols.markdown(paper, entries, notes).encode())
    print("\n".join(["", *protocols.table(entries), "", f"{protocols.counted(entries)}; {out / 'report.md'}"]))
    return code


def _study(out: Path, name: str, device: str, asked) -> int:
    """One part, as `study` runs it: resumed where it was stopped."""
    parser = argparse.ArgumentParser()
    studies.add(parser.add_subparsers())
    args = parser.parse_args(["study", str(out / f"{name}.toml"), "--out", str(out / name), "--device", device])
    for option in ("dry_run", "engine", "address", "processes"):
        setattr(args, option, getattr(asked, option))
    return args.run(args) or 0


def _precision(given: str | None, papers: str, device: str) -> tuple[str, str]:
    """What is run in, and how that compares with the paper, in a sentence."""
    if given is not None:
        found = asked(given, None)
        if found == "auto":
            raise ParameterError(
                f"--precision is 'auto'; a comparison needs one that is told: give {papers} or float32."
            )
        if found == papers:
            return found, f"Precision {found}, as the paper's."
        return found, f"Precision {found}, while the paper ran in {papers}: figures may differ for that alone."
    missing = ""
    if papers in QUANTIZED and not extras.installed("bitsandbytes"):
        missing = "the package bitsandbytes is not installed"
    elif papers in QUANTIZED and device == "mps":
        missing = "it cannot be had on mps"
    if missing:
        told = f"Precision fp32, while the paper ran in {papers} ({missing}): figures may differ for that alone."
        return "fp32", told
    return papers, f"Precision {papers}, as the paper's."


def _model(text: str, precision: str):
    """A model as it is named: what exists on this machine under that path, else NAME=MODEL."""
    from ..studies.study import ModelEntry

    name, equals, source = text.partition("=")
    label, source = (name, source) if equals and not Path(text).expanduser().exists() else ("", text)
    if not source:
        raise ParameterError(f"--models {text!r} names no model; expected MODEL or NAME=MODEL.")
    place = Path(source).expanduser()
    source = str(place.resolve()) if place.exists() and _is_path(source) else source
    return ModelEntry(source=source, precision=precision, label=label.rsplit("/", 1)[-1])


def _is_path(source: str) -> bool:
    from ..sources.bundled import MODELS

    return source not in MODELS


def _check(sets, first_model: str) -> None:
    """Every set is had before anything is computed; one that cannot be is told with what to do about it here."""
    from ..studies.sets import load

    for name, entry in sets.items():
        try:
            load(entry, Path("."), first_model)
        except StudyError as error:
            told = str(error).partition(" Try again where the hub answers")[0]
            if told != str(error):
                told += f" Give a local copy with the hub's columns: --sets {name}=FILE."
            raise StudyError(told) from None


def _told(paper, sets, limit: int | None) -> list[str]:
    """How this differs from the paper's protocol."""
    told = []
    if left := [name for name in paper.sets if name not in sets]:
        told.append(f"Sets of the paper that are not run: {', '.join(left)}.")
    if limit:
        told.append(f"{limit} prompts of each set or level, in place of the paper's number.")
    for name, entry in sets.items():
        if entry.file:
            told.append(f"{name} from the file {Path(entry.file).name}.")
        if entry.max_tokens:
            from ..studies.reproduce import TOKENIZER

            by = "" if entry.tokenizer == TOKENIZER else f", where the paper counts with {TOKENIZER}, which is not here"
            counted = entry.tokenizer.rstrip("/").rsplit("/", 1)[-1]
            told.append(f"{name}: prompts of at most {entry.max_tokens} tokens, counted with {counted}{by}.")
    return told
