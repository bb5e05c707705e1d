"""Many visitors at once: nothing fails, nothing is lost, and nobody sees another prompt's figures; how fast that is,
`make load` measures. And the load test itself: it sees what it is there to see."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import prepared
import pytest
from hosted_app import ROOT, hosted, until
from load.__main__ import Look, Server, load, row, share, table
from load.session import Session, require_local
from load.visitors import ALONE, FIGURE, PAGE, Board, Visitor, sums

from ed_core.types import Prompt


@pytest.mark.parametrize(
    "address", ["http://10.0.0.1:8501", "https://lab.example.org", "http://127.0.0.2", "file:///x"]
)
def test_no_other_machine_is_put_under_load(address):
    with pytest.raises(ValueError, match="expected this machine"):
        require_local(address)
    with pytest.raises(ValueError, match="expected this machine"):
        Session(address)


def test_quantiles_and_rows():
    values = [float(n) for n in range(1, 201)]
    random.Random(1).shuffle(values)
    assert [share(values, part) for part in (0.5, 0.99, 1.0)] == [100, 198, 200]
    assert share([7.0], 0.5) == share([7.0], 0.99) == 7
    assert row("x", [1.0, 2.0, 3.0], (2.0, 3.0)) == "| x | 3 | 2.00 | 3.00 | 3.00 | 2 / 3 s |"
    assert row("x", [1.0, 2.0, 3.1], (2.0, 3.0)).endswith("| 2 / 3 s, **missed** |")
    assert row("x", [9.0], (None, 9.0)).endswith("| – / 9 s |") and "not measured" in row("x", [], (1.0, 1.0))


def test_the_table_tells_what_was_missed():
    board = Board(0.0)
    board.took[PAGE] += [0.2] * 98 + [1.5] * 2
    board.took[ALONE] += [1.0]
    board.note("lost", "one")
    own = [300.0] * 4 + [100.0, 101.0, 900.0] + [150.0] * 10 + [150.0, 900.0, 149.0]  # of 20 looks, every 3 s
    looks = [Look(3.0 * i, mb, 40.0 + i, 40 + i, 1.0 + 1.5 * i) for i, mb in enumerate(own)]
    server = Server(None, looks, page=0.0621, ours=0.25)
    text = table(board, server, readers=14)
    assert "| stored page | 100 | 0.20 | 1.50 | 1.50 | 0.25 / 1 s, **missed** |" in text
    assert "| four fresh panels | 1 | 1.00 | 1.00 | 1.00 | 1.5 / 5 s |" in text
    assert "| lost | 1 | 0, **missed** |" in text and "| error | 0 | 0 |" in text
    assert "0 to 1 min | 100 to 524 MB (+422%) |" in text, "a tenth of the looks each: two, and what lies between them"
    assert "| 40 to 59 MB |" in text and "| 44 to 59 |" in text and "| 50%; 25% |" in text
    assert "for a stored page, one visitor | 62 ms |" in text
    assert "| – / 2 s |" in table(board, server, readers=60), "a crowd of readers has a target of its own"


def figure(tokens: list[str], first: int = 0) -> SimpleNamespace:
    ticks = {"tickvals": list(range(first, first + len(tokens))), "ticktext": tokens}
    return SimpleNamespace(bytes=json.dumps({"figure": {"layout": {"xaxis": ticks}}}).encode())


def seen(chart=None, origin=None, alert=None) -> dict[str, list[str]]:
    """What a visitor with a prompt of its own notes of a page that shows this."""
    page = {FIGURE: chart, "json": origin, "alert": alert}
    elements = lambda kind: [("norms", page[kind])] if page.get(kind) else []
    session = SimpleNamespace(elements=elements, missed=0, query="")
    board = Board(0.0, owners={"somebody's": "another"})
    visitor = Visitor(board, session, "me", "ed-demo-8", random.Random(0))
    visitor.expect(Prompt("1 + 2 ="))
    session.looks()
    return dict(board.wrong)


def test_a_visitor_notes_figures_of_another_prompt():
    marks = ["1", "·+·", "2", "·="]
    assert seen(figure(["1", "<br>·+·", "◆2"])) == {} and seen(figure(["2"], first=2)) == {}
    assert list(seen(figure(["1", "·-·", "2"]))) == ["stale result"]
    assert list(seen(figure(marks, first=1))) == ["stale result"], "shifted"
    assert list(seen(figure(["3"], first=9))) == ["stale result"], "beyond one's own prompt"


def test_a_visitor_notes_whose_result_it_is_and_errors():
    origin = lambda text: SimpleNamespace(body=json.dumps({"prompt": {"text": text}}))
    assert seen(origin=origin("1 + 2 =")) == {}
    assert list(seen(origin=origin("mine before"))) == ["stale result"]
    assert list(seen(origin=origin("somebody's"))) == ["wrong owner"]
    assert list(seen(alert=SimpleNamespace(format=1, body="It failed."))) == ["error"]
    assert seen(alert=SimpleNamespace(format=2, body="A warning.")) == {}


def test_prompts_are_fresh():
    chance = random.Random(3)
    found = [sums(chance, 3) for _ in range(200)]
    assert len(set(found)) == 200 and all(text.startswith("Sums mod 10:\n") for text in found)


def test_options_are_bounded():
    for options in (
        ["--minutes", "999"],
        ["--readers", "500"],
        ["--readers", "0", "--prompters", "0", "--sweeps", "0"],
    ):
        command = [sys.executable, "-m", "load", *options]
        done = prepared.run(command, ROOT, os.environ | {"PYTHONPATH": "tests"})
        assert done.returncode == 2 and "expected at most" in done.stderr, done.stderr


def test_pandas_is_whole_before_anything_is_drawn():
    """Imported by whoever draws a table first, it fails the figures of those who draw beside him."""
    code = "import ed_ui.streamlit_edges, sys; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("kill_every", [0.0, 20.0])
def test_a_minute_of_twenty_visitors(tmp_path, kill_every):
    with hosted(tmp_path) as app:
        until(lambda: app.get("/ready")[0] == 200)
        board, server = asyncio.run(load(app, 60.0, 14, 4, 2, kill_every))
        log = app.log.read_text(errors="replace")
    assert not {kind: found for kind, found in board.wrong.items() if found}, log[-5000:]
    assert board.took[PAGE] and board.done and len(server.seen) > 5 and "Traceback" not in log
    assert kill_every == 0 or board.died
