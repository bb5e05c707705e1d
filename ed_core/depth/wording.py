"""The verdict in words: where the lens settles, whether the cosine turns, what the papers' rules give and whether they
are clear. Numpy only.

One line says the depth without a threshold and the turn, one what the papers' rules give; why a rule is not clear is a
sentence of its own (`Statement`), one click away. A rule's figure is *clear* where its variants, its threshold band, of
several prompts its interval, and fewer than half of five untrained twins lie within a tenth of the depth, and it lasts
(`doubts`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..statistics import Interval, Units
from .answer import number
from .continuous import BLOCK, DEEP, FEWEST, LEVEL, TENTH, MeanDepth, Turn
from .criteria import BEST, RULES, Criterion, depths

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
OFTEN = 0.05  # of the resamples: a rule that gives no layer in more of them has no clear one
TOO_FEW = "too few prompts for an interval"
AT_NONE = "not for good"  # what a rule that reads what stands before a layer has not
FIVE = 5  # untrained twins that a sentence rests on
KINDS = {  # one control, and several
    "untrained": ("untrained twin", "untrained twins"),
    "shuffled": ("copy with shuffled layers", "copies with shuffled layers"),
}
AGAIN = {"untrained": ("twin", "twins"), "shuffled": ("copy", "copies")}  # once they have been named


@dataclass(frozen=True)
class Statement:
    """What the papers' rule of one criterion gives, in a sentence with the reasons why it is not clear.

    `clear`: nothing speaks against it, five untrained twins neither. `so_far`: nothing but that five twins were not
    compared. `undecided`: nothing but half or more of the fewer twins that were. `low`, `high`: the layers that rule,
    variants, other thresholds and interval give between them; None where none gives any."""

    sentence: str
    clear: bool
    low: int | None
    high: int | None
    so_far: bool = False
    undecided: bool = False


@dataclass(frozen=True)
class Reading:
    """What is read off the curves of a twin, as of the model: the papers' rules, the mean depths, the turn."""

    criteria: Mapping[str, Criterion]
    means: Mapping[str, MeanDepth]
    turn: Turn | None


@dataclass(frozen=True)
class Twins:
    """Copies of a model as random draws: `kind` of control and a reading for each seed."""

    kind: str = "untrained"
    readings: tuple[Reading, ...] = ()

    @property
    def enough(self) -> bool:
        """Whether a sentence may rest on them."""
        return self.kind == "untrained" and len(self.readings) >= FIVE

    @property
    def called(self) -> str:
        return self.named(len(self.readings))

    def named(self, n: int) -> str:
        """So many of them, in words."""
        one, more = KINDS[self.kind]
        return f"{number(n)} {one if n == 1 else more}"

    def near(self, criterion: Criterion) -> int:
        """How many have the mark of a criterion, within a tenth of the depth."""
        there = [r.criteria[criterion.name].depth for r in self.readings if criterion.name in r.criteria]
        return sum(depth is not None and not _far(criterion, depth) for depth in there)

    def turning(self, turn: Turn) -> int:
        """How many turn within a tenth of the depth of this turn."""
        there = [r.turn.split for r in self.readings if r.turn is not None and r.turn.layer is not None]
        return sum(bool(abs(split - turn.split) <= TENTH * turn.n_layers) for split in there)

    def means(self, name: str) -> list[float]:
        """Their mean depths."""
        found = [r.means[name].depth for r in self.readings if name in r.means]
        return [depth for depth in found if depth is not None]

    def beside(self, name: str, named: bool = False) -> str:
        """Their mean depths, as they stand behind the model's own: "; five untrained twins: 17.6–23.3", and once these
        are `named` "; the twins: 17.6–23.3"."""
        if not (found := self.means(name)):
            return ""
        low, high = (f"{end(found):.1f}" for end in (min, max))
        called = f"the {AGAIN[self.kind][len(found) > 1]}" if named else self.named(len(found))
        return f"; {called}: {low if low == high else f'{low}–{high}'}"

    def have(self, near: int, layer: int, n_layers: int) -> str:
        """How many of them have a mark at this layer, give or take a tenth of the depth, in words."""
        n, (one, what) = len(self.readings), KINDS[self.kind]
        if n == 1:
            said = f"the {one} compared {'gives' if near else 'does not give'}"
        else:
            said = f"{near or 'none'} of {n} {what} {'give' if near > 1 else 'gives'}"
        return f"{said} layer {near_to(layer, n_layers)}"


def statement(
    criterion: Criterion,
    curve: np.ndarray | None,
    twins: Twins = Twins(),
    interval: Interval | None = None,
    over: Units | None = None,
) -> Statement:
    """A criterion's statement from the curve it was read off, `[layer]` (None where there is none). Of several prompts
    (`over`: their units) with the interval over them, None where there are too few."""
    layers = list(_layers(criterion, curve, interval))
    low, high = (math.floor(min(layers)), math.ceil(max(layers))) if layers else (None, None)
    told = "" if over is None or interval is None else f" ({drawn(interval, over)})"
    if curve is None or criterion.depth is None:
        said = f"{_rule(criterion)} gives no layer{told}: {criterion.reason}{_elsewhere(criterion)}."
        return Statement(said, False, low, high)
    found = list(doubts(criterion, curve))
    if over is not None:
        found += _moved(criterion, interval)
    near, n = twins.near(criterion), len(twins.readings)
    beside = twins.have(near, criterion.depth, criterion.n_layers) if n else ""
    shared = twins.kind == "untrained" and 0 < n <= 2 * near  # as many as speak against it, were there five
    clear, so_far = twins.enough and not found and not shared, not (found or shared or twins.enough)
    if shared and (twins.enough or not found):
        how = f"not clear: {'; '.join([*found, beside])}" if twins.enough else f"undecided: {beside}; compare with five"
        more = ""
    elif found:
        how, more = f"not clear: {'; '.join(found)}", f". {beside[0].upper()}{beside[1:]}" if beside else ""
    else:
        how = "clear" if clear else "clear so far, not yet compared with five twins"
        more = f"; {beside}" if beside else ""
    said = f"{_rule(criterion)} gives layer {of_layers(criterion.depth, criterion.n_layers)}{told}; {how}{more}."
    return Statement(said, clear, low, high, so_far, shared and not (found or twins.enough))


def over_prompts(
    criterion: Criterion,
    curve: np.ndarray | None,
    interval: Interval | None,
    over: Units,
    twins: Twins = Twins(),
) -> Statement:
    """The statement over several prompts."""
    return statement(criterion, curve, twins, interval, over)


def rules(
    criteria: Mapping[str, Criterion],
    statements: Mapping[str, Statement],
    intervals: Mapping[str, Interval | None] | None = None,
    there: bool = False,
) -> str:
    """What the papers' rules give, and which are clear. `there`: of the tokens that the line before spoke of."""
    papers = "Rules" if any(map(_elsewise, criteria.values())) else "Papers' rules"
    who = f"{papers}, read there too:" if there else f"{papers}:"
    defined = [name for name, c in criteria.items() if c.depth is not None]
    if not defined:
        return f"{who} no layer."
    told = []
    for name, c in criteria.items():
        layer = named_layer(c.depth) if c.depth is None or name == defined[0] else str(c.depth)
        ends = _ends((intervals or {}).get(name))
        told.append(f"{layer} ({RULES[name].label}{_elsewise(c)}{f', {ends}' if ends else ''})")
    clear = [RULES[name].label for name in defined if statements[name].clear]
    so_far = [RULES[name].label for name in defined if statements[name].so_far]
    open_ = [RULES[name].label for name in defined if statements[name].undecided]
    return f"{who} {', '.join(told)}; {which_clear(clear, so_far, [RULES[name].label for name in defined], open_)}."


def which_clear(
    clear: Sequence[str], so_far: Sequence[str], defined: Sequence[str], undecided: Sequence[str] = ()
) -> str:
    """Which of the rules that give a layer (`defined`) are clear, and which but for a comparison with five twins."""
    found = [f"{_theirs(clear)} clear"] if clear else []
    if so_far:
        found.append(f"{_theirs(so_far)} clear so far (not yet compared with five twins)")
    if undecided:
        found.append(f"{_theirs(undecided)} undecided (five twins needed)")
    return ", ".join(found) or ("none clear" if len(defined) > 1 else f"{_theirs(defined)} not clear")


def _theirs(rules: Sequence[str]) -> str:
    """ "the cosine rule is", "the KL and overlap rules are"."""
    return f"the {listed(rules)} rule{' is' if len(rules) == 1 else 's are'}"


def _elsewise(criterion: Criterion) -> str:
    """ " at 90 %" of a rule whose threshold somebody has moved, " of the best 20" of an overlap of so many tokens; ""
    at the papers'."""
    at, own = criterion.threshold, RULES[criterion.name].threshold
    return of_best(criterion.name, criterion.best) + ("" if at is None or at == own else f" at {100 * at:.3g} %")


def of_best(rule: str, best: int) -> str:
    """Of how many best tokens an overlap is, where these are not the papers' five."""
    return f" of the best {best}" if rule == "overlap" and best != BEST else ""


def _rule(criterion: Criterion) -> str:
    """A rule as a sentence begins with it."""
    name = RULES[criterion.name].label
    if not (moved := _elsewise(criterion)):
        return f"The papers' {name} rule"
    papers = f"{100 * RULES[criterion.name].threshold:.0f} %" + (f" of the best {BEST}" if "best" in moved else "")
    return f"The {name} rule{moved} (the papers take {papers})"


def settles(
    means: Mapping[str, MeanDepth],
    turn: Turn | None,
    twins: Twins = Twins(),
    where: str = "",
    over: Units | None = None,
) -> str:
    """The mean depth, which needs no threshold, beside the twins', and whether the cosine turns. `where`: for which
    tokens it was read, "" for all; `over`: the units, of several prompts."""
    depth, turns = _settles(means, twins, where, over), turned(turn, twins)
    if where and depth and turns:  # read there too
        return f"{depth[:-1]}; {turns[0].lower()}{turns[1:]}"
    return " ".join(filter(None, [depth, turns]))


def turned(turn: Turn | None, twins: Twins = Twins()) -> str:
    """Whether the cosine turns, in words; `turn` held against the twins already (`continuous.against_twins`)."""
    if turn is None:
        return ""
    if not turn.failed:
        left = ["over prompts"] * (not turn.before_ends) + ["against five twins"] * (not twins.enough)
        more = f" (not tested {' or '.join(left)})" if left else ""
        if not twins.enough and twins.kind == "untrained" and (near := twins.turning(turn)):
            n = len(twins.readings)
            which = f"{near} of {n} untrained twins turn{'s' * (near == 1)}" if n > 1 else f"{twins.called} turns"
            more += f"; {which} after layer {near_to(turn.split, turn.n_layers)}"
        return f"Layers turn from erasing to strengthening after layer {turn.split}{more}."
    if turn.failed == "twins":
        which = f"{twins.turning(turn)} of {len(twins.readings)} untrained twins"
        return f"No turn of its own: {which} turn after layer {near_to(turn.split, turn.n_layers)} too."
    if turn.p > LEVEL and turn.n_layers < FEWEST:
        return f"No cosine turn: fewer than {FEWEST} layers cannot tell one from chance."
    if turn.p > LEVEL:  # so that there is no first and no second
        return "No cosine turn: not beyond chance."
    ends = (turn.before_ends, turn.after_ends)
    if any(one is not None and one[0] <= 0 <= one[1] for one in ends):
        if turn.before_ends and turn.before_ends[0] > 0:
            return "No cosine turn: first level above 0."
        if turn.after_ends and turn.after_ends[1] < 0:
            return "No cosine turn: second level below 0."
        return "No cosine turn: a level's interval over prompts reaches 0."
    if turn.before > 0 and turn.after > 0:
        return "No cosine turn: both levels above 0."
    if turn.before < 0 and turn.after < 0:
        return "No cosine turn: both levels below 0."
    if turn.before > 0 > turn.after:
        return "No cosine turn: first level above 0, second below."
    return "No cosine turn: a level is 0."


def _settles(means: Mapping[str, MeanDepth], twins: Twins, where: str, over: Units | None) -> str:
    kl, overlap = means.get("kl"), means.get("overlap")
    if kl is None:
        return ""

    def around(mean: MeanDepth) -> str:
        return f"; {apart(*ends, 1)}" if mean.interval is not None and (ends := mean.interval.ends) else ""

    def first(mean: MeanDepth, called: str) -> str:
        drawn_anew = "" if over is None else f"; {sure(mean.interval, over)}"
        return f"over thresholds {_exact(mean)} of {mean.n_layers} ({called}{drawn_anew}{twins.beside(mean.name)})"

    begin, curves = f"{where}: mean depth" if where else "Mean depth", ", from the mean curve"
    by_overlap = overlap if overlap is not None and overlap.depth is not None else None
    if kl.depth is None:
        begin = f"{where}: no mean depth" if where else "No mean depth"
        said = f"{begin} by KL: the lens is the output from depth 1 on, or not finite"
        return f"{said}; {first(by_overlap, 'overlap')}{'' if where else curves}." if by_overlap else f"{said}."
    said = f"{begin} {first(kl, 'KL')}"
    if by_overlap:
        said += (
            f", {_exact(by_overlap)} (overlap{around(by_overlap)}{twins.beside('overlap', bool(twins.means('kl')))})"
        )
        curves += "s"
    return f"{said}{'' if where else curves}."


def _exact(mean: MeanDepth) -> str:
    """A mean depth, as exact as its interval is printed."""
    ends = mean.interval.ends if mean.interval is not None else None
    return f"{mean.depth:.{(decimals(*ends, 1) if ends else None) or 1}f}"


def sure(interval: Interval | None, over: Units) -> str:
    """How sure a depth over prompts is: its interval, and over what."""
    if interval is None or interval.ends is None:
        return f"{over.words}: no interval" if over.enough else f"{over.words}: too few for an interval"
    return over_what(level(*interval.ends, 1), over.words)


def printed(value: int | float | np.floating[Any], form: str = ".3g") -> str:
    """A number in this form (`+.2g`, `.2f`, `+d`), its minus a minus and no hyphen; what rounds to 0 has none. In place
    of an exponent 1200, and from 10⁹ on and below 0.0001 a power, 5·10⁻⁵."""
    told = f"{value:{form}}"
    step, _, power = told.partition("e")
    if power and 0 < int(power) < 9:
        told = f"{float(told):{'+' * form.startswith('+')}.0f}"
    elif power:
        told = f"{step}·10{str(int(power)).translate(RAISED)}"
        told = re.sub(r"(?<![\d.])1·", "", told, count=1)
    return told.replace("-", "" if not power and float(told) == 0 else "−")


def percent(share: float, signs: bool = False) -> str:
    """A share in whole per cent, "less than 1 %" and "more than 99 %" where it would print as none or all and is not;
    in `signs`, for cells and lists, "<1 %" and ">99 %"."""
    less, more = ("<", ">") if signs else ("less than ", "more than ")
    told = f"{100 * share:.0f} %"
    few = f"{less}1 %" if told == "0 %" and share > 0 else told
    return f"{more}99 %" if told == "100 %" and share < 1 else few


def past(value: float, limit: float, digits: int = 0) -> str:
    """A value beyond a limit, with up to two decimals more than `digits` where it would print as the limit."""
    told = [(f"{value:.{n}f}", f"{limit:.{n}f}") for n in range(digits, digits + 3)]
    return next((own for own, other in told if own != other), told[-1][0])


def apart(low: float, high: float, digits: int | None = None) -> str:
    """The ends of an interval, "18.0 to 18.6": `digits` decimals, or as many more, up to three, as tell them apart;
    without, three figures. Of ends that are alike "9 in at least 90 % of resamples", so that an interval without width
    does not pass for certainty."""
    n = None if digits is None else decimals(low, high, digits) or digits
    ends = [f"{end:.3g}" if n is None else f"{end:.{n}f}" for end in (low, high)]
    return f"{low:.3g} in at least 90 % of resamples" if ends[0] == ends[1] else " to ".join(ends)


def decimals(low: float, high: float, digits: int, from_0: bool = False) -> int | None:
    """`digits`, or as many decimals more, up to three, as tell the ends of an interval apart, and where they can, each
    from 0 (`from_0`); None for ends that are alike."""
    apart = [n for n in range(digits, digits + 4) if f"{low:.{n}f}" != f"{high:.{n}f}"]
    whole = (n for n in apart if not from_0 or all(round(end, n) or not end for end in (low, high)))
    return next(whole, apart[0] if apart else None)


def over_what(ends: str, words: str) -> str:
    """The ends of an interval, and what it is over: "18.0 to 18.6 over 9 prompts"."""
    return f"{ends} {'over' if ' to ' in ends else 'of'} {words}"


def level(low: float, high: float, digits: int | None = None) -> str:
    """The same with its level, where it has a width."""
    ends = apart(low, high, digits)
    return f"5–95 %: {ends}" if " to " in ends else ends


def drawn(interval: Interval | None, over: Units | None = None) -> str:
    """The interval over prompts of a rule in words: 5 to 95 % of the resamples that give a layer, and the share that
    gives none; of few that give one the share alone."""
    words = "prompts" if over is None else over.words
    if interval is None:
        return TOO_FEW
    if interval.ends is None:
        return f"none in any resample of {words}"
    if interval.undefined > 0.5:
        return f"none in {100 * interval.undefined:.1f} % of resamples of {words}"
    ends = level(*interval.ends)
    if not interval.undefined:
        return over_what(ends, words)
    some = "" if " to " in ends else " that give a layer"
    return f"{ends}{some}, no layer in {100 * interval.undefined:.1f} % of resamples, over {words}"


def doubts(criterion: Criterion, curve: np.ndarray) -> Iterator[str]:
    """Why the papers' figure, read off this curve, has no clear place, a clause each; twins and prompts aside."""
    others = RULES[criterion.name].others(criterion.threshold)
    moved = np.array([depths(criterion.name, np.asarray(curve)[None], "paper", at)[0] for at in others])
    some = moved[np.isfinite(moved)]
    far = any(_far(criterion, depth) for depth in some)
    if far or len(some) < len(moved):
        ends = " to ".join(dict.fromkeys(str(int(end(some))) for end in (np.min, np.max))) if far else ""
        none = "no layer" if len(some) < len(moved) else ""
        which = "other thresholds tried" if far or not len(some) else "some other thresholds tried"
        yield f"{which} give {' or '.join(filter(None, [ends, none]))}"
    if criterion.name == "cosine" and criterion.stable is None:
        yield again(curve)
    elif (lasting := _lasting(criterion)) is not None:
        yield lasting
    if (later := criterion.from_depth_1) is not None:
        if later.depth is None or _far(criterion, later.depth):
            yield f"without depth 0 it gives {named_layer(later.depth)}"
        elif later.stable != criterion.stable and (later.stable is None or _far(criterion, later.stable)):
            yield f"without depth 0, {_lasting(later) or f'for good from layer {later.stable}'}"
    if (without := criterion.without_sinks) is not None and (without.depth is None or _far(criterion, without.depth)):
        yield f"without the sinks it gives {named_layer(without.depth)}"


def again(curve: np.ndarray) -> str:
    """What the mean cosine has against a layer where none is for good: the layers at the end that are below 0 again."""
    n = int(np.argmax(np.asarray(curve)[::-1] >= RULES["cosine"].threshold))
    return f"below 0 again in the last {'layer' if n == 1 else f'{n} layers'}"


def _lasting(criterion: Criterion) -> str | None:
    """What a criterion's stable variant has against its figure; None where it agrees."""
    if criterion.stable is None:
        return AT_NONE
    return f"for good only from layer {criterion.stable}" if _far(criterion, criterion.stable) else None


def _moved(criterion: Criterion, interval: Interval | None) -> list[str]:
    """What prompts drawn anew have against a clear place."""
    assert criterion.depth is not None
    if interval is None:
        return [TOO_FEW]
    far = interval.ends is None or any(_far(criterion, end) for end in interval.ends)
    found = [f"its interval reaches outside layer {near_to(criterion.depth, criterion.n_layers)}"] if far else []
    return found + [f"no layer in more than {100 * OFTEN:.0f} % of resamples"] * (interval.undefined > OFTEN)


def _layers(criterion: Criterion, curve: np.ndarray | None, interval: Interval | None) -> Iterator[float]:
    """Every layer that the rule, its variants, other thresholds and the ends of its interval give."""
    for one in (criterion, *criterion.variants.values()):
        if one is not None:
            yield from (float(d) for d in (one.depth, one.stable) if d is not None)
    if curve is not None:
        curves = np.asarray(curve, np.float64)[None]
        found = [depths(criterion.name, curves, "paper", at)[0] for at in RULES[criterion.name].band]
        yield from (float(d) for d in found if np.isfinite(d))
    yield from (interval.ends or ()) if interval is not None else ()


def _elsewhere(criterion: Criterion) -> str:
    """The end of a sentence on a rule that gives no layer: which variants give one."""
    left_out = {"from_depth_1": "depth 0", "without_sinks": "the sinks"}
    given = {left_out[name]: c.depth for name, c in criterion.variants.items() if c is not None and c.depth is not None}
    return "".join(f"; without {what} it gives layer {depth}" for what, depth in given.items())


def _far(criterion: Criterion, depth: float | int) -> bool:
    assert criterion.depth is not None
    return bool(abs(depth - criterion.depth) > TENTH * criterion.n_layers)


def of_layers(layer: int, n_layers: int) -> str:
    """A layer among those that there are, which are counted from 0: "24 of 0–29"."""
    return f"{layer} of 0–{n_layers - 1}"


def near_to(layer: int, n_layers: int) -> str:
    """A layer, give or take a tenth of the depth: "24 ± 3"."""
    return f"{layer} ± {width}" if (width := tenth(n_layers)) else str(layer)


def tenth(n_layers: int) -> int:
    """The whole layers in a tenth of the depth: as far apart may two layers be that count as one place."""
    return int(TENTH * n_layers + 1e-9)


def random_orders(n_layers: int) -> str:
    """What the turn's split is held against (`continuous.orders`)."""
    return f"random orders of {BLOCK}-layer blocks" if n_layers >= DEEP else "random layer orders"


def named_layer(depth: int | None) -> str:
    """What a rule gives: "layer 7", "no layer"."""
    return "no layer" if depth is None else f"layer {depth}"


def _ends(interval: Interval | None) -> str:
    """The ends of an interval that has a width."""
    if interval is None or interval.ends is None or " to " not in (ends := level(*interval.ends)):
        return ""
    return ends + (f", no layer in {100 * interval.undefined:.1f} % of resamples" if interval.undefined > OFTEN else "")


def listed(words: Iterable[str], last: str = "and") -> str:
    """ "a, b and c"; empty words are left out."""
    found = [word for word in words if word]
    return f" {last} ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


def count(n: int, what: str) -> str:
    """ "1 study", "2 studies"."""
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{n} {what if n == 1 else several}"


def mean_depth(depth: float | None, low: float | None = None, high: float | None = None) -> str:
    """A mean depth in a cell: "18.3 (18.0 to 18.6)"; "–" where there is none."""
    if depth is None:
        return "–"
    if low is None or high is None:
        return f"{depth:.1f}"
    return f"{depth:.{decimals(low, high, 1) or 1}f} ({apart(low, high, 1)})"  # as exact as its interval
