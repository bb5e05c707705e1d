"""The tool that tries small defects: what it draws, which tests it takes, and that it tells caught from survived."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from types import ModuleType

import pytest

from tools import mutants
from tools.mutants import Mutant, Reached

ADD = "def add(a: int | None, b: int) -> int | None:\n    return a + b\n"
TEST = "from sums import add\n\n\ndef test_add():\n    assert add(2, {0}) == {1}\n"


APART = """import subprocess, sys

import pytest

from ed_core import signs


@pytest.mark.parametrize("x", ["a|b"])
def test_apart(x):
    subprocess.run([sys.executable, "-c", "from ed_core.sums import more; more(1)"], check=True)
"""


def test_defects_are_drawn_one_a_line_where_code_runs(tmp_path):
    """Never in an annotation, which nothing evaluates: `int | None` is no sum."""
    pytest.importorskip("cosmic_ray", reason="`make mutants` installs cosmic-ray")
    file = tmp_path / "sums.py"
    file.write_text(ADD + "\n\ndef least(values):\n    return min(v for v in values if v > 3 and v != 5)\n")
    for seed in range(8):
        drawn = mutants.defects(file, 5, random.Random(seed), tmp_path)
        assert sorted(m.line for m in drawn) == [2, 6], "each line once"
        for mutant in drawn:
            compile(mutant.text, "sums.py", "exec")
            changed = [
                old != new for old, new in zip(file.read_text().split("\n"), mutant.text.split("\n"), strict=True)
            ]
            assert changed.count(True) == 1 and changed.index(True) == mutant.line - 1
    places = [tmp_path / name for name in ("sums.py", "one/few.py", "two/few.py")]
    for place in places[1:]:
        place.parent.mkdir()
        place.write_text("X = 1\nY = X < 2\n")
    found = mutants.sampled(places, 6, 3, tmp_path)
    assert {m.file for m in found} == {"sums.py", "one/few.py", "two/few.py"}, "every folder"
    assert found == mutants.sampled(places, 6, 3, tmp_path) != mutants.sampled(places, 6, 4, tmp_path)


def test_the_quickest_tests_that_reach_a_line_are_taken_and_one_of_each_first():
    seconds = {"a::t[0]": 1.0, "a::t[1]": 1.5, "a::u": 2.0, "b::slow": 120.0, "b::other": 0.1}
    lines = {"sums.py": {2: frozenset({"a::t[0]", "a::t[1]", "a::u", "b::slow"}), 9: frozenset({"b::other"})}}
    of = lambda line: Reached(lines, seconds).of(Mutant("sums.py", line, "", ""))
    assert of(2) == ["a::t[0]", "a::u", "a::t[1]"], "the slow one is left out"
    assert of(9) == ["b::other"]
    assert of(1) == ["b::other", "a::t[0]", "a::u", "a::t[1]"], "a line that runs at import: all tests of the file"
    assert Reached(lines, seconds).of(Mutant("else.py", 1, "", "")) == []
    about = Reached(lines, seconds | {"b::slow": 3.0}, {"sums.py": frozenset({"a"})})
    assert about.of(Mutant("sums.py", 2, "", "")) == ["a::t[0]", "a::u", "a::t[1]", "b::slow"], "all about it first"


def test_a_test_that_reaches_a_line_itself_comes_before_those_of_its_file():
    seconds = {"a::page": 1.0, "a::progress": 9.0, "b::other": 0.5}
    lines, itself = {7: frozenset({"a::page", "a::progress"})}, {7: frozenset({"a::progress"})}
    reached = Reached({"x.py": lines}, seconds, called={"x.py": itself})
    assert reached.of(Mutant("x.py", 7, "", "")) == ["a::progress", "a::page"]
    of_import = Reached({"x.py": lines}, seconds, used={"x.py": {1: {("x.py", 7)}}}, called={"x.py": itself})
    assert of_import.of(Mutant("x.py", 1, "", "")) == ["a::progress", "a::page"], "it uses what the line binds"


def test_a_line_that_runs_at_import_is_tried_first_where_it_is_used(tmp_path):
    texts = {
        "ed_core/limits.py": "MOST = 3\n\n\ndef fits(n):\n    return n < MOST\n",
        "ed_core/rooms.py": "from ed_core import limits\n\n\ndef room():\n    return limits.MOST\n",
        "ed_core/halls.py": "from ed_core.limits import MOST as most, MOST\n\n\ndef hall(n=1):\n    return MOST + n\n",
        "ed_core/other.py": "MOST = 4\n\n\nclass Other:\n    n: int = MOST\n\n    def of(self):\n        return 1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    used = mutants.using(tmp_path)
    places = [("ed_core/limits.py", 1), ("ed_core/limits.py", 5), ("ed_core/rooms.py", 5), ("ed_core/halls.py", 5)]
    assert used["ed_core/limits.py"][1] == set(places)
    assert used["ed_core/halls.py"][4] == {("ed_core/halls.py", 5)}, "what a default is for"
    assert ("ed_core/other.py", 8) in used["ed_core/other.py"][5], "a class's own lines"
    lines = {"ed_core/limits.py": {5: frozenset({"a::slow"})}, "ed_core/rooms.py": {5: frozenset({"b::room"})}}
    reached = Reached(
        lines | {"ed_core/else.py": {2: frozenset({"c::else"})}}, {"a::slow": 4.0, "b::room": 5.0}, {}, used
    )
    assert reached.of(Mutant("ed_core/limits.py", 1, "", "")) == ["a::slow", "b::room"]
    lines = {"ed_core/few.py": {7: frozenset({"a::t[gemma]", "a::t[olmo-1]"})}}
    seconds = {"a::t[gemma]": 1.0, "a::t[olmo-1]": 2.0}
    for line, text in {1: '("olmo", 2)', 3: 'of("gemma")\nof(\n    "olmo",\n    2,\n)'}.items():
        mutant = Mutant("ed_core/few.py", line, "", text)
        assert Reached(lines, seconds).of(mutant) == ["a::t[olmo-1]", "a::t[gemma]"], "the line's, or its call's"


def test_of_many_tests_those_come_first_that_have_the_lines_words():
    seconds = {"a::quick": 1.0, "b::slow": 2.0, "c::slower": 6.0}
    words = {"a": {"model", "layers"}, "b": {"model", "trust_kept"}, "c": {"model"}}
    reached = Reached({"x.py": {1: frozenset(seconds)}}, seconds, words={f: frozenset(of) for f, of in words.items()})
    assert reached.of(Mutant("x.py", 1, "", "def open(model, trust_kept=True)")) == ["b::slow", "a::quick", "c::slower"]
    imported = Reached({"x.py": {2: frozenset({"a::quick"})}}, seconds, words=reached.words)
    at_import = imported.of(Mutant("x.py", 1, "", 'TRUST = "trust_kept"  # of model and layers, model, layers'))
    assert at_import == ["b::slow", "a::quick"], "a text that somebody keeps has what is declared"


def test_a_defect_is_tried_with_a_share_of_all_tests_where_these_are_slow():
    quick, slow = ({f"a{i}::t": each for i in range(100)} for each in (5.0, 50.0))
    lines = {"x.py": {1: frozenset(quick)}}
    assert [len(Reached(lines, of).of(Mutant("x.py", 1, "", ""))) for of in (quick, slow)] == [2, 1]
    assert Reached(lines, slow).limit == pytest.approx(5000 / 150)


def test_what_nothing_evaluates_is_not_drawn():
    told = "@dataclass(frozen=True)\nclass A:\n    x: int | None = 1 + 2\n\n\nclass P(Protocol):\n    y: int = 3 + 4\n"
    (decorator, protocol, first, _) = mutants.unread(told)
    assert decorator == ((1, 1), (1, 23)) and protocol == ((6, 0), (7, 18))
    assert first == ((3, 7), (3, 17)), "the annotation, not the value behind it"
    told = "MOST, _LEAST = {'a': 4 << 2, 'b': 6}, 3\nn = 7\n"
    told += "\n\ndef f(a):\n    N = 8\n    return g(a, width=N + 1, strict=True)\n"
    silent = mutants.unread(told)
    parts = sorted(told.splitlines()[begin[0] - 1][begin[1] : end[1]] for begin, end in silent)
    assert parts == ["4 << 2", "6", "N + 1", "True"], "a small number, one of no constant and one inside are drawn"


SLEEPS = """import time
import pytest

@pytest.mark.parametrize("seconds", [0.5] * 40)
def test_slow(seconds):
    time.sleep(seconds)

def test_endless():
    time.sleep(600)

def test_false():
    assert False
"""


def test_a_run_that_hangs_is_told_from_one_that_is_slow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(mutants, "HANGS", 6)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/test_sleeps.py").write_text(SLEEPS)
    of = lambda name, limit: mutants.run(tmp_path / "there", [f"test_sleeps.py::test_{name}"], limit=limit)
    code, said = of("endless", 20.0)
    assert code == mutants.HUNG and said[0].strip() == "test_sleeps.py::test_endless"
    code, said = of("slow", 2.0)
    assert code == mutants.SLOW and "test_slow" in said[0], "20 s of sleep, ended behind six"
    (tmp_path / "there/sums.py").write_text(ADD)
    slow = mutants.tried(Mutant("sums.py", 2, "", ADD), tmp_path / "there", ["test_sleeps.py::test_slow"], limit=2.0)
    assert (slow.verdict, slow.by) == ("SURVIVED", "some of 1 test, slow")
    assert of("false", 20.0) == (mutants.FAILED, ["test_sleeps.py::test_false - assert False"])


def test_caught_survived_and_broken_are_told_apart(tmp_path, monkeypatch):
    """In a repository of one function and three tests."""
    # A page that was tested in this process is left as its main program, which every fork would run.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    sides = {"good": (3, 5), "blind": (0, 2), "wrong": (3, 6)}
    files = {"sums.py": ADD} | {f"test_{name}.py": TEST.format(*side) for name, side in sides.items()}
    files["test_gone.py"] = "def test_sub(): pass\n"
    (tmp_path / "there").mkdir()
    for name, text in files.items():
        (tmp_path / "there" / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "there", check=True)
    copy = mutants.copied(tmp_path / "there", tmp_path / "copy")
    assert sorted(file.name for file in copy.iterdir()) == [".git", *sorted(files)]
    minus = mutants.difference("sums.py", ADD, ADD.replace("+", "-"))
    assert (minus.line, minus.what) == (2, "return a + b → return a - b")

    def verdict(test: str) -> tuple[str, str]:
        outcome = mutants.tried(minus, copy, [f"{test}::test_add"] * bool(test))
        return outcome.verdict, outcome.by

    assert verdict("test_good.py") == ("caught", "test_good.py::test_add")
    assert verdict("test_blind.py") == ("SURVIVED", "1 test") and verdict("") == ("SURVIVED", "no test to try")
    assert verdict("test_gone.py") == ("SURVIVED", "0 tests"), "no such test"
    broken, why = verdict("test_wrong.py")
    assert broken == "broken" and why.startswith("fails without it: test_wrong.py::test_add - assert ")
    assert (copy / "sums.py").read_text() == ADD, "as it was"


KINDS = '''"""Statements of all kinds."""

from __future__ import annotations

import contextlib


@contextlib.contextmanager
def held(x):
    """Held."""
    yield x


class Kinds:
    """One."""

    n: int = 1

    def of(self, xs):
        """Its sum."""
        total = 0
        with held(xs) as inside, held(2):
            for x in (
                inside
            ):
                if x > 3 and (y := x) != 5:
                    total += y
                elif not x:
                    continue
                else:
                    match x, total:
                        case (1, _):
                            total += 10
        while total > 100:
            total -= 1
        try:
            total /= total - 14
        except ZeroDivisionError:
            return (
                total
                + self.n
            )
        return f"{total}"
'''


@pytest.mark.parametrize(("given", "sum_of"), [([4, 0, 1, 3], 15), ([3], "-0.0"), ([101, 1], "1.1627906976744187")])
def test_a_line_notes_that_it_runs_and_stays_where_it_was(given, sum_of, monkeypatch):
    """Held against the lines that Python's own trace tells of the same code as it was."""
    text, places = mutants.noting(KINDS, set(range(1, len(KINDS.splitlines()) + 1)), 7)
    assert len(text.splitlines()) == len(KINDS.splitlines())
    numbers: set[int] = set()
    notes = ModuleType("mutants_notes")
    notes.noted = numbers.add
    monkeypatch.setitem(sys.modules, "mutants_notes", notes)
    exec(compile(text, "noted.py", "exec"), made := {})
    assert made["Kinds"]().of(given) == sum_of, "it does what it did"
    noted = set().union(*(places[number - 7] for number in numbers))

    ran: set[int] = set()

    def trace(frame, event, _):
        if frame.f_code.co_filename == "plain.py":
            ran.update([frame.f_lineno] if event == "line" else [])
            return trace

    exec(compile(KINDS, "plain.py", "exec"), plain := {})
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        plain["Kinds"]().of(given)
    finally:
        sys.settrace(before)
    bodies = [one for one in ast.walk(ast.parse(KINDS)) if isinstance(one, ast.FunctionDef)]
    begin = {
        one.lineno
        for body in bodies
        for one in ast.walk(body)
        if isinstance(one, ast.stmt) and not isinstance(one, ast.FunctionDef | ast.Try)
    }
    assert ran & begin == noted & begin and len(ran & begin) >= 9


def test_a_run_tells_which_tests_reach_a_line(tmp_path):
    (tmp_path / "ed_core").mkdir()
    for package in ("ed_core", "ed_ui", "pages"):
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "ed_core/sums.py").write_text(ADD + "\n\ndef more(a):\n    return a\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    browser\n    real\n    slow\n")
    (tmp_path / "ed_core/signs.py").write_text("SIGN = 1\n")
    (tmp_path / "tests/keeping.py").write_text('FILE = "kept.txt"\n')
    (tmp_path / "tests/kept.txt").write_text("folded")
    test = TEST.replace("from sums", "import keeping  # noqa: F401\nfrom ed_core.sums").format(3, 5)
    test += "\n\ndef test_false():\n    assert add(1, 1) == 3\n"
    (tmp_path / "tests/test_sums.py").write_text(test)
    (tmp_path / "tests/test_apart.py").write_text(APART)
    drawn = [Mutant(f"ed_core/{name}.py", line, "", "") for name, line in (("sums", 2), ("sums", 6), ("signs", 1))]
    reached = mutants.measured(tmp_path, 1, drawn)
    assert set(reached.seconds) == {"tests/test_sums.py::test_add", "tests/test_apart.py::test_apart[a|b]"}
    assert [name for name, words in reached.words.items() if "folded" in words] == ["tests/test_sums.py"]
    lines = reached.tests["ed_core/sums.py"]
    assert lines[2] == {"tests/test_sums.py::test_add"}, "one that fails without any defect says nothing"
    assert reached.called["ed_core/sums.py"] == lines, "none of them by what was set up"
    assert lines[6] == {"tests/test_apart.py::test_apart[a|b]"}, "in a process that the test starts"
    assert reached.of(Mutant("ed_core/signs.py", 1, "", "")) == ["tests/test_apart.py::test_apart[a|b]"], "it names it"


def test_many_defects_stand_in_one_copy(tmp_path):
    lines = [f"x{i} = {i}" for i in range(6)]
    before = "\n".join(lines) + "\n"

    def defect(at: slice, *new: str) -> Mutant:
        text = "\n".join([*lines[: at.start], *new, *lines[at.stop :]]) + "\n"
        return Mutant("a.py", at.start + 1, "", text)

    (tmp_path / "a.py").write_text(before)
    (tmp_path / "b.py").write_text("y = 1\n")
    changed, gone, more = defect(slice(1, 2), "x1 = 7"), defect(slice(3, 4)), defect(slice(5, 5), "z = 0", "z = 1")
    same = defect(slice(1, 2), "x1 = 9")
    mutants.together(tmp_path, [more, changed, gone, same, Mutant("b.py", 1, "", "y = 2\n")])
    assert (tmp_path / "a.py").read_text().split("\n") == [
        "x0 = 0",
        "x1 = 7",
        "x2 = 2",
        "x4 = 4",
        "z = 0",
        "z = 1",
        "x5 = 5",
        "",
    ]
    assert (tmp_path / "b.py").read_text() == "y = 2\n"


def test_of_tests_that_failed_together_those_are_tried_that_may_have_failed_for_this_one():
    lines = {"x.py": {7: frozenset({"a::slow", "a::quick"}), 9: frozenset({"b::other"})}}
    seconds = {"a::slow": 5.0, "a::quick": 0.1, "b::other": 0.1, "c::far": 0.1, "d::names": 0.2, mutants.STYLE: 0.1}
    reached = Reached(lines, seconds, {"x.py": frozenset({"d"})})
    failed = [*seconds, "a::flaky"]
    assert reached.suspected(failed, Mutant("x.py", 7, "", "")) == ["a::quick", "d::names", "a::slow"]
    assert reached.suspected(failed[2:], Mutant("x.py", 7, "", "")) == ["d::names"]
    at_import = ["a::quick", "b::other", "d::names", "a::slow", "c::far"]
    assert reached.suspected(failed, Mutant("x.py", 1, "", "")) == at_import
    forms = {"a::t[1]": 0.3, "a::t[2]": 0.4, "a::u": 0.5}
    of_forms = Reached({"x.py": {7: frozenset(forms)}}, forms)
    assert of_forms.suspected(forms, Mutant("x.py", 7, "", "")) == ["a::t[1]", "a::u", "a::t[2]"], "one of each first"


@pytest.mark.parametrize(
    ("sides", "chosen", "code", "verdict"),
    [
        ((3, 5), True, 0, "caught"),
        ((3, 5), False, 0, "caught"),  # by all tests with it
        ((3, "add(2, 3)"), True, 1, "SURVIVED"),
    ],
)
def test_a_sample_from_its_defects_to_the_exit_code(tmp_path, monkeypatch, capsys, sides, chosen, code, verdict):
    """In a repository of one function and one test, by the whole command."""
    if not chosen:
        monkeypatch.setattr(Reached, "of", lambda *_: [])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(mutants, "IMPORTED", mutants.IMPORTED[:0])  # torch takes long
    monkeypatch.setattr(mutants, "ENVIRONMENT", {})
    minus = mutants.difference("ed_core/sums.py", ADD, ADD.replace("+", "-"))
    monkeypatch.setattr(mutants, "sampled", lambda *_: [minus])  # cosmic-ray, which draws, need not be installed
    for folder in ("ed_core", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    browser\n    real\n    slow\n")
    (tmp_path / "ed_core/sums.py").write_text(ADD)
    (tmp_path / "tests/test_sums.py").write_text(TEST.replace("from sums", "from ed_core.sums").format(*sides))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert mutants.main([], 1, 1, 1, tmp_path) == code
    said = capsys.readouterr().out
    assert "1 defects, seed 1" in said and "1 tests" in said and f"{{'{verdict}': 1}}" in said
    together = {(5, True): None, (5, False): "1 tests fail"}.get((sides[1], chosen), "0 tests fail")
    assert together in said if together else "left" not in said
    assert (tmp_path / "ed_core/sums.py").read_text() == ADD
