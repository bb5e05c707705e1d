"""Case studies, studies and depth cards as a static site: a page each, and an index that can be searched. It opens from
a file and from a server in any folder, and loads nothing from elsewhere. Torch-free.

A published folder has a file that says so (`MARKER`). The index and the folders `PARTS` in it are replaced, and all
else (`.git`, files of a host) stays."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from .. import disk, settings
from ..cards import card as cards
from ..cards import page as card_page
from ..errors import EffectiveDepthError, PublishError
from ..figures import depth_over_steps
from ..figures.images import data_uri
from ..studies import bundle as study_bundle
from ..studies import items, steps, tables
from ..studies import report as study_report
from ..studies.items import Folder, open_folder
from . import bundle, case_study, report
from .drawings import Drawing
from .kept import SUFFIX, Kept
from .report import to_html

MARKER = ".effective-depth-site"
INDEX, ASSETS = "index.html", "assets"
PARTS = (ASSETS, "cases", "studies", "cards")
CASES, OF_STUDIES, OF_CARDS = "Case studies", "Studies", "Depth cards"
NAMES = {CASES: "case study", OF_STUDIES: "study", OF_CARDS: "depth card"}
PROMPT, LEAD = 60, 200  # characters on the index
CURVES = {  # of a study, where it has them: what the three rules read
    "logit_lens.kl": "Divergence of the lens from the output",
    "logit_lens.overlap": "Overlap of the lens's best tokens with the output's",
    "contributions.layer_cos": "Cosine of what a layer adds with what it reads",
}
OVER_TRAINING = "lines: average depth, 5 to 95 % shaded; stars: clear switch; diamonds: published rules; below: sinks"
DEPTHS = "the papers' three rules, never averaged; a bar is the 5 to 95 % range over prompts"


@dataclass(frozen=True)
class Page:
    """One page of the site, and its entry in the index. `kind`: the heading of the entry, like "Case studies"; `place`:
    its file in the site; `lead`: a sentence; `facts`: the small print; `words`: the text that a search reads;
    `picture`: a data URI, or ""; `files`: the page and its downloads."""

    kind: str
    place: str
    title: str
    lead: str
    facts: str
    words: str
    tags: tuple[str, ...] = ()
    picture: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


# ---------------------------------------------------------------- the folder


def write(pages: Iterable[Page], out: Path) -> list[Page]:
    """Write a site into the folder `out`, which is new, empty, or was published before, and return its pages without
    their files. All of it is made before the folder is touched."""
    if out.exists() and not (out.is_dir() and ((out / MARKER).is_file() or not any(out.iterdir()))):
        raise PublishError(
            f"{out} is not empty, and no site was published into it; give --out a folder that is empty, new, or was "
            "published before."
        )
    written = []
    with disk.hidden(out / INDEX if out.is_dir() else out) as made:  # next to `out` may be read-only
        for page in pages:
            _put(made, page.files)
            written.append(replace(page, files={}))
        _put(made, _shared(written))
        for part in PARTS:
            shutil.rmtree(out / part, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).touch()
        for one in made.iterdir():
            (shutil.copytree if one.is_dir() else shutil.copyfile)(one, out / one.name)
    return written


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, by their names, into a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def _shared(pages: Iterable[Page]) -> dict[str, bytes]:
    """Return the files that are no page's own: index, styles and scripts."""
    by_kind: dict[str, list[Page]] = {}
    for page in pages:
        by_kind.setdefault(page.kind, []).append(page)
    scripts = {f"{ASSETS}/{name}": (report.FOLDER / name).read_bytes() for name in ("site.js", "report.js")}
    return scripts | {
        INDEX: render("index.html", kinds=by_kind, here=""),
        f"{ASSETS}/site.css": b"".join((report.FOLDER / name).read_bytes() for name in ("report.css", "site.css")),
        f"{ASSETS}/plotly.js": report.plotly_script().encode(),
    }


def render(template: str, **words: object) -> bytes:
    """Return a page from a template, filled with these words and the site's title."""
    return report.templates().get_template(template).render(site=settings.current().title, **words).encode()


# ---------------------------------------------------------------- the pages


def publish(
    out: Path, case_ids: list[str], studies: list[Path], card_files: list[Path], *, own: bool, shipped: bool
) -> tuple[list[Page], list[str]]:
    """Write a site into `out`; return its pages, and what could not be published: of what is named, of everything kept
    here (`own`, or where nothing is named) and of what is `shipped`. Something named that cannot be published is an
    error, and leaves the folder as it was."""
    kept, places = Kept(), set()
    problems: list[str] = []
    own = own or not (case_ids or studies or card_files or shipped)
    listed = kept.cards() if own or shipped else []
    cases = [*case_ids, *(c.id for c in listed if (shipped if kept.is_shipped(c.id) else own))]
    folders = [*studies, *(items.made_here() if own else ()), *(items.shipped() if shipped else ())]
    files = [*card_files, *(cards.made_here() if own else ()), *(cards.shipped() if shipped else ())]
    if not (cases or folders or files):
        raise PublishError("Nothing is kept here; give --shipped for what comes with the product.")

    def pages() -> Iterator[Page]:
        """Yield the pages that can be made, and note the others in `problems`."""
        for make, of_kind in ((lambda id: of_case(kept, id), cases), (of_study, folders), (of_card, files)):
            for one in dict.fromkeys(of_kind):
                try:
                    page = make(one)
                except EffectiveDepthError as error:
                    if one in (*case_ids, *studies, *card_files):
                        raise
                    problems.append(f"{one}: {error}")
                    continue
                if page.place not in places:  # what was made here comes before what is shipped of the same
                    places.add(page.place)
                    yield page
                elif one in (*case_ids, *studies, *card_files):
                    raise PublishError(f"{one} would be {page.place}, as another is; rename one of them.")

    return write(pages(), out), [*kept.problems, *problems]


def of_case(kept: Kept, id: str) -> Page:
    """Return a case study as a page: its report, and its file to import elsewhere."""
    case, _ = kept.open(id)
    data = kept.read(id)
    card = bundle.card(io.BytesIO(data))
    place, file = f"cases/{id}.html", f"cases/{id}{SUFFIX}"
    day = time.strftime("%d %b %Y", time.gmtime(card.changed))
    page = render("case.html", **report.contents(case), here="../", file=f"{id}{SUFFIX}")
    return Page(
        CASES,
        place,
        card.title,
        _short(case_study.lead(card.verdict), LEAD),
        f"{card.model} · {card.precision} · {day} · “{_short(card.prompt, PROMPT)}”",
        card.words,
        card.tags,
        data_uri(card.thumbnail) if card.thumbnail else "",
        {place: page, file: data},
    )


def of_study(out: Path) -> Page:
    """Return a study as a page: figures, report, and its file to open elsewhere; `PublishError` where it has no
    depths."""
    folder = open_folder(out)
    verdict = tables.stored(folder)
    if not verdict.num_rows:
        raise PublishError(
            f"The study in {out} has no depths; run it with contributions or logit_lens, then publish it."
        )
    title, note = folder.plan["name"], folder.plan["note"]
    name = _file_name(title)
    words = study_report.markdown(folder, folder.digest())
    drawings = _drawings(folder)
    downloads = {
        f"{name}{study_bundle.ENDING}": study_bundle.packed(out),
        f"{name}-verdict.csv": tables.as_file(verdict, "csv"),
    }
    page = render(
        "study.html",
        here="../",
        title=title,
        words=to_html(words.partition("\n")[2]),
        drawn=drawings,
        figures=[report.plain(drawing) for some in drawings.values() for drawing in some],
        number=count().__next__,
        files=dict(zip(downloads, ("study, to open in a laboratory (.edstudy)", "depths as a table (.csv)"))),
    )
    prompts = sum(len(one["ids"]) for one in folder.sets.values())
    counts = {"model": len(folder.models), "set": len(folder.sets), "prompt": prompts}
    return Page(
        OF_STUDIES,
        f"studies/{name}.html",
        title,
        _short(note, LEAD),
        " · ".join(f"{n} {what}{'s' * (n != 1)}" for what, n in counts.items()),
        "\n".join((title, note, *folder.models, *folder.sets)),
        files={f"studies/{file}": data for file, data in {f"{name}.html": page, **downloads}.items()},
    )


def of_card(file: Path) -> Page:
    """Return a depth card as a page, with its document and its Markdown."""
    card = cards.read(file)
    model, set_name, title = card.model.name, card.set.name, f"Depth card: {card.model.name}"
    name = _file_name(f"{model}-{card.model.precision}-{set_name}-{card.about[:6]}").lstrip("-+.")
    downloads = {f"{name}.json": cards.to_json(card), f"{name}.md": card_page.markdown(card).encode()}
    about = dict(zip(downloads, ("the card's numbers (.json)", "a section for a model card (.md)")))
    page = render("card_page.html", here="../", title=title, words=card_page.fragment(card), files=about)
    verdicts = "\n".join(f"{one.title} {one.verdict}" for one in card.claims)
    return Page(
        OF_CARDS,
        f"cards/{name}.html",
        title,
        card_page.headline(card),
        f"{card.model.precision} · {len(card.set.prompts)} prompts of {set_name} · {card_page.counted(card)}",
        f"{model}\n{set_name}\n{verdicts}",
        files={f"cards/{file}": data for file, data in {f"{name}.html": page, **downloads}.items()},
    )


def _drawings(folder: Folder) -> dict[str, list[Drawing]]:
    """Return the figures by their headings: the depths on all sets, then of each set the curves that the rules read."""
    by_heading = {"Depths": [Drawing("Effective depth", DEPTHS, tables.figure(folder, tables.DEPTHS))]}
    verdict = tables.stored(folder).to_pylist()
    for series, labels in steps.series(folder).items():
        for name in folder.sets:
            if rows := steps.depths(verdict, labels, name):
                sinks = {step: tables.sinks(folder, label, name) for step, label in labels.items()}
                figure = depth_over_steps(rows, rows[0]["n_layers"], sinks)
                title = f"Depth over training{f' of {series}' if series else ''} on {name}"
                by_heading["Depths"].append(Drawing(title, OVER_TRAINING, figure))
    for name in folder.sets:
        measured = tables.measures(folder, name)
        for measure, title in CURVES.items():
            if measure in measured:
                caption = f"{measure} over relative depth; shaded: 5 to 95 % over prompts"
                drawing = Drawing(title, caption, tables.figure(folder, measure, name), f"{title} on {name}: {caption}")
                by_heading.setdefault(f"Curves on {name}", []).append(drawing)
    return by_heading


def _file_name(text: str) -> str:
    """Return the text with "-" for every character that a file's name should not have."""
    return re.sub(r"[^\w.+-]", "-", text)


def _short(text: str, most: int) -> str:
    """Return the text on one line, cut to `most` characters with "…" at its end."""
    line = case_study.tidy(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"
