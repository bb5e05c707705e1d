"""Findings as a static site: an index that can be searched, and a page each. It opens from a file, and from a server in
any folder; it asks nobody for anything. Torch-free.

A folder that was published holds a list of the files that are the site's (`MARKER`). Only those are ever replaced or
removed, so what else lies there (`.git`, a host's own files) stays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import bounds, disk, outside, settings
from ..cases import report
from ..errors import PublishError
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
        with disk.hidden(out) as made:
            for name, data in _all(pages, told):
                if name.lower() in names:
                    raise PublishError(f"Two files of the site would be called {name}; rename one of the two studies.")
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
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return []
        told = from_json(outside.regular(marker).read(bounds.CONFIG))
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
