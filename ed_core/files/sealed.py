"""The sealed container: a zip file of members, `manifest.json` last. What is kept, exported or sent has this form.

The manifest is canonical JSON: `format` and `version`, the SHA-256 of every member, whatever the kind's schema (a
`Head`) has beyond that, and `digest`, the SHA-256 of all this. An array is the member `NAME.npy`, so `numpy.load` opens
the file too. A kind without members is its manifest alone, as indented JSON.

What comes in is untrusted: every size is bounded before anything of that size is read, names must be the kind's,
nothing is unpickled. A member is read when it is asked for, and checked against its hash then."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from .. import disk, outside
from ..bounds import NESTING
from ..errors import ImportRefused, OtherVersion, StoreError, TooLarge
from ..types import canonical_json
from . import archive
from .checked import array_parts, exactly_of, expect, parse, read_array

MANIFEST, ARRAY = "manifest.json", ".npy"
MAKER = "effective-depth "  # how every format begins
OF_THE_FILE = (errno.EINVAL, errno.EOVERFLOW)  # what a disk answers to a damaged file; anything else is its own trouble
NO_MEMORY = "the memory is full. Close something else, and try again."
SHA256 = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]


@dataclass(frozen=True)
class Bounds:
    """What a file of a kind may have at most: bytes, members, bytes of all members and of one unpacked, bytes and
    nesting of its JSON; `ratio`: bytes unpacked for each byte of the file."""

    file: int = 64 << 20
    members: int = 200
    unpacked: int = 192 << 20
    member: int = 192 << 20
    head: int = 2 << 20
    nesting: int = NESTING
    ratio: int = 1 << 10


class Head(BaseModel):
    """What every manifest has. A kind's schema adds its own fields; none has a default."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: str
    version: int
    digest: SHA256
    members: dict[str, SHA256]

    def fields(self) -> dict[str, Any]:
        """What is the kind's own."""
        return self.model_dump(exclude=set(Head.model_fields))


H = TypeVar("H", bound=Head)


@dataclass(frozen=True)
class Kind(Generic[H]):
    """A kind of file. `noun`: with its article, for sentences; `members`: the pattern of their names, "" for a
    document; `compressed`: of those that are; `again`: what to do about a damaged one."""

    name: str
    noun: str
    version: int
    head: type[H]
    again: str
    members: str = ""
    compressed: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    refuses: type[Exception] = ImportRefused

    @property
    def format(self) -> str:
        return MAKER + self.name

    @contextlib.contextmanager
    def refusing(self, name: str = "This") -> Iterator[None]:
        """Whatever a damaged or hostile file ends in becomes one sentence. What the disk answers is passed on, and a
        memory that is full says nothing of the file."""
        try:
            yield
        except (self.refuses, ImportRefused, StoreError, TooLarge):
            raise
        except MemoryError as error:
            raise StoreError(f"{name} cannot be read: {NO_MEMORY}") from error
        except Exception as error:
            for one in (error, error.__cause__):
                if isinstance(one, OSError) and one.errno is not None and one.errno not in OF_THE_FILE:
                    raise
            says = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise self.refuses(
                f"{name} is damaged, or not {self.noun} as this program writes it ({says}); {self.again}."
            ) from error


class Sealed(Generic[H]):
    """An open container. `head`: what its manifest says, checked."""

    def __init__(self, kind: Kind[H], file: io.BufferedIOBase, entries: Mapping[str, archive.Entry], head: H):
        self.kind, self.head = kind, head
        self._file, self._entries = file, entries

    @property
    def names(self) -> tuple[str, ...]:
        """The members, in their order."""
        return tuple(self._entries)

    def size(self, name: str) -> int:
        """Bytes of a member, unpacked."""
        return self._entries[name].bytes

    def read(self, name: str) -> bytearray:
        """A member's bytes, its hash checked."""
        entry = self._entries[name]
        data = archive.content(self._file, entry, self.kind.bounds.member)
        expect(hashlib.sha256(data).hexdigest() == self.head.members[name], f"{name} does not have its hash")
        return data

    def array(self, name: str) -> np.ndarray:
        """An array by its name."""
        return read_array(self.read(name + ARRAY))

    def arrays(self) -> dict[str, np.ndarray]:
        """All of them."""
        return {name.removesuffix(ARRAY): read_array(self.read(name)) for name in self._entries if name.endswith(ARRAY)}


# ---------------------------------------------------------------- in


@contextlib.contextmanager
def open_sealed(source: Path | bytes | io.BufferedIOBase, kind: Kind[H], name: str = "") -> Iterator[Sealed[H]]:
    """The container in a file, or in bytes; `name` stands for it in errors. Within the block every error but the disk's
    is one sentence of the kind's `refuses`; `OtherVersion` where that is `ImportRefused` and the file of another
    version."""
    name = name or (source.name if isinstance(source, Path) else "This")
    with contextlib.ExitStack() as opened, kind.refusing(name):
        if isinstance(source, Path):
            file: io.BufferedIOBase = opened.enter_context(outside.regular(source))
        else:
            file = io.BytesIO(source) if isinstance(source, (bytes, bytearray)) else source
        if (size := file.seek(0, 2)) > kind.bounds.file:
            raise kind.refuses(f"{name} has {_mib(size)}; at most {_mib(kind.bounds.file)} are read. {_then(kind)}")
        yield _opened(file, kind, name)


def _then(kind: Kind[Any]) -> str:
    return f"{kind.again[0].upper()}{kind.again[1:]}."


def _mib(size: int) -> str:
    return f"{size / 2**20:.3g} MiB"


def _opened(file: io.BufferedIOBase, kind: Kind[H], name: str) -> Sealed[H]:
    bounds = kind.bounds
    file.seek(0)
    if file.read(2) != b"PK":
        expect(not kind.members, "it is no zip file")
        return _document(file, kind, name)
    entries = archive.entries(file, bounds.members + 1)
    most = min(bounds.unpacked, bounds.ratio * file.seek(0, 2))
    if (size := sum(entry.bytes for entry in entries)) > most:
        raise kind.refuses(f"{name} would have {_mib(size)} unpacked; at most {_mib(most)} are read. {_then(kind)}")
    *left, manifest = entries
    expect(manifest.name == MANIFEST, f"{MANIFEST} is not its last entry")
    text = bytes(archive.content(file, manifest, bounds.head))
    head = _head(parse(text, bounds.head, bounds.nesting), text, kind, name)
    by_name = {entry.name: entry for entry in left}
    expect(len(by_name) == len(left) and by_name.keys() == head.members.keys(), "its entries are not those it lists")
    strange = next((name for name in by_name if not re.fullmatch(kind.members, name)), None)
    expect(strange is None, f"{strange!r} is no member of {kind.noun}")
    return Sealed(kind, file, by_name, head)


def _document(file: io.BufferedIOBase, kind: Kind[H], name: str) -> Sealed[H]:
    """A file that is its manifest alone."""
    if (size := file.seek(0, 2)) > kind.bounds.head:
        raise kind.refuses(f"{name} has {_mib(size)}; at most {_mib(kind.bounds.head)} are read. {_then(kind)}")
    file.seek(0)
    text = file.read()
    told = parse(text, kind.bounds.head, kind.bounds.nesting)
    expect(isinstance(told, dict) and "members" not in told, "no JSON object")
    if told.get("version") == kind.version:  # how another version is spelled is not known here
        expect({"format", "digest"} <= told.keys() and _document_of(told) == text, "it is spelled in another way")
    told["members"] = {}
    return Sealed(kind, file, {}, _head(told, canonical_json(told).encode(), kind, name))


def _head(told: Any, text: bytes, kind: Kind[H], name: str) -> H:
    """The manifest as the kind's schema has it; `text`: its canonical form."""
    expect(isinstance(told, dict) and isinstance(told.get("format"), str), "no format")
    found, version = told["format"], told.get("version")
    expect(found == kind.format, f"found {found[:60]!r}, expected {kind.format!r}")
    expect(type(version) is int and 0 < version < 1_000_000, "the version")
    if version != kind.version:
        error = OtherVersion if kind.refuses is ImportRefused else kind.refuses
        raise error(
            f"{name} is {kind.noun} of version {version}, this program reads version {kind.version} alone: "
            f"{kind.again if version < kind.version else 'update the program to open it'}."
        )
    digest = told.get("digest")
    expect(isinstance(digest, str) and len(digest) == 64, "the digest")
    rest = text.replace(f'"digest":"{digest}",'.encode(), b"", 1)
    expect(hashlib.sha256(rest).hexdigest() == digest, "its manifest does not have its digest")
    return exactly_of(kind.head, text, b"" if kind.members else json.dumps(told))


# ---------------------------------------------------------------- out

Members = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""Arrays by their names, bytes by their names with an extension; one after another where they come as pairs."""


def seal(kind: Kind[Any], head: Mapping[str, Any], members: Members = ()) -> bytes:
    """The file's bytes, the same from the same content. `head`: the fields of the kind's schema."""
    buffer = io.BytesIO()
    _seal(buffer, kind, head, members)
    return buffer.getvalue()


def write_sealed(path: Path, kind: Kind[Any], head: Mapping[str, Any], members: Members = ()) -> None:
    """The file, all or nothing: written beside its place, then renamed."""
    with disk.written(path) as handle:
        _seal(handle, kind, head, members)


def _seal(handle: BinaryIO | io.BufferedIOBase, kind: Kind[Any], head: Mapping[str, Any], members: Members) -> None:
    manifest = {"format": kind.format, "version": kind.version, "members": {}, **head}
    if not kind.members:
        handle.write(_document_of(manifest | {"digest": _digested(manifest)[0]}))
        return
    zipped = archive.Writer(handle)
    for name, content in members.items() if isinstance(members, Mapping) else members:
        if isinstance(content, (bytes, bytearray)):
            pieces: tuple[Any, ...] = (content,)
        else:
            name, pieces = name + ARRAY, array_parts(content)
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        manifest["members"][name] = digest.hexdigest()
        zipped.add(name, pieces, _compressed(kind, name))
    zipped.add(MANIFEST, (_digested(manifest)[1],), bool(kind.compressed))
    zipped.close()


def _compressed(kind: Kind[Any], name: str) -> bool:
    return bool(kind.compressed and re.fullmatch(kind.compressed, name))


def _digested(manifest: Mapping[str, Any]) -> tuple[str, bytes]:
    """The SHA-256 of a manifest as canonical JSON, and this JSON with it among its sorted keys."""
    before = canonical_json({name: value for name, value in manifest.items() if name < "digest"})
    after = canonical_json({name: value for name, value in manifest.items() if name > "digest"})
    before = before.replace("{}", "{") if before == "{}" else f"{before[:-1]},"
    digest = hashlib.sha256(f"{before}{after[1:]}".encode()).hexdigest()
    return digest, f'{before}"digest":"{digest}",{after[1:]}'.encode()


def _document_of(manifest: Mapping[str, Any]) -> bytes:
    """A manifest to be read by people too."""
    first = {name: manifest[name] for name in ("format", "version", "digest")}
    rest = {name: manifest[name] for name in sorted(manifest) if name not in first and name != "members"}
    return (json.dumps(first | rest, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()
