"""`python -m ed_core case … | check`: case studies from the shell. Torch-free."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from .. import disk, untrusted
from ..cases.case_study import Case
from ..cases.kept import SORTS, Kept
from ..depth import say
from ..errors import ParameterError, StoreError
from ..models.controls import full_name
from .models import Commands


def add(commands: Commands) -> None:
    """Register the commands with the parser's `commands`."""
    case = commands.add_parser("case", help="case studies: list, show, export, import, delete").add_subparsers(
        required=True, metavar="ACTION"
    )
    p = case.add_parser("list", help="what is kept")
    p.add_argument("search", nargs="*", help="words that must stand in title, notes, tags, prompt or model")
    p.add_argument("--sort", choices=tuple(SORTS), default="changed", help="%(default)s unless given")
    p.set_defaults(run=list_)
    p = case.add_parser("show", help="one case study in words")
    p.add_argument("id")
    p.set_defaults(run=show)
    p = case.add_parser(
        "export", help="write " + ", ".join(EXPORTS) + "; CSV and Parquet hold one --measure, PNG and SVG one --figure"
    )
    p.add_argument("id")
    p.add_argument("out", metavar="FILE", help="its ending says what is written")
    p.add_argument(
        "--measure",
        default="",
        metavar="PROBE.MEASURE",
        help="of several models or prompts behind its place, as in 2/PROBE.MEASURE; without one, the names are told",
    )
    p.add_argument(
        "--figure",
        default="",
        metavar="NAME",
        help="which figure a .png or .svg shows; without one, the names are told",
    )
    p.set_defaults(run=export)
    p = case.add_parser("import", help="check a .edcase of somebody else's and keep it")
    p.add_argument("file", metavar="FILE.edcase")
    p.set_defaults(run=import_)
    p = case.add_parser("delete", help="delete one for good")
    p.add_argument("id")
    p.set_defaults(run=delete)
    commands.add_parser(
        "check", help="verify every kept case study and stored result; exit code 1 where one is damaged"
    ).set_defaults(run=check)


def list_(args: argparse.Namespace) -> None:
    kept = Kept()
    for card in kept.cards(" ".join(args.search), args.sort):
        tags = f"  [{', '.join(card.tags)}]" if card.tags else ""
        shipped = "  (shipped)" if kept.is_shipped(card.id) else ""
        print(f"{card.id}  {_day(card.changed)}  {card.model:<14}  {card.title}{tags}{shipped}")
    for problem in kept.problems:
        print(f"ed_core: {problem}", file=sys.stderr)


def show(args: argparse.Namespace) -> None:
    case, _ = Kept().open(args.id)
    print(
        f"{case.title}\n{case.id}, kept {_day(case.created)}, changed "
        f"{_day(case.changed)}{', tags ' + ', '.join(case.tags) if case.tags else ''}"
    )
    if case.verdict:
        print(f"\n{case.verdict}")
    for view in case.views:
        print(f"\n{', '.join(map(full_name, view.models))}: {view.prompts[0].text!r}")
        for probe, item in view.by_probe.items():
            print(
                f"  {probe:<22} run {item.result.provenance.get('run', '?')}: "
                + ", ".join(f"{n} {m.values.shape}" for n, m in item.result.measures.items())
            )
    if case.notes:
        print(f"\n{case.notes}")


def export(args: argparse.Namespace) -> None:
    kept, out = Kept(), Path(args.out)
    case, _ = kept.open(args.id)
    if (ending := untrusted.ending(out)) not in EXPORTS:
        raise ParameterError(f"{out.name} ends in {ending!r}; expected one of {', '.join(EXPORTS)}.")
    for option, given, endings in (
        ("--measure", args.measure, (".csv", ".parquet")),
        ("--figure", args.figure, (".png", ".svg")),
    ):
        if given and ending not in endings:
            raise ParameterError(f"{option} is of {' and '.join(endings)}; leave it out for {ending}.")
    which = args.figure if ending in (".png", ".svg") else args.measure
    disk.require_out(out, kept.path.rglob("*"), "FILE")
    data = kept.read(args.id) if ending == ".edcase" else exported(case, ending, which)
    try:
        disk.write(out, data)
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {disk.why(error, 'FILE')}") from None
    print(f"{out}: {len(data)} bytes")


def import_(args: argparse.Namespace) -> None:
    from ..cases.bundle import MAX_BYTES

    case, new = Kept().take_in(untrusted.content(Path(args.file), MAX_BYTES, ParameterError))
    print(f"{case.id}  {case.title}{'' if new else '  (was here already)'}")


def delete(args: argparse.Namespace) -> None:
    Kept().delete(args.id)
    print(f"{args.id} was deleted.")


def check(args: argparse.Namespace) -> int:
    from ..results.store import Store

    n, damaged = Kept().check()
    n_results, damaged_results = Store().check()
    problems = damaged + damaged_results
    checked = f"{say.count(n, 'case study')} and {say.count(n_results, 'result')} checked"
    print(f"{checked}, {len(problems) or 'nothing'} damaged")
    for problem in problems:
        print(f"ed_core: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def exported(case: Case, ending: str, which: str = "") -> bytes:
    """A case study as a file of one of `EXPORTS`; `which`: the measure of a table, the figure of a picture."""
    kind = ending.removeprefix(".")
    if kind == "html":
        from ..cases.report import report

        return report(case).encode()
    if kind in ("sh", "py"):
        from ..cases.snippet import snippet

        found = snippet(case)
        return f"{found.shell if kind == 'sh' else found.python}\n".encode()
    if kind in ("png", "svg"):
        return _picture(case, kind, which)
    from ..cases import export

    if kind == "npz":
        return export.npz(export.case_arrays(case))
    measures = export.tables(case)
    if which not in measures:
        raise _unknown("--measure", which, sorted(measures))
    return export.csv(*measures[which]).encode() if kind == "csv" else export.parquet(*measures[which])


def _unknown(option: str, value: str, known: Iterable[str]) -> ParameterError:
    told = f"is {value!r}" if value else "is missing"
    return ParameterError(f"{option} {told}; this case study has {'; '.join(known)}.")


def _picture(case: Case, kind: str, figure: str) -> bytes:
    from ..cases.drawings import by_name
    from ..figures import images

    found = by_name(case)
    if figure.lower() not in found:
        raise _unknown("--figure", figure, found)
    drawing = found[figure.lower()]
    results = [drawing.result] if drawing.result is not None else [item.result for item in case.items]
    return images.render(drawing.figure, kind, f"{drawing.title} · {drawing.caption}", images.origin(results))


EXPORTS = (".edcase", ".html", ".npz", ".csv", ".parquet", ".png", ".svg", ".sh", ".py")
