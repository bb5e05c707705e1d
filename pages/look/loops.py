"""What a model whose layers run several times does pass by pass."""

import streamlit as st

from ed_core import figures
from ed_core.depth import loops
from ed_core.errors import EffectiveDepthError
from ed_core.probes import Loops
from ed_core.results.aggregate import aggregate
from ed_core.sources import sizes, specs
from ed_ui import common_link, link, live, picker, probe_page, prompt_box, running, show
from ed_ui.inputs import of_probe


def page() -> None:
    link.own(of_probe(Loops))
    common_link.say_troubles()
    spec = picker.required()
    n_passes = passes(spec)
    if n_passes == 1:
        common_link.write()
        st.info(ONCE.format(show.plain(spec.name)), icon=":material/replay:")
        return
    prompt_box.draw()
    place = running.row_begins()
    probe = probe_page.form(Loops, row=probe_page.options(place, of_probe(Loops)))
    batch = running.batch("loops", {"loops": probe.request(spec, prompt_box.prompt())})
    probe_page.top_row("loops", batch, place=place)
    live.follow(batch, panels)
    with st.expander("What this measures, exactly", expanded=False):
        st.markdown(Loops.__doc__)


def passes(spec) -> int | None:
    """How often the model's layers run; None where its size cannot be told."""
    try:
        return sizes.read(specs.config_of(spec)).passes
    except EffectiveDepthError:
        return None


def panels(batch: running.Batch) -> None:
    result = batch.result("loops")
    whole = result is not None and result.complete
    common_link.write(result.request.key if whole else "")
    probe_page.status(batch, "loops")
    if not whole:
        show.empty(Loops.title, "" if batch.running else TEACH, probe_page.MAP_HEIGHT, first=True)
        return probe_page.texts(TEXTS)
    values = aggregate(Loops(), [result.summary])
    n = len(values["pass_skip_kl"])
    show.conclusion("loops", loops.sentence(values))
    curves(result, values, n)
    swapped(result, values["pass_swap_kl"])
    probe_page.texts(TEXTS)


def curves(result, values, n: int) -> None:
    """Two in a row: readouts and other numbers of passes, what is left out, what a pass moves."""
    per_pass = values["fixed_point"].reshape(n - 1, -1).mean(1)
    drawn = [
        ("readout", "Readout after each pass, against the output", "readout_kl", "nats", "passes run",
         {"KL": values["readout_kl"][n, : n + 1]}),
        ("times", f"Loss with other numbers of passes (its own: {n})", "times_loss", "nats", "passes run",
         {"loss": values["times_loss"]}),
        ("pass-skip", "Without one pass: divergence", "pass_skip_kl", "nats", "pass left out",
         {"KL": values["pass_skip_kl"]}),
        ("block-skip", "Without one layer in every pass: divergence", "block_skip_kl", "nats", "layer left out",
         {"KL": values["block_skip_kl"]}),
        ("fixed", "Change of the stream from one pass to the next (0: a fixed point)", "fixed_point", "ratio",
         "pass, from the second on", {"change": per_pass}),
        ("update", "Length of what a pass adds", "update_norm", "norm", "pass", {"update": values["update_norm"]}),
    ]  # fmt: skip
    for i in range(0, len(drawn), 2):
        for column, (key, caption, measure, unit, x, lines) in zip(st.columns(2), drawn[i : i + 2], strict=True):
            fig = figures.layer_curves(lines, "", unit, x=x)
            show.figure(f"loops-{key}", fig, caption, result, measure, place=column)


def swapped(result, kl) -> None:
    """Two passes exchanged, as a table: there are few."""
    n = len(kl)
    head = "| exchanged with |" + "".join(f" pass {j + 1} |" for j in range(n))
    rows = [
        f"| **pass {i + 1}** |" + "".join(f" {_short(kl[i, j]) if i != j else '–'} |" for j in range(n))
        for i in range(n)
    ]
    st.caption("Two passes exchanged: divergence from the whole model, nats")
    st.markdown("\n".join([head, "|---" * (n + 1) + "|", *rows]))


def _short(value: float) -> str:
    return f"{float(value):.2g}"


ONCE = """**{}** runs each of its layers once. This tab is for looped models, whose layers run several times, such as
Ouro; choose one on top."""
TEACH = """Not computed yet. **Run** reads the model out after every pass, leaves out passes and layers, exchanges
passes, and tries other numbers of passes."""
TEXTS = {
    "The papers saw": "A model with shared layers that, trained without loss on the question, solved longer problems "
    "more often than a plain one (Csordás et al. 2025). They read its depth by erasure alone, with one seed and "
    "without a model of as few parameters beside it.",
    "Look for": "a divergence that falls with every pass: then later passes still work. A change near 0 is a fixed "
    "point: more passes do the same again.",
    "By construction": "The readout after the last pass is the output. What stands between passes, a norm or the "
    "embedding added again, belongs to no layer.",
    "Beware": "With fewer or more passes than it was trained with, a model is another model: that it gets worse says "
    "little about what its passes do.",
}

page()
