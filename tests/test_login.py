"""Logging in for real: a browser, Streamlit's OIDC, and an identity provider on 127.0.0.1."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from mock_oidc import SECRET, Provider
from test_browser import wait

from tools.bench.browser import free_port, serving

pytestmark = pytest.mark.browser


ADA = {"sub": "1", "email": "Ada@lab.org", "email_verified": True, "name": "Ada <b>L.</b>"}


@pytest.fixture(scope="module")
def provider():
    made = Provider()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def honest(provider):
    provider.who = ADA


@dataclass
class Served:
    address: str
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def served(folder, provider, login):
    port, secrets, settings = free_port(), folder / "secrets.toml", folder / "lab.toml"
    secrets.write_text(provider.secrets_toml(f"http://127.0.0.1:{port}"))
    settings.write_text(f'login = "{login}"\nlogin_allowed = ["@lab.org", "guest@elsewhere.org"]\n')
    options, environment = ("--secrets.files", str(secrets)), {"ED_CONFIG": str(settings), "OMP_NUM_THREADS": "1"}
    with serving(folder / "cache", *options, port=port, log=folder / "log", **environment) as address:
        yield Served(address, folder)


@pytest.fixture(scope="module")
def app(tmp_path_factory, provider):
    with served(tmp_path_factory.mktemp("login"), provider, "optional") as running:
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory, provider):
    with served(tmp_path_factory.mktemp("login"), provider, "required") as running:
        yield running


@pytest.fixture
def visit(visitor):
    """`visit(address)`: a page in a browser of its own, without anybody's cookies; an exception box fails the test."""
    pages = []

    def opened(address: str):
        pages.append(visitor())
        pages[-1].goto(address)
        return pages[-1]

    yield opened
    tabs = [tab for page in pages for tab in page.context.pages]
    assert not [box.inner_text() for tab in tabs for box in tab.query_selector_all("[data-testid=stException]")]


def log_in(page, who: str):
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Log out").wait_for()
    page.locator(".st-key-visitor").get_by_text(who).wait_for()


def test_who_is_logged_in_saves_and_deletes_and_nobody_else(app, provider, visit):
    page = visit(app.address)
    share = page.locator("[class*=st-key-share] button").first
    share.click()
    save = page.locator("[data-testid=stPopoverBody]").get_by_role("button", name="Save", exact=True)
    page.locator("[data-testid=stPopoverBody]").get_by_text("Save as a case study").wait_for()
    assert not save.count(), "who is not logged in keeps nothing"
    page.keyboard.press("Escape")
    log_in(page, "Ada <b>L.</b>")
    share.click()
    save.wait_for()
    save.click()
    page.get_by_role("link", name="Open the case study").click()
    actions = page.locator(".st-key-case-actions")
    actions.wait_for()
    link = page.url
    other_tab = page.context.new_page()
    other_tab.goto(app.address + "/skip")
    other_tab.locator(".st-key-visitor").get_by_text("Ada <b>L.</b>").wait_for()
    (kept,) = (app.folder / "cache" / "kept").glob("*.edcase")
    assert b"ada@lab.org" not in kept.read_bytes().lower()

    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Log in").wait_for()
    assert "login=" not in page.url, "coming back from a logout is no failure"
    page.goto(link)
    actions.wait_for()
    delete = actions.get_by_role("button", name="Delete")
    assert delete.is_disabled() and actions.get_by_role("button", name="Edit").is_disabled()
    log_in(page, "Ada")
    page.goto(link)
    wait(page, delete.is_enabled, 60)
    delete.click()
    page.get_by_role("button", name="Delete it").click()
    wait(page, lambda: not kept.exists(), 60)


def test_a_required_login_stands_before_everything(closed, provider, visit):
    for path in ("/", "/skip", "/?model=ed-demo-8&example=copy-3-a"):
        page = visit(closed.address + path)
        page.get_by_text("for people who log in").wait_for()
        assert page.get_by_role("button", name="Run").count() == 0
        assert page.get_by_label("Prompt", exact=True).count() == 0 and page.get_by_label("Model").count() == 0
    log_in(page, "Ada")
    page.get_by_role("button", name="Run").wait_for()


def test_who_may_not_log_in_is_told_so(closed, provider, visit):
    page = visit(closed.address)
    for provider.who, words in (
        (ADA | {"email": "eve@notlab.org"}, "eve@notlab.org may not log in here"),
        (ADA | {"email_verified": False}, "has not verified the address ada@lab.org"),
        ({"sub": "4", "name": "Nobody"}, "gave no e-mail address"),
    ):
        page.get_by_role("button", name="Log in").click()
        page.get_by_text(words).wait_for()
        assert page.get_by_role("button", name="Run").count() == 0
        page.get_by_role("button", name="Log out").click()
        page.get_by_text("for people who log in").wait_for()


def test_a_forged_cookie_is_nobody(app, visit):
    page = visit(app.address)
    page.context.add_cookies(
        [{"name": "_streamlit_user", "value": '{"email": "ada@lab.org", "is_logged_in": true}', "url": app.address}]
    )
    page.goto(app.address)
    page.get_by_role("button", name="Log in").wait_for()


def test_nothing_secret_is_in_the_log(app, closed, provider):
    """Last: whatever the other tests did is in it."""
    text = app.log + closed.log
    assert provider.codes and provider.tokens
    for secret in (SECRET, *provider.codes, *provider.tokens):
        assert secret not in text
