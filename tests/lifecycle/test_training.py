"""A real training loop: torchrun, four processes, Session in each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRAINING = Path(__file__).parent / "training.py"


def train(node, steps: int = 30, **environ: str) -> list[dict[str, object]]:
    out = node.directory / f"out{len(list(node.directory.glob('out*')))}"
    out.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    ended = subprocess.run(
        [*torchrun, str(TRAINING), str(steps), str(out)],
        env={**node.environ, "CACHEHOME_PUBLISH_INTERVAL_SECONDS": "600", **environ},
        cwd=node.directory, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize("slot", ["", "rank{LOCAL_RANK}"], ids=["shared", "slots"])
def test_the_second_start_has_no_miss(node, slot):
    cold = train(node, CACHEHOME_SLOT=slot)
    assert sum(rank["misses"] for rank in cold) > 0
    assert len({rank["directory"] for rank in cold}) == (4 if slot else 1)
    assert any(rank["round"] for rank in cold), "the first round was published while it ran"
    node.wipe()
    warm = train(node, CACHEHOME_SLOT=slot)
    assert [rank["misses"] for rank in warm] == [0] * 4
    assert all(rank["hits"] > 0 for rank in warm)
    reasons = sorted(rank["records"][0]["reason"] for rank in warm)
    assert (
        sum(
            bool(rank["records"][0]["fetched_bytes"]) and "by" not in rank["records"][0]["details"]
            for rank in warm
        )
        == 1
    )
    assert set(reasons) <= {"restored", "cloned", "already_there"}
