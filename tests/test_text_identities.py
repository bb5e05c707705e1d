"""Identities of the text: what goes into a model is what was typed, or a note or a refusal says what is not.

One test a kind: tokens, special tokens, doubles, template, round trip, seam, answer's space, labels, causality, head,
positions; and refusals that are true."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import random_hf, random_model
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import ed_core
from ed_core.errors import EffectiveDepthError, PromptError
from ed_core.models import chat, tokens
from ed_core.models.encoder import Encoder
from ed_core.models.ref import ModelRef
from ed_core.types import Prompt

pytestmark = pytest.mark.usefixtures("own_cache")
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ADDS_BOS = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 256)])


def byte_level(split: str | None = None, merges=(), post=None, normalizer=None) -> Tokenizer:
    """A byte-level tokenizer with `<s>` (256) and `</s>`, and a few merges."""
    vocab = {c: i for i, c in enumerate(BYTES)} | {"<s>": 256, "</s>": 257}
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    made = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    parts = [levels] if split is None else [pre_tokenizers.Split(Regex(split), behavior="isolated"), levels]
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(parts), decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    if post is not None:
        made.post_processor = post
    if normalizer is not None:
        made.normalizer = normalizer
    return made


def written(model, folder, tokenizer: Tokenizer | None = None) -> None:
    model.save_pretrained(folder)
    of_text = PreTrainedTokenizerFast(tokenizer_object=tokenizer or byte_level(), bos_token="<s>", eos_token="</s>")
    of_text.save_pretrained(folder)


def saved(folder, tokenizer: Tokenizer | None = None, family: str = "llama", settings=None, **overrides):
    """A small random model with this tokenizer; `settings`: more fields of tokenizer_config.json."""
    written(random_hf(family, **{"vocab_size": 300, **overrides}), folder, tokenizer)
    patched(folder / "tokenizer_config.json", **(settings or {}))
    return folder


def patched(file, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_tokens_are_those_of_the_file(tmp_path):
    tokenizer = byte_level(SPLIT, [("2", "0"), ("20", "2"), ("Ċ", "Ċ"), ("'", "T")])
    folder = saved(tmp_path / "m", tokenizer, settings={"tokenizer_class": "GPT2Tokenizer"})
    text = "In 2023\n\nDON'T"
    result = ed_core.open(str(folder)).run(ed_core.LogitLens(), text)
    assert list(result.token_ids) == tokenizer.encode(text, add_special_tokens=False).ids
    assert any("tokenizer.json" in note for note in result.notes)
    assert tokens.preview(ModelRef.named(str(folder)), Prompt(text)).ids == result.token_ids
    assert result.provenance["text"]["tokens_differ"] > 0


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("asked", [True, False, None])
def test_bos_is_there_exactly_where_the_configuration_asks_for_it(adds, asked):
    found = Encoder(byte_level(post=ADDS_BOS if adds else None), "<s>", asked).encode("Hi you")
    expected = adds if asked is None else asked
    assert (found.tokens[0] == "<s>") == expected
    assert bool(found.notes) == (asked is not None and asked != adds)
    assert Encoder(byte_level(post=ADDS_BOS), "<s>", True).encode("Hi", special_tokens=False).tokens == ("H", "i")


@pytest.mark.parametrize("asked", [True, None])
def test_a_pasted_bos_is_not_doubled(asked):
    encoder = Encoder(byte_level(post=ADDS_BOS), "<s>", asked)
    found = encoder.encode("<s>Hi", answer=" you")
    assert found.tokens[:3] == ("<s>", "H", "i") and len(found.notes) == 1
    assert found.tokens[found.answer_start] == " "


def test_a_tokenizer_in_memory_keeps_the_bos_that_its_files_ask_for(tmp_path):
    folder = saved(tmp_path, settings={"add_bos_token": True})
    given = (each.from_pretrained(folder) for each in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer))
    assert ed_core.open(*given).run(ed_core.LogitLens(), "Hi").tokens == ("<s>", "H", "i")


def test_the_text_comes_back_or_a_note_says_what_became_what():
    assert not Encoder(byte_level()).encode("Ünï  code\n 好 ").notes
    (note,) = Encoder(byte_level(normalizer=normalizers.Lowercase())).encode("the Paris metro").notes
    assert "'Paris' becomes 'paris'" in note


def test_a_text_that_a_tokenizer_cannot_encode_is_refused():
    with pytest.raises(PromptError, match="cannot encode"):
        Encoder(Tokenizer(models.WordLevel({"hi": 0}))).encode("you")


def test_question_and_answer_that_share_a_token_are_named():
    encoder = Encoder(byte_level(r"[\s\S]+", [("=", "7")]))
    found = encoder.encode("3+4=", "7")
    assert found.tokens[found.answer_start] == "=7" and any("'=7'" in note for note in found.notes)
    assert not encoder.encode("3+4= ", "7").notes
    ends = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 257)])
    trimmed = byte_level(r"[\s\S]+", [("Ġ", "7")], post=processors.ByteLevel(trim_offsets=True))
    assert any("meet" in note for note in Encoder(trimmed).encode("3+4= ", "7").notes)
    (note,) = Encoder(byte_level(post=ends)).encode("3+4= ", "7").notes
    assert "adds </s>" in note, "an end is no part of the question"


@pytest.mark.parametrize(
    ("text", "answer", "note"),
    [
        ("The capital of France is", "Paris", True),
        ("The capital of France is", " Paris", False),
        ("The capital of France is ", "Paris", False),
        ("5 + 7 =", "12", False),
        ("法国的首都是", "巴黎", False),
        ("It costs 4", "2", True),
    ],
)
def test_an_answer_that_runs_into_its_question_gets_a_note(text, answer, note):
    notes = Encoder(byte_level()).encode(text, answer).notes
    assert any("without a space" in one for one in notes) == note


def sentencepiece_like() -> Tokenizer:
    pieces = ["<unk>", "▁Paris", "Paris", "<0xE2>", "<0x0A>", "\n", "a", "▁a"]
    made = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>"))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


@pytest.mark.parametrize("tokenizer", [byte_level(merges=[("Ġ", "a"), ("Ã", "¼")]), sentencepiece_like()])
def test_no_two_ids_have_one_label(tokenizer):
    encoder, n = Encoder(tokenizer), tokenizer.get_vocab_size() + 2
    assert len({encoder.label(i) for i in range(n)}) == n
    assert encoder.label(n) == f"[id {n}]"


def test_labels_show_spaces_and_bytes():
    encoder = Encoder(sentencepiece_like())
    assert [encoder.label(i) for i in (1, 2, 3, 4)] == [" Paris", "Paris", "<0xE2>", "<0x0A>"]
    bytewise = Encoder(byte_level())
    assert [bytewise.label(i) for i in bytewise.tokenizer.encode("é").ids] == ["<0xC3>", "<0xA9>"]


PARTS = (
    "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] if c['type'] == 'text' }}{% endfor %}{% endfor %}"
)
PLAIN = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"


@pytest.mark.process
@pytest.mark.parametrize(
    ("template", "notes", "written"),
    [
        (PLAIN, 0, " What is 2+2?"),
        (PARTS, 0, " What is 2+2?"),
        (PLAIN.replace("['content']", "['content'] | trim"), 1, "What is 2+2?"),
        (PLAIN.replace("['content']", "['content'] | upper"), 1, "WHAT IS 2+2?"),
        ("{{ strftime_now('%d %b %Y') }}" + PLAIN, 1, "26 Jul 2024<user> What"),
    ],
)
def test_the_users_text_arrives_in_the_chat(template, notes, written):
    found, said = chat.render(template, " What is 2+2?", {"bos_token": "<s>"}, 1000)
    assert written in found and len(said) == notes


@pytest.mark.process
@pytest.mark.parametrize(
    "template",
    [
        "hello",
        PLAIN.replace("['content']", "['content'][:3]"),  # of parts, a list
        "What is 2+2?",
        "{{ raise_exception('no') }}",
        "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_chat_without_the_users_text_is_refused(template):
    with pytest.raises(PromptError, match="cannot be used: .+; use the prompt as raw text instead"):
        chat.render(template, "What is 2+2?", {}, 1000)


def refusal(folder, **options) -> str:
    with pytest.raises(EffectiveDepthError) as refused:
        ed_core.open(str(folder), **options).run(ed_core.LogitLens(), "Hi you")
    return str(refused.value)


def test_a_model_that_reads_both_ways_is_refused(tmp_path):
    folder = saved(tmp_path / "m", family="gemma3", use_bidirectional_attention=True)
    assert "not causal" in refusal(folder)


def test_a_model_without_a_head_is_refused_without_advice_to_download(tmp_path):
    written(random_hf("qwen3", num_hidden_layers=2, tie_word_embeddings=False).model, tmp_path)
    assert "no output head" in (why := refusal(tmp_path)) and "ownload" not in why


def test_a_head_that_only_the_configuration_ties_gets_a_note(tmp_path):
    folder = saved(tmp_path / "m", tie_word_embeddings=True)
    assert not ed_core.open(str(folder)).run(ed_core.LogitLens(), "Hi you").notes
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.randn_like(weights["model.embed_tokens.weight"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    result = ed_core.open(str(folder)).run(ed_core.LogitLens(), "Hi you")
    assert any("tied" in note for note in result.notes) and result.provenance["text"]["tied"] is False


def test_weights_that_no_layer_uses_get_a_note(tmp_path):
    patched(saved(tmp_path) / "config.json", num_hidden_layers=2)
    (note,) = ed_core.open(str(tmp_path)).run(ed_core.LogitLens(), "Hi you").notes
    assert "model.layers.2." in note and "not used" in note


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}, "awq"),
        ({"quantization_config": {"quant_method": "torchao", "quant_type": "int8wo"}}, "torchao"),
        ({"quantization_config": {"group_size": 32, "bits": 4}}, "mlx"),
        ({"model_type": "frobnicate"}, "'frobnicate'"),
        ({"model_type": "clip"}, "no class that writes text"),
        ({"layer_types": ["full_attention"]}, "layer_types.*Correct it there"),
        ({"num_hidden_layers": 6, "layer_types": ["full_attention"] * 6}, "missing.*one checkpoint"),
        ({"num_hidden_layers": 0, "layer_types": []}, "asks for 0 layers"),
        ({"vocab_size": 999}, "other shapes.*one checkpoint"),
        ({"hidden_act": "frobnicate"}, "KeyError: 'frobnicate'"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_advises_no_download(tmp_path, changes, said):
    patched(saved(tmp_path, family="qwen3") / "config.json", **changes)
    assert re.search(said, why := refusal(tmp_path, precision="auto")) and "ownload" not in why


def test_the_text_decoder_of_a_vision_model_is_measured(tmp_path):
    text = dict(
        model_type="mistral", hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=300, max_position_embeddings=256,
    )  # fmt: skip
    vision = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.Mistral3Config(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    written(transformers.AutoModelForImageTextToText.from_config(config), tmp_path)
    result = ed_core.open(str(tmp_path)).run(ed_core.LogitLens(), "Hi you")
    assert result.n_layers == 2 and any("text decoder" in note for note in result.notes)


def test_a_hybrid_family_is_judged_by_its_layers(tmp_path):
    made = transformers.GraniteMoeHybridConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300, layer_types=["attention"] * 2, num_local_experts=0, shared_intermediate_size=64,
        position_embedding_type="rope", mamba_n_heads=8,
    )  # fmt: skip
    torch.manual_seed(0)
    written(transformers.AutoModelForCausalLM.from_config(made), tmp_path)
    assert ed_core.open(str(tmp_path)).run(ed_core.LogitLens(), "Hi you").complete
    patched(tmp_path / "config.json", layer_types=["attention", "mamba"])
    assert "instead of attention" in refusal(tmp_path)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_writing_past_a_change_of_rope_scaling_equals_reading_anew(model_of, kind):
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 12}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    model = random_model("llama", rope_parameters=rope, max_position_embeddings=12 if kind == "dynamic" else 64)
    ids, written = model.tensor(tuple(range(40, 48))), []

    def choose(step, logits):
        written.append(logits)
        return 50 + step

    model.write(ids, 8, choose)
    for step, logits in enumerate(written):
        whole = torch.tensor([[*range(40, 48), *range(50, 50 + step)]])
        torch.testing.assert_close(logits, model.logits(whole)[0, -1], rtol=1e-4, atol=1e-4)
