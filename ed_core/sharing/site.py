"""Findings as a static site: what may be published, a page each, and an index that can be searched. It opens from a
file, and from a server in any folder; it asks nobody for anything. Torch-free.

A folder that was published holds a list of the files that are the site's (`MARKER`). Only those are ever replaced or
removed, so what else lies there (`.git`, a host's own files) stays."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from .. import disk, settings, untrusted
from ..cards import card as cards
from ..cards import page as card_page
from ..cases import bundle, case_study, report
from ..cases.drawings import Drawing
from ..cases.kept import SUFFIX, Kept
from ..cases.report import to_html
from ..errors import EffectiveDepthError, PublishError
from ..figures import depth_over_steps
from ..figures.images import data_uri
from ..studies import bundle as study_bundle
from ..studies import items, steps, tables
from ..studies import report as study_report
from ..studies.items import Folder, open_folder
from ..types import from_json

FOLDER = Path(__file__).parent
MARKER, FORMAT = ".effective-depth-site.json", "effective-depth site"
INDEX, ASSETS = "index.html", "assets"
NAME = re.compile(r"(\w+/)?\w[\w.+-]*")  # of a file of the site


@dataclass(frozen=True)
class Page:
    """One page, and what the index tells of it. `kind`: the heading it stands under there, like "Case studies";
    `place`: its file in the site; `lead`: a sentence; `facts`: the small print; `words`: what a search looks through;
    `picture`: an address that nobody need be asked for, or ""; `files`: the page itself and what lies beside it."""

    kind: str
    place: str
    title: str
    lead: str
    facts: str
    words: str
    tags: tuple[str, ...] = ()
    picture: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def write(pages: Iterable[Page], out: Path) -> list[Page]:
    """Write a site into a folder that is not there, is empty, or was published before; returns its pages, without
    their files. All of it is made before the folder is touched; then each file is replaced all or nothing, the index
    last, and pages that are gone are removed. `PublishError` says why not."""
    before = _published(out)
    told: list[Page] = []
    names: set[str] = set()
    try:
        with disk.hidden(out / INDEX if out.is_dir() else out) as made:  # beside it may lie another disk
            for name, data in _all(pages, told):
                if name.lower() in names:
                    raise PublishError(
                        f"Two files of the site would be called {name}: rename one of two studies, or name one of two "
                        "cards of the same."
                    )
                names.add(name.lower())
                place = made / name
                place.parent.mkdir(exist_ok=True)
                disk.write(place, data)
            files = [file.relative_to(made).as_posix() for file in made.rglob("*") if file.is_file()]
            _put(made, out, sorted(files, key=lambda name: (name == INDEX, name)), before)
    except OSError as error:
        raise PublishError(f"The site {out} cannot be written: {disk.why(error, '--out')}") from error
    return told


def render(template: str, **told: object) -> bytes:
    """One of this folder's templates, with the site's title."""
    return report.templates(FOLDER).get_template(template).render(site=settings.current().title, **told).encode()


def _all(pages: Iterable[Page], told: list[Page]) -> Iterator[tuple[str, bytes]]:
    """Every file of the site by name, the pages' first; `told` is filled with the pages."""
    for page in pages:
        yield from page.files.items()
        told.append(replace(page, files={}))
    by_kind: dict[str, list[Page]] = {}
    for page in told:
        by_kind.setdefault(page.kind, []).append(page)
    yield INDEX, render("index.html", kinds=by_kind, here="")
    style = ((report.FOLDER / "report.css").read_bytes(), (FOLDER / "site.css").read_bytes())
    yield f"{ASSETS}/site.css", b"".join(style)
    yield f"{ASSETS}/site.js", (FOLDER / "site.js").read_bytes()
    yield f"{ASSETS}/report.js", (report.FOLDER / "report.js").read_bytes()
    yield f"{ASSETS}/plotly.js", report.plotly_script().encode()


def _published(out: Path) -> list[str]:
    """The files of the site that lies in a folder; none where it is empty or not there."""
    marker = out / MARKER
    try:
        if not out.exists() or (out.is_dir() and all(file.name.endswith(disk.UNFINISHED) for file in out.iterdir())):
            return []
        told = from_json(untrusted.regular(marker).read(untrusted.CONFIG))
        files: list[str] = told["files"]
        if told["format"] == FORMAT and all(NAME.fullmatch(name) for name in files):
            return files
        raise ValueError
    except FileNotFoundError:
        why = "is not empty, and no site was published into it"
    except NotADirectoryError:
        why = "is no folder"
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, TypeError):
        why = f"holds a {MARKER} that this program did not write"
    raise PublishError(f"{out} {why}; give --out a folder that is empty, not there yet, or was published before.")


def _put(made: Path, out: Path, files: list[str], before: list[str]) -> None:
    """Move the new files over the old ones, then remove what is gone. The marker names every file of the site at every
    moment, so that whatever ends this, the next publication clears up."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in {(out / name).parent for name in (*files, *before)} - {out}:
        if folder.is_symlink():
            raise PublishError(f"{folder} is a link, and a site is written into its own folder alone; remove it.")
    gone = sorted(name for name in set(before) - set(files) if not (out / name).is_dir())
    _mark(out, [*files, *gone])
    for name in files:
        (out / name).parent.mkdir(exist_ok=True)
        disk.move(made / name, out / name)
    for name in gone:
        (out / name).unlink(missing_ok=True)
    for folder in {(out / name).parent for name in gone} - {out}:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    _mark(out, files)


def _mark(out: Path, files: list[str]) -> None:
    disk.write(out / MARKER, json.dumps({"format": FORMAT, "files": files}, indent=0).encode())


CASES, OF_STUDIES, OF_CARDS = "Case studies", "Studies", "Depth cards"
PROMPT, LEAD = 60, 200  # characters on the index
CURVES = {  # of a study, where it has them: what the three rules read
    "logit_lens.kl": "Divergence of the lens from the output",
    "logit_lens.overlap": "Overlap of the lens's best tokens with the output's",
    "contributions.layer_cos": "Cosine of what a layer adds with what it reads",
}
OVER_TRAINING = "lines: mean depth, shaded 5 to 95 %; stars: a turn; diamonds: the papers' rules; below: sinks a prompt"
DEPTHS = "the papers' three rules, never averaged; a bar is the 5 to 95 % range over prompts"


NAMES = {CASES: "case study", OF_STUDIES: "study", OF_CARDS: "depth card"}


def publish(
    out: Path, case_ids: list[str], studies: list[Path], card_files: list[Path], *, own: bool, shipped: bool
) -> tuple[list[Page], list[str]]:
    """Write a site of what is named, of everything kept here (`own`, or where nothing is named) and of what is
    `shipped`; return its pages and what could not be published. Something named that cannot be published is an
    error."""
    kept, problems, places = Kept(), [], set()
    own = own or not (case_ids or studies or card_files or shipped)
    named = {*case_ids, *studies, *card_files}
    cards_here = kept.cards() if own or shipped else []
    cases = [*case_ids, *(c.id for c in cards_here if (shipped if kept.is_shipped(c.id) else own))]
    folders = [*studies, *(items.made_here() if own else ())]
    files = [*card_files, *(cards.made_here() if own else ())]
    if shipped:
        names = {folder.name for folder in folders}
        folders += [folder for folder in items.shipped() if folder.name not in names]
        files += cards.shipped()
    if not (cases or folders or files):
        raise PublishError("Nothing is kept here; give --shipped for what comes with the product.")

    def pages() -> Iterator[Page]:
        for make, of_kind in ((lambda id: of_case(kept, id), cases), (of_study, folders), (of_card, files)):
            for one in dict.fromkeys(of_kind):
                try:
                    page = make(one)
                except EffectiveDepthError as error:
                    if one in named:
                        raise
                    problems.append(f"{one}: {error}")
                    continue
                if page.place not in places or one in named or one not in cards.shipped():
                    yield page  # a shipped card of a model that was measured here too is left out
                places.add(page.place)

    written = write(pages(), out)
    return written, [*kept.problems, *problems]


def of_case(kept: Kept, id: str) -> Page:
    """A case study as a page: its report, and its file to import elsewhere. `CaseError` where it cannot be opened."""
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
    """A study as a page: figures, report, and its file to open elsewhere. `StudyError` where the folder holds none,
    `PublishError` where it has no depths."""
    folder = open_folder(out)
    verdict = tables.stored(folder)
    if not verdict.num_rows:
        raise PublishError(
            f"The study in {out} has no depths; run it with contributions or logit_lens, then publish it."
        )
    title, note = folder.plan["name"], folder.plan["note"]
    name = re.sub(r"[^\w.+-]", "-", title)
    words = study_report.markdown(folder, folder.digest())
    drawn = _drawn(folder)
    beside = {
        f"{name}{study_bundle.ENDING}": study_bundle.packed(out),
        f"{name}-verdict.csv": tables.as_file(verdict, "csv"),
    }
    told = ("study, to open in a laboratory (.edstudy)", "depths as a table (.csv)")
    page = render(
        "study.html",
        here="../",
        title=title,
        words=to_html(words.partition("\n")[2]),
        drawn=drawn,
        figures=[report.plain(drawing) for drawings in drawn.values() for drawing in drawings],
        number=count().__next__,
        files=dict(zip(beside, told)),
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
        files={f"studies/{name}.html": page} | {f"studies/{file}": data for file, data in beside.items()},
    )


def of_card(file: Path) -> Page:
    """A depth card as a page, with its document and its Markdown. `CardError` where it cannot be read."""
    told = cards.read(file)
    model, on = told.model.name, told.set.name
    name = re.sub(r"[^\w.+-]", "-", f"{model}-{told.model.precision}-{on}-{told.about[:6]}").lstrip("-+.")
    beside = {f"{name}.json": cards.to_json(told), f"{name}.md": card_page.markdown(told).encode()}
    about = dict(zip(beside, ("the card's numbers (.json)", "a section for a model card (.md)")))
    title = f"Depth card: {model}"
    page = render("card_page.html", here="../", title=title, words=card_page.fragment(told), files=about)
    verdicts = "\n".join(f"{one.title} {one.verdict}" for one in told.claims)
    return Page(
        OF_CARDS,
        f"cards/{name}.html",
        f"Depth card: {model}",
        card_page.headline(told),
        f"{told.model.precision} · {len(told.set.prompts)} prompts of {on} · {card_page.counted(told)}",
        f"{model}\n{on}\n{verdicts}",
        files={f"cards/{name}.html": page} | {f"cards/{file}": data for file, data in beside.items()},
    )


def _drawn(folder: Folder) -> dict[str, list[Drawing]]:
    """The figures by what they are of: the depths on all sets, then of each set the curves that the rules read."""
    depths = tables.figure(folder, tables.DEPTHS)
    found = {"Depths": [Drawing("Effective depth", DEPTHS, depths)]}
    verdict = tables.stored(folder).to_pylist()
    for series, labels in steps.series(folder).items():
        for name in folder.sets:
            if rows := steps.depths(verdict, labels, name):
                over = depth_over_steps(rows, rows[0]["n_layers"], dict(zip(labels, steps.sinks(folder, labels, name))))
                title = f"Depth over training{f' of {series}' if series else ''} on {name}"
                found["Depths"].append(Drawing(title, OVER_TRAINING, over))
    for name in folder.sets:
        measured = tables.measures(folder, name)
        for measure, title in CURVES.items():
            if measure in measured:
                caption = f"{measure} over relative depth; shaded: 5 to 95 % over prompts"
                curves = tables.figure(folder, measure, name)
                of_set = found.setdefault(f"Curves on {name}", [])
                of_set.append(Drawing(title, caption, curves, f"{title} on {name}: {caption}"))
    return found


def _short(text: str, most: int) -> str:
    line = case_study.tidy(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"
