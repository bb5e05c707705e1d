"""What was kept: every case study with its picture, to search, open and take in."""

import time
from html import escape
from typing import Any

import streamlit as st

from ed_core.cases import case_study
from ed_core.cases.bundle import MAX_BYTES, Card
from ed_core.cases.kept import SORTS
from ed_core.errors import EffectiveDepthError
from ed_core.figures.images import data_uri
from ed_ui import case_studies, inputs, show

WORDS = show.words(__file__)
AT_ONCE, COLUMNS = 12, 3
SEARCH = 200  # characters of a search
SORT_NAMES = {"changed": "last changed", "created": "newest", "title": "title", "model": "model"}


def page() -> None:
    """Draw the page: search, import, and every case study with its picture."""
    kept, barrier = case_studies.kept(), case_studies.why_not()
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-gallery")
    search = row.text_input(
        "Search",
        key="gallery.search",
        max_chars=SEARCH,
        placeholder="title, notes, tags, prompt, model, verdict",
        icon=":material/search:",
    )
    row.selectbox("Sort by", list(SORTS), format_func=SORT_NAMES.__getitem__, key="gallery.sort", width=170)
    cards = kept.cards(search or "", st.session_state["gallery.sort"])
    look: dict[str, Any] = {"icon": ":material/upload_file:", "help": show.plain(barrier) or WORDS["Import"]}
    with row.popover("Import", disabled=bool(barrier), key="gallery.import", **look):
        take_in()
    said()
    for problem in kept.problems:
        st.warning(show.plain(problem), icon=":material/broken_image:")
    own = [c for c in cards if not kept.is_shipped(c.id)]
    if not own and not search:
        st.info(WORDS["Empty"], icon=":material/bookmark_add:")
    elif not cards:
        st.info(NOTHING.format(show.plain(search)), icon=":material/search_off:")
    tiles, below = st.container(), st.container(horizontal=True, vertical_alignment="center")
    n_pages = max(1, -(-len(cards) // AT_ONCE))
    number = below.pagination(n_pages, key=f"gallery.page.{n_pages}") if n_pages > 1 else 1
    if n_pages > 1:
        below.caption(f"{len(cards)} case studies", width="content")
    for start in range(AT_ONCE * (number - 1), min(AT_ONCE * number, len(cards)), COLUMNS):
        for column, card in zip(tiles.columns(COLUMNS), cards[start : start + COLUMNS], strict=False):
            with column.container(border=True, key=f"card-{card.id}", gap="xsmall", height="stretch"):
                tile(card, shipped=kept.is_shipped(card.id))


def tile(card: Card, shipped: bool) -> None:
    """Draw a case study in the gallery."""
    picture = (
        f'<img src="{data_uri(card.thumbnail)}" alt="{escape(alt(card))}">'
        if card.thumbnail
        else f"<span>{escape(', '.join(card.probes))}</span>"
    )
    st.html(f'<div class="ed-thumbnail">{picture}</div>')
    title = st.container(key=f"title-{card.id}")
    title.page_link(
        case_studies.CASE, label=f"**{show.plain(card.title)}**", query_params={"id": card.id}, width="stretch"
    )
    mark = " :gray-badge[comes with the app]" if shipped else ""
    day = time.strftime("%d %b %Y", time.gmtime(card.changed))
    if sentence := case_study.lead(card.verdict):
        st.markdown(f":small[{show.plain(short(sentence, 110))}]")
    st.caption(f"**{show.plain(card.model)}** · {show.plain(card.precision)} · {day}{mark}")
    st.caption(f"“{show.plain(case_study.cut(card.prompt, 60))}”")
    if card.tags:
        st.markdown(" ".join(f":blue-badge[{show.plain(tag)}]" for tag in card.tags))


def alt(card: Card) -> str:
    """Return the words for a case study's thumbnail, for those who cannot see it."""
    return (
        f"Thumbnail of {card.title}: {len(card.thumbnail)} layers upwards by {len(card.thumbnail[0])} columns, "
        f"bright is large. {card.verdict}"
    )


def short(text: str, most: int) -> str:
    """Return a text on one line of at most `most` characters, its own line breaks marked, cut behind a word."""
    line = case_study.tidy(text.strip().replace("\n", " ⏎ "))
    head = line[: most - 1]
    return line if len(line) <= most else f"{head.rpartition(' ')[0] or head}…"


def said() -> None:
    """Show what the last import came to, with a link to each case study."""
    for i, (kind, text, id) in enumerate(inputs.value("gallery.said", ())):
        box, icon = BOXES[kind]
        with st.container(key=f"said-{i}", gap="xxsmall"):
            box(show.plain(text), icon=icon)
            if id:
                st.page_link(case_studies.CASE, label="Open it", icon=":material/open_in_new:", query_params={"id": id})


def take_in() -> None:
    """Draw the upload of others' case studies; each is checked before anything of it is kept."""
    # another box for every import: an uploader cannot be emptied
    key = f"gallery.files.{inputs.value('gallery.imports', 0)}"
    common: dict[str, Any] = dict(type=["edcase"], accept_multiple_files=True, max_upload_size=MAX_BYTES // 2**20)
    st.file_uploader("Case studies, .edcase", key=key, on_change=taken, args=(key,), help=WORDS["Import"], **common)


def taken(key: str) -> None:
    """Keep the uploaded case studies that pass the checks, and remember what came of each."""
    messages = []
    for file in st.session_state[key] or []:
        try:
            case, new = case_studies.writable().take_in(file.getvalue())
            came = "is kept now." if new else "was here already; nothing was changed."
            messages.append(("done" if new else "here", f"“{case.title}” {came}", case.id))
        except EffectiveDepthError as error:
            messages.append(("error", f"{file.name} was not taken in, and nothing of it was kept. {error}", ""))
    inputs.put({"gallery.said": messages, "gallery.imports": inputs.value("gallery.imports", 0) + 1})


NOTHING = "No case study contains every word of “{}”; try fewer."
BOXES = {
    "done": (st.success, ":material/check:"),
    "here": (st.info, ":material/info:"),
    "error": (st.error, ":material/error:"),
}
page()
