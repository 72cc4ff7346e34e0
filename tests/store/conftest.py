"""A store in memory whose clock tests move."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from memory import MemoryBackend

from cachehome.store.lab import Lab


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def lab(memory: MemoryBackend) -> Lab:
    return Lab(memory)
