"""Transfers that are told to end, or lose one of their processes: nothing works on, and somebody says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachehome.identity import Identity

UNREAPED = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def publishing(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A publish that takes a while, with its workers at work."""
    live, store = tmp_path / "live", tmp_path / "store"
    store.mkdir(mode=0o700)
    for number in range(40):
        path = live / "ab" / f"cab{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"x{n} = {os.urandom(30)!r}\n" for n in range(6000)))
    (tmp_path / "identity.json").write_text(Identity({"test": 1}, {"name": "default"}).to_json())
    words = ["publish", "--json", "--adopt", "--compression", "zstd:19", "--store", str(store)]
    process = subprocess.Popen(
        [sys.executable, "-m", "cachehome", *words, "--identity", str(tmp_path / "identity.json")],
        env=os.environ
        | {
            "HOME": str(tmp_path),
            "CACHEHOME_FAMILIES": "inductor",
            "TORCHINDUCTOR_CACHE_DIR": str(live),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not workers(process.pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert workers(process.pid)
    yield process
    process.kill()
    process.wait()


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def workers(pid: int) -> list[int]:
    return [worker for child in children(pid) for worker in children(child)]


def gone(pids: list[int], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(_works(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _works(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("send", [os.kill, os.killpg])  # a terminal's Ctrl-C reaches all of them at once
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_it_has_started_ends_with_it(
    publishing: subprocess.Popen[str],
    number: signal.Signals,
    send: Callable[[int, int], None],
    tmp_path: Path,
) -> None:
    started = children(publishing.pid) + workers(publishing.pid)
    send(publishing.pid, number)
    _, talk = publishing.communicate(timeout=60)
    assert publishing.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert "Traceback" not in talk
    assert gone(started)
    assert not list(tmp_path.glob("store/*/*/profiles/*/generations/*"))
    assert not list((tmp_path / "live/.cachehome").glob("staging-*"))


def test_a_transfer_that_was_killed_is_told_at_once(publishing: subprocess.Popen[str]) -> None:
    """Its workers may hold the pipe that it would have answered through."""
    started = workers(publishing.pid)
    os.kill(children(publishing.pid)[0], signal.SIGKILL)
    begin = time.monotonic()
    out, _ = publishing.communicate(timeout=60)
    assert time.monotonic() - begin < 30, "and not when its time is up"
    record = json.loads(out)
    assert (record["outcome"], record["reason"]) == ("unavailable", "transfer_died")
    assert gone(started)


def run(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "identity.json").write_text(Identity({"test": 1}, {"name": "default"}).to_json())
    words = f"--store {tmp_path}/store --identity {tmp_path}/identity.json"
    script = script.replace("CACHEHOME", f"{sys.executable} -m cachehome").replace("WORDS", words)
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"],
        env=os.environ | {"HOME": str(tmp_path), "CACHEHOME_FAMILIES": "inductor"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("CACHEHOME --help | true", 0),
        ("CACHEHOME nonsense 2>&1 | true", 2),
        ("CACHEHOME --version >/dev/full", 1),
        ("CACHEHOME --help >/dev/full", 1),
        ("CACHEHOME status >/dev/full", 1),
        ("CACHEHOME ls --store / >/dev/full", 3),
        ("CACHEHOME restore --json WORDS >/dev/full", 1),
        ("CACHEHOME restore WORDS 2>/dev/full", 3),
        ("trap '' CHLD; CACHEHOME restore WORDS", 3),
        (f"{sys.executable} -c '{UNREAPED}' CACHEHOME restore WORDS", 3),
    ],
)
def test_nobody_listens(script: str, code: int, tmp_path: Path) -> None:
    done = run(script, tmp_path)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_what_a_terminal_leaves_behind_goes_on(tmp_path: Path) -> None:
    done = run("trap '' HUP; CACHEHOME restore WORDS & sleep 0.3; kill -HUP -$$; wait $!", tmp_path)
    assert done.returncode == 3, done
    assert "no_published_generation" in done.stderr


def test_a_profile_of_it_is_printed(tmp_path: Path) -> None:
    done = run(f"{sys.executable} -m cProfile -m cachehome restore WORDS", tmp_path)
    assert "function calls" in done.stdout
