"""A result that answers by name, as a table and as a picture. Pandas and plotly are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..depth import sinks, verdict
from ..depth.continuous import MeanDepth, Turn
from ..errors import ParameterError
from ..sources.controls import full_name
from ..types import Measure, ProbeResult

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class Result(ProbeResult):
    """A `ProbeResult` whose measures are attributes: `result.kl` is the array `result["kl"]`.

    An attribute wins over a measure of its name (`tokens`, `version`, `plot`, …); `result["version"]` is always the
    measure."""

    @classmethod
    def of(cls, found: ProbeResult) -> Result:
        return cls(**{f.name: getattr(found, f.name) for f in fields(found) if f.init})

    def __getattr__(self, name: str) -> np.ndarray:
        measures: Mapping[str, Measure] = vars(self).get("measures", {})  # a copy in the making has none yet
        if name in measures:
            return measures[name].values
        raise AttributeError(f"{type(self).__name__} has no {name!r}; its measures are {', '.join(measures) or 'none'}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.measures})

    @property
    def sinks(self) -> tuple[sinks.Sink, ...]:
        """Tokens whose residual stream is far longer than the others', and who writes them (`depth.sinks`); of
        `contributions` alone."""
        if (found := sinks.of_result(self)) is None:
            raise AttributeError("sinks")  # said by __getattr__
        return found

    @property
    def mean_depth(self) -> dict[str, MeanDepth]:
        """Where the lens settles, without a threshold (`depth.continuous`), by "kl" and "overlap"; of `logit_lens`
        alone."""
        if self.request.probe != verdict.READS[1]:
            raise AttributeError("mean_depth")  # a measure of that name, or said by __getattr__
        return verdict.mean_depths([self])

    @property
    def turn(self) -> Turn | None:
        """The cosine's turn as a two-level fit (`depth.continuous`), None where there is nothing to fit; of
        `contributions` alone."""
        if self.request.probe != verdict.READS[0]:
            raise AttributeError("turn")  # said by __getattr__
        return verdict.turn([self], dict(self.request.parameters).get("first_token", True))

    def to_dataframe(self, measure: str = "") -> pd.DataFrame:
        """One measure, or all of them, with a row per value: `measure`, its place along each dim, the `token` there
        where it is one of the prompt's, and the `value`. Where a measure lacks a dim, the cell is empty."""
        import pandas as pd

        tables = []
        for name in [measure] if measure else self.measures:
            found = self._measure(name)
            places = found.places()
            texts = {"token": np.array(self.tokens, object)[places["pos"]]} if "pos" in places else {}
            tables.append(pd.DataFrame({"measure": name, **places, **texts, "value": found.values.ravel()}))
        table = pd.concat(tables, ignore_index=True)
        dims = dict.fromkeys(dim for one in tables for dim in one if dim not in ("measure", "token", "value"))
        gaps = {dim: "Int64" for dim in dims if table[dim].isna().any()}
        return table.astype(gaps)[["measure", *dims, *(["token"] if "pos" in dims else []), "value"]]

    def plot(self, measure: str = "") -> go.Figure:
        """The picture that the probe declares for a measure, its first one unless a measure is named."""
        from ..cases.drawings import OVER_SEVERAL
        from ..figures.pictures import figure
        from ..probes import find

        together = OVER_SEVERAL.get(find(self.request.probe))
        if together and not measure:
            return next(together([self])).figure
        return figure(self, self._measure(measure).name if measure else "")

    def _measure(self, name: str) -> Measure:
        if name not in self.measures:
            raise ParameterError(f"There is no measure {name!r} here; there is {', '.join(self.measures)}.")
        return self.measures[name]

    def _headline(self) -> dict[str, Any]:
        prompt = self.request.prompts[0]
        return {
            "probe": self.request.probe,
            "model": ", ".join(full_name(model) for model in self.request.models),
            "prompt": repr(prompt.text + prompt.answer),
            "size": f"{self.n_layers} layers, {self.n_tokens} tokens",
        }

    def __repr__(self) -> str:
        told = self._headline()
        prompt = told["prompt"] if len(told["prompt"]) <= 60 else told["prompt"][:59] + "…"
        return f"<{told['probe']} on {told['model']}, {prompt}, {told['size']}: {', '.join(self.measures)}>"

    def _repr_html_(self) -> str:
        """Everything is escaped; and in `code`, where a notebook sets no formula between dollars."""

        def code(text: object) -> str:
            return f"<code>{escape(str(text))}</code>"

        told = "".join(f"<div>{name}: {code(text)}</div>" for name, text in self._headline().items())
        notes = "".join(f"<div>note: {code(note)}</div>" for note in self.notes)
        head = "".join(f"<th>{name}</th>" for name in ("measure", "dims", "shape", "unit", "meaning"))
        rows = "".join(
            "<tr>" + "".join(f"<td>{code(cell)}</td>" for cell in cells) + "</tr>"
            for cells in (
                (name, ", ".join(m.spec.dims), " × ".join(map(str, m.values.shape)), m.spec.unit, m.spec.meaning)
                for name, m in self.measures.items()
            )
        )
        return f"{told}{notes}<table><tr>{head}</tr>{rows}</table>"
