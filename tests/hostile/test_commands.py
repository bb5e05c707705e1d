"""Every command with hostile arguments, outputs and surroundings: an exit code that means something, one sentence, and
nothing changed but the output."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ed_core.cases.kept import SHIPPED
from hostile.commands import HEAVY, NO_FOLDERS, OUTS, QUICK, WORDS, WRITERS, lay
from hostile.forks import Trials
from hostile.readers import FITS, STUDY


def filled(argv) -> list[str]:
    card = FITS.parent / "cards" / "ed-demo-8.json"
    case = next(SHIPPED.glob("*.edcase")).stem
    told = {"{in}": "in.jsonl", "{case}": case, "{study}": str(STUDY), "{card}": str(card)}
    return [told.get(one, one) for one in argv]


def snapshot(folder: Path) -> dict[str, str]:
    """What lies in a folder, but for the cache: kind and content of each."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if name.parts[0] == "cache" or name.parts[:2] == (".cache",):
            continue
        mode = file.lstat().st_mode
        content = hashlib.sha256(file.read_bytes()).hexdigest() if stat.S_ISREG(mode) else ""
        found[str(name)] = f"{stat.S_IFMT(mode)} {content}{os.readlink(file) if stat.S_ISLNK(mode) else ''}"
    return found


def usual(trials: Trials, place: Path, name: str) -> int:
    """The memory of a command with its good arguments, in a folder of its own."""
    known = f"{name} as a command"  # a reader may have the same name
    if known not in trials.good:
        folder = place.with_name("usual")
        folder.mkdir()
        lay(folder)
        command = QUICK[name]
        argv = filled(command.with_out(command.name) if command.out else command.argv)
        trials.good[known] = trials.command(*argv, cwd=folder, heavy=name in HEAVY)
    return trials.good[known].bytes


def tried(trials: Trials, place: Path, argv: list[str], good: int = 0, **more) -> list[str]:
    """What is wrong with how a command ended, where its output is none of what lies there."""
    before = snapshot(place)
    outcome = trials.command(*argv, cwd=place, **more)
    after = snapshot(place)
    lost = [name for name, what in before.items() if after.get(name) != what]
    wrong = [found] if (found := outcome.wrong(good)) else []
    wrong += [f"changed: {lost}"] if lost else []
    wrong += [f"left: {name}" for name in after if name.endswith(".unfinished")]
    return [f"{' '.join(argv)[:300]}: {one}" for one in wrong]


@pytest.mark.parametrize("name", WRITERS)
def test_an_output_is_never_an_input_a_folder_or_a_special_file(trials, place, name):
    """Said before the work: nothing is computed, so nothing lies in the cache."""
    command, wrong = WRITERS[name], []
    outs = NO_FOLDERS if command.folder else OUTS
    for out in outs if "{in}" in command.argv or command.folder else [one for one in outs if "in.jsonl" not in one]:
        argv = filled(command.with_out(out))
        before = snapshot(place)
        outcome = trials.command(*argv, cwd=place)
        if outcome.code != 2 or outcome.wrong() or snapshot(place) != before:
            wrong.append(f"{argv}: {outcome}")
        if any((place / "cache" / "results").rglob("*.val")):
            wrong.append(f"{argv}: refused after the work")
    assert not wrong, "\n".join(wrong)


def test_an_output_may_be_a_new_file_or_one_that_is_replaced_with_its_permissions(trials, place):
    argv = filled(WRITERS["run"].with_out("r.npz"))
    assert trials.command(*argv, cwd=place, heavy=True).code == 0 and (place / "r.npz").is_file()
    (place / "r.npz").write_bytes(b"old")
    (place / "r.npz").chmod(0o600)
    (place / "r.00000000.unfinished").write_bytes(b"of a run that was killed")
    assert trials.command(*argv, cwd=place, heavy=True).code == 0
    assert stat.S_IMODE((place / "r.npz").stat().st_mode) == 0o600 and (place / "r.npz").stat().st_size > 3
    assert not list(place.glob("*.unfinished"))


@pytest.mark.parametrize("name", QUICK)
def test_hostile_arguments_are_refused_in_a_sentence(trials, place, name):
    rng, wrong, good = random.Random(name), [], usual(trials, place, name)
    for word in rng.sample(WORDS, 5):
        argv = filled(QUICK[name].argv)
        at = rng.randrange(1, len(argv)) if len(argv) > 1 else len(argv)
        argv[at : at + 1] = [word]
        argv += ["--out", QUICK[name].name] if QUICK[name].out else []
        wrong += tried(trials, place, argv, good, heavy=name in HEAVY)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_any_hostile_arguments_are_refused_in_a_sentence(trials, place, name):
    command, most = QUICK[name], usual(trials, place, name)
    good = filled(command.argv)
    words = st.sampled_from(WORDS) | st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20
    )

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.integers(1, len(good)), words), min_size=1, max_size=2), st.sampled_from(OUTS))
    def holds(changes, out):
        argv = list(good)
        for at, word in changes:
            argv[at : at + 1] = [word]
        argv += [command.out, out] if command.out else []
        wrong = tried(trials, place, argv, most, heavy=name in HEAVY)
        assert not wrong, "\n".join(wrong)

    holds()


SURROUNDINGS = {
    "no HOME": {"HOME": ""},
    "an empty PATH": {"PATH": "/nowhere"},
    "a cache that is a file": {"ED_CACHE": "in.jsonl"},
    "a cache that cannot be": {"ED_CACHE": "/proc/x"},
    "a long cache": {"ED_CACHE": "x" * 300},
    "a cache of a long path": {"ED_CACHE": "x/" * 3000},
    "many digits": {"ED_CACHE_LIMIT": "9" * 400},
    "many digits of memory": {"ED_PROBE_MEMORY": "9" * 5000},
    "many tokens": {"ED_MAX_TOKENS": "9" * 5000},
    "a cache that may only be read": {"ED_CACHE": "locked"},
    "a cache where nothing may be made": {"ED_CACHE": "locked/x"},
    "settings that are a pipe": {"ED_CONFIG": "pipe"},
    "settings that are a device": {"ED_CONFIG": "/dev/zero"},
    "settings that are a folder": {"ED_CONFIG": "folder"},
    "a name that is no UTF-8": {"ED_TITLE": "\udce4"},
}


@pytest.mark.parametrize("name", SURROUNDINGS)
@pytest.mark.parametrize("command", ["settings", "cache", "case list"])
def test_hostile_surroundings_are_one_sentence(trials, place, name, command):
    assert not tried(trials, place, QUICK[command].argv, **SURROUNDINGS[name])


SAYING = ("settings", "models", "case list", "estimate", "cache", "check")  # print something when all is well


@pytest.mark.parametrize("command", QUICK)
def test_an_output_that_is_full_and_one_of_ascii(trials, place, command):
    argv = filled(QUICK[command].with_out(QUICK[command].name) if QUICK[command].out else QUICK[command].argv)
    heavy = command in HEAVY
    outcome = trials.command(*argv, cwd=place, heavy=heavy, out="/dev/full")
    assert not outcome.wrong() and (command not in SAYING or (outcome.code == 2 and "No space left" in outcome.said))
    outcome = trials.command(*argv, cwd=place, heavy=heavy, encoding="ascii")
    assert not outcome.wrong() and (command not in SAYING or outcome.code == 0)


def on_a_full_disk(trials: Trials, place: Path, name: str) -> str:
    """What is wrong with a command that may write files of 64 bytes only, or ""."""
    command, before = WRITERS[name], snapshot(place)
    argv = filled(command.with_out(command.name))
    outcome = trials.command(*argv, cwd=place, heavy=name not in LIGHT, room=64)
    after = snapshot(place)
    left = [name for name in after if name.endswith(".unfinished") or (name not in before and not command.folder)]
    lost = [name for name, what in before.items() if after.get(name) != what]
    fine = outcome.code in (1, 2) and not outcome.wrong() and not left and not lost
    return "" if fine else f"{argv}: {outcome}, left {left}, lost {lost}"


LIGHT = ("backup", "case export", "study export", "deploy")


@pytest.mark.parametrize(
    "name", [name if name in LIGHT else pytest.param(name, marks=pytest.mark.slow) for name in WRITERS]
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(trials, place, name):
    """Before the work and, of those that compute, after it."""
    assert not on_a_full_disk(trials, place, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_output_is_one_sentence_and_leaves_no_half_file(trials, place, name):
    argv = filled(WRITERS[name].with_out(WRITERS[name].name))
    assert not tried(trials, place, argv, heavy=name not in LIGHT, out="/dev/full")


@pytest.mark.parametrize("what", ["folder", "link"])
def test_a_database_that_is_no_file(trials, place, what):
    folder = place / "cache" / "results"
    folder.mkdir(parents=True)
    (folder / "cache.db").mkdir() if what == "folder" else (folder / "cache.db").symlink_to("/nowhere/x")
    outcome = trials.command("cache", "info", cwd=place)
    assert outcome.code == 2 and "cache.db is a" in outcome.said and "permission" not in outcome.said
