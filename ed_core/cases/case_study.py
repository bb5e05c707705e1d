"""Case studies: results that a person keeps, names and hands on. Frozen, torch-free.

A `Case` has copies of complete results, so it opens when the store is empty, the model gone and the engine newer. An
`Item` has the bytes that `ed_core.results.wire` made of its result, so keeping, exporting and importing never rewrite a
number, and two cases are equal when their bytes are. `ed_core.cases.bundle` is their file, `ed_core.cases.kept` their
folder."""

from __future__ import annotations

import base64
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
TITLE, NOTES, TAG, SETTING = 200, 20_000, 40, 200  # longest texts, in characters
TAGS, ITEMS, SETTINGS = 12, 32, 20  # most of each
CHOICES = {  # settings that figures read, and their values
    "branch": ("layer", "attn", "mlp"),
    "shade": ("prob", "kl", "jsd", "entropy", "rank"),
}
REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # they can make a title read as what it is not


@dataclass(frozen=True)
class Shown:
    """How an item was shown; no part of any number. `page`: `home`, `layer_skip`, …; `window`: first and last token;
    `selected`: the chosen token; `settings`: other inputs of that page by name (`branch`, `shade`, …)."""

    page: str = "home"
    window: tuple[int, int] | None = None
    selected: int | None = None
    settings: tuple[tuple[str, str | int | float | bool], ...] = ()

    def setting(self, name: str, default: str) -> str:
        """Return the setting `name` where it is one of `CHOICES[name]`, else `default`."""
        value = dict(self.settings).get(name, default)
        return value if isinstance(value, str) and value in CHOICES[name] else default

    @property
    def of(self) -> str | int:
        """The tokens that the verdict is read for: `ALL` (unless chosen otherwise), `ANSWER`, or the selected token's
        index."""
        choice = dict(self.settings).get("of")
        if choice == "token" and self.selected is not None:
            return self.selected
        return ANSWER if choice == ANSWER else ALL


@dataclass(frozen=True)
class Item:
    """One complete result, its bytes, and how it was shown."""

    result: ProbeResult = field(compare=False, repr=False)
    packed: bytes = field(repr=False)
    shown: Shown = Shown()

    @classmethod
    def of(cls, result: ProbeResult, shown: Shown = Shown()) -> Item:
        """Return an item with a copy of a result; `CaseError` where the result is not complete."""
        if not result.complete:
            raise CaseError(f"The result of {result.request.probe} is not complete; wait until it is, then keep it.")
        packed = pack(result)
        return cls(unpack(packed), packed, shown)


@dataclass(frozen=True)
class Words:
    """A case study without its results. `created`, `changed`: seconds since 1970. `notes`: Markdown as text, never
    trusted as HTML. `verdict`: its text when it was kept; the thresholds are its own and its ruler's."""

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
class Case(Words):
    """A case study: its words, and its results as items."""

    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        """Raise `CaseError` where a field is outside its limits."""
        if not ID.fullmatch(self.id):
            raise CaseError(f"{self.id!r} is not the id of a case study; expected 10 characters, a to z and 2 to 7.")
        if not 0 < len(self.items) <= ITEMS:
            raise CaseError(f"A case study has 1 to {ITEMS} results; found {len(self.items)}.")
        _check("title", self.title, TITLE, line=True)
        _check("notes", self.notes, NOTES)
        _check("verdict", self.verdict, NOTES)
        if len(self.tags) > TAGS or len(set(self.tags)) < len(self.tags):
            raise CaseError(f"A case study has at most {TAGS} tags, each once; found {len(self.tags)}.")
        for tag in self.tags:
            _check("tag", tag, TAG, line=True)
        for item in self.items:
            _check_shown(item.shown, item.result.n_tokens)

    @property
    def views(self) -> list[View]:
        """The items by model and prompt, in their order; the same probe with other parameters begins another view."""
        views: list[View] = []
        for item in self.items:
            request = item.result.request
            key = (request.models, request.prompts)
            view = next((v for v in views if (v.models, v.prompts) == key and request.probe not in v.by_probe), None)
            if view is None:
                view = View(*key, {})
                views.append(view)
            view.by_probe[request.probe] = item
        return views

    def verdicts(self) -> Iterator[tuple[View, Verdict]]:
        """Yield every view that has the results a verdict is read from, with its verdict."""
        for view in self.views:
            if view.by_probe.keys() >= set(READS):
                written, lens = (view.by_probe[name] for name in READS)
                sample = Sample.of(written.result, lens.result, first_token=self.first_token, of=lens.shown.of)
                yield view, verdict(sample, self.kl_threshold, self.overlap_threshold)


@dataclass(frozen=True)
class View:
    """The items of one page: one model, one prompt, a result per probe."""

    models: tuple[ModelSpec, ...]
    prompts: tuple[Prompt, ...]
    by_probe: dict[str, Item]

    @property
    def first(self) -> Item:
        """The view's first item."""
        return next(iter(self.by_probe.values()))


def new_id() -> str:
    """Return 50 random bits as 10 characters."""
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
    """Return a new case study of complete results, with their verdict. `shown`: how all of them were shown, or each by
    its probe. `id`: random, `now` (seconds since 1970): the current time, unless given."""
    by_probe = {} if isinstance(shown, Shown) else shown
    default = shown if isinstance(shown, Shown) else Shown()
    stamp = time.time() if now is None else now
    case = Case(
        id=id or new_id(),
        title=tidy(title),
        notes=_newlines(notes),
        tags=_tags(tags),
        created=stamp,
        changed=stamp,
        verdict="",
        kl_threshold=kl_threshold,
        overlap_threshold=overlap_threshold,
        first_token=first_token,
        items=tuple(Item.of(result, by_probe.get(result.request.probe, default)) for result in results),
    )
    return replace(case, verdict=verdict_text(case))


def edited(
    case: Case, *, title: str | None = None, notes: str | None = None, tags: Sequence[str] | None = None
) -> Case:
    """Return the case study with other words and the same results; None keeps a text."""
    return replace(
        case,
        title=case.title if title is None else tidy(title),
        notes=case.notes if notes is None else _newlines(notes),
        tags=case.tags if tags is None else _tags(tags),
        changed=max(time.time(), case.changed),
    )


def verdict_text(case: Case) -> str:
    """Return the verdict in words: the sentence of the only view; of several, the sentence on their prompts together,
    then a line each with the model and the end of the prompt."""
    verdicts = list(case.verdicts())
    if len(case.views) == 1:
        return say.verdict(verdicts[0][1]) if verdicts else ""
    lines = [
        f"{controls.full_name(view.models[0])}, {cut(view.prompts[0].text, 40)!r}: {say.verdict(v)}"
        for view, v in verdicts
    ]
    return "\n".join([*over_prompts(case, [view for view, _ in verdicts]), *lines])


def over_prompts(case: Case, views: Iterable[View]) -> Iterator[str]:
    """Yield a line for every model that was measured on several prompts with the same parameters."""
    alike: dict[tuple[str, ...], list[View]] = {}
    for view in views:
        alike.setdefault(tuple(view.by_probe[name].result.request.series for name in READS), []).append(view)
    for group in alike.values():
        if len(of_prompt := {view.prompts: view for view in group}) > 1:
            results = ([view.by_probe[name].result for view in of_prompt.values()] for name in READS)
            forms = [prompts[0].form for prompts in of_prompt]
            sample = Sample.of(*results, first_token=case.first_token, forms=forms)
            of_all = verdict(sample, case.kl_threshold, case.overlap_threshold)
            yield f"{controls.full_name(group[0].models[0])}, {of_all.sample.n_prompts} prompts: {say.verdict(of_all)}"


def lead(text: str) -> str:
    """Return the first sentence of a verdict, without the model and prompt in front of it; of several views that of the
    first, or of their prompts together."""
    line, several, _ = text.partition("\n")
    text = re.sub(r"""^[^'"]*?(?:'.*?'|".*?"|, \d+ prompts): """, "", line) if several else line
    return re.split(r"(?<=[.!?]) (?=[^a-z])", text, maxsplit=1)[0]


def cut(text: str, most: int) -> str:
    """Return a prompt on one line, at most `most` characters of its end: prompts of one task begin alike and end in the
    question."""
    line = tidy(text.replace("\n", " ⏎ "))
    if len(line) <= most:
        return line
    return f"…{line[1 - most :].partition(' ')[2] or line[1 - most :]}"


def tidy(text: str) -> str:
    """Return a text on one line, with single spaces."""
    return " ".join(text.split())


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags tidied, without empty and repeated ones."""
    return tuple(dict.fromkeys(tag for tag in map(tidy, tags) if tag))


def _newlines(text: str) -> str:
    """Return the text with line feeds as its only line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check(what: str, text: str, limit: int, line: bool = False) -> None:
    """Raise `CaseError` for text that is too long or not printable; and for a `line` that is empty, is not one line
    with single spaces, or has characters that change the reading order."""
    if len(text) > limit:
        raise CaseError(f"The {what}: {len(text)} characters found, at most {limit} are kept; shorten it.")
    if line and (not text or text != tidy(text)):
        raise CaseError(f"The {what} is {text[:40]!r}; expected one line of text that is not empty.")
    refused = REORDERING if line else ""
    for char in text:
        if char in refused or (unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t"):
            raise CaseError(f"The {what} has a character that is not printable (U+{ord(char):04X}); remove it.")


def _check_shown(shown: Shown, n_tokens: int) -> None:
    """Raise `CaseError` where the tokens, page or settings of an item's view are outside their limits."""
    tokens = [*(shown.window or ()), *([] if shown.selected is None else [shown.selected])]
    inside = all(0 <= t < n_tokens for t in tokens) and (shown.window is None or shown.window[0] <= shown.window[1])
    named = NAME.fullmatch(shown.page) and all(NAME.fullmatch(name) for name, _ in shown.settings)
    if not (inside and named and len(shown.settings) <= SETTINGS):
        raise CaseError(f"The view is not one of {n_tokens} tokens on a page of this program: {str(shown)[:200]}.")
    for name, value in shown.settings:
        if isinstance(value, str):
            _check(f"setting {name}", value, SETTING)
