"""One traced pass serves all probes of a prompt, and changes none of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import asked

from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.probes import PROBES, Contributions, LayerSkip, LogitLens
from ed_core.types import Prompt
from ed_core.work import compute

PROMPT, OTHER = Prompt("5 + 7 + 5 = ", "7"), Prompt("5 + 7 + 6 = ", "8")


@pytest.fixture
def kept(spec):
    return compute.Models().get(spec)


@pytest.fixture
def passes(monkeypatch):
    """Prompts read whole by the model's own forward pass."""
    seen, logits = [], LanguageModel.logits

    def counted(self, ids, keep=0):
        seen.append(tuple(ids[0].tolist()))
        return logits(self, ids, keep)

    monkeypatch.setattr(LanguageModel, "logits", counted)
    return seen


def test_probes_of_one_prompt_read_it_once(kept, passes):
    for probe in (Contributions(), LogitLens(), LayerSkip()):
        compute.run(kept, probe.request(kept.spec, PROMPT))
    assert len(passes) == 1
    for prompt in (OTHER, PROMPT, OTHER):
        compute.run(kept, Contributions().request(kept.spec, prompt))
    assert len(passes) == 2


def test_numbers_are_the_same_with_and_without_whatever_ran_before(kept, spec):
    alone = open_model(spec)
    assert not alone.trace_bytes, "a model whose weights may change keeps none"
    probes = [asked(kind) for kind in PROBES if not kind.needs_passes and kind.name != "residual_erasure"]
    expected = {probe: compute.run(alone, probe.request(alone.spec, PROMPT)) for probe in probes}
    for probe in probes[::-1]:
        found = compute.run(kept, probe.request(kept.spec, PROMPT))
        for name, measure in expected[probe].measures.items():
            np.testing.assert_array_equal(found[name], measure.values, err_msg=f"{probe.name}.{name}")
