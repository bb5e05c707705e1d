"""The pages: under which heading, in which file, and under which name a case study remembers where it was kept from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A page in the navigation. `kept_as`: its name in a case study, a probe's for that probe's own page; "" where
    nothing is kept from. `url`: its path, where that is not the file's name. `model`: it is about the model that is
    chosen in the sidebar."""

    file: str
    title: str
    icon: str
    kept_as: str = ""
    url: str | None = None
    hidden: bool = False
    model: bool = True


PAGES: dict[str, tuple[Entry, ...]] = {
    "Look": (
        Entry("pages/look/home.py", "Home", "layers", "home"),
        Entry("pages/look/contributions.py", "Contributions", "stacked_bar_chart", "contributions"),
        Entry("pages/look/logit_lens.py", "Logit lens", "center_focus_strong", "logit_lens"),
        Entry("pages/look/lenses.py", "Lenses", "filter_center_focus", "lenses"),
        Entry("pages/look/writing.py", "Writing", "edit_note", "generation"),
        Entry("pages/look/numerics.py", "Sanity checks", "rule", "numerics"),
    ),
    "Intervene": (
        Entry("pages/intervene/skip.py", "Layer skip", "content_cut", "layer_skip"),
        Entry("pages/intervene/erase.py", "Erase", "ink_eraser", "residual_erasure"),
        Entry("pages/intervene/gradients.py", "Gradients", "trending_down", "integrated_gradients"),
        Entry("pages/intervene/prune.py", "Prune and exit", "compress", "prune"),
        Entry("pages/intervene/surgery.py", "Surgery", "healing", "surgery"),
    ),
    "Compare": (
        Entry("pages/compare/two.py", "Compare two", "compare_arrows", "two"),
        Entry("pages/compare/studies.py", "Studies", "science", model=False),
        Entry("pages/compare/claims.py", "Claims", "gavel"),
        Entry("pages/compare/cards.py", "Depth cards", "badge"),
        Entry("pages/compare/difficulty.py", "Depth and difficulty", "stairs", model=False),
        Entry("pages/compare/maps.py", "Maps", "map"),
        Entry("pages/compare/audit.py", "Precision audit", "balance", "audit"),
    ),
    "Keep": (
        Entry("pages/keep/gallery.py", "Case studies", "collections_bookmark", url="cases", model=False),
        Entry("pages/keep/case.py", "Case study", "bookmark", url="case", hidden=True, model=False),
    ),
}
KEPT_FROM = {entry.kept_as: entry.file for entries in PAGES.values() for entry in entries if entry.kept_as}
