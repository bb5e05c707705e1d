"""Claims that are checked beside the app, in a process of its own, as studies are: closed tabs and restarts of the
server do not end it, and what was measured is taken up again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from ed_core import disk, settings
from ed_core.claims import running
from ed_core.errors import NotAllowed, StudyError
from ed_core.fits import checkpoint
from ed_core.prompts import to_jsonl
from ed_core.types import ModelSpec, Prompt
from ed_ui import prompt_set, study_runs

PROMPTS = "prompts.jsonl"


@dataclass(frozen=True)
class Wanted:
    """Claims that a page asks for: of a model, on a bundled set or on typed prompts. `also`: further models of its
    family."""

    kind: ClassVar[str] = "claims"  # the command
    file: ClassVar[str] = running.FOUND
    done: ClassVar[str] = running.DONE
    many: ClassVar[str] = "claims"

    model: ModelSpec
    bundled: str = ""
    prompts: tuple[Prompt, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        """Its folder, by the model and the prompts: one claim and all of them share it."""
        made_of = self.model.identity(), self.what, self.also
        return settings.current().cache / "claims" / checkpoint.digest("claims", *made_of)

    @property
    def what(self) -> str:
        """The prompts: a bundled set's name, or the digest of others."""
        return self.bundled or checkpoint.of_prompts(self.prompts)

    @property
    def asked(self) -> running.Asked:
        """All claims, as the command line names them."""
        return running.Asked(prompts=self.bundled or str(self.out / PROMPTS), also=self.also, **self._of_model())

    def command(self, claims: tuple[str, ...] = ()) -> str:
        """What does the same from the command line."""
        return replace(self.asked, claims=claims).command

    def found(self) -> Mapping[str, Any]:
        """What was found so far, empty while there is nothing. An `EffectiveDepthError` for a damaged file."""
        file = self.out / self.file
        return self._read(file, file.stat().st_mtime_ns) if file.is_file() else {}

    def _of_model(self) -> dict[str, str]:
        model = self.model
        source = prompt_set.source(model)
        return {"model": source, "precision": model.precision, "device": model.device, "adapter": model.adapter}

    @staticmethod
    @lru_cache(maxsize=8)
    def _read(file: Path, changed: int) -> Mapping[str, Any]:
        return running.read(file.parent)

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
        if not (self.out / study_runs.RUN).is_file() or self.running or said.startswith(self.done):
            return ""
        if said.startswith("ed_core: "):
            return said.removeprefix("ed_core: ")
        return f"The process ended before it was done; it said last: {said or 'nothing'}. Run takes it up again."

    def begin(self, claims: tuple[str, ...] = ()) -> None:
        """Start it, for all claims unless some are named. `NotAllowed` where this installation runs none, `StudyError`
        where another runs."""
        if not settings.current().studies:
            raise NotAllowed(
                f"This installation measures no {self.many} from the browser (studies); run them on the machine itself."
            )
        if any(study_runs.running(place) for place in self.out.parent.glob("*/")):
            raise StudyError(
                f"On this machine {self.many} are being measured already; wait until they are, or cancel them."
            )
        one = self.asked
        words = [self.kind, f"--model={one.model}", f"--set={one.prompts}", f"--out={self.out}", "--progress"]
        words += [f"--claim={name}" for name in claims] + [f"--also={name}" for name in self.also]
        words += [f"--precision={one.precision}", f"--device={one.device}", f"--adapter={one.adapter}"]
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if not self.bundled:
                disk.write(self.out / PROMPTS, to_jsonl(self.prompts).encode())
            study_runs.start(self.out, words)
        except OSError as error:
            raise StudyError(f"The {self.many} cannot be begun: {disk.why(error)}") from error

    def stop(self) -> None:
        """End it; what was measured stays."""
        study_runs.stop(self.out)
        (self.out / study_runs.RUN).unlink(missing_ok=True)
