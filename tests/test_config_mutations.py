"""Configs nobody thought of: a field moved to another value ends in a refusal, or in numbers that agree with the naive
way. Never in a wrong one."""

from collections import Counter
from tempfile import TemporaryDirectory

import naive
import numpy as np
import pytest
import torch
from small_models import byte_tokenizer

from ed_core.errors import EffectiveDepthError
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, LayerSkip, LogitLens
from ed_core.types import Prompt
from ed_core.work import compute
from tools.families import random_hf

PROMPT = Prompt("5 + 7 = 12")
pytestmark = pytest.mark.process
seen = Counter()


CHOSEN = [
    ("gemma4", "num_kv_shared_layers", 2),
    ("opt", "do_layer_norm_before", False),
    ("bloom", "apply_residual_connection_post_layernorm", True),
    ("bloom", "slow_but_exact", True),
    ("stablelm", "use_parallel_residual", True),
    ("falcon_rw", "parallel_attn", True),
    ("falcon_40b", "new_decoder_architecture", False),
    ("cohere2", "logit_scale", 0.0),
    ("granitemoe", "residual_multiplier", 0.0),
    ("granitemoe", "residual_multiplier", -1.0),
    ("gemma2", "final_logit_softcapping", 0.3),
]


def test_a_mutated_config_is_refused_or_its_numbers_are_right():
    seen.clear()
    for mutation in CHOSEN:
        one_mutation(mutation)
    assert seen["right"] >= 5 and seen["refused"] >= 3, f"neither all harmless nor all refused: {seen}"


def one_mutation(mutation: tuple[str, str, object]) -> None:
    variant, name, value = mutation
    with TemporaryDirectory() as folder:
        try:
            hf = random_hf(variant, **{name: value})
            hf(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
            hf.save_pretrained(folder)
        except Exception:  # transformers itself knows no such model
            seen["impossible"] += 1
            return
        byte_tokenizer().save_pretrained(folder)
        try:
            model = open_model(ModelRef.parse(folder))
            found = {
                probe.name: compute.run(model, probe.request(model.spec, PROMPT))
                for probe in (Contributions(), LogitLens(), LayerSkip())
            }
        except EffectiveDepthError as error:
            seen["refused"] += 1
            assert len(str(error)) > 40, "and the reason is told"
            return
    seen["right"] += 1
    agree(model, found)


def agree(model, found) -> None:
    ids = model.encode(PROMPT).ids
    expected = {
        "contributions": naive.contributions(model.hf, ids),
        "logit_lens": naive.logit_lens(model.hf, ids, k=5),
        "layer_skip": naive.layer_skip(model.hf, ids),
    }
    for probe, measures in expected.items():
        for measure, values in measures.items():
            if measure in ("top_ids", "rank", "overlap", "top1_match", "settle_depth", "top1_kept", "noise_floor"):
                continue  # ranks among logits that a mutation made equal are nobody's
            largest = (
                1.0 if measure.endswith(("_cos", "_influence")) else np.nanmax(np.abs(values))
            )  # cosines: in their own unit
            assert np.nanmax(np.abs(found[probe][measure] - values)) <= 1e-4 * max(largest, 1e-3), (probe, measure)
