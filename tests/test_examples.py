"""The shipped examples are what the present weights, prompts and engine give: the first page shows no old numbers."""

import numpy as np
import pytest

from ed_core.depth.sample import READS
from ed_core.models import controls
from ed_core.models.bundled import CHARACTERS, ENGLISH_EXAMPLE, KINDS, example_of, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import PROBES, Continuation, Contributions, LayerSkip, LogitLens
from ed_core.results import lookup
from ed_core.results.wire import unpack
from ed_core.types import Prompt
from ed_core.work import compute
from tools.examples import READ, REAL, compared, shipped

HOME = (Contributions(), LogitLens(), LayerSkip(), Continuation())
HINT = "run python -m tools.examples"
EXAMPLES = [unpack(file.read_bytes()) for file in lookup.EXAMPLES.glob("*.npz")]
NEW = {p.name for p in PROBES} - {result.request.probe for result in EXAMPLES}  # no example yet


def prompt_of(model: str, id: str) -> Prompt:
    return next(Prompt(p["text"], p["answer"]) for p in load_prompts(model) if p["id"] == id)


def test_the_shipped_files_are_those_that_the_tool_writes_and_name_no_folder_of_a_machine():
    wanted = {
        (ModelRef.parse(name).twin(control).content_hash, control, prompt, probe.name)
        for name, control, prompt, probe in (*shipped(), *compared())
        if probe.name not in NEW
    }
    ids = {p["text"]: p["id"] for model in ("", CHARACTERS[0]) for p in load_prompts(model)}
    found = set()
    for result in EXAMPLES:
        request, model = result.request, result.request.models[0]
        assert (lookup.EXAMPLES / f"{request.key}.npz").is_file() and result.complete
        assert "/" not in result.provenance["model"]["source"]
        found.add((model.content_hash, model.control, ids[request.prompts[0].text], request.probe))
    assert found == wanted, HINT


@pytest.mark.parametrize("name", REAL)
def test_a_real_model_is_shown_without_its_weights(name, own_cache):
    """All its results are found under the identity it has before it is fetched, and they are small."""
    spec, prompt = ModelRef.parse(name, "fp32"), prompt_of("", ENGLISH_EXAMPLE)
    found = [
        lookup.find(p.at_first(spec).request(spec, prompt))
        for p in PROBES
        if not (p.needs_passes or p.further_prompts() or p.name in NEW)
    ]
    assert all(found) and sum((lookup.EXAMPLES / f"{r.request.key}.npz").stat().st_size for r in found) <= 300 << 10
    assert "Tokyo" in next(r for r in found if r.request.probe == "continuation").provenance["continuation"]


def test_home_shows_a_prompt_of_each_kind_without_the_real_models_weights(own_cache):
    spec = ModelRef.parse("smollm2", "fp32")
    for id in KINDS.values():
        assert all(lookup.find(probe.request(spec, prompt_of("", id))) for probe in HOME), HINT


def test_a_page_on_a_gpu_shows_what_is_shipped_and_says_where_it_was_measured(own_cache):
    spec, prompt = ModelRef.parse("ed-demo-8", device="cuda"), prompt_of("ed-demo-8", example_of("ed-demo-8"))
    asked = HOME[0].request(spec, prompt)
    assert lookup.find(asked) is None and lookup.find_shown(asked).request.models[0].device == "cpu"
    assert lookup.find_shown(HOME[0].request(spec, Prompt("another one"))) is None


@pytest.mark.parametrize("name", ["ed-demo-8", "ed-loop-4x4"])
def test_what_home_opens_on_is_what_a_run_gives(name, own_cache):
    spec = ModelRef.parse(name)
    model, prompt = compute.Models().get(spec), prompt_of(name, example_of(name))
    for probe in HOME:
        request = probe.request(spec, prompt)
        result = lookup.find(request)
        for measure, values in compute.run(model, request).measures.items():
            limit = 1e-3 * max(np.nanmax(np.abs(values.values)), 1e-3)
            assert np.nanmax(np.abs(result[measure] - values.values)) <= limit, f"{probe.name}.{measure}"


def test_a_verdict_finds_five_twins_of_each_shipped_prompt():
    files = {file.stem: file for file in lookup.TWINS.glob("*.npz")}
    wanted = {
        probe().request(ModelRef.parse(name).twin("untrained", seed), prompt_of(name, id)).key
        for name, _, id, probe in shipped()
        if probe.name in READS
        for seed in controls.SEEDS
    }
    whole = {key for key in wanted if (lookup.EXAMPLES / f"{key}.npz").is_file()}
    assert files.keys() == wanted - whole, HINT
    for key, file in list(files.items())[::9]:
        result = unpack(file.read_bytes())
        assert result.request.key == key and set(result.measures) == set(READ[result.request.probe])
        assert lookup.find(result.request) is None and lookup.find_read(result.request) is not None


@pytest.mark.parametrize("seed", [0, 3])  # shipped as a whole, and only what a verdict reads
def test_a_shipped_twin_is_what_a_run_gives(seed):
    spec = ModelRef.parse("ed-demo-8").twin("untrained", seed)
    model, prompt = compute.Models().get(spec), prompt_of("ed-demo-8", example_of("ed-demo-8"))
    for probe in HOME[:2]:
        request = probe.request(spec, prompt)
        fresh = compute.run(model, request)
        for measure, values in lookup.find_read(request).measures.items():
            np.testing.assert_allclose(values.values, fresh[measure], rtol=1e-3, atol=1e-4)
