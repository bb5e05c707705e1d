"""What a model whose layers run several times does pass by pass."""

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.models.bundled import CHARACTERS, example_of, load_prompts
from ed_core.models.ref import Bundled
from ed_core.probes import Loops
from ed_core.results import lookup
from ed_core.results.aggregate import aggregate
from ed_core.types import ModelSpec, ProbeResult, Prompt
from ed_ui import link, live, picker, probe_page, prompt_box, running, show
from ed_ui.inputs import of_probe


def page() -> None:
    link.own(of_probe(Loops))
    link.say_troubles()
    spec = picker.required()
    if spec.n_passes == 1:
        link.write()
        return in_its_place(spec)
    prompt_box.draw()
    place = running.row_begins()
    probe = probe_page.form(Loops, row=probe_page.options(place, of_probe(Loops)))
    batch = running.batch("loops", {"loops": probe.request(spec, prompt_box.prompt())})
    probe_page.top_row("loops", batch, place=place)
    live.follow(batch, panels)
    probe_page.exactly(Loops)


def in_its_place(spec: ModelSpec) -> None:
    """Of a model whose layers run once: that it has no loops, and below it the stored example of a looped one."""
    looped = Bundled(CHARACTERS[0]).opened_as()
    known = next(p for p in load_prompts(looped.name) if p["id"] == example_of(looped.name))
    result = lookup.find_shown(Loops().request(looped, Prompt(known["text"], known["answer"])))
    told = dict(name=show.plain(spec.name), other=show.plain(looped.name), prompt=show.code(known["text"], 60))
    st.info(ONCE.format(**told), icon=":material/replay:")
    if result is not None:
        found(result)
    probe_page.texts(TEXTS)


def panels(batch: running.Batch) -> None:
    result = batch.result("loops")
    whole = result is not None and result.complete
    link.write(result.request.key if whole else "")
    probe_page.status(batch, "loops")
    if not whole:
        show.empty(Loops.title, "" if batch.running else TEACH, probe_page.MAP_HEIGHT, first=True)
        return probe_page.texts(TEXTS)
    found(result)
    probe_page.texts(TEXTS)


def found(result: ProbeResult) -> None:
    values = aggregate(Loops(), [result.summary])
    show.conclusion("loops", say.loops(values))
    drawn = figures.loop_curves(values)
    for i in range(0, len(drawn), 2):
        for column, (key, caption, measure, x, name, line) in zip(st.columns(2), drawn[i : i + 2], strict=True):
            fig = figures.layer_curves({name: line}, "", result.measures[measure].spec.unit, x=x)
            show.figure(f"loops-{key}", fig, caption, result, measure, place=column)


ONCE = """**{name}** runs each of its layers once, so there are no loops to measure. Below is the stored example of
**{other}**, whose layers run several times, on {prompt}. Choose that model on top to measure other prompts."""
TEACH = """Not computed yet. **Run** reads the model's prediction after every pass, tries other numbers of passes, and
leaves out each layer in all of them."""
TEXTS = {
    "The papers saw": "A model with shared layers, trained without loss on the question, solved longer problems "
    "more often than a plain one (Csordás et al. 2025). They read its depth by erasure alone, with one seed and "
    "without a model of as few parameters beside it.",
    "Look for": "a divergence that falls at every pass before the last (after that one it is 0 by "
    "construction): then later passes still bring the readout closer to the output. A change near 0: further passes "
    "hardly move the stream.",
    "By construction": "The readout after the last pass is the output. All passes are the same layers: leaving out "
    "any one is one pass fewer, and exchanging two changes nothing. What stands between passes, a norm or the "
    "embedding added again, belongs to no layer.",
    "Beware": "With fewer or more passes than it was trained with, a model is another model: that it gets worse says "
    "little about what its passes do.",
}

page()
