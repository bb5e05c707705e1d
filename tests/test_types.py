"""Identity and transport: a request's key is the same everywhere and moves with every number; bytes are a result or a
`ValueError`."""

import io
import json
import pickle
import random
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from archives import sealed_anew
from kept_cases import results

from ed_core.errors import ParameterError
from ed_core.probes import Continuation, Contributions, LayerSkip, LogitLens, Surgery
from ed_core.results import wire
from ed_core.sweeps.recorder import Recorder
from ed_core.types import Encoding, ModelSpec, Prompt, Request, canonical_json

MODEL = ModelSpec("/models/small", content_hash="ab12")
PROMPT = Prompt("5 + 7 = ", answer="12", id="first")
REQUEST = LayerSkip(mode="future", boundaries=(8, 16)).request(MODEL, PROMPT)
FUTURE = LayerSkip(mode="future", boundaries=(4, 6))
PROBES = (Contributions(), LogitLens(k=3), FUTURE, Continuation(n_tokens=2), Surgery(kind="drop", longest=1))


def of(model=MODEL, prompt=PROMPT, probe=LayerSkip(mode="future", boundaries=(8, 16))):
    return probe.request(model, prompt).key


def test_labels_paths_and_order_are_no_part_of_the_identity():
    assert of(prompt=replace(PROMPT, id="another")) == REQUEST.key
    formed = replace(PROMPT, form="a story")
    assert of(prompt=formed) == REQUEST.key and formed == PROMPT and "form" not in formed.identity()
    assert of(model=replace(MODEL, source="/elsewhere/copy")) == REQUEST.key
    assert replace(REQUEST, parameters=REQUEST.parameters[::-1]).key == REQUEST.key
    assert of(probe=LayerSkip.make({"boundaries": "8,16", "mode": "future"})) == REQUEST.key
    assert of(probe=Contributions(first_token=True)) == of(probe=Contributions(first_token=False))  # view only


def test_every_thing_that_can_move_a_number_moves_the_key(monkeypatch):
    prompts = [dict(text="5 + 7 ="), dict(answer=" 12"), dict(answer=""), dict(template="chat")]
    prompts += [dict(special_tokens=False), dict(text="5 + 7 = 1", answer="2")]  # the same tokens, but another answer
    models = [dict(content_hash="ab13"), dict(precision="bf16"), dict(adapter="x"), dict(revision="main")]
    models += [dict(control="shuffled"), dict(control_seed=1), dict(attention="eager"), dict(device="cuda")]
    skips = [dict(mode="future", boundaries=at) for at in ((), (8,), (16, 8))]
    skips += [dict(), dict(part="mlp"), dict(seed=1), dict(n_boundaries=2)]
    probes = [LogitLens(), LogitLens(k=3), Contributions(), *(LayerSkip(**change) for change in skips)]
    requests = [dict(probe_version=REQUEST.probe_version + 1), dict(models=(MODEL, MODEL)), dict(prompts=(PROMPT,) * 2)]
    keys = [REQUEST.key, *(of(probe=probe) for probe in probes)]
    keys += [of(prompt=replace(PROMPT, **change)) for change in prompts]
    keys += [of(model=replace(MODEL, **change)) for change in models]
    keys += [replace(REQUEST, **change).key for change in requests]
    monkeypatch.setattr("ed_core.types.ENGINE_VERSION", -1)
    keys.append(of())
    assert len(set(keys)) == len(keys)


def test_a_hub_model_is_its_name_and_commit_and_a_device_its_kind():
    hub = ModelSpec("org/name", revision="c0ffee")
    assert len({of(hub), of(replace(hub, source="org/other")), of(replace(hub, revision="decaf"))}) == 3
    first, cuda, cpu = (of(replace(MODEL, device=device)) for device in ("cuda:0", "cuda", "cpu"))
    assert first == cuda != cpu


def test_a_request_survives_json():
    formed = replace(REQUEST, prompts=(replace(PROMPT, form="a story"),))
    again = Request.from_json(json.loads(json.dumps(formed.to_json())))
    assert again == REQUEST and again.key == REQUEST.key == REQUEST.to_json()["key"]
    assert again.prompts[0].form == "a story" and re.fullmatch("[0-9a-f]{32}", again.key)


@pytest.fixture(scope="module", params=PROBES, ids=lambda p: f"{p.name} {getattr(p, 'mode', '')}")
def result(request, model_of, measure):
    found = measure(model_of("llama"), request.param, Prompt("größer", answer=" ≥ 3", id="ü"))
    return replace(found, notes=("a note",), provenance={"seconds": 0.25, "host": "h", "libraries": {"numpy": "2"}})


def same(a, b):
    """Equality of two results, arrays by their bytes (NaN is equal to itself)."""

    def parts(result):
        specs = {name: measure.spec for name, measure in result.measures.items()}
        arrays = {name: measure.values for name, measure in result.measures.items()}, result.summary
        exact = [{name: (v.dtype, v.shape, v.tobytes()) for name, v in some.items()} for some in arrays]
        return replace(result, measures={}, summary={}), specs, exact

    return parts(a) == parts(b)


def test_a_result_survives_the_wire(result):
    assert result.complete and result.summary.keys() >= {"n_tokens"}
    assert same(wire.unpack(wire.pack(result)), result)
    partial = replace(result, complete=False, progress=0.4, version=3, summary={})
    assert same(wire.unpack(wire.pack(partial)), partial)
    for measure in partial.measures.values():
        measure.values.flat[:1] = -1 if measure.values.dtype == np.int32 else np.nan  # not computed yet
    assert same(wire.unpack(wire.pack(partial)), partial)


@pytest.fixture(scope="module")
def packed(model_of, measure):
    return wire.pack(measure(model_of("llama"), LayerSkip(mode="future", boundaries=(4,)), PROMPT))


def garble(data, rng):
    """One seeded mutation: a bit or bytes changed, bytes cut off, left out, doubled or moved."""
    at, length = rng.randrange(len(data)), rng.choice([1, 2, 8, 64, 500])
    before, some, rest = data[:at], data[at : at + length], data[at + length :]
    flipped = bytes([some[0] ^ 1 << rng.randrange(8)]) + some[1:]
    middles = flipped + rest, rng.randbytes(len(some)) + rest, b"", rest, some + some + rest
    return rng.choice([some + rest + before, *(before + middle for middle in middles)])


def test_garbled_bytes_are_refused_or_harmless(packed):
    """Never another result, never another error: what zip does not check (a time stamp) may differ, the content may
    not."""
    original, rng, refused = wire.unpack(packed), random.Random(0), 0
    for _ in range(300):
        try:
            found = wire.unpack(garble(packed, rng))
        except ValueError:
            refused += 1
        else:
            assert same(found, original)
    assert refused > 200


class Bomb:
    """What unpickling would run."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def saved(save, *arrays, **more):
    buffer = io.BytesIO()
    save(buffer, *arrays, **more)
    return buffer.getvalue()


def changed(packed, arrays=None, **fields):
    """A sealed container whose manifest or arrays say something else; None takes an array away."""
    lies = {f"{name}.npy": values for name, values in (arrays or {}).items()}

    def members(files):
        kept = {name: content for name, content in files.items() if name not in lies}
        return kept | {name: saved(np.save, values) for name, values in lies.items() if values is not None}

    return sealed_anew(packed, lambda told: told | fields, members, zipfile.ZIP_STORED)


FOREIGN = {
    "text": b"not a result",
    "pickled bomb": pickle.dumps(Bomb()),
    "array of objects": saved(np.save, np.array([Bomb()], dtype=object)),
    "archive without header": saved(np.savez, x=np.zeros(3)),
    "archive of objects": saved(np.savez, header=np.array([Bomb()], dtype=object)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_bytes_are_refused(name):
    with pytest.raises(ValueError):
        wire.unpack(FOREIGN[name])


LIES = {
    "an earlier version": dict(version=1),
    "a later version": dict(version=3),
    "an earlier version of the probe": dict(
        request=(r := replace(REQUEST, probe_version=REQUEST.probe_version - 1)).to_json() | {"key": r.key}
    ),
    "format": dict(format="effective-depth maps"),
    "key": dict(request={**REQUEST.to_json(), "key": "0" * 32}),
    "request": dict(request=None),
    "unknown probe": dict(request=(r := Request((MODEL,), (PROMPT,), "no_such_probe")).to_json() | {"key": r.key}),
    "unknown measure": dict(arrays={"m.bogus": np.zeros(3, np.float32)}),
    "measure of another probe": dict(arrays={"m.kl": np.zeros((6, 10), np.float32)}),
    "dtype": dict(arrays={"m.output": np.zeros(5)}),
    "axes": dict(arrays={"m.output": np.zeros((5, 1), np.float32)}),
    "length": dict(arrays={"m.output": np.zeros(4, np.float32)}),
    "objects": dict(arrays={"m.output": np.array([Bomb()] * 5)}),
    "layers": dict(n_layers=6),
    "tokens": dict(tokens=["x"]),
    "token ids": dict(token_ids=["x"] * 10),
    "answer_start": dict(answer_start=99),
    "provenance": dict(provenance=[1]),
    "notes": dict(notes="abc"),
    "a flag for a number": dict(updates=True),
    "a fraction for a number": dict(n_layers=5.0),
    "a negative number": dict(updates=-1),
    "a number for a flag": dict(complete=1),
    "token texts of numbers": dict(token_text=[[1, 2]]),
    "a name too many": dict(author="x"),
    "a complete result without a measure": dict(arrays={"m.effect": None}),
    "a complete result without its summary": dict(arrays={"s.effect": None}),
    "foreign array": dict(arrays={"x.y": np.zeros(2, np.float32)}),
}


@pytest.mark.parametrize("name", LIES)
def test_a_well_formed_archive_that_lies_is_refused(packed, name):
    assert same(wire.unpack(changed(packed)), wire.unpack(packed))
    with pytest.raises(ValueError):
        wire.unpack(changed(packed, **LIES[name]))


def test_a_partial_result_does_not_change_behind_its_reader():
    seen = []
    request = Contributions().request(ModelSpec("m"), Prompt("x"))
    record = Recorder(request, Contributions.measures, Encoding((1, 2), ("a", "b")), 3, publish=seen.append)
    record.allocate("layer_ratio")
    record.write("layer_ratio", 0, 1.0)
    record.step(0.3)
    record.write("layer_ratio", 1, 1.0)
    assert np.isnan(seen[0]["layer_ratio"][1:]).all() and (seen[0]["layer_ratio"][0] == 1).all()


def test_a_parameter_is_a_whole_number_within_its_bounds():
    for k in ("1", "50"):
        assert LogitLens.make({"k": k}).k == int(k)
    for probe, values in (
        *((LogitLens, {"k": k}) for k in ("0", "51", 8.7, "8.7")),
        (LayerSkip, {"boundaries": [2.5]}),
    ):
        with pytest.raises(ParameterError):
            probe.make(values)


def test_a_summary_that_is_not_that_of_its_measures_is_refused():
    one = results()["early_exit"]
    assert wire.unpack(wire.pack(one)).summary.keys() == one.summary.keys()
    for name, values in one.summary.items():
        with pytest.raises(ValueError, match="summary"):
            wire.unpack(wire.pack(replace(one, summary={**one.summary, name: np.asarray(values + 1)})))


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_what_is_no_number_has_no_spelling(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)
    assert canonical_json({"b": 1.5, "a": ["ä", None]}) == '{"a":["\\u00e4",null],"b":1.5}'
