"""The Claims page: it lists what the command writes, shows one closely, runs it, and says what stopped it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from charts import charts, fresh, numbers
from streamlit.testing.v1 import AppTest
from test_claims import cosine, keeping
from workers import until

from ed_core.cards import card, making
from ed_core.cards import words as card_words
from ed_core.claims import CLAIMS, find, finding, running
from ed_core.claims.claim import HOLDS
from ed_core.claims.record import Found, Report
from ed_core.commands import main
from ed_core.errors import StudyError
from ed_core.probes import Contributions
from ed_core.prompts import read_jsonl
from ed_core.sources.bundled import SETS, load_prompts, set_names
from ed_core.types import Prompt
from ed_core.work.resolve import resolve
from ed_core.work.runs import study as long_work
from ed_ui import probe_page, runs, show

STEP = np.where(np.arange(16) < 9, -0.3, 0.3)  # a cosine that turns


def page(file: str = "claims.py", **query) -> AppTest:
    query = {"model": "ed-demo-8", "precision": "fp32", "set": "copy"} | query
    return fresh(f"pages/model/{file}", **{k: v for k, v in query.items() if v is not None}).run()


def wanted(**more) -> runs.Claims:
    return runs.Claims(resolve("ed-demo-8"), **({"bundled": "copy"} | more))


def words(test: AppTest) -> str:
    return " ".join(w.value for w in (*test.markdown, *test.caption, *test.info, *test.error))


def stored(of: runs.Claims) -> dict[str, Found]:
    """Three findings where the page looks for them."""
    robust, turn, adaptive = (find(name) for name in ("one-layer-robust", "turn", "adaptive"))
    found = [
        finding.Finding(turn, "ed-demo-8", "copy", turn.of(cosine(STEP)), control=turn.of(cosine(-STEP))),
        finding.Finding(adaptive, "ed-demo-8", "copy", None, "It has <b>no</b> answers."),
        finding.Finding(robust, "ed-demo-8", "copy", robust.of(keeping(0.5)), control_reason="no twin."),
    ]
    about = {"about": "x", "model": "ed-demo-8", "precision": "fp32", "set": "copy", "prompts": 24, "command": "it"}
    told = Report(**about, findings=tuple(one.told() for one in found))
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
        assert all(show.plain(q.found) in said for q in claim.judging)
    assert said.count("not run") == len(CLAIMS) and not charts(test)
    assert show.plain(find("usefulness").formula) in said
    assert "--claim usefulness" in test.code[-1].value and "--set copy" in test.code[-1].value


def test_the_page_names_its_own_box_and_not_the_command_lines_option(laboratory):
    test = page(claim="static-ratio")
    told = words(test) + " ".join(code.value for code in test.code[:1])
    assert told.count("under “Also of its family”") == 2 and "--also" not in told
    assert test.text_input(key="claims.also").label == "Also of its family"


def test_before_a_run_the_claims_of_the_models_card_are_shown(laboratory):
    test = page(claim="usefulness")
    assert not test.exception and not test.error
    (shipped,) = (told for told in map(card.read, card.shipped()) if told.model.name == "ed-demo-8")
    said = words(test)
    assert "not run" not in said and f"on {shipped.set.name.replace('_', chr(92) + '_')}" in said
    assert "depth card" in said
    for one in shipped.claims:
        assert (
            not one.quantities
            or one.verdict == "not applicable"
            or show.plain(finding.both_ways(one.quantities[0])) in said
        )


def test_what_was_found_is_listed_drawn_and_quoted(laboratory):
    found = stored(wanted())
    test = page(claim="turn")
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    said = words(test)
    assert "1 holds here, 1 does not hold here, 1 is not applicable" in said
    assert said.count("not run") == len(CLAIMS) - 3
    for one in found.values():
        for quantity in one.judging:
            if quantity.value:
                assert show.plain(finding.both_ways(quantity)) in said
    assert show.plain("It has <b>no</b> answers.") in said and "<b>no</b>" not in said
    assert test.code[0].value == found["turn"].sentence
    assert all(show.plain(reason) in said for reason in found["turn"].reasons)
    (figure,) = charts(test)
    for trace, label in zip(figure["data"], ("model", "untrained twin"), strict=True):
        curve = found["turn"].curves[label]
        assert trace["name"] == label and np.allclose(numbers(trace["y"]), curve.values)
        up, down = (numbers(trace["error_y"][way]) for way in ("array", "arrayminus"))
        assert np.allclose(up, np.subtract(curve.high, curve.values))
        assert np.allclose(down, np.subtract(curve.values, curve.low))
    other = page(claim="one-layer-robust")
    assert other.code[0].value == found["one-layer-robust"].sentence
    assert show.plain("No control: no twin.") in words(other) and len(charts(other)[0]["data"]) == 1
    assert not charts(page(claim="adaptive"))


def test_while_no_set_is_chosen_a_model_has_its_own(laboratory, small_folder, monkeypatch):
    of_toy = page(set=None)
    assert not of_toy.exception and "--set sum_mod10" in of_toy.code[-1].value
    of_another = page(set=None, model=str(small_folder))
    assert not of_another.exception and "--set mixed" in of_another.code[-1].value
    chosen = page(set="copy", model=str(small_folder))
    assert "--set copy" in chosen.code[-1].value
    known = chosen.selectbox(key="claims.set").options
    assert known[0] == "mixed" and sorted(known) == set_names()
    asked = []
    about = {"about": "", "model": "", "set": "", "command": ""}
    found = Report(**about, findings=(Found(id="turn", verdict=HOLDS),))
    monkeypatch.setattr(running, "run", lambda one, *_, **__: asked.append(one.prompts) or found)
    monkeypatch.setattr(making, "make", lambda one, *_, **__: asked.append(one.prompts) or SimpleNamespace(claims=()))
    monkeypatch.setattr(card_words, "headline", lambda told: "")
    monkeypatch.setattr(card_words, "claims", lambda told: "")
    for model in ("ed-demo-8", str(small_folder)):
        for command in ("claims", "card"):
            assert main([command, "--model", model, "--out", str(laboratory / "out")]) == 0
    assert asked == ["sum_mod10"] * 2 + ["mixed"] * 2


def test_others_on_a_real_model_are_mixed_prompts_of_all_kinds(small_folder):
    mixed = {p.text: p.form for p in read_jsonl(SETS / "mixed.jsonl")}
    asked = probe_page._others_asked(Contributions(), resolve(str(small_folder)), ())
    assert len(asked) == probe_page.ENOUGH + 1
    assert len({mixed[one.prompts[0].text] for one in asked}) == 10
    taught = probe_page._others_asked(Contributions(), resolve("ed-demo-8"), ())
    assert {one.prompts[0].text for one in taught} <= {p["text"] for p in load_prompts() if p["known"]}


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


def test_what_stopped_a_run_is_said(laboratory, monkeypatch):
    monkeypatch.setattr(runs.Claims, "work", staticmethod(stops))
    of = wanted()
    of.begin()
    until(lambda: runs.of(of.out).over)
    test = page()
    assert "The set copy gives 4 prompts" in words(test) and test.button(key="run.claims").label == "Resume"


def stops(turn, asked, out):
    raise StudyError("The set copy gives 4 prompts.")


def test_a_damaged_file_is_told(laboratory):
    of = wanted()
    of.out.mkdir(parents=True)
    (of.out / running.FOUND).write_text("[]")
    assert "is damaged" in words(page())


def test_a_damaged_card_is_told_beside_the_others(laboratory):
    (file := card.folder() / "mine" / card.FILE).parent.mkdir(parents=True)
    file.write_text("{")
    found = page("cards.py")
    assert "damaged" in found.error[0].value and "ed-demo-8" in words(found)
    file.unlink()
    assert not page("cards.py").error


def test_findings_of_the_format_before_open_as_they_were(laboratory):
    """Without errors, reasons and what stands beside."""
    of, found = wanted(), stored(wanted())
    new = ("of", "alone", "p", "adjusted", "together", "over", "reasons")
    old = tuple(
        one.without(*new).but(quantities=tuple(q.without("beside", "chosen", "limits") for q in one.quantities))
        for one in found.values()
    )
    running.write(running.read(of.out).but(findings=old), of.out)
    test = page(claim="one-layer-robust")
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    assert "1 holds here, 1 does not hold here, 1 is not applicable" in words(test)
    assert test.code[0].value == found["one-layer-robust"].sentence and "stand" not in words(test).split("|")[0]
    assert all(one.sentence in (of.out / running.REPORT).read_text() for one in old)
