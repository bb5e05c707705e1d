"""The six rooms and their tabs: each tab is a page with an address of its own, so every link that exists leads to where
it led."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

_HERE = Path(__file__).parent
ROOT = _HERE / "app" if (_HERE / "app").is_dir() else _HERE.parent  # of `pages/`: in the wheel, in a checkout


@dataclass(frozen=True)
class Entry:
    """A page of the app, one tab of a room. `page`: its file below `pages/`, without the ending. `kept_as`: its name in
    a case study (a probe's own page: the probe's), "" where none can be saved. `question`: its own, where it is not the
    room's. `url`: its path, where that is not the file's name. `hidden`: no tab leads there. `model`: it is about the
    chosen model."""

    page: str
    title: str
    kept_as: str = ""
    question: str = ""
    url: str | None = None
    hidden: bool = False
    model: bool = True

    @property
    def file(self) -> str:
        """The page's file below the app's folder."""
        return f"pages/{self.page}.py"

    @property
    def address(self) -> str:
        """The page's path below the app's address."""
        return self.url or self.page.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The page's file, for Streamlit's calls."""
        return str(ROOT / self.file)


@dataclass(frozen=True)
class Room:
    """A room of the app: one question, and tabs that answer it in different ways; the sidebar links to the first
    tab."""

    title: str
    question: str
    icon: str
    tabs: tuple[Entry, ...]


_PROMPT = (
    Entry("prompt/home", "Answer", "home"),
    Entry("prompt/contributions", "Contributions", "contributions", "What does each layer add?"),
    Entry("prompt/logit_lens", "Logit lens", "logit_lens", "What would the model say after each layer?"),
    Entry("prompt/lenses", "Fitted lenses", "lenses", "Does what is read depend on the lens?"),
    Entry("prompt/writing", "Writing", "generation", "How early is each written word decided?"),
)
_INTERVENE = (
    Entry("intervene/skip", "Skip", "layer_skip"),
    Entry("intervene/erase", "Erase", "residual_erasure", "How long is a token needed?"),
    Entry("intervene/patch", "Patch", "patching", "Where is the answer decided?"),
    Entry("intervene/gradients", "Gradients", "integrated_gradients", "Which tokens does the answer rest on?"),
    Entry("intervene/prune", "Prune", "prune", "Which layers can go?"),
)
_COMPARE = (Entry("compare/two", "A | B", "two"), Entry("compare/maps", "Linear maps"))
_STUDIES = (Entry("studies/studies", "Studies", model=False),)
_MODEL = (Entry("model/model", "This model"), Entry("model/models", "All models", model=False))
_CASES = (
    Entry("case_studies/gallery", "Case studies", url="cases", model=False),
    Entry("case_studies/case", "Case study", url="case", hidden=True, model=False),
)
_ROOMS = (
    Room("Prompt", "Where does this answer form?", "layers", _PROMPT),
    Room("Intervene", "What breaks without it?", "content_cut", _INTERVENE),
    Room("Compare", "What differs?", "compare_arrows", _COMPARE),
    Room("Studies", "Does it hold over many prompts and models?", "science", _STUDIES),
    Room("Model", "What is known about this model's depth?", "badge", _MODEL),
    Room("Case studies", "Case studies", "collections_bookmark", _CASES),
)


def _with_further(room: Room) -> Room:
    """Return the room with a tab for each other page in its folder, a probe's: named like its file; the file's first
    line, a docstring, is the page's question."""
    folder, tabs = room.tabs[0].page.partition("/")[0], list(room.tabs)
    names = {f"{folder}/{file.stem}" for file in (ROOT / "pages" / folder).glob("*.py")}
    for page in sorted(names - {tab.page for tab in tabs}):
        one = Entry(page, page.partition("/")[2].replace("_", " ").capitalize())
        question = Path(one.path).read_text("utf-8").splitlines()[0].strip('"')
        tabs.append(replace(one, kept_as=one.address, question=question))
    return replace(room, tabs=tuple(tabs))


ROOMS = tuple(map(_with_further, _ROOMS))
KEPT_FROM = {entry.kept_as: entry.path for room in ROOMS for entry in room.tabs if entry.kept_as}
