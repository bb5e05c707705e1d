"""The Claims page: it lists what the command writes, shows one closely, runs it, and says what stopped it."""

from __future__ import annotations

import numpy as np
from charts import fresh
from streamlit.testing.v1 import AppTest
from test_claims import cosine, keeping

from ed_core.cards import card
from ed_core.claims import CLAIMS, find, running
from ed_core.claims import words as claim_words
from ed_core.claims.record import Found, Report
from ed_core.models.bundled import set_names
from ed_core.models.ref import ModelRef
from ed_core.types import Prompt
from ed_core.work.runs import study as long_work
from ed_ui import runs, show

STEP = np.where(np.arange(16) < 9, -0.3, 0.3)  # a cosine that turns


def page(file: str = "claims.py", **query) -> AppTest:
    query = {"model": "ed-demo-8", "precision": "fp32", "set": "copy"} | query
    return fresh(f"pages/model/{file}", **{k: v for k, v in query.items() if v is not None}).run()


def wanted(**more) -> runs.Claims:
    return runs.Claims(ModelRef.parse("ed-demo-8"), **({"bundled": "copy"} | more))


def words(test: AppTest) -> str:
    return " ".join(w.value for w in (*test.markdown, *test.caption, *test.info, *test.error))


def stored(of: runs.Claims) -> dict[str, Found]:
    """Three findings where the page looks for them."""
    robust, turn, adaptive = (find(name) for name in ("one-layer-robust", "turn", "adaptive"))
    found = (
        turn.finding(turn.of(cosine(STEP)), turn.of(cosine(-STEP))),
        adaptive.finding("It has <b>no</b> answers."),
        robust.finding(robust.of(keeping(0.5))),
    )
    about = {"about": "x", "model": "ed-demo-8", "precision": "fp32", "set": "copy", "prompts": 24, "command": "it"}
    told = Report(**about, findings=found)
    of.out.mkdir(parents=True)
    running.write(told, of.out)
    return {one.id: one for one in told.findings}


def test_before_a_run_every_claim_is_listed_with_what_the_paper_found(laboratory, monkeypatch):
    monkeypatch.setattr(card, "shipped", list)
    test = page(claim="usefulness")
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    said = words(test)
    for claim in CLAIMS:
        assert show.plain(claim.title) in said and show.plain(claim.source) in said
        assert show.plain(claim.judging[0].paper) in said
    assert said.count("not run") == len(CLAIMS)
    assert show.plain(find("usefulness").formula) in said
    assert "--claim usefulness" in test.code[-1].value and "--set copy" in test.code[-1].value


def test_before_a_run_the_claims_of_the_models_card_are_shown(laboratory):
    test = page(claim="usefulness")
    assert not test.exception and not test.error
    (shipped,) = (told for told in map(card.read, card.shipped()) if told.model.name == "ed-demo-8")
    said = words(test)
    assert "not run" not in said and f"on {shipped.set.name.replace('_', chr(92) + '_')}" in said
    assert "depth card" in said
    for one in shipped.claims:
        if one.verdict != "does not apply":
            assert show.plain(claim_words.value(one.quantities[0], one.quantities[0].value)) in said


def test_what_was_found_is_listed_and_quoted(laboratory):
    found = stored(wanted())
    test = page(claim="turn")
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    said = words(test)
    assert "1 holds, 1 fails, 1 does not apply" in said
    assert said.count("not run") == len(CLAIMS) - 3
    for one in found.values():
        for quantity in one.judging:
            if quantity.value:
                assert show.plain(claim_words.value(quantity, quantity.value)) in said
    assert show.plain("It has <b>no</b> answers.") in said and "<b>no</b>" not in said
    assert claim_words.sentence(found["turn"], "ed-demo-8", "copy") in [one.value for one in test.code]
    assert all(show.plain(reason) in said for reason in claim_words.reasons(found["turn"]))
    other = page(claim="one-layer-robust")
    assert claim_words.sentence(found["one-layer-robust"], "ed-demo-8", "copy") in [one.value for one in other.code]


def test_while_no_set_is_chosen_a_model_has_its_own(laboratory, small_folder):
    of_toy = page(set=None)
    assert not of_toy.exception and "--set sum_mod10" in of_toy.code[-1].value
    of_another = page(set=None, model=str(small_folder))
    assert not of_another.exception and "--set mixed" in of_another.code[-1].value
    chosen = page(set="copy", model=str(small_folder))
    assert "--set copy" in chosen.code[-1].value
    known = chosen.selectbox(key="claims.set").options
    assert known[0] == "mixed" and sorted(known) == set_names()


def test_run_asks_for_the_chosen_claim(laboratory, monkeypatch):
    begun = []
    monkeypatch.setattr(runs, "begin", lambda folder, title, files, *work: begun.append((folder, files, *work)))
    test = page(claim="turn")
    test.button(key="run.claim").click().run()
    test.button(key="run.claims").click().run()
    (out, _, work, one, _), (_, _, _, every, _) = begun
    assert out == wanted().out and work is long_work.claims
    assert (one.model, one.prompts, one.claims, every.claims) == ("ed-demo-8", "copy", ("turn",), ())
    prompts = tuple(Prompt(f"{i} + 1 = ", "3", str(i)) for i in range(5))
    typed = wanted(bundled="", prompts=prompts, also=("ed-demo-16",))
    typed.begin()
    out, files, _, asked, _ = begun[-1]
    assert asked.prompts == str(typed.out / runs.PROMPTS) and asked.also == ("ed-demo-16",)
    assert files[runs.PROMPTS].count(b"\n") >= 4 and out == typed.out != wanted().out
