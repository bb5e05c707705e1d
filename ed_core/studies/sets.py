"""The prompts of a set: from a local file, from the hub (by `datasets`), bundled, or made here. Torch-free."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from .. import bounds, machine, outside
from ..errors import ParameterError, PromptError, PromptFileError, StudyError
from ..files import expect, parse
from ..models import permits, tokens
from ..models.bundled import SETS, set_names
from ..models.ref import ModelRef
from ..prompts import check_length, check_text, fits, read_jsonl
from ..prompts import lines as written_lines
from ..types import Prompt
from .study import Columns, SetEntry, nearest

TABLES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


@dataclass(frozen=True)
class Example:
    """One prompt of a set. `level`: how hard it is, "" where the set has no levels. `pair`: prompts of different levels
    with one mark here belong together. `other`: the next prompt of its form with another answer, which is carried into
    it by a probe of two prompts; None where there is none."""

    prompt: Prompt
    level: str = ""
    pair: str = ""
    other: Prompt | None = None

    @property
    def form(self) -> str:
        """Which template its text was filled into, "" where into none."""
        return self.prompt.form


@dataclass(frozen=True)
class PromptSet:
    """A set as it is used. `left_out`: how many prompts were too long."""

    name: str
    examples: tuple[Example, ...]
    left_out: int = 0

    @property
    def levels(self) -> tuple[str, ...]:
        """Its levels, in their order."""
        return tuple(in_order(dict.fromkeys(e.level for e in self.examples if e.level)))


def in_order(levels: Iterable[str]) -> list[str]:
    """Levels by number where all of them are numbers, else as they come."""
    levels = list(levels)
    return sorted(levels, key=float) if all(map(NUMBER.fullmatch, levels)) else levels


def load(entry: SetEntry, folder: Path, tokenizer: str) -> PromptSet:
    """The set, as its entry chooses from it; paths are relative to `folder`. `StudyError` says what is missing.

    `tokenizer`: the model whose tokens `max_tokens` counts, unless the entry names one. Where prompts have forms, these
    take turns within each level, so that the first ones of a level are of as many forms as can be."""
    found = [e for e in _source(entry, folder) if e.prompt.answer or not entry.answered]
    levels = tuple(dict.fromkeys(e.level for e in found))
    if missing := [level for level in entry.levels if level not in levels]:
        there = f"has no level {missing[0]!r}; {nearest(missing[0], levels)}" if any(levels) else "has no levels."
        raise StudyError(f"The set {entry.name} {there}")
    if entry.per_level and not any(levels):
        raise StudyError(f"The set {entry.name} has no levels; give limit in place of per_level.")
    groups = {level: [e for e in found if e.level == level] for level in entry.levels or levels}
    for level, examples in groups.items():
        if entry.seed is not None:
            random.Random(entry.seed).shuffle(examples)
        groups[level] = in_turns(examples)
    short, chosen, left_out = _short(entry, tokenizer), [], 0
    for examples in groups.values():
        n = 0
        for example in examples:
            if n == entry.per_level:
                break
            if short(example.prompt):
                chosen.append(example)
                n += 1
            else:
                left_out += 1
    drawn = entry.seed is not None
    if not (entry.levels or entry.per_level or (drawn and entry.limit is None)):
        if drawn:
            random.Random(entry.seed).shuffle(found)
        turn = {level: iter([e for e in chosen if e.level == level]) for level in levels}
        taken = set(chosen)
        chosen = [next(turn[e.level]) for e in found if e in taken]  # levels in the order of the set, or drawn
    chosen = chosen[: entry.limit]
    if not chosen:
        within = f" of at most {entry.max_tokens} tokens" if entry.max_tokens else ""
        raise StudyError(f"The set {entry.name} holds no prompt{' with an answer' * entry.answered}{within}.")
    chosen = chosen if published(entry) else list(_one_text(chosen))
    return PromptSet(entry.name, tuple(_with_others(chosen)), left_out)


def _with_others(examples: Sequence[Example]) -> Iterator[Example]:
    """Each prompt with the next one of its form and level whose answer is another, the first ones following the
    last."""
    alike: dict[tuple[str, str], list[Prompt]] = defaultdict(list)
    for example in examples:
        alike[example.form, example.level].append(example.prompt)
    turns = {group: iter(_next_others(prompts)) for group, prompts in alike.items()}
    for example in examples:
        yield replace(example, other=next(turns[example.form, example.level]))


def _next_others(prompts: Sequence[Prompt]) -> list[Prompt | None]:
    """For each prompt the next one with another answer, the first ones following the last; None without one."""
    found: list[Prompt | None] = []
    later: Prompt | None = None
    answered = [prompt for prompt in prompts if prompt.answer]
    for prompt, following in zip(reversed(answered * 2), [None, *reversed(answered * 2)]):
        if following is not None and following.answer != prompt.answer:
            later = following
        found.append(later)
    of_answered = iter(found[: len(answered) - 1 : -1] if answered else [])
    return [next(of_answered) if prompt.answer else None for prompt in prompts]


def published(entry: SetEntry) -> str:
    """The published set that an entry's prompts are of, "" where they are of none."""
    return entry.format or (entry.hub if entry.hub in FORMATS else "")


def _one_text(examples: Sequence[Example]) -> Iterator[Example]:
    """Prompts without a form whose text is there more than once are of one: they are not independent."""
    texts = [repr(e.prompt.identity()) for e in examples]
    times, named = Counter(texts), {text: f"text {i}" for i, text in enumerate(dict.fromkeys(texts), 1)}
    for example, text in zip(examples, texts):
        if times[text] > 1 and not example.form:
            example = replace(example, prompt=replace(example.prompt, form=named[text]))
        yield example


def in_turns(examples: Sequence[Example]) -> list[Example]:
    """The first of each form, then the second of each, and so on; as they come where they have no forms, and within
    one."""
    seen: Counter[str] = Counter()
    rank = []
    for example in examples:
        rank.append(seen[example.form])
        seen[example.form] += 1
    return [examples[i] for i in sorted(range(len(rank)), key=rank.__getitem__)] if len(seen) > 1 else list(examples)


def tokenizer_of(name: str) -> ModelRef:
    """The model of that name, by the tokenizer of which prompts are counted."""
    return ModelRef.named(name)


def _short(entry: SetEntry, tokenizer: str) -> Callable[[Prompt], bool]:
    """Whether a prompt has no more tokens than the set takes."""
    spec = tokenizer_of(entry.tokenizer or tokenizer) if entry.max_tokens else None

    def short(prompt: Prompt) -> bool:
        if spec is None or entry.max_tokens is None:
            return True
        if not fits(prompt):
            return False
        if (found := tokens.preview(spec, prompt)) is None:
            raise StudyError(
                f"The set {entry.name} has max_tokens, and the tokens of {spec.name} cannot be counted before it is "
                "opened; give tokenizer, the name of a model whose tokenizer.json is here."
            )
        return len(found) <= entry.max_tokens

    return short


def _source(entry: SetEntry, folder: Path) -> Iterator[Example]:
    if entry.bundled:
        return _bundled(entry)
    if entry.hub:
        return _from_hub(entry)
    return _from_file(entry, folder)


def bundled_names() -> list[str]:
    """The sets that need nothing from elsewhere."""
    return [*set_names(), *ARITHMETIC]


def _bundled(entry: SetEntry) -> Iterator[Example]:
    if entry.bundled not in (known := bundled_names()):
        raise StudyError(
            f"The set {entry.name} asks for bundled prompts {entry.bundled!r}; {nearest(entry.bundled, known)}"
        )
    if entry.bundled in ARITHMETIC:
        for i, (text, answer, level) in enumerate(arithmetic(entry.bundled)):
            yield Example(Prompt(text, answer, f"{level}-{i}", entry.template, form=entry.bundled), level)
        return
    yield from _own_lines(SETS / f"{entry.bundled}.jsonl", entry)


def _from_file(entry: SetEntry, folder: Path) -> Iterator[Example]:
    file = folder / Path(entry.file).expanduser()
    permits.file(str(file))
    if not file.is_file():
        raise StudyError(f"The set {entry.name}: there is no file {entry.file} (looked for in {folder}).")
    if (kind := outside.ending(file)) not in TABLES:
        raise StudyError(
            f"The set {entry.name}: {entry.file} is a {kind or 'file without an extension'}; expected "
            f"{', '.join(TABLES)}."
        )
    if kind == ".jsonl" and not entry.columns and not entry.format:
        return _own_lines(file, entry)
    known = _format(entry) if entry.format else None
    return _rows(entry, *_table(entry, file), known)


def _own_lines(file: Path, entry: SetEntry) -> Iterator[Example]:
    """Lines as `prompts.read_jsonl` reads them, which may have `level` and `pair` besides."""
    try:
        prompts = read_jsonl(file)
    except PromptFileError as error:
        raise StudyError(f"The set {entry.name}: {error}") from None
    text = outside.text(file, bounds.PROMPTS, StudyError)
    lines = [json.loads(line) for _, line in written_lines(text)]
    for i, (prompt, line) in enumerate(zip(prompts, lines, strict=True)):
        template = entry.template if line.get("template") is None else prompt.template
        prompt = replace(prompt, id=prompt.id or str(i), template=template)
        yield Example(prompt, _text(line.get("level")), _text(line.get("pair")))


def _text(value: object) -> str:
    """A value as a prompt has it; one that is null, or no number where numbers are, is absent."""
    return "" if value is None or (isinstance(value, float) and isnan(value)) else str(value)


def _from_hub(entry: SetEntry) -> Iterator[Example]:
    known = _format(entry) if entry.format else FORMATS.get(entry.hub)
    if known is None and "/" not in entry.hub:
        raise StudyError(
            f"The set {entry.name} asks for {entry.hub!r} of the hub; {nearest(entry.hub, list(FORMATS))} Any other "
            "set is named as org/name, with columns."
        )
    name, config, split = (known.hub, known.config, known.split) if known else (entry.hub, "", "test")
    config, split = entry.config or config, entry.split or split
    permits.download(name)
    machine.require_package("datasets", f"The set {entry.name}")
    import datasets

    try:
        builder = datasets.load_dataset_builder(name, config or None)
        declared = max(builder.info.download_size or 0, builder.info.dataset_size or 0)
        if declared <= bounds.SET:
            builder.download_and_prepare()
            table = builder.as_dataset(split=split)
    except Exception as error:  # whatever the client, the network or the set's files answer
        raise StudyError(
            f"The set {entry.name} ({name}{f', {config}' if config else ''}, {split}) is unavailable from the hub "
            f"({type(error).__name__}: {_first_line(error)}). Try again where the hub answers, or give a local copy: "
            f"file = …{f', format = {entry.hub!r}' if entry.hub in FORMATS else ''}."
        ) from None
    if declared > bounds.SET or len(table) > bounds.LINES:
        raise StudyError(
            f"The set {entry.name} has {outside.size(declared)}, or more rows than {bounds.LINES}; name a part of it, "
            f"as split = 'test[:{bounds.LINES}]', or give a file of the prompts that are meant."
        )
    return _rows(entry, table.column_names, enumerate(table, 1), known)


def _format(entry: SetEntry) -> Format:
    if entry.format not in FORMATS:
        raise StudyError(
            f"The set {entry.name} has the format {entry.format!r}; {nearest(entry.format, list(FORMATS))}"
        )
    return FORMATS[entry.format]


def _table(entry: SetEntry, file: Path) -> tuple[Sequence[str], Iterable[tuple[int, Row]]]:
    """The columns of a file, and its rows, each with its number. Cells of a .csv are text: a reader that guesses types
    makes 7 of 007."""
    try:
        if (kind := outside.ending(file)) == ".parquet":
            with outside.opened(file, bounds.SET, StudyError) as handle:
                table = parquet.read_table(handle)
            return table.column_names, enumerate(table.to_pylist(), 1)
        text = outside.text(file, bounds.PROMPTS, StudyError)
        numbered = _csv_rows(text) if kind == ".csv" else _json_rows(text)
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        raise StudyError(
            f"The set {entry.name}: {entry.file} cannot be read as {TABLES[kind]} ({_first_line(error)})."
        ) from None
    return list(dict.fromkeys(name for row in numbered.values() for name in row)), numbered.items()


def _csv_rows(text: str) -> dict[int, dict[str, Any]]:
    csv.field_size_limit(bounds.TEXT)
    rows = {number: row for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), 1) if row}
    expect(bool(rows), "it is empty; expected a header, and a row per prompt below it")
    names = rows.pop(min(rows))
    if twice := next((name for name in names if name and names.count(name) > 1), ""):
        raise ValueError(f"two columns are called {twice[:80]!r}; give each a name of its own")
    if long := next((number for number, row in rows.items() if len(row) > len(names)), 0):
        found = f"row {long} has {len(rows[long])} cells and the header {len(names)}"
        raise ValueError(f"{found}; put a text with commas between double quotes")
    return {number: dict.fromkeys(names) | dict(zip(names, row)) for number, row in rows.items()}


def _json_rows(text: str) -> dict[int, dict[str, Any]]:
    """The objects of a JSON file, one per line or all in a list."""
    if text.lstrip().startswith("["):
        rows = dict(enumerate(parse(text.encode(), bounds.PROMPTS), 1))
    else:
        rows = {number: parse(line.encode(), bounds.PROMPTS) for number, line in written_lines(text)}
    expect(all(isinstance(row, dict) for row in rows.values()), "expected objects, one per line or all in a list")
    return rows


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _rows(
    entry: SetEntry, names: Sequence[str], rows: Iterable[tuple[int, Row]], known: Format | None
) -> Iterator[Example]:
    columns = entry.columns or Columns()
    needed = known.columns if known else tuple(filter(None, columns.model_dump().values()))
    if missing := [name for name in needed if name not in names]:
        raise StudyError(
            f"The set {entry.name} has no column {missing[0]!r}; it has {', '.join(names)}."
            + ("" if known else " Say which is which with columns = {text = …, answer = …}.")
        )
    for i, (number, row) in enumerate(rows):
        try:
            expect(i < bounds.LINES, f"more than {bounds.LINES} rows")
            yield _example(entry, defaultdict(type(None), row), known, columns, i)
        except (PromptError, ParameterError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}" if not isinstance(error, PromptError) else str(error)
            raise StudyError(f"The set {entry.name}, row {number}: {why}") from None


def _example(entry: SetEntry, row: Row, known: Format | None, columns: Columns, i: int) -> Example:
    def cell(name: str) -> str:
        return _text(row[name]) if name else ""

    for name in known.columns if known else ():
        if row[name] is None:
            raise PromptError(f"{name} is missing; expected a value in every row: add it, or leave the row out.")
    text, answer, level = known.write(row) if known else map(cell, (columns.text, columns.answer, columns.level))
    prompt = Prompt(text, answer, cell(columns.id) or str(i), entry.template, form=cell(columns.form))
    check_text(prompt)
    if not entry.max_tokens:
        check_length(prompt)
    return Example(prompt, level, cell(columns.pair))


# ---------------------------------------------------------------- the papers' formats

# Published prompt sets, their columns, and how the papers write a prompt of them: [C25] Csordás et al. 2025 (arXiv
# 2505.13898), [H25] Hu et al. 2025 (arXiv 2512.14064). Question and answer are encoded jointly, so what is between
# them belongs to the answer.


Row = Mapping[str, Any]
ASK = (
    "Given the following problem, reason and give a final answer to the problem.\n"
    'Problem: {}\nYour response should end with "{}" where [answer] is the response to the problem.\n'
)


@dataclass(frozen=True)
class Format:
    """A set on the hub and its prompts. `write`: a row → (text, answer, level). `columns`: those it needs. `prompts`:
    how many of its first prompts the paper takes."""

    hub: str
    split: str
    columns: tuple[str, ...]
    write: Callable[[Row], tuple[str, str, str]]
    source: str
    config: str = ""
    prompts: int = 10


def _list(row: Row, name: str) -> list[Any]:
    """A cell that has to be a list."""
    if not isinstance(found := row[name], list):
        raise PromptError(
            f"{name} is {str(found)[:40]!r}; expected a list. Cells of a .csv are text: give a .jsonl or .parquet."
        )
    return found


def gsm8k(row: Row) -> tuple[str, str, str]:
    """[H25] The rationale keeps its `<<…>>` marks."""
    rationale, marks, number = row["answer"].rpartition("####")
    if not marks:
        raise ValueError("an answer without ####")
    text = ASK.format(row["question"], "The final answer is [answer]")
    return text, f"\n{rationale}The final answer is {number.strip()}", ""


def hellaswag(row: Row) -> tuple[str, str, str]:
    """[H25] The right ending, behind a space unless it begins with a comma."""
    ending = _list(row, "endings")[int(row["label"])]
    return row["ctx"], ("" if ending.startswith(",") else " ") + ending, ""


def aime24(row: Row) -> tuple[str, str, str]:
    """[H25]"""
    return ASK.format(row["Problem"], r"\boxed{[answer]}"), f"\n{row['Solution']}", ""


def math(row: Row) -> tuple[str, str, str]:
    """[C25 §5] Levels 1 to 5."""
    return f"Problem: {row['problem']}\nAnswer:", f" {row['solution']}", str(row["level"]).removeprefix("Level ")


def mquake(row: Row) -> tuple[str, str, str]:
    """[C25 §5] The level is the number of hops."""
    question = _list(row, "questions")[0]
    triples = _list(row, "orig_triples") if row.get("orig_triples") is not None else _list(row["orig"], "triples")
    return f"Question: {question}\nAnswer:", f" {row['answer']}", str(len(triples))


FORMATS: dict[str, Format] = {
    "gsm8k": Format("openai/gsm8k", "test", ("question", "answer"), gsm8k, "H25", "main"),
    "hellaswag": Format("Rowan/hellaswag", "validation", ("ctx", "endings", "label"), hellaswag, "H25"),
    "aime24": Format("Maxwell-Jia/AIME_2024", "train", ("Problem", "Solution"), aime24, "H25", prompts=5),
    "math": Format(
        "EleutherAI/hendrycks_math",
        "test",
        ("problem", "solution", "level"),
        math,
        "C25 §5",
        "intermediate_algebra",
        20,
    ),
    "mquake": Format(
        "henryzhongsc/MQuAKE-Remastered",
        "CF3k",
        ("questions", "answer"),
        mquake,
        "C25 §5",
        prompts=20,
    ),
}
ARITHMETIC = {"direct_addition": "+", "direct_multiplication": "*"}  # made here, by number of digits [H25]
DIGITS = ("1", "2", "3", "4", "5")
EACH = 100  # made of each number of digits


def arithmetic(name: str) -> Iterator[tuple[str, str, str]]:
    """Sums or products of two numbers of n digits, operands in `[10^(n-1), 10^n - 1]`; the same every time."""
    sign = ARITHMETIC[name]
    for digits in DIGITS:
        drawn, n = random.Random(f"{name} {digits}"), int(digits)
        for _ in range(EACH):
            a, b = (drawn.randint(10 ** (n - 1), 10**n - 1) for _ in range(2))
            yield f"Give the answer directly: {a} {sign} {b} =", f" {a + b if sign == '+' else a * b}", digits


def split_points(how: str, answer_start: int, n_tokens: int) -> tuple[int, ...]:
    """[C25 §5] The split points of a prompt by its answer: "answer" its first token; "within_answer" the first four of
    `range(0, A - 4, 4)` shuffled (seed 12345), counted from it, A being the answer's length; () where A is at most 4:
    such prompts are refused."""
    if how == "answer":
        return (answer_start,)
    length = n_tokens - answer_start
    if length <= 4:
        return ()
    drawn = list(range(0, length - 4, 4))
    random.Random(12345).shuffle(drawn)
    return tuple(answer_start + at for at in drawn[:4])
