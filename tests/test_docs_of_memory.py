"""The examples of the pages on a model in memory, on training and on other tools say what they say there; README's
lines run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from small_models import byte_tokenizer, random_hf
from transformers import Trainer, TrainingArguments, default_data_collator

import ed_core

ROOT = Path(__file__).parent.parent


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("page", ["memory", "training", "bridges"])
def test_the_examples_of_the_page_say_what_they_say_there(page, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    text, space = (ROOT / "docs" / "studies" / f"{page}.md").read_text(encoding="utf-8"), {}
    _, *parts = re.split(r"```python\n(.*?)```", text, flags=re.DOTALL)
    for program, behind in zip(parts[::2], parts[1::2], strict=True):
        exec(program, space)
        said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
        assert said and [line[4:] for line in behind.splitlines() if line[:4] == "    "] == said


def test_the_lines_of_the_readme_run(tmp_path):
    _, code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 200, (4, 8))]
    args = TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, report_to=[], save_strategy="no")
    model, tokenizer = random_hf("llama"), byte_tokenizer()
    more = dict(processing_class=tokenizer, data_collator=default_data_collator)
    trainer = Trainer(model, args, train_dataset=data, **more)
    space = dict(ed_core=ed_core, model=model, tokenizer=tokenizer, trainer=trainer, prompts=["5 + 7 = ", "aaa"])
    exec(code, space)
    assert len(space["table"]) == 6 and (space["table"].difference != 0).any()
    assert (tmp_path / "depth" / "rows.csv").is_file()
