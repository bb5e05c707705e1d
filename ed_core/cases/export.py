"""Results as one `.npz` that `numpy.load(..., allow_pickle=False)` opens: what `python -m ed_core run --out` writes;
and as tables and pictures. Numpy only.

Names: `<probe>.<measure>.<i>` of prompt i; `<probe>.<measure>` the papers' aggregate, and `<probe>.<measure>_mean` of
a maximum; what a probe derives from its aggregates (`layer_skip.depth_score`, `prune.spearman_block_influence`) under
its name, and of a prompt with `.<i>`; `tokens.<i>`, `answer_start.<i>` (-1 without an answer), `n_tokens`,
`effective_depth.*`, `provenance` (JSON). Nothing is padded. Of `effective_depth.*`, `kl_mean` and `overlap_mean` are
the depths without a threshold, `turn` the last layer before the cosine's two-level turn with `turn_p`, all else the
papers' rules.

Of `contributions`, `sinks.<column>.<i>` are the spans of prompt i's sinks (`SPAN`), and `sinks.long_at_end.<i>` the
positions of tokens that are long at depth L alone, which are no sinks. A prompt whose norms are not finite has
neither."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..depth import sinks
from ..depth.rules import PAPER, RULES
from ..depth.sample import READS, Sample
from ..depth.side_by_side import SIDES, Pair, relative_depth
from ..depth.sinks import Sink
from ..depth.verdict import verdict
from ..errors import ParameterError
from ..probes import Probe
from ..results.aggregate import aggregate, counts_first, probe_of
from ..types import ProbeResult

if TYPE_CHECKING:
    import pandas as pd

    from .case_study import Case, View

SINKS = "sinks"  # a table among the measures of `contributions`
SPAN = ("pos", "ratio", "from", "to", "layer", "branch", "rise")
"""The columns of that table, a row for each span of a sink: position and largest ratio of the token, first and last
depth, the layer and branch (0 attention, 1 MLP) that write it, -1 for the embedding, and the rise of its norm there."""


def arrays(runs: Mapping[Probe, Sequence[ProbeResult]], forms: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return all arrays of a run by name: of every probe, its results in the order of the prompts. `forms`: the
    template of each prompt, which a stored result lacks."""
    out: dict[str, np.ndarray] = {}
    for probe, results in runs.items():
        for i, result in enumerate(results):
            derived = probe.derive(aggregate(probe, [result.summary]))
            own = {name: values for name, values in derived.items() if not name.endswith("_mean")}
            measured = {name: m.values for name, m in result.measures.items()}
            out |= {f"{probe.name}.{name}.{i}": values for name, values in (measured | own).items()}
        curves = aggregate(probe, [r.summary for r in results], counts_first(probe))
        out |= {f"{probe.name}.{name}": values for name, values in (curves | probe.derive(curves)).items()}
    results = next(iter(runs.values()))
    for i, result in enumerate(results):
        out[f"tokens.{i}"] = np.asarray(result.token_ids, np.int32)
        out[f"answer_start.{i}"] = np.asarray(-1 if result.answer_start is None else result.answer_start, np.int32)
    out["n_tokens"] = np.asarray(sum(r.n_tokens for r in results))
    by_name = {probe.name: (probe, results) for probe, results in runs.items()}
    if sinks.PROBE in by_name:
        for i, result in enumerate(by_name[sinks.PROBE][1]):
            if (some := sinks.of_result(result)) is not None:
                out |= {f"{SINKS}.{name}.{i}": values for name, values in _spans(some).items()}
                out[f"{SINKS}.long_at_end.{i}"] = np.asarray(sinks.long_at_end(result), np.int32)
    if set(READS) <= set(by_name):
        written, lens = (by_name[name] for name in READS)
        out |= effective_depth(*written, lens[1], forms)
    certificates = [{"prompt": i, **r.provenance} for of_probe in runs.values() for i, r in enumerate(of_probe)]
    out["provenance"] = np.asarray(json.dumps({"runs": certificates}, sort_keys=True))
    return out


def case_arrays(case: Case) -> dict[str, np.ndarray]:
    """Return the numbers of a case study under the names of `arrays`; of several views (another model or prompt, the
    same probe again) with a prefix, `1/`, `2/`, …"""
    out: dict[str, np.ndarray] = {}
    for prefix, view in _by_prefix(case).items():
        named = arrays({probe_of(item.result): [item.result] for item in view.by_probe.values()})
        out |= {prefix + name: values for name, values in named.items()}
    return out


def _by_prefix(case: Case) -> dict[str, View]:
    """Return the views by the prefix of their arrays' names: "" for one view, else `1/`, `2/`, …."""
    return {f"{i}/" if len(case.views) > 1 else "": view for i, view in enumerate(case.views, 1)}


def tables(case: Case) -> dict[str, tuple[ProbeResult, str]]:
    """Return the arguments of `csv` by `<probe>.<measure>` and `contributions.sinks`, with the prefixes of
    `case_arrays`."""
    return {
        f"{prefix}{probe}.{name}": (item.result, name)
        for prefix, view in _by_prefix(case).items()
        for probe, item in reversed(view.by_probe.items())
        for name in (*item.result.measures, *([SINKS] if probe == sinks.PROBE else []))
    }


def effective_depth(
    probe: Probe, contributions: Sequence[ProbeResult], lens: Sequence[ProbeResult], forms: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Return `effective_depth.<criterion>` with `_ratio`, `_stable`, `_low`, `_high`, and the depth by each variant:
    `_without_sinks`, of KL also `_from_depth_1`. `effective_depth.kl_mean` and `.overlap_mean`, in 0..L, with `_low`,
    `_high`; `.turn`, a layer, and `.turn_p`. Intervals are over the templates of the prompts where enough are known,
    else over prompts. NaN = not defined, too few prompts, or unknown sinks."""
    out = {}

    def put(name: str, value: int | float | None) -> None:
        """Add a number to the arrays, NaN for None."""
        out[f"effective_depth.{name}"] = np.asarray(np.nan if value is None else value, np.float32)

    reached = verdict(Sample.of(contributions, lens, first_token=counts_first(probe), forms=forms))
    for name, rule in reached.rules.items():
        low, high, _ = rule.interval or (None, None, None)
        variants = {f"_{variant}": rule.variants.get(variant) for variant in RULES[name].variants if variant != PAPER}
        own = {"": rule.depth, "_ratio": rule.ratio, "_low": low, "_high": high}
        for suffix, value in (own | variants).items():
            put(f"{name}{suffix}", value)
    for name, mean in reached.means.items():
        low, high, _ = mean.interval or (None, None, None)
        for suffix, value in {"": mean.depth, "_low": low, "_high": high}.items():
            put(f"{name}_mean{suffix}", value)
    put("turn", reached.turn.layer if reached.turn else None)
    put("turn_p", reached.turn.p if reached.turn else None)
    return out


def _spans(some: Sequence[Sink]) -> dict[str, np.ndarray]:
    """Return the spans of some sinks, sink after sink, as the columns `SPAN`, int32 and float32."""
    rows = []
    for sink in some:
        for span in sink.spans:
            by = (-1, -1) if span.layer is None else (span.layer, sinks.BRANCHES.index(span.branch))
            rows.append((sink.pos, sink.ratio, span.start, span.end, *by, span.rise))
    columns = np.asarray(rows, np.float64).reshape(-1, len(SPAN)).T
    real = ("ratio", "rise")
    return {name: x.astype(np.float32 if name in real else np.int32) for name, x in zip(SPAN, columns)}


def frame(result: ProbeResult, measure: str) -> pd.DataFrame:
    """Return a row per value of a measure: its place along each dim, the token there where it is one of the prompt's,
    and the value, in a column of the measure's name. Of `sinks` a row per span."""
    import pandas as pd

    if measure == SINKS:
        some = sinks.of_result(result) or ()
        values: dict[str, Any] = _spans(some) | {"branch": [span.branch for sink in some for span in sink.spans]}
        places = {"pos": values.pop("pos")}
    else:
        places = result.measures[measure].places()
        values = {measure: result[measure].ravel()}
    tokens = {"token": np.array(result.tokens, object)[places["pos"]]} if "pos" in places else {}
    return pd.DataFrame({**places, **tokens, **values})


def csv(result: ProbeResult, measure: str) -> str:
    """Return a measure of a result as CSV, with the rows of `frame`."""
    return _csv(frame(result, measure))


def csv_of_sides(sides: Mapping[str, ProbeResult], measure: str) -> str:
    """Return the `csv` of several results, one after the other, with the name of each in a column `side`."""
    import pandas as pd

    tables = {side: frame(result, measure) for side, result in sides.items()}
    return _csv(pd.concat(tables, names=["side"]).reset_index("side"))


def pair_csv(pair: Pair) -> str:
    """Return two curves as CSV: side, index, relative depth, value."""
    import pandas as pd

    tables = {
        side: pd.DataFrame({"relative_depth": relative_depth(len(values), n), pair.curve.name: values})
        for side, values, n in zip(SIDES, (pair.a, pair.b), pair.n_layers)
    }
    return _csv(pd.concat(tables, names=["side", pair.curve.x]).reset_index())


def curve_csv(name: str, dim: str, values: np.ndarray) -> str:
    """Return a curve as CSV: index and value; of a map, with a comma in `dim`, both indices."""
    import pandas as pd

    index = pd.MultiIndex.from_product(map(range, values.shape), names=dim.split(","))
    return _csv(pd.Series(values.ravel(), index, name=name).reset_index())


def _csv(table: pd.DataFrame) -> str:
    """Return a table as CSV with all digits of every number; tokens as JSON strings, so that none is a spreadsheet's
    formula."""
    wide = {name: np.float64 for name, kind in table.dtypes.items() if kind == np.float32}
    table = table.astype(wide)
    if "token" in table:
        table["token"] = table["token"].map(json.dumps)
    text: str = table.to_csv(index=False, na_rep="nan", lineterminator="\r\n")
    return text


EXPORTS = (".edcase", ".html", ".npz", ".csv", ".png", ".svg")


def exported(case: Case, ending: str, which: str = "") -> bytes:
    """Return the bytes of a case study as a file of one of `EXPORTS` but `.edcase`. `which`: the measure of a table,
    the figure of a picture; `ParameterError` where the case study has none of that name."""
    if ending == ".html":
        from .report import report

        return report(case).encode()
    if ending in (".png", ".svg"):
        return _picture(case, ending.removeprefix("."), which)
    if ending == ".npz":
        np.savez(buffer := io.BytesIO(), allow_pickle=False, **case_arrays(case))
        return buffer.getvalue()
    measures = tables(case)
    if which not in measures:
        raise _unknown("--measure", which, sorted(measures))
    return csv(*measures[which]).encode()


def _picture(case: Case, kind: str, name: str) -> bytes:
    """Return the figure `name` as a "png" or "svg" (`kind`); `ParameterError` for an unknown name."""
    from ..figures import images
    from .drawings import by_name

    drawings = by_name(case)
    if name.lower() not in drawings:
        raise _unknown("--figure", name, drawings)
    drawing = drawings[name.lower()]
    results = drawing.results or [item.result for item in case.items]
    return images.render(drawing.figure, kind, f"{drawing.title} · {drawing.caption}", images.origin(results))


def _unknown(option: str, value: str, known: Iterable[str]) -> ParameterError:
    """Return the error for a value that a command's option does not know."""
    given = f"is {value!r}" if value else "is missing"
    return ParameterError(f"{option} {given}; this case study has {'; '.join(known)}.")
