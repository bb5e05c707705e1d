"""What was read or made once is at hand for the next, and nothing stale: results, figures, and what one run of a page
asks for several times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
from kept_cases import results

from ed_core.results import lookup
from ed_core.results.shelf import Shelf, frozen
from ed_core.results.store import Store
from ed_ui import picker, session, show, streamlit_edges


@dataclass(frozen=True)
class Pair:
    one: object
    two: object


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "same, other",
    [
        ((1,), (1.0,)),
        ((1,), (True,)),
        ((float("nan"),), (0.0,)),
        (("a",), ("b",)),
        ((ARRAY,), (ARRAY.reshape(3, 2),)),
        ((ARRAY,), (ARRAY.astype(np.float64),)),
        ((ARRAY,), (ARRAY + 1,)),
        ((np.arange(1000.0),), (np.arange(1000.0)[::-1],)),
        (({"a": 1, "b": 2},), ({"b": 2, "a": 1},)),
        ((Pair(1, [2, None]),), (Pair(1, [2, 0]),)),
    ],
)
def test_what_is_made_of_the_same_is_made_once(same, other):
    """Written differently, in another order, of another shape or kind: another."""
    shelf, made = Shelf(10), []
    make = lambda *given: made.append(given) or "made"
    for given in (same, tuple(np.array(v) if v is ARRAY else v for v in same), other, same):
        assert shelf.made(make, *given) == "made"
    assert len(made) == 2


def test_of_what_nothing_stands_for_everything_is_made_anew():
    shelf, made = Shelf(10), []
    make = lambda *given: made.append(given) or "made"
    for _ in range(2):
        shelf.made(make, lambda: None)
        shelf.made(make, np.array([object()]))
    assert len(made) == 4
    with pytest.raises(TypeError, match="nothing stands for a function"):
        frozen({"a": [print_nothing]})


def print_nothing() -> None:
    """A function, for which nothing can stand: it may know anything."""


def test_a_shelf_drops_what_was_asked_for_longest_ago():
    shelf, made = Shelf(10, len), []

    def get(key: str, text: str):
        return shelf.get(key, lambda: made.append(key) or text)

    get("a", "x" * 4), get("b", "x" * 4), get("a", ""), get("c", "x" * 4)
    assert made == ["a", "b", "c"]
    assert get("a", "") == "xxxx" and get("b", "yyyy") == "yyyy" and made == ["a", "b", "c", "b"], "b was dropped"
    assert shelf.get("none", lambda: None) is None and shelf.get("none", lambda: "now") == "now"


# -------------------------------------------------------------------- results


@pytest.fixture
def kept(tmp_path, monkeypatch):
    made = Store(tmp_path, size_limit=10**8)
    monkeypatch.setattr(lookup, "store", lambda: made)
    return made


def test_a_stored_result_is_read_once_and_never_stale(kept):
    """Stored anew it is read anew, removed it is gone; what many share cannot be written into."""
    shipped = results()["contributions"]
    mine = replace(shipped, request=replace(shipped.request, prompts=(replace(shipped.request.prompts[0], text="z"),)))
    key = mine.request.key
    assert lookup.by_key(key) is None
    kept.put(mine)
    found = lookup.by_key(key)
    assert found is lookup.by_key(key) and found.provenance == mine.provenance and len(kept.recent()) == 1
    for values in (next(iter(found.measures.values())).values, next(iter(found.summary.values()))):
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0
    kept.put(replace(mine, provenance={**mine.provenance, "time": "2026-12-24T18:00:00Z"}))
    again = lookup.by_key(key)
    assert again is not found and again.provenance["time"].startswith("2026-12-24")
    assert [card["time"][:10] for card in kept.recent()] == ["2026-12-24"], "its card too"
    kept.clear()
    assert lookup.by_key(key) is None and kept.recent() == []


def test_a_shipped_result_is_read_once(kept):
    key = results()["contributions"].request.key
    assert lookup.by_key(key) is lookup.by_key(key) is not None and lookup.is_shipped(key)


def test_a_result_that_is_used_from_memory_counts_as_used(kept):
    """Else what everybody looks at would be dropped first."""
    shipped = results()["contributions"]
    kept.put(shipped)
    used = lambda: kept._run(lambda cache: cache.rows("SELECT access_time FROM Cache WHERE key GLOB 'result/*'"))[0][0]
    lookup.by_key(shipped.request.key)
    kept._run(lambda cache: cache.rows("UPDATE Cache SET access_time = 5"))
    lookup.by_key(shipped.request.key)
    assert used() > 1e9


# -------------------------------------------------------------------- figures


def test_a_figure_is_made_once_for_all_and_never_of_another_result():
    one, made = results()["contributions"], []

    def draw(result, colour: str = "red") -> go.Figure:
        made.append(result)
        marks = go.Scatter(x=[0, 1], y=result["layer_cos"][:2, 0], name="cosine", line_color=colour)
        return go.Figure(marks, layout=dict(height=300, meta=dict(width_px=500), xaxis_title="layer"))

    first, second = (show.once(draw, one).ready() for _ in range(2))
    assert first is second and len(made) == 1
    assert (first.height, first.width) == (300, 500) and first.words.startswith(": cosine, smallest")
    assert show.once(draw, one, colour="blue").ready().json != first.json
    other = replace(one, version=one.version + 1)
    assert show.once(draw, other).ready() is not first and made[-1] is other, "an equal result is another"
    assert isinstance(show.once(draw, one).figure(), go.Figure)
    some, before = replace(one, complete=False), len(show._shelf._held)
    assert show.once(draw, some).ready() is not show.once(draw, some).ready()
    assert len(show._shelf._held) == before, "what a run shows on its way is not asked for again"


# -------------------------------------------------------------------- one run of a page


def test_the_model_is_looked_up_once_a_run_and_anew_in_the_next(monkeypatch):
    looked, run, known = [], [object()], session.Session()
    monkeypatch.setattr(session, "current", lambda: known)
    monkeypatch.setattr(streamlit_edges, "this_run", lambda: run[0])
    monkeypatch.setattr(picker, "chosen", lambda *asked: looked.append(asked) or SimpleNamespace(spec=len(looked)))
    monkeypatch.setattr(picker, "source", lambda: known.inputs["model"])
    known.inputs["model"] = "a"
    assert picker.current().spec == picker.current().spec == 1
    known.inputs["model"] = "b"
    assert picker.current().spec == 2, "another model in the same run"
    run[0] = object()
    assert picker.current().spec == 3, "its files may be others now"
    run[0] = None
    assert (picker.current().spec, picker.current().spec) == (4, 5), "outside of a run"
