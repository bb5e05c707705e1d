"""The pages of causal probes and maps in a real browser: what is plotted is what the command line writes for the same
request."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest
from shell import wrote
from test_browser import ANSWER, PANELS, TEXT, fill, finished, settled, state, wait

from ed_core import settings
from ed_core.cards import card, words
from ed_core.claims import find
from ed_core.commands import main
from ed_core.depth import halves, matching
from ed_core.fits import measured
from ed_core.prompts import to_jsonl
from ed_core.sources.bundled import load_prompts, mixed_prompts
from ed_core.statistics import FEWEST
from ed_core.types import Prompt
from ed_ui import runs
from tools.bench.browser import serving

pytestmark = pytest.mark.browser

MODEL = "ed-demo-8"
PLOTTED = """key => {
  const plot = document.querySelector(`.st-key-box-${key} .js-plotly-plot`);
  if (!plot || !plot._fullData) return null;
  const list = values => Array.from(values, v => Number.isFinite(v) ? v : null);
  return plot._fullData.filter(t => t.name).map(t => [t.name, t.z ? Array.from(t.z, list) : t.y ? list(t.y) : []]);
}"""


PROMPT = Prompt(TEXT, ANSWER)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    probes = ("layer_skip", "residual_erasure", "integrated_gradients")
    return wrote(tmp_path_factory.mktemp("cli"), [PROMPT], *probes, "--no-cache")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    prompts = [Prompt(p["text"], p["answer"]) for p in mixed_prompts(3)]
    return wrote(tmp_path_factory.mktemp("cli"), prompts, "prune", "early_exit", "logit_lens", "--no-cache")


def plotted(page, key: str) -> dict[str, np.ndarray]:
    """A figure's traces by name."""
    return {name: np.array(values, float) for name, values in page.evaluate(PLOTTED, key) or []}


def run(page, address: str) -> None:
    """Open a page, type the prompt, and press Run."""
    page.goto(address)
    button = page.get_by_role("button", name="Run")
    button.wait_for()
    fill(page, "Prompt", TEXT)
    wait(page, lambda: not page.get_by_label("Answer", exact=True).input_value())  # the example's, which was no more
    fill(page, "Answer", ANSWER)
    wait(page, button.is_enabled)
    button.click()


PAGES = {
    "skip": {
        ("map", "z"): "layer_skip.effect.0",
        ("output", "output change"): "layer_skip.output.0",
        ("output", "best token kept"): "layer_skip.top1_kept.0",
        ("where", "z"): "layer_skip.output_pos.0",
        ("floor", "noise floor"): "layer_skip.noise_floor.0",
        ("spread-layer_effect", "this prompt"): "layer_skip.layer_effect.0",
    },
    "erase": {
        ("map", "z"): "residual_erasure.effect.0",
        ("spread-effect_elsewhere", "this prompt"): "residual_erasure.effect_elsewhere",
    },
    "gradients": {
        ("map", "z"): "integrated_gradients.attribution.0",
        ("nodes", "nodes"): "integrated_gradients.nodes_used.0",
        ("f", "activation"): "integrated_gradients.f_x.0",
        ("spread-attribution", "this prompt"): "integrated_gradients.attribution",
    },
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_plots_what_the_command_line_writes(server, page, one, name):
    run(page, f"{server}/{name}?model={MODEL}")
    last = list(PAGES[name])[-1]
    wait(page, lambda: last[1] in plotted(page, last[0]))
    top = page.locator(".st-key-box-map").bounding_box()["y"]
    settled(page)
    assert page.locator(".st-key-box-map").bounding_box()["y"] == top, "what is drawn stays where it is"
    for (key, trace), array in PAGES[name].items():
        shown, expected = plotted(page, key)[trace], one[array]
        assert shown.shape == expected.shape and np.nanmax(np.abs(shown - expected)) <= 1e-6 * max(
            1.0, np.nanmax(np.abs(expected))
        ), (key, trace)


def test_pruning_over_bundled_prompts_plots_what_the_command_line_writes(server, page, three):
    page.goto(f"{server}/prune?model={MODEL}")
    page.get_by_text("Bundled prompts", exact=True).click()
    how_many = page.get_by_label("How many", exact=True)
    how_many.fill("3")
    how_many.press("Enter")
    page.get_by_text("3 prompts, spread evenly").wait_for()
    page.get_by_role("button", name="Run").click()
    page.get_by_text("Over 3 prompts").wait_for()
    settled(page)
    curves = {
        ("kl", "over all tokens"): "prune.kl",
        ("top1_kept", "over all tokens"): "prune.top1_kept",
        ("perplexity", "over all tokens"): "prune.perplexity",
    }
    curves |= {
        ("proxies", name.replace("_", " ")): f"prune.{name}"
        for name in ("block_influence", "angular_distance", "update_cosine")
    }
    curves |= {("exit", name): f"early_exit.{name}" for name in ("agreement", "confidence")}
    for (key, trace), array in curves.items():
        assert np.allclose(plotted(page, key)[trace], three[array], rtol=1e-6, atol=1e-7), (key, trace)
    assert np.allclose(
        plotted(page, "kl")["median"], np.median([three[f"prune.kl.{i}"].mean(1) for i in range(3)], axis=0), rtol=1e-5
    )
    for name, label in (("block_influence", "Block influence"), ("update_cosine", "Update's cosine")):
        metric = page.locator("[data-testid=stMetric]", has_text=f"{label} against measured KL")
        assert f"{three[f'prune.spearman_{name}']:+.2f}" in metric.inner_text()
    assert (
        f"{100 * three['logit_lens.deep_thinking_ratio']:.0f} %"
        in page.locator("[data-testid=stMetric]", has_text="Deep-thinking").inner_text()
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="Keep-list").click()
    kept = json.loads(download.value.path().read_text())
    assert kept["drop"] == [int(three["prune.cheapest"])] and kept["measured"]["n_prompts"] == 3
    assert kept["measured"]["n_tokens"] == three["n_tokens"]
    assert kept["measured"]["kl"] == pytest.approx(three["prune.kl"].min())


def test_the_lenses_stand_side_by_side_and_a_token_is_followed(server, page, tmp_path):
    """What is plotted is what the command line writes, of every lens; and the certificates are there."""
    names = [f"{MODEL}-{kind}" for kind in ("affine", "jacobian")]
    given = (f"lenses.fit={','.join(names)}", "lenses.follow=12")
    expected = wrote(tmp_path, [PROMPT], "lenses", "--no-cache", given=given)
    run(page, f"{server}/lenses?model={MODEL}&shade=kl&follow=12")
    wait(page, lambda: "Affine lens" in plotted(page, "lens-overlap"))
    settled(page)
    for lens in ("logit", "affine", "jacobian"):
        wait(page, lambda lens=lens: np.isfinite(plotted(page, f"map-{lens}").get("z", np.nan)).all())
        shown = plotted(page, f"map-{lens}")["z"]
        assert np.allclose(shown, expected[f"lenses.{lens}_kl.0"], rtol=1e-5, atol=1e-6), lens
        curve = plotted(page, "lens-overlap")[f"{lens.capitalize()} lens"]
        assert np.allclose(curve, expected[f"lenses.{lens}_overlap"], rtol=1e-5), lens
    assert np.allclose(plotted(page, "lens-kl")["constant prediction"], expected["lenses.constant_kl"], rtol=1e-4)
    page.get_by_text("rank of the followed token", exact=True).click()
    ranks = expected["lenses.affine_token_rank.0"]
    wait(page, lambda: np.array_equal(plotted(page, "map-affine").get("z", 0), ranks))
    page.get_by_text(f"Certificate of {names[0]}").click()
    wait(page, lambda: "targets shuffled" in plotted(page, "held-out-affine"))
    wait(page, lambda: page.get_by_text("fitted on 46,666 tokens of 704 prompts").count() == 1)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"


def test_measuring_the_bundled_set_fills_the_spread(server, page):
    run(page, f"{server}/skip?model={MODEL}&precision=bf16")  # whose prompts nobody else has measured
    page.get_by_role("button", name="bundled prompts").click()
    wait(page, lambda: "10–90 % of 12 others" in plotted(page, "spread-output"))
    assert page.get_by_text("the median of 12 other prompts is").count() == 1


def test_a_claim_says_what_the_command_line_writes(server, page, tmp_path):
    """One claim run from the page, in a process of its own: verdict, values, the sentence and the figure. On a phone
    the table is scrolled in its own box."""
    claim = "one-layer-robust"
    assert main(["claims", "--model", MODEL, "--set", "copy", "--claim", claim, "--out", str(tmp_path)]) == 0
    (one,) = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["findings"]
    (judging,) = find(claim).judging
    (quantity,) = (q for q in one["quantities"] if q["name"] == judging.name)
    page.goto(f"{server}/claims?model={MODEL}&precision=fp32&set=copy&claim={claim}")
    run = page.get_by_role("button", name="Run this claim alone")
    run.wait_for()
    settled(page)
    row = page.locator(".st-key-claims-table tr", has_text=one["title"])
    assert page.get_by_text("from its depth card").count() == 1, "on another set: what the model's card found"
    run.click()
    wait(page, lambda: page.get_by_text("from its depth card").count() == 0)
    wait(page, lambda: "untrained twin" in plotted(page, f"claim-{claim}"))
    settled(page)
    verdict, here, _, twin = row.locator("td").all_inner_texts()[1:]
    assert one["verdict"] in verdict
    assert here == f"{quantity['name']}: {quantity['value']['short']}, over {one['over']}"
    assert twin.startswith(f"{quantity['control']['short']}; by itself ")
    assert page.locator("[data-testid=stMain] pre").first.inner_text().strip() == one["sentence"]
    for label, curve in one["curves"].items():
        np.testing.assert_allclose(plotted(page, f"claim-{claim}")[label], curve["values"], rtol=1e-5, atol=1e-7)
    assert page.get_by_text(f"1 {one['verdict']}").count() == 1
    assert page.get_by_role("button", name="Run all").is_enabled()
    page.set_viewport_size({"width": 400, "height": 900})
    settled(page)
    table = page.locator(".st-key-claims-table [data-testid=stMarkdownContainer]")
    assert table.evaluate("box => box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX") == "auto"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_card_is_made_from_the_page_and_goes_on_where_it_was_stopped(server, page):
    """Of as few pasted prompts as have an interval, in a process of its own: stopped, made again, shown, and taken as
    a file."""
    prompts = [Prompt(p["text"], p["answer"]) for p in mixed_prompts(FEWEST)]
    lines = "\n".join(json.dumps({"text": p.text, "answer": p.answer}) for p in prompts)
    page.goto(f"{server}/cards?model={MODEL}&precision=fp32&prompts=lines")
    fill(page, "Prompts, one JSON object a line", lines)
    make, cancel = (page.get_by_role("button", name=name) for name in (f"Make the card of {MODEL}", "Cancel"))
    make.click()
    wait(page, lambda: page.get_by_role("progressbar").count() and cancel.is_enabled())
    cancel.click()
    wait(page, lambda: make.is_enabled())
    settled(page)
    make.click()
    wait(page, lambda: page.get_by_role("button", name=f"Make the card of {MODEL} again").count())
    wait(page, lambda: make.is_enabled())
    settled(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON", exact=True).click()
    told = card.read(download.value.path())
    assert [one.text for one in told.set.prompts] == [p.text for p in prompts]
    shown = page.locator(".st-key-card-whole").inner_text()
    assert words.headline(told) in shown and all(one.title in shown for one in told.claims)
    assert page.get_by_text(f"{MODEL} · fp32 · {told.set.name} ({FEWEST})").count() >= 1


def test_half_rows_and_the_branch_that_brings_the_answer(server, page, tmp_path):
    """Chosen under Options after a run at whole layers: twice the rows, the sentence and each branch's share."""
    given = ("logit_lens.points=halves",)
    expected = wrote(tmp_path, [PROMPT], "logit_lens", "--no-cache", given=given)
    whole, half = (expected[f"logit_lens.{name}top_probs.0"][..., 0] for name in ("", "half_"))
    run(page, f"{server}/logit_lens?model={MODEL}")
    wait(page, lambda: len(plotted(page, "map").get("z", ())) == len(whole))
    page.get_by_role("button", name="Options").click()
    page.get_by_role("radio", name="half layers").click()
    settled(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Options (1 changed)").wait_for()
    page.get_by_role("button", name="Run").click()
    said = page.locator(".st-key-conclusion-halves")
    said.wait_for()
    settled(page)
    z = plotted(page, "map")["z"]
    assert np.allclose(z[::2], whole, rtol=1e-6) and np.allclose(z[1::2], half, rtol=1e-6)
    before = expected["logit_lens.half_settle_depth.0"][-2]  # the answer is one token, the last
    branch, layer = halves.branch_at(float(before))
    assert f"“{ANSWER}” is the best guess for good from layer {layer}'s {branch} on" in said.inner_text()
    removed = plotted(page, "halves")
    curve = halves.interleaved(expected["logit_lens.kl.0"], expected["logit_lens.half_kl.0"]).mean(1)
    assert np.allclose(removed["attention"], (curve[:-1] - curve[1:])[::2], rtol=1e-5, atol=1e-6)
    assert np.allclose(removed["MLP"], (curve[:-1] - curve[1:])[1::2], rtol=1e-5, atol=1e-6)
    assert "points=halves" in page.url


@pytest.fixture(scope="module")
def connected(tmp_path_factory):
    """An app that may ask NDIF, in the service's place a process with weights that are here; and its cache."""
    cache = tmp_path_factory.mktemp("connected")
    with serving(cache, ED_NDIF="true", ED_NDIF_ADDRESS=settings.LOCAL) as app:
        yield app.address, cache


@pytest.mark.skipif(find_spec("nnsight") is None, reason="nnsight is not installed")
def test_a_model_that_is_elsewhere_is_typed_run_and_drawn(connected, page, tmp_path):
    """What the page says is sent, Run, the maps of the model here, beside a model that is here, and what is refused."""
    address, _ = connected
    expected = wrote(tmp_path, [PROMPT], "contributions", "logit_lens", "layer_skip", "--no-cache")
    page.goto(f"{address}/?model={MODEL}")
    button = page.get_by_role("button", name="Run")
    button.wait_for()
    settled(page)
    page.locator(".st-key-model-box button").first.click()
    page.get_by_role("combobox", name="Model").click()
    page.keyboard.type(f"ndif:{MODEL}")
    page.keyboard.press("Enter")
    page.get_by_text("Run sends the prompt's tokens and the measuring code to a process of this machine").wait_for()
    settled(page)
    page.keyboard.press("Escape")
    assert f"ndif:{MODEL} · served · 8 layers" in page.locator(".st-key-model-box").inner_text()
    fill(page, "Prompt", TEXT)
    fill(page, "Answer", ANSWER)
    wait(page, button.is_enabled)
    button.click()
    wait(page, lambda: finished(page))
    settled(page)
    for key, z in state(page).items():
        here = expected[PANELS[key] + ".0"]
        assert np.allclose(z, here[..., 0] if key == "lens" else here, rtol=1e-5, atol=1e-5), key
    for path, said in (
        ("gradients", "it needs gradients, and only forward passes are asked for there"),
        ("maps?second=ed-demo-16", f"those of ndif:{MODEL} do not leave the service"),
        ("cards", f"those of ndif:{MODEL} are elsewhere; take a model that is here"),
    ):
        page.goto(f"{address}/{path}{'&' if '?' in path else '?'}model=ndif:{MODEL}")
        page.locator("[data-testid=stAlert]", has_text=said).wait_for()
        settled(page)
        assert not button.count() and not page.get_by_role("button", name="Make the card").count(), path


SHIFTS = """window.shifts = [];
new PerformanceObserver(all => window.shifts.push(...all.getEntries().filter(e => !e.hadRecentInput).map(e => e.value)))
  .observe({type: 'layout-shift', buffered: true});"""


CUT = """[...document.querySelectorAll('.stButtonGroup, .stButtonGroup *')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible')
  .map(e => e.innerText)"""
MOVES = 0.1  # what a busy machine may add up to: idle these pages stay below 0.02, Home below 0.1


WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
LOADED = ("", "logit_lens", "cases", "two?model=ed-demo-16", "surgery?model=ed-demo-16", "difficulty")
ON_PHONE = ("", "claims", "numerics", "case?id=6sg64f3464")


@pytest.mark.parametrize("page, size", [*((one, WIDE) for one in LOADED), *((one, PHONE) for one in ON_PHONE)])
def test_a_page_hardly_moves_while_it_loads(server, visitor, page, size):
    tab = visitor(viewport=size)
    tab.add_init_script(SHIFTS)
    tab.goto(f"{server}/{page}")
    tab.locator(".st-key-page").wait_for(state="attached")
    settled(tab)
    assert tab.evaluate("PerformanceObserver.supportedEntryTypes").count("layout-shift")
    assert sum(tab.evaluate("window.shifts")) <= MOVES
    assert size is PHONE or not tab.evaluate(CUT), "buttons have the room that they take; on a phone they scroll"


@pytest.mark.parametrize("page", ["maps", "claims", "skip"])
def test_run_stands_where_its_row_begins(server, visitor, page):
    tab = visitor(viewport={"width": 1440, "height": 900})
    tab.goto(f"{server}/{page}?model={MODEL}")
    run = tab.get_by_role("button", name="Run").first
    run.wait_for()
    settled(tab)
    assert run.bounding_box()["x"] == tab.locator("[class*=st-key-run-row]").first.bounding_box()["x"]


@pytest.mark.parametrize("page", ["writing", "surgery", "numerics"])
def test_a_page_hardly_moves_while_it_runs(server, visitor, page):
    tab = visitor(viewport={"width": 1440, "height": 900})
    tab.add_init_script(SHIFTS)
    tab.goto(f"{server}/{page}?model={MODEL}")
    tab.get_by_role("button", name="Run").wait_for()
    fill(tab, "Prompt", TEXT[:-3])
    tab.evaluate("window.shifts = []")
    tab.get_by_role("button", name="Run").click()
    tab.locator(".st-key-box-map").wait_for()
    settled(tab)
    assert sum(tab.evaluate("window.shifts")) <= MOVES


ON_TOKENS = """chart => {
  const boxes = (...names) => [...chart.querySelectorAll(names.join())].map(e => e.getBoundingClientRect());
  const both = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]) > 1;
  const meet = (a, b) => both(a, b, 'left', 'right') && both(a, b, 'top', 'bottom');
  const tokens = boxes('.xtick text', '.x3tick text'), strip = boxes('.x2tick text', '.x2title');
  const letters = chart._fullData.filter(t => t.name.startsWith('letters ')).length;
  return [tokens.length, strip.length, tokens.filter(a => strip.some(b => meet(a, b))).length, letters];
}"""


@pytest.mark.parametrize("query", ["two?second=smollm2&second_control=untrained&", "two?", "?"])
def test_on_a_phone_nothing_stands_on_the_tokens_of_a_map(server, visitor, query):
    tab = visitor(viewport={"width": 390, "height": 844})
    tab.goto(f"{server}/{query}model=smollm2&example=english-b")
    boxes = ("[class*=st-key-box-]:has-text('A · smollm2')", "[class*=st-key-box-]:has-text('left of the line')")
    maps = tab.locator(", ".join(f"{one} .ed-chart" for one in (*boxes, ".st-key-box-norms")))
    maps.first.wait_for()
    for one in maps.all():
        one.scroll_into_view_if_needed()
        wait(tab, lambda one=one: one.evaluate("chart => chart._fullData?.length"))
        settled(tab)
        n_tokens, n_words, covered, letters = one.evaluate(ON_TOKENS)
        assert 0 < n_tokens <= 20 and not covered
        assert not letters or query == "two?", "a map with a divider is as wide as on a large screen, and is scrolled"
        assert n_words or "layer_skip" in (one.get_attribute("aria-label") or "")


# ---------------------------------------------------------------- maps


def test_the_maps_page_plots_what_the_command_line_writes(server, page, tmp_path):
    prompts = runs.distinct([Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts()])
    (tmp_path / "p.jsonl").write_text(to_jsonl(prompts), encoding="utf-8")
    fit = ["--model", "ed-demo-8", "--set", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "maps.npz")]
    assert main(["fit", "maps", "--other", "ed-demo-16", *fit]) == 0
    found = measured.read(tmp_path / "maps.npz")

    page.goto(f"{server}/maps?model=ed-demo-8&second=ed-demo-16")
    button = page.get_by_role("button", name="Run")
    button.wait_for()
    settled(page)
    button.click()
    page.get_by_role("progressbar").first.wait_for()
    wait(page, lambda: "z" in plotted(page, "maps-map"))
    settled(page)
    assert np.allclose(plotted(page, "maps-map")["z"], found.error, rtol=1e-6)
    assert np.allclose(plotted(page, "maps-errors")["mean only"], found.error_mean[matching.match(found).best])
    page.get_by_text("R²", exact=True).click()
    wait(page, lambda: np.allclose(plotted(page, "maps-map")["z"], found.r2, rtol=1e-6))
    page.get_by_text("Open a file that the command line made").click()
    page.locator("input[type=file]").set_input_files(tmp_path / "maps.npz")
    wait(page, lambda: "z" in plotted(page, "opened-map"))
    settled(page)
    assert np.allclose(plotted(page, "opened-map")["z"], found.error, rtol=1e-6)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"
