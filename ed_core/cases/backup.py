"""All kept case studies in one file and back, and whether what lies on the disk is whole. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .. import disk
from ..errors import CaseError, EffectiveDepthError, ImportRefused, StoreError
from ..files import Bounds, Head, Kind, open_sealed, write_sealed
from . import bundle
from .case_study import Case
from .kept import SUFFIX, UNREADABLE, Kept, checked

MAX_FILES, MAX_BYTES = 100_000, 1 << 44


class Header(Head):
    """Whose the case studies are, by the names of their files; of most it is nobody in particular."""

    owners: dict[str, str]


BACKUP = Kind(
    "backup",
    "a backup",
    2,
    Header,
    "give a file that `backup` wrote",
    members=rf"[a-z2-7]{{10}}{re.escape(SUFFIX)}",
    bounds=Bounds(MAX_BYTES, MAX_FILES, MAX_BYTES, bundle.MAX_BYTES, 200 * MAX_FILES),
)


def write(kept: Kept, out: Path) -> tuple[int, list[str]]:
    """Every own case study in one file, with their owners; all or nothing, `out` is replaced. The trash stays out.
    Returns how many, and what was damaged and therefore left out. Only whole files enter: each is read to the last
    array."""
    found, problems, owned = 0, [], {}

    def whole() -> Iterator[tuple[str, bytes]]:
        nonlocal found
        for file in kept.files():
            try:
                data = kept.read(file.stem)
                _check_name(file, bundle.decode(data), "it was renamed")
            except EffectiveDepthError as error:
                problems.append(f"{file.name}: {error}")
                continue
            if (owner := kept.owner(file.stem)) not in ("", UNREADABLE):
                owned[file.name] = owner
            found += 1
            yield file.name, data

    try:
        with kept.locked():
            write_sealed(out, BACKUP, {"owners": owned}, whole())  # whose is known when all are written
    except OSError as error:
        raise StoreError(f"The backup {out} cannot be written: {disk.why(error, 'FILE')}") from error
    return found, problems


def restore(kept: Kept, file: Path) -> tuple[list[tuple[Case, bool]], list[str]]:
    """Take every case study of a backup in, as an import does: nothing that is here is overwritten. Returns the case
    studies with whether each is new, and what could not be read. `ImportRefused` where the file is no backup."""
    taken, problems = [], []
    try:
        with open_sealed(file, BACKUP) as sealed:
            for name in sealed.names:
                try:
                    with BACKUP.refusing(name):
                        data, owner = bytes(sealed.read(name)), sealed.head.owners.get(name, "")
                    taken.append(kept.take_in(data, owner and checked(owner)))
                except (ImportRefused, CaseError) as error:
                    problems.append(f"{name}: {error}")
    except OSError as error:
        raise ImportRefused(f"The backup {file} cannot be read: {error.strerror or error}.") from None
    return taken, problems


def check(kept: Kept) -> tuple[int, list[str]]:
    """Read every kept, deleted and shipped case study to the last array, and change nothing: how many there are, and
    what is wrong."""
    files = [*kept.files(), *kept.files(kept.trash_path), *(kept.files(kept.shipped) if kept.shipped else [])]
    problems = [f"damaged/{name}: was set aside" for name in kept.damaged()]
    for file in files:
        try:
            _check_name(file, bundle.decode(kept.whole(file)), "it holds another case study than its name says")
        except FileNotFoundError:  # deleted meanwhile
            continue
        except (EffectiveDepthError, OSError) as error:
            problems.append(f"{file.relative_to(kept.path) if file.is_relative_to(kept.path) else file.name}: {error}")
    for id in kept.owners.ids():
        if kept.owner(id) == UNREADABLE:
            problems.append(f"{id}.owner: holds no address, so only admins may change that case study")
    return len(files), problems


def _check_name(file: Path, case: Case, what: str) -> None:
    if case.id != file.name.split(".")[0]:
        raise ImportRefused(what)
