"""One traced pass serves all probes of a prompt, and changes none of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ed_core.commands import main
from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.probes import PROBES, Answers, Contributions, ExactAnswers, LayerSkip, LogitLens, Prune
from ed_core.prompts import to_jsonl
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve

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
    for prompt in (OTHER, PROMPT, OTHER):
        compute.run(kept, Contributions().request(kept.spec, prompt))
    assert len(passes) == 2
    kept.trace_bytes = sum(trace.bytes for trace in kept._traces.values()) + 1
    for prompt in (Prompt("1 + 1 + 6 = ", "8"), OTHER):
        compute.run(kept, Contributions().request(kept.spec, prompt))
    assert len(passes) == 3, "what was asked for longest ago makes room"
    compute.run(kept, Contributions().request(kept.spec, PROMPT))
    assert len(passes) == 4


def test_the_shell_asks_all_probes_of_a_prompt_before_the_next(tmp_path, monkeypatch):
    """Few traces are kept, whatever the number of prompts."""
    order, run = [], compute.run
    monkeypatch.setattr(
        compute,
        "run",
        lambda model, request, **more: (
            order.append((request.prompts[0].text, request.probe)) or run(model, request, **more)
        ),
    )
    asked, names = tmp_path / "p.jsonl", ("contributions", "prune", "answers")
    asked.write_text(to_jsonl([PROMPT, OTHER]))
    words = ["--model", "ed-demo-8", "--prompts", str(asked), "--out", str(tmp_path / "r.npz"), "--no-cache"]
    assert main(["run", *names, *words]) == 0
    assert order == [(prompt.text, name) for prompt in (PROMPT, OTHER) for name in names]


def test_what_is_left_without_each_layer_is_walked_once(kept, monkeypatch):
    alone, calls, run_block = open_model(resolve("ed-demo-8")), [], LanguageModel.run_block
    monkeypatch.setattr(
        LanguageModel, "run_block", lambda self, *a, **k: calls.append(self) or run_block(self, *a, **k)
    )
    for probe in (Answers(), Prune(), Prune(n=2), ExactAnswers(n=2)):
        found, expected = (compute.run(one, probe.request(one.spec, PROMPT)) for one in (kept, alone))
        for name, measure in expected.measures.items():
            np.testing.assert_allclose(found[name], measure.values, rtol=1e-5, atol=1e-5, err_msg=name)
    ids = tuple(kept.encode(PROMPT).ids)
    whole = [trace for (_, _, told), trace in kept._traces.items() if told == ids]
    assert [sorted(trace.ends) for trace in whole] == [[1, 2]]
    assert calls.count(alone) - calls.count(kept) == 7 + 6, "a walk over 8 layers, and one that leaves out two"
    assert all(trace.bytes > sum(x.numel() * 4 for x in trace.ends.values()) for trace in whole)


def test_without_room_it_is_walked_again(kept):
    ids = kept.tensor(kept.encode(PROMPT))
    kept.trace_bytes = kept.trace(ids, keep=1).bytes
    compute.run(kept, Prune().request(kept.spec, PROMPT))
    assert not kept.trace(ids, keep=1).ends


def test_numbers_are_the_same_with_and_without_whatever_ran_before(kept):
    alone = open_model(resolve("ed-demo-8"))
    assert not alone.trace_bytes, "a model whose weights may change keeps none"
    probes = [kind.at_first(kept.spec) for kind in PROBES if not kind.needs_passes]
    expected = {probe: compute.run(alone, probe.request(alone.spec, PROMPT)) for probe in probes}
    for probe in [*probes, *probes[::-1]]:
        found = compute.run(kept, probe.request(kept.spec, PROMPT))
        for name, measure in expected[probe].measures.items():
            np.testing.assert_array_equal(found[name], measure.values, err_msg=f"{probe.name}.{name}")


def test_a_trace_that_is_too_large_is_not_kept(kept, passes):
    ids = kept.tensor(kept.encode(PROMPT))
    kept.trace_bytes = kept.trace(ids).bytes - 1
    kept.trace(kept.tensor(kept.encode(OTHER)))
    assert not kept._traces
    kept.trace_bytes += 1
    assert kept.trace(ids) is kept.trace(ids) and len(passes) == 3
    held = kept.trace(ids)
    streams = [*held.resid, *held.attn_out, *held.mlp_out]
    assert held.bytes >= sum(x.numel() * 4 for x in streams)


def test_room_for_the_streams_is_made_before_they_are_read(kept):
    first, second = (kept.tensor(kept.encode(prompt)) for prompt in (PROMPT, OTHER))
    streams = (3 * kept.n_layers + 1) * second.numel() * kept.d_model * 4
    for spare, left in ((0, 1), (-1, 0)):
        kept._traces.clear()
        kept.trace_bytes = kept.trace(first).bytes + streams + spare
        seen = []
        kept.trace(second, on_block=lambda layer, trace, seen=seen: seen.append(len(kept._traces)))
        assert seen == [left] * kept.n_layers


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
