"""Figures of several results at once, as the pages over prompts and precisions show them: title, caption, figure, and
what it is made of. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from .. import figures
from ..depth import among_others, audit, surgery, writing
from ..figures import View
from ..figures.pictures import CURVES_HEIGHT, WIDTH
from ..probes import Probe
from ..probes.answers import ExactAnswers
from ..probes.lenses import EarlyExit
from ..probes.prune import PROXIES, Prune
from ..probes.surgery import Surgery
from ..results.aggregate import aggregate, probe_of
from ..types import ProbeResult

SIZE: dict[str, Any] = dict(height=CURVES_HEIGHT, width_px=WIDTH)


@dataclass(frozen=True)
class Together:
    """A figure over several results. `name`, `dim`, `values`, `meaning`: the curve whose numbers stand beside it."""

    title: str
    caption: str
    figure: go.Figure = field(repr=False)
    name: str
    dim: str
    values: np.ndarray = field(repr=False)
    meaning: str
    results: tuple[ProbeResult, ...] = field(repr=False)


def prune(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """What every stretch costs over these prompts, above the spread of the single ones, and how the proxies rank the
    stretches."""
    probe = probe_of(results[0])
    assert isinstance(probe, Prune)
    curves = among_others.over_prompts(probe, [r.summary for r in results])
    singles = [among_others.curves_of(probe, r.summary) for r in results]
    x = "first layer taken out" if probe.n > 1 else "layer taken out"
    best = surgery.best_stretch(curves["kl"], probe.n)
    cost = surgery.costs(curves, best[0])
    kept = f"{100 * cost['top1_kept']:.0f} % of the best guesses stay"
    cheapest = f"cheapest without {_layers(best)}: KL {cost['kl']:.3g} nats, {kept}"
    if probe.drop:
        cost = surgery.costs(curves, None)
        cheapest += f"; without {_layers(probe.drop)}: KL {cost['kl']:.3g} nats, {100 * cost['top1_kept']:.0f} % stay"
    told = {
        "kl": ("Divergence from the whole model", cheapest, "nats"),
        "top1_kept": ("Best guesses that stay", "share of the tokens; high is cheap", "share"),
        "perplexity": (
            "Perplexity without the stretch",
            f"{cost['perplexity_whole']:.3g} with all layers",
            "perplexity",
        ),
    }
    for name, (title, caption, unit) in told.items():
        spread, n = among_others.quantiles([c[name] for c in singles])
        fig = figures.spread_curve(
            curves[name],
            spread,
            unit,
            label="over all tokens",
            others=among_others.spread_of(n, "prompts"),
            x=x,
            log=name == "perplexity",
            **SIZE,
        )
        yield Together(title, caption, fig, f"prune.{name}", x, curves[name], title, tuple(results))
    ranks = {name.replace("_", " "): curves[f"spearman_{name}"] for name in PROXIES}
    ranked = ", ".join(f"{name} {rank:+.2f}" for name, rank in ranks.items() if np.isfinite(rank))
    yield Together(
        "Proxies of the same stretches",
        f"rank correlation with the measured divergence: {ranked}"
        if ranked
        else "too few stretches, or too even ones, to rank",
        figures.layer_curves({name.replace("_", " "): curves[name] for name in PROXIES}, "", "proxy", x=x, **SIZE),
        "prune.block_influence",
        x,
        curves["block_influence"],
        "1 - cos(h[s], h[s+n])",
        tuple(results),
    )


def early_exit(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """Agreement with the output and confidence, depth by depth."""
    probe = probe_of(results[0])
    assert isinstance(probe, EarlyExit)
    curves = aggregate(probe, [r.summary for r in results])
    lines = {"agreement": curves["agreement"], "confidence": curves["confidence"]}
    fig = figures.layer_curves(lines, "", "share", x="depth", **SIZE)
    said = writing.of_prompts(results, probe.threshold)
    caption = f"{said[0].lower()}{said[1:-1]}"
    yield Together(
        "Early exit through the lens",
        caption,
        fig,
        "early_exit.agreement",
        "depth",
        curves["agreement"],
        "best token is the output's",
        tuple(results),
    )


def answers(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """The share of known answers that are written without each stretch."""
    probe = probe_of(results[0])
    assert isinstance(probe, ExactAnswers)
    curves = aggregate(probe, [r.summary for r in results])
    x = "first layer taken out" if probe.n > 1 else "layer taken out"
    behind = {"all layers": np.full(len(curves["exact"]), curves["exact_whole"])}
    yield Together(
        "Known answers that are written exactly",
        f"share of {len(results)} prompt{'s' * (len(results) > 1)}; whole, the model writes "
        f"{100 * float(curves['exact_whole']):.0f} %",
        figures.layer_curves({"exact answers": curves["exact"]}, "", "share", x=x, behind=behind, **SIZE),
        "exact_answers.exact",
        x,
        curves["exact"],
        "share of known answers that are written exactly without the stretch",
        tuple(results),
    )


def layers_moved(results: Sequence[ProbeResult]) -> Iterator[Together]:
    """The maps of layers left out, exchanged and run twice, what the cheapest of every length adds to the loss, and the
    typed order."""
    probe = probe_of(results[0])
    assert isinstance(probe, Surgery)
    curves = among_others.over_prompts(probe, [r.summary for r in results])
    for kind in surgery.kinds_of(curves):
        drawn = results[0]["random_layer"].tolist() if kind == "repeat" else ()
        found, title = surgery.rows(curves, kind, drawn), SURGERY[kind]
        view = View(height=CURVES_HEIGHT + 140, width_px=WIDTH)
        said, dims = surgery.sentence(curves, kind, found), ",".join(probe.spec(f"{kind}_loss").dims)
        fig = figures.surgery_map(curves, kind, view, chosen=found)
        name = f"{kind}_loss"
        yield Together(
            title, said, fig, f"surgery.{name}", dims, curves[name], probe.spec(name).meaning, tuple(results)
        )
        lines = surgery.added(curves, kind, found)
        if not lines:
            continue
        x = "distance" if kind == "swap" else "length of the stretch"
        yield Together(
            f"{title}, by {x}",
            f"loss above the whole model's {float(curves['loss_whole']):.3g} nats per token; 0 is the whole model",
            figures.added_curves(lines, x, **SIZE),
            f"surgery.{name}",
            x,
            lines["least"],
            "loss above the whole model's, of the variant that costs least",
            tuple(results),
        )
    if "order_loss" in curves:
        n_layers = results[0].n_layers
        order = probe.blocks(n_layers)
        cost = np.array([curves[name] for name in ("loss_whole", "order_loss")])
        yield Together(
            "A typed order",
            f"{probe.order}: {surgery.ordered(curves, order, n_layers)}",
            figures.layer_curves({"layer run": np.asarray(order, float)}, "", "layer", x="step", **SIZE),
            "surgery.order_loss",
            "whole and order",
            cost,
            "mean loss of the whole model, and of its layers in the typed order",
            tuple(results),
        )


SURGERY = {"drop": "Loss without a stretch", "swap": "Loss with two exchanged", "repeat": "Loss with a stretch twice"}
OVER_SEVERAL: dict[type[Probe], Callable[[Sequence[ProbeResult]], Iterator[Together]]] = {
    Prune: prune,
    Surgery: layers_moved,
    EarlyExit: early_exit,
    ExactAnswers: answers,
}
"""Probes whose results are drawn together, over prompts, in place of their pictures."""


def audited(by_precision: Mapping[str, Sequence[ProbeResult]]) -> tuple[list[str], list[Together]]:
    """The same prompts through several precisions: whether a number is an artefact, in sentences, and curve over
    curve."""
    outcome = audit.compare(by_precision, audit.reference_of(list(by_precision)))
    return [outcome.sentence(), *outcome.findings()], list(_curves(outcome, by_precision[outcome.reference]))


def _curves(outcome: audit.Audit, results: Sequence[ProbeResult]) -> Iterator[Together]:
    reference = outcome.reference
    for name, curve in audit.DRAWN.items():
        if name in outcome.curves[reference]:
            title, unit, x, log = curve.title, curve.unit, curve.x, curve.log
            lines = {precision: curves[name] for precision, curves in outcome.curves.items()}
            fig = figures.curves_over_each_other(lines, reference, unit, x=x, log=log, **SIZE)
            told, meaning = _spearman(outcome, name), f"{title}, in {reference}"
            yield Together(title, told, fig, name, x, lines[reference], meaning, tuple(results))


def _spearman(outcome: audit.Audit, name: str) -> str:
    """How one curve keeps its order, precision by precision."""
    found = {c.precision: c.spearman for c in outcome.comparisons if c.curve == name}
    told = ", ".join(
        f"{precision} {'constant' if rank is None else f'{rank:.3f}'}" for precision, rank in found.items()
    )
    return f"rank correlation with {outcome.reference}, ρ: {told}"


def _layers(drop: Sequence[int]) -> str:
    return f"layer{'s' * (len(drop) > 1)} {', '.join(map(str, sorted(drop)))}"
