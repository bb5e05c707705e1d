"""Case studies: findings that a person keeps, names and hands on. Frozen, torch-free.

A `Case` holds copies of complete results, not references: it opens when the store is empty, the model gone and the
engine newer. An `Item` carries the very bytes of `ed_core.results.wire` it was made of, so that keeping, exporting and
importing never rewrite a number, and two cases are equal when their bytes are. How a case lies on the disk stands in
`ed_core.cases.bundle`, where it lies in `ed_core.cases.kept`."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..depth import say
from ..depth.rules import KL_THRESHOLD, OVERLAP_THRESHOLD
from ..depth.sample import ALL, ANSWER, READS, Sample
from ..depth.verdict import Verdict, verdict
from ..errors import CaseError
from ..models import controls
from ..results.wire import pack, unpack
from ..types import ModelSpec, ProbeResult, Prompt

ID = re.compile(r"[a-z2-7]{10}")
NAME = re.compile(r"[a-z][a-z0-9_.]{0,39}")
TITLE, NOTES, TAG, TAGS, ITEMS, SETTINGS, SETTING = (
    200,
    20_000,
    40,
    12,
    32,
    20,
    200,
)  # longest texts in characters, most of each
BRANCHES, SHADES = ("layer", "attn", "mlp"), ("prob", "kl", "jsd", "entropy", "rank")
CHOICES = {"branch": BRANCHES, "shade": SHADES}  # settings that figures read, and what they may be
REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # they can make a title read as what it is not


@dataclass(frozen=True)
class Shown:
    """How an item was looked at; no part of any number. `page`: where (`home`, `layer_skip`, …); `window`: first and
    last token shown;
    `selected`: the chosen token; `settings`: further inputs of that page by name (`branch`, `shade`, …)."""

    page: str = "home"
    window: tuple[int, int] | None = None
    selected: int | None = None
    settings: tuple[tuple[str, str | int | float | bool], ...] = ()

    def setting(self, name: str, default: str) -> str:
        """One of `CHOICES`."""
        value = dict(self.settings).get(name, default)
        return value if isinstance(value, str) and value in CHOICES[name] else default

    @property
    def of(self) -> str | int:
        """The tokens that its verdict is read for; all where nothing else was chosen."""
        of = dict(self.settings).get("of")
        if of == "token" and self.selected is not None:
            return self.selected
        return ANSWER if of == ANSWER else ALL


@dataclass(frozen=True)
class Item:
    """One complete result, the bytes it lies in, and how it was looked at."""

    result: ProbeResult = field(compare=False, repr=False)
    packed: bytes = field(repr=False)
    shown: Shown = Shown()

    @classmethod
    def of(cls, result: ProbeResult, shown: Shown = Shown()) -> Item:
        """A copy of a complete result; a `CaseError` says so where it is not complete."""
        if not result.complete:
            raise CaseError(
                f"The result of {result.request.probe} is not complete yet; wait for it to finish, then keep it."
            )
        packed = pack(result)
        return cls(unpack(packed), packed, shown)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.packed).hexdigest()


@dataclass(frozen=True)
class Case:
    """A case study. `created`, `changed`: seconds since 1970. `notes`: Markdown as text, never trusted as HTML.
    `verdict`: its text when it was kept. The thresholds belong to the verdict and its ruler."""

    id: str
    title: str
    items: tuple[Item, ...]
    notes: str = ""
    tags: tuple[str, ...] = ()
    created: float = 0.0
    changed: float = 0.0
    verdict: str = ""
    kl_threshold: float = KL_THRESHOLD
    overlap_threshold: float = OVERLAP_THRESHOLD
    first_token: bool = True

    def __post_init__(self) -> None:
        if not ID.fullmatch(self.id):
            raise CaseError(
                f"{self.id!r} is not the id of a case study; expected 10 characters from a to z and 2 to 7."
            )
        if not 0 < len(self.items) <= ITEMS:
            raise CaseError(f"A case study holds 1 to {ITEMS} results; found {len(self.items)}.")
        _line("title", self.title, TITLE)
        _text("notes", self.notes, NOTES)
        _text("verdict", self.verdict, NOTES)
        if len(self.tags) > TAGS or len(set(self.tags)) < len(self.tags):
            raise CaseError(f"A case study has at most {TAGS} tags, each once; found {len(self.tags)}.")
        for tag in self.tags:
            _line("tag", tag, TAG)
        for item in self.items:
            _check_shown(item.shown, item.result.n_tokens)

    @property
    def views(self) -> list[View]:
        """Its items by model and prompt, in their order; the same probe with other parameters opens a further view."""
        views: list[View] = []
        for item in self.items:
            request = item.result.request
            at = (request.models, request.prompts)
            view = next((v for v in views if (v.models, v.prompts) == at and request.probe not in v.by_probe), None)
            if view is None:
                view = View(*at, {})
                views.append(view)
            view.by_probe[request.probe] = item
        return views

    def verdicts(self) -> Iterator[tuple[View, Verdict]]:
        """The verdict of every view that has what it is read from."""
        for view in self.views:
            if view.by_probe.keys() >= set(READS):
                written, lens = (view.by_probe[name] for name in READS)
                sample = Sample.of(written.result, lens.result, first_token=self.first_token, of=lens.shown.of)
                yield view, verdict(sample, self.kl_threshold, self.overlap_threshold)


@dataclass(frozen=True)
class View:
    """What belongs together on one page: one model, one prompt, a result per probe."""

    models: tuple[ModelSpec, ...]
    prompts: tuple[Prompt, ...]
    by_probe: dict[str, Item]

    @property
    def first(self) -> Item:
        return next(iter(self.by_probe.values()))


def new_id() -> str:
    """50 random bits as 10 characters; also `ed_core.cases.kept` looks that it was never given before."""
    return base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]


def make(
    title: str,
    results: Iterable[ProbeResult],
    *,
    notes: str = "",
    tags: Sequence[str] = (),
    shown: Shown | Mapping[str, Shown] = Shown(),
    id: str | None = None,
    now: float | None = None,
    kl_threshold: float = KL_THRESHOLD,
    overlap_threshold: float = OVERLAP_THRESHOLD,
    first_token: bool = True,
) -> Case:
    """A new case study of complete results, with the verdict they give. `shown`: for all, or by probe. A `CaseError`
    says what cannot be."""

    def of(probe: str) -> Shown:
        return shown if isinstance(shown, Shown) else shown.get(probe, Shown())

    items = tuple(Item.of(result, of(result.request.probe)) for result in results)
    stamp = time.time() if now is None else now
    case = Case(
        id or new_id(),
        tidy(title),
        items,
        _newlines(notes),
        tuple(dict.fromkeys(t for t in map(tidy, tags) if t)),
        stamp,
        stamp,
        kl_threshold=kl_threshold,
        overlap_threshold=overlap_threshold,
        first_token=first_token,
    )
    return replace(case, verdict=verdict_text(case))


def edited(
    case: Case, *, title: str | None = None, notes: str | None = None, tags: Sequence[str] | None = None
) -> Case:
    """The case study with other words; its results stay as they are."""
    return replace(
        case,
        title=case.title if title is None else tidy(title),
        notes=case.notes if notes is None else _newlines(notes),
        tags=case.tags if tags is None else tuple(dict.fromkeys(t for t in map(tidy, tags) if t)),
        changed=max(time.time(), case.changed),
    )


def verdict_text(case: Case) -> str:
    """The sentence of its one view; of several, a line each with the model and how the prompt begins, behind what is
    said of several prompts together."""
    found = list(case.verdicts())
    if len(case.views) == 1:
        return say.verdict(found[0][1]) if found else ""
    each = (
        f"{controls.full_name(view.models[0])}, {cut(view.prompts[0].text, 40)!r}: {say.verdict(v)}"
        for view, v in found
    )
    return "\n".join([*over_prompts(case, [view for view, _ in found]), *each])


def over_prompts(case: Case, views: Iterable[View]) -> Iterator[str]:
    """A line for every model that was measured, in the same way, on several prompts."""
    alike: dict[tuple[str, ...], list[View]] = {}
    for view in views:
        alike.setdefault(tuple(view.by_probe[name].result.request.series for name in READS), []).append(view)
    for group in alike.values():
        if len(of_prompt := {view.prompts: view for view in group}) > 1:
            results = ([view.by_probe[name].result for view in of_prompt.values()] for name in READS)
            forms = [prompts[0].form for prompts in of_prompt]
            sample = Sample.of(*results, first_token=case.first_token, forms=forms)
            found = verdict(sample, case.kl_threshold, case.overlap_threshold)
            yield f"{controls.full_name(group[0].models[0])}, {found.n_prompts} prompts: {say.verdict(found)}"


def lead(text: str) -> str:
    """The first sentence of a verdict; of several views that of the first, or of their prompts together, without the
    model and prompt before it."""
    line, several, _ = text.partition("\n")
    found = re.sub(r"""^[^'"]*?(?:'.*?'|".*?"|, \d+ prompts): """, "", line) if several else line
    return re.split(r"(?<=[.!?]) (?=[^a-z])", found, maxsplit=1)[0]


def cut(text: str, most: int) -> str:
    """A prompt on one line, `most` characters of its end: prompts of one task begin alike, and the end is what is
    asked."""
    line = tidy(text.replace("\n", " ⏎ "))
    if len(line) <= most:
        return line
    return f"…{line[1 - most :].partition(' ')[2] or line[1 - most :]}"


def tidy(text: str) -> str:
    """A line without white space around it, and with single spaces within."""
    return " ".join(text.split())


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _line(what: str, text: str, limit: int) -> None:
    """Refuse what is no line of text."""
    _text(what, text, limit)
    if not text.strip() or text != tidy(text):
        raise CaseError(
            f"The {what} {'is empty' if not text.strip() else 'has line breaks or spaces around it'}; expected one "
            "line of text."
        )
    if char := next((c for c in text if c in REORDERING), ""):
        raise CaseError(f"The {what} holds a character that reorders text (U+{ord(char):04X}); remove it.")


def _text(what: str, text: str, limit: int) -> None:
    """Refuse text that is too long or holds control characters or halves of surrogate pairs."""
    if len(text) > limit:
        raise CaseError(f"The {what}: {len(text)} characters found, at most {limit} are kept; shorten it.")
    for i, char in enumerate(text):
        if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t":
            raise CaseError(
                f"Character {i} of the {what} is not printable (U+{ord(char):04X}, control or surrogate); remove it."
            )


def _check_shown(shown: Shown, n_tokens: int) -> None:
    tokens = [*(shown.window or ()), *([] if shown.selected is None else [shown.selected])]
    inside = all(0 <= t < n_tokens for t in tokens) and (shown.window is None or shown.window[0] <= shown.window[1])
    named = NAME.fullmatch(shown.page) and all(NAME.fullmatch(name) for name, _ in shown.settings)
    if not (inside and named and len(shown.settings) <= SETTINGS):
        raise CaseError(
            f"The view is not one of these {n_tokens} tokens on a page of this program: {str(shown)[:200]}."
        )
    for name, value in shown.settings:
        if isinstance(value, str):
            _text(f"setting {name}", value, SETTING)
