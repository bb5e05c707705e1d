"""A case study as one file, `.edcase`, and back. Torch-free. The same bytes are kept, exported, imported and shipped.

A zip: `case.json` first (all words, and a card for lists, so that a gallery opens no array), then `0.npz`, `1.npz`, …
as `ed_core.results.wire` packs results. What comes in is a stranger's: sizes are bounded before anything is inflated,
names must be exactly those, every array must fill its entry to the byte before numpy may allocate it, no pickle is
opened, and nothing is written to the disk on the way."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import stat
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from .. import npz
from ..errors import ImportRefused, NewerSchema
from ..prompts import check_text
from ..results.aggregate import probe_of
from ..results.wire import told, unpack
from ..sources import controls
from ..types import ModelSpec, ProbeResult, Prompt, canonical_json
from .case_study import ITEMS, Case, Item, Shown

SCHEMA = 1
MIGRATIONS: dict[
    int, Callable[[dict[str, Any]], dict[str, Any]]
] = {}  # schema n: what makes a header of schema n + 1 of it, applied on reading
FORMAT = "effective-depth case study"
HEADER = "case.json"
MAX_BYTES, MAX_UNPACKED, MAX_HEADER, MAX_ARRAYS = 64 * 2**20, 192 * 2**20, 2 * 2**20, 200
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")
MAX_TOKEN_TEXT, CARD_PROMPT = 4096, 300
OF_THE_DISK = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EISDIR,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
)  # say nothing of a bundle
CERTIFICATE: dict[str, type | tuple[type, ...]] = {
    "engine": int,
    "run": str,
    "time": str,
    "seconds": (int, float),
    "continuation": str,
    "model": dict,
    "probe": dict,
    "prompt": dict,
}
A = TypeVar("A")
B = TypeVar("B")
ADAPTER = cache(TypeAdapter)
Row = Annotated[tuple[Annotated[int, Field(ge=-1, le=255)], ...], Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Words:
    """A case study without its results."""

    id: str
    title: str
    notes: str
    tags: tuple[str, ...]
    created: float
    changed: float
    verdict: str
    kl_threshold: float
    overlap_threshold: float
    first_token: bool


@dataclass(frozen=True)
class Card(Words):
    """What a list shows of a case study, read without its arrays. `depths`: the first view's three criteria, None where
    not defined;
    `thumbnail`: rows from layer 0 up, values 0 to 255, -1 where there is none."""

    model: str
    precision: str
    prompt: str
    probes: tuple[str, ...]
    n_layers: int
    n_tokens: int
    runs: tuple[str, ...]
    depths: dict[str, int | None]
    thumbnail: Annotated[tuple[Row, ...], Field(max_length=64)]

    @property
    def words(self) -> str:
        """What a search looks through."""
        return "\n".join(
            (self.id, self.title, self.notes, *self.tags, self.prompt, self.model, self.verdict, *self.probes)
        )


@dataclass(frozen=True)
class Entry:
    """One result of a bundle."""

    sha256: str
    bytes: int
    shown: Shown


@dataclass(frozen=True)
class Header:
    """What `case.json` holds; `card` is what a `Card` has beyond the words."""

    format: str
    schema: int
    case: Words
    items: tuple[Entry, ...]
    card: dict[str, Any]


def encode(case: Case) -> bytes:
    """The bundle's bytes: always the same for the same case study."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        files = {HEADER: canonical_json(asdict(_header(case))).encode()} | {
            f"{i}.npz": item.packed for i, item in enumerate(case.items)
        }
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def decode(data: bytes) -> Case:
    """The case study in a bundle; `ImportRefused` for anything that is not one, `NewerSchema` for one of a later
    version."""
    return _refusing(_decode, data)


def drawable(data: bytes) -> Case:
    """As `decode`, and refuses also what cannot be drawn: for what comes from outside."""
    from .drawings import drawings

    case = decode(data)
    _refusing(drawings, case)
    return case


def card(file: Any) -> Card:
    """The card of a bundle (a path or an open file); its arrays are neither read nor checked."""
    return _refusing(_card, file)


def _refusing(work: Callable[[A], B], argument: A) -> B:
    try:
        return work(argument)
    except ImportRefused:
        raise
    except (
        Exception
    ) as error:  # whatever zipfile, json, numpy and the figures make of a damaged or hostile file: one kind of trouble
        if getattr(error, "errno", None) in OF_THE_DISK:
            raise
        says = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ImportRefused(
            f"This is not a case study as this program writes it ({says}); ask for it to be exported again."
        ) from error


def _header(case: Case) -> Header:
    words = Words(**{f.name: getattr(case, f.name) for f in fields(Words)})
    items = tuple(Entry(item.sha256, len(item.packed), item.shown) for item in case.items)
    return Header(FORMAT, SCHEMA, words, items, _make_card(case))


def _make_card(case: Case) -> dict[str, Any]:
    from ..figures.thumbnail import thumbnail  # figures bring plotly, and what only opens a case study needs none

    first = case.items[0].result
    models = dict.fromkeys(m for view in case.views for m in view.models)
    verdicts = [v for _, v in case.verdicts()]
    return {
        "model": ", ".join(dict.fromkeys(m.name for m in models))[:CARD_PROMPT],
        "precision": ", ".join(dict.fromkeys(m.precision for m in models))[:CARD_PROMPT],
        "prompt": "\n".join(dict.fromkeys(view.prompts[0].text[:CARD_PROMPT] for view in case.views)),
        "probes": list(dict.fromkeys(item.result.request.probe for item in case.items)),
        "n_layers": first.n_layers,
        "n_tokens": first.n_tokens,
        "runs": [item.result.provenance.get("run", item.result.request.key) for item in case.items],
        "depths": verdicts[0].lines if verdicts else {},
        "thumbnail": thumbnail([item.result for item in case.items]),
    }


def _card(file: Any) -> Card:
    with zipfile.ZipFile(file) as archive:
        header = _read_header(archive)
    card = _exactly(Card, header.card | asdict(header.case))
    _expect(len({*map(len, card.thumbnail)}) <= 1, "the thumbnail's rows differ in length")
    return card


def _decode(data: bytes) -> Case:
    if len(data) > MAX_BYTES:
        raise ImportRefused(f"The bundle has {len(data) / 2**20:.0f} MiB; at most {MAX_BYTES // 2**20} are read.")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        header = _read_header(archive)
        names = [HEADER, *(f"{i}.npz" for i in range(len(header.items)))]
        _expect(
            len(header.items) <= ITEMS and [e.filename for e in archive.infolist()] == names,
            "its entries are not those its header lists",
        )
        items = []
        for name, entry in zip(names[1:], header.items):
            packed = _read(archive, name, MAX_UNPACKED)
            _expect(
                entry.bytes == len(packed) and entry.sha256 == hashlib.sha256(packed).hexdigest(),
                f"{name} does not have its hash",
            )
            items.append(Item(_result(packed), packed, entry.shown))
    return Case(**vars(header.case), items=tuple(items))


def _read_header(archive: zipfile.ZipFile) -> Header:
    """The header, migrated to this schema, after the archive's directory has been found harmless."""
    entries = archive.infolist()
    _expect(0 < len(entries) <= ITEMS + 1 and entries[0].filename == HEADER, f"it does not begin with {HEADER}")
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        _expect(kind in (0, stat.S_IFREG) and entry.filename == entry.orig_filename, "an entry is not a plain file")
        _expect(
            entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not entry.flag_bits & 1,
            "an entry is packed in another way",
        )
    if (size := sum(entry.file_size for entry in entries)) > MAX_UNPACKED:
        raise ImportRefused(
            f"Unpacked, the bundle would have {size / 2**20:.0f} MiB; at most {MAX_UNPACKED // 2**20} are read."
        )
    text = _read(archive, HEADER, MAX_HEADER)
    header = json.loads(text)
    _expect(canonical_json(header).encode() == text and header["format"] == FORMAT, "the header")
    schema = header["schema"]
    _expect(type(schema) is int and 0 < schema < 1_000_000, "the schema")
    if schema > SCHEMA:
        raise NewerSchema(
            f"This case study has schema {schema}, this version of the program reads up to {SCHEMA}; update the "
            "program to open it."
        )
    for version in range(schema, SCHEMA):
        header = MIGRATIONS[version](header)
    found = _exactly(Header, header)
    _expect(0 <= found.case.created <= found.case.changed < 1e11, "the times")
    return found


def _exactly(kind: type[A], data: dict[str, Any]) -> A:
    """`data` as a value of this dataclass: every field is there and no other, each of its very type."""
    text, adapter = canonical_json(data), ADAPTER(kind)  # type: ignore[arg-type]  # a class is hashable
    try:
        found: A = adapter.validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        raise ValueError(told(error)) from None
    _expect(canonical_json(adapter.dump_python(found)) == text, "a field is left out, or a number spelled otherwise")
    return found


def _read(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """An entry's bytes; never more than the directory says and than are allowed."""
    if archive.getinfo(name).file_size > limit:
        raise ImportRefused(
            f"{name} would have {archive.getinfo(name).file_size} bytes unpacked; at most {limit} are read."
        )
    with archive.open(name) as file:
        return file.read(limit + 1)


def _result(packed: bytes) -> ProbeResult:
    """A complete result. What `wire.unpack` takes for granted of its own program's bytes is checked before and after
    it."""
    _check_npz(packed)
    result = unpack(packed)
    request = result.request
    _expect(result.complete and len(request.models) >= 1 and len(request.prompts) >= 1, "a result is not complete")
    parts: list[ModelSpec | Prompt] = [*request.models, *request.prompts]
    for one in parts:
        _expect(all(type(getattr(one, f.name)).__name__ == f.type for f in fields(one)), "the request")
    for prompt in request.prompts:
        check_text(prompt)
    for model in request.models:
        controls.check(model)
    probe = probe_of(result)  # refuses values out of range

    def kind(value: object) -> type:
        return float if type(value) is int else type(value)

    _expect(all(kind(value) is kind(getattr(probe, name)) for name, value in request.parameters), "the parameters")
    _expect(max(map(len, (*result.tokens, *result.token_text.values()))) <= MAX_TOKEN_TEXT, "the tokens' texts")
    made = result.provenance
    _expect(
        all(
            isinstance(made[name], kind) and not isinstance(made[name], bool)
            for name, kind in CERTIFICATE.items()
            if name in made
        ),
        "the provenance",
    )
    return result


def _check_npz(packed: bytes) -> None:
    """All arrays together are no larger than the file: nothing is inflated. That each fills its entry to the byte is
    `npz.read`'s to see to."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        entries = archive.infolist()
        _expect(
            len(entries) <= MAX_ARRAYS and len({e.filename for e in entries}) == len(entries),
            "too many arrays, or one twice",
        )
        _expect(sum(e.file_size for e in entries) <= len(packed), "an array is larger than its file")
        for entry in entries:
            _expect(
                entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size,
                "an array is packed in another way",
            )
            _expect(entry.filename.endswith(".npy") and entry.filename == entry.orig_filename, "an array's name")
            with archive.open(entry) as file:
                assert isinstance(file, io.BufferedIOBase)
                dtype = npz.header(file).dtype
                _expect(dtype.name in DTYPES and dtype.isnative, f"an array of {dtype}")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
