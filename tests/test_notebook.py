"""The engine as a library: what `ed_core.open` gives, results by name, as a table and as a picture; the notebook and
README's example run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kept_cases import results

import ed_core
from ed_core.api.model import Result
from ed_core.errors import ModelNotFound, ParameterError, PromptError
from ed_core.models.ref import ModelRef
from ed_core.results import lookup
from ed_core.types import Measure, MeasureSpec, Prompt
from ed_core.work import compute

ROOT = Path(__file__).parent.parent
SUM = Prompt("Sums mod 10:\n5 + 7 = ", "2")
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def model(small_folder):
    return ed_core.open(str(small_folder))


@pytest.fixture
def computed(monkeypatch):
    """The prompts that are computed, in their order."""
    run, texts = compute.run, []

    def counted(model, request, **more):
        texts.append(request.prompts[0].text)
        return run(model, request, **more)

    monkeypatch.setattr(compute, "run", counted)
    return texts


@pytest.fixture
def lens() -> Result:
    """A shipped one."""
    return Result.of(results()["logit_lens"])


def test_a_result_answers_by_name_with_the_values_that_are_stored(model):
    result = model.run(ed_core.LogitLens(k=3), SUM.text, answer=SUM.answer)
    request = ed_core.LogitLens(k=3).request(model.spec, SUM)
    for other in (compute.run(model.language_model, request), lookup.store().get(request.key)):
        assert set(other.measures) == set(result.measures) and other.request.key == result.request.key
        for name, measure in other.measures.items():
            np.testing.assert_array_equal(getattr(result, name), measure.values, err_msg=name)
            assert getattr(result, name) is result[name]
    assert "kl" in dir(result) and result.n_tokens == len(result.tokens) == result.kl.shape[1]
    assert not hasattr(result, "kI")


def test_what_is_stored_is_read_and_fresh_neither_reads_nor_stores(model, computed):
    probe = ed_core.Contributions()
    first = model.run(probe, SUM, fresh=True)
    assert computed == [SUM.text] and lookup.find(first.request) is None
    stored = model.run(probe, SUM)
    assert len(computed) == 2 and lookup.find(stored.request).provenance == stored.provenance
    assert model.run(probe, SUM).provenance == stored.provenance and len(computed) == 2
    model.run(probe, SUM, fresh=True)
    assert len(computed) == 3 and lookup.find(stored.request).provenance == stored.provenance
    model.run(ed_core.LogitLens(), SUM)
    assert len(computed) == 4, "of another probe"


def test_a_list_of_prompts_gives_a_list_and_computes_what_is_missing_once(model, computed):
    probe = ed_core.LogitLens()
    model.run(probe, "bb")
    found = model.run(probe, ["aaa", Prompt("bb"), "aaa", Prompt("c", "dddd")])
    assert [r.n_tokens for r in found] == [3, 2, 3, 5] and computed == ["bb", "aaa", "c"]
    assert model.run(probe, []) == []


def test_one_bad_prompt_refuses_the_whole_list_before_anything_is_computed(model, computed):
    with pytest.raises(PromptError, match=r"'the bad one': .*empty"):
        model.run(ed_core.LogitLens(), ["aaa", Prompt(" ", id="the bad one")])
    assert computed == []
    for prompt in (SUM, ["aaa"]):
        with pytest.raises(ParameterError, match="each Prompt its own answer"):
            model.run(ed_core.LogitLens(), prompt, answer="3")


def test_a_model_is_opened_as_it_is_asked_for(model, small_folder):
    asked = dict(precision="bf16", control="untrained", control_seed=4)
    twin = ed_core.open(str(small_folder), **asked)
    assert twin.spec == ModelRef.parse(str(small_folder), **asked)
    assert str(twin.language_model.dtype) == "torch.bfloat16"
    assert ed_core.open(str(small_folder)).language_model is model.language_model, "opened once"
    with pytest.raises(ModelNotFound):
        ed_core.open(str(small_folder / "elsewhere"))
    with pytest.raises(ParameterError, match="no device"):
        ed_core.open(str(small_folder), device="cuda:77")


def test_a_table_has_a_row_per_value(lens):
    table = lens.to_dataframe("top_probs")
    assert list(table) == ["measure", "depth", "pos", "rank", "token", "value"]
    assert len(table) == lens.top_probs.size and set(table.measure) == {"top_probs"}
    found = table.iloc[7 * lens.n_tokens * 5 + 3 * 5 + 2]
    assert (found.depth, found.pos, found["rank"], found.token) == (7, 3, 2, lens.tokens[3])
    np.testing.assert_array_equal(table.value, lens.top_probs.ravel())
    with pytest.raises(ParameterError, match="no measure 'KL' here"):
        lens.to_dataframe("KL")


def marked(place: str) -> str:
    return f'<i title="{place}">$x'


def test_a_result_shows_itself_in_short_and_every_word_of_a_stranger_is_text(lens):
    assert repr(lens).startswith("<logit_lens on ed-demo-8 (fp32), ")
    model = replace(lens.request.models[0], source=marked("model"))
    request = replace(lens.request, models=(model,), prompts=(Prompt(marked("prompt"), marked("answer")),))
    spec = MeasureSpec("kl", (marked("dim"),), marked("unit"), marked("meaning"))
    measures = {marked("measure"): Measure(spec, np.zeros(3, np.float32))}
    page = replace(lens, request=request, notes=(marked("note"),), measures=measures)._repr_html_()
    assert "<i" not in page
    for place in ("model", "prompt", "answer", "note", "measure", "dim", "unit", "meaning"):
        assert f"&lt;i title=&quot;{place}&quot;&gt;$x" in page or f'&lt;i title="{place}"&gt;$x' in page, place
    assert "tex2jax_ignore" in page and "$" not in page[page.index("</pre>") : page.index("<table")]
    assert "<td>kl</td>" in lens._repr_html_()


@pytest.mark.process
def test_importing_ed_core_imports_nothing_heavy_and_a_name_only_what_it_needs():
    code = """
import sys
heavy = ("numpy", "pandas", "plotly", "torch", "transformers", "streamlit")
import ed_core
assert not [name for name in heavy if name in sys.modules]
assert not hasattr(ed_core, "nothing")
from ed_core import Prompt, read_jsonl, LogitLens
import ed_core.api.model
assert [name for name in heavy if name in sys.modules] == ["numpy"]
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
