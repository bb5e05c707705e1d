"""The container of everything that is kept, exported or sent: a zip of members with `manifest.json` last.

The manifest is canonical JSON: `format`, `version`, the SHA-256 of every member, the fields of the kind's schema, and
`digest`, the SHA-256 of all this. An array is the member `NAME.npy`, so `numpy.load` opens the file too. A kind without
members is its manifest alone, as indented JSON.

Files of strangers are read within bounds: declared sizes are checked before anything of that size is read, names must
be the kind's, and nothing is unpickled. A member is read when it is asked for, and checked against its hash then."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import re
import reprlib
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import ImportRefused, OtherVersion, StoreError, TooLarge
from .types import canonical_json, from_json

MANIFEST, ARRAY = "manifest.json", ".npy"
MAKER = "effective-depth "  # how every format begins
DAMAGE = (errno.EINVAL, errno.EOVERFLOW)  # what the system answers to a damaged file; other errors are the disk's
SHA256 = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
END = struct.Struct("<4s4H2LH")  # a zip file's last record
END64 = b"PK\6\7"  # before it in a zip file of more than 4 GiB
MOST_ENTRY = 512  # bytes of an entry in a zip file's directory
MOST_HEADER, MOST_DIMS = 10_000, 8  # of a .npy file
DAY = (1980, 1, 1, 0, 0, 0)
H = TypeVar("H", bound="Head")
T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """The most that a file of a kind may have: bytes (`file`), members, unpacked bytes of all members and of one, bytes
    of its manifest (`head`), and `ratio`: bytes unpacked for each byte of the file."""

    file: int = 64 << 20
    members: int = 200
    unpacked: int = 192 << 20
    member: int = 192 << 20
    head: int = 2 << 20
    ratio: int = 1 << 10


class Head(BaseModel):
    """The fields of every manifest. Each kind's schema adds its own, without defaults."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: str
    version: int
    digest: SHA256
    members: dict[str, SHA256]

    def fields(self) -> dict[str, Any]:
        """Return the fields that only this kind of file has."""
        return self.model_dump(exclude=set(Head.model_fields))


@dataclass(frozen=True)
class Kind(Generic[H]):
    """A kind of file. `noun`: its name with the article; `members`: the pattern of members' names, "" for a document of
    JSON; `compressed`: the pattern of those that are compressed; `again`: what to do about a damaged file; `refuses`:
    the class of errors."""

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
        """The kind's name in a manifest."""
        return MAKER + self.name

    @contextlib.contextmanager
    def refusing(self, name: str = "This") -> Iterator[None]:
        """Turn any error that a damaged file raises in the block into one sentence of `refuses`. Errors of the disk and
        of memory pass: they say nothing about the file. `name`: what the sentence calls the file."""
        try:
            yield
        except (self.refuses, ImportRefused, StoreError, TooLarge):
            raise
        except MemoryError as error:
            raise StoreError(
                f"{name} cannot be read: the memory is full. Close other programs and try again."
            ) from error
        except Exception as error:
            for one in (error, error.__cause__):
                if isinstance(one, OSError) and one.errno is not None and one.errno not in DAMAGE:
                    raise
            says = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise self.refuses(
                f"{name} is damaged, or not {self.noun} of this program ({says}); {self.again}."
            ) from error


class Sealed(Generic[H]):
    """An open container of a kind. `head`: its checked manifest."""

    def __init__(self, kind: Kind[H], head: H, zipped: zipfile.ZipFile | None = None):
        self.kind, self.head, self._zip = kind, head, zipped

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members, in their order."""
        return tuple(self._zip.namelist()[:-1]) if self._zip else ()

    def size(self, name: str) -> int:
        """Return the bytes of a member, unpacked."""
        assert self._zip
        return self._zip.getinfo(name).file_size

    def read(self, name: str) -> bytes:
        """Return a member's bytes, checked against its hash."""
        assert self._zip
        data = self._zip.read(name)
        expect(hashlib.sha256(data).hexdigest() == self.head.members[name], f"{name} does not have its hash")
        return data

    def array(self, name: str) -> np.ndarray:
        """Return an array by its name."""
        return read_array(self.read(name + ARRAY))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        return {name.removesuffix(ARRAY): read_array(self.read(name)) for name in self.names if name.endswith(ARRAY)}


# ---------------------------------------------------------------- checks


def expect(holds: bool, what: str) -> None:
    """Raise a `ValueError` with the text `what` unless `holds`."""
    if not holds:
        raise ValueError(what)


def parse(text: bytes, most: int) -> Any:
    """Return the value of a JSON text of at most `most` bytes; `ValueError` for others, and for NaN and infinity."""
    expect(len(text) <= most, f"{len(text)} bytes of JSON, at most {most} are read")
    value = from_json(text)
    canonical_json(value)  # refuses NaN and infinity
    return value


def exactly(kind: type[T], data: Any) -> T:
    """Return `data` as a value of the type `kind`, with every field and no other, each of its type; or `ValueError`."""
    extra = getattr(kind, "model_config", {}).get("extra", "forbid")
    try:
        schema: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
        return schema.validate_json(json.dumps(data), strict=True, extra=extra)
    except ValidationError as error:
        raise ValueError(wrong(error)) from None


_adapter = cache(TypeAdapter)


def wrong(error: ValidationError) -> str:
    """Return a schema's first error in words: where, and what was expected in place of what."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where!r}: {first['msg'].lower()}, found {reprlib.repr(first['input'])}"


def read_array(data: bytes | bytearray) -> np.ndarray:
    """Return the array in the bytes of a `.npy` file. `ValueError` for objects, and wherever the header does not fit
    the bytes: numpy by itself would allocate whatever a header declares."""
    file, data = io.BytesIO(data), bytearray(data)  # so that the array can be written into
    version = np.lib.format.read_magic(file)
    expect(version == (1, 0), f"an array's format {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file, MOST_HEADER)
    expect(dtype.kind in "biufU" and len(shape) <= MOST_DIMS, f"an array of {dtype} and shape {shape}")
    expect(math.prod(shape) * dtype.itemsize == len(data) - file.tell(), f"the length of an array of shape {shape}")
    flat = np.frombuffer(data, dtype, offset=file.tell()) if dtype.itemsize else np.zeros(shape, dtype)
    if dtype.kind == "U" and flat.size:  # Python cannot use what numpy would make of other numbers
        letters = np.frombuffer(data, np.dtype("u4").newbyteorder(dtype.byteorder), offset=file.tell())
        expect(letters.max(initial=0) <= 0x10FFFF, "an array of text with other values")
    return flat.reshape(shape, order="F" if fortran else "C")


# ---------------------------------------------------------------- in


@contextlib.contextmanager
def open_sealed(source: Path | bytes | io.BufferedIOBase, kind: Kind[H], name: str = "") -> Iterator[Sealed[H]]:
    """Yield the container in a file or in bytes, which errors call `name`. Within the block every error but the disk's
    is one sentence of the kind's `refuses`; `OtherVersion` where that is `ImportRefused` and the version another."""
    name = name or (source.name if isinstance(source, Path) else "This")
    with contextlib.ExitStack() as opened, kind.refusing(name):
        file: Any = opened.enter_context(open(source, "rb")) if isinstance(source, Path) else source
        file = io.BytesIO(file) if isinstance(file, (bytes, bytearray)) else file
        _bounded(file.seek(0, 2), kind.bounds.file, "", kind, name)
        file.seek(0)
        if not kind.members:
            data = file.read(kind.bounds.head + 1)
            _bounded(len(data), kind.bounds.head, "", kind, name)
            manifest = parse(data, kind.bounds.head)
            expect(isinstance(manifest, dict) and "members" not in manifest, "no JSON object")
            yield Sealed(kind, _head(manifest | {"members": {}}, kind, name))
        else:
            yield _opened(opened, file, kind, name)


def _bounded(size: int, most: int, unpacked: str, kind: Kind[Any], name: str) -> None:
    """Refuse a `size` of more than `most` bytes. `unpacked`: "" or the word that says so."""
    if size > most:
        raise kind.refuses(
            f"{name} has {size / 2**20:.3g} MiB{unpacked}; at most {most / 2**20:.3g} MiB are read. "
            f"{kind.again[0].upper()}{kind.again[1:]}."
        )


def _opened(opened: contextlib.ExitStack, file: Any, kind: Kind[H], name: str) -> Sealed[H]:
    """Return the container in a zip file, once its entries and manifest are within the kind's bounds and names."""
    bounds, total = kind.bounds, file.seek(0, 2)
    file.seek(max(0, total - END.size - 20))
    tail = file.read()
    large = kind.bounds.file > 2**31 and tail.startswith(END64)  # a file of this machine's own
    expect(len(tail) >= END.size and (large or not tail.startswith(END64)), "no zip file")
    sign, _, _, _, n, length, _, comment = END.unpack(tail[-END.size :])
    expect(sign == b"PK\5\6" and not comment, "no zip file, or it does not end here")
    few = 0 < n <= bounds.members + 1 and length <= n * MOST_ENTRY
    expect(few or large, f"{n} entries, at most {bounds.members} are read")
    file.seek(0)
    zipped = opened.enter_context(zipfile.ZipFile(file))
    *left, manifest = entries = zipped.infolist()
    expect(manifest.filename == MANIFEST and manifest.file_size <= bounds.head, f"{MANIFEST} is not its last entry")
    plain = all(e.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not e.flag_bits & 1 for e in entries)
    expect(plain, "an entry is encrypted or compressed in another way")
    most = min(bounds.unpacked, bounds.ratio * total)
    _bounded(sum(e.file_size for e in entries), most, " unpacked", kind, name)
    _bounded(max((e.file_size for e in left), default=0), bounds.member, " unpacked", kind, name)
    head = _head(parse(zipped.read(manifest), bounds.head), kind, name)
    names = [e.filename for e in left]
    expect(len(set(names)) == len(names) and set(names) == head.members.keys(), "its entries are not those it lists")
    strange = next((name for name in names if not re.fullmatch(kind.members, name)), None)
    expect(strange is None, f"{strange!r} is no member of {kind.noun}")
    return Sealed(kind, head, zipped)


def _head(manifest: Any, kind: Kind[H], name: str) -> H:
    """Return the manifest, as the kind's schema has it and with the digest of its content; refuse any other."""
    expect(isinstance(manifest, dict) and isinstance(manifest.get("format"), str), "no format")
    format, version = manifest["format"], manifest.get("version")
    expect(format == kind.format, f"found {format[:60]!r}, expected {kind.format!r}")
    expect(type(version) is int and 0 < version < 1_000_000, "the version")
    if version != kind.version:
        error = OtherVersion if kind.refuses is ImportRefused else kind.refuses
        raise error(
            f"{name} is {kind.noun} of version {version}, and this program reads version {kind.version}: "
            f"{kind.again if version < kind.version else 'update the program to open it'}."
        )
    expect(manifest.get("digest") == digest_of(manifest), "its manifest does not have its digest")
    return exactly(kind.head, manifest)


# ---------------------------------------------------------------- out

Members = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""Arrays by their names, bytes by their names with an extension; one after another where they come as pairs."""


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its digest, as canonical JSON."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(canonical_json(rest).encode()).hexdigest()


def seal(kind: Kind[Any], head: Mapping[str, Any], members: Members = ()) -> bytes:
    """Return a file's bytes, the same for the same content: a document as indented JSON, else a zip file with its
    manifest last. `head`: the fields of the kind's schema."""
    manifest = {"format": kind.format, "version": kind.version, "members": {}, **head}
    if not kind.members:
        first = {"format": kind.format, "version": kind.version, "digest": digest_of(manifest)}
        rest = {name: manifest[name] for name in sorted(manifest) if name not in first and name != "members"}
        return (json.dumps(first | rest, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as zipped:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            if not isinstance(content, (bytes, bytearray)):
                name, content = name + ARRAY, _array_bytes(content)
            manifest["members"][name] = hashlib.sha256(content).hexdigest()
            _add(zipped, name, content, bool(kind.compressed and re.fullmatch(kind.compressed, name)))
        sealed = canonical_json(manifest | {"digest": digest_of(manifest)}).encode()
        _add(zipped, MANIFEST, sealed, bool(kind.compressed))
    return buffer.getvalue()


def _add(zipped: zipfile.ZipFile, name: str, content: bytes | bytearray | memoryview, compressed: bool) -> None:
    """Add a member to a zip file, always with the same date."""
    zipped.writestr(zipfile.ZipInfo(name, DAY), content, zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED)


def _array_bytes(array: Any) -> memoryview:
    """Return the `.npy` file of an array of numbers, booleans or text; `TypeError` for other arrays."""
    array = np.asarray(array, order="C")
    if array.dtype.kind not in "biufU":
        raise TypeError(f"an array of {array.dtype} is not written; expected numbers, booleans or text")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, (1, 0), allow_pickle=False)
    return buffer.getbuffer()
