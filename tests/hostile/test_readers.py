"""Every reader on hostile files: refused in one sentence or read, with bounded time and memory, and nothing else on the
disk is changed."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostile.forks import Trials
from hostile.made import TEMPLATES, WRONG, Json, changed, hostile, paths, special
from hostile.readers import HEAVY, READERS, SLOW

FEW, MANY = 12, 120
QUICK = [name for name in READERS if name not in SLOW]


@pytest.fixture(scope="module")
def goods(tmp_path_factory):
    """Every reader's good file, and the folder of its own in which it lies."""
    folders = {name: tmp_path_factory.mktemp("good") for name in READERS}
    return {name: (folder, READERS[name].make(folder)) for name, folder in folders.items()}


class Tried:
    """One reader's file, made hostile in a folder that is set up anew for each trial."""

    def __init__(self, trials: Trials, name: str, folder: Path, good: Path, place: Path, **environment: str):
        self.trials, self.name, self.folder, self.good, self.place = trials, name, folder, good, place
        self.environment = environment
        self.file, self.counts = place / good.relative_to(folder), Counter()
        if name not in trials.good:
            outcome = trials.good[name] = self(None)
            assert outcome.code == 0, outcome.said
        self.bytes = trials.good[name].bytes

    def __call__(self, data: bytes | None):
        self.lay()
        if data is not None:
            self.file.unlink()
            self.file.write_bytes(data)
        return self.read()

    def lay(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.folder, self.place, copy_function=os.link)

    def read(self):
        return self.trials.reader(self.name, self.file, self.name in HEAVY, **self.environment)

    def check(self, what: str, outcome) -> list[str]:
        self.counts[outcome.code] += 1
        wrong = outcome.wrong(self.bytes)
        return [f"{self.name}, {what}: {wrong}"] if wrong else []


@pytest.fixture
def tried(trials, goods, tmp_path):
    return lambda name, **environment: Tried(trials, name, *goods[name], tmp_path / "case", **environment)


def all_of(one: Tried, n: int) -> list[str]:
    kind, data = READERS[one.name].kind, one.good.read_bytes()
    found = [wrong for what, bad in hostile(kind, data, n) for wrong in one.check(what, one(bad))]
    one.lay()
    for what, _ in special(one.file):
        found += one.check(what, one.read())
    assert one.good.read_bytes() == data
    return found


@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_file_is_refused_or_read(tried, name):
    wrong = all_of(tried(name), FEW)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_hostile_files_are_refused_or_read(tried, name):
    wrong = all_of(tried(name), MANY if name not in SLOW else MANY // 4)
    assert not wrong, "\n".join(wrong)


ANY = st.recursive(st.sampled_from(WRONG), lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(), one))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in QUICK if READERS[name].kind in ("json", "header", "zip")])
def test_whatever_stands_at_a_place_of_the_json(tried, name):
    one = tried(name)
    told = Json(READERS[name].kind, one.good.read_bytes())
    at = list(paths(told.value))

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(at), ANY)
    def holds(where, new):
        wrong = one.check(f"{where} = {repr(new)[:60]}", one(told.with_(changed(told.value, where, new))))
        assert not wrong, "\n".join(wrong)

    holds()


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda text: text[:30])
def test_a_hostile_chat_template_ends_in_time(tried, template):
    one = tried("chat template")
    outcome, says = one(template.encode()), TEMPLATES[template]
    assert not outcome.wrong(one.bytes) and outcome.code in (0, 2)
    assert not says or (outcome.code == 2 and says in outcome.said)
