"""Real language models: every probe on SmolLM2, and on Gemma 3 270M where it is fetched, against its naive twin, and
the first screen in a browser. Toys hide what a vocabulary of 49 152 or 262 144, tied embeddings and massive activations
do."""

from __future__ import annotations

import math

import gguf
import naive
import numpy as np
import pytest
import torch
from test_browser import finished, settled, wait
from test_naive import agree

from ed_core import settings
from ed_core.models.bundled import load_prompts
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.models.wheels import WHEELS
from ed_core.probes import Continuation, Contributions, IntegratedGradients, LayerSkip, LogitLens, Prune
from ed_core.types import Prompt
from tools.bench.browser import serving

pytestmark = pytest.mark.real

PROMPT = Prompt("The capital of Japan is", " Tokyo")


@pytest.fixture(scope="module", params=WHEELS)
def real(request):
    """A model, as `python -m ed_core fetch smollm2` leaves it in the project's own cache folder."""
    spec = ModelRef.parse(request.param, "fp32")
    if not spec.is_ready:
        pytest.skip(f"{request.param} is not here: it was not fetched, or no registry had it")
    return open_model(spec)


def some_layers(model) -> tuple[int, ...]:
    """The first, one inside, and the last."""
    return 0, 3 * model.n_layers // 8, model.n_layers - 1


def ids_of(model) -> list[int]:
    return list(model.encode(PROMPT).ids)


def test_whole_passes(real, measure):
    hf, ids = real.hf, ids_of(real)
    agree(measure(real, Contributions(), PROMPT), naive.contributions(hf, ids))
    agree(measure(real, LogitLens(), PROMPT), naive.logit_lens(hf, ids, k=5))
    agree(measure(real, LayerSkip(), PROMPT), naive.layer_skip(hf, ids))


def test_integrated_gradients(real, measure):
    """The same sum, one node at a time: the path and the gradient are compared."""
    found = measure(real, IntegratedGradients(nodes=17), PROMPT)
    for layer in some_layers(real):
        expected = naive.integrated_gradients(
            real.hf, found.token_ids, found.answer_start, "layer", rule=naive.KRONROD, layers=(layer,)
        )[layer]
        assert np.abs(found["attribution"][layer] - expected).max() <= 1e-3 * np.abs(expected).max()


def test_prune(real, measure):
    drop = (3, 2 * real.n_layers // 3)
    found = measure(real, Prune(drop=drop), PROMPT)
    for layers in (*((start,) for start in some_layers(real)), drop):
        for name, values in naive.pruned(real.hf, found.token_ids, layers).items():
            one = found[f"drop_{name}"] if layers == drop else found[name][layers[0]]
            assert np.nanmax(np.abs(one - values)) <= 1e-4 * max(1e-1, np.nanmax(values)), name


def test_continuation(real, measure):
    found = measure(real, Continuation(), PROMPT)
    ids, here = ids_of(real), real.encode(PROMPT).answer_start
    said = ids[:here]
    for step in range(len(found["ids"])):
        with torch.no_grad():
            logits = real.hf(input_ids=torch.tensor([said]), use_cache=False).logits[0, -1]
        said.append(int(logits.argmax()))
        assert found["top_probs"][step, 0] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-4)
    assert found["ids"].tolist() == said[here:]
    assert "Tokyo" in found.provenance["continuation"]


def by_hand(file, ids: list[int]) -> torch.Tensor:
    """Gemma 3's logits of the last eight tokens from its GGUF file alone, in float64, after paper and llama.cpp: the
    file's norms are 1 + the weights of the library, its rotation is by halves, every sixth layer sees all tokens and
    turns more slowly, the others see the last 512."""
    weights = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        weights[tensor.name] = values if tensor.name == "token_embd.weight" else values.double()
    embedding, n, head = weights["token_embd.weight"], len(ids), 256

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weights[f"{name}.weight"]

    def turned(x, theta):
        angle = torch.arange(n)[:, None] * theta ** (-torch.arange(0, head, 2).double() / head)
        a, b = x[..., : head // 2], x[..., head // 2 :]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    x, at = embedding[ids].double() * math.sqrt(embedding.shape[1]), torch.arange(n)
    for layer in range(18):

        def times(y, name, here=f"blk.{layer}."):
            return y @ weights[f"{here}{name}.weight"].T

        here, far = f"blk.{layer}.", layer % 6 == 5
        y, theta = norm(x, f"{here}attn_norm"), 1e6 if far else 1e4
        q, k, v = (times(y, f"attn_{one}").view(n, -1, head).transpose(0, 1) for one in "qkv")
        q, k = turned(norm(q, f"{here}attn_q_norm"), theta), turned(norm(k, f"{here}attn_k_norm"), theta)
        hidden = (at[None] > at[:, None]) | ((at[:, None] - at[None] >= 512) & (not far))
        pattern = (q @ k.transpose(-1, -2) / math.sqrt(head)).masked_fill(hidden, -math.inf).softmax(-1)
        x = x + norm(times((pattern @ v).transpose(0, 1).reshape(n, -1), "attn_output"), f"{here}post_attention_norm")
        y = norm(x, f"{here}ffn_norm")
        gate = torch.nn.functional.gelu(times(y, "ffn_gate"), approximate="tanh")
        x = x + norm(times(gate * times(y, "ffn_up"), "ffn_down"), f"{here}post_ffw_norm")
    return norm(x[-8:], "output_norm").float() @ embedding.T


@pytest.mark.parametrize("real", ["gemma3-270m"], indirect=True)
@pytest.mark.parametrize("n", [20, 560])  # tokens; 560: longer than the window
def test_a_gemma_computes_what_its_file_says(real, n):
    if not (file := WHEELS["gemma3-270m"].file).is_file():
        pytest.skip("its GGUF file was removed after the conversion")
    text = " ".join(prompt["text"] for prompt in load_prompts())
    ids = list(real.encode(Prompt(text)).ids)[:n]
    with torch.no_grad():
        found, expected = real.hf(input_ids=torch.tensor([ids])).logits[0, -8:], by_hand(file, ids)
    assert len(ids) == n and ids[0] == real.hf.config.bos_token_id, "it begins with <bos>"
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.browser
@pytest.mark.parametrize("real", ["smollm2"], indirect=True)
def test_home_opens_on_it_and_runs_a_prompt_of_ones_own(real, tmp_path, visitor):
    """The stored example at once; then a prompt that nobody ran before, all panels."""
    (tmp_path / "cache").mkdir()
    for folder in ("converted", "gguf"):
        (tmp_path / "cache" / folder).symlink_to(settings.current().cache / folder)
    with serving(tmp_path / "cache") as address:
        page = visitor()
        page.goto(address)
        page.locator(".st-key-headline", has_text="On average").wait_for()
        page.locator(".st-key-model-foot button").first.click()
        page.get_by_text("Q4_1 in the file, computed in fp32").wait_for()
        page.keyboard.press("Escape")
        box = page.get_by_label("Prompt", exact=True)
        wait(page, lambda: box.input_value().startswith("The capital of France"))
        settled(page)
        box.fill("The opposite of small is")
        box.blur()
        page.get_by_role("button", name="Run").click()
        wait(page, lambda: "run=" in page.url and finished(page))
