"""The sidebar's model: which one, at which precision, on which device; and what is known of it before it is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import groupby

import streamlit as st

from ed_core import catalogue, estimate, lookup, permits, settings, sizes, sources
from ed_core.architectures.refused import REFUSED
from ed_core.demo import MODELS
from ed_core.errors import EffectiveDepthError
from ed_core.precision import WIDEST_FIRST, stored
from ed_core.types import ModelSpec
from ed_ui import downloads, model_card, running, show

NOTHING_ELSE = (
    "A bundled model, or one of the catalogue; this installation takes no others (hub_ids and local_folders "
    "are off in its settings)."
)
AUTO = "auto"
CHOSEN, TYPED = ("model", "precision", "device"), ("adapter", "revision")
PRECISIONS = (AUTO, "fp32", "bf16", "fp16", "int8", "4bit")
ABOUT_PRECISION = """auto takes the widest that fits the free memory with room for the probes. int8: LLM.int8; 4bit: nf4, doubly quantized. A
checkpoint that is stored quantized opens as it is with auto."""


@dataclass(frozen=True)
class Scope:
    """One session's choice: `spec` is None (and `trouble` says why) where the model cannot be had."""

    spec: ModelSpec | None
    trouble: str = ""


def sidebar() -> None:
    """Model, precision and device, on every page and in the URL; below them what the model is."""
    st.session_state.setdefault("precision", AUTO)
    hold(CHOSEN if not st.session_state.get("link.cut") else CHOSEN + TYPED)
    with st.sidebar:
        st.selectbox("Model", names(), key="model", accept_new_options=True, help=about_model())
        with st.popover("Catalogue", icon=":material/list:", type="tertiary", key="catalogue"):
            _catalogue()
        st.segmented_control("Precision", PRECISIONS, required=True, key="precision", help=ABOUT_PRECISION)
        place = st.container(key="model-says", gap="xxsmall")
        with st.expander("Adapter, revision, device"):
            _more()
        scope = current()
        with place:
            _says(scope)
        if scope.spec is not None:
            with st.expander("Model card"):
                model_card.card(scope.spec)


def hold(keys: tuple[str, ...] = CHOSEN + TYPED) -> None:
    """Say anew what these boxes hold. Streamlit forgets it on a page without them, and tells the browser a value that a
    link has set only once, in a message that it throws away when the next run begins before it was sent. A box for
    words is left alone after a whole run: setting it would throw away what is being typed."""
    for key in keys:
        if key in st.session_state:
            st.session_state[key] = st.session_state[key]


def current() -> Scope:
    """The model chosen in the sidebar."""
    adapter, device = (st.session_state.get(key) or "" for key in ("adapter", "device"))
    return chosen(source(), st.session_state.get("precision") or AUTO, device or "cpu", adapter.strip())


def chosen(name: str, precision: str, device: str, adapter: str = "") -> Scope:
    """The model of that name. Refuses by name what is known to be no plain sum, as opening it would."""
    try:
        spec = sources.resolve(name, precision, device, adapter, free=running.free(device))
        family = str(sources.config_of(spec).get("model_type", ""))
        if family in REFUSED:
            raise EffectiveDepthError(f"Refused: {spec.name} is of the family '{family}', and {REFUSED[family]}.")
        return Scope(spec)
    except EffectiveDepthError as error:
        missing = downloads.absent(name)
        if missing is not None and not sources.config_of(missing):
            return Scope(
                None,
                f"{name} is neither here nor in the catalogue, so its size is not known: download it in the sidebar.",
            )
        return Scope(None, str(error))


def source() -> str:
    """The model's name as `sources.resolve` takes it; a revision belongs to a hub id only."""
    name = (st.session_state.get("model") or next(iter(names()), "")).strip()
    revision = (st.session_state.get("revision") or "").strip()
    is_hub_id = (
        revision
        and "@" not in name
        and name not in MODELS
        and _allowed(name)
        and not os.path.isdir(os.path.expanduser(name))
    )
    return f"{name}@{revision}" if is_hub_id else name


def choose(spec: ModelSpec) -> None:
    """Put a stored run's model into the boxes; only before they are drawn."""
    try:
        here = sources.named(spec.source).revision
    except EffectiveDepthError:
        here = ""
    st.session_state.update(
        {
            "model": spec.source,
            "precision": spec.precision if spec.precision in PRECISIONS else AUTO,
            "adapter": spec.adapter,
            "revision": "" if spec.revision == here else spec.revision,
        }
    )
    if spec.device in devices():
        st.session_state["device"] = spec.device


def devices() -> list[str]:
    """What models can run on here; the CPU alone until the worker has told."""
    return list(running.jobs().devices) or ["cpu"]


def names() -> list[str]:
    """Bundled models, then the catalogue's in its own order: those that may be used here."""
    return [name for name in (*MODELS, *(entry.id for entry in catalogue.entries() if entry.config)) if _allowed(name)]


def _allowed(name: str) -> bool:
    return not permits.why_not(permits.model, name)


def about_model() -> str:
    """What may stand in the box."""
    allowed = settings.current()
    more = ["the path of a model folder"] * allowed.local_folders + [
        "any hub id like Qwen/Qwen2.5-1.5B"
    ] * allowed.hub_ids
    return (
        f"A bundled model, one of the catalogue, {' or '.join(more)}: type it and press Enter."
        if more
        else NOTHING_ELSE
    )


def _catalogue() -> None:
    """Models by group: how large they are, whether they ask for a token, which figures are published for them."""
    shown = [entry for entry in catalogue.entries() if entry.config and _allowed(entry.id)]
    groups = {"Bundled": [(name, catalogue.find(name)) for name in MODELS if _allowed(name)]}
    groups |= {group: [(e.id, e) for e in entries] for group, entries in groupby(shown, key=lambda e: e.group)}
    st.session_state.setdefault(
        "catalogue.group",
        next((g for g, known in groups.items() if st.session_state.get("model") in dict(known)), "Bundled"),
    )
    group = st.selectbox("Group", list(groups), key="catalogue.group")
    for name, entry in groups[group]:
        row = st.container(key=f"entry-{name}", gap=None)
        row.button(
            name, key=f"take.{name}", type="tertiary", on_click=_take, args=(name,), icon=":material/arrow_forward:"
        )
        row.caption(_in_short(name, entry))


def _in_short(name: str, entry: catalogue.Entry | None) -> str:
    try:
        size = sources.size_of(name)
        told = [f"{size.n_layers} × {size.d_model}", f"{estimate.count(size.parameters)} parameters"]
    except EffectiveDepthError:
        told = []  # a damaged folder: choosing it says what is wrong
    if entry is not None and entry.gated:
        told.append("gated")
    if entry is not None and entry.published:
        told.append(f"published: {', '.join(entry.published)}")
    if downloads.absent(name) is None:
        told.append("here")
    return " · ".join(told)


def _take(name: str) -> None:
    st.session_state["model"] = name


def _more() -> None:
    """What most people leave as it is."""
    allowed = settings.current()
    off = (
        ""
        if allowed.adapters and (allowed.local_folders or allowed.hub_ids)
        else "No adapters here: the settings of this installation do not allow them."
    )
    told = "Its folder, as peft writes it, in safetensors; it is merged into the weights."
    st.text_input(
        "LoRA adapter",
        key="adapter",
        disabled=_off(off, "adapter"),
        help=off or told,
        placeholder="not allowed here" if off else None,
    )
    off = "" if allowed.hub_ids else "This installation takes the main branch only (hub_ids is off in its settings)."
    told = "Of a hub model: a branch, a tag or a commit; empty means its main branch."
    st.text_input(
        "Revision",
        key="revision",
        disabled=_off(off, "revision"),
        help=off or told,
        placeholder="main" if off else None,
    )
    if len(known := devices()) > 1:
        st.selectbox("Device", known, key="device", help="cuda takes as many GPUs as the model needs, cuda:0 that one.")


def _off(why: str, key: str) -> bool:
    """Whether a box is off: not while a link has put something into it, which must be possible to take out."""
    return bool(why) and not (st.session_state.get(key) or st.query_params.get(key))


def _described(spec: ModelSpec) -> None:
    """Family and size, and what auto came to; its reason in full on hover."""
    found = sources.describe(spec)
    known = [found.get("", ""), *(f"{found[name]} {name}" for name in ("blocks", "wide") if name in found)]
    st.caption(show.plain(" · ".join(filter(None, known))))
    if spec.why and (st.session_state.get("precision") or AUTO) == AUTO:
        st.caption(f"auto: **{show.plain(spec.precision)}**, {_how(spec)}", help=show.plain(spec.why))


def _how(spec: ModelSpec) -> str:
    """In a few words, why auto came to this precision."""
    config = sources.config_of(spec)
    if stored(config):
        return "as it is stored"
    if spec.precision not in estimate.fitting(sizes.read(config), running.free(spec.device), device=spec.device):
        return "the narrowest, and too large"
    return "the widest there is" if spec.precision == WIDEST_FIRST[0] else "the widest that fits"


def _says(scope: Scope) -> None:
    """What the choice comes to, and what stands in its way."""
    if trouble := lookup.trouble():
        st.warning(show.plain(trouble), icon=":material/database_off:")
    missing = downloads.absent(source())
    if scope.spec is not None:
        _described(scope.spec)
        st.session_state["needs"] = st.container()  # filled by the page, which knows its probes
    elif missing is None or sources.config_of(missing):
        st.error(show.plain(scope.trouble), icon=":material/error:")
    if missing is not None:
        downloads.section(missing)
