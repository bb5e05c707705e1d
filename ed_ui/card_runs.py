"""Depth cards that are made beside the app, as claims are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from ed_core.cards import card, making
from ed_ui import claim_runs


@dataclass(frozen=True)
class Wanted(claim_runs.Wanted):
    """A depth card that a page asks for: of a model, on a bundled set or on typed prompts."""

    kind: ClassVar[str] = "card"
    file: ClassVar[str] = card.FILE
    done: ClassVar[str] = making.DONE
    many: ClassVar[str] = "depth cards"

    @property
    def out(self) -> Path:
        return card.place(self.model, self.what, self.also)

    @property
    def asked(self) -> making.Asked:
        prompts = self.bundled or str(self.out / claim_runs.PROMPTS)
        return making.Asked(prompts=prompts, also=self.also, **self._of_model())

    def command(self, claims: tuple[str, ...] = ()) -> str:
        return self.asked.command

    @staticmethod
    def _read(file: Path, changed: int) -> Mapping[str, Any]:
        return read(file, changed)


@lru_cache(maxsize=32)
def read(file: Path, changed: int) -> dict[str, Any]:
    """The card in a file that was written at a time."""
    return card.read(file)
