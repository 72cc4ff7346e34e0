"""The file with a job's identity, whatever lies where it should be."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from cachehome.identity import Identity

WHO = Identity({"schema": 1}, {"name": "a"})
NAME = f"identity-{hashlib.sha256(WHO.to_json().encode()).hexdigest()[:16]}.json"
KEEP = f"""
import sys
from cachehome.identity import Identity
from cachehome.lifecycle import place
print(place._keep(Identity({WHO.build!r}, {WHO.profile!r}), sys.argv[1] or None))
"""


def keep(directory, **environ) -> str:
    """In a process of its own, which may hang."""
    done = subprocess.run(
        [sys.executable, "-c", KEEP, str(directory)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.strip()


def huge(path) -> None:
    path.touch()
    os.truncate(path, 64 << 30)


PUT = {
    "nothing": lambda path: None,
    "fifo": os.mkfifo,
    "other text": lambda path: path.write_text("x"),
    "larger than memory": huge,
    "link": lambda path: path.symlink_to(path.parent / "elsewhere"),
    "link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("what", PUT)
def test_what_lies_there_is_replaced(tmp_path, what):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    PUT[what](tmp_path / NAME)
    assert keep(tmp_path) == str(tmp_path / NAME)
    assert Identity.load(str(tmp_path / NAME)) == WHO
    assert elsewhere.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", NAME]


def test_a_directory_there_sends_it_elsewhere_and_leaves_nothing(tmp_path):
    level, temporary = tmp_path / "level", tmp_path / "temporary"
    temporary.mkdir()
    (level / NAME).mkdir(parents=True)
    kept = keep(level, TMPDIR=str(temporary))
    assert kept == str(temporary / f"cachehome-{os.getuid()}" / NAME)
    assert os.listdir(level) == [NAME]


@pytest.mark.parametrize("what", ["link", "foreign"])
def test_a_directory_of_others_is_not_used(tmp_path, what):
    temporary, mine = tmp_path / "temporary", tmp_path / "mine"
    temporary.mkdir()
    mine.mkdir()
    there = temporary / f"cachehome-{os.getuid()}"
    if what == "link":
        there.symlink_to(mine)
    elif os.getuid():
        pytest.skip("needs root")
    else:
        there.mkdir()
        os.chown(there, 54321, 54321)
    kept = keep("", TMPDIR=str(temporary))
    assert os.path.dirname(kept) == str(temporary)
    assert Identity.load(kept) == WHO
    assert os.listdir(mine) == []
    assert os.listdir(there) == []


def test_it_is_the_newest_when_it_is_taken_again(tmp_path):
    path = keep(tmp_path)
    os.utime(path, (1, 1))
    before = os.stat(path)
    assert keep(tmp_path) == path
    after = os.stat(path)
    assert after.st_ino == before.st_ino
    assert after.st_mtime > 1000
