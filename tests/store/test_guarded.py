"""The verbs that look after a store, as processes: on one that hangs, at a terminal, in a pipeline."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fuse import Fault, mounted
from place import BUILD, PROFILE, Place

from cachehome.commands import guarded

# verb and arguments -> the call that never returns, and where
HANGS = {
    "ls": ("getattr", ""),
    "show": ("open", "generations/"),
    "verify": ("read", "packs/"),
    "prune": ("readdir", "generations"),
    "pin 1 --label y": ("link", ""),
    "unpin x": ("unlink", ""),
    "rollback 1": ("open", "generations/"),
    "quarantine 1": ("create", ""),
    "unquarantine": ("readdir", ""),
    "doctor": ("write", ""),
    "doctor --stress 1": ("link", ""),
    f"why {BUILD} {BUILD}": ("open", ""),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path).make()
    place.publish("a")
    store = place.store()
    assert store.pin(BUILD, PROFILE, 1, "x")
    place.publish("b")
    return place


def installed() -> list[str]:
    """The command line of the command that an installation makes."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    module, function = re.findall(r'^cachehome = "([\w.]+):(\w+)"$', text, re.MULTILINE)[0]
    return [sys.executable, "-c", f"import sys\nfrom {module} import {function}\nsys.exit({function}())"]


def start(place: Place, words: str, store: Path, seconds: float = 1.0) -> subprocess.Popen[str]:
    """`cachehome WORDS`, as a process with a group of its own."""
    return subprocess.Popen(
        [*installed(), *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ
        | {
            "HOME": str(place.directory / "home"),
            "CACHEHOME_STORE": str(store),
            "CACHEHOME_STORE_TIMEOUT_SECONDS": str(seconds),
        },
    )


def test_verbs_on_a_store_that_hangs(place: Place) -> None:
    """All at once: each ends with one line and 1, and nobody waits for what it leaves."""
    mount = place.directory / "mount"
    places = {"generations": place.generations, "packs": place.packs}
    with mounted(place.root, mount) as faults:
        for words, (call, where) in HANGS.items():
            below = places.get(where.rstrip("/"), place.root).relative_to(place.root).as_posix()
            path = f"/{below}".removesuffix(".") + ("/" if where.endswith("/") else "")
            faults.set(Fault(call, path if where else "", seconds=-1))
            process = start(place, words, mount)
            out, talk = process.communicate(timeout=60)
            told = talk.splitlines()
            assert process.returncode == 1, (words, talk)
            assert told[-1:] == [
                f"cachehome: {mount} gave no sign of life for 1 s: check the mount and its server"
            ], (words, talk)
            assert len(told) == 1 or words.startswith("doctor"), talk
            assert words.startswith("doctor") or not out, words
            faults.set()
        process = start(place, "ls", mount, 60)
        out, talk = process.communicate(timeout=60)
        assert (process.returncode, talk) == (0, "")
        assert len(out.splitlines()) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_verb_that_hangs_can_be_interrupted(place: Place, number: signal.Signals) -> None:
    mount = place.directory / "mount"
    with mounted(place.root, mount) as faults:
        faults.set(Fault("open", "", seconds=-1))
        process = start(place, "verify", mount, 1000)
        until = time.monotonic() + 30
        while not children(process.pid) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.5)
        os.killpg(process.pid, number)  # as a terminal does
        out, talk = process.communicate(timeout=20)
        faults.set()
    assert out == ""
    if number == signal.SIGINT:
        assert (process.returncode, talk) == (130, "cachehome: interrupted\n")
    else:
        assert (process.returncode, talk) == (128 + number, "")


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_an_interrupted_doctor_leaves_nothing(place: Place) -> None:
    process = start(place, f"doctor {place.root} --stress 50 --writers 2 --readers 1", place.root, 1000)
    members = place.root / "cachehome-stress" / "members"
    until = time.monotonic() + 30
    while not members.is_dir() and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    while (place.root / "cachehome-stress").exists() and time.monotonic() < until:
        time.sleep(0.05)  # its members end, and the last one tidies up
    assert [path.name for path in place.root.iterdir()] == ["cachehome-v1"]


def test_nobody_reads_on(place: Place) -> None:
    """`cachehome ls | head -0`."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "cachehome", "ls", "--store", str(place.root)],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"HOME": str(place.directory / "home")},
        check=False,
        timeout=60,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(place: Place, streams: str) -> None:
    words = f"exec {sys.executable} -m cachehome ls --store {place.root} {streams}"
    done = subprocess.run(
        ["sh", "-c", words],
        capture_output=True,
        env=os.environ | {"HOME": str(place.directory / "home")},
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_process_with_threads_is_not_forked() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert not guarded.possible()
    end.set()
    thread.join()


def test_more_files_than_select_can_name(place: Place) -> None:
    code = (
        "import os, resource, sys\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "try:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, max(3000, most)))\n"
        "except (OSError, ValueError):\n    sys.exit(77)\n"
        "for _ in range(2000):\n    os.open(os.devnull, os.O_RDONLY)\n"
        f"sys.argv[1:] = ['ls', '--store', {str(place.root)!r}]\n"
        "from cachehome import entry\nentry.console()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HOME": str(place.directory / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode == 77:
        pytest.skip("may not open so many files")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 4
