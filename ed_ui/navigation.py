"""The six rooms and their tabs: each tab is a page with an address of its own, so every link that exists leads to where
it led."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

_HERE = Path(__file__).parent
ROOT = _HERE / "app" if (_HERE / "app").is_dir() else _HERE.parent  # of `pages/`: in the wheel, in a checkout


@dataclass(frozen=True)
class Entry:
    """A page of the app, one tab of a room. `kept_as`: its name in a case study (a probe's own page: the probe's), ""
    where none can be saved. `url`: its path, where that is not the file's name. `hidden`: no tab leads there. `model`:
    it is about the chosen model. `question`: its own, where it is not the room's."""

    file: str
    title: str
    kept_as: str = ""
    url: str | None = None
    hidden: bool = False
    model: bool = True
    question: str = ""

    @property
    def address(self) -> str:
        """The page's path below the app's address."""
        return self.url or self.file.rpartition("/")[2].removesuffix(".py")

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


_ROOMS = (
    Room(
        "Prompt",
        "Where does this answer form?",
        "layers",
        (
            Entry("pages/prompt/home.py", "Answer", "home"),
            Entry(
                "pages/prompt/contributions.py",
                "Contributions",
                "contributions",
                question="What does each layer add?",
            ),
            Entry(
                "pages/prompt/logit_lens.py",
                "Logit lens",
                "logit_lens",
                question="What would the model say after each layer?",
            ),
            Entry(
                "pages/prompt/lenses.py", "Fitted lenses", "lenses", question="Does what is read depend on the lens?"
            ),
            Entry(
                "pages/prompt/writing.py", "Writing", "generation", question="How early is each written word decided?"
            ),
        ),
    ),
    Room(
        "Intervene",
        "What breaks without it?",
        "content_cut",
        (
            Entry("pages/intervene/skip.py", "Skip", "layer_skip"),
            Entry("pages/intervene/erase.py", "Erase", "residual_erasure", question="How long is a token needed?"),
            Entry("pages/intervene/patch.py", "Patch", "patching", question="Where is the answer decided?"),
            Entry(
                "pages/intervene/gradients.py",
                "Gradients",
                "integrated_gradients",
                question="Which tokens does the answer rest on?",
            ),
            Entry("pages/intervene/prune.py", "Prune", "prune", question="Which layers can go?"),
        ),
    ),
    Room(
        "Compare",
        "What differs?",
        "compare_arrows",
        (
            Entry("pages/compare/two.py", "A | B", "two"),
            Entry("pages/compare/maps.py", "Linear maps"),
        ),
    ),
    Room(
        "Studies",
        "Does it hold over many prompts and models?",
        "science",
        (Entry("pages/studies/studies.py", "Studies", model=False),),
    ),
    Room(
        "Model",
        "What is known about this model's depth?",
        "badge",
        (
            Entry("pages/model/model.py", "This model"),
            Entry("pages/model/models.py", "All models", model=False),
        ),
    ),
    Room(
        "Case studies",
        "Case studies",
        "collections_bookmark",
        (
            Entry("pages/case_studies/gallery.py", "Case studies", url="cases", model=False),
            Entry("pages/case_studies/case.py", "Case study", url="case", hidden=True, model=False),
        ),
    ),
)


def _with_further(room: Room) -> Room:
    """Return the room with a tab for each other page in its folder, a probe's: named like its file; the file's first
    line, a docstring, is the page's question."""
    folder = Path(room.tabs[0].file).parent
    others = sorted(
        {str(folder / file.name) for file in (ROOT / folder).glob("*.py")} - {tab.file for tab in room.tabs}
    )
    tabs = [
        Entry(file, Path(file).stem.replace("_", " ").capitalize(), Path(file).stem, question=question.strip('"'))
        for file in others
        for question in (ROOT / file).read_text("utf-8").splitlines()[:1]
    ]
    return replace(room, tabs=(*room.tabs, *tabs))


ROOMS = tuple(map(_with_further, _ROOMS))
KEPT_FROM = {entry.kept_as: entry.path for room in ROOMS for entry in room.tabs if entry.kept_as}
