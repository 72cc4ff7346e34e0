from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store import Store
from cachehome.sync.publish import publish
from cachehome.sync.restore import restore

PYTHON = "x = 1\n"


def fill(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / "ab" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def live(settings: Settings, identity: Identity, tmp_path: Path) -> Path:
    """An empty live directory of Inductor's that a restore has stamped."""
    path = tmp_path / "live"
    restore(settings, identity, {"inductor": str(path)})
    return path


def names(store: Path, identity: Identity, number: int) -> set[str]:
    manifest = Store.open(str(store)).read(identity.build_key, identity.profile_key, number).manifest
    return {name for _, name in manifest.entries}


def test_only_what_is_new_is_packed(store: Path, settings: Settings, identity: Identity, live: Path) -> None:
    fill(live, one=PYTHON, two=PYTHON)
    first = publish(settings, identity, {"inductor": str(live)})
    assert (first.reason, first.generation, first.entries) == ("published", 1, 2)
    again = publish(settings, identity, {"inductor": str(live)})
    assert (again.outcome, again.reason, again.generation, again.files) == ("hit", "unchanged", 1, 0)
    fill(live, three="y = 2\n")
    second = publish(settings, identity, {"inductor": str(live)})
    assert (second.generation, second.entries) == (2, 1)
    assert names(store, identity, 2) == {"ab/one.py", "ab/two.py", "ab/three.py"}
    manifest = Store.open(str(store)).read(identity.build_key, "default", 2).manifest
    assert {entry.name: entry.since for entry in manifest.entries.values()} == {
        "ab/one.py": 1,
        "ab/two.py": 1,
        "ab/three.py": 2,
    }


def test_a_pack_is_a_tar_that_everybody_reads(
    store: Path, settings: Settings, identity: Identity, live: Path
) -> None:
    long_name = "k" * 120
    fill(live, one=PYTHON, **{long_name: "z = 3\n", "é": "e = 1\n"})
    publish(settings, identity, {"inductor": str(live)})
    (pack,) = store.glob("cachehome-v1/*/packs/*.tar.zst")
    listing = subprocess.run(
        ["tar", "--zstd", "-tf", pack],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    assert (
        sorted(listing.stdout.split())
        == sorted(["inductor/ab/one.py", f"inductor/ab/{long_name}.py", "inductor/ab/\\303\\251.py"])
        or "é" in listing.stdout
    )
    out = live.parent / "out"
    out.mkdir()
    subprocess.run(["tar", "--zstd", "-xf", pack, "-C", out], check=True)
    assert (out / "inductor" / "ab" / f"{long_name}.py").read_text() == "z = 3\n"


def test_the_same_entries_give_the_same_pack(
    settings: Settings, identity: Identity, live: Path, tmp_path: Path
) -> None:
    fill(live, one=PYTHON, two="y = 2\n")
    copy = tmp_path / "elsewhere"
    shutil.copytree(live / "ab", copy / "ab")
    packs = []
    for number, origin in enumerate((live, copy)):
        store = tmp_path / f"store{number}"
        store.mkdir(mode=0o700)
        publish(settings.replace(store=(str(store),)), identity, {"inductor": str(origin)}, adopt=True)
        packs.append({path.name for path in store.glob("cachehome-v1/*/packs/*")})
    assert packs[0] == packs[1]


def test_two_workers_merge_into_one_line(
    store: Path, settings: Settings, identity: Identity, tmp_path: Path
) -> None:
    for number in range(3):
        origin = fill(tmp_path / f"rank{number}", shared=PYTHON, **{f"own{number}": f"r = {number}\n"})
        publish(settings, identity, {"inductor": str(origin)}, adopt=True)
    assert names(store, identity, 3) == {"ab/shared.py", "ab/own0.py", "ab/own1.py", "ab/own2.py"}
    restore(settings, identity, {"inductor": str(tmp_path / "copy")})
    assert (tmp_path / "copy" / "ab" / "own1.py").read_text() == "r = 1\n"


def test_other_bytes_under_a_name_are_counted_and_the_first_stay(
    settings: Settings, identity: Identity, tmp_path: Path
) -> None:
    publish(settings, identity, {"inductor": str(fill(tmp_path / "a", one=PYTHON))}, adopt=True)
    record = publish(settings, identity, {"inductor": str(fill(tmp_path / "b", one="x = 2\n"))}, adopt=True)
    assert (record.reason, record.details["conflicts"]) == ("unchanged", 1)
    restore(settings, identity, {"inductor": str(tmp_path / "copy")})
    assert (tmp_path / "copy" / "ab" / "one.py").read_text() == PYTHON


def test_growing_entries_are_merged(
    settings: Settings, identity: Identity, live: Path, tmp_path: Path
) -> None:
    def timings(root: Path, text: str) -> dict[str, str]:
        (root / "cache").mkdir(parents=True, exist_ok=True)
        (root / "cache" / "0ab").write_text(text)
        return {"inductor": str(root)}

    publish(settings, identity, timings(live, '{"mm": {"a": 1}}'))
    record = publish(settings, identity, timings(tmp_path / "b", '{"mm": {"b": 2}}'), adopt=True)
    assert (record.reason, record.generation) == ("published", 2)
    # What holds nothing new is no reason for a generation.
    record = publish(settings, identity, timings(tmp_path / "b", '{"mm": {"b": 2}}'))
    assert (record.reason, record.generation) == ("unchanged", 2)
    record = publish(settings, identity, timings(live, '{"mm": {"a": 3}, "addmm": {}}'))
    assert record.generation == 3
    restore(settings, identity, {"inductor": str(tmp_path / "copy")})
    found = json.loads((tmp_path / "copy" / "cache" / "0ab").read_text())
    assert found == {"mm": {"a": 1, "b": 2}, "addmm": {}}, "the first timing of a key stays"


def test_growing_entries_of_no_known_format_are_replaced(
    settings: Settings, identity: Identity, live: Path, tmp_path: Path
) -> None:
    (live / "cache").mkdir()
    for text in ("first", "second"):
        (live / "cache" / "0ab").write_text(text)
        publish(settings, identity, {"inductor": str(live)})
    restore(settings, identity, {"inductor": str(tmp_path / "copy")})
    assert (tmp_path / "copy" / "cache" / "0ab").read_text() == "second"


def test_an_unstamped_directory_is_nobodys(settings: Settings, identity: Identity, tmp_path: Path) -> None:
    live = fill(tmp_path / "live", old=PYTHON)
    record = publish(settings, identity, {"inductor": str(live)})
    assert (record.outcome, record.reason, record.details["unclaimed"]) == ("miss", "never_stamped", 1)
    # A restore claims what comes after it, not what was there.
    restore(settings, identity, {"inductor": str(live)})
    time.sleep(0.02)
    fill(live, new="y = 2\n")
    record = publish(settings, identity, {"inductor": str(live)})
    assert (record.reason, record.entries, record.details["unclaimed"]) == ("published", 1, 1)
    record = publish(settings, identity, {"inductor": str(live)}, adopt=True)
    assert (record.generation, record.entries) == (2, 1)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("ab/broken.py", b"def f(:\n"),
        ("ab/empty.py", b""),
        ("ab/list.best_config", b"[1]"),
        ("ab/ckernel.main.so", b"\x7fELF\2\1\1" + bytes(100)),
        ("fxgraph/ab/key/" + "a" * 51, b"not these bytes"),
    ],
)
def test_broken_files_are_left_out(
    store: Path, settings: Settings, identity: Identity, live: Path, name: str, data: bytes
) -> None:
    fill(live, one=PYTHON)
    (live / name).parent.mkdir(parents=True, exist_ok=True)
    (live / name).write_bytes(data)
    record = publish(settings, identity, {"inductor": str(live)})
    assert (record.reason, record.entries) == ("published", 1)
    assert len(record.details["left_out"]) == 1
    assert names(store, identity, 1) == {"ab/one.py"}


def test_only_broken_files_is_no_generation(
    store: Path, settings: Settings, identity: Identity, live: Path
) -> None:
    fill(live, broken="def f(:\n")
    record = publish(settings, identity, {"inductor": str(live)})
    assert (record.outcome, record.reason) == ("miss", "nothing_sound")
    assert not list(store.glob("cachehome-v1/*/packs/*"))


def test_a_kernel_without_a_child_is_left_out(
    settings: Settings, identity: Identity, triton_cache: Path
) -> None:
    next(triton_cache.glob("*/*.cubin")).unlink()
    record = publish(settings, identity, {"triton": str(triton_cache)}, adopt=True)
    assert record.entries == 3
    assert list(record.details["left_out"].values()) != []


def test_a_library_whose_lock_is_held_waits(settings: Settings, identity: Identity, live: Path) -> None:
    source = fill(live, one=PYTHON) / "ab" / "ckernel.cpp"
    source.write_text('extern "C" int kernel() { return 1; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", source.with_suffix(".so"), source], check=True)
    (live / "locks").mkdir()
    with open(live / "locks" / "ckernel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = publish(settings, identity, {"inductor": str(live)})
        assert (record.entries, list(record.details["left_out"])) == (1, ["inductor/ab/ckernel"])
    record = publish(settings, identity, {"inductor": str(live)})
    assert (record.generation, record.entries) == (2, 1)


def test_a_lost_pack_heals(
    store: Path, settings: Settings, identity: Identity, live: Path, tmp_path: Path
) -> None:
    fill(live, one=PYTHON)
    publish(settings, identity, {"inductor": str(live)})
    for pack in store.glob("cachehome-v1/*/packs/*"):
        pack.unlink()
    record = publish(settings, identity, {"inductor": str(live)})
    assert (record.reason, record.generation, record.entries) == ("mended", 1, 1)
    assert restore(settings, identity, {"inductor": str(tmp_path / "copy")}).outcome == "hit"


def test_a_profile_starts_from_another_ones_packs(
    store: Path, settings: Settings, identity: Identity, live: Path, tmp_path: Path
) -> None:
    fill(live, one=PYTHON, two="y = 2\n")
    publish(settings, identity, {"inductor": str(live)})
    other = Identity(identity.build, {"name": "train"})
    restore(settings, other, {"inductor": str(tmp_path / "copy")})
    record = publish(settings, other, {"inductor": str(tmp_path / "copy")})
    assert (record.outcome, record.generation, record.fetched_bytes) == ("hit", 1, 0)
    assert names(store, other, 1) == {"ab/one.py", "ab/two.py"}
    assert len(list(store.glob("cachehome-v1/*/packs/*"))) == 1


def test_slim_publish_does_not_store_what_is_never_read(
    store: Path, settings: Settings, identity: Identity, triton_cache: Path
) -> None:
    record = publish(settings.replace(slim="publish"), identity, {"triton": str(triton_cache)}, adopt=True)
    manifest = Store.open(str(store)).read(identity.build_key, "default", 1).manifest
    assert record.entries == 4
    assert all(entry.slim for entry in manifest.entries.values())
    assert not any(
        file.suffix.endswith(".ptx") for entry in manifest.entries.values() for file in entry.files
    )


def test_slim_publish_of_a_kernel_with_texts_only(
    settings: Settings, identity: Identity, triton_cache: Path
) -> None:
    """A compiler that was killed early leaves one behind: there is nothing to publish of it."""
    kernel = next(path for path in sorted(triton_cache.iterdir()) if len(path.name) == 52)
    for file in kernel.iterdir():
        if file.suffix not in (".ttir", ".source"):
            file.unlink()
    record = publish(settings.replace(slim="publish"), identity, {"triton": str(triton_cache)}, adopt=True)
    assert (record.outcome, record.entries) == ("hit", 3)
    assert list(record.details["left_out"]) == [f"triton/{kernel.name}"]


def test_a_whole_copy_replaces_a_slim_one(
    store: Path, settings: Settings, identity: Identity, triton_cache: Path, tmp_path: Path
) -> None:
    where = {"triton": str(triton_cache)}
    publish(settings.replace(slim="publish"), identity, where, adopt=True)
    assert publish(settings.replace(slim="publish"), identity, where).reason == "unchanged"
    whole = publish(settings, identity, where)
    assert (whole.reason, whole.entries) == ("published", 4)
    manifest = Store.open(str(store)).read(identity.build_key, "default", 2).manifest
    assert not any(entry.slim for entry in manifest.entries.values())
    assert publish(settings, identity, where).reason == "unchanged"
    restore(settings.replace(slim="restore"), identity, {"triton": str(tmp_path / "slim")})
    assert publish(settings, identity, {"triton": str(tmp_path / "slim")}).reason == "unchanged"


def test_a_directory_published_too_early_is_completed(
    store: Path, settings: Settings, identity: Identity, tmp_path: Path
) -> None:
    live = tmp_path / "vllm"
    restore(settings, identity, {"vllm": str(live)})
    part = live / "torch_compile_cache" / "0123456789" / "rank_0_0" / "backbone"
    part.mkdir(parents=True)
    (part / "artifact").write_bytes(b"graph")
    publish(settings, identity, {"vllm": str(live)})
    (part / "vllm_compile_cache.py").write_text("{}")
    (part / "cache_key_factors.json").write_text('{"env": {}}')
    assert publish(settings, identity, {"vllm": str(live)}).reason == "published"
    assert publish(settings, identity, {"vllm": str(live)}).reason == "unchanged"
    restore(settings, identity, {"vllm": str(tmp_path / "copy")})
    copied = {path.name for path in (tmp_path / "copy").rglob("*/backbone/*")}
    assert copied == {"artifact", "vllm_compile_cache.py"}
    (part / "artifact").unlink()
    assert publish(settings, identity, {"vllm": str(live)}).reason == "unchanged", "less is no progress"


@pytest.mark.parametrize("name", ["a\x01b.ttir", "a\\b.ttir", os.fsdecode(b"\xff.ttir")])
def test_a_kernel_that_got_a_name_no_manifest_may_hold_stays_as_it_was(
    settings: Settings, identity: Identity, triton_cache: Path, tmp_path: Path, name: str
) -> None:
    where = {"triton": str(triton_cache)}
    publish(settings, identity, where, adopt=True)
    kernel = next(path for path in sorted(triton_cache.iterdir()) if len(path.name) == 52)
    for more in ("more.json", name):
        (kernel / more).write_text("{}")
    record = publish(settings, identity, where)
    assert (record.reason, record.generation) == ("unchanged", 1)
    assert list(record.details["left_out"]) == [f"triton/{kernel.name}"]
    restored = restore(settings, identity, {"triton": str(tmp_path / "copy")})
    assert (restored.outcome, restored.details.get("rejected")) == ("hit", None)


def test_a_disk_with_no_room_for_the_last_bytes_of_a_pack(
    store: Path, settings: Settings, identity: Identity, live: Path
) -> None:
    """The write that meets the end of a disk is short, and no error."""
    (live / "ab").mkdir()
    (live / "ab" / "k.cpp").write_bytes(os.urandom(100_000))
    size = publish(settings, identity, {"inductor": str(live)}).fetched_bytes
    shutil.rmtree(store / "cachehome-v1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 5, before[1]))
        record = publish(settings, identity, {"inductor": str(live)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert record.outcome == "unavailable"
    assert not list(store.glob("cachehome-v1/*/packs/*"))


def test_switches_and_limits(settings: Settings, identity: Identity, live: Path) -> None:
    fill(live, one=PYTHON)
    where = {"inductor": str(live)}
    assert publish(settings.replace(publish=False), identity, where).reason == "publish_off"
    assert publish(settings.replace(store=()), identity, where).reason == "no_store"
    assert publish(settings.replace(max_storage_bytes=0), identity, where).reason == "storage_limit"
    publish(settings, identity, where)
    fill(live, two="y = 2\n")
    record = publish(settings.replace(max_storage_bytes=10), identity, where)
    assert (record.outcome, record.reason) == ("disabled", "storage_limit")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store_is_one_line(
    store: Path, settings: Settings, identity: Identity, live: Path
) -> None:
    fill(live, one=PYTHON)
    store.chmod(0o500)
    try:
        record = publish(settings, identity, {"inductor": str(live)})
    finally:
        store.chmod(0o700)
    assert (record.outcome, record.reason) == ("unavailable", "store_unavailable")
    assert "\n" not in record.details["message"]


def test_nothing_local_is_nothing_to_do(settings: Settings, identity: Identity, tmp_path: Path) -> None:
    record = publish(settings, identity, {"inductor": str(tmp_path / "absent")})
    assert (record.outcome, record.reason) == ("miss", "nothing_to_publish")
