"""No process outlives a run that started some, not even one that is killed: a second program waits until the run has
ended, however it did, then ends what it left and removes its folder.

What belongs to the run is known by a mark in its environment, or by a file in the run's folder that it holds open (some
of Ray's processes overwrite their environment with a title). Only psutil."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "EFFECTIVE_DEPTH_RUN"  # none that begins with ED_: those are settings
ROUNDS = 20  # of looking and ending, at most
WAIT_SECONDS = 60  # for the second program


class Guard:
    """Waits beside this process. `folder`: for whatever the run writes while it lasts."""

    def __init__(self) -> None:
        short = "/tmp" if os.path.isdir("/tmp") else None  # names of sockets have a length
        self.folder = Path(tempfile.mkdtemp(prefix="ed-ray-", dir=short))
        self._mark = secrets.token_hex(16)
        self._program = subprocess.Popen(
            [sys.executable, __file__, self._mark, str(self.folder), str(os.getpid())],
            stdin=subprocess.PIPE,  # ends with this process
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Processes started meanwhile bear the mark, and theirs too."""
        os.environ[MARK] = self._mark
        try:
            yield
        finally:
            del os.environ[MARK]

    def close(self) -> None:
        """End what is left, and wait for that."""
        if self._program.stdin is not None:
            self._program.stdin.close()
        self._program.wait(WAIT_SECONDS)


def of_run(mark: str, folder: str, but: set[int]) -> list[psutil.Process]:
    """The processes of a run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in but and (
                process.environ().get(MARK) == mark
                or any(file.path.startswith(f"{folder}{os.sep}") for file in process.open_files())
            ):
                found.append(process)
    return found


def main(mark: str, folder: str, run: int) -> None:
    """The second program: wait for the end of its input, then end and remove."""
    sys.stdin.buffer.read()
    for _ in range(ROUNDS):
        left = of_run(mark, folder, {os.getpid(), run})
        if not left:
            break
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, 3)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
