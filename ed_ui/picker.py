"""The model on top of the page: which one, at which precision, on which device; what is known of it before it is
loaded, and its card: what it is and how it is run, from its files and from its latest result where there is one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from ed_core import settings
from ed_core.depth import certificate, say
from ed_core.depth.published import sets_of
from ed_core.errors import EffectiveDepthError
from ed_core.machine import gigabytes
from ed_core.models import catalogue, permits, remote, sizes
from ed_core.models.bundled import MODELS
from ed_core.models.families import REFUSED
from ed_core.models.ref import ModelRef
from ed_core.models.wheels import WHEELS
from ed_core.results import lookup
from ed_core.types import ModelSpec
from ed_core.work import estimate, measure
from ed_core.work.resolve import settle
from ed_ui import downloads, inputs, live, running, session, show
from ed_ui.inputs import choice, text

WORDS = show.words(__file__)
AUTO = "auto"
SHORT = 28  # characters of a name on top of the page
PRECISIONS = (AUTO, "fp32", "bf16", "fp16", "int8", "4bit")
MODEL = text("model", "model", label="Model")
PRECISION = choice("precision", "precision", AUTO, PRECISIONS, "Precision")
ADAPTER = text("adapter", "adapter", label="LoRA adapter")
REVISION = text("revision", "revision", label="Revision")
DEVICE = text("device", "device", AUTO, "Device")
EXAMPLE = "Qwen/Qwen2.5-1.5B"  # a larger model than the bundled ones


@dataclass(frozen=True)
class Choice:
    """The model that a session has chosen: `spec` is None (`trouble` says why) where it is unavailable; `missing` is
    the hub model to download for it, None where its files are here."""

    spec: ModelRef | None
    missing: ModelRef | None
    trouble: str = ""


def box() -> None:
    """Draw the button with the model's name, and behind it model, precision and device (the same on every page and in
    the URL), with what the model is."""
    with st.popover(_named(), key="model-box", width="stretch"):
        listed = lines()
        about: dict[str, Any] = dict(options=list(listed), accept_new_options=True, help=about_model())
        about["format_func"] = lambda name: listed.get(name, name)  # of this run's list, whoever asks
        MODEL.draw(st.selectbox, default=model() or None, **about)
        larger = "" if settings.current().hosted else " " + WORDS["Larger"].format(listed.get(EXAMPLE, EXAMPLE))
        st.caption(f"Parameters, memory, and time for {estimate.TOKENS} tokens here.{show.plain(larger)}")
        PRECISION.draw(st.segmented_control, help=WORDS["Precision"])
        place = st.container(key="model-says", gap="xxsmall")
        with st.expander("Adapter, revision, device"):
            _more()
        choice = current()
        if choice.spec is not None:
            with place:
                _described(choice.spec)
                session.current().needs = st.container()  # filled by the page, which knows its probes
            part = st.expander("Model card", key="Model card", on_change="rerun")
            if part.open:  # drawn when it has been opened: no page is to wait for it
                with part:
                    card(choice.spec)


def _named() -> str:
    """Return the chosen model in a few words: name, precision, device where several are possible, layers."""
    spec = current().spec
    if spec is None:
        return show.plain(_short(model())) or "Choose a model"
    where = spec.device if len(devices()) > 1 else ""
    parts = (_short(spec.name), spec.precision, where, spec.layers_text)
    return show.plain(" · ".join(part.replace(" ", "\u00a0") for part in parts if part))


def _short(name: str) -> str:
    """Return the last part of a path or hub id, at most `SHORT` characters of it."""
    end = name.rstrip("/").rsplit("/", 1)[-1]
    return end if len(end) <= SHORT else f"{end[: SHORT - 1]}…"


def trouble() -> None:
    """Draw what is in the way of the chosen model, with its download where it is missing."""
    choice = current()
    with st.container(key="model-trouble"):
        if notice := lookup.trouble():
            st.warning(show.plain(notice), icon=":material/database_off:")
        if choice.spec is None and (choice.missing is None or choice.missing.config()):
            show.error(choice.trouble)
        elif choice.spec is not None:
            say_what_leaves(choice.spec)
        session.current().absent = choice.missing
        if choice.missing is not None:
            downloads.section(choice.missing)


def say_what_leaves(spec: ModelRef) -> None:
    """Show what Run sends to a remote model's service and what comes back; nothing for a model of this machine."""
    if spec.weights_here:
        return
    where = "a process of this machine"
    if (address := settings.current().ndif_address) != settings.LOCAL:
        where = f"{urlsplit(address).netloc}, under the key of this installation"
    notice = WORDS["Leaves"].format(name=spec.name.removeprefix(remote.PREFIX), where=where)
    st.info(show.plain(notice), icon=":material/cloud_upload:")


def current() -> Choice:
    """Return the chosen model; computed once in a run of a page."""
    selection = source(), PRECISION.value or AUTO, device(), (ADAPTER.value or "").strip()
    return session.once_a_run(("model", *selection), lambda: chosen(*selection))


def open_ahead() -> None:
    """Let the worker open the chosen model while it is idle, so that the first Run need not wait for it."""
    if (choice := current()).spec is not None and choice.missing is None:
        measure.open_ahead(running.jobs(), choice.spec)


def required() -> ModelRef:
    """Return the chosen model; raise `live.Said` where it is unavailable, as `trouble` shows why."""
    if (choice := current()).spec is None:
        raise live.Said(choice.trouble)
    return choice.spec


def model() -> str:
    """Return the name in the box of models; the first one on offer while it is empty."""
    return MODEL.value or next(iter(names()), "")


def chosen(name: str, precision: str, device: str, adapter: str = "") -> Choice:
    """Return the `Choice` of the model of that name in this precision, on this device, with this adapter. Where it
    is unavailable, or of a family known to be no plain residual sum, `spec` is None and `trouble` says why."""
    missing = None
    try:
        ref = ModelRef.named(name)
        missing = None if ref.is_here else ref
        spec = settle(ref.opened_as(precision, device, adapter), running.free(device))
        family = str(spec.config().get("model_type", ""))
        if family in REFUSED:
            raise EffectiveDepthError(f"Refused: {spec.name} is of the family '{family}', and {REFUSED[family]}.")
        return Choice(spec, missing)
    except EffectiveDepthError as error:
        if missing is not None and not missing.config():
            return Choice(None, missing, f"{name} {WORDS['Unknown']}")
        return Choice(None, missing, str(error))


def source() -> str:
    """Return the chosen model's name as `ModelRef.named` takes it, with `@revision` where a hub id has one."""
    name, revision = model().strip(), (REVISION.value or "").strip()
    if not revision or "@" in name or name in MODELS or not _allowed(name) or os.path.isdir(os.path.expanduser(name)):
        return name
    return f"{name}@{revision}"


def choose(spec: ModelSpec) -> None:
    """Put the model of a stored run into the boxes; only before they are drawn."""
    inputs.put(
        {
            "model": spec.source,
            "precision": spec.precision if spec.precision in PRECISIONS else AUTO,
            "adapter": spec.adapter,
            "revision": "" if spec.revision == catalogue.cached_commit(spec.source) else spec.revision,
        }
    )
    if spec.device in devices():
        inputs.put({"device": AUTO if spec.device == devices()[0] else spec.device})


def devices() -> list[str]:
    """Return the devices that models can run on here, the default one first; ["cpu"] until the worker has reported."""
    return list(running.jobs().devices) or ["cpu"]


def device() -> str:
    """Return the chosen device; the default one for "auto"."""
    chosen = DEVICE.value or AUTO
    return devices()[0] if chosen == AUTO else chosen


def names() -> list[str]:
    """Return the names of the models that may be used here: of the package registry, bundled, then the catalogue's."""
    others = (entry.id for entry in catalogue.entries() if entry.config and entry.id not in WHEELS)
    return [name for name in (*WHEELS, *MODELS, *others) if _allowed(name)]


def _allowed(name: str) -> bool:
    """Return whether the settings allow a model of this name."""
    return not permits.why_not(permits.model, name)


def about_model() -> str:
    """Return the help text on what may be typed into the box of models."""
    if settings.current().hosted:
        return WORDS["Hosted"]
    elsewhere = f", {remote.PREFIX} and a model that NDIF runs" * settings.current().ndif
    return (
        f"A bundled model, one of the catalogue, the path of a model folder, any hub id like {EXAMPLE}"
        f"{elsewhere}: type it and press Enter."
    )


def lines() -> dict[str, str]:
    """Return what the list of models says of each, by name."""
    return _listed(tuple(names()), devices()[0], running.free(devices()[0]))


@st.cache_data(ttl=60, show_spinner=False)
def _listed(names: tuple[str, ...], where: str, free: int) -> dict[str, str]:
    """Return the line of each model in the list: name, parameters, and the memory and time it takes here where known,
    in the precision that auto takes: a list must not change under the hand that chooses."""

    def line(name: str) -> str:
        entry, parts = catalogue.find(name), [name]
        with contextlib.suppress(EffectiveDepthError):  # a damaged folder: choosing it says what is wrong
            size = ModelRef.named(name).size()
            parts += [estimate.count(size.parameters), _cost(size, where, free)]
        parts += ["gated"] if entry is not None and entry.gated else []
        return " · ".join([*parts, "published depths"] if sets_of(name) else parts)

    return {name: line(name) for name in names}


@lru_cache(256)
def _cost(size: sizes.Size, device: str, free: int) -> str:
    """Return in words what a model takes here with `free` bytes of memory free: memory, and time for the first page."""
    precision = estimate.choose(size, device=device, free=free)[0]
    forecast = estimate.estimate(size, precision, device=device, free=free)
    if not forecast.fits:
        return f"too large: {gigabytes(forecast.peak)} in {precision}"
    seconds = sum(need.seconds for need in forecast.needs)
    time = "under 1 s" if seconds < 1 else estimate.about(seconds)
    return f"{gigabytes(forecast.peak)} in {precision} · {time}"


def _more() -> None:
    """Draw the boxes for adapter, revision and device; on a hosted installation the first two only where one is set."""
    hosted = settings.current().hosted  # a link may name what is refused here, and its box is where to clear it
    if ADAPTER.value or not hosted:
        ADAPTER.draw(st.text_input, words=True, help=WORDS["Adapter"])
    if REVISION.value or not hosted:
        REVISION.draw(st.text_input, words=True, help=WORDS["Revision"], placeholder="main")
    if len(known := devices()) > 1:
        hint = f"auto is {known[0]} here; cuda takes as many GPUs as the model needs, cuda:0 that one."
        DEVICE.draw(st.selectbox, options=[AUTO, *known], help=hint)


def _described(spec: ModelRef) -> None:
    """Draw a model's family and size, and which precision auto chose; the reason appears on hover."""
    if size := spec.size_or_none():
        st.caption(show.plain(f"{size.family} · {spec.layers_text} · {size.d_model} wide"))
    if packing := spec.packing:
        st.caption(show.plain(f"{packing} in the file, computed in {spec.precision}"))
    if spec.why and (PRECISION.value or AUTO) == AUTO:
        st.caption(f"auto: **{show.plain(spec.precision)}**", help=show.plain(spec.why))


# -------------------------------------------------------------------- the model card


def card(spec: ModelRef) -> None:
    """Draw the model card, a line for each fact. Errors of the residual identities come from the latest result of this
    model in this precision."""
    made = lookup.certificate(spec)
    facts = [*_size(spec), *_runtime(spec, made or {}), *_identities(made)]
    st.caption("  \n".join(f"**{name}**: {value}" for name, value in facts if value))


def _size(spec: ModelRef) -> list[tuple[str, str]]:
    """Return the card's lines on family, layers, widths, heads, vocabulary and parameters."""
    if (size := spec.size_or_none()) is None:
        return [("Size", "known once it is downloaded")]
    fewer = "" if size.n_kv_heads == size.n_heads else f", {size.n_kv_heads} for keys and values"
    return [
        ("Family", show.plain(size.family[:40])),
        ("Layers", str(size.n_layers)),
        ("Width", f"{size.d_model}, MLP {size.d_mlp}"),
        ("Heads", f"{size.n_heads}{fewer}, of {size.head_dim}"),
        ("Vocabulary", f"{size.d_vocab}, {'tied' if size.tied else 'untied'}"),
        ("Parameters", estimate.count(size.parameters) + ("" if size.exact else " (counted as a Llama)")),
    ]


def _runtime(spec: ModelRef, made: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the card's lines on precision, device, memory, revision, content and adapter, "" for none. `made`: the
    provenance of the latest result."""
    origin = [
        ("Revision", f"commit {show.plain(spec.revision[:12])}" if spec.revision else ""),
        ("Content", f"SHA-256 {spec.content_hash[:12]}…" if spec.content_hash else ""),
        ("Adapter", f"{show.plain(spec.adapter)}, SHA-256 {spec.adapter_hash[:12]}…" if spec.adapter else ""),
    ]
    if not spec.weights_here:
        computes = (made.get("precision") or {}).get("computes_in", "told by its first result")
        return [("Computed", show.plain(f"{spec.device.replace('ndif at', 'at')}, in {computes}")), *origin]
    label, held = sizes.PRECISION_LABELS.get(spec.precision, ""), made.get("weights_bytes")
    weights = held or estimate.weights(spec)
    return [
        ("Precision", show.plain(spec.precision) + (f" ({label})" if label else "")),
        ("Device", spec.device),
        ("Memory", f"{gigabytes(weights)} of weights{'' if held else ', by the estimate'}" if weights else ""),
        *origin,
    ]


def _identities(made: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the card's lines on the worst errors of the residual sums when the model was opened."""
    if made is None or not (errors := made.get("identities")):
        return [("Identities", "not opened yet")]
    known = ((words, errors.get(name)) for name, words in ERRORS.items())
    parts = [f"{words} {say.number(error, '.1g')}" for words, error in known if isinstance(error, (int, float))]
    lines = [("Identities", f"hold; at most {', '.join(parts)}"), ("Read", show.plain(str(made.get("read", ""))))]
    return [*lines, *((name, show.plain(value)) for name, value in certificate.text_rows(made))]


ERRORS = {
    "miss": "sums are off by",
    "closure": "the lens by",
    "replay": "layers by hand by",
    "suffix": "edited streams by",
}
