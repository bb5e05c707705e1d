"""Sinks planted by hand and found by a naive search; criteria with and without them, against means taken token by
token; what is exported of them."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from kept_cases import results
from small_models import random_model

from ed_core.cases import export
from ed_core.depth import sinks
from ed_core.depth.rules import COSINES, RULES
from ed_core.depth.sample import READS, Sample
from ed_core.depth.verdict import verdict
from ed_core.probes import Contributions, LogitLens
from ed_core.results.aggregate import summarize
from ed_core.types import Measure, ProbeResult, Prompt

L, T = 6, 9


def norms(n_tokens=T, n_layers=L):
    """A prompt without sinks: everywhere a stream of length 1, to which every branch adds 0.1."""
    return np.ones((n_layers + 1, n_tokens)), *(np.full((n_layers, n_tokens), 0.1) for _ in range(2))


def planted(pos, layer, branch, size=40.0, into=None):
    """Norms where `branch` of block `layer` writes a sink of this size at `pos`."""
    stream, attn, mlp = into or norms()
    stream[layer + 1 :, pos] = size
    (attn if branch == "attention" else mlp)[layer, pos] = size - 1
    return stream, attn, mlp


def naive(stream, attn, mlp, factor):
    """Depth by depth and token by token, in lists."""
    n_depths, n_tokens = len(stream), len(stream[0])
    found = []
    for t in range(n_tokens if n_tokens >= 3 else 0):
        ratios = {}
        for d in range(n_depths):
            middle = statistics.median(float(stream[d][o]) for o in range(1, n_tokens))
            if middle > 0:
                ratios[d] = float(stream[d][t]) / middle
        above, spans = [d for d in sorted(ratios) if ratios[d] >= factor], []
        for d in above:
            if spans and spans[-1][-1] == d - 1:
                spans[-1].append(d)
            else:
                spans.append([d])
        written = []
        for span in spans:
            if span == [n_depths - 1]:
                continue
            rises = {d: float(stream[d][t]) - (float(stream[d - 1][t]) if d else 0.0) for d in span}
            d = max(rises, key=rises.get)  # of equal ones the first
            branch = "embedding" if d == 0 else "mlp" if mlp[d - 1][t] > attn[d - 1][t] else "attention"
            written.append((span[0], span[-1], d - 1 if d else None, branch, rises[d]))
        if written:
            most = max(ratios[d] for start, end, *_ in written for d in range(start, end + 1))
            *_, layer, branch, _rise = max(written, key=lambda one: one[-1])
            found.append((t, written[0][0], most, layer, branch, written))
    return found


@pytest.mark.parametrize("pos, layer, branch", [(0, 3, "mlp"), (0, 0, "attention"), (4, 3, "attention"), (8, 4, "mlp")])
def test_a_planted_sink_is_found_with_its_writer(pos, layer, branch):
    (found,) = sinks.find(*planted(pos, layer, branch))
    assert (found.pos, found.depth, found.layer, found.branch) == (pos, layer + 1, layer, branch)
    assert (found.ratio, found.written.rise) == (40, 39)


@pytest.mark.parametrize("n_tokens", [1, 2])
def test_one_or_two_tokens_have_no_median_and_no_sinks(n_tokens):
    assert sinks.find(*planted(0, 3, "mlp", into=norms(n_tokens))) == ()
    assert len(sinks.find(*planted(0, 3, "mlp", into=norms(3)))) == 1


@pytest.mark.parametrize("seed", range(6))
def test_the_naive_search_finds_the_same(seed):
    rng = np.random.default_rng(seed)
    shapes = [(5 + seed, 3 + 4 * seed)] + 2 * [(4 + seed, 3 + 4 * seed)]
    arrays = [np.float32(rng.lognormal(0, 1.2, shape)) for shape in shapes]
    for factor in (2.0, 5.0, 7.5):
        found = sinks.find(*arrays, factor)
        expected = naive(*arrays, factor)
        assert [(s.pos, s.depth, s.layer, s.branch) for s in found] == [(e[0], e[1], e[3], e[4]) for e in expected]
        assert [s.ratio for s in found] == pytest.approx([e[2] for e in expected])
        spans = [[(p.start, p.end, p.layer, p.branch, p.rise) for p in s.spans] for s in found]
        assert spans == [[pytest.approx(span) for span in e[5]] for e in expected]
    named = {s.pos for s in sinks.find(*arrays)}
    last = [t for t in range(arrays[0].shape[1]) if sinks.times(arrays[0])[-1, t] >= sinks.FACTOR and t not in named]
    end = len(arrays[0]) - 1
    assert [pos for pos, spans in sinks.runs(arrays[0]).items() if spans == [(end, end)]] == last
    assert seed == 0 or any(s.pos for s in sinks.find(*arrays, 2.0))
    assert seed < 3 or any(len(s.spans) > 1 for s in sinks.find(*arrays, 2.0))


def changed(result: ProbeResult, **measures) -> ProbeResult:
    """A complete result with other values in some measures."""
    new = {name: Measure(result.measures[name].spec, np.float32(values)) for name, values in measures.items()}
    return summarize(replace(result, measures={**result.measures, **new}, summary={}))


@pytest.fixture(scope="module")
def pair() -> tuple[ProbeResult, ProbeResult]:
    """The shipped contributions and lens of 8 blocks, without a sink; then block 3's MLP writes one at token 0, block
    5's attention one at token 7, and these two tokens decide every curve's mean."""
    written, lens = (results()[name] for name in READS)
    assert sinks.of_result(written) == () and written.n_layers == 8 and written.tokens == lens.tokens
    stream, attn, mlp = (written[name].copy() for name in sinks.READS)
    stream[4:, 0] += 1e6
    mlp[3, 0] += 1e6
    stream[6:, 7] += 2e5
    attn[5, 7] += 2e5
    cosines = {name: np.tile(np.arange(8)[:, None] - 1.5, written.n_tokens) for name in COSINES}
    for values in cosines.values():
        values[:6, [0, 7]] = -300.0
    kl = np.tile(np.array([[10], [4.6], [4], [4.8], [2], [2], [2], [1], [0]]), lens.n_tokens)
    kl[:7, [0, 7]] = 400.0
    overlap = np.tile(np.array([[0.0], [0.1], [0.1], [0.2], [0.25], [0.5], [0.6], [0.7], [1]]), lens.n_tokens)
    overlap[3:5, [0, 7]] = 20.0
    return changed(written, resid_norm=stream, attn_norm=attn, mlp_norm=mlp, **cosines), changed(
        lens, kl=kl, overlap=overlap
    )


def by_hand(results_, names, left_out, first_token):
    """Means over the tokens that count, one after the other: `left_out` are (prompt, position)."""
    means = {}
    for name in names:
        rows = [
            r[name][:, t].astype(float)
            for p, r in enumerate(results_)
            for t in range(r.n_tokens)
            if (p, t) not in left_out and (t or first_token)
        ]
        means[name] = sum(rows) / len(rows)
    return means


@pytest.mark.parametrize("first_token", [True, False])
def test_every_rule_is_read_with_and_without_the_sinks(pair, first_token):
    found = verdict(Sample.of(*pair, first_token=first_token), kl=0.45, overlap=0.22)
    assert [s.pos for s in found.sample.sinks[0]] == [0, 7]
    gone = {(0, 0), (0, 7)}
    cosines = by_hand(pair[:1], COSINES, gone, first_token)
    lens = by_hand(pair[1:], ("kl", "overlap"), gone, True)
    expected = {
        "cosine": RULES["cosine"].layers(RULES["cosine"].curve(cosines)),
        "kl": RULES["kl"].layers(lens["kl"][:-1], threshold=0.45),
        "overlap": RULES["overlap"].layers(lens["overlap"][:-1], threshold=0.22),
    }
    assert found.layers == {"cosine": 5, "kl": None, "overlap": 3}
    assert {name: rule.layers["without_sinks"] for name, rule in found.rules.items()} == expected
    assert [depth for depth, _ in expected.values()] == [1, 2, 4]
    assert all("attention sinks" in found.rules[name].doubts for name in ("cosine", "overlap"))
    assert not any(rule.clear for rule in found.rules.values())


def test_over_prompts_each_has_its_own_sinks_and_tokens_are_weighed(pair):
    """A prompt with sinks beside two without any, one of them cut to eleven tokens."""
    plain = tuple(results()[name] for name in READS)
    runs = [pair, tuple(cut(r, 11) for r in plain), plain]
    written, lens = ([run[i] for run in runs] for i in range(2))
    gone = {(0, 0), (0, 7)}
    for first_token in (True, False):
        expected = RULES["cosine"].layer(by_hand(written, COSINES, gone, first_token))
        found = verdict(Sample.of(written, lens, first_token=first_token)).rules
        assert found["cosine"].variants["without_sinks"] == expected
    curves = by_hand(lens, ("kl", "overlap"), gone, True)
    for name in ("kl", "overlap"):
        assert found[name].variants["without_sinks"] == RULES[name].layer(curves)
    assert found["kl"].depth != found["kl"].variants["without_sinks"]


def cut(result: ProbeResult, n: int) -> ProbeResult:
    """The same result on its first tokens."""
    measures = {name: m.values[:, :n] for name, m in result.measures.items() if m.spec.dims[1:2] == ("pos",)}
    measures |= {name: m.values[:n] for name, m in result.measures.items() if m.spec.dims == ("pos",)}
    short = replace(result, tokens=result.tokens[:n], token_ids=result.token_ids[:n], answer_start=None)
    return summarize(
        replace(short, measures={k: Measure(result.measures[k].spec, v) for k, v in measures.items()}, summary={})
    )


def test_a_models_own_embedding_is_named_as_the_writer(measure):
    """End to end: one byte's embedding is made 300 times as long."""
    import torch

    model = random_model("llama")
    with torch.no_grad():
        model.hf.get_input_embeddings().weight[model.encode(Prompt("z")).ids[0]] *= 300
    found = sinks.of_result(measure(model, Contributions(), Prompt("abcdzefgh")))
    assert [(s.pos, s.layer, s.branch, s.depth) for s in found] == [(4, None, "embedding", 0)]


def test_the_npz_has_every_figure(pair):
    plain = tuple(results()[name] for name in READS)
    written, lens = ([pair[i], plain[i]] for i in range(2))
    probe = Contributions(first_token=False)
    out = export.arrays({probe: written, LogitLens(): lens})
    found = sinks.of_result(pair[0])
    assert out["sinks.ratio.0"] == pytest.approx([sink.ratio for sink in found]) and out["sinks.pos.1"].shape == (0,)
    spans = {"pos": [0, 7], "from": [4, 6], "to": [8, 8], "layer": [3, 5], "branch": [1, 0]}
    assert {name: out[f"sinks.{name}.0"].tolist() for name in spans} == spans
    assert out["sinks.long_at_end.0"].tolist() == list(sinks.long_at_end(pair[0]))
    verdicts = verdict(Sample.of(written, lens, first_token=False)).rules
    expected = {name: c.variants["without_sinks"] for name, c in verdicts.items()}
    written_ = {name: out[f"effective_depth.{name}_without_sinks"] for name in expected}
    assert {name: None if np.isnan(v) else v for name, v in written_.items()} == expected
    assert expected != {name: c.depth for name, c in verdicts.items()}
    assert np.isnan(out["effective_depth.kl_from_depth_1"]) and verdicts["kl"].variants["from_depth_1"] is None
