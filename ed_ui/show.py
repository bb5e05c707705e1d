"""Showing a measure: one caption line, the figure at its fixed height, and behind a button how to read it, its CSV and
its origin."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pandas  # noqa: F401 (before a first figure: plotly fails where another thread has imported half of it)
import plotly.io
import streamlit as st
from plotly.basedatatypes import BaseFigure
from streamlit.delta_generator import DeltaGenerator

from ed_core.cases import export
from ed_core.cases.drawings import Drawing
from ed_core.depth import say
from ed_core.depth.spelling import spelled
from ed_core.figures import View, describe, describe_curves, images, is_map, shown
from ed_core.figures import pictures as drawn
from ed_core.figures.pictures import Look
from ed_core.probes import find
from ed_core.probes.base import Picture
from ed_core.prompts import to_jsonl
from ed_core.results.shelf import Shelf, frozen
from ed_core.types import ProbeResult, Prompt
from ed_ui import inputs

CAPTION = 44  # pixels that a figure's caption line takes
TALLEST, WIDE = 640, 1000  # pixels of a figure; what is taller, or as wide on a narrow screen, is scrolled in a box
ONE_LINE = 110  # letters of a sentence that is next to a button


# -------------------------------------------------------------------- the figure component
# A new version is drawn into the figure that is there, where `st.plotly_chart` takes it down and builds another
# (0.45 s of the browser's time each, a dozen in a run). What makes a figure is a pure function, so one that somebody
# has looked at is not made again (`once`).

HELD = 32 << 20  # bytes of figures that stay ready


@cache
def _component() -> Any:
    """Return the component `figure` of pyproject.toml, which Streamlit knows where the project is installed (`make
    setup`). Its styles are the page's: plotly writes its own into the page's head, where a shadow root does not see
    them."""
    return st.components.v2.component("effective-depth-lab.figure", js="figure.js", isolate_styles=False)


def mount(key: str, data: bytes, height: int) -> Any:
    """Show a figure, or the depth story, at its fixed height: nothing moves when it is drawn. Return what was clicked.
    `data`: JSON, as `figure.js` takes it."""
    return _component()(key=key, data=data, height=height, on_clicked_change=lambda: None).clicked


@dataclass(frozen=True)
class Ready:
    """A figure as the browser gets it, with its height, the width it was made for and its margins, in pixels, its
    curves in words ("" where it has none), and whether it is a map of a measure."""

    json: bytes
    height: int
    width: int
    margin: dict[str, int]
    words: str
    map: bool


_shelf: Shelf[Ready] = Shelf(HELD, lambda ready: len(ready.json))


def once(make: Callable[..., BaseFigure], *given: Any, **named: Any) -> Ready:
    """Return a figure that the pure function `make` makes of these arguments, made once for all sessions; one of a
    result that is incomplete, for which nobody asks again, is not kept."""

    def ready() -> Ready:
        return made(make(*given, **named))

    if any(isinstance(one, ProbeResult) and not one.complete for one in given):
        return ready()
    try:
        key = make, frozen(given), frozen(named)
    except TypeError:
        return ready()
    return _shelf.get(key, ready)


def made(figure: BaseFigure) -> Ready:
    """Return a figure as it goes to the browser."""
    data = figure.to_dict()
    data["layout"].pop("template", None)  # the browser puts the page's own colours and letters there
    layout = data["layout"]
    sent = plotly.io.to_json(data, validate=False).encode()
    width = layout.get("meta", {}).get("width_px", 0)
    margin = layout.get("margin", {})
    return Ready(sent, layout["height"], width, margin, describe_curves(figure, ""), is_map(figure))


def draw(
    key: str,
    ready: Ready,
    alt: str,
    clickable: bool = False,
    over: tuple[Ready, str] | None = None,
    caption: str = "",
    results: Sequence[ProbeResult] = (),
) -> Any:
    """Draw a figure here, and return row and column of the cell of its heatmap that was clicked just now, or the
    `customdata` of the cell or mark, if it is `clickable`. `alt`: what it shows, for those who cannot see it. `over`: a
    second figure of the same size, with its own words, which covers it right of a line that can be dragged. `caption`,
    and the origin of the `results`: what a picture file has above and below; without a caption none can be saved."""
    message: dict[str, Any] = {"alt": alt, "clickable": clickable}
    if caption and over is None:
        layout = {"meta": {"width_px": ready.width or 600}, "height": ready.height, "margin": ready.margin}
        name = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")
        message["save"] = {"name": name, "layout": images.printing(layout, caption, images.origin(results))}
    sent = json.dumps(message).encode()[:-1] + b', "figure": ' + ready.json
    if over is not None:
        sent += b', "over": ' + json.dumps({"alt": over[1]}).encode()[:-1] + b', "figure": ' + over[0].json + b"}"
    sent += b"}"
    return mount(key, sent, ready.height)


# -------------------------------------------------------------------- a measure's figure, and what it is


def figure(
    key: str,
    fig: Ready | BaseFigure,
    caption: str,
    result: ProbeResult | None = None,
    measure: str = "",
    reading: str = "",
    select: bool = False,
    about: Callable[[], None] | None = None,
    results: Sequence[ProbeResult] = (),
    alt: str = "",
    place: Any = st,
    over: tuple[BaseFigure, str] | None = None,
) -> None:
    """Draw one figure (from `once`, or plotly's) with its caption and Details, in its `place` on the page. `about`
    fills Details where it is not one result's measure, `results` are then those it is made of. `alt`: what it shows,
    for those who cannot see it, where that is not the measure's smallest and largest value. `select`: a click on a cell
    chooses its token for all panels. `over`: a figure, and what it shows, that is over this one (`draw`)."""
    results = results or ((result,) if result is not None else ())
    ready = fig if isinstance(fig, Ready) else made(fig)
    is_wide = (select or over is not None or key in ("map", "study-forest")) and ready.width >= WIDE
    if not alt:
        of_measure = measure and (ready.map or not ready.words)
        alt = describe(result, measure) if result is not None and of_measure else bare(caption) + ready.words
    with place.container(key=f"box-{key}", gap="xxsmall"):
        row = st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"caption-{key}")
        row.caption(caption)
        if about is not None or result is not None or reading:
            with row.popover("Details", icon=":material/info:", type="tertiary", key=f"about-{key}"):
                if about is not None:
                    about()
                elif result is not None:
                    details(key, result, measure, reading)
                else:
                    st.markdown(reading)
        tall: int | Literal["content"] = TALLEST if ready.height > TALLEST else "content"
        box = st.container(height=tall, border=False, key=f"{'wide' if is_wide else 'tall'}-{key}")
        with box:
            upper = None if over is None else (made(over[0]), over[1])
            cell = draw(key, ready, alt, select, upper, bare(caption), results)
    if cell:  # its token is the selected one, for every panel
        inputs.put({"token": int(cell[1])})
        st.rerun(scope="fragment")


def picture(
    key: str,
    one: Picture,
    result: ProbeResult,
    view: View,
    look: Look = Look(),  # noqa: B008 (frozen)
    caption: str = "",
    place: Any = st,
) -> None:
    """Draw a picture that a result's probe declares (`figures.pictures`). `caption`: in place of the picture's own."""
    measure = drawn.measures(one, look)[0]
    over_tokens = "pos" in find(result.request.probe).spec(measure).dims
    fig = once(drawn.draw, one, result, view, look)
    text = (caption or f"**{one.title}** · {one.caption}") + drawn.curve_of(one, view, look)
    alt = describe(result, measure, look.boundary) if measure == "effect_by_boundary" else ""
    figure(key, fig, text, result, measure, one.reading, over_tokens, alt=alt, place=place)


def details(key: str, result: ProbeResult, measure: str, reading: str) -> None:
    """Draw a measure's formula, how to read it, its numbers and where they came from."""
    name = f"{result.request.probe}.{measure}"
    if measure:
        st.markdown(meaning(result, measure))
    if reading:
        st.markdown(reading)
    notes(result.notes)
    if measure and result.complete:
        csv(key, lambda: export.csv(result, measure), name)
    origin("Where it came from", result, 1)


def conclusion(key: str, said: str, reasons: Sequence[str] = ()) -> None:
    """Show a conclusion in one sentence, with the `reasons` behind a click; both may be a stranger's words."""
    row = st.container(horizontal=True, vertical_alignment="center", key=f"conclusion-{key}")
    row.markdown(f"**{plain(said)}**", width="content" if len(said) < ONE_LINE else "stretch")
    if reasons:
        with row.popover("Reasons", type="tertiary", key=f"reasons-{key}"):
            bullets(f"{one[0].upper()}{one[1:]}" for one in reasons)


def verdict(sentence: str, sure: str = "", reasons: Sequence[str] = ()) -> None:
    """Show a page's answer: one sentence, and below it in grey how sure it is, the `reasons` behind a click. All may
    contain a stranger's words."""
    st.markdown(f"## {plain(sentence)}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="how-sure"):
        st.markdown(plain(sure), width="content")
        if reasons:
            with st.popover("Why?", type="tertiary", key="why"):
                bullets(reasons)


def finding(said: str, sure: str = "", reasons: Sequence[str] = ()) -> None:
    """Show a room's answer in plain words, and how sure it is, at the top of its page (`verdict`)."""
    with st.container(key="headline"):
        verdict(said, sure, reasons)


@cache
def words(file: str) -> Mapping[str, str]:
    """Return the paragraphs of the Markdown file next to a page's `file` by their headings, the first under "", each on
    one line."""
    text = re.sub(r"(?<=[^\n])\n(?=[^\n])", " ", Path(file).with_suffix(".md").read_text(encoding="utf-8"))
    parts = re.split(r"(?m)^## (.+)$", text)
    return dict(zip(["", *parts[1::2]], map(str.strip, parts[::2]), strict=True))


def bullets(lines: Iterable[str]) -> None:
    """Show sentences that may contain a stranger's words, one below the other."""
    st.markdown("\n".join(f"- {plain(line)}" for line in lines))


def numbers(figures: Iterable[tuple[str, str]], place: Any = st) -> None:
    """Draw large figures: pairs of a figure and its meaning, which is below it."""
    rows = (f"<div><b>{escape(large)}</b><span>{escape(small)}</span></div>" for large, small in figures)
    place.html(f'<div class="ed-numbers">{"".join(rows)}</div>')


def meaning(result: ProbeResult, measure: str) -> str:
    """Return a measure's name, unit, dims and meaning as Markdown."""
    spec = find(result.request.probe).spec(measure)
    return f"**`{result.request.probe}.{measure}`** ({spec.unit}), dims ({', '.join(spec.dims)}): {spec.meaning}."


def csv(key: str, make: Callable[[], str], name: str, label: str = "CSV") -> None:
    """Draw the download of a CSV file, which `make` makes when it is asked for."""
    st.download_button(label, make, f"{name}.csv", "text/csv", key=f"csv-{key}", icon=":material/download:")


def prompts_file(prompts: Sequence[Prompt]) -> None:
    """Draw the download of the prompts as the file that a command line takes."""
    make, name = partial(to_jsonl, prompts), "prompts.jsonl"
    st.download_button(name, make, name, "application/jsonl", icon=":material/download:")


def origin(title: str, result: ProbeResult, expanded: int | bool = False) -> None:
    """Show a result's birth certificate: how it was computed, and from what."""
    st.markdown(f"**{title}**")
    if result.complete:
        st.json(dict(result.provenance), expanded=expanded)
    else:
        st.caption("Written when the computation is complete.")


def notes(found: Iterable[str], begin: str = "") -> None:
    """Show notes of results, each once, behind the words `begin`."""
    for note in filter(None, dict.fromkeys(found)):
        st.info(f"{begin}{plain(note)}", icon=":material/info:")


def bare(caption: str) -> str:
    """Return a caption without its Markdown, and without a hint in italics, which is for the mouse."""
    plainly = re.sub(r" \*\(.*?\)\*", "", caption.replace("**", "").replace("`", ""))
    return re.sub(r"\\(.)", r"\1", plainly)


def drawing(key: str, d: Drawing, reading: str = "") -> None:
    """Draw a figure of a case study, or over several results, with the Details that it has: those of its `curve`, of
    one of its measures, or its numbers in words. `reading`: how to read it."""
    caption, results = f"**{d.title}** · {plain(d.caption)}", d.results

    def about() -> None:
        if d.curve is not None:
            name, dim, values, meaning = d.curve
            st.markdown("\n\n".join(filter(None, (f"**`{name}`**, dims ({dim}): {meaning}.", reading))))
            csv(key, lambda: export.curve_csv(name, dim, values), name)
            tokens = say.count(sum(r.n_tokens for r in results), "token")
            st.markdown(f"**Where it came from**: {say.count(len(results), 'prompt')}, {tokens}")
            st.json([dict(r.provenance) for r in results], expanded=1)
        elif results:
            measure = d.measures[0] if d.measures else ""
            if len(d.measures) > 1:
                look: dict[str, Any] = dict(default=measure, required=True, key=f"measure-{key}")
                measure = st.segmented_control("Measure", d.measures, **look) or measure
            details(key, results[0], measure, reading)
        else:
            bullets(d.reading)

    figure(key, d.figure, caption, about=about, results=results, alt="" if d.curve is not None else d.alt)


def token_box(row: Any, tokens: Sequence[str], width: int | Literal["stretch"] = 190) -> None:
    """Draw the choice of the token that all panels mark, for those who cannot click a cell."""
    st.session_state["token.box"] = inputs.token(len(tokens))
    names = spelled(tokens)
    row.selectbox(
        "Selected token",
        range(len(tokens)),
        format_func=lambda i: f"{i} {shown(names[i], 16)}",
        key="token.box",
        on_change=lambda: inputs.put({"token": st.session_state["token.box"]}),
        placeholder="none",
        width=width,
    )


def table(
    key: str, rows: Sequence[Mapping[str, Any]], height: int, formats: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Draw a table that is scrolled and sorted on the screen, at most `height` pixels high, and whole on paper, where
    the screen's would lose columns and rows. `formats`: of columns of numbers, like ".3g"."""
    numbers = {name: st.column_config.NumberColumn(format=f"%{form}") for name, form in formats.items()}
    st.dataframe(rows, hide_index=True, height=min(36 * (len(rows) + 1) + 3, height), column_config=numbers, key=key)

    def cell(name: str, value: Any) -> str:
        form = formats.get(name, "") if isinstance(value, float) else ""
        return say.number(value, form) if form else "" if value is None else str(value)

    names = list(dict.fromkeys(name for row in rows for name in row))
    st.html(_html("ed-paper", names, ([cell(name, row.get(name)) for name in names] for row in rows)))


def few_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Draw a table of a few rows, on a phone a card a row; cells may contain a stranger's words."""
    st.html(_html("ed-table", head, rows))


def _html(kind: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as HTML, its texts escaped. `kind`: its CSS class."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = (
        "".join(f'<td data-head="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head, row, strict=True))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def empty(title: str, text: str, height: int, first: bool = False) -> None:
    """Draw a panel that has no figure yet, as high as that will be; the `first` of a page says it louder."""
    with st.container(height=height + CAPTION, border=True):
        if title:
            st.markdown(f"**{title}**")
        if first and text:
            st.info(text, icon=":material/play_circle:")
        else:
            st.caption(text)


def place(key: str, height: int) -> DeltaGenerator:
    """Return a container at least as high as a figure of `height` pixels with its caption: what is below it does not
    move while one thing in it replaces another."""
    st.html(f"<style>.st-key-place-{key} {{ min-height: {height + CAPTION}px; }}</style>")
    return st.container(key=f"place-{key}")


def token(text: str, special: bool = False) -> str:
    """Return a token as Markdown: code, or orange where it is a special one."""
    return f":orange-background[{code(text, 40)}]" if special else code(text, 40)


def code(text: str, most: int) -> str:
    """Return text as Markdown's code, its spaces visible, at most `most` characters of it."""
    return f"`{shown(text, most).replace('`', 'ˋ')}`"


def plain(text: str) -> str:
    """Return text that may contain a stranger's words so that Markdown shows it as it is: no images, no colours, no
    lists, and no links but addresses that are written out."""
    text = re.sub(r"[\\`*_{}\[\]()#+!|~<>$:&]", r"\\\g<0>", _unrewritten(text))
    text = re.sub(r"(?<=\d) %", "\u00a0%", text)  # never at the start of a line
    return re.sub(
        r"(?m)^(\s*)([-=]|\d+(?=\.(?:\s|$)))", lambda m: f"{m[1]}\\{m[2]}" if m[2] in "-=" else f"{m[0]}\\", text
    )


def _unrewritten(text: str) -> str:
    """Return text in which Streamlit's Markdown finds no emoji, icon, arrow or dash to rewrite, which a backslash does
    not prevent: an invisible word joiner splits them."""
    return re.sub(r":(?=(?!\d+:)[\w+/-]+:)|(?<!\S)(?=(?:<->|->|<-|--|>=|<=|~=)(?!\S))[<>~-]", "\\g<0>\u2060", text)


def error(found: Exception | str) -> None:
    """Show an error by its own message."""
    st.error(plain(str(found)), icon=":material/error:")
