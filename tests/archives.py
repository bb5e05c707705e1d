"""Case study files that must not open: changed bytes, truncations, and archives that lie on purpose. Seeded."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import SimpleNamespace

from ed_core.types import Request

MANIFEST = "manifest.json"
BOMB = 200 * 2**20  # bytes of zeros, a thousandth of that when packed
NAMES = ("../../evil", "/etc/evil", "C:\\evil", "0.npz\0.png", "\u202ezpn.0", ".", "é" * 3000, "00.npz")
Lies = Iterator[tuple[str, bytes]]


def mutated(data: bytes, n: int, seed: int = 0) -> Lies:
    """`n` damaged copies: single bits and bytes anywhere and in the directory at the end, truncations, spans removed,
    doubled or zeroed."""
    rng = random.Random(seed)
    for number in range(n):
        kind = ("bit", "byte", "directory", "cut", "span", "zeros", "twice")[number % 7]
        at, out = rng.randrange(len(data)), bytearray(data)
        if kind == "directory":
            at = rng.randrange(max(0, len(data) - 400), len(data))
        end = min(len(data), at + rng.choice((1, 2, 16, 400)))
        if kind == "bit":
            out[at] ^= 1 << rng.randrange(8)
        elif kind in ("byte", "directory"):
            out[at] = rng.randrange(256)
        elif kind == "cut":
            del out[at:]
        elif kind == "span":
            del out[at:end]
        elif kind == "zeros":
            out[at:end] = bytes(end - at)
        else:
            out[at:at] = out[at:end]
        yield f"{kind} {number} at {at}", bytes(out)


def bombs(data: bytes) -> Lies:
    """Archives that unpack to far more than they are."""
    files = unzipped(data)
    yield "bomb", zipped({**files, "0.npz": BOMB})
    yield "a bomb in two pieces", zipped({**files, "1.npz": BOMB // 2, "2.npz": BOMB // 2})
    yield "bomb in the manifest", zipped({**files, MANIFEST: BOMB})
    yield "bomb within", with_result(data, zipped({"header.npy": BOMB, MANIFEST: BOMB}))
    yield "a huge shape", with_result(data, _replaced(_npy("'<f4'", (2**40,)))(files["0.npz"]))


def zips(data: bytes) -> Lies:
    """Archives that are none, or hold something else than they list."""
    files = unzipped(data)
    yield "nothing", b""
    yield "text", b"<html>not found</html>"
    yield "an array file", files["0.npz"]
    yield "without a manifest", zipped({n: d for n, d in files.items() if n != MANIFEST})
    yield "in another order", zipped(dict(reversed(files.items())))
    yield "without an array", zipped({MANIFEST: files[MANIFEST]})
    yield "ten thousand entries", zipped({**{f"{i}.npz": b"" for i in range(1, 10_000)}, **files})
    for name in NAMES:
        yield f"name {name[:12]!r}", zipped({name: b"x", **files})
    yield "entry named twice", zipped(files, more=[("0.npz", files["0.npz"])])
    yield "encrypted", _flagged(data, 1)
    yield "packed with LZMA", zipped(files, zipfile.ZIP_LZMA)


def manifests(data: bytes) -> Lies:
    """Manifests with words, numbers or JSON that this program does not write, under a digest that fits."""
    files = unzipped(data)
    for what, change in MANIFESTS.items():
        told = change(json.loads(files[MANIFEST]))
        yield what, zipped({**files, MANIFEST: _text(resealed(told)) if isinstance(told, dict) else told})


def arrays(data: bytes) -> Lies:
    """Array files that declare what they like, in the place of the first result's measure."""
    for what, change in ARRAYS.items():
        yield what, with_result(data, change(unzipped(data)["0.npz"]))


def results(data: bytes) -> Lies:
    """Results whose manifest was changed, under the key they should have."""
    for what, change in RESULTS.items():
        yield what, with_result(data, _rekeyed(unzipped(data)["0.npz"], change))


def resealed(told: dict) -> dict:
    """A manifest with the digest it should have."""
    rest = {name: value for name, value in told.items() if name != "digest"}
    return told | {"digest": hashlib.sha256(_text(rest)).hexdigest()}


def sealed_anew(
    data: bytes, head=lambda told: told, members=lambda files: files, packing: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """A sealed container with a changed manifest and changed members, every hash as it should be."""
    files = unzipped(data)
    told = json.loads(files.pop(MANIFEST))
    files = members(files)
    told = head(told | {"members": {name: hashlib.sha256(one).hexdigest() for name, one in files.items()}})
    return zipped({**files, MANIFEST: _text(resealed(told))}, packing)


def with_result(data: bytes, npz: bytes) -> bytes:
    """The case study with another first result."""
    return sealed_anew(data, members=lambda members: {**members, "0.npz": npz})


def with_array(data: bytes, array: bytes) -> bytes:
    """The case study with this array file as the first result's first measure."""
    return with_result(data, _replaced(array)(unzipped(data)["0.npz"]))


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(files: dict[str, bytes | int], packing: int = zipfile.ZIP_DEFLATED, more: list[tuple] = []) -> bytes:
    """A zip file of these entries; a number stands for so many zeros."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", packing) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice: that is the point
        for name, data in [*files.items(), *more]:
            info = zipfile.ZipInfo(name.replace("\0", "_"))
            info.filename, info.compress_type = name, packing
            if isinstance(data, int):
                packed, crc = _zeros(data)
                info.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(info, "w") as out:  # as if they had been written and packed just now
                    out._file_size, out._crc = data, crc
                    out._compressor = SimpleNamespace(flush=lambda packed=packed: packed)
            else:
                archive.writestr(info, data)
    return buffer.getvalue()


@cache
def _zeros(n: int) -> tuple[bytes, int]:
    """So many zeros, deflated, and their sum."""
    packing, packed, crc = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS), b"", 0
    for _ in range(n >> 20):
        packed, crc = packed + packing.compress(bytes(1 << 20)), zlib.crc32(bytes(1 << 20), crc)
    return packed + packing.flush(), crc


def _flagged(data: bytes, flag: int) -> bytes:
    """Flags set in every entry of the directory and before every entry."""
    out = bytearray(data)
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = out.find(mark)
        while at >= 0:
            out[at + offset] |= flag
            at = out.find(mark, at + 4)
    return bytes(out)


def _text(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _within(part: str, **changed) -> Callable[[dict], dict]:
    """A part of a manifest with other words; a function makes one of what the part was."""

    def other(was: dict) -> dict:
        return {**was, **{name: new(was) if callable(new) else new for name, new in changed.items()}}

    return lambda h: {**h, part: other(h[part])}


_case, _asked, _provenance = (partial(_within, part) for part in ("case", "request", "provenance"))


def _shown(**view) -> Callable[[dict], dict]:
    return lambda h: {**h, "items": [{**item, **view} for item in h["items"]]}


def _spelled(old: bytes, new: bytes) -> Callable[[dict], bytes]:
    """Another spelling somewhere, under a digest of it."""

    def change(h: dict) -> bytes:
        text, own = _text(h).replace(old, new), f'"digest":"{h["digest"]}",'.encode()
        digest = hashlib.sha256(text.replace(own, b"", 1)).hexdigest()
        return text.replace(own, f'"digest":"{digest}",'.encode(), 1)

    return change


MANIFESTS: dict[str, Callable[[dict], dict | bytes]] = {
    "deep JSON": lambda h: b"[" * 100_000 + b"]" * 100_000,
    "NaN as time": _case(created=float("nan")),
    "negative time": _case(created=-1.0),
    "a key twice": _spelled(b'"case":{', b'"case":{"created":0.0,'),
    "version of tomorrow": lambda h: {**h, "version": 99},
    "no UTF-8": lambda h: b"\xff" + _text(h),
    "id with a path": _case(id="../../evil"),
    "a title that reorders": _case(title="a\u202egnp.exe"),
    "long notes": _case(notes="x" * 1_000_000),
    "an unknown word": _case(author="x"),
    "a window outside": _shown(window=[0, 10**9]),
    "settings that nest": _shown(settings=[["a", {"b": 1}]]),
    "no items": lambda h: {**h, "items": []},
    "a wrong hash": lambda h: {**h, "members": dict.fromkeys(h["members"], "0" * 64)},
    "another digest": lambda h: _text({**h, "digest": "0" * 64}),
}


def _npy(dtype: str, shape: tuple, body: bytes = b"") -> bytes:
    """An array file that declares what it likes."""
    words = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words.encode() + body


def _replaced(array: bytes, name: str = "") -> Callable[[bytes], bytes]:
    """A result whose first measure (or another entry) is this array file."""

    def members(files: dict) -> dict:
        return {**files, name or next(n for n in files if n.startswith("m.")): array}

    return lambda npz: sealed_anew(npz, members=members, packing=zipfile.ZIP_STORED)


ARRAYS: dict[str, Callable[[bytes], bytes]] = {
    "objects": _replaced(_npy("'|O'", (1,), b"\x80\x04cos\nsystem\nX\x02\x00\x00\x00id\x85R.")),
    "a huge product": _replaced(_npy("'<f4'", (2**31, 2**31, 2**31))),
    "a swapped byte order": _replaced(_npy("'>f4'", (8, 1), bytes(32))),
    "a measure nobody knows": _replaced(_npy("'<f4'", (1,), bytes(4)), "m.evil.npy"),
    "dimensions without end": _replaced(_npy("'<f4'", (1,) * 64, bytes(4))),
}


RESULTS: dict[str, Callable[[dict], dict]] = {
    "not complete": lambda h: {**h, "complete": False},
    "an unknown probe": _asked(probe="os.system"),
    "a model of numbers": _asked(models=lambda asked: [{**asked["models"][0], "source": 5}]),
    "a prompt with a NUL": _asked(prompts=lambda asked: [{**asked["prompts"][0], "text": "a\0b"}]),
    "a parameter nobody knows": _asked(parameters=[["evil", 1]]),
    "more layers": lambda h: {**h, "n_layers": h["n_layers"] + 1},
    "NaN seconds": _provenance(seconds=float("nan")),
    "a model that is a list": _provenance(model=[]),
}


def _rekeyed(npz: bytes, change: Callable[[dict], dict]) -> bytes:
    """A result with a changed manifest. The key is no secret: whoever changes a request gives it its own."""

    def changed(told: dict) -> dict:
        new = change(told)
        if new["request"]["key"] == told["request"]["key"]:
            with contextlib.suppress(TypeError):  # no key of its own where the types are wrong
                new["request"]["key"] = Request.from_json(new["request"]).key
        return new

    return sealed_anew(npz, head=changed, packing=zipfile.ZIP_STORED)
