"""Numbers in words: the only module that formats the numbers of a verdict and writes sentences about them. Layers
count from 1, so that layer n ends at depth n; a published rule's layer is its block index, in the papers' count."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..lenses.measured import Maps, Replacement
from ..probes.lenses import LENSES
from ..types import ProbeResult
from . import exactness, surgery
from .among_others import QUANTILES, Comparison, Likeness, ends
from .answer import Course, Seen, first_choice
from .exits import Exits, Headroom
from .halves import ATTENTION, EMBEDDING, MLP, branch_at, brought, mean_depth_of
from .kinds import Mix
from .lenses import UNCALIBRATED, below
from .matching import RAISED, match, reading, usefulness
from .mean_depth import MEAN_DEPTH, MeanDepth, middle_half
from .rules import BEST, OF_LENS, PAPER, RULES, STABLE, WITHOUT_SINKS, first_pass
from .sample import ALL, ANSWER, UNTRAINED, Sample, Tokens
from .side_by_side import Pair, relative_depth
from .sinks import FACTOR, Sink, Span
from .turn import Turn
from .verdict import FIVE, RuleVerdict, Verdict
from .verdict import verdict as verdict_of

POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LONGEST = 40  # characters of a token that a sentence repeats
NAMED = 3  # sinks that a sentence names
SAY = {1: "One {}rule says", 2: "Two {}rules say", 3: "Three {}rules say"}
COPIES = {  # of the model: one, several
    "untrained": ("untrained copy", "untrained copies"),
    "shuffled": ("copy with shuffled layers", "copies with shuffled layers"),
}
SHAPES = ("the same shape", "partly the same shape", "another shape")  # of two curves, by `Likeness.shape`
NO_TURN = {  # why there is no clear switch
    "sign": "the cosine is not clearly below 0 in the first layers and above 0 in the last",
    "order": "too many random orders of the layers split as well",
    "twins": "half or more of the untrained copies switch there too",
}
MATCHES = {  # by `matching.reading`
    "unclear": "too few to say where",
    "unordered": "in no clear order of depth",
    "same": "at about the same share of the depth",
    "late": "none of them in its last layers",
    "part": "at about the same share of the depth, but none for the last layers",
    "neither": "in order, but not at the same share of the depth",
}


def number(value: float | np.floating[Any], form: str = ".3g") -> str:
    """Return a number in a format such as `+.2g`; as a power from 10⁹ on and below 10⁻⁴; "–" where not finite."""
    if not np.isfinite(value):
        return "–"
    text = f"{value:{form}}"
    step, _, power = text.partition("e")
    if power and (0 < int(power) < 9 or not float(step)):
        text = f"{float(text):{'+' * form.startswith('+')}.0f}"
    elif power:
        text = re.sub(r"(?<![\d.])1·", "", f"{step}·10{str(int(power)).translate(POWERS)}", count=1)
    return text.replace("-", "" if not power and float(text) == 0 else "−")


def share(value: float) -> str:
    """Return a share as whole per cent; "<1 %" and ">99 %" where rounding would print none or all."""
    text = f"{100 * value:.0f} %"
    return "<1 %" if text == "0 %" and value > 0 else ">99 %" if text == "100 %" and value < 1 else text


def interval(low: float, high: float, digits: int = 1, over: str = "") -> str:
    """Return an interval as text, "20.7 to 22.2 (50 prompts)", with more decimals where the ends would print alike."""
    n = next((n for n in range(digits, digits + 4) if f"{low:.{n}f}" != f"{high:.{n}f}"), digits)
    both = dict.fromkeys(number(end, f".{n}f") for end in (low, high))
    return " to ".join(both) + (f" ({over})" if over else "")


def count(n: int, noun: str) -> str:
    """Return a number with its noun, "1 study", "2 studies"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{n} {noun if n == 1 else plural}"


def layers(layer: float, total: int) -> str:
    """Return "layer 21 of 30"; a fraction is rounded."""
    return f"layer {layer:.0f} of {total}"


def listed(words: Iterable[str], last: str = "and") -> str:
    """Return words as a list in a sentence, "a, b and c"; empty words are left out."""
    given = [word for word in words if word]
    return f" {last} ".join(filter(None, [", ".join(given[:-1]), *given[-1:]]))


def quoted(token: str) -> str:
    """Return a token in quotation marks, cut, characters that would move or hide other words spelled out."""
    return f"“{''.join(c if c.isprintable() else repr(c)[1:-1] for c in token[:LONGEST])}”"


def _lower(title: str) -> str:
    """Return a title for the middle of a sentence."""
    return title if title[1:2].isupper() else f"{title[0].lower()}{title[1:]}"


def verdict(found: Verdict) -> str:
    """Return the verdict on depth in one text."""
    return " ".join(lines(found))


def lines(found: Verdict) -> list[str]:
    """Return the verdict on depth, a sentence a line."""
    return list(filter(None, [lead(found), average(found), turn(found.turn), rules(found)]))


def lead(found: Verdict) -> str:
    """Return the sentence on where the answer or the next token is the first choice; "" where no lens was read."""
    looks = [look for look in found.sample.answers if look]
    if len(looks) == found.sample.n_prompts == 1:
        return _answer(looks[0])
    out = []
    for given, what in ((True, "the answer"), (False, "the model's next token")):
        group = [look for look in looks if look[0].given == given]
        depths = [depth for look in group if (depth := first_choice(look)) is not None]
        if depths:
            spread = f" (median; {interval(min(depths), max(depths), 0)})" if len(depths) > 1 else ""
            where = f"from {layers(np.median(depths), found.n_layers)} on{spread}"
            out.append(f"In {len(depths)} of {count(len(group), 'prompt')} {what} is the first choice, {where}.")
        elif group:
            out.append(f"In none of {count(len(group), 'prompt')} {what} is the first choice.")
    return " ".join(out)


def headline(model: str, found: Course, right: bool | None, said: str, answer: str = "") -> str:
    """Return the sentence on what the model says (its text begins with `said`), and after which layer it is decided."""
    word, n = found.word.strip() or found.word.replace("\n", "⏎"), len(found.ranks) - 1
    spoken = answer.strip() if right else said or word
    part = "it" if word == spoken else f"on its first part, {quoted(word)},"
    when = f"by {layers(found.first, n)}" if found.first else "before any layer"
    when = f"only after the last of its {n} layers" if found.first == n else when
    verdict = {True: ", correctly,", False: f", not {quoted(answer.strip())},", None: ""}[right]
    return f"{model} says {quoted(spoken)}{verdict} and decides {part} {when}."


def how_sure(found: Verdict, course: Course, kl: Sequence[float] = ()) -> str:
    """Return a line on how far one prompt's answer can be trusted. `kl`: its mean divergence at every depth."""
    parts = [f"in the top {course.listed} from layer {course.among}"] if 0 < course.among < course.first else []
    parts.append("one prompt")
    if mean := _average(found):
        ends = middle_half(kl) if len(kl) else None
        other = f" ({interval(*ends, 0)} at other thresholds)" if ends else ""
        words = _subject(found, "the prompt's words")
        parts.append(f"{words} settle by layer {mean[1]:.0f} on average{other}{_copies(found, mean[0], 0)}")
    line = " · ".join(parts)
    return f"{line[0].upper()}{line[1:]}"


def _answer(seen: Sequence[Seen]) -> str:
    """Return the sentence on where one prompt's answer is the first choice."""
    one, n = seen[0], len(seen)
    if (depth := first_choice(seen)) is not None and n > 1:
        return f"Each of the answer's {n} tokens is the first choice{_since(depth, one.n_layers)}."
    if n > 1:
        wrong, right = next(s for s in seen if s.best is None), sum(s.best is not None for s in seen)
        where = f"where it should say {quoted(wrong.token)}, the model says {quoted(wrong.instead)}"
        return f"{right} of the answer's {n} tokens {'is' if right == 1 else 'are'} the first choice; {where}."
    name = quoted(one.token) if one.given else f"The model's next token {quoted(one.token)}"
    top = f"in the top {one.k} from layer {one.among} on" if one.among not in (None, one.best) and one.k > 1 else ""
    if one.best is None:
        return f"{name} is not the first choice{f', but {top}' if top else ''}; the model says {quoted(one.instead)}."
    return f"{name} is the first choice{_since(one.best, one.n_layers)}{f'; it is {top}' if top else ''}."


def _since(depth: int, n_layers: int) -> str:
    """Return " from layer 3 of 30 on", or its wording at either end."""
    if depth == n_layers:
        return f" only after the last layer ({n_layers} of {n_layers})"
    return f" from {layers(depth, n_layers)} on" if depth else " from the start, before any layer"


def _average(found: Verdict) -> tuple[str, float] | None:
    """Return name and value of the first average depth that is defined."""
    return next(((name, mean.depth) for name, mean in found.means.items() if mean.depth is not None), None)


def average(found: Verdict) -> str:
    """Return the sentence on the average depth, with the copies' and intervals over prompts; "" without a lens."""
    if (mean := _average(found)) is None:
        return "No average depth: the lens is the output from layer 1 on, or not finite." if found.means else ""
    (name, depth), ends = mean, found.means[mean[0]].ends
    subject = _subject(found, f"the words of {'this prompt' if (n := found.sample.n_prompts) == 1 else f'{n} prompts'}")
    digits, over = (1, f" ({interval(*ends)} over {found.sample.units.words})") if ends else (0, "")
    place = f"layer {depth:.{digits}f} of {found.n_layers}{over}"
    return f"On average {subject} settle by {place}{_copies(found, name, digits)}."


def _subject(found: Verdict, words: str) -> str:
    """Return `words` where all tokens count, else "the predictions of the answer" or "… at token 5"."""
    if found.sample.read_for == ALL:
        return words
    of_answer = any(look and look[0].given for look in found.sample.answers) and found.sample.read_for == ANSWER
    return f"the predictions {'of the answer' if of_answer else f'at {read_for(found.sample.read_for, False)}'}"


def _copies(found: Verdict, name: str, digits: int = 1) -> str:
    """Return the copies' average depths, ", in untrained copies by 12 to 14"; "" without copies."""
    if not (depths := found.twin_means(name)):
        return ""
    by = " to ".join(dict.fromkeys(f"{end:.{digits}f}" for end in (min(depths), max(depths))))
    return f", in {'one ' * (len(found.twins) == 1)}{COPIES[found.sample.control][len(found.twins) > 1]} by {by}"


def turn(found: Turn | None) -> str:
    """Return the sentence on whether the layers switch from erasing to strengthening; "" without a fit."""
    if found is None:
        return ""
    if found.failed not in ("", "twins"):
        return "The layers show no clear switch from erasing to strengthening."
    copies = ", but so do untrained copies" if found.failed else ""
    return f"The layers switch from erasing to strengthening after {layers(found.split + 1, found.n_layers)}{copies}."


def rules(found: Verdict) -> str:
    """Return the sentence on the layers that the published rules give, and which are robust; "" without rules."""
    if not found.rules:
        return ""
    own = any(rule.threshold != RULES[rule.name].threshold or rule.best != BEST for rule in found.rules.values())
    who = SAY[len(found.rules)].format("" if own else "published ")
    robust = [rule for rule in found.rules.values() if rule.clear or rule.so_far]
    which = listed(f"the {RULES[r.name].label} rule is robust{' so far' * r.so_far}" for r in robust)
    depths = found.layers.values()
    given = listed(map(_layer, depths)) if None in depths else f"layer {listed(map(str, depths))}"
    return f"{who} {given} in the papers' count; {which or 'none is robust here'}."


def rule_name(found: RuleVerdict) -> str:
    """Return a rule's name, "Hu et al.'s KL rule"; with other settings "Hu et al.'s overlap rule (35 %, best 10)"."""
    changed = [f"{100 * found.threshold:.3g} %"] * (found.threshold != RULES[found.name].threshold)
    changed += [f"best {found.best}"] * (found.best != BEST)
    return f"Hu et al.'s {RULES[found.name].label} rule" + (f" ({', '.join(changed)})" if changed else "")


def rule(found: RuleVerdict) -> str:
    """Return the sentence on the layer that one rule gives, and why that is not robust."""
    if found.depth is None:
        return f"{rule_name(found)} gives no layer; {found.reason}."
    over = f" ({interval(*found.ends, 0)} over prompts)" if found.ends else ""
    robust = "robust here" if found.clear else "robust so far, with fewer than five untrained copies"
    if found.doubts:
        robust = f"not robust here because of {listed(found.doubts)}"
    return f"{rule_name(found)} gives layer {found.depth}{over}, in the papers' count; {robust}."


def _layer(depth: int | None) -> str:
    """Return "layer 5", or "no layer" for None."""
    return "no layer" if depth is None else f"layer {depth}"


def rule_table(found: Verdict) -> list[dict[str, str]]:
    """Return a row per rule: its layer (in the papers' count, from 0), its variants, and whether it is robust."""
    rows = []
    for one in found.rules.values():
        copies = [depth for depth in one.twins if depth is not None]
        of_copies = f"{interval(min(copies), max(copies), 0)} ({one.near} of {len(one.twins)} near)" if copies else "–"
        robust = "yes" if one.clear else "so far" if one.so_far else f"no: {', '.join(one.doubts) or one.reason}"
        if one.shared and one.depth is not None and not one.doubts:
            robust = "undecided"
        cells = {variant: _layer(depth).removeprefix("layer ") for variant, depth in one.variants.items()}
        row = {
            "Rule": rule_name(one),
            "Layer": cells[PAPER],
            "Nearby thresholds": interval(*one.band, 0) if one.band else "no layer",
            "Lasts from": cells[STABLE],
            "Without sinks": cells.get(WITHOUT_SINKS, "–"),
            "Over prompts": interval(*one.ends, 0) if one.ends else "–",
            COPIES[found.sample.control][1].capitalize(): of_copies,
            "Robust": robust,
        }
        rows.append({name: text for name, text in row.items() if name != "Over prompts" or found.sample.n_prompts > 1})
    return rows


def why(found: Verdict) -> list[str]:
    """Return the sentences behind the verdict: average depths by both measures, and why no switch is clear."""
    by = [f"{depth(mean)} by {RULES[name].label}{_copies(found, name)}" for name, mean in found.means.items()]
    out = [f"Average depth, over all thresholds of the lens: {'; '.join(by)}."] if by else []
    if found.turn is not None and found.turn.failed:
        out.append(f"No clear switch: {NO_TURN[found.turn.failed]}.")
    return out


def depth(mean: MeanDepth) -> str:
    """Return an average depth as a table cell: "18.3 (18.0 to 18.6)", "–" where not defined."""
    return "–" if mean.depth is None else f"{mean.depth:.1f}{f' ({interval(*mean.ends)})' if mean.ends else ''}"


def read_for(of: Tokens, answered: bool = True) -> str:
    """Return the words for the tokens that a verdict is read for. `answered`: whether an answer is known."""
    predicted = "where the answer is predicted" if answered else "the last token"
    return {ALL: "all tokens", ANSWER: predicted}.get(str(of), f"token {of}")


def sinks(found: Sequence[Sink], tokens: Sequence[str]) -> str:
    """Return the sentence on a prompt's attention sinks, the largest first: their tokens, depths and writers."""
    longer = "times as long as the median token"
    if not found:
        return f"No attention sink: before the output no token is {FACTOR:g} {longer}."
    named = []
    for s in sorted(found, key=lambda s: -s.ratio)[:NAMED]:
        spans = listed(f"at depth {interval(one.start, one.end, 0)} (written by {writer(one)})" for one in s.spans)
        named.append(f"token {s.pos} {quoted(tokens[s.pos])}, up to {number(s.ratio)} {longer}, {spans}")
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"{count(len(found), 'attention sink')}: {'; '.join(named)}{more}."


def writer(found: Span) -> str:
    """Return who writes a span of a sink: "layer 2's MLP"."""
    return "the embedding" if found.layer is None else f"layer {found.layer + 1}'s {found.branch.replace('mlp', 'MLP')}"


def sinks_in_maps(found: Sequence[Sink], tokens: Sequence[str], counted: bool) -> str:
    """Return the sentence on which tokens are attention sinks, and whether averages count them; "" without any."""
    if not found:
        return ""
    more = [f"{len(found) - NAMED} more"] * (len(found) > NAMED)
    named = listed([*(f"{quoted(tokens[s.pos])} (token {s.pos})" for s in found[:NAMED]), *more])
    return f"◆ attention sinks, {'counted in' if counted else 'left out of'} the averages: {named}."


def long_at_end(positions: Sequence[int], tokens: Sequence[str]) -> str:
    """Return the sentence on tokens that are long only after the last layer; "" for none."""
    named = listed(f"{pos} {quoted(tokens[pos])}" for pos in positions[:NAMED])
    return f"Long only after the last layer, so no attention sink: token {named}." if positions else ""


def among_others(found: Comparison) -> str:
    """Return the sentence comparing this prompt's score with those of other prompts."""
    form = "layer {:.3g}" if found.score.criterion else "{:.1f}"
    first = int(found.score.of_layers)
    mine = form.format(found.value + first) if np.isfinite(found.value) else "not defined"
    text = f"On this prompt {found.score.name} is {mine}"
    if not len(found.quantiles):
        return f"{text}."
    low, middle, high = map(form.format, found.quantiles + first)
    return f"{text}; the median of others is {middle} ({spread(found.n)}: {low} to {high})."


def spread(n: int) -> str:
    """Return the words for a spread over `n` other prompts: "10–90 % of 12 others", "all 4 others"."""
    return f"{'10–90 % of' if ends(n) == QUANTILES else 'all'} {n} others"


def against_control(kind: str, found: Sequence[Sequence[Likeness]]) -> str:
    """Return the sentence on how many controls of one kind have the model's curves. `found`: each one's likenesses."""
    n, alike = len(found), [sum(one.shape == 0 for one in likenesses) for likenesses in zip(*found, strict=True)]
    shares = (f"{same} of {n} for {_lower(one.curve.title)}" for same, one in zip(alike, found[0]))
    needs = "training" if kind == UNTRAINED else "the trained order of layers"
    means = f" What most copies show does not need {needs}." if n >= FIVE and 2 * max(alike) > n else ""
    return f"{COPIES[kind][n > 1].capitalize()} with the same shape: {listed(shares)}.{means}"


def pair(found: Pair) -> str:
    """Return the sentence on where two results' curves differ most, and how alike their shapes are."""
    title, place = found.curve.title, found.largest
    if place is None:
        return f"{title}: no layer has a value on both sides."
    where = f"{found.curve.x} {place + (found.curve.x != 'depth')}"
    if found.relative:
        where = f"{share(relative_depth(len(found.difference), min(found.n_layers))[place])} of the depth"
    shape = f"; {SHAPES[found.likeness.shape]}" if found.likeness.shape is not None else ""
    return f"{title}: B − A is largest at {where}, {number(found.difference[place], '+.3g')}{shape}."


def both(a: Verdict, b: Verdict) -> str:
    """Return the sentence on where the words of A and B settle, as shares of the depth; "" where unknown."""
    x, y = (side.means.get("kl") for side in (a, b))
    if x is None or y is None or x.ratio is None or y.ratio is None:
        return ""
    ends = f"{x.depth:.1f} of {x.n_layers} layers, {y.depth:.1f} of {y.n_layers}"
    return f"A settles at {share(x.ratio)} of its depth, B at {share(y.ratio)}: {ends}."


def checks(result: ProbeResult) -> str:
    """Return the sentence on whether a `numerics` result passes its checks, with the largest errors."""
    measured = exactness.checks(result)
    failed = [check for check in measured if not check.holds]
    shown = failed or measured[:2]
    errors = (f"{one.name} {number(one.value, '.2g')} (limit {number(one.limit, '.2g')})" for one in shown)
    text = f"{len(failed)} of {len(measured)} checks failed" if failed else f"All {len(measured)} checks passed"
    return f"{text}; largest errors: {listed(errors)}."


def stretch(i: int, j: int) -> str:
    """Return the layers, from 1, of a stretch `[i, j)` from 0: "layer 5", "layers 5–7"."""
    return f"layer {j}" if j == i + 1 else f"layers {i + 1}–{j}"


def variant(found: surgery.Choice) -> str:
    """Return the layers of one change: "layers 4–6", or "layers 3 and 7" of two that are exchanged."""
    return f"layers {found.i + 1} and {found.j + 1}" if found.kind == "swap" else stretch(found.i, found.j)


def cheapest(whole: float, kind: str, found: Sequence[surgery.Row]) -> str:
    """Return the sentence on the drop, swap or repeat (`kind`) that costs least. `whole`: the whole model's loss."""
    if not found:
        return "No variant of this kind gives a finite loss."
    best, n = found[0].best, found[0].n
    if kind != "drop":
        best, n = min((row.best for row in found), key=lambda best: best.loss), sum(row.n for row in found)
    cost = f"{number(whole)} → {number(best.loss)} ({number(best.loss - whole, '+.2g')}) nats per token"
    does = {"drop": "Removing {}", "swap": "Exchanging {}", "repeat": "Running {} twice"}[kind].format(variant(best))
    return f"{does} costs least of {count(n, 'variant')}, on the text it was chosen on: {cost}."


def cheapest_cut(curves: Mapping[str, np.ndarray], n: int, pruned: ProbeResult) -> str:
    """Return the sentence on which `n` layers cost least to remove, by aggregates of `prune` over results like this."""
    start = surgery.best_stretch(curves["kl"], n)[0]
    costs = surgery.costs(curves, start)
    kept = f"{share(costs['top1_kept'])} of first choices stay"
    if not np.isfinite(costs["kl"]):
        return "Whichever layer is removed, the predictions are not finite."
    if surgery.whole_passes(n, pruned):
        return f"Whichever layer is removed, it is a whole pass: {kept}."
    return f"{stretch(start, start + n).capitalize()} {'is' if n == 1 else 'are'} the cheapest to remove: {kept}."


def cost(costs: Mapping[str, float]) -> str:
    """Return what removing layers costs, in words, from `surgery.costs`."""
    if not np.isfinite(costs["kl"]):
        return "the predictions are not finite"
    text = f"{share(costs['top1_kept'])} of first choices stay, KL {number(costs['kl'])} nats"
    if "perplexity" in costs:
        text += f", perplexity {number(costs['perplexity_whole'])} → {number(costs['perplexity'])}"
    return text


def lens(kind: str) -> str:
    """Return a lens's name within a sentence, "affine lens"."""
    return LENSES[kind] if kind == UNCALIBRATED else _lower(LENSES[kind])


def by_lens(verdicts: Mapping[str, Verdict]) -> str:
    """Return sentences on the average depth and the rules' layers under each lens."""
    out = []
    for name, spec in OF_LENS.items():
        known = {kind: v for kind, v in verdicts.items() if name in v.means}
        if len(known) > 1:
            means = listed(f"{depth(v.means[name])} ({lens(kind).removesuffix(' lens')})" for kind, v in known.items())
            gives = listed(_layer(v.rules[name].depth) for v in known.values())
            out.append(f"Average depth by {spec.label}: {means}; Hu et al.'s rule gives {gives}, in the papers' count.")
    return " ".join(out) or "One lens does not show whether depth depends on the lens."


def certificate(kind: str, found: Mapping[str, Any]) -> str:
    """Return sentences on how close a fitted lens comes to the output on held-out prompts, next to its controls."""
    judged, prompts = found["held_out"], found["prompts"]
    over = f"on {judged['kl_tokens']:,} held-out tokens ({judged['kl_over']})"
    out = [f"{LENSES[kind]}, fitted on {prompts['tokens']:,} tokens of {prompts.get('fitted', prompts['n'])} prompts."]
    if "kl_minus" not in judged:
        out.append(f"There are too few prompts to judge it {over}.")
    for name, other in {"constant": "a constant prediction", "logit": "the logit lens"}.items():
        if "kl_minus" in judged and not (name == "logit" and kind == UNCALIBRATED):
            better, worse = below(judged["kl_minus"][name])
            known = f"{better.sum()} of {len(better)} depths, farther at {worse.sum()}"
            out.append(f"It is closer to the output than {other} at {known}, {over}.")
    return " ".join([*out, *found.get("notes", ())])


def matching(maps: Maps) -> str:
    """Return the sentence on how many layers of model A have counterparts in model B, and where."""
    pairs, other, (a, b) = match(maps), match(maps, "r2"), maps.names
    which = reading(pairs)
    unsure = "" if which in ("unclear", reading(other)) else " (by R² instead of the error this does not hold)"
    some = f"{int(pairs.matches.sum())} of {maps.n_layers[0]} layers of {a}"
    return f"{some} have a counterpart in {b}, {MATCHES[which]}{unsure}."


def replacement(found: Replacement) -> str:
    """Return sentences on how many layers a linear map cannot replace, on held-out prompts and on those fitted on."""
    useful, fitted = usefulness(found.loss, found.whole), usefulness(found.loss_fitted, found.whole_fitted)
    n, raises = found.n_layers, f"raises the loss by more than {share(RAISED)}"
    some = f"For {round(useful * n)} of {n} layers of {found.name} a linear map in their place {raises}"
    return f"{some} on held-out prompts; for {round(fitted * n)} on the prompts it was fitted on."


def halves(result: ProbeResult, left_out: Collection[int] = ()) -> list[str]:
    """Return sentences on which branch brings the first choice, by the lens at half layers."""
    pos = result.answer_start - 1 if result.answer_start else result.n_tokens - 1
    branch, layer = branch_at(float(result["half_settle_depth"][pos]))
    word, branches = quoted(result.token_text.get(int(result["top_ids"][-1, pos, 0]), "")), brought(result, left_out)
    by = "the embedding" if branch == EMBEDDING else f"layer {layer + 1}'s {branch}"
    n, total, kl = branches.counts, count(sum(branches.counts.values()), "token"), mean_depth_of(result, "kl")
    return [
        f"{word} is the first choice from {by} on.",
        f"Attention brings the first choice at {n[ATTENTION]} of {total}, an MLP at {n[MLP]}.",
        f"Average depth by KL, read at half layers: {'–' if kl is None else f'{kl:.2f}'} of {result.n_layers}.",
    ]


def loops(aggregates: Mapping[str, np.ndarray]) -> str:
    """Return sentences on the pass by which a looped model's words settle, and what a pass fewer or more changes."""
    n = len(aggregates["times_kl"]) // 2
    readout = aggregates["readout_kl"][n, : n + 1]
    mean, first = float(MEAN_DEPTH["kl"](readout[None])[0]), first_pass(readout)
    gives = "no pass" if first is None else f"pass {first}"
    text = f"On average the words settle by pass {number(mean, '.1f')} of {n}; Hu et al.'s KL rule gives {gives}."
    fewer, more = (number(aggregates["times_kl"][times], ".2g") for times in (n - 1, n + 1))
    return f"{text} One pass fewer changes the output by {fewer} nats (KL), one more by {more}."


def exits(found: Exits) -> str:
    """Return the sentence on what early exits would change and save."""
    would = f"would change {found.changed} of {count(found.n, 'first choice' if found.guesses else 'word')}"
    gain = f" and save {found.n_layers - found.depth:.1f} layers on average" if found.usable else ""
    text = f"Leaving at {found.threshold:g} confidence {would}{gain}."
    if found.settled is None:
        return text
    return f"Half of the words are the first choice from {layers(found.settled, found.n_layers)} on. {text}"


def contributions(result: ProbeResult) -> tuple[str, str]:
    """Return a sentence on whether the layers switch to strengthening, and one on the cosine rule."""
    reached = verdict_of(Sample.of(result))
    return turn(reached.turn), f"{_one_prompt(result)} {rule(reached.rules['cosine'])}"


def logit_lens(result: ProbeResult) -> tuple[str, str]:
    """Return a sentence on where the words settle, and one on what the published rules give."""
    reached = verdict_of(Sample.of(lens=result))
    return average(reached), f"{_one_prompt(result)} {rules(reached)}"


def skip(result: ProbeResult) -> tuple[str, str]:
    """Return a sentence on the layers needed most and least, and one on what stays without the latter."""
    output = result["output"]
    if not np.isfinite(output).all():
        return "", ""
    most, least = int(output.argmax()), int(output.argmin())
    stay = f"Without layer {least + 1}, {share(float(result['top1_kept'][least]))} of the first choices stay."
    sentence = f"Leaving out layer {most + 1} changes the next words most, layer {least + 1} least."
    return sentence, f"{_one_prompt(result)} {stay}"


def erasure(result: ProbeResult, left_out: Collection[int] = ()) -> tuple[str, str]:
    """Return a sentence on the layer up to which tokens are needed, and one on the largest effect of erasing one."""
    effect = np.array(result["effect"], float)
    effect[:, list(left_out)] = np.nan
    curve, n = np.nan_to_num(np.fmax.reduce(effect, axis=1)), result.n_layers
    if not curve.max() > 0:
        return "", ""
    late = int((curve >= curve.max() / 2).nonzero()[0][-1]) + 1
    row, pos = np.unravel_index(int(np.nan_to_num(effect).argmax()), effect.shape)
    sentence = f"The prompt's tokens are needed up to {layers(min(late, n), n)}."
    largest = f"{quoted(result.tokens[pos])}, after layer {row}"
    return sentence, f"{_one_prompt(result)} Erased later, no token has half of the largest effect ({largest})."


def gradients(result: ProbeResult, blank: Sequence[int] = ()) -> tuple[str, str]:
    """Return a sentence on the tokens that the answer rests on, and a note. `blank`: layers that did not settle."""
    size = np.nansum(np.abs(result["attribution"]), axis=0)
    if not size.max() > 0:
        return "", ""
    most = np.argsort(-size, kind="stable")[:2].tolist()
    named = listed((f"{quoted(result.tokens[pos])} (token {pos})" for pos in most), "then on")
    failed = f" {len(blank)} of {count(result.n_layers, 'layer')} did not settle." if blank else ""
    return f"The answer rests most on {named}.", f"{_one_prompt(result)} Magnitudes summed over all layers.{failed}"


def _one_prompt(result: ProbeResult) -> str:
    """Return the sentence "One prompt of 12 tokens." for this result."""
    return f"One prompt of {count(result.n_tokens, 'token')}."


def patched(answers: Sequence[str], depths: Mapping[str, int | None], n_layers: int) -> str:
    """Return the sentence on where the other of the `answers` (own, other) is decided, and where the lens reads it."""
    own, other = (quoted(answer.strip()) for answer in answers)
    decided, lens = depths["decided"], depths["lens"]
    if decided is None:
        return f"Carried into this prompt, {other} never replaces {own} as the first choice."
    read = f"the lens can read it from layer {lens} on" if lens is not None else "the lens never stays on it"
    when = f"by {layers(decided, n_layers)}" if decided else "before any layer"
    return f"{other} is decided {when}; {read}."


def mix(found: Mix, n_layers: int) -> str:
    """Return the sentence on how deep a prompt's tokens settle, and how deep their kinds let expect."""
    alone = f"their mix of kinds alone would give {found.expected:.1f}"
    others = f"{count(found.n, 'other prompt')} settle by {found.others:.1f}"
    return f"The words settle by layer {found.depth:.1f} of {n_layers} on average; {alone}, and {others}."


def headroom(found: Headroom) -> str:
    """Return the sentence on what leaving early could spare at most, and how much of it before the tokens settle."""
    over = f" ({interval(*found.headroom.interval[:2])})" if found.over.enough else ""
    spared = f"An exit that knew the answer would spare {float(found.oracle.value):.1f} of {found.n_layers} layers"
    more = f"{float(found.headroom.value):.1f}{over} more than waiting until the first choice has settled"
    return f"{spared}, {more} ({count(found.n, 'token')}, {found.over.words})."
