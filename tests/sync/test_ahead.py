"""The child that is forked before anybody knows what it is to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cachehome.identity import Identity

RUN = """
import os, sys
forks, real = [], os.fork
def fork():
    pid = real()
    if pid:
        forks.append(pid)
    return pid
os.fork = fork
sys.argv[1:] = {words!r}
from cachehome import cli, entry
from cachehome.sync import ahead
{before}
code = cli.main(guard=True)
left = [pid for pid in forks if os.path.exists(f"/proc/{{pid}}") and not os.waitpid(pid, os.WNOHANG)[0]]
print(len(forks), len(left), file=sys.stderr)
sys.exit(code)
"""
BEGIN = "ahead.begin(sys.argv[1:])"


@pytest.fixture
def started(tmp_path: Path, identity: Identity) -> Any:
    """Runs a program with a store, a live directory and an identity; (exit code, record, forks, children left)."""
    store, live = tmp_path / "store", tmp_path / "live"
    store.mkdir(mode=0o700)
    (live / "ab").mkdir(parents=True)
    (live / "ab" / "cab.py").write_text("x = 1\n")
    (tmp_path / "identity.json").write_text(identity.to_json())

    def run(*words: str, before: str = BEGIN) -> tuple[int, dict[str, Any], int, int]:
        variables = {
            "CACHEHOME_IDENTITY": str(tmp_path / "identity.json"),
            "TORCHINDUCTOR_CACHE_DIR": str(live),
            "CACHEHOME_FAMILIES": "inductor",
            "HOME": str(tmp_path),
        }
        words = (words[0], "--json", "--store", str(store), *words[1:])
        done = subprocess.run(
            [sys.executable, "-c", RUN.format(words=list(words), before=before)],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        forks, left = map(int, done.stderr.splitlines()[-1].split())
        return done.returncode, json.loads(done.stdout or "{}"), forks, left

    return run


def test_it_does_what_the_command_line_says(started: Any) -> None:
    for words, reason in (
        (("publish", "--adopt"), "published"),
        (("publish",), "unchanged"),
        (("restore",), "already_there"),
        (("restore", "--generation", "1"), "already_there"),
        (("restore", "--generation", "2"), "no_published_generation"),
    ):
        _, record, forks, left = started(*words)
        assert (record["reason"], forks, left) == (reason, 1, 0), words


def test_what_it_can_not_be_told_another_child_does(started: Any) -> None:
    started("publish", "--adopt")
    _, record, forks, _ = started("restore", "--leave-out", "1")
    assert (record["reason"], forks) == ("left_out", 2)
    _, record, forks, _ = started("restore", before="ahead.begin(['publish'])")
    assert (record["reason"], forks) == ("restored", 2)


def test_another_child_takes_the_place_of_one_that_died(started: Any) -> None:
    kill = f"{BEGIN}; import time; os.kill(forks[0], 9); time.sleep(0.2)"
    code, record, forks, left = started("publish", "--adopt", before=kill)
    assert (code, record["reason"], forks, left) == (0, "published", 2, 0)


def test_wrong_usage_is_told_as_ever(started: Any) -> None:
    told = "import atexit; atexit.register(lambda: print(len(forks), 0, file=sys.stderr))"
    code, _, forks, _ = started("publish", "--nonsense", before=f"{told}; {BEGIN}")
    assert (code, forks) == (2, 1)


@pytest.mark.parametrize("words", [["ls"], [], ["restore", "--help"], ["publish", "-h"]])
def test_nothing_is_forked_for_other_words(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from cachehome.sync import ahead

    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    ahead.begin(words)


def test_it_ends_with_a_parent_that_is_killed() -> None:
    code = "from cachehome.sync import ahead; ahead.begin(['restore']); print(ahead._waiting, flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline().split(", ")[1])
    time.sleep(0.5)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    until = time.monotonic() + 20
    while time.monotonic() < until and _lives(child):
        time.sleep(0.05)
    assert not _lives(child)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_without_all_of_its_streams(tmp_path: Path, closed: str) -> None:
    variables = {"CACHEHOME_FAMILIES": "inductor", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "live")}
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "live/ab").mkdir(parents=True)
    (tmp_path / "live/ab/cab.py").write_text("x = 1\n")
    identity = Identity({"test": 1}, {"name": "default"})
    (tmp_path / "identity.json").write_text(identity.to_json())
    words = f"publish --adopt --store {tmp_path}/store --identity {tmp_path}/identity.json"
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m cachehome {words} {closed}"],
        env=os.environ | variables | {"HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert list(tmp_path.glob("store/*/*/packs/*.zst"))


@pytest.mark.parametrize("name", ["fork", "pipe"])
def test_it_only_saves_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachehome.sync import ahead

    def fails() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, name, fails)
    monkeypatch.setattr("cachehome.threads.may_fork", lambda: True)
    ahead.begin(["restore"])
    assert ahead.tell("restore", b"") is None
    assert len(os.listdir("/proc/self/fd")) == before
