"""A card in words: the cells and sentences that page and Markdown share, and the Markdown with its YAML, as a hub's
model card takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..claims.claim import NOT_APPLICABLE
from ..claims.finding import counted, number, standing
from ..depth.lenses import called
from ..studies import report
from ..studies import words as of_depth
from .card import RULES, depth_of, mean_depth_of  # RULES: for the templates too

LEVELS = "Ranges are 5 to 95 % over the prompts."
NEVER = "The papers' three rules read different things and are never averaged."
MEAN = "mean over all thresholds of the depth from which the lens stays within the threshold of the output"
READS = {
    "cosine": "the last layer whose additions still point against the stream",
    "kl": "the first layer before which the lens is within half of its largest divergence from the output",
    "overlap": "the first layer before which the lens shares more than 30 % of its best tokens with the output",
}
MEAN_METRICS = {"kl": "mean_depth_ratio_kl", "overlap": "mean_depth_ratio_overlap"}
METRICS = {
    "cosine": "effective_depth_ratio_cosine",
    "kl": "effective_depth_ratio_kl",
    "overlap": "effective_depth_ratio_overlap",
}
CHOSEN = "Chosen and judged on the same prompts, and nothing is trained afterwards."


def headline(told: Mapping[str, Any]) -> str:
    """The answer: where the lens settles without a threshold, then the papers' three rules, under the logit lens."""
    model, layers = told["model"]["name"], told["model"]["layers"]
    means = [(of_depth.BY[of], row) for of in of_depth.BY if (row := mean_depth_of(told, of)) and row["depth"]]
    if not means:
        return f"Effective depth of {model} ({layers} layers): {rules(told)}."
    each = " and ".join(f"{mean(row)} by {by}" for by, row in means)
    return f"{model} settles around depth {each}, of {layers} (means over all thresholds)."


def rules(told: Mapping[str, Any]) -> str:
    """What the papers' rules give, and which of them are clear."""
    each = []
    for rule, name in RULES.items():
        row = depth_of(told, rule, "logit")
        if row is not None:
            found = "no depth" if row["depth"] is None else f"layer {depth(row)}{', not clearly,' * (not row['clear'])}"
            each.append(f"{found} by the {name if name == 'KL' else name.lower()} rule")
    return ", ".join(each)


def mean(row: Mapping[str, Any] | None) -> str:
    """A mean depth with its range: "18.3 (18.0 to 18.6)"; "–" where there is none."""
    return "–" if row is None else of_depth.plain(row["depth"], row["low"], row["high"])


def turn(told: Mapping[str, Any]) -> str:
    """Whether the cosine turns; "" where the card does not say."""
    found = told.get("turn")
    return found["sentence"] if found else ""


def facts(told: Mapping[str, Any]) -> str:
    """What the model is, in a line."""
    m = told["model"]
    shared = f", {m['key_value_heads']} for keys and values" if m["key_value_heads"] != m["heads"] else ""
    tied = "tied" if m["tied"] else "untied"
    return (
        f"{m['family']}, {m['layers']} layers of width {m['width']:,}, {m['heads']} heads{shared}, "
        f"{m['vocabulary']:,} tokens ({tied} head), {parameters(m['parameters'])} parameters, computed in "
        f"{m['precision']}"
    )


def parameters(n: int) -> str:
    """ "135 M", "7.6 B"."""
    value, unit = (n / 1e9, "B") if n >= 1e9 else (n / 1e6, "M")
    return f"{value:.3g} {unit}"


def on(told: Mapping[str, Any]) -> str:
    """On which prompts, in a line."""
    s = told["set"]
    levels = f" of {len(s['levels'])} levels" if s["levels"] else ""
    return f"{s['n']} prompts{levels} of {s['name']}"


def identities(told: Mapping[str, Any]) -> str:
    """Whether the sums of this model hold, with the figures."""
    found = told["identities"]
    if found["failures"]:
        return f"The identities do not hold: {found['failures'][0]}."
    slopes = "" if found["slope_error"] is None else f", slopes off 1 by up to {found['slope_error']:.1g}"
    return (
        f"The identities hold on {found['tokens']} tokens in {found['dtype']} (limit {found['miss_limit']:.0e}): the "
        f"layers' parts miss the next residual by up to {found['miss']:.1g}, the output by {found['closure']:.1g}, "
        f"layers replayed by hand by {found['replay']:.1g}{slopes}."
    )


def depth(row: Mapping[str, Any] | None) -> str:
    """A depth with its range: "20 (19–21)"; "–" where there is none."""
    if row is None or (row["depth"] is None and not row.get("low")):
        return "–"
    low_high = ""
    if row.get("low") is not None:
        ends = [report.number(row[end]) for end in ("low", "high")]
        low_high = f" ({ends[0]}–{ends[1]})"
    return report.number(row["depth"]) + low_high


def ratio(row: Mapping[str, Any]) -> str:
    return "–" if row["ratio"] is None else f"{row['ratio']:.2f}"


def rule(row: Mapping[str, Any]) -> str:
    """Which rule, under which lens."""
    return f"{RULES[row['rule']]}, {called(row['lens'])}" if row["lens"] else RULES[row["rule"]]


def mean_row(row: Mapping[str, Any]) -> str:
    """Which mean depth, under which lens."""
    return f"Mean depth, {of_depth.BY[row['of']]}, {called(row['lens'])}"


def variants(row: Mapping[str, Any]) -> str:
    """The variants of a rule, in a cell."""
    shown = report.SHOWN
    return "; ".join(f"{shown[name]}: {report.number(value)}" for name, value in row["variants"].items())


def value(found: Mapping[str, Any] | None, digits: int = 2, percent: bool = False) -> str:
    """A value with its range, as percentages or plain."""
    if found is None or found["value"] is None:
        return "–"

    def one(v: float) -> str:
        return f"{100 * v:.0f}" if percent else number(v, digits)

    unit = " %" if percent else ""
    if found["low"] is None:
        return f"{one(found['value'])}{unit}"
    return f"{one(found['value'])}{unit} ({one(found['low'])} to {one(found['high'])})"


def cut(one: Mapping[str, Any]) -> str:
    """What leaving out the cheapest stretch costs, as a sentence."""
    n, start = one["layers"], one["start"]
    what = f"layer {start}" if n == 1 else f"layers {start}–{start + n - 1}"
    of = "Of single layers" if n == 1 else f"Of {n} layers in a row"
    said = (
        f"{of}, the predictions change least without {what}: the loss changes by {value(one['loss'])} nats per token, "
        f"and {value(one['kept'], percent=True)} of the best guesses are kept."
    )
    angle = one["by_angle"]
    if angle["start"] == start:
        return f"{said} The angular distance chooses the same."
    there = f"layer {angle['start']}" if n == 1 else f"{angle['start']}–{angle['start'] + n - 1}"
    return f"{said} The angular distance would have chosen {there}, which changes it by {value(angle['loss'])}."


def leaving(told: Mapping[str, Any]) -> str:
    """What an early exit would have said of the tokens that the model writes."""
    found = told["exit"]
    if not found or found["mean_depth"] is None:
        return ""
    return (
        f"Of the {found['tokens']} tokens it writes after a prompt, the best guess settles at depth "
        f"{value(found['mean_depth'], 1)} of {told['model']['layers']} on average; "
        f"{value(found['mean_ratio'], percent=True)} settle late. Leaving where the logit lens is "
        f"{100 * found['threshold']:.0f} % sure would have said the same token in "
        f"{value(found['mean_agreement'], percent=True)}."
    )


def sinks(told: Mapping[str, Any]) -> str:
    found = told["sinks"]
    if found["tokens"] is None:
        return "Whether there are sinks cannot be told."
    named = f"In the first {found['named_of']} prompts: {found['named']}."
    if not found["tokens"]:
        return f"No token is a sink. {named}"
    tokens, first = 100 * found["tokens"], 100 * found["first"]
    return f"{tokens:.3g} % of the tokens are sinks, the first token in {first:.0f} % of the prompts. {named}"


def precision(told: Mapping[str, Any]) -> Iterator[str]:
    """What another precision changes, a sentence each."""
    own, rows = told["precision"]["own"], told["precision"]["rows"]
    for name in dict.fromkeys(row["precision"] for row in rows):
        of = [row for row in rows if row["precision"] == name]
        depths = ", ".join(f"{RULES[row['rule']]} {_moved(row)}" for row in of)
        orders = [row["order"] for row in of if row["order"] is not None]
        least = f"; the curves' order agrees with ρ ≥ {_down(min(orders))}" if orders else ""
        held = "keeps every depth within a layer" if all(row["same"] for row in of) else "moves the verdict"
        yield f"{name} {held} of {own}: {depths}{least}."


def _moved(row: Mapping[str, Any]) -> str:
    if row["depth"] is None:
        return "no depth" if row["same"] else "no depth any more"
    if row["moved"] is None:
        return f"{report.number(row['depth'])}, none before"
    return (
        f"{report.number(row['depth'])} ({row['moved']:+.0f})"
        if row["moved"]
        else f"{report.number(row['depth'])} (same)"
    )


def _down(value: float) -> str:
    return f"{int(value * 1000) / 1000:.3f}"


def claim(one: Mapping[str, Any]) -> tuple[str, str]:
    """A claim's values here, and the twin's."""
    if one["verdict"] == NOT_APPLICABLE:
        return one["reason"], "–"
    judging = [q for q in one["quantities"] if not q.get("beside")]
    here = [f"{q['name']}: {q['value']['short']}" if q["value"] else "–" for q in judging]
    twin = [q["control"]["short"] if q["control"] else "–" for q in judging]
    return "; ".join(here), "; ".join(twin)


def claims(told: Mapping[str, Any]) -> str:
    """How the claims came out."""
    return counted(told["claims"])


def stand(told: Mapping[str, Any]) -> str:
    """How many of the claims' verdicts stand when all are judged together; "" in a card of an older format."""
    return standing(told["claims"])


def markdown(told: Mapping[str, Any]) -> str:
    """A section for a model card, with its YAML in front."""
    lines = ["---", *metadata(told).splitlines(), "---", "", "## Effective depth", "", headline(told), ""]
    lines += [f"{facts(told)}. Measured on {on(told)}, {told['made']}. {LEVELS} {NEVER}", ""]
    lines += ["| | depth | share | variants | untrained twin |", "|---|---|---|---|---|"]
    for row in told.get("mean_depths", ()):
        twin = mean(row["twin"]) if row["twin"] else "not measured"
        lines.append(f"| {mean_row(row)} | {mean(row)} | {ratio(row)} | | {twin} |")
    for row in told["depths"]:
        twin = depth(row["twin"]) if row["twin"] else "not measured"
        lines.append(f"| {rule(row)} | {depth(row)} | {ratio(row)} | {variants(row)} | {twin} |")
    lines += ["", *(f"- {said}" for said in [turn(told)] if said)]
    lines += [f"- {row['sentence']}" for row in told["depths"] if row["sentence"]]
    lines += [f"- {told['lenses']['sentence']}"] if told["lenses"]["sentence"] else []
    lines += ["", "### Where depth can be cut", "", *(f"- {cut(one)}" for one in told["cuts"])]
    lines += [f"- {CHOSEN}", *(f"- {said}" for said in [leaving(told)] if said)]
    lines += ["", "### Published claims", "", f"{claims(told)}.", ""]
    lines += [f"{stand(told)}.", ""] if stand(told) else []
    lines += ["| claim | source | verdict | here | untrained twin |", "|---|---|---|---|---|"]
    for one in told["claims"]:
        cells = (one["title"], one["source"], f"**{one['verdict']}**", *claim(one))
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
    lines += ["", "### What to know of the numbers", "", f"- {identities(told)}", f"- {sinks(told)}"]
    lines += [f"- {said}" for said in (*precision(told), *told["lenses"]["certificates"].values(), *told["missing"])]
    lines += ["", "Made by:", "", *(f"    {command}" for command in told["commands"]), ""]
    return "\n".join(lines)


def metadata(told: Mapping[str, Any]) -> str:
    """The YAML of a model card: the ratios as evaluation results."""
    from huggingface_hub import EvalResult, ModelCardData

    found = [
        (MEAN_METRICS[of], f"Mean depth / layers, {by}", mean_depth_of(told, of)) for of, by in of_depth.BY.items()
    ]
    found += [
        (METRICS[name], f"Effective depth / layers, {called} rule", depth_of(told, name, "logit"))
        for name, called in RULES.items()
    ]
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=told["set"]["name"],
            dataset_name=f"{told['set']['name']} ({told['set']['n']} prompts)",
            metric_type=metric,
            metric_name=named,
            metric_value=row["ratio"],
        )
        for metric, named, row in found
        if row and row["ratio"] is not None
    ]
    tags = ["effective-depth"]
    return ModelCardData(model_name=told["model"]["name"], eval_results=results or None, tags=tags).to_yaml()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
