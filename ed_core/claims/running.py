"""Claims measured: one study holds what all of them are read off, next to the losses with maps in the layers' place. It
resumes where it was stopped."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import disk
from ..errors import ClaimRefused, EffectiveDepthError, StudyError
from ..files import open_sealed, seal
from ..lenses.checkpoint import Checkpoint, digest_of, digest_of_prompts
from ..models.bundled import set_names
from ..models.ref import ModelRef
from ..probes import find as find_probe
from ..statistics import FEWEST, FEWEST_FORMS, units
from ..studies import plan as planning
from ..studies import running, sets, tables
from ..studies.items import Folder, open_folder
from ..studies.study import ModelEntry, ProbeEntry, SetEntry, Study, nearest
from ..studies.study import read as read_study
from ..types import ModelSpec, changed, command_line
from ..work.resolve import settle
from ..work.turn import Turn
from . import CLAIMS, words
from .claim import Claim
from .evidence import Evidence, Measured, Part, Sized
from .record import KIND, Report

MODEL, TWIN, REPLACEMENT = "model", "untrained twin", "replacement"
TWINS = (TWIN, *(f"{TWIN} {i}" for i in range(1, 5)))  # by the seed of their weights
WORKED, ANSWERED = "_worked", " answered"  # set of the same tasks worked out; the prompts with a known answer
FOUND, REPORT = "claims.json", "claims.md"
REPLACED, LENSES = 100, "lenses"  # prompts of the maps in the layers' place; the probe of fitted lenses
Tell = Callable[[float, str], None]
"""Gets the share that is done, and of what."""


@dataclass(frozen=True)
class Taken:
    """A part of what is measured: its probe, on how many prompts, with which parameters; `answered`: it needs known
    answers; `worked`: it is measured on the worked-out counterpart of the set."""

    probe: str
    prompts: int
    parameters: Callable[[int, bool], dict[str, Any]] = lambda layers, answers: {}
    answered: bool = False
    worked: bool = False


PARTS = {
    "contributions": Taken("contributions", 50),
    "logit_lens": Taken("logit_lens", 50),
    "turns": Taken("turns", 30),
    "one": Taken("prune", 30),
    "stretch": Taken("prune", 30, lambda layers, answers: {"n": max(1, round(layers / 4))}),
    "future": Taken("layer_skip", 40, lambda _, a: {"mode": "future"} | ({"boundaries": "answer"} if a else {})),
    "answers": Taken("answers", 50, answered=True),
    "two": Taken("exact_answers", 40, lambda layers, answers: {"n": 2}, answered=True),
    "writing": Taken("generation", 50, lambda layers, answers: {"n_tokens": 16}, answered=True),
    "worked": Taken("exact_answers", 40, worked=True),
    "worked_two": Taken("exact_answers", 40, lambda layers, answers: {"n": 2}, worked=True),
}


@dataclass(frozen=True)
class Asked:
    """Which claims of which model on which prompts. `prompts`: a bundled set's name, or a file; `also`: further models
    of its family; `most`: prompts of any part at most, 0 for what the protocols say."""

    model: str
    prompts: str
    claims: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    precision: str = "fp32"
    device: str = "cpu"
    adapter: str = ""
    most: int = 0
    seed: int = 0

    @property
    def set_name(self) -> str:
        name = self.prompts if self.prompts in set_names() else Path(self.prompts).stem
        return re.sub(r"[^\w.,+ -]", "-", name).strip(" -.")[:70] or "prompts"

    @property
    def counterpart(self) -> str:
        """The bundled set of the same tasks worked out step by step; "" where there is none."""
        other = f"{self.prompts}{WORKED}"
        return other if other in set_names() else ""

    @property
    def command(self) -> str:
        """The command that makes it again; a file by its name alone."""
        given = changed(self) | {"prompts": named(self.prompts)}
        names = {"prompts": "set", "claims": "claim", "most": "prompts"}
        return command_line("claims", **{names.get(name, name): value for name, value in given.items()}, out="FOLDER")

    @property
    def spec(self) -> ModelRef:
        return self.ref()

    def capped(self, n: int) -> int:
        return min(n, self.most) if self.most else n

    def entry(self, n: int = 0, levels: int = 0, **more: Any) -> SetEntry:
        """The set, of which the first `n` prompts are taken: as many of each of its `levels`."""
        some: dict[str, Any] = {"per_level": math.ceil(n / levels)} if levels and n else {"limit": n} if n else {}
        some = {"name": self.set_name} | some | more
        if self.prompts in set_names():
            return SetEntry(bundled=self.prompts, **some)
        file = Path(self.prompts).expanduser().resolve()
        if not file.is_file():
            raise StudyError(
                f"There is no prompt set {self.prompts!r}: no file of that path, and of the bundled ones "
                f"{nearest(self.prompts, set_names())}"
            )
        return SetEntry(file=str(file), **some)

    def ref(self, source: str = "", control: str = "") -> ModelRef:
        """The model, or the one called `source`, or a twin of it."""
        adapter = "" if source else self.adapter
        return settle(ModelRef.parse(source or self.model, self.precision, self.device, adapter, control=control))

    def chosen(self) -> list[Claim]:
        from . import find

        return [find(name) for name in dict.fromkeys(self.claims)] or list(CLAIMS)


def named(prompts: str) -> str:
    """A prompt set as a command that others run names it: a file by its name alone."""
    return prompts if prompts in set_names() else Path(prompts).name


@dataclass(frozen=True)
class Measurement:
    """What was measured: one study in the folder `out`, and the losses with maps in the layers' place. `whole`: the
    whole set; `examples`: those that were taken, by set. `fitted`: those losses by label. `troubles`: why a label, or
    its maps, could not be measured."""

    asked: Asked
    out: Path
    spec: ModelSpec
    whole: sets.PromptSet
    examples: Mapping[str, Sequence[sets.Example]]
    bare: Evidence
    fitted: Mapping[str, Part]
    troubles: Mapping[str, str]

    @cached_property
    def folder(self) -> Folder:
        return open_folder(self.out)

    @property
    def about(self) -> str:
        """A digest of model, prompts and settings."""
        versions = {taken.probe: find_probe(taken.probe).version for taken in PARTS.values()}
        prompts = digest_of_prompts([e.prompt for e in self.whole.examples])
        asked = self.asked
        return digest_of(KIND.version, self.spec.identity(), prompts, asked.also, asked.most, asked.seed, versions)

    def part(self, name: str, label: str = MODEL) -> Part | None:
        """A part's sums of a model; None where nothing was measured."""
        if name == REPLACEMENT:
            return self.fitted.get(label)
        taken = PARTS.get(name, Taken(name, 0))
        set_name = (
            self.asked.counterpart if taken.worked else _answered(self) if taken.answered else self.asked.set_name
        )
        if label not in self.folder.models or set_name not in self.folder.sets:
            return None
        some = self.folder.sums(label, set_name)
        columns, ran = some.probe(name), some.ran(name)
        if not columns:
            return None
        one = self.folder.sets[set_name]
        levels, pairs = (tuple(str(one[of][i]) for i in ran) if one[of] else () for of in ("levels", "pairs"))
        forms = tuple(map(str, self.folder.forms(set_name)[ran]))
        if taken.answered or taken.worked:
            examples = self.examples[set_name]
            columns["answer_length"] = np.array([len(examples[i].prompt.answer.strip()) for i in ran])
        return Part(columns, levels, pairs, ran, forms)

    def evidence(self, label: str) -> Evidence:
        """Everything that was measured of the model, or of its twin."""
        found = {name: self.part(name, label) for name in (*PARTS, REPLACEMENT)}
        parts = {name: part for name, part in found.items() if part is not None}
        evidence = replace(self.bare, parts=parts, trouble=self.troubles.get(label, ""))
        if label != MODEL:
            return evidence
        twins = [part for twin in TWINS if (part := self.part("contributions", twin)) is not None]
        return replace(evidence, twins=tuple(twins), family=tuple(self._family()))

    def _family(self) -> list[Sized]:
        found = []
        for label, model in self.folder.models.items():
            known = not model.get("control") and model.get("precision") == self.spec.precision
            lens = self.part("logit_lens", label) if known else None
            if lens is not None:
                name = self.spec.name if label == MODEL else label
                found.append(Sized(name, model.get("parameters"), int(model["n_layers"]), lens))
        return found


def _answered(m: Measurement) -> str:
    """The set of the prompts with a known answer: the set itself where all have one."""
    name = f"{m.asked.set_name}{ANSWERED}"
    return name if name in m.folder.sets else m.asked.set_name


def measure(
    asked: Asked,
    out: Path,
    claims: Sequence[Claim],
    tell: Tell = lambda share, what: None,
    more: Collection[str] = (),
    engine: running.MakesEngine | None = None,
    others: Sequence[str] = (),
    fits: str = "",
    opened: Any = None,
) -> Measurement:
    """Measure what is missing. `more`: parts that no claim needs; `others`: precisions that the rules are read in too;
    `fits`: fitted lenses, by the names of their files. `engine`: who computes, this process unless given;
    `opened`: its models, where it has some."""
    spec = asked.spec
    _same_family(asked, spec)
    whole = sets.load(asked.entry(), Path(), asked.model)
    n = asked.capped(len(whole.examples))
    if not units(n, [e.form for e in whole.examples[:n]]).enough:
        raise ClaimRefused(
            f"The set {asked.set_name} gives {n} prompts, and an interval needs {FEWEST} at least (or {FEWEST_FORMS} "
            "of different forms); take more of them, or a larger set."
        )
    layers = spec.n_layers
    if layers is None:
        raise StudyError(f"How many layers {spec.name} has cannot be read off its config; name another model.")
    answers = sum(bool(e.prompt.answer) for e in whole.examples)
    bare = Evidence(
        layers,
        {},
        answers=answers >= FEWEST or answers == len(whole.examples),
        level_names=whole.levels,
        models=1 + len(asked.also),
        seed=asked.seed,
        worked=bool(asked.counterpart),
        passes=spec.n_passes or 1,
    )
    needed = {part for claim in claims if not _refused(claim, bare) for part in claim.parts} | set(more)
    opened = Turn().models if opened is None else opened
    plan = _plan(_study(asked, needed, whole, layers, others, fits), out, asked.device)
    planning.write_plan(plan, out)
    share = 0.9 if REPLACEMENT in needed else 1.0
    outcome = running.run(
        plan,
        out,
        report=lambda model, done, total: tell(share * done / max(total, 1), model.label),
        engine=engine or partial(running.Here, opened=opened),
    )
    if MODEL in outcome.failed:
        raise StudyError(f"{spec.name} cannot be measured: {outcome.failed[MODEL]}")
    tables.store(open_folder(out))
    fitted: dict[str, Part] = {}
    for i, label in enumerate((MODEL, TWIN) if REPLACEMENT in needed else ()):

        def within(done: float, i: int = i) -> None:
            tell(share + (1 - share) * (i + done) / 2, "maps in the layers' place")

        try:
            fitted[label] = _replaced(asked, out, label, opened, within)
        except (StudyError, OSError):
            raise
        except EffectiveDepthError as error:
            outcome.failed[f"{label}/{REPLACEMENT}"] = str(error)
    examples = {one.name: one.examples for one in plan.sets}
    return Measurement(asked, out, spec, whole, examples, bare, fitted, outcome.failed)


def _study(
    asked: Asked, needed: Collection[str], whole: sets.PromptSet, layers: int, others: Sequence[str], fits: str
) -> Study:
    """The study of all that is measured but the maps in the layers' place."""
    n_levels = max(len(whole.levels), 1)
    answers = sum(bool(e.prompt.answer) for e in whole.examples)
    some = 0 < answers < len(whole.examples)
    with_answers = f"{asked.set_name}{ANSWERED}" if some else asked.set_name
    most = asked.capped(max(taken.prompts for taken in PARTS.values()))
    entries = [asked.entry(most, len(whole.levels))]
    if some:
        entries.append(asked.entry(most, len(whole.levels), name=with_answers, answered=True))
    if asked.counterpart:
        worked = asked.entry(asked.capped(PARTS["worked"].prompts), len(whole.levels))
        entries.append(worked.model_copy(update={"name": asked.counterpart, "bundled": asked.counterpart}))
    of_model = partial(ModelEntry, source=asked.model, adapter=asked.adapter)
    models = [of_model(label=MODEL, precision=asked.precision)]
    models += [
        of_model(label=label, precision=asked.precision, control="untrained", seed=seed)
        for seed, label in enumerate(TWINS)
    ]
    models += [of_model(label=name, precision=name) for name in others]
    family = [ModelEntry(source=source, precision=asked.precision, label=Path(source).name) for source in asked.also]
    sized = tuple(one.label for one in family)
    takers = {"contributions": (MODEL, *TWINS, *others, *sized), "logit_lens": (MODEL, TWIN, *others, *sized)}
    probes = []
    for name, taken in PARTS.items():
        if name not in needed:
            continue
        on = asked.counterpart if taken.worked else with_answers if taken.answered else asked.set_name
        probes.append(
            ProbeEntry(
                name=taken.probe,
                label="" if name == taken.probe else name,
                limit=math.ceil(asked.capped(taken.prompts) / n_levels),
                models=takers.get(name, (MODEL, TWIN)),
                sets=(on,),
                **taken.parameters(layers, answers == len(whole.examples)),
            )
        )
    if fits:
        probes.append(ProbeEntry(name=LENSES, models=(MODEL,), sets=(asked.set_name,), fit=fits))
    return Study(
        name=asked.set_name, models=(*models, *family), probes=tuple(probes), sets=tuple(entries), seed=asked.seed
    )


def _plan(study: Study, out: Path, device: str) -> planning.Plan:
    """The plan of the study, or of an earlier one in this folder that has all of it and is complete."""
    try:
        earlier = read_study(out / planning.STUDY)
    except StudyError:
        return planning.make(study, Path(), device)
    same = (earlier.models, earlier.sets, earlier.seed) == (study.models, study.sets, study.seed)
    if same and {entry.column for entry in study.probes} <= {entry.column for entry in earlier.probes}:
        plan = planning.make(earlier, Path(), device)
        if not running.missing(plan, out):
            return plan
    return planning.make(study, Path(), device)


def _replaced(asked: Asked, out: Path, label: str, opened: Any, within: Callable[[float], None]) -> Part:
    """The losses with maps in the layers' place; read where they were made before."""
    from ..lenses import replacement

    spec = asked.ref(control="" if label == MODEL else "untrained")
    whole = sets.load(asked.entry(), Path(), asked.model)
    entry = asked.entry(asked.capped(REPLACED), len(whole.levels))
    prompts = [e.prompt for e in sets.load(entry, Path(), asked.model).examples]
    key = digest_of(REPLACEMENT, KIND.version, spec.identity(), digest_of_prompts(prompts))
    kept = Checkpoint(out / f"{REPLACEMENT}-{key[:16]}.npz", key)
    if (columns := kept.read()) is None:
        columns = replacement.by_prompt(opened.get(spec), prompts, within)
        kept.write(columns)
    index = np.asarray(columns["index"], int)
    forms = tuple(prompts[i].form for i in index)
    return Part({name: v for name, v in columns.items() if name != "index"}, index=index, forms=forms)


def run(
    asked: Asked,
    out: Path,
    tell: Tell = lambda share, what: None,
    engine: running.MakesEngine | None = None,
    opened: Any = None,
) -> Report:
    """Measure what is missing, judge the claims together with those of earlier runs on the same model and prompts, and
    write both files. A claim that does not apply says so; what makes all of them impossible is refused."""
    claims = asked.chosen()
    measured = measure(asked, out, claims, tell, engine=engine, opened=opened)
    told = _with_earlier(judged(measured, claims), asked, out)
    told = told.but(findings=words.adjusted(told.findings))
    tell(1.0, "")
    write(told, out)
    return told


def judged(m: Measurement, claims: Sequence[Claim]) -> Report:
    """The claims, each by itself."""
    mine, twin = m.evidence(MODEL), m.evidence(TWIN)
    findings = []
    for claim in claims:
        found, reason = _of(claim, mine, m.troubles.get(f"{MODEL}/{REPLACEMENT}", ""))
        control = _of(claim, twin)[0] if claim.twin else None
        findings.append(words.found(claim, found, reason, control))
    return Report(
        about=m.about,
        model=m.spec.name,
        precision=m.spec.precision,
        set=m.asked.set_name,
        prompts=len(m.whole.examples),
        command=m.asked.command,
        findings=tuple(findings),
    )


def read(out: Path) -> Report | None:
    """What a run wrote; None where there is none. `StudyError` where it is damaged."""
    try:
        with open_sealed(out / FOUND, KIND) as sealed:
            return sealed.head
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StudyError(f"{out / FOUND} cannot be read: {disk.why(error)}") from error


def write(told: Report, out: Path) -> None:
    """The JSON and the report of a run."""
    try:
        disk.write(out / FOUND, seal(KIND, told.fields()))
        disk.write(out / REPORT, words.markdown(told).encode())
    except OSError as error:
        raise StudyError(f"The folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error


def _with_earlier(told: Report, asked: Asked, out: Path) -> Report:
    """The findings, and those of earlier runs on the same model and prompts."""
    try:
        earlier = read(out)
    except StudyError:
        earlier = None
    if earlier is None or earlier.about != told.about:
        return told
    by_id = {one.id: one for one in (*earlier.findings, *told.findings)}
    findings = tuple(by_id[claim.id] for claim in CLAIMS if claim.id in by_id)
    names = () if len(findings) == len(CLAIMS) else tuple(one.id for one in findings)
    return told.but(findings=findings, command=replace(asked, claims=names).command)


def _same_family(asked: Asked, spec: ModelRef) -> None:
    """Refuse models of another family."""
    own = spec.config().get("model_type", "")
    for source in asked.also:
        other = asked.ref(source).config().get("model_type", "")
        if other != own:
            raise StudyError(
                f"{source} is of the family {other or 'unknown'} and {spec.name} of {own or 'unknown'}; name models of "
                "one family."
            )


def _refused(claim: Claim, evidence: Evidence) -> str:
    try:
        claim.check(evidence)
    except ClaimRefused as error:
        return str(error)
    return ""


def _of(claim: Claim, evidence: Evidence, lacking: str = "") -> tuple[Measured | None, str]:
    """What the evidence says of a claim, or why it says nothing. `lacking`: why there are no maps."""
    try:
        return claim.of(evidence), ""
    except ClaimRefused as error:
        return None, lacking if lacking and REPLACEMENT in claim.parts else str(error)
