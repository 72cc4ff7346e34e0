"""restore and publish, as processes, on stores that hang, limp and fail: they end in time, and say why in one line."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fuse import Fault, mounted
from people import injected
from place import BUILD, IDENTITY, PROFILE, Place

from cachehome.errors import ConfigError
from cachehome.settings import Settings
from cachehome.sync import guard

SECONDS = 1.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A store with one generation of `a`, and room for a mount of it at `mount`."""
    place = Place(tmp_path).make()
    place.publish("a")
    (tmp_path / "identity.json").write_text(IDENTITY.to_json())
    return place


def start(
    place: Place, name: str, store: Path, live: Path, seconds: float = SECONDS
) -> subprocess.Popen[str]:
    """`cachehome VERB --json`, as a process."""
    variables = {
        "HOME": str(
            live.with_suffix(".home")
        ),  # each is a node of its own, and remembers its copy of the line
        "CACHEHOME_STORE": str(store),
        "CACHEHOME_IDENTITY": str(place.directory / "identity.json"),
        "TORCHINDUCTOR_CACHE_DIR": str(live),
        "CACHEHOME_STORE_TIMEOUT_SECONDS": str(seconds),
        "CACHEHOME_PUBLISH_BUDGET_SECONDS": str(seconds),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "cachehome", name, "--json", *(["--adopt"] if name == "publish" else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )


def filled(place: Place, name: str) -> Path:
    live = place.live()
    (live / "ab").mkdir()
    (live / f"ab/{name}.py").write_text(f"name = {name!r}\n")
    return live


# The call that never returns, and the directory of the store in which it is made.
HANGS = {
    "restore": (
        ("getattr", ""),
        ("getattr", "generations"),
        ("readdir", "generations"),
        ("open", "generations/"),
        ("read", "generations/"),
        ("open", "packs/"),
        ("read", "packs/"),
    ),
    "publish": (
        ("readdir", "generations"),
        ("read", "generations/"),
        ("create", "packs/"),
        ("write", "packs/"),
        ("fsync", "packs/"),
        ("link", "generations/"),
    ),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_transfer_that_hangs_ends_in_time(place: Place, name: str) -> None:
    """All at once, each in a copy of the store: they end by their deadline, and nobody waits for what they leave."""
    source, mount = place.directory / "copies", place.directory / "mount"
    source.mkdir(mode=0o700)
    places = {"generations": place.generations, "packs": place.packs}
    rules, lives, processes = [], [], []
    with mounted(source, mount) as faults:
        for number, (call, where) in enumerate(HANGS[name]):
            shutil.copytree(place.root, source / f"s{number}")
            below = places.get(where.rstrip("/"), place.root).relative_to(place.root).as_posix()
            path = f"/s{number}/{below}".removesuffix("/.") + ("/" if where.endswith("/") else "")
            rules.append(Fault(call, path, seconds=-1))
        faults.set(*rules)
        begin = time.monotonic()
        for number in range(len(rules)):
            lives.append(filled(place, "b") if name == "publish" else place.live())
            processes.append(start(place, name, mount / f"s{number}", lives[-1]))
        for process, rule, live in zip(processes, rules, lives, strict=True):
            out, talk = process.communicate(timeout=60)
            record = json.loads(out)
            found = (process.returncode, record["outcome"], record["reason"])
            assert found == (1, "unavailable", "store_timeout"), rule
            assert len(talk.splitlines()) == 1, rule
            assert name == "publish" or not (live / "ab").exists(), rule
        assert time.monotonic() - begin < 50  # not for ever; a busy machine is slow
        faults.set()
        for number, live in enumerate(lives):  # the same again, with nothing wrong
            process = start(place, name, mount / f"s{number}", live, 60)
            out, talk = process.communicate(timeout=60)
            assert process.returncode == 0, talk


def test_the_python_interface_in_a_process_with_threads(place: Place) -> None:
    """It can't fork: the transfer is left behind in a thread, which does not keep the interpreter from ending."""
    script = f"""
import threading, time, json
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
import cachehome
from cachehome.identity import Identity
record = cachehome.restore(
    cachehome.Settings(store=({str(place.directory / "mount")!r},), store_timeout_seconds=1.0),
    Identity.load({str(place.directory / "identity.json")!r}),
    {{"inductor": {str(place.live())!r}}},
)
print(json.dumps([record.outcome, record.reason]), flush=True)
"""
    with mounted(place.root, place.directory / "mount") as faults:
        faults.set(Fault("read", "/packs/", seconds=-1))
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == ["unavailable", "store_timeout"]
        # The thread hangs in the kernel, which holds the process until the server answers or is gone.
        faults.set()
        assert process.wait(30) == 0
        process.stdout.close()


def test_a_slow_store_is_used(place: Place) -> None:
    """2 ms for each open, as on a busy metadata server, and handles that go stale."""
    with mounted(place.root, place.directory / "mount") as faults:
        faults.set(
            Fault("open", seconds=0.002),
            Fault("getattr", seconds=0.0005),
            Fault("open", "/generations/", errno="ESTALE", times=4),
            Fault("read", "/packs/", errno="ESTALE", times=1),
            Fault("read", length=999),
        )
        settings = {"store": (str(place.directory / "mount"),)}
        assert place.restore(**settings)[1] == {"a"}
        assert place.publish("b", **settings).generation == 2
        assert place.restore(**settings)[1] == {"a", "b"}


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        (Fault("read", "/packs/", errno="EIO"), "rejected", "unreadable"),
        (Fault("open", "/packs/", errno="EACCES"), "rejected", "unreadable"),
        (Fault("open", "/packs/", errno="ENOENT"), "rejected", "pack_missing"),
        (Fault("read", "/generations/", errno="EIO"), "rejected", "unreadable"),
        (Fault("readdir", "/generations", errno="EIO"), "unavailable", "store_unavailable"),
        (Fault("readdir", "/generations", errno="ESTALE"), "unavailable", "store_unavailable"),
        (Fault("getattr", errno="ENOTCONN"), "unavailable", "store_unavailable"),
    ],
)
def test_restores_that_fail(place: Place, fault: Fault, outcome: str, reason: str) -> None:
    with mounted(place.root, place.directory / "mount") as faults:
        faults.set(fault)
        record, names = place.restore(store=(str(place.directory / "mount"),))
        assert (record.outcome, record.reason, names) == (outcome, reason, set())
        assert "\n" not in record.line()


def test_the_newest_generation_can_not_be_read(place: Place) -> None:
    place.publish("b")
    with mounted(place.root, place.directory / "mount") as faults:
        store = (str(place.directory / "mount"),)
        for name in ("EIO", "EACCES", "EPERM"):
            faults.set(Fault("open", "/00000002", errno=name))
            record, names = place.restore(store=store)
            assert (record.generation, names) == (1, {"a"}), name
        # Listed, and gone when it is read.
        faults.set(Fault("open", "/00000002", errno="ENOENT"))
        assert place.restore(store=store)[1] == {"a"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("fsync", errno="EDQUOT"), "quota"),
        (Fault("write", errno="ENOSPC"), "full"),
        (Fault("create", errno="EROFS"), "publish = off"),
        (Fault("mkdir", errno="EACCES"), "owner and mode"),
        (Fault("link", errno="ENOSYS"), "no hard links"),
        (Fault("link", errno="EXDEV"), "no hard links"),
        (Fault("rename", errno="EIO"), "mount"),
    ],
)
def test_publishes_that_fail_leave_the_store_as_it_was(place: Place, fault: Fault, words: str) -> None:
    with mounted(place.root, place.directory / "mount") as faults:
        faults.set(fault)
        settings: dict[str, Any] = {"store": (str(place.directory / "mount"),), "profile_fallback": "none"}
        if fault.verb == "mkdir":
            shutil.rmtree(place.root / "cachehome-v1")
        record = place.publish("b", **settings)
        assert record.outcome in ("unavailable", "rejected")
        assert words in record.details["message"]
        assert "\n" not in record.line()
        faults.set()
    if fault.verb != "mkdir":
        assert place.numbers() == [1]
        assert place.restore()[1] == {"a"}
    assert not list(place.root.rglob(".tmp-*"))


def test_few_open_files(place: Place) -> None:
    """ulimit -n 64, and 5,000 files."""
    live = place.live()
    (live / "ab").mkdir()
    for number in range(5_000):
        (live / f"ab/k{number}.py").write_text(f"n = {number}\n")
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        " sys.argv[0] = 'cachehome'; runpy.run_module('cachehome', run_name='__main__')"
    )

    def run(name: str, directory: Path, *arguments: str) -> Any:
        variables = {
            "CACHEHOME_STORE": str(place.root),
            "CACHEHOME_IDENTITY": str(place.directory / "identity.json"),
            "HOME": str(place.directory),
            "TORCHINDUCTOR_CACHE_DIR": str(directory),
        }
        done = subprocess.run(
            [sys.executable, "-c", code, name, "--json", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | variables,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
    assert run("publish", live, "--adopt")["files"] == 5_000
    assert run("restore", place.live())["files"] == 5_001


_RESTORE = """
import json, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from place import Place
place = Place(Path(sys.argv[2]))
record, names = place.restore()
print(json.dumps([record.outcome, sorted(names)]))
"""


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("flock:error=ENOLCK", ["hit", ["a"]]),
        ("flock:error=ENOSYS", ["hit", ["a"]]),
        ("flock:error=EOPNOTSUPP", ["hit", ["a"]]),
        ("flock:error=EIO", ["hit", ["a"]]),
        ("flock:error=524", ["hit", ["a"]]),
        ("flock:retval=0", ["hit", ["a"]]),
        ("link,linkat:error=EXDEV", ["unavailable", []]),
        ("rename,renameat,renameat2:error=EXDEV", ["unavailable", ["a"]]),  # installed, and not stamped
    ],
)
def test_local_file_systems_that_limp(place: Place, fault: str, found: Any) -> None:
    answer = injected(_RESTORE, fault, arguments=[Path(__file__).parent, place.directory])
    assert answer == found


def test_no_room_for_it_is_said_before_a_byte_is_written(place: Place, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    big = place.live()
    (big / "ab").mkdir()
    (big / "ab/big.best_config").write_text(json.dumps({"x": "x" * 3_000_000}))
    place.publish(live=big)
    for options in ("size=1m", "nr_inodes=4"):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", disk],
            check=False,
            capture_output=True,
        )
        if done.returncode:
            pytest.skip("mounting is not allowed here")
        try:
            record, names = place.restore(live=disk)
            assert (record.outcome, names) == ("unavailable", set())
            assert record.reason == "no_room"
            assert "\n" not in record.line()
            assert not list(disk.rglob("staging-*"))
        finally:
            subprocess.run(["umount", "-l", disk], check=True)


# -- the guard ---------------------------------------------------------------------------------------------------------


def test_the_guard_passes_on_what_the_transfer_says(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for fork in (True, False):
        monkeypatch.setattr("cachehome.threads.may_fork", lambda fork=fork: fork)
        record = guard.restore(place.settings, IDENTITY, {"inductor": str(place.live())})
        assert (record.outcome, record.build, record.entries) == ("hit", BUILD, 1)
        assert guard.publish(place.settings, IDENTITY, {"inductor": str(place.live())}).outcome == "miss"
        with pytest.raises(ValueError, match="no user"):
            guard.restore(
                place.settings.replace(store_owners=("nobody-here",)),
                IDENTITY,
                {"inductor": str(place.live())},
            )


def test_the_guard_reads_the_identity(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it can be killed over it; what is wrong with it is the caller's to hear."""
    monkeypatch.setattr("cachehome.named.SECONDS", 1.0)
    kept = place.directory / "identities"
    kept.mkdir()
    (kept / "good").write_text(IDENTITY.to_json())
    (kept / "bad").write_text("{}")
    mount = place.directory / "mount"
    live = {"inductor": str(place.live())}
    for fork in (True, False):
        monkeypatch.setattr("cachehome.threads.may_fork", lambda fork=fork: fork)
        with mounted(kept, mount) as faults:
            record = guard.restore(place.settings.replace(identity=str(mount / "good")), None, live)
            assert (record.outcome, record.build, record.profile) == ("hit", BUILD, PROFILE)
            with pytest.raises(ConfigError, match="bad can't be used: not an identity"):
                guard.restore(place.settings.replace(identity=str(mount / "bad")), None, live)
            with pytest.raises(ConfigError, match="No such file"):
                guard.publish(place.settings.replace(identity=str(mount / "none")), None, live)
            if not fork:
                continue  # a thread waits as long as `cachehome.named` does
            faults.set(Fault("open", "/good", seconds=-1))
            with pytest.raises(ConfigError, match="good can't be used: no answer within 1 s"):
                guard.restore(place.settings.replace(identity=str(mount / "good")), None, live)
            faults.set()


def test_the_guard_and_a_transfer_that_dies(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachehome.threads.may_fork", lambda: True)
    monkeypatch.setattr("cachehome.sync.restore.restore", lambda *_, **__: os.kill(os.getpid(), 9))
    record = guard.restore(place.settings, IDENTITY, {})
    assert (record.outcome, record.reason) == ("unavailable", "transfer_died")
    assert "signal 9" in record.details["message"]


def test_the_guard_lets_a_late_transfer_clean_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = place.directory / "marker"

    def slow(*_: Any, **__: Any) -> None:
        marker.touch()
        try:
            time.sleep(60)
        finally:
            marker.unlink()

    monkeypatch.setattr("cachehome.threads.may_fork", lambda: True)
    monkeypatch.setattr("cachehome.sync.restore.restore", slow)
    settings = Settings(store=(str(place.root),), store_timeout_seconds=0.5)
    record = guard.restore(settings, IDENTITY, {})
    assert (record.outcome, record.reason) == ("unavailable", "store_timeout")
    assert not marker.exists()
