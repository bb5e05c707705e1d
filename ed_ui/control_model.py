"""A control beside the model: the picker next to Run, its jobs behind the model's own, its curves for the figures, and
what they mean."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from ed_core.depth import among_others
from ed_core.depth.among_others import Likeness
from ed_core.errors import EffectiveDepthError
from ed_core.probes import find
from ed_core.results import lookup
from ed_core.service.resolve import twin
from ed_core.sources import controls
from ed_core.types import ProbeResult, Request
from ed_ui import remembered, running, show

NONE = "none"
SUFFIX = ".control"
SEEDS = 5  # controls of as many seeds are looked for


def chosen() -> tuple[str, int]:
    """Kind ("" for none) and seed, as last picked on any page."""
    kind = remembered.value("control", NONE)
    return ("", 0) if kind == NONE else (kind, int(remembered.value("control.seed", 0)))


def name() -> str:
    """What the chosen control is called in figures and sentences."""
    return controls.KINDS.get(chosen()[0], "")


def with_control(requests: Mapping[str, Request]) -> dict[str, Request]:
    """The requests, and behind them the same for the control, where one is chosen and can be had (`picker` says why
    not)."""
    kind, seed = chosen()
    if not kind:
        return dict(requests)
    try:
        twins = {r.models[0]: twin(r.models[0], kind, seed) for r in requests.values()}
    except EffectiveDepthError:
        return dict(requests)
    behind = {
        f"{n}{SUFFIX}": find(r.probe).make(dict(r.parameters)).request(twins[r.models[0]], r.prompts[0])
        for n, r in requests.items()
    }
    return dict(requests) | behind


def picker(row, batch: running.Batch) -> None:
    """Which control, and its seed, at the end of a row or among other inputs."""
    common = dict(label_visibility="collapsed")
    kinds = dict(options=(NONE, *controls.KINDS), format_func=lambda kind: f"Control: {controls.KINDS.get(kind, NONE)}")
    remembered.widget(row.selectbox, "Control", "control", NONE, width=220, help=HELP, **kinds, **common)
    kind, seed = chosen()
    if not kind:
        return
    limits = dict(min_value=0, max_value=controls.MOST, width=120)
    remembered.widget(row.number_input, "Seed of the control", "control.seed", seed, **limits, **common)
    try:
        twin(next(iter(batch.requests.values())).models[0], kind, seed)
    except EffectiveDepthError as error:
        st.warning(show.plain(str(error)), icon=":material/error:")


def result(batch: running.Batch, probe: str) -> ProbeResult | None:
    """The control's complete result; None while there is none."""
    return batch.complete(f"{probe}{SUFFIX}")


def alike(batch: running.Batch, probe: str, first_token: bool = True) -> list[list[Likeness]]:
    """How alike the model's curves and its control's are, once both are complete, and behind it the same of the
    controls of other seeds that are stored; nothing before, and for what no curve stands for."""
    own, control = batch.complete(probe), result(batch, probe)
    if own is None or control is None or not find(probe_name := own.request.probe).curves:
        return []
    kind, seed = chosen()
    others = (lookup.find(_of_seed(own.request, kind, other)) for other in range(SEEDS) if other != seed)
    return [
        among_others.likeness(find(probe_name), own.summary, one.summary, first_token)
        for one in (control, *others)
        if one is not None and one.complete
    ]


def sentence(batch: running.Batch, probe: str, first_token: bool = True) -> str:
    """What the controls' curves say about the model's, in one sentence; "" where there is nothing to say."""
    found = alike(batch, probe, first_token)
    return among_others.against_control(chosen()[0], found) if found else ""


def _of_seed(request: Request, kind: str, seed: int) -> Request:
    spec = twin(request.models[0], kind, seed)
    return find(request.probe).make(dict(request.parameters)).request(spec, request.prompts[0])


HELP = """A twin of the model, measured behind it and drawn dashed and grey. **Untrained twin**: same config, random
weights; what it shows as well needs no training to appear. **Shuffled layers**: the model's own layers in a random
order."""
