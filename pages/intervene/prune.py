"""Which layers can go, measured; and where the model could have stopped."""

import math

import streamlit as st

from ed_core import figures
from ed_core.depth import among_others, headroom, say, surgery, writing
from ed_core.figures.canvas import size
from ed_core.models import controls
from ed_core.probes import EarlyExit, ExactAnswers, LogitLens, Prune
from ed_core.probes.surgery import PROXIES as BY_PROXY
from ed_core.results import aggregate
from ed_core.statistics import units
from ed_ui import control_model, link, live, picker, probe_page, prompt_set, running, show
from ed_ui.inputs import of_probe

PROBES = (Prune, EarlyExit, LogitLens)


def page() -> None:
    link.own([*prompt_set.parameters(), *(p for probe in PROBES for p in of_probe(probe, PARAMETERS[probe.name]))])
    link.say_troubles()
    if not (prompts := prompt_set.choose()):
        return
    place = running.row_begins()
    more = probe_page.options(place, (p for probe in PROBES for p in of_probe(probe, PARAMETERS[probe.name])))
    asked = {probe.name: probe_page.form(probe, PARAMETERS[probe.name], more) for probe in PROBES}
    spec = picker.required()
    if (n_layers := spec.n_layers) is not None:
        asked["prune"].check_layers(n_layers)
    known = prompt_set.run_when(spec, prompts)
    written = ExactAnswers(n=asked["prune"].n)
    answered = [i for i, prompt in enumerate(prompts) if prompt.answer.strip()]
    requests = {
        f"{name}.{i}": probe.request(spec, prompt) for i, prompt in enumerate(prompts) for name, probe in asked.items()
    } | {f"{written.name}.{i}": written.request(spec, prompts[i]) for i in answered}
    batch = running.batch("prune", control_model.with_control(requests))
    probe_page.top_row("prune", batch, more, place=place, **known)
    stored = len(prompts) == 1 and "prune.0" in batch.results and not batch.running
    link.write(requests["prune.0"].key if stored else "")
    live.follow(batch, panels, asked, written, len(prompts))
    prompt_set.command(batch, [*asked.values(), *[written] * (len(answered) == len(prompts))], prompts)
    probe_page.exactly(Prune, ExactAnswers, EarlyExit)


def panels(batch: running.Batch, asked: dict, written: ExactAnswers, n_prompts: int) -> None:
    """Everything that fills while jobs run: aggregates over the prompts that all probes have been measured on."""
    done = [i for i in range(n_prompts) if all(batch.complete(f"{name}.{i}") is not None for name in asked)]
    pruned, leaving, lens = ([batch.results[f"{name}.{i}"] for i in done] for name in asked)
    twins = {name: control_model.results(batch, [f"{name}.{i}" for i in done]) for name in asked}
    prompt_set.status(batch, pruned, n_prompts)
    stretches(pruned, twins["prune"], asked["prune"], batch.running)
    with st.container(key="offers"):
        if pruned:
            offers(pruned, asked["prune"], ready=not batch.running and len(pruned) == n_prompts)
    answers(batch, asked["prune"], written, n_prompts)
    if pruned:
        whole = among_others.over_prompts(asked["prune"], [r.summary for r in pruned])["nll_whole"]
        show.notes([say.worse_than_uniform(float(whole), pruned[0].provenance.get("d_vocab"))])
    probe_page.texts(TEXTS)
    exits(leaving, twins["early_exit"], lens, batch.running)


def behind(twins: list, probe, name: str) -> dict:
    """The control's aggregate over the same prompts, under its name; nothing until all of them have been through it."""
    if not twins:
        return {}
    values = among_others.over_prompts(probe, [r.summary for r in twins])[name]
    return {controls.label(twins[0].request.models[0]): values}


def curve(key: str, results: list, twins: list, probe, name: str, title: str, unit: str, x: str, reading: str) -> None:
    """One aggregate over the prompts, above the spread of the single prompts where there are some."""
    values = among_others.over_prompts(probe, [r.summary for r in results])[name]
    spread, n = among_others.quantiles([among_others.curves_of(probe, r.summary)[name] for r in results])
    twin, log, over = behind(twins, probe, name), name == "perplexity", say.spread(n, "prompts")
    look = dict(x=x, label="over all tokens", others=over, height=HEIGHT, log=log, behind=twin)
    fig = figures.spread_curve(values, spread, unit, **look)
    show.figure_of_many(key, fig, title, results, f"{probe.name}.{name}", x, values, title, reading)


def stretches(results: list, twins: list, asked: Prune, busy: bool) -> None:
    """Measured cost per stretch, and how the proxies rank them."""
    x = "first layer taken out" if asked.n > 1 else "layer taken out"
    for row in (MEASURED[:2], MEASURED[2:]):
        for column, (name, title, unit, reading) in zip(st.columns(2), row, strict=False):
            with column:
                if not results:
                    show.empty(title, "" if busy else TEACH[name], HEIGHT, first=name == "kl")
                elif name == "perplexity" and all(r.n_tokens < 2 for r in results):
                    show.empty(title, ONE_TOKEN, HEIGHT)
                elif name:
                    curve(name, results, twins, asked, name, title, unit, x, reading)
                else:
                    proxies(results, asked, x)
    derived = among_others.over_prompts(asked, [r.summary for r in results]) if results else {}
    columns = st.container(key="metrics-ranks").columns(len(BY_PROXY) + 1)
    for column, name in zip(columns, (*BY_PROXY, "top1_lost"), strict=True):
        column.metric(f"{RANKED[name]} against measured KL", signed(derived.get(f"spearman_{name}")), help=SPEARMAN)


def proxies(results: list, asked: Prune, x: str) -> None:
    curves = among_others.over_prompts(asked, [r.summary for r in results])
    lines = {name.replace("_", " "): curves[name] for name in BY_PROXY}
    fig, values = figures.layer_curves(lines, "", "proxy", x=x, height=HEIGHT), curves["block_influence"]
    title = "Proxies of the same stretches"
    show.figure_of_many("proxies", fig, title, results, "prune.block_influence", x, values, PROXY, PROXIES)


def signed(value) -> str:
    return "–" if value is None or value != value else say.number(float(value), "+.2f")


def offers(results: list, asked: Prune, ready: bool) -> None:
    """The cheapest stretch and the chosen set, in words and as files."""
    curves = aggregate.aggregate(asked, [r.summary for r in results])
    best = surgery.best_stretch(curves["kl"], asked.n)
    if math.isfinite((cost := surgery.costs(curves, best[0]))["kl"]):
        title = f"Least KL, {asked.n} layers in a row" if asked.n > 1 else "Least KL, one layer"
        if surgery.whole_passes(asked.n, results[0]):
            title = "Whichever stretch is left out, it is whole passes and costs the same, for instance"
        offer(results, best, cost, title, "best", ready)
    else:
        st.markdown("Whichever is left out, the predictions are not finite: there is no cheapest one to offer.")
    if asked.drop:
        offer(results, list(asked.drop), surgery.costs(curves, None), "The chosen set", "set", ready)


def offer(results: list, drop: list[int], cost: dict[str, float], title: str, key: str, ready: bool) -> None:
    """One pruning in words, and what to hand to other tools."""
    layers, text = ", ".join(map(str, sorted(drop))), "this text" if len(results) == 1 else "these texts"
    row = st.container(horizontal=True, vertical_alignment="center")
    told = f"KL {say.number(cost['kl'])} nats, {say.share(cost['top1_kept'])} of the best guesses stay"
    if "perplexity" in cost:
        told += f", perplexity on {text} {size(cost['perplexity_whole'])} → {size(cost['perplexity'])}"
    row.markdown(f"**{title}: {layers}** · {told if math.isfinite(cost['kl']) else 'the predictions are not finite'}")
    order = [layer for layer in range(results[0].n_layers) if layer not in drop]
    probe_page.offer(row, results, order, cost, key, ready, "Keep-list", EXPORTS)


def answers(batch: running.Batch, asked: Prune, written: ExactAnswers, n_prompts: int) -> None:
    """Likelihood against generation, over the prompts with a known answer that both have been measured on."""
    st.markdown("#### Likelihood against generation")
    if not any(f"{written.name}.{i}" in batch.requests for i in range(n_prompts)):
        return st.markdown(NO_ANSWERS)
    both = ("prune", written.name)
    done = [i for i in range(n_prompts) if all(batch.complete(f"{name}.{i}") is not None for name in both)]
    if not done:
        for column, title in zip(st.columns(2), WRITTEN, strict=True):
            with column:
                show.empty(title, "" if batch.running else TEACH[title], HEIGHT)
        return None
    pruned, found = ([batch.results[f"{name}.{i}"] for i in done] for name in both)
    curves = among_others.over_prompts(asked, [r.summary for r in pruned])
    share = aggregate.aggregate(written, [r.summary for r in found])
    show.conclusion("answers", say.kept_answers(share, len(done), asked.n))
    if len(done) < n_prompts:
        st.caption(f"Over the {len(done)} of {n_prompts} prompts that have a known answer and are measured.")
    beside = behind(control_model.results(batch, [f"{written.name}.{i}" for i in done]), written, "exact")
    x, whole = "first layer taken out" if asked.n > 1 else "layer taken out", 0 * share["exact"] + share["exact_whole"]
    told = {
        "exact": ({"exact answers": share["exact"]}, {"all layers": whole} | beside, "share"),
        "added": ({"added loss": curves["nll"] - curves["nll_whole"]}, {}, "nats"),
    }
    for column, title, (key, (lines, others, unit)) in zip(st.columns(2), WRITTEN, told.items(), strict=True):
        fig = figures.layer_curves(lines, "", unit, x=x, height=HEIGHT, behind=others)
        if unit == "share":
            fig.layout.yaxis.range = [-0.04, 1.04]
        (values,), name = lines.values(), f"{written.name}.exact" if key == "exact" else "prune.nll - nll_whole"
        with column:
            show.figure_of_many(
                key, fig, title, found if key == "exact" else pruned, name, x, values, title, WRITTEN[title]
            )


def exits(leaving: list, twins: list, lens: list, busy: bool) -> None:
    """Agreement and confidence per depth, and what a threshold gives."""
    left, right = st.columns([2, 1])
    figures_of = right.container(key="metrics-exit")
    if leaving:
        curves = aggregate.aggregate(EarlyExit, [r.summary for r in leaving])
        leaves = writing.exits_of_prompts(leaving, aggregate.probe_of(leaving[0]).threshold)
        show.conclusion("exit", say.exits(leaves), place=left)
        lines = {name: curves[name] for name in ("agreement", "confidence")}
        twin = behind(twins, EarlyExit, "agreement")
        fig = figures.layer_curves(lines, "", "share", x="depth", height=HEIGHT, behind=twin)
        of = ("early_exit.agreement", "depth", curves["agreement"], EXIT_TITLE, EXIT)
        with left:
            show.figure_of_many("exit", fig, EXIT_TITLE, leaving, *of)
        told = f"{float(curves['exit_depth']):.1f} of {leaving[0].n_layers}" if leaves.usable else "not usable here"
        figures_of.metric("Mean exit depth", told, help=EarlyExit.spec("exit_depth").meaning)
        agrees = say.share(float(curves["exit_agrees"]), signs=True)
        figures_of.metric("Agreement on leaving", agrees, help=EarlyExit.spec("exit_agrees").meaning)
        spared(leaving, left)
    else:
        with left:
            show.empty(EXIT_TITLE, "" if busy else TEACH["exit"], HEIGHT)
    if lens:
        ratio = aggregate.aggregate(LogitLens, [r.summary for r in lens])["deep_thinking_ratio"]
        figures_of.metric(
            "Deep-thinking ratio",
            say.share(float(ratio), signs=True),
            help=LogitLens.spec("deep_thinking_ratio").meaning,
        )
    right.caption(EXIT_CAUTION)


def spared(leaving: list, place) -> None:
    """Agreement against the layers spared, by a fixed exit, a confident one and an oracle."""
    over = units(len(leaving), [r.request.prompts[0].form for r in leaving])
    found = headroom.headroom([headroom.Tokens.of(r) for r in leaving], over)
    show.conclusion("spared", say.headroom(found), place=place)
    best = int(found.accepted[:-1].argmax())
    about = f"{SPARED} Drafting with the first {best} layers, {found.accepted[best]:.1f} tokens in a row are accepted."
    values = found.fixed.value
    with place:
        of = ("early_exit.agreement", "depth", values, "Agreement against layers spared", about)
        show.figure_of_many("spared", figures.spared_layers(found, HEIGHT), of[3], leaving, *of)


HEIGHT = 280
SPARED = (
    "The oracle leaves each token at the first depth whose best token is the output's, so it always agrees; headroom "
    "is the mean settle depth less the mean oracle depth."
)
WRITTEN = {  # titles, and how to read them
    "Measured: share of known answers that are written exactly": "The model writes greedily; the answer is there or "
    "not. Leaving out a layer can add little loss and lose the answer, or add much loss and keep it.",
    "Measured: log-loss added on the same prompts": "Mean log-loss on the next token without the stretch, less the "
    "whole model's.",
}
NO_ANSWERS = "No chosen prompt has a known answer, so what the model writes cannot be compared with one: give answers."
PARAMETERS = {
    "prune": ("n", "drop"),
    "early_exit": ("threshold",),
    "logit_lens": ("g", "rho"),
}  # of the lens, what the deep-thinking ratio depends on
TEACH = {
    "Measured: share of known answers that are written exactly": "Whether the model, writing freely, still gives the "
    "known answer with each layer, or each stretch of the chosen length, left out in turn.",
    "Measured: log-loss added on the same prompts": "What the same layer costs by the loss on the given text.",
    "kl": "Not computed yet. **Run** takes each layer, or each stretch of the chosen length, out in turn, and measures "
    "what the predictions lose.",
    "top1_kept": "How many best guesses survive without the stretch.",
    "perplexity": "How much worse the text itself is predicted.",
    "": (
        "Block influence, angular distance and cosine: what layers are usually chosen by, and how well they rank what "
        "was measured."
    ),
    "exit": (
        "At every depth, the share of tokens whose best guess is already the whole model's; and where tokens would "
        "leave."
    ),
}
ONE_TOKEN = "A single token has no next one whose loss could be measured."
READING = """Low is cheap: the predictions hardly change without the stretch that begins there."""
MEASURED = (
    ("kl", "Measured: divergence from the whole model", "nats", READING),
    ("top1_kept", "Measured: share of the best guesses that stay", "share", "High is cheap."),
    (
        "perplexity",
        "Measured: perplexity on the text without the stretch",
        "perplexity",
        "exp of the mean log-loss on the next token.",
    ),
    ("", "Proxies of the same stretches", "", ""),
)
RANKED = {
    "block_influence": "Block influence",
    "angular_distance": "Angular distance",
    "update_cosine": "Update's cosine",
    "top1_lost": "Best guesses lost",
}
SPEARMAN = """Spearman's rank correlation over the stretches. +1: ranks them as the measurement does. For the update's
cosine expect a negative one if layers that strengthen what is there (cosine above 0) are those that can go. Best
guesses lost: the two measurements against each other."""
PROXY = "how far the stretch turns the stream, 1 - cos(h[s], h[s+n]); the other two proxies are in the same result"
PROXIES = """If a proxy were a good guide, its curve would rise and fall with the measured one (the cosine's the other
way round)."""
EXPORTS = "Made from the aggregate over all chosen prompts; the file says how many prompts and tokens it rests on."
EXIT_CAUTION = """Confident is not correct: where embedding and head share their weights, depth 0 is confident of the
token it has just read. Choose a threshold by the agreement, not by the confidence."""
EXIT_TITLE = "Early exit through the lens, depth by depth"
EXIT = """Agreement at a depth is the share of tokens whose best guess there is the whole model's. No exit was trained
for this."""
TEXTS = {
    "The papers saw": "Up to half of the layers of Llama-2 and its like can go with little loss on question answering "
    "after light fine-tuning, mathematics being the exception; deep contiguous layers go first (Gromov et al. 2024). "
    "Llama-2-13B without 10 of 40: MMLU 55.0 → 52.2 (ShortGPT, Men et al. 2024).",
    "Look for": "a stretch that is cheap on all three curves; then whether the proxies would have found it.",
    "By construction": (
        "Agreement at the last depth is 1. Nothing else is fixed by construction: a stretch at the very start or end "
        "is measured like any other."
    ),
    "Beware": "Cosine is a weak proxy: one OLMo layer of low influence cost 66 % of the accuracy (Hinostroza et al. "
    "2026, arXiv 2605.14075). These figures hold for the chosen prompts, before any healing by fine-tuning.",
}

page()
