"""What lay on a disk before opens as it was: stored results, a case study, links, and files of each kind from before
there was one container, by the programs of then. `data/before/` was written by the engine before its files were moved,
on ed-demo-8 with settings off their defaults; `files/numbers.json` by the readers of then."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest
from charts import forget, fresh, idle
from test_pages import session_of

from ed_core.cards import card
from ed_core.cases import backup, bundle, export
from ed_core.cases.kept import Kept
from ed_core.claims import running as claims
from ed_core.depth import among_others
from ed_core.fits import file as lens
from ed_core.fits import measured, shards
from ed_core.fits.file import Checkpoint
from ed_core.probes import Probe, find
from ed_core.results import lookup
from ed_core.results.aggregate import summarize
from ed_core.results.store import Store
from ed_core.results.wire import pack, unpack
from ed_core.service import compute
from ed_core.service.resolve import resolve
from ed_core.studies import bundle as study
from ed_core.types import ProbeResult, Prompt, canonical_json
from ed_ui import link

BEFORE = Path(__file__).parent / "data" / "before"
PROMPT = Prompt("3 + 6 = 9\n5 + 7 = ", "2")
RUNS = {  # probe: its parameters, and the id of the run
    "contributions": ({"first_token": "false"}, "a7c838a7bd5aee904d92f9635b72431e"),
    "logit_lens": ({"k": "3"}, "bab79e4038fc6bc2ae1a8111d3bd301a"),
    "layer_skip": ({"mode": "future", "boundaries": "3,5", "direct": "true"}, "06b47be9e4814535b555f776484ca06e"),
    "residual_erasure": ({}, "c2b40352b64352aa14e328326da07b8c"),
    "integrated_gradients": ({"nodes": "33"}, "ceb66d18e6cd9601fec6a9ddc714b9fd"),
    "prune": ({}, "b2ada00f474bf06fddb2b352d36dcb0e"),
    "early_exit": ({}, "2c9e6c04c9f7d0c8fbae704097ca1e44"),
    "numerics": ({}, "1a4f16c9db5d92ac490cea5f37a99543"),
    "continuation": ({}, "0fd20e9287dd3cc81b9761eeb52c3358"),
}
DIGEST = "ed653ab0e573d878fc77b6f5dabafb38ac9b9b1f4c4da153d43493cd059d2f87"  # of all their measures
# Probes that have another version since, and the one that wrote the folder.
LATER = {"residual_erasure": 1, "prune": 2, "continuation": 1}
CASE, OF_CASE = "wzmuvcvr45", ("contributions", "logit_lens", "layer_skip")
EXPORTED = {  # in the .npz, by what stands in front: of the prompt, and over all prompts
    "contributions": (
        "attn_ratio mlp_ratio layer_ratio attn_cos mlp_cos layer_cos io_cos block_influence resid_norm attn_norm "
        "mlp_norm",
        "attn_ratio mlp_ratio layer_ratio attn_cos mlp_cos layer_cos io_cos block_influence resid_norm attn_norm "
        "mlp_norm",
    ),
    "logit_lens": (
        "kl jsd entropy overlap top1_match rank top_ids top_probs settle_depth",
        "kl jsd entropy overlap top1_match mrr settle_depth deep_thinking_ratio",
    ),
    "layer_skip": (
        "effect effect_direct output top1_kept noise_floor boundaries effect_by_boundary output_by_boundary "
        "layer_effect depth_score depth_score_output",
        "effect effect_mean effect_direct effect_direct_mean output output_mean top1_kept noise_floor "
        "noise_floor_mean layer_effect layer_effect_mean depth_score depth_score_mean depth_score_output "
        "depth_score_output_mean",
    ),
    "residual_erasure": ("effect center", "effect effect_mean center center_mean"),
    "integrated_gradients": (
        "attribution completeness_error f_x f_baseline nodes_used center",
        "attribution attribution_mean completeness completeness_mean center center_mean",
    ),
    "prune": (
        "kl top1_kept nll block_influence angular_distance update_cosine nll_whole perplexity perplexity_whole "
        "spearman_block_influence spearman_angular_distance spearman_update_cosine spearman_top1_lost cheapest",
        "kl top1_kept nll block_influence angular_distance update_cosine nll_whole perplexity perplexity_whole "
        "spearman_block_influence spearman_angular_distance spearman_update_cosine spearman_top1_lost cheapest",
    ),
    "early_exit": ("confidence agreement exit_depth exit_agrees", "confidence agreement exit_depth exit_agrees"),
    "numerics": (
        "miss rounding slope_attn slope_mlp closure replay detour suffix resid_norm",
        "miss miss_mean rounding rounding_mean slope_attn slope_mlp closure closure_mean replay replay_mean detour "
        "detour_mean suffix suffix_mean resid_norm",
    ),
    "continuation": ("ids top_ids top_probs", ""),
    "effective_depth": (
        "",
        "cosine cosine_ratio cosine_stable cosine_low cosine_high cosine_without_sinks kl kl_ratio kl_stable kl_low "
        "kl_high kl_from_depth_1 kl_without_sinks overlap overlap_ratio overlap_stable overlap_low overlap_high "
        "overlap_without_sinks kl_mean kl_mean_low kl_mean_high overlap_mean overlap_mean_low overlap_mean_high turn "
        "turn_p",
    ),
    "sinks": (
        "pos depth ratio layer branch norm written stream_share branch_share span_pos span_from span_to span_layer "
        "span_branch span_rise long_at_end",
        "share_attn_ratio share_mlp_ratio share_layer_ratio share_block_influence share_resid_norm share_attn_norm "
        "share_mlp_norm",
    ),
}
BESIDE = ("tokens.0", "answer_start.0", "n_tokens", "provenance")
DERIVED = {
    "effective_depth.cosine": np.nan,
    "effective_depth.kl": 6.0,
    "effective_depth.overlap": 2.0,
    "effective_depth.kl_from_depth_1": 6.0,
    "effective_depth.overlap_without_sinks": 2.0,
    "sinks.pos.0": np.empty(0),
    "layer_skip.depth_score": 1.51957368850708,
    "layer_skip.depth_score_output": 1.8997997045516968,
    "residual_erasure.center": 3.570063591003418,
    "integrated_gradients.center": 1.6558809280395508,
    "prune.spearman_block_influence": 0.8095238208770752,
    "prune.cheapest": 4.0,
    "logit_lens.settle_depth": 5.454545497894287,
}


@pytest.fixture
def cache(tmp_path):
    """A cache folder as it was left."""
    return shutil.copytree(BEFORE, tmp_path / "cache")


@pytest.fixture(scope="module")
def runs() -> dict[Probe, ProbeResult]:
    """The same requests, computed now."""
    spec = resolve("ed-demo-8")
    model, probes = compute.Models().get(spec), [find(name).make(values) for name, (values, _) in RUNS.items()]
    return {probe: compute.run(model, probe.request(spec, PROMPT)) for probe in probes}


def same(now: np.ndarray, then: np.ndarray, name: str) -> None:
    rounding = 0.0 if then.dtype.kind != "f" else 2e-5 * max(1.0, np.nanmax(np.abs(then), initial=0.0))
    np.testing.assert_allclose(now, then, rtol=0, atol=rounding, err_msg=name)


def as_then(now: ProbeResult) -> ProbeResult:
    """What a probe of the version that wrote the folder would have given."""
    version = LATER.get(now.request.probe, now.request.probe_version)
    measures = {name: one for name, one in now.measures.items() if one.spec.since <= version}
    return summarize(replace(now, request=replace(now.request, probe_version=version), measures=measures))


def names(probes: set[str]) -> list[str]:
    of_one = [f"{probe}.{name}.0" for probe in probes for name in EXPORTED[probe][0].split()]
    return sorted([*BESIDE, *of_one, *(f"{probe}.{name}" for probe in probes for name in EXPORTED[probe][1].split())])


def test_every_stored_result_is_found_with_the_numbers_that_are_computed_now(cache, runs):
    """What is read is what was written, to the last bit; what is computed now is the same but for rounding, which is
    another one with another processor or number of threads: 2e-5 of what a measure's largest value is, or of 1. Whole
    numbers are equal."""
    store, digest = Store(cache), hashlib.sha256()
    assert store.info()["entries"] == len(RUNS) and store.check() == (len(RUNS), [])
    for probe, now in runs.items():
        now = as_then(now)
        assert now.request.key == RUNS[probe.name][1], probe.name
        stored = store.get(now.request.key)
        assert stored.request == now.request and stored.tokens == now.tokens and stored.token_text == now.token_text
        assert stored.measures.keys() == now.measures.keys() and stored.measures
        for name, measure in sorted(stored.measures.items()):
            assert measure.spec == now.measures[name].spec
            digest.update(f"{probe.name}.{name}".encode() + measure.values.tobytes())
            same(now[name], measure.values, f"{probe.name}.{name}")
        summary = store.summary(now.request.key)
        assert summary.keys() == stored.summary.keys() == now.summary.keys()
        for name, values in summary.items():
            np.testing.assert_array_equal(values, stored.summary[name], err_msg=f"{probe.name}.{name}")
            same(now.summary[name], values, f"{probe.name}.{name}")
        assert set(store.series(now.request.series)) == {now.request.key}
    assert digest.hexdigest() == DIGEST
    assert {card["probe"] for card in store.recent()} == set(RUNS)


def test_a_result_of_an_older_version_is_not_found_for_a_new_run_and_still_opens(cache, runs):
    """The erasure's summary leaves the answer's position out since; what was kept before is read as it was counted, and
    stands in no spread of new runs."""
    store = Store(cache)
    probe, now = next((probe, now) for probe, now in runs.items() if probe.name == "residual_erasure")
    old = store.get(RUNS[probe.name][1])
    assert store.get(now.request.key) is None and not store.series(now.request.series)
    assert "effect_elsewhere" in now.summary and "effect_elsewhere" not in old.summary
    curves = among_others.curves_of(probe, old.summary)
    np.testing.assert_array_equal(curves["effect_elsewhere"], old["effect"].max(1))
    assert (
        curves["center_elsewhere"] == curves["center"] > among_others.curves_of(probe, now.summary)["center_elsewhere"]
    )
    (spread, *_) = among_others.spreads(probe, old.summary, [old.summary] * 3)
    np.testing.assert_array_equal(spread.values, old["effect"].max(1))


def test_the_case_study_holds_the_stored_results(cache):
    folder, store = Kept(cache, shipped=None), Store(cache)
    assert [(card.id, card.title, card.tags) for card in folder.cards()] == [(CASE, "Before the move", ("before",))]
    case, _ = folder.open(CASE)
    assert case.notes == "*Kept* before the folders were moved."
    assert case.verdict.endswith("the output settles at layer 6 (2 by top-k overlap).")
    assert [item.result.request.probe for item in case.items] == list(OF_CASE)
    for item in case.items:
        stored = store.get(RUNS[item.result.request.probe][1])
        assert item.packed == pack(stored), "to the byte"
    assert sorted(export.case_arrays(case)) == names({*OF_CASE, "effective_depth", "sinks"})
    assert not folder.damaged()


def test_the_exported_names_and_what_is_derived_are_the_same(cache, runs):
    store = Store(cache)
    out = export.arrays({probe: [store.get(RUNS[probe.name][1])] for probe in runs})
    assert sorted(out) == names(set(EXPORTED))
    for name, value in DERIVED.items():
        np.testing.assert_allclose(out[name], value, rtol=1e-6, err_msg=name)


LINKS = [  # a page, a link to it, and what its inputs must hold then, by their names in the link
    (
        "pages/prompt/home.py",
        "example=copy-3-a&branch=attn&shade=kl&kl=0.25&overlap=0.6&first_token=false&tokens=3-20&token=2",
        {"branch": "attention", "shade": "KL to output", "kl": 0.25, "overlap": 0.6, "first_token": False}
        | {"tokens": (3, 20), "token": 2},
    ),
    (
        "pages/intervene/skip.py",
        "mode=future&part=mlp&boundaries=4,8&direct=true&precision=bf16&special_tokens=false&control=shuffled"
        "&control_seed=3",
        {"mode": "future", "part": "mlp", "boundaries": "4,8", "direct": True, "precision": "bf16"}
        | {"special_tokens": False, "control": "shuffled", "control_seed": 3},
    ),
    (
        "pages/intervene/prune.py",
        "prompts=bundled&n=2&n_prompts=3&tasks=copy,lookup&difficulties=1,2",
        {"prompts": "Bundled prompts", "n": 2, "n_prompts": 3, "tasks": ["copy", "lookup"], "difficulties": [1, 2]},
    ),
    (
        "pages/compare/two.py",
        "compare=models&measures=logit_lens,layer_skip&swapped=true&second=ed-demo-16&second_precision=bf16"
        "&second_control=untrained&second_seed=4",
        {"compare": "models", "measures": ["logit_lens", "layer_skip"], "swapped": True, "second": "ed-demo-16"}
        | {"second_precision": "bf16", "second_control": "untrained", "second_seed": 4},
    ),
    (
        "pages/intervene/skip.py",
        f"run={RUNS['layer_skip'][1][:12]}",
        {"mode": "future", "part": "layer", "boundaries": "3,5", "direct": True, "n_boundaries": 4, "seed": 123}
        | {"control": "none", "template": "raw", "special_tokens": True},
    ),
]


@pytest.fixture
def server(cache, monkeypatch):
    """The app over this cache folder, without a worker."""
    idle(monkeypatch, cache)
    yield
    forget()


@pytest.mark.parametrize(("page", "query", "expected"), LINKS)
def test_a_link_puts_the_same_values_into_the_inputs(server, page, query, expected):
    test = fresh(page, **dict(parse_qsl(f"model=ed-demo-8&{query}")))
    assert not test.run().exception and not test.warning
    session = session_of(test)
    parameters = {p.name: p for p in (*link.OF_A_RUN, *link.BESIDE_IT, *session.link.own)}
    assert {name: session.inputs[parameters[name].key] for name in expected} == expected
    if "run=" in query:
        assert (session.inputs["text"], session.inputs["answer"]) == (PROMPT.text, PROMPT.answer)
        made = lookup.by_short(RUNS["layer_skip"][1]).provenance["time"][:16].replace("T", " ")
        assert any(made in m.value for m in test.markdown), "the stored result is shown"


# ---------------------------------------------------------------- files of each kind


FILES = BEFORE / "files"
NUMBERS = json.loads((FILES / "numbers.json").read_text())
ABOUT = {  # of the fit that the shards are of
    "kind": "affine",
    "model": {"name": "m", "precision": "fp32", "identity": {"content_hash": "1"}},
    "prompts": {"n": 10, "digest": "d"},
}


def of_arrays(arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def of_json(value) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def of_result(result) -> list[str]:
    arrays = {f"m.{name}": one.values for name, one in result.measures.items()}
    arrays |= {f"s.{name}": values for name, values in result.summary.items()}
    words = [result.request.to_json(), result.tokens, result.token_ids, result.provenance]
    return [of_arrays(arrays), of_json(words)]


def of_case(case) -> list:
    return [*(of_result(item.result) for item in case.items), case.title, case.notes, case.verdict]


def of_maps(found) -> list[str]:
    arrays = {f.name: getattr(found, f.name) for f in fields(found) if f.name != "certificate"}
    return [of_arrays(arrays), of_json(found.certificate)]


def test_a_result():
    found = unpack((FILES / "result.npz").read_bytes())
    assert of_result(found) == NUMBERS["result.npz"] == of_result(unpack(pack(found)))


def test_a_case_study():
    file = FILES / "beforebefo.edcase"
    found = bundle.decode(file.read_bytes())
    assert of_case(found) == NUMBERS[file.name] == of_case(bundle.decode(bundle.encode(found)))
    assert bundle.card(file).title == found.title and bundle.decode(bundle.encode(found)) == found


def test_a_backup(tmp_path):
    kept = Kept(tmp_path / "a", shipped=None)
    ((case, new),), problems = backup.restore(kept, FILES / "cases.zip")
    assert new and not problems and of_case(case) == NUMBERS["beforebefo.edcase"]
    assert kept.owner(case.id) == "ada@example.org"
    assert backup.write(kept, tmp_path / "b.zip") == (1, [])
    again = Kept(tmp_path / "c", shipped=None)
    assert backup.restore(again, tmp_path / "b.zip") == ([(case, True)], [])
    assert again.owner(case.id) == "ada@example.org"


def test_a_study(tmp_path):
    file = FILES / "before.edstudy"
    assert study.name_of(file) == "before"
    assert study.unpack(file, tmp_path / "a") == NUMBERS[file.name]
    (tmp_path / "b.edstudy").write_bytes(study.packed(tmp_path / "a"))
    assert study.unpack(tmp_path / "b.edstudy", tmp_path / "c") == NUMBERS[file.name]


def test_a_card(tmp_path):
    found = card.read(FILES / "card.json")
    assert of_json(found.fields()) == NUMBERS["card.json"]
    (tmp_path / "card.json").write_bytes(card.to_json(found))
    assert card.read(tmp_path / "card.json").fields() == found.fields()


def test_claims(tmp_path):
    found = claims.read(FILES)
    assert of_json(found.fields()) == NUMBERS["claims.json"]
    claims.write(found, tmp_path)
    assert claims.read(tmp_path).fields() == found.fields()


@pytest.mark.parametrize("name", ["maps.npz", "replacement.npz"])
def test_maps(tmp_path, name):
    found = measured.read(FILES / name)
    assert of_maps(found) == NUMBERS[name]
    measured.write(tmp_path / name, found)
    assert of_maps(measured.read(tmp_path / name)) == NUMBERS[name]
    with np.load(FILES / name, allow_pickle=False) as then, np.load(tmp_path / name, allow_pickle=False) as now:
        arrays = [one for one in then.files if one != "certificate"]
        assert all(np.array_equal(then[one], now[one], equal_nan=True) for one in arrays) and "error" in arrays


def test_a_lens():
    found = lens.read(FILES / "affine.safetensors")
    assert [found.content, of_json(dict(found.certificate))] == NUMBERS["affine.safetensors"]


def test_sums(tmp_path):
    added = shards.Added([FILES / "0.sums", FILES / "1.sums"], ABOUT, 10)
    assert of_arrays({name: added[name] for name in ("0.xx", "1.xx", "0.n", "1.n")}) == NUMBERS["0.sums"]
    file = shutil.copy(FILES / "checkpoint.npz", tmp_path / "x")
    kept = Checkpoint(Path(file), "a fit", 3)
    assert of_arrays(kept.read()) == NUMBERS["checkpoint.npz"]
    kept.write(kept.read(), now=True)
    assert of_arrays(kept.read()) == NUMBERS["checkpoint.npz"]
    assert Checkpoint(Path(file), "another fit", 3).read() is None
