"""Owners and modes: who is trusted, who is not, and the strangers who must be able to work."""

from __future__ import annotations

import grp  # like all that a test needs, before somebody becomes a user who may not read it
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from people import as_user
from place import BUILD, Place

from cachehome.errors import ConfigError
from cachehome.store.owners import Owners

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
ALICE, BOB, MALLORY, TEAM = 20001, 20002, 20003, 21000
NOBODY = 65534


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can reach and, as in /tmp, write to."""
    path = Path(tempfile.mkdtemp(prefix="cachehome-test-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def place(public: Path) -> Place:
    return Place(public)


def home_of(public: Path, uid: int) -> Path:
    path = public / f"home-{uid}"
    path.mkdir(mode=0o700)
    os.chown(path, uid, uid)
    return path


def status(mode: int, uid: int, gid: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


# -- the rules ---------------------------------------------------------------------------------------------------------

ME = os.geteuid()
DIRECTORY, FILE = 0o040000, 0o100000


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "words"),
    [
        (DIRECTORY | 0o700, ME, 777, ""),
        (DIRECTORY | 0o755, 0, 777, ""),
        (DIRECTORY | 0o755, MALLORY, 777, "belongs to uid 20003"),
        (DIRECTORY | 0o755, BOB, 777, ""),
        (DIRECTORY | 0o777, ME, 777, "everybody"),
        (DIRECTORY | 0o1777, ME, 777, ""),  # sticky: the owner of each thing in it is checked
        (DIRECTORY | 0o775, ME, 777, "set shared = on"),
        (FILE | 0o644, ME, 777, ""),
        (FILE | 0o646, ME, 777, "everybody"),
        (FILE | 0o1646, ME, 777, "everybody"),
        (FILE | 0o664, ME, 777, "set shared = on"),
        (FILE | 0o644, MALLORY, 777, "name them in store_owners"),
    ],
)
def test_rules(mode: int, uid: int, gid: int, words: str) -> None:
    problem = Owners([str(BOB)]).distrust("/the/path", status(mode, uid, gid))
    assert bool(problem) == bool(words)
    assert words in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "words"),
    [
        (DIRECTORY | 0o2770, ALICE, TEAM, ""),
        (DIRECTORY | 0o2775, 0, TEAM, ""),
        (FILE | 0o660, BOB, TEAM, ""),
        (FILE | 0o660, BOB, 777, "belongs to uid"),
        (FILE | 0o660, 0, 777, "which this user is not in"),
        (DIRECTORY | 0o3777, ALICE, TEAM, "everybody"),
        (FILE | 0o662, BOB, TEAM, "everybody"),
    ],
)
def test_rules_of_a_shared_store(
    mode: int, uid: int, gid: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getgroups", lambda: [TEAM])
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    problem = Owners(shared=True).distrust("/the/path", status(mode, uid, gid))
    assert bool(problem) == bool(words)
    assert words in problem


def test_a_private_group_is_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.struct_passwd(("u", "x", ME, 500, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: user)
    for name, members, fine in (
        ("u", [], True),
        ("u", ["u"], True),
        ("u", ["v"], False),
        ("users", [], False),
    ):
        group = grp.struct_group((name, "x", 500, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _gid, group=group: group)
        assert (Owners().distrust("/p", status(DIRECTORY | 0o775, ME, 500)) == "") is fine


def test_owners_by_name_and_number() -> None:
    assert 0 in Owners(["root"]).users
    assert 4711 in Owners(["4711"]).users
    with pytest.raises(ConfigError, match="no user 'nobody-of-that-name' here"):
        Owners(["nobody-of-that-name"])


# -- stores that strangers could write to ------------------------------------------------------------------------------


def test_every_level_is_checked(tmp_path: Path) -> None:
    place = Place(tmp_path).make()
    place.publish("a")
    assert place.restore()[1] == {"a"}
    (pack,) = place.packs.iterdir()
    levels = [place.root, place.root / "cachehome-v1", place.root / "cachehome-v1" / BUILD, place.generations]
    levels += [place.generations.parent, place.packs, pack, place.generations / "00000001"]
    for path in levels:
        before = path.stat().st_mode & 0o7777
        path.chmod(before | 0o002)
        record, names = place.restore()
        assert (record.outcome, names) == ("rejected", set()), path
        assert str(path) in str(record.details)
        assert record.reason == "store_untrusted"
        path.chmod(before)
    if os.geteuid() == 0:
        for path in levels:
            os.chown(path, MALLORY, 0)
            record, names = place.restore()
            assert (record.outcome, names) == ("rejected", set()), path
            assert "store_owners" in str(record.details)
            assert place.restore(store_owners=(str(MALLORY),))[1] == {"a"}
            os.chown(path, 0, 0)
    assert place.restore()[1] == {"a"}


def test_a_planted_generation_is_passed_by(place: Place) -> None:
    """In a sticky directory anybody may make a generation; only those of trusted owners count."""
    place.make()
    place.publish("a")
    if os.geteuid() != 0:
        pytest.skip("only root may plant as somebody else")
    place.generations.chmod(0o1777)
    planted = place.generations / "00000002"
    planted.write_bytes((place.generations / "00000001").read_bytes())
    os.chown(planted, MALLORY, MALLORY)
    record, names = place.restore()
    assert (record.generation, names) == (1, {"a"})
    assert record.details["rejected"][0]["reason"] == "store_untrusted"
    assert place.publish("b").generation == 3


@root_only
def test_a_planted_layout_in_a_sticky_root(place: Place) -> None:
    place.make(0o1777)
    (place.root / "cachehome-v1").mkdir(mode=0o755)
    os.chown(place.root / "cachehome-v1", MALLORY, MALLORY)
    for record in (place.restore()[0], place.publish("a")):
        assert (record.outcome, record.reason) == ("rejected", "store_untrusted")


# -- legitimate strangers ----------------------------------------------------------------------------------------------


@root_only
def test_one_account_publishes_and_others_read(place: Place) -> None:
    place.make(0o755)
    os.chown(place.root, ALICE, ALICE)
    live = home_of(place.directory, ALICE)
    assert as_user(ALICE, lambda: place.publish("a", live=live), umask=0o077).outcome == "hit"
    mine = home_of(place.directory, BOB)
    record, names = as_user(BOB, lambda: place.restore(live=mine))
    assert (record.reason, names) == ("store_untrusted", set())
    record, names = as_user(BOB, lambda: place.restore(live=mine, store_owners=(str(ALICE),)))
    assert (record.outcome, names) == ("hit", {"a"})
    (mine / "ab" / "b.py").write_text("b = 1\n")
    os.chown(mine / "ab" / "b.py", BOB, BOB)
    record = as_user(BOB, lambda: place.publish(live=mine, store_owners=(str(ALICE),)))
    assert record.outcome == "unavailable"
    assert "publish = off" in record.details["message"]
    # root in a container, which sees the directory of the user who started it
    record, names = place.restore()
    assert record.reason == "store_untrusted"
    assert place.restore(store_owners=(str(ALICE),))[1] == {"a"}


@root_only
def test_a_random_user_of_group_0(place: Place) -> None:
    """OpenShift: another user in each namespace, always of group 0; volumes are made for that group."""
    place.make(0o2775)
    live = home_of(place.directory, 1000650000)
    shared = {"shared": True}
    record = as_user(1000650000, lambda: place.publish("a", live=live, **shared), gid=0, groups=[0])
    assert record.outcome == "hit", record.details
    other = home_of(place.directory, 1000720000)
    record, names = as_user(
        1000720000, lambda: place.restore(live=other, **shared), gid=0, groups=[0], umask=0o077
    )
    assert (record.outcome, names) == ("hit", {"a"}), record.details
    record = as_user(
        1000720000, lambda: place.publish("b", live=other, **shared), gid=0, groups=[0], umask=0o077
    )
    assert (record.outcome, record.generation) == ("hit", 2), record.details
    assert as_user(1000650000, lambda: place.restore(live=live, **shared), gid=0, groups=[0])[1] == {"a", "b"}


@root_only
def test_a_team_directory(place: Place) -> None:
    """A setgid directory of a group, publishers with a tight umask, a stranger outside of it."""
    place.make(0o2770)
    os.chown(place.root, 0, TEAM)
    place.root.chmod(0o2770)
    for number, uid in enumerate((ALICE, BOB), start=1):
        live = home_of(place.directory, uid)
        record = as_user(
            uid,
            lambda live=live, n=number: place.publish(f"e{n}", live=live, shared=True),
            groups=[TEAM],
            umask=0o077,
        )
        assert (record.outcome, record.generation) == ("hit", number), record.details
        names = as_user(
            uid, lambda live=live: place.restore(live=live, shared=True)[1], groups=[TEAM], umask=0o077
        )
        assert names == {f"e{n}" for n in range(1, number + 1)}
    for path, _, files in os.walk(place.root):
        assert os.stat(path).st_gid == TEAM
        assert os.stat(path).st_mode & 0o7777 == 0o2770
        for name in files:
            found = os.stat(os.path.join(path, name))
            assert (found.st_gid, found.st_mode & 0o777) == (TEAM, 0o660)
    # root, which is in no group, and a member who forgot the setting
    assert place.restore(shared=True)[1] == {"e1", "e2"}
    record, _ = as_user(BOB, lambda: place.restore(live=place.directory / f"home-{BOB}"), groups=[TEAM])
    assert (record.reason, "shared = on" in record.details["message"]) == ("store_untrusted", True)
    # somebody else can't even read it
    outside = home_of(place.directory, MALLORY)
    record, _ = as_user(MALLORY, lambda: place.restore(live=outside, shared=True))
    assert record.outcome in ("unavailable", "rejected")


@root_only
def test_a_team_directory_without_setgid(place: Place) -> None:
    place.make(0o770)
    os.chown(place.root, 0, TEAM)
    place.root.chmod(0o770)
    alice, bob = home_of(place.directory, ALICE), home_of(place.directory, BOB)
    as_user(ALICE, lambda: place.publish("a", live=alice, shared=True), groups=[TEAM])
    assert as_user(BOB, lambda: place.restore(live=bob, shared=True)[1], groups=[TEAM]) == {"a"}


@root_only
def test_root_squash(place: Place) -> None:
    """What root writes through NFS belongs to nobody, and so does what root reads."""
    place.make()
    place.publish("a")
    for path, _, files in os.walk(place.root):
        for name in ("", *files):
            os.chown(os.path.join(path, name), NOBODY, NOBODY)
    record, _ = place.restore()
    assert (record.reason, "store_owners" in record.details["message"]) == ("store_untrusted", True)
    assert place.restore(store_owners=("nobody",))[1] == {"a"}


@root_only
def test_a_file_that_its_publisher_keeps_private_is_passed_by(place: Place) -> None:
    place.make(0o755)
    os.chown(place.root, ALICE, ALICE)
    live = home_of(place.directory, ALICE)
    as_user(ALICE, lambda: place.publish("a", live=live))
    as_user(ALICE, lambda: place.publish("b", live=live))
    (place.generations / "00000002").chmod(0o600)
    mine = home_of(place.directory, BOB)
    record, names = as_user(BOB, lambda: place.restore(live=mine, store_owners=(str(ALICE),)))
    assert (record.generation, names) == (1, {"a"})
    assert record.details["rejected"][0]["reason"] == "unreadable"


# -- live directories --------------------------------------------------------------------------------------------------


def test_live_directories_that_others_may_write_to(tmp_path: Path) -> None:
    place = Place(tmp_path).make()
    place.publish("a")
    for mode in (0o777, 0o1777, 0o702):
        target = place.live()
        target.chmod(mode)
        for record in (place.restore(live=target)[0], place.publish("b", live=target)):
            assert (record.outcome, record.reason) == ("rejected", "live_directory_untrusted")
    target = place.live()
    (target / ".cachehome").symlink_to(tmp_path)
    assert place.restore(live=target)[0].reason == "live_directory_untrusted"


def test_a_link_to_a_live_directory_is_followed(tmp_path: Path) -> None:
    place = Place(tmp_path).make()
    real = place.live()
    (tmp_path / "link").symlink_to(real)
    place.publish("a", live=tmp_path / "link")
    fresh = place.live()
    (tmp_path / "other").symlink_to(fresh)
    assert place.restore(live=tmp_path / "other")[1] == {"a"}
    assert (fresh / "ab/a.py").exists()


def test_links_planted_in_a_live_directory_are_not_followed(tmp_path: Path) -> None:
    place = Place(tmp_path).make()
    place.publish("a")
    outside, target = tmp_path / "outside", place.live()
    outside.mkdir()
    (target / "ab").symlink_to(outside)
    record, _ = place.restore(live=target)
    assert list(outside.iterdir()) == []
    assert record.entries == 0
    # nor is one in the place of the file
    target = place.live()
    (target / "ab").mkdir()
    (target / "ab/a.py").symlink_to(outside / "file")
    place.restore(live=target)
    assert list(outside.iterdir()) == []
    if os.geteuid() == 0:
        target = place.live()
        (target / "ab").mkdir()
        os.chown(target / "ab", MALLORY, MALLORY)
        place.restore(live=target)
        assert list((target / "ab").iterdir()) == []


def test_what_is_installed_is_this_users_alone(tmp_path: Path) -> None:
    place = Place(tmp_path).make()
    source = place.live()
    place.publish("a", live=source)
    target = place.live()
    before = os.umask(0)
    try:
        place.restore(live=target)
    finally:
        os.umask(before)
    for path, _, files in os.walk(target):
        assert os.stat(path).st_mode & 0o777 == 0o700
        for name in files:
            if ".cachehome" not in path:
                assert os.stat(os.path.join(path, name)).st_mode & 0o777 == 0o600
