"""Patching from the shell, in a notebook, by link and on its page."""

import json

import numpy as np
import pytest
from shell import wrote
from small_models import computed
from test_pages import app

import ed_core
from ed_core.depth import say
from ed_core.errors import PromptError
from ed_core.models.ref import ModelRef
from ed_core.probes import Patching
from ed_core.results import lookup
from ed_core.studies import sets
from ed_core.studies.study import SetEntry
from ed_core.types import Prompt, Request
from ed_ui import show

PROMPT, OTHER = Prompt("5 + 7 = ", "2"), Prompt("5 + 8 = ", "3")


def test_the_second_prompt_is_part_of_the_request_by_content(spec):
    asked = Patching(OTHER).request(spec, PROMPT)
    assert asked.prompts == (PROMPT, OTHER) and Patching.of(asked) == Patching(OTHER)
    assert Request.from_json(json.loads(json.dumps(asked.to_json()))).key == asked.key
    again = Patching(other=json.dumps({"text": OTHER.text, "answer": OTHER.answer, "id": "x"}))
    assert again.request(spec, PROMPT).key == asked.key
    assert asked.key not in {Patching(other).request(spec, PROMPT).key for other in (OTHER.text, PROMPT)}


def test_the_shell_and_a_notebook_give_the_same(small_folder, tmp_path, own_cache):
    found = ed_core.open(str(small_folder)).run(ed_core.Patching(other=OTHER), PROMPT)
    given = json.dumps({"text": OTHER.text, "answer": OTHER.answer})
    data = wrote(tmp_path, [PROMPT], "patching", given=[f"patching.other={given}"], model=small_folder)
    np.testing.assert_array_equal(data["patching.patch.0"], found.patch)
    assert found.patch.shape == (found.n_layers + 1, found.n_tokens)
    assert len(found.plot().data) and lookup.patched(found.request.models[0], PROMPT).request.key == found.request.key
    assert lookup.patched(found.request.models[0], OTHER) is None
    with pytest.raises(PromptError, match="there is no other"):
        ed_core.open(str(small_folder)).run(ed_core.Patching(), PROMPT)


def test_prompts_of_a_set_go_with_the_next_one_of_their_form_and_another_answer(tmp_path):
    lines = [("a1", "1", "f"), ("b1", "x", "g"), ("a2", "1", "f"), ("a3", "3", "f"), ("c", "", "f"), ("b2", "x", "g")]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(dict(zip(("text", "answer", "form"), line))) + "\n" for line in lines))
    examples = sets.load(SetEntry(name="p", file=str(file)), tmp_path, "ed-demo-8").examples
    found = {e.prompt.text: e.other and e.other.text for e in examples}
    assert found == {"a1": "a3", "a2": "a3", "a3": "a1", "b1": None, "b2": None, "c": None}


def test_the_page_shows_a_linked_patch_and_writes_no_prompt_into_the_address(stored):
    result = computed(Patching(OTHER).request(ModelRef.parse("small"), PROMPT))
    lookup.store().put(result)
    test = app("pages/intervene/patch.py", run=result.request.key)
    assert not test.exception
    assert test.text_area(key="patching.other.text").value == OTHER.text
    assert test.text_input(key="patching.other.answer").value == OTHER.answer
    said = say.patched(result.provenance["answers"], Patching.depths(result), result.n_layers)
    assert show.plain(said) in " ".join(one.value for one in test.markdown)
    assert not any(OTHER.text.strip() in str(value) for value in test.query_params.values())
