"""A long job gives way between two blocks to a shorter one that runs inside it: neither's numbers change by a bit,
memory that runs out inside stays inside, and what was opened for the long one stays open."""

from __future__ import annotations

import io
import queue
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_models import computed, opened_models, save_random

from ed_core.errors import TooLarge
from ed_core.probes import (
    Contributions,
    EarlyExit,
    Generation,
    IntegratedGradients,
    LayerSkip,
    Lenses,
    LogitLens,
    Numerics,
    Prune,
    ResidualErasure,
    Surgery,
)
from ed_core.probes.generation import Continuation
from ed_core.results.wire import unpack
from ed_core.service import compute, worker
from ed_core.service.resolve import resolve
from ed_core.types import ProbeResult, Prompt, Request

QUESTION = Prompt("5 + 7 + 5 + 3 + 1 + 7 = ", answer="28")
LONG = {
    "layer_skip": LayerSkip(),
    "layer_skip future": LayerSkip(mode="future"),
    "layer_skip attention": LayerSkip(part="attention"),
    "residual_erasure": ResidualErasure(),
    "residual_erasure future": ResidualErasure(target="future"),
    "integrated_gradients": IntegratedGradients(nodes=17),
    "prune": Prune(n=2),
    "surgery": Surgery(order="0,2-4", continued=3),
    "generation": Generation(n_tokens=6),
    "lenses": Lenses(),
    "logit_lens": LogitLens(),
    "early_exit": EarlyExit(),
    "numerics": Numerics(),
    "contributions": Contributions(),
    "continuation": Continuation(n_tokens=6),
}
SHORT = (
    IntegratedGradients(nodes=5),
    Contributions(),
    LayerSkip(),
    Continuation(n_tokens=3),
)  # with and without gradients


def same(one: ProbeResult, other: ProbeResult) -> None:
    """Bitwise, whatever may be compared."""
    assert set(one.measures) == set(other.measures)
    for name, measure in one.measures.items():
        assert measure.values.tobytes() == other.measures[name].values.tobytes(), name
    assert one.notes == other.notes and one.complete and other.complete
    assert set(one.summary) == set(other.summary)
    for name, values in one.summary.items():
        assert np.asarray(values).tobytes() == np.asarray(other.summary[name]).tobytes(), name


@pytest.mark.parametrize("name", LONG)
def test_whoever_gives_way_at_every_block_computes_the_same_numbers(spec, name):
    """The short ones run on the same model, each of them inside the long one, one after the other, until it ends."""
    asked = LONG[name].request(spec, QUESTION)
    shorts = [probe.request(spec, Prompt("1 + 2 + 3 = ", answer="6")) for probe in SHORT]
    alone, model, inside = computed(asked), opened_models().get(spec), []

    def give_way():
        assert not model.busy and torch.is_grad_enabled()
        inside.append(compute.run(model, shorts[len(inside) % len(shorts)]))

    found = compute.run(model, asked, waits=lambda: True, give_way=give_way)
    same(found, alone)
    assert inside or name == "contributions", "whose steps are all inside the model's own pass"
    for number, result in enumerate(inside[: len(shorts)]):
        same(result, computed(shorts[number]))
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_whoever_gives_way_shows_first_what_there_is(spec):
    """However little time has passed since it was shown last."""
    shown, at = [], []
    compute.run(
        opened_models().get(spec),
        LogitLens().request(spec, QUESTION),
        shown.append,
        waits=lambda: True,
        give_way=lambda: at.append(len(shown)),
    )
    assert at == list(range(1, len(at) + 1)) and len(at) > 4


def test_no_job_goes_first_while_hooks_live(spec):
    """Contributions are read inside the model's own pass: whoever ran the same model then would be recorded too."""
    model, asked = opened_models().get(spec), []
    new = Contributions().request(spec, Prompt("4 + 4 + 4 = ", "2"))  # of another, the trace may still be there
    compute.run(model, new, waits=lambda: asked.append(model.busy) or False)
    assert asked == [], "nobody is even asked"
    compute.run(model, LogitLens().request(spec, QUESTION), waits=lambda: asked.append(model.busy) or False)
    assert asked and not any(asked)


def test_the_time_it_gave_away_is_not_its_own_nor_one_by_which_a_clock_was_set(spec, monkeypatch):
    """It goes into what later runs are expected to take."""
    now = [1000.0]
    monkeypatch.setattr("ed_core.sweeps.recorder.time.monotonic", lambda: now[0])
    monkeypatch.setattr(compute.time, "time", lambda: 1e9 - 3 * now[0])

    def give_way():
        now[0] += 100.0

    asked = LogitLens().request(spec, QUESTION)
    first = [True]
    found = compute.run(opened_models().get(spec), asked, waits=lambda: bool(first and first.pop()), give_way=give_way)
    assert found.provenance["seconds"] == 0.0


# -------------------------------------------------------------------- the worker


class Wire(io.BufferedIOBase):
    """The worker's end of the pipe: what it said, and what happens when it says something."""

    def __init__(self, on=lambda header, result: None):
        self.frames, self._on = [], on

    def write(self, data: bytes) -> None:
        header, body = worker.receive(io.BytesIO(data))
        self.frames.append((header, unpack(body) if body else None))
        self._on(*self.frames[-1])

    def flush(self) -> None:
        """Nothing is kept back."""

    def kinds(self, job: str | None = None) -> list[str]:
        return [header["type"] for header, _ in self.frames if job is None or header["job"] == job]

    def last(self, job: str) -> tuple[dict, ProbeResult | None]:
        return [frame for frame in self.frames if frame[0]["job"] == job][-1]


def job(name: str, request: Request) -> dict:
    return {"type": "run", "job": name, "request": request.to_json()}


def served(long: Request, wire: Wire, *others: dict, cancelled=None, models=None, todo=None) -> Wire:
    """What a worker says of a long job, and of others that come while it computes."""
    todo, models = todo or queue.SimpleQueue(), opened_models() if models is None else models
    for one in others:
        todo.put(one)
    worker.serve(job("long", long), models, wire, set() if cancelled is None else cancelled, todo)
    return wire


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path_factory.mktemp("cache")))


def pair(spec, other=None):
    return LayerSkip().request(spec, QUESTION), Contributions().request(other or spec, Prompt("1 + 2 = "))


def test_the_worker_serves_what_comes_inside_what_it_computes(spec):
    long, short = pair(spec)
    wire = served(long, Wire(), job("short", short))
    said = [(header["job"], header["type"]) for header, _ in wire.frames if header["type"] != "stage"]
    first = said.index(("short", "begun"))
    assert said[:first] == [("long", "begun"), ("long", "partial")], "what there is is shown before it gives way"
    inner = [job for job, _ in said[first:]]
    assert set(inner[: inner.index("long")]) == {"short"} and said[-1] == ("long", "done")
    assert said[first + inner.index("long") - 1] == ("short", "done"), "the inner one ends first"
    same(wire.last("long")[1], computed(long))
    same(wire.last("short")[1], computed(short))
    assert wire.last("short")[0]["models"] == [len(opened_models()), opened_models().bytes]


def test_one_job_inside_another_and_no_third(spec):
    """Who comes while the inner one computes is served when that is done."""
    long, short = LayerSkip().request(spec, QUESTION), LogitLens().request(spec, QUESTION)
    wire = served(long, Wire(), job("second", short), job("third", short))
    said = [(h["job"], h["type"]) for h, _ in wire.frames if h["type"] in ("begun", "done")]
    assert said == [
        *(("long", "begun"), ("second", "begun"), ("second", "done")),
        *(("third", "begun"), ("third", "done"), ("long", "done")),
    ]


def test_a_job_that_gave_way_waits_until_it_is_told_who_is_next(spec, monkeypatch):
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 600.0)
    todo: queue.SimpleQueue[dict] = queue.SimpleQueue()
    long, short = pair(spec)
    answers = {"a": job("b", short), "b": {"type": "on"}}

    def on(header, result):
        if header["type"] == "done" and header["job"] in answers:
            threading.Timer(0.2, todo.put, [answers[header["job"]]]).start()

    wire = served(long, Wire(on), job("a", short), todo=todo)
    said = [(h["job"], h["type"]) for h, _ in wire.frames if h["type"] != "stage"]
    inside = said[said.index(("a", "begun")) : said.index(("b", "done"))]
    assert {job for job, _ in inside} == {"a", "b"}, "the long one computes nothing between the two"
    assert said[-1] == ("long", "done") and todo.empty()


def test_without_an_answer_a_job_that_gave_way_goes_on_and_a_late_one_is_nobodys_turn(spec, monkeypatch):
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.01)
    todo: queue.SimpleQueue[dict] = queue.SimpleQueue()
    long, short = pair(spec)
    late = lambda header, result: (header["job"], header["type"]) == ("long", "partial") and todo.put({"type": "on"})
    wire = served(long, Wire(late), job("short", short), todo=todo)
    assert wire.kinds("short")[-1] == wire.kinds("long")[-1] == "done"
    same(wire.last("long")[1], computed(long))


@pytest.mark.parametrize("which", ["long", "short"])
def test_either_can_be_cancelled_while_one_runs_inside_the_other(spec, which):
    cancelled: set[str] = set()
    long, _ = pair(spec)
    short = LogitLens().request(spec, QUESTION)
    begun = lambda header, result: (header["job"], header["type"]) == ("short", "begun") and cancelled.add(which)
    wire = served(long, Wire(begun), job("short", short), cancelled=cancelled)
    other = {"long": "short", "short": "long"}[which]
    assert wire.last(which)[0]["type"] == "failed" and wire.last(which)[0]["error"] == "Cancelled"
    assert wire.last(other)[0]["type"] == "done" and not cancelled
    same(wire.last(other)[1], computed({"long": long, "short": short}[other]))


def test_what_was_cancelled_before_it_began_opens_no_model(spec):
    wire, models = Wire(), compute.Models()
    worker.serve(job("a", pair(spec)[0]), models, wire, {"a"})
    assert wire.kinds() == ["begun", "failed"] and len(models) == 0


def test_a_refusal_and_a_defect_inside_stay_inside(spec, monkeypatch):
    long, short = pair(spec)
    wire = served(long, Wire(), job("short", LayerSkip().request(spec, Prompt("5"))))
    assert wire.last("short")[0]["error"] == "PromptError" and wire.last("long")[0]["type"] == "done"
    monkeypatch.setattr(Contributions, "compute", lambda *_: 1 / 0)
    wire = served(long, Wire(), job("short", short))
    assert wire.last("short")[0]["error"] == "JobError" and wire.last("long")[0]["type"] == "done"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: you tried to allocate 9 bytes")])
def test_memory_that_runs_out_inside_another_job_costs_neither(spec, monkeypatch, error):
    """The long one goes on, the short one is tried again by itself."""
    long, short = pair(spec)
    monkeypatch.setattr(Contributions, "compute", Mock(side_effect=error))
    wire = served(long, Wire(), job("short", short))
    assert wire.last("short")[0] == {"type": "later", "job": "short"}
    assert wire.last("long")[0]["type"] == "done"
    same(wire.last("long")[1], computed(long))
    worker.serve(job("short", short), opened_models(), wire, set(), queue.SimpleQueue())
    assert wire.last("short")[0]["error"] == "OutOfMemory", "by itself it is told"


# -------------------------------------------------------------------- the models


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return resolve(str(save_random(tmp_path_factory.mktemp("other"), "llama")))


def test_the_model_of_a_job_that_gave_way_stays_open(spec, other):
    """A budget for one model: the other one has to wait, and is not left open."""
    models = compute.Models(budget=1)
    long, short = pair(spec, other)
    opened = []
    wire = Wire(lambda header, result: header["type"] == "begun" and opened.append(len(models)))
    served(long, wire, job("short", short), models=models)
    assert wire.last("short")[0]["type"] == "later" and wire.last("long")[0]["type"] == "done"
    assert opened == [0, 1] and len(models) == 1 and models.get(spec) is models.get(spec)
    models.get(other)
    assert len(models) == 1, "by itself it takes the other one's place"


def test_a_model_too_large_beside_the_held_one_is_refused_and_the_held_one_stays(spec, other, monkeypatch):
    models = compute.Models()
    held = models.get(spec)
    monkeypatch.setattr(compute, "open_model", Mock(side_effect=TooLarge("no room")))
    with models.hold(held), pytest.raises(TooLarge):
        models.get(other)
    assert models.get(spec) is held
    with pytest.raises(TooLarge):
        models.get(other)
    assert len(models) == 0, "nobody held it any longer"


def test_both_models_stay_open_where_there_is_room(spec, other):
    models = compute.Models()
    long, short = pair(spec, other)
    wire = served(long, Wire(), job("short", short), models=models)
    assert wire.last("short")[0]["type"] == wire.last("long")[0]["type"] == "done" and len(models) == 2
    same(wire.last("long")[1], computed(long))
    same(wire.last("short")[1], computed(short))
