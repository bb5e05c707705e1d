"""The commands that take long and go on where they were stopped, as `python -m ed_core`:

`fit KIND …`: what is fitted to models on a prompt set. `study FILE --out DIR`: many prompts on several models.
`reproduce PAPER --models …`: a paper's protocol run as studies, measured beside published figures. `claims --model M
--set S --out FOLDER`: which published statements about depth hold here. `card --model M`: what is known of a model's
depth, in one document."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from .. import bounds, disk, outside
from ..errors import ParameterError, StudyError
from ..models.bundled import MIXED, default_set
from ..notebook.model import fetch, on
from ..work.runs import fit as fits
from ..work.runs import study as studies
from ..work.runs.fit import JACOBIAN_TOKENS, Fit, Opened
from ..work.runs.foreground import run
from .models import DEVICE, MODEL, RESUMED, Commands, how_to_open, only, precision, whole

if TYPE_CHECKING:
    from ..studies.items import Folder


def add(commands: Commands) -> None:
    """Register the commands with the parser's `commands`, in the order of the help."""
    _add_fits(commands)
    _add_studies(commands)
    _add_claims(commands)


def _add_studies(commands: Commands) -> None:
    p = commands.add_parser("study", help="run a study's file (models × prompt sets × probes), or go on with it")
    p.add_argument("file", metavar="FILE.toml", help="or FILE.edstudy, to open it into --out; or DIR, with --export")
    p.add_argument("--out", default="", metavar="DIR", help="the study's folder; what lies there is not computed anew")
    p.add_argument(
        "--export",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="write a study's folder as NAME.edstudy; verdict, summary or prompts as .csv or .parquet; "
        "depths or PROBE.MEASURE as .svg, .png or .html",
    )
    p.add_argument("--dry-run", action="store_true", help="say what would be computed and what it takes, and stop")
    p.add_argument("--device", default="auto", help=DEVICE)
    add_processes(p)
    p.set_defaults(run=study, stopped=RESUMED, parser=p)
    p = commands.add_parser(
        "reproduce", help="measure a paper's figures anew by its protocol, and say for each entry how it compares"
    )
    p.add_argument(
        "paper", help="hu2025 (effective depths) or csordas2025 (contributions, future effects, depth score)"
    )
    p.add_argument(
        "--models",
        nargs="+",
        action="extend",
        required=True,
        metavar="[NAME=]MODEL",
        help="bundled names, folders, GGUF files or hub ids; NAME= says which published model a folder holds",
    )
    p.add_argument(
        "--sets",
        nargs="+",
        action="extend",
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
    add_processes(p)
    p.add_argument("--out", metavar="DIR", help="where it is kept and goes on from; a folder of the paper's name here")
    p.add_argument("--dry-run", action="store_true", help="say what would be computed and what it takes, and stop")
    p.set_defaults(run=reproduce, stopped=RESUMED)


def add_processes(p: argparse.ArgumentParser) -> None:
    """The arguments that say who computes."""
    p.add_argument(
        "--processes",
        type=whole("--processes", 1, 1024),
        default=1,
        metavar="N",
        help="so many processes of this machine compute, each with the models in its own memory: on a CPU one for "
        "each core is fastest (%(default)s unless given)",
    )
    p.add_argument(
        "--ray",
        default="",
        metavar="ADDRESS",
        help="a Ray cluster computes, into a folder that its machines share; 'local' starts one on this machine",
    )


def study(args: argparse.Namespace) -> int:
    if args.export:
        only(args, "--export computes nothing and writes its files", "file", "export")
        return export(Path(args.file), args.export)
    if not args.out:
        raise ParameterError("--out is missing; give the study's folder.")
    file, out = Path(args.file), Path(args.out)
    if outside.ending(file) == ".edstudy":
        from ..studies import bundle

        only(args, f"{file.name} is opened, and nothing is computed", "file", "out", "dry_run")
        if args.dry_run:
            print(f"{bundle.name_of(file)}: would be opened into {bundle.require_new(out)}; nothing is computed")
            return 0
        print(f"{out}: measures {bundle.unpack(file, out)[:16]}, as the file tells")
        return 0
    return run(studies.study, args.file, disk.require_out_folder(out), args.device, args.dry_run, **_who(args))


def reproduce(args: argparse.Namespace) -> int:
    if args.dry_run:
        with TemporaryDirectory() as place:
            return _reproduced(args, Path(place))
    return _reproduced(args, disk.require_out_folder(args.paper if args.out is None else args.out))


def _reproduced(args: argparse.Namespace, out: Path) -> int:
    asked = args.paper, tuple(args.models), tuple(args.sets), args.limit, args.precision, args.device
    return run(studies.reproduce, *asked, out, args.dry_run, **_who(args))


def _who(args: argparse.Namespace) -> dict[str, Any]:
    """Who computes."""
    alone = args.processes == 1 and not args.ray
    return {"processes": args.processes, "ray": args.ray, "device": "cpu" if alone else on(args.device)[0]}


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

    kind = outside.ending(file).lstrip(".")
    if kind == "edstudy":
        return bundle.packed(folder.out)
    if kind in ("csv", "parquet"):
        if file.stem not in tables.TABLES:
            raise ParameterError(
                f"{file.name} would be no table of a study; expected verdict, summary or prompts.{kind}."
            )
        return tables.as_file(tables.TABLES[file.stem](folder), kind)
    if kind in ("svg", "png", "html"):
        figure = tables.figure(folder, file.stem)
        if kind == "html":
            page: str = figure.to_html(include_plotlyjs=True)
            return page.encode()
        from ..figures import images

        return images.render(figure, kind, f"{folder.plan['name']} · {file.stem}")
    raise ParameterError(f"{file.name} ends in none of .edstudy, .csv, .parquet, .svg, .png, .html.")


SET_HELP = (
    f"a bundled prompt set's name ({default_set('ed-demo-8')} for a bundled model and {MIXED} for any other unless "
    "given), or a .jsonl, .json, .csv or .parquet (text, and where known answer, level, pair, form)"
)


def _add_claims(commands: Commands) -> None:
    from ..cards.card import OTHERS, PROMPTS

    p = commands.add_parser(
        "claims", help="check published statements about depth on a model and a prompt set; resumable"
    )
    _asks(p)
    p.add_argument("--claim", action="append", default=[], metavar="ID", help="one of them; all unless given")
    p.add_argument(
        "--prompts",
        type=whole("--prompts", -bounds.WHOLE),
        default=0,
        metavar="N",
        help="at most so many prompts for any of them",
    )
    p.add_argument("--out", required=True, metavar="FOLDER", help="what lies there is not computed anew")
    p.set_defaults(run=claims, stopped=RESUMED)
    p = commands.add_parser(
        "card",
        help="a depth card: rules, lenses, claims, cuts, sinks, precisions of a model in one document; resumable",
    )
    _asks(p)
    p.add_argument(
        "--prompts",
        type=whole("--prompts", -bounds.WHOLE),
        default=PROMPTS,
        metavar="N",
        help="prompts per measurement, balanced across levels (default: %(default)s)",
    )
    p.add_argument(
        "--precisions",
        default=",".join(OTHERS),
        metavar="P,P",
        help="held against the card's own (%(default)s unless given); empty for none",
    )
    p.add_argument("--out", metavar="FOLDER", help="what lies there is not computed anew; the app's own unless given")
    p.set_defaults(run=card, stopped=RESUMED)


def _asks(p: argparse.ArgumentParser) -> None:
    """The options that both have."""
    p.add_argument("--model", required=True, help=MODEL)
    p.add_argument("--set", default="", metavar="S", help=SET_HELP)
    p.add_argument("--also", action="append", default=[], metavar="M", help="further models of the family, repeatable")
    p.add_argument("--precision", default="fp32", metavar="P", help="fp32 (unless given), bf16, fp16, int8 or 4bit")
    p.add_argument("--device", default="auto", help=DEVICE)
    p.add_argument("--adapter", default="", metavar="FOLDER", help="a LoRA adapter to merge into the weights")
    p.add_argument(
        "--seed", type=whole("--seed", -bounds.WHOLE), default=0, metavar="N", help="of the bootstrap over prompts"
    )
    add_processes(p)
    p.add_argument("--progress", action="store_true", help="say every per cent on a line of its own")


def claims(args: argparse.Namespace) -> int:
    from ..claims.running import Asked

    if args.prompts < 0 or args.seed < 0:
        raise ParameterError("--prompts and --seed are counts; expected 0 or more.")
    asked = Asked(claims=tuple(args.claim), most=args.prompts, **_asked(args))
    return run(studies.claims, asked, disk.require_out_folder(args.out), lines=args.progress, **_who(args))


def card(args: argparse.Namespace) -> int:
    from ..cards.making import Asked

    if args.prompts < 1 or args.seed < 0:
        raise ParameterError("--prompts is 1 or more, and --seed 0 or more.")
    others = tuple(name.strip() for name in args.precisions.split(",") if name.strip())
    asked = Asked(most=args.prompts, others=others, **_asked(args))
    asked.check()
    if args.out is None:
        fetch(args.model)  # its content names the folder
    out = disk.require_out_folder(asked.place if args.out is None else args.out)
    return run(studies.card, asked, out, lines=args.progress, **_who(args))


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """What both ask for: a model on a prompt set."""
    return {
        "model": args.model,
        "prompts": args.set or default_set(args.model),
        "also": tuple(args.also),
        "precision": args.precision,
        "device": on(args.device)[0],
        "adapter": args.adapter,
        "seed": args.seed,
    }


SAME = "the same as A's unless given"


def _add_fits(commands: Commands) -> None:
    p = commands.add_parser(
        "fit", help="fit a lens, linear maps between two models, or maps in the layers' place, on a prompt set"
    )
    kinds = p.add_subparsers(required=True, metavar="KIND")
    p = kinds.add_parser("affine", help="the affine lens: least squares from the stream at every depth to the last")
    p.add_argument(
        "--rank",
        type=whole("--rank", -bounds.WHOLE),
        metavar="R",
        help="keep the matrices to this rank, in half precision: small files",
    )
    _of_all_kinds(p, "affine", ".safetensors")
    p = kinds.add_parser("jacobian", help="the Jacobian lens: how the last residual answers to changes, on average")
    p.add_argument(
        "--max-tokens",
        type=whole("--max-tokens", -bounds.WHOLE),
        default=JACOBIAN_TOKENS,
        metavar="N",
        help="read so many of a prompt's tokens (%(default)s unless given)",
    )
    _of_all_kinds(p, "jacobian", ".safetensors")
    p = kinds.add_parser(
        "maps", help="between two models of one tokenizer: how well each tap of B is read off each of A's"
    )
    p.add_argument("--other", required=True, metavar="B", help="the second model, with the same tokenizer")
    p.add_argument("--other-precision", type=precision, metavar="P", help=SAME)
    p.add_argument("--other-control", default="", metavar="KIND", help="a twin in B's place: untrained or shuffled")
    p.add_argument("--other-seed", type=whole("--other-seed", 0), metavar="N", help="which twin of B (0 unless given)")
    _of_all_kinds(p, "maps", ".npz")
    p = kinds.add_parser("replacement", help="within one model: the loss with each layer replaced by a linear map")
    _of_all_kinds(p, "replacement", ".npz")


def _of_all_kinds(p: argparse.ArgumentParser, kind: str, ending: str) -> None:
    """The options of every fit; `ending` is its file's."""
    p.add_argument("--model", required=True, metavar="A", help=MODEL)
    how_to_open(p)
    p.add_argument("--set", required=True, metavar="FILE.jsonl", help="the prompts to fit on")
    p.add_argument(
        "--test", default="", metavar="FILE.jsonl", help="the prompts to judge on; a fifth of the forms unless given"
    )
    p.add_argument("--out", required=True, metavar=f"FILE{ending}")
    p.add_argument("--memory", default="", metavar="SIZE", help="what the sums may hold at once, like 500M or 20G")
    p.add_argument("--dry-run", action="store_true", help="say what the sums take and in how many passes, and stop")
    p.add_argument("--progress", action="store_true", help="say every per cent on a line of its own")
    p.set_defaults(run=fit, kind=kind, stopped=RESUMED)


def fit(args: argparse.Namespace) -> int:
    asked = Fit(
        kind=args.kind,
        model=_opened(args, args.model, args.precision, args.control, args.seed, args.adapter),
        other=_other(args) if args.kind == "maps" else None,
        prompts=args.set,
        test=args.test,
        out=args.out,
        memory=args.memory,
        rank=getattr(args, "rank", None),
        max_tokens=getattr(args, "max_tokens", JACOBIAN_TOKENS),
    )
    return _dry_run(args, asked) if args.dry_run else run(fits.fit, asked, lines=args.progress)


def _opened(
    args: argparse.Namespace, source: str, precision: str, control: str, seed: int | None, adapter: str, of: str = ""
) -> Opened:
    """A model as the options name it; `of`: how those of its twin begin."""
    if seed is not None and not control:
        raise ParameterError(
            f"--{of}seed is a control's; give --{of}control untrained or --{of}control shuffled with it."
        )
    return Opened(
        source=source,
        precision=precision,
        device=args.device,
        adapter=adapter,
        offload=args.offload,
        control=control,
        control_seed=seed or 0,
    )


def _other(args: argparse.Namespace) -> Opened:
    """Model B: its own precision and control, A's device."""
    own = args.other_precision or args.precision
    return _opened(args, args.other, own, args.other_control, args.other_seed, "", "other-")


def _dry_run(args: argparse.Namespace, asked: Fit) -> int:
    """What would be held, without opening a model: of `--memory`, else of a lens's usual share or of what is free."""
    from ..lenses import affine, measured
    from ..machine import ROOM, free_memory

    memory = asked.check()[2] or (measured.BYTES if args.kind in ("affine", "jacobian") else None)
    if memory is None and args.device != "cpu":
        from ..models import devices

        memory = int(ROOM * devices.free_bytes(devices.pick(args.device)))
    memory = memory or int(ROOM * free_memory())
    sizes = [one.ref.size() for one in asked.models]
    affine.require_rank(asked.rank, sizes[0].d_model, args.model)
    print(measured.plan_of(args.kind, sizes, memory).sentence())
    return 0
