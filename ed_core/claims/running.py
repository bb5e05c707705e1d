"""Claims measured: one study, off which all of them are read, and the losses with maps in the layers' place. A run
resumes where it was stopped."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

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
from ..studies.part import Part
from ..studies.study import ModelEntry, ProbeEntry, SetEntry, Study, nearest
from ..studies.study import read as read_study
from ..types import changed, command_line
from ..work.resolve import resolve
from ..work.turn import Turn
from . import CLAIMS, find, words
from .claim import Claim, Evidence, Measured, Sized, adjusted
from .record import KIND, Report

MODEL, TWIN, REPLACEMENT = "model", "untrained copy", "replacement"
TWINS = (TWIN, *(f"{TWIN} {i}" for i in range(1, 5)))  # by the seed of their weights
WORKED, ANSWERED = "_worked", " answered"  # set of the same tasks worked out; the prompts with a known answer
FOUND, REPORT = "claims.json", "claims.md"
LENSES = "lenses"  # the probe of fitted lenses
REPLACED, MAPS = 100, 3  # prompts of the maps in the layers' place; raise when their losses are computed otherwise


@dataclass(frozen=True)
class Taken:
    """How one part of the evidence is measured: its probe, on how many prompts, with which parameters. `answered`: it
    needs known answers; `worked`: it is measured on the worked-out counterpart of the set."""

    probe: str
    prompts: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    answered: bool = False
    worked: bool = False


PARTS = {
    "contributions": Taken("contributions", 50),
    "logit_lens": Taken("logit_lens", 50),
    "turns": Taken("turns", 30),
    "one": Taken("prune", 30),
    "stretch": Taken("prune", 30),  # over a quarter of the layers
    "future": Taken("layer_skip", 40, {"mode": "future"}),
    "answers": Taken("answers", 50, answered=True),
    "two": Taken("exact_answers", 40, {"n": 2}, answered=True),
    "writing": Taken("generation", 50, {"n_tokens": 16}, answered=True),
    "patching": Taken("patching", 40, answered=True),
    "worked": Taken("exact_answers", 40, worked=True),
    "worked_two": Taken("exact_answers", 40, {"n": 2}, worked=True),
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
    name: ClassVar[str] = "claims"  # of the command, and its options
    options: ClassVar[Mapping[str, str]] = {"prompts": "set", "claims": "claim", "most": "prompts"}

    @property
    def set_name(self) -> str:
        """The name of the prompt set in the study: the bundled set's, or the file's without its ending."""
        name = self.prompts if self.prompts in set_names() else Path(self.prompts).stem
        return re.sub(r"[^\w.,+ -]", "-", name).strip(" -.")[:70] or "prompts"

    @property
    def counterpart(self) -> str:
        """The bundled set of the same tasks worked out step by step; "" for none."""
        other = f"{self.prompts}{WORKED}"
        return other if other in set_names() else ""

    @property
    def command(self) -> str:
        """The command line that makes the run again; a file by its name only, a list of precisions with commas."""
        options = changed(self) | {"prompts": self.prompts if self.prompts in set_names() else Path(self.prompts).name}
        if "others" in options:
            options["others"] = ",".join(options["others"])
        named = {self.options.get(name, name): value for name, value in options.items()}
        return command_line(self.name, **named, out="FOLDER")

    def capped(self, n: int) -> int:
        """Return `n`, or `most` where that is given and smaller."""
        return min(n, self.most) if self.most else n

    def entry(self, n: int = 0, levels: int = 0, **more: Any) -> SetEntry:
        """Return the study's entry of the set: its first `n` prompts (0: all), divided evenly over `levels` levels (0:
        as they come). `more`: further fields. `StudyError` where the set is unknown."""
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

    def load(self, n: int = 0, levels: int = 0) -> sets.PromptSet:
        """Return the whole set, or its first `n` prompts, divided evenly over `levels` levels."""
        return sets.load(self.entry(n, levels), Path(), self.model)

    def ref(self, source: str = "", control: str = "") -> ModelRef:
        """Return the reference of the model, or of the one called `source`, or of its copy of the kind `control`."""
        adapter = "" if source else self.adapter
        return resolve(source or self.model, self.precision, self.device, adapter, control)

    def chosen(self) -> list[Claim]:
        """Return the claims to check: those that are named, else all."""
        return [find(name) for name in dict.fromkeys(self.claims)] or list(CLAIMS)


@dataclass(frozen=True)
class Measurement:
    """What was measured: one study in the folder `out`, and the losses with linear maps in place of layers. `whole`:
    the whole set; `examples`: those that were taken, by set. `bare`: the evidence without its parts; `replaced`: the
    losses with maps by label. `troubles`: why a label, or its maps, could not be measured."""

    asked: Asked
    out: Path
    spec: ModelRef
    whole: sets.PromptSet
    examples: Mapping[str, Sequence[sets.Example]]
    bare: Evidence
    replaced: Mapping[str, Part]
    troubles: Mapping[str, str]

    @cached_property
    def folder(self) -> Folder:
        """The opened folder of the study."""
        return open_folder(self.out)

    @property
    def about(self) -> str:
        """A digest of model, prompts and settings: findings of runs with the same digest go into one report."""
        versions = {taken.probe: find_probe(taken.probe).version for taken in PARTS.values()}
        prompts, setup = digest_of_prompts([e.prompt for e in self.whole.examples]), self.asked
        return digest_of(KIND.version, self.spec.identity(), prompts, setup.also, setup.most, setup.seed, versions)

    def part(self, name: str, label: str = MODEL) -> Part | None:
        """Return one part of the evidence on the model `label`; None where nothing was measured. `name`: one of
        `PARTS`, `REPLACEMENT`, or another probe's column."""
        if name == REPLACEMENT:
            return self.replaced.get(label)
        taken = PARTS.get(name, Taken(name, 0))
        set_name = _set_of(taken, self.asked, self.folder.sets)
        if label not in self.folder.models or set_name not in self.folder.sets:
            return None
        part = self.folder.read(label, set_name, name)
        if not len(part):
            return None
        if taken.answered or taken.worked:
            answers = [self.examples[set_name][i].prompt.answer for i in part.index]
            lengths = np.array([len(answer.strip()) for answer in answers])
            part = replace(part, columns={**part.columns, "answer_length": lengths})
        return part

    def evidence(self, label: str) -> Evidence:
        """Return everything that was measured of the model `label`: `MODEL`, or `TWIN` for its untrained copy."""
        every = {name: self.part(name, label) for name in (*PARTS, REPLACEMENT)}
        parts = {name: part for name, part in every.items() if part is not None}
        evidence = replace(self.bare, parts=parts, trouble=self.troubles.get(label, ""))
        if label != MODEL:
            return evidence
        twins = tuple(part for twin in TWINS if (part := self.part("contributions", twin)) is not None)
        family = []
        for other, model in self.folder.models.items():
            same = not model.get("control") and model.get("precision") == self.spec.precision
            if same and (lens := self.part("logit_lens", other)) is not None:
                name = self.spec.name if other == MODEL else other
                family.append(Sized(name, model.get("parameters"), int(model["n_layers"]), lens))
        return replace(evidence, twins=twins, family=tuple(family))


def _set_of(taken: Taken, asked: Asked, names: Collection[str]) -> str:
    """Return the name of the set that a part is measured on: the worked-out counterpart, the set's prompts with a known
    answer where only some have one, else the set."""
    if taken.worked:
        return asked.counterpart
    answered = f"{asked.set_name}{ANSWERED}"
    return answered if taken.answered and answered in names else asked.set_name


def measure(
    asked: Asked,
    out: Path,
    claims: Sequence[Claim],
    turn: Turn,
    more: Collection[str] = (),
    others: Sequence[str] = (),
    fits: str = "",
) -> Measurement:
    """Measure what the claims lack in the folder `out`, and return everything measured. `more`: parts that no claim
    needs; `others`: precisions that the rules are read in too; `fits`: fitted lenses, by the names of their files.
    Raises `ClaimRefused` where the set is too small, `StudyError` where the model cannot be measured."""
    spec = asked.ref()
    _require_family(asked, spec)
    full_set = asked.load()
    n = asked.capped(len(full_set.examples))
    if not units(n, [e.form for e in full_set.examples[:n]]).enough:
        raise ClaimRefused(
            f"The set {asked.set_name} gives {n} prompts, and an interval needs {FEWEST} at least (or {FEWEST_FORMS} "
            "of different forms); take more of them, or a larger set."
        )
    if spec.n_layers is None:
        raise StudyError(f"The config of {spec.name} gives no number of layers; name another model.")
    answers = sum(bool(e.prompt.answer) for e in full_set.examples)
    bare = Evidence(
        spec.n_layers,
        {},
        answers=answers >= FEWEST or answers == len(full_set.examples),
        level_names=full_set.levels,
        models=1 + len(asked.also),
        worked=bool(asked.counterpart),
        passes=spec.n_passes or 1,
    )
    needed = {part for claim in claims if not claim.refusal(bare) for part in claim.parts} | set(more)
    plan = _plan(_study(asked, needed, full_set, spec.n_layers, others, fits), out, asked.device)
    planning.write_plan(plan, out)
    share = 0.9 if REPLACEMENT in needed else 1.0
    outcome = running.run(plan, out, turn, lambda done, label: turn.tell(share * done, label))
    if MODEL in outcome.failed:
        raise StudyError(f"{spec.name} cannot be measured: {outcome.failed[MODEL]}")
    tables.store(open_folder(out))
    replaced: dict[str, Part] = {}
    for i, label in enumerate((MODEL, TWIN) if REPLACEMENT in needed else ()):

        def within(done: float, i: int = i) -> None:
            turn.tell(share + (1 - share) * (i + done) / 2, "maps in the layers' place")

        try:
            replaced[label] = _replaced(asked, out, label, turn.models, within)
        except (StudyError, OSError):
            raise
        except EffectiveDepthError as error:
            outcome.failed[f"{label}/{REPLACEMENT}"] = str(error)
    examples = {one.name: one.examples for one in plan.sets}
    return Measurement(asked, out, spec, full_set, examples, bare, replaced, outcome.failed)


def _study(
    asked: Asked, needed: Collection[str], whole: sets.PromptSet, layers: int, others: Sequence[str], fits: str
) -> Study:
    """Return the study that measures the parts `needed`, all but the maps, of a model with so many `layers`."""
    levels, answers = len(whole.levels), sum(bool(e.prompt.answer) for e in whole.examples)
    most = asked.capped(max(taken.prompts for taken in PARTS.values()))
    entries = [asked.entry(most, levels)]
    if 0 < answers < len(whole.examples):
        entries.append(asked.entry(most, levels, name=f"{asked.set_name}{ANSWERED}", answered=True))
    if asked.counterpart:
        worked = asked.entry(asked.capped(PARTS["worked"].prompts), levels)
        entries.append(worked.model_copy(update={"name": asked.counterpart, "bundled": asked.counterpart}))
    of_model = partial(ModelEntry, source=asked.model, adapter=asked.adapter)
    models = [of_model(label=MODEL, precision=asked.precision)]
    for seed, label in enumerate(TWINS):
        models.append(of_model(label=label, precision=asked.precision, control="untrained", seed=seed))
    models += [of_model(label=name, precision=name) for name in others]
    family = [ModelEntry(source=source, precision=asked.precision, label=Path(source).name) for source in asked.also]
    compared = (*others, *(one.label for one in family))
    takers = {"contributions": (MODEL, *TWINS, *compared), "logit_lens": (MODEL, TWIN, *compared)}
    extra: dict[str, dict[str, Any]] = {
        "stretch": {"n": max(1, round(layers / 4))},
        "future": {"boundaries": "answer"} if answers == len(whole.examples) else {},
    }
    probes = [
        ProbeEntry(
            name=taken.probe,
            label="" if name == taken.probe else name,
            limit=math.ceil(asked.capped(taken.prompts) / max(levels, 1)),
            models=takers.get(name, (MODEL, TWIN)),
            sets=(_set_of(taken, asked, [one.name for one in entries]),),
            **taken.parameters,
            **extra.get(name, {}),
        )
        for name, taken in PARTS.items()
        if name in needed
    ]
    if fits:
        probes.append(ProbeEntry(name=LENSES, models=(MODEL,), sets=(asked.set_name,), fit=fits))
    return Study(
        name=asked.set_name, models=(*models, *family), probes=tuple(probes), sets=tuple(entries), seed=asked.seed
    )


def _plan(study: Study, out: Path, device: str) -> planning.Plan:
    """Return the plan of the study, or of an earlier one in the folder `out` that includes it and is complete."""
    with contextlib.suppress(StudyError):
        earlier = read_study(out / planning.STUDY)
        same = (earlier.models, earlier.sets, earlier.seed) == (study.models, study.sets, study.seed)
        if same and {entry.column for entry in study.probes} <= {entry.column for entry in earlier.probes}:
            plan = planning.make(earlier, Path(), device)
            if not running.missing(plan, out):
                return plan
    return planning.make(study, Path(), device)


def _replaced(asked: Asked, out: Path, label: str, opened: Any, within: Callable[[float], None]) -> Part:
    """Return the losses with linear maps in place of layers, kept from run to run. `within`: gets the share done."""
    from ..lenses import replacement

    spec = asked.ref(control="" if label == MODEL else "untrained")
    examples = asked.load(asked.capped(REPLACED), len(asked.load().levels)).examples
    prompts = [e.prompt for e in examples]
    key = digest_of(REPLACEMENT, MAPS, spec.identity(), digest_of_prompts(prompts))
    kept = Checkpoint(out / f"{REPLACEMENT}-{key[:16]}.npz", key)
    if not (columns := kept.read()):
        columns = replacement.by_prompt(opened.get(spec), prompts, within)
        kept.write(columns)
    index = np.asarray(columns["index"], int)
    forms = tuple(prompts[i].form for i in index)
    columns = {name: values for name, values in columns.items() if name != "index"}
    return Part(columns, index=index, forms=forms, seed=asked.seed)


def run(asked: Asked, out: Path, turn: Turn) -> Report:
    """Measure what is missing, judge the claims together with those of earlier runs on the same model and prompts,
    write both files into `out`, and return the report. A claim that does not apply says so; what makes all of them
    impossible is refused."""
    claims = asked.chosen()
    measured = measure(asked, out, claims, turn)
    report = _with_earlier(judged(measured, claims), asked, out)
    report = report.but(findings=adjusted(report.findings))
    turn.tell(1.0)
    write(report, out)
    return report


def judged(m: Measurement, claims: Sequence[Claim]) -> Report:
    """Return the report on the claims, each judged without the others."""
    mine, twin = m.evidence(MODEL), m.evidence(TWIN)
    without_maps = m.troubles.get(f"{MODEL}/{REPLACEMENT}", "")
    findings = []
    for claim in claims:
        measured, control = _measured(claim, mine), _measured(claim, twin) if claim.twin else None
        if isinstance(measured, str) and without_maps and REPLACEMENT in claim.parts:
            measured = without_maps
        findings.append(claim.finding(measured, control if isinstance(control, Measured) else None))
    return Report(
        about=m.about,
        model=m.spec.name,
        precision=m.spec.precision,
        set=m.asked.set_name,
        prompts=len(m.whole.examples),
        command=m.asked.command,
        findings=tuple(findings),
    )


def _measured(claim: Claim, evidence: Evidence) -> Measured | str:
    """Return the estimates of a claim, or a sentence why it cannot be answered."""
    try:
        return claim.of(evidence)
    except ClaimRefused as error:
        return str(error)


def read(out: Path) -> Report:
    """Return the report of an earlier run in `out`; `StudyError` where it is damaged, `OSError` where it is missing."""
    with open_sealed(out / FOUND, KIND) as sealed:
        return sealed.head


def write(report: Report, out: Path) -> None:
    """Write the report of a run into `out` as JSON and as Markdown."""
    with planning.writing(out):
        disk.write(out / FOUND, seal(KIND, report.fields()))
        disk.write(out / REPORT, words.markdown(report).encode())


def _with_earlier(report: Report, asked: Asked, out: Path) -> Report:
    """Return the report with the findings of earlier runs in `out` on the same model and prompts added."""
    try:
        earlier = read(out)
    except (StudyError, OSError):
        return report
    if earlier.about != report.about:
        return report
    by_id = {one.id: one for one in (*earlier.findings, *report.findings)}
    findings = tuple(by_id[claim.id] for claim in CLAIMS if claim.id in by_id)
    names = () if len(findings) == len(CLAIMS) else tuple(one.id for one in findings)
    return report.but(findings=findings, command=replace(asked, claims=names).command)


def _require_family(asked: Asked, spec: ModelRef) -> None:
    """Raise `StudyError` where a further model (`--also`) is of another family."""
    own = spec.config().get("model_type", "")
    for source in asked.also:
        other = asked.ref(source).config().get("model_type", "")
        if other != own:
            raise StudyError(
                f"{source} is of the family {other or 'unknown'} and {spec.name} of {own or 'unknown'}; name models of "
                "one family."
            )
