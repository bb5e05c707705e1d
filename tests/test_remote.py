"""A model that is elsewhere: equal to the model here, asked for once a prompt, and whatever a service may answer is one
sentence. What needs nnsight runs where it is installed; the rest stands on a stand-in for its process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from shell import refused
from small_models import byte_tokenizer

import ed_core
from ed_core import settings
from ed_core.cli import main
from ed_core.errors import (
    IdentityFailed,
    ModelNotFound,
    NotAllowed,
    NotFinite,
    ParameterError,
    RefusedFamily,
    ServiceFailed,
    SettingsError,
)
from ed_core.models import permits, remote
from ed_core.models.ref import ModelRef
from ed_core.probes import PROBES, Contributions, LayerSkip, LogitLens, ResidualErasure
from ed_core.remote import process
from ed_core.remote.model import RemoteModel
from ed_core.types import Prompt, Request
from ed_core.work import compute

ROOT = Path(__file__).parent.parent
PROMPT = Prompt("5 + 7 + 1 = ", "13")
NAME = "ndif:ed-demo-8"
STAND_IN = str(ROOT / "tests" / "stand_in_client.py")
PROBES_THERE = (
    Contributions(),
    LogitLens(),
    LayerSkip(direct=True),
    LayerSkip(part="attention"),
    LayerSkip(mode="future", boundaries=(4, 7), part="mlp", direct=True),
    ResidualErasure(),
    ResidualErasure(target="future"),
)

NNSIGHT = pytest.mark.skipif(importlib.util.find_spec("nnsight") is None, reason="nnsight is not installed")
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def local(monkeypatch):
    """The whole way but the network, with weights that are here."""
    monkeypatch.setenv("ED_NDIF", "true")
    monkeypatch.setenv("ED_NDIF_ADDRESS", settings.LOCAL)


@pytest.fixture
def keyed(monkeypatch):
    """A laboratory that may ask the service, with a key."""
    monkeypatch.setenv("ED_NDIF", "true")
    monkeypatch.setenv(remote.KEY, "a key")


@pytest.fixture
def stand_in(keyed, monkeypatch):
    """`stand_in(how)` lets `stand_in_client.py` answer so, and returns the plans that are asked."""
    plans, ask = [], process.ask

    def asked(name, folder, plan, *more):
        plans.append(plan)
        return ask(name, folder, plan, *more)

    def chosen(how: str) -> list[dict]:
        run = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({STAND_IN!r})"
        monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", run, how))
        monkeypatch.setattr("ed_core.machine.installed", lambda package: True)
        monkeypatch.setattr(process, "ask", asked)
        return plans

    return chosen


def answered(*probes) -> list:
    """The results of these probes on the prompt."""
    spec = ModelRef.parse(NAME)
    model = RemoteModel(spec)
    todo = [(probe, probe.request(spec, PROMPT)) for probe in probes or (Contributions(),)]
    model.expect(todo)
    return [compute.run(model, request) for _, request in todo]


def test_its_identity_is_that_of_no_model_here(keyed, monkeypatch):
    here, there = ModelRef.parse("ed-demo-8"), ModelRef.parse(NAME)
    assert (there.name, there.precision, there.device) == (NAME, "served", "ndif at api.ndif.us")
    asked = Contributions().request(there, PROMPT)
    monkeypatch.setenv("ED_NDIF_ADDRESS", "http://127.0.0.1:5000")
    others = {Contributions().request(spec, PROMPT).key for spec in (here, ModelRef.parse(NAME))}
    assert len(others | {asked.key}) == 3
    assert Request.from_json(json.loads(json.dumps(asked.to_json()))).key == asked.key


@pytest.mark.parametrize("probe", [p for p in PROBES if p.name not in remote.MEASURED], ids=lambda p: p.name)
def test_what_cannot_be_measured_there_is_refused_with_the_reason(keyed, probe):
    with pytest.raises(ParameterError, match=f"{probe.name} is not measured on .* or take contributions, "):
        probe().request(ModelRef.parse(NAME), PROMPT)


def test_a_revision_a_loop_an_unknown_name_and_what_needs_weights_are_refused(keyed):
    for more in ({"precision": "bf16"}, {"adapter": "adapter"}, {"control": "shuffled"}):
        with pytest.raises(ParameterError, match="as the service"):  # runs it
            ModelRef.parse(NAME, **more)
    with pytest.raises(ParameterError, match="take points=layers"):
        answered(LogitLens(points="halves"))
    model = RemoteModel(ModelRef.parse(NAME))
    for call in (model.trace, model.logits, model.run_block, model.unembed, model.write):
        with pytest.raises(ParameterError, match="The weights of ndif:ed-demo-8 are remote"):
            call(None)
    with pytest.raises(ModelNotFound, match="the service runs the one it has"):
        ModelRef.parse("ndif:org/name@main")
    with pytest.raises(RefusedFamily, match="not measured elsewhere"):
        RemoteModel(ModelRef.parse("ndif:ed-loop-4x4"))
    with pytest.raises(ModelNotFound, match="There is no folder"):
        ModelRef.parse("ndif:no folder")


def test_pages_may_only_where_the_settings_say_so(keyed, monkeypatch):
    monkeypatch.setenv("ED_NDIF", "false")
    with pytest.raises(NotAllowed, match=r"the prompt is sent to, and this installation sends none \(ndif = false\)"):
        ModelRef.parse(NAME)
    with pytest.raises(NotAllowed, match="ndif = false"):
        permits.model("ndif:org/name")
    monkeypatch.setenv("ED_NDIF", "true")
    assert ModelRef.parse(NAME).source == NAME
    monkeypatch.setenv("ED_HOSTED", "true")
    monkeypatch.setenv("ED_MODELS", "ed-demo-16")
    with pytest.raises(NotAllowed, match="not among those this installation offers"):
        ModelRef.parse(NAME)


def test_no_key_and_a_strange_address_are_refused(monkeypatch):
    monkeypatch.setenv("ED_NDIF", "true")
    monkeypatch.delenv(remote.KEY, raising=False)
    monkeypatch.setattr("ed_core.machine.installed", lambda package: True)
    with pytest.raises(ParameterError, match="NDIF_API_KEY is not set"):
        answered()
    monkeypatch.setenv("ED_NDIF_ADDRESS", "file:///etc/passwd")
    with pytest.raises(SettingsError, match="ED_NDIF_ADDRESS is 'file:///etc/passwd'; expected an address like"):
        ModelRef.parse(NAME)


@pytest.mark.process
def test_it_is_started_in_an_empty_folder_and_ended_with_it(stand_in):
    stand_in("says")
    with pytest.raises(ServiceFailed) as told:
        answered()
    said = str(told.value)
    assert not os.path.exists(said.split(": ")[1].split(" ")[0]) and said.isprintable()
    assert "HF_TOKEN" not in said and "ED_CACHE" not in said and "'NDIF_API_KEY'" in said


REFUSED = {
    "infinite": (NotFinite, "gives NaN or infinite values where it runs"),
    "shape": (ServiceFailed, "is not what was asked for (0.resid_norm); nothing was kept"),
    "damaged": (ServiceFailed, "The service's answer for ed-demo-8 is damaged, or not an answer of this program"),
    "sums": (IdentityFailed, "layer 1: h + a + m misses the next residual by 1 (limit 2e-02)"),
    "ends": (ServiceFailed, "ended and said nothing"),
}


@pytest.mark.process
@pytest.mark.parametrize("how", REFUSED)
def test_what_a_service_may_do_is_one_sentence(stand_in, how):
    kind, words = REFUSED[how]
    stand_in(how)
    with pytest.raises(kind) as refused:
        answered()
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.process
def test_one_that_queues_for_ever_is_waited_for_as_long_as_the_settings_say(stand_in, monkeypatch):
    monkeypatch.setenv("ED_NDIF_WAIT", "5")
    stand_in("queue")
    said = []
    model = RemoteModel(ModelRef.parse(NAME))
    model.say = said.append
    with pytest.raises(ServiceFailed, match="within 5 s, and the service says it is QUEUED Moved to position 3 in the"):
        compute.run(model, Contributions().request(model.spec, PROMPT))
    assert said == ["ed-demo-8: QUEUED Moved to position 3 in the queue."]


@pytest.mark.process
def test_all_of_a_prompt_is_asked_for_at_once(stand_in):
    plans = stand_in("well")
    results = answered(*PROBES_THERE)
    assert len(plans) == 1 and len(plans[0]["parts"]) == len(PROBES_THERE)
    told = results[0].provenance
    assert told["elsewhere"]["versions"]["torch"] == {"here": "2.13.0", "there": "2.9.0"}
    assert told["precision"]["computes_in"] == "bfloat16" and told["device"] == "ndif at api.ndif.us"


def test_without_nnsight_one_is_told_how_to_install_it(keyed, monkeypatch):
    monkeypatch.setattr("ed_core.machine.installed", lambda package: package != "nnsight")
    with pytest.raises(ParameterError, match=r"pip install 'effective-depth-lab\[ndif\]'"):
        answered()


def alike(there, here) -> None:
    assert there.measures.keys() == here.measures.keys() and there.tokens == here.tokens
    for name in here.measures:
        assert there[name].dtype == here[name].dtype
        np.testing.assert_allclose(there[name], here[name], atol=1e-5, rtol=1e-5, err_msg=name)
    assert there.summary.keys() == here.summary.keys()


@pytest.mark.process
@NNSIGHT
@pytest.mark.parametrize("family", ["", "gpt_neox", "gemma2"])
def test_the_numbers_are_those_of_the_model_here(local, family, model_of, tmp_path):
    """Of a bundled model; parallel branches; norms behind branches and a soft-cap."""
    if family:
        model_of(family).hf.save_pretrained(tmp_path)
        byte_tokenizer().save_pretrained(tmp_path)
    name, probes = (str(tmp_path), PROBES_THERE[:4] + PROBES_THERE[5:6]) if family else ("ed-demo-8", PROBES_THERE)
    there, here = ed_core.open(f"ndif:{name}"), ed_core.open(name, device="cpu")
    for probe in probes:
        alike(there.run(probe, PROMPT), here.run(probe, PROMPT))


@pytest.mark.real
@NNSIGHT
def test_a_real_model_too(local, monkeypatch):
    monkeypatch.delenv("ED_CACHE", raising=False)
    if not ModelRef.named("smollm2").is_ready:
        pytest.skip("smollm2 is not here: it was not fetched, or no registry had it")
    prompt = Prompt("The capital of Japan is", " Tokyo")
    there, here = ed_core.open("ndif:smollm2"), ed_core.open("smollm2", device="cpu")
    for probe in (Contributions(), LogitLens(), LayerSkip(direct=True), ResidualErasure()):
        alike(there.run(probe, prompt, fresh=True), here.run(probe, prompt, fresh=True))


@pytest.fixture(scope="module")
def service():
    """The address of the stand-in service."""
    folder = ROOT / "ed_core" / "demo" / "models" / "ed-demo-8"
    run = f"import runpy; runpy.run_path({str(ROOT / 'tests' / 'stand_in_ndif.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", run, str(folder), "ed-demo-8"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ran:
        yield f"http://127.0.0.1:{ran.stdout.readline().decode().strip()}"
        ran.stdin.close()
        ran.wait(20)


@pytest.mark.process
@NNSIGHT
def test_over_the_network_one_round_trip_a_prompt(keyed, service, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ED_NDIF_ADDRESS", service)
    prompts, out, here = tmp_path / "p.jsonl", tmp_path / "o.npz", tmp_path / "h.npz"
    prompts.write_text('{"text": "5 + 7 = ", "answer": "2"}\n{"text": "1 + 1 = ", "answer": "2"}\n')
    run = ["run", "contributions", "logit_lens", "layer_skip", "residual_erasure", "--prompts", str(prompts)]
    assert main([*run, "--model", NAME, "--out", str(out)]) == 0
    assert main([*run, "--model", "ed-demo-8", "--device", "cpu", "--out", str(here)]) == 0
    seen = lambda: json.load(urllib.request.urlopen(f"{service}/seen"))
    assert seen()["asked"] == 2 and seen()["headers"]["ndif-api-key"] == "a key"
    with np.load(out) as there, np.load(here) as ours:
        assert set(there.files) == set(ours.files)
        for name in ours.files:
            if ours[name].dtype.kind == "f":
                np.testing.assert_allclose(there[name], ours[name], atol=2e-5, rtol=2e-5, err_msg=name)
        assert json.loads(str(there["provenance"])) != json.loads(str(ours["provenance"]))
    assert main([*run, "--model", NAME, "--out", str(out)]) == 0  # from the store
    assert seen()["asked"] == 2 and "8 from the store" in capsys.readouterr().out


@pytest.mark.process
@NNSIGHT
def test_a_wrong_key_and_an_absent_service_are_one_sentence(keyed, service, monkeypatch):
    monkeypatch.setenv(remote.KEY, "another key")
    for address, words in ((service, "refused the key"), ("http://127.0.0.1:9", "does not answer")):
        monkeypatch.setenv("ED_NDIF_ADDRESS", address)
        with pytest.raises(ServiceFailed, match=words):
            answered()


def test_what_opens_weights_says_where_they_are(keyed, capsys):
    for words in ("verify NAME", "card --model NAME --out c", "fit affine --model NAME --set s --out o.safetensors"):
        refused(capsys, words.replace("NAME", NAME).split(), "remote")
    refused(capsys, ["estimate", NAME], "needs no memory for weights here")
