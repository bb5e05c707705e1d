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
PROBES = (
    Contributions(),
    LogitLens(k=3),
    LayerSkip(),
    LayerSkip(mode="future", boundaries=(4, 6)),
    Continuation(n_tokens=2),
)


# ---------------------------------------------------------------- keys


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


def test_every_thing_that_can_move_a_number_moves_the_key():
    keys = [
        REQUEST.key,
        *(
            of(prompt=replace(PROMPT, **change))
            for change in (
                {"text": "5 + 7 ="},
                {"answer": " 12"},
                {"answer": ""},
                {"template": "chat"},
                {"special_tokens": False},
                {"text": "5 + 7 = 1", "answer": "2"},  # the same tokens, but another answer
            )
        ),
        *(
            of(model=replace(MODEL, **change))
            for change in (
                {"content_hash": "ab13"},
                {"precision": "bf16"},
                {"adapter": "x"},
                {"control": "shuffled"},
                {"control_seed": 1},
                {"attention": "eager"},
                {"device": "cuda"},
                {"revision": "main"},
            )
        ),
        *(
            of(probe=LayerSkip(**change))
            for change in (
                {},
                {"mode": "future"},
                {"mode": "future", "boundaries": (8,)},
                {"mode": "future", "boundaries": (16, 8)},
                {"part": "mlp"},
                {"seed": 1},
                {"n_boundaries": 2},
            )
        ),
        of(probe=LogitLens()),
        of(probe=LogitLens(k=3)),
        of(probe=Contributions()),
        replace(REQUEST, probe_version=REQUEST.probe_version + 1).key,
        replace(REQUEST, models=(MODEL, MODEL)).key,
        replace(REQUEST, prompts=(PROMPT, PROMPT)).key,
    ]
    assert len(set(keys)) == len(keys)


def test_a_hub_model_is_its_name_and_commit():
    hub = ModelSpec("org/name", revision="c0ffee")
    assert len({of(hub), of(replace(hub, source="org/other")), of(replace(hub, revision="decaf"))}) == 3
    assert hub.name == "name" and MODEL.name == "small"


def test_the_engine_version_is_part_of_the_key(monkeypatch):
    before = of()
    monkeypatch.setattr("ed_core.types.ENGINE_VERSION", -1)
    assert of() != before


def test_a_request_survives_json():
    formed = replace(REQUEST, prompts=(replace(PROMPT, form="a story"),))
    again = Request.from_json(json.loads(json.dumps(formed.to_json())))
    assert again == REQUEST and again.key == REQUEST.key == REQUEST.to_json()["key"]
    assert again.prompts[0].form == "a story" and re.fullmatch("[0-9a-f]{32}", again.key)


# ---------------------------------------------------------------- bytes


@pytest.fixture(scope="module", params=PROBES, ids=lambda p: f"{p.name} {getattr(p, 'mode', '')}")
def result(request, model_of, measure):
    found = measure(model_of("llama"), request.param, Prompt("größer", answer=" ≥ 3", id="ü"))
    return replace(found, notes=("a note",), provenance={"seconds": 0.25, "host": "h", "libraries": {"numpy": "2"}})


def same(a, b):
    """Equality of two results, arrays by their bytes (NaN is equal to itself)."""
    arrays = lambda d: {k: (v.dtype, v.shape, v.tobytes()) for k, v in d.items()}
    plain = lambda r: replace(r, measures={}, summary={})
    values = lambda r: {k: m.values for k, m in r.measures.items()}
    specs = lambda r: {k: m.spec for k, m in r.measures.items()}
    return (
        plain(a) == plain(b)
        and specs(a) == specs(b)
        and arrays(values(a)) == arrays(values(b))
        and arrays(a.summary) == arrays(b.summary)
    )


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
    return wire.pack(
        measure(model_of("llama"), LayerSkip(mode="future", boundaries=(4,)), Prompt("5 + 7 = ", answer="12"))
    )


def garble(data, rng):
    """One seeded mutation: bytes changed, cut off, left out, doubled or moved."""
    data = bytearray(data)
    kind, at, length = rng.randrange(6), rng.randrange(len(data)), rng.choice([1, 2, 8, 64, 500])
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at : at + length] = rng.randbytes(length)
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        del data[at : at + length]
    elif kind == 4:
        data[at:at] = data[at : at + length]
    else:
        data = data[at:] + data[:at]
    return bytes(data)


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


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_bytes_are_refused(packed, share):
    with pytest.raises(ValueError):
        wire.unpack(packed[: int(share * len(packed))])


class Bomb:
    """What unpickling would run."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def changed(packed, arrays=None, **fields):
    """A sealed container whose manifest or arrays say something else; None takes an array away."""
    lies = {f"{name}.npy": None if values is None else npy(values) for name, values in (arrays or {}).items()}

    def members(files):
        return {name: content for name, content in (files | lies).items() if content is not None}

    return sealed_anew(packed, lambda told: told | fields, members, zipfile.ZIP_STORED)


FOREIGN = {
    "text": b"not a result",
    "json": b'{"schema": 1}',
    "pickle": pickle.dumps({"header": 1}),
    "pickled bomb": pickle.dumps(Bomb()),
    "one array": npy(np.zeros(3)),
    "array of objects": npy(np.array([Bomb()], dtype=object)),
    "archive without header": npz(x=np.zeros(3)),
    "archive of objects": npz(header=np.array([Bomb()], dtype=object)),
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
    "layers in words": dict(n_layers="five"),
    "tokens": dict(tokens=["x"]),
    "token ids": dict(token_ids=["x"] * 10),
    "answer_start": dict(answer_start=99),
    "progress": dict(progress=None),
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


def test_a_fraction_is_no_whole_number():
    for probe, values in ((LogitLens, {"k": 8.7}), (LogitLens, {"k": "8.7"}), (LayerSkip, {"boundaries": [2.5]})):
        with pytest.raises(ParameterError):
            probe.make(values)


def test_a_partial_result_does_not_change_behind_its_reader():
    seen = []
    request = Contributions().request(ModelSpec("m"), Prompt("x"))
    record = Recorder(request, Contributions.measures, Encoding((1, 2), ("a", "b")), 3, publish=seen.append)
    record.allocate("layer_ratio")
    record.write("layer_ratio", 0, 1.0)
    record.step(0.3)
    record.write("layer_ratio", 1, 1.0)
    assert np.isnan(seen[0]["layer_ratio"][1:]).all() and (seen[0]["layer_ratio"][0] == 1).all()


def test_a_parameters_bounds_are_allowed_and_nothing_beyond():
    for value in ("1", "50"):
        assert LogitLens.make({"k": value}).k == int(value)
    for value in ("0", "51"):
        with pytest.raises(ParameterError, match="expected 1 to 50"):
            LogitLens.make({"k": value})


def test_of_a_device_only_the_kind_counts():
    keys = {
        d: Contributions().request(replace(MODEL, device=d), PROMPT).key for d in ("cpu", "cuda", "cuda:0", "cuda:1")
    }
    assert keys["cuda"] == keys["cuda:0"] == keys["cuda:1"] != keys["cpu"]


def test_a_summary_that_is_not_that_of_its_measures_is_refused():
    one = results()["early_exit"]
    assert wire.unpack(wire.pack(one)).summary.keys() == one.summary.keys()
    for name, values in one.summary.items():
        with pytest.raises(ValueError, match="summary"):
            wire.unpack(wire.pack(replace(one, summary={**one.summary, name: np.asarray(values + 1)})))


def test_what_follows_from_a_measure_is_not_written_beside_it(model_of, measure):
    """Surgery's maps are means over the tokens: their sums are those times the number of tokens."""
    one = measure(model_of("llama"), Surgery(kind="drop", longest=1), PROMPT)
    with np.load(io.BytesIO(wire.pack(one))) as archive:
        kept = {name for name in archive.files if name.startswith("s.")}
    assert kept == {"s.n_tokens"} and {"drop_kl.sum", "drop_kl.first", "loss_whole.count"} <= one.summary.keys()
    assert same(wire.unpack(wire.pack(one)), one)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_what_is_no_number_has_no_spelling(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)
    assert canonical_json({"b": 1.5, "a": ["ä", None]}) == '{"a":["\\u00e4",null],"b":1.5}'
