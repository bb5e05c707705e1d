"""What is known of a model's depth, in one document; and the documents of several models side by side."""

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from ed_core import figures
from ed_core.cards import card, making, page
from ed_core.claims import running
from ed_core.claims import words as claim_words
from ed_core.depth import say
from ed_core.depth.rules import OF_LENS, RULES
from ed_core.types import ModelSpec
from ed_ui import inputs, link, live, picker, probe_page, prompt_set, runs, show
from ed_ui.inputs import choice, text
from ed_ui.runs import Card, card_name, card_of, cards

MOST = 500  # prompts
CURVES = {name: title for name, (title, _) in page.PANELS.items()}
FILES = {
    card.HTML: ("Page", "text/html"),
    card.MARKDOWN: ("Markdown", "text/markdown"),
    card.FILE: ("JSON", "text/json"),
}


def main() -> None:
    link.own(PARAMETERS)
    link.among(CARD, cards()[0], "card")
    link.say_troubles()
    model = picker.required()
    open_ = card_of(model) is None or SOURCE.value != "bundled"
    with st.expander(f"Make a card of {show.plain(model.name)}", icon=":material/add_chart:", expanded=open_):
        wanted = form(model)
        if wanted:
            live.fragment(lambda: run(wanted), runs.pause(wanted.out))()
    link.write()
    live.fragment(lambda: body(model, wanted), None)()
    probe_page.texts(TEXTS)


def form(model: ModelSpec) -> Card | None:
    """The prompts of a card that is to be made."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-cards")
    name = prompt_set.set_or_lines(row, "cards", model)
    prompts = tuple(prompt_set.lines(MOST)) if name is None else ()
    return Card(model, name or "", prompts) if name or prompts else None


def body(model: ModelSpec, wanted: Card | None) -> None:
    """What the model's card says, all cards side by side, and one of them whole."""
    found, damaged = cards()
    for trouble in damaged:
        show.error(trouble)
    if not found:
        show.empty("No cards yet", TEACH, None, first=True)
        return
    if (own := card_of(model)) is not None:
        st.markdown(f"**{show.plain(page.headline(own))}**")
    else:
        st.markdown(f"No card of {show.plain(model.name)} yet; those of other models:")
    side_by_side(found)
    whole(found, wanted, model, own)


def run(wanted: Card) -> None:
    """The row of buttons, and how far it is."""
    making.check_model(wanted.model.source)

    def ended() -> None:
        if wanted.found():
            inputs.put_over({"cards.card": card_name(wanted.out / card.FILE)})

    label = f"Make the card of {show.plain(wanted.model.name)}{' again' if wanted.found() else ''}"
    again = {"cards": (label, wanted.begin)}
    runs.panel(wanted.out, "cards", again, ended=ended, unfinished=wanted.unfinished)
    st.caption("The same from the command line:")
    st.code(wanted.asked().command, language="bash", wrap_lines=True)


def adapter(told: card.Card) -> str:
    """What stands behind the model's name."""
    return f" with {told.model.adapter}" if told.model.adapter else ""


def titled(told: card.Card) -> str:
    """A card among others: model with its adapter, precision and prompts."""
    return f"{told.model.name}{adapter(told)} · {told.model.precision} · {told.set.name} ({len(told.set.prompts)})"


def side_by_side(found: Mapping[str, tuple[Path, card.Card]]) -> None:
    """What the cards say, a line each; the rules' depths; one of the curves over relative depth."""
    cards: dict[str, card.Card] = {}
    for _, told in reversed(found.values()):  # of two alike the one made here is shown
        title = titled(told)
        namesake = title in cards and cards[title].model.content != told.model.content
        cards[title + f" · {told.model.content[:8]}" * namesake] = told
    means = [f"average depth, {rule.label}" for rule in OF_LENS.values()]
    head = ["model", "prompts", *means, *(f"{rule.label} rule" for rule in RULES.values()), *COLUMNS]
    lines = []
    for title, told in cards.items():
        cells = [page.depth(told.depth(of, True)) for of in OF_LENS] + [
            page.depth(told.depth(of, False)) for of in RULES
        ]
        cuts = [*(cut(one) for one in told.cuts), "–", "–"][:2]  # a looped model has no stretch
        model = f"{adapter(told)} {told.model.precision}, {told.model.layers} layers"
        over = f"{len(told.set.prompts)} of {told.set.name}{title.removeprefix(titled(told))}"
        lines.append(
            [
                show.plain(cell)
                for cell in (model, over, *cells, claim_words.counted(told.claims, adjusted=False), *cuts)
            ]
        )
        lines[-1][0] = f"**{show.plain(told.model.name)}**{lines[-1][0]}"
    show.markdown_table("cards-table", head, lines)
    rows = [
        {"title": title, "criterion": one.of, "variant": "mean" if one.mean else "paper", "n_layers": told.model.layers}
        | {name: getattr(one, name) for name in ("depth", "ratio", "low", "high")}
        | {"undefined": None, "prompts": len(told.set.prompts)}
        for title, told in cards.items()
        for one in told.depths
    ]
    show.figure("cards-depths", figures.study_depths(rows, "title"), DEPTHS, about=lambda: st.markdown(READING))
    which = CURVE.draw(st.selectbox, width=420)
    of_models, of_twins = (
        {title: told.curves[which][of] for title, told in cards.items() if of in told.curves[which]}
        for of in (running.MODEL, running.TWIN)
    )
    curves = {title: tuple(map(list, (one.values, one.low, one.high))) for title, one in of_models.items()}
    twins = {title: list(one.values) for title, one in of_twins.items()}
    layers = {title: told.model.layers for title, told in cards.items()}
    fig, caption = figures.study_curves(curves, layers, CURVES[which], twins=twins), f"**{CURVES[which]}** {BAND}"

    def about() -> None:
        st.markdown(LEGEND)
        st.json({"models": curves, "untrained twins": twins})

    show.figure("cards-curves", fig, caption, about=about)


def cut(one: card.Cut) -> str:
    """The stretch that changes the predictions least and its price, in a cell."""
    return f"{say.stretch(one.start, one.start + one.layers)}: {page.value(one.loss)} nats"


def whole(
    found: Mapping[str, tuple[Path, card.Card]], wanted: Card | None, model: ModelSpec, said: card.Card | None
) -> None:
    """One card as it is shared, and its files; at first the one of these prompts, else the one that was `said` above,
    else one of the model at all."""
    own = card_name(wanted.out / card.FILE) if wanted else ""
    alike = [name for name, (_, told) in found.items() if told.model.name == model.name]
    first = next((name for name, (_, told) in found.items() if told == said), next(iter(alike or found)))
    usual = own if own in found else first
    if CARD.value not in found:
        inputs.forget(CARD.key)
    name = CARD.draw(
        st.selectbox, default=usual, options=list(found), format_func=lambda name: titled(found[name][1]), width=420
    )
    told = found[name][1]
    row = st.container(horizontal=True, key="files-of-card")
    made = {card.HTML: page.html, card.MARKDOWN: page.markdown, card.FILE: card.to_json}
    for file, (label, mime) in FILES.items():
        row.download_button(
            label,
            lambda make=made[file]: make(told),
            f"{told.model.name.replace('/', '-')}-{file}",
            mime,
            icon=":material/download:",
            on_click="ignore",
            key=f"download-{file}",
        )
    with st.container(border=True, key="card-whole"):
        st.html(page.fragment(told, st.context.theme.type or ""))


SOURCE, SET = prompt_set.of_set("cards")
CURVE = choice("curve", "cards.curve", "kl", CURVES.keys(), "Curve", CURVES)
CARD = text("card", "cards.card", label="Card")
PARAMETERS = (SOURCE, SET, CURVE, CARD)
COLUMNS = ("claims", "layer left out, least KL", "stretch left out, least KL")
DEPTHS = (
    "**Depth**: circles mean depth under the logit lens, diamonds the papers' rules; bars: 5 to 95 % over prompts or "
    "their forms"
)
BAND = "over relative depth; shaded: 5 to 95 % over prompts or their forms; thin and grey: untrained twins"
LEGEND = "A click on a name hides its line, a double click all others; pointing at a grey line tells whose twin it is."
READING = (
    "Mean depth as `depth / layers`, a rule's layer as `(layer + 1) / layers`. The rules read different things: what "
    "the layers add (cosine), how far the lens is from the output (KL), and which tokens it would say (overlap)."
)
TEACH = (
    "**Make** measures rules, lenses, claims, cuts and precisions of the chosen model, and resumes where it was "
    "stopped."
)
TEXTS = {
    "Why a card": "Which of the published statements hold for this model, how sure that is, and what the cut "
    "of least KL costs: in one document that others can check, print and put beside the model.",
    "Look for": "a mean depth apart from its untrained twin's, and claims that hold for one model and not for another.",
    "Beware": "A card is of one prompt set. Two cards on different sets differ in models and prompts at once.",
}

main()
