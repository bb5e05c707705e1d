"""What the stream holds at every depth, read with several lenses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import ParameterError
from ..fits import Fit, find, is_name, of_model
from ..types import MeasureSpec, ModelSpec, Prompt, Request
from .base import Probe, parameter
from .description import Picture, Shape
from .logit_lens import LOGIT_BYTES, ROW_BYTES

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder
    from ..types import Encoding

LENSES = {"logit": "Logit lens", "affine": "Affine lens", "jacobian": "Jacobian lens"}
ROW_LENSES = 3  # that an estimate counts with


def _measures(lens: str) -> tuple[MeasureSpec, ...]:
    title = LENSES[lens]

    def per_depth(
        name: str, said: str, unit: str, meaning: str, low: float | None = 0.0, high: float | None = None
    ) -> MeasureSpec:
        told = f"{title}: {said}"
        return MeasureSpec(
            f"{lens}_{name}", ("depth", "pos"), unit, meaning, low, high, reduce="token_mean", title=told
        )

    listed = ("depth", "pos", "rank")
    return (
        per_depth("kl", "KL to the output", "nats", f"divergence of the {title.lower()} from the output"),
        per_depth("jsd", "Jensen–Shannon divergence", "bits", "the same, symmetric and base 2", 0.0, 1.0),
        per_depth(
            "overlap",
            "best tokens shared",
            "share",
            "share of the lens' best k tokens that are among the output's",
            0.0,
            1.0,
        ),
        MeasureSpec(
            f"{lens}_rank", ("depth", "pos"), "rank", "rank of the output's best token in the lens", 1.0, dtype="int32"
        ),
        MeasureSpec(f"{lens}_top_ids", listed, "token id", "the lens' best tokens", dtype="int32"),
        MeasureSpec(f"{lens}_top_probs", listed, "probability", "their probabilities", 0.0, 1.0),
        MeasureSpec(
            f"{lens}_settle_depth",
            ("pos",),
            "depth",
            "first depth from which the lens' best token stays the final one",
            0.0,
            None,
            "token_mean",
        ),
        MeasureSpec(
            f"{lens}_token_rank",
            ("depth", "pos"),
            "rank",
            "rank of the followed token in the lens",
            1.0,
            dtype="int32",
        ),
    )


@dataclass(frozen=True)
class Lenses(Probe):
    """One prompt through several **lenses**: what the model would say if it ended at each depth, where the stream is
    first taken to the last layer's terms by a map fitted beforehand. The **logit lens** reads it as it is; the **affine
    lens** through `A_l h + b_l`, the least-squares map from `h[l]` to `h[L]`; the **Jacobian lens** through `J_l h`,
    how `h[L]` changes on average when `h[l]` does. Row L is the output under every lens.

    The affine lens minimises squared error and not the divergence; it is not the tuned lens. The Jacobian lens is made
    to be read by ranks, its distribution is not calibrated: its divergence enters no verdict. Whether a fitted lens
    beats the constant prediction stands in its certificate.

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
        *(spec for lens in LENSES for spec in _measures(lens)),
        MeasureSpec(
            "constant_kl",
            ("pos",),
            "nats",
            "divergence of unembed(mean h[L]), which says the same of every token, from the output",
            0.0,
            None,
            "token_mean",
            title="Constant prediction: KL to the output",
        ),
    )
    pictures: ClassVar[tuple[Picture, ...]] = tuple(
        Picture(
            title,
            "lens_map",
            (f"{lens}_{{shade}}", f"{lens}_top_ids"),
            f"{title}: columns are input tokens, cells predict the next token",
            "Row 0 is the embedding, the top row the model's own output; a token is written where it is another than "
            "in the row below.",
            f"What the model would predict if it ended at each depth, by the {title.lower()}.",
            title,
        )
        for lens, title in LENSES.items()
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, (ROW_LENSES * n_layers + 2) * n_tokens

    def holds(self, shape: Shape) -> int:
        return 0

    def fits(self) -> list[Fit]:
        """The named fits, one of a kind at most."""
        found = [find(name) for name in self._named()]
        kinds = [fit.kind for fit in found]
        if len(set(kinds)) < len(kinds):
            twice = next(kind for kind in kinds if kinds.count(kind) > 1)
            raise ParameterError(f"lenses.fit names two {twice} lenses; name one of a kind.")
        return found

    @classmethod
    def at_first(cls, model: ModelSpec) -> Lenses:
        """With what is fitted to the model here: the bundled lenses, else the kept ones, one of a kind."""
        there = of_model(model)
        first = {fit.kind: fit.path.stem for fit in reversed(there)}
        return cls(fit=",".join(sorted(first.values())))

    def _named(self) -> list[str]:
        return [name.strip() for name in self.fit.split(",") if name.strip()]

    def paths(self, parameter: str) -> list[str]:
        return [name for name in self._named() if not is_name(name)]

    def content_hash(self, parameter: str) -> str:
        """Of all the files together, whatever their order: kinds tell them apart."""
        return hashlib.sha256("".join(sorted(fit.content for fit in self.fits())).encode()).hexdigest()

    def request(self, model: ModelSpec, prompt: Prompt) -> Request:
        """As of every probe; `FitRefused` where a fit is of another model."""
        request = super().request(model, prompt)
        for fit in self.fits():
            fit.require(model)
        return request

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        import torch

        from ..fits.lens import Reader
        from ..sweeps import metrics

        n_depths, n_tokens, k = model.n_layers + 1, len(encoding), min(self.k, model.d_vocab)
        if self.follow >= model.d_vocab:
            raise ParameterError(f"lenses.follow is {self.follow}; this model's ids are 0 to {model.d_vocab - 1}.")
        fits = self.fits()
        for fit in fits:
            fit.require(model.spec)
        readers: dict[str, Reader | None] = {"logit": None} | {
            fit.kind: Reader(fit, model) for fit in sorted(fits, key=lambda f: f.kind)
        }
        for lens in readers:
            for name in ("kl", "jsd", "overlap", "rank"):
                record.allocate(f"{lens}_{name}", (n_depths, n_tokens))
            for name in ("top_ids", "top_probs"):
                record.allocate(f"{lens}_{name}", (n_depths, n_tokens, k))
            record.allocate(f"{lens}_settle_depth", (n_tokens,))
            if self.follow >= 0:
                record.allocate(f"{lens}_token_rank", (n_depths, n_tokens))
        mean = next(
            (reader.mean for reader in readers.values() if reader is not None and reader.mean is not None), None
        )
        if mean is not None:
            record.allocate("constant_kl", (n_tokens,))
        record.provenance["fits"] = [fit.told for fit in fits]
        trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
        chunk = max(1, min(LOGIT_BYTES, record.budget.bytes) // (ROW_BYTES * model.d_vocab))
        chunks = [slice(i, min(i + chunk, n_tokens)) for i in range(0, n_tokens, chunk)]
        for done, at in enumerate(chunks):
            out = model.unembed(trace.resid[-1][0, at])
            against = metrics.Against(out, k)
            final = against.best[1]
            if mean is not None:
                same = model.unembed(mean.to(model.dtype).expand(at.stop - at.start, -1))
                record.write("constant_kl", at, against.measure(same)["kl"])
            for number, (lens, reader) in enumerate(readers.items()):
                top1 = []
                for depth in range(n_depths):
                    if depth == model.n_layers:
                        logits = out
                    else:
                        h = trace.resid[depth][0, at]
                        logits = model.unembed(h if reader is None else reader(depth, h).to(model.dtype))
                    read = against.measure(logits)
                    top1.append(read["ids"][:, 0])
                    row = {
                        "kl": read["kl"],
                        "jsd": read["jsd"],
                        "overlap": metrics.overlap(read["ids"], final),
                        "rank": read["rank"],
                        "top_ids": read["ids"],
                        "top_probs": read["best"].exp(),
                    }
                    if self.follow >= 0:
                        target = torch.full((len(logits),), self.follow, device=logits.device)
                        row["token_rank"] = metrics.rank(logits, target)
                    for name, values in row.items():
                        record.write(f"{lens}_{name}", (depth, at), values)
                    record.name_tokens(model, read["ids"])
                    record.step((done + (number + (depth + 1) / n_depths) / len(readers)) / len(chunks))
                record.write(f"{lens}_settle_depth", at, metrics.settle_depth(torch.stack(top1)))
