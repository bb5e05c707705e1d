"""A card made: a view of the study that the claims are read off, with the precisions and the fitted lenses in it. What
is in its folder is not computed again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import disk
from ..claims import CLAIMS
from ..claims import running as claims
from ..claims import words as claim_words
from ..claims.evidence import added, cosine, per_token
from ..depth import lenses, say
from ..depth.rules import RULES
from ..depth.verdict import Verdict
from ..depth.verdict import verdict as verdict_of
from ..errors import CardError, StudyError
from ..lenses import Fit, of_model
from ..lenses.checkpoint import digest_of, digest_of_prompts
from ..models import sizes
from ..models.bundled import set_names
from ..models.ref import ModelRef
from ..models.remote import PREFIX
from ..probes.lenses import LENSES
from ..statistics import Resampled, Units, mean
from ..studies import precisions, running, sets, tables
from ..types import ENGINE_VERSION, changed, command_line
from . import card, page
from .card import OTHERS, PROMPTS, Card, Curve, Cut, Depth, Value

READ = ("contributions", "logit_lens", "one", "stretch", "writing")  # parts, whatever claims apply to the set
Tell = claims.Tell


@dataclass(frozen=True)
class Asked:
    """Which model, on which prompts. `prompts`: a bundled set's name, or a file; `most`: prompts that each part takes
    at most; `others`: precisions to compare; `also`: further models of its family, for the claim about size."""

    model: str
    prompts: str
    most: int = PROMPTS
    others: tuple[str, ...] = OTHERS
    also: tuple[str, ...] = ()
    precision: str = "fp32"
    device: str = "cpu"
    adapter: str = ""
    seed: int = 0

    @property
    def claims(self) -> claims.Asked:
        """All claims of the same."""
        how = {name: getattr(self, name) for name in ("also", "precision", "device", "adapter", "most", "seed")}
        return claims.Asked(self.model, self.prompts, **how)

    @property
    def command(self) -> str:
        """The command that makes the card again; a file by its name alone."""
        given = changed(self) | {"prompts": claims.named(self.prompts)}
        if "others" in given:
            given["others"] = ",".join(self.others)
        names = {"prompts": "set", "most": "prompts", "others": "precisions"}
        return command_line("card", **{names.get(name, name): value for name, value in given.items()}, out="FOLDER")

    @property
    def place(self) -> Path:
        """The folder that this installation makes it in."""
        prompts = self.prompts
        if prompts not in set_names():
            prompts = digest_of_prompts([e.prompt for e in sets.load(self.claims.entry(), Path(), "").examples])
        return card.place(self.claims.spec, prompts, self.also, self.others, self.most, self.seed)

    def check(self) -> None:
        """Refuse what no card can be made of, before anything is measured."""
        check_model(self.model)
        for name in self.others:
            if name not in sizes.PRECISIONS:
                expected = ", ".join(sizes.PRECISIONS)
                raise CardError(f"The precision is {name!r}; expected some of {expected}, with commas.")
        if self.most < 1:
            raise CardError(f"A card takes {self.most} prompts; expected 1 or more.")
        self.claims.entry()


def check_model(source: str) -> None:
    """Refuse a remote model."""
    if source.startswith(PREFIX):
        raise CardError(f"A card needs the weights, and those of {source[:80]} are remote; take a model that is here.")


def make(
    asked: Asked,
    out: Path,
    tell: Tell = lambda share, what: None,
    engine: running.MakesEngine | None = None,
    opened: Any = None,
) -> Card:
    """Measure what is missing, and write the card in its three forms. `engine`: who computes, this process unless
    given."""
    asked.check()
    spec, missing = asked.claims.spec, []
    own = sizes.PRECISIONS.get(asked.precision, asked.precision)
    others = [name for name in dict.fromkeys(sizes.PRECISIONS[name] for name in asked.others) if name != own]
    if others and sizes.stored_precision(spec.config()):
        missing.append("The checkpoint is stored quantized, so it has no other precision.")
        others = []
    fits = {fit.kind: fit for fit in reversed(of_model(spec))}
    missing += [f"No {say.lens(kind)} is fitted to these weights." for kind in LENSES if kind not in {*fits, "logit"}]
    stems = ",".join(sorted(fit.path.stem for fit in fits.values()))
    measured = claims.measure(asked.claims, out, CLAIMS, tell, READ, engine, others, stems, opened)
    report = claims.judged(measured, CLAIMS)
    report = report.but(findings=claim_words.adjusted(report.findings))
    claims.write(report, out)
    missing += [f"{label} was not measured: {why}" for label, why in measured.troubles.items()]
    view = _View(measured)
    found = Card(
        about=digest_of(report.about, asked.others, asked.most),
        made=time.strftime("%Y-%m-%d", time.gmtime()),
        engine=ENGINE_VERSION,
        model=_model(spec),
        set=_prompts(measured),
        over=view.verdict.units.words,
        depths=tuple(view.depths()),
        said=tuple(say.lines(view.verdict)),
        rules=tuple(say.rule_table(view.verdict)),
        curves=view.curves(fits),
        cuts=tuple(view.cuts()),
        claims=tuple(one.but(curves={}) for one in report.findings),
        notes=(*view.notes(fits), *missing),
        commands=(asked.command, report.command, command_line("verify", asked.model)),
    )
    write(found, out)
    tell(1.0, "")
    return card.read(out / card.FILE)


def write(found: Card, out: Path) -> None:
    """The card as JSON, as a page, and as Markdown."""
    try:
        disk.write(out / card.FILE, card.to_json(found))
        found = card.read(out / card.FILE)
        disk.write(out / card.HTML, page.html(found))
        disk.write(out / card.MARKDOWN, page.markdown(found).encode())
    except OSError as error:
        raise CardError(f"The card cannot be written to {out}: {disk.why(error, disk.moves(out))}") from error


class _View:
    """What a card reads off the tables."""

    def __init__(self, measured: claims.Measurement):
        self.m, self.seed, self.set = measured, measured.asked.seed, measured.asked.set_name
        found = tables.verdict_on(measured.folder, claims.MODEL, self.set)
        if found is None:
            raise StudyError(f"The study in {measured.out} has no depths; delete it and make the card again.")
        self.verdict = found

    def depths(self) -> Iterator[Depth]:
        for name, found in self.verdict.means.items():
            yield Depth(of=name, mean=True, depth=found.depth, ratio=found.ratio, **_ends(found.interval))
        for name, rule in self.verdict.rules.items():
            yield Depth(of=name, mean=False, depth=rule.depth, ratio=rule.ratio, **_ends(rule.interval))

    def curves(self, fits: dict[str, Fit]) -> dict[str, dict[str, Curve]]:
        """What the rules read, by rule and then by what it is of; and the loss that leaving out one layer adds."""
        drawn: dict[str, dict[str, Curve]] = {name: {} for name in (*RULES, "loss")}
        for label in (claims.MODEL, claims.TWIN):
            for name in drawn:
                part = self.m.part("one" if name == "loss" else RULES[name].probe, label)
                if part is None:
                    continue
                if name == "loss":
                    found = added(part, self.seed)
                elif name == "cosine":
                    found = mean(*cosine(part), part.units, self.seed)
                else:
                    found = per_token(part, name, self.seed)
                drawn[name][label] = _curve(found, part.units)
        if (part := self.m.part(claims.LENSES)) is not None:
            for kind in fits:
                for name in (n for n, rule in RULES.items() if rule.of_lens):
                    if not (name == "kl" and kind == lenses.UNCALIBRATED):
                        drawn[name][kind] = _curve(per_token(part, f"{kind}_{name}", self.seed), part.units)
        return drawn

    def cuts(self) -> Iterator[Cut]:
        """Of each length that was measured the stretch that changes the predictions least, and what it costs. Of a
        looped model single layers alone: a stretch as long as a pass leaves out the same layers wherever it starts."""
        seen: set[int] = set()
        for name in ("one", "stretch")[: 1 if self.m.bare.passes > 1 else 2]:
            part = self.m.part(name)
            if part is None:
                continue
            kl, kept = (per_token(part, of, self.seed) for of in ("kl", "top1_kept"))
            n = self.m.bare.n_layers - len(kl.value) + 1
            if n in seen:
                continue  # of few layers a stretch is one, too
            seen.add(n)
            start = int(np.argmin(np.nan_to_num(kl.value, nan=np.inf)))
            costs = {"kl": kl, "loss": added(part, self.seed), "kept": kept.bounded(0.0, 1.0)}
            values = {of: _value(found, start, part.units) for of, found in costs.items()}
            yield Cut(layers=n, start=start, **values)

    def notes(self, fits: dict[str, Fit]) -> Iterator[str]:
        """What to know of the numbers: checks, copies, sinks, lenses, precisions, early exit."""
        yield from say.why(self.verdict)
        yield from self._checks()
        part = self.m.part("contributions")
        if part is not None and "n_sinks" in part.columns and np.isfinite(part["n_sinks"]).all():
            first = say.share(float(part["first_is_sink"].mean()))
            yield f"Attention sinks: {part['n_sinks'].mean():.2g} a prompt; the first token is one in {first} of them."
        if (read := self.m.part(claims.LENSES)) is not None:
            kinds: dict[str, Verdict] = {}
            for kind in ("logit", *fits):
                sample = lenses.sample(kind, read.columns, read.forms, self.seed)
                kinds[kind] = verdict_of(sample)
            yield say.by_lens(kinds)
            yield from (say.certificate(kind, fit.certificate) for kind, fit in fits.items())
        shifts = precisions.shifts(self.m.folder, self.set)
        for name in dict.fromkeys(one.precision for one in shifts):
            yield precisions.sentence([one for one in shifts if one.precision == name])
        if (written := self.m.part("writing")) is not None:
            probe = self.m.folder.probe("writing")
            changed = say.share(1 - float(np.nanmean(written["mean_agreement"])))
            yield (
                f"Leaving at {getattr(probe, 'threshold', 0.0):g} confidence would change {changed} of the words that "
                f"the model writes, up to {getattr(probe, 'n_tokens', 0)} a prompt."
            )

    def _checks(self) -> Iterator[str]:
        """Whether the sums of this model hold, with the largest errors."""
        digest = self.m.folder.models[claims.MODEL]["digest"]
        key = next((key for key in self.m.folder.item_keys() if key.startswith(digest)), "")
        found: Any = self.m.folder.certificate(key).get("identities") if key else None
        if found:
            names = {
                "miss": "sums of the parts",
                "closure": "output from the last residual",
                "replay": "layer by layer",
            }
            errors = [f"{called} {say.number(found[name], '.1g')}" for name, called in names.items()]
            yield f"The checks pass in {found['dtype']}; largest errors: {say.listed(errors)}."


def _ends(interval: Any) -> dict[str, Any]:
    low, high = (interval.ends if interval is not None else None) or (None, None)
    return {"low": low, "high": high}


def _value(found: Resampled, at: int, over: Units) -> Value:
    low, high = (float(end) for end in found.ends[:, at]) if over.enough else (None, None)
    return Value(value=float(found.value[at]), low=low, high=high)


def _curve(found: Resampled, over: Units) -> Curve:
    low, high = found.ends if over.enough else np.full((2, len(found.value)), np.nan)
    return Curve(**{name: tuple(v.tolist()) for name, v in (("values", found.value), ("low", low), ("high", high))})


def _model(spec: ModelRef) -> card.Model:
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


def _prompts(measured: claims.Measurement) -> card.PromptSet:
    used = measured.examples[measured.asked.set_name]
    return card.PromptSet(
        name=measured.asked.set_name,
        digest=digest_of_prompts([e.prompt for e in used]),
        levels=tuple(dict.fromkeys(e.level for e in used if e.level)),
        prompts=tuple(card.Prompt(text=e.prompt.text, answer=e.prompt.answer, level=e.level) for e in used),
    )
