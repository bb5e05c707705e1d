"""What every test needs: one quiet thread and no network, set before torch is imported."""

import os

os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

import gc
import logging
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

settings.register_profile("alike", deadline=None, derandomize=True, database=None)  # on every machine, however busy
settings.load_profile("alike")
gc.disable()  # while torch is imported and the tests are collected

ROOT = Path(__file__).parent.parent
ROUNDED = 1e-4  # how far rounding may take a value past what its measure can reach


@pytest.fixture(scope="session", autouse=True)
def quick_pages():
    """Without what AppTest would do again for every page: collect the garbage of the whole process after each run, and
    look through all installed packages for components (0.2 s)."""
    from streamlit import config
    from streamlit.components.v2 import manifest_scanner

    config.set_option("runner.postScriptGC", False)
    with pytest.MonkeyPatch.context() as patch:
        found = manifest_scanner.scan_component_manifests()
        patch.setattr(manifest_scanner, "scan_component_manifests", lambda: found)
        yield


def pytest_collection_finish():
    """Leave what importing made out of every later collection."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once(name, make)`: a folder that `make(folder)` fills, by whichever of the processes that share the tests
    needs it first; the others wait for it. No test changes what is in it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name, make):
        place, whole = base / name, base / f"{name}.whole"
        with FileLock(base / f"{name}.lock"):
            if not whole.exists():
                shutil.rmtree(place, ignore_errors=True)  # of one that failed
                place.mkdir()
                make(place)
                whole.touch()
        return place

    return made


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

    from tools.families import random_model

    return cache(lambda name: random_model(name, tokenizer=byte_tokenizer()))


@pytest.fixture(scope="session")
def measure():
    """`measure(model, probe, prompt)`: the complete result of one probe on one prompt, computed in this process. No
    value may be past what its measure says that it can reach."""
    import numpy as np

    from ed_core.results.aggregate import summarize
    from ed_core.sweeps.recorder import Recorder

    def run(model, probe, prompt):
        encoding = model.encode(prompt)
        probe.check(len(encoding), encoding.answer_start)
        record = Recorder(probe.request(model.spec, prompt), probe.measures, encoding, model.n_layers)
        probe.compute(model, encoding, record)
        result = record.result(complete=True)
        for measure in result.measures.values():
            (low, high), values = (measure.spec.low, measure.spec.high), measure.values[~np.isnan(measure.values)]
            assert low is None or (values >= low - ROUNDED).all(), f"{probe.name}.{measure.spec.name} is below {low}"
            assert high is None or (values <= high + ROUNDED).all(), f"{probe.name}.{measure.spec.name} is above {high}"
        return summarize(result)

    return run


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory):
    """A model folder that opens in a moment: 5 random blocks, one token per byte."""
    from small_models import save_random

    return save_random(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def spec(small_folder):
    """The model in that folder, in float32."""
    from ed_core.models.ref import ModelRef

    return ModelRef.parse(str(small_folder))


@pytest.fixture
def folder(tmp_path):
    """An empty folder of case studies."""
    from ed_core.cases.kept import Kept

    return Kept(tmp_path, shipped=None)


@pytest.fixture(scope="session")
def toys():
    """The bundled study."""
    from ed_core.models.bundled import STUDIES
    from ed_core.studies.items import open_folder

    return open_folder(STUDIES / "toys")


@pytest.fixture(scope="module")
def stored(small_folder, tmp_path_factory):
    """A store that holds every page's results for one prompt on a small model; no worker is started."""
    from charts import forget, idle
    from small_models import computed
    from test_pages import PAGES, PROMPT

    from ed_core.models.bundled import MODELS
    from ed_core.models.ref import ModelRef
    from ed_core.results import lookup

    with pytest.MonkeyPatch.context() as patch:
        # AppTest cannot hold a selectbox value that is not among its options
        patch.setitem(MODELS, "small", small_folder)
        idle(patch, tmp_path_factory.mktemp("cache"))
        spec, results = ModelRef.parse("small"), {}
        for probe in {p.name: p for probes in PAGES.values() for p in probes}.values():
            results[probe.name] = computed(probe.request(spec, PROMPT))
            lookup.store().put(results[probe.name])
        yield results
    forget()


@pytest.fixture
def laboratory(tmp_path, monkeypatch):
    """A cache of the test's own, in which pages start no worker."""
    from charts import forget, idle

    idle(monkeypatch, tmp_path)
    yield tmp_path
    forget()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    from ed_core.results import lookup

    monkeypatch.setenv("ED_CACHE", str(tmp_path / "cache"))
    lookup.store.cache_clear()
    yield tmp_path / "cache"
    lookup.store.cache_clear()


@pytest.fixture
def clean(monkeypatch):
    """Settings: neither a developer's own lab.toml nor another test's variables."""
    from ed_core import settings

    monkeypatch.setattr(settings, "HOME", Path("/nowhere"))
    settings._read.cache_clear()
    yield settings
    settings._read.cache_clear()


@pytest.fixture
def write(clean, tmp_path, monkeypatch):
    """`write(text)`: a settings file in force."""

    def written(text: str):
        (tmp_path / "lab.toml").write_text(text)
        monkeypatch.setenv("ED_CONFIG", str(tmp_path / "lab.toml"))
        clean._read.cache_clear()
        return clean.current()

    return written


@pytest.fixture(scope="session")
def hub_model(tmp_path_factory):
    """A folder for `fake_hub`: about 1 MB, so that a download takes several chunks."""
    from small_models import save_random

    return save_random(tmp_path_factory.mktemp("hub"), hidden_size=64, intermediate_size=256, num_hidden_layers=5)


@pytest.fixture
def client(tmp_path):
    """`client(hub, code or arguments…)`: a process whose hub is the given one; returns (exit code, stdout, stderr)."""

    def run(hub, *arguments, code="", **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
        more = {
            "HF_ENDPOINT": hub.address,
            "HF_HOME": str(tmp_path / "hf"),
            "ED_CACHE": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": "1",
        }
        command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "ed_core", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=clean | more | environment, timeout=120, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr.strip()

    return run


@pytest.fixture(autouse=True)
def failures():
    """What pages failed with for a reason nobody foresaw: a page then shows one sentence (`ed_ui.live`), so a test
    that neither asks for such a failure nor clears this list fails here."""
    records, handler = [], logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("ed_ui.live")
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)
    assert not [record.getMessage() for record in records]


@pytest.fixture(scope="session")
def browser():
    from tools.bench.browser import chromium

    # a page that waits moves: painted as often as its scripts ask for, not as often as it could be
    with chromium("--disable-threaded-animation") as started:
        yield started


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of the app, one for all browser tests of this process; its store is empty at first."""
    from tools.bench.browser import serving

    with serving(tmp_path_factory.mktemp("cache")) as address:
        yield address


@pytest.fixture
def visitor(browser):
    """`visitor(…)`: a tab in a browser of somebody's own, with patience for a busy machine; closed in the end."""
    contexts = []

    def opened(**options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1440, "height": 1500}, **options}))
        contexts[-1].set_default_timeout(90_000)
        return contexts[-1].new_page()

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def page(visitor):
    """A fresh session; a console error or an exception box fails the test that saw it. (Streamlit's client looks for
    its server under a page's own path first.)"""
    tab, errors = visitor(), []

    def heard(message) -> None:
        if message.type == "error" and "/_stcore/" not in message.location["url"]:
            errors.append(message.text)

    tab.on("console", heard)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    yield tab
    boxes = [e.inner_text() for e in tab.query_selector_all("[data-testid=stException]")]
    boxes += tab.get_by_text("for a reason nobody foresaw").all_inner_texts()
    assert not errors and not boxes
