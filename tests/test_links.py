"""Links: what the URL carries is put back, checked first; short run ids; the first links of a fresh server. Without a
browser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from charts import fresh, words
from small_models import computed
from streamlit.testing.v1 import AppTest
from test_pages import PAGES, ROOT, app

from ed_core.errors import ParameterError
from ed_core.models.ref import ModelRef
from ed_core.probes import PROBES, LogitLens, ResidualErasure
from ed_core.results import lookup
from ed_core.results.store import Store
from ed_core.types import Prompt
from ed_ui import browser, inputs, link
from ed_ui.inputs import of_probe
from ed_ui.navigation import ROOMS as rooms

OWN = {  # a page, a parameter of its own, and where it must arrive
    "pages/prompt/home.py": {"kl": "0.25", "overlap": "0.6", "first_token": "false"},
    "pages/prompt/contributions.py": {"measure": "attn_cos", "first_token": "false"},
    "pages/prompt/logit_lens.py": {"shade": "rank", "g": "0.4"},
    "pages/model/model.py": {"tokens": "1-9", "set": "copy"},
    "pages/intervene/skip.py": {"mode": "future", "part": "mlp", "boundaries": "4,8", "direct": "true"},
    "pages/intervene/erase.py": {"target": "future"},
    "pages/intervene/gradients.py": {"nodes": "33"},
    "pages/intervene/prune.py": {"set": "copy", "n_prompts": "3", "longest": "2", "map": "swap"},
    "pages/prompt/writing.py": {"n_tokens": "5", "temperature": "0.5"},
    "pages/compare/two.py": {"branch": "attn", "contributions_map": "direction", "shade": "entropy"},
}
SHARED = {
    "precision": "bf16",
    "revision": "other",
    "special_tokens": "false",
    "control": "shuffled",
    "control_seed": "3",
    "token": "2",
}
WRONG = [
    "",
    "x",
    "-1",
    "1e999",
    "nan",
    "9" * 400,
    "<script>alert(1)</script>",
    "\x00",
    "true,false",
    "9-3",
    "𝟙",
    "x-v1.0",
]


def opened(page: str, **query) -> AppTest:
    """A fresh session in which a link to a page was opened."""
    return follow(fresh("" if "home" in page else page), model="small", **query)


def follow(test: AppTest, **query) -> AppTest:
    test.query_params.clear()
    for name, value in query.items():
        test.query_params[name] = value
    return test.run()


def said(test: AppTest) -> str:
    return " ".join(w.value for w in test.warning)


@pytest.mark.parametrize("page", OWN)
def test_what_a_link_says_of_a_page_comes_back_as_the_same_link(stored, page):
    test = opened(page, example="copy-3-a", **OWN[page])
    assert not test.exception and not said(test)
    assert {name: test.query_params.get(name) for name in OWN[page]} == OWN[page]
    assert test.query_params["example"] == "copy-3-a" and test.query_params["model"] == "small"


def test_what_all_pages_share_comes_back_as_the_same_link(stored):
    test = opened("pages/prompt/logit_lens.py", example="copy-3-a", **SHARED)
    assert {name: test.query_params.get(name) for name in SHARED} == SHARED and not said(test)


def test_values_that_cannot_be_are_left_out_with_a_sentence(stored):
    page = "pages/intervene/skip.py"
    test = opened(page, **dict.fromkeys((*OWN[page], *SHARED, "run", "example"), "<script>alert(1)</script>"))
    assert not test.exception and len(test.warning) == 1
    assert "was ignored" in said(test) and len(said(test)) < 1500 and not re.search(r"(?<!\\)<", said(test))


PARAMETERS = [
    *(one for one in vars(inputs).values() if isinstance(one, inputs.Input)),
    *(one for probe in PROBES for one in of_probe(probe)),
    *link.OF_A_RUN,
    link.TOKEN,
]


@pytest.mark.parametrize("wrong", WRONG, ids=ascii)
def test_a_parameter_refuses_a_value_with_one_line_or_writes_what_it_reads(wrong):
    for one in PARAMETERS:
        try:
            found = one.read(wrong)
        except ParameterError as error:
            assert "\n" not in str(error) and one.name in str(error)
        else:
            assert one.read(one.write(found)) == found, one.name


def test_what_a_link_does_not_say_is_at_its_default(stored):
    test = opened("pages/prompt/logit_lens.py", shade="rank", template="raw", control="shuffled", control_seed="3")
    assert test.selectbox(key="control").value == "shuffled" and test.number_input(key="control.seed").value == 3
    follow(test.switch_page("pages/prompt/contributions.py"))
    assert test.selectbox(key="control").value == test.query_params["control"] == "shuffled", "shared by all pages"
    assert "shade" not in test.query_params
    follow(test.switch_page("pages/prompt/logit_lens.py"), model="small")  # as after the browser's Back
    assert test.selectbox(key="control").value == "none" and "shade" not in test.query_params
    assert not said(opened("pages/prompt/logit_lens.py", control="none")), "a link may say what is so anyway"


def test_a_short_id_opens_a_run_and_a_controls_run_picks_the_control(stored):
    spec = ModelRef.parse("small").twin("untrained", 7)
    result = computed(LogitLens().request(spec, Prompt("3 + 4 = ", "7")))
    lookup.store().put(result)
    test = opened("pages/prompt/logit_lens.py", run=result.request.key[:12])
    assert not said(test) and test.text_area(key="text").value == "3 + 4 = "
    assert test.selectbox(key="control").value == "untrained" and test.number_input(key="control.seed").value == 7
    test = opened("pages/prompt/logit_lens.py", run=stored["logit_lens"].request.key)
    assert test.query_params["run"] == stored["logit_lens"].request.key[:12]
    assert test.selectbox(key="control").value == "none"


def test_a_run_of_other_weights_and_one_of_a_model_that_is_gone_say_which(stored, monkeypatch):
    result = stored["logit_lens"]
    for change, told in (
        ({"content_hash": "0" * 64}, "other weights"),
        ({"source": "/no/such/folder", "content_hash": "1" * 64}, "not here now"),
    ):
        request = replace(result.request, models=(replace(result.request.models[0], **change),))
        monkeypatch.setattr(lookup, "by_short", lambda short, request=request: replace(result, request=request))
        test = opened("pages/prompt/logit_lens.py", run="0" * 12)
        assert not test.exception and told in said(test)


def test_unknown_and_ambiguous_ids_are_one_sentence(stored, monkeypatch):
    key = stored["logit_lens"].request.key
    assert lookup.by_short(key).request.key == lookup.by_short(key[:8]).request.key == key
    for wrong, reason in (("f" * 32, "No stored result"), ("abc", "no run id"), ("*" * 12, "no run id")):
        with pytest.raises(ParameterError, match=reason):
            lookup.by_short(wrong)
    monkeypatch.setattr(Store, "keys", lambda self, beginning: [beginning.ljust(32, "0"), beginning.ljust(32, "1")])
    with pytest.raises(ParameterError, match="2 stored results .* more of its digits"):
        lookup.by_short(key[:8])


def test_no_parameter_of_a_page_has_the_name_of_one_that_all_pages_share(stored):
    common = {p.name for p in (*link.OF_A_RUN, *link.BESIDE_IT)} | {"run", "example"}
    own = {p.name for probes in PAGES.values() for probe in probes for p in of_probe(type(probe))}
    assert not common & own.union(*OWN.values())
    assert [p.name for p in of_probe(ResidualErasure)] == ["target"], "a path is never taken from a link"


def test_the_link_button_shows_the_address_and_whether_it_carries_the_prompt(stored):
    test = opened("pages/prompt/logit_lens.py", example="copy-3-a", shade="kl")
    shown = next(one.value for one in test.code if "model=small" in one.value)
    assert "example=copy-3-a" in shown and "shade=kl" in shown and browser.CARRIED in words(test)
    test.text_area(key="text").set_value("another text").run()
    assert browser.NOT_CARRIED in words(test) and not any("another" in one.value for one in test.code)


def test_the_address_names_no_run_where_the_page_asks(stored):
    test = app("pages/intervene/gradients.py")
    assert "run" in test.query_params
    test.text_input(key="answer").set_value("").run()
    test.text_area(key="text").set_value("another prompt, which has no answer").run()
    assert dict(test.query_params) == {"model": "small"}


def test_every_page_has_its_file_and_an_address_that_the_shipped_proxies_let_through():
    pages = [tab for room in rooms for tab in room.tabs]
    assert all((ROOT / tab.file).is_file() and re.fullmatch("[a-z_]+", tab.address) for tab in pages)


def test_a_link_to_a_study_or_set_that_is_not_here_says_that_another_one_is_shown(stored):
    for query, named in (({"study": "nowhere"}, "study 'nowhere'"), ({"study": "toys", "set": "none"}, "set 'none'")):
        test = opened("pages/studies/studies.py", **query)
        assert not test.exception and named in said(test)
