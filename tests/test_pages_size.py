"""The pages around size and precision: what is said before Run, the model card; through AppTest, no
worker started."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from charts import forget, idle, words
from safetensors.numpy import save_file
from small_models import computed
from streamlit.testing.v1 import AppTest
from test_pages import PROMPT, app, session_of
from workers import until

from ed_core.machine import ROOM
from ed_core.models import hub
from ed_core.models.bundled import MODELS
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions
from ed_core.results import lookup
from ed_core.work import estimate
from ed_core.work.resolve import settle
from ed_ui import downloads, running

ABSENT = "Qwen/Qwen2.5-7B"


@pytest.fixture(scope="module")
def stored(small_folder, tmp_path_factory):
    """A store with one result of a small model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.delenv("HF_TOKEN", raising=False)
        patch.setitem(MODELS, "small", small_folder)
        idle(patch, tmp_path_factory.mktemp("cache"))
        result = computed(Contributions().request(ModelRef.parse("small"), PROMPT))
        lookup.store().put(result)
        yield result
        forget()


def opened(page="pages/prompt/home.py", model="small", free=None, **inputs):
    """The app on a page, with these inputs, as if somebody had chosen them, and so many bytes `free` on each device."""
    test = app(page, model=model)
    session_of(test).inputs.update(inputs)
    session_of(test).free.update(free or {})
    return test.run()


def run_button(test):
    return next(b for b in test.button if b.label == "Run")


def test_auto_takes_what_fits_the_memory_that_was_free_when_the_worker_started_and_says_so(stored):
    test = opened()
    assert [c.value for c in test.caption if c.value.startswith("auto: ")] == ["auto: **fp32**"]
    assert not test.error and not test.warning and not run_button(test).disabled
    asked = Contributions().request(settle(ModelRef.parse("small", "auto")), PROMPT)
    assert asked.key[:12] in str(test.run().query_params["run"]), "auto's result is fp32's"
    size = ModelRef.named("small").size()
    free = int(estimate.estimate(size, "bf16", device="cpu").peak / ROOM) + 1
    assert "auto: **bf16**" in [c.value for c in opened(free={"cpu": free}).caption]


def test_too_large_is_said_before_run_with_what_would_fit(stored):
    test = opened(model="ed-demo-8", free={"cpu": 12_000_000}, precision="fp32")
    assert re.search(r"too large in fp32: .* 12 MB are free on cpu.*; .*4bit would fit", words(test))
    assert run_button(test).disabled
    assert not run_button(opened(model="ed-demo-8", precision="fp32")).disabled


def test_integrated_gradients_in_int8_are_refused_before_run(stored):
    test = opened("pages/intervene/gradients.py", precision="int8")
    assert any("integrated_gradients needs gradients" in w.value.replace("\\", "") for w in test.warning)
    assert run_button(test).disabled
    assert not run_button(opened("pages/intervene/gradients.py", precision="bf16")).disabled


def test_a_family_that_is_no_plain_sum_is_refused_by_name_at_once(stored, tmp_path, monkeypatch):
    sizes = {"num_hidden_layers": 4, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"} | sizes))
    save_file({"w": np.zeros(2, np.float32)}, str(tmp_path / "model.safetensors"))
    monkeypatch.setitem(MODELS, "other", tmp_path)
    test = opened(model="other")
    assert len(test.error) == 1 and "family 'mamba'" in words(test) and "state-space" in words(test)
    assert not any(b.label == "Run" for b in test.button)


def test_a_hub_model_that_is_not_here_is_estimated_and_offline_is_one_sentence(stored):
    test = opened(model=ABSENT, free={"cpu": 60_000_000_000})
    assert any(c.value.startswith("needs 30.9 GB") and "of 60.0 GB free" in c.value for c in test.caption)
    assert words(test).count("is not here yet") == 1 and run_button(test).disabled, "said once"
    assert ["offline mode is on" in w.value for w in test.warning] == [True] and not test.exception
    assert not run_button(test.selectbox(key="model").set_value("small").run()).disabled, "everything else goes on"


def test_a_small_model_is_offered_in_place_of_one_out_of_a_wheel(stored):
    test = opened(model="smollm2")
    until(lambda: "Asking the hub" not in words(test.run()))
    assert run_button(test).disabled and not test.exception
    assert any(b.label == "Download" for b in test.button) and "is not here yet" in words(test)
    test.button(key="download.small").click().run()
    assert test.selectbox(key="model").value == "ed-demo-16" and not run_button(test).disabled


def test_a_gated_model_says_which_token_and_where(stored, monkeypatch):
    test = opened(model="meta-llama/Llama-3.2-1B")
    assert "HF_TOKEN" in words(test) and not [i for i in test.text_input if "oken" in i.label]
    monkeypatch.setenv("HF_TOKEN", "x")
    assert "HF_TOKEN" not in words(opened(model="meta-llama/Llama-3.2-1B"))


def test_an_adapter_for_another_base_is_refused_on_top(stored, tmp_path):
    told = {"peft_type": "LORA", "base_model_name_or_path": "org/other"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(told))
    save_file({"w": np.zeros((8, 8), np.float32)}, str(tmp_path / "adapter_model.safetensors"))
    test = opened(model=ABSENT, adapter=str(tmp_path))
    assert "was trained on org/other" in words(test)
    assert not any(b.label == "Run" for b in test.button)


def test_the_model_card_holds_the_figures_of_the_latest_result(stored):
    def card_of(**chosen: str) -> str:
        test = opened(**chosen)
        test.session_state["Model card"] = True
        return next(c.value for c in test.run().caption if "**Family**" in c.value)

    card = card_of()
    assert f"sums are off by {stored.provenance['identities']['miss']:.1g}" in card and "**Layers**: 5" in card
    assert "**Round trip**: 4 of 4" in card and "not opened yet" not in card
    assert "not opened yet" in card_of(precision="fp16")


def test_the_list_of_models_says_what_is_gated_or_too_large(stored, monkeypatch):
    monkeypatch.setattr(running, "free", lambda device: 20 << 30)
    listed = opened().selectbox(key="model").options
    assert any(one.startswith("meta-llama/Llama-3.2-1B · ") and "gated" in one for one in listed)
    assert any("Llama-3.1-70B" in one and "too large: " in one for one in listed)


@pytest.fixture
def a_download(stored, monkeypatch):
    """A model that is not here, what the hub told of it, and a download of it as given."""

    def page(room=True, **download) -> AppTest:
        answer: Future = Future()
        files = (("config.json", 700), ("model.safetensors", 3 << 30))
        answer.set_result(hub.Plan("Qwen/Qwen2.5-1.5B", "c" * 40, files))
        one = SimpleNamespace(done=False, error=None, cancelled=[], **download)
        one.cancel = lambda: one.cancelled.append(True)
        monkeypatch.setattr(downloads, "_asking", lambda: SimpleNamespace(submit=lambda *_: answer))
        monkeypatch.setattr(downloads, "_running", lambda: {"Qwen/Qwen2.5-1.5B@": one} if download else {})
        monkeypatch.setattr(downloads.disk, "has_room", lambda n_bytes, folder: room)
        test = app(prompt=None, model="Qwen/Qwen2.5-1.5B")
        test.one = one
        assert not test.exception
        return test

    return page


def test_a_download_under_way_says_how_far_it_is_and_can_be_stopped(a_download):
    test = a_download(over=False, progress=(1 << 30, 4 << 30))
    (bar,) = test.get("progress")
    assert (bar.proto.value, bar.proto.text) == (25, "1.1 GB of 4.3 GB")
    test.button(key="download.cancel").click().run()
    assert test.one.cancelled == [True]


def test_what_a_download_would_bring_is_said_before_it_begins(a_download):
    test = a_download()
    assert "3.2 GB to download; " in words(test) and not test.button(key="download.start").disabled
    test = a_download(room=False)
    assert test.button(key="download.start").disabled and "The disk has no room for it" in test.error[0].value
