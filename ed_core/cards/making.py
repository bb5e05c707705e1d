"""A card made: a view of the study that the claims are read off, with the precisions and the fitted lenses in it. A
folder's results are not computed again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .. import disk
from ..claims import CLAIMS
from ..claims import running as claims
from ..claims.claim import adjusted
from ..claims.running import MODEL, TWIN, Measurement
from ..depth import lenses, say
from ..depth.rules import OF_LENS, RULES
from ..depth.verdict import Verdict
from ..depth.verdict import verdict as verdict_of
from ..errors import CardError, StudyError
from ..lenses import Fit, of_model
from ..lenses.checkpoint import digest_of, digest_of_prompts
from ..models import sizes
from ..models.bundled import set_names
from ..models.ref import ModelRef
from ..probes.lenses import LENSES
from ..statistics import Resampled, Units
from ..studies import precisions, tables
from ..studies.plan import writing
from ..types import ENGINE_VERSION, command_line
from ..work.turn import Turn
from . import card, page
from .card import OTHERS, PROMPTS, Card, Curve, Cut, Depth, Value

READ = ("contributions", "logit_lens", "one", "stretch", "writing")  # parts, whatever claims apply to the set
CHECKS = {"miss": "sums of the parts", "closure": "output from the last residual", "replay": "layer by layer"}


@dataclass(frozen=True)
class Asked(claims.Asked):
    """The model, prompts and settings of a card. `most`: prompts that each part takes at most; `others`: precisions to
    compare with."""

    most: int = PROMPTS
    others: tuple[str, ...] = OTHERS
    name: ClassVar[str] = "card"
    options: ClassVar[Mapping[str, str]] = {"prompts": "set", "most": "prompts", "others": "precisions"}

    @property
    def place(self) -> Path:
        """The folder in which this installation makes the card."""
        prompts = self.prompts
        if prompts not in set_names():
            prompts = digest_of_prompts([e.prompt for e in self.load().examples])
        return card.place(self.ref(), prompts, self.also, self.others, self.most, self.seed)

    def check(self) -> None:
        """Raise an error where no card can be made, before anything is measured."""
        check_model(self.ref())
        for name in self.others:
            if name not in sizes.PRECISIONS:
                expected = ", ".join(sizes.PRECISIONS)
                raise CardError(f"The precision is {name!r}; expected some of {expected}, with commas.")
        self.entry()


def check_model(model: ModelRef) -> None:
    """Raise `CardError` for a remote model."""
    if not model.weights_here:
        raise CardError(f"A card needs the weights, and those of {model.name} are remote; take a model that is here.")


def make(asked: Asked, out: Path, turn: Turn) -> Card:
    """Measure what is missing in the folder `out`, write the card in its three forms, and return it."""
    asked.check()
    spec, missing = asked.ref(), []
    own = sizes.PRECISIONS.get(asked.precision, asked.precision)
    others = [name for name in dict.fromkeys(sizes.PRECISIONS[name] for name in asked.others) if name != own]
    if others and sizes.stored_precision(spec.config()):
        missing.append("The checkpoint is stored quantized, so it has no other precision.")
        others = []
    fits = {fit.kind: fit for fit in reversed(of_model(spec))}
    missing += [f"No {say.lens(kind)} is fitted to these weights." for kind in LENSES if kind not in {*fits, "logit"}]
    stems = ",".join(sorted(fit.path.stem for fit in fits.values()))
    m = claims.measure(asked, out, CLAIMS, turn, READ, others, stems)
    report = claims.judged(m, CLAIMS)
    report = report.but(findings=adjusted(report.findings))
    claims.write(report, out)
    told = {one.reason for one in report.findings}
    missing += [f"{label} was not measured: {why}" for label, why in m.troubles.items() if why not in told]
    verdict = tables.verdict_on(m.folder, MODEL, asked.set_name)
    if verdict is None:
        raise StudyError(f"The study in {out} has no depths; delete it and make the card again.")
    made = Card(
        about=digest_of(report.about, asked.others, asked.most),
        made=time.strftime("%Y-%m-%d", time.gmtime()),
        engine=ENGINE_VERSION,
        model=_model(spec),
        set=_prompts(m),
        over=verdict.sample.units.words,
        depths=tuple(_depths(verdict)),
        said=tuple(say.lines(verdict)),
        rules=tuple(say.rule_table(verdict)),
        curves=_curves(m, fits),
        cuts=tuple(_cuts(m)),
        claims=report.findings,
        notes=(*_notes(m, verdict, fits), *missing),
        commands=(asked.command, command_line("verify", asked.model)),
    )
    write(made, out)
    turn.tell(1.0)
    return card.read(out / card.FILE)


def write(made: Card, out: Path) -> None:
    """Write the card into `out` as JSON, as a page, and as Markdown."""
    with writing(out):
        disk.write(out / card.FILE, card.to_json(made))
        made = card.read(out / card.FILE)
        disk.write(out / card.HTML, page.html(made))
        disk.write(out / card.MARKDOWN, page.markdown(made).encode())


def _depths(verdict: Verdict) -> Iterator[Depth]:
    """Yield the average depths, then the depths of the published rules."""
    for mean, each in ((True, verdict.means), (False, verdict.rules)):
        for name, one in each.items():
            low, high = one.ends or (None, None)
            yield Depth(of=name, mean=mean, depth=one.depth, ratio=one.ratio, low=low, high=high)


def _curves(m: Measurement, fits: Mapping[str, Fit]) -> dict[str, dict[str, Curve]]:
    """Return the curves that the rules read, and the loss added by leaving out a layer, by model or lens."""
    curves: dict[str, dict[str, Curve]] = {name: {} for name in (*RULES, "loss")}
    for label in (MODEL, TWIN):
        for name in curves:
            part = m.part("one" if name == "loss" else RULES[name].probe, label)
            if part is not None:
                sums = {"loss": part.added_loss, "cosine": part.cosine}.get(name, lambda p=part, n=name: p.sums(n))()
                curves[name][label] = _curve(part.mean(*sums), part.units)
    if (part := m.part(claims.LENSES)) is not None:
        for kind in fits:
            for name in OF_LENS:
                if not (name == "kl" and kind == lenses.UNCALIBRATED):
                    curves[name][kind] = _curve(part.per_token(f"{kind}_{name}"), part.units)
    return curves


def _cuts(m: Measurement) -> Iterator[Cut]:
    """Yield for each measured length the stretch of layers that changes the predictions least, and what it costs. Of a
    looped model only single layers: a stretch as long as a pass leaves out the same layers wherever it starts."""
    lengths: set[int] = set()
    for name in ("one", "stretch")[: 1 if m.bare.passes > 1 else 2]:
        part = m.part(name)
        if part is None:
            continue
        kl, kept = part.per_token("kl"), part.per_token("top1_kept").bounded(0.0, 1.0)
        n = m.bare.n_layers - len(kl.value) + 1
        if n not in lengths:  # of few layers a stretch is one, too
            lengths.add(n)
            start = int(np.argmin(np.nan_to_num(kl.value, nan=np.inf)))
            costs = {"kl": kl, "loss": part.mean(*part.added_loss()), "kept": kept}
            yield Cut(layers=n, start=start, **{key: _value(cost, start, part.units) for key, cost in costs.items()})


def _notes(m: Measurement, verdict: Verdict, fits: Mapping[str, Fit]) -> Iterator[str]:
    """Yield sentences on what to know of the numbers: checks, copies, sinks, lenses, precisions, early exit."""
    yield from say.why(verdict)
    yield from _checks(m)
    part = m.part("contributions")
    if part is not None and "n_sinks" in part.columns and np.isfinite(part["n_sinks"]).all():
        first = say.share(float(part["first_is_sink"].mean()))
        yield f"Attention sinks: {part['n_sinks'].mean():.2g} a prompt; the first token is one in {first} of them."
    if (read := m.part(claims.LENSES)) is not None:
        samples = {kind: lenses.sample(kind, read.columns, read.forms, read.seed) for kind in ("logit", *fits)}
        yield say.by_lens({kind: verdict_of(sample) for kind, sample in samples.items()})
        yield from (say.certificate(kind, fit.certificate) for kind, fit in fits.items())
    shifts = precisions.shifts(m.folder, m.asked.set_name)
    for name in dict.fromkeys(one.precision for one in shifts):
        yield precisions.sentence([one for one in shifts if one.precision == name])
    if (written := m.part("writing")) is not None:
        probe: Any = m.folder.probe("writing")
        changed = say.share(1 - float(np.nanmean(written["mean_agreement"])))
        yield (
            f"Leaving at {probe.threshold:g} confidence would change {changed} of the words that the model writes, up "
            f"to {probe.n_tokens} a prompt."
        )


def _checks(m: Measurement) -> Iterator[str]:
    """Yield a sentence with the largest errors of the model's identity checks; nothing where no figures are stored.
    A model that fails a check is refused when it is opened."""
    digest = m.folder.models[MODEL]["digest"]
    key = next((key for key in m.folder.item_keys() if key.startswith(digest)), "")
    sums: Any = m.folder.certificate(key).get("identities") if key else None
    if sums:
        errors = [f"{name} {say.number(sums[check], '.1g')}" for check, name in CHECKS.items()]
        yield f"The checks pass in {sums['dtype']}; largest errors: {say.listed(errors)}."


def _value(cost: Resampled, at: int, over: Units) -> Value:
    """Return the entry `at` of a curve of costs with its 5 and 95 %, which are None where prompts are too few."""
    low, high = (float(end) for end in cost.ends[:, at]) if over.enough else (None, None)
    return Value(value=float(cost.value[at]), low=low, high=high)


def _curve(mean: Resampled, over: Units) -> Curve:
    """Return a mean curve with its 5 and 95 % for the card, which are NaN where prompts are too few."""
    low, high = mean.ends if over.enough else np.full((2, len(mean.value)), np.nan)
    return Curve(values=tuple(mean.value.tolist()), low=tuple(low.tolist()), high=tuple(high.tolist()))


def _model(spec: ModelRef) -> card.Model:
    """Return the card's description of a model."""
    size = spec.size()
    return card.Model(
        name=spec.name,
        family=size.family,
        layers=size.n_layers,
        passes=size.passes,
        width=size.d_model,
        heads=size.n_heads,
        key_value_heads=size.n_kv_heads,
        vocabulary=size.d_vocab,
        tied=size.tied,
        parameters=size.parameters,
        precision=spec.precision,
        content=spec.content_hash,
        revision=spec.revision,
        adapter=Path(spec.adapter).name,
    )


def _prompts(m: Measurement) -> card.PromptSet:
    """Return the prompts that were measured, for the card."""
    used = m.examples[m.asked.set_name]
    return card.PromptSet(
        name=m.asked.set_name,
        digest=digest_of_prompts([e.prompt for e in used]),
        levels=tuple(dict.fromkeys(e.level for e in used if e.level)),
        prompts=tuple(card.Prompt(text=e.prompt.text, answer=e.prompt.answer, level=e.level) for e in used),
    )
