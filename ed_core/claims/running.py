"""Claims measured: their parts as studies, one probe each, so that one claim and all of them share what is computed and
go on where they were stopped."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import disk
from ..depth.wording import count
from ..errors import ClaimRefused, EffectiveDepthError, StudyError
from ..files import open_sealed, seal
from ..fits.file import Checkpoint, digest_of, digest_of_prompts
from ..models import sizes
from ..models.bundled import set_names
from ..models.specs import config_of, n_layers, n_passes
from ..probes import find as find_probe
from ..statistics import FEWEST, FEWEST_FORMS, units
from ..studies import plan as planning
from ..studies import running, sets
from ..studies.items import open_folder
from ..studies.points import Point, measured_points
from ..studies.study import ModelEntry, ProbeEntry, SetEntry, Study, nearest
from ..types import ModelSpec, changed, command_line
from ..work.resolve import resolve
from ..work.turn import Turn
from . import CLAIMS, finding
from .claim import Claim, Evidence, Measured, Part, part_of
from .finding import Finding
from .record import KIND, Report

MODEL, CONTROL, REPLACEMENT = "model", "untrained twin", "replacement"
TWINS = {CONTROL: 0} | {f"{CONTROL} {i}": i for i in range(1, 5)}  # of the contributions, by the seed of their weights
WORKED = "_worked"  # how the set is called whose answers are worked out step by step
FOUND, REPORT = "claims.json", "claims.md"
AHEAD = 0.9  # of the time, about: what all parts share their traced passes in
Tell = Callable[[float, str], None]
"""Told the share that is done, and of what."""


@dataclass(frozen=True)
class Taken:
    """A part: which probe, on how many prompts, with which parameters for a model of so many layers; `worked`: on the
    set's worked-out counterpart."""

    probe: str
    prompts: int
    parameters: Callable[[int, bool], dict[str, Any]] = lambda layers, answers: {}
    worked: bool = False


def _split(layers: int, answers: bool) -> dict[str, Any]:
    return {"mode": "future"} | ({"boundaries": "answer"} if answers else {})


PARTS = {
    "contributions": Taken("contributions", 50),
    "logit_lens": Taken("logit_lens", 50),
    "answers": Taken("answers", 50),
    "turns": Taken("turns", 30),
    "one": Taken("prune", 30),
    "stretch": Taken("prune", 30, lambda layers, answers: {"n": max(1, round(layers / 4))}),
    "future": Taken("layer_skip", 40, _split),
    "writing": Taken("generation", 50, lambda layers, answers: {"n_tokens": 16}),
    "two": Taken("exact_answers", 40, lambda layers, answers: {"n": 2}),
    "worked": Taken("exact_answers", 40, worked=True),
    "worked_two": Taken("exact_answers", 40, lambda layers, answers: {"n": 2}, worked=True),
    REPLACEMENT: Taken("", 100),
}
ANSWERED = ("answers", "two", "worked", "worked_two")  # parts that know how long each answer is
NEED_ANSWERS = (*ANSWERED, "writing")  # parts of prompts with a known answer
OF_FAMILY = ("contributions", "logit_lens")  # parts that further models of the family go through


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
        return re.sub(r"[^\w.,+ -]", "-", name).strip(" -.")[:80] or "prompts"

    @property
    def counterpart(self) -> str:
        """The bundled set of the same tasks worked out step by step; "" where there is none."""
        other = f"{self.prompts}{WORKED}"
        return other if other in set_names() else ""

    @property
    def command(self) -> str:
        """What makes it again; a file by its name alone."""
        given = changed(self) | {"prompts": named(self.prompts)}
        names = {"prompts": "set", "claims": "claim", "most": "prompts"}
        return command_line("claims", **{names.get(name, name): value for name, value in given.items()}, out="FOLDER")

    def entry(self, n: int = 0, levels: int = 0, worked: bool = False, answered: bool = False) -> SetEntry:
        """The set, or its worked-out counterpart, of which the first `n` prompts are taken: as many of each of its
        `levels`. `answered`: of those with a known answer alone."""
        n = min(n, self.most) if self.most and n else n
        some: dict[str, Any] = {"per_level": math.ceil(n / levels)} if levels and n else {"limit": n} if n else {}
        some |= {"answered": True} if answered else {}
        if worked:
            return SetEntry(name=self.counterpart, bundled=self.counterpart, **some)
        if self.prompts in set_names():
            return SetEntry(name=self.set_name, bundled=self.prompts, **some)
        file = Path(self.prompts).expanduser().resolve()
        if not file.is_file():
            raise StudyError(
                f"There is no prompt set {self.prompts!r}: no file of that path, and of the bundled ones "
                f"{nearest(self.prompts, set_names())}"
            )
        return SetEntry(name=self.set_name, file=str(file), **some)

    def chosen(self) -> list[Claim]:
        from . import find

        return [find(name) for name in dict.fromkeys(self.claims)] or list(CLAIMS)


def named(prompts: str) -> str:
    """A prompt set as a command that others run names it: a file by its name alone."""
    return prompts if prompts in set_names() else Path(prompts).name


def run(
    asked: Asked,
    out: Path,
    tell: Tell = lambda share, what: None,
    more: Collection[str] = (),
    engine: running.MakesEngine | None = None,
    opened: Any = None,
) -> Report:
    """Measure what is missing, judge the claims, and write both files; returns the report. A claim that does
    not apply is told; what makes all of them impossible is refused. `more`: parts that are measured even where no
    claim needs them. `engine`: who computes, this process unless given; `opened`: its models, where it has some."""
    spec = resolve(asked.model, asked.precision, asked.device, asked.adapter)
    _same_family(asked, spec)
    claims, whole = asked.chosen(), sets.load(asked.entry(), Path(), asked.model)
    n = min(len(whole.examples), asked.most or len(whole.examples))
    forms = [e.form for e in whole.examples[:n]]
    if not units(n, forms).enough:
        raise ClaimRefused(
            f"The set {asked.set_name} gives {count(n, 'prompt')}, and an interval needs {FEWEST} at least (or "
            f"{FEWEST_FORMS} of different forms); take more of them, or a larger set."
        )
    layers = n_layers(spec)
    if layers is None:
        raise StudyError(f"How many layers {spec.name} has cannot be read off its config; name another model.")
    prompts = [e.prompt for e in whole.examples]
    versions = {taken.probe: find_probe(taken.probe).version for taken in PARTS.values() if taken.probe}
    made_of = [spec.identity(), digest_of_prompts(prompts), asked.also, asked.most, asked.seed, versions]
    about = digest_of(finding.FORMAT, *made_of)
    bare = Evidence(
        layers,
        {},
        all(p.answer for p in prompts),
        whole.levels,
        (spec.name, *asked.also),
        seed=asked.seed,
        worked=bool(asked.counterpart),
        answered=sum(bool(p.answer) for p in prompts) >= FEWEST,
        passes=n_passes(spec) or 1,
        d_vocab=sizes.read(config_of(spec)).d_vocab,
    )
    refused = {claim.id: why for claim in claims if (why := _why_not(claim, bare))}
    needed = {part for claim in claims if claim.id not in refused for part in claim.parts} | set(more)
    parts = [name for name in PARTS if name in needed]
    run_parts = _Parts(asked, out, bare, engine, Turn().models if opened is None else opened)
    run_parts.ahead([name for name in parts if name != REPLACEMENT], lambda share, what: tell(AHEAD * share, what))
    for i, name in enumerate(parts):
        called = PARTS[name].probe or name

        def share(within: float, i: int = i, called: str = called) -> None:
            tell(AHEAD + (1 - AHEAD) * (i + within) / len(parts), called)

        share(0.0)
        run_parts.compute(name, share)
    mine, twins = (run_parts.evidence(label, needed) for label in (MODEL, CONTROL))
    findings = [
        Finding(claim, spec.name, asked.set_name, None, refused[claim.id])
        if claim.id in refused
        else _finding(claim, spec.name, asked.set_name, mine, twins)
        for claim in claims
    ]
    told = Report(
        about=about,
        model=spec.name,
        precision=spec.precision,
        set=asked.set_name,
        prompts=len(prompts),
        command=asked.command,
        findings=tuple(one.told() for one in findings),
    )
    told = _with_earlier(told, asked, out)
    told = told.but(findings=finding.adjusted(told.findings))
    tell(1.0, "")
    write(told, out)
    return told


def read(out: Path) -> Report | None:
    """What a run wrote; None where there is none. `StudyError` where it is damaged."""
    try:
        with open_sealed(out / FOUND, KIND) as sealed:
            return sealed.head
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StudyError(f"{out / FOUND} cannot be read: {disk.why(error)}") from error


def _with_earlier(told: Report, asked: Asked, out: Path) -> Report:
    """Beside these findings those of earlier runs on the same model and prompts."""
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


def write(told: Report, out: Path) -> None:
    """The JSON and the report of a run."""
    try:
        disk.write(out / FOUND, seal(KIND, told.fields()))
        disk.write(out / REPORT, finding.markdown(told).encode())
    except OSError as error:
        raise StudyError(f"The folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error


def _same_family(asked: Asked, spec: ModelSpec) -> None:
    """Refuse models beside this one that are of another family."""
    own = config_of(spec).get("model_type", "")
    for source in asked.also:
        other = config_of(resolve(source, asked.precision, asked.device)).get("model_type", "")
        if other != own:
            raise StudyError(
                f"{source} is of the family {other or 'unknown'} and {spec.name} of {own or 'unknown'}; name models of "
                "one family beside each other."
            )


def _why_not(claim: Claim, evidence: Evidence) -> str:
    try:
        claim.check(evidence)
    except ClaimRefused as error:
        return str(error)
    return ""


def _finding(claim: Claim, model: str, name: str, mine: Evidence, twins: Evidence) -> Finding:
    def measured(evidence: Evidence) -> tuple[Measured | None, str]:
        try:
            return claim.of(evidence), ""
        except ClaimRefused as error:
            return None, str(error)

    found, reason = measured(mine)
    if not claim.control:
        return Finding(claim, model, name, found, reason, None, "it would take the twins of all models.")
    control, refused = measured(twins)
    return Finding(claim, model, name, found, reason, control, refused and of_the_twin(refused))


def of_the_twin(refused: str) -> str:
    """Why there is no control, of what its refusal says of a model: a larger set would not help it."""
    why = refused.partition(";")[0].rstrip(".")
    return f"the untrained twin was refused ({why[:1].lower()}{why[1:]})."


def measure(
    study: Study,
    place: Path,
    device: str,
    share: Callable[[float], None],
    engine: running.MakesEngine = running.Here,
) -> Mapping[str, str]:
    """Compute what is missing of a study in its folder; returns by a model's label why it failed. `share` is told how
    much is done."""
    plan = planned(study, place, device)
    return running.run(plan, place, report=lambda model, done, total: share(done / max(total, 1)), engine=engine).failed


def planned(study: Study, place: Path, device: str) -> planning.Plan:
    """A study's plan, written to its folder."""
    plan = planning.make(study, Path(), device)
    planning.write_plan(plan, place)
    return plan


class _Parts:
    """The parts of one run, in its folder."""

    def __init__(self, asked: Asked, out: Path, bare: Evidence, engine: running.MakesEngine | None, opened: Any):
        self.asked, self.out, self.bare = asked, out, bare
        self.opened = opened
        self.engine = engine or partial(running.Here, opened=self.opened)
        self.troubles: dict[str, dict[str, str]] = {MODEL: {}, CONTROL: {}}
        self.fitted: dict[str, Part] = {}

    def ahead(self, names: Sequence[str], tell: Tell) -> None:
        """What is missing of these parts, all of one prompt together: it is traced once. Each part alone meets what
        failed again, and says so."""
        places = {name: self._place(name) for name in names}
        parts = [(planned(self._study(name), place, self.asked.device), place) for name, place in places.items()]
        groups = running.groups(parts)
        if not groups:
            return
        called = {item.key: plan.study.probes[0].name for group in groups for plan, _, item in group}
        total, done = sum(len(item.chunk.examples) for group in groups for *_, item in group), 0

        def more(item: planning.Item) -> None:
            nonlocal done
            done += len(item.chunk.examples)
            tell(done / total, called[item.key])

        with contextlib.closing(self.engine(*parts[0])) as engine:
            engine.ahead(groups, more)

    def compute(self, name: str, share: Callable[[float], None]) -> None:
        """What is missing of a part, of the model and of its twin."""
        if name == REPLACEMENT:
            for i, label in enumerate((MODEL, CONTROL)):

                def fitted(within: float, i: int = i) -> None:
                    share((i + within) / 2)

                self._fit(label, fitted)
            return
        failed = measure(self._study(name), self._place(name), self.asked.device, share, self.engine)
        for label, why in failed.items():
            self.troubles.setdefault(label, {})[name] = why

    def _place(self, name: str) -> Path:
        return self.out / "parts" / name

    def _study(self, name: str) -> Study:
        taken, asked = PARTS[name], self.asked
        of_own = partial(ModelEntry, source=asked.model, precision=asked.precision, adapter=asked.adapter)
        twins = TWINS if name == "contributions" else {CONTROL: 0}
        models = [of_own(label=MODEL)]
        models += [of_own(label=label, control="untrained", seed=seed) for label, seed in twins.items()]
        if name in OF_FAMILY:
            models += [ModelEntry(source=source, precision=asked.precision) for source in asked.also]
        probe = ProbeEntry(name=taken.probe, **taken.parameters(self.bare.n_layers, self.bare.answers))
        return Study(name=name, models=tuple(models), probes=(probe,), sets=(self._entry(name),), seed=asked.seed)

    def _entry(self, name: str) -> SetEntry:
        """The prompts of a part: those with an answer, where it needs one and only some, but enough, have it."""
        taken = PARTS[name]
        answered = name in NEED_ANSWERS and self.bare.answered and not self.bare.answers
        return self.asked.entry(taken.prompts, len(self.bare.level_names), taken.worked, answered)

    def _fit(self, label: str, share: Callable[[float], None]) -> None:
        """The linear maps in the layers' place; read where they were made before."""
        from ..fits import replacement
        from ..fits.streams import split

        asked = self.asked
        control = "" if label == MODEL else "untrained"
        try:
            spec = resolve(asked.model, asked.precision, asked.device, asked.adapter, control=control)
            entry = asked.entry(PARTS[REPLACEMENT].prompts, len(self.bare.level_names))
            prompts = [e.prompt for e in sets.load(entry, Path(), asked.model).examples]
            key = digest_of(REPLACEMENT, spec.identity(), digest_of_prompts(prompts))
            kept = Checkpoint(self._place(f"{REPLACEMENT}-{key[:16]}.npz"), key)
            if (columns := kept.read()) is None:
                columns = replacement.by_prompt(self.opened.get(spec), prompts, share)
                (self.out / "parts").mkdir(parents=True, exist_ok=True)
                kept.write(columns, now=True)
            judged = [p.form for p in split(prompts, None)[1]]
            known = len(judged) == len(columns["tokens"])  # else a prompt of one token was left out
            self.fitted[label] = Part(columns, forms=tuple(judged) if known else ())
        except (StudyError, OSError):
            raise
        except EffectiveDepthError as error:  # too few tokens, or no twin
            self.troubles[label][REPLACEMENT] = str(error)

    def evidence(self, label: str, needed: set[str]) -> Evidence:
        """Everything that was measured of the model, or of its twin."""
        troubles, parts = self.troubles[label], {}
        for name in needed - troubles.keys():
            parts[name] = self.fitted[label] if name == REPLACEMENT else self._part(name, label)
        found = replace(self.bare, parts=parts, troubles=troubles)
        if label != MODEL:
            return found
        if "contributions" in parts:
            twins = [t for t in TWINS if "contributions" not in self.troubles.get(t, {})]
            found = replace(found, twins=tuple(self._part("contributions", t) for t in twins))
        if self.asked.also and needed.issuperset(OF_FAMILY):
            found = replace(found, points=tuple(self._points()))
        return found

    def _part(self, name: str, label: str) -> Part:
        taken, asked = PARTS[name], self.asked
        folder = open_folder(self._place(name))
        set_name = asked.counterpart if taken.worked else asked.set_name
        part = part_of(folder, label, set_name, taken.probe)
        if name not in ANSWERED:
            return part
        entry = self._entry(name)
        answers = [e.prompt.answer.strip() for e in sets.load(entry, Path(), asked.model).examples]
        return replace(
            part, columns=dict(part.columns) | {"answer_length": np.array([len(answers[i]) for i in part.index])}
        )

    def _points(self) -> list[Point]:
        """The effective depths of the model and of those beside it."""
        found: list[Point] = []
        for name in OF_FAMILY:
            folder = open_folder(self._place(name))
            others = [label for label in folder.models if label not in TWINS]
            found += measured_points(folder, self.asked.set_name, others)
        return [replace(p, model=self.bare.models[0]) if p.model == MODEL else p for p in found]
