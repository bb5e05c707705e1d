"""A case study as one HTML file: figures that answer to the mouse, notes, verdict, tokens, origin. Torch-free.

`report.html` is its template. The file asks nobody for anything: plotly's script lies within it, once, and a content
security policy forbids every request and every script but the two whose hashes it names. So even markup that slipped
through the escaping could not run."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Collection
from functools import lru_cache
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ..errors import CaseError
from ..figures.text import shown
from ..types import ProbeResult
from .case_study import Case, View
from .drawings import Drawing, Section, says, sections
from .notes import to_html
from .snippet import snippet

FIRST = ("run", "engine", "probe", "model", "family", "device", "libraries", "time", "seconds")  # of a provenance


def report(case: Case) -> str:
    """The report's HTML."""
    from plotly.offline import get_plotlyjs

    parts = sections(case)
    again, refused = {}, ""
    try:
        found = snippet(case)
        again = {"command line": found.shell, "Python": found.python}
    except CaseError as error:
        refused = str(error)
    return _template().render(
        case=case,
        changed=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(case.changed)),
        sections=parts,
        number=count().__next__,
        figures=[_plain(drawing) for section in parts for drawing in section.drawings],
        again=again,
        refused=refused,
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {f.__name__.lstrip("_"): f for f in (_sha256, _by_prompts, _certificate, says, shown, to_html)}
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return found.get_template("report.html")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _by_prompts(section: Section) -> Collection[View]:
    """A view for each of the section's prompts: its tokens."""
    return {view.prompts: view for view in section.views}.values()


def _certificate(result: ProbeResult) -> str:
    """The birth certificate as JSON, the most asked first."""
    made = result.provenance
    return json.dumps({k: made[k] for k in FIRST if k in made} | dict(made), indent=1, ensure_ascii=False)


def _plain(drawing: Drawing) -> dict:
    """A figure without plotly's own theme, which would fix the colour of letters."""
    figure = json.loads(drawing.figure.to_json())
    figure["layout"].pop("template", None)
    return figure
