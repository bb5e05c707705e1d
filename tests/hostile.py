"""Bundles that nobody should open: changed bytes, truncations, and archives made by hand. Seeded."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator

import numpy as np

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
    header = json.loads(files["case.json"])
    yield "nothing", b""
    yield "text", b"<html>not found</html>"
    yield "an array file", files["0.npz"]
    yield "without a header", _zip({n: d for n, d in files.items() if n != "case.json"})
    yield "header last", _zip(dict(reversed(files.items())))
    yield "without an array", _zip({"case.json": files["case.json"]})
    yield "bomb", _zip({**files, "0.npz": BOMB})
    yield "a bomb in two pieces", _zip({**files, "1.npz": BOMB // 2, "2.npz": BOMB // 2})
    yield "bomb in the header", _zip({**files, "case.json": BOMB})
    yield "bomb within", _with_result(files, header, _npz_bomb())
    yield "ten thousand entries", _zip({**files, **{f"{i}.npz": b"" for i in range(1, 10_000)}})
    for name in ("../../evil", "/etc/evil", "C:\\evil", "a/../../evil", "0.npz\0.png", "\u202ezpn.0", ".", "é" * 3000):
        yield f"name {name[:12]!r}", _zip({**files, name: b"x"})
    yield "entry named twice", _zip(files, more=[("0.npz", files["0.npz"])])
    yield "header twice", _zip(files, more=[("case.json", files["case.json"])])
    yield "a link", _zip(files, mode=stat.S_IFLNK | 0o777)
    yield "a device", _zip(files, mode=stat.S_IFCHR | 0o666)
    yield "encrypted", _flagged(data, 1)
    yield "name that is no UTF-8", _zip(files | {"Ä": b""}).replace("Ä".encode(), b"\xff\xfe")
    yield "packed with LZMA", _zip(files, zipfile.ZIP_LZMA)
    for what, change in HEADERS.items():
        yield what, _zip({**files, "case.json": change(json.loads(files["case.json"]))})
    for what, change in ARRAYS.items():
        yield what, _with_result(files, header, change(files["0.npz"]))
    for what, change in WIRE_HEADERS.items():
        yield what, _with_result(files, header, _wire_header(files["0.npz"], change))


def _text(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _case(**words) -> Callable[[dict], bytes]:
    return lambda h: _text({**h, "case": {**h["case"], **words}})


def _shown(**view) -> Callable[[dict], bytes]:
    return lambda h: _text({**h, "items": [{**i, "shown": {**i["shown"], **view}} for i in h["items"]]})


HEADERS: dict[str, Callable[[dict], bytes]] = {
    "deep JSON": lambda h: b"[" * 100_000 + b"]" * 100_000,
    "huge integer": lambda h: _text(h).replace(b'"schema":1', b'"schema":' + b"9" * 100_000),
    "a huge schema": lambda h: _text(h).replace(b'"schema":1', b'"schema":' + b"9" * 4000),
    "NaN as time": _case(created=float("nan")),
    "infinite time": _case(changed=float("inf")),
    "infinity spelled as a number": lambda h: _text(h).replace(b'"created":', b'"created":1e999,"x":'),
    "a key twice": lambda h: _text(h)[:-1] + b',"schema":1}',
    "not an object": lambda h: b"7",
    "no schema": lambda h: _text({k: v for k, v in h.items() if k != "schema"}),
    "schema 0": lambda h: _text({**h, "schema": 0}),
    "schema true": lambda h: _text({**h, "schema": True}),
    "schema of tomorrow": lambda h: _text({**h, "schema": 99}),
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
    "items that are none": lambda h: _text({**h, "items": 3}),
    "no items": lambda h: _text({**h, "items": []}),
    "a wrong hash": lambda h: _text({**h, "items": [{**i, "sha256": "0" * 64} for i in h["items"]]}),
}


def _npy(dtype: str, shape: tuple, body: bytes = b"") -> bytes:
    """An array file that declares what it likes."""
    words = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words.encode() + body


def _replaced(array: bytes, name: str = "") -> Callable[[bytes], bytes]:
    """The result's first measure (or another entry) replaced by this array file."""

    def change(npz: bytes) -> bytes:
        files = _files(npz)
        files[name or next(n for n in files if n.startswith("m."))] = array
        return _zip(files, zipfile.ZIP_STORED)

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
    "a header that is an array": _replaced(_npy("'<f4'", (1,), bytes(4)), "header.npy"),
    "a header in pickle": _replaced(b"\x80\x04cos\nsystem\n.", "header.npy"),
}


def _provenance(**more) -> Callable[[dict], dict]:
    return lambda h: {**h, "provenance": {**h["provenance"], **more}}


WIRE_HEADERS: dict[str, Callable[[dict], dict]] = {
    "not complete": lambda h: {**h, "complete": False},
    "NaN as progress": lambda h: {**h, "progress": float("nan")},
    "another result's key": lambda h: {**h, "request": {**h["request"], "key": "0" * 32}},
    "an unknown probe": lambda h: {**h, "request": {**h["request"], "probe": "os.system"}},
    "a model of numbers": lambda h: {
        **h,
        "request": {**h["request"], "models": [{**h["request"]["models"][0], "source": 5}]},
    },
    "no model": lambda h: {**h, "request": {**h["request"], "models": []}},
    "no prompt": lambda h: {**h, "request": {**h["request"], "prompts": []}},
    "a prompt with a NUL": lambda h: {
        **h,
        "request": {**h["request"], "prompts": [{**h["request"]["prompts"][0], "text": "a\0b"}]},
    },
    "a parameter nobody knows": lambda h: {**h, "request": {**h["request"], "parameters": [["evil", 1]]}},
    "a parameter of another type": lambda h: {
        **h,
        "request": {**h["request"], "parameters": [[n, str(v)] for n, v in h["request"]["parameters"]]},
    },
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
    files = _files(npz)
    with np.load(io.BytesIO(npz), allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
    changed, buffer = change(header), io.BytesIO()
    if (
        changed["request"].get("key") == header["request"]["key"]
    ):  # the key is no secret: whoever changes a request gives it its own
        with contextlib.suppress(TypeError):  # no key of its own where the types are wrong and somebody looks at them
            changed["request"]["key"] = Request.from_json(changed["request"]).key
    np.save(buffer, np.frombuffer(_text(changed), np.uint8))
    return _zip({**files, "header.npy": buffer.getvalue()}, zipfile.ZIP_STORED)


def _with_result(files: dict[str, bytes], header: dict, npz: bytes) -> bytes:
    """The bundle with another first result, its hash and size told rightly."""
    entry = {**header["items"][0], "sha256": hashlib.sha256(npz).hexdigest(), "bytes": len(npz)}
    return _zip({**files, "case.json": _text({**header, "items": [entry, *header["items"][1:]]}), "0.npz": npz})


def _npz_bomb() -> bytes:
    return _zip({"header.npy": BOMB})


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
                with archive.open(info, "w") as out:
                    for _ in range(data >> 20):
                        out.write(bytes(1 << 20))
            else:
                archive.writestr(info, data)
    return buffer.getvalue()


def _flagged(data: bytes, flag: int) -> bytes:
    """Flags set in every entry of the directory and before every entry."""
    out = bytearray(data)
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = out.find(mark)
        while at >= 0:
            out[at + offset] |= flag
            at = out.find(mark, at + 4)
    return bytes(out)
