"""Depth cards on a shelf: a folder, an address, a dataset of the hub; what lies there is held against its digest, and
shown beside one's own."""

from __future__ import annotations

import contextlib
import gzip
import inspect
import json
import re
import shlex
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from fake_hub import serving
from hosted_app import answering
from huggingface_hub import HfApi
from shell import refused

from ed_core import disk
from ed_core.cards import card
from ed_core.commands import main
from ed_core.errors import CardError, PublishError
from ed_core.service.resolve import resolve
from ed_core.sharing import card_shelf
from ed_ui import runs

SHIPPED = card.shipped()
DOC = Path(__file__).parents[1] / "docs" / "studies" / "cards.md"
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def shelf(tmp_path):
    card_shelf.push(str(tmp_path / "shelf"), SHIPPED)
    return tmp_path / "shelf"


def same(files) -> bool:
    return sorted(Path(f).read_bytes() for f in files) == sorted(f.read_bytes() for f in SHIPPED)


def test_cards_go_onto_a_shelf_and_come_off_it_byte_for_byte(shelf):
    index = json.loads((shelf / card_shelf.INDEX).read_text())
    assert [row["commands"] for row in index["cards"]] == [
        list(card.read(shelf / row["file"]).commands) for row in index["cards"]
    ]
    assert all(row["model"] in (shelf / "README.md").read_text() for row in index["cards"])
    found = card_shelf.pull(str(shelf))
    assert same(found.files) and found.new == len(SHIPPED) and not found.refused
    again = card_shelf.pull(str(shelf))
    assert again.files == found.files and again.new == 0
    assert [file for _, file in card_shelf.here()] == sorted(found.files)


def test_the_example_of_the_documentation_says_what_it_says_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(next(file for file in SHIPPED if file.stem == "ed-demo-8"), "card.json")
    (lines, said) = re.search(r"```bash\n(.*?)```\n\n(.*?)\n\n- ", DOC.read_text(encoding="utf-8"), re.DOTALL).groups()
    for line in lines.splitlines():
        assert main(shlex.split(line)[3:]) == 0
    assert [line.strip() for line in said.splitlines()] == capsys.readouterr().out.splitlines()


def test_a_card_takes_the_place_of_the_one_that_measured_the_same(shelf, tmp_path):
    told = json.loads(SHIPPED[0].read_bytes())
    card_shelf.push(str(shelf), [SHIPPED[0]])
    assert len(list(shelf.glob("*.json"))) == len(SHIPPED) + 1, "the index too"
    changed = card.read(SHIPPED[0]).but(made="2027-01-01")
    (tmp_path / "anew.json").write_bytes(card.to_json(changed))
    (name,) = card_shelf.push(str(shelf), [tmp_path / "anew.json"])
    assert card.read(shelf / name).made == "2027-01-01" != told.get("made")
    assert len(json.loads((shelf / card_shelf.INDEX).read_text())["cards"]) == len(SHIPPED)


def test_two_who_push_at_once_both_have_their_cards_there(tmp_path, monkeypatch):
    shelf, laid, other = tmp_path / "shelf", card_shelf._laid, []

    def slowly(*given):
        if not other:
            other.append(threading.Thread(target=card_shelf.push, args=(str(shelf), [SHIPPED[1]])))
            other[0].start()
            other[0].join(0.5)
        return laid(*given)

    monkeypatch.setattr(card_shelf, "_laid", slowly)
    card_shelf.push(str(shelf), [SHIPPED[0]])
    other[0].join()
    assert len(card_shelf.pull(str(shelf)).files) == 2


def test_a_first_push_that_was_ended_goes_on(tmp_path, monkeypatch):
    shelf, write = tmp_path / "shelf", disk.write
    with monkeypatch.context() as full:
        full.setattr(disk, "write", lambda file, data: write(file, data) if not any(shelf.iterdir()) else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            card_shelf.push(str(shelf), SHIPPED)
    (shelf / f"x.{disk.UNFINISHED}").write_bytes(b"")
    card_shelf.push(str(shelf), SHIPPED)
    assert same(card_shelf.pull(str(shelf)).files)


@pytest.mark.parametrize(
    "model, begins",
    [
        ("SmolLM2-135M", "SmolLM2-135M-fp32-"),
        ("a_Ünï", "a_Ünï-fp32-"),
        ("_mine", "mine-fp32-"),
        ("Ünï", "Uni-fp32-"),
        ("模型", "model-fp32-"),
        ("m²", "m2-fp32-"),
        ("a" * 20 + "_" + "b" * 79, "b" * 79 + "-fp32-"),
        ("." * 3, "model-fp32-"),
    ],
)
def test_a_model_of_any_name_goes_onto_a_shelf_and_comes_off_it(tmp_path, model, begins):
    told = card.read(SHIPPED[0])
    told = told.but(model=told.model.model_copy(update={"name": model}))
    (tmp_path / "card.json").write_bytes(card.to_json(told))
    (name,) = card_shelf.push(str(tmp_path / "shelf"), [tmp_path / "card.json"])
    assert name.startswith(begins)
    found = card_shelf.pull(str(tmp_path / "shelf"))
    assert [file.name for file in found.files] == [name] and not found.refused


def test_what_is_not_as_the_index_says_is_left_on_the_shelf(shelf, capsys):
    names = sorted(file.name for file in shelf.glob("*.json") if file.name != card_shelf.INDEX)
    (shelf / names[0]).write_bytes((shelf / names[0]).read_bytes() + b" ")
    (shelf / names[1]).unlink()
    index = json.loads((shelf / card_shelf.INDEX).read_text())
    (row,) = (row for row in index["cards"] if row["file"] == names[2])
    (shelf / names[2]).write_text("{}")
    row["sha256"] = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    (shelf / card_shelf.INDEX).write_text(json.dumps(index))
    assert main(["card", "pull", str(shelf)]) == 1
    said = capsys.readouterr()
    assert f"{len(SHIPPED) - 3} cards of" in said.out
    for name, why in zip(names, ("another digest", "There is no shelf file", "")):
        assert re.search(f"{re.escape(name)}.*{why}|{why}.*{re.escape(name)}", said.err)
    assert len(card_shelf.here()) == len(SHIPPED) - 3


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("[]", "no index of cards"),
        ('{"holds": "something else", "cards": []}', "holds"),
        ('{"version": 2, "cards": []}', "version"),
        ('{"cards": [{"file": "../../x.json"}]}', "file"),
        ('{"cards": ' + "[" * 100 + "]" * 100 + "}", "nested"),
        ("x" * 100, "no index of cards"),
    ],
)
def test_an_index_that_is_none_is_refused_in_a_sentence(tmp_path, index, says):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / card_shelf.INDEX).write_text(index)
    with pytest.raises(CardError, match=says):
        card_shelf.pull(str(tmp_path / "shelf"))
    assert not card_shelf.here()


def test_a_shelf_that_is_not_there_or_no_shelf_is_refused(tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    for argv, says in (
        (["push", str(tmp_path / "notes"), str(SHIPPED[0])], "has other files and no index.json"),
        (["push", str(tmp_path / "notes" / "diary.txt"), str(SHIPPED[0])], "is a file"),
        (["push", "https://example.org/shelf", str(SHIPPED[0])], "An address cannot be written to"),
        (["push", str(tmp_path / "new"), str(tmp_path / "none.json")], "no"),
        (["push", str(tmp_path / "new")], "No card was made here yet"),
        (["pull", str(tmp_path / "nowhere")], "There is no shelf file"),
        (["pull", str(tmp_path), "x.json"], "Expected card pull SHELF"),
        (["pull"], "Expected card pull SHELF"),
        (["push", str(tmp_path), "--model", "ed-demo-8"], "leave --model out"),
        (["pull", str(tmp_path), "--out", "x"], "card pull makes no card; leave --out out"),
        ([], "card needs --model"),
    ):
        refused(capsys, ["card", *argv], says)
    assert (tmp_path / "notes" / "diary.txt").read_text() == "mine" and not (tmp_path / "new").exists()


@pytest.fixture
def address(shelf):
    with answering(SimpleHTTPRequestHandler, directory=str(shelf)) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


def test_a_shelf_is_read_over_an_address_within_bounds(shelf, address, monkeypatch):
    assert same(card_shelf.pull(address).files)
    with pytest.raises(CardError, match="status 404"):
        card_shelf.pull(f"{address}other")
    with pytest.raises(CardError, match="does not answer"):
        card_shelf.pull("http://127.0.0.1:1/shelf")
    monkeypatch.setattr(card_shelf, "INDEX_BYTES", 100)
    with pytest.raises(CardError, match="more than 100 bytes"):
        card_shelf.pull(address)


@pytest.mark.parametrize("how", ["packed twice", "drop by drop", "a name too long"])
def test_an_address_that_answers_with_a_trap_is_one_sentence(monkeypatch, capsys, how):
    """3 kB that were packed twice took 5 GB; bytes that came one by one were waited for without end."""
    packed = gzip.compress(gzip.compress(bytes(1 << 26)))

    class Trap(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            twice = how == "packed twice"
            if twice:
                self.send_header("Content-Encoding", "gzip, gzip")
            self.send_header("Content-Length", str(len(packed)))
            self.end_headers()
            with contextlib.suppress(OSError):
                for at in range(len(packed)):
                    self.wfile.write(packed if twice else packed[at : at + 1])
                    time.sleep(0.05)

    monkeypatch.setattr(card_shelf, "SECONDS", 1.0)
    name = "a" * 5000 if how == "a name too long" else "127.0.0.1"
    said = {"packed twice": "is sent packed", "drop by drop": "took more than 1 s"}.get(how, "does not answer")
    with answering(Trap) as server:
        refused(capsys, ["card", "pull", f"http://{name}:{server.server_port}"], said)


def test_a_dataset_of_the_hub_is_a_shelf(shelf, client):
    with serving(shelf) as hub:
        code, out, err = client(hub, "card", "pull", "org/model")
        assert code == 0, err
        assert out.startswith(f"{len(SHIPPED)} cards of org/model, {len(SHIPPED)} of them new")
        code, out, err = client(hub, "card", "pull", "org/other")
        assert code == 2 and "knows no dataset org/other" in err and "\n" not in err
    with serving(shelf, lie=card.MOST_BYTES) as hub:
        code, out, err = client(hub, "card", "pull", "org/model")
        assert code == 1 and err.count("at most 3 MiB are read") == len(SHIPPED)
        assert not [path for _, path, _ in hub.asked if path.endswith(SHIPPED[0].name)]


class Client:
    """What the hub's client is asked for; `there`: the files of a dataset."""

    def __init__(self, there=None):
        self.there, self.asked, self.texts = there, [], {}

    def repo_exists(self, id, repo_type):
        return self.there is not None

    def dataset_info(self, id):
        files = [type("File", (), {"rfilename": name}) for name in self.there]
        return type("Info", (), {"siblings": files, "sha": "c0ffee"})

    def create_repo(self, **options):
        inspect.signature(HfApi.create_repo).bind(None, **options)
        self.asked.append("create_repo")

    def upload_folder(self, folder_path, **options):
        inspect.signature(HfApi.upload_folder).bind(None, folder_path=folder_path, **options)
        self.asked.append("upload_folder")
        assert options["parent_commit"] == (None if self.there is None else "c0ffee"), "else a card is lost"
        self.texts = {file.name: file.read_bytes() for file in Path(folder_path).iterdir()}


def test_cards_are_pushed_to_the_hub_as_one_commit_and_no_other_dataset_is_touched(shelf, monkeypatch):
    new = Client()
    card_shelf.push("ada/cards", SHIPPED, new)
    assert new.asked == ["create_repo", "upload_folder"]
    assert new.texts == {file.name: file.read_bytes() for file in shelf.iterdir()}
    with pytest.raises(PublishError, match="already that is no shelf"):
        card_shelf.push("ada/cards", SHIPPED, other := Client(["train.parquet"]))
    assert other.asked == []
    monkeypatch.setattr(card_shelf, "_of_hub", lambda name: card_shelf.of_folder(shelf))
    card_shelf.push("ada/cards", [SHIPPED[0]], there := Client([card_shelf.INDEX]))
    assert there.asked == ["upload_folder"]
    assert len(json.loads(there.texts[card_shelf.INDEX])["cards"]) == len(SHIPPED), "what lay there is not forgotten"


def test_the_page_of_cards_shows_pulled_ones_after_ones_own_and_says_whose_they_are(shelf):
    shutil.rmtree(card_shelf.folder(), ignore_errors=True)
    own, _ = runs.cards()
    card_shelf.pull(str(shelf))
    both, damaged = runs.cards()
    assert list(both)[: len(own)] == list(own) and len(both) == len(own) + len(SHIPPED) and not damaged
    pulled = [file for file, _ in both.values() if runs.pulled_from(file)]
    assert len(pulled) == len(SHIPPED)
    assert all(runs.pulled_from(f).startswith("tmp") or runs.pulled_from(f) for f in pulled)
    assert not runs.pulled_from(SHIPPED[0])
    of = runs.card_of(resolve("ed-demo-8", "fp32"))
    assert of is not None and of.model.name == "ed-demo-8"


def test_a_shelfs_name_on_a_page_holds_no_path(tmp_path):
    assert card_shelf.name_of(str(tmp_path / "shelf")).startswith("shelf-")
    assert card_shelf.name_of("ORG/my.cards").startswith("ORG-my-cards-")
    assert card_shelf.name_of("https://example.org/a/shelf").startswith("example-org-a-shelf-")


def test_a_shelf_has_one_name_however_it_is_spelled_and_two_shelves_have_two(tmp_path, monkeypatch):
    names = set()
    for place in (tmp_path / "a", tmp_path / "b"):
        place.mkdir()
        monkeypatch.chdir(place)
        spelled = ("shelf", "shelf/", "./shelf", "../" + place.name + "/shelf", str(place / "shelf"))
        (name,) = {card_shelf.name_of(one) for one in spelled}
        names.add(name)
    assert len(names) == 2 and len({card_shelf.name_of(f"https://example.org/a{end}") for end in ("", "/")}) == 1
