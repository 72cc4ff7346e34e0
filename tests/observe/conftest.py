"""Processes that are counted: real ones, with the hook of a checkout that is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HOOK = "from cachehome import _boot; _boot.activate()\n"

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run code in a fresh interpreter that runs the hook at its start."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)

    def run(code: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        base = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": f"{hook}{os.pathsep}{ROOT}",
            "CACHEHOME_DEBUG": "1",
        }
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *words],
            env=base | environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return run
