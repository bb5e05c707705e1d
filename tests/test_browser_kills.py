"""The real app, its worker included, is killed while somebody saves: what the page had said to be saved must be there,
whole.

One round is one life of the app: a browser edits the notes of a case study and keeps views of Home in turn, while a
result is computed beside it; at a random moment every process of the app gets SIGKILL. The folder is looked at from
outside, then the next life begins on it."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from kept_cases import small
from test_browser import wait

from ed_core.cases.kept import Kept
from ed_core.errors import CaseError
from ed_core.results.store import Store
from ed_core.sources.bundled import load_prompts
from tools.bench.browser import App

pytestmark = pytest.mark.browser

LONGEST = 10.0  # seconds that an app lives after its pages stand
PATIENCE = 4_000  # milliseconds for one step in the browser


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_the_app_is_killed_and_nothing_is_lost(browser, tmp_path, kills):
    counts = run(tmp_path, kills, random.Random(3), browser)
    assert counts["kills"] >= kills and counts["reported"] > 0 and counts["lost"] == counts["torn"] == 0, counts


def test_what_is_lost_or_damaged_is_counted(tmp_path):
    kept, counts, case = Kept(tmp_path, shipped=None), Counter(), small("Template")
    kept.add(case)
    _look(tmp_path, {case.id: {"reported"}}, {"kept on Home": True, "under way": False}, counts)
    assert counts["lost"] == 2 and counts["torn"] == 0
    next(tmp_path.glob("kept/*.edcase")).write_bytes(b"half of it")
    _look(tmp_path, {}, {}, counts)
    assert counts["torn"] > 0


def run(cache: Path, kills: int, rng: random.Random, browser) -> Counter:
    """What happened, as counts: `reported` as saved, of them `lost`, and `torn` what cannot be read."""
    counts, case = Counter(kills=0, reported=0, lost=0, torn=0), small("Template")
    Kept(cache, shipped=None).add(case)
    expected: dict[str, set[str]] = {case.id: {case.notes}}  # notes that a case study may have
    titles: dict[str, bool] = {}  # of views kept on Home: whether that was reported
    examples = [p["id"] for p in load_prompts()]
    while counts["kills"] < kills or not counts["reported"]:
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
    return counts


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
    context.set_default_timeout(60 * PATIENCE)
    study, home = context.new_page(), context.new_page()
    try:
        home.goto(f"{app.address}/?model=ed-demo-8&example={example}")
        home.get_by_role("button", name="Run", exact=True).click()
        study.goto(f"{app.address}/case?id={id}")
        study.get_by_role("button", name="Edit", exact=True).wait_for()
        wait(home, home.get_by_role("button", name="Save", exact=True).is_enabled)
        context.set_default_timeout(PATIENCE)
        killer = threading.Timer(seconds, app.kill)
        killer.start()
    except BaseException:
        app.kill()
        raise
    try:
        while app.process.poll() is None:
            word = f"{rng.random():.12f}"
            if rng.random() < 0.7:
                notes.add(word)
                _edit(study, word)
                notes.intersection_update({word})
            else:
                titles[word] = False
                _keep(home, word)
                titles[word] = True
            counts["reported"] += 1
    except Error:
        pass  # the app died under the browser; whatever else it was, the killer still comes
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
