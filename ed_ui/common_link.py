"""What the links of all pages carry: the model, the prompt where it is bundled or stored, the control; and how a link
or a stored result fills the boxes."""

from __future__ import annotations

import streamlit as st

from ed_core.errors import EffectiveDepthError, ParameterError
from ed_core.results import lookup
from ed_core.service.resolve import twin
from ed_core.sources import controls
from ed_core.types import ModelSpec, Request
from ed_ui import inputs, link, picker, prompt_box, show
from ed_ui.inputs import boxed, choice, flag, number, text

MOST_TOKENS = 10**6  # a token's number in a link; one beyond the prompt's end is simply not marked
OF_A_RUN = (  # what a stored run decides
    text("model", "model"),
    choice("precision", "precision", picker.AUTO, picker.PRECISIONS),
    text("adapter", "adapter"),
    text("revision", "revision"),
    text("device", "device", picker.AUTO),
    choice("template", "template", "raw", ("raw", "chat")),
    flag("special_tokens", "special_tokens", True),
)
BESIDE_IT = (
    choice("control", "control", "none", tuple(controls.KINDS)),
    number("control_seed", "control.seed", 0, 0, controls.MOST, int),
    number("token", "token", None, 0, MOST_TOKENS, int),
)


def open_link(page: str) -> None:
    """Before anything is drawn, where the URL decides: the run or the bundled prompt that it names fills the boxes, and
    what it says beside them holds. A session that nothing fills begins with the shipped example. `page`: its path in
    the URL."""
    if not link.arrived(page):
        return
    key, example = st.query_params.get("run", ""), st.query_params.get("example", "")
    complete = "model" in st.query_params
    link.take(OF_A_RUN, reset=complete)
    by_run = link.state().by_run = bool(key) and _open_short(key)
    link.take(BESIDE_IT, reset=complete and not by_run)
    if (device := inputs.value("device")) and device not in (picker.AUTO, *picker.devices()):
        inputs.forget("device")
        best = "the CPU" if picker.devices()[0] == "cpu" else picker.devices()[0]
        link.trouble(f"The link asks for the device {device!r}, which is not here: it is shown for {best}.")
    elif device == picker.devices()[0]:
        inputs.forget("device")  # what is taken unless another is asked for
    if example in prompt_box.examples() and not by_run:
        prompt_box.pick(example)
    elif example and example not in prompt_box.examples():
        link.trouble(f"No bundled prompt has the id {example[:32]!r}, so another one stands in the box.")
    if inputs.value("text") is None:
        prompt_box.pick_for(picker.model())


def _open_short(run: str) -> bool:
    """Open the stored run that a link names; False, with the reason noted, where there is none."""
    try:
        open_run(lookup.by_short(run).request)
    except ParameterError as error:
        link.trouble(str(error))
        return False
    return True


def open_run(request: Request) -> None:
    """Put a result's model, control, prompt and parameters into the boxes; only from a callback, or before they are
    drawn. How a case study's page was looked at is put back by `case_view.open_live`."""
    spec, asked = request.models[0], request.prompts[0]
    if not _is_chosen(spec):  # what "auto" comes to may be this very model
        picker.choose(spec)
    inputs.put(
        {
            "template": asked.template,
            "special_tokens": asked.special_tokens,
            "control": spec.control or "none",
            "control.seed": spec.control_seed,
        }
    )
    bundled = (id for id, p in prompt_box.examples().items() if p["text"] == asked.text)
    prompt_box.fill(asked.text, asked.answer, next(bundled, ""))
    inputs.put({f"{request.probe}.{name}": boxed(value) for name, value in request.parameters})
    if _is_chosen(spec):
        return
    if picker.current().spec is None or picker.current().missing is not None:
        link.trouble(f"The linked run is of {spec.name}, which is not here now, so it is not shown.")
    else:
        link.trouble(
            f"The linked run was made with other weights than {spec.name} has now, so it is not shown. Run "
            "computes it for the present ones."
        )


def _is_chosen(spec: ModelSpec) -> bool:
    """Whether the chosen model, or this control of it, is the one of a run."""
    try:
        now = picker.current().spec
        now = twin(now, spec.control, spec.control_seed) if now is not None and spec.control else now
    except EffectiveDepthError:
        return False
    return now is not None and now.identity() == spec.identity()


def write(run: str = "") -> None:
    """Put what is on the screen into the URL: model, control, bundled prompt, what is off its default, and the run
    where there is one; never a prompt's text."""
    named = {"example": inputs.value("example", ""), "run": run[: lookup.SHORT]}
    everywhere = {"model": picker.model()} | link.carried((*OF_A_RUN, *BESIDE_IT))
    link.put(everywhere | {name: value for name, value in named.items() if value})


def say_troubles() -> None:
    """What a link asked for and did not get."""
    if troubles := link.troubles():
        more = f" And {len(troubles) - 2} more." if len(troubles) > 2 else ""
        st.warning(show.plain(" ".join(troubles[:2]) + more), icon=":material/link_off:")
