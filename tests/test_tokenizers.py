"""A local folder's own tokenizer is the one that is used, with its special tokens and chat template; and what the
preview shows of it."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from small_models import random_hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ed_core.errors import ModelNotFound, PromptError
from ed_core.models import tokens
from ed_core.models.bundled import MODELS
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.models.weights import content_hash
from ed_core.types import Prompt

TEXT = "5 + 7 = 12 fox."
VOCABULARY = "<unk> <s> </s> user 5 + 7 = 1 2 3 the quick brown fox . a ; b ?"
WORDS = VOCABULARY.split()
TEMPLATE = "{{ bos_token }}{% for m in messages %}user {{ m['content'] }}</s>{% endfor %}"
REPLACED = ("qwen2",)  # here the library builds the family's own tokenizer over the saved one


def save(folder, family, template=TEMPLATE):
    """A folder whose tokenizer splits words and digits, and adds a beginning."""
    random_hf(family).save_pretrained(folder)
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    own.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    saved = PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    saved.chat_template = template
    saved.save_pretrained(folder)
    return ModelRef.parse(str(folder))


def ids(text):
    return tuple(WORDS.index(word) for word in text.split())


@pytest.mark.parametrize("family", ("qwen2", "phi3", "llama"))
def test_the_folders_tokenizer_is_taken_with_its_special_tokens(family, tmp_path):
    spec = save(tmp_path / family, family)
    library = AutoTokenizer.from_pretrained(spec.place)
    assert (library.encode(TEXT, add_special_tokens=False) != list(ids("5 + 7 = 1 2 fox ."))) == (family in REPLACED)
    model = open_model(spec)
    assert model.encode(Prompt(TEXT)).ids == ids("<s> 5 + 7 = 1 2 fox .")
    assert model.encode(Prompt(TEXT, special_tokens=False)).ids == ids("5 + 7 = 1 2 fox .")
    typed = model.encode(Prompt("<s> fox"))
    assert typed.ids == ids("<s> fox") and any("no second one is added" in note for note in typed.notes)


def test_the_preview_shows_the_models_tokens_and_knows_the_special_ones(tmp_path):
    spec = save(tmp_path / "m", "qwen2")
    seen = tokens.preview(spec, Prompt(TEXT))
    assert seen.tokens == open_model(spec).encode(Prompt(TEXT)).tokens and seen.tokens[0] == "<s>"
    assert tokens.preview(spec, Prompt(TEXT, special_tokens=False)).tokens == seen.tokens[1:]
    assert {"<s>", "</s>"} <= tokens.special(spec) and "fox" not in tokens.special(spec)
    assert tokens.chats(spec) is True and tokens.preview(spec, Prompt(TEXT, template="chat")) is None


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_folder_without_a_tokenizer_is_refused(family, tmp_path):
    random_hf(family).save_pretrained(tmp_path)
    with pytest.raises(ModelNotFound, match=r"has no usable tokenizer: .*[Ee]xpected tokenizer.json next to"):
        open_model(ModelRef.parse(str(tmp_path)))


def test_a_model_without_a_chat_template_is_known_and_refuses(tmp_path):
    spec = save(tmp_path / "m", "llama", template=None)
    (tmp_path / "m" / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))  # a processor's
    spec = ModelRef.parse(spec.source)
    assert tokens.chats(spec) is False
    with pytest.raises(PromptError, match="no chat template"):
        open_model(spec).encode(Prompt("a", template="chat"))
    assert tokens.chats(ModelRef.parse("org/elsewhere", "fp32")) is None


@pytest.mark.parametrize(
    "names", [("rag",), ("rag", "tool_use"), pytest.param(("rag", "default"), marks=pytest.mark.process)]
)
def test_of_several_chat_templates_the_default_is_used(names, tmp_path):
    spec = save(tmp_path / "m", "llama")
    (tmp_path / "m" / "chat_template.jinja").unlink()
    settings = json.loads((file := tmp_path / "m" / "tokenizer_config.json").read_text())
    several = [{"name": name, "template": TEMPLATE if name == "default" else "a"} for name in names]
    file.write_text(json.dumps(settings | {"chat_template": several}))
    spec, usable = ModelRef.parse(spec.source), "default" in names
    assert tokens.chats(spec) is usable
    with nullcontext() if usable else pytest.raises(PromptError, match=f"{', '.join(names)} and no default"):
        assert open_model(spec).encode(Prompt("a", template="chat")).ids == ids("<s> user a </s>")


def test_the_template_switch_is_there_where_the_model_has_one(laboratory, tmp_path, monkeypatch):
    from test_pages import app

    for name, template in (("with", TEMPLATE), ("without", None)):
        save(tmp_path / name, "llama", template)
        monkeypatch.setitem(MODELS, name, tmp_path / name)
        test = app(model=name, prompt=Prompt("5 + 7"))
        assert not test.exception
        assert any(control.label == "Template" for control in test.button_group) == (template is not None)
        assert any("no chat template" in caption.value for caption in test.caption) == (template is None)
        assert any(":orange-background[`<s>`]" in m.value for m in test.markdown)


@pytest.mark.parametrize("name", ["vocab.txt", "spiece.model", "sentencepiece.bpe.model"])
def test_every_file_that_a_tokenizer_may_be_made_of_is_part_of_what_a_folder_holds(name, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = {content_hash(tmp_path, weights=False)}
    for text in ("a", "b"):
        (tmp_path / name).write_text(text)
        found.add(content_hash(tmp_path, weights=False))
    assert len(found) == 3
