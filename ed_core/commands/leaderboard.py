"""`python -m ed_core leaderboard [--also FILE.csv]`: do deeper models score better, with size and width held fixed?"""

from __future__ import annotations

import argparse

from ..errors import StudyError
from ..sources import leaderboard as board
from .runs import Commands


def add(commands: Commands) -> None:
    """Register the command with the parser's `commands`."""
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
