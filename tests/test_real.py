"""A real language model: every probe on SmolLM2 against its naive twin, and the first screen in a browser. Toys hide
what a vocabulary of 49 152, tied embeddings and massive activations do."""

from __future__ import annotations

import naive
import numpy as np
import pytest
import torch
from test_browser import finished, settled, wait
from test_probes_naive import agree

from ed_core.probes import (
    Continuation,
    Contributions,
    EarlyExit,
    IntegratedGradients,
    LayerSkip,
    LogitLens,
    Numerics,
    Prune,
    ResidualErasure,
)
from ed_core.types import Prompt

pytestmark = pytest.mark.real

PROMPT = Prompt("The capital of Japan is", " Tokyo")


@pytest.fixture(scope="module")
def smollm2():
    """The model, as `python -m ed_core fetch smollm2` leaves it in the project's own cache folder."""
    from ed_core.models.opening import open_model
    from ed_core.service.resolve import resolve
    from ed_core.sources import specs

    spec = resolve("smollm2")
    if not specs.of_gguf(spec).converted:
        pytest.skip("smollm2 is not here: no registry had it, or REAL_MODEL=0")
    return open_model(spec)


def ids_of(model) -> list[int]:
    return list(model.encode(PROMPT).ids)


def test_contributions(smollm2, measure):
    agree(measure(smollm2, Contributions(), PROMPT), naive.contributions(smollm2.hf, ids_of(smollm2)))


def test_logit_lens(smollm2, measure):
    agree(measure(smollm2, LogitLens(), PROMPT), naive.logit_lens(smollm2.hf, ids_of(smollm2), k=5))


def test_layer_skip(smollm2, measure):
    agree(measure(smollm2, LayerSkip(), PROMPT), naive.layer_skip(smollm2.hf, ids_of(smollm2)))


def test_residual_erasure(smollm2, measure, tmp_path):
    file = tmp_path / "background.jsonl"
    texts = ("It rains in the north.", "Two and two are four.")
    file.write_text("\n".join(f'{{"text": "{text}"}}' for text in texts))
    found = measure(smollm2, ResidualErasure("answer", str(file)), PROMPT)
    others = [smollm2.encode(Prompt(text)).ids for text in texts]
    expected = naive.residual_erasure(smollm2.hf, found.token_ids, found.answer_start, others, "answer")
    assert found["effect"].shape == expected.shape
    assert np.nanmax(np.abs(found["effect"] - expected)) <= 1e-4 * np.nanmax(expected)


def test_integrated_gradients(smollm2, measure):
    """The same sum by the trapezoid's rule, one node at a time: what is compared is the path and the gradient."""
    found, layers = measure(smollm2, IntegratedGradients(nodes=9), PROMPT), (0, 11, 29)
    for layer in layers:
        steps = int(found["nodes_used"][layer]) - 1
        expected = naive.integrated_gradients(
            smollm2.hf, found.token_ids, found.answer_start, "layer", steps, "trapezoid", (layer,)
        )[layer]
        assert np.abs(found["attribution"][layer] - expected).max() <= 1e-3 * np.abs(expected).max()


def test_prune(smollm2, measure):
    found = measure(smollm2, Prune(drop=(3, 20)), PROMPT)
    for start in (0, 11, 29):
        for name, values in naive.pruned(smollm2.hf, found.token_ids, (start,)).items():
            assert np.nanmax(np.abs(found[name][start] - values)) <= 1e-4 * max(1e-1, np.nanmax(values)), name
    for name, values in naive.pruned(smollm2.hf, found.token_ids, (3, 20)).items():
        assert np.nanmax(np.abs(found[f"drop_{name}"] - values)) <= 1e-4 * max(1e-1, np.nanmax(values)), name


def test_early_exit(smollm2, measure):
    found = measure(smollm2, EarlyExit(), PROMPT)
    ids = ids_of(smollm2)
    lens = [naive.lens(smollm2.hf, ids, resid).softmax(-1) for resid in naive.run(smollm2.hf, ids).resid]
    best, final = np.array([one.max(-1).values.numpy() for one in lens]), lens[-1].argmax(-1)
    assert np.abs(found["confidence"] - best).max() <= 1e-4
    assert np.array_equal(found["agreement"], np.array([(one.argmax(-1) == final).float().numpy() for one in lens]))


def test_numerics(smollm2, measure):
    found = measure(smollm2, Numerics(), PROMPT)
    expected = naive.numerics(smollm2.hf, found.token_ids, torch.finfo(torch.float32).eps)
    for name, within in (("miss", 2e-2), ("rounding", 1e-3), ("resid_norm", 1e-4)):
        assert np.abs(found[name] - expected[name]).max() <= within * expected[name].max(), name
    assert (found["miss"] <= found["rounding"]).all()


def test_continuation(smollm2, measure):
    found = measure(smollm2, Continuation(), PROMPT)
    ids, here = ids_of(smollm2), smollm2.encode(PROMPT).answer_start
    said = ids[:here]
    for step in range(len(found["ids"])):
        with torch.no_grad():
            logits = smollm2.hf(input_ids=torch.tensor([said]), use_cache=False).logits[0, -1]
        said.append(int(logits.argmax()))
        assert found["top_probs"][step, 0] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-4)
    assert found["ids"].tolist() == said[here:] and "Tokyo" in found.provenance["continuation"]


@pytest.mark.browser
def test_home_opens_on_it_and_runs_a_prompt_of_ones_own(smollm2, tmp_path, visitor):
    """The stored example at once; then a prompt that nobody ran before, all panels."""
    from ed_core.bench.browser import serving

    (tmp_path / "cache").mkdir()
    from ed_core import settings

    (tmp_path / "cache" / "converted").symlink_to(settings.current().cache / "converted")
    with serving(tmp_path / "cache") as app:
        page = visitor()
        page.goto(app.address)
        page.locator(".st-key-headline", has_text="best guess").wait_for()
        page.get_by_text("stored example").wait_for()
        page.get_by_text("Q4_1 in the file, computed in fp32").wait_for()
        box = page.get_by_label("Prompt", exact=True)
        wait(page, lambda: box.input_value().startswith("The capital of France"))
        settled(page)
        box.fill("The opposite of small is")
        box.blur()
        page.get_by_role("button", name="Run").click()
        wait(page, lambda: page.get_by_text("stored example").count() == 0 and finished(page))
