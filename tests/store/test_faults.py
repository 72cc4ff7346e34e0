"""Publish, restore and prune over a store that fails at each call once, and readers beside a collector."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store import gc
from cachehome.store.lab import BUILD, Lab, addition, check
from cachehome.store.posix import PosixBackend
from cachehome.store.scripted import Fault, Scripted
from cachehome.store.store import Store
from cachehome.sync.publish import publish
from cachehome.sync.record import Record
from cachehome.sync.restore import restore

ID = Identity({"test": 1}, {"name": "default"})
HOWS = ("before", "after", "lost")


class Node:
    """A store in a directory, and a live directory; `faults` are injected into what is opened next."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.root = directory / "store"
        self.root.mkdir(mode=0o700)
        self.settings = Settings(store=(str(self.root),), publish_budget_seconds=5.0, keep_generations=1)
        self.faults: list[Fault] = []
        self.backend: Scripted | None = None
        monkeypatch.setattr(Store, "open", self.open)

    def open(self, url: str, settings: Settings | None = None) -> Store:
        self.backend = Scripted(PosixBackend(url), *self.faults)
        return Store(self.backend)

    def sound(self) -> Store:
        return Store(PosixBackend(str(self.root)))

    def live(self, name: str = "live") -> dict[str, str]:
        return {"inductor": str(self.directory / name)}

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.directory / "live" / "ab" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def publish(self, *faults: Fault) -> Record:
        self.faults = list(faults)
        return publish(self.settings, ID, self.live())

    def restore(self, name: str, *faults: Fault) -> Record:
        self.faults = list(faults)
        return restore(self.settings, ID, self.live(name))

    def save(self) -> Callable[[], None]:
        """Remember all of it; a function that brings it back."""
        saved = self.directory.with_name(self.directory.name + ".saved")
        shutil.copytree(self.directory, saved, symlinks=True)

        def back() -> None:
            shutil.rmtree(self.directory)
            shutil.copytree(saved, self.directory, symlinks=True)

        return back


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    directory = tmp_path / "node"
    directory.mkdir()
    return Node(directory, monkeypatch)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    # In this process, so that every call is counted.
    monkeypatch.setattr("cachehome.sync.parallel.cores", lambda: 1)


def contents(node: Node) -> set[str]:
    """What the newest generation holds, every byte of it checked."""
    found = node.sound().newest(ID.build_key, ID.profile_key)
    assert found is not None
    check(node.sound(), found.manifest)
    return {os.path.basename(name) for _, name in found.manifest.entries}


def cases(node: Node, act: Callable[[Fault], Any]) -> Iterator[tuple[Fault, Any]]:
    """Do *act* with a fault at its first call, at its second, and so on, from the same state each time."""
    back = node.save()
    for how in HOWS:
        at = 0
        while True:
            fault = Fault(how, at)
            result = act(fault)
            assert node.backend is not None
            if node.backend.count() <= at:
                break
            yield fault, result
            back()
            at += 1
        back()


def test_every_call_of_a_publish_may_fail(node: Node) -> None:
    node.restore("live")
    node.write(a="a = 1\n")
    assert node.publish().reason == "published"
    node.write(b="b = 1\n")
    count = 0
    for fault, record in cases(node, node.publish):
        count += 1
        assert record.outcome in ("hit", "unavailable", "rejected"), (fault, record)
        assert contents(node) in ({"a.py"}, {"a.py", "b.py"}), (fault, record)
        if record.outcome == "hit":
            assert contents(node) == {"a.py", "b.py"}, (fault, record)
        # The next one, without a fault, ends it.
        assert node.publish().outcome == "hit", fault
        assert contents(node) == {"a.py", "b.py"}, (fault, record)
        assert node.restore("copy").files == 2, fault
    assert count > 60, count
    print(f"{count} cases")


def test_every_call_of_a_first_publish_may_fail(node: Node) -> None:
    node.restore("live")
    node.write(a="a = 1\n")
    count = 0
    for fault, record in cases(node, node.publish):
        count += 1
        assert record.outcome in ("hit", "unavailable", "rejected"), (fault, record)
        assert node.publish().outcome == "hit", fault
        assert contents(node) == {"a.py"}, (fault, record)
    assert count > 45, count
    print(f"{count} cases")


def test_every_call_of_a_restore_may_fail(node: Node) -> None:
    node.restore("live")
    node.write(a="a = 1\n")
    node.publish()
    node.write(b="b = 1\n")
    node.publish()
    count = 0
    for fault, record in cases(node, lambda fault: node.restore("copy", fault)):
        count += 1
        assert record.outcome in ("hit", "miss", "unavailable", "rejected"), (fault, record)
        copy = node.directory / "copy" / "ab"
        found = {path.name for path in copy.iterdir()} if copy.exists() else set()
        # All of a generation, or nothing; never a half.
        assert found in (set(), {"a.py"}, {"a.py", "b.py"}), (fault, record)
        assert (record.outcome == "hit") == bool(found), (fault, record)
        staging = [path.name for path in (node.directory / "copy" / ".cachehome").glob("staging-*")]
        assert staging == []
        assert node.restore("copy").outcome == "hit"
        assert {path.name for path in copy.iterdir()} == {"a.py", "b.py"}, fault
    assert count > 15, count
    print(f"{count} cases")


def test_every_call_of_a_prune_of_a_directory_may_fail(node: Node) -> None:
    node.restore("live")
    for name in ("a", "b", "c", "d"):
        node.write(**{name: f"{name} = 1\n"})
        node.publish()
    (node.root / "cachehome-v1" / ID.build_key / "packs" / ".tmp-left").write_bytes(b"x")
    rules = gc.Rules(1, 0.0, 1e9, -1.0)

    def act(fault: Fault) -> Exception | None:
        node.faults = [fault]
        store = node.open(str(node.root))
        try:
            gc.prune(store, ID.build_key, rules)
        except OSError as error:
            return error
        return None

    count = 0
    for fault, _ in cases(node, act):
        count += 1
        assert contents(node) == {"a.py", "b.py", "c.py", "d.py"}, fault
        gc.prune(node.sound(), ID.build_key, rules)
        assert node.sound().numbers(ID.build_key, ID.profile_key) == [4], fault
        assert node.sound().backend.temporaries("") == set()
        assert contents(node) == {"a.py", "b.py", "c.py", "d.py"}, fault
    assert count > 60, count
    print(f"{count} cases")


def test_a_pack_that_goes_under_a_restore(node: Node) -> None:
    """It tries again, from the newest listing, and finds what has come meanwhile."""
    node.restore("live")
    node.write(a="a = 1\n")
    node.publish()
    pack = next((node.root / "cachehome-v1" / ID.build_key / "packs").iterdir())

    def meanwhile() -> None:
        pack.unlink()
        (node.directory / "live" / "ab" / "a.py").write_text("a = 1\n")
        store = node.sound()

        new, stored = addition({"x": b"x"})
        store.backend.put(f"{ID.build_key}/{new.packs[0].name}", stored)
        store.commit(ID.build_key, ID.profile_key, new, deadline=time.monotonic() + 5)

    record = node.restore("copy", Fault("call", 1, "get", meanwhile))
    assert record.details["rejected"][0]["reason"] == "pack_missing"
    assert record.generation == 3 or record.outcome == "miss", record


def test_a_damaged_pack_heals_with_the_next_publish(node: Node) -> None:
    node.restore("live")
    node.write(a="a = 1\n", b="b = 1\n")
    node.publish()
    pack = next((node.root / "cachehome-v1" / ID.build_key / "packs").iterdir())
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(bytes(data))
    record = node.restore("copy")
    assert (record.outcome, record.reason) == ("rejected", "pack_damaged")
    # This node starts cold, compiles one of the two, and publishes.
    path = node.directory / "copy" / "ab" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text("a = 1\n")
    node.faults = []
    record = publish(node.settings, ID, node.live("copy"))
    assert (record.outcome, record.generation) == ("hit", 2), record
    assert contents(node) == {"a.py"}
    assert node.restore("third").files == 1


def test_a_pack_cut_short_heals_with_the_next_publish(node: Node) -> None:
    node.restore("live")
    node.write(a="a = 1\n")
    node.publish()
    pack = next((node.root / "cachehome-v1" / ID.build_key / "packs").iterdir())
    os.truncate(pack, 10)
    assert node.restore("copy").outcome == "rejected"
    shutil.copytree(node.directory / "live" / "ab", node.directory / "copy" / "ab")  # compiled again
    assert publish(node.settings, ID, node.live("copy")).reason == "mended"
    assert node.restore("third").outcome == "hit"


def test_denied_entries_are_left_out_set_aside_and_do_not_come_back(node: Node) -> None:
    from cachehome.store import marks

    node.restore("live")
    node.write(a="a = 1\n")
    node.publish()
    node.write(bad="bad = 1\n")
    node.publish()
    store = node.sound()
    manifests = [generation.manifest for generation in store.generations(ID.build_key, ID.profile_key)]
    rows = marks.introduced(manifests, 2)
    store.deny(ID.build_key, marks.Denied("list", marks.QUARANTINE, rows))
    copy = node.restore("copy")
    assert (copy.files, copy.details["skipped"]) == (1, {"denied": 1})
    here = node.restore("live")
    assert here.details["set_aside"] == ["inductor/ab/bad.py: denied"]
    assert not (node.directory / "live" / "ab" / "bad.py").exists()
    node.write(bad="bad = 1\n")
    record = node.publish()
    assert (record.reason, record.details["denied"]) == ("unchanged", 1)
    node.write(bad="bad = 2\n")
    assert node.publish().reason == "published"
    assert node.restore("third").files == 2
    store.allow(ID.build_key, "list")
    assert node.restore("fourth").files == 2


def test_a_list_that_can_not_be_read_is_reported_and_in_nobodys_way(node: Node) -> None:
    node.restore("live")
    node.write(a="a = 1\n")
    node.publish()
    node.sound().backend.put(f"{ID.build_key}/denied/list", b"rubbish")
    record = node.restore("copy")
    assert (record.outcome, record.files) == ("hit", 1)
    assert "damaged" in record.details["denials_unreadable"][0]


def test_the_bound_of_a_build(node: Node) -> None:
    node.restore("live")
    node.write(a="a = 1\n")
    node.publish()
    size = node.sound().usage(ID.build_key)[1]
    node.settings = node.settings.replace(max_storage_bytes=size + 10)
    node.write(b="b = 1\n")
    record = node.publish()
    assert (record.outcome, record.reason) == ("disabled", "storage_limit")
    assert contents(node) == {"a.py"}
    assert node.restore("copy").outcome == "hit"
    node.settings = node.settings.replace(max_storage_bytes=size + 100_000)
    assert node.publish().reason == "published"


def test_sixteen_readers_beside_a_collector(tmp_path: Path) -> None:
    """100 generations, five are kept; nobody who reads meanwhile fails."""
    import subprocess
    import sys

    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    lab = Lab(PosixBackend(str(root)))
    old: tuple[str, ...] = ()
    for number in range(100):
        lab.publish(lost=old, **{f"e{number}": "x" * number})
        if number % 10 == 9:
            old = (*old, lab.pack("p", f"e{number}"))
    assert len(lab.numbers()) == 100
    script = f"""
import sys, time
from cachehome.store.lab import check
from cachehome.store.posix import PosixBackend
from cachehome.store.store import Store
store = Store(PosixBackend({str(root)!r}))
print("up", flush=True)
end, done = time.monotonic() + 4, 0
while time.monotonic() < end or not done:
    found = store.newest({BUILD!r}, "p")
    check(store, found.manifest)
    done += 1
print(done)
"""
    readers = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(16)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "up\n"
    rules = gc.Rules(5, 0.5, 1e9)
    deadline = time.monotonic() + 30
    while any(reader.poll() is None for reader in readers) and time.monotonic() < deadline:
        gc.prune(lab.store, BUILD, rules)
        lab.publish(**{f"late{time.monotonic_ns()}": "x"})
        lab.publish(**{f"late{time.monotonic_ns()}": "x"})
    reads = [int(reader.communicate(timeout=60)[0]) for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * 16
    assert len(reads) == 16
    time.sleep(0.6)
    gc.prune(lab.store, BUILD, gc.Rules(5, 0.0, 1e9))
    gc.prune(lab.store, BUILD, gc.Rules(5, 0.0, 1e9))
    assert len(lab.numbers()) == 5
    assert lab.store.packs(BUILD) >= {p.sha256 for p in lab.store.newest(BUILD, "p").manifest.packs}  # type: ignore[union-attr]
