"""From text to token ids and back: one `Encoder` for the preview, the engine and continuations. Torch-free.

Text is checked as the sums are (METHODS, *Identities of the text*): BOS as the tokenizer's configuration asks for it,
once; the text back from its ids; the seam between question and answer. What does not hold is a note."""

from __future__ import annotations

import codecs
import re
import unicodedata
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import PromptError, one_line
from ..types import Encoding

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# Scripts whose words have no spaces between them.
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
# Numbers, capitals with apostrophes, runs of spaces and newlines, tabs, CJK, emoji, combining marks, trailing spaces.
HARD_SAMPLES = (
    "5 + 7 = 12, 1234567.89 in 2023",
    "The quick brown fox. DON'T, we've, I'LL",
    "a=3;  b=a;\n\n\n  b?\t\tc\r\n",
    "Ünïcode e\u0301 — 好的，日本語 한국어 😀👍🏽 ",
)


def _bytes_of_pieces() -> dict[str, int]:
    """Return a table from the characters in which byte-level tokenizers write their tokens to the bytes they mean."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _bytes_of_pieces()
codecs.register_error(
    "label",
    lambda e: ("".join(f"<0x{b:02X}>" for b in e.object[e.start : e.end]), e.end),  # type: ignore[attr-defined]
)


class Encoder:
    """Text to token ids and back, with notes on what the tokenizer changes.

    `bos`: the text of its BOS token ("" for none). `add_bos`: whether its configuration asks for BOS (None where it is
    silent: the tokenizer's own post-processor then decides). `differ`: on how many of `HARD_SAMPLES` the library's
    tokenizer gives other ids (None where they were not compared); `notes` go with every prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        bos: str = "",
        add_bos: bool | None = None,
        differ: int | None = None,
        notes: tuple[str, ...] = (),
    ):
        self.tokenizer, self.bos, self.add_bos, self.differ, self.notes = tokenizer, bos, add_bos, differ, notes
        tokenizer.no_truncation()  # a training may have left how it cut and padded, and that it merges at random
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None
        self._labels: dict[int, str] = {}

    def encode(self, text: str, answer: str = "", special_tokens: bool = True) -> Encoding:
        """Return the tokens of `text + answer`, encoded once and jointly, with notes; the answer starts at the first
        token with characters past the question's end. `PromptError` where prompt, question or answer has no token of
        its own."""
        full = text + answer
        ids, ends, notes = self._ids(full, special_tokens)
        if not ids:
            raise PromptError("The prompt has no tokens under this tokenizer; type some text.")
        start = None
        if answer:
            start = next((i for i, end in enumerate(ends) if end > len(text)), None)
            if start is None or start == 0:
                raise PromptError("No token belongs to the answer alone, or none to the question; give both some text.")
            apart, joint = self.ids(text, special_tokens=False), self.ids(full, special_tokens=False)
            if (seam := next((b for a, b in zip(apart, joint) if a != b), None)) is not None:
                notes.append(
                    f"Question and answer meet in the token {self.label(seam)!r}: the question alone is split "
                    f"differently. The answer's first token is {start}, {self.label(ids[start])!r}."
                )
            if better := spaced(text, answer):
                run = re.findall(r"\w*$", text)[0][-20:] + re.findall(r"^\w*", answer)[0][:20]
                notes.append(
                    f"The answer follows without a space, so the model reads “{run}”; for a separate word, answer "
                    f"{better!r}."
                )
        if special_tokens and (after := self.added()[1]):
            notes.append(
                f"The tokenizer adds {' '.join(after)} after the text, so the last position is not the text's."
            )
        if change := self.changes(full):
            notes.append("The tokenizer changes the text: {!r} becomes {!r}.".format(*change))
        return Encoding(tuple(ids), tuple(map(self.label, ids)), start, (*self.notes, *notes))

    def ids(self, text: str, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, special tokens like BOS included unless left out."""
        return self._ids(text, special_tokens)[0]

    def _ids(self, text: str, special_tokens: bool) -> tuple[list[int], list[int], list[str]]:
        """Return the ids of a text, the character index at which each token ends, and notes on BOS."""
        try:
            encoded = self.tokenizer.encode(text, add_special_tokens=special_tokens)
        except Exception as error:  # as of a vocabulary that has neither the word nor a token for unknown ones
            raise PromptError(f"The tokenizer cannot encode this text: {one_line(error)}.") from error
        ids, ends = list(encoded.ids), [end for _, end in encoded.offsets]
        notes: list[str] = []
        bos = self.tokenizer.token_to_id(self.bos) if self.bos and special_tokens else None
        if bos is None:
            return ids, ends, notes
        typed = text.startswith(self.bos)
        if typed and ids[:2] == [bos, bos]:
            del ids[0], ends[0]
            notes.append(f"The prompt begins with {self.bos} itself, so no second one is added.")
        elif self.add_bos and ids[:1] != [bos]:
            ids, ends = [bos, *ids], [0, *ends]
            notes.append(
                f"{self.bos} is added in front because the tokenizer's configuration asks for it (add_bos_token); its "
                "tokenizer.json alone does not add it."
            )
        elif self.add_bos is False and not typed and ids[:1] == [bos]:
            del ids[0], ends[0]
            notes.append(
                f"No {self.bos} is added because the tokenizer's configuration says so (add_bos_token); its "
                "tokenizer.json alone would add it."
            )
        return ids, ends, notes

    def added(self) -> tuple[list[str], list[str]]:
        """Return the labels of the special tokens that are added before, and after, every prompt."""
        with_them, without = self.ids("a"), self.ids("a", special_tokens=False)
        n = next((i for i in range(len(with_them)) if with_them[i : i + len(without)] == without), 0)
        return list(map(self.label, with_them[:n])), list(map(self.label, with_them[n + len(without) :]))

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        """The text of these ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def changes(self, text: str) -> tuple[str, str] | None:
        """Return the first word that decoding the text's ids does not give back, as typed and as decoded; None where
        all come back. A space added in front is no change."""
        back = self.decode(self.ids(text, special_tokens=False))
        if back in (text, f" {text}"):
            return None
        if back[:1] == " " != text[:1]:
            back = back[1:]
        place = next((i for i, (a, b) in enumerate(zip(text, back)) if a != b), min(len(text), len(back)))
        return _word(text, place), _word(back, place)

    def label(self, token_id: int) -> str:
        """A token's text, never the same for two ids: with its leading space, a byte that is no whole character as
        `<0xE2>`, an id without a token as `[id 248257]`."""
        if token_id not in self._labels:
            self._labels[token_id] = self._label(token_id)
        return self._labels[token_id]

    @cached_property
    def _added_tokens(self) -> dict[int, object]:
        """The tokens added to the tokenizer's vocabulary, by id."""
        return dict(self.tokenizer.get_added_tokens_decoder())

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """Ids to put in front of a token's (some decoders strip a text's first space), and the text of these ids."""
        ids = self.tokenizer.encode("a", add_special_tokens=False).ids
        return ids, self.decode(ids)

    def _label(self, token_id: int) -> str:
        """Return a token's label, computed; `label` keeps the results."""
        piece = self.tokenizer.id_to_token(token_id)
        if piece is None:
            return f"[id {token_id}]"
        if BYTE.fullmatch(piece) or token_id in self._added_tokens or self.tokenizer.decoder is None:
            return str(piece)
        before, base = self._anchor
        text = self.decode([*before, token_id])
        text = text[len(base) :] if text.startswith(base) else self.decode([token_id])
        if text and "\ufffd" not in text:
            return text
        if piece and all(c in BYTES for c in piece):
            return bytes(BYTES[c] for c in piece).decode("utf-8", "label")
        return str(piece)


def spaced(text: str, answer: str) -> str:
    """Return the answer with a space in front, where question and answer would run together as one word; else ""."""
    if not (text and answer and text[-1].isalnum() and answer[0].isalnum()):
        return ""
    if any(unicodedata.name(c, "").startswith(UNSPACED) for c in (text[-1], answer[0])):
        return ""
    return f" {answer}"


def _word(text: str, at: int) -> str:
    """Return the word around the character with index `at`, cut to at most 40 characters."""
    start = max(text.rfind(" ", 0, at) + 1, at - 20)
    end = text.find(" ", at + 1 + len(text[at:]) - len(text[at:].lstrip()))
    return text[start : min(end if end > 0 else len(text), at + 20)]
