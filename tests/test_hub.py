"""Downloads against a hub on 127.0.0.1: whole, cancelled, resumed, broken off, gated, silent, without room; and that
what is here needs none."""

import json

import numpy as np
import pytest
from fake_hub import COMMIT, serving

from ed_core.errors import BrokenWeights, HubUnreachable
from ed_core.models import weights
from ed_core.models.ref import ModelRef


def arrived(home, model):
    """Whether every byte of the weights is in its place."""
    place = home / "hf/hub/models--org--model/snapshots" / COMMIT / "model.safetensors"
    return place.read_bytes() == (model / "model.safetensors").read_bytes()


def entry(shape=(1,), offsets=(0, 4), dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "header", [{"a": entry(shape=(2**40, 2**40))}, {"a": entry(offsets=(4, 8))}, {"a": entry(dtype="F\n32" * 100_000)}]
)
def test_a_header_that_cannot_be_is_one_sentence(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(BrokenWeights, match=r"model.safetensors is damaged .*; download") as caught:
        weights.check_complete(tmp_path, "model")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.process
def test_a_model_is_downloaded_opened_and_then_works_without_the_hub(hub_model, client, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"text": "5 + 7 = "}))
    others = [hub_model / name for name in ("pytorch_model.bin", "consolidated.safetensors")]
    for file in others:
        file.write_bytes(b"never downloaded")
    run = ["run", "contributions", "--model", "org/model", "--prompts", str(prompts), "--out", str(tmp_path / "r.npz")]
    try:
        with serving(hub_model) as hub:
            code, out, err = client(hub, *run)
            assert code == 0, err
            assert not any(path.endswith(tuple(file.name for file in others)) for _, path, _ in hub.asked)
    finally:
        for file in others:
            file.unlink()
    with np.load(tmp_path / "r.npz") as file:
        assert json.loads(str(file["provenance"]))["runs"][0]["model"]["revision"] == COMMIT
    with serving(hub_model) as other:
        code, out, err = client(other, *run[:-1], str(tmp_path / "again.npz"), HF_HUB_OFFLINE="1")
        assert code == 0 and "1 from the store" in out and other.asked == [], err
        code, out, _ = client(other, "estimate", "org/model")
        assert code == 0 and "qwen3" in out and other.asked == [], "the config is here"


@pytest.mark.process
def test_a_revision_is_asked_for_by_name_and_an_unknown_one_refused(hub_model, client):
    with serving(hub_model) as hub:
        assert client(hub, "fetch", "org/model@v1")[1].strip().endswith(COMMIT)
        assert any(path.endswith("/revision/v1") for _, path, _ in hub.asked)
        n = len(hub.asked)
        assert client(hub, "fetch", "org/model@v1")[0] == 0 and len(hub.asked) == n, "here already"
        code, _, err = client(hub, "fetch", "org/model@v9")
        assert code == 2 and "no revision 'v9'" in err and len(err.splitlines()) == 1
        code, _, err = client(hub, "fetch", "org/other")
        assert code == 2 and "org/other" in err and "HF_TOKEN" in err and len(err.splitlines()) == 1


SMALL = """
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 16384  # 10 MB otherwise, which is more than the model
"""
CANCEL = """
import time
from ed_core.models.hub import Download
from ed_core.models.ref import ModelRef
from ed_core.errors import Cancelled
one = Download(ModelRef.named("org/model").download)
while not one.over and one.progress[0] < 100_000:
    time.sleep(0.01)
assert 0 < one.progress[0] < one.progress[1], one.progress
one.cancel(); one.join(10)
assert one.over and isinstance(one.error, Cancelled) and "are kept" in str(one.error), one.error
print(one.progress[0])
"""
WATCH = """
from ed_core.models.ref import ModelRef
seen = []
print(ModelRef.named("org/model").download(lambda done, total: seen.append((done, total))).revision)
assert seen and seen[-1][0] == seen[-1][1] and all(a <= b for (a, _), (b, _) in zip(seen, seen[1:])), seen[:5] + seen[-5:]
"""


@pytest.mark.process
def test_a_cancelled_download_keeps_the_files_that_are_complete(hub_model, client, tmp_path):
    with serving(hub_model, slow=0.05) as hub:
        code, out, err = client(hub, code=SMALL + CANCEL)
        assert code == 0, err
    with serving(hub_model) as hub:
        code, out, err = client(hub, code=SMALL + WATCH)
        assert code == 0 and out.strip() == COMMIT, err
        assert not any(path.endswith("/config.json") for _, path, _ in hub.asked)
        assert arrived(tmp_path, hub_model)


@pytest.mark.process
def test_a_connection_that_breaks_off_is_taken_up_again(hub_model, client, tmp_path):
    with serving(hub_model, cut=100_000) as hub:
        code, out, err = client(hub, code=SMALL + WATCH)
        assert code == 0 and out.strip() == COMMIT, err
        ranges = [wanted for method, path, wanted in hub.asked if method == "GET" and path.endswith(".safetensors")]
        assert len(ranges) == 2 and ranges[1]
        assert arrived(tmp_path, hub_model)


@pytest.mark.process
def test_an_incomplete_model_is_not_taken_for_a_downloaded_one(hub_model, client, tmp_path):
    with serving(hub_model) as hub:
        assert client(hub, "fetch", "org/model")[0] == 0
        snapshot = tmp_path / "hf/hub/models--org--model/snapshots" / COMMIT
        (snapshot / "model.safetensors").unlink()
        before = len(hub.asked)
        assert client(hub, "fetch", "org/model")[0] == 0 and len(hub.asked) > before and arrived(tmp_path, hub_model)
        for file in snapshot.glob("tokenizer*"):  # a program that needs none has downloaded the model
            file.unlink()
        assert client(hub, "verify", "org/model")[0] == 0 and (snapshot / "tokenizer.json").is_file()
        real = (snapshot / "model.safetensors").resolve()
        real.write_bytes(real.read_bytes()[:-100])  # the library takes any file that is there for whole
        code, _, err = client(hub, "verify", "org/model")
        assert code == 2 and "cut off" in err and "again" in err


@pytest.mark.process
def test_a_gated_model_is_refused_with_how_to_get_it_and_opens_with_a_token(hub_model, client):
    with serving(hub_model, gated=403) as hub:
        code, _, err = client(hub, "fetch", "org/model")
        assert code == 2 and "gated" in err and "HF_TOKEN" in err and len(err.splitlines()) == 1
        code, _, err = client(hub, "fetch", "org/model", HF_TOKEN="secret-and-wrong")
        assert code == 2 and "secret" not in err
        code, _out, err = client(hub, "fetch", "org/model", HF_TOKEN="good")
        assert code == 0, err


@pytest.mark.process
def test_a_silent_hub_is_given_up_and_bundled_models_work_on(hub_model, client):
    """A hub that never answers: nobody waits for it, and nobody asks twice."""
    with serving(hub_model, silent=True) as hub:
        code, _, err = client(hub, "fetch", "org/model")
        assert code == 2 and len(err.splitlines()) == 1 and "bundled" in err
        assert len([path for _, path, _ in hub.asked if path.startswith("/api/models")]) == 1, "asked once"
        n = len(hub.asked)
        assert client(hub, "estimate", "ed-demo-8")[0] == 0 and len(hub.asked) == n
    code, _, err = client(hub, "fetch", "org/model")  # nobody listens any more
    assert code == 2 and "did not answer" in err and "(`hf download`)" in err


@pytest.mark.process
def test_without_room_on_the_disk_nothing_is_downloaded(hub_model, client):
    with serving(hub_model, lie=10**15) as hub:
        code, _, err = client(hub, "fetch", "org/model")
        assert code == 2 and "are free in" in err and "HF_HOME" in err
        assert not any("/resolve/" in path for _, path, _ in hub.asked)


@pytest.mark.process
def test_a_model_of_pickled_weights_only_is_refused_before_anything_is_downloaded(client, tmp_path):
    (tmp_path / "m").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / "m" / name).write_text("{}")
    with serving(tmp_path / "m") as hub:
        code, _, err = client(hub, "fetch", "org/model")
        assert code == 2 and "pytorch_model.bin" in err and "run code" in err
        assert not any("/resolve/" in path for _, path, _ in hub.asked)


WORKER = """
import time
from ed_core.results import lookup
from ed_core.work import measure
from ed_core.work.queue import Queue
from ed_core.probes import Contributions
from ed_core.models.ref import ModelRef
from ed_core.types import Prompt
request = lambda: Contributions().request(ModelRef.parse("org/model"), Prompt("5 + 7 = "))
assert not request().models[0].revision
jobs, stages = Queue(), []
job = measure.submit(jobs, request(), "viewer")
while not job.over:
    job.unseen = 0.0
    stages.append(job.stage)
    time.sleep(0.005)
jobs.close()
assert job.state == "done", job.error
assert any(stage.startswith("downloading model: ") for stage in stages), set(stages)
assert lookup.find(request()).request == job.result.request, "stored under the commit"
print(job.result.request.models[0].revision)
"""


@pytest.mark.process
def test_the_apps_worker_downloads_what_is_asked_for_and_stores_it_under_the_commit(hub_model, client):
    with serving(hub_model, slow=0.02) as hub:
        code, out, err = client(hub, code=SMALL + WORKER)
        assert code == 0 and out.strip() == COMMIT, err


def test_what_the_cache_has_is_found_without_a_note_of_main_and_by_the_begin_of_a_commit(tmp_path, monkeypatch):
    """As a cache that was copied without its `refs`, and a commit as web pages shorten it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commits = [letter * 40 for letter in "ab"]
    (tmp_path / "models--org--model" / "snapshots" / commits[0]).mkdir(parents=True)
    assert ModelRef.named("org/model").revision == commits[0]
    (tmp_path / "models--org--model" / "snapshots" / commits[1]).mkdir()
    assert ModelRef.named("org/model@aaaaaaa").revision == commits[0] and not ModelRef.named("org/model").revision
    with pytest.raises(HubUnreachable, match=f"the local hub cache has {', '.join(commits)}, not 'main'; give one of"):
        ModelRef.named("org/model").ensure()
    (tmp_path / "models--org--model" / "refs").mkdir()
    (tmp_path / "models--org--model" / "refs" / "main").write_text(commits[1])
    assert ModelRef.named("org/model").revision == commits[1]
