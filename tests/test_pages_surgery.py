"""The pages of surgery and writing through AppTest: what they draw and say is what is stored, and what is wrong becomes
one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from charts import fresh, words
from small_models import computed
from test_pages import PROMPT, app, holds, plotted, session_of
from test_pages_causal import drawn
from test_pages_save import case_page, folder, save  # noqa: F401 (a fixture)

from ed_core.cases import drawings
from ed_core.depth import among_others, exits, say, surgery
from ed_core.figures.canvas import escaped
from ed_core.models.ref import ModelRef
from ed_core.probes import EarlyExit, Generation, Surgery
from ed_core.prompts import to_jsonl
from ed_core.results import aggregate, lookup
from ed_core.types import Measure, ProbeResult, Prompt, Request

PRUNE, WRITING = "pages/intervene/prune.py", "pages/prompt/writing.py"
SET = [PROMPT, Prompt("a=3; b=a; b?", "3")]
ASKED = {"n_tokens": "7", "threshold": "0.02", "temperature": "0.5"}


@pytest.fixture(scope="module")
def written(stored):
    """A text that is in the store."""
    probe = Generation(n_tokens=7, threshold=0.02, temperature=0.5)
    found = computed(probe.request(ModelRef.parse("small"), PROMPT))
    lookup.store().put(found)
    return found


def test_maps_draw_and_say_what_is_stored_over_one_prompt_and_two(stored):
    for prompts in (SET[:1], SET):
        for kind in surgery.KINDS:
            probe = Surgery(kind, seed=2)
            found = [computed(probe.request(ModelRef.parse("small"), prompt)) for prompt in prompts]
            for one in found:
                lookup.store().put(one)
            curves = among_others.curves_of(probe, [r.summary for r in found])
            test = fresh(PRUNE, model="small", seed="2", map=kind)
            session_of(test).inputs.update({"prompts.source": "lines", "prompts.lines": to_jsonl(prompts)})
            test.run()
            assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
            rows = surgery.rows(curves, kind, found[0]["random_layer"].tolist() if kind == "repeat" else ())
            assert holds(plotted(test), curves[f"{kind}_loss"][:, 0 if kind == "swap" else 1 :])
            if kind != "drop":
                assert say.cheapest(float(curves["loss_whole"]), kind, rows) in words(test)
            for name, values in surgery.added(curves, kind, rows).items():
                assert drawn(test, escaped(name), values), name


def test_writing_draws_and_says_what_is_stored(written, folder):  # noqa: F811
    test = app(WRITING, **ASKED)
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    assert holds(plotted(test), written["jsd"])
    assert say.exits(exits.exits(written)) in words(test).replace("\n", " ")
    assert written.provenance["written"] in [code.value for code in test.code]
    assert drawn(test, "first choice from", written["settle_depth"])
    assert drawn(test, "deep-thinking ratio", written["deep_thinking_ratio"])
    case = save(test, "generation", folder)
    assert [d.title for d in drawings.drawings(case)] == ["While the model writes"]


def test_a_text_that_is_being_written_can_be_stopped(written):
    """What is there so far is drawn with a button; pressed, the page asks for just these tokens and shows them."""
    part = {name: m for name, m in written.measures.items() if m.spec.dims[-1:] == ("step",)}
    for name, one in part.items():
        values = one.values.copy()
        values[..., 3:] = -1 if values.dtype.kind == "i" else np.nan
        part[name] = replace(one, values=values)
    partial = replace(written, measures=part, complete=False, progress=3 / 7, summary={}, provenance={})
    probe = Generation(n_tokens=3, threshold=0.02, temperature=0.5)
    fewer = computed(probe.request(ModelRef.parse("small"), PROMPT))
    lookup.store().put(fewer)
    test = app(WRITING, **ASKED)
    session_of(test).batches["generation"].results["generation"] = partial
    test.run()
    assert not test.exception and not test.error
    assert holds(plotted(test), part["jsd"].values)
    text = "".join(written.token_text[i] for i in written["ids"][:3].tolist())
    assert text in [code.value for code in test.code]
    (button,) = [b for b in test.button if b.label == "Stop here"]
    button.click().run()
    assert session_of(test).inputs["generation.n_tokens"] == 3
    assert holds(plotted(test), fewer["jsd"]) and fewer["ids"].tolist() == written["ids"][:3].tolist()
    assert not [b for b in test.button if b.label == "Stop here"]


def exits_of(depths, agrees) -> ProbeResult:
    values, n = {"exit_depth": depths, "exit_agrees": agrees}, len(agrees)
    measures = {name: Measure(EarlyExit.spec(name), np.asarray(one, np.float32)) for name, one in values.items()}
    made = ProbeResult(Request((), (), "early_exit", (), 1), measures, ("t",) * n, (0,) * n, None, 12)
    return aggregate.summarize(made)


def test_leaving_over_prompts_is_counted_token_by_token():
    rng, n_layers = np.random.default_rng(3), 12
    prompts = [(rng.integers(0, n_layers + 1, n), rng.random(n) < 0.97) for n in (40, 7, 90)]
    results = [exits_of(depths, agrees) for depths, agrees in prompts]
    changed = sum(1 for _, agrees in prompts for one in agrees if not one)
    spared = sum(n_layers - int(d) for depths, _ in prompts for d in depths) / 137
    found = exits.exits_of_prompts(results, 0.8)
    assert 0 < changed < 13 and found.usable
    assert (found.n, found.changed, 12 - found.depth) == (137, changed, pytest.approx(spared))
