"""Every figure once, from made-up numbers, as it goes to the browser, and how every measure, every probe's parameter
and every claim's quantity is declared; `tests/data/figures.txt` holds them, a line for each trace, shape, note and part
of the layout, for each measure, parameter and quantity. `PYTHONPATH=. python tests/drawn.py` writes it anew: what a
change of the code changes is then read in the file's difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ed_core import figures
from ed_core.claims import CLAIMS
from ed_core.depth import surgery
from ed_core.depth.answer import Seen
from ed_core.depth.continuous import MeanDepth, Turn
from ed_core.depth.criteria import Criterion
from ed_core.depth.verdict import Verdict
from ed_core.depth.wording import Reading, Statement, Twins
from ed_core.figures import View, pictures
from ed_core.fits import measured
from ed_core.probes import PROBES, LayerSkip
from ed_core.probes.base import Curve
from ed_core.types import Measure, ProbeResult

FILE = Path(__file__).parent / "data" / "figures.txt"
LINES = {"cosine": 1, "kl": 2, "overlap": 2}
MOST, LONG = 6, 100  # numbers of a list and letters of a text that are written out; of more a digest
KINDS = {"step": 6, "window": 2}
SAID = ("xaxis", "yaxis", "title", "meta")  # parts of a layout with a line of their own
LIMITS = {"miss": 1e-4, "slope": 0.02, "copies": 1e-4}


def numbers(*shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(len(shape)).uniform(low, high, shape)


def views(result: ProbeResult, other: ProbeResult) -> Iterator[tuple[str, View, bool]]:
    """What a page shows; beside a control, on a phone, without its sinks; beside another result, a part of it. And
    whether the first token counts."""
    yield "alone", View("Title", answer_start=2, depth_lines=LINES, selected=1), True
    kept = dict(sinks=(0,), read_at=(0, 1, 3), read_for="here")
    yield "control", View(height=300, width_px=380, control=other, control_name="twin", **kept), False
    yield (
        "beside",
        View(beside=other, window=(1, 2), depth_lines={"kl": 0, "cosine": 3}, sinks=(2,), count_sinks=True),
        True,
    )


def half(measure: Measure) -> Measure:
    return measure if measure.values.dtype.kind == "i" else replace(measure, values=np.asarray(0.5 * measure.values))


def results() -> Iterator[tuple[str, ProbeResult, ProbeResult]]:
    """Of every probe that has pictures, and another one to hold it against."""
    from test_figures import fake

    for probe in PROBES:
        more = {"layer_skip": ({}, {"mode": "future"}), "residual_erasure": ({}, {"target": "answer"})}
        for parameters in more.get(probe.name, ({},)) if probe.pictures else ():
            for filled in (1.0, 0.5):
                one, other = (fake(probe.name, n, filled=filled, **parameters) for n in (4, 4))
                one.provenance.update(limits=LIMITS, passes=2)
                other = replace(other, measures={name: half(m) for name, m in other.measures.items()})
                yield f"{probe.name}{''.join(parameters.values())}{'' if filled == 1 else ' half'}", one, other


def declared() -> Iterator[tuple[str, Any]]:
    """The pictures that probes declare, in all they can show, and what is said of them."""
    for name, result, other in results():
        for look in pictures.LOOKS if result.complete else pictures.LOOKS[:1]:
            for i, picture in enumerate(pictures.pictures(result, look)):
                measure = pictures.measures(picture, look)[0]
                every = list(views(result, other))
                for seen, view, first in every if look == pictures.LOOKS[0] and result.complete else every[:1]:
                    said = pictures.caption(picture, result, look) + pictures.beside(picture, view)
                    said += f" · {figures.describe(result, measure)}" * (seen == "alone")
                    said += " · drawn low" * picture.low
                    shown = replace(look, first_token=first)
                    yield (
                        f"{name} {i} {measure} {seen}: {said}",
                        lambda p=picture, r=result, v=view, s=shown: pictures.draw(p, r, v, s),
                    )


def verdict_of(n: int, turn: int | None) -> Verdict:
    turned = None if turn is None else Turn(n, turn, -0.2, 0.3, 0.01, "")
    return Verdict(
        {"cosine": Criterion("cosine", 1, None, n), "kl": Criterion("kl", 1, 1, n)},
        {"cosine": numbers(n, low=-0.4, high=0.4)},
        {},
        {"cosine": Statement("", False, 1, 2), "kl": Statement("", True, 1, 1)},
        {"kl": MeanDepth("kl", 0.4 * n, n), "overlap": MeanDepth("overlap", None, n)},
        turned,
        (Seen(3, "<b>", True, n // 2, n // 2, 5, n),),
        Twins(),
    )


def curves_of_surgery(n: int = 4) -> dict[str, np.ndarray]:
    found: dict[str, Any] = {"loss_whole": np.array(2.0)}
    for kind in figures.DONE:
        shape, low = ((n, n), 0) if kind == "swap" else ((n, n + 1), 1)
        out = ~np.triu(np.ones(shape, bool), low)
        for name, values in (
            ("loss", 1.5 + 3 * numbers(*shape)),
            ("kl", numbers(*shape)),
            ("top1_kept", numbers(*shape)),
        ):
            found[f"{kind}_{name}"] = np.where(out, np.nan, values)
    distances = {name: numbers(n, n + 1, high=high) for high, name in enumerate(surgery.PROXIES, 1)}
    return found | distances | {"random_loss": numbers(n)}


def others() -> Iterator[tuple[str, Any]]:
    """The figures that no probe declares."""
    from test_figures import fake, maps_of_two
    from test_pairs import pair, scaled

    curve, low = numbers(5, low=-1.0), numbers(5, low=-1.0) - 0.1
    three = {"attn_cos": curve, "mean of <b>": np.abs(curve), "own": 2 * np.abs(curve)}
    ends = {"own": (1.5 * np.abs(curve), 3 * np.abs(curve))}
    yield "curves", figures.layer_curves(three, "t", "u", depth_lines=LINES, behind={"twin": low}, ends=ends)
    yield "curves, logarithmic", figures.layer_curves({"own": np.abs(curve)}, "", "u", log=True, x="depth")
    yield (
        "spread",
        figures.spread_curve(
            curve, np.stack([low, curve, curve + 1]), "u", others="all 9 others", behind={"twin": low}
        ),
    )
    yield "spread of none", figures.spread_curve(np.abs(curve), np.empty((0, 5)), "u", log=True)
    over = {"fp32": curve, "bf16": curve + 0.1, "int8": low}
    yield "over each other", figures.curves_over_each_other(over, "fp32", "u")
    yield (
        "over each other, logarithmic",
        figures.curves_over_each_other({n: np.abs(c) for n, c in over.items()}, "fp32", "u", log=True),
    )
    yield "limit", figures.limit_bars(np.array([0.5, -1, 1.5]), 1.0, "u", name="n", limit_name="l")
    contributions, skip, future = (fake(*one) for one in (("contributions",), ("layer_skip",), ("layer_skip",)))
    yield "no sinks", figures.contribution_norms(contributions, View(sinks=(0, 2)))
    yield "only sinks", figures.contribution_norms(contributions, View(sinks=(0, 1, 2, 3)), first_token=False)
    yield "cosines without sinks", figures.cosine_map(contributions, View(sinks=(0, 2), read_at=(1, 2)))
    split = Measure(LayerSkip.spec("boundaries"), np.array([3, 2], np.int32))
    future = replace(future, measures={**future.measures, "boundaries": split})
    yield "split points", figures.boundary_map(future, View(), 1)
    yield "profile", figures.token_profile(contributions, "layer_cos", 1, first_token=False, depth_lines=LINES)
    yield "profile of depths", figures.token_profile(contributions, ["resid_norm"], 1, log=True)
    yield "output bars", figures.output_bars(skip, View(control=future, control_name="twin"))
    yield "effect on layers", figures.effect_on_layers(skip, View(height=200))
    yield "output by token", figures.output_by_token(skip, View())
    yield "rank", figures.rank_curve(fake("logit_lens"), 2)
    two = (verdict_of(8, 5), verdict_of(4, None))
    yield "pair ruler", figures.pair_ruler(two, (8, 4), ("x<", "y"))
    a, _ = two
    twins = Twins("untrained", tuple(Reading({}, {"kl": MeanDepth("kl", depth, 8)}, None) for depth in (6.5, 8.0)))
    ghost, marks = {"kl": MeanDepth("kl", 4.0, 8)}, (("m", "kl", 0.5, "s"), ("m<", "cosine", 0.25, "s"))
    look = dict(means=a.means, turn=a.turn, seen=a.seen, statements=a.statements, cosine=a.curves["cosine"])
    yield (
        "ruler",
        figures.depth_ruler(
            a.criteria, 8, bands={"kl": (1, 3)}, twins=twins, published=marks, ghost=ghost, passes=2, **look
        ),
    )
    yield "ruler of nothing", figures.depth_ruler({}, 3)
    for name, x, y, n, log in (
        ("same", 4, 4, (4, 4), False),
        ("apart", 4, 2, (4, 2), True),
        ("depths", 5, 3, (4, 2), False),
    ):
        of = Curve("c", "t", "u", x="depth" if name == "depths" else "layer", log=log)
        one = pair(numbers(x), numbers(y) - (not log), n, of)
        yield f"pair, {name}", figures.pair_curves(one, ("x", "y<"))
    yield "pair, by number", figures.pair_curves(one, ("x", "y"), by_number=True)
    half = {probe: scaled(fake(probe, 8), 3.0) for probe in ("contributions", "layer_skip")}
    view = View(sinks=(2,), depth_lines=LINES, answer_start=2)
    yield (
        "difference",
        figures.difference_map(fake("contributions", 8), half["contributions"], "layer_ratio", view, False, [1]),
    )
    yield "difference of effects", figures.difference_map(fake("layer_skip", 8), half["layer_skip"], "effect", view)
    curves = curves_of_surgery()
    for kind in figures.DONE:
        rows = surgery.rows(curves, kind)
        for value in ("loss", "kl", "top1_kept"):
            yield f"{kind} {value}", figures.surgery_map(curves, kind, View(), value, rows)
    yield "added", figures.added_curves({"drop": numbers(5, high=9.0)}, "length", 200, behind={"random": numbers(5)})
    yield "order", figures.order_ruler((0, 2, 2, 3, 3, 3), 5)
    found = maps_of_two()
    yield "maps", figures.map_between(found)
    yield "maps by R²", figures.map_between(found, "r2", control=True, width_px=300)
    yield "matches", figures.best_matches(found)
    yield "errors", figures.best_errors(found)
    told = {"model": {"name": "small<"}}
    loss = measured.Replacement(np.array([2.2, 3.0]), np.array([2.0, 2.5]), 2.0, 2.0, np.zeros(2), 90, 9, told)
    yield "replacement", figures.replacement_bars(loss)
    row = dict(model="m<b>", criterion="kl", variant="paper", n_layers=10, low=3.0, high=6.0, prompts=5, undefined=0.2)
    rows = [
        row | dict(depth=4.0, ratio=0.5),
        row | dict(criterion="cosine", depth=None, ratio=None),
        row | dict(variant="stable", depth=5.0, ratio=0.6, low=None),
    ]
    rows += [
        row | dict(variant="mean", depth=4.5, ratio=0.45, undefined=0),
        row | dict(model="n", criterion="own", depth=2.0, ratio=0.3),
    ]
    yield "study", figures.study_depths(rows, "model", marks, thresholds={"m<b>": (0.2, 0.6)})
    band = {
        "a<": (numbers(5), numbers(5) - 0.2, numbers(5) + 0.3),
        "b" * 50: (numbers(3), *[[None] * 3] * 2),
        "c": (numbers(3),) * 3,
    }
    yield "study's curves", figures.study_curves(band, {"a<": 4, "b" * 50: 2, "c": 3}, "nats", log=True)
    size = dict(model="m<b>", parameters=1e9, ratio=0.5, low=0.4, high=0.7, training="base", set="s", source="measured")
    sizes = [size, size | dict(parameters=2.5e10, ratio=0.6, low=np.nan, high=np.nan, training="", source="published")]
    yield "sizes", figures.study_sizes(sizes, {"published": ((1e9, 0.5), (1e10, 0.6))})
    yield "one size", figures.study_sizes([size | dict(parameters=135e6)], {})
    level = {"name": "1", "mean": 3.5, "low": 2.8, "high": 4.2, "own": np.array([3.0, np.nan])}
    yield (
        "levels",
        figures.study_levels(
            {"a<b>": [level, {**level, "name": "2", "mean": 7.0}], "b": [level], "c": [level]},
            {"a<b>": 8, "b": 8, "c": 9},
        ),
    )
    yield "levels between", figures.study_levels({"m": [level]}, {"m": 8}, "mean depth by KL", True)
    claim = SimpleNamespace(
        x_title="x<",
        unit="u<",
        x=[0.0, 1.0, 2.0],
        values=[0.1, None, 0.3],
        low=[0.0, None, None],
        high=[0.2, None, None],
        ticks=(),
    )
    named = SimpleNamespace(**{**vars(claim), "ticks": ["one", "two", "a long name of a tick"]})
    yield "claim", figures.claim_curves({"model": claim, "twin<": named})
    yield "claim with names", figures.claim_curves({"model": named})
    step = dict(criterion="kl", variant="mean", low=1.0, high=6.0, prompts=7)
    steps = [step | dict(step=s, ratio=r) for s, r in ((0, None), (1, 0.2), (10, 0.5), (20_000, 0.7))]
    steps += [
        step | dict(step=s, ratio=0.5, criterion="cosine", variant=v, low=None)
        for s in (10, 20_000)
        for v in ("turn", "paper")
    ]
    yield "over steps", figures.depth_over_steps(steps, 8, {0: 1.0, 10: None, 20_000: 2.0}, True, 10)
    yield "over steps, linear", figures.depth_over_steps(steps, 8, None, False, 7)
    yield "over one step", figures.depth_over_steps(steps[1:2], 8, None)
    z = np.linspace(-0.9, 0.9, 12).reshape(4, 3)
    yield "layers over steps", figures.layers_over_steps(z, (0, 1, 20_000), "attn_cos", "cosine", 2)
    yield "ratios over steps", figures.layers_over_steps(np.abs(z), (0, 1, 1000), "layer_ratio", "ratio", 0)
    yield "depths over steps", figures.layers_over_steps(np.abs(z), (0, 1, 1000), "kl", "nats", None)
    point = dict(
        model="m<", layers=30, params=1.5, score=20.0, family="f", source="config", left_out="", own=False, depth=""
    )
    models = [
        point,
        point | dict(layers=80, params=70, left_out="merged"),
        point | dict(own=True, params=0.1, depth="70 %"),
    ]
    yield "scores", figures.score_against_layers(models, "average, %", (1.0, 0.5), (2.0, 0.25), "size")


def drawn() -> dict[str, Any]:
    """All figures by name; the same picture is drawn once."""
    found = {}
    for name, draw in declared():
        if name not in found:
            found[name] = draw()
    return found | dict(others())


def told(value: Any) -> str:
    """A part of a figure in one line: numbers to five digits, long lists and texts by their ends and a digest."""

    def short(one: Any) -> Any:
        if isinstance(one, float):
            return float(f"{one:.5g}")
        if isinstance(one, np.ndarray | np.generic):
            return short(one.tolist())
        if isinstance(one, dict):
            return {key: short(part) for key, part in one.items()}
        if isinstance(one, list | tuple):
            parts = [short(part) for part in one]
            if len(parts) <= MOST and len(json.dumps(parts)) < 200:
                return parts
            return f"{len(parts)} from {json.dumps(parts[0])[:40]}: {digest(parts)}"
        if isinstance(one, str) and len(one) > LONG:
            return f"{one[:LONG]}… {digest(one)}"
        return one

    return json.dumps(short(value), sort_keys=True, ensure_ascii=False)


def digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def lines(of: dict[str, Any]) -> Iterator[str]:
    """A line that stands in the file already is told by its digest."""
    written = set()
    for name, figure in of.items():
        spec = figure.update_layout(template=None).to_plotly_json()
        layout = spec["layout"]
        parts = [(trace.get("name"), trace) for trace in spec["data"]]
        parts += [(key, one) for key in ("shapes", "annotations") for one in layout.pop(key, ())]
        yield f"# {name}"
        yield figures.describe_curves(figure, "It")
        parts += [(key, layout.pop(key)) for key in sorted(layout) if key.startswith(SAID)]
        for key, part in (*parts, ("layout", layout)):
            line = f"{key}: {told(part)}"
            yield f"{key}: = {digest(line)}" if line in written and len(line) > 40 else line
            written.add(line)


def kept() -> list[str]:
    """The lines of the file."""
    return [*lines(drawn()), *parts()]


def parts() -> list[str]:
    """What is declared: measures, parameters and quantities."""
    measures = [f"{probe.name}@{probe.version}: {spec}" for probe in PROBES for spec in probe.measures]
    parameters = [
        f"{probe.name}.{one.name}: {one.default!r}, { ({key: told for key, told in one.metadata.items() if told}) }"
        for probe in PROBES
        for one in fields(probe)
    ]
    quantities = [f"{claim.id}: {quantity}" for claim in CLAIMS for quantity in claim.quantities]
    return ["# measures", *measures, "# parameters", *parameters, "# claims", *quantities]


if __name__ == "__main__":
    FILE.write_text("\n".join(kept()) + "\n", encoding="utf-8")
