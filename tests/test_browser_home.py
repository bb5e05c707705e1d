"""Home as somebody meets it who has never seen it: what stands above the fold, how near Run is, and that nothing typed
is lost."""

from __future__ import annotations

import json
import urllib.request

import pytest
from hosted_app import hosted
from test_browser import fill, settled, wait
from test_figures import fake

from ed_ui import show, streamlit_edges
from ed_ui.server import STYLE
from tools.bench.browser import ROOT, serving

pytestmark = pytest.mark.browser

MODEL = "ed-demo-8"
MOVES = """() => {
  window.moved = {};
  const tops = {};
  const look = () => {
    for (const box of document.querySelectorAll('[class*=st-key-box-]')) {
      const key = box.className.match(/st-key-box-[^ ]+/)[0], y = box.getBoundingClientRect().top + scrollY;
      const by = Math.abs(y - (tops[key] ?? y));
      if (by > 20) window.moved[key] = Math.max(by, window.moved[key] ?? 0);
      tops[key] = y;
    }
    requestAnimationFrame(look);
  };
  look();
}"""


def boxes(page) -> tuple[str, str]:
    return tuple(page.get_by_label(name, exact=True).input_value() for name in ("Prompt", "Answer"))


def opened(page, address: str) -> None:
    page.goto(address)
    page.locator(".st-key-run-row").wait_for()
    settled(page)


def test_the_verdict_and_two_maps_stand_above_the_fold_and_run_is_near(server, page):
    page.set_viewport_size({"width": 1440, "height": 900})
    opened(page, f"{server}/?model={MODEL}&example=sum-mod10-5-a")
    first, second = (page.locator(f".st-key-box-{key} .js-plotly-plot").bounding_box() for key in ("norms", "cosine"))
    assert first["y"] == second["y"] <= 380 and first["y"] + first["height"] <= 900
    said = page.locator(".st-key-headline")
    assert said.bounding_box()["y"] + said.bounding_box()["height"] <= first["y"] and "best guess" in said.inner_text()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first stop skips the navigation
    stops = []
    for _ in range(5):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.innerText"))
    assert any("Run" in stop for stop in stops), stops


WORDS = """() => {
  const verdict = document.querySelector('.st-key-home-verdict');
  const walk = document.createTreeWalker(verdict, NodeFilter.SHOW_TEXT), said = [];
  while (walk.nextNode()) {
    const box = walk.currentNode.parentElement, at = box.getBoundingClientRect();
    const drawn = at.width > 1 && at.height > 1 && getComputedStyle(box).visibility != 'hidden';
    // numbers of the axis and icons, whose names are text, are no words
    if (drawn && !box.closest('style, script, .xtick, [data-testid=stIconMaterial]')) said.push(walk.currentNode.data);
  }
  return said.join(' ').split(/\\s+/).filter(word => /[A-Za-z0-9]/.test(word));
}"""


@pytest.mark.parametrize(
    "model, example",
    [
        ("ed-demo-8", "sum-mod10-5-a"),
        ("ed-demo-16", "sum-mod10-5-a"),
        ("smollm2", "english-b"),
        ("smollm2", "english-i"),
    ],
)
def test_at_most_sixty_words_stand_between_prompt_and_first_map(server, page, model, example):
    """One headline and two lines beside five twins, with the ruler's own words; the reasons are behind a click."""
    page.set_viewport_size({"width": 1440, "height": 900})
    opened(page, f"{server}/?model={model}&example={example}")
    page.locator(".st-key-box-ruler .js-plotly-plot").wait_for()
    words = page.evaluate(WORDS)
    assert 40 < len(words) <= 60 and "twins:" in words, " ".join(words)
    assert "not clear" not in page.locator(".st-key-home-verdict").inner_text()
    page.locator(".st-key-about-ruler").get_by_text("Why?").click()
    page.get_by_text("The papers' KL rule gives layer").wait_for()


def test_on_a_phone_verdict_and_the_first_map_come_before_all_else(server, page):
    page.set_viewport_size({"width": 400, "height": 800})
    opened(page, f"{server}/?model={MODEL}&example=sum-mod10-5-a")
    assert (
        page.locator(".st-key-box-norms").bounding_box()["y"] < page.locator(".st-key-box-cosine").bounding_box()["y"]
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_nothing_moves_after_it_was_drawn(tmp_path, visitor):
    """Where the app is served with its style in the page itself: no figure's place by more than 20 px, on the first
    visit and on the second, which draws before the style would come; nor on a phone."""
    page, errors = visitor(), []
    page.add_init_script(f"addEventListener('DOMContentLoaded', {MOVES})")
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    with hosted(tmp_path) as app:
        for width, path, least in (
            (1440, "", 6),
            (1440, "", 6),
            (1440, "erase", 2),
            (1440, "two", 14),
            (1440, "numerics", 7),
            (400, "skip", 5),
        ):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{app.address}/{path}?model={MODEL}&example=sum-mod10-5-a")
            page.locator(".st-key-run-row").wait_for()
            wait(page, lambda least=least: page.locator("[class*=st-key-box-] .js-plotly-plot").count() >= least)
            settled(page)
            assert page.evaluate("window.moved") == {} and not errors, (path, errors)


def test_what_was_typed_survives_a_reload_and_an_example_over_it(server, page):
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a")
    wait(page, lambda: boxes(page)[0].startswith("Copy:") and boxes(page)[1])
    example = boxes(page)
    fill(page, "Prompt", "3 + 3 = ")
    wait(page, lambda: boxes(page) == ("3 + 3 = ", ""))
    page.get_by_role("button", name="Undo").click()
    wait(page, lambda: boxes(page) == example)
    fill(page, "Prompt", "3 + 3 = ")
    fill(page, "Answer", "6")
    wait(page, lambda: "example" not in page.url)
    page.reload()
    wait(page, lambda: page.get_by_label("Prompt", exact=True).count() and boxes(page) == ("3 + 3 = ", "6"))
    settled(page)
    assert "3" not in page.url.split("?")[1], "a prompt's text is in no link"
    page.locator("[class*='st-key-task-']").get_by_text("Copying", exact=True).click()
    wait(page, lambda: boxes(page)[0] != "3 + 3 = ")
    page.get_by_role("button", name="Undo").click()
    wait(page, lambda: boxes(page) == ("3 + 3 = ", "6"))
    settled(page)  # until the pill is drawn as no longer chosen, a click on it means "not this one"
    for _ in range(5):  # a click that follows an Undo at once may be undone by what the box still says: see the log
        page.locator("[class*='st-key-task-']").get_by_text("Copying", exact=True).click()
        settled(page)
        if "example=" in page.url:
            break
    wait(page, lambda: "example=" in page.url)
    settled(page)
    page.reload()
    wait(page, lambda: page.get_by_label("Prompt", exact=True).count() and boxes(page)[0])
    settled(page)
    assert boxes(page)[0] != "3 + 3 = ", "what an example replaced for good does not come back"


def test_a_page_that_ended_in_the_browser_is_loaded_again_with_what_was_typed(server, page):
    opened(page, f"{server}/?model={MODEL}")
    fill(page, "Prompt", "3 + 3 = ")
    wait(page, lambda: "example" not in page.url)
    page.evaluate("window.before = true")
    page.evaluate("document.getElementById('root').replaceChildren()")  # as React leaves it behind an error
    page.wait_for_function("!window.before", timeout=240_000)  # asked again of the page that takes its place
    wait(page, lambda: page.get_by_label("Prompt", exact=True).count() and boxes(page)[0] == "3 + 3 = ")


WATCH = """(() => {
window.beside = 0;
const look = () => {
  const [text, answer] = ['textarea', 'input'].map(kind => document.querySelector(`.st-key-prompt-box ${kind}`));
  const maps = [...document.querySelectorAll('.st-key-home-maps .js-plotly-plot, .st-key-headline')];
  const seen = one => one.checkVisibility({visibilityProperty: true}) && one.innerText.trim();
  window.beside += Boolean(text && text.value === '3 + 3 = ' && !(window.edTold || [])[0] && maps.some(seen));
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
})()"""


def test_after_a_reload_no_result_stands_beside_a_prompt_that_it_does_not_belong_to(server, page):
    """The first run of the new session shows the example; what was typed comes back once the boxes are there."""
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a")
    wait(page, lambda: boxes(page)[0].startswith("Copy:") and boxes(page)[1])
    fill(page, "Prompt", "3 + 3 = ")
    wait(page, lambda: boxes(page) == ("3 + 3 = ", "") and "example" not in page.url)
    settled(page)
    kept = lambda: json.loads(page.evaluate("sessionStorage.edPrompt"))
    wait(page, lambda: kept() == ["3 + 3 = ", ""])  # not the answer of the example that was typed over
    page.add_init_script(WATCH)
    page.reload()
    wait(page, lambda: page.get_by_label("Prompt", exact=True).count() and boxes(page) == ("3 + 3 = ", ""))
    wait(page, lambda: "Not computed yet" in page.locator(".st-key-headline").inner_text())
    settled(page)
    assert page.evaluate("window.beside") == 0, "frames"
    assert page.locator(".st-key-headline").is_visible() and not page.locator(".ed-bringing").count()


def test_ctrl_enter_runs_what_was_just_typed(server, page):
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a")
    box = page.get_by_label("Prompt", exact=True)
    wait(page, lambda: box.input_value().startswith("Copy"))
    box.fill("Sums mod 10:\n4 + 5 = ")
    page.keyboard.press("Control+Enter")
    wait(page, lambda: "run=" in page.url and "example=" not in page.url)
    assert box.input_value() == "Sums mod 10:\n4 + 5 = "
    said = page.locator(".st-key-headline")
    wait(page, lambda: said.inner_text().startswith("Next token “"))  # the prompt has no answer


def test_a_press_that_could_not_run_does_not_wait_for_what_is_pressed_next(server, page):
    """It came after a Cancel, and began the run again."""
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a")
    run, box = page.get_by_role("button", name="Run"), page.get_by_label("Prompt", exact=True)
    wait(page, lambda: box.input_value().startswith("Copy"))
    box.fill("")
    page.keyboard.press("Control+Enter")
    wait(page, run.is_disabled)
    run.evaluate("run => addEventListener('click', event => { window.ran ||= run.contains(event.target); }, true)")
    page.get_by_role("button", name="Undo").click()
    wait(page, run.is_enabled)
    page.wait_for_timeout(1500)
    assert not page.evaluate("window.ran")


def test_the_examples_answer_typed_anew_right_before_the_press_is_kept(server, page):
    """It is what the box held before the prompt was edited, and comes in one message with the press."""
    opened(page, f"{server}/?model={MODEL}")
    wait(page, lambda: all(boxes(page)))
    answer = boxes(page)[1]
    page.get_by_label("Prompt", exact=True).fill("Sums mod 10:\n6 + 6 = ")
    page.get_by_label("Prompt", exact=True).blur()
    wait(page, lambda: not boxes(page)[1])
    page.get_by_label("Answer", exact=True).fill(answer)
    page.get_by_role("button", name="Run").click()
    wait(page, lambda: "run=" in page.url and "example=" not in page.url)
    settled(page)
    assert boxes(page) == ("Sums mod 10:\n6 + 6 = ", answer)


def test_the_card_for_newcomers_is_closed_for_good(server, page):
    opened(page, server)
    page.get_by_role("button", name="Got it").click()
    page.locator(".st-key-welcome").wait_for(state="detached")
    page.goto(server)
    page.locator(".st-key-box-ruler").wait_for()
    settled(page)
    assert not page.locator(".st-key-welcome").is_visible()


MARKED = """key => {
  const box = document.querySelector(`.st-key-box-${key} .ed-chart`), full = box._fullLayout;
  const { axis, of } = full.meta.along, mark = box.querySelector('.ed-cursor-depth')?.style;
  if (!mark || mark.display === 'none') return null;  // a figure just drawn has no mark yet
  const [at, length] = axis === 'y' ? [mark.top, mark.height] : [mark.left, mark.width];
  const place = (parseFloat(at) + parseFloat(length) / 2) - full[`${axis}axis`]._offset;
  return Math.round(full[`${axis}axis`].p2l(place)) + (of === 'layer' ? 1 : 0);
}"""


def test_one_depth_is_marked_in_all_figures_by_pointer_and_keys(server, page):
    """And what the lens reads there is said: of the model's own words at the top."""
    page.set_viewport_size({"width": 1440, "height": 1000})
    opened(page, f"{server}/?model={MODEL}&example=sum-mod10-5-a")
    figures = ("ruler", "norms", "cosine", "skip", "token", "lens")
    box = page.locator(".st-key-box-cosine .js-plotly-plot").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 100)
    told = page.locator(".ed-cursor-says")
    told.get_by_text("After layer").wait_for()
    depth = int(told.inner_text().split("(depth ")[1].split(" ")[0])
    assert 1 <= depth <= 8 and {page.evaluate(MARKED, key) for key in figures} == {depth}
    assert "the lens reads" in told.inner_text() and "at " in told.inner_text()
    page.mouse.move(5, 700)
    told.wait_for(state="hidden")
    page.locator(".st-key-box-lens .ed-chart").focus()
    for press in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(press)  # the first shows the output
    told.get_by_text("After layer 5").wait_for()
    assert {page.evaluate(MARKED, key) for key in figures} == {6}
    page.keyboard.press("Escape")
    told.wait_for(state="hidden")
    assert {page.evaluate(MARKED, key) for key in figures} == {None}


def test_the_story_leads_the_prompt_through_the_depths_and_comes_back_when_it_is_asked_for(server, page):
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(server)
    slider = page.get_by_label("Depth", exact=True)
    slider.wait_for()
    settled(page)
    said, guess = page.locator(".ed-story-said"), page.locator(".ed-story-guess")
    last = int(slider.get_attribute("max"))
    final = guess.inner_text()
    assert f"(depth {last} of {last})" in said.inner_text() and "its final word." in said.inner_text()
    slider.focus()
    page.keyboard.press("Home")
    assert f"(depth 0 of {last})" in said.inner_text() and guess.inner_text() != final
    wait(page, lambda: page.evaluate(MARKED, "lens") == 0)
    page.keyboard.press("ArrowRight")
    assert f"After layer 0 (depth 1 of {last})" in said.inner_text()
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Stop").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Got it").click()
    page.locator(".st-key-welcome").wait_for(state="detached")
    page.get_by_role("button", name="What is this?").click()
    slider.wait_for()


def test_streamlit_run_serves_the_page_with_its_style_so_that_nothing_moves_when_it_comes(server, page):
    """As `python -m ed_ui.server` does; a console error, like that of a file that is not there, fails the test."""
    for path in ("", "skip"):
        with urllib.request.urlopen(f"{server}/{path}") as answer:
            assert STYLE in answer.read() and answer.headers["X-Content-Type-Options"] == "nosniff", path
    page.goto(f"{server}/skip")
    page.locator(".st-key-run-row").wait_for()
    settled(page)


MADE_UP = f"""
import sys
from dataclasses import replace
sys.path.insert(0, {str(ROOT / "tests")!r})
from streamlit.starlette import App
from test_figures import fake
from ed_core import figures
from ed_ui import server, show

def drawn():
    DRAWN

def draw():
    for i, one in enumerate(drawn()):
        show.draw(f"map-{{i}}", show.made(one), "made up")

if __name__ == "__main__":
    draw()
else:  # as `app.py`: the server has the script that draws a figure
    app = App(__file__, **server.around())
"""
SIX = """
    tokens = tuple(f" w{i}" for i in range(128))
    parts, lens = (fake(name, n_layers=80, tokens=tokens) for name in ("contributions", "logit_lens"))
    yield figures.contribution_norms(parts, figures.View())
    yield from (figures.cosine_map(parts, figures.View(), f"{part}_cos") for part in ("layer", "attn", "mlp"))
    yield from (figures.lens_map(lens, figures.View(), shade) for shade in ("prob", "kl"))
"""
LENSES = """
    lens = fake("logit_lens")
    measures = {**lens.measures, "top_probs": replace(lens.measures["top_probs"], values=1e-4 * lens["top_probs"])}
    for name in "LMAB":  # each lens's words begin with its name
        told = replace(lens, measures=measures, token_text={i: f"{name}{i}" for i in range(9)})
        yield figures.lens_map(told, figures.View(side=name if name in "AB" else ""))
    yield figures.contribution_norms(fake("contributions"), figures.View(side="B"))
    yield figures.writing_map(fake("generation"), figures.View())
"""
DRAWN = """() => document.querySelectorAll('.ed-chart .main-svg:first-child').length === 6
  && !document.querySelector('.ed-chart[aria-busy]')"""
MOVED = """async () => {
  const box = document.querySelectorAll('.ed-chart')[1], {left, top} = box.getBoundingClientRect(), took = [];
  for (let i = 0; i < 60; i++) {
    const began = performance.now(), place = {bubbles: true, clientX: left + 100 + 5 * i, clientY: top + 90 + 2.5 * i};
    box.dispatchEvent(new PointerEvent('pointermove', place));
    const heard = performance.now() - began;
    await new Promise(done => requestAnimationFrame(() => {
      const drawn = performance.now();
      document.body.offsetHeight;  // the browser lays the page out
      done(took.push(heard + window.edCursor.took + performance.now() - drawn));
    }));
  }
  const marks = [...document.querySelectorAll('.ed-cursor-depth')].filter(one => one.style.display !== 'none');
  return {middle: took.sort((a, b) => a - b)[30], marks: marks.length};
}"""

POINTED = """async ([i, column, row]) => {
  const box = document.querySelectorAll('.ed-chart')[i], {left, top} = box.getBoundingClientRect();
  const [x, y] = ['xaxis', 'yaxis'].map(name => box._fullLayout[name]);
  const place = {clientX: left + x._offset + x.l2p(column), clientY: top + y._offset + y.l2p(row)};
  box.dispatchEvent(new PointerEvent('pointermove', place));
}"""
SAID = """async () => {
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const columns = [...document.querySelectorAll('.ed-chart')].map(box => {
    const {display, left, width} = box.querySelector('.ed-cursor-token').style, {xaxis} = box._fullLayout;
    return display ? null : Math.round(xaxis.p2l(parseFloat(left) + parseFloat(width) / 2 - xaxis._offset));
  });
  return [document.querySelector('.ed-cursor-says').textContent, ...columns];
}"""

OVERTAKEN = """async source => {
  const { default: show } = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  const told = alt => new TextEncoder().encode(JSON.stringify({alt, figure: {data: [], layout: {height: 60}}}));
  const found = {};
  for (const [name, versions] of Object.entries({inOrder: ['old', 'new'], late: ['new', 'old']})) {
    const parentElement = document.body.appendChild(document.createElement('div'));
    for (const alt of versions) {  // as Streamlit: it ends what was overtaken as soon as it has called it
      const end = show({data: told(alt), parentElement, setTriggerValue: () => {}});
      if (alt === 'old') Promise.resolve(end).then(one => one());
    }
    await new Promise(done => setTimeout(done, 200));
    found[name] = parentElement.firstChild.getAttribute('aria-label');
    parentElement.remove();
  }
  return found;
}"""


def test_a_version_that_the_next_one_overtook_is_not_shown(server, page):
    page.goto(f"{server}/?model=ed-demo-8")
    settled(page)
    file = next(name for name, script in streamlit_edges.ours.items() if script == show._script.encode())
    assert page.evaluate(OVERTAKEN, streamlit_edges.LOADED % file) == {"inOrder": "new", "late": "new"}


def test_the_cursor_moves_through_six_maps_of_a_large_model_within_a_frame(tmp_path, visitor):
    (tmp_path / "app.py").write_text(MADE_UP.replace("DRAWN", SIX), encoding="utf-8")
    page = visitor()
    with serving(tmp_path / "cache", script=tmp_path / "app.py", PYTHONPATH=str(ROOT)) as app:
        page.goto(app.address)
        page.wait_for_function(DRAWN)
        moves = [page.evaluate(MOVED) for _ in range(2)]
    assert all(one["marks"] == 6 for one in moves)
    assert min(one["middle"] for one in moves) <= 16, "milliseconds"


def test_the_cursor_says_what_the_map_pointed_at_holds_and_nothing_of_another_text_or_side(tmp_path, visitor):
    (tmp_path / "app.py").write_text(MADE_UP.replace("DRAWN", LENSES), encoding="utf-8")
    page, best = visitor(), fake("logit_lens")["top_ids"][..., 0]
    with serving(tmp_path / "cache", script=tmp_path / "app.py", PYTHONPATH=str(ROOT)) as app:
        page.goto(app.address)
        page.wait_for_function(DRAWN)
        for i, name in enumerate("LMABB"):
            row = 2 - (i == 4)  # a layer leads to the depth above it
            page.evaluate(POINTED, [i, 3, row])
            told, *columns = page.evaluate(SAID)
            assert f"the lens reads ‘{name}{best[2, 3]}’ at < 1 %, after ‘c’" in told
            assert columns == [3, 3, 3, 3, 3, 2], "the third token that is written is the fourth of the text"
        page.evaluate(POINTED, [5, 0, 2])
        assert page.evaluate(SAID) == ["After layer 1 (depth 2 of 4)", 1, 1, 1, 1, 1, 0]
        page.locator(".ed-chart").nth(5).press("ArrowRight")
        assert page.evaluate(SAID) == ["After layer 1 (depth 2 of 4)", 2, 2, 2, 2, 2, 1]
