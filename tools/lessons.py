"""What the shipped case studies teach: six prompts on a bundled model show how to read the figures, three a real one.

Every statement of a note comes with a check of the results: `tools.cases` refuses to write a note that is not true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

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
TWIN = "twin."  # before a probe's name: the result of the model's untrained copy
Results = Mapping[str, ProbeResult]


@dataclass(frozen=True)
class Lesson:
    """One shipped case study. `claims`: what its notes say, as checks of its results."""

    name: str
    prompt: str
    title: str
    notes: str
    claims: tuple[Callable[[Results], bool], ...]
    tags: tuple[str, ...]
    probes: tuple[Probe, ...] = HOME
    twin: bool = False  # whether the model's untrained copy is measured too
    model: str = MODEL


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
        "An easy sum: two digits, done half-way up",
        """The model adds two digits modulo 10, and it is right.

**Look at the logit lens, last column before the answer.** The lowest rows repeat ` = `, the token just read: embedding and head share their
weights, so depth 0 mostly says what it sees. At depth 4 the right digit is there, with one chance in two; from depth 6 on it is certain.

**Then at the ruler.** Filled circles: average depth is 4.4 of 8 by KL, 5.4 by overlap, from the mean curves. Diamonds: the
published rules; KL and overlap give layer 3. The cosine rule gives *no* layer, for the mean cosine is never below 0. "No layer" is an answer,
not an error.

Compare with *A hard sum*: same model, same task, more digits.""",
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
        "A hard sum: six digits, known only at the end",
        """The same task as *An easy sum*, with six digits, and right again. Now the answer appears at depth 7, one layer before the output, where
the easy one had it at depth 4: on these two prompts the answer to the harder problem appears deeper.

**What it does not show.** The KL rule moves from layer 3 to 6, and average depth by KL is 5.4 where it was 4.4, but both are read off a mean over *all* tokens, and this prompt has other tokens than the
easy one. Two prompts are an anecdote: the papers see hardly any shift with difficulty in large models (Hu et al. 2025). *How this prompt compares*
on a probe's page puts one prompt over the spread of many.

**Before that** the lens reads words like ` has` at the asking token. That is not what the model "thinks": the head was trained for the last
layer only.""",
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
        "A look-up in three hops: where the facts are read",
        """`q` is found by following three facts. The model is right, at 80 %: at depth 6 the lens still names the value of another chain, at depth 7
the right one.

**Residual erasure** replaces one token at one depth by an average. Where a column fades, nobody needs any more what stands there. In the
question's own line the chain `l=0; f=l; q=f` is taken apart in order: `q=` matters at depth 0 only, `f=` up to depth 1, the `l` behind it up to
depth 2, and the value `0` up to depth 6. From depth 7 on only the last token matters, and there the lens now reads `0`.

**Contribution norms and cosine:** only one layer erases more than it writes: layer 6, the one with a mean cosine below 0. That is why the
papers' rule, which counts from 0, gives layer 5 here, and none in the sums. One layer is no turn: both levels fitted to the cosine lie above 0.

**KL has no mark:** the mean KL does not fall below half of its maximum before the last layer.""",
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
        "Where the criteria disagree, and why",
        """Twelve letters are copied. The **KL** rule says layer 2, **overlap** and **cosine** give no layer. Which one is right? All of them:
they ask different things.

- *KL* asks when the lens' whole distribution comes near the output's. The next letter stands at depth 2 with 99 %, and the mean KL is below
half of its maximum there.
- *Overlap* asks whether more than 30 % of the best *five* tokens are the output's. Where one token has nearly all the probability, the other
four hardly count.
- *Cosine* asks in which direction layers write, and says nothing of the output.

So read them beside each other and never average them.""",
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
        "Outside what the model knows: a verdict all the same",
        """A question in English, to a model that was taught sums, look-ups and copying. Its continuation is wrong, and no sentence.

**The figures look perfectly ordinary.** All three published rules give a layer: 3 by cosine, 6 by KL and overlap. Nothing on the
ruler says that the answer is nonsense. A depth tells *where* a prediction is made, never *whether* it is worth anything.

So look at the continuation first. Here the best next token is a comma, at 60 %: sure is not right. And the lens repeats ` has` from depth 2 to 7:
a habit of the training texts, not a thought about Yoko Ono.""",
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
        "An untrained copy: what shows without any learning",
        """The same prompt twice: first the model, which is right, then its *untrained copy*, the same config and tokenizer with random weights. What
the copy shows as well needs no training to appear.

**The ruler is full.** The copy has all three marks, more than the model: cosine 5, KL 4, overlap 5. A mark says where a curve crosses a
threshold, not that anything was computed: this copy continues with `n=n=n=`.

**What both show.**
- *Overlap* with the output climbs along nearly the same shape. Any stack of layers that adds to a stream comes nearer to its own output.
- *KL* falls just as steadily, with the layers in the same order, but from 0.06 nats where the model falls from 12.7. The criterion divides by
the maximum, so it cannot see this: look at the scale, not only at the shape.
- *Layer skip:* early layers disturb later ones more than late ones do, in the copy too.

**What only the model shows.**
- *Contribution norms:* its first layer writes 28 times the stream, the middle little, the last 2.5 times. The copy's only fade.
- *Cosine:* above 0 in every layer, that is building on what is there. The copy's wavers around 0, as random directions do.
- *The prediction:* without its first layer the model's changes by 1.4, the most there can be; the copy's by a hundredth, for it has hardly one
to lose: its best token has 0.2 %.

So hold a curve against a copy before it is called a finding: the *Control* under *Options* draws it dashed behind the model's, and *Compare* puts
both side by side. This is one copy, a single draw: a statement rests on five, as *Prompt* has them, and what they do not share was not thereby learned.""",
        (
            knows,
            lambda r: (
                is_right(r["twin.continuation"]) is False
                and r["twin.continuation"].provenance["continuation"].startswith("n=n=n=")
            ),
            lambda r: lines(of_twin(r)) == {"cosine": 5, "kl": 4, "overlap": 5} and lines(r)["cosine"] is None,
            lambda r: alike(r)["overlap"].shape == 0,
            lambda r: alike(r)["kl"].spearman > 0.99,
            lambda r: (
                f"{means(r, 'twin.logit_lens', 'kl')[0]:.2f}" == "0.06"
                and f"{means(r, 'logit_lens', 'kl')[0]:.1f}" == "12.7"
            ),
            lambda r: alike(r)["layer_effect"].spearman > 0.8,
            lambda r: max(alike(r)[name].spearman for name in ("layer_ratio", "layer_cos")) < 0.5,
            lambda r: (means(r, "contributions", "layer_ratio")[[0, 7]].round(1) == np.float32([27.9, 2.5])).all(),
            lambda r: means(r, "contributions", "layer_ratio")[2:7].max() < 0.5,
            lambda r: (
                means(r, "twin.contributions", "layer_ratio")[0] < 1.3
                and means(r, "twin.contributions", "layer_ratio")[4:].max() < 0.6
            ),
            lambda r: (
                (means(r, "contributions", "layer_cos") > 0.1).all()
                and np.abs(means(r, "twin.contributions", "layer_cos")).max() <= 0.11
            ),
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
        "A real model: three criteria, three depths",
        """SmolLM2, 30 layers, reads a story of three sentences and says where the bag is: ` school`, with one chance in nine, just ahead of words like
` bottom`. The **KL** rule says layer 1, the **cosine** rule 12, the **overlap** rule 24.

**Which is the effective depth?** None alone; each answers its own question.

- *KL at layer 1* says that depth 0 is far off, not that layer 1 is near: the mean KL falls from 13.6 nats to 6.3 there, and stays about 5.5 up to
depth 18. *A real model: why the KL rule says layer 1* tells why.
- *Cosine at layer 12,* which is the 13th: layer 12 erases (mean cosine −0.23) and so does layer 13, hardly; from layer 14 on nearly all build on what is there.
- *Overlap at layer 24* is the first to look at the words: the best five tokens of the lens begin to be the output's.

**The answer itself comes last.** At the asking token the lens reads a space up to depth 25, with up to 99 %, then ` same`, ` end`, ` other`, ` bottom`:
` school` is its best token at the output only.""",
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
        "A real model: the first token is a sink",
        """The capital of Japan, and SmolLM2 knows it. **Look at the first column** of the contribution norms: dark nearly everywhere, and bright in one row
of the middle, layer 12.

That layer's MLP writes a vector of norm 22 661 into the first token, whose stream was 132 long; the other tokens' median is about 140 there. From then on
the first token is up to 172 times as long as the median token, whatever token is there: a **sink** (it was one before, at depths 3 to 8), as most trained models have one. Attention heads that
have nothing to look at look at it. The last two layers take most of it back.

**What it does to the figures.** Later layers add to the first token what they add to all, a few hundredths of its length: the dark column. A *mean* over
tokens is the sink's: at layer 12 the mean ratio is 8.9, without this token it would be below 0.6. So there are the switch *Count the first token* under *Options*, and the criteria
without sinks: here they give the same layers, 24 by cosine and 21 by overlap. A finding that holds with and without it is one about the prompt.""",
        (
            knows,
            lambda r: [(s.pos, s.layer, s.branch) for s in judged(r).sample.sinks[0]] == [(0, 11, "mlp")],
            lambda r: (
                round(r["contributions"]["mlp_norm"][11, 0]) == 22661
                and round(judged(r).sample.sinks[0][0].ratio) == 172
            ),
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
        "A real model: why the KL rule says layer 1",
        """A question that SmolLM2 cannot answer: it goes on with ` the wife of the deceased`. The KL rule says layer 1 of 30.

**The rule** takes the first layer behind which the mean KL is below half of its maximum. **The maximum is depth 0's**, 15.5 nats, and it tells
little of the model: embedding and head are the same matrix, so at depth 0 the lens is certain of one token, of the one just *read* at 14 of these 21 (else
of one with a long embedding, like ` strugg`), and that is never the one that comes *next*. One layer ends that, at 7.4 nats, just below half. The lens is not near the output: up to depth 16 the mean stays above 5 nats.

**The same rule from depth 1 on** finds layer 23, as overlap does. The papers' figure stays as it is, beside this one; where the two are far apart, the
embedding has decided the first.

So a KL verdict near the input is a question to look at the curve, not a shallow model.""",
        (
            lambda r: is_right(r["continuation"]) is False,
            lambda r: r["continuation"].provenance["continuation"].startswith(" the wife of the deceased"),
            lambda r: lines(r)["kl"] == 1 and lines(r)["overlap"] == 23,
            lambda r: (means(r, "logit_lens", "kl")[:2].round(1) == np.float32([15.5, 7.4])).all(),
            lambda r: means(r, "logit_lens", "kl").argmax() == 0,
            lambda r: means(r, "logit_lens", "kl")[1:17].min() >= 5,
            lambda r: (
                (r["logit_lens"]["top_ids"][0, :, 0] == np.array(r["logit_lens"].token_ids)).sum() == 14
                and r["logit_lens"].n_tokens == 21
                and " strugg" in {r["logit_lens"].token_text[int(i)] for i in r["logit_lens"]["top_ids"][0, :, 0]}
            ),
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
        "A real model: one layer moves the answer, long before the lens can read it",
        """SmolLM2 completes the capital of Japan. A second prompt asks for China's, and is otherwise the same. The map shows what happens when the second prompt's
stream replaces the first one's at one token and one depth.

**Up to depth 23 the answer is at ` Japan`:** carrying over this one token turns ` Tokyo` into ` Beijing` all but completely (0.96 and more), and carrying
over ` is`, where the answer is predicted, does next to nothing (at most 0.12). **From depth 24 on it is the other way round.** So layer 24 moves the answer to the
last token: the *commitment depth* is 24 of 30.

**The lens reads it only at the output.** On the first prompt its best token is ` the` up to depth 28 and ` Sh` at 29, then ` Tokyo`; on the second it also
stays on the answer from depth 30 on only. Decided is six layers before readable, on this pair.

**The controls.** The prompt's own stream changes nothing (below 0.000001). A random vector of the same length reaches up to 1.06 of the gap at depth 6 and
carries nothing: it destroys ` Tokyo`, and that alone is much of the gap. So read the share next to the best guess, which the commitment depth
rests on.""",
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
