"""A store, an identity and settings that fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachehome.identity import Identity
from cachehome.settings import Settings


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def settings(store: Path) -> Settings:
    return Settings(store=(str(store),), store_timeout_seconds=60.0)


@pytest.fixture
def identity() -> Identity:
    return Identity({"test": 1}, {"name": "default"})
