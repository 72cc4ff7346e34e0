"""The wheel, built from the checkout, and environments that have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from venvs import ROOT, Venv, make_venv


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    return next(directory.glob("*.whl"))


@pytest.fixture(scope="session")
def hooked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """An environment with the hook. Tests that change it make their own."""
    venv = make_venv(tmp_path_factory.mktemp("hooked"))
    venv.install(wheel)
    return venv


@pytest.fixture
def venv(wheel: Path, tmp_path: Path) -> Venv:
    """An environment with the hook, for one test."""
    made = make_venv(tmp_path)
    made.install(wheel)
    return made
