"""Processes that have the large libraries already: importing torch and what it brings takes seconds, and many tests
start a process of their own.

`run` is `subprocess.run` for a command of Python's. One program a test session imports what no setting changes (torch,
scipy, … and never the product, transformers or the hub's client, which read the environment as they are imported), and
every call is a fork of it: with its own arguments, folder, environment and output, and ended as any other process."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

LIBRARIES = (
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.export",
    "scipy.optimize",
    "pandas",
    "pyarrow.parquet",
    "pydantic_settings",
    "jinja2",
    "tokenizers",
    "safetensors.torch",
)
NEVER = ("ed_core", "ed_ui", "transformers", "huggingface_hub", "accelerate", "streamlit")


def run(
    command: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 600.0
) -> subprocess.CompletedProcess[str]:
    """`[sys.executable, "-c" or "-m", …]` in a process of its own, its output captured as text."""
    python, *arguments = map(str, command)
    assert python == sys.executable and arguments[0] in ("-c", "-m")
    env = dict(os.environ if env is None else env)
    assert env["OMP_NUM_THREADS"] == "1"
    program = _program()
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        asked = {"arguments": arguments, "cwd": str(cwd), "env": env}
        asked |= {"out": str(out), "err": str(err), "timeout": timeout}
        program.stdin.write(json.dumps(asked) + "\n")
        program.stdin.flush()
        code = json.loads(program.stdout.readline())
        told = [file.read_text(encoding="utf-8", errors="replace") for file in (out, err)]
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout, *told)
    return subprocess.CompletedProcess(command, code, *told)


@cache
def _program() -> subprocess.Popen:
    """Ends with the input that this process gives it. One thread, which torch is told before it is imported."""
    return subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        encoding="utf-8",
    )


def main() -> None:
    for name in LIBRARIES:
        import_module(name)
    assert not set(NEVER) & {name.partition(".")[0] for name in sys.modules}
    gc.freeze()  # no fork looks through all of it
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if not (child := os.fork()):
            _end(lambda: _be(**asked))
        print(json.dumps(_wait(child, asked["timeout"])), flush=True)


def _wait(child: int, seconds: float) -> int | None:
    """The child's exit code as `subprocess` counts; None for one that had to be ended."""
    late = []

    def end(*_) -> None:
        late.append(child)
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        _, status = os.waitpid(child, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None if late else os.waitstatus_to_exitcode(status)


def _end(program: Callable[[], None]) -> NoReturn:
    """Run it and end as the interpreter does, but for taking the libraries apart, which takes a second."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 255)


def _be(arguments: list[str], cwd: str, env: dict[str, str], out: str, err: str, timeout: float) -> None:
    """What Python does with a command line, in the fork."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, place, how in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        file = os.open(place, how | os.O_CREAT | os.O_APPEND * (number > 0), 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    more = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    if arguments[0] == "-m":
        sys.argv[:], sys.path[:0] = arguments[1:], [cwd, *more]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:], sys.path[:0] = ["-c", *arguments[2:]], ["", *more]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))


if __name__ == "__main__":
    main()
