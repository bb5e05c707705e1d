"""`python -m ed_core card --model M`: what is known of a model's depth, in one document."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import ParameterError
from ..notebook.model import fetch
from ..sources.bundled import default_set
from .claims import SET_HELP
from .fits import progress
from .studies import add_processes, beside, device_of


def add(commands) -> None:
    """Register the command with the parser's `commands`."""
    from ..cards.card import OTHERS, PROMPTS

    p = commands.add_parser(
        "card",
        help="a depth card: rules, lenses, claims, cuts, sinks, precisions of a model in one document; resumable",
    )
    p.add_argument("--model", required=True, help="a bundled name, a folder, or a hub id")
    p.add_argument(
        "--set",
        default="",
        metavar="S",
        help=SET_HELP,
    )
    p.add_argument(
        "--prompts",
        type=int,
        default=PROMPTS,
        metavar="N",
        help="so many of any part, as many of each level (%(default)s unless given)",
    )
    p.add_argument(
        "--precisions",
        default=",".join(OTHERS),
        metavar="P,P",
        help="held against the card's own (%(default)s unless given); empty for none",
    )
    p.add_argument("--also", action="append", default=[], metavar="M", help="further models of the family, repeatable")
    p.add_argument("--precision", default="fp32", metavar="P", help="fp32 (unless given), bf16, fp16, int8 or 4bit")
    p.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 or mps")
    p.add_argument("--adapter", default="", metavar="FOLDER", help="a LoRA adapter to merge into the weights")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap over prompts")
    p.add_argument("--out", metavar="FOLDER", help="what lies there is not computed anew; the app's own unless given")
    add_processes(p)
    p.add_argument("--progress", action="store_true", help="say every per cent on a line of its own")
    p.set_defaults(run=card)


def card(args: argparse.Namespace) -> int:
    from ..cards import card as cards
    from ..cards import making, words

    if args.prompts < 1 or args.seed < 0:
        raise ParameterError("--prompts is 1 or more, and --seed 0 or more.")
    asked = making.Asked(
        args.model,
        args.set or default_set(args.model),
        args.prompts,
        tuple(name.strip() for name in args.precisions.split(",") if name.strip()),
        tuple(args.also),
        args.precision,
        device_of(args.device),
        args.adapter,
        args.seed,
    )
    asked.check()  # before anything is fetched
    computing = beside(args)
    for source in (args.model, *args.also):
        fetch(source)
    out = Path(args.out) if args.out else asked.place
    with progress(args) as tell, computing as engine:
        told = making.make(asked, out, tell, engine=engine)
    print(words.headline(told))
    print(f"{words.claims(told)} of {len(told['claims'])} claims")
    print(f"{making.DONE}{out / cards.HTML}, {out / cards.MARKDOWN}, {out / cards.FILE}")
    return 0
