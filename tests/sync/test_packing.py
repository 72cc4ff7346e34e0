from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cachehome import families
from cachehome.sync.live import Live
from cachehome.sync.packing import Spool
from cachehome.sync.source import Source


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", [100, 5 << 20])
def test_a_file_that_became_a_pipe_is_not_waited_for(tmp_path: Path, size: int) -> None:
    path = tmp_path / "ab" / "k.cpp"
    path.parent.mkdir()
    path.write_bytes(bytes(size))
    source = Source(families.catalogue()["inductor"], Live(str(tmp_path)), None)
    source.scan()
    path.unlink()
    os.mkfifo(path)
    spool = Spool([source], [list(source.local)], "zstd:1", False, time.monotonic() + 20)
    spool.make(0)
    problem, entry = spool.entry(0, "ab/k")
    spool.remove()
    assert entry is None
    assert problem
    assert source.read("ab/k.cpp") == b""
