"""The prompts of a set: from a file of this machine, from the hub, bundled, or made here. Torch-free.

Tables of the hub are read by `datasets`."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
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

from .. import bounds, machine, outside
from ..errors import ParameterError, PromptError, PromptFileError, StudyError
from ..files import expect, parse
from ..models import hub, permits, tokens
from ..models.bundled import SETS, set_names
from ..models.specs import named
from ..prompts import check_length, check_text, fits, read_jsonl
from ..prompts import lines as written_lines
from ..types import Prompt
from . import parquets
from .study import Columns, SetEntry, nearest

TABLES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


@dataclass(frozen=True)
class Example:
    """One prompt of a set. `level`: how hard it is, "" where the set has no levels. `pair`: prompts of different levels
    with one mark here belong together."""

    prompt: Prompt
    level: str = ""
    pair: str = ""

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
    return PromptSet(entry.name, tuple(chosen if published(entry) else _one_text(chosen)), left_out)


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


def _short(entry: SetEntry, tokenizer: str) -> Callable[[Prompt], bool]:
    """Whether a prompt has no more tokens than the set takes."""
    spec = named(entry.tokenizer or tokenizer) if entry.max_tokens else None

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
    return _rows(entry, _table(entry, file), _format(entry) if entry.format else None)


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
        _check_declared(entry, builder, split)
        builder.download_and_prepare()
        table = builder.as_dataset(split=split)
    except StudyError:
        raise
    except Exception as error:  # whatever the client, the network or the set's files answer
        raise StudyError(
            f"The set {entry.name} ({name}{f', {config}' if config else ''}, {split}) is unavailable from the hub "
            f"({type(error).__name__}: {_first_line(error)}). Try again where the hub answers, or give a local copy: "
            f"file = …{f', format = {entry.hub!r}' if entry.hub in FORMATS else ''}."
        ) from None
    columns = _read(entry, table.column_names, known)
    _check_rows(entry, len(table))
    _check_bytes(entry, table.select_columns(columns).data.nbytes, bounds.PROMPTS, "its texts have")
    return _rows(entry, table, known)


def _check_declared(entry: SetEntry, builder: Any, split: str) -> None:
    """Before anything of a set is downloaded: the bytes and rows that its page tells of the split, and the sizes of its
    files on the hub."""
    part = re.split(r"\W", split, maxsplit=1)[0]
    told = (builder.info.splits or {}).get(part)
    if told is not None:
        _check_bytes(entry, told.num_bytes or 0, bounds.SET, f"its part {part} has")
        if part == split:
            _check_rows(entry, told.num_examples or 0)
    files = (builder.config.data_files or {}).get(part, ())
    held = sum(hub.file_bytes(str(file)) for file in files)
    _check_bytes(entry, max(held, builder.info.download_size or 0), bounds.SET, "its files have")


def _check_rows(entry: SetEntry, n: int) -> None:
    if n > bounds.LINES:
        raise StudyError(
            f"The set {entry.name} has {n} rows, at most {bounds.LINES} are read; name a part of it, as "
            f"split = 'test[:{bounds.LINES}]'."
        )


def _check_bytes(entry: SetEntry, n: int, most: int, whose: str) -> None:
    if n > most:
        raise StudyError(
            f"The set {entry.name}: {whose} {outside.size(n)}, at most {outside.size(most)} are read; give a smaller "
            "one, or a file of the prompts that are meant."
        )


def _format(entry: SetEntry) -> Format:
    if entry.format not in FORMATS:
        raise StudyError(
            f"The set {entry.name} has the format {entry.format!r}; {nearest(entry.format, list(FORMATS))}"
        )
    return FORMATS[entry.format]


def _table(entry: SetEntry, file: Path) -> Any:
    if (kind := outside.ending(file)) in (".json", ".jsonl"):
        return _of_json(entry, file)
    if kind == ".parquet":
        return _Parquet(entry, file)
    return _of_csv(entry, file)


def _of_csv(entry: SetEntry, file: Path) -> _Table:
    """The rows of a CSV file below its header, numbered as a table shows them; a cell is its text, and empty lines are
    no rows. Rows, columns, cells and the longest of them are bounded."""
    text = outside.text(file, bounds.PROMPTS, StudyError)
    csv.field_size_limit(bounds.TEXT)
    rows: dict[int, list[str]] = {}
    cells = 0
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), 1):
            if not row:
                continue
            rows[number] = row
            cells += len(row)
            expect(len(rows) <= bounds.LINES + 1, f"more than {bounds.LINES} rows")
            expect(len(row) <= bounds.COLUMNS, f"more than {bounds.COLUMNS} columns")
            expect(cells <= bounds.VALUES, f"more than {bounds.VALUES} cells")
        expect(bool(rows), "it is empty; expected a header, and a row a prompt below it")
        names = rows.pop(min(rows))
        if twice := next((name for name in names if name and names.count(name) > 1), ""):
            raise ValueError(f"two columns are called {twice[:80]!r}; give each a name of its own")
        if long := next((number for number, row in rows.items() if len(row) > len(names)), 0):
            told = f"row {long} has {len(rows[long])} cells and the header {len(names)}"
            raise ValueError(f"{told}; put a text with commas between double quotes")
    except (ValueError, csv.Error) as error:
        raise _unreadable(entry, file, error) from None
    return _Table(names, {number: dict(zip(names, row)) for number, row in rows.items()})


def _unreadable(entry: SetEntry, file: Path, error: Exception) -> StudyError:
    reason = _first_line(error.__cause__ or error)
    return StudyError(
        f"The set {entry.name}: {entry.file} cannot be read as {TABLES[outside.ending(file)]} ({reason})."
    )


@dataclass(frozen=True)
class _Table:
    """Rows that are read already, by the number that an editor shows; None where one lacks a column."""

    column_names: list[str]
    numbered: Mapping[int, dict[str, Any]]

    def select_columns(self, columns: Sequence[str]) -> _Table:
        return self

    def __iter__(self) -> Iterator[Row]:
        return (defaultdict(type(None), row) for row in self.numbered.values())


def _of_json(entry: SetEntry, file: Path) -> _Table:
    """The objects of a JSON file, one a line or all in a list. (Of a line that is `null`, pyarrow's reader dies.)"""
    text = outside.text(file, bounds.PROMPTS, StudyError)
    try:
        if text.lstrip().startswith("["):
            rows = dict(enumerate(parse(text.encode(), bounds.PROMPTS), 1))
        else:
            rows = {number: parse(line.encode(), bounds.PROMPTS) for number, line in written_lines(text)}
        expect(len(rows) <= bounds.LINES, f"{len(rows)} rows, at most {bounds.LINES} are read")
        expect(all(isinstance(row, dict) for row in rows.values()), "expected objects, one a line or all in a list")
    except ValueError as error:
        raise _unreadable(entry, file, error) from None
    return _Table(list(dict.fromkeys(name for row in rows.values() for name in row)), rows)


class _Parquet:
    """The rows of a .parquet file, a few at a time, of some of its columns."""

    def __init__(self, entry: SetEntry, file: Path, columns: Sequence[str] | None = None):
        self._entry, self._file = entry, file
        with self._handle() as handle, parquets.opened(handle, bounds.LINES) as opened:
            self.column_names: list[str] = opened.schema_arrow.names
        self._columns = self.column_names if columns is None else columns

    def select_columns(self, columns: Sequence[str]) -> _Parquet:
        return _Parquet(self._entry, self._file, columns)

    def __iter__(self) -> Iterator[Row]:
        with self._handle() as handle:
            for batch in parquets.batches(handle, bounds.LINES, self._columns):
                yield from batch.to_pylist()

    @contextlib.contextmanager
    def _handle(self) -> Iterator[io.BufferedReader]:
        try:
            with outside.opened(self._file, bounds.SET, StudyError) as handle:
                yield handle
        except (OSError, ValueError, KeyError, TypeError, MemoryError, pyarrow.ArrowException) as error:
            raise _unreadable(self._entry, self._file, error) from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _read(entry: SetEntry, names: Sequence[str], known: Format | None) -> list[str]:
    """Which columns of a table are read; `StudyError` where one is missing."""
    columns = entry.columns or Columns()
    needed = known.columns if known else tuple(filter(None, columns.model_dump().values()))
    if missing := [name for name in needed if name not in names]:
        raise StudyError(
            f"The set {entry.name} has no column {missing[0]!r}; it has {', '.join(names)}."
            + ("" if known else " Say which is which with columns = {text = …, answer = …}.")
        )
    return [name for name in dict.fromkeys((*needed, *(known.one_of if known else ()))) if name in names]


def _rows(entry: SetEntry, table: Any, known: Format | None) -> Iterator[Example]:
    columns = entry.columns or Columns()
    table = table.select_columns(_read(entry, table.column_names, known))
    numbers = table.numbered if isinstance(table, _Table) else itertools.count(1)
    for i, (number, row) in enumerate(zip(numbers, table)):
        try:
            yield _example(entry, row, known, columns, i)
        except (PromptError, ParameterError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            told = f"{type(error).__name__}: {error}" if not isinstance(error, PromptError) else str(error)
            raise StudyError(f"The set {entry.name}, row {number}: {told}") from None


def _example(entry: SetEntry, row: Mapping[str, Any], known: Format | None, columns: Columns, i: int) -> Example:
    def of(name: str) -> str:
        return _text(row[name]) if name else ""

    for name in known.columns if known else ():
        if row[name] is None:
            raise PromptError(f"{name} is missing; expected a value in every row: add it, or leave the row out.")
    text, answer, level = known.write(row) if known else (of(columns.text), of(columns.answer), of(columns.level))
    prompt = Prompt(text, answer, of(columns.id) or str(i), entry.template, form=of(columns.form))
    check_text(prompt)
    if not entry.max_tokens:
        check_length(prompt)
    return Example(prompt, level, of(columns.pair))


# ---------------------------------------------------------------- the papers' formats

# Published prompt sets, their columns, and how the papers write a prompt of them: [C25] Csordás et al. 2025 (arXiv
# 2505.13898), [H25] Hu et al. 2025 (arXiv 2512.14064). Question and answer are encoded jointly, so what stands between
# them belongs to the answer.


Row = Mapping[str, Any]
ASK = (
    "Given the following problem, reason and give a final answer to the problem.\n"
    'Problem: {}\nYour response should end with "{}" where [answer] is the response to the problem.\n'
)


@dataclass(frozen=True)
class Format:
    """A set on the hub and its prompts. `write`: a row → (text, answer, level). `columns`: what it reads.
    `one_of`:
    columns of which it reads what is there. `prompts`: how many of its first prompts H25 takes."""

    hub: str
    split: str
    columns: tuple[str, ...]
    write: Callable[[Row], tuple[str, str, str]]
    source: str
    config: str = ""
    prompts: int = 10
    one_of: tuple[str, ...] = ()


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
    triples = _list(row, "orig_triples") if "orig_triples" in row else _list(row["orig"], "triples")
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
        one_of=("orig", "orig_triples"),
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
