"""What every test stands on: one quiet thread, no network, and the engine's shape annotations checked at run time.

The variables must stand before torch is imported, the import hook before `ed_core` is.
"""

import os

os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

import logging  # noqa: E402
from functools import cache  # noqa: E402

import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("ed_core", "beartype.beartype")


@pytest.fixture(scope="session")
def model_of():
    """`model_of(family, dtype=…)`: a small random model, built once. It is shared: a test that changes weights builds
    its own."""
    from small_models import random_model

    return cache(random_model)


@pytest.fixture(scope="session")
def variant_model():
    """`variant_model(name)`: the small random model of a family's variant, built once; float32. Shared like
    `model_of`'s."""
    from small_models import byte_tokenizer

    from ed_core.bench.families import random_model

    return cache(lambda name: random_model(name, tokenizer=byte_tokenizer()))


@pytest.fixture(scope="session")
def measure():
    """`measure(model, probe, prompt)`: the complete result of one probe on one prompt, computed in this process."""
    from ed_core.results.aggregate import summarize
    from ed_core.sweeps.recorder import Recorder

    def run(model, probe, prompt):
        encoding = model.encode(prompt)
        probe.check(len(encoding), encoding.answer_start)
        record = Recorder(probe.request(model.spec, prompt), probe.measures, encoding, model.n_layers)
        probe.compute(model, encoding, record)
        return summarize(record.result(complete=True))

    return run


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory):
    """A model folder that opens in a moment: 5 random blocks, one token per byte."""
    from small_models import save_random

    return save_random(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def failures():
    """What pages failed with for a reason nobody foresaw: a page then shows one sentence (`ed_ui.guard`), so a test
    that neither asks for such a failure nor clears this list fails here."""
    records, handler = [], logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("ed_ui.guard")
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)
    assert not [record.getMessage() for record in records]
