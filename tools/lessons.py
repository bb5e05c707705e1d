"""What the shipped case studies teach: six prompts on a bundled model show how to read the figures, three a real one.

Every statement of a note comes with a check of the results: `tools.cases` refuses to write a note that is not true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ed_core.depth import among_others
from ed_core.depth.answer import is_right
from ed_core.depth.sample import Sample
from ed_core.depth.side_by_side import COMPARED
from ed_core.depth.verdict import Verdict, verdict
from ed_core.probes import Continuation, Contributions, LayerSkip, LogitLens, Patching, Probe, ResidualErasure, find
from ed_core.types import ProbeResult, Prompt

MODEL, REAL = "ed-demo-8", "smollm2"
HOME: tuple[Probe, ...] = (Contributions(), LogitLens(), LayerSkip(), Continuation())
NOTES = Path(__file__).parent / "notes"
TWIN = "twin."  # before a probe's name: the result of the model's untrained copy
Results = Mapping[str, ProbeResult]


@dataclass(frozen=True)
class Lesson:
    """One shipped case study; its title and notes are `notes/<name>.md`. `claims`: what its notes say, as checks of its
    results."""

    name: str
    prompt: str
    claims: tuple[Callable[[Results], bool], ...]
    tags: tuple[str, ...]
    probes: tuple[Probe, ...] = HOME
    twin: bool = False  # whether the model's untrained copy is measured too
    model: str = MODEL

    @property
    def words(self) -> tuple[str, str]:
        """Title and notes."""
        title, _, notes = (NOTES / f"{self.name}.md").read_text(encoding="utf-8").partition("\n\n")
        return title.removeprefix("# "), notes.rstrip("\n")


def named(results: Iterable[ProbeResult]) -> dict[str, ProbeResult]:
    """A case study's results by probe, those of a twin with `TWIN` before it: what a lesson's claims ask for."""
    return {(TWIN if r.request.models[0].control else "") + r.request.probe: r for r in results}


def of_twin(results: Results) -> Results:
    return {name.removeprefix(TWIN): r for name, r in results.items() if name.startswith(TWIN)}


def alike(results: Results) -> dict[str, among_others.Likeness]:
    """How alike the copy's curves are to the model's, by curve."""
    found = (
        l
        for p in COMPARED
        if TWIN + p in results
        for l in among_others.likeness(find(p), results[p].summary, results[TWIN + p].summary)
    )
    return {l.curve.name: l for l in found}


def means(results: Results, probe: str, measure: str) -> np.ndarray:
    return results[probe][measure].mean(1)


def asking(results: Results) -> int:
    """The token from which the answer is predicted."""
    lens = results["logit_lens"]
    return (lens.answer_start or lens.n_tokens) - 1


def said(results: Results, depth: int) -> str:
    """The lens's best token at the asking token."""
    lens = results["logit_lens"]
    return lens.token_text[int(lens["top_ids"][depth, asking(results), 0])].strip()


def first_right(results: Results) -> int:
    """The depth from which on the lens says the output's token at the asking token, up to the output."""
    depths = [d for d in range(results["logit_lens"].n_layers + 1) if said(results, d) != said(results, -1)]
    return depths[-1] + 1 if depths else 0


def judged(results: Results) -> Verdict:
    return verdict(Sample.of(results["contributions"], results["logit_lens"]))


def lines(results: Results) -> dict[str, int | None]:
    return judged(results).layers


def settles(results: Results) -> dict[str, str]:
    """Mean depths, as a note writes them."""
    return {name: f"{mean.depth:.1f}" for name, mean in judged(results).means.items()}


def stream(results: Results, depth: int) -> np.ndarray:
    """Norms of the residual stream at a depth, per token."""
    return results["contributions"]["resid_norm"][depth]


def knows(results: Results) -> bool:
    return is_right(results["continuation"]) is True


def _fade_in_order(results: Results) -> bool:
    """Whether the tokens of `l=0; f=l; q=f` are needed up to the depths the note tells, and from depth 7 on the last
    one alone."""
    erasure, end = results["residual_erasure"], asking(results)
    line = max(i for i, token in enumerate(erasure.tokens) if "\n" in token)

    def of(text):
        return next(i for i in range(line + 1, end) if erasure.tokens[i] == text)

    needed = {i: int(np.flatnonzero(erasure["effect"][:, i] > 0.5).max(initial=-1)) for i in range(end)}
    chain = {of("q="): 0, of("f="): 1, of("f=") + 1: 2, of("l=") + 1: 6}
    return all(needed[i] == depth for i, depth in chain.items()) and bool((erasure["effect"][7:, :end] < 0.1).all())


LESSONS = (
    Lesson(
        "easy-sum",
        "sum-mod10-2-a",
        (
            knows,
            lambda r: {said(r, d) for d in range(3)} == {"="},
            lambda r: first_right(r) == 4,
            lambda r: r["logit_lens"]["top_probs"][4, asking(r), 0] < 0.6,
            lambda r: r["logit_lens"]["top_probs"][6, asking(r), 0] > 0.98,
            lambda r: lines(r) == {"cosine": None, "kl": 3, "overlap": 3},
            lambda r: settles(r) == {"kl": "4.4", "overlap": "5.4"},
        ),
        ("sum", "start here"),
    ),
    Lesson(
        "hard-sum",
        "sum-mod10-6-b",
        (
            knows,
            lambda r: first_right(r) == 7,
            lambda r: lines(r)["kl"] == 6 and settles(r)["kl"] == "5.4",
            lambda r: "has" in {said(r, d) for d in range(2, 7)},
        ),
        ("sum", "difficulty"),
    ),
    Lesson(
        "three-hops",
        "lookup-3-a",
        (
            knows,
            lambda r: said(r, 6) != said(r, -1),
            lambda r: first_right(r) == 7,
            lambda r: lines(r) == {"cosine": 5, "kl": None, "overlap": None},
            lambda r: [i for i, row in enumerate(r["contributions"]["layer_cos"]) if row.mean() < 0] == [5],
            lambda r: judged(r).turn.failed == "sign" and min(judged(r).turn.before, judged(r).turn.after) > 0,
            lambda r: 0.7 < r["continuation"]["top_probs"][0, 0] < 0.9,
            _fade_in_order,
        ),
        ("look-up", "erasure"),
        (*HOME, ResidualErasure()),
    ),
    Lesson(
        "criteria-disagree",
        "copy-12-a",
        (
            knows,
            lambda r: lines(r) == {"cosine": None, "kl": 2, "overlap": None},
            lambda r: first_right(r) == 2,
            lambda r: r["logit_lens"]["top_probs"][2, asking(r), 0] > 0.98,
            lambda r: r["logit_lens"]["top_probs"][-1, asking(r), 0] > 0.99,
        ),
        ("copy", "criteria"),
    ),
    Lesson(
        "outside",
        "english-a",
        (
            lambda r: is_right(r["continuation"]) is False,
            lambda r: lines(r) == {"cosine": 3, "kl": 6, "overlap": 6},
            lambda r: said(r, -1) == "," and 0.5 < r["continuation"]["top_probs"][0, 0] < 0.7,
            lambda r: {said(r, d) for d in range(2, 8)} == {"has"},
        ),
        ("caution",),
    ),
    Lesson(
        "untrained-twin",
        "sum-mod10-5-a",
        (
            knows,
            lambda r: is_right(r["twin.continuation"]) is False,
            lambda r: r["twin.continuation"].provenance["continuation"].startswith("n=n=n="),
            lambda r: lines(of_twin(r)) == {"cosine": 5, "kl": 4, "overlap": 5} and lines(r)["cosine"] is None,
            lambda r: alike(r)["overlap"].shape == 0,
            lambda r: alike(r)["kl"].spearman > 0.99,
            lambda r: f"{means(r, 'twin.logit_lens', 'kl')[0]:.2f}" == "0.06",
            lambda r: f"{means(r, 'logit_lens', 'kl')[0]:.1f}" == "12.7",
            lambda r: alike(r)["layer_effect"].spearman > 0.8,
            lambda r: max(alike(r)[name].spearman for name in ("layer_ratio", "layer_cos")) < 0.5,
            lambda r: (means(r, "contributions", "layer_ratio")[[0, 7]].round(1) == np.float32([27.9, 2.5])).all(),
            lambda r: means(r, "contributions", "layer_ratio")[2:7].max() < 0.5,
            lambda r: means(r, "twin.contributions", "layer_ratio")[0] < 1.3,
            lambda r: means(r, "twin.contributions", "layer_ratio")[4:].max() < 0.6,
            lambda r: (means(r, "contributions", "layer_cos") > 0.1).all(),
            lambda r: np.abs(means(r, "twin.contributions", "layer_cos")).max() <= 0.11,
            lambda r: len({bool(c > 0) for c in means(r, "twin.contributions", "layer_cos")}) == 2,
            lambda r: r["layer_skip"]["output"][0] > 1.4 and f"{r['twin.layer_skip']['output'][0]:.2f}" == "0.01",
            lambda r: f"{r['twin.continuation']['top_probs'][0, 0]:.1%}" == "0.2%",
        ),
        ("caution", "control"),
        twin=True,
    ),
    Lesson(
        "real-disagree",
        "english-d",
        (
            knows,
            lambda r: lines(r) == {"cosine": 12, "kl": 1, "overlap": 24},
            lambda r: 1 / 10 < r["continuation"]["top_probs"][0, 0] < 1 / 8 and said(r, 29) == "bottom",
            lambda r: (means(r, "logit_lens", "kl")[:2].round(1) == np.float32([13.6, 6.3])).all(),
            lambda r: np.abs(means(r, "logit_lens", "kl")[2:19] - 5.6).max() < 0.75,
            lambda r: f"{means(r, 'contributions', 'layer_cos')[11]:.2f}" == "-0.23",
            lambda r: -0.1 < means(r, "contributions", "layer_cos")[12] < 0,
            lambda r: (means(r, "contributions", "layer_cos")[13:] > 0).sum() == 15,
            lambda r: {said(r, d) for d in range(20, 26)} == {""} and first_right(r) == 30,
            lambda r: [said(r, d) for d in range(26, 30)] == ["same", "end", "other", "bottom"],
        ),
        ("real model", "criteria"),
        model=REAL,
    ),
    Lesson(
        "real-sink",
        "english-b",
        (
            knows,
            lambda r: [(s.pos, s.layer, s.branch) for s in judged(r).sample.sinks[0]] == [(0, 11, "mlp")],
            lambda r: round(r["contributions"]["mlp_norm"][11, 0]) == 22661,
            lambda r: round(judged(r).sample.sinks[0][0].ratio) == 172,
            lambda r: next((s.start, s.end) for s in judged(r).sample.sinks[0][0].spans) == (3, 8),
            lambda r: round(float(stream(r, 11)[0])) == 132 and 135 < np.median(stream(r, 11)[1:]) < 145,
            lambda r: stream(r, 30)[0] < 0.3 * stream(r, 28)[0],
            lambda r: r["contributions"]["layer_ratio"][13:27, 0].max() < 0.05,
            lambda r: f"{means(r, 'contributions', 'layer_ratio')[11]:.1f}" == "8.9",
            lambda r: r["contributions"]["layer_ratio"][11, 1:].mean() < 0.6,
            lambda r: lines(r)["cosine"] == 24 and lines(r)["overlap"] == 21,
            lambda r: [judged(r).rules[c].variants["without_sinks"] for c in ("cosine", "overlap")] == [24, 21],
        ),
        ("real model", "sink"),
        model=REAL,
    ),
    Lesson(
        "real-kl",
        "english-a",
        (
            lambda r: is_right(r["continuation"]) is False,
            lambda r: r["continuation"].provenance["continuation"].startswith(" the wife of the deceased"),
            lambda r: lines(r)["kl"] == 1 and lines(r)["overlap"] == 23,
            lambda r: (means(r, "logit_lens", "kl")[:2].round(1) == np.float32([15.5, 7.4])).all(),
            lambda r: means(r, "logit_lens", "kl").argmax() == 0,
            lambda r: means(r, "logit_lens", "kl")[1:17].min() >= 5,
            lambda r: (r["logit_lens"]["top_ids"][0, :, 0] == np.array(r["logit_lens"].token_ids)).sum() == 14,
            lambda r: r["logit_lens"].n_tokens == 21,
            lambda r: " strugg" in {r["logit_lens"].token_text[int(i)] for i in r["logit_lens"]["top_ids"][0, :, 0]},
            lambda r: not (r["logit_lens"]["top_ids"][0, :-1, 0] == np.array(r["logit_lens"].token_ids[1:])).any(),
            lambda r: np.median(r["logit_lens"]["top_probs"][0, :, 0]) > 0.95,
            lambda r: judged(r).rules["kl"].variants["from_depth_1"] == 23,
        ),
        ("real model", "criteria"),
        model=REAL,
    ),
    Lesson(
        "real-patch",
        "english-b",
        (
            lambda r: r["patching"].provenance["answers"] == [" Tokyo", " Beijing"],
            lambda r: r["patching"]["patch"][:24, 17].min() > 0.955 and r["patching"].tokens[17] == " Japan",
            lambda r: np.abs(r["patching"]["last"][:24]).max() < 0.125 and r["patching"]["last"][24:].min() > 0.99,
            lambda r: np.abs(r["patching"]["patch"][24:, 17]).max() < 0.05,
            lambda r: (float(r["patching"]["commitment"]), float(r["patching"]["settle_depth"])) == (24, 30),
            lambda r: [said(r, d) for d in range(24, 31)] == ["the"] * 5 + ["Sh", "Tokyo"],
            lambda r: np.abs(r["patching"]["self"]).max() < 1e-6,
            lambda r: r["patching"]["random"].argmax() == 6 and f"{r['patching']['random'].max():.2f}" == "1.06",
        ),
        ("real model", "patching"),
        (
            LogitLens(),
            Patching(
                Prompt(
                    "The capital of France is Paris. The capital of Italy is Rome. The capital of China is", " Beijing"
                )
            ),
        ),
        model=REAL,
    ),
)
