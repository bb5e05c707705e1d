"""Which published statements about depth hold for this model, on these prompts?"""

from collections.abc import Mapping

import streamlit as st

from ed_core.cards import page as card_page
from ed_core.claims import CLAIMS, find, words
from ed_core.claims.judging import DOES_NOT_APPLY, FAILS, HOLDS, UNDECIDED
from ed_core.claims.record import Found
from ed_ui import link, live, picker, probe_page, prompt_set, runs, show
from ed_ui.inputs import choice, text
from ed_ui.runs import Claims, card_of

MOST = 500  # prompts
BADGES = {
    HOLDS: ":green-badge[:material/check: {}]",
    FAILS: ":red-badge[:material/close: {}]",
    UNDECIDED: ":orange-badge[:material/question_mark: {}]",
    DOES_NOT_APPLY: ":gray-badge[{}]",
}


def page() -> None:
    link.own(PARAMETERS)
    link.say_troubles()
    model = picker.required()
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-claims")
    name = prompt_set.set_or_lines(row, "claims", model)
    also = ALSO.draw(row.text_input, words=True, help=ABOUT_ALSO, placeholder="none", width=260)
    prompts = tuple(prompt_set.lines(MOST)) if name is None else ()
    link.write()
    if name or prompts:
        others = tuple(dict.fromkeys(part.strip() for part in also.split(",") if part.strip()))
        wanted = Claims(model, name or "", prompts, others)
        live.fragment(lambda: body(wanted), runs.pause(wanted.out))()
    probe_page.texts(TEXTS)


def body(wanted: Claims) -> None:
    """Run, how far it is, the claims with what became of them, and one of them in detail; drawn again every second
    while it runs."""
    found, chosen = wanted.found(), find(CLAIM.value)
    begin = {
        "claims": ("Run all", wanted.begin),
        "claim": ("Run this claim alone", lambda: wanted.begin((chosen.id,))),
    }
    runs.panel(wanted.out, "claims", begin, unfinished=wanted.unfinished)
    by_id = {one.id: one for one in found.findings} if found else {}
    of = f"{wanted.model.name} on {wanted.what}"
    if found:
        of = f"{found.model} on {found.set}"
        st.markdown(f"**{show.plain(of)}** · {words.counted(found.findings)}")
    elif (card := card_of(wanted.model)) is not None and card.claims:
        by_id, of = {one.id: one for one in card.claims}, f"{card.model.name} on {card.set.name}"
        st.markdown(f"**{show.plain(of)}**, from its depth card · {card_page.counted(card)} {OF_CARD}")
    listed(by_id)
    detail(wanted, by_id, of)


def listed(found: Mapping[str, Found]) -> None:
    """All claims, with verdict, value, the paper's figure and the untrained copy's value."""
    lines = []
    for claim in CLAIMS:
        title = f"**{show.plain(claim.title)}** {show.plain(claim.source)}"
        if (one := found.get(claim.id)) is None:
            lines.append([title, "not run", "–", show.plain(claim.judging[0].paper), "–"])
            continue
        for name, _, *cells in words.rows([one]):
            first = [title, badge(one)] if name else ["", ""]
            lines.append([*first, *(show.plain(on_page(cell)) for cell in cells)])
    show.markdown_table("claims-table", list(words.HEAD), lines)


def on_page(said: str) -> str:
    """What a claim says, with the page's box in place of the command line's option."""
    return said.replace("with --also", f"under “{BOX}”").replace("--also", f"“{BOX}”")


def badge(found: Found) -> str:
    return BADGES[found.verdict].format(found.verdict) + words.short(found).removeprefix(found.verdict)


def detail(wanted: Claims, found: Mapping[str, Found], of: str) -> None:
    """One claim: the sentence; why, and how it is measured, behind a click."""
    name = CLAIM.draw(st.selectbox)
    claim, one = find(name), found.get(name)
    if one is None:
        show.empty(claim.title, TEACH, None, first=True)
    else:
        st.markdown(badge(one))
        st.code(on_page(words.sentence(one, *of.split(" on ", 1))), language=None, wrap_lines=True)
        with st.expander("Why"):
            st.markdown("\n".join(f"- {show.plain(on_page(reason))}" for reason in words.reasons(one)))
    told = {
        "It says": f"{claim.title} ({claim.source}).",
        "Formula": claim.formula,
        "Protocol": claim.protocol,
        "It holds where": "; ".join(
            f"{q.name} is {words.limits(q)}{' (chosen here)' if q.chosen else ''}" for q in claim.judging
        ),
    }
    with st.expander("How it is measured", expanded=one is None):
        st.markdown("\n".join(f"- **{head}:** {show.plain(on_page(text))}" for head, text in told.items()))
    with st.expander("The same from the command line"):
        st.code(wanted.asked((name,)).command, language="bash")


TITLES = {claim.id: claim.title for claim in CLAIMS}
BOX = "Also of its family"
ALSO = text("also", "claims.also", label=BOX)
CLAIM = choice("claim", "claims.claim", CLAIMS[0].id, TITLES.keys(), "Details", TITLES)
PARAMETERS = (*prompt_set.of_set("claims"), ALSO, CLAIM)
ABOUT_ALSO = "Further models of this one's family, with commas between: what is said of size needs three models."
OF_CARD = "**Run** checks them on the prompts above."
TEACH = (
    "Not checked yet on this model and these prompts. **Run** measures what the claim needs, on the model and, where "
    "it has one, on untrained copies; all claims share what is measured."
)
TEXTS = {
    "Why ask": "What papers say of depth was found on some models and prompts. Each statement here is a number, an "
    "interval over prompts, and values that would contradict it.",
    "Look for": "Verdicts that the untrained copy does not share; one copy is one draw.",
    "Beware": "A verdict is of this model and these prompts. Where a paper says “small” or “weak” the limit is chosen "
    "here, and *Why* says whether a limit 20 % narrower or wider gives another verdict.",
}

page()
