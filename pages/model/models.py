"""All models with a depth card, in one table."""

import math

import streamlit as st

from ed_core import figures
from ed_core.cards import card
from ed_core.claims import running
from ed_core.claims.judging import VERDICTS
from ed_core.depth import say
from ed_core.depth.mean_depth import of_curve
from ed_ui import link, runs, show

WORDS = show.words(__file__)


def main() -> None:
    """Draw the page: a table and a forest plot of all models with a card."""
    link.own(())
    known, damaged = runs.cards()
    alike: dict[tuple[str, ...], card.Card] = {}
    for _, one in known.values():  # of two alike the one made here comes first
        model = one.model
        alike.setdefault((model.name, model.adapter, model.content, model.precision, one.set.digest), one)
    every = list(alike.values())
    rows = [forest_row(one) for one in every]
    if shares := [100 * one.share for one in rows if math.isfinite(one.share)]:
        within = say.interval(min(shares), max(shares), 0)
        show.finding(f"{say.count(len(every), 'model')} settle their words at {within} % of their depth.", WORDS[""])
    for trouble in damaged:
        show.error(trouble)
    show.table("models", [row(one) for one in every], 36 * 20, FORMATS)
    show.figure("models-forest", show.once(figures.forest, rows), "", reading=WORDS["Beware"])
    st.caption(WORDS["Beware"])
    link.write()


def row(one: card.Card) -> dict[str, str | int | float | None]:
    """Return a card as a row of the table, by column."""
    n, cut = one.model.layers, next(iter(one.cuts), None)
    depths = (one.depth("kl", True), one.depth("overlap", True))
    ratios = (*(depth.ratio if depth else None for depth in depths), of_copy(one))
    counts = {verdict: sum(claim.verdict == verdict for claim in one.claims) for verdict in VERDICTS[:3]}
    return {
        "model": f"{one.model.name}{f' with {one.model.adapter}' if one.model.adapter else ''}",
        "precision": one.model.precision,
        "parameters, M": one.model.parameters / 1e6,
        "layers": n,
        "prompts": f"{len(one.set.prompts)} of {one.set.name}",
        **{name: None if ratio is None else 100 * ratio for name, ratio in zip(SHARES, ratios, strict=True)},
        **counts,
        "cheapest layer": cut.start + 1 if cut else None,
        "kept, %": 100 * cut.kept.value if cut and cut.kept.value is not None else None,
    }


def forest_row(one: card.Card) -> figures.Row:
    """Return a card as a row of the forest plot."""
    mean, copy, n = one.depth("kl", True), of_copy(one), one.model.layers
    ratio, low, high = (mean.ratio, mean.low, mean.high) if mean else (None, None, None)
    ends = (math.nan, math.nan) if low is None or high is None else (low / n, high / n)
    return figures.Row(one.model.name, n, math.nan if ratio is None else ratio, *ends, (copy,) if copy else ())


def of_copy(one: card.Card) -> float | None:
    """Return the average depth of the untrained copy on a card, as a share of its layers; None without one."""
    twin = one.curves["kl"].get(running.TWIN)
    return None if twin is None else of_curve("kl", [math.nan if v is None else v for v in twin.values]).ratio


SHARES = ("average depth, %", "by overlap, %", "untrained copy, %")
FORMATS = dict.fromkeys((*SHARES, "parameters, M"), ".1f") | {"kept, %": ".0f"}
main()
