"""Publishing from the directories of several workers at once: one generation with what any of them has made."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from test_clone import kernel

from cachehome.store.store import Store
from cachehome.sync.publish import publish
from cachehome.sync.restore import restore

NAMES = ["B" * 52, "C" * 52, "D" * 52]


@pytest.fixture
def workers(tmp_path):
    made = []
    for number in range(3):
        there = tmp_path / f"rank{number}" / "torchinductor"
        made.append({"inductor": str(there), "triton": str(there / "triton")})
        Path(made[-1]["triton"]).mkdir(parents=True)
    return made


def newest(settings, identity):
    return Store.open(settings.store[-1], settings).newest(identity.build_key, identity.profile_key).manifest


def write(directories, path: str, data: bytes) -> None:
    target = Path(directories["inductor"], path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def test_one_generation_holds_what_any_of_them_made(workers, settings, identity, tmp_path):
    for number, one in enumerate(workers):
        kernel(Path(one["triton"]))  # all of them
        kernel(Path(one["triton"]), NAMES[number])
    record = publish(settings, identity, workers, adopt=True)
    assert (record.reason, record.generation, record.entries) == ("published", 1, 4)
    manifest = newest(settings, identity)
    assert {name for _, name in manifest.entries} == {"A" * 52, *NAMES}
    for number, name in enumerate(NAMES):
        origin = manifest.origin_of(manifest.entries["triton", name])
        assert origin["directories"] == workers[number], "each entry tells where it was made"
    target = {"triton": str(tmp_path / "new")}
    assert restore(settings, identity, target).entries == 4
    for one in workers:
        assert publish(settings, identity, one).reason == "unchanged"
    assert publish(settings, identity, workers).reason == "unchanged"


def test_what_is_alike_is_stored_once(workers, settings, identity):
    for one in workers:
        kernel(Path(one["triton"]))
    together = publish(settings, identity, workers, adopt=True)
    assert (together.entries, together.files) == (1, 3)
    assert len(newest(settings, identity).packs) == 1


def test_what_one_of_them_has_cut_short_comes_from_another(workers, settings, identity):
    for one in workers:
        kernel(Path(one["triton"]))
    Path(workers[0]["triton"], "A" * 52, "k.json").write_bytes(b"")
    Path(workers[2]["triton"], "A" * 52, "k.json").write_bytes(b"")
    assert publish(settings, identity, workers, adopt=True).entries == 1


def test_of_near_copies_of_a_graph_the_first_is_published(workers, settings, identity):
    unguarded = b"\x80\x04\x8c\x0bguards_expr\x94N"
    for number, one in enumerate(workers):
        data = unguarded + bytes([number])
        name = base64.b32encode(hashlib.sha256(data).digest()).decode().lower()[:52]
        write(one, f"fxgraph/ab/fabc/{name}", data)
    record = publish(settings, identity, workers, adopt=True)
    assert (record.entries, record.details["copies"]) == (1, 2)


def test_timings_of_all_of_them_are_merged(workers, settings, identity, tmp_path):
    def told(*numbers: int) -> bytes:
        return json.dumps({"cache": {str(n): n for n in numbers}}).encode()

    def stored() -> list[str]:
        target = {"inductor": str(tmp_path / f"new{len(list(tmp_path.iterdir()))}")}
        restore(settings, identity, target)
        return sorted(json.loads(Path(target["inductor"], "cache/x").read_text())["cache"])

    for number, one in enumerate(workers):
        write(one, "cache/x", told(number))
    assert publish(settings, identity, workers, adopt=True).entries == 1
    assert stored() == ["0", "1", "2"]
    for number, one in enumerate(workers):
        write(one, "cache/x", told(number, number + 10))
    assert publish(settings, identity, workers).reason == "published"
    assert stored() == ["0", "1", "10", "11", "12", "2"]
    assert publish(settings, identity, workers).reason == "unchanged"
