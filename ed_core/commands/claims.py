"""`python -m ed_core claims --model M --set S --out FOLDER`: which published statements about depth hold here; and
`card --model M`: what is known of a model's depth, in one document."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .. import bounds, disk
from ..errors import ParameterError
from ..notebook.model import fetch
from ..runs.execute import device_of
from ..runs.spec import CardRun, ClaimsRun
from ..sources.bundled import MIXED, default_set
from .models import DEVICE
from .runs import RESUMED, Commands, run, whole
from .studies import add_processes

SET_HELP = (
    f"a bundled prompt set's name ({default_set('ed-demo-8')} for a bundled model and {MIXED} for any other unless "
    "given), or a .jsonl, .json, .csv or .parquet (text, and where known answer, level, pair, form)"
)


def add(commands: Commands) -> None:
    """Register both commands with the parser's `commands`."""
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
        help="a depth card: rules, lenses, claims, cuts, sinks, precisions of a model in one document; resumable; "
        "'card push SHELF' and 'card pull SHELF' share cards",
    )
    p.add_argument("do", nargs="?", choices=("push", "pull"), help="share cards instead of making one")
    p.add_argument(
        "shelf", nargs="?", default="", help="a dataset of the hub, ORG/NAME, or a folder; to pull, an address too"
    )
    p.add_argument("cards", nargs="*", metavar="FILE", help="cards to push; all that were made here unless named")
    _asks(p, required=False)
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


def _asks(p: argparse.ArgumentParser, required: bool = True) -> None:
    """The options that both have."""
    p.add_argument("--model", required=required, default="", help="a bundled name, a folder, or a hub id")
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
    return run(ClaimsRun(asked=asked, processes=args.processes), disk.require_out_folder(args.out), args.progress)


def card(args: argparse.Namespace) -> int:
    from ..cards.making import Asked

    if args.do:
        return _shared(args)
    if not args.model:
        raise ParameterError("card needs --model M, whose card is made; or push or pull, and a shelf.")
    if args.prompts < 1 or args.seed < 0:
        raise ParameterError("--prompts is 1 or more, and --seed 0 or more.")
    others = tuple(name.strip() for name in args.precisions.split(",") if name.strip())
    asked = Asked(most=args.prompts, others=others, **_asked(args))
    asked.check()
    if args.out is None:
        fetch(args.model)  # its content names the folder
    spec = CardRun(asked=asked, processes=args.processes)
    return run(spec, asked.place if args.out is None else disk.require_out_folder(args.out), args.progress)


def _shared(args: argparse.Namespace) -> int:
    """Push cards to a shelf, or pull those that lie there."""
    from ..cards.card import made_here
    from ..sharing import card_shelf

    if not args.shelf or args.model or (args.do == "pull" and args.cards):
        more = " [FILE …]" * (args.do == "push")
        raise ParameterError(f"Expected card {args.do} SHELF{more}, without --model: ORG/NAME on the hub, or a folder.")
    if args.do == "push":
        for name in card_shelf.push(args.shelf, [*map(Path, args.cards)] or made_here()):
            print(f"{name} -> {args.shelf}")
        return 0
    found = card_shelf.pull(args.shelf)
    for why in found.refused:
        print(f"ed_core: {why}", file=sys.stderr)
    n = len(found.files)
    cards, them = ("card", "it") if n == 1 else ("cards", "them")
    print(f"{n} {cards} of {args.shelf}, {found.new} of them new; the page of cards shows {them}.")
    return 1 if found.refused else 0


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """What both ask for: a model on a prompt set."""
    return {
        "model": args.model,
        "prompts": args.set or default_set(args.model),
        "also": tuple(args.also),
        "precision": args.precision,
        "device": device_of(args.device),
        "adapter": args.adapter,
        "seed": args.seed,
    }
