"""The prompts of a set: from a local file, from the hub (by `datasets`), bundled, or made here. Torch-free."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from .. import machine, untrusted
from ..errors import ParameterError, PromptError, PromptFileError, StudyError
from ..files import expect
from ..models import permits, tokens
from ..models.bundled import SETS, set_names
from ..models.ref import ModelRef
from ..prompts import check_length, check_text, fits, lines, read_jsonl
from ..types import Prompt, from_json
from .study import Columns, SetEntry, nearest

TABLES = (".jsonl", ".json", ".csv", ".parquet")
NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """One prompt of a set. `level`: how hard it is, "" where the set has no levels. `pair`: prompts of different levels
    with one mark here belong together. `other`: the next prompt of its form with another answer, which is carried into
    it by a probe of two prompts; None without."""

    prompt: Prompt
    level: str = ""
    pair: str = ""
    other: Prompt | None = None

    @property
    def form(self) -> str:
        """The template that the prompt's text was filled into, "" where into none."""
        return self.prompt.form


@dataclass(frozen=True)
class PromptSet:
    """The prompts that are used of a set. `left_out`: how many were longer than its `max_tokens`."""

    name: str
    examples: tuple[Example, ...]
    left_out: int = 0

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of difficulty of the prompts, in order."""
        return tuple(in_order(dict.fromkeys(e.level for e in self.examples if e.level)))


def in_order(levels: Iterable[str]) -> list[str]:
    """Return levels sorted by number where all of them are numbers, else as they come."""
    levels = list(levels)
    return sorted(levels, key=float) if all(map(NUMBER.fullmatch, levels)) else levels


# ---------------------------------------------------------------- chosen


def load(entry: SetEntry, folder: Path, tokenizer: str) -> PromptSet:
    """Return the prompts that a set's entry chooses; paths are relative to `folder`. `StudyError` says what is missing.

    `tokenizer`: the model that counts `max_tokens`, unless the entry names one. Where prompts have templates, these
    take turns within each level, so that the first ones of a level are of as many templates as can be."""
    source = _bundled(entry) if entry.bundled else _from_hub(entry) if entry.hub else _from_file(entry, folder)
    every = [e for e in source if e.prompt.answer or not entry.answered]
    levels = tuple(dict.fromkeys(e.level for e in every))
    if missing := [level for level in entry.levels if level not in levels]:
        known = f"has no level {missing[0]!r}; {nearest(missing[0], levels)}" if any(levels) else "has no levels."
        raise StudyError(f"The set {entry.name} {known}")
    if entry.per_level and not any(levels):
        raise StudyError(f"The set {entry.name} has no levels; give limit in place of per_level.")
    left_out: list[Example] = []
    short, of_level = _short(entry, tokenizer, left_out), {}
    for level in entry.levels or levels:
        examples = [e for e in every if e.level == level]
        if entry.seed is not None:
            random.Random(entry.seed).shuffle(examples)
        of_level[level] = list(islice(filter(short, in_turns(examples)), entry.per_level))
    chosen = [e for examples in of_level.values() for e in examples]
    shuffled = entry.seed is not None
    if not (entry.levels or entry.per_level or (shuffled and entry.limit is None)):
        if shuffled:
            random.Random(entry.seed).shuffle(every)
        turn, taken = {level: iter(examples) for level, examples in of_level.items()}, set(chosen)
        chosen = [next(turn[e.level]) for e in every if e in taken]  # levels in the order of the set, or drawn
    chosen = chosen[: entry.limit]
    if not chosen:
        within = f" of at most {entry.max_tokens} tokens" if entry.max_tokens else ""
        raise StudyError(f"The set {entry.name} holds no prompt{' with an answer' * entry.answered}{within}.")
    chosen = chosen if published(entry) else list(_one_text(chosen))
    return PromptSet(entry.name, tuple(_with_others(chosen)), len(left_out))


def _with_others(examples: Sequence[Example]) -> Iterator[Example]:
    """Yield each prompt with its `other`: the next one of its form and level with another answer, in a circle."""
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, example in enumerate(examples):
        if example.prompt.answer:
            alike[example.form, example.level].append(place)
    others: dict[int, Prompt | None] = {}
    for places in alike.values():
        for this, after in zip(reversed(places * 2), reversed([*places[1:], *places, places[0]])):
            own, following = examples[this].prompt, examples[after].prompt
            others[this] = following if following.answer != own.answer else others.get(after)
    for place, example in enumerate(examples):
        yield replace(example, other=others.get(place))


def published(entry: SetEntry) -> str:
    """Return the published format of an entry's prompts (a key of `FORMATS`), "" where they have none."""
    return entry.format or (entry.hub if entry.hub in FORMATS else "")


def _one_text(examples: Sequence[Example]) -> Iterator[Example]:
    """Yield the prompts, giving one form to those without a form that share a text: they are not independent."""
    texts = [repr(e.prompt.identity()) for e in examples]
    times = Counter(texts)
    number = {text: i for i, text in enumerate(times, 1)}
    for example, text in zip(examples, texts):
        if times[text] > 1 and not example.form:
            example = replace(example, prompt=replace(example.prompt, form=f"text {number[text]}"))
        yield example


def ranks(keys: Iterable[Hashable]) -> list[int]:
    """Return how often each key occurred before: [0, 0, 1] for a, b, a."""
    counts: defaultdict[Hashable, Iterator[int]] = defaultdict(count)
    return [next(counts[key]) for key in keys]


def in_turns(examples: Sequence[Example]) -> list[Example]:
    """Return the first prompt of each form, then the second of each, and so on."""
    if len({e.form for e in examples}) < 2:
        return list(examples)
    ranked = zip(ranks(e.form for e in examples), examples)
    return [example for _, example in sorted(ranked, key=lambda one: one[0])]


def _short(entry: SetEntry, tokenizer: str, left_out: list[Example]) -> Callable[[Example], bool]:
    """Return a function: whether a prompt has at most `max_tokens` tokens. It adds longer prompts to `left_out`."""
    ref = ModelRef.named(entry.tokenizer or tokenizer) if entry.max_tokens else None

    def short(example: Example) -> bool:
        """Return whether a prompt is short enough; `StudyError` where its tokens cannot be counted."""
        if ref is None or entry.max_tokens is None:
            return True
        ids = tokens.preview(ref, example.prompt) if fits(example.prompt) else [()] * (entry.max_tokens + 1)
        if ids is None:
            raise StudyError(
                f"The set {entry.name} has max_tokens, and the tokens of {ref.name} cannot be counted before it is "
                "opened; give tokenizer, the name of a model whose tokenizer.json is here."
            )
        if len(ids) > entry.max_tokens:
            left_out.append(example)
        return len(ids) <= entry.max_tokens

    return short


# ---------------------------------------------------------------- read


def bundled_names() -> list[str]:
    """Return the names of the sets that need no file and no download."""
    return [*set_names(), *ARITHMETIC]


def _bundled(entry: SetEntry) -> Iterator[Example]:
    """Return the prompts of a bundled set, or of arithmetic made here; `StudyError` for an unknown name."""
    if entry.bundled not in (known := bundled_names()):
        raise StudyError(
            f"The set {entry.name} asks for bundled prompts {entry.bundled!r}; {nearest(entry.bundled, known)}"
        )
    if entry.bundled not in ARITHMETIC:
        return _own_lines(SETS / f"{entry.bundled}.jsonl", entry)
    made = enumerate(arithmetic(entry.bundled))
    return (
        Example(Prompt(text, answer, f"{level}-{i}", entry.template, form=entry.bundled), level)
        for i, (text, answer, level) in made
    )


def _from_file(entry: SetEntry, folder: Path) -> Iterator[Example]:
    """Return the prompts of a local file, its path relative to `folder`; `StudyError` where it cannot be read."""
    file = folder / Path(entry.file).expanduser()
    permits.file(str(file))
    if not file.is_file():
        raise StudyError(f"The set {entry.name}: there is no file {entry.file} (looked for in {folder}).")
    if (kind := untrusted.ending(file)) not in TABLES:
        raise StudyError(
            f"The set {entry.name}: {entry.file} is a {kind or 'file without an extension'}; expected "
            f"{', '.join(TABLES)}."
        )
    if kind == ".jsonl" and not entry.columns and not entry.format:
        return _own_lines(file, entry)
    return _rows(entry, _table(entry, file, kind), _format(entry.format, entry))


def _own_lines(file: Path, entry: SetEntry) -> Iterator[Example]:
    """Yield the prompts of a file in the format of `prompts.read_jsonl`, with `level` and `pair`."""
    try:
        prompts = read_jsonl(file)
    except PromptFileError as error:
        raise StudyError(f"The set {entry.name}: {error}") from None
    read = (json.loads(line) for _, line in lines(untrusted.text(file, untrusted.PROMPTS, StudyError)))
    for i, (prompt, line) in enumerate(zip(prompts, read, strict=True)):
        template = entry.template if line.get("template") is None else prompt.template
        prompt = replace(prompt, id=prompt.id or str(i), template=template)
        yield Example(prompt, _text(line.get("level")), _text(line.get("pair")))


def _text(value: object) -> str:
    """Return a cell as text, "" for None and NaN."""
    return "" if value is None or (isinstance(value, float) and isnan(value)) else str(value)


def _from_hub(entry: SetEntry) -> Iterator[Example]:
    """Return the prompts of a set of the hub; `StudyError` where it is unavailable or too large."""
    known = _format(entry.format or (entry.hub if "/" not in entry.hub else ""), entry)
    name, config, split = (known.hub, known.config, known.split) if known else (entry.hub, "", "test")
    config, split = entry.config or config, entry.split or split
    permits.download(name)
    machine.require_package("datasets", f"The set {entry.name}")
    import datasets

    try:
        builder = datasets.load_dataset_builder(name, config or None)
        declared = max(builder.info.download_size or 0, builder.info.dataset_size or 0)
        if declared <= untrusted.SET:
            builder.download_and_prepare()
            table = builder.as_dataset(split=split)
    except Exception as error:  # whatever the client, the network or the set's files answer
        raise StudyError(
            f"The set {entry.name} ({name}{f', {config}' if config else ''}, {split}) is unavailable from the hub "
            f"({type(error).__name__}: {_first_line(error)}). Try again where the hub answers, or give a local copy: "
            f"file = …{f', format = {entry.hub!r}' if entry.hub in FORMATS else ''}."
        ) from None
    if declared > untrusted.SET or len(table) > untrusted.LINES:
        raise StudyError(
            f"The set {entry.name} has {untrusted.size(declared)}, or more rows than {untrusted.LINES}; name a part "
            f"of it, as split = 'test[:{untrusted.LINES}]', or give a file of the prompts that are meant."
        )
    return _rows(entry, table, known)


def _format(name: str, entry: SetEntry) -> Format | None:
    """Return the published format of this name, None for ""; `StudyError` for an unknown name."""
    if name and name not in FORMATS:
        raise StudyError(
            f"The set {entry.name} asks for the published format {name!r}; {nearest(name, list(FORMATS))} Any other "
            "set of the hub is named as org/name, with columns."
        )
    return FORMATS.get(name)


def _table(entry: SetEntry, file: Path, kind: str) -> Sequence[Row]:
    """Return the rows of a file. Cells of a .csv are text: a reader that guesses types makes 7 of 007."""
    try:
        if kind == ".parquet":
            expect(parquet.read_metadata(file).num_rows <= untrusted.LINES, f"more than {untrusted.LINES} rows")
            return list(parquet.read_table(file).to_pylist())
        text = untrusted.text(file, untrusted.PROMPTS, StudyError)
        if kind == ".csv":
            rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
            expect(all(None not in row for row in rows), "a row has more cells than the header")
        else:
            rows = from_json(text) if text.lstrip().startswith("[") else [from_json(line) for _, line in lines(text)]
            expect(all(isinstance(row, dict) for row in rows), "expected objects, one per line or all in a list")
        expect(0 < len(rows) <= untrusted.LINES, f"{len(rows)} rows; expected 1 to {untrusted.LINES}")
        return rows
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        raise StudyError(
            f"The set {entry.name}: {entry.file} cannot be read as {kind[1:]} ({_first_line(error)})."
        ) from None


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, cut to 200 characters; its type where it has no text."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _rows(entry: SetEntry, rows: Iterable[Row], known: Format | None) -> Iterator[Example]:
    """Yield a prompt for each row of a table; `known`: its published format, None to use the entry's columns."""
    columns = entry.columns or Columns()
    needed = known.columns if known else tuple(filter(None, columns.model_dump().values()))
    names = getattr(rows, "column_names", None) or list(dict.fromkeys(name for row in rows for name in row))
    if absent := [name for name in needed if name not in names]:
        raise StudyError(
            f"The set {entry.name} has no column {absent[0]!r}; it has {', '.join(names)[:200]}."
            + ("" if known else " Say which is which with columns = {text = …, answer = …}.")
        )
    for i, row in enumerate(rows):
        try:
            if missing := [name for name in needed if known and row.get(name) is None]:
                raise PromptError(f"{missing[0]} is missing; expected a value in every row.")
            yield _example(entry, defaultdict(type(None), row), known, columns, i)
        except (PromptError, ParameterError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, PromptError) else f"{type(error).__name__}: {error}"
            raise StudyError(f"The set {entry.name}, row {i + 1}: {why}") from None


def _example(entry: SetEntry, row: Row, known: Format | None, columns: Columns, i: int) -> Example:
    """Return the prompt of one row, `i` being its place from 0."""

    def cell(name: str) -> str:
        return _text(row[name]) if name else ""

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


ASK = (
    "Given the following problem, reason and give a final answer to the problem.\n"
    'Problem: {}\nYour response should end with "{}" where [answer] is the response to the problem.\n'
)


@dataclass(frozen=True)
class Format:
    """A set on the hub, and how a paper writes its prompts. `write`: a row → (text, answer, level). `columns`: those it
    needs. `prompts`: how many of its first prompts H25 takes."""

    hub: str
    split: str
    columns: tuple[str, ...]
    write: Callable[[Row], tuple[str, str, str]]
    config: str = ""
    prompts: int = 10


def _list(row: Row, name: str) -> list[Any]:
    """Return a cell that has to be a list; `PromptError` where it is none."""
    if not isinstance(value := row[name], list):
        raise PromptError(
            f"{name} is {str(value)[:40]!r}; expected a list. Cells of a .csv are text: give a .jsonl or .parquet."
        )
    return value


def gsm8k(row: Row) -> tuple[str, str, str]:
    """Return text, answer and level ("") of a row of GSM8K as [H25] writes it, with its `<<…>>` marks."""
    rationale, marks, number = row["answer"].rpartition("####")
    if not marks:
        raise ValueError("an answer without ####")
    text = ASK.format(row["question"], "The final answer is [answer]")
    return text, f"\n{rationale}The final answer is {number.strip()}", ""


def hellaswag(row: Row) -> tuple[str, str, str]:
    """Return text, answer and level ("") of a row of HellaSwag as [H25] writes it: the right ending, behind a space
    unless it begins with a comma."""
    ending = _list(row, "endings")[int(row["label"])]
    return row["ctx"], ("" if ending.startswith(",") else " ") + ending, ""


def aime24(row: Row) -> tuple[str, str, str]:
    """Return text, answer and level ("") of a row of AIME24 as [H25] writes it."""
    return ASK.format(row["Problem"], r"\boxed{[answer]}"), f"\n{row['Solution']}", ""


def math(row: Row) -> tuple[str, str, str]:
    """Return text, answer and level ("1" to "5") of a row of MATH as [C25 §5] writes it."""
    return f"Problem: {row['problem']}\nAnswer:", f" {row['solution']}", str(row["level"]).removeprefix("Level ")


def mquake(row: Row) -> tuple[str, str, str]:
    """Return text, answer and level (the number of hops) of a row of MQuAKE as [C25 §5] writes it."""
    question = _list(row, "questions")[0]
    triples = _list(row, "orig_triples") if row.get("orig_triples") is not None else _list(row["orig"], "triples")
    return f"Question: {question}\nAnswer:", f" {row['answer']}", str(len(triples))


FORMATS = {
    "gsm8k": Format("openai/gsm8k", "test", ("question", "answer"), gsm8k, "main"),
    "hellaswag": Format("Rowan/hellaswag", "validation", ("ctx", "endings", "label"), hellaswag),
    "aime24": Format("Maxwell-Jia/AIME_2024", "train", ("Problem", "Solution"), aime24, prompts=5),
    "math": Format("EleutherAI/hendrycks_math", "test", ("problem", "solution", "level"), math, "intermediate_algebra"),
    "mquake": Format("henryzhongsc/MQuAKE-Remastered", "CF3k", ("questions", "answer"), mquake),
}
ARITHMETIC = {"direct_addition": "+", "direct_multiplication": "*"}  # made here, by number of digits [H25]
DIGITS = ("1", "2", "3", "4", "5")
EACH = 100  # made of each number of digits


def arithmetic(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield text, answer and level n of sums or products of two n-digit numbers; the same every time."""
    sign = ARITHMETIC[name]
    for digits in DIGITS:
        rng, n = random.Random(f"{name} {digits}"), int(digits)
        for _ in range(EACH):
            a, b = (rng.randint(10 ** (n - 1), 10**n - 1) for _ in range(2))
            yield f"Give the answer directly: {a} {sign} {b} =", f" {a + b if sign == '+' else a * b}", digits


def split_points(how: str, answer_start: int, n_tokens: int) -> tuple[int, ...]:
    """Return the token positions at which a prompt is split [C25 §5]. `how`: "answer" for the answer's first token;
    "within_answer" for the first four of `range(0, A - 4, 4)` shuffled (seed 12345), counted from that token, A being
    the answer's length; () where A is at most 4: such prompts are left out."""
    if how == "answer":
        return (answer_start,)
    length = n_tokens - answer_start
    if length <= 4:
        return ()
    offsets = list(range(0, length - 4, 4))
    random.Random(12345).shuffle(offsets)
    return tuple(answer_start + offset for offset in offsets[:4])
