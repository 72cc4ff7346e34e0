"""Packs that are sound, and laid out as no publisher of ours would."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store.entries import Entry, File
from cachehome.store.manifest import Pack
from cachehome.store.merge import Addition
from cachehome.store.pack import compressor
from cachehome.store.store import Store
from cachehome.sync.record import Record
from cachehome.sync.restore import host_tag, restore

KERNEL = "A" * 52
# Suffix of a file to its bytes and its place in the pack's raw stream.
Laid = dict[str, tuple[bytes, int]]
Install = Callable[[list[bytes], Laid], tuple[Record, dict[str, bytes]]]


@pytest.fixture
def install(store: Path, settings: Settings, identity: Identity, tmp_path: Path) -> Install:
    """Restore one kernel from a pack of these frames: (the record, the files that came)."""

    def run(frames: list[bytes], laid: Laid) -> tuple[Record, dict[str, bytes]]:
        stored = list(map(compressor("zstd:1"), frames))
        whole = b"".join(stored)
        rows = tuple(
            (len(one), len(raw), hashlib.sha256(one).hexdigest())
            for one, raw in zip(stored, frames, strict=True)
        )
        pack = Pack(hashlib.sha256(whole).hexdigest(), len(whole), False, 0, rows)
        files = tuple(
            File(suffix, len(data), 0o600, hashlib.sha256(data).hexdigest(), 0, offset)
            for suffix, (data, offset) in sorted(laid.items())
        )
        entry = Entry("triton", KERNEL, 0, False, files)
        there = Store.open(str(store), settings)
        there.add_packs(identity.build_key, [(pack, whole)])
        there.commit(
            identity.build_key,
            identity.profile_key,
            Addition({entry.key: entry}, (pack,), ({"tag": host_tag(identity)},)),
            deadline=time.monotonic() + 30,
        )
        live = tmp_path / "live"
        record = restore(settings, identity, {"triton": str(live)})
        return record, {f"/{path.name}": path.read_bytes() for path in live.glob(f"{KERNEL}/*")}

    return run


def test_a_group_that_lies_in_two_frames(install: Install, tmp_path: Path) -> None:
    """The second one is decoded into the memory of the first."""
    children = [f"{number:03}.json" for number in range(50)]
    group = json.dumps({"child_paths": {name: name for name in children}}).encode()
    data = b"{}" * len(group)
    raw = group + data
    laid: Laid = {f"/{name}": (b"{}", len(group) + 2 * number) for number, name in enumerate(children)}
    record, found = install([raw[:700], raw[700:]], laid | {"/__grp__k.json": (group, 0)})
    assert record.reason == "restored"
    directory = tmp_path / "live" / KERNEL
    assert json.loads(found["/__grp__k.json"]) == {
        "child_paths": {name: str(directory / name) for name in children}
    }


@pytest.mark.parametrize("place", ["first", "between", "last", "alone", "in no frame"])
def test_an_empty_file_lies_anywhere(install: Install, place: str) -> None:
    frames = [b"a" * 1000, b"b" * 1000]
    offset = {"first": 0, "between": 1000, "last": 2000, "alone": 2000, "in no frame": 0}[place]
    laid: Laid = {"/e.json": (b"", offset)}
    if place == "in no frame":
        frames = []
    elif place != "alone":
        laid |= {"/a.json": (frames[0], 0), "/b.json": (frames[1], 1000)}
    record, found = install(frames, laid)
    assert (record.outcome, record.reason) == ("hit", "restored"), record
    assert found == {suffix: data for suffix, (data, _) in laid.items()}
