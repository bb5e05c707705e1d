"""A card measured: the claims' parts serve for everything that they measure anyway; the lenses and the other precisions
are studies of their own beside them. What lies in the folder is not computed anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import disk
from ..claims import running as claims
from ..depth import sinks
from ..errors import CardError, EffectiveDepthError, StudyError
from ..fits import Fit, of_model
from ..fits.file import digest_of, digest_of_prompts
from ..models import remote, sizes
from ..models.bundled import set_names
from ..models.specs import config_of
from ..probes.contributions import Contributions
from ..probes.lenses import LENSES as LENS_NAMES
from ..studies import running, sets
from ..studies.items import Folder, open_folder
from ..studies.study import ModelEntry, ProbeEntry, Study
from ..types import ENGINE_VERSION, ModelSpec, changed, command_line
from ..work.resolve import resolve
from ..work.turn import Turn
from . import card, page, words
from .card import OTHERS, PROMPTS, Card
from .measured import READ, Measured

LENSES, PRECISIONS = "lenses", "precisions"
CLAIMS = "claims"  # the folder of the claims
SHARES = {CLAIMS: 0.8, LENSES: 0.1, PRECISIONS: 0.1}  # of the time, about
NAMED = 10  # prompts whose sinks are named
Tell = Callable[[float, str], None]


@dataclass(frozen=True)
class Asked:
    """Which model, on which prompts. `prompts`: a bundled set's name, or a file; `most`: prompts that each part takes
    at most; `others`: precisions that its own is held against; `also`: further models of its family, for the claim
    about size."""

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
        return claims.Asked(
            self.model,
            self.prompts,
            (),
            self.also,
            self.precision,
            self.device,
            self.adapter,
            self.most,
            self.seed,
        )

    @property
    def command(self) -> str:
        """What makes the card again; a file by its name alone."""
        given = changed(self) | {"prompts": claims.named(self.prompts)}
        if "others" in given:
            given["others"] = ",".join(self.others)
        names = {"prompts": "set", "most": "prompts", "others": "precisions"}
        return command_line("card", **{names.get(name, name): value for name, value in given.items()}, out="FOLDER")

    @property
    def place(self) -> Path:
        """The folder that this installation makes it in."""
        spec = resolve(self.model, self.precision, self.device, self.adapter)
        prompts = self.prompts
        if prompts not in set_names():
            prompts = digest_of_prompts([e.prompt for e in sets.load(self.claims.entry(), Path(), "").examples])
        return card.place(spec, prompts, self.also, self.others, self.most, self.seed)

    def check(self) -> None:
        """Refuse what no card can be made of, before anything is measured."""
        check_model(self.model)
        for name in self.others:
            if name not in sizes.PRECISIONS:
                raise CardError(
                    f"The precision is {name!r}; expected some of {', '.join(sizes.PRECISIONS)}, with commas."
                )
        if self.most < 1:
            raise CardError(f"A card takes {self.most} prompts; expected 1 or more.")
        self.claims.entry()


def check_model(source: str) -> None:
    """Refuse a model that is elsewhere."""
    if remote.is_remote(source):
        raise CardError(
            f"A card needs weights, twins and precisions, and those of {source[:80]} are elsewhere; take a model that "
            "is here, or a study of this one."
        )


def make(
    asked: Asked,
    out: Path,
    tell: Tell = lambda share, what: None,
    engine: running.MakesEngine | None = None,
    opened: Any = None,
) -> Card:
    """Measure what is missing and write the card in its three forms. `engine`: who computes, this process unless
    given; `opened`: its models, where it has some."""
    asked.check()
    opened = Turn().models if opened is None else opened
    spec = resolve(asked.model, asked.precision, asked.device, asked.adapter)

    def tell_claims(share: float, what: str) -> None:
        tell(SHARES[CLAIMS] * share, what)

    found = claims.run(asked.claims, out / CLAIMS, tell_claims, more=READ, engine=engine, opened=opened)
    whole = sets.load(asked.claims.entry(), Path(), asked.model)
    entry = asked.claims.entry(asked.most, len(whole.levels))
    used = sets.load(entry, Path(), asked.model).examples
    parts = _Beside(asked, out, spec, entry, tell, engine, opened)
    about = _model(spec)
    read = (parts.lenses(), *parts.precisions(), spec.precision)
    measured = Measured(out / CLAIMS, entry.name, asked.seed, *read, about.passes)
    model = parts.opened.get(spec)
    told = Card(
        about=digest_of(found.about, asked.others, asked.most),
        made=time.strftime("%Y-%m-%d", time.gmtime()),
        engine=ENGINE_VERSION,
        model=about,
        identities=_identities(model),
        set=_set(entry.name, used),
        claims=tuple(one.without("curves") for one in found.findings),
        sinks=measured.sinks(parts.named_sinks(model, used), min(NAMED, len(used))),
        commands=(asked.command, found.command, command_line("verify", asked.model)),
        missing=tuple(parts.missing),
        **measured.told(),
    )
    write(told, out)
    tell(1.0, "")
    return card.read(out / card.FILE)


def write(told: Card, out: Path) -> None:
    """The card as JSON, as a page, and as Markdown."""
    try:
        data = card.to_json(told)
        disk.write(out / card.FILE, data)
        told = card.read(out / card.FILE)
        disk.write(out / card.HTML, page.html(told))
        disk.write(out / card.MARKDOWN, words.markdown(told).encode())
    except OSError as error:
        raise CardError(f"The card cannot be written to {out}: {disk.why(error, disk.moves(out))}") from error


class _Beside:
    """What is measured beside the claims' parts."""

    def __init__(
        self,
        asked: Asked,
        out: Path,
        spec: ModelSpec,
        entry: Any,
        tell: Tell,
        engine: running.MakesEngine | None,
        opened: Any,
    ):
        self.asked, self.out, self.spec, self.entry, self.tell = asked, out, spec, entry, tell
        self.opened = opened
        self.engine = engine or partial(running.Here, opened=self.opened)
        self.missing: list[str] = []
        self._done = SHARES[CLAIMS]

    def lenses(self) -> tuple[Folder, tuple[Fit, ...]] | None:
        """The rules under the lenses that are fitted to this model; None where none is."""
        fits = tuple({fit.kind: fit for fit in reversed(of_model(self.spec))}.values())
        kinds = {fit.kind for fit in fits}
        for kind, name in LENS_NAMES.items():
            if kind not in kinds | {"logit"}:
                which = name if kind == "jacobian" else name.lower()
                self.missing.append(f"No {which} is fitted to these weights here; the tab Fitted lenses fits one.")
        if not fits:
            self._done += SHARES[LENSES]
            return None
        names = ",".join(sorted(fit.path.stem for fit in fits))
        probe = ProbeEntry(name="lenses", fit=names)
        self._measure(LENSES, [self._entry(claims.MODEL, self.asked.precision)], [probe])
        return open_folder(self.out / LENSES), fits

    def precisions(self) -> tuple[Folder | None, tuple[str, ...]]:
        """The three rules in other precisions, and which of those there are."""
        own = self.spec.precision
        wanted = [name for name in dict.fromkeys(sizes.PRECISIONS[name] for name in self.asked.others) if name != own]
        if not wanted or sizes.stored_precision(config_of(self.spec)):
            self.missing += ["The checkpoint is stored quantized, so it has no other precision."] if wanted else []
            return None, ()
        probes = [ProbeEntry(name="contributions"), ProbeEntry(name="logit_lens")]
        failed = self._measure(PRECISIONS, [self._entry(name, name) for name in wanted], probes)
        self.missing += [f"In {name} nothing was measured: {why}" for name, why in failed.items()]
        return open_folder(self.out / PRECISIONS), tuple(name for name in wanted if name not in failed)

    def named_sinks(self, model: Any, used: Sequence[sets.Example]) -> str:
        """The sinks of the first prompts, and who writes them."""
        from ..work import compute

        probe = Contributions()
        results = [compute.run(model, probe.request(self.spec, e.prompt)) for e in used[:NAMED]]
        return sinks.summary([sinks.of_result(result) for result in results])

    def _entry(self, label: str, precision: str) -> ModelEntry:
        return ModelEntry(source=self.asked.model, precision=precision, adapter=self.asked.adapter, label=label)

    def _measure(self, name: str, models: list[ModelEntry], probes: list[ProbeEntry]) -> Mapping[str, str]:
        study = Study(name=name, models=tuple(models), probes=tuple(probes), sets=(self.entry,), seed=self.asked.seed)
        start = self._done
        self._done += SHARES[name]
        try:
            return claims.measure(
                study,
                self.out / name,
                self.asked.device,
                lambda share: self.tell(start + SHARES[name] * share, name),
                engine=self.engine,
            )
        except StudyError:
            raise
        except EffectiveDepthError as error:
            raise CardError(f"The card's {name} cannot be measured: {error}") from error


def _model(spec: ModelSpec) -> card.Model:
    size = sizes.read(config_of(spec))
    return card.Model(
        name=spec.name,
        family=size.family,
        layers=size.n_layers,
        passes=size.passes,
        width=size.d_model,
        mlp=size.d_mlp,
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


def _identities(model: Any) -> card.Identities:
    found = model.identities
    return card.Identities(
        **found.to_json(),
        tokens=found.n_tokens,
        miss_limit=found.miss_limit,
        slope_limit=found.slope_limit,
        failures=tuple(found.failures()),
    )


def _set(name: str, used: Sequence[sets.Example]) -> card.PromptSet:
    return card.PromptSet(
        name=name,
        digest=digest_of_prompts([e.prompt for e in used]),
        n=len(used),
        answers=all(e.prompt.answer for e in used),
        levels=tuple(dict.fromkeys(e.level for e in used if e.level)),
        prompts=tuple(card.Asked(text=e.prompt.text, answer=e.prompt.answer, level=e.level) for e in used),
    )
