"""Which layers can go, measured; and where the model could have stopped."""
import streamlit as st

from ed_core import aggregate, figures, pruning
from ed_core.errors import ParameterError
from ed_core.probes import EarlyExit, Prune
from ed_ui import probe_page, running, scope, show

TEACH = """Not computed yet. **Run** takes every stretch of blocks out in turn and measures what the predictions lose, beside the proxies by which
layers are usually chosen; and lets every token leave at the first depth where the lens is sure."""
READING = """Low is cheap: the predictions hardly change without the stretch that begins there. In Llama-2 and its like up to half of the layers
can go with little loss on question answering, mathematics being the exception (Gromov et al. 2024)."""
PROXIES = """If a proxy were a good guide, its curve would rise and fall with the measured one. Cosine-based proxies are known to miss layers
that matter (Hinostroza et al. 2026)."""
EXIT = """Agreement at a depth is the share of tokens whose best guess there is the whole model's. No exit was trained for this."""


def page() -> None:
    st.subheader(Prune.title, anchor=False)
    scope.prompt_box()
    chosen = scope.current()
    try:
        asked = {"prune": probe_page.form(Prune), "early_exit": probe_page.form(EarlyExit)}
    except ParameterError as error:
        st.error(show.plain(str(error)), icon=":material/error:")
        return
    if chosen.spec is None:
        st.error(show.plain(chosen.trouble), icon=":material/error:")
        return
    batch = running.batch("prune", {name: probe.request(chosen.spec, scope.prompt()) for name, probe in asked.items()})
    running.controls("prune", batch, ready=scope.ready(), n_tokens=scope.n_tokens())
    scope.remember(batch.requests["prune"].key if "prune" in batch.results and not batch.running else "")
    st.fragment(panels, run_every=running.POLL_SECONDS if batch.running else None)(batch, asked["prune"])
    with st.expander("What this measures, and what the papers saw"):
        st.markdown(Prune.__doc__)
        st.markdown(EarlyExit.__doc__)


def panels(batch: running.Batch, asked: Prune) -> None:
    if batch.jobs and running.poll(batch):
        st.rerun()
    probe_page.status(batch)
    pruned, leaving = batch.result("prune"), batch.result("early_exit")
    if not batch.results and not batch.jobs and not batch.errors:
        st.info(TEACH, icon=":material/play_circle:")
    if pruned is not None and pruned.complete:
        stretches(pruned, asked)
    if leaving is not None and leaving.complete:
        exits(leaving)


def stretches(result, asked: Prune) -> None:
    """Measured cost and proxies per stretch, the cheapest one, and its exports."""
    curves = aggregate.aggregate(Prune, [result.summary])
    left, right = st.columns(2)
    with left:
        measured = {"KL from the whole model": curves["kl"]}
        show.figure("kl", figures.layer_curves(measured, "", "nats", x="first block taken out"), "Measured: what the predictions lose", result, "kl", READING)
    with right:
        proxies = {name.replace("_", " "): curves[name] for name in pruning.PROXIES}
        show.figure("proxies", figures.layer_curves(proxies, "", "distance", x="first block taken out"), "Proxies of the same stretches", result, "block_influence", PROXIES)
    columns = st.columns(len(pruning.PROXIES) + 1)
    for column, name in zip(columns, pruning.PROXIES):
        found = pruning.rank_correlation(curves[name], curves["kl"])
        column.metric(f"{name.replace('_', ' ').capitalize()} against measured", "–" if found is None else f"{found:+.2f}", help="Spearman's rank correlation over the stretches; 1 = ranks them as the measurement does")
    found = pruning.rank_correlation(1 - curves["top1_kept"], curves["kl"])
    columns[-1].metric("Best guesses lost against KL", "–" if found is None else f"{found:+.2f}", help="the two measurements against each other")
    best = pruning.best_stretch(curves["kl"], asked.n)
    offer(result, best, pruning.costs(curves, best[0]), f"Cheapest stretch of {asked.n}" if asked.n > 1 else "Cheapest block", "best")
    if asked.drop:
        offer(result, list(asked.drop), pruning.costs(curves, None), "The chosen set", "set")


def offer(result, drop: list[int], cost: dict[str, float], title: str, key: str) -> None:
    """One pruning in words, and what to hand to other tools."""
    blocks = ", ".join(map(str, sorted(drop)))
    row = st.container(horizontal=True, vertical_alignment="center")
    row.markdown(
        f"**{title}: {blocks}** · KL {cost['kl']:.3g} nats, {cost['top1_kept']:.0%} of the best guesses stay, perplexity on this text "
        f"{cost['perplexity_whole']:.3g} → {cost['perplexity']:.3g}"
    )
    name = result.request.models[0].source
    row.download_button("Keep-list", pruning.keep_list(result.n_layers, drop, name, cost), f"keep-{key}.json", "application/json", key=f"json-{key}", icon=":material/download:")
    row.download_button("mergekit", pruning.mergekit_yaml(result.n_layers, drop, name), f"prune-{key}.yaml", "text/yaml", key=f"yaml-{key}", icon=":material/download:")


def exits(result) -> None:
    """Agreement and confidence per depth, and what a threshold gives."""
    curves = aggregate.aggregate(EarlyExit, [result.summary])
    left, right = st.columns([2, 1])
    with left:
        lines = {"agreement": curves["agreement"], "confidence": curves["confidence"]}
        show.figure("exit", figures.layer_curves(lines, "", "share", x="depth"), "Early exit through the lens, depth by depth", result, "agreement", EXIT)
    right.metric("Mean exit depth", f"{float(curves['exit_depth']):.1f} of {result.n_layers}", help=EarlyExit.spec("exit_depth").meaning)
    right.metric("Agreement on leaving", f"{float(curves['exit_agrees']):.0%}", help=EarlyExit.spec("exit_agrees").meaning)


show.guarded(page)
