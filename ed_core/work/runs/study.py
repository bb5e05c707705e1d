"""A study, claims, a card and a paper's protocol, carried out into a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ... import disk
from ...api import model as opened
from ...errors import EffectiveDepthError, ParameterError
from ..turn import Turn

if TYPE_CHECKING:
    from ...cards import making
    from ...claims import running
    from ...studies.study import ModelEntry


def study(turn: Turn, file: str, out: Path, device: str = "auto", dry_run: bool = False) -> bytes:
    """Compute a study's file (TOML) into the folder `out`, or continue it, and return the summary. `dry_run`: only say
    what would be computed."""
    return _study(turn, file, out, device, dry_run, turn.tell).encode()


def _study(turn: Turn, file: str, out: Path, device: str, dry_run: bool, tell: Callable[[float, str], None]) -> str:
    """Compute a study as `study` does and return the summary as text. `tell`: gets the share done and of what."""
    from ...studies import plan as planning
    from ...studies import report, running
    from ...studies.items import SUMS
    from ...studies.study import read
    from ...studies.tables import VERDICTS
    from ..estimate import about

    place, device = Path(file), opened.device_of(device)[0]
    written = read(file)
    missing = ["" if dry_run else _missing(entry) for entry in written.entries]
    plan = planning.make(written, place.parent, device)
    known = (m if m.trouble else m.model_copy(update={"trouble": why}) for m, why in zip(plan.models, missing))
    plan = replace(plan, models=tuple(known))
    usable, trouble = plan.usable, {m.label: m.trouble for m in plan.models if m.trouble}
    if not usable:
        raise ParameterError(
            f"No model of {place.name} can be used. {' '.join(f'{k}: {v}' for k, v in trouble.items())}"
        )
    for label, why in trouble.items():
        print(f"ed_core: {label} failed: {why}", file=sys.stderr)
    expected = planning.seconds_of(plan, device)
    time = "" if expected is None else f", {about(expected)} by the estimate if all is computed"
    size = [(len(usable), "model"), (plan.n_prompts, "prompt"), (plan.n_items, "item")]
    models, prompts, parts = (f"{n} {what}{'s' * (n != 1)}" for n, what in size)
    turn.say(f"{plan.study.name}: {models} × {prompts}, {parts}{time}")
    turn.failed |= bool(trouble)
    inputs = [place.parent / one.file for one in plan.study.sets if one.file]
    disk.require_apart([out / name for name in (planning.PLAN, SUMS, VERDICTS)], inputs)
    if dry_run:
        return ""
    planning.write_plan(plan, out)
    outcome = running.run(plan, out, turn, tell)
    turn.failed |= bool(outcome.failed)
    for label, why in outcome.failed.items():
        if label not in trouble:
            print(f"ed_core: {label} failed: {why}", file=sys.stderr)
    measures = report.write(out)
    counts = ", ".join(f"{n} {what}" for what, n in outcome.counts.items())
    return f"{counts}\n{out}: {SUMS}, {VERDICTS}, report.html; measures {measures[:16]}"


def _missing(entry: ModelEntry) -> str:
    """Fetch a study's model, and return why that failed; "" where it is here."""
    try:
        opened.fetch(entry.source, entry.control)
    except EffectiveDepthError as error:
        return str(error)
    return ""


def reproduce(
    turn: Turn,
    paper: str,
    models: tuple[str, ...],
    sets: tuple[str, ...],
    limit: int | None,
    precision: str | None,
    device: str,
    out: Path,
    dry_run: bool = False,
) -> bytes:
    """Run a paper's protocol as studies in the folder `out`, and return its figures next to the published ones.
    `limit`: most prompts of each set, None for the paper's; `precision`: None for the paper's. `dry_run`: only say what
    would be computed."""
    from ...studies import reproduce as protocols
    from ...studies.items import open_folder
    from ...studies.plan import writing
    from ...studies.sets import load
    from ...studies.study import write
    from ...studies.words import table

    protocol = protocols.find(paper)
    device = opened.device_of(device)[0]
    precision, why = protocols.precision_of(precision, protocol.precision, device)
    entries = [protocols.model_of(text, precision) for text in models]
    chosen = protocols.chosen(protocol, sets, entries[0].source)
    for entry in chosen.values():  # before anything is computed
        load(entry, Path("."), entries[0].source)
    parts = protocol.parts(entries, chosen, limit)
    measured: list[protocols.Entry] = []
    notes = protocols.protocol(protocol, chosen, limit, precision, why)
    turn.say("\n".join(notes))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, one in parts.items():
            disk.write(out / f"{name}.toml", write(one).encode())
    for i, name in enumerate(parts):

        def tell(share: float, what: str, i: int = i, name: str = name) -> None:
            turn.tell((i + share) / len(parts), f"{name}, {what}")

        summary = _study(turn, str(out / f"{name}.toml"), out / name, device, dry_run, tell)
        if not dry_run:
            turn.say(summary)
            made = open_folder(out / name)
            measured += protocol.entries(made)
            notes += [f"{label} failed ({name}): {failed}" for label, failed in made.failures().items()]
    if dry_run:
        return b""
    disk.write(out / "report.md", protocols.markdown(protocol, measured, notes).encode())
    return f"\n{table(protocols.rows(measured))}\n\n{protocols.counted(measured)}; {out / 'report.md'}".encode()


def claims(turn: Turn, asked: running.Asked, out: Path) -> bytes:
    """Check claims about one model, write what came of them into the folder `out`, and return a line for each."""
    from ...claims import running, words

    asked.chosen(), asked.entry()  # refused before anything is fetched
    disk.require_apart([out / name for name in (running.FOUND, running.REPORT)], [asked.prompts])
    for source in (asked.model, *asked.also):
        opened.fetch(source)
    report = running.run(asked, out, turn)
    width, lines = max(len(one.id) for one in report.findings), []
    for one in report.findings:
        values = "; ".join(f"{q.name} {words.value(q, q.value)}" for q in one.judging)
        lines.append(f"{one.id:<{width}}  {one.verdict:<14}  {values or one.reason}")
    lines.append(f"Checked: {words.counted(report.findings)}; {out / running.REPORT}, {out / running.FOUND}")
    return "\n".join(lines).encode()


def card(turn: Turn, asked: making.Asked, out: Path) -> bytes:
    """Measure a depth card, write it into the folder `out`, and return its headline."""
    from ...cards import card as cards
    from ...cards import making, page

    asked.check()  # before anything is fetched
    disk.require_apart([out / name for name in (cards.FILE, cards.HTML, cards.MARKDOWN)], [asked.prompts])
    for source in (asked.model, *asked.also):
        opened.fetch(source)
    made = making.make(asked, out, turn)
    lines = [page.headline(made), f"{len(made.claims)} claims: {page.counted(made)}"]
    return "\n".join([*lines, f"Card: {out / cards.HTML}, {out / cards.MARKDOWN}, {out / cards.FILE}"]).encode()
