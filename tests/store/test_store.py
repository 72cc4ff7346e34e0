"""The commit protocol and what a line of generations may look like, beyond what the drills show."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from memory import MemoryBackend

from cachehome.errors import CommitConflict, IntegrityError, NotInStore, StoreUnavailable
from cachehome.settings import Settings
from cachehome.store import gc
from cachehome.store.lab import BUILD, Lab, addition, check
from cachehome.store.memory import Memory
from cachehome.store.posix import PosixBackend
from cachehome.store.scripted import Fault, Scripted
from cachehome.store.store import Store, renamed

G = f"cachehome-v1/{BUILD}/profiles/p/generations"


def faulty(lab: Lab, *faults: Fault) -> tuple[Store, Scripted]:
    backend = Scripted(lab.backend, *faults)
    return Store(backend), backend


def test_each_publication_adds_to_the_one_before(lab: Lab) -> None:
    assert lab.publish(a="1") == (lab.store.newest(BUILD, "p"), True)
    generation, ours = lab.publish(b="2")
    assert (generation.number, ours, lab.names()) == (2, True, {"a", "b"})
    assert generation.manifest.entries["stress", "a"].since == 1
    assert generation.manifest.parent == lab.store.read(BUILD, "p", 1).sha256


def test_nothing_new_makes_no_generation(lab: Lab) -> None:
    lab.publish(a="1")
    generation, ours = lab.publish(a="1")
    assert (generation.number, ours, lab.numbers()) == (1, False, [1])


def test_the_first_bytes_of_an_entry_stay(lab: Lab) -> None:
    lab.publish(a="1")
    first = lab.pack("p", "a")
    assert lab.publish(a="2")[1] is False
    assert lab.pack("p", "a") == first


def test_two_rivals_that_bring_the_same_make_one_generation(lab: Lab) -> None:
    store, _ = faulty(lab, Fault("call", 0, "put_new", lambda: lab.publish(a="1")))
    generation, ours = lab.publish(store, a="1")
    assert (generation.number, ours, lab.numbers()) == (1, False, [1])


def test_a_lost_reply_that_can_not_be_read_back_at_once_is_still_ours(lab: Lab) -> None:
    # The first get after the creation says that it is not there: a cached answer.
    store, _backend = faulty(lab, Fault("lost", 0, "put_new"), Fault("lost", 0, "get"))
    generation, ours = lab.publish(store, a="1")
    assert (generation.number, ours, lab.numbers()) == (1, True, [1])


def test_a_commit_that_failed_is_an_error_and_leaves_nothing(lab: Lab) -> None:
    store, _ = faulty(lab, Fault("before", 0, "put_new"))
    with pytest.raises(StoreUnavailable):
        lab.publish(store, a="1")
    assert lab.numbers() == []


def test_a_damaged_generation_is_built_over(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    lab.publish(b="2")
    memory.names[f"{G}/00000002"] = (b"rubbish", 0.0)
    assert lab.names() == {"a"}
    assert lab.publish(b="2")[0].number == 3
    assert lab.names() == {"a", "b"}


def test_all_generations_damaged(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    memory.names[f"{G}/00000001"] = (b"", 0.0)
    assert lab.store.newest(BUILD, "p") is None
    assert lab.publish(a="1")[0].number == 2
    assert lab.names() == {"a"}


def test_a_young_generation_that_can_not_be_read_is_not_built_over(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")

    def refuse(_: bytes) -> bytes:
        raise IntegrityError("cannot read it: Input/output error", name=G, reason="unreadable")

    unreadable = Fault("answer", 0, "get", refuse, times=1000)
    with pytest.raises(StoreUnavailable, match="tries again"):
        lab.publish(faulty(lab, unreadable)[0], b="2")
    memory.now = 7200.0
    assert lab.publish(faulty(lab, unreadable)[0], b="2")[0].number == 2


def test_holes_and_strays_are_legal(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    lab.publish(b="2")
    lab.publish(c="3")
    memory.delete(f"{G}/00000002")
    for stray in ("7", "0000000x", "1.tmp", "README", "99999999.bak"):
        memory.put(f"{G}/{stray}", b"?")
    assert lab.numbers() == [1, 3]
    assert lab.publish(d="4")[0].number == 4


def test_numbers_have_no_upper_end(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    manifest = lab.store.read(BUILD, "p", 1).manifest._replace(number=99_999_999)
    from cachehome.store.manifest import encode

    memory.put(f"{G}/99999999", encode(manifest))
    assert lab.publish(b="2")[0].number == 100_000_000
    assert lab.publish(c="3")[0].number == 100_000_001


def test_current_never_decides(lab: Lab, memory: MemoryBackend) -> None:
    current = f"cachehome-v1/{BUILD}/profiles/p/CURRENT"
    lab.publish(a="1")
    for hint in (b"9\n", b"", b"\xff\0", b"-1"):
        memory.put(current, hint)
        assert lab.names() == {"a"}
    memory.delete(current)
    assert lab.publish(b="2")[0].number == 2
    assert memory.get(current) == b"2\n"


def test_rivals_that_always_win_end_at_the_deadline(lab: Lab) -> None:
    numbers = iter(range(100))
    rivals = [
        Fault("call", at, "put_new", lambda: lab.publish(**{f"r{next(numbers)}": "x"})) for at in range(100)
    ]
    store, _ = faulty(lab, *rivals)
    begin = time.monotonic()
    with pytest.raises(CommitConflict):
        lab.publish(store, mine="2", seconds=0.3)
    assert time.monotonic() - begin < 30


# -- packs ------------------------------------------------------------------------------------------------------


def test_a_pack_of_the_base_that_has_gone_is_left_out_of_the_line(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    lab.publish(b="2")
    memory.delete(f"cachehome-v1/{BUILD}/packs/{lab.pack('p', 'a')}.tar.zst")
    generation, ours = lab.publish(c="3")
    assert ours
    assert lab.names() == {"b", "c"}
    assert generation.number == 4  # 3 was committed before it was noticed
    lab.publish(a="1")
    assert lab.names() == {"a", "b", "c"}


def left_by_a_killed_writer(lab: Lab, memory: MemoryBackend) -> gc.Rules:
    """The pack of a="1", unnamed and condemned for long enough."""
    new, stored = addition({"a": b"1"})
    memory.put(f"cachehome-v1/{BUILD}/{new.packs[0].name}", stored)
    rules = gc.Rules(2, 100.0, 1e9)
    gc.prune(lab.store, BUILD, rules)
    assert memory.list(f"cachehome-v1/{BUILD}/condemned") == [new.packs[0].sha256]
    memory.now += 200
    return rules


def test_a_renamed_pack_is_a_pack(lab: Lab, memory: MemoryBackend, tmp_path: Path) -> None:
    new, stored = addition({"a": b"1", "b": b"2"})
    pack, source = renamed(new.packs[0], stored)
    assert hashlib.sha256(source).hexdigest() == pack.sha256 != new.packs[0].sha256
    path = tmp_path / "pack.tar.zst"
    path.write_bytes(stored)
    other, _ = renamed(new.packs[0], str(path))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == other.sha256 != pack.sha256
    if shutil.which("tar") and shutil.which("zstd"):
        listed = subprocess.run(["tar", "--zstd", "-tf", path], check=True, capture_output=True, text=True)
        assert (listed.stdout.split(), listed.stderr) == (["stress/a", "stress/b"], "")
    left_by_a_killed_writer(lab, memory)
    lab.publish(a="1")
    newest = lab.store.newest(BUILD, "p")
    assert newest is not None
    assert len(newest.manifest.packs[0].frames) == 2
    check(lab.store, newest.manifest)


def test_a_listing_of_packs_that_lags_is_no_loss(lab: Lab) -> None:
    lab.publish(a="1")
    assert (
        lab.publish(faulty(lab, Fault("lost", 0, "list", part="/packs", times=1000))[0], b="2")[0].number == 2
    )
    assert lab.names() == {"a", "b"}


# -- lines ------------------------------------------------------------------------------------------------------


@pytest.fixture
def remembering(lab: Lab, tmp_path: object) -> Store:
    return Store(lab.backend, memory=Memory(str(tmp_path), "memory:"))


def test_a_shortened_line_is_refused_and_older_generations_stay_usable(
    lab: Lab, memory: MemoryBackend, remembering: Store
) -> None:
    for name in ("a", "b", "c"):
        lab.publish(**{name: name})
    newest = remembering.newest(BUILD, "p")
    assert newest is not None
    assert remembering.read(BUILD, "p", 1, highest=3).number == 1
    saved = memory.names.pop(f"{G}/00000003")
    with pytest.raises(IntegrityError, match="shortened") as caught:
        remembering.newest(BUILD, "p")
    assert caught.value.reason == "line_shortened"
    with pytest.raises(IntegrityError, match="shortened"):
        lab.publish(remembering, d="4")
    assert remembering.memory is not None
    assert remembering.memory.path(newest.manifest.line) in str(caught.value)
    memory.names[f"{G}/00000003"] = saved
    assert lab.publish(remembering, d="4")[0].number == 4


def test_a_listing_that_lags_behind_what_was_seen_is_no_shortened_line(lab: Lab, remembering: Store) -> None:
    lab.publish(a="1")
    lab.publish(b="2")
    remembering.newest(BUILD, "p")
    assert remembering.read(BUILD, "p", 1, highest=1).number == 1


def test_copies_of_a_store_end_where_they_were_copied(tmp_path: Path) -> None:
    """Both are used by one node; what an older version noted, of whatever store, is believed until the first note."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(mode=0o700)
    node = Settings(enabled=str(tmp_path / "node"))
    lab = Lab(PosixBackend(str(first)))
    lab.publish(a="1")
    shutil.copytree(first, second, copy_function=shutil.copy2)
    second.chmod(0o700)
    lab.publish(b="2")
    newest = Store.open(str(first), node).newest(BUILD, "p")
    assert newest is not None
    assert newest.number == 2
    copied = Store.open(f"file://{second}", node).newest(BUILD, "p")
    assert copied is not None
    assert copied.number == 1
    (tmp_path / "link").symlink_to(first)  # by another path it is the same store
    (first / f"{G}/00000002").unlink()
    with pytest.raises(IntegrityError, match="this node has seen 2"):
        Store.open(str(tmp_path / "link"), node).newest(BUILD, "p")
    lines = tmp_path / "node" / "lines"
    for path in lines.iterdir():
        path.unlink()
    old = lines / newest.manifest.line
    old.write_bytes(b"2\n")
    for place in (first, second):
        with pytest.raises(IntegrityError, match=f"remove {old}$"):
            Store.open(str(place), node).newest(BUILD, "p")
    lab.publish(b="2")
    lab.publish(c="3")
    assert Store.open(str(first), node).newest(BUILD, "p") is not None
    assert {path.name.partition("-")[0] for path in lines.iterdir()} == {newest.manifest.line}


def test_a_new_line_is_not_a_shortened_one(lab: Lab, memory: MemoryBackend, remembering: Store) -> None:
    for name in ("a", "b", "c"):
        lab.publish(**{name: name})
    remembering.newest(BUILD, "p")
    for name in list(memory.names):
        memory.delete(name)
    lab.publish(remembering, a="1")
    assert remembering.newest(BUILD, "p") is not None


def test_where_nothing_is_remembered_nothing_is_refused(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    lab.publish(b="2")
    memory.delete(f"{G}/00000002")
    for place in ("/proc/nowhere", "/dev/null/x"):
        store = Store(memory, memory=Memory(place, "memory:"))
        assert store.newest(BUILD, "p") is not None


def test_memory_of_numbers_that_were_only_listed_is_not_kept(
    lab: Lab, memory: MemoryBackend, remembering: Store
) -> None:
    lab.publish(a="1")
    memory.put(f"{G}/99999999", b"planted")
    remembering.newest(BUILD, "p")
    memory.delete(f"{G}/99999999")
    assert remembering.newest(BUILD, "p") is not None


# -- profiles -----------------------------------------------------------------------------------------------------


def test_a_profile_that_starts_from_another_one_counts_its_own_generations(lab: Lab) -> None:
    for name in ("a", "b", "c"):
        lab.publish(**{name: name})
    base = lab.store.fallback(BUILD, "q")
    assert base is not None
    new, stored = addition({"d": b"4"})
    lab.store.backend.put(f"{BUILD}/{new.packs[0].name}", stored)
    new = new._replace(base=base.manifest)
    generation, _ = lab.store.commit(BUILD, "q", new, deadline=time.monotonic() + 5)
    assert generation.number == 1
    assert {entry.since for entry in generation.manifest.entries.values()} == {1}
    assert generation.manifest.line != base.manifest.line


def test_a_generation_of_another_place_is_refused(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    lab.publish(b="2")
    data = memory.get(f"{G}/00000001")
    memory.put(f"{G}/00000003", data)
    with pytest.raises(IntegrityError, match="belongs elsewhere"):
        lab.store.read(BUILD, "p", 3)
    assert lab.names() == {"a", "b"}
    with pytest.raises(NotInStore):
        lab.store.read(BUILD, "p", 9)
