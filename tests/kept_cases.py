"""Case studies for tests, from the shipped results: no torch, no model."""

from __future__ import annotations

from functools import cache

from ed_core.cases import case_study
from ed_core.results import lookup
from ed_core.results.wire import unpack

HOME = ("contributions", "logit_lens", "layer_skip", "continuation")


@cache
def results() -> dict:
    """The shipped results of the smaller bundled model, by probe."""
    found = (unpack(file.read_bytes()) for file in lookup.EXAMPLES.glob("*.npz"))
    of = ((r.request.models[0], r) for r in found)
    return {r.request.probe: r for model, r in of if model.name == "ed-demo-8" and not model.control}


def case(title: str = "A sum", probes: tuple = HOME, **more) -> case_study.Case:
    return case_study.make(title, [results()[probe] for probe in probes], **more)


def small(title: str = "A sum", **more) -> case_study.Case:
    """A few kilobytes."""
    return case(title, ("early_exit",), **more)
