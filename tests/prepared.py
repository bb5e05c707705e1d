"""Processes that have the large libraries already: importing torch and what it brings takes seconds, and many tests
start a process of their own.

Once the tests are collected, when a test session has imported everything and used nothing, it is forked (`begin`).
Whoever starts `python()` as if it were Python (`-c` or `-m`) gets a fork of that fork: with its own arguments, folder,
environment and standard streams, with nothing of the product imported, and without the libraries that read the
environment as they are imported where it is another. What is started is a small program that hands on signals and the
exit code, and whose end is its fork's too; a signal that stops a process stops the small program alone."""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import TextIOBase
from pathlib import Path
from types import ModuleType
from typing import NoReturn

TESTS = Path(__file__).parent
OURS = {"ed_core", "ed_ui", *(file.stem for file in TESTS.iterdir())}
HOOKS = {"jaxtyping", "_pytest", "pytest"}  # that change what is imported
READ = ("HF_", "HUGGING", "TRANSFORMERS_")  # variables that these libraries read as they are imported
READERS = {"transformers", "huggingface_hub", "accelerate", "datasets", "peft"}
SESSIONS = {"streamlit"}  # imported anew by everybody: it is set up for the tests
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(asked).to_bytes(8, "big")], [0, 1, 2])
link.sendall(asked)
for number in {signals}:
    signal.signal(number, lambda number, _: link.send(bytes([number])))
code = int.from_bytes(link.recv(4), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""
_made: list = []  # the program's path, and the pipe at whose end all forks end


def python() -> str:
    """The path of a Python that has the large libraries already."""
    return _made[0]


def run(
    command: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 600.0
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` for `[sys.executable, "-c" or "-m", …]`, its output captured as text."""
    return subprocess.run([python(), *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)


def begin() -> None:
    """Fork this process for all that follow; it ends when this one does."""
    folder = Path(tempfile.mkdtemp(prefix="ed-prepared-"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "asked"))
    listener.listen(64)
    told = {"python": sys.executable, "address": str(folder / "asked"), "signals": [int(one) for one in PASSED_ON]}
    program = folder / "python"
    program.write_text(PROGRAM.format(**told), encoding="utf-8")
    program.chmod(0o700)
    ends, end = os.pipe()
    if not os.fork():
        _end(lambda: _serve(listener, ends, program))
    listener.close()
    os.close(ends)
    _made[:] = str(program), end


# ---------------------------------------------------------------- in the fork


def _serve(listener: socket.socket, ends: int, program: Path) -> None:
    """Fork for everybody who asks, until the pipe `ends` has no other end."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    listener, ends = _alone(listener, ends)
    sys.executable = str(program)  # of those whom a fork starts
    _forget({*OURS, *SESSIONS})
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    ready.register(ends, selectors.EVENT_READ)
    forks: dict[int, socket.socket] = {}  # by process id
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                link, _ = listener.accept()
                if child := _forked(link):
                    forks[child] = link
                    ready.register(link, selectors.EVENT_READ, child)
                    ready.register(os.pidfd_open(child), selectors.EVENT_READ, child)
                else:
                    link.close()
            elif key.fileobj == ends:
                for child in forks:
                    os.kill(child, signal.SIGKILL)
                shutil.rmtree(program.parent, ignore_errors=True)
                return
            elif isinstance(key.fileobj, socket.socket):
                said = key.fileobj.recv(1)
                if key.data in forks:
                    os.kill(key.data, said[0] if said else signal.SIGKILL)
                if not said:
                    ready.unregister(key.fileobj)
            else:
                _, status = os.waitpid(key.data, 0)
                ready.unregister(key.fd)
                os.close(key.fd)
                link = forks.pop(key.data)
                with suppress(OSError):
                    link.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
                with suppress(KeyError):
                    ready.unregister(link)
                link.close()


def _alone(listener: socket.socket, ends: int) -> tuple[socket.socket, int]:
    """The two at high places, and no other file: neither the tests' channel nor a pipe whose end somebody awaits."""
    listener, ends = os.dup2(listener.detach(), 1000), os.dup2(ends, 1001)
    os.closerange(3, 1000)
    os.closerange(1002, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=listener), ends


def _forget(names: set[str]) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[module]


def _forked(link: socket.socket) -> int:
    """The id of a fork that is what was asked for; 0 where whoever asked is gone."""
    try:
        head, streams, _, _ = socket.recv_fds(link, 8, 3)
        size, data = int.from_bytes(head, "big"), b""
        while len(data) < size and (more := link.recv(size - len(data))):
            data += more
        arguments, cwd, env = json.loads(data)
    except (OSError, ValueError):
        return 0
    if not (child := os.fork()):
        _end(lambda: _be(arguments, cwd, env, streams))
    for stream in streams:
        os.close(stream)
    return child


def _end(program: Callable[[], None]) -> NoReturn:
    """Run it and end as the interpreter does, but for taking the libraries apart, which takes a second."""
    atexit._clear()  # what is registered so far is the tests'
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
    with suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(code & 255)


def _be(arguments: list[str], cwd: str, env: dict[str, str], streams: list[int]) -> None:
    """What Python does with a command line, in the fork."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1100)
    os.chdir(cwd)
    before = {name: value for name, value in os.environ.items() if name.startswith(READ)}
    assert env.get("OMP_NUM_THREADS") == os.environ["OMP_NUM_THREADS"], "torch was told before it was imported"
    os.environ.clear()
    os.environ.update(env)
    if before != {name: value for name, value in env.items() if name.startswith(READ)}:
        _forget(READERS)
    _as_at_the_start()
    more = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    safe = arguments[0] in ("-P", "-I")  # the folder is none of modules
    arguments = arguments[safe:]
    if arguments[0] == "-m":
        sys.argv[:], sys.path[:0] = arguments[1:], [*([] if safe else [cwd]), *more]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        assert arguments[0] == "-c"
        sys.argv[:], sys.path[:0] = ["-c", *arguments[2:]], [*([] if safe else [""]), *more]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))


def _as_at_the_start() -> None:
    """Take back what tests do to an interpreter."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__module__.partition(".")[0] not in HOOKS]
    given = {str(TESTS), str(TESTS.parent), "", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [place for place in sys.path if place not in given]
    importlib.reload(warnings)
    logging.root.handlers.clear()
    logging._handlerList.clear()  # type: ignore[attr-defined]  # whom `logging.config` closes, their streams too
    for logger in logging.root.manager.loggerDict.values():  # a library's own handler wrote to the tests' stream
        for handler in getattr(logger, "handlers", ()):
            if isinstance(vars(handler).get("stream"), TextIOBase):
                handler.stream = sys.stderr
    faulthandler.disable()
    for number in PASSED_ON:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
