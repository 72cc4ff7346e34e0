"""What `doctor` says of places where a store can't be published to: it is full, read-only, oddly named."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuse import Fault, mounted

from cachehome import cli

FULL = "nothing can be published: No space left on device; the file system is full: make room there"
INODES = "nothing can be published: No space left on device; no inodes are left (df -i): remove files there"
READ_ONLY = (
    "nothing can be published: Read-only file system; the store is read-only: set publish = off for a reader"
)


@contextlib.contextmanager
def tmpfs(at: Path, options: str) -> Iterator[Path]:
    """A small file system of its own, or no test."""
    at.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", at], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {done.stderr.decode()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def doctor(capsys: pytest.CaptureFixture[str], place: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """(exit code, {name of a finding: "state: message"})."""
    code = cli.main(["doctor", str(place), "--max-storage-bytes", "1M", *words, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] == (code == 0)
    return code, {found["name"]: f"{found['state']}: {found['message']}" for found in report["findings"]}


def test_a_full_file_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tmpfs(tmp_path / "full", "size=64k") as place:
        (place / "fill").write_bytes(bytes(65536))
        for words in ((), ("--stress", "1")):
            code, found = doctor(capsys, place, *words)
            assert (code, found["writable"]) == (1, f"fail: {FULL}")
            assert found["room"].startswith("fail: 0.0 GB free: less than one build may take")
        code, found = doctor(capsys, place, "--publish", "off")
        assert (code, found["writable"]) == (0, f"warn: {FULL}")
        (place / "fill").write_bytes(bytes(16384))
        code, found = doctor(capsys, place, "--stress", "1")  # it fills up meanwhile, which is said once
        assert code == 1
        assert found["stress"].endswith("No space left on device; the file system is full: make room there")
        assert sorted(path.name for path in place.iterdir()) == ["fill"]


def test_no_inodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tmpfs(tmp_path / "few", "size=64m,nr_inodes=4") as place:
        for name in "abc":
            (place / name).touch()
        code, found = doctor(capsys, place)
        assert (code, found["writable"]) == (1, f"fail: {INODES}")
        assert found["inodes"] == "fail: 0 inodes free: remove files there (df -i)"


def test_a_read_only_file_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tmpfs(tmp_path / "ro", "size=64m") as place:
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        code, found = doctor(capsys, place)
        assert (code, found["writable"]) == (1, f"fail: {READ_ONLY}")
        assert doctor(capsys, place, "--publish", "off")[0] == 0  # good for readers


def test_a_quota_that_is_used_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path / "source", tmp_path / "mount") as faults:
        faults.set(Fault("write", errno="EDQUOT"))
        code, found = doctor(capsys, tmp_path / "mount")
        assert code == 1
        assert found["writable"].endswith("the quota is used up: raise it or make room")


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("/tmp/a,b", "is not allowed: an absolute directory without a comma"),
        ("s3://bucket/x", "no backend for 's3://bucket/x': name a directory"),
        ("/etc/passwd", "the store /etc/passwd is a file, or lies below one: name a directory"),
        ("/nowhere/store", "the store /nowhere/store does not exist: mount it, or make it (mkdir -p)"),
    ],
)
def test_what_is_no_store_is_one_line(store: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("ls", "verify", "prune"):
        assert cli.main([verb, "--store", store]) in (1, 2)
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 1
        assert words in told[0]


def test_doctor_of_what_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "a,b"
    odd.mkdir(mode=0o700)
    code, found = doctor(capsys, odd)
    assert (code, found["path"]) == (
        1,
        "fail: it holds a comma, which separates stores in settings: choose another",
    )
    assert os.listdir(odd) == []
