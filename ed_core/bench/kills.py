"""The real app, its worker included, is killed while somebody saves: what the page had said to be saved must be there,
whole.

One round is one life of the app: a browser edits the notes of a case study and keeps views of Home in turn, while a
result is computed beside it; at a random moment every process of the app gets SIGKILL. The folder is looked at from
outside, then the next life begins on it."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from ..cases.kept import Kept
from ..errors import CaseError
from ..results.store import Store
from ..sources.bundled import load_prompts
from . import Row
from .browser import App, chromium
from .durability import template

KILLS = int(os.environ.get("ED_BENCH_APP_KILLS", "50"))
LONGEST = 10.0  # seconds that an app lives after its pages stand
PATIENCE = 4_000  # milliseconds for one step in the browser


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        return rows(*run(Path(folder), KILLS, random.Random(0), browser))


def run(cache: Path, kills: int, rng: random.Random, browser) -> tuple[Counter, float]:
    """What happened, as counts, and how long it took."""
    kept, begin, counts = (
        Kept(cache, shipped=None),
        time.monotonic(),
        Counter(kills=0, reported=0, interrupted=0, lost=0, torn=0),
    )
    case = template()
    kept.add(case)
    expected: dict[str, set[str]] = {case.id: {case.notes}}  # notes that a case study may have
    titles: dict[str, bool] = {}  # of views kept on Home: whether that was reported
    examples = [p["id"] for p in load_prompts()]
    while counts["kills"] < kills:
        _life(
            App(cache),
            browser,
            case.id,
            rng.choice(examples),
            rng.uniform(0, LONGEST),
            rng,
            expected[case.id],
            titles,
            counts,
        )
        counts["kills"] += 1
        _look(cache, expected, titles, counts)
    return counts, time.monotonic() - begin


def _life(
    app: App,
    browser,
    id: str,
    example: str,
    seconds: float,
    rng: random.Random,
    notes: set[str],
    titles: dict[str, bool],
    counts: Counter,
) -> None:
    """Save until the app is dead; `notes` and `titles` take what was begun and what was reported."""
    from playwright.sync_api import Error

    context = browser.new_context(viewport={"width": 1440, "height": 1500})
    context.set_default_timeout(20 * PATIENCE)
    study, home = context.new_page(), context.new_page()
    try:
        home.goto(f"{app.address}/?model=ed-demo-8&example={example}")
        home.get_by_role("button", name="Run", exact=True).click()
        study.goto(f"{app.address}/case?id={id}")
        study.get_by_role("button", name="Edit", exact=True).wait_for()
        home.get_by_role("button", name="Save", exact=True).and_(home.locator(":enabled")).wait_for()
        context.set_default_timeout(PATIENCE)
        killer = threading.Timer(seconds, app.kill)
        killer.start()
    except BaseException:
        app.kill()
        raise
    under_way = False
    try:
        while app.process.poll() is None:
            word = f"{rng.random():.12f}"
            under_way = True
            if rng.random() < 0.7:
                notes.add(word)
                _edit(study, word)
                notes.intersection_update({word})
            else:
                titles[word] = False
                _keep(home, word)
                titles[word] = True
            under_way = False
            counts["reported"] += 1
    except Error:  # the app died under the browser; whatever else it was, the killer still comes
        counts["interrupted"] += under_way
    killer.join()
    context.close()


def _edit(page, word: str) -> None:
    """Other notes for the case study; returns once the page says that they are saved."""
    page.get_by_role("button", name="Edit", exact=True).click()
    form = page.locator(".st-key-editing")
    form.get_by_label("Notes").fill(word)
    form.get_by_label("Notes").blur()
    page.locator(".st-key-editing .ed-notes", has_text=word).wait_for()
    form.get_by_role("button", name="Save", exact=True).click()
    page.locator(".st-key-case .ed-notes", has_text=word).and_(
        page.locator(":not(.st-key-editing .ed-notes)")
    ).wait_for()
    form.wait_for(state="detached")


def _keep(page, word: str) -> None:
    """Keep what Home shows under this title; returns once the page says so."""
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Save", exact=True).first.click()
    panel = page.locator("[data-testid=stPopoverBody]")
    again = panel.get_by_role("button", name="Save it once more")
    if again.count():
        again.click()
    panel.get_by_label("Title").fill(word)
    panel.get_by_label("Title").blur()
    panel.get_by_role("button", name="Save", exact=True).click()
    panel.get_by_text(f"Saved: {word}").wait_for()


def _look(cache: Path, expected: dict[str, set[str]], titles: dict[str, bool], counts: Counter) -> None:
    """Read everything anew: what is not as it must be is lost, what cannot be read is torn."""
    kept = Kept(cache, shipped=None)
    found = Counter(card.title for card in kept.cards())
    for id, states in expected.items():
        try:
            notes = kept.open(id)[0].notes
        except CaseError:
            notes = None
        counts["lost"] += notes not in states
        expected[id].clear()
        expected[id].add(notes or "")
    for title, reported in list(titles.items()):
        counts["lost"] += found[title] != 1 if reported else found[title] > 1
        if reported is False:
            titles[title] = found[title] == 1
            if not titles[title]:
                del titles[title]
    _, damaged = Store(cache).check()
    counts["torn"] += len(kept.damaged()) + len(kept.problems) + len(damaged)
    strangers = set(found) - set(titles) - {"Template"}
    counts["torn"] += len(strangers)


def rows(counts: Counter, seconds: float) -> list[Row]:
    told = f"{counts['reported']} reported, {counts['interrupted']} killed in the middle of one, {seconds:.0f} s"
    return [
        Row(
            f"{counts['kills']} kills of the app with its worker: lost after being reported",
            f"{counts['lost']} ({told})",
            "0",
            counts["lost"] == 0 and counts["reported"] > 0,
        ),
        Row("damaged case studies or results", str(counts["torn"]), "0", counts["torn"] == 0),
    ]
