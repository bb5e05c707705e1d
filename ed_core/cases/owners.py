"""Whose a case study is: an address in a file of its own beside the case study's, never inside it, so that it does not
travel with an export. Torch-free.

Written before the case study it belongs to: a kill in between leaves an owner of nothing, which the next case study of
that id replaces. It stays while the case study lies in the trash. No file means no owner (kept without a login, or from
the command line)."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from ..errors import CaseError
from .safe_folder import SafeFolder

SUFFIX = ".owner"
UNREADABLE = "?"  # nobody's address: only admins change such a case study
ADDRESS = re.compile(r"[^\s@]{1,200}@[^\s@]{1,200}")


class Owners:
    """The owners in one folder of case studies; the methods that write are called under its lock."""

    def __init__(self, folder: SafeFolder):
        self._folder = folder

    def of(self, id: str) -> str:
        """The owner's address; "" where there is none, `UNREADABLE` where the file is damaged."""
        try:
            found = self._file(id).read_text(encoding="utf-8").removesuffix("\n")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            return UNREADABLE
        return found if ADDRESS.fullmatch(found) else UNREADABLE

    def write(self, id: str, owner: str) -> None:
        """Make a case study that is about to be written `owner`'s, or nobody's where that is ""."""
        if owner:
            self._folder.write(self._file(id), (checked(owner) + "\n").encode())
        else:
            self.forget([id])

    def forget(self, ids: Collection[str]) -> None:
        with self._folder.disk("changed"):
            for id in ids:
                self._file(id).unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """The case studies that have, or had, an owner."""
        return sorted(file.stem for file in self._folder.path.glob(f"*{SUFFIX}"))

    def _file(self, id: str) -> Path:
        return self._folder.path / f"{id}{SUFFIX}"


def checked(owner: str) -> str:
    """An owner as it is written; `CaseError` for what is no address."""
    if not ADDRESS.fullmatch(owner):
        raise CaseError(f"The owner {owner[:80]!r} is no e-mail address; log in with an account that has one.")
    return owner
