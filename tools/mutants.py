"""Do the tests notice small defects? `make mutants`, or `python -m tools.mutants [FILE…]`.

A sample of the defects that cosmic-ray makes (an operator, a comparison, a number, a keyword or a decorator changed;
not `is` for `==`), drawn from every folder of the program's code or from the files named. Each is tried in a copy of
the repository with the tests that reach its line, the quickest first, until one fails or SECONDS of them have run, by
what they took without it; on a slow machine more, a SHARE of what all tests take.
Which tests those are is measured first, by one run of `make test` without any defect, in which the lines concerned note
who runs them, in processes that a test starts as well. (coverage.py measures every line of every file: it made that run
take more than twice as long.)
What no test noticed so far stands in one copy together then, for one run of all tests; those that fail there are tried
with each of these defects alone.

A defect is caught, survives what `make test` runs, or is broken: a test that told of it fails without it as well. The
exit code is 1 where fewer than 90 % are caught. What only a browser or a real model reaches survives, since `make test`
does not see it."""

from __future__ import annotations

import argparse
import ast
import difflib
import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
CODE = ("ed_core", "ed_ui", "pages")
SAMPLE, SEED, ENOUGH = 120, 1, 0.9
WORKERS = 3  # one more than cores, as some wait for what they started
SECONDS, SHARE = 10.0, 1 / 150  # of tests that one defect is tried with: so many, or this part of what all take
NAMING = 0.3  # of them, of those that do not reach its line and name its module
LIKELY = 0.3  # of them, of the files that have most of the words of a line that runs at import, before any others
OWN = 0.5  # of them, of those that do both, whatever their parameters, before any others
ALMOST = 0.9  # as many of a line's words as the file that has most: this share of them counts as much
AT_LEAST, UNLIKE = 0.3, 0.1  # a test's seconds beyond its own, and what one counts that has none of a line's words
LARGE = 5  # a number that a defect changes by one; below it that is no small change
HANGS = 120  # seconds in which no test ends
STYLE = "tests/test_lint.py"  # tells how a line is written, which a defect changes beside what it does
TOGETHER = 1.5  # times what all tests took without a defect that they may take with many
SLOWEST = 3  # times its tests' seconds that a run may take: what many files prepare is counted with one test of each
QUICK = "not browser and not real and not slow"  # what `make test` runs
PYTEST = ("-v", "-p", "no:cacheprovider", "--tb=no", "-rfE")
# Every run is a process of its own, forked from one that has imported what is slow and none of ours.
FORKS = multiprocessing.get_context("forkserver")
IMPORTED = [
    "torch",
    "transformers.modeling_utils",
    "transformers.generation",
    "streamlit.testing.v1",
    "plotly.graph_objects",
]
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # before torch is imported
# Beside the code in the copy that is measured: what its lines call, in whatever process they run.
NOTED = '__import__("mutants_notes").noted'
NOTES = """import contextlib
import os

seen = set()


def noted(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in seen:
        seen.add((number, test))
        with contextlib.suppress(OSError), open({file!r}, "ab", buffering=0) as file:
            file.write(f"{{number}} {{test}}\\n".encode())
"""
# Comparisons by identity in place of others and the reverse: refused by ruff (E711, F632), or alike for small values.
SAME = re.compile("/ReplaceComparisonOperator_(Is|IsNot)_(?!Is)|/ReplaceComparisonOperator_(?!Is).*_(Is|IsNot)$")
NOTE = re.compile(r"(?P<number>\d+) (?P<file>.*?)(?P<test>::.*) \((?P<phase>\w+)\)")  # by pytest's own variable
WORD = re.compile(r"[A-Za-z_]\w{3,}")
QUOTED = re.compile(r"""["']([\w.]{3,})["']""")
PASSED, FAILED = 0, 1  # pytest's exit codes
SLOW, HUNG, GONE = 1000, 1001, 1002  # no process has these
NOT_FOUND = "ERROR: not found: "  # pytest's, and the function; it runs none of the others then
FAILS = re.compile(r"\[gw\d+\] \[ *\d+%\] (?:FAILED|ERROR) (\S+?\.py::.*?)\s*")  # said as soon as a test fails
Line = tuple[str, int]  # a file's path from the root, and which of its lines
Place = tuple[int, int]  # line and column
STAMPS = itertools.count(1)  # times of files with a defect: compiled code is known by its source's time and size


@dataclass(frozen=True)
class Mutant:
    """One defect: `file`, path from the root, whose text is `text` with it. `line`: the first that differs; `what`:
    that line before and after."""

    file: str
    line: int
    what: str
    text: str

    def around(self, calls: bool) -> str:
        """Its line, less a comment; with `calls` the shortest call that it is in, as that of a family among others."""
        nodes = ast.walk(ast.parse(self.text)) if calls else ()
        inside = (n for n in nodes if isinstance(n, ast.Call) and n.lineno <= self.line <= n.end_lineno)
        ends = min(
            ((n.lineno, n.end_lineno) for n in inside), key=lambda e: e[1] - e[0], default=(self.line, self.line)
        )
        return "\n".join(line.partition("  # ")[0] for line in self.text.splitlines()[ends[0] - 1 : ends[1]])


@dataclass(frozen=True)
class Reached:
    """What a run without defects told: the tests by file and line, and how long each that passed took, in seconds; by
    the file of a module, the files of tests that name it (`named`); by file and line of what runs while a module is
    imported, the lines that use it (`used`); by file of tests the words in it and in texts it reads (`words`); by file
    and line the tests that reach it themselves, not by what was set up for their whole file (`called`)."""

    tests: dict[str, dict[int, frozenset[str]]]
    seconds: dict[str, float]
    named: dict[str, frozenset[str]] = field(default_factory=dict)
    used: dict[str, dict[int, set[Line]]] = field(default_factory=dict)
    words: dict[str, frozenset[str]] = field(default_factory=dict)
    called: dict[str, dict[int, frozenset[str]]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Seconds of tests that one defect is tried with."""
        return max(SECONDS, SHARE * sum(self.seconds.values()))

    def within(self, share: float, tests: list[str]) -> list[str]:
        """The first of these tests, as many as a share of `limit` holds."""
        took = itertools.accumulate(self.seconds.get(test, 1.0) for test in tests)
        return [test for test, so_far in zip(tests, took) if so_far <= share * self.limit]

    def alike(self, text: str) -> dict[str, float]:
        """By file of tests, how much of a line's words it has: the fewer files have a word, the more it counts."""
        found: dict[str, float] = defaultdict(float)
        for word in set(WORD.findall(text)):
            having = [file for file, words in self.words.items() if word in words]
            for file in having:
                found[file] += 1 / len(having)
        return found

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that reach a defect's line, those first whose file names its module, as many as OWN holds, and of
        others one of each function; among these those that reach it themselves, and the quick ones whose file has the
        line's words; then those which name it and do not reach it, since they may have met what another test had kept;
        as many as `limit` and NAMING hold.
        A line that runs while a module is imported is reached by all tests that reach another line of it; first come
        those of the files that have most of its words, whatever they reach (as kept texts have what is declared), those
        of whose parameters the line names one ("gemma2"), those that reach a line which uses it, those that name the
        module."""
        lines, naming = self.tests.get(mutant.file, {}), self.named.get(mutant.file, frozenset())
        reached = lines.get(mutant.line, frozenset())
        at_import = not reached
        users = self.used.get(mutant.file, {}).get(mutant.line, set()) if at_import else set()
        using = frozenset().union(*(self.tests.get(file, {}).get(line, frozenset()) for file, line in users))
        places = users if at_import else {(mutant.file, mutant.line)}
        called = frozenset().union(*(self.called.get(file, {}).get(line, frozenset()) for file, line in places))
        found = reached or frozenset().union(*lines.values(), using)
        found |= {test for test in self.seconds if test.partition("::")[0] in naming}

        text = mutant.around(calls=at_import)
        alike = self.alike(text)
        named = set(QUOTED.findall(text)) if at_import else set()

        def worth(test: str) -> tuple[float, str]:
            file = test.partition("::")[0]
            return (AT_LEAST + self.seconds.get(test, 1.0)) / (UNLIKE + alike.get(file, 0.0)), test

        def order(test: str) -> tuple[bool, bool, bool, bool, bool, float, str]:
            file, _, name = test.partition("::")
            parameters = re.split(r"[\[\]-]", name)[1:]
            there = not at_import and test not in reached
            first = named.isdisjoint(parameters), test not in using, there, file not in naming
            return *first, test not in called, *worth(test)

        ordered = sorted(found, key=order)
        most = {file for file, n in alike.items() if at_import and n >= ALMOST * max(alike.values())}
        having = [test for test in self.seconds if test.partition("::")[0] in most]
        likely = self.within(LIKELY, one_of_each(sorted(having, key=worth)))
        own = self.within(OWN, [test for test in ordered if test in reached and test.partition("::")[0] in naming])
        kept, left = [], self.limit
        left_of_naming = left if at_import else NAMING * left
        for test in dict.fromkeys([*likely, *one_of_each(own), *own, *one_of_each(ordered), *ordered]):
            took, names = self.seconds.get(test, 1.0), test not in reached
            if not kept or took <= (min(left, left_of_naming) if names else left):
                left -= took
                left_of_naming -= took * names
                kept.append(test)
        return kept

    def suspected(self, failed: Iterable[str], mutant: Mutant) -> list[str]:
        """Of tests that failed with many defects at once, those that may have failed for this one: they reach its line
        or their file names its module; of a line that runs at import all of them, those first that reach its module.
        The quickest first, and one of each."""
        lines, naming = self.tests.get(mutant.file, {}), self.named.get(mutant.file, frozenset())
        reached = lines.get(mutant.line, frozenset())
        at_import = not reached
        reached = reached or frozenset().union(*lines.values())

        def near(test: str) -> bool:
            return test in reached or test.partition("::")[0] in naming

        able = [test for test in failed if test in self.seconds and not test.startswith(STYLE)]
        found = [test for test in able if at_import or near(test)]
        found.sort(key=lambda test: (not near(test), self.seconds[test], test))
        return list(dict.fromkeys([*one_of_each(found), *found]))


def one_of_each(tests: list[str]) -> list[str]:
    """The first test of every function, whatever its parameters."""
    return list({test.partition("[")[0]: test for test in reversed(tests)}.values())[::-1]


@dataclass(frozen=True)
class Outcome:
    """What became of a defect. `by`: the first test that told, or why nothing can be said."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float

    def __str__(self) -> str:
        place = f"{self.mutant.file}:{self.mutant.line}"
        return f"{self.verdict:<8} {self.seconds:4.0f} s  {place:<44} {self.mutant.what}  [{self.by}]"


def sampled(files: list[Path], count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Defects drawn at random: two of each folder at least, otherwise files by their size; at most one a line."""
    rng = random.Random(seed)
    sizes = {file: len(file.read_bytes()) for file in files}
    folders = defaultdict(list)
    for file in files:
        folders[file.parent].append(file)
    drawn = [rng.choices(there, [sizes[f] for f in there])[0] for there in folders.values() for _ in range(2)]
    drawn = drawn[:count] + rng.choices(files, list(sizes.values()), k=max(0, count - len(drawn)))
    found: list[Mutant] = []
    for file, n in sorted(Counter(drawn).items()):
        found += defects(file, n, rng, root)
    return found


def defects(file: Path, count: int, rng: random.Random, root: Path) -> list[Mutant]:
    """Up to `count` defects of one file, each at another line."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.mutating import mutate_code

    source = file.read_text(encoding="utf-8")
    operators = {name: plugins.get_operator(name) for name in plugins.operator_names()}
    left_out = ("NoOp", "/ExceptionReplacer")
    operators = {
        name: operator()
        for name, operator in operators.items()
        if not operator.arguments() and not name.endswith(left_out) and not SAME.search(name)
    }
    silent = unread(source)
    places: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    occurrences: Counter[str] = Counter()

    class Places(Visitor):
        def visit(self, node):
            for name, operator in operators.items():
                for (line, column), _ in operator.mutation_positions(node):
                    if not any(begin <= (line, column) < end for begin, end in silent):
                        places[line, column].append((name, occurrences[name]))
                    occurrences[name] += 1
            return node

    Places().walk(get_ast(source))
    found: dict[int, Mutant] = {}
    for place in rng.sample(sorted(places), len(places)):
        if len(found) == count:
            break
        name, occurrence = rng.choice(places[place])
        text = mutate_code(source, operators[name], occurrence)
        mutant = text and difference(file.relative_to(root).as_posix(), source, text)
        if mutant and compiles(text) and mutant.line not in found:
            found[mutant.line] = mutant
    return list(found.values())


def unread(source: str) -> list[tuple[Place, Place]]:
    """Where a change says nothing, from and until: annotations and protocols, which nothing evaluates, imports for them
    alone; whether a dataclass is frozen and a `zip` strict, which guards the program against itself; the pixels of what
    is drawn; and in a module's CONSTANTS a number from LARGE on, a bound, a size or a time beside which another does as
    well."""
    parts: list[ast.expr | ast.stmt | ast.arg | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
            parts += [node.returns, *(a.annotation for a in given if a is not None)]
        elif isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            parts.append(node)
        elif isinstance(node, ast.ClassDef):
            parts += [one for one in node.decorator_list if ast.unparse(one).startswith("dataclass(frozen=True")]
            if any("Protocol" in ast.unparse(base) for base in node.bases):
                parts += [node, *(one for function in node.body for one in getattr(function, "decorator_list", []))]
        elif isinstance(node, ast.Call):
            parts += [one.value for one in node.keywords if one.arg in ("strict", "width", "height")]
        elif isinstance(node, ast.Module):
            parts += [number for one in node.body for number in _large(one)]
    # parso's columns count characters and ast's bytes: few lines have both annotations and other letters before them
    return [((p.lineno, p.col_offset), (p.end_lineno or p.lineno, p.end_col_offset or 0)) for p in filter(None, parts)]


def _large(statement: ast.stmt) -> list[ast.expr]:
    """Its numbers from LARGE on, and those shifted, where it gives a CONSTANT its value."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    if not all(map(str.isupper, names)):
        return []
    return [
        one
        for one in ast.walk(statement.value)
        if (isinstance(one, ast.Constant) and type(one.value) in (int, float) and one.value >= LARGE)
        or (isinstance(one, ast.BinOp) and isinstance(one.op, ast.LShift))
    ]


def difference(file: str, before: str, after: str) -> Mutant | None:
    """The defect as one says it: the first line that differs; None where nothing but comments or spaces does."""
    if ast.dump(ast.parse(before)) == (ast.dump(ast.parse(after)) if compiles(after) else ""):
        return None
    pairs = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
    line, (old, new) = next((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return Mutant(file, line, f"{old.strip()[:60]} → {new.strip()[:60]}", after)


def compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def copied(root: Path, to: Path) -> Path:
    """A copy of the repository's own files, as they lie there now, in a repository of its own, which tests ask."""
    listed = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=root, text=True)
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    for command in (["init", "-q"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=to, check=True)
    return to


def measured(copy: Path, workers: int, drawn: Iterable[Mutant], tests: tuple[str, ...] = ("tests",)) -> Reached:
    """One run of the quick tests in a copy, in which the lines that `Reached.of` asks for note who runs them: those of
    the defects `drawn`, those that use them, and of their files every function's first. What fails is left out."""
    notes, told, used = copy / ".mutants-notes", copy / ".mutants.xml", using(copy)
    lines: dict[str, set[int]] = defaultdict(set)
    for mutant in drawn:
        lines[mutant.file].add(mutant.line)
        for file, line in used.get(mutant.file, {}).get(mutant.line, ()):
            lines[file].add(line)
    for file in {mutant.file for mutant in drawn}:
        for node in ast.walk(ast.parse((copy / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines[file].add(next((s.lineno for s in node.body if not _comes_first(s)), node.lineno))
    places: list[tuple[str, set[int]]] = []
    for file, asked in sorted(lines.items()):
        text, numbered = noting((copy / file).read_text(encoding="utf-8"), asked, len(places))
        (copy / file).write_text(text, encoding="utf-8")
        places += [(file, of_one) for of_one in numbered]
    (copy / "mutants_notes.py").write_text(NOTES.format(file=str(notes)), encoding="utf-8")
    notes.touch()
    whole(copy, workers, f"--junitxml={told}", *tests)
    return read(copy, told, notes, places, used)


def whole(copy: Path, workers: int, *arguments: str, limit: float | None = None) -> list[str]:
    """The quick tests in a copy, several side by side; those that failed. After `limit` seconds they are ended."""
    command = [sys.executable, "-m", "pytest", *PYTEST, "-n", str(workers), "--dist", "worksteal", "-m", QUICK]
    around = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} | ENVIRONMENT
    said = copy / ".mutants-said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=copy,
            env=around,
            stdout=out,
            stderr=subprocess.DEVNULL,  # what an ending process could not note
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    return list(dict.fromkeys(fails[1] for fails in map(FAILS.fullmatch, lines) if fails))


def together(copy: Path, mutants: Iterable[Mutant]) -> None:
    """Write them all into a copy; of two that change the same lines the first."""
    of_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        of_file[mutant.file].append(mutant)
    for file, alone in of_file.items():
        before = (copy / file).read_text(encoding="utf-8").splitlines(keepends=True)
        changed: dict[tuple[int, int], list[str]] = {}
        for mutant in alone:
            after = mutant.text.splitlines(keepends=True)
            for what, i, j, begin, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
                if what != "equal" and all(j <= first or last <= i for first, last in changed):
                    changed[i, j] = after[begin:end]
        for (i, j), lines in sorted(changed.items(), reverse=True):
            before[i:j] = lines
        (copy / file).write_text("".join(before), encoding="utf-8")


def noting(text: str, lines: set[int], number: int) -> tuple[str, list[set[int]]]:
    """A file's text in which the statements on these lines note that they run, each on the line that it was on, under
    its number, counted from `number`; and by number the lines asked for. Those of a function's or a class's head note
    nothing."""
    tree = ast.parse(text)
    within: dict[ast.stmt, set[int]] = defaultdict(set)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for line in sorted(lines):
        holding = [one for one in statements if one.lineno <= line <= (one.end_lineno or one.lineno)]
        if holding:
            within[max(holding, key=lambda one: (one.lineno, one.col_offset))].add(line)
    source = [line.encode() for line in text.split("\n")]
    added: list[tuple[int, int, str]] = []
    found: list[set[int]] = []
    for statement, asked in within.items():
        if (put := _calling(statement, number + len(found))) is not None:
            added += put
            found.append(asked)
    for line, column, what in sorted(added, key=lambda one: one[:2], reverse=True):
        source[line - 1] = source[line - 1][:column] + what.encode() + source[line - 1][column:]
    return b"\n".join(source).decode(), found


def _calling(statement: ast.stmt, number: int) -> list[tuple[int, int, str]] | None:
    """What is put where, line and column, for a statement to note its number: before a simple one, around what the
    head of another computes."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return None
        case ast.Try() | ast.TryStar():
            return _calling(statement.body[0], number)
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head) | ast.AsyncFor(iter=head):
            pass
        case ast.With(items=[item, *_]) | ast.AsyncWith(items=[item, *_]):
            head = item.context_expr
        case ast.Match(subject=head):
            pass
        case _:
            place = (statement.lineno, statement.col_offset)
            return None if _comes_first(statement) else [(*place, f"{NOTED}({number}); ")]
    ends = (head.end_lineno or head.lineno, head.end_col_offset or 0)
    return [(head.lineno, head.col_offset, f"({NOTED}({number}) or ("), (*ends, "))")]


def _comes_first(statement: ast.stmt) -> bool:
    """A docstring, or an import from `__future__`, before which nothing may stand."""
    docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")


def naming(copy: Path) -> dict[str, frozenset[str]]:
    """By the file of each module, the files of tests that import something of it or of its package, themselves or by
    the tests' own helpers: `from its.package import it`, `from it import …`."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in (copy / "tests").rglob("test_*.py"):
        for module in _imported(file):
            package = copy / module.replace(".", "/")
            for one in package.glob("*.py") if package.is_dir() else [package.with_suffix(".py")]:
                found[one.relative_to(copy).as_posix()].add(file.relative_to(copy).as_posix())
    return {module: frozenset(files) for module, files in found.items()}


def _imported(file: Path) -> set[str]:
    """The modules that a file of tests imports, itself or by the tests' own helpers."""
    return set().union(*(_modules(one) for one in _with_helpers(file)))


def _modules(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _with_helpers(file: Path) -> set[Path]:
    helpers = [file.with_name(f"{name}.py") for name in _modules(file) if not name.startswith("test_")]
    return {file}.union(*(_with_helpers(helper) for helper in helpers if helper.is_file()))


def _words(file: Path, kept: Iterable[Path]) -> frozenset[str]:
    """The words of a file of tests, and of the `kept` texts that it or one of its helpers names."""
    named = "".join(one.read_text(encoding="utf-8") for one in _with_helpers(file))
    files = [file, *(one for one in kept if one.name in named)]
    return frozenset().union(*(WORD.findall(one.read_text(encoding="utf-8")) for one in files))


def using(copy: Path) -> dict[str, dict[int, set[Line]]]:
    """By file and line of what runs while a module is imported, the lines that use it: of a function's head its body,
    of a class all that stands in it, of a name that a class or a module binds the lines that mention it."""
    files = sorted(file for place in CODE for file in (copy / place).rglob("*.py"))
    code = {file.relative_to(copy).as_posix(): _Code(file.read_text(encoding="utf-8")) for file in files}
    found: dict[str, dict[int, set[Line]]] = {}
    for file, here in code.items():
        lines: dict[int, set[Line]] = defaultdict(set)
        for node in ast.walk(here.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            users = {(file, line) for line in range(node.body[0].lineno, node.end_lineno + 1)}
            until = node.body[0].lineno
            if isinstance(node, ast.ClassDef):
                users |= _mentions(node.name, file, code)
                until = node.end_lineno + 1
            for line in range(min(one.lineno for one in (node, *node.decorator_list)), until):
                lines[line] |= users
        for node in here.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                names = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
                users = set().union(*(_mentions(one.id, file, code) for one in names))
                for line in range(node.lineno, node.end_lineno + 1):
                    lines[line] |= users
        found[file] = dict(lines)
    return found


class _Code:
    """A file's code: by name the lines that mention it, alone or behind a module (`module.name`), and what it
    imports, each with the last part of its module."""

    def __init__(self, text: str):
        self.tree = ast.parse(text)
        self.mentioned: dict[str, set[int]] = defaultdict(set)
        self.imported: set[tuple[str, str]] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name):
                self.mentioned[node.id].add(node.lineno)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self.mentioned[f"{node.value.id}.{node.attr}"].add(node.lineno)
            elif isinstance(node, ast.ImportFrom):
                module = str(node.module).rpartition(".")[2]
                self.imported |= {(module, one.name) for one in node.names}


def _mentions(name: str, file: str, code: dict[str, _Code]) -> set[Line]:
    """The lines that mention what the module of this file calls so."""
    module = Path(file).stem

    def of(other: str) -> set[int]:
        alone = other == file or (module, name) in code[other].imported
        return code[other].mentioned.get(name if alone else f"{module}.{name}", set())

    return {(other, line) for other in code for line in of(other)}


def read(
    copy: Path, told: Path, notes: Path, places: list[tuple[str, set[int]]], used: dict[str, dict[int, set[Line]]]
) -> Reached:
    """What the run wrote: pytest's times, and the tests by the number of what they ran."""
    seconds, failed = {}, set()
    for case in ET.parse(told).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        seconds[name] = float(case.get("time", 0))
        if any(child.tag in ("failure", "error", "skipped") for child in case):
            failed.add(name)
    beside: dict[str, set[str]] = defaultdict(set)
    for name in seconds.keys() - failed:
        beside[name.partition("::")[0]].add(name)
    tests: dict[str, dict[int, frozenset[str]]] = defaultdict(lambda: defaultdict(frozenset))
    called: dict[str, dict[int, frozenset[str]]] = defaultdict(lambda: defaultdict(frozenset))
    for note in filter(None, map(NOTE.fullmatch, notes.read_text(encoding="utf-8", errors="replace").splitlines())):
        file, lines = places[int(note["number"])]
        there = beside[note["file"]]
        # what is reached while a test is set up serves all tests of its file: a fixture is made once
        having = there if note["phase"] == "setup" else {note["file"] + note["test"]} & there
        for line in lines:
            tests[file][line] |= having
            if note["phase"] == "call":
                called[file][line] |= having
    passed = {name: took for name, took in seconds.items() if name not in failed}
    kept = [file for file in (copy / "tests").rglob("*") if file.suffix in (".txt", ".toml")]
    words = {file.relative_to(copy).as_posix(): _words(file, kept) for file in (copy / "tests").rglob("test_*.py")}
    return Reached(tests, passed, naming(copy), used, words, called)


def run(copy: Path, tests: list[str], *options: str, limit: float = SECONDS) -> tuple[int, list[str]]:
    """pytest's exit code on these tests in a copy, and those that failed, "id - why". A run that hangs, or is slow, is
    ended: HUNG or SLOW, and in which test. GONE, and of which functions, where there are tests no more."""
    # of its own: what the last run left may still be at work in that one's
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=copy.parent))
    said = scratch / "said"
    said.touch()
    process = FORKS.Process(target=_tested, args=(copy, scratch, [*PYTEST, *options, *tests]))
    process.start()
    begun = heard = time.monotonic()
    size, ended = 0, None
    while process.is_alive() and ended is None:
        process.join(1.0)
        now, so_far = time.monotonic(), said.stat().st_size
        size, heard = so_far, heard if so_far == size else now
        ended = HUNG if now - heard > HANGS else SLOW if now - begun > SLOWEST * limit else None
    ended = ended if process.is_alive() else None
    process.kill()
    process.join()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    shutil.rmtree(scratch, ignore_errors=True)
    gone = [line.removeprefix(f"{NOT_FOUND}{copy}/") for line in lines if line.startswith(NOT_FOUND)]
    if gone:
        return GONE, gone
    failed = [line.partition(" ")[2] for line in lines if line.startswith(("FAILED ", "ERROR ")) and "::" in line]
    return (process.exitcode or PASSED, failed or lines[-1:]) if ended is None else (ended, lines[-1:])


def _tested(copy: Path, scratch: Path, arguments: list[str]) -> None:
    """In a process of its own: pytest in the copy, where nothing of this repository can be imported."""
    import pytest

    os.setsid()
    os.chdir(copy)
    os.environ["TMPDIR"], tempfile.tempdir = str(scratch), None
    os.environ["COLUMNS"] = "500"  # a reason is told in full
    sys.dont_write_bytecode = False  # what does not change is compiled once in every copy
    sys.path[:] = [place for place in sys.path if place not in ("", str(ROOT), str(ROOT / "tests"))]
    with (scratch / "said").open("wb") as said:
        os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
    code = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(code)  # whatever threads a test has left


def tried(mutant: Mutant, copy: Path, tests: list[str], limit: float = SECONDS) -> Outcome:
    """The tests in a copy that has the defect; the copy is as before then."""
    begun = time.monotonic()

    def outcome(verdict: str, by: str) -> Outcome:
        return Outcome(mutant, verdict, by, time.monotonic() - begun)

    if not tests:
        return outcome("SURVIVED", "no test to try")
    file = copy / mutant.file
    before, times = file.read_text(encoding="utf-8"), file.stat()
    try:
        file.write_text(mutant.text, encoding="utf-8")
        os.utime(file, (stamp := next(STAMPS), stamp))
        code, failed = run(copy, tests, "-x", limit=limit)
        if code == GONE:  # tests are made of what the program declares, and a defect may declare other things
            tests = [test for test in tests if test.partition("[")[0] not in failed]
            code, failed = run(copy, tests, "-x", limit=limit) if tests else (PASSED, [])
    finally:
        file.write_text(before, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    if code == HUNG:
        where = "".join(failed).strip() or "before any test"
        hangs = run(copy, tests, "-x", limit=limit)[0] == HUNG
        return outcome("broken", f"hangs without it: {where}") if hangs else outcome("caught", f"hangs: {where}")
    if code in (PASSED, SLOW):
        which = f"{len(tests)} test{'s' * (len(tests) != 1)}"
        return outcome("SURVIVED", f"some of {which}, slow" if code == SLOW else which)
    told = "".join(failed[:1]).partition(" - ")[0]
    if code == FAILED and "::" in told:
        again, failed = run(copy, [told])
        if again != PASSED:
            return outcome("broken", f"fails without it: {''.join(failed[:1])}")
    return outcome("caught", told.removeprefix("tests/"))


def main(names: list[str], count: int, seed: int, workers: int, root: Path = ROOT) -> int:
    begun = time.monotonic()

    def since() -> float:
        return time.monotonic() - begun

    files = sorted(file for place in CODE for file in (root / place).rglob("*.py") if "vendor" not in file.parts)
    files = [f for f in files if not names or any(f.relative_to(root).as_posix().startswith(name) for name in names)]
    todo = sampled(files, count, seed, root)
    os.environ.update(ENVIRONMENT)
    FORKS.set_forkserver_preload(["pytest", *IMPORTED])
    with tempfile.TemporaryDirectory(prefix="ed-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(workers):
            copies.put(copied(root, Path(folder, str(i))))
        print(f"{len(todo)} defects, seed {seed}; first the tests without any of them", flush=True)
        reached = measured(copied(root, Path(folder, "measured")), workers, todo)
        took = since()
        print(f"{len(reached.seconds)} tests, {took:.0f} s", flush=True)

        def work(mutant: Mutant, tests: Callable[[Mutant], list[str]]) -> Outcome:
            copy = copies.get()
            try:
                given = tests(mutant)
                found = tried(mutant, copy, given, max(reached.limit, sum(reached.seconds[test] for test in given)))
            finally:
                copies.put(copy)
            print(found, flush=True)
            return found

        with ThreadPoolExecutor(workers) as pool:
            outcomes = list(pool.map(partial(work, tests=reached.of), todo))
            left = [o.mutant for o in outcomes if o.verdict == "SURVIVED"]
            if left:
                print(f"{len(left)} left, {since():.0f} s; now all tests with these together", flush=True)
                together(there := copied(root, Path(folder, "together")), left)
                failed = whole(there, workers, limit=TOGETHER * took)
                print(f"{len(failed)} tests fail, {since():.0f} s; which of these defects do they notice?", flush=True)
                again = pool.map(partial(work, tests=partial(reached.suspected, failed)), left)
                outcomes = [o for o in outcomes if o.verdict != "SURVIVED"] + list(again)
    count_of = Counter(o.verdict for o in outcomes)
    print("\n".join(["", *(str(o) for o in outcomes if o.verdict != "caught")]))
    print(f"{dict(count_of)}, {since():.0f} s")
    return int(count_of["caught"] < ENOUGH * (len(outcomes) - count_of["broken"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="files or folders, from the root, that defects are drawn from (all)")
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help=f"defects to draw ({SAMPLE})")
    parser.add_argument("--seed", type=int, default=SEED, metavar="S", help=f"of the draw ({SEED})")
    parser.add_argument(
        "-j", "--workers", type=int, default=WORKERS, metavar="N", help=f"copies tried side by side ({WORKERS})"
    )
    args = parser.parse_args()
    sys.exit(main(args.files, args.sample, args.seed, args.workers))
