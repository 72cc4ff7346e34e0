"""What the nearest build of a store differs in, whatever else lies in there."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from cachehome import causes
from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store.store import Store

pytestmark = pytest.mark.timeout(120)
MINE = Identity({"python": "3.13", "torch": "2.13"}, {"name": "default"})


class Place:
    """A store with builds that were used at different times."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700)
        self.store = Store.open(str(root), Settings(store=(str(root),)))
        self.root = root / "cachehome-v1"

    def add(self, used: float = 0, **build: str) -> Path:
        one = Identity(dict(build), {"name": "default"})
        text = one.to_json().encode()
        self.store.add_identity(one.build_key, one.profile_key, text, text)
        profile = self.root / one.build_key / "profiles" / one.profile_key
        (profile / "used").touch(mode=0o600)
        for name in ("used", "identity.json"):
            os.utime(profile / name, (used, used))
        return self.root / one.build_key / "identity.json"

    def told(self) -> str:
        return causes.other_builds(MINE, self.store)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "store")


def test_the_nearest_is_among_those_used_last(place: Place) -> None:
    near = Identity({"python": "3.13", "torch": "2.12"}, {})
    place.add(2_000_000.0, **near.build)
    before = [name for name in (f"{n}" for n in range(400)) if key(name) < near.build_key][:40]
    for name in before:
        place.add(1_000_000.0, python="3.11", torch="2.1", other=name)
    told = place.told()
    assert f"of the nearest of 32 looked at, {near.build8}, torch: 2.12 became 2.13" in told


def key(name: str) -> str:
    return Identity({"python": "3.11", "torch": "2.1", "other": name}, {}).build_key


def test_all_of_a_few_are_looked_at(place: Place) -> None:
    place.add(torch="2.12", python="3.13")
    place.add(torch="2.11", python="3.12")
    assert "of the nearest, " in place.told()


@pytest.mark.parametrize("what", ["mode", "link", "fifo", "huge", "deep", "types", "directory"])
def test_one_that_can_not_be_read_hides_nothing(what: str, place: Place) -> None:
    place.add(torch="2.12", python="3.13")
    directory = place.root / hashlib.sha256(b"strange").hexdigest()
    directory.mkdir(mode=0o700)
    path = directory / "identity.json"
    if what == "mode":
        path.write_text("{}")
        path.chmod(0o666)
    elif what == "link":
        path.symlink_to("/dev/zero")
    elif what == "fifo":
        os.mkfifo(path, 0o600)
    elif what == "huge":
        path.touch(0o600)
        os.truncate(path, 1 << 40)
    elif what == "deep":
        build = '{"a":' * 900 + "1" + "}" * 900
        path.write_text(f'{{"format": 1, "build": {build}, "profile": {{}}}}')
    elif what == "types":
        path.write_text(json.dumps({**MINE.to_dict(), "build": [1]}))
    else:
        path.mkdir(0o700)
    assert "torch: 2.12 became 2.13" in place.told()


def test_details_of_another_type() -> None:
    run = causes.Run({"action": "restore", "outcome": "miss", "reason": "no_store", "details": [1]})
    assert causes.causes(run)
