"""Is a number an artefact of the precision it was measured in? The same prompts through several precisions."""

import streamlit as st

from ed_core import figures
from ed_core.depth import audit
from ed_core.depth.wording import count
from ed_core.errors import EffectiveDepthError
from ed_core.sources import sizes, specs
from ed_core.sources.sizes import WIDEST_FIRST
from ed_core.types import command_line
from ed_core.work import estimate
from ed_core.work.resolve import in_precisions
from ed_ui import link, live, picker, probe_page, prompt_set, running, session, show
from ed_ui.inputs import several


def page() -> None:
    link.own([*prompt_set.parameters(), PRECISIONS])
    link.say_troubles()
    if not (prompts := prompt_set.choose()):
        return
    place = running.row_begins()
    spec = picker.required()
    plan = audit.plan(in_precisions(spec, precisions(spec, place.row)), prompts)
    known = prompt_set.run_when(spec, prompts)
    requests = {
        f"{name}.{request.probe}.{i % len(prompts)}": request
        for name, of_one in plan.items()
        for i, request in enumerate(of_one)
    }
    batch = running.batch("audit", requests)
    probe_page.top_row("audit", batch, place=place, **known)
    link.write()
    live.follow(batch, panels, list(plan), len(prompts))
    with st.expander("The same from the command line"):
        command(spec, list(plan), prompts)


def precisions(spec, row) -> list[str]:
    """Which ones are held against each other, chosen behind a click in the `row`; at first those that fit."""
    try:
        default = estimate.fitting(sizes.read(specs.config_of(spec)), running.free(spec.device), device=spec.device)
    except EffectiveDepthError:
        default = []
    first = default if len(default) > 1 else list(WIDEST_FIRST[-2:])
    held = PRECISIONS.value or first
    box = row.popover(", ".join(name for name in CHOICES if name in held) or "Precisions", key="box-audit-precisions")
    chosen = PRECISIONS.draw(box.pills, default=first, selection_mode="multi", help=CHOOSE)
    return [name for name in CHOICES if name in chosen]


def panels(batch: running.Batch, asked: list[str], n_prompts: int) -> None:
    """Everything that fills while jobs run: a precision as soon as all prompts have been through it."""
    results = {
        name: [r for key, r in batch.results.items() if key.startswith(f"{name}.") and r.complete] for name in asked
    }
    done = {name: of_one for name, of_one in results.items() if len(of_one) == len(audit.PROBES) * n_prompts}
    reference = audit.reference_of(asked)
    outcome = compare(done, reference) if reference in done and len(done) > 1 else None
    status(batch, list(done), outcome, n_prompts)
    if outcome is None and not batch.running:
        show.empty(TABLE.format(reference), TEACH, None, first=True)
        return probe_page.texts(TEXTS)
    if outcome is None:
        show.empty(TABLE.format(reference), SOON, TABLE_HEIGHT)
    else:
        table(outcome)
    drawn = list(audit.DRAWN)
    for i in range(0, len(drawn), 2):
        for column, name in zip(st.columns(2), drawn[i : i + 2], strict=False):
            with column:
                if outcome is None:
                    show.empty(audit.DRAWN[name].title, SOON, HEIGHT)
                else:
                    curve(outcome, name, done[reference])
    probe_page.texts(TEXTS)


def compare(done: dict, reference: str) -> audit.Audit:
    """The audit of what is there; remembered, because a page that follows jobs asks three times a second."""
    key = [r.request.key for of_one in done.values() for r in of_one]
    found = session.current().audited
    if found is None or found[0] != key:
        found = session.current().audited = (key, audit.compare(done, reference))
    return found[1]


def status(batch: running.Batch, done: list[str], outcome: audit.Audit | None, n_prompts: int) -> None:
    """What is going on, and the answer: always the same height."""
    over = count(n_prompts, "prompt")
    with st.container(key="headline"):
        if batch.running:
            live.status(batch, f"**{over} through {', '.join(done) or 'no precision'} so far** · {{}}".format)
        elif outcome is not None:
            st.markdown(f"Over **{over}** through {', '.join(done)}.")
        else:
            st.markdown("Nothing measured yet for these prompts, this model and these precisions.")
        if outcome is not None:
            said = f"Is the number an artefact of its precision? {outcome.sentence()}"
            show.conclusion("audit", said, outcome.findings())
        for message in running.troubles(batch):
            show.error(message)


def curve(outcome: audit.Audit, name: str, results: list) -> None:
    one = audit.DRAWN[name]
    lines = {precision: curves[name] for precision, curves in outcome.curves.items()}
    fig = figures.curves_over_each_other(lines, outcome.reference, one.unit, x=one.x, height=HEIGHT, log=one.log)
    values, meaning = lines[outcome.reference], f"{one.title}, in {outcome.reference}"
    show.figure_of_many(name.replace(".", "-"), fig, one.title, results, name, one.x, values, meaning, READING)


def table(outcome: audit.Audit) -> None:
    """Every figure in every precision: how far it is from the reference, and whether that is more than expected."""
    st.markdown(f"**{TABLE.format(outcome.reference)}**")
    others = [name for name in outcome.curves if name != outcome.reference]
    limits = ", ".join(f"{audit.AT_LEAST.get(p, audit.AT_LEAST_ELSE):g} in {p}" for p in others)
    st.caption(KEY.format(reference=outcome.reference, limits=limits))
    rows = ([named(row, outcome.reference), *(cell(row, p) for p in others)] for row in outcome.rows())
    show.markdown_table("audit-table", ["figure", *others], rows)
    if told := outcome.together():
        head, *said = told
        with st.expander(show.plain(head).removesuffix(":")):
            st.markdown("\n".join(f"- {show.plain(line)}" for line in said))
    st.download_button(
        "audit.npz", outcome.npz, "audit.npz", "application/octet-stream", icon=":material/download:", help=NPZ
    )


def named(row: audit.Row, reference: str) -> str:
    """What a row is about, with the reference's own number where it is one."""
    return f"{row.title} ({reference}: {row.cells[reference]})" if reference in row.cells else row.title


def cell(row: audit.Row, precision: str) -> str:
    text = row.cells.get(precision, "")
    return f":orange[**{text}: beyond**]" if precision in row.beyond else text


def command(spec, asked: list[str], prompts: list) -> None:
    if spec.adapter:
        st.caption("The command line audits a model without an adapter.")
        return
    device = "auto" if spec.device == picker.devices()[0] else spec.device
    options = {"precisions": ",".join(asked), "prompts": "prompts.jsonl"}
    options |= {} if device == "auto" else {"device": device}
    st.code(command_line("audit", prompt_set.source(spec), **options, out="audit.npz"), language="bash")
    show.prompts_file(prompts)


HEIGHT, TABLE_HEIGHT = 260, 820
SOON = "Shown once the prompts have run in the widest precision and one other."
TABLE = "What differs from {}"
KEY = """ρ: rank correlation of a curve with {reference}'s (expected at least {limits}); after it the largest
difference, in % of the curve's range. A mean depth may move within {reference}'s interval, give or take 0.05, a layer
of the papers' rules by one. **beyond**: more than that; a mean depth without an interval is not judged. All tokens
count, sinks too. Behind a depth stand 5–95 % over forms (five or more) or prompts (eight or more); of a rule in
brackets before them by how many layers it moved, and last the share of resamples in which it gives none."""
CHOICES = ("fp32", "bf16", "fp16", "int8", "4bit")
PRECISIONS = several("precisions", "audit.precisions", [], CHOICES, "Precisions")
CHOOSE = "The others are compared with the widest of them. Each is a model of its own, opened when its turn comes."
TEACH = (
    "Not computed yet. **Run** sends the same prompts through each precision and draws their curves over each other; "
    "what is stored is kept."
)
READING = """The reference is broad and grey, the others thin over it: where they part, precision changes the curve."""
NPZ = "All curves, correlations and depths: what the command line writes with --out."
TEXTS = {
    "Why ask": "The published table of effective depths was measured in int8 (Hu et al. 2025). A depth that moves with "
    "the precision is partly rounding.",
    "Look for": "**beyond** in the table: a curve that is ordered differently from the reference's, a mean depth "
    "outside its interval, or a rule's layer that moves by more than one.",
    "Beware": "One prompt is noisy: effects of skipped layers need several for a stable order. Where a curve is "
    "nearly flat its order means little; the figure behind it says how large the difference is.",
}

page()
