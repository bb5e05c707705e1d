"""Lenses and linear maps that are fitted beside the app, each in a process of its own, as studies are: closed tabs and
restarts of the server do not end it, and what was summed up is taken up again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ed_core import disk, settings
from ed_core.cases.snippet import opening
from ed_core.errors import FitRefused, NotAllowed
from ed_core.fits import checkpoint, measured
from ed_core.fits.file import ENDING, Fit, folder, read
from ed_core.prompts import to_jsonl
from ed_core.types import ModelSpec, Prompt
from ed_ui import study_runs

ASKED, FOUND = "asked.jsonl", f"found{measured.ENDING}"
OPTIONS = {"source": "model", "control_seed": "seed"}  # of `opening`, where the command calls them otherwise


@dataclass(frozen=True)
class Wanted:
    """A fit that a page asks for: a lens of one model ("affine" or "jacobian"), or, without one, maps between two
    models or in the place of one's layers."""

    models: tuple[ModelSpec, ...]
    prompts: tuple[Prompt, ...]
    lens: str = ""

    @property
    def kind(self) -> str:
        return self.lens or (measured.Maps.kind if len(self.models) == 2 else measured.Replacement.kind)

    @property
    def out(self) -> Path:
        """Its folder, by all that can change a number."""
        identity = [model.identity() for model in self.models]
        return folder() / checkpoint.digest(self.kind, identity, checkpoint.of_prompts(self.prompts))

    @property
    def file(self) -> Path:
        """What it writes: maps into its folder, a lens where lenses are found by their names."""
        if not self.lens:
            return self.out / FOUND
        model = re.sub(r"[^\w.+-]", "-", self.models[0].name)[-40:].lstrip(".+-")
        return folder() / f"{model}-{self.lens}-{self.out.name[:6]}{ENDING}"

    def arguments(self, prompts: str, out: str) -> list[str]:
        """The command that makes it."""
        a, *others = (opening(model) for model in self.models)
        told = [f"--{OPTIONS.get(name, name)}={value}" for name, value in a.items()]
        for b in others:
            told += [f"--other={b['source']}", f"--other-precision={b['precision']}"]
            if "control" in b:
                told += [f"--other-control={b['control']}", f"--other-seed={b['control_seed']}"]
        return ["fit", self.kind, *told, f"--set={prompts}", f"--out={out}"]

    def found(self) -> measured.Maps | measured.Replacement | Fit | None:
        """What the fit gave, None while there is nothing; a damaged file is as none."""
        with contextlib.suppress(OSError, FitRefused):
            return read(self.file) if self.lens else _read(self.file, self.file.stat().st_mtime_ns)
        return None

    @property
    def running(self) -> bool:
        return study_runs.running(self.out) is not None

    def share(self) -> float:
        """How much of it is done, by what its process said last."""
        told = re.fullmatch(r"(\d+) %", study_runs.said(self.out).strip())
        return int(told[1]) / 100 if told else 0.0

    def trouble(self) -> str:
        """Why it ended without a file; "" where it was cancelled, or has not begun."""
        if not (self.out / study_runs.RUN).is_file() or self.running or self.found() is not None:
            return ""
        said = study_runs.said(self.out)
        if said.startswith("ed_core: "):
            return said.removeprefix("ed_core: ")
        return (
            f"The process that fits ended before it was done; it said last: {said or 'nothing'}. Run takes it up again."
        )

    def begin(self) -> None:
        """Start it. `NotAllowed` where this installation runs none, `FitRefused` where another runs."""
        if not settings.current().studies:
            raise NotAllowed("This installation fits nothing from the browser (studies); run it on the machine itself.")
        if any(study_runs.running(place) for place in folder().glob("*/")):
            raise FitRefused("Another fit is running on this machine; wait until it is done, or cancel it.")
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            disk.write(self.out / ASKED, to_jsonl(self.prompts).encode())
            study_runs.start(self.out, [*self.arguments(str(self.out / ASKED), str(self.file)), "--progress"])
        except OSError as error:
            raise FitRefused(f"The fit cannot be started: {disk.why(error)}") from error

    def stop(self) -> None:
        """End it; what was summed up stays, and is taken up when it is started again."""
        study_runs.stop(self.out)
        (self.out / study_runs.RUN).unlink(missing_ok=True)


def distinct(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Each prompt once, so that none is fitted on and held out."""
    return tuple({(p.text, p.answer): p for p in prompts}.values())


@lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> measured.Maps | measured.Replacement:
    return measured.read(file)
