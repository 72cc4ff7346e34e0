from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachehome.errors import ConfigError
from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store import Store
from cachehome.sync import publish as publish_module
from cachehome.sync.publish import publish
from cachehome.sync.restore import restore

IR = (".ttir", ".ttgir", ".llir", ".ptx", ".source")


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".cachehome" not in path.parts
    }


@pytest.fixture
def published(settings: Settings, identity: Identity, triton_cache: Path, store: Path) -> Path:
    """The store, with one generation."""
    assert publish(settings, identity, {"triton": str(triton_cache)}, adopt=True).reason == "published"
    return store


@pytest.fixture
def again(settings: Settings, identity: Identity, tmp_path: Path) -> Callable[..., object]:
    """Restore into a new live directory; the record."""

    def run(name: str = "copy", **changes: object) -> object:
        return restore(settings.replace(**changes), identity, {"triton": str(tmp_path / name)})

    return run


def test_what_was_published_comes_back(
    published: Path, settings: Settings, identity: Identity, triton_cache: Path, tmp_path: Path
) -> None:
    live = tmp_path / "copy"
    record = restore(settings, identity, {"triton": str(live)})
    assert (record.outcome, record.reason, record.generation) == ("hit", "restored", 1)
    assert record.entries == 4
    assert record.details["families"] == {"triton": 4}
    before, after = contents(triton_cache), contents(live)
    assert before.keys() == after.keys()
    assert record.files == len(after)
    for name, data in after.items():
        if "__grp__" in name:
            paths = json.loads(data)["child_paths"]
            assert all(path == str(live / Path(name).parent / child) for child, path in paths.items())
            assert list(paths) == list(json.loads(before[name])["child_paths"])
        else:
            assert data == before[name]
    assert record.details["relocated"] == [str(triton_cache)]
    for path in live.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


_WARM = """
import os, sys
hits = []
import triton
from triton import knobs
knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
from cachehome.demo.kernels import KERNELS
for kernel in KERNELS[:4]:
    assert kernel.compile().asm["cubin"]
print(hits.count(True), hits.count(False))
"""


@pytest.mark.parametrize("slim", ["off", "restore"])
def test_triton_uses_what_was_restored(
    published: Path, again: Callable[..., object], tmp_path: Path, slim: str
) -> None:
    again(slim=slim)
    shutil.rmtree(tmp_path / "origin")
    environ = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "copy")}
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _WARM], env=environ, capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ["4", "0"]


def test_slim_leaves_what_a_warm_start_never_reads(
    published: Path, again: Callable[..., object], tmp_path: Path
) -> None:
    full = again("full")
    slim = again("slim", slim="restore")
    names = contents(tmp_path / "slim")
    assert not any(name.endswith(IR) for name in names)
    assert slim.entries == full.entries
    assert slim.files < full.files
    assert slim.fetched_bytes < full.fetched_bytes
    for name, data in names.items():
        if "__grp__" in name:
            assert all(Path(path).exists() for path in json.loads(data)["child_paths"].values())


def test_a_slim_copy_is_neither_new_nor_a_conflict(
    published: Path, settings: Settings, identity: Identity, again: Callable[..., object], tmp_path: Path
) -> None:
    again("slim", slim="restore")
    record = publish(settings, identity, {"triton": str(tmp_path / "slim")})
    assert (record.outcome, record.reason, record.generation) == ("hit", "unchanged", 1)
    assert "conflicts" not in record.details


def test_a_second_restore_finds_everything_there(published: Path, again: Callable[..., object]) -> None:
    again()
    record = again()
    assert (record.outcome, record.reason, record.files) == ("hit", "already_there", 0)
    assert record.details["skipped"] == {"already_there": 4}


def test_an_empty_store_is_a_miss(settings: Settings, again: Callable[..., object]) -> None:
    record = again()
    assert (record.outcome, record.reason) == ("miss", "no_published_generation")


def test_another_build_is_a_miss(published: Path, settings: Settings, tmp_path: Path) -> None:
    other = Identity({"test": 2, "environment": {"TRITON_X": "\x1b" + "x" * 99}}, {"name": "default"})
    record = restore(settings, other, {"triton": str(tmp_path / "copy")})
    assert (record.outcome, record.reason) == ("miss", "no_published_generation")
    told = record.details["message"]
    assert "test: 1 became 2" in told
    assert f"TRITON_X: unset became '\\x1b{'x' * 55}..." in told
    with open(tmp_path / "copy" / ".cachehome" / "restored", "rb") as file:
        assert json.load(file)["details"]["message"] == told


def test_another_profile_falls_back_and_says_so(published: Path, settings: Settings, tmp_path: Path) -> None:
    other = Identity({"test": 1}, {"name": "train"})
    record = restore(settings, other, {"triton": str(tmp_path / "a")})
    assert (record.outcome, record.details["profile_fallback"]) == ("hit", "default")
    record = restore(settings.replace(profile_fallback="none"), other, {"triton": str(tmp_path / "b")})
    assert (record.outcome, record.reason) == ("miss", "no_published_generation")


def test_a_damaged_generation_of_another_profile_is_no_plain_miss(
    published: Path, settings: Settings, tmp_path: Path
) -> None:
    truncate(manifests(published)[0])
    other = Identity({"test": 1}, {"name": "train"})
    record = restore(settings, other, {"triton": str(tmp_path / "a")})
    assert (record.outcome, record.reason) == ("rejected", "manifest_damaged")
    assert record.details["rejected"][0]["profile"] == "default"


def test_another_host_is_never_restored(
    settings: Settings,
    identity: Identity,
    triton_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The same build hash under another host tag: an identity that was made by hand, or handed over.
    monkeypatch.setattr(publish_module, "host_tag", lambda _: "cp311-x86_64-00000000/torch-2.13.0")
    publish(settings, identity, {"triton": str(triton_cache)}, adopt=True)
    record = restore(settings, identity, {"triton": str(tmp_path / "copy")})
    assert (record.outcome, record.reason) == ("miss", "other_host")
    assert contents(tmp_path / "copy") == {}


def test_settings_that_switch_it_off(
    published: Path, again: Callable[..., object], identity: Identity
) -> None:
    assert again(restore=False).reason == "restore_off"
    assert again(store=()).reason == "no_store"
    with pytest.raises(ConfigError):
        again(store=("s3://bucket/x",))


# -- damage ----------------------------------------------------------------------------------------------


def packs(store: Path) -> list[Path]:
    return sorted(store.glob("cachehome-v1/*/packs/*"))


def manifests(store: Path) -> list[Path]:
    return sorted(store.glob("cachehome-v1/*/profiles/*/generations/*"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, empty, flip, remove])
def test_a_damaged_pack_is_rejected_whole(
    published: Path, again: Callable[..., object], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for pack in packs(published):
        damage(pack)
    record = again()
    assert (record.outcome, record.reason) == (
        "rejected",
        "pack_missing" if damage is remove else "pack_damaged",
    )
    assert contents(tmp_path / "copy") == {}


def test_swapped_packs_are_rejected(published: Path, again: Callable[..., object], tmp_path: Path) -> None:
    one, two = packs(published)
    one.rename(two.with_suffix(".x"))
    two.rename(one)
    two.with_suffix(".x").rename(two)
    record = again()
    assert (record.outcome, record.reason) == ("rejected", "pack_damaged")
    assert contents(tmp_path / "copy") == {}


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_a_damaged_manifest_is_rejected(
    published: Path, again: Callable[..., object], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(manifests(published)[0])
    record = again()
    assert (record.outcome, record.reason) == ("rejected", "manifest_damaged")
    assert contents(tmp_path / "copy") == {}


def test_a_manifest_from_elsewhere_is_rejected(published: Path, settings: Settings, tmp_path: Path) -> None:
    other = Identity({"test": 1}, {"name": "other"})
    target = manifests(published)[0].parents[2] / "other" / "generations"
    target.mkdir(parents=True)
    shutil.copy(manifests(published)[0], target / "00000001")
    record = restore(settings, other, {"triton": str(tmp_path / "copy")})
    assert (record.outcome, record.reason) == ("rejected", "manifest_misplaced")


def test_the_older_generation_is_tried(
    published: Path, settings: Settings, identity: Identity, triton_cache: Path, again: Callable[..., object]
) -> None:
    key = next(triton_cache.glob("[A-Z]*"))
    second = triton_cache / ("Z" * 52)
    shutil.copytree(key, second)
    for group in second.glob("__grp__*"):
        group.write_text(group.read_text().replace(key.name, second.name))
    assert publish(settings, identity, {"triton": str(triton_cache)}).generation == 2
    flip(manifests(published)[1])
    record = again()
    assert (record.outcome, record.generation, record.entries) == ("hit", 1, 4)
    assert record.details["rejected"][0]["reason"] == "manifest_damaged"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text(""), "is a file"),
        (lambda path: path.mkdir(mode=0o000), ""),
    ],
)
def test_a_store_that_is_not_there_is_one_line(
    again: Callable[..., object], tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "other-store"
    make(path)
    record = again(store=(str(path),))
    if words or os.geteuid() != 0:
        assert (record.outcome, record.reason) == ("unavailable", "store_unavailable")
        assert words in record.details["message"]
        assert "\n" not in record.details["message"]
    else:
        assert record.outcome == "miss"


# -- what is there already -------------------------------------------------------------------------------


def test_local_work_stays(published: Path, again: Callable[..., object], tmp_path: Path) -> None:
    again()
    json_file = next((tmp_path / "copy").glob("[A-Z]*/[a-z]*.json"))
    own = json.dumps(json.loads(json_file.read_text()) | {"mine": 1})
    json_file.write_text(own)
    again()
    assert json_file.read_text() == own


@pytest.mark.parametrize("damage", [empty, truncate, remove])
def test_a_broken_local_entry_is_moved_aside_and_restored(
    published: Path, again: Callable[..., object], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    again()
    cubin = next((tmp_path / "copy").glob("*/*.cubin"))
    whole = cubin.read_bytes()
    damage(cubin)
    record = again()
    assert (record.outcome, record.entries) == ("hit", 1)
    assert len(record.details["set_aside"]) == 1
    assert cubin.read_bytes() == whole


def test_an_empty_library_does_not_hide_the_stored_one(
    settings: Settings, identity: Identity, tmp_path: Path
) -> None:
    origin, live = tmp_path / "origin", tmp_path / "live"
    for directory in (origin, live):
        (directory / "ab").mkdir(parents=True)
    source = origin / "ab" / "ckernel.main.cpp"
    source.write_text('extern "C" int kernel() { return 1; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", source.with_suffix(".so"), source], check=True)
    publish(settings, identity, {"inductor": str(origin)}, adopt=True)
    (live / "ab" / "ckernel.main.so").write_bytes(b"")  # what `kill -9` of g++ leaves
    record = restore(settings, identity, {"inductor": str(live)})
    assert record.details["set_aside"] == ["inductor/ab/ckernel: ckernel.main.so is empty"]
    assert (live / "ab" / "ckernel.main.so").read_bytes() == source.with_suffix(".so").read_bytes()
    assert os.access(live / "ab" / "ckernel.main.so", os.X_OK)
    # A source that a killed compiler left without its library is completed.
    (live / "ab" / "ckernel.main.so").unlink()
    restore(settings, identity, {"inductor": str(live)})
    assert (live / "ab" / "ckernel.main.so").exists()


def test_a_directory_of_another_build_is_refused(
    published: Path, again: Callable[..., object], settings: Settings, tmp_path: Path
) -> None:
    again()
    other = Identity({"test": 2}, {"name": "default"})
    record = restore(settings, other, {"triton": str(tmp_path / "copy")})
    assert (record.outcome, record.reason) == ("rejected", "other_build")
    assert "mv " in record.details["message"]
    assert publish(settings, other, {"triton": str(tmp_path / "copy")}).reason == "other_build"


def test_an_empty_directory_of_another_build_is_taken_over(
    published: Path, settings: Settings, identity: Identity, again: Callable[..., object], tmp_path: Path
) -> None:
    other = Identity({"test": 2}, {"name": "default"})
    assert restore(settings, other, {"triton": str(tmp_path / "copy")}).outcome == "miss"
    assert again().reason == "restored"
    assert publish(settings, identity, {"triton": str(tmp_path / "copy")}).reason == "unchanged"


def test_a_full_disk_is_refused_before_a_byte_is_written(
    published: Path, again: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    small = os.statvfs_result((*real[:3], 1, 1, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    record = again()
    assert (record.outcome, record.reason) == ("unavailable", "no_room")
    assert contents(tmp_path / "copy") == {}


def test_a_file_longer_than_a_frame(settings: Settings, identity: Identity, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    (origin / "cache").mkdir(parents=True)
    (origin / "cache" / "0a").write_bytes(os.urandom(9_000_000) + bytes(5_000_000))
    (origin / "cache" / "0b").write_bytes(b"small")
    publish(settings, identity, {"inductor": str(origin)}, adopt=True)
    record = restore(settings, identity, {"inductor": str(tmp_path / "copy")})
    assert record.outcome == "hit"
    assert contents(tmp_path / "copy") == contents(origin)


def test_generations_are_chosen_by_number(
    published: Path, settings: Settings, identity: Identity, tmp_path: Path
) -> None:
    record = restore(settings, identity, {"triton": str(tmp_path / "a")}, number=1)
    assert record.generation == 1
    record = restore(settings, identity, {"triton": str(tmp_path / "b")}, number=7)
    assert record.outcome == "miss"


def test_identity_of_the_manifest_is_checked_by_the_store(published: Path, identity: Identity) -> None:
    store = Store.open(str(published))
    assert store.read(identity.build_key, "default", 1).manifest.number == 1
    assert store.identity(identity.build_key) == identity._replace(profile={}).to_dict()
