"""Studies of this installation as pages read them: where they lie, what they say. One that is new comes in as a file of
somebody else's, or from a form: models, prompt sets and probes to choose, what they cost, and the file that says the
same. The file is what runs; each choice is written into it, and what is written there fills the form."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from ed_core import settings
from ed_core.depth import say
from ed_core.errors import EffectiveDepthError, ImportRefused, NotAllowed, StudyError
from ed_core.models import tokens
from ed_core.models.bundled import default_set
from ed_core.probes import find
from ed_core.studies import agreement, bundle, study, tables
from ed_core.studies import plan as planning
from ed_core.studies.form import ALL, Form, hidden, of, probe_names, set_names, study_of
from ed_core.studies.items import Folder, home, open_folder, shipped
from ed_core.studies.plan import PLAN, Plan
from ed_core.studies.sets import FORMATS
from ed_core.studies.study import Study
from ed_core.work.estimate import about
from ed_ui import downloads, inputs, picker, runs, show
from ed_ui.runs import STUDY

T = TypeVar("T")
TEXT = "studies.text"
KEYS = {name: f"study.{name}" for name in ("name", "models", "twins", "sets", "prompts", "probes", "steps")}
UNFINISHED = "study.unfinished"  # what the form lacks
LOOKED, LONG = 5, 2000  # prompts of a set that are shown, and characters of one
COUNTED = 40  # prompts of a set whose tokens are counted
TWINS, PROMPTS = 5, 1000  # at most in the form; the file takes more


def known() -> dict[str, Path]:
    """All studies by name: those made here, latest first, then those that come with the product."""
    begun = {file.parent: file.stat().st_mtime for name in (PLAN, STUDY) for file in home().glob(f"*/{name}")}
    made = sorted(begun, key=lambda place: -begun[place])
    own = {place.name: place for place in made}
    return own | {place.name: place for place in shipped() if place.name not in own}


def take_in(data: bytes) -> str:
    """Open a `.edstudy` of somebody else's; returns its name. `ImportRefused` for what is none, or where a study of
    that name lies here, `NotAllowed` where this installation runs none."""
    if settings.current().hosted:
        raise NotAllowed("This installation takes no studies from the browser. Open it on a machine of your own.")
    name = runs.on_disk(bundle.name_of(io.BytesIO(data)))
    if name in known():
        raise ImportRefused(f"There is a study {name} here already; delete or rename its folder first.")
    bundle.unpack(io.BytesIO(data), home() / name)
    return name


def read(out: Path) -> tuple[Folder, list[dict], list[dict]]:
    """A study's folder, its verdicts and its aggregates; read anew where something was added."""
    return _tables(out, _state(out))


def _state(out: Path) -> tuple:
    """What changes whenever something was added to a study."""
    return (out / PLAN).stat().st_mtime_ns, tuple(open_folder(out).progress().values())


@lru_cache(maxsize=4)
def _tables(out: Path, state: tuple) -> tuple[Folder, list[dict], list[dict]]:
    folder = open_folder(out)
    verdict, summary = (tables.stored(folder, name).to_pylist() for name in ("verdict", "summary"))
    return folder, verdict, summary


def estimates(folder: Folder, model: str, name: str) -> list[agreement.Estimate]:
    """Every estimator of a model's depth on a prompt set: for `looked`."""
    return agreement.estimates(folder, model, name, [row for row in read(folder.out)[1] if row["set"] == name])


def looked(out: Path, look: Callable[..., T], *asked: str) -> T:
    """What `look` finds in a study's folder, called with what is `asked`: resampling over prompts takes its time.
    Looked for anew where something was added; for all sessions, so that nobody may change it."""
    return _looked(out, look, asked, _state(out))


@lru_cache(maxsize=128)
def _looked(out: Path, look: Callable[..., T], asked: tuple[str, ...], state: tuple) -> T:
    return look(read(out)[0], *asked)


# -------------------------------------------------------------------- a new one


@dataclass(frozen=True)
class SetLook:
    """A prompt set of the study. `tokens`: fewest, mean and most of a prompt, None where they cannot be counted."""

    name: str
    prompts: int
    levels: int
    tokens: tuple[int, int, int] | None
    first: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Outlook:
    """What a study comes to, as far as it can be told before it runs. `later`: sets that are read when it runs.
    `troubles`: models that cannot be used, and why."""

    sets: tuple[SetLook, ...]
    later: tuple[str, ...]
    models: int
    parts: int
    seconds: float | None
    bytes: int
    troubles: Mapping[str, str]


def form() -> None:
    """The form, what the study comes to, Run, and the file."""
    if inputs.value(TEXT) is None:
        model = picker.model()
        start = Form("mine", (model,), 1, (default_set(model),), 20, ("contributions", "logit_lens"))
        inputs.put({TEXT: study.write(study_of(start))} | _boxes(start))
    written, wrong = None, ""
    try:
        written = _written()
    except StudyError as error:
        wrong = str(error)
    _boxes_of_form(closed=bool(wrong))
    row = st.container(horizontal=True, vertical_alignment="center", key="run-row-study")
    lacks = inputs.value(UNFINISHED)
    look = {"icon": ":material/play_arrow:", "type": "primary", "disabled": bool(wrong or lacks)}
    pressed = row.button("Run", key="studies.start", **look)
    beside, below = row.container(key="study-cost", width="stretch"), st.container(key="study-looks")
    if wrong:
        show.error(wrong, below)
    elif lacks:
        below.info(show.plain(lacks), icon=":material/playlist_add:")
    _file(written)
    if written is not None:
        try:
            _told(outlook(inputs.value(TEXT), picker.device()), written, beside, below)
        except EffectiveDepthError as error:
            show.error(error, below)
    if pressed:
        try:
            inputs.put({"studies.study": runs.begin_study(inputs.value(TEXT))})
            st.rerun()
        except EffectiveDepthError as error:
            show.error(error, below)


def _boxes_of_form(closed: bool) -> None:
    """The form's boxes; `closed` while the file cannot be read."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-study")
    box = {"changed": _chosen, "disabled": closed}

    def several(label: str, name: str, options: list[str], width: int = 420, **more: Any) -> None:
        inputs.widget(row.multiselect, label, KEYS[name], [], options=options, width=width, **more, **box)

    def number(label: str, name: str, low: int, most: int, about: str) -> None:
        limits = dict(value=None, min_value=low, max_value=most, placeholder=AS_WRITTEN, help=about, width=190)
        inputs.widget(row.number_input, label, KEYS[name], low, **limits, **box)

    models = list(dict.fromkeys([*picker.names(), *inputs.value(KEYS["models"], [])]))
    several("Models", "models", models, accept_new_options=True, help=picker.about_model())
    number("Untrained twins of each", "twins", 0, TWINS, ABOUT_TWINS)
    none = "none" if _steps() is not None else AS_WRITTEN
    about = dict(accept_new_options=True, placeholder=none, help=ABOUT_STEPS)
    several("Steps of training", "steps", inputs.value(KEYS["steps"], []), 250, **about)
    inputs.widget(row.text_input, "Name", KEYS["name"], "", words=True, help=ABOUT_NAME, width=220, **box)
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-study-sets")
    several("Prompt sets", "sets", set_names(), format_func=_set_name)
    number("Prompts of each set", "prompts", ALL, PROMPTS, ABOUT_PROMPTS)
    several("Probes", "probes", probe_names(), format_func=lambda name: find(name).title)


def _file(written: Study | None) -> None:
    """The study's file, and what of it the form does not show."""
    with st.expander("Advanced: the study's file", icon=":material/code:"):
        inputs.widget(st.text_area, "TOML", TEXT, "", words=True, changed=_typed, height=300, help=ABOUT_FILE)
        rest = hidden(written) if written is not None else []
        if rest:
            st.caption(show.plain(f"The form does not show, and keeps: {'; '.join(rest)}."))


def _told(found: Outlook, written: Study, beside, below) -> None:
    """What the study comes to, beside Run; a look at its prompts below."""
    for label, why in found.troubles.items():
        below.warning(show.plain(f"{label} is left out: {why}"), icon=":material/error:")
    absent = [m.source for m in written.entries if not m.control and downloads.absent(m.source) is not None]
    beside.markdown(show.plain(cost(found)))
    if (home() / runs.on_disk(written.name) / planning.PLAN).is_file():
        below.caption(show.plain(f"A study {written.name} is here already: Run goes on with it."))
    if absent:
        below.caption(show.plain(f"Downloaded first: {', '.join(absent)}."))
    for one in found.sets:
        row = below.container(horizontal=True, vertical_alignment="center", key=f"set-{one.name}")
        with row.popover("Prompts", icon=":material/visibility:", key=f"look-{one.name}"):
            for text, answer in one.first:
                st.code(f"{text}▸{answer}" if answer else text, language=None, wrap_lines=True)
            st.caption(f"The first {len(one.first)} of {one.prompts}; ▸ stands before the answer.")
        row.markdown(f"**{show.plain(one.name)}**: {show.plain(size(one))}")


def size(one: SetLook) -> str:
    """A prompt set in numbers."""
    said = say.count(one.prompts, "prompt")
    said += f" of {one.levels} levels" if one.levels > 1 else ""
    if one.tokens is None:
        return f"{said}; tokens are counted once the model is here"
    low, mean, high = one.tokens
    return f"{said} of {low} tokens" if low == high else f"{said} of {low} to {high} tokens, {mean} on average"


def cost(found: Outlook) -> str:
    """Time and disk of a study, before it runs."""
    counts = {"model": found.models, "prompt": sum(one.prompts for one in found.sets), "part": found.parts}
    said = " · ".join(say.count(n, what) for what, n in counts.items())
    if found.sets:
        time = "time not known" if found.seconds is None else about(found.seconds)
        said += f" · {time}, the models' opening not counted · {_megabytes(found.bytes)} on the disk"
    if found.later:
        said += f" · {', '.join(found.later)}: read from the hub when it runs, not counted here"
    return said


def _megabytes(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 100_000 else "under 0.1 MB"


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def outlook(text: str, device: str) -> Outlook:
    """What a study's file comes to on a device; `EffectiveDepthError` for a set or model that there is not."""
    written = study.parse(text)
    here = tuple(entry for entry in written.sets if not entry.hub)
    later = tuple(entry.name for entry in written.sets if entry.hub)
    if not here:
        return Outlook((), later, len(written.entries), 0, None, 0, {})
    plan = planning.make(written.model_copy(update={"sets": here}), home() / runs.on_disk(written.name), device)
    seconds = planning.seconds_of(plan, device)
    troubles = {m.label: m.trouble for m in plan.models if m.trouble}
    looks = tuple(_look(plan, i) for i in range(len(plan.sets)))
    time = seconds[0] if seconds else None
    return Outlook(looks, later, len(plan.usable), plan.n_items, time, planning.bytes_of(plan), troubles)


def _look(plan: Plan, i: int) -> SetLook:
    """One set of a plan, its tokens those of the first model that can be used."""
    found = plan.sets[i]
    prompts = [example.prompt for example in found.examples]
    counted = prompts[:: max(1, len(prompts) // COUNTED)] if plan.usable else []
    lengths = [tokens.preview(plan.usable[0].known, prompt) for prompt in counted]
    known = [len(one) for one in lengths if one is not None]
    whole = (min(known), round(sum(known) / len(known)), max(known)) if known and len(known) == len(lengths) else None
    first = tuple((prompt.text[:LONG], prompt.answer[:LONG]) for prompt in prompts[:LOOKED])
    return SetLook(found.name, len(prompts), len(found.levels), whole, first)


def _written() -> Study:
    """The study that the file says."""
    return study.parse(inputs.value(TEXT), "the file")


def _boxes(form: Form) -> dict[str, object]:
    """What the form's boxes hold."""
    held = {name: getattr(form, name) for name in KEYS}
    held["steps"] = held["steps"] or ()
    return {KEYS[name]: list(value) if isinstance(value, tuple) else value for name, value in held.items()}


def _chosen(key: str) -> None:
    """Write a choice of the form into the file, once there is one of each kind."""
    inputs.note(key)
    held = {name: inputs.value(own) for name, own in KEYS.items()}
    form = Form(**{name: tuple(value) if isinstance(value, list) else value for name, value in held.items()})
    if not form.steps and _steps() is None:
        form = replace(form, steps=None)
    trouble = next((f"Choose at least one {what}." for name, what in NEEDED.items() if not held[name]), "")
    try:
        if not trouble:
            inputs.put_over({TEXT: study.write(study_of(form, _written()))})
    except StudyError as error:
        trouble = str(error)
    inputs.put({UNFINISHED: trouble})


def _typed(key: str) -> None:
    """Fill the form from the file, where that can be read."""
    inputs.note(key)
    with contextlib.suppress(StudyError):
        inputs.put_over(_boxes(of(_written())))
    inputs.put({UNFINISHED: ""})


def _steps() -> tuple[str, ...] | None:
    """The steps that the file gives all models alike; None where they differ."""
    with contextlib.suppress(StudyError):
        return of(_written()).steps
    return ()


def _set_name(name: str) -> str:
    return f"{name} (hub)" if name in FORMATS else name


NEEDED = {"models": "model", "sets": "prompt set", "probes": "probe"}
AS_WRITTEN = "as in the file"
ABOUT_NAME = "Of its folder; a study of this name that is here already goes on from where it is."
ABOUT_TWINS = "Copies of each model with random weights, of as many seeds: what architecture alone gives."
ABOUT_STEPS = (
    "Revisions of models of the hub (step1000), checkpoints of folders (checkpoint-500); models that come with the "
    "program or in a package have none. Each is a model of the study, on one axis; none takes the model as it is."
)
ABOUT_PROMPTS = f"Divided evenly over the levels of a set, rounded up; {ALL} takes all."
ABOUT_FILE = (
    "What runs, and what `python -m ed_core study` reads. Choices above are written here; what is typed here fills "
    "the form. docs/studies.md has every key."
)
