"""What is known of this model's depth: its card, the claims that hold for it, and whether its numbers are sound."""

import math
from collections.abc import Callable
from functools import partial
from html import escape

import streamlit as st

from ed_core import figures
from ed_core.cards import card, making, page
from ed_core.claims import find, running, words
from ed_core.claims.judging import DOES_NOT_APPLY, FAILS, HOLDS, UNDECIDED
from ed_core.claims.record import Found, Judged
from ed_core.depth import say
from ed_core.depth.mean_depth import of_curve
from ed_core.models.ref import ModelRef
from ed_ui import browser, inputs, link, live, model_sections, picker, prompt_set, runs, show
from ed_ui.inputs import text
from ed_ui.runs import Card, card_name, cards

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
    own = {name: one for name, (_, one) in known.items() if one.model.name == model.name}
    for trouble in damaged:
        show.error(trouble)
    chosen = choose(own, model)
    if chosen is not None:
        answer(chosen)
    else:
        show.finding(f"Nothing is known of {model.name} yet.", TEACH)
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
            live.fragment(lambda: run(wanted), None)()
    browser.share(row, prompt=False)
    if wanted is not None and runs.under_way(wanted.out):
        live.fragment(lambda: run(wanted), runs.pause(wanted.out))()


def titled(one: card.Card) -> str:
    """Return a card's name among those of one model: set, prompts, precision."""
    return f"{one.set.name}, {say.count(len(one.set.prompts), 'prompt')} · {one.model.precision}"


def form(model: ModelRef) -> Card | None:
    """Draw the form of a new card and return the card; None while no prompts are chosen."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-cards")
    name = prompt_set.set_or_lines(row, "cards", model)
    prompts = tuple(prompt_set.lines(MOST)) if name is None else ()
    also = ALSO.draw(st.text_input, words=True, help=ABOUT_ALSO, placeholder="none")
    others = tuple(dict.fromkeys(part.strip() for part in also.split(",") if part.strip()))
    return Card(model, name or "", prompts, others) if name or prompts else None


def run(wanted: Card) -> None:
    """Draw the panel of the run that makes a card: begin, cancel, progress, command."""
    making.check_model(wanted.model)

    def ended() -> None:
        if wanted.found():
            inputs.put_over({CARD.key: card_name(wanted.out / card.FILE)})

    label = "Run again" if wanted.found() else "Run"
    runs.panel(wanted.out, "cards", label, wanted.begin, TAKES, linked=False, ended=ended, unfinished=wanted.unfinished)
    with st.expander("The same from the command line"):
        st.code(wanted.asked().command, language="bash", wrap_lines=True)


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
    show.figure("course", fig, "", reading=COURSE, place=right, alt=" ".join(one.said))


def large(one: card.Card) -> list[tuple[str, str]]:
    """Return a card's large figures, each with its meaning: average depth, that of an untrained copy, and the layer
    that can go."""
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
    """Show a card's claims in a line each: what holds, what fails, what is undecided; what does not apply is folded,
    with the remedy."""
    if not one.claims:
        return
    for column, verdict in zip(st.columns(3), (HOLDS, FAILS, UNDECIDED), strict=True):
        some = [one for one in one.claims if one.verdict == verdict]
        lines = "".join(map(claim, some)) or "<p>none</p>"
        column.html(f'<div class="ed-claims ed-{verdict}"><h5>{verdict.capitalize()} · {len(some)}</h5>{lines}</div>')
    rest = [one for one in one.claims if one.verdict == DOES_NOT_APPLY]
    trust = next((note for note in one.notes if note.startswith("The checks")), "")
    holds = "pass" in trust
    mark = f"<b>{'✓ Numbers to trust' if holds else '✗ Not to be trusted'}</b> · {escape(trust)} " if trust else ""
    folded = "".join(f"<li>{escape(one.title)}: {escape(remedy(one.reason))}</li>" for one in rest)
    which = f"<details><summary>{say.count(len(rest), 'claim')} {'do' if len(rest) > 1 else 'does'} not apply</summary>"
    st.html(f'<div class="ed-trust">{mark}{which}<ul>{folded}</ul></details></div>' if rest or mark else "")


def claim(one: Found) -> str:
    """Return a claim as HTML: its sentence, a small interval plot and its figures; on click why, and how it is
    measured."""
    first = next((q for q in one.judging if q.value is not None and q.value.value is not None), None)
    plot, value = (interval(first), words.value(first, first.value)) if first is not None else ("", "")
    value = f"{first.name}: {value}" if first is not None else next((q.nothing for q in one.judging if q.nothing), "")
    copy = f" · an untrained copy: {one.twin}" if one.twin else ""
    known = find(one.id)
    more = [*words.reasons(one), f"Formula: {known.formula}", f"Protocol: {known.protocol}"]
    body = "".join(f"<li>{escape(remedy(reason))}</li>" for reason in more)
    return (
        f"<details><summary><span>{escape(one.title)}</span>{plot}<small>{escape(value)}</small></summary>"
        f"<p>{escape(one.source)}{escape(copy)}</p><ul>{body}</ul></details>"
    )


def interval(q: Judged) -> str:
    """Return a claim's quantity as a small plot in HTML: shaded where the claim is true, the interval, the value, an
    untrained copy."""
    value, copy = q.value, q.twin
    assert value is not None
    shown = [v for v in (value.value, value.low, value.high, copy.value if copy else None, *q.limits) if v is not None]
    low, high = min(shown), max(shown)
    apart = (high - low) or 1.0
    low, high = low - 0.12 * apart, high + 0.12 * apart

    def percent(found: float | None, end: float) -> float:
        return 100 * ((end if found is None else found) - low) / (high - low)

    def span(kind: str, ends: tuple[float | None, float | None]) -> str:
        left, right = percent(ends[0], low), percent(ends[1], high)
        return f'<u class="{kind}" style="left:{left:.1f}%;width:{max(right - left, 0.5):.1f}%"></u>'

    inside = span("ed-true", q.limits)
    bar = "" if value.low is None else span("ed-bar", (value.low, value.high))
    hollow = f'<s style="left:{percent(copy.value, low):.1f}%"></s>' if copy and copy.value is not None else ""
    return f'<em class="ed-plot">{inside}{bar}{hollow}<b style="left:{percent(value.value, low):.1f}%"></b></em>'


def remedy(said: str) -> str:
    """Return a claim's words with the page's box in place of the command line's option."""
    return said.replace("with --also", f"under “{BOX}”").replace("--also", f"“{BOX}”")


BOX = "Also of its family"
SOURCE, SET = prompt_set.of_set("cards")
CARD = text("card", "cards.card", label="Card")
ALSO = text("also", "cards.also", label=BOX)
PARAMETERS = (SOURCE, SET, CARD, ALSO, *model_sections.PARAMETERS)
ABOUT_ALSO = "Further models of this one's family, with commas between: a statement about size needs three models."
TEACH = "Measure it on a set of prompts: depths, claims, what can be removed, and how exact other precisions are."
TAKES = "about 6 min for 135 million parameters"
COURSE = (
    "Above: the mean divergence of the lens from the output (KL, nats), shaded 5 to 95 % over prompts, and that of an "
    "untrained copy. Below: mean loss per token without each layer less the whole model's; blue: the model does "
    "better without it. Bars are linear up to 0.05 nats and logarithmic beyond."
)

main()
