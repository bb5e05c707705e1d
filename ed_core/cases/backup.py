"""All kept case studies in one file and back, and whether what lies on the disk is whole. Torch-free."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import CaseError, EffectiveDepthError, ImportRefused, StoreError
from ..types import canonical_json, from_json
from . import bundle, owners
from .case_study import Case
from .kept import SUFFIX, Kept
from .owners import UNREADABLE

FORMAT, LIST = "effective-depth backup", "backup.json"
NAME = re.compile(rf"[a-z2-7]{{10}}{re.escape(SUFFIX)}")
MAX_FILES = 100_000


def write(kept: Kept, out: Path) -> tuple[int, list[str]]:
    """Every own case study in one zip, with a list of their hashes and owners; all or nothing, `out` is replaced. The
    trash stays out. Returns how many, and what was damaged and therefore left out. Only whole files enter: each is read
    to the last array."""
    whole, problems = {}, []
    try:
        with kept.locked(), disk.written(out) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
            for file in kept.files():
                try:
                    data = kept.read(file.stem)
                    _expect(bundle.decode(data).id == file.stem, "it was renamed")
                except EffectiveDepthError as error:
                    problems.append(f"{file.name}: {error}")
                    continue
                archive.writestr(zipfile.ZipInfo(file.name), data)
                whole[file.name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
                if (owner := kept.owner(file.stem)) not in ("", UNREADABLE):
                    whole[file.name]["owner"] = owner
            archive.writestr(zipfile.ZipInfo(LIST), canonical_json({"format": FORMAT, "files": whole}))
    except OSError as error:
        raise StoreError(f"The backup {out} cannot be written: {disk.why(error)}") from error
    return len(whole), problems


def restore(kept: Kept, file: Path) -> tuple[list[tuple[Case, bool]], list[str]]:
    """Take every case study of a backup in, as an import does: nothing that is here is overwritten. Returns the case
    studies with whether each is new, and what could not be read. `ImportRefused` where the file is no backup."""
    taken, problems = [], []
    try:
        with zipfile.ZipFile(file) as archive:
            listed = _list(archive)
            for name, entry in listed.items():
                try:
                    taken.append(
                        kept.take_in(
                            _entry(archive, name, entry), entry.get("owner", "") and owners.checked(entry["owner"])
                        )
                    )
                except (ImportRefused, CaseError) as error:
                    problems.append(f"{name}: {error}")
    except OSError as error:
        raise ImportRefused(f"The backup {file} cannot be read: {error.strerror or error}.") from None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        NotImplementedError,
    ) as error:
        raise ImportRefused(f"{file} is not a backup as this program writes it ({str(error)[:200]}).") from None
    return taken, problems


def check(kept: Kept) -> tuple[int, list[str]]:
    """Read every kept, deleted and shipped case study to the last array, and change nothing: how many there are, and
    what is wrong."""
    files = [*kept.files(), *kept.files(kept.trash_path), *(kept.files(kept.shipped) if kept.shipped else [])]
    problems = [f"damaged/{name}: was set aside" for name in kept.damaged()]
    for file in files:
        try:
            _expect(
                bundle.decode(file.read_bytes()).id == file.name.split(".")[0],
                "it holds another case study than its name says",
            )
        except FileNotFoundError:  # deleted meanwhile
            continue
        except (EffectiveDepthError, OSError) as error:
            problems.append(f"{file.relative_to(kept.path) if file.is_relative_to(kept.path) else file.name}: {error}")
    for id in kept.owners.ids():
        if kept.owner(id) == UNREADABLE:
            problems.append(f"{id}.owner: holds no address, so only admins may change that case study")
    return len(files), problems


def _list(archive: zipfile.ZipFile) -> dict[str, dict[str, Any]]:
    """The backup's own list; every entry of the archive is on it."""
    names = [entry.filename for entry in archive.infolist()]
    if len(names) > MAX_FILES or names[-1:] != [LIST] or archive.getinfo(LIST).file_size > 200 * MAX_FILES:
        raise ValueError("it has no list of its files")
    listed = from_json(archive.read(LIST))
    if (
        listed["format"] != FORMAT
        or sorted(listed["files"]) != sorted(names[:-1])
        or not all(NAME.fullmatch(name) for name in names[:-1])
    ):
        raise ValueError("its list is not that of its files")
    files: dict[str, dict[str, Any]] = listed["files"]
    return files


def _entry(archive: zipfile.ZipFile, name: str, entry: dict[str, Any]) -> bytes:
    """One bundle of a backup, no larger than a bundle may be, with its hash checked."""
    _expect(
        archive.getinfo(name).file_size <= bundle.MAX_BYTES
        and archive.getinfo(name).compress_type == zipfile.ZIP_STORED,
        "it is too large, or packed",
    )
    try:
        data = archive.read(name)
    except zipfile.BadZipFile as error:
        raise ImportRefused(f"it is damaged ({error})") from None
    _expect(hashlib.sha256(data).hexdigest() == entry["sha256"], "it does not have the hash it was stored with")
    return data


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ImportRefused(what)
