"""Whose a case study is: beside its file and never in it, through trash, import and backup, and what a visitor may do
with that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hostile.archives import sealed_anew
from kept_cases import small
from streamlit.testing.v1 import AppTest
from test_pages_keep import GALLERY, app

from ed_core.cases import backup, bundle
from ed_core.cases.case_study import edited
from ed_core.cases.kept import UNREADABLE, Kept, SafeFolder
from ed_core.errors import CaseError, StoreError
from ed_ui import case_studies, visitor

ADA, BOB = "ada@lab.org", "bob@lab.org"
pytestmark = pytest.mark.usefixtures("clean")


def test_an_owner_stands_beside_the_case_study_and_not_in_its_file(folder):
    one, two = small("one"), small("two")
    folder.add(one, ADA), folder.add(two)
    again = Kept(folder.root, shipped=None)
    assert again.owner(one.id) == ADA and again.owner(two.id) == ""
    assert b"ada" not in folder.read(one.id) and folder.read(one.id) == bundle.encode(one)
    copy = folder.duplicate(one, owner=BOB)
    assert folder.owner(copy.id) == BOB and folder.owner(one.id) == ADA


def test_an_owner_stays_through_edits_and_trash_and_goes_with_it(folder):
    one = small("one")
    folder.save(edited(one, notes="more"), folder.add(one, ADA))
    assert folder.owner(one.id) == ADA
    folder.delete(one.id)
    assert folder.owner(one.id) == ADA
    folder.restore(one.id)
    assert folder.owner(one.id) == ADA
    folder.delete(one.id)
    folder.empty_trash()
    assert folder.owner(one.id) == "" and not list(folder.path.glob("*.owner"))


@pytest.mark.parametrize("dies_at", ["owner", "case"])
def test_a_kill_in_between_leaves_nothing_wrong(folder, monkeypatch, dies_at):
    """What was half done counts for nothing: the next case study of that id has the owner it is kept with."""
    one, real = small("one"), SafeFolder.write

    def dies(self, file, data):
        if file.suffix == {"owner": ".owner", "case": ".edcase"}[dies_at]:
            raise StoreError("killed here")
        real(self, file, data)

    monkeypatch.setattr(SafeFolder, "write", dies)
    with pytest.raises(StoreError):
        folder.add(one, ADA)
    monkeypatch.undo()
    assert folder.cards() == [] and backup.check(folder) == (0, [])
    for owner in (BOB, ""):
        folder.add(one, owner)
        assert folder.owner(one.id) == owner
        folder.delete(one.id)
        folder.empty_trash()


def test_imports_belong_to_whoever_imports(folder):
    one = small("one")
    case, new = folder.take_in(bundle.encode(one), ADA)
    assert new and folder.owner(case.id) == ADA
    assert folder.take_in(bundle.encode(one), BOB) == (one, False)
    assert folder.owner(one.id) == ADA, "it is here already, and stays hers"
    other, new = folder.take_in(bundle.encode(edited(one, notes="his")), BOB)
    assert new and other.id != one.id and folder.owner(other.id) == BOB


def test_nobody_takes_over_what_another_deleted(folder):
    one = small("one")
    folder.add(one, ADA)
    folder.delete(one.id)
    his, _ = folder.take_in(bundle.encode(one), BOB)
    assert his.id != one.id and folder.owner(his.id) == BOB
    hers, _ = folder.take_in(bundle.encode(one), ADA)
    assert hers.id == one.id and folder.owner(one.id) == ADA
    folder.delete(one.id)
    assert folder.take_in(bundle.encode(one))[0].id == one.id
    assert folder.owner(one.id) == ADA, "from the command line it comes back as hers"


def test_a_backup_brings_owners_back(folder, tmp_path):
    one, two = small("one"), small("two")
    folder.add(one, ADA), folder.add(two)
    out = tmp_path / "b.zip"
    assert backup.write(folder, out) == (2, [])
    there = Kept(tmp_path / "there", shipped=None)
    taken, problems = backup.restore(there, out)
    assert len(taken) == 2 and not problems and (there.owner(one.id), there.owner(two.id)) == (ADA, "")
    folder.delete(one.id)
    folder.empty_trash()
    backup.restore(folder, out)
    assert folder.owner(one.id) == ADA


@pytest.mark.parametrize("owner", [7, ["a@b"], "no address", "a@b\nc@d", "a" * 5000 + "@b"])
def test_a_backup_with_a_hostile_owner_is_refused(folder, tmp_path, owner):
    one = small("one")
    folder.add(one, ADA)
    backup.write(folder, tmp_path / "b.zip")
    data = (tmp_path / "b.zip").read_bytes()
    (tmp_path / "c.zip").write_bytes(sealed_anew(data, lambda told: told | {"owners": {f"{one.id}.edcase": owner}}))
    there = Kept(tmp_path / "there", shipped=None)
    try:
        assert backup.restore(there, tmp_path / "c.zip")[1], "refused by name"
    except Exception as error:
        assert type(error).__name__ == "ImportRefused"
    assert there.cards() == [] and not list(there.path.glob("*.owner"))


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"a b c", b"a@b\nc@d\n"])
def test_a_damaged_owner_is_nobody_and_is_reported(folder, damage):
    one = small("one")
    folder.add(one, ADA)
    (folder.path / f"{one.id}.owner").write_bytes(damage)
    assert folder.owner(one.id) == UNREADABLE and folder.open(one.id)[0] == one
    assert any("holds no address" in p for p in backup.check(folder)[1])


@pytest.mark.parametrize("owner", ["ada", "a b@c", "@", "a@b\n"])
def test_an_owner_is_an_address(folder, owner):
    with pytest.raises(CaseError, match="no e-mail address"):
        folder.add(small("one"), owner)
    assert folder.cards() == []


# -------------------------------------------------------------------- what a visitor may

OWNERS = "login = 'optional'\ngallery = 'owners'\nadmins = ['head@lab.org']\nlogin_allowed = ['@lab.org']"


@pytest.fixture
def as_user(monkeypatch):
    """`as_user(email, …)`: who is logged in; "" for nobody."""

    def become(email: str = "", **claims):
        told = {"is_logged_in": bool(email), "email": email} | claims
        monkeypatch.setattr(visitor.st, "user", SimpleNamespace(to_dict=lambda: told))

    become()
    return become


def test_without_settings_everybody_may_do_everything(as_user):
    assert visitor.name() == "" and not visitor.why_not() and not visitor.why_not("") and not visitor.why_not(ADA)
    as_user(ADA)
    assert visitor.name() == "", "a cookie left from other settings names nobody"


def test_the_owner_and_admins_change_others_duplicate(write, as_user):
    write(OWNERS)
    assert "Log in" in visitor.why_not() and "Log in" in visitor.why_not(ADA)
    as_user("Ada@Lab.org")
    assert visitor.name() == ADA and not visitor.why_not() and not visitor.why_not(ADA)
    assert "belongs to bob@lab.org; duplicate it" in visitor.why_not(BOB)
    assert "only admins" in visitor.why_not("") and visitor.why_not(UNREADABLE)
    as_user("head@lab.org")
    assert visitor.is_admin() and not visitor.why_not(BOB) and not visitor.why_not("")
    assert not visitor.why_not(UNREADABLE)


def test_a_read_only_gallery_is_for_admins(write, as_user):
    write(OWNERS.replace("'owners'", "'read-only'"))
    for who in ("", ADA):
        as_user(who)
        assert "read-only" in visitor.why_not() and "read-only" in visitor.why_not(ADA)
    as_user("head@lab.org")
    assert not visitor.why_not() and not visitor.why_not(ADA)


def test_an_open_gallery_with_a_login_is_open_to_whoever_is_logged_in(write, as_user):
    write(OWNERS.replace("'owners'", "'open'"))
    assert "Log in" in visitor.why_not()
    as_user(ADA)
    assert not visitor.why_not() and not visitor.why_not(BOB) and not visitor.why_not("")


@pytest.mark.parametrize(
    "claims, words",
    [
        ({"email_verified": False}, "not verified"),
        ({"email_verified": "false"}, "not verified"),
        ({"email": "eve@notlab.org"}, "may not log in here"),
        ({"email": ""}, "no e-mail address"),
        ({"email": None}, "no e-mail address"),
    ],
)
def test_who_may_not_log_in_is_nobody(write, as_user, claims, words):
    write(OWNERS)
    as_user(**{"email": ADA, "is_logged_in": True} | claims)
    assert visitor.name() == "" and words in visitor.trouble().replace("has not verified", "not verified")
    assert visitor.why_not() == visitor.trouble()


def test_an_address_in_the_list_is_that_address_alone(write, as_user):
    write(OWNERS.replace("'@lab.org'", f"'{ADA}'"))
    for address, may in ((ADA, True), (ADA.upper(), True), (f"x{ADA}", False), (BOB, False)):
        as_user(address)
        assert visitor.name() == (ADA if may else "")


def test_an_owners_address_is_for_those_who_are_logged_in(write, as_user, folder, monkeypatch):
    monkeypatch.setattr(case_studies, "kept", lambda: folder)
    write(OWNERS)
    one, two = small("one"), small("two")
    folder.add(one, ADA), folder.add(two)
    for visitor_, expected in (("", ["", ""]), (ADA, ["you", ""]), (BOB, [ADA, ""])):
        as_user(visitor_)
        assert [case_studies.whose(one.id), case_studies.whose(two.id)] == expected


# -------------------------------------------------------------------- pages


def test_what_a_button_would_not_do_is_refused_behind_it(write, as_user, folder, monkeypatch):
    """The writing itself asks, whatever the button said when it was drawn."""
    monkeypatch.setattr(case_studies, "kept", lambda: folder)
    write(OWNERS)
    one = small("one")
    with pytest.raises(CaseError, match="Log in"):
        case_studies.add(one)
    as_user(ADA)
    case_studies.add(one)
    state = folder.open(one.id)[1]
    as_user(BOB)
    for way in (
        lambda: case_studies.delete(one.id),
        lambda: case_studies.save(edited(one, notes="his"), state),
        lambda: case_studies.restore(one.id),
    ):
        with pytest.raises(CaseError, match="belongs to ada@lab.org"):
            way()
    copy = case_studies.duplicate(one)
    assert folder.owner(copy.id) == BOB and folder.owner(one.id) == ADA and case_studies.whose(copy.id) == "you"
    as_user(ADA)
    case_studies.delete(one.id)
    as_user(BOB)
    with pytest.raises(CaseError, match="belongs to ada@lab.org"):
        case_studies.restore(one.id)
    write(OWNERS.replace("'owners'", "'read-only'"))
    for way in (
        lambda: case_studies.add(small("two")),
        lambda: case_studies.duplicate(one),
        lambda: case_studies.take_in(bundle.encode(one)),
        lambda: case_studies.delete(copy.id),
    ):
        with pytest.raises(CaseError, match="read-only"):
            way()


def test_a_read_only_gallery_says_so_on_its_buttons(write, laboratory):
    one = small("one")
    Kept().add(one, ADA)
    write("gallery = 'read-only'")
    test = app(GALLERY)
    button = test.button(key=f"delete-{one.id}")
    assert button.disabled and "read-only" in button.help.replace("\\", "")


INSIDE = "from ed_ui import visitor\nimport streamlit as st\nvisitor.gate()\nvisitor.sidebar()\nst.markdown('inside')"


@pytest.mark.parametrize(
    "login, who, claims, inside, words, button",
    [
        ("optional", "", {}, True, "Not logged in", "log_in"),
        ("optional", "ada@lab.org", {"name": "Ada *L*"}, True, "**Ada \\*L\\***", "log_out"),
        ("optional", "ada@lab.org", {}, True, "**ada@lab.org**", "log_out"),
        ("optional", "eve@notlab.org", {}, True, "may not log in here", "log_out"),
        ("required", "", {}, False, "This installation is for people who log in.", "log_in"),
        ("required", "eve@notlab.org", {}, False, "may not log in here", "log_out"),
        ("required", "ada@lab.org", {}, True, "**ada@lab.org**", "log_out"),
        ("required", None, {}, False, "Nobody can log in", ""),
        ("optional", None, {}, True, "Nobody can log in", ""),
        ("off", None, {}, True, "", ""),
    ],
)
def test_who_is_let_in_and_which_way_out_there_is(
    write, as_user, monkeypatch, login, who, claims, inside, words, button
):
    write("" if login == "off" else f"login = '{login}'\nlogin_allowed = ['@lab.org']")
    as_user(who or "", **claims)
    if who is None:  # no [auth] in Streamlit's secrets
        monkeypatch.setattr(visitor.st, "user", SimpleNamespace(to_dict=dict))
    test = AppTest.from_string(INSIDE)
    test.query_params["login"] = "denied"
    test.run()
    told = [e.value for kind in ("caption", "markdown", "error", "subheader") for e in test.get(kind)]
    assert not test.exception and ("inside" in told) == inside
    assert any(words in one.replace("\\@", "@").replace("\\.", ".") for one in told)
    assert [b.key for b in test.button] == [button] * bool(button)
    cancelled = any("You were not logged in" in w.value for w in test.warning)
    assert cancelled == (login != "off" and who != "ada@lab.org"), "said until somebody is"
