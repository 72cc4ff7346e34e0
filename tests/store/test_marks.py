"""Denied lists, pins and what commands make of them."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from memory import MemoryBackend

from cachehome import cli
from cachehome.errors import ConfigError, IntegrityError, NotInStore
from cachehome.store import marks
from cachehome.store.entries import Entry, File
from cachehome.store.lab import BUILD, Lab
from cachehome.store.manifest import Pack
from cachehome.store.merge import digest
from cachehome.store.posix import PosixBackend

ROWS = frozenset({("triton", "AB", "d" * 64), ("inductor", "ab/c.py", "e" * 64)})


def test_a_list_reads_back() -> None:
    denied = marks.Denied("x", marks.QUARANTINE, ROWS, 12.5, None, "me@here", "it crashes")
    data = marks.encode("b/denied/x", denied)
    assert marks.decode("b/denied/x", data) == denied


def test_the_format_of_a_list() -> None:
    denied = marks.Denied("x", marks.EVICTED, ROWS, 12.5, 99.0, "me@here", "room")
    header, _, payload = marks.encode("b/denied/x", denied).partition(b"\n")
    assert json.loads(header)["name"] == "b/denied/x"
    assert json.loads(payload) == {
        "reason": "evicted",
        "entries": [["inductor", "ab/c.py", "e" * 64], ["triton", "AB", "d" * 64]],
        "created": 12.5,
        "expires": 99.0,
        "by": "me@here",
        "note": "room",
    }


@pytest.mark.parametrize("damage", [b"", b"{}", b"\n", b'{"format":1}\n{}'])
def test_a_damaged_list_is_an_error(damage: bytes) -> None:
    with pytest.raises(IntegrityError):
        marks.decode("b/denied/x", damage)


def test_a_list_is_not_valid_under_another_name_or_with_other_bytes() -> None:
    data = marks.encode("b/denied/x", marks.Denied("x", marks.ROLLBACK, ROWS))
    with pytest.raises(IntegrityError):
        marks.decode("c/denied/x", data)
    with pytest.raises(IntegrityError):
        marks.decode("b/denied/x", data.replace(b"triton", b"tritox"))


@pytest.mark.parametrize("label", ["", ".x", "a/b", "../x", "x" * 200, "a b", "a\n"])
def test_labels_are_plain(label: str, lab: Lab) -> None:
    with pytest.raises(ConfigError):
        lab.store.deny(BUILD, marks.Denied(label, marks.ROLLBACK, ROWS))


def test_a_slim_copy_is_the_same_entry() -> None:
    packs = (
        Pack("a" * 64, 1, False, 0, ((1, 1, "a" * 64),)),
        Pack("b" * 64, 1, True, 0, ((1, 1, "b" * 64),)),
    )
    cubin = File("/k.cubin", 1, 0o600, "c" * 64, 0, 0)
    ir = File("/k.ttir", 1, 0o600, "d" * 64, 1, 0)
    full = Entry("triton", "AB", 1, False, (cubin, ir))
    slim = Entry("triton", "AB", 1, True, (cubin,))
    other = Entry("triton", "AB", 1, True, (cubin._replace(sha256="e" * 64),))
    assert digest(full, packs) == digest(slim, packs) != digest(other, packs)


def test_expired_and_evicted() -> None:
    past = marks.Denied("a", marks.EVICTED, ROWS, expires=time.time() - 1)
    coming = marks.Denied("b", marks.EVICTED, ROWS, expires=time.time() + 100)
    assert marks.Denials.of([past]).rows == frozenset()
    denials = marks.Denials.of([past, coming])
    assert denials.rows == ROWS
    assert not any(denials.bad(row) for row in ROWS)
    assert all(marks.Denials.of([coming, marks.Denied("c", marks.ROLLBACK, ROWS)]).bad(row) for row in ROWS)


def test_what_a_generation_brought_and_what_came_after(lab: Lab, memory: MemoryBackend) -> None:
    for name in ("a", "b", "c"):
        lab.publish(**{name: name})
    # Also when that generation itself has gone, or was damaged.
    memory.delete(f"cachehome-v1/{BUILD}/profiles/p/generations/00000002")
    manifests = [generation.manifest for generation in lab.store.generations(BUILD, "p")]
    assert {name for _, name, _ in marks.introduced(manifests, 2)} == {"b"}
    assert {name for _, name, _ in marks.after(manifests, 1)} == {"b", "c"}
    assert marks.after(manifests, 3) == frozenset()


def test_a_denied_entry_is_not_published_and_another_copy_is(lab: Lab) -> None:
    lab.publish(a="1")
    lab.publish(bad="1")
    manifests = [generation.manifest for generation in lab.store.generations(BUILD, "p")]
    lab.store.deny(BUILD, marks.Denied("x", marks.QUARANTINE, marks.introduced(manifests, 2)))
    newest = lab.store.newest(BUILD, "p")
    assert newest is not None
    denials = lab.store.denied(BUILD)
    assert [
        entry.name for entry in newest.manifest.entries.values() if denials.denies(entry, newest.manifest)
    ] == ["bad"]
    assert lab.publish(profile="q", bad="1", z="1")[0].manifest.entries.keys() == {("stress", "z")}
    generation, ours = lab.publish(bad="2")
    assert (generation.number, ours) == (3, True)
    assert not any(
        denials.denies(entry, generation.manifest) for entry in generation.manifest.entries.values()
    )
    # The list undone, the first bytes to come stay: they are the good ones now.
    lab.store.allow(BUILD, "x")
    assert lab.publish(bad="1")[1] is False


def test_a_pin_is_a_copy_that_outlives_its_line(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    assert lab.store.pin(BUILD, "p", 1, "release")
    assert lab.store.pin(BUILD, "p", 1, "release")  # again: nothing to do
    lab.publish(b="2")
    assert not lab.store.pin(BUILD, "p", 2, "release")
    memory.delete(f"cachehome-v1/{BUILD}/profiles/p/generations/00000001")
    assert lab.store.find(BUILD, "p", 1).number == 1
    memory.put(f"cachehome-v1/{BUILD}/pins/broken", b"?")
    assert list(lab.store.pins(BUILD)) == ["release"]
    lab.store.unpin(BUILD, "release")
    with pytest.raises(NotInStore):
        lab.store.find(BUILD, "p", 1)


# -- the commands -----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CACHEHOME_STORE", str(root))
    monkeypatch.chdir(tmp_path)
    lab = Lab(PosixBackend(str(root)))
    for name in ("a", "b", "c"):
        lab.publish(**{name: name})
    return lab


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = cli.main([*words, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def test_quarantine_and_back(place: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, done = run(capsys, "quarantine", "2", "--dry-run")
    assert (code, [entry["name"] for entry in done["entries"]]) == (0, ["b"])
    assert run(capsys, "unquarantine") == (3, {"store": place.store.url, "denied": []})
    code, done = run(capsys, "quarantine", f"{BUILD[:6]}/p/2", "--note", "segfault")
    assert (code, done["label"]) == (0, "quarantine-p-2")
    code, listed = run(capsys, "unquarantine")
    assert (code, listed["denied"][0]["entries"], listed["denied"][0]["note"]) == (0, 1, "segfault")
    assert {name for _, name in place.store.denied(BUILD).keys} == {"b"}
    assert run(capsys, "unquarantine", "quarantine-p-2")[0] == 0
    assert not place.store.denied(BUILD).rows
    assert run(capsys, "unquarantine", "quarantine-p-2")[0] == 1


def test_rollback(place: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, done = run(capsys, "rollback", "1")
    assert (code, [entry["name"] for entry in done["entries"]]) == (0, ["b", "c"])
    assert run(capsys, "rollback", "3")[0] == 1
    for wrong in ("x", "", "1/2/3/4", "-1"):
        assert cli.main(["rollback", "--", wrong]) == 2
    capsys.readouterr()


def test_pin_and_unpin(place: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "unpin")[0] == 3
    assert run(capsys, "pin", "2")[1]["label"] == "p-2"
    assert run(capsys, "pin", "9")[0] == 1
    assert run(capsys, "pin", "3", "--label", "p-2")[0] == 1
    assert run(capsys, "unpin")[1]["pins"] == [
        {"build": BUILD, "label": "p-2", "profile": "p", "generation": 2}
    ]
    assert run(capsys, "unpin", f"{BUILD[:8]}/p-2")[0] == 0
    assert place.store.pins(BUILD) == {}


def test_prune_shows_and_does(place: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "prune")[0] == 3
    words = ("prune", "--keep-generations", "1", "--keep-seconds", "0")
    assert cli.main([*words, "--dry-run"]) == 0
    assert (
        "with a grace period of 0 s one that is under way may have to begin again" in capsys.readouterr().err
    )
    code, plan = run(capsys, *words, "--dry-run")
    assert (code, plan["dry_run"], plan["deleted_inodes"]) == (0, True, 2)
    assert plan["deleted_bytes"] > 0
    assert place.numbers() == [1, 2, 3]
    code, done = run(capsys, *words)
    assert (code, done["deleted_inodes"], place.numbers()) == (0, 2, [3])
    assert done["inodes"] == plan["inodes"] - 2
    assert run(capsys, *words)[0] == 3


def test_prune_compacts(place: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = run(capsys, "prune", "--compact", "--dry-run")
    assert (code, plan["builds"][0]["compaction"]["packs"]) == (0, 3)
    code, done = run(capsys, "prune", "--compact")
    assert (code, done["builds"][0]["compaction"]["new_packs"]) == (0, 1)
    assert place.names() == {"a", "b", "c"}
    assert run(capsys, "prune", "--compact", "--dry-run")[0] == 3


def test_doctor(place: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(capsys, "doctor")
    assert (code, report["sound"]) == (0, True), report
    assert {"writable", "exclusive", "clock", "room"} <= {finding["name"] for finding in report["findings"]}
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"cachehome-v1"}
    code, report = run(capsys, "doctor", str(tmp_path / "missing"))
    assert (code, report["sound"]) == (1, False)
    code, report = run(capsys, "doctor", str(tmp_path / "store"), "--stress", "1", "--join")
    assert code == 1
    code, report = run(capsys, "doctor", "store")  # relative to the working directory
    assert (code, report["store"]) == (0, str(tmp_path / "store"))


def test_doctor_does_not_call_a_store_sound_that_it_could_not_stress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "store"
    root.mkdir(mode=0o700)

    def refuse(*_: object) -> bool:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(PosixBackend, "_write", refuse)
    code, report = run(capsys, "doctor", str(root), "--publish", "off")
    assert (code, report["sound"]) == (0, True)  # good for readers
    code, report = run(capsys, "doctor", str(root), "--stress", "1")
    assert (code, report["sound"], report["stress"]) == (1, False, None)
