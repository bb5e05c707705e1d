"""A case study as one HTML file: interactive figures, notes, verdict, tokens, origin. Torch-free.

`report.html` is its template, with `report.css` and `report.js` within. The file loads nothing: plotly's script is in
it, once and compressed, and a content security policy forbids every request and every script but the two with the
hashes it names. So even markup that slipped through the escaping could not run."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import zlib
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from ..figures.canvas import shown
from ..settings import ROOT
from ..types import ProbeResult
from .case_study import Case, View
from .drawings import Drawing, Section, says, sections
from .snippet import snippet

FOLDER = Path(__file__).parent


def report(case: Case) -> str:
    """Return the case study's report, a whole HTML page."""
    return templates().get_template("report.html").render(**contents(case), plotly=plotly_script())


@lru_cache(maxsize=1)
def plotly_script() -> str:
    """Return plotly's script with only maps, curves and bars (`plotly.js-cartesian-dist-min` of npm, of the version in
    the package `plotly`)."""
    return (ROOT / "effective_depth_lab" / "figure" / "plotly.min.js").read_text(encoding="utf-8")


def contents(case: Case) -> dict[str, object]:
    """Return the variables of the template `report.html`, all but `plotly`, its script."""
    parts = sections(case)
    return dict(
        case=case,
        changed=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(case.changed)),
        sections=parts,
        number=count().__next__,
        figures=[plain(drawing) for section in parts for drawing in section.drawings],
        again=snippet(case),
    )


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the environment of this folder's templates, which escape every word they take."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (_sha256, _packed, _by_prompts, _certificate, says, shown, to_html)
    environment.filters |= {f.__name__.lstrip("_"): f for f in filters}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _sha256(script: str) -> str:
    """Return the SHA-256 of a script in base64, as the page's security policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _packed(script: str) -> str:
    """Return a script in zlib's deflate and base64, which `report.js` unpacks."""
    return base64.b64encode(zlib.compress(script.encode(), 9)).decode()


def _by_prompts(section: Section) -> Collection[View]:
    """Return one view for each of the section's prompts, for its tokens."""
    return {view.prompts: view for view in section.views}.values()


def _certificate(result: ProbeResult) -> str:
    """Return the result's provenance as JSON."""
    return json.dumps(dict(result.provenance), indent=1, ensure_ascii=False)


def plain(drawing: Drawing) -> dict[str, Any]:
    """Return a figure as JSON's values, without plotly's own theme, which would fix the colour of letters."""
    figure: dict[str, Any] = json.loads(drawing.figure.to_json())
    figure["layout"].pop("template", None)
    return figure


@lru_cache(maxsize=1)
def _reader() -> MarkdownIt:
    """Return a reader of CommonMark with tables. HTML is text; pictures are off, as one would be loaded from a server;
    links that run code are refused by the library and stay text."""
    reader = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table").disable("image")
    reader.add_render_rule("link_open", _link)
    return reader


def _link(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    """Return the HTML of a link that sends no referrer and opens in another tab."""
    tokens[at].attrSet("rel", "noopener noreferrer nofollow")
    tokens[at].attrSet("target", "_blank")
    return self.renderToken(tokens, at, options, env)


def to_html(notes: str) -> str:
    """Return a stranger's Markdown as harmless HTML: none of its tags, no pictures, no script in a link."""
    html: str = _reader().render(notes)
    return html
