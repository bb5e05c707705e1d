"""The report asks nobody and runs nothing of a stranger's; the commands make the same numbers again."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from kept_cases import HOME, case, results
from small_models import random_hf
from test_precision import save_adapter

from ed_core.cases import case_study, export
from ed_core.cases import report as report_module
from ed_core.cases.drawings import Drawing, Section
from ed_core.cases.report import report, to_html
from ed_core.cases.snippet import snippet
from ed_core.models.ref import ModelRef
from ed_core.probes import Continuation, Contributions, EarlyExit, LogitLens, Numerics, Prune
from ed_core.types import Prompt
from ed_core.work import compute

ROOT = Path(__file__).parent.parent
PLOTLY = "plotly.js (cartesian - minified)"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)><svg/onload=alert(1)> {{7*7}} ${7*7} ]]> --> \u2067"
NOTES = f"""{EVIL}

[a](javascript:alert(1)) [b](data:text/html,x) [c](vbscript:x) ![p](https://elsewhere.example/p.png) <https://ok.example> [d](https://ok.example "t")

[e]: javascript:alert(1)
[e] ![q][r]

[r]: https://elsewhere.example/q.png

| x | y |
|---|---|
| <b onclick=alert(1)>1</b> | 2 |

```html
<script>alert(2)</script>
```
"""


class Page(HTMLParser):
    """Every tag with its attributes, and the text of every script and style."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.texts, self._in = [], {"script": [], "style": []}, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in in self.texts:
            self.texts[self._in][-1] += data


def hostile() -> case_study.Case:
    """Markup in title, tags, notes, prompt, tokens, the model's name and provenance."""
    one = results()["logit_lens"]
    model, prompt = replace(one.request.models[0], source=EVIL), Prompt(EVIL, "</pre>" + EVIL)
    request = replace(one.request, models=(model,), prompts=(prompt,))
    evil = {EVIL: "</script><script>alert(3)</script>"}
    made = dict(one.provenance) | {"continuation": EVIL, "run": request.key, "evil": evil}
    tokens = tuple(EVIL[i % 60 :] for i in range(one.n_tokens))
    texts = dict.fromkeys(one.token_text, "</script><script>alert(4)</script>")
    evil = replace(one, request=request, provenance=made, tokens=tokens, token_text=texts, notes=(EVIL,))
    return case_study.make(EVIL.replace("\u2067", ""), [evil], notes=NOTES, tags=["<i>t</i>"])


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    plain = case(notes="**Look** at layer 3.", probes=(*HOME, "prune"))
    return {"plain": report(plain), "hostile": report(hostile())}


@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_nothing_is_loaded_from_anywhere_and_the_policy_forbids_all_but_its_own_scripts(pages, name):
    page = Page(pages[name])
    loading = {"src", "srcset", "data", "poster", "background", "action", "formaction", "ping", "xlink:href"}
    for tag, attributes in page.tags:
        assert not loading & set(attributes), (tag, attributes)
        assert tag in ("a", "html") or "href" not in attributes, (tag, attributes)
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "svg", "video", "audio"), tag
        assert not [a for a in attributes if a.startswith("on")], attributes
        assert not re.match(r"\s*(javascript|data|vbscript):", attributes.get("href", ""), re.I)
    assert not [css for css in page.texts["style"] if "url(" in css or "@import" in css]
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "http" not in policy and "connect-src" not in rules
    assert "unsafe-inline" not in rules["script-src"]
    data, packed, draw = page.texts["script"]
    plotly = zlib.decompress(base64.b64decode(packed)).decode()
    assert "<" not in data and len(json.loads(data)) >= 1
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (plotly, draw)]
    assert set(rules["script-src"].split()) == {f"'sha256-{digest}'" for digest in digests}
    assert plotly.count(PLOTLY) == 1 and PLOTLY not in pages[name], "it lies within, once and compressed"
    assert len(pages[name].encode()) < 1_600_000


def test_the_report_tells_what_a_reader_needs(pages):
    text = unescape(pages["plain"])
    for word in (case().verdict, "<strong>Look</strong>", "ed-demo-8 (fp32)", "--model ed-demo-8"):
        assert word in text, word
    figures = json.loads(Page(text).texts["script"][0])
    assert len(figures) == text.count("<figure>") > 5
    assert all(a["aria-label"] for tag, a in Page(text).tags if a.get("role") == "img")


def test_notes_keep_their_form_and_lose_their_teeth():
    page = to_html(NOTES)
    assert "<table>" in page and '<a href="https://ok.example"' in page and page.count("noopener") == page.count("<a ")
    assert "<script" not in page and "<img" not in page and "<b " not in page and 'href="javascript' not in page
    assert 'href="data' not in page


def test_notes_that_nest_without_end_are_read_in_time():
    for hard in ("[", "> ", "*a ", "[a]["):
        begin = time.process_time()
        to_html((hard * 20_000)[: case_study.NOTES])
        assert time.process_time() - begin < 10, hard


@pytest.fixture(scope="module")
def computed() -> case_study.Case:
    """A prompt full of what shells and notebooks trip over, and parameters off their defaults."""
    prompt = Prompt('It\'s "3" + $HOME `x` \\n é {y} %s\n5 + 7 = ', "2", special_tokens=False)
    spec = ModelRef.parse("ed-demo-8")
    model = compute.Models().get(spec)
    probes = [Contributions(), LogitLens(), EarlyExit(threshold=0.5), Prune(n=2, drop=(1, 5)), Numerics()]
    probes.append(Continuation(n_tokens=3))
    return case_study.make("x", [compute.run(model, p.request(spec, prompt)) for p in probes])


def compare(kept: case_study.Case, found) -> None:
    for item in kept.items:
        for name, measure in item.result.measures.items():
            again = found(item.result.request.probe, name)
            np.testing.assert_allclose(again, measure.values, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.process
def test_the_command_line_makes_the_same_numbers_again(computed, tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": "/nowhere"}
    subprocess.run(["sh", "-c", snippet(computed)], cwd=tmp_path, env=env, check=True, capture_output=True)
    with np.load(tmp_path / f"case-{computed.id}.npz", allow_pickle=False) as file:
        compare(computed, lambda probe, name: file[f"{probe}.{name}.0"])
        assert set(export.case_arrays(computed)) == set(file.files)


def test_what_another_machine_may_lack_is_a_comment_whatever_it_is_called(tmp_path, small_folder):
    adapter = save_adapter(tmp_path / "adapter $x", random_hf("qwen3"), "somewhere")
    spec = ModelRef.parse(str(small_folder), adapter=str(adapter))
    one = results()["early_exit"]
    of = lambda spec: snippet(case_study.make("x", [replace(one, request=replace(one.request, models=(spec,)))]))
    assert not of(one.request.models[0]).startswith("#")
    evil = replace(spec, source="/x\ntouch pwned #", adapter="/y\u2028\nexec('evil')", device="cuda:0\nid")
    lines = of(evil).split("\n")
    notes = [line for line in lines if re.search("kept|adapter was|Measured on the device '", line)]
    assert len(notes) >= 3 and all(line.startswith("#") and line.isascii() for line in notes)
    assert shlex.quote("cuda:0\nid") in of(evil)


def test_a_case_study_of_several_views_has_a_command_for_each():
    one = results()["early_exit"]
    other = replace(one, request=replace(one.request, parameters=(("threshold", 0.5),)))
    kept = case_study.make("x", [one, other])
    found = snippet(kept)
    assert found.count("python -m ed_core run") == 2 and "--set early_exit.threshold=0.5" in found
    assert f"case-{kept.id}-2.npz" in found
    assert {name.split("/")[0] for name in export.case_arrays(kept)} == {"1", "2"}


def test_every_word_of_a_stranger_is_text(monkeypatch):
    """A mark of its own at each place where the report writes what others wrote; without its escape it is a tag."""
    marked = lambda place: f'<i title="{place}">'
    one = results()["continuation"]
    model, prompt = replace(one.request.models[0], source=marked("model")), Prompt(marked("prompt"), marked("answer"))
    found = replace(
        one,
        request=replace(one.request, models=(model,), prompts=(prompt,)),
        tokens=(marked("token"), *one.tokens[1:]),
        notes=(marked("note"),),
        provenance={"continuation": marked("continuation"), "time": marked("origin")},
    )
    kept = case_study.make(marked("title"), [found], tags=[marked("tag")])
    kept = replace(kept, verdict=marked("verdict"))
    figure = go.Figure(layout=dict(height=100, title=marked("data")))
    drawing = Drawing(marked("figure"), marked("caption"), figure, marked("alt"), (found,))
    section = Section(tuple(kept.views), (drawing,), (marked("says"),))
    monkeypatch.setattr(report_module, "sections", lambda case: [section])
    monkeypatch.setattr(report_module, "snippet", lambda case: marked("shell"))
    text = report(kept)
    body, data = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL), Page(text).texts["script"][0]
    assert not re.search("<i[ ·]", body + data), "a space that was made visible is no better"
    seen = re.findall(r"&lt;i[ ·]title=\\*(?:&quot;|&#34;)([a-z]+)", body)
    places = {"title", "tag", "verdict", "prompt", "answer", "says", "model", "token", "continuation", "note", "figure"}
    assert set(seen) == places | {"caption", "alt", "shell", "origin"}, "all are there, as text"


def test_no_token_is_a_formula_in_a_table():
    one = results()["early_exit"]
    table = export.csv(replace(one, tokens=("=1+1", *one.tokens[1:])), "confidence")
    assert list(csv.reader(io.StringIO(table)))[1] == ["0", "0", '"=1+1"', repr(one["confidence"][0, 0].item())]
