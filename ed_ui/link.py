"""What the URL carries: the model, the prompt where it is bundled or stored, the control, a page's own inputs; and how
a link or a stored result fills the boxes.

What is at its default is left out, and a prompt's text never enters: addresses end in the logs of proxies. Whole pages
write the URL when they end, once the browser knows which page it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from ed_core.errors import EffectiveDepthError, ParameterError
from ed_core.models.bundled import example_of
from ed_core.probes import find
from ed_core.results import lookup
from ed_core.types import ModelSpec, Request
from ed_ui import browser, inputs, picker, prompt_box, session, show
from ed_ui.inputs import Input, boxed, number

MOST_TOKENS = 10**6  # a token's number in a link
OF_A_RUN = (  # what a stored run decides
    picker.MODEL,
    picker.PRECISION,
    picker.ADAPTER,
    picker.REVISION,
    picker.DEVICE,
    prompt_box.TEMPLATE,
    prompt_box.SPECIAL_TOKENS,
)
TOKEN = number("token", "token", None, 0, MOST_TOKENS, int)
BESIDE_IT = (inputs.CONTROL, inputs.CONTROL_SEED, TOKEN)

# -------------------------------------------------------------------- reading


def state() -> session.Link:
    """Return the session's record of the URL."""
    return session.current().link


def arrived(page: str) -> bool:
    """Note that `page` is open, and return whether the URL decides the inputs in this run: in a session's first run,
    after Back or Forward, and where one of our links opened another page."""
    link = state()
    moved, link.first = link.page != page, link.page is None
    if link.first:
        link.base = (st.context.url or "").removesuffix(page).removesuffix("/") + "/"
    if moved:
        link.values = {}
    link.under_way = True
    link.page, link.own, link.written = page, (), False
    linked = moved and st.query_params.to_dict() not in ({}, link.given.get(page))
    link.arrived = link.first or _came_by_history() or linked
    link.due = link.arrived or (link.due and not moved)
    return link.arrived


def _came_by_history() -> bool:
    """Return whether Back or Forward caused this run. Streamlit has no public name for it, and the URL cannot tell: a
    rerun may bring an older query along, which is what Back brings."""
    return bool(getattr(get_script_run_ctx(suppress_warning=True), "is_history_navigation", False))


def take(parameters: Iterable[Input], reset: bool = True) -> None:
    """Set inputs to the values in the URL. `reset`: those that it does not name go back to their defaults, except in a
    session's first run. An invalid value is left out, with a sentence for `say_troubles`."""
    for parameter in parameters:
        given = st.query_params.get(parameter.name)
        if given is not None:
            try:
                inputs.put({parameter.key: parameter.read(given)})
            except ParameterError as error:
                trouble(f"One parameter of the link was ignored: {error}")
        elif reset and not state().first:
            inputs.forget(parameter.key)


def own(parameters: Iterable[Input]) -> None:
    """Declare a page's own inputs and set them from the URL where it decides; call it before their boxes are drawn.
    Where the URL decided in a run that was restarted before it came to the page, as the download box does when the hub
    answers, it decides on these now."""
    link = state()
    link.own = link.owns[link.page or ""] = tuple(parameters)
    link.arrived, link.due = link.arrived or link.due, False
    if link.arrived:
        take(link.own, reset=not link.by_run)


def follows(parameter: Input) -> bool:
    """Return whether the URL decides in this run, and has a valid value of this input."""
    return bool(state().arrived and st.query_params.get(parameter.name) and inputs.value(parameter.key))


def among(parameter: Input, there: Collection[str], what: str, several: bool = False) -> None:
    """Note for `say_troubles` where a link names something that is not in `there`, so that the page shows another one.
    `what`: its noun. `several`: the value is a list with commas."""
    wanted = str(inputs.value(parameter.key) or "")
    names = wanted.split(",") if several else [wanted]
    missing = next((name for name in names if name and name not in there), "")
    if state().arrived and parameter.name in st.query_params and missing:
        trouble(f"The link asks for the {what} {missing[:32]!r}, which is not here.")


def trouble(sentence: str) -> None:
    """Note what a link asked for and did not get; `say_troubles` says it."""
    state().troubles.append(sentence)


def say_troubles() -> None:
    """Show in a warning what a link asked for and did not get, two sentences at most."""
    troubles, state().troubles = list(dict.fromkeys(state().troubles)), []
    if troubles:
        more = f" And {len(troubles) - 2} more." if len(troubles) > 2 else ""
        st.warning(show.plain(" ".join(troubles[:2]) + more), icon=":material/link_off:")


# -------------------------------------------------------------------- filling the boxes


def open_link(page: str) -> None:
    """Fill the boxes from the URL where it decides, before anything is drawn: with the run or bundled prompt that it
    names, and its other parameters. A session that nothing fills begins with the shipped example. `page`: its path."""
    if not arrived(page):
        return
    key, example = st.query_params.get("run", ""), st.query_params.get("example", "")
    complete = "model" in st.query_params
    take(OF_A_RUN, reset=complete)
    by_run = state().by_run = bool(key) and _open_short(key)
    take(BESIDE_IT, reset=complete and not by_run)
    if (device := picker.DEVICE.value) and device not in (picker.AUTO, *picker.devices()):
        inputs.forget(picker.DEVICE.key)
        best = "the CPU" if picker.devices()[0] == "cpu" else picker.devices()[0]
        trouble(f"The link asks for the device {device!r}, which is not here: it is shown for {best}.")
    elif device == picker.devices()[0]:
        inputs.forget(picker.DEVICE.key)  # what is taken unless another is asked for
    if example in prompt_box.examples() and not by_run:
        prompt_box.pick(example)
    elif example and example not in prompt_box.examples():
        trouble(f"No bundled prompt has the id {example[:32]!r}, so another one is in the box.")
    if inputs.value("text") is None:
        prompt_box.pick(example_of(picker.model()))


def _open_short(run: str) -> bool:
    """Open the stored run with this short id and return True; False, with the reason noted, where none is stored."""
    try:
        open_run(lookup.by_short(run).request)
    except ParameterError as error:
        trouble(str(error))
        return False
    return True


def open_run(request: Request) -> None:
    """Put a result's model, control, prompt and parameters into the boxes, before they are drawn."""
    spec, prompt = request.models[0], request.prompts[0]
    if not _is_chosen(spec):  # what "auto" comes to may be this very model
        picker.choose(spec)
    inputs.put(
        {
            "template": prompt.template,
            "special_tokens": prompt.special_tokens,
            "control": spec.control or inputs.NONE,
            "control.seed": spec.control_seed,
        }
    )
    bundled = (id for id, p in prompt_box.examples().items() if p["text"] == prompt.text)
    prompt_box.fill(prompt.text, prompt.answer, next(bundled, ""))
    inputs.put({f"{request.probe}.{name}": boxed(value) for name, value in request.parameters})
    for name, other in zip(find(request.probe).further_prompts(), request.prompts[1:]):
        inputs.put({f"{request.probe}.{name}.text": other.text, f"{request.probe}.{name}.answer": other.answer})
    if _is_chosen(spec):
        return
    if picker.current().spec is None or picker.current().missing is not None:
        trouble(f"The linked run is of {spec.name}, which is not here now, so it is not shown.")
    else:
        trouble(
            f"The linked run was made with other weights than {spec.name} has now, so it is not shown. Run "
            "computes it for the present ones."
        )


def _is_chosen(spec: ModelSpec) -> bool:
    """Return whether a run's model is the chosen model, or the run's kind of control of it."""
    try:
        now = picker.current().spec
        now = now.twin(spec.control, spec.control_seed) if now is not None and spec.control else now
    except EffectiveDepthError:
        return False
    return now is not None and now.identity() == spec.identity()


# -------------------------------------------------------------------- writing


def carried(parameters: Iterable[Input]) -> dict[str, str]:
    """Return as text the values of inputs that are off their defaults, by name."""
    kept = ((p, inputs.value(p.key, p.default)) for p in parameters)
    return {p.name: p.write(value) for p, value in kept if value not in (p.default, None)}


def put(values: Mapping[str, str]) -> None:
    """Make these the URL's parameters, with the page's own, at the end of a whole run. A fragment that runs by itself
    writes only a change: it may be one of a page that the browser has just left."""
    link = state()
    before, link.values, link.written = link.values, dict(values) | carried(link.own), True
    if not link.under_way and link.values != before:
        st.query_params.from_dict(link.values)


def end_of_run() -> None:
    """Write the URL after a whole run of the page, also of one that ended early with a question or an error."""
    link = state()
    if link.own and not link.written:
        write()
    if link.written and st.query_params.to_dict() != link.values:
        st.query_params.from_dict(link.values)
    browser.say_link()
    link.first = link.under_way = link.due = False


def write(run: str = "") -> None:
    """Write the view into the URL: model, control, the bundled prompt or else the id of the `run`, and inputs off their
    defaults; never a prompt's text."""
    example = inputs.value("example", "")
    put(_everywhere() | ({"run": run[: lookup.SHORT]} if run and not example else {}))


def to(page: str) -> dict[str, str]:
    """Return the URL parameters that a page will write itself, for the frame's link to it: Back needs one step."""
    state().given[page] = _everywhere() | carried(state().owns.get(page, ()))
    return state().given[page]


def _everywhere() -> dict[str, str]:
    """Return the URL parameters of every page about a model: model, control, token and bundled prompt."""
    example = inputs.value("example", "")
    named = {"example": example} if example else {}
    return {"model": picker.model()} | carried((*OF_A_RUN, *BESIDE_IT)) | named
