"""A case study as one file, `.edcase`, and back. Torch-free. The same bytes are kept, exported, imported and shipped.

A sealed container: its manifest has all words, and a card for lists, so that a gallery reads no array; its members
`0.npz`, `1.npz`, … are results as `ed_core.results.wire` packs them. A file is untrusted: `ed_core.files` bounds and
checks the container; what the program assumes about its own results is checked here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ..files import Bounds, Head, Kind, Sealed, exactly, expect, open_sealed, seal
from ..models import controls
from ..prompts import check_text
from ..results.aggregate import probe_of
from ..results.wire import RESULT, result_of
from ..types import ModelSpec, Prompt
from .case_study import ITEMS, Case, Item, Shown, Words

MAX_BYTES, MAX_UNPACKED, MAX_HEADER, MAX_ARRAYS = 64 << 20, 192 << 20, 2 << 20, 200
MAX_TOKEN_TEXT, CARD_PROMPT = 4096, 300
CERTIFICATE: dict[str, type | tuple[type, ...]] = {
    "engine": int,
    "run": str,
    "time": str,
    "seconds": (int, float),
    "continuation": str,
    "written": str,
    "model": dict,
    "probe": dict,
    "prompt": dict,
}
Row = Annotated[tuple[Annotated[int, Field(ge=-1, le=255)], ...], Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Card(Words):
    """What a list shows of a case study, read without its arrays. `depths`: by the first view's three criteria, None
    where not defined; `thumbnail`: rows from layer 0 up, values 0 to 255, -1 for no value."""

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
        """The text that a search looks in."""
        texts = (self.id, self.title, self.notes, *self.tags, self.prompt, self.model, self.verdict, *self.probes)
        return "\n".join(texts)


class Header(Head):
    """The manifest of a case study's file. `items`: how each result was shown; `card`: the fields of a `Card` that are
    not `Words`."""

    case: Words
    items: Annotated[tuple[Shown, ...], Field(min_length=1, max_length=ITEMS)]
    card: dict[str, Any]


CASE = Kind(
    "case study",
    "a case study",
    2,
    Header,
    "ask for it to be exported again",
    members=r"\d{1,2}\.npz",
    compressed=r".*\.npz",
    bounds=Bounds(MAX_BYTES, ITEMS, MAX_UNPACKED, MAX_UNPACKED, MAX_HEADER),
)


def encode(case: Case) -> bytes:
    """Return the bytes of a case study's file; equal case studies give equal bytes."""
    head = {
        "case": asdict(Words(**{f.name: getattr(case, f.name) for f in fields(Words)})),
        "items": [asdict(item.shown) for item in case.items],
        "card": _make_card(case),
    }
    return seal(CASE, head, {f"{i}.npz": item.packed for i, item in enumerate(case.items)})


def decode(data: bytes, name: str = "This") -> Case:
    """Return the case study in the bytes of a file, which errors call `name`; `ImportRefused` for anything else."""
    with open_sealed(data, CASE, name) as sealed:
        return _case(sealed)


def drawable(data: bytes) -> Case:
    """Return the case study in the bytes of a stranger's file; `ImportRefused` also where it cannot be drawn."""
    from .drawings import drawings

    with open_sealed(data, CASE) as sealed:
        case = _case(sealed)
        drawings(case)
        return case


def card(file: Path | BufferedIOBase) -> Card:
    """Return the card of a case study's file; the arrays are neither read nor checked."""
    with open_sealed(file, CASE) as sealed:
        _check_times(sealed)
        card = exactly(Card, sealed.head.card | asdict(sealed.head.case))
        expect(len({*map(len, card.thumbnail)}) <= 1, "the thumbnail's rows differ in length")
        return card


def _check_times(sealed: Sealed[Header]) -> None:
    """Raise an error where the times of creation and last change are not in order."""
    words = sealed.head.case
    expect(0 <= words.created <= words.changed < 1e11, "the times")


def _make_card(case: Case) -> dict[str, Any]:
    """Return the fields of the case study's `Card` that are not `Words`."""
    from ..figures.images import thumbnail  # figures bring plotly, and what only opens a case study needs none

    first = case.items[0].result
    models = dict.fromkeys(m for view in case.views for m in view.models)
    verdicts = [v for _, v in case.verdicts()]
    return {
        "model": ", ".join(dict.fromkeys(controls.full_name(m, False) for m in models))[:CARD_PROMPT],
        "precision": ", ".join(dict.fromkeys(m.precision for m in models))[:CARD_PROMPT],
        "prompt": "\n".join(dict.fromkeys(view.prompts[0].text[-CARD_PROMPT:] for view in case.views)),
        "probes": list(dict.fromkeys(item.result.request.probe for item in case.items)),
        "n_layers": first.n_layers,
        "n_tokens": first.n_tokens,
        "runs": [item.result.provenance.get("run", item.result.request.key) for item in case.items],
        "depths": verdicts[0].layers if verdicts else {},
        "thumbnail": thumbnail([item.result for item in case.items]),
    }


def _case(sealed: Sealed[Header]) -> Case:
    """Return the case study in an opened file, every result of it checked."""
    header = sealed.head
    _check_times(sealed)
    names = [f"{i}.npz" for i in range(len(header.items))]
    expect(list(sealed.names) == names, "its results are not as many as it lists")
    items = [_item(name, bytes(sealed.read(name)), shown) for name, shown in zip(names, header.items)]
    return Case(**vars(header.case), items=tuple(items))


def _item(name: str, packed: bytes, shown: Shown) -> Item:
    """Return an item from the bytes of its result, which must be complete; checks also what `wire` takes for
    granted."""
    size = len(packed)  # all arrays together are no larger: nothing is inflated
    with open_sealed(packed, replace(RESULT, bounds=Bounds(size, MAX_ARRAYS, size, size, size)), name) as sealed:
        result = result_of(sealed)
    request, origin = result.request, result.provenance
    expect(result.complete and len(request.models) == 1 and len(request.prompts) >= 1, "a result is not complete")
    parts: list[ModelSpec | Prompt] = [*request.models, *request.prompts]
    for part in parts:
        expect(all(type(getattr(part, f.name)).__name__ == f.type for f in fields(part)), "the request")
    for prompt in request.prompts:
        check_text(prompt)
    for model in request.models:
        controls.check(model)
    probe = probe_of(result)  # refuses values out of range

    def kind(value: object) -> type:
        """Return the value's type, float for an int."""
        return float if type(value) is int else type(value)

    expect(all(kind(value) is kind(getattr(probe, name)) for name, value in request.parameters), "the parameters")
    expect(max(map(len, (*result.tokens, *result.token_text.values()))) <= MAX_TOKEN_TEXT, "the tokens' texts")
    typed = {name: origin[name] for name in CERTIFICATE if name in origin}
    right = (isinstance(value, CERTIFICATE[name]) and not isinstance(value, bool) for name, value in typed.items())
    expect(all(right), "the provenance")
    return Item(result, packed, shown)
