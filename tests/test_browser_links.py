"""Links in a real browser: what a fresh session shows, what survives a page change, and where Back leads."""

from __future__ import annotations

from itertools import cycle
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from PIL import Image
from test_browser import settled, wait

from tools.bench.browser import serving

pytestmark = pytest.mark.browser

MODEL = "ed-demo-8"
PAGES = {  # path: its tab, a parameter of its own in the URL, how it shows
    "": ("All maps", "branch=mlp", ("radio", "MLP")),
    "contributions": ("Contributions", "measure=attn_cos", ("combobox", "Attention: direction")),
    "logit_lens": ("Logit lens", "shade=rank", ("radio", "rank of the output")),
    "lenses": ("Fitted lenses", "shade=jsd", ("radio", "Jensen–Shannon")),
    "skip": ("Skip", "mode=future", ("radio", "later tokens")),
    "erase": ("Erase", "target=future", ("radio", "later tokens")),
    "gradients": ("Gradients", "nodes=65", ("spinbutton", "65")),
    "prune": ("Prune and exit", "prompts=bundled", ("radio", "Bundled prompts")),
    "maps": ("Linear maps", "maps=within", ("radio", "Within one model")),
    "audit": ("Precisions", "precisions=fp32,bf16,int8", ("opens", "fp32, bf16, int8")),
}


def query(tab) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(urlsplit(tab.url).query).items()}


def path(tab) -> str:
    return urlsplit(tab.url).path.strip("/")


def opened(tab, url: str) -> None:
    tab.goto(url)
    tab.get_by_role("button", name="Run").wait_for()


def go(tab, name: str, room: str = "") -> None:
    """Click a room or a tab, of another `room` where one is named, and wait until the page has put its own parameters
    into the URL."""
    if room:
        go(tab, room)
    tab.keyboard.press("Escape")  # what is open stands over links
    before = path(tab)
    tab.get_by_role("link", name=name, exact=True).click()
    wait(tab, lambda: path(tab) != before and "model" in query(tab))
    settled(tab)  # a page that is left before it is drawn has put nothing of its own into the URL


def shows(tab, role: str, name: str) -> bool:
    """Whether such a control shows this now; read in one step, as a page that is drawn anew may lack it in the next."""
    if role in ("combobox", "spinbutton"):
        held = tab.get_by_role(role).evaluate_all("all => all.map(b => [b.value, b.ariaLabel || ''])")
        return any(value == name or name in label for value, label in held)
    if role == "opens":  # a button whose label says what stands behind it
        return tab.get_by_role("button", name=name, exact=True).count() == 1
    ways = "all => all.map(b => [b.getAttribute('aria-checked'), b.getAttribute('aria-pressed')])"
    return any("true" in held for held in tab.get_by_role(role, name=name, exact=True).evaluate_all(ways))


def options(tab) -> bool:
    """Open a page's Options, where it has some; True, so that a condition may begin with it."""
    button = tab.get_by_role("button", name="Options")
    if button.count() and button.get_attribute("aria-expanded") != "true":
        button.click()
        settled(tab)
    return True


def computed_in(tab, precision: str) -> bool:
    """Whether the model on top of the page is in this precision."""
    return f"· {precision} ·" in tab.locator(".st-key-model-box").inner_text()


def prompt(tab) -> str:
    return tab.get_by_label("Prompt", exact=True).input_value()


def test_the_first_links_of_two_visitors_to_a_fresh_server_open(visitor, tmp_path):
    with serving(tmp_path) as fresh:
        tabs = [visitor() for _ in range(2)]
        for tab, name in zip(tabs, ("skip", "logit_lens")):
            tab.evaluate(f"setTimeout(() => location.assign('{fresh.address}/{name}?model={MODEL}'), 300)")
        for tab, heading in zip(tabs, ("What breaks without it?", "Where does this answer form?")):
            tab.get_by_role("heading", name=heading).wait_for()
            tab.get_by_role("button", name="Run").wait_for()
            settled(tab)
            assert tab.get_by_text("does not seem to exist").count() == 0


@pytest.mark.parametrize("name", PAGES)
def test_a_link_to_a_page_opens_in_a_fresh_session_and_after_a_reload(server, page, name):
    title, own, (role, shown) = PAGES[name]
    opened(page, f"{server}/{name}?model={MODEL}&precision=bf16&example=copy-3-a&{own}")
    for _ in range(2):
        wait(page, lambda: options(page) and shows(page, role, shown))
        assert own in page.url.replace("%2C", ",") and query(page)["model"] == MODEL
        assert query(page)["precision"] == "bf16"
        assert name in ("prune", "audit", "maps") or wait(page, lambda: prompt(page).startswith("Copy"))
        assert page.get_by_role("link", name=title, exact=True).count() and computed_in(page, "bf16")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"
        page.reload()
        page.get_by_role("button", name="Run").wait_for()


def test_what_all_pages_share_survives_a_page_change_and_the_rest_goes(server, page):
    opened(
        page,
        f"{server}/skip?model={MODEL}&precision=bf16&example=copy-3-a&control=shuffled&control_seed=5&mode=future&foreign=1",
    )
    for way in (
        ("Logit lens", "Prompt"),
        ("Prompt",),
        ("Contributions",),
        ("Sanity checks", "Model"),
        ("Prune and exit", "Intervene"),
    ):
        go(page, *way)
        assert {k: v for k, v in query(page).items() if k != "run"} == {
            "model": MODEL,
            "precision": "bf16",
            "example": "copy-3-a",
            "control": "shuffled",
            "control_seed": "5",
        }
    go(page, "Skip")
    assert query(page)["mode"] == "future", "a page's own parameters come back with it"


def test_back_and_forward_take_one_step_to_a_page_as_it_was_left(server, page):
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a")
    options(page)
    page.get_by_role("radio", name="MLP").click()
    wait(page, lambda: query(page).get("branch") == "mlp")
    go(page, "Intervene")
    options(page)
    page.get_by_role("radio", name="later tokens").click()
    wait(page, lambda: query(page).get("mode") == "future")
    go(page, "Erase")
    page.get_by_text("Look-ups", exact=True).click()
    wait(page, lambda: query(page).get("example", "").startswith("lookup"))
    page.locator(".st-key-model-box button").first.click()
    page.get_by_role("radio", name="bf16").click()
    wait(page, lambda: query(page).get("precision") == "bf16")
    page.keyboard.press("Escape")
    left = page.url
    for move, where, control in (
        (page.go_back, "skip", "later tokens"),
        (page.go_back, "", "MLP"),
        (page.go_forward, "skip", "later tokens"),
    ):
        move()
        wait(
            page,
            lambda: (
                path(page) == where
                and options(page)
                and shows(page, "radio", control)
                and computed_in(page, "fp32")
                and prompt(page).startswith("Copy")
            ),
        )
        assert query(page)["example"] == "copy-3-a" and "precision" not in query(page)
    page.go_forward()
    wait(
        page,
        lambda: path(page) == "erase" and prompt(page).startswith("Look up") and computed_in(page, "bf16"),
        20,
    )
    assert page.url == left


def test_the_link_button_gives_what_opens_the_same_view(server, page, visitor):
    opened(page, f"{server}/logit_lens?model={MODEL}&example=copy-3-a&shade=rank")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("Measured on").wait_for()
    wait(page, lambda: len(query(page).get("run", "")) == 12)
    page.get_by_role("button", name="Link", exact=True).click()
    code = page.locator("[data-testid=stPopoverBody] code")
    wait(page, lambda: code.inner_text().strip() == page.url)
    link, run = code.inner_text().strip(), query(page)["run"]
    other = visitor()
    for url in (link, f"{server}/logit_lens?run={run}", f"{server}/logit_lens?run={run[:9]}"):
        opened(other, url)
        other.get_by_text("Measured on").wait_for()
        wait(other, lambda: query(other).get("run") == run and prompt(other) == prompt(page))
        assert query(other)["model"] == MODEL


def test_what_is_on_the_screen_is_copied_as_one_picture_or_saved_where_a_page_may_not_copy(server, page):
    opened(page, f"{server}/?model=ed-demo-8&example=sum-mod10-5-a")
    page.locator(".st-key-lens .js-plotly-plot .heatmaplayer").wait_for()
    page.evaluate(
        "() => { navigator.clipboard.write = async ([one]) => { window.edCopied = await one.getType('image/png') } }"
    )
    page.get_by_role("button", name="Link", exact=True).click()
    page.get_by_role("button", name="Copy as picture").click()
    page.get_by_role("button", name="Picture copied").wait_for()
    page.evaluate("() => { navigator.clipboard.write = () => Promise.reject(new Error('not here')) }")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Picture copied").click()
    with Image.open(saved.value.path()) as picture:
        assert picture.size == (1200, 630) and picture.format == "PNG"
        colours = picture.convert("RGB").resize((300, 157)).getcolors(300 * 157)
    assert len(colours) > 500, "figures, not words alone"
    assert page.evaluate("window.edCopied.size") > 20_000


def test_a_typed_prompt_is_in_no_link_until_it_has_run(server, page):
    opened(page, f"{server}/contributions?model={MODEL}")
    box = page.get_by_label("Prompt", exact=True)
    box.fill("My own secret: 3 + 4 = ")
    box.blur()
    wait(page, lambda: "example" not in query(page))
    page.get_by_role("button", name="Link", exact=True).click()
    page.get_by_text("a text never enters a link").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Run").click()
    wait(page, lambda: "run" in query(page))
    assert "secret" not in page.url


def test_a_link_to_a_controls_run_picks_the_control(server, page, visitor):
    opened(page, f"{server}/logit_lens?model={MODEL}&example=copy-3-a&control=untrained&control_seed=3")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("Measured on").wait_for()
    wait(page, lambda: "run" in query(page))
    assert query(page)["control"] == "untrained" and query(page)["control_seed"] == "3"
    fresh = visitor()
    opened(fresh, page.url)
    wait(fresh, lambda: options(fresh) and shows(fresh, "combobox", "Control: untrained twin"))
    assert fresh.get_by_label("Seed of the control").input_value() == "3"


HOSTILE = [
    "<script>document.title='owned'</script>",
    "../../../etc/passwd",
    "a" * 5000,
    "\x00\x01",
    "{{7*7}}",
    "javascript:alert(1)",
    "%00",
    "𝟙\u202e",
]


@pytest.mark.parametrize("values", [HOSTILE[:1], HOSTILE[1:]], ids=["a script", "the others"])
def test_hostile_values_never_break_a_page(server, page, values):
    """A script in every place, and the others in turn: what a page makes of each, test_links holds."""
    names = (
        "model",
        "precision",
        "adapter",
        "revision",
        "run",
        "example",
        "control",
        "control_seed",
        "mode",
        "n_boundaries",
        "boundaries",
        "token",
        "device",
    )
    page.goto(f"{server}/skip?{urlencode(dict(zip(names, cycle(values))))}")
    page.get_by_role("heading", name="What breaks without it?").wait_for()
    page.get_by_text("parameter of the link was ignored").first.wait_for()
    settled(page)
    assert "owned" not in page.title() and page.locator("[data-testid=stException]").count() == 0


def test_two_pages_parameters_do_not_leak_into_the_other_when_clicked_through(server, page):
    """The step to the next page must be in the history before its parameters are written."""
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a&branch=mlp")
    wait(page, lambda: options(page) and shows(page, "radio", "MLP"))
    for _ in range(4):
        go(page, "Intervene")
        go(page, "Prompt")
    for _ in range(8):
        page.go_back()
        settled(page)
        wait(page, lambda: path(page) in ("", "skip") and (path(page) == "") == ("branch" in query(page)))
