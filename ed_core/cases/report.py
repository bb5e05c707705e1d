"""A case study as one HTML file: figures that answer to the mouse, notes, verdict, tokens, origin. Torch-free.

The file asks nobody for anything: plotly's script lies within it, once, and a content security policy forbids every
request and every script but the two whose hashes it names. So even markup that slipped through the escaping could not
run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from itertools import islice

from ..errors import CaseError
from ..figures import visible
from .case_study import Case, View
from .drawings import Drawing, Section, says, sections
from .notes import to_html
from .snippet import snippet

CERTIFICATE = (
    "run",
    "engine",
    "probe",
    "model",
    "family",
    "device",
    "libraries",
    "time",
    "seconds",
)  # of a provenance, what comes first


def report(case: Case) -> str:
    """The report's HTML."""
    from plotly.offline import get_plotlyjs

    parts = sections(case)
    drawn = [drawing for section in parts for drawing in section.drawings]
    scripts = [get_plotlyjs().replace("</script", "<\\/script"), DRAW]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; font-src "
        "data:; base-uri 'none'; form-action 'none'"
    )
    figures = [_plain(d) for d in drawn]
    numbered = enumerate(drawn)
    told = [
        text
        for section in parts
        for text in (_section(section), *(_figure(i, d) for i, d in islice(numbered, len(section.drawings))))
    ]
    body = "\n".join([_head(case), *told, _again(case), _origin(case)])
    return PAGE.format(
        policy=policy,
        title=html.escape(case.title),
        style=STYLE,
        body=body,
        plotly=scripts[0],
        draw=scripts[1],
        figures=_json(figures),
    )


def _head(case: Case) -> str:
    tags = "".join(f"<span class=tag>{html.escape(tag)}</span>" for tag in case.tags)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(case.changed))
    verdict = "".join(f"<p class=verdict dir=auto>{html.escape(line)}</p>" for line in case.verdict.splitlines())
    notes = f"<section class=notes dir=auto>{to_html(case.notes)}</section>" if case.notes.strip() else ""
    return (
        f"<header><h1 dir=auto>{html.escape(case.title)}</h1><p class=small>Case study {case.id} · {when} "
        f"{tags}</p></header>{verdict}{notes}"
    )


def _section(section: Section) -> str:
    """Models, prompts and tokens of what follows."""
    prompts = "".join(f"<pre dir=auto>{html.escape(p.text)}{_answer(p.answer)}</pre>" for p in section.prompts)
    views = {view.prompts: view for view in section.views}.values()
    says = "".join(f"<p>{html.escape(line)}</p>" for line in section.says)
    return f"<section><h2>{html.escape(section.heading)}</h2>{prompts}{''.join(map(_tokens, views))}{says}</section>"


def _tokens(view: View) -> str:
    result = view.first.result
    start = result.answer_start if result.answer_start is not None else result.n_tokens
    chips = " ".join(
        f'<span class="token{" answer" if i >= start else ""}" title="token {i}, id {id}">{visible(t)}</span>'
        for i, (t, id) in enumerate(zip(result.tokens, result.token_ids))
    )
    return (
        f"{_continues(view)}<details><summary>{result.n_tokens} tokens</summary><p class=tokens>{chips}</p></details>"
    )


def _answer(answer: str) -> str:
    return f"<mark>{html.escape(answer)}</mark>" if answer else ""


def _continues(view: View) -> str:
    if "continuation" not in view.by_probe:
        return ""
    text, known = says(view.by_probe["continuation"].result)
    mark = {True: " ✓ the known answer", False: " ✗ not the known answer", None: ""}[known]
    return f"<p>The model continues <code>{html.escape(text)}</code>{mark}.</p>"


def _figure(i: int, d: Drawing) -> str:
    notes = "".join(
        f"<p class=small>{html.escape(note)}</p>" for note in (d.result.notes if d.result is not None else ())
    )
    return (
        f"<figure><figcaption><b>{html.escape(d.title)}</b> · {html.escape(d.caption)}</figcaption><div "
        f'class=scroll><div id="figure-{i}" class=plot '
        f'role=img aria-label="{html.escape(d.alt)}" '
        f'style="height:{d.figure.layout.height}px"></div></div>{notes}</figure>'
    )


def _again(case: Case) -> str:
    """The commands that make the numbers again."""
    try:
        found = snippet(case)
    except CaseError as error:
        return f"<p class=small>{html.escape(str(error))}</p>"
    return (
        f"<details><summary>Compute it again: command line</summary><pre>{html.escape(found.shell)}</pre></details>"
        f"<details><summary>Compute it again: Python</summary><pre>{html.escape(found.python)}</pre></details>"
    )


def _origin(case: Case) -> str:
    """The birth certificate of every result, the most asked first."""
    parts = []
    for item in case.items:
        made = item.result.provenance
        ordered = {k: made[k] for k in CERTIFICATE if k in made} | dict(made)
        text = html.escape(json.dumps(ordered, indent=1, ensure_ascii=False))
        parts.append(f"<details><summary>{html.escape(item.result.request.probe)}</summary><pre>{text}</pre></details>")
    return f"<section><h2>Where the numbers came from</h2>{''.join(parts)}</section>"


def _plain(d: Drawing) -> dict:
    """A figure without plotly's own theme, which would fix the colour of letters."""
    figure = json.loads(d.figure.to_json())
    figure["layout"].pop("template", None)
    return figure


def _json(value: object) -> str:
    """JSON that no tag can end: every < and & is spelled out."""
    return (
        json.dumps(value, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
    )


STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --paper: #fff; --faint: #8884; --chip: #8882; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ee; --paper: #14171f; } }
body { color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
.small { font-size: .85rem; opacity: .8; } .tag { background: var(--chip); border-radius: .6rem; padding: 0 .5rem; margin-left: .3rem; }
.verdict { font-size: 1.15rem; font-weight: 600; border-left: 4px solid #009E73; padding-left: .7rem; }
pre { white-space: pre-wrap; background: var(--chip); padding: .6rem; border-radius: .4rem; font-size: .85rem; margin: .4rem 0; }
mark { background: #E69F0066; color: inherit; } figure { margin: 1.5rem 0; } figcaption { margin-bottom: .3rem; }
.scroll { overflow-x: auto; } .plot { min-width: 480px; } summary { cursor: pointer; padding: .2rem 0; }
.token { background: var(--chip); border-radius: .3rem; padding: 0 .25rem; font: .8rem ui-monospace, monospace; display: inline-block; } .answer { background: #E69F0066; }
table { border-collapse: collapse; } td, th { border: 1px solid var(--faint); padding: .2rem .5rem; }
@media print { .scroll { overflow: visible; } details { display: none; } }
"""
DRAW = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
const config = {displayModeBar: false, displaylogo: false, responsive: true};
figures.forEach((figure, i) => {
  figure.layout.font = {...figure.layout.font, color: ink()};
  figure.layout.autosize = true;
  Plotly.newPlot("figure-" + i, figure.data, figure.layout, config);
});
dark.addEventListener("change", () => figures.forEach((_, i) => Plotly.relayout("figure-" + i, {"font.color": ink()})));
"""
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
<script type="application/json" id="figures">{figures}</script>
<script>{plotly}</script>
<script>{draw}</script>
</body></html>
"""
