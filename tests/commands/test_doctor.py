"""`doctor` of this environment: what is missing, and options that mean nothing. (Of a store: tests/store.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachehome import cli

ROOT = Path(__file__).resolve().parents[2]


def doctor(
    home: Path, *words: str, path: str = "", flags: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-m", "cachehome", "doctor", *words],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT)))),
            "HOME": str(home),
            **variables,
        },
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_without_zstandard_nothing_is_tried(tmp_path: Path) -> None:
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    (lacking / "zstandard.py").write_text("raise ImportError('not here')\n")
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    done = doctor(tmp_path, "--store", str(store), "--stress", "1", path=str(lacking))
    told = "cachehome: zstandard is not installed: pip install 'cachehome[sync]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
    assert list(store.iterdir()) == []
    assert "pip install 'cachehome[sync]'" in doctor(tmp_path, path=str(lacking)).stdout


def test_to_join_needs_a_load(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--join"], ["--join", "--stress", "0"]):
        assert cli.main(["doctor", *words]) == 2
        assert "--stress SECONDS" in capsys.readouterr().err


def test_a_wish_without_a_hook(tmp_path: Path) -> None:
    # -S: no site-packages, so no hook, wherever these tests run.
    done = doctor(tmp_path, flags=("-S",), CACHEHOME="1")
    assert "warn  hook         not installed for" in done.stdout
    assert "hook " not in doctor(tmp_path, flags=("-S",)).stdout
