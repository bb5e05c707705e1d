"""Commands and readers tried one by one, each in a fork of a process that has imported what it needs: its own folder,
environment and streams, 3 GB of address space, 20 s of processor time. `Trials` is this side of it; run as a program
this file is the other: with everything, forked from the tests (`prepared`), or `lean`, without torch, which most
readers and commands never ask for: its forks take half the time."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import prepared

TESTS = Path(__file__).resolve().parent.parent
MEMORY, SECONDS, WALL = 3 << 30, 20, 60.0
MORE = 300 << 20  # bytes of memory that a hostile case may take above a good one
SAID = 1 << 20  # bytes that a trial may say
COLLAPSE = 25  # madvise's MADV_COLLAPSE
CODES = (0, 1, 2, 130, 141)
HEAVY = (
    "ed_core.fits.replacement", "ed_core.models.opening", "ed_core.service.compute",
    "transformers.models.qwen3.modeling_qwen3",
)  # fmt: skip
USED = (  # what readers and commands import in functions
    "concurrent.futures.process", "ed_core.architectures.families", "ed_core.runs.leftovers",
    "ed_core.runs.processes", "ed_core.service.pool", "ed_core.sharing.site", "ed_core.sharing.space",
    "encodings.idna", "gguf", "huggingface_hub._space_api",
    "huggingface_hub.utils._validators", "plotly.offline", "pyarrow.pandas_compat", "scipy.special",
    "tokenizers.implementations", "tools.bench", "tqdm",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. `code`: the exit code, negative for a signal; `bytes`: the most memory it had."""

    code: int
    said: str
    bytes: int
    seconds: float

    def wrong(self, good: int = 0) -> str:
        """What must not be, or "". `good`: the memory of a good case."""
        if "Traceback" in self.said:
            return f"a traceback: {self.said[-1500:]}"
        if self.code not in CODES:
            kind = "a hang" if self.code in (-signal.SIGKILL, -signal.SIGXCPU) else f"exit code {self.code}"
            return f"{kind}: {self.said[-500:]}"
        if "memory ran out" in self.said or (good and self.bytes > good + MORE):
            return f"{self.bytes >> 20} MiB: {self.said[-300:]}"
        if self.code == 2 and not self.said.strip():
            return "refused without a sentence"
        return ""


class Trials:
    """The processes that fork, each started when it is first asked for."""

    def __init__(self):
        self.n = 0
        self.good: dict[str, Outcome] = {}  # of a reader with its good file
        self._servers: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.stdin.close()
        for server in self._servers.values():
            server.wait()
        print(f"\n{self.n} hostile trials")  # pytest -s shows it

    def _server(self, kind: str) -> subprocess.Popen:
        if kind not in self._servers:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("ED_")}
            environment |= {"PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent))), "HF_HUB_OFFLINE": "1"}
            command = [prepared.python() if kind == "all" else sys.executable, "-m", "hostile.forks", kind]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._servers[kind] = subprocess.Popen(command, cwd=TESTS.parent, env=environment, **pipes)
        return self._servers[kind]

    def command(
        self,
        *argv: str,
        cwd: Path,
        heavy: bool = False,
        out: str = "",
        encoding: str = "utf-8",
        room: int = 0,
        **environment: str,
    ) -> Outcome:
        """`effective-depth …`. `heavy`: it may come to need torch. `out`: where its output goes, unless that is looked
        at. `room`: bytes that a file may have before the disk is full; 0 is no limit."""
        asked = {"argv": argv, "out": out, "encoding": encoding, "room": room}
        return self._tried("all" if heavy else "lean", asked, cwd, environment)

    def reader(self, name: str, file: Path, heavy: bool = False, seconds: int = SECONDS, **environment: str) -> Outcome:
        """A reader of `hostile.readers` on a file. `heavy`: it needs torch."""
        asked = {"reader": name, "file": str(file), "seconds": seconds}
        return self._tried("all" if heavy else "lean", asked, file.parent, environment)

    def _tried(self, kind: str, asked: dict, cwd: Path, environment: dict[str, str]) -> Outcome:
        self.n += 1
        server = self._server(kind)
        environment = {"ED_CACHE": str(cwd / "cache"), "HOME": str(cwd)} | environment
        print(json.dumps(asked | {"cwd": str(cwd), "environment": environment}), file=server.stdin, flush=True)
        return Outcome(**json.loads(server.stdout.readline()))


# ---------------------------------------------------------------- the other side


def _serve() -> None:
    import warnings

    warnings.simplefilter("ignore")
    for name in (*(HEAVY if sys.argv[1] == "all" else ()), *USED):
        importlib.import_module(name)

    from ed_core.commands import parser
    from hostile import readers

    parser(), readers.READERS
    _in_large_pages()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        began, (read, said) = time.monotonic(), os.pipe()
        fcntl.fcntl(said, fcntl.F_SETPIPE_SZ, SAID)
        if not (child := os.fork()):
            _try(asked, said)
        os.close(said)
        code, usage = _awaited(child, began + WALL)
        os.set_blocking(read, False)
        with os.fdopen(read, "rb", 0) as told:  # not to its end: what the command began may live on
            heard = told.readall() or b""
        outcome = {
            "code": code,
            "said": heard.decode(errors="replace"),
            "bytes": usage.ru_maxrss << 10,
            "seconds": time.monotonic() - began,
        }
        print(json.dumps(outcome), file=answers, flush=True)


def _in_large_pages() -> None:
    """What was imported, in pages of 2 MiB where the kernel can: a fork takes half the time."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        start, end = (int(one, 16) for one in span.split("-"))
        if rights == "rw-p" and end - start >= 1 << 21:
            libc.madvise(start, end - start, COLLAPSE)


def _awaited(child: int, until: float):
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), usage
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.003)


def _try(asked: dict, said: int) -> None:
    import resource

    code = 70
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(asked["out"], os.O_WRONLY) if asked.get("out") else said, 1)
        os.dup2(said, 2)
        encoding = asked.get("encoding", "utf-8")
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding=encoding, closefd=False) for n in (1, 2))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (asked.get("seconds", SECONDS),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if room := asked.get("room"):
            sys.dont_write_bytecode = True  # of what it imports now, it would be cut as well, and stay so
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        _as_anybody()
        os.chdir(asked["cwd"])
        for name, value in asked["environment"].items():
            os.environ[name] = value
            if not value and name == "HOME":
                del os.environ[name]
        code = _carried_out(asked)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _as_anybody() -> None:
    """Without root's right to write what is read-only."""
    libc = ctypes.CDLL(None, use_errno=True)
    head, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert not libc.capset(head, none), os.strerror(ctypes.get_errno())


def _carried_out(asked: dict) -> int:
    from ed_core import commands
    from ed_core.errors import EffectiveDepthError
    from hostile.readers import BROKEN, READERS

    if "argv" in asked:
        os.environ["ED_DEBUG"] = "1"
        sys.argv = ["effective-depth", *asked["argv"]]
        return commands.shell()
    try:
        (READERS | BROKEN)[asked["reader"]].read(Path(asked["file"]))
    except EffectiveDepthError as error:
        assert str(error).strip() and "\n" not in str(error), f"not one sentence: {error}"
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    _serve()
