"""Checkouts by commit and uncommitted changes, other trees by content."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cachehome.probes import source

ENVIRON = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"}


def _describe(path: Path) -> str:
    return source.start(str(path), ENVIRON)()


def _git(path: Path, *words: str) -> None:
    who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    ]
    subprocess.run(["git", *who, *words], cwd=path, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git")
    path = tmp_path / "checkout"
    path.mkdir()
    _git(path, "init")
    (path / "a.py").write_text("1")
    (path / ".gitignore").write_text("*.log\n")
    _git(path, "add", ".")
    _git(path, "commit", "-m", "one")
    return path


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    found = _describe(checkout)
    assert found.startswith("commit ")
    assert "+" not in found
    (checkout / "noise.log").write_text("ignored")
    os.utime(checkout / "a.py", (1, 1))
    assert _describe(checkout) == found
    shutil.copytree(checkout, checkout.parent / "copy")
    assert _describe(checkout.parent / "copy") == found


def test_uncommitted_changes_count(checkout: Path) -> None:
    found = {_describe(checkout)}
    (checkout / "a.py").write_text("2")
    found.add(_describe(checkout))
    _git(checkout, "add", ".")
    found.add(_describe(checkout))  # staged: the same change
    (checkout / "b.py").write_text("1")
    found.add(_describe(checkout))
    (checkout / "b.py").write_text("2")
    found.add(_describe(checkout))
    assert len(found) == 4


def test_a_checkout_does_not_get_to_run_anything(checkout: Path) -> None:
    marker = checkout.parent / "ran"
    script = checkout.parent / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {marker}\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "core.pager"):
        _git(checkout, "config", name, str(script))
    (checkout / ".gitattributes").write_text("*.py diff=evil filter=evil\n")
    _git(checkout, "config", "diff.evil.textconv", str(script))
    (checkout / "a.py").write_text("3")
    _describe(checkout)
    assert not marker.exists()


def test_a_tree_counts_by_names_and_content(tmp_path: Path) -> None:
    def tree(name: str) -> Path:
        path = tmp_path / name
        (path / "sub").mkdir(parents=True)
        (path / "sub/a.py").write_text("1")
        (path / "link").symlink_to("sub/a.py")
        return path

    one = _describe(tree("one"))
    assert one.startswith("tree ")
    two = tree("two")
    (two / "__pycache__").mkdir()
    (two / "__pycache__/a.pyc").write_text("x")
    (two / "sub/a.pyc").write_text("x")
    assert _describe(two) == one
    (two / "sub/a.py").chmod(0o755)
    assert _describe(two) != one
    (two / "sub/a.py").chmod(0o644)
    (two / "sub/a.py").rename(two / "sub/b.py")
    assert _describe(two) != one


def test_a_tree_that_is_too_large_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}").write_text("")
    assert _describe(tmp_path).startswith("tree error: more than 3 files")


def test_a_file_a_pipe_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    assert _describe(tmp_path / "file").startswith("file ")
    assert _describe(tmp_path / "none") == "absent"
    assert source.file_digest(str(tmp_path / "pipe")) == "error: not a file"
    assert source.file_digest(str(tmp_path / "none")) == "error: ENOENT"


def test_image(tmp_path: Path) -> None:
    path = tmp_path / "digest"
    path.write_text("sha256:77\n")
    assert source.image(str(path)) == "sha256:77"
    assert source.image("sha256:88") == "sha256:88"
