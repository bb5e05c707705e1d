"""What every test stands on: one quiet thread, no network, and the engine's shape annotations checked at run time.

The variables must stand before torch is imported, the import hook before `ed_core` is.
"""

import os

os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

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
    from ed_core.recorder import Recorder

    def run(model, probe, prompt):
        encoding = model.encode(prompt)
        probe.check(len(encoding), encoding.answer_start)
        record = Recorder(probe.request(model.spec, prompt), encoding, model.n_layers)
        probe.compute(model, encoding, record)
        return record.result(complete=True)

    return run


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory):
    """A model folder that opens in a moment: 5 random blocks, one token per byte."""
    from small_models import save_random

    return save_random(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def browser():
    from ed_core.bench.browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of the app, one for all browser tests of this process; its store is empty at first."""
    from ed_core.bench.browser import serving

    with serving(tmp_path_factory.mktemp("cache")) as app:
        yield app.address


@pytest.fixture
def visitor(browser):
    """`visitor(…)`: a tab in a browser of somebody's own, with patience for a busy machine; closed in the end."""
    contexts = []

    def opened(**options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1440, "height": 1500}, **options}))
        contexts[-1].set_default_timeout(240_000)
        return contexts[-1].new_page()

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def page(visitor):
    """A fresh session; a console error or an exception box fails the test that saw it."""
    from test_browser import HARMLESS

    tab, errors = visitor(), []

    def heard(message) -> None:
        if message.type == "error" and not any(known in message.text for known in HARMLESS):
            errors.append(message.text)

    tab.on("console", heard)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    yield tab
    boxes = [e.inner_text() for e in tab.query_selector_all("[data-testid=stException]")]
    assert not errors and not boxes
