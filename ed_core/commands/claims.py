"""`python -m ed_core claims --model M --set S --out FOLDER`: which published statements about depth hold here."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import ParameterError
from ..notebook.model import fetch
from ..sources.bundled import MIXED, default_set
from .fits import progress
from .studies import add_processes, beside, device_of

SET_HELP = (
    f"a bundled prompt set's name ({default_set('ed-demo-8')} for a bundled model and {MIXED} for any other unless "
    "given), or a .jsonl, .json, .csv or .parquet (text, and where known answer, level, pair, form)"
)


def add(commands) -> None:
    """Register the command with the parser's `commands`."""
    p = commands.add_parser(
        "claims", help="check published statements about depth on a model and a prompt set; resumable"
    )
    p.add_argument("--model", required=True, help="a bundled name, a folder, or a hub id")
    p.add_argument(
        "--set",
        default="",
        metavar="S",
        help=SET_HELP,
    )
    p.add_argument("--claim", action="append", default=[], metavar="ID", help="one of them; all unless given")
    p.add_argument("--also", action="append", default=[], metavar="M", help="further models of the family, repeatable")
    p.add_argument("--prompts", type=int, default=0, metavar="N", help="at most so many prompts for any of them")
    p.add_argument("--precision", default="fp32", metavar="P", help="fp32 (unless given), bf16, fp16, int8 or 4bit")
    p.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 or mps")
    p.add_argument("--adapter", default="", metavar="FOLDER", help="a LoRA adapter to merge into the weights")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap over prompts")
    p.add_argument("--out", required=True, metavar="FOLDER", help="what lies there is not computed anew")
    add_processes(p)
    p.add_argument("--progress", action="store_true", help="say every per cent on a line of its own")
    p.set_defaults(run=claims)


def claims(args: argparse.Namespace) -> int:
    from ..claims import running
    from ..claims.finding import counted, standing

    if args.prompts < 0 or args.seed < 0:
        raise ParameterError("--prompts and --seed are counts; expected 0 or more.")
    asked = running.Asked(
        args.model,
        args.set or default_set(args.model),
        tuple(args.claim),
        tuple(args.also),
        args.precision,
        device_of(args.device),
        args.adapter,
        args.prompts,
        args.seed,
    )
    asked.chosen(), asked.entry()  # refused before anything is fetched
    computing = beside(args)
    for source in (args.model, *args.also):
        fetch(source)
    out = Path(args.out)
    with progress(args) as tell, computing as engine:
        told = running.run(asked, out, tell, engine=engine)
    width = max(len(f["id"]) for f in told["findings"])
    for one in told["findings"]:
        values = "; ".join(
            f"{q['name']} {q['value']['told']}" for q in one["quantities"] if q["value"] and not q["beside"]
        )
        print(f"{one['id']:<{width}}  {one['verdict']:<19}  {values or one['reason']}")
    if stand := standing(told["findings"]):
        print(f"{stand}.")
    print(f"{running.DONE}{counted(told['findings'])}; {out / running.REPORT}, {out / running.FOUND}")
    return 0
