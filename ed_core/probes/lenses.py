"""What the stream would predict if the model ended at a depth: the logit lens, fitted lenses, and leaving early.

Three probes and one walk (`sweeps.lenses`); each declares what it keeps of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import ParameterError
from ..lenses import Fit, find, is_name, of_model
from ..types import Encoding, MeasureSpec, ModelSpec, Prompt, Request
from .base import Curve, Picture, Probe, Score, parameter

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder

LENSES = {"logit": "Logit lens", "affine": "Affine lens", "jacobian": "Jacobian lens"}
ROW_LENSES = 3  # lenses that an estimate counts


def _per_depth(name: str, title: str, unit: str, meaning: str) -> MeasureSpec:
    """Return a measure by depth and token, averaged over tokens in aggregates."""
    return MeasureSpec(name, ("depth", "pos"), unit, meaning, "token_mean", title)


def divergence_limit() -> Any:
    """Return the parameter `g`: the divergence, in bits, below which a token counts as settled."""
    meaning = "divergence below which a token counts as settled, for the deep-thinking ratio"
    return parameter(0.5, meaning, low=0.0, high=1.0, label="Divergence limit")


def late_begins() -> Any:
    """Return the parameter `rho`: where the late part begins, as a share of the depth."""
    label = "“late” starts at (share of depth)"
    return parameter(0.85, "where the late part begins, as a share of the depth", low=0.0, high=1.0, label=label)


def late_from(rho: float, n_layers: int) -> int:
    """Return the first depth of the late part, ceil(rho * n_layers), safe from rounding: 7 for 0.28 and 25 layers."""
    return math.ceil(round(rho * n_layers, 9))


def exit_confidence(leaves: str) -> Any:
    """Return the parameter `threshold`: the probability at which a token exits early. `leaves`: the verb of its
    help."""
    meaning = f"probability of the lens's best token at which a token {leaves}"
    return parameter(0.9, meaning, low=0.0, high=1.0, label="Exit confidence")


OF_LENS: tuple[MeasureSpec, ...] = (
    _per_depth(
        "kl",
        "KL to the output",
        "nats",
        "divergence of the lens from the output: sum_v p_lens (log p_lens - log p_out)",
    ),
    _per_depth("jsd", "Jensen–Shannon divergence", "bits", "Jensen–Shannon divergence between lens and output, base 2"),
    _per_depth("entropy", "Uncertainty of the lens", "nats", "uncertainty of the lens's distribution"),
    _per_depth(
        "overlap", "Best tokens shared", "share", "share of the lens's best k tokens that are among the output's"
    ),
    _per_depth("top1_match", "Best token as the output's", "0 or 1", "whether the lens's best token is the output's"),
    MeasureSpec("rank", ("depth", "pos"), "rank", "rank of the output's best token in the lens", dtype="int32"),
    MeasureSpec("top_ids", ("depth", "pos", "rank"), "token id", "the lens's best tokens", dtype="int32"),
    MeasureSpec("top_probs", ("depth", "pos", "rank"), "probability", "probabilities of the best tokens"),
    MeasureSpec(
        "mrr",
        ("depth",),
        "1 / rank",
        "mean reciprocal rank of the output's best token",
        "token_mean",
        title="Rank of the output's best token, 1 / rank",
        aggregate_only=True,
    ),
    MeasureSpec(
        "settle_depth", ("pos",), "depth", "first depth from which the best token stays the final one", "token_mean"
    ),
    MeasureSpec(
        "deep_thinking_ratio",
        (),
        "share",
        "share of tokens that settle only in the late part",
        "token_mean",
        aggregate_only=True,
    ),
)

INSIDE = "half_"  # how the measures begin that are read between attention and MLP
AT_HALF = ("kl", "jsd", "entropy", "overlap", "rank", "top_ids", "top_probs")


def at_half(spec: MeasureSpec) -> MeasureSpec:
    """Return a lens measure as read within every layer, after attention and before the MLP."""
    dims = ("layer", *spec.dims[1:])
    title = spec.title and f"{spec.title}, after attention"
    return replace(spec, name=INSIDE + spec.name, dims=dims, title=title, meaning=f"{spec.meaning}; at h[l] + a[l]")


@dataclass(frozen=True)
class LogitLens(Probe):
    """The **logit lens** applies the model's own final norm and head to the residual stream at every depth: row l has l
    layers behind it, row L is the model's output. Where its distribution becomes the final one, the output has settled.

    **KL** falls to 0 as the lens approaches the output, the **overlap** of the best k tokens rises to 1. `settle_depth`
    is the first depth from which the best token stays the final one. The deep-thinking ratio is the share of tokens
    whose Jensen–Shannon divergence first falls to g only in the late part, from ceil(rho L) on.

    With **half layers** the stream is read within every layer too, after attention and before the MLP: `h[l] + a[l]`,
    depth l + ½ (`half_…`, row l). Where blocks compute attention and MLP in parallel there is no such point.

    Source: nostalgebraist 2020; Csordás et al. 2025 §3.3; deep-thinking ratio: Chen et al. 2026, arXiv 2602.13517.
    """

    k: int = parameter(5, "best tokens compared and listed", low=1, high=50, label="Best tokens compared")
    g: float = divergence_limit()
    rho: float = late_begins()
    points: str = parameter(
        "layers",
        "where the stream is read: between layers, or after attention within each as well",
        choices={"layers": "layers", "halves": "half layers"},
        label="Read at",
        later=True,
    )

    name: ClassVar[str] = "logit_lens"
    title: ClassVar[str] = "Logit lens"
    first_page: ClassVar[bool] = True
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("kl", "Divergence from the output", "nats", "depth"),
        Curve("overlap", "Best tokens shared with the output", "share", "depth"),
    )
    score: ClassVar[Score] = Score("the average depth", mean_depth="kl")
    thumbnail: ClassVar[tuple[int, str]] = (3, "kl")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Logit lens",
            ("{shade}", "top_ids"),
            "columns are input tokens, cells predict the next token (blank: as below, or no room; grey: repeats its "
            "input)",
            "Row 0 is the embedding, the top row the model's own output, which is above the map too; a token is "
            "written where it is\nanother than in the row below and there is room.",
            kind="lens",
        ),
    )
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        *OF_LENS,
        *(at_half(spec) for spec in OF_LENS if spec.name in AT_HALF),
        MeasureSpec(
            "half_settle_depth",
            ("pos",),
            "depth",
            "first depth, half layers counted, from which the best token stays the final one",
            "token_mean",
        ),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, (n_layers + 2 + n_layers * (self.points == "halves")) * n_tokens

    def per_token(self, values: Mapping[str, np.ndarray], left_out: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Return `mrr` (reciprocal ranks) and `deep_thinking_ratio` (1 where a token settles late)."""
        jsd = values["jsd"]
        deep = (jsd <= self.g).argmax(0) >= late_from(self.rho, jsd.shape[0] - 1)
        return {"mrr": 1.0 / values["rank"], "deep_thinking_ratio": deep.astype(np.float32)}

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps import lenses

        lenses.read(model, encoding, record, {"": None}, self.k, inside=INSIDE if self.points == "halves" else "")


def _through(lens: str) -> tuple[MeasureSpec, ...]:
    """Return the logit lens's measures for another lens: "logit", "affine" or "jacobian"."""
    followed = MeasureSpec(
        "token_rank", ("depth", "pos"), "rank", "rank of the followed token in the lens", dtype="int32"
    )
    names = ("kl", "jsd", "overlap", "rank", "top_ids", "top_probs", "settle_depth")
    return tuple(
        replace(spec, name=f"{lens}_{spec.name}", title=spec.title and f"{LENSES[lens]}: {spec.title}")
        for spec in (*map(LogitLens.spec, names), followed)
    )


@dataclass(frozen=True)
class Lenses(Probe):
    """One prompt through several **lenses**: what the model would say if it ended at each depth, where the stream is
    first taken to the last layer's terms by a map fitted beforehand. The **logit lens** reads it as it is; the **affine
    lens** through `A_l h + b_l`, the least-squares map from `h[l]` to `h[L]`; the **Jacobian lens** through `J_l h`,
    how `h[L]` changes on average when `h[l]` does. Row L is the output under every lens.

    The affine lens minimises squared error and not the divergence; it is not the tuned lens. The Jacobian lens is made
    to be read by ranks, its distribution is not calibrated: its divergence enters no verdict. Whether a fitted lens
    beats the constant prediction is in its certificate.

    Source: nostalgebraist 2020; Din et al. 2023, arXiv 2303.09435; Gurnee et al. 2026.
    """

    fit: str = parameter(
        "",
        "fitted lenses, by their names or files, separated by commas; none: the logit lens alone",
        file=True,
        label="Fitted lenses",
    )
    k: int = parameter(5, "best tokens compared and listed", low=1, high=50, label="Best tokens compared")
    follow: int = parameter(-1, "a token id whose rank is followed; -1: none", low=-1, label="Token followed")

    name: ClassVar[str] = "lenses"
    title: ClassVar[str] = "Lenses"
    thumbnail: ClassVar[tuple[int, str]] = (2, "logit_kl")
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        *(spec for lens in LENSES for spec in _through(lens)),
        MeasureSpec(
            "constant_kl",
            ("pos",),
            "nats",
            "divergence of unembed(mean h[L]), which says the same of every token, from the output",
            "token_mean",
            title="Constant prediction: KL to the output",
        ),
    )
    pictures: ClassVar[tuple[Picture, ...]] = tuple(
        Picture(
            title,
            (f"{lens}_{{shade}}", f"{lens}_top_ids"),
            f"{title}: columns are input tokens, cells predict the next token (blank: as below, or no room; grey: "
            "repeats its input)",
            "Row 0 is the embedding, the top row the model's own output; a token is written where it is another than "
            "in the row below and there is room.",
            title,
            kind="lens",
        )
        for lens, title in LENSES.items()
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, (ROW_LENSES * n_layers + 2) * n_tokens

    def fits(self) -> list[Fit]:
        """Return the named fitted lenses; raise `ParameterError` for two of one kind, `FitRefused` for an unknown
        one."""
        fits = [find(name) for name in dict.fromkeys(self._named())]
        kinds = [fit.kind for fit in fits]
        if len(set(kinds)) < len(kinds):
            twice = next(kind for kind in kinds if kinds.count(kind) > 1)
            raise ParameterError(f"lenses.fit names two {twice} lenses; name one of a kind.")
        return fits

    @classmethod
    def at_first(cls, model: ModelSpec) -> Lenses:
        """Return the probe with one fitted lens of each kind for this model, bundled ones first."""
        available = of_model(model)
        first = {fit.kind: fit.path.stem for fit in reversed(available)}
        return cls(fit=",".join(sorted(first.values())))

    def _named(self) -> list[str]:
        """Return the names and paths that `fit` lists."""
        return [name.strip() for name in self.fit.split(",") if name.strip()]

    def paths(self, parameter: str) -> list[str]:
        """Return the entries of `fit` that are file paths."""
        return [name for name in self._named() if not is_name(name)]

    def content_hash(self, parameter: str, model: ModelSpec) -> str:
        """Return the SHA-256 over the contents of all named fits, whatever their order."""
        return hashlib.sha256("".join(sorted(fit.content for fit in self.fits())).encode()).hexdigest()

    def request(self, model: ModelSpec, prompt: Prompt) -> Request:
        """Return the request for one prompt; raise `FitRefused` if a lens was fitted to another model."""
        request = super().request(model, prompt)
        for fit in self.fits():
            fit.require(model)
        return request

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..lenses.judged import Reader
        from ..sweeps import lenses

        if self.follow >= model.d_vocab:
            raise ParameterError(f"lenses.follow is {self.follow}; this model's ids are 0 to {model.d_vocab - 1}.")
        fits = self.fits()
        for fit in fits:
            fit.require(model.spec)
        readers = {fit.kind: Reader(fit, model) for fit in sorted(fits, key=lambda f: f.kind)}
        constant = next((reader.mean for reader in readers.values()), None)
        record.provenance["fits"] = [fit.summary for fit in fits]
        through = {"logit_": None} | {f"{kind}_": reader.lens for kind, reader in readers.items()}
        lenses.read(model, encoding, record, through, self.k, self.follow, constant)


@dataclass(frozen=True)
class EarlyExit(Probe):
    """Early exit through the logit lens: a token leaves at the first depth where the lens's best token has at least the
    threshold's probability, at the latest at the output. Agreement is whether it then says what the whole model would
    have said. No exit is trained here: the figures are what the model's own head makes of its stream."""

    threshold: float = exit_confidence("leaves")

    name: ClassVar[str] = "early_exit"
    title: ClassVar[str] = "Early exit"
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "confidence", ("depth", "pos"), "probability", "probability of the lens's best token", "token_mean"
        ),
        MeasureSpec(
            "agreement", ("depth", "pos"), "0 or 1", "whether the lens's best token is the output's", "token_mean"
        ),
        MeasureSpec(
            "exit_depth", ("pos",), "depth", "first depth whose confidence reaches the threshold", "token_mean"
        ),
        MeasureSpec(
            "exit_agrees", ("pos",), "0 or 1", "whether the token leaves with the output's best token", "token_mean"
        ),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, (n_layers + 2) * n_tokens

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps import lenses

        record.allocate("exit_depth", "exit_agrees")
        lenses.read(model, encoding, record, {"": None}, k=1)
        leaves = record.arrays["confidence"] >= self.threshold
        leaves[-1] = True
        exit_depth = leaves.argmax(0)
        record.write("exit_depth", ..., exit_depth)
        record.write("exit_agrees", ..., record.arrays["agreement"][exit_depth, np.arange(len(encoding))])
