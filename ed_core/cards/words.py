"""A card in words: the cells and sentences that page and Markdown share, and the Markdown with its YAML, as a hub's
model card takes it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..claims import CLAIMS
from ..claims.claim import ALONE, DOES_NOT, HOLDS, NOT_APPLICABLE
from ..claims.finding import as_exact, between, counted, here, judgement, number, of_twin, standing
from ..claims.record import Found
from ..depth.lenses import called
from ..depth.rules import OF_LENS, RULES  # for the templates too
from ..depth.surgery import worse_than_uniform
from ..depth.wording import count, mean_depth, printed, which_clear
from ..depth.wording import percent as share
from ..depth.writing import AFTER, AT_0, FROM_0, LIMIT, usable
from ..statistics import FEWEST, FEWEST_FORMS
from ..studies import report
from .card import Card, Cut, Depth, Mean, Moved, MovedMean, Value, depth_of, mean_depth_of

NEVER = "The papers' three rules read different things and are never averaged."
MEAN = "mean over all thresholds of the depth from which the lens stays within the threshold of the output"
SHARES = "Share: mean depth / layers, of a rule (layer + 1) / layers."
NEEDED = f"A verdict needs a one-sided p of at most {ALONE:g}, tighter than the 5–95 % shown."
CHOSEN = "The cuts are chosen and judged on the same prompts; nothing is trained afterwards."
OVER_ALL = {one.id for one in CLAIMS if {"one", "stretch", "replacement"} & {*one.parts}}  # on loss or best guesses
LITTLE = "Claims on loss or best guesses over all tokens say little here: that loss is above a uniform guess's."


def headline(told: Card) -> str:
    """The answer: the logit lens's mean depth; where it has none, what the papers' rules give."""
    model, layers = told.model.name, told.model.layers
    means = [(rule.label, row) for of, rule in OF_LENS.items() if (row := mean_depth_of(told, of)) and row.depth]
    if not means:
        return f"{model}, {layers} layers. {rules(told)}"
    each = " and ".join(f"{mean(row)} by {by}" for by, row in means)
    return f"Mean depth of {model} over thresholds, of {layers} layers: {each}, from the mean curves."


def rules(told: Card) -> str:
    """What the papers' rules give, and which of them are clear."""
    rows = {rule: row for rule in RULES if (row := depth_of(told, rule)) is not None}
    each = [
        f"{'no layer' if row.depth is None else f'layer {report.number(row.depth)}'} "
        f"({', '.join([RULES[rule].label, *_ends(row)])})"
        for rule, row in rows.items()
    ]
    clear = [RULES[rule].label for rule, row in rows.items() if row.clear]
    so_far = [RULES[rule].label for rule, row in rows.items() if row.so_far]
    defined = [RULES[rule].label for rule, row in rows.items() if row.depth is not None]
    return f"Papers' rules: {', '.join(each)}; {which_clear(clear, so_far, defined)}."


def ranges(told: Card) -> str:
    """What the ranges are over."""
    rows = told.mean_depths
    over = next((row.over for row in rows), "the prompts")
    if rows and all(row.low is None for row in rows):
        return f"No ranges: they need {FEWEST} prompts, or prompts of {FEWEST_FORMS} forms."
    cuts = sorted({one.prompts for one in told.cuts} - {row.prompts for row in rows})
    fewer = f", those of cuts over {' or '.join(map(str, cuts))} of these prompts" if cuts else ""
    return (
        f"Ranges of depths are 5 to 95 % over {over}{fewer}; those of a claim are over the prompts that it took. In "
        "the table of depths, variants apart, a layer without a range is the same in at least 90 % of the resamples "
        "that give one."
    )


def mean(row: Mean | None) -> str:
    """A mean depth with its range: "18.3 (18.0 to 18.6)"; "–" where there is none."""
    return "–" if row is None else mean_depth(row.depth, row.low, row.high)


def turn(told: Card) -> str:
    """Whether the cosine turns; "" where there was nothing to fit."""
    found = told.turn
    return found.sentence if found else ""


def facts(told: Card) -> str:
    """What the model is, in a line."""
    m = told.model
    pairs = f", {m.key_value_heads} key-value head{'s' * (m.key_value_heads != 1)}"
    heads = f"{m.heads} query heads{pairs}" if m.key_value_heads != m.heads else f"{m.heads} heads"
    tied = "tied" if m.tied else "untied"
    looped = f" ({m.layers // m.passes} in {m.passes} passes)" if m.passes > 1 else ""
    return (
        f"{m.family}, {m.layers} layers{looped} of width {m.width:,}, {heads}, "
        f"vocabulary {m.vocabulary:,} ({tied} head), {parameters(m.parameters)} parameters, computed in "
        f"{m.precision}"
    )


def parameters(n: int) -> str:
    """ "135 M", "7.6 B"."""
    value, unit = (n / 1e9, "B") if n >= 999.5e6 else (n / 1e6, "M")
    return f"{value:.3g} {unit}"


def on(told: Card) -> str:
    """On which prompts, in a line."""
    s = told.set
    levels = f" of {count(len(s.levels), 'level')}" if s.levels else ""
    return f"{s.n} prompts{levels} of the set {s.name}"


def identities(told: Card) -> str:
    """Whether the sums of this model hold, with the figures."""
    found = told.identities
    if found.failures:
        return f"The checks fail ({found.failures[0]})."
    worst = [printed(value, ".1g") for value in (found.miss, found.closure, found.replay, found.miss_limit)]
    slopes = "" if found.slope_error is None else f"; slopes {printed(found.slope_error, '.1g')} from 1"
    return (
        f"The checks pass on {found.tokens} tokens in {found.dtype}. Largest errors, adding in the model's own order: "
        f"sums of the layers' parts {worst[0]}, logits from the last residual {worst[1]}, logits layer by layer "
        f"{worst[2]} (limit {worst[3]}){slopes}."
    )


def _ends(row: Depth) -> list[str]:
    """The range of a rule's layer, where it has a width."""
    low, high = report.number(row.low), report.number(row.high)
    there = row.depth is not None and row.low is not None
    return [f"{low}–{high}"] if there and not low == high == report.number(row.depth) else []


def depth(row: Depth | None) -> str:
    """A depth with its range, "20 (19–21)", or without where that has no width; "–" where there is none."""
    if row is None or (row.depth is None and row.low is None):
        return "–"
    low, high = report.number(row.low), report.number(row.high)
    same = low == high == report.number(row.depth)
    return report.number(row.depth) + (f" ({low}–{high})" if row.low is not None and not same else "")


def ratio(row: Depth | Mean) -> str:
    return "–" if row.ratio is None else f"{row.ratio:.2f}"


def rule(row: Depth) -> str:
    """Which rule, under which lens."""
    return f"{RULES[row.rule].heading}, {called(row.lens)}" if row.lens else RULES[row.rule].heading


def mean_row(row: Mean) -> str:
    """Which mean depth, under which lens."""
    return f"Mean depth, {RULES[row.of].label}, {called(row.lens)}"


def variants(row: Depth) -> str:
    """The variants of a rule, in a cell."""
    shown = report.SHOWN
    return "; ".join(f"{shown[name]}: {report.number(value)}" for name, value in row.variants.items())


def value(found: Value | None, digits: int = 2, percent: bool = False, sign: str = "") -> str:
    """A value with its range, as percentages or plain; `sign`: "+" of a change."""
    if found is None or found.value is None:
        return "–"
    scale, digits, unit = (100, 0, " %") if percent else (1, digits, "")
    within = None if found.low is None or found.high is None else (scale * found.low, scale * found.high)
    at = scale * found.value
    told = as_exact(at, *within, digits, sign) if within else number(at, digits, sign)
    told = share(found.value) if percent and re.fullmatch(r"(0|100)(\.0+)?", told) else f"{told}{unit}"
    return f"{told} ({between(*within, digits, sign)})" if within else told


def cut(one: Cut) -> str:
    """What leaving out the cheapest stretch costs, as a sentence."""
    n, start = one.layers, one.start
    what = f"layer {start}" if n == 1 else f"layers {start}–{start + n - 1}"
    among = "single layers" if n == 1 else f"stretches of {n} layers"
    said = (
        f"Among {among}, leaving out {what} changes the predictions least (KL): the loss changes by "
        f"{value(one.loss, sign='+')} nats per token, and {value(one.kept, percent=True)} of the best guesses stay."
    )
    angle, which = one.by_angle, "The angle over all tokens, sinks included,"
    if angle.start == start:
        return f"{said} {which} chooses the same."
    there = f"layer {angle.start}" if n == 1 else f"layers {angle.start}–{angle.start + n - 1}"
    return f"{said} {which} chooses {there}: there the loss changes by {value(angle.loss, sign='+')} nats per token."


def cuts(told: Card) -> list[str]:
    """What leaving out layers costs, by length, with what is to be known of that loss; and what leaving early does."""
    whole = max((one.whole for one in told.cuts if one.whole is not None), default=math.nan)
    more = worse_than_uniform(whole, told.model.vocabulary), CHOSEN, leaving(told)
    return [*map(cut, told.cuts), *filter(None, more)]


def leaving(told: Card) -> str:
    """Where the tokens settle that the model writes, and how many of them leaving early would change."""
    found = told.exit
    if not found or found.mean_depth is None or found.mean_agreement is None:
        return ""
    same = found.mean_agreement
    if same.value is None:
        return ""
    lost, low, high = (None if end is None else 1 - end for end in (same.value, same.high, same.low))
    few, _, around = value(Value(value=lost, low=low, high=high), percent=True).partition(" (")
    around = f" ({around}" if around else ""
    by_0 = _by_0(found.mean_lost_at_0, lost)
    leaving, after = f"Leaving at {found.threshold:g} confidence, {FROM_0},", f", {AFTER}"
    if lost == 0 and not high:
        early, after = (
            f"{leaving} would change no token, {AFTER}; tokens that are never so sure leave at the output",
            "",
        )
    elif lost is not None and usable(1, lost):
        early = f"{leaving} would change {few} of a prompt's tokens{around}{by_0}"
    else:
        early = f"{leaving} is not usable here ({LIMIT}): {few} of a prompt's tokens would change{around}{by_0}"
    return (
        f"The tokens that the model writes, up to {found.tokens} a prompt, are the lens's best guess for good from "
        f"depth {value(found.mean_depth, 1)} of {told.model.layers} on average. {early}{after}. Depth and "
        f"share{'s' * ('%' in by_0)} are means over prompts."
    )


def _by_0(found: Value | None, lost: float | None) -> str:
    """How much of what leaving early would change it changes at depth 0; "" where it is not known."""
    if found is None or found.value is None or lost is None:
        return ""
    alike = math.isclose(found.value, lost, abs_tol=1e-5)  # a card has six digits
    some = "" if alike else f"{value(found, percent=True)} of its tokens {AT_0}, the rest above"
    return f"; {some or f'all of these {AT_0}' if found.value else f'none of these {AT_0}'}"


def sinks(told: Card) -> str:
    """How many tokens are sinks, and which."""
    found = told.sinks
    if found.tokens is None or found.first is None:
        return "Sinks: unknown."
    named = f"In the first {found.named_of} prompts: {found.named}."
    if not found.tokens:
        return "No sinks."
    of = f"the first token is a sink in {share(found.first)} of the prompts."
    most = f"{100 * found.tokens:.3g} % of the tokens are sinks; {of}"
    return f"{most} {named}"


def precision(told: Card) -> Iterator[str]:
    """What another precision changes, a sentence each."""
    own, rows = told.precision.own, told.precision.rows
    for name in dict.fromkeys(row.precision for row in rows):
        of = [row for row in rows if row.precision == name]
        moved = [row for row in of if not row.same]
        orders = [row.order for row in of if row.order is not None]
        curves = "the rules' curves" if moved else "their curves"
        least = f"; the rank correlation of {curves} with {own}'s is at least {_down(min(orders))}" if orders else ""
        if orders and min(orders) == 1:
            least = f"; {curves} keep their order"
        means = [row for row in told.precision.means if row.precision == name]
        yield from ([f"Mean depth in {name}: {'; '.join(_mean_moved(row, own) for row in means)}."] if means else [])
        if not moved:
            yield f"In {name} the papers' rules move by at most one layer from {own}'s{least}."
            continue
        each = "; ".join(_moved(row, told) for row in moved)
        yield f"In {name} the papers' {each}{least}."


def _mean_moved(row: MovedMean, own: str) -> str:
    """A mean depth in another precision, and that in the card's own with its range."""
    return f"{mean_depth(row.depth)} by {RULES[row.of].label}, in {own} {mean(row.own)}"


def _moved(row: Moved, told: Card) -> str:
    """A rule's layer in another precision, and in the card's own with its range."""
    was, now = depth(depth_of(told, row.rule)), report.number(row.depth)
    now, was = (one if one != "–" else "none" for one in (now, was))
    return f"{RULES[row.rule].label} rule gives {now}, in {told.precision.own} {was}"


def _down(value: float) -> str:
    return printed(math.floor(value * 1000) / 1000, ".3f")


def claim(one: Found) -> tuple[str, str]:
    """A claim's values here, and the twin's."""
    if one.verdict == NOT_APPLICABLE:
        return one.reason, "–"
    own = [f"{q.name}: {here(one, q)}" for q in one.judging]
    twin = [q.control.short if q.control else "–" for q in one.judging]
    over = f"; over {one.over}" if one.over and any(q.value for q in one.judging) else ""
    return f"{'; '.join(own)}{over}", "; ".join(filter(None, [*twin, of_twin(one)]))


def claims(told: Card) -> str:
    """How the claims came out, and how many of the verdicts say little (`LITTLE`)."""
    verdicts = [one.id for one in told.claims if one.verdict in (HOLDS, DOES_NOT)]
    n = len(OVER_ALL.intersection(verdicts)) if says_little(told) else 0
    little = f"; of the {len(verdicts)} that hold or do not, {n} {'says' if n == 1 else 'say'} little" if n else ""
    return f"{counted(told.claims)}{little}"


def says_little(told: Card) -> bool:
    """Whether the whole model's loss over all tokens is above a uniform guess's."""
    return any(worse_than_uniform(one.whole or 0.0, told.model.vocabulary) for one in told.cuts)


def judging(told: Card) -> list[str]:
    """What to know of the table of claims."""
    return [NEEDED, *[LITTLE] * says_little(told)]


def stand(told: Card) -> str:
    """How many of the claims' verdicts stand when all are judged together."""
    return standing(told.claims)


def markdown(told: Card) -> str:
    """A section for a model card, with its YAML in front."""
    lines = ["---", *metadata(told).splitlines(), "---", "", "## Effective depth", "", headline(told), ""]
    lines += [f"{facts(told)}. Measured on {on(told)}, {told.made}. {ranges(told)} {NEVER}", ""]
    lines += ["| | depth | share | variants | one untrained twin |", "|---|---|---|---|---|"]
    for at in told.mean_depths:
        twin = mean(at.twin) if at.twin else "not measured"
        lines.append(f"| {mean_row(at)} | {mean(at)} | {ratio(at)} | | {twin} |")
    for row in told.depths:
        twin = depth(row.twin) if row.twin else "not measured"
        lines.append(f"| {rule(row)} | {depth(row)} | {ratio(row)} | {variants(row)} | {twin} |")
    lines += ["", SHARES, "", *(f"- {said}" for said in (turn(told), rules(told)) if said)]
    lines += [f"  - {row.sentence}" for row in told.depths if row.sentence]
    lines += [f"- {told.lenses.sentence}"] if told.lenses.sentence else []
    lines += ["", "### Cuts that change the predictions least", "", *(f"- {said}" for said in cuts(told))]
    lines += ["", "### Published claims", "", f"{claims(told)}.", ""]
    lines += [f"{stand(told)}.", ""] if stand(told) else []
    lines += [" ".join(judging(told)), ""]
    lines += ["| claim | source | verdict | here | one untrained twin |", "|---|---|---|---|---|"]
    for one in told.claims:
        lines.append(report.table_row(one.title, one.source, f"**{judgement(one)}**", *claim(one)))
    lines += ["", "### What to know of the numbers", "", f"- {identities(told)}", f"- {sinks(told)}"]
    lines += [f"- {said}" for said in (*precision(told), *told.lenses.certificates.values(), *told.missing)]
    lines += ["", "Made by:", "", *(f"    {command}" for command in told.commands), ""]
    return "\n".join(lines)


def metadata(told: Card) -> str:
    """The YAML of a model card: the ratios as evaluation results."""
    from huggingface_hub import EvalResult, ModelCardData

    found: list[tuple[str, str, Mean | Depth | None]] = [
        (f"mean_depth_ratio_{of}", f"Mean depth / layers, {rule.label}", mean_depth_of(told, of))
        for of, rule in OF_LENS.items()
    ]
    found += [
        (
            f"effective_depth_ratio_{name}",
            f"(layer + 1) / layers, {rule.heading} rule",
            depth_of(told, name),
        )
        for name, rule in RULES.items()
    ]
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=told.set.name,
            dataset_name=f"{told.set.name} ({told.set.n} prompts)",
            metric_type=metric,
            metric_name=named,
            metric_value=row.ratio,
        )
        for metric, named, row in found
        if row and row.ratio is not None
    ]
    tags = ["effective-depth"]
    return ModelCardData(model_name=told.model.name, eval_results=results or None, tags=tags).to_yaml()
