from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cachehome.observe import kernels

COMPILES = """
import sys
from cachehome.observe import kernels
live, name = sys.argv[1:]
kernels._EVERY = 0  # as often as a compile worker writes
for number in range(20):
    kernels._remember(live, f"{name}-{number}", number / 10)
"""


@pytest.mark.timeout(120)
def test_processes_that_measure_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", COMPILES, str(tmp_path), f"worker{number}"])
        for number in range(6)
    ]
    assert [process.wait() for process in started] == [0] * 6
    found = kernels.known(str(tmp_path))
    assert len(found) == 120
    assert found["worker3-7"].seconds == 0.7


def test_what_an_older_version_or_a_worker_wrote_is_read(tmp_path: Path) -> None:
    content = {"OLD": 1.5, "NEW": [2.5, {"thread count": "4"}]}
    (tmp_path / kernels.TIMES).write_text(json.dumps(content))
    found = kernels.known(str(tmp_path))
    assert (found["OLD"].seconds, found["OLD"].made) == (1.5, None)
    assert (found["NEW"].seconds, found["NEW"].made) == (2.5, {"thread count": "4"})
