"""Models whose blocks run several times, against the plain model with the same weights written out for every pass."""

import json
import math
from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from small_models import BACKGROUND, asked, byte_tokenizer, random_model, save_random
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ed_core.depth.rules import first_pass
from ed_core.errors import ParameterError, RefusedFamily
from ed_core.lenses.jacobian import FIRST, of_prompt
from ed_core.models import bundled, sizes
from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.probes import PROBES, Generation, Loops, ResidualErasure
from ed_core.probes.base import Shape
from ed_core.probes.generation import WRITTEN_TOKENS
from ed_core.types import ModelSpec, Prompt

PROMPT = Prompt("5+7=", "12")
BETWEEN = ("looped_norm", "looped_input", "ouro")
PASSES = {"ouro": "total_ut_steps"}


def looped(variant="looped", passes=3, **more):
    """Two blocks, so many times."""
    return random_model(variant, **{PASSES.get(variant, "n_loops"): passes}, **more)


def written_out(model):
    """Llama itself, with a block of its own for every pass."""
    config = LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": model.n_layers})
    hf, weights, n = LlamaForCausalLM(config), {}, len(model.stack)
    for name, value in model.hf.state_dict().items():
        head, _, rest = name.partition("layers.")
        place, _, inside = rest.partition(".")
        for number in range(model.n_passes) if rest else ():
            weights[f"{head}layers.{number * n + int(place)}.{inside}"] = value
        weights |= {} if rest else {name: value}
    hf.load_state_dict(weights)
    spec = ModelSpec("written-out", content_hash="written-out")
    return LanguageModel(hf, byte_tokenizer(), find("llama"), spec)


@pytest.fixture(scope="module")
def pair():
    model = looped()
    both = model, written_out(model)
    for one in both:
        assert not verify(one).failures()
    return both


def probe_of(probe):
    """A probe as a user would ask for it, and where the background is a file."""
    given = {"residual_erasure": ResidualErasure("answer", BACKGROUND)}
    return given.get(probe.name) or asked(probe)


def arrays(result):
    return {name: np.asarray(getattr(m, "values", m), float) for name, m in result.measures.items()}


PLAIN = [probe for probe in PROBES if not probe.needs_passes]


@pytest.mark.parametrize("probe", PLAIN, ids=lambda probe: probe.name)
def test_a_looped_model_is_the_plain_one_with_its_blocks_written_out(pair, measure, probe):
    found, expected = (arrays(measure(model, probe_of(probe), PROMPT)) for model in pair)
    assert set(found) == set(expected) and found
    for name, values in expected.items():
        assert found[name].shape == values.shape and np.array_equal(np.isnan(found[name]), np.isnan(values)), name
        limit = 1e-5 * max(1.0, np.abs(np.nan_to_num(values)).max(initial=0.0))
        np.testing.assert_allclose(found[name], values, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("variant", ("looped", "ouro"))
def test_a_folder_opens_with_its_twins(tmp_path, variant):
    """Ours, and Ouro's with the names of the code that its repository brings."""
    folder = save_random(tmp_path / "model", variant, **{PASSES.get(variant, "n_loops"): 3})
    if variant == "ouro":
        config = (folder / "config.json").read_text()
        own = '{"auto_map": {"AutoConfig": "configuration_ouro.OuroConfig", "AutoModelForCausalLM": '
        (folder / "config.json").write_text(config.replace("{", own + '"modeling_ouro.OuroForCausalLM"},', 1))
    spec = ModelRef.parse(str(folder))
    model = open_model(spec)
    assert model.n_layers == spec.n_layers == 6
    assert spec.size().parameters == sum(p.numel() for p in model.hf.parameters())
    for control in ("untrained", "shuffled"):
        twin = open_model(replace(spec, control=control, control_seed=1))
        assert twin.n_layers == 6 and not twin.identities.failures()
        assert not torch.equal(*(m.logits(m.tensor(m.encode(PROMPT))) for m in (model, twin)))


def test_ouros_own_config_is_read_as_its_publisher_means_it(tmp_path):
    """Ouro-1.4B's fields, among them what later versions of the library keep elsewhere."""
    config = {
        "model_type": "ouro",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "layer_types": ["full_attention"] * 24,
        "sliding_window": None,
        "use_sliding_window": False,
        "total_ut_steps": 4,
        "early_exit_threshold": 1.0,
        "tie_word_embeddings": False,
        "vocab_size": 49152,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = AutoConfig.from_pretrained(tmp_path)
    assert read.rope_parameters["rope_theta"] == 1e6 and not find("ouro").refusal(read)
    with torch.device("meta"):
        built = sum(p.numel() for p in AutoModelForCausalLM.from_config(read).parameters())
    size = sizes.read(config)
    assert (size.n_layers, size.n_blocks, size.exact) == (96, 24, True) and size.parameters == built == 1_434_652_673


def ouro_by_hand(weights, config, ids):
    """Ouro as its paper (arXiv 2510.25741) and the names in its checkpoints tell it, from the weights alone, float64:
    what enters the first pass and leaves each behind the final norm, `[R + 1][T][d]`; the gate's number there,
    `[R][T]`; the logits, `[T][V]`."""
    weights = {name: value.double() for name, value in weights.items()}
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    dim, T = config.hidden_size // heads, len(ids)
    speeds = config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
    turn = torch.polar(torch.ones(T, 1, dim // 2).double(), torch.arange(T).double()[:, None, None] * speeds)

    def times(name, x):
        return x @ weights[f"{name}.weight"].T

    def normed(name, x):
        return x * (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weights[f"{name}.weight"]

    def turned(x):
        pairs = torch.complex(*x.chunk(2, -1)) * turn
        return torch.cat([pairs.real, pairs.imag], -1)

    def attention(at, x):
        q, k, v = (times(f"{at}.{one}_proj", x).reshape(T, -1, dim) for one in "qkv")
        q, k = turned(q), turned(k)
        out = torch.zeros(T, heads, dim).double()
        for head in range(heads):
            group = head * groups // heads
            for t in range(T):
                seen = (k[: t + 1, group] @ q[t, head] / math.sqrt(dim)).softmax(0)
                out[t, head] = seen @ v[: t + 1, group]
        return times(f"{at}.o_proj", out.reshape(T, -1))

    def mlp(at, x):
        gate = times(f"{at}.gate_proj", x)
        return times(f"{at}.down_proj", gate * gate.sigmoid() * times(f"{at}.up_proj", x))

    x = weights["model.embed_tokens.weight"][ids]
    states, gates = [x], []
    for _ in range(config.total_ut_steps):
        for layer in range(config.num_hidden_layers):
            at = f"model.layers.{layer}"
            x = x + normed(f"{at}.input_layernorm_2", attention(f"{at}.self_attn", normed(f"{at}.input_layernorm", x)))
            added = mlp(f"{at}.mlp", normed(f"{at}.post_attention_layernorm", x))
            x = x + normed(f"{at}.post_attention_layernorm_2", added)
        x = normed("model.norm", x)
        states.append(x)
        gates.append((times("model.early_exit_gate", x) + weights["model.early_exit_gate.bias"])[:, 0])
    return torch.stack(states), torch.stack(gates), times("lm_head", x)


def test_ouro_is_what_its_paper_says(measure):
    """Against the same written out by hand; also with fewer keys and values than heads, as its larger ones have not."""
    for groups in (4, 2):
        model = looped("ouro", num_attention_heads=4, num_key_value_heads=groups, rope_theta=1e6)
        for one in (model.hf.model.early_exit_gate.weight, model.hf.model.early_exit_gate.bias):
            torch.nn.init.normal_(one.data, generator=torch.Generator().manual_seed(1))
        tokens = model.tensor(model.encode(PROMPT))
        states, gates, logits = ouro_by_hand(model.hf.state_dict(), model.config, tokens[0])
        with torch.no_grad():
            torch.testing.assert_close(model.hf(tokens).logits[0].double(), logits, rtol=1e-5, atol=1e-5)
        trace, n = model.trace(tokens), len(model.stack)
        for number, state in enumerate(states[:-1]):
            torch.testing.assert_close(trace.resid[number * n][0].double(), state, rtol=1e-5, atol=1e-5)
        stays = (1 - gates.sigmoid()).cumprod(0)
        left = torch.cat([1 - stays[:-1], torch.ones(1, len(tokens[0]))])
        np.testing.assert_allclose(measure(model, Loops(), PROMPT)["exit"], left, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "variant, wrong, said",
    [
        ("looped", {"n_loops": 0}, "run 0 times"),
        ("looped", {"n_loops": 10**6}, "run 1000000 times"),
        ("ouro", {"early_exit_threshold": 0.5}, "early_exit_threshold is 0.5: its logits are then those"),
        ("ouro", {"early_exit_step": 1}, "early_exit_step is 1"),
    ],
)
def test_what_would_be_read_wrong_is_refused_before_it_is_loaded(tmp_path, variant, wrong, said):
    folder = save_random(tmp_path / "model", variant)
    (name, value), config = wrong.popitem(), (folder / "config.json").read_text()
    lines = [line for line in config.splitlines() if f'"{name}"' not in line]
    (folder / "config.json").write_text("\n".join([lines[0], f'"{name}": {value},', *lines[1:]]))
    with pytest.raises((RefusedFamily, ParameterError), match=said):
        open_model(ModelRef.named(str(folder)))
    if "loops" in name:
        with pytest.raises(ParameterError, match=said):
            ModelRef.named(str(folder)).size()


@pytest.mark.parametrize("variant", ("looped", "ouro"))
def test_keys_and_values_of_every_pass_are_kept_and_counted(variant):
    """What is written token by token is what the whole read anew gives; the cache takes what is estimated."""
    model = looped(variant, passes=4)
    ids, seen = model.tensor(model.encode(Prompt("5 + 7 + 1 = "))), []
    hook = model.hf.register_forward_hook(lambda module, args, output: seen.append(output))
    model.continuation(ids, 5, lambda step, logits: None)
    hook.remove()
    written, cache = ids, seen[-1].past_key_values
    for output in seen:
        whole = model.hf(input_ids=written, use_cache=False).logits[0, -1]
        torch.testing.assert_close(output.logits[0, -1], whole, rtol=0, atol=1e-5 * float(whole.abs().max()))
        written = torch.cat([written, whole.argmax().view(1, 1)], dim=1)
    held = [layer.keys.nbytes + layer.values.nbytes for layer in cache.layers]
    assert len(held) == model.n_layers and cache.get_seq_length() == ids.shape[1] + 4
    size = sizes.read(model.config.to_dict() | {"num_key_value_heads": model.config.num_attention_heads})
    n, stream = ids.shape[1], ids.shape[1] * model.d_model * 4
    shape = Shape(size.n_layers, n, stream, 0, 0, 0, 1)
    estimated = Generation().holds(shape) * (n + 4) / (n + WRITTEN_TOKENS)
    heads = model.config.num_attention_heads / model.config.num_key_value_heads  # the estimate counts all heads
    assert sum(held) * heads <= 1.1 * estimated and estimated <= 1.1 * sum(held) * heads


# ---------------------------------------------------------------- the probe


def resized(model, passes):
    """The same weights, so many passes."""
    again = looped(model.variant, passes)
    again.hf.load_state_dict(model.hf.state_dict())
    return again.hf


@pytest.fixture(params=("looped", "looped_input", "ouro"))
def model(request):
    made = looped(request.param)
    made.variant = request.param
    return made


def test_the_measures_of_a_loop_are_those_of_plain_passes_over_the_list(model, measure):
    """Every figure by loops over tokens, float64, and one whole pass per variant."""
    found = measure(model, Loops(k=3), PROMPT)
    hf, ids, (n, R) = naive.plain(model.hf), found.token_ids, (2, 3)
    L, T, norm, cosine = n * R, found.n_tokens, naive.norm, naive.cosine
    seen, expected = naive.run(hf, ids), {}
    tokens = range(T)
    expected["fixed_point"] = [
        [norm(seen.resid[u][t] - seen.resid[u - n][t]) / norm(seen.resid[u][t]) for t in tokens] for u in range(n, L)
    ]
    last = [seen.resid[L - n + u % n] for u in range(L)]
    expected["to_last"] = [[norm(seen.resid[u][t] - last[u][t]) / norm(last[u][t]) for t in tokens] for u in range(L)]
    moved = [seen.left[(r + 1) * n] - seen.resid[r * n] for r in range(R)]
    expected["update_norm"] = [[norm(moved[r][t]) for t in tokens] for r in range(R)]
    expected["update_angle"] = [
        [math.degrees(math.acos(cosine(moved[r - 1][t], moved[r][t]))) for t in tokens] for r in range(1, R)
    ]
    expected["between"] = [
        [norm(seen.resid[r * n][t] - seen.left[r * n][t]) / norm(seen.left[r * n][t]) for t in tokens]
        for r in range(1, R)
    ]
    without = [naive.surgery(hf, ids, order) for order in ((1, 3, 5), (0, 2, 4))]
    expected |= {f"block_skip_{name}": [figures[name] for figures in without] for name in ("kl", "top1_kept")}
    outputs = [naive.lens(hf, ids, seen.resid[0])] + [
        naive.run(naive.plain(resized(model, passes)), ids).logits for passes in range(1, 2 * R + 1)
    ]
    p = [logits.log_softmax(-1) for logits in outputs]
    best = [[set(row.argsort(descending=True)[:3].tolist()) for row in logits] for logits in outputs]

    def kl(a, b):
        return float((p[a].exp() * (p[a] - p[b])).sum(-1).mean())

    size = (2 * R + 1, 2 * R + 1)
    expected["readout_kl"], expected["readout_overlap"] = np.full(size, np.nan), np.full(size, np.nan)
    for times in range(2 * R + 1):
        for readout in range(times + 1):
            expected["readout_kl"][times, readout] = kl(readout, times)
            shared = [len(a & b) / 3 for a, b in zip(best[readout], best[times])]
            expected["readout_overlap"][times, readout] = np.mean(shared)
    expected["times_kl"] = [kl(R, times) for times in range(2 * R + 1)]
    expected["times_top1_kept"] = [
        float((outputs[times].argmax(-1) == outputs[R].argmax(-1)).double().mean()) for times in range(2 * R + 1)
    ]
    answer = range(found.answer_start, T)
    expected["times_loss"] = [np.mean([-float(q[t - 1][ids[t]]) for t in answer]) for q in p]
    expected["times_rank"] = [max(int((q[t - 1] > q[t - 1][ids[t]]).sum()) + 1 for t in answer) for q in outputs]
    expected["times_right"] = [float(rank == 1) for rank in expected["times_rank"]]
    if model.variant == "ouro":
        normed = [model.hf.model.norm(seen.left[(r + 1) * n].float()) for r in range(R)]
        gates = torch.stack([model.hf.model.early_exit_gate(h)[:, 0].sigmoid() for h in normed]).double()
        stays = (1 - gates).cumprod(0)
        expected["exit"] = torch.cat([1 - stays[:-1], torch.ones(1, T)]).detach().numpy()
    assert set(expected) == set(found.measures)
    for name, values in expected.items():
        values = np.asarray(values)
        assert found[name].shape == values.shape, name
        limit = 1e-4 * max(1e-2, np.nanmax(np.abs(values)))
        np.testing.assert_allclose(found[name], values, rtol=0, atol=limit, err_msg=name)


def test_the_first_pass_is_before_the_last():
    """By hand: below half of the largest divergence."""
    assert first_pass(np.array([8.0, 4.0, 3.0, 1.0, 0.0])) == 2
    assert first_pass(np.array([1.0, 4.0, 4.0, 4.0, 0.0])) is None, "the last pass is the output"


def test_models_that_read_characters_are_given_prompts_in_characters():
    loop, words = ModelRef.parse("ed-loop-4x4"), ModelRef.parse("ed-demo-8")
    assert bundled.example_of("ed-plain-4") == "chains-4-alone" and bundled.example_of("ed-demo-8") == bundled.EXAMPLE
    assert {p["task"] for p in bundled.mixed_prompts(13, model="ed-loop-4x4")} == {"sums", "chains"}
    known = set(json.loads((bundled.MODELS["ed-loop-4x4"] / "tokenizer.json").read_text())["model"]["vocab"])
    backgrounds = {spec.name: ResidualErasure().background_prompts(spec) for spec in (loop, words)}
    assert all(set(p.text + p.answer) <= known for p in backgrounds["ed-loop-4x4"])
    assert not any(set(p.text) <= known for p in backgrounds["ed-demo-8"])


# ---------------------------------------------------------------- what is fitted


@pytest.mark.parametrize("variant", ("looped_input",))
def test_the_jacobian_lens_goes_through_what_stands_between(variant):
    """The last residual moves as the matrices say where a stream is moved a little, in the first pass and the last."""
    model = looped(variant)
    ids = model.encode(Prompt("the quick brown fox jumps")).ids
    jacobians, _ = of_prompt(model, ids)
    trace, n = model.trace(model.tensor(ids)), len(ids)
    for depth in (1, 4):
        step = 1e-3 * torch.randn(model.d_model, generator=torch.Generator().manual_seed(depth))
        moved = torch.zeros(model.d_model).double()
        for p in range(FIRST, n - 1):
            ends = []
            for sign in (-1, 1):
                resid = trace.after(depth).clone()
                resid[0, p] += sign * step
                resid = model.between(trace, resid) if depth == 4 else resid
                for layer in range(depth, model.n_layers):
                    *_, resid = model.run_block(trace, layer, resid)
                ends.append(resid[0, FIRST : n - 1].double().sum(0))
            moved += (ends[1] - ends[0]) / 2 / (n - 1 - FIRST)
        expected = jacobians[depth] @ step.double()
        assert float((moved - expected).norm() / expected.norm()) <= 0.02
