"""Small defects, one at a time, in a copy of the repository: do the tests tell?

`mutants.toml` lists them: a name, a file, a text that occurs once in it, what stands there instead, and the tests that
must fail then. `make mutants`, or `python tests/mutants.py [NAME…] [-j N]`, where a NAME is that of a mutant or the
beginning of one, or of its file's path. Every mutant is caught, survives, or is broken: its tests fail without it, or
do not run with it. Exit code 1 unless all are caught."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutants.toml")
PYTEST = ("-q", "-p", "no:cacheprovider", "--tb=no", "-rfE")
# Every run is a process of its own, forked from one that has imported what is slow and none of ours.
FORKS = multiprocessing.get_context("forkserver")
SLOW = [
    "torch",
    "transformers.modeling_utils",
    "transformers.generation",
    "streamlit.testing.v1",
    "plotly.graph_objects",
]
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # before torch is imported
SECONDS = 300  # a run that takes longer hangs
PASSED, FAILED, NONE, HANGS = 0, 1, 5, -1
PARTS = ("not browser", "browser")  # one after the other: a browser's loop runs in the thread that tests run in
STAMPS = itertools.count(1)  # times of files with a defect: compiled code is known by its source's time and size


@dataclass(frozen=True)
class Mutant:
    """One defect: in `file` stands `new` instead of `old`. `tests`: ids of pytest, one of which must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file's text with the defect; `ValueError` unless its place is found exactly once."""
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise ValueError(
                f"{self.name}: {self.old!r} occurs {found} times in {self.file}; expected once, and a change"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant. `by`: the first test that told, or why nothing can be said."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.seconds:5.0f} s  {self.mutant.name:<34} {self.mutant.file:<38} {self.by}"


def mutants(file: Path = LIST) -> list[Mutant]:
    listed = tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in listed]


def copied(root: Path, to: Path) -> Path:
    """A copy of the repository's own files, as they lie there now."""
    listed = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard"], cwd=root, text=True)
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    return to


def run(copy: Path, tests: tuple[str, ...], *options: str) -> tuple[int, list[str]]:
    """pytest's exit code on these tests in a copy, and the ids of those that failed."""
    scratch = copy.with_name(f"{copy.name}-scratch")
    scratch.mkdir(exist_ok=True)
    process = FORKS.Process(target=_tested, args=(copy, scratch, [*PYTEST, *options, *tests]))
    process.start()
    process.join(SECONDS * len(tests))
    if hangs := process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    lines = (scratch / "said").read_text(encoding="utf-8", errors="replace").splitlines()
    shutil.rmtree(scratch, ignore_errors=True)
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR ")) and "::" in line]
    return HANGS if hangs else process.exitcode, failed or lines[-1:]


def _tested(copy: Path, scratch: Path, arguments: list[str]) -> None:
    """In a process of its own: pytest in the copy, where nothing of this repository can be imported."""
    import pytest

    os.setsid()
    os.chdir(copy)
    os.environ["TMPDIR"], tempfile.tempdir = str(scratch), None
    sys.dont_write_bytecode = False  # what does not change is compiled once in every copy
    sys.path[:] = [place for place in sys.path if place not in ("", str(ROOT), str(ROOT / "tests"))]
    with (scratch / "said").open("wb") as said:
        os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
    code = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(code)  # whatever threads a test has left


def tried(mutant: Mutant, copy: Path, failing: list[str]) -> Outcome:
    """The mutant's tests in a copy that has it; the copy is as before then."""
    begun = time.monotonic()
    outcome = lambda verdict, by: Outcome(mutant, verdict, by, time.monotonic() - begun)
    if bad := [test for test in failing if test.startswith(mutant.tests)]:
        return outcome("broken", f"{bad[0]} fails without it")
    file = copy / mutant.file
    before, times = file.read_text(encoding="utf-8"), file.stat()
    try:
        file.write_text(mutant.applied(before), encoding="utf-8")
        os.utime(file, (stamp := next(STAMPS), stamp))
        code, failed = run(copy, mutant.tests, "-x")
    except (ValueError, OSError) as error:
        return outcome("broken", str(error))
    finally:
        file.write_text(before, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    if code == PASSED:
        return outcome("SURVIVED", ", ".join(mutant.tests))
    told = "".join(failed[:1]).removeprefix("tests/")
    return outcome("caught", "hangs" if code == HANGS else told) if code in (FAILED, HANGS) else outcome("broken", told)


def chosen(names: list[str]) -> list[Mutant]:
    """The mutants of these names, all without any; those whose files lie beside each other one after the other."""
    return [m for m in mutants() if not names or any(m.name.startswith(n) or m.file.startswith(n) for n in names)]


def main(names: list[str], workers: int, root: Path = ROOT) -> int:
    todo = chosen(names)
    os.environ.update(ENVIRONMENT)
    FORKS.set_forkserver_preload(["pytest", *SLOW])
    with tempfile.TemporaryDirectory(prefix="ed-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(workers):
            copies.put(copied(root, Path(folder, str(i))))
        copy = copies.get()
        print(f"{len(todo)} mutants; first their tests without any of them", flush=True)
        failing, tests = [], tuple(dict.fromkeys(test for m in todo for test in m.tests))
        for part in PARTS:
            code, failed = run(copy, tests, "-m", part)
            if code not in (PASSED, FAILED, NONE):
                print(f"The tests do not run: {failed[-1:]}")
                return 1
            failing += failed if code == FAILED else []
        copies.put(copy)

        def work(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                found = tried(mutant, copy, failing)
            finally:
                copies.put(copy)
            print(found, flush=True)
            return found

        with ThreadPoolExecutor(workers) as pool:
            outcomes = list(pool.map(work, todo))
    count = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("caught", "SURVIVED", "broken")}
    print("\n".join(["", *(str(o) for o in outcomes if o.verdict != "caught")]))
    print(", ".join(f"{n} {verdict.lower()}" for verdict, n in count.items()))
    return int(count["caught"] < len(outcomes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants, or files, by the beginning of their names")
    parser.add_argument("-j", "--workers", type=int, default=2, metavar="N", help="copies tried side by side (2)")
    args = parser.parse_args()
    sys.exit(main(args.names, args.workers))
