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


@pytest.mark.parametrize("size", [40_000, 150_000])
def test_the_same_files_give_the_same_packs_on_every_machine(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was lost could not be mended from a machine with another number of cores."""
    for number in range(100):
        path = tmp_path / f"{number:052}".replace("0", "A") / "k.cubin"
        path.parent.mkdir()
        path.with_suffix(".ttir").write_bytes(os.urandom(size))
        path.with_suffix(".json").write_bytes(b"{}")
    found = set()
    for cores in (1, 2, 3, 8, 64):
        monkeypatch.setattr("cachehome.sync.parallel.cores", lambda cores=cores: cores)
        source = Source(families.catalogue()["triton"], Live(str(tmp_path)), None)
        source.scan()
        spool = Spool([source], [list(source.local)], "zstd:1", False, time.monotonic() + 60)
        spool.make(0)
        spool.remove()
        found.add(tuple(pack.sha256 for pack, _ in spool.packs))
    assert len(found) == 1
    assert not list((tmp_path / ".cachehome").glob("staging-*"))
