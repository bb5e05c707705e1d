"""Models whose answers are known before anything is computed: silent, echoing, constant and linear blocks, written down
by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import byte_tokenizer, random_model
from torch import nn
from transformers import PretrainedConfig

from ed_core.models.architecture import Architecture
from ed_core.models.language_model import LanguageModel
from ed_core.models.verify import verify
from ed_core.probes import Contributions, LayerSkip, LogitLens, Patching
from ed_core.results.aggregate import aggregate
from ed_core.types import ModelSpec, Prompt

PROMPT = Prompt("The quick brown fox")  # 19 tokens
N_TOKENS, D_MODEL = 19, 8


class Sublayer(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, hidden):
        return self.write(hidden)


class Block(nn.Module):
    def __init__(self, attn, mlp):
        super().__init__()
        self.attn, self.mlp = Sublayer(attn), Sublayer(mlp)

    def forward(self, hidden_states):
        hidden = hidden_states + self.attn(hidden_states)
        return hidden + self.mlp(hidden)


class Stack(nn.Module):
    """Random embeddings, the given blocks, no norm, a random head: `blocks` are pairs of functions of the stream."""

    def __init__(self, blocks, head=None):
        super().__init__()
        torch.manual_seed(0)
        self.config = PretrainedConfig(hidden_size=D_MODEL)
        self.embed = nn.Embedding(256, D_MODEL)
        self.blocks = nn.ModuleList(Block(*pair) for pair in blocks)
        self.norm = nn.Identity()
        self.head = nn.Linear(D_MODEL, 11, bias=False)
        if head is not None:
            self.head.weight.data = head

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, use_cache):
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return SimpleNamespace(logits=self.head(self.norm(hidden)))


def stack(*blocks, head=None) -> LanguageModel:
    described = Architecture("Stack", ("stack",), blocks="blocks", final_norm="norm", attn="attn")
    model = LanguageModel(Stack(blocks, head), byte_tokenizer(), described, ModelSpec("stack", content_hash="stack"))
    verify(model).require(described)
    return model


def nothing(hidden):
    return torch.zeros_like(hidden)


def echo(c):
    return lambda hidden: c * hidden


def constant(vector):
    return lambda hidden: vector.expand_as(hidden)


def linear(matrix):
    return lambda hidden: hidden @ matrix.T


def before(matrix):
    """Attention to the token before, nothing else: the first token has none."""
    return lambda hidden: torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1) @ matrix.T


def unit(i):
    return torch.eye(D_MODEL)[i]


def silence(model, layers):
    """No attention and no MLP writes anything in these blocks of a Llama."""
    with torch.no_grad():
        for layer in layers:
            model.blocks[layer].self_attn.o_proj.weight.zero_()
            model.blocks[layer].mlp.down_proj.weight.zero_()
    return model


def is_close(found, expected, at_most=2e-6):
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-5, atol=at_most)


def test_silent_blocks_contribute_nothing_and_nobody_misses_them(measure):
    model = silence(random_model("llama"), range(5))
    written = measure(model, Contributions(), PROMPT)
    for name in ("attn_ratio", "mlp_ratio", "layer_ratio", "attn_cos", "mlp_cos", "layer_cos", "attn_norm", "mlp_norm"):
        assert not written[name].any(), name
    is_close(written["io_cos"], 1)
    is_close(written["block_influence"], 0)
    lens = measure(model, LogitLens(), PROMPT)
    is_close(lens["kl"], 0)
    is_close(lens["jsd"], 0)
    assert (lens["overlap"] == 1).all() and (lens["rank"] == 1).all() and not lens["settle_depth"].any()
    for part in ("layer", "attention", "mlp"):
        skipped = measure(model, LayerSkip(part=part), PROMPT)
        assert not skipped["effect"].any() and (skipped["top1_kept"] == 1).all()
        is_close(skipped["output"], 0)


@pytest.mark.parametrize("loud", [0, 2, 4])
def test_the_only_block_that_writes_is_the_only_one_missed(measure, loud):
    model = silence(random_model("llama"), set(range(5)) - {loud})
    skipped = measure(model, LayerSkip(), PROMPT)
    is_close(skipped["effect"], np.diag(np.arange(5) == loud).astype(float))
    assert skipped["output"].argmax() == loud and skipped["output"][loud] > 1e-3
    is_close(np.delete(skipped["output"], loud), 0)
    lens = measure(model, LogitLens(), PROMPT)
    is_close(lens["kl"][loud + 1 :], 0)
    assert (lens["kl"][: loud + 1].max(-1) > 1e-3).all()


@pytest.mark.parametrize("c", [0.5, 3.0, -0.25, -1.5])
def test_an_echo_has_cosine_one_with_the_sign_of_its_factor_and_that_ratio(measure, c):
    found = measure(stack((echo(c), nothing), (nothing, echo(c)), (echo(c), echo(c))), Contributions(), PROMPT)
    is_close(found["attn_ratio"], np.abs([[c], [0], [c]]))
    is_close(found["mlp_ratio"], np.abs([[0], [c], [c]]))
    is_close(found["layer_ratio"], np.abs([[c], [c], [c * (2 + c)]]))
    is_close(found["attn_cos"], np.sign([[c], [0], [c]]))
    is_close(found["mlp_cos"], np.sign([[0], [c], [c]]))
    is_close(found["layer_cos"], np.sign([[c], [c], [c * (2 + c)]]))
    is_close(found["io_cos"], np.sign([[1 + c], [1 + c], [1]]))
    is_close(found["block_influence"], 1 - np.sign([[1 + c], [1 + c], [1]]))
    growth = np.abs(np.cumprod([1, 1 + c, 1 + c, (1 + c) ** 2]))
    is_close(found["resid_norm"] / found["resid_norm"][0], growth[:, None])


def test_the_future_sees_exactly_what_was_carried_over_the_boundary(measure):
    """Block 0 writes coordinate 0; block 1 carries it to the next token; block 2 reads it there, and only block 2 can
    notice."""
    carry = torch.zeros(D_MODEL, D_MODEL)
    carry[1, 0] = 1
    read = torch.zeros(D_MODEL, D_MODEL)
    read[2, 1] = 1
    model = stack((nothing, constant(3 * unit(0))), (before(carry), nothing), (nothing, linear(read)))
    with torch.no_grad():
        model.hf.embed.weight.fill_(1.0)
    # In every token after the first: D[1] = (1 + 3) e1 and D[2] = (1 + 4) e2. Without block 0 before the boundary, the
    # boundary token alone gets 1 instead of 4 from its neighbour; without block 1, 0 on its own, but its neighbour's is
    # its own affair.
    found = measure(model, LayerSkip(mode="future", boundaries=(6,)), PROMPT)
    is_close(found["effect"], np.array([[0, 3 / 4, 3 / 5], [0, 0, 0], [0, 0, 0]]))
    current = measure(model, LayerSkip(), PROMPT)
    is_close(current["effect"], np.array([[1, 3 / 4, 3 / 5], [0, 1, 4 / 5], [0, 0, 1]]))
    is_close(measure(model, LayerSkip(mode="future", boundaries=(2,)), PROMPT)["effect"], found["effect"])


@pytest.mark.parametrize("layer", [0, 5, 6, 7])
def test_a_lens_that_settles_where_the_answer_is_written(measure, layer):
    """One block of eight writes the answer's direction; every token starts out predicting something else."""
    blocks = [(nothing, nothing)] * 8
    blocks[layer] = (constant(20 * unit(3)), nothing)
    model = stack(*blocks, head=torch.eye(11, D_MODEL))
    with torch.no_grad():
        model.hf.embed.weight.copy_(10 * unit(1) + unit(3))
    probe = LogitLens(k=2)
    found = measure(model, probe, PROMPT)
    behind = np.arange(9)[:, None] > layer
    is_close(found["top1_match"], behind)
    is_close(found["rank"], np.where(behind, 1, 2))
    is_close(found["overlap"], 1)  # the same two tokens, in the other order
    assert (found["settle_depth"] == layer + 1).all()
    assert (found["top_ids"][:, :, 0] == np.where(behind, 3, 1)).all() and set(found.token_text) == {1, 3}

    def distribution(at_one, at_three):
        logits = np.zeros(11)
        logits[[1, 3]] = at_one, at_three
        return np.exp(logits) / np.exp(logits).sum()

    early, late = distribution(10, 1), distribution(10, 21)
    middle = (early + late) / 2
    is_close(found["kl"], np.where(behind, 0, (early * np.log(early / late)).sum()))
    is_close(
        found["jsd"], np.where(behind, 0, (early * np.log2(early / middle) + late * np.log2(late / middle)).sum() / 2)
    )
    is_close(found["entropy"], np.where(behind, -(late * np.log(late)).sum(), -(early * np.log(early)).sum()))
    is_close(found["top_probs"][0, :, 0], early[1])
    summed = aggregate(probe, [found.summary])
    is_close(summed["mrr"], np.where(behind[:, 0], 1, 1 / 2))
    is_close(summed["settle_depth"], layer + 1)
    is_close(summed["deep_thinking_ratio"], layer + 1 >= 7)  # ceil(0.85 * 8) = 7


@pytest.mark.parametrize("k", range(6))
def test_an_answer_that_block_k_copies_is_committed_behind_it(measure, k):
    """Position 1 knows the answer; block k copies it to the last one, whose head reads it. Whole numbers: exact."""

    def copy(hidden):
        added = torch.zeros_like(hidden)
        added[:, -1, 4:] = hidden[:, 1, :4]
        return added

    silent = (torch.zeros_like, torch.zeros_like)
    blocks = [(copy, torch.zeros_like) if layer == k else silent for layer in range(6)]
    model = stack(*blocks, head=torch.eye(11, D_MODEL).roll(4, 1) * 10)
    with torch.no_grad():
        model.hf.embed.weight.zero_()
        for token in range(4):
            model.hf.embed.weight[model.encode(Prompt("abcd"[token])).ids[0], token] = 1
    found = measure(model, Patching(Prompt("xcy")), Prompt("xby"))
    arrived = np.arange(7) > k
    assert float(found["commitment"]) == k + 1
    np.testing.assert_array_equal(found["patch"], np.stack([0 * arrived, ~arrived, arrived], 1).astype(float))
    np.testing.assert_array_equal(found["last"], arrived.astype(float))
    np.testing.assert_array_equal(found["self"], 0)
