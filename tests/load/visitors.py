"""What visitors do: read stored pages, run fresh prompts on Home, run long sweeps and cancel some; and the board on
which it is written down how long that took, and what they saw that they should not have."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ed_core.figures import shown
from ed_core.service.resolve import resolve
from ed_core.sources import tokens
from ed_core.sources.bundled import load_prompts
from ed_core.types import Prompt
from load.session import Gone, Session

MODELS = ("ed-demo-8", "ed-demo-16")
STORED = ("sum-mod10-2-a", "lookup-1-a")  # prompts whose results readers look at
COMPUTED = ("", "contributions", "logit_lens", "skip", "erase")  # pages that show them
READ = (*COMPUTED, "studies", "difficulty", "cases")
PANELS = ("norms", "cosine", "skip", "lens")
FIGURE = "bidi_component"  # as `ed_ui.show` sends one
OVER_TOKENS = ("norms", "cosine", "lens", "map")  # figures with tokens along the bottom, on most pages
PAGE, ALONE, BESIDE, CANCEL = "stored page", "four fresh panels", "the same while sweeps run", "Cancel"
ALERT_ERROR = 1  # Streamlit's number of `st.error`
DIED = "The worker process ended while computing"
STORES = 600.0  # seconds that may pass until one page of what readers look at is computed, on a machine that is busy
THINKS, TYPES = (4.0, 10.0), (3.0, 8.0)  # seconds between two pages, between two runs


@dataclass
class Board:
    """What all visitors report. `end`: when they go; `killing`: workers die meanwhile, which pages may say."""

    end: float
    killing: bool = False
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    owners: dict[str, str] = field(default_factory=dict)  # who ran which prompt
    sweeps: int = 0  # under way
    done: int = 0  # runs that came to their end
    died: int = 0  # runs that were told their worker died, and pressed again

    @property
    def open(self) -> bool:
        return time.monotonic() < self.end

    def note(self, kind: str, what: str) -> None:
        self.wrong[kind].append(what[:300])

    async def pause(self, chance: random.Random, between: tuple[float, float]) -> None:
        await asyncio.sleep(max(0.0, min(chance.uniform(*between), self.end - time.monotonic())))


@dataclass
class Visitor:
    """One tab with its prompt. After every run everything on its page is looked at."""

    board: Board
    session: Session
    name: str
    model: str
    chance: random.Random
    text: str = ""  # the prompt in the box
    marks: list[str] = field(default_factory=list)  # its tokens as figures write them
    known: set[str] = field(default_factory=set)  # what is wrong and was noted already
    looked: dict[str, tuple[bytes, str]] = field(
        default_factory=dict
    )  # by key: figures looked at, and for which prompt

    def __post_init__(self):
        self.session.looks = self.look

    def expect(self, prompt: Prompt) -> None:
        """From now on nothing but this prompt may be seen."""
        self.text, spec = prompt.text, resolve(self.model)
        self.marks = [shown(text, 40) for text in tokens.preview(spec, prompt)]
        self.board.owners[self.text] = self.name

    async def type(self, text: str) -> None:
        self.text, self.marks = "", []  # until the page has heard of it the former one stands there
        await self.session.type("text", text)
        self.expect(Prompt(text))

    def look(self) -> None:
        """Errors, and figures or origins of another prompt than one's own."""
        session = self.session
        for _, what in session.elements("exception"):
            self._wrong("error", f"exception {what.type}: {what.message}")
        for _, what in session.elements("alert"):
            if what.format == ALERT_ERROR and not (self.board.killing and what.body.startswith(DIED)):
                self._wrong("error", what.body)
        if session.missed:
            self._wrong("error", f"{session.missed} messages by a hash that was never sent")
        for key, chart in session.elements(FIGURE):
            if not chart.bytes:  # the link has words alone
                continue
            if key not in OVER_TOKENS or self.looked.get(key) == (chart.bytes, self.text):
                continue
            self.looked[key] = chart.bytes, self.text
            if strange := self._strange(json.loads(chart.bytes)["figure"]):
                self._wrong("stale result", f"{key}: {strange}, expected tokens of {self.text!r}")
        for origin in session.elements("json"):
            seen = json.loads(origin[1].body)
            seen = seen.get("prompt", {}).get("text") if isinstance(seen, dict) else None
            if self.text and seen is not None and seen != self.text:
                owner = self.board.owners.get(seen, self.name)
                kind = "stale result" if owner == self.name else "wrong owner"
                self._wrong(kind, f"the origin of {seen!r}, expected {self.text!r}")

    def _strange(self, figure: dict) -> str:
        """A token on an axis of tokens that does not belong there."""
        axis = figure["layout"].get("xaxis", {})
        if not self.marks or "ticktext" not in axis:
            return ""
        for at, text in zip(axis["tickvals"], axis["ticktext"], strict=True):
            text, at = text.replace("<br>", "").removeprefix("◆"), int(at)
            if at >= len(self.marks) or not self.marks[at].startswith(text.rstrip("…")):
                return f"token {at} is {text!r}"
        return ""

    def _wrong(self, kind: str, what: str) -> None:
        if what not in self.known:
            self.known.add(what)
            self.board.note(kind, f"{self.name} on {self.session.query!r}: {what}")

    # ---------------------------------------------------------------- runs

    @property
    def run(self) -> str:
        """The key of the page's Run."""
        return next(key for key, _ in self.session.elements("button") if key.startswith("run."))

    def idle(self) -> bool:
        """Whether nothing is under way and the page is whole."""
        return not self.session.drawing and not self.session.follows and not self.session.widget(self.run).disabled

    def died(self) -> bool:
        return any(what.body.startswith(DIED) for _, what in self.session.elements("alert"))

    def complete(self) -> bool:
        """Whether Home's four panels are there to the end, of one's own prompt."""
        session = self.session
        return not session.drawing and all(
            self.text in map(_prompt, session.within(f"about-{p}", "json")) for p in PANELS
        )

    async def compute(self, whole=None, seconds: float = 120.0) -> float:
        """Press Run until everything is there; seconds from the last press on, or -1 where a worker died meanwhile."""
        again = False
        while True:
            start = time.monotonic()
            await self.session.press(self.run)
            await self.session.until(lambda: self.idle() and (whole is None or whole() or self.died()), seconds)
            if not self.died():
                self.board.done += 1
                return -1.0 if again else time.monotonic() - start
            again, self.board.died = True, self.board.died + 1


def _prompt(origin) -> str | None:
    return json.loads(origin.body)["prompt"]["text"]


def example(name: str) -> Prompt:
    """A bundled prompt."""
    found = next(p for p in load_prompts() if p["id"] == name)
    return Prompt(found["text"], found["answer"])


def sums(chance: random.Random, lines: int) -> str:
    """A prompt that nobody else has."""
    rows = [[chance.randrange(10) for _ in range(3)] for _ in range(lines)]
    done = "".join(f"{a} + {b} + {c} = {(a + b + c) % 10}\n" for a, b, c in rows)
    return f"Sums mod 10:\n{done}{chance.randrange(10)} + {chance.randrange(10)} + {chance.randrange(10)} ="


async def store(address: str, board: Board) -> None:
    """Have computed what readers will look at."""

    async def one(model: str, name: str) -> None:
        async with Session(address, "", f"model={model}&example={name}") as session:
            visitor = Visitor(board, session, f"first of {model} {name}", model, random.Random(0))
            visitor.expect(example(name))
            for page in COMPUTED:
                await session.open(page)
                await visitor.compute(seconds=STORES)

    await asyncio.gather(*(one(model, name) for model in MODELS for name in STORED))


async def reader(address: str, board: Board, number: int) -> None:
    """Goes from one stored page to another."""
    chance = random.Random(number)
    model, name = MODELS[number % 2], STORED[number // 2 % 2]
    await board.pause(chance, (0.0, THINKS[1]))
    async with Session(address, "", f"model={model}&example={name}") as session:
        visitor = Visitor(board, session, f"reader {number}", model, chance)
        visitor.expect(example(name))
        here = ""
        while board.open:
            here = chance.choice([page for page in READ if page != here])
            board.took[PAGE].append(await session.open(here))
            if here in COMPUTED and not any(session.elements(FIGURE)):
                board.note("lost", f"{visitor.name}: no figure on {here or 'Home'}")
            await board.pause(chance, THINKS)


async def prompter(address: str, board: Board, number: int) -> None:
    """Runs one fresh prompt after the other on Home."""
    chance = random.Random(1000 + number)
    model = MODELS[number % 2]
    await board.pause(chance, (0.0, TYPES[1]))
    async with Session(address, "", f"model={model}") as session:
        visitor = Visitor(board, session, f"prompter {number}", model, chance)
        while board.open:
            await visitor.type(sums(chance, 3))
            beside = board.sweeps > 0
            took = await visitor.compute(visitor.complete)
            if took >= 0:
                board.took[BESIDE if beside or board.sweeps else ALONE].append(took)
            await board.pause(chance, TYPES)


async def sweeper(address: str, board: Board, number: int) -> None:
    """Erases every token of a long prompt at every depth, and does not always wait for it."""
    chance = random.Random(2000 + number)
    async with Session(address, "erase", "model=ed-demo-16&target=future") as session:
        visitor = Visitor(board, session, f"sweeper {number}", MODELS[1], chance)
        while board.open:
            await visitor.type(sums(chance, 14))
            board.sweeps += 1
            try:
                if chance.random() < 0.5:
                    await visitor.compute(seconds=240.0)
                else:
                    await _cancelled(visitor)
            finally:
                board.sweeps -= 1
            await board.pause(chance, (1.0, 3.0))


async def _cancelled(visitor: Visitor) -> None:
    """Press Run, wait a while, press Cancel; how long until the page says that nothing runs."""
    session, run = visitor.session, visitor.run
    await session.press(run)
    await visitor.board.pause(visitor.chance, (1.0, 8.0))
    if visitor.idle():
        return
    start = time.monotonic()
    await session.press(run.replace("run.", "cancel.", 1))
    await session.until(visitor.idle, 60.0)
    visitor.board.took[CANCEL].append(time.monotonic() - start)


async def careful(board: Board, what, name: str) -> None:
    """One visitor to the end; what ends early is written down."""
    try:
        await what
    except Gone as error:
        board.note("error", f"{name}: {error}")
    except TimeoutError as error:
        board.note("lost", f"{name}: {error}")


def visitors(address: str, board: Board, readers: int, prompters: int, sweepers: int) -> Iterator:
    """All of them, about to come."""
    for kind, number in ((reader, readers), (prompter, prompters), (sweeper, sweepers)):
        for i in range(number):
            yield careful(board, kind(address, board, i), f"{kind.__name__} {i}")
