"""Links in a real browser: what a fresh session shows, what survives a page change, and where Back leads."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from test_browser import fill, settled, wait

pytestmark = pytest.mark.browser

MODEL = "ed-demo-8"


def query(tab) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlsplit(tab.url).query).items()}


def path(tab) -> str:
    return urlsplit(tab.url).path.strip("/")


def opened(tab, url: str) -> None:
    tab.goto(url)
    tab.get_by_role("button", name="Run").wait_for()


def shows(tab, name: str) -> bool:
    """Whether a radio shows this now; read in one step, as a page that is drawn anew may lack it in the next."""
    ways = "all => all.map(b => [b.getAttribute('aria-checked'), b.getAttribute('aria-pressed')])"
    return any("true" in held for held in tab.get_by_role("radio", name=name, exact=True).evaluate_all(ways))


def options(tab) -> bool:
    """Open a page's Options, where it has some; True, so that a condition may begin with it."""
    button = tab.get_by_role("button", name="Options")
    if button.count() and button.get_attribute("aria-expanded") != "true":
        button.click()
        settled(tab)
    return True


def prompt(tab) -> str:
    return tab.get_by_label("Prompt", exact=True).input_value()


def test_a_link_to_a_page_opens_in_a_fresh_session_and_after_a_reload(server, page):
    opened(page, f"{server}/logit_lens?model={MODEL}&precision=bf16&example=copy-3-a&shade=rank")
    for _ in range(2):
        wait(page, lambda: page.get_by_role("combobox", name="Shade").input_value() == "rank of the output")
        wanted = {"model": MODEL, "precision": "bf16", "shade": "rank"}
        assert wanted.items() <= query(page).items()
        wait(page, lambda: prompt(page).startswith("Copy"))
        assert "· bf16 ·" in page.locator(".st-key-model-box").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"
        page.reload()
        page.get_by_role("button", name="Run").wait_for()


def test_back_and_forward_lead_to_a_page_as_it_was_left(server, page):
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a&of=answer")
    settled(page)
    page.get_by_role("link", name="Intervene", exact=True).click()
    wait(page, lambda: path(page) != "" and "model" in query(page))
    settled(page)  # a page that is left before it is drawn has put nothing of its own into the URL
    assert "of" not in query(page)

    def at(where: str, own: str, control: str) -> None:
        wait(page, lambda: path(page) == where and options(page) and shows(page, control))
        assert own in f"{query(page)}" and query(page)["example"] == "copy-3-a" and prompt(page).startswith("Copy")

    page.go_back()
    settled(page)
    at("", "answer", "where the answer is predicted")
    page.go_forward()
    settled(page)
    options(page)
    page.get_by_role("radio", name="later tokens").click()
    wait(page, lambda: query(page).get("mode") == "future")
    settled(page)
    page.go_back()  # the option's step
    settled(page)
    page.go_forward()
    at("skip", "mode", "later tokens")


def test_the_link_button_gives_what_opens_the_same_view(server, page, visitor):
    opened(page, f"{server}/logit_lens?model={MODEL}&shade=rank")
    fill(page, "Prompt", "My own sum: 9 + 5 = ")
    page.get_by_role("button", name="Run").click()
    page.locator(".st-key-headline h2", has_text="settle by").wait_for()
    wait(page, lambda: len(query(page).get("run", "")) == 12)
    page.get_by_role("button", name="Share").click()
    code = page.locator("[data-testid=stPopoverBody] code")
    wait(page, lambda: code.inner_text().strip() == page.url)
    link, run = code.inner_text().strip(), query(page)["run"]
    other = visitor()
    for url in (link, f"{server}/logit_lens?run={run}", f"{server}/logit_lens?run={run[:9]}"):
        opened(other, url)
        other.locator(".st-key-headline h2", has_text="settle by").wait_for()
        wait(other, lambda: query(other).get("run") == run and prompt(other) == prompt(page))
        assert query(other)["model"] == MODEL


def test_a_typed_prompt_survives_a_reload_and_is_in_no_link_until_it_has_run(server, page):
    opened(page, f"{server}/contributions?model={MODEL}")
    fill(page, "Prompt", "Left: 1 + 1 = ")
    page.get_by_label("Prompt", exact=True).fill("My own secret: 3 + 4 = ")  # and the box is not left
    page.reload()
    wait(page, lambda: prompt(page).startswith("My own secret"))
    wait(page, lambda: "example" not in query(page))
    page.get_by_role("button", name="Share").click()
    page.get_by_text("a text never enters a link").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Run").click()
    wait(page, lambda: "run" in query(page))
    assert "secret" not in page.url
