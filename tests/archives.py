"""Files that nobody should open: changed bytes, truncations, and archives made by hand of a case study. Seeded."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import SimpleNamespace

from ed_core.types import Request

BOMB = 200 * 2**20  # bytes of zeros, a thousandth of that when packed


def mutated(data: bytes, n: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
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


def handmade(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Archives that lie on purpose, made from a good one; every one must be refused."""
    files = _files(data)
    head = MANIFEST
    yield "nothing", b""
    yield "text", b"<html>not found</html>"
    yield "an array file", files["0.npz"]
    yield "without a header", _zip({n: d for n, d in files.items() if n != head})
    yield "in another order", _zip(dict(reversed(files.items())))
    yield "without an array", _zip({head: files[head]})
    yield "bomb", _zip({**files, "0.npz": BOMB})
    yield "a bomb in two pieces", _zip({**files, "1.npz": BOMB // 2, "2.npz": BOMB // 2})
    yield "bomb in the header", _zip({**files, head: BOMB})
    yield "bomb within", _with_result(files, _npz_bomb())
    yield "ten thousand entries", _zip({**{f"{i}.npz": b"" for i in range(1, 10_000)}, **files})
    for name in NAMES:
        yield f"name {name[:12]!r}", _zip({name: b"x", **files})
    yield "entry named twice", _zip(files, more=[("0.npz", files["0.npz"])])
    yield "header twice", _zip(files, more=[(head, files[head])])
    yield "a link", _zip(files, mode=stat.S_IFLNK | 0o777)
    yield "a device", _zip(files, mode=stat.S_IFCHR | 0o666)
    yield "encrypted", _flagged(data, 1)
    yield "name that is no UTF-8", _zip(files | {"Ä": b""}).replace("Ä".encode(), b"\xff\xfe")
    yield "packed with LZMA", _zip(files, zipfile.ZIP_LZMA)
    for what, change in HEADERS.items():
        told = change(json.loads(files[head]))
        yield what, _zip({**files, head: _text(resealed(told)) if isinstance(told, dict) else told})
    for what, change in ARRAYS.items():
        yield what, _with_result(files, change(files["0.npz"]))
    as_it_is = _wire_header(files["0.npz"], lambda h: h)
    for what, change in WIRE_HEADERS.items():
        if (changed := _wire_header(files["0.npz"], change)) != as_it_is:  # not every probe has parameters
            yield what, _with_result(files, changed)


MANIFEST = "manifest.json"
NAMES = (
    "../../evil", "/etc/evil", "C:\\evil", "a/../../evil", "0.npz\0.png", "\u202ezpn.0", ".", "é" * 3000, "x", "00.npz",
)  # fmt: skip


def resealed(told: dict) -> dict:
    """A manifest with the digest it should have."""
    rest = {name: value for name, value in told.items() if name != "digest"}
    return told | {"digest": hashlib.sha256(_text(rest)).hexdigest()}


def sealed_anew(
    data: bytes, head=lambda told: told, members=lambda files: files, packing: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """A sealed container with a changed manifest and changed members, every hash as it should be."""
    files = _files(data)
    told = json.loads(files.pop(MANIFEST))
    files = members(files)
    told = head(told | {"members": {name: hashlib.sha256(one).hexdigest() for name, one in files.items()}})
    return _zip({**files, MANIFEST: _text(resealed(told))}, packing)


def _text(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _within(part: str, **changed) -> Callable[[dict], dict]:
    """A part of a header with other words; a function makes one of what the part was."""

    def other(was: dict) -> dict:
        return {**was, **{name: new(was) if callable(new) else new for name, new in changed.items()}}

    return lambda h: {**h, part: other(h[part])}


_case, _asked, _provenance = (partial(_within, part) for part in ("case", "request", "provenance"))


def _shown(**view) -> Callable[[dict], dict]:
    def shown(item: dict) -> dict:
        return {**item, **view}

    return lambda h: {**h, "items": [shown(item) for item in h["items"]]}


def _version(value) -> Callable[[dict], dict]:
    return lambda h: {**h, "version": value}


def _spelled(old: bytes, new: bytes) -> Callable[[dict], bytes]:
    """Another spelling somewhere, under a digest of it."""

    def change(h: dict) -> bytes:
        text = _text(h).replace(old, new)
        own = f'"digest":"{h["digest"]}",'.encode()
        digest = hashlib.sha256(text.replace(own, b"", 1)).hexdigest()
        return text.replace(own, f'"digest":"{digest}",'.encode(), 1)

    return change


HEADERS: dict[str, Callable[[dict], dict | bytes]] = {
    "deep JSON": lambda h: b"[" * 100_000 + b"]" * 100_000,
    "huge integer": _spelled(b'"items":', b'"a":' + b"9" * 100_000 + b',"items":'),
    "a long integer": _spelled(b'"items":', b'"a":' + b"9" * 4000 + b',"items":'),
    "NaN as time": _case(created=float("nan")),
    "infinite time": _case(changed=float("inf")),
    "negative time": _case(created=-1.0),
    "infinity spelled as a number": _spelled(b'"created":', b'"created":1e999,"x":'),
    "a key twice": _spelled(b'"case":{', b'"case":{"created":0.0,'),
    "spaces": _spelled(b'"case":', b'"case": '),
    "not an object": lambda h: b"7",
    "no version": lambda h: {k: v for k, v in h.items() if k != "version"},
    "version 0": _version(0),
    "version true": _version(True),
    "version of tomorrow": _version(99),
    "a huge version": _version(10**30),
    "another format": lambda h: {**h, "format": "effective-depth study"},
    "no UTF-8": lambda h: b"\xff" + _text(h),
    "id with a path": _case(id="../../evil"),
    "no title": _case(title=""),
    "a title of two lines": _case(title="a\nb"),
    "a title that reorders": _case(title="a\u202egnp.exe"),
    "a title with an escape": _case(title="a\x1b[2Jb"),
    "half a character": _case(title="\ud800"),
    "long notes": _case(notes="x" * 1_000_000),
    "notes with a NUL": _case(notes="a\0b"),
    "notes that are a list": _case(notes=["x"]),
    "tags of numbers": _case(tags=[1, 2]),
    "many tags": _case(tags=[str(i) for i in range(1000)]),
    "an unknown word": _case(author="x"),
    "a window outside": _shown(window=[0, 10**9]),
    "a window of floats": _shown(window=[0.5, 1.5]),
    "a chosen token of text": _shown(selected="1"),
    "a page with a path": _shown(page="../app"),
    "settings that nest": _shown(settings=[["a", {"b": 1}]]),
    "items that are none": lambda h: {**h, "items": 3},
    "no items": lambda h: {**h, "items": []},
    "a wrong hash": lambda h: {**h, "members": dict.fromkeys(h["members"], "0" * 64)},
    "no hash": lambda h: {**h, "members": dict.fromkeys(h["members"], "")},
    "another digest": lambda h: _text({**h, "digest": "0" * 64}),
}


def _npy(dtype: str, shape: tuple, body: bytes = b"") -> bytes:
    """An array file that declares what it likes."""
    words = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words.encode() + body


def _replaced(array: bytes, name: str = "") -> Callable[[bytes], bytes]:
    """The result's first measure (or another entry) replaced by this array file."""

    def change(npz: bytes) -> bytes:
        files = _files(npz)
        name_of = name or next(n for n in files if n.startswith("m."))
        if name_of != MANIFEST:
            return sealed_anew(npz, members=lambda files: {**files, name_of: array}, packing=zipfile.ZIP_STORED)
        return _zip({**files, name_of: array}, zipfile.ZIP_STORED)

    return change


ARRAYS: dict[str, Callable[[bytes], bytes]] = {
    "objects": _replaced(_npy("'|O'", (1,), b"\x80\x04cos\nsystem\nX\x02\x00\x00\x00id\x85R.")),
    "objects in a record": _replaced(_npy("[('a', '|O')]", (1,), bytes(8))),
    "a huge shape": _replaced(_npy("'<f4'", (2**40,))),
    "a huge product": _replaced(_npy("'<f4'", (2**31, 2**31, 2**31))),
    "a negative shape": _replaced(_npy("'<f4'", (-1, 4), bytes(16))),
    "a shape of nothing times much": _replaced(_npy("'<f4'", (0, 2**62))),
    "strings": _replaced(_npy("'<U9'", (1,), bytes(36))),
    "a swapped byte order": _replaced(_npy("'>f4'", (8, 1), bytes(32))),
    "another type": _replaced(_npy("'<i4'", (8, 1), bytes(32))),
    "an empty measure": _replaced(_npy("'<f4'", (0, 0))),
    "code in an array's header": _replaced(_npy("__import__('os').system('id')", (1,), bytes(4))),
    "a stranger among the arrays": _replaced(_npy("'<f4'", (1,), bytes(4)), "x.npy"),
    "a measure nobody knows": _replaced(_npy("'<f4'", (1,), bytes(4)), "m.evil.npy"),
    "a header that is an array": _replaced(_npy("'<f4'", (1,), bytes(4)), MANIFEST),
    "a header in pickle": _replaced(b"\x80\x04cos\nsystem\n.", MANIFEST),
    "dimensions without end": _replaced(_npy("'<f4'", (1,) * 64, bytes(4))),
}


WIRE_HEADERS: dict[str, Callable[[dict], dict]] = {
    "not complete": lambda h: {**h, "complete": False},
    "NaN as progress": lambda h: {**h, "progress": float("nan")},
    "another result's key": _asked(key="0" * 32),
    "an unknown probe": _asked(probe="os.system"),
    "a model of numbers": _asked(models=lambda asked: [{**asked["models"][0], "source": 5}]),
    "no model": _asked(models=[]),
    "no prompt": _asked(prompts=[]),
    "a prompt with a NUL": _asked(prompts=lambda asked: [{**asked["prompts"][0], "text": "a\0b"}]),
    "a parameter nobody knows": _asked(parameters=[["evil", 1]]),
    "a parameter of another type": _asked(parameters=lambda asked: [[n, str(v)] for n, v in asked["parameters"]]),
    "token texts of numbers": lambda h: {**h, "token_text": [[1, 2]]},
    "tokens of lists": lambda h: {**h, "tokens": [[] for _ in h["tokens"]]},
    "more layers": lambda h: {**h, "n_layers": h["n_layers"] + 1},
    "an engine of text": _provenance(engine="1"),
    "a continuation of numbers": _provenance(continuation=5),
    "a time of numbers": _provenance(time=5),
    "NaN seconds": _provenance(seconds=float("nan")),
    "a model that is a list": _provenance(model=[]),
}


def _wire_header(npz: bytes, change: Callable[[dict], dict]) -> bytes:
    """A result whose header was changed."""
    return sealed_anew(npz, head=lambda told: _keyed(change(told), told), packing=zipfile.ZIP_STORED)


def _keyed(changed: dict, header: dict) -> dict:
    """The key is no secret: whoever changes a request gives it its own."""
    if changed["request"].get("key") == header["request"]["key"]:
        with contextlib.suppress(TypeError):  # no key of its own where the types are wrong and somebody looks at them
            changed["request"]["key"] = Request.from_json(changed["request"]).key
    return changed


def _with_result(files: dict[str, bytes], npz: bytes) -> bytes:
    """The bundle with another first result, its hash and size as they should be."""
    return sealed_anew(_zip(files), members=lambda members: {**members, "0.npz": npz})


def _npz_bomb() -> bytes:
    return _zip({"m.layer_ratio.npy": BOMB, MANIFEST: BOMB})


def _files(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zip(
    files: dict[str, bytes | int],
    packing: int = zipfile.ZIP_DEFLATED,
    mode: int = 0,
    more: list[tuple[str, bytes | int]] = [],
) -> bytes:
    import warnings

    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", packing) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice: that is the point
        for name, data in [*files.items(), *more]:
            info = zipfile.ZipInfo(name.replace("\0", "_"))
            info.external_attr, info.filename, info.compress_type = mode << 16, name, packing
            if isinstance(data, int):  # so many zeros
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
