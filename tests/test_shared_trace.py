"""One traced pass serves all probes of a prompt, and changes none of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.probes import PROBES, Contributions, LayerSkip, LogitLens
from ed_core.service import compute
from ed_core.service.resolve import resolve
from ed_core.types import Prompt

PROMPT, OTHER = Prompt("5 + 7 + 5 = ", "7"), Prompt("5 + 7 + 6 = ", "8")


@pytest.fixture
def kept():
    return compute.Models().get(resolve("ed-demo-8"))


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
    compute.run(kept, Contributions().request(kept.spec, OTHER))
    compute.run(kept, Contributions().request(kept.spec, PROMPT))
    assert len(passes) == 3, "the last prompt's alone is kept"


def test_numbers_are_the_same_with_and_without_whatever_ran_before(kept):
    alone = open_model(resolve("ed-demo-8"))
    assert not alone.trace_bytes, "a model whose weights may change keeps none"
    for kind in [*PROBES, *PROBES[::-1]]:
        if kind.needs_passes:
            continue
        probe = kind.at_first(kept.spec)
        found = compute.run(kept, probe.request(kept.spec, PROMPT))
        expected = compute.run(alone, probe.request(alone.spec, PROMPT))
        for name, measure in expected.measures.items():
            np.testing.assert_array_equal(found[name], measure.values, err_msg=f"{kind.name}.{name}")


def test_a_trace_that_is_too_large_is_not_kept(kept, passes):
    ids = kept.tensor(kept.encode(PROMPT))
    kept.trace_bytes = kept.trace(ids).bytes - 1
    kept.trace(kept.tensor(kept.encode(OTHER)))
    assert kept._last is None
    kept.trace_bytes += 1
    assert kept.trace(ids) is kept.trace(ids) and len(passes) == 3
    held = kept.trace(ids)
    streams = [*held.resid, *held.attn_out, *held.mlp_out]
    assert held.bytes >= sum(x.numel() * 4 for x in streams)


def test_every_block_is_told_again_and_what_is_raised_ends_it(kept):
    ids, seen = kept.tensor(kept.encode(PROMPT)), []
    first = kept.trace(ids, on_block=lambda layer, trace: seen.append((layer, float(trace.update(layer).norm()))))
    told = list(seen)
    assert (
        kept.trace(ids, on_block=lambda layer, trace: seen.append((layer, float(trace.update(layer).norm())))) is first
    )
    assert seen == told * 2 and [layer for layer, _ in told] == list(range(kept.n_layers))

    def stop(layer, trace):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.trace(ids, on_block=stop)
    other = kept.trace(ids, keep=1)
    assert other is not first and torch.equal(other.resid[-1], first.resid[-1])
