"""To other tools: files for mergekit and llama.cpp."""

from __future__ import annotations

import shlex

import pytest

from ed_core.api import bridges


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
