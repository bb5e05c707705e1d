"""What is known of this model's depth: its card, the claims that hold for it, and whether its numbers are sound."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.cards import card, making, page
from ed_core.claims import find, running, words
from ed_core.claims.judging import DOES_NOT_APPLY, FAILS, HOLDS, UNDECIDED
from ed_core.claims.record import Found, Judged, Value
from ed_core.depth import say
from ed_core.depth.mean_depth import of_curve
from ed_core.models.ref import ModelRef
from ed_core.studies.words import templates
from ed_ui import browser, inputs, link, model_sections, picker, prompt_set, runs, show
from ed_ui.inputs import text
from ed_ui.runs import Card, card_name, cards

WORDS = show.words(__file__)
MOST = 500  # prompts
FILES: dict[str, tuple[str, str, Callable[[card.Card], str | bytes]]] = {
    card.HTML: ("Page", "text/html", page.html),
    card.MARKDOWN: ("Markdown", "text/markdown", page.markdown),
    card.FILE: ("JSON", "application/json", card.to_json),
}


def main() -> None:
    """Draw the page: the model's card, the claims that hold for it, and whether its numbers are sound."""
    link.own(PARAMETERS)
    known, damaged = cards()
    link.among(CARD, known, "card")
    link.say_troubles()
    model = picker.required()
    same = (model.name, model.adapter)
    own = {name: one for name, (_, one) in known.items() if (one.model.name, one.model.adapter) == same}
    for trouble in damaged:
        show.error(trouble)
    chosen = choose(own, model)
    if chosen is not None:
        answer(chosen)
    else:
        show.finding(f"Nothing is known of {model.name} yet.", WORDS[""])
    actions(model, own, chosen)
    if chosen is not None:
        course(chosen)
        claims(chosen)
    model_sections.draw(model)
    link.write()


def choose(own: dict[str, card.Card], model: ModelRef) -> card.Card | None:
    """Return the card to show: the chosen one, else that of these weights in this precision, else any of the model.
    A chosen name that is not among its `own` cards is forgotten."""
    if CARD.value in own:
        return own[CARD.value]
    inputs.forget(CARD.key)
    return runs.card_of(model) or next(iter(own.values()), None)


def answer(one: card.Card) -> None:
    """Show where the words settle and whether the layers switch, from a card."""
    mean, n = one.depth("kl", True), one.model.layers
    settles = f"{one.model.name} has no average depth here."
    if mean is not None and mean.depth is not None:
        settles = f"{one.model.name} settles its words by {say.layers(mean.depth, n)} on average."
    switch = next((line for line in one.said if line.startswith("The layers")), "")
    over = f"{say.count(len(one.set.prompts), 'prompt')} of the set {one.set.name} · {one.model.precision}"
    over = f"{over} · measured {one.made}".removesuffix(" · measured ")
    show.finding(f"{settles} {switch}".strip(), over, (page.facts(one), *one.said, *one.notes))


def actions(model: ModelRef, own: dict[str, card.Card], chosen: card.Card | None) -> None:
    """Draw the choice of another card of this model, the chosen card's files, and the form of a card on other prompts
    with its progress. `own`: the model's cards by name."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="run-row-card")
    if len(own) > 1:
        name = next(name for name, one in own.items() if one == chosen)
        CARD.draw(row.selectbox, default=name, options=list(own), format_func=lambda name: titled(own[name]), width=300)
    if chosen is not None:
        with row.popover("Download card", type="tertiary", icon=":material/download:"):
            for file, (label, mime, make) in FILES.items():
                name = f"{chosen.model.name.replace('/', '-')}-{file}"
                st.download_button(label, partial(make, chosen), name, mime, key=f"download-{file}", on_click="ignore")
    label = "Measure on other prompts" if chosen is not None else "Measure this model"
    with row.popover(label, icon=":material/add_chart:", type="tertiary" if chosen is not None else "primary"):
        wanted = form(model)
        if wanted is not None and not runs.under_way(wanted.out):
            runs.follow(wanted.out, lambda: run(wanted))
    browser.share(row, prompt=False)
    if wanted is not None and runs.under_way(wanted.out):
        runs.follow(wanted.out, lambda: run(wanted))


def titled(one: card.Card) -> str:
    """Return a card's name among those of one model: set, prompts, precision."""
    return f"{one.set.name}, {say.count(len(one.set.prompts), 'prompt')} · {one.model.precision}"


def form(model: ModelRef) -> Card | None:
    """Draw the form of a new card and return the card; None while no prompts are chosen."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-cards")
    name = prompt_set.set_or_lines(row, "cards", model)
    prompts = tuple(prompt_set.lines(MOST)) if name is None else ()
    also = ALSO.draw(st.text_input, words=True, help=WORDS["Also"], placeholder="none")
    others = tuple(dict.fromkeys(part.strip() for part in also.split(",") if part.strip()))
    return Card(model, name or "", prompts, others) if name or prompts else None


def run(wanted: Card) -> None:
    """Draw the panel of the run that makes a card: begin, cancel, progress, command."""
    making.check_model(wanted.model)

    def ended() -> None:
        if wanted.found():
            inputs.put_over({CARD.key: card_name(wanted.out / card.FILE)})

    found = wanted.found() is not None
    runs.panel(wanted.out, "cards", wanted.begin, found, WORDS["Takes"], again=True, linked=False, ended=ended)
    with st.expander("The same from the command line"):
        st.code(wanted.asked().command, language=None, wrap_lines=True)


# -------------------------------------------------------------------- the card


def course(one: card.Card) -> None:
    """Draw a card's three figures, and the divergence by layer with its copy above what each layer costs."""
    left, right = st.columns([2, 5])
    show.numbers(large(one), left)
    lens, cost = one.curves["kl"], one.curves["loss"].get(running.MODEL)
    if not lens or cost is None:
        return
    own = lens[running.MODEL]
    copies = {"untrained copy": lens[running.TWIN].values} if running.TWIN in lens else {}
    curves = {one.model.name: (own.values, own.low, own.high)}
    fig = show.once(figures.model_course, curves, copies, cost.values, one.cuts[0].start if one.cuts else None)
    show.figure("course", fig, "", reading=WORDS["Course"], place=right, alt=" ".join(one.said))


def large(one: card.Card) -> list[tuple[str, str]]:
    """Return a card's large figures with their meanings: average depth, its copy's, the layer that can go."""
    n, facts = one.model.layers, []
    mean = one.depth("kl", True)
    if mean is not None and mean.depth is not None:
        within = "" if mean.low is None or mean.high is None else f" ({say.interval(mean.low, mean.high)})"
        facts.append((f"{mean.depth:.0f} of {n}", f"layers on average{within}"))
    if (copy := one.curves["kl"].get(running.TWIN)) is not None:
        with_copy = of_curve("kl", [math.nan if v is None else v for v in copy.values])
        if with_copy.depth is not None:
            facts.append((f"{with_copy.depth:.0f} of {n}", f"layers in an untrained copy ({with_copy.depth:.1f})"))
    for cut in one.cuts[:1]:
        kept = page.value(cut.kept, ".0f", 100, " %")
        facts.append(
            (say.stretch(cut.start, cut.start + 1), f"is the cheapest to remove: {kept} of first choices kept")
        )
    return facts


def claims(one: card.Card) -> None:
    """Show a card's claims by verdict, in a line each; what does not apply is folded, with the remedy."""
    if not one.claims:
        return
    html: Any = templates().get_template("claims.html").module
    for column, verdict in zip(st.columns(3), (HOLDS, FAILS, UNDECIDED), strict=True):
        column.html(html.group(verdict, [claim(found) for found in one.claims if found.verdict == verdict]))
    rest = [(found.title, remedy(found.reason)) for found in one.claims if found.verdict == DOES_NOT_APPLY]
    note = next((note for note in one.notes if note.startswith("The checks")), "")
    if rest or note:
        st.html(html.trust(note, rest))


def claim(one: Found) -> dict[str, Any]:
    """Return a claim as its template shows it: its sentence, figures, where these are on a small plot, and on click its
    source, why, and how it is measured."""
    known = find(one.id)
    judged = [(q, q.value) for q in one.judging if q.value is not None and q.value.value is not None]
    judged.sort(key=lambda pair: within(pair[0].limits, pair[1].value))  # what speaks against the claim first
    others = (f"{q.name}: {words.value(q, value)}" for q, value in judged[1:])
    more = [*others, *words.reasons(one), f"Formula: {known.formula}", f"Protocol: {known.protocol}"]
    line: dict[str, Any] = {"title": one.title, "more": map(remedy, more), "at": None}
    line["source"] = f"{one.source} · an untrained copy: {one.twin}" if one.twin else one.source
    for q, value in judged[:1]:
        return line | {"value": f"{q.name}: {words.value(q, value)}", "at": places(q, value)}
    return line | {"value": next((q.nothing for q in one.judging if q.nothing), "")}


def within(limits: tuple[float | None, float | None], value: float | None) -> bool:
    """Return whether a quantity's value is between the limits for which its claim is true."""
    low, high = limits
    return value is not None and (low is None or low <= value) and (high is None or value <= high)


def places(q: Judged, value: Value) -> dict[str, Any]:
    """Return where a claim's quantity is on its plot, in percent: the value, its untrained copy's, and as start and
    width its interval and the values for which the claim is true."""
    copy = q.twin.value if q.twin else None
    shown = [v for v in (value.value, value.low, value.high, copy, *q.limits) if v is not None]
    margin = 0.12 * ((max(shown) - min(shown)) or 1.0)
    low, high = min(shown) - margin, max(shown) + margin

    def percent(at: float) -> float:
        return 100 * (at - low) / (high - low)

    def span(start: float | None, end: float | None) -> tuple[float, float]:
        left, right = percent(low if start is None else start), percent(high if end is None else end)
        return left, max(right - left, 0.5)

    return {
        "value": percent(value.value or 0.0),
        "twin": None if copy is None else percent(copy),
        "interval": None if value.low is None else span(value.low, value.high),
        "holds": span(*q.limits),
    }


def remedy(said: str) -> str:
    """Return a claim's words with the page's box in place of the command line's option."""
    return said.replace("with --also", f"under “{BOX}”").replace("--also", f"“{BOX}”")


BOX = "Also of its family"
SOURCE, SET = prompt_set.of_set("cards")
CARD = text("card", "cards.card", label="Card")
ALSO = text("also", "cards.also", label=BOX)
PARAMETERS = (SOURCE, SET, CARD, ALSO, *model_sections.PARAMETERS)
main()
