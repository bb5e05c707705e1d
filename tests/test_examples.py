"""The shipped example is what the present weights, prompt and engine give: the first page must not show yesterday's
numbers."""

import numpy as np
import pytest

from ed_core.depth.verdict import READS
from ed_core.probes import PROBES, Continuation, Contributions, LayerSkip, LogitLens
from ed_core.results import lookup
from ed_core.results.wire import unpack
from ed_core.sources import controls
from ed_core.sources.bundled import CHARACTERS, ENGLISH_EXAMPLE, KINDS, MODELS, example_of, load_prompts
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve, twin
from tools.examples import READ, REAL, compared, shipped

HOME = (Contributions(), LogitLens(), LayerSkip(), Continuation())


def example(model: str) -> Prompt:
    chosen = next(p for p in load_prompts(model) if p["id"] == example_of(model))
    return Prompt(chosen["text"], chosen["answer"])


def test_no_file_is_left_over_and_none_names_a_folder_of_some_machine():
    files = {f.stem: unpack(f.read_bytes()) for f in lookup.EXAMPLES.glob("*.npz")}
    hashes = {twin(resolve(name), control).content_hash for name, control, *_ in (*shipped(), *compared())}
    assert files
    assert {r.request.models[0].content_hash for r in files.values()} == hashes, "run python -m tools.examples"
    for key, result in files.items():
        assert result.request.key == key and result.complete
        assert result.request.models[0].source in (*MODELS, *REAL) and "/" not in result.provenance["model"]["source"]


@pytest.mark.parametrize("name", REAL)
def test_a_real_model_is_shown_without_its_weights(name, own_cache):
    """All its results are there, under the identity that it has before it is fetched, and they are small."""
    spec, known = resolve(name, "fp32"), next(p for p in load_prompts() if p["id"] == ENGLISH_EXAMPLE)
    found = [
        lookup.find(probe.at_first(spec).request(spec, Prompt(known["text"], known["answer"])))
        for probe in PROBES
        if not probe.needs_passes
    ]
    assert all(found) and {r.provenance["model"]["source"] for r in found} == {name}
    size = sum((lookup.EXAMPLES / f"{r.request.key}.npz").stat().st_size for r in found)
    assert size <= 300 << 10, f"{size >> 10} KiB"
    assert "Tokyo" in next(r for r in found if r.request.probe == "continuation").provenance["continuation"]


def test_a_page_on_a_gpu_shows_what_is_shipped_and_says_where_it_was_measured(own_cache):
    probe = HOME[0]
    here = probe.request(resolve("ed-demo-8"), example("ed-demo-8"))
    there = probe.request(resolve("ed-demo-8", device="cuda"), example("ed-demo-8"))
    assert there.key != here.key and lookup.find(there) is None, "what was measured there, and nothing was"
    shown = lookup.find_shown(there)
    assert shown is not None and shown.request == lookup.find(here).request
    assert shown.request.models[0].device == "cpu"
    assert lookup.find_shown(probe.request(resolve("ed-demo-8", device="cuda"), Prompt("another one"))) is None
    twin = probe.request(resolve("ed-demo-8", device="cuda", control="untrained", control_seed=1), here.prompts[0])
    assert lookup.is_read(twin) and lookup.find_read(twin).request.models[0].device == "cpu"


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_each_kind_is_shown_without_the_real_models_weights(kind, own_cache):
    """What Home shows; no file has more than 150 KB. It is the first that the kind's pill puts into the box."""
    known = next(p for p in load_prompts() if p.get("kind") == kind)
    assert known["id"] == KINDS[kind]
    for probe in HOME:
        found = lookup.find(probe.request(resolve("smollm2", "fp32"), Prompt(known["text"], known["answer"])))
        assert found is not None, "run python -m tools.examples"
        assert (lookup.EXAMPLES / f"{found.request.key}.npz").stat().st_size <= 150_000


def test_what_is_shipped_is_what_the_script_writes():
    wanted = {
        (twin(resolve(name), control).content_hash, control, prompt, probe.name)
        for name, control, prompt, probe in (*shipped(), *compared())
    }
    ids = {p["text"]: p["id"] for model in ("", CHARACTERS[0]) for p in load_prompts(model)}
    there = [unpack(f.read_bytes()).request for f in lookup.EXAMPLES.glob("*.npz")]
    found = {(r.models[0].content_hash, r.models[0].control, ids[r.prompts[0].text], r.probe) for r in there}
    assert found == wanted and len(there) == len(wanted)


@pytest.mark.parametrize("name", MODELS)
def test_what_home_opens_on_is_what_a_run_gives(name, own_cache):
    spec = resolve(name)
    model = compute.Models().get(spec)
    for probe in HOME:
        request = probe.request(spec, example(name))
        shipped, fresh = lookup.find(request), compute.run(model, request)
        assert shipped is not None, "run python -m tools.examples"
        for measure, values in fresh.measures.items():
            largest = np.nanmax(np.abs(values.values))
            assert np.nanmax(np.abs(shipped[measure] - values.values)) <= 1e-3 * max(largest, 1e-3), (
                f"{probe.name}.{measure}"
            )


def test_of_each_shipped_prompt_what_a_verdict_reads_of_five_twins_is_there():
    """And nothing else, in files that are small together; no page takes them for a whole result."""
    files = {f.stem: f for f in lookup.TWINS.glob("*.npz")}
    wanted = set()
    for name, _, prompt, probe in shipped():
        if probe.name in READS:
            known = next(p for p in load_prompts(name) if p["id"] == prompt)
            for seed in controls.SEEDS:
                spec = twin(resolve(name), "untrained", seed)
                wanted.add(probe().request(spec, Prompt(known["text"], known["answer"])).key)
    whole = {key for key in wanted if (lookup.EXAMPLES / f"{key}.npz").is_file()}
    assert len(whole) == 2 * len((*MODELS, *REAL)), "side B of A | B"
    assert files.keys() == wanted - whole and len(wanted) == 110, "run python -m tools.examples twins"
    assert sum(f.stat().st_size for f in files.values()) <= 1_250_000
    for key, file in files.items():
        result = unpack(file.read_bytes())
        assert result.request.key == key and set(result.measures) == set(READ[result.request.probe])
    assert lookup.find(result.request) is None and lookup.find_read(result.request) is not None


@pytest.mark.parametrize("seed", [0, 3])  # whole, and what a verdict reads
@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_twin_is_what_a_run_gives(name, seed):
    spec = twin(resolve(name), "untrained", seed)
    model = compute.Models().get(spec)
    for probe in HOME[: 2 if seed else 3]:
        request = probe.request(spec, example(name))
        shipped, fresh = lookup.find_read(request), compute.run(model, request)
        assert seed or shipped.measures.keys() == fresh.measures.keys()
        for measure, values in shipped.measures.items():
            np.testing.assert_allclose(values.values, fresh[measure], rtol=1e-3, atol=1e-4)
