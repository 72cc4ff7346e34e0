"""What a publish need not look at again, and that it looks where something has happened."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachehome import families
from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store import Store
from cachehome.sync import scan
from cachehome.sync.live import Live
from cachehome.sync.publish import publish
from cachehome.sync.record import Record
from cachehome.sync.restore import restore
from cachehome.sync.source import Source

FIRST, SECOND = "A" * 52, "B" * 52


def kernel(live: Path, name: str, binary: bytes = b"bytes of a kernel") -> Path:
    """What Triton leaves."""
    tree = live / name
    tree.mkdir(parents=True)
    texts = {"k.cubin": binary, "k.json": b"{}", "k.ttir": b"module {}"}
    for child, text in texts.items():
        (tree / child).write_bytes(text)
    paths = {child: str(tree / child) for child in texts}
    (tree / "__grp__k.json").write_text(json.dumps({"child_paths": paths}))
    return tree


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A live directory with two kernels. What happened a tick ago counts as long ago."""
    monkeypatch.setattr(scan, "_TICK", 20_000_000)
    path = tmp_path / "live"
    kernel(path, FIRST)
    kernel(path, SECOND)
    time.sleep(0.05)
    return path


def settled(live: Path) -> set[str]:
    time.sleep(0.05)  # what a test has just done is another tick's
    source = Source(families.catalogue()["triton"], Live(str(live)), None)
    source.scan()
    return set(source.settled)


@pytest.fixture
def published(live: Path, settings: Settings, identity: Identity) -> Callable[[], Record]:
    def again() -> Record:
        return publish(settings, identity, {"triton": str(live)}, adopt=True)

    assert again().reason == "published"
    assert settled(live) == {FIRST, SECOND}
    return again


def test_nothing_changed_is_nothing_to_look_at(live: Path, published: Callable[[], Record]) -> None:
    before = (live / ".cachehome/files").stat().st_mtime_ns
    assert published().reason == "unchanged"
    assert (live / ".cachehome/files").stat().st_mtime_ns == before


def replaced(tree: Path) -> None:
    """As Triton does it."""
    (tree / "tmp").write_bytes(b"other bytes here!")
    os.replace(tree / "tmp", tree / "k.cubin")


def grown(tree: Path) -> None:
    (tree / "k.ptx").write_text("text")


def shrunk(tree: Path) -> None:
    (tree / "k.ttir").unlink()


def made_anew(tree: Path) -> None:
    shutil.rmtree(tree)
    kernel(tree.parent, tree.name, b"other bytes here!")


def copied_over(tree: Path) -> None:
    """A time of modification is easily set; the time of change is not."""
    found = tree.stat()
    replaced(tree)
    os.utime(tree, ns=(found.st_atime_ns, found.st_mtime_ns))


def gone(tree: Path) -> None:
    shutil.rmtree(tree)


@pytest.mark.parametrize("happen", [replaced, grown, shrunk, made_anew, copied_over, gone])
def test_what_has_happened_is_looked_at(
    live: Path, published: Callable[[], Record], happen: Callable[[Path], None]
) -> None:
    happen(live / SECOND)
    assert settled(live) == {FIRST}


def test_other_bytes_under_a_name_are_counted_as_ever(live: Path, published: Callable[[], Record]) -> None:
    replaced(live / SECOND)
    time.sleep(0.05)
    found = published()
    assert (found.reason, found.details["conflicts"]) == ("unchanged", 1)
    assert published().details["conflicts"] == 1, "also where nothing has happened since"


def test_what_the_store_lost_comes_from_what_was_not_looked_at(
    live: Path, published: Callable[[], Record], store: Path, settings: Settings, identity: Identity, tmp_path: Path
) -> None:  # fmt: skip
    for pack in store.rglob("*.tar.zst"):
        pack.unlink()
    assert published().reason == "mended"
    again = tmp_path / "again"
    assert restore(settings, identity, {"triton": str(again)}).entries == 2
    assert (again / FIRST / "k.cubin").read_bytes() == b"bytes of a kernel"
    assert (again / FIRST / "k.cubin").stat().st_mode & 0o777 == 0o600


def test_another_store_gets_it_all(
    live: Path, published: Callable[[], Record], tmp_path: Path, identity: Identity
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    found = publish(Settings(store=(str(other),)), identity, {"triton": str(live)})
    assert (found.reason, found.entries, found.files) == ("published", 2, 8)
    manifest = Store.open(str(other)).read(identity.build_key, identity.profile_key, 1).manifest
    modes = {file.mode for entry in manifest.entries.values() for file in entry.files}
    assert modes == {(live / FIRST / "k.cubin").stat().st_mode & 0o777}


def test_what_has_just_changed_is_looked_at_again(
    live: Path, published: Callable[[], Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change once more within the same tick of the file system's clock."""
    monkeypatch.setattr(scan, "_TICK", 60_000_000_000)
    kernel(live, "C" * 52)
    assert published().reason == "published"
    assert settled(live) == {FIRST, SECOND}


def test_a_slim_copy_is_settled_too(
    live: Path, published: Callable[[], Record], tmp_path: Path, settings: Settings, identity: Identity
) -> None:
    slim = tmp_path / "slim"
    assert restore(settings.replace(slim="restore"), identity, {"triton": str(slim)}).files == 6
    time.sleep(0.05)
    for _ in range(2):
        assert publish(settings, identity, {"triton": str(slim)}).reason == "unchanged"
    assert settled(slim) == {FIRST, SECOND}


def test_a_damaged_table_costs_a_look(live: Path, published: Callable[[], Record]) -> None:
    table = live / ".cachehome/files"
    good = table.read_bytes()
    for bad in (b"", good[: len(good) // 2], good.replace(b"k.cubin", b"k.other"), good.replace(b" ", b"  ")):
        table.write_bytes(bad)
        assert published().reason == "unchanged"


def test_a_damaged_table_is_no_reason_to_fail(
    live: Path, published: Callable[[], Record], store: Path, settings: Settings, identity: Identity, tmp_path: Path
) -> None:  # fmt: skip
    """A tree that has not changed, and of which the table tells nonsense."""
    path = live / ".cachehome/files"
    told = path.read_text()
    assert told.count("/k.cubin") == 2
    for number, damaged in enumerate(
        (told.replace("/k.cubin", "/k.cubit"), told.replace(" 384", " x84"), told[:-9])
    ):
        path.write_text(damaged)
        for pack in store.rglob("*.tar.zst"):
            pack.unlink()
        found = published()
        assert found.reason == "mended", (number, found)
        again = tmp_path / str(number)
        assert restore(settings, identity, {"triton": str(again)}).files == 8
        assert (again / FIRST / "k.cubin").read_bytes() == b"bytes of a kernel"
        time.sleep(0.05)
        assert published().reason == "unchanged", number
        assert settled(live) == {FIRST, SECOND}, number


def test_what_comes_into_an_empty_directory_is_seen(live: Path, published: Callable[[], Record]) -> None:
    """The time of change of the tree does not tell of it."""
    (live / FIRST / "deeper").mkdir()
    time.sleep(0.05)
    assert published().reason == "unchanged"
    assert settled(live) == {SECOND}
    (live / FIRST / "deeper" / "k.cubin").write_bytes(b"more")
    time.sleep(0.05)
    assert settled(live) == {SECOND}


def test_a_kernel_that_holds_another_ones_group_stays_here(
    live: Path, store: Path, settings: Settings, identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Nobody could say what its children are called elsewhere. One that was published all the same harms no other."""
    shutil.copytree(live / SECOND, live / FIRST / "copy")
    with monkeypatch.context() as before:
        before.setattr("cachehome.sync.portable.is_misplaced", lambda *_: False)
        assert publish(settings, identity, {"triton": str(live)}, adopt=True).entries == 2
    again = tmp_path / "again"
    record = restore(settings, identity, {"triton": str(again)})
    assert (record.outcome, record.entries, record.details["skipped"]) == ("hit", 1, {"unfit": 1})
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    record = publish(Settings(store=(str(other),)), identity, {"triton": str(live)})
    assert (record.reason, record.entries) == ("published", 1)
    assert list(record.details["left_out"]) == [f"triton/{FIRST}"]


@pytest.mark.parametrize("known", ["a tree", "a file"])
def test_a_table_that_is_wrong_heals(live: Path, published: Callable[[], Record], known: str) -> None:
    """One digit of a hash, of a kernel that has not changed."""
    table = live / ".cachehome/files"
    if known == "a file":
        (live / FIRST / "below").mkdir()
        (live / FIRST / "below/more").write_text("text")
        assert published().reason == "published"
    text = table.read_text()
    right = hashlib.sha256((live / FIRST / "k.cubin").read_bytes()).hexdigest()
    assert right in text
    table.write_text(text.replace(right, ("1" if right[0] == "0" else "0") + right[1:]))
    for _ in range(3):
        found = published()
        assert (found.reason, found.details.get("conflicts")) == ("unchanged", None)
        assert right in table.read_text()
