"""Every sentence of the verdict, on twenty prompts, three models and their untrained twins: each is split into its
claims, which are counted anew from the stored arrays (`counted.py`). A sentence with a claim that is not so, or with
none that can be counted, is reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from counted import claims, claims_over, first, seen_at, seen_over, shared_by, sinks_named, sinks_of

from ed_core.depth import sinks, together, verdict, wording
from ed_core.probes import Contributions, LogitLens
from ed_core.service import compute
from ed_core.service.resolve import resolve, twin
from ed_core.sources import hub
from ed_core.sources.bundled import load_prompts, mixed_prompts
from ed_core.types import Prompt

PLAIN = (
    "The first snow came late that year, and nobody in the village had thought of wood for the winter.",
    "To bake a loaf of bread you need flour, water, salt and",
    "She opened the old letter, read it twice, and put it back without a word.",
    "Question: How many legs does a spider have?\nAnswer:",
    "Water boils at a hundred degrees, and it freezes at",
    "The train to the coast leaves at seven; the next one leaves at",
    "def add(a, b):\n    return a +",
    "One, two, three, four, five,",
    "If all cats are animals and Tom is a cat, then Tom is an",
    "Two birds sat on a wire. One flew away. Now there is",
    "The moon is smaller than the earth, and the sun is",
    "My grandmother kept bees behind the house and sold the honey at the market every Saturday morning.",
    "Red and yellow make orange. Blue and yellow make",
    "A week has seven days and a year has twelve",
    "The opposite of early is",
)
PROBES = (Contributions(), LogitLens())


def prompts_for(name: str, n: int) -> list[Prompt]:
    """Bundled prompts for the bundled models, English ones and plain text for the real one."""
    if name == "smollm2":
        english = [Prompt(p["text"], p["answer"]) for p in load_prompts() if not p["known"]]
        return [*english[:5], *map(Prompt, PLAIN)][:n]
    return [Prompt(p["text"], p["answer"]) for p in mixed_prompts(n)]


def curves_at(made, lens, at) -> dict[str, np.ndarray]:
    """What each criterion reads, over these positions."""
    curves = {m: lens[m][:-1, at].mean(1, dtype=float) for m in ("kl", "overlap")}
    return curves | {"cosine": np.mean([made[m][:, at].mean(1, dtype=float) for m in verdict.COSINES], axis=0)}


class Report:
    """Sentences looked at, and those that are false or hold nothing that can be counted."""

    def __init__(self):
        self.sentences, self.claims, self.wrong = 0, 0, []

    def hold(self, where: str, sentence: str, count: Callable[[], int]) -> None:
        self.sentences += 1
        try:
            found = count()
            self.claims += found
            if not found:
                self.wrong.append(f"{where}: nothing to count: {sentence}")
        except AssertionError as error:
            self.wrong.append(f"{where}: {sentence} | {str(error).splitlines()[:1]}")


def hold_one(report: Report, where: str, made, lens) -> None:
    """All that is said of one prompt, read for all tokens, the answer and one token."""
    n, start, out = lens.n_tokens, lens.answer_start, sinks_of(made)
    sure = start - 1 if start is not None else n - 1
    places = {"all": list(range(n)), "answer": list(range(sure, n - 1)) or [n - 1], n // 2: [n // 2]}
    echo = float(np.mean(lens["top_ids"][0, :, 0] == np.asarray(lens.token_ids)))
    for of, at in places.items():
        found, curves = verdict.of_prompt(made, lens, of=of), curves_at(made, lens, at)
        kept = [t for t in at if t not in out]
        without = curves_at(made, lens, kept) if kept else {}
        for name, said in found.statements.items():
            given = (name, said.sentence, curves[name], None, 5, without.get(name), echo)
            report.hold(f"{where}, {of}, {name}", said.sentence, lambda given=given: claims(*given))
    report.hold(f"{where}, answer", found.lead, lambda: seen_at(found.lead, lens))
    if brief := sinks.brief(found.sinks or (), made.tokens):
        report.hold(f"{where}, sinks", brief, lambda: sinks_named(brief, out, made.n_layers))
    elif out:
        report.wrong.append(f"{where}: nothing is said of the sinks {out}")


def hold_together(report: Report, where: str, made, lens) -> None:
    """All that is said of the prompts together."""
    found, tokens = together.of_prompts(made, lens), [r.n_tokens for r in lens]
    own = [curves_at(*pair, slice(None)) for pair in zip(made, lens)]
    out = [[t for t in range(r.n_tokens) if t not in sinks_of(r)] for r in made]
    kept = [(curves_at(*pair, at), len(at)) for *pair, at in zip(made, lens, out) if at]
    echo = float(np.mean(np.concatenate([r["top_ids"][0, :, 0] == np.asarray(r.token_ids) for r in lens])))
    for name, said in found.statements.items():
        without = np.average([c[name] for c, _ in kept], axis=0, weights=[n for _, n in kept])
        given = (name, said.sentence, [c[name] for c in own], tokens, None, 5, without, echo)
        report.hold(f"{where}, together, {name}", said.sentence, lambda given=given: claims_over(*given))
    answers = [[one.best for one in look] for look in found.seen if look[0].given]
    nexts = [look[0].best for look in found.seen if not look[0].given]
    report.hold(f"{where}, answers", found.lead, lambda: seen_over(found.lead, answers, nexts, lens[0].n_layers))


def reported(name: str, n: int) -> Report:
    """Every sentence on one model and its untrained twin."""
    spec, models, report = resolve(name), compute.Models(), Report()
    both, prompts = (spec, twin(spec, "untrained")), prompts_for(name, n)
    results = {
        s: [[compute.run(models.get(s), probe.request(s, p)) for p in prompts] for probe in PROBES] for s in both
    }
    for s, (made, lens) in results.items():
        for i, pair in enumerate(zip(made, lens, strict=True)):
            hold_one(report, f"{name} {s.control} {i}", *pair)
        hold_together(report, f"{name} {s.control}", made, lens)
    for i in range(n):
        pairs = [(made[i], lens[i]) for made, lens in results.values()]
        mine, theirs = (verdict.of_prompt(*pair).criteria for pair in pairs)
        said, of = wording.shared(mine, theirs, "untrained"), [curves_at(*pair, slice(None)) for pair in pairs]
        report.hold(f"{name} {i}, twin", said, lambda said=said, of=of: shared_by(said, *of))
    print(f"{name}: {report.sentences} sentences, {report.claims} claims, {len(report.wrong)} wrong")
    return report


def test_no_sentence_on_a_few_prompts_is_false():
    report = reported("ed-demo-8", 5)
    assert not report.wrong and report.sentences >= 2 * (5 * 10 + 4) + 5 and report.claims > 2 * report.sentences


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ed-demo-8", "ed-demo-16"])
def test_no_sentence_on_a_bundled_model_is_false(name):
    assert reported(name, 20).wrong == []


@pytest.mark.slow
@pytest.mark.real
def test_no_sentence_on_the_real_model_is_false():
    if not hub.is_here(resolve("smollm2")):
        pytest.skip("smollm2 is not here: no registry had it, or REAL_MODEL=0")
    assert reported("smollm2", 20).wrong == []


def test_a_false_sentence_is_reported():
    """A depth that is one off, one that nothing can be counted of, and a curve that does not go with its sentence."""
    report, curve = Report(), [10, 9, 8, 7, 6.2, 4.4, 3, 2, 1, 0.5]
    true = "The lens is half-way to the output by layer 5 of 10 (3 to 7 with other thresholds)."
    for sentence in (true, true.replace("layer 5", "layer 4"), "The model settles.", true.replace("3 to", "2 to")):
        report.hold("here", sentence, lambda sentence=sentence: claims("kl", sentence, curve, None, 5))
    assert [line.split(" | ")[0][6:18] for line in report.wrong] == ["The lens is ", "nothing to c", "The lens is "]
    assert first("kl", curve, 0.5) == 5 and report.sentences == 4
