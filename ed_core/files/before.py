"""Files of before there were sealed containers, as manifests; and what makes of an older version's manifest one of the
next. Which format a file has is told by its content."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..types import canonical_json
from .checked import expect, parse, read_array

if TYPE_CHECKING:
    from .archive import Entry

ARRAY = ".npy"

Told = tuple[dict[str, Any], dict[str, str]]
"""What a manifest says, and its members with their hashes."""


def manifest(entries: list[Entry], read: Callable[[Entry], bytes], most: int) -> tuple[dict[str, Any], list[Entry]]:
    """The manifest of an older archive, and the entries that are its members. `read`: an entry's bytes; `most`: of its
    JSON."""
    by_name = {entry.name: entry for entry in entries}
    for name, opens in ((entries[0].name, LISTED), (entries[-1].name, LISTED), *((name, ARRAYS) for name in ARRAYS)):
        if name in opens and name in by_name:
            head = by_name[name]
            told, members = opens[name](read(head), [e for e in entries if e is not head], most)
            expect(told.keys().isdisjoint({"digest", "members"}), "neither sealed nor of an older format")
            left = [e for e in entries if e is not head or e.name in members]
            return told | {"digest": "", "members": members}, left
    raise ValueError("neither sealed nor of an older format")


def document(told: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an older file of JSON alone."""
    claims = {"format": "effective-depth claims", "version": 1} if {"about", "findings"} <= told.keys() else {}
    return {"digest": "", "members": {}} | claims | told


def _case(data: bytes, entries: list[Entry], most: int) -> Told:
    told = _canonical(data, most)
    expect([e.name for e in entries] == [f"{i}.npz" for i in range(len(entries))], "its entries are not those it lists")
    members = {f"{i}.npz": item["sha256"] for i, item in enumerate(told["items"])}
    sizes = [item.pop("bytes") for item in told["items"] if item.pop("sha256")]
    expect(sizes == [entry.bytes for entry in entries], "a result does not have its size")
    return _renamed(told), members


def _study(data: bytes, entries: list[Entry], most: int) -> Told:
    told, members = _files(data, entries, most)
    return _renamed(told), members


def _backup(data: bytes, entries: list[Entry], most: int) -> Told:
    told, members = _files(data, entries, most)
    owners = {name: file["owner"] for name, file in parse(data, most)["files"].items() if "owner" in file}
    return told | {"version": 1, "owners": owners}, members


def _files(data: bytes, entries: list[Entry], most: int) -> Told:
    """A manifest that lists files with size and hash, without this list, and the hashes."""
    told = _canonical(data, most)
    files = told.pop("files", None)
    expect(isinstance(files, dict), "it lists no files")
    expect(all(files[e.name]["bytes"] == e.bytes for e in entries if e.name in files), "a file does not have its size")
    members = {name: file["sha256"] for name, file in files.items()}
    expect("" not in members.values(), "a file without a hash")
    return told, members


def _canonical(data: bytes, most: int) -> dict[str, Any]:
    told: dict[str, Any] = parse(data, most)
    expect(isinstance(told, dict) and canonical_json(told).encode() == data, "its list is spelled in another way")
    return told


def _renamed(told: dict[str, Any]) -> dict[str, Any]:
    return {"version" if name == "schema" else name: value for name, value in told.items()}


def _result(data: bytes, entries: list[Entry], most: int) -> Told:
    told = parse(read_array(data).tobytes(), most)
    expect(told.pop("arrays") == sorted(e.name.removesuffix(ARRAY) for e in entries), "its arrays are not those listed")
    told["updates"] = told.pop("version")
    return {"format": "effective-depth result"} | _renamed(told), _unhashed(entries)


def _text(data: bytes, most: int) -> dict[str, Any]:
    """JSON in an array without dimensions."""
    told: dict[str, Any] = parse(str(read_array(data)).encode(), most)
    return told


def _maps(data: bytes, entries: list[Entry], most: int) -> Told:
    told = _text(data, most)
    return {name: told[name] for name in ("format", "version", "kind")}, {"certificate.npy": ""} | _unhashed(entries)


def _sums(data: bytes, entries: list[Entry], most: int) -> Told:
    told = _text(data, most)
    return {name: told.pop(name) for name in ("format", "version")} | {"about": told}, _unhashed(entries)


def _checkpoint(data: bytes, entries: list[Entry], most: int) -> Told:
    told = {"format": "effective-depth checkpoint", "version": 1, "what": str(read_array(data))}
    return told, _unhashed(entries)


def _unhashed(entries: list[Entry]) -> dict[str, str]:
    return {entry.name: "" for entry in entries}


Opens = dict[str, Callable[[bytes, list["Entry"], int], Told]]
LISTED: Opens = {"case.json": _case, "manifest.json": _study, "backup.json": _backup}  # first or last
ARRAYS: Opens = {"header.npy": _result, "certificate.npy": _maps, "about.npy": _sums, "what.npy": _checkpoint}


def _case_2(told: dict[str, Any]) -> dict[str, Any]:
    expect(all(item.keys() == {"shown"} for item in told["items"]), "an item has more than it should")
    return told | {"items": [item["shown"] for item in told["items"]]}


def _same(told: dict[str, Any]) -> dict[str, Any]:
    return told


SAME = ("result", "study", "backup", "card", "claims", "maps", "sums", "checkpoint")
# Kind and version: its manifest as of the next version.
MIGRATIONS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    **{(kind, 1): _same for kind in SAME},
    ("case study", 1): _case_2,
}
