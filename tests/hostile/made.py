"""Hostile files, made of good ones: of bytes, of JSON at every path, of archives under sound digests, of what lies in a
file's place."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .archives import mutated, sealed_anew

DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]
WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 0.5, 50_000_000, 10**9, 10**30, 1e308, float("nan"), float("-inf"), "", "x", "\ud800",
    "a\0b", "\u2028", "<script>alert(1)</script>", "../../etc/passwd", "x" * 100_000, [], {}, [1], {"a": 1},
    [None] * 1000, DEEP,
)  # fmt: skip
BYTES = {
    "empty": lambda d: b"",
    "a mark in front": lambda d: b"\xef\xbb\xbf" + d,
    "another mark": lambda d: b"\xff\xfe" + d,
    "in 16 bits": lambda d: d.decode("latin-1").encode("utf-16"),
    "zeros": lambda d: bytes(len(d) or 1),
    "control characters": lambda d: d.replace(b" ", b"\x1b[2J\x07"),
    "other line ends": lambda d: d.replace(b"\n", b"\r"),
    "separators": lambda d: d.replace(b" ", b"\xe2\x80\xa8"),
    "brackets": lambda d: b"[" * 200_000,
    "braces": lambda d: b'{"a":' * 200_000,
    "named tables": lambda d: b"a" + b".a" * 200_000 + b" = 1\n",
    "a table of tables": lambda d: b"a = " + b"[" * 5_000 + b"]" * 5_000,
    "digits": lambda d: b"9" * 100_000,
    "digits in TOML": lambda d: b"chunk = " + b"9" * 5_000,
    "much": lambda d: (d or b"x") * (1 + (3 << 20) // (len(d) or 1)),
    "a line without end": lambda d: b'{"text": "' + b"x" * (12 << 20) + b'"}\n',
    "half": lambda d: d[: len(d) // 2],
    "all but the last": lambda d: d[:-1],
    "twice": lambda d: d + d,
    "no UTF-8": lambda d: d.replace(b"e", b"\xff"),
}
TEMPLATES = {  # with what is said of them; "" where they may be rendered
    "{{ 'a' * 3000000000 }}": "cannot be used: it takes too much memory; use the prompt as raw",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
    "{% endfor %}": "cannot be used: it takes more than 5 s",
    "{{ raise_exception('no\nsystem') }}": "cannot be used: no system; use",
    "{{ raise_exception('x' * 100000) }}": f"cannot be used: {'x' * 200}; use",
    "{{ 10 ** 10 ** 10 }}": "",
    "{% set a = namespace(x='a') %}{% for i in range(60) %}{% set a.x = a.x + a.x %}{% endfor %}{{ a.x }}": "it takes",
    "{{ messages.__class__.__mro__ }}": "",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "cannot be used",
    "{% if %}": "cannot be used",
    "{{ 'x' * 20000000 }}": "cannot be used: it writes more than",
    "{{ (" * 3000: "cannot be used",
    "{{ '%1000000000d' % 1 }}": "cannot be used",
    "{{ [0] * 1000000000 }}": "cannot be used: it takes too much memory",
}


def special(file: Path) -> Iterator[tuple[str, None]]:
    """Something else in a file's place; it is there while the loop stands at its name."""
    file.unlink()
    for name, make in (
        ("nothing", lambda: None),
        ("a folder", file.mkdir),
        ("a pipe", lambda: os.mkfifo(file)),
        ("a device", lambda: file.symlink_to("/dev/zero")),
        ("a link to nothing", lambda: file.symlink_to("/nowhere/at/all")),
        ("a link to itself", lambda: file.symlink_to(file.name)),
    ):
        make()
        yield name, None
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)


def paths(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """Every path into a JSON value, at most three entries of a list."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*at, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 3)):
            yield from paths(value[i], (*at, i))


def changed(value: Any, at: tuple, new: Any) -> Any:
    """The same with something else at a path."""
    if not at:
        return new
    if isinstance(value, dict):
        return {k: changed(v, at[1:], new) if k == at[0] else v for k, v in value.items()}
    return [changed(v, at[1:], new) if i == at[0] else v for i, v in enumerate(value)]


class Json:
    """A file's JSON, wherever in it that is: what it says, and the file with something else in its place."""

    def __init__(self, kind: str, data: bytes):
        self.kind, self.data = kind, data
        if kind == "header":
            self.length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + self.length])
            self.certificate = "certificate" in header.get("__metadata__", {})
            self.header = header
            self.value = json.loads(header["__metadata__"]["certificate"]) if self.certificate else header
        elif kind == "zip":
            self.value = {}
            seen: list[dict] = []
            sealed_anew_or_old(data, seen)
            self.value = seen[0] if seen else {}
        else:
            lines = data.decode().splitlines()
            try:
                self.value, self.rest = json.loads(data), ""
            except ValueError:
                self.value, self.rest = json.loads(lines[0]), "\n" + "\n".join(lines[1:]) + "\n"

    def with_(self, value: Any) -> bytes:
        if self.kind == "header":
            header = self.header
            if self.certificate:
                metadata = header["__metadata__"] | {"certificate": json.dumps(value)}
                value = header | {"__metadata__": metadata}
            text = json.dumps(value).encode()
            return len(text).to_bytes(8, "little") + text + self.data[8 + self.length :]
        if self.kind == "zip":
            return sealed_anew_or_old(self.data, [], value)
        return (json.dumps(value) + self.rest).encode()


def sealed_anew_or_old(data: bytes, seen: list[dict], value: Any = None) -> bytes:
    """A container, sealed or not: what its head says is added to `seen`; `value` in its place where one is given."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        if "manifest.json" in names:

            def head(told: dict) -> dict:
                seen.append(told)
                return told if value is None or not isinstance(value, dict) else value | {"members": told["members"]}

            return sealed_anew(data, head)
        files = {name: archive.read(name) for name in names}
    name = next((n for n in names if n.endswith(".json")), None)
    if name is None:
        return data
    seen.append(json.loads(files[name]))
    if value is not None:
        files[name] = json.dumps(value).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for one, content in files.items():
            archive.writestr(one, content)
    return out.getvalue()


def hostile(kind: str, data: bytes, n: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """`n` hostile versions: bytes changed, and where it has JSON, wrong values at its paths."""
    rng = random.Random(seed)
    for name in rng.sample([*BYTES], min(len(BYTES), max(1, n // 4))):
        yield name, BYTES[name](data)
    told = None if kind in ("text", "bytes") else Json(kind, data)
    share = n // 4 if told else n - n // 4
    yield from mutated(data, share, seed)
    if told:
        at = list(paths(told.value))
        for _ in range(n - n // 4 - share):
            where, new = rng.choice(at), rng.choice(WRONG)
            yield f"{'.'.join(map(str, where))} = {repr(new)[:40]}", told.with_(changed(told.value, where, new))
