"""Claims that are checked beside the app, in a process of its own, as studies are: closed tabs and restarts of the
server do not end it, and what was measured is taken up again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ed_core import disk, settings
from ed_core.claims import running
from ed_core.errors import NotAllowed, StudyError
from ed_core.fits import checkpoint
from ed_core.prompts import to_jsonl
from ed_core.types import ModelSpec, Prompt
from ed_ui import prompt_set, study_runs

PROMPTS = "prompts.jsonl"


def folder() -> Path:
    return settings.current().cache / "claims"


@dataclass(frozen=True)
class Wanted:
    """Claims that a page asks for: of a model, on a bundled set or on typed prompts. `also`: further models of its
    family."""

    model: ModelSpec
    bundled: str = ""
    prompts: tuple[Prompt, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        """Its folder, by the model and the prompts: one claim and all of them share it."""
        what = self.bundled or checkpoint.of_prompts(self.prompts)
        return folder() / checkpoint.digest("claims", self.model.identity(), what, self.also)

    @property
    def asked(self) -> running.Asked:
        return running.Asked(
            prompt_set.source(self.model),
            self.bundled or str(self.out / PROMPTS),
            (),
            self.also,
            self.model.precision,
            self.model.device,
            self.model.adapter,
        )

    def command(self, claims: tuple[str, ...]) -> str:
        """What does the same from the command line."""
        return replace(self.asked, claims=claims).command

    def found(self) -> Mapping[str, Any]:
        """What was found so far, empty while there is nothing. `StudyError` for a damaged file."""
        file = self.out / running.FOUND
        return _read(self.out, file.stat().st_mtime_ns) if file.is_file() else {}

    @property
    def running(self) -> bool:
        return study_runs.running(self.out) is not None

    def progress(self) -> tuple[float, str]:
        """How much is done, and what is measured now, by what its process said last."""
        told = re.fullmatch(r"(\d+) % · (.+)", study_runs.said(self.out).strip())
        return (int(told[1]) / 100, told[2]) if told else (0.0, "")

    def trouble(self) -> str:
        """Why the last run ended without findings; "" where it was cancelled, runs, or has not begun."""
        said = study_runs.said(self.out)
        if not (self.out / study_runs.RUN).is_file() or self.running or said.startswith(running.DONE):
            return ""
        if said.startswith("ed_core: "):
            return said.removeprefix("ed_core: ")
        return f"The process ended before it was done; it said last: {said or 'nothing'}. Run takes it up again."

    def begin(self, claims: tuple[str, ...] = ()) -> None:
        """Start it, for all claims unless some are named. `NotAllowed` where this installation runs none, `StudyError`
        where another runs."""
        if not settings.current().studies:
            raise NotAllowed(
                "This installation checks no claims from the browser (studies); run them on the machine itself."
            )
        if any(study_runs.running(place) for place in folder().glob("*/")):
            raise StudyError("Claims are being checked on this machine already; wait until they are, or cancel them.")
        one = self.asked
        words = ["claims", f"--model={one.model}", f"--set={one.prompts}", f"--out={self.out}", "--progress"]
        words += [f"--claim={name}" for name in claims] + [f"--also={name}" for name in self.also]
        words += [f"--precision={one.precision}", f"--device={one.device}", f"--adapter={one.adapter}"]
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if not self.bundled:
                disk.write(self.out / PROMPTS, to_jsonl(self.prompts).encode())
            study_runs.start(self.out, words)
        except OSError as error:
            raise StudyError(f"The claims cannot be checked: {disk.why(error)}") from error

    def stop(self) -> None:
        """End it; what was measured stays."""
        study_runs.stop(self.out)
        (self.out / study_runs.RUN).unlink(missing_ok=True)


@lru_cache(maxsize=8)
def _read(out: Path, changed: int) -> Mapping[str, Any]:
    return running.read(out)
