"""To other tools: names of TransformerLens, nnterp and nnsight, files for mergekit and llama.cpp."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from small_models import computed, save_random

import ed_core
from ed_core.api import bridges
from ed_core.api.model import Result
from ed_core.errors import ParameterError
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, LogitLens
from ed_core.types import Prompt


@pytest.fixture(scope="module")
def lens(small_folder):
    return computed(LogitLens().request(ModelRef.parse(str(small_folder)), Prompt("5 + 7 = ")))


def of_family(tmp_path, family):
    folder = save_random(tmp_path / family, family)
    return computed(Contributions().request(ModelRef.parse(str(folder)), Prompt("5 + 7 = 12")))


def test_every_point_has_a_name_and_tables_join_on_it(lens):
    names = ed_core.hook_names(lens)
    n = lens.n_layers
    assert list(names.columns) == ["point", "index", "name"] and names.name.is_unique
    assert names.point.value_counts().to_dict() == {"resid": n + 1, "attn": n, "mid": n, "mlp": n}
    assert f"blocks.{n - 1}.hook_resid_post" in set(names.name) and "blocks.0.hook_resid_pre" in set(names.name)
    table = Result.of(lens).to_dataframe("kl")
    joined = table.merge(names[names.point == "resid"], left_on="depth", right_on="index")
    assert len(joined) == len(table)


def test_a_branch_that_is_normed_has_no_name_in_nnterp(tmp_path):
    for family in ("gemma2", "granite"):
        result = of_family(tmp_path, family)
        assert len(ed_core.hook_names(result))
        with pytest.raises(ParameterError, match="are not what this family adds to the stream"):
            ed_core.hook_names(result, "nnterp")


def test_what_no_tool_has_names_for_is_refused(lens):
    with pytest.raises(ParameterError, match="expected one of 'transformer_lens', 'nnterp', 'nnsight'"):
        ed_core.hook_names(lens, "tl")
    with pytest.raises(ParameterError, match="passes of a looped model"):
        ed_core.hook_names(replace(lens, provenance={**lens.provenance, "passes": 2}))


def opened(tmp_path, family, tool):
    """The model, a prompt's tokens, its trace here, and the tool's names."""
    result = of_family(tmp_path, family)
    model = open_model(result.request.models[0])
    ids = model.tensor(result.token_ids)
    return model, ids, model.trace(ids), ed_core.hook_names(result, tool)


def agree(trace, names, seen):
    """What the tool saw under each name is what the trace holds at its point."""
    mid = [resid + attn for resid, attn in zip(trace.resid, trace.attn_out)]
    ours = {"resid": trace.resid, "attn": trace.attn_out, "mlp": trace.mlp_out, "mid": mid}
    for point, index, name in names.itertuples(index=False):
        expected = ours[point][index]
        assert float((seen[name].reshape(expected.shape) - expected).abs().max() / expected.abs().max()) < 1e-5, name


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_transformer_lens_reads_the_same_under_these_names(tmp_path, family):
    bridge = pytest.importorskip("transformer_lens.model_bridge").TransformerBridge
    model, ids, trace, names = opened(tmp_path, family, "transformer_lens")
    other = bridge.boot_transformers(str(tmp_path / family), hf_model=model.hf, tokenizer=model.tokenizer)
    _, cache = other.run_with_cache(ids)
    agree(trace, names, cache)


@pytest.mark.parametrize("family", ["qwen3"])
def test_nnterp_reads_the_same_under_these_names(tmp_path, family):
    standardized = pytest.importorskip("nnterp").StandardizedTransformer
    model, ids, trace, names = opened(tmp_path, family, "nnterp")
    seen, other = {}, standardized(str(tmp_path / family), check_renaming=False)
    with other.trace(ids):
        for layer in range(model.n_layers):  # modules are reached in the order in which they run
            for kind in ("layers_input", "attentions_output", "mlps_output", "layers_output"):
                seen[f"{kind}[{layer}]"] = getattr(other, kind)[layer].save()
    agree(trace, names, seen)


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt2", "gpt_neox"])
def test_nnsight_reads_the_same_under_these_names(tmp_path, family):
    nnsight = pytest.importorskip("nnsight")
    model, ids, trace, names = opened(tmp_path, family, "nnsight")
    order = {"resid": 0, "attn": 1, "mlp": 2}  # modules are reached in the order in which they run
    asked = sorted(names.itertuples(index=False), key=lambda row: (row.index, order[row.point]))
    seen, other = {}, nnsight.NNsight(model.hf)
    with other.trace(ids):
        for _, _, name in asked:
            found = eval(f"it.{name}", {"it": other})
            seen[name] = (found[0] if isinstance(found, tuple) else found).save()
    assert len(seen) == len(names) == 3 * model.n_layers + 1
    agree(trace, names, seen)


def test_mergekit_takes_what_is_written_for_it():
    config = pytest.importorskip("mergekit.config")
    import yaml

    for order, name in (([0, 1, 3, 5], "a/b: c"), ([0, 1, 1, 2, 5, 4], "a/b")):
        text = bridges.passthrough(order, name, {"kl": 0.5})
        read = config.MergeConfiguration.model_validate(yaml.safe_load(text))
        assert read.merge_method == "passthrough" and read.slices


def test_llama_cpp_is_asked_for_a_file_without_these_layers():
    kept = [layer for layer in range(12) if layer not in (3, 7, 11)]
    told = shlex.split(bridges.llama_quantize(kept, 12, "a b.gguf"))
    assert told == ["llama-quantize", "--prune-layers", "3,7,11", "a b.gguf", "a b-without-3-layers.gguf", "COPY"]
    for order in ([], range(12), [0, 2, 1], [0, 1, 1, 2]):  # nothing left, all of them, exchanged, twice
        assert bridges.llama_quantize(order, 12, "x.gguf") == ""
