"""Models whose blocks run several times, against the plain model with the same weights written out for every pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import byte_tokenizer, random_model, save_random
from transformers import LlamaConfig, LlamaForCausalLM

from ed_core.architectures import find
from ed_core.errors import IdentityFailed, ParameterError, RefusedFamily
from ed_core.models.families import random_hf
from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.models.verify import verify
from ed_core.probes import PROBES, Generation, ResidualErasure, Surgery
from ed_core.probes.description import Shape
from ed_core.sources import sizes, specs
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
    config._attn_implementation = model.config._attn_implementation
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


@pytest.fixture
def probe_of(tmp_path):
    """A probe as a user would ask for it, and where the background is a file."""
    file = tmp_path / "background.jsonl"
    file.write_text('{"text": "a=3"}\n{"text": "Rain."}')
    given = {"residual_erasure": ResidualErasure("answer", str(file)), "surgery": Surgery(order="0,3,2,5,2-4")}
    return lambda probe: given.get(probe.name) or probe()


def arrays(result):
    return {name: np.asarray(getattr(m, "values", m), float) for name, m in result.measures.items()}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_looped_model_is_the_plain_one_with_its_blocks_written_out(pair, measure, probe_of, probe):
    found, expected = (arrays(measure(model, probe_of(probe), PROMPT)) for model in pair)
    assert set(found) == set(expected) and found
    for name, values in expected.items():
        assert found[name].shape == values.shape and np.array_equal(np.isnan(found[name]), np.isnan(values)), name
        limit = 1e-5 * max(1.0, np.abs(np.nan_to_num(values)).max(initial=0.0))
        np.testing.assert_allclose(found[name], values, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_one_pass_is_the_plain_model_bit_for_bit(measure, probe_of, probe):
    model = looped(passes=1, num_hidden_layers=6)
    found, expected = (arrays(measure(one, probe_of(probe), PROMPT)) for one in (model, written_out(model)))
    for name, values in expected.items():
        assert np.array_equal(found[name], values, equal_nan=True), name


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", ("looped", *BETWEEN))
def test_the_sums_hold_in_every_pass(variant, precision):
    model = looped(variant, passes=4, dtype=precision)
    figures = verify(model)
    assert figures.failures() == [] and len(figures.miss) == model.n_layers == 8 and model.n_passes == 4
    assert len(figures.between) == (3 if variant in BETWEEN else 0) and figures.suffix_holds
    assert ("between" in figures.to_json()) == (variant in BETWEEN)


@pytest.mark.parametrize("variant", BETWEEN)
def test_what_stands_between_passes_is_a_row_of_its_own(variant):
    """By hand: the norm's own output, and the embedding on top."""
    model = looped(variant)
    trace = model.trace(model.tensor(model.encode(PROMPT)))
    assert set(trace.left) == {2, 4}
    for depth, left in trace.left.items():
        own = model.hf.model.norm if variant == "ouro" else model.hf.model.loop_norm
        expected = own(left) + (trace.resid[0] if variant == "looped_input" else 0)
        torch.testing.assert_close(trace.resid[depth], expected, rtol=0, atol=0)
        torch.testing.assert_close(trace.resid[depth - 1] + trace.update(depth - 1), left, rtol=1e-5, atol=1e-5)
        assert (trace.after(depth) - trace.resid[depth]).norm() > 0.1 * left.norm()
    assert trace.after(6) is trace.resid[6] and trace.after(3) is trace.resid[3]


@pytest.mark.parametrize(
    "variant, forged",
    [("looped_norm", {"between": ()}), ("looped_norm", {"between": "model.norm"}), ("looped_input", {"reentry": ""})],
)
def test_a_wrong_word_about_what_stands_between_is_refused(variant, forged):
    hf = random_hf(variant)
    architecture = replace(find(hf.config.model_type), **forged)
    model = LanguageModel(hf, byte_tokenizer(), architecture, ModelSpec("m"))
    with pytest.raises(IdentityFailed, match="Refused"):
        verify(model).require(architecture)


def test_passes_that_nobody_announced_are_refused():
    hf = random_hf("looped", n_loops=3)
    architecture = replace(find("ed_looped"), passes="")
    with pytest.raises(IdentityFailed, match=r"ran its 2 layers 6 times"):
        verify(LanguageModel(hf, byte_tokenizer(), architecture, ModelSpec("m")))


@pytest.mark.parametrize("variant", ("looped", *BETWEEN))
def test_a_folder_opens_with_its_twins(tmp_path, variant):
    """Ours, and Ouro's with the names of the code that its repository brings."""
    folder = save_random(tmp_path / "model", variant, **{PASSES.get(variant, "n_loops"): 3})
    if variant == "ouro":
        config = (folder / "config.json").read_text()
        own = '{"auto_map": {"AutoConfig": "configuration_ouro.OuroConfig", "AutoModelForCausalLM": '
        (folder / "config.json").write_text(config.replace("{", own + '"modeling_ouro.OuroForCausalLM"},', 1))
    spec = ModelSpec(str(folder), content_hash=specs.content_hash(folder))
    model = open_model(spec)
    assert model.n_layers == specs.n_layers(spec) == specs.size_of(str(folder)).n_layers == 6
    assert specs.size_of(str(folder)).parameters == sum(p.numel() for p in model.hf.parameters())
    for control in ("untrained", "shuffled"):
        twin = open_model(replace(spec, control=control, control_seed=1))
        assert twin.n_layers == 6 and not twin.identities.failures()
        assert not torch.equal(*(m.logits(m.tensor(m.encode(PROMPT))) for m in (model, twin)))


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
        open_model(ModelSpec(str(folder)))
    if "loops" in name:
        with pytest.raises(ParameterError, match=said):
            specs.size_of(str(folder))


@pytest.mark.parametrize("variant", ("looped", *BETWEEN))
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
    from ed_core.probes.generation import WRITTEN_TOKENS

    estimated = Generation().holds(shape) * (n + 4) / (n + WRITTEN_TOKENS)
    heads = model.config.num_attention_heads / model.config.num_key_value_heads  # the estimate counts all heads
    assert sum(held) * heads <= 1.1 * estimated and estimated <= 1.1 * sum(held) * heads
