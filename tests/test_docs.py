"""CONTRIBUTING's walk works as it is written, the documentation's lists are complete, its examples say what they say
there, and README's lines run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from small_models import byte_tokenizer, random_hf
from transformers import Trainer, TrainingArguments, default_data_collator

import ed_core
from ed_core import errors, notebook
from ed_core.probes import PROBES

ROOT = Path(__file__).parent.parent


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_first_contribution_works_as_written(tmp_path):
    """Steps 1 to 3, in a copy; `test_toy_probe.py` takes another probe through pages, comparison and export."""
    for name in ("ed_core", "tools", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("demo", "data", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    walk = read("CONTRIBUTING.md")
    written = re.findall(r"Write `([^`]+)`:\n\n```python\n(.*?)```", walk, re.DOTALL)
    assert [name for name, _ in written] == ["ed_core/probes/steps.py", "tests/test_steps.py", "pages/prompt/steps.py"]
    for name, text in written[:2]:
        (tmp_path / name).write_text(text)
    line, entry = re.search(r"add `(from [^`]+)` to the imports\nand `([^`]+)` to the end of `PROBES`", walk).groups()
    registry = tmp_path / "ed_core" / "probes" / "__init__.py"
    text = registry.read_text().replace("from .surgery", f"{line}\nfrom .surgery")
    registry.write_text(text.replace("\n)\n\n\ndef find", f"\n    {entry}\n)\n\n\ndef find"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", written[1][0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_python_page_lists_what_ed_core_offers():
    listed = set(re.findall(r"^::: ed_core\.(?:\w+\.)*(\w+)$", read("docs/api.md"), re.MULTILINE))
    branches = {name for name, error in errors.BY_NAME.items() if errors.EffectiveDepthError in error.__bases__}
    assert listed >= {*notebook.offered(), "Model", "Result", *(probe.__name__ for probe in PROBES), *branches}
    assert set(re.findall(r"── (\w+)", errors.__doc__)) == set(errors.BY_NAME) - {"EffectiveDepthError"}


def test_the_menu_of_the_documentation_holds_every_page():
    def files(nav):
        return [
            f
            for entry in nav
            for value in entry.values()
            for f in ([value] if isinstance(value, str) else files(value))
        ]

    text = re.sub(r"!!python\S+", "", read("mkdocs.yml"))
    listed = set(files(yaml.safe_load(text)["nav"]))
    there = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert listed == {name for name in there if not name.startswith("cards/")}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "docs/index.md"])
def test_files_that_are_named_exist(name):
    text, folder = read(name), (ROOT / name).parent
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    paths = re.findall(r"`((?:docs|tests|tools|ed_core|ed_ui|pages)/[\w./-]+)`", text)
    made = {"ed_core/probes/steps.py", "tests/test_steps.py", "pages/prompt/steps.py"}  # by the walk
    assert not [link for link in links if not (folder / link).exists()]
    assert not [path for path in paths if path not in made and not (ROOT / path).exists()]


def test_the_folder_of_results_says_of_each_thing_in_it_whether_it_may_go():
    files = [file for top in ("ed_core", "ed_ui") for file in (ROOT / top).rglob("*.py")]
    made = {n for file in files for n in re.findall(r"\.cache / \"([\w.]+)\"", file.read_text(encoding="utf-8"))}
    told = set(re.findall(r"`([\w.]+)/?`", read("cache/README.md")))
    assert made >= {"studies", "cards", "claims"} and made <= told


def test_workflows_run_targets_that_exist_on_the_supported_versions():
    targets = set(" ".join(re.findall(r"^([a-z][a-z -]*):", read("Makefile"), re.MULTILINE)).split())
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = file.read_text(encoding="utf-8")
        assert yaml.safe_load(text)["jobs"] and set(re.findall(r"make ([a-z-]+)", text)) <= targets
    versions = yaml.safe_load(read(".github/workflows/tests.yml"))["jobs"]["tests"]["strategy"]["matrix"]["python"]
    needed = tomllib.loads(read("pyproject.toml"))["project"]["requires-python"]
    assert needed == f">={versions[0]}"
    assert re.search(r"rev: v(\S+)", read(".pre-commit-config.yaml"))[1] in read("requirements.txt")


@pytest.mark.parametrize("page", ["memory", "training", "bridges", "halves"])
def test_the_examples_of_the_page_say_what_they_say_there(page, own_cache, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    text, space = read(f"docs/studies/{page}.md"), {}
    _, *parts = re.split(r"```python\n(.*?)```", text, flags=re.DOTALL)
    for program, behind in zip(parts[::2], parts[1::2], strict=True):
        exec(program, space)
        said = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
        assert said and [line[4:] for line in behind.splitlines() if line[:4] == "    "] == said


def test_the_lines_of_the_readme_run(own_cache, tmp_path):
    _, code = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 200, (4, 8))]
    args = TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, report_to=[], save_strategy="no")
    model, tokenizer = random_hf("llama"), byte_tokenizer()
    more = dict(processing_class=tokenizer, data_collator=default_data_collator)
    trainer = Trainer(model, args, train_dataset=data, **more)
    space = dict(ed_core=ed_core, model=model, tokenizer=tokenizer, trainer=trainer, prompts=["5 + 7 = ", "aaa"])
    exec(code, space)
    assert len(space["table"]) == 6 and (space["table"].difference != 0).any()
    assert (tmp_path / "depth" / "rows.csv").is_file()
