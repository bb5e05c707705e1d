"""Studies of this installation as pages read them: where they are, what they say. One that is new comes in as a file of
somebody else's, or from a form: models, prompt sets and probes to choose, what they cost, and the file that says the
same, which may be edited."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import streamlit as st

from ed_core import settings
from ed_core.depth.say import count
from ed_core.errors import EffectiveDepthError, ImportRefused, NotAllowed, StudyError
from ed_core.models import tokens
from ed_core.models.bundled import default_set
from ed_core.probes import find
from ed_core.studies import bundle, study, tables
from ed_core.studies import plan as planning
from ed_core.studies.form import ALL, Form, probe_names, set_names, study_of
from ed_core.studies.items import Folder, home, open_folder, shipped
from ed_core.studies.plan import PLAN, Plan
from ed_core.studies.sets import FORMATS
from ed_core.studies.study import Study
from ed_core.work.estimate import about
from ed_ui import inputs, picker, runs, show
from ed_ui.runs import STUDY

T = TypeVar("T")
LOOKING = RLock()  # sessions that ask at once wait for one computation, in place of each making its own
TEXT = "studies.text"
BY_HAND = "studies.by_hand"
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
    that name is here, `NotAllowed` where this installation runs none."""
    if settings.current().hosted:
        raise NotAllowed("This installation takes no studies from the browser. Open it on a machine of your own.")
    name = runs.on_disk(bundle.name_of(io.BytesIO(data)))
    if name in known():
        raise ImportRefused(f"There is a study {name} here already; delete or rename its folder first.")
    bundle.unpack(io.BytesIO(data), home() / name)
    return name


def read(out: Path) -> tuple[Folder, list[dict]]:
    """A study's folder and its verdicts; read again where something was added."""
    return _tables(out, _state(out))


def _state(out: Path) -> tuple:
    """What changes whenever something was added to a study."""
    return (out / PLAN).stat().st_mtime_ns, tuple(open_folder(out).progress().values())


@lru_cache(maxsize=4)
def _tables(out: Path, state: tuple) -> tuple[Folder, list[dict]]:
    folder = open_folder(out)
    return folder, tables.stored(folder).to_pylist()


def looked(out: Path, look: Callable[..., T], *asked: str) -> T:
    """What `look` finds in a study's folder, called with what is `asked`: resampling over prompts takes its time.
    Computed again where something was added; once for all sessions, which must not change it."""
    with LOOKING:
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
    """What a study comes to, as far as that is known before it runs. `later`: sets that are read when it runs.
    `troubles`: models that cannot be used, and why."""

    sets: tuple[SetLook, ...]
    later: tuple[str, ...]
    models: int
    parts: int
    seconds: float | None
    troubles: Mapping[str, str]
    absent: tuple[str, ...] = ()


def form() -> None:
    """The form, what the study comes to, Run, and the file."""
    text, wrong = "", ""
    try:
        text = _asked()
        written = study.parse(text, "the file")
    except StudyError as error:
        written, wrong = None, str(error)
    row = st.container(horizontal=True, vertical_alignment="center", key="run-row-study")
    look = {"icon": ":material/play_arrow:", "type": "primary", "disabled": bool(wrong)}
    pressed = row.button("Run", key="studies.start", **look)
    cost_place, below = row.container(key="study-cost", width="stretch"), st.container(key="study-looks")
    if wrong:
        show.error(wrong, below)
    try:
        if written is not None:
            _show_outlook(outlook(text, picker.device()), written, cost_place, below)
        if pressed:
            inputs.put({"studies.study": runs.begin_study(text)})
            st.rerun()
    except EffectiveDepthError as error:
        show.error(error, below)


def _asked() -> str:
    """The TOML of the form's boxes, or what was typed in its place. `StudyError` says what the form lacks."""
    own = inputs.value(BY_HAND, False)
    chosen = _boxes(own)
    text, lack = "", next((f"Choose at least one {what}." for name, what in NEEDED.items() if not chosen[name]), "")
    if not own and not lack:
        text = study.write(study_of(Form(**chosen)))
    with st.expander("Advanced: the study's file", icon=":material/code:"):
        if inputs.widget(st.toggle, "Edit", BY_HAND, False, help=ABOUT_FILE):
            return inputs.widget(st.text_area, "TOML", TEXT, text, words=True, height=300)
        inputs.put({TEXT: text})
        st.code(text, language="toml")
    if lack:
        raise StudyError(lack)
    return text


def _boxes(closed: bool) -> dict[str, Any]:
    """What the form's boxes hold; `closed` while the file is edited."""
    model = picker.model()
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-study")

    def several(label: str, name: str, options: list[str], default: list[str], width: int = 420, **more: Any) -> tuple:
        more |= dict(options=options, width=width, disabled=closed)
        return tuple(inputs.widget(row.multiselect, label, f"study.{name}", default, **more))

    def number(label: str, name: str, default: int, low: int, most: int, about: str) -> int:
        limits = dict(value=None, min_value=low, max_value=most, help=about, width=190, disabled=closed)
        return inputs.widget(row.number_input, label, f"study.{name}", default, **limits) or low

    models = list(dict.fromkeys([*picker.names(), *inputs.value("study.models", [])]))
    new = dict(accept_new_options=True)
    found = {"models": several("Models", "models", models, [model], help=picker.about_model(), **new)}
    found["twins"] = number("Untrained copies of each", "twins", 1, 0, TWINS, ABOUT_TWINS)
    steps = inputs.value("study.steps", [])
    found["steps"] = several("Steps of training", "steps", steps, [], 250, placeholder="none", help=ABOUT_STEPS, **new)
    named = dict(words=True, help=ABOUT_NAME, width=220, disabled=closed)
    found["name"] = inputs.widget(row.text_input, "Name", "study.name", "mine", **named)
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-study-sets")
    found["sets"] = several("Prompt sets", "sets", set_names(), [default_set(model)], format_func=_set_name)
    found["prompts"] = number("Prompts of each set", "prompts", 20, ALL, PROMPTS, ABOUT_PROMPTS)
    probes, title = ["contributions", "logit_lens"], lambda name: find(name).title
    return found | {"probes": several("Probes", "probes", probe_names(), probes, format_func=title)}


def _show_outlook(found: Outlook, written: Study, cost_place, below) -> None:
    """What the study comes to, next to Run; a look at its prompts below."""
    for label, why in found.troubles.items():
        below.warning(show.plain(f"{label} is left out: {why}"), icon=":material/error:")
    cost_place.markdown(show.plain(cost(found)))
    if (home() / runs.on_disk(written.name) / planning.PLAN).is_file():
        below.caption(show.plain(f"A study {written.name} is here already: Run goes on with it."))
    if found.absent:
        below.caption(show.plain(f"Downloaded first: {', '.join(found.absent)}."))
    for one in found.sets:
        row = below.container(horizontal=True, vertical_alignment="center", key=f"set-{one.name}")
        with row.popover("Prompts", icon=":material/visibility:", key=f"look-{one.name}"):
            for text, answer in one.first:
                st.code(f"{text}▸{answer}" if answer else text, language=None, wrap_lines=True)
            st.caption(f"The first {len(one.first)} of {one.prompts}; ▸ marks the answer.")
        row.markdown(f"**{show.plain(one.name)}**: {show.plain(size(one))}")


def size(one: SetLook) -> str:
    """A prompt set in numbers."""
    said = count(one.prompts, "prompt")
    said += f" of {one.levels} levels" if one.levels > 1 else ""
    if one.tokens is None:
        return f"{said}; tokens are counted once the model is here"
    low, mean, high = one.tokens
    return f"{said} of {low} tokens" if low == high else f"{said} of {low} to {high} tokens, {mean} on average"


def cost(found: Outlook) -> str:
    """What a study takes, before it runs."""
    counts = {"model": found.models, "prompt": sum(one.prompts for one in found.sets), "part": found.parts}
    said = " · ".join(count(n, what) for what, n in counts.items())
    if found.sets:
        time = "time not known" if found.seconds is None else about(found.seconds)
        said += f" · {time}, the models' opening not counted"
    if found.later:
        said += f" · {', '.join(found.later)}: read from the hub when it runs, not counted here"
    return said


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def outlook(text: str, device: str) -> Outlook:
    """What a study's file comes to on a device; `EffectiveDepthError` for a set or model that there is not."""
    written = study.parse(text)
    here = tuple(entry for entry in written.sets if not entry.hub)
    later = tuple(entry.name for entry in written.sets if entry.hub)
    if not here:
        return Outlook((), later, len(written.entries), 0, None, {})
    plan = planning.make(written.model_copy(update={"sets": here}), home() / runs.on_disk(written.name), device)
    seconds = planning.seconds_of(plan, device)
    troubles = {m.label: m.trouble for m in plan.models if m.trouble}
    looks = tuple(_look(plan, i) for i in range(len(plan.sets)))
    time = seconds[0] if seconds else None
    return Outlook(looks, later, len(plan.usable), plan.n_items, time, troubles)


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


def _set_name(name: str) -> str:
    return f"{name} (hub)" if name in FORMATS else name


NEEDED = {"models": "model", "sets": "prompt set", "probes": "probe"}
ABOUT_NAME = "Of its folder; a study of this name that is here already goes on from where it is."
ABOUT_TWINS = "Copies of each model with random weights, each of another seed: what architecture alone gives."
ABOUT_STEPS = (
    "Revisions of models of the hub (step1000), checkpoints of folders (checkpoint-500); models that come with the "
    "program or in a package have none. Each is a model of the study, on one axis; none takes the model as it is."
)
ABOUT_PROMPTS = f"Divided evenly over the levels of a set, rounded up; {ALL} takes all."
ABOUT_FILE = (
    "Write the file by hand, from what the form gives: it is what runs, and what `python -m ed_core study` reads. "
    "docs/studies.md has every key."
)
