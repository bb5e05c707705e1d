"""Links: what the URL carries is put back, checked first; short run ids; the first links of a fresh server. Without a
browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest
from charts import fresh
from small_models import computed
from streamlit.testing.v1 import AppTest
from test_pages import PAGES, ROOT, app, session_of

from ed_core.errors import ParameterError
from ed_core.probes import LogitLens, ResidualErasure
from ed_core.results import lookup
from ed_core.results.store import Store
from ed_core.types import Prompt
from ed_core.work.resolve import resolve, twin
from ed_ui import inputs, link, picker, session, streamlit_edges
from ed_ui.inputs import of_probe
from ed_ui.navigation import KEPT_FROM
from ed_ui.navigation import ROOMS as rooms

OWN = {  # a page, a parameter of its own, and where it must arrive
    "pages/prompt/home.py": {
        "branch": "attn",
        "shade": "kl",
        "kl": "0.25",
        "overlap": "0.6",
        "first_token": "false",
        "tokens": "3-20",
    },
    "pages/prompt/contributions.py": {"measure": "attn_cos", "first_token": "false"},
    "pages/prompt/logit_lens.py": {"shade": "rank", "g": "0.4"},
    "pages/model/numerics.py": {"tokens": "1-9"},
    "pages/intervene/skip.py": {"mode": "future", "part": "mlp", "boundaries": "4,8", "direct": "true"},
    "pages/intervene/erase.py": {"target": "future"},
    "pages/intervene/gradients.py": {"nodes": "33"},
    "pages/intervene/prune.py": {
        "prompts": "bundled",
        "n": "2",
        "n_prompts": "3",
        "tasks": "copy,lookup",
        "difficulties": "1,2",
    },
    "pages/intervene/surgery.py": {"kind": "drop", "longest": "2", "value": "kl", "length": "2"},
    "pages/prompt/writing.py": {"n_tokens": "5", "temperature": "0.5"},
    "pages/compare/audit.py": {"precisions": "fp32,bf16"},
}
WRONG = [
    "",
    "x",
    "-1",
    "1e999",
    "nan",
    "9" * 400,
    "<script>alert(1)</script>",
    "{{7*7}}",
    "0x10",
    "\x00",
    "true,false",
    "None",
    "1-",
    "9-3",
    "𝟙",
    "../../etc/passwd",
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
    test.run()  # what a page's first run puts into the URL is put there by the browser
    assert {name: test.query_params.get(name) for name in OWN[page]} == OWN[page]
    assert test.query_params["example"] == "copy-3-a" and test.query_params["model"] == "small"


def test_which_maps_stand_side_by_side_is_in_the_link_and_what_cannot_be_is_said(stored):
    shown = {"branch": "attn", "contributions_map": "direction", "shade": "entropy"}
    test = opened("pages/compare/two.py", example="copy-3-a", **shown, by_number="perhaps")
    assert not test.exception and "is 'perhaps'" in said(test)
    test.run()
    assert {name: test.query_params.get(name) for name in shown} == shown and "by_number" not in test.query_params


@pytest.mark.parametrize("name, value, told", [("token", "9999", 1), ("tokens", "500-600", 1), ("token", "2", 0)])
def test_a_token_beyond_the_prompt_is_said(stored, name, value, told):
    test = opened("pages/model/numerics.py", example="copy-3-a", **{name: value})
    assert not test.exception and (f"The link names {name} {value}, and the prompt has " in said(test)) == bool(told)
    assert bool(said(test)) == bool(told) and (name in test.run().query_params) != bool(told)


def test_none_of_several_is_read_as_it_is_written_and_a_bound_is_told_whole():
    several = inputs.several("measures", "measures", [1], [1, 2])
    assert several.read(several.write([])) == []
    with pytest.raises(ParameterError, match="expected a whole number from 0 to 4294967295"):
        inputs.CONTROL_SEED.read("-1")


COMMON = ("precision", "control", "control_seed", "template", "special_tokens", "token", "run", "example", "device")


def refused(test: AppTest, wrong: str) -> bool:
    """Whether a page shown with this value stands, and says in one sentence, as text, that it was ignored."""
    assert not test.exception, (wrong, test.exception)
    assert "was ignored" in said(test) and len(said(test)) < 1500 and len(test.warning) == 1, wrong
    return not re.search(r"(?<!\\)<", said(test))


@pytest.mark.parametrize("wrong", WRONG, ids=ascii)
def test_values_that_cannot_be_are_left_out_with_a_sentence(stored, wrong):
    page = "pages/intervene/skip.py"
    assert refused(opened(page, **dict.fromkeys((*OWN[page], *COMMON), wrong)), wrong)


@pytest.mark.parametrize("page", OWN)
def test_what_a_page_reads_is_in_its_boxes_and_the_rest_is_left_out(stored, page, monkeypatch):
    """What no parameter of a page can read is refused before the page sees it: only what one does read, and one value
    that none can, go through the page."""
    own, known = link.own, {}
    monkeypatch.setattr(link, "own", lambda found: known.update({p.name: p for p in found}) or own(known.values()))
    assert refused(opened(page, **dict.fromkeys((*OWN[page], *COMMON), "<script>alert(1)</script>")), page)
    assert set(OWN[page]) <= set(known)
    for wrong in WRONG:
        readable = [name for name, parameter in known.items() if reads(parameter, wrong)]
        if readable:
            assert refused(opened(page, template="<b>", **dict.fromkeys(readable, wrong)), wrong)


def reads(parameter: link.Input, value: str) -> bool:
    """Whether a parameter takes a value; it refuses with one printable line, or writes what it reads again."""
    try:
        found = parameter.read(value)
    except ParameterError as error:
        assert "\n" not in str(error) and parameter.name in str(error)
        return False
    return parameter.read(parameter.write(found)) == found


def test_what_a_link_does_not_say_is_at_its_default(stored):
    test = opened("pages/prompt/logit_lens.py", shade="rank", template="raw", control="shuffled", control_seed="3")
    assert test.selectbox(key="control").value == "shuffled" and test.number_input(key="control.seed").value == 3
    follow(test.switch_page("pages/prompt/contributions.py"))
    shared = "a click in the navigation keeps what all pages share"
    assert test.selectbox(key="control").value == "shuffled", shared
    test.run()  # what a page's first run puts into the URL is put there by the browser
    assert test.query_params["control"] == "shuffled" and "shade" not in test.query_params, shared
    follow(test.switch_page("pages/prompt/logit_lens.py"), model="small")
    assert test.selectbox(key="control").value == "none"
    assert "shade" not in test.query_params, "as after the browser's Back"
    assert not said(opened("pages/prompt/logit_lens.py", control="none")), "a link may say what is so anyway"


def test_a_short_id_opens_a_run_and_a_controls_run_picks_the_control(stored):
    spec = twin(resolve("small"), "untrained", 7)
    result = computed(LogitLens().request(spec, Prompt("3 + 4 = ", "7")))
    lookup.store().put(result)
    test = opened("pages/prompt/logit_lens.py", run=result.request.key[:12])
    assert not said(test) and test.text_area(key="text").value == "3 + 4 = "
    assert test.selectbox(key="control").value == "untrained" and test.number_input(key="control.seed").value == 7
    test = opened("pages/prompt/logit_lens.py", run=stored["logit_lens"].request.key).run()
    assert test.query_params["run"] == stored["logit_lens"].request.key[:12]
    assert test.selectbox(key="control").value == "none"


def test_a_run_of_other_weights_and_one_of_a_model_that_is_gone_say_which(stored, monkeypatch):
    result = stored["logit_lens"]
    for change, words in (
        ({"content_hash": "0" * 64}, "other weights"),
        ({"source": "/no/such/folder", "content_hash": "1" * 64}, "not here now"),
    ):
        spec = replace(result.request.models[0], **change)
        monkeypatch.setattr(
            lookup,
            "by_short",
            lambda short, spec=spec: replace(result, request=replace(result.request, models=(spec,))),
        )
        test = opened("pages/prompt/logit_lens.py", run="0" * 12)
        assert not test.exception and words in said(test)


def test_unknown_and_ambiguous_ids_are_one_sentence(stored, monkeypatch):
    key = stored["logit_lens"].request.key
    assert lookup.by_short(key).request.key == lookup.by_short(key[:8]).request.key == key
    for wrong, reason in (
        ("f" * 32, "No stored result"),
        ("abc", "no run id"),
        ("*" * 12, "no run id"),
        (key[:8].upper() + "Z", "no run id"),
        ("", "no run id"),
    ):
        with pytest.raises(ParameterError, match=reason):
            lookup.by_short(wrong)
    monkeypatch.setattr(Store, "keys", lambda self, beginning: [beginning.ljust(32, "0"), beginning.ljust(32, "1")])
    with pytest.raises(ParameterError, match="2 stored results .* more of its digits"):
        lookup.by_short(key[:8])


def test_the_store_finds_ids_by_their_beginning(stored, tmp_path):
    store, result = Store(tmp_path), stored["logit_lens"]
    other = replace(result, request=replace(result.request, prompts=(Prompt("other", "x"),)))
    for each in (result, other):
        store.put(each)
    assert store.keys(result.request.key[:10]) == [result.request.key]
    assert store.keys(other.request.key) == [other.request.key]
    assert len(store.keys("")) == 2 and store.keys("zz") == store.keys("*") == store.keys("%' OR 1=1") == []


def test_no_parameter_of_a_page_has_the_name_of_one_that_all_pages_share(stored):
    common = {p.name for p in (*link.OF_A_RUN, *link.BESIDE_IT)} | {"run", "example"}
    for probes in PAGES.values():
        for probe in probes:
            assert not common & {p.name for p in of_probe(type(probe))}
    for names in OWN.values():
        assert not common & set(names)


def test_what_a_link_set_is_told_to_the_browser_again(stored):
    """Streamlit throws the messages of a run away when the next begins before they were sent; a value told once would
    then be lost."""
    test = follow(fresh(), model="ed-demo-8", precision="fp32", adapter="/no/such")
    for _ in range(2):
        model, precision = test.selectbox(key="model"), test.button_group(key="precision")
        assert model.proto.set_value and model.proto.raw_value.startswith("ed-demo-8 · ")
        assert precision.proto.set_value and precision.value == "fp32"
        test.run()
    assert not test.text_input(key="adapter").proto.set_value, "what is being typed there would be lost"
    session_of(test).link.under_way = True  # as a run leaves it that was cut short
    assert test.run().text_input(key="adapter").proto.set_value


SHARED = {
    "precision": "bf16",
    "revision": "other",
    "special_tokens": "false",
    "control": "shuffled",
    "control_seed": "3",
    "token": "2",
}


def test_what_all_pages_share_comes_back_as_the_same_link(stored):
    test = opened("pages/prompt/logit_lens.py", example="copy-3-a", **SHARED)
    test.run()
    assert {name: test.query_params.get(name) for name in SHARED} == SHARED and not said(test)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_the_link_says_whether_it_carries_the_prompts():
    """Those of the box are named by example or run; bundled ones by the page; typed lists by nothing."""
    cases = [
        ("?model=a", True, False),
        ("?model=a&example=b", True, True),
        ("?model=a&run=b", True, True),
        ("?model=a&prompts=bundled", True, True),
        ("?model=a&run=b&prompts=pasted", True, False),
        ("?model=a", False, True),
        ("?model=a&example=b&prompts=lines", False, False),
        ("?example=b&compare=prompts", True, False),
        ("?example=b&compare=prompts&second_run=c", True, True),
    ]
    code = streamlit_edges.script("link.js")
    asked = json.dumps([[search, of_box] for search, of_box, _ in cases])
    code += f"console.log(JSON.stringify({asked}.map(one => carries(...one))))"
    node = ["node", "--input-type=module", "-e", code]
    told = subprocess.run(node, capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == [expected for *_, expected in cases]


@pytest.mark.parametrize(
    "page, of_box", [("intervene/skip", True), ("model/claims", False), ("studies/studies", False)]
)
def test_the_link_hears_whether_the_page_is_about_the_prompt_in_the_box(stored, page, of_box):
    test = opened(f"pages/{page}.py", example="copy-3-a")
    (link,) = (one for one in test.get("bidi_component") if not one.proto.bytes and "whole" in one.proto.json)
    assert json.loads(link.proto.json)["prompt"] is of_box


def test_an_example_that_was_edited_is_no_longer_named(stored):
    test = opened("pages/prompt/logit_lens.py", example="copy-3-a")
    assert test.query_params["example"] == "copy-3-a"
    test.text_area(key="text").set_value("another text").run()
    assert "example" not in test.query_params


def test_a_path_is_never_taken_from_a_link():
    assert [p.name for p in of_probe(ResidualErasure)] == ["target"]


def test_a_page_that_was_just_opened_writes_behind_its_own_path(stored, monkeypatch):
    """Streamlit's message would land behind the path of the page before; a script waits for the page's own."""
    written, steps = [], streamlit_edges.steps_are_pages
    monkeypatch.setattr(
        streamlit_edges,
        "steps_are_pages",
        lambda path, values: written.append((path, dict(values))) or steps(path, values),
    )
    test = opened("pages/intervene/skip.py", mode="future")
    test.switch_page("pages/prompt/contributions.py")
    follow(test)
    assert [path for path, _ in written] == ["/skip", "/contributions"] and not test.query_params
    assert written[0][1].items() >= {"model": "small", "mode": "future"}.items()
    assert "mode" not in written[1][1] and written[1][1]["model"] == "small"
    test.run()
    assert written[2][1] == {} and test.query_params["model"] == "small"


@pytest.mark.parametrize("page", ["pages/intervene/erase.py", "pages/intervene/gradients.py"])
def test_the_address_names_no_run_where_the_page_refuses(stored, page):
    test = app(page).run()  # what a page's first run puts into the address a script writes
    assert "run" in test.query_params
    test.text_input(key="answer").set_value("").run()
    typed = test.text_area(key="text").set_value("another prompt, which has no answer").run()
    assert dict(typed.query_params) == {"model": "small"}


def test_what_a_link_holds_cannot_end_the_script(monkeypatch):
    evil, written = "</script><script>alert(1)</script>", []
    state = session.Link(moved=True, base=f"http://127.0.0.1/{evil}/", page="skip", values={"model": evil, "run": "a"})
    monkeypatch.setattr(session, "current", lambda: SimpleNamespace(link=state))
    monkeypatch.setattr(streamlit_edges, "st", SimpleNamespace(html=lambda text, **_: written.append(text)))
    link.end_of_run()
    assert written[0].count("<") == 2, "the script's own two tags"
    _, path, query = json.loads(re.search(r"query\] = (.*);\n", written[0])[1])
    assert path == f"/{evil}/skip" and parse_qsl(query[1:]) == [("model", evil), ("run", "a")]
    link.end_of_run()
    assert "model" not in written[1], "the page has been drawn: from now on Streamlit writes the parameters"


def test_a_window_beyond_the_prompt_is_not_kept(monkeypatch):
    held = {"window": (3, 40)}
    monkeypatch.setattr(session, "current", lambda: SimpleNamespace(inputs=held))
    assert inputs.window("window", 60, 48) == (3, 40) and inputs.window("window", 48, 48) is None
    held["window"] = (3, 60)
    assert inputs.window("window", 60, 48) == (12, 59) and not held
    tokens = inputs.span("tokens", "window")
    assert tokens.read(tokens.write((5, 5))) == (5, 5), "a window of one token"


def test_a_revision_belongs_to_a_hub_model_alone(monkeypatch, tmp_path):
    for name, expected in {
        "ed-demo-8": "ed-demo-8",
        str(tmp_path): str(tmp_path),
        "org/name": "org/name@abc",
        "org/name@x": "org/name@x",
    }.items():
        held = {"model": name, "revision": " abc "}
        monkeypatch.setattr(session, "current", lambda held=held: SimpleNamespace(inputs=held))
        assert picker.source() == expected


def test_a_value_of_a_link_has_a_longest_length():
    model = inputs.text("model", "model")
    assert model.read("x" * inputs.LONGEST) == "x" * inputs.LONGEST
    with pytest.raises(ParameterError, match="at most"):
        model.read("x" * (inputs.LONGEST + 1))


ROOMS = {  # every address that ever was, and where it leads
    "Prompt": ("home", "contributions", "logit_lens", "lenses", "writing"),
    "Intervene": ("skip", "erase", "gradients", "prune", "surgery"),
    "Compare": ("two", "audit", "maps"),
    "Studies": ("studies", "difficulty"),
    "Model": ("cards", "claims", "numerics", "loops"),
    "Case studies": ("cases", "case"),
}


def test_every_address_leads_to_its_room():
    found = {room.title: tuple(tab.address for tab in room.tabs) for room in rooms}
    assert found == ROOMS and all((ROOT / tab.file).is_file() for room in rooms for tab in room.tabs)
    assert {"home", "contributions", "two", "audit", "prune", "surgery", "generation", "numerics"} <= KEPT_FROM.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_the_frame_says_which_room_is_open(stored, room):
    (here,) = (one for one in rooms if one.title == room)
    tab = here.tabs[min(1, len(here.tabs) - 1)]
    test = fresh(tab.file).run()
    assert not test.exception and (tab.hidden or here.question in [one.value for one in test.subheader])
    links = [link.proto.label for link in test.sidebar.get("page_link")]
    assert links == [one.title for one in rooms], "six rooms and nothing else"
    tabs = [one.title for one in here.tabs if not one.hidden]
    shown = [link.proto.label for link in test.main.get("page_link")]
    assert (tabs if len(tabs) > 1 else []) == [label for label in shown if label in tabs]


@pytest.mark.parametrize("page", ["studies", "difficulty"])
def test_a_link_to_a_study_or_set_that_is_not_here_says_that_another_one_is_shown(stored, page):
    test = opened(f"pages/studies/{page}.py", study="nowhere", set="none")
    assert not test.exception and "study 'nowhere'" in said(test) and "prompt set 'none'" in said(test)
    assert not said(opened(f"pages/studies/{page}.py", study="toys", set="sums"))
