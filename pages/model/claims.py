"""Which published statements about depth hold for this model, on these prompts?"""

from collections.abc import Mapping

import streamlit as st

from ed_core import figures
from ed_core.cards import words
from ed_core.claims import CLAIMS, Claim, find, finding
from ed_core.claims.claim import CANNOT_BE_TOLD, DOES_NOT, HOLDS, NOT_APPLICABLE
from ed_core.claims.finding import counted, standing
from ed_core.claims.record import Found
from ed_ui import link, live, picker, probe_page, prompt_set, runs, show
from ed_ui.inputs import choice, text
from ed_ui.runs import Claims, card_of

MOST = 500  # prompts
BADGES = {
    HOLDS: ":green-badge[:material/check: {}]",
    DOES_NOT: ":red-badge[:material/close: {}]",
    CANNOT_BE_TOLD: ":orange-badge[:material/question_mark: {}]",
    NOT_APPLICABLE: ":gray-badge[{}]",
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
    if found is None and (told := card_of(wanted.model)) is not None and told.claims:
        by_id = {one.id: one for one in told.claims}
        stand = standing(told.claims)
        name = show.plain(f"{told.set.name} ({told.set.n} prompts)")
        st.markdown(
            f"**{words.claims(told)}{f' · {stand}' if stand else ''}** on {name}, from its depth card. {OF_CARD}"
            f"{f' {words.LITTLE}' if words.says_little(told) else ''}"
        )
    if found:
        of = show.plain(f"{found.model} on {found.set}")
        stand = standing(found.findings)
        st.markdown(f"**{of}** · {counted(found.findings)}{f' · {stand}' if stand else ''}")
    listed(by_id)
    detail(wanted, by_id)


def listed(found: Mapping[str, Found]) -> None:
    """All claims, with verdict, value, the paper's figure and the control's value; of quantities that judge nothing
    the details tell."""
    head = ["claim", "verdict", "here (5–95 % over prompts or their forms)", "the paper found", "untrained twin"]
    lines = []
    for claim in CLAIMS:
        one = found.get(claim.id)
        silent = one is not None and one.verdict == NOT_APPLICABLE
        stored = {q.name: q for q in one.quantities} if one else {}
        rows = claim.judging[:1] if silent else claim.judging
        for i, quantity in enumerate(rows):
            measured = stored.get(quantity.name)
            twin = measured.control.short if measured and measured.control else "–"
            title = f"**{show.plain(claim.title)}** {show.plain(claim.source)}"
            first = [title, badge(one) if one else "not run"] if not i else ["", ""]
            here = "–"
            if one and measured and measured.value:
                here = f"{show.plain(quantity.name)}: **{show.plain(finding.here(one, measured))}**"
            if not i and one and one.reason:
                here = show.plain(on_page(one.reason))
            if one and i == len(rows) - 1:
                here += f", over {show.plain(one.over)}" if one.over and measured and measured.value else ""
                twin = "; ".join(filter(None, [twin, finding.of_twin(one)]))
            lines.append([*first, here, show.plain(quantity.found), show.plain(twin)])
    show.markdown_table("claims-table", head, lines)


def on_page(said: str) -> str:
    """What a claim says, with the page's box in place of the command line's option."""
    return said.replace("with --also", f"under “{BOX}”").replace("--also", f"“{BOX}”")


def badge(found: Found) -> str:
    return BADGES[found.verdict].format(found.verdict) + finding.judgement(found).removeprefix(found.verdict)


def detail(wanted: Claims, found: Mapping[str, Found]) -> None:
    """One claim: the sentence and its figure; why, and how it is measured, behind a click."""
    name = CLAIM.draw(st.selectbox)
    claim, one = find(name), found.get(name)
    if one is None:
        show.empty(claim.title, TEACH, None, first=True)
    else:
        st.markdown(badge(one))
        st.code(on_page(one.sentence), language=None, wrap_lines=True)
        with st.expander("Why"):
            st.markdown("\n".join(f"- {show.plain(on_page(reason))}" for reason in one.reasons))
        if one.curves:
            fig = figures.claim_curves(one.curves)
            show.figure(f"claim-{name}", fig, CAPTION.format(show.plain(claim.title)), about=lambda: about(claim, one))
    told = {
        "It says": f"{claim.statement[0].upper()}{claim.statement[1:]} ({claim.source}).",
        "Formula": claim.formula,
        "Protocol": claim.protocol,
        "It holds where": "; ".join(
            f"{q.name} is {q.limit}{' (chosen here)' if q.chosen else ''}" for q in claim.judging
        ),
        "It would be contradicted by": claim.contradicted,
    }
    with st.expander("How it is measured", expanded=one is None):
        st.markdown("\n".join(f"- **{head}:** {show.plain(on_page(words))}" for head, words in told.items()))
    with st.expander("The same from the command line"):
        st.code(wanted.asked((name,)).command, language="bash")


def about(claim: Claim, one: Found) -> None:
    """What the figure's numbers are, and the numbers."""
    st.markdown(show.plain(claim.formula))
    st.json({name: curve.fields() for name, curve in one.curves.items()}, expanded=False)


TITLES = {claim.id: claim.title for claim in CLAIMS}
BOX = "Also of its family"
ALSO = text("also", "claims.also", label=BOX)
CLAIM = choice("claim", "claims.claim", CLAIMS[0].id, TITLES.keys(), "Details", TITLES)
PARAMETERS = (*prompt_set.of_set("claims"), ALSO, CLAIM)
ABOUT_ALSO = "Further models of this one's family, with commas between: what is said of size needs three models."
OF_CARD = "**Run** checks them on the prompts above."
CAPTION = "**{}** · whiskers: 5 to 95 % over prompts or their forms"
TEACH = (
    "Not checked yet on this model and these prompts. **Run** measures what the claim needs, on the model and, where "
    "the claim has a control, on untrained twins; what is measured once serves all claims."
)
TEXTS = {
    "Why ask": "What papers say of depth was found on some models and prompts. Each statement here is a number, an "
    "interval over prompts, and values that would contradict it.",
    "Look for": "Verdicts that the untrained twin does not share; one twin is one draw.",
    "Beware": "A verdict is of this model and these prompts. Where a paper says “small” or “weak” the limit is chosen "
    "here, and *Why* says whether a limit moved by a fifth, or a range a fifth narrower or wider, would turn the "
    "verdict.",
}

page()
